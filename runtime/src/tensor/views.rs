//! Views: other shapes and strides of the same memory. Nothing is copied.
//!
//! Each view is worked out on the [`Layout`]; `AnyTensor` and `Tensor` share the methods, made here for both.

use std::ops::Range;

use super::layout::Layout;
use super::{AnyTensor, Tensor, TensorError};
use crate::element::Element;
use crate::error::Result;

impl Layout {
    fn check_dimension(&self, dimension: usize) -> Result<(), TensorError> {
        match dimension < self.shape.len() {
            true => Ok(()),
            false => Err(TensorError::Dimension { dimension, shape: self.shape.clone() }),
        }
    }

    fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self, TensorError> {
        self.check_dimension(dimension)?;
        if range.start > range.end || range.end > self.shape[dimension] {
            let Range { start, end } = range;
            return Err(TensorError::Range { dimension, start, end, shape: self.shape.clone() });
        }
        let mut sliced = self.clone();
        sliced.shape[dimension] = range.len();
        // A view without elements has no first one, and its offset no meaning: it stays in bounds.
        if !sliced.shape.contains(&0) {
            sliced.offset += range.start * self.strides[dimension];
        }
        Ok(sliced)
    }

    fn select(&self, dimension: usize, index: usize) -> Result<Self, TensorError> {
        let end = index.checked_add(1).ok_or(TensorError::TooLarge(self.shape.clone()))?;
        let mut selected = self.slice(dimension, index..end)?;
        selected.shape.remove(dimension);
        selected.strides.remove(dimension);
        Ok(selected)
    }

    fn permute(&self, order: &[usize]) -> Result<Self, TensorError> {
        let each_once = (0..self.shape.len()).all(|d| order.contains(&d));
        if order.len() != self.shape.len() || !each_once {
            return Err(TensorError::Order { order: order.to_vec(), shape: self.shape.clone() });
        }
        let of = |values: &[usize]| order.iter().map(|&d| values[d]).collect();
        Ok(Self { shape: of(&self.shape), strides: of(&self.strides), offset: self.offset })
    }

    fn transpose(&self, a: usize, b: usize) -> Result<Self, TensorError> {
        self.check_dimension(a)?;
        self.check_dimension(b)?;
        let mut transposed = self.clone();
        transposed.shape.swap(a, b);
        transposed.strides.swap(a, b);
        Ok(transposed)
    }

    fn broadcast(&self, shape: &[usize]) -> Result<Self, TensorError> {
        let refused = || TensorError::Broadcast { shape: self.shape.clone(), to: shape.to_vec() };
        let added = shape.len().checked_sub(self.shape.len()).ok_or_else(refused)?;
        let mut strides = vec![0; shape.len()];
        for (d, (&extent, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match (extent, shape[added + d]) {
                (own, to) if own == to => strides[added + d] = stride,
                (1, _) => {}
                _ => return Err(refused()),
            }
        }
        let broadcast = Self { shape: shape.to_vec(), strides, offset: self.offset };
        broadcast.elements()?;
        Ok(broadcast)
    }

    /// Splits and merges dimensions. Neighbours are merged only where the outer one steps over the inner one's whole extent.
    fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        let packed = Self::packed(shape)?;
        if packed.elements()? != self.elements()? {
            return Err(TensorError::ReshapeLength { shape: self.shape.clone(), to: shape.to_vec() });
        }
        if packed.elements()? == 0 {
            return Ok(Self { offset: self.offset, ..packed });
        }
        let copies =
            || TensorError::ReshapeCopies { shape: self.shape.clone(), strides: self.strides.clone(), to: shape.to_vec() };
        // Runs of dimensions that are one dimension in memory: extent and innermost stride, outermost first.
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).filter(|(extent, _)| **extent > 1) {
            match merged.last_mut() {
                Some((own, step)) if *step == extent * stride => (*own, *step) = (*own * extent, stride),
                _ => merged.push((extent, stride)),
            }
        }
        let mut strides = vec![1; shape.len()];
        let mut inner = merged.into_iter().rev();
        // What is left of a merged dimension, and the stride of the next of its parts.
        let (mut left, mut step) = (1, 1);
        for (d, &extent) in shape.iter().enumerate().rev() {
            if left == 1 && extent > 1 {
                (left, step) = inner.next().ok_or_else(copies)?;
            }
            strides[d] = step;
            if left % extent != 0 {
                return Err(copies());
            }
            left /= extent;
            step *= extent;
        }
        Ok(Self { shape: shape.to_vec(), strides, offset: self.offset })
    }
}

