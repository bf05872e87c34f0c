//! Values of the forward kernel, made again in a kernel of its gradient.

use std::collections::{HashMap, HashSet};

use super::NotDifferentiable;
use super::forward::{Class, Forward, Slot};
use crate::analysis::streaming::Form;
use crate::ir::{
    At, BinaryOp, Builder, Dim, Direction, Elem, Fill, Kernel, Op, OpId, ParamId, ProgramDim, ReduceOp, SizeKind, TensorDecl,
    Type, UnaryOp, ValueDef, ValueId,
};
use crate::ir::{AxisId, AxisKind, Param, ParamKind, Span};

/// Which axis a tile of pairs has for its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Orientation {
    /// The rows of the forward kernel.
    Rows,
    /// Its columns.
    Columns,
}

/// Loops that are open, the outermost first: the axis of each, and what it carries.
pub(super) type Open = Vec<(AxisId, Vec<ValueId>)>;

/// What has a share in the gradient of a value that several have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shares {
    /// Nothing: a program has what it gives the gradient of for itself.
    None,
    /// Rows, in what is one for a program.
    OfRows,
    /// Columns, in what is one for a program.
    OfColumns,
    /// Pairs, in what is one for a row or for a column.
    OfPairs,
}

/// Makes values of the forward kernel in another one.
#[derive(Clone)]
pub(super) struct Copy<'f, 'k> {
    pub forward: &'f Forward<'k>,
    pub b: Builder,
    pub orientation: Orientation,
    /// The axes here of the rows and of the columns.
    pub axes: (AxisId, AxisId),
    /// Of a product: the axis here of what it is summed along.
    pub inner: Option<AxisId>,
    /// Whether tiles of pairs have columns for their rows.
    turned: bool,
    pub shares: Shares,
    /// Indices of the forward kernel's grid that a loop walks here, and indices that the grid has.
    pub indices: (HashSet<ValueId>, HashSet<ValueId>),
    /// What values of the forward kernel are here.
    pub known: HashMap<ValueId, ValueId>,
    /// A condition on which pairs count.
    pub counts: Option<ValueId>,
    params: HashMap<String, ParamId>,
    /// In how many loops a value lies; 0 of what is not here.
    depths: HashMap<ValueId, usize>,
    constants: Vec<(Elem, f64, ValueId)>,
    /// In how many loops the coordinate of an axis lies.
    walked: HashMap<AxisId, usize>,
}

impl<'f, 'k> Copy<'f, 'k> {
    /// A kernel of gradients of rows or columns, with its axes.
    pub fn new(forward: &'f Forward<'k>, name: String, orientation: Orientation) -> Self {
        let mut made = Self::empty(forward, name, orientation);
        let row = forward.row.1;
        made.turned = orientation == Orientation::Columns;
        // The axis of the rows of tiles comes first: so are dimensions ordered.
        made.axes = match orientation {
            // Each pass over the columns makes an axis of its own.
            Orientation::Rows => {
                made.shares = Shares::OfRows;
                let rows = made.axis(row, AxisKind::Program);
                (rows, rows)
            }
            Orientation::Columns => {
                made.shares = Shares::OfColumns;
                let columns = made.axis(forward.columns[0].1, AxisKind::Program);
                (made.axis(row, AxisKind::Loop), columns)
            }
        };
        made
    }

    /// A kernel of gradients of a product, with tiles of these axes of the forward kernel, in the
    /// order of the grid; it walks the others. What is summed along may be left out.
    pub fn of_product(forward: &'f Forward<'k>, name: String, orientation: Orientation, tiled: &[AxisId], sums: bool) -> Self {
        let mut made = Self::empty(forward, name, orientation);
        let inner = forward.walks.first().map(|walk| walk.at.1).filter(|_| sums);
        // Axes are numbered as they come in the text: so are dimensions ordered.
        let all = [forward.row.1, forward.columns[0].1].into_iter().chain(inner);
        let walked = all.filter(|axis| !tiled.contains(axis));
        let kinds = tiled.iter().map(|&axis| (axis, AxisKind::Program)).chain(walked.map(|axis| (axis, AxisKind::Loop)));
        let here: HashMap<AxisId, AxisId> = kinds.map(|(axis, kind)| (axis, made.axis(axis, kind))).collect();
        made.axes = (here[&forward.row.1], here[&forward.columns[0].1]);
        made.inner = inner.map(|inner| here[&inner]);
        made
    }

