//! Who read and wrote global memory in a launch, and what release operations left there: how races in global memory are found.
//!
//! The detector works by happens-before like that of shared memory (see [`super::shared`]), over all blocks of a launch. It
//! follows the causality order of the PTX memory model (PTX ISA 8.9) as far as code uses it: barriers of warps, blocks and
//! clusters, mbarriers, release and acquire operations with their scopes, fences, and chains of atomic operations on a word
//! that was released. Two strong accesses whose scopes hold each other's thread never race.
//!
//! Memory is traced by pages, which are made at their first access. A page keeps one cell for each of its granules, as narrow
//! as the narrowest access to the page so far: a narrower one splits the cells, which is exact, because every access before
//! covered whole cells.
//!
//! Of a granule that nobody has written in the launch, two readers are kept that are not ordered with each other. A write that
//! races with a third reader alone is not found. Of granules that are written all readers are kept.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::known::{Epoch, IN_FLIGHT, Public, Scope, Strength};
use super::{ALL, MANY};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Logarithm of the bytes of the widest granule.
const WIDEST: u32 = 4;

/// Accesses to the buffers of global memory in a launch. Blocks run on several threads, so each page has a lock.
#[derive(Debug)]
pub(crate) struct Traces {
    /// Bytes of each buffer, and its pages once one of them was touched.
    regions: Vec<(u64, OnceLock<Pages>)>,
    /// Warps of a block.
    warps: u16,
}

type Pages = Box<[OnceLock<Box<Mutex<Page>>>]>;

/// Traces of neighbouring bytes.
#[derive(Debug)]
pub(crate) struct Page {
    /// Logarithm of the bytes of a granule.
    granule: u32,
    cells: Vec<Cell>,
    /// Further accesses to granules, by index.
    more: HashMap<usize, More>,
    /// What was released at a word, by its offset in the page.
    releases: HashMap<u32, Vec<Published>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    writer: Epoch,
    /// Readers since the write that are not ordered with each other.
    readers: [Epoch; 2],
}

/// Strong writes before the last one that no order connects with it, and readers beyond two; by block and warp.
#[derive(Clone, Debug, Default)]
struct More {
    writers: HashMap<(u32, u16), Epoch>,
    readers: HashMap<(u32, u16), Epoch>,
}

#[derive(Clone, Debug)]
struct Published {
    scope: Scope,
    /// A thread that released; for [`Scope::Device`] any.
    by: Epoch,
    public: Public,
}

/// Who accesses, and what happened before the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visitor<'c> {
    /// What is noted of the access.
    pub access: Epoch,
    /// The warp's clock at its latest barrier.
    pub synced: u32,
    /// Clocks of the warps of its block (or cluster).
    pub seen: &'c [u32],
    /// What the warp knows of other blocks, and what the lane alone knows.
    pub known: &'c Public,
    pub own: Option<&'c Public>,
}

/// Why an access is a fault, and the other access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conflict {
    AfterWrite(Epoch),
    AfterRead(Epoch),
    /// An asynchronous read of a generic write that is ordered before, with no proxy fence between.
    Unfenced(Epoch),
}

impl Visitor<'_> {
    /// Whether an access happened before this one.
    fn after(&self, other: &Epoch) -> bool {
        if other.clock == IN_FLIGHT {
            return false;
        }
        if other.block == self.access.block {
            let before = if other.warp == self.access.warp {
                other.lane == ALL || (other.lane == self.access.lane && other.lane != MANY) || other.clock <= self.synced
            } else {
                self.seen.get(usize::from(other.warp)).copied().unwrap_or(0) >= other.clock
            };
            if before {
                return true;
            }
        }
        self.known.seen.covers(other) || self.own.is_some_and(|own| own.seen.covers(other))
    }

    /// Whether the asynchronous proxy may see a write that happened before.
    fn fenced(&self, other: &Epoch) -> bool {
        self.known.fenced.covers(other) || self.own.is_some_and(|own| own.fenced.covers(other))
    }
}

impl Traces {
    /// Of buffers of so many bytes, for blocks of so many warps.
    pub fn new(bytes: impl Iterator<Item = u64>, warps: u32) -> Self {
        Self { regions: bytes.map(|bytes| (bytes, OnceLock::new())).collect(), warps: warps as u16 }
    }

    /// Locks the page of an offset in a buffer. A thread locks one page at a time.
    pub fn page(&self, region: usize, offset: u64) -> MutexGuard<'_, Page> {
        let (bytes, pages) = &self.regions[region];
        let pages = pages.get_or_init(|| (0..bytes.div_ceil(PAGE)).map(|_| OnceLock::new()).collect());
        pages[(offset / PAGE) as usize].get_or_init(Box::default).lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Number of the page of an offset.
    pub fn page_of(offset: u64) -> u64 {
        offset / PAGE
    }

