//! How many elements the masks of a loop keep, for given sizes: exact counts, in time linear in the rows.
//!
//! With blocks of 1 the closed forms of [`super::predicate`] give the kept keys of each row at once; where they are not
//! exact, the predicate is evaluated point by point. A predicate over loaded data cannot be: its elements are counted as kept,
//! and the count says that it is an upper bound.

use std::collections::BTreeMap;

use super::index::Lookups;
use super::predicate::{Boundary, Run, Walk, defined_in, negated};
use crate::ir::{
    AxisKind, BinaryOp, CompareOp, Dim, Elem, IndexOp, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, SizeId, Type, UnaryOp,
    ValueDef, ValueId,
};

/// Values of indices, and positions (or tile numbers) of coordinates.
pub(super) type Point = BTreeMap<ValueId, i64>;

/// A number of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visible {
    /// Elements that the masks keep, over the whole grid.
    pub kept: u64,
    /// Elements there are, over the whole grid.
    pub all: u64,
    /// Whether `kept` is exact; else it is an upper bound.
    pub exact: bool,
}

/// Evaluates what is the same in a whole program, and predicates at single positions.
pub(super) struct Evaluator<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) size: &'a dyn Fn(SizeId) -> i64,
    pub(super) param: &'a dyn Fn(ParamId) -> i64,
}

impl Evaluator<'_> {
    /// The value of a size expression.
    pub(super) fn size(&self, s: &SizeExpr) -> i64 {
        s.eval(|s| Some((self.size)(s))).expect("sizes divide as their declarations say")
    }

    /// The value of an index, or of a coordinate in `point`; `None` if it is loaded.
    pub(super) fn index(&self, v: ValueId, point: &Point) -> Option<i64> {
        if let Some(&known) = point.get(&v) {
            return Some(known);
        }
        match self.kernel.def(v)?.1 {
            Op::IndexConst(c) => Some(*c),
            Op::SizeOf(s) => Some((self.size)(*s)),
            Op::Index(op, a, b) => {
                let (a, b) = (self.index(*a, point)?, self.index(*b, point)?);
                match op {
                    IndexOp::Add => Some(a + b),
                    IndexOp::Sub => Some(a - b),
                    IndexOp::Mul => Some(a * b),
                    IndexOp::Div => floor_div(a, b),
                    IndexOp::Rem => floor_div(a, b).map(|q| a - q * b),
                    IndexOp::Min => Some(a.min(b)),
                    IndexOp::Max => Some(a.max(b)),
                }
            }
            _ => None,
        }
    }

    /// An integer at one position of each coordinate.
    fn integer(&self, v: ValueId, point: &Point) -> Option<i64> {
        match self.kernel.def(v)?.1 {
            Op::Constant(Elem::I32, c) => Some(*c as i64),
            Op::Scalar(p) => Some((self.param)(*p)),
            Op::FromIndex(x) => self.index(*x, point),
            Op::Pos(c) => point.get(c).copied(),
            Op::Full { value, .. } | Op::Transpose(value) => self.integer(*value, point),
            Op::Cast(Elem::I32, x) if self.kernel.tile(*x).elem == Elem::I32 => self.integer(*x, point),
            Op::Unary(UnaryOp::Neg, x) => Some(-self.integer(*x, point)?),
            Op::Unary(UnaryOp::Abs, x) => Some(self.integer(*x, point)?.abs()),
            Op::Binary(op, a, b) => {
                let (a, b) = (self.integer(*a, point)?, self.integer(*b, point)?);
                match op {
                    BinaryOp::Add => Some(a + b),
                    BinaryOp::Sub => Some(a - b),
                    BinaryOp::Mul => Some(a * b),
                    BinaryOp::Div => floor_div(a, b),
                    BinaryOp::Rem => floor_div(a, b).map(|q| a - q * b),
                    BinaryOp::Min => Some(a.min(b)),
                    BinaryOp::Max => Some(a.max(b)),
                    BinaryOp::DivOrZero | BinaryOp::And | BinaryOp::Or => None,
                }
            }
            _ => None,
        }
    }

    /// Whether a predicate has the wanted value at one position of each coordinate; `None` if it depends on data.
    fn holds(&self, v: ValueId, wanted: bool, boundary: Boundary, point: &Point) -> Option<bool> {
        let of = |v: &ValueId, wanted| self.holds(*v, wanted, boundary, point);
        match self.kernel.def(v)?.1 {
            Op::Unary(UnaryOp::Not, x) => of(x, !wanted),
            Op::Full { value, .. } | Op::Transpose(value) => of(value, wanted),
            Op::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (of(a, wanted), of(b, wanted));
                let decisive = (*op == BinaryOp::Or) == wanted;
                if a == Some(decisive) || b == Some(decisive) { Some(decisive) } else { a.and(b) }
            }
            Op::Compare(op, a, b) => {
                let (a, b) = (self.integer(*a, point)?, self.integer(*b, point)?);
                Some(match boundary.of(if wanted { *op } else { negated(*op) }) {
                    CompareOp::Eq => a == b,
                    CompareOp::Ne => a != b,
                    CompareOp::Lt => a < b,
                    CompareOp::Le => a <= b,
                    CompareOp::Gt => a > b,
                    CompareOp::Ge => a >= b,
                })
            }
            _ => None,
        }
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
}

