//! One program of a kernel in execution: its ops, one after another.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::arithmetic::{Computed, Real, Rounding};
use super::call::Call;
use super::elementwise::{Shape, Typed, binary, compare, mask, select, unary};
use super::error::InterpretError;
use super::hidden::{self, Hidden, HiddenElements};
use super::memory::{Argument, Run, Stored, gathered, load};
use super::tile::{Data, Lengths, Tile, rows_columns};
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, BlockId, Dim, Direction, Elem, Entity, IndexOp, Op, OpId, ParamId, Part, ProgramDim,
    ReduceOp, Span, Type, UnaryOp, ValueId,
};

/// Exponents below it, and above its negative, count for [`super::Interpreter::exponent_terms`].
const NEAR: f64 = 17.0;
/// Exponents that are no differences count below it: the exponential is a number in f32, and its
/// own scale.
const FINITE: f64 = 88.0;
/// Terms beyond it stand for what is hidden, as -1e30 does.
const LARGEST_TERM: f64 = 32768.0;

/// Executes one program, numbered row-major over the grid; returns the tiles that it stores, in
/// order.
pub(super) fn execute<A: Rounding>(
    call: &Call<'_>,
    arithmetic: &A,
    program: usize,
) -> Result<Vec<Stored<A::Real>>, InterpretError> {
    let mut run = Execution::at(call, arithmetic, call.coordinates(program)?);
    run.block(call.kernel.body)?;
    Ok(run.stored)
}

#[derive(Clone, Debug)]
enum Value<R> {
    Index(i64),
    /// Number of a tile.
    Coordinate(usize),
    Tile(Rc<Tile<R>>),
}

impl<R: Real> Value<R> {
    /// The value with nothing hidden: elements that were hold their fill.
    fn seen(self) -> Self {
        match self {
            Value::Tile(tile) if tile.hidden.is_some() => Value::Tile(Rc::new((*tile).clone().hiding(None))),
            value => value,
        }
    }
}

/// One program in execution.
struct Execution<'i, 'a, A: Rounding> {
    call: &'i Call<'a>,
    arithmetic: &'i A,
    coordinates: Vec<usize>,
    values: Vec<Option<Value<A::Real>>>,
    stored: Vec<Stored<A::Real>>,
    others: Vec<Other<A::Real>>,
    /// Matrices before they were rounded, of arithmetic that sums these.
    before_rounding: BTreeMap<ValueId, Rc<Tile<A::Real>>>,
    /// Tiles of in-out tensors that were stored, by tensor and region: their places in `stored`.
    written: BTreeMap<(ParamId, Vec<(usize, usize)>), usize>,
}

/// First element and number of elements of every dimension.
fn region(runs: &[Run]) -> Vec<(usize, usize)> {
    runs.iter().map(|r| (r.start, r.len)).collect()
}

/// Where the elements of a tile lie in a dimension of a tensor.
enum Elements {
    All(usize),
    Each(Vec<usize>),
}

impl Elements {
    fn at(&self, element: usize) -> usize {
        match self {
            Self::All(position) => *position,
            Self::Each(all) => all[element],
        }
    }
}

/// Another program, executed in part for what this one reads of it.
struct Other<R> {
    coordinates: Vec<usize>,
    values: Vec<Option<Value<R>>>,
    /// Ops of the kernel's body that are executed.
    done: usize,
}

