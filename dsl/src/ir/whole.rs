//! Programs that go over a whole tensor.

use super::builder::Builder;
use super::entity::ValueId;
use super::kernel::{AxisKind, SizeKind, TensorDecl};
use super::op::{At, Op, ProgramDim};
use super::size::SizeExpr;
use super::types::{Dim, Elem};

/// Programs that go over a whole tensor: the place of each, and the dimensions of its tile.
#[derive(Debug)]
pub struct Whole {
    /// The place.
    pub at: Vec<At>,
    /// The dimensions.
    pub dims: Vec<Dim>,
}

impl Whole {
    /// Makes the grid. Tiles are of a dimension that is not `addressed` by an index, if there is one;
    /// a program has rows of whole width, where that is known and neither is.
    pub fn of(b: &mut Builder, decl: &TensorDecl, addressed: &dyn Fn(usize) -> bool) -> Self {
        let last = decl.shape.len() - 1;
        let is_const = |size: &SizeExpr| size.sizes().all(|s| b.kernel.sizes[s].kind == SizeKind::Const);
        let is_wide = last > 0 && is_const(&decl.shape[last]) && !addressed(last) && !addressed(last - 1);
        let tiled = match is_wide {
            true => last - 1,
            false => (0..=last).rev().find(|&dim| !addressed(dim)).unwrap_or(last),
        };
        let axis = b.axis("row", decl.shape[tiled].clone(), AxisKind::Program);
        let indexed = if is_wide { last } else { last + 1 };
        let grid = (0..indexed).map(|dim| match dim == tiled {
            true => ProgramDim::Tiles(axis),
            false => ProgramDim::Each(decl.shape[dim].clone()),
        });
        let (_, place) = b.append(Op::Program(grid.collect()));
        b.name(place[tiled], "row");
        let entry = |(dim, &v)| if dim == tiled { At::Tile(v) } else { At::Index(v) };
        let mut at: Vec<At> = place.iter().enumerate().map(entry).collect();
        let mut dims = vec![Dim::Axis(axis)];
        if is_wide {
            at.push(At::Range { start: SizeExpr::constant(0), len: decl.shape[last].clone() });
            dims.push(Dim::Range(decl.shape[last].clone()));
        }
        Self { at, dims }
    }

    /// A tile of zeros.
    pub fn zeros(&self, b: &mut Builder) -> ValueId {
        let value = b.emit(Op::Constant(Elem::F32, 0.0));
        b.emit(Op::Full { value, dims: self.dims.clone() })
    }
}
