//! The order in which candidates are compiled and tried.
//!
//! First one of each *kind*: the schedules that share their rows, their blocks on a multiprocessor, their instruction and the
//! launches they need. What the model gets wrong it gets wrong for a kind as a whole, so that the measurement of one says
//! how far its prediction can be trusted for the others. Then the rest: shortest prediction first, each corrected by what
//! was measured of its kind so far.
//!
//! Schedules with `running_max=first` are one kind, and the last whose first one is tried: data decide
//! whether most programs are made again, for all of them alike, and a short budget must not end with
//! nothing else measured.

use std::collections::BTreeMap;
use std::sync::Mutex;

use flashtile_codegen::{BLayout, Differences, Fixup, PackGqa, Persistent, Precompute, RunningMax, Schedule, TensorOp, Terms};

/// Kinds whose best prediction is beyond this factor of the best of all wait with the rest.
const PROMISING: f64 = 2.0;

/// What the model tends to be wrong about in the same way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum KindOf {
    /// Schedules whose time does not depend on data by a factor.
    Steady(Steady),
    /// Those whose programs may be made again, all of them.
    MadeAgain,
}

/// What steady schedules of a kind share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Steady {
    tensor_op: TensorOp,
    block_m: u32,
    warps: u32,
    min_blocks: u32,
    /// Whether a step takes many columns.
    wide: bool,
    /// Whether blocks stay for several programs.
    stays: bool,
    split: bool,
    fixup: Fixup,
    pack_gqa: PackGqa,
    precompute: Precompute,
    differences: Differences,
    terms: Terms,
    b_layout: BLayout,
}

/// Columns of a step from which on it is wide.
const WIDE: u32 = 112;

impl KindOf {
    pub fn of(schedule: &Schedule) -> Self {
        if schedule.main.running_max == RunningMax::First {
            return KindOf::MadeAgain;
        }
        let split = schedule.launches.split_k > 1;
        KindOf::Steady(Steady {
            tensor_op: schedule.main.tensor_op,
            block_m: schedule.main.block_m,
            warps: schedule.main.warps,
            min_blocks: schedule.main.min_blocks,
            wide: schedule.main.block_n >= WIDE,
            stays: schedule.main.persistent != Persistent::Off,
            split,
            fixup: if split { schedule.launches.fixup } else { Fixup::Kernel },
            pack_gqa: schedule.launches.pack_gqa,
            precompute: schedule.launches.precompute,
            differences: schedule.launches.differences,
            terms: schedule.launches.terms,
            b_layout: schedule.launches.b_layout,
        })
    }
}

/// A candidate that waits for its turn.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Waiting {
    index: usize,
    kind: KindOf,
    predicted: f64,
}

/// What was measured over what was predicted, as logarithms.
#[derive(Clone, Copy, Default, Debug)]
struct Learned {
    sum: f64,
    count: f64,
}

struct State {
    /// The first of each promising kind, the best last.
    first: Vec<Waiting>,
    rest: Vec<Waiting>,
    of_kind: BTreeMap<KindOf, Learned>,
    of_all: Learned,
}

/// Candidates that wait, shared by the threads that compile.
pub(super) struct Queue {
    state: Mutex<State>,
    /// The candidates of the first part.
    first: Vec<usize>,
}

impl Queue {
    /// All of `waiting`: positions, schedules and predicted seconds.
    pub fn new<'a>(waiting: impl IntoIterator<Item = (usize, &'a Schedule, f64)>) -> Self {
        let mut rest: Vec<Waiting> = waiting
            .into_iter()
            .map(|(index, schedule, predicted)| Waiting { index, kind: KindOf::of(schedule), predicted })
            .collect();
        rest.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
        let best = rest.first().map_or(f64::INFINITY, |w| w.predicted);
        let mut kinds = Vec::new();
        let (mut first, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|w| {
            let is_first = w.predicted <= PROMISING * best && !kinds.contains(&w.kind);
            kinds.extend(is_first.then_some(w.kind));
            is_first
        });
        first.sort_by_key(|w| w.kind == KindOf::MadeAgain);
        let indices = first.iter().map(|w| w.index).collect();
        first.reverse();
        let state = State { first, rest, of_kind: BTreeMap::new(), of_all: Learned::default() };
        Self { state: Mutex::new(state), first: indices }
    }

    /// One of each promising kind, best predicted first, and behind them one that may be made again.
    pub fn first(&self) -> &[usize] {
        &self.first
    }

    /// The next candidate to compile.
    pub fn next(&self) -> Option<usize> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(waiting) = state.first.pop() {
            return Some(waiting.index);
        }
        let at = (0..state.rest.len()).min_by(|&a, &b| {
            let corrected = |at: usize| state.rest[at].predicted * state.factor(state.rest[at].kind);
            corrected(a).total_cmp(&corrected(b))
        })?;
        // In order, so that candidates with equal predictions keep theirs.
        Some(state.rest.remove(at).index)
    }

    /// Notes what a candidate of a schedule took.
    pub fn learn(&self, schedule: &Schedule, predicted: f64, measured: f64) {
        let error = (measured / predicted).ln();
        if !error.is_finite() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let state = &mut *state;
        for learned in [state.of_kind.entry(KindOf::of(schedule)).or_default(), &mut state.of_all] {
            learned.sum += error;
            learned.count += 1.0;
        }
    }
}

