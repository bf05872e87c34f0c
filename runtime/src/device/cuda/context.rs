//! A GPU: its primary context, its properties, its own stream.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::{result, sys};
use flashtile_codegen::{ARCHS, Arch, Generated};

use super::driver::{check, check_status, functions};
use super::image::Form;
use super::memory::DeviceMemory;
use super::stream::{Captures, CudaStream};
use super::uses::{Access, Entered};
use super::variant::Variant;
use crate::device::backend::ForeignMemory;
use crate::device::compiled::{CompiledLauncher, Processor};
use crate::device::{
    Backend, Call, CodeResources, DeviceError, DeviceInfo, DeviceKind, GpuInfo, LaunchOptions, Launcher, Memory, Meter,
};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::lowering;

/// The primary context of a GPU. What lives in it holds an `Arc` of it.
///
/// The primary context is never released: it is shared with other libraries of the process, and the driver releases it
/// when the process ends.
#[derive(Debug)]
pub(crate) struct Context {
    context: sys::CUcontext,
    /// `cuda:N`, for messages.
    pub id: String,
    /// Counts what is allocated in it.
    pub meter: Arc<Meter>,
    /// What the captures that run use.
    pub(super) captures: Captures,
}

// SAFETY: a context handle may be used from any thread; each use makes it current on its own thread first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what is shared.
unsafe impl Sync for Context {}

impl Context {
    /// Whether it is this one.
    pub(super) fn is(&self, context: sys::CUcontext) -> bool {
        self.context == context
    }

    /// Waits for all work in it.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        self.bind()?;
        check(&self.id, "cuCtxSynchronize", result::ctx::synchronize())
    }

    /// Makes the context current on this thread, as every driver call on it needs.
    pub fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the handle came from `cuDevicePrimaryCtxRetain` and is never released.
        check(&self.id, "cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }
}

/// A GPU. Clones are the same GPU.
#[derive(Clone, Debug)]
pub(crate) struct Cuda {
    context: Arc<Context>,
    info: DeviceInfo,
    gpu: GpuInfo,
    arch: &'static Arch,
    stream: Arc<CudaStream>,
}

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

    fn open(ordinal: usize) -> Result<Self, DeviceError> {
        functions()?;
        let id = format!("cuda:{ordinal}");
        check(&id, "cuInit", result::init())?;
        let count = check(&id, "cuDeviceGetCount", result::device::get_count())?;
        let number = c_int::try_from(ordinal).ok().filter(|&n| n < count);
        let number = number.ok_or(DeviceError::NoSuchGpu { ordinal, count: usize::try_from(count).unwrap_or(0) })?;
        let device = check(&id, "cuDeviceGet", result::device::get(number))?;
        let (info, gpu) = describe(&id, device)?;
        let arch = Arch::for_capability(gpu.capability.0, gpu.capability.1).ok_or_else(|| DeviceError::UnknownArchitecture {
            name: info.name.clone(),
            capability: gpu.capability,
            known: ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(", "),
        })?;
        // SAFETY: `device` is a handle that the driver just gave.
        let context = check(&id, "cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let context = Arc::new(Context { context, id, meter: Arc::default(), captures: Captures::default() });
        context.bind()?;
        let stream = Arc::new(CudaStream::new(&context)?);
        Ok(Self { context, info, gpu, arch, stream })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its properties as a GPU.
    pub fn gpu(&self) -> &GpuInfo {
        &self.gpu
    }

    /// The architecture whose code runs on it natively.
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// The stream that launches without one are queued on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn allocate_memory(&self, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        DeviceMemory::zeroed(&self.context, &self.stream, bytes)
    }
}

impl Backend for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(self.allocate_memory(bytes)?))
    }

    unsafe fn foreign(&self, memory: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(DeviceMemory::foreign(&self.context, &self.stream, memory)))
    }

    fn meter(&self) -> &Meter {
        &self.context.meter
    }

    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        self.context.bind()?;
        let (free, _) = check(&self.context.id, "cuMemGetInfo_v2", result::mem_get_info())?;
        Ok(Some(free))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.synchronize()
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

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn arch(&self) -> &'static Arch {
        self.arch
    }

    fn check(&self, arch: &'static Arch) -> Result<(), DeviceError> {
        Form::choose(arch, &self.info.name, self.gpu.capability).map(|_| ())
    }

    fn load(&self, kernel: &BoundKernel, generated: Generated, arch: &'static Arch, options: &LaunchOptions) -> Result<Variant> {
        let code = lowering::compile_generated(&kernel.ir().name, generated, &options.toolchain, &options.cache)?;
        Variant::load(self, kernel.ir(), &code, arch)
    }

    fn resources(&self, variant: &Variant) -> Result<Option<CodeResources>, DeviceError> {
        variant.resources().map(Some)
    }

    fn launch(&self, variant: &Variant, call: &Call<'_>, _: &LaunchOptions) -> Result<()> {
        let stream = match call.stream {
            None => &*self.stream,
            Some(stream) => match stream.cuda().filter(|stream| stream.is_of(&self.context)) {
                Some(stream) => stream,
                None => return Err(DeviceError::OtherDevice { device: self.info.id.clone() }.into()),
            },
        };
        let _entered = Entered::new(&self.context.id, uses(call).map(|(memory, _)| &**memory.uses()))?;
        let is_own = std::ptr::eq(stream, &*self.stream);
        let capture = if is_own { None } else { stream.capture()? };
        if capture.is_none() {
            for (memory, access) in uses(call) {
                memory.uses().order(access, stream, &self.stream)?;
            }
        }
        let launched = variant.launch(call, stream);
        // Of a call of several launches some may be queued even after an error.
        match (capture, is_own) {
            (Some(capture), _) => {
                uses(call).for_each(|(memory, access)| self.context.captures.note(capture, memory.uses(), access));
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

fn describe(id: &str, device: sys::CUdevice) -> Result<(DeviceInfo, GpuInfo), DeviceError> {
    use sys::CUdevice_attribute as A;
    let attribute = |attribute: A| {
        // SAFETY: `device` is a handle that the driver gave.
        let value = check(id, "cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, attribute) })?;
        Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    let name = check(id, "cuDeviceGetName", result::device::get_name(device))?;
    // SAFETY: as above.
    let memory = check(id, "cuDeviceTotalMem_v2", unsafe { result::device::total_mem(device) })?;
    let mut version: c_int = 0;
    // SAFETY: the pointer is valid for a write.
    check_status(id, "cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let version = version.unsigned_abs();
    let memory_khz = f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?);
    let bus_bits = f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
    let gpu = GpuInfo {
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sms: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into(),
        clock_ghz: f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?) / 1e6,
        // Two transfers a clock.
        memory_gbytes_per_s: 2.0 * memory_khz * 1e3 * bus_bits / 8.0 / 1e9,
        driver: (version / 1000, version % 1000 / 10),
    };
    let info =
        DeviceInfo { id: id.to_owned(), kind: DeviceKind::Cuda, name, memory_bytes: memory as u64, gpu: Some(gpu.clone()) };
    Ok((info, gpu))
}
