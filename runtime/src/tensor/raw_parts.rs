//! Tensors over memory of another owner: of candle, PyTorch, a cudarc slice, or a buffer of the program.

use std::ffi::c_void;

use flashtile_dsl::ir::Elem;

use super::layout::Layout;
use super::{AnyTensor, Tensor, TensorError};
use crate::device::{Device, ForeignMemory, Owner};
use crate::element::Element;
use crate::error::Result;

impl<T: Element> Tensor<T> {
    /// A tensor over memory of another owner, used where it lies: nothing is copied, and nothing is freed.
    ///
    /// `pointer` is the first element: a host pointer on the CPU, a device pointer (a `CUdeviceptr` as a pointer) on a GPU.
    /// Strides count elements and are at least 0; see [`Tensor::packed_strides`] for a tensor without gaps. Kernels take the
    /// tensor if its last dimension has stride 1.
    ///
    /// ```
    /// use flashtile::{Device, Tensor};
    /// let mut values = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// // SAFETY: `values` lives longer than the tensor, and nothing else uses it meanwhile.
    /// let columns = unsafe { Tensor::from_raw_parts(&Device::cpu(), values.as_mut_ptr(), &[2, 2], &[3, 1])? };
    /// assert_eq!(columns.to_vec()?, [1.0, 2.0, 4.0, 5.0]);
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    ///
    /// # Safety
    /// * **Place.** All bytes from the first to the last element, those between the rows of a strided tensor too, are one
    ///   allocation in memory of `device`: of the host, or of the primary context of a GPU. They hold values of `T`.
    /// * **Lifetime.** The memory stays allocated until the tensor, its clones and views are dropped, the work that uses
    ///   them has ended, and graphs that captured them are launched no more.
    /// * **Others.** Until then nobody else writes these bytes, and nobody else reads or writes them while the tensor is
    ///   written, except in the order of the next point. Two tensors over the same bytes are two owners in this sense.
    /// * **Order of streams.** On a GPU, launches use the memory on the stream that they are given, reads such as
    ///   [`Tensor::to_vec`] on a stream of the device's own, after the launches of this crate. What other libraries queue is
    ///   not known here. Either launch on their stream ([`crate::Stream::from_raw`]) and read through their tensors, or
    ///   order the streams by [`crate::Stream::wait_for`].
    ///
    /// # Errors
    /// [`TensorError::Null`], [`TensorError::Misaligned`], [`TensorError::Rank`], [`TensorError::TooLarge`];
    /// [`crate::device::DeviceError::NoForeignMemory`] on the emulator, which only has memory of its own.
    pub unsafe fn from_raw_parts(device: &Device, pointer: *mut T, shape: &[usize], strides: &[usize]) -> Result<Self> {
        // SAFETY: as the caller promises.
        let any = unsafe { AnyTensor::from_raw_parts(device, T::ELEM, pointer.cast(), shape, strides) }?;
        Ok(Self::of(any))
    }

    /// As [`Tensor::from_raw_parts`], of memory that `owner` keeps allocated. The owner is dropped with the last clone or view
    /// of the tensor.
    ///
    /// # Safety
    /// As [`Tensor::from_raw_parts`], where `owner` sees to the lifetime until it is dropped.
    ///
    /// # Errors
    /// As [`Tensor::from_raw_parts`].
    pub unsafe fn from_owner(
        device: &Device,
        pointer: *mut T,
        shape: &[usize],
        strides: &[usize],
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        let owner: Owner = std::sync::Arc::new(owner);
        // SAFETY: as the caller promises.
        let any = unsafe { AnyTensor::foreign(device, T::ELEM, pointer.cast(), (shape, strides), true, Some(owner)) }?;
        Ok(Self::of(any))
    }

    /// The strides of a tensor of this shape without gaps, in row-major order.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`].
    pub fn packed_strides(shape: &[usize]) -> Result<Vec<usize>> {
        Ok(Layout::packed(shape)?.strides)
    }
}

