//! The gradient of a kernel whose grid has tiles of rows: kernels of rows, of columns, and of what
//! programs share.

use std::collections::HashMap;

use super::NotDifferentiable;
use super::columns::{ColumnGroup, column_groups, sums_of_shares};
use super::copy::{Copy, Open, Orientation};
use super::forward::{Class, Forward, Gathered, Slot, WantedLoad};
use super::gathered::{rounded, scatter_gradients};
use super::kept::{Kept, Left, Stored, row_tensor};
use super::names::grad_name;
use super::pairs::{PairGroup, loads_of, pair_kernels, shared_pair_groups};
use super::rules::{Adjoint, Reverse};
use super::steps::{
    OfResults, added, finish, give_stored, gradient_of, hand_over, if_it_stores, load_left, step, store_gradients, sum_up, terms,
    zeros,
};
use super::sums::{Summed, add_rows};
use super::totals::{Share, all_totals};
use crate::analysis::streaming::{Base, Form};
use crate::ir::{BinaryOp, Kernel, UnaryOp, ValueId};

/// The kernels of the gradients of a kernel whose grid has tiles of rows.
pub(super) fn of_rows_and_columns(
    forward: &Forward<'_>,
    kept: &Kept,
    form: super::Form,
) -> Result<Vec<Kernel>, NotDifferentiable> {
    kernels_with(forward, forward, kept, form, Vec::new())
}

/// The kernels of the gradients of what is wanted in `forward`, and of values of pairs besides. Both
/// are of the wanted inputs of `all`.
pub(super) fn kernels_with(
    forward: &Forward<'_>,
    all: &Forward<'_>,
    kept: &Kept,
    form: super::Form,
    mut of_pairs: Vec<PairGroup>,
) -> Result<Vec<Kernel>, NotDifferentiable> {
    let groups = column_groups(forward, form)?;
    of_pairs.extend(shared_pair_groups(forward));
    // Each kernel goes back to the inputs alone that it gives the gradients of.
    let taken = loads_of(&of_pairs);
    let loads = [forward.wanted_loads(Class::Row), forward.wanted_loads(Class::Pair), forward.wanted_of_programs(false)];
    let loads: Vec<WantedLoad> = loads.into_iter().flatten().filter(|load| !taken.contains(&load.0)).collect();
    let of_rows = forward.only(&loads, &forward.gathers_of_rows()).with_results_of(all);
    let left = rows_kernel(&of_rows, kept, &|_| !groups.is_empty() || !of_pairs.is_empty())?.left;
    let (mut columns, mut of_columns) = (Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let of_group = forward.only(group.loads(), &group.gathers);
        let made = columns_kernel(&of_group, kept, &left, group, false, &number)?;
        columns.push(made.kernel);
        of_columns.extend(made.shares);
    }
    let pairs = pair_kernels(all, kept, &left, &of_pairs)?;
    // What others read of it is stored, and nothing else.
    let read = |name: &str| columns.iter().chain(&pairs).any(|kernel| kernel.param_named(name).is_some());
    let OfRowsMade { kernel: rows, shares, .. } = rows_kernel(&of_rows, kept, &read)?;
    let mut backward: Vec<Kernel> = rows.into_iter().chain(columns).chain(pairs).collect();
    backward.extend(sums_of_shares(forward, &groups)?);
    backward.extend(all_totals(&of_rows, &shares)?);
    backward.extend(all_totals(forward, &of_columns)?);
    backward.extend(rounded(forward));
    Ok(backward)
}

/// The kernel of rows, if it stores anything.
pub(super) struct OfRowsMade {
    pub kernel: Option<Kernel>,
    /// What it leaves to the kernels of columns.
    pub left: Left,
    pub shares: Vec<Share>,
}

/// The kernel of rows, which leaves what `is_read`, by its name.
pub(super) fn rows_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    is_read: &dyn Fn(&str) -> bool,
) -> Result<OfRowsMade, NotDifferentiable> {
    let kernel = forward.kernel;
    let mut copy = Copy::new(forward, format!("{}_grad_rows", kernel.name), Orientation::Rows);
    copy.whole_program();
    kept.preset(&mut copy)?;
    let mut reverse = Reverse::new(copy);
    let mut given = HashMap::new();
    give_stored(&mut reverse, kernel.body, &mut given)?;
    let mut made = OfRowsMade { kernel: None, left: Left::new(), shares: Vec::new() };
    let pairs = Pairs { loads: forward.wanted_loads(Class::Pair), gathers: forward.wanted_gathers(Class::Pair) };
    let none = Pairs::default();
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
                if !terms(forward, slot).is_empty() {
                    made.left.extend(leave(&mut reverse, slot, g, &given, is_read)?.map(|stored| (slot, stored)));
                }
            }
        }
        let pairs = if walk == 0 { &pairs } else { &none };
        made.shares.extend(pass(&mut reverse, &of_results, walk, pairs)?);
        to_start(&mut reverse, &of_results, walk)?;
        for &op in kernel.blocks[forward.walks[walk].body].ops.iter().rev() {
            reverse.through(op)?;
        }
    }
    for loads in [forward.wanted_loads(Class::Row), forward.wanted_of_programs(false)] {
        made.shares.extend(store_gradients(&mut reverse, &loads)?);
    }
    scatter_gradients(&mut reverse, &forward.wanted_gathers(Class::Row))?;
    made.kernel = if_it_stores(finish(reverse, "rows", "What the gradients of columns need of rows"));
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
    let Slot { result, .. } = forward.slots[slot];
    let stored = row_tensor(forward, &grad_name(&forward.name_of_slot(slot)), result);
    if !is_read(&stored.name) {
        return Ok(None);
    }
    let dims = reverse.copy.dims_of(result);
    stored.store(&mut reverse.copy, g, dims)?;
    Ok(Some(stored))
}

