//! The loops of a plan: which stands in which, and how many trips they make in the cases that are
//! tried.

use crate::plan::{Iteration, LoopId, Plan, Stmt, StmtOp};

/// The trip counts to try of so many loops, by loop: every pair of counts for any two loops, the
/// others at two.
pub(super) fn trip_counts(loops: usize, most: u32) -> Vec<Vec<u32>> {
    let counts = || 0..=most;
    let mut all: Vec<Vec<u32>> = counts().map(|n| vec![n; loops]).collect();
    for first in 0..loops {
        for second in 0..first {
            for (a, b) in counts().flat_map(|a| counts().map(move |b| (a, b))) {
                let mut trips = vec![2; loops];
                (trips[first], trips[second]) = (a, b);
                all.push(trips);
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The loop that each loop stands in, if it stands in one.
pub(super) fn outer_loops(plan: &Plan) -> Vec<Option<LoopId>> {
    fn find(body: &[Stmt], outer: Option<LoopId>, found: &mut [Option<LoopId>]) {
        for stmt in body {
            let here = match &stmt.op {
                StmtOp::Loop { id, .. } => Some(*id),
                StmtOp::Step { at, .. } => Some(loop_of(*at)),
                _ => None,
            };
            if let (Some(id), Some(_)) = (here, outer)
                && outer != here
            {
                found[id] = outer;
            }
            stmt.op.bodies().into_iter().for_each(|body| find(body, here.or(outer), found));
        }
    }
    let mut found = vec![None; plan.loops.len()];
    plan.roles.iter().for_each(|role| find(&role.body, None, &mut found));
    found
}

/// The loop of an iteration.
pub(super) fn loop_of(iteration: Iteration) -> LoopId {
    match iteration {
        Iteration::First(id, _) | Iteration::Ahead(id, _) | Iteration::Behind(id, _) | Iteration::Last(id) => id,
    }
}
