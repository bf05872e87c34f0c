//! Devices: `cpu`, `cuda:N` and `emulator` behind one trait.
//!
//! Architecture invariant: nothing outside `device/cuda` knows the CUDA driver.

mod backend;
mod carried;
mod compiled;
mod cpu;
pub(crate) mod cuda;
mod emulation;
mod emulator;
mod facts;
mod fold;
mod handle;
mod info;
mod loan;
mod measure;
mod meter;
mod options;
mod room;
mod stream;
mod variants;

pub use crate::error::{DeviceError, EmulatorError};
pub(crate) use backend::{Backend, Call, CallArgument, CallStream, FixedCall, ForeignMemory, Launcher, Memory, Owner};
pub use carried::{Carried, Variant};
pub(crate) use carried::{CarriedCode, eighths, strength};
pub(crate) use compiled::{Choice, MAX_MAPS, scratch_bytes};
#[cfg(test)]
pub(crate) use compiled::{CompiledLauncher, MAX_BYTES, MapPlan, Processor, StepPlan, StepSize, StepsPlan, describe};
#[cfg(test)]
pub(crate) use cpu::Cpu;
pub(crate) use cuda::{runs_native, runs_ptx};
pub use emulation::{EmulatedCode, Emulation};
pub(crate) use facts::{host_facts, packed_facts};
pub use handle::Device;
pub use info::{DeviceInfo, DeviceKind, GpuInfo, machine_of};
pub(crate) use loan::Loan;
pub use loan::{ForeignSlice, Lent, ReadSlice, WriteSlice};
pub use measure::measure;
pub use meter::MemoryUse;
pub(crate) use meter::{Held, Meter};
pub use options::{GivenPlans, LaunchOptions};
pub(crate) use room::{Room, SMALL, host_room};
pub use stream::{Graph, Stream};
pub use variants::{CodeResources, Origin, VariantInfo};
