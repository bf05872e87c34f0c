//! The kernels of a gradient.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward, Slot};
use super::rules::{Adjoint, Reverse};
use super::totals::{Share, totals};
use super::{Gradient, NotDifferentiable, Request};
use crate::analysis::streaming::{Base, Form};
use crate::ir::{
    At, AxisKind, BinaryOp, BlockId, Builder, CompareOp, Dim, Direction, Elem, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim,
    SizeExpr, SourceText, TensorDecl, UnaryOp, ValueId, verify,
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
    let loads = [Class::Row, Class::Pair, Class::Program].map(|class| wanted_loads(&forward, class));
    let tensors: BTreeSet<ParamId> = loads.iter().flatten().map(|(_, tensor, _)| *tensor).collect();
    let of_rows = forward.only(tensors.into_iter().collect());
    let left = rows_kernel(&of_rows, &kept, &|_| !groups.is_empty())?.left;
    let mut columns = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let tensors: BTreeSet<ParamId> = group.loads.iter().map(|(_, tensor, _)| *tensor).collect();
        let of_group = forward.only(tensors.into_iter().collect());
        columns.push(columns_kernel(&of_group, &kept, &left, group, &number)?);
    }
    // What columns read of it is stored, and nothing else.
    let read = |name: &str| columns.iter().any(|kernel| kernel.param_named(name).is_some());
    let OfRowsMade { kernel: rows, shares, .. } = rows_kernel(&of_rows, &kept, &read)?;
    let mut backward: Vec<Kernel> = rows.into_iter().chain(columns).collect();
    for share in &shares {
        backward.push(totals(&of_rows, share)?);
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
pub(super) fn grad_name(name: &str) -> String {
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
            let is = move |form: &Form| matches!(form, Form::RescaledSum { maximum: m, .. } if *m == maximum);
            forward.slots.iter().enumerate().filter(move |(_, slot)| is(&slot.form))
        };
        for (slot, Slot { form, carried, result, .. }) in forward.slots.iter().enumerate() {
            let name = forward.name(*carried);
            match form {
                Form::RunningMaximum { .. } => {
                    let rank_1 = |(_, slot): &(usize, &Slot)| kernel.tile(slot.result).rank() == 1;
                    let sum = || rescaled(slot).find(rank_1).map(|(slot, _)| slot);
                    if let Some((param, at, sum)) = forward.stored_reference(slot) {
                        made.references.insert(slot, stored(param, at));
                        made.sums.insert(slot, sum);
                    } else if let Some(sum) = sum() {
                        made.references.insert(slot, row_tensor(forward, &format!("{name}_reference"), *result));
                        made.sums.insert(slot, sum);
                    }
                }
                Form::Sum { .. } => {
                    made.values.insert(slot, row_tensor(forward, &format!("{name}_sum"), *result));
                }
                _ => {}
            }
        }
        for (slot, Slot { form, carried, result, .. }) in forward.slots.iter().enumerate() {
            let Form::RescaledSum { maximum, .. } = form else { continue };
            let Some(&sum) = made.sums.get(maximum).filter(|sum| **sum != slot) else { continue };
            let name = forward.name(*carried);
            let kept = match forward.stored_quotient(slot, sum) {
                Some((param, at)) => stored(param, at),
                None => row_tensor(forward, &format!("{name}_mean"), *result),
            };
            made.values.insert(slot, kept);
        }
        made
    }

    /// Presets what the loop gives and what its sums are rescaled by. Loads what is stored of rows.
    fn preset(&self, copy: &mut Copy<'_, '_>) -> Result<(), NotDifferentiable> {
        let forward = copy.forward;
        for (&maximum, stored) in &self.references {
            let reference = stored.load(copy)?;
            let finite = copy.unary(UnaryOp::VisibleOrZero, reference);
            copy.known.insert(forward.slots[maximum].result, reference);
            copy.known.insert(forward.slots[maximum].next, reference);
            for slot in &forward.slots {
                if let Form::RescaledSum { maximum: m, reference, .. } = slot.form
                    && m == maximum
                {
                    copy.known.insert(reference, finite);
                }
            }
        }
        for &sum in self.sums.values() {
            let dims = copy.dims_of(forward.slots[sum].result);
            let one = copy.filled(1.0, dims);
            copy.known.insert(forward.slots[sum].result, one);
        }
        for (&slot, stored) in &self.values {
            let value = stored.load(copy)?;
            copy.known.insert(forward.slots[slot].result, value);
        }
        Ok(())
    }

    /// The forward kernel with the outputs that are `used`.
    fn forward(&self, forward: &Forward<'_>, used: &dyn Fn(&str) -> bool) -> Kernel {
        let mut b = Builder::at_end_of(forward.kernel.clone());
        let result = |slot: usize| forward.slots[slot].result;
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
            let Form::RescaledSum { base, .. } = forward.slots[sum].form else { unreachable!("a sum that is rescaled") };
            store(stored, &|b| {
                let op = if base == Base::E { UnaryOp::Ln } else { UnaryOp::Log2 };
                let logarithm = b.emit(Op::Unary(op, result(sum)));
                b.emit(Op::Binary(BinaryOp::Add, result(maximum), logarithm))
            });
        }
        for (&slot, stored) in &self.values {
            store(stored, &|b| match forward.slots[slot].form {
                Form::RescaledSum { maximum, .. } => {
                    b.emit(Op::Binary(BinaryOp::DivOrZero, result(slot), result(self.sums[&maximum])))
                }
                _ => result(slot),
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

/// Loads of inputs whose gradients are wanted: one of each tile.
fn wanted_loads(forward: &Forward<'_>, class: Class) -> Vec<WantedLoad> {
    let of = |op: OpId| match &forward.kernel.ops[op].op {
        Op::Load { tensor, at } if forward.wanted.contains(tensor) => {
            let value = forward.kernel.ops[op].results[0];
            (forward.canonical(value) == value && forward.class(value) == class).then(|| (value, *tensor, at.clone()))
        }
        _ => None,
    };
    forward.in_order().into_iter().filter_map(of).collect()
}

/// Stores the gradients of loaded tiles, or the share of this program where several programs load
/// the same.
fn store_gradients(reverse: &mut Reverse<'_, '_>, loads: &[WantedLoad]) -> Result<Vec<Share>, NotDifferentiable> {
    let mut shares = Vec::new();
    for load in loads {
        let (value, tensor, at) = load;
        let dims = reverse.dims_of_gradient(*value);
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
        let share = match reverse.copy.orientation {
            Orientation::Rows => Share::of(forward, load)?,
            // The grid is that of what columns load.
            Orientation::Columns => None,
        };
        let decl = TensorDecl { direction: Direction::Out, ..forward.kernel.tensor(*tensor).clone() };
        let (name, decl, at) = match &share {
            Some(share) => (share.name.clone(), share.decl(Direction::Out), share.place()),
            None => (grad_name(&forward.kernel.params[*tensor].name), decl, at.clone()),
        };
        let (output, at) = (reverse.copy.tensor(&name, decl), reverse.copy.place(&at)?);
        reverse.copy.b.append(Op::Store { tensor: output, at, value: gradient });
        shares.extend(share);
    }
    Ok(shares)
}

/// What the kernel of rows leaves to those of columns: the gradient of each result of a loop.
type OfRows = BTreeMap<usize, Stored>;

/// The kernel of rows, if it stores anything.
struct OfRowsMade {
    kernel: Option<Kernel>,
    left: OfRows,
    shares: Vec<Share>,
}

/// The kernel of rows, which leaves what `is_read`, by its name.
fn rows_kernel(forward: &Forward<'_>, kept: &Kept, is_read: &dyn Fn(&str) -> bool) -> Result<OfRowsMade, NotDifferentiable> {
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
    give_stored(&mut reverse, kernel.body, &mut given)?;
    let mut made = OfRowsMade { kernel: None, left: OfRows::new(), shares: Vec::new() };
    let pairs = wanted_loads(forward, Class::Pair);
    let mut of_results = OfResults::new();
    for &op in kernel.blocks[kernel.body].ops.iter().rev() {
        let Some(walk) = forward.walk_of(op) else {
            reverse.through(op)?;
            continue;
        };
        for (slot, Slot { result, .. }) in forward.slots.iter().enumerate().filter(|(_, slot)| slot.walk == walk) {
            if let Some(g) = reverse.adjoints.remove(result) {
                let g = reverse.applied(g);
                of_results.insert(slot, g.into());
                if term(forward, slot).is_some() {
                    made.left.extend(leave(&mut reverse, slot, g, &given, is_read)?.map(|stored| (slot, stored)));
                }
            }
        }
        let pairs: &[WantedLoad] = if walk == 0 { &pairs } else { &[] };
        made.shares.extend(pass(&mut reverse, &of_results, walk, pairs)?);
        to_start(&mut reverse, &of_results, walk)?;
        for &op in kernel.blocks[forward.walks[walk].body].ops.iter().rev() {
            reverse.through(op)?;
        }
    }
    for class in [Class::Row, Class::Program] {
        made.shares.extend(store_gradients(&mut reverse, &wanted_loads(forward, class))?);
    }
    let kernel = finish(reverse);
    let stores = kernel.walk().into_iter().any(|(_, op)| matches!(kernel.ops[op].op, Op::Store { .. }));
    made.kernel = stores.then_some(kernel);
    Ok(made)
}

/// Gives what is stored in a block its gradients, which are loaded where it is stored.
fn give_stored(
    reverse: &mut Reverse<'_, '_>,
    block: BlockId,
    given: &mut HashMap<ValueId, Stored>,
) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    for &op in &forward.kernel.blocks[block].ops {
        let Op::Store { tensor, at, value } = &forward.kernel.ops[op].op else { continue };
        if forward.given.contains(tensor) && forward.needed.contains(value) {
            let decl = TensorDecl { direction: Direction::In, ..forward.kernel.tensor(*tensor).clone() };
            let name = grad_name(&forward.kernel.params[*tensor].name);
            let stored = Stored { name, at: at.clone(), decl, is_new: false };
            let g = stored.load(&mut reverse.copy)?;
            given.insert(g, stored);
            reverse.give(*value, g.into())?;
        }
    }
    Ok(())
}

/// Gives the gradients of a loop's results to the values that it starts from.
fn to_start(reverse: &mut Reverse<'_, '_>, of_results: &OfResults, walk: usize) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    for (&slot, &g) in of_results {
        let Slot { walk: own, form, init, .. } = &forward.slots[slot];
        if *own != walk {
            continue;
        }
        let &Form::RescaledSum { maximum, base, .. } = form else {
            reverse.give(*init, g)?;
            continue;
        };
        // The sum starts from `init`, times the exponential of what the maximum starts from.
        let Slot { init: from, result: reference, .. } = forward.slots[maximum];
        if !forward.needed.contains(init) && !forward.needed.contains(&from) {
            continue;
        }
        let copy = &mut reverse.copy;
        let (start, reference) = (copy.value(from)?, copy.value(reference)?);
        let finite = copy.unary(UnaryOp::VisibleOrZero, reference);
        let below = copy.binary(BinaryOp::Sub, start, finite);
        let factor = copy.unary(if base == Base::E { UnaryOp::Exp } else { UnaryOp::Exp2 }, below);
        let value = copy.mul(g.value, factor);
        reverse.give(*init, Adjoint { value, ..g })?;
        let sum = reverse.copy.value(*init)?;
        let mut value = reverse.copy.mul(value, sum);
        if base == Base::Two {
            let ln_2 = reverse.copy.float(std::f64::consts::LN_2);
            value = reverse.copy.mul(value, ln_2);
        }
        reverse.give(from, Adjoint { value, ..g })?;
    }
    Ok(())
}

/// Stores the gradient of a result of a loop for the kernels of columns, unless an input has it.
fn leave(
    reverse: &mut Reverse<'_, '_>,
    slot: usize,
    g: ValueId,
    given: &HashMap<ValueId, Stored>,
    is_read: &dyn Fn(&str) -> bool,
) -> Result<Option<Stored>, NotDifferentiable> {
    if let Some(stored) = given.get(&g) {
        return Ok(Some(stored.clone()));
    }
    let forward = reverse.copy.forward;
    let Slot { result, carried, .. } = forward.slots[slot];
    let stored = row_tensor(forward, &grad_name(&forward.name(carried)), result);
    if !is_read(&stored.name) {
        return Ok(None);
    }
    let decl = TensorDecl { direction: Direction::Out, ..stored.decl.clone() };
    let (tensor, at) = (reverse.copy.tensor(&stored.name, decl), reverse.copy.place(&stored.at)?);
    let dims = reverse.copy.dims_of(result);
    let zeros = reverse.copy.filled(0.0, dims.clone());
    let value = if reverse.copy.dims(g).len() < dims.len() { reverse.copy.add(zeros, g) } else { g };
    reverse.copy.b.append(Op::Store { tensor, at, value });
    Ok(Some(stored))
}

/// What a step adds to a carried value, if it is a sum.
fn term(forward: &Forward<'_>, slot: usize) -> Option<ValueId> {
    match forward.slots[slot].form {
        Form::Sum { term } | Form::RescaledSum { term, .. } => Some(term),
        _ => None,
    }
}

/// Gradients of results of loops, by their slots.
type OfResults = BTreeMap<usize, Adjoint>;

/// A load whose gradient is wanted: what it gives, the tensor, and its place.
type WantedLoad = (ValueId, ParamId, Vec<At>);

/// Goes back through the bodies of loops, from the last, in a loop that is open, and gives the
/// gradients of what that loop does not move along, each in one sum. Of the kernel of rows a pass
/// gives those of one loop, `only`.
fn step(
    reverse: &mut Reverse<'_, '_>,
    of_results: &OfResults,
    only: Option<usize>,
    walks: &[usize],
) -> Result<Vec<(ValueId, Adjoint)>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    reverse.in_loop = true;
    for &walk in walks.iter().rev() {
        for (&slot, &g) in of_results.iter().filter(|(slot, _)| forward.slots[**slot].walk == walk) {
            let Some(term) = term(forward, slot).filter(|term| forward.needed.contains(term)) else { continue };
            let sum = match reverse.adjoints.remove(&term) {
                Some(other) => reverse.sum(other, g),
                None => g,
            };
            reverse.adjoints.insert(term, sum);
        }
        let body = forward.walks[walk].body;
        give_stored(reverse, body, &mut HashMap::new())?;
        for &op in forward.kernel.blocks[body].ops.iter().rev() {
            reverse.through(op)?;
        }
        if only.is_some_and(|only| only != walk) {
            reverse.collected.clear();
        }
    }
    reverse.in_loop = false;
    let mut sums: Vec<(ValueId, Adjoint)> = Vec::new();
    for (to, g) in std::mem::take(&mut reverse.collected) {
        match sums.iter().position(|(other, _)| *other == to) {
            Some(at) => sums[at].1 = reverse.sum(sums[at].1, g),
            None => sums.push((to, g)),
        }
    }
    Ok(sums)
}

