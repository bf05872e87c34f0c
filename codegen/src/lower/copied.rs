//! Which tensors are copied to shared memory. How these are aligned decides how wide copies are, and
//! whether TMA can make them; how others are decides only how each of them is loaded or stored.

use std::collections::{BTreeSet, HashSet};

use flashtile_dsl::ir::{Kernel, Op, OpId};

use super::computed::{ComputedOperands, lefts_are_shared};
use super::twice::Uses;
use super::uses::users_and_order;
use crate::instance::Instance;
use crate::schedule::BlockKnobs;

/// Names of the tensors of which a schedule copies tiles, of a kernel in its normal form or not.
pub(crate) fn copied_tensors(kernel: &Kernel, schedule: &BlockKnobs) -> BTreeSet<String> {
    let computed = ComputedOperands::of(kernel, lefts_are_shared(schedule));
    let (users, _) = users_and_order(kernel);
    let is_matrix = |op: OpId| kernel.ops[op].results.first().is_some_and(|&v| kernel.tile(v).rank() == 2);
    let is_copied = |op: &OpId| {
        matches!(kernel.ops[*op].op, Op::Load { .. }) && is_matrix(*op) && Uses::of(kernel, &users, &computed, *op).is_shared()
    };
    tensors(kernel, &kernel.walk().into_iter().map(|(_, op)| op).filter(is_copied).collect())
}

/// Names of the tensors that these loads read.
pub(super) fn tensors(kernel: &Kernel, loads: &HashSet<OpId>) -> BTreeSet<String> {
    let name = |op: &OpId| match kernel.ops[*op].op {
        Op::Load { tensor, .. } => kernel.params[tensor].name.clone(),
        _ => unreachable!("a load"),
    };
    loads.iter().map(name).collect()
}

/// Bytes that the rows of all tiles of these tensors begin at a multiple of.
pub(crate) fn least_alignment(tensors: &BTreeSet<String>, instance: &Instance) -> u32 {
    tensors.iter().map(|name| instance.alignment_of(name)).min().unwrap_or(16)
}
