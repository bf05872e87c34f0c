//! Loop-invariant code motion: pure ops whose operands do not change in a loop move before it.
//!
//! Tiles along the axis of the loop stay. The last one has fewer positions than the others: what
//! lies beyond the end is made harmless in the loop, and a sum over it is another number.

use flashtile_dsl::ir::{Dim, Kernel, Op, ValueDef};

/// Moves invariant ops out of loops, innermost first.
pub fn hoist_invariants(kernel: &mut Kernel) {
    let loops: Vec<_> = kernel.walk().into_iter().filter(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. })).collect();
    for &(outer, id) in loops.iter().rev() {
        let Op::For { body, axis, .. } = kernel.ops[id].op else { continue };
        let mut moved = Vec::new();
        for op in kernel.blocks[body].ops.clone() {
            let pure = match kernel.ops[op].op {
                Op::Store { .. } | Op::Scatter { .. } | Op::For { .. } | Op::Yield(_) => false,
                // What a loop stores to changes in it.
                Op::Load { tensor, .. } => !kernel.tensor(tensor).direction.is_written(),
                _ => true,
            };
            let inside = |value| match kernel.values[value].def {
                ValueDef::BlockParam(block, _) => block == body,
                ValueDef::Result(def, _) => kernel.blocks[body].ops.contains(&def) && !moved.contains(&def),
            };
            let along = |value| kernel.ty(value).tile().is_some_and(|tile| tile.dims.contains(&Dim::Axis(axis)));
            let along = kernel.ops[op].results.iter().any(|&result| along(result));
            if pure && !along && !kernel.ops[op].op.operands().into_iter().any(inside) {
                moved.push(op);
            }
        }
        kernel.blocks[body].ops.retain(|op| !moved.contains(op));
        let at = kernel.blocks[outer].ops.iter().position(|&op| op == id).expect("the loop is in its block");
        kernel.blocks[outer].ops.splice(at..at, moved);
    }
}
