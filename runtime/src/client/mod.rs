//! For libraries that call kernels on tensors of their own: the forms of tensors as keys, and what
//! is made once for calls of a kind and kept. The clients for candle, PyTorch and tvm-ffi are
//! built of it.
//!
//! A call of such a library reads the [`TensorForm`] of each of its tensors, finds in a [`Kept`]
//! the [`PreparedLaunch`](crate::PreparedLaunch) for these forms, or makes one, and launches it on
//! the addresses of the tensors, on the library's stream ([`stream`]).

mod form;
mod kept;
mod param;
mod prediction;
mod streams;

pub use form::{MAX_RANK, TensorForm};
pub use kept::{Kept, KeptEntry, LoadedKernels};
pub use param::Param;
pub use prediction::{fastest, predicted};
pub use streams::{RawStream, stream};
