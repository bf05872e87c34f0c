//! Tiles in memory of the host: dense, row-major, rank 0 to 2.

use std::rc::Rc;

use arrayvec::ArrayVec;

use super::arithmetic::Real;
use crate::ir::{Dim, RowOperand, map_row};

/// Lengths of a tile, as many as its rank.
pub(super) type Lengths = ArrayVec<usize, 2>;

/// Elements of a tile.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Data<R> {
    Float(Vec<R>),
    Int(Vec<i32>),
    Bool(Vec<bool>),
}

/// A tile: its lengths and its elements in row-major order.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tile<R> {
    pub shape: Lengths,
    pub data: Data<R>,
    /// Which elements are hidden, in the order of the elements; `None` if none is.
    pub hidden: Option<Rc<Vec<bool>>>,
}

/// Rows and columns of a tile of this shape; a vector is one row.
pub(super) fn rows_columns(shape: &[usize]) -> (usize, usize) {
    match *shape {
        [] => (1, 1),
        [n] => (1, n),
        [rows, columns] => (rows, columns),
        _ => unreachable!("verified: tiles have rank 0 to 2"),
    }
}

impl<R: Real> Tile<R> {
    pub fn float(shape: impl IntoIterator<Item = usize>, values: Vec<R>) -> Self {
        Self { shape: shape.into_iter().collect(), data: Data::Float(values), hidden: None }
    }

    pub fn int(shape: impl IntoIterator<Item = usize>, values: Vec<i32>) -> Self {
        Self { shape: shape.into_iter().collect(), data: Data::Int(values), hidden: None }
    }

    pub fn bool(shape: impl IntoIterator<Item = usize>, values: Vec<bool>) -> Self {
        Self { shape: shape.into_iter().collect(), data: Data::Bool(values), hidden: None }
    }

    /// The elements of a float tile.
    pub fn floats(&self) -> &[R] {
        match &self.data {
            Data::Float(values) => values,
            _ => panic!("verified: a float tile"),
        }
    }

    /// The elements of an integer tile.
    pub fn ints(&self) -> &[i32] {
        match &self.data {
            Data::Int(values) => values,
            _ => panic!("verified: an integer tile"),
        }
    }

    /// The elements of a bool tile.
    pub fn bools(&self) -> &[bool] {
        match &self.data {
            Data::Bool(values) => values,
            _ => panic!("verified: a bool tile"),
        }
    }

    /// The elements as floats: integers are converted.
    pub fn to_floats(&self) -> std::borrow::Cow<'_, [R]> {
        match &self.data {
            Data::Float(values) => values.into(),
            Data::Int(values) => values.iter().map(|&x| R::from_f64(f64::from(x))).collect(),
            Data::Bool(_) => panic!("verified: truth values are no numbers"),
        }
    }

    /// The transposed matrix.
    pub fn transposed(&self) -> Self {
        let (rows, columns) = rows_columns(&self.shape);
        let shape = [columns, rows];
        let tile = match &self.data {
            Data::Float(v) => Self::float(shape, transpose(rows, columns, v)),
            Data::Int(v) => Self::int(shape, transpose(rows, columns, v)),
            Data::Bool(v) => Self::bool(shape, transpose(rows, columns, v)),
        };
        tile.hiding(self.hidden.as_ref().map(|hidden| Rc::new(transpose(rows, columns, hidden))))
    }

    /// The same elements, of which these are hidden.
    pub fn hiding(self, hidden: Option<Rc<Vec<bool>>>) -> Self {
        Self { hidden, ..self }
    }

    /// Whether an element is hidden.
    pub fn is_hidden(&self, at: usize) -> bool {
        self.hidden.as_ref().is_some_and(|hidden| hidden[at])
    }
}

fn transpose<T: Copy>(rows: usize, columns: usize, values: &[T]) -> Vec<T> {
    // In strips of rows, so that what is read and written stays in the cache.
    const STRIP: usize = 16;
    let mut out = values.to_vec();
    for strip in (0..rows).step_by(STRIP) {
        for column in 0..columns {
            for row in strip..rows.min(strip + STRIP) {
                out[column * rows + row] = values[row * columns + column];
            }
        }
    }
    out
}

/// How an operand is read as if it had the shape of the result: the step in its elements per row and per column of the
/// result, 0 where it is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Steps {
    pub row: usize,
    pub column: usize,
}

