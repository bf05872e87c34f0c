//! A block's shared memory, with what the race detector knows of each granule.
//!
//! The detector works by happens-before, after FastTrack (Flanagan and Freund, PLDI 2009): every warp has a vector clock,
//! a granule remembers the epoch of its last write and the epochs of the reads since. A granule is as large as the
//! narrowest access of the kernel, so that every access covers whole ones. Lanes of one warp are ordered with each other
//! by warp-wide barriers only, as the PTX memory model has it.
//!
//! Blocks of a cluster see each other's shared memory, so it is one memory here: the blocks' own, one after the other. Their warps
//! have clocks in common, and what orders the accesses of two blocks is a barrier of the cluster.
//!
//! Copies and products that run asynchronously mark the granules that they are going to write or read until their
//! completion is observed.

use super::windows::{self, SHARED_START};

/// In place of a lane: several.
pub(crate) const MANY: u8 = 0xff;
/// In place of a lane: the warp as a whole, whose lanes all know that the access is over.
pub(crate) const ALL: u8 = 0xfe;

/// Who wrote a granule last. A clock of 0: nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Writer {
    pub clock: u32,
    /// Instruction.
    pub step: u32,
    /// A warp, or an mbarrier that a copy signals.
    pub agent: u16,
    /// The warp itself, or the one that issued the copy.
    pub warp: u16,
    pub lane: u8,
    /// Written by a copy of the asynchronous proxy.
    pub asynchronous: bool,
}

/// State of a granule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cell {
    pub writer: Writer,
    /// Warps that read it since: of every 32nd of them a bit.
    pub readers: u32,
    /// Number of the copy that is going to write it; 0 if none.
    pub copy: u32,
    /// Asynchronous reads in flight, and the number of the latest.
    pub reading: u32,
    pub reader: u32,
}

/// Who accesses, and what it has seen of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor<'c> {
    pub warp: u16,
    pub lane: u8,
    pub step: u32,
    /// Its own clock.
    pub clock: u32,
    /// Its clock at the latest barrier of the whole warp.
    pub synced: u32,
    /// Clocks of all agents that happened before; those beyond its end are 0.
    pub seen: &'c [u32],
}

/// What is wrong with an access, and the other party.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    OutOfBounds,
    Misaligned,
    Uninitialised,
    /// A copy is in flight to it, by number.
    InFlight(u32),
    /// An asynchronous read of it is in flight, by number.
    BeingRead(u32),
    /// Not ordered after the write.
    AfterWrite(Writer),
    /// Not ordered after a read by a warp, lane and instruction.
    AfterRead {
        warp: u16,
        lane: u8,
        step: u32,
    },
    /// The block of the cluster that it is of has ended.
    Ended {
        rank: u32,
    },
    /// Written through the generic proxy and not fenced.
    Unfenced(Writer),
}

/// Shared memory of the blocks of a cluster.
#[derive(Debug)]
pub(crate) struct Shared {
    data: Vec<u8>,
    /// Bytes of a block.
    block: u64,
    cells: Vec<Cell>,
    /// Latest read of each granule by each warp: clock, instruction (24 bits) and lane, from the top.
    reads: Vec<u64>,
    warps: usize,
    /// Logarithm of the bytes of a granule.
    granule: u32,
    /// Whether races are looked for.
    checked: bool,
}

impl Shared {
    /// Memory of so many bytes for each of so many blocks, which have so many warps in all.
    pub fn new(bytes: u32, blocks: u32, granule: u32, warps: usize, checked: bool) -> Self {
        let block = bytes.next_multiple_of(16);
        let bytes = block as usize * blocks as usize;
        let cells = bytes / granule as usize;
        Self {
            data: vec![0xff; bytes],
            block: block.into(),
            cells: vec![Cell::default(); cells],
            reads: vec![0; if checked { cells * warps } else { 0 }],
            warps,
            granule: granule.trailing_zeros(),
            checked,
        }
    }

