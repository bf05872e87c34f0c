//! The interpreter against plain loops in float64, written without it: every block size, arithmetic and mask must give
//! what the loops give.

use flashtile_dsl::interpret::{Argument, Arithmetic, Blocks, Exact64, HostTensor, InterpretError, Interpreter, Ir32, Plain16};
use flashtile_dsl::ir::{Binding, Elem, Kernel, ParamKind, SourceText};
use flashtile_dsl::syntax::parse;
use proptest::prelude::*;

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "test.rs".into(), text: text.into(), first_line: 1 };
    parse(&source).unwrap_or_else(|e| panic!("{e}")).remove(0)
}

fn builtin(name: &str) -> Kernel {
    let path = format!("{}/../runtime/kernels/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    kernel(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")))
}

/// Attention with any predicate in place of the causal one.
fn masked(predicate: &str) -> Kernel {
    let path = format!("{}/../runtime/kernels/causal_attention.rs", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a built-in kernel");
    let changed = text.replace("pos(i) + N - M >= pos(j)", predicate);
    assert_ne!(text, changed, "the predicate is in the text");
    kernel(&changed)
}

/// Values in (-1, 1), different for every seed.
fn values(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// Runs all programs; returns the outputs in order of the parameters, NaN where nothing was stored.
fn execute<A: Arithmetic>(
    kernel: &Kernel,
    binding: &Binding,
    sizes: &[(&str, i64)],
    blocks: &Blocks,
    arguments: &[Argument<'_>],
    arithmetic: A,
) -> Result<Vec<Vec<f64>>, InterpretError> {
    use flashtile_dsl::interpret::Real;
    let by_id: Vec<i64> =
        kernel.sizes.values().map(|s| sizes.iter().find(|(n, _)| *n == s.name).map_or(0, |(_, v)| *v)).collect();
    let interpreter = Interpreter::new(kernel, binding, &by_id, blocks, arguments, arithmetic)?;
    let outputs: Vec<_> = kernel
        .params
        .iter()
        .filter(|(_, p)| matches!(&p.kind, ParamKind::Tensor(t) if t.direction.is_written()))
        .map(|(id, _)| id)
        .collect();
    let mut results: Vec<Vec<f64>> = outputs.iter().map(|&id| vec![f64::NAN; interpreter.shape(id).iter().product()]).collect();
    for program in 0..interpreter.programs() {
        for stored in interpreter.run(program)? {
            let output = outputs.iter().position(|&o| o == stored.param).expect("an output");
            let shape = interpreter.shape(stored.param);
            let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
            for (at, from) in stored.rows(&strides) {
                for column in 0..stored.row_len() {
                    results[output][at + column] = stored.values[from + column].to_f64();
                }
            }
        }
    }
    Ok(results)
}

#[derive(Clone, Debug)]
struct Shape {
    heads: usize,
    groups: usize,
    m: usize,
    n: usize,
    d: usize,
}

struct Attention {
    q: HostTensor,
    k: HostTensor,
    v: HostTensor,
    scale: f32,
    shape: Shape,
}

impl Attention {
    fn new(shape: &Shape, elem: Elem, scale: f32, seed: u64) -> Self {
        let &Shape { heads, groups, m, n, d } = shape;
        let tensor = |h: usize, rows: usize, seed| HostTensor::from_f64(elem, &[1, h, rows, d], &values(h * rows * d, seed));
        Self {
            q: tensor(heads, m, seed),
            k: tensor(groups, n, seed + 1),
            v: tensor(groups, n, seed + 2),
            scale,
            shape: shape.clone(),
        }
    }

    fn run<A: Arithmetic>(&self, kernel: &Kernel, blocks: &Blocks, arithmetic: A) -> Vec<Vec<f64>> {
        let &Shape { heads, groups, m, n, d } = &self.shape;
        let sizes = [("B", 1), ("H", heads as i64), ("G", groups as i64), ("M", m as i64), ("N", n as i64)];
        let binding = Binding::new(kernel, self.q.elem, [("D", d as i64)]);
        let arguments = [
            Argument::Input(self.q.view()),
            Argument::Input(self.k.view()),
            Argument::Input(self.v.view()),
            Argument::F32(self.scale),
            Argument::Output,
            Argument::Output,
        ];
        execute(kernel, &binding, &sizes, blocks, &arguments, arithmetic).expect("runs")
    }

    /// The textbook: one row at a time, in float64.
    fn plain(&self, visible: impl Fn(i64, i64) -> bool) -> (Vec<f64>, Vec<f64>) {
        let &Shape { heads, groups, m, n, d } = &self.shape;
        let (q, k, v) = (self.q.to_f64(), self.k.to_f64(), self.v.to_f64());
        let (mut o, mut lse) = (vec![0.0; heads * m * d], vec![f64::NEG_INFINITY; heads * m]);
        for h in 0..heads {
            let g = h * groups / heads;
            for i in 0..m {
                let score = |j: usize| {
                    let dot: f64 = (0..d).map(|c| q[(h * m + i) * d + c] * k[(g * n + j) * d + c]).sum();
                    dot * f64::from(self.scale)
                };
                let seen: Vec<(usize, f64)> = (0..n).filter(|&j| visible(i as i64, j as i64)).map(|j| (j, score(j))).collect();
                let top = seen.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = seen.iter().map(|s| (s.1 - top).exp()).sum();
                if seen.is_empty() {
                    continue;
                }
                lse[h * m + i] = top + sum.ln();
                for c in 0..d {
                    let weighted: f64 = seen.iter().map(|&(j, s)| (s - top).exp() * v[(g * n + j) * d + c]).sum();
                    o[(h * m + i) * d + c] = weighted / sum;
                }
            }
        }
        (o, lse)
    }
}

/// The largest difference; infinities must agree.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() })
        .fold(0.0, |m: f64, x| if m.is_nan() || x <= m { m } else { x })
}

const SHAPE: Shape = Shape { heads: 4, groups: 2, m: 13, n: 29, d: 8 };

#[test]
fn the_built_in_attention_is_attention() {
    let inputs = Attention::new(&SHAPE, Elem::F16, 0.35, 1);
    for (name, causal) in [("attention", false), ("causal_attention", true)] {
        let (o, lse) = inputs.plain(|i, j| !causal || i + 29 - 13 >= j);
        let exact = inputs.run(&builtin(name), &Blocks::WholeLoops(4), Exact64);
        assert!(difference(&exact[0], &o) < 1e-12 && difference(&exact[1], &lse) < 1e-12, "{name}");
        let f32 = inputs.run(&builtin(name), &Blocks::PerAxis(vec![5, 7]), Ir32);
        assert!(difference(&f32[0], &o) < 1e-3 && difference(&f32[1], &lse) < 1e-5, "{name}");
        let plain = inputs.run(&builtin(name), &Blocks::WholeLoops(64), Plain16 { elem: Elem::F16 });
        assert!(difference(&plain[0], &o) < 2e-3 && difference(&plain[1], &lse) < 2e-3, "{name}");
        assert!(difference(&plain[1], &lse) > difference(&f32[1], &lse), "{name}: rounded scores show in the LSE");
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let inputs = Attention::new(&Shape { m: 7, n: 3, ..SHAPE }, Elem::F32, 1.0, 2);
    let result = inputs.run(&builtin("causal_attention"), &Blocks::PerAxis(vec![2, 2]), Ir32);
    let (o, lse) = inputs.plain(|i, j| i + 3 - 7 >= j);
    assert!(difference(&result[0], &o) < 1e-6 && difference(&result[1], &lse) < 1e-6);
    assert!(result[0][..4 * 8].iter().all(|&x| x == 0.0) && result[1][..4].iter().all(|&x| x == f64::NEG_INFINITY));
    let nothing = Attention::new(&Shape { n: 0, ..SHAPE }, Elem::Bf16, 1.0, 3);
    for kernel in [builtin("attention"), builtin("causal_attention")] {
        let result = nothing.run(&kernel, &Blocks::WholeLoops(4), Ir32);
        assert!(result[0].iter().all(|&x| x == 0.0) && result[1].iter().all(|&x| x == f64::NEG_INFINITY));
    }
}

#[test]
fn row_softmax_in_two_passes() {
    let kernel = builtin("row_softmax");
    let (m, n) = (5, 23);
    let x = HostTensor::from_f64(Elem::F32, &[m, n], &values(m * n, 5).iter().map(|x| x * 20.0).collect::<Vec<_>>());
    let binding = Binding::new(&kernel, Elem::F32, [] as [(&str, i64); 0]);
    let arguments = [Argument::Input(x.view()), Argument::Output];
    let sizes = [("M", m as i64), ("N", n as i64)];
    let expected: Vec<f64> = x
        .to_f64()
        .chunks(n)
        .flat_map(|row| {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
            row.iter().map(move |x| (x - top).exp() / sum).collect::<Vec<_>>()
        })
        .collect();
    for blocks in [vec![1, 1, 1], vec![2, 8, 3], vec![64, 64, 64]] {
        let y = execute(&kernel, &binding, &sizes, &Blocks::PerAxis(blocks.clone()), &arguments, Ir32).expect("runs");
        assert!(difference(&y[0], &expected) < 1e-6, "{blocks:?}");
    }
}

#[test]
fn matmul_gelu_fuses_its_activation() {
    let kernel = builtin("matmul_gelu");
    let (m, k, n) = (9, 17, 11);
    let (a, b) = (
        HostTensor::from_f64(Elem::F32, &[m, k], &values(m * k, 6)),
        HostTensor::from_f64(Elem::F32, &[k, n], &values(k * n, 7)),
    );
    let bias = HostTensor::from_f64(Elem::F32, &[n], &values(n, 8));
    let (x, y, z) = (a.to_f64(), b.to_f64(), bias.to_f64());
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            let (r, c) = (at / n, at % n);
            let x = (0..k).map(|s| x[r * k + s] * y[s * n + c]).sum::<f64>() + z[c];
            0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044715 * x * x * x)).tanh())
        })
        .collect();
    let binding = Binding::new(&kernel, Elem::F32, [] as [(&str, i64); 0]);
    let arguments = [Argument::Input(a.view()), Argument::Input(b.view()), Argument::Input(bias.view()), Argument::Output];
    let sizes = [("M", m as i64), ("N", n as i64), ("K", k as i64)];
    for blocks in [vec![4, 4, 4], vec![16, 3, 5]] {
        let c = execute(&kernel, &binding, &sizes, &Blocks::PerAxis(blocks.clone()), &arguments, Ir32).expect("runs");
        assert!(difference(&c[0], &expected) < 1e-5, "{blocks:?}");
    }
}

