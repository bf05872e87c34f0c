//! Tensor maps of a launch: which tensor, and what the map says of it.
//!
//! A map has the dimensions of the tensor in the order that [`TensorMap`] says, swizzled over the
//! rows of a box: 128 bytes of shared memory each, or half of that. Elements out of bounds read as
//! zero, and are not written.

use flashtile_codegen::{Scratch, TensorMap};
use flashtile_dsl::ir::{self, Elem};

use super::scratch::argument_named;
use crate::device::CallArgument;

/// Tensor maps that a kernel may have.
pub(crate) const MAX_MAPS: usize = 12;

/// A map of a kernel, its tensor found among the parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MapPlan {
    /// Position of the argument.
    pub param: usize,
    /// Dimensions of the tensor, innermost first.
    pub order: Vec<u32>,
    /// Box, in this order.
    pub tile: Vec<u32>,
    /// Bytes of its rows, over which they are swizzled; rows of 16 bytes are not.
    pub row_bytes: u32,
}

/// What a map says, in elements and bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Description {
    pub address: u64,
    /// Extents, innermost first.
    pub extents: Vec<u64>,
    /// Strides in bytes of all dimensions but the innermost.
    pub strides: Vec<u64>,
}

/// Describes a tensor of 16-bit elements or f32 with its dimensions in the order of the map, the
/// last one split into parts of `columns` elements if it comes twice; an error says what TMA does
/// not allow.
pub(crate) fn describe(argument: &CallArgument<'_>, order: &[u32], columns: u32) -> Result<Description, String> {
    let CallArgument::Tensor { elem, address, shape, strides, .. } = *argument else {
        return Err("not a tensor".to_owned());
    };
    let known = matches!(elem, Elem::F16 | Elem::Bf16 | Elem::F32);
    let bytes = elem.bytes().filter(|_| known).ok_or("elements of f16, bf16 or f32 are needed")? as u64;
    let is_split = order.first() == order.get(1);
    if order.len() != shape.len() + usize::from(is_split) || !(2..=5).contains(&order.len()) {
        return Err(format!("{} dimensions, 2 to 5 are possible", shape.len()));
    }
    // A tensor without elements is never read, but a map has no empty dimension.
    let mut extents: Vec<u64> = order.iter().map(|&d| shape[d as usize].max(1) as u64).collect();
    let mut steps: Vec<u64> = order[1..].iter().map(|&d| strides[d as usize] as u64 * bytes).collect();
    if is_split {
        let columns = u64::from(columns);
        if !extents[0].is_multiple_of(columns) {
            return Err(format!("rows of {} elements are not taken apart into parts of {columns}", extents[0]));
        }
        (extents[0], extents[1], steps[0]) = (columns, extents[1] / columns, columns * bytes);
    }
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

/// Finds the tensors of the maps of an ABI. An error names what the kernel does not have, which is a fault of the generator.
pub(crate) fn resolve_maps(maps: &[TensorMap], kernel: &ir::Kernel, scratch: &[Scratch]) -> Result<Vec<MapPlan>, String> {
    if maps.len() > MAX_MAPS {
        return Err(format!("{} tensor maps, {MAX_MAPS} are possible", maps.len()));
    }
    maps.iter()
        .map(|map| {
            let param = argument_named(kernel, scratch, &map.tensor)?;
            Ok(MapPlan { param, order: map.order.clone(), tile: map.tile.clone(), row_bytes: map.row_bytes() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Memory};
    use std::sync::Arc;

    fn describe_tensor(shape: &[usize], strides: &[usize], order: &[u32]) -> Result<Description, String> {
        describe_in_parts(shape, strides, order, 64)
    }

    fn describe_in_parts(shape: &[usize], strides: &[usize], order: &[u32], columns: u32) -> Result<Description, String> {
        let cpu: Arc<dyn Backend> = crate::device::Cpu::device();
        let memory: Arc<dyn Memory> = cpu.allocate(16).expect("small");
        let tensor = CallArgument::Tensor {
            memory: Some(&*memory),
            offset: 0,
            elem: Elem::Bf16,
            address: 4096,
            shape,
            strides,
            writes: false,
        };
        describe(&tensor, order, columns)
    }

    #[test]
    fn dimensions_are_in_the_order_of_the_map() {
        let d = describe_tensor(&[2, 3, 1000, 128], &[384_000, 128, 384, 1], &[3, 2, 1, 0]).expect("fits");
        assert_eq!(d.extents, [128, 1000, 3, 2]);
        assert_eq!(d.strides, [768, 256, 768_000]);
    }

    #[test]
    fn a_dimension_that_comes_twice_is_split() {
        let d = describe_in_parts(&[2, 1000, 96], &[96_000, 96, 1], &[2, 2, 1, 0], 32).expect("fits");
        assert_eq!(d.extents, [32, 3, 1000, 2]);
        assert_eq!(d.strides, [64, 192, 192_000]);
        let odd = describe_in_parts(&[2, 1000, 80], &[80_000, 80, 1], &[2, 2, 1, 0], 32);
        assert!(odd.is_err_and(|e| e.contains("rows of 80 elements are not taken apart into parts of 32")));
        let five = describe_in_parts(&[2, 2, 2, 100, 64], &[1, 1, 1, 1, 1], &[4, 4, 3, 2, 1, 0], 32);
        assert!(five.is_err_and(|e| e.contains("2 to 5")));
    }

    #[test]
    fn strides_of_single_elements_do_not_matter_and_others_must_be_aligned() {
        assert_eq!(describe_tensor(&[1, 8, 64], &[7, 64, 1], &[2, 1, 0]).expect("fits").strides, [128, 16]);
        let odd = describe_tensor(&[2, 8, 64], &[7, 64, 1], &[2, 1, 0]);
        assert!(odd.is_err_and(|e| e.contains("a stride of 14 bytes")));
        assert!(describe_tensor(&[8], &[1], &[0]).is_err_and(|e| e.contains("2 to 5")));
    }
}
