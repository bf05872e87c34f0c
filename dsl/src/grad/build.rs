//! The kernels of a gradient.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward};
use super::rules::{Adjoint, Reverse};
use super::{Gradient, NotDifferentiable, Request};
use crate::analysis::streaming::{Base, Form};
use crate::ir::{
    At, AxisKind, BinaryOp, Builder, CompareOp, Dim, Direction, Elem, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, SizeExpr,
    SourceText, TensorDecl, UnaryOp, ValueId, verify,
};
use crate::syntax::parse;
use crate::text::write;

/// The gradient of a kernel.
///
/// # Errors
/// [`NotDifferentiable`]: what stands against it, and where.
pub fn gradient(kernel: &Kernel, request: &Request) -> Result<Gradient, NotDifferentiable> {
    let forward = Forward::of(kernel, request)?;
    let kept = Kept::of(&forward);
    let groups = column_groups(&forward)?;
    // Each kernel goes back to the inputs alone that it gives the gradients of.
    let only = |tensors: BTreeSet<ParamId>| {
        let of = tensors.iter().map(|&tensor| kernel.params[tensor].name.clone()).collect();
        Forward::of(kernel, &Request { of, from: request.from.clone() })
    };
    let loads = [Class::Row, Class::Pair].map(|class| wanted_loads(&forward, class));
    let of_rows = only(loads.iter().flatten().map(|(_, tensor, _)| *tensor).collect())?;
    let (rows, left) = rows_kernel(&of_rows, &kept, !groups.is_empty())?;
    let mut backward: Vec<Kernel> = rows.into_iter().collect();
    for (number, group) in groups.iter().enumerate() {
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let of_group = only(group.loads.iter().map(|(_, tensor, _)| *tensor).collect())?;
        backward.push(columns_kernel(&of_group, &kept, &left, group, &number)?);
    }
    let used = |name: &str| backward.iter().any(|kernel| kernel.param_named(name).is_some());
    let made = kept.forward(&forward, &used);
    let backward = backward.iter().map(read_back).collect::<Result<_, _>>()?;
    Ok(Gradient { forward: read_back(&made)?, backward })
}

