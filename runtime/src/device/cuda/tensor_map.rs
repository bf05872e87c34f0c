//! TMA tensor maps (CUDA driver API, "Tensor Map Object Management").
//!
//! A map has the dimensions of the tensor in the order that [`flashtile_codegen::TensorMap`] says, with 128-byte swizzle: a
//! box is rows of 64 elements, 128 bytes of shared memory each. Elements out of bounds read as zero.

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

/// A map of a kernel, its tensor found among the parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MapPlan {
    /// Position of the parameter.
    pub param: usize,
    /// Dimensions of the tensor, innermost first.
    pub order: Vec<u32>,
    /// Box, in this order.
    pub tile: Vec<u32>,
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

/// Describes a tensor of 16-bit elements with its dimensions in the order of the map; an error says what TMA does not allow.
pub(super) fn describe(argument: &CallArgument<'_>, order: &[u32]) -> Result<Description, String> {
    let CallArgument::Tensor { elem, address, shape, strides, .. } = *argument else {
        return Err("not a tensor".to_owned());
    };
    let bytes = elem.bytes().filter(|&b| b == 2).ok_or("elements of 2 bytes are needed")? as u64;
    if order.len() != shape.len() || !(2..=5).contains(&order.len()) {
        return Err(format!("{} dimensions, 2 to 5 are possible", shape.len()));
    }
    // A tensor without elements is never read, but a map has no empty dimension.
    let extents: Vec<u64> = order.iter().map(|&d| shape[d as usize].max(1) as u64).collect();
    let mut steps: Vec<u64> = order[1..].iter().map(|&d| strides[d as usize] as u64 * bytes).collect();
    // The stride of a dimension of one element is never used, but must be valid.
    for (step, extent) in steps.iter_mut().zip(&extents[1..]) {
        if *extent <= 1 {
            *step = 16;
        }
        if !step.is_multiple_of(16) {
            return Err(format!("a stride of {step} bytes is not a multiple of 16"));
        }
    }
    let address = if shape.contains(&0) { 16 } else { address };
    if !address.is_multiple_of(16) {
        return Err("the address must be a multiple of 16".to_owned());
    }
    Ok(Description { address, extents, strides: steps })
}

/// Encodes the map of a tensor.
pub(super) fn encode(device: &str, argument: &CallArgument<'_>, map: &MapPlan) -> Result<RawMap, DeviceError> {
    let refused = |message: String| DeviceError::Driver {
        device: device.to_owned(),
        call: "cuTensorMapEncodeTiled",
        code: "CUDA_ERROR_INVALID_VALUE".to_owned(),
        message,
    };
    let description = describe(argument, &map.order).map_err(refused)?;
    let rank = description.extents.len();
    let ones = vec![1u32; rank];
    let CallArgument::Tensor { elem, .. } = argument else { return Err(refused("not a tensor".to_owned())) };
    let elem = match elem {
        Elem::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
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
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check_status(device, "cuTensorMapEncodeTiled", status)?;
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Memory};
    use std::sync::Arc;

    fn describe_tensor(shape: &[usize], strides: &[usize], order: &[u32]) -> Result<Description, String> {
        let cpu: Arc<dyn Backend> = crate::device::Cpu::device();
        let memory: Arc<dyn Memory> = cpu.allocate(16).expect("small");
        describe(&CallArgument::Tensor { memory: &*memory, offset: 0, elem: Elem::Bf16, address: 4096, shape, strides }, order)
    }

    #[test]
    fn dimensions_are_in_the_order_of_the_map() {
        let d = describe_tensor(&[2, 3, 1000, 128], &[384_000, 128, 384, 1], &[3, 2, 1, 0]).expect("fits");
        assert_eq!(d.extents, [128, 1000, 3, 2]);
        assert_eq!(d.strides, [768, 256, 768_000]);
    }

    #[test]
    fn strides_of_single_elements_do_not_matter_and_others_must_be_aligned() {
        assert_eq!(describe_tensor(&[1, 8, 64], &[7, 64, 1], &[2, 1, 0]).expect("fits").strides, [128, 16]);
        let odd = describe_tensor(&[2, 8, 64], &[7, 64, 1], &[2, 1, 0]);
        assert!(odd.is_err_and(|e| e.contains("a stride of 14 bytes")));
        assert!(describe_tensor(&[8], &[1], &[0]).is_err_and(|e| e.contains("2 to 5")));
    }
}
