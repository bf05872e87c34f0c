//! Launches that a function makes, noted while it runs, and their tuning.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use flashtile::kernel::KernelError as UnknownArch;
use flashtile::tuner::{Cancel, Stop, TuneOptions, TuneReport, tune};
use flashtile::{ARCHS, Arch, BoundKernel};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{TuneError, raised};
use crate::form::Place;
use crate::host::Host;
use crate::lock::lock;

/// A launch that a function made.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Noted {
    pub kernel: BoundKernel,
    pub sizes: BTreeMap<String, i64>,
    pub place: Place,
    pub is_bundled: bool,
}

/// Launches that are noted for a function that runs.
struct Notes {
    number: u64,
    /// The thread that runs the function.
    thread: ThreadId,
    launches: Vec<Noted>,
}

/// Those of all functions that run, and how many there are.
static NOTES: Mutex<Vec<Notes>> = Mutex::new(Vec::new());
static NOTING: AtomicUsize = AtomicUsize::new(0);
/// How often something was tuned: launchers take newer schedules when it has changed.
static TUNED: AtomicU64 = AtomicU64::new(0);

/// How often something had been tuned when code was loaded.
#[derive(Debug)]
pub(crate) struct Tuned(AtomicU64);

impl Tuned {
    /// Up to now.
    pub fn now() -> Self {
        Self(AtomicU64::new(TUNED.load(Ordering::Relaxed)))
    }

    /// Whether something was tuned since, or since this was asked last: newer schedules are to be
    /// taken then.
    pub fn has_changed(&self) -> bool {
        let tuned = TUNED.load(Ordering::Relaxed);
        self.0.load(Ordering::Relaxed) != tuned && self.0.swap(tuned, Ordering::Relaxed) != tuned
    }
}

/// Notes a launch, if launches are noted: for the functions that its thread runs; of a thread that
/// runs none, such as one of PyTorch's for backward passes, for all functions.
pub(crate) fn note(launch: impl FnOnce() -> Noted) {
    if NOTING.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (launch, thread) = (launch(), std::thread::current().id());
    let mut all = lock(&NOTES);
    let runs_one = all.iter().any(|notes| notes.thread == thread);
    for notes in all.iter_mut().filter(|notes| notes.thread == thread || !runs_one) {
        if !notes.launches.contains(&launch) {
            notes.launches.push(launch.clone());
        }
    }
}

/// From now on launches are noted for a function that this thread runs. The number ends it.
#[pyfunction]
pub(crate) fn begin_noting() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    lock(&NOTES).push(Notes { number, thread: std::thread::current().id(), launches: Vec::new() });
    NOTING.fetch_add(1, Ordering::Relaxed);
    number
}

/// The launches that were noted since, each kind once.
#[pyfunction]
pub(crate) fn end_noting(number: u64) -> Vec<Noted> {
    let mut all = lock(&NOTES);
    let Some(at) = all.iter().position(|notes| notes.number == number) else { return Vec::new() };
    NOTING.fetch_sub(1, Ordering::Relaxed);
    all.swap_remove(at).launches
}

#[pymethods]
impl Noted {
    /// Name of the kernel.
    #[getter]
    fn kernel(&self) -> &str {
        &self.kernel.ir().name
    }

    /// Sizes by name.
    #[getter]
    fn sizes(&self) -> BTreeMap<String, i64> {
        self.sizes.clone()
    }

    /// Whether its code is of a bundle.
    #[getter]
    fn is_bundled(&self) -> bool {
        self.is_bundled
    }

    /// Finds the best schedule; `budget` is in seconds. A dict says what it is.
    #[pyo3(signature = (*, budget, arch, max_candidates, afresh))]
    fn tune<'py>(
        &self,
        py: Python<'py>,
        budget: f64,
        arch: Option<&str>,
        max_candidates: Option<usize>,
        afresh: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let host = Host::get(py)?;
        let budget = Duration::try_from_secs_f64(budget)
            .map_err(|_| TuneError::new_err(format!("a budget of {budget} seconds is none; give 0 or more")))?;
        let cancel = Cancel::default();
        let options = TuneOptions {
            budget,
            arch: arch.map(named).transpose()?,
            max_candidates,
            afresh,
            toolchain: host.options().toolchain,
            cancel: cancel.clone(),
            ..TuneOptions::default()
        };
        let run = || tune(&self.kernel, &self.sizes, &self.place.device()?, &options);
        let report = host.keeping_current(py, self.place, || py.detach(run))?.map_err(raised)?;
        TUNED.fetch_add(1, Ordering::Relaxed);
        described(py, &report)
    }
}

fn described<'py>(py: Python<'py>, report: &TuneReport) -> PyResult<Bound<'py, PyDict>> {
    let winner = report.winner();
    let dict = PyDict::new(py);
    dict.set_item("schedule", winner.schedule.to_string())?;
    dict.set_item("seconds", report.seconds_per_run())?;
    dict.set_item("error", winner.max_error)?;
    dict.set_item("is_predicted", report.predicted)?;
    dict.set_item("is_from_cache", report.from_cache)?;
    dict.set_item("candidates", report.record.candidates.len())?;
    let stop = match &report.stop {
        Stop::Exhausted => "every candidate was tried",
        Stop::Roofline => "a candidate reached the roofline",
        Stop::Budget => "the budget was spent",
        Stop::Cancelled => "it was cancelled",
        Stop::DeviceLost(reason) => reason,
    };
    dict.set_item("stopped_because", stop)?;
    Ok(dict)
}

/// The architecture of this name.
pub(crate) fn named(arch: &str) -> PyResult<&'static Arch> {
    let known = || ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
    let unknown = || UnknownArch::UnknownArchitecture { name: arch.to_owned(), known: known() };
    Arch::named(arch).ok_or_else(|| raised(unknown().into()))
}
