//! From a normalised kernel and a schedule to a plan.
//!
//! | file | subject |
//! | --- | --- |
//! | `context` | what is known on the way: what values have become, the plan so far |
//! | `uses` | who uses a value, in which order |
//! | `classify` | what each value becomes: fragment, tile, or an expression where it is used |
//! | `padding`, `bounds` | what the padding of ragged tiles holds; makes it harmless where it must be |
//! | `program` | the program of a block, and work order |
//! | `memory` | tiles in global and shared memory |
//! | `elementwise` | elementwise ops to expressions and maps |
//! | `bits` | quotients and remainders of positions by powers of two, as bits |
//! | `approximate` | ops whose approximate instruction errs by less than what they give is rounded by |
//! | `unused` | constants that nothing names |
//! | `running_max` | lazy forms of the running maximum of a streaming softmax |
//! | `reference` | the reference of exponentials in a step of these: when it moves, and how far |
//! | `seen` | whether something after a loop sees the running maximum itself |
//! | `twice` | loads that products and other ops use, made twice: the last step to the normal form |
//! | `computed`, `compute` | operands of products that are computed in shared memory; makes them |
//! | `product` | matrix products and their operands |
//! | `parts` | loads of some columns of a tile that is loaded too |
//! | `groups` | what warps that share columns exchange |
//! | `turned` | matrices that lanes read two rows at once and transpose |
//! | `held` | columns of left operands that stay in registers for a loop |
//! | `stream` | loops: rings, copies that run ahead, waits and barriers |
//! | `meeting` | programs that walk the parts of a loop and merge them |
//! | `pipeline` | loops of specialised roles: products that run ahead of and behind the elementwise work |
//! | `late` | loops of these roles whose products are waited for as late as may be |
//! | `factors` | factors of products in flight, multiplied before what they are made of changes |
//! | `together` | small tiles that come in the slots of large ones |
//! | `specialize` | the roles of producer and consumers |

mod approximate;
mod bits;
mod bounds;
mod classify;
mod compute;
mod computed;
mod context;
mod copied;
mod elementwise;
mod factors;
mod groups;
mod held;
mod invariant;
mod late;
mod listed;
mod meeting;
mod memory;
mod padding;
mod parts;
mod pipeline;
mod product;
mod program;
mod reference;
mod rows_read;
mod running_max;
mod seen;
mod specialize;
mod stream;
mod together;
mod turned;
mod twice;
mod unused;
mod uses;

use std::collections::{BTreeMap, HashMap, HashSet};

use flashtile_dsl::analysis::reach::Integers;
use flashtile_dsl::ir::{
    At, AxisId, AxisKind, BlockId, Dim, Elem, Kernel, Op, OpId, ReduceOp, SizeExpr, Span, ValueDef, ValueId,
};

use crate::arch::{CopyOp, TensorOp};
use crate::blocks;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{
    Builtin, Expr, Function, LetType, Operator, Plan, Role, RoleKind, Shape, Stmt, StmtOp, Storage, VarId, Variable,
};
use crate::schedule::BlockKnobs;
use classify::Classes;
pub(crate) use context::Meets;
use context::{Exchange, Home, Lowering};
pub(crate) use copied::{copied_alignment, copied_tensors};
pub(crate) use held::{has_left_operand_that_stays, multiplies_what_an_index_loads};
pub(crate) use pipeline::own_operands;
pub use program::{rows_begin_alike, trip_trend, trips_are_loaded};
pub use running_max::why_not_lazy;
pub(crate) use running_max::{is_lazy_within, why_not_optimistic};
pub(crate) use specialize::register_split;
pub use stream::why_not_reordered;
pub(crate) use twice::make_twice;

/// An operand of a product that an index of the last dimension leaves, and how to have it otherwise.
const STRIDED: &str = "an operand of dot whose columns are not contiguous in memory, since an index stands behind them";
const APART: &str = "compute it ahead with precompute=b if it is computed of that, or lay the tensor out with that dimension \
                     before the columns, `(.., 2, D)` in place of `(.., D, 2)`";

/// Rows of a tile that a warp has: those of `block_m`, but where all tiles have their rows along an
/// axis with another block.
fn rows_per_warp(kernel: &Kernel, schedule: &BlockKnobs, classes: &Classes) -> u32 {
    let is_tiled = |axis: &AxisId| kernel.axes[*axis].kind != AxisKind::Each && classes.is_row(&Dim::Axis(*axis));
    let mut blocks = kernel.axes.keys().filter(is_tiled).map(|axis| blocks::block(kernel, schedule, axis));
    let rows = match (blocks.next(), blocks.next()) {
        (Some(rows), None) => rows,
        _ => schedule.block_m,
    };
    rows / row_warps(schedule)
}