    fn empty(forward: &'f Forward<'k>, name: String, orientation: Orientation) -> Self {
        let source = forward.kernel;
        let mut b = Builder::new(name);
        b.kernel.type_params.clone_from(&source.type_params);
        b.kernel.sizes = source.sizes.clone();
        Self {
            forward,
            b,
            orientation,
            axes: (AxisId(0), AxisId(0)),
            inner: None,
            turned: false,
            shares: Shares::None,
            indices: (HashSet::new(), HashSet::new()),
            known: HashMap::new(),
            counts: None,
            params: HashMap::new(),
            depths: HashMap::new(),
            constants: Vec::new(),
            walked: HashMap::new(),
        }
    }

    /// An axis of the forward kernel, here.
    fn axis(&mut self, of: AxisId, kind: AxisKind) -> AxisId {
        let axis = &self.forward.kernel.axes[of];
        self.b.axis(axis.name.clone(), axis.extent.clone(), kind)
    }

    /// Appends an op where its operands are: in as few loops as may be.
    pub fn op(&mut self, op: Op) -> ValueId {
        let mut depth = op.operands().iter().map(|v| self.depths.get(v).copied().unwrap_or(0)).max().unwrap_or(0);
        if let Op::Full { dims, .. } = &op {
            // A tile is where its axes are walked.
            let walked = |dim: &Dim| match dim {
                Dim::Axis(axis) => self.walked.get(axis).copied(),
                Dim::Range(_) => None,
            };
            depth = dims.iter().filter_map(walked).max().unwrap_or(0).max(depth);
        }
        let value = self.b.emit_at(depth, op);
        self.depths.insert(value, depth);
        value
    }

    /// Says that a value belongs to the loop that was opened last.
    fn in_loop(&mut self, value: ValueId) {
        self.depths.insert(value, self.b.depth());
        if let Type::Coord(axis) = *self.b.kernel.ty(value) {
            self.walked.insert(axis, self.b.depth());
        }
    }

    /// Makes the grid, each dimension of which stands for a value of the forward kernel.
    pub fn program(&mut self, grid: &[(ValueId, ProgramDim)]) {
        self.program_with(grid, None);
    }

    /// The same with tiles of one dimension more, which stands for nothing; gives its coordinate.
    pub fn program_with(&mut self, grid: &[(ValueId, ProgramDim)], further: Option<AxisId>) -> Option<ValueId> {
        let dims = grid.iter().map(|(_, dim)| dim.clone()).chain(further.map(ProgramDim::Tiles));
        let (_, program) = self.b.append(Op::Program(dims.collect()));
        for (&here, &(there, _)) in program.iter().zip(grid) {
            self.b.kernel.values[here].name.clone_from(&self.forward.kernel.values[there].name);
            self.known.insert(there, here);
        }
        further.and(program.last().copied())
    }

    /// Makes the grid of the forward kernel.
    pub fn whole_program(&mut self) {
        let forward = self.forward;
        let grid = forward.kernel.grid().iter().zip(&forward.program).map(|(dim, &v)| match dim {
            ProgramDim::Tiles(axis) if *axis == forward.row.1 => (v, ProgramDim::Tiles(self.axes.0)),
            ProgramDim::Tiles(_) => (v, ProgramDim::Tiles(self.axes.1)),
            each @ ProgramDim::Each(_) => (v, each.clone()),
        });
        let grid: Vec<(ValueId, ProgramDim)> = grid.collect();
        self.program(&grid);
    }