/// Steps of an operand with dimensions `operand` and lengths `shape` in a result with dimensions `result`, of which the
/// operand's are a subsequence.
pub(super) fn steps(result: &[Dim], operand: &[Dim], shape: &[usize]) -> Steps {
    let mut by_dim = Lengths::from_iter(result.iter().map(|_| 0));
    let mut from = 0;
    for (k, dim) in operand.iter().enumerate() {
        let at = from + result[from..].iter().position(|d| d == dim).expect("verified: operands broadcast");
        by_dim[at] = shape[k + 1..].iter().product();
        from = at + 1;
    }
    match *by_dim.as_slice() {
        [] => Steps { row: 0, column: 0 },
        [column] => Steps { row: 0, column },
        [row, column] => Steps { row, column },
        _ => unreachable!("verified: tiles have rank 0 to 2"),
    }
}

/// One operand of a broadcast: its elements and steps.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a, T> {
    pub values: &'a [T],
    pub steps: Steps,
}

impl<'a, T: Copy> Operand<'a, T> {
    /// The elements of a row of the result, or the one that is repeated along it.
    fn row(&self, row: usize, columns: usize) -> RowOperand<'a, T> {
        let start = row * self.steps.row;
        match self.steps.column {
            0 => Err(self.values[start]),
            _ => Ok(&self.values[start..start + columns]),
        }
    }

    /// The elements repeated to the shape of the result.
    pub fn expanded(&self, shape: &[usize]) -> Vec<T> {
        zip(shape, *self, *self, |a, _| a)
    }
}

/// `f` of the elements of two operands, for every element of a result of this shape.
pub(super) fn zip<A: Copy, B: Copy, O>(shape: &[usize], a: Operand<'_, A>, b: Operand<'_, B>, f: impl Fn(A, B) -> O) -> Vec<O> {
    zip_rows(shape, a, b, |a, b, columns, out| map_row(a, b, columns, out, &f))
}

/// What `f` appends for each row of a result of this shape.
pub(super) fn zip_rows<A: Copy, B: Copy, O>(
    shape: &[usize],
    a: Operand<'_, A>,
    b: Operand<'_, B>,
    f: impl Fn(RowOperand<'_, A>, RowOperand<'_, B>, usize, &mut Vec<O>),
) -> Vec<O> {
    let (rows, columns) = rows_columns(shape);
    let mut out = Vec::with_capacity(rows * columns);
    if columns == 0 {
        return out;
    }
    for row in 0..rows {
        f(a.row(row, columns), b.row(row, columns), columns, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::AxisId;

    #[test]
    fn vectors_repeat_along_the_axis_they_lack() {
        let (i, j) = (Dim::Axis(AxisId(0)), Dim::Axis(AxisId(1)));
        let matrix = [i.clone(), j.clone()];
        assert_eq!(steps(&matrix, &matrix, &[2, 3]), Steps { row: 3, column: 1 });
        assert_eq!(steps(&matrix, std::slice::from_ref(&i), &[2]), Steps { row: 1, column: 0 });
        assert_eq!(steps(&matrix, std::slice::from_ref(&j), &[3]), Steps { row: 0, column: 1 });
        assert_eq!(steps(&matrix, &[], &[]), Steps { row: 0, column: 0 });
        let rows = Operand { values: &[10, 20], steps: Steps { row: 1, column: 0 } };
        let columns = Operand { values: &[1, 2, 3], steps: Steps { row: 0, column: 1 } };
        assert_eq!(zip(&[2, 3], rows, columns, |a, b| a + b), [11, 12, 13, 21, 22, 23]);
        assert_eq!(rows.expanded(&[2, 3]), [10, 10, 10, 20, 20, 20]);
        assert!(zip(&[2, 0], rows, columns, |a, b| a + b).is_empty());
    }

    #[test]
    fn transposition_reaches_every_element() {
        for (rows, columns) in [(1, 5), (17, 3), (40, 33), (0, 4), (4, 0)] {
            let values: Vec<i32> = (0..rows as i32 * columns as i32).collect();
            let tile = Tile::<f32>::int(vec![rows, columns], values.clone());
            let t = tile.transposed();
            for r in 0..rows {
                for c in 0..columns {
                    assert_eq!(t.ints()[c * rows + r], values[r * columns + c]);
                }
            }
            assert_eq!(t.transposed(), tile);
        }
    }
}
