//! Which sizes of a kernel are lengths that tiles walk, the least value that each may have, and
//! typical values for those that nobody gives.

use std::collections::BTreeMap;

use crate::ir::{At, AxisKind, Kernel, Op, ParamKind, SizeExpr, SizeId, SizeKind};

/// Value of a constant that nobody gives.
pub const TYPICAL_CONST: i64 = 64;
/// A run-time size that a tile axis walks, where nobody gives it and one must be assumed.
const TYPICAL_WALKED: i64 = 4096;
/// Any other run-time size, likewise.
const TYPICAL_OTHER: i64 = 16;

/// A run-time size that nobody gives: long if a tile axis walks it, else short, but no shorter than
/// the text addresses.
pub fn typical(kernel: &Kernel, name: &str, consts: &BTreeMap<String, i64>) -> i64 {
    if is_walked(kernel, name) { TYPICAL_WALKED } else { TYPICAL_OTHER.max(addressed(kernel, name, consts)) }
}

/// The constants of a kernel, those that `given` lacks with [`TYPICAL_CONST`].
pub fn typical_consts(kernel: &Kernel, given: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let names = kernel.sizes.values().filter(|size| size.kind == SizeKind::Const).map(|size| &size.name);
    names.map(|name| (name.clone(), given.get(name).copied().unwrap_or(TYPICAL_CONST))).collect()
}

/// Whether a tile axis walks the size.
pub fn is_walked(kernel: &Kernel, name: &str) -> bool {
    let of = |extent: &SizeExpr| extent.sizes().any(|id| kernel.size_name(id) == name);
    kernel.axes.values().any(|axis| axis.kind != AxisKind::Each && of(&axis.extent))
}

/// The least value of this size with which no extent is negative, and ranges of compile-time length
/// and constant indices lie in dimensions that the size determines, such as the columns of a table.
pub fn addressed(kernel: &Kernel, name: &str, consts: &BTreeMap<String, i64>) -> i64 {
    let constant = |id: SizeId| consts.get(kernel.size_name(id)).copied();
    let mut most = least_possible(kernel, name, consts);
    for (_, op) in kernel.walk() {
        let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &kernel.ops[op].op else { continue };
        for (at, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
            let end = match at {
                At::Range { start, len } => start.add(len).eval(constant),
                At::Index(index) => match kernel.def(*index) {
                    Some((_, Op::IndexConst(n))) => Some(n + 1),
                    _ => None,
                },
                At::Tile(_) => None,
            };
            most = end.and_then(|end| least(kernel, extent, name, consts, end)).map_or(most, |n| most.max(n));
        }
    }
    most
}

/// The least value of this size with which no tensor has a negative extent, as far as constants
/// say.
fn least_possible(kernel: &Kernel, name: &str, consts: &BTreeMap<String, i64>) -> i64 {
    let extents = kernel.params.values().flat_map(|param| match &param.kind {
        ParamKind::Tensor(tensor) => &tensor.shape[..],
        ParamKind::Scalar(_) => &[],
    });
    extents.filter_map(|extent| least(kernel, extent, name, consts, 0)).fold(0, i64::max)
}

/// The least value of this size with which an extent has so many positions, if it grows with the
/// size and all its other sizes are constants.
fn least(kernel: &Kernel, extent: &SizeExpr, name: &str, consts: &BTreeMap<String, i64>, positions: i64) -> Option<i64> {
    // The extent is `(coefficient * size + rest) / divisor`.
    let (terms, mut rest, divisor) = extent.parts();
    let mut coefficient = 0;
    for (&id, &c) in terms {
        match kernel.size_name(id) {
            of if of == name => coefficient = c,
            other => rest += c * consts.get(other)?,
        }
    }
    (coefficient > 0).then(|| (positions * divisor - rest + coefficient - 1).div_euclid(coefficient))
}