impl<'i, 'a, A: Rounding> Execution<'i, 'a, A> {
    /// The program at these coordinates, before its first op.
    fn at(call: &'i Call<'a>, arithmetic: &'i A, coordinates: Vec<usize>) -> Self {
        let values = vec![None; call.kernel.values.len()];
        let (stored, others, before_rounding, written) = (Vec::new(), Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { call, arithmetic, coordinates, values, stored, others, before_rounding, written }
    }

    /// Which elements of the result of an op are hidden.
    fn hidden(&self, op: &Op, result: ValueId) -> HiddenElements {
        if self.call.rule == Hidden::Seen {
            return None;
        }
        let operands: Vec<ValueId> = match op {
            Op::Mask { x, keep, .. } => return hidden::masked(self.typed(*x), self.typed(*keep)),
            Op::Dot { acc, .. } => acc.iter().copied().collect(),
            Op::Select { .. } | Op::Unary(..) | Op::Binary(..) | Op::Compare(..) | Op::Full { .. } => op.operands(),
            Op::Gather { at, .. } => self.tiles_of(at),
            // A transposition and a cast bring their own along, other results hide nothing.
            _ => return None,
        };
        if operands.iter().all(|&v| self.tile(v).hidden.is_none()) {
            return None;
        }
        let (lengths, dims) = match op {
            Op::Full { dims, .. } => (self.lengths(result, dims).expect("executed before"), &dims[..]),
            _ => self.joined(result, &operands),
        };
        let shape = Shape { dims, lengths: &lengths };
        let typed: Vec<_> = operands.iter().map(|&v| self.typed(v)).collect();
        match (op, &typed[..]) {
            (Op::Select { .. }, &[cond, on_true, on_false]) => hidden::selected(cond, on_true, on_false, shape),
            _ => hidden::joined(&typed, shape),
        }
    }

    /// Notes that a hidden element met what is not finite.
    fn met(&self, met: bool) {
        if met {
            self.call.met.store(true, Ordering::Relaxed);
        }
    }

    /// Executes a block; returns what it yields.
    fn block(&mut self, block: BlockId) -> Result<Vec<Value<A::Real>>, InterpretError> {
        let kernel = self.call.kernel;
        for &op in &kernel.blocks[block].ops {
            if let Op::Yield(values) = &kernel.ops[op].op {
                return Ok(values.iter().map(|&v| self.value(v).clone()).collect());
            }
            self.op(op)?;
        }
        Ok(Vec::new())
    }

    fn op(&mut self, id: OpId) -> Result<(), InterpretError> {
        let kernel = self.call.kernel;
        let data = &kernel.ops[id];
        let result = match &data.op {
            Op::Program(dims) => {
                for ((dim, &at), &result) in dims.iter().zip(&self.coordinates).zip(&data.results) {
                    self.values[result.index()] = Some(match dim {
                        ProgramDim::Each(_) => Value::Index(at as i64),
                        ProgramDim::Tiles(_) => Value::Coordinate(at),
                    });
                }
                return Ok(());
            }
            Op::For { axis, part, body, init } => return self.for_loop(*axis, *part, *body, init, &data.results),
            Op::Store { tensor, at, value } => return self.store(*tensor, at, *value, data.span),
            Op::Scatter { tensor, at, value } => return self.scatter(*tensor, at, *value, data.span),
            Op::Yield(_) => unreachable!("ends its block"),
            Op::IndexConst(n) => Value::Index(*n),
            Op::SizeOf(size) => Value::Index(self.call.sizes[size.index()]),
            Op::Index(op, a, b) => Value::Index(index_op(*op, self.index(*a), self.index(*b))),
            Op::ToIndex(x) => Value::Index(self.tile(*x).ints()[0].into()),
            Op::OfPart { value, part, at } => self.of_part(*value, *part, *at)?,
            tile_op => {
                let [result] = *data.results else { unreachable!("verified: one result") };
                let mut tile = self.tile_op(tile_op, result, data.span)?;
                if let Some(hidden) = self.hidden(tile_op, result) {
                    Rc::make_mut(&mut tile).hidden = Some(hidden);
                }
                self.round(tile_op, result, &mut tile);
                Value::Tile(tile)
            }
        };
        let [to] = *data.results else { unreachable!("verified: one result") };
        self.values[to.index()] = Some(result);
        Ok(())
    }

    /// Rounds the float result of an op that computes.
    fn round(&mut self, op: &Op, result: ValueId, tile: &mut Rc<Tile<A::Real>>) {
        let Some(computed) = self.computed(op, result) else { return };
        if self.arithmetic.sums_before_rounding() && computed.is_stored() {
            self.before_rounding.insert(result, tile.clone());
        }
        if let Data::Float(values) = &mut Rc::make_mut(tile).data {
            self.arithmetic.round_result(computed, values);
        }
    }

    /// What computes a result; `None` if the op chooses, moves or casts: what it gives is as
    /// rounded as its operands.
    fn computed(&self, op: &Op, result: ValueId) -> Option<Computed> {
        let kernel = self.call.kernel;
        let row_wise = match op {
            Op::Unary(..) | Op::Dot { .. } | Op::Reduce(..) => false,
            Op::Binary(_, a, b) => [*a, *b].iter().any(|&v| kernel.tile(v).rank() == 1),
            _ => return None,
        };
        let exact = match op {
            Op::Unary(op, _) => op.row().exact,
            Op::Binary(op, ..) => op.row().exact,
            Op::Reduce(operation, _) => *operation == ReduceOp::Max,
            _ => false,
        };
        Some(Computed { matrix: kernel.tile(result).rank() == 2, row_wise, exact })
    }

    fn tile_op(&self, op: &Op, result: ValueId, span: Span) -> Result<Rc<Tile<A::Real>>, InterpretError> {
        let kernel = self.call.kernel;
        let real = A::Real::from_f64;
        let tile = match op {
            Op::Constant(Elem::I32, x) => Tile::int([], vec![*x as i32]),
            // A constant of the text is an f32 in every arithmetic: the oracle measures rounding,
            // not the text.
            Op::Constant(_, x) => Tile::float([], vec![real(f64::from(*x as f32))]),
            Op::Scalar(param) => match self.call.arguments[param.index()] {
                Argument::F32(x) => Tile::float([], vec![A::Real::from_f32(x)]),
                Argument::I32(x) => Tile::int([], vec![x]),
                Argument::Input(_) | Argument::Output => unreachable!("checked: a scalar"),
            },
            Op::FromIndex(x) => Tile::int([], vec![self.index(*x) as i32]),
            Op::Pos(x) => {
                let (start, len) = self.positions(*x);
                Tile::int([len], (start..start + len).map(|p| p as i32).collect())
            }
            Op::Full { value, dims } => {
                let shape = self.lengths(result, dims)?;
                let count = shape.iter().product();
                match &self.tile(*value).data {
                    Data::Float(x) => Tile::float(shape, vec![x[0]; count]),
                    Data::Int(x) => Tile::int(shape, vec![x[0]; count]),
                    Data::Bool(x) => Tile::bool(shape, vec![x[0]; count]),
                }
            }
            Op::Load { tensor, at } => {
                let Argument::Input(view) = &self.call.arguments[tensor.index()] else {
                    unreachable!("verified: only inputs are loaded")
                };
                let runs = self.runs(*tensor, at, span)?;
                match self.stored_at(*tensor, &region(&runs)) {
                    // What this program stored there, as it is in memory.
                    Some(place) => {
                        let Stored { values, ints, .. } = &self.stored[place];
                        let shape = runs.iter().filter(|r| r.kept).map(|r| r.len);
                        match self.call.elem(*tensor) {
                            Elem::I32 => Tile::int(shape, ints.clone()),
                            _ => Tile::float(shape, values.clone()),
                        }
                    }
                    None => load(view, &runs),
                }
            }
            Op::Gather { tensor, at } => self.gather(*tensor, at, result, span)?,
            Op::BlockExtreme { tensor, at, block, largest } => self.block_extremes(*tensor, at, *block, *largest, span)?,
            Op::Nonzero { tensor, at } => self.nonzero(*tensor, at, span)?,
            Op::Unary(op, x) => {
                match op {
                    UnaryOp::Exp => self.note_exponent(*x, 1.0),
                    UnaryOp::Exp2 => self.note_exponent(*x, std::f64::consts::LN_2),
                    _ => {}
                }
                unary(*op, self.tile(*x))
            }
            Op::Binary(op, a, b) => {
                let (lengths, dims) = self.joined(result, &[*a, *b]);
                binary(*op, self.typed(*a), self.typed(*b), Shape { dims, lengths: &lengths })
            }
            Op::Compare(op, a, b) => {
                let (lengths, dims) = self.joined(result, &[*a, *b]);
                compare(*op, self.typed(*a), self.typed(*b), Shape { dims, lengths: &lengths })
            }
            Op::Select { cond, on_true, on_false } => {
                let (lengths, dims) = self.joined(result, &[*cond, *on_true, *on_false]);
                let shape = Shape { dims, lengths: &lengths };
                select(self.typed(*cond), self.typed(*on_true), self.typed(*on_false), shape)
            }
            Op::Mask { x, keep, fill } => mask(self.typed(*x), self.typed(*keep), *fill),
            Op::Cast(elem, x) => return Ok(self.cast(self.call.binding.elem(kernel, *elem), *x)),
            Op::Transpose(x) => self.tile(*x).transposed(),
            Op::Dot { a, b, acc } => {
                let (a, b) = (self.tile(*a), self.tile(*b));
                let (m, n) = (rows_columns(&a.shape).0, rows_columns(&b.shape).1);
                let mut c = match acc {
                    Some(acc) => self.tile(*acc).floats().to_vec(),
                    None => vec![A::Real::ZERO; m * n],
                };
                self.met(hidden::matrix_product(a, b, &mut c, self.call.rule));
                Tile::float([m, n], c)
            }
            Op::Reduce(op, x) => {
                let before = if *op == ReduceOp::Sum { self.before_rounding.get(x) } else { None };
                let (tile, met) = hidden::reduce(*op, before.map_or(self.tile(*x), |tile| tile), self.call.rule);
                self.met(met);
                tile
            }
            Op::Program(_) | Op::For { .. } | Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) => unreachable!("no tile op"),
            Op::IndexConst(_) | Op::SizeOf(_) | Op::Index(..) | Op::ToIndex(_) | Op::OfPart { .. } => unreachable!("no tile op"),
        };
        Ok(Rc::new(tile))
    }

