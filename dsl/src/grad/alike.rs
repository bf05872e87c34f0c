//! Indices that are computed alike are one value: `h * G / H` written for keys and again for
//! values, in one loop or in two. Loads of one tile, and columns whose programs are the same, are
//! told by the values of their indices.

use std::collections::HashMap;

use crate::ir::edit::{places, replace_uses};
use crate::ir::{BlockId, Kernel, Op, OpId, ValueDef, ValueId};

/// The kernel with each index computed once, in the outermost block that has its operands.
pub(super) fn with_shared_indices(kernel: &Kernel) -> Kernel {
    let mut shared = kernel.clone();
    let is_index = |op: &Op| matches!(op, Op::IndexConst(_) | Op::SizeOf(_) | Op::Index(..));
    let depths = depths(kernel);
    let indices: Vec<(BlockId, OpId)> = kernel.walk().into_iter().filter(|&(_, id)| is_index(&kernel.ops[id].op)).collect();
    let mut computed: Vec<(Op, ValueId)> = Vec::new();
    for (block, id) in indices {
        let (op, result) = (shared.ops[id].op.clone(), shared.ops[id].results[0]);
        if let Some(&(_, first)) = computed.iter().find(|(other, _)| *other == op) {
            replace_uses(&mut shared, result, first, &[]);
            continue;
        }
        // The first place behind all operands; that behind `program`, the first op, if it has none.
        let starts = op.operands().into_iter().map(|value| behind(&shared, value)).chain([(shared.body, 1)]);
        let (home, index) = starts.max_by_key(|&(home, index)| (depths[&home], index)).expect("one at least");
        if home != block {
            shared.blocks[block].ops.retain(|&other| other != id);
            shared.blocks[home].ops.insert(index, id);
        }
        computed.push((op, result));
    }
    shared
}

/// The block in which a value is defined, and the first place there behind its definition.
fn behind(kernel: &Kernel, value: ValueId) -> (BlockId, usize) {
    match kernel.values[value].def {
        ValueDef::BlockParam(block, _) => (block, 0),
        ValueDef::Result(def, _) => {
            let place = places(kernel)[&def];
            (place.block, place.index + 1)
        }
    }
}

/// How many loops each block stands in.
fn depths(kernel: &Kernel) -> HashMap<BlockId, usize> {
    let mut depths = HashMap::from([(kernel.body, 0)]);
    for (block, id) in kernel.walk() {
        if let Op::For { body, .. } = kernel.ops[id].op {
            depths.insert(body, depths[&block] + 1);
        }
    }
    depths
}
