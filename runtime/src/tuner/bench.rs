//! What the search needs of the world: a compiler, a device that checks and measures, a clock. A trait, so that the
//! search can be tested without any of them.

use std::time::Duration;

use flashtile_codegen::Schedule;

use crate::cache::Stage;
use crate::toolchain::PtxasReport;

/// Why a candidate is out.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rejection {
    pub stage: Stage,
    pub reason: String,
    /// Largest error against the oracle, if results were compared with it.
    pub max_error: Option<f64>,
    /// Whether the device is of no more use, so that the search must end.
    pub fatal: bool,
}

impl Rejection {
    pub fn new(stage: Stage, reason: impl Into<String>) -> Self {
        Self { stage, reason: reason.into(), max_error: None, fatal: false }
    }
}

/// What compiling a candidate gives, beside its code.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Compilation<C> {
    pub code: C,
    pub source_hash: String,
    pub report: PtxasReport,
    pub seconds: f64,
    /// Largest error against the oracle, where compiling includes a run on the emulator.
    pub max_error: Option<f64>,
}

/// Compiles candidates, on several threads at once.
pub(super) trait Compiler: Sync {
    type Code: Send;
    fn compile(&self, schedule: &Schedule) -> Result<Compilation<Self::Code>, Rejection>;
}

/// Checks and measures candidates, on one thread.
pub(super) trait Bench<C> {
    /// A candidate on the device.
    type Loaded;

    /// Puts a candidate on the device and compares its results with the oracle; gives its largest error.
    fn check(&mut self, code: C) -> Result<(Self::Loaded, f64), Rejection>;

    /// Seconds of one run.
    fn time(&mut self, loaded: &Self::Loaded) -> Result<f64, Rejection>;

    /// Seconds of one run among many that follow each other, at the clocks that the device then has.
    fn time_under_load(&mut self, loaded: &Self::Loaded) -> Result<f64, Rejection>;

    /// Time since the search began.
    fn elapsed(&self) -> Duration;
}
