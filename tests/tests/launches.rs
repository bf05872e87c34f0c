//! What a schedule makes of a kernel means what the kernel means: the kernels of its launches, executed one after the other by the
//! interpreter, give what the kernel as written gives, whatever the blocks, the sizes and the number of parts.

use std::collections::BTreeMap;

use flashtile::conformance::kernels::KERNELS as SUITE;
use flashtile_codegen::{
    Arch, Facts, Fixup, FoldedRows, Instance, KNOBS, Machine, Ranker, Sides, Staged, Walk, default_schedule, fold, generate,
    interchange, precompute, pretranspose, split, why_not_fold, why_not_interchange, why_not_precompute, why_not_pretranspose,
    why_not_split, with_row_axes,
};
use flashtile_dsl::interpret::{Argument, Arithmetic, Blocks, Exact64, HostTensor, Interpreter, Ir32};
use flashtile_dsl::ir::{
    BinaryOp, Binding, Direction, Elem, Kernel, Op, OpId, ParamKind, SizeExpr, SizeKind, SourceText, parse_text, verify,
};
use flashtile_tests::paged::{NOTHING_SEEN, SINKS, pages};
use flashtile_tests::turns::Turn;
use proptest::prelude::*;

const KERNELS: &[&str] = &[
    include_str!("../../runtime/kernels/attention.rs"),
    include_str!("../../runtime/kernels/causal_attention.rs"),
    include_str!("../../runtime/kernels/matmul_gelu.rs"),
    include_str!("../../runtime/kernels/causal_rope_attention.rs"),
    include_str!("../../runtime/kernels/sliding_window.rs"),
    include_str!("../../runtime/kernels/prefix_attention.rs"),
    include_str!("../../runtime/kernels/softcap_attention.rs"),
    include_str!("../../runtime/kernels/sink_attention.rs"),
    include_str!("../../runtime/kernels/sigmoid_attention.rs"),
    include_str!("../filetests/generated/mask_window.ft"),
    include_str!("../filetests/analysis/mask_documents.ft"),
    SINK,
    PLAIN,
];

/// A streaming softmax that starts from a sink: its initial state counts.
const SINK: &str = "
pub fn sink<T: Element, const D: usize>(
    q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (H, N, D)>, v: &Tensor<T, (H, N, D)>, o: &mut Tensor<T, (H, M, D)>,
) {
    let (h, i) = program(H, tiles(M));
    let q_i = load(q, [h, i, ..]);
    let mut m = full(i, 0.5);
    let mut l = full(i, 1.0);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = mask(dot(q_i, load(k, [h, j, ..]).t()), pos(i) >= pos(j));
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp2(m - m_ref);
        let p = exp2(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [h, j, ..]));
        m = m_new;
    }
    store(o, [h, i, ..], acc / l);
}";

/// No mask, and no `visible_or_zero`: every row sees every key.
const PLAIN: &str = "
pub fn plain<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>, top: &mut Tensor<f32, (M)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [j, ..]).t());
        let m_new = max(m, rowmax(s));
        let alpha = exp(m - m_new);
        let p = exp(s - m_new);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [j, ..]));
        m = m_new;
    }
    store(o, [i, ..], acc / l);
    store(top, [i], m);
}";

const D: i64 = 8;

fn parse(text: &str) -> Vec<Kernel> {
    let text = text.split("; run:").next().unwrap_or_default();
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}"))
}

fn kernels() -> Vec<Kernel> {
    KERNELS.iter().copied().chain(SUITE.iter().map(|k| k.text)).flat_map(parse).collect()
}

/// Those that have a loop.
fn looping() -> Vec<Kernel> {
    let is_loop = |kernel: &Kernel, op: OpId| matches!(kernel.ops[op].op, Op::For { .. });
    kernels().into_iter().filter(|kernel| kernel.walk().into_iter().any(|(_, op)| is_loop(kernel, op))).collect()
}

/// A call: sizes and data for any kernel.
#[derive(Clone, Debug)]
struct Call {
    rows: i64,
    columns: i64,
    /// Rows of a group of heads.
    folded: i64,
    blocks: (usize, usize),
    integer: i32,
    seed: u64,
    /// Which share of the kernels a case takes.
    share: usize,
}

/// Shares of the kernels, of which a case has one, or all with `FLASHTILE_PAIRS=all`.
const SHARES: usize = 4;

type Tensors = BTreeMap<String, HostTensor>;

impl Call {
    /// The kernels of the case's share.
    fn some(&self, kernels: Vec<Kernel>) -> impl Iterator<Item = Kernel> {
        let (share, takes_all) = (self.share, Turn::of_run().takes_all);
        kernels.into_iter().enumerate().filter(move |(at, _)| takes_all || at % SHARES == share).map(|(_, kernel)| kernel)
    }

    fn size(&self, name: &str) -> i64 {
        match name {
            "M" => self.rows,
            "folded_rows" => self.folded,
            "N" => self.columns,
            "K" => self.columns + 3,
            "H" => 4,
            "G" => 2,
            "D" | "E" => D,
            "C" => D / 2,
            _ => 1,
        }
    }

    fn extent(&self, kernel: &Kernel, size: &SizeExpr) -> usize {
        size.eval(|id| Some(self.size(kernel.size_name(id)))).expect("every size has a value") as usize
    }

    /// The inputs of a kernel, by name.
    fn inputs(&self, kernel: &Kernel) -> Tensors {
        let mut state = self.seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        let mut tensors = Tensors::new();
        for param in kernel.params.values() {
            let ParamKind::Tensor(decl) = &param.kind else { continue };
            if !decl.direction.is_read() {
                continue;
            }
            let shape: Vec<usize> = decl.shape.iter().map(|s| self.extent(kernel, s)).collect();
            // What is of the kernel's own type is f32 here.
            let elem = if let Elem::Generic(_) = decl.elem { Elem::F32 } else { decl.elem };
            let count = shape.iter().product();
            let value = |x: f64| match elem {
                Elem::Bool => f64::from(x > 0.0),
                Elem::U8 => 1.0 + x.abs() * 2.5,
                // Some integers divide.
                elem if elem.is_integer() && (x * 2.5).trunc() == 0.0 => 3.0,
                elem if elem.is_integer() => x * 2.5,
                _ => x * 3.0,
            };
            let values: Vec<f64> = (0..count).map(|_| value(next())).collect();
            tensors.insert(param.name.clone(), HostTensor::from_f64(elem, &shape, &values));
        }
        tensors
    }