    /// First offset behind the page of an offset.
    pub fn page_end(offset: u64) -> u64 {
        (offset / PAGE + 1) * PAGE
    }

    /// Whether a scope around the thread of an access holds the thread of another.
    fn reaches(&self, scope: Scope, from: &Epoch, to: &Epoch) -> bool {
        match scope {
            Scope::Device => true,
            Scope::Cluster => from.block == to.block,
            Scope::Block => from.block == to.block && from.warp / self.warps == to.warp / self.warps,
        }
    }

    /// Whether two accesses are strong, and each one's scope holds the other ("morally strong", PTX ISA 8.7).
    fn both_strong(&self, a: &Epoch, b: &Epoch) -> bool {
        match (a.strength, b.strength) {
            (Strength::Strong(x), Strength::Strong(y)) => self.reaches(x, a, b) && self.reaches(y, b, a),
            _ => false,
        }
    }

    /// Checks and notes a read of bytes of a page.
    pub fn read(&self, page: &mut Page, by: &Visitor<'_>, offset: u64, bytes: u32) -> Result<(), Conflict> {
        let mut conflict = Ok(());
        for at in page.cells_of(offset, bytes) {
            let writer = page.cells[at].writer;
            if writer.clock != 0 && !self.both_strong(&writer, &by.access) {
                if !by.after(&writer) {
                    conflict = conflict.and(Err(Conflict::AfterWrite(writer)));
                } else if by.access.strength == Strength::Asynchronous
                    && writer.strength != Strength::Asynchronous
                    && !by.fenced(&writer)
                {
                    conflict = conflict.and(Err(Conflict::Unfenced(writer)));
                }
                let others = page.more.get(&at).into_iter().flat_map(|more| more.writers.values());
                if let Some(&other) = others.into_iter().find(|w| !by.after(w) && !self.both_strong(w, &by.access)) {
                    conflict = conflict.and(Err(Conflict::AfterWrite(other)));
                }
            }
            page.note_read(at, by);
        }
        conflict
    }

    /// Checks and notes a write of bytes of a page.
    pub fn write(&self, page: &mut Page, by: &Visitor<'_>, offset: u64, bytes: u32) -> Result<(), Conflict> {
        let mut conflict = Ok(());
        for at in page.cells_of(offset, bytes) {
            let cell = page.cells[at];
            let races = |other: &Epoch| other.clock != 0 && !by.after(other) && !self.both_strong(other, &by.access);
            if races(&cell.writer) {
                conflict = conflict.and(Err(Conflict::AfterWrite(cell.writer)));
            }
            if let Some(reader) = cell.readers.iter().find(|r| races(r)) {
                conflict = conflict.and(Err(Conflict::AfterRead(*reader)));
            }
            if let Some(more) = page.more.get_mut(&at) {
                if let Some(writer) = more.writers.values().find(|w| races(w)) {
                    conflict = conflict.and(Err(Conflict::AfterWrite(*writer)));
                }
                if let Some(reader) = more.readers.values().find(|r| races(r)) {
                    conflict = conflict.and(Err(Conflict::AfterRead(*reader)));
                }
                more.readers.clear();
                more.writers.retain(|_, w| !by.after(w));
            }
            // A weak access later must be ordered after this write and after the one before.
            let before = cell.writer;
            if before.clock != 0 && self.both_strong(&before, &by.access) && !by.after(&before) {
                keep(&mut page.more.entry(at).or_default().writers, before);
            }
            page.cells[at] = Cell { writer: by.access, readers: [Epoch::default(); 2] };
        }
        conflict
    }

    /// Leaves what a release publishes at a word; a plain write takes the place of what was there, an atomic operation adds.
    pub fn publish(&self, page: &mut Page, offset: u64, scope: Scope, by: &Epoch, public: Public) {
        let all = page.releases.entry((offset % PAGE) as u32).or_default();
        let same = |p: &&mut Published| p.scope == scope && self.reaches(scope, &p.by, by);
        match all.iter_mut().find(same) {
            Some(published) => published.public.join(&public),
            None => all.push(Published { scope, by: *by, public }),
        }
    }

