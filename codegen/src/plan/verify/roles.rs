//! Plans of a producer and consumers.
//!
//! A role becomes the list of its events for given trip counts. Roles then run against each other, an event at a time, with
//! mbarriers as the hardware has them (a count of phases, waited for by parity). Copies land at once and products read until
//! they are settled, which is when either does the most harm. Every order of precedence among producer and warpgroups is tried.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::fault::Faults;
use super::parts;
use super::trips::{loop_of, trip_counts};
use crate::arch::WARPGROUP;
use crate::plan::{Expr, Guard, Iteration, LoopId, OperandA, Plan, Slot, Stmt, StmtOp, TileId, VarId, WORK_SLOTS};
use crate::schedule::Persistent;

/// What a slot holds: the number of the program, and for a streamed tile the iterations of the
/// loops around its loop and of that, in one number. Later contents are larger.
type Content = u128;

/// Bits of an iteration: trip counts that are tried are a few slots long.
const ITERATION_BITS: u32 = 12;
/// Bits of all iterations.
const PATH_BITS: u32 = 96;

/// Trip counts of a program's loops.
type Trips = Vec<u32>;

/// The programs that a block runs one after the other, by their trip counts.
pub(super) fn cases(plan: &Plan, most: u32) -> Vec<Vec<Trips>> {
    let all = trip_counts(plan.loops.len(), most);
    if plan.work == Persistent::Off {
        return all.into_iter().map(|trips| vec![trips]).collect();
    }
    let even: Vec<Trips> = (0..=most).map(|n| vec![n; plan.loops.len()]).collect();
    let mut cases: Vec<Vec<Trips>> = vec![vec![]];
    cases.extend(all.into_iter().map(|trips| vec![trips; 3]));
    for first in &even {
        let others = even.iter().filter(|&second| second != first);
        cases.extend(others.map(|second| vec![first.clone(), second.clone(), first.clone()]));
    }
    cases
}

#[derive(Clone, PartialEq, Debug)]
enum Event {
    Fill(TileId, Content),
    Acquire(TileId, Content),
    Release(TileId),
    Advance(TileId),
    ReleaseBefore(TileId),
    Issue {
        acc: VarId,
        packed: Option<VarId>,
        tiles: Vec<(TileId, Content)>,
    },
    Settle(u32),
    Read(VarId),
    /// A read of what was written under the same condition.
    ReadGuarded(VarId),
    Write(VarId),
    /// A write in a branch that may not be taken.
    MayWrite(VarId),
    TakeTurn,
    PassTurn,
}

impl Event {
    /// Whether it matters to a warpgroup alone.
    fn is_of_registers(&self) -> bool {
        matches!(self, Event::Read(_) | Event::ReadGuarded(_) | Event::Write(_) | Event::MayWrite(_))
    }
}

/// What a role does, event after event, each with the line of its statement, over programs that
/// follow each other.
type Trace<'a> = Vec<(u32, &'a Event)>;

/// A role, the number of a program, and its trip counts; `None` is the end of the programs.
type ProgramKey = (usize, usize, Option<Trips>);

/// The roles of a plan, for one part. The events of a program are made once for each trip count,
/// since cases share them.
pub(super) struct Roles<'a> {
    plan: &'a Plan,
    part: u32,
    /// Variables by name.
    names: HashMap<&'a str, VarId>,
    /// The loop around each loop.
    outer: &'a [Option<LoopId>],
    /// What each does in each.
    programs: BTreeMap<ProgramKey, Vec<(u32, Event)>>,
    /// Statements that have no place in a role.
    misplaced: Faults,
}

impl<'a> Roles<'a> {
    /// Of these cases.
    pub fn new(plan: &'a Plan, outer: &'a [Option<LoopId>], part: u32, cases: &[Vec<Trips>]) -> Self {
        let names = plan.variables.iter().enumerate().map(|(v, data)| (data.name.as_str(), v)).collect();
        let mut roles = Self { plan, part, names, outer, programs: BTreeMap::new(), misplaced: Faults::default() };
        for role in 0..plan.roles.len() {
            for case in cases {
                for program in 0..=case.len() {
                    let key = (role, program, case.get(program).cloned());
                    if !roles.programs.contains_key(&key) {
                        let events = roles.events(&key);
                        roles.programs.insert(key, events);
                    }
                }
            }
        }
        roles
    }

