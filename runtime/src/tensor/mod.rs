//! Strided tensors in the memory of a device: of this crate, lent for a while, or of another owner.

mod any;
mod layout;
mod lend;
mod overlap;
mod raw_parts;
mod typed;
mod views;

pub use crate::error::TensorError;
pub use any::AnyTensor;
pub(crate) use layout::{check_bounds, has_contiguous_rows};
pub use lend::{Loans, lend};
pub(crate) use overlap::{Place, between, overlaps_itself};
pub use typed::Tensor;
