//! A block, or the blocks of a cluster: their warps, whose turn it is, and one instruction after another.
//!
//! Warps are numbered through the blocks of a cluster, so that clocks, findings and waits are of the cluster as a whole.

use super::barriers::{NamedBarrier, Object};
use super::clocks::Clocks;
use super::cluster::ClusterBarrier;
use super::copies::{Bulk, Copies, Unlanded};
use super::products::Products;
use super::profile::Counters;
use super::progress::Progress;
use super::record::{At, Record};
use super::registers::Registers;
use super::stuck::{Pace, SLICE};
use super::warp::{Place, Warp, lanes};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use crate::finding::FindingKind;
use crate::memory::{GlobalMemory, MANY, Region, Shared, Traces, Trouble};
use crate::options::{Landing, Options, Order, Random};
use crate::program::{END, Kernel, Op};
use crate::syntax::Space;

/// What is the same for all blocks of a launch.
pub(crate) struct Launched<'l> {
    pub kernel: &'l Kernel,
    pub memory: &'l GlobalMemory,
    /// Variables of the module.
    pub variables: &'l Region,
    pub parameters: &'l [u8],
    pub options: &'l Options,
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    pub dynamic_shared: u32,
    /// Bytes that launches before this one may still be writing.
    pub pending: &'l [Range<u64>],
    /// Blocks that have begun, and those that wait for others.
    pub progress: &'l Progress,
    /// Accesses to global memory; `None` where races are not looked for.
    pub traces: Option<&'l Traces>,
}

/// What a block leaves behind.
pub(crate) struct Outcome {
    pub record: Record,
    /// Of each instruction; empty without profile.
    pub counters: Vec<Counters>,
    /// Instructions of warps, and of their lanes.
    pub executed: [u64; 2],
}

/// Whether a warp can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Ready,
    Exited,
    /// At a named barrier.
    AtBarrier {
        id: u32,
        step: u32,
    },
    /// At an mbarrier, for a phase of this parity.
    AtObject {
        address: u32,
        parity: u32,
        step: u32,
    },
    /// At the barrier of the cluster.
    AtCluster {
        step: u32,
    },
    /// At a `setmaxnreg.inc`, for so many registers per thread.
    AtRegisters {
        count: u32,
        step: u32,
    },
    /// At a value in global memory that another block is to change.
    AtGlobal {
        step: u32,
    },
}

/// What comes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// On with the same warp.
    Continue,
    /// Another warp's turn.
    Yield,
}

/// A block that runs, or the blocks of a cluster.
pub(crate) struct Block<'l> {
    pub(super) launched: &'l Launched<'l>,
    pub(super) kernel: &'l Kernel,
    pub(super) shared: Shared,
    pub(super) warps: Vec<Warp>,
    pub(super) warps_per_block: u32,
    /// Blocks of the cluster.
    pub(super) ranks: u32,
    pub(super) cluster: ClusterBarrier,
    pub(super) status: Vec<Status>,
    /// Lanes of each warp that have waited for the launches before this one.
    pub(super) waited: Vec<u32>,
    pub(super) clocks: Clocks,
    pub(super) registers: Registers,
    pub(super) pace: Pace,
    pub(super) barriers: Vec<NamedBarrier>,
    pub(super) objects: Vec<Object>,
    /// Copies of each warp's own threads.
    pub(super) copies: Vec<Copies>,
    /// Copies of the asynchronous proxy.
    pub(super) bulk: Vec<Bulk>,
    /// Copies to global memory that were waited for as far as they read, and not as far as they write.
    pub(super) unlanded: Vec<Unlanded>,
    pub(super) products: Vec<Products>,
    /// Who issued the asynchronous operation of each number, from 1.
    pub(super) flights: Vec<At>,
    pub(super) record: Record,
    pub(super) counters: Vec<Counters>,
    pub(super) random: Random,
    executed: [u64; 2],
}

