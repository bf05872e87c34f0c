//! Which programs the gradients of columns have, and shares.
//!
//! Columns that several programs of the grid load, as heads of a group load the same keys, have one
//! program otherwise, which walks these heads: the fewer heads keys have, the fewer programs there
//! are. With shares each dimension of the grid stays one. A program stores its share in f32, at its
//! place in the grid; the kernel of *shares* sums them up in one order, a program for each tile of
//! columns.

use std::collections::{BTreeMap, HashSet};

use super::copy::{Copy, Open, Orientation};
use super::forward::{Class, Forward, Gathered, WantedLoad};
use super::kept::Stored;
use super::names::free_name;
use super::{Form, NotDifferentiable};
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, CompareOp, Dim, Direction, Elem, Kernel, Op, ParamId, ProgramDim, SizeExpr, TensorDecl,
    ValueId,
};

/// The indices that tell the columns of programs apart, with how many there are of each.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Indices(pub Vec<(ValueId, SizeExpr)>);

/// Loads and gathers of columns that one kernel gives the gradients of.
pub(super) struct ColumnGroup {
    /// Those that no other program loads: their gradients are stored as they are.
    pub own: Vec<WantedLoad>,
    /// Those that several programs load.
    pub shares: Vec<ColumnShare>,
    /// Loads of whole programs that change what columns load: each column has a share.
    pub of_programs: Vec<WantedLoad>,
    /// Gathers: each column adds to the place of its element, which other programs may add to.
    pub gathers: Vec<Gathered>,
    pub indices: Indices,
}

impl ColumnGroup {
    fn with(indices: Indices) -> Self {
        Self { own: Vec::new(), shares: Vec::new(), of_programs: Vec::new(), gathers: Vec::new(), indices }
    }

    /// All of its loads.
    pub fn loads(&self) -> impl Iterator<Item = &WantedLoad> {
        self.own.iter().chain(self.shares.iter().map(|share| &share.load)).chain(&self.of_programs)
    }
}

impl Indices {
    /// Makes the grid of a kernel with programs for these columns, and for tiles of a further axis,
    /// whose coordinate it gives.
    pub fn program(&self, copy: &mut Copy<'_, '_>, further: Option<AxisId>) -> Option<ValueId> {
        let column = copy.forward.columns[0].0;
        let each = self.0.iter().map(|(v, extent)| (*v, ProgramDim::Each(extent.clone())));
        let grid: Vec<(ValueId, ProgramDim)> = each.chain([(column, ProgramDim::Tiles(copy.axes.1))]).collect();
        let further = copy.program_with(&grid, further);
        copy.columns_are(copy.known[&column]);
        copy.indices.1.extend(self.0.iter().map(|(v, _)| *v));
        further
    }

