//! Barriers of warps, named barriers of the block, and mbarriers (PTX ISA, "barrier", "mbarrier").

use super::state::{At, Block, FULL, Next, Object, Release, Status, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{Accessor, MANY, Writer};
use crate::program::{Address, Op};
use crate::syntax::Space;

impl Block<'_> {
    pub(super) fn warp_barrier(&mut self, warp: &Warp, members: u32, mask: u32, pc: u32) {
        self.check_members(warp, members, mask, pc);
        if mask == warp.live {
            self.clocks.meet(warp.index as usize);
        }
    }

    pub(super) fn barrier(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Next {
        let Op::Barrier { id, threads, wait, aligned, votes } = *op else { unreachable!("a barrier") };
        let w = warp.index as usize;
        let at = At { step: pc, warp: w as u16, lane: MANY };
        self.check_aligned(warp, aligned, mask, at);
        let id = self.uniform(warp, id, mask, pc, "the number of the barrier");
        let threads = threads.map(|row| self.uniform(warp, row, mask, pc, "the number of threads"));
        if id >= 16 || threads.is_some_and(|n| n == 0 || n % 32 != 0) {
            self.record.add(FindingKind::IllegalOperand, at, None, None, || format!("barrier {id} of {threads:?} threads"));
            return Next::Continue;
        }
        let number = 16 * self.rank(warp.index) as usize + id as usize;
        let own = votes.map(|votes| {
            let held = (warp.predicates[votes.p as usize] ^ if votes.negate { FULL } else { 0 }) & mask;
            if votes.all { held == mask } else { held != 0 }
        });
        let Self { barriers, clocks, .. } = self;
        let barrier = &mut barriers[number];
        if barrier.first.is_some() && barrier.votes.is_some() != own.is_some() {
            self.record.add(FindingKind::BarrierDivergence, at, barrier.first, None, || {
                format!("barrier {id} takes votes from some of its threads and not from others")
            });
        }
        barrier.votes = match (barrier.votes, own, votes) {
            (Some(others), Some(own), Some(votes)) => Some(if votes.all { others && own } else { others || own }),
            (others, own, _) => own.or(others),
        };
        match barrier.first {
            None => {
                barrier.expected = threads;
                barrier.first = Some(at);
            }
            Some(first) if barrier.expected != threads => {
                let (mine, theirs) = (threads, barrier.expected);
                self.record.add(FindingKind::BarrierDivergence, at, Some(first), None, || {
                    let say = |n: Option<u32>| n.map_or_else(|| "all".to_owned(), |n| n.to_string());
                    format!("barrier {id} is one of {} threads here and of {} there", say(mine), say(theirs))
                });
            }
            Some(_) => {}
        }
        self.pace.events += 1;
        // A warp counts as a whole, as many threads as its size.
        barrier.arrived += 32;
        if mask == warp.live {
            clocks.meet(w);
        }
        clocks.release(w, &mut barrier.gathered);
        if wait {
            barrier.waiting.push((w, votes.map(|votes| votes.d)));
            self.status[w] = Status::AtBarrier { id, step: pc };
        }
        self.complete_barrier(number, Some(warp));
        if wait { Next::Yield } else { Next::Continue }
    }

    /// Lets those who wait go on if all have arrived.
    /// The warp that executes is not among the block's.
    fn complete_barrier(&mut self, number: usize, mut executes: Option<&mut Warp>) {
        let block = &self.status[self.warps_of(number as u32 / 16)];
        let present = 32 * block.iter().filter(|s| **s != Status::Exited).count() as u32;
        let barrier = &mut self.barriers[number];
        if barrier.first.is_none() || barrier.arrived < barrier.expected.unwrap_or(present) {
            return;
        }
        let done = std::mem::take(barrier);
        for (w, result) in done.waiting {
            if let (Some(d), Some(votes)) = (result, done.votes) {
                let warp = match &mut executes {
                    Some(warp) if warp.index as usize == w => &mut **warp,
                    _ => &mut self.warps[w],
                };
                warp.set_predicate(warp.live, d, if votes { FULL } else { 0 });
            }
            self.clocks.acquire(w, &done.gathered);
            self.status[w] = Status::Ready;
        }
    }

    /// Barriers of all threads no longer wait for a warp that ended.
    pub(super) fn warp_exited(&mut self, warp: u32) {
        let first = 16 * self.rank(warp) as usize;
        for number in first..first + 16 {
            if self.barriers[number].expected.is_none() {
                self.complete_barrier(number, None);
            }
        }
        self.complete_cluster_barrier();
    }

    // mbarriers.

    /// The mbarrier at an address, and its place in shared memory; a finding if there is none.
    fn object(&mut self, address: u64, at: At) -> Option<usize> {
        match self.shared.locate(address, 8) {
            Err(trouble) => {
                self.trouble(trouble, at, address);
                None
            }
            Ok(_) => match self.objects.iter().position(|o| u64::from(o.address) == address) {
                Some(index) => {
                    // Whoever uses it must have seen its initialisation.
                    let offset = self.shared.offset(address as u32);
                    let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
                    if let Err(trouble) = self.shared.peek(&by, offset, 8) {
                        self.trouble(trouble, at, address);
                    }
                    Some(index)
                }
                None => {
                    self.misuse(at, address, || "there is no initialised mbarrier at this address".to_owned());
                    None
                }
            },
        }
    }

    pub(super) fn misuse(&mut self, at: At, address: u64, detail: impl FnOnce() -> String) {
        self.record.add(FindingKind::PhaseMisuse, at, None, Some((Space::Shared, address)), detail);
    }

    pub(super) fn object_init(&mut self, warp: &Warp, address: &Address, count: u32, mask: u32, pc: u32) {
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let expected = i64::from(warp.words[count as usize][lane]);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let offset = match self.shared.locate(place, 8) {
                Ok(offset) => offset,
                Err(trouble) => {
                    self.trouble(trouble, at, place);
                    continue;
                }
            };
            if expected == 0 || expected >= 1 << 20 {
                self.misuse(at, place, || format!("a count of {expected} arrivals"));
            }
            let by: Accessor<'_> = self.clocks.accessor(warp.index as usize, at.lane, pc);
            let writer = Writer { clock: by.clock, step: pc, agent: at.warp, warp: at.warp, lane: at.lane, asynchronous: false };
            let checked = self.shared.may_write(&by, offset, 8);
            self.shared.wrote(writer, offset, 8);
            if let Err(trouble) = checked {
                self.trouble(trouble, at, place);
            }
            let next_agent = (self.status.len() + self.objects.len()) as u16;
            match self.objects.iter_mut().find(|o| u64::from(o.address) == place) {
                Some(object) => {
                    let busy = object.transactions != 0;
                    (object.expected, object.pending, object.transactions) = (expected, expected, 0);
                    // Phases go on counting so that its copies' clocks never repeat.
                    object.phase += object.phase & 1;
                    if busy {
                        self.misuse(at, place, || "it is initialised again while copies to it are in flight".to_owned());
                    }
                }
                None => self.objects.push(Object {
                    address: place as u32,
                    expected,
                    pending: expected,
                    transactions: 0,
                    phase: 0,
                    agent: next_agent,
                    gathered: Release::default(),
                    published: Release::default(),
                }),
            }
        }
    }

    pub(super) fn object_invalidate(&mut self, warp: &Warp, address: &Address, mask: u32, pc: u32) {
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            if let Some(index) = self.object(place, at) {
                // An agent's number stays taken: the object is only moved out of reach.
                self.objects[index].address = u32::MAX;
            }
        }
    }

    pub(super) fn object_arrive(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) {
        let (address, count, transactions, arrives, drops, state) = match op {
            Op::BarrierArrive { address, count, transactions, drop, state } => {
                (address, *count, *transactions, true, *drop, *state)
            }
            Op::BarrierExpect { address, transactions } => (address, None, Some(*transactions), false, false, None),
            _ => return,
        };
        self.pace.events += 1;
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            let Some(index) = self.object(place, at) else { continue };
            let count = count.map_or(1, |row| i64::from(warp.words[row as usize][lane]));
            let bytes = transactions.map_or(0, |row| i64::from(warp.words[row as usize][lane]));
            if let Some(row) = state {
                warp.doubles[row as usize][lane] = self.objects[index].phase.into();
            }
            let Self { objects, clocks, .. } = self;
            let object = &mut objects[index];
            object.transactions += bytes;
            let (tx, pending) = (object.transactions, object.pending);
            if arrives {
                object.pending -= count;
                if drops {
                    object.expected -= count;
                }
                clocks.release(at.warp.into(), &mut object.gathered);
            }
            if arrives && (count < 1 || count > pending) {
                self.objects[index].pending = 0;
                self.misuse(at, place, || format!("{count} arrivals where the phase expects {pending} more"));
            }
            if tx >= 1 << 20 {
                self.misuse(at, place, || format!("{tx} bytes are expected, which is more than an mbarrier can count"));
            }
            self.end_phase(index);
        }
    }

    /// Bytes of a copy have landed.
    pub(super) fn land_transactions(&mut self, index: usize, bytes: u32) {
        self.pace.events += 1;
        self.objects[index].transactions -= i64::from(bytes);
        self.end_phase(index);
    }

    fn end_phase(&mut self, index: usize) {
        let object = &mut self.objects[index];
        if object.pending > 0 || object.transactions != 0 {
            return;
        }
        object.phase += 1;
        object.pending = object.expected;
        let gathered = std::mem::take(&mut object.gathered);
        object.published.join(&gathered);
        object.published.note(object.agent, object.phase);
        let address = object.address;
        for status in &mut self.status {
            if matches!(status, Status::AtObject { address: a, .. } if *a == address) {
                *status = Status::Ready;
            }
        }
    }

    /// `try_wait` waits here until the phase ends; `test_wait` lets others go first.
    pub(super) fn object_test(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Next {
        let Op::BarrierTest { dp, ref address, parity, state, suspend } = *op else { return Next::Continue };
        let w = warp.index as usize;
        let (mut done, mut wait) = (0, None);
        for lane in lanes(mask) {
            let place = warp.address(address, lane);
            let at = At { step: pc, warp: w as u16, lane: lane as u8 };
            let Some(index) = self.object(place, at) else {
                // Nobody will ever end its phase; going on keeps the launch finite.
                done |= 1 << lane;
                continue;
            };
            let phase = self.objects[index].phase;
            let parity = match parity {
                Some(row) => warp.words[row as usize][lane],
                None => warp.doubles[state as usize][lane] as u32 & 1,
            };
            if parity > 1 {
                self.record.add(FindingKind::IllegalOperand, at, None, None, || format!("a parity of {parity}"));
            }
            if phase & 1 != parity & 1 {
                done |= 1 << lane;
                self.clocks.acquire(w, &self.objects[index].published);
            } else {
                wait = Some(Status::AtObject { address: place as u32, parity, step: pc });
            }
        }
        match wait {
            Some(status) if done == 0 && suspend => {
                self.status[w] = status;
                Next::Yield
            }
            wait => {
                warp.set_predicate(mask, dp, if done == mask { FULL } else { done });
                if wait.is_some() { Next::Yield } else { Next::Continue }
            }
        }
    }

    /// The mbarrier that a copy signals, which the asynchronous proxy must be able to see.
    pub(super) fn object_of_copy(&mut self, address: u64, at: At) -> Option<usize> {
        let index = self.object(address, at)?;
        let offset = self.shared.offset(address as u32);
        let by = self.clocks.accessor(at.warp.into(), at.lane, at.step);
        if let Err(trouble) = self.shared.may_read_asynchronously(&by, self.clocks.fenced(at.warp.into()), offset, 8) {
            self.trouble(trouble, at, address);
        }
        Some(index)
    }
}