    /// Executes all programs of a kernel on tensors found by name; adds the outputs to them, NaN where nothing was stored.
    fn run<A: Arithmetic>(&self, kernel: &Kernel, tensors: &mut Tensors, arithmetic: A) {
        verify(kernel).unwrap_or_else(|errors| panic!("{errors:?}\n{kernel}"));
        let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), D));
        let binding = Binding::new(kernel, Elem::F32, consts);
        let sizes: Vec<i64> = kernel.sizes.values().map(|s| self.size(&s.name)).collect();
        let arguments: Vec<Argument<'_>> = kernel
            .params
            .values()
            .map(|p| match &p.kind {
                ParamKind::Scalar(Elem::I32) => Argument::I32(self.integer),
                ParamKind::Scalar(_) => Argument::F32(0.7),
                ParamKind::Tensor(t) if t.direction == Direction::Out => Argument::Output,
                ParamKind::Tensor(_) => Argument::Input(tensors[&p.name].view()),
            })
            .collect();
        let grid = |axis| kernel.grid().contains(&flashtile_dsl::ir::ProgramDim::Tiles(axis));
        let blocks = kernel.axes.keys().map(|axis| if grid(axis) { self.blocks.0 } else { self.blocks.1 }).collect();
        let interpreter = Interpreter::new(kernel, &binding, &sizes, &Blocks::PerAxis(blocks), &arguments, arithmetic)
            .unwrap_or_else(|e| panic!("{e}"));
        let mut outputs = Tensors::new();
        for (id, param) in kernel.params.iter() {
            let shape = interpreter.shape(id);
            if matches!(&param.kind, ParamKind::Tensor(t) if t.direction.is_written()) {
                let nothing = || HostTensor::from_f64(Elem::F32, shape, &vec![f64::NAN; shape.iter().product()]);
                // What is read and written keeps what is not stored to.
                let before =
                    matches!(&param.kind, ParamKind::Tensor(t) if t.direction.is_read()).then(|| tensors[&param.name].clone());
                outputs.insert(param.name.clone(), before.unwrap_or_else(nothing));
            }
        }
        for program in 0..interpreter.programs() {
            for stored in interpreter.run(program).unwrap_or_else(|e| panic!("{e}")) {
                let shape = interpreter.shape(stored.param);
                let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
                let to = outputs.get_mut(&kernel.params[stored.param].name).expect("an output");
                stored.write(Elem::F32, &strides, to.memory_mut());
            }
        }
        tensors.append(&mut outputs);
    }

    /// Where the outputs of the kernel and of its launches differ by more than rounding.
    fn difference<A: Arithmetic + Clone>(&self, kernel: &Kernel, launches: &[&Kernel], arithmetic: A) -> Option<String> {
        let inputs = self.inputs(kernel);
        self.difference_on(kernel, &inputs, launches, inputs.clone(), arithmetic)
    }

    /// The same, with the inputs as the launches see them.
    fn difference_on<A: Arithmetic + Clone>(
        &self,
        kernel: &Kernel,
        inputs: &Tensors,
        launches: &[&Kernel],
        seen: Tensors,
        arithmetic: A,
    ) -> Option<String> {
        let (mut whole, mut parts) = (inputs.clone(), seen);
        self.run(kernel, &mut whole, arithmetic.clone());
        launches.iter().for_each(|launch| self.run(launch, &mut parts, arithmetic.clone()));
        whole.iter().find_map(|(name, tensor)| {
            let (a, b) = (tensor.to_f64(), parts[name].to_f64());
            // States are f32, and a small sum may be one of large terms.
            let largest = a.iter().filter(|x| x.is_finite()).fold(1.0, |most: f64, x| most.max(x.abs()));
            let same = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 2e-5 * (1.0 + largest);
            let at = a.iter().zip(&b).position(|(&x, &y)| !same(x, y))?;
            Some(format!("{name}[{at}] is {} and {}", a[at], b[at]))
        })
    }
}

/// Kernels with computed tiles whose rows get an axis of the grid.
fn without_row_axes() -> Vec<Kernel> {
    let own = parse(include_str!("../filetests/generated/states.ft"));
    kernels().into_iter().chain(own).filter(|kernel| with_row_axes(kernel) != *kernel).collect()
}

/// The launches of a stage, in order; their numbers ahead and behind are as given.
fn launched(made: &Staged, ahead: usize, behind: usize) -> Vec<&Kernel> {
    assert_eq!((made.ahead.len(), made.behind.len()), (ahead, behind), "{}", made.main);
    made.kernels().collect()
}

/// Walks parts, and merges them.
fn halves(split: &Staged) -> Vec<&Kernel> {
    launched(split, 0, 1)
}

/// Stores the initial state, walks the loop outside, and does what follows it.
fn three(made: &Staged) -> Vec<&Kernel> {
    launched(made, 1, 1)
}

