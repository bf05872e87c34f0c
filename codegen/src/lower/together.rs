//! Tiles that come together: a small tile of a step, such as what terms of scores are made of, comes
//! in the slots of the ring of a large one.
//!
//! Each ring costs a step a wait for a full and a wait for an empty slot, a release, and a place
//! that each role keeps in it. A tile that is a twelfth of another one or less, of the same step,
//! need not have that: whoever waits for the large one hardly waits longer for both.
//!
//! ```text
//! acquire Q i; S = dot(..); acquire L i; S += dot(..); wait S; release L; ..; release Q
//! acquire Q i; S = dot(..);              S += dot(..); wait S;            ..; release Q
//! ```
//!
//! The slot is handed back where the later of the two was. Rings come together if every list of
//! statements acquires both for the same iterations, the large one first, and hands the small one
//! back before it ends. The producer's statements are the image of these, so nothing else changes.

use std::collections::HashSet;

use super::context::Lowering;
use crate::plan::{Barriers, Slot, Stmt, StmtOp, TileId, any};

/// A tile comes with one that is so many times as large, or larger. Columns of a gradient take 3 to
/// 6% less at 12 and 16 (d 96 and 128, steps of 64 rows), and 3% more at 8 (d 64, steps of 128).
const TIMES_AS_LARGE: u32 = 12;

impl Lowering<'_> {
    /// Has small tiles come with large ones.
    pub(super) fn bring_together(&mut self, body: &mut Vec<Stmt>) {
        for small in 0..self.plan.tiles.len() {
            let joined = (0..small).filter(|&ring| self.fit(ring, small)).find_map(|ring| {
                let names = self.names_of_box(small, body);
                let mut joined = body.clone();
                join(&mut joined, ring, small, &names).then_some((ring, joined))
            });
            if let Some((ring, joined)) = joined {
                *body = joined;
                self.plan.tiles[small].barriers = Some(Barriers::Of(ring));
            }
        }
    }

    /// Whether a tile may come in the slots of a ring: what it takes little beside, of the same
    /// loop.
    fn fit(&self, ring: TileId, small: TileId) -> bool {
        let [large, little] = [ring, small].map(|tile| &self.plan.tiles[tile]);
        let (Some(of_ring), Some(of_small)) = (self.sources.get(&ring), self.sources.get(&small)) else { return false };
        let is_ring = large.ring_at().is_some() && little.ring_at().is_some() && self.plan.companions(small).is_empty();
        let same_step = of_ring.streamed.is_some() && of_ring.streamed == of_small.streamed && of_ring.within == of_small.within;
        is_ring && same_step && large.slots == little.slots && TIMES_AS_LARGE * little.slot_bytes() <= large.slot_bytes()
    }

    /// The names that the origin of a tile's boxes needs.
    fn names_of_box(&self, tile: TileId, body: &[Stmt]) -> HashSet<String> {
        let mut slots = Vec::new();
        acquired(body, tile, &mut slots);
        let mut names = HashSet::new();
        for slot in slots {
            for e in self.companion(tile, self.number_of(tile, slot)).at {
                e.visit(&mut |e| names.extend(e.own_name().map(str::to_owned)));
            }
        }
        names
    }
}

/// The slots of a ring that are acquired.
fn acquired(body: &[Stmt], ring: TileId, found: &mut Vec<Slot>) {
    for stmt in body {
        match stmt.op {
            StmtOp::Acquire { tile, slot } if tile == ring => found.push(slot),
            _ => stmt.op.bodies().into_iter().for_each(|body| acquired(body, ring, found)),
        }
    }
}

/// Where a list of statements is with the slot of a step.
enum Held {
    /// Neither is acquired here.
    Neither,
    /// The ring is, and the small tile is not yet.
    Ring(Slot),
    /// Both are; the ring was to be handed back before the small tile, or was not.
    Both { handed_back: bool },
    /// The small tile is handed back.
    Done,
}

/// Drops the statements of the small tile; false if it cannot come with the ring. `names` are those
/// that its boxes need: they must be known where the ring's are filled.
fn join(list: &mut Vec<Stmt>, ring: TileId, small: TileId, names: &HashSet<String>) -> bool {
    let of = |tile: TileId| {
        move |op: &StmtOp| {
            matches!(op, StmtOp::Acquire { tile: t, .. } | StmtOp::Release(t)
                | StmtOp::Advance(t) | StmtOp::ReleaseBefore(t) if *t == tile)
        }
    };
    let mut held = Held::Neither;
    let mut out = Vec::new();
    for mut stmt in std::mem::take(list) {
        let nested = stmt.op.bodies().iter().any(|body| any(body, &|op| of(ring)(op) || of(small)(op)));
        if nested {
            let outside = matches!(held, Held::Neither | Held::Done);
            if !outside || !stmt.op.bodies_mut().into_iter().all(|body| join(body, ring, small, names)) {
                return false;
            }
        }
        held = match (held, &stmt.op) {
            (Held::Neither | Held::Done, StmtOp::Acquire { tile, slot }) if *tile == ring => Held::Ring(*slot),
            (Held::Ring(slot), StmtOp::Acquire { tile, slot: other }) if *tile == small && slot == *other => {
                held = Held::Both { handed_back: false };
                continue;
            }
            (Held::Ring(_), StmtOp::Let { name, .. }) if names.contains(name) => return false,
            (Held::Both { .. }, StmtOp::Release(tile)) if *tile == ring => {
                held = Held::Both { handed_back: true };
                continue;
            }
            (Held::Both { handed_back }, StmtOp::Release(tile)) if *tile == small => {
                if handed_back {
                    out.push(Stmt { op: StmtOp::Release(ring), ..stmt });
                }
                held = Held::Done;
                continue;
            }
            // What was kept of the step before holds nothing of the small tile that is still needed.
            (before, StmtOp::ReleaseBefore(tile)) if *tile == ring => before,
            (Held::Neither | Held::Done, StmtOp::Advance(tile) | StmtOp::Release(tile)) if *tile == ring => Held::Neither,
            (_, op) if of(ring)(op) || of(small)(op) => return false,
            (before, _) => before,
        };
        out.push(stmt);
    }
    *list = out;
    matches!(held, Held::Neither | Held::Done)
}
