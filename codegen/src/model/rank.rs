//! The schedules of the space with the seconds that the model predicts, best first.
//!
//! Planning a schedule takes milliseconds and does not depend on sizes. A [`Ranker`] keeps what it has planned, so that
//! a ranking for further sizes takes microseconds a schedule.
//!
//! A ranking does not verify plans: to verify a plan takes as long as to make it, and few of those
//! that are ranked become code. Those that do come through [`generate::generate_planned`], which
//! verifies them, whoever ranked them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use super::constants::Constants;
use super::integers::Integers;
use super::machine::Machine;
use super::time::{Judged, Prepared, prepare, prepare_planned};
use crate::arch::Arch;
use crate::artifact::Generated;
use crate::error::Error;
use crate::generate;
use crate::instance::Instance;
use crate::launches;
use crate::lower;
use crate::parallel::each;
use crate::planning::{Planned, planned};
use crate::reason::Reason;
use crate::rewrite::why_not_in_passes;
use crate::schedule::{Fixup, Schedule};
use crate::space::{self, FoldedSpace, Splits};

/// Schedules with splits, the best by prediction, with which the other ways to combine the parts are judged.
const COMBINED: usize = 32;
/// The same where a single schedule gets its parts anew.
const COMBINED_ANEW: usize = 2;
/// Schedules, the best by prediction, that are tried in parts too where half of the machine is full
/// without.
const REFILLING: usize = 16;
/// Schedules, the best by prediction, that are tried with blocks that end with their program too.
const LEAVING: usize = 16;
/// Schedules, the best by prediction, that are tried without summaries too.
const UNSUMMARISED: usize = 16;
/// Schedules, the best by prediction, whose loops are tried in other orders too.
const REORDERED: usize = 8;

/// The schedules of the space, judged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ranking {
    /// Those that are legal, with their predicted seconds, best first.
    pub legal: Vec<(Schedule, f64)>,
    /// Those that are not, with all reasons against each, in the order of the space.
    pub illegal: Vec<(Schedule, Vec<Reason>)>,
}

impl Ranking {
    /// Notes schedules as they were judged.
    fn add(&mut self, judged: Vec<(Schedule, Result<Judged, Error>)>) -> Result<(), Error> {
        for (schedule, judged) in judged {
            match judged {
                Ok(judged) => self.legal.push((schedule, judged.seconds)),
                Err(error) => self.refuse(schedule, error)?,
            }
        }
        Ok(())
    }

    /// Notes a schedule that is not legal.
    fn refuse(&mut self, schedule: Schedule, error: Error) -> Result<(), Error> {
        match error {
            Error::Illegal { .. } | Error::Unsupported { .. } => self.illegal.push((schedule, error.into_reasons())),
            other => return Err(other),
        }
        Ok(())
    }

    /// What schedules lack that have code, but no room on the GPU: what a user can mend, where other
    /// schedules have no code at all. `None` if there are no such schedules.
    fn short_of_resources(&self) -> Option<Vec<Reason>> {
        let is_resource = |reason: &Reason| matches!(reason, Reason::Resource { .. });
        let short = self.illegal.iter().map(|(_, reasons)| reasons).filter(|reasons| reasons.iter().all(is_resource));
        let reasons: Vec<Reason> = short.flatten().cloned().collect();
        (!reasons.is_empty()).then_some(reasons)
    }
}

/// Ranks the schedules of one kernel on one architecture, and keeps their plans' profiles for further sizes.
pub struct Ranker {
    instance: Instance,
    arch: &'static Arch,
    integers: Integers,
    prepared: RwLock<HashMap<Schedule, Arc<Result<Prepared, Error>>>>,
    /// The plans of the schedule that was predicted last: it is often the one that is generated
    /// next.
    predicted: Mutex<Option<(Schedule, Planned)>>,
    space: OnceLock<Space>,
}

/// What of the space does not depend on sizes.
struct Space {
    candidates: Vec<Schedule>,
    folded: Option<FoldedSpace>,
    can_split: bool,
    can_reorder: bool,
}

