//! The table of cases.

use flashtile_dsl::ir::Elem;

use super::case::{Case, Layout, Values};

/// Sizes of an attention case.
#[derive(Clone, Copy)]
struct Attention {
    b: i64,
    h: i64,
    g: i64,
    m: i64,
    n: i64,
    d: i64,
}

/// Two heads over one group, and the given rows, keys and head dim.
const fn rows(m: i64, n: i64, d: i64) -> Attention {
    Attention { b: 1, h: 2, g: 1, m, n, d }
}

const KERNELS: [&str; 2] = ["attention", "causal_attention"];
const HALVES: [Elem; 2] = [Elem::F16, Elem::Bf16];
const FLOATS: [Elem; 3] = [Elem::F16, Elem::Bf16, Elem::F32];

/// Products of sizes up to this are quick on a slow device.
const SMALL: i64 = 300_000;

fn attention(kernel: &'static str, elem: Elem, a: Attention) -> Case {
    let mut case = Case {
        kernel,
        elem,
        consts: vec![("D", a.d)],
        sizes: vec![("B", a.b), ("H", a.h), ("G", a.g), ("M", a.m), ("N", a.n)],
        scalars: Vec::new(),
        values: Values::Normal,
        layout: Layout::Packed,
        small: a.b * a.h * a.m * a.n * a.d <= SMALL,
    };
    case.scalars.push(("scale", case.usual_scale()));
    case
}

/// Every case, in a fixed order. Names are unique.
pub fn cases() -> Vec<Case> {
    let mut all = grid();
    all.extend(ragged());
    all.extend(head_dims());
    all.extend(grouped());
    all.extend(layouts());
    all.extend(scales());
    all.extend(growing());
    all.extend(special());
    all.extend(masks());
    all.extend(other_kernels());
    all.extend(rotary());
    all.extend(exact());
    all.extend(score_functions());
    all.extend(sinks());
    all.extend(hidden());
    all.extend(loaded_bounds());
    all.extend(two_runs());
    all.extend(blocks());
    all.extend(variants());
    all.extend(stored_masks());
    all.extend(quantised());
    all.extend(widened());
    all.extend(gathers());
    all.extend(used_twice());
    all.extend(states());
    all
}

/// 192 regular shapes: 96 without and 96 with a causal mask, as many as "FlashAttention from Scratch" reports.
fn grid() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for n in [64, 128, 256, 512] {
            for d in [32, 64, 128] {
                for b in [1, 2] {
                    for h in [1, 4] {
                        for elem in HALVES {
                            cases.push(attention(kernel, elem, Attention { b, h, g: h, m: n, n, d }));
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Sizes that no tile divides: fewer rows than keys, more rows than keys, one of either, none.
fn ragged() -> Vec<Case> {
    let shapes = [
        (1, 1),
        (1, 7),
        (1, 1023),
        (7, 1),
        (7, 7),
        (7, 113),
        (113, 7),
        (113, 113),
        (113, 203),
        (203, 113),
        (239, 239),
        (203, 799),
        (799, 203),
        (1, 0),
        (113, 0),
    ];
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for (m, n) in shapes {
            for elem in FLOATS {
                cases.push(attention(kernel, elem, rows(m, n, 64)));
            }
        }
        cases.push(attention(kernel, Elem::Bf16, Attention { b: 1, h: 1, g: 1, m: 1023, n: 1023, d: 64 }));
        cases.push(attention(kernel, Elem::F16, Attention { b: 1, h: 1, g: 1, m: 799, n: 1023, d: 128 }));
    }
    cases
}

/// Every head dim that is supported.
fn head_dims() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for d in [8, 16, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256] {
            for elem in HALVES {
                cases.push(attention(kernel, elem, rows(77, 141, d)));
            }
        }
        for d in [8, 40, 80, 256] {
            cases.push(attention(kernel, Elem::F32, rows(77, 141, d)));
        }
    }
    cases
}

/// Query heads that share keys.
fn grouped() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for (b, h, g) in [(2, 4, 2), (1, 6, 3), (2, 8, 1), (3, 5, 5)] {
            for elem in HALVES {
                cases.push(attention(kernel, elem, Attention { b, h, g, m: 67, n: 131, d: 64 }));
            }
        }
        // Few rows, as where text is generated; also where heads are not as many in each group.
        for (b, h, g, m, d) in [(1, 8, 2, 1, 64), (1, 8, 2, 5, 64), (2, 4, 1, 3, 64), (1, 4, 2, 17, 40), (1, 6, 4, 3, 64)] {
            for elem in FLOATS {
                for layout in [Layout::Packed, Layout::HeadsInner] {
                    cases.push(Case { layout, ..attention(kernel, elem, Attention { b, h, g, m, n: 77, d }) });
                }
            }
        }
    }
    cases
}

