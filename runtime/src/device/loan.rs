//! Memory that is lent for a while, and slices of other libraries that can be lent so.

use std::sync::Arc;

use super::{Device, Memory};
use crate::element::Element;
use crate::error::Result;

/// A slice of another library in memory of a device: a view of a slice of cudarc (`CudaView`,
/// `CudaViewMut`). Only this crate implements the trait.
pub trait ForeignSlice<'env>: Sized {
    /// Type of the elements.
    type Element: Element;
    /// The queue on which the other library uses the slice before and after the loan.
    type Queue;

    /// Number of elements.
    fn elements(&self) -> usize;

    /// Begins a loan. The result ends the loan when it is dropped.
    #[doc(hidden)]
    fn lend(self, device: &Device, queue: &'env Self::Queue) -> Result<Lent<'env>>;
}

/// A [`ForeignSlice`] that kernels may read.
pub trait ReadSlice<'env>: ForeignSlice<'env> {}

/// A [`ForeignSlice`] that kernels may read and write.
pub trait WriteSlice<'env>: ForeignSlice<'env> {}

/// What is lent, and given back on drop.
pub(crate) trait Loan {}

/// Memory of a device that is lent.
#[doc(hidden)]
pub struct Lent<'env> {
    pub(crate) memory: Arc<dyn Memory>,
    /// Ends the loan when it is dropped.
    pub(crate) loan: Box<dyn Loan + 'env>,
}
