//! Compiled kernels on the emulator: the small cases of the conformance suite, on the path of each architecture that CI cannot
//! run on a GPU, and a sample of schedules in which every two values of knobs meet. No result is wrong, and the emulator finds
//! no fault. Needs NVRTC, no GPU.
//!
//! The sample is another one in every run, executed in an order of its own, and so is the share of
//! the small cases; the seed is printed, and `FLASHTILE_SEED` repeats it. The sample has more than
//! 60% of all pairs; `FLASHTILE_PAIRS=all` takes seven times as many schedules, which have 98%.

use std::collections::{BTreeMap, BTreeSet};

use flashtile::conformance::{Case, Prepared, Report, Values, cases, pairwise, run, run_samples, samples};
use flashtile::device::{EmulatedCode, Emulation};
use flashtile::emulator::Options;
use flashtile::toolchain::Toolchain;
use flashtile::verify::{HostArgument, Programs, Reference};
use flashtile::{Arch, Device, Elem, Error, LaunchOptions, verify};
use flashtile_tests::turns::Turn;

/// One architecture for each path: `mma.sync` of k = 8, `mma.sync` of k = 16 with `cp.async`, `wgmma` with TMA.
const ARCHS: [&str; 3] = ["sm_75", "sm_80", "sm_90a"];
/// Schedules drawn, among which the sample is chosen.
const POOL: usize = 500;
/// Schedules of the sample, at most, and the part of the pairs of the pool that it has to have.
const SOME: (usize, f64) = (24, 0.6);
/// The same with `FLASHTILE_PAIRS=all`.
const ALL: (usize, f64) = (160, 0.98);

fn arch(name: &str) -> &'static Arch {
    Arch::named(name).expect("in the table")
}

fn options(arch: &'static Arch, options: Options) -> LaunchOptions {
    let emulation = Emulation { options, ..Emulation::default() };
    LaunchOptions { toolchain: Toolchain::shared(), arch: Some(arch), emulation, ..LaunchOptions::default() }
}

/// The cases that are quick, of types that the architecture has.
fn small(arch: &Arch) -> Vec<Case> {
    cases().into_iter().filter(|case| case.small && (arch.bf16 || case.elem != Elem::Bf16)).collect()
}

/// Parts of the other small cases, of which a run has one. No multiple of how many architectures a case
/// has, so that runs take it to each of these.
const SHARES: usize = 11;

/// Of each kernel the first of these cases, and of the others a share: each is run on one
/// architecture, others in another run. `FLASHTILE_PAIRS=all` runs all on each.
fn small_in_turn(arch: &Arch, turn: Turn) -> Vec<Case> {
    // Of each kernel its place among them, and how many of its cases came before.
    let mut before: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    let mut chosen = Vec::new();
    for case in cases().into_iter().filter(|case| case.small) {
        let able: Vec<&str> = ARCHS.into_iter().filter(|name| self::arch(name).bf16 || case.elem != Elem::Bf16).collect();
        let kernels = before.len();
        let (place, number) = before.entry(case.kernel).or_insert((kernels, 0));
        let is_here = turn.some_of(*place + *number, &able).any(|name| *name == arch.name);
        if is_here && (*number == 0 || turn.has(*number / able.len(), SHARES)) {
            chosen.push(case);
        }
        *number += 1;
    }
    chosen
}

/// One of so many of the cases, others for each `number` and in each run.
fn in_turn(each: usize, cases: Vec<Case>, number: usize) -> Vec<Case> {
    assert!(cases.len() >= each, "one of {each} is none of {} cases in some run", cases.len());
    let turn = Turn::of_run();
    cases.into_iter().enumerate().filter(|(index, _)| turn.has(index + number, each)).map(|(_, case)| case).collect()
}

fn judge(what: &str, report: &Report) {
    assert!(report.failures().next().is_none(), "{what}\n{report}");
}

#[test]
fn the_small_cases_are_right_on_every_path() {
    let turn = Turn::of_run();
    for arch in ARCHS.map(arch) {
        let cases = if turn.takes_all { small(arch) } else { small_in_turn(arch, turn) };
        judge(arch.name, &run(&Device::emulator(), &options(arch, Options::default()), &cases));
    }
}