    /// Offset of an access from the start; bounds and alignment checked.
    pub fn locate(&self, address: u64, bytes: u32) -> Result<u32, Trouble> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(Trouble::Misaligned);
        }
        self.inside(address, bytes)
    }

    /// The same without alignment.
    pub fn inside(&self, address: u64, bytes: u32) -> Result<u32, Trouble> {
        let (rank, offset) = (windows::rank_of(address), windows::in_block(address).wrapping_sub(SHARED_START.into()));
        if offset.saturating_add(bytes.into()) > self.block || rank >= self.data.len() as u64 / self.block {
            return Err(Trouble::OutOfBounds);
        }
        Ok((rank * self.block + offset) as u32)
    }

    /// The address of an offset.
    pub fn address(&self, offset: u32) -> u64 {
        let (rank, own) = (u64::from(offset) / self.block, u64::from(offset) % self.block);
        u64::from(windows::of_rank(rank as u32)) + u64::from(SHARED_START) + own
    }

    /// The offset of an address that [`Shared::locate`] has found to be inside.
    pub fn offset(&self, address: u32) -> u32 {
        self.inside(address.into(), 0).expect("found to be inside")
    }

    pub fn bytes(&self, offset: u32, bytes: u32) -> &[u8] {
        &self.data[offset as usize..(offset + bytes) as usize]
    }

    pub fn bytes_mut(&mut self, offset: u32, bytes: u32) -> &mut [u8] {
        &mut self.data[offset as usize..(offset + bytes) as usize]
    }

    pub fn load(&self, offset: u32, bytes: u32, into: &mut [u32]) {
        let source = self.bytes(offset, bytes);
        match *source {
            [a] => into[0] = a.into(),
            [a, b] => into[0] = u16::from_le_bytes([a, b]).into(),
            _ => {
                for (to, chunk) in into.iter_mut().zip(source.chunks_exact(4)) {
                    *to = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                }
            }
        }
    }

    pub fn store(&mut self, offset: u32, bytes: u32, from: &[u32]) {
        let target = self.bytes_mut(offset, bytes);
        match bytes {
            1 | 2 => target.copy_from_slice(&from[0].to_le_bytes()[..bytes as usize]),
            _ => {
                for (chunk, word) in target.chunks_exact_mut(4).zip(from) {
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }

    fn range(&self, offset: u32, bytes: u32) -> std::ops::Range<usize> {
        (offset >> self.granule) as usize..((offset + bytes - 1) >> self.granule) as usize + 1
    }

    /// Checks and notes a read of the generic proxy.
    pub fn read(&mut self, by: &Accessor<'_>, offset: u32, bytes: u32) -> Result<(), Trouble> {
        let mut trouble = Ok(());
        for at in self.range(offset, bytes) {
            let cell = &mut self.cells[at];
            let w = cell.writer;
            if cell.copy != 0 {
                trouble = trouble.and(Err(Trouble::InFlight(cell.copy)));
            } else if w.clock == 0 {
                trouble = trouble.and(Err(Trouble::Uninitialised));
            }
            if self.checked {
                if w.clock != 0 && !ordered(by, w.agent, w.lane, w.clock) {
                    trouble = trouble.and(Err(Trouble::AfterWrite(w)));
                }
                note(cell, &mut self.reads[at * self.warps..], by);
            }
        }
        trouble
    }

    /// Checks that what is there has been seen, without noting a read.
    pub fn peek(&self, by: &Accessor<'_>, offset: u32, bytes: u32) -> Result<(), Trouble> {
        for at in self.range(offset, bytes) {
            let w = self.cells[at].writer;
            if w.clock == 0 {
                return Err(Trouble::Uninitialised);
            }
            if self.checked && !ordered(by, w.agent, w.lane, w.clock) {
                return Err(Trouble::AfterWrite(w));
            }
        }
        Ok(())
    }

    /// Checks that a write may happen now: nobody reads or writes the granules at the same time.
    pub fn may_write(&self, by: &Accessor<'_>, offset: u32, bytes: u32) -> Result<(), Trouble> {
        for at in self.range(offset, bytes) {
            let cell = &self.cells[at];
            if cell.copy != 0 {
                return Err(Trouble::InFlight(cell.copy));
            }
            if cell.reading != 0 {
                return Err(Trouble::BeingRead(cell.reader));
            }
            if !self.checked {
                continue;
            }
            let w = cell.writer;
            if w.clock != 0 && !ordered(by, w.agent, w.lane, w.clock) {
                return Err(Trouble::AfterWrite(w));
            }
            let mut readers = cell.readers;
            while readers != 0 {
                let first = readers.trailing_zeros() as usize;
                readers &= readers - 1;
                // A read before the last write, of another warp with the same bit, is ordered: that write was after it.
                for warp in (first..self.warps).step_by(32) {
                    let read = self.reads[at * self.warps + warp];
                    let (clock, step, lane) = ((read >> 32) as u32, (read >> 8) as u32 & 0xff_ffff, read as u8);
                    if clock != 0 && !ordered(by, warp as u16, lane, clock) {
                        return Err(Trouble::AfterRead { warp: warp as u16, lane, step });
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes a write by an accessor.
    pub fn wrote(&mut self, writer: Writer, offset: u32, bytes: u32) {
        for at in self.range(offset, bytes) {
            let cell = &mut self.cells[at];
            cell.writer = writer;
            cell.readers = 0;
        }
    }

    /// Checks a read by the asynchronous proxy: as [`Shared::read`], and that writes of the generic proxy were fenced.
    pub fn may_read_asynchronously(&self, by: &Accessor<'_>, fenced: &[u32], offset: u32, bytes: u32) -> Result<(), Trouble> {
        for at in self.range(offset, bytes) {
            let cell = &self.cells[at];
            let w = cell.writer;
            if cell.copy != 0 {
                return Err(Trouble::InFlight(cell.copy));
            }
            if w.clock == 0 {
                return Err(Trouble::Uninitialised);
            }
            if self.checked {
                // Lanes of the warp meet in the instruction itself, so that only other warps matter.
                if w.agent != by.warp && by.seen.get(usize::from(w.agent)).copied().unwrap_or(0) < w.clock {
                    return Err(Trouble::AfterWrite(w));
                }
                if !w.asynchronous && fenced.get(usize::from(w.agent)).copied().unwrap_or(0) < w.clock {
                    return Err(Trouble::Unfenced(w));
                }
            }
        }
        Ok(())
    }

    /// Notes that a copy is going to write.
    pub fn begin_copy(&mut self, copy: u32, offset: u32, bytes: u32) {
        for at in self.range(offset, bytes) {
            self.cells[at].copy = copy;
        }
    }

    /// Notes that a copy has been written and observed.
    pub fn end_copy(&mut self, copy: u32, writer: Writer, offset: u32, bytes: u32) {
        for at in self.range(offset, bytes) {
            let cell = &mut self.cells[at];
            if cell.copy == copy {
                cell.copy = 0;
            }
            cell.writer = writer;
            cell.readers = 0;
        }
    }

    /// Notes that an asynchronous read begins.
    pub fn begin_read(&mut self, reader: u32, offset: u32, bytes: u32) {
        for at in self.range(offset, bytes) {
            let cell = &mut self.cells[at];
            cell.reading += 1;
            cell.reader = reader;
        }
    }

    /// Notes that an asynchronous read has ended and been observed by the warp that waited.
    pub fn end_read(&mut self, by: &Accessor<'_>, offset: u32, bytes: u32) {
        for at in self.range(offset, bytes) {
            let cell = &mut self.cells[at];
            cell.reading = cell.reading.saturating_sub(1);
            if self.checked {
                note(cell, &mut self.reads[at * self.warps..], by);
            }
        }
    }
}

/// Whether an access of `agent` at `clock` happens before.
fn ordered(by: &Accessor<'_>, agent: u16, lane: u8, clock: u32) -> bool {
    if agent == by.warp {
        lane == ALL || (lane == by.lane && lane != MANY) || clock <= by.synced
    } else {
        by.seen.get(usize::from(agent)).copied().unwrap_or(0) >= clock
    }
}

/// Notes a read. Of several lanes since the warp's latest barrier, `MANY` is kept.
fn note(cell: &mut Cell, reads: &mut [u64], by: &Accessor<'_>) {
    let slot = &mut reads[usize::from(by.warp)];
    let mut lane = by.lane;
    let before = *slot as u8;
    if cell.readers & 1 << (by.warp % 32) != 0 && (*slot >> 32) as u32 > by.synced && before != lane && before != ALL {
        lane = if lane == ALL { before } else { MANY };
    }
    *slot = u64::from(by.clock) << 32 | u64::from(by.step & 0xff_ffff) << 8 | u64::from(lane);
    cell.readers |= 1 << (by.warp % 32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(warp: u16, lane: u8, clock: u32, synced: u32, seen: &[u32]) -> Accessor<'_> {
        Accessor { warp, lane, step: 7, clock, synced, seen }
    }

    fn write(shared: &mut Shared, a: &Accessor<'_>, offset: u32) -> Result<(), Trouble> {
        let result = shared.may_write(a, offset, 4);
        shared.wrote(
            Writer { clock: a.clock, step: a.step, agent: a.warp, warp: a.warp, lane: a.lane, asynchronous: false },
            offset,
            4,
        );
        result
    }

    #[test]
    fn accesses_of_two_warps_race_unless_the_second_has_seen_the_first() {
        let mut shared = Shared::new(64, 1, 4, 2, true);
        assert_eq!(write(&mut shared, &by(0, 0, 1, 0, &[1, 0]), 0), Ok(()));
        assert!(matches!(shared.read(&by(1, 0, 1, 0, &[0, 1]), 0, 4), Err(Trouble::AfterWrite(w)) if w.agent == 0));
        assert_eq!(shared.read(&by(1, 0, 2, 1, &[1, 2]), 0, 4), Ok(()));
        assert!(matches!(write(&mut shared, &by(0, 0, 2, 1, &[2, 1]), 0), Err(Trouble::AfterRead { warp: 1, lane: 0, step: 7 })));
    }

    #[test]
    fn lanes_of_a_warp_race_unless_the_warp_met() {
        let mut shared = Shared::new(64, 1, 4, 1, true);
        assert_eq!(write(&mut shared, &by(0, 0, 1, 0, &[1]), 0), Ok(()));
        assert_eq!(shared.read(&by(0, 0, 1, 0, &[1]), 0, 4), Ok(()));
        assert!(matches!(shared.read(&by(0, 1, 1, 0, &[1]), 0, 4), Err(Trouble::AfterWrite(_))));
        assert_eq!(shared.read(&by(0, 1, 2, 1, &[2]), 0, 4), Ok(()));
        assert_eq!(shared.read(&by(0, 2, 2, 1, &[2]), 0, 4), Ok(()));
        assert!(matches!(write(&mut shared, &by(0, 2, 2, 1, &[2]), 0), Err(Trouble::AfterRead { lane: MANY, .. })));
    }

    #[test]
    fn what_nobody_wrote_is_not_initialised() {
        let mut shared = Shared::new(64, 1, 4, 1, true);
        assert_eq!(shared.read(&by(0, 0, 1, 0, &[1]), 8, 4), Err(Trouble::Uninitialised));
        assert_eq!(shared.locate(u64::from(SHARED_START) + 64, 4), Err(Trouble::OutOfBounds));
        assert_eq!(shared.locate(u64::from(SHARED_START) + 2, 4), Err(Trouble::Misaligned));
    }

    #[test]
    fn copies_and_products_in_flight_are_in_the_way() {
        let mut shared = Shared::new(64, 1, 16, 1, true);
        shared.begin_copy(3, 16, 16);
        let a = by(0, 0, 1, 0, &[1]);
        assert_eq!(shared.read(&a, 16, 16), Err(Trouble::InFlight(3)));
        assert_eq!(shared.may_write(&a, 16, 16), Err(Trouble::InFlight(3)));
        shared.end_copy(3, Writer { clock: 1, step: 0, agent: 0, warp: 0, lane: 0, asynchronous: false }, 16, 16);
        assert_eq!(shared.read(&a, 16, 16), Ok(()));
        shared.begin_read(9, 16, 16);
        assert_eq!(shared.may_write(&a, 16, 16), Err(Trouble::BeingRead(9)));
        assert_eq!(
            shared.may_read_asynchronously(&a, &[0], 16, 16),
            Err(Trouble::Unfenced(Writer { clock: 1, ..Writer::default() }))
        );
        assert_eq!(shared.may_read_asynchronously(&a, &[1], 16, 16), Ok(()));
    }
}
