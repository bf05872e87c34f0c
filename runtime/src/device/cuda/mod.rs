//! GPUs through the CUDA driver, which is loaded when the first GPU is asked for.
//!
//! Architecture invariant: nothing outside knows cudarc, and each `unsafe` block has its reason.

mod backend;
mod context;
mod driver;
mod event;
mod gpu;
mod graph;
mod image;
mod loans;
mod memory;
mod module;
mod stream;
mod tensor_map;
mod timing;
mod uses;
mod variant;
mod workspace;

pub(crate) use gpu::Cuda;
pub(crate) use graph::CudaGraph;
pub(crate) use image::{runs_native, runs_ptx};
pub(crate) use stream::CudaStream;
pub(crate) use timing::Timer;
pub(crate) use variant::{FixedLaunch, Variant};
