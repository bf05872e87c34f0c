//! The gradient of a kernel with two tiled dimensions of the grid: sums of products along a third
//! axis, and what follows them.
//!
//! Three kinds of kernels:
//!
//! * *Pairs*: a program for each tile of the output takes the gradients of the outputs back to those
//!   of the sums, and stores them. The sums themselves are outputs of the forward kernel. It gives the
//!   gradients of what is loaded behind the loop.
//! * One for each input of the loop: a program for each tile of the input, which walks the axis that
//!   the input lacks. The gradient of an operand is a product again, with the other operand.
//! * Totals, of what several programs share (a bias).

use std::collections::{BTreeSet, HashMap};

use super::NotDifferentiable;
use super::copy::{Copy, Orientation, Shares};
use super::forward::{Class, Forward, Slot};
use super::kept::{Kept, Stored, grad_name, row_tensor};
use super::rules::{Adjoint, Reverse};
use super::steps::{
    OfResults, WantedLoad, added, depends_on_program, finish, give_stored, hand_over, step, store_gradients, wanted_loads, zeros,
};
use super::totals::{Share, totals};
use crate::ir::{At, AxisId, AxisKind, Kernel, Op, ParamId, ProgramDim, SizeExpr, ValueDef, ValueId};

/// The kernels of the gradients of a product.
pub(super) fn of_product(forward: &Forward<'_>, kept: &Kept) -> Result<Vec<Kernel>, NotDifferentiable> {
    let all: Vec<WantedLoad> = [Class::Program, Class::Row, Class::Column, Class::Pair]
        .into_iter()
        .flat_map(|class| wanted_loads(forward, class))
        .collect();
    let (inside, outside): (Vec<_>, Vec<_>) = all.into_iter().partition(|(value, ..)| is_in_loop(forward, *value));
    let tensors = |loads: &[WantedLoad]| loads.iter().map(|(_, tensor, _)| *tensor).collect::<BTreeSet<ParamId>>();
    let of_pairs = forward.only(tensors(&outside).into_iter().collect()).with_results_of(forward);
    let (pairs, left, shares) = pairs_kernel(&of_pairs, kept, &outside, !inside.is_empty())?;
    let mut backward: Vec<Kernel> = pairs.into_iter().collect();
    for tensor in tensors(&inside) {
        let loads: Vec<WantedLoad> = inside.iter().filter(|(_, t, _)| *t == tensor).cloned().collect();
        backward.push(operand_kernel(&forward.only(vec![tensor]), &left, &loads)?);
    }
    for share in &shares {
        backward.push(totals(&of_pairs, share)?);
    }
    Ok(backward)
}

/// Whether a value is made in the loop.
fn is_in_loop(forward: &Forward<'_>, value: ValueId) -> bool {
    matches!(forward.kernel.values[value].def, ValueDef::Result(op, _) if forward.is_in_loop(op))
}

/// Gradients of the sums, by their slots.
type OfSums = Vec<(usize, Stored)>;

/// The kernel of pairs, if it stores anything.
fn pairs_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    loads: &[WantedLoad],
    is_read: bool,
) -> Result<(Option<Kernel>, OfSums, Vec<Share>), NotDifferentiable> {
    let kernel = forward.kernel;
    let name = format!("{}_grad_pairs", kernel.name);
    let mut copy = Copy::of_product(forward, name, Orientation::Rows, [AxisKind::Program; 2], None);
    copy.shares = Shares::OfPairs;
    let axes = copy.axes;
    let dims = kernel.grid().iter().map(|dim| match dim {
        ProgramDim::Tiles(axis) => ProgramDim::Tiles(if *axis == forward.row.1 { axes.0 } else { axes.1 }),
        each @ ProgramDim::Each(_) => each.clone(),
    });
    let (_, program) = copy.b.append(Op::Program(dims.collect()));
    for (&here, &there) in program.iter().zip(&forward.program) {
        copy.b.kernel.values[here].name.clone_from(&kernel.values[there].name);
        copy.known.insert(there, here);
    }
    kept.preset(&mut copy)?;
    let mut reverse = Reverse::new(copy);
    give_stored(&mut reverse, kernel.body, &mut HashMap::new())?;
    for &op in kernel.blocks[kernel.body].ops.iter().rev().filter(|&&op| forward.walk_of(op).is_none()) {
        reverse.through(op)?;
    }
    let mut left = OfSums::new();
    let mut stored_values: Vec<(ValueId, Stored)> = Vec::new();
    for (slot, Slot { result, carried, init, .. }) in forward.slots.iter().enumerate() {
        let Some(g) = reverse.adjoints.remove(result) else { continue };
        reverse.give(*init, g)?;
        let value = reverse.applied(g);
        let stored = row_tensor(forward, &grad_name(&forward.name(*carried)), *result);
        if is_read {
            let dims = reverse.copy.dims_of(*result);
            stored.store(&mut reverse.copy, value, dims)?;
            stored_values.push((value, stored.clone()));
        }
        left.push((slot, stored));
    }
    for &op in kernel.blocks[kernel.body].ops.iter().rev().filter(|&&op| forward.walk_of(op).is_none()) {
        reverse.through(op)?;
    }
    let mut shares = Vec::new();
    for load in loads {
        // The gradient of a sum that is stored already serves as the share of what is added to it.
        let g = reverse.adjoints.get(&load.0).filter(|g| g.factor.is_none()).map(|g| g.value);
        let stored = stored_values.iter().find(|(value, _)| Some(*value) == g);
        match (Share::of(forward, load)?, stored) {
            (Some(share), Some((_, Stored { name, decl, .. }))) => {
                shares.push(share.stored_as(name.clone(), decl.elem));
            }
            _ => shares.extend(store_gradients(&mut reverse, std::slice::from_ref(load))?),
        }
    }
    let mut made = finish(reverse, "the outputs", "What the gradients of operands need of the outputs");
    if is_read {
        made.doc = format!("The gradients of the sums, a program for each tile of the outputs: of `{}`.", kernel.name);
    }
    let stores = made.walk().into_iter().any(|(_, op)| matches!(made.ops[op].op, Op::Store { .. }));
    Ok((stores.then_some(made), left, shares))
}

