//! What depends on how far apart two positions are, computed once by a launch ahead.
//!
//! A bias such as that of T5 is a number of a table, at an index that is computed of
//! `pos(i) - pos(j)`, a logarithm among its steps. A kernel of attention computes it for each score,
//! `M * N` times; there are `M + N - 1` differences. Here a launch ahead computes the value for each
//! difference, and the kernel reads it:
//!
//! ```text
//! s + load(table, [h, bucket(pos(i) - pos(j))])
//! s + load(table_by_difference, [h, pos(i) - pos(j) + N + 512])
//! ```
//!
//! Such a value is made of differences of the same two positions, of numbers that are the same in a
//! whole program, and of elements of tensors at such places. Predicates of masks stay as they are,
//! for tiles to be skipped by them. No value changes: the launch ahead computes what the text says.
//!
//! The table has places for the positions that lanes beyond the extents have, too, so that the
//! kernel reads it without holding indices against its ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flashtile_dsl::analysis::positions::Sum;
use flashtile_dsl::ir::{
    At, AxisKind, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, TensorDecl, Type,
    UnaryOp, ValueDef, ValueId,
};

use super::ahead::by_launch;
use super::staged::{NotStaged, Staged};
use crate::instance::Instance;
use crate::legality::MOST_BLOCK;
use crate::rewrite::edit;

/// Steps of a value, as [`count`] counts them, from which on a launch ahead pays: fewer than those
/// of a read at a difference leave nothing to gain.
const LEAST_STEPS: u32 = 3;

const NOTHING: &str = "no value takes several steps from the difference of two positions, and depends on nothing else of a tile";

/// A value that depends on the difference of two positions.
struct Found {
    value: ValueId,
    /// What reads it as a step of another one, or of the predicate of a mask: it goes on to compute
    /// it.
    steps: Vec<OpId>,
    /// The coordinates of their tiles, and the ids of programs that it depends on.
    of: Of,
    /// Name of the tensor of its numbers.
    name: String,
}

/// What a value depends on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Of {
    /// The coordinates, in their order, of two tiles, of whose positions it depends on the difference.
    pair: Option<(ValueId, ValueId)>,
    /// Ids of dimensions of the grid with a program for each number, and how many these are.
    programs: BTreeMap<ValueId, SizeExpr>,
}

impl Of {
    /// What depends on both; `None` if they have differences of other positions.
    fn and(mut self, other: Self) -> Option<Self> {
        match (self.pair, other.pair) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => self.pair = a.or(b),
        }
        self.programs.extend(other.programs);
        Some(self)
    }
}

/// Why nothing of a kernel can be computed for each difference of positions; `None` if something
/// can.
pub fn why_not_differences(kernel: &Kernel) -> Option<String> {
    found(kernel).is_empty().then(|| NOTHING.into())
}

/// Computes what depends on differences of positions ahead of a kernel.
///
/// # Errors
/// What [`why_not_differences`] says.
pub fn by_difference(kernel: &Kernel) -> Result<Staged, NotStaged> {
    let all = found(kernel);
    if all.is_empty() {
        return Err(NOTHING.to_owned().into());
    }
    let groups = by_launch(&all, |one| &one.of);
    let ahead = groups
        .iter()
        .map(|(suffix, group)| of_each_difference(kernel, group, format!("{}_differences{suffix}", kernel.name)))
        .collect();
    let mut main = kernel.clone();
    for one in &all {
        read(&mut main, kernel, one);
    }
    let between = all.iter().map(|one| one.name.clone()).collect();
    Staged::new(ahead, edit::finished(main), Vec::new(), between)
}

/// The instance that is left if what depends on differences is computed ahead, if anything is. None
/// for a kernel that came out wrong, too: generating code under a schedule that asks for it says so.
pub(crate) fn with_differences(instance: &Instance) -> Option<Instance> {
    Some(by_difference(&instance.kernel).ok()?.main_of(instance))
}