impl Ranker {
    /// Of an instance.
    pub fn new(instance: &Instance, arch: &'static Arch) -> Self {
        Self {
            instance: instance.clone(),
            arch,
            integers: Integers::default(),
            prepared: RwLock::default(),
            predicted: Mutex::default(),
            space: OnceLock::new(),
        }
    }

    /// The same for launches that read these integers: widths of windows, lengths, numbers of
    /// documents. What is not among them is taken to be typical.
    #[must_use]
    pub fn reading(self, integers: Integers) -> Self {
        Self { integers, ..self }
    }

    fn space(&self) -> &Space {
        self.space.get_or_init(|| Space {
            candidates: space::candidates(&self.instance, self.arch),
            folded: FoldedSpace::of(&self.instance),
            can_split: launches::why_not_split(&self.instance.kernel).is_none(),
            can_reorder: lower::why_not_reordered(&self.instance.kernel).is_none(),
        })
    }

    fn prepared(&self, schedule: &Schedule) -> Arc<Result<Prepared, Error>> {
        self.known(schedule).unwrap_or_else(|| self.keep(schedule, prepare(&self.instance, schedule, self.arch)))
    }

    fn known(&self, schedule: &Schedule) -> Option<Arc<Result<Prepared, Error>>> {
        self.prepared.read().unwrap_or_else(PoisonError::into_inner).get(schedule).cloned()
    }

    fn keep(&self, schedule: &Schedule, prepared: Result<Prepared, Error>) -> Arc<Result<Prepared, Error>> {
        let made = Arc::new(prepared);
        self.prepared.write().unwrap_or_else(PoisonError::into_inner).insert(schedule.clone(), made.clone());
        made
    }

    fn judge(&self, schedule: &Schedule, sizes: &BTreeMap<String, i64>, machine: &Machine) -> Result<Judged, Error> {
        match &*self.prepared(schedule) {
            Ok(prepared) => prepared.judge(sizes, &self.integers, machine, &Constants::FITTED),
            Err(error) => Err(error.clone()),
        }
    }

    /// Predicted seconds of one call with these run-time sizes.
    ///
    /// # Errors
    /// [`Error::Illegal`] with the reasons against the schedule, [`Error::Unsupported`].
    pub fn predict(&self, schedule: &Schedule, sizes: &BTreeMap<String, i64>, machine: &Machine) -> Result<f64, Error> {
        if self.known(schedule).is_none() {
            let planned = planned(&self.instance, schedule, self.arch);
            let prepared = planned.as_ref().map_err(Clone::clone).and_then(|planned| prepare_planned(planned, self.arch));
            self.keep(schedule, prepared);
            *self.predicted.lock().unwrap_or_else(PoisonError::into_inner) = planned.ok().map(|p| (schedule.clone(), p));
        }
        Ok(self.judge(schedule, sizes, machine)?.seconds)
    }

    /// As [`Ranker::predict`], of several schedules at once: those that were not planned before are
    /// planned side by side.
    pub fn predict_all(
        &self,
        schedules: &[&Schedule],
        sizes: &BTreeMap<String, i64>,
        machine: &Machine,
    ) -> Vec<Result<f64, Error>> {
        each(schedules.to_vec(), |schedule| Ok(self.judge(schedule, sizes, machine)?.seconds))
    }

    /// A schedule, and the same with its loop in as many parts as suit these sizes, or none: those
    /// that are legal, with their predicted seconds. How a loop is best split depends on how many
    /// programs there are; the tile does so less.
    pub fn split_for(&self, schedule: &Schedule, sizes: &BTreeMap<String, i64>, machine: &Machine) -> Vec<(Schedule, f64)> {
        let judged = |schedules: Vec<Schedule>| -> Vec<(Schedule, f64)> {
            let seconds = self.predict_all(&schedules.iter().collect::<Vec<_>>(), sizes, machine);
            schedules.into_iter().zip(seconds).filter_map(|(schedule, seconds)| Some((schedule, seconds.ok()?))).collect()
        };
        let whole = schedule.with_launches(|launches| (launches.split_k, launches.fixup) = (1, Fixup::Kernel));
        let splits = match self.judge(&whole, sizes, machine) {
            Ok(alone) if launches::why_not_split(&self.instance.kernel).is_none() => {
                space::splits(alone.programs, alone.slots, alone.trips)
            }
            _ => Splits::default(),
        };
        let all = [schedule.clone(), whole.clone()].into_iter().chain(with_parts(&whole, &splits.counts));
        let mut found = judged(distinct(all));
        found.sort_by(|a, b| a.1.total_cmp(&b.1));
        let best = found.iter().take(COMBINED_ANEW).map(|(split, _)| split);
        let combined = best.filter(|split| split.launches.split_k > 1).flat_map(|split| space::combining(split, self.arch));
        found.extend(judged(distinct(combined)));
        found
    }

