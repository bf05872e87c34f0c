//! Accesses to global memory as the race detector sees them: of a warp's lanes, of copies, and of strong operations with
//! what they release and acquire. The rules are those of [`crate::memory::Traces`].

use std::sync::MutexGuard;

use super::state::{At, Block, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{Conflict, Epoch, GlobalMemory, IN_FLIGHT, Page, Strength, Traces, windows};
use crate::program::{Address, MemoryOrder};
use crate::syntax::Space;

/// What an access does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Read,
    Write,
}

/// Goes from page to page, so that neighbouring accesses of an instruction lock their page once.
pub(super) struct Cursor<'l> {
    traces: &'l Traces,
    memory: &'l GlobalMemory,
    /// First address, bytes and number of the latest buffer.
    region: (u64, u64, usize),
    held: Option<(usize, u64, MutexGuard<'l, Page>)>,
}

impl<'l> Cursor<'l> {
    /// The page of an address and the address's offset in its buffer; `None` if it is in none.
    fn page(&mut self, address: u64, bytes: u32) -> Option<(&mut Page, u64)> {
        let (base, size, _) = self.region;
        if !(address >= base && (address - base).saturating_add(bytes.into()) <= size) {
            let (index, _) = self.memory.place(address, bytes)?;
            let (base, size) = self.memory.bounds(index);
            self.region = (base, size, index);
        }
        let (base, _, index) = self.region;
        let offset = address - base;
        let number = Traces::page_of(offset);
        if !matches!(&self.held, Some((i, n, _)) if (*i, *n) == (index, number)) {
            // One page at a time: the one before is unlocked first.
            self.held = None;
            self.held = Some((index, number, self.traces.page(index, offset)));
        }
        let (.., page) = self.held.as_mut()?;
        Some((&mut *page, offset))
    }
}

/// A word that a strong operation has locked.
pub(super) struct Word<'l> {
    page: MutexGuard<'l, Page>,
    offset: u64,
}

