//! A GPU: its properties, its context, its own stream. What a launch on it needs is in the files
//! that import this one.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use flashtile_codegen::{ARCHS, Arch};

use super::context::Context;
use super::driver::{check, check_status, functions};
use super::graph::Captures;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use crate::device::{DeviceError, DeviceInfo, DeviceKind, GpuInfo};

/// A GPU. Clones are the same GPU.
#[derive(Clone, Debug)]
pub(crate) struct Cuda {
    context: Arc<Context>,
    info: DeviceInfo,
    gpu: GpuInfo,
    arch: &'static Arch,
    stream: Arc<CudaStream>,
    captures: Arc<Captures>,
}

impl Cuda {
    pub(super) fn open(ordinal: usize) -> Result<Self, DeviceError> {
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
        let context = Context::of(device, id)?;
        let stream = Arc::new(CudaStream::new(&context)?);
        Ok(Self { context, info, gpu, arch, stream, captures: Arc::default() })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its properties as a device.
    pub(super) fn properties(&self) -> &DeviceInfo {
        &self.info
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

    /// What the captures of its streams use.
    pub fn captures(&self) -> &Arc<Captures> {
        &self.captures
    }

    pub(super) fn allocate_memory(&self, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        DeviceMemory::zeroed(&self.context, &self.stream, bytes)
    }
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