    /// Opens a loop; gives its coordinate and what it carries.
    pub fn open(&mut self, axis: AxisId, init: &[ValueId]) -> (ValueId, Vec<ValueId>) {
        let (here, carried) = self.b.begin_for(axis, init);
        carried.iter().chain([&here]).for_each(|&v| self.in_loop(v));
        (here, carried)
    }

    /// Opens a loop over each index of the forward kernel's grid that is not known here.
    pub fn open_indices(&mut self, init: &[ValueId]) -> Open {
        let forward = self.forward;
        let mut loops = Open::new();
        for (dim, &there) in forward.kernel.grid().iter().zip(&forward.program) {
            let ProgramDim::Each(extent) = dim else { continue };
            if self.known.contains_key(&there) {
                continue;
            }
            let axis = self.b.axis(forward.name(there), extent.clone(), AxisKind::Each);
            let (here, carried) = self.open(axis, loops.last().map_or(init, |(_, carried)| carried));
            self.known.insert(there, here);
            self.indices.0.insert(there);
            loops.push((axis, carried));
        }
        loops
    }

    /// Closes loops, from the innermost, which yields `next`; gives the results of the outermost,
    /// which started from `init`.
    pub fn close(&mut self, mut loops: Open, init: &[ValueId], next: Vec<ValueId>) -> Vec<ValueId> {
        let mut results = next;
        // What is behind the loops has what counts alone.
        self.counts = None;
        while let Some((axis, _)) = loops.pop() {
            let init = loops.last().map_or(init, |(_, carried)| carried).to_vec();
            results = self.b.end_for(axis, init, results);
            let depth = self.b.depth();
            self.depths.extend(results.iter().map(|&v| (v, depth)));
        }
        results
    }

    /// Opens a pass over the columns, with an axis of its own; gives what it carries.
    pub fn open_columns(&mut self, init: &[ValueId]) -> Vec<ValueId> {
        self.axes.1 = self.axis(self.forward.columns[0].1, AxisKind::Loop);
        let (coordinate, carried) = self.open(self.axes.1, init);
        self.columns_are(coordinate);
        carried
    }

    /// Says which coordinate columns have here.
    pub fn columns_are(&mut self, coordinate: ValueId) {
        for column in &self.forward.columns {
            self.known.insert(column.0, coordinate);
        }
    }

    /// Closes it; gives the results.
    pub fn close_columns(&mut self, init: Vec<ValueId>, next: Vec<ValueId>) -> Vec<ValueId> {
        let results = self.b.end_for(self.axes.1, init, next);
        let (depths, depth) = (&self.depths, self.b.depth());
        // What was made in the pass is not there behind it.
        self.known.retain(|_, v| depths.get(v).copied().unwrap_or(0) <= depth);
        self.walked.remove(&self.axes.1);
        results
    }

    /// Whether a value of the forward kernel changes with an index that a loop walks here.
    pub fn moves(&self, value: ValueId) -> bool {
        let (walked, fixed) = &self.indices;
        if walked.is_empty() || fixed.contains(&value) {
            return false;
        }
        let operands = || self.forward.kernel.def(value).map(|(_, op)| op.operands()).unwrap_or_default();
        walked.contains(&value) || operands().into_iter().any(|v| self.moves(v))
    }

    pub fn constant(&mut self, elem: Elem, x: f64) -> ValueId {
        let known = self.constants.iter().find(|(e, y, _)| *e == elem && y.to_bits() == x.to_bits());
        if let Some(&(.., value)) = known {
            return value;
        }
        let value = self.op(Op::Constant(elem, x));
        self.constants.push((elem, x, value));
        value
    }

    pub fn float(&mut self, x: f64) -> ValueId {
        self.constant(Elem::F32, x)
    }

    pub fn dims(&self, value: ValueId) -> Vec<Dim> {
        self.b.kernel.tile(value).dims.clone()
    }

    pub fn filled(&mut self, x: f64, dims: Vec<Dim>) -> ValueId {
        let value = self.float(x);
        if dims.is_empty() { value } else { self.op(Op::Full { value, dims }) }
    }

