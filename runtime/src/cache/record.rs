//! What entries hold: tuning results with all their evidence, and compiled code.

use std::collections::BTreeMap;

use flashtile_codegen::{Reason, Schedule, Summary};
use serde::{Deserialize, Serialize};

use super::key::{ModuleKey, TuningKey};
use crate::toolchain::PtxasReport;
use crate::tuner::InputData;

/// Where a candidate was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It is not legal: no code was generated for it.
    Legality,
    /// The code generator refused it.
    Generate,
    /// NVRTC refused it.
    Compile,
    /// ptxas remarked that asynchronous instructions were serialised.
    Remark,
    /// It spills registers.
    Spills,
    /// The driver did not load it or a launch failed.
    Launch,
    /// Its results are wrong, or the emulator found a fault.
    Check,
    /// The emulator counted too many bank conflicts.
    Conflicts,
}

/// What became of a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its turn never came.
    NotTried,
    /// Compiled, and ranked by the cost model alone: there was no GPU.
    Predicted,
    /// Measured to the end.
    Measured,
    /// Dropped in a round of elimination, from 1.
    Eliminated {
        /// The round.
        round: u32,
    },
    /// Rejected before it was measured.
    Rejected {
        /// Where.
        stage: Stage,
        /// Why, in words.
        reason: String,
    },
}

/// Times of a candidate, in seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Median.
    pub median: f64,
    /// Shortest.
    pub min: f64,
    /// Repetitions.
    pub repetitions: u32,
}

/// A schedule that was considered, and the evidence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// The schedule.
    pub schedule: Schedule,
    /// The cost model's prediction, in seconds; infinite for a schedule that it cannot judge.
    #[serde(with = "maybe_infinite")]
    pub predicted: f64,
    /// [`ModuleKey::hash_of_code`] of its CUDA C; empty if it was not generated.
    pub source_hash: String,
    /// Resources, if it compiled.
    pub report: Option<PtxasReport>,
    /// Seconds that compiling took.
    pub compile_seconds: f64,
    /// Largest error against the float64 oracle, if its results were compared with it: of results that are wrong too, there
    /// over the elements that are finite. Without a GPU, of the small call that the emulator executes.
    pub max_error: Option<f64>,
    /// Times, if it was measured.
    pub measured: Option<Measurement>,
    /// Times of a run among many that follow each other, if it was among the best few, of which this chooses. Where all tensors fit
    /// into the L2 cache, of runs with a cold one, as those above: following each other they would read nothing from memory.
    pub under_load: Option<Measurement>,
    /// What became of it.
    pub outcome: Outcome,
}

impl Candidate {
    /// A schedule whose turn has not come.
    pub fn new(schedule: Schedule, predicted: f64) -> Self {
        Self {
            schedule,
            predicted,
            source_hash: String::new(),
            report: None,
            compile_seconds: 0.0,
            max_error: None,
            measured: None,
            under_load: None,
            outcome: Outcome::NotTried,
        }
    }

    /// A schedule that is not legal.
    pub fn illegal(schedule: Schedule, reasons: &[Reason]) -> Self {
        let outcome = Outcome::Rejected { stage: Stage::Legality, reason: Summary::all(reasons).to_string() };
        Self { outcome, ..Self::new(schedule, f64::INFINITY) }
    }

    /// Whether it was rejected because it is not legal.
    pub fn is_illegal(&self) -> bool {
        matches!(self.outcome, Outcome::Rejected { stage: Stage::Legality, .. })
    }

    /// Whether it can be a winner.
    fn works(&self) -> bool {
        !matches!(self.outcome, Outcome::NotTried | Outcome::Rejected { .. })
    }

    /// Whether it is faster than another one of the same sizes and data: under load where both were
    /// run so, else by single runs, else by the cost model. What was measured beats what was not.
    fn beats(&self, other: &Candidate) -> bool {
        let median = |m: &Option<Measurement>| m.as_ref().map(|m| m.median);
        match (median(&self.under_load), median(&other.under_load), median(&self.measured), median(&other.measured)) {
            (Some(own), Some(others), ..) | (.., Some(own), Some(others)) => own < others,
            (.., own, others) if own.is_some() != others.is_some() => own.is_some(),
            _ => self.predicted < other.predicted,
        }
    }

