//! The gradient of a kernel with two tiled dimensions of the grid: sums of products along a third
//! axis, and what follows them.
//!
//! Three kinds of kernels:
//!
//! * *Pairs*: a program for each tile of the output takes the gradients of the outputs back to
//!   those of the sums, and stores them. The sums themselves are outputs of the forward kernel. It
//!   gives the gradients of what is loaded behind the loop. A sum that is an output as it is needs
//!   none: the gradient of that output is read in its place.
//! * One for each input of the loop: a program for each tile of the input, which walks the axis
//!   that the input lacks. The gradient of an operand is a product again, with the other operand.
//! * Totals, of what several programs share (a bias).

use std::collections::{BTreeSet, HashMap};

use super::NotDifferentiable;
use super::copy::{Copy, Open, Orientation, Shares};
use super::forward::{Class, Forward, Slot, WantedLoad};
use super::kept::{Kept, Left, row_tensor};
use super::names::grad_name;
use super::rules::Reverse;
use super::steps::{finish, give_stored, if_it_stores, load_left, store_gradients, sum_up};
use super::totals::{Share, all_totals};
use crate::ir::{At, AxisId, Kernel, ParamId, ProgramDim, Type, ValueDef, ValueId};

/// The kernels of the gradients of a product.
pub(super) fn of_product(forward: &Forward<'_>, kept: &Kept) -> Result<Vec<Kernel>, NotDifferentiable> {
    let all: Vec<WantedLoad> = [Class::Program, Class::Row, Class::Column, Class::Pair]
        .into_iter()
        .flat_map(|class| forward.wanted_loads(class))
        .collect();
    let (inside, outside): (Vec<_>, Vec<_>) = all.into_iter().partition(|(value, ..)| is_in_loop(forward, *value));
    let tensors = |loads: &[WantedLoad]| loads.iter().map(|(_, tensor, _)| *tensor).collect::<BTreeSet<ParamId>>();
    let of_pairs = forward.only(&outside, &[]).with_results_of(forward);
    let (pairs, left, shares) = pairs_kernel(&of_pairs, kept, &outside, !inside.is_empty())?;
    let mut backward: Vec<Kernel> = pairs.into_iter().collect();
    for tensor in tensors(&inside) {
        let loads: Vec<WantedLoad> = inside.iter().filter(|(_, t, _)| *t == tensor).cloned().collect();
        backward.push(operand_kernel(&forward.only(&loads, &[]), &left, &loads)?);
    }
    backward.extend(all_totals(&of_pairs, &shares)?);
    Ok(backward)
}

/// Whether a value is made in the loop.
fn is_in_loop(forward: &Forward<'_>, value: ValueId) -> bool {
    matches!(forward.kernel.values[value].def, ValueDef::Result(op, _) if forward.is_in_loop(op))
}

