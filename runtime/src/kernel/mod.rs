//! Kernels as users hold them: text, and text bound to types and constants.

mod bound;
mod builtin;
mod handle;

pub use crate::error::KernelError;
pub use bound::BoundKernel;
pub use builtin::{BUILTINS, Builtin, Group};
pub use handle::{Gradient, Kernel};