fn calls() -> impl Strategy<Value = Call> {
    let drawn = (1i64..20, 0i64..40, (1usize..9, 1usize..9), 1i32..12, any::<u64>(), 0..SHARES);
    drawn.prop_map(|(rows, columns, blocks, integer, seed, share)| Call {
        rows,
        columns,
        folded: 0,
        blocks,
        integer,
        seed,
        share,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_halves_mean_the_whole(call in calls(), count in prop_oneof![2u32..6, Just(32)]) {
        for kernel in call.some(looping()) {
            let split = split(&kernel, count, Fixup::Kernel).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            prop_assert_eq!(call.difference(&kernel, &halves(&split), Exact64), None, "{} in {}", kernel.name, count);
            prop_assert_eq!(call.difference(&kernel, &halves(&split), Ir32), None, "{} in {}", kernel.name, count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Loops that hand their values on are one walk, of which parts of the outer one are parts.
    #[test]
    fn parts_of_pages_mean_the_whole(call in calls(), count in prop_oneof![2u32..6, Just(32)]) {
        let plain = "pages = pages + 1.0;";
        let short = "c * N + pos(j) < len";
        for (start, once, seen) in [
            (NOTHING_SEEN, plain, short),
            (NOTHING_SEEN, "pages += load(sinks, [i]);", "pos(j) + len < c * N + pos(i)"),
            (SINKS, plain, short),
            (SINKS, plain, "pos(j) % len == c"),
        ] {
            let kernel = parse(&pages(start, seen, once)).remove(0);
            let parts = split(&kernel, count, Fixup::Kernel).unwrap_or_else(|why| panic!("{why}\n{kernel}"));
            prop_assert_eq!(call.difference(&kernel, &halves(&parts), Exact64), None, "{} in {}", kernel, count);
            prop_assert_eq!(call.difference(&kernel, &halves(&parts), Ir32), None, "{} in {}", kernel, count);
            let joined = split(&kernel, count, Fixup::Semaphore).unwrap_or_else(|why| panic!("{why}\n{kernel}"));
            prop_assert_eq!(call.difference(&kernel, &[&joined.main], Exact64), None, "{} in {}", kernel, count);
        }
    }
}

#[test]
fn pages_whose_parts_are_no_parts_of_a_walk_are_refused() {
    let short = "c * N + pos(j) < len";
    let why =
        |start: &str, once: &str, seen: &str| why_not_split(&parse(&pages(start, seen, once)).remove(0)).expect("has no parts");
    // Something of the whole walk is read once a page, or a page starts anew.
    assert!(why(NOTHING_SEEN, "pages = pages + l;", short).contains("`pages` is no streaming reduction"));
    assert!(why(NOTHING_SEEN, "l = l * 0.5;", short).contains("is no streaming reduction"));
    assert!(why(NOTHING_SEEN, "m = full(i, -INF);", short).contains("is no streaming reduction"));
    // What is hidden depends on the count of pages.
    assert!(why(NOTHING_SEEN, "pages = pages + 1.0;", "pages < len").contains("is no streaming reduction"));
    // What is stored tells whether a row began at its sink.
    let told = pages(SINKS, short, "").replace("pages + load(sinks, [i])", "l");
    let why = why_not_split(&parse(&told).remove(0)).expect("the store tells");
    assert!(why.contains("`count` of a row that sees nothing depends on what `l` starts from"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_of_parts_mean_the_whole(call in calls(), count in prop_oneof![Just(4u32), Just(6), Just(32)]) {
        for kernel in call.some(looping()) {
            let made = split(&kernel, count, Fixup::Tree).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            let launches = launched(&made, 0, 2);
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} in {}", kernel.name, count);
            prop_assert_eq!(call.difference(&kernel, &launches, Ir32), None, "{} in {}", kernel.name, count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tiles_of_rows_mean_the_whole(call in calls(), count in 2u32..4) {
        let kernels = without_row_axes();
        prop_assert!(kernels.len() > 5, "{} kernels", kernels.len());
        for kernel in call.some(kernels) {
            let with = with_row_axes(&kernel);
            prop_assert_eq!(call.difference(&kernel, &[&with], Exact64), None, "{}", kernel.name);
            // The rewrites go together.
            let made = precompute(&with, Sides::Both).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            let mut launches: Vec<&Kernel> = made.kernels().collect();
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{}", kernel.name);
            let split = split(&made.main, count, Fixup::Kernel).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            launches.pop();
            launches.extend(halves(&split));
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} in {}", kernel.name, count);
        }
    }

    #[test]
    fn transposed_operands_mean_the_same(call in calls(), count in 1u32..4) {
        for kernel in call.some(kernels()).filter(|k| why_not_pretranspose(k).is_none()) {
            let made = pretranspose(&kernel).expect("something is transposed");
            let mut launches: Vec<&Kernel> = made.ahead.iter().chain([&made.main]).collect();
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{}", kernel.name);
            // The rewrites go together.
            let split = split(&made.main, count, Fixup::Kernel).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            launches.pop();
            launches.extend(halves(&split));
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} in {}", kernel.name, count);
        }
    }
}

/// No product, and so no tile in shared memory: what is carried is a column of sums and the largest element.
const ROWS: &str = "
pub fn rows<T: Element>(x: &Tensor<T, (H, M, N)>, weight: &Tensor<T, (N)>, o: &mut Tensor<f32, (H, M)>, top: &mut Tensor<f32, (H, M)>) {
    let (h, i) = program(H, tiles(M));
    let mut sum = full(i, 2.0);
    let mut m = full(i, -INF);
    for j in tiles(N) {
        let x_ij = load(x, [h, i, j]) * load(weight, [j]);
        sum = sum + rowsum(x_ij);
        m = max(m, rowmax(x_ij));
    }
    store(o, [h, i], sum);
    store(top, [h, i], m);
}";

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_that_merge_parts_mean_the_whole(call in calls(), count in prop_oneof![2u32..6, Just(32)]) {
        for kernel in call.some(looping()) {
            let joined = split(&kernel, count, Fixup::Semaphore).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            prop_assert!(joined.meets);
            let launches = launched(&joined, 0, 0);
            prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} in {}", kernel.name, count);
            prop_assert_eq!(call.difference(&kernel, &launches, Ir32), None, "{} in {}", kernel.name, count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn operands_computed_ahead_mean_the_same(call in calls(), count in 1u32..4) {
        let able = |kernel: &Kernel| [Sides::Right, Sides::Both].iter().any(|sides| precompute(kernel, *sides).is_ok());
        let kernels: Vec<Kernel> = looping().into_iter().filter(able).collect();
        prop_assert!(kernels.len() >= SHARES, "{} kernels", kernels.len());
        for kernel in call.some(kernels) {
            for sides in [Sides::Right, Sides::Both] {
                let Ok(made) = precompute(&kernel, sides) else { continue };
                let mut launches: Vec<&Kernel> = made.ahead.iter().chain([&made.main]).collect();
                prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} {:?}", kernel.name, sides);
                prop_assert_eq!(call.difference(&kernel, &launches, Ir32), None, "{} {:?}", kernel.name, sides);
                // The rewrites go together.
                let split = split(&made.main, count, Fixup::Kernel).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
                launches.pop();
                launches.extend(halves(&split));
                prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{} in {}", kernel.name, count);
            }
        }
    }
}

/// Keys alone are two tensors; with the queries the products of the halves are one, and so are the tensors.
#[test]
fn products_of_halves_computed_ahead_are_one() {
    let kernel = parse(include_str!("../../runtime/kernels/causal_rope_attention.rs")).remove(0);
    let right = precompute(&kernel, Sides::Right).expect("keys are rotated");
    assert_eq!(right.between, ["k_rot1_all", "k_rot2_all"]);
    assert_eq!((right.ahead.len(), right.main.to_string().matches("= dot %").count()), (1, 3));
    let both = precompute(&kernel, Sides::Both).expect("queries are rotated too");
    assert_eq!(both.between, ["k_rot1_k_rot2_all", "q_rot1_q_rot2_all"]);
    let text = both.main.to_string();
    assert_eq!((both.ahead.len(), text.matches("= dot %").count()), (2, 2), "{text}");
    assert!(text.contains("param q_rot1_q_rot2_all: &tensor<T, (B, H, M, D)>") && !text.contains("param cos_"), "{text}");
    let plain = parse(KERNELS[0]).remove(0);
    let why = |sides| why_not_precompute(&plain, sides).expect("nothing is computed ahead");
    assert_eq!(why(Sides::Right), "no right operand is computed, and no row of a loop reduced");
    // The left operands are queries, which are loaded, and probabilities.
    assert!(why(Sides::Both).contains("which is not elementwise"), "{}", why(Sides::Both));
}

/// An index that is one number for all programs is no dimension of what is computed ahead.
#[test]
fn operands_are_computed_ahead_for_the_indices_of_programs_alone() {
    let asked = |text: &str| {
        let kernel = text.trim_end().strip_prefix("flash_kernel! {").and_then(|text| text.strip_suffix('}'));
        parse(kernel.expect("one kernel")).remove(0)
    };
    for (text, name, decl) in [
        (include_str!("../asked/cache_of_layer.rs"), "k_j_all", "(B, H, N, D)"),
        (include_str!("../asked/packed_norm.rs"), "k_j_all", "(B, H, N, D)"),
        (include_str!("../asked/packed_rope.rs"), "k1_all", "(B, H, N, D / 2)"),
    ] {
        let made = precompute(&asked(text), Sides::Right).unwrap_or_else(|why| panic!("{why}"));
        let main = made.main.to_string();
        assert!(main.contains(&format!("param {name}: &tensor<T, {decl}>")), "{main}");
    }
}

/// A sum that is more than two products keeps what it is added to; halves of different products stay apart.
#[test]
fn only_products_of_the_same_rows_and_columns_are_joined() {
    let text = include_str!("../../runtime/kernels/causal_rope_attention.rs");
    let joined = |text: &str| {
        let kernel = parse(text).remove(0);
        precompute(&kernel, Sides::Both).expect("is computed").between.len() == 2
    };
    assert!(joined(text));
    // One half alone is scaled, so that the sum is none of products.
    assert!(!joined(&text.replace("dot(q_rot2, k_rot2.t()))", "dot(q_rot2, k_rot2.t()) * 0.5)")));
    // Something else reads one product.
    let read_twice =
        text.replace("let s = (dot(q_rot1, k_rot1.t()) +", "let half = dot(q_rot1, k_rot1.t());\n let s = (half + half +");
    assert!(read_twice != text && !joined(&read_twice));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exchanged_loops_mean_the_same(call in calls()) {
        let able: Vec<Kernel> =
            kernels().into_iter().chain(parse(ROWS)).filter(|k| why_not_interchange(k).is_none()).collect();
        for name in ["attention", "causal_attention", "sink", "plain", "rows"] {
            prop_assert!(able.iter().any(|kernel| kernel.name == name), "{} is not among those", name);
        }
        for kernel in call.some(able) {
            let made = interchange(&kernel).expect("it can be");
            prop_assert_eq!(call.difference(&kernel, &three(&made), Exact64), None, "{}", kernel.name);
            prop_assert_eq!(call.difference(&kernel, &three(&made), Ir32), None, "{}", kernel.name);
            if why_not_pretranspose(&kernel).is_none() {
                // The rewrites go together.
                let transposed = pretranspose(&kernel).expect("something is transposed");
                let made = interchange(&transposed.main).expect("it can be");
                let launches: Vec<&Kernel> = transposed.ahead.iter().chain(three(&made)).collect();
                prop_assert_eq!(call.difference(&kernel, &launches, Exact64), None, "{}", kernel.name);
            }
        }
    }
}

/// One head of keys for all heads of queries, and a bias that has rows of heads too.
const ONE_HEAD_OF_KEYS: &str = "
pub fn one_head_of_keys<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, bias: &Tensor<T, (H, M, N)>,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let q_i = load(q, [b, h, i, ..]);
    let mut sum = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, j, ..]).t()) + load(bias, [h, i, j]);
        sum = sum + dot(s.to::<T>(), load(v, [b, j, ..]));
    }
    store(o, [b, h, i, ..], sum);
}";

/// Groups of two heads, by a number and by sizes; what the text computes of sizes and keys stays as it is.
const PAIRS: &str = "
pub fn pairs<T: Element, const D: usize>(q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (G, N, D)>, o: &mut Tensor<f32, (H, M)>) {
    let (h, i) = program(H, tiles(M));
    let q_i = load(q, [h, i, ..]);
    let mut sum = zeros(i);
    for j in tiles(N) {
        let s = dot(q_i, load(k, [h / 2, j, ..]).t());
        sum = sum + rowsum(select(pos(j) < M, s, 0.5 * s));
    }
    store(o, [h, i], sum);
}";

fn foldable_kernels() -> Vec<Kernel> {
    let by_quotient = PAIRS.replace("h / 2", "h / (H / G)");
    let own = [ONE_HEAD_OF_KEYS, PAIRS, &by_quotient].into_iter().flat_map(parse);
    kernels().into_iter().chain(own).filter(|k| why_not_fold(k).is_none()).collect()
}

/// A kernel with folded rows.
struct Fold {
    call: Call,
    kernel: Kernel,
    rows: FoldedRows,
}

impl Fold {
    fn new(kernel: &Kernel, call: &Call) -> Self {
        let made = fold(kernel).expect("it can be");
        let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), D));
        let folded = made.folded.expect("rows are folded");
        let rows = folded.rows(&made.main, &Binding::new(kernel, Elem::F32, consts));
        let folded = rows.sizes(|name| Some(call.size(name))).expect("4 heads are in groups of as many").folded;
        Self { call: Call { folded, ..call.clone() }, kernel: made.main, rows }
    }

    /// Inputs of the kernel, with `gap` elements behind each row of matrices, and how the folded kernel sees them.
    fn inputs(&self, kernel: &Kernel, gap: usize) -> (Tensors, Tensors) {
        let mut own = self.call.inputs(kernel);
        // Rows that are a tensor's last dimension have no gaps.
        let ends_in_rows = |name: &str, t: &HostTensor| {
            self.rows.tensors.iter().any(|(folded, at)| folded == name && *at as usize + 2 == t.shape.len())
        };
        for (_, tensor) in own.iter_mut().filter(|(name, t)| t.shape.len() > 2 && !ends_in_rows(name, t)) {
            let mut spread = HostTensor::packed(tensor.elem, &tensor.shape);
            let mut step = tensor.shape.last().expect("a dimension") + gap;
            for (stride, extent) in spread.strides.iter_mut().zip(&tensor.shape).rev().skip(1) {
                *stride = step;
                step *= extent;
            }
            spread.bytes = vec![0; step.max(1) * 4];
            spread.write_f64(&tensor.to_f64());
            *tensor = spread;
        }
        let sizes = self.rows.sizes(|name| Some(self.call.size(name))).expect("they fold");
        let mut seen = own.clone();
        for (name, dimension) in &self.rows.tensors {
            let Some(tensor) = seen.get_mut(name) else { continue };
            let at = *dimension as usize;
            let strides = [tensor.strides[at], tensor.strides[at + 1]];
            let pair = FoldedRows::strides(sizes, strides, at + 2 == tensor.shape.len()).expect("rows are evenly apart");
            tensor.strides[at..at + 2].copy_from_slice(&pair);
            tensor.shape[at..at + 2].copy_from_slice(&[sizes.groups as usize, sizes.folded as usize]);
        }
        (own, seen)
    }

    fn difference<A: Arithmetic + Clone>(
        &self,
        kernel: &Kernel,
        gap: usize,
        launches: &[&Kernel],
        arithmetic: A,
    ) -> Option<String> {
        let (own, seen) = self.inputs(kernel, gap);
        self.call.difference_on(kernel, &own, launches, seen, arithmetic)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn folded_rows_mean_the_same(call in calls(), gap in 0usize..3, count in 1u32..4) {
        let able = foldable_kernels();
        for name in ["attention", "causal_attention", "split_dims", "one_head_of_keys", "pairs"] {
            prop_assert!(able.iter().any(|kernel| kernel.name == name), "{} is not among those", name);
        }
        for kernel in call.some(able) {
            let folded = Fold::new(&kernel, &call);
            let main = &folded.kernel;
            prop_assert_eq!(folded.difference(&kernel, gap, &[main], Exact64), None, "{}", kernel.name);
            prop_assert_eq!(folded.difference(&kernel, gap, &[main], Ir32), None, "{}", kernel.name);
            // The rewrites go together.
            if let Ok(parts) = split(main, count, Fixup::Kernel) {
                prop_assert_eq!(folded.difference(&kernel, gap, &halves(&parts), Exact64), None, "{} in {}", kernel.name, count);
                let joined = split(main, count, Fixup::Cluster).expect("as the other");
                prop_assert_eq!(folded.difference(&kernel, gap, &[&joined.main], Exact64), None, "{} in {}", kernel.name, count);
            }
            if let Ok(made) = interchange(main) {
                prop_assert_eq!(folded.difference(&kernel, gap, &three(&made), Exact64), None, "{}", kernel.name);
            }
            if let Ok(made) = pretranspose(main) {
                let launches: Vec<&Kernel> = made.ahead.iter().chain([&made.main]).collect();
                prop_assert_eq!(folded.difference(&kernel, gap, &launches, Exact64), None, "{}", kernel.name);
            }
        }
    }
}

