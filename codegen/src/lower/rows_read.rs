//! Tiles of 16-bit numbers that a loop loads for its elementwise work, such as a bias of the scores:
//! with `tile_loads=tma` the producer fills a ring with them, as with the operands of products.
//!
//! Fragments of an accumulator hold pairs of columns, of which lanes load 4 bytes each: a warp reads 8
//! pieces of 16 bytes, far apart, at a time, and waits for memory in every step. A ring is filled
//! ahead, in whole lines, and `ldmatrix` gives each lane the pairs that its accumulators have.
//!
//! ```text
//! step j:   .. wait S; release K; acquire B j; read rows of B j; release B; elementwise ..
//! ```

use std::collections::HashSet;

use flashtile_dsl::ir::{At, AxisKind, Binding, Direction, Elem, Kernel, Op, OpId, ProgramDim, ValueId};

use super::context::Lowering;
use super::pipeline::Loop;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{Iteration, Slot, Stmt, StmtOp};
use crate::schedule::TileLoads;

/// The loads of a kernel's loops over tiles that `tile_loads=tma` is about.
pub(crate) fn elementwise_tiles(instance: &Instance) -> Vec<OpId> {
    let kernel = &instance.kernel;
    let mut all = all_elementwise(kernel);
    all.retain(|op| is_16_bit(kernel, &instance.binding, *op));
    all
}

/// The dimensions of the grid, but for tiled ones, that no tile of elementwise work depends on: the
/// programs along them read the same ones. None where the kernel loads no such tile.
pub(crate) fn sharing_dims(kernel: &Kernel) -> Vec<usize> {
    let (loads, grid) = (all_elementwise(kernel), kernel.grid());
    let Some(&program) = kernel.blocks[kernel.body].ops.first().filter(|_| !loads.is_empty()) else { return Vec::new() };
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut waiting: Vec<ValueId> = loads.iter().flat_map(|op| kernel.ops[*op].op.operands()).collect();
    while let Some(value) = waiting.pop() {
        if read.insert(value)
            && let Some((_, op)) = kernel.def(value)
        {
            waiting.extend(op.operands());
        }
    }
    let shared = |(d, dim): (usize, &ProgramDim)| {
        let stays = matches!(dim, ProgramDim::Each(_)) && !read.contains(&kernel.ops[program].results[d]);
        stays.then_some(d)
    };
    grid.iter().enumerate().filter_map(shared).collect()
}

fn all_elementwise(kernel: &Kernel) -> Vec<OpId> {
    let of_loop = |(_, op): (_, OpId)| match &kernel.ops[op].op {
        Op::For { axis, body, .. } if kernel.axes[*axis].kind != AxisKind::Each => {
            let ops = &kernel.blocks[*body].ops;
            elementwise(kernel, ops, kernel.blocks[*body].params[0])
        }
        _ => Vec::new(),
    };
    kernel.walk().into_iter().flat_map(of_loop).collect()
}

fn is_16_bit(kernel: &Kernel, binding: &Binding, load: OpId) -> bool {
    let Op::Load { tensor, .. } = &kernel.ops[load].op else { unreachable!("a load") };
    matches!(binding.elem(kernel, kernel.tensor(*tensor).elem), Elem::F16 | Elem::Bf16)
}

/// Those among the ops of a loop's body: of two tiled dimensions, the last of which lies together in
/// memory, one of them that of the loop, and of no product.
fn elementwise(kernel: &Kernel, ops: &[OpId], coordinate: ValueId) -> Vec<OpId> {
    let mut operands: HashSet<ValueId> = HashSet::new();
    for op in kernel.ops.values() {
        match op.op {
            Op::Dot { a, b, .. } => operands.extend([a, b]),
            Op::Transpose(x) => _ = operands.insert(x),
            _ => {}
        }
    }
    let qualifies = |op: &OpId| {
        let data = &kernel.ops[*op];
        let Op::Load { tensor, at } = &data.op else { return false };
        let decl = kernel.tensor(*tensor);
        let tiles = at.iter().filter(|a| matches!(a, At::Tile(_))).count();
        let others = at.iter().filter(|a| matches!(a, At::Range { .. })).count();
        let lies = tiles == 2 && others == 0 && matches!(at.last(), Some(At::Tile(_))) && (2..=5).contains(&at.len());
        let streamed = data.op.operands().contains(&coordinate);
        lies && streamed && decl.direction == Direction::In && !operands.contains(&data.results[0])
    };
    ops.iter().copied().filter(qualifies).collect()
}

impl Lowering<'_> {
    /// A ring for every tile of a loop that its elementwise work reads.
    pub(super) fn rings_of_rows(&mut self, l: &Loop<'_>) -> Result<(), Error> {
        if self.schedule.tile_loads == TileLoads::Direct {
            return Ok(());
        }
        let ops = self.kernel.blocks[l.body].ops.clone();
        let small = |op: &OpId| is_16_bit(self.kernel, &self.instance.binding, *op);
        for op in elementwise(self.kernel, &ops, l.coordinate).into_iter().filter(small).collect::<Vec<_>>() {
            let Op::Load { at, .. } = &self.kernel.ops[op].op else { unreachable!("a load") };
            let (dims, result) = (self.dims_of(at), self.kernel.ops[op].results[0]);
            let copied = self.classes.shared_loads.contains(&op) || self.classes.computed.values.contains(&result);
            if copied || !self.classes.is_row(&dims[0]) || self.classes.is_row(&dims[1]) {
                continue;
            }
            let tile = self.new_ring(op, self.schedule.stages, Some((l.id, l.coordinate)))?;
            self.read_from.insert(op, (tile, Slot::Of(Iteration::Ahead(l.id, 0))));
        }
        Ok(())
    }
}

/// Statements whose reads of rings wait for their slots, and hand them back at once.
pub(super) fn held(body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for mut stmt in body {
        for inner in stmt.op.bodies_mut() {
            *inner = held(std::mem::take(inner));
        }
        let StmtOp::ReadRows { tile, slot, .. } = stmt.op else {
            out.push(stmt);
            continue;
        };
        let span = stmt.span;
        let around = |op| Stmt::new(op, span);
        out.extend([around(StmtOp::Acquire { tile, slot }), stmt, around(StmtOp::Release(tile))]);
    }
    out
}