/// Memory that is not packed. Three elements of gap leave no alignment but the element's.
fn layouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for layout in [Layout::HeadsInner, Layout::Padded(8), Layout::Padded(2), Layout::Padded(3)] {
            for elem in FLOATS {
                let shape = Attention { b: 2, h: 4, g: 2, m: 37, n: 101, d: 64 };
                cases.push(Case { layout, ..attention(kernel, elem, shape) });
            }
        }
        for d in [40, 72] {
            cases.push(Case { layout: Layout::Padded(3), ..attention(kernel, Elem::F16, rows(37, 101, d)) });
        }
    }
    cases
}

/// Any finite scale is right.
fn scales() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for scale in [-0.125, 0.0, 1.0, 8.0, -3.0, 1e-6] {
            for elem in HALVES {
                cases.push(Case { scalars: vec![("scale", scale)], ..attention(kernel, elem, rows(65, 130, 64)) });
            }
        }
    }
    cases
}

/// Scores that grow along the walk, so that every tile moves the running maximum; and scores that never do.
fn growing() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for values in [Values::Growing(30.0), Values::Growing(300.0), Values::EqualScores] {
            for elem in FLOATS {
                cases.push(Case { values, ..attention(kernel, elem, rows(129, 515, 64)) });
            }
        }
    }
    cases
}

/// Infinities and NaN.
fn special() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in KERNELS {
        for values in [Values::SpecialQueries, Values::SpecialKeys, Values::HiddenKeys] {
            for elem in FLOATS {
                cases.push(Case { values, ..attention(kernel, elem, rows(70, 203, 64)) });
            }
        }
    }
    for elem in FLOATS {
        cases.push(Case { values: Values::SpecialValues, ..attention("attention", elem, rows(70, 203, 64)) });
    }
    cases
}

/// Masks that a user writes.
fn masks() -> Vec<Case> {
    let mut cases = Vec::new();
    let masked = |kernel, scalar, value: i64, (m, n), elem| {
        let mut case = attention(kernel, elem, rows(m, n, 64));
        case.scalars.push((scalar, value as f32));
        case
    };
    for elem in HALVES {
        for shape in [(113, 113), (70, 203), (203, 70)] {
            for window in [1, 17, 64, 1000] {
                cases.push(masked("sliding_window", "window", window, shape, elem));
            }
            for prefix in [0, 1, 40, 128, 1000] {
                cases.push(masked("prefix_attention", "prefix", prefix, shape, elem));
            }
        }
        cases.push(masked("sliding_window", "window", 0, (33, 65), elem)); // no row sees a key
        cases.push(masked("prefix_attention", "prefix", 20, (33, 65), elem));
    }
    cases
}