#[test]
fn data_that_does_not_fit_is_named() {
    let kernel = builtin("row_softmax");
    let binding = Binding::new(&kernel, Elem::F32, [] as [(&str, i64); 0]);
    let x = HostTensor::packed(Elem::F32, &[4, 6]);
    let half = HostTensor::packed(Elem::F16, &[4, 6]);
    let view = x.view();
    let error = |binding: &Binding, sizes: &[(&str, i64)], blocks: Blocks, arguments: &[Argument<'_>]| {
        execute(&kernel, binding, sizes, &blocks, arguments, Ir32).expect_err("does not fit").to_string()
    };
    let (good, whole) = ([("M", 4), ("N", 6)], Blocks::WholeLoops(2));
    let check = |binding: &Binding, sizes: &[(&str, i64)], blocks: Blocks, first: Argument<'_>, expected: &str| {
        assert_eq!(error(binding, sizes, blocks, &[first, Argument::Output]), expected);
    };
    let input = Argument::Input(view);
    check(&Binding::default(), &good, whole.clone(), input, "kernel `row_softmax` needs a binding for T");
    check(&binding, &[("M", 4), ("N", 5)], whole.clone(), input, "argument `x` must have shape [4, 5], but has [4, 6]");
    check(&binding, &[("M", -4), ("N", 6)], whole.clone(), input, "`M` is not a whole number of elements with these sizes");
    check(&binding, &good, Blocks::PerAxis(vec![1]), input, "the kernel has 3 tile axes, but 1 block sizes were given");
    check(&binding, &good, Blocks::PerAxis(vec![1, 0, 1]), input, "axis `j` has block size 0; the least is 1");
    check(&binding, &good, whole.clone(), Argument::F32(1.0), "argument `x` must be an input tensor, but is an f32 scalar");
    check(&binding, &good, whole.clone(), Argument::Input(half.view()), "argument `x` must hold f32, but holds f16");
    let short = flashtile_dsl::interpret::TensorView { bytes: &view.bytes[..95], ..view };
    check(&binding, &good, whole.clone(), Argument::Input(short), "argument `x` reaches byte 96, but its memory has 95");
    let gaps = flashtile_dsl::interpret::TensorView { strides: &[12, 2], ..view };
    check(
        &binding,
        &good,
        whole.clone(),
        Argument::Input(gaps),
        "argument `x` needs one stride per dimension and a contiguous last one, but has [12, 2]",
    );
    assert_eq!(error(&binding, &good, whole, &[input]), "kernel `row_softmax` takes 2 arguments, but 1 were given");
}

