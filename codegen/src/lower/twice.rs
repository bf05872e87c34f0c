//! Loads, and conversions to 16 bits, whose tile is an operand of a product and is used otherwise too.
//!
//! A product reads a loaded operand from shared memory; elementwise ops, reductions and stores have
//! their tiles in registers. A load has one home. So a load with uses of both kinds is made twice:
//! the load of the text is for the products, and for the operands that are computed from it in
//! shared memory; the other load is for everything else, and stands before the first of these uses,
//! so that its registers are held no longer than needed. Inputs do not change while a kernel runs,
//! so both loads give the same tile.
//!
//! The same goes for a tile that is converted to 16 bits, such as probabilities of which a row sum is
//! made too: tensor cores take it packed, and everything else has it as numbers of f32.
//!
//! This is the last step to the normal form, after equal ops are merged. It is in this folder
//! because only lowering knows which operands are computed in shared memory.
//!
//! A load of a tensor that the kernel also writes (*in-out*) stays alone: the IR allows one.

use std::collections::HashMap;

use flashtile_dsl::ir::{Kernel, Op, OpId, ValueId};

use super::computed::{ComputedOperands, lefts_are_shared};
use super::uses::{contains, users_and_order};
use crate::rewrite::edit;
use crate::schedule::BlockKnobs;

/// Makes every such load and conversion of a normalised kernel twice.
pub(crate) fn load_twice(kernel: &mut Kernel, schedule: &BlockKnobs) {
    let computed = ComputedOperands::of(kernel, lefts_are_shared(schedule));
    let (users, order) = users_and_order(kernel);
    for (block, load) in kernel.walk() {
        let may = match kernel.ops[load].op {
            Op::Load { tensor, .. } => !kernel.tensor(tensor).direction.is_written(),
            Op::Cast(..) => schedule.tensor_op.is_of_tensor_cores() && !computed.makes(kernel, load),
            _ => false,
        };
        let Some(&tile) = kernel.ops[load].results.first().filter(|_| may) else { continue };
        if kernel.tile(tile).rank() != 2 {
            continue;
        }
        let uses = Uses::of(kernel, &users, &computed, load);
        if !uses.is_shared() || uses.by_others.is_empty() {
            continue;
        }
        let first = *uses.by_others.iter().min_by_key(|op| order[*op]).expect("there is one");
        let mut here = kernel.blocks[block].ops.iter().copied();
        let before =
            here.find(|&op| contains(kernel, op, first)).expect("verified: a value is used in its block or in a loop there");
        let (op, span) = (kernel.ops[load].op.clone(), kernel.ops[load].span);
        let again = edit::insert_before(kernel, before, op, span);
        kernel.values[again].name = kernel.values[tile].name.clone();
        move_others(kernel, &computed, tile, again);
    }
    edit::remove_dead(kernel);
}

/// How the tile of a load is used, transposed or not.
pub(super) struct Uses {
    /// Whether a product reads it as it was loaded.
    pub by_product: bool,
    /// Whether a loop streams it for operands that are computed from it.
    pub streamed: bool,
    /// The ops that need it in registers.
    pub by_others: Vec<OpId>,
}

impl Uses {
    /// The uses of the tile that `load` gives.
    pub fn of(kernel: &Kernel, users: &HashMap<ValueId, Vec<OpId>>, computed: &ComputedOperands, load: OpId) -> Self {
        let mut uses = Self { by_product: false, streamed: computed.is_streamed(kernel, load), by_others: Vec::new() };
        let mut work = vec![kernel.ops[load].results[0]];
        while let Some(v) = work.pop() {
            for &user in users.get(&v).map_or(&[][..], Vec::as_slice) {
                let data = &kernel.ops[user];
                match data.op {
                    Op::Transpose(_) => work.push(data.results[0]),
                    Op::Dot { a, b, acc } => {
                        uses.by_product |= a == v || b == v;
                        uses.by_others.extend((acc == Some(v)).then_some(user));
                    }
                    _ => uses.by_others.extend((!computed.makes(kernel, user)).then_some(user)),
                }
            }
        }
        uses
    }

    /// Whether the tile is in shared memory for some use.
    pub fn is_shared(&self) -> bool {
        self.by_product || self.streamed
    }
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