/// Each run takes every kernel to some architecture, and runs that follow each other take every case
/// to every architecture that has its types.
#[test]
fn runs_in_turn_take_every_small_case_to_every_path() {
    let kernels: BTreeSet<&str> = cases().into_iter().filter(|case| case.small).map(|case| case.kernel).collect();
    assert!(kernels.len() > 30, "{} kernels", kernels.len());
    let mut taken: BTreeSet<(&str, String)> = BTreeSet::new();
    for seed in 0..(SHARES * 6) as u64 {
        let turn = Turn { seed, takes_all: false };
        let of_run: Vec<_> =
            ARCHS.into_iter().flat_map(|name| small_in_turn(arch(name), turn).into_iter().map(move |c| (name, c))).collect();
        let run: BTreeSet<&str> = of_run.iter().map(|(_, case)| case.kernel).collect();
        assert_eq!(run, kernels, "FLASHTILE_SEED={seed}");
        taken.extend(of_run.iter().map(|(name, case)| (*name, case.name())));
    }
    let all = ARCHS.into_iter().flat_map(|name| small(arch(name)).into_iter().map(move |case| (name, case.name())));
    assert_eq!(taken, all.collect());
}

#[test]
fn schedules_in_which_all_pairs_of_knobs_meet_are_right_in_any_order_of_execution() {
    let Turn { seed, takes_all } = Turn::of_run();
    let (most, least) = if takes_all { ALL } else { SOME };
    for arch in ARCHS.map(arch) {
        let pool = samples(&small(arch), arch, POOL, seed).expect("draws");
        let (sample, covered) = pairwise(pool, most);
        let what = format!("FLASHTILE_SEED={seed} on {arch}: {} schedules, {:.1} % of all pairs", sample.len(), 100.0 * covered);
        println!("{what}");
        assert!(covered >= least, "{what}");
        // A failure names its schedule; --emulate landing=random,order=random,seed=SEED repeats the order.
        let report = run_samples(&Device::emulator(), &options(arch, Options::random(seed)), &sample, |_| {});
        for (sample, result) in sample.iter().zip(&report.cases) {
            assert_eq!(result.failure, None, "{what}\n{} with schedule={}", result.name, sample.schedule);
        }
    }
}

/// The loop outside and rows inside, with the state in global memory: on each path of warps, with each kind of copy.
#[test]
fn exchanged_loops_are_right_in_any_order_of_execution() {
    let tile = "loop_order=interchanged,block_m=32,block_n=32,warps=2";
    let paths = [
        ("sm_80", Elem::F32, "tensor_op=ffma,copy=sync,stages=1,swizzle=off"),
        ("sm_80", Elem::F32, "tensor_op=ffma,copy=cp_async,stages=2,edges=every"),
        ("sm_75", Elem::F16, "tensor_op=mma_m16n8k8,copy=sync,stages=1,b_layout=pretransposed"),
        ("sm_80", Elem::F16, "tensor_op=mma_m16n8k16,copy=cp_async,stages=1"),
        ("sm_80", Elem::F16, "tensor_op=mma_m16n8k16,copy=cp_async,stages=3,operand_a=registers"),
        ("sm_80", Elem::Bf16, "tensor_op=mma_m16n8k16,copy=cp_async,stages=2,exponential=exp"),
    ];
    for (seed, (arch_name, elem, knobs)) in paths.into_iter().enumerate() {
        let arch = arch(arch_name);
        let kernels = ["attention", "causal_attention", "rope_attention"];
        let fits = |case: &Case| {
            let transposes = !knobs.contains("pretransposed") || case.kernel != "rope_attention";
            let aligned = case.facts().is_ok_and(|facts| facts.alignment >= 4);
            case.elem == elem && kernels.contains(&case.kernel) && aligned && transposes
        };
        let cases: Vec<Case> = small(arch).into_iter().filter(fits).collect();
        assert!(cases.len() >= 4, "{} cases of {elem:?} on {arch}", cases.len());
        let schedule = Some(format!("{tile},{knobs}").parse().expect("a schedule"));
        let options = LaunchOptions { schedule, ..options(arch, Options::random(seed as u64)) };
        judge(knobs, &run(&Device::emulator(), &options, &in_turn(3, cases, seed)));
    }
}