/// The kernel as it is read from its own text, so that errors and hints have a place in that.
fn read_back(kernel: &Kernel) -> Result<Kernel, NotDifferentiable> {
    let wrong = |why: String| {
        let what = format!("the compiler made a wrong kernel (please report it): {why}");
        NotDifferentiable::new(what, kernel.name_span, "leave out the inputs that it is about")
    };
    verify(kernel).map_err(|errors| wrong(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    let text = write(kernel).map_err(|why| wrong(why.to_string()))?;
    let source = SourceText { name: format!("{}.rs", kernel.name), text: text.into(), first_line: 1 };
    let mut read = parse(&source).map_err(|errors| wrong(errors.to_string()))?;
    read.pop().ok_or_else(|| wrong("its text holds no kernel".into()))
}

/// The name of the gradient of a tensor.
fn grad_name(name: &str) -> String {
    format!("grad_{name}")
}

/// What the forward kernel stores for its gradient.
struct Kept {
    /// By the slot of a maximum: `m + ln(l)`.
    references: BTreeMap<usize, Stored>,
    /// By the slot of a maximum, the slot of `l`.
    sums: BTreeMap<usize, usize>,
    /// By the slot of a result of the loop: its value where the reference of its maximum is taken for
    /// the maximum.
    values: BTreeMap<usize, Stored>,
}

/// A tensor with a value for each row.
#[derive(Clone)]
struct Stored {
    name: String,
    /// Its place, by values of the forward kernel.
    at: Vec<At>,
    decl: TensorDecl,
    /// Whether the forward kernel has no such output.
    is_new: bool,
}

impl Kept {
    fn of(forward: &Forward<'_>) -> Self {
        let kernel = forward.kernel;
        let mut made = Self { references: BTreeMap::new(), sums: BTreeMap::new(), values: BTreeMap::new() };
        let stored = |param: ParamId, at: Vec<At>| {
            let decl = TensorDecl { direction: Direction::In, ..kernel.tensor(param).clone() };
            Stored { name: kernel.params[param].name.clone(), at, decl, is_new: false }
        };
        let rescaled = |maximum: usize| {
            forward
                .forms
                .iter()
                .enumerate()
                .filter(move |(_, form)| matches!(form, Form::RescaledSum { maximum: m, .. } if *m == maximum))
        };
        for (slot, form) in forward.forms.iter().enumerate() {
            let name = forward.name(kernel.blocks[forward.body].params[slot + 1]);
            match form {
                Form::RunningMaximum { .. } => {
                    let rank_1 = |&(slot, _): &(usize, &Form)| kernel.tile(forward.results[slot]).rank() == 1;
                    let sum = || rescaled(slot).find(rank_1).map(|(slot, _)| slot);
                    if let Some((param, at, sum)) = forward.stored_reference(slot) {
                        made.references.insert(slot, stored(param, at));
                        made.sums.insert(slot, sum);
                    } else if let Some(sum) = sum() {
                        made.references.insert(slot, row_tensor(forward, &format!("{name}_reference"), forward.results[slot]));
                        made.sums.insert(slot, sum);
                    }
                }
                Form::Sum { .. } => {
                    made.values.insert(slot, row_tensor(forward, &format!("{name}_sum"), forward.results[slot]));
                }
                _ => {}
            }
        }
        for (slot, form) in forward.forms.iter().enumerate() {
            let Form::RescaledSum { maximum, .. } = form else { continue };
            let Some(&sum) = made.sums.get(maximum).filter(|sum| **sum != slot) else { continue };
            let name = forward.name(kernel.blocks[forward.body].params[slot + 1]);
            let kept = match forward.stored_quotient(slot, sum) {
                Some((param, at)) => stored(param, at),
                None => row_tensor(forward, &format!("{name}_mean"), forward.results[slot]),
            };
            made.values.insert(slot, kept);
        }
        made
    }

    /// Presets what the loop gives and what its sums are rescaled by. Loads what is stored of rows.
    fn preset(&self, copy: &mut Copy<'_, '_>) -> Result<(), NotDifferentiable> {
        let forward = copy.forward;
        let next = yielded(forward);
        for (&maximum, stored) in &self.references {
            let reference = stored.load(copy)?;
            let finite = copy.unary(UnaryOp::VisibleOrZero, reference);
            copy.known.insert(forward.results[maximum], reference);
            copy.known.insert(next[maximum], reference);
            for form in &forward.forms {
                if let Form::RescaledSum { maximum: m, reference, .. } = form
                    && *m == maximum
                {
                    copy.known.insert(*reference, finite);
                }
            }
        }
        for &sum in self.sums.values() {
            let dims = copy.dims_of(forward.results[sum]);
            let one = copy.filled(1.0, dims);
            copy.known.insert(forward.results[sum], one);
        }
        for (&slot, stored) in &self.values {
            let value = stored.load(copy)?;
            copy.known.insert(forward.results[slot], value);
        }
        Ok(())
    }

    /// The forward kernel with the outputs that are `used`.
    fn forward(&self, forward: &Forward<'_>, used: &dyn Fn(&str) -> bool) -> Kernel {
        let mut b = Builder::at_end_of(forward.kernel.clone());
        let results = &forward.results;
        let mut store = |stored: &Stored, make: &dyn Fn(&mut Builder) -> ValueId| {
            if stored.is_new && used(&stored.name) {
                let decl = TensorDecl { direction: Direction::Out, ..stored.decl.clone() };
                let kind = ParamKind::Tensor(decl);
                let tensor =
                    b.kernel.params.push(crate::ir::Param { name: stored.name.clone(), kind, span: forward.kernel.name_span });
                let value = make(&mut b);
                b.append(Op::Store { tensor, at: stored.at.clone(), value });
            }
        };
        for (&maximum, stored) in &self.references {
            let sum = self.sums[&maximum];
            let Form::RescaledSum { base, .. } = forward.forms[sum] else { unreachable!("a sum that is rescaled") };
            store(stored, &|b| {
                let op = if base == Base::E { UnaryOp::Ln } else { UnaryOp::Log2 };
                let logarithm = b.emit(Op::Unary(op, results[sum]));
                b.emit(Op::Binary(BinaryOp::Add, results[maximum], logarithm))
            });
        }
        for (&slot, stored) in &self.values {
            store(stored, &|b| match forward.forms[slot] {
                Form::RescaledSum { maximum, .. } => {
                    b.emit(Op::Binary(BinaryOp::DivOrZero, results[slot], results[self.sums[&maximum]]))
                }
                _ => results[slot],
            });
        }
        b.finish()
    }
}

impl Stored {
    fn load(&self, copy: &mut Copy<'_, '_>) -> Result<ValueId, NotDifferentiable> {
        let tensor = copy.tensor(&self.name, self.decl.clone());
        let at = copy.place(&self.at)?;
        Ok(copy.load(tensor, at))
    }
}

/// A tensor with a value for each row, shaped as a result of the loop.
fn row_tensor(forward: &Forward<'_>, name: &str, of: ValueId) -> Stored {
    let kernel = forward.kernel;
    let mut at: Vec<At> = Vec::new();
    let mut shape: Vec<SizeExpr> = Vec::new();
    for (dim, &v) in kernel.grid().iter().zip(&forward.program) {
        match dim {
            ProgramDim::Each(extent) => {
                at.push(At::Index(v));
                shape.push(extent.clone());
            }
            ProgramDim::Tiles(axis) => {
                at.push(At::Tile(v));
                shape.push(kernel.axes[*axis].extent.clone());
            }
        }
    }
    let mut elem = Elem::F32;
    if let [_, Dim::Range(len)] = kernel.tile(of).dims.as_slice() {
        at.push(At::Range { start: SizeExpr::constant(0), len: len.clone() });
        shape.push(len.clone());
        elem = if kernel.type_params.is_empty() { Elem::F32 } else { Elem::Generic(0) };
    }
    let mut name = name.to_owned();
    while kernel.param_named(&name).is_some() {
        name.push('_');
    }
    Stored { name, at, decl: TensorDecl { elem, shape, direction: Direction::In }, is_new: true }
}

fn yielded(forward: &Forward<'_>) -> Vec<ValueId> {
    match forward.kernel.blocks[forward.body].ops.last().map(|&op| &forward.kernel.ops[op].op) {
        Some(Op::Yield(next)) => next.clone(),
        _ => unreachable!("verified: a loop body ends in a yield"),
    }
}

/// Loads of inputs whose gradients are wanted: one of each tile.
fn wanted_loads(forward: &Forward<'_>, class: Class) -> Vec<(ValueId, ParamId, Vec<At>)> {
    let of = |op: OpId| match &forward.kernel.ops[op].op {
        Op::Load { tensor, at } if forward.wanted.contains(tensor) => {
            let value = forward.kernel.ops[op].results[0];
            (forward.canonical(value) == value && forward.class(value) == class).then(|| (value, *tensor, at.clone()))
        }
        _ => None,
    };
    forward.in_order().into_iter().filter_map(of).collect()
}

/// Stores the gradients of loaded tiles.
fn store_gradients(reverse: &mut Reverse<'_, '_>, loads: &[(ValueId, ParamId, Vec<At>)]) -> Result<(), NotDifferentiable> {
    for (value, tensor, at) in loads {
        let dims = reverse.copy.dims_of(*value);
        let gradient = match reverse.adjoints.remove(value) {
            Some(g) => reverse.applied(g),
            None => reverse.copy.filled(0.0, dims.clone()),
        };
        // A gradient may be the same along a dimension.
        let gradient = match reverse.copy.dims(gradient).len() < dims.len() {
            true => {
                let zeros = reverse.copy.filled(0.0, dims);
                reverse.copy.op(Op::Binary(BinaryOp::Add, zeros, gradient))
            }
            false => gradient,
        };
        let forward = reverse.copy.forward;
        let name = grad_name(&forward.kernel.params[*tensor].name);
        let decl = TensorDecl { direction: Direction::Out, ..forward.kernel.tensor(*tensor).clone() };
        let (output, at) = (reverse.copy.tensor(&name, decl), reverse.copy.place(at)?);
        reverse.copy.b.append(Op::Store { tensor: output, at, value: gradient });
    }
    Ok(())
}

/// What the kernel of rows leaves to those of columns: the gradient of each result of the loop.
type OfRows = BTreeMap<usize, Stored>;

/// The kernel of rows.
fn rows_kernel(forward: &Forward<'_>, kept: &Kept, columns_follow: bool) -> Result<(Option<Kernel>, OfRows), NotDifferentiable> {
    let kernel = forward.kernel;
    let mut copy = Copy::new(forward, format!("{}_grad_rows", kernel.name), Orientation::Rows);
    let axes = copy.axes;
    let dims = kernel.grid().iter().map(|dim| match dim {
        ProgramDim::Tiles(_) => ProgramDim::Tiles(axes.0),
        each @ ProgramDim::Each(_) => each.clone(),
    });
    let (_, program) = copy.b.append(Op::Program(dims.collect()));
    for (&here, &there) in program.iter().zip(&forward.program) {
        copy.b.kernel.values[here].name.clone_from(&kernel.values[there].name);
        copy.known.insert(there, here);
    }
    kept.preset(&mut copy)?;
    let mut reverse = Reverse::new(copy);
    let mut given = HashMap::new();
    for (tensor, at, value) in forward.stores() {
        if forward.given.contains(&tensor) {
            let decl = TensorDecl { direction: Direction::In, ..kernel.tensor(tensor).clone() };
            let stored = Stored { name: grad_name(&kernel.params[tensor].name), at, decl, is_new: false };
            let g = stored.load(&mut reverse.copy)?;
            given.insert(g, stored);
            reverse.give(value, g.into())?;
        }
    }
    // What follows the loop.
    for op in forward.in_order().into_iter().rev().take_while(|&op| op != forward.loop_op) {
        reverse.through(op)?;
    }
    let mut of_results: BTreeMap<usize, Adjoint> = BTreeMap::new();
    for (slot, &result) in forward.results.iter().enumerate() {
        if let Some(g) = reverse.adjoints.remove(&result) {
            of_results.insert(slot, reverse.applied(g).into());
        }
    }
    let mut of_rows = OfRows::new();
    if columns_follow {
        for (&slot, g) in of_results.iter().filter(|(slot, _)| term(forward, **slot).is_some()) {
            of_rows.insert(slot, leave(&mut reverse, slot, g.value, &given)?);
        }
    }
    let (rows, pairs) = (wanted_loads(forward, Class::Row), wanted_loads(forward, Class::Pair));
    if !rows.is_empty() || !pairs.is_empty() {
        walk(&mut reverse, &of_results, &pairs)?;
    }
    for op in forward.in_order().into_iter().rev().filter(|&op| op != forward.loop_op) {
        reverse.through(op)?;
    }
    store_gradients(&mut reverse, &rows)?;
    let made = finish(reverse);
    let stores = made.walk().into_iter().any(|(_, op)| matches!(made.ops[op].op, Op::Store { .. }));
    Ok((stores.then_some(made), of_rows))
}

/// Stores the gradient of a result of the loop for the kernels of columns, unless an input has it.
fn leave(
    reverse: &mut Reverse<'_, '_>,
    slot: usize,
    g: ValueId,
    given: &HashMap<ValueId, Stored>,
) -> Result<Stored, NotDifferentiable> {
    if let Some(stored) = given.get(&g) {
        return Ok(stored.clone());
    }
    let forward = reverse.copy.forward;
    let result = forward.results[slot];
    let name = forward.name(forward.kernel.blocks[forward.body].params[slot + 1]);
    let stored = row_tensor(forward, &grad_name(&name), result);
    let decl = TensorDecl { direction: Direction::Out, ..stored.decl.clone() };
    let (tensor, at) = (reverse.copy.tensor(&stored.name, decl), reverse.copy.place(&stored.at)?);
    let dims = reverse.copy.dims_of(result);
    let zeros = reverse.copy.filled(0.0, dims.clone());
    let value = if reverse.copy.dims(g).len() < dims.len() { reverse.copy.add(zeros, g) } else { g };
    reverse.copy.b.append(Op::Store { tensor, at, value });
    Ok(stored)
}

/// What a step adds to a carried value, if it is a sum.
fn term(forward: &Forward<'_>, slot: usize) -> Option<ValueId> {
    match forward.forms[slot] {
        Form::Sum { term } | Form::RescaledSum { term, .. } => Some(term),
        _ => None,
    }
}

/// Goes back through the body of the loop, in a loop that is open, and gives the gradients of what
/// the loop does not move along, each in one sum.
fn step(
    reverse: &mut Reverse<'_, '_>,
    of_results: &BTreeMap<usize, Adjoint>,
    pairs: &[(ValueId, ParamId, Vec<At>)],
) -> Result<Vec<(ValueId, Adjoint)>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let outside = std::mem::take(&mut reverse.adjoints);
    reverse.in_loop = true;
    for (&slot, &g) in of_results {
        if let Some(term) = term(forward, slot) {
            reverse.adjoints.insert(term, g);
        }
    }
    for &op in forward.kernel.blocks[forward.body].ops.iter().rev() {
        reverse.through(op)?;
    }
    store_gradients(reverse, pairs)?;
    reverse.in_loop = false;
    reverse.adjoints = outside;
    let mut sums: Vec<(ValueId, Adjoint)> = Vec::new();
    for (to, g) in std::mem::take(&mut reverse.collected) {
        match sums.iter().position(|(other, _)| *other == to) {
            Some(at) => sums[at].1 = reverse.sum(sums[at].1, g),
            None => sums.push((to, g)),
        }
    }
    Ok(sums)
}

/// Walks columns, and adds what they give to the gradients of rows.
fn walk(
    reverse: &mut Reverse<'_, '_>,
    of_results: &BTreeMap<usize, Adjoint>,
    pairs: &[(ValueId, ParamId, Vec<At>)],
) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    for (_, tensor, at) in pairs {
        if let Some(&v) = forward.program.iter().find(|&&v| !at.contains(&At::Index(v)) && !at.contains(&At::Tile(v))) {
            let what = format!(
                "the gradient of `{}` is a sum over `{}`, which its address lacks",
                forward.kernel.params[*tensor].name,
                forward.name(v)
            );
            let instead = "give it a dimension for each dimension of the grid, and sum its gradient behind";
            return Err(NotDifferentiable::new(what, forward.kernel.params[*tensor].span, instead));
        }
    }
    let open = |reverse: &mut Reverse<'_, '_>, init: &[ValueId]| {
        let (coordinate, carried) = reverse.copy.b.begin_for(reverse.copy.axes.1, init);
        carried.iter().chain([&coordinate]).for_each(|&v| reverse.copy.in_loop(v));
        reverse.copy.known.insert(forward.column.0, coordinate);
        carried
    };
    // Which gradients there are is known when the step was taken once.
    let mut tried = reverse.clone();
    open(&mut tried, &[]);
    let targets: Vec<ValueId> = step(&mut tried, of_results, pairs)?.into_iter().map(|(to, _)| to).collect();
    let init = zeros(reverse, &targets);
    let carried = open(reverse, &init);
    let sums = step(reverse, of_results, pairs)?;
    let next = added(reverse, &carried, &sums);
    let results = reverse.copy.b.end_for(reverse.copy.axes.1, init, next);
    hand_over(reverse, &sums, results)
}

