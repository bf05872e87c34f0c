//! A GPU as a device: memory, and launches in order with the work on other streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::result;
use flashtile_codegen::{Arch, Generated};

use super::driver::check;
use super::gpu::Cuda;
use super::image::Form;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use super::uses::{Access, Entered};
use super::variant::{FixedLaunch, Variant};
use crate::device::CarriedCode;
use crate::device::backend::ForeignMemory;
use crate::device::compiled::{CompiledLauncher, Processor};
use crate::device::{Backend, Call, CallStream, CodeResources, DeviceError, DeviceInfo, LaunchOptions, Launcher, Memory, Meter};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::lowering;

impl Cuda {
    /// The GPU of this number, the same in the whole process.
    pub fn device(ordinal: usize) -> Result<Arc<dyn Backend>, DeviceError> {
        static DEVICES: OnceLock<Mutex<HashMap<usize, Arc<Cuda>>>> = OnceLock::new();
        let mut devices = DEVICES.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
        if let Some(device) = devices.get(&ordinal) {
            return Ok(device.clone());
        }
        let device = Arc::new(Self::open(ordinal)?);
        devices.insert(ordinal, device.clone());
        Ok(device)
    }

    /// The driver's stream of a call's stream, if it is one of this GPU.
    fn own<'a>(&self, stream: CallStream<'a>) -> Result<&'a CudaStream, DeviceError> {
        let stream: Option<&CudaStream> = stream.driver.and_then(|stream| stream.downcast_ref());
        let own = stream.filter(|stream| stream.is_of(self.context()));
        own.ok_or_else(|| DeviceError::OtherDevice { device: self.properties().id.clone() })
    }
}

impl Backend for Cuda {
    fn info(&self) -> &DeviceInfo {
        self.properties()
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(self.allocate_memory(bytes)?))
    }

    unsafe fn foreign(&self, memory: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(DeviceMemory::foreign(self.context(), self.stream(), memory)))
    }

    fn meter(&self) -> &Meter {
        &self.context().meter
    }

    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        self.context().bind()?;
        let (free, _) = check(&self.context().id, "cuMemGetInfo_v2", result::mem_get_info())?;
        Ok(Some(free))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream().synchronize()
    }

    fn prepare(&self, kernel: &BoundKernel, options: &LaunchOptions) -> Result<Box<dyn Launcher>> {
        Ok(Box::new(CompiledLauncher::new(self, kernel, options)?))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Processor for Cuda {
    type Variant = Variant;
    type Fixed = FixedLaunch;

    const TAKES_ADDRESSES: bool = true;

    fn info(&self) -> &DeviceInfo {
        self.properties()
    }

    fn arch(&self) -> &'static Arch {
        Cuda::arch(self)
    }

    fn check(&self, arch: &'static Arch) -> Result<(), DeviceError> {
        Form::choose(arch, &self.properties().name, self.gpu().capability).map(|_| ())
    }

    fn load(&self, kernel: &BoundKernel, generated: Generated, arch: &'static Arch, options: &LaunchOptions) -> Result<Variant> {
        let code = lowering::compile_generated(&kernel.ir().name, generated, &options.toolchain, &options.cache)?;
        Variant::load(self, kernel.ir(), &code.contract, &code.module, arch)
    }

    fn load_carried(&self, kernel: &BoundKernel, code: &CarriedCode, arch: &'static Arch, _: &LaunchOptions) -> Result<Variant> {
        Variant::load(self, kernel.ir(), &code.contract, &code.module, arch)
    }

    fn resources(&self, variant: &Variant) -> Result<Option<CodeResources>, DeviceError> {
        variant.resources().map(Some)
    }

    fn fix(&self, variant: &Variant, call: &Call<'_>) -> Result<FixedLaunch> {
        Ok(variant.fix(call)?)
    }

    fn launch(&self, variant: &Variant, call: &Call<'_>, _: &LaunchOptions) -> Result<()> {
        self.queue(variant, &FixedLaunch::none(), call)
    }

    fn launch_fixed(&self, variant: &Variant, fixed: &FixedLaunch, call: &Call<'_>, _: &LaunchOptions) -> Result<()> {
        self.queue(variant, fixed, call)
    }
}

impl Cuda {
    fn queue(&self, variant: &Variant, fixed: &FixedLaunch, call: &Call<'_>) -> Result<()> {
        let stream = match call.stream {
            None => &**self.stream(),
            Some(stream) => self.own(stream)?,
        };
        let _entered = Entered::new(&self.context().id, uses(call).map(|(memory, _)| &**memory.uses()))?;
        if stream.is_ordered() {
            return Ok(variant.launch(call, fixed, stream)?);
        }
        let is_own = std::ptr::eq(stream, &**self.stream());
        let capture = if is_own { None } else { stream.capture()? };
        if capture.is_none() {
            for (memory, access) in uses(call) {
                memory.uses().order(access, stream, self.stream())?;
            }
        }
        let launched = variant.launch(call, fixed, stream);
        // Of a call of several launches some may be queued even after an error.
        match (capture, is_own) {
            (Some(capture), _) => {
                uses(call).for_each(|(memory, access)| self.captures().note(capture, memory.uses(), access));
            }
            (None, true) => uses(call).for_each(|(memory, access)| memory.uses().note_own(access)),
            (None, false) => {
                let mark = stream.mark()?;
                uses(call).for_each(|(memory, access)| memory.uses().note(&mark, access));
            }
        }
        Ok(launched?)
    }
}

/// The memory of a call's tensors.
fn uses<'a>(call: &'a Call<'_>) -> impl Iterator<Item = (&'a DeviceMemory, Access)> + Clone {
    let memory = |(memory, writes): (&'a dyn Memory, bool)| Some((memory.as_any().downcast_ref()?, Access::of(writes)));
    call.memories().filter_map(memory)
}
