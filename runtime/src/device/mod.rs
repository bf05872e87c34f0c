//! Devices: `cpu` and `cuda:N` behind one trait.
//!
//! Architecture invariant: nothing outside `device/cuda` knows the CUDA driver.

mod backend;
mod cpu;
pub(crate) mod cuda;
mod error;
mod facts;
mod handle;
mod info;
mod measure;
mod options;
mod stream;
mod variants;

pub(crate) use backend::{Backend, Call, CallArgument, Launcher, Memory};
#[cfg(test)]
pub(crate) use cpu::Cpu;
pub use error::DeviceError;
pub(crate) use facts::{host_facts, packed_facts};
pub use handle::Device;
pub use info::{DeviceInfo, DeviceKind, GpuInfo, machine_of};
pub use measure::measure;
pub use options::LaunchOptions;
pub use stream::{Graph, Stream};
pub use variants::{Origin, VariantInfo};
