//! What a warpgroup does wrong by itself: registers that products in flight use, slots that are
//! read but not held, or handed back too early.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fault::Faults;
use super::trace::{Act, Content, Product, Settled, Staged, ring_name};
use crate::plan::{Exchange, Plan, TileId, VarId};

/// The faults of the acts of a warpgroup.
pub(super) fn hazards(plan: &Plan, acts: &[(u32, &Act)], faults: &mut Faults) {
    let mut group = Warpgroup {
        plan,
        faults,
        issued: 0,
        in_flight: Vec::new(),
        held: BTreeMap::new(),
        kept: BTreeMap::new(),
        written: vec![false; plan.variables.len()],
        put: BTreeMap::new(),
        visible: BTreeMap::new(),
        reserved: BTreeSet::new(),
        supplied: BTreeSet::new(),
        read: BTreeSet::new(),
        rows: BTreeSet::new(),
    };
    for &(line, act) in acts {
        group.faults.at = line;
        group.does(act);
    }
    group.ends();
}

/// A warpgroup between two acts.
struct Warpgroup<'a, 'f> {
    plan: &'a Plan,
    faults: &'f mut Faults,
    /// Number of products that were issued.
    issued: u32,
    /// Products that no wait has named, with their numbers.
    in_flight: Vec<(u32, &'a Product)>,
    /// What the slot in use of each ring holds.
    held: BTreeMap<TileId, &'a Content>,
    /// What the slot holds that was kept behind it.
    kept: BTreeMap<TileId, &'a Content>,
    written: Vec<bool>,
    /// Slots of staged tiles that were written since the last barrier, with what they hold.
    put: BTreeMap<(TileId, u32), Content>,
    /// Those that were written before it.
    visible: BTreeMap<(TileId, u32), Content>,
    /// Slots that were reserved, and neither supplied nor read since: they may be written, and
    /// written again. Those that were supplied and not awaited.
    reserved: BTreeSet<(TileId, u32)>,
    supplied: BTreeSet<(TileId, u32)>,
    /// Tiles with rows that were put there and not added.
    rows: BTreeSet<TileId>,
    /// Those that were read since the last barrier: other warps may be reading them.
    read: BTreeSet<(TileId, u32)>,
}

impl<'a> Warpgroup<'a, '_> {
    fn does(&mut self, act: &'a Act) {
        match act {
            Act::Acquire(tile, content) => {
                if self.held.insert(*tile, content).is_some() {
                    self.fault_of(*tile, "is acquired twice");
                }
            }
            Act::Release(tile) => {
                let released = self.held.remove(tile);
                self.hand_back(*tile, released);
            }
            Act::ReleaseBefore(tile) => {
                let released = self.kept.remove(tile);
                self.hand_back(*tile, released);
            }
            Act::Advance(tile) => {
                let moved = self.held.remove(tile).map(|content| self.kept.insert(*tile, content));
                if moved != Some(None) {
                    self.fault_of(*tile, "keeps a slot that it does not have, or a second one");
                }
            }
            Act::Look(tile, content) => self.look(*tile, content),
            Act::Issue(product) => self.issue(product),
            Act::Settle(settled) => self.settle(settled),
            Act::Read(v) | Act::ReadGuarded(v) => {
                if self.in_flight.iter().any(|(_, product)| product.acc == *v) {
                    self.fault(*v, "is read while a product writes it");
                }
                if !self.written[*v] && matches!(act, Act::Read(_)) {
                    self.fault(*v, "is read before it is written");
                }
            }
            Act::Write(v) | Act::MayWrite(v) => {
                if self.in_flight.iter().any(|(_, product)| product.acc == *v || product.packed == Some(*v)) {
                    self.fault(*v, "is written while a product uses it");
                }
                self.written[*v] |= matches!(act, Act::Write(_));
            }
            Act::Fill(tile, _) => self.fault_of(*tile, "is filled by a role that computes"),
            Act::Put(staged) => {
                if self.read.contains(&staged.place()) || self.is_read(*staged) {
                    self.fault_of(staged.tile, "is written while other warps may read it");
                }
                if self.plan.tiles[staged.tile].exchange.is_some() && !self.reserved.contains(&staged.place()) {
                    self.fault_of(staged.tile, "is written, and was not reserved");
                }
                self.put.insert(staged.place(), staged.content);
            }
            Act::Exchange(step, staged) => self.exchange(*step, *staged),
            Act::Get(staged) => self.get(*staged),
            Act::PutRows(tile) => {
                if !self.rows.insert(*tile) {
                    self.fault_of(*tile, "is written before what it holds was added");
                }
            }
            Act::AddRows(tile) => {
                if !self.rows.remove(tile) {
                    self.fault_of(*tile, "is added, and holds nothing that was not added before");
                }
            }
            Act::Barrier => {
                // What was supplied is visible when it was awaited. What was read of a tile that is
                // exchanged may be written when it was reserved again.
                let supplied = |place: &(TileId, u32)| self.supplied.contains(place);
                self.visible.extend(self.put.iter().filter(|(place, _)| !supplied(place)));
                self.put.retain(|place, _| supplied(place));
                self.read.retain(|place| self.plan.tiles[place.0].exchange.is_some());
            }
            Act::TakeTurn | Act::PassTurn => {}
        }
    }

