//! The gradient of a kernel whose grid has tiles of rows: kernels of rows, of columns, and of what
//! programs share.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::NotDifferentiable;
use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward, Slot};
use super::kept::{Kept, Stored, grad_name, row_tensor};
use super::rules::{Adjoint, Reverse};
use super::steps::{
    OfResults, WantedLoad, added, depends_on_program, finish, give_stored, hand_over, step, store_gradients, term, wanted_loads,
    zeros,
};
use super::totals::{Share, totals};
use crate::analysis::streaming::{Base, Form};
use crate::ir::{At, AxisId, AxisKind, BinaryOp, CompareOp, Kernel, Op, ParamId, ProgramDim, SizeExpr, UnaryOp, ValueId};

/// The kernels of the gradients of a kernel whose grid has tiles of rows.
pub(super) fn of_rows_and_columns(forward: &Forward<'_>, kept: &Kept) -> Result<Vec<Kernel>, NotDifferentiable> {
    let groups = column_groups(forward)?;
    // Each kernel goes back to the inputs alone that it gives the gradients of.
    let loads = [Class::Row, Class::Pair, Class::Program].map(|class| wanted_loads(forward, class));
    let tensors: BTreeSet<ParamId> = loads.iter().flatten().map(|(_, tensor, _)| *tensor).collect();
    let of_rows = forward.only(tensors.into_iter().collect()).with_results_of(forward);
    let left = rows_kernel(&of_rows, kept, &|_| !groups.is_empty())?.left;
    let mut columns = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let tensors: BTreeSet<ParamId> = group.loads.iter().map(|(_, tensor, _)| *tensor).collect();
        let of_group = forward.only(tensors.into_iter().collect());
        columns.push(columns_kernel(&of_group, kept, &left, group, &number)?);
    }
    // What columns read of it is stored, and nothing else.
    let read = |name: &str| columns.iter().any(|kernel| kernel.param_named(name).is_some());
    let OfRowsMade { kernel: rows, shares, .. } = rows_kernel(&of_rows, kept, &read)?;
    let mut backward: Vec<Kernel> = rows.into_iter().chain(columns).collect();
    for share in &shares {
        backward.push(totals(&of_rows, share)?);
    }
    Ok(backward)
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
    let kernel = finish(reverse, "rows", "What the gradients of columns need of rows");
    let stores = kernel.walk().into_iter().any(|(_, op)| matches!(kernel.ops[op].op, Op::Store { .. }));
    made.kernel = stores.then_some(kernel);
    Ok(made)
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
    let dims = reverse.copy.dims_of(result);
    stored.store(&mut reverse.copy, g, dims)?;
    Ok(Some(stored))
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
    copy.b.kernel.values[coordinate].name.clone_from(&kernel.values[forward.columns[0].0].name);
    copy.columns_are(coordinate);
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
    Ok(finish(reverse, "columns", "Nothing"))
}

/// What is stored of rows, in the loop over rows that is open.
fn rows_of(reverse: &mut Reverse<'_, '_>, kept: &Kept, of_rows: &OfRows) -> Result<BTreeMap<usize, Adjoint>, NotDifferentiable> {
    kept.preset(&mut reverse.copy)?;
    of_rows.iter().map(|(&slot, stored)| Ok((slot, stored.load(&mut reverse.copy)?.into()))).collect()
}

/// Loops that are open: the axis of each, and what it carries.
type Open = Vec<(AxisId, Vec<ValueId>)>;

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
    reverse.copy.indices.1.extend(group.indices.iter().map(|(v, _)| *v));
    for (v, extent) in summed {
        let axis = reverse.copy.b.axis(forward.name(*v), extent.clone(), AxisKind::Each);
        let (index, next) = reverse.copy.b.begin_for(axis, &carried);
        next.iter().chain([&index]).for_each(|&v| reverse.copy.in_loop(v));
        reverse.copy.known.insert(*v, index);
        reverse.copy.indices.0.insert(*v);
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