    /// What a role does in one program.
    fn events(&mut self, (role, program, trips): &ProgramKey) -> Vec<(u32, Event)> {
        let (plan, part, program) = (self.plan, self.part, *program);
        let role = &plan.roles[*role];
        let (names, faults, events, lines) = (&self.names, &mut self.misplaced, Vec::new(), Vec::new());
        let producer = role.name == "producer";
        let none = vec![0; plan.loops.len()];
        let (counts, at, outer) = (trips.as_ref().unwrap_or(&none), none.clone(), self.outer);
        let mut tracer = Tracer {
            plan,
            part,
            program,
            trips: counts,
            at,
            outer,
            events,
            lines,
            faults,
            producer,
            names,
            with_flag: BTreeMap::new(),
        };
        match (&role.body[..], trips) {
            ([Stmt { op: StmtOp::Work(body), .. }], trips) => {
                tracer.take_program();
                if trips.is_some() {
                    tracer.run(body);
                }
            }
            (body, _) if program == 0 => tracer.run(body),
            _ => {}
        }
        tracer.lines.into_iter().zip(tracer.events).collect()
    }

    fn trace(&self, role: usize, case: &[Trips]) -> Trace<'_> {
        let keys = (0..=case.len()).map(|program| (role, program, case.get(program).cloned()));
        keys.flat_map(|key| &self.programs[&key]).map(|(line, event)| (*line, event)).collect()
    }

    /// The faults that show when a block runs programs with these trip counts.
    pub fn faults(&self, case: &[Trips]) -> Faults {
        let mut faults = self.misplaced.clone();
        if self.plan.roles.len() != 2 {
            faults.insert("roles are not a producer and consumers");
            return faults;
        }
        let (mut producer, mut consumers) = (self.trace(0, case), self.trace(1, case));
        hazards(self.plan, &consumers, &mut faults);
        // Registers matter to a warpgroup alone: roles meet in rings, products and turns.
        for events in [&mut producer, &mut consumers] {
            events.retain(|(_, e)| !e.is_of_registers());
        }
        let groups = (self.plan.roles[1].warps / WARPGROUP) as usize;
        // What one program leaves to the next is the places in rings: for those, who comes first
        // and who last is enough.
        let orders = match case {
            [first, second, ..] if first != second => vec![(0..=groups).collect(), (0..=groups).rev().collect()],
            _ => permutations(groups + 1),
        };
        for order in orders {
            Machine::new(self.plan, &producer, &consumers, groups).run(&order, &mut faults);
        }
        faults
    }
}

/// Index of the ring of program numbers among rings.
fn work_ring(plan: &Plan) -> Option<TileId> {
    plan.work_ring.map(|_| plan.tiles.len())
}

struct Tracer<'a> {
    plan: &'a Plan,
    part: u32,
    program: usize,
    /// Of each loop.
    trips: &'a [u32],
    /// The iteration of each loop that is in progress.
    at: Vec<u32>,
    outer: &'a [Option<LoopId>],
    events: Vec<Event>,
    /// Of the statements that they are of.
    lines: Vec<u32>,
    faults: &'a mut Faults,
    producer: bool,
    /// Variables by name.
    names: &'a HashMap<&'a str, VarId>,
    /// What is written where a flag was set, by flag.
    with_flag: BTreeMap<VarId, BTreeSet<VarId>>,
}

