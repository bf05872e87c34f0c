//! Tensors over memory that is lent for a while, without `unsafe`.
//!
//! A tensor may be cloned, and a clone may outlive the borrow. So the loan ends in the memory, not
//! in the type: when [`lend`] returns, the memory is given back, and every tensor over it gives an
//! error from then on.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::layout::Layout;
use super::{AnyTensor, Tensor, TensorError};
use crate::device::{Device, ForeignSlice, Lent, Loan, Memory, ReadSlice, WriteSlice};
use crate::element::{AnyBits, Element};
use crate::error::Result;

/// Lends memory to kernels without a copy: `run` makes tensors over slices of the host, or over
/// slices of cudarc on a GPU, and launches kernels.
///
/// The loans end when `run` returns. A tensor that is kept for longer gives
/// [`crate::device::DeviceError::GivenBack`].
///
/// ```
/// use flashtile::{Device, Elem, Kernel, lend};
/// # fn main() -> flashtile::Result<()> {
/// let softmax = Kernel::builtin("row_softmax")?.bind(Elem::F32, [] as [(&str, i64); 0])?.on(&Device::cpu())?;
/// let x = [0.0f32, 0.0, 1.0, 1.0];
/// let mut y = [0.0f32; 4];
/// lend(|loans| {
///     let x = loans.read(&x, &[2, 2])?;
///     let mut y = loans.write(&mut y, &[2, 2])?;
///     softmax.launch(&[(&x).into(), (&mut y).into()])
/// })?;
/// assert_eq!(y, [0.5; 4]);
/// # Ok(())
/// # }
/// ```
pub fn lend<'env, R>(run: impl FnOnce(&Loans<'env>) -> R) -> R {
    let loans = Loans { loans: RefCell::default(), env: PhantomData };
    run(&loans)
}

/// Makes tensors over memory that is lent; see [`lend`].
pub struct Loans<'env> {
    loans: RefCell<Vec<Box<dyn Loan + 'env>>>,
    // Invariant, as in `std::thread::Scope`: it may not shrink to a part of the loan.
    env: PhantomData<&'env mut &'env ()>,
}

/// A slice of the host.
struct HostLoan(Arc<dyn Memory>);

impl Loan for HostLoan {}

impl Drop for HostLoan {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl std::fmt::Debug for Loans<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loans({})", self.loans.borrow().len())
    }
}

impl<'env> Loans<'env> {
    /// Keeps a loan until the end.
    fn keep(&self, loan: Box<dyn Loan + 'env>) {
        self.loans.borrow_mut().push(loan);
    }

    /// A packed tensor over values that kernels read. It cannot be written.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the number of values is not that of the shape,
    /// [`TensorError::TooLarge`].
    pub fn read<T: Element>(&self, values: &'env [T], shape: &[usize]) -> Result<Tensor<T>> {
        let layout = packed(shape, values.len())?;
        self.lent(values.as_ptr().cast_mut(), &layout, false)
    }

    /// As [`Loans::read`], with strides in elements, from the first value on.
    ///
    /// # Errors
    /// [`TensorError::Bounds`] if the tensor reaches beyond the values, [`TensorError::Rank`],
    /// [`TensorError::TooLarge`].
    pub fn read_strided<T: Element>(&self, values: &'env [T], shape: &[usize], strides: &[usize]) -> Result<Tensor<T>> {
        let layout = Layout::strided(shape, strides, 0, values.len())?;
        self.lent(values.as_ptr().cast_mut(), &layout, false)
    }

    /// A packed tensor over values that kernels write.
    ///
    /// # Errors
    /// As [`Loans::read`].
    pub fn write<T: AnyBits>(&self, values: &'env mut [T], shape: &[usize]) -> Result<Tensor<T>> {
        let layout = packed(shape, values.len())?;
        self.lent(values.as_mut_ptr(), &layout, true)
    }

    /// As [`Loans::write`], with strides in elements, from the first value on.
    ///
    /// # Errors
    /// As [`Loans::read_strided`].
    pub fn write_strided<T: AnyBits>(&self, values: &'env mut [T], shape: &[usize], strides: &[usize]) -> Result<Tensor<T>> {
        let layout = Layout::strided(shape, strides, 0, values.len())?;
        self.lent(values.as_mut_ptr(), &layout, true)
    }

    /// A tensor over a slice of another library on a GPU that kernels read, with strides in
    /// elements, from its first element on. Views of slices of cudarc are such, and so are slices
    /// of candle: `storage.as_cuda_slice::<T>()?.slice(offset..)`.
    ///
    /// `queue` is the stream on which the slice is used before and after the loan. Kernels may be
    /// launched on any stream of this crate; they cost the least on that one
    /// ([`crate::Stream::from_raw`]).
    ///
    /// # Errors
    /// [`TensorError`] if the tensor reaches beyond the slice,
    /// [`crate::device::DeviceError::OtherDevice`] if the stream is not of the primary context of
    /// `device`, [`crate::device::DeviceError::LoanInCapture`] if it captures a graph.
    pub fn read_slice<S: ReadSlice<'env>>(
        &self,
        device: &Device,
        queue: &'env S::Queue,
        slice: S,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Tensor<S::Element>> {
        self.slice(device, queue, slice, (shape, strides))
    }