#[test]
fn accesses_out_of_bounds_are_errors_and_loaded_indices_are_moved() {
    let x = HostTensor::from_f64(Elem::F32, &[3], &[1.0, 2.0, 3.0]);
    let run = |index: &str, rows: &[f64]| {
        let kernel = kernel(&format!(
            "pub fn gather(x: &Tensor<f32, (N)>, rows: &Tensor<i32, (M)>, y: &mut Tensor<f32, (M)>) {{
                let r = program(M);
                store(y, [r], load(x, [{index}]) + 0.0 * load(rows, [r]));
            }}"
        ));
        let rows = HostTensor::from_f64(Elem::I32, &[2], rows);
        let arguments = [Argument::Input(x.view()), Argument::Input(rows.view()), Argument::Output];
        execute(&kernel, &Binding::default(), &[("N", 3), ("M", 2)], &Blocks::WholeLoops(1), &arguments, Ir32)
    };
    for (rows, read) in [([2.0, 0.0], [3.0, 1.0]), ([0.0, 3.0], [1.0, 3.0]), ([-7.0, 2e9], [1.0, 3.0])] {
        assert_eq!(run("load(rows, [r])", &rows).expect("in bounds"), [read]);
    }
    assert_eq!(run("r + 1", &[0.0; 2]).expect("in bounds"), [[2.0, 3.0]]);
    let error = run("r + 2", &[0.0; 2]).expect_err("out of bounds");
    assert_eq!(error.to_string(), "`x` is accessed at 3..4 of dimension 0, which has 3 elements");
    assert!(matches!(error, InterpretError::OutOfBounds { span, .. } if span != Default::default()));
}