impl Tracer<'_> {
    /// Hands over the number of the next program, or that there is none.
    fn take_program(&mut self) {
        let Some(ring) = work_ring(self.plan) else { return };
        let content = self.packed(&[]);
        if self.producer {
            self.events.push(Event::Fill(ring, content));
        } else {
            self.events.extend([Event::Acquire(ring, content), Event::Release(ring)]);
        }
        self.lines.resize(self.events.len(), 0);
    }

    /// What a slot holds in this program, in these iterations.
    fn packed(&mut self, path: &[u32]) -> Content {
        if path.len() > (PATH_BITS / ITERATION_BITS) as usize {
            self.faults.insert("loops are nested deeper than the verifier follows");
        }
        let iteration = |n: u32| Content::from(n & ((1 << ITERATION_BITS) - 1));
        let path = path.iter().fold(0, |path, &n| path << ITERATION_BITS | iteration(n));
        (self.program as Content) << PATH_BITS | path
    }

    fn run(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            self.step(&stmt.op);
            self.lines.resize(self.events.len(), stmt.line);
        }
    }

    /// Statements with a loop at an iteration.
    fn run_at(&mut self, id: LoopId, number: u32, body: &[Stmt]) {
        let before = std::mem::replace(&mut self.at[id], number);
        self.run(body);
        self.at[id] = before;
    }

    fn number(&self, iteration: Iteration) -> u32 {
        match iteration {
            Iteration::First(_, number) => number,
            Iteration::Ahead(id, ahead) => self.at[id] + ahead,
            Iteration::Behind(id, behind) => self.at[id].wrapping_sub(behind),
            Iteration::Last(id) => self.trips[id].wrapping_sub(1),
        }
    }

    /// The number of an iteration that must exist.
    fn existing(&mut self, iteration: Iteration) -> u32 {
        let number = self.number(iteration);
        let id = loop_of(iteration);
        if number >= self.trips[id] {
            let name = &self.plan.loops[id].coordinate;
            self.faults.insert(format!("a statement is about an iteration of {name} that does not exist"));
        }
        number
    }

    fn content(&mut self, slot: Slot) -> Content {
        let Slot::Of(iteration) = slot else { return self.packed(&[]) };
        let mut path = vec![self.existing(iteration)];
        let mut outer = self.outer[loop_of(iteration)];
        while let Some(id) = outer {
            path.push(self.at[id]);
            outer = self.outer[id];
        }
        path.reverse();
        self.packed(&path)
    }

    fn step(&mut self, op: &StmtOp) {
        match op {
            StmtOp::Let { value, .. } => self.reads(value),
            StmtOp::Map { to, value } | StmtOp::Pack { to, value, .. } => {
                self.reads(value);
                self.events.push(Event::Write(*to));
            }
            StmtOp::Reduce { to, from, .. } => self.events.extend([Event::Read(*from), Event::Write(*to)]),
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => self.events.extend([Event::Read(*v), Event::Write(*v)]),
            StmtOp::Load { to, .. } => self.events.push(Event::Write(*to)),
            StmtOp::Store { value, variable, .. } => {
                self.reads(value);
                self.events.extend(variable.map(Event::Read));
            }
            StmtOp::Dot { acc, zero, a, b, b_slot, .. } => {
                let mut tiles = vec![(*b, self.content(*b_slot))];
                let packed = match a {
                    OperandA::Tile(tile, slot) => {
                        tiles.push((*tile, self.content(*slot)));
                        None
                    }
                    OperandA::Packed(v) => Some(*v),
                };
                self.events.extend(packed.map(Event::Read));
                if !zero {
                    // Of products that write one accumulator the later waits for the earlier by itself.
                    self.events.push(Event::Issue { acc: *acc, packed, tiles });
                } else {
                    self.events.extend([Event::Write(*acc), Event::Issue { acc: *acc, packed, tiles }]);
                }
            }
            StmtOp::Fill { tile, slot, .. } => {
                let content = self.content(*slot);
                self.events.push(Event::Fill(*tile, content));
            }
            StmtOp::Acquire { tile, slot } => {
                let content = self.content(*slot);
                self.events.push(Event::Acquire(*tile, content));
            }
            StmtOp::Release(tile) => self.events.push(Event::Release(*tile)),
            StmtOp::Advance(tile) => self.events.push(Event::Advance(*tile)),
            StmtOp::ReleaseBefore(tile) => self.events.push(Event::ReleaseBefore(*tile)),
            StmtOp::WgmmaWait(pending) => self.events.push(Event::Settle(*pending)),
            StmtOp::TakeTurn => self.events.push(Event::TakeTurn),
            StmtOp::PassTurn => self.events.push(Event::PassTurn),
            StmtOp::When { guard, body, otherwise } => match guard {
                Guard::Exists(iteration) if self.number(*iteration) < self.trips[loop_of(*iteration)] => self.run(body),
                Guard::Exists(_) => self.run(otherwise),
                // Two at a time after the first.
                Guard::OneLeft(id) if self.trips[*id].is_multiple_of(2) => self.run(body),
                Guard::OneLeft(_) => self.run(otherwise),
                Guard::Vote { condition, flag, .. } => {
                    self.reads(condition);
                    let written = self.branches(body, otherwise);
                    if let Some(flag) = *flag {
                        self.events.push(Event::Write(flag));
                        self.with_flag.insert(flag, written);
                    }
                }
                Guard::Flag(v) => {
                    self.events.push(Event::Read(*v));
                    let start = self.events.len();
                    self.branches(body, otherwise);
                    let known = self.with_flag.get(v);
                    for event in &mut self.events[start..] {
                        if let Event::Read(v) = *event
                            && known.is_some_and(|known| known.contains(&v))
                        {
                            *event = Event::ReadGuarded(v);
                        }
                    }
                }
                Guard::Cut(_) => drop(self.branches(body, otherwise)),
                // Each warp does all of it, or leaves all of it.
                Guard::OwnWarps => {
                    self.branch(body);
                    self.branch(otherwise);
                }
                Guard::FirstPart | Guard::LastPart => {
                    let holds = parts::holds(self.plan, guard, self.part).unwrap_or(true);
                    self.run(if holds { body } else { otherwise });
                }
            },
            StmtOp::Loop { id, from, unroll, body } => {
                let mut next = *from;
                while next + unroll <= self.trips[*id] {
                    self.run_at(*id, next, body);
                    next += unroll;
                }
            }
            StmtOp::Step { at, body } => {
                let number = self.existing(*at);
                self.run_at(loop_of(*at), number, body);
            }
            StmtOp::SaveState(from) => self.events.extend(from.iter().map(|&v| Event::Read(v))),
            StmtOp::LoadState { to, .. } => self.events.extend(to.iter().map(|&v| Event::Write(v))),
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::ClusterBarrier => {}
            StmtOp::Copy { .. }
            | StmtOp::Compute { .. }
            | StmtOp::Commit
            | StmtOp::Wait(_)
            | StmtOp::Barrier
            | StmtOp::LoadFragments { .. }
            | StmtOp::Stage { .. }
            | StmtOp::Work(_) => self.faults.insert("a statement of a block of one role in specialised roles"),
        }
    }

    /// Branches of which any may be taken, or none: for hazards it is worse if it is, and for what
    /// is written if it is not. What both of them write is written. Gives what the first writes.
    fn branches(&mut self, body: &[Stmt], otherwise: &[Stmt]) -> BTreeSet<VarId> {
        let written = |events: &[Event]| -> BTreeSet<VarId> {
            events.iter().filter_map(|e| if let Event::Write(v) = e { Some(*v) } else { None }).collect()
        };
        let start = self.events.len();
        self.branch(body);
        let middle = self.events.len();
        self.branch(otherwise);
        let (first, second) = (written(&self.events[start..middle]), written(&self.events[middle..]));
        for range in [start..middle, middle..self.events.len()] {
            forget_writes(&mut self.events[range]);
        }
        self.events.extend(first.intersection(&second).map(|&v| Event::Write(v)));
        first
    }

    /// What a warp does or leaves by its own choice: nothing that others wait for.
    fn branch(&mut self, body: &[Stmt]) {
        let start = self.events.len();
        self.run(body);
        if !self.events[start..].iter().all(Event::is_of_registers) {
            self.faults.insert("a ring, a product or a turn in a branch that a warp takes by itself");
        }
    }

    fn reads(&mut self, value: &Expr) {
        let Self { names, events, .. } = self;
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                events.extend(names.get(name.as_str()).copied().map(Event::Read));
            }
        });
    }
}

