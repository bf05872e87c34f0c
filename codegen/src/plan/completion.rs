//! How many groups may be in flight when a wait returns: the numbers of `cp.async.wait_group` and
//! `wgmma.wait_group`.
//!
//! A wait names what it waits for ([`Event`]). The hardware knows no names: copies since the last
//! `Commit` are one group, each product is a group, and `wait_group N` returns when all groups but
//! the last N are done (PTX ISA, "cp.async.wait_group" and "wgmma.wait_group"). So N is the number
//! of groups that were issued after the last one that the wait names. That number differs from
//! execution to execution; the smallest one waits for enough in all of them. It is found by walking
//! the plan in every case that the verifier walks ([`super::cases`]).

use std::collections::HashMap;

use super::cases::{Place, most_trips, parts, trip_counts};
use super::{Event, Guard, Iteration, OperandA, Plan, Slot, Stmt, StmtOp, TileId, VarId};

/// Most groups of products that `wgmma.wait_group` leaves in flight (PTX ISA: 0 to 7).
const MOST_PRODUCTS: u32 = 7;

/// How many groups may be in flight when a wait returns. `None` if the wait names nothing of the
/// kind that is in flight in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InFlight {
    /// Groups of copies.
    pub copies: Option<u32>,
    /// Products.
    pub products: Option<u32>,
}

/// The numbers of all waits of a plan.
///
/// A statement is known by its place in memory: ask with the statements of the plan itself, not
/// with copies of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Completion {
    waits: HashMap<*const StmtOp, InFlight>,
}

impl Completion {
    /// Of a plan whose structure is right.
    pub fn of(plan: &Plan) -> Self {
        let mut waits = HashMap::new();
        let roles = plan.roles.iter().filter(|role| super::any(&role.body, &|op| matches!(op, StmtOp::Wait(_))));
        for role in roles {
            let follows_others = super::any(&role.body, &|op| matches!(op, StmtOp::Work(_)));
            for part in parts(plan) {
                for trips in trip_counts(plan.loops.len(), most_trips(plan)) {
                    for &again in if plan.makes_again() { &[false, true][..] } else { &[false] } {
                        Walk::new(Place::new(plan, &trips, part, again), follows_others, &mut waits).block(&role.body);
                    }
                }
            }
        }
        Self { waits }
    }

    /// The numbers of a wait of that plan; `None` for any other, such as a copy of one.
    pub fn in_flight(&self, wait: &StmtOp) -> Option<InFlight> {
        self.waits.get(&std::ptr::from_ref(wait)).copied()
    }

    /// The same with other numbers: what a fault in the derivation would be.
    #[cfg(test)]
    pub fn planted(mut self, change: impl FnMut(&mut InFlight)) -> Self {
        self.waits.values_mut().for_each(change);
        self
    }

    /// How many waits there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.waits.len()
    }
}

/// A slot, by the number of the iteration that it is for.
type Contents = (TileId, Option<u32>);

/// The order in which a program issues groups.
struct Walk<'a, 'f> {
    place: Place<'a>,
    /// Whether programs run before this one in the same block, whose products may be in flight.
    follows_others: bool,
    /// Groups of copies that have ended.
    groups: u32,
    /// The group of the latest copy into each slot.
    copied: HashMap<Contents, u32>,
    /// Products that were issued.
    products: u32,
    /// The latest product into each accumulator.
    into: HashMap<VarId, u32>,
    /// The latest product that reads each slot.
    reads: HashMap<Contents, u32>,
    found: &'f mut HashMap<*const StmtOp, InFlight>,
}

impl<'a, 'f> Walk<'a, 'f> {
    fn new(place: Place<'a>, follows_others: bool, found: &'f mut HashMap<*const StmtOp, InFlight>) -> Self {
        let (copied, into, reads) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { place, follows_others, groups: 0, copied, products: 0, into, reads, found }
    }

    fn block(&mut self, body: &[Stmt]) {
        body.iter().for_each(|stmt| self.step(&stmt.op));
    }

    /// A slot, if the iteration that it is for exists.
    fn contents(&self, tile: TileId, slot: Slot) -> Option<Contents> {
        let tile = self.place.plan.ring_of(tile);
        match slot {
            Slot::Only => Some((tile, None)),
            Slot::Of(iteration) => Some((tile, Some(self.place.number(iteration)?))),
        }
    }

    fn step(&mut self, op: &StmtOp) {
        match op {
            StmtOp::Copy { tile, slot, .. } if self.place.plan.is_asynchronous() => {
                self.copied.extend(self.contents(*tile, *slot).map(|contents| (contents, self.groups)));
            }
            StmtOp::Commit => self.groups += 1,
            StmtOp::Dot { acc, a, b, b_slot, atom, .. } if atom.is_asynchronous() => {
                let a = if let OperandA::Tile(tile, slot) = a { self.contents(*tile, *slot) } else { None };
                let read = a.into_iter().chain(self.contents(*b, *b_slot));
                self.reads.extend(read.map(|contents| (contents, self.products)));
                self.into.insert(*acc, self.products);
                self.products += 1;
            }
            StmtOp::Wait(events) => {
                for event in events {
                    self.wait(op, event);
                }
            }
            StmtOp::When { guard, body, otherwise } => self.branches(guard, body, otherwise),
            StmtOp::Loop { id, from, unroll, body } => {
                for number in self.place.rounds(*id, *from, *unroll) {
                    self.iteration(Iteration::First(*id, number), body);
                }
            }
            StmtOp::Step { at, body } => self.iteration(*at, body),
            op => op.bodies().into_iter().for_each(|body| self.block(body)),
        }
    }

    fn branches(&mut self, guard: &Guard, body: &[Stmt], otherwise: &[Stmt]) {
        match self.place.holds(guard) {
            Some(true) => self.block(body),
            Some(false) => self.block(otherwise),
            // Nothing is issued in them: the verifier says so.
            None => [body, otherwise].into_iter().for_each(|body| self.block(body)),
        }
    }

    fn iteration(&mut self, at: Iteration, body: &[Stmt]) {
        let Some(number) = self.place.number(at) else { return };
        let before = std::mem::replace(&mut self.place.at[at.of_loop()], number);
        self.block(body);
        self.place.at[at.of_loop()] = before;
    }

    /// Notes how many groups were issued after what a wait names.
    fn wait(&mut self, wait: &StmtOp, event: &Event) {
        let product = |latest: Option<&u32>| match latest {
            Some(latest) => Some(self.products - latest - 1),
            // A product of an earlier program comes before all of this one.
            None => self.follows_others.then_some(self.products),
        };
        let (copies, products) = match *event {
            Event::Copied(tile, slot) => {
                let group = self.contents(tile, slot).and_then(|contents| self.copied.get(&contents));
                // A group that has not ended cannot be waited for: the verifier says so.
                (group.map(|group| self.groups.saturating_sub(group + 1)), None)
            }
            Event::Product(v) => (None, product(self.into.get(&v))),
            Event::Read(tile, slot) => (None, self.contents(tile, slot).and_then(|contents| product(self.reads.get(&contents)))),
        };
        let least = |known: Option<u32>, here: Option<u32>| known.into_iter().chain(here).min();
        let found = self.found.entry(std::ptr::from_ref(wait)).or_default();
        found.copies = least(found.copies, copies);
        found.products = least(found.products, products.map(|n| n.min(MOST_PRODUCTS)));
    }
}