/// The kernel of pairs, if it stores anything.
fn pairs_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    loads: &[WantedLoad],
    is_read: bool,
) -> Result<(Option<Kernel>, Left, Vec<Share>), NotDifferentiable> {
    let kernel = forward.kernel;
    let name = format!("{}_grad_pairs", kernel.name);
    let tiled = [forward.row.1, forward.columns[0].1];
    let mut copy = Copy::of_product(forward, name, Orientation::Rows, &tiled, false);
    copy.shares = Shares::OfPairs;
    copy.whole_program();
    kept.preset(&mut copy)?;
    let mut reverse = Reverse::new(copy);
    // Tensors that hold a value: gradients that are given, and what is stored here.
    let mut held = HashMap::new();
    give_stored(&mut reverse, kernel.body, &mut held)?;
    let mut left = Left::new();
    for &op in kernel.blocks[kernel.body].ops.iter().rev() {
        if forward.walk_of(op).is_none() {
            reverse.through(op)?;
            continue;
        }
        for (slot, Slot { result, init, .. }) in forward.slots.iter().enumerate() {
            let Some(g) = reverse.adjoints.remove(result) else { continue };
            reverse.give(*init, g)?;
            let value = reverse.applied(g);
            let new = row_tensor(forward, &grad_name(&forward.name_of_slot(slot)), *result);
            let stored = match held.get(&value) {
                // A sum that is an output as it is has the gradient that is given of that.
                Some(held) if held.decl.elem == new.decl.elem => held.clone(),
                _ => {
                    if is_read {
                        let dims = reverse.copy.dims_of(*result);
                        new.store(&mut reverse.copy, value, dims)?;
                        held.entry(value).or_insert_with(|| new.clone());
                    }
                    new
                }
            };
            left.insert(slot, stored);
        }
    }
    let mut shares = Vec::new();
    for load in loads {
        // A gradient that a tensor holds already serves as the share of what is added to the sum.
        let g = reverse.adjoints.get(&load.0).filter(|g| g.factor.is_none()).map(|g| g.value);
        let is_turned = reverse.copy.is_turned_there(load.0);
        let stored = g.and_then(|g| held.get(&g)).filter(|_| !is_turned);
        match (Share::of(forward, load)?, stored) {
            // An element of another index is at a place of its own.
            (Some(share), Some(stored)) if share.place() == stored.at => {
                shares.push(share.stored_as(stored.name.clone(), stored.decl.elem));
            }
            _ => shares.extend(store_gradients(&mut reverse, std::slice::from_ref(load))?),
        }
    }
    let mut made = finish(reverse, "the outputs", "What the gradients of operands need of the outputs");
    if is_read {
        made.doc = format!("The gradients of the sums, a program for each tile of the outputs: of `{}`.", kernel.name);
    }
    Ok((if_it_stores(made), left, shares))
}

/// The kernel of an input of the loop.
fn operand_kernel(forward: &Forward<'_>, left: &Left, loads: &[WantedLoad]) -> Result<Kernel, NotDifferentiable> {
    let (value, tensor, at) = &loads[0];
    let param = &forward.kernel.params[*tensor];
    let inner = forward.walks[0].at.0;
    let refuse =
        |why: &str, instead: &str| Err(NotDifferentiable::new(format!("`{}` {why}", param.name), forward.span(*value), instead));
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
    let is_foreign = |v: ValueId| forward.depends_on_program(v) && !forward.program.contains(&v);
    if at.iter().any(|at| matches!(at, At::Index(v) if is_foreign(*v))) {
        return refuse("is loaded at an index that is no dimension of the grid", "give the grid a dimension for it");
    }
    let name = format!("{}_{}", forward.kernel.name, forward.gradient(*tensor).0);
    let axis_of = |entry: &At| match entry {
        At::Tile(v) => match forward.kernel.ty(*v) {
            Type::Coord(axis) => Some(*axis),
            _ => None,
        },
        _ => None,
    };
    let tiled: Vec<AxisId> = at.iter().filter_map(axis_of).collect();
    let mut copy = Copy::of_product(forward, name, orientation, &tiled, true);
    let grid = grid_of(&copy, at);
    copy.program(&grid);
    let mut reverse = Reverse::new(copy);
    sum_up(&mut reverse, |copy, init| Ok(open_other(copy, init)), |copy| load_left(copy, left), |_| Ok(()))?;
    store_gradients(&mut reverse, loads)?;
    let tiles = format!("`{}`", param.name);
    Ok(finish(reverse, &tiles, "Nothing"))
}

/// The grid of the kernel of an input: what the address of that has, in its order, with the values
/// of the forward kernel.
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

/// Opens the loops over dimensions of the grid that the input lacks, and over rows or columns.
fn open_other(copy: &mut Copy<'_, '_>, init: &[ValueId]) -> Open {
    let (axis, there) = match copy.orientation {
        Orientation::Rows => (copy.axes.1, copy.forward.columns[0].0),
        Orientation::Columns => (copy.axes.0, copy.forward.row.0),
    };
    let mut loops = copy.open_indices(init);
    let (here, carried) = copy.open(axis, loops.last().map_or(init, |(_, carried)| carried));
    copy.known.insert(there, here);
    loops.push((axis, carried));
    loops
}