/// An affine predicate of the positions and sizes, as text and as a function.
#[derive(Clone, Debug)]
struct Predicate {
    rows: i64,
    keys: i64,
    shift: i64,
    size: i64,
    or_prefix: Option<i64>,
}

impl Predicate {
    fn text(&self) -> String {
        let Self { rows, keys, shift, size, or_prefix } = self;
        let line = format!("{rows} * pos(i) + {size} * (N - M) + {shift} >= {keys} * pos(j)");
        match or_prefix {
            Some(prefix) => format!("{line} || pos(j) < {prefix}"),
            None => line,
        }
    }

    fn holds(&self, shape: &Shape, i: i64, j: i64) -> bool {
        let difference = shape.n as i64 - shape.m as i64;
        self.rows * i + self.size * difference + self.shift >= self.keys * j || self.or_prefix.is_some_and(|p| j < p)
    }
}

fn predicates() -> impl Strategy<Value = Predicate> {
    (0..4i64, 1..4i64, 0..9i64, 0..2i64, proptest::option::of(0..20i64))
        .prop_map(|(rows, keys, shift, size, or_prefix)| Predicate { rows, keys, shift, size, or_prefix })
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1..4usize, 1..3usize, 1..40usize, 0..50usize, 1..20usize).prop_map(|(groups, per_group, m, n, d)| Shape {
        heads: groups * per_group,
        groups,
        m,
        n,
        d,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_mask_and_block_sizes_give_the_textbook(
        shape in shapes(),
        predicate in predicates(),
        block_m in 1..50usize,
        block_n in 1..60usize,
        scale in -2.0f32..2.0,
        seed in 1..1000u64,
    ) {
        let inputs = Attention::new(&shape, Elem::F32, scale, seed);
        let kernel = masked(&predicate.text());
        let (o, lse) = inputs.plain(|i, j| predicate.holds(&shape, i, j));
        let streamed = inputs.run(&kernel, &Blocks::PerAxis(vec![block_m, block_n]), Exact64);
        prop_assert!(difference(&streamed[0], &o) < 1e-12 && difference(&streamed[1], &lse) < 1e-12);
        let f32 = inputs.run(&kernel, &Blocks::PerAxis(vec![block_m, block_n]), Ir32);
        prop_assert!(difference(&f32[0], &o) < 2e-5 && difference(&f32[1], &lse) < 2e-5);
    }
}

/// Runs a kernel over `x: f32[N]` (or `[M, N]`) that stores one output; blocks of 3, so that the last tile is ragged.
fn apply(text: &str, sizes: &[(&str, i64)], inputs: &[HostTensor], scalars: &[Argument<'_>]) -> Vec<f64> {
    let kernel = kernel(text);
    let mut arguments: Vec<Argument<'_>> = inputs.iter().map(|t| Argument::Input(t.view())).collect();
    arguments.extend(scalars);
    arguments.push(Argument::Output);
    let blocks = Blocks::PerAxis(vec![3; kernel.axes.len()]);
    let consts = sizes.iter().filter(|(name, _)| *name == "D").copied();
    let binding = Binding::new(&kernel, Elem::F32, consts);
    execute(&kernel, &binding, sizes, &blocks, &arguments, Exact64).expect("runs").remove(0)
}

#[test]
fn functions_of_one_and_two_operands() {
    let x = [-2.0, -0.5, 0.0, 0.25, 1.0, 3.0, 7.5];
    let y = [1.0, -1.0, 2.0, 0.5, 1.0, -3.0, 2.0];
    type Function = fn(f64, f64) -> f64;
    let cases: [(&str, Function); 16] = [
        ("a + b", |a, b| a + b),
        ("a - b", |a, b| a - b),
        ("a * b", |a, b| a * b),
        ("a / b", |a, b| a / b),
        ("-a", |a, _| -a),
        ("abs(a)", |a, _| a.abs()),
        ("exp(a)", |a, _| a.exp()),
        ("exp2(a)", |a, _| a.exp2()),
        ("ln(abs(a) + 1.0)", |a, _| (a.abs() + 1.0).ln()),
        ("log2(abs(a) + 1.0)", |a, _| (a.abs() + 1.0).log2()),
        ("tanh(a)", |a, _| a.tanh()),
        ("max(a, b)", f64::max),
        ("min(a, b)", f64::min),
        ("select(a > b, a, 2.0 * b)", |a, b| if a > b { a } else { 2.0 * b }),
        ("select(a >= b && !(a == b), 1.0, 0.0)", |a, b| f64::from(u8::from(a > b))),
        ("select(a < 0.0 || b != 1.0, a, b)", |a, b| if a < 0.0 || b != 1.0 { a } else { b }),
    ];
    let tensor = |values: &[f64]| HostTensor::from_f64(Elem::F32, &[7], values);
    for (expression, function) in cases {
        let text = format!(
            "pub fn f(x: &Tensor<f32, (N)>, y: &Tensor<f32, (N)>, z: &mut Tensor<f32, (N)>) {{
                let i = program(tiles(N));
                let a = load(x, [i]);
                let b = load(y, [i]);
                store(z, [i], {expression});
            }}"
        );
        let expected: Vec<f64> = x.iter().zip(&y).map(|(&a, &b)| function(a, b)).collect();
        let found = apply(&text, &[("N", 7)], &[tensor(&x), tensor(&y)], &[]);
        assert!(difference(&found, &expected) < 1e-12, "{expression}: {found:?} for {expected:?}");
    }
}

