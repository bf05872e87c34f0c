//! Global memory: buffers, with every byte's initialisation tracked. Blocks run on several threads, so it is made of atomic
//! words; ordinary accesses are relaxed, which on the host costs what plain ones do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::windows;

/// A buffer of [`GlobalMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// Address of its first byte, a multiple of 1024: what a kernel takes as a pointer.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Buffers that kernels read and write. What lies between them belongs to nobody: an access there is a finding. Clones share
/// the buffers that were there when they were made, so that a launch may run while others allocate.
///
/// ```
/// let mut memory = flashtile_emulator::GlobalMemory::new();
/// let input = memory.allocate_from(&[1, 2, 3]);
/// let output = memory.allocate(16);
/// assert_ne!(input.address, output.address);
/// assert_eq!(memory.read(input), [1, 2, 3]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct GlobalMemory {
    /// In order of their addresses.
    regions: Vec<Arc<Region>>,
    /// Where the next buffer may begin: addresses are never used twice.
    end: u64,
}

impl GlobalMemory {
    /// An empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer whose bytes are not initialised: a kernel that reads one before anyone wrote it is at fault. They hold
    /// `0xff`, which is NaN in every float format.
    pub fn allocate(&mut self, bytes: u64) -> Buffer {
        let base = self.end.max(windows::BUFFERS);
        self.end = (base + bytes + (1 << 20)).next_multiple_of(1 << 20);
        self.regions.push(Arc::new(Region::new(base, bytes)));
        Buffer { address: base, bytes }
    }

    /// Gives a buffer up: from now on its addresses belong to nobody. One of another memory is left alone.
    pub fn free(&mut self, buffer: Buffer) {
        self.regions.retain(|r| r.base != buffer.address);
    }

    /// A buffer with these contents.
    pub fn allocate_from(&mut self, contents: &[u8]) -> Buffer {
        let buffer = self.allocate(contents.len() as u64);
        self.write(buffer, contents);
        buffer
    }

    /// Overwrites the first bytes of a buffer, up to its size. A buffer of another memory is left alone.
    pub fn write(&self, buffer: Buffer, contents: &[u8]) {
        self.write_at(buffer, 0, contents);
    }

    /// Overwrites bytes of a buffer from an offset on, up to its end. A buffer of another memory is left alone.
    pub fn write_at(&self, buffer: Buffer, offset: u64, contents: &[u8]) {
        if let Some((region, 0)) = self.find(buffer.address, 0) {
            region.fill(offset, contents);
        }
    }

    /// The contents of a buffer; empty if it is of another memory.
    pub fn read(&self, buffer: Buffer) -> Vec<u8> {
        let mut all = vec![0; buffer.bytes as usize];
        if self.read_at(buffer, 0, &mut all) { all } else { vec![] }
    }

    /// Copies bytes of a buffer from an offset on; whether there are so many.
    pub fn read_at(&self, buffer: Buffer, offset: u64, into: &mut [u8]) -> bool {
        match self.find(buffer.address, 0) {
            Some((region, 0)) if offset.saturating_add(into.len() as u64) <= region.bytes => {
                region.copy(offset, into);
                true
            }
            _ => false,
        }
    }

    /// Bytes of a buffer that nobody has written.
    pub fn uninitialised(&self, buffer: Buffer) -> u64 {
        match self.find(buffer.address, 0) {
            Some((region, 0)) => {
                region.bytes - region.initialised.iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum::<u64>()
            }
            _ => 0,
        }
    }

    /// The region that holds so many bytes from an address, and their offset in it.
    pub(crate) fn find(&self, address: u64, bytes: u32) -> Option<(&Region, u64)> {
        let (index, offset) = self.place(address, bytes)?;
        Some((&*self.regions[index], offset))
    }

    /// The same, by the region's number.
    pub(crate) fn place(&self, address: u64, bytes: u32) -> Option<(usize, u64)> {
        let index = self.regions.partition_point(|r| r.base <= address).checked_sub(1)?;
        let region = &self.regions[index];
        let offset = address - region.base;
        (offset.saturating_add(bytes.into()) <= region.bytes).then_some((index, offset))
    }

