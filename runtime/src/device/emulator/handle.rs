//! The one emulator of the process: its global memory, and the modules that it has loaded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use flashtile_codegen::Arch;
use flashtile_emulator::{GlobalMemory, Module};

use crate::device::{DeviceInfo, DeviceKind, EmulatedCode, EmulatorError, LaunchOptions, Meter};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::lowering;

/// Multiprocessors of the emulator. Few, so that the blocks of persistent kernels run several
/// programs each.
pub(super) const MULTIPROCESSORS: u32 = 2;
/// Modules that are kept loaded: of a kernel that is launched anew, with the same schedule, none is
/// compiled again.
const MODULES: usize = 32;

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
    pub(super) fn get() -> Arc<Self> {
        static DEVICE: OnceLock<Arc<Emulator>> = OnceLock::new();
        let new = || {
            let inner = Inner { info: info(), memory: Mutex::default(), meter: Arc::default(), modules: Mutex::default() };
            Arc::new(Self { inner: Arc::new(inner) })
        };
        DEVICE.get_or_init(new).clone()
    }

    /// Its properties.
    pub(super) fn properties(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Counts what is allocated.
    pub(super) fn allocated(&self) -> &Arc<Meter> {
        &self.inner.meter
    }

    /// Global memory as it is now; its buffers are shared, not copied.
    pub(super) fn memory(&self) -> GlobalMemory {
        self.change_memory(|memory| memory.clone())
    }

    pub(super) fn change_memory<T>(&self, change: impl FnOnce(&mut GlobalMemory) -> T) -> T {
        // A poisoned lock holds a memory like any other: changes of its list of buffers do not
        // panic half-way.
        change(&mut self.inner.memory.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The module of a source, compiled and loaded unless it is still there.
    pub(super) fn module(
        &self,
        kernel: &BoundKernel,
        source: &str,
        arch: &'static Arch,
        options: &LaunchOptions,
    ) -> Result<Arc<Module>> {
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
