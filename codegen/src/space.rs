//! The schedules that are tried: every legal combination of the knob values that matter to a kernel.
//!
//! A knob that cannot change the code of a kernel (block_k where nothing has it, work order where all programs are alike)
//! keeps its default, so that no two schedules of the space are the same program. Values that never won anywhere are not
//! here, though a schedule written by hand may use them.

use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::ir::{Elem, Kernel, Op};

use crate::arch::{Arch, CopyOp, TensorOp};
use crate::blocks::{self, BlockKnob};
use crate::generate::check;
use crate::instance::Instance;
use crate::lower;
use crate::schedule::{OperandA, RunningMax, Schedule, WorkOrder};

/// All legal schedules of the space, in a fixed order.
pub fn space(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    candidates(instance, arch).into_iter().filter(|s| check(instance, s, arch).is_legal()).collect()
}

/// All combinations, legal or not.
pub(crate) fn candidates(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    let kernel = &instance.kernel;
    let traits = Traits::of(kernel);
    // The lane-wise maximum won over the exact one in every cell measured (docs/performance.md).
    let running_max = if lower::why_not_lazy(kernel).is_none() { RunningMax::MaxFirst } else { RunningMax::Exact };
    let base =
        Schedule { running_max, tensor_op: tensor_op(instance, arch), copy: copy_op(instance, arch), ..Schedule::default() };
    let shapes: &[(u32, u32)] = if traits.products {
        // block_m, warps: 16 or 32 rows a warp
        &[(16, 1), (32, 2), (32, 1), (64, 4), (64, 2), (128, 8), (128, 4), (256, 8)]
    } else {
        &[(16, 1), (64, 4), (128, 8)]
    };
    let n = if traits.block_n { &[32, 64, 128, 256][..] } else { &[64][..] };
    let k = if traits.block_k { &[32, 64][..] } else { &[32][..] };
    let stages = match (traits.streams, base.copy) {
        (false, _) => &[1][..],
        (true, CopyOp::Sync) => &[1, 2][..],
        (true, _) => &[1, 2, 3][..],
    };
    let registers = if traits.invariant_a && base.tensor_op != TensorOp::Ffma {
        &[OperandA::Shared, OperandA::Registers][..]
    } else {
        &[OperandA::Shared][..]
    };
    let orders = match lower::trip_trend(instance, &base) {
        Some(Trend::Rising | Trend::Falling) => {
            &[(WorkOrder::Grid, 16), (WorkOrder::LongestFirst, 8), (WorkOrder::LongestFirst, 32)][..]
        }
        _ => &[(WorkOrder::Grid, 16)][..],
    };
    let mut out = Vec::new();
    for &(block_m, warps) in shapes {
        for &block_n in n {
            for &block_k in k {
                for &stages in stages {
                    for &operand_a in registers {
                        for &(order, section) in orders {
                            out.push(Schedule {
                                block_m,
                                warps,
                                block_n,
                                block_k,
                                stages,
                                operand_a,
                                order,
                                section,
                                ..base.clone()
                            });
                        }
                    }
                }
            }
        }
    }
    out
}

/// What a kernel has that makes a knob matter.
struct Traits {
    products: bool,
    streams: bool,
    invariant_a: bool,
    block_n: bool,
    block_k: bool,
}

impl Traits {
    fn of(kernel: &Kernel) -> Self {
        let walk = kernel.walk();
        let products = walk.iter().any(|&(_, op)| matches!(kernel.ops[op].op, Op::Dot { .. }));
        let in_loop = walk.iter().any(|&(block, op)| block != kernel.body && matches!(kernel.ops[op].op, Op::Dot { .. }));
        let invariant_a = walk.iter().any(|&(block, op)| match kernel.ops[op].op {
            Op::Dot { a, .. } if block != kernel.body => kernel
                .def(a)
                .is_some_and(|(def, op)| matches!(op, Op::Load { .. }) && kernel.blocks[kernel.body].ops.contains(&def)),
            _ => false,
        });
        let has = |knob| kernel.axes.keys().any(|axis| blocks::knob(kernel, axis) == knob);
        Self { products, streams: in_loop, invariant_a, block_n: has(BlockKnob::N), block_k: has(BlockKnob::K) }
    }
}

/// The best tensor op that takes the kernel's operands.
fn tensor_op(instance: &Instance, arch: &Arch) -> TensorOp {
    let f32_operands = instance.kernel.walk().into_iter().any(|(_, op)| match instance.kernel.ops[op].op {
        Op::Dot { a, .. } => instance.binding.elem(&instance.kernel, instance.kernel.tile(a).elem) == Elem::F32,
        _ => false,
    });
    if f32_operands {
        return TensorOp::Ffma;
    }
    arch.tensor_ops.iter().copied().find(|&op| op != TensorOp::Wgmma).unwrap_or(TensorOp::Ffma)
}

/// The best copy that the alignment allows.
fn copy_op(instance: &Instance, arch: &Arch) -> CopyOp {
    let allowed = |op: &CopyOp| *op == CopyOp::Sync || (*op == CopyOp::CpAsync && instance.facts.alignment >= 4);
    arch.copy_ops.iter().copied().find(allowed).unwrap_or(CopyOp::Sync)
}
