//! Kernels of forms that no built-in kernel has, on the emulator. Needs NVRTC, no GPU.

use std::collections::BTreeMap;

use flashtile::toolchain::Toolchain;
use flashtile::tuner::judge;
use flashtile::{Arch, Device, Elem, Kernel, LaunchOptions, Schedule};
use flashtile_dsl::grad::Form;
use flashtile_dsl::ir::SourceText;

/// Launch options for an architecture.
fn options(arch: &str, schedule: Option<&str>) -> LaunchOptions {
    let schedule: Option<Schedule> = schedule.map(|schedule| schedule.parse().expect("a schedule"));
    LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch), schedule, ..LaunchOptions::default() }
}

/// A kernel with head dim 32 is right on the emulator.
fn is_right(text: &str, shape: &[(&str, i64)], arch: &str, schedule: Option<&str>) {
    let source = SourceText { name: "forms.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let what = format!("`{}` on {arch}, {schedule:?}", kernel.name());
    let bound = kernel.bind(Elem::Bf16, [("D", 32)]).expect("binds");
    let loaded = bound.on_with(&Device::emulator(), options(arch, schedule)).unwrap_or_else(|error| panic!("{error}\n{what}"));
    let sizes: BTreeMap<String, i64> = shape.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    for verdict in judge(&loaded, &sizes, 3).unwrap_or_else(|error| panic!("{error}\n{what}")) {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}\n{what}");
    }
}

/// Scores that nothing of the loop changes are computed in it: the last tile has fewer keys.
#[test]
fn scores_that_are_the_same_in_all_steps_count_the_keys_that_exist() {
    let text = "pub fn mean<T: Element, const D: usize>(
        v: &Tensor<T, (N, D)>, w: &Tensor<f32, (1)>, o: &mut Tensor<T, (M, D)>, lse: &mut Tensor<f32, (M)>,
        count: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut n = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = zeros((i, j)) + load(w, [0]);
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [j, ..]));
            n = n + rowsum(zeros((i, j)) + 1.0);
            m = m_new;
        }
        store(o, [i, ..], acc / l);
        store(lse, [i], m + ln(l));
        store(count, [i], n);
    }";
    for arch in ["sm_80", "sm_90a"] {
        is_right(text, &[("M", 33), ("N", 70)], arch, None);
    }
}

/// Linear attention with a state of earlier chunks: the product behind the loop stands where the
/// parts of a loop have met.
#[test]
fn products_behind_a_loop_are_right_where_its_parts_meet() {
    let text = "pub fn chunk<T: Element, const D: usize>(
        q: &Tensor<T, (B, S, D)>, k: &Tensor<T, (B, S, D)>, v: &Tensor<T, (B, S, D)>, st: &Tensor<T, (B, D, D)>,
        o: &mut Tensor<T, (B, S, D)>,
    ) {
        let (b, i) = program(B, tiles(S));
        let q_i = load(q, [b, i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(S) {
            let s = mask(dot(q_i, load(k, [b, j, ..]).t()), pos(i) >= pos(j));
            acc += dot(max(s, 0.0).to::<T>(), load(v, [b, j, ..]));
        }
        store(o, [b, i, ..], acc + dot(q_i, load(st, [b, .., ..])));
    }";
    let base = "tensor_op=wgmma,copy=tma,block_m=64,block_n=32,warps=4,stages=2";
    for parts in ["", ",split_k=2,fixup=semaphore", ",split_k=2,fixup=kernel"] {
        is_right(text, &[("B", 2), ("S", 150)], "sm_90a", Some(&format!("{base}{parts}")));
    }
    is_right(text, &[("B", 1), ("S", 70)], "sm_90a", None);
}

/// Stores of each step of a loop, where the first step stands before the loop.
#[test]
fn stores_of_each_step_are_right_where_products_overlap() {
    let text = "pub fn kept<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
        p: &mut Tensor<f32, (M, N)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [j, ..]).t()) * 0.1, pos(i) >= pos(j));
            let e = exp(s);
            acc += dot(e.to::<T>(), load(v, [j, ..]));
            store(p, [i, j], e);
        }
        store(o, [i, ..], acc);
    }";
    for overlap in ["overlap=off", "overlap=on", "overlap=late", "overlap=on,persistent=dynamic"] {
        let schedule = format!("tensor_op=wgmma,copy=tma,block_m=64,block_n=32,warps=4,stages=2,{overlap}");
        for (m, n) in [(65, 100), (65, 20)] {
            is_right(text, &[("M", m), ("N", n)], "sm_90a", Some(&schedule));
        }
    }
}

