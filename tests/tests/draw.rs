//! Schedules with every knob drawn: a good part of them is legal, for every kernel and architecture, and every value of every
//! knob appears.

use std::collections::BTreeSet;

use flashtile::conformance::kernels::KERNELS;
use flashtile_codegen::{
    ARCHS, Arch, Facts, Instance, KNOBS, Schedule, TensorOp, check, draw, drawn_values, plans, with_row_axes,
};
use flashtile_dsl::ir::{Binding, Elem, SourceText};
use flashtile_tests::random::numbers;

const ATTENTION: &str = include_str!("../../runtime/kernels/attention.rs");
const BIAS_ATTENTION: &str = include_str!("../../runtime/kernels/bias_attention.rs");
const CAUSAL_ATTENTION: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const CAUSAL_ROPE_ATTENTION: &str = include_str!("../../runtime/kernels/causal_rope_attention.rs");
const MATMUL_GELU: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");
const ROW_SOFTMAX: &str = include_str!("../../runtime/kernels/row_softmax.rs");
const RELATIVE_ATTENTION: &str = include_str!("../../runtime/kernels/relative_attention.rs");
const KEY_BIAS: &str = include_str!("../filetests/generated/terms.ft");

/// Draws for each kernel and architecture.
const DRAWS: usize = 200;

fn instance(text: &str, elem: Elem, alignment: u32) -> Instance {
    instance_of(text, elem, alignment, 64)
}

fn instance_of(text: &str, elem: Elem, alignment: u32, head_dim: i64) -> Instance {
    let text = text.split("; run:").next().unwrap_or_default();
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = with_row_axes(&flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0));
    let dims = [("D", head_dim), ("E", 64)].into_iter().filter(|(name, _)| kernel.size_named(name).is_some());
    let dims = dims.filter(|(name, _)| text.contains(&format!("const {name}")));
    let binding = Binding::new(&kernel, elem, dims);
    Instance { facts: Facts { alignment, ..Facts::best(&kernel) }, kernel, binding }
}

fn drawn(instance: &Instance, arch: &'static Arch, seed: u64) -> Vec<Schedule> {
    draws(instance, arch, seed).take(DRAWS).collect()
}

/// Draws without end, each made when it is asked for.
fn draws(instance: &Instance, arch: &'static Arch, seed: u64) -> impl Iterator<Item = Schedule> {
    let mut next = numbers(seed);
    std::iter::repeat_with(move || draw(instance, arch, &mut next))
}

#[test]
fn a_good_part_of_the_draws_is_legal() {
    // The part that has to be legal. What is not needs more registers or shared memory than there is: most where operands have
    // 32 bits.
    let table = [
        (ATTENTION, Elem::F16, 16, 0.5),
        (ATTENTION, Elem::F16, 2, 0.5),
        (CAUSAL_ATTENTION, Elem::F32, 16, 0.15),
        (MATMUL_GELU, Elem::F16, 8, 0.75),
        (ROW_SOFTMAX, Elem::F16, 4, 0.8),
    ];
    for (text, elem, alignment, least) in table {
        let instance = instance(text, elem, alignment);
        for arch in ["sm_75", "sm_80", "sm_90a"].map(|name| Arch::named(name).expect("in the table")) {
            let legal = drawn(&instance, arch, 1).iter().filter(|s| check(&instance, s, arch).is_legal()).count();
            let name = &instance.kernel.name;
            assert!(legal as f64 >= least * DRAWS as f64, "{name} {elem:?} aligned to {alignment} on {arch}: {legal} of {DRAWS}");
        }
    }
}

