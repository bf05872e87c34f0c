//! The page of the language, `docs/language.md`, is true: every word of the language is on it, every kernel on it has no error
//! and no warning, says its hints, and means its formula, which is computed here in float64 from the definition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use flashtile::kernel::BUILTINS;
use flashtile::{Argument, Device, Elem, Element as _, Kernel, SourceText, Tensor, f8e4m3};
use flashtile_dsl::analysis::hints::hints_unbound;
use flashtile_dsl::ir::{ParamKind, SizeKind};
use flashtile_dsl::syntax::{self, parse_with_warnings};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/language.md");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

/// The blocks of Rust on the page.
fn blocks() -> Vec<String> {
    blocks_of(&page())
}

/// The blocks of Rust in a part of the page.
fn blocks_of(part: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in part.lines() {
        match (&mut open, line) {
            (None, "```rust") => open = Some(String::new()),
            (Some(_), "```") => found.extend(open.take()),
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(open.is_none(), "the last block of the page has an end");
    found
}

/// Sizes and scalars, by name.
type Numbers = BTreeMap<&'static str, f64>;

/// The inputs of a launch: sizes, scalars, and tensors in row-major order.
struct Inputs {
    numbers: Numbers,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Inputs {
    fn n(&self, name: &str) -> usize {
        self.numbers[name] as usize
    }

    fn at(&self, tensor: &str, place: &[usize]) -> f64 {
        let (shape, data) = &self.tensors[tensor];
        assert_eq!(shape.len(), place.len(), "{tensor}");
        data[place.iter().zip(shape).fold(0, |at, (p, n)| at * n + p)]
    }

    /// The product of two rows, each a place without its last dimension.
    fn product(&self, a: (&str, &[usize]), b: (&str, &[usize]), length: usize) -> f64 {
        let element = |(name, row): (&str, &[usize]), d: usize| self.at(name, &[row, &[d]].concat());
        (0..length).map(|d| element(a, d) * element(b, d)).sum()
    }
}

/// What a kernel is launched with, and what its output has to be at a place.
struct Case {
    kernel: &'static str,
    numbers: &'static [(&'static str, f64)],
    output: &'static str,
    formula: fn(&Inputs, &[usize]) -> f64,
}

/// Sizes of most kernels: odd lengths, two heads for each head of keys.
const USUAL: &[(&str, f64)] = &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3)];

/// The mean of values under the softmax of scores, of which those that are `None` do not count; `sink` is a score without a value.
fn softmax_mean(scores: &[Option<f64>], sink: Option<f64>, value: impl Fn(usize) -> f64) -> f64 {
    let total: f64 = scores.iter().chain([&sink]).flatten().map(|s| s.exp()).sum();
    let sum: f64 = scores.iter().enumerate().filter_map(|(j, s)| s.map(|s| s.exp() * value(j))).sum();
    if total == 0.0 { 0.0 } else { sum / total }
}

/// Attention with `q (B, H, M, D)`, `k` and `v (B, G, N, D)` or `(B, H, N, D)`: what a score becomes, and whether it counts.
fn attend(x: &Inputs, place: &[usize], score: impl Fn(f64, usize) -> Option<f64>, sink: Option<f64>) -> f64 {
    let [b, h, i, d] = place[..] else { panic!("an output of four dimensions") };
    let keys = &x.tensors["k"].0;
    let g = h * keys[1] / x.n("H");
    let product = |j: usize| x.product(("q", &[b, h, i]), ("k", &[b, g, j]), x.n("D")) * x.numbers["scale"];
    let scores: Vec<_> = (0..keys[2]).map(|j| score(product(j), j)).collect();
    softmax_mean(&scores, sink, |j| x.at("v", &[b, g, j, d]))
}

