//! Every name of a plan, to change: where it is given and where it is used.

use super::{Expr, GlobalTile, Guard, InputSource, Plan, Stmt, StmtOp};

impl Plan {
    /// Calls `change` with every name that the plan gives or uses. Names of tensors, sizes and
    /// scalars are the kernel's, and stay.
    pub fn names_mut(&mut self, change: &mut impl FnMut(&mut String)) {
        let Plan { tiles, variables, loops, roles, maps, programs, meeting, .. } = self;
        tiles.iter_mut().for_each(|t| change(&mut t.name));
        variables.iter_mut().for_each(|v| change(&mut v.name));
        maps.iter_mut().for_each(|m| change(&mut m.name));
        programs.names_mut(change);
        for l in loops {
            change(&mut l.coordinate);
            for e in [&mut l.lo, &mut l.full_lo, &mut l.full_hi, &mut l.hi, &mut l.first] {
                e.names_mut(change);
            }
        }
        if let Some(meeting) = meeting {
            change(&mut meeting.part);
            meeting.group.names_mut(change);
        }
        roles.iter_mut().for_each(|role| in_body(&mut role.body, change));
    }
}

fn in_body(body: &mut [Stmt], change: &mut impl FnMut(&mut String)) {
    for stmt in body {
        match &mut stmt.op {
            StmtOp::Let { name, value, .. } => {
                change(name);
                value.names_mut(change);
            }
            StmtOp::Map { value, .. } | StmtOp::Pack { value, .. } => value.names_mut(change),
            StmtOp::Copy { from, .. } | StmtOp::Load { from, .. } => in_tile(from, change),
            StmtOp::Store { to, value, .. } => {
                in_tile(to, change);
                value.names_mut(change);
            }
            StmtOp::Compute { to, inputs, shared } => {
                to.iter_mut().for_each(|t| t.value.names_mut(change));
                for s in shared {
                    change(&mut s.name);
                    s.value.names_mut(change);
                }
                for input in inputs {
                    change(&mut input.name);
                    match &mut input.from {
                        InputSource::Tile(..) => {}
                        InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => in_tile(from, change),
                    }
                }
            }
            StmtOp::When { guard: Guard::Vote { condition, .. }, .. } => condition.names_mut(change),
            StmtOp::Fill { at, .. } => at.iter_mut().for_each(|e| e.names_mut(change)),
            StmtOp::LoadState { from, .. } => from.iter_mut().for_each(|e| e.names_mut(change)),
            StmtOp::Reduce { .. }
            | StmtOp::QuadSum(_)
            | StmtOp::QuadMax(_)
            | StmtOp::Commit
            | StmtOp::Wait(_)
            | StmtOp::Barrier
            | StmtOp::LoadFragments { .. }
            | StmtOp::Dot { .. }
            | StmtOp::Stage { .. }
            | StmtOp::When { .. }
            | StmtOp::Loop { .. }
            | StmtOp::Step { .. }
            | StmtOp::Acquire { .. }
            | StmtOp::Release(_)
            | StmtOp::Advance(_)
            | StmtOp::ReleaseBefore(_)
            | StmtOp::WgmmaWait(_)
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::Work(_)
            | StmtOp::AwaitPart
            | StmtOp::PassPart
            | StmtOp::SaveState(_)
            | StmtOp::ClusterBarrier => {}
        }
        stmt.op.bodies_mut().into_iter().for_each(|body| in_body(body, change));
    }
}

fn in_tile(tile: &mut GlobalTile, change: &mut impl FnMut(&mut String)) {
    let GlobalTile { origin, row_stride, rows_present, column_stride, columns_present, .. } = tile;
    let all: [&mut Expr; 5] = [origin, row_stride, rows_present, column_stride, columns_present];
    all.into_iter().for_each(|e| e.names_mut(change));
}