    /// The tiles among the entries of a gather.
    fn tiles_of(&self, at: &[ValueId]) -> Vec<ValueId> {
        at.iter().copied().filter(|v| matches!(self.value(*v), Value::Tile(_))).collect()
    }

    /// An element of a tensor for each element of the result.
    fn gather(&self, tensor: ParamId, at: &[ValueId], result: ValueId, span: Span) -> Result<Tile<A::Real>, InterpretError> {
        let Argument::Input(view) = &self.call.arguments[tensor.index()] else { unreachable!("verified: only inputs are read") };
        let (lengths, dims) = self.joined(result, &self.tiles_of(at));
        let mut places = vec![0; lengths.iter().product()];
        for (dimension, positions) in self.elements(tensor, at, Shape { dims, lengths: &lengths }, span)?.into_iter().enumerate()
        {
            let stride = view.strides[dimension];
            match positions {
                Elements::All(position) => places.iter_mut().for_each(|place| *place += position * stride),
                Elements::Each(all) => places.iter_mut().zip(all).for_each(|(place, position)| *place += position * stride),
            }
        }
        Ok(gathered(view, &places, lengths))
    }

    /// Adds each element of a tile to a place of its own: what the tile adds to the least box of
    /// places that has them all is stored as one tile.
    fn scatter(&mut self, tensor: ParamId, at: &[ValueId], value: ValueId, span: Span) -> Result<(), InterpretError> {
        let kernel = self.call.kernel;
        let typed = self.typed(value);
        let lengths = typed.tile.shape.clone();
        let places = self.elements(tensor, at, Shape { dims: &kernel.tile(value).dims, lengths: &lengths }, span)?;
        let numbers = typed.tile.floats();
        let hidden = typed.tile.hidden.as_deref().filter(|_| self.call.rule != Hidden::Seen);
        let is_hidden = |e: usize| hidden.is_some_and(|hidden| hidden[e]);
        self.met((0..numbers.len()).any(|e| is_hidden(e) && numbers[e].to_f64().is_nan()));
        let counts = |e: &usize| !is_hidden(*e) || (self.call.rule == Hidden::Met && numbers[*e].to_f64().is_nan());
        let seen: Vec<usize> = (0..numbers.len()).filter(counts).collect();
        if seen.is_empty() {
            return Ok(());
        }
        let region: Vec<(usize, usize)> = places
            .iter()
            .map(|of| match of {
                Elements::All(position) => (*position, 1),
                Elements::Each(all) => {
                    let (least, most) =
                        seen.iter().fold((usize::MAX, 0), |(least, most), &e| (least.min(all[e]), most.max(all[e])));
                    (least, most - least + 1)
                }
            })
            .collect();
        let mut values = vec![A::Real::ZERO; region.iter().map(|r| r.1).product()];
        for &e in &seen {
            let place = places.iter().zip(&region).fold(0, |place, (of, &(first, len))| place * len + of.at(e) - first);
            values[place] = values[place] + numbers[e];
        }
        let terms = self.largest(value);
        self.stored.push(Stored { param: tensor, region, values, ints: Vec::new(), terms });
        Ok(())
    }