const CASES: &[Case] = &[
    Case {
        kernel: "row_sums",
        numbers: &[("M", 5.0), ("N", 37.0)],
        output: "y",
        formula: |x, at| 2.0 * (0..x.n("N")).map(|j| x.at("x", &[at[0], j])).sum::<f64>(),
    },
    Case {
        kernel: "standardized",
        numbers: &[("M", 5.0), ("D", 24.0), ("eps", 0.01)],
        output: "y",
        formula: |x, at| {
            let mean = |f: &dyn Fn(f64) -> f64| (0..x.n("D")).map(|d| f(x.at("x", &[at[0], d]))).sum::<f64>() / x.numbers["D"];
            let (first, second) = (mean(&|x| x), mean(&|x| x * x));
            (x.at("x", at) - first) / (second - first * first + x.numbers["eps"]).sqrt()
        },
    },
    Case {
        kernel: "causal_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 53.0), ("D", 16.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| attend(x, at, |s, j| (at[2] + x.n("N") >= j + x.n("M")).then_some(s), None),
    },
    Case {
        kernel: "sliding_window",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3), ("window", 5.0)],
        output: "o",
        formula: |x, at| attend(x, at, |s, j| (at[2] >= j && at[2] - j < x.n("window")).then_some(s), None),
    },
    Case {
        kernel: "prefix_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3), ("prefix", 11.0)],
        output: "o",
        formula: |x, at| attend(x, at, |s, j| (j < x.n("prefix") || at[2] >= j).then_some(s), None),
    },
    Case {
        kernel: "alibi_attention",
        numbers: USUAL,
        output: "o",
        formula: |x, at| {
            let slope = x.at("slopes", &[at[1]]);
            attend(x, at, |s, j| (at[2] >= j).then(|| s - slope * (at[2] - j) as f64), None)
        },
    },
    Case {
        kernel: "softcap_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.9), ("cap", 1.5)],
        output: "o",
        formula: |x, at| {
            let cap = x.numbers["cap"];
            attend(x, at, |s, j| (at[2] >= j).then(|| cap * (s / cap).tanh()), None)
        },
    },
    Case {
        kernel: "sink_attention",
        numbers: USUAL,
        output: "o",
        formula: |x, at| attend(x, at, |s, j| (at[2] >= j).then_some(s), Some(x.at("sinks", &[at[1]]))),
    },
    Case {
        kernel: "document_attention",
        numbers: USUAL,
        output: "o",
        formula: |x, at| {
            let own = |j: usize| x.at("document", &[at[0], j]);
            attend(x, at, |s, j| (at[2] >= j && own(j) == own(at[2])).then_some(s), None)
        },
    },
    Case {
        kernel: "boolean_mask",
        numbers: USUAL,
        output: "o",
        formula: |x, at| attend(x, at, |s, j| (x.at("keep", &[at[0], at[2], j]) > 0.0).then_some(s), None),
    },
    Case {
        kernel: "quantised",
        numbers: USUAL,
        output: "o",
        formula: |x, at| {
            let (b, g, d) = (at[0], at[1] * x.n("G") / x.n("H"), at[3]);
            let scores = |s: f64, j: usize| Some(s * x.at("k_scale", &[b, g, j]));
            attend(x, &[b, at[1], at[2], d], scores, None) * x.at("v_scale", &[g])
        },
    },
    Case {
        kernel: "bias_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 21.0), ("D", 16.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| attend(x, at, |s, j| Some(s + x.at("bias", &[at[1], at[2], j])), None),
    },
    Case {
        kernel: "relative_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 41.0), ("D", 16.0), ("R", 9.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| {
            let apart = |j: usize| (j as i64 - (at[2] + 4) as i64).clamp(-9, 9) + 9;
            attend(x, at, |s, j| Some(s + x.at("table", &[at[1], apart(j) as usize])), None)
        },
    },
    Case {
        kernel: "by_kind",
        numbers: &[("B", 2.0), ("M", 75.0), ("K", 3.0)],
        output: "total",
        formula: |x, at| {
            let is_of = |i: usize| x.at("kind", &[at[0], i]).clamp(0.0, 2.0) == at[1] as f64;
            (0..75).filter(|&i| is_of(i)).map(|i| x.at("x", &[at[0], i])).sum()
        },
    },
    Case {
        kernel: "block_attention",
        numbers: &[
            ("B", 2.0),
            ("H", 4.0),
            ("G", 2.0),
            ("M", 37.0),
            ("N", 37.0),
            ("D", 16.0),
            ("S", 8.0),
            ("R", 5.0),
            ("C", 4.0),
            ("scale", 0.3),
        ],
        output: "o",
        // The fifth block of keys takes the truth value of the last that is listed.
        formula: |x, at| {
            let sees = |j: usize| x.at("blocks", &[at[1], at[2] / 8, (j / 8).min(3)]) > 0.0;
            attend(x, at, |s, j| sees(j).then_some(s), None)
        },
    },
    Case {
        kernel: "tree_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 11.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| {
            let first = x.at("before", &at[..1]) as usize;
            let above = |j: usize| j < first + 11 && x.at("tree", &[at[0], at[2], j - first]) > 0.0;
            attend(x, at, |s, j| (j < first || above(j)).then_some(s), None)
        },
    },
    Case {
        kernel: "dropout_attention",
        numbers: &[
            ("B", 2.0),
            ("H", 4.0),
            ("G", 2.0),
            ("M", 37.0),
            ("N", 37.0),
            ("D", 16.0),
            ("scale", 0.3),
            ("dropped", 0.3),
            ("seed", 1234.0),
            ("offset", -77.0),
        ],
        output: "o",
        formula: |x, at| {
            let [b, h, i, d] = at[..] else { panic!("an output of four dimensions") };
            let kept = |j: usize| {
                let of_eight = [j / 16 * 4 + j % 8 / 2, i / 16 * 8 + i % 8, b * x.n("H") + h].map(|n| n as u32);
                let counter = [of_eight[0], of_eight[1], of_eight[2], 77u32.wrapping_neg()];
                let word = philox(counter, [1234, 0], 7)[i / 8 % 2 * 2 + j / 8 % 2];
                let half = if j.is_multiple_of(2) { word & 0xFFFF } else { word >> 16 };
                if half < 19661 { 0.0 } else { 65536.0 / f64::from(65536 - 19661) }
            };
            let g = h * x.n("G") / x.n("H");
            let score = |j: usize| x.product(("q", &at[..3]), ("k", &[b, g, j]), x.n("D")) * x.numbers["scale"];
            let scores: Vec<_> = (0..=i).map(|j| Some(score(j))).collect();
            softmax_mean(&scores, None, |j| kept(j) * x.at("v", &[b, g, j, d]))
        },
    },
    Case {
        kernel: "row_argmax",
        numbers: &[("M", 19.0), ("N", 143.0)],
        output: "best",
        formula: |x, at| {
            let n = x.n("N");
            let largest = (0..n).map(|j| x.at("x", &[at[0], j])).fold(f64::NEG_INFINITY, f64::max);
            (0..n).position(|j| x.at("x", &[at[0], j]) == largest).expect("a largest one") as f64
        },
    },
    Case {
        kernel: "cross_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 5.0), ("N", 21.0), ("D", 16.0), ("E", 24.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| attend(x, at, |s, _| Some(s), None),
    },
    Case {
        kernel: "mla_prefill",
        numbers: &[("B", 2.0), ("H", 4.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("R", 8.0), ("E", 12.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| {
            let rotated = |j: usize| x.product(("q_rot", &at[..3]), ("k_rot", &[at[0], j]), x.n("R")) * x.numbers["scale"];
            attend(x, at, |s, j| (at[2] >= j).then(|| s + rotated(j)), None)
        },
    },
    Case {
        kernel: "mla_decode",
        numbers: &[("B", 2.0), ("H", 5.0), ("N", 37.0), ("C", 16.0), ("R", 8.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| {
            let [b, h, d] = at[..] else { panic!("an output of three dimensions") };
            let len = x.at("lens", &[b]).clamp(0.0, 37.0) as usize;
            let score = |j: usize| x.product(("q", &[b, h]), ("kv", &[b, j]), 24) * x.numbers["scale"];
            let weights: Vec<f64> = (0..len).map(|j| score(j).exp()).collect();
            let sum: f64 = weights.iter().sum();
            if len == 0 { 0.0 } else { (0..len).map(|j| weights[j] * x.at("kv", &[b, j, d])).sum::<f64>() / sum }
        },
    },
    Case {
        kernel: "sigmoid_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3), ("offset", -1.0)],
        output: "o",
        formula: |x, at| {
            let [b, h, i, d] = at[..] else { panic!("an output of four dimensions") };
            let g = h * x.n("G") / x.n("H");
            let score = |j: usize| x.product(("q", &at[..3]), ("k", &[b, g, j]), x.n("D")) * x.numbers["scale"] - 1.0;
            (0..=i).map(|j| x.at("v", &[b, g, j, d]) / (1.0 + (-score(j)).exp())).sum()
        },
    },
    Case {
        kernel: "differential_attention",
        numbers: &[("B", 2.0), ("H", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("E", 12.0), ("scale", 0.3), ("lambda", 0.7)],
        output: "o",
        formula: |x, at| {
            let [b, h, i, d] = at[..] else { panic!("an output of four dimensions") };
            let one = |which: usize| {
                let score =
                    |j: usize| x.product(("q", &[b, h, i, which]), ("k", &[b, h, j, which]), x.n("D")) * x.numbers["scale"];
                let scores: Vec<_> = (0..=i).map(|j| Some(score(j))).collect();
                softmax_mean(&scores, None, |j| x.at("v", &[b, h, j, d]))
            };
            one(0) - x.numbers["lambda"] * one(1)
        },
    },
    Case {
        kernel: "linear_cross_entropy",
        numbers: &[("M", 19.0), ("V", 43.0), ("D", 16.0)],
        output: "loss",
        formula: |x, at| {
            let logit = |j: usize| x.product(("x", at), ("w", &[j]), x.n("D"));
            (0..x.n("V")).map(|j| logit(j).exp()).sum::<f64>().ln() - logit(x.at("target", at) as usize)
        },
    },
    Case {
        kernel: "rms_norm",
        numbers: &[("M", 19.0), ("N", 43.0), ("eps", 0.01)],
        output: "y",
        formula: |x, at| {
            let n = x.n("N");
            let mean = (0..n).map(|j| x.at("x", &[at[0], j]).powi(2)).sum::<f64>() / n as f64;
            x.at("x", at) / (mean + x.numbers["eps"]).sqrt() * x.at("w", &at[1..])
        },
    },
    Case {
        kernel: "layer_norm",
        numbers: &[("M", 19.0), ("N", 43.0), ("eps", 0.01)],
        output: "y",
        formula: |x, at| {
            let n = x.n("N");
            let mean = (0..n).map(|j| x.at("x", &[at[0], j])).sum::<f64>() / n as f64;
            let variance = (0..n).map(|j| (x.at("x", &[at[0], j]) - mean).powi(2)).sum::<f64>() / n as f64;
            (x.at("x", at) - mean) / (variance + x.numbers["eps"]).sqrt() * x.at("w", &at[1..]) + x.at("bias", &at[1..])
        },
    },
    Case {
        kernel: "swiglu",
        numbers: &[("M", 19.0), ("N", 21.0), ("K", 43.0)],
        output: "y",
        formula: |x, at| {
            let product = |w: &str| (0..x.n("K")).map(|k| x.at("x", &[at[0], k]) * x.at(w, &[k, at[1]])).sum::<f64>();
            let gate = product("gate");
            gate / (1.0 + (-gate).exp()) * product("up")
        },
    },
    Case {
        kernel: "query_norm_attention",
        numbers: &[("B", 2.0), ("H", 4.0), ("G", 2.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3), ("eps", 0.01)],
        output: "o",
        formula: |x, at| {
            let [b, h, i, d] = at[..] else { panic!("an output of four dimensions") };
            let (g, row, width) = (h * x.n("G") / x.n("H"), &at[..3], x.n("D"));
            let norm = (x.product(("q", row), ("q", row), width) / width as f64 + x.numbers["eps"]).sqrt();
            let q = |d: usize| x.at("q", &[b, h, i, d]) / norm * x.at("weight", &[d]);
            let score = |j: usize| (0..width).map(|d| q(d) * x.at("k", &[b, g, j, d])).sum::<f64>() * x.numbers["scale"];
            let scores: Vec<_> = (0..=i).map(|j| Some(score(j))).collect();
            softmax_mean(&scores, None, |j| x.at("v", &[b, g, j, d]))
        },
    },
    Case {
        kernel: "decode_attention",
        numbers: &[("B", 2.0), ("G", 2.0), ("R", 5.0), ("N", 70.0), ("D", 16.0), ("scale", 0.3)],
        output: "o",
        formula: |x, at| {
            let [b, g, _, d] = at[..] else { panic!("an output of four dimensions") };
            let score = |j: usize| x.product(("q", &at[..3]), ("k", &[b, g, j]), x.n("D")) * x.numbers["scale"];
            let scores: Vec<_> = (0..x.at("lens", &[b]) as usize).map(|j| Some(score(j))).collect();
            softmax_mean(&scores, None, |j| x.at("v", &[b, g, j, d]))
        },
    },
    Case {
        // The derivative of a sum over the output, weighted by `go`: `dP = go v`, `dS = P (dP - delta)`, `dq = dS k scale`.
        kernel: "attention_dq",
        numbers: USUAL,
        output: "gq",
        formula: |x, at| {
            let [b, h, i, d] = at[..] else { panic!("an output of four dimensions") };
            let (g, scale) = (h * x.n("G") / x.n("H"), x.numbers["scale"]);
            let term = |j: usize| {
                let p = (x.product(("q", &at[..3]), ("k", &[b, g, j]), x.n("D")) * scale - x.at("lse", &[b, h, i])).exp();
                let dp = x.product(("go", &at[..3]), ("v", &[b, g, j]), x.n("D"));
                p * (dp - x.at("delta", &[b, h, i])) * x.at("k", &[b, g, j, d]) * scale
            };
            (0..=i).map(term).sum()
        },
    },
    Case {
        // The same derivative with respect to a key, of the `R` heads that share it.
        kernel: "grouped_dk",
        numbers: &[("B", 2.0), ("G", 2.0), ("R", 3.0), ("M", 37.0), ("N", 37.0), ("D", 16.0), ("scale", 0.3)],
        output: "gk",
        formula: |x, at| {
            let [b, g, j, d] = at[..] else { panic!("an output of four dimensions") };
            let scale = x.numbers["scale"];
            let term = |(r, i): (usize, usize)| {
                let row = [b, g, r, i];
                let p = (x.product(("q", &row), ("k", &at[..3]), x.n("D")) * scale - x.at("lse", &row)).exp();
                let dp = x.product(("go", &row), ("v", &at[..3]), x.n("D"));
                p * (dp - x.at("delta", &row)) * x.at("q", &[b, g, r, i, d]) * scale
            };
            (0..x.n("R")).flat_map(|r| (j..x.n("M")).map(move |i| (r, i))).map(term).sum()
        },
    },
];

/// Philox-4x32, from its definition (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", section 3.3).
fn philox(counter: [u32; 4], mut key: [u32; 2], rounds: u32) -> [u32; 4] {
    let mut at = counter;
    for _ in 0..rounds {
        let wide = |x: u32, by: u32| (u64::from(x) * u64::from(by)).to_le_bytes();
        let halves = |bytes: [u8; 8]| {
            let word = |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().expect("four bytes"));
            (word(4), word(0))
        };
        let ((high_0, low_0), (high_1, low_1)) = (halves(wide(at[0], 0xD251_1F53)), halves(wide(at[2], 0xCD9E_8D57)));
        at = [high_1 ^ at[1] ^ key[0], low_1, high_0 ^ at[3] ^ key[1], low_0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    at
}

/// Known answers of the authors' own implementation, which are of ten rounds (Random123, `kat_vectors`).
#[test]
fn philox_gives_its_known_answers() {
    assert_eq!(philox([0; 4], [0; 2], 10), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2], 10), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
}

/// Numbers between -1 and 1, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 23) - 1.0
    }
}

/// A tensor of a launch.
enum Made {
    Floats(Tensor<f32>),
    Integers(Tensor<i32>),
    Truths(Tensor<bool>),
    Bytes(Tensor<i8>),
    SmallFloats(Tensor<f8e4m3>),
}

/// Launches a kernel of the page on the CPU with f32 elements: the largest error of its output.
fn error_of(kernel: &Kernel, case: &Case) -> f64 {
    let ir = kernel.ir();
    let numbers: Numbers = case.numbers.iter().copied().collect();
    let consts = ir.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), numbers[&*s.name] as i64));
    let bound = kernel.bind(Elem::F32, consts.collect::<Vec<_>>()).expect("the constants are given");
    let device = Device::cpu();
    let mut random = Random(7);
    let mut inputs = Inputs { numbers, tensors: BTreeMap::new() };
    let mut tensors: BTreeMap<String, Made> = BTreeMap::new();
    for param in ir.params.values() {
        let ParamKind::Tensor(tensor) = &param.kind else { continue };
        let size = |id| Some(inputs.n(ir.size_name(id)) as i64);
        let shape: Vec<usize> = tensor.shape.iter().map(|extent| extent.eval(size).expect("sizes are given") as usize).collect();
        let elements: usize = shape.iter().product();
        // Documents come one after the other, targets are spread over the vocabulary.
        let integer = |n: usize| match &*param.name {
            "document" => n % 37 / 9,
            "before" => 7 + n * 17 % 23,
            _ => n * 17 % 43,
        };
        let datum = |n: usize| match tensor.elem {
            Elem::I32 => integer(n) as f64,
            Elem::I8 => (n * 17 % 9) as f64 - 4.0,
            Elem::Bool => f64::from(u8::from(n * 17 % 43 > 20)),
            Elem::F8E4M3 => f8e4m3::from_f32(random.next() as f32).to_f32().into(),
            _ => f64::from(random.next() as f32),
        };
        let data: Vec<f64> = (0..elements).map(datum).collect();
        let floats: Vec<f32> = data.iter().map(|&x| x as f32).collect();
        fn made<T: flashtile::Element>(device: &Device, shape: &[usize], floats: &[f32]) -> Tensor<T> {
            Tensor::from_f32(device, shape, floats).expect("fits")
        }
        let made = match tensor.elem {
            Elem::I32 => Made::Integers(made(&device, &shape, &floats)),
            Elem::I8 => Made::Bytes(made(&device, &shape, &floats)),
            Elem::Bool => Made::Truths(made(&device, &shape, &floats)),
            Elem::F8E4M3 => Made::SmallFloats(made(&device, &shape, &floats)),
            _ => Made::Floats(made(&device, &shape, &floats)),
        };
        tensors.insert(param.name.clone(), made);
        inputs.tensors.insert(param.name.clone(), (shape, data));
    }
    let mut output = tensors.remove(case.output).expect("the output is made");
    // Outputs that have no formula.
    let is_output = |name: &str| {
        ir.params.values().any(|p| matches!(&p.kind, ParamKind::Tensor(t) if t.direction.is_written() && p.name == name))
    };
    let mut others: BTreeMap<String, Made> = BTreeMap::new();
    for name in tensors.keys().filter(|name| is_output(name)).cloned().collect::<Vec<_>>() {
        others.extend(tensors.remove(&name).map(|made| (name, made)));
    }
    let mut others = others.iter_mut().collect::<BTreeMap<_, _>>();
    let mut arguments: Vec<Argument<'_>> = Vec::new();
    let mut last = Some(&mut output);
    for param in ir.params.values() {
        arguments.push(match &param.kind {
            ParamKind::Scalar(Elem::I32) => (inputs.numbers[&*param.name] as i32).into(),
            ParamKind::Scalar(_) => (inputs.numbers[&*param.name] as f32).into(),
            ParamKind::Tensor(_) if param.name == case.output => match last.take().expect("one output") {
                Made::Floats(floats) => floats.into(),
                Made::Integers(integers) => integers.into(),
                _ => panic!("`{}` is an output of floats or integers", param.name),
            },
            ParamKind::Tensor(_) if is_output(&param.name) => match others.remove(&param.name) {
                Some(Made::Floats(floats)) => floats.into(),
                _ => panic!("`{}` is an output of floats", param.name),
            },
            ParamKind::Tensor(_) => match &tensors[&param.name] {
                Made::Floats(floats) => floats.into(),
                Made::Integers(integers) => integers.into(),
                Made::Truths(truths) => truths.into(),
                Made::Bytes(bytes) => bytes.into(),
                Made::SmallFloats(floats) => floats.into(),
            },
        });
    }
    bound.on(&device).expect("the CPU runs all kernels").launch(&arguments).expect("the arguments fit");
    drop(arguments);
    let found: Vec<f64> = match &output {
        Made::Floats(floats) => floats.to_vec().expect("readable").into_iter().map(f64::from).collect(),
        Made::Integers(integers) => integers.to_vec().expect("readable").into_iter().map(f64::from).collect(),
        _ => unreachable!("an output of floats or integers"),
    };
    let shape = inputs.tensors[case.output].0.clone();
    let mut worst = 0.0f64;
    for (n, &found) in found.iter().enumerate() {
        let mut rest = n;
        let mut place: Vec<usize> = shape.iter().rev().map(|extent| (rest % extent, rest /= extent).0).collect();
        place.reverse();
        let expected = (case.formula)(&inputs, &place);
        let error = (found - expected).abs() / (1.0 + expected.abs());
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    worst
}

#[test]
fn every_kernel_of_the_page_means_its_formula() {
    let mut seen = BTreeSet::new();
    for block in blocks() {
        let source = SourceText { name: "docs/language.md".into(), text: block.into(), first_line: 1 };
        let kernels = Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}"));
        for kernel in kernels {
            let name = kernel.name().to_owned();
            let case = CASES.iter().find(|case| case.kernel == name);
            let error = error_of(&kernel, case.unwrap_or_else(|| panic!("`{name}` of the page has no formula here")));
            assert!(error < 2e-5, "`{name}` is wrong by {error:e}");
            assert!(seen.insert(name.clone()), "`{name}` is on the page twice");
        }
    }
    let cases: BTreeSet<String> = CASES.iter().map(|case| case.kernel.to_owned()).collect();
    assert_eq!(seen, cases, "formulas and kernels of the page");
}