/// The values: the last ones of their steps, which something else reads.
fn found(kernel: &Kernel) -> Vec<Found> {
    let mut follow = Follow { kernel, known: HashMap::new() };
    let mut out: Vec<Found> = Vec::new();
    for (_, op) in kernel.walk() {
        let [value] = kernel.ops[op].results[..] else { continue };
        let Some(of) = follow.difference(value) else { continue };
        let users = edit::users(kernel, value);
        let mut is_step = |user: &OpId| kernel.ops[*user].results.iter().any(|&v| follow.difference(v).is_some());
        let (steps, others): (Vec<OpId>, Vec<OpId>) = users.into_iter().partition(|user| is_step(user));
        if others.is_empty() || !others.iter().all(|&user| may_read(kernel, user, value)) {
            continue;
        }
        let mut seen = BTreeSet::new();
        if count(kernel, value, &mut seen) < LEAST_STEPS {
            continue;
        }
        let wanted =
            format!("{}_by_difference", kernel.values[value].name.as_deref().unwrap_or_else(|| of_tensor(kernel, value)));
        let name = edit::free_name(kernel, &wanted, out.iter().map(|one| one.name.as_str()));
        out.push(Found { value, steps, of, name });
    }
    out
}

/// What the tensor of a value is called after that has no name: after the one that it reads.
fn of_tensor(kernel: &Kernel, value: ValueId) -> &str {
    match kernel.def(value) {
        Some((_, Op::Gather { tensor, .. })) => &kernel.params[*tensor].name,
        _ => "value",
    }
}

/// Whether an op may read a value from memory. Comparisons may not: masks are known by their sides.
fn may_read(kernel: &Kernel, user: OpId, value: ValueId) -> bool {
    match (&kernel.ops[user].op, kernel.tile(value).elem) {
        (_, Elem::Bool) | (Op::Compare(..), _) => false,
        (Op::Gather { .. } | Op::Scatter { .. }, Elem::I32) => true,
        (_, Elem::I32) => false,
        _ => true,
    }
}

/// How many steps lead from differences to a value, each counted once: about instructions.
fn count(kernel: &Kernel, value: ValueId, seen: &mut BTreeSet<ValueId>) -> u32 {
    if kernel.tile(value).rank() == 0 || !seen.insert(value) || Difference::of(kernel, value).is_some() {
        return 0;
    }
    let (_, op) = kernel.def(value).expect("it is computed");
    let own = match op {
        // The address, and the ends of the tensor.
        Op::Gather { .. } => 3,
        Op::Unary(UnaryOp::Neg | UnaryOp::Abs, _) => 1,
        Op::Unary(..) | Op::Binary(BinaryOp::Div | BinaryOp::Rem, ..) => 4,
        _ => 1,
    };
    let operands = op.operands().into_iter().filter(|v| matches!(kernel.ty(*v), Type::Tile(_)));
    own + operands.map(|v| count(kernel, v, seen)).sum::<u32>()
}

/// What values depend on.
struct Follow<'k> {
    kernel: &'k Kernel,
    known: HashMap<ValueId, Option<Of>>,
}

impl Follow<'_> {
    /// What a tile of two axes depends on, if it is the difference of two positions and what is the
    /// same in a program.
    fn difference(&mut self, value: ValueId) -> Option<Of> {
        let Type::Tile(tile) = self.kernel.ty(value) else { return None };
        let [Dim::Axis(_), Dim::Axis(_)] = tile.dims[..] else { return None };
        self.of(value).filter(|of| of.pair.is_some())
    }

    /// What a value depends on; `None` if on something else.
    fn of(&mut self, value: ValueId) -> Option<Of> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        let made = self.look(value);
        self.known.insert(value, made.clone());
        made
    }

    fn look(&mut self, value: ValueId) -> Option<Of> {
        let kernel = self.kernel;
        let ValueDef::Result(op, number) = kernel.values[value].def else { return None };
        if let Some(sum) = Difference::of_step(kernel, value) {
            let others = self.all(sum.others.into_keys())?;
            return others.and(Of { pair: Some(sum.pair), ..Of::default() });
        }
        match &kernel.ops[op].op {
            Op::Program(dims) => match &dims[number as usize] {
                ProgramDim::Each(extent) => Some(Of { pair: None, programs: BTreeMap::from([(value, extent.clone())]) }),
                ProgramDim::Tiles(_) => None,
            },
            Op::IndexConst(_) | Op::SizeOf(_) | Op::Constant(..) | Op::Scalar(_) => Some(Of::default()),
            Op::Load { at, .. } if !at.iter().all(|at| matches!(at, At::Index(_))) => None,
            op @ (Op::Index(..) | Op::ToIndex(_) | Op::FromIndex(_) | Op::Full { .. } | Op::Load { .. } | Op::Gather { .. }) => {
                self.all(op.operands())
            }
            op if op.is_arithmetic() => self.all(op.operands()),
            _ => None,
        }
    }

    fn all(&mut self, values: impl IntoIterator<Item = ValueId>) -> Option<Of> {
        values.into_iter().try_fold(Of::default(), |all, v| all.and(self.of(v)?))
    }
}

