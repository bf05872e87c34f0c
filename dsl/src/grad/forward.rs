//! What the forward kernel is made of: rows, columns and pairs of both.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::uses::Uses;
use super::{NotDifferentiable, Request};
use crate::analysis::streaming::{Base, Form, Streaming};
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, BlockId, Dim, Elem, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, ReduceOp, SizeExpr,
    Span, TensorDecl, UnaryOp, ValueDef, ValueId,
};

/// What a value differs along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Neither rows nor columns: it is one in a program.
    Program,
    /// Rows.
    Row,
    /// Columns.
    Column,
    /// Both.
    Pair,
}

impl Class {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Class::Program, x) | (x, Class::Program) => x,
            (x, y) if x == y => x,
            _ => Class::Pair,
        }
    }
}

/// A loop over tiles.
#[derive(Clone)]
pub(super) struct Walk {
    pub op: OpId,
    pub body: BlockId,
    /// Its coordinate, and its axis.
    pub at: (ValueId, AxisId),
}

/// What the tiles of a kernel are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// The grid has tiles of rows, and loops walk tiles of columns.
    Rows,
    /// The grid has tiles of rows and of columns, and one loop sums products up along another axis.
    Product,
}

/// A value that a loop carries.
#[derive(Clone)]
pub(super) struct Slot {
    /// The loop, by its number.
    pub walk: usize,
    /// How it moves. The maximum of a rescaled sum is given by its slot of the kernel.
    pub form: Form,
    pub init: ValueId,
    pub carried: ValueId,
    /// What a step yields.
    pub next: ValueId,
    pub result: ValueId,
}

/// A load whose gradient is wanted: what it gives, the tensor, and the place of its gradient.
pub(super) type WantedLoad = (ValueId, ParamId, Vec<At>);

/// A gather of an input whose gradient is wanted.
pub(super) struct Gathered {
    pub value: ValueId,
    pub tensor: ParamId,
    /// The entries of the gather.
    pub at: Vec<ValueId>,
}

/// The forward kernel, taken apart.
#[derive(Clone)]
pub(super) struct Forward<'k> {
    pub kernel: &'k Kernel,
    /// Results of `program`.
    pub program: Vec<ValueId>,
    pub shape: Shape,
    /// The coordinate of the rows, and its axis.
    pub row: (ValueId, AxisId),
    /// Coordinates of the columns, each with its axis. All have the same positions.
    pub columns: Vec<(ValueId, AxisId)>,
    /// The loops, in their order.
    pub walks: Vec<Walk>,
    /// What they carry.
    pub slots: Vec<Slot>,
    /// Values that depend on an input whose gradient is wanted.
    pub needed: HashSet<ValueId>,
    /// Inputs whose gradients are wanted; of what has several uses, each of these.
    pub wanted: Vec<ParamId>,
    uses: Uses,
    /// Loads of these that are gone back to; `None` is all.
    sources: Option<HashSet<ValueId>>,
    /// Outputs whose gradients are given.
    pub given: Vec<ParamId>,
    classes: HashMap<ValueId, Class>,
    /// Values of loop bodies that change from tile to tile.
    varying: HashSet<ValueId>,
    /// What differs along columns alone and is summed over rows: it is another number in each program
    /// of rows, and in each step of a loop over them.
    over_rows: HashSet<ValueId>,
}

impl<'k> Forward<'k> {
    /// Takes a kernel apart whose inputs have these uses.
    pub fn of(kernel: &'k Kernel, request: &Request, uses: &Uses) -> Result<Self, NotDifferentiable> {
        let refuse = |what: &str, span: Span, instead: &str| Err(NotDifferentiable::new(what, span, instead));
        let wanted = params(kernel, &request.of, false)?.into_iter().flat_map(|input| uses.of(input)).collect();
        let given = params(kernel, &request.from, true)?;
        let Some(&first) = kernel.blocks[kernel.body].ops.first() else {
            return refuse("the kernel is empty", kernel.name_span, "write a kernel");
        };
        let program = kernel.ops[first].results.clone();
        let tiled: Vec<usize> = (0..program.len()).filter(|&d| matches!(kernel.grid()[d], ProgramDim::Tiles(_))).collect();
        let (walks, slots) = taken_apart(kernel)?;
        let coordinate = |dim: usize| match kernel.grid()[dim] {
            ProgramDim::Tiles(axis) => (program[dim], axis),
            ProgramDim::Each(_) => unreachable!("a dimension of tiles"),
        };
        let (shape, row, columns) = match *tiled.as_slice() {
            [rows] => (Shape::Rows, coordinate(rows), walks.iter().map(|walk| walk.at).collect()),
            [rows, columns] => (Shape::Product, coordinate(rows), vec![coordinate(columns)]),
            _ => {
                let what = "gradients are built of kernels with one or two tiled dimensions of the grid";
                return refuse(what, kernel.name_span, "give the grid one `tiles(..)`, and loop over the other axis");
            }
        };
        if shape == Shape::Product {
            check_product(kernel, &walks, &slots, [row.1, columns[0].1])?;
        }
        let mut made = Self {
            kernel,
            shape,
            row,
            columns,
            program,
            walks,
            slots,
            needed: HashSet::new(),
            wanted,
            uses: uses.clone(),
            sources: None,
            given,
            classes: HashMap::new(),
            varying: HashSet::new(),
            over_rows: HashSet::new(),
        };
        made.classify();
        made.check_loads()?;
        Ok(made)
    }

