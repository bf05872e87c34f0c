//! TMA tensor maps (CUDA driver API, "Tensor Map Object Management").
//!
//! A map has the dimensions `{64, rows, columns / 64, outer...}`, innermost first, with 128-byte swizzle: a box is a
//! stack of 64-column slabs, each `rows * 128` bytes of shared memory. Out-of-bounds elements are zero.

use cudarc::driver::sys;
use flashtile_dsl::ir::Elem;

use super::driver::check_status;
use crate::device::{CallArgument, DeviceError};

/// A map as the kernel takes it: a parameter of 128 bytes, so aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct RawMap([u64; 16]);

impl RawMap {
    pub const EMPTY: Self = Self([0; 16]);
}

/// What a map says, in elements and bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Description {
    pub address: u64,
    /// Extents, innermost first.
    pub extents: Vec<u64>,
    /// Strides in bytes of all dimensions but the innermost.
    pub strides: Vec<u64>,
}

/// Columns of a slab: 128 bytes of a 16-bit type.
const SLAB: u64 = 64;

/// Describes a tensor of 16-bit elements; an error says what TMA does not allow.
pub(super) fn describe(argument: &CallArgument<'_>) -> Result<Description, String> {
    let CallArgument::Tensor { elem, address, shape, strides, .. } = *argument else {
        return Err("not a tensor".to_owned());
    };
    let bytes = elem.bytes().filter(|&b| b == 2).ok_or("elements of 2 bytes are needed")? as u64;
    let (&columns, outer_shape) = shape.split_last().ok_or("a rank of at least 2 is needed")?;
    let (&rows, batch) = outer_shape.split_last().ok_or("a rank of at least 2 is needed")?;
    let slabs = (columns as u64).div_ceil(SLAB);
    if slabs > 1 && !(columns as u64).is_multiple_of(SLAB) {
        return Err(format!("{columns} columns are not a multiple of {SLAB}"));
    }
    let rank = shape.len();
    let mut extents = vec![SLAB.min(columns as u64), rows as u64, slabs];
    let mut steps = vec![strides[rank - 2] as u64 * bytes, SLAB * bytes];
    for (d, &extent) in batch.iter().enumerate().rev() {
        extents.push(extent as u64);
        steps.push(strides[d] as u64 * bytes);
    }
    // The stride of a dimension of one element is never used, but must be valid.
    for (step, extent) in steps.iter_mut().zip(&extents[1..]) {
        if *extent <= 1 {
            *step = SLAB * bytes;
        }
        if !step.is_multiple_of(16) {
            return Err(format!("a stride of {step} bytes is not a multiple of 16"));
        }
    }
    if extents.len() > 5 {
        return Err(format!("{} dimensions, 5 are possible", extents.len()));
    }
    if !address.is_multiple_of(16) || extents.contains(&0) {
        return Err("the address must be a multiple of 16, and no extent zero".to_owned());
    }
    Ok(Description { address, extents, strides: steps })
}

/// Encodes the map of a tensor with boxes of `tile` elements, innermost first.
pub(super) fn encode(device: &str, argument: &CallArgument<'_>, tile: &[u32]) -> Result<RawMap, DeviceError> {
    let refused = |message: String| DeviceError::Driver {
        device: device.to_owned(),
        call: "cuTensorMapEncodeTiled",
        code: "CUDA_ERROR_INVALID_VALUE".to_owned(),
        message,
    };
    let description = describe(argument).map_err(refused)?;
    let rank = description.extents.len();
    let mut tile = tile.to_vec();
    tile.resize(rank, 1);
    let ones = vec![1u32; rank];
    let CallArgument::Tensor { elem, .. } = argument else { return Err(refused("not a tensor".to_owned())) };
    let elem = match elem {
        Elem::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let mut map = RawMap::EMPTY;
    // SAFETY: `map` is 128 bytes, aligned to 128; the arrays have `rank` elements (strides one less), as said, and live
    // beyond the call; the global address is only written into the map.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            (&raw mut map).cast(),
            elem,
            rank as u32,
            std::ptr::without_provenance_mut(description.address as usize),
            description.extents.as_ptr(),
            description.strides.as_ptr(),
            tile.as_ptr(),
            ones.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check_status(device, "cuTensorMapEncodeTiled", status)?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Memory};
    use std::sync::Arc;

    fn describe_tensor(shape: &[usize], strides: &[usize]) -> Result<Description, String> {
        let cpu: Arc<dyn Backend> = crate::device::Cpu::device();
        let memory: Arc<dyn Memory> = cpu.allocate(16).expect("small");
        describe(&CallArgument::Tensor { memory: &*memory, offset: 0, elem: Elem::Bf16, address: 4096, shape, strides })
    }

    #[test]
    fn a_map_has_slabs_of_64_columns() {
        let d = describe_tensor(&[2, 3, 1000, 128], &[384_000, 128, 384, 1]).expect("fits");
        assert_eq!(d.extents, [64, 1000, 2, 3, 2]);
        assert_eq!(d.strides, [768, 128, 256, 768_000]);
    }

    #[test]
    fn strides_of_single_elements_do_not_matter_and_others_must_be_aligned() {
        assert_eq!(describe_tensor(&[1, 8, 64], &[7, 64, 1]).expect("fits").strides, [128, 128, 128]);
        assert!(describe_tensor(&[2, 8, 64], &[7, 64, 1]).is_err_and(|e| e.contains("a stride of 14 bytes")));
        assert!(describe_tensor(&[8, 72], &[72, 1]).is_err_and(|e| e.contains("72 columns")));
    }
}
