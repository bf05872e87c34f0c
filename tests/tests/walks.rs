//! Loops within loops, and loops over single positions, on the emulator: what they skip, what they
//! carry on, what they give to loops around and behind them. Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::tuner::{Chain, InputData};
use flashtile::{Arch, Device, Kernel, LaunchOptions, Schedule};
use flashtile_codegen::{Facts, Instance, check};
use flashtile_dsl::ir::{Binding, Elem, SizeKind, SourceText};
use flashtile_tests::paged::{NOTHING_SEEN, SINKS, pages};

/// Judges a kernel in f16 against the oracle, untuned on two architectures and with each of the
/// schedules.
fn judge(text: &str, data: &str, schedules: &[&str]) {
    let source = SourceText { name: "walk.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}\n{text}")).remove(0);
    let size_of = |name: &str| match name {
        "M" => 21,
        "N" => 19,
        "G" => 1,
        "A" | "B" => 2,
        "P" | "K" => 4,
        "C" | "H" => 5,
        "D" | "S" => 32,
        "E" => 1024,
        _ => panic!("{name} has no size here"),
    };
    let all = || kernel.ir().sizes.values().map(|size| (size.kind, size.name.clone(), size_of(&size.name)));
    let consts: Vec<(String, i64)> = all().filter(|(kind, ..)| *kind == SizeKind::Const).map(|(_, name, n)| (name, n)).collect();
    let sizes = all().filter(|(kind, ..)| *kind != SizeKind::Const).map(|(_, name, n)| (name, n)).collect();
    let bound = kernel.bind(Elem::F16, consts).unwrap_or_else(|e| panic!("{e}"));
    let data: InputData = data.parse().unwrap_or_else(|e| panic!("{data}: {e}"));
    let untuned = ["sm_80", "sm_90a"].map(|arch| (arch, None));
    let given = schedules.iter().map(|&knobs| {
        let schedule: Schedule = knobs.parse().unwrap_or_else(|e| panic!("{knobs}: {e}"));
        (if knobs.contains("wgmma") { "sm_90a" } else { "sm_80" }, Some(schedule))
    });
    for (arch, schedule) in untuned.into_iter().chain(given) {
        let named = schedule.as_ref().map_or_else(|| "untuned".to_owned(), Schedule::to_string);
        let arch = Some(Arch::named(arch).expect("in the table"));
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, schedule, ..LaunchOptions::default() };
        let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{named}: {e}\n{text}"));
        let mut chain = Chain::new(vec![bound.clone()], &sizes, 3, &data).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for verdict in chain.judge(&loaded).unwrap_or_else(|e| panic!("{named}: {e}\n{text}")) {
            assert!(verdict.passed(), "{data} {named}: {verdict:?}\n{text}");
        }
    }
}

/// Pages of which a mask leaves two runs, one, or none; untuned and in parts.
#[test]
fn pages_that_are_left_out_are_left_out() {
    let parts = ["split_k=2", "tensor_op=wgmma,copy=tma,block_m=64,warps=4,block_n=32", "early_stop=off"];
    // What counts pages has them all walked.
    let counted = ["split_k=3", "block_m=16,warps=1,block_n=32,split_k=3,fixup=semaphore"];
    for (seen, data) in [
        ("c < 2 || c >= len", "len:constant=4"),
        ("c * N + pos(j) >= len && c != 3", "len:constant=30"),
        ("c * N + pos(j) < len", "len:constant=40"),
        ("c * N + pos(j) < len", "len:constant=0"),
    ] {
        for start in [NOTHING_SEEN, SINKS] {
            judge(&pages(start, seen, ""), data, &parts);
            judge(&pages(start, seen, "pages += 1.0;"), data, &counted);
        }
    }
}

/// One loop over positions, of which a mask leaves two runs.
#[test]
fn positions_behind_a_gap_are_read_where_they_are() {
    let text = "pub fn f<const D: usize>(x: &Tensor<f32, (C, M, D)>, len: i32, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut l = zeros(i);
        for c in 0..C { l += rowsum(select(c < 2 || c >= len, load(x, [c, i, ..]), 0.0)); }
        store(o, [i], l);
    }";
    for len in [0, 3, 4, 9] {
        judge(text, &format!("len:constant={len}"), &["block_m=16,warps=1,split_k=2"]);
    }
}

