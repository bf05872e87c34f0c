//! Kernels made ready for a device.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use flashtile_dsl::ir::SizeKind;
use flashtile_emulator::Report;

use super::prepared::{Fixed, Target};
use super::signature::{MAX_ARGUMENTS, MAX_SIZES, Signature};
use super::{Argument, ArgumentForm, PreparedLaunch};
use crate::device::{CallArgument, Device, LaunchOptions, Stream, VariantInfo};
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
    target: Arc<Target>,
    /// What launches so far had in common, the last ones first.
    recent: RwLock<VecDeque<Arc<Fixed>>>,
}

/// Forms of arguments that are remembered, so that a launch like one before checks nothing anew.
const REMEMBERED: usize = 8;

impl LoadedKernel {
    fn new(bound: &BoundKernel, device: &Device, options: &LaunchOptions) -> Result<Self> {
        let signature = Signature::new(bound.shared_ir(), bound.binding())?;
        let launcher = device.backend().prepare(bound, options)?;
        let target = Arc::new(Target { device: device.clone(), signature, launcher });
        Ok(Self { bound: bound.clone(), target, recent: RwLock::default() })
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

    /// Prepares launches on arguments of these forms, in the order of the kernel's parameters: what
    /// they say is checked once, and launches then take addresses and scalars. Nothing is compiled
    /// yet.
    ///
    /// # Errors
    /// [`super::ArgumentError`] naming the argument that does not fit.
    pub fn prepare(&self, forms: &[ArgumentForm<'_>]) -> Result<PreparedLaunch> {
        PreparedLaunch::new(&self.target, forms)
    }

    /// Seconds that the cost model predicts for a launch of these sizes, by name, with the schedule
    /// that it would take, on tensors as a device allocates them. What the model ranks for it is
    /// kept for the launch. Sizes that the kernel does not have are passed over. `None` on a device
    /// that compiles nothing, for code of a bundle, where a size is missing, and where the schedule
    /// that was asked for is not legal.
    ///
    /// # Errors
    /// [`crate::kernel::KernelError::NoSchedule`]: the device has none for the kernel.
    pub fn predicted(&self, sizes: &BTreeMap<String, i64>) -> Result<Option<f64>> {
        let ir = self.bound.ir();
        let runtime = ir.sizes.values().filter(|size| size.kind == SizeKind::Runtime);
        let own = runtime.map(|size| Some((size.name.clone(), *sizes.get(&size.name)?))).collect::<Option<_>>();
        own.map_or(Ok(None), |own| self.target.launcher.predict(&own))
    }

    /// The kernel.
    pub fn kernel(&self) -> &BoundKernel {
        &self.bound
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.target.device
    }

    /// The code that launches so far have run; none on a device that compiles nothing.
    pub fn variants(&self) -> Vec<VariantInfo> {
        self.target.launcher.variants()
    }

    /// What the emulator counted and found in the last launch of each variant; none on other devices.
    pub fn reports(&self) -> Vec<Report> {
        self.target.launcher.reports()
    }

    fn run(&self, stream: Option<&Stream>, arguments: &[Argument<'_>]) -> Result<()> {
        let fixed = match self.known(arguments) {
            Some(fixed) => {
                for (index, argument) in arguments.iter().enumerate() {
                    self.target.signature.check_place(&self.target.device, index, argument)?;
                }
                fixed
            }
            None => self.checked(arguments)?,
        };
        let mut raw = [CallArgument::I32(0); MAX_ARGUMENTS];
        for (slot, argument) in raw.iter_mut().zip(arguments) {
            *slot = argument.raw();
        }
        fixed.launch(&self.target, &raw[..arguments.len()], stream.map(Stream::of_call))
    }

    /// What launches on arguments of these forms have in common, if there was one.
    fn known(&self, arguments: &[Argument<'_>]) -> Option<Arc<Fixed>> {
        let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
        recent.iter().find(|fixed| fixed.is_of(arguments)).cloned()
    }

    /// Checks all of the arguments, and remembers their forms.
    fn checked(&self, arguments: &[Argument<'_>]) -> Result<Arc<Fixed>> {
        let mut sizes = [0; MAX_SIZES];
        let count = self.target.signature.check(&self.target.device, arguments, &mut sizes)?;
        let integer = |index: usize| match arguments[index] {
            Argument::I32(x) => x,
            _ => 0,
        };
        self.target.signature.check_reach(&integer, &sizes[..count])?;
        self.target.signature.check_aliases(arguments)?;
        let forms: Vec<ArgumentForm<'_>> = arguments.iter().map(Argument::form).collect();
        let fixed = Arc::new(Fixed::new(&self.target, &forms, &sizes[..count])?);
        let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
        recent.truncate(REMEMBERED - 1);
        recent.push_front(fixed.clone());
        Ok(fixed)
    }
}
