//! Removes constants that no statement names: what a kernel may ask for is defined before it is known whether it does.

use std::collections::HashSet;

use crate::plan::{Expr, MeetBy, Plan, Stmt, StmtOp, any};

/// Removes constants that no statement names: what a kernel may ask for is defined before it is known whether it does.
pub(super) fn drop_unused_constants(body: Vec<Stmt>, plan: &Plan) -> Vec<Stmt> {
    let mut body = body;
    loop {
        let mut used = HashSet::new();
        for info in &plan.loops {
            for bound in [&info.lo, &info.full_lo, &info.full_hi, &info.hi, &info.first].into_iter().chain(info.beside_bounds()) {
                names_in(bound, &mut used);
            }
            used.extend(info.list.iter().map(|list| list.entry.clone()));
        }
        names_in(&plan.programs, &mut used);
        if let Some(meeting) = plan.meeting.as_ref().filter(|_| any(&body, &|op| matches!(op, StmtOp::SaveState(_)))) {
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
        stmt.op.expressions().into_iter().for_each(|e| names_in(e, used));
        stmt.op.bodies().into_iter().for_each(|body| collect_names(body, used));
    }
}

/// The identifiers of an expression.
fn names_in(e: &Expr, used: &mut HashSet<String>) {
    e.visit(&mut |e| used.extend(e.own_name().map(str::to_owned)));
}