/// Makes writes of a branch that may not be taken writes that may not happen. In the branch, what
/// it has written is known.
fn forget_writes(events: &mut [Event]) {
    let mut known = BTreeSet::new();
    for event in events {
        match *event {
            Event::Write(v) => {
                known.insert(v);
                *event = Event::MayWrite(v);
            }
            Event::Read(v) if known.contains(&v) => *event = Event::ReadGuarded(v),
            _ => {}
        }
    }
}

/// What a warpgroup does wrong by itself: registers that products in flight use, slots handed back too early.
fn hazards(plan: &Plan, events: &[(u32, &Event)], faults: &mut Faults) {
    struct Group<'a> {
        acc: VarId,
        packed: Option<VarId>,
        tiles: &'a [(TileId, Content)],
    }
    let mut in_flight: VecDeque<Group<'_>> = VecDeque::new();
    let mut held: BTreeMap<TileId, &Content> = BTreeMap::new();
    let mut kept: BTreeMap<TileId, &Content> = BTreeMap::new();
    let mut written = vec![false; plan.variables.len()];
    let variable = |v: VarId| &plan.variables[v].name;
    let ring = |t: TileId| plan.tiles.get(t).map_or("the ring of programs", |t| t.name.as_str());
    let hand_back = |tile: TileId, released: Option<&Content>, in_flight: &VecDeque<Group<'_>>, faults: &mut Faults| {
        let Some(content) = released else {
            faults.insert(format!("{} is released but not acquired", ring(tile)));
            return;
        };
        if in_flight.iter().any(|g| g.tiles.iter().any(|(t, c)| *t == tile && c == content)) {
            faults.insert(format!("{} is handed back while a product may read it", ring(tile)));
        }
    };
    for &(line, event) in events {
        faults.at = line;
        match event {
            Event::Acquire(tile, content) => {
                if held.insert(*tile, content).is_some() {
                    faults.insert(format!("{} is acquired twice", ring(*tile)));
                }
            }
            Event::Release(tile) => {
                let released = held.remove(tile);
                hand_back(*tile, released, &in_flight, faults);
            }
            Event::ReleaseBefore(tile) => {
                let released = kept.remove(tile);
                hand_back(*tile, released, &in_flight, faults);
            }
            Event::Advance(tile) => {
                let moved = held.remove(tile).map(|content| kept.insert(*tile, content));
                if moved != Some(None) {
                    faults.insert(format!("{} keeps a slot that it does not have, or a second one", ring(*tile)));
                }
            }
            Event::Issue { acc, packed, tiles } => {
                for (tile, content) in tiles {
                    match held.get(tile) {
                        None => faults.insert(format!("{} is read but not acquired", ring(*tile))),
                        Some(c) if *c != content => {
                            faults.insert(format!("{} is read with the contents of another iteration", ring(*tile)));
                        }
                        Some(_) => {}
                    }
                }
                if !written[*acc] {
                    faults.insert(format!("{} is read before it is written", variable(*acc)));
                }
                in_flight.push_back(Group { acc: *acc, packed: *packed, tiles });
            }
            Event::Settle(pending) => {
                while in_flight.len() > *pending as usize {
                    in_flight.pop_front();
                }
            }
            Event::Read(v) | Event::ReadGuarded(v) => {
                if in_flight.iter().any(|g| g.acc == *v) {
                    faults.insert(format!("{} is read while a product writes it", variable(*v)));
                }
                if !written[*v] && matches!(event, Event::Read(_)) {
                    faults.insert(format!("{} is read before it is written", variable(*v)));
                }
            }
            Event::Write(v) | Event::MayWrite(v) => {
                if in_flight.iter().any(|g| g.acc == *v || g.packed == Some(*v)) {
                    faults.insert(format!("{} is written while a product uses it", variable(*v)));
                }
                written[*v] |= matches!(event, Event::Write(_));
            }
            Event::Fill(tile, _) => faults.insert(format!("a consumer fills {}", ring(*tile))),
            Event::TakeTurn | Event::PassTurn => {}
        }
    }
    faults.at = 0;
    if !in_flight.is_empty() {
        faults.insert("a product is never waited for");
    }
    for &tile in held.keys().chain(kept.keys()) {
        faults.insert(format!("{} is acquired but never released", ring(tile)));
    }
}