    /// Takes inputs out of what is wanted on which no given output depends by what has a gradient, and
    /// gives these: they have the gradient 0.
    pub fn without_effect(&mut self) -> Vec<ParamId> {
        let reaches = |of: &Self| {
            // What a maximum starts from enters the sums that it rescales.
            let starts = of.slots.iter().any(|slot| of.needed.contains(&slot.init));
            starts
                || of.in_order().into_iter().any(|op| match &of.kernel.ops[op].op {
                    Op::Store { tensor, value, .. } | Op::Scatter { tensor, value, .. } => {
                        of.given.contains(tensor) && of.needed.contains(value)
                    }
                    _ => false,
                })
        };
        let (kept, without) = std::mem::take(&mut self.wanted)
            .into_iter()
            .partition(|&tensor| reaches(&Self { wanted: vec![tensor], ..self.clone() }.classified()));
        self.wanted = kept;
        self.classify();
        without
    }

    fn classified(mut self) -> Self {
        self.classify();
        self
    }

    /// The same for some of the loads, and for some of what is gathered.
    pub fn only<'a>(
        &self,
        loads: impl IntoIterator<Item = &'a WantedLoad>,
        gathers: impl IntoIterator<Item = &'a Gathered>,
    ) -> Self {
        let of_gathers = gathers.into_iter().map(|gathered| (gathered.value, gathered.tensor));
        let loads: Vec<_> = loads.into_iter().map(|load| (load.0, load.1)).chain(of_gathers).collect();
        let wanted: BTreeSet<ParamId> = loads.iter().map(|load| load.1).collect();
        let sources = Some(loads.iter().map(|load| load.0).collect());
        Self { wanted: wanted.into_iter().collect(), sources, ..self.clone() }.classified()
    }

    /// The same, in which what is made of the loops' results, in later loops too, is needed where it
    /// is in another one.
    pub fn with_results_of(mut self, other: &Self) -> Self {
        let mut made: HashSet<ValueId> = HashSet::new();
        for op in self.in_order() {
            let data = &self.kernel.ops[op];
            if self.walk_of(op).is_some() || data.op.operands().iter().any(|v| made.contains(v)) {
                made.extend(&data.results);
            }
        }
        self.needed.extend(made.into_iter().filter(|v| other.needed.contains(v)));
        self
    }

    /// Checks that the gradients of wanted inputs can be summed.
    fn check_loads(&self) -> Result<(), NotDifferentiable> {
        for op in self.in_order() {
            if let Op::Gather { tensor, .. } = &self.kernel.ops[op].op
                && self.wanted.contains(tensor)
            {
                self.check_gather(self.kernel.ops[op].results[0], &self.kernel.params[*tensor].name)?;
            }
            if let Op::Dot { a, b, .. } = self.kernel.ops[op].op
                && self.shape == Shape::Product
                && !self.is_in_loop(op)
                && [a, b].iter().any(|v| self.needed.contains(v))
            {
                let what = "this product is made beside the loop that sums another one up, and its operands have gradients";
                let instead = "make it in a kernel of its own, and add what that stores: `load(.., [i, j])`";
                return Err(NotDifferentiable::new(what, self.kernel.ops[op].span, instead));
            }
            let Op::Load { tensor, .. } = self.kernel.ops[op].op else { continue };
            let value = self.kernel.ops[op].results[0];
            if self.shape == Shape::Product
                && self.wanted.contains(&tensor)
                && self.class(value) == Class::Program
                && let Some(&op) = self.users_by_side(value)[0].first()
            {
                let name = &self.kernel.params[tensor].name;
                let what = format!("`{name}` changes what columns load, and its gradient would be a sum over them");
                let instead = "leave it out, or apply it to the columns in a kernel of its own";
                return Err(NotDifferentiable::new(what, self.kernel.ops[op].span, instead));
            }
        }
        Ok(())
    }

    /// The tensor that the gradient of a wanted input is stored in: its name, and its declaration.
    pub fn gradient(&self, tensor: ParamId) -> (String, TensorDecl) {
        self.uses.gradient(self.kernel, tensor)
    }

    /// Ops that take a value of the whole program, or what is made of it alone: those that make what
    /// columns have, and others.
    pub fn users_by_side(&self, value: ValueId) -> [Vec<OpId>; 2] {
        let (mut of_value, mut sides) = (HashSet::from([value]), [Vec::new(), Vec::new()]);
        for op in self.in_order() {
            let data = &self.kernel.ops[op];
            if data.results.iter().any(|&result| self.canonical(result) == value) {
                of_value.extend(&data.results);
            }
            if !data.op.operands().iter().any(|v| of_value.contains(v)) {
                continue;
            }
            match data.results.first().map(|&result| self.class(result)) {
                Some(Class::Column) => sides[0].push(op),
                Some(Class::Program) if self.walk_of(op).is_none() => of_value.extend(&data.results),
                _ => sides[1].push(op),
            }
        }
        sides
    }

    /// Whether a value of the whole program changes what columns load.
    pub fn is_for_columns(&self, value: ValueId) -> bool {
        self.shape == Shape::Rows && self.class(value) == Class::Program && !self.users_by_side(value)[0].is_empty()
    }

    /// What a value differs along.
    pub fn class(&self, value: ValueId) -> Class {
        self.classes.get(&value).copied().unwrap_or(Class::Program)
    }

    /// Whether a value of a loop's body changes from tile to tile.
    pub fn varies(&self, value: ValueId) -> bool {
        self.varying.contains(&value)
    }

    /// Whether a value of columns is summed over the rows of one tile.
    pub fn is_over_rows(&self, value: ValueId) -> bool {
        self.over_rows.contains(&value)
    }

    /// The result of a loop that a value is, by its slot.
    pub fn slot(&self, value: ValueId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.result == value)
    }

    /// The op that stands for all loads of the same tile, in whichever loop they are.
    pub fn canonical(&self, value: ValueId) -> ValueId {
        let Some((_, op @ Op::Load { .. })) = self.kernel.def(value) else { return value };
        // All loops walk the same columns, and an index is one value (`alike.rs`).
        let place = |op: &Op| op.map_operands(|v| if self.is_column(v) { self.columns[0].0 } else { v });
        let same = |&(_, id): &(BlockId, OpId)| {
            let other = &self.kernel.ops[id].op;
            matches!(other, Op::Load { .. }) && place(other) == place(op)
        };
        let first = self.kernel.walk().into_iter().find(same).expect("the load itself");
        self.kernel.ops[first.1].results[0]
    }

    /// All loads of the tile that a load stands for.
    pub fn loads_like(&self, canonical: ValueId) -> impl Iterator<Item = ValueId> {
        let of = |(_, id): (BlockId, OpId)| match self.kernel.ops[id].op {
            Op::Load { .. } => Some(self.kernel.ops[id].results[0]),
            _ => None,
        };
        self.kernel.walk().into_iter().filter_map(of).filter(move |&load| self.canonical(load) == canonical)
    }

    /// Whether an index differs from program to program.
    pub fn depends_on_program(&self, v: ValueId) -> bool {
        let operands = || self.kernel.def(v).map(|(_, op)| op.operands()).unwrap_or_default();
        self.program.contains(&v) || operands().into_iter().any(|v| self.depends_on_program(v))
    }

    /// The dimensions of the grid that have a program for each index.
    pub fn each_dims(&self) -> impl Iterator<Item = (ValueId, SizeExpr)> {
        self.kernel.grid().iter().zip(&self.program).filter_map(|(dim, &v)| match dim {
            ProgramDim::Each(extent) => Some((v, extent.clone())),
            ProgramDim::Tiles(_) => None,
        })
    }

    /// Those of them that values depend on.
    pub fn dims_behind(&self, values: &[ValueId]) -> Vec<(ValueId, SizeExpr)> {
        let (mut work, mut seen) = (values.to_vec(), HashSet::new());
        while let Some(v) = work.pop() {
            if seen.insert(v) {
                work.extend(self.kernel.def(v).map(|(_, op)| op.operands()).unwrap_or_default());
            }
        }
        self.each_dims().filter(|(v, _)| seen.contains(v)).collect()
    }

    /// How many numbers an index has: of a dimension of the grid that one's, of another index the
    /// least extent of what is loaded at it.
    pub fn count_of(&self, index: ValueId) -> Result<SizeExpr, NotDifferentiable> {
        if let Some(dim) = self.program.iter().position(|v| *v == index)
            && let ProgramDim::Each(extent) = &self.kernel.grid()[dim]
        {
            return Ok(extent.clone());
        }
        let mut least: Option<SizeExpr> = None;
        for op in self.in_order() {
            let Op::Load { tensor, at } = &self.kernel.ops[op].op else { continue };
            let along = |(entry, extent): (&At, _)| (*entry == At::Index(index)).then_some(extent);
            for extent in at.iter().zip(&self.kernel.tensor(*tensor).shape).filter_map(along) {
                let Some(other) = &least else {
                    least = Some(extent.clone());
                    continue;
                };
                match extent.sub(other).as_constant() {
                    Some(0..) => {}
                    Some(_) => least = Some(extent.clone()),
                    None => {
                        let of = |size: &SizeExpr| self.kernel.size_text(size);
                        let index = self.name(index);
                        let what = format!("`{index}` is an index of dimensions of {} and of {}", of(other), of(extent));
                        let instead = "give what is loaded at one index one extent";
                        return Err(NotDifferentiable::new(what, self.kernel.ops[op].span, instead));
                    }
                }
            }
        }
        Ok(least.expect("something is loaded at the index"))
    }

    /// Whether a value is the coordinate of columns.
    pub fn is_column(&self, value: ValueId) -> bool {
        self.columns.iter().any(|column| column.0 == value)
    }

    /// Whether an axis is that of columns, of the grid or of one of the loops.
    pub fn is_column_axis(&self, axis: AxisId) -> bool {
        self.columns.iter().any(|column| column.1 == axis)
    }

    /// Whether an op is in the body of a loop.
    pub fn is_in_loop(&self, op: OpId) -> bool {
        self.walks.iter().any(|walk| self.kernel.blocks[walk.body].ops.contains(&op))
    }

    /// The loop that an op is, by its number.
    pub fn walk_of(&self, op: OpId) -> Option<usize> {
        self.walks.iter().position(|walk| walk.op == op)
    }

    /// Name of a value, for errors.
    pub fn name(&self, value: ValueId) -> String {
        self.kernel.values[value].name.clone().unwrap_or_else(|| value.to_string())
    }

    /// The name of what a loop carries, with a number where an earlier one has the same name: a
    /// later loop may go on with what an earlier one has made.
    pub fn name_of_slot(&self, slot: usize) -> String {
        let own = |slot: &Slot| self.name(slot.carried);
        let is_own = |name: &str| self.slots.iter().any(|slot| own(slot) == name);
        let mut taken: Vec<String> = Vec::new();
        for other in &self.slots[..=slot] {
            let name = own(other);
            if !taken.contains(&name) {
                taken.push(name);
                continue;
            }
            let numbered = (2..).map(|n| format!("{name}{n}")).find(|name| !is_own(name) && !taken.contains(name));
            taken.push(numbered.expect("numbers do not end"));
        }
        taken.pop().expect("the slot itself")
    }

    /// The place of a value in the text.
    pub fn span(&self, value: ValueId) -> Span {
        match self.kernel.values[value].def {
            ValueDef::Result(op, _) => self.kernel.ops[op].span,
            ValueDef::BlockParam(block, _) => {
                let walk = self.walks.iter().find(|walk| walk.body == block);
                walk.map_or(self.kernel.name_span, |walk| self.kernel.ops[walk.op].span)
            }
        }
    }

    /// Classes and what is needed, anew, in the order of the ops.
    fn classify(&mut self) {
        let kernel = self.kernel;
        self.classes.clear();
        self.needed.clear();
        self.varying.clear();
        self.over_rows.clear();
        self.classes.insert(self.row.0, Class::Row);
        for column in &self.columns {
            self.classes.insert(column.0, Class::Column);
        }
        // The loop of a product is walked by no kernel of its gradient.
        for walk in self.walks.iter().filter(|_| self.shape == Shape::Rows) {
            self.varying.extend(&kernel.blocks[walk.body].params);
        }
        // A running maximum is held fixed.
        let (mut maxima, mut fixed) = (HashSet::new(), HashSet::new());
        for slot in &self.slots {
            if let Form::RunningMaximum { scores } = &slot.form {
                maxima.extend(scores.iter().copied());
                fixed.insert(slot.result);
            }
            let class = Class::Row.and(self.along(slot.carried));
            self.classes.insert(slot.carried, class);
            self.classes.insert(slot.result, class);
        }
        for op in self.in_order() {
            let data = &kernel.ops[op];
            let reads = data.op.operands();
            let class = match data.op {
                Op::Program(_) => continue,
                // What a loop sums up differs along rows alone.
                Op::Reduce(..) | Op::Dot { .. } => self.along(data.results[0]),
                // One number may be spread over a tile.
                Op::Full { value, .. } => self.class(value).and(self.along(data.results[0])),
                _ => reads.iter().fold(Class::Program, |class, &v| class.and(self.class(v))),
            };
            // A kernel of rows adds to the gradient of what a step gathers for each pair.
            let class = match class {
                Class::Row if self.is_gathered_in_steps(op) => Class::Pair,
                class => class,
            };
            let of_rows = |&v: &ValueId| matches!(self.class(v), Class::Row | Class::Pair) || self.is_over_rows(v);
            if class == Class::Column && reads.iter().any(of_rows) {
                self.over_rows.extend(&data.results);
            }
            let wanted = self.is_source(op);
            // A step function has the gradient 0, and a maximum that rescales is held fixed.
            let held = match data.op {
                Op::Unary(UnaryOp::Floor, _) => true,
                Op::Reduce(ReduceOp::Max, x) => maxima.contains(&x),
                _ => false,
            };
            let needed = !held && (wanted || reads.iter().any(|v| self.needed.contains(v)));
            if self.walk_of(op).is_none() && reads.iter().any(|v| self.varying.contains(v)) {
                self.varying.extend(&data.results);
            }
            for &result in &data.results {
                let class = if self.walk_of(op).is_some() { self.class(result) } else { class };
                let needed = match self.slot(result) {
                    Some(slot) => self.moved_by(slot).iter().any(|v| self.needed.contains(v)),
                    None => needed,
                };
                self.classes.insert(result, class);
                let is_float = kernel.ty(result).tile().is_some_and(|tile| tile.elem.is_float());
                if needed && is_float && !fixed.contains(&result) {
                    self.needed.insert(result);
                }
            }
        }
    }

    /// What a carried value moves by: what it starts from, what a step yields, and what a maximum that
    /// rescales it starts from.
    fn moved_by(&self, slot: usize) -> Vec<ValueId> {
        let Slot { init, next, ref form, .. } = self.slots[slot];
        let start = match *form {
            Form::RescaledSum { maximum, .. } => Some(self.slots[maximum].init),
            _ => None,
        };
        [init, next].into_iter().chain(start).collect()
    }

    /// Whether an op loads what the gradient is wanted of.
    fn is_source(&self, op: OpId) -> bool {
        let of = matches!(&self.kernel.ops[op].op, Op::Load { tensor, .. } | Op::Gather { tensor, .. } if self.wanted.contains(tensor));
        let sources = self.sources.as_ref();
        of && sources.is_none_or(|sources| sources.contains(&self.canonical(self.kernel.ops[op].results[0])))
    }

    /// The class by the dimensions of a tile.
    fn along(&self, value: ValueId) -> Class {
        let dims = &self.kernel.tile(value).dims;
        let of = |axis: AxisId, class: Class| if dims.contains(&Dim::Axis(axis)) { class } else { Class::Program };
        let column = self.columns.iter().any(|column| dims.contains(&Dim::Axis(column.1)));
        of(self.row.1, Class::Row).and(if column { Class::Column } else { Class::Program })
    }

    /// All ops, those of a loop's body before the loop itself.
    pub fn in_order(&self) -> Vec<OpId> {
        let kernel = self.kernel;
        let mut out = Vec::new();
        for &op in &kernel.blocks[kernel.body].ops {
            if let Some(walk) = self.walk_of(op) {
                out.extend(&kernel.blocks[self.walks[walk].body].ops);
            }
            out.push(op);
        }
        out
    }

    /// Where an output holds `m + ln(l)` of a running maximum: the output, its place, and the sum.
    pub fn stored_reference(&self, maximum: usize) -> Option<(ParamId, Vec<At>, usize)> {
        self.stores().into_iter().find_map(|(tensor, at, value)| {
            let slot = self.reference(value, maximum)?;
            (self.kernel.tensor(tensor).elem == Elem::F32).then_some((tensor, at, slot))
        })
    }

    /// The sum `l`, if a value is `m + ln(l)`.
    pub fn reference(&self, value: ValueId, maximum: usize) -> Option<usize> {
        let kernel = self.kernel;
        let Some((_, &Op::Binary(BinaryOp::Add, a, b))) = kernel.def(value) else { return None };
        let logarithm = |v: ValueId| match *kernel.def(v)?.1 {
            Op::Unary(UnaryOp::Ln, x) => Some((self.slot(x)?, Base::E)),
            Op::Unary(UnaryOp::Log2, x) => Some((self.slot(x)?, Base::Two)),
            _ => None,
        };
        let of = |m: ValueId, ln: ValueId| (self.slot(m) == Some(maximum)).then(|| logarithm(ln)).flatten();
        let (slot, base) = of(a, b).or_else(|| of(b, a))?;
        matches!(self.slots[slot].form, Form::RescaledSum { maximum: m, base: own, .. } if m == maximum && own == base)
            .then_some(slot)
    }

    /// Where an output holds the quotient of two results of the loop.
    pub fn stored_quotient(&self, above: usize, below: usize) -> Option<(ParamId, Vec<At>)> {
        let kernel = self.kernel;
        self.stores().into_iter().find_map(|(tensor, at, value)| {
            let uncast = match kernel.def(value) {
                Some((_, &Op::Cast(_, x))) => x,
                _ => value,
            };
            let Some((_, &Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, b))) = kernel.def(uncast) else { return None };
            (self.slot(a) == Some(above) && self.slot(b) == Some(below)).then_some((tensor, at))
        })
    }

    /// Loads of inputs whose gradients are wanted: one of each tile.
    pub fn wanted_loads(&self, class: Class) -> Vec<WantedLoad> {
        let of = |op: OpId| match &self.kernel.ops[op].op {
            Op::Load { tensor, at } if self.is_source(op) => {
                let value = self.kernel.ops[op].results[0];
                let place = || self.uses.place(*tensor, at);
                (self.canonical(value) == value && self.class(value) == class).then(|| (value, *tensor, place()))
            }
            _ => None,
        };
        self.in_order().into_iter().filter_map(of).collect()
    }

    /// Whether a load has a number for each pair, at a tile of rows and at one of columns.
    pub fn is_of_pairs(&self, (value, _, at): &WantedLoad) -> bool {
        let has = |is: &dyn Fn(ValueId) -> bool| at.iter().any(|entry| matches!(entry, At::Tile(v) if is(*v)));
        self.class(*value) == Class::Pair && has(&|v| v == self.row.0) && has(&|v| self.is_column(v))
    }

    /// Those of the whole program that change what columns load, or those that do not.
    pub fn wanted_of_programs(&self, for_columns: bool) -> Vec<WantedLoad> {
        let mut loads = self.wanted_loads(Class::Program);
        loads.retain(|load| self.is_for_columns(load.0) == for_columns);
        loads
    }

    /// Gathers of inputs whose gradients are wanted, of rows, of columns, or of pairs.
    pub fn wanted_gathers(&self, class: Class) -> Vec<Gathered> {
        let of = |op| match &self.kernel.ops[op].op {
            Op::Gather { tensor, at } if self.is_source(op) => {
                let value = self.kernel.ops[op].results[0];
                (self.class(value) == class).then(|| Gathered { value, tensor: *tensor, at: at.clone() })
            }
            _ => None,
        };
        self.in_order().into_iter().filter_map(of).collect()
    }

    /// All of them.
    pub fn gathers(&self) -> Vec<Gathered> {
        self.gathers_of_rows().into_iter().chain(self.wanted_gathers(Class::Column)).collect()
    }

    /// Those that kernels of rows add to. Those of columns have sums of their own: a kernel clears
    /// the tensor that it adds to.
    pub fn gathers_of_rows(&self) -> Vec<Gathered> {
        [Class::Row, Class::Pair].into_iter().flat_map(|class| self.wanted_gathers(class)).collect()
    }

    /// Checks that the gradient of a gather can be added where the kernels go back to it.
    fn check_gather(&self, value: ValueId, name: &str) -> Result<(), NotDifferentiable> {
        let refuse = |what: String, instead: &str| Err(NotDifferentiable::new(what, self.span(value), instead));
        if self.shape != Shape::Rows {
            return refuse(
                format!("`{name}` is gathered by a matrix product"),
                "leave it out: gradients of what is gathered are built of kernels that loop over columns",
            );
        }
        if matches!(self.class(value), Class::Row | Class::Column) {
            return Ok(());
        }
        let pair = [self.row.1].into_iter().chain(self.columns.iter().map(|column| column.1)).map(Dim::Axis).collect::<Vec<_>>();
        let mut made = HashSet::from([value]);
        for op in self.in_order() {
            let data = &self.kernel.ops[op];
            let [result] = data.results[..] else { continue };
            if !data.op.operands().iter().any(|v| made.contains(v)) {
                continue;
            }
            let dims = &self.kernel.tile(result).dims;
            if !data.op.is_elementwise() || dims.iter().any(|dim| !pair.contains(dim)) {
                return refuse(
                    format!("`{name}` is gathered for each pair, and something else than a score is made of it"),
                    "leave it out, or store what is gathered by a kernel of its own, and load that",
                );
            }
            if dims.len() < 2 {
                made.insert(result);
            }
        }
        Ok(())
    }

    /// Whether an op gathers what is wanted for the step of a loop.
    fn is_gathered_in_steps(&self, op: OpId) -> bool {
        let data = &self.kernel.ops[op];
        matches!(data.op, Op::Gather { .. }) && self.is_source(op) && data.op.operands().into_iter().any(|v| self.varies(v))
    }

    /// Whether what follows the loops, or what they start from, is made of a value otherwise than
    /// by their steps.
    pub fn is_used_outside(&self, value: ValueId) -> bool {
        let kernel = self.kernel;
        let (mut made, mut behind) = (HashSet::from([value]), false);
        for &op in &kernel.blocks[kernel.body].ops {
            let data = &kernel.ops[op];
            let used = data.op.operands().iter().any(|v| made.contains(v));
            if self.walk_of(op).is_some() {
                if used {
                    return true;
                }
                behind = true;
                continue;
            }
            if used {
                if behind {
                    return true;
                }
                made.extend(&data.results);
            }
        }
        false
    }

    /// Whether the loads of an input hold each of its elements, as far as their places show.
    pub fn is_covered(&self, tensor: ParamId) -> bool {
        if self.gathers().iter().any(|gathered| gathered.tensor == tensor) {
            return true;
        }
        let shape = &self.gradient(tensor).1.shape;
        let loads = [Class::Program, Class::Row, Class::Column, Class::Pair].map(|class| self.wanted_loads(class));
        let places: Vec<&[At]> = loads.iter().flatten().filter(|load| load.1 == tensor).map(|load| &load.2[..]).collect();
        let has_twice =
            |at: &&[At]| at.iter().enumerate().any(|(n, entry)| matches!(entry, At::Index(_)) && at[..n].contains(entry));
        if places.is_empty() || places.iter().any(has_twice) {
            return false;
        }
        // One dimension may be covered by several loads, all others by each of them.
        let by_all = |dim: usize, scale: i64| {
            let mut parts: Vec<_> = places.iter().filter_map(|at| at_scale(self.kernel, &at[dim], scale)).collect();
            parts.sort_unstable();
            let end = parts.into_iter().fold(0, |end, (start, len)| if start <= end { end.max(start + len) } else { end });
            size_at_scale(&shape[dim], scale) == Some(end)
        };
        let by_each = |dim: usize| places.iter().all(|at| self.is_whole(&at[dim], &shape[dim]));
        let parted: Vec<usize> = (0..shape.len()).filter(|&dim| !by_each(dim)).collect();
        match parted[..] {
            [] => true,
            [dim] => SCALES.into_iter().all(|scale| by_all(dim, scale)),
            _ => false,
        }
    }

    /// Whether programs and tiles of a place go over a whole dimension.
    fn is_whole(&self, at: &At, extent: &SizeExpr) -> bool {
        match at {
            At::Tile(_) => true,
            At::Range { start, len } => *start == SizeExpr::constant(0) && len == extent,
            // Where programs share columns, each has a program.
            At::Index(v) => self.depends_on_program(*v) && self.count_of(*v).is_ok_and(|count| count == *extent),
        }
    }

    /// The stores of the kernel.
    pub fn stores(&self) -> Vec<(ParamId, Vec<At>, ValueId)> {
        let of = |op: OpId| match &self.kernel.ops[op].op {
            Op::Store { tensor, at, value } => Some((*tensor, at.clone(), *value)),
            _ => None,
        };
        self.in_order().into_iter().filter_map(of).collect()
    }
}