    /// What a strong read in a scope gets to know of those who released.
    pub fn published(&self, page: &Page, offset: u64, scope: Scope, by: &Epoch) -> Option<Public> {
        let all = page.releases.get(&((offset % PAGE) as u32))?;
        let mut gained: Option<Public> = None;
        for p in all.iter().filter(|p| self.reaches(p.scope, &p.by, by) && self.reaches(scope, by, &p.by)) {
            gained.get_or_insert_default().join(&p.public);
        }
        gained
    }
}

impl Default for Page {
    fn default() -> Self {
        let cells = vec![Cell::default(); PAGE as usize >> WIDEST];
        Self { granule: WIDEST, cells, more: HashMap::new(), releases: HashMap::new() }
    }
}

impl Page {
    /// The cells of bytes that lie in the page.
    fn cells_of(&mut self, offset: u64, bytes: u32) -> Range<usize> {
        let width = (offset | u64::from(bytes)).trailing_zeros().min(WIDEST);
        if width < self.granule {
            self.split(width);
        }
        let first = (offset % PAGE) as usize;
        first >> self.granule..(first + bytes as usize) >> self.granule
    }

    /// Makes granules narrower.
    #[cold]
    fn split(&mut self, granule: u32) {
        let parts = 1 << (self.granule - granule);
        self.cells = self.cells.iter().flat_map(|cell| std::iter::repeat_n(*cell, parts)).collect();
        let more = std::mem::take(&mut self.more);
        self.more =
            more.into_iter().flat_map(|(at, more)| (at * parts..(at + 1) * parts).map(move |n| (n, more.clone()))).collect();
        self.granule = granule;
    }

    fn note_read(&mut self, at: usize, by: &Visitor<'_>) {
        let cell = &mut self.cells[at];
        let access = by.access;
        for known in &mut cell.readers {
            if known.clock == 0 {
                *known = access;
                return;
            }
            if (known.block, known.warp, known.strength) == (access.block, access.warp, access.strength) {
                let lane = if known.lane != access.lane && known.clock > by.synced { MANY } else { access.lane };
                *known = Epoch { lane, ..access };
                return;
            }
        }
        // One that happened before this read is not needed any more, unless a strong write could race with it alone.
        let replaces =
            |known: &Epoch| (access.strength == Strength::Weak || known.strength == access.strength) && by.after(known);
        if let Some(known) = cell.readers.iter_mut().find(|known| replaces(known)) {
            *known = access;
        } else if cell.writer.clock != 0 {
            keep(&mut self.more.entry(at).or_default().readers, access);
        }
    }

    /// The value of a word is no longer one that was released.
    pub fn forget(&mut self, offset: u64) {
        if !self.releases.is_empty() {
            self.releases.remove(&((offset % PAGE) as u32));
        }
    }

    /// Notes that the thread of an asynchronous write has waited for its end.
    pub fn landed(&mut self, flight: &Epoch, now: Epoch, offset: u64, bytes: u32) {
        for at in self.cells_of(offset, bytes) {
            if self.cells[at].writer == *flight {
                self.cells[at].writer = now;
            }
        }
    }
}

