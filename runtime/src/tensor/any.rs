//! Tensors whose element type is known at run time.

use std::sync::Arc;

use flashtile_dsl::ir::Elem;

use super::TensorError;
use super::layout::Layout;
use crate::device::{CallArgument, Device, Memory};
use crate::element::Element;
use crate::error::Result;

/// A strided tensor in the memory of a device, of any element type. Clones and views share the memory.
///
/// Shapes, strides and offsets count elements. Strides may be in any order, but kernels take only tensors whose last dimension
/// is contiguous.
#[derive(Clone, Debug)]
pub struct AnyTensor {
    pub(super) device: Device,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) elem: Elem,
    /// Bytes of an element.
    pub(super) bytes: usize,
    pub(super) layout: Layout,
}

impl AnyTensor {
    /// A packed tensor of zeros.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::UnknownElement`] for a type parameter, or the
    /// device is out of memory.
    pub fn zeros(device: &Device, elem: Elem, shape: &[usize]) -> Result<Self> {
        let bytes = elem.bytes().ok_or_else(|| TensorError::UnknownElement(elem.name().to_owned()))?;
        let layout = Layout::packed(shape)?;
        let len = layout.elements()?;
        let size = len.checked_mul(bytes).ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?;
        let memory = device.backend().allocate(size)?;
        Ok(Self { device: device.clone(), memory, elem, bytes, layout })
    }

    /// A packed tensor of these little-endian bytes.
    ///
    /// # Errors
    /// As [`AnyTensor::zeros`], and [`TensorError::Length`].
    pub fn from_bytes(device: &Device, elem: Elem, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let tensor = Self::zeros(device, elem, shape)?;
        let expected = tensor.layout.elements()?;
        if bytes.len() != expected * tensor.bytes {
            return Err(TensorError::Length { shape: shape.to_vec(), expected, found: bytes.len() / tensor.bytes }.into());
        }
        tensor.memory.write(0, bytes)?;
        Ok(tensor)
    }

    /// A view of the same memory with another shape and other strides, `offset` elements from the start of the memory.
    ///
    /// # Errors
    /// [`TensorError::Bounds`] if it reaches beyond the memory, [`TensorError::Rank`], [`TensorError::TooLarge`].
    pub fn view(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        let layout = Layout::strided(shape, strides, offset, self.memory.bytes() / self.bytes)?;
        Ok(Self { layout, ..self.clone() })
    }