/// Zeros to start sums of gradients from.
fn zeros(reverse: &mut Reverse<'_, '_>, targets: &[ValueId]) -> Vec<ValueId> {
    let forward = reverse.copy.forward;
    let mut init = Vec::new();
    for &to in targets {
        let dims = reverse.copy.dims_of(to);
        let zeros = reverse.copy.filled(0.0, dims);
        let of = match &forward.kernel.def(to) {
            Some((_, Op::Load { tensor, .. })) => forward.kernel.params[*tensor].name.clone(),
            _ => forward.name(to),
        };
        reverse.copy.b.kernel.values[zeros].name = Some(format!("d{}", of.trim_start_matches('%')));
        init.push(zeros);
    }
    init
}

fn added(reverse: &mut Reverse<'_, '_>, carried: &[ValueId], sums: &[(ValueId, Adjoint)]) -> Vec<ValueId> {
    carried.iter().zip(sums).map(|(&carried, (_, g))| reverse.copy.op(Op::Binary(BinaryOp::Add, carried, g.value))).collect()
}

/// Gives the results of a loop to what they are the gradients of.
fn hand_over(reverse: &mut Reverse<'_, '_>, sums: &[(ValueId, Adjoint)], results: Vec<ValueId>) -> Result<(), NotDifferentiable> {
    for ((to, g), value) in sums.iter().zip(results) {
        reverse.give(*to, Adjoint { value, factor: g.factor })?;
    }
    Ok(())
}

