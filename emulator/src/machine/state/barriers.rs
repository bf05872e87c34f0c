//! What is known of each barrier: who has arrived, who waits, and what those who waited may see.

use super::clocks::Release;
use super::record::At;

/// A named barrier.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedBarrier {
    /// Threads that must arrive, as the first to arrive says; `None`: all that have not exited.
    pub expected: Option<u32>,
    pub arrived: u32,
    /// The first to arrive.
    pub first: Option<At>,
    /// Warps, and where each wants the result of the votes.
    pub waiting: Vec<(usize, Option<u32>)>,
    /// What the votes make so far; `None` for a barrier without.
    pub votes: Option<bool>,
    pub gathered: Release,
}

/// An mbarrier.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub address: u32,
    pub expected: i64,
    /// Arrivals that are missing.
    pub pending: i64,
    /// Bytes that are expected and have not landed.
    pub transactions: i64,
    /// Phases that have ended.
    pub phase: u32,
    /// In whose name its copies write.
    pub agent: u16,
    pub gathered: Release,
    /// What those who wait for the latest phase that ended may see.
    pub published: Release,
}

impl Object {
    /// In whose name a copy that lands now writes.
    pub fn writer(&self) -> (u16, u32) {
        (self.agent, self.phase + 1)
    }
}

/// The barrier of a cluster. A warp counts as a whole.
#[derive(Debug)]
pub(crate) struct ClusterBarrier {
    /// Phases that have ended.
    pub phase: u32,
    /// The phase that each warp has arrived in and not yet waited for.
    pub arrived: Vec<Option<u32>>,
    pub gathered: Release,
    /// What those who wait may see.
    pub published: Release,
}

impl ClusterBarrier {
    pub fn new(warps: usize) -> Self {
        Self { phase: 0, arrived: vec![None; warps], gathered: Release::default(), published: Release::default() }
    }
}