#[test]
fn folded_rows_have_a_text_form() {
    for kernel in foldable_kernels() {
        let made = fold(&kernel).expect("it can be");
        let text = made.main.to_string();
        let again = parse_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(again, made.main.without_spans(), "\n{text}");
        assert!(text.contains("axis i: program over folded_rows") && !text.contains("index.div"), "{text}");
    }
    let made = fold(&parse(KERNELS[0]).remove(0)).expect("it can be");
    assert_eq!(made.folded.expect("rows are folded").tensors, [("q".to_owned(), 1), ("o".to_owned(), 1), ("lse".to_owned(), 1)]);
    let one = fold(&parse(ONE_HEAD_OF_KEYS).remove(0)).expect("it can be");
    let text = one.main.to_string();
    assert!(text.contains("= program B, 1, tiles(i)  ; b, h_group, i"), "{text}");
    let pairs = fold(&parse(PAIRS).remove(0)).expect("it can be").main.to_string();
    assert!(pairs.contains("= program H / 2, tiles(i)"), "{pairs}");
}

/// The model folds the rows of few queries, which a head alone does not fill a tile with, and of no others.
#[test]
fn the_model_folds_few_rows() {
    let arch = Arch::named("sm_90a").expect("in the table");
    let ranker = |text: &str, foldable: bool| {
        let kernel = parse(text).remove(0);
        let binding = Binding::new(&kernel, Elem::Bf16, [("D", 128)]);
        let facts = Facts { foldable, ..Facts::best(&kernel) };
        Ranker::new(&Instance { facts, kernel, binding }, arch)
    };
    let chosen = |ranker: &Ranker, rows: i64, groups: i64| {
        let sizes = [("B", 1), ("H", 64), ("G", groups), ("M", rows), ("N", 32768)].map(|(name, size)| (name.to_owned(), size));
        let ranked = ranker.rank(&BTreeMap::from(sizes), &Machine::typical(arch)).expect("ranks");
        let knob = KNOBS.iter().find(|knob| knob.name == "pack_gqa").expect("a knob of the table");
        (knob.get)(&ranked[0].0)
    };
    let full = ranker(KERNELS[0], true);
    assert_eq!(chosen(&full, 1, 8), "on");
    assert_eq!(chosen(&full, 5, 8), "on");
    assert_eq!(chosen(&ranker(KERNELS[0], false), 1, 8), "off", "the arguments do not let it");
    assert_eq!(chosen(&full, 4096, 8), "off", "every head has full tiles");
    assert_eq!(chosen(&full, 1, 64), "off", "no head shares its keys");
    assert_eq!(chosen(&full, 1, 7), "off", "64 heads in 7 groups");
    assert_eq!(chosen(&ranker(KERNELS[1], false), 1, 8), "off", "a causal mask");
}

