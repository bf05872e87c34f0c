//! What waits name: something that the plan begins, and that is in flight there in some case.

use super::fault::Faults;
use crate::plan::completion::InFlight;
use crate::plan::{Completion, Event, Plan, Stmt, StmtOp, any};

/// Waits for what never begins, and waits that no number of groups stands for.
pub(super) fn faults(plan: &Plan, completion: &Completion) -> Faults {
    let mut check = Check { plan, completion, faults: Faults::default() };
    plan.roles.iter().for_each(|role| check.block(&role.body));
    check.faults
}

struct Check<'a> {
    plan: &'a Plan,
    completion: &'a Completion,
    faults: Faults,
}

impl Check<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            if let StmtOp::Wait(events) = &stmt.op {
                self.faults.at = stmt.line;
                events.iter().for_each(|event| self.event(*event));
                if self.completion.in_flight(&stmt.op).unwrap_or_default() == InFlight::default() {
                    self.faults.insert("a wait names nothing that is in flight there in any case: leave it out");
                }
            }
            stmt.op.bodies().into_iter().for_each(|body| self.block(body));
        }
    }

    fn event(&mut self, event: Event) {
        let plan = self.plan;
        let begins = |op: &StmtOp| match (event, op) {
            (Event::Copied(tile, _), StmtOp::Copy { tile: into, .. }) => *into == tile && plan.is_asynchronous(),
            (Event::Product(v), StmtOp::Dot { acc, atom, .. }) => *acc == v && atom.is_asynchronous(),
            (Event::Read(tile, _), StmtOp::Dot { atom, .. }) => {
                atom.is_asynchronous() && op.tiles().iter().any(|(read, _)| *read == tile)
            }
            _ => false,
        };
        if plan.roles.iter().any(|role| any(&role.body, &begins)) {
            return;
        }
        self.faults.insert(match event {
            Event::Copied(tile, _) => format!("a wait names a copy into {}, but none is asynchronous", plan.tiles[tile].name),
            Event::Product(v) => format!("a wait names products into {}, but none is asynchronous", plan.variables[v].name),
            Event::Read(tile, _) => {
                format!("a wait names products that read {}, but none is asynchronous", plan.tiles[tile].name)
            }
        });
    }
}