/// What has a number for each pair of rows and columns.
#[derive(Default)]
struct Pairs {
    loads: Vec<WantedLoad>,
    gathers: Vec<Gathered>,
}

impl Pairs {
    fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.gathers.is_empty()
    }
}

/// Walks columns, and adds what a loop gives to the gradients of rows. The last pass stores the
/// gradients of pairs, which all loops have parts of.
fn pass(
    reverse: &mut Reverse<'_, '_>,
    of_results: &OfResults,
    walk: usize,
    pairs: &Pairs,
) -> Result<Vec<Share>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let all: Vec<usize> = (0..forward.walks.len()).collect();
    let walks = if pairs.is_empty() { &all[walk..=walk] } else { &all };
    let outside = std::mem::take(&mut reverse.adjoints);
    // Which gradients there are is known when the step was taken once.
    let mut tried = reverse.clone();
    tried.copy.open_columns(&[]);
    let sums = step(&mut tried, of_results, Some(walk), walks)?;
    if sums.is_empty() && pairs.is_empty() {
        reverse.adjoints = outside;
        return Ok(Vec::new());
    }
    let init = zeros(reverse, &sums);
    let carried = reverse.copy.open_columns(&init);
    let sums = step(reverse, of_results, Some(walk), walks)?;
    let shares = store_gradients(reverse, &pairs.loads)?;
    scatter_gradients(reverse, &pairs.gathers)?;
    let next = added(reverse, &carried, &sums);
    let results = reverse.copy.close_columns(init, next);
    reverse.adjoints = outside;
    hand_over(reverse, &sums, results)?;
    Ok(shares)
}

/// What is made of a group of columns.
pub(super) struct OfColumnsMade {
    pub kernel: Kernel,
    /// What it adds up for rows, if it does.
    pub sums: Vec<Summed>,
    /// What columns have shares in.
    pub shares: Vec<Share>,
}

/// The kernel of a group of columns.
pub(super) fn columns_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    left: &Left,
    group: &ColumnGroup,
    adds_rows: bool,
    number: &str,
) -> Result<OfColumnsMade, NotDifferentiable> {
    let mut copy = Copy::new(forward, format!("{}_grad_columns{number}", forward.kernel.name), Orientation::Columns);
    group.indices.program(&mut copy, None);
    let mut reverse = Reverse::new(copy);
    let of_results = |copy: &mut Copy<'_, '_>| {
        kept.preset(copy)?;
        load_left(copy, left)
    };
    reverse.adds_rows = adds_rows;
    let mut sums = Vec::new();
    sum_up(
        &mut reverse,
        |copy, init| open_rows(copy, group, init),
        of_results,
        |reverse| {
            if adds_rows {
                sums = add_rows(reverse)?;
                scatter_gradients(reverse, &forward.wanted_gathers(Class::Pair))?;
            }
            Ok(())
        },
    )?;
    store_gradients(&mut reverse, &group.own)?;
    scatter_gradients(&mut reverse, &group.gathers)?;
    for share in &group.shares {
        let (gradient, dims) = gradient_of(&mut reverse, share.load.0);
        share.stored.store(&mut reverse.copy, gradient, dims)?;
    }
    let mut shares = Vec::new();
    for load in &group.of_programs {
        let share = Share::of_columns(forward, group, load)?;
        let (gradient, dims) = gradient_of(&mut reverse, load.0);
        share.stored().store(&mut reverse.copy, gradient, dims)?;
        shares.push(share);
    }
    Ok(OfColumnsMade { kernel: finish(reverse, "columns", "Nothing"), sums, shares })
}

/// Opens the loops over dimensions of the grid that columns do not tell apart, and over rows.
fn open_rows(copy: &mut Copy<'_, '_>, group: &ColumnGroup, init: &[ValueId]) -> Result<Open, NotDifferentiable> {
    let mut loops = group.indices.open_others(copy, init)?;
    let (coordinate, carried) = copy.open(copy.axes.0, loops.last().map_or(init, |(_, carried)| carried));
    copy.known.insert(copy.forward.row.0, coordinate);
    loops.push((copy.axes.0, carried));
    Ok(loops)
}
