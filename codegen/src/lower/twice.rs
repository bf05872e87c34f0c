//! Loads, and conversions to 16 bits, whose tile is an operand of a product and is used otherwise
//! too.
//!
//! A product reads a loaded operand from shared memory; elementwise ops, reductions and stores have
//! their tiles in registers. A load has one home. So a load with uses of both kinds is made twice:
//! the load of the text is for the products, and for the operands that are computed from it in
//! shared memory; the other load is for everything else, and stands before the first of these uses,
//! so that its registers are held no longer than needed. Inputs do not change while a kernel runs,
//! so both loads give the same tile.
//!
//! The same goes for a tile that is converted to 16 bits, such as probabilities of which a row sum
//! is made too: tensor cores take it packed, and everything else has it as numbers of f32.
//!
//! This is the last step to the normal form, after equal ops are merged. It is in this folder
//! because only lowering knows which operands are computed in shared memory.
//!
//! A load of a tensor that the kernel also writes (*in-out*) stays alone: the IR allows one.

use flashtile_dsl::ir::{Kernel, Op, ValueId};

use super::computed::{ComputedOperands, lefts_are_shared};
use super::copied::Uses;
use super::uses::{contains, users_and_order};
use crate::rewrite::edit;
use crate::schedule::BlockKnobs;

/// Makes every such load and conversion of a normalised kernel twice.
pub(crate) fn make_twice(kernel: &mut Kernel, schedule: &BlockKnobs) {
    let computed = ComputedOperands::of(kernel, lefts_are_shared(schedule));
    let (users, order) = users_and_order(kernel);
    for (block, made) in kernel.walk() {
        let may = match kernel.ops[made].op {
            Op::Load { tensor, .. } => !kernel.tensor(tensor).direction.is_written(),
            Op::Cast(..) => schedule.tensor_op.is_of_tensor_cores() && !computed.makes(kernel, made),
            _ => false,
        };
        let Some(&tile) = kernel.ops[made].results.first().filter(|_| may) else { continue };
        if kernel.tile(tile).rank() != 2 {
            continue;
        }
        let uses = Uses::of(kernel, &users, &computed, made);
        if !uses.is_shared() || uses.by_others.is_empty() {
            continue;
        }
        let first = *uses.by_others.iter().min_by_key(|op| order[*op]).expect("there is one");
        let mut here = kernel.blocks[block].ops.iter().copied();
        let before =
            here.find(|&op| contains(kernel, op, first)).expect("verified: a value is used in its block or in a loop there");
        let (op, span) = (kernel.ops[made].op.clone(), kernel.ops[made].span);
        let again = edit::insert_before(kernel, before, op, span);
        kernel.values[again].name = kernel.values[tile].name.clone();
        move_others(kernel, &computed, tile, again);
    }
    edit::remove_dead(kernel);
}

/// Gives the uses of `from` that need it in registers to `to`, which is the same tile.
fn move_others(kernel: &mut Kernel, computed: &ComputedOperands, from: ValueId, to: ValueId) {
    let moved = |v: ValueId| if v == from { to } else { v };
    for user in edit::users(kernel, from) {
        match kernel.ops[user].op {
            Op::Transpose(_) => {
                let turned = kernel.ops[user].results[0];
                let (place, span) = (edit::after_definition(kernel, to), kernel.ops[user].span);
                let again = edit::insert(kernel, place, Op::Transpose(to), span);
                move_others(kernel, computed, turned, again);
            }
            Op::Dot { a, b, acc } => kernel.ops[user].op = Op::Dot { a, b, acc: acc.map(moved) },
            _ if computed.makes(kernel, user) => {}
            _ => kernel.ops[user].op = kernel.ops[user].op.map_operands(moved),
        }
    }
}
