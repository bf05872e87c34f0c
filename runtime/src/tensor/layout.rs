//! Shapes and strides of tensors, in elements.

use super::TensorError;

/// Shape, strides and offset of a tensor in its memory, all in elements.
///
/// Invariant: every element lies in the memory. Strides may be in any order; 0 repeats a dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub offset: usize,
}

impl Layout {
    /// Row-major, packed.
    pub fn packed(shape: &[usize]) -> Result<Self, TensorError> {
        let mut strides = vec![1usize; shape.len()];
        for d in (1..shape.len()).rev() {
            strides[d - 1] = strides[d].checked_mul(shape[d].max(1)).ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?;
        }
        let layout = Self { shape: shape.to_vec(), strides, offset: 0 };
        layout.elements()?;
        Ok(layout)
    }

    /// A view with these strides into memory of `len` elements.
    pub fn strided(shape: &[usize], strides: &[usize], offset: usize, len: usize) -> Result<Self, TensorError> {
        if shape.len() != strides.len() {
            return Err(TensorError::Rank { shape: shape.to_vec(), strides: strides.to_vec() });
        }
        let layout = Self { shape: shape.to_vec(), strides: strides.to_vec(), offset };
        if layout.elements()? > 0 {
            check_bounds(shape, strides, offset, len)?;
        }
        Ok(layout)
    }

    /// Number of elements.
    pub fn elements(&self) -> Result<usize, TensorError> {
        self.shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or_else(|| TensorError::TooLarge(self.shape.clone()))
    }

    /// First and one-past-last element touched in memory.
    pub fn span(&self) -> (usize, usize) {
        match self.shape.contains(&0) {
            true => (self.offset, self.offset),
            false => (self.offset, last(&self.shape, &self.strides, self.offset).expect("checked when the layout was made") + 1),
        }
    }

    /// Whether the last dimension has stride 1, or at most one element: what kernels need.
    pub fn has_contiguous_rows(&self) -> bool {
        has_contiguous_rows(&self.shape, &self.strides)
    }

    /// Whether the elements follow each other in row-major order without a gap.
    pub fn is_packed(&self) -> bool {
        let mut stride = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &s)| {
            let packed = extent <= 1 || s == stride;
            stride *= extent;
            packed
        })
    }

    /// Dimensions outside of a run; see [`Layout::run_len`].
    fn outer(&self) -> usize {
        if self.has_contiguous_rows() { self.shape.len().saturating_sub(1) } else { self.shape.len() }
    }

    /// Elements that follow each other in memory: a row, or one element where the last dimension is not contiguous.
    pub fn run_len(&self) -> usize {
        self.shape[self.outer()..].iter().product()
    }

    /// Offsets of the starts of all runs, in row-major order.
    pub fn runs(&self) -> impl Iterator<Item = usize> + '_ {
        let outer = self.outer();
        let count = if self.shape.contains(&0) { 0 } else { self.shape[..outer].iter().product() };
        (0..count).map(move |run| {
            let mut rest = run;
            let mut at = self.offset;
            for d in (0..outer).rev() {
                at += rest % self.shape[d] * self.strides[d];
                rest /= self.shape[d];
            }
            at
        })
    }
}

/// Index of the last element reached; `None` on overflow. Only for shapes with elements.
fn last(shape: &[usize], strides: &[usize], offset: usize) -> Option<usize> {
    let mut dimensions = shape.iter().zip(strides);
    dimensions.try_fold(offset, |at, (&extent, &stride)| at.checked_add((extent - 1).checked_mul(stride)?))
}

/// Checks that a tensor with elements lies in memory of `len` elements, from `offset` on.
pub(crate) fn check_bounds(shape: &[usize], strides: &[usize], offset: usize, len: usize) -> Result<(), TensorError> {
    match last(shape, strides, offset) {
        Some(last) if last < len => Ok(()),
        Some(last) => Err(TensorError::Bounds { shape: shape.to_vec(), strides: strides.to_vec(), offset, last, len }),
        None => Err(TensorError::TooLarge(shape.to_vec())),
    }
}

/// Whether the last dimension has stride 1, or at most one element.
pub(crate) fn has_contiguous_rows(shape: &[usize], strides: &[usize]) -> bool {
    match (shape.last(), strides.last()) {
        (Some(&extent), Some(&stride)) => extent <= 1 || stride == 1,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_strides_are_row_major() {
        let layout = Layout::packed(&[2, 3, 4]).expect("small");
        assert_eq!(layout.strides, [12, 4, 1]);
        assert_eq!(layout.runs().collect::<Vec<_>>(), [0, 4, 8, 12, 16, 20]);
        assert_eq!(layout.span(), (0, 24));
        assert_eq!(Layout::packed(&[2, 0, 4]).expect("empty").runs().count(), 0);
        assert_eq!(Layout::packed(&[usize::MAX, 4]), Err(TensorError::TooLarge(vec![usize::MAX, 4])));
    }

    #[test]
    fn views_stay_in_bounds() {
        let transposed_heads = Layout::strided(&[2, 3, 4], &[4, 8, 1], 0, 24).expect("fits");
        assert_eq!(transposed_heads.runs().collect::<Vec<_>>(), [0, 8, 16, 4, 12, 20]);
        let last = Layout::strided(&[2, 3], &[8, 1], 1, 11);
        assert!(matches!(last, Err(TensorError::Bounds { last: 11, len: 11, .. })), "{last:?}");
        let columns = Layout::strided(&[2, 3], &[1, 2], 0, 6).expect("fits");
        assert_eq!((columns.run_len(), columns.runs().collect::<Vec<_>>()), (1, vec![0, 2, 4, 1, 3, 5]));
        assert!(!columns.has_contiguous_rows() && transposed_heads.has_contiguous_rows());
        assert!(matches!(Layout::strided(&[2, 3], &[1], 0, 6), Err(TensorError::Rank { .. })));
        assert!(Layout::strided(&[0, 3], &[100, 1], 0, 0).is_ok());
    }
}
