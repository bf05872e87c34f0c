//! Products of tiles of the grid, in one step, as a walk over the columns. A gradient of such a product
//! is a sum over programs; of a kernel whose loop walks the columns it is a sum over the loop.

use std::collections::HashSet;

use crate::ir::{AxisKind, BlockData, Dim, Kernel, Op, OpData, ProgramDim, ValueDef, ValueId};

/// The kernel with a loop over its second tiled dimension of the grid, if it has two, no loop, and a
/// product of rows with columns.
pub(super) fn columns_walked(kernel: Kernel) -> Kernel {
    made(&kernel).unwrap_or(kernel)
}

fn made(kernel: &Kernel) -> Option<Kernel> {
    let tiled = |(at, dim): (usize, &ProgramDim)| match dim {
        ProgramDim::Tiles(axis) => Some((at, *axis)),
        ProgramDim::Each(_) => None,
    };
    let tiled: Vec<_> = kernel.grid().iter().enumerate().filter_map(tiled).collect();
    let &[(_, rows), (place, columns)] = &tiled[..] else { return None };
    let ops = &kernel.blocks[kernel.body].ops;
    let is_loop = |op: &Op| matches!(op, Op::For { .. });
    let is_pair = |v: ValueId| {
        let dims = &kernel.tile(v).dims;
        [rows, columns].iter().all(|axis| dims.contains(&Dim::Axis(*axis)))
    };
    let is_product = |data: &OpData| matches!(data.op, Op::Dot { .. }) && is_pair(data.results[0]);
    let data = |op| &kernel.ops[op];
    if ops.iter().any(|&op| is_loop(&data(op).op)) || !ops.iter().any(|&op| is_product(data(op))) {
        return None;
    }
    let program = *ops.first()?;
    let coordinate = kernel.ops[program].results[place];
    let mut walked: HashSet<ValueId> = HashSet::from([coordinate]);
    let (mut before, mut inside) = (Vec::new(), Vec::new());
    for &op in ops {
        let is_inside = op != program && data(op).op.operands().iter().any(|v| walked.contains(v));
        if is_inside {
            walked.extend(&data(op).results);
        }
        if is_inside { inside.push(op) } else { before.push(op) }
    }
    let mut made = kernel.clone();
    if let Op::Program(dims) = &mut made.ops[program].op {
        dims.remove(place);
    }
    made.ops[program].results.remove(place);
    for (index, &result) in kernel.ops[program].results.iter().filter(|&&v| v != coordinate).enumerate() {
        made.values[result].def = ValueDef::Result(program, index as u32);
    }
    made.axes[columns].kind = AxisKind::Loop;
    let span = kernel.ops[program].span;
    let new = |op: Op| OpData { op, results: Vec::new(), span };
    inside.push(made.ops.push(new(Op::Yield(Vec::new()))));
    let body = made.blocks.push(BlockData { params: vec![coordinate], ops: inside });
    made.values[coordinate].def = ValueDef::BlockParam(body, 0);
    before.push(made.ops.push(new(Op::For { axis: columns, part: None, body, init: Vec::new() })));
    made.blocks[kernel.body].ops = before;
    Some(made)
}