impl State {
    /// Measured over predicted time of a kind, as far as is known: that of all where nothing of the kind was measured.
    fn factor(&self, kind: KindOf) -> f64 {
        let mean = |learned: &Learned| if learned.count > 0.0 { learned.sum / learned.count } else { 0.0 };
        self.of_kind.get(&kind).map_or_else(|| mean(&self.of_all), mean).exp()
    }
}

#[cfg(test)]
mod tests {
    use flashtile_codegen::BlockKnobs;

    use super::*;

    fn schedule(block_m: u32, block_n: u32, min_blocks: u32) -> Schedule {
        BlockKnobs { block_m, block_n, min_blocks, ..BlockKnobs::default() }.into()
    }

    #[test]
    fn one_of_each_promising_kind_comes_first() {
        let all = [
            (schedule(128, 128, 1), 1.0),
            (schedule(128, 160, 1), 1.1),
            (schedule(64, 128, 2), 1.2),
            (schedule(128, 64, 1), 1.3),
            (schedule(192, 128, 1), 2.5),
        ];
        let queue = Queue::new(all.iter().enumerate().map(|(i, (s, p))| (i, s, *p)));
        assert_eq!(queue.first(), [0, 2, 3], "the fifth is too slow to be promising");
        let order: Vec<usize> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(order, [0, 2, 3, 1, 4]);
    }

    #[test]
    fn programs_that_may_be_made_again_wait_for_one_of_each_kind() {
        let again = |block_m: u32| schedule(block_m, 128, 1).with_main(|main| main.running_max = RunningMax::First);
        let all = [(again(128), 0.8), (again(192), 0.9), (schedule(128, 128, 1), 1.0), (schedule(64, 64, 2), 1.2)];
        let queue = Queue::new(all.iter().enumerate().map(|(i, (s, p))| (i, s, *p)));
        assert_eq!(queue.first(), [2, 3, 0]);
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(2), Some(3), Some(0)]);
        queue.learn(&all[2].0, 1.0, 1.0);
        queue.learn(&all[0].0, 0.8, 1.7);
        assert_eq!([queue.next(), queue.next()], [Some(1), None], "the last, whatever was predicted");
    }

    #[test]
    fn a_kind_that_proved_slow_waits() {
        let all = [
            (schedule(64, 128, 2), 1.0),
            (schedule(64, 160, 2), 1.01),
            (schedule(128, 128, 1), 1.1),
            (schedule(128, 160, 1), 1.2),
        ];
        let queue = Queue::new(all.iter().enumerate().map(|(i, (s, p))| (i, s, *p)));
        assert_eq!([queue.next(), queue.next()], [Some(0), Some(2)]);
        queue.learn(&all[0].0, 1.0, 1.6);
        queue.learn(&all[2].0, 1.1, 1.1);
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(3), Some(1), None]);
    }

    #[test]
    fn what_cannot_be_predicted_comes_last_and_teaches_nothing() {
        let all = [(schedule(64, 64, 0), f64::INFINITY), (schedule(64, 96, 0), 1.0)];
        let queue = Queue::new(all.iter().enumerate().map(|(i, (s, p))| (i, s, *p)));
        assert_eq!(queue.first(), [1]);
        queue.learn(&all[0].0, f64::INFINITY, 1.0);
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(1), Some(0), None]);
    }
}
