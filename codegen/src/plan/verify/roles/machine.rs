//! Roles against each other, an act at a time, with mbarriers as the hardware has them: a count of
//! phases, waited for by parity.

use std::collections::BTreeMap;

use super::super::fault::Faults;
use super::trace::{Act, Content, Product, Staged, ring_name, work_ring};
use crate::plan::{Exchange, Plan, RingRoles, TileId, WORK_SLOTS};

/// What the warpgroups of a role do.
pub(super) struct Part<'a> {
    /// How it is called in a fault.
    pub name: String,
    /// Warpgroups that do it, each by itself.
    pub groups: usize,
    /// What they do, without what concerns a warpgroup alone.
    pub acts: Vec<(u32, &'a Act)>,
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

/// A warpgroup of a role.
struct Agent<'a> {
    part: &'a Part<'a>,
    /// Number of the role, and of the warpgroup in it.
    role: usize,
    group: usize,
    at: usize,
    places: Vec<Place>,
    in_flight: Vec<InFlight<'a>>,
    /// Barriers of its role that it has come to, and whether it waits at one.
    met: usize,
    waits: bool,
    /// How often it has waited for each slot of a tile that warps exchange: to be free, and to be
    /// supplied.
    reserved: BTreeMap<(TileId, u32), u32>,
    awaited: BTreeMap<(TileId, u32), u32>,
}

impl Agent<'_> {
    /// Whether it has waited for a slot an odd number of times.
    fn odd(times: &BTreeMap<(TileId, u32), u32>, staged: Staged) -> u32 {
        times.get(&staged.place()).map_or(0, |n| n & 1)
    }
}

/// A product in flight, with the slots that it reads and what these must hold until it is done.
struct InFlight<'a> {
    product: &'a Product,
    reads: Vec<(TileId, usize, Content)>,
}

/// A block that runs.
pub(super) struct Machine<'a> {
    plan: &'a Plan,
    slots: Vec<usize>,
    agents: Vec<Agent<'a>>,
    full: Vec<Vec<Phases>>,
    empty: Vec<Vec<Phases>>,
    /// How many arrivals hand a slot of each ring back: one of each warpgroup that drains it.
    drains: Vec<usize>,
    contents: Vec<Vec<Option<Content>>>,
    /// Turns that the warpgroups of each role that takes turns have.
    turns: BTreeMap<usize, Vec<u32>>,
}

