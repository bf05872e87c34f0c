//! The emulator as a device: kernels are compiled to PTX, which is executed and checked on the host. Needs no GPU.
//!
//! Invariant: a launch in which the emulator finds a fault is an error, whatever the kernel computed.

mod error;
mod memory;
mod variant;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use flashtile_codegen::{Arch, Generated};
use flashtile_emulator::{GlobalMemory, Module, Options};

use super::backend::ForeignMemory;
use super::compiled::{CompiledLauncher, Processor};
use super::{Backend, Call, CodeResources, DeviceError, DeviceInfo, DeviceKind, LaunchOptions, Launcher, Memory, Meter};
use crate::error::{Error, Result};
use crate::kernel::BoundKernel;
use crate::lowering;

pub use error::EmulatorError;
use memory::EmulatorMemory;
use variant::Variant;

/// Multiprocessors of the emulator. Few, so that the blocks of persistent kernels run several programs each.
const MULTIPROCESSORS: u32 = 2;
/// Modules that are kept loaded: of a kernel that is launched anew, with the same schedule, none is compiled again.
const MODULES: usize = 32;

/// How the emulator executes launches. Other devices do not look at it.
#[derive(Clone, Debug, Default)]
pub struct Emulation {
    /// When asynchronous operations take effect and which warp goes on, what is looked for, whether to count.
    pub options: Options,
    /// Code to execute in place of what is generated, such as an edited one. It is called as what it replaces would be.
    pub code: Option<EmulatedCode>,
}

/// Code given to the emulator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EmulatedCode {
    /// CUDA C, which is compiled as generated code is.
    Cuda(Arc<str>),
    /// PTX.
    Ptx(Arc<str>),
}

/// Source and architecture.
type ModuleKey = (String, &'static str);

/// The one emulator of the process. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: DeviceInfo,
    memory: Mutex<GlobalMemory>,
    meter: Arc<Meter>,
    /// By source and architecture, the last one used at the end.
    modules: Mutex<VecDeque<(ModuleKey, Arc<Module>)>>,
}

impl Emulator {
    /// The emulator, the same in the whole process.
    pub fn device() -> Arc<dyn Backend> {
        static DEVICE: OnceLock<Arc<Emulator>> = OnceLock::new();
        let new = || {
            let inner = Inner { info: info(), memory: Mutex::default(), meter: Arc::default(), modules: Mutex::default() };
            Arc::new(Emulator { inner: Arc::new(inner) })
        };
        DEVICE.get_or_init(new).clone()
    }

    /// Global memory as it is now; its buffers are shared, not copied.
    fn memory(&self) -> GlobalMemory {
        self.change_memory(|memory| memory.clone())
    }

    fn change_memory<T>(&self, change: impl FnOnce(&mut GlobalMemory) -> T) -> T {
        // A poisoned lock holds a memory like any other: changes of its list of buffers do not panic half-way.
        change(&mut self.inner.memory.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The module of a source, compiled and loaded unless it is still there.
    fn module(&self, kernel: &BoundKernel, source: &str, arch: &'static Arch, options: &LaunchOptions) -> Result<Arc<Module>> {
        let name = &kernel.ir().name;
        let load = |ptx: &str| {
            let fault = |error| EmulatorError::Load { kernel: name.clone(), arch: arch.name.to_owned(), error };
            Module::load(ptx).map(Arc::new).map_err(fault)
        };
        let source = match &options.emulation.code {
            Some(EmulatedCode::Ptx(ptx)) => return Ok(load(ptx)?),
            Some(EmulatedCode::Cuda(own)) => own,
            None => source,
        };
        let key = (source.to_owned(), arch.name);
        let modules = || self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        {
            let mut modules = modules();
            if let Some(at) = modules.iter().position(|(of, _)| *of == key) {
                let found = modules.remove(at).expect("it was just found");
                modules.push_back(found.clone());
                return Ok(found.1);
            }
        }
        let ptx = options.toolchain.compile_ptx(&lowering::pin_lines(source), &format!("{name}.cu"), arch.name)?;
        let module = load(&ptx)?;
        let mut modules = modules();
        modules.push_back((key, module.clone()));
        if modules.len() > MODULES {
            modules.pop_front();
        }
        Ok(module)
    }
}

fn info() -> DeviceInfo {
    DeviceInfo {
        id: "emulator".to_owned(),
        kind: DeviceKind::Emulator,
        name: "PTX emulator".to_owned(),
        memory_bytes: 0,
        gpu: None,
    }
}

/// The error of code that was given in place of what is generated: whoever gave it is asked, not this crate.
fn blamed(error: Error, kernel: &str, options: &LaunchOptions) -> Error {
    match error {
        Error::Emulator(error) if options.emulation.code.is_some() => error.of_own_code(kernel).into(),
        other => other,
    }
}

impl Backend for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(EmulatorMemory::zeroed(self, bytes)?))
    }

    unsafe fn foreign(&self, _: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        Err(DeviceError::NoForeignMemory("emulator".to_owned()))
    }

    fn meter(&self) -> &Meter {
        &self.inner.meter
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

    fn info(&self) -> &DeviceInfo {
        &self.inner.info
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
        Variant::new(self, kernel.ir(), &generated, module)
    }

    fn resources(&self, _: &Variant) -> Result<Option<CodeResources>, DeviceError> {
        Ok(None)
    }

    fn launch(&self, variant: &Variant, call: &Call<'_>, options: &LaunchOptions) -> Result<()> {
        variant.launch(call, &options.emulation.options).map_err(|error| blamed(error, variant.name(), options))
    }

    fn reports(&self, variant: &Variant) -> Vec<flashtile_emulator::Report> {
        variant.reports()
    }
}
