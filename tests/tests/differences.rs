//! What depends on how far apart two positions are, computed once by a launch ahead
//! (`differences=ahead`): the launches give what the kernel gives, tables hold the lanes beyond the
//! extents, and what depends on something else stays where it is. Needs NVRTC, no GPU.

use std::collections::BTreeMap;

use flashtile::toolchain::Toolchain;
use flashtile::tuner::judge;
use flashtile::{Arch, Device, Elem, Kernel, LaunchOptions};
use flashtile_codegen::{Facts, Schedule, by_difference, generate, space, why_not_differences};
use flashtile_dsl::ir::{BinaryOp, Op, SourceText};
use flashtile_dsl::text::write;

/// Attention whose scores get a bias; `BIAS` is its text.
const TEXT: &str = "pub fn biased<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, H, N, D)>, v: &Tensor<T, (B, H, N, D)>,
    table: &Tensor<f32, (32, H)>, slopes: &Tensor<f32, (B, H)>, far: &Tensor<i32, (N)>, w: i32, scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let back = pos(i) + N - M - pos(j);
        let s = dot(q_i, load(k, [b, h, j, ..]).t()) * scale + BIAS;
        let s = mask(s, back >= -5);
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, h, j, ..]));
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
}";

/// Buckets of T5, both ways.
const BUCKETS: &str = "load(table, [select(abs(back) < 8, abs(back), \
    min(8 + (ln(max(abs(back), 1).to::<f32>() / 8.0) * 2.885).to::<i32>(), 15)) + select(back < 0, 16, 0), h])";

/// Biases that are computed ahead.
const AHEAD: [&str; 6] = [
    BUCKETS,
    "exp(abs(pos(j) - pos(i) + w).to::<f32>() * -0.125) * load(slopes, [b, h])",
    "ln(1.0 + max(back, 0).to::<f32>()) * exp2(h.to::<f32>() * -0.5)",
    "select(pos(i) >= pos(j) + w, sin(back.to::<f32>() * 0.25), 0.5)",
    "load(table, [back % 32, h]) * 0.5",
    "load(slopes, [b, h]) * sqrt(abs(back).to::<f32>()) + load(table, [min(abs(back), 31), h])",
];

/// Those that are not, and why.
const STAYS: [(&str, &str); 5] = [
    ("load(table, [pos(i) / 8, h])", "a row's own"),
    ("exp((pos(i) + pos(j)).to::<f32>() * -0.01)", "of a sum of positions"),
    ("load(table, [(back + load(far, [j])) % 32, h])", "of what is loaded for each key"),
    ("load(slopes, [b, h]) * back.to::<f32>()", "two steps"),
    ("load(table, [pos(i) / 8 - pos(j) / 8 + 16, h])", "a difference of quotients"),
];

fn kernel(bias: &str) -> Kernel {
    let text = TEXT.replace("BIAS", bias);
    let unused = [("table", "table: &Tensor<f32, (32, H)>, "), ("slopes", "slopes: &Tensor<f32, (B, H)>, ")];
    let unused = unused.into_iter().chain([("far", "far: &Tensor<i32, (N)>, "), (" w", "w: i32, ")]);
    let is_used = |name: &str| if name == " w" { bias.contains("+ w") } else { bias.contains(&format!("load({name},")) };
    let text = unused.filter(|(name, _)| !is_used(name)).fold(text, |text, (_, param)| text.replace(param, ""));
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn is_right(kernel: &Kernel, d: i64, shape: &[(&str, i64)], arch: &str, schedule: &str) {
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch),
        schedule: Some(schedule.parse().expect("a schedule")),
        ..LaunchOptions::default()
    };
    let bound = kernel.bind(Elem::Bf16, [("D", d)]).expect("binds");
    let what = format!("{schedule} on {arch}\n{}", write(kernel.ir()).unwrap_or_default());
    let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|error| panic!("{error}\n{what}"));
    let shape: BTreeMap<String, i64> = shape.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    for verdict in judge(&loaded, &shape, 3).unwrap_or_else(|error| panic!("{error}\n{what}")) {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}\n{what}");
    }
}