/// `pos(a) - pos(b)` or `pos(b) - pos(a)`, and what is added to it.
struct Difference {
    /// The coordinates of `a` and `b`, in their order.
    pair: (ValueId, ValueId),
    /// Whether it is `pos(b) - pos(a)`.
    is_turned: bool,
    size: SizeExpr,
    /// Rank-0 values, and how often each is added.
    others: BTreeMap<ValueId, i64>,
}

impl Difference {
    /// An `i32` value that is one.
    fn of(kernel: &Kernel, value: ValueId) -> Option<Self> {
        let is_tile = matches!(kernel.ty(value), Type::Tile(_));
        is_tile.then(|| Sum::of(kernel, value)).flatten().and_then(Self::of_sum)
    }

    /// The same; of a comparison, the difference of its sides. That is of positions and sizes alone,
    /// which are too small to wrap.
    fn of_step(kernel: &Kernel, value: ValueId) -> Option<Self> {
        match kernel.def(value)?.1 {
            Op::Compare(_, a, b) => {
                let sides = Sum::of(kernel, *a)?.minus(&Sum::of(kernel, *b)?);
                Self::of_sum(sides).filter(|difference| difference.others.is_empty())
            }
            _ => Self::of(kernel, value),
        }
    }

    fn of_sum(sum: Sum) -> Option<Self> {
        let (added, subtracted) = sum.difference()?;
        let pair = (added.min(subtracted), added.max(subtracted));
        Some(Self { pair, is_turned: added != pair.0, size: sum.size, others: sum.others })
    }
}

/// What is added to `pos(a) - pos(b)` to find its place in a table, and the extent of the table: no
/// lane of two tiles has a place that is not there.
fn table(kernel: &Kernel, (a, b): (ValueId, ValueId)) -> (SizeExpr, SizeExpr) {
    let extent = |v: ValueId| match *kernel.ty(v) {
        Type::Coord(axis) => kernel.axes[axis].extent.clone(),
        _ => unreachable!("positions are those of a tile"),
    };
    let beyond = SizeExpr::constant(MOST_BLOCK.into());
    let shift = extent(b).add(&beyond);
    let places = extent(a).add(&shift).add(&beyond);
    (shift, places)
}

/// The launch ahead: a program for each tile of differences.
fn of_each_difference(original: &Kernel, group: &[&Found], name: String) -> Kernel {
    let of = &group[0].of;
    let pair = of.pair.expect("a difference");
    let mut b = edit::beside(original, name);
    let (shift, places) = table(original, pair);
    let axis_name = edit::free_axis_name(original, "apart");
    let axis = b.axis(axis_name.clone(), places, AxisKind::Program);
    let grid = of.programs.values().cloned().map(ProgramDim::Each).chain([ProgramDim::Tiles(axis)]).collect();
    let (_, ids) = b.append(Op::Program(grid));
    let (&tile, programs) = ids.split_last().expect("a program for each tile");
    b.name(tile, axis_name);
    let known: HashMap<ValueId, ValueId> = of.programs.keys().copied().zip(programs.iter().copied()).collect();
    for (&from, &to) in &known {
        b.kernel.values[to].name.clone_from(&original.values[from].name);
    }
    let at = |last: ValueId| programs.iter().map(|&v| At::Index(v)).chain([At::Tile(last)]).collect::<Vec<_>>();
    let place = b.emit(Op::Pos(tile));
    let shift = number(&shift, &mut |op| b.emit(op));
    let apart = b.emit(Op::Binary(BinaryOp::Sub, place, shift));
    let mut again = Again { original, b, known, params: BTreeMap::new(), apart };
    for one in group {
        again.b.span = original.ops[original.def(one.value).expect("it is computed").0].span;
        let value = again.value(one.value);
        let param = edit::add_tensor(&mut again.b.kernel, &one.name, decl(original, one, Direction::Out));
        again.b.append(Op::Store { tensor: param, at: at(tile), value });
    }
    edit::finished(again.b.finish())
}

