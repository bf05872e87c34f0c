//! Rows that a program loads whole: their padding is no part of a sum or a maximum, whatever it
//! would be computed to, and wide ones are walked in passes over tiles of their columns, which mean
//! what the text means. Needs NVRTC, no GPU.

use std::collections::BTreeMap;

use flashtile::toolchain::Toolchain;
use flashtile::tuner::{InputData, Slopes, judge, slopes};
use flashtile::{Arch, Device, Elem, Kernel, LaunchOptions};
use flashtile_codegen::{as_generated, with_row_axes};
use flashtile_dsl::grad::Form;
use flashtile_dsl::ir::{self, At, Op, SourceText};

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "rows.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn sizes(all: &[(&str, i64)]) -> BTreeMap<String, i64> {
    all.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
}

/// The kernel that code is generated for.
fn generated(text: &str, width: i64) -> ir::Kernel {
    let bound = kernel(text).bind(Elem::Bf16, [("D", width)]).expect("binds");
    as_generated(bound.ir(), bound.binding())
}

const SOFTMAX: &str = "pub fn softmax<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, y: &mut Tensor<T, (M, D)>) {
    let i = program(tiles(M));
    let a = load(x, [i, ..]).to::<f32>();
    let p = exp(a - rowmax(a));
    store(y, [i, ..], (p / rowsum(p)).to::<T>());
}";

const LAYER_NORM: &str = "pub fn layer_norm<T: Element, const D: usize>(
    x: &Tensor<T, (B, M, D)>, w: &Tensor<T, (D)>, eps: f32,
    y: &mut Tensor<T, (B, M, D)>, mean: &mut Tensor<f32, (B, M)>,
) {
    let (b, i) = program(B, tiles(M));
    let a = load(x, [b, i, ..]).to::<f32>();
    let mu = rowsum(a) / D;
    let d = a - mu;
    let r = rsqrt(rowsum(d * d) / D + eps);
    store(y, [b, i, ..], (d * r * load(w, [..]).to::<f32>()).to::<T>());
    store(mean, [b, i], mu);
}";

/// Padding of 0 would be the largest element, and is summed up as -1, as 3 and as 1.
const PADDED: &str = "pub fn padded<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>, most: &mut Tensor<f32, (M)>, sum: &mut Tensor<f32, (M)>, count: &mut Tensor<f32, (M)>, ones: &mut Tensor<f32, (M)>,
) {
    let i = program(tiles(M));
    let a = load(x, [i, ..]).to::<f32>();
    let b = 0.0 - a * a - 1.0;
    store(most, [i], rowmax(b));
    store(sum, [i], rowsum(b));
    store(count, [i], rowsum(select(a < 100.0, 3.0, 0.0)));
    store(ones, [i], rowsum(exp(0.0 * a)));
}";

/// Sums that have no names in the text.
const COSINE: &str = "pub fn cosine<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>, y: &Tensor<T, (M, D)>, o: &mut Tensor<f32, (M)>,
) {
    let i = program(tiles(M));
    let a = load(x, [i, ..]).to::<f32>();
    let b = load(y, [i, ..]).to::<f32>();
    store(o, [i], rowsum(a * b) * rsqrt(rowsum(a * a) * rowsum(b * b) + 1e-6));
}";

/// Sums and products of what is positive where it is padded.
const FEATURES: &str = "pub fn features<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = exp(load(q, [i, ..]).to::<f32>());
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i.to::<T>(), exp(load(k, [j, ..]).to::<f32>()).to::<T>().t());
        acc = acc + dot(s.to::<T>(), load(v, [j, ..]));
    }
    store(o, [i, ..], (acc / rowsum(q_i)).to::<T>());
}";

/// The kernel is right on the emulator of an architecture.
fn is_right(text: &str, width: i64, arch: &str, schedule: Option<&str>) {
    let schedule = schedule.map(|schedule| schedule.parse().expect("a schedule"));
    let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch), schedule, ..LaunchOptions::default() };
    let elem = if arch == "sm_75" { Elem::F16 } else { Elem::Bf16 };
    let kernel = kernel(text);
    let what = format!("`{}`, width {width}, on {arch}", kernel.name());
    let bound = kernel.bind(elem, [("D", width)]).expect("binds");
    let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|error| panic!("{error}\n{what}"));
    let shape: Vec<(&str, i64)> =
        [("B", 2), ("M", 37), ("N", 21)].into_iter().filter(|(name, _)| bound.ir().size_named(name).is_some()).collect();
    for verdict in judge(&loaded, &sizes(&shape), 3).unwrap_or_else(|error| panic!("{error}\n{what}")) {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}\n{what}");
    }
}