/// A left operand that is computed before two loops: with column groups it is exchanged before the
/// first, which may walk nothing.
#[test]
fn operands_that_column_groups_share_are_right_in_two_loops() {
    let text = "pub fn twice<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (L, D)>, o: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let q_i = (load(q, [i, ..]) * rowsum(load(q, [i, ..]))).to::<T>();
        let mut l = zeros(i) + 1.0;
        for j in tiles(N) { l += rowsum(dot(q_i, load(k, [j, ..]).t())); }
        for j in tiles(L) { l = max(l, rowmax(dot(q_i, load(v, [j, ..]).t()))); }
        store(o, [i], l);
    }";
    let ways = [
        ("sm_80", "warps=2,column_groups=2,block_m=16,block_n=32,swizzle=padded"),
        ("sm_80", "warps=4,column_groups=2,block_m=32,block_n=64,operand_a=registers"),
        ("sm_90a", "warps=8,column_groups=2,block_m=64,block_n=64,tensor_op=wgmma,copy=tma"),
    ];
    for (arch, schedule) in ways {
        for (n, l) in [(65, 40), (0, 65), (65, 0)] {
            is_right(text, &[("M", 20), ("N", n), ("L", l)], arch, Some(schedule));
        }
    }
}

/// Products of both types of 16 bits in one kernel.
#[test]
fn products_of_two_types_are_right() {
    let text = "pub fn both<const D: usize>(
        x: &Tensor<f16, (M, D)>, w: &Tensor<f16, (D, D)>, y: &Tensor<bf16, (M, D)>, u: &Tensor<bf16, (D, D)>,
        o: &mut Tensor<f16, (M, D)>, p: &mut Tensor<bf16, (M, D)>,
    ) {
        let i = program(tiles(M));
        let both = dot(load(x, [i, ..]), load(w, [.., ..])) + dot(load(y, [i, ..]), load(u, [.., ..]));
        store(o, [i, ..], both);
        store(p, [i, ..], both * 2.0);
    }";
    for arch in ["sm_80", "sm_90a"] {
        is_right(text, &[("M", 70)], arch, None);
    }
}

/// A mask with a gap: the fused columns walk two runs of rows.
#[test]
fn fused_gradients_of_masks_with_gaps_are_right() {
    let text = include_str!("../../runtime/kernels/attention.rs").replace(
        "* scale;",
        "* scale; let s = mask(s, abs(pos(i) - pos(j)) < 8 || (pos(i) - pos(j)) % 5 == 0 && pos(j) <= pos(i));",
    );
    columns_are_right(&text, Form::Fused, &["q", "k", "v"]);
}

/// Attention with norms of queries and keys: the normed keys are staged once, before the loop.
#[test]
fn gradients_of_normed_queries_and_keys_are_right() {
    let text = include_str!("../../runtime/kernels/attention.rs").replace("scale: f32,", "scale: f32, w: &Tensor<T, (D)>,");
    let normed = |x: &str| format!("({x} * rsqrt(rowsum({x} * {x}) / D + 0.001) * load(w, [..])).to::<T>()");
    let text = text.replace(
        "let s = dot(q_i, load(k, [b, g, j, ..]).t())",
        &format!("let k_j = load(k, [b, g, j, ..]); let s = dot({}, {}.t())", normed("q_i"), normed("k_j")),
    );
    columns_are_right(&text, Form::Plain, &["q", "k", "v", "w"]);
}

