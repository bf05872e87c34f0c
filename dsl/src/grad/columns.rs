//! Which programs the gradients of columns have, and shares.
//!
//! Columns that several programs of the grid load, as heads of a group load the same keys, have one
//! program otherwise, which walks these heads: the fewer heads keys have, the fewer programs there
//! are. With shares each dimension of the grid stays one. A program stores its share in f32, at its
//! place in the grid; the kernel of *shares* sums them up in one order, a program for each tile of
//! columns.

use super::copy::{Copy, Open, Orientation};
use super::forward::{Class, Forward, WantedLoad};
use super::kept::{Stored, free_name, grad_name};
use super::{Form, NotDifferentiable};
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, CompareOp, Dim, Direction, Elem, Kernel, Op, ProgramDim, SizeExpr, TensorDecl, ValueId,
};

/// Loads of columns that one kernel gives the gradients of: their indices are the same.
pub(super) struct ColumnGroup {
    pub loads: Vec<WantedLoad>,
    /// The indices that tell the columns of programs apart, with how many there are of each.
    pub indices: Vec<(ValueId, SizeExpr)>,
}

impl ColumnGroup {
    /// Makes the grid of a kernel with programs for these columns, and for tiles of a further axis,
    /// whose coordinate it gives.
    pub fn program(&self, copy: &mut Copy<'_, '_>, further: Option<AxisId>) -> Option<ValueId> {
        let column = copy.forward.columns[0].0;
        let each = self.indices.iter().map(|(v, extent)| (*v, ProgramDim::Each(extent.clone())));
        let grid: Vec<(ValueId, ProgramDim)> = each.chain([(column, ProgramDim::Tiles(copy.axes.1))]).collect();
        let further = copy.program_with(&grid, further);
        copy.columns_are(copy.known[&column]);
        copy.indices.1.extend(self.indices.iter().map(|(v, _)| *v));
        further
    }