/// Loads of columns that one kernel gives the gradients of: their indices are the same.
struct ColumnGroup {
    loads: Vec<(ValueId, ParamId, Vec<At>)>,
    /// The indices that tell columns apart, with how many there are of each.
    indices: Vec<(ValueId, SizeExpr)>,
}

/// The loads of columns, grouped.
fn column_groups(forward: &Forward<'_>) -> Result<Vec<ColumnGroup>, NotDifferentiable> {
    let kernel = forward.kernel;
    let mut groups: Vec<ColumnGroup> = Vec::new();
    let mut homes: HashMap<ParamId, usize> = HashMap::new();
    let rows: BTreeSet<ParamId> =
        [Class::Row, Class::Pair].iter().flat_map(|&class| wanted_loads(forward, class)).map(|(_, tensor, _)| tensor).collect();
    for (value, tensor, at) in wanted_loads(forward, Class::Column) {
        let mut indices: Vec<(ValueId, SizeExpr)> = Vec::new();
        for (entry, extent) in at.iter().zip(&kernel.tensor(tensor).shape) {
            let At::Index(v) = entry else { continue };
            if depends_on_program(forward, *v) {
                indices.push((*v, extent.clone()));
            }
        }
        indices.sort();
        let group = groups.iter().position(|group| group.indices == indices).unwrap_or_else(|| {
            groups.push(ColumnGroup { loads: Vec::new(), indices });
            groups.len() - 1
        });
        if *homes.entry(tensor).or_insert(group) != group || rows.contains(&tensor) {
            let what =
                format!("`{}` is loaded in several ways, whose gradients would have to be summed", kernel.params[tensor].name);
            let instead = "pass it twice, and add the gradients of both";
            return Err(NotDifferentiable::new(what, forward.span(value), instead));
        }
        groups[group].loads.push((value, tensor, at));
    }
    Ok(groups)
}

