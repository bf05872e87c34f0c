//! Which block is next, and blocks that wait for each other through global memory.
//!
//! Blocks begin in the order of their index, as many at a time as there are threads. So a block
//! that waits for one of a smaller index always waits for one that has ended or runs, and one that
//! waits for a later block may wait in vain: nothing promises a kernel that both run at once.
//!
//! A wait is known by a strong load (or an atomic operation that changes nothing) which a warp
//! executes again and again, and which gives the same every time. The warp is then left alone until
//! the value is another. If all blocks that run have come to where no warp can go on otherwise,
//! nobody is left who could change a value: that is a deadlock. To be sure of it, every one of them
//! looks at its values once more after the last one came to wait.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The blocks of a launch.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks (or clusters) that have begun.
    begun: u64,
    running: usize,
    /// Of these, those in which all warps wait, and those that execute instructions and do not get
    /// on.
    waiting: usize,
    stalled: usize,
    /// Whether no more blocks begin, because one of them would never end.
    stopped: bool,
    /// Counts beginnings and ends of blocks and of waits.
    epoch: u64,
    /// Blocks that looked at their values in an epoch in which all wait, and found them unchanged.
    looked: (u64, usize),
    /// Latest epoch in which a deadlock was found.
    dead: Option<u64>,
}

/// A block that waits.
#[derive(Debug)]
pub(crate) struct Waiting<'p> {
    of: &'p Progress,
    looked: Option<u64>,
    looks: u32,
}

impl Progress {
    pub fn new() -> Self {
        Self { state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next of so many blocks; `None` if all have begun. Its runner has ended the one before,
    /// if it had one.
    pub fn next(&self, blocks: u64, had_one: bool) -> Option<u64> {
        let mut state = self.state();
        state.epoch += 1;
        state.running -= usize::from(had_one);
        if state.begun == blocks || state.stopped {
            return None;
        }
        state.begun += 1;
        state.running += 1;
        Some(state.begun - 1)
    }

    /// Ends the launch: no block begins, and those that run go no further.
    pub fn stop(&self) {
        self.state().stopped = true;
    }

    /// Whether the launch was ended.
    pub fn stopped(&self) -> bool {
        self.state().stopped
    }

    /// A block does not get on, or gets on again.
    pub fn stall(&self, stalled: bool) {
        let mut state = self.state();
        if stalled {
            state.stalled += 1;
        } else {
            state.stalled -= 1;
        }
    }

    /// Whether a block that runs gets on; the caller's does not. If so, it is given some time.
    pub fn somebody_goes_on(&self) -> bool {
        let goes_on = {
            let state = self.state();
            state.running > state.waiting + state.stalled
        };
        if goes_on {
            std::thread::sleep(Duration::from_micros(50));
        }
        goes_on
    }

    /// A block begins to wait.
    pub fn wait(&self) -> Waiting<'_> {
        let mut state = self.state();
        state.waiting += 1;
        state.epoch += 1;
        Waiting { of: self, looked: None, looks: 0 }
    }
}

impl Waiting<'_> {
    /// What to hand to [`Waiting::goes_on`]; taken before the values are looked at.
    pub fn epoch(&self) -> u64 {
        self.of.state().epoch
    }

    /// Whether the wait goes on, after the values were looked at and had not changed; false if it
    /// can never end.
    pub fn goes_on(&mut self, epoch: u64) -> bool {
        {
            let mut state = self.of.state();
            if state.stopped || self.looked.is_some() && self.looked == state.dead {
                return false;
            }
            if state.epoch == epoch && state.waiting == state.running && self.looked != Some(epoch) {
                self.looked = Some(epoch);
                state.looked = if state.looked.0 == epoch { (epoch, state.looked.1 + 1) } else { (epoch, 1) };
                if state.looked.1 == state.running {
                    state.dead = Some(epoch);
                    return false;
                }
            }
        }
        self.looks += 1;
        if self.looks < 64 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.waiting -= 1;
        state.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_goes_on_while_another_block_runs() {
        let progress = Progress::new();
        assert_eq!((progress.next(3, false), progress.next(3, false)), (Some(0), Some(1)));
        let mut first = progress.wait();
        let epoch = first.epoch();
        assert!(first.goes_on(epoch));
        // The other one waits too: each looks once more, and then it is over for both.
        let mut second = progress.wait();
        let epoch = second.epoch();
        assert!(first.goes_on(epoch));
        assert!(!second.goes_on(epoch));
        drop(second);
        assert!(!first.goes_on(epoch));
    }

    #[test]
    fn a_look_before_the_last_one_came_to_wait_does_not_count() {
        let progress = Progress::new();
        assert_eq!((progress.next(2, false), progress.next(2, false)), (Some(0), Some(1)));
        let mut first = progress.wait();
        let old = first.epoch();
        let mut second = progress.wait();
        let new = second.epoch();
        assert!(first.goes_on(old));
        assert!(second.goes_on(new));
        assert!(!first.goes_on(new));
        assert_eq!(progress.next(2, true), None);
    }
}