/// Counts the elements of the tiles that the masks directly in the body of `loop_op` keep, all together. `None` if there is no
/// mask, or if its tile is not one of a program axis and the loop's.
pub(super) fn visible(eval: &Evaluator<'_>, loop_op: OpId, boundary: Boundary) -> Option<Visible> {
    let kernel = eval.kernel;
    let Op::For { axis, body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let coordinate = kernel.blocks[body].params[0];
    let inner = defined_in(kernel, body);
    let mut keeps = Vec::new();
    let mut rows = None;
    for &op in &kernel.blocks[body].ops {
        if let Op::Mask { x, keep } = &kernel.ops[op].op {
            let other = row_axis(kernel, &kernel.tile(*x).dims, axis)?;
            if rows.is_some_and(|r| r != other) {
                return None;
            }
            rows = Some(other);
            keeps.push(*keep);
        }
    }
    let rows = rows?;

    let size = |s: &SizeExpr| Some(eval.size(s));
    let walk = Walk { kernel, coordinate, inner: &inner, block: &|_| 1, size: &size, boundary };
    let holds: Vec<_> = keeps.iter().map(|&v| walk.holds(v)).collect();
    let (mut some, mut all) = (Run::all(), Run::all());
    for h in &holds {
        some = some.intersect(&h.somewhere);
        all = all.intersect(&h.everywhere);
    }

    // Grid dimensions that no predicate reads only multiply the count.
    let read: Vec<ValueId> = keeps.iter().flat_map(|&v| leaves(kernel, v)).collect();
    let (m, n) = (eval.size(&kernel.axes[rows].extent), eval.size(&kernel.axes[axis].extent));
    let mut points = vec![Point::new()];
    let (mut factor, mut row) = (1u64, None);
    for (dim, &v) in kernel.grid().iter().zip(program_values(kernel)) {
        match dim {
            ProgramDim::Tiles(a) if *a == rows => row = Some(v),
            ProgramDim::Tiles(a) if read.contains(&v) => spread(&mut points, v, eval.size(&kernel.axes[*a].extent)),
            ProgramDim::Tiles(_) => {}
            ProgramDim::Each(s) if read.contains(&v) => spread(&mut points, v, eval.size(s)),
            ProgramDim::Each(s) => factor *= eval.size(s).max(0) as u64,
        }
    }
    let row = row?;
    let mut total = Visible { kept: 0, all: factor * points.len() as u64 * (m.max(0) * n.max(0)) as u64, exact: true };
    for mut point in points {
        for i in 0..m {
            point.insert(row, i);
            let (kept, exact) = kept_in_row(eval, &keeps, boundary, &some, &all, coordinate, n, &mut point);
            total.kept += factor * kept;
            total.exact &= exact;
        }
    }
    Some(total)
}

#[expect(clippy::too_many_arguments, reason = "one call site; the pieces of one count")]
fn kept_in_row(
    eval: &Evaluator<'_>,
    keeps: &[ValueId],
    boundary: Boundary,
    some: &Run,
    all: &Run,
    coordinate: ValueId,
    n: i64,
    point: &mut Point,
) -> (u64, bool) {
    let clamped = |run: &Run, point: &Point| {
        let size = |s: &SizeExpr| eval.size(s);
        let value = |v: ValueId| eval.index(v, point).expect("predicates with loaded indices have no closed form");
        let at = Lookups { size: &size, value: &value, param: eval.param };
        let lo = run.lo.as_ref().map_or(0, |e| e.eval(at)).clamp(0, n);
        (lo, run.hi.as_ref().map_or(n, |e| e.eval(at)).clamp(lo, n))
    };
    let (lo, hi) = clamped(some, point);
    let (full_lo, full_hi) = clamped(all, point);
    let (full_lo, full_hi) = (full_lo.clamp(lo, hi), full_hi.clamp(lo, hi));
    let mut kept = (full_hi - full_lo).max(0) as u64;
    let mut exact = true;
    for j in (lo..hi).filter(|j| !(full_lo..full_hi).contains(j)) {
        point.insert(coordinate, j);
        let verdicts: Vec<_> = keeps.iter().map(|&v| eval.holds(v, true, boundary, point)).collect();
        let hidden = verdicts.contains(&Some(false));
        exact &= hidden || !verdicts.contains(&None);
        kept += u64::from(!hidden);
    }
    point.remove(&coordinate);
    (kept, exact)
}

/// The program axis of a tile of that axis and the loop's.
fn row_axis(kernel: &Kernel, dims: &[Dim], own: crate::ir::AxisId) -> Option<crate::ir::AxisId> {
    let [Dim::Axis(a), Dim::Axis(b)] = dims else { return None };
    let other = if *a == own { *b } else { *a };
    ((*a == own) != (*b == own) && kernel.axes[other].kind == AxisKind::Program).then_some(other)
}

/// Results of the program op.
pub(super) fn program_values(kernel: &Kernel) -> &[ValueId] {
    match kernel.blocks[kernel.body].ops.first() {
        Some(&op) if matches!(kernel.ops[op].op, Op::Program(_)) => &kernel.ops[op].results,
        _ => &[],
    }
}

/// The values without operands (coordinates, program ids) that `v` is computed from.
pub(super) fn leaves(kernel: &Kernel, v: ValueId) -> Vec<ValueId> {
    let mut out = Vec::new();
    let mut work = vec![v];
    while let Some(v) = work.pop() {
        match (kernel.values[v].def, kernel.ty(v)) {
            (ValueDef::BlockParam(..), _) | (_, Type::Coord(_)) => out.push(v),
            (ValueDef::Result(op, _), _) => {
                let operands = kernel.ops[op].op.operands();
                if operands.is_empty() {
                    out.push(v);
                }
                work.extend(operands);
            }
        }
    }
    out
}

/// Every point with every value of `v` below `count`.
pub(super) fn spread(points: &mut Vec<Point>, v: ValueId, count: i64) {
    let with = |point: &Point, k: i64| {
        let mut point = point.clone();
        point.insert(v, k);
        point
    };
    *points = points.iter().flat_map(|p| (0..count).map(|k| with(p, k)).collect::<Vec<_>>()).collect();
}
