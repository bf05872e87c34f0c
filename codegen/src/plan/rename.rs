//! Every name of a plan, to change: where it is given and where it is used.

use super::{Plan, Stmt, StmtOp};

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
            let gap = l.gap.iter_mut().flat_map(|gap| [&mut gap.at, &mut gap.tiles]);
            let list = l.list.iter_mut().map(|list| {
                change(&mut list.entry);
                &mut list.entries
            });
            let list: Vec<_> = list.collect();
            for e in [&mut l.lo, &mut l.full_lo, &mut l.full_hi, &mut l.hi, &mut l.first].into_iter().chain(gap).chain(list) {
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
            StmtOp::Let { name, .. } => change(name),
            StmtOp::Compute { inputs, shared, .. } => {
                shared.iter_mut().for_each(|shared| change(&mut shared.name));
                inputs.iter_mut().for_each(|input| change(&mut input.name));
            }
            _ => {}
        }
        stmt.op.expressions_mut().into_iter().for_each(|e| e.names_mut(change));
        stmt.op.bodies_mut().into_iter().for_each(|body| in_body(body, change));
    }
}