impl<'l> Block<'l> {
    /// The blocks of these indices, which are the cluster of a number in the order of their ranks; one block by itself is a
    /// cluster of one.
    pub fn new(launched: &'l Launched<'l>, number: u32, ids: &[[u32; 3]]) -> Self {
        let kernel = launched.kernel;
        let warps_per_block = launched.threads.iter().product::<u32>().div_ceil(32);
        let ranks = ids.len() as u32;
        let warps = (ranks * warps_per_block) as usize;
        let shared_bytes = kernel.static_shared + launched.dynamic_shared;
        let place = |rank: u32| Place {
            block: ids[rank as usize],
            grid: launched.grid,
            threads: launched.threads,
            cluster: kernel.cluster,
            rank,
            shared_bytes: launched.dynamic_shared,
        };
        let warp = |w: u32| {
            let rank = w / warps_per_block;
            Warp::new(kernel, rank * warps_per_block, w % warps_per_block, &place(rank))
        };
        let id = ids[0];
        let index =
            u64::from(id[0]) + u64::from(launched.grid[0]) * (u64::from(id[1]) + u64::from(launched.grid[1]) * u64::from(id[2]));
        let counters = if launched.options.profile { kernel.steps.len() } else { 0 };
        Self {
            launched,
            kernel,
            shared: Shared::new(shared_bytes, ranks, kernel.granule, warps, launched.options.races),
            warps: (0..warps as u32).map(warp).collect(),
            warps_per_block,
            ranks,
            cluster: ClusterBarrier::new(warps),
            status: vec![Status::Ready; warps],
            waited: vec![0; warps],
            clocks: Clocks::new(number, warps),
            registers: Registers::new(kernel, ranks, warps),
            pace: Pace::new(warps),
            barriers: vec![NamedBarrier::default(); 16 * ranks as usize],
            objects: vec![],
            copies: (0..warps).map(|_| Copies::default()).collect(),
            bulk: vec![],
            unlanded: vec![],
            products: (0..warps).map(|_| Products::new(kernel)).collect(),
            flights: vec![],
            record: Record::default(),
            counters: vec![Counters::default(); counters],
            random: Random::new(launched.options.seed, index),
            executed: [0; 2],
        }
    }

    /// Runs the block to its end, or to where no warp can go on.
    pub fn run(mut self) -> Outcome {
        let options = self.launched.options;
        let mut turn = 0;
        let mut next_look = SLICE;
        loop {
            self.wake_polling();
            let Some(w) = self.choose(turn) else {
                if self.status.iter().all(|s| *s == Status::Exited) {
                    break;
                }
                // All wait: what is in flight lands, one after another.
                if self.land_one_bulk() || self.wait_for_blocks() {
                    continue;
                }
                self.deadlock();
                break;
            };
            turn = w + 1;
            let quantum = match options.order {
                Order::Forward | Order::Backward => SLICE,
                Order::Rotating => 1,
                Order::Random => 1 + self.random.next() % 48,
            };
            let before = self.executed[0];
            self.run_warp(w, quantum);
            self.pace.ran(w, self.executed[0] - before);
            if options.landing == Landing::Random {
                self.land_at_random();
            }
            self.pace.look(self.executed[0]);
            if self.executed[0] > next_look {
                next_look = self.executed[0] + SLICE;
                if self.launched.progress.stopped() {
                    break;
                }
                if self.is_stuck(self.executed[0]) {
                    self.launched.progress.stop();
                    break;
                }
            }
            if self.executed[0] > options.instruction_limit {
                let at = At { step: self.warps[w].pc.min(self.kernel.steps.len() as u32 - 1), warp: w as u16, lane: MANY };
                let limit = options.instruction_limit;
                self.record.add(FindingKind::InstructionLimit, at, None, None, || format!("the block ran for more than {limit}"));
                break;
            }
        }
        self.stall(false);
        self.finish();
        Outcome { record: self.record, counters: self.counters, executed: self.executed }
    }

    /// Lets the warps go on that wait at a value which is another one now; whether there are any.
    fn wake_polling(&mut self) -> bool {
        let mut woken = false;
        for w in 0..self.status.len() {
            if matches!(self.status[w], Status::AtGlobal { .. }) && self.poll_changed(&self.warps[w]) {
                self.warps[w].poll = None;
                self.status[w] = Status::Ready;
                woken = true;
            }
        }
        woken
    }