/// K and V copied to padded rows before: on each path, in parts too.
#[test]
fn copied_operands_are_right_in_any_order_of_execution() {
    let paths = [
        ("sm_80", Elem::F16, "copy=cp_async,stages=2,block_m=32,block_n=32,warps=2"),
        ("sm_80", Elem::Bf16, "copy=cp_async,stages=1,split_k=2"),
        ("sm_90a", Elem::Bf16, "tensor_op=wgmma,copy=tma,block_n=32,stages=2"),
        ("sm_90a", Elem::F16, "tensor_op=wgmma,copy=tma,block_n=16,split_k=2,fixup=semaphore"),
    ];
    // Rows within lines of 128 bytes, and rows that begin anywhere, which neither TMA nor cp.async
    // of 16 bytes could read.
    let anywhere = paths.into_iter().filter(|(_, elem, _)| *elem == Elem::F16).map(|path| (path, false));
    let paths = paths.into_iter().map(|path| (path, true)).chain(anywhere);
    for (seed, ((arch_name, elem, knobs), aligned)) in paths.enumerate() {
        let arch = arch(arch_name);
        let fits = |case: &Case| {
            let within_lines = case.consts.iter().any(|&(name, d)| name == "D" && d % 64 != 0);
            let bytes = case.facts().map_or(0, |facts| facts.alignment);
            let fits = if aligned { bytes >= 16 && within_lines } else { bytes < 16 };
            case.elem == elem && ["attention", "causal_attention"].contains(&case.kernel) && fits
        };
        let cases: Vec<Case> = small(arch).into_iter().filter(fits).collect();
        assert!(cases.len() >= 2, "{} cases of {elem:?} on {arch}", cases.len());
        let schedule = Some(format!("b_layout=copied,{knobs}").parse().expect("a schedule"));
        let options = LaunchOptions { schedule, ..options(arch, Options::random(seed as u64)) };
        judge(knobs, &run(&Device::emulator(), &options, &in_turn(2, cases, seed)));
    }
}

/// Paths on which loops are walked in other orders than the text says.
const REORDERED: [(&str, Elem, &str); 6] = [
    ("sm_75", Elem::F16, "tensor_op=mma_m16n8k8,copy=sync,stages=2"),
    ("sm_80", Elem::F32, "tensor_op=ffma,copy=cp_async,stages=2,edges=every,block_m=32,block_n=64,warps=2"),
    ("sm_80", Elem::Bf16, "copy=cp_async,stages=1,early_stop=off"),
    ("sm_80", Elem::F16, "copy=cp_async,stages=3,block_n=32,split_k=2"),
    ("sm_90a", Elem::Bf16, "tensor_op=wgmma,copy=tma,block_n=32,stages=3"),
    ("sm_90a", Elem::F16, "tensor_op=wgmma,copy=tma,block_m=128,warps=8,overlap=on,persistent=dynamic,outer_stages=2"),
];
const MAXIMA: [&str; 3] = ["exact", "max_first", "optimistic"];
/// Orders that are not those of the text.
const OTHER_WALKS: [&str; 2] = ["descending", "last_first"];

/// One of the ways to walk on each path, another one in each run.
#[test]
fn loops_walked_in_other_orders_are_right_in_any_order_of_execution() {
    let ways: Vec<_> = MAXIMA.iter().flat_map(|maximum| OTHER_WALKS.map(|walk| (maximum, walk))).collect();
    let turn = Turn::of_run();
    let paths = REORDERED.into_iter().enumerate();
    for (seed, (arch_name, elem, knobs), (maximum, walk)) in
        paths.flat_map(|(at, path)| turn.some_of(at, &ways).map(move |way| (at, path, way)))
    {
        let arch = arch(arch_name);
        let fits = |case: &Case| {
            let kernels = ["attention", "causal_attention", "sliding_window", "prefix_attention"];
            let aligned = case.facts().is_ok_and(|facts| facts.alignment >= 16);
            case.elem == elem && kernels.contains(&case.kernel) && aligned
        };
        let cases: Vec<Case> = small(arch).into_iter().filter(fits).collect();
        // A seventh in each: of six ways, so that every way meets every case in some run.
        let cases = in_turn(7, cases, seed);
        let schedule = format!("{knobs},running_max={maximum},walk={walk}");
        let options = options(arch, Options::random(seed as u64));
        let options = LaunchOptions { schedule: Some(schedule.parse().expect("a schedule")), ..options };
        judge(&schedule, &run(&Device::emulator(), &options, &cases));
    }
}

