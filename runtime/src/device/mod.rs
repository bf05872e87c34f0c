//! Devices: `cpu` and `cuda:N` behind one trait.
//!
//! Architecture invariant: nothing outside `device/cuda` knows the CUDA driver.

mod backend;
mod cpu;
pub(crate) mod cuda;
mod error;
mod handle;
mod info;
mod options;
mod stream;

pub(crate) use backend::{Backend, Call, CallArgument, Launcher, Memory};
pub use error::DeviceError;
pub use handle::Device;
pub use info::{DeviceInfo, DeviceKind, GpuInfo};
pub use options::LaunchOptions;
pub use stream::Stream;