impl<'a> Machine<'a> {
    /// Before the first act.
    pub fn new(plan: &'a Plan, rings: &[RingRoles], parts: &'a [Part<'a>]) -> Self {
        let mut slots: Vec<usize> = plan.tiles.iter().map(|t| t.slots as usize).collect();
        slots.extend(work_ring(plan).map(|_| WORK_SLOTS as usize));
        let (mut agents, mut turns) = (Vec::new(), BTreeMap::new());
        let groups = |ring: &RingRoles| ring.drains.iter().map(|&role| parts[role].groups).sum();
        let drains = rings.iter().map(groups).collect();
        for (role, part) in parts.iter().enumerate() {
            // A slot is empty before it was ever full: who fills it waits for the phase before the
            // first.
            let place = |ring: &RingRoles| Place { slot: 0, parity: u32::from(ring.fills.contains(&role)) };
            let places: Vec<Place> = rings.iter().map(place).collect();
            if part.acts.iter().any(|(_, act)| matches!(act, Act::TakeTurn | Act::PassTurn)) {
                let first = |group| u32::from(group == 0);
                turns.insert(role, (0..part.groups).map(first).collect());
            }
            agents.extend((0..part.groups).map(|group| Agent {
                part,
                role,
                group,
                at: 0,
                places: places.clone(),
                in_flight: Vec::new(),
                met: 0,
                waits: false,
                reserved: BTreeMap::new(),
                awaited: BTreeMap::new(),
            }));
        }
        let phases = || slots.iter().map(|&n| vec![Phases::default(); n]).collect::<Vec<_>>();
        let contents = slots.iter().map(|&n| vec![None; n]).collect();
        Self { plan, agents, full: phases(), empty: phases(), drains, contents, turns, slots }
    }

    /// Runs all agents to their ends, those first that come first in `order`.
    pub fn run(mut self, order: &[usize], faults: &mut Faults) {
        while let Some(&agent) = order.iter().find(|&&agent| self.can_step(agent)) {
            self.step(agent, faults);
        }
        for agent in &self.agents {
            if let Some(&(line, act)) = agent.part.acts.get(agent.at) {
                faults.at = line;
                let what = match act {
                    Act::Fill(tile, _) => format!("a slot of {} to be empty", self.ring(*tile)),
                    Act::Acquire(tile, _) => format!("a slot of {} to be full", self.ring(*tile)),
                    Act::Barrier => "the others at a barrier".to_owned(),
                    Act::Exchange(Exchange::Reserve, staged) => format!("a slot of {} to be free", self.ring(staged.tile)),
                    Act::Exchange(_, staged) => format!("a slot of {} to be supplied", self.ring(staged.tile)),
                    _ => "its turn".to_owned(),
                };
                faults.insert(format!("deadlock: {} waits for {what}", agent.part.name));
            }
        }
        if self.agents.iter().any(|a| a.at < a.part.acts.len()) {
            return;
        }
        faults.at = 0;
        for tile in 0..self.slots.len() {
            // A slot is handed back by all who waited for it: one that is full and was not handed
            // back was not waited for.
            // What a barrier shows is supplied by none.
            let of_barriers = |slot: usize| self.full[tile][slot].completed == 0 && self.is_exchanged(tile);
            let left = (0..self.slots[tile])
                .any(|slot| self.full[tile][slot].completed != self.empty[tile][slot].completed && !of_barriers(slot));
            if left {
                faults.insert(format!("a slot of {} is filled, but never waited for and handed back", self.ring(tile)));
            }
        }
        if self.turns.values().any(|turns| turns.iter().sum::<u32>() != 1) {
            faults.insert("turns are not passed as often as they are taken");
        }
    }

    fn is_exchanged(&self, tile: TileId) -> bool {
        self.plan.tiles.get(tile).is_some_and(|t| t.exchange.is_some())
    }

    fn ring(&self, tile: TileId) -> &str {
        ring_name(self.plan, tile)
    }

    fn can_step(&self, number: usize) -> bool {
        let agent = &self.agents[number];
        match agent.part.acts.get(agent.at).map(|(_, act)| act) {
            None => false,
            Some(Act::Fill(tile, _)) => {
                let place = agent.places[*tile];
                self.empty[*tile][place.slot].passed(place.parity)
            }
            Some(Act::Acquire(tile, _)) => {
                let place = agent.places[*tile];
                self.full[*tile][place.slot].passed(place.parity)
            }
            // A slot is free before it was ever freed.
            Some(Act::Exchange(Exchange::Reserve, staged)) => {
                let phases = self.empty[staged.tile][staged.number as usize];
                phases.passed(1 ^ Agent::odd(&agent.reserved, *staged))
            }
            Some(Act::Exchange(Exchange::Await, staged)) => {
                let phases = self.full[staged.tile][staged.number as usize];
                phases.passed(Agent::odd(&agent.awaited, *staged))
            }
            Some(Act::TakeTurn) => self.turns[&agent.role][agent.group] > 0,
            Some(Act::Barrier) if agent.waits => {
                self.agents.iter().all(|other| other.role != agent.role || other.met >= agent.met)
            }
            Some(_) => true,
        }
    }

    fn step(&mut self, number: usize, faults: &mut Faults) {
        let agent = &mut self.agents[number];
        let (line, act) = agent.part.acts[agent.at];
        if *act == Act::Barrier && !agent.waits {
            (agent.waits, agent.met) = (true, agent.met + 1);
            return;
        }
        agent.waits = false;
        agent.at += 1;
        faults.at = line;
        match act {
            &Act::Fill(tile, content) => {
                let slot = self.agents[number].places[tile].slot;
                self.contents[tile][slot] = Some(content);
                self.full[tile][slot].arrive(1);
                self.advance(number, tile);
            }
            &Act::Acquire(tile, content) | &Act::Look(tile, content) => {
                let slot = self.agents[number].places[tile].slot;
                self.expect(tile, slot, content, faults);
            }
            &Act::Release(tile) => {
                let slot = self.agents[number].places[tile].slot;
                self.empty[tile][slot].arrive(self.drains[tile]);
                self.advance(number, tile);
            }
            &Act::Advance(tile) => self.advance(number, tile),
            &Act::ReleaseBefore(tile) => {
                let slots = self.slots[tile];
                let before = (self.agents[number].places[tile].slot + slots - 1) % slots;
                self.empty[tile][before].arrive(self.drains[tile]);
            }
            Act::Issue(product) => {
                let of_rings = product.tiles.iter().map(|&(tile, content)| (tile, agent.places[tile].slot, content));
                let staged = product.staged.iter().filter(|staged| self.plan.tiles[staged.tile].exchange.is_some());
                let staged = staged.map(|staged| (staged.tile, staged.number as usize, staged.content));
                let reads = of_rings.chain(staged).collect();
                agent.in_flight.push(InFlight { product, reads });
            }
            Act::Settle(settled) => {
                let done = agent.in_flight.extract_if(.., |of| settled.names(of.product));
                for (tile, slot, content) in done.flat_map(|of| of.reads).collect::<Vec<_>>() {
                    self.expect(tile, slot, content, faults);
                }
            }
            Act::TakeTurn => {
                let turns = self.turns.get_mut(&agent.role).expect("the role takes turns");
                turns[agent.group] -= 1;
            }
            Act::PassTurn => {
                let turns = self.turns.get_mut(&agent.role).expect("the role takes turns");
                let next = (agent.group + 1) % turns.len();
                turns[next] += 1;
                if turns[next] > 1 {
                    faults.insert("a turn is given to a warpgroup that has not taken its last");
                }
            }
            // All of the role have come.
            Act::Barrier => {}
            // The first that writes a slot may harm those that read it.
            Act::Put(staged) => self.contents[staged.tile][staged.number as usize] = Some(staged.content),
            Act::Exchange(step, staged) => self.exchange(number, *step, *staged, faults),
            Act::Read(_) | Act::ReadGuarded(_) | Act::Write(_) | Act::MayWrite(_) | Act::Get(_) => {}
            Act::PutRows(_) | Act::AddRows(_) => {}
        }
    }

    fn exchange(&mut self, number: usize, step: Exchange, staged: Staged, faults: &mut Faults) {
        let (tile, slot) = (staged.tile, staged.number as usize);
        let role = self.agents[number].role;
        let all = self.agents.iter().filter(|agent| agent.role == role).count();
        match step {
            Exchange::Reserve => *self.agents[number].reserved.entry(staged.place()).or_default() += 1,
            Exchange::Supply => self.full[tile][slot].arrive(all),
            Exchange::Await => {
                *self.agents[number].awaited.entry(staged.place()).or_default() += 1;
                self.expect(tile, slot, staged.content, faults);
            }
            Exchange::Free => self.empty[tile][slot].arrive(all),
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