#[test]
fn padding_is_no_part_of_a_row() {
    for width in [8, 33, 40, 100] {
        for arch in ["sm_75", "sm_80", "sm_90a"] {
            [SOFTMAX, LAYER_NORM, PADDED, FEATURES].iter().for_each(|text| is_right(text, width, arch, None));
        }
    }
    // Of columns that several warps share, each has padding of its own.
    for schedule in ["warps=8,column_groups=2", "block_m=16,warps=4,column_groups=4"] {
        [SOFTMAX, PADDED].iter().for_each(|text| is_right(text, 120, "sm_80", Some(schedule)));
    }
}

#[test]
fn wide_rows_are_right_in_passes() {
    for width in [130, 300, 1024] {
        for arch in ["sm_75", "sm_80", "sm_90a"] {
            [SOFTMAX, LAYER_NORM, PADDED].iter().for_each(|text| is_right(text, width, arch, None));
        }
    }
    is_right(SOFTMAX, 4096, "sm_90a", Some("block_m=16,block_n=128,warps=1"));
    // Passes are loops like others: parts of them are merged, and four groups of warps share them.
    for parts in ["split_k=4,fixup=kernel", "split_k=4,fixup=semaphore", "split_k=2,fixup=cluster"] {
        is_right(COSINE, 1000, "sm_90a", Some(&format!("block_m=16,block_n=128,warps=4,column_groups=4,{parts}")));
    }
}

/// The kernels that `bench/rows.py` times.
#[test]
fn kernels_of_the_bench_are_right() {
    let source = SourceText { name: "rows.rs".into(), text: include_str!("../../bench/rows.rs").into(), first_line: 1 };
    let kernels = Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(kernels.len(), 4);
    for kernel in &kernels {
        let text = flashtile_dsl::text::write(kernel.ir()).expect("has a text");
        is_right(&text, 300, "sm_90a", None);
    }
}

/// Each reduction has a pass behind those that it depends on, and all stores are in the last one.
#[test]
fn passes_follow_from_what_depends_on_what() {
    let loops = |kernel: &ir::Kernel| {
        let body = &kernel.blocks[kernel.body].ops;
        let passes = body.iter().filter_map(|&op| match kernel.ops[op].op {
            Op::For { body, .. } => Some(body),
            _ => None,
        });
        let of = |block| {
            let ops = kernel.blocks[block].ops.iter().map(|&op| &kernel.ops[op].op);
            let [loads, reductions, stores] = [
                |op: &Op| matches!(op, Op::Load { .. }),
                |op: &Op| matches!(op, Op::Reduce(..)),
                |op: &Op| matches!(op, Op::Store { .. }),
            ]
            .map(|is: fn(&Op) -> bool| ops.clone().filter(|op| is(op)).count());
            (loads, reductions, stores)
        };
        passes.map(of).collect::<Vec<_>>()
    };
    assert_eq!(loops(&generated(SOFTMAX, 1000)), [(1, 1, 0), (1, 1, 0), (1, 0, 1)]);
    assert_eq!(loops(&generated(LAYER_NORM, 1000)), [(1, 1, 0), (1, 1, 0), (2, 0, 1)]);
    assert_eq!(loops(&generated(PADDED, 1000)), [(1, 4, 0)]);
    assert_eq!(loops(&generated(SOFTMAX, 128)), [], "it has room");
    for text in [SOFTMAX, LAYER_NORM, PADDED] {
        let (narrow, wide) = (generated(text, 128), generated(text, 129));
        assert_eq!(narrow, with_row_axes(kernel(text).ir()));
        assert!(ir::verify(&wide).is_ok(), "{wide}");
        let whole = |(_, op)| match &wide.ops[op].op {
            Op::Load { at, .. } | Op::Store { at, .. } => at.iter().any(|at| matches!(at, At::Range { .. })),
            _ => false,
        };
        assert!(!wide.walk().into_iter().any(whole), "{wide}");
    }
}

/// Products keep rows whole, and what is a part of a dimension stays one.
#[test]
fn what_is_no_work_on_rows_alone_stays() {
    let stays = |text: &str| assert_eq!(generated(text, 512), with_row_axes(kernel(text).ir()), "{text}");
    stays(FEATURES);
    stays(
        "pub fn swapped<T: Element, const D: usize>(x: &Tensor<T, (M, 2 * D)>, y: &mut Tensor<T, (M, 2 * D)>) {
    let i = program(tiles(M));
    store(y, [i, 0..D], load(x, [i, D..2 * D]));
    store(y, [i, D..2 * D], load(x, [i, 0..D]));
}",
    );
}