/// Whether an index differs from program to program.
fn depends_on_program(forward: &Forward<'_>, v: ValueId) -> bool {
    forward.program.contains(&v) || {
        let op = forward.kernel.def(v).map(|(_, op)| op);
        op.is_some_and(|op| op.operands().into_iter().any(|v| depends_on_program(forward, v)))
    }
}

/// The kernel of a group of columns.
fn columns_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    of_rows: &OfRows,
    group: &ColumnGroup,
    number: &str,
) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let mut copy = Copy::new(forward, format!("{}_grad_columns{number}", kernel.name), Orientation::Columns);
    let axes = copy.axes;
    let each = group.indices.iter().map(|(_, extent)| ProgramDim::Each(extent.clone()));
    let (_, program) = copy.b.append(Op::Program(each.chain([ProgramDim::Tiles(axes.1)]).collect()));
    for (&here, (there, _)) in program.iter().zip(&group.indices) {
        copy.b.kernel.values[here].name.clone_from(&kernel.values[*there].name);
        copy.known.insert(*there, here);
    }
    let coordinate = program[group.indices.len()];
    copy.b.kernel.values[coordinate].name.clone_from(&kernel.values[forward.column.0].name);
    copy.known.insert(forward.column.0, coordinate);
    let mut reverse = Reverse::new(copy);

    // Dimensions of the grid that columns do not tell apart.
    let summed: Vec<(ValueId, SizeExpr)> = kernel
        .grid()
        .iter()
        .zip(&forward.program)
        .filter_map(|(dim, &v)| match dim {
            ProgramDim::Each(extent) if !reverse.copy.known.contains_key(&v) => Some((v, extent.clone())),
            _ => None,
        })
        .collect();
    let mut tried = reverse.clone();
    let tried_loops = open_rows(&mut tried, &summed, group, &[])?;
    drop(tried_loops);
    let of_results = rows_of(&mut tried, kept, of_rows)?;
    let targets: Vec<ValueId> = step(&mut tried, &of_results, &[])?.into_iter().map(|(to, _)| to).collect();
    let init = zeros(&mut reverse, &targets);
    let mut loops = open_rows(&mut reverse, &summed, group, &init)?;
    let of_results = rows_of(&mut reverse, kept, of_rows)?;
    let sums = step(&mut reverse, &of_results, &[])?;
    let (_, carried) = loops.last().expect("rows are walked").clone();
    let mut results = added(&mut reverse, &carried, &sums);
    while let Some((axis, _)) = loops.pop() {
        let init = loops.last().map_or_else(|| init.clone(), |(_, carried)| carried.clone());
        results = reverse.copy.b.end_for(axis, init, results);
        let depth = reverse.copy.b.depth();
        results.iter().for_each(|&v| reverse.copy.at_depth(v, depth));
    }
    hand_over(&mut reverse, &sums, results)?;
    for op in forward.in_order().into_iter().rev().filter(|&op| op != forward.loop_op) {
        reverse.through(op)?;
    }
    store_gradients(&mut reverse, &group.loads)?;
    Ok(finish(reverse))
}

