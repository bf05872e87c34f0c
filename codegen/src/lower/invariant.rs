//! Moves reads of memory that no iteration of an index loop changes in front of the loop.
//!
//! The bounds of a loop over tiles are computed where it begins. Where a loop over single positions,
//! such as heads, is around it, they are computed again for each of these. What they read of memory
//! is often the same in all of them: the extreme documents of a tile, and the search of the tiles
//! that meet them. The compiler does not see that: lanes of a warp search together.

use std::collections::HashSet;

use crate::plan::{Expr, Plan, Stmt, StmtOp, any, each};

/// Moves constants that read memory, and are the same in all iterations, in front of index loops.
pub(super) fn read_before_index_loops(body: Vec<Stmt>, plan: &Plan) -> Vec<Stmt> {
    let mut moved = Vec::new();
    for mut stmt in body {
        for body in stmt.op.bodies_mut() {
            *body = read_before_index_loops(std::mem::take(body), plan);
        }
        if let StmtOp::Loop { id, body, .. } = &mut stmt.op
            && plan.loops[*id].single
            && !any(body, &writes_memory)
        {
            let mut defined = defined_in(body, plan);
            defined.insert(plan.loops[*id].coordinate.clone());
            let (before, rest): (Vec<_>, Vec<_>) = std::mem::take(body).into_iter().partition(|stmt| {
                let StmtOp::Let { name, value, .. } = &stmt.op else { return false };
                let same = reads_memory(value) && !names_any(value, &defined);
                // What is moved is no longer defined by the loop: what it alone decides may follow it.
                if same {
                    defined.remove(name);
                }
                same
            });
            *body = rest;
            moved.extend(before);
        }
        moved.push(stmt);
    }
    moved
}

/// Whether a statement may change what a read of memory gives.
fn writes_memory(op: &StmtOp) -> bool {
    matches!(op, StmtOp::Store { .. } | StmtOp::Add { .. } | StmtOp::AddRows { .. })
}

/// Names that have another value in each iteration: constants, coordinates of loops, variables.
fn defined_in(body: &[Stmt], plan: &Plan) -> HashSet<String> {
    let mut defined: HashSet<String> = plan.variables.iter().map(|v| v.name.clone()).collect();
    each(body, &mut |op| match op {
        StmtOp::Let { name, .. } => _ = defined.insert(name.clone()),
        StmtOp::Loop { id, .. } => _ = defined.insert(plan.loops[*id].coordinate.clone()),
        _ => {}
    });
    defined
}

fn reads_memory(value: &Expr) -> bool {
    let mut found = false;
    value.visit(&mut |e| found |= matches!(e, Expr::Call(function, _) if function.reads_memory()));
    found
}

fn names_any(value: &Expr, names: &HashSet<String>) -> bool {
    let mut found = false;
    value.visit(&mut |e| found |= e.own_name().is_some_and(|name| names.contains(name)));
    found
}
