//! Who uses a value, in which order, and what a loop carries: questions that several analyses ask.

use std::collections::HashMap;

use flashtile_dsl::ir::{BlockId, Kernel, Op, OpId, ValueId};

use crate::rewrite::edit;

/// The ops that use each value, and the place of each op in the walk.
pub(super) fn users_and_order(kernel: &Kernel) -> (HashMap<ValueId, Vec<OpId>>, HashMap<OpId, usize>) {
    let mut users: HashMap<ValueId, Vec<OpId>> = HashMap::new();
    let mut order = HashMap::new();
    for (index, (_, op)) in kernel.walk().into_iter().enumerate() {
        order.insert(op, index);
        for operand in kernel.ops[op].op.operands() {
            users.entry(operand).or_default().push(op);
        }
    }
    (users, order)
}

/// Whether an op is `inner`, or a loop that contains it.
pub(super) fn contains(kernel: &Kernel, op: OpId, inner: OpId) -> bool {
    let of_body = |body: BlockId| kernel.blocks[body].ops.iter().any(|&op| contains(kernel, op, inner));
    op == inner || matches!(kernel.ops[op].op, Op::For { body, .. } if of_body(body))
}

/// Initial value, next value and result of a carried slot.
pub(super) fn slot(kernel: &Kernel, body: BlockId, index: usize) -> Option<(ValueId, ValueId, ValueId)> {
    kernel.walk().into_iter().find_map(|(_, op)| match &kernel.ops[op].op {
        Op::For { body: b, init, .. } if *b == body => {
            Some((init[index], edit::yielded(kernel, body)[index], kernel.ops[op].results[index]))
        }
        _ => None,
    })
}

pub(super) fn is_zero(kernel: &Kernel, v: ValueId) -> bool {
    match kernel.def(v) {
        Some((_, Op::Full { value, .. })) => matches!(kernel.def(*value), Some((_, Op::Constant(_, c))) if *c == 0.0),
        _ => false,
    }
}
