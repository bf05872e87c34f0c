//! How many elements the masks of a loop keep, for given sizes: exact counts, in time that does not grow with the sizes.
//!
//! With blocks of 1 the closed forms of [`super::predicate`] give the kept keys of each row, which `sum` adds up. Where they
//! are not exact, as for `!=`, the predicate is evaluated point by point, unless the points are too many. Then, and where it
//! reads loaded data, all of them are counted as kept, and the count says that it is an upper bound.

use std::collections::BTreeMap;

use super::index::{IndexExpr, Lookups, index_reads};
use super::predicate::{Boundary, Run, Summaries, Walk, defined_in, negated};
use super::sum::{Leaf, band, common_period, sum};
use crate::ir::{
    AxisKind, BinaryOp, CompareOp, Dim, Elem, IndexOp, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, SizeId, Type, UnaryOp,
    ValueDef, ValueId,
};

/// Points at which a predicate is evaluated, at most: what a second allows.
const MOST_POINTS: i128 = 1 << 20;
/// Values of grid dimensions that predicates read, at most.
const MOST_PROGRAMS: usize = 1 << 14;

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

impl<'a> Evaluator<'a> {
    /// What the leaves of expressions stand for that read nothing that is loaded.
    pub(super) fn lookups(&self, size: &'a dyn Fn(&SizeExpr) -> i64, value: &'a dyn Fn(ValueId) -> i64) -> Lookups<'a> {
        Lookups {
            size,
            value,
            param: self.param,
            loaded: &|_| unreachable!("counted without what is loaded"),
            found: &|_, _, _| unreachable!("counted without what is loaded"),
        }
    }

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
                    op => {
                        let (a, b) = (i32::try_from(a).ok()?, i32::try_from(b).ok()?);
                        op.row().integer.map(|meaning| meaning(a, b).into())
                    }
                }
            }
            _ => None,
        }
    }

    /// Whether a predicate has the wanted value at one position of each coordinate; `None` if it depends on data.
    pub(super) fn holds(&self, v: ValueId, wanted: bool, boundary: Boundary, point: &Point) -> Option<bool> {
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

/// Counts the elements of the tiles that the masks directly in the body of `loop_op` keep, all
/// together. `None` if there is no mask, or if its tile is not one of a program axis and the
/// loop's. `around` has the indices of the loops over single positions around it, and how many they
/// are: their dimensions count as those of the grid do.
pub(super) fn visible(eval: &Evaluator<'_>, loop_op: OpId, around: &[(ValueId, i64)], boundary: Boundary) -> Option<Visible> {
    let kernel = eval.kernel;
    let Op::For { axis, body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let coordinate = kernel.blocks[body].params[0];
    let inner = defined_in(kernel, body);
    let mut keeps = Vec::new();
    let mut rows = None;
    for &op in &kernel.blocks[body].ops {
        if let Op::Mask { x, keep, .. } = &kernel.ops[op].op {
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
    let walk = Walk {
        kernel,
        coordinate,
        inner: &inner,
        block: &|_| 1,
        size: &size,
        boundary,
        loaded: false,
        summaries: Summaries::None,
    };
    let holds: Vec<_> = keeps.iter().map(|&v| walk.holds(v)).collect();
    let (mut some, mut all) = (Run::all(), Run::all());
    for h in &holds {
        some = some.intersect(&h.somewhere);
        all = all.intersect(&h.everywhere);
    }

    // Grid dimensions that no predicate reads only multiply the count.
    let read: Vec<ValueId> = keeps.iter().flat_map(|&v| leaves(kernel, v)).collect();
    let (m, n) = (eval.size(&kernel.axes[rows].extent).max(0), eval.size(&kernel.axes[axis].extent).max(0));
    let (mut factor, mut programs, mut row, mut spreads) = (1u64, 1u64, None, Vec::new());
    for (dim, &v) in kernel.grid().iter().zip(program_values(kernel)) {
        let count = match dim {
            ProgramDim::Tiles(a) if *a == rows => {
                row = Some(v);
                continue;
            }
            ProgramDim::Tiles(a) if read.contains(&v) => eval.size(&kernel.axes[*a].extent),
            ProgramDim::Tiles(_) => continue,
            ProgramDim::Each(s) if read.contains(&v) => eval.size(s),
            ProgramDim::Each(s) => {
                factor = factor.saturating_mul(eval.size(s).max(0) as u64);
                continue;
            }
        };
        programs = programs.saturating_mul(count.max(0) as u64);
        spreads.push((v, count));
    }
    for &(v, count) in around {
        let times = if read.contains(&v) { &mut programs } else { &mut factor };
        *times = times.saturating_mul(count.max(0) as u64);
        spreads.extend(read.contains(&v).then_some((v, count)));
    }
    let rows = Rows { eval, keeps: &keeps, boundary, coordinate, row: row?, m, ends: Ends::new(&some, &all, n) };
    let pairs = (m as u64).saturating_mul(n as u64);
    let mut total = Visible { kept: 0, all: factor.saturating_mul(programs).saturating_mul(pairs), exact: true };
    if programs > MOST_PROGRAMS as u64 {
        return Some(Visible { kept: total.all, exact: false, ..total });
    }
    let mut points = vec![Point::new()];
    spreads.into_iter().for_each(|(v, count)| spread(&mut points, v, count));
    let mut most = MOST_POINTS;
    for point in points {
        let (kept, exact) = rows.kept(point, &mut most);
        total.kept = total.kept.saturating_add(factor.saturating_mul(kept));
        total.exact &= exact;
    }
    Some(total)
}

/// Ends of the keys of a row: outside of `lo .. hi` none is kept, inside of `full_lo .. full_hi` all are.
struct Ends {
    lo: IndexExpr,
    full_lo: IndexExpr,
    full_hi: IndexExpr,
    hi: IndexExpr,
}

impl Ends {
    fn new(some: &Run, all: &Run, n: i64) -> Self {
        let (zero, n) = (IndexExpr::from(0), IndexExpr::from(n));
        let clamp = |e: &IndexExpr, lo: &IndexExpr, hi: &IndexExpr| e.max_of(lo).min_of(hi);
        let of = |run: &Run| {
            let lo = run.lo.as_ref().map_or(zero.clone(), |lo| clamp(lo, &zero, &n));
            let hi = run.hi.as_ref().map_or(n.clone(), |hi| clamp(hi, &lo, &n));
            (lo, hi)
        };
        let ((lo, hi), (full_lo, full_hi)) = (of(some), of(all));
        Self { full_lo: clamp(&full_lo, &lo, &hi), full_hi: clamp(&full_hi, &lo, &hi), lo, hi }
    }

    fn all(&self) -> [&IndexExpr; 4] {
        [&self.lo, &self.full_lo, &self.full_hi, &self.hi]
    }
}

/// The rows of a program of which all but the row is known.
struct Rows<'a> {
    eval: &'a Evaluator<'a>,
    keeps: &'a [ValueId],
    boundary: Boundary,
    coordinate: ValueId,
    row: ValueId,
    m: i64,
    ends: Ends,
}

impl Rows<'_> {
    /// Elements that are kept, and whether that is exact. Takes the points at which it evaluates predicates from `most`.
    fn kept(&self, mut point: Point, most: &mut i128) -> (u64, bool) {
        let size = |s: &SizeExpr| self.eval.size(s);
        let period = |start, end| {
            let value = |v: ValueId| self.eval.index(v, &point).expect("predicates with loaded indices have no closed form");
            let at = self.eval.lookups(&size, &value);
            let leaf = |v: ValueId| match () {
                () if v == self.row => Leaf::Moves,
                () if index_reads(self.eval.kernel, v, self.row) || self.eval.index(v, &point).is_none() => Leaf::Unknown,
                () => Leaf::Stays,
            };
            let bands = self.ends.all().map(|e| band(e, &leaf, at, start, end).map(|b| b.period()));
            common_period(bands.into_iter().collect::<Option<Vec<_>>>()?)
        };
        let count = |i: i64| {
            let [lo, full_lo, full_hi, hi] = self.ends_of(&mut point.clone(), i);
            [hi - lo, hi - lo - (full_hi - full_lo).max(0)].map(i128::from)
        };
        let [at_most, open] = sum(0..self.m, &period, &mut { count });
        let whole = |x: i128| u64::try_from(x).unwrap_or(u64::MAX);
        if open == 0 {
            return (whole(at_most), true);
        }
        let work = open.saturating_add(self.m.into());
        if work > *most {
            return (whole(at_most), false);
        }
        *most -= work;
        let (mut kept, mut exact) = (0, true);
        for i in 0..self.m {
            let (of_row, known) = self.kept_in_row(&mut point, i);
            kept += of_row;
            exact &= known;
        }
        (kept, exact)
    }

    fn ends_of(&self, point: &mut Point, i: i64) -> [i64; 4] {
        point.insert(self.row, i);
        let size = |s: &SizeExpr| self.eval.size(s);
        let value = |v: ValueId| self.eval.index(v, point).expect("predicates with loaded indices have no closed form");
        let at = self.eval.lookups(&size, &value);
        self.ends.all().map(|e| e.eval(at))
    }

    fn kept_in_row(&self, point: &mut Point, i: i64) -> (u64, bool) {
        let [lo, full_lo, full_hi, hi] = self.ends_of(point, i);
        let mut kept = (full_hi - full_lo).max(0) as u64;
        let mut exact = true;
        for j in (lo..hi).filter(|j| !(full_lo..full_hi).contains(j)) {
            point.insert(self.coordinate, j);
            let verdicts: Vec<_> = self.keeps.iter().map(|&v| self.eval.holds(v, true, self.boundary, point)).collect();
            let hidden = verdicts.contains(&Some(false));
            exact &= hidden || !verdicts.contains(&None);
            kept += u64::from(!hidden);
        }
        point.remove(&self.coordinate);
        (kept, exact)
    }
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