    /// A value, the same along the dimensions that it lacks.
    pub fn spread(&mut self, value: ValueId, dims: Vec<Dim>) -> ValueId {
        if self.dims(value).len() == dims.len() {
            return value;
        }
        let zeros = self.filled(0.0, dims);
        self.op(Op::Binary(BinaryOp::Add, zeros, value))
    }

    /// The number that a value is everywhere, if it is a constant.
    pub fn as_constant(&self, value: ValueId) -> Option<f64> {
        match *self.b.kernel.def(value)?.1 {
            Op::Constant(_, x) => Some(x),
            Op::Full { value, .. } => self.as_constant(value),
            _ => None,
        }
    }

    /// Whether a value is a number also where nothing is seen: it is no quotient, inverse root or
    /// logarithm of a length that may be 0 there.
    pub fn is_number(&self, value: ValueId) -> bool {
        self.makers(value).into_values().all(|op| match *op {
            Op::Binary(BinaryOp::Div, _, x) | Op::Unary(UnaryOp::Rsqrt | UnaryOp::Ln | UnaryOp::Log2, x) => !self.is_length(x),
            _ => true,
        })
    }

    /// Whether a value is made of a size that a launch knows, or of integers that are loaded.
    pub fn is_length(&self, value: ValueId) -> bool {
        let kernel = &self.b.kernel;
        self.makers(value).into_values().any(|op| match op {
            Op::SizeOf(size) => kernel.sizes[*size].kind != SizeKind::Const,
            Op::Load { tensor, .. } | Op::Gather { tensor, .. } => kernel.tensor(*tensor).elem == Elem::I32,
            _ => false,
        })
    }

