//! Tiles of 16-bit numbers that a loop loads for its elementwise work, such as a bias of the scores:
//! with `tile_loads=tma` the producer fills a ring with them, as with the operands of products.
//!
//! Fragments of an accumulator hold pairs of columns, of which lanes load 4 bytes each: a warp reads 8
//! pieces of 16 bytes, far apart, at a time, and waits for memory in every step. A ring is filled
//! ahead, in whole lines, and `ldmatrix` gives each lane the pairs that its accumulators have. Of a
//! tile that lies the other way round (`turned.rs`) `ldmatrix.trans` does.
//!
//! ```text
//! step j:   .. wait S; release K; acquire B j; read rows of B j; release B; elementwise ..
//! ```

use flashtile_dsl::ir::{At, BlockId, OpId, ValueId};

use super::context::Lowering;
use crate::elementwise_tiles::{comes_by_ring, elementwise};
use crate::error::Error;
use crate::plan::{Iteration, LoopId, Slot, Stmt, StmtOp};
use crate::schedule::TileLoads;

impl Lowering<'_> {
    /// A ring for every tile of a loop that its elementwise work reads.
    pub(super) fn rings_of_rows(&mut self, id: LoopId, body: BlockId, coordinate: ValueId) -> Result<(), Error> {
        if self.schedule.tile_loads == TileLoads::Direct {
            return Ok(());
        }
        let ops = self.kernel.blocks[body].ops.clone();
        let turned = |op: &OpId| self.classes.turned.get(op).is_some_and(|turned| turned.at.contains(&At::Tile(coordinate)));
        let loads = elementwise(self.kernel, &ops, coordinate).into_iter().chain(ops.iter().copied().filter(turned));
        let by_ring = |op: &OpId| comes_by_ring(self.kernel, self.instance, self.read_by(*op).0);
        for op in loads.filter(by_ring).collect::<Vec<_>>() {
            let result = self.kernel.ops[op].results[0];
            let dims = self.kernel.tile(result).dims.clone();
            let copied = self.classes.shared_loads.contains(&op) || self.classes.computed.values.contains(&result);
            if copied || !self.classes.is_row(&dims[0]) || self.classes.is_row(&dims[1]) {
                continue;
            }
            let tile = self.new_ring(op, self.schedule.stages, Some((id, coordinate)))?;
            self.read_from.insert(op, (tile, Slot::Of(Iteration::Ahead(id, 0))));
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
