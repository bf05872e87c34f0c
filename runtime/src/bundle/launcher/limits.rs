//! The limits of the C launcher. What is beyond them is refused when a bundle is made.

use flashtile_dsl::analysis::reach::{IndexedAt, Node, Reach};
use flashtile_dsl::ir::{BinaryOp, ParamKind};

use crate::device::MAX_MAPS;
use crate::error::BundleError;
use crate::kernel::BoundKernel;
use crate::lowering::CallingContract;

// The limits of tables.c, by the names that they have there without `FT_`; a test compares them.
pub(super) const RANK: usize = 8;
pub(super) const TERMS: usize = 6;
pub(super) const SIZES: usize = 40;
pub(super) const VALUES: usize = 64;
pub(super) const NODES: usize = 256;
pub(super) const LEAVES: usize = 8;
pub(super) const STEPS: usize = 8;

/// Refuses a kernel, or code of it, that the launcher has no room for.
///
/// # Errors
/// [`BundleError::Unsupported`].
pub(in crate::bundle) fn check(kernel: &BoundKernel, contract: &CallingContract) -> Result<(), BundleError> {
    let ir = kernel.ir();
    let refuse = |reason: String| Err(BundleError::Unsupported { kernel: ir.name.clone(), reason });
    let most = |what: &str, found: usize, most: usize| match found <= most {
        true => Ok(()),
        false => refuse(format!("it has {found} {what}, and the C launcher has room for {most}")),
    };
    let ranks = ir.params.values().filter_map(|p| match &p.kind {
        ParamKind::Tensor(t) => Some(t.shape.len()),
        ParamKind::Scalar(_) => None,
    });
    most("dimensions of a tensor", ranks.max().unwrap_or(0), RANK)?;
    most("dimensions of a scratch tensor", contract.scratch.iter().map(|s| s.shape.len()).max().unwrap_or(0), RANK)?;
    most("sizes", ir.sizes.len() + 1, SIZES)?;
    most("tensors and scalars", ir.params.len() + contract.scratch.len(), VALUES)?;
    most("launches", contract.launches.len(), STEPS)?;
    most("tensor maps in a launch", contract.launches.iter().map(|l| l.tensor_maps.len()).max().unwrap_or(0), MAX_MAPS)?;
    let reach = Reach::new(ir, kernel.binding());
    let nodes: Vec<&Node> = reach.nodes().collect();
    most("integer values", nodes.len(), NODES)?;
    for place in 0..nodes.len() {
        let leaves = reach.below(place).into_iter().filter(|&n| nodes[n].varies()).count();
        most(&format!("positions in `{}`", reach.text(place)), leaves, LEAVES)?;
    }
    let declared = ir.params.values().flat_map(|p| match &p.kind {
        ParamKind::Tensor(t) => t.shape.iter().collect::<Vec<_>>(),
        ParamKind::Scalar(_) => Vec::new(),
    });
    let ranges = reach.accesses().flat_map(|access| match access.at {
        IndexedAt::Range(start, len) => vec![access.extent, start, len],
        IndexedAt::Node(_) => vec![access.extent],
    });
    let all: Vec<_> = declared.chain(ranges).chain(reach.sizes().map(|(size, _)| size)).collect();
    most("sizes in one extent", all.iter().map(|size| size.parts().0.len()).max().unwrap_or(0), TERMS)?;
    Ok(())
}

/// What an operation on integers is called in `tables.c`; `None` of others.
pub(super) fn operation(op: BinaryOp) -> Option<&'static str> {
    Some(match op {
        BinaryOp::Add => "FT_ADD",
        BinaryOp::Sub => "FT_SUB",
        BinaryOp::Mul => "FT_MUL",
        BinaryOp::Min => "FT_MIN",
        BinaryOp::Max => "FT_MAX",
        BinaryOp::Div => "FT_DIV",
        BinaryOp::Rem => "FT_REM",
        BinaryOp::BitAnd => "FT_BIT_AND",
        BinaryOp::BitOr => "FT_BIT_OR",
        BinaryOp::BitXor => "FT_BIT_XOR",
        BinaryOp::Shl => "FT_SHL",
        BinaryOp::Shr => "FT_SHR",
        BinaryOp::MulHi => "FT_MUL_HI",
        _ => return None,
    })
}
