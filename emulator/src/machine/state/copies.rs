//! Asynchronous copies that have begun and that nobody has waited for.

use super::record::At;
use crate::tensor_map::Chunk;

/// `cp.async` of a warp's threads.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Groups that each lane has committed.
    pub committed: Vec<u32>,
    pub pending: Vec<Pending>,
}

impl Copies {
    /// Numbers of the copies that nobody has waited for.
    pub fn flights(&self) -> impl Iterator<Item = u32> + '_ {
        self.pending.iter().map(|p| p.flight)
    }
}

/// The copies of one instruction whose lanes are at the same group.
#[derive(Debug)]
pub(crate) struct Pending {
    pub flight: u32,
    pub group: u32,
    pub bytes: u32,
    pub landed: bool,
    pub lanes: Vec<Piece>,
}

/// What one lane copies: its number, offset in shared memory, source, bytes that are read.
pub(crate) type Piece = (u8, u32, u64, u32);

/// A copy of the asynchronous proxy.
#[derive(Debug)]
pub(crate) struct Bulk {
    pub flight: u32,
    pub at: At,
    pub chunks: Vec<Chunk>,
    /// To shared memory: the mbarrier.
    pub object: Option<usize>,
    /// To global memory: the group, once committed.
    pub group: Option<u32>,
    /// To global memory: whether it adds to what is there.
    pub adds: bool,
    pub landed: bool,
}

/// What a copy writes to global memory until its thread has waited for the end of its writes.
#[derive(Debug)]
pub(crate) struct Unlanded {
    pub at: At,
    pub group: u32,
    /// Addresses and bytes.
    pub pieces: Vec<(u64, u32)>,
}