#[test]
fn halves_of_a_row_are_loaded_by_range() {
    let text = "pub fn rotate<T: Element, const D: usize>(x: &Tensor<T, (N, D)>, y: &mut Tensor<T, (N, D)>) {
        let i = program(tiles(N));
        store(y, [i, ..D / 2], -load(x, [i, D / 2..]));
        store(y, [i, D / 2..], load(x, [i, ..D / 2]));
    }";
    let x = HostTensor::from_f64(Elem::F32, &[4, 6], &(0..24).map(f64::from).collect::<Vec<_>>());
    let y = apply(text, &[("N", 4), ("D", 6)], &[x], &[]);
    let expected: Vec<f64> = (0..24).map(|n| if n % 6 < 3 { -f64::from(n + 3) } else { f64::from(n - 3) }).collect();
    assert_eq!(y, expected);
}

#[test]
fn positions_are_those_of_the_axis_and_broadcast_by_name() {
    let text = "pub fn grid(x: &Tensor<f32, (M, N)>, z: &mut Tensor<f32, (M, N)>) {
        let (i, j) = program(tiles(M), tiles(N));
        store(z, [i, j], load(x, [i, j]) + (pos(i) * 10 + pos(j)));
    }";
    let x = HostTensor::packed(Elem::F32, &[4, 5]);
    let z = apply(text, &[("M", 4), ("N", 5)], &[x], &[]);
    assert_eq!(z, (0..20).map(|n| f64::from(n / 5 * 10 + n % 5)).collect::<Vec<_>>());
}