/// The kernel of an input of the loop.
fn operand_kernel(forward: &Forward<'_>, left: &OfSums, loads: &[WantedLoad]) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let (value, tensor, at) = &loads[0];
    let param = &kernel.params[*tensor];
    let inner = forward.walks[0].at.0;
    let refuse = |why: &str, instead: &str| {
        Err(NotDifferentiable::new(format!("`{}` {why}", param.name), forward.span(*value), instead.to_owned()))
    };
    let orientation = match forward.class(*value) {
        Class::Row => Orientation::Rows,
        Class::Column => Orientation::Columns,
        Class::Pair | Class::Program => {
            return refuse("has no dimension for rows alone, nor for columns alone", "load operands of products by two tiles");
        }
    };
    if loads.iter().any(|(_, _, at)| !at.contains(&At::Tile(inner))) {
        return refuse("is the same in each step of the loop", "load it in front of the loop, or behind");
    }
    if let Some(At::Index(_)) =
        at.iter().find(|at| matches!(at, At::Index(v) if depends_on_program(forward, *v) && !forward.program.contains(v)))
    {
        return refuse("is loaded at an index that is no dimension of the grid", "give the grid a dimension for it");
    }
    let name = format!("{}_{}", kernel.name, grad_name(&param.name));
    let kinds = match orientation {
        Orientation::Rows => [AxisKind::Program, AxisKind::Loop],
        Orientation::Columns => [AxisKind::Loop, AxisKind::Program],
    };
    let mut copy = Copy::of_product(forward, name, orientation, kinds, Some(AxisKind::Program));
    let places = grid_of(&copy, at);
    let (_, program) = copy.b.append(Op::Program(places.iter().map(|(_, dim)| dim.clone()).collect()));
    for (&here, (there, _)) in program.iter().zip(&places) {
        copy.b.kernel.values[here].name.clone_from(&kernel.values[*there].name);
        copy.known.insert(*there, here);
    }
    let mut reverse = Reverse::new(copy);
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
    let targets: Vec<ValueId> = {
        open(&mut tried, &summed, &[]);
        let of_results = of_sums(&mut tried, left)?;
        step(&mut tried, &of_results, None, &[0])?.into_iter().map(|(to, _)| to).collect()
    };
    let init = zeros(&mut reverse, &targets);
    let mut loops = open(&mut reverse, &summed, &init);
    let of_results = of_sums(&mut reverse, left)?;
    let sums = step(&mut reverse, &of_results, None, &[0])?;
    let (_, carried) = loops.last().expect("an axis is walked").clone();
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
    store_gradients(&mut reverse, loads)?;
    let tiles = format!("`{}`", param.name);
    Ok(finish(reverse, &tiles, "Nothing"))
}

/// The grid of the kernel of an input: what the address of that has, in its order, with the values of
/// the forward kernel.
fn grid_of(copy: &Copy<'_, '_>, at: &[At]) -> Vec<(ValueId, ProgramDim)> {
    let (forward, axes) = (copy.forward, copy.axes);
    let (inner, own) = (forward.walks[0].at.0, copy.inner.expect("an axis of the product"));
    let place = |at: &At| match at {
        At::Index(v) => {
            let dim = forward.program.iter().position(|p| p == v)?;
            Some((*v, forward.kernel.grid()[dim].clone()))
        }
        At::Tile(v) if *v == inner => Some((*v, ProgramDim::Tiles(own))),
        At::Tile(v) => Some((*v, ProgramDim::Tiles(if copy.orientation == Orientation::Rows { axes.0 } else { axes.1 }))),
        At::Range { .. } => None,
    };
    at.iter().filter_map(place).collect()
}

/// The gradients of the sums, where rows and columns are.
fn of_sums(reverse: &mut Reverse<'_, '_>, left: &OfSums) -> Result<OfResults, NotDifferentiable> {
    left.iter().map(|(slot, stored)| Ok((*slot, Adjoint::from(stored.load(&mut reverse.copy)?)))).collect()
}

/// Opens the loops over dimensions of the grid that the input lacks, and over rows or columns.
fn open(reverse: &mut Reverse<'_, '_>, summed: &[(ValueId, SizeExpr)], init: &[ValueId]) -> Vec<(AxisId, Vec<ValueId>)> {
    let forward = reverse.copy.forward;
    let mut loops = Vec::new();
    let mut carried = init.to_vec();
    let (axis, at) = match reverse.copy.orientation {
        Orientation::Rows => (reverse.copy.axes.1, forward.columns[0].0),
        Orientation::Columns => (reverse.copy.axes.0, forward.row.0),
    };
    let indices = summed.iter().map(|(v, extent)| (*v, Some(extent.clone())));
    for (there, extent) in indices.chain([(at, None)]) {
        let copy = &mut reverse.copy;
        if extent.is_some() {
            copy.indices.0.insert(there);
        }
        let axis = extent.map_or(axis, |extent| copy.b.axis(forward.name(there), extent, AxisKind::Each));
        let (here, next) = copy.b.begin_for(axis, &carried);
        next.iter().chain([&here]).for_each(|&v| copy.in_loop(v));
        copy.known.insert(there, here);
        loops.push((axis, next.clone()));
        carried = next;
    }
    loops
}
