//! The registers of a block's threads, which `setmaxnreg` moves from warp to warp (PTX ISA,
//! "setmaxnreg").
//!
//! A launch gives every thread the same number of registers, and these are the block's pool: `.dec`
//! gives registers of a warp back to the pool, and `.inc` waits until the pool has as many as the
//! warp asks for. Registers of a warp that has ended do not come back. All warps of a warpgroup
//! execute the same `setmaxnreg`, and meet before they execute the next one.

use super::state::{At, Block, Next, Status, Warp};
use crate::finding::FindingKind;
use crate::memory::MANY;

/// Warps of a warpgroup.
const GROUP: usize = 4;

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