/// What single positions load is in flight for several of them together, unless a position needs
/// the one before. The last positions may be fewer. A number that a loop carries is stored in every
/// row.
#[test]
fn positions_load_ahead_of_what_is_computed_of_them() {
    let text = |bounds: &str, at: &str| {
        format!(
            "pub fn f(
                x: &Tensor<f32, (N, M)>, w: &Tensor<f32, (N)>, next: &Tensor<i32, (N)>, table: &Tensor<f32, (K)>,
                o: &mut Tensor<f32, (M)>, last: &mut Tensor<i32, (M)>, first: &mut Tensor<f32, (M, N)>,
            ) {{
                let i = program(tiles(M));
                let mut sum = zeros(i);
                let mut at = 1;
                let mut scale = 1.0;
                for t in {bounds} {{
                    at = {at};
                    scale = scale * 0.5 + load(w, [t]);
                    sum = sum * 0.5 + load(x, [t, i]) * load(w, [t]) + load(table, [at]);
                }}
                store(o, [i], sum * scale);
                store(last, [i], at);
                for j in tiles(N) {{ store(first, [i, j], scale); }}
            }}"
        )
    };
    let data = "next:range=0..3";
    for (bounds, at) in [("0..N", "load(next, [t])"), ("1..N - 1", "load(next, [t])"), ("0..K", "load(next, [t + 2])")] {
        judge(&text(bounds, at), data, &[]);
    }
    judge(&text("0..N", "load(next, [at])"), data, &[]);
    let code = |at: &str| {
        let source = SourceText { name: "walk.rs".into(), text: text("0..N", at).into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).expect("is a kernel").remove(0);
        let binding = Binding::new(&kernel, Elem::F32, std::iter::empty::<(&str, i64)>());
        let instance = Instance { facts: Facts::best(&kernel), binding, kernel };
        let arch = Arch::named("sm_80").expect("in the table");
        flashtile_codegen::generate(&instance, &Schedule::default(), arch).expect("has code").source
    };
    let ahead = "EACH(ahead, 8) if (t_lot + ahead < t_end) {";
    assert_eq!(code("load(next, [t])").matches(ahead).count(), 2, "{}", code("load(next, [t])"));
    // Of a walk from pointer to pointer the other loads are ahead, and the pointers are not.
    let (alone, both) = (code("load(next, [at])"), code("load(next, [t])"));
    let in_front = |code: &str| code.split(ahead).nth(1).expect("it loads ahead").contains("params.next");
    assert_eq!((in_front(&alone), in_front(&both)), (false, true), "{alone}\n{both}");
}

