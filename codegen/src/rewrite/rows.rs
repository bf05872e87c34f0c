//! An axis of the grid for the rows of tiles that have none.
//!
//! The warps of a block divide the rows of its tiles, and the grid divides the rows of a result. So
//! lowering wants the rows of what is computed to be a tile axis. The state of linear attention,
//! `zeros((D, D))`, has a range in their place: one program would compute it whole. Where each of
//! its rows is computed by itself, a program may as well compute a tile of them:
//!
//! ```text
//! let (b, h) = program(B, H);                  let (b, h, r) = program(B, H, tiles(D));
//! let mut state = zeros((D, D));               let mut state = zeros((r, D));
//! for j in tiles(N) {                          for j in tiles(N) {
//!     state += dot(                                state += dot(
//!         load(k, [b, h, j, ..]).t(),                  load(k, [b, h, j, r]).t(),
//!         load(v, [b, h, j, ..]));                     load(v, [b, h, j, ..]));
//! }                                            }
//! store(st, [b, h, .., ..], state);            store(st, [b, h, r, ..], state);
//! ```
//!
//! The two `D` of the state are two *places* ([`Places`]): the range of its rows runs through the
//! columns of `k`, the range of its columns through those of `v`. [`Rows`] are all places along the
//! rows of computed tiles. These become the axis:
//!
//! * No op reduces or contracts one of them, so every row of a result needs its own rows alone.
//! * No tile has two of them. Where a product multiplies the transpose of a tile with the tile
//!   itself, its left operand is computed apart first ([`with_own_left_operands`]).
//! * Loads and stores address them as whole dimensions of tensors, which an axis can walk.
//! * Every store addresses one of them: programs that differ in the new axis alone would write the
//!   same place otherwise.
//!
//! Where one of these does not hold, the kernel stays as it is, and lowering refuses it with the
//! reason, [`NoAxis`].
//!
//! The new axis is the first tiled dimension of the grid, which has the block of rows, `block_m`
//! ([`crate::blocks`]). It is part of the kernel before a schedule is asked for: launches, blocks,
//! the work order and the cost model see a grid like any other. The interpreter executes the
//! kernel as written.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::analysis::ranges::{Place, Places};
use flashtile_dsl::ir::{At, AxisId, Dim, Kernel, Op, OpId, SizeExpr, Type, ValueId, broadcast, verify};

use super::edit::{self, AmongTiles};
use crate::error::Error;

/// The kernel with axes of the grid for the rows of computed tiles, where they can have them. A
/// kernel that cannot stays as it is; generating code for it says why.
pub fn with_row_axes(kernel: &Kernel) -> Kernel {
    let mut with = kernel.clone();
    // Each step gives all rows of one length their axis.
    loop {
        match rows_axis(&with) {
            Ok(Some(next)) => with = next,
            Ok(None) => return with,
            Err(_) => return kernel.clone(),
        }
    }
}

/// Why the rows of a computed tile can have no axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoAxis {
    /// The product or the reduction sums over them.
    Reduced(OpId),
    /// They are the columns of this value too.
    TwoWays(ValueId),
    /// The load or store addresses them as a part of a dimension.
    Part(OpId),
    /// The store addresses none of them.
    StoredByAll(OpId),
    /// With an axis, the op would give its dimensions in another order.
    Ordered(OpId),
    /// The verifier refuses what came out: a bug in the compiler.
    Wrong(String),
}

impl NoAxis {
    /// The refusal that a user sees.
    pub(crate) fn refusal(&self, kernel: &Kernel) -> Error {
        let op = |id: &OpId| kernel.ops[*id].span;
        let (why, instead, span) = match self {
            Self::Reduced(id) => (
                "are summed over here",
                "store the tile in a kernel of its own, one for each step that reads it, and load it here",
                op(id),
            ),
            Self::TwoWays(v) => (
                "are its columns too",
                "join its rows with its columns in a kernel of its own, which loads the tile",
                kernel.def(*v).map_or(kernel.name_span, |(id, _)| op(&id)),
            ),
            Self::Part(id) => ("are a part of this dimension", "give its rows a whole dimension of a tensor", op(id)),
            Self::StoredByAll(id) => {
                ("do not divide what is stored here", "store it in a kernel of its own, or give it the rows too", op(id))
            }
            Self::Ordered(id) => {
                ("would change places here with another dimension", "give its rows an axis of the grid in the text", op(id))
            }
            Self::Wrong(faults) => return Error::WrongKernel(vec![faults.clone()]),
        };
        Error::unsupported(format!("a computed tile whose rows are no tile axis, and {why}"), instead, span)
    }
}