    /// Bytes as truth values: a view of the same memory for parameters of `bool`, which read any
    /// byte but 0 as true. Libraries without such a type keep masks as `u8`.
    ///
    /// ```
    /// use flashtile::{AnyTensor, Device, Elem};
    /// let mask = AnyTensor::from_bytes(&Device::cpu(), Elem::U8, &[3], &[0, 1, 2])?.as_bool()?;
    /// assert_eq!(mask.elem(), Elem::Bool);
    /// assert_eq!(mask.to_f32()?, [0.0, 1.0, 1.0]);
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`TensorError::NotBytes`] for another element type.
    pub fn as_bool(&self) -> Result<Self> {
        match self.elem {
            Elem::U8 | Elem::I8 | Elem::Bool => Ok(Self { elem: Elem::Bool, ..self.clone() }),
            elem => Err(TensorError::NotBytes(elem.name()).into()),
        }
    }

    /// Elements in row-major order, as little-endian bytes. Waits for all launches that write the tensor, on whatever
    /// stream.
    ///
    /// # Errors
    /// The device refuses, an earlier launch failed, or the memory was given back.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let (start, end) = self.layout.span();
        let mut raw = vec![0u8; (end - start) * self.bytes];
        self.memory.read(start * self.bytes, &mut raw)?;
        if self.layout.is_packed() {
            return Ok(raw);
        }
        let run = self.layout.run_len() * self.bytes;
        let mut out = Vec::with_capacity(self.layout.elements()? * self.bytes);
        for at in self.layout.runs() {
            let at = (at - start) * self.bytes;
            out.extend_from_slice(&raw[at..at + run]);
        }
        Ok(out)
    }

    /// Overwrites the elements with these, in row-major order; what lies between the rows of a view is written as it was
    /// found. Waits for all launches that use the tensor, on whatever stream.
    ///
    /// # Errors
    /// [`TensorError::Length`], [`TensorError::OverlapsItself`] for a broadcast view, or the device refuses.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        let expected = self.layout.elements()?;
        if bytes.len() != expected * self.bytes {
            let found = bytes.len() / self.bytes;
            return Err(TensorError::Length { shape: self.layout.shape.clone(), expected, found }.into());
        }
        if self.overlaps_itself() {
            return Err(TensorError::OverlapsItself { shape: self.shape().to_vec(), strides: self.strides().to_vec() }.into());
        }
        if self.layout.is_packed() {
            return Ok(self.memory.write(self.layout.offset * self.bytes, bytes)?);
        }
        let (start, end) = self.layout.span();
        let mut raw = vec![0u8; (end - start) * self.bytes];
        self.memory.read(start * self.bytes, &mut raw)?;
        let run = self.layout.run_len() * self.bytes;
        for (at, from) in self.layout.runs().zip(bytes.chunks(run.max(1))) {
            let at = (at - start) * self.bytes;
            raw[at..at + run].copy_from_slice(from);
        }
        Ok(self.memory.write(start * self.bytes, &raw)?)
    }

    /// Sets every byte of the memory that this tensor and its views share, between their elements too.
    ///
    /// # Errors
    /// The device refuses.
    pub fn fill_bytes(&self, byte: u8) -> Result<()> {
        Ok(self.memory.fill(byte)?)
    }

    /// Elements in row-major order as f32; truth values as 0 and 1.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        fn convert<T: Element>(bytes: &[u8]) -> Vec<f32> {
            bytes.chunks_exact(T::BYTES).map(|b| T::read_bytes(b).to_f32()).collect()
        }
        let bytes = self.to_bytes()?;
        Ok(match self.elem {
            Elem::F32 => convert::<f32>(&bytes),
            Elem::F16 => convert::<half::f16>(&bytes),
            Elem::Bf16 => convert::<half::bf16>(&bytes),
            Elem::I32 => convert::<i32>(&bytes),
            Elem::Bool => convert::<bool>(&bytes),
            Elem::U8 => convert::<u8>(&bytes),
            Elem::I8 => convert::<i8>(&bytes),
            Elem::F8E4M3 => convert::<crate::f8e4m3>(&bytes),
            Elem::F8E5M2 => convert::<crate::f8e5m2>(&bytes),
            Elem::Generic(_) => return Err(TensorError::UnknownElement(self.elem.name().to_owned()).into()),
        })
    }

    /// The device that holds the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Element type.
    pub fn elem(&self) -> Elem {
        self.elem
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// Strides in elements, outermost first.
    pub fn strides(&self) -> &[usize] {
        &self.layout.strides
    }

    /// First element in the memory, in elements.
    pub fn offset(&self) -> usize {
        self.layout.offset
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.layout.elements().expect("checked when the tensor was made")
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.layout.shape.contains(&0)
    }

    /// Address of the first element: a device pointer on a GPU, a host address on the CPU.
    pub fn address(&self) -> u64 {
        self.memory.address() + (self.layout.offset * self.bytes) as u64
    }

    /// Size of an element in bytes.
    pub fn elem_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it may be written: all tensors may but those of memory that was lent for reading.
    pub fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    /// Whether the last dimension is contiguous, as kernels need.
    pub fn has_contiguous_rows(&self) -> bool {
        self.layout.has_contiguous_rows()
    }

    /// As a device takes it, for a launch that writes it or not.
    pub(crate) fn raw(&self, writes: bool) -> CallArgument<'_> {
        CallArgument::Tensor {
            memory: Some(&*self.memory),
            offset: self.layout.offset,
            elem: self.elem,
            address: self.address(),
            shape: &self.layout.shape,
            strides: &self.layout.strides,
            writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn views_read_and_write_through_strides() {
        let device = Device::cpu();
        let values: Vec<i32> = (0..24).collect();
        let t = AnyTensor::from_bytes(&device, Elem::I32, &[4, 6], &bytes(&values)).expect("fits");
        let v = t.view(&[2, 2, 3], &[12, 3, 1], 6).expect("in bounds");
        assert_eq!(v.to_bytes().expect("reads"), bytes(&[6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23]));
        let columns = t.view(&[4, 2], &[6, 1], 4).expect("in bounds");
        columns.write_bytes(&bytes(&[-1, -2, -3, -4, -5, -6, -7, -8])).expect("writes");
        let back = t.to_bytes().expect("reads");
        assert_eq!(back[..24], bytes(&[0, 1, 2, 3, -1, -2]));
        assert_eq!(columns.address(), t.address() + 16);
    }

    #[test]
    fn only_bytes_are_truth_values() {
        let floats = AnyTensor::zeros(&Device::cpu(), Elem::F32, &[2]).expect("fits");
        let error = floats.as_bool().expect_err("no bytes").to_string();
        assert_eq!(error, "elements of f32 are no truth values; those of u8, i8 and bool are");
    }

    #[test]
    fn lengths_are_checked() {
        let device = Device::cpu();
        let error = AnyTensor::from_bytes(&device, Elem::F16, &[3], &[0; 4]).expect_err("too short");
        assert_eq!(error.to_string(), "shape [3] has 3 elements, but 2 values were given");
    }
}
