//! Left operands that stay for a loop, such as queries, with their last columns in registers.
//!
//! `wgmma` reads 64 rows of its left operand from shared memory at 128 bytes a cycle: 16 cycles for
//! 16 columns, which it multiplies by 32 columns of the right one in 16 cycles too, and needs 8 more
//! to read these. Warps that share columns have few of them each, and so wait for shared memory.
//! What is in registers is not read: `held_columns` says how many columns that are, as registers
//! are there for. The product is made in two then, the second added to the first:
//!
//! ```text
//! q_held = fragments q from 384
//! loop j: s = dot(tile q, k[j].t) depth 384; s += dot(packed q_held, k[j].t from 384) depth 192
//! ```

use flashtile_dsl::ir::{AxisKind, Kernel, Op, OpId};

use super::context::Lowering;
use super::pipeline::Loop;
use crate::error::Error;
use crate::plan::{OperandA, Slot, Stmt, StmtOp, TileId, VarId};

/// Whether some loop has a product whose left operand is the same in all steps.
pub(crate) fn has_left_operand_that_stays(kernel: &Kernel) -> bool {
    kernel.walk().iter().any(|&(block, op)| match kernel.ops[op].op {
        Op::Dot { a, .. } if block != kernel.body => {
            kernel.def(a).is_some_and(|(def, op)| !matches!(op, Op::For { .. }) && kernel.blocks[kernel.body].ops.contains(&def))
        }
        _ => false,
    })
}

/// Whether an op is a loop over an index, such as a batch, each step of which multiplies tiles that
/// the step loads. Those tiles come once a step, into slots of `outer_stages`.
pub(crate) fn multiplies_what_an_index_loads(kernel: &Kernel, op: OpId) -> bool {
    let Op::For { axis, body, .. } = kernel.ops[op].op else { return false };
    let ops = &kernel.blocks[body].ops;
    let loaded = |v| {
        let mut def = kernel.def(v);
        while let Some((_, Op::Transpose(x))) = def {
            def = kernel.def(*x);
        }
        def.is_some_and(|(op, data)| matches!(data, Op::Load { .. }) && ops.contains(&op))
    };
    let multiplies = |op: &OpId| matches!(kernel.ops[*op].op, Op::Dot { a, b, .. } if loaded(a) || loaded(b));
    kernel.axes[axis].kind == AxisKind::Each && ops.iter().any(multiplies)
}

impl Lowering<'_> {
    /// Steps whose products take the last columns of left operands that stay from registers, which
    /// are loaded before the loop, once for all steps.
    pub(super) fn with_held_columns<const STEPS: usize>(
        &mut self,
        l: &Loop<'_>,
        steps: [Vec<Stmt>; STEPS],
    ) -> Result<[Vec<Stmt>; STEPS], Error> {
        let held = self.schedule.held_columns;
        if held == 0 {
            return Ok(steps);
        }
        let mut known = Vec::new();
        let steps = steps.map(|step| self.with_held(l, step, &mut known));
        if known.is_empty() {
            let what = "held_columns in a loop without a product whose left operand stays in shared memory, and is wider";
            return Err(Error::unsupported(what, "set held_columns=0, or fewer", self.span));
        }
        Ok(steps)
    }

    /// The same of one step; `known` are columns that are loaded already.
    fn with_held(&mut self, l: &Loop<'_>, step: Vec<Stmt>, known: &mut Vec<(TileId, u32, VarId)>) -> Vec<Stmt> {
        let held = self.schedule.held_columns;
        let mut out = Vec::new();
        for stmt in step {
            let Some((tile, first)) = self.first_held(l, &stmt, held) else {
                out.push(stmt);
                continue;
            };
            let StmtOp::Dot { depth, .. } = stmt.op else { unreachable!("a product") };
            let loaded = known.iter().find(|&&(of, from, _)| (of, from) == (tile, first)).map(|&(.., v)| v);
            let packed = loaded.unwrap_or_else(|| self.load_columns(tile, first, depth - first, "held"));
            known.push((tile, first, packed));
            let (mut shared, mut rest) = (stmt.clone(), stmt);
            if let StmtOp::Dot { depth, .. } = &mut shared.op {
                *depth = first;
            }
            if let StmtOp::Dot { depth, a, b_column, zero, .. } = &mut rest.op {
                (*depth, *a) = (*depth - first, OperandA::Packed(packed));
                (*b_column, *zero) = (*b_column + first, *zero && first == 0);
            }
            out.extend((first > 0).then_some(shared));
            out.push(rest);
        }
        out
    }

    /// The tile that is the left operand of a product and stays for a loop, and the first of its
    /// columns to hold: one with which a slab begins, of this tile and of the right operand's.
    fn first_held(&self, l: &Loop<'_>, stmt: &Stmt, held: u32) -> Option<(TileId, u32)> {
        let StmtOp::Dot { a: OperandA::Tile(tile, Slot::Only), a_turned: false, b, k_major: true, depth, .. } = stmt.op else {
            return None;
        };
        let streamed = |tile: TileId| self.sources.get(&tile).and_then(|source| source.streamed);
        let stays = self.sources.contains_key(&tile) && streamed(tile).is_none_or(|(id, _)| id != l.id);
        let (left, right) = (&self.plan.tiles[tile], &self.plan.tiles[b]);
        let plain = !left.is_narrow() && !right.is_narrow() && !right.is_read_twice();
        let together = left.pitch.max(right.pitch).min(128) / 2;
        let first = depth.saturating_sub(held).next_multiple_of(together);
        (stays && plain && first < depth).then_some((tile, first))
    }
}
