//! What is done for launches ahead of them: tuning, and bundles of compiled code. Both are of the
//! launches that a function makes, which are noted while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flashtile::bundle::{BundleBuilder, BundleTarget, Wanted};
use flashtile::cache::Cache;
use flashtile::device::machine_of;
use flashtile::kernel::{Deduced, KernelError as UnknownArch};
use flashtile::tuner::{Cancel, Stop, TuneOptions, TuneReport, model_key, tune};
use flashtile::{ARCHS, Arch, BoundKernel, Bundle, Device, Kernel};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{TuneError, raised};
use crate::host::Host;
use crate::kernel::PyKernel;
use crate::launch::{Launcher, device, keeping_current, lock};
use crate::tensor::Place;

/// A launch that a function made.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Noted {
    pub kernel: BoundKernel,
    pub sizes: BTreeMap<String, i64>,
    pub place: Place,
    pub is_bundled: bool,
}

static IS_NOTING: AtomicBool = AtomicBool::new(false);
static NOTED: Mutex<Vec<Noted>> = Mutex::new(Vec::new());
/// How often something was tuned: launchers take newer schedules when it has changed.
static TUNED: AtomicU64 = AtomicU64::new(0);

/// Notes a launch, if launches are noted.
pub(crate) fn note(launch: impl FnOnce() -> Noted) {
    if !IS_NOTING.load(Ordering::Relaxed) {
        return;
    }
    let launch = launch();
    let mut noted = lock(&NOTED);
    if !noted.contains(&launch) {
        noted.push(launch);
    }
}

/// How often something was tuned.
pub(crate) fn tuned() -> u64 {
    TUNED.load(Ordering::Relaxed)
}

/// From now on launches of all threads are noted.
#[pyfunction]
pub(crate) fn begin_noting() {
    lock(&NOTED).clear();
    IS_NOTING.store(true, Ordering::Relaxed);
}

/// The launches that were noted, each kind once.
#[pyfunction]
pub(crate) fn end_noting() -> Vec<Noted> {
    IS_NOTING.store(false, Ordering::Relaxed);
    std::mem::take(&mut lock(&NOTED))
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
        let run = || tune(&self.kernel, &self.sizes, &device(self.place)?, &options);
        let report = keeping_current(py, host, self.place, || py.detach(run))?.map_err(raised)?;
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

fn named(arch: &str) -> PyResult<&'static Arch> {
    let known = || ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
    let unknown = || UnknownArch::UnknownArchitecture { name: arch.to_owned(), known: known() };
    Arch::named(arch).ok_or_else(|| raised(unknown().into()))
}

/// Writes a bundle of the code of launches, each once for these architectures, and with `general`
/// code for other arguments. Returns the names of its kernels.
#[pyfunction]
pub(crate) fn write_bundle(
    py: Python<'_>,
    directory: PathBuf,
    launches: Vec<Py<Noted>>,
    archs: Vec<String>,
    general: bool,
) -> PyResult<Vec<String>> {
    let archs = archs.iter().map(|arch| named(arch)).collect::<PyResult<Vec<_>>>()?;
    let toolchain = Host::get(py)?.options().toolchain;
    let launches: Vec<Noted> = launches.iter().map(|launch| launch.get().clone()).collect();
    let write = || {
        let mut builder = BundleBuilder::new(toolchain, Cache::shared());
        let mut done: Vec<&BoundKernel> = Vec::new();
        for launch in &launches {
            let kernel = &launch.kernel;
            let shape = Wanted::shape(kernel, &launch.sizes)?;
            for arch in archs.iter().copied() {
                let target = target(arch, launch.place);
                builder.add(kernel, &target, &shape, None)?;
                if general && !done.contains(&kernel) {
                    builder.add(kernel, &target, &Wanted::general(kernel, &launch.sizes), None)?;
                }
            }
            done.push(kernel);
        }
        Ok(builder.write(&directory)?.kernels)
    };
    py.detach(write).map_err(raised)
}

/// Code for an architecture: for the GPU of a launch if it is of it, else for a typical one.
fn target(arch: &'static Arch, place: Place) -> BundleTarget {
    let info = match place {
        Place::Gpu(gpu) => Device::cuda(gpu).ok().map(|device| device.info().clone()),
        Place::Cpu => None,
    };
    let capability = |info: &flashtile::DeviceInfo| info.gpu.as_ref().map(|gpu| gpu.capability);
    let info = info.filter(|info| capability(info).and_then(|(major, minor)| Arch::for_capability(major, minor)) == Some(arch));
    let machine = machine_of(arch, info.as_ref().and_then(|info| info.gpu.as_ref()));
    BundleTarget { arch, machine, device: info.map_or_else(|| model_key(arch), |info| info.key()) }
}

/// A bundle that was loaded.
#[pyclass(name = "Bundle", module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct PyBundle {
    bundle: Bundle,
}

#[pymethods]
impl PyBundle {
    #[new]
    fn load(directory: PathBuf) -> PyResult<Self> {
        Ok(Self { bundle: Bundle::load(directory).map_err(raised)? })
    }

    /// Names of its kernels.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.bundle.manifest().kernels.clone()
    }

    /// A kernel by its name in the bundle.
    fn kernel(&self, name: &str) -> PyResult<PyKernel> {
        let bundled = self.bundle.kernel(name).map_err(raised)?;
        let bound = bundled.kernel();
        let binding = bound.binding();
        let known = Deduced { types: binding.types.clone(), sizes: binding.consts.clone() };
        let kernel = Kernel::from_ir(bound.ir().clone());
        Ok(PyKernel { launcher: Launcher::new(kernel, known, Some(bundled.clone())) })
    }
}