/// Walks columns, and adds what a loop gives to the gradients of rows. The last pass stores the
/// gradients of pairs, which all loops have parts of.
fn pass(
    reverse: &mut Reverse<'_, '_>,
    of_results: &OfResults,
    walk: usize,
    pairs: &[WantedLoad],
) -> Result<Vec<Share>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let all: Vec<usize> = (0..forward.walks.len()).collect();
    let walks = if pairs.is_empty() { &all[walk..=walk] } else { &all };
    let outside = std::mem::take(&mut reverse.adjoints);
    // Which gradients there are is known when the step was taken once.
    let mut tried = reverse.clone();
    tried.copy.open_columns(&[]);
    let targets: Vec<ValueId> = step(&mut tried, of_results, Some(walk), walks)?.into_iter().map(|(to, _)| to).collect();
    if targets.is_empty() && pairs.is_empty() {
        reverse.adjoints = outside;
        return Ok(Vec::new());
    }
    let init = zeros(reverse, &targets);
    let carried = reverse.copy.open_columns(&init);
    let sums = step(reverse, of_results, Some(walk), walks)?;
    let shares = store_gradients(reverse, pairs)?;
    let next = added(reverse, &carried, &sums);
    let results = reverse.copy.close_columns(init, next);
    reverse.adjoints = outside;
    hand_over(reverse, &sums, results)?;
    Ok(shares)
}

