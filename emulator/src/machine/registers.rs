//! The registers of a block's threads, which `setmaxnreg` moves from warp to warp (PTX ISA, "setmaxnreg").
//!
//! A launch gives every thread the same number of registers, and these are the block's pool: `.dec` gives registers of a warp
//! back to the pool, and `.inc` waits until the pool has as many as the warp asks for. Registers of a warp that has ended do
//! not come back. All warps of a warpgroup execute the same `setmaxnreg`, and meet before they execute the next one.
//!
//! How many registers a launch gives is up to the compiler. Assumed is what `.maxnreg`, or `.maxntid` (`.reqntid`) with
//! `.minnctapersm`, leave to a thread of 65536 of a multiprocessor, in steps of 8, and no more than the least that an `.inc` of
//! the kernel asks for. Where a kernel has no such directive the count is not known before it is compiled for a GPU, and pools
//! are not followed. What the machine code needs is not known either: that a warp has too few registers
//! is found where a `wgmma` alone names more.

use super::block::{Block, Next, Status};
use super::record::At;
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::memory::MANY;
use crate::program::{Kernel, Op};

/// Registers of a multiprocessor: every architecture with `setmaxnreg` has as many.
const OF_MULTIPROCESSOR: u32 = 65_536;
/// Most registers of a thread.
const OF_THREAD: u32 = 256;
/// Warps of a warpgroup.
const GROUP: usize = 4;

/// The registers of the blocks of a cluster.
#[derive(Debug)]
pub(crate) struct Registers {
    /// Registers of a thread of each warp; `None` if the launch does not say how many there are.
    warps: Option<Vec<u32>>,
    /// Of each block, registers that nobody has.
    free: Vec<u32>,
    /// The `setmaxnreg` that each warp has executed: instruction and the warp's clock.
    executed: Vec<Vec<(u32, u32)>>,
}

impl Registers {
    pub fn new(kernel: &Kernel, blocks: u32, warps: usize) -> Self {
        let launched = at_launch(kernel);
        Self { warps: launched.map(|count| vec![count; warps]), free: vec![0; blocks as usize], executed: vec![vec![]; warps] }
    }

    /// Registers of a block that nobody has.
    pub fn free(&self, block: u32) -> u32 {
        self.free[block as usize]
    }
}

/// Registers of a thread at launch, if the kernel's directives fix them.
fn at_launch(kernel: &Kernel) -> Option<u32> {
    let of_threads = kernel.max_threads.map(|threads| {
        let threads = threads.next_multiple_of(32).saturating_mul(kernel.min_blocks.max(1)).max(1);
        (OF_MULTIPROCESSOR / threads).min(OF_THREAD)
    });
    let count = match (kernel.max_registers, of_threads) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b)?,
    };
    let least = |op: &Op| match op {
        Op::SetRegisters { count, increase: true } => Some(*count),
        _ => None,
    };
    let least = kernel.steps.iter().filter_map(|step| least(&step.op)).min();
    Some((count / 8 * 8).min(least.unwrap_or(OF_THREAD)))
}

impl Block<'_> {
    /// `setmaxnreg`. The warp is past the instruction already.
    pub(super) fn set_registers(&mut self, warp: &Warp, count: u32, increase: bool, mask: u32, pc: u32) -> Next {
        let w = warp.index as usize;
        let at = At { step: pc, warp: w as u16, lane: MANY };
        self.check_aligned(warp, true, mask, at);
        self.check_group(w, at);
        let Some(warps) = &mut self.registers.warps else { return Next::Continue };
        let (has, rank) = (warps[w], warp.index / self.warps_per_block);
        if if increase { count < has } else { count > has } {
            let action = if increase { "inc" } else { "dec" };
            let detail = || format!("setmaxnreg.{action} to {count} registers per thread, and the warp has {has}");
            self.record.add(FindingKind::RegisterBudget, at, None, None, detail);
            return Next::Continue;
        }
        if increase {
            self.status[w] = Status::AtRegisters { count, step: pc };
        } else {
            warps[w] = count;
            self.registers.free[rank as usize] += 32 * (has - count);
        }
        self.grant(rank);
        if self.status[w] == Status::Ready { Next::Continue } else { Next::Yield }
    }

    /// Gives registers to the warps of a block that wait for them, as far as there are.
    fn grant(&mut self, rank: u32) {
        let range = self.warps_of(rank);
        let Some(warps) = &mut self.registers.warps else { return };
        let free = &mut self.registers.free[rank as usize];
        for w in range {
            let Status::AtRegisters { count, .. } = self.status[w] else { continue };
            let more = 32 * (count - warps[w]);
            if more <= *free {
                *free -= more;
                warps[w] = count;
                self.status[w] = Status::Ready;
            }
        }
    }

    /// The warps of a warpgroup execute the same instructions, and meet in between.
    fn check_group(&mut self, w: usize, at: At) {
        let number = self.registers.executed[w].len();
        let first = w / self.warps_per_block as usize * self.warps_per_block as usize;
        let start = first + (w - first) / GROUP * GROUP;
        for other in (start..(start + GROUP).min(first + self.warps_per_block as usize)).filter(|&other| other != w) {
            let executed = &self.registers.executed[other];
            let party = |n: usize| executed.get(n).map(|&(step, _)| At { step, warp: other as u16, lane: MANY });
            if let Some(theirs) = party(number)
                && theirs.step != at.step
            {
                let detail = || "the warps of a warpgroup execute different setmaxnreg".to_owned();
                self.record.add(FindingKind::RegisterBudget, at, Some(theirs), None, detail);
            }
            let met = number == 0 || executed.get(number - 1).is_some_and(|&(_, clock)| self.clocks.seen(w, other) >= clock);
            if !met {
                let detail = || "the warps of the warpgroup have not met since the setmaxnreg before".to_owned();
                self.record.add(FindingKind::RegisterBudget, at, party(number - 1), None, detail);
            }
        }
        let clock = self.clocks.now(w);
        self.registers.executed[w].push((at.step, clock));
    }

    /// A product names more registers than its warp has.
    pub(super) fn check_product_registers(&mut self, w: usize, needed: u32, pc: u32) {
        let Some(has) = self.registers.warps.as_ref().map(|warps| warps[w]) else { return };
        if needed > has {
            let at = At { step: pc, warp: w as u16, lane: MANY };
            let detail = || format!("the product alone names {needed} registers of a thread, and the warp has {has}");
            self.record.add(FindingKind::RegisterBudget, at, None, None, detail);
        }
    }

    /// When all warps have ended: those of a warpgroup have executed as many `setmaxnreg`.
    pub(super) fn check_groups_at_end(&mut self) {
        for block in 0..self.ranks {
            let range = self.warps_of(block);
            for start in range.clone().step_by(GROUP) {
                let group = start..(start + GROUP).min(range.end);
                let executed = |w: usize| self.registers.executed[w].len();
                let Some((most, least)) = group.clone().max_by_key(|&w| executed(w)).zip(group.min_by_key(|&w| executed(w)))
                else {
                    continue;
                };
                if let Some(&(step, _)) = self.registers.executed[most].get(executed(least)) {
                    let at = At { step, warp: most as u16, lane: MANY };
                    let other = least % self.warps_per_block as usize;
                    let detail = || format!("warp {other} of the same warpgroup has ended without executing it");
                    self.record.add(FindingKind::RegisterBudget, at, None, None, detail);
                }
            }
        }
    }
}
