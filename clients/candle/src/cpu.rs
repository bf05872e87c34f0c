//! Launches on candle's CPU storage.

use candle_core::{CpuStorage, Storage, WithDType};
use flashtile::client::stream;

use crate::element::with_element;
use crate::error::Result;
use crate::launch::{Given, Launch};
use crate::output::Planned;

/// Runs a launch; returns the storages of the outputs, which are new where none was begun.
pub(crate) fn run(launch: &Launch<'_>, begun: Vec<Option<Storage>>) -> Result<Vec<Storage>> {
    let own = |storage| if let Storage::Cpu(storage) = storage { Some(storage) } else { None };
    let new = |planned: &Planned| {
        Ok(with_element!(
            planned.form.elem,
            T => T::to_cpu_storage_owned(vec![T::default(); planned.elements]),
            else return Err(planned.no_type())
        ))
    };
    let mut outputs = launch.storages(begun, own, new)?;
    // SAFETY: it is a stream of the device's own; launches of the CPU have ended when they return.
    let stream = unsafe { stream(launch.kernel.device(), None) }?;
    let read = launch.inputs.iter().map(address).collect::<Result<Vec<_>>>()?;
    let written: Vec<u64> = outputs.iter_mut().map(address_mut).collect();
    // SAFETY: the inputs were checked to lie in their storages, which are locked for reading, and
    // outputs are as long as their forms. The launch has ended when it returns.
    unsafe { launch.queue(&stream, &read, &written) }?;
    Ok(outputs.into_iter().map(Storage::Cpu).collect())
}

/// The address of an input; 0 for a scalar.
fn address(given: &Given<'_>) -> Result<u64> {
    let Given::Tensor { storage, layout, stored, form } = given else { return Ok(0) };
    let Storage::Cpu(storage) = &**storage else { unreachable!("checked: all inputs are on the CPU") };
    let offset = layout.start_offset();
    Ok(with_element!(
        *stored,
        T => {
            let values = storage.as_slice::<T>()?;
            form.check_bounds(offset, values.len()).map_err(flashtile::Error::from)?;
            values[offset.min(values.len())..].as_ptr().expose_provenance() as u64
        },
        else unreachable!("checked: candle has the type")
    ))
}

/// The address of an output.
fn address_mut(storage: &mut CpuStorage) -> u64 {
    let address = match storage {
        CpuStorage::F32(values) => values.as_mut_ptr().expose_provenance(),
        CpuStorage::F16(values) => values.as_mut_ptr().expose_provenance(),
        CpuStorage::BF16(values) => values.as_mut_ptr().expose_provenance(),
        CpuStorage::I32(values) => values.as_mut_ptr().expose_provenance(),
        CpuStorage::U8(values) => values.as_mut_ptr().expose_provenance(),
        CpuStorage::F8E4M3(values) => values.as_mut_ptr().expose_provenance(),
        _ => unreachable!("outputs are made of the types above"),
    };
    address as u64
}