/// Warps that share the rows of a tile.
fn row_warps(schedule: &BlockKnobs) -> u32 {
    schedule.warps / schedule.column_groups
}

/// Shares that the columns of a tile divide into: one for each column group of each program that
/// has some of them.
fn shares(schedule: &BlockKnobs) -> u32 {
    schedule.column_groups * schedule.column_programs
}

/// Fewest columns of a share: tensor cores take operands of 16 for the next product, multiply-adds
/// fragments of 8.
pub(crate) fn least_share(tensor_op: TensorOp) -> u32 {
    if tensor_op.is_of_tensor_cores() { 16 } else { 8 }
}

/// Columns of a padded tile of so many; `by_tma` if they are those of a product in blocks with a
/// producer.
fn padded_columns(columns: u32, schedule: &BlockKnobs, by_tma: bool) -> u32 {
    match shares(schedule) {
        // The share of a warpgroup begins where columns do that a swizzle keeps together.
        n if n > 1 && by_tma => columns.next_multiple_of(32 * n),
        // Programs that share columns are as many as have some; blocks with a producer read what is
        // no operand by columns of all.
        n if schedule.column_programs == 1 && !schedule.tensor_op.is_asynchronous() => columns.next_multiple_of(16 * n),
        _ => columns.next_multiple_of(16),
    }
}

/// Whether a range is padded, whatever its tiles are for.
fn may_be_padded(kernel: &Kernel, instance: &Instance, schedule: &BlockKnobs, dim: &Dim) -> bool {
    let Dim::Range(len) = dim else { return false };
    let columns = constant(kernel, instance, len);
    [false, true].into_iter().any(|by_tma| padded_columns(columns, schedule, by_tma) != columns)
}

/// A compile-time length.
fn constant(kernel: &Kernel, instance: &Instance, size: &SizeExpr) -> u32 {
    let value = instance.binding.size(kernel, size).expect("checked: range lengths are compile-time constants");
    u32::try_from(value).expect("checked: range lengths are positive")
}

/// Makes the plan of `kernel`, the normal form of the instance's kernel. `meets`: how its programs
/// meet, if they walk parts of a loop and read each other's states.
pub fn lower(
    kernel: &Kernel,
    instance: &Instance,
    schedule: &BlockKnobs,
    meets: Option<Meets>,
    assumed: &[String],
) -> Result<Plan, Error> {
    let is_padded = |dim: &Dim| may_be_padded(kernel, instance, schedule, dim);
    let turned = turned::turned(kernel, instance);
    let mut classes = Classes::new(kernel, assumed, computed::lefts_are_shared(schedule), turned, &is_padded)?;
    classes.approximate = approximate::approximate_ops(kernel, &instance.binding);
    let mut lowering = Lowering {
        kernel,
        instance,
        schedule,
        meets,
        plan: Plan {
            name: kernel.name.clone(),
            tiles: Vec::new(),
            variables: Vec::new(),
            loops: Vec::new(),
            roles: Vec::new(),
            copy: schedule.copy,
            copy_bytes: copy_bytes(kernel, instance, schedule),
            rows_per_warp: rows_per_warp(kernel, schedule, &classes),
            column_groups: schedule.column_groups,
            min_blocks: schedule.min_blocks,
            maps: Vec::new(),
            work: schedule.persistent,
            programs: Expr::Int(1),
            work_ring: None,
            meeting: None,
        },
        integers: Integers::new(kernel, &instance.binding),
        classes,
        homes: HashMap::new(),
        gap_tiles: HashMap::new(),
        loaded: HashMap::new(),
        bounds: Vec::new(),
        for_masks: BTreeMap::new(),
        staged: HashMap::new(),
        tiles_to_add: HashMap::new(),
        read_from: HashMap::new(),
        names: HashSet::new(),
        forced: HashMap::new(),
        loops_by_axis: HashMap::new(),
        pending: Vec::new(),
        landed: HashSet::new(),
        fragments_of: HashMap::new(),
        slots_of: HashMap::new(),
        parts_at: HashMap::new(),
        column_program: None,
        made: HashMap::new(),
        out: Vec::new(),
        span: Span::default(),
        sources: HashMap::new(),
        running_max: schedule.running_max,
        late_rescales: Vec::new(),
        exchange: Exchange::default(),
        program_counts: Vec::new(),
        after_meeting: None,
        uneven: None,
    };
    lowering.plan.programs = lowering.programs();
    lowering.block(kernel.body)?;
    lowering.acquire_pending();
    lowering.end_meeting()?;
    let body = invariant::read_before_index_loops(std::mem::take(&mut lowering.out), &lowering.plan);
    if lowering.is_specialized() {
        lowering.specialize(body)?;
    } else {
        let body = unused::drop_unused_constants(body, &lowering.plan);
        let (kind, name) = (RoleKind::All, RoleKind::All.name().into());
        lowering.plan.roles.push(Role { kind, name, warps: schedule.warps, registers: None, body });
    }
    lowering.place_tiles();
    lowering.uneven.map_or(Ok(lowering.plan), Err)
}

