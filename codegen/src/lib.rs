//! Lowers a kernel in tile IR, under a schedule, to CUDA C for an architecture.
//!
//! Architecture invariant: no file, device or clock is touched; a verified kernel with a legal schedule never panics here.

mod abi;
mod arch;
mod instance;
mod schedule;

pub use abi::{Abi, Blocks, Field, GridDim, SizeTerm, TensorMap};
pub use arch::{ARCHS, Arch, CopyOp, TensorOp};
pub use instance::{Facts, Instance};
pub use schedule::{
    Edges, Exponential, Fragments, KNOBS, Knob, OperandA, SPACE_VERSION, Schedule, ScheduleError, SharedLayout, WorkOrder,
};