    /// Opens the loops over dimensions of the grid that these columns do not tell apart.
    pub fn open_indices(&self, copy: &mut Copy<'_, '_>, init: &[ValueId]) -> Result<Open, NotDifferentiable> {
        let forward = copy.forward;
        let loops = copy.open_indices(init);
        for (there, _) in &self.indices {
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
        Ok(loops)
    }
}

/// A load of columns whose gradient comes in shares.
pub(super) struct ColumnShare {
    pub load: WantedLoad,
    /// The shares of all programs.
    pub stored: Stored,
    /// The indices that tell the columns apart, with how many there are of each.
    indices: Vec<(ValueId, SizeExpr)>,
}

/// The loads of columns in groups, each of which has a kernel; and those whose gradients come in
/// shares.
pub(super) fn columns(forward: &Forward<'_>, form: Form) -> Result<(Vec<ColumnGroup>, Vec<ColumnShare>), NotDifferentiable> {
    let groups = column_groups(forward)?;
    if !form.has_shares() {
        return Ok((groups, Vec::new()));
    }
    let each = forward.kernel.grid().iter().zip(&forward.program).filter_map(|(dim, &v)| match dim {
        ProgramDim::Each(extent) => Some((v, extent.clone())),
        ProgramDim::Tiles(_) => None,
    });
    let each: Vec<(ValueId, SizeExpr)> = each.collect();
    let is_shared = |group: &ColumnGroup| each.iter().any(|dim| !group.indices.contains(dim));
    let mut shares: Vec<ColumnShare> = Vec::new();
    for group in groups.iter().filter(|group| is_shared(group)) {
        for load in &group.loads {
            // Several parts of one tensor have shares each.
            let of = grad_name(&forward.kernel.params[load.1].name);
            let number = match shares.iter().filter(|share| share.load.1 == load.1).count() {
                0 => String::new(),
                before => (before + 1).to_string(),
            };
            let name = free_name(forward.kernel, &format!("{of}_shares{number}"));
            shares.push(share(forward, name, &each, group, load));
        }
    }
    if shares.is_empty() {
        let what = format!("no columns of `{}` whose gradients are asked for have several programs", forward.kernel.name);
        let instead =
            format!("take the {} form: each program has columns of its own there", Form::of(form.is_fused(), false).name());
        return Err(NotDifferentiable::new(what, forward.kernel.name_span, instead));
    }
    let loads = groups.into_iter().flat_map(|group| group.loads).collect();
    Ok((vec![ColumnGroup { loads, indices: each }], shares))
}

/// The shares of a load: indices of the grid, then columns, then what the load has besides.
fn share(
    forward: &Forward<'_>,
    name: String,
    each: &[(ValueId, SizeExpr)],
    group: &ColumnGroup,
    load: &WantedLoad,
) -> ColumnShare {
    let kernel = forward.kernel;
    let (mut places, mut shape): (Vec<At>, Vec<SizeExpr>) =
        each.iter().map(|(v, extent)| (At::Index(*v), extent.clone())).unzip();
    for entry in &load.2 {
        match entry {
            At::Index(_) => {}
            At::Tile(_) => {
                places.push(entry.clone());
                shape.push(kernel.axes[forward.columns[0].1].extent.clone());
            }
            At::Range { len, .. } => {
                places.push(At::Range { start: SizeExpr::constant(0), len: len.clone() });
                shape.push(len.clone());
            }
        }
    }
    let decl = TensorDecl { elem: Elem::F32, shape, direction: Direction::In };
    let stored = Stored { name, at: places, decl, is_new: true };
    ColumnShare { load: load.clone(), stored, indices: group.indices.clone() }
}

/// The loads of columns, grouped by their indices.
fn column_groups(forward: &Forward<'_>) -> Result<Vec<ColumnGroup>, NotDifferentiable> {
    let mut groups: Vec<ColumnGroup> = Vec::new();
    for load in forward.wanted_loads(Class::Column) {
        let mut indices = Vec::new();
        for entry in &load.2 {
            if let At::Index(v) = entry
                && forward.depends_on_program(*v)
            {
                indices.push((*v, forward.count_of(*v)?));
            }
        }
        indices.sort();
        match groups.iter_mut().find(|group| group.indices == indices) {
            Some(group) => group.loads.push(load),
            None => groups.push(ColumnGroup { loads: vec![load], indices }),
        }
    }
    Ok(groups)
}

/// The kernels that sum shares up, one for each load: the sums of several would take the registers of
/// a thread.
pub(super) fn sums_of_shares(forward: &Forward<'_>, shares: &[ColumnShare]) -> Result<Vec<Kernel>, NotDifferentiable> {
    let number = |n: usize| if n == 0 { String::new() } else { (n + 1).to_string() };
    shares.iter().enumerate().map(|(n, share)| sum_of_shares(forward, share, &number(n))).collect()
}

fn sum_of_shares(forward: &Forward<'_>, share: &ColumnShare, number: &str) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let (value, tensor, at) = &share.load;
    let of = &kernel.params[*tensor].name;
    let group = ColumnGroup { loads: Vec::new(), indices: share.indices.clone() };
    let mut copy = Copy::new(forward, format!("{}_grad_shares{number}", kernel.name), Orientation::Columns);
    // The last dimension has tiles too where all of it is loaded: a program sums up little.
    let shape = &kernel.tensor(*tensor).shape;
    let whole = match (at.last(), shape.last()) {
        (Some(At::Range { start, len }), Some(extent)) if *start == SizeExpr::constant(0) && len == extent => Some(len),
        _ => None,
    };
    let axis = whole.map(|len| copy.b.axis("c", len.clone(), AxisKind::Program));
    let tile = group.program(&mut copy, axis);
    if let Some(tile) = tile {
        copy.b.kernel.values[tile].name = Some("c".to_owned());
    }
    let in_tiles = |mut at: Vec<At>| {
        if let (Some(last), Some(tile)) = (at.last_mut(), tile) {
            *last = At::Tile(tile);
        }
        at
    };
    let mut dims = copy.dims_of(*value);
    if let (Some(last), Some(axis)) = (dims.last_mut(), axis) {
        *last = Dim::Axis(axis);
    }
    let zeros = copy.filled(0.0, dims);
    copy.named(zeros, Some(format!("d{of}")));
    let loops = group.open_indices(&mut copy, &[zeros])?;
    let carried = loops.last().expect("the columns have several programs").1[0];
    let shares = copy.tensor(&share.stored.name, share.stored.decl.clone());
    let places = in_tiles(copy.place(&share.stored.at)?);
    let mut of_program = copy.load(shares, places);
    if let Some(keep) = copy.counts {
        let zero = copy.float(0.0);
        of_program = copy.op(Op::Select { cond: keep, on_true: of_program, on_false: zero });
    }
    let next = copy.op(Op::Binary(BinaryOp::Add, carried, of_program));
    let sum = copy.close(loops, &[zeros], vec![next])[0];
    let decl = TensorDecl { direction: Direction::Out, ..kernel.tensor(*tensor).clone() };
    let (output, at) = (copy.tensor(&grad_name(of), decl), in_tiles(copy.place(at)?));
    copy.b.append(Op::Store { tensor: output, at, value: sum });
    copy.b.kernel.doc = format!("The sum of the shares in the gradient of `{of}`: of `{}`.", kernel.name);
    Ok(copy.finish(&|name| usize::from(name != share.stored.name)))
}