    /// Waits until another block has changed a value that a warp waits at; false if that can never be.
    fn wait_for_blocks(&mut self) -> bool {
        if !self.status.iter().any(|s| matches!(s, Status::AtGlobal { .. })) {
            return false;
        }
        let mut waiting = self.launched.progress.wait();
        loop {
            let epoch = waiting.epoch();
            if self.wake_polling() {
                return true;
            }
            if !waiting.goes_on(epoch) {
                return false;
            }
        }
    }

    /// The warp that goes on; one that spins only if there is no other, and after a copy has landed that it may wait for.
    fn choose(&mut self, turn: usize) -> Option<usize> {
        let chosen = self.choose_busy(turn);
        if chosen.is_some() || !self.status.contains(&Status::Ready) {
            return chosen;
        }
        self.land_one_bulk();
        self.pace.retry();
        self.choose_busy(turn)
    }

    fn choose_busy(&mut self, turn: usize) -> Option<usize> {
        let count = self.status.len();
        let ready = |w: &usize| self.status[*w] == Status::Ready && !self.pace.is_idle(*w);
        match self.launched.options.order {
            Order::Forward => (0..count).find(ready),
            Order::Backward => (0..count).rev().find(ready),
            Order::Rotating => (turn..turn + count).map(|w| w % count).find(ready),
            Order::Random => {
                let all: Vec<usize> = (0..count).filter(ready).collect();
                if all.is_empty() { None } else { Some(all[self.random.below(all.len())]) }
            }
        }
    }

    fn run_warp(&mut self, w: usize, quantum: u64) {
        let mut warp = std::mem::take(&mut self.warps[w]);
        let mut left = quantum.min(self.launched.options.instruction_limit.saturating_sub(self.executed[0]) + 1);
        while left > 0 && self.status[w] == Status::Ready {
            left -= 1;
            if self.step(&mut warp) == Next::Yield {
                break;
            }
        }
        self.warps[w] = warp;
    }

    /// Executes one instruction.
    #[inline(always)]
    pub(super) fn step(&mut self, warp: &mut Warp) -> Next {
        let pc = warp.pc;
        debug_assert_ne!(pc, END);
        let kernel = self.kernel;
        let step = &kernel.steps[pc as usize];
        let mask = match step.guard {
            None => warp.lanes,
            Some((p, false)) => warp.lanes & warp.predicates[p as usize],
            Some((p, true)) => warp.lanes & !warp.predicates[p as usize],
        };
        self.executed[0] += 1;
        self.executed[1] += u64::from(mask.count_ones());
        if let Some(counters) = self.counters.get_mut(pc as usize) {
            counters.executed += 1;
            counters.lanes += u64::from(mask.count_ones());
        }
        if let Op::Branch { target } = step.op {
            warp.branch(mask, target, step.meet);
            return Next::Continue;
        }
        if mask == 0 {
            if warp.lanes == 0 {
                // No path is left.
                self.pace.events += 1;
                self.status[warp.index as usize] = Status::Exited;
                self.warp_exited(warp.index);
                return Next::Yield;
            }
            warp.advance();
            return Next::Continue;
        }
        if !step.touched.is_empty() {
            self.check_registers(warp, step, pc);
        }
        if warp.arithmetic(&step.op, mask) {
            warp.advance();
            return Next::Continue;
        }
        self.other(warp, &step.op, mask, pc)
    }