/// What is stored of rows, in the loop over rows that is open.
fn rows_of(reverse: &mut Reverse<'_, '_>, kept: &Kept, of_rows: &OfRows) -> Result<BTreeMap<usize, Adjoint>, NotDifferentiable> {
    kept.preset(&mut reverse.copy)?;
    of_rows.iter().map(|(&slot, stored)| Ok((slot, stored.load(&mut reverse.copy)?.into()))).collect()
}

/// Loops that are open: the axis of each, and what it carries.
type Open = Vec<(crate::ir::AxisId, Vec<ValueId>)>;

/// Opens the loops over dimensions of the grid that columns do not tell apart, and over rows.
fn open_rows(
    reverse: &mut Reverse<'_, '_>,
    summed: &[(ValueId, SizeExpr)],
    group: &ColumnGroup,
    init: &[ValueId],
) -> Result<Open, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let mut loops = Open::new();
    let mut carried = init.to_vec();
    for (v, extent) in summed {
        let axis = reverse.copy.b.axis(forward.name(*v), extent.clone(), AxisKind::Each);
        let (index, next) = reverse.copy.b.begin_for(axis, &carried);
        next.iter().chain([&index]).for_each(|&v| reverse.copy.in_loop(v));
        reverse.copy.known.insert(*v, index);
        loops.push((axis, next.clone()));
        carried = next;
    }
    let copy = &mut reverse.copy;
    for (there, _) in &group.indices {
        if forward.program.contains(there) {
            continue;
        }
        // The pairs of another group of heads do not count.
        let here = copy.known.remove(there).expect("a dimension of the grid here");
        let found = copy.value(*there)?;
        copy.known.insert(*there, here);
        let [found, here] = [found, here].map(|v| copy.op(Op::FromIndex(v)));
        let same = copy.op(Op::Compare(CompareOp::Eq, found, here));
        copy.counts = Some(match copy.counts {
            Some(other) => copy.op(Op::Binary(BinaryOp::And, other, same)),
            None => same,
        });
    }
    let (coordinate, next) = copy.b.begin_for(copy.axes.0, &carried);
    next.iter().chain([&coordinate]).for_each(|&v| copy.in_loop(v));
    copy.known.insert(forward.row.0, coordinate);
    loops.push((copy.axes.0, next));
    Ok(loops)
}

/// The finished kernel.
fn finish(mut reverse: Reverse<'_, '_>) -> Kernel {
    let source = reverse.copy.forward.kernel;
    let wanted: Vec<String> = reverse.copy.forward.wanted.iter().map(|&p| format!("`{}`", source.params[p].name)).collect();
    let what = match (reverse.copy.orientation, wanted.is_empty()) {
        (_, true) => "What the gradients of columns need of rows".to_owned(),
        (Orientation::Rows, _) => format!("Gradients of {}, a program for each tile of rows", wanted.join(", ")),
        (Orientation::Columns, _) => format!("Gradients of {}, a program for each tile of columns", wanted.join(", ")),
    };
    reverse.copy.b.kernel.doc = format!("{what}: of `{}`.", source.name);
    reverse.copy.finish(&|name| {
        source.param_named(name).map_or(source.params.len(), |param| {
            source.params.keys().position(|other| other == param).expect("a parameter of the kernel")
        })
    })
}
