//! The one error type that public functions return; each variant comes from the subject it names.
//! The errors of the subjects that return it are files of this folder, so that this folder uses
//! none of them. The cache, the toolchain and the inputs return errors of their own.
//!
//! Messages are lowercase, hold the values involved and say what to do next.

mod argument;
mod bundle;
mod device;
mod emulator;
mod kernel;
mod tensor;
mod tune;

use crate::cache::CacheError;
use crate::toolchain::ToolchainError;

pub use argument::ArgumentError;
pub use bundle::BundleError;
pub use device::DeviceError;
pub use emulator::EmulatorError;
pub use kernel::KernelError;
pub use tensor::TensorError;
pub use tune::TuneError;

/// What can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device is missing, full, or refused a request.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The emulator cannot execute a kernel, or found faults in it.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// A tensor cannot be made or viewed as asked.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A kernel is unknown, malformed, wrongly bound or cannot be compiled.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The arguments of a launch do not fit the kernel.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The compiler (NVRTC) or a disassembler is missing or failed.
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    /// Tuning found no schedule that works.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A bundle cannot be made, loaded, or has no code for a launch.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// An explicit request to the cache (export, import, clear) failed. Its use by launches and
    /// tuning never does.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
