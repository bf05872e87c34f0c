//! Matrices whose rows lie side by side in memory while their columns lie apart: a bias of queries
//! and keys, say, in a program that has keys for rows. Elements are gathered from places of their
//! own (`rewrite::gather_columns`). Where two rows of 16-bit elements are a word that is aligned, a
//! lane reads them at once instead, and the warp transposes 8 by 8 of them (PTX ISA, "movmatrix").

use std::collections::HashMap;

use flashtile_dsl::ir::{At, AxisId, Dim, Direction, Entity, Kernel, Op, OpId, ParamId, Type, ValueId};

use crate::instance::{Instance, wide_tensors};

/// The matrix that a gather takes as it lies, but with the last dimension for rows.
#[derive(Clone)]
pub(super) struct Turned {
    pub tensor: ParamId,
    pub at: Vec<At>,
}

/// The gathers that lanes can read so.
pub(super) fn turned(kernel: &Kernel, instance: &Instance) -> HashMap<OpId, Turned> {
    // Of other tensors no alignment is known.
    let wide = wide_tensors(&instance.kernel);
    let two_at_once = |tensor: ParamId| {
        let name = &kernel.params[tensor].name;
        let elem = instance.binding.elem(kernel, kernel.tensor(tensor).elem);
        elem.bytes() == Some(2) && wide[tensor.index()] && instance.alignment_of(name) >= 4
    };
    let gathers = kernel.walk().into_iter().filter_map(|(_, id)| Some((id, rows_last(kernel, id)?)));
    gathers.filter(|(_, turned)| two_at_once(turned.tensor)).collect()
}

fn rows_last(kernel: &Kernel, id: OpId) -> Option<Turned> {
    let Op::Gather { tensor, at } = &kernel.ops[id].op else { return None };
    let [Dim::Axis(rows), Dim::Axis(columns)] = kernel.tile(kernel.ops[id].results[0]).dims[..] else { return None };
    let entries: Option<Vec<At>> = at.iter().map(|&v| entry(kernel, v)).collect();
    let entries = entries.filter(|_| kernel.tensor(*tensor).direction == Direction::In)?;
    let tiles = entries.iter().zip(&kernel.tensor(*tensor).shape).filter_map(|(entry, extent)| match *entry {
        At::Tile(v) => Some((axis(kernel, v), extent)),
        _ => None,
    });
    let tiles: Vec<_> = tiles.collect();
    let whole = tiles.iter().all(|(axis, extent)| kernel.axes[*axis].extent == **extent);
    let in_order = tiles.iter().map(|(axis, _)| *axis).eq([columns, rows]) && matches!(entries.last(), Some(At::Tile(_)));
    (whole && in_order).then_some(Turned { tensor: *tensor, at: entries })
}

/// An index, or the positions of a tile by themselves.
fn entry(kernel: &Kernel, v: ValueId) -> Option<At> {
    match (kernel.ty(v), kernel.def(v)) {
        (Type::Index, _) => Some(At::Index(v)),
        (_, Some((_, &Op::Pos(coordinate)))) => Some(At::Tile(coordinate)),
        _ => None,
    }
}

fn axis(kernel: &Kernel, coordinate: ValueId) -> AxisId {
    let Type::Coord(axis) = *kernel.ty(coordinate) else { unreachable!("verified: positions are those of a coordinate") };
    axis
}
