//! Who fills a ring between roles and who takes from it. Nothing of a plan says so but its
//! statements, so that no declaration can contradict them. Arrival counts of mbarriers follow: a
//! slot is full by one arrival and the bytes of its copy, and empty by an arrival of every warp
//! that takes from the ring.

use super::{Barriers, Plan, StmtOp, TileId, WORK_RING_BYTES, any};

/// The roles that use a ring, by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RingRoles {
    /// Roles that fill its slots.
    pub fills: Vec<usize>,
    /// Roles that wait for its slots and hand them back.
    pub drains: Vec<usize>,
}

impl StmtOp {
    /// The ring that it takes from: by waiting for its slots, or by handing them on or back.
    pub fn drains(&self) -> Option<TileId> {
        match *self {
            StmtOp::Acquire { tile, .. } | StmtOp::Release(tile) | StmtOp::Advance(tile) | StmtOp::ReleaseBefore(tile) => {
                Some(tile)
            }
            _ => None,
        }
    }
}

impl Plan {
    /// The ring in whose slots a tile comes: itself, unless it has another one's mbarriers.
    pub fn ring_of(&self, tile: TileId) -> TileId {
        match self.tiles[tile].barriers {
            Some(Barriers::Of(ring)) => ring,
            _ => tile,
        }
    }

    /// The tiles that come with a ring.
    pub fn companions(&self, ring: TileId) -> Vec<TileId> {
        (0..self.tiles.len()).filter(|&tile| self.tiles[tile].barriers == Some(Barriers::Of(ring))).collect()
    }

    /// The roles that use a ring of tiles.
    pub fn ring_roles(&self, ring: TileId) -> RingRoles {
        let fills = |op: &StmtOp| matches!(op, StmtOp::Fill { tile, .. } if *tile == ring);
        let drains = |op: &StmtOp| op.drains() == Some(ring);
        let roles = |wanted: &dyn Fn(&StmtOp) -> bool| {
            let of = |(number, role): (usize, &super::Role)| any(&role.body, &|op| wanted(op)).then_some(number);
            self.roles.iter().enumerate().filter_map(of).collect()
        };
        RingRoles { fills: roles(&fills), drains: roles(&drains) }
    }

    /// Arrivals that hand a slot of a ring back: one of each warp that drains it.
    pub fn arrivals(&self, ring: &RingRoles) -> u32 {
        ring.drains.iter().map(|&role| self.roles[role].acting_warps()).sum()
    }

    /// The roles that use the ring of program numbers: the first takes programs for all others.
    pub fn work_ring_roles(&self) -> RingRoles {
        RingRoles { fills: vec![0], drains: (1..self.roles.len()).collect() }
    }

    /// Bytes of the ring of program numbers, with the beginning of the list behind it, if there is
    /// one.
    pub fn work_ring_bytes(&self) -> u32 {
        WORK_RING_BYTES + if self.makes_again() { 8 } else { 0 }
    }

    /// Where the list of programs that are made again begins, behind the ring of program numbers;
    /// `None` where no program is.
    pub fn again_list(&self) -> Option<u32> {
        self.work_ring.filter(|_| self.makes_again()).map(|at| at + WORK_RING_BYTES)
    }

    /// Whether programs may be made again.
    pub fn makes_again(&self) -> bool {
        self.roles.iter().any(|role| any(&role.body, &|op| matches!(op, StmtOp::MakeAgain { .. })))
    }
}