    /// Whether its code was at least generated, so that something is known of it that is worth keeping.
    pub fn tried(&self) -> bool {
        self.outcome != Outcome::NotTried && !self.is_illegal()
    }
}

/// In place of the version of NVRTC in a record that holds the cost model's choice and no evidence.
pub const NO_NVRTC: (u32, u32) = (0, 0);

/// Result of tuning for one key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TuningRecord {
    /// What it depends on.
    pub key: TuningKey,
    /// Version of NVRTC that compiled the candidates.
    pub nvrtc: (u32, u32),
    /// The shape that was tuned, by the names of the run-time sizes.
    pub sizes: BTreeMap<String, i64>,
    /// What the inputs were like that candidates were measured on.
    #[serde(default, skip_serializing_if = "InputData::is_default")]
    pub data: InputData,
    /// Index of the best candidate; `None` if tuning ended before there was one.
    pub winner: Option<usize>,
    /// Whether tuning went to its end, or was cancelled or out of time.
    pub complete: bool,
    /// Every candidate; those that are not legal come last.
    pub candidates: Vec<Candidate>,
}

impl TuningRecord {
    /// The best candidate.
    pub fn winning(&self) -> Option<&Candidate> {
        self.candidates.get(self.winner?)
    }

    /// Adds the evidence of another record of the same key, such as one that another process wrote
    /// meanwhile. What this record knows of a schedule stays.
    ///
    /// The faster of two winners wins, of those that this record has not rejected. A mere choice of
    /// the cost model replaces no evidence, and any evidence replaces it. Times of another NVRTC,
    /// other data or other sizes of the bucket do not compare: of two such records that with a winner
    /// is kept, and this one if both have one.
    pub fn merge(&mut self, other: &TuningRecord) {
        if other.key != self.key || other.nvrtc == NO_NVRTC {
            return;
        }
        if self.nvrtc == NO_NVRTC {
            self.clone_from(other);
            return;
        }
        if (other.nvrtc, &other.data, &other.sizes) != (self.nvrtc, &self.data, &self.sizes) {
            if self.winner.is_none() && other.winner.is_some() {
                self.clone_from(other);
            }
            return;
        }
        for candidate in &other.candidates {
            match self.candidates.iter_mut().find(|c| c.schedule == candidate.schedule) {
                Some(own) if own.outcome == Outcome::NotTried => *own = candidate.clone(),
                Some(_) => {}
                None => self.candidates.push(candidate.clone()),
            }
        }
        let place = |winner: &Candidate| self.candidates.iter().position(|c| c.works() && c.schedule == winner.schedule);
        let of_either = [self.winner, other.winning().and_then(place)];
        self.winner = match (of_either, other.winner) {
            // The other winner is known by now not to work: the best of the rest.
            ([None, None], Some(_)) => self.best((0..self.candidates.len()).filter(|&i| self.candidates[i].works())),
            (either, _) => self.best(either.into_iter().flatten()),
        };
        self.complete |= other.complete;
    }

    /// The fastest of these candidates, the first of equals.
    fn best(&self, among: impl Iterator<Item = usize>) -> Option<usize> {
        among.reduce(|best, i| if self.candidates[i].beats(&self.candidates[best]) { i } else { best })
    }
}

/// Compiled code.
#[derive(Clone, PartialEq, Debug)]
pub struct ModuleRecord {
    /// What it depends on.
    pub key: ModuleKey,
    /// Version of NVRTC that compiled it.
    pub nvrtc: (u32, u32),
    /// Resources.
    pub report: PtxasReport,
    /// Machine code.
    pub cubin: Vec<u8>,
    /// PTX.
    pub ptx: String,
}