/// Of walks that the model takes for equal: from the nearest keys where scores fall with the
/// distance, from the last tile and then upwards without a mask, else upwards.
#[test]
fn the_walk_of_an_untuned_loop_follows_where_scores_are_largest() {
    let arch = Arch::named("sm_90a").expect("in the table");
    let walk = |name: &str| {
        let kernel = flashtile::Kernel::builtin(name).expect("built in").ir().clone();
        let binding = Binding::new(&kernel, Elem::Bf16, [("D", 128)]);
        let sizes = [("B", 1), ("H", 64), ("G", 64), ("M", 4096), ("N", 4096), ("R", 512)];
        let sizes = sizes.map(|(name, size)| (name.to_owned(), size));
        let instance = Instance { facts: Facts::best(&kernel), kernel, binding };
        let schedule = default_schedule(&instance, arch, &BTreeMap::from(sizes), &Machine::typical(arch)).expect("there is one");
        schedule.main.walk
    };
    assert_eq!(walk("alibi_attention"), Walk::Descending);
    assert_eq!(walk("causal_attention"), Walk::LastFirst);
    assert_eq!(walk("document_attention"), Walk::Ascending);
    assert_eq!(walk("attention"), Walk::LastFirst);
    // Positions that choose a number, and are none themselves.
    assert_eq!(walk("relative_attention"), Walk::LastFirst);
}

