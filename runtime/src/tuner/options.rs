//! How to tune, and what is told meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashtile_codegen::{Arch, Schedule};

use super::InputData;
use crate::cache::Cache;
use crate::toolchain::Toolchain;

/// Ends tuning early, keeping what is known: set it from a signal handler or another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What tuning tells while it runs. Times are in seconds.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The candidates are known.
    Started {
        /// How many there are.
        candidates: usize,
        /// How many of them need no more work, since the cache has the evidence.
        known: usize,
    },
    /// A candidate was compiled and, on a GPU, checked and measured once; or rejected.
    Tried {
        /// Candidates tried so far.
        done: usize,
        /// Candidates in all.
        of: usize,
        /// Candidates rejected so far.
        rejected: usize,
        /// Shortest median so far.
        best: Option<f64>,
    },
    /// A round of elimination begins.
    Round {
        /// Its number; the first is 2, after the one in which every candidate was tried.
        round: u32,
        /// Candidates in it.
        candidates: usize,
        /// Shortest median so far.
        best: f64,
    },
    /// Those that are left are measured under load.
    RunOff {
        /// How many they are.
        candidates: usize,
    },
}

/// Told what tuning does.
pub type OnEvent = Arc<dyn Fn(&Event) + Send + Sync>;

/// How to tune.
#[derive(Clone)]
pub struct TuneOptions {
    /// Time after which no further candidate is tried. It runs from the start, and the ranking of
    /// candidates by the cost model counts, but is not cut short.
    pub budget: Duration,
    /// Threads that compile.
    pub jobs: usize,
    /// Generate code for this architecture, which may be older than the GPU's. Needed where there is no GPU.
    pub arch: Option<&'static Arch>,
    /// Consider these schedules only, instead of the whole space.
    pub schedules: Option<Vec<Schedule>>,
    /// Try no more than so many candidates, best predicted first.
    pub max_candidates: Option<usize>,
    /// Bytes of spill stores and loads beyond which a candidate is rejected. Some bytes outside of the loop cost nothing,
    /// and large tiles at 255 registers may still be the fastest, so that a measurement decides there.
    pub spill_limit: u32,
    /// Start afresh, whatever the cache knows.
    pub afresh: bool,
    /// Seed of the random inputs.
    pub seed: u64,
    /// What the random inputs are like. On data that are not normal the exact running maximum is tried too, and the result, which
    /// launches of that bucket then use, takes the place of one of other data.
    pub data: InputData,
    /// Compiler.
    pub toolchain: Toolchain,
    /// Where results are kept.
    pub cache: Cache,
    /// Ends tuning early.
    pub cancel: Cancel,
    /// Told what happens.
    pub on_event: OnEvent,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(60),
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            arch: None,
            schedules: None,
            max_candidates: None,
            spill_limit: 256,
            afresh: false,
            seed: 0,
            data: InputData::default(),
            toolchain: Toolchain::shared(),
            cache: Cache::shared(),
            cancel: Cancel::default(),
            on_event: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for TuneOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TuneOptions")
            .field("budget", &self.budget)
            .field("jobs", &self.jobs)
            .field("arch", &self.arch.map(|a| a.name))
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}