/// The maximum of a row has the gradient of its largest element: a softmax of whole rows has one.
#[test]
fn gradients_of_whole_rows() {
    let most = SOFTMAX.replace("(p / rowsum(p)).to::<T>()", "(a * rowmax(a * a)).to::<T>()");
    for (text, width) in [(SOFTMAX, 40), (SOFTMAX, 300), (LAYER_NORM, 300), (&most, 72)] {
        let kernel = kernel(text);
        let gradient = kernel.gradient_in(Form::Plain, &["x"], &["y"]).unwrap_or_else(|errors| panic!("{errors}"));
        let has = |name: &str| kernel.ir().size_named(name).is_some();
        let shape: Vec<(&str, i64)> = [("B", 2), ("M", 19)].into_iter().filter(|(name, _)| has(name)).collect();
        let found = slopes(&gradient, &sizes(&[("D", width)]), &sizes(&shape), 5, &InputData::default()).expect("runs");
        let Slopes::Of(found) = found else { panic!("{found:?} of\n{text}") };
        found.iter().for_each(|slope| assert!(slope.passed(), "{slope} of\n{text}"));
        let rows = gradient.backward.first().expect("there is one");
        assert!(rows.ir().size_named("D").is_some());
        is_right(rows.text(), width, "sm_80", None);
    }
}

/// LayerNorm and GELU by a polynomial: its gradient needs 17 matrices of rows at once.
const NORM_AND_GELU: &str = "pub fn norm_and_gelu<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>, w: &Tensor<T, (D)>, eps: f32, y: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let t = load(x, [i, ..]).to::<f32>();
    let d = t - rowsum(t) / D;
    let z = d * rsqrt(rowsum(d * d) / D + eps) * load(w, [..]);
    let a = abs(z) * 0.70710678;
    let k = 1.0 / (1.0 + 0.3275911 * a);
    let e = 1.0 - (((1.061405429 * k - 1.453152027) * k + 1.421413741) * k + 0.254829592) * k * exp(-a * a);
    store(y, [i, ..], 0.5 * z * (1.0 + select(z < 0.0, -e, e)));
}";

/// Halves of rows, which are not walked in passes.
const HALVES: &str = "pub fn halves<T: Element, const D: usize>(x: &Tensor<T, (M, 2 * D)>, y: &mut Tensor<T, (M, D)>) {
    let i = program(tiles(M));
    let a = load(x, [i, ..D]).to::<f32>();
    let b = load(x, [i, D..]).to::<f32>();
    store(y, [i, ..], a / (1.0 + exp(-1.702 * a)) * (b + 1.0));
}";

/// Gradients of rows that need more registers than a warp has, at widths that its groups do not
/// divide.
#[test]
fn gradients_with_much_of_a_row() {
    for (text, of, widths) in [(NORM_AND_GELU, &["x", "w"][..], &[24, 80, 100, 128][..]), (HALVES, &["x"], &[65, 96, 200])] {
        let gradient = kernel(text).gradient_in(Form::Plain, of, &["y"]).unwrap_or_else(|errors| panic!("{errors}"));
        let rows = gradient.backward.first().expect("there is one");
        for &width in widths {
            for arch in ["sm_90a", "sm_80"] {
                is_right(rows.text(), width, arch, None);
            }
        }
    }
}

/// Parts of a dimension are not walked, and the error says what to write; where products stand in the
/// way, a view would not help.
#[test]
fn wide_parts_of_a_dimension_are_named() {
    let why = |text: &str, width: i64| {
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named("sm_90a"), ..LaunchOptions::default() };
        let bound = kernel(text).bind(Elem::Bf16, [("D", width)]).expect("binds");
        bound
            .on_with(&Device::emulator(), options)
            .and_then(|loaded| loaded.predicted(&sizes(&[("M", 64)])))
            .err()
            .map(|e| e.to_string())
    };
    let half = "pub fn half<T: Element, const D: usize>(x: &Tensor<T, (M, 2 * D)>, y: &mut Tensor<T, (M, D)>) {
        let i = program(tiles(M));
        store(y, [i, ..], load(x, [i, ..D]) * load(x, [i, D..]));
    }";
    assert_eq!(why(half, 512), None);
    let said = why(half, 4096).expect("has no schedule");
    assert!(said.contains("rows of D columns are too wide") && said.contains("split the dimension"), "{said}");
}
