//! What devices that run compiled code share: how a launch finds its variant, and how its parameters are packed.

mod choice;
mod launcher;
mod maps;
mod parameters;
mod scratch;
mod seen;
mod steps;
mod term;

use std::fmt;

use flashtile_codegen::{Arch, Generated};
use flashtile_emulator::Report;

use super::{Call, CodeResources, DeviceError, DeviceInfo, LaunchOptions};
use crate::device::CarriedCode;
use crate::error::Result;
use crate::kernel::BoundKernel;

pub(crate) use choice::Choice;
pub(crate) use launcher::CompiledLauncher;
pub(crate) use maps::{MAX_MAPS, MapPlan, describe};
pub(crate) use parameters::MAX_BYTES;
pub(crate) use scratch::{argument_named, scratch_bytes};
pub(crate) use seen::CallPlan;
pub(crate) use steps::{StepPlan, StepSize, StepsPlan};

/// A device that runs compiled code: a GPU, or the emulator. Clones are the same device.
pub(crate) trait Processor: Clone + fmt::Debug + Send + Sync + 'static {
    /// Code of a schedule, loaded.
    type Variant: Send + Sync + 'static;

    /// What is kept for calls of a variant that differ in addresses, scalars and streams only.
    type Fixed: Send + Sync + 'static;

    /// Whether launches need no more of a tensor than its address, shape and strides.
    const TAKES_ADDRESSES: bool;

    /// Its properties.
    fn info(&self) -> &DeviceInfo;

    /// The architecture that code is made for where no other is asked for.
    fn arch(&self) -> &'static Arch;

    /// Whether code for an architecture runs on it.
    fn check(&self, arch: &'static Arch) -> Result<(), DeviceError>;

    /// Compiles generated code, or takes it from the cache, and loads it.
    fn load(
        &self,
        kernel: &BoundKernel,
        generated: Generated,
        arch: &'static Arch,
        options: &LaunchOptions,
    ) -> Result<Self::Variant>;

    /// Loads code that a bundle carries.
    fn load_carried(
        &self,
        kernel: &BoundKernel,
        code: &CarriedCode,
        arch: &'static Arch,
        options: &LaunchOptions,
    ) -> Result<Self::Variant>;

    /// Resources of loaded code; `None` if the device has no registers.
    fn resources(&self, variant: &Self::Variant) -> Result<Option<CodeResources>, DeviceError>;

    /// What came of the last launch, on a device that tells.
    fn reports(&self, _: &Self::Variant) -> Vec<Report> {
        Vec::new()
    }

    /// What is kept for calls that differ from this one in addresses, scalars and streams only.
    fn fix(&self, variant: &Self::Variant, call: &Call<'_>) -> Result<Self::Fixed>;

    /// As [`Processor::launch`], with what was kept for calls like this one.
    fn launch_fixed(&self, variant: &Self::Variant, _: &Self::Fixed, call: &Call<'_>, options: &LaunchOptions) -> Result<()> {
        self.launch(variant, call, options)
    }

    /// Queues a launch on the stream of the call.
    fn launch(&self, variant: &Self::Variant, call: &Call<'_>, options: &LaunchOptions) -> Result<()>;
}