/// Queries that see pages up to their own position: the maximum moves seldom within a page and between
/// pages, and long programs begin first. A reference from the first tile is of one loop.
#[test]
fn walks_over_pages_have_lazy_maxima_and_begin_with_long_programs() {
    let text = include_str!("../asked/paged_prefill.rs");
    let data = "table:range=0..4 lens:range=21..150";
    let warps = "block_m=16,warps=1,block_n=16,order=lpt";
    let warpgroups = "tensor_op=wgmma,copy=tma,block_m=64,warps=4,block_n=16,persistent=dynamic,order=lpt";
    let schedules = [
        format!("{warps},running_max=max_first"),
        format!("{warps},running_max=optimistic,stages=1"),
        format!("{warpgroups},running_max=max_first,overlap=on"),
        format!("{warpgroups},running_max=optimistic,overlap=on"),
        format!("{warpgroups},running_max=optimistic,overlap=late"),
        format!("{warpgroups},running_max=optimistic,overlap=off"),
    ];
    // References stay, and move in most steps.
    for data in [data.to_owned(), format!("{data} k:growth=60")] {
        judge(text, &data, &schedules.each_ref().map(String::as_str));
    }
    let source = SourceText { name: "walk.rs".into(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).expect("is a kernel").remove(0);
    let binding = Binding::new(&kernel, Elem::F16, [("D", 32), ("S", 32)]);
    let instance = Instance { facts: Facts::best(&kernel), binding, kernel };
    let first = format!("{warpgroups},running_max=first,overlap=on").parse().expect("a schedule");
    let legality = check(&instance, &first, Arch::named("sm_90a").expect("in the table"));
    let reasons: Vec<String> = legality.reasons.iter().map(ToString::to_string).collect();
    assert!(reasons.iter().any(|why| why.contains("asks at the end of its loop, once a program")), "{reasons:?}");
}

/// What a loop over columns gives is complete for the loop around it and the one behind it.
#[test]
fn sums_of_a_loop_are_complete_for_other_loops() {
    let inside = |added: &str| {
        format!(
            "pub fn f(x: &Tensor<f32, (P, M, N)>, o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut all = zeros(i);
                for c in 0..P {{
                    let mut sum = zeros(i);
                    for j in tiles(N) {{ sum += rowsum(load(x, [c, i, j])); }}
                    all += {added};
                }}
                store(o, [i], all);
            }}"
        )
    };
    let behind = "pub fn f(x: &Tensor<f32, (M, N)>, z: &Tensor<f32, (P)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut sum = zeros(i);
        for j in tiles(N) { sum += rowsum(load(x, [i, j])); }
        let mut all = zeros(i);
        for c in 0..P { all += sum * load(z, [c]); }
        store(o, [i], all);
    }";
    let schedules = ["block_m=16,warps=1,block_n=32,split_k=2", "block_m=32,warps=4,column_groups=2,block_n=32"];
    for text in [inside("sum"), inside("sum * 2.0"), inside("sum + sum")] {
        judge(&text, "", &schedules);
    }
    judge(behind, "", &schedules[1..]);
}

/// A mask of a loop inside that keeps nothing, beside one that bounds the outer loop.
#[test]
fn a_mask_that_keeps_nothing_is_applied_in_the_loop_inside() {
    let text = "pub fn f(x: &Tensor<f32, (C, M, N)>, len: i32, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        for c in 0..C {
            for j in tiles(N) {
                let s = mask(load(x, [c, i, j]), c < len);
                m = max(m, rowmax(mask(s, pos(j) * 0 > 0)));
            }
        }
        store(o, [i], m);
    }";
    judge(text, "len:constant=4", &["block_m=16,warps=1,block_n=32,split_k=2"]);
}

/// Three loops, of which the middle one counts beside what it hands on.
#[test]
fn three_loops_are_one_walk() {
    let text = "pub fn f<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>, k: &Tensor<T, (A, P, N, D)>, v: &Tensor<T, (A, P, N, D)>, len: i32,
        o: &mut Tensor<T, (M, D)>, count: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        let mut pages = zeros(i);
        for a in 0..A {
            for c in 0..P {
                pages += 1.0;
                for j in tiles(N) {
                    let s = mask(dot(q_i, load(k, [a, c, j, ..]).t()), a * 7 + c * N + pos(j) < len);
                    let m_new = max(m, rowmax(s));
                    let m_ref = visible_or_zero(m_new);
                    let alpha = exp(m - m_ref);
                    let p = exp(s - m_ref);
                    l = l * alpha + rowsum(p);
                    acc = acc * alpha + dot(p.to::<T>(), load(v, [a, c, j, ..]));
                    m = m_new;
                }
            }
        }
        store(o, [i, ..], div_or_zero(acc, l));
        store(count, [i], pages);
    }";
    judge(text, "len:constant=31", &["split_k=2", "block_m=16,warps=1,block_n=32,split_k=2,fixup=semaphore"]);
}

/// Columns that lie apart: of wide rows, which are walked in passes, and of rows of a loop.
#[test]
fn rows_whose_columns_lie_apart_may_be_wide() {
    let text = "pub fn f<const E: usize>(x: &Tensor<f16, (M, E, 2)>, y: &mut Tensor<f16, (M, E, 2)>) {
        let i = program(tiles(M));
        let a = load(x, [i, .., 1]);
        store(y, [i, .., 1], a * rsqrt(rowsum(a * a) / E + 0.001));
        store(y, [i, .., 0], load(x, [i, .., 0]));
    }";
    judge(text, "", &[]);
}
