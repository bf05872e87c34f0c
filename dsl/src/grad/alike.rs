//! Indices that are computed alike are one value: `h * G / H` written for keys and again for values,
//! in one loop or in two. Which columns have programs together is seen by it.

use crate::ir::{BlockId, Kernel, Op, OpId, ValueDef, ValueId, edit::replace_uses};

/// The kernel with each index that no loop changes computed once, before the loops.
pub(super) fn with_shared_indices(kernel: &Kernel) -> Kernel {
    let mut shared = kernel.clone();
    let is_index = |op: &Op| matches!(op, Op::IndexConst(_) | Op::SizeOf(_) | Op::Index(..));
    let indices: Vec<(BlockId, OpId)> = kernel.walk().into_iter().filter(|&(_, id)| is_index(&kernel.ops[id].op)).collect();
    let mut computed: Vec<(Op, ValueId)> = Vec::new();
    for (block, id) in indices {
        let op = shared.ops[id].op.clone();
        let place = |value: &ValueId| match shared.values[*value].def {
            ValueDef::Result(def, _) => shared.blocks[shared.body].ops.iter().position(|&other| other == def),
            ValueDef::BlockParam(..) => None,
        };
        // The place of `program`, which is the first op, for what has no operands.
        let Some(behind) = op.operands().iter().map(place).try_fold(0, |last, at| Some(last.max(at?))) else { continue };
        let result = shared.ops[id].results[0];
        match computed.iter().find(|(other, _)| *other == op) {
            Some(&(_, first)) => replace_uses(&mut shared, result, first, &[]),
            None => {
                computed.push((op, result));
                if block != shared.body {
                    shared.blocks[block].ops.retain(|&other| other != id);
                    let body = shared.body;
                    shared.blocks[body].ops.insert(behind + 1, id);
                }
            }
        }
    }
    shared
}
