//! What is copied to shared memory: tiles that products read as they were loaded, and those that a
//! loop streams for operands that are computed from them. How their tensors are aligned decides how
//! wide copies are, and whether TMA can make them; how others are decides only how each of them is
//! loaded or stored.

use std::collections::{BTreeSet, HashMap};

use flashtile_dsl::ir::{Kernel, Op, OpId, ValueId};

use super::computed::{ComputedOperands, lefts_are_shared};
use super::uses::users_and_order;
use crate::instance::Instance;
use crate::schedule::BlockKnobs;

/// How a tile is used, transposed or not.
pub(super) struct Uses {
    /// Whether a product reads it as it was loaded.
    pub by_product: bool,
    /// Whether a loop streams it for operands that are computed from it.
    pub streamed: bool,
    /// The ops that need it in registers.
    pub by_others: Vec<OpId>,
}

impl Uses {
    /// The uses of the tile that an op gives.
    pub fn of(kernel: &Kernel, users: &HashMap<ValueId, Vec<OpId>>, computed: &ComputedOperands, made: OpId) -> Self {
        let mut uses = Self { by_product: false, streamed: computed.is_streamed(kernel, made), by_others: Vec::new() };
        let mut work = vec![kernel.ops[made].results[0]];
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

/// The loads of matrices that are copied, each with its uses.
pub(super) fn copied_loads(
    kernel: &Kernel,
    users: &HashMap<ValueId, Vec<OpId>>,
    computed: &ComputedOperands,
) -> Vec<(OpId, Uses)> {
    let is_matrix = |op: OpId| kernel.ops[op].results.first().is_some_and(|&v| kernel.tile(v).rank() == 2);
    let loads = kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| matches!(kernel.ops[op].op, Op::Load { .. }));
    let with_uses = loads.filter(|&op| is_matrix(op)).map(|op| (op, Uses::of(kernel, users, computed, op)));
    with_uses.filter(|(_, uses)| uses.is_shared()).collect()
}

/// Names of the tensors of which a schedule copies tiles, of a kernel in its normal form or not.
pub(crate) fn copied_tensors(kernel: &Kernel, schedule: &BlockKnobs) -> BTreeSet<String> {
    let computed = ComputedOperands::of(kernel, lefts_are_shared(schedule));
    let name = |(op, _): (OpId, Uses)| match kernel.ops[op].op {
        Op::Load { tensor, .. } => kernel.params[tensor].name.clone(),
        _ => unreachable!("a load"),
    };
    copied_loads(kernel, &users_and_order(kernel).0, &computed).into_iter().map(name).collect()
}

/// Bytes that the rows of all tiles that a schedule copies begin at a multiple of.
pub(crate) fn copied_alignment(kernel: &Kernel, schedule: &BlockKnobs, instance: &Instance) -> u32 {
    copied_tensors(kernel, schedule).iter().map(|name| instance.alignment_of(name)).min().unwrap_or(16)
}
