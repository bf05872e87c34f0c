//! The instructions that an architecture offers a kernel, best first.

use flashtile_dsl::ir::{Elem, Op};

use crate::arch::{Arch, CopyOp, TensorOp};
use crate::instance::Instance;
use crate::lower;
use crate::schedule::BlockKnobs;

/// The best instruction of a warp that takes the kernel's operands.
pub(crate) fn warp_tensor_op(instance: &Instance, arch: &Arch) -> TensorOp {
    let f32_operands = instance.kernel.walk().into_iter().any(|(_, op)| match instance.kernel.ops[op].op {
        Op::Dot { a, .. } => instance.binding.elem(&instance.kernel, instance.kernel.tile(a).elem) == Elem::F32,
        _ => false,
    });
    if f32_operands {
        return TensorOp::Ffma;
    }
    arch.tensor_ops.iter().copied().find(|&op| op != TensorOp::Wgmma).unwrap_or(TensorOp::Ffma)
}

/// The best copy by a warp that the alignment of what is copied allows.
pub(crate) fn warp_copy_op(instance: &Instance, arch: &Arch) -> CopyOp {
    let aligned = copied_alignment(instance);
    let allowed = |op: &CopyOp| *op == CopyOp::Sync || (*op == CopyOp::CpAsync && aligned >= 4);
    arch.copy_ops.iter().copied().find(allowed).unwrap_or(CopyOp::Sync)
}

/// Whether the best copy by a warp is one by elements.
pub(crate) fn copies_by_elements(instance: &Instance, arch: &Arch) -> bool {
    warp_copy_op(instance, arch) == CopyOp::Sync && copied_alignment(instance) < 16
}

fn copied_alignment(instance: &Instance) -> u32 {
    lower::copied_alignment(&instance.kernel, &BlockKnobs::default(), instance)
}
