//! The CPU as a device: memory of the host, and the tile IR executed.

mod launcher;
mod memory;

use std::sync::{Arc, OnceLock};

use super::backend::ForeignMemory;
use super::room::host_holds;
use super::{Backend, DeviceError, DeviceInfo, DeviceKind, LaunchOptions, Launcher, Memory, Meter};
use crate::error::Result;
use crate::kernel::BoundKernel;

use memory::HostMemory;

/// The one CPU device of the process.
#[derive(Debug)]
pub(crate) struct Cpu {
    info: DeviceInfo,
    meter: Arc<Meter>,
}

impl Cpu {
    /// The CPU device, the same in the whole process.
    pub fn device() -> Arc<dyn Backend> {
        static DEVICE: OnceLock<Arc<Cpu>> = OnceLock::new();
        DEVICE.get_or_init(|| Arc::new(Cpu { info: info(), meter: Arc::default() })).clone()
    }
}

fn info() -> DeviceInfo {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    DeviceInfo {
        id: "cpu".to_owned(),
        kind: DeviceKind::Cpu,
        name: format!("CPU ({}, {threads} threads)", std::env::consts::ARCH),
        memory_bytes: 0,
        gpu: None,
    }
}

impl Backend for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        host_holds("cpu", bytes)?;
        let out_of_memory = || DeviceError::OutOfMemory { device: "cpu".to_owned(), requested: bytes, free: 0, total: 0 };
        Ok(Arc::new(HostMemory::zeroed(bytes, || self.meter.hold(bytes)).ok_or_else(out_of_memory)?))
    }

    unsafe fn foreign(&self, memory: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        // SAFETY: as the caller promises.
        Ok(Arc::new(unsafe { HostMemory::foreign(memory) }))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(()) // launches return when they are done
    }

    fn prepare(&self, kernel: &BoundKernel, _: &LaunchOptions) -> Result<Box<dyn Launcher>> {
        Ok(Box::new(launcher::CpuLauncher::new(kernel)))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