    /// Where elements of a tensor lie in each dimension: at indices, which must be inside, and at
    /// positions, of which those outside are moved to the nearest inside.
    fn elements(&self, tensor: ParamId, at: &[ValueId], of: Shape<'_>, span: Span) -> Result<Vec<Elements>, InterpretError> {
        let Shape { dims, lengths } = of;
        let count: usize = lengths.iter().product();
        let mut found = Vec::with_capacity(at.len());
        for (dimension, &v) in at.iter().enumerate() {
            let extent = self.call.shapes[tensor.index()][dimension];
            let outside = |position: i64| InterpretError::OutOfBounds {
                name: self.call.kernel.params[tensor].name.clone(),
                dimension,
                start: position,
                end: position + 1,
                extent,
                span,
            };
            match self.value(v) {
                Value::Index(position) => {
                    let inside = usize::try_from(*position).ok().filter(|&p| p < extent).ok_or_else(|| outside(*position))?;
                    found.push(Elements::All(inside));
                }
                _ if extent == 0 && count > 0 => return Err(outside(0)),
                _ => {
                    let tile = self.typed(v);
                    let positions = tile.operand(tile.tile.ints(), dims).expanded(lengths);
                    let inside = |position: i32| usize::try_from(position).unwrap_or(0).min(extent.saturating_sub(1));
                    found.push(Elements::Each(positions.into_iter().map(inside).collect()));
                }
            }
        }
        Ok(found)
    }