    /// The ops that make a value, each once, as far as loads: not what places are made of.
    fn makers(&self, value: ValueId) -> HashMap<OpId, &Op> {
        let (mut found, mut waiting) = (HashMap::new(), vec![value]);
        while let Some(value) = waiting.pop() {
            let Some((id, op)) = self.b.kernel.def(value) else { continue };
            let is_new = found.insert(id, op).is_none();
            if is_new && !matches!(op, Op::Load { .. } | Op::Gather { .. }) {
                waiting.extend(op.operands());
            }
        }
        found
    }

    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        self.op(Op::Unary(op, x))
    }

    /// An elementwise op, without what changes nothing.
    pub fn binary(&mut self, op: BinaryOp, x: ValueId, y: ValueId) -> ValueId {
        let wider = |a: ValueId, b: ValueId| self.dims(a).len() >= self.dims(b).len();
        match (op, self.as_constant(x), self.as_constant(y)) {
            (BinaryOp::Mul, Some(1.0), _) if wider(y, x) => y,
            (BinaryOp::Mul | BinaryOp::Div | BinaryOp::DivOrZero, _, Some(1.0)) if wider(x, y) => x,
            (BinaryOp::Add, Some(0.0), _) if wider(y, x) => y,
            (BinaryOp::Add | BinaryOp::Sub, _, Some(0.0)) if wider(x, y) => x,
            _ => self.op(Op::Binary(op, x, y)),
        }
    }

    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryOp::Mul, x, y)
    }

    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryOp::Add, x, y)
    }

    /// A value in another element type, if it is not in it.
    pub fn cast(&mut self, x: ValueId, elem: Elem) -> ValueId {
        if self.b.kernel.tile(x).elem == elem { x } else { self.op(Op::Cast(elem, x)) }
    }

    /// One of two floats for each element, in f32: neither need be in the other's type.
    pub fn select(&mut self, cond: ValueId, yes: ValueId, no: ValueId) -> ValueId {
        let [on_true, on_false] = [yes, no].map(|v| self.cast(v, Elem::F32));
        self.op(Op::Select { cond, on_true, on_false })
    }

    /// A tile with its dimensions exchanged. In the kernel of an operand, which sums products up,
    /// that of a product is the product of the transposed operands in the other order: the sum has
    /// the order of the operand, and what is transposed is what products read.
    pub fn transposed(&mut self, x: ValueId) -> ValueId {
        match self.b.kernel.def(x) {
            Some((_, &Op::Transpose(x))) => x,
            Some((_, &Op::Dot { a, b, acc: None })) if self.inner.is_some() => {
                let (left, right) = (self.transposed(b), self.transposed(a));
                self.op(Op::Dot { a: left, b: right, acc: None })
            }
            _ => self.op(Op::Transpose(x)),
        }
    }

    /// The parameter of this name, made if it is not there.
    pub fn param(&mut self, name: &str, kind: ParamKind) -> ParamId {
        let b = &mut self.b;
        let make = || b.kernel.params.push(Param { name: name.to_owned(), kind, span: Span::default() });
        *self.params.entry(name.to_owned()).or_insert_with(make)
    }

    /// A tensor of this name.
    pub fn tensor(&mut self, name: &str, decl: TensorDecl) -> ParamId {
        self.param(name, ParamKind::Tensor(decl))
    }

    /// A tensor of the forward kernel, as an input here.
    pub fn input(&mut self, param: ParamId) -> ParamId {
        let Param { name, kind, .. } = self.forward.kernel.params[param].clone();
        let kind = match kind {
            ParamKind::Tensor(decl) => ParamKind::Tensor(TensorDecl { direction: Direction::In, ..decl }),
            scalar @ ParamKind::Scalar(_) => scalar,
        };
        self.param(&name, kind)
    }

    /// A dimension of the forward kernel, here.
    pub fn dim(&self, dim: &Dim) -> Dim {
        match dim {
            Dim::Axis(axis) if *axis == self.forward.row.1 => Dim::Axis(self.axes.0),
            Dim::Axis(axis) if self.forward.is_column_axis(*axis) => Dim::Axis(self.axes.1),
            Dim::Axis(_) => Dim::Axis(self.inner.expect("the axis that a product is summed along")),
            other => other.clone(),
        }
    }

    /// The dimensions here of a tile of the forward kernel: pairs in the order of this kernel.
    pub fn dims_of(&self, value: ValueId) -> Vec<Dim> {
        let dims: Vec<Dim> = self.forward.kernel.tile(value).dims.iter().map(|dim| self.dim(dim)).collect();
        if self.is_turned(&dims) { dims.into_iter().rev().collect() } else { dims }
    }

    /// Whether these are the dimensions of pairs, in the other order than that of this kernel.
    pub fn is_turned(&self, dims: &[Dim]) -> bool {
        let [rows, columns] = [self.axes.0, self.axes.1].map(Dim::Axis);
        match self.turned {
            false => dims == [columns, rows],
            true => dims == [rows, columns],
        }
    }

    /// Whether a tile of the forward kernel has pairs in the other order than that of this kernel.
    pub fn is_turned_there(&self, value: ValueId) -> bool {
        let dims: Vec<Dim> = self.forward.kernel.tile(value).dims.iter().map(|dim| self.dim(dim)).collect();
        self.is_turned(&dims)
    }

    /// Entries of an address, here.
    pub fn place(&mut self, at: &[At]) -> Result<Vec<At>, NotDifferentiable> {
        at.iter()
            .map(|at| {
                Ok(match at {
                    At::Index(v) => At::Index(self.value(*v)?),
                    At::Tile(v) => At::Tile(self.value(*v)?),
                    range @ At::Range { .. } => range.clone(),
                })
            })
            .collect()
    }

    /// A load, pairs in the order of this kernel.
    pub fn load(&mut self, tensor: ParamId, at: Vec<At>) -> ValueId {
        let value = self.op(Op::Load { tensor, at });
        if self.is_turned(&self.dims(value)) { self.transposed(value) } else { value }
    }

    /// A value of the forward kernel, here.
    pub fn value(&mut self, value: ValueId) -> Result<ValueId, NotDifferentiable> {
        let value = self.forward.canonical(value);
        if let Some(&known) = self.known.get(&value) {
            return Ok(known);
        }
        let forward = self.forward;
        let refuse = |what: String, instead: &str| Err(NotDifferentiable::new(what, forward.span(value), instead));
        let name = forward.name(value);
        let op = match forward.kernel.values[value].def {
            ValueDef::Result(op, _) => &forward.kernel.ops[op].op,
            ValueDef::BlockParam(..) => {
                return refuse(
                    format!("`{name}` is carried, and a gradient needs its values of every step"),
                    "compute it of the tile",
                );
            }
        };
        let made = match op {
            Op::For { .. } => {
                let slot = forward.slot(value).map(|slot| &forward.slots[slot]);
                if let Some(Slot { form: Form::Constant, init, .. }) = slot {
                    return self.value(*init);
                }
                let what = format!("`{name}` enters the outputs otherwise than by `acc / l` and `m + ln(l)`");
                return refuse(what, "store quotients of rescaled sums, and the logarithm of a sum with its maximum");
            }
            Op::Load { tensor, at } => {
                let at = self.place(at)?;
                let tensor = self.input(*tensor);
                self.load(tensor, at)
            }
            Op::Gather { tensor, at } => {
                let at = at.iter().map(|&v| self.value(v)).collect::<Result<_, _>>()?;
                let tensor = self.input(*tensor);
                self.op(Op::Gather { tensor, at })
            }
            Op::Scalar(param) => {
                let param = self.input(*param);
                self.op(Op::Scalar(param))
            }
            &Op::Constant(elem, x) => self.constant(elem, x),
            Op::Full { value: x, .. } => {
                let (x, dims) = (self.value(*x)?, self.dims_of(value));
                self.op(Op::Full { value: x, dims })
            }
            Op::Transpose(x) if forward.class(*x) == Class::Pair => self.value(*x)?,
            Op::Reduce(_, x) if forward.class(*x) == Class::Pair => {
                let what = format!("`{name}` reduces a tile of scores, and is no sum that the loop carries");
                return refuse(what, "reduce what rows or columns load");
            }
            &Op::Dot { a, b, acc: None } if forward.class(value) == Class::Pair => self.pair_product(value, a, b)?,
            &Op::Binary(op, a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.binary(op, a, b)
            }
            &Op::Compare(op, a, b) => {
                let [a, b] = self.of_one_type([a, b])?;
                self.op(Op::Compare(op, a, b))
            }
            &Op::Select { cond, on_true, on_false } => {
                let (cond, [on_true, on_false]) = (self.value(cond)?, self.of_one_type([on_true, on_false])?);
                self.op(Op::Select { cond, on_true, on_false })
            }
            op => {
                let mut operands = HashMap::new();
                for v in op.operands() {
                    operands.insert(v, self.value(v)?);
                }
                self.op(op.map_operands(|v| operands[&v]))
            }
        };
        let made = self.in_order(made, value);
        self.named(made, forward.kernel.values[value].name.clone());
        self.known.insert(value, made);
        Ok(made)
    }

    /// Two values of the forward kernel that have one type there. A forward pass may have stored one
    /// of them in another.
    fn of_one_type(&mut self, values: [ValueId; 2]) -> Result<[ValueId; 2], NotDifferentiable> {
        let [a, b] = [self.value(values[0])?, self.value(values[1])?];
        let elem = |v: ValueId| self.b.kernel.tile(v).elem;
        Ok(if elem(a) == elem(b) { [a, b] } else { [a, b].map(|v| self.cast(v, Elem::F32)) })
    }

    /// A value of two dimensions, in their order here: an elementwise op on one of each has the order of
    /// the axes.
    fn in_order(&mut self, made: ValueId, of: ValueId) -> ValueId {
        let is_tile = self.forward.kernel.ty(of).tile().is_some() && self.b.kernel.ty(made).tile().is_some();
        if !is_tile || self.dims(made).len() != 2 {
            return made;
        }
        let (own, wanted) = (self.dims(made), self.dims_of(of));
        if own != wanted && own.iter().rev().eq(&wanted) { self.op(Op::Transpose(made)) } else { made }
    }

    /// Names a value that has no name yet.
    pub fn named(&mut self, value: ValueId, name: Option<String>) {
        let is_short =
            matches!(self.b.kernel.def(value), Some((_, Op::Scalar(_) | Op::Constant(..) | Op::SizeOf(_) | Op::IndexConst(_))));
        let own = &mut self.b.kernel.values[value].name;
        if own.is_none() && !is_short {
            *own = name;
        }
    }

    /// A product of rows with columns; what does not count is hidden.
    fn pair_product(&mut self, value: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, NotDifferentiable> {
        let (a, b) = (self.value(a)?, self.value(b)?);
        let dims: Vec<Dim> = self.forward.kernel.tile(value).dims.iter().map(|dim| self.dim(dim)).collect();
        let product = if self.is_turned(&dims) {
            let (left, right) = (self.transposed(b), self.transposed(a));
            self.op(Op::Dot { a: left, b: right, acc: None })
        } else {
            self.op(Op::Dot { a, b, acc: None })
        };
        Ok(match self.counts {
            Some(keep) => self.op(Op::Mask { x: product, keep, fill: Fill::NegInf }),
            None => product,
        })
    }

    /// The sum of a value along what it has and `wanted` has not.
    pub fn summed_to(&mut self, value: ValueId, wanted: &[Dim]) -> Option<ValueId> {
        let own = self.dims(value);
        let lost: Vec<&Dim> = own.iter().filter(|dim| !wanted.contains(dim)).collect();
        match (own.as_slice(), lost.as_slice()) {
            (_, []) => Some(value),
            ([_, last], [dim]) if *dim == last => Some(self.op(Op::Reduce(ReduceOp::Sum, value))),
            ([_, _], [_]) => {
                let turned = self.op(Op::Transpose(value));
                Some(self.op(Op::Reduce(ReduceOp::Sum, turned)))
            }
            _ => None,
        }
    }

    /// The finished kernel: without what no store needs, its parameters in the order of `order`.
    pub fn finish(self, order: &dyn Fn(&str) -> usize) -> Kernel {
        let mut kernel = self.b.finish();
        let is_root =
            |op: &OpId| matches!(kernel.ops[*op].op, Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) | Op::For { .. });
        let roots = kernel.walk().into_iter().map(|(_, op)| op).filter(is_root);
        let (mut live, mut work) = (HashSet::new(), roots.flat_map(|op| kernel.ops[op].op.operands()).collect::<Vec<_>>());
        while let Some(v) = work.pop() {
            if let (true, Some((_, op))) = (live.insert(v), kernel.def(v)) {
                work.extend(op.operands());
            }
        }
        for block in kernel.blocks.keys() {
            let ops = std::mem::take(&mut kernel.blocks[block].ops);
            let keep = |op: &OpId| match &kernel.ops[*op].op {
                Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) | Op::Program(_) | Op::For { .. } => true,
                _ => kernel.ops[*op].results.iter().any(|r| live.contains(r)),
            };
            let ops = ops.into_iter().filter(keep).collect();
            kernel.blocks[block].ops = ops;
        }
        let used: HashSet<ParamId> =
            kernel.walk().into_iter().filter_map(|(_, op)| kernel.ops[op].op.clone().param_mut().copied()).collect();
        let mut ordered: Vec<ParamId> = kernel.params.keys().filter(|param| used.contains(param)).collect();
        ordered.sort_by_key(|&param| order(&kernel.params[param].name));
        let old = std::mem::take(&mut kernel.params);
        let map: HashMap<ParamId, ParamId> =
            ordered.into_iter().map(|param| (param, kernel.params.push(old[param].clone()))).collect();
        for (_, op) in kernel.walk() {
            if let Some(param) = kernel.ops[op].op.param_mut() {
                *param = map[&*param];
            }
        }
        kernel.renumbered()
    }
}
