//! Several streaming softmaxes of one loop, one behind the other.
//!
//! A text may compute all scores of a step first, and then what becomes of them:
//!
//! ```text
//! let s1 = dot(q1, k1.t());            let s1 = dot(q1, k1.t());
//! let s2 = dot(q2, k2.t());            let p1 = exp(s1 - max(m1, rowmax(s1)));
//! let p1 = exp(s1 - ..);               acc1 = .. + dot(p1, v);
//! let p2 = exp(s2 - ..);               let s2 = dot(q2, k2.t());
//! acc1 = .. + dot(p1, v);              let p2 = exp(s2 - max(m2, rowmax(s2)));
//! acc2 = .. + dot(p2, v);              acc2 = .. + dot(p2, v);
//! ```
//!
//! Lowering computes in the order of the text, so that the tiles of all scores would be in registers
//! at once. What a later maximum takes, and nothing else does, moves behind what an earlier one
//! gives.

use std::collections::HashSet;

use flashtile_dsl::ir::{BlockId, Kernel, Op, OpId, ReduceOp};

use super::edit;

/// The kernel with the softmaxes of each loop one behind the other.
pub fn softmaxes_in_turn(kernel: &Kernel) -> Kernel {
    let mut made = kernel.clone();
    for (_, id) in kernel.walk() {
        if let Op::For { body, .. } = kernel.ops[id].op {
            order_block(&mut made, body);
        }
    }
    made
}

/// Orders the ops of a loop's body that stores nothing and has no loop inside.
fn order_block(kernel: &mut Kernel, block: BlockId) {
    let ops = kernel.blocks[block].ops.clone();
    let is_fixed = |op: &OpId| matches!(kernel.ops[*op].op, Op::Store { .. } | Op::Scatter { .. } | Op::For { .. });
    if ops.iter().any(is_fixed) {
        return;
    }
    let maxima: Vec<OpId> = ops.iter().copied().filter(|op| matches!(kernel.ops[*op].op, Op::Reduce(ReduceOp::Max, _))).collect();
    for maximum in maxima.into_iter().skip(1) {
        let ops = kernel.blocks[block].ops.clone();
        let late = late_ops(kernel, &ops, maximum);
        let is_late = |op: &&OpId| late.contains(op) || matches!(kernel.ops[**op].op, Op::Yield(_));
        let early = ops.iter().filter(|op| !is_late(op));
        kernel.blocks[block].ops = early.chain(ops.iter().filter(is_late)).copied().collect();
    }
}

/// What depends on a maximum, and what nothing else needs than that.
fn late_ops(kernel: &Kernel, ops: &[OpId], maximum: OpId) -> HashSet<OpId> {
    let mut late: HashSet<OpId> = HashSet::from([maximum]);
    let made_late = |late: &HashSet<OpId>, op: OpId| {
        let operands = kernel.ops[op].op.operands();
        operands.into_iter().any(|v| kernel.def(v).is_some_and(|(def, _)| late.contains(&def)))
    };
    let is_yield = |op: OpId| matches!(kernel.ops[op].op, Op::Yield(_));
    for &op in ops {
        if !is_yield(op) && made_late(&late, op) {
            late.insert(op);
        }
    }
    for &op in ops.iter().rev() {
        let mut users = kernel.ops[op].results.iter().flat_map(|&v| edit::users(kernel, v)).peekable();
        if users.peek().is_some() && users.all(|user| late.contains(&user)) {
            late.insert(op);
        }
    }
    late
}