/// Keeps an access by its warp; of several lanes [`MANY`].
fn keep(all: &mut HashMap<(u32, u16), Epoch>, access: Epoch) {
    let kept = all.entry((access.block, access.warp)).or_insert(access);
    let lane = if kept.lane == access.lane { access.lane } else { MANY };
    *kept = Epoch { lane, ..access };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::known::{BlockClocks, Known};

    const WEAK: Strength = Strength::Weak;
    const STRONG: Strength = Strength::Strong(Scope::Device);

    fn access(block: u32, lane: u8, clock: u32, strength: Strength) -> Epoch {
        Epoch { block, clock, step: 7, warp: 0, lane, strength }
    }

    fn visitor<'c>(access: Epoch, known: &'c Public) -> Visitor<'c> {
        Visitor { access, synced: 0, seen: &[0], known, own: None }
    }

    fn traces() -> Traces {
        Traces::new([8192].into_iter(), 1)
    }

    #[test]
    fn blocks_race_unless_one_knows_of_the_other() {
        let traces = traces();
        let nothing = Public::default();
        let mut page = traces.page(0, 64);
        let write = access(0, 3, 5, WEAK);
        assert_eq!(traces.write(&mut page, &visitor(write, &nothing), 64, 16), Ok(()));
        let reader = access(1, 0, 1, WEAK);
        assert_eq!(traces.read(&mut page, &visitor(reader, &nothing), 72, 4), Err(Conflict::AfterWrite(write)));
        assert_eq!(traces.read(&mut page, &visitor(reader, &nothing), 80, 4), Ok(()), "the bytes behind it");
        let known = Public { seen: Known::of(0, BlockClocks { warps: vec![5], lanes: vec![] }), fenced: Known::default() };
        assert_eq!(traces.read(&mut page, &visitor(reader, &known), 64, 4), Ok(()));
        // The asynchronous proxy needs a fence besides.
        let through = Epoch { strength: Strength::Asynchronous, ..reader };
        assert_eq!(traces.read(&mut page, &visitor(through, &known), 64, 4), Err(Conflict::Unfenced(write)));
        // The writer comes again, and does not know that it was read.
        assert_eq!(traces.write(&mut page, &visitor(write, &nothing), 68, 4), Ok(()), "nobody read these");
        assert!(matches!(traces.write(&mut page, &visitor(write, &nothing), 64, 4), Err(Conflict::AfterRead(_))));
    }

    #[test]
    fn neighbouring_bytes_of_a_word_do_not_race() {
        let traces = traces();
        let nothing = Public::default();
        let mut page = traces.page(0, 0);
        for block in 0..8 {
            let by = visitor(access(block, 0, 1, WEAK), &nothing);
            assert_eq!(traces.write(&mut page, &by, u64::from(2 * block), 2), Ok(()));
        }
        let all = traces.read(&mut page, &visitor(access(0, 0, 1, WEAK), &nothing), 0, 16);
        assert_eq!(all, Err(Conflict::AfterWrite(access(1, 0, 1, WEAK))));
    }

    #[test]
    fn strong_accesses_race_with_weak_ones_and_with_those_out_of_scope() {
        let traces = traces();
        let nothing = Public::default();
        let mut page = traces.page(0, 0);
        let mut write = |block, strength| traces.write(&mut page, &visitor(access(block, 0, 1, strength), &nothing), 0, 4);
        assert_eq!(write(0, STRONG), Ok(()));
        assert_eq!(write(1, STRONG), Ok(()));
        let narrow = Strength::Strong(Scope::Block);
        assert_eq!(write(2, narrow), Err(Conflict::AfterWrite(access(1, 0, 1, STRONG))));
        // A weak read must be ordered after every strong write, not the last one alone.
        let mut page = traces.page(0, 4096);
        for block in 0..2 {
            let by = visitor(access(block, 0, 1, STRONG), &nothing);
            assert_eq!(traces.write(&mut page, &by, 4096, 4), Ok(()));
        }
        let last = Public { seen: Known::of(1, BlockClocks { warps: vec![1], lanes: vec![] }), fenced: Known::default() };
        let read = traces.read(&mut page, &visitor(access(2, 0, 1, WEAK), &last), 4096, 4);
        assert_eq!(read, Err(Conflict::AfterWrite(access(0, 0, 1, STRONG))));
    }

    #[test]
    fn what_is_released_is_acquired_in_both_scopes() {
        let traces = traces();
        let mut page = traces.page(0, 0);
        let public = Public { seen: Known::of(0, BlockClocks { warps: vec![4], lanes: vec![] }), fenced: Known::default() };
        traces.publish(&mut page, 8, Scope::Block, &access(0, 0, 4, STRONG), public.clone());
        let (mine, other) = (access(0, 5, 1, STRONG), access(1, 0, 1, STRONG));
        assert!(traces.published(&page, 8, Scope::Device, &mine).is_some());
        assert!(traces.published(&page, 8, Scope::Device, &other).is_none());
        traces.publish(&mut page, 8, Scope::Device, &access(0, 0, 4, STRONG), public);
        assert!(traces.published(&page, 8, Scope::Device, &other).is_some());
        assert!(traces.published(&page, 8, Scope::Block, &other).is_none());
        assert!(traces.published(&page, 12, Scope::Device, &other).is_none());
        page.forget(8);
        assert!(traces.published(&page, 8, Scope::Device, &other).is_none());
    }

    #[test]
    fn a_copy_in_flight_is_ordered_before_nothing() {
        let traces = traces();
        let nothing = Public::default();
        let mut page = traces.page(0, 0);
        let flight = Epoch { clock: IN_FLIGHT, ..access(0, 3, 1, Strength::Asynchronous) };
        assert_eq!(traces.write(&mut page, &visitor(flight, &nothing), 0, 16), Ok(()));
        let own = visitor(access(0, 3, 9, WEAK), &nothing);
        assert_eq!(traces.read(&mut page, &own, 0, 4), Err(Conflict::AfterWrite(flight)));
        page.landed(&flight, Epoch { clock: 8, ..flight }, 0, 16);
        assert_eq!(traces.read(&mut page, &own, 0, 4), Ok(()));
    }
}