    /// Reads a slot that all warps have written.
    fn get(&mut self, staged: Staged) {
        self.reserved.remove(&staged.place());
        match self.visible.get(&staged.place()) {
            Some(held) if !self.put.contains_key(&staged.place()) => {
                if *held != staged.content {
                    self.fault_of(staged.tile, "is read with the contents of another iteration");
                }
            }
            _ => self.fault_of(staged.tile, "is read with no barrier since warps wrote it"),
        }
        self.read.insert(staged.place());
    }

    /// Whether a product in flight reads a slot.
    fn is_read(&self, staged: Staged) -> bool {
        let reads = |product: &Product| product.staged.iter().any(|read| read.place() == staged.place());
        self.in_flight.iter().any(|(_, product)| reads(product))
    }

    fn exchange(&mut self, step: Exchange, staged: Staged) {
        let place = staged.place();
        match step {
            Exchange::Reserve => {
                self.read.remove(&place);
                if self.visible.remove(&place).is_some() || !self.reserved.insert(place) {
                    self.fault_of(staged.tile, "is reserved, and was not freed");
                }
            }
            Exchange::Supply => {
                self.reserved.remove(&place);
                if self.put.get(&place) != Some(&staged.content) || !self.supplied.insert(place) {
                    self.fault_of(staged.tile, "is supplied, and was not written since");
                }
            }
            Exchange::Await => match self.put.remove(&place) {
                Some(content) if self.supplied.remove(&place) => drop(self.visible.insert(place, content)),
                _ => self.fault_of(staged.tile, "is awaited, and was not supplied since"),
            },
            Exchange::Free => {
                if self.is_read(staged) {
                    self.fault_of(staged.tile, "is freed while a product may read it");
                }
                if self.visible.remove(&place) != Some(staged.content) {
                    self.fault_of(staged.tile, "is freed, and was not awaited since");
                }
            }
        }
    }

    /// Reads the slot in use of a ring.
    fn look(&mut self, tile: TileId, content: &Content) {
        match self.held.get(&tile) {
            None => self.fault_of(tile, "is read but not acquired"),
            Some(held) if *held != content => self.fault_of(tile, "is read with the contents of another iteration"),
            Some(_) => {}
        }
    }

    fn issue(&mut self, product: &'a Product) {
        product.tiles.iter().for_each(|(tile, content)| self.look(*tile, content));
        product.staged.iter().for_each(|&staged| self.get(staged));
        if !self.written[product.acc] {
            self.fault(product.acc, "is read before it is written");
        }
        self.in_flight.push((self.issued, product));
        self.issued += 1;
    }

    /// The products that a wait names are done, if the number of groups that it leaves in flight is
    /// small enough.
    fn settle(&mut self, settled: &Settled) {
        let done = settled.in_flight.map_or(0, |most| self.issued.saturating_sub(most));
        for &(number, product) in self.in_flight.iter().filter(|(_, product)| settled.names(product)) {
            if number >= done {
                let name = &self.plan.variables[product.acc].name;
                self.faults.insert(format!("a product into {name} may be in flight after a wait for it: too many groups may"));
            }
        }
        // A product reads until it is done: only a barrier after that says that others' are.
        let named = self.in_flight.extract_if(.., |(_, product)| settled.names(product));
        self.read.extend(named.flat_map(|(_, product)| product.staged.iter().map(|staged| staged.place())));
    }

    fn hand_back(&mut self, tile: TileId, released: Option<&Content>) {
        let Some(content) = released else { return self.fault_of(tile, "is released but not acquired") };
        if self.in_flight.iter().any(|(_, product)| product.reads(tile, *content)) {
            self.fault_of(tile, "is handed back while a product may read it");
        }
    }

    /// What must not be left over.
    fn ends(mut self) {
        self.faults.at = 0;
        if !self.in_flight.is_empty() {
            self.faults.insert("a product is never waited for");
        }
        for tile in self.held.keys().chain(self.kept.keys()).copied().collect::<Vec<_>>() {
            self.fault_of(tile, "is acquired but never released");
        }
        for (tile, _) in std::mem::take(&mut self.supplied) {
            self.fault_of(tile, "is supplied and never awaited");
        }
        let left: Vec<TileId> = self.visible.keys().map(|&(tile, _)| tile).collect();
        for tile in left.into_iter().filter(|&tile| self.plan.tiles[tile].exchange.is_some()) {
            self.fault_of(tile, "is awaited and never freed");
        }
        for tile in std::mem::take(&mut self.rows) {
            self.fault_of(tile, "holds rows that are never added");
        }
    }

    fn fault(&mut self, v: VarId, what: &str) {
        self.faults.insert(format!("{} {what}", self.plan.variables[v].name));
    }

    fn fault_of(&mut self, tile: TileId, what: &str) {
        self.faults.insert(format!("{} {what}", ring_name(self.plan, tile)));
    }
}
