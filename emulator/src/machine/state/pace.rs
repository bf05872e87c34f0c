//! How a block gets on: its events, the pages that it has touched, and the instructions since.

use std::collections::HashSet;

/// Instructions that a warp executes before another one has its turn, if there was no event
/// meanwhile.
pub(crate) const SLICE: u64 = 1 << 14;

/// How a block gets on.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Events so far.
    pub events: u64,
    /// Events when they were looked at last, and how many instructions the block had executed then.
    seen: u64,
    since: u64,
    /// Pages of global memory that the block has touched, and the latest.
    pages: HashSet<u64>,
    page: Option<u64>,
    /// Pages when they were looked at last, and how many instructions the block had executed then.
    seen_pages: usize,
    pub since_page: u64,
    /// Instructions that the block had executed at its first finding.
    found: Option<u64>,
    /// Whether the block counts as one that does not get on.
    pub stalled: bool,
    /// Of each warp the events when it was looked at last, and instructions since without another.
    idle: Vec<(u64, u64)>,
}

impl Pace {
    /// Of so many warps.
    pub fn new(warps: usize) -> Self {
        Self { idle: vec![(0, 0); warps], ..Self::default() }
    }

    /// Notes that a warp has executed instructions.
    pub fn ran(&mut self, warp: usize, instructions: u64) {
        let (events, idle) = &mut self.idle[warp];
        if *events == self.events {
            *idle += instructions;
        } else {
            (*events, *idle) = (self.events, 0);
        }
    }

    /// Whether others come before a warp, because it has executed a slice without an event.
    pub fn is_idle(&self, warp: usize) -> bool {
        let (events, idle) = self.idle[warp];
        events == self.events && idle >= SLICE
    }

    /// Every warp may run again.
    pub fn retry(&mut self) {
        self.idle.iter_mut().for_each(|idle| idle.1 = 0);
    }

    /// Whether a block with a finding has run on for long enough.
    pub fn ends_after_finding(&mut self, executed: u64, limit: u64) -> bool {
        executed - *self.found.get_or_insert(executed) > limit
    }

    /// Notes an access to global memory.
    #[inline(always)]
    pub fn touch(&mut self, address: u64) {
        let page = address >> 12;
        if self.page != Some(page) {
            self.page = Some(page);
            if self.pages.insert(page) {
                self.events += 1;
            }
        }
    }

    /// Whether there was an event since the last look.
    pub fn look(&mut self, executed: u64) -> bool {
        let moved = self.events != self.seen;
        if moved {
            (self.seen, self.since) = (self.events, executed);
        }
        if self.pages.len() != self.seen_pages {
            (self.seen_pages, self.since_page) = (self.pages.len(), executed);
        }
        moved
    }

    /// Whether the block spins: no event for so many instructions.
    pub fn spins(&self, executed: u64, limit: u64) -> bool {
        executed - self.since > limit
    }

    /// Whether it goes round in a loop: no new page for many times as many.
    pub fn circles(&self, executed: u64, limit: u64) -> bool {
        executed - self.since_page
            > limit.saturating_mul(16).saturating_add((limit / 256).saturating_mul(self.pages.len() as u64))
    }
}
