//! Elementwise ops and row reductions.

use super::arithmetic::Real;
use super::tile::{Data, Lengths, Operand, Tile, rows_columns, steps, zip, zip_rows};
use crate::ir::{BinaryOp, CompareOp, Dim, Fill, ReduceOp, UnaryOp};

/// A tile with the dimensions of its type.
#[derive(Clone, Copy)]
pub(super) struct Typed<'a, R> {
    pub tile: &'a Tile<R>,
    pub dims: &'a [Dim],
}

impl<R: Real> Typed<'_, R> {
    pub fn operand<'v, T>(&self, values: &'v [T], result: &[Dim]) -> Operand<'v, T> {
        Operand { values, steps: steps(result, self.dims, &self.tile.shape) }
    }
}

/// Dimensions and lengths of a result.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub dims: &'a [Dim],
    pub lengths: &'a [usize],
}

/// A function of one operand.
pub(super) fn unary<R: Real>(op: UnaryOp, x: &Tile<R>) -> Tile<R> {
    let (row, shape) = (op.row(), x.shape.clone());
    match (&x.data, row.integer) {
        (Data::Bool(values), _) => {
            let f = row.truth.expect("verified: an op on truth values");
            Tile::bool(shape, values.iter().map(|&x| f(x)).collect())
        }
        (Data::Int(values), Some(f)) => Tile::int(shape, values.iter().map(|&x| f(x)).collect()),
        _ => {
            let f = R::unary(row.float.expect("verified: an op on floats"));
            Tile::float(shape, x.to_floats().iter().map(|&x| f(x)).collect())
        }
    }
}

/// A function of two operands.
pub(super) fn binary<R: Real>(op: BinaryOp, a: Typed<'_, R>, b: Typed<'_, R>, shape: Shape<'_>) -> Tile<R> {
    let (row, lengths) = (op.row(), Lengths::from_iter(shape.lengths.iter().copied()));
    match (&a.tile.data, &b.tile.data) {
        (Data::Bool(x), Data::Bool(y)) => {
            let f = row.truth.expect("verified: an op on truth values");
            let (x, y) = (a.operand(x, shape.dims), b.operand(y, shape.dims));
            let values = zip(&lengths, x, y, f);
            Tile::bool(lengths, values)
        }
        (Data::Int(x), Data::Int(y)) => {
            let f = row.integer.expect("verified: an op on integers");
            let (x, y) = (a.operand(x, shape.dims), b.operand(y, shape.dims));
            let values = zip(&lengths, x, y, f);
            Tile::int(lengths, values)
        }
        _ => {
            let f = row.float.expect("verified: an op on floats");
            let (x, y) = (a.tile.to_floats(), b.tile.to_floats());
            let (x, y) = (a.operand(&x, shape.dims), b.operand(&y, shape.dims));
            let values = zip_rows(&lengths, x, y, R::binary(f));
            Tile::float(lengths, values)
        }
    }
}

/// A comparison.
pub(super) fn compare<R: Real>(op: CompareOp, a: Typed<'_, R>, b: Typed<'_, R>, shape: Shape<'_>) -> Tile<R> {
    fn all<T: Copy + PartialOrd>(op: CompareOp, lengths: &[usize], x: Operand<'_, T>, y: Operand<'_, T>) -> Vec<bool> {
        match op {
            CompareOp::Eq => zip(lengths, x, y, |x, y| x == y),
            CompareOp::Ne => zip(lengths, x, y, |x, y| x != y),
            CompareOp::Lt => zip(lengths, x, y, |x, y| x < y),
            CompareOp::Le => zip(lengths, x, y, |x, y| x <= y),
            CompareOp::Gt => zip(lengths, x, y, |x, y| x > y),
            CompareOp::Ge => zip(lengths, x, y, |x, y| x >= y),
        }
    }
    let values = match (&a.tile.data, &b.tile.data) {
        (Data::Bool(x), Data::Bool(y)) => all(op, shape.lengths, a.operand(x, shape.dims), b.operand(y, shape.dims)),
        (Data::Int(x), Data::Int(y)) => all(op, shape.lengths, a.operand(x, shape.dims), b.operand(y, shape.dims)),
        _ => {
            let (x, y) = (a.tile.to_floats(), b.tile.to_floats());
            all(op, shape.lengths, a.operand(&x, shape.dims), b.operand(&y, shape.dims))
        }
    };
    Tile::bool(shape.lengths.iter().copied(), values)
}

/// `if cond { on_true } else { on_false }`.
pub(super) fn select<R: Real>(cond: Typed<'_, R>, on_true: Typed<'_, R>, on_false: Typed<'_, R>, shape: Shape<'_>) -> Tile<R> {
    fn all<T: Copy>(lengths: &[usize], cond: &[bool], x: Operand<'_, T>, y: Operand<'_, T>) -> Vec<T> {
        let pairs = zip(lengths, x, y, |x, y| (x, y));
        cond.iter().zip(pairs).map(|(&c, (x, y))| if c { x } else { y }).collect()
    }
    let keep = cond.operand(cond.tile.bools(), shape.dims).expanded(shape.lengths);
    let lengths = Lengths::from_iter(shape.lengths.iter().copied());
    match (&on_true.tile.data, &on_false.tile.data) {
        (Data::Bool(x), Data::Bool(y)) => {
            let values = all(&lengths, &keep, on_true.operand(x, shape.dims), on_false.operand(y, shape.dims));
            Tile::bool(lengths, values)
        }
        (Data::Int(x), Data::Int(y)) => {
            let values = all(&lengths, &keep, on_true.operand(x, shape.dims), on_false.operand(y, shape.dims));
            Tile::int(lengths, values)
        }
        _ => {
            let (x, y) = (on_true.tile.to_floats(), on_false.tile.to_floats());
            let values = all(&lengths, &keep, on_true.operand(&x, shape.dims), on_false.operand(&y, shape.dims));
            Tile::float(lengths, values)
        }
    }
}

