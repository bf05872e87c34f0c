//! Strided tensors in the memory of a device: of this crate, lent for a while, or of another owner.

mod any;
mod error;
mod layout;
mod lend;
mod overlap;
mod raw_parts;
mod typed;
mod views;

pub use any::AnyTensor;
pub use error::TensorError;
pub(crate) use layout::Layout;
pub(crate) use lend::Loan;
pub use lend::{Loans, lend};
pub use typed::Tensor;
