//! Kernels made ready for a device.

use flashtile_codegen::{Arch, Schedule};

use super::signature::MAX_SIZES;
use super::{Argument, BoundKernel, Signature};
use crate::cache::Cache;
use crate::device::{Call, Device, Launcher, Stream};
use crate::error::Result;
use crate::toolchain::Toolchain;

/// How kernels are compiled and which schedule they run with. The default: the shared toolchain and cache, code for the
/// GPU at hand, and for each launch the tuned schedule if the cache has one, else the cost model's choice.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Compiler.
    pub toolchain: Toolchain,
    /// Where compiled code and tuning results are kept.
    pub cache: Cache,
    /// A schedule for every launch, instead of the tuned one or the model's choice.
    pub schedule: Option<Schedule>,
    /// Generate code for this architecture, which may be older than the GPU's; it then runs through its PTX.
    pub arch: Option<&'static Arch>,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self { toolchain: Toolchain::shared(), cache: Cache::shared(), schedule: None, arch: None }
    }
}

/// A kernel made ready for a device.
#[derive(Debug)]
pub struct LoadedKernel {
    bound: BoundKernel,
    device: Device,
    signature: Signature,
    launcher: Box<dyn Launcher>,
}

impl LoadedKernel {
    pub(super) fn new(bound: &BoundKernel, device: &Device, options: &LaunchOptions) -> Result<Self> {
        let signature = Signature::new(&bound.ir, &bound.binding)?;
        let launcher = device.backend().prepare(bound, options)?;
        Ok(Self { bound: bound.clone(), device: device.clone(), signature, launcher })
    }

    /// Queues a launch on the device's own stream. The arguments are those of the kernel text, in order.
    ///
    /// The first launch with new facts about its arguments (signs of scalars, alignment of tensors) or another bucket
    /// of sizes loads code from the cache or compiles it. Later ones allocate nothing and do not wait.
    ///
    /// # Errors
    /// [`super::ArgumentError`] naming the argument that does not fit; or the compiler or the device failed.
    pub fn launch(&self, arguments: &[Argument<'_>]) -> Result<()> {
        self.run(None, arguments)
    }

    /// Queues a launch on `stream`, which may be capturing a graph if a launch with such arguments was made before.
    ///
    /// # Errors
    /// As [`LoadedKernel::launch`].
    pub fn launch_on(&self, stream: &Stream, arguments: &[Argument<'_>]) -> Result<()> {
        self.run(Some(stream), arguments)
    }

    /// The kernel.
    pub fn kernel(&self) -> &BoundKernel {
        &self.bound
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn launcher(&self) -> &dyn Launcher {
        &*self.launcher
    }

    fn run(&self, stream: Option<&Stream>, arguments: &[Argument<'_>]) -> Result<()> {
        let mut sizes = [0; MAX_SIZES];
        let count = self.signature.check(&self.device, arguments, &mut sizes)?;
        self.signature.check_aliases(arguments)?;
        self.launcher.launch(&Call { arguments, sizes: &sizes[..count], stream })
    }
}