    /// First address and bytes of the region of a number.
    pub(crate) fn bounds(&self, index: usize) -> (u64, u64) {
        self.regions[index].bounds()
    }

    /// Bytes of each region, in order of their numbers.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.regions.iter().map(|r| r.bytes)
    }

    /// Distance of an address from the nearest buffer, for reports: bytes past its end, or before its start if negative.
    pub(crate) fn nearest(&self, address: u64) -> Option<i128> {
        let distance = |r: &Arc<Region>| {
            let (address, base, bytes) = (i128::from(address), i128::from(r.base), i128::from(r.bytes));
            if address < base { address - base } else { (address - base - bytes).max(0) }
        };
        self.regions.iter().map(distance).min_by_key(|d| d.abs())
    }
}

/// What is wrong with an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    OutOfBounds,
    Misaligned,
    Uninitialised,
}

/// A run of addresses that belong together.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    bytes: u64,
    words: Vec<AtomicU32>,
    /// A bit for each byte.
    initialised: Vec<AtomicU32>,
}

impl Region {
    /// Uninitialised bytes from an address that is a multiple of four.
    pub fn new(base: u64, bytes: u64) -> Self {
        let words = bytes.div_ceil(4) as usize;
        Self {
            base,
            bytes,
            words: (0..words).map(|_| AtomicU32::new(u32::MAX)).collect(),
            initialised: (0..words.div_ceil(8)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Overwrites bytes from an offset on, as many as there are.
    pub fn fill(&self, offset: u64, contents: &[u8]) {
        let room = self.bytes.saturating_sub(offset) as usize;
        let mut left = &contents[..contents.len().min(room)];
        let mut at = offset;
        while !left.is_empty() {
            let inside = (at % 4) as usize;
            let (here, rest) = left.split_at(left.len().min(4 - inside));
            let word = &self.words[(at / 4) as usize];
            let mut bytes = word.load(Relaxed).to_le_bytes();
            bytes[inside..inside + here.len()].copy_from_slice(here);
            word.store(u32::from_le_bytes(bytes), Relaxed);
            self.mark(at, here.len() as u32);
            at += here.len() as u64;
            left = rest;
        }
    }

    /// Copies bytes from an offset on, of which there are so many.
    fn copy(&self, offset: u64, into: &mut [u8]) {
        let (mut at, mut left) = (offset, into);
        while !left.is_empty() {
            let inside = (at % 4) as usize;
            let (here, rest) = left.split_at_mut(left.len().min(4 - inside));
            let bytes = self.words[(at / 4) as usize].load(Relaxed).to_le_bytes();
            here.copy_from_slice(&bytes[inside..inside + here.len()]);
            at += here.len() as u64;
            left = rest;
        }
    }

    pub fn bounds(&self) -> (u64, u64) {
        (self.base, self.bytes)
    }

    /// Notes that bytes are initialised. They are aligned to their number, or a whole number of words.
    fn mark(&self, offset: u64, bytes: u32) {
        let (mut at, mut left) = (offset, bytes);
        while left > 0 {
            let here = left.min(32 - (at % 32) as u32);
            let bits = (u32::MAX >> (32 - here)) << (at % 32);
            let word = &self.initialised[(at / 32) as usize];
            if word.load(Relaxed) & bits != bits {
                word.fetch_or(bits, Relaxed);
            }
            at += u64::from(here);
            left -= here;
        }
    }

    fn is_initialised(&self, offset: u64, bytes: u32) -> bool {
        let (mut at, mut left) = (offset, bytes);
        while left > 0 {
            let here = left.min(32 - (at % 32) as u32);
            let bits = (u32::MAX >> (32 - here)) << (at % 32);
            if self.initialised[(at / 32) as usize].load(Relaxed) & bits != bits {
                return false;
            }
            at += u64::from(here);
            left -= here;
        }
        true
    }

    /// Reads 1, 2 or a multiple of 4 bytes, aligned to 4 or to themselves, into words. Whether all are initialised.
    pub fn load(&self, offset: u64, bytes: u32, into: &mut [u32]) -> bool {
        let first = (offset / 4) as usize;
        match bytes {
            1 | 2 => {
                let word = self.words[first].load(Relaxed) >> (8 * (offset % 4));
                into[0] = word & (u32::MAX >> (32 - 8 * bytes));
            }
            _ => {
                for (word, to) in self.words[first..].iter().zip(&mut into[..(bytes / 4) as usize]) {
                    *to = word.load(Relaxed);
                }
            }
        }
        self.is_initialised(offset, bytes)
    }

    /// Writes 1, 2 or a multiple of 4 bytes, aligned to 4 or to themselves.
    pub fn store(&self, offset: u64, bytes: u32, from: &[u32]) {
        let first = (offset / 4) as usize;
        match bytes {
            1 | 2 => {
                let shift = 8 * (offset % 4);
                let keep = !((u32::MAX >> (32 - 8 * bytes)) << shift);
                let value = (from[0] & (u32::MAX >> (32 - 8 * bytes))) << shift;
                // Never fails: the closure always gives a value.
                let _ = self.words[first].fetch_update(Relaxed, Relaxed, |w| Some(w & keep | value));
            }
            _ => {
                for (word, value) in self.words[first..].iter().zip(&from[..(bytes / 4) as usize]) {
                    word.store(*value, Relaxed);
                }
            }
        }
        self.mark(offset, bytes);
    }

    /// One word changed atomically; its value before, and whether it was initialised.
    pub fn update(&self, offset: u64, change: impl Fn(u32) -> u32) -> (u32, bool) {
        let initialised = self.is_initialised(offset, 4);
        let word = &self.words[(offset / 4) as usize];
        let before = word.fetch_update(Relaxed, Relaxed, |w| Some(change(w))).unwrap_or_else(|w| w);
        self.mark(offset, 4);
        (before, initialised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_tracked_one_by_one() {
        let mut memory = GlobalMemory::new();
        let buffer = memory.allocate(70);
        let (region, offset) = memory.find(buffer.address + 6, 2).expect("is there");
        region.store(offset, 2, &[0xabcd_1234]);
        let mut word = [0];
        assert!(region.load(6, 2, &mut word));
        assert_eq!(word[0], 0x1234);
        assert!(!region.load(4, 4, &mut word));
        assert_eq!(word[0], 0x1234_ffff);
        assert_eq!(memory.uninitialised(buffer), 68);
        let (region, _) = memory.find(buffer.address, 0).expect("is there");
        region.store(28, 16, &[1, 2, 3, 4]);
        assert!(region.is_initialised(28, 16) && !region.is_initialised(24, 8));
    }

    #[test]
    fn parts_of_buffers_are_written_and_read_and_clones_share_them() {
        let mut memory = GlobalMemory::new();
        let buffer = memory.allocate_from(&[0; 11]);
        let clone = memory.clone();
        clone.write_at(buffer, 3, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(memory.read(buffer), [0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        let mut part = [9; 5];
        assert!(memory.read_at(buffer, 6, &mut part));
        assert_eq!(part, [4, 5, 6, 0, 0]);
        assert!(!memory.read_at(buffer, 7, &mut part));
        memory.free(buffer);
        assert_eq!((memory.read(buffer), clone.read(buffer).len()), (vec![], 11));
        assert_ne!(memory.allocate(11).address, buffer.address);
    }

    #[test]
    fn nothing_lies_between_buffers() {
        let mut memory = GlobalMemory::new();
        let (a, b) = (memory.allocate(10), memory.allocate(10));
        assert!(memory.find(a.address + 8, 2).is_some());
        assert!(memory.find(a.address + 9, 2).is_none());
        assert!(memory.find(b.address - 4, 4).is_none());
        assert_eq!(memory.nearest(a.address + 14), Some(4));
        assert_eq!(memory.nearest(b.address - 4), Some(-4));
    }
}
