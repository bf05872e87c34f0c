//! Executes one instruction of a warp: which file's code does it, and where the warp goes on.

use std::sync::atomic::{Ordering, fence};

use super::state::{At, Block, Next, Status, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::MANY;
use crate::program::{END, Op};

impl Block<'_> {
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
            Op::AddVector { order, address, rows } => self.add_vector(warp, *order, address, rows, mask, pc),
            Op::LoadMatrix { d, address, transposed } => self.load_matrix(warp, d, address, *transposed, mask, pc),
            Op::StoreMatrix { a, address, transposed } => self.store_matrix(warp, a, address, *transposed, mask, pc),
            Op::Mma(mma) => self.mma(warp, mma, mask, pc),
            Op::Shuffle { .. } | Op::Vote { .. } | Op::Reduce { .. } | Op::Elect { .. } | Op::MoveMatrix { .. } => {
                self.exchange(warp, op, mask, pc);
            }
            Op::CopyAsync { to, from, bytes, present } => self.copy_async(warp, to, from, (*bytes).into(), *present, mask, pc),
            Op::CommitCopies => self.commit_copies(warp, mask),
            Op::WaitCopies { pending } => self.wait_copies(warp, *pending, mask),
            Op::TensorLoad(copy) => self.tensor_load(warp, copy, mask, pc),
            Op::TensorStore { copy, adds } => self.tensor_store(warp, copy, *adds, mask, pc),
            Op::BulkCopy { .. } => self.bulk_copy(warp, op, mask, pc),
            Op::CommitBulk => self.commit_bulk(warp, mask),
            Op::WaitBulk { pending, read } => self.wait_bulk(warp, *pending, *read, mask),
            Op::WarpBarrier { members } => self.warp_barrier(warp, *members, mask, pc),
            Op::Barrier { .. } => {
                warp.advance();
                return self.barrier(warp, op, mask, pc);
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
}
