//! Tensors as DLPack describes them.

use std::ffi::c_void;

use flashtile::Elem;
use flashtile::client::TensorForm;

use crate::form::{Place, Seen};

/// Types of devices: the host, and a GPU of CUDA.
pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;

/// `DLTensor` of DLPack 1.
#[repr(C)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl DlTensor {
    /// The address of the first element.
    pub fn address(&self) -> Option<usize> {
        Some(self.data.expose_provenance() + usize::try_from(self.byte_offset).ok()?)
    }

    /// The tensor; `None` if it lies elsewhere than on the CPU or a GPU, or holds what kernels do
    /// not.
    pub fn seen(&self) -> Option<Seen> {
        let place = match (self.device_type, usize::try_from(self.device_id)) {
            (CPU, _) => Place::Cpu,
            (CUDA, Ok(gpu)) => Place::Gpu(gpu),
            _ => return None,
        };
        let (elem, address, extents) = (self.elem()?, self.address()?, self.numbers(self.shape)?);
        // Without strides a tensor is packed.
        let packed;
        let strides = match self.strides.is_null() {
            true => {
                packed = packed_strides(extents);
                &packed
            }
            false => self.numbers(self.strides)?,
        };
        let dimensions = extents.iter().zip(strides);
        if dimensions.clone().any(|(extent, stride)| *extent < 0 || *stride < 0) {
            return None;
        }
        let form = TensorForm::new(elem, dimensions.map(|(extent, stride)| (*extent as usize, *stride as usize)))?;
        Some(Seen { address, place, form })
    }

    /// Whether a dimension is walked backwards, as by `x[::-1]` of NumPy.
    pub fn has_negative_strides(&self) -> bool {
        !self.strides.is_null() && self.numbers(self.strides).is_some_and(|strides| strides.iter().any(|stride| *stride < 0))
    }

    fn elem(&self) -> Option<Elem> {
        if self.lanes != 1 {
            return None;
        }
        Some(match (self.code, self.bits) {
            (0, 8) => Elem::I8,
            (0, 32) => Elem::I32,
            (1, 8) => Elem::U8,
            (2, 16) => Elem::F16,
            (2, 32) => Elem::F32,
            (4, 16) => Elem::Bf16,
            (6, 8) => Elem::Bool,
            (10, 8) => Elem::F8E4M3,
            (12, 8) => Elem::F8E5M2,
            _ => return None,
        })
    }

    /// Extents or strides.
    fn numbers(&self, first: *const i64) -> Option<&[i64]> {
        let rank = usize::try_from(self.rank).ok()?;
        if rank == 0 {
            return Some(&[]);
        }
        if first.is_null() {
            return None;
        }
        // SAFETY: there are as many numbers as dimensions, which live as long as the tensor: longer
        // than this view of it.
        Some(unsafe { std::slice::from_raw_parts(first, rank) })
    }
}

fn packed_strides(extents: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; extents.len()];
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d].max(1);
    }
    strides
}