/// The loops of a kernel, and what they carry.
fn taken_apart(kernel: &Kernel) -> Result<(Vec<Walk>, Vec<Slot>), NotDifferentiable> {
    let refuse = |what: &str, span: Span, instead: &str| Err(NotDifferentiable::new(what, span, instead));
    let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
    let (mut walks, mut slots): (Vec<Walk>, Vec<Slot>) = (Vec::new(), Vec::new());
    for op in kernel.walk().into_iter().map(|(_, op)| op).filter(is_loop) {
        let Op::For { axis, body, ref init, .. } = kernel.ops[op].op else { unreachable!("a loop") };
        let span = kernel.ops[op].span;
        if kernel.axes[axis].kind != AxisKind::Loop {
            let what = "an index loop, `for t in 0..T`, has no gradient yet";
            let instead = "walk tiles, `for j in tiles(N)`, or give each `t` a program and sum up in a kernel of its own";
            return refuse(what, span, instead);
        }
        if !kernel.blocks[kernel.body].ops.contains(&op) {
            let what = "gradients are built of loops that stand in no other one";
            return refuse(what, span, "write one loop over the columns");
        }
        if walks.first().is_some_and(|first: &Walk| kernel.axes[first.at.1].extent != kernel.axes[axis].extent) {
            let what = "gradients are built of loops that walk the same positions";
            return refuse(what, span, "give all loops the same extent");
        }
        let (first, walk) = (slots.len(), walks.len());
        let next = yielded(kernel, body);
        for (n, mut form) in Streaming::of(kernel, op).forms.into_iter().enumerate() {
            let carried = kernel.blocks[body].params[n + 1];
            match &mut form {
                Form::Other(why) => {
                    let name = kernel.values[carried].name.clone().unwrap_or_else(|| carried.to_string());
                    let what = format!("`{name}` is no streaming reduction: {why}");
                    return refuse(&what, span, "carry maxima, sums and sums that a maximum rescales");
                }
                Form::RescaledSum { maximum, .. } => *maximum += first,
                _ => {}
            }
            let result = kernel.ops[op].results[n];
            slots.push(Slot { walk, form, init: init[n], carried, next: next[n], result });
        }
        walks.push(Walk { op, body, at: (kernel.blocks[body].params[0], axis) });
    }
    Ok((walks, slots))
}

