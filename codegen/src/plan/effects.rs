//! What a statement reads and writes: variables and constants by name, and global memory as one thing.

use std::collections::HashSet;

use super::{Expr, Guard, InputSource, OperandA, Plan, Stmt, StmtOp, VarId};

/// Names that statements read and write.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Effects {
    /// Read.
    pub reads: HashSet<String>,
    /// Written.
    pub writes: HashSet<String>,
}

/// Stands for global memory.
const MEMORY: &str = "(memory)";

impl Effects {
    /// Whether the order of two statements matters.
    pub fn conflicts(&self, other: &Effects) -> bool {
        !self.writes.is_disjoint(&other.reads)
            || !self.reads.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.writes)
    }

    /// Adds the effects of something else.
    pub fn join(&mut self, other: Effects) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
    }

    fn read_expression(&mut self, e: &Expr) {
        e.visit(&mut |e| {
            self.reads.extend(e.own_name().map(str::to_owned));
            if let Expr::Param(param) = e {
                self.reads.insert(param.to_string());
            }
        });
    }
}

/// The effects of a statement, those of nested ones included. Tiles in shared memory are not among them: rings order these.
pub(crate) fn effects(plan: &Plan, stmt: &Stmt) -> Effects {
    let name = |v: VarId| plan.variables[v].name.clone();
    let mut found = Effects::default();
    let nested = |found: &mut Effects, body: &[Stmt]| {
        for stmt in body {
            found.join(effects(plan, stmt));
        }
    };
    stmt.op.expressions().into_iter().for_each(|e| found.read_expression(e));
    match &stmt.op {
        StmtOp::Let { name, .. } => drop(found.writes.insert(name.clone())),
        StmtOp::Map { to, .. } | StmtOp::Pack { to, .. } => drop(found.writes.insert(name(*to))),
        StmtOp::Reduce { to, from, .. } => {
            found.reads.insert(name(*from));
            found.writes.insert(name(*to));
        }
        StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => {
            found.reads.insert(name(*v));
            found.writes.insert(name(*v));
        }
        StmtOp::LoadFragments { to, .. } => drop(found.writes.insert(name(*to))),
        StmtOp::Dot { acc, zero, a, .. } => {
            if let OperandA::Packed(v) = a {
                found.reads.insert(name(*v));
            }
            if !zero {
                found.reads.insert(name(*acc));
            }
            found.writes.insert(name(*acc));
        }
        StmtOp::Stage { from, .. } => drop(found.reads.insert(name(*from))),
        StmtOp::Compute { inputs, .. } => {
            if inputs.iter().any(|input| !matches!(input.from, InputSource::Tile(..))) {
                found.reads.insert(MEMORY.to_owned());
            }
        }
        StmtOp::Load { to, .. } => {
            found.reads.insert(MEMORY.to_owned());
            found.writes.insert(name(*to));
        }
        StmtOp::Store { variable, .. } => {
            found.reads.extend(variable.map(name));
            found.writes.insert(MEMORY.to_owned());
        }
        StmtOp::When { guard, body, otherwise } => {
            match guard {
                Guard::Vote { flag, .. } => found.writes.extend(flag.map(name)),
                Guard::Flag(v) => drop(found.reads.insert(name(*v))),
                Guard::Exists(_) | Guard::Cut(_) | Guard::OneLeft(_) | Guard::FirstPart | Guard::LastPart | Guard::OwnWarps => {}
            }
            nested(&mut found, body);
            nested(&mut found, otherwise);
        }
        StmtOp::Loop { body, .. } | StmtOp::Step { body, .. } | StmtOp::Work(body) => nested(&mut found, body),
        StmtOp::SaveState(from) => {
            found.reads.extend(from.iter().map(|&v| name(v)));
            found.writes.insert(MEMORY.to_owned());
            meeting(plan, &mut found);
        }
        StmtOp::LoadState { to, .. } => {
            found.reads.insert(MEMORY.to_owned());
            found.writes.extend(to.iter().map(|&v| name(v)));
            meeting(plan, &mut found);
        }
        StmtOp::AwaitPart | StmtOp::PassPart => meeting(plan, &mut found),
        StmtOp::Copy { .. }
        | StmtOp::Fill { .. }
        | StmtOp::ClusterBarrier
        | StmtOp::Commit
        | StmtOp::Wait(_)
        | StmtOp::Barrier
        | StmtOp::Acquire { .. }
        | StmtOp::Release(_)
        | StmtOp::Advance(_)
        | StmtOp::ReleaseBefore(_)
        | StmtOp::TakeTurn
        | StmtOp::PassTurn => {}
    }
    found
}

/// The names that say where programs meet.
fn meeting(plan: &Plan, found: &mut Effects) {
    if let Some(meeting) = &plan.meeting {
        found.reads.insert(meeting.part.clone());
        found.read_expression(&meeting.group);
    }
}
