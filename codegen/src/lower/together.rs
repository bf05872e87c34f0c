//! Tiles that come together: a small tile of a step, such as what terms of scores are made of,
//! comes in the slots of the ring of a large one.
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
                let mut joined = body.clone();
                let needs = |slot: Slot, name: &str| self.needs(small, slot, name);
                join(&mut joined, ring, small, &needs).then_some((ring, joined))
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

    /// Whether the box that fills a slot of a tile begins where a name says.
    fn needs(&self, tile: TileId, slot: Slot, name: &str) -> bool {
        let mut found = false;
        for e in self.box_of(tile, slot).1 {
            e.visit(&mut |e| found |= e.own_name() == Some(name));
        }
        found
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

/// Drops the statements of the small tile; false if it cannot come with the ring. `needs` says
/// whether its box of a slot needs a name, which must be known where the ring's is filled.
fn join(list: &mut Vec<Stmt>, ring: TileId, small: TileId, needs: &dyn Fn(Slot, &str) -> bool) -> bool {
    let of = |tile: TileId| move |op: &StmtOp| op.drains() == Some(tile);
    let mut held = Held::Neither;
    let mut out = Vec::new();
    for mut stmt in std::mem::take(list) {
        let nested = stmt.op.bodies().iter().any(|body| any(body, &|op| of(ring)(op) || of(small)(op)));
        if nested {
            let outside = matches!(held, Held::Neither | Held::Done);
            if !outside || !stmt.op.bodies_mut().into_iter().all(|body| join(body, ring, small, needs)) {
                return false;
            }
        }
        held = match (held, &stmt.op) {
            (Held::Neither | Held::Done, StmtOp::Acquire { tile, slot }) if *tile == ring => Held::Ring(*slot),
            (Held::Ring(slot), StmtOp::Acquire { tile, slot: other }) if *tile == small && slot == *other => {
                held = Held::Both { handed_back: false };
                continue;
            }
            (Held::Ring(slot), StmtOp::Let { name, .. }) if needs(slot, name) => return false,
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
            // Nothing of the small tile is needed of what was kept of the step before.
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