impl AnyTensor {
    /// As [`Tensor::from_raw_parts`], with an element type that is known at run time.
    ///
    /// # Safety
    /// As [`Tensor::from_raw_parts`].
    ///
    /// # Errors
    /// As [`Tensor::from_raw_parts`], and [`TensorError::UnknownElement`].
    pub unsafe fn from_raw_parts(
        device: &Device,
        elem: Elem,
        pointer: *mut c_void,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::foreign(device, elem, pointer, (shape, strides), true, None) }
    }

    /// A tensor over memory of another owner, which may be written or not.
    ///
    /// # Safety
    /// As [`Tensor::from_raw_parts`].
    pub(super) unsafe fn foreign(
        device: &Device,
        elem: Elem,
        pointer: *mut c_void,
        (shape, strides): (&[usize], &[usize]),
        writable: bool,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let bytes = elem.bytes().ok_or_else(|| TensorError::UnknownElement(elem.name().to_owned()))?;
        let layout = Layout::strided(shape, strides, 0, isize::MAX as usize / bytes)?;
        let (_, end) = layout.span();
        if pointer.is_null() && end > 0 {
            return Err(TensorError::Null(shape.to_vec()).into());
        }
        let address = pointer.expose_provenance() as u64;
        if !address.is_multiple_of(bytes as u64) {
            return Err(TensorError::Misaligned { address, bytes }.into());
        }
        let memory = ForeignMemory { address, bytes: end * bytes, writable, owner };
        // SAFETY: as the caller promises.
        let memory = unsafe { device.backend().foreign(memory) }?;
        Ok(Self { device: device.clone(), memory, elem, bytes, layout })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::device::DeviceError;
    use crate::error::Error;

    /// # Safety
    /// As [`Tensor::from_raw_parts`].
    unsafe fn on(device: &Device, pointer: *mut f32, shape: &[usize], strides: &[usize]) -> Result<Tensor<f32>> {
        // SAFETY: as the caller promises.
        unsafe { Tensor::from_raw_parts(device, pointer, shape, strides) }
    }

    #[test]
    fn foreign_memory_is_read_and_written_where_it_lies() {
        let mut values: Vec<f32> = (0..12).map(|n| n as f32).collect();
        // SAFETY: `values` lives longer than the tensor, and nothing else uses it meanwhile.
        let mut x = unsafe { on(&Device::cpu(), values.as_mut_ptr().add(1), &[2, 2], &[6, 1]) }.expect("fits");
        assert_eq!(x.as_any().address(), values.as_ptr() as u64 + 4);
        assert_eq!(x.to_vec().expect("reads"), [1.0, 2.0, 7.0, 8.0]);
        x.copy_from_slice(&[-1.0, -2.0, -7.0, -8.0]).expect("writes");
        assert!(x.view(&[8], &[1], 0).is_ok() && x.view(&[9], &[1], 0).is_err(), "the memory ends with the last element");
        drop(x);
        assert_eq!(values, [0.0, -1.0, -2.0, 3.0, 4.0, 5.0, 6.0, -7.0, -8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn the_owner_lives_as_long_as_a_view() {
        struct Owner(Vec<f32>, Arc<AtomicBool>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.1.store(true, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let mut owner = Owner(vec![1.0, 2.0, 3.0], dropped.clone());
        let pointer = owner.0.as_mut_ptr();
        // SAFETY: the owner holds the values, which nothing else uses.
        let x = unsafe { Tensor::from_owner(&Device::cpu(), pointer, &[3], &[1], owner) }.expect("fits");
        let tail = x.slice(0, 1..3).expect("a view");
        drop(x);
        assert_eq!(tail.to_vec().expect("reads"), [2.0, 3.0]);
        assert!(!dropped.load(Ordering::SeqCst));
        drop(tail);
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[test]
    fn what_cannot_be_a_tensor_is_refused() {
        let mut values = [0.0f32; 4];
        let pointer = values.as_mut_ptr();
        let refused = |device: &Device, pointer: *mut f32, shape: &[usize], strides: &[usize]| {
            // SAFETY: all are refused before anything is read.
            unsafe { on(device, pointer, shape, strides) }.expect_err("refused")
        };
        let cpu = Device::cpu();
        let null = refused(&cpu, std::ptr::null_mut(), &[2], &[1]);
        assert!(matches!(null, Error::Tensor(TensorError::Null(shape)) if shape == [2]));
        let odd = refused(&cpu, pointer.wrapping_byte_add(2), &[2], &[1]);
        assert!(matches!(odd, Error::Tensor(TensorError::Misaligned { bytes: 4, .. })));
        assert!(matches!(refused(&cpu, pointer, &[2, 2], &[1]), Error::Tensor(TensorError::Rank { .. })));
        let large = refused(&cpu, pointer, &[usize::MAX, 2], &[1, 1]);
        assert!(matches!(large, Error::Tensor(TensorError::TooLarge(_))));
        let far = refused(&cpu, pointer, &[2], &[usize::MAX / 2]);
        assert!(matches!(far, Error::Tensor(TensorError::Bounds { .. })), "{far}");
        let emulator = refused(&Device::emulator(), pointer, &[4], &[1]);
        assert!(matches!(emulator, Error::Device(DeviceError::NoForeignMemory(name)) if name == "emulator"));
        // SAFETY: there is no element.
        let empty = unsafe { on(&cpu, std::ptr::null_mut(), &[0, 3], &[3, 1]) }.expect("no element");
        assert!(empty.to_vec().expect("reads").is_empty());
    }
}