/// The comparison can fail: folded rows with a fault give something else.
#[test]
fn faults_in_folded_rows_are_noticed() {
    let kernel = parse(KERNELS[0]).remove(0);
    let call = Call { rows: 9, columns: 21, folded: 0, blocks: (4, 3), integer: 2, seed: 7, share: 0 };
    let right = Fold::new(&kernel, &call);
    assert_eq!(right.difference(&kernel, 0, &[&right.kernel], Exact64), None);
    let fewer = Fold { call: Call { folded: call.rows, ..call.clone() }, ..Fold::new(&kernel, &call) };
    let (own, mut seen) = right.inputs(&kernel, 0);
    for (name, dimension) in &right.rows.tensors {
        if let Some(tensor) = seen.get_mut(name) {
            tensor.shape[*dimension as usize + 1] = call.rows as usize;
        }
    }
    let difference = fewer.call.difference_on(&kernel, &own, &[&right.kernel], seen, Exact64);
    assert!(difference.is_some(), "the rows of the first head of each group alone");
    let (own, mut seen) = right.inputs(&kernel, 0);
    let q = seen.get_mut("q").expect("an input");
    q.strides[1] /= 2;
    let difference = right.call.difference_on(&kernel, &own, &[&right.kernel], seen, Exact64);
    assert!(difference.is_some(), "the stride of a head in the place of that of a group");
}

#[test]
fn exchanged_loops_have_a_text_form() {
    for kernel in kernels().into_iter().filter(|k| why_not_interchange(k).is_none()) {
        let made = interchange(&kernel).expect("it can be");
        for launch in three(&made) {
            let text = launch.to_string();
            let again = parse_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(again, launch.without_spans(), "\n{text}");
        }
    }
    let made = interchange(&parse(KERNELS[1]).remove(0)).expect("it can be");
    assert_eq!(made.between, ["m_state", "l_state", "acc_state"]);
    let text = made.main.to_string();
    assert!(text.contains("param acc_state: &inout tensor<f32, (B, H, M, D)>") && text.contains("axis i: loop over M"), "{text}");
    let (keys, rows) = (text.find("= load_tile v[").expect("V"), text.find("= load_tile q[").expect("Q"));
    let inner = text.find("  for i () {").unwrap_or_else(|| panic!("a loop over rows\n{text}"));
    assert!(keys < inner && inner < rows, "V is loaded outside, Q inside\n{text}");
}

/// The comparison can fail: launches with a fault give something else.
#[test]
fn faults_in_exchanged_loops_are_noticed() {
    let kernel = parse(KERNELS[1]).remove(0);
    let call = Call { rows: 9, columns: 21, folded: 0, blocks: (4, 3), integer: 2, seed: 7, share: 0 };
    let right = interchange(&kernel).expect("it can be");
    assert_eq!(call.difference(&kernel, &three(&right), Exact64), None);
    let mut wrong = right.clone();
    edit(&mut wrong.ahead[0], |_, op| {
        if let Op::Constant(_, c) = op {
            *c = 1.0;
        }
    });
    assert!(call.difference(&kernel, &three(&wrong), Exact64).is_some(), "another initial state");
    let mut wrong = right.clone();
    edit(&mut wrong.main, |_, op| {
        if let Op::Binary(BinaryOp::Max, _, b) = *op {
            *op = Op::Binary(BinaryOp::Max, b, b);
        }
    });
    assert!(call.difference(&kernel, &three(&wrong), Exact64).is_some(), "the maximum of the state is forgotten");
}

#[test]
fn loops_that_cannot_be_exchanged_say_why() {
    let why = |text: &str| why_not_interchange(&parse(text).remove(0)).expect("cannot be exchanged");
    assert_eq!(why(include_str!("../../runtime/kernels/row_softmax.rs")), "the kernel has 2 loops, and not one");
    let product = include_str!("../../runtime/kernels/matmul_gelu.rs");
    assert_eq!(why(product), "the grid has 2 tiled dimensions, and not one");
    assert_eq!(why(include_str!("../../runtime/kernels/rotate.rs")), "the kernel has 0 loops, and not one");
    let none = "
        pub fn none<T: Element>(x: &Tensor<T, (M, N)>, o: &mut Tensor<T, (M, N)>) {
            let i = program(tiles(M));
            for j in tiles(N) {
                store(o, [i, j], load(x, [i, j]));
            }
        }";
    assert_eq!(why(none), "the loop stores");
    let shared = "
        pub fn shared<T: Element>(x: &Tensor<T, (M, N)>, o: &mut Tensor<f32, (M)>) {
            let i = program(tiles(M));
            let mut sum = zeros(i);
            let mut all = 0.0;
            for j in tiles(N) {
                sum = sum + rowsum(load(x, [i, j]));
                all = all + 1.0;
            }
            store(o, [i], sum + all);
        }";
    assert_eq!(why(shared), "`all` does not have the grid's axis `i`");
}

/// What launches leave to each other is read and written too.
#[test]
fn bytes_of_all_launches_are_counted() {
    let kernel = parse(KERNELS[0]).remove(0);
    let (h, m, n, d) = (2u64, 64u64, 96u64, 32u64);
    let sizes = [("B", 1), ("H", h), ("G", 1), ("M", m), ("N", n)].map(|(name, size)| (name.to_owned(), size as i64));
    let sizes = BTreeMap::from(sizes);
    let binding = Binding::new(&kernel, Elem::F32, [("D", d as i64)]);
    let instance = Instance { facts: Facts::best(&kernel), binding: binding.clone(), kernel };
    let bytes = |knobs: &str| {
        let schedule =
            format!("tensor_op=ffma,block_m=32,block_n=32,warps=2,copy=sync,stages=1,{knobs}").parse().expect("a schedule");
        let generated = generate(&instance, &schedule, Arch::named("sm_80").expect("in the table")).expect("legal");
        let work = generated.executed(&binding, &sizes);
        (work.read, work.written)
    };
    let (q, keys, output) = (4 * h * m * d, 4 * n * d, 4 * h * m * (d + 1));
    // m, l and acc.
    let state = 4 * h * m * (d + 2);
    let (row_tiles, key_tiles) = (m / 32, n / 32);
    let streamed = h * row_tiles * 2 * keys;
    assert_eq!(bytes(""), (q + streamed, output));
    assert_eq!(bytes("b_layout=pretransposed"), (q + streamed + keys, output + keys));
    assert_eq!(bytes("split_k=2"), (2 * q + streamed + 2 * state, output + 2 * state));
    // K and V once a head; Q and the state once for every tile of keys.
    let exchanged = (h * 2 * keys + key_tiles * (q + state) + state, output + state + key_tiles * state);
    assert_eq!(bytes("loop_order=interchanged"), exchanged);
    // Both heads read the keys of one group: 128 rows of it instead of 64 of each, in 4 tiles either way; with tiles of 128 once.
    assert_eq!(bytes("pack_gqa=on"), (q + streamed, output));
    assert_eq!(bytes("pack_gqa=on,block_m=128,warps=8"), (q + 2 * keys, output));
}