    /// The least or the largest integer of each block.
    fn block_extremes(
        &self,
        tensor: ParamId,
        at: &[At],
        block: u32,
        largest: bool,
        span: Span,
    ) -> Result<Tile<A::Real>, InterpretError> {
        let Argument::Input(view) = &self.call.arguments[tensor.index()] else { unreachable!("verified: blocks are of inputs") };
        // The positions of the coordinate are blocks.
        let mut runs = self.runs(tensor, at, span)?;
        let dim = runs.iter().position(|run| run.kept).expect("verified: one coordinate");
        let (blocks, extent, block) = (runs[dim], view.shape[dim], block as usize);
        let mut extremes = Vec::with_capacity(blocks.len);
        for start in (blocks.start..blocks.start + blocks.len).map(|n| n.saturating_mul(block)) {
            runs[dim] = Run { start: start.min(extent), len: block.min(extent.saturating_sub(start)), kept: true };
            let tile: Tile<A::Real> = load(view, &runs);
            let numbers: Vec<i32> = match &tile.data {
                Data::Bool(truths) => truths.iter().map(|&truth| truth.into()).collect(),
                _ => tile.ints().to_vec(),
            };
            let (extreme, of_nothing) = match largest {
                true => (numbers.iter().max(), i32::MIN),
                false => (numbers.iter().min(), i32::MAX),
            };
            extremes.push(extreme.copied().unwrap_or(of_nothing));
        }
        Ok(Tile::int([extremes.len()], extremes))
    }

    fn nonzero(&self, tensor: ParamId, at: &[At], span: Span) -> Result<Tile<A::Real>, InterpretError> {
        let Argument::Input(view) = &self.call.arguments[tensor.index()] else { unreachable!("verified: an input") };
        let mut runs = self.runs(tensor, at, span)?;
        let dim = runs.iter().position(|run| run.kept).expect("verified: one coordinate");
        let wanted = runs[dim];
        runs[dim] = Run { start: 0, len: view.shape[dim], kept: true };
        let all: Tile<A::Real> = load(view, &runs);
        let found = all.ints().iter().enumerate().filter(|(_, value)| **value != 0).map(|(at, value)| 4 * at as i32 + value);
        let listed: Vec<i32> = found.chain(std::iter::repeat(-1)).skip(wanted.start).take(wanted.len).collect();
        Ok(Tile::int([listed.len()], listed))
    }

