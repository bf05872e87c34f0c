//! What a statement reads and writes: variables and constants by name, and global memory as one thing.

use std::collections::HashSet;

use super::{Expr, GlobalTile, Guard, InputSource, OperandA, Plan, Stmt, StmtOp, VarId};

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

    fn read_tile(&mut self, tile: &GlobalTile) {
        for e in [&tile.origin, &tile.row_stride, &tile.rows_present, &tile.columns_present] {
            self.read_expression(e);
        }
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
    match &stmt.op {
        StmtOp::Let { name, value, .. } => {
            found.read_expression(value);
            found.writes.insert(name.clone());
        }
        StmtOp::Map { to, value } | StmtOp::Pack { to, value, .. } => {
            found.read_expression(value);
            found.writes.insert(name(*to));
        }
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
        StmtOp::Copy { from, .. } => found.read_tile(from),
        StmtOp::Compute { to, inputs, shared } => {
            to.iter().for_each(|t| found.read_expression(&t.value));
            shared.iter().for_each(|s| found.read_expression(&s.value));
            for input in inputs {
                match &input.from {
                    InputSource::Tile(..) => {}
                    InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                        found.read_tile(from);
                        found.reads.insert(MEMORY.to_owned());
                    }
                }
            }
        }
        StmtOp::Load { to, from } => {
            found.read_tile(from);
            found.reads.insert(MEMORY.to_owned());
            found.writes.insert(name(*to));
        }
        StmtOp::Store { to, value, variable, .. } => {
            found.read_tile(to);
            found.read_expression(value);
            found.reads.extend(variable.map(name));
            found.writes.insert(MEMORY.to_owned());
        }
        StmtOp::When { guard, body, otherwise } => {
            match guard {
                Guard::Vote { condition, flag, .. } => {
                    found.read_expression(condition);
                    found.writes.extend(flag.map(name));
                }
                Guard::Flag(v) => drop(found.reads.insert(name(*v))),
                Guard::Exists(_) | Guard::Cut(_) | Guard::OneLeft(_) | Guard::FirstPart | Guard::LastPart | Guard::OwnWarps => {}
            }
            nested(&mut found, body);
            nested(&mut found, otherwise);
        }
        StmtOp::Loop { body, .. } | StmtOp::Step { body, .. } | StmtOp::Work(body) => nested(&mut found, body),
        StmtOp::Fill { at, .. } => at.iter().for_each(|e| found.read_expression(e)),
        StmtOp::SaveState(from) => {
            found.reads.extend(from.iter().map(|&v| name(v)));
            found.writes.insert(MEMORY.to_owned());
            meeting(plan, &mut found);
        }
        StmtOp::LoadState { to, from } => {
            from.iter().for_each(|e| found.read_expression(e));
            found.reads.insert(MEMORY.to_owned());
            found.writes.extend(to.iter().map(|&v| name(v)));
            meeting(plan, &mut found);
        }
        StmtOp::AwaitPart | StmtOp::PassPart => meeting(plan, &mut found),
        StmtOp::ClusterBarrier
        | StmtOp::Commit
        | StmtOp::Wait(_)
        | StmtOp::Barrier
        | StmtOp::Acquire { .. }
        | StmtOp::Release(_)
        | StmtOp::Advance(_)
        | StmtOp::ReleaseBefore(_)
        | StmtOp::WgmmaWait(_)
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