/// Checks that a kernel with tiles of rows and of columns has one loop, which sums up.
fn check_product(kernel: &Kernel, walks: &[Walk], slots: &[Slot], tiled: [AxisId; 2]) -> Result<(), NotDifferentiable> {
    if let Some(second) = walks.get(1) {
        let what = "gradients of kernels with two tiled dimensions of the grid are built of one loop";
        return Err(NotDifferentiable::new(what, kernel.ops[second.op].span, "sum all products up in one loop"));
    }
    if let Some(slot) = slots.iter().find(|slot| !matches!(slot.form, Form::Sum { .. })) {
        let name = kernel.values[slot.carried].name.clone().unwrap_or_else(|| slot.carried.to_string());
        let what = format!("`{name}` is no sum, in a kernel with two tiled dimensions of the grid");
        return Err(NotDifferentiable::new(what, kernel.ops[walks[0].op].span, "give the grid one `tiles(..)`"));
    }
    let is_pair = |slot: &Slot| tiled.iter().all(|&axis| kernel.tile(slot.carried).dims.contains(&Dim::Axis(axis)));
    if let Some(slot) = slots.iter().find(|slot| !is_pair(slot)) {
        let name = kernel.values[slot.carried].name.clone().unwrap_or_else(|| slot.carried.to_string());
        let what = format!(
            "`{name}` has not both of the tiled dimensions of the grid, which sums have of a product that has a gradient"
        );
        let instead = format!("sum `{name}` up in a kernel of its own, and multiply it in another one, which loads it");
        return Err(NotDifferentiable::new(what, kernel.ops[walks[0].op].span, instead));
    }
    let stores = |op: &&OpId| matches!(kernel.ops[**op].op, Op::Store { .. });
    let in_loop = walks.first().and_then(|walk| kernel.blocks[walk.body].ops.iter().find(stores));
    if let Some(&op) = in_loop {
        let what = "gradients of kernels with two tiled dimensions of the grid are built of stores behind the loop";
        return Err(NotDifferentiable::new(what, kernel.ops[op].span, "store behind the loop"));
    }
    Ok(())
}

