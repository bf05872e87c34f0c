//! Slices of cudarc that are lent to kernels, without `unsafe`.
//!
//! A loan begins behind what cudarc has queued for the slice, and ends before what it queues next:
//! events say so on both sides, and the host does not wait.

use std::sync::Arc;

use cudarc::driver::{self, CudaView, CudaViewMut, SyncOnDrop};

use super::gpu::Cuda;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use super::uses::Access;
use crate::device::backend::ForeignMemory;
use crate::device::{Device, DeviceError, ForeignSlice, Lent, Loan, ReadSlice, WriteSlice};
use crate::element::{AnyBits, Element};
use crate::error::Result;

/// The loan of a slice.
struct SliceLoan<'env> {
    memory: Arc<DeviceMemory>,
    /// The device's own stream.
    own: Arc<CudaStream>,
    /// The stream on which cudarc uses the slice next.
    queue: CudaStream,
    /// Tells cudarc, when it is dropped, to wait for what is queued on its stream by then.
    _guard: SyncOnDrop<'env>,
}

impl Loan for SliceLoan<'_> {}

impl Drop for SliceLoan<'_> {
    fn drop(&mut self) {
        // From here on nothing is queued that uses the slice.
        self.memory.uses().close();
        // What was queued is waited for by cudarc's stream. If the driver refuses even that, the host waits.
        if self.memory.uses().order(Access::Write, &self.queue, &self.own).is_err() {
            // A failure leaves nothing to be done: the context is broken, and its memory gone.
            let _ = self.memory.finish();
        }
    }
}

impl<'env, T: Element> ForeignSlice<'env> for CudaView<'env, T> {
    type Element = T;
    type Queue = Arc<driver::CudaStream>;

    fn elements(&self) -> usize {
        self.len()
    }

    fn lend(self, device: &Device, queue: &'env Self::Queue) -> Result<Lent<'env>> {
        let gpu = gpu(device, queue)?;
        let bytes = self.len() * T::BYTES;
        let (address, guard) = self.view_ptr(queue);
        lend(gpu, queue, (address, bytes, guard), false)
    }
}

impl<'env, T: Element> ReadSlice<'env> for CudaView<'env, T> {}

impl<'env, T: AnyBits> ForeignSlice<'env> for CudaViewMut<'env, T> {
    type Element = T;
    type Queue = Arc<driver::CudaStream>;

    fn elements(&self) -> usize {
        self.len()
    }

    fn lend(self, device: &Device, queue: &'env Self::Queue) -> Result<Lent<'env>> {
        let gpu = gpu(device, queue)?;
        let bytes = self.len() * T::BYTES;
        // Behind what reads the slice too; and what reads it next waits for what is written.
        let (address, guard) = self.view_ptr_mut(queue);
        lend(gpu, queue, (address, bytes, guard), true)
    }
}

impl<'env, T: AnyBits> WriteSlice<'env> for CudaViewMut<'env, T> {}

/// Lends so many bytes at an address.
fn lend<'env>(
    gpu: &Cuda,
    queue: &'env Arc<driver::CudaStream>,
    (address, bytes, guard): (u64, usize, SyncOnDrop<'env>),
    writable: bool,
) -> Result<Lent<'env>> {
    // SAFETY: the stream is of this context, as was checked, and borrowed for longer than the loan.
    let queue = unsafe { CudaStream::borrowed(gpu.context(), queue.cu_stream().cast(), false) };
    if queue.is_capturing()? {
        return Err(DeviceError::LoanInCapture { device: gpu.context().id.clone() }.into());
    }
    let memory = ForeignMemory { address, bytes, writable, owner: None };
    let memory = Arc::new(DeviceMemory::foreign(gpu.context(), gpu.stream(), memory));
    // What cudarc queued so far may write the slice: work on other streams waits for it.
    memory.uses().note(&queue.mark()?, Access::Write);
    let loan = SliceLoan { memory: memory.clone(), own: gpu.stream().clone(), queue, _guard: guard };
    Ok(Lent { memory, loan: Box::new(loan) })
}

/// The GPU, if a stream is one of its primary context.
fn gpu<'a>(device: &'a Device, queue: &driver::CudaStream) -> Result<&'a Cuda> {
    let gpu: Option<&Cuda> = device.backend().as_any().downcast_ref();
    let own = gpu.filter(|gpu| gpu.context().is(queue.context().cu_ctx()));
    Ok(own.ok_or_else(|| DeviceError::OtherDevice { device: device.to_string() })?)
}