/// Kernels that are not attention with one head dim.
fn other_kernels() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n, k) in [(1, 1, 1), (64, 64, 64), (113, 203, 77), (128, 256, 96), (7, 239, 515), (33, 40, 0)] {
            cases.push(sized("matmul_gelu", elem, &[("M", m), ("N", n), ("K", k)]));
        }
        for layout in [Layout::Padded(8), Layout::Padded(3)] {
            cases.push(Case { layout, ..sized("matmul_gelu", elem, &[("M", 70), ("N", 72), ("K", 65)]) });
            cases.push(Case { layout, ..sized("row_softmax", elem, &[("M", 70), ("N", 203)]) });
        }
        for (m, n) in [(1, 1), (7, 1023), (113, 203), (64, 256), (3, 5000)] {
            cases.push(sized("row_softmax", elem, &[("M", m), ("N", n)]));
        }
        cases.push(Case { values: Values::SpecialRows, ..sized("row_softmax", elem, &[("M", 9), ("N", 301)]) });
    }
    for elem in FLOATS {
        for (m, n, k) in [(1, 1, 1), (64, 64, 64), (113, 203, 77), (7, 139, 215), (33, 40, 0)] {
            cases.push(sized("computed_operands", elem, &[("M", m), ("N", n), ("K", k)]));
        }
        let layout = Layout::Padded(3);
        cases.push(Case { layout, ..sized("computed_operands", elem, &[("M", 70), ("N", 72), ("K", 65)]) });
        for (m, n, d) in [(64, 64, 64), (77, 141, 40), (113, 203, 96)] {
            cases.push(Case { consts: vec![("D", d)], ..sized("computed_transposed", elem, &[("M", m), ("N", n)]) });
            cases.push(Case { consts: vec![("D", d)], ..sized("rotated_pairs", elem, &[("H", 2), ("M", m), ("N", n)]) });
        }
    }
    for (d, e) in [(64, 128), (128, 64), (192, 128), (40, 72)] {
        for elem in HALVES {
            let mut case = attention("split_dims", elem, rows(70, 141, d));
            case.consts.push(("E", e));
            cases.push(case);
        }
    }
    let mut case = attention("split_dims", Elem::F16, rows(33, 65, 32));
    case.consts.push(("E", 64));
    cases.push(case);
    cases
}

const ROTARY: [&str; 2] = ["rope_attention", "causal_rope_attention"];

/// Rotary position embedding, fused and by itself. Tables have the columns of one half of a head, or of both.
fn rotary() -> Vec<Case> {
    let mut cases = Vec::new();
    let rotary = |kernel, elem, a: Attention, columns| {
        let mut case = attention(kernel, elem, a);
        case.sizes.push(("C", columns));
        case
    };
    for kernel in ROTARY {
        for (m, n) in [(33, 40), (17, 203), (33, 17), (64, 64), (113, 113), (113, 203), (203, 113), (1, 0)] {
            for elem in FLOATS {
                cases.push(rotary(kernel, elem, rows(m, n, 64), 32));
            }
        }
        for d in [8, 16, 32, 40, 72, 80, 96, 128, 256] {
            for elem in HALVES {
                cases.push(rotary(kernel, elem, rows(77, 141, d), d / 2));
            }
        }
        cases.push(rotary(kernel, Elem::F32, rows(77, 141, 40), 20));
        for (b, h, g) in [(2, 4, 2), (1, 6, 3), (2, 8, 1)] {
            for elem in HALVES {
                cases.push(rotary(kernel, elem, Attention { b, h, g, m: 67, n: 131, d: 64 }, 64));
            }
        }
        for layout in [Layout::HeadsInner, Layout::Padded(8), Layout::Padded(2), Layout::Padded(3)] {
            for elem in FLOATS {
                let shape = Attention { b: 2, h: 4, g: 2, m: 37, n: 101, d: 64 };
                cases.push(Case { layout, ..rotary(kernel, elem, shape, 32) });
            }
        }
        for values in [Values::Growing(30.0), Values::SpecialQueries, Values::SpecialKeys] {
            for elem in FLOATS {
                cases.push(Case { values, ..rotary(kernel, elem, rows(70, 203, 64), 32) });
            }
        }
    }
    for elem in FLOATS {
        for (n, d, columns) in [(1, 64, 32), (113, 64, 64), (203, 128, 64), (77, 40, 20), (64, 8, 4)] {
            let small = n * d <= SMALL;
            let (consts, sizes) = (vec![("D", d)], vec![("B", 2), ("H", 3), ("N", n), ("C", columns)]);
            let (scalars, values, layout) = (Vec::new(), Values::Normal, Layout::Packed);
            cases.push(Case { kernel: "rotate", elem, consts, sizes, scalars, values, layout, small });
        }
    }
    cases
}