impl AnyTensor {
    fn with(&self, layout: Result<Layout, TensorError>) -> Result<Self> {
        Ok(Self { layout: layout?, ..self.clone() })
    }
}

impl<T: Element> Tensor<T> {
    fn with(&self, layout: Result<Layout, TensorError>) -> Result<Self> {
        Ok(Self::of(AnyTensor { layout: layout?, ..self.as_any().clone() }))
    }
}

macro_rules! views {
    () => {
        /// The positions `range` of one dimension: shape `(A, B, C)` and range `r` of dimension 1 give `(A, r.len(), C)`.
        ///
        /// # Errors
        /// [`TensorError::Dimension`], [`TensorError::Range`].
        pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self> {
            self.with(self.own_layout().slice(dimension, range))
        }

        /// One position of a dimension, which the result does not have: shape `(A, B, C)` and dimension 1 give `(A, C)`.
        ///
        /// # Errors
        /// [`TensorError::Dimension`], [`TensorError::Range`].
        pub fn select(&self, dimension: usize, index: usize) -> Result<Self> {
            self.with(self.own_layout().select(dimension, index))
        }

        /// Two dimensions exchanged: shape `(A, B, C)` and dimensions 0 and 1 give `(B, A, C)`. A kernel takes the result if
        /// its last dimension is still contiguous.
        ///
        /// # Errors
        /// [`TensorError::Dimension`].
        pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
            self.with(self.own_layout().transpose(a, b))
        }

        /// The dimensions in another order: dimension `d` of the result is dimension `order[d]`. Shape `(A, B, C)` and order
        /// `[2, 0, 1]` give `(C, A, B)`.
        ///
        /// # Errors
        /// [`TensorError::Order`].
        pub fn permute(&self, order: &[usize]) -> Result<Self> {
            self.with(self.own_layout().permute(order))
        }

        /// The tensor repeated to a larger shape, by strides of 0: shape `(B, 1, N)` can become `(B, H, N)` or
        /// `(L, B, H, N)`. The result can be read, not written.
        ///
        /// # Errors
        /// [`TensorError::Broadcast`], [`TensorError::TooLarge`].
        pub fn broadcast(&self, shape: &[usize]) -> Result<Self> {
            self.with(self.own_layout().broadcast(shape))
        }

        /// The elements, in row-major order, in another shape: `(B, N, H * D)` can become `(B, N, H, D)`.
        ///
        /// # Errors
        /// [`TensorError::ReshapeLength`], or [`TensorError::ReshapeCopies`] if the strides do not let it.
        pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
            self.with(self.own_layout().reshape(shape))
        }
    };
}

impl AnyTensor {
    views!();

    fn own_layout(&self) -> &Layout {
        &self.layout
    }
}

impl<T: Element> Tensor<T> {
    views!();

