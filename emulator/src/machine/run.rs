//! Runs a block, or the blocks of a cluster: whose turn it is, and when it has ended.

use super::state::{At, Block, Counters, Next, Record, SLICE, Status};
use crate::finding::FindingKind;
use crate::memory::MANY;
use crate::options::{Landing, Order};

/// What a block leaves behind.
pub(crate) struct Outcome {
    pub record: Record,
    /// Of each instruction; empty without profile.
    pub counters: Vec<Counters>,
    /// Instructions of warps, and of their lanes.
    pub executed: [u64; 2],
}

impl Block<'_> {
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

    /// Waits until another block has changed a value that a warp waits at; false if that can never
    /// be.
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

    /// The warp that goes on; one that spins only if there is no other, and after a copy has landed
    /// that it may wait for.
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
}
