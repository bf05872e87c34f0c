//! Loads, stores, atomics, and matrices between shared memory and registers.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::global::Effect;
use super::state::{At, Block, FULL, Status, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{Fault, MANY, Region, Trouble, Writer, windows};
use crate::numeric::{bits, float};
use crate::program::{Access, Address, Atomic, MemoryOrder, Op};
use crate::syntax::Space;

impl<'l> Block<'l> {
    /// A region of global memory for an access, which is noted as out of bounds if there is none.
    pub(super) fn region(&mut self, address: u64, bytes: u32, at: At) -> Option<(&'l Region, u64)> {
        self.pace.touch(address);
        if !self.launched.pending.is_empty() {
            self.check_waited(address, bytes, at);
        }
        let (base, size) = self.launched.variables.bounds();
        if (base..windows::BUFFERS).contains(&address) {
            if (address - base).saturating_add(bytes.into()) <= size {
                return Some((self.launched.variables, address - base));
            }
        } else if let Some(found) = self.launched.memory.find(address, bytes) {
            return Some(found);
        }
        self.global_fault(Fault::OutOfBounds, address, bytes, at);
        None
    }

    /// Notes an access to what launches before this one may still be writing, by a thread that has
    /// not waited for them.
    fn check_waited(&mut self, address: u64, bytes: u32, at: At) {
        let waited = self.waited[usize::from(at.warp)];
        let has_waited = if at.lane == MANY { waited != 0 } else { waited >> at.lane & 1 == 1 };
        let meets = |range: &&Range<u64>| address < range.end && range.start < address.saturating_add(bytes.into());
        if !has_waited && let Some(range) = self.launched.pending.iter().find(meets) {
            let detail =
                || format!("{bytes} bytes, {} bytes into what an earlier launch writes", address.saturating_sub(range.start));
            self.record.add(FindingKind::BeforeWait, at, None, Some((Space::Global, address)), detail);
        }
    }

    #[cold]
    pub(super) fn global_fault(&mut self, fault: Fault, address: u64, bytes: u32, at: At) {
        let (kind, detail) = match fault {
            Fault::OutOfBounds => (
                FindingKind::OutOfBounds,
                match self.launched.memory.nearest(address) {
                    Some(d) if d < 0 => format!("{bytes} bytes, {} bytes before the nearest buffer", -d),
                    Some(d) => format!("{bytes} bytes, {d} bytes past the end of the nearest buffer"),
                    None => format!("{bytes} bytes; there are no buffers"),
                },
            ),
            Fault::Misaligned => (FindingKind::Misaligned, format!("{bytes} bytes")),
            Fault::Uninitialised => (FindingKind::Uninitialised, format!("{bytes} bytes")),
        };
        self.record.add(kind, at, None, Some((Space::Global, address)), || detail);
    }

    /// Reads what a lane asks for; all bits set where it cannot.
    #[inline(always)]
    fn fetch(&mut self, warp: &Warp, space: Space, address: u64, bytes: u32, at: At, into: &mut [u32; 8]) {
        match space {
            Space::Shared => {
                let offset = match self.locate(at, address, bytes) {
                    Ok(offset) => offset,
                    Err(trouble) => {
                        *into = [FULL; 8];
                        return self.trouble(trouble, at, address);
                    }
                };
                let by = self.clocks.accessor(warp.index as usize, at.lane, at.step);
                let checked = self.shared.read(&by, offset, bytes);
                self.shared.load(offset, bytes, into);
                if let Err(trouble) = checked {
                    self.trouble(trouble, at, address);
                }
            }
            Space::Global | Space::Const | Space::Generic => {
                if !address.is_multiple_of(u64::from(bytes)) {
                    *into = [FULL; 8];
                    return self.global_fault(Fault::Misaligned, address, bytes, at);
                }
                let Some((region, offset)) = self.region(address, bytes, at) else {
                    *into = [FULL; 8];
                    return;
                };
                if !region.load(offset, bytes, into) {
                    self.global_fault(Fault::Uninitialised, address, bytes, at);
                }
            }
            Space::Param | Space::Local => {
                *into = [FULL; 8];
                let local = space == Space::Local;
                let size = if local { warp.local_bytes } else { self.launched.parameters.len() as u32 };
                let outside = address.saturating_add(bytes.into()) > size.into();
                let kind = if outside {
                    Some(FindingKind::OutOfBounds)
                } else if !address.is_multiple_of(u64::from(bytes)) {
                    Some(FindingKind::Misaligned)
                } else {
                    None
                };
                if let Some(kind) = kind {
                    return self.record.add(kind, at, None, Some((space, address)), || format!("{bytes} bytes of {size}"));
                }
                let first = address as usize + if local { usize::from(at.lane) * warp.local_bytes as usize } else { 0 };
                let range = first..first + bytes as usize;
                if local && !warp.local_initialised[range.clone()].iter().all(|&b| b) {
                    self.record.add(FindingKind::Uninitialised, at, None, Some((space, address)), String::new);
                }
                let source = if local { &warp.local[range] } else { &self.launched.parameters[range] };
                for (word, chunk) in into.iter_mut().zip(source.chunks(4)) {
                    let mut four = [0; 4];
                    four[..chunk.len()].copy_from_slice(chunk);
                    *word = u32::from_le_bytes(four);
                }
            }
        }
    }

    pub(super) fn load(&mut self, warp: &mut Warp, a: &Access, mask: u32, pc: u32) {
        let bytes = a.bytes();
        let mut buffer = [0; 8];
        let mut seen = vec![];
        let strong = a.order.scope.is_some();
        if !strong {
            self.visit_warp(warp, a.space, &a.address, bytes, mask, pc, Effect::Read);
        }
        for lane in lanes(mask) {
            let address = warp.address(&a.address, lane);
            let (space, address) = if a.space == Space::Generic { windows::resolve(address) } else { (a.space, address) };
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let word = if strong { self.lock_word(space, address, bytes) } else { None };
            self.fetch(warp, space, address, bytes, at, &mut buffer);
            if let Some(mut word) = word {
                self.read_word(&mut word, a.order, at, (address, bytes));
            }
            if strong && space == Space::Global {
                seen.push((address, buffer[0]));
            }
            match (a.element, a.wide) {
                (4, false) => {
                    for (row, value) in a.rows.iter().zip(buffer) {
                        if *row != u32::MAX {
                            warp.words[*row as usize][lane] = value;
                        }
                    }
                }
                (8, _) => {
                    for (n, row) in a.rows.iter().enumerate() {
                        if *row != u32::MAX {
                            warp.doubles[*row as usize][lane] = u64::from(buffer[2 * n]) | u64::from(buffer[2 * n + 1]) << 32;
                        }
                    }
                }
                _ => {
                    for (n, row) in a.rows.iter().enumerate().filter(|(_, row)| **row != u32::MAX) {
                        let per_word = 4 / usize::from(a.element);
                        let width = 8 * u32::from(a.element);
                        let raw = buffer[n / per_word] >> (width * (n % per_word) as u32) & FULL >> (32 - width);
                        let extended = if a.signed { ((raw << (32 - width)) as i32 >> (32 - width)) as u32 } else { raw };
                        if a.wide {
                            let value = if a.signed { extended as i32 as i64 as u64 } else { extended.into() };
                            warp.doubles[*row as usize][lane] = value;
                        } else {
                            warp.words[*row as usize][lane] = extended;
                        }
                    }
                }
            }
        }
        if strong {
            // What other blocks wrote before what was read is seen after it.
            fence(Ordering::SeqCst);
        }
        self.count_access(warp, a.space, &a.address, bytes, mask, pc);
        self.polled(warp, pc, seen);
    }

    /// Notes the values that a strong access gave; the warp waits if they are those of the last
    /// time.
    fn polled(&mut self, warp: &mut Warp, pc: u32, seen: Vec<(u64, u32)>) {
        if seen.is_empty() {
            return;
        }
        let poll = Some((pc, seen));
        if warp.poll == poll {
            self.status[warp.index as usize] = Status::AtGlobal { step: pc };
        }
        warp.poll = poll;
    }

    /// Whether a value that a warp waits at is another one now.
    pub(super) fn poll_changed(&self, warp: &Warp) -> bool {
        let Some((_, seen)) = &warp.poll else { return true };
        seen.iter().any(|&(address, value)| {
            let mut now = [0];
            match self.launched.memory.find(address, 4) {
                Some((region, offset)) => {
                    region.load(offset, 4, &mut now);
                    now[0] != value
                }
                None => false,
            }
        })
    }

    pub(super) fn store(&mut self, warp: &mut Warp, a: &Access, mask: u32, pc: u32) {
        let bytes = a.bytes();
        warp.poll = None;
        self.pace.events += u64::from(a.space != Space::Local);
        let strong = a.order.scope.is_some();
        if strong {
            // What came before is seen by those who see what it writes.
            fence(Ordering::SeqCst);
        }
        for lane in lanes(mask) {
            let mut buffer = [0u32; 8];
            match (a.element, a.wide) {
                (4, false) => {
                    for (value, row) in buffer.iter_mut().zip(&a.rows) {
                        *value = warp.words[*row as usize][lane];
                    }
                }
                (8, _) => {
                    for (n, row) in a.rows.iter().enumerate() {
                        let value = warp.doubles[*row as usize][lane];
                        (buffer[2 * n], buffer[2 * n + 1]) = (value as u32, (value >> 32) as u32);
                    }
                }
                _ => {
                    for (n, row) in a.rows.iter().enumerate() {
                        let per_word = 4 / usize::from(a.element);
                        let width = 8 * u32::from(a.element);
                        let value =
                            if a.wide { warp.doubles[*row as usize][lane] as u32 } else { warp.words[*row as usize][lane] };
                        buffer[n / per_word] |= (value & FULL >> (32 - width)) << (width * (n % per_word) as u32);
                    }
                }
            }
            let address = warp.address(&a.address, lane);
            let (space, address) = if a.space == Space::Generic { windows::resolve(address) } else { (a.space, address) };
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let word = if strong { self.lock_word(space, address, bytes) } else { None };
            self.put(warp, space, address, bytes, at, &buffer);
            if let Some(mut word) = word {
                self.write_word(&mut word, a.order, true, at, (address, bytes));
            }
        }
        if !strong {
            self.visit_warp(warp, a.space, &a.address, bytes, mask, pc, Effect::Write);
        } else if a.order.releases {
            self.clocks.tick(warp.index as usize);
        }
        self.count_access(warp, a.space, &a.address, bytes, mask, pc);
    }

    fn put(&mut self, warp: &mut Warp, space: Space, address: u64, bytes: u32, at: At, from: &[u32; 8]) {
        match space {
            Space::Shared => match self.locate(at, address, bytes) {
                Ok(offset) => self.put_shared(offset, bytes, at, from),
                Err(trouble) => self.trouble(trouble, at, address),
            },
            Space::Global | Space::Generic => {
                if !address.is_multiple_of(u64::from(bytes)) {
                    return self.global_fault(Fault::Misaligned, address, bytes, at);
                }
                if let Some((region, offset)) = self.region(address, bytes, at) {
                    region.store(offset, bytes, from);
                }
            }
            Space::Local => {
                let size = warp.local_bytes;
                let outside = address.saturating_add(bytes.into()) > size.into();
                if outside || !address.is_multiple_of(u64::from(bytes)) {
                    let kind = if outside { FindingKind::OutOfBounds } else { FindingKind::Misaligned };
                    return self.record.add(kind, at, None, Some((space, address)), || format!("{bytes} bytes of {size}"));
                }
                let first = address as usize + usize::from(at.lane) * size as usize;
                for (n, byte) in from.iter().flat_map(|w| w.to_le_bytes()).take(bytes as usize).enumerate() {
                    warp.local[first + n] = byte;
                    warp.local_initialised[first + n] = true;
                }
            }
            Space::Param | Space::Const => {
                self.record.add(FindingKind::OutOfBounds, at, None, Some((space, address)), || "it can only be read".to_owned());
            }
        }
    }

    /// Checks and does a write of a lane to shared memory.
    fn put_shared(&mut self, offset: u32, bytes: u32, at: At, from: &[u32]) {
        let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
        let checked = self.shared.may_write(&by, offset, bytes);
        let writer = Writer { clock: by.clock, step: at.step, agent: at.warp, warp: at.warp, lane: at.lane, asynchronous: false };
        self.shared.wrote(writer, offset, bytes);
        self.shared.store(offset, bytes, from);
        if let Err(trouble) = checked {
            self.trouble(trouble, at, self.shared.address(offset));
        }
    }

    /// Counts the wavefronts or sectors of an access.
    fn count_access(&mut self, warp: &Warp, space: Space, address: &Address, bytes: u32, mask: u32, pc: u32) {
        let Some(counters) = self.counters.get_mut(pc as usize) else { return };
        let addresses = lanes(mask).map(|l| (l as u8, warp.address(address, l)));
        match space {
            Space::Shared => counters.shared(&addresses.map(|(l, a)| (l, a as u32)).collect::<Vec<_>>(), bytes),
            Space::Global => counters.global(&addresses.collect::<Vec<_>>(), bytes),
            Space::Generic => {
                let (shared, global): (Vec<_>, Vec<_>) = addresses.partition(|(_, a)| *a >= windows::SHARED);
                if !shared.is_empty() {
                    counters.shared(&shared.iter().map(|&(l, a)| (l, (a - windows::SHARED) as u32)).collect::<Vec<_>>(), bytes);
                }
                let global: Vec<_> = global.into_iter().filter(|(_, a)| *a < windows::PARAMETERS).collect();
                if !global.is_empty() {
                    counters.global(&global, bytes);
                }
            }
            Space::Local | Space::Param | Space::Const => {}
        }
    }

    pub(super) fn atomic(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) {
        let Op::Atomic { op, space, wide, order, d, ref address, a, b } = *op else { return };
        let bytes = if wide { 8 } else { 4 };
        fence(Ordering::SeqCst);
        let mut seen = vec![];
        let mut changes = false;
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let (space, place) = if space == Space::Generic { windows::resolve(place) } else { (space, place) };
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let operands = if wide {
                [warp.doubles[a as usize][lane], warp.doubles[b as usize][lane]]
            } else {
                [warp.words[a as usize][lane].into(), warp.words[b as usize][lane].into()]
            };
            let change = |x| apply(op, wide, x, operands);
            let before = match space {
                Space::Shared => self.atomic_shared(at, place, wide, change),
                Space::Global => {
                    let before = self.atomic_global(at, place, wide, order, change);
                    if let Some(before) = before {
                        changes |= change(before) != before;
                        seen.push((place, before as u32));
                    }
                    before
                }
                _ => {
                    let detail = || "atomic on this memory".to_owned();
                    self.record.add(FindingKind::IllegalOperand, at, None, Some((space, place)), detail);
                    None
                }
            };
            let Some(before) = before else { continue };
            match d {
                Some(d) if wide => warp.doubles[d as usize][lane] = before,
                Some(d) => warp.words[d as usize][lane] = before as u32,
                None => {}
            }
        }
        fence(Ordering::SeqCst);
        if order.releases {
            self.clocks.tick(warp.index as usize);
        }
        self.count_access(warp, space, address, bytes, mask, pc);
        if changes {
            self.pace.events += 1;
            warp.poll = None;
        } else if d.is_some() {
            // What gives nothing back waits for nothing: a sum may take in a small term unchanged.
            self.polled(warp, pc, seen);
        }
    }

    pub(super) fn add_vector(&mut self, warp: &Warp, order: MemoryOrder, address: &Address, rows: &[u32], mask: u32, pc: u32) {
        let bytes = 4 * rows.len() as u32;
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            if !place.is_multiple_of(bytes.into()) {
                self.global_fault(Fault::Misaligned, place, bytes, at);
                continue;
            }
            for (n, &row) in rows.iter().enumerate() {
                let addend = [warp.words[row as usize][lane].into(), 0];
                self.atomic_global(at, place + 4 * n as u64, false, order, |x| apply(Atomic::FloatAdd, false, x, addend));
            }
        }
        self.pace.events += 1;
        if order.releases {
            self.clocks.tick(warp.index as usize);
        }
        self.count_access(warp, Space::Global, address, bytes, mask, pc);
    }

    /// Changes a value in shared memory; what it was before. Atomic operations do not race with
    /// each other; what they race with is not looked for.
    fn atomic_shared(&mut self, at: At, place: u64, wide: bool, change: impl Fn(u64) -> u64) -> Option<u64> {
        let bytes = if wide { 8 } else { 4 };
        let offset = match self.locate(at, place, bytes) {
            Ok(offset) => offset,
            Err(trouble) => {
                self.trouble(trouble, at, place);
                return None;
            }
        };
        let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
        let writer = Writer { clock: by.clock, step: at.step, agent: at.warp, warp: at.warp, lane: at.lane, asynchronous: false };
        let mut buffer = [0; 8];
        let checked = self.shared.read(&by, offset, bytes);
        self.shared.load(offset, bytes, &mut buffer);
        if let Err(trouble @ (Trouble::Uninitialised | Trouble::InFlight(_))) = checked {
            self.trouble(trouble, at, place);
        }
        let before = u64::from(buffer[0]) | if wide { u64::from(buffer[1]) << 32 } else { 0 };
        let after = change(before);
        self.pace.events += u64::from(after != before);
        self.shared.store(offset, bytes, &[after as u32, (after >> 32) as u32]);
        self.shared.wrote(writer, offset, bytes);
        Some(before)
    }

    /// Changes a value in global memory; what it was before.
    fn atomic_global(&mut self, at: At, place: u64, wide: bool, order: MemoryOrder, change: impl Fn(u64) -> u64) -> Option<u64> {
        let bytes = if wide { 8 } else { 4 };
        if !place.is_multiple_of(bytes.into()) {
            self.global_fault(Fault::Misaligned, place, bytes, at);
            return None;
        }
        let (region, offset) = self.region(place, bytes, at)?;
        let mut word = self.lock_word(Space::Global, place, bytes);
        if let Some(word) = &mut word {
            self.write_word(word, order, false, at, (place, bytes));
        }
        let (before, initialised) = if wide {
            // Two words change at once only under the lock: without a look for races 64-bit atomics
            // are exact only where blocks run in turn.
            let mut buffer = [0; 2];
            let initialised = region.load(offset, 8, &mut buffer);
            let before = u64::from(buffer[0]) | u64::from(buffer[1]) << 32;
            let after = change(before);
            region.store(offset, 8, &[after as u32, (after >> 32) as u32]);
            (before, initialised)
        } else {
            let (before, initialised) = region.update(offset, |x| change(x.into()) as u32);
            (before.into(), initialised)
        };
        if !initialised {
            self.global_fault(Fault::Uninitialised, place, bytes, at);
        }
        Some(before)
    }

    /// `ldmatrix`: lane l gives the address of row l % 8 of matrix l / 8; register r of lane l
    /// holds the elements 2 (l % 4) and the next one of row l / 4 of matrix r, or of its transpose
    /// (PTX ISA, "ldmatrix").
    pub(super) fn load_matrix(&mut self, warp: &mut Warp, d: &[u32], address: &Address, transposed: bool, mask: u32, pc: u32) {
        self.whole(warp, mask, pc);
        let mut rows = [[0u16; 8]; 32];
        for (lane, row) in rows.iter_mut().enumerate().take(8 * d.len()) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let offset = match self.shared.locate(place, 16) {
                Ok(offset) => offset,
                Err(trouble) => {
                    *row = [0xffff; 8];
                    self.trouble(trouble, at, place);
                    continue;
                }
            };
            let by = self.clocks.accessor(warp.index as usize, at.lane, pc);
            let checked = self.shared.read(&by, offset, 16);
            for (e, pair) in row.iter_mut().zip(self.shared.bytes(offset, 16).chunks_exact(2)) {
                *e = u16::from_le_bytes([pair[0], pair[1]]);
            }
            if let Err(trouble) = checked {
                self.trouble(trouble, at, place);
            }
        }
        for (r, &d) in d.iter().enumerate() {
            for lane in lanes(mask) {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                let element = |i: usize, j: usize| if transposed { rows[8 * r + j][i] } else { rows[8 * r + i][j] };
                warp.words[d as usize][lane] = u32::from(element(row, column)) | u32::from(element(row, column + 1)) << 16;
            }
        }
        self.count_matrix(warp, address, d.len(), pc);
    }

    /// `stmatrix`: the converse.
    pub(super) fn store_matrix(&mut self, warp: &mut Warp, a: &[u32], address: &Address, transposed: bool, mask: u32, pc: u32) {
        self.whole(warp, mask, pc);
        self.pace.events += 1;
        let mut rows = [[0u16; 8]; 32];
        for (r, &a) in a.iter().enumerate() {
            for (lane, value) in warp.words[a as usize].iter().enumerate() {
                for (e, half) in [*value as u16, (*value >> 16) as u16].into_iter().enumerate() {
                    let (i, j) = (lane / 4, 2 * (lane % 4) + e);
                    let (i, j) = if transposed { (j, i) } else { (i, j) };
                    rows[8 * r + i][j] = half;
                }
            }
        }
        for (lane, row) in rows.iter().enumerate().take(8 * a.len()) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            match self.shared.locate(place, 16) {
                Ok(offset) => {
                    let words: [u32; 4] = std::array::from_fn(|n| u32::from(row[2 * n]) | u32::from(row[2 * n + 1]) << 16);
                    // The elements of a row come from four lanes.
                    self.put_shared(offset, 16, At { lane: MANY, ..at }, &words);
                }
                Err(trouble) => self.trouble(trouble, at, place),
            }
        }
        self.count_matrix(warp, address, a.len(), pc);
    }

    /// Each matrix is one access of eight rows.
    fn count_matrix(&mut self, warp: &Warp, address: &Address, matrices: usize, pc: u32) {
        let Some(counters) = self.counters.get_mut(pc as usize) else { return };
        let addresses: Vec<_> = (0..8 * matrices).map(|l| (l as u8, warp.address(address, l) as u32)).collect();
        counters.shared(&addresses, 16);
    }

    /// All lanes must take part in an instruction.
    pub(super) fn whole(&mut self, warp: &Warp, mask: u32, pc: u32) {
        if mask != FULL {
            let at = At { step: pc, warp: warp.index as u16, lane: MANY };
            self.record.add(FindingKind::BarrierDivergence, at, None, None, || {
                format!("the whole warp must execute it; the lanes {mask:#010x} do")
            });
        }
    }
}

/// What an atomic operation makes of a value.
fn apply(op: Atomic, wide: bool, x: u64, [a, b]: [u64; 2]) -> u64 {
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as u32 as i32) };
    let result = match op {
        Atomic::Add => x.wrapping_add(a),
        Atomic::FloatAdd => bits(float(x as u32) + float(a as u32)).into(),
        Atomic::MinUnsigned => x.min(a),
        Atomic::MaxUnsigned => x.max(a),
        Atomic::MinSigned => signed(x).min(signed(a)) as u64,
        Atomic::MaxSigned => signed(x).max(signed(a)) as u64,
        Atomic::And => x & a,
        Atomic::Or => x | a,
        Atomic::Xor => x ^ a,
        Atomic::Exchange => a,
        Atomic::CompareSwap => {
            if x == a {
                b
            } else {
                x
            }
        }
        Atomic::Increment => {
            if x >= a {
                0
            } else {
                x + 1
            }
        }
        Atomic::Decrement => {
            if x == 0 || x > a {
                a
            } else {
                x - 1
            }
        }
    };
    if wide { result } else { result & u64::from(u32::MAX) }
}