#[test]
fn keys_are_transposed_and_values_are_not() {
    let kernel = parse(KERNELS[1]).remove(0);
    let made = pretranspose(&kernel).expect("K is");
    assert_eq!(made.between, ["k_transposed"]);
    let text = made.main.to_string();
    assert!(text.contains("param k_transposed: &tensor<T, (B, G, D, N)>") && !text.contains("transpose %"), "{text}");
    assert!(text.contains("load_tile k_transposed[%0, ") && text.contains(", 0 .. D, tile %"), "{text}");
    let text = made.ahead[0].to_string();
    assert!(text.starts_with("kernel causal_attention_transpose_k {"), "{text}");
    assert!(text.contains("= program B, G, tiles(row)"), "{text}");
    // A product without a transpose, and a tensor that something else reads too.
    let product = parse(include_str!("../../runtime/kernels/matmul_gelu.rs")).remove(0);
    assert!(why_not_pretranspose(&product).is_some());
    let both = PLAIN.replace("load(v, [j, ..])", "load(k, [j, ..])");
    assert!(why_not_pretranspose(&parse(&both.replace("v: &Tensor<T, (N, D)>, ", "")).remove(0)).is_some());
}

#[test]
fn the_halves_have_a_text_form() {
    for kernel in looping() {
        let [parts, joined] = [Fixup::Kernel, Fixup::Semaphore].map(|combine| split(&kernel, 4, combine).expect("splits"));
        for half in parts.kernels().chain(joined.kernels()) {
            let text = half.to_string();
            let again = parse_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(again, half.without_spans(), "\n{text}");
        }
        assert!(parts.main.to_string().contains(" part %0 of 4 ("), "{}", parts.main);
        assert!(parts.behind[0].to_string().contains("axis part: each over 4"), "{}", parts.behind[0]);
    }
}

/// The comparison can fail: halves with a fault give something else.
#[test]
fn faults_in_the_halves_are_noticed() {
    let kernel = parse(KERNELS[1]).remove(0);
    let call = Call { rows: 9, columns: 21, folded: 0, blocks: (4, 3), integer: 2, seed: 7, share: 0 };
    let right = split(&kernel, 3, Fixup::Kernel).expect("splits");
    assert_eq!(call.difference(&kernel, &halves(&right), Exact64), None);
    type Plant = fn(&mut Kernel, &mut Op);
    let combine: [(&str, Plant); 3] = [
        ("what is kept is not rescaled", |k, op| {
            if let Op::Binary(BinaryOp::Mul, a, b) = op
                && k.values[*b].name.as_deref() == Some("kept")
            {
                *op = Op::Binary(BinaryOp::Add, *a, *a);
            }
        }),
        ("the larger maximum is not taken", |_, op| {
            if let Op::Binary(BinaryOp::Max, a, b) = *op {
                *op = Op::Binary(BinaryOp::Min, a, b);
            }
        }),
        ("parts replace each other", |k, op| {
            if let Op::Binary(BinaryOp::Add, _, b) = *op
                && k.tile(b).rank() == 2
            {
                *op = Op::Binary(BinaryOp::Max, b, b);
            }
        }),
    ];
    for (what, plant) in combine {
        let mut wrong = right.clone();
        edit(&mut wrong.behind[0], plant);
        assert!(call.difference(&kernel, &halves(&wrong), Exact64).is_some(), "{what}");
    }
    let mut wrong = right.clone();
    edit(&mut wrong.main, |_, op| {
        if let Op::For { part, .. } = op {
            *part = None;
        }
    });
    assert!(call.difference(&kernel, &halves(&wrong), Exact64).is_some(), "every part walks all tiles");
}

#[test]
fn faults_where_programs_merge_parts_are_noticed() {
    let kernel = parse(KERNELS[1]).remove(0);
    let call = Call { rows: 9, columns: 21, folded: 0, blocks: (4, 3), integer: 2, seed: 7, share: 0 };
    let right = split(&kernel, 3, Fixup::Cluster).expect("splits").main;
    assert_eq!(call.difference(&kernel, &[&right], Exact64), None);
    // Every program takes its own state for that of every part: then what it stores is not the same in all.
    let mut wrong = right.clone();
    edit(&mut wrong, |_, op| {
        if let Op::OfPart { part, at, .. } = op {
            *at = *part;
        }
    });
    let errors = verify(&wrong).expect_err("programs store different states to one place");
    assert!(errors.iter().any(|e| e.message.contains("is not addressed by `part`")), "{errors:?}");
    // And what another program computes must be of the kernel's body, by the number of a program.
    let text = right.to_string().replace("of_part %", "of_part %0, %0, %0 ; %");
    assert!(parse_text(&text).is_err() || verify(&parse_text(&text).expect("parses")).is_err());
}

fn edit(kernel: &mut Kernel, plant: fn(&mut Kernel, &mut Op)) {
    for (_, id) in kernel.walk() {
        let mut op = kernel.ops[id].op.clone();
        plant(kernel, &mut op);
        kernel.ops[id].op = op;
    }
}

#[test]
fn what_cannot_be_split_says_why() {
    let why = |text: &str| why_not_split(&parse(text).remove(0)).expect("cannot be split");
    assert_eq!(why(include_str!("../../runtime/kernels/row_softmax.rs")), "the kernel has 2 loops, and not one");
    let plain_masked = PLAIN
        .replace("let s = dot(q_i, load(k, [j, ..]).t());", "let s = mask(dot(q_i, load(k, [j, ..]).t()), pos(i) >= pos(j));");
    assert!(why(&plain_masked).contains("pass the maximum through visible_or_zero"), "{}", why(&plain_masked));
    // A `select` with -INF is a mask, and a row may see nothing by a bias that is loaded.
    let score = "let s = dot(q_i, load(k, [j, ..]).t());";
    let selected = PLAIN.replace(score, "let s = select(pos(i) >= pos(j), dot(q_i, load(k, [j, ..]).t()), -INF);");
    assert!(why(&selected).contains("nothing visible makes NaN: pass the maximum through visible_or_zero"), "{}", why(&selected));
    let biased = PLAIN
        .replace("o: &mut", "bias: &Tensor<T, (M, N)>, o: &mut")
        .replace(score, "let s = dot(q_i, load(k, [j, ..]).t()) + load(bias, [i, j]);");
    assert!(why(&biased).contains("all -inf make NaN"), "{}", why(&biased));
    let scaled = PLAIN.replace(score, "let s = dot(q_i, load(k, [j, ..]).t()) * 0.5;");
    assert_eq!(why_not_split(&parse(&scaled).remove(0)), None);
    let product = PLAIN.replace("l = l * alpha + rowsum(p);", "l = l * (alpha + 1.0) + rowsum(p);");
    assert!(why(&product).starts_with("`l` is no streaming reduction: "), "{}", why(&product));
    let early = PLAIN.replace("let mut l = zeros(i);", "let mut l = full(i, 1.0);");
    assert_eq!(why(&early), "`o` of a row that sees nothing depends on what `l` starts from");
}

