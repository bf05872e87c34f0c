//! The emulator as a device: memory, and launches whose findings are errors.

use std::sync::Arc;

use flashtile_codegen::{Arch, Generated};
use flashtile_emulator::Module;

use super::handle::Emulator;
use super::memory::EmulatorMemory;
use super::variant::Variant;
use crate::device::CarriedCode;
use crate::device::backend::ForeignMemory;
use crate::device::compiled::{CompiledLauncher, Processor};
use crate::device::{
    Backend, Call, CodeResources, DeviceError, DeviceInfo, EmulatorError, LaunchOptions, Launcher, Memory, Meter,
};
use crate::error::{Error, Result};
use crate::kernel::BoundKernel;
use crate::lowering::CallingContract;

impl Emulator {
    /// The emulator, the same in the whole process.
    pub fn device() -> Arc<dyn Backend> {
        Self::get()
    }
}

/// The error of code that was given in place of what is generated: whoever gave it is asked, not
/// this crate.
fn blamed(error: Error, kernel: &str, options: &LaunchOptions) -> Error {
    match error {
        Error::Emulator(error) if options.emulation.code.is_some() => error.of_own_code(kernel).into(),
        other => other,
    }
}

impl Backend for Emulator {
    fn info(&self) -> &DeviceInfo {
        self.properties()
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(EmulatorMemory::zeroed(self, bytes)?))
    }

    unsafe fn foreign(&self, _: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        Err(DeviceError::NoForeignMemory("emulator".to_owned()))
    }

    fn meter(&self) -> &Meter {
        self.allocated()
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(()) // launches return when they are done
    }

    fn prepare(&self, kernel: &BoundKernel, options: &LaunchOptions) -> Result<Box<dyn Launcher>> {
        Ok(Box::new(CompiledLauncher::new(self, kernel, options)?))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Processor for Emulator {
    type Variant = Variant;
    type Fixed = ();

    const TAKES_ADDRESSES: bool = false;

    fn info(&self) -> &DeviceInfo {
        self.properties()
    }

    fn arch(&self) -> &'static Arch {
        Arch::named("sm_90a").expect("in the table")
    }

    fn check(&self, _: &'static Arch) -> Result<(), DeviceError> {
        Ok(()) // what it cannot execute of an architecture, it says when it loads the code
    }

    fn load(&self, kernel: &BoundKernel, generated: Generated, arch: &'static Arch, options: &LaunchOptions) -> Result<Variant> {
        let blamed = |error| blamed(error, &kernel.ir().name, options);
        let module = self.module(kernel, &generated.source, arch, options).map_err(blamed)?;
        Variant::new(self, kernel.ir(), &CallingContract::of(&generated), generated.arch, module)
    }

    fn load_carried(&self, kernel: &BoundKernel, code: &CarriedCode, arch: &'static Arch, _: &LaunchOptions) -> Result<Variant> {
        let fault = |error| EmulatorError::Load { kernel: kernel.ir().name.clone(), arch: arch.name.to_owned(), error };
        let module = Module::load(&code.module.ptx).map_err(fault)?;
        Variant::new(self, kernel.ir(), &code.contract, arch.name, Arc::new(module))
    }

    fn resources(&self, _: &Variant) -> Result<Option<CodeResources>, DeviceError> {
        Ok(None)
    }

    fn fix(&self, _: &Variant, _: &Call<'_>) -> Result<()> {
        Ok(())
    }

    fn launch(&self, variant: &Variant, call: &Call<'_>, options: &LaunchOptions) -> Result<()> {
        variant.launch(call, &options.emulation.options).map_err(|error| blamed(error, variant.name(), options))
    }

    fn reports(&self, variant: &Variant) -> Vec<flashtile_emulator::Report> {
        variant.reports()
    }
}
