//! Slices of cudarc that are lent to kernels, without `unsafe`.
//!
//! A loan begins behind what cudarc has queued for the slice, and ends before what it queues next: events say so on both sides, and the host
//! does not wait.

use std::sync::Arc;

use cudarc::driver::{self, CudaView, CudaViewMut, SyncOnDrop};

use super::context::Cuda;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use super::uses::Access;
use crate::device::backend::ForeignMemory;
use crate::device::{Device, DeviceError};
use crate::element::Element;
use crate::error::Result;
use crate::tensor::{Layout, Loan, Loans, Tensor};

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

impl<'env> Loans<'env> {
    /// A tensor over a view of a cudarc slice that kernels read, with strides in elements, from its first element on. Slices of
    /// candle are such: `storage.as_cuda_slice::<T>()?.slice(offset..)`.
    ///
    /// `queue` is the stream on which the slice is used before and after the loan. Kernels may be launched on any stream of
    /// this crate; they cost the least on that one ([`crate::Stream::from_raw`]).
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] if the stream is not of the primary context of `device`, [`DeviceError::LoanInCapture`] if it
    /// captures a graph, [`crate::tensor::TensorError`] if the tensor reaches beyond the slice.
    pub fn read_slice<T: Element>(
        &self,
        device: &Device,
        queue: &'env Arc<driver::CudaStream>,
        slice: CudaView<'env, T>,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Tensor<T>> {
        let gpu = gpu(device, queue)?;
        let layout = Layout::strided(shape, strides, 0, slice.len())?;
        let len = slice.len();
        let (address, guard) = slice.view_ptr(queue);
        self.slice(device, (gpu, queue), (address, len, guard), layout, false)
    }

    /// As [`Loans::read_slice`], of a slice that kernels write.
    ///
    /// # Errors
    /// As [`Loans::read_slice`].
    pub fn write_slice<T: Element>(
        &self,
        device: &Device,
        queue: &'env Arc<driver::CudaStream>,
        slice: CudaViewMut<'env, T>,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Tensor<T>> {
        let gpu = gpu(device, queue)?;
        let layout = Layout::strided(shape, strides, 0, slice.len())?;
        let len = slice.len();
        // Behind what reads the slice too; and what reads it next waits for what is written.
        let (address, guard) = slice.view_ptr_mut(queue);
        self.slice(device, (gpu, queue), (address, len, guard), layout, true)
    }

    fn slice<T: Element>(
        &self,
        device: &Device,
        (gpu, queue): (&Cuda, &'env Arc<driver::CudaStream>),
        (address, len, guard): (u64, usize, SyncOnDrop<'env>),
        layout: Layout,
        writable: bool,
    ) -> Result<Tensor<T>> {
        // SAFETY: the stream is of this context, as was checked, and borrowed for longer than the loan.
        let queue = unsafe { CudaStream::borrowed(gpu.context(), queue.cu_stream().cast()) };
        if queue.is_capturing()? {
            return Err(DeviceError::LoanInCapture { device: device.to_string() }.into());
        }
        let memory = ForeignMemory { address, bytes: len * T::BYTES, writable, owner: None };
        let memory = Arc::new(DeviceMemory::foreign(gpu.context(), gpu.stream(), memory));
        // What cudarc queued so far may write the slice: work on other streams waits for it.
        memory.uses().note(&queue.mark()?, Access::Write);
        let loan = SliceLoan { memory: memory.clone(), own: gpu.stream().clone(), queue, _guard: guard };
        self.keep(Box::new(loan));
        Ok(Tensor::over(device, memory, layout))
    }
}

/// The GPU, if a stream is one of its primary context.
fn gpu<'a>(device: &'a Device, queue: &driver::CudaStream) -> Result<&'a Cuda> {
    let gpu: Option<&Cuda> = device.backend().as_any().downcast_ref();
    let own = gpu.filter(|gpu| gpu.context().is(queue.context().cu_ctx()));
    Ok(own.ok_or_else(|| DeviceError::OtherDevice { device: device.to_string() })?)
}