    fn own_layout(&self) -> &Layout {
        &self.as_any().layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::error::Error;

    /// Elements 0, 1, 2, ... in this shape.
    fn count(shape: &[usize]) -> Tensor<i32> {
        let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
        Tensor::from_slice(&Device::cpu(), shape, &values).expect("fits")
    }

    fn read(tensor: Result<Tensor<i32>>) -> (Vec<usize>, Vec<i32>) {
        let tensor = tensor.expect("a view");
        (tensor.shape().to_vec(), tensor.to_vec().expect("reads"))
    }

    fn error(tensor: Result<Tensor<i32>>) -> TensorError {
        match tensor.expect_err("refused") {
            Error::Tensor(error) => error,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn slices_and_selections() {
        let x = count(&[2, 3, 4]);
        assert_eq!(read(x.slice(1, 1..3)), (vec![2, 2, 4], vec![4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23]));
        assert_eq!(read(x.select(1, 2)), (vec![2, 4], vec![8, 9, 10, 11, 20, 21, 22, 23]));
        assert_eq!(read(x.select(2, 1)), (vec![2, 3], vec![1, 5, 9, 13, 17, 21]));
        assert_eq!(read(x.slice(1, 3..3)), (vec![2, 0, 4], vec![]));
        assert_eq!(read(x.slice(0, 1..2).and_then(|y| y.slice(2, 2..4))), (vec![1, 3, 2], vec![14, 15, 18, 19, 22, 23]));
        assert_eq!(error(x.slice(1, 2..4)), TensorError::Range { dimension: 1, start: 2, end: 4, shape: vec![2, 3, 4] });
        assert_eq!(error(x.select(0, 2)), TensorError::Range { dimension: 0, start: 2, end: 3, shape: vec![2, 3, 4] });
        assert_eq!(error(x.select(3, 0)), TensorError::Dimension { dimension: 3, shape: vec![2, 3, 4] });
    }

    #[test]
    fn dimensions_in_another_order() {
        let x = count(&[2, 3]);
        assert_eq!(read(x.transpose(0, 1)), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(read(x.transpose(0, 1).and_then(|y| y.transpose(1, 0))), read(Ok(x.clone())));
        let y = count(&[2, 3, 2]);
        assert_eq!(read(y.permute(&[2, 0, 1])), (vec![2, 2, 3], vec![0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]));
        assert_eq!(error(y.permute(&[0, 1, 1])), TensorError::Order { order: vec![0, 1, 1], shape: vec![2, 3, 2] });
        assert_eq!(error(y.permute(&[0, 1])), TensorError::Order { order: vec![0, 1], shape: vec![2, 3, 2] });
    }

    #[test]
    fn a_broadcast_repeats_and_cannot_be_written() {
        let x = count(&[2, 1, 2]);
        let mut y = x.broadcast(&[2, 2, 3, 2]).expect("a view");
        let half = [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3];
        assert_eq!(y.to_vec().expect("reads"), [half, half].concat());
        assert_eq!(y.strides(), [0, 2, 0, 1]);
        assert!(matches!(y.copy_from_slice(&[0; 24]), Err(Error::Tensor(TensorError::OverlapsItself { .. }))));
        assert_eq!(error(x.broadcast(&[2, 3])), TensorError::Broadcast { shape: vec![2, 1, 2], to: vec![2, 3] });
        assert!(matches!(error(x.broadcast(&[3, 1, 2])), TensorError::Broadcast { .. }));
        assert!(matches!(error(x.broadcast(&[usize::MAX, 2, 1, 2])), TensorError::TooLarge(_)));
    }

    #[test]
    fn reshapes_that_need_no_copy() {
        let x = count(&[2, 3, 4]);
        for shape in [&[24][..], &[6, 4], &[2, 12], &[2, 3, 2, 2], &[1, 24, 1], &[4, 6], &[2, 1, 3, 4]] {
            assert_eq!(read(x.reshape(shape)), (shape.to_vec(), (0..24).collect()), "{shape:?}");
        }
        // Columns of a matrix of 6: rows can be split, but not merged with columns.
        let columns = count(&[4, 6]).slice(1, 2..5).expect("a view");
        let expected = columns.to_vec().expect("reads");
        assert_eq!(read(columns.reshape(&[2, 2, 3])), (vec![2, 2, 3], expected.clone()));
        assert_eq!(read(columns.reshape(&[2, 2, 3, 1])), (vec![2, 2, 3, 1], expected));
        assert_eq!(
            error(columns.reshape(&[12])),
            TensorError::ReshapeCopies { shape: vec![4, 3], strides: vec![6, 1], to: vec![12] }
        );
        assert!(matches!(error(x.transpose(0, 2).and_then(|y| y.reshape(&[24]))), TensorError::ReshapeCopies { .. }));
        assert_eq!(error(x.reshape(&[5, 5])), TensorError::ReshapeLength { shape: vec![2, 3, 4], to: vec![5, 5] });
        assert_eq!(read(count(&[0, 3]).reshape(&[7, 0])), (vec![7, 0], vec![]));
        assert_eq!(read(count(&[1]).reshape(&[])), (vec![], vec![0]));
        let repeated = count(&[1, 2]).broadcast(&[3, 2]).expect("a view");
        assert_eq!(read(repeated.reshape(&[3, 2, 1])), (vec![3, 2, 1], vec![0, 1, 0, 1, 0, 1]));
        assert!(matches!(error(repeated.reshape(&[6])), TensorError::ReshapeCopies { .. }));
    }
}
