//! Launches on candle's CUDA storage: slices are lent in the order of candle's streams, and the
//! launch is queued on the stream of the first input.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaDType;
use candle_core::{CudaDevice, CudaStorage, Layout, Storage};
use cudarc::driver::{CudaStream, DeviceRepr};
use flashtile::tensor::Loans;
use flashtile::{AnyBits, AnyTensor, Device, Element, Stream, lend};

use crate::element::with_element;
use crate::error::Result;
use crate::launch::{Given, Launch, as_declared, elements};

/// Runs a launch on the GPU of its first tensor; returns the storages of the outputs.
pub(crate) fn run(launch: &Launch<'_>, candle: &CudaDevice) -> Result<Vec<Storage>> {
    let mut outputs = Vec::new();
    for form in &launch.outputs {
        let elements = elements(form)?;
        outputs.push(with_element!(
            form.elem,
            T => empty::<T>(candle, elements)?,
            else return Err(Launch::no_output_type(form))
        ));
    }
    let queue = candle.cuda_stream();
    // Each slice is lent by the stream of its own device of candle: there may be several for a GPU.
    let queues: Vec<Option<Arc<CudaStream>>> = launch.inputs.iter().map(queue_of).collect();
    let device = launch.kernel.device();
    // SAFETY: the stream is candle's, of the primary context, and lives as long as `queue`.
    let stream = unsafe { Stream::from_raw(device, queue.cu_stream().cast()) }?;
    lend(|loans| {
        let inputs = launch.inputs.iter().zip(&queues).map(|(given, queue)| read(loans, device, queue.as_ref(), given));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let written = outputs.iter_mut().zip(&launch.outputs).zip(&launch.strides).map(|((storage, form), strides)| {
            with_element!(
                form.elem,
                T => write::<T>(loans, device, &queue, storage, (&form.shape, strides)),
                else Err(Launch::no_output_type(form))
            )
        });
        let written = written.collect::<Result<Vec<_>>>()?;
        Ok::<_, crate::Error>(launch.queue(Some(&stream), &inputs, &written)?)
    })?;
    Ok(outputs.into_iter().map(Storage::Cuda).collect())
}

/// Memory of candle's allocator that holds nothing yet.
fn empty<T: CudaDType + DeviceRepr>(candle: &CudaDevice, elements: usize) -> Result<CudaStorage> {
    // SAFETY: the kernel writes every element before anything reads it.
    let slice = unsafe { candle.alloc::<T>(elements)? };
    Ok(CudaStorage::wrap_cuda_slice(slice, candle.clone()))
}

/// The stream of an input; `None` for a scalar.
fn queue_of(given: &Given<'_>) -> Option<Arc<CudaStream>> {
    match given {
        Given::Tensor { storage: Storage::Cuda(storage), .. } => Some(storage.device().cuda_stream()),
        _ => None,
    }
}

/// Lends an input for reading; `None` for a scalar.
fn read<'env>(
    loans: &Loans<'env>,
    device: &Device,
    queue: Option<&'env Arc<CudaStream>>,
    given: &Given<'env>,
) -> Result<Option<AnyTensor>> {
    fn lent<'env, T: Element + CudaDType>(
        loans: &Loans<'env>,
        device: &Device,
        queue: &'env Arc<CudaStream>,
        (storage, layout): (&'env CudaStorage, &Layout),
    ) -> Result<AnyTensor> {
        let slice = storage.as_cuda_slice::<T>()?.slice(layout.start_offset()..);
        Ok(loans.read_slice(device, queue, slice, layout.dims(), layout.stride())?.as_any().clone())
    }
    let Given::Tensor { storage: Storage::Cuda(storage), layout, stored, declared } = given else { return Ok(None) };
    let Some(queue) = queue else { unreachable!("a tensor of a GPU has a stream") };
    let tensor = with_element!(
        *stored,
        T => lent::<T>(loans, device, queue, (storage, layout))?,
        else unreachable!("checked: candle has the type")
    );
    Ok(Some(as_declared(&tensor, *declared)?))
}

/// Lends an output for writing.
fn write<'env, T: AnyBits + CudaDType>(
    loans: &Loans<'env>,
    device: &Device,
    queue: &'env Arc<CudaStream>,
    storage: &'env mut CudaStorage,
    (shape, strides): (&[usize], &[usize]),
) -> Result<AnyTensor> {
    let slice = storage.as_cuda_slice_mut::<T>()?.as_view_mut();
    Ok(loans.write_slice(device, queue, slice, shape, strides)?.as_any().clone())
}