    /// Executes the other program as far as it defines the value. What it has computed is kept for
    /// the next question.
    fn of_part(&mut self, value: ValueId, part: ValueId, at: ValueId) -> Result<Value<A::Real>, InterpretError> {
        let kernel = self.call.kernel;
        let ops = &kernel.blocks[kernel.body].ops;
        let dimension = kernel.ops[ops[0]].results.iter().position(|&r| r == part).expect("verified: a program id");
        let mut coordinates = self.coordinates.clone();
        coordinates[dimension] = usize::try_from(self.index(at)).expect("verified: not negative");
        let known = self.others.iter().position(|o| o.coordinates == coordinates);
        let known = known.unwrap_or_else(|| {
            let values = vec![None; kernel.values.len()];
            self.others.push(Other { coordinates, values, done: 0 });
            self.others.len() - 1
        });
        if self.others[known].values[value.index()].is_none() {
            let Other { coordinates, values, done } = &mut self.others[known];
            let (coordinates, known_values) = (coordinates.clone(), std::mem::take(values));
            let mut run = Execution { values: known_values, ..Self::at(self.call, self.arithmetic, coordinates) };
            while run.values[value.index()].is_none() {
                run.op(ops[*done])?;
                *done += 1;
            }
            *values = run.values;
        }
        Ok(self.others[known].values[value.index()].clone().expect("executed above").seen())
    }

    fn for_loop(
        &mut self,
        axis: AxisId,
        part: Option<Part>,
        body: BlockId,
        init: &[ValueId],
        results: &[ValueId],
    ) -> Result<(), InterpretError> {
        let mut carried: Vec<_> = init.iter().map(|&v| self.value(v).clone().seen()).collect();
        let params = &self.call.kernel.blocks[body].params;
        let tiles = self.call.tiles(axis);
        let walked = match part {
            None => 0..tiles,
            Some(Part { index, count }) => {
                let index = usize::try_from(self.index(index)).expect("verified: a program id");
                let begin = |index: usize| index * (tiles / count as usize) + index.min(tiles % count as usize);
                begin(index)..begin(index + 1)
            }
        };
        let only = self.call.only.iter().find(|(at, _)| *at == params[0]).map(|&(_, tile)| tile);
        for tile in walked.filter(|&tile| only.is_none_or(|only| tile == only)) {
            self.values[params[0].index()] = Some(match self.call.kernel.axes[axis].kind {
                AxisKind::Each => Value::Index(tile as i64),
                AxisKind::Program | AxisKind::Loop => Value::Coordinate(tile),
            });
            for (&param, value) in params[1..].iter().zip(carried) {
                self.values[param.index()] = Some(value);
            }
            carried = self.block(body)?.into_iter().map(Value::seen).collect();
        }
        for (&result, value) in results.iter().zip(carried) {
            self.values[result.index()] = Some(value);
        }
        Ok(())
    }

    fn store(&mut self, tensor: ParamId, at: &[At], value: ValueId, span: Span) -> Result<(), InterpretError> {
        let region = region(&self.runs(tensor, at, span)?);
        let tile = self.cast(self.call.elem(tensor), value);
        let values = tile.to_floats().into_owned();
        let ints = match &tile.data {
            Data::Int(ints) => ints.clone(),
            _ => Vec::new(),
        };
        let before = self.stored_at(tensor, &region);
        let terms = self.largest_term(value).unwrap_or(0.0);
        let stored = Stored { param: tensor, region, values, ints, terms };
        match before {
            Some(place) => self.stored[place] = stored,
            None => {
                if self.call.kernel.tensor(tensor).direction == Direction::InOut {
                    self.written.insert((tensor, stored.region.clone()), self.stored.len());
                }
                self.stored.push(stored);
            }
        }
        Ok(())
    }

