//! Launching kernels: arguments, their check against the parameters, and kernels made ready for a device.

mod argument;
mod error;
mod loaded;
mod signature;

pub use argument::Argument;
pub use error::ArgumentError;
pub use loaded::LoadedKernel;