/// What every device must compute to the last bit.
fn exact() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |elem, layout, shape| {
        let case = Case { values: Values::Integers, scalars: Vec::new(), layout, ..attention("linear_attention", elem, shape) };
        cases.push(case);
    };
    for elem in FLOATS {
        for shape in [(1, 1), (33, 65), (65, 33), (70, 50), (113, 203)] {
            for d in [16, 40, 64] {
                add(elem, Layout::Packed, rows(shape.0, shape.1, d));
            }
        }
        for layout in [Layout::HeadsInner, Layout::Padded(8), Layout::Padded(3)] {
            add(elem, layout, Attention { b: 2, h: 4, g: 2, m: 19, n: 21, d: 64 });
        }
        add(elem, Layout::Packed, rows(40, 30, 128));
    }
    cases
}

/// Scores and products through functions that have cheaper forms in 16 bits: caps from far below the scores to far above.
fn score_functions() -> Vec<Case> {
    let mut cases = Vec::new();
    let with = |kernel, elem, shape, scale: f32, scalar, value: f32| {
        let mut case = attention(kernel, elem, shape);
        case.scalars = vec![("scale", scale * case.usual_scale()), (scalar, value)];
        case
    };
    for elem in FLOATS {
        for cap in [5.0, 30.0, 50.0] {
            for spread in [1.0, 5.0, 20.0] {
                cases.push(with("softcap_attention", elem, rows(33, 65, 64), spread, "cap", cap));
            }
            cases.push(with("softcap_attention", elem, rows(70, 203, 128), 4.0, "cap", cap));
        }
        // Not positive: what is folded through a maximum elsewhere is not.
        cases.push(with("softcap_attention", elem, rows(33, 65, 64), -2.0, "cap", 20.0));
        cases.push(with("softcap_attention", elem, rows(65, 33, 64), 2.0, "cap", -20.0));
        for (offset, spread) in [(0.0, 1.0), (-5.0, 2.0), (3.0, 10.0)] {
            cases.push(with("sigmoid_attention", elem, rows(65, 33, 64), spread, "offset", offset));
        }
        for (m, n, k) in [(1, 1, 1), (64, 64, 64), (33, 65, 40), (113, 203, 77)] {
            cases.push(sized("matmul_activations", elem, &[("M", m), ("N", n), ("K", k)]));
        }
    }
    cases
}

/// Attention sinks, before the loop and after it; rows that see no key, and sinks that hide every key.
fn sinks() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in ["sink_attention", "late_sink_attention"] {
        for elem in FLOATS {
            for (m, n) in [(33, 65), (65, 33), (113, 203), (203, 113), (1, 70), (5, 0)] {
                cases.push(attention(kernel, elem, rows(m, n, 64)));
            }
            // Every head of six has another sink. A row that sees nothing has none of the last two, +inf and NaN.
            let shape = |h, m, n| Attention { b: 1, h, g: 2, m, n, d: 16 };
            for shape in [shape(6, 33, 70), shape(4, 70, 33)] {
                cases.push(Case { values: Values::SpecialSinks, ..attention(kernel, elem, shape) });
            }
            for scale in [-2.0, 0.0, 1e-3] {
                cases.push(Case { scalars: vec![("scale", scale)], ..attention(kernel, elem, rows(33, 65, 64)) });
            }
            cases.push(Case { values: Values::Growing(30.0), ..attention(kernel, elem, rows(70, 203, 64)) });
            cases.push(attention(kernel, elem, Attention { b: 2, h: 4, g: 2, m: 67, n: 131, d: 128 }));
        }
    }
    cases
}

