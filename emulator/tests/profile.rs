//! What the profile counts, on kernels whose counts are known.

mod common;

use common::{Attention, Element, Shape, run_attention};
use flashtile_emulator::{InstructionKind, Module, Options, Profile};

const SHAPE: Shape = Shape { b: 1, h: 1, g: 1, m: 64, n: 128, d: 64 };

fn profile(text: &str, tile: usize, launch: (u32, u32)) -> Profile {
    let module = Module::load(text).expect("loads");
    let problem = Attention::new(SHAPE, false, Element::F16);
    let mut options = Options::default();
    options.profile = true;
    let kernel = module.kernel("attention").expect("is there");
    let (.., report) = run_attention(&kernel, &problem, Element::F16, tile, launch, &options);
    let profile = report.profile.expect("was asked for");
    assert_eq!(profile.total().lane_instructions, report.lane_instructions);
    profile
}

#[test]
fn tensor_operations_are_those_of_the_problem() {
    let total = profile(include_str!("data/attention_f16_sm_80.ptx"), 64, (128, 24576)).total();
    // Two products of m x n x d, a multiplication and an addition each.
    assert_eq!(total.tensor_operations, 2 * 2 * (SHAPE.m * SHAPE.n * SHAPE.d) as u64);
    // One exponential for each score, and few besides for the running maximum; 32 lanes an instruction.
    let special = total.kinds[&InstructionKind::Special];
    let scores = (SHAPE.m * SHAPE.n / 32) as u64;
    assert!((scores..scores + scores / 4).contains(&special), "{special} for {scores}");
}

#[test]
fn global_memory_is_read_once_for_each_tile() {
    let total = profile(include_str!("data/attention_f16_sm_80.ptx"), 64, (128, 24576)).total();
    // q, k and v by 16-byte copies; o and lse stored. One row block walks all keys.
    let (rows, columns) = ((SHAPE.m * SHAPE.d * 2) as u64, (SHAPE.n * SHAPE.d * 2) as u64);
    assert_eq!(total.global_bytes, 2 * rows + 2 * columns + 4 * SHAPE.m as u64);
    assert_eq!(total.sectors, total.global_bytes / 32);
}

#[test]
fn bank_conflicts_are_those_of_the_layout() {
    let swizzled = profile(include_str!("data/attention_f16_sm_80.ptx"), 64, (128, 24576)).total();
    assert_eq!((swizzled.worst_conflict, swizzled.conflicts()), (1, 0));
    // Rows of 128 bytes, one below the other: all eight rows of a matrix begin on the same bank.
    let plain = profile(include_str!("data/attention_plain_f16_sm_80.ptx"), 16, (32, 6144));
    assert_eq!(plain.total().worst_conflict, 8);
    for i in plain.instructions.iter().filter(|i| i.instruction.starts_with("ldmatrix")) {
        assert_eq!(i.work.wavefronts, 8 * i.work.ideal_wavefronts, "{i:?}");
    }
}

#[test]
fn work_counts_to_lines_of_the_kernel() {
    let profile = profile(include_str!("data/attention_f16_sm_80.ptx"), 64, (128, 24576));
    let lines = profile.by_line();
    let of_kernel: Vec<_> = lines.iter().filter(|l| l.line.as_ref().is_some_and(|l| &*l.file == "attention.rs")).collect();
    let tensor: u64 = of_kernel.iter().map(|l| l.work.tensor_operations).sum();
    assert_eq!(tensor, profile.total().tensor_operations, "products count to the lines of the kernel text");
    assert!(of_kernel.iter().filter(|l| l.work.tensor_operations > 0).count() >= 2, "q k and p v");
    let source: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    let annotated = profile.annotate("attention.rs", &source);
    assert_eq!(annotated.lines().count(), 41);
    let line = annotated.lines().find(|l| l.ends_with("| line 27")).expect("is there");
    assert!(line.split_whitespace().next().is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)), "{annotated}");
    let table = profile.to_string();
    assert!(table.lines().last().is_some_and(|l| l.ends_with("total")), "{table}");
}
