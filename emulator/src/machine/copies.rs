//! Asynchronous copies: `cp.async` of a thread's own, and those of the asynchronous proxy (bulk and
//! tensor copies).
//!
//! A copy in flight marks the granules that it is going to write (or read, when it goes to global
//! memory) until its completion has been observed. When its bytes move is a matter of [`Landing`].

use super::global::Effect;
use super::state::{At, Block, Bulk, Pending, Piece, Unlanded, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{Fault, Scope, Strength, Writer, windows};
use crate::options::Landing;
use crate::program::{Address, Op, TensorCopy};
use crate::syntax::Space;
use crate::tensor_map::{Chunk, TensorMap};

impl Block<'_> {
    #[expect(clippy::too_many_arguments, reason = "the operands of one instruction")]
    pub(super) fn copy_async(
        &mut self,
        warp: &Warp,
        to: &Address,
        from: &Address,
        bytes: u32,
        present: Option<u32>,
        mask: u32,
        pc: u32,
    ) {
        let w = warp.index as usize;
        if self.copies[w].committed.is_empty() {
            self.copies[w].committed = vec![0; 32];
        }
        let flight = self.take_off(At { step: pc, warp: w as u16, lane: mask.trailing_zeros() as u8 });
        self.pace.events += 1;
        let mut by_group: Vec<(u32, Vec<Piece>)> = vec![];
        let mut counted = ([(0, 0); 32], 0, [(0, 0); 32], 0);
        let mut cursor = self.cursor();
        for lane in lanes(mask) {
            let (target, source) = (warp.address(to, lane), warp.address(from, lane));
            let present = present.map_or(bytes, |row| warp.words[row as usize][lane]);
            let at = At { step: pc, warp: w as u16, lane: lane as u8 };
            let offset = match self.shared.locate(target, bytes) {
                Ok(offset) => offset,
                Err(trouble) => {
                    self.trouble(trouble, at, target);
                    continue;
                }
            };
            let mut present = if present > bytes {
                self.record
                    .add(FindingKind::IllegalOperand, at, None, None, || format!("{present} bytes of {bytes} are to be read"));
                bytes
            } else {
                present
            };
            if present > 0 {
                if source % u64::from(bytes) != 0 {
                    self.global_fault(Fault::Misaligned, source, bytes, at);
                    present = 0;
                } else if self.region(source, present, at).is_none() {
                    present = 0;
                } else if let Some(cursor) = &mut cursor {
                    self.visit(cursor, at, (source, present), Strength::Weak, Effect::Read);
                }
            }
            let by = self.clocks.accessor(w, at.lane, pc);
            if let Err(trouble) = self.shared.may_write(&by, offset, bytes) {
                self.trouble(trouble, at, target);
            }
            self.shared.begin_copy(flight, offset, bytes);
            counted.0[counted.1] = (lane as u8, target as u32);
            counted.1 += 1;
            if present > 0 {
                counted.2[counted.3] = (lane as u8, source);
                counted.3 += 1;
            }
            let group = self.copies[w].committed[lane];
            match by_group.last_mut() {
                Some((g, all)) if *g == group => all.push((lane as u8, offset, source, present)),
                _ => by_group.push((group, vec![(lane as u8, offset, source, present)])),
            }
        }
        drop(cursor);
        if let Some(counters) = self.counters.get_mut(pc as usize) {
            counters.shared(&counted.0[..counted.1], bytes);
            if counted.3 > 0 {
                counters.global(&counted.2[..counted.3], bytes);
            }
        }
        for (group, lanes) in by_group {
            let mut pending = Pending { flight, group, bytes, landed: false, lanes };
            if self.launched.options.landing == Landing::Early {
                self.move_in(&mut pending, pc);
            }
            self.copies[w].pending.push(pending);
        }
    }

    /// Moves the bytes of a copy.
    fn move_in(&mut self, pending: &mut Pending, pc: u32) {
        if std::mem::replace(&mut pending.landed, true) {
            return;
        }
        let warp = self.flights[pending.flight as usize - 1].warp;
        for &(lane, offset, source, present) in &pending.lanes {
            let at = At { step: pc, warp, lane };
            let mut buffer = [0u32; 4];
            if let Some((region, from)) = (present > 0).then(|| self.region(source, present, at)).flatten() {
                let mut initialised = true;
                // Part of a copy may end inside a word.
                for (n, word) in buffer.iter_mut().enumerate().take(present.div_ceil(4) as usize) {
                    let left = present - 4 * n as u32;
                    let whole = left >= 4;
                    let mut one = [0];
                    if whole {
                        initialised &= region.load(from + 4 * n as u64, 4, &mut one);
                    } else {
                        for b in 0..left {
                            let mut byte = [0];
                            initialised &= region.load(from + 4 * n as u64 + u64::from(b), 1, &mut byte);
                            one[0] |= byte[0] << (8 * b);
                        }
                    }
                    *word = one[0];
                }
                if !initialised {
                    self.global_fault(Fault::Uninitialised, source, present, at);
                }
            }
            self.shared.store(offset, pending.bytes, &buffer);
        }
    }

    pub(super) fn commit_copies(&mut self, warp: &Warp, mask: u32) {
        let copies = &mut self.copies[warp.index as usize];
        if copies.committed.is_empty() {
            copies.committed = vec![0; 32];
        }
        for lane in lanes(mask) {
            copies.committed[lane] += 1;
        }
    }

    /// What a lane waits for has landed, and it knows.
    pub(super) fn wait_copies(&mut self, warp: &Warp, pending: Option<u32>, mask: u32) {
        let w = warp.index as usize;
        if self.copies[w].pending.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.copies[w].pending);
        for copy in &mut all {
            let due = |lane: u8, committed: &[u32]| {
                mask >> lane & 1 != 0 && pending.is_none_or(|n| copy.group + n < committed[usize::from(lane)])
            };
            if !copy.lanes.iter().any(|l| due(l.0, &self.copies[w].committed)) {
                continue;
            }
            let step = self.flights[copy.flight as usize - 1].step;
            let done: Vec<(u8, u32)> =
                copy.lanes.iter().filter(|l| due(l.0, &self.copies[w].committed)).map(|l| (l.0, l.1)).collect();
            self.move_in(copy, step);
            let clock = self.clocks.now(w);
            for &(lane, offset) in &done {
                let writer = Writer { clock, step, agent: w as u16, warp: w as u16, lane, asynchronous: false };
                self.shared.end_copy(copy.flight, writer, offset, copy.bytes);
            }
            copy.lanes.retain(|l| !done.iter().any(|d| d.0 == l.0));
        }
        all.retain(|c| !c.lanes.is_empty());
        self.copies[w].pending = all;
    }

    // The asynchronous proxy.

    /// The tensor map at a generic address.
    fn tensor_map(&mut self, address: u64, at: At) -> Option<TensorMap> {
        let (space, place) = windows::resolve(address);
        let bytes = match space {
            Space::Param => self.launched.parameters.get(place as usize..place as usize + 128).map(<[u8]>::to_vec),
            Space::Global => self.region(place, 128, at).map(|(region, offset)| {
                let mut words = [0; 32];
                region.load(offset, 128, &mut words);
                words.iter().flat_map(|w| w.to_le_bytes()).collect()
            }),
            _ => None,
        };
        let map = bytes.and_then(|b| TensorMap::decode(&b));
        if map.is_none() {
            self.record
                .add(FindingKind::IllegalOperand, at, None, Some((space, place)), || "there is no tensor map here".to_owned());
        }
        map
    }

    /// The chunks of a tensor copy of one lane, if its operands are legal.
    fn boxed(&mut self, warp: &Warp, copy: &TensorCopy, at: At, adds: bool) -> Option<Vec<Chunk>> {
        let lane = usize::from(at.lane);
        let map = self.tensor_map(warp.address(&copy.map, lane), at)?;
        let shared = warp.address(&copy.shared, lane);
        if adds && map.element_bytes() != 4 {
            let bytes = map.element_bytes();
            self.record.add(FindingKind::IllegalOperand, at, None, Some((Space::Shared, shared)), || {
                format!("a sum of elements of {bytes} bytes, where f32 is known")
            });
            return None;
        }
        if map.rank() != copy.coordinates.len() || !shared.is_multiple_of(128) {
            let (rank, wanted) = (map.rank(), copy.coordinates.len());
            self.record.add(FindingKind::IllegalOperand, at, None, Some((Space::Shared, shared)), || {
                format!("a tensor of {rank} dimensions, {wanted} coordinates; the box must lie at a multiple of 128 bytes")
            });
            return None;
        }
        let coordinates: Vec<i32> = copy.coordinates.iter().map(|&row| warp.words[row as usize][lane] as i32).collect();
        Some(map.chunks(&coordinates, shared as u32))
    }

    pub(super) fn tensor_load(&mut self, warp: &Warp, copy: &TensorCopy, mask: u32, pc: u32) {
        for lane in lanes(mask) {
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let Some(chunks) = self.boxed(warp, copy, at, false) else { continue };
            let barrier = copy.barrier.as_ref().map_or(0, |b| warp.address(b, lane));
            self.begin_bulk_load(chunks, barrier, at);
        }
    }

    fn begin_bulk_load(&mut self, mut chunks: Vec<Chunk>, barrier: u64, at: At) {
        let Some(object) = self.object_of_copy(barrier, at) else { return };
        let flight = self.take_off(at);
        self.pace.events += 1;
        let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
        let mut faults = vec![];
        chunks.retain(|c| match self.shared.locate(c.shared.into(), 16) {
            Ok(offset) => {
                if let Err(trouble) = self.shared.may_write(&by, offset, 16) {
                    faults.push((trouble, c.shared));
                }
                self.shared.begin_copy(flight, offset, 16);
                true
            }
            Err(trouble) => {
                faults.push((trouble, c.shared));
                false
            }
        });
        for (trouble, address) in faults {
            self.trouble(trouble, at, address.into());
        }
        if let Some(counters) = self.counters.get_mut(at.step as usize) {
            counters.bulk_bytes += 16 * chunks.len() as u64;
        }
        self.visit_chunks(&chunks, at, Strength::Asynchronous, Effect::Read);
        self.bulk.push(Bulk { flight, at, chunks, object: Some(object), group: None, adds: false, landed: false });
        if self.launched.options.landing == Landing::Early {
            self.land_bulk(self.bulk.len() - 1);
        }
    }

    pub(super) fn tensor_store(&mut self, warp: &Warp, copy: &TensorCopy, adds: bool, mask: u32, pc: u32) {
        for lane in lanes(mask) {
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            if let Some(chunks) = self.boxed(warp, copy, at, adds) {
                self.begin_bulk_store(chunks, at, adds);
            }
        }
    }

    fn begin_bulk_store(&mut self, mut chunks: Vec<Chunk>, at: At, adds: bool) {
        let flight = self.take_off(at);
        self.pace.events += 1;
        let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
        let fenced = self.clocks.fenced(at.warp.into());
        let mut faults = vec![];
        chunks.retain(|c| match self.shared.locate(c.shared.into(), 16) {
            Ok(offset) => {
                // Only the bytes inside the tensor are used, but all are read.
                if let Err(trouble) = self.shared.may_read_asynchronously(&by, fenced, offset, 16) {
                    faults.push((trouble, c.shared));
                }
                self.shared.begin_read(flight, offset, 16);
                true
            }
            Err(trouble) => {
                faults.push((trouble, c.shared));
                false
            }
        });
        for (trouble, address) in faults {
            self.trouble(trouble, at, address.into());
        }
        if let Some(counters) = self.counters.get_mut(at.step as usize) {
            counters.bulk_bytes += 16 * chunks.len() as u64;
        }
        // Sums are relaxed operations of the scope of the GPU (PTX ISA, "cp.reduce.async.bulk").
        let strength = if adds { Strength::Strong(Scope::Device) } else { Strength::Asynchronous };
        self.visit_chunks(&chunks, at, strength, Effect::Write);
        self.bulk.push(Bulk { flight, at, chunks, object: None, group: None, adds, landed: false });
        if self.launched.options.landing == Landing::Early {
            self.land_bulk(self.bulk.len() - 1);
        }
    }

    /// Checks and notes what a copy of the asynchronous proxy does to global memory.
    fn visit_chunks(&mut self, chunks: &[Chunk], at: At, strength: Strength, effect: Effect) {
        let Some(mut cursor) = self.cursor() else { return };
        for piece in chunks.iter().filter_map(piece) {
            self.visit(&mut cursor, at, piece, strength, effect);
        }
    }

    pub(super) fn bulk_copy(&mut self, warp: &Warp, op: &Op, mask: u32, pc: u32) {
        let Op::BulkCopy { shared, global, bytes, barrier, adds } = op else { return };
        for lane in lanes(mask) {
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let (to, from, size) = (warp.address(shared, lane), warp.address(global, lane), warp.words[*bytes as usize][lane]);
            if size % 16 != 0 || to % 16 != 0 || from % 16 != 0 {
                self.record.add(FindingKind::Misaligned, at, None, Some((Space::Shared, to)), || {
                    format!("{size} bytes between {to:#x} and {from:#x}: multiples of 16 are expected")
                });
                continue;
            }
            if let Err(trouble) = self.shared.inside(to, size) {
                self.trouble(trouble, at, to);
                continue;
            }
            let global = |n: u32| from.wrapping_add(16 * u64::from(n));
            let chunk = |n: u32| Chunk { shared: to as u32 + 16 * n, global: global(n), begin: 0, end: 16 };
            let chunks = (0..size / 16).map(chunk).collect();
            match barrier {
                Some(barrier) => self.begin_bulk_load(chunks, warp.address(barrier, lane), at),
                None => self.begin_bulk_store(chunks, at, *adds),
            }
        }
    }

    pub(super) fn commit_bulk(&mut self, warp: &Warp, mask: u32) {
        for lane in lanes(mask) {
            let mine = |b: &Bulk| usize::from(b.at.lane) == lane && u32::from(b.at.warp) == warp.index && b.object.is_none();
            // Groups without copies are complete at once, so that only the order of those with copies matters.
            let unlanded = self.unlanded.iter().filter(|u| usize::from(u.at.lane) == lane && u32::from(u.at.warp) == warp.index);
            let all = self.bulk.iter().filter(|b| mine(b)).filter_map(|b| b.group);
            let latest = all.chain(unlanded.map(|u| u.group)).max();
            let next = latest.map_or(0, |g| g + 1);
            for bulk in self.bulk.iter_mut().filter(|b| mine(b) && b.group.is_none()) {
                bulk.group = Some(next);
            }
        }
    }

    /// What a lane waits for has been read, and unless it waits for that alone (`read`) has been
    /// written, too.
    pub(super) fn wait_bulk(&mut self, warp: &Warp, pending: u32, read: bool, mask: u32) {
        for lane in lanes(mask) {
            let issued = |at: At| usize::from(at.lane) == lane && u32::from(at.warp) == warp.index;
            let mine = |b: &Bulk| issued(b.at);
            let all = self.bulk.iter().filter(|b| mine(b)).filter_map(|b| b.group);
            let mut groups: Vec<u32> = all.chain(self.unlanded.iter().filter(|u| issued(u.at)).map(|u| u.group)).collect();
            groups.sort_unstable();
            groups.dedup();
            let keep = groups.len().saturating_sub(pending as usize);
            let due = &groups[..keep];
            let mut n = 0;
            while n < self.bulk.len() {
                if mine(&self.bulk[n]) && self.bulk[n].group.is_some_and(|g| due.contains(&g)) {
                    self.write_back(n);
                    let bulk = self.bulk.remove(n);
                    let by = self.clocks.accessor(warp.index as usize, lane as u8, bulk.at.step);
                    for chunk in &bulk.chunks {
                        let offset = self.shared.offset(chunk.shared);
                        self.shared.end_read(&by, offset, 16);
                    }
                    if self.launched.traces.is_some() && !bulk.adds {
                        let pieces = bulk.chunks.iter().filter_map(piece).collect();
                        self.unlanded.push(Unlanded { at: bulk.at, group: bulk.group.unwrap_or(0), pieces });
                    }
                } else {
                    n += 1;
                }
            }
            if !read {
                let over = |u: &mut Unlanded| issued(u.at) && due.contains(&u.group);
                let landed: Vec<Unlanded> = self.unlanded.extract_if(.., over).collect();
                landed.iter().for_each(|u| self.landed(u.at, &u.pieces));
            }
        }
    }

    /// Moves the bytes of a copy to global memory.
    fn write_back(&mut self, n: usize) {
        if std::mem::replace(&mut self.bulk[n].landed, true) {
            return;
        }
        let Bulk { at, adds, .. } = self.bulk[n];
        let chunks = self.bulk[n].chunks.clone();
        for c in chunks.iter().filter(|c| c.begin < c.end) {
            let from = self.shared.offset(c.shared);
            let bytes = self.shared.bytes(from, 16).to_vec();
            let (first, count) = (c.global.wrapping_add(c.begin.into()), u32::from(c.end - c.begin));
            let Some((region, offset)) = self.region(first, count, at) else { continue };
            if adds {
                let mut initialised = true;
                let inside = &bytes[c.begin.into()..c.end.into()];
                for (n, addend) in inside.as_chunks::<4>().0.iter().enumerate() {
                    let add = |sum| (f32::from_bits(sum) + f32::from_le_bytes(*addend)).to_bits();
                    initialised &= region.update(offset + 4 * n as u64, add).1;
                }
                if !initialised {
                    self.global_fault(Fault::Uninitialised, first, count, at);
                }
                continue;
            }
            for (n, byte) in bytes[c.begin.into()..c.end.into()].iter().enumerate() {
                region.store(offset + n as u64, 1, &[u32::from(*byte)]);
            }
        }
    }

    /// Lands a copy: its bytes move; if it signals an mbarrier, that is told and the copy is done
    /// with.
    fn land_bulk(&mut self, n: usize) {
        let Some(object) = self.bulk[n].object else { return self.write_back(n) };
        let bulk = self.bulk.remove(n);
        let (agent, clock) = self.objects[object].writer();
        let Bulk { at, flight, .. } = bulk;
        for c in &bulk.chunks {
            let mut buffer = [0u32; 4];
            if c.begin < c.end {
                let (first, count) = (c.global.wrapping_add(c.begin.into()), u32::from(c.end - c.begin));
                if let Some((region, offset)) = self.region(first, count, at) {
                    let mut initialised = true;
                    if count == 16 {
                        initialised = region.load(offset, 16, &mut buffer);
                    } else {
                        for b in c.begin..c.end {
                            let mut byte = [0];
                            initialised &= region.load(offset + u64::from(b - c.begin), 1, &mut byte);
                            buffer[usize::from(b / 4)] |= byte[0] << (8 * (b % 4));
                        }
                    }
                    if !initialised {
                        self.global_fault(Fault::Uninitialised, first, count, at);
                    }
                }
            }
            let offset = self.shared.offset(c.shared);
            self.shared.store(offset, 16, &buffer);
            let writer = Writer { clock, step: at.step, agent, warp: at.warp, lane: at.lane, asynchronous: true };
            self.shared.end_copy(flight, writer, offset, 16);
        }
        self.land_transactions(object, 16 * bulk.chunks.len() as u32);
    }

    /// Lands one copy of those that signal an mbarrier, when nobody can go on without; whether
    /// there was one.
    pub(super) fn land_one_bulk(&mut self) -> bool {
        let waiting: Vec<usize> = (0..self.bulk.len()).filter(|&n| self.bulk[n].object.is_some()).collect();
        if waiting.is_empty() {
            return false;
        }
        let n = match self.launched.options.landing {
            Landing::Random => waiting[self.random.below(waiting.len())],
            // The latest first: copies land in no particular order.
            Landing::Late => waiting[waiting.len() - 1],
            Landing::Early => waiting[0],
        };
        self.land_bulk(n);
        true
    }

    /// Lands some copies, some of the time.
    pub(super) fn land_at_random(&mut self) {
        if !self.bulk.is_empty() && self.random.next().is_multiple_of(4) {
            let n = self.random.below(self.bulk.len());
            self.land_bulk(n);
        }
        let w = self.random.below(self.copies.len());
        if !self.copies[w].pending.is_empty() && self.random.next().is_multiple_of(2) {
            let n = self.random.below(self.copies[w].pending.len());
            let mut pending = self.copies[w].pending.swap_remove(n);
            let step = self.flights[pending.flight as usize - 1].step;
            self.move_in(&mut pending, step);
            self.copies[w].pending.push(pending);
        }
    }
}

/// Address and bytes of what a chunk touches in global memory.
fn piece(chunk: &Chunk) -> Option<(u64, u32)> {
    (chunk.begin < chunk.end).then(|| (chunk.global.wrapping_add(chunk.begin.into()), u32::from(chunk.end - chunk.begin)))
}
