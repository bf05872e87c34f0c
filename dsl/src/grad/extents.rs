//! Sizes of kernels that know a tensor and not the sizes of its extents.
//!
//! A launch finds the value of a size from a dimension in which the size stands alone. A kernel that
//! rounds a table of `M + N - 1` numbers has neither `M` nor `N`. It computes the same whatever the
//! extent is made of, so the extent becomes one size.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{AxisId, Kernel, Op, ParamKind, ProgramDim, Size, SizeExpr, SizeId, SizeKind};

/// The kernel with one size for each extent that has sizes which no dimension has alone.
pub(super) fn with_extents_of_its_own(mut kernel: Kernel) -> Kernel {
    let unknown = unknown(&kernel);
    if unknown.is_empty() {
        return kernel;
    }
    let mut named: BTreeMap<SizeExpr, SizeExpr> = BTreeMap::new();
    let params: Vec<_> = kernel.params.keys().collect();
    for param in params {
        let name = kernel.params[param].name.clone();
        let ParamKind::Tensor(decl) = &kernel.params[param].kind else { continue };
        let mut decl = decl.clone();
        for (dim, extent) in decl.shape.iter_mut().enumerate() {
            if !extent.sizes().any(|size| unknown.contains(&size)) {
                continue;
            }
            let new =
                named.entry(extent.clone()).or_insert_with(|| SizeExpr::size(new_size(&mut kernel, format!("N_{name}_{dim}"))));
            extent.clone_from(new);
        }
        kernel.params[param].kind = ParamKind::Tensor(decl);
    }
    let renamed = |extent: &mut SizeExpr| {
        if let Some(new) = named.get(extent) {
            extent.clone_from(new);
        }
    };
    let axes: Vec<AxisId> = kernel.axes.keys().collect();
    axes.into_iter().for_each(|axis| renamed(&mut kernel.axes[axis].extent));
    for (_, op) in kernel.walk() {
        if let Op::Program(dims) = &mut kernel.ops[op].op {
            for dim in dims {
                if let ProgramDim::Each(extent) = dim {
                    renamed(extent);
                }
            }
        }
    }
    kernel.renumbered()
}

/// A size of a launch with a name like this.
fn new_size(kernel: &mut Kernel, mut name: String) -> SizeId {
    while kernel.size_named(&name).is_some() || kernel.param_named(&name).is_some() || kernel.type_params.contains(&name) {
        name.push('_');
    }
    kernel.sizes.push(Size { name, kind: SizeKind::Runtime })
}

/// Sizes of a launch that no dimension of a tensor has alone.
fn unknown(kernel: &Kernel) -> BTreeSet<SizeId> {
    let at_launch = |size: &SizeId| kernel.sizes[*size].kind == SizeKind::Runtime;
    let shapes = kernel.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(decl) => Some(&decl.shape),
        ParamKind::Scalar(_) => None,
    });
    let extents: Vec<Vec<SizeId>> = shapes.flatten().map(|extent| extent.sizes().filter(at_launch).collect()).collect();
    let known: BTreeSet<SizeId> = extents.iter().filter(|sizes| sizes.len() == 1).map(|sizes| sizes[0]).collect();
    extents.into_iter().flatten().filter(|size| !known.contains(size)).collect()
}
