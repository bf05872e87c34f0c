//! The interpreter: executes the ops of one program in order.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::arithmetic::{Arithmetic, Real};
use super::elementwise::{Shape, Typed, binary, compare, mask, reduce, select, unary};
use super::error::InterpretError;
use super::memory::{Argument, Run, Stored, load};
use super::tile::{Data, Tile, rows_columns};
use crate::ir::{
    At, AxisId, AxisKind, Binding, BlockId, Dim, Direction, Elem, Entity, IndexOp, Kernel, Op, OpId, ParamId, ParamKind, Part,
    ProgramDim, SizeExpr, SizeKind, Span, Type, ValueId,
};

/// How many positions a tile of each axis has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// The given number for program axes; loops have one tile of their whole extent, so that streaming adds no error.
    WholeLoops(usize),
    /// One number per [`AxisId`]; that of an axis of single positions is not used.
    PerAxis(Vec<usize>),
}

/// A kernel with its sizes, block sizes and arguments, ready to be executed program by program.
///
/// Programs are independent: they may run in any order and in parallel.
#[derive(Debug)]
pub struct Interpreter<'a, A> {
    kernel: &'a Kernel,
    binding: &'a Binding,
    sizes: Vec<i64>,
    /// Extent and block size by axis.
    axes: Vec<(usize, usize)>,
    grid: Vec<usize>,
    arguments: Vec<Argument<'a>>,
    /// Shapes of the tensor parameters; empty for scalars.
    shapes: Vec<Vec<usize>>,
    arithmetic: A,
}

