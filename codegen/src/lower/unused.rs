//! Removes constants that no statement names: what a kernel may ask for is defined before it is known whether it does.

use std::collections::HashSet;

use crate::plan::{Expr, GlobalTile, Guard, InputSource, MeetBy, Plan, Stmt, StmtOp};

/// Removes constants that no statement names: what a kernel may ask for is defined before it is known whether it does.
pub(super) fn drop_unused_constants(body: Vec<Stmt>, plan: &Plan) -> Vec<Stmt> {
    let mut body = body;
    loop {
        let mut used = HashSet::new();
        for info in &plan.loops {
            for bound in [&info.lo, &info.full_lo, &info.full_hi, &info.hi, &info.first] {
                names_in(bound, &mut used);
            }
        }
        names_in(&plan.programs, &mut used);
        if let Some(meeting) = plan.meeting.as_ref().filter(|_| meets(&body)) {
            used.insert(meeting.part.clone());
            if meeting.by == MeetBy::Semaphore {
                names_in(&meeting.group, &mut used);
            }
        }
        collect_names(&body, &mut used);
        let before = count(&body);
        body = keep_used(body, &used);
        if count(&body) == before {
            return body;
        }
    }
}

/// Whether some statement is one of programs that meet.
fn meets(body: &[Stmt]) -> bool {
    body.iter().any(|s| matches!(s.op, StmtOp::SaveState(_)) || s.op.bodies().into_iter().any(meets))
}

fn count(body: &[Stmt]) -> usize {
    body.iter().map(|s| 1 + s.op.bodies().into_iter().map(count).sum::<usize>()).sum()
}

fn keep_used(body: Vec<Stmt>, used: &HashSet<String>) -> Vec<Stmt> {
    let mut kept = Vec::new();
    for mut stmt in body {
        if matches!(&stmt.op, StmtOp::Let { name, .. } if !used.contains(name)) {
            continue;
        }
        for body in stmt.op.bodies_mut() {
            *body = keep_used(std::mem::take(body), used);
        }
        kept.push(stmt);
    }
    kept
}

fn collect_names(body: &[Stmt], used: &mut HashSet<String>) {
    for stmt in body {
        let tile = |tile: &GlobalTile, used: &mut HashSet<String>| {
            for e in [&tile.origin, &tile.row_stride, &tile.rows_present, &tile.columns_present] {
                names_in(e, used);
            }
        };
        match &stmt.op {
            StmtOp::Let { value, .. } | StmtOp::Map { value, .. } | StmtOp::Pack { value, .. } => names_in(value, used),
            StmtOp::Copy { from, .. } | StmtOp::Load { from, .. } => tile(from, used),
            StmtOp::Compute { to, inputs, shared } => {
                to.iter().for_each(|t| names_in(&t.value, used));
                shared.iter().for_each(|s| names_in(&s.value, used));
                for input in inputs {
                    match &input.from {
                        InputSource::Tile(..) => {}
                        InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => tile(from, used),
                    }
                }
            }
            StmtOp::Store { to, value, .. } => {
                tile(to, used);
                names_in(value, used);
            }
            StmtOp::When { guard: Guard::Vote { condition, .. }, .. } => names_in(condition, used),
            StmtOp::Fill { at, .. } => at.iter().for_each(|e| names_in(e, used)),
            _ => {}
        }
        for body in stmt.op.bodies() {
            collect_names(body, used);
        }
    }
}

/// The identifiers of an expression.
fn names_in(e: &Expr, used: &mut HashSet<String>) {
    e.visit(&mut |e| {
        if let Expr::Name(text) | Expr::Element(text, _) | Expr::RowPosition(text) | Expr::ColumnPosition(text) = e {
            used.insert(text.clone());
        }
    });
}
