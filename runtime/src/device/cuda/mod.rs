//! GPUs through the CUDA driver, which is loaded when the first GPU is asked for.
//!
//! Architecture invariant: `unsafe` is here and in the toolchain only, each block with its reason.

mod context;
mod driver;
mod image;
mod memory;
mod module;
mod stream;
mod tensor_map;
mod timing;
mod variant;
mod workspace;

pub(crate) use context::Cuda;
pub(crate) use stream::{CudaGraph, CudaStream};
pub(crate) use timing::Timer;
pub(crate) use variant::Variant;