#[test]
fn what_is_read_by_difference_is_what_each_pair_computes() {
    let warps = "defaults,block_m=32,block_n=32,warps=2,differences=ahead";
    let hopper = "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=64,overlap=on,differences=ahead";
    for bias in AHEAD {
        let kernel = kernel(bias);
        for (m, n) in [(37, 150), (150, 37), (1, 70)] {
            is_right(&kernel, 32, &[("B", 2), ("H", 3), ("M", m), ("N", n)], "sm_80", warps);
        }
        is_right(&kernel, 64, &[("B", 1), ("H", 2), ("M", 70), ("N", 130)], "sm_90a", hopper);
    }
}

#[test]
fn what_depends_on_something_else_stays() {
    for (bias, why) in STAYS {
        assert!(why_not_differences(kernel(bias).ir()).is_some(), "{why}: {bias}");
    }
}

/// The code of the launch that reads the tables.
fn main_code(bias: &str, schedule: &str) -> String {
    let kernel = kernel(bias);
    let bound = kernel.bind(Elem::Bf16, [("D", 64)]).expect("binds");
    let instance = bound.instance(Facts::best(kernel.ir()));
    let schedule: Schedule = schedule.parse().expect("a schedule");
    let made = generate(&instance, &schedule, Arch::named("sm_80").expect("known")).unwrap_or_else(|e| panic!("{e}"));
    made.source.split("__global__").last().expect("a kernel").to_owned()
}

#[test]
fn tables_are_read_without_a_look_at_their_ends() {
    let in_place = main_code(BUCKETS, "defaults,block_m=64,block_n=64,warps=4");
    let ahead = main_code(BUCKETS, "defaults,block_m=64,block_n=64,warps=4,differences=ahead");
    let reads = |code: &str, tensor: &str| code.lines().filter(|line| line.contains(tensor)).collect::<Vec<_>>().join("\n");
    let [ahead, in_place] = [reads(&ahead, "params.table_by_difference + "), reads(&in_place, "params.table + ")];
    assert!(!ahead.is_empty() && !ahead.contains("least("), "{ahead}");
    assert!(in_place.contains("least("), "{in_place}");
}

/// The mask stays in the kernel: its tiles are skipped.
#[test]
fn masks_by_differences_stay() {
    let made = by_difference(kernel(BUCKETS).ir()).unwrap_or_else(|e| panic!("{e}"));
    assert!(made.main.walk().iter().any(|(_, op)| matches!(made.main.ops[*op].op, Op::Mask { .. })));
    assert_eq!((made.ahead.len(), made.behind.len(), made.between.len()), (1, 0, 1));
}

/// A comparison that reads such a value has its predicate from positions as before.
#[test]
fn comparisons_do_not_read_tables() {
    let text = TEXT
        .replace(
            "table: &Tensor<f32, (32, H)>, slopes: &Tensor<f32, (B, H)>, far: &Tensor<i32, (N)>, w: i32,",
            "rows: &Tensor<f32, (H, M, 40)>,",
        )
        .replace("BIAS", "load(rows, [h, i, abs(back) / 8])")
        .replace("back >= -5", "abs(back) / 8 < 40");
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let main = by_difference(kernel.ir()).unwrap_or_else(|e| panic!("{e}")).main;
    let compared = main.walk().into_iter().find_map(|(_, op)| match main.ops[op].op {
        Op::Compare(_, a, _) => Some(a),
        _ => None,
    });
    let compared = main.def(compared.expect("a predicate")).expect("it is computed").1;
    assert!(matches!(compared, Op::Binary(BinaryOp::Div, ..)), "{compared:?}");
}

/// Integers of a call are as large as they like: nothing is added to one that the text does not add.
#[test]
fn comparisons_with_integers_of_a_call_do_not_wrap() {
    let kernel = kernel("select(pos(i) - pos(j) < 2 + w, sin(back.to::<f32>()), 4.5) + exp(back.to::<f32>())");
    let ahead = by_difference(kernel.ir()).unwrap_or_else(|e| panic!("{e}")).ahead.remove(0);
    let text = write(&ahead).expect("has a text");
    assert!(text.contains("< 2 + w"), "{text}");
}

#[test]
fn both_ways_are_candidates() {
    let kernel = kernel(BUCKETS);
    let bound = kernel.bind(Elem::Bf16, [("D", 64)]).expect("binds");
    let instance = bound.instance(Facts::best(kernel.ir()));
    let all = space(&instance, Arch::named("sm_90a").expect("known"));
    let ahead = all.iter().filter(|schedule| schedule.to_string().contains("differences=ahead")).count();
    assert!(ahead > 0 && ahead < all.len(), "{ahead} of {}", all.len());
}
