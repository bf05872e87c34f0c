//! Plans of one role, where all warps copy and compute.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use flashtile_templates::expr::Expr;

use super::parts;
use crate::plan::{Computed, Guard, Input, InputSource, Iteration, OperandA, Plan, Slot, Stmt, StmtOp, TileId, VarId};

/// The faults that show in a part when every loop makes so many trips.
pub(super) fn faults(plan: &Plan, trips: u32, part: u32) -> BTreeSet<String> {
    let mut faults = BTreeSet::new();
    for role in &plan.roles {
        let mut state = State { plan, trips, part, faults: BTreeSet::new(), ..State::new(plan) };
        state.run(&role.body, 0);
        if state.contents.values().any(|c| c.status == Status::InFlight) {
            state.faults.insert("a copy is never waited for".into());
        }
        faults.extend(state.faults);
    }
    faults
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    InFlight,
    Landed,
    Visible,
}

#[derive(Clone, Copy, Debug)]
struct Contents {
    iteration: Option<u32>,
    status: Status,
    group: u32,
    /// Whether it was computed, not copied.
    computed: bool,
}

struct State<'a> {
    plan: &'a Plan,
    trips: u32,
    part: u32,
    faults: BTreeSet<String>,
    contents: BTreeMap<(TileId, u32), Contents>,
    /// Slots read since the last barrier.
    read: HashSet<(TileId, u32)>,
    /// Number of the group being filled.
    group: u32,
    written: HashSet<VarId>,
    /// Tiles whose slots are computed in place before products read them.
    in_place: HashSet<TileId>,
    /// Whether the statements are those of a branch that each warp takes by itself.
    one_warp: bool,
}