    /// Opens the loops over dimensions of the grid that these columns do not tell apart.
    pub fn open_others(&self, copy: &mut Copy<'_, '_>, init: &[ValueId]) -> Result<Open, NotDifferentiable> {
        let forward = copy.forward;
        let loops = copy.open_indices(init);
        for (there, _) in &self.0 {
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
    /// Those that tell the columns apart.
    indices: Indices,
}

/// The loads of columns in groups, each of which has a kernel.
pub(super) fn column_groups(forward: &Forward<'_>, form: Form) -> Result<Vec<ColumnGroup>, NotDifferentiable> {
    let by_indices = by_indices(forward)?;
    if !form.has_shares() {
        return Ok(by_indices);
    }
    let mut group = ColumnGroup::with(Indices(forward.each_dims().collect()));
    for ColumnGroup { own, of_programs, gathers, indices, .. } in by_indices {
        group.of_programs.extend(of_programs);
        group.gathers.extend(gathers);
        if group.indices.0.iter().all(|dim| indices.0.contains(dim)) {
            group.own.extend(own);
            continue;
        }
        for load in own {
            // Several parts of one tensor have shares each.
            let (of, _) = forward.gradient(load.1);
            let number = match group.shares.iter().filter(|share| share.load.1 == load.1).count() {
                0 => String::new(),
                before => (before + 1).to_string(),
            };
            let name = free_name(forward.kernel, &format!("{of}_shares{number}"));
            let stored = stored(forward, name, &group.indices, &load);
            group.shares.push(ColumnShare { load, stored, indices: indices.clone() });
        }
    }
    if group.shares.is_empty() {
        let name = &forward.kernel.name;
        let what = format!("no columns of `{name}` whose gradients are asked for have several programs");
        let without = Form::of(form.is_fused(), false).name();
        let instead = format!("take the {without} form: each program has columns of its own there");
        return Err(NotDifferentiable::new(what, forward.kernel.name_span, instead));
    }
    Ok(vec![group])
}

/// The shares of a load: indices of the grid, then columns, then what the load has besides.
fn stored(forward: &Forward<'_>, name: String, each: &Indices, load: &WantedLoad) -> Stored {
    let kernel = forward.kernel;
    let (mut places, mut shape): (Vec<At>, Vec<SizeExpr>) =
        each.0.iter().map(|(v, extent)| (At::Index(*v), extent.clone())).unzip();
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
    Stored { name, at: places, decl, is_new: true }
}

/// The loads of columns by their indices.
fn by_indices(forward: &Forward<'_>) -> Result<Vec<ColumnGroup>, NotDifferentiable> {
    let mut groups: Vec<ColumnGroup> = Vec::new();
    let mut group_of = |entries: &[At]| -> Result<usize, NotDifferentiable> {
        let mut indices = Vec::new();
        for entry in entries {
            if let At::Index(v) = entry
                && forward.depends_on_program(*v)
            {
                indices.push((*v, forward.count_of(*v)?));
            }
        }
        indices.sort();
        indices.dedup();
        let indices = Indices(indices);
        Ok(groups.iter().position(|group| group.indices == indices).unwrap_or_else(|| {
            groups.push(ColumnGroup::with(indices));
            groups.len() - 1
        }))
    };
    let (mut own, mut of_programs) = (Vec::new(), Vec::new());
    for load in forward.wanted_loads(Class::Column) {
        own.push((group_of(&load.2)?, load));
    }
    for load in forward.wanted_of_programs(true) {
        // The columns that it changes have programs for their own indices too.
        let entries: Vec<At> = load.2.iter().cloned().chain(places_of_columns(forward, load.0)).collect();
        of_programs.push((group_of(&entries)?, load));
    }
    own.into_iter().for_each(|(group, load)| groups[group].own.push(load));
    of_programs.into_iter().for_each(|(group, load)| groups[group].of_programs.push(load));
    add_gathers(forward, &mut groups);
    Ok(groups)
}

/// Adds the gathers of each tensor to a group whose programs know its elements: one kernel adds to
/// one tensor.
fn add_gathers(forward: &Forward<'_>, groups: &mut Vec<ColumnGroup>) {
    let mut by_tensor: BTreeMap<ParamId, Vec<Gathered>> = BTreeMap::new();
    for gathered in forward.wanted_gathers(Class::Column) {
        by_tensor.entry(gathered.tensor).or_default().push(gathered);
    }
    for gathers in by_tensor.into_values() {
        let values: Vec<ValueId> = gathers.iter().flat_map(|gathered| gathered.at.iter().copied()).collect();
        let needed = forward.dims_behind(&values);
        let has_all = |group: &ColumnGroup| needed.iter().all(|dim| group.indices.0.contains(dim));
        // Any program may add to a sum: with those of all of the grid's dimensions a new group has
        // the most of them.
        let group = groups.iter().position(has_all).unwrap_or_else(|| {
            groups.push(ColumnGroup::with(Indices(forward.each_dims().collect())));
            groups.len() - 1
        });
        groups[group].gathers.extend(gathers);
    }
}

/// The places of what columns load and a value of whole programs changes.
fn places_of_columns(forward: &Forward<'_>, value: ValueId) -> Vec<At> {
    let [makers, _] = forward.users_by_side(value);
    let mut work: Vec<ValueId> = makers.iter().flat_map(|&op| forward.kernel.ops[op].results.clone()).collect();
    // What is made of these, and other columns in it.
    let mut made: HashSet<ValueId> = work.iter().copied().collect();
    for op in forward.in_order() {
        let data = &forward.kernel.ops[op];
        let is_column = data.results.first().is_some_and(|&result| forward.class(result) == Class::Column);
        if is_column && data.op.operands().iter().any(|v| made.contains(v)) {
            made.extend(&data.results);
            work.extend(&data.results);
        }
    }
    let (mut places, mut seen) = (Vec::new(), HashSet::new());
    while let Some(v) = work.pop() {
        if !seen.insert(v) || forward.class(v) != Class::Column {
            continue;
        }
        match forward.kernel.def(v) {
            Some((_, Op::Load { at, .. })) => places.extend(at.iter().cloned()),
            Some((_, op)) => work.extend(op.operands()),
            None => {}
        }
    }
    places
}

/// The kernels that sum shares up, one for each load: the sums of several would take all registers
/// of a thread.
pub(super) fn sums_of_shares(forward: &Forward<'_>, groups: &[ColumnGroup]) -> Result<Vec<Kernel>, NotDifferentiable> {
    let number = |n: usize| if n == 0 { String::new() } else { (n + 1).to_string() };
    let shares = groups.iter().flat_map(|group| &group.shares);
    shares.enumerate().map(|(n, share)| sum_of_shares(forward, share, &number(n))).collect()
}

fn sum_of_shares(forward: &Forward<'_>, share: &ColumnShare, number: &str) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let (value, tensor, at) = &share.load;
    let of = &kernel.params[*tensor].name;
    let mut copy = Copy::new(forward, format!("{}_grad_shares{number}", kernel.name), Orientation::Columns);
    // The last dimension has tiles too where all of it is loaded: a program sums up little.
    let shape = &kernel.tensor(*tensor).shape;
    let whole = match (at.last(), shape.last()) {
        (Some(At::Range { start, len }), Some(extent)) if *start == SizeExpr::constant(0) && len == extent => Some(len),
        _ => None,
    };
    let axis = whole.map(|len| copy.b.axis("c", len.clone(), AxisKind::Program));
    let tile = share.indices.program(&mut copy, axis);
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
    let loops = share.indices.open_others(&mut copy, &[zeros])?;
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
    let (name, decl) = forward.gradient(*tensor);
    let (output, at) = (copy.tensor(&name, decl), in_tiles(copy.place(at)?));
    copy.b.append(Op::Store { tensor: output, at, value: sum });
    copy.b.kernel.doc = format!("The sum of the shares in the gradient of `{of}`: of `{}`.", kernel.name);
    Ok(copy.finish(&|name| usize::from(name != share.stored.name)))
}
