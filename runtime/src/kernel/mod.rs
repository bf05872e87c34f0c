//! Kernels as users hold them: text, bound to types and constants, made ready for a device, launched.

mod argument;
mod bound;
mod builtin;
mod error;
mod handle;
mod loaded;
mod signature;

pub use argument::Argument;
pub use bound::BoundKernel;
pub use builtin::{BUILTINS, Builtin};
pub use error::{ArgumentError, KernelError};
pub use handle::Kernel;
pub use loaded::{LaunchOptions, LoadedKernel};
pub(crate) use signature::Signature;