/// What masks hide is absent, whatever it holds and meets; rows that see nothing.
fn hidden() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for kernel in ["capped_after_mask", "retention", "query_gradient", "counted"] {
            for (m, n) in [(33, 65), (65, 33), (113, 203), (1, 70), (5, 0)] {
                cases.push(attention(kernel, elem, rows(m, n, 64)));
            }
            cases.push(attention(kernel, elem, Attention { b: 2, h: 4, g: 2, m: 67, n: 131, d: 32 }));
            cases.push(Case { values: Values::SpecialValues, ..attention(kernel, elem, rows(70, 203, 64)) });
            cases.push(Case { values: Values::SpecialKeys, ..attention(kernel, elem, rows(70, 203, 64)) });
        }
        let keys = |m, n, d| Attention { b: 2, h: 2, g: 2, m, n, d };
        let gradients = |a: Attention| {
            let mut case = attention("key_gradients", elem, a);
            case.sizes.retain(|(name, _)| *name != "G");
            case
        };
        for a in [keys(33, 65, 64), keys(65, 33, 64), keys(113, 203, 32), keys(70, 1, 64), keys(0, 5, 64)] {
            cases.push(gradients(a));
        }
        for case in [attention("query_gradient", elem, rows(113, 67, 64)), gradients(keys(113, 67, 64))] {
            cases.push(Case { values: Values::NothingSeen, ..case });
        }
        for kernel in ["causal_attention", "capped_after_mask"] {
            cases.push(Case { values: Values::SpecialValues, ..attention(kernel, elem, rows(113, 203, 64)) });
            cases.push(Case { values: Values::SpecialValues, ..attention(kernel, elem, rows(203, 113, 64)) });
        }
    }
    cases
}

/// Bounds that are loaded: usual ones, and any that an `i32` can be.
fn loaded_bounds() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in ["lengths", "row_ranges", "documents"] {
        for elem in FLOATS {
            for values in [Values::Normal, Values::WildIntegers] {
                for (b, h, m, n) in
                    [(1, 2, 33, 65), (3, 2, 70, 33), (5, 3, 17, 50), (2, 2, 113, 203), (7, 1, 1, 300), (2, 2, 5, 0)]
                {
                    let shape = Attention { b, h, g: 1, m, n, d: 64 };
                    cases.push(Case { values, ..attention(kernel, elem, shape) });
                }
                let layout = Layout::Padded(3);
                cases.push(Case { values, layout, ..attention(kernel, elem, rows(70, 203, 64)) });
            }
        }
    }
    cases
}

