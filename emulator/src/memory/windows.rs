//! Where the state spaces lie in the generic address space. Buffers of global memory lie below.

use crate::syntax::Space;

/// First generic address of a block's shared memory.
pub(crate) const SHARED: u64 = 0x7f00_0000_0000;
/// First generic address of a thread's local memory.
pub(crate) const LOCAL: u64 = 0x7e00_0000_0000;
/// First generic address of the kernel's parameters.
pub(crate) const PARAMETERS: u64 = 0x7d00_0000_0000;
/// First address of the variables of a module.
pub(crate) const MODULE: u64 = 0x0f00_0000_0000;
/// First address of buffers.
pub(crate) const BUFFERS: u64 = 0x1000_0000_0000;
/// Where a block's variables begin in shared memory; below lies what the system reserves.
pub(crate) const SHARED_START: u32 = 1024;

/// Bytes of the shared window that a block has in the window of its cluster (PTX ISA 5.1.7, `.shared::cluster`).
const RANK_BITS: u32 = 24;

/// Where the window of a block's shared memory begins in that of its cluster.
pub(crate) fn of_rank(rank: u32) -> u32 {
    rank << RANK_BITS
}

/// The rank of the block that an address of shared memory is of.
pub(crate) fn rank_of(address: u64) -> u64 {
    address >> RANK_BITS
}

/// An address of shared memory as it is in the block's own window.
pub(crate) fn in_block(address: u64) -> u64 {
    address & ((1 << RANK_BITS) - 1)
}

/// Base of a space in the generic address space.
pub(crate) fn base(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Param => PARAMETERS,
        Space::Generic | Space::Global | Space::Const => 0,
    }
}

/// The space of a generic address, and the address in it.
pub(crate) fn resolve(address: u64) -> (Space, u64) {
    match address {
        SHARED.. => (Space::Shared, address - SHARED),
        LOCAL.. => (Space::Local, address - LOCAL),
        PARAMETERS.. => (Space::Param, address - PARAMETERS),
        _ => (Space::Global, address),
    }
}
