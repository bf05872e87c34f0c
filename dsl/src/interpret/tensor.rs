//! Tensors that own memory of the host.

use half::{bf16, f16};

use super::memory::TensorView;
use crate::ir::Elem;

/// A strided tensor in memory of the host. Strides and the offset count elements; the last dimension is contiguous.
///
/// Its memory may be larger than the tensor: what lies before the offset, after the end and between the rows belongs to
/// someone else and is left alone.
///
/// ```
/// use flashtile_dsl::{interpret::HostTensor, ir::Elem};
/// let x = HostTensor::from_f64(Elem::Bf16, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(x.to_f64(), [1.0, 2.0, 3.0, 4.0]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostTensor {
    /// Element type: f32, f16, bf16 or i32.
    pub elem: Elem,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Strides in elements, outermost first.
    pub strides: Vec<usize>,
    /// First element, in elements from the start of the memory.
    pub offset: usize,
    /// The memory, little-endian.
    pub bytes: Vec<u8>,
}

impl HostTensor {
    /// A packed tensor of these values, rounded to `elem`.
    ///
    /// # Panics
    /// If the number of values is not that of the shape, or `elem` is never in memory.
    pub fn from_f64(elem: Elem, shape: &[usize], values: &[f64]) -> Self {
        let mut tensor = Self::packed(elem, shape);
        tensor.write_f64(values);
        tensor
    }

    /// A packed tensor of zeros.
    ///
    /// # Panics
    /// If `elem` is never in memory.
    pub fn packed(elem: Elem, shape: &[usize]) -> Self {
        let strides = packed_strides(shape);
        let bytes = vec![0; shape.iter().product::<usize>() * size(elem)];
        Self { elem, shape: shape.to_vec(), strides, offset: 0, bytes }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// What a program reads.
    pub fn view(&self) -> TensorView<'_> {
        let first = (self.offset * size(self.elem)).min(self.bytes.len());
        TensorView { elem: self.elem, shape: &self.shape, strides: &self.strides, bytes: &self.bytes[first..] }
    }

    /// Memory from the first element on.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        let first = self.offset * size(self.elem);
        &mut self.bytes[first..]
    }

    /// Places of all elements in the memory, in elements, in row-major order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).map(|n| {
            let (mut rest, mut at) = (n, self.offset);
            for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
                at += rest % extent * stride;
                rest /= extent;
            }
            at
        })
    }

    /// Values in row-major order.
    pub fn to_f64(&self) -> Vec<f64> {
        let width = size(self.elem);
        self.places().map(|at| read(self.elem, &self.bytes[at * width..])).collect()
    }

    /// Overwrites the values, in row-major order, rounding to the element type.
    ///
    /// # Panics
    /// If the number of values is not that of the shape.
    pub fn write_f64(&mut self, values: &[f64]) {
        assert_eq!(values.len(), self.len(), "as many values as elements");
        let width = size(self.elem);
        let places: Vec<usize> = self.places().collect();
        for (at, &x) in places.into_iter().zip(values) {
            write(self.elem, x, &mut self.bytes[at * width..]);
        }
    }
}

/// Strides of a tensor without gaps.
pub(super) fn packed_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

fn size(elem: Elem) -> usize {
    elem.bytes().expect("a tensor holds f32, f16, bf16 or i32")
}

fn read(elem: Elem, bytes: &[u8]) -> f64 {
    let two = || [bytes[0], bytes[1]];
    let four = || [bytes[0], bytes[1], bytes[2], bytes[3]];
    match elem {
        Elem::F32 => f32::from_le_bytes(four()).into(),
        Elem::F16 => f16::from_le_bytes(two()).into(),
        Elem::Bf16 => bf16::from_le_bytes(two()).into(),
        Elem::I32 => i32::from_le_bytes(four()).into(),
        Elem::Bool | Elem::Generic(_) => panic!("a tensor holds f32, f16, bf16 or i32"),
    }
}

fn write(elem: Elem, x: f64, bytes: &mut [u8]) {
    match elem {
        Elem::F32 => bytes[..4].copy_from_slice(&(x as f32).to_le_bytes()),
        Elem::F16 => bytes[..2].copy_from_slice(&f16::from_f64(x).to_le_bytes()),
        Elem::Bf16 => bytes[..2].copy_from_slice(&bf16::from_f64(x).to_le_bytes()),
        Elem::I32 => bytes[..4].copy_from_slice(&(x as i32).to_le_bytes()),
        Elem::Bool | Elem::Generic(_) => panic!("a tensor holds f32, f16, bf16 or i32"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_tensors_leave_the_gaps_alone() {
        let mut x = HostTensor { elem: Elem::F16, shape: vec![2, 2], strides: vec![3, 1], offset: 1, bytes: vec![0xAA; 12] };
        assert_eq!(x.places().collect::<Vec<_>>(), [1, 2, 4, 5]);
        x.write_f64(&[1.0, -2.0, f64::INFINITY, 0.5]);
        assert_eq!(x.to_f64(), [1.0, -2.0, f64::INFINITY, 0.5]);
        assert_eq!((&x.bytes[..2], &x.bytes[6..8]), (&[0xAA; 2][..], &[0xAA; 2][..]));
    }

    #[test]
    fn every_element_type_survives() {
        for elem in [Elem::F32, Elem::F16, Elem::Bf16, Elem::I32] {
            let x = HostTensor::from_f64(elem, &[3], &[0.0, -7.0, 96.0]);
            assert_eq!(x.to_f64(), [0.0, -7.0, 96.0], "{elem:?}");
        }
        assert!(HostTensor::packed(Elem::F32, &[2, 0]).is_empty());
    }
}
