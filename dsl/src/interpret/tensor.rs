//! Tensors that own memory of the host.

use float8::{F8E4M3, F8E5M2};
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
    /// Element type: any but a type parameter.
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
    elem.bytes().expect("a tensor holds elements of a concrete type")
}

fn read(elem: Elem, bytes: &[u8]) -> f64 {
    let two = || [bytes[0], bytes[1]];
    let four = || [bytes[0], bytes[1], bytes[2], bytes[3]];
    match elem {
        Elem::F32 => f32::from_le_bytes(four()).into(),
        Elem::F16 => f16::from_le_bytes(two()).into(),
        Elem::Bf16 => bf16::from_le_bytes(two()).into(),
        Elem::I32 => i32::from_le_bytes(four()).into(),
        Elem::Bool => f64::from(u8::from(bytes[0] != 0)),
        Elem::U8 => bytes[0].into(),
        Elem::I8 => (bytes[0] as i8).into(),
        Elem::F8E4M3 => F8E4M3::from_bits(bytes[0]).to_f32().into(),
        Elem::F8E5M2 => F8E5M2::from_bits(bytes[0]).to_f32().into(),
        Elem::Generic(_) => panic!("a tensor holds elements of a concrete type"),
    }
}

fn write(elem: Elem, x: f64, bytes: &mut [u8]) {
    match elem {
        Elem::F32 => bytes[..4].copy_from_slice(&(x as f32).to_le_bytes()),
        Elem::F16 => bytes[..2].copy_from_slice(&f16::from_f64(x).to_le_bytes()),
        Elem::Bf16 => bytes[..2].copy_from_slice(&bf16::from_f64(x).to_le_bytes()),
        Elem::I32 => bytes[..4].copy_from_slice(&(x as i32).to_le_bytes()),
        // A byte that is not 0 is true: which byte it is tells whether a reader knows that.
        Elem::Bool => bytes[0] = if x == 0.0 { 0 } else { (x as u8).max(1) },
        Elem::U8 => bytes[0] = x as u8,
        Elem::I8 => bytes[0] = x as i8 as u8,
        Elem::F8E4M3 => bytes[0] = F8E4M3::from_f64(x).to_bits(),
        Elem::F8E5M2 => bytes[0] = F8E5M2::from_f64(x).to_bits(),
        Elem::Generic(_) => panic!("a tensor holds elements of a concrete type"),
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
        for elem in Elem::ALL {
            let values = match elem {
                Elem::Bool => [0.0, 1.0, 1.0],
                Elem::U8 => [0.0, 255.0, 96.0],
                _ => [0.0, -7.0, 96.0],
            };
            let x = HostTensor::from_f64(elem, &[3], &values);
            assert_eq!(x.to_f64(), values, "{elem:?}");
        }
        assert!(HostTensor::packed(Elem::F32, &[2, 0]).is_empty());
    }

    /// The value of a byte by the definition of its format: `(-1)^s 2^(e - bias) 1.m`, and `2^(1 -
    /// bias) 0.m` where `e` is 0.
    fn small_float(byte: u8, mantissa_bits: i32, bias: i32) -> f64 {
        let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
        let mantissa = f64::from(byte & ((1 << mantissa_bits) - 1)) * 2f64.powi(-mantissa_bits);
        let exponent = i32::from((byte & 0x7f) >> mantissa_bits);
        sign * if exponent == 0 { mantissa * 2f64.powi(1 - bias) } else { (1.0 + mantissa) * 2f64.powi(exponent - bias) }
    }

    #[test]
    fn every_byte_is_the_number_that_its_format_says() {
        for byte in 0..=u8::MAX {
            let value = |elem| HostTensor { elem, shape: vec![1], strides: vec![1], offset: 0, bytes: vec![byte] }.to_f64()[0];
            assert_eq!(value(Elem::U8), f64::from(byte));
            assert_eq!(value(Elem::I8), f64::from(i8::from_le_bytes([byte])));
            assert_eq!(value(Elem::Bool), f64::from(u8::from(byte > 0)));
            let (e4m3, e5m2) = (value(Elem::F8E4M3), value(Elem::F8E5M2));
            match byte & 0x7f {
                0x7f => assert!(e4m3.is_nan(), "{byte:#x}"),
                _ => assert_eq!(e4m3.to_bits(), small_float(byte, 3, 7).to_bits(), "{byte:#x}"),
            }
            match byte & 0x7f {
                0x7c => assert_eq!(e5m2, small_float(byte & 0x80 | 0x3c, 2, 15) * f64::INFINITY, "{byte:#x}"),
                0x7d.. => assert!(e5m2.is_nan(), "{byte:#x}"),
                _ => assert_eq!(e5m2.to_bits(), small_float(byte, 2, 15).to_bits(), "{byte:#x}"),
            }
            // What a float is rounded to and back is itself.
            for (elem, x) in [(Elem::F8E4M3, e4m3), (Elem::F8E5M2, e5m2)] {
                let back = HostTensor::from_f64(elem, &[1], &[x]);
                assert!(x.is_nan() || x.is_infinite() || back.bytes == [byte], "{elem:?} {byte:#x}");
            }
        }
    }
}