#[test]
fn casts_and_stores_round_in_f32_and_not_in_the_oracle() {
    let text = "pub fn halve<T: Element>(x: &Tensor<f32, (N)>, y: &mut Tensor<T, (N)>) {
        let i = program(tiles(N));
        store(y, [i], load(x, [i]).to::<T>());
    }";
    let kernel = kernel(text);
    let x = HostTensor::from_f64(Elem::F32, &[2], &[1.0 + 1.0 / 1024.0 + 1.0 / 8192.0, 70000.0]);
    let binding = Binding::new(&kernel, Elem::F16, [] as [(&str, i64); 0]);
    let arguments = [Argument::Input(x.view()), Argument::Output];
    let (sizes, blocks) = ([("N", 2)], Blocks::WholeLoops(2));
    let rounded = execute(&kernel, &binding, &sizes, &blocks, &arguments, Ir32).expect("runs");
    assert_eq!(rounded[0], [1.0 + 1.0 / 1024.0, f64::INFINITY]);
    assert_eq!(execute(&kernel, &binding, &sizes, &blocks, &arguments, Exact64).expect("runs")[0], x.to_f64());
}

#[test]
fn index_arithmetic_rounds_down() {
    let text = "pub fn pick(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M)>) {
        let r = program(M);
        store(y, [r], load(x, [(r * N + N - 1) / M]));
    }";
    let x = HostTensor::from_f64(Elem::F32, &[7], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(apply(text, &[("N", 7), ("M", 9)], &[x], &[]), (0..9).map(|r| f64::from((r * 7 + 6) / 9)).collect::<Vec<_>>());
}