/// `check` says of a plan that can be made what the verifier says, which must be nothing.
#[test]
fn no_drawn_schedule_has_a_wrong_plan() {
    let own = [ATTENTION, CAUSAL_ATTENTION, CAUSAL_ROPE_ATTENTION, MATMUL_GELU, ROW_SOFTMAX];
    let texts = own.into_iter().chain(KERNELS.iter().map(|kernel| kernel.text));
    let (mut made, mut seed) = (0, 40);
    for text in texts {
        for arch in ["sm_75", "sm_80", "sm_90a"].map(|name| Arch::named(name).expect("in the table")) {
            let instance = instance(text, Elem::F16, 16);
            seed += 1;
            for schedule in draws(&instance, arch, seed).take(20) {
                let Ok(plans) = plans(&instance, &schedule, arch) else { continue };
                made += plans.len();
                let reasons = check(&instance, &schedule, arch).reasons;
                assert_eq!(reasons, [], "{} on {arch} with {schedule}", instance.kernel.name);
            }
        }
    }
    assert!(made > 500, "only {made} plans");
}

#[test]
fn every_value_of_every_knob_is_in_some_legal_draw() {
    let values = KNOBS.iter().flat_map(|knob| drawn_values(knob).into_iter().map(|value| (knob.name, value)));
    let mut unseen: BTreeSet<_> = values.collect();
    // Integers that masks compare are summarised.
    let booleans = KERNELS.iter().find(|kernel| kernel.name == "boolean_mask").expect("in the suite").text;
    let documents = KERNELS.iter().find(|kernel| kernel.name == "documents").expect("in the suite").text;
    let kernels = [
        (ATTENTION, Elem::F16, 72),
        (CAUSAL_ATTENTION, Elem::F16, 64),
        (CAUSAL_ROPE_ATTENTION, Elem::F16, 64),
        (MATMUL_GELU, Elem::F32, 64),
        (documents, Elem::F16, 64),
        // Truth values of queries and keys are looked at, and tiles listed.
        (booleans, Elem::F16, 64),
        (CAUSAL_ATTENTION, Elem::F16, 128),
        // A bias of 16 bits comes through a ring.
        (BIAS_ATTENTION, Elem::F16, 64),
        // A number for each key is added to products.
        (KEY_BIAS, Elem::Bf16, 64),
        // A number of a table for each difference of positions is.
        (RELATIVE_ATTENTION, Elem::F16, 64),
    ];
    for (text, elem, head_dim) in kernels {
        let instance = instance_of(text, elem, 16, head_dim);
        for (seed, arch) in ARCHS.iter().enumerate() {
            for schedule in draws(&instance, arch, seed as u64).take(DRAWS) {
                // Only what has a value that no other had is looked at.
                let its: Vec<_> = KNOBS.iter().map(|knob| (knob.name, (knob.get)(&schedule))).collect();
                if its.iter().any(|value| unseen.contains(value)) && check(&instance, &schedule, arch).is_legal() {
                    unseen.retain(|value| !its.contains(value));
                }
            }
        }
    }
    assert!(unseen.is_empty(), "in no legal draw: {unseen:?}");
}

#[test]
fn wgmma_is_drawn_where_the_kernel_can_use_it_and_nowhere_else() {
    let hopper = Arch::named("sm_90a").expect("in the table");
    let part = |text, elem, alignment| {
        let instance = instance(text, elem, alignment);
        drawn(&instance, hopper, 3).iter().filter(|s| s.main.tensor_op == TensorOp::Wgmma).count()
    };
    assert!(part(ATTENTION, Elem::Bf16, 16) > DRAWS / 4);
    assert_eq!(part(ATTENTION, Elem::Bf16, 8), 0, "TMA needs 16 bytes");
    assert_eq!(part(ATTENTION, Elem::F32, 16), 0);
    assert_eq!(part(ROW_SOFTMAX, Elem::Bf16, 16), 0, "there is no product");
}

/// Nothing of sm_75 takes bf16: what is drawn is not legal, but it is drawn.
#[test]
fn where_no_instruction_fits_the_draw_is_not_legal() {
    let (instance, arch) = (instance(ATTENTION, Elem::Bf16, 16), Arch::named("sm_75").expect("in the table"));
    assert!(drawn(&instance, arch, 4).iter().all(|s| !check(&instance, s, arch).is_legal()));
}
