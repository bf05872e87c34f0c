//! The plan of the kernel that adds to the gradient of queries, its products waited for late: faults
//! planted in what warps stage for each other, in two slots, and in the rows that they add.

use flashtile::{Arch, Facts, Form, Kernel, Schedule};
use flashtile_codegen::plan::{Iteration, OperandA, Plan, Slot, StmtOp, verify};
use flashtile_codegen::plans;
use flashtile_dsl::ir::Elem;
use flashtile_tests::planted::{change_first, planted, remove, says};

/// The plan of columns of causal attention.
fn plan() -> Plan {
    let forward = Kernel::builtin("causal_attention").expect("a built-in");
    let gradient = forward.gradient_in(Form::Fused, &["q", "k", "v"], &["o"]).expect("has one");
    let kernel = gradient.backward[1].bind(Elem::Bf16, [("D", 128)]).expect("binds");
    let instance = kernel.instance(Facts::best(kernel.ir()));
    let schedule: Schedule =
        "block_m=128,block_n=64,warps=8,tensor_op=wgmma,copy=tma,min_blocks=1,producer_registers=24,stages=2,overlap=late"
            .parse()
            .expect("a schedule");
    let all = plans(&instance, &schedule, Arch::named("sm_90a").expect("in the table")).expect("is legal");
    all.into_iter().find(|plan| plan.to_string().contains("put_rows")).expect("a launch adds rows")
}

const CONSUMERS: usize = 1;

/// What the verifier says without any of the statements that are wanted: of which one stands in the
/// loop, and one behind it.
fn without_all(wanted: impl Fn(&StmtOp) -> bool + Copy) -> Vec<String> {
    let mut plan = plan();
    let mut removed = 0;
    while change_first(&mut plan.roles[CONSUMERS].body, &mut remove(wanted)) {
        removed += 1;
    }
    assert_eq!(removed, 2, "there are two");
    verify(&plan)
}

#[test]
fn a_step_has_one_barrier_and_two_slots() {
    let text = plan().to_string();
    assert!(text.contains("operand_tile: bf16 128 x 64, 2 slots"), "{text}");
    let (_, step) = text.rsplit_once("loop i from 1 by 1").expect("a loop of the consumers");
    let end = step.find("put_rows").expect("the step ends so") + "put_rows".len();
    let step = &step[..end];
    assert_eq!(step.matches("  barrier\n").count(), 1, "{step}");
    let order = ["= dot(tile t2_tile", "= dot(tile t1_tile", "add_rows", "stage operand_tile[i]", "put_rows"];
    let places: Vec<_> = order.iter().map(|what| step.find(what).unwrap_or_else(|| panic!("{what} in {step}"))).collect();
    assert!(places.is_sorted(), "{places:?} in {step}");
}

#[test]
fn what_is_staged_is_seen_behind_a_barrier() {
    let faults = planted(plan(), CONSUMERS, &mut remove(|op| matches!(op, StmtOp::Barrier)));
    says(&faults, "operand_tile is read with no barrier since warps wrote it");
}

#[test]
fn a_slot_is_staged_again_when_all_have_read_it() {
    let mut one = plan();
    let tile = one.tiles.iter().position(|t| t.name == "operand_tile").expect("is staged");
    one.tiles[tile].slots = 1;
    says(&verify(&one), "a slot of operand_tile is staged that it does not have");
}

#[test]
fn a_slot_is_read_in_the_iteration_that_staged_it() {
    let faults = planted(plan(), CONSUMERS, &mut |body, index| {
        if let StmtOp::Dot { a: OperandA::Tile(_, slot), a_turned: true, .. } = &mut body[index].op
            && let Slot::Of(Iteration::Ahead(id, 0)) = *slot
        {
            *slot = Slot::Of(Iteration::Ahead(id, 1));
            return true;
        }
        false
    });
    assert!(!faults.is_empty(), "a slot that holds something else is read");
}

#[test]
fn rows_are_added_once() {
    let faults = planted(plan(), CONSUMERS, &mut remove(|op| matches!(op, StmtOp::PutRows { .. })));
    says(&faults, "is added, and holds nothing that was not added before");
    let faults = without_all(|op| matches!(op, StmtOp::AddRows { .. }));
    says(&faults, "holds rows that are never added");
}

#[test]
fn rows_are_put_in_a_tile_of_each_warp() {
    let mut small = plan();
    let tile = small.tiles.iter().position(|t| t.name.ends_with("_rows")).expect("rows are added");
    small.tiles[tile].rows /= 2;
    says(&verify(&small), "rows of 64 numbers");
}

#[test]
fn rows_are_added_in_boxes_of_their_shape() {
    let map = |plan: &Plan| plan.maps.iter().position(|map| map.tensor == "grad_q_sum").expect("rows are added");
    let faults: [fn(&mut Vec<u32>, &mut u32); 3] =
        [|tile, _| tile[0] /= 2, |tile, _| tile[1] *= 2, |tile, bytes| (tile[0], *bytes) = (2 * tile[0], *bytes / 2)];
    for fault in faults {
        let mut other = plan();
        let map = map(&other);
        let map = &mut other.maps[map];
        fault(&mut map.tile, &mut map.element_bytes);
        says(&verify(&other), "is added through a tensor map with boxes of another shape");
    }
}
