//! Gradients of what has a number for each pair of a row and a column: a program for each tile of
//! pairs, which makes their scores again.
//!
//! What programs share, as batches share a bias `(H, M, N)`, is summed up where it is made: the
//! program walks the dimensions of the grid that the tensor lacks. Nothing of the size of all scores
//! is stored but the gradient itself. Two products more are made of attention.
//!
//! Invariant: a tensor that this kernel gives the gradient of is loaded at a tile of rows and at a tile
//! of columns, and each of its elements is in the tile of one program.

use std::collections::HashSet;

use super::NotDifferentiable;
use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward, WantedLoad};
use super::kept::{Kept, Left};
use super::rules::Reverse;
use super::steps::{finish, gradient_of, load_left, step};
use crate::ir::{At, AxisId, Dim, Kernel, Op, ProgramDim, SizeExpr, TensorDecl, ValueId};

/// A value of pairs whose gradient is stored.
pub(super) struct PairTarget {
    pub of: ValueId,
    /// The tensor of the gradient, and the place of a tile, by values of the forward kernel.
    pub name: String,
    pub decl: TensorDecl,
    pub at: Vec<At>,
}

/// Values whose gradients one kernel gives: their tensors have the same dimensions of the grid.
pub(super) struct PairGroup {
    pub targets: Vec<PairTarget>,
    /// What is gone back to.
    pub loads: Vec<WantedLoad>,
    indices: Vec<(ValueId, SizeExpr)>,
}

impl PairGroup {
    /// A group of one value, whose gradient has all dimensions of the grid.
    pub fn of_all(forward: &Forward<'_>, target: PairTarget, loads: Vec<WantedLoad>) -> Self {
        Self { targets: vec![target], loads, indices: forward.each_dims().collect() }
    }

    /// Whether programs share what the kernel gives the gradient of.
    fn is_shared(&self, forward: &Forward<'_>) -> bool {
        forward.each_dims().any(|dim| !self.indices.contains(&dim))
    }
}

/// The loads of pairs whose gradients are wanted, in groups.
pub(super) fn pair_groups(forward: &Forward<'_>) -> Vec<PairGroup> {
    let mut groups: Vec<PairGroup> = Vec::new();
    for load in forward.wanted_loads(Class::Pair).into_iter().filter(|load| forward.is_of_pairs(load)) {
        let (of, tensor, at) = load.clone();
        let indices: Vec<_> = forward.each_dims().filter(|(v, _)| at.contains(&At::Index(*v))).collect();
        let (name, decl) = forward.gradient(tensor);
        let target = PairTarget { of, name, decl, at };
        match groups.iter_mut().find(|group| group.indices == indices) {
            Some(group) => {
                group.targets.push(target);
                group.loads.push(load);
            }
            None => groups.push(PairGroup { targets: vec![target], loads: vec![load], indices }),
        }
    }
    groups
}

/// Those that programs share: kernels of rows store the others.
pub(super) fn shared_pair_groups(forward: &Forward<'_>) -> Vec<PairGroup> {
    pair_groups(forward).into_iter().filter(|group| group.is_shared(forward)).collect()
}

/// The kernels of these groups, given what rows leave.
pub(super) fn pair_kernels(
    forward: &Forward<'_>,
    kept: &Kept,
    left: &Left,
    groups: &[PairGroup],
) -> Result<Vec<Kernel>, NotDifferentiable> {
    let number = |n: usize| if n == 0 { String::new() } else { (n + 1).to_string() };
    let of_group = |(n, group): (usize, &PairGroup)| {
        let name = format!("{}_grad_pairs{}", forward.kernel.name, number(n));
        pairs_kernel(&forward.only(&group.loads, &[]), kept, left, group, name)
    };
    groups.iter().enumerate().map(of_group).collect()
}

fn pairs_kernel(
    forward: &Forward<'_>,
    kept: &Kept,
    left: &Left,
    PairGroup { targets, indices, .. }: &PairGroup,
    name: String,
) -> Result<Kernel, NotDifferentiable> {
    let ((row, rows), (column, columns)) = (forward.row, forward.columns[0]);
    let mut copy = Copy::of_product(forward, name, Orientation::Rows, &[rows, columns], false);
    let tiles = |v: ValueId, axis: AxisId| (v, ProgramDim::Tiles(axis));
    let each = indices.iter().map(|(v, extent)| (*v, ProgramDim::Each(extent.clone())));
    let grid: Vec<_> = each.chain([tiles(row, copy.axes.0), tiles(column, copy.axes.1)]).collect();
    copy.program(&grid);
    copy.columns_are(copy.known[&column]);
    let mut reverse = Reverse::new(copy);
    reverse.stops = targets.iter().map(|target| target.of).collect();
    let dims: Vec<Vec<Dim>> = targets.iter().map(|target| reverse.copy.dims_of(target.of)).collect();
    let init: Vec<ValueId> = targets.iter().zip(&dims).map(|(target, dims)| zeros(&mut reverse, target, dims)).collect();
    let loops = reverse.copy.open_indices(&init);
    let carried = loops.last().map(|(_, carried)| carried.clone());
    kept.preset(&mut reverse.copy)?;
    let given = load_left(&mut reverse.copy, left)?;
    let walks: Vec<usize> = (0..forward.walks.len()).collect();
    step(&mut reverse, &given, None, &walks)?;
    let mut next = Vec::new();
    for (n, target) in targets.iter().enumerate() {
        let (gradient, own) = gradient_of(&mut reverse, target.of);
        let gradient = reverse.copy.spread(gradient, own);
        let shown = reverse.shown(target.of, gradient)?;
        next.push(match &carried {
            Some(carried) => reverse.copy.add(carried[n], shown),
            None => shown,
        });
    }
    let results = if loops.is_empty() { next } else { reverse.copy.close(loops, &init, next) };
    for (target, value) in targets.iter().zip(results) {
        let value = if reverse.copy.is_turned_there(target.of) { reverse.copy.transposed(value) } else { value };
        let (output, at) = (reverse.copy.tensor(&target.name, target.decl.clone()), reverse.copy.place(&target.at)?);
        reverse.copy.b.append(Op::Store { tensor: output, at, value });
    }
    let names: Vec<String> = targets.iter().map(|target| format!("`{}`", target.name)).collect();
    let mut made = finish(reverse, "pairs", "Nothing");
    made.doc = format!("{}, a program for each tile of pairs: of `{}`.", names.join(", "), forward.kernel.name);
    Ok(made)
}

/// Zeros to start the sum of a gradient from.
fn zeros(reverse: &mut Reverse<'_, '_>, target: &PairTarget, dims: &[Dim]) -> ValueId {
    let zeros = reverse.copy.filled(0.0, dims.to_vec());
    let name = target.name.strip_prefix("grad_").unwrap_or(&target.name);
    reverse.copy.b.kernel.values[zeros].name = Some(format!("d{name}"));
    zeros
}

/// The loads of groups.
pub(super) fn loads_of(groups: &[PairGroup]) -> HashSet<ValueId> {
    groups.iter().flat_map(|group| &group.loads).map(|load| load.0).collect()
}
