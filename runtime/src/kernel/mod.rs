//! Kernels as users hold them: text, and text bound to types and constants.

mod bound;
mod builtin;
mod error;
mod handle;

pub use bound::BoundKernel;
pub use builtin::{BUILTINS, Builtin};
pub use error::KernelError;
pub use handle::Kernel;