impl<'l> Block<'l> {
    /// A cursor; `None` where races are not looked for.
    pub(super) fn cursor(&self) -> Option<Cursor<'l>> {
        let (traces, memory) = (self.launched.traces?, self.launched.memory);
        Some(Cursor { traces, memory, region: (1, 0, 0), held: None })
    }

    /// Checks and notes an access of a lane, or of a copy on its behalf.
    pub(super) fn visit(
        &mut self,
        cursor: &mut Cursor<'l>,
        at: At,
        (address, bytes): (u64, u32),
        strength: Strength,
        effect: Effect,
    ) {
        let mut left = (address, bytes);
        while left.1 > 0 {
            let Some((page, offset)) = cursor.page(left.0, left.1) else { return };
            // Boxes of tensor copies may begin at any element, and so lie across two pages.
            let here = (Traces::page_end(offset) - offset).min(left.1.into()) as u32;
            let mut by = self.clocks.visitor(at.warp.into(), at.lane, at.step, strength);
            let result = match effect {
                Effect::Read => self.launched.traces.map(|t| t.read(page, &by, offset, here)),
                Effect::Write => {
                    if strength == Strength::Asynchronous {
                        by.access.clock = IN_FLIGHT;
                    }
                    if !matches!(strength, Strength::Strong(_)) {
                        page.forget(offset);
                    }
                    self.launched.traces.map(|t| t.write(page, &by, offset, here))
                }
            };
            if let Some(Err(conflict)) = result {
                self.conflict(conflict, at, left.0);
            }
            left = (left.0 + u64::from(here), left.1 - here);
        }
    }

    /// Checks and notes a weak access of a warp.
    #[expect(clippy::too_many_arguments, reason = "an access is all of these, and is made in one place")]
    pub(super) fn visit_warp(
        &mut self,
        warp: &Warp,
        space: Space,
        address: &Address,
        bytes: u32,
        mask: u32,
        pc: u32,
        effect: Effect,
    ) {
        if !matches!(space, Space::Global | Space::Generic) {
            return;
        }
        let Some(mut cursor) = self.cursor() else { return };
        for lane in lanes(mask) {
            let address = warp.address(address, lane);
            let (space, address) = if space == Space::Generic { windows::resolve(address) } else { (space, address) };
            if space == Space::Global && address.is_multiple_of(u64::from(bytes)) {
                let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
                self.visit(&mut cursor, at, (address, bytes), Strength::Weak, effect);
            }
        }
    }

    /// Locks the word of a strong operation, so that its value and what is released with it change at once.
    pub(super) fn lock_word(&self, space: Space, address: u64, bytes: u32) -> Option<Word<'l>> {
        if space != Space::Global || !address.is_multiple_of(u64::from(bytes)) {
            return None;
        }
        let (index, offset) = self.launched.memory.place(address, bytes)?;
        Some(Word { page: self.launched.traces?.page(index, offset), offset })
    }

    /// A strong read: it acquires what was released at the word, or leaves that to a fence after it.
    pub(super) fn read_word(&mut self, word: &mut Word<'l>, order: MemoryOrder, at: At, (address, bytes): (u64, u32)) {
        self.acquire_word(word, order, at);
        let (Some(traces), Some(scope)) = (self.launched.traces, order.scope) else { return };
        let by = self.clocks.visitor(at.warp.into(), at.lane, at.step, Strength::Strong(scope));
        if let Err(conflict) = traces.read(&mut word.page, &by, word.offset, bytes) {
            self.conflict(conflict, at, address);
        }
    }

    fn acquire_word(&mut self, word: &Word<'l>, order: MemoryOrder, at: At) {
        let (Some(traces), Some(scope)) = (self.launched.traces, order.scope) else { return };
        let warp = usize::from(at.warp);
        let by = self.clocks.visitor(warp, at.lane, at.step, Strength::Strong(scope)).access;
        match traces.published(&word.page, word.offset, scope, &by) {
            Some(public) if order.acquires => self.clocks.learn(warp, at.lane, &public),
            Some(public) => self.clocks.find(warp, at.lane, &public),
            None => {}
        }
    }

    /// A strong write, which `replaces` what was released at the word unless it is part of an atomic operation.
    pub(super) fn write_word(
        &mut self,
        word: &mut Word<'l>,
        order: MemoryOrder,
        replaces: bool,
        at: At,
        (address, bytes): (u64, u32),
    ) {
        if !replaces {
            self.acquire_word(word, order, at);
        }
        let (Some(traces), Some(scope)) = (self.launched.traces, order.scope) else { return };
        let warp = usize::from(at.warp);
        let by = self.clocks.visitor(warp, at.lane, at.step, Strength::Strong(scope));
        let access = by.access;
        let checked = traces.write(&mut word.page, &by, word.offset, bytes);
        if replaces {
            word.page.forget(word.offset);
        }
        if order.releases {
            let public = self.clocks.public(warp, at.lane);
            traces.publish(&mut word.page, word.offset, scope, &access, public);
        } else if let Some((fence, public)) = self.clocks.fenced_public(warp, at.lane) {
            traces.publish(&mut word.page, word.offset, scope.min(*fence), &access, public.clone());
        }
        if let Err(conflict) = checked {
            self.conflict(conflict, at, address);
        }
    }

    /// The thread of asynchronous writes has waited for their end: what follows it sees them.
    pub(super) fn landed(&mut self, at: At, pieces: &[(u64, u32)]) {
        let Some(mut cursor) = self.cursor() else { return };
        let now = self.clocks.visitor(at.warp.into(), at.lane, at.step, Strength::Asynchronous).access;
        let flight = Epoch { clock: IN_FLIGHT, ..now };
        for &(address, bytes) in pieces {
            let mut left = (address, bytes);
            while left.1 > 0 {
                let Some((page, offset)) = cursor.page(left.0, left.1) else { break };
                let here = (Traces::page_end(offset) - offset).min(left.1.into()) as u32;
                page.landed(&flight, now, offset, here);
                left = (left.0 + u64::from(here), left.1 - here);
            }
        }
    }

    /// Notes a race in global memory.
    #[cold]
    fn conflict(&mut self, conflict: Conflict, at: At, address: u64) {
        let own = self.clocks.visitor(at.warp.into(), at.lane, at.step, Strength::Weak).access;
        let (other, verb) = match conflict {
            Conflict::AfterWrite(other) | Conflict::Unfenced(other) => (other, "written"),
            Conflict::AfterRead(other) => (other, "read"),
        };
        let (kind, detail) = if matches!(conflict, Conflict::Unfenced(_)) {
            (FindingKind::UnfencedProxy, "a copy reads global memory that was written with no proxy fence between".to_owned())
        } else if other.clock == IN_FLIGHT {
            let detail = "an asynchronous copy writes it, and its thread has not waited until the writes are over";
            (FindingKind::GlobalRace, detail.to_owned())
        } else if other.block != own.block {
            let detail = format!("{verb} by another block; no release and acquire of a common scope order the two accesses");
            (FindingKind::GlobalRace, detail)
        } else if other.warp != own.warp {
            (FindingKind::GlobalRace, format!("{verb} by another warp with no barrier between"))
        } else {
            (FindingKind::GlobalRace, format!("{verb} by another lane of the same warp, with no warp barrier between"))
        };
        let party = At { step: other.step, warp: other.warp, lane: other.lane };
        self.record.add_between(kind, at, (other.block, party), Some((Space::Global, address)), || detail);
    }
}
