//! Launches on candle's CUDA storage, queued on the stream of the device. cudarc orders the
//! use of a slice on several streams: it makes the launch wait where there are several.

use candle_core::cuda::CudaDType;
use candle_core::{CudaDevice, CudaStorage, Storage};
use cudarc::driver::{CudaStream, DevicePtrMut, DeviceRepr, SyncOnDrop};
use flashtile::client::stream;

use crate::element::with_element;
use crate::error::Result;
use crate::launch::{Given, Launch};
use crate::output::Planned;

/// Runs a launch on a GPU; returns the storages of the outputs, which are new where none was begun.
pub(crate) fn run(launch: &Launch<'_>, candle: &CudaDevice, begun: Vec<Option<Storage>>) -> Result<Vec<Storage>> {
    let own = |storage| if let Storage::Cuda(storage) = storage { Some(storage) } else { None };
    let new = |planned: &Planned| {
        with_element!(
            planned.form.elem,
            T => empty::<T>(candle, planned.elements),
            else Err(planned.no_type())
        )
    };
    let mut outputs = launch.storages(begun, own, new)?;
    let queue = candle.cuda_stream();
    let device = launch.kernel.device();
    let of = (queue.context().ordinal(), queue.cu_stream().expose_provenance());
    // SAFETY: the stream is candle's, of the primary context, and lives as long as `queue`. What
    // orders other work on the memory are cudarc's slices, which are held until the launch is
    // queued.
    let stream = unsafe { stream(device, Some(of)) }?;
    let mut held: Vec<SyncOnDrop<'_>> = Vec::with_capacity(launch.inputs.len() + outputs.len());
    let mut read = Vec::with_capacity(launch.inputs.len());
    for given in launch.inputs {
        let (address, guard) = address(given, &queue)?;
        read.push(address);
        held.extend(guard);
    }
    let mut written = Vec::with_capacity(outputs.len());
    for (storage, planned) in outputs.iter_mut().zip(launch.outputs) {
        let (address, guard) = with_element!(
            planned.form.elem,
            T => storage.as_cuda_slice_mut::<T>()?.device_ptr_mut(&queue),
            else return Err(planned.no_type())
        );
        written.push(address);
        held.push(guard);
    }
    // SAFETY: the inputs were checked to lie in their slices, and outputs are as long as their
    // forms. The slices free their memory in the order of their streams, behind what `held` has
    // seen.
    unsafe { launch.queue(&stream, &read, &written) }?;
    drop(held);
    Ok(outputs.into_iter().map(Storage::Cuda).collect())
}

/// Memory of candle's allocator that holds nothing yet.
fn empty<T: CudaDType + DeviceRepr>(candle: &CudaDevice, elements: usize) -> Result<CudaStorage> {
    // SAFETY: the kernel writes every element before anything reads it.
    let slice = unsafe { candle.alloc::<T>(elements)? };
    Ok(CudaStorage::wrap_cuda_slice(slice, candle.clone()))
}

/// The address of an input, and what holds it until the launch is queued; 0 for a scalar.
fn address<'a>(given: &'a Given<'_>, queue: &'a CudaStream) -> Result<(u64, Option<SyncOnDrop<'a>>)> {
    let Given::Tensor { storage, layout, stored, form } = given else { return Ok((0, None)) };
    let Storage::Cuda(storage) = &**storage else { unreachable!("checked: all inputs are on the GPU") };
    let (address, guard) = with_element!(
        *stored,
        T => {
            let slice = storage.as_cuda_slice::<T>()?;
            form.check_bounds(layout.start_offset(), slice.len()).map_err(flashtile::Error::from)?;
            slice.slice(layout.start_offset().min(slice.len())..).view_ptr(queue)
        },
        else unreachable!("checked: candle has the type")
    );
    Ok((address, Some(guard)))
}