/// A tensor that is read and written gives what was there before, then what the program stored last.
#[test]
fn a_tensor_that_is_read_and_written_keeps_what_a_loop_leaves() {
    let text = "kernel count {
  size M runtime
  size N runtime
  param total: &inout tensor<f32, (M)>
  axis i: loop over M
  axis j: loop over N

  program
  %0: f32 = const f32 1.0
  for j () {
    params %1: coord<j>
    for i () {
      params %2: coord<i>
      %3: tile<f32, (i)> = load_tile total[tile %2]
      %4: tile<f32, (i)> = add %3, %0
      store_tile total[tile %2], %4
      yield
    }
    yield
  }
}
";
    let kernel = flashtile_dsl::ir::parse_text(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(kernel.to_string().trim(), text.trim());
    assert_eq!(flashtile_dsl::ir::verify(&kernel), Ok(()));
    let before = HostTensor::from_f64(Elem::F32, &[5], &[0.0, 1.0, 2.0, 3.0, 4.0]);
    let binding = Binding::default();
    let run = |argument: Argument<'_>| {
        let arguments = [argument];
        let blocks = Blocks::PerAxis(vec![2, 3]);
        let interpreter =
            Interpreter::new(&kernel, &binding, &[5, 7], &blocks, &arguments, Exact64).map_err(|e| e.to_string())?;
        assert_eq!(interpreter.programs(), 1);
        let mut after = before.clone();
        for stored in interpreter.run(0).map_err(|e| e.to_string())? {
            stored.write(Elem::F32, &[1], after.memory_mut());
        }
        Ok::<_, String>(after.to_f64())
    };
    // Three tiles of j.
    assert_eq!(run(Argument::Input(before.view())), Ok(vec![3.0, 4.0, 5.0, 6.0, 7.0]));
    assert!(run(Argument::Output).is_err_and(|e| e.contains("read before it is stored")), "its contents are needed");
}

#[test]
fn loops_over_positions_take_every_index() {
    let kernel = kernel(
        "pub fn f(x: &Tensor<f32, (R, M)>, y: &mut Tensor<f32, (M)>, z: &mut Tensor<f32, (R, M)>) {
            let i = program(tiles(M));
            let (mut sum, mut last) = (zeros(i), 0);
            for r in 1..R - 1 {
                sum = sum * 2.0 + load(x, [r, i]);
                last = r;
            }
            store(y, [i], sum + last);
            for r in 0..R {
                store(z, [r, i], load(x, [R - 1 - r, i]));
            }
        }",
    );
    let (r, m) = (5usize, 7usize);
    let x = HostTensor::from_f64(Elem::F32, &[r, m], &values(r * m, 3));
    let arguments = [Argument::Input(x.view()), Argument::Output, Argument::Output];
    let sizes = [("R", r as i64), ("M", m as i64)];
    let found = execute(&kernel, &Binding::default(), &sizes, &Blocks::WholeLoops(4), &arguments, Exact64).expect("runs");
    let x = x.to_f64();
    let sum = |i: usize| (1..r - 1).fold(0.0, |sum, row| sum * 2.0 + x[row * m + i]) + (r - 2) as f64;
    assert_eq!(found[0], (0..m).map(sum).collect::<Vec<_>>());
    assert_eq!(found[1], (0..r * m).map(|at| x[(r - 1 - at / m) * m + at % m]).collect::<Vec<_>>());
}

/// Sums of sums have twice the terms from step to step; what is asked of terms is asked of each once.
#[test]
fn a_chain_of_sums_is_looked_at_once() {
    let steps: String = (0..80).map(|n| format!("let b{} = b{n} + b{n};\n", n + 1)).collect();
    let text = format!(
        "pub fn f(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M, N)>) {{
            let (i, j) = program(tiles(M), tiles(N));
            let b0 = load(x, [i, j]);
            {steps}
            store(y, [i, j], b80);
        }}"
    );
    let x = HostTensor::from_f64(Elem::F32, &[1, 3], &[1.0, -2.0, 0.5]);
    let found = apply(&text, &[("M", 1), ("N", 3)], &[x], &[]);
    assert_eq!(found, [1.0, -2.0, 0.5].map(|x| x * 2f64.powi(80)));
}
