//! Warps that can never go on: deadlocks, and loops that lead nowhere.
//!
//! A loop is known by what it lacks. An event is what another warp could see or wait for: a write,
//! an arrival, the end of a barrier or of a copy, a first access to a page of global memory. A
//! block in which all warps that can go on execute [`crate::Options::stall_limit`] instructions
//! without an event spins. A block that has events, and touches no page of global memory that is
//! new to it for many times as many instructions, goes round in a loop that does not advance. The
//! second limit grows with the pages that the block has touched, because a kernel may go through
//! all of them again and again.

use super::state::{At, Block, Status, Warp};
use crate::finding::FindingKind;
use crate::memory::{MANY, windows};
use crate::program::Op;
use crate::syntax::Space;

/// Instructions that are followed to tell what a spin waits for.
const FOLLOWED: usize = 1 << 12;

/// An instruction of a loop that a warp does not leave: whether it reads memory, where it stands,
/// what it reads.
type Followed = (bool, u32, Option<(Space, u64)>);

impl Block<'_> {
    /// Ends a block that leads nowhere; whether it does.
    pub(super) fn is_stuck(&mut self, executed: u64) -> bool {
        let limit = self.launched.options.stall_limit;
        if !self.record.is_empty() && self.pace.ends_after_finding(executed, limit) {
            return true;
        }
        let spins = self.pace.spins(executed, limit);
        self.stall(spins);
        if spins && self.launched.progress.somebody_goes_on() {
            return false;
        }
        if !spins && !self.pace.circles(executed, limit) {
            return false;
        }
        let Some(w) = self.status.iter().position(|s| *s == Status::Ready) else { return false };
        let (at, address, what) = self.follow(w);
        let why = if spins {
            format!("no warp has written memory or passed a barrier for {limit} instructions")
        } else {
            let pages = "none that touches memory it has not touched before";
            format!(
                "the block goes on and on, and of its latest {} instructions there is {pages}",
                executed - self.pace.since_page
            )
        };
        let detail = || format!("{what}; {why} (a kernel that does end takes a larger limit: --max-steps)");
        self.record.add(FindingKind::EndlessLoop, at, None, address, detail);
        true
    }

    /// Notes whether the block gets on.
    pub(super) fn stall(&mut self, stalled: bool) {
        if std::mem::replace(&mut self.pace.stalled, stalled) != stalled {
            self.launched.progress.stall(stalled);
        }
    }

    /// Follows a warp a little further: the last load or test of its loop, and what that reads.
    /// Without one, its last branch.
    fn follow(&mut self, w: usize) -> (At, Option<(Space, u64)>, String) {
        let mut warp = std::mem::take(&mut self.warps[w]);
        let mut latest: Option<Followed> = None;
        for _ in 0..FOLLOWED {
            if self.status[w] != Status::Ready {
                break;
            }
            let pc = warp.pc;
            let lane = warp.lanes.trailing_zeros() as usize % 32;
            let place = |warp: &Warp, space: Space, address| {
                let address = warp.address(address, lane);
                if space == Space::Generic { windows::resolve(address) } else { (space, address) }
            };
            let step = &self.kernel.steps[pc as usize];
            let found = match &step.op {
                Op::Load(access) if access.space != Space::Param => {
                    Some((true, pc, Some(place(&warp, access.space, &access.address))))
                }
                Op::Atomic { space, address, .. } => Some((true, pc, Some(place(&warp, *space, address)))),
                Op::BarrierTest { address, .. } => Some((true, pc, Some(place(&warp, Space::Shared, address)))),
                Op::Branch { .. } => Some((false, pc, None)),
                _ => None,
            };
            if let Some(found) = found
                && (found.0 || !latest.is_some_and(|latest| latest.0))
            {
                latest = Some(found);
            }
            self.step(&mut warp);
        }
        let step = latest.map_or(warp.pc.min(self.kernel.steps.len() as u32 - 1), |latest| latest.1);
        let address = latest.and_then(|latest| latest.2);
        self.warps[w] = warp;
        let what = match (address, &self.kernel.steps[step as usize].op) {
            (Some(_), Op::BarrierTest { .. }) => "it waits for the end of a phase of this mbarrier".to_owned(),
            (Some((space, address)), _) => match self.peek(space, address) {
                Some(value) => format!("it waits for another value than {value} here"),
                None => "it reads this again and again".to_owned(),
            },
            (None, _) => "it branches here again and again, and reads no memory".to_owned(),
        };
        (At { step, warp: w as u16, lane: MANY }, address, what)
    }

    /// A word of memory, without a trace.
    fn peek(&self, space: Space, address: u64) -> Option<u32> {
        let mut word = [0];
        match space {
            Space::Global => {
                let (region, offset) = self.launched.memory.find(address & !3, 4)?;
                region.load(offset, 4, &mut word);
            }
            Space::Shared => {
                let offset = self.shared.inside(address & !3, 4).ok()?;
                self.shared.load(offset, 4, &mut word);
            }
            _ => return None,
        }
        Some(word[0])
    }

    #[cold]
    pub(super) fn deadlock(&mut self) {
        let waits: Vec<(usize, Status)> = self.status.iter().copied().enumerate().filter(|(_, s)| *s != Status::Exited).collect();
        let mut reasons = vec![];
        for &(w, status) in &waits {
            reasons.push(match status {
                Status::AtBarrier { id, step } => {
                    let b = &self.barriers[16 * self.rank(w as u32) as usize + id as usize];
                    let line = self.kernel.steps[step as usize].line;
                    let expected = b.expected.map_or_else(|| "all".to_owned(), |n| n.to_string());
                    format!("warp {w} waits at barrier {id} (PTX line {line}): {} of {expected} threads have arrived", b.arrived)
                }
                Status::AtObject { address, parity, step } => {
                    let line = self.kernel.steps[step as usize].line;
                    match self.objects.iter().find(|o| o.address == address) {
                        Some(o) => format!(
                            "warp {w} waits at mbarrier {address:#x} (PTX line {line}) for the end of a phase of parity {parity}: it is in phase {}, {} arrivals and {} bytes are missing",
                            o.phase, o.pending, o.transactions
                        ),
                        None => format!("warp {w} waits at mbarrier {address:#x} (PTX line {line}), which is not initialised"),
                    }
                }
                Status::AtCluster { step } => {
                    let line = self.kernel.steps[step as usize].line;
                    format!("warp {w} waits at the barrier of the cluster (PTX line {line})")
                }
                Status::AtGlobal { step } => {
                    let line = self.kernel.steps[step as usize].line;
                    let (address, value) = self.warps[w].poll.as_ref().and_then(|p| p.1.first().copied()).unwrap_or_default();
                    format!(
                        "warp {w} waits at global address {address:#x} (PTX line {line}) for another value than {value}, which no block that runs will write"
                    )
                }
                Status::AtRegisters { count, step } => {
                    let line = self.kernel.steps[step as usize].line;
                    let free = self.registers.free(self.rank(w as u32));
                    format!("warp {w} waits for {count} registers per thread (PTX line {line}): its block has {free} that nobody has")
                }
                Status::Ready | Status::Exited => format!("warp {w} is ready"),
            });
        }
        let exited = self.status.len() - waits.len();
        if exited > 0 {
            reasons.push(format!("{exited} warps have ended"));
        }
        let at = |(w, s): (usize, Status)| match s {
            Status::AtBarrier { step, .. }
            | Status::AtObject { step, .. }
            | Status::AtCluster { step }
            | Status::AtRegisters { step, .. }
            | Status::AtGlobal { step } => At { step, warp: w as u16, lane: MANY },
            Status::Ready | Status::Exited => At { step: 0, warp: w as u16, lane: MANY },
        };
        if let Some(&first) = waits.first() {
            let step = at(first).step;
            let other = waits.iter().map(|&x| at(x)).find(|a| a.step != step);
            self.record.add(FindingKind::Deadlock, at(first), other, None, || reasons.join("\n  "));
        }
    }
}
