//! What a thread knows of the warps of other blocks: which of their accesses to global memory happened before.
//!
//! Inside a block every warp has a vector of clocks, one for each warp. Between blocks knowledge travels through release and
//! acquire operations alone, and most threads know nothing of other blocks, so this part is sparse: the clocks of those
//! blocks that are known. Copies share the clocks; a change makes a copy of its own.
//!
//! A release by one lane does not cover what other lanes of its warp did since the warp last met at a barrier. So a block's
//! clocks are those of whole warps, and beside them single lanes that are known further than their warp.

use std::collections::HashMap;
use std::sync::Arc;

/// An access to global memory, or its absence where the clock is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Epoch {
    /// Number of the cluster in the grid; a block without cluster is one by itself.
    pub block: u32,
    /// The warp's clock; [`IN_FLIGHT`] for a copy whose end nobody has waited for.
    pub clock: u32,
    /// Instruction.
    pub step: u32,
    /// Warp of the cluster.
    pub warp: u16,
    /// Lane, or [`super::MANY`].
    pub lane: u8,
    /// How strong it is.
    pub strength: Strength,
}

/// Clock of an asynchronous write that has not ended: it is ordered before nothing.
pub(crate) const IN_FLIGHT: u32 = u32::MAX;

/// Kinds of accesses that the memory model tells apart (PTX ISA 8.3 and 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Strength {
    /// Through the generic proxy, and no synchronization: it races with whatever is not ordered.
    #[default]
    Weak,
    /// Through the asynchronous proxy.
    Asynchronous,
    /// Two strong accesses do not race if each one's scope holds the thread of the other.
    Strong(Scope),
}

/// The threads that a strong access synchronizes with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    /// `.cta`
    Block,
    /// `.cluster`
    Cluster,
    /// `.gpu` and `.sys`
    Device,
}

/// Clocks of the warps of a block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockClocks {
    /// By warp; those beyond the end are 0.
    pub warps: Vec<u32>,
    /// Warp, lane and clock of lanes that are known further than their warp.
    pub lanes: Vec<(u16, u8, u32)>,
}

impl BlockClocks {
    fn warp(&self, warp: u16) -> u32 {
        self.warps.get(usize::from(warp)).copied().unwrap_or(0)
    }

    fn holds(&self, other: &Self) -> bool {
        other.warps.iter().enumerate().all(|(w, &clock)| self.warp(w as u16) >= clock)
            && other.lanes.iter().all(|&(w, l, clock)| self.warp(w) >= clock || self.lane(w, l) >= clock)
    }

    fn lane(&self, warp: u16, lane: u8) -> u32 {
        self.lanes.iter().find(|known| (known.0, known.1) == (warp, lane)).map_or(0, |known| known.2)
    }

    fn join(&mut self, other: &Self) {
        if self.warps.len() < other.warps.len() {
            self.warps.resize(other.warps.len(), 0);
        }
        for (a, b) in self.warps.iter_mut().zip(&other.warps) {
            *a = (*a).max(*b);
        }
        for &(warp, lane, clock) in &other.lanes {
            match self.lanes.iter_mut().find(|known| (known.0, known.1) == (warp, lane)) {
                Some(known) => known.2 = known.2.max(clock),
                None => self.lanes.push((warp, lane, clock)),
            }
        }
        let warps = &self.warps;
        self.lanes.retain(|&(w, _, clock)| warps.get(usize::from(w)).copied().unwrap_or(0) < clock);
    }
}

/// What is known of blocks, by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Option<Arc<HashMap<u32, Arc<BlockClocks>>>>);

impl Known {
    /// Knowledge of one block.
    pub fn of(block: u32, clocks: BlockClocks) -> Self {
        Self(Some(Arc::new(HashMap::from([(block, Arc::new(clocks))]))))
    }

    /// What is known of a block.
    pub fn block(&self, block: u32) -> Option<&BlockClocks> {
        self.0.as_ref()?.get(&block).map(|clocks| &**clocks)
    }

    /// Whether an access is known to be over.
    pub fn covers(&self, access: &Epoch) -> bool {
        self.block(access.block).is_some_and(|clocks| {
            clocks.warp(access.warp) >= access.clock || clocks.lane(access.warp, access.lane) >= access.clock
        })
    }

    /// Adds what another knows.
    pub fn join(&mut self, other: &Self) {
        let Some(theirs) = &other.0 else { return };
        let Some(ours) = &mut self.0 else {
            self.0 = Some(theirs.clone());
            return;
        };
        if Arc::ptr_eq(ours, theirs) {
            return;
        }
        for (block, clocks) in theirs.iter() {
            match ours.get(block) {
                Some(known) if Arc::ptr_eq(known, clocks) || known.holds(clocks) => {}
                Some(_) => {
                    let known = Arc::make_mut(ours).get_mut(block).expect("it was just found");
                    Arc::make_mut(known).join(clocks);
                }
                None => {
                    Arc::make_mut(ours).insert(*block, clocks.clone());
                }
            }
        }
    }
}

/// What passes between blocks: accesses that are over, and those that the asynchronous proxy may see, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Public {
    pub seen: Known,
    pub fenced: Known,
}

impl Public {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.seen.0.is_none() && self.fenced.0.is_none()
    }

    pub fn join(&mut self, other: &Self) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(block: u32, warps: &[u32], lanes: &[(u16, u8, u32)]) -> Known {
        Known::of(block, BlockClocks { warps: warps.to_vec(), lanes: lanes.to_vec() })
    }

    fn access(block: u32, warp: u16, lane: u8, clock: u32) -> Epoch {
        Epoch { block, clock, warp, lane, ..Epoch::default() }
    }

    #[test]
    fn a_lane_may_be_known_further_than_its_warp() {
        let mut all = known(3, &[4, 2], &[(1, 0, 5)]);
        assert!(all.covers(&access(3, 1, 0, 5)));
        assert!(!all.covers(&access(3, 1, 1, 5)), "another lane of the warp");
        assert!(!all.covers(&access(3, 1, super::super::MANY, 5)), "several lanes");
        assert!(all.covers(&access(3, 1, 7, 2)) && !all.covers(&access(2, 0, 0, 1)));
        assert!(!all.covers(&access(3, 0, 0, IN_FLIGHT)));
        all.join(&known(3, &[1, 6], &[]));
        assert_eq!(all.block(3), Some(&BlockClocks { warps: vec![4, 6], lanes: vec![] }));
    }

    #[test]
    fn joined_knowledge_leaves_its_sources_alone() {
        let first = known(0, &[1], &[]);
        let mut second = first.clone();
        second.join(&known(1, &[9], &[]));
        second.join(&known(0, &[2], &[]));
        assert!(second.covers(&access(1, 0, 0, 9)) && second.covers(&access(0, 0, 0, 2)));
        assert!(!first.covers(&access(1, 0, 0, 9)) && !first.covers(&access(0, 0, 0, 2)));
    }
}
