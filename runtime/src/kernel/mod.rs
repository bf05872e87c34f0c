//! Kernels as users hold them: text, and text bound to types and constants.

mod bound;
mod builtin;
mod deduced;
mod handle;

pub use crate::error::KernelError;
pub use bound::BoundKernel;
pub use builtin::{BUILTINS, Builtin, Group};
pub(crate) use deduced::solve;
pub use deduced::{Deduced, OutputForm, sizes_among};
pub use flashtile_dsl::ir::ParamKind;
pub use handle::{Gradient, Kernel};