/// Integers for each column that no mask reads wait spread over lanes: f32 does not hold them.
#[test]
fn gradients_of_scores_that_compare_ids_are_right() {
    let text = include_str!("../../runtime/kernels/attention.rs")
        .replace("scale: f32,", "scale: f32, of_q: &Tensor<i32, (B, M)>, of_k: &Tensor<i32, (B, N)>,")
        .replace("* scale;", "* scale + select(load(of_q, [b, i]) == load(of_k, [b, j]), 0.0, -2.0);");
    columns_are_right(&text, Form::Plain, &["q", "k", "v"]);
}

/// The kernel of columns of a gradient is right on the emulator, on Hopper's path, with head dim 64.
fn columns_are_right(text: &str, form: Form, of: &[&str]) {
    let source = SourceText { name: "forms.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let gradient = kernel.gradient_in(form, of, &["o"]).unwrap_or_else(|errors| panic!("{errors}"));
    let columns = gradient.backward.iter().find(|kernel| kernel.name().ends_with("_columns")).expect("a kernel of columns");
    let consts = [("D", 64), ("E", 64)].into_iter().filter(|(name, _)| columns.ir().size_named(name).is_some());
    let bound = columns.bind(Elem::Bf16, consts).expect("binds");
    let loaded = bound.on_with(&Device::emulator(), options("sm_90a", None)).unwrap_or_else(|error| panic!("{error}"));
    let sizes = [("B", 1), ("H", 2), ("G", 2), ("M", 70), ("N", 150)];
    let sizes: BTreeMap<String, i64> = sizes.map(|(name, size)| (name.to_owned(), size)).into_iter().collect();
    for verdict in judge(&loaded, &sizes, 3).unwrap_or_else(|error| panic!("{error}")) {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}");
    }
}

/// Attention with these scores and a window, so that some rows of a tile see nothing of the first
/// tiles.
fn windows(scores: &str, window: u32) -> String {
    let scores = format!("let s = {scores}; let s = mask(s, pos(j) <= pos(i) && pos(i) < pos(j) + {window});");
    let text = include_str!("../../runtime/kernels/attention.rs");
    let at = text.find("let s = dot").expect("scores");
    let end = at + text[at..].find(';').expect("an end") + 1;
    format!("{}{scores}{}", &text[..at], &text[end..])
}

/// A row without a reference takes one with the first key that it sees, however low its score is.
#[test]
fn rows_that_see_nothing_at_first_are_right() {
    let shape = [("B", 1), ("H", 2), ("G", 2), ("M", 200), ("N", 200)];
    let dot = "dot(q_i, load(k, [b, g, j, ..]).t())";
    // Of every eight rows one sees the least float alone, whose output is a mean, and one nothing but
    // scores far below 0.
    let low = |least: &str, below: &str| {
        format!("select(pos(i) % 8 == 5, {least}, select(pos(i) % 8 == 3, {dot} * scale - {below}, {dot} * scale))")
    };
    let texts = [
        windows(&low("-3.4028234663852886e38", "3000.0"), 40),
        windows(&low("-1.0e30", "50.0"), 40),
        // Scores of some thousands; few keys, so that many rows see low ones alone.
        windows(&format!("{dot} * (scale * 1000.0)"), 2),
        windows(&format!("{dot} * (scale * 1000.0)"), 40),
    ];
    for text in texts {
        for maximum in ["optimistic", "max_first", "first", "exact"] {
            let warps =
                "block_m=128,block_n=32,block_k=32,warps=8,tensor_op=wgmma,copy=tma,overlap=on,stages=2,persistent=static";
            is_right(&text, &shape, "sm_90a", Some(&format!("{warps},running_max={maximum}")));
        }
        for maximum in ["optimistic", "max_first"] {
            is_right(&text, &shape, "sm_80", Some(&format!("block_m=64,block_n=32,warps=4,running_max={maximum}")));
        }
    }
}
