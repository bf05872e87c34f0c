//! Kernels made ready for a device.

use flashtile_emulator::Report;

use super::Argument;
use super::signature::{MAX_ARGUMENTS, MAX_SIZES, Signature};
use crate::device::{Call, CallArgument, Device, LaunchOptions, Launcher, Stream, VariantInfo};
use crate::error::Result;
use crate::kernel::BoundKernel;

impl BoundKernel {
    /// Makes it ready for a device, with the default cache and toolchain.
    ///
    /// # Errors
    /// The device cannot run it.
    pub fn on(&self, device: &Device) -> Result<LoadedKernel> {
        self.on_with(device, LaunchOptions::default())
    }

    /// Makes it ready for a device.
    ///
    /// # Errors
    /// The device cannot run it, or not with these options.
    pub fn on_with(&self, device: &Device, options: LaunchOptions) -> Result<LoadedKernel> {
        LoadedKernel::new(self, device, &options)
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
    fn new(bound: &BoundKernel, device: &Device, options: &LaunchOptions) -> Result<Self> {
        let signature = Signature::new(bound.shared_ir(), bound.binding())?;
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

    /// The code that launches so far have run; none on a device that compiles nothing.
    pub fn variants(&self) -> Vec<VariantInfo> {
        self.launcher.variants()
    }

    /// What the emulator counted and found in the last launch of each variant; none on other devices.
    pub fn reports(&self) -> Vec<Report> {
        self.launcher.reports()
    }

    fn run(&self, stream: Option<&Stream>, arguments: &[Argument<'_>]) -> Result<()> {
        let mut sizes = [0; MAX_SIZES];
        let count = self.signature.check(&self.device, arguments, &mut sizes)?;
        let width = self.signature.check_reach(arguments, &sizes[..count])?;
        self.signature.check_aliases(arguments)?;
        let mut raw = [CallArgument::I32(0); MAX_ARGUMENTS];
        for (slot, argument) in raw.iter_mut().zip(arguments) {
            *slot = argument.raw();
        }
        self.launcher.launch(&Call {
            arguments: &raw[..arguments.len()],
            sizes: &sizes[..count],
            width,
            stream: stream.map(Stream::of_call),
        })
    }
}