    /// Generates the code of a schedule, from the plans of its prediction if these were the last.
    ///
    /// # Errors
    /// As [`crate::generate()`].
    pub fn generate(&self, schedule: &Schedule) -> Result<Generated, Error> {
        let predicted = self.predicted.lock().unwrap_or_else(PoisonError::into_inner).take();
        match predicted {
            Some((of, planned)) if of == *schedule => generate::generate_planned(planned, &self.instance, schedule, self.arch),
            _ => generate::generate(&self.instance, schedule, self.arch),
        }
    }

    /// All legal schedules of the space with their predicted seconds, best first.
    ///
    /// # Errors
    /// [`Error::NoLegalSchedule`] with the reasons if there is none.
    pub fn rank(&self, sizes: &BTreeMap<String, i64>, machine: &Machine) -> Result<Vec<(Schedule, f64)>, Error> {
        let ranking = self.ranking(sizes, machine)?;
        if ranking.legal.is_empty() {
            let all = || ranking.illegal.iter().flat_map(|(_, reasons)| reasons.iter().cloned()).collect();
            let mut reasons: Vec<Reason> = ranking.short_of_resources().unwrap_or_else(all);
            reasons.sort();
            reasons.dedup();
            let wide = why_not_in_passes(&self.instance.kernel, &self.instance.binding);
            reasons.extend(wide.map(|why| Reason::Kernel { why }));
            return Err(Error::NoLegalSchedule { arch: self.arch.name, reasons });
        }
        Ok(ranking.legal)
    }