/// An mbarrier.
#[derive(Clone, Copy, Default, Debug)]
struct Phases {
    completed: u32,
    arrived: usize,
}

impl Phases {
    fn arrive(&mut self, of: usize) {
        self.arrived += 1;
        if self.arrived == of {
            self.arrived = 0;
            self.completed += 1;
        }
    }

    /// Whether a wait for the phase of this parity ends.
    fn passed(self, parity: u32) -> bool {
        self.completed & 1 != parity
    }
}

/// A role's place in a ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    slot: usize,
    parity: u32,
}

struct Agent<'a> {
    events: &'a [(u32, &'a Event)],
    at: usize,
    places: Vec<Place>,
    /// Slots that products in flight read, with what they must hold until settled.
    in_flight: VecDeque<Vec<(TileId, usize, Content)>>,
}

struct Machine<'a> {
    plan: &'a Plan,
    slots: Vec<usize>,
    agents: Vec<Agent<'a>>,
    full: Vec<Vec<Phases>>,
    empty: Vec<Vec<Phases>>,
    contents: Vec<Vec<Option<Content>>>,
    turns: Vec<u32>,
    uses_turns: bool,
}

impl<'a> Machine<'a> {
    fn new(plan: &'a Plan, producer: &'a [(u32, &'a Event)], consumers: &'a [(u32, &'a Event)], groups: usize) -> Self {
        let mut slots: Vec<usize> = plan.tiles.iter().map(|t| t.slots as usize).collect();
        slots.extend(plan.work_ring.map(|_| WORK_SLOTS as usize));
        let agent = |events: &'a [(u32, &'a Event)], parity| Agent {
            events,
            at: 0,
            places: vec![Place { slot: 0, parity }; slots.len()],
            in_flight: VecDeque::new(),
        };
        let mut agents = vec![agent(producer, 1)];
        agents.extend((0..groups).map(|_| agent(consumers, 0)));
        let phases = || slots.iter().map(|&n| vec![Phases::default(); n]).collect::<Vec<_>>();
        let mut turns = vec![0; groups];
        turns[0] = 1;
        let uses_turns = consumers.iter().any(|(_, e)| matches!(e, Event::TakeTurn | Event::PassTurn));
        let contents = slots.iter().map(|&n| vec![None; n]).collect();
        Self { plan, agents, full: phases(), empty: phases(), contents, turns, uses_turns, slots }
    }

    fn run(mut self, order: &[usize], faults: &mut Faults) {
        while let Some(&agent) = order.iter().find(|&&agent| self.can_step(agent)) {
            self.step(agent, faults);
        }
        for (number, agent) in self.agents.iter().enumerate() {
            if let Some(&(line, event)) = agent.events.get(agent.at) {
                faults.at = line;
                let who = if number == 0 { "the producer" } else { "a warpgroup" };
                let what = match event {
                    Event::Fill(tile, _) => format!("a slot of {} to be empty", self.ring(*tile)),
                    Event::Acquire(tile, _) => format!("a slot of {} to be full", self.ring(*tile)),
                    _ => "its turn".to_owned(),
                };
                faults.insert(format!("deadlock: {who} waits for {what}"));
            }
        }
        if self.agents.iter().any(|a| a.at < a.events.len()) {
            return;
        }
        faults.at = 0;
        for tile in 0..self.slots.len() {
            // A slot is handed back by all who waited for it: one that is full and was not handed
            // back was not waited for.
            let left = (0..self.slots[tile]).any(|slot| self.full[tile][slot].completed != self.empty[tile][slot].completed);
            if left {
                faults.insert(format!("a slot of {} is filled, but never waited for and handed back", self.ring(tile)));
            }
        }
        if self.uses_turns && self.turns.iter().sum::<u32>() != 1 {
            faults.insert("turns are not passed as often as they are taken");
        }
    }

    fn ring(&self, tile: TileId) -> &str {
        self.plan.tiles.get(tile).map_or("the ring of programs", |t| t.name.as_str())
    }

    fn can_step(&self, number: usize) -> bool {
        let agent = &self.agents[number];
        match agent.events.get(agent.at).map(|(_, event)| event) {
            None => false,
            Some(Event::Fill(tile, _)) => {
                let place = agent.places[*tile];
                self.empty[*tile][place.slot].passed(place.parity)
            }
            Some(Event::Acquire(tile, _)) => {
                let place = agent.places[*tile];
                self.full[*tile][place.slot].passed(place.parity)
            }
            Some(Event::TakeTurn) => self.turns[number - 1] > 0,
            Some(_) => true,
        }
    }

    fn step(&mut self, number: usize, faults: &mut Faults) {
        let groups = self.turns.len();
        let (events, at) = (self.agents[number].events, self.agents[number].at);
        self.agents[number].at += 1;
        let (line, event) = events[at];
        faults.at = line;
        match event {
            &Event::Fill(tile, content) => {
                let slot = self.agents[number].places[tile].slot;
                self.contents[tile][slot] = Some(content);
                self.full[tile][slot].arrive(1);
                self.advance(number, tile);
            }
            &Event::Acquire(tile, content) => {
                let slot = self.agents[number].places[tile].slot;
                self.expect(tile, slot, content, faults);
            }
            &Event::Release(tile) => {
                let slot = self.agents[number].places[tile].slot;
                self.empty[tile][slot].arrive(groups);
                self.advance(number, tile);
            }
            &Event::Advance(tile) => self.advance(number, tile),
            &Event::ReleaseBefore(tile) => {
                let slots = self.slots[tile];
                let before = (self.agents[number].places[tile].slot + slots - 1) % slots;
                self.empty[tile][before].arrive(groups);
            }
            Event::Issue { tiles, .. } => {
                let places = &self.agents[number].places;
                let reads = tiles.iter().map(|(tile, content)| (*tile, places[*tile].slot, *content)).collect();
                self.agents[number].in_flight.push_back(reads);
            }
            Event::Settle(pending) => {
                while self.agents[number].in_flight.len() > *pending as usize {
                    let reads = self.agents[number].in_flight.pop_front().expect("counted");
                    for (tile, slot, content) in reads {
                        self.expect(tile, slot, content, faults);
                    }
                }
            }
            Event::TakeTurn => self.turns[number - 1] -= 1,
            Event::PassTurn => {
                let next = number % groups;
                self.turns[next] += 1;
                if self.turns[next] > 1 {
                    faults.insert("a turn is given to a warpgroup that has not taken its last");
                }
            }
            Event::Read(_) | Event::ReadGuarded(_) | Event::Write(_) | Event::MayWrite(_) => {}
        }
    }

    /// A slot must hold what its reader wants.
    fn expect(&self, tile: TileId, slot: usize, content: Content, faults: &mut Faults) {
        if self.contents[tile][slot] != Some(content) {
            let fault = match self.contents[tile][slot] {
                None => "is read before it is filled",
                Some(found) if found > content => "is filled while it may still be read",
                Some(_) => "is read with the contents of another iteration",
            };
            faults.insert(format!("a slot of {} {fault}", self.ring(tile)));
        }
    }

    fn advance(&mut self, number: usize, tile: TileId) {
        let place = &mut self.agents[number].places[tile];
        place.slot += 1;
        if place.slot == self.slots[tile] {
            place.slot = 0;
            place.parity ^= 1;
        }
    }
}

/// All orders of `0 .. n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut order = shorter.clone();
            order.insert(at, n - 1);
            all.push(order);
        }
    }
    all
}
