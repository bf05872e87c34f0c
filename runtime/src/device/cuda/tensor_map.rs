//! TMA tensor maps (CUDA driver API, "Tensor Map Object Management").
//!
//! What a map says is the matter of `device/compiled/maps.rs`; here the driver makes 128 bytes of it.

use cudarc::driver::sys;
use flashtile_dsl::ir::Elem;

use super::driver::check_status;
use crate::device::compiled::{MapPlan, describe};
use crate::device::{CallArgument, DeviceError};

/// A map as the kernel takes it: a parameter of 128 bytes, so aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct RawMap([u64; 16]);

impl RawMap {
    pub const EMPTY: Self = Self([0; 16]);
}

/// Makes a map of a tensor into that of another one, of the same element type, shape and strides.
pub(super) fn move_to(device: &str, map: &mut RawMap, argument: &CallArgument<'_>) -> Result<(), DeviceError> {
    let CallArgument::Tensor { address, shape, .. } = *argument else { return Ok(()) };
    if shape.contains(&0) {
        return Ok(()); // it is never read
    }
    // SAFETY: `map` is 128 bytes, aligned to 128, which the driver has encoded; the address is only
    // written into it.
    let status =
        unsafe { sys::cuTensorMapReplaceAddress((&raw mut *map).cast(), std::ptr::without_provenance_mut(address as usize)) };
    check_status(device, "cuTensorMapReplaceAddress", status)
}

/// Encodes the map of a tensor.
pub(super) fn encode(device: &str, argument: &CallArgument<'_>, map: &MapPlan) -> Result<RawMap, DeviceError> {
    let refused = |message: String| DeviceError::Driver {
        device: device.to_owned(),
        call: "cuTensorMapEncodeTiled",
        code: "CUDA_ERROR_INVALID_VALUE".to_owned(),
        message,
    };
    let description = describe(argument, &map.order, map.tile[0]).map_err(refused)?;
    let rank = description.extents.len();
    let ones = vec![1u32; rank];
    let CallArgument::Tensor { elem, .. } = argument else { return Err(refused("not a tensor".to_owned())) };
    let elem = match elem {
        Elem::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Elem::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let swizzle = match map.row_bytes {
        128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        16 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        bytes => return Err(refused(format!("boxes of rows of {bytes} bytes"))),
    };
    let mut raw = RawMap::EMPTY;
    // SAFETY: `raw` is 128 bytes, aligned to 128; the arrays have `rank` elements (strides one less), as said, and live
    // beyond the call; the global address is only written into the map.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            (&raw mut raw).cast(),
            elem,
            rank as u32,
            std::ptr::without_provenance_mut(description.address as usize),
            description.extents.as_ptr(),
            description.strides.as_ptr(),
            map.tile.as_ptr(),
            ones.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check_status(device, "cuTensorMapEncodeTiled", status)?;
    Ok(raw)
}
