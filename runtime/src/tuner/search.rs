//! The search for the best candidate: try one of each kind, then all in the order of [`super::queue`]; drop losers in rounds;
//! let the best few run against each other under load.
//!
//! | round | who is in it | repetitions |
//! | --- | --- | --- |
//! | 1 | every candidate, as it is compiled, one of each kind first; out after two runs at twice the best time | 3 |
//! | 2, 3, 4 | within 1.15, 1.08, 1.05 of the best, at most 32, 16, 8 | 5, 10, 10 more, in turns |
//! | run-off | those that are left | 7 visits, in turns |
//!
//! Candidates of a round are measured in turns, so that a drift of the clock hits all alike. A run of a round is a single one on a
//! cool device; a visit of the run-off is many launches that follow each other, since under load a device that is at its power limit
//! lowers its clock, for some candidates more than for others.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use flashtile_codegen::Schedule;
use serde::Serialize;

use super::bench::{Bench, Compilation, Compiler, Rejection};
use super::options::{Cancel, Event};
use super::queue::Queue;
use crate::cache::{Candidate, Measurement, Outcome, Stage};

/// Runs before the first that counts.
const WARM_UPS: usize = 1;
/// Repetitions of the first round.
const FIRST_REPETITIONS: usize = 3;
/// A candidate is out at once if each of its first runs takes longer than this many times the best median.
const HOPELESS: f64 = 2.0;
/// How many runs that takes: of 1500 first runs two were beside a stall of 4 ms.
const HOPELESS_RUNS: usize = 2;
/// Factor to the best median, number of survivors and repetitions of each further round.
const ROUNDS: [(f64, usize, usize); 3] = [(1.15, 32, 5), (1.08, 16, 10), (1.05, 8, 10)];
/// Visits of each candidate in the run-off.
const VISITS: usize = 7;
/// What is known is kept after so many candidates.
pub(super) const KEEP_EVERY: usize = 16;
/// Share of the budget for the first round.
const FIRST_SHARE: f64 = 0.75;
/// Shares of the budget in which one of each kind is tried, and in which something is measured at all.
const UNTIL_EACH_KIND: f64 = 2.0;
const UNTIL_MEASURED: f64 = 10.0;
/// Share of the budget that the other rounds have at least, also where the first one took longer than its own: what wins single
/// runs on a cool device is not what wins under load.
const LATER_SHARE: f64 = 0.25;
/// A candidate within this factor of the roofline cannot be beaten by much.
const ROOFLINE: f64 = 1.03;

/// Why a search ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Every candidate was tried.
    Exhausted,
    /// A candidate reached the roofline.
    Roofline,
    /// The budget was spent.
    Budget,
    /// It was cancelled.
    Cancelled,
    /// The device failed and is of no more use to this process.
    DeviceLost(String),
}

/// Bounds of a search.
pub(super) struct Limits<'a> {
    pub budget: Duration,
    pub jobs: usize,
    pub spill_limit: u32,
    /// Seconds below which no schedule can get; 0 where unknown.
    pub roofline: f64,
    pub cancel: &'a Cancel,
}

/// Result of a search; what became of the candidates is in them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Found {
    pub winner: Option<usize>,
    pub stop: Stop,
}

/// A candidate that is in the race.
struct Runner<L> {
    index: usize,
    loaded: L,
    samples: Vec<f64>,
}

struct Search<'a, C, B: Bench<C>> {
    bench: B,
    limits: &'a Limits<'a>,
    candidates: &'a mut [Candidate],
    on_event: &'a dyn Fn(&Event),
    keep: &'a mut dyn FnMut(&[Candidate]),
    /// Why the search must end now.
    stop: Option<Stop>,
    /// When the budget ends.
    end: Duration,
    code: PhantomData<C>,
}

