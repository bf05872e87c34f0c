//! Sizes of kernels that know a tensor and not the sizes of its extents.
//!
//! A launch finds the value of a size from a dimension in which the size stands alone. A kernel
//! that rounds a table of `M + N - 1` numbers has neither `M` nor `N`. It computes the same whatever
//! the extent is made of, so the extent becomes one size.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{Kernel, Op, Param, ParamKind, ProgramDim, Size, SizeExpr, SizeId, SizeKind, TensorDecl};

/// The kernel with one size for each extent that has sizes which no dimension has alone.
pub(super) fn with_extents_of_its_own(mut kernel: Kernel) -> Kernel {
    let unknown = unknown(&kernel);
    let mut names: BTreeMap<SizeExpr, String> = BTreeMap::new();
    for (param, decl) in tensors(&kernel) {
        for (dim, extent) in decl.shape.iter().enumerate() {
            if extent.sizes().any(|size| unknown.contains(&size)) {
                names.entry(extent.clone()).or_insert_with(|| format!("N_{}_{dim}", param.name));
            }
        }
    }
    if names.is_empty() {
        return kernel;
    }
    let sizes: BTreeMap<SizeExpr, SizeExpr> =
        names.into_iter().map(|(extent, name)| (extent, SizeExpr::size(new_size(&mut kernel, name)))).collect();
    let rename = |extent: &mut SizeExpr| {
        if let Some(size) = sizes.get(extent) {
            extent.clone_from(size);
        }
    };
    for param in kernel.params.values_mut() {
        if let ParamKind::Tensor(decl) = &mut param.kind {
            decl.shape.iter_mut().for_each(rename);
        }
    }
    kernel.axes.values_mut().for_each(|axis| rename(&mut axis.extent));
    for (_, op) in kernel.walk() {
        let Op::Program(dims) = &mut kernel.ops[op].op else { continue };
        for dim in dims {
            if let ProgramDim::Each(extent) = dim {
                rename(extent);
            }
        }
    }
    kernel.renumbered()
}

fn tensors(kernel: &Kernel) -> impl Iterator<Item = (&Param, &TensorDecl)> {
    kernel.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(decl) => Some((param, decl)),
        ParamKind::Scalar(_) => None,
    })
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
    let extents = tensors(kernel).flat_map(|(_, decl)| &decl.shape);
    let extents: Vec<Vec<SizeId>> = extents.map(|extent| extent.sizes().filter(at_launch).collect()).collect();
    let known: BTreeSet<SizeId> = extents.iter().filter(|sizes| sizes.len() == 1).map(|sizes| sizes[0]).collect();
    extents.into_iter().flatten().filter(|size| !known.contains(size)).collect()
}
