//! Matrices that are loaded along rows of memory which are no rows of the tile: biases that are
//! stored transposed, or with heads as their last dimension.
//!
//! A load brings a row of memory to the columns of a fragment. Where the columns of a tile lie
//! apart, each of its elements is gathered from its own place instead. That is for what is used
//! element by element: operands of products are read transposed from shared memory, and stores turn
//! what they write. Lowering finds the gathers of which lanes can read two rows at once
//! (`lower/turned.rs`).

use flashtile_dsl::ir::{At, Direction, Kernel, Op, OpId, ParamId, Type, ValueId};

use super::edit;

/// Makes gathers of loads whose columns lie apart in memory.
pub fn gather_columns(kernel: &mut Kernel) {
    for (_, id) in kernel.walk() {
        let Some((tensor, at)) = apart(kernel, id) else { continue };
        let span = kernel.ops[id].span;
        let mut entries = Vec::with_capacity(at.len());
        for entry in at {
            entries.push(match entry {
                At::Index(v) => v,
                At::Tile(v) => edit::insert_before(kernel, id, Op::Pos(v), span),
                At::Range { .. } => unreachable!("two coordinates, and indices"),
            });
        }
        kernel.ops[id].op = Op::Gather { tensor, at: entries };
    }
    edit::remove_dead(kernel);
}

/// What a load of a matrix addresses that is used element by element, and whose columns lie apart;
/// of a transposed load its transpose.
pub(crate) fn apart(kernel: &Kernel, id: OpId) -> Option<(ParamId, Vec<At>)> {
    let result = *kernel.ops[id].results.first()?;
    let (load, transposed) = match kernel.ops[id].op {
        Op::Transpose(x) => (kernel.def(x)?.0, true),
        _ => (id, false),
    };
    let Op::Load { tensor, at } = &kernel.ops[load].op else { return None };
    let mut axes = at.iter().filter_map(|entry| match entry {
        At::Tile(v) => Some(*v),
        _ => None,
    });
    let (first, second) = (axes.next()?, axes.next()?);
    let columns_last = matches!(at.last(), Some(At::Tile(_)));
    // A gather has its dimensions in the order of their axes.
    let (rows, columns) = if transposed { (second, first) } else { (first, second) };
    let in_order = match (kernel.ty(rows), kernel.ty(columns)) {
        (Type::Coord(rows), Type::Coord(columns)) => rows < columns,
        _ => false,
    };
    let is_read = kernel.tensor(*tensor).direction == Direction::In;
    (is_read && in_order && (transposed || !columns_last) && is_elementwise(kernel, result)).then(|| (*tensor, at.clone()))
}

/// Whether nothing but elementwise ops and reductions take a value.
fn is_elementwise(kernel: &Kernel, value: ValueId) -> bool {
    let users = edit::users(kernel, value);
    !users.is_empty()
        && users.into_iter().all(|user| {
            let op = &kernel.ops[user].op;
            op.is_elementwise() || matches!(op, Op::Reduce(..))
        })
}
