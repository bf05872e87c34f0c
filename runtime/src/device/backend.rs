//! The trait behind [`super::Device`]: what the CPU, a GPU and the emulator each implement.

use std::fmt;
use std::sync::Arc;

use flashtile_dsl::analysis::reach::Width;
use flashtile_dsl::ir::Elem;
use flashtile_emulator::Report;

use super::{DeviceError, DeviceInfo, LaunchOptions, Meter, Stream, VariantInfo};
use crate::error::Result;
use crate::kernel::BoundKernel;

/// A device: memory, and kernels made ready for it.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Its properties.
    fn info(&self) -> &DeviceInfo;

    /// Zeroed memory of so many bytes, aligned to at least 256.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError>;

    /// Counts what `allocate`, and the device itself, have allocated.
    fn meter(&self) -> &Meter;

    /// Bytes of memory that the driver says are free; `None` on a device without a driver.
    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        Ok(None)
    }

    /// Waits for everything queued on the device's own stream.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Makes a kernel ready to be launched. Nothing is compiled yet.
    fn prepare(&self, kernel: &BoundKernel, options: &LaunchOptions) -> Result<Box<dyn Launcher>>;

    /// For access to what only one kind of device has.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Memory of a device, freed on drop.
pub(crate) trait Memory: fmt::Debug + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// Address of the first byte, as kernels on the device see it.
    fn address(&self) -> u64;
    /// Copies from the host, after everything queued on the device's own stream.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError>;
    /// Sets every byte, after everything queued on the device's own stream.
    fn fill(&self, byte: u8) -> Result<(), DeviceError>;
    /// Copies to the host, after everything queued on the device's own stream.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError>;
    /// For access to what only one kind of memory has.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An argument of a launch, as a device takes it.
#[derive(Clone, Copy)]
pub(crate) enum CallArgument<'a> {
    /// A tensor.
    Tensor {
        /// The memory that it lies in.
        memory: &'a dyn Memory,
        /// First element in the memory, in elements.
        offset: usize,
        /// Element type.
        elem: Elem,
        /// Address of the first element.
        address: u64,
        /// Extents.
        shape: &'a [usize],
        /// Strides in elements.
        strides: &'a [usize],
    },
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

/// A launch whose arguments have been checked against the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// One argument per parameter, in order.
    pub arguments: &'a [CallArgument<'a>],
    /// Values of all sizes, const ones too, by [`flashtile_dsl::ir::SizeId`].
    pub sizes: &'a [i64],
    /// What the index arithmetic of the kernel needs for these sizes and scalars.
    pub width: Width,
    /// Where to queue the launch; the device's own stream if `None`.
    pub stream: Option<&'a Stream>,
}

/// A kernel made ready for a device.
pub(crate) trait Launcher: fmt::Debug + Send + Sync {
    /// Queues a launch. Compiles, or loads from the cache, what the first call with such arguments needs; later calls
    /// allocate nothing and do not wait, so that they may be captured into a graph.
    fn launch(&self, call: &Call<'_>) -> Result<()>;

    /// The code that launches so far have run; none on a device that compiles nothing.
    fn variants(&self) -> Vec<VariantInfo> {
        Vec::new()
    }

    /// What came of the last launch of each variant, on a device that tells: the emulator.
    fn reports(&self) -> Vec<Report> {
        Vec::new()
    }
}

/// Checks that bytes `offset..offset + len` lie in an allocation of `bytes`.
pub(crate) fn check_range(offset: usize, len: usize, bytes: usize) -> Result<(), DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= bytes => Ok(()),
        end => Err(DeviceError::OutOfRange { offset, end: end.unwrap_or(usize::MAX), bytes }),
    }
}