impl<'a> State<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            trips: 0,
            part: 0,
            faults: BTreeSet::new(),
            contents: BTreeMap::new(),
            read: HashSet::new(),
            group: 0,
            written: HashSet::new(),
            in_place: plan.roles.iter().flat_map(|r| computed_in_place(&r.body)).collect(),
            one_warp: false,
        }
    }

    fn run(&mut self, body: &[Stmt], n: u32) {
        for stmt in body {
            self.step(&stmt.op, n);
        }
    }

    fn step(&mut self, op: &StmtOp, n: u32) {
        match op {
            StmtOp::Let { value, .. } => self.reads(value),
            StmtOp::Map { to, value } | StmtOp::Pack { to, value, .. } => {
                self.reads(value);
                self.written.insert(*to);
            }
            StmtOp::Reduce { to, from, .. } => {
                self.read_variable(*from);
                self.written.insert(*to);
            }
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => self.read_variable(*v),
            StmtOp::Copy { tile, slot, .. } => self.copy(*tile, *slot, n),
            StmtOp::Compute { to, inputs, shared } => {
                shared.iter().for_each(|s| self.reads(&s.value));
                self.compute(to, inputs, n);
            }
            StmtOp::Commit => self.group += 1,
            StmtOp::Wait(pending) => {
                let landed = self.group.saturating_sub(*pending);
                for contents in self.contents.values_mut() {
                    if contents.status == Status::InFlight && contents.group < landed {
                        contents.status = Status::Landed;
                    }
                }
            }
            StmtOp::Barrier => {
                if self.one_warp {
                    self.faults.insert("a barrier in a branch that each warp takes by itself".into());
                }
                self.read.clear();
                for contents in self.contents.values_mut() {
                    if contents.status == Status::Landed {
                        contents.status = Status::Visible;
                    }
                }
            }
            StmtOp::LoadFragments { to, tile, slot } => {
                self.read_tile(*tile, *slot, n);
                self.written.insert(*to);
            }
            StmtOp::Dot { acc, zero, a, b, b_slot, .. } => {
                match a {
                    OperandA::Tile(tile, slot) => self.read_tile(*tile, *slot, n),
                    OperandA::Packed(v) => self.read_variable(*v),
                }
                self.read_tile(*b, *b_slot, n);
                if !zero {
                    self.read_variable(*acc);
                }
                self.written.insert(*acc);
            }
            StmtOp::Stage { tile, from } => {
                self.read_variable(*from);
                self.contents.insert((*tile, 0), Contents { iteration: None, status: Status::Visible, group: 0, computed: true });
            }
            StmtOp::Load { to, .. } => {
                self.written.insert(*to);
            }
            StmtOp::Store { value, variable, .. } => {
                self.reads(value);
                if let Some(v) = variable {
                    self.read_variable(*v);
                }
            }
            StmtOp::When { guard, body, otherwise } => {
                if let Guard::Vote { condition, .. } = guard {
                    // The branch may not be taken: what only it writes is not written.
                    self.reads(condition);
                    let (written, one_warp) = (self.written.clone(), self.one_warp);
                    self.one_warp = true;
                    self.run(body, n);
                    (self.written, self.one_warp) = (written, one_warp);
                    return;
                }
                if *guard == Guard::OwnWarps {
                    let one_warp = std::mem::replace(&mut self.one_warp, true);
                    self.run(body, n);
                    self.one_warp = one_warp;
                    return;
                }
                if let Some(holds) = parts::holds(self.plan, guard, self.part) {
                    self.run(if holds { body } else { otherwise }, n);
                    return;
                }
                let runs = match guard {
                    Guard::Exists(iteration) => self.number(*iteration, n) < self.trips,
                    _ => true,
                };
                if runs {
                    self.run(body, n);
                }
            }
            StmtOp::Loop { body, .. } => {
                for n in 0..self.trips {
                    self.run(body, n);
                }
            }
            StmtOp::SaveState(from) => from.iter().for_each(|&v| self.read_variable(v)),
            StmtOp::LoadState { to, .. } => self.written.extend(to),
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::ClusterBarrier => {
                if self.one_warp {
                    self.faults.insert("a barrier in a branch that each warp takes by itself".into());
                }
            }
            StmtOp::Step { .. }
            | StmtOp::Fill { .. }
            | StmtOp::Acquire { .. }
            | StmtOp::Release(_)
            | StmtOp::Settle(_)
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::Work(_) => drop(self.faults.insert("a statement of specialised roles in a block of one role".into())),
        }
    }

    fn number(&self, iteration: Iteration, n: u32) -> u32 {
        match iteration {
            Iteration::First(_, number) => number,
            Iteration::Ahead(_, ahead) => n + ahead,
            Iteration::Behind(_, behind) => n.saturating_sub(behind),
            Iteration::Last(_) => self.trips.saturating_sub(1),
        }
    }

    fn slot(&self, tile: TileId, slot: Slot, n: u32) -> (u32, Option<u32>) {
        match slot {
            Slot::Only => (0, None),
            Slot::Of(iteration) => {
                let number = self.number(iteration, n);
                (number % self.plan.tiles[tile].slots, Some(number))
            }
        }
    }

    fn copy(&mut self, tile: TileId, slot: Slot, n: u32) {
        let (slot, iteration) = self.slot(tile, slot, n);
        let name = &self.plan.tiles[tile].name;
        if self.read.contains(&(tile, slot)) {
            self.faults.insert(format!("a slot of {name} is filled while it may still be read"));
        }
        if self.contents.get(&(tile, slot)).is_some_and(|c| c.status == Status::InFlight) {
            self.faults.insert(format!("a slot of {name} is filled while a copy into it is in flight"));
        }
        let status = if self.plan.asynchronous { Status::InFlight } else { Status::Landed };
        self.contents.insert((tile, slot), Contents { iteration, status, group: self.group, computed: false });
    }

    /// All warps read the inputs, and write their parts of the tiles.
    fn compute(&mut self, to: &[Computed], inputs: &[Input], n: u32) {
        if self.one_warp {
            self.faults.insert("tiles are computed in a branch that each warp takes by itself".into());
        }
        let before = self.read.clone();
        let mut sources = Vec::new();
        for input in inputs {
            let InputSource::Tile(tile, slot) = input.from else { continue };
            let (at, _) = self.slot(tile, slot, n);
            if self.in_place.contains(&tile) && self.contents.get(&(tile, at)).is_some_and(|c| c.computed) {
                self.faults.insert(format!("{} is computed twice", self.plan.tiles[tile].name));
            }
            self.read_slot(tile, slot, n);
            sources.push((tile, at));
        }
        let mut written = HashSet::new();
        for Computed { tile, slot, value } in to {
            self.reads(value);
            let (at, iteration) = self.slot(*tile, *slot, n);
            let t = &self.plan.tiles[*tile];
            // A thread reads its part of an input before it writes the same part; what was read before, others may still read.
            if before.contains(&(*tile, at)) {
                self.faults.insert(format!("a slot of {} is computed while it may still be read", t.name));
            }
            if self.contents.get(&(*tile, at)).is_some_and(|c| c.status == Status::InFlight) {
                self.faults.insert(format!("a slot of {} is computed while a copy into it is in flight", t.name));
            }
            if !written.insert((*tile, at)) {
                self.faults.insert(format!("a slot of {} is computed into twice by one statement", t.name));
            }
            for input in inputs {
                if let InputSource::Tile(source, _) = input.from {
                    let s = &self.plan.tiles[source];
                    if (s.rows, s.columns) != (t.rows, t.columns) {
                        self.faults.insert(format!("{} is computed from {}, which has another shape", t.name, s.name));
                    }
                }
            }
            self.contents.insert((*tile, at), Contents { iteration, status: Status::Landed, group: 0, computed: true });
        }
        // What was written is no longer what was read.
        sources.retain(|s| !written.contains(s));
        self.read = before;
        self.read.extend(sources);
    }

    fn read_tile(&mut self, tile: TileId, slot: Slot, n: u32) {
        let (at, _) = self.slot(tile, slot, n);
        if self.in_place.contains(&tile) && self.contents.get(&(tile, at)).is_some_and(|c| !c.computed) {
            self.faults.insert(format!("{} is read before it is computed", self.plan.tiles[tile].name));
        }
        self.read_slot(tile, slot, n);
    }

    fn read_slot(&mut self, tile: TileId, slot: Slot, n: u32) {
        let (slot, wanted) = self.slot(tile, slot, n);
        let name = &self.plan.tiles[tile].name;
        let fault = match self.contents.get(&(tile, slot)) {
            None => Some("is read before it is filled"),
            Some(c) if c.iteration != wanted => Some("is read with the contents of another iteration"),
            Some(c) if c.status == Status::InFlight => Some("is read while its copy is in flight"),
            Some(c) if c.status == Status::Landed && c.computed => Some("is read with no barrier after it was computed"),
            Some(c) if c.status == Status::Landed => Some("is read with no barrier after its copy landed"),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            self.faults.insert(format!("{name} {fault}"));
        }
        self.read.insert((tile, slot));
    }

    fn reads(&mut self, value: &Expr) {
        let mut names = Vec::new();
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                names.push(name.clone());
            }
        });
        for name in names {
            if let Some(v) = self.plan.variables.iter().position(|v| v.name == name) {
                self.read_variable(v);
            }
        }
    }

    fn read_variable(&mut self, v: VarId) {
        if !self.written.contains(&v) {
            self.faults.insert(format!("{} is read before it is written", self.plan.variables[v].name));
        }
    }
}

/// The tiles that some statement computes in the slots that it reads.
fn computed_in_place(body: &[Stmt]) -> Vec<TileId> {
    let mut found = Vec::new();
    for stmt in body {
        if let StmtOp::Compute { to, inputs, .. } = &stmt.op {
            let read = |tile: TileId| inputs.iter().any(|i| matches!(i.from, InputSource::Tile(t, _) if t == tile));
            found.extend(to.iter().map(|t| t.tile).filter(|&t| read(t)));
        }
        for body in stmt.op.bodies() {
            found.extend(computed_in_place(body));
        }
    }
    found
}