/// The kernel with an axis for the rows of its first computed tile without one, and for all rows
/// of that length. `None` if every computed tile has one.
pub(crate) fn rows_axis(kernel: &Kernel) -> Result<Option<Kernel>, NoAxis> {
    let tiles = without_axis(kernel);
    let Some(first) = tiles.first() else { return Ok(None) };
    let length = row_length(kernel, *first).expect("it has no axis");
    let made = Rows::of(kernel, &length).axis();
    // The reason against the kernel as it is names its ops.
    let made = made.or_else(|why| Rows::of(&with_own_left_operands(kernel, &length), &length).axis().map_err(|_| why));
    made.map(Some)
}

/// The length of the rows of a matrix, if they are no axis.
fn row_length(kernel: &Kernel, v: ValueId) -> Option<SizeExpr> {
    match kernel.ty(v) {
        Type::Tile(tile) => match tile.dims.as_slice() {
            [Dim::Range(length), _] => Some(length.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// The matrices without an axis of rows that lowering has in registers, in order: products, what
/// loops carry, what is stored, what is reduced. What these are made of elementwise runs along the
/// same rows. Operands that are computed for products alone are in shared memory, and are none.
fn without_axis(kernel: &Kernel) -> Vec<ValueId> {
    let mut found = Vec::new();
    for (_, id) in kernel.walk() {
        let data = &kernel.ops[id];
        match &data.op {
            Op::Dot { .. } => found.extend(&data.results),
            Op::For { init, .. } => found.extend(init.iter().chain(&data.results)),
            // A transposed tile is stored by its columns.
            Op::Store { value, .. } => found.push(match kernel.def(*value) {
                Some((_, &Op::Transpose(x))) => x,
                _ => *value,
            }),
            Op::Scatter { value, .. } => found.push(*value),
            Op::Reduce(_, x) if !matches!(kernel.def(*x), Some((_, Op::Transpose(_)))) => found.push(*x),
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|&v| row_length(kernel, v).is_some() && seen.insert(v));
    found
}

/// The places along the rows of computed tiles of one length, all of which are to have one axis.
struct Rows<'a> {
    kernel: &'a Kernel,
    length: &'a SizeExpr,
    places: Places<'a>,
    roots: BTreeSet<Place>,
}

impl<'a> Rows<'a> {
    fn of(kernel: &'a Kernel, length: &'a SizeExpr) -> Self {
        let places = Places::of(kernel);
        let tiles = without_axis(kernel).into_iter().filter(|&v| row_length(kernel, v).as_ref() == Some(length));
        let roots = tiles.map(|v| places.root((v, 0))).collect();
        Self { kernel, length, places, roots }
    }

    fn has(&self, place: Place) -> bool {
        self.places.length(place).is_some() && self.roots.contains(&self.places.root(place))
    }

    /// The dimensions of a value that are such rows.
    fn within(&self, v: ValueId) -> Vec<usize> {
        (0..2).filter(|&k| self.has((v, k))).collect()
    }

    /// The kernel with the axis.
    fn axis(&self) -> Result<Kernel, NoAxis> {
        if let Some(&(_, op)) = self.places.reduced.iter().find(|(place, _)| self.has(*place)) {
            return Err(NoAxis::Reduced(op));
        }
        let mut kernel = self.kernel.clone();
        let (axis, coordinate) = edit::add_program_axis(&mut kernel, "row", self.length.clone(), AmongTiles::First);
        for v in self.kernel.values.keys() {
            let Type::Tile(tile) = &mut kernel.values[v].ty else { continue };
            match self.within(v)[..] {
                [] => {}
                [k] => tile.dims[k] = Dim::Axis(axis),
                _ => return Err(NoAxis::TwoWays(v)),
            }
        }
        for (_, op) in self.kernel.walk() {
            self.address(&mut kernel, op, (axis, coordinate))?;
        }
        if let Some((_, op)) = kernel.walk().into_iter().find(|(_, op)| !keeps_order(&kernel, *op)) {
            return Err(NoAxis::Ordered(op));
        }
        match verify(&kernel) {
            Ok(()) => Ok(kernel),
            Err(faults) => Err(NoAxis::Wrong(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))),
        }
    }

    /// Lets an op that names dimensions name the axis.
    fn address(&self, kernel: &mut Kernel, id: OpId, (axis, coordinate): (AxisId, ValueId)) -> Result<(), NoAxis> {
        let result = self.kernel.ops[id].results.first().copied();
        match &mut kernel.ops[id].op {
            Op::Full { dims, .. } => {
                let of = self.within(result.expect("a tile"));
                of.into_iter().for_each(|k| dims[k] = Dim::Axis(axis));
            }
            Op::Load { tensor, at } => {
                let rows = self.within(result.expect("a tile"));
                let shape = &self.kernel.tensor(*tensor).shape;
                walked(at, shape, &rows, coordinate).ok_or(NoAxis::Part(id))?;
            }
            Op::Store { tensor, at, value } => {
                let rows = self.within(*value);
                if rows.is_empty() {
                    return Err(NoAxis::StoredByAll(id));
                }
                let shape = &self.kernel.tensor(*tensor).shape;
                walked(at, shape, &rows, coordinate).ok_or(NoAxis::Part(id))?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the operands of an elementwise op broadcast to the dimensions of its result. Those of
/// vectors have an order of their own, in which an axis comes before a range.
fn keeps_order(kernel: &Kernel, id: OpId) -> bool {
    let data = &kernel.ops[id];
    let dims = |v: ValueId| &kernel.tile(v).dims[..];
    let joined = match data.op {
        Op::Binary(_, a, b) | Op::Compare(_, a, b) => broadcast(dims(a), dims(b)),
        Op::Select { cond, on_true, on_false } => {
            broadcast(dims(on_true), dims(on_false)).and_then(|both| broadcast(&both, dims(cond)))
        }
        _ => return true,
    };
    joined.as_deref() == Some(dims(data.results[0]))
}

/// Lets a coordinate address these dimensions of a tile. `None` if one is a part of a dimension of
/// the tensor.
fn walked(at: &mut [At], shape: &[SizeExpr], rows: &[usize], coordinate: ValueId) -> Option<()> {
    let kept = at.iter_mut().zip(shape).filter(|(at, _)| !matches!(at, At::Index(_)));
    for (k, (at, extent)) in kept.enumerate() {
        if rows.contains(&k) {
            let whole = matches!(&*at, At::Range { start, len } if *start == SizeExpr::constant(0) && len == extent);
            *at = whole.then_some(At::Tile(coordinate))?;
        }
    }
    Some(())
}

/// The kernel with the left operands of products that give such rows computed apart from all else:
/// of loads, elementwise ops and transposes that nothing else uses.
fn with_own_left_operands(kernel: &Kernel, length: &SizeExpr) -> Kernel {
    let mut apart = kernel.clone();
    for (_, id) in kernel.walk() {
        let Op::Dot { a, b, acc } = kernel.ops[id].op else { continue };
        if row_length(kernel, kernel.ops[id].results[0]).as_ref() == Some(length) {
            let a = copied(&mut apart, a, &mut BTreeMap::new());
            apart.ops[id].op = Op::Dot { a, b, acc };
        }
    }
    edit::remove_dead(&mut apart);
    apart
}

/// A copy of a tile that is loaded or computed elementwise, just after it; any other one itself.
fn copied(kernel: &mut Kernel, value: ValueId, made: &mut BTreeMap<ValueId, ValueId>) -> ValueId {
    if let Some(&copy) = made.get(&value) {
        return copy;
    }
    let Some((_, op)) = kernel.def(value) else { return value };
    let of_tiles = op.is_elementwise() || matches!(op, Op::Transpose(_));
    let is_tile = matches!(kernel.ty(value), Type::Tile(tile) if tile.rank() > 0);
    if !is_tile || !(of_tiles || matches!(op, Op::Load { .. } | Op::Full { .. })) {
        return value;
    }
    let op = op.clone();
    let operands: BTreeMap<ValueId, ValueId> = match of_tiles {
        true => op.operands().into_iter().map(|v| (v, copied(kernel, v, made))).collect(),
        false => BTreeMap::new(),
    };
    let place = edit::after_definition(kernel, value);
    let (span, name) = (kernel.def(value).map(|(id, _)| kernel.ops[id].span), kernel.values[value].name.clone());
    let op = op.map_operands(|v| operands.get(&v).copied().unwrap_or(v));
    let copy = edit::insert(kernel, place, op, span.unwrap_or_default());
    kernel.values[copy].name = name;
    made.insert(value, copy);
    copy
}
