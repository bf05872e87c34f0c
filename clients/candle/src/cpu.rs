//! Launches on candle's CPU storage.

use candle_core::{CpuStorage, Layout, Storage, WithDType};
use flashtile::tensor::Loans;
use flashtile::{AnyTensor, Element, lend};

use crate::element::with_element;
use crate::error::Result;
use crate::launch::{Given, Launch, as_declared, elements};

/// Runs a launch; returns the storages of the outputs.
pub(crate) fn run(launch: &Launch<'_>) -> Result<Vec<Storage>> {
    let mut outputs = Vec::new();
    for form in &launch.outputs {
        let elements = elements(form)?;
        outputs.push(with_element!(
            form.elem,
            T => T::to_cpu_storage_owned(vec![T::default(); elements]),
            else return Err(Launch::no_output_type(form))
        ));
    }
    lend(|loans| {
        let inputs = launch.inputs.iter().map(|given| read(loans, given)).collect::<Result<Vec<_>>>()?;
        let written = outputs.iter_mut().zip(&launch.outputs).zip(&launch.strides);
        let written = written.map(|((storage, form), strides)| write(loans, storage, &form.shape, strides));
        let written = written.collect::<Result<Vec<_>>>()?;
        Ok::<_, crate::Error>(launch.queue(None, &inputs, &written)?)
    })?;
    Ok(outputs.into_iter().map(Storage::Cpu).collect())
}

/// Lends an input for reading; `None` for a scalar.
fn read<'env>(loans: &Loans<'env>, given: &Given<'env>) -> Result<Option<AnyTensor>> {
    let Given::Tensor { storage, layout, stored, declared } = given else { return Ok(None) };
    let Storage::Cpu(storage) = storage else { unreachable!("checked: all inputs are on the CPU") };
    fn lent<'env, T: Element + WithDType>(loans: &Loans<'env>, storage: &'env CpuStorage, layout: &Layout) -> Result<AnyTensor> {
        let values = &storage.as_slice::<T>()?[layout.start_offset()..];
        Ok(loans.read_strided(values, layout.dims(), layout.stride())?.as_any().clone())
    }
    let tensor = with_element!(
        *stored,
        T => lent::<T>(loans, storage, layout)?,
        else unreachable!("checked: candle has the type")
    );
    Ok(Some(as_declared(&tensor, *declared)?))
}

/// Lends an output for writing.
fn write<'env>(loans: &Loans<'env>, storage: &'env mut CpuStorage, shape: &[usize], strides: &[usize]) -> Result<AnyTensor> {
    Ok(match storage {
        CpuStorage::F32(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        CpuStorage::F16(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        CpuStorage::BF16(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        CpuStorage::I32(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        CpuStorage::U8(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        CpuStorage::F8E4M3(values) => loans.write_strided(values, shape, strides)?.as_any().clone(),
        _ => unreachable!("outputs are made of the types above"),
    })
}
