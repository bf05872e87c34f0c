//! Element type, extents and strides of a tensor, in a value that is copied and hashed.

use flashtile_dsl::ir::Elem;

use crate::error::TensorError;
use crate::launch::ArgumentForm;
use crate::tensor::{Tensor, check_bounds};

/// Dimensions that a tensor may have.
pub const MAX_RANK: usize = 8;

/// Element type, extents and strides of a tensor of another library: what a launch is prepared for,
/// and a key for what was prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorForm {
    /// Type of the elements.
    pub elem: Elem,
    rank: usize,
    /// 0 beyond the rank, as strides.
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl TensorForm {
    /// Of dimensions, outermost first, each an extent and a stride in elements; `None` if there are
    /// more than [`MAX_RANK`]. Strides of a tensor without elements say nothing: they are those of
    /// a packed one.
    pub fn new(elem: Elem, dimensions: impl ExactSizeIterator<Item = (usize, usize)>) -> Option<Self> {
        let mut form = Self { elem, rank: dimensions.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        if form.rank > MAX_RANK {
            return None;
        }
        for (d, (extent, stride)) in dimensions.enumerate() {
            (form.shape[d], form.strides[d]) = (extent, stride);
        }
        if form.shape().contains(&0)
            && let Ok(packed) = Tensor::<f32>::packed_strides(form.shape())
        {
            form.strides[..form.rank].copy_from_slice(&packed);
        }
        Some(form)
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// Strides in elements, outermost first.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// As launches are prepared for it.
    pub fn of_argument(&self) -> ArgumentForm<'_> {
        ArgumentForm::Tensor { elem: self.elem, shape: self.shape(), strides: self.strides() }
    }

    /// Checks that a tensor of this form lies in memory of `len` elements, from `offset` on.
    ///
    /// # Errors
    /// [`TensorError::Bounds`], or [`TensorError::TooLarge`] if an address cannot count its
    /// elements.
    pub fn check_bounds(&self, offset: usize, len: usize) -> Result<(), TensorError> {
        if self.shape().contains(&0) {
            return Ok(());
        }
        check_bounds(self.shape(), self.strides(), offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_lies_in_memory_or_says_what_it_reaches() {
        let form = TensorForm::new(Elem::F32, [(2, 5), (3, 1)].into_iter()).expect("two dimensions");
        assert_eq!((form.shape(), form.strides()), (&[2, 3][..], &[5, 1][..]));
        assert_eq!(form.check_bounds(1, 9), Ok(()));
        let beyond = TensorError::Bounds { shape: vec![2, 3], strides: vec![5, 1], offset: 2, last: 9, len: 9 };
        assert_eq!(form.check_bounds(2, 9), Err(beyond));
        let empty = TensorForm::new(Elem::F32, [(0, 0), (3, 0)].into_iter()).expect("two dimensions");
        assert_eq!(empty.check_bounds(7, 7), Ok(()));
        assert_eq!(empty, TensorForm::new(Elem::F32, [(0, 3), (3, 1)].into_iter()).expect("two dimensions"), "packed");
        let huge = TensorForm::new(Elem::F32, [(usize::MAX, 2)].into_iter()).expect("one dimension");
        assert_eq!(huge.check_bounds(0, 7), Err(TensorError::TooLarge(vec![usize::MAX])));
    }

    #[test]
    fn more_dimensions_than_a_form_holds_are_refused() {
        assert!(TensorForm::new(Elem::F32, vec![(1, 1); MAX_RANK].into_iter()).is_some());
        assert!(TensorForm::new(Elem::F32, vec![(1, 1); MAX_RANK + 1].into_iter()).is_none());
    }
}