/// Searches among `candidates`. Those that an earlier search rejected or
/// eliminated stay so; those that it measured are measured again. `keep` is called now and then to keep what is known.
pub(super) fn search<K: Compiler, B: Bench<K::Code>>(
    candidates: &mut [Candidate],
    compiler: &K,
    bench: B,
    limits: &Limits<'_>,
    on_event: &dyn Fn(&Event),
    keep: &mut dyn FnMut(&[Candidate]),
) -> Found {
    let mut search = Search { bench, limits, candidates, on_event, keep, stop: None, end: limits.budget, code: PhantomData };
    let mut runners = search.first_round(compiler);
    // The first round has a share of the budget; the rest is for the others, also when it was cut short.
    let first = match search.stop.take() {
        Some(Stop::Budget) => Some(Stop::Budget),
        other => {
            search.stop = other;
            None
        }
    };
    search.end = search.end.max(search.bench.elapsed() + limits.budget.mul_f64(LATER_SHARE));
    search.further_rounds(&mut runners);
    search.run_off(&mut runners);
    let winner = runners.first().map(|r| r.index);
    let stop = search.stop.take().or(first).unwrap_or(Stop::Exhausted);
    (search.keep)(search.candidates);
    Found { winner, stop }
}

/// Compiles candidates on several threads, in the order of the queue, and hands over each as it is
/// done, until `stop` is set. The first of the queue is handed over first: the inputs and the
/// oracle of a large call may take a short budget, which then ends with the one candidate that was
/// tried.
pub(super) fn compile_all<K: Compiler>(
    compiler: &K,
    schedules: &[Schedule],
    queue: &Queue,
    jobs: usize,
    stop: &AtomicBool,
    mut receive: impl FnMut(usize, Result<Compilation<K::Code>, Rejection>),
) {
    // A short queue: compiled code waits for the device, not in memory.
    let (sender, receiver) = mpsc::sync_channel(2 * jobs.max(1));
    let next = || if stop.load(Ordering::Relaxed) { None } else { queue.next() };
    std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..jobs.max(1) {
            let (sender, next) = (sender.clone(), &next);
            let work = move || {
                while let Some(index) = next() {
                    let compiled = compiler.compile(&schedules[index]);
                    if sender.send((index, compiled)).is_err() {
                        break;
                    }
                }
            };
            // A container may allow fewer threads than there are cores.
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => started += 1,
                Err(_) => break,
            }
        }
        drop(sender);
        let (mut awaited, mut held) = (queue.first().first().copied(), Vec::new());
        for (index, compiled) in receiver {
            if awaited.is_some_and(|first| first != index) {
                held.push((index, compiled));
                continue;
            }
            awaited = None;
            receive(index, compiled);
            held.drain(..).for_each(|(index, compiled)| receive(index, compiled));
        }
        held.into_iter().for_each(|(index, compiled)| receive(index, compiled));
        while started == 0
            && let Some(index) = next()
        {
            receive(index, compiler.compile(&schedules[index]));
        }
    });
}

/// Notes what compiling gave, and rejects what spills or was serialised. The code, unless it is rejected.
pub(super) fn note_compilation<C>(
    candidate: &mut Candidate,
    compiled: Result<Compilation<C>, Rejection>,
    spill_limit: u32,
) -> Option<C> {
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(rejection) => {
            reject(candidate, rejection);
            return None;
        }
    };
    candidate.source_hash = compiled.source_hash;
    candidate.compile_seconds = compiled.seconds;
    candidate.max_error = compiled.max_error;
    let spills = compiled.report.spill_stores + compiled.report.spill_loads;
    let remark = compiled.report.remarks.first().cloned();
    candidate.report = Some(compiled.report);
    if let Some(remark) = remark {
        reject(candidate, Rejection::new(Stage::Remark, remark));
        return None;
    }
    if spills > spill_limit {
        reject(candidate, Rejection::new(Stage::Spills, format!("{spills} bytes of spills, {spill_limit} are allowed")));
        return None;
    }
    Some(compiled.code)
}

fn reject(candidate: &mut Candidate, rejection: Rejection) {
    candidate.max_error = rejection.max_error.or(candidate.max_error);
    candidate.outcome = Outcome::Rejected { stage: rejection.stage, reason: rejection.reason };
}

