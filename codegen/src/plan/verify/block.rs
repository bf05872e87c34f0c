//! Plans of one role, where all warps copy and compute.

use std::collections::{BTreeMap, HashSet};

use super::fault::Faults;
use crate::plan::cases::{Place as At, votes};
use crate::plan::visit::{Uses, narrows};
use crate::plan::{
    Completion, Computed, Event, Expr, GlobalTile, Guard, Input, InputSource, LoopId, OperandA, Plan, Slot, Stmt, StmtOp, TileId,
    VarId, Voters,
};

/// The faults that show in a part when loops make so many trips each, and waits leave so many
/// groups in flight.
pub(super) fn faults(plan: &Plan, completion: &Completion, outer: &[Option<LoopId>], trips: &[u32], part: u32) -> Faults {
    let mut faults = Faults::default();
    for (role, &votes) in plan.roles.iter().flat_map(|role| votes(plan).iter().map(move |votes| (role, votes))) {
        let mut state = State::new(At::new(plan, trips, part, false).with_votes(votes), completion, outer);
        state.run(&role.body);
        if state.contents.values().any(|c| c.status == Status::InFlight) {
            state.faults.at = 0;
            state.faults.insert("a copy is never waited for");
        }
        faults.join(state.faults);
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
    /// Of its loop and the loops around that, as one number.
    iteration: Option<u64>,
    status: Status,
    group: u32,
    /// Whether it was computed, not copied.
    computed: bool,
}

/// A tile in global memory: its tensor, its address as the plan has it, and the iterations of the loops that this names.
type Place = (String, String, Vec<(String, u32)>);

struct State<'a> {
    plan: &'a Plan,
    at: At<'a>,
    completion: &'a Completion,
    /// The loop around each loop.
    outer: &'a [Option<LoopId>],
    faults: Faults,
    contents: BTreeMap<(TileId, u32), Contents>,
    /// Slots read since the last barrier.
    read: HashSet<(TileId, u32)>,
    /// Number of the group being filled.
    group: u32,
    written: HashSet<VarId>,
    /// What is written where a flag was set, by flag.
    with_flag: BTreeMap<VarId, HashSet<VarId>>,
    /// Tiles whose slots are computed in place before products read them.
    in_place: HashSet<TileId>,
    /// Tensors that statements store to.
    outputs: HashSet<String>,
    /// Tiles of these that were loaded since the last barrier, and that were stored.
    loaded: HashSet<Place>,
    stored: HashSet<Place>,
    /// Those that were added to.
    added: HashSet<Place>,
    /// Whether the statements are those of a branch that each warp takes by itself.
    one_warp: bool,
}

impl<'a> State<'a> {
    fn new(at: At<'a>, completion: &'a Completion, outer: &'a [Option<LoopId>]) -> Self {
        let plan = at.plan;
        Self {
            plan,
            at,
            completion,
            outer,
            faults: Faults::default(),
            contents: BTreeMap::new(),
            read: HashSet::new(),
            group: 0,
            written: HashSet::new(),
            with_flag: BTreeMap::new(),
            in_place: plan.roles.iter().flat_map(|r| computed_in_place(&r.body)).collect(),
            outputs: plan.roles.iter().flat_map(|r| outputs(&r.body)).collect(),
            loaded: HashSet::new(),
            stored: HashSet::new(),
            added: HashSet::new(),
            one_warp: false,
        }
    }

