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
    /// Hash of its CUDA C; empty if it was not generated.
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

    /// Adds the evidence of another record of the same key and NVRTC, such as one that another process wrote meanwhile.
    /// What this record knows of a schedule stays; of two winners the faster one wins. A mere choice of the cost model
    /// replaces no evidence, and any evidence replaces it. Evidence of other data is left out.
    pub fn merge(&mut self, other: &TuningRecord) {
        if other.key != self.key || other.nvrtc == NO_NVRTC {
            return;
        }
        if self.nvrtc == NO_NVRTC {
            self.clone_from(other);
            return;
        }
        if other.nvrtc != self.nvrtc || other.data != self.data {
            return;
        }
        let winning = self.winning().cloned();
        let theirs = other.winning().cloned();
        for candidate in &other.candidates {
            match self.candidates.iter_mut().find(|c| c.schedule == candidate.schedule) {
                Some(own) if own.outcome == Outcome::NotTried => *own = candidate.clone(),
                Some(_) => {}
                None => self.candidates.push(candidate.clone()),
            }
        }
        let time = |c: &Candidate| c.measured.as_ref().map_or(f64::INFINITY, |m| m.median);
        let winner = match (winning, theirs) {
            (Some(own), Some(their)) if time(&their) < time(&own) => Some(their),
            (Some(own), _) => Some(own),
            (None, their) => their,
        };
        self.winner = winner.and_then(|w| self.candidates.iter().position(|c| c.schedule == w.schedule));
        self.complete |= other.complete;
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