#[test]
fn kernels_of_the_page_have_no_warnings_and_say_their_hints() {
    for block in blocks() {
        let source = SourceText { name: "docs/language.md".into(), text: block.into(), first_line: 1 };
        let parsed = parse_with_warnings(&source).unwrap_or_else(|e| panic!("{e}"));
        assert!(parsed.warnings.iter().all(Vec::is_empty), "{:?}", parsed.warnings);
        for kernel in parsed.kernels {
            let lost: Vec<_> = hints_unbound(&kernel).iter().flat_map(|hint| hint.lost.clone()).map(|l| l.name()).collect();
            let expected: &[&str] = match &*kernel.name {
                "row_argmax" => &["split"],
                _ => &[],
            };
            assert_eq!(lost, expected, "{}", kernel.name);
        }
    }
}

#[test]
fn every_word_of_the_language_is_on_the_page() {
    // A bar is escaped in a table.
    let page = page().replace("\\|", "|");
    for word in syntax::words() {
        assert!(page.contains(&format!("`{word}`")) || page.contains(&format!("`{word}(")), "`{word}` is not on the page");
    }
}

/// A variant on the page is the text of a built-in kernel: there is no copy that can differ.
#[test]
fn variants_of_the_page_are_the_built_in_kernels() {
    let page = page();
    let (_, variants) = page.split_once("\n## Variants\n").expect("the page has its variants");
    let blocks = blocks_of(variants);
    for block in &blocks {
        let text = block.strip_prefix("use flashtile::flash_kernel;\n\n").expect("a block begins with the macro");
        let file = BUILTINS.iter().find(|builtin| builtin.text == text);
        assert!(file.is_some(), "no file of runtime/kernels has this text:\n{text}");
    }
    let shown: BTreeSet<&str> =
        blocks.iter().flat_map(|b| BUILTINS.iter().filter(|k| b.ends_with(k.text))).map(|k| k.name).collect();
    // Kernels that the readme, the pages of experiments or others show.
    let elsewhere = ["attention", "rope_attention", "causal_rope_attention", "rotate", "row_softmax", "matmul_gelu"];
    for builtin in BUILTINS.iter().filter(|builtin| !elsewhere.contains(&builtin.name)) {
        assert!(shown.contains(builtin.name), "`{}` is not among the variants of docs/language.md", builtin.name);
    }
}

/// The library's documentation holds the page, and a package has no file outside of its folder.
#[test]
fn the_library_has_the_page() {
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/language.md");
    if std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&copy, page()).expect("writable");
    }
    let text = std::fs::read_to_string(&copy).unwrap_or_default();
    assert!(text == page(), "runtime/language.md is not docs/language.md: FLASHTILE_BLESS=1 copies it");
}