    fn run(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            self.step(&stmt.op);
        }
    }

    fn step(&mut self, op: &StmtOp) {
        match op {
            StmtOp::Copy { tile, slot, from } => {
                if self.outputs.contains(&from.tensor) {
                    self.faults.insert(format!("{} is copied to shared memory and stored to", from.tensor));
                }
                self.copy(*tile, *slot);
            }
            StmtOp::Compute { to, inputs, shared } => {
                shared.iter().for_each(|s| self.reads(&s.value));
                self.compute(to, inputs);
            }
            StmtOp::Commit => {
                self.all_warps();
                self.group += 1;
            }
            StmtOp::Wait(events) => {
                self.all_warps();
                let in_flight = self.completion.in_flight(op).and_then(|numbers| numbers.copies);
                let landed = in_flight.map_or(0, |groups| self.group.saturating_sub(groups));
                for event in events {
                    if let Event::Copied(tile, slot) = *event {
                        self.land(tile, slot, landed);
                    }
                }
            }
            StmtOp::Barrier => self.barrier(),
            StmtOp::LoadFragments { to, tile, slot, .. } => {
                self.read_tile(*tile, *slot);
                self.written.insert(*to);
            }
            StmtOp::Dot { acc, zero, a, b, b_slot, .. } => {
                match a {
                    OperandA::Tile(tile, slot) => self.read_tile(*tile, *slot),
                    OperandA::Packed(v) => self.read_variable(*v),
                }
                self.read_tile(*b, *b_slot);
                if self.plan.tiles[*b].warp_private {
                    self.faults
                        .insert(format!("{} is read by all warps, but its rows are private to warps", self.plan.tiles[*b].name));
                }
                if !zero {
                    self.read_variable(*acc);
                }
                self.written.insert(*acc);
            }
            StmtOp::Stage { tile, from, .. } if !self.plan.tiles[*tile].warp_private => {
                self.read_variable(*from);
                self.put(*tile);
            }
            StmtOp::Publish { tile, from } => {
                self.read_variable(*from);
                self.put(*tile);
            }
            StmtOp::Merge { to, tile, .. } => {
                self.all_warps();
                self.read_tile(*tile, Slot::Only);
                self.written.insert(*to);
            }
            StmtOp::Stage { tile, from, .. } => {
                self.read_variable(*from);
                self.contents.insert((*tile, 0), Contents { iteration: None, status: Status::Visible, group: 0, computed: true });
            }
            StmtOp::When { guard, body, otherwise } => match guard {
                Guard::Vote { condition, of: Voters::Role, .. } => {
                    self.reads(condition);
                    self.barrier();
                    let taken = self.at.vote();
                    self.run(if taken { body } else { otherwise });
                }
                Guard::Vote { condition, flag, .. } => {
                    self.reads(condition);
                    let written = self.branches(body, otherwise, true);
                    if let Some(flag) = *flag {
                        self.written.insert(flag);
                        if !narrows(body, flag) {
                            self.with_flag.insert(flag, written);
                        }
                    }
                }
                Guard::Flag(v) => {
                    self.read_variable(*v);
                    let before = self.written.clone();
                    self.written.extend(self.with_flag.get(v).into_iter().flatten());
                    self.branches(body, otherwise, true);
                    self.written = before;
                }
                Guard::OwnWarps => {
                    let one_warp = std::mem::replace(&mut self.one_warp, true);
                    self.run(body);
                    self.run(otherwise);
                    self.one_warp = one_warp;
                }
                Guard::Cut(_) | Guard::Holds(_) => drop(self.branches(body, otherwise, false)),
                Guard::Exists(_) | Guard::Again | Guard::OneLeft(_) | Guard::FirstPart | Guard::LastPart => {
                    self.run(if self.at.holds(guard) == Some(true) { body } else { otherwise });
                }
            },
            StmtOp::Loop { id, from, unroll, body } => {
                for next in self.at.rounds(*id, *from, *unroll) {
                    self.at.at[*id] = next;
                    self.run(body);
                }
            }
            StmtOp::SaveState(from) => from.iter().for_each(|&v| self.read_variable(v)),
            StmtOp::LoadState { to, .. } => self.written.extend(to),
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::ClusterBarrier => {
                self.all_warps();
            }
            op => {
                let uses = op.uses();
                if uses.is_of_registers() {
                    self.registers(op, &uses);
                } else {
                    self.faults.insert("a statement of specialised roles in a block of one role");
                }
            }
        }
    }

    /// All warps meet.
    fn barrier(&mut self) {
        self.all_warps();
        self.read.clear();
        self.loaded.clear();
        self.stored.clear();
        self.added.clear();
        for contents in self.contents.values_mut() {
            if contents.status == Status::Landed {
                contents.status = Status::Visible;
            }
        }
    }

    /// Registers of each thread, and global memory.
    fn registers(&mut self, op: &StmtOp, uses: &Uses<'_>) {
        let loads = uses.loads.iter().filter(|from| self.outputs.contains(&from.tensor));
        let loads: Vec<Place> = loads.map(|from| self.place(from)).collect();
        let stores: Vec<Place> = uses.stores.iter().map(|to| self.place(to)).collect();
        if let StmtOp::Add { .. } = op {
            return self.adds(stores, uses);
        }
        for (tensor, ..) in loads.iter().chain(&stores).filter(|place| self.added.contains(place)) {
            self.faults.insert(format!("{tensor} is loaded or stored with no barrier after it was added to"));
        }
        for (tensor, ..) in loads.iter().filter(|place| self.stored.contains(place)) {
            self.faults.insert(format!("{tensor} is loaded with no barrier after it was stored"));
        }
        for (tensor, ..) in stores.iter().filter(|place| self.loaded.contains(place)) {
            self.faults.insert(format!("{tensor} is stored with no barrier after it was loaded"));
        }
        self.loaded.extend(loads);
        self.stored.extend(stores);
        op.expressions().into_iter().for_each(|e| self.reads(e));
        uses.reads.iter().for_each(|&v| self.read_variable(v));
        self.written.extend(&uses.writes);
    }

    /// Adds to a place, which others may add to meanwhile.
    fn adds(&mut self, places: Vec<Place>, uses: &Uses<'_>) {
        for (tensor, ..) in places.iter().filter(|place| self.loaded.contains(place) || self.stored.contains(place)) {
            self.faults.insert(format!("{tensor} is added to with no barrier after it was loaded or stored"));
        }
        self.added.extend(places);
        uses.reads.iter().for_each(|&v| self.read_variable(v));
    }

    /// Notes a fault if each warp comes here by its own choice, where all of them must.
    fn all_warps(&mut self) {
        if self.one_warp {
            self.faults.insert("a barrier, a copy or a wait for it in a branch that each warp takes by itself");
        }
    }

    /// Executes branches of which any may be taken, or none. What only one of them writes is not
    /// written. Gives what the first has written.
    fn branches(&mut self, body: &[Stmt], otherwise: &[Stmt], one_warp: bool) -> HashSet<VarId> {
        if body.iter().chain(otherwise).any(|stmt| !is_local(&stmt.op)) {
            self.faults.insert("a copy, a wait, a barrier or a turn in a branch that may not be taken");
        }
        let (before, around) = (self.written.clone(), self.one_warp);
        self.one_warp |= one_warp;
        self.run(body);
        let first = std::mem::replace(&mut self.written, before);
        self.run(otherwise);
        self.written.retain(|v| first.contains(v));
        self.one_warp = around;
        first
    }

    fn place(&self, tile: &GlobalTile) -> Place {
        let mut iterations = Vec::new();
        tile.origin.visit(&mut |e| {
            if let Expr::Name(text) = e
                && let Some(id) = self.plan.loops.iter().position(|l| l.coordinate == *text)
            {
                iterations.push((text.clone(), self.at.at[id]));
            }
        });
        (tile.tensor.clone(), format!("{:?}", tile.origin), iterations)
    }

    /// The slot that is named, and the iteration that it is for.
    fn slot(&mut self, tile: TileId, slot: Slot) -> (u32, Option<u64>) {
        let Slot::Of(iteration) = slot else { return (0, None) };
        let id = iteration.of_loop();
        let Some(number) = self.at.number(iteration) else {
            let name = &self.plan.tiles[tile].name;
            self.faults.insert(format!("a slot of {name} is named for an iteration that does not exist"));
            return (0, None);
        };
        // No loop makes 2^16 trips here.
        let (mut path, mut outer) = (u64::from(number), self.outer[id]);
        while let Some(around) = outer {
            path = (path << 16) | u64::from(self.at.at[around]);
            outer = self.outer[around];
        }
        (number % self.plan.tiles[tile].slots, Some(path))
    }

    fn copy(&mut self, tile: TileId, slot: Slot) {
        self.all_warps();
        let (slot, iteration) = self.slot(tile, slot);
        let name = &self.plan.tiles[tile].name;
        if self.plan.tiles[tile].warp_private {
            self.faults.insert(format!("{name} is copied by all warps, but its rows are private to warps"));
        }
        if self.read.contains(&(tile, slot)) {
            self.faults.insert(format!("a slot of {name} is filled while it may still be read"));
        }
        if self.contents.get(&(tile, slot)).is_some_and(|c| c.status == Status::InFlight) {
            self.faults.insert(format!("a slot of {name} is filled while a copy into it is in flight"));
        }
        let status = if self.plan.is_asynchronous() { Status::InFlight } else { Status::Landed };
        self.contents.insert((tile, slot), Contents { iteration, status, group: self.group, computed: false });
    }

    /// A wait names a copy, and returns when the groups before one have landed.
    fn land(&mut self, tile: TileId, slot: Slot, landed: u32) {
        if matches!(slot, Slot::Of(iteration) if self.at.number(iteration).is_none()) {
            return;
        }
        let (at, wanted) = self.slot(tile, slot);
        let name = &self.plan.tiles[tile].name;
        match self.contents.get_mut(&(tile, at)) {
            Some(c) if c.iteration == wanted && c.status != Status::InFlight => {}
            Some(c) if c.iteration == wanted && c.group < landed => c.status = Status::Landed,
            Some(c) if c.iteration == wanted && c.group == self.group => {
                self.faults.insert(format!("{name} is waited for before its group of copies ends"));
            }
            Some(c) if c.iteration == wanted => {
                self.faults.insert(format!("{name} may be in flight after a wait for it: too many groups may"));
            }
            _ => self.faults.insert(format!("{name} is waited for, but no copy for that iteration is in the slot")),
        }
    }

    /// All warps read the inputs, and write their parts of the tiles.
    fn compute(&mut self, to: &[Computed], inputs: &[Input]) {
        self.all_warps();
        let before = self.read.clone();
        let mut sources = Vec::new();
        for input in inputs {
            let (tile, slot) = match &input.from {
                InputSource::Tile(tile, slot) => (*tile, *slot),
                InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                    if self.outputs.contains(&from.tensor) {
                        self.faults.insert(format!("{} is read by a computation and stored to", from.tensor));
                    }
                    continue;
                }
            };
            let (at, _) = self.slot(tile, slot);
            if self.in_place.contains(&tile) && self.contents.get(&(tile, at)).is_some_and(|c| c.computed) {
                self.faults.insert(format!("{} is computed twice", self.plan.tiles[tile].name));
            }
            self.read_slot(tile, slot);
            sources.push((tile, at));
        }
        let mut written = HashSet::new();
        for Computed { tile, slot, value } in to {
            self.reads(value);
            let (at, iteration) = self.slot(*tile, *slot);
            let t = &self.plan.tiles[*tile];
            if t.warp_private {
                self.faults.insert(format!("{} is computed by all warps, but its rows are private to warps", t.name));
            }
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

    /// Each warp writes its share of a tile that all read.
    fn put(&mut self, tile: TileId) {
        self.all_warps();
        let name = &self.plan.tiles[tile].name;
        if self.plan.tiles[tile].warp_private {
            self.faults.insert(format!("{name} is written by all warps, but its rows are private to warps"));
        }
        if self.read.contains(&(tile, 0)) {
            self.faults.insert(format!("{name} is written while other warps may read it"));
        }
        self.contents.insert((tile, 0), Contents { iteration: None, status: Status::Landed, group: 0, computed: true });
    }

    fn read_tile(&mut self, tile: TileId, slot: Slot) {
        let (at, _) = self.slot(tile, slot);
        if self.in_place.contains(&tile) && self.contents.get(&(tile, at)).is_some_and(|c| !c.computed) {
            self.faults.insert(format!("{} is read before it is computed", self.plan.tiles[tile].name));
        }
        self.read_slot(tile, slot);
    }

    fn read_slot(&mut self, tile: TileId, slot: Slot) {
        let (slot, wanted) = self.slot(tile, slot);
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

/// Whether a statement, with those in it, concerns a warp alone: its registers, its rows, reads of
/// tiles.
fn is_local(op: &StmtOp) -> bool {
    match op {
        StmtOp::LoadFragments { .. } | StmtOp::Dot { .. } | StmtOp::Stage { .. } => true,
        op if op.is_vote_of_role() => false,
        StmtOp::When { body, otherwise, .. } => body.iter().chain(otherwise).all(|stmt| is_local(&stmt.op)),
        StmtOp::Loop { body, .. } => body.iter().all(|stmt| is_local(&stmt.op)),
        op => op.uses().is_of_registers(),
    }
}

/// The tensors that statements store to.
fn outputs(body: &[Stmt]) -> HashSet<String> {
    let mut found = HashSet::new();
    for stmt in body {
        found.extend(stmt.op.uses().stores.iter().map(|to| to.tensor.clone()));
        for body in stmt.op.bodies() {
            found.extend(outputs(body));
        }
    }
    found
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