impl<'a, A: Arithmetic> Interpreter<'a, A> {
    /// Checks that everything fits. `sizes` has the values of all sizes by [`crate::ir::SizeId`]; those of const ones are
    /// taken from the binding.
    ///
    /// # Errors
    /// Any [`InterpretError`] but those of accesses and divisions, which only execution can find.
    pub fn new(
        kernel: &'a Kernel,
        binding: &'a Binding,
        sizes: &[i64],
        blocks: &Blocks,
        arguments: &[Argument<'a>],
        arithmetic: A,
    ) -> Result<Self, InterpretError> {
        let missing = binding.check(kernel);
        if !missing.is_empty() {
            return Err(InterpretError::Unbound { kernel: kernel.name.clone(), missing });
        }
        let sizes = kernel
            .sizes
            .iter()
            .map(|(id, size)| match size.kind {
                SizeKind::Const => Ok(binding.consts[&size.name]),
                SizeKind::Runtime => sizes
                    .get(id.index())
                    .copied()
                    .ok_or_else(|| InterpretError::MissingSize { kernel: kernel.name.clone(), size: size.name.clone() }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut this = Self {
            kernel,
            binding,
            sizes,
            axes: Vec::new(),
            grid: Vec::new(),
            arguments: arguments.to_vec(),
            shapes: Vec::new(),
            arithmetic,
        };
        this.axes = this.block_axes(blocks)?;
        this.grid = kernel
            .grid()
            .iter()
            .map(|dim| match dim {
                ProgramDim::Each(size) => this.extent(size),
                ProgramDim::Tiles(axis) => Ok(this.tiles(*axis)),
            })
            .collect::<Result<_, _>>()?;
        this.shapes = this.check_arguments()?;
        Ok(this)
    }

    /// Number of programs in the grid.
    pub fn programs(&self) -> usize {
        self.grid.iter().product()
    }

    /// Shape of the tensor parameter; empty for a scalar.
    pub fn shape(&self, param: ParamId) -> &[usize] {
        &self.shapes[param.index()]
    }

    /// Element type of the tensor parameter, with type parameters bound.
    pub fn elem(&self, param: ParamId) -> Elem {
        self.binding.elem(self.kernel, self.kernel.tensor(param).elem)
    }

    /// Executes one program (numbered row-major over the grid) and returns the tiles it stores, in order.
    ///
    /// # Errors
    /// [`InterpretError::Program`], [`InterpretError::OutOfBounds`] or [`InterpretError::DivisionByZero`].
    pub fn run(&self, program: usize) -> Result<Vec<Stored<A::Real>>, InterpretError> {
        A::run(self, program)
    }

    /// See [`Interpreter::run`].
    pub(super) fn execute(&self, program: usize) -> Result<Vec<Stored<A::Real>>, InterpretError> {
        let programs = self.programs();
        if program >= programs {
            return Err(InterpretError::Program { program, programs });
        }
        let mut coordinates = vec![0; self.grid.len()];
        let mut rest = program;
        for (coordinate, extent) in coordinates.iter_mut().zip(&self.grid).rev() {
            (*coordinate, rest) = (rest % extent, rest / extent);
        }
        let values = vec![None; self.kernel.values.len()];
        let (stored, others, written) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut run = Execution { of: self, coordinates, values, stored, others, written };
        run.block(self.kernel.body)?;
        Ok(run.stored)
    }

    fn block_axes(&self, blocks: &Blocks) -> Result<Vec<(usize, usize)>, InterpretError> {
        if let Blocks::PerAxis(blocks) = blocks
            && blocks.len() != self.kernel.axes.len()
        {
            return Err(InterpretError::BlockCount { expected: self.kernel.axes.len(), found: blocks.len() });
        }
        let axis = |(id, axis): (AxisId, &crate::ir::Axis)| {
            let extent = self.extent(&axis.extent)?;
            let block = match (blocks, axis.kind) {
                (_, AxisKind::Each) => 1,
                (Blocks::PerAxis(blocks), _) => blocks[id.index()],
                (Blocks::WholeLoops(block), AxisKind::Program) => *block,
                (Blocks::WholeLoops(_), AxisKind::Loop) => extent.max(1),
            };
            if block == 0 {
                return Err(InterpretError::EmptyBlock { axis: axis.name.clone() });
            }
            Ok((extent, block))
        };
        self.kernel.axes.iter().map(axis).collect()
    }

    fn check_arguments(&self) -> Result<Vec<Vec<usize>>, InterpretError> {
        let (expected, found) = (self.kernel.params.len(), self.arguments.len());
        if expected != found {
            return Err(InterpretError::ArgumentCount { kernel: self.kernel.name.clone(), expected, found });
        }
        let mut shapes = Vec::with_capacity(expected);
        for (param, argument) in self.kernel.params.values().zip(&self.arguments) {
            let kind = |expected| Err(InterpretError::Kind { name: param.name.clone(), expected, found: argument.describe() });
            let ParamKind::Tensor(declared) = &param.kind else {
                match (&param.kind, argument) {
                    (ParamKind::Scalar(Elem::I32), Argument::I32(_)) | (ParamKind::Scalar(Elem::F32), Argument::F32(_)) => {}
                    (ParamKind::Scalar(Elem::I32), _) => return kind("an i32 scalar"),
                    _ => return kind("an f32 scalar"),
                }
                shapes.push(Vec::new());
                continue;
            };
            let shape = declared.shape.iter().map(|s| self.extent(s)).collect::<Result<Vec<_>, _>>()?;
            match (declared.direction, argument) {
                (Direction::Out, Argument::Output) => {}
                (Direction::Out, _) => return kind("an output tensor"),
                (Direction::In | Direction::InOut, Argument::Input(tensor)) => {
                    let expected = self.binding.elem(self.kernel, declared.elem);
                    check_tensor(&param.name, expected, &shape, tensor)?;
                }
                (Direction::In, _) => return kind("an input tensor"),
                (Direction::InOut, _) => return kind("an input tensor, for what is read before it is stored"),
            }
            shapes.push(shape);
        }
        Ok(shapes)
    }

    fn extent(&self, size: &SizeExpr) -> Result<usize, InterpretError> {
        size.eval(|s| self.sizes.get(s.index()).copied())
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| InterpretError::NotAnExtent { text: self.kernel.size_text(size) })
    }

    fn tiles(&self, axis: AxisId) -> usize {
        let (extent, block) = self.axes[axis.index()];
        extent.div_ceil(block)
    }
}

fn check_tensor(name: &str, elem: Elem, shape: &[usize], tensor: &super::memory::TensorView<'_>) -> Result<(), InterpretError> {
    let name = || name.to_owned();
    if tensor.elem != elem {
        return Err(InterpretError::Element { name: name(), expected: elem, found: tensor.elem });
    }
    if tensor.shape != shape {
        return Err(InterpretError::Shape { name: name(), expected: shape.to_vec(), found: tensor.shape.to_vec() });
    }
    let contiguous = shape.last().is_none_or(|&n| n <= 1 || tensor.strides.last() == Some(&1));
    if tensor.strides.len() != shape.len() || !contiguous {
        return Err(InterpretError::Strides { name: name(), strides: tensor.strides.to_vec() });
    }
    if !shape.contains(&0) {
        let last: usize = shape.iter().zip(tensor.strides).map(|(n, s)| (n - 1) * s).sum();
        let needed = (last + 1) * elem.bytes().expect("verified: a tensor holds what has a size");
        if needed > tensor.bytes.len() {
            return Err(InterpretError::Memory { name: name(), needed, found: tensor.bytes.len() });
        }
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Value<R> {
    Index(i64),
    /// Number of a tile.
    Coordinate(usize),
    Tile(Rc<Tile<R>>),
}

/// One program in execution.
struct Execution<'i, 'a, A: Arithmetic> {
    of: &'i Interpreter<'a, A>,
    coordinates: Vec<usize>,
    values: Vec<Option<Value<A::Real>>>,
    stored: Vec<Stored<A::Real>>,
    others: Vec<Other<A::Real>>,
    /// Tiles of in-out tensors that were stored, by tensor and region: their places in `stored`.
    written: BTreeMap<(ParamId, Vec<(usize, usize)>), usize>,
}

/// First element and number of elements of every dimension.
fn region(runs: &[Run]) -> Vec<(usize, usize)> {
    runs.iter().map(|r| (r.start, r.len)).collect()
}

/// Another program, executed in part for what this one reads of it.
struct Other<R> {
    coordinates: Vec<usize>,
    values: Vec<Option<Value<R>>>,
    /// Ops of the kernel's body that are executed.
    done: usize,
}

impl<A: Arithmetic> Execution<'_, '_, A> {
    /// Executes a block; returns what it yields.
    fn block(&mut self, block: BlockId) -> Result<Vec<Value<A::Real>>, InterpretError> {
        let kernel = self.of.kernel;
        for &op in &kernel.blocks[block].ops {
            if let Op::Yield(values) = &kernel.ops[op].op {
                return Ok(values.iter().map(|&v| self.value(v).clone()).collect());
            }
            self.op(op)?;
        }
        Ok(Vec::new())
    }

    fn op(&mut self, id: OpId) -> Result<(), InterpretError> {
        let kernel = self.of.kernel;
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
            Op::Yield(_) => unreachable!("ends its block"),
            Op::IndexConst(n) => Value::Index(*n),
            Op::SizeOf(size) => Value::Index(self.of.sizes[size.index()]),
            Op::Index(op, a, b) => Value::Index(index_op(*op, self.index(*a), self.index(*b), data.span)?),
            Op::ToIndex(x) => Value::Index(self.tile(*x).ints()[0].into()),
            Op::OfPart { value, part, at } => self.of_part(*value, *part, *at)?,
            tile_op => {
                let [result] = *data.results else { unreachable!("verified: one result") };
                let mut tile = self.tile_op(tile_op, result, data.span)?;
                self.round(tile_op, result, &mut tile);
                Value::Tile(tile)
            }
        };
        let [to] = *data.results else { unreachable!("verified: one result") };
        self.values[to.index()] = Some(result);
        Ok(())
    }

    /// Rounds the float result of an op that computes.
    fn round(&self, op: &Op, result: ValueId, tile: &mut Rc<Tile<A::Real>>) {
        let kernel = self.of.kernel;
        let row_wise = match op {
            Op::Unary(..) | Op::Dot { .. } | Op::Reduce(..) => false,
            Op::Binary(_, a, b) => [*a, *b].iter().any(|&v| kernel.tile(v).rank() == 1),
            // The others choose, move or cast: what they give is as rounded as their operands.
            _ => return,
        };
        if let Data::Float(values) = &mut Rc::make_mut(tile).data {
            self.of.arithmetic.round_result(kernel.tile(result).rank() == 2, row_wise, values);
        }
    }

    fn tile_op(&self, op: &Op, result: ValueId, span: Span) -> Result<Rc<Tile<A::Real>>, InterpretError> {
        let kernel = self.of.kernel;
        let real = A::Real::from_f64;
        let tile = match op {
            Op::Constant(Elem::I32, x) => Tile::int(vec![], vec![*x as i32]),
            // A constant of the text is an f32 in every arithmetic: the oracle measures rounding, not the text.
            Op::Constant(_, x) => Tile::float(vec![], vec![real(f64::from(*x as f32))]),
            Op::Scalar(param) => match self.of.arguments[param.index()] {
                Argument::F32(x) => Tile::float(vec![], vec![A::Real::from_f32(x)]),
                Argument::I32(x) => Tile::int(vec![], vec![x]),
                Argument::Input(_) | Argument::Output => unreachable!("checked: a scalar"),
            },
            Op::FromIndex(x) => Tile::int(vec![], vec![self.index(*x) as i32]),
            Op::Pos(x) => {
                let (start, len) = self.positions(*x);
                Tile::int(vec![len], (start..start + len).map(|p| p as i32).collect())
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
                let Argument::Input(view) = &self.of.arguments[tensor.index()] else {
                    unreachable!("verified: only inputs are loaded")
                };
                let runs = self.runs(*tensor, at, span)?;
                match self.stored_at(*tensor, &region(&runs)) {
                    // What this program stored there, as it is in memory.
                    Some(place) => {
                        let Stored { values, ints, .. } = &self.stored[place];
                        let shape = runs.iter().filter(|r| r.kept).map(|r| r.len).collect();
                        match self.of.elem(*tensor) {
                            Elem::I32 => Tile::int(shape, ints.clone()),
                            _ => Tile::float(shape, values.clone()),
                        }
                    }
                    None => load(view, &runs),
                }
            }
            Op::Unary(op, x) => unary(*op, self.tile(*x)),
            Op::Binary(op, a, b) => {
                let (lengths, dims) = self.joined(result, &[*a, *b]);
                binary(*op, self.typed(*a), self.typed(*b), Shape { dims, lengths: &lengths }, span)?
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
            Op::Mask { x, keep } => mask(self.typed(*x), self.typed(*keep)),
            Op::Cast(elem, x) => return Ok(self.cast(self.of.binding.elem(kernel, *elem), *x)),
            Op::Transpose(x) => self.tile(*x).transposed(),
            Op::Dot { a, b, acc } => {
                let (a, b) = (self.tile(*a), self.tile(*b));
                let ((m, k), (_, n)) = (rows_columns(&a.shape), rows_columns(&b.shape));
                let mut c = match acc {
                    Some(acc) => self.tile(*acc).floats().to_vec(),
                    None => vec![A::Real::ZERO; m * n],
                };
                A::Real::matrix_product(m, k, n, a.floats(), b.floats(), &mut c);
                Tile::float(vec![m, n], c)
            }
            Op::Reduce(op, x) => reduce(*op, self.tile(*x)),
            Op::Program(_) | Op::For { .. } | Op::Store { .. } | Op::Yield(_) => unreachable!("no tile op"),
            Op::IndexConst(_) | Op::SizeOf(_) | Op::Index(..) | Op::ToIndex(_) | Op::OfPart { .. } => unreachable!("no tile op"),
        };
        Ok(Rc::new(tile))
    }

    /// Executes the other program as far as it defines the value. What it has computed is kept for the next question.
    fn of_part(&mut self, value: ValueId, part: ValueId, at: ValueId) -> Result<Value<A::Real>, InterpretError> {
        let kernel = self.of.kernel;
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
            let (stored, others, written) = (Vec::new(), Vec::new(), BTreeMap::new());
            let mut run = Execution { of: self.of, coordinates, values: known_values, stored, others, written };
            while run.values[value.index()].is_none() {
                run.op(ops[*done])?;
                *done += 1;
            }
            *values = run.values;
        }
        Ok(self.others[known].values[value.index()].clone().expect("executed above"))
    }

    fn for_loop(
        &mut self,
        axis: AxisId,
        part: Option<Part>,
        body: BlockId,
        init: &[ValueId],
        results: &[ValueId],
    ) -> Result<(), InterpretError> {
        let mut carried: Vec<_> = init.iter().map(|&v| self.value(v).clone()).collect();
        let params = &self.of.kernel.blocks[body].params;
        let tiles = self.of.tiles(axis);
        let walked = match part {
            None => 0..tiles,
            Some(Part { index, count }) => {
                let index = usize::try_from(self.index(index)).expect("verified: a program id");
                let begin = |index: usize| index * (tiles / count as usize) + index.min(tiles % count as usize);
                begin(index)..begin(index + 1)
            }
        };
        for tile in walked {
            self.values[params[0].index()] = Some(match self.of.kernel.axes[axis].kind {
                AxisKind::Each => Value::Index(tile as i64),
                AxisKind::Program | AxisKind::Loop => Value::Coordinate(tile),
            });
            for (&param, value) in params[1..].iter().zip(carried) {
                self.values[param.index()] = Some(value);
            }
            carried = self.block(body)?;
        }
        for (&result, value) in results.iter().zip(carried) {
            self.values[result.index()] = Some(value);
        }
        Ok(())
    }

    fn store(&mut self, tensor: ParamId, at: &[At], value: ValueId, span: Span) -> Result<(), InterpretError> {
        let region = region(&self.runs(tensor, at, span)?);
        let tile = self.cast(self.of.elem(tensor), value);
        let values = tile.to_floats().into_owned();
        let ints = match &tile.data {
            Data::Int(ints) => ints.clone(),
            _ => Vec::new(),
        };
        let before = self.stored_at(tensor, &region);
        let stored = Stored { param: tensor, region, values, ints };
        match before {
            Some(place) => self.stored[place] = stored,
            None => {
                if self.of.kernel.tensor(tensor).direction == Direction::InOut {
                    self.written.insert((tensor, stored.region.clone()), self.stored.len());
                }
                self.stored.push(stored);
            }
        }
        Ok(())
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
                self.of.arithmetic.round_cast(to, &mut values);
                Tile::float(shape, values)
            }
        };
        Rc::new(tile)
    }

    /// Where a load or store touches each dimension of the tensor.
    fn runs(&self, tensor: ParamId, at: &[At], span: Span) -> Result<Vec<Run>, InterpretError> {
        let extents = &self.of.shapes[tensor.index()];
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
                    At::Range { start, len } => (self.of.extent(start)? as i64, self.of.extent(len)?, true),
                };
                let end = start.saturating_add(len as i64);
                if start < 0 || end > extent as i64 {
                    let name = self.of.kernel.params[tensor].name.clone();
                    return Err(InterpretError::OutOfBounds { name, dimension, start, end, extent, span });
                }
                Ok(Run { start: start as usize, len, kept })
            })
            .collect()
    }

    /// First position and number of positions of the tile at a coordinate: those that exist.
    fn positions(&self, coordinate: ValueId) -> (usize, usize) {
        let (Type::Coord(axis), Value::Coordinate(tile)) = (self.of.kernel.ty(coordinate), self.value(coordinate)) else {
            unreachable!("verified: a coordinate")
        };
        let (extent, block) = self.of.axes[axis.index()];
        let start = tile * block;
        (start.min(extent), block.min(extent.saturating_sub(start)))
    }

    /// Lengths of the dimensions of a result that has no operand of them: of the tiles that the program is at.
    fn lengths(&self, result: ValueId, dims: &[Dim]) -> Result<Vec<usize>, InterpretError> {
        dims.iter()
            .map(|dim| match dim {
                Dim::Range(len) => self.of.extent(len),
                Dim::Axis(axis) => Ok(self.positions(self.current(*axis, result)).1),
            })
            .collect()
    }

    /// The coordinate of an axis that is in scope: it was defined last.
    fn current(&self, axis: AxisId, user: ValueId) -> ValueId {
        let coordinates = self.of.kernel.values.iter().filter(|(_, v)| v.ty == Type::Coord(axis));
        coordinates
            .map(|(id, _)| id)
            .find(|id| self.values[id.index()].is_some())
            .unwrap_or_else(|| panic!("verified: axis {axis} of {user} is in scope"))
    }

    /// Lengths and dimensions of a result that has those of its operands.
    fn joined(&self, result: ValueId, operands: &[ValueId]) -> (Vec<usize>, &[Dim]) {
        let kernel = self.of.kernel;
        let dims = &kernel.tile(result).dims;
        // Operands whose dimensions are a subsequence: take every length from one that has the dimension.
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
        Typed { tile: self.tile(value), dims: &self.of.kernel.tile(value).dims }
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

fn index_op(op: IndexOp, a: i64, b: i64, span: Span) -> Result<i64, InterpretError> {
    Ok(match op {
        IndexOp::Add => a.wrapping_add(b),
        IndexOp::Sub => a.wrapping_sub(b),
        IndexOp::Mul => a.wrapping_mul(b),
        IndexOp::Div | IndexOp::Rem if b == 0 => return Err(InterpretError::DivisionByZero { span }),
        IndexOp::Div => crate::ir::floor_div(a, b),
        IndexOp::Rem => crate::ir::floor_rem(a, b),
        IndexOp::Min => a.min(b),
        IndexOp::Max => a.max(b),
    })
}