impl<C: Send, B: Bench<C>> Search<'_, C, B> {
    /// Whether the search must end now: cancelled, or beyond `share` of the budget.
    fn must_stop(&mut self, share: f64) -> bool {
        if self.stop.is_none() {
            if self.limits.cancel.is_cancelled() {
                self.stop = Some(Stop::Cancelled);
            } else if self.is_spent(share) {
                self.stop = Some(Stop::Budget);
            }
        }
        self.stop.is_some()
    }

    fn is_spent(&self, share: f64) -> bool {
        self.bench.elapsed() > self.end.mul_f64(share)
    }

    /// Tries every candidate that is not out already. Gives the survivors, best first.
    fn first_round<K: Compiler<Code = C>>(&mut self, compiler: &K) -> Vec<Runner<B::Loaded>> {
        let out = |c: &Candidate| matches!(c.outcome, Outcome::Rejected { .. } | Outcome::Eliminated { .. });
        let todo: Vec<usize> = (0..self.candidates.len()).filter(|&i| !out(&self.candidates[i])).collect();
        let of = self.candidates.len();
        (self.on_event)(&Event::Started { candidates: of, known: of - todo.len() });
        let is_rejected = |c: &Candidate| matches!(c.outcome, Outcome::Rejected { .. });
        let mut rejected = self.candidates.iter().filter(|c| is_rejected(c)).count();
        let mut done = of - todo.len();
        let mut best = f64::INFINITY;
        let mut runners: Vec<Runner<B::Loaded>> = Vec::new();
        let stop = AtomicBool::new(false);
        let schedules: Vec<Schedule> = self.candidates.iter().map(|c| c.schedule.clone()).collect();
        let predicted: Vec<f64> = self.candidates.iter().map(|c| c.predicted).collect();
        let queue = Queue::new(todo.iter().map(|&i| (i, &schedules[i], predicted[i])));
        let (mut untried, mut dropped) = (queue.first().to_vec(), false);
        compile_all(compiler, &schedules, &queue, self.limits.jobs, &stop, |index, compiled| {
            // What compiles first may be the slowest: until one of each kind was tried there is no result worth having, and until
            // something is measured none at all. The inputs and the oracle of a large call may take longer than a short budget.
            let is_first = untried.contains(&index);
            let share = match (runners.is_empty(), untried.is_empty()) {
                (true, _) => UNTIL_MEASURED,
                (false, false) => UNTIL_EACH_KIND,
                (false, true) => FIRST_SHARE,
            };
            if self.must_stop(share) {
                stop.store(true, Ordering::Relaxed);
                return; // what is in the queue is dropped
            }
            untried.retain(|&i| i != index);
            if self.is_spent(FIRST_SHARE) && !runners.is_empty() && !is_first {
                dropped = true;
                return;
            }
            if let Some(runner) = self.try_one(index, compiled, best) {
                best = best.min(median(&runner.samples));
                runners.push(runner);
                if best <= self.limits.roofline * ROOFLINE {
                    self.stop = Some(Stop::Roofline);
                }
            }
            if let Some(measured) = &self.candidates[index].measured {
                queue.learn(&schedules[index], predicted[index], measured.median);
            }
            done += 1;
            rejected += usize::from(is_rejected(&self.candidates[index]));
            (self.on_event)(&Event::Tried { done, of, rejected, best: best.is_finite().then_some(best) });
            if done.is_multiple_of(KEEP_EVERY) {
                (self.keep)(self.candidates);
            }
            stop.store(self.stop.is_some(), Ordering::Relaxed);
        });
        if dropped {
            self.stop.get_or_insert(Stop::Budget);
        }
        sort(&mut runners);
        runners
    }

    /// Checks and measures one candidate. The runner, if it stays in the race.
    fn try_one(&mut self, index: usize, compiled: Result<Compilation<C>, Rejection>, best: f64) -> Option<Runner<B::Loaded>> {
        let code = note_compilation(&mut self.candidates[index], compiled, self.limits.spill_limit)?;
        self.measure_first(index, code, best).unwrap_or_else(|rejection| {
            self.reject(index, rejection);
            None
        })
    }

    fn measure_first(&mut self, index: usize, code: C, best: f64) -> Result<Option<Runner<B::Loaded>>, Rejection> {
        let (loaded, max_error) = self.bench.check(code)?;
        self.candidates[index].max_error = Some(max_error);
        for _ in 0..WARM_UPS {
            self.bench.time(&loaded)?;
        }
        let mut samples = Vec::with_capacity(FIRST_REPETITIONS);
        let mut hopeless = false;
        for _ in 0..FIRST_REPETITIONS {
            samples.push(self.bench.time(&loaded)?);
            hopeless = samples.len() >= HOPELESS_RUNS && samples.iter().all(|&s| s > HOPELESS * best);
            if hopeless {
                break;
            }
        }
        let candidate = &mut self.candidates[index];
        candidate.measured = Some(measurement(&samples));
        candidate.outcome = if hopeless { Outcome::Eliminated { round: 1 } } else { Outcome::Measured };
        Ok((!hopeless).then_some(Runner { index, loaded, samples }))
    }

    fn reject(&mut self, index: usize, rejection: Rejection) {
        if rejection.fatal {
            self.stop = Some(Stop::DeviceLost(rejection.reason.clone()));
        }
        reject(&mut self.candidates[index], rejection);
    }

    /// Drops losers, measuring the others again, until the best few are left. Best first.
    fn further_rounds(&mut self, runners: &mut Vec<Runner<B::Loaded>>) {
        for (number, (factor, most, repetitions)) in (2..).zip(ROUNDS) {
            let Some(best) = runners.first().map(|r| median(&r.samples)) else { return };
            for (place, runner) in runners.iter().enumerate() {
                if place >= most || median(&runner.samples) > factor * best {
                    self.candidates[runner.index].outcome = Outcome::Eliminated { round: number };
                }
            }
            let candidates = &self.candidates;
            runners.retain(|r| candidates[r.index].outcome == Outcome::Measured);
            if runners.len() == 1 {
                return;
            }
            (self.on_event)(&Event::Round { round: number, candidates: runners.len(), best });
            for _ in 0..repetitions {
                if self.must_stop(1.0) {
                    sort(runners);
                    return;
                }
                self.measure_again(runners);
            }
            sort(runners);
        }
    }

    /// Measures every runner once; one that fails is out.
    fn measure_again(&mut self, runners: &mut Vec<Runner<B::Loaded>>) {
        runners.retain_mut(|runner| {
            let index = runner.index;
            match self.bench.time(&runner.loaded) {
                Ok(seconds) => {
                    runner.samples.push(seconds);
                    self.candidates[index].measured = Some(measurement(&runner.samples));
                    true
                }
                Err(rejection) => {
                    self.reject(index, rejection);
                    false
                }
            }
        });
    }

    /// Measures those that are left in turns under load, and sorts them by that; one that fails is out. The end of the budget lets
    /// what is known so far stand.
    fn run_off(&mut self, runners: &mut Vec<Runner<B::Loaded>>) {
        if self.stop.is_some() || runners.len() < 2 {
            return;
        }
        (self.on_event)(&Event::RunOff { candidates: runners.len() });
        for runner in &mut *runners {
            runner.samples.clear();
        }
        for _ in 0..VISITS {
            if self.must_stop(1.0) {
                break;
            }
            runners.retain_mut(|runner| match self.bench.time_under_load(&runner.loaded) {
                Ok(seconds) => {
                    runner.samples.push(seconds);
                    self.candidates[runner.index].under_load = Some(measurement(&runner.samples));
                    true
                }
                Err(rejection) => {
                    self.reject(runner.index, rejection);
                    false
                }
            });
        }
        sort(runners);
    }
}

fn sort<L>(runners: &mut [Runner<L>]) {
    runners.sort_by(|a, b| median(&a.samples).total_cmp(&median(&b.samples)));
}

fn measurement(samples: &[f64]) -> Measurement {
    let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
    Measurement { median: median(samples), min, repetitions: samples.len() as u32 }
}

/// The median; infinite for no samples.
pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::INFINITY,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
