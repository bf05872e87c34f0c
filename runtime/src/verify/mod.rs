//! Is a result right? The float64 oracle, the plain 16-bit baseline, and the tolerance between them.
//!
//! [`Reference::new`] computes what a launch must give and how far the plain 16-bit computation of the same text is from
//! it; [`Reference::check`] judges outputs. The rule is in the documentation of [`OutputReference`].

mod excerpt;
mod launch;
mod reference;
mod shapes;
mod tolerance;

pub use excerpt::Programs;
pub use flashtile_dsl::analysis::lengths::{addressed, is_walked};
pub use flashtile_dsl::interpret::HostTensor;
pub use launch::{HostArgument, run};
pub use reference::Reference;
pub(crate) use reference::exact;
pub use shapes::{STEEP_SHAPES, default_consts, default_shapes};
pub use tolerance::{Bound, Failure, OutputReference, OutputVerdict, Worst};
