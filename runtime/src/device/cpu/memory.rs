//! Memory of the host: allocations of ours, and memory of another owner.
//!
//! A lock orders accesses through tensors of one piece of memory. Memory that was lent is gone when its loan ends: whoever still has a
//! tensor of it then gets an error.

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::device::backend::{ForeignMemory, Owner, check_range};
use crate::device::{DeviceError, Held, Memory};

/// Host memory is aligned as device memory is, so that alignment facts are the same on every device.
const ALIGNMENT: usize = 256;

/// Memory of the host.
pub(crate) struct HostMemory {
    bytes: usize,
    address: u64,
    writable: bool,
    place: RwLock<Place>,
}

/// Where the bytes are.
enum Place {
    /// In an allocation, from byte `start` on. It never grows and so never moves.
    Own { raw: Vec<u8>, start: usize, _counted: Held },
    /// At the address, with another owner, which stays alive for as long as the memory is used here, if it is given.
    Foreign { _owner: Option<Owner> },
    /// Given back.
    Gone,
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostMemory({} bytes)", self.bytes)
    }
}

/// The bytes, while nobody writes them.
pub(super) struct ReadBytes<'a> {
    memory: &'a HostMemory,
    place: RwLockReadGuard<'a, Place>,
}

/// The bytes, while nobody else reads or writes them.
pub(super) struct WriteBytes<'a> {
    memory: &'a HostMemory,
    place: RwLockWriteGuard<'a, Place>,
}

impl HostMemory {
    /// Zeroed memory; `None` if there is not so much.
    pub fn zeroed(bytes: usize, hold: impl FnOnce() -> Held) -> Option<Self> {
        let mut raw = Vec::new();
        raw.try_reserve_exact(bytes.checked_add(ALIGNMENT)?).ok()?;
        raw.resize(bytes + ALIGNMENT, 0u8);
        let start = raw.as_ptr().align_offset(ALIGNMENT);
        let address = raw.as_ptr() as u64 + start as u64;
        let place = RwLock::new(Place::Own { raw, start, _counted: hold() });
        Some(Self { bytes, address, writable: true, place })
    }

    /// Memory of another owner.
    ///
    /// # Safety
    /// As [`crate::device::Backend::foreign`] says.
    pub unsafe fn foreign(memory: ForeignMemory) -> Self {
        let ForeignMemory { address, bytes, writable, owner } = memory;
        Self { bytes, address, writable, place: RwLock::new(Place::Foreign { _owner: owner }) }
    }

    /// The bytes for reading.
    pub(super) fn read_bytes(&self) -> Result<ReadBytes<'_>, DeviceError> {
        // A poisoned lock holds bytes like any other: a panic elsewhere cannot leave them invalid.
        let place = self.place.read().unwrap_or_else(|e| e.into_inner());
        match *place {
            Place::Gone => Err(DeviceError::GivenBack { device: "cpu".to_owned() }),
            Place::Own { .. } | Place::Foreign { .. } => Ok(ReadBytes { memory: self, place }),
        }
    }

    /// The bytes for writing.
    pub(super) fn write_bytes(&self) -> Result<WriteBytes<'_>, DeviceError> {
        if !self.writable {
            return Err(DeviceError::ReadOnly { device: "cpu".to_owned() });
        }
        let place = self.place.write().unwrap_or_else(|e| e.into_inner());
        match *place {
            Place::Gone => Err(DeviceError::GivenBack { device: "cpu".to_owned() }),
            Place::Own { .. } | Place::Foreign { .. } => Ok(WriteBytes { memory: self, place }),
        }
    }
}

impl ReadBytes<'_> {
    pub fn as_slice(&self) -> &[u8] {
        match &*self.place {
            Place::Own { raw, start, .. } => &raw[*start..][..self.memory.bytes],
            // No bytes may lie at an address that no slice can have.
            Place::Foreign { .. } if self.memory.bytes == 0 => &[],
            // SAFETY: who made this memory promised that so many bytes at the address can be read, and that nobody else writes them
            // while they are used here; the lock keeps writers of this crate out.
            Place::Foreign { .. } => unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.memory.address as usize), self.memory.bytes)
            },
            Place::Gone => unreachable!("checked when the lock was taken"),
        }
    }
}

impl WriteBytes<'_> {
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut *self.place {
            Place::Own { raw, start, .. } => &mut raw[*start..][..self.memory.bytes],
            Place::Foreign { .. } if self.memory.bytes == 0 => &mut [],
            // SAFETY: who made this memory promised that so many bytes at the address can be written, and that nobody else reads or
            // writes them while they are used here; the lock keeps others of this crate out.
            Place::Foreign { .. } => unsafe {
                let first = std::ptr::with_exposed_provenance_mut(self.memory.address as usize);
                std::slice::from_raw_parts_mut(first, self.memory.bytes)
            },
            Place::Gone => unreachable!("checked when the lock was taken"),
        }
    }
}

impl Memory for HostMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        check_range(offset, from.len(), self.bytes)?;
        self.write_bytes()?.as_mut_slice()[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, into.len(), self.bytes)?;
        into.copy_from_slice(&self.read_bytes()?.as_slice()[offset..][..into.len()]);
        Ok(())
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.write_bytes()?.as_mut_slice().fill(byte);
        Ok(())
    }

    fn give_back(&self) {
        *self.place.write().unwrap_or_else(|e| e.into_inner()) = Place::Gone;
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
