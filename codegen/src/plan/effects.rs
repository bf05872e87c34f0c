//! What a statement reads and writes: variables and constants by name, and global memory as one thing.

use std::collections::HashSet;

use super::{Exchange, Expr, Plan, Stmt, StmtOp, TileId, VarId};

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

/// The effects of a statement, those of nested ones included. Of tiles in shared memory those are
/// among them that warps stage for each other: a barrier ends what is done with these before, and
/// rings order the others.
pub(crate) fn effects(plan: &Plan, stmt: &Stmt) -> Effects {
    let name = |&v: &VarId| plan.variables[v].name.clone();
    let mut found = Effects::default();
    stmt.op.expressions().into_iter().for_each(|e| found.read_expression(e));
    let uses = stmt.op.uses();
    found.reads.extend(uses.reads.iter().map(name));
    found.writes.extend(uses.writes.iter().map(name).chain(uses.declares.map(str::to_owned)));
    found.reads.extend(uses.reads_memory().then(|| MEMORY.to_owned()));
    found.writes.extend(uses.writes_memory().then(|| MEMORY.to_owned()));
    if let Some(meeting) = plan.meeting.as_ref().filter(|_| uses.meets) {
        found.reads.insert(meeting.part.clone());
        found.read_expression(&meeting.group);
    }
    let staged = |tile: &TileId| plan.tiles[*tile].barriers.is_none() && !plan.tiles[*tile].warp_private;
    let named = |tile: TileId| format!("(tile {})", plan.tiles[tile].name);
    let tiles = || uses.tiles.iter().map(|(tile, _)| *tile).filter(staged).map(named);
    match stmt.op {
        StmtOp::Dot { .. } | StmtOp::Merge { .. } => found.reads.extend(tiles()),
        StmtOp::Stage { .. } | StmtOp::Publish { .. } | StmtOp::Exchange { step: Exchange::Reserve, .. } => {
            found.writes.extend(tiles());
        }
        StmtOp::Exchange { .. } => found.reads.extend(tiles()),
        ref op if op.is_barrier() => found.writes.extend((0..plan.tiles.len()).filter(staged).map(named)),
        _ => {}
    }
    for stmt in stmt.op.bodies().into_iter().flatten() {
        found.join(effects(plan, stmt));
    }
    found
}