/// Built-in variants that no other part of the table has.
fn variants() -> Vec<Case> {
    const SHAPES: [(i64, i64); 4] = [(33, 65), (65, 33), (70, 203), (1, 70)];
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n) in SHAPES {
            for kernel in ["alibi_attention", "bias_attention", "query_norm_attention"] {
                let mut case = attention(kernel, elem, rows(m, n, 32));
                if kernel == "query_norm_attention" {
                    case.scalars.push(("eps", 0.01));
                }
                cases.push(case);
            }
            let mut documents = attention("document_attention", elem, rows(n, n, 32));
            documents.sizes.retain(|(name, _)| *name != "M");
            let mut cross = attention("cross_attention", elem, rows(m, n, 64));
            cross.consts.push(("E", 32));
            // Every head has keys of its own, but for those that are rotated.
            let own = |kernel, d| {
                let mut case = attention(kernel, elem, Attention { b: 1, h: 2, g: 2, m, n, d });
                case.sizes.retain(|(name, _)| *name != "G");
                case
            };
            let mut latent = own("mla_prefill", 64);
            latent.consts.extend([("R", 32), ("E", 64)]);
            for values in [Values::Normal, Values::WildIntegers] {
                for (c, r) in [(64, 64), (128, 32)] {
                    let sizes = [("B", 2), ("H", m), ("N", n)];
                    let scalars = vec![("scale", 0.2)];
                    let mut absorbed = Case { values, scalars, ..sized("mla_decode", elem, &sizes) };
                    absorbed.consts.extend([("C", c), ("R", r)]);
                    cases.push(absorbed);
                }
            }
            let mut differential = own("differential_attention", 32);
            differential.consts.push(("E", 64));
            differential.scalars.push(("lambda", 0.7));
            cases.extend([documents, cross, latent, differential]);
            for values in [Values::Normal, Values::WildIntegers] {
                let mut decode = Case { values, ..attention("decode_attention", elem, rows(m, n, 64)) };
                decode.sizes = vec![("B", 3), ("G", 2), ("R", m.min(7)), ("N", n)];
                cases.push(decode);
            }
        }
        // Rows of a bias that TMA can read.
        for (m, n, d) in [(33, 64, 32), (65, 8, 64), (70, 200, 32), (200, 136, 64)] {
            cases.push(attention("bias_attention", elem, rows(m, n, d)));
        }
        let values = Values::Growing(30.0);
        for kernel in ["alibi_attention", "bias_attention", "document_attention"] {
            let mut case = Case { values, ..attention(kernel, elem, Attention { b: 2, h: 4, g: 2, m: 70, n: 203, d: 64 }) };
            case.sizes.retain(|(name, _)| kernel != "document_attention" || *name != "M");
            cases.push(case);
        }
        for (m, n, k) in [(1, 1, 1), (64, 64, 64), (33, 65, 40), (70, 203, 77)] {
            cases.push(sized("swiglu", elem, &[("M", m), ("N", n), ("K", k)]));
            let mut loss = sized("linear_cross_entropy", elem, &[("M", m), ("V", n)]);
            loss.consts.push(("D", 8 * (k / 8).max(1)));
            cases.push(loss);
            for kernel in ["rms_norm", "layer_norm"] {
                let scalars = vec![("eps", 0.01)];
                cases.push(Case { scalars, ..sized(kernel, elem, &[("M", m), ("N", 4 * n + k)]) });
            }
        }
    }
    cases
}

/// Single elements, at the positions of tiles: in tables, lists and trees, at any `i32`; biases with
/// other rows in memory; random numbers of positions; the position of the largest element.
fn gathers() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n) in [(33, 65), (65, 33), (113, 203), (1, 70), (5, 0)] {
            let of = |kernel, d| attention(kernel, elem, Attention { b: 2, h: 4, g: 2, m, n, d });
            for reach in [0, 3, 40, 1000] {
                let mut case = of("relative_attention", 32);
                case.sizes.push(("R", reach));
                cases.push(case);
            }
            for (block, listed) in [(16, (m / 16 + 1, n / 16 + 1)), (64, (m / 64 + 1, n / 64 + 1)), (16, (2, 2))] {
                let mut case = of("block_attention", 32);
                case.consts.push(("S", block));
                case.sizes.extend([("R", listed.0), ("C", listed.1)]);
                cases.push(case);
            }
            cases.push(of("tree_attention", 64));
            for values in [Values::Normal, Values::WildIntegers] {
                let mut case = sized("gathered", elem, &[("B", 2), ("M", m), ("N", n), ("C", 9)]);
                case.values = values;
                cases.extend((n > 0).then_some(case));
            }
            for (dropped, seed, offset) in [(0.25, 7.0, 0.0), (0.0, -1.0, 3.0), (1.0, 12345.0, -1e6)] {
                let mut case = of("dropout_attention", 32);
                case.scalars.extend([("dropped", dropped), ("seed", seed), ("offset", offset)]);
                cases.push(case);
            }
            cases.push(of("turned_bias", 64));
            cases.push(sized("row_argmax", elem, &[("M", m), ("N", 3 * n)]));
        }
        cases.push(Case { values: Values::SpecialRows, ..sized("row_argmax", elem, &[("M", 9), ("N", 301)]) });
        let shape = Attention { b: 2, h: 4, g: 2, m: 37, n: 101, d: 64 };
        cases.push(Case { layout: Layout::Padded(3), ..attention("turned_bias", elem, shape) });
    }
    cases
}