    /// All schedules of the space, also those that are not legal, with the reasons. Either list may
    /// be empty. Schedules whose programs do not fill the machine are there with splits too, those
    /// with few programs with blocks that do not stay, those whose heads share tiles that one of
    /// them does not fill with folded rows, the best of those with summaries without them, since a
    /// short loop takes less than a launch ahead, and the best of those with a lazy maximum with
    /// their loops walked from the last tile.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no schedule of any kind could be legal, on a GPU with more memory
    /// neither.
    pub fn ranking(&self, sizes: &BTreeMap<String, i64>, machine: &Machine) -> Result<Ranking, Error> {
        let judged = |schedules: Vec<Schedule>| -> Vec<(Schedule, Result<Judged, Error>)> {
            let judge = |schedule: Schedule| {
                let judged = self.judge(&schedule, sizes, machine);
                (schedule, judged)
            };
            each(schedules, judge)
        };
        let (arch, space) = (self.arch, self.space());
        let mut ranking = Ranking::default();
        let mut unsupported = None;
        let (mut splits, mut refilling) = (Vec::new(), Vec::new());
        let mut leaving = Vec::new();
        let mut candidates = space.candidates.clone();
        candidates
            .extend(space.folded.iter().flat_map(|folded| folded.schedules(&self.instance, arch, sizes, &space.candidates)));
        for (schedule, judged) in judged(candidates) {
            match judged {
                Ok(judged) => {
                    if space.can_split {
                        let found = space::splits(judged.programs, judged.slots, judged.trips);
                        let split = with_parts(&schedule, &found.counts);
                        if found.half_empty { &mut splits } else { &mut refilling }.push((split, judged.seconds));
                    }
                    let leaves = crate::space::leaving(&schedule, judged.programs, judged.slots);
                    leaving.extend(leaves.map(|leaves| (leaves, judged.seconds)));
                    ranking.legal.push((schedule, judged.seconds));
                }
                // One instruction may take what another does not.
                Err(error @ Error::Unsupported { .. }) => {
                    ranking.illegal.push((schedule, error.clone().into_reasons()));
                    unsupported = Some(error);
                }
                Err(error) => ranking.refuse(schedule, error)?,
            }
        }
        leaving.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut leaving = distinct(leaving.into_iter().map(|(schedule, _)| schedule));
        leaving.truncate(LEAVING);
        ranking.add(judged(leaving))?;
        // Where the machine is not half empty, few schedules gain by a split.
        refilling.retain(|(split, _)| !split.is_empty());
        refilling.sort_by(|a, b| a.1.total_cmp(&b.1));
        refilling.truncate(REFILLING);
        let splits = splits.into_iter().chain(refilling).flat_map(|(split, _)| split).collect();
        let mut in_parts = Ranking::default();
        in_parts.add(judged(splits))?;
        // How the parts are combined matters less than which parts there are: the other ways are tried with the best of these.
        in_parts.legal.sort_by(|a, b| a.1.total_cmp(&b.1));
        let best = in_parts.legal.iter().take(COMBINED);
        let combining = distinct(best.flat_map(|(schedule, _)| space::combining(schedule, arch)));
        ranking.legal.extend(in_parts.legal);
        ranking.illegal.extend(in_parts.illegal);
        ranking.add(judged(combining))?;
        if let Some(error) = unsupported.filter(|_| ranking.legal.is_empty() && ranking.short_of_resources().is_none()) {
            return Err(error);
        }
        ranking.legal.sort_by(|a, b| a.1.total_cmp(&b.1));
        let walked_whole = ranking.legal.iter().filter_map(|(schedule, _)| space::unsummarised(schedule));
        ranking.add(judged(distinct(walked_whole.take(UNSUMMARISED))))?;
        ranking.legal.sort_by(|a, b| a.1.total_cmp(&b.1));
        if space.can_reorder {
            // Steps cost the same in either order: how often a maximum moves is a matter of the data.
            let best = ranking.legal.iter().map(|(schedule, seconds)| (space::reordered(schedule), *seconds));
            let best: Vec<(Vec<Schedule>, f64)> = best.filter(|(walks, _)| !walks.is_empty()).take(REORDERED).collect();
            let mut in_other_orders = Ranking::default();
            in_other_orders.add(judged(best.iter().flat_map(|(walks, _)| walks.clone()).collect()))?;
            for (schedule, seconds) in &mut in_other_orders.legal {
                let as_written = best.iter().find(|(walks, _)| walks.contains(schedule));
                *seconds = as_written.expect("it was judged").1;
            }
            ranking.legal.extend(in_other_orders.legal);
            ranking.illegal.extend(in_other_orders.illegal);
            let untuned = space::untuned_walk(&self.instance);
            let behind = |schedule: &Schedule| schedule.main.walk != untuned;
            ranking.legal.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| behind(&a.0).cmp(&behind(&b.0))));
        }
        Ok(ranking)
    }
}

/// The schedule with its loop in each of these numbers of parts.
fn with_parts(schedule: &Schedule, counts: &[u32]) -> Vec<Schedule> {
    counts.iter().map(|&count| schedule.with_launches(|launches| launches.split_k = count)).collect()
}

/// The schedules in their order, each once.
fn distinct(schedules: impl Iterator<Item = Schedule>) -> Vec<Schedule> {
    let mut seen = HashSet::new();
    schedules.filter(|schedule| seen.insert(schedule.clone())).collect()
}

/// Predicted seconds of one launch with these run-time sizes.
///
/// # Errors
/// As [`Ranker::predict`].
pub fn predict(
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<f64, Error> {
    Ranker::new(instance, arch).predict(schedule, sizes, machine)
}

/// The schedule that the model ranks first.
///
/// # Errors
/// As [`Ranker::rank`].
pub fn default_schedule(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Schedule, Error> {
    let ranked = rank(instance, arch, sizes, machine)?;
    Ok(ranked.into_iter().next().expect("a ranking is not empty").0)
}

/// All legal schedules of the space with their predicted seconds, best first.
///
/// # Errors
/// As [`Ranker::rank`].
pub fn rank(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Vec<(Schedule, f64)>, Error> {
    Ranker::new(instance, arch).rank(sizes, machine)
}
