//! Bundles of compiled code: written for launches that were noted, and loaded.

use std::path::PathBuf;

use flashtile::bundle::{BundleBuilder, BundleTarget, Wanted};
use flashtile::cache::Cache;
use flashtile::device::machine_of;
use flashtile::kernel::Deduced;
use flashtile::tuner::model_key;
use flashtile::{Arch, BoundKernel, Bundle, Device, Kernel};
use pyo3::prelude::*;

use crate::error::raised;
use crate::form::Place;
use crate::host::Host;
use crate::kernel::PyKernel;
use crate::launch::Launcher;
use crate::noted::{Noted, named};

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