/// A loaded tile that is an operand of a product and used elementwise, before a loop and in one.
fn used_twice() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n, d) in [(33, 65, 64), (1, 203, 64), (70, 33, 40), (113, 203, 80), (5, 0, 64)] {
            cases.push(attention("appended_key", elem, rows(m, n, d)));
        }
        cases.push(Case { layout: Layout::Padded(3), ..attention("appended_key", elem, rows(33, 65, 64)) });
        for (m, n, d) in [(1, 1, 8), (64, 64, 64), (33, 65, 40), (113, 203, 80), (5, 0, 16)] {
            cases.push(Case { consts: vec![("D", d)], ..sized("weighted_rows", elem, &[("M", m), ("N", n)]) });
        }
    }
    cases
}

/// Results whose rows are no axis of the text: of one tile of rows, of several, and with a rest.
fn states() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (n, d, e) in [(65, 64, 64), (131, 80, 40), (33, 128, 64), (203, 40, 72), (1, 64, 16), (0, 16, 32)] {
            let with = |kernel, sizes: &[(&'static str, i64)], consts: &[(&'static str, i64)]| {
                let small = n * d * e <= 2 * SMALL;
                Case { consts: consts.to_vec(), small, ..sized(kernel, elem, sizes) }
            };
            let mut decayed = with("decayed_state", &[("B", 1), ("H", 2), ("N", n)], &[("D", d), ("E", e)]);
            decayed.scalars.push(("scale", 0.05));
            let continued = with("continued_state", &[("B", 2), ("N", n)], &[("D", d), ("E", e)]);
            cases.extend([decayed, continued, with("gram", &[("B", 2), ("N", n)], &[("D", d)])]);
        }
        // A product of f32 has its right operand from memory.
        for (m, n, d) in [(72, 104, 64), (1, 33, 40), (131, 40, 128), (0, 16, 64)] {
            let sizes = [("B", 1), ("H", 2), ("M", m), ("N", n), ("E", 56)];
            let case =
                Case { consts: vec![("D", d)], scalars: vec![("scale", 0.2)], ..sized("scores_on_the_right", elem, &sizes) };
            cases.extend((elem != Elem::F32).then_some(Case { small: m * n <= 10_000, ..case }));
        }
    }
    cases
}

/// A case of these sizes alone.
fn sized(kernel: &'static str, elem: Elem, sizes: &[(&'static str, i64)]) -> Case {
    Case {
        kernel,
        elem,
        consts: Vec::new(),
        sizes: sizes.to_vec(),
        scalars: Vec::new(),
        values: Values::Normal,
        layout: Layout::Packed,
        small: sizes.iter().map(|s| s.1).product::<i64>() <= SMALL,
    }
}

/// Blocks of sizes that are known at launch: from 1 to beyond the last key, and negative.
fn blocks() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n, d) in [(70, 260, 32), (33, 65, 64), (203, 203, 16), (203, 70, 32), (1, 40, 32), (5, 0, 64)] {
            for (size, values) in [
                (1, Values::Normal),
                (17, Values::WildIntegers),
                (64, Values::Normal),
                (i32::MAX, Values::WildIntegers),
                (-40, Values::WildIntegers),
            ] {
                let mut case = Case { values, ..attention("blocks_of", elem, rows(m, n, d)) };
                case.scalars.push(("s", size as f32));
                cases.push(case);
            }
        }
    }
    cases
}

/// Masks that leave two runs of tiles: far apart, side by side, one in the other, one of them
/// empty.
fn two_runs() -> Vec<Case> {
    let mut cases = Vec::new();
    for elem in FLOATS {
        for (m, n, d) in [(70, 260, 32), (33, 65, 64), (300, 300, 16), (203, 70, 32), (1, 400, 32), (5, 0, 64)] {
            for (window, first) in [(17, 4), (40, 100), (1, 0), (0, 33), (1000, 3), (70, -5)] {
                let mut case = attention("window_and_first", elem, rows(m, n, d));
                case.scalars.extend([("window", window as f32), ("first", first as f32)]);
                cases.push(case);
            }
        }
    }
    cases
}