/// The tiles of a list in each order: what is copied, and what a condition says of it, are of one
/// tile.
#[test]
fn listed_tiles_walked_in_other_orders_are_right_in_any_order_of_execution() {
    let kernels = ["block_attention", "tree_attention"];
    for (seed, (arch_name, elem, knobs)) in REORDERED.into_iter().enumerate() {
        let arch = arch(arch_name);
        let fits = |case: &Case| {
            let aligned = case.facts().is_ok_and(|facts| facts.alignment >= 16);
            case.elem == elem && kernels.contains(&case.kernel) && aligned
        };
        let cases: Vec<Case> = small(arch).into_iter().filter(fits).collect();
        assert!(cases.len() >= 4, "{} cases of {elem:?} on {arch}", cases.len());
        // Tiles are listed to be skipped.
        let knobs = knobs.replace(",early_stop=off", "");
        for (number, walk) in ["ascending", "descending", "last_first"].into_iter().enumerate() {
            let cases = in_turn(4, cases.clone(), seed + number);
            let schedule = format!("{knobs},summaries=listed,walk={walk}");
            let options = options(arch, Options::random(seed as u64));
            let options = LaunchOptions { schedule: Some(schedule.parse().expect("a schedule")), ..options };
            judge(&schedule, &run(&Device::emulator(), &options, &cases));
        }
    }
}

/// Scores that grow along the keys, so that the tile that is walked first holds the maximum, and the
/// same keys turned round, so that every tile that is walked moves it. A quarter of the ways, others in
/// other runs.
#[test]
fn scores_that_grow_along_either_walk_are_right() {
    let ways: Vec<_> = OTHER_WALKS.iter().flat_map(|walk| ["max_first", "optimistic"].map(|maximum| (walk, maximum))).collect();
    let turn = Turn::of_run();
    let paths = REORDERED.into_iter().enumerate();
    for ((arch_name, elem, knobs), (walk, maximum)) in
        paths.flat_map(|(at, path)| turn.some_of(at, &ways).map(move |way| (path, way)))
    {
        let wanted = |case: &Case| case.kernel == "causal_attention" && case.elem == elem && case.name().ends_with("growing300x");
        let sizes = vec![("B", 1), ("H", 1), ("G", 1), ("M", 40), ("N", 300)];
        let case = Case { sizes, ..cases().into_iter().find(wanted).expect("in the table") };
        let schedule = format!("{knobs},running_max={maximum},walk={walk}");
        judge_changed(&case, arch_name, &schedule, &[&|_| (), &|arguments| turn_keys_round(arguments)]);
    }
}

fn turn_keys_round(arguments: &mut [HostArgument]) {
    let HostArgument::Input(k) = &mut arguments[1] else { panic!("the second parameter is k") };
    let columns = *k.shape.last().expect("a matrix");
    let rows: Vec<Vec<f64>> = k.to_f64().chunks(columns).rev().map(<[f64]>::to_vec).collect();
    k.write_f64(&rows.concat());
}

/// A change of arguments.
type Change<'a> = &'a dyn Fn(&mut [HostArgument]);