    /// The largest finite magnitude of the terms that a value is a sum of, or is chosen from, or is a
    /// multiple of; `None` if it is no sum.
    fn largest_term(&self, value: ValueId) -> Option<f64> {
        let op = |v: ValueId| self.call.kernel.def(v).map(|(_, op)| op);
        let is_number = |v: ValueId| self.call.kernel.tile(v).dims.is_empty();
        let (mut most, mut is_sum) = (0.0f64, false);
        // Each value once: a sum of a sum with itself has as few terms.
        let (mut seen, mut work) = (HashSet::from([value]), vec![(value, 1.0)]);
        while let Some((v, times)) = work.pop() {
            let (parts, times) = match op(v) {
                Some(&Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b)) => {
                    is_sum = true;
                    (vec![a, b], times)
                }
                Some(&Op::Binary(BinaryOp::Mul, a, b)) if is_number(b) => (vec![a], times * self.largest(b)),
                Some(&Op::Binary(BinaryOp::Mul, a, b)) if is_number(a) => (vec![b], times * self.largest(a)),
                Some(&Op::Select { on_true, on_false, .. }) => (vec![on_true, on_false], times),
                Some(&(Op::Unary(UnaryOp::Neg, x) | Op::Cast(_, x) | Op::Transpose(x))) => (vec![x], times),
                _ => {
                    if is_sum {
                        most = most.max(self.largest(v) * times);
                    }
                    continue;
                }
            };
            work.extend(parts.into_iter().filter(|part| seen.insert(*part)).map(|part| (part, times)));
        }
        is_sum.then_some(most)
    }

    /// Notes the terms of a difference whose exponential is taken, or what else it is taken of,
    /// times `unit`, for [`super::Interpreter::exponent_terms`].
    fn note_exponent(&self, difference: ValueId, unit: f64) {
        let exponents = self.tile(difference).to_floats();
        let Some(Op::Binary(BinaryOp::Sub, a, b)) = self.call.kernel.def(difference).map(|(_, op)| op) else {
            let magnitudes = exponents.iter().map(|x| x.to_f64().abs() * unit);
            let most = magnitudes.filter(|x| *x < FINITE).fold(0.0, f64::max);
            self.call.exponent_terms.fetch_max(most.to_bits(), Ordering::Relaxed);
            return;
        };
        // Near 0 both terms are alike, so that one of them tells.
        let of = |v: ValueId| {
            let term = self.tile(v).to_floats();
            (term.len() == exponents.len()).then(|| {
                let near = exponents.iter().zip(term.iter()).filter(|(x, _)| x.to_f64().abs() * unit < NEAR);
                near.map(|(_, term)| term.to_f64().abs()).filter(|term| *term <= LARGEST_TERM).fold(0.0, f64::max)
            })
        };
        let most = of(*a).or_else(|| of(*b)).unwrap_or_else(|| self.largest(*a).max(self.largest(*b)).min(LARGEST_TERM));
        self.call.exponent_terms.fetch_max((most * unit).to_bits(), Ordering::Relaxed);
    }

    /// The largest finite magnitude of a value's elements.
    fn largest(&self, value: ValueId) -> f64 {
        let numbers = self.tile(value).to_floats();
        numbers.iter().map(|x| x.to_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
    }

    /// Which of the stored tiles is the one of an in-out tensor in this region.
    fn stored_at(&self, tensor: ParamId, region: &[(usize, usize)]) -> Option<usize> {
        self.written.get(&(tensor, region.to_vec())).copied()
    }

    /// The value as another element type.
    fn cast(&self, to: Elem, value: ValueId) -> Rc<Tile<A::Real>> {
        let Value::Tile(from) = self.value(value) else { unreachable!("verified: a tile") };
        let shape = from.shape.clone();
        let tile = match (&from.data, to) {
            (Data::Bool(_), Elem::Bool) | (Data::Int(_), Elem::I32) => return from.clone(),
            (Data::Bool(x), Elem::I32) => Tile::int(shape, x.iter().map(|&x| x.into()).collect()),
            // Towards zero; NaN gives 0, and what is too large the nearest integer.
            (Data::Float(x), Elem::I32) => Tile::int(shape, x.iter().map(|x| x.to_f64() as i32).collect()),
            (Data::Bool(x), _) => Tile::float(shape, x.iter().map(|&x| A::Real::from_f32(if x { 1.0 } else { 0.0 })).collect()),
            (_, Elem::Bool) => panic!("verified: numbers are not cast to truth values"),
            (Data::Float(_), Elem::F32) => return from.clone(),
            (Data::Float(_) | Data::Int(_), _) => {
                let mut values = from.to_floats().into_owned();
                self.arithmetic.round_cast(to, &mut values);
                Tile::float(shape, values)
            }
        };
        Rc::new(tile.hiding(from.hidden.clone()))
    }

    /// Where a load or store touches each dimension of the tensor.
    fn runs(&self, tensor: ParamId, at: &[At], span: Span) -> Result<Vec<Run>, InterpretError> {
        let extents = &self.call.shapes[tensor.index()];
        at.iter()
            .zip(extents)
            .enumerate()
            .map(|(dimension, (at, &extent))| {
                let (start, len, kept) = match at {
                    At::Index(v) => (self.index(*v), 1, false),
                    At::Tile(v) => {
                        let (start, len) = self.positions(*v);
                        (start as i64, len, true)
                    }
                    At::Range { start, len } => (self.call.extent(start)? as i64, self.call.extent(len)?, true),
                };
                let end = start.saturating_add(len as i64);
                if start < 0 || end > extent as i64 {
                    let name = self.call.kernel.params[tensor].name.clone();
                    return Err(InterpretError::OutOfBounds { name, dimension, start, end, extent, span });
                }
                Ok(Run { start: start as usize, len, kept })
            })
            .collect()
    }

    /// First position and number of positions of the tile at a coordinate: those that exist.
    fn positions(&self, coordinate: ValueId) -> (usize, usize) {
        let (Type::Coord(axis), Value::Coordinate(tile)) = (self.call.kernel.ty(coordinate), self.value(coordinate)) else {
            unreachable!("verified: a coordinate")
        };
        let (extent, block) = self.call.axes[axis.index()];
        let start = tile * block;
        (start.min(extent), block.min(extent.saturating_sub(start)))
    }

    /// Lengths of the dimensions of a result that has no operand of them: of the tiles that the
    /// program is at.
    fn lengths(&self, result: ValueId, dims: &[Dim]) -> Result<Lengths, InterpretError> {
        dims.iter()
            .map(|dim| match dim {
                Dim::Range(len) => self.call.extent(len),
                Dim::Axis(axis) => Ok(self.positions(self.current(*axis, result)).1),
            })
            .collect()
    }

    /// The coordinate of an axis that is in scope: it was defined last.
    fn current(&self, axis: AxisId, user: ValueId) -> ValueId {
        let coordinates = self.call.kernel.values.iter().filter(|(_, v)| v.ty == Type::Coord(axis));
        coordinates
            .map(|(id, _)| id)
            .find(|id| self.values[id.index()].is_some())
            .unwrap_or_else(|| panic!("verified: axis {axis} of {user} is in scope"))
    }

    /// Lengths and dimensions of a result that has those of its operands.
    fn joined(&self, result: ValueId, operands: &[ValueId]) -> (Lengths, &[Dim]) {
        let kernel = self.call.kernel;
        let dims = &kernel.tile(result).dims;
        // Operands whose dimensions are a subsequence: take every length from one that has the
        // dimension.
        let length = |dim: &Dim| {
            operands
                .iter()
                .find_map(|&v| {
                    let k = kernel.tile(v).dims.iter().position(|d| d == dim)?;
                    Some(self.tile(v).shape[k])
                })
                .expect("verified: a dimension of the result is one of an operand")
        };
        (dims.iter().map(length).collect(), dims)
    }

    fn typed(&self, value: ValueId) -> Typed<'_, A::Real> {
        Typed { tile: self.tile(value), dims: &self.call.kernel.tile(value).dims }
    }

    fn value(&self, value: ValueId) -> &Value<A::Real> {
        self.values[value.index()].as_ref().expect("verified: defined before it is used")
    }

    fn tile(&self, value: ValueId) -> &Tile<A::Real> {
        match self.value(value) {
            Value::Tile(tile) => tile,
            _ => panic!("verified: {value} is a tile"),
        }
    }

    fn index(&self, value: ValueId) -> i64 {
        match self.value(value) {
            Value::Index(n) => *n,
            _ => panic!("verified: {value} is an index"),
        }
    }
}

fn index_op(op: IndexOp, a: i64, b: i64) -> i64 {
    match op {
        IndexOp::Add => a.wrapping_add(b),
        IndexOp::Sub => a.wrapping_sub(b),
        IndexOp::Mul => a.wrapping_mul(b),
        IndexOp::Div => crate::ir::floor_div(a, b),
        IndexOp::Rem => crate::ir::floor_rem(a, b),
        IndexOp::Min => a.min(b),
        IndexOp::Max => a.max(b),
    }
}
