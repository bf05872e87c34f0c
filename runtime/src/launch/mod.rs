//! Launching kernels: arguments, their check against the parameters, and kernels made ready for a device.

mod argument;
mod gradient;
mod loaded;
mod prepared;
mod signature;

pub use crate::error::ArgumentError;
pub use argument::{Argument, ArgumentForm, ArgumentValue};
pub use gradient::{LoadedGradient, Workspace};
pub use loaded::LoadedKernel;
pub use prepared::PreparedLaunch;
pub(crate) use signature::{Signature, Source as SizeSource};