/// Executes a case with its arguments changed in each of these ways, and judges its outputs.
fn judge_changed(case: &Case, arch_name: &str, schedule: &str, changes: &[Change<'_>]) {
    let Prepared { kernel, arguments, .. } = case.prepare().expect("prepares");
    let sizes = case.all_sizes();
    let sizes: Vec<i64> = kernel.ir().sizes.values().map(|size| sizes[size.name.as_str()]).collect();
    let options = options(arch(arch_name), Options::default());
    let options = LaunchOptions { schedule: Some(schedule.parse().expect("a schedule")), ..options };
    let loaded = kernel.on_with(&Device::emulator(), options).expect("loads");
    for change in changes {
        let mut arguments = arguments.clone();
        change(&mut arguments);
        let reference = Reference::new(&kernel, &sizes, &arguments, Programs::All).expect("runs");
        verify::run(&loaded, &mut arguments).expect("runs");
        for verdict in reference.check(&arguments) {
            assert!(verdict.passed(), "{schedule}\n{verdict}");
        }
    }
}

/// A bias hides with the least number of its type, which is finite: all keys of some rows, the first
/// ones or the last ones of others. A row of which all is hidden weighs its keys alike. Each path has
/// one maximum, another one in each run.
#[test]
fn what_is_hidden_by_a_finite_number_is_right() {
    let turn = Turn::of_run();
    let ways =
        REORDERED.into_iter().enumerate().flat_map(|(at, way)| turn.some_of(at, &MAXIMA).map(move |maximum| (way, maximum)));
    for ((arch_name, elem, knobs), maximum) in ways {
        let wanted = |case: &Case| case.kernel == "bias_attention" && case.elem == elem;
        let sizes = vec![("B", 1), ("H", 1), ("G", 1), ("M", 40), ("N", 200)];
        let case = Case { sizes, ..cases().into_iter().find(wanted).expect("in the table") };
        let hide = |arguments: &mut [HostArgument]| {
            let HostArgument::Input(bias) = &mut arguments[4] else { panic!("the fifth parameter is the bias") };
            let least = if elem == Elem::F16 { -65504.0 } else { -3.3e38 };
            let hides = |row: usize, key: usize| match row % 4 {
                0 => true,
                1 => key < 150,
                2 => key >= 50,
                _ => false,
            };
            let mut values = bias.to_f64();
            for (at, value) in values.iter_mut().enumerate() {
                *value = if hides(at / 200, at % 200) { least } else { *value };
            }
            bias.write_f64(&values);
        };
        judge_changed(&case, arch_name, &format!("{knobs},running_max={maximum}"), &[&hide]);
    }
}

/// Scores that grow past the room of the first maximum, along either walk: every program is made
/// again. Rows that see nothing of the first tile of a walk: some are. In each block several
/// programs are, and one after the other where few blocks run.
#[test]
fn programs_that_are_made_again_are_right() {
    let base = "tensor_op=wgmma,copy=tma,block_m=128,warps=8,block_n=16,stages=2,min_blocks=1,running_max=first";
    let ways = [
        "overlap=on,persistent=static,ping_pong=products,outer_stages=2",
        "overlap=on,persistent=dynamic,order=lpt,walk=descending",
        "overlap=late,persistent=dynamic",
    ];
    for (seed, way) in ways.into_iter().enumerate() {
        let wanted =
            |case: &Case| case.kernel == "causal_attention" && case.elem == Elem::Bf16 && case.name().ends_with("growing300x");
        let sizes = vec![("B", 1), ("H", 2), ("G", 1), ("M", 300), ("N", 300)];
        let case = Case { sizes, ..cases().into_iter().find(wanted).expect("in the table") };
        let Prepared { kernel, mut arguments, .. } = case.prepare().expect("prepares");
        let sizes = case.all_sizes();
        let sizes: Vec<i64> = kernel.ir().sizes.values().map(|size| sizes[size.name.as_str()]).collect();
        let schedule = format!("{base},{way}");
        let options = options(arch("sm_90a"), Options::random(seed as u64));
        let options = LaunchOptions { schedule: Some(schedule.parse().expect("a schedule")), ..options };
        let loaded = kernel.on_with(&Device::emulator(), options).expect("loads");
        for turned in [false, true] {
            if turned {
                turn_keys_round(&mut arguments);
            }
            let reference = Reference::new(&kernel, &sizes, &arguments, Programs::All).expect("runs");
            // The second launch finds the lists of the first as empty as that did. It begins with what
            // the first made all programs again with.
            for _ in 0..2 {
                verify::run(&loaded, &mut arguments).expect("runs");
                for verdict in reference.check(&arguments) {
                    assert!(verdict.passed(), "{schedule}, keys turned round: {turned}\n{verdict}");
                }
            }
        }
    }
}

/// A launch behind one that made many programs again makes none twice, and one in 65 tries whether
/// data have changed. Where they have, all launches do without.
#[test]
fn launches_remember_that_programs_were_made_again() {
    let wanted = |name: &str| cases().into_iter().find(|case| case.name() == name).expect("in the table");
    let [growing, normal] = ["growing300x", "normal"].map(|values| {
        let growing = wanted("causal_attention/bf16/B1_H2_G1_M129_N515_D64/growing300x");
        let sizes = vec![("B", 1), ("H", 1), ("G", 1), ("M", 64), ("N", 64)];
        let values = if values == "normal" { Values::Normal } else { growing.values };
        Case { sizes, values, ..growing }.prepare().expect("prepares")
    });
    let schedule = "tensor_op=wgmma,copy=tma,block_n=16,stages=2,min_blocks=1,running_max=first,overlap=on,persistent=static";
    let options = options(arch("sm_90a"), Options::default());
    let options = LaunchOptions { schedule: Some(schedule.parse().expect("a schedule")), ..options };
    let loaded = growing.kernel.on_with(&Device::emulator(), options).expect("loads");
    let work = |prepared: &Prepared| {
        verify::run(&loaded, &mut prepared.arguments.clone()).expect("runs");
        loaded.reports()[0].warp_instructions
    };
    let found: Vec<u64> = (0..67).map(|_| work(&growing)).collect();
    let twice: Vec<usize> = (0..67).filter(|&n| found[n] * 4 > found[0] * 3).collect();
    assert_eq!(twice, [0, 65], "{found:?}");
    let found: Vec<u64> = (0..67).map(|_| work(&normal)).collect();
    let (wary, settled) = (&found[..63], &found[63..]);
    assert!(wary.iter().all(|n| *n == wary[0]) && settled.iter().all(|n| *n == settled[0]), "{found:?}");
    assert_ne!(wary[0], settled[0]);
}

/// Cases of attention with few rows and grouped heads.
fn few_rows(elem: Elem) -> Vec<Case> {
    let size = |case: &Case, name: &str| case.sizes.iter().find(|(n, _)| *n == name).expect("a size of attention").1;
    let fits = |case: &Case| {
        let attends = ["attention", "causal_attention"].contains(&case.kernel);
        case.small && attends && case.elem == elem && size(case, "M") < 20 && size(case, "H") > size(case, "G")
    };
    cases().into_iter().filter(fits).collect()
}

/// The rows of the heads of a group as rows of one tile: on each path, with parts of the loop combined in each way.
#[test]
fn folded_rows_are_right_in_any_order_of_execution() {
    let paths = [
        ("sm_80", Elem::F32, "block_m=32,block_n=32,warps=2,tensor_op=ffma,copy=sync,stages=1,swizzle=off,split_k=3"),
        ("sm_75", Elem::F16, "block_m=16,warps=1,tensor_op=mma_m16n8k8,copy=sync,stages=1,b_layout=pretransposed"),
        ("sm_80", Elem::Bf16, "block_m=16,block_n=32,warps=1,stages=3,split_k=2,fixup=semaphore,operand_a=registers"),
        ("sm_80", Elem::F16, "block_m=32,warps=1,block_n=32,loop_order=interchanged,copy=sync,stages=1"),
        ("sm_90a", Elem::F16, "block_m=16,warps=1,block_n=16,split_k=4,fixup=cluster"),
        ("sm_90a", Elem::Bf16, "tensor_op=wgmma,copy=tma,block_n=32,split_k=4"),
        ("sm_90a", Elem::F16, "tensor_op=wgmma,copy=tma,block_n=16,split_k=2,fixup=semaphore,running_max=max_first,overlap=on"),
        ("sm_90a", Elem::F16, "tensor_op=wgmma,copy=tma,persistent=dynamic,outer_stages=2"),
    ];
    for (seed, (arch_name, elem, knobs)) in paths.into_iter().enumerate() {
        let arch = arch(arch_name);
        let all = few_rows(elem).into_iter();
        let cases: Vec<Case> = all.filter(|case| case.facts().is_ok_and(|f| f.foldable && f.alignment == 16)).collect();
        // Packed, and of one row also as (batch, rows, heads, columns).
        assert!(cases.len() >= 5, "{} cases of {elem:?}", cases.len());
        let schedule = Some(format!("pack_gqa=on,{knobs}").parse().expect("a schedule"));
        let options = LaunchOptions { schedule, ..options(arch, Options::random(seed as u64)) };
        judge(knobs, &run(&Device::emulator(), &options, &cases));
    }
}

/// Rows that do not lie evenly, or groups of different sizes: a schedule that folds is refused, and the model's choice is right.
#[test]
fn rows_that_do_not_fold_are_refused_or_left_as_they_are() {
    let arch = arch("sm_90a");
    let all = few_rows(Elem::Bf16).into_iter();
    let cases: Vec<Case> = all.filter(|case| case.facts().is_ok_and(|facts| !facts.foldable)).collect();
    assert!(cases.len() >= 4, "{} cases", cases.len());
    judge("the model's choice", &run(&Device::emulator(), &options(arch, Options::default()), &cases));
    for case in &cases {
        let mut prepared = case.prepare().expect("prepares");
        let schedule = Some("pack_gqa=on".parse().expect("a schedule"));
        let folding = LaunchOptions { schedule, ..options(arch, Options::default()) };
        let loaded = prepared.kernel.on_with(&Device::emulator(), folding).expect("nothing is known of the arguments yet");
        let error = verify::run(&loaded, &mut prepared.arguments).expect_err("it cannot fold").to_string();
        let reason =
            "pack_gqa=on takes arguments of which it is known that H is a multiple of G, and heads of `q`, `o`, `lse` follow";
        assert!(error.contains(reason), "{}: {error}", case.name());
    }
}

/// One loaded kernel meets arguments that fold and others.
#[test]
fn every_launch_finds_out_whether_its_rows_fold() {
    let of = |text: &str| {
        let named = |case: &Case| case.name() == format!("attention/bf16/B1_H8_G2_M5_N77_D64/normal{text}");
        cases().into_iter().find(named).unwrap_or_else(|| panic!("no case {text}")).prepare().expect("prepares")
    };
    let (mut packed, mut inner) = (of(""), of("/bshd"));
    let load = |schedule| {
        let options = LaunchOptions { schedule, ..options(arch("sm_90a"), Options::default()) };
        packed.kernel.on_with(&Device::emulator(), options).expect("loads")
    };
    let (folding, free) = (load(Some("pack_gqa=on".parse().expect("a schedule"))), load(None));
    for _ in 0..2 {
        verify::run(&folding, &mut packed.arguments).expect("is right");
        assert!(verify::run(&folding, &mut inner.arguments).is_err(), "rows outside of heads");
        verify::run(&free, &mut packed.arguments).expect("is right");
        verify::run(&free, &mut inner.arguments).expect("is right");
    }
    let facts = |loaded: &flashtile::LoadedKernel| loaded.variants().iter().map(|v| v.facts.foldable).collect::<Vec<_>>();
    assert_eq!((facts(&folding), facts(&free)), (vec![true], vec![true, false]));
}

/// A barrier that is dropped from generated code is a race, of which both lines of the kernel text are told.
#[test]
fn a_planted_race_is_told_with_both_lines() {
    let arch = arch("sm_80");
    let name = "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal";
    let case = cases().into_iter().find(|case| case.name() == name).expect("in the table");
    let mut prepared = case.prepare().expect("prepares");
    let schedule = "block_m=64,block_n=64,stages=1".parse().expect("a schedule");
    let facts = case.facts().expect("binds");
    let source = flashtile::lowering::generate(&prepared.kernel.instance(facts), &schedule, arch).expect("generates").source;
    let barriers: Vec<usize> = source.match_indices("__syncthreads();").map(|(at, _)| at).collect();
    assert!(barriers.len() >= 2, "{source}");
    let mut launch = |source: &str| {
        let emulation = Emulation { code: Some(EmulatedCode::Cuda(source.into())), ..Emulation::default() };
        let options = LaunchOptions { schedule: Some(schedule.clone()), emulation, ..options(arch, Options::default()) };
        verify::run(&prepared.kernel.on_with(&Device::emulator(), options)?, &mut prepared.arguments)
    };
    launch(&source).expect("is right as generated");
    for at in barriers {
        let spoilt = format!("{}{}", &source[..at], &source[at + "__syncthreads();".len()..]);
        let error = launch(&spoilt).expect_err("a barrier is missing");
        let Error::Emulator(flashtile::device::EmulatorError::Findings { findings, .. }) = &error else { panic!("{error}") };
        let both = findings.iter().find_map(|f| Some((f.party.kernel_line()?, f.other.as_ref()?.kernel_line()?)));
        let (one, other) = both.unwrap_or_else(|| panic!("{error}"));
        assert!(one.file.ends_with("causal_attention.rs") && other.file.ends_with("causal_attention.rs"), "{error}");
        assert!((13..=25).contains(&one.line) && (13..=25).contains(&other.line), "{error}");
        assert!(error.to_string().contains(&one.to_string()), "{error}");
    }
}

/// Executes a kernel of the suite's case with knobs, as generated or as `spoil` makes it; gives the bytes of its outputs.
fn combined(arch_name: &str, knobs: &str, execution: Options, spoil: impl Fn(&str) -> String) -> Result<Vec<Vec<u8>>, Error> {
    let arch = arch(arch_name);
    let name = "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal";
    let case = cases().into_iter().find(|case| case.name() == name).expect("in the table");
    let mut prepared = case.prepare().expect("prepares");
    let schedule: flashtile::Schedule = format!("block_m=64,block_n=16,{knobs}").parse().expect("a schedule");
    let facts = case.facts().expect("binds");
    let source = flashtile::lowering::generate(&prepared.kernel.instance(facts), &schedule, arch).expect("generates").source;
    let emulation = Emulation { code: Some(EmulatedCode::Cuda(spoil(&source).into())), ..Emulation::default() };
    let options = LaunchOptions { schedule: Some(schedule), emulation, ..options(arch, execution) };
    verify::run(&prepared.kernel.on_with(&Device::emulator(), options)?, &mut prepared.arguments)?;
    Ok(prepared.arguments.iter().map(|argument| format!("{argument:?}").into_bytes()).collect())
}

const WAYS: [(&str, &str); 4] = [
    ("sm_80", "split_k=3,fixup=semaphore"),
    ("sm_90a", "split_k=4,fixup=semaphore,tensor_op=wgmma,copy=tma"),
    ("sm_90a", "split_k=4,fixup=cluster"),
    ("sm_90a", "split_k=2,fixup=cluster,tensor_op=wgmma,copy=tma"),
];

#[test]
fn parts_give_the_same_bits_in_every_order_of_execution() {
    for (arch, knobs) in WAYS {
        let run = |options| combined(arch, knobs, options, str::to_owned).unwrap_or_else(|error| panic!("{knobs}: {error}"));
        let first = run(Options::default());
        for seed in 0..4 {
            assert_eq!(run(Options::random(seed)), first, "{knobs} with seed {seed}");
        }
        let mut alone = Options::random(9);
        alone.parallel = false;
        assert_eq!(run(alone), first, "{knobs}, one block after another");
    }
}

#[test]
fn faults_where_parts_meet_are_found() {
    use flashtile::emulator::FindingKind;
    let kinds = |(arch, knobs): (&str, &str), spoil: &dyn Fn(&str) -> String| {
        let error = combined(arch, knobs, Options::default(), spoil).expect_err("a fault is planted");
        let Error::Emulator(flashtile::device::EmulatorError::Findings { findings, .. }) = &error else { panic!("{error}") };
        let kinds: Vec<FindingKind> = findings.iter().map(|f| f.kind).collect();
        (kinds, findings[0].to_string())
    };
    let without = |text: &'static str| {
        move |source: &str| {
            assert!(source.contains(text), "{source}");
            source.replacen(text, "", 1)
        }
    };
    // Nobody passes the turn on: the second part waits for ever.
    for way in [WAYS[0], WAYS[1]] {
        let kept = |source: &str| {
            source.replace("semaphore_set(params.workspace", "if (params.workspace == nullptr) semaphore_set(params.workspace")
        };
        let (kinds, text) = kinds(way, &kept);
        assert!(kinds.contains(&FindingKind::Deadlock), "{text}");
        assert!(text.contains("which no block that runs will write"), "{text}");
    }
    // Nobody waits for the turn: a block that is ahead of the others reads what is not there yet. Blocks in order of their
    // index hide it, so the last part takes the state of one that has not begun.
    let ahead = |source: &str| {
        let waits = "if (warp == 0 && lane == 0) semaphore_wait(";
        assert!(source.contains(waits), "{source}");
        source.replace(waits, "if (false) semaphore_wait(").replace("(int)blockIdx.x", "(int)(gridDim.x - 1 - blockIdx.x)")
    };
    let (found, text) = kinds(WAYS[0], &ahead);
    assert!(found.contains(&FindingKind::Uninitialised), "{text}");
    // No barrier of the cluster before the states are read, or before the block ends.
    for way in [WAYS[2], WAYS[3]] {
        let call = "  cluster_barrier();\n";
        let (found, text) = kinds(way, &without(call));
        assert!(found.contains(&FindingKind::Race) || found.contains(&FindingKind::Uninitialised), "{text}");
        let last = |source: &str| {
            let at = source.rfind(call).expect("a barrier at the end");
            format!("{}{}", &source[..at], &source[at + call.len()..])
        };
        let (found, text) = kinds(way, &last);
        assert!(found.contains(&FindingKind::OutOfBounds), "{text}");
    }
}
