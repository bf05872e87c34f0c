//! Exceptions of the package, and what of the runtime becomes which.

use flashtile::Error;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::{PyErr, create_exception};

create_exception!(flashtile, FlashtileError, PyException, "Base of all exceptions of this package.");
create_exception!(flashtile, KernelError, FlashtileError, "A kernel is unknown, its text has errors, or it cannot be compiled.");
create_exception!(flashtile, ArgumentError, FlashtileError, "The arguments of a call do not fit the kernel.");
create_exception!(flashtile, GradientError, FlashtileError, "A kernel has no gradient; the message says why, and where.");
create_exception!(flashtile, DeviceError, FlashtileError, "A device is missing, full, or refused a request.");
create_exception!(flashtile, ToolchainError, FlashtileError, "The compiler NVRTC is missing or failed.");
create_exception!(flashtile, TuneError, FlashtileError, "Tuning is not possible, or found no schedule that works.");
create_exception!(flashtile, BundleError, FlashtileError, "A bundle cannot be loaded, or has no code for a launch.");

/// The exception for an error of the runtime, with its message.
pub(crate) fn raised(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Kernel(_) => KernelError::new_err(message),
        Error::Argument(_) | Error::Tensor(_) => ArgumentError::new_err(message),
        Error::Device(_) | Error::Emulator(_) => DeviceError::new_err(message),
        Error::Toolchain(_) => ToolchainError::new_err(message),
        Error::Tune(_) => TuneError::new_err(message),
        Error::Bundle(_) => BundleError::new_err(message),
        _ => FlashtileError::new_err(message),
    }
}

/// Adds the exceptions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("FlashtileError", py.get_type::<FlashtileError>())?;
    module.add("KernelError", py.get_type::<KernelError>())?;
    module.add("ArgumentError", py.get_type::<ArgumentError>())?;
    module.add("GradientError", py.get_type::<GradientError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())?;
    module.add("ToolchainError", py.get_type::<ToolchainError>())?;
    module.add("TuneError", py.get_type::<TuneError>())?;
    module.add("BundleError", py.get_type::<BundleError>())
}
