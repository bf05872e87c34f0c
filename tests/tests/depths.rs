//! Products whose depth is too wide for shared memory: they are made in steps of it, mean what the
//! text means, and have `wgmma`. Merges of columns that do not divide. Needs NVRTC, no GPU.

use std::collections::BTreeMap;

use flashtile::toolchain::Toolchain;
use flashtile::tuner::judge;
use flashtile::{Arch, Device, Elem, Kernel, LaunchOptions};
use flashtile_codegen::{Facts, Machine, Ranker, Schedule, TensorOp, as_generated, generate};
use flashtile_dsl::ir::{self, At, Op, SourceText};

/// The largest score of each row and each column tile, of operands that lie with the depth first or last.
const SCORES: &str = "pub fn scores<T: Element, const D: usize>(
    x: &Tensor<T, (B, M, D)>, w: &Tensor<T, (B, D, N)>, most: &mut Tensor<f32, (B, M)>, sum: &mut Tensor<f32, (B, M)>,
) {
    let (b, i) = program(B, tiles(M));
    let x_i = load(x, [b, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    for j in tiles(N) {
        let s = dot(x_i, load(w, [b, .., j])) * 0.125;
        let m_new = max(m, rowmax(s));
        l = l * exp(m - m_new) + rowsum(exp(s - m_new));
        m = m_new;
    }
    store(most, [b, i], m);
    store(sum, [b, i], l);
}";

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "depths.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

/// The kernel that code is generated for.
fn generated(kernel: &Kernel, width: i64) -> ir::Kernel {
    let bound = kernel.bind(Elem::Bf16, [("D", width)]).expect("binds");
    as_generated(bound.ir(), bound.binding())
}

/// The kernel is right on the emulator of an architecture.
fn is_right(kernel: &Kernel, width: i64, shape: &[(&str, i64)], arch: &str, schedule: Option<&str>) {
    let schedule = schedule.map(|schedule| schedule.parse().expect("a schedule"));
    let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch), schedule, ..LaunchOptions::default() };
    let elem = if arch == "sm_75" { Elem::F16 } else { Elem::Bf16 };
    let what = format!("`{}`, width {width}, on {arch}", kernel.name());
    let bound = kernel.bind(elem, [("D", width)]).expect("binds");
    let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|error| panic!("{error}\n{what}"));
    let sizes: BTreeMap<String, i64> = shape.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    for verdict in judge(&loaded, &sizes, 3).unwrap_or_else(|error| panic!("{error}\n{what}")) {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}\n{what}");
    }
}

/// Loops around each product.
fn loops_around_products(kernel: &ir::Kernel) -> Vec<usize> {
    let products = kernel.walk().into_iter().filter(|&(_, op)| matches!(kernel.ops[op].op, Op::Dot { .. }));
    products.map(|(_, op)| std::iter::successors(kernel.loop_around(op), |&around| kernel.loop_around(around)).count()).collect()
}

#[test]
fn wide_products_are_walked_where_their_operands_are_loaded_for_them() {
    let loss = Kernel::builtin("linear_cross_entropy").expect("a built-in");
    assert_eq!(loops_around_products(&generated(&loss, 448)), [1]);
    let walked = generated(&loss, 449);
    assert_eq!(loops_around_products(&walked), [2]);
    let whole = |op: &Op| matches!(op, Op::Load { at, .. } if at.iter().any(|at| matches!(at, At::Range { .. })));
    assert!(!walked.walk().into_iter().any(|(_, op)| whole(&walked.ops[op].op)), "nothing is loaded whole any more");
    assert_eq!(loops_around_products(&generated(&kernel(SCORES), 2048)), [2]);
    // Sums of so many columns take the registers that the tiles would need.
    let attention = Kernel::builtin("attention").expect("a built-in");
    assert_eq!(loops_around_products(&generated(&attention, 640)), [1, 1]);
    let latent = Kernel::builtin("mla_decode").expect("a built-in").bind(Elem::Bf16, [("C", 512), ("R", 64)]).expect("binds");
    assert_eq!(loops_around_products(&as_generated(latent.ir(), latent.binding())), [1, 1]);
    // An operand that is computed is there whole, and so is a part of a dimension.
    let computed = SCORES.replace("let x_i = load(x, [b, i, ..]);", "let x_i = (load(x, [b, i, ..]) * 2.0).to::<T>();");
    assert_eq!(loops_around_products(&generated(&kernel(&computed), 2048)), [1]);
    let part = SCORES.replace("(B, M, D)", "(B, M, D + 8)").replace("[b, i, ..]", "[b, i, 8..D + 8]");
    assert_eq!(loops_around_products(&generated(&kernel(&part), 2048)), [1]);
}

#[test]
fn wide_products_are_right() {
    let loss = Kernel::builtin("linear_cross_entropy").expect("a built-in");
    let scores = kernel(SCORES);
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        for width in [456, 1030, 1536] {
            is_right(&loss, width, &[("M", 37), ("V", 150)], arch, None);
        }
        is_right(&scores, 704, &[("B", 2), ("M", 70), ("N", 90)], arch, None);
    }
    let tall = "block_m=128,block_n=128,block_k=64,warps=8,tensor_op=wgmma,copy=tma,stages=4,producer_registers=40";
    is_right(&loss, 1024, &[("M", 150), ("V", 300)], "sm_90a", Some(&format!("{tall},split_k=3,fixup=kernel")));
    is_right(&loss, 1000, &[("M", 1), ("V", 2)], "sm_90a", Some(tall));
}

/// Tiles of keys and of the depth have knobs of their own, and what is ranked first has `wgmma`, and
/// more slots than two: steps of products are short beside what a copy takes.
#[test]
fn the_choice_for_wide_products_has_wgmma() {
    let arch = Arch::named("sm_90a").expect("in the table");
    let bound = Kernel::builtin("linear_cross_entropy").expect("a built-in").bind(Elem::Bf16, [("D", 2048)]).expect("binds");
    let ranker = Ranker::new(&bound.instance(Facts::best(bound.ir())), arch);
    let sizes = [("M", 512), ("V", 32000), ("D", 2048)].map(|(name, size)| (name.to_owned(), size));
    let first: Schedule = ranker.rank(&BTreeMap::from(sizes), &Machine::typical(arch)).expect("some are legal").remove(0).0;
    assert_eq!(first.main.tensor_op, TensorOp::Wgmma, "{first}");
    assert!(first.main.stages > 2 && first.launches.split_k > 1, "{first}");
}

/// A merge has a program for each 16 columns, also where the last has fewer.
#[test]
fn merges_share_columns_that_do_not_divide() {
    let attention = Kernel::builtin("attention").expect("a built-in");
    for (width, programs) in [(104, 7), (72, 5), (40, 3), (24, 2), (16, 1)] {
        let bound = attention.bind(Elem::Bf16, [("D", width)]).expect("binds");
        let schedule: Schedule = "block_m=16,block_n=32,warps=1,split_k=3,fixup=kernel".parse().expect("a schedule");
        let arch = Arch::named("sm_80").expect("in the table");
        let made = generate(&bound.instance(Facts::best(bound.ir())), &schedule, arch).expect("legal");
        let merge = made.launches.iter().find(|launch| launch.name == "combine").expect("parts are merged");
        assert_eq!(merge.knobs.column_programs, programs, "d {width}");
        let shape = [("B", 1), ("H", 2), ("G", 1), ("M", 19), ("N", 150)];
        is_right(&attention, width, &shape, "sm_80", Some("block_m=16,block_n=32,warps=1,split_k=3,fixup=kernel"));
    }
}
