//! Programs that walk the parts of a loop and meet: turns, states, barriers of a cluster.
//!
//! What a program does to meet the others does not depend on trip counts: it is outside of the loop that is split. So the
//! statements are taken once for each part that differs: the first, one in between, the last.

use super::fault::Faults;
use crate::plan::cases::holds_in_part;
use crate::plan::{Guard, MeetBy, Plan, Stmt, StmtOp, Storage, VarId};

/// The faults of a part.
pub(super) fn faults(plan: &Plan, part: u32) -> Faults {
    let Some(role) = plan.computing() else { return Faults::default() };
    let mut walk = Walk {
        plan,
        part,
        faults: Faults::default(),
        own: false,
        repeated: false,
        awaited: false,
        passed: false,
        saved: None,
        shapes: first_saved(&role.body).map_or_else(Vec::new, |saved| shapes(plan, saved)),
        alone: false,
        read: false,
        visible: false,
    };
    walk.block(&role.body);
    walk.end();
    walk.faults
}

struct Walk<'p> {
    plan: &'p Plan,
    part: u32,
    faults: Faults,
    /// In a branch that a warp takes by itself.
    own: bool,
    /// In a loop.
    repeated: bool,
    awaited: bool,
    passed: bool,
    /// The variables that were saved.
    saved: Option<Vec<VarId>>,
    /// Of the values of the state that the plan saves first.
    shapes: Vec<(Storage, u32, u32)>,
    /// In statements that one of the programs that meet executes.
    alone: bool,
    /// Whether states of other blocks were read since the latest barrier of the cluster.
    read: bool,
    /// Whether the states of a cluster are to be seen by all its blocks.
    visible: bool,
}

impl Walk<'_> {
    fn fault(&mut self, text: &str) {
        self.faults.insert(text);
    }

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            self.step(&stmt.op);
        }
    }

    fn step(&mut self, op: &StmtOp) {
        match op {
            StmtOp::When { guard, body, otherwise } => {
                if let Some(holds) = holds_in_part(self.plan, guard, self.part) {
                    // Of the first part, or the last, there is one; of those that are not there is
                    // one if there are two.
                    let one = holds || self.plan.meeting.as_ref().is_some_and(|m| m.parts == 2);
                    let alone = self.alone;
                    self.alone |= one;
                    self.block(if holds { body } else { otherwise });
                    self.alone = alone;
                    return;
                }
                let own = std::mem::replace(&mut self.own, true);
                let alone = self.alone;
                self.alone |= *guard == Guard::OwnWarps;
                self.block(body);
                self.alone = alone;
                self.block(otherwise);
                self.own = own;
            }
            StmtOp::Loop { body, .. } | StmtOp::Step { body, .. } => {
                let repeated = std::mem::replace(&mut self.repeated, true);
                self.block(body);
                self.repeated = repeated;
            }
            StmtOp::Work(body) => self.block(body),
            StmtOp::Store { .. } if self.plan.meeting.is_some() && !self.alone => {
                self.fault("every part stores what one of them should");
            }
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::SaveState(_) | StmtOp::LoadState { .. } | StmtOp::ClusterBarrier => {
                match self.plan.meeting.as_ref().map(|m| m.by) {
                    Some(MeetBy::Semaphore) => self.by_semaphore(op),
                    Some(MeetBy::Cluster) => self.in_cluster(op),
                    None => self.fault("a program meets others where none do"),
                }
            }
            _ => {}
        }
    }

    /// Every state that is saved or loaded has the same kinds of values in the same order, and as
    /// many bytes as the meeting says.
    fn state(&mut self, variables: &[VarId]) {
        let same = self.shapes == shapes(self.plan, variables);
        let fits = self.plan.meeting.as_ref().is_none_or(|m| state_bytes(self.plan, variables) == m.bytes);
        if !same || !fits {
            self.fault("what is loaded is not what is saved");
        }
    }

    fn by_semaphore(&mut self, op: &StmtOp) {
        if self.own || self.repeated {
            self.fault("a turn of a part in a loop, or in a branch that a warp takes by itself");
        }
        let has_turn = self.part == 0 || self.awaited;
        if self.passed {
            self.fault("the state of a part is touched after its turn was passed");
        }
        match op {
            StmtOp::AwaitPart => self.awaited = true,
            StmtOp::PassPart => {
                if !has_turn {
                    self.fault("a turn is passed that was not waited for");
                }
                if self.saved.is_none() && self.plan.meeting.as_ref().is_some_and(|m| self.part + 1 < m.parts) {
                    self.fault("the turn is passed before the state is saved");
                }
                self.passed = true;
            }
            StmtOp::SaveState(from) => {
                if !has_turn {
                    self.fault("a state is saved before the turn of the part");
                }
                self.state(from);
                self.saved = Some(from.clone());
            }
            StmtOp::LoadState { to, .. } => {
                if self.part == 0 {
                    self.fault("the first part reads a state that nobody has saved");
                } else if !has_turn {
                    self.fault("a state is read before the turn of the part");
                }
                self.state(to);
            }
            _ => self.fault("a barrier of a cluster where programs meet by a semaphore"),
        }
    }

    fn in_cluster(&mut self, op: &StmtOp) {
        match op {
            StmtOp::SaveState(from) => {
                if self.own || self.repeated {
                    self.fault("a state is saved in a loop, or in a branch that a warp takes by itself");
                }
                if self.visible {
                    self.fault("a state is saved while others may read it");
                }
                self.state(from);
                self.saved = Some(from.clone());
            }
            StmtOp::ClusterBarrier => {
                if self.own || self.repeated {
                    self.fault("a barrier of the cluster in a loop, or in a branch that a warp takes by itself");
                }
                self.visible = self.saved.is_some() && !self.read;
                self.read = false;
            }
            StmtOp::LoadState { to, from } => {
                if !self.visible {
                    self.fault("the state of another block is read with no barrier of the cluster after it was saved");
                }
                if from.is_none() {
                    self.fault("the state of no block is read");
                }
                self.state(to);
                self.read = true;
            }
            _ => self.fault("a turn of a part where programs meet in a cluster"),
        }
    }

    fn end(&mut self) {
        match self.plan.meeting.as_ref().map(|m| m.by) {
            Some(MeetBy::Semaphore) if !self.passed => self.fault("deadlock: the turn is never passed on"),
            Some(MeetBy::Cluster) if self.read => self.fault("a block may end while others read its state"),
            _ => {}
        }
    }
}

/// The state that statements save first.
fn first_saved(body: &[Stmt]) -> Option<&[VarId]> {
    body.iter().find_map(|stmt| match &stmt.op {
        StmtOp::SaveState(from) => Some(from.as_slice()),
        op => op.bodies().into_iter().find_map(first_saved),
    })
}

/// What decides where the values of a state lie.
fn shapes(plan: &Plan, variables: &[VarId]) -> Vec<(Storage, u32, u32)> {
    let shape = |&v: &VarId| (plan.variables[v].storage, plan.variables[v].m_tiles, plan.variables[v].n_tiles);
    variables.iter().map(shape).collect()
}

/// Bytes of a thread's elements of variables.
pub(crate) fn state_bytes(plan: &Plan, variables: &[VarId]) -> u32 {
    let bytes = |v: &VarId| match plan.variables[*v].storage {
        Storage::Fragment(_) => 4 * plan.variables[*v].registers(),
        Storage::Packed | Storage::Lanes | Storage::Flag => 0,
    };
    variables.iter().map(bytes).sum()
}
