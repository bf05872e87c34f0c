//! Devices: `cpu`, `cuda:N` and `emulator` behind one trait.
//!
//! Architecture invariant: nothing outside `device/cuda` knows the CUDA driver.

mod backend;
mod compiled;
mod cpu;
pub(crate) mod cuda;
pub(crate) mod emulator;
mod error;
mod facts;
mod fold;
mod handle;
mod info;
mod measure;
mod meter;
mod options;
mod stream;
mod variants;

pub(crate) use backend::{Backend, Call, CallArgument, ForeignMemory, Launcher, Memory, Owner};
pub(crate) use compiled::scratch_bytes;
#[cfg(test)]
pub(crate) use cpu::Cpu;
pub use emulator::{EmulatedCode, Emulation, EmulatorError};
pub use error::DeviceError;
pub(crate) use facts::{host_facts, packed_facts};
pub use handle::Device;
pub use info::{DeviceInfo, DeviceKind, GpuInfo, machine_of};
pub use measure::measure;
pub use meter::MemoryUse;
pub(crate) use meter::{Held, Meter};
pub use options::{GivenPlans, LaunchOptions};
pub use stream::{Graph, Stream};
pub use variants::{CodeResources, Origin, VariantInfo};