/// Bytes of each asynchronous or vector copy under the facts, or 0 for element by element.
fn copy_bytes(kernel: &Kernel, instance: &Instance, schedule: &BlockKnobs) -> u32 {
    match (schedule.copy, copied_alignment(kernel, schedule, instance)) {
        (CopyOp::Sync, 16) => 16,
        (CopyOp::Sync, _) => 0,
        (_, bytes) => bytes,
    }
}

impl Lowering<'_> {
    /// Whether a producer fills the rings, and products are asynchronous.
    fn is_specialized(&self) -> bool {
        self.schedule.tensor_op.is_asynchronous()
    }

    fn push(&mut self, op: StmtOp) {
        if op == StmtOp::Barrier {
            self.exchange = Exchange::default();
            self.landed.clear();
        }
        self.out.push(Stmt::new(op, self.span));
    }

    /// Runs `fill` with an empty statement list and returns what it pushed.
    fn collect(&mut self, fill: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<Vec<Stmt>, Error> {
        let outer = std::mem::take(&mut self.out);
        let result = fill(self);
        let body = std::mem::replace(&mut self.out, outer);
        result.map(|()| body)
    }

    /// A name not used yet, like `wanted`.
    fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        name
    }

    fn value_name(&mut self, value: ValueId) -> String {
        let wanted = self.kernel.values[value].name.clone().unwrap_or_else(|| format!("t{}", value.0));
        self.unique(&wanted)
    }

    fn block_size(&self, axis: AxisId) -> u32 {
        blocks::block(self.kernel, self.schedule, axis)
    }

    /// Length of a dimension of a padded tile.
    fn padded(&self, dim: &Dim) -> u32 {
        match dim {
            Dim::Axis(axis) => self.block_size(*axis),
            Dim::Range(len) => {
                let by_tma = self.is_specialized() && self.classes.of_products.contains(len);
                padded_columns(self.constant(len), self.schedule, by_tma)
            }
        }
    }

    /// A compile-time length.
    fn constant(&self, size: &SizeExpr) -> u32 {
        constant(self.kernel, self.instance, size)
    }

    fn m_tiles(&self, dim: &Dim) -> u32 {
        self.padded(dim) / (16 * row_warps(self.schedule))
    }

    /// Column tiles of a column group.
    fn n_tiles(&self, dim: &Dim) -> u32 {
        self.padded(dim) / (8 * shares(self.schedule))
    }

    /// Shape and tile counts of a fragment with these dimensions.
    fn shape(&self, dims: &[Dim]) -> (Shape, u32, u32) {
        match dims {
            [] => (Shape::Uniform, 1, 1),
            [dim] if self.classes.is_row(dim) => (Shape::Row, self.m_tiles(dim), 1),
            [dim] => (Shape::Column, 1, self.n_tiles(dim)),
            [rows, columns] => (Shape::Accumulator, self.m_tiles(rows), self.n_tiles(columns)),
            _ => unreachable!("verified: rank at most 2"),
        }
    }

    /// Why the rows of a fragment do not divide among the warps, if they do not.
    fn uneven_rows(&self, name: &str, dims: &[Dim], rows: &Dim, m_tiles: u32) -> Option<Error> {
        let (padded, warps) = (self.padded(rows), row_warps(self.schedule));
        let others = self.plan.rows_per_warp * warps;
        let divide = padded == 16 * warps * m_tiles;
        let because = match (divide, padded == others) {
            (true, true) => return None,
            (false, _) => format!("which are no multiple of 16 for each of {warps} warps"),
            (true, false) => format!("and other tiles of the block have {others}"),
        };
        let is_of_the_text = self.kernel.values.values().any(|value| value.name.as_deref() == Some(name));
        let tile = match is_of_the_text {
            true => format!("`{name}`"),
            false => {
                let dims: Vec<String> = dims.iter().map(|dim| self.kernel.dim_text(dim)).collect();
                format!("a computed tile ({})", dims.join(", "))
            }
        };
        let instead = match rows {
            Dim::Axis(axis) => format!("change {}", blocks::knob(self.kernel, *axis).or_warps()),
            Dim::Range(_) if !divide => "change warps".into(),
            Dim::Range(_) => {
                let axis = format!("an axis, `for i in tiles(..)` or of the grid, with a block of {padded}");
                let has_block = |id: AxisId| self.classes.is_row(&Dim::Axis(id)) && self.block_size(id) > 1;
                if !self.kernel.axes.iter().any(|(id, _)| has_block(id)) {
                    let what = format!("{tile} has {padded} rows, {because}");
                    return Some(Error::unsupported(what, format!("give the rows of the other tiles {axis}"), self.span));
                }
                format!("the rows of the other tiles need {axis}")
            }
        };
        Some(Error::Uneven { tile, rows: padded, because, instead })
    }

    fn new_variable(&mut self, name: String, dims: &[Dim], integer: bool) -> VarId {
        let (shape, m_tiles, n_tiles) = self.shape(dims);
        let rows = dims.first().filter(|_| matches!(shape, Shape::Row | Shape::Accumulator));
        if let (Some(dim), None) = (rows, &self.uneven) {
            self.uneven = self.uneven_rows(&name, dims, dim, m_tiles);
        }
        let columns = dims.last().filter(|_| matches!(shape, Shape::Column | Shape::Accumulator));
        if let Some(dim) = columns
            && !self.padded(dim).is_multiple_of(least_share(self.schedule.tensor_op) * shares(self.schedule))
            && self.uneven.is_none()
        {
            self.uneven = Some(self.uneven_columns(&name, self.padded(dim)));
        }
        self.plan.variables.push(Variable {
            name,
            storage: Storage::Fragment(shape),
            m_tiles,
            n_tiles,
            across: None,
            integer,
            bits: false,
        });
        self.plan.variables.len() - 1
    }

    /// A variable of the same kind as another.
    fn like(&mut self, v: VarId, name: String) -> VarId {
        let like = self.plan.variables[v].clone();
        self.plan.variables.push(Variable { name, ..like });
        self.plan.variables.len() - 1
    }

    /// The variable that `value` is to be computed into.
    fn destination(&mut self, value: ValueId) -> VarId {
        if let Some(&v) = self.forced.get(&value) {
            return v;
        }
        let name = self.value_name(value);
        let tile = self.kernel.tile(value);
        let (dims, integer) = (tile.dims.clone(), matches!(tile.elem, Elem::I32 | Elem::Bool));
        self.new_variable(name, &dims, integer)
    }

    /// An element of a variable.
    fn element(&self, v: VarId) -> Expr {
        match self.plan.variables[v].storage {
            Storage::Fragment(shape) => Expr::Element(self.plan.variables[v].name.clone(), shape),
            Storage::Packed | Storage::Lanes | Storage::Flag => {
                unreachable!("packed variables are only operands, vectors over lanes only distributed, flags only guards")
            }
        }
    }

    /// The value as an expression per element.
    fn expr(&self, value: ValueId) -> Result<Expr, Error> {
        match self.homes.get(&value) {
            Some(Home::Inline(e)) => Ok(e.clone()),
            Some(Home::Variable(v)) => Ok(self.element(*v)),
            Some(Home::Tile(_)) => Err(self.unsupported(value, "a tile in shared memory used elementwise")),
            Some(Home::Coordinate(_)) | None => unreachable!("verified: operands are defined before their use"),
        }
    }

    fn unsupported(&self, value: ValueId, what: &str) -> Error {
        self.unsupported_but(value, what, "load it again for this use")
    }

    /// What a value is cannot be generated, and what to write instead.
    fn unsupported_but(&self, value: ValueId, what: &str, instead: &str) -> Error {
        let span = match self.kernel.values[value].def {
            ValueDef::Result(op, _) => self.kernel.ops[op].span,
            ValueDef::BlockParam(..) => self.span,
        };
        Error::unsupported(what, instead, span)
    }

    /// An index value as a C expression.
    fn index(&self, value: ValueId) -> Expr {
        match &self.homes[&value] {
            Home::Inline(e) => e.clone(),
            other => unreachable!("verified: an index, not {other:?}"),
        }
    }

    fn coordinate(&self, value: ValueId) -> &str {
        match &self.homes[&value] {
            Home::Coordinate(name) => name,
            other => unreachable!("verified: a coordinate, not {other:?}"),
        }
    }

    /// A size as a C expression: constants folded, run-time sizes read from the parameters.
    fn size(&self, size: &SizeExpr) -> Expr {
        if let Some(value) = self.instance.binding.size(self.kernel, size) {
            return Expr::Int(value);
        }
        let (terms, constant, divisor) = size.parts();
        let mut sum: Option<Expr> = None;
        let mut fixed = constant;
        for (&id, &coefficient) in terms {
            let name = self.kernel.size_name(id);
            if let Some(value) = self.instance.binding.consts.get(name) {
                fixed += value * coefficient;
                continue;
            }
            let read = Expr::param(name);
            let term = if coefficient == 1 { read } else { Expr::infix(Operator::Mul, read, Expr::Int(coefficient)) };
            sum = Some(match sum {
                None => term,
                Some(s) => Expr::infix(Operator::Add, s, term),
            });
        }
        let sum = sum.expect("not a constant, so a run-time size occurs");
        let sum = match fixed {
            0 => sum,
            c if c < 0 => Expr::infix(Operator::Sub, sum, Expr::Int(-c)),
            c => Expr::infix(Operator::Add, sum, Expr::Int(c)),
        };
        if divisor == 1 { sum } else { Expr::call(Function::FloorDiv, [sum, Expr::Int(divisor)]) }
    }

    fn block(&mut self, block: BlockId) -> Result<(), Error> {
        for &op in &self.kernel.blocks[block].ops {
            self.span = self.kernel.ops[op].span;
            self.op(op)?;
        }
        Ok(())
    }

    fn op(&mut self, id: OpId) -> Result<(), Error> {
        let data = &self.kernel.ops[id];
        let result = data.results.first().copied();
        if result.is_some_and(|r| self.classes.computed.values.contains(&r)) && !self.classes.shared_loads.contains(&id) {
            return Ok(()); // made where a product needs it
        }
        match &data.op {
            Op::Program(dims) => self.program(dims, &data.results),
            Op::For { axis, body, init, .. } if !self.states_read(*body).is_empty() => self.meet(id, *axis, *body, init)?,
            Op::For { axis, part, body, init } => self.lower_for(id, *axis, *part, *body, init)?,
            Op::Yield(_) => {}
            Op::IndexConst(c) => self.define_index(data.results[0], Expr::Int(*c)),
            Op::SizeOf(s) => self.define_index(data.results[0], self.size(&SizeExpr::size(*s))),
            Op::Index(op, a, b) => {
                let positive = elementwise::is_positive(self.kernel, *b);
                let value = elementwise::index_expr(*op, self.index(*a), self.index(*b), positive);
                self.define_index(data.results[0], value);
            }
            Op::ToIndex(x) => {
                let value = self.expr(*x)?;
                self.define_index(data.results[0], value);
            }
            Op::Load { tensor, at } => self.load(id, *tensor, at)?,
            Op::Store { tensor, at, value } => self.store(*tensor, at, *value)?,
            Op::Scatter { tensor, at, value } => self.scatter(*tensor, at, *value)?,
            Op::Transpose(_) if self.is_view_of_operand(data.results[0]) || self.is_turned_operand(data.results[0]) => {}
            Op::Transpose(x) => {
                let home = self.homes[x].clone();
                match home {
                    Home::Tile(_) => drop(self.homes.insert(data.results[0], home)),
                    // The store turns it.
                    Home::Variable(_) if self.is_only_stored(data.results[0]) => {}
                    _ => {
                        let (what, instead) = match self.kernel.def(*x) {
                            Some((_, Op::Load { .. })) => (
                                "a tile that is read as it lies and transposed, and by no product",
                                "read it transposed in a kernel of its own: of sums of columns one with a program for each tile of \
                                 columns, which walks the rows",
                            ),
                            _ => (
                                "transposing a computed tile",
                                "exchange the operands of the dot that makes it; without a dot, write a kernel \
                                 with a program for each tile of columns, which walks the rows",
                            ),
                        };
                        return Err(self.unsupported_but(*x, what, instead));
                    }
                }
            }
            Op::Dot { a, b, acc } => {
                self.make_operands(id)?;
                self.dot(data.results[0], *a, *b, *acc)?;
            }
            Op::Reduce(op, x) => self.reduce(data.results[0], *op, *x)?,
            Op::Mask { x, keep, fill } => self.mask(data.results[0], *x, *keep, *fill)?,
            _ => self.elementwise(id, result.expect("an elementwise op has a result"))?,
        }
        for &result in &self.kernel.ops[id].results {
            self.guard_padding(result)?;
        }
        Ok(())
    }

    /// Whether stores alone use a value, possibly transposed again.
    fn is_only_stored(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        users.iter().all(|&user| match self.kernel.ops[user].op {
            Op::Store { .. } => true,
            Op::Transpose(_) => self.is_only_stored(self.kernel.ops[user].results[0]),
            _ => false,
        })
    }

    /// Defines a coordinate and the thread's first position along its axis.
    fn enter_tile(&mut self, coordinate: ValueId, axis: AxisId, name: String) {
        let suffix = if self.classes.is_row(&Dim::Axis(axis)) { "row" } else { "column" };
        // A loop body may be lowered more than once; every time in a scope of its own.
        let first = match self.classes.first_position.get(&axis) {
            Some(first) => first.clone(),
            None => self.unique(&format!("{name}_{suffix}")),
        };
        if self.classes.positions.contains(&axis) {
            let value = self.first_position(axis, Expr::name(name.clone()));
            self.push(StmtOp::Let { name: first.clone(), ty: LetType::Int, value });
        }
        self.classes.first_position.insert(axis, first);
        self.homes.insert(coordinate, Home::Coordinate(name));
    }

    /// The thread's first position along the axis of a tile.
    fn first_position(&self, axis: AxisId, coordinate: Expr) -> Expr {
        let block = self.block_size(axis);
        let begins = Expr::infix(Operator::Mul, coordinate, Expr::Int(block.into()));
        let of = |first| Expr::infix(Operator::Add, begins, Expr::Builtin(first));
        if self.classes.is_row(&Dim::Axis(axis)) { of(Builtin::FirstRow) } else { self.in_group(of(Builtin::FirstColumn), block) }
    }

    /// An index: a named constant if the kernel text names it, else an expression.
    fn define_index(&mut self, result: ValueId, value: Expr) {
        let value = match (&self.kernel.values[result].name, &value) {
            (_, Expr::Int(_) | Expr::Name(_) | Expr::Param(_)) => value,
            (None, _) if self.instance.facts.wide => value.wide(),
            (None, _) => value,
            (Some(_), _) => {
                let name = self.value_name(result);
                let wide = self.instance.facts.wide;
                let (ty, value) = if wide { (LetType::Wide, value.wide()) } else { (LetType::Int, value) };
                self.push(StmtOp::Let { name: name.clone(), ty, value });
                Expr::name(name)
            }
        };
        self.homes.insert(result, Home::Inline(value));
    }

    fn reduce(&mut self, result: ValueId, operation: ReduceOp, x: ValueId) -> Result<(), Error> {
        let from = self.variable(x)?;
        let from = self.reduced(x, from, operation);
        let to = self.destination(result);
        let across_quad = !self.classes.partial.contains(&result);
        self.push(StmtOp::Reduce { to, from, operation: operation.into(), across_quad });
        if across_quad {
            self.merge_groups(to, operation);
        }
        self.homes.insert(result, Home::Variable(to));
        Ok(())
    }

    /// The value in a variable, computed into one if it was an expression.
    fn variable(&mut self, value: ValueId) -> Result<VarId, Error> {
        if let Some(Home::Variable(v)) = self.homes.get(&value) {
            return Ok(*v);
        }
        let expr = self.expr(value)?;
        let to = self.destination(value);
        self.push(StmtOp::Map { to, value: expr });
        self.homes.insert(value, Home::Variable(to));
        Ok(to)
    }

    /// The tile origin and addressed dimensions of a load or store: see [`memory`].
    fn dims_of(&self, at: &[At]) -> Vec<Dim> {
        flashtile_dsl::ir::selected_dims(self.kernel, at)
    }

    fn is_loop_axis(&self, dim: &Dim) -> Option<AxisId> {
        match dim {
            Dim::Axis(a) if self.loops_by_axis.contains_key(a) => Some(*a),
            _ => None,
        }
    }
}
