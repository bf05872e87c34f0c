//! Schedules of the launches beside the main one: each launch has a name, knobs with that name in
//! front are about it alone, and names and values that mean nothing are refused.

use flashtile_codegen::{
    Arch, BlockKnobs, Facts, Generated, Instance, KNOBS, Overrides, Reason, Schedule, Scope, check, draw, generate,
};
use flashtile_dsl::ir::{Binding, Elem, SourceText};
use flashtile_tests::random::numbers;

const ATTENTION: &str = include_str!("../../runtime/kernels/attention.rs");
const ROPE: &str = include_str!("../../runtime/kernels/rope_attention.rs");

fn arch() -> &'static Arch {
    Arch::named("sm_80").expect("in the table")
}

fn instance(text: &str) -> Instance {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let binding = Binding::new(&kernel, Elem::F16, [("D", 64)]);
    Instance { facts: Facts::best(&kernel), kernel, binding }
}

fn generated(text: &str, knobs: &str) -> Generated {
    let schedule: Schedule = knobs.parse().unwrap_or_else(|error| panic!("{knobs}: {error}"));
    generate(&instance(text), &schedule, arch()).unwrap_or_else(|error| panic!("{knobs}: {error}"))
}

fn reasons(knobs: &str) -> Vec<Reason> {
    check(&instance(ATTENTION), &knobs.parse().expect("a schedule"), arch()).reasons
}

#[test]
fn every_launch_has_the_name_of_what_it_does() {
    let table: [(&str, &str, &[&str]); 6] = [
        (ATTENTION, "split_k=4", &["combine"]),
        (ATTENTION, "split_k=16,fixup=tree", &["group", "combine"]),
        (ATTENTION, "b_layout=pretransposed", &["transpose_k"]),
        (ATTENTION, "loop_order=interchanged", &["start", "finish"]),
        (ROPE, "precompute=b", &["prepare"]),
        (ROPE, "precompute=b,split_k=4", &["prepare", "combine"]),
    ];
    for (text, knobs, names) in table {
        let made = generated(text, knobs);
        let beside = made.launches.iter().enumerate().filter(|(number, _)| *number != made.main);
        let found: Vec<&str> = beside.clone().map(|(_, launch)| launch.name.as_str()).collect();
        assert_eq!(found, names, "{knobs}");
        for (_, launch) in beside {
            assert!(launch.abi.entry.ends_with(&format!("_{}", launch.name)), "{} is {}", launch.name, launch.abi.entry);
        }
    }
}

#[test]
fn knobs_of_a_launch_change_that_launch_alone() {
    let plain = generated(ATTENTION, "split_k=16,fixup=tree");
    let own = generated(ATTENTION, "split_k=16,fixup=tree,combine.block_m=64,combine.warps=8");
    for (before, after) in plain.launches.iter().zip(&own.launches) {
        if after.name == "combine" {
            assert_eq!((before.abi.threads, after.abi.threads), (128, 256));
            let expected = BlockKnobs { block_m: 64, warps: 8, ..before.knobs.clone() };
            assert_eq!(after.knobs, expected, "what is not given stays");
        } else {
            assert_eq!((&before.plan, &before.abi), (&after.plan, &after.abi), "{}", after.name);
        }
    }
    assert!(own.source.contains("// schedule: defaults,split_k=16,fixup=tree,combine.block_m=64,combine.warps=8\n"));
}

#[test]
fn a_launch_that_is_not_there_is_refused_with_those_that_are() {
    let named = |name: &str, known: &[&str]| Reason::Launch {
        name: name.to_owned(),
        known: known.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(reasons("split_k=4,merge.warps=1"), [named("merge", &["combine"])]);
    assert_eq!(reasons("combine.warps=1"), [named("combine", &[])]);
    assert_eq!(reasons("split_k=16,fixup=tree,partial.warps=1"), [named("partial", &["group", "combine"])]);
    assert_eq!(
        reasons("split_k=4,merge.warps=1")[0].to_string(),
        "there is no launch merge: beside the main one, whose knobs have no prefix, there is combine"
    );
}

#[test]
fn reasons_against_the_knobs_of_a_launch_name_it() {
    let beside = reasons("split_k=4,combine.block_m=40,combine.overlap=on");
    assert!(beside.iter().all(|reason| matches!(reason, Reason::Beside { launch, .. } if launch == "combine")), "{beside:?}");
    let told: Vec<String> = beside.iter().map(ToString::to_string).collect();
    assert!(told.contains(&"launch combine: block_m=40 is not a multiple of 16 up to 512".to_owned()), "{told:?}");
    assert!(told.contains(&"launch combine: overlap=on takes tensor_op=wgmma".to_owned()), "{told:?}");
}

/// The suites on the emulator take their schedules from the draw: launches beside must be in it.
#[test]
fn knobs_of_launches_beside_are_drawn_and_most_of_them_are_legal() {
    let (instance, mut next) = (instance(ROPE), numbers(11));
    let drawn: Vec<Schedule> = (0..400).map(|_| draw(&instance, arch(), &mut next)).collect();
    let with: Vec<&Schedule> = drawn.iter().filter(|schedule| !schedule.beside.is_empty()).collect();
    assert!(with.len() > 60, "{}", with.len());
    let legal = with.iter().filter(|schedule| check(&instance, schedule, arch()).is_legal()).count();
    assert!(2 * legal > with.len(), "{legal} of {}", with.len());
    let values = |name: &'static str| {
        let all = with.iter().flat_map(|schedule| schedule.beside.values().flat_map(Overrides::iter));
        all.filter(|(knob, _)| *knob == name).map(|(_, value)| value.to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    for name in ["block_m", "warps", "stages", "copy"] {
        assert!(values(name).len() > 1, "{name} is always {:?}", values(name));
    }
    assert!(KNOBS.iter().filter(|knob| knob.scope == Scope::Launches).all(|knob| values(knob.name).is_empty()));
}

/// `prepare` keeps the axis of the rows of queries, which its grid has not: its rows are those of
/// keys, and `block_m` is about them.
#[test]
fn block_m_of_a_launch_is_about_the_rows_of_its_own_grid() {
    let made = generated(ROPE, "precompute=ab,prepare_0.block_m=32,prepare_0.warps=2,prepare_1.block_m=128");
    let blocks: Vec<String> = made.launches.iter().map(|launch| format!("{:?}", launch.abi.grid.last())).collect();
    let sizes = [", 32)", ", 128)", ", 64)"];
    assert!(blocks.iter().zip(sizes).all(|(grid, size)| grid.contains(size)), "{blocks:?}");
}

#[test]
fn rows_that_do_not_divide_among_the_warps_are_refused() {
    const SWAPPED: &str = "pub fn swapped<T: Element, const D: usize>(
        a: &Tensor<T, (M, D)>, b: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (N, M)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        store(o, [j, i], dot(load(b, [j, ..]), load(a, [i, ..]).t()));
    }";
    let reasons = |block_n: u32| {
        let schedule = format!("block_m=64,warps=4,block_n={block_n}").parse().expect("a schedule");
        check(&instance(SWAPPED), &schedule, arch()).reasons
    };
    assert_eq!(reasons(64), []);
    assert_eq!(reasons(128), []);
    for block_n in [32, 96] {
        let told = reasons(block_n);
        assert!(matches!(&told[..], [Reason::Knobs { knob: "warps", .. }]), "{told:?}");
        let said = told[0].to_string();
        let rows = format!("has {block_n} rows, which are no multiple of 16 for each of 4 warps: change block_n or warps");
        assert!(said.contains(&rows), "{said}");
    }
}
