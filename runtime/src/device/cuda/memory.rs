//! Memory of a GPU: allocations of ours, and memory of another owner.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::check;
use super::stream::CudaStream;
use super::uses::{Access, Entered, Uses};
use crate::device::backend::{ForeignMemory, Owner, check_range};
use crate::device::{DeviceError, Held, Memory};

/// Memory of a context.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    stream: Arc<CudaStream>,
    address: sys::CUdeviceptr,
    bytes: usize,
    uses: Arc<Uses>,
    holder: Holder,
}

/// Who frees memory.
#[derive(Debug)]
enum Holder {
    /// We do, on drop.
    Here { _counted: Held },
    /// Its owner, which stays alive for as long as the memory is used here, if it is given.
    Elsewhere { writable: bool, _owner: Option<Owner> },
}

impl DeviceMemory {
    /// Zeroed memory; the zeros are there when this returns, whatever stream uses it next.
    pub fn zeroed(context: &Arc<Context>, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        // The driver refuses to allocate nothing.
        // SAFETY: the context is current; the result is freed once, on drop.
        let address = match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(address) => address,
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = result::mem_get_info().unwrap_or((0, 0));
                return Err(DeviceError::OutOfMemory { device: context.id.clone(), requested: bytes, free, total });
            }
            Err(error) => return check(&context.id, "cuMemAlloc_v2", Err(error)),
        };
        let holder = Holder::Here { _counted: context.meter.hold(bytes) };
        let memory = Self { context: context.clone(), stream: stream.clone(), address, bytes, uses: Arc::default(), holder };
        memory.fill(0)?;
        Ok(memory)
    }

    /// Memory that another owner allocated. Nothing of it is read or written here.
    pub fn foreign(context: &Arc<Context>, stream: &Arc<CudaStream>, memory: ForeignMemory) -> Self {
        let ForeignMemory { address, bytes, writable, owner } = memory;
        let holder = Holder::Elsewhere { writable, _owner: owner };
        Self { context: context.clone(), stream: stream.clone(), address, bytes, uses: Arc::default(), holder }
    }

    /// Waits on the host for all work of the context.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        self.context.finish()
    }

    /// Begins a copy or a fill on the device's own stream, after all work that conflicts with it.
    fn begin(&self, access: Access) -> Result<impl Drop, DeviceError> {
        if access == Access::Write && !self.is_writable() {
            return Err(DeviceError::ReadOnly { device: self.context.id.clone() });
        }
        let entered = Entered::new(&self.context.id, std::iter::once(&*self.uses))?;
        self.uses.order(access, &self.stream, &self.stream)?;
        self.context.bind()?;
        Ok(entered)
    }

    /// The work that uses it.
    pub(super) fn uses(&self) -> &Arc<Uses> {
        &self.uses
    }

    /// Queues filling every byte on the device's own stream, after what uses the memory elsewhere.
    pub fn queue_fill(&self, byte: u8) -> Result<(), DeviceError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let _entered = self.begin(Access::Write)?;
        // SAFETY: the range is the allocation, which outlives the stream's work: freeing waits for it, and a loan ends after it.
        let filled = unsafe { result::memset_d8_async(self.address, byte, self.bytes, self.stream.raw()) };
        self.uses.note_own(Access::Write);
        check(&self.context.id, "cuMemsetD8Async", filled)
    }
}

impl Memory for DeviceMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn is_writable(&self) -> bool {
        !matches!(self.holder, Holder::Elsewhere { writable: false, .. })
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        check_range(offset, from.len(), self.bytes)?;
        if from.is_empty() {
            return Ok(());
        }
        let _entered = self.begin(Access::Write)?;
        // SAFETY: the range was checked; `from` stays borrowed until the stream is done.
        let copied = unsafe { result::memcpy_htod_async(self.address + offset as u64, from, self.stream.raw()) };
        check(&self.context.id, "cuMemcpyHtoDAsync_v2", copied)?;
        self.stream.synchronize()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, into.len(), self.bytes)?;
        if into.is_empty() {
            return Ok(());
        }
        let _entered = self.begin(Access::Read)?;
        // SAFETY: the range was checked; `into` stays borrowed until the stream is done.
        let copied = unsafe { result::memcpy_dtoh_async(into, self.address + offset as u64, self.stream.raw()) };
        check(&self.context.id, "cuMemcpyDtoHAsync_v2", copied)?;
        self.stream.synchronize()
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.queue_fill(byte)?;
        self.stream.synchronize()
    }

    fn give_back(&self) {
        self.uses.close();
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A graph may still hold the uses: launching it would use what is freed here.
        self.uses.close();
        if matches!(self.holder, Holder::Here { .. }) && self.context.bind().is_ok() {
            // SAFETY: the address came from `cuMemAlloc` and is freed once. A failure leaves nothing to be done: either
            // the context is broken, and its memory gone, or the process ends.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