/// Copies are made by one launch where rows lie alike, have padded rows, and are refused where they change nothing.
#[test]
fn operands_are_copied_where_rows_begin_within_lines() {
    let kernel = parse(KERNELS[0]).remove(0);
    let made = |d: i64, knobs: &str| {
        let binding = Binding::new(&kernel, Elem::F16, [("D", d)]);
        let instance = Instance { facts: Facts::best(&kernel), binding, kernel: kernel.clone() };
        let schedule = format!("block_m=64,block_n=64,warps=4,b_layout=copied,{knobs}").parse().expect("a schedule");
        generate(&instance, &schedule, Arch::named("sm_90a").expect("there"))
    };
    let copied = made(120, "").expect("legal");
    let entries: Vec<&str> = copied.launches.iter().map(|launch| launch.abi.entry.as_str()).collect();
    assert_eq!(entries, ["attention_copy_k_v", "attention"]);
    let strides = |s: &flashtile_codegen::Scratch| s.layout(&[2, 3, 5, 120]).0;
    let between: Vec<(&str, Vec<usize>)> = copied.scratch.iter().map(|s| (s.name.as_str(), strides(s))).collect();
    assert_eq!(between, ["k_copy", "v_copy"].map(|name| (name, vec![1920, 640, 128, 1])));
    let parts = made(120, "split_k=4").expect("legal");
    assert_eq!(parts.launches.len(), 3);
    let error = made(64, "").expect_err("rows of 128 bytes").to_string();
    assert!(error.contains("b_layout=copied has nothing to copy: no right operand of a product is loaded from"), "{error}");
}

/// Launches that begin early wait before they touch anything, if they need what an earlier one writes or write what it touches; the
/// others wait when they have done all.
#[test]
fn launches_wait_for_what_they_need() {
    let made = |text: &str, consts: &[(&str, i64)], knobs: &str, arch: &str| {
        let kernel = parse(text).remove(0);
        let binding = Binding::new(&kernel, Elem::F16, consts.iter().copied());
        let instance = Instance { facts: Facts::best(&kernel), binding, kernel };
        let schedule = format!("block_m=64,block_n=64,warps=4,{knobs}").parse().expect("a schedule");
        generate(&instance, &schedule, Arch::named(arch).expect("there")).unwrap_or_else(|e| panic!("{knobs} on {arch}: {e}"))
    };
    let (rope, plain) = (include_str!("../../runtime/kernels/causal_rope_attention.rs"), KERNELS[0]);
    let (halves, whole, odd) = (&[("D", 64), ("C", 32)][..], &[("D", 64)][..], &[("D", 72)][..]);
    let wgmma = "tensor_op=wgmma,copy=tma";
    let cases = [
        (rope, halves, "precompute=ab".to_owned(), "-LF"),
        (rope, halves, "precompute=b".to_owned(), "-F"),
        (rope, halves, format!("precompute=ab,split_k=4,{wgmma}"), "-LFF"),
        (plain, whole, "split_k=4".to_owned(), "-F"),
        (plain, whole, format!("split_k=16,fixup=tree,{wgmma}"), "-FF"),
        (plain, whole, "b_layout=pretransposed".to_owned(), "-F"),
        (plain, odd, "b_layout=copied".to_owned(), "-F"),
        (plain, whole, "loop_order=interchanged".to_owned(), "-FF"),
        (plain, whole, "pack_gqa=on,split_k=4".to_owned(), "-F"),
    ];
    for (text, consts, knobs, expected) in cases {
        let generated = made(text, consts, &knobs, "sm_90a");
        let bodies = generated.source.split("extern \"C\"").skip(1);
        let bodies: Vec<&str> = bodies.map(|rest| rest.split("}  // namespace").next().unwrap_or(rest)).collect();
        assert_eq!(bodies.len(), generated.launches.len(), "{knobs}");
        let mut found = String::new();
        for (n, body) in bodies.iter().enumerate() {
            let body = body.split_once(") {\n").expect("a body").1;
            found.push(match body.split_once("  wait_for_previous_launch();\n") {
                None => '-',
                Some((before, _)) if !before.contains("params.") && !before.contains("_map") => 'F',
                Some((_, after)) if !after.contains("params.") && !after.contains("_map") => 'L',
                Some(_) => '?',
            });
            assert_eq!(body.contains("  let_next_launch_begin();"), n + 1 < bodies.len(), "{knobs}: {n}");
            // What earlier launches write, by the kernels themselves.
            let kernel = &generated.launches[n].kernel;
            let written = |k: &Kernel| -> Vec<String> {
                let written = |p: &flashtile_dsl::ir::Param| matches!(&p.kind, ParamKind::Tensor(t) if t.direction.is_written());
                k.params.values().filter(|p| written(p)).map(|p| p.name.clone()).collect()
            };
            let earlier: Vec<String> = generated.launches[..n].iter().flat_map(|l| written(&l.kernel)).collect();
            let needs = kernel.params.values().any(|p| earlier.contains(&p.name));
            assert!(!needs || found.ends_with('F'), "{knobs}: {n} needs one of {earlier:?}");
            assert_eq!(generated.launches[n].abi.early, n > 0, "{knobs}: {n}");
        }
        assert_eq!(found, expected, "{knobs}");
    }
    let older = made(plain, whole, "split_k=4", "sm_80");
    assert!(!older.source.contains("griddepcontrol") && older.launches.iter().all(|l| !l.abi.early));
}

/// A store of what the loop does not change belongs to one program: programs of parts that meet
/// would all store it.
#[test]
fn parts_that_meet_store_nothing_but_what_they_made_together() {
    const BESIDE: &str = "
pub fn beside<const D: usize>(
    x: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, w: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M, 2)>,
) {
    let i = program(tiles(M));
    let x_i = load(x, [i, ..]);
    let mut l = zeros(i);
    for j in tiles(N) {
        l += rowsum(dot(x_i, load(k, [j, ..]).t()));
    }
    store(y, [i, 0], l);
    store(y, [i, 1], load(w, [i]) * 2.0);
}";
    let kernel = parse(BESIDE).remove(0);
    for fixup in [Fixup::Semaphore, Fixup::Cluster] {
        let why = split(&kernel, 2, fixup).expect_err("all parts would store").to_string();
        assert!(why.contains("`y` is stored to with what no loop changes"), "{why}");
    }
    let call = Call { rows: 9, columns: 21, folded: 0, blocks: (4, 3), integer: 2, seed: 5, share: 0 };
    let apart = split(&kernel, 3, Fixup::Kernel).expect("the kernel that merges stores");
    assert_eq!(call.difference(&kernel, &halves(&apart), Exact64), None);
}