/// Masks that are stored: rows of odd and of even length, in memory with gaps, and rows that see
/// nothing.
fn stored_masks() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in ["boolean_mask", "keep_bits"] {
        for elem in FLOATS {
            for (m, n) in [(33, 65), (65, 33), (64, 64), (113, 203), (1, 70), (70, 1), (5, 0)] {
                cases.push(attention(kernel, elem, rows(m, n, 64)));
            }
            cases.push(attention(kernel, elem, Attention { b: 2, h: 4, g: 2, m: 67, n: 136, d: 32 }));
            for layout in [Layout::Padded(8), Layout::Padded(3)] {
                cases.push(Case { layout, ..attention(kernel, elem, rows(37, 101, 64)) });
            }
            for values in [Values::NothingSeen, Values::EveryByte, Values::SpecialValues] {
                cases.push(Case { values, ..attention(kernel, elem, Attention { b: 2, h: 2, g: 1, m: 20, n: 70, d: 32 }) });
            }
        }
    }
    cases
}

/// Keys and values of one byte with scales.
fn quantised() -> Vec<Case> {
    let mut cases = Vec::new();
    for kernel in ["int8_keys", "uint8_keys", "e4m3_keys", "e5m2_keys"] {
        let case = |elem, a| {
            let mut case = attention(kernel, elem, a);
            if kernel == "uint8_keys" {
                case.scalars.push(("v_step", 0.01));
            }
            case
        };
        let elems = if ["int8_keys", "e4m3_keys"].contains(&kernel) { &FLOATS[..] } else { &HALVES };
        for &elem in elems {
            for (m, n, d) in [(33, 65, 64), (65, 33, 64), (113, 203, 128), (1, 300, 64), (70, 1, 32), (5, 0, 64), (33, 40, 16)] {
                cases.push(case(elem, rows(m, n, d)));
            }
            for d in [8, 40, 72] {
                cases.push(case(elem, rows(37, 50, d)));
            }
            cases.push(case(elem, Attention { b: 2, h: 4, g: 2, m: 67, n: 131, d: 64 }));
            for layout in [Layout::HeadsInner, Layout::Padded(16), Layout::Padded(4), Layout::Padded(3)] {
                cases.push(Case { layout, ..case(elem, Attention { b: 1, h: 4, g: 2, m: 19, n: 61, d: 64 }) });
            }
            if kernel == "e4m3_keys" {
                for values in [Values::SpecialKeys, Values::SpecialValues] {
                    cases.push(Case { values, ..case(elem, rows(70, 50, 64)) });
                }
            }
        }
    }
    cases
}

/// What loads make of bytes.
fn widened() -> Vec<Case> {
    let mut cases = Vec::new();
    for (b, m, n) in [(1, 16, 16), (3, 33, 65), (2, 20, 256), (5, 1, 300)] {
        for layout in [Layout::Packed, Layout::Padded(3), Layout::Padded(8)] {
            for values in [Values::EveryByte, Values::Normal] {
                cases.push(Case { values, layout, ..sized("widened", Elem::F32, &[("B", b), ("M", m), ("N", n)]) });
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_say_everything() {
        let all = cases();
        let names: BTreeSet<String> = all.iter().map(Case::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("causal_attention/bf16/B1_H2_G1_M113_N203_D64/normal"), "{names:?}");
        assert!(names.contains("attention/f16/B2_H4_G2_M37_N101_D64/normal/padded3"));
        assert!(names.contains("sliding_window/bf16/B1_H2_G1_M70_N203_D64/normal/window=17"));
        assert_eq!(grid().len(), 192);
    }

    #[test]
    fn some_cases_of_every_kernel_are_small() {
        let all = cases();
        let kernels: BTreeSet<&str> = all.iter().map(|c| c.kernel).collect();
        let small: BTreeSet<&str> = all.iter().filter(|c| c.small).map(|c| c.kernel).collect();
        assert_eq!(kernels, small);
        assert_eq!(kernels.len(), 62);
    }
}
