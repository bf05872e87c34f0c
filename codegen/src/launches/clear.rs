//! Sums are set to 0 by a launch ahead of the one that adds to them.

use flashtile_dsl::ir::{At, AxisKind, Dim, Direction, Elem, Kernel, Op, ParamId, ProgramDim, SizeExpr, SizeKind, TensorDecl};

use super::staged::{NotStaged, Staged};
use crate::rewrite::edit;

/// A kernel ahead for each sum; `None` if the kernel has none.
pub(super) fn clear_sums(kernel: &Kernel) -> Option<Result<Staged, NotStaged>> {
    let sums = kernel.params.keys().filter(|&id| kernel.params[id].kind.is_sum());
    let ahead: Vec<Kernel> = sums.map(|id| cleared(kernel, id, kernel.tensor(id))).collect();
    (!ahead.is_empty()).then(|| Staged::new(ahead, kernel.clone(), Vec::new(), Vec::new()))
}

/// The kernel that stores zeros to a tensor.
fn cleared(kernel: &Kernel, id: ParamId, decl: &TensorDecl) -> Kernel {
    let name = &kernel.params[id].name;
    let mut b = edit::beside(kernel, format!("{}_clear_{name}", kernel.name));
    let tensor = edit::add_tensor(&mut b.kernel, name, TensorDecl { direction: Direction::Out, ..decl.clone() });
    let last = decl.shape.len() - 1;
    let is_const = |size: &SizeExpr| size.sizes().all(|s| kernel.sizes[s].kind == SizeKind::Const);
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
