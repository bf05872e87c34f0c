//! Which knob gives the block size of an axis.
//!
//! The first tiled grid axis has `block_m`; the second, if there is one, `block_n`, and then loops have `block_k`; with one
//! tiled grid axis loops have `block_n`, and a loop over tiles in one over other tiles has `block_k`: it walks the depth of a
//! product. In a kernel with none the loop in a loop has `block_m`: it walks the rows that a grid would
//! (`loop_order=interchanged`). So attention's queries and keys, and a matmul's rows, columns and contraction, get
//! the names everyone uses, from the structure of the kernel alone.

use flashtile_dsl::ir::{AxisId, AxisKind, BlockId, Kernel, Op, OpId, ProgramDim};

use crate::schedule::BlockKnobs;

/// The block-size knob of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKnob {
    /// `block_m`
    M,
    /// `block_n`
    N,
    /// `block_k`
    K,
}

impl BlockKnob {
    /// The knobs that mend rows which do not divide among the warps.
    pub fn or_warps(self) -> &'static str {
        match self {
            BlockKnob::M => "block_m or warps",
            BlockKnob::N => "block_n or warps",
            BlockKnob::K => "block_k or warps",
        }
    }
}

/// The knob of `axis`, which is not one of single positions.
pub fn knob(kernel: &Kernel, axis: AxisId) -> BlockKnob {
    // Not all axes of programs: a launch beside the main one may keep axes that its grid has not.
    let tiled = kernel.grid().iter().filter_map(|dim| match dim {
        ProgramDim::Tiles(axis) => Some(*axis),
        ProgramDim::Each(_) => None,
    });
    let grid: Vec<AxisId> = tiled.collect();
    match grid.iter().position(|&a| a == axis) {
        Some(0) => BlockKnob::M,
        Some(_) => BlockKnob::N,
        None if grid.len() > 1 => BlockKnob::K,
        None if grid.is_empty() && is_nested(kernel, axis) => BlockKnob::M,
        None if grid.len() == 1 && is_in_tiles(kernel, axis) => BlockKnob::K,
        None => BlockKnob::N,
    }
}

/// The loops that walk an axis, with the blocks that they stand in.
fn loops_over(kernel: &Kernel, axis: AxisId) -> impl Iterator<Item = (BlockId, OpId)> {
    let walks = move |op: OpId| matches!(kernel.ops[op].op, Op::For { axis: walked, .. } if walked == axis);
    kernel.walk().into_iter().filter(move |&(_, op)| walks(op))
}

/// Whether the loop that walks an axis stands in another loop.
fn is_nested(kernel: &Kernel, axis: AxisId) -> bool {
    loops_over(kernel, axis).any(|(block, _)| block != kernel.body)
}

/// Whether every loop that walks an axis stands in a loop over other tiles.
fn is_in_tiles(kernel: &Kernel, axis: AxisId) -> bool {
    let around = |op: OpId| match kernel.loop_around(op).map(|around| &kernel.ops[around].op) {
        Some(Op::For { axis: other, .. }) => *other != axis && kernel.axes[*other].kind == AxisKind::Loop,
        _ => false,
    };
    is_nested(kernel, axis) && loops_over(kernel, axis).all(|(_, op)| around(op))
}

/// The block size of `axis` under `schedule`.
pub fn block(kernel: &Kernel, schedule: &BlockKnobs, axis: AxisId) -> u32 {
    if kernel.axes[axis].kind == AxisKind::Each {
        return 1;
    }
    match knob(kernel, axis) {
        BlockKnob::M => schedule.block_m,
        BlockKnob::N => schedule.block_n,
        BlockKnob::K => schedule.block_k,
    }
}
