//! Tensors whose element type is known at compile time.

use std::marker::PhantomData;
use std::sync::Arc;

use super::layout::Layout;
use super::{AnyTensor, TensorError};
use crate::device::{Device, Memory};
use crate::element::Element;
use crate::error::Result;

/// A strided tensor of `T` in the memory of a device. Clones and views share the memory.
///
/// ```
/// use flashtile::{Device, Tensor};
/// let device = Device::cpu();
/// let x = Tensor::<f32>::from_slice(&device, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(x.view(&[2, 2], &[3, 1], 1)?.to_vec()?, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor<T: Element> {
    any: AnyTensor,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// With the static element type that it has.
    pub(super) fn of(any: AnyTensor) -> Self {
        debug_assert_eq!(any.elem(), T::ELEM);
        Self { any, element: PhantomData }
    }

    /// Over memory in which the layout lies.
    pub(crate) fn over(device: &Device, memory: Arc<dyn Memory>, layout: Layout) -> Self {
        Self::of(AnyTensor { device: device.clone(), memory, elem: T::ELEM, bytes: T::BYTES, layout })
    }

    /// A packed tensor of zeros.
    ///
    /// # Errors
    /// The shape is too large for an address, or for the device.
    pub fn zeros(device: &Device, shape: &[usize]) -> Result<Self> {
        Ok(Self { any: AnyTensor::zeros(device, T::ELEM, shape)?, element: PhantomData })
    }

    /// A packed tensor of these values, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and [`TensorError::Length`] if the number of values is not that of the shape.
    pub fn from_slice(device: &Device, shape: &[usize], values: &[T]) -> Result<Self> {
        Ok(Self { any: AnyTensor::from_bytes(device, T::ELEM, shape, &to_bytes(values))?, element: PhantomData })
    }

    /// A packed tensor of these f32 values rounded to `T`, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_f32(device: &Device, shape: &[usize], values: &[f32]) -> Result<Self> {
        let values: Vec<T> = values.iter().map(|&x| T::from_f32(x)).collect();
        Self::from_slice(device, shape, &values)
    }

    /// Elements in row-major order. Waits for all launches that write the tensor, on whatever stream.
    ///
    /// # Errors
    /// The device refuses, an earlier launch failed, or the memory was given back.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        Ok(self.any.to_bytes()?.chunks_exact(T::BYTES).map(T::read_bytes).collect())
    }

    /// Overwrites the elements, in row-major order. Waits for all launches that use the tensor, on whatever stream.
    ///
    /// # Errors
    /// [`TensorError::Length`], [`TensorError::OverlapsItself`] for a broadcast view, or the device refuses.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<()> {
        self.any.write_bytes(&to_bytes(values))
    }

    /// A view of the same memory with another shape and other strides (in elements), `offset` elements from the start of
    /// the memory. Kernels take a view whose last dimension has stride 1.
    ///
    /// # Errors
    /// [`TensorError::Bounds`] if it reaches beyond the memory, [`TensorError::Rank`], [`TensorError::TooLarge`].
    pub fn view(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        Ok(Self { any: self.any.view(shape, strides, offset)?, element: PhantomData })
    }

    /// The device that holds the memory.
    pub fn device(&self) -> &Device {
        self.any.device()
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.any.shape()
    }

    /// Strides in elements, outermost first.
    pub fn strides(&self) -> &[usize] {
        self.any.strides()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.any.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty()
    }

    /// The tensor without its static element type.
    pub fn as_any(&self) -> &AnyTensor {
        &self.any
    }
}

impl<T: Element> TryFrom<AnyTensor> for Tensor<T> {
    type Error = TensorError;

    fn try_from(any: AnyTensor) -> Result<Self, TensorError> {
        match any.elem() == T::ELEM {
            true => Ok(Self { any, element: PhantomData }),
            false => Err(TensorError::Element { expected: T::ELEM, found: any.elem() }),
        }
    }
}

impl<T: Element> From<Tensor<T>> for AnyTensor {
    fn from(tensor: Tensor<T>) -> Self {
        tensor.any
    }
}

fn to_bytes<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * T::BYTES);
    values.iter().for_each(|v| v.write_bytes(&mut bytes));
    bytes
}
