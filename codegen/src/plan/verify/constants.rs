//! Names of constants: what an expression names is declared before it, in the same list of
//! statements or one around it.
//!
//! Constants are those of [`StmtOp::Let`], coordinates of loops, and the shared values and inputs
//! of a [`StmtOp::Compute`]. Variables are the subject of [`super::structure`] and of the symbolic
//! execution.

use std::collections::HashSet;

use super::fault::Faults;
use crate::plan::{Expr, Guard, InputSource, Iteration, LoopId, MeetBy, Plan, Slot, Stmt, StmtOp, TileId};

/// The constants that are used where they are not declared, and those that are declared twice.
pub(super) fn faults(plan: &Plan) -> Faults {
    let variables = plan.variables.iter().map(|v| v.name.clone()).collect();
    let mut walk = Walk { plan, scopes: vec![variables], faults: Faults::default() };
    for role in &plan.roles {
        walk.block(&role.body);
    }
    walk.faults
}

struct Walk<'p> {
    plan: &'p Plan,
    /// The names of each list of statements, the outermost first.
    scopes: Vec<HashSet<String>>,
    faults: Faults,
}

impl Walk<'_> {
    /// Statements in a list of their own, which begins with some names.
    fn block_with(&mut self, names: impl IntoIterator<Item = String>, body: &[Stmt]) {
        self.scopes.push(names.into_iter().collect());
        for stmt in body {
            self.faults.at = stmt.line;
            self.statement(&stmt.op);
        }
        self.scopes.pop();
    }

    fn block(&mut self, body: &[Stmt]) {
        self.block_with([], body);
    }

    fn declare(&mut self, name: &str) {
        let scope = self.scopes.last_mut().expect("the outermost is never left");
        if !scope.insert(name.to_owned()) {
            self.faults.insert(format!("{name} is declared twice"));
        }
    }

    fn name(&mut self, name: &str) {
        if !self.scopes.iter().any(|scope| scope.contains(name)) {
            self.faults.insert(format!("{name} is used where it is not declared"));
        }
    }

    fn uses(&mut self, e: &Expr) {
        let mut names = Vec::new();
        e.visit(&mut |e| names.extend(e.own_name().map(str::to_owned)));
        names.iter().for_each(|name| self.name(name));
    }

    /// An iteration that is computed from the bounds of its loop, and the coordinate if it is
    /// relative to the one in progress.
    fn iteration(&mut self, iteration: Iteration) {
        let l = &self.plan.loops[iteration.of_loop()];
        if matches!(iteration, Iteration::Ahead(..) | Iteration::Behind(..)) {
            self.name(&l.coordinate);
        }
        [&l.first, &l.lo, &l.hi].into_iter().chain(l.beside_bounds()).for_each(|e| self.uses(e));
    }

    /// A slot of a ring between roles is the next, whatever it is for; others are computed.
    fn slot(&mut self, tile: TileId, slot: Slot) {
        if let Slot::Of(iteration) = slot
            && self.plan.tiles[tile].barriers.is_none()
            && self.plan.tiles[tile].slots > 1
        {
            self.iteration(iteration);
        }
    }

    fn bounds(&mut self, id: LoopId) {
        let l = &self.plan.loops[id];
        [&l.first, &l.lo, &l.hi].into_iter().for_each(|e| self.uses(e));
    }

    fn statement(&mut self, op: &StmtOp) {
        match op {
            StmtOp::Let { name, value, .. } => {
                self.uses(value);
                self.declare(name);
            }
            StmtOp::Compute { to, inputs, shared } => {
                self.scopes.push(HashSet::new());
                for input in inputs {
                    match &input.from {
                        InputSource::Tile(tile, slot) => self.slot(*tile, *slot),
                        InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                            from.expressions().into_iter().for_each(|e| self.uses(e));
                        }
                    }
                    self.declare(&input.name);
                }
                for value in shared {
                    self.uses(&value.value);
                    self.declare(&value.name);
                }
                for computed in to {
                    self.slot(computed.tile, computed.slot);
                    self.uses(&computed.value);
                }
                self.scopes.pop();
            }
            StmtOp::When { guard, body, otherwise } => {
                self.guard(guard);
                self.block(body);
                self.block(otherwise);
            }
            StmtOp::Loop { id, unroll, body, .. } => {
                self.bounds(*id);
                let coordinate = &self.plan.loops[*id].coordinate;
                // Of iterations made several at a time each has its coordinate in a step of its
                // own.
                let name = if *unroll > 1 { pair(coordinate) } else { coordinate.clone() };
                self.block_with([name], body);
            }
            StmtOp::Step { at, body } => {
                let coordinate = self.plan.loops[at.of_loop()].coordinate.clone();
                match at {
                    Iteration::Ahead(..) => self.name(&pair(&coordinate)),
                    _ => self.bounds(at.of_loop()),
                }
                self.block_with([coordinate], body);
            }
            StmtOp::Work(body) => {
                self.uses(&self.plan.programs);
                self.block(body);
            }
            op => {
                op.tiles().into_iter().for_each(|(tile, slot)| self.slot(tile, slot));
                op.expressions().into_iter().for_each(|e| self.uses(e));
                if let StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::SaveState(_) | StmtOp::LoadState { .. } = op {
                    self.meeting();
                }
            }
        }
    }

    fn guard(&mut self, guard: &Guard) {
        match guard {
            Guard::Exists(iteration) => self.iteration(*iteration),
            Guard::Cut(ids) => {
                for &id in ids {
                    let l = &self.plan.loops[id];
                    self.name(&l.coordinate);
                    self.uses(&l.is_cut());
                }
            }
            Guard::Vote { condition, .. } | Guard::Holds(condition) => self.uses(condition),
            Guard::OneLeft(id) => self.bounds(*id),
            Guard::FirstPart | Guard::LastPart | Guard::OwnWarps => self.meeting(),
            Guard::Flag(_) | Guard::Again => {}
        }
    }

    fn meeting(&mut self) {
        let Some(meeting) = &self.plan.meeting else { return };
        self.name(&meeting.part);
        if meeting.by == MeetBy::Semaphore {
            self.uses(&meeting.group);
        }
    }
}

/// The coordinate of the first of several iterations that are made at a time.
fn pair(coordinate: &str) -> String {
    format!("{coordinate}_pair")
}
