//! The kernel that stores zeros.

use super::edit::{add_tensor, beside};
use super::kernel::{AxisKind, Direction, Kernel, SizeKind, TensorDecl};
use super::op::{At, Op, ProgramDim};
use super::size::SizeExpr;
use super::types::{Dim, Elem};

/// The kernel of this name that is launched beside another one, and stores zeros to all of a
/// tensor, which has at least one dimension.
pub fn cleared(other: &Kernel, name: String, tensor: &str, decl: &TensorDecl) -> Kernel {
    let mut b = beside(other, name);
    let tensor = add_tensor(&mut b.kernel, tensor, TensorDecl { direction: Direction::Out, ..decl.clone() });
    let last = decl.shape.len() - 1;
    let is_const = |size: &SizeExpr| size.sizes().all(|s| other.sizes[s].kind == SizeKind::Const);
    // A program has rows of whole width, where that is known.
    let rows = if last > 0 && is_const(&decl.shape[last]) { last - 1 } else { last };
    let axis = b.axis("row", decl.shape[rows].clone(), AxisKind::Program);
    let dims = decl.shape[..=rows].iter().enumerate().map(|(dim, extent)| match dim == rows {
        true => ProgramDim::Tiles(axis),
        false => ProgramDim::Each(extent.clone()),
    });
    let (_, place) = b.append(Op::Program(dims.collect()));
    b.name(place[rows], "row");
    let entry = |(dim, &v)| if dim == rows { At::Tile(v) } else { At::Index(v) };
    let mut at: Vec<At> = place.iter().enumerate().map(entry).collect();
    let mut dims = vec![Dim::Axis(axis)];
    if rows < last {
        at.push(At::Range { start: SizeExpr::constant(0), len: decl.shape[last].clone() });
        dims.push(Dim::Range(decl.shape[last].clone()));
    }
    let zero = b.emit(Op::Constant(Elem::F32, 0.0));
    let value = b.emit(Op::Full { value: zero, dims });
    b.append(Op::Store { tensor, at, value });
    b.finish()
}
