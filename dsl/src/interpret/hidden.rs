//! Elements that masks hide: which of a result are, and what reductions and contractions make of
//! them.

use std::rc::Rc;

use super::arithmetic::Real;
use super::elementwise::{Shape, Typed};
use super::tile::{Tile, rows_columns, zip};
use crate::ir::ReduceOp;

/// What a hidden element is to a reduction or a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hidden {
    /// Nothing.
    #[default]
    Absent,
    /// NaN where it holds NaN, or meets what is not finite; else nothing. The other result that is
    /// right.
    Met,
    /// As any other: what code makes of whole tiles that has no masks but those of the kernel. Not
    /// the meaning of a kernel, but of one that was prepared for it.
    Seen,
}

/// Which elements of a tile are hidden, in the order of its elements; `None` if none is.
pub(super) type HiddenElements = Option<Rc<Vec<bool>>>;

/// Those that are hidden in one of the operands, which are repeated to the shape of the result.
pub(super) fn joined<R: Real>(operands: &[Typed<'_, R>], shape: Shape<'_>) -> HiddenElements {
    let mut found: HiddenElements = None;
    for operand in operands {
        let Some(hidden) = &operand.tile.hidden else { continue };
        let own = match operand.dims == shape.dims {
            true => hidden.clone(),
            false => Rc::new(operand.operand(hidden, shape.dims).expanded(shape.lengths)),
        };
        found = Some(match found {
            None => own,
            Some(others) if Rc::ptr_eq(&others, &own) => own,
            Some(others) => Rc::new(others.iter().zip(own.iter()).map(|(a, b)| *a || *b).collect()),
        });
    }
    found
}

/// Those of `if cond { on_true } else { on_false }`.
pub(super) fn selected<R: Real>(
    cond: Typed<'_, R>,
    on_true: Typed<'_, R>,
    on_false: Typed<'_, R>,
    shape: Shape<'_>,
) -> HiddenElements {
    if [cond, on_true, on_false].iter().all(|operand| operand.tile.hidden.is_none()) {
        return None;
    }
    let count = shape.lengths.iter().product();
    let of = |operand: Typed<'_, R>| joined(&[operand], shape).unwrap_or_else(|| Rc::new(vec![false; count]));
    let taken = cond.operand(cond.tile.bools(), shape.dims).expanded(shape.lengths);
    let (cond, on_true, on_false) = (of(cond), of(on_true), of(on_false));
    let hidden = (0..count).map(|at| cond[at] || if taken[at] { on_true[at] } else { on_false[at] });
    Some(Rc::new(hidden.collect()))
}

/// Those of a mask: what was hidden, and where it does not hold.
pub(super) fn masked<R: Real>(x: Typed<'_, R>, keep: Typed<'_, R>) -> HiddenElements {
    let shape = Shape { dims: x.dims, lengths: &x.tile.shape };
    let holds = keep.operand(keep.tile.bools(), x.dims);
    let own: Vec<bool> = zip(&x.tile.shape, holds, holds, |keep, _| !keep);
    match joined(&[x, keep], shape) {
        None => Some(Rc::new(own)),
        Some(before) => Some(Rc::new(before.iter().zip(own).map(|(&before, own)| before || own).collect())),
    }
}

/// A reduction of each row of a matrix, and whether a hidden element held NaN that a sum would
/// meet.
pub(super) fn reduce<R: Real>(op: ReduceOp, x: &Tile<R>, rule: Hidden) -> (Tile<R>, bool) {
    let Some(hidden) = &x.hidden else { return (super::elementwise::reduce(op, x), false) };
    let neutral = R::from_f64(crate::ir::Fill::neutral(op).value());
    let (rows, columns) = rows_columns(&x.shape);
    let mut values = x.to_floats().into_owned();
    let mut met = vec![false; rows];
    for (at, value) in values.iter_mut().enumerate().filter(|(at, _)| hidden[*at]) {
        met[at / columns] |= op == ReduceOp::Sum && value.to_f64().is_nan();
        *value = neutral;
    }
    let mut result = super::elementwise::reduce(op, &Tile::float(x.shape.clone(), values));
    let any = met.contains(&true);
    if let (Hidden::Met, super::tile::Data::Float(values)) = (rule, &mut result.data) {
        values.iter_mut().zip(met).filter(|(_, met)| *met).for_each(|(value, _)| *value = R::from_f64(f64::NAN));
    }
    (result, any)
}

/// `c += a b` for matrices, and whether a hidden element met what is not finite.
pub(super) fn matrix_product<R: Real>(a: &Tile<R>, b: &Tile<R>, c: &mut [R], rule: Hidden) -> bool {
    let ((m, k), (_, n)) = (rows_columns(&a.shape), rows_columns(&b.shape));
    if a.hidden.is_none() && b.hidden.is_none() {
        R::matrix_product(m, k, n, a.floats(), b.floats(), c);
        return false;
    }
    // What is hidden or not finite is taken out of the product, and met one by one.
    let finite = |tile: &Tile<R>| -> (Vec<R>, Vec<usize>) {
        let mut odd = Vec::new();
        let of = |(at, &x): (usize, &R)| {
            if !x.to_f64().is_finite() {
                odd.push(at);
            }
            if tile.is_hidden(at) || !x.to_f64().is_finite() { R::ZERO } else { x }
        };
        let values = tile.floats().iter().enumerate().map(of).collect();
        (values, odd)
    };
    let ((left, odd_a), (right, odd_b)) = (finite(a), finite(b));
    R::matrix_product(m, k, n, &left, &right, c);
    let mut met = false;
    let mut meet = |row: usize, inner: usize, column: usize, c: &mut [R]| {
        let (at_a, at_b, to) = (row * k + inner, inner * n + column, row * n + column);
        let (x, y) = (a.floats()[at_a], b.floats()[at_b]);
        let meets = |hidden: R, other: R| hidden.to_f64().is_nan() || !other.to_f64().is_finite();
        if !a.is_hidden(at_a) && !b.is_hidden(at_b) {
            c[to] = c[to] + x * y;
        } else if (a.is_hidden(at_a) && meets(x, y)) || (b.is_hidden(at_b) && meets(y, x)) {
            met = true;
            if rule == Hidden::Met {
                c[to] = R::from_f64(f64::NAN);
            }
        }
    };
    for at in odd_a {
        (0..n).for_each(|column| meet(at / k, at % k, column, c));
    }
    for at in odd_b {
        // Pairs of two that are not finite were met above.
        let rows = (0..m).filter(|row| a.floats()[row * k + at / n].to_f64().is_finite());
        rows.for_each(|row| meet(row, at / n, at % n, c));
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{AxisId, Dim};

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    fn tile(shape: &[usize], values: &[f64], hidden: &[usize]) -> Tile<f64> {
        let hides = (!hidden.is_empty()).then(|| Rc::new((0..values.len()).map(|at| hidden.contains(&at)).collect()));
        Tile::float(shape.iter().copied(), values.to_vec()).hiding(hides)
    }

    #[test]
    fn reductions_do_not_see_what_is_hidden() {
        let x = tile(&[2, 3], &[1.0, 9.0, 2.0, NAN, 7.0, 8.0], &[1, 3]);
        assert_eq!(reduce(ReduceOp::Max, &x, Hidden::Absent).0.floats(), [2.0, 8.0]);
        assert_eq!(reduce(ReduceOp::Sum, &x, Hidden::Absent), (tile(&[2], &[3.0, 15.0], &[]), true));
        let met = reduce(ReduceOp::Sum, &x, Hidden::Met).0;
        assert!(met.floats()[0] == 3.0 && met.floats()[1].is_nan());
        let nothing = tile(&[1, 2], &[5.0, 6.0], &[0, 1]);
        assert_eq!(reduce(ReduceOp::Max, &nothing, Hidden::Absent).0.floats(), [f64::NEG_INFINITY]);
        assert_eq!(reduce(ReduceOp::Sum, &nothing, Hidden::Met), (tile(&[1], &[0.0], &[]), false));
    }

    #[test]
    fn contractions_do_not_see_what_is_hidden() {
        let product = |a: &Tile<f64>, b: &Tile<f64>, rule| {
            let mut c = vec![0.0; a.shape[0] * b.shape[1]];
            let met = matrix_product(a, b, &mut c, rule);
            (c, met)
        };
        // A hidden 0 and a hidden 5 meet infinity and a number, and what is seen meets infinity.
        let (a, b) = (tile(&[2, 2], &[0.0, 1.0, 5.0, 1.0], &[0, 2]), tile(&[2, 2], &[INF, 2.0, 3.0, INF], &[]));
        assert_eq!(product(&a, &b, Hidden::Absent), (vec![3.0, INF, 3.0, INF], true));
        let (met, _) = product(&a, &b, Hidden::Met);
        assert!(met[0].is_nan() && met[2].is_nan() && met[1] == INF && met[3] == INF);
        // A hidden -inf meets numbers alone.
        let (a, b) = (tile(&[1, 2], &[-INF, 4.0], &[0]), tile(&[2, 1], &[0.0, 2.0], &[]));
        assert_eq!(product(&a, &b, Hidden::Met), (vec![8.0], false));
        // Both sides hide, and NaN meets NaN once.
        let (a, b) = (tile(&[1, 2], &[NAN, 4.0], &[0]), tile(&[2, 1], &[NAN, 2.0], &[1]));
        assert_eq!(product(&a, &b, Hidden::Absent), (vec![0.0], true));
        let seen = product(&tile(&[1, 1], &[NAN], &[]), &tile(&[1, 1], &[NAN], &[]), Hidden::Absent);
        assert!(seen.0[0].is_nan());
    }

    #[test]
    fn an_operand_that_hides_a_row_hides_it_in_the_result() {
        let (i, j) = (Dim::Axis(AxisId(0)), Dim::Axis(AxisId(1)));
        let (dims, lengths) = ([i.clone(), j], [2, 2]);
        let row = tile(&[2], &[1.0, 2.0], &[1]);
        let matrix = tile(&[2, 2], &[0.0; 4], &[0]);
        let shape = Shape { dims: &dims, lengths: &lengths };
        let row_dims = [i];
        let operands = [Typed { tile: &row, dims: &row_dims }, Typed { tile: &matrix, dims: &dims }];
        assert_eq!(joined(&operands, shape).expect("some are").as_slice(), [true, false, true, true]);
        assert_eq!(joined(&operands[..0], shape), None);
    }
}