/// `x` where `keep` holds, the fill elsewhere.
pub(super) fn mask<R: Real>(x: Typed<'_, R>, keep: Typed<'_, R>, fill: Fill) -> Tile<R> {
    let (values, fill) = (x.tile.to_floats(), R::from_f64(fill.value()));
    let (a, b) = (x.operand(&values, x.dims), keep.operand(keep.tile.bools(), x.dims));
    Tile::float(x.tile.shape.clone(), zip(&x.tile.shape, a, b, |x, keep| if keep { x } else { fill }))
}

/// A reduction of each row of a matrix.
pub(super) fn reduce<R: Real>(op: ReduceOp, x: &Tile<R>) -> Tile<R> {
    let (rows, columns) = rows_columns(&x.shape);
    let values = x.to_floats();
    let row = |r: usize| &values[r * columns..(r + 1) * columns];
    let reduced = match op {
        ReduceOp::Max => (0..rows).map(|r| row(r).iter().fold(R::NEG_INFINITY, |m, &x| m.max(x))).collect(),
        ReduceOp::Sum => (0..rows).map(|r| sum(row(r))).collect(),
    };
    Tile::float([rows], reduced)
}

/// The sum in eight interleaved parts: faster, and closer to the exact sum, than one after the other.
fn sum<R: Real>(values: &[R]) -> R {
    let mut parts = [R::ZERO; 8];
    let (whole, rest) = values.as_chunks::<8>();
    for chunk in whole {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = *part + x;
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = *part + x;
    }
    parts.into_iter().fold(R::ZERO, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(values: &[f32]) -> Tile<f32> {
        Tile::float(vec![values.len()], values.to_vec())
    }

    fn apply(op: BinaryOp, a: &Tile<f32>, b: &Tile<f32>) -> Tile<f32> {
        let dims = [Dim::Axis(crate::ir::AxisId(0))];
        let typed = |tile| Typed { tile, dims: &dims };
        binary(op, typed(a), typed(b), Shape { dims: &dims, lengths: &a.shape })
    }

    #[test]
    fn floor_division() {
        for (a, b, quotient, remainder) in
            [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, 3, 2, 0), (5, 0, 0, 5), (-5, 0, 0, -5)]
        {
            let [a, b] = [a, b].map(|x| Tile::int(vec![1], vec![x]));
            let results = [BinaryOp::Div, BinaryOp::Rem].map(|op| apply(op, &a, &b).ints()[0]);
            assert_eq!(results, [quotient, remainder], "{a:?} by {b:?}");
        }
    }

    #[test]
    fn named_operations_for_rows_without_a_visible_key() {
        let x = unary(UnaryOp::VisibleOrZero, &vector(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -3.0]));
        assert_eq!(&x.floats()[..2], [0.0, f32::INFINITY]);
        assert!(x.floats()[2].is_nan() && x.floats()[3] == -3.0);
        let q = apply(BinaryOp::DivOrZero, &vector(&[0.0, 1.0, 0.0, f32::NAN]), &vector(&[0.0, 0.0, 2.0, 0.0]));
        assert_eq!(&q.floats()[..3], [0.0, f32::INFINITY, 0.0]);
        assert!(q.floats()[3].is_nan());
    }

    #[test]
    fn a_row_maximum_passes_over_nan_and_a_sum_does_not() {
        let x = Tile::float(vec![2, 3], vec![1.0, f32::NAN, 2.0, f32::NAN, f32::NAN, f32::NAN]);
        assert_eq!(reduce(ReduceOp::Max, &x).floats(), [2.0, f32::NEG_INFINITY]);
        assert!(reduce(ReduceOp::Sum, &x).floats().iter().all(|x| x.is_nan()));
        let nothing = Tile::<f32>::float(vec![2, 0], vec![]);
        assert_eq!(reduce(ReduceOp::Max, &nothing).floats(), [f32::NEG_INFINITY; 2]);
        assert_eq!(reduce(ReduceOp::Sum, &nothing).floats(), [0.0; 2]);
        let long = Tile::<f32>::float(vec![1, 37], (1..=37u8).map(f32::from).collect());
        assert_eq!(reduce(ReduceOp::Sum, &long).floats(), [703.0]);
    }

    #[test]
    fn integers_meet_floats_as_floats() {
        let sum = apply(BinaryOp::Add, &Tile::int(vec![2], vec![1, 2]), &vector(&[0.5, 0.25]));
        assert_eq!(sum.floats(), [1.5, 2.25]);
    }
}