    /// Instructions that touch more than registers.
    fn other(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Next {
        match op {
            Op::Load(access) => {
                self.load(warp, access, mask, pc);
                return self.after_access(warp);
            }
            Op::Store(access) => self.store(warp, access, mask, pc),
            Op::Atomic { .. } => {
                self.atomic(warp, op, mask, pc);
                return self.after_access(warp);
            }
            Op::LoadMatrix { d, address, transposed } => self.load_matrix(warp, d, address, *transposed, mask, pc),
            Op::StoreMatrix { a, address, transposed } => self.store_matrix(warp, a, address, *transposed, mask, pc),
            Op::Mma(mma) => self.mma(warp, mma, mask, pc),
            Op::Shuffle { .. } | Op::Vote { .. } | Op::Reduce { .. } | Op::Elect { .. } => self.exchange(warp, op, mask, pc),
            Op::CopyAsync { to, from, bytes, present } => self.copy_async(warp, to, from, (*bytes).into(), *present, mask, pc),
            Op::CommitCopies => self.commit_copies(warp, mask),
            Op::WaitCopies { pending } => self.wait_copies(warp, *pending, mask),
            Op::TensorLoad(copy) => self.tensor_load(warp, copy, mask, pc),
            Op::TensorStore(copy) => self.tensor_store(warp, copy, mask, pc),
            Op::BulkCopy { shared, global, bytes, barrier } => {
                self.bulk_copy(warp, [shared, global], *bytes, barrier.as_ref(), mask, pc)
            }
            Op::CommitBulk => self.commit_bulk(warp, mask),
            Op::WaitBulk { pending, read } => self.wait_bulk(warp, *pending, *read, mask),
            Op::WarpBarrier { members } => self.warp_barrier(warp, *members, mask, pc),
            Op::Barrier { id, threads, wait, aligned } => {
                warp.advance();
                return self.barrier(warp, *id, *threads, *wait, *aligned, mask, pc);
            }
            Op::ClusterArrive { release, aligned } => self.cluster_arrive(warp, *release, *aligned, mask, pc),
            Op::ClusterWait { aligned } => {
                warp.advance();
                return self.cluster_wait(warp, *aligned, mask, pc);
            }
            Op::SetRegisters { count, increase } => {
                self.pace.events += 1;
                warp.advance();
                return self.set_registers(warp, *count, *increase, mask, pc);
            }
            Op::MapAddress { .. } => self.map_address(warp, op, mask, pc),
            Op::RankOf { .. } => self.rank_of_address(warp, op, mask),
            Op::AwaitLaunches => self.waited[warp.index as usize] |= mask,
            Op::Fence { scope } => {
                fence(Ordering::SeqCst);
                let w = warp.index as usize;
                lanes(mask).for_each(|lane| self.clocks.fence_lane(w, lane as u8, *scope));
                self.clocks.tick(w);
            }
            Op::FenceProxyAsync { shared, global } => {
                if *shared {
                    self.clocks.fence(warp.index as usize);
                }
                if *global {
                    self.clocks.fence_global(warp.index as usize);
                }
            }
            Op::BarrierInit { address, count } => self.object_init(warp, address, *count, mask, pc),
            Op::BarrierInvalidate { address } => self.object_invalidate(warp, address, mask, pc),
            Op::BarrierArrive { .. } | Op::BarrierExpect { .. } => self.object_arrive(warp, op, mask, pc),
            Op::BarrierTest { .. } => {
                let next = self.object_test(warp, op, mask, pc);
                if self.status[warp.index as usize] == Status::Ready {
                    warp.advance();
                }
                return next;
            }
            Op::WgmmaFence => self.products[warp.index as usize].fence(),
            Op::Wgmma(wgmma) => self.wgmma(warp, wgmma, mask, pc),
            Op::WgmmaCommit => self.products[warp.index as usize].commit(),
            Op::WgmmaWait { pending } => self.wait_products(warp, *pending, pc),
            Op::Exit | Op::Trap => {
                if *op == Op::Trap {
                    let at = At { step: pc, warp: warp.index as u16, lane: MANY };
                    self.record.add(FindingKind::Trap, at, None, None, String::new);
                }
                warp.exit(mask);
                if warp.live == 0 {
                    self.pace.events += 1;
                    self.status[warp.index as usize] = Status::Exited;
                    self.warp_exited(warp.index);
                    return Next::Yield;
                }
                return Next::Continue;
            }
            _ => {}
        }
        warp.advance();
        Next::Continue
    }

    /// On to the next instruction; to another warp if this one is to wait for a value.
    fn after_access(&mut self, warp: &mut Warp) -> Next {
        warp.advance();
        if self.status[warp.index as usize] == Status::Ready { Next::Continue } else { Next::Yield }
    }

    /// Notes what is wrong with an access to shared memory.
    #[cold]
    pub(super) fn trouble(&mut self, trouble: Trouble, at: At, address: u64) {
        let flight = |n: u32| self.flights.get(n as usize - 1).copied();
        let written = |w: crate::memory::Writer| At { step: w.step, warp: w.warp, lane: w.lane };
        let (kind, other, detail) = match trouble {
            Trouble::OutOfBounds => {
                let bytes = self.kernel.static_shared + self.launched.dynamic_shared;
                (
                    FindingKind::OutOfBounds,
                    None,
                    format!("the block has {bytes} bytes of shared memory from address {}", crate::memory::windows::SHARED_START),
                )
            }
            Trouble::Misaligned => (FindingKind::Misaligned, None, String::new()),
            Trouble::Uninitialised => (FindingKind::Uninitialised, None, String::new()),
            Trouble::InFlight(n) => (FindingKind::InFlight, flight(n), String::new()),
            Trouble::BeingRead(n) => (FindingKind::WriteUnderRead, flight(n), String::new()),
            Trouble::AfterWrite(w) if w.agent == at.warp => (
                FindingKind::Race,
                Some(written(w)),
                "another lane of the same warp wrote it, with no warp barrier between".to_owned(),
            ),
            Trouble::AfterWrite(w) if w.asynchronous => (
                FindingKind::Race,
                Some(written(w)),
                "an asynchronous copy wrote it, whose mbarrier was not waited for".to_owned(),
            ),
            Trouble::AfterWrite(w) => {
                (FindingKind::Race, Some(written(w)), "written by another warp with no barrier between".to_owned())
            }
            Trouble::AfterRead { warp, lane, step } => {
                let whose = if warp == at.warp { "another lane of the same warp" } else { "another warp" };
                (FindingKind::Race, Some(At { step, warp, lane }), format!("read by {whose} with no barrier between"))
            }
            Trouble::Ended { rank } => {
                (FindingKind::OutOfBounds, None, format!("the block of rank {rank} has ended, and its shared memory with it"))
            }
            Trouble::Unfenced(w) => (FindingKind::UnfencedProxy, Some(written(w)), String::new()),
        };
        self.record.add(kind, at, other, Some((Space::Shared, address)), || detail);
    }

    /// What may not be left over when a block ends.
    fn finish(&mut self) {
        if !self.status.iter().all(|s| *s == Status::Exited) {
            return;
        }
        self.check_groups_at_end();
        let mut left: Vec<(u32, &str)> = vec![];
        for copies in &self.copies {
            left.extend(copies.flights().map(|f| (f, "the copy was not waited for before the block ended")));
        }
        for products in &self.products {
            left.extend(products.flights().map(|f| (f, "the product was not waited for before the block ended")));
        }
        left.extend(self.bulk.iter().map(|b| (b.flight, "the copy was not waited for before the block ended")));
        for (flight, why) in left {
            let at = self.flights[flight as usize - 1];
            self.record.add(FindingKind::NeverWaited, at, None, None, || why.to_owned());
        }
    }

    /// Gives an asynchronous operation a number.
    pub(super) fn take_off(&mut self, at: At) -> u32 {
        self.flights.push(at);
        self.flights.len() as u32
    }

    /// The value that all lanes of a mask hold; a finding if they differ.
    pub(super) fn uniform(&mut self, warp: &Warp, row: u32, mask: u32, pc: u32, what: &str) -> u32 {
        let values = &warp.words[row as usize];
        let first = values[mask.trailing_zeros() as usize];
        if lanes(mask).any(|l| values[l] != first) {
            let at = At { step: pc, warp: warp.index as u16, lane: MANY };
            self.record
                .add(FindingKind::BarrierDivergence, at, None, None, || format!("{what} differs between the lanes of a warp"));
        }
        first
    }
}