/// What a step of a loop yields.
fn yielded(kernel: &Kernel, body: BlockId) -> Vec<ValueId> {
    match kernel.blocks[body].ops.last().map(|&op| &kernel.ops[op].op) {
        Some(Op::Yield(next)) => next.clone(),
        _ => unreachable!("verified: a loop body ends in a yield"),
    }
}

/// Whether no element is at both of two places of a tensor: in a dimension they differ in a range,
/// or in a number.
pub(super) fn are_apart(kernel: &Kernel, a: &[At], b: &[At]) -> bool {
    let apart = |scale: i64| {
        a.iter().zip(b).any(|(a, b)| match (at_scale(kernel, a, scale), at_scale(kernel, b, scale)) {
            (Some((x, m)), Some((y, n))) => x + m <= y || y + n <= x,
            _ => false,
        })
    };
    SCALES.into_iter().all(apart)
}

/// Sizes at which places are compared: they divide by many numbers.
const SCALES: [i64; 2] = [240, 5040];

/// A size, where the sizes of the kernel are multiples of a scale.
fn size_at_scale(size: &SizeExpr, scale: i64) -> Option<i64> {
    size.eval(|s| Some((1 + s.0 as i64) * scale))
}

/// Where a number or a range of a dimension begins, and its length.
fn at_scale(kernel: &Kernel, at: &At, scale: i64) -> Option<(i64, i64)> {
    match at {
        At::Index(v) => match kernel.def(*v)?.1 {
            &Op::IndexConst(n) => Some((n, 1)),
            _ => None,
        },
        At::Range { start, len } => Some((size_at_scale(start, scale)?, size_at_scale(len, scale)?)),
        At::Tile(_) => None,
    }
}

/// The tensors of these names: outputs, or inputs of floats.
fn params(kernel: &Kernel, names: &[String], written: bool) -> Result<Vec<ParamId>, NotDifferentiable> {
    let find = |name: &String| {
        let param = kernel.param_named(name);
        let kind = if written { "an output of floats" } else { "an input tensor of floats" };
        let span = param.map_or(kernel.name_span, |param| kernel.params[param].span);
        param.filter(|&param| kernel.float_tensors(written).any(|other| other == param)).ok_or_else(|| {
            let is_scalar = !written && param.is_some_and(|param| kernel.params[param].kind == ParamKind::Scalar(Elem::F32));
            let instead = match is_scalar {
                true => format!("declare it `{name}: &Tensor<f32, (1)>`, and load it by `load({name}, [0])`"),
                false => format!("name {kind} of `{}`", kernel.name),
            };
            NotDifferentiable::new(format!("`{name}` is not {kind}"), span, instead)
        })
    };
    names.iter().map(find).collect()
}