/// Zeros to start sums of gradients from.
fn zeros(reverse: &mut Reverse<'_, '_>, targets: &[ValueId]) -> Vec<ValueId> {
    let forward = reverse.copy.forward;
    let mut init = Vec::new();
    for &to in targets {
        let dims = reverse.dims_of_gradient(to);
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
    loads: Vec<WantedLoad>,
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
    copy.b.kernel.values[coordinate].name.clone_from(&kernel.values[forward.walks[0].column.0].name);
    for walk in &forward.walks {
        copy.known.insert(walk.column.0, coordinate);
    }
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
    let walks: Vec<usize> = (0..forward.walks.len()).collect();
    let mut tried = reverse.clone();
    let tried_loops = open_rows(&mut tried, &summed, group, &[])?;
    drop(tried_loops);
    let of_results = rows_of(&mut tried, kept, of_rows)?;
    let targets: Vec<ValueId> = step(&mut tried, &of_results, None, &walks)?.into_iter().map(|(to, _)| to).collect();
    let init = zeros(&mut reverse, &targets);
    let mut loops = open_rows(&mut reverse, &summed, group, &init)?;
    let of_results = rows_of(&mut reverse, kept, of_rows)?;
    let sums = step(&mut reverse, &of_results, None, &walks)?;
    let (_, carried) = loops.last().expect("rows are walked").clone();
    let mut results = added(&mut reverse, &carried, &sums);
    while let Some((axis, _)) = loops.pop() {
        let init = loops.last().map_or_else(|| init.clone(), |(_, carried)| carried.clone());
        results = reverse.copy.b.end_for(axis, init, results);
        let depth = reverse.copy.b.depth();
        results.iter().for_each(|&v| reverse.copy.at_depth(v, depth));
    }
    hand_over(&mut reverse, &sums, results)?;
    for op in forward.in_order().into_iter().rev() {
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