/// The table of a value: a number for each program that it depends on, and for each difference.
fn decl(kernel: &Kernel, one: &Found, direction: Direction) -> TensorDecl {
    let (_, places) = table(kernel, one.of.pair.expect("a difference"));
    let shape = one.of.programs.values().cloned().chain([places]).collect();
    TensorDecl { elem: kernel.tile(one.value).elem, shape, direction }
}

/// Computes values of another kernel again, for a tile of differences.
struct Again<'k> {
    original: &'k Kernel,
    b: Builder,
    /// What values of the original are here.
    known: HashMap<ValueId, ValueId>,
    params: BTreeMap<ParamId, ParamId>,
    /// `pos(a) - pos(b)`.
    apart: ValueId,
}

impl Again<'_> {
    fn value(&mut self, v: ValueId) -> ValueId {
        if let Some(&known) = self.known.get(&v) {
            return known;
        }
        let (_, op) = self.original.def(v).expect("no loop carries it");
        let made = match (op, Difference::of_step(self.original, v)) {
            (Op::Compare(compare, ..), Some(difference)) => {
                let (difference, zero) = (self.difference(&difference), self.b.emit(Op::Constant(Elem::I32, 0.0)));
                self.b.emit(Op::Compare(*compare, difference, zero))
            }
            (_, Some(difference)) => self.difference(&difference),
            // One number of all is broadcast.
            (Op::Full { value, .. }, None) => self.value(*value),
            (op, None) => {
                let mut op = op.map_operands(|operand| self.value(operand));
                if let Some(param) = op.param_mut() {
                    *param = self.param(*param);
                }
                self.b.emit(op)
            }
        };
        if self.b.kernel.values[made].name.is_none() {
            self.b.kernel.values[made].name.clone_from(&self.original.values[v].name);
        }
        self.known.insert(v, made);
        made
    }

    fn param(&mut self, param: ParamId) -> ParamId {
        let params = &mut self.b.kernel.params;
        *self.params.entry(param).or_insert_with(|| params.push(self.original.params[param].clone()))
    }

    fn difference(&mut self, difference: &Difference) -> ValueId {
        let mut sum = self.apart;
        if difference.is_turned {
            sum = self.b.emit(Op::Unary(UnaryOp::Neg, sum));
        }
        if difference.size.as_constant() != Some(0) {
            let size = number(&difference.size, &mut |op| self.b.emit(op));
            sum = self.b.emit(Op::Binary(BinaryOp::Add, sum, size));
        }
        for (&other, &times) in &difference.others {
            let mut other = self.value(other);
            if times != 1 {
                let times = self.b.emit(Op::Constant(Elem::I32, times as f64));
                other = self.b.emit(Op::Binary(BinaryOp::Mul, other, times));
            }
            sum = self.b.emit(Op::Binary(BinaryOp::Add, sum, other));
        }
        sum
    }
}

/// A size as an `i32`; `emit` adds an op to a kernel and gives its only result.
fn number(size: &SizeExpr, emit: &mut impl FnMut(Op) -> ValueId) -> ValueId {
    let index = edit::index_of(size, emit);
    emit(Op::FromIndex(index))
}

/// Makes a kernel read a value that was computed ahead.
fn read(kernel: &mut Kernel, original: &Kernel, one: &Found) {
    let param = edit::add_tensor(kernel, &one.name, decl(original, one, Direction::In));
    let (op, _) = original.def(one.value).expect("it is computed");
    let span = original.ops[op].span;
    let mut emit = |op_of: Op| edit::insert_before(kernel, op, op_of, span);
    let (a, b) = one.of.pair.expect("a difference");
    let (shift, _) = table(original, (a, b));
    let (a, b) = (emit(Op::Pos(a)), emit(Op::Pos(b)));
    let apart = emit(Op::Binary(BinaryOp::Sub, a, b));
    let shift = number(&shift, &mut emit);
    let place = emit(Op::Binary(BinaryOp::Add, apart, shift));
    let at = one.of.programs.keys().copied().chain([place]).collect();
    let loaded = emit(Op::Gather { tensor: param, at });
    assert_eq!(kernel.tile(loaded), original.tile(one.value), "a table holds the value");
    kernel.values[loaded].name.clone_from(&original.values[one.value].name);
    edit::replace_uses(kernel, one.value, loaded, &one.steps);
}
