//! What a kernel is computed for: the values that stores need, directly or not; the kernel without all others.

use std::collections::{HashMap, HashSet};

use crate::ir::edit::remove_param;
use crate::ir::{BlockId, Kernel, Op, OpId, ParamId, ValueDef, ValueId};

/// The values that a store needs. Of a loop only the carried values are among them that one needs.
pub fn live_values(kernel: &Kernel) -> HashSet<ValueId> {
    let mut owner: HashMap<_, OpId> = HashMap::new(); // loop body -> loop op
    let mut live = HashSet::new();
    let mut work: Vec<ValueId> = Vec::new();
    for (_, op) in kernel.walk() {
        match &kernel.ops[op].op {
            Op::For { body, .. } => drop(owner.insert(*body, op)),
            store @ (Op::Store { .. } | Op::Scatter { .. }) => work.extend(store.operands()),
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

/// Removes ops whose results nothing needs and carried values that only feed themselves.
pub fn remove_dead(kernel: &mut Kernel) {
    let live = live_values(kernel);
    let loops: Vec<OpId> =
        kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| matches!(kernel.ops[op].op, Op::For { .. })).collect();
    for id in loops {
        drop_dead_carried(kernel, id, &live);
    }
    for block in kernel.blocks.keys() {
        let ops = kernel.blocks[block].ops.clone();
        kernel.blocks[block].ops = ops
            .into_iter()
            .filter(|&op| match &kernel.ops[op].op {
                Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) | Op::Program(_) => true,
                Op::For { body, .. } => !kernel.ops[op].results.is_empty() || has_store(kernel, *body),
                _ => kernel.ops[op].results.iter().any(|r| live.contains(r)),
            })
            .collect();
    }
}

fn has_store(kernel: &Kernel, block: BlockId) -> bool {
    kernel.blocks[block].ops.iter().any(|&op| match &kernel.ops[op].op {
        Op::Store { .. } | Op::Scatter { .. } => true,
        Op::For { body, .. } => has_store(kernel, *body),
        _ => false,
    })
}

/// The values yielded by a loop body.
pub fn yielded(kernel: &Kernel, body: BlockId) -> Vec<ValueId> {
    match kernel.blocks[body].ops.last().map(|&op| &kernel.ops[op].op) {
        Some(Op::Yield(values)) => values.clone(),
        _ => unreachable!("verified: a loop body ends in a yield"),
    }
}

fn drop_dead_carried(kernel: &mut Kernel, id: OpId, live: &HashSet<ValueId>) {
    let Op::For { axis, part, body, init } = kernel.ops[id].op.clone() else { return };
    let params = kernel.blocks[body].params.clone();
    let results = kernel.ops[id].results.clone();
    let keep: Vec<usize> =
        (0..init.len()).filter(|&slot| live.contains(&results[slot]) || live.contains(&params[slot + 1])).collect();
    if keep.len() == init.len() {
        return;
    }
    let next = yielded(kernel, body);
    let pick = |values: &[ValueId]| keep.iter().map(|&slot| values[slot]).collect::<Vec<_>>();
    let (new_init, new_next, new_results) = (pick(&init), pick(&next), pick(&results));
    let mut new_params = vec![params[0]];
    new_params.extend(keep.iter().map(|&slot| params[slot + 1]));
    for (index, &param) in new_params.iter().enumerate() {
        kernel.values[param].def = ValueDef::BlockParam(body, index as u32);
    }
    for (index, &result) in new_results.iter().enumerate() {
        kernel.values[result].def = ValueDef::Result(id, index as u32);
    }
    let last = *kernel.blocks[body].ops.last().expect("a yield");
    kernel.ops[last].op = Op::Yield(new_next);
    kernel.blocks[body].params = new_params;
    kernel.ops[id].op = Op::For { axis, part, body, init: new_init };
    kernel.ops[id].results = new_results;
}

/// The kernel with what one output needs: stores to it, and what they are computed from. It has all
/// parameters.
#[must_use]
pub fn storing_only(kernel: &Kernel, output: ParamId) -> Kernel {
    storing(kernel, |tensor| tensor == output)
}

/// The kernel without an output, and without what nothing else needs, inputs among it. `kernel` is
/// as a text declares it.
#[must_use]
pub fn without_output(kernel: &Kernel, output: ParamId) -> Kernel {
    let mut made = storing(kernel, |tensor| tensor != output).renumbered();
    let mut ops: Vec<Op> = made.ops.values().map(|op| op.op.clone()).collect();
    let named: HashSet<ParamId> = ops.iter_mut().filter_map(|op| op.param_mut().copied()).collect();
    let unused: Vec<ParamId> = made.params.keys().filter(|param| !named.contains(param)).collect();
    // From the last one on, so that those before keep their numbers.
    for &param in unused.iter().rev() {
        remove_param(&mut made, param);
    }
    made
}

/// The kernel with stores to some tensors.
fn storing(kernel: &Kernel, is_stored: impl Fn(ParamId) -> bool) -> Kernel {
    let mut part = kernel.clone();
    let Kernel { blocks, ops, .. } = &mut part;
    for block in blocks.keys() {
        blocks[block].ops.retain(|&op| ops[op].op.written().is_none_or(&is_stored));
    }
    remove_dead(&mut part);
    part
}
