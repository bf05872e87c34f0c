//! The CPU as a device: memory of the host, and the tile IR executed.

mod launcher;

use std::sync::{Arc, OnceLock, RwLock};

use super::backend::check_range;
use super::{Backend, DeviceError, DeviceInfo, DeviceKind, Held, LaunchOptions, Launcher, Memory, Meter};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::memory;

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
        memory::host_holds("cpu", bytes)?;
        let out_of_memory = || DeviceError::OutOfMemory { device: "cpu".to_owned(), requested: bytes, free: 0, total: 0 };
        let mut raw = Vec::new();
        raw.try_reserve_exact(bytes.saturating_add(ALIGNMENT)).map_err(|_| out_of_memory())?;
        raw.resize(bytes + ALIGNMENT, 0u8);
        let start = raw.as_ptr().align_offset(ALIGNMENT);
        let address = raw.as_ptr() as u64 + start as u64;
        Ok(Arc::new(HostMemory { bytes, address, start, raw: RwLock::new(raw), _held: self.meter.hold(bytes) }))
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

/// Host memory is aligned as device memory is, so that alignment facts are the same on every device.
const ALIGNMENT: usize = 256;

/// Memory of the host.
pub(crate) struct HostMemory {
    bytes: usize,
    address: u64,
    /// First byte of the allocation in `raw`, which never grows and so never moves.
    start: usize,
    raw: RwLock<Vec<u8>>,
    _held: Held,
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostMemory({} bytes)", self.bytes)
    }
}

/// A poisoned lock holds bytes like any other: a panic elsewhere cannot leave them invalid.
impl Memory for HostMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        check_range(offset, from.len(), self.bytes)?;
        let mut raw = self.raw.write().unwrap_or_else(|e| e.into_inner());
        raw[self.start + offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, into.len(), self.bytes)?;
        let raw = self.raw.read().unwrap_or_else(|e| e.into_inner());
        into.copy_from_slice(&raw[self.start + offset..][..into.len()]);
        Ok(())
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.raw.write().unwrap_or_else(|e| e.into_inner()).fill(byte);
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
