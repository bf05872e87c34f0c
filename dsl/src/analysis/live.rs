//! What a kernel is computed for: the values that stores need, directly or not.

use std::collections::{HashMap, HashSet};

use crate::ir::{Kernel, Op, OpId, ValueDef, ValueId};

/// The values that a store needs. Of a loop only the carried values are among them that one needs.
pub fn live_values(kernel: &Kernel) -> HashSet<ValueId> {
    let mut owner: HashMap<_, OpId> = HashMap::new(); // loop body -> loop op
    let mut live = HashSet::new();
    let mut work: Vec<ValueId> = Vec::new();
    for (_, op) in kernel.walk() {
        match &kernel.ops[op].op {
            Op::For { body, .. } => drop(owner.insert(*body, op)),
            store @ Op::Store { .. } => work.extend(store.operands()),
            _ => {}
        }
    }
    while let Some(value) = work.pop() {
        if !live.insert(value) {
            continue;
        }
        let slot = match kernel.values[value].def {
            ValueDef::Result(op, index) => match &kernel.ops[op].op {
                Op::For { .. } => Some((op, index as usize)),
                other => {
                    work.extend(other.operands());
                    None
                }
            },
            ValueDef::BlockParam(block, index) if index > 0 => owner.get(&block).map(|&op| (op, index as usize - 1)),
            ValueDef::BlockParam(..) => None,
        };
        let Some((id, slot)) = slot else { continue };
        let data = &kernel.ops[id];
        let Op::For { body, init, .. } = &data.op else { continue };
        let body = &kernel.blocks[*body];
        work.extend([init[slot], body.params[slot + 1], data.results[slot]]);
        if let Some(Op::Yield(next)) = body.ops.last().map(|&last| &kernel.ops[last].op) {
            work.push(next[slot]);
        }
    }
    live
}