/// JSON has no infinity: it is written as null.
mod maybe_infinite {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        x.is_finite().then_some(*x).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bucket, DeviceKey};
    use super::*;
    use flashtile_codegen::Facts;
    use flashtile_dsl::ir::Binding;

    /// A candidate with this block, prediction and time.
    fn candidate(block_m: u32, predicted: f64, measured: Option<f64>) -> Candidate {
        let schedule = Schedule::default().with_main(|main| main.block_m = block_m);
        let measured = measured.map(|median| Measurement { median, min: median, repetitions: 3 });
        let outcome = if measured.is_some() { Outcome::Measured } else { Outcome::Predicted };
        Candidate { measured, outcome, ..Candidate::new(schedule, predicted) }
    }

    fn record(candidates: Vec<Candidate>, winner: Option<usize>) -> TuningRecord {
        let device = DeviceKey { name: "GPU".into(), capability: (9, 0), sms: 132, memory_bytes: 1, driver: (13, 0) };
        let key = TuningKey::new(("k", "h"), Binding::default(), Facts::none(), Bucket::default(), "sm_90a", device);
        let sizes = BTreeMap::from([("N".to_owned(), 7)]);
        TuningRecord { key, nvrtc: (13, 0), sizes, data: InputData::default(), winner, complete: false, candidates }
    }

    /// The block of the winner of `own`, to which `other` is added.
    fn winner(mut own: TuningRecord, other: &TuningRecord) -> Option<u32> {
        own.merge(other);
        own.winning().map(|winner| winner.schedule.main.block_m)
    }

    #[test]
    fn the_better_prediction_stays_the_winner() {
        let best = record(vec![candidate(64, 1.0, None)], Some(0));
        let worse = record(vec![candidate(128, 2.0, None)], Some(0));
        assert_eq!((winner(worse.clone(), &best), winner(best.clone(), &worse)), (Some(64), Some(64)));
        let measured = record(vec![candidate(32, 9.0, Some(9.0))], Some(0));
        assert_eq!((winner(measured.clone(), &best), winner(best, &measured)), (Some(32), Some(32)));
    }

    #[test]
    fn what_was_rejected_since_is_no_winner() {
        let found = record(vec![candidate(64, 1.0, Some(1.0)), candidate(32, 3.0, Some(2.0))], Some(0));
        let mut wrong = record(vec![candidate(64, 1.0, None)], None);
        wrong.candidates[0].outcome = Outcome::Rejected { stage: Stage::Check, reason: "wrong".into() };
        assert_eq!(winner(wrong.clone(), &found), Some(32), "the best of the rest");
        wrong.candidates.push(candidate(128, 1.0, Some(5.0)));
        wrong.winner = Some(1);
        assert_eq!(winner(wrong, &found), Some(128), "the own one");
    }

    #[test]
    fn runs_under_load_decide_where_both_have_some() {
        let loaded = |block_m, single, load| {
            let under_load = Some(Measurement { median: load, min: load, repetitions: 7 });
            record(vec![Candidate { under_load, ..candidate(block_m, 1.0, Some(single)) }], Some(0))
        };
        assert_eq!(winner(loaded(64, 2.0, 1.0), &loaded(128, 1.0, 2.0)), Some(64));
        assert_eq!(winner(loaded(64, 2.0, 2.0), &loaded(128, 3.0, 1.0)), Some(128));
        let single = record(vec![candidate(32, 1.0, Some(1.5))], Some(0));
        assert_eq!(winner(loaded(64, 2.0, 1.0), &single), Some(32), "single runs compare with single runs");
    }

    #[test]
    fn a_schedule_that_was_timed_anew_has_its_new_time() {
        let before = record(vec![candidate(64, 1.0, Some(1.0))], Some(0));
        let anew = record(vec![candidate(64, 1.0, Some(4.0)), candidate(128, 1.0, Some(2.0))], Some(1));
        assert_eq!(winner(anew, &before), Some(128));
    }

    #[test]
    fn times_of_other_sizes_do_not_compare() {
        let mut shorter = record(vec![candidate(64, 1.0, Some(0.1))], Some(0));
        shorter.sizes.insert("N".into(), 5);
        shorter.complete = true;
        let mut own = record(vec![candidate(128, 1.0, Some(1.0))], Some(0));
        own.merge(&shorter);
        assert_eq!((own.candidates.len(), own.complete, own.winner), (1, false, Some(0)));
        let mut unfinished = record(vec![candidate(128, 1.0, Some(1.0))], None);
        unfinished.merge(&shorter);
        assert_eq!(unfinished, shorter, "a result stays until there is another");
    }
}
