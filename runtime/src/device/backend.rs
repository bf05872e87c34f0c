//! The trait behind [`super::Device`]: what the CPU, a GPU and the emulator each implement.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flashtile_dsl::analysis::reach::Width;
use flashtile_dsl::ir::Elem;
use flashtile_emulator::Report;

use super::{DeviceError, DeviceInfo, DeviceKind, LaunchOptions, Meter, VariantInfo};
use crate::error::Result;
use crate::kernel::BoundKernel;

/// A device: memory, and kernels made ready for it.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Its properties.
    fn info(&self) -> &DeviceInfo;

    /// Zeroed memory of so many bytes, aligned to at least 256.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError>;

    /// Memory that another owner allocated, used where it lies.
    ///
    /// # Safety
    /// The bytes lie in memory of this device, are initialised, and stay there until the result is dropped or given back. Meanwhile nobody
    /// else writes them, nor reads them if they are written here, unless ordered with the work that is queued here.
    unsafe fn foreign(&self, memory: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError>;

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
    fn as_any(&self) -> &dyn Any;
}

/// Keeps memory alive.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Memory that another owner allocated.
pub(crate) struct ForeignMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Size.
    pub bytes: usize,
    /// Whether it may be written.
    pub writable: bool,
    /// Dropped with the memory. Without it the caller keeps the memory alive.
    pub owner: Option<Owner>,
}

/// Memory of a device. What was allocated here is freed on drop.
pub(crate) trait Memory: fmt::Debug + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// Address of the first byte, as kernels on the device see it.
    fn address(&self) -> u64;
    /// Whether it may be written.
    fn is_writable(&self) -> bool {
        true
    }
    /// Copies from the host, after all queued work that uses the memory.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError>;
    /// Sets every byte, after all queued work that uses the memory.
    fn fill(&self, byte: u8) -> Result<(), DeviceError>;
    /// Copies to the host, after all queued work that writes the memory.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError>;
    /// Ends a loan, when no work uses the memory any more: every later use is an error. Memory that is not foreign stays.
    fn give_back(&self);
    /// For access to what only one kind of memory has.
    fn as_any(&self) -> &dyn Any;
}

/// An argument of a launch, as a device takes it.
#[derive(Clone, Copy)]
pub(crate) enum CallArgument<'a> {
    /// A tensor.
    Tensor {
        /// The memory that it lies in; `None` where only the address is known, on a device that
        /// needs no more.
        memory: Option<&'a dyn Memory>,
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
        /// Whether the launch may write it.
        writes: bool,
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
    pub stream: Option<CallStream<'a>>,
}

/// The stream of a launch, as a device takes it.
#[derive(Clone, Copy)]
pub(crate) struct CallStream<'a> {
    /// Kind of the device whose stream it is. A process has one CPU and one emulator.
    pub kind: DeviceKind,
    /// The stream of the device's driver, which the device knows; `None` on a device without one.
    pub driver: Option<&'a dyn Any>,
}

impl Call<'_> {
    /// The memory of each tensor, and whether the launch writes it.
    pub fn memories(&self) -> impl Iterator<Item = (&dyn Memory, bool)> + Clone {
        self.arguments.iter().filter_map(|argument| match *argument {
            CallArgument::Tensor { memory, writes, .. } => memory.map(|memory| (memory, writes)),
            CallArgument::F32(_) | CallArgument::I32(_) => None,
        })
    }
}

/// What a device keeps for calls of one kind.
pub(crate) struct FixedCall(pub Box<dyn Any + Send + Sync>);

impl fmt::Debug for FixedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FixedCall")
    }
}

/// A kernel made ready for a device.
pub(crate) trait Launcher: fmt::Debug + Send + Sync {
    /// Queues a launch. Compiles, or loads from the cache, what the first call with such arguments needs; later calls
    /// allocate nothing and do not wait, so that they may be captured into a graph.
    fn launch(&self, call: &Call<'_>) -> Result<()>;

    /// What a device keeps for calls that differ in addresses, scalars and streams only, of which
    /// the call is one; its addresses and scalars count for nothing. `None` on a device that keeps
    /// nothing: launches there need the memory of all tensors.
    fn fix(&self, _: &Call<'_>) -> Option<FixedCall> {
        None
    }

    /// As [`Launcher::launch`], for a call of those that something was kept for.
    fn launch_fixed(&self, _: &FixedCall, call: &Call<'_>) -> Result<()> {
        self.launch(call)
    }

    /// Seconds that the cost model predicts for a launch of these sizes, by name, with the schedule
    /// that it would take; `None` on a device that compiles nothing.
    fn predict(&self, _sizes: &BTreeMap<String, i64>) -> Result<Option<f64>> {
        Ok(None)
    }

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