    /// As [`Loans::read_slice`], of a slice that kernels write.
    ///
    /// # Errors
    /// As [`Loans::read_slice`].
    pub fn write_slice<S: WriteSlice<'env>>(
        &self,
        device: &Device,
        queue: &'env S::Queue,
        slice: S,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Tensor<S::Element>> {
        self.slice(device, queue, slice, (shape, strides))
    }

    fn slice<S: ForeignSlice<'env>>(
        &self,
        device: &Device,
        queue: &'env S::Queue,
        slice: S,
        (shape, strides): (&[usize], &[usize]),
    ) -> Result<Tensor<S::Element>> {
        let layout = Layout::strided(shape, strides, 0, slice.elements())?;
        let Lent { memory, loan } = slice.lend(device, queue)?;
        self.keep(loan);
        Ok(Tensor::over(device, memory, layout))
    }

    fn lent<T: Element>(&self, pointer: *mut T, layout: &Layout, writable: bool) -> Result<Tensor<T>> {
        let place = (&layout.shape[..], &layout.strides[..]);
        // SAFETY: the layout was checked to lie in a slice that is borrowed for 'env: for reading,
        // where the memory cannot be written, or exclusively, where every bit pattern is a value of
        // `T`. The slice lives until the loans end, which give the memory back.
        let any = unsafe { AnyTensor::foreign(&Device::cpu(), T::ELEM, pointer.cast(), place, writable, None) }?;
        self.keep(Box::new(HostLoan(any.memory.clone())));
        Ok(Tensor::of(any))
    }
}

fn packed(shape: &[usize], found: usize) -> Result<Layout, TensorError> {
    let layout = Layout::packed(shape)?;
    match layout.elements()? {
        expected if expected == found => Ok(layout),
        expected => Err(TensorError::Length { shape: shape.to_vec(), expected, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceError;
    use crate::error::Error;

    #[test]
    fn lent_values_are_read_and_written_where_they_lie() {
        let x = [1, 2, 3, 4, 5, 6];
        let mut y = [0; 6];
        lend(|loans| {
            let x = loans.read_strided(&x, &[2, 2], &[3, 1]).expect("fits");
            let mut y = loans.write(&mut y, &[3, 2]).expect("fits");
            assert_eq!(x.to_vec().expect("reads"), [1, 2, 4, 5]);
            y.copy_from_slice(&[6, 5, 4, 3, 2, 1]).expect("writes");
        });
        assert_eq!(y, [6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn a_tensor_that_is_kept_gives_an_error() {
        let x = vec![1.0f32; 4];
        let kept = lend(|loans| {
            let x = loans.read(&x, &[4]).expect("fits");
            assert_eq!(x.clone().to_vec().expect("reads"), [1.0; 4]);
            x
        });
        drop(x);
        let error = kept.to_vec().expect_err("given back");
        assert!(matches!(error, Error::Device(DeviceError::GivenBack { device }) if device == "cpu"));
    }

    #[test]
    fn loans_end_with_a_panic() {
        let kept = std::sync::Mutex::new(None);
        let x = vec![1.0f32; 4];
        let run = || {
            lend(|loans| {
                *kept.lock().expect("not poisoned") = Some(loans.read(&x, &[4]).expect("fits").as_any().clone());
                panic!("in the middle of a loan");
            })
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("panics");
        let kept = kept.into_inner().expect("not poisoned").expect("kept");
        assert!(matches!(kept.to_bytes(), Err(Error::Device(DeviceError::GivenBack { .. }))));
    }

    #[test]
    fn what_is_lent_for_reading_cannot_be_written() {
        let x = [1.0f32; 4];
        lend(|loans| {
            let mut lent = loans.read(&x, &[4]).expect("fits");
            assert!(!lent.as_any().is_writable());
            assert!(matches!(lent.copy_from_slice(&[0.0; 4]), Err(Error::Device(DeviceError::ReadOnly { .. }))));
            assert!(matches!(lent.as_any().fill_bytes(0), Err(Error::Device(DeviceError::ReadOnly { .. }))));
            let error = loans.read(&x, &[5]).expect_err("too long");
            assert!(matches!(error, Error::Tensor(TensorError::Length { expected: 5, found: 4, .. })));
            let error = loans.read_strided(&x, &[2, 2], &[3, 1]).expect_err("too long");
            assert!(matches!(error, Error::Tensor(TensorError::Bounds { last: 4, len: 4, .. })));
        });
        assert_eq!(x, [1.0; 4]);
    }
}
