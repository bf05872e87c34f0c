//! Strided tensors in the memory of a device.

mod any;
mod error;
pub(crate) mod layout;
mod typed;

pub use any::AnyTensor;
pub use error::TensorError;
pub use typed::Tensor;
