//! Why a schedule is not legal for a kernel and an architecture: what speaks against it before it
//! is planned, and of its plan.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::ir::{Dim, Elem, Kernel, Op, SizeExpr, Type};

use crate::arch::{Arch, CopyOp, TensorOp, WARPGROUP};
use crate::artifact::Resources;
use crate::instance::Instance;
use crate::lower;
use crate::plan::{Plan, Shape, Storage};
use crate::schedule::{KNOBS, OperandA, Persistent, PingPong, RunningMax, Schedule, Walk, WorkOrder};

/// Why a multiprocessor cannot hold `min_blocks` blocks at once. The promise goes to the compiler,
/// which divides the registers by it; persistent blocks are launched in that number. So more blocks
/// than fit would have few registers each, and the last of them would wait for the end of the
/// first.
pub(crate) fn min_blocks_reason(min_blocks: u32, shared_bytes: u32, threads: u32, arch: &Arch) -> Option<String> {
    let shared = Resources::shared_of_block(arch, shared_bytes);
    if min_blocks.saturating_mul(threads) > arch.threads_per_sm {
        let most = arch.threads_per_sm;
        Some(format!("min_blocks={min_blocks} blocks of {threads} threads exceed the {most} of a multiprocessor"))
    } else if min_blocks as usize * shared > arch.shared_per_sm {
        let most = arch.shared_per_sm;
        Some(format!("min_blocks={min_blocks} blocks of {shared} bytes of shared memory exceed the {most} of a multiprocessor"))
    } else {
        None
    }
}

pub(crate) fn lazy_reason(why: &str) -> String {
    format!("a lazy running maximum needs a streaming softmax: {why}")
}

/// Reasons that need no plan.
pub(crate) fn static_reasons(instance: &Instance, normal: &Kernel, s: &Schedule, arch: &Arch) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: String| {
        if condition && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    };
    let kernel = &instance.kernel;
    refuse(!(1..=16).contains(&s.warps), format!("warps={} is not between 1 and 16", s.warps));
    refuse(!(1..=8).contains(&s.stages), format!("stages={} is not between 1 and 8", s.stages));
    for (name, value) in [("block_m", s.block_m), ("block_n", s.block_n), ("block_k", s.block_k)] {
        refuse(value == 0 || value % 16 != 0 || value > 512, format!("{name}={value} is not a multiple of 16 up to 512"));
    }
    let rows = 16 * s.warps.max(1);
    refuse(
        !s.block_m.is_multiple_of(rows),
        format!("block_m={} is not a multiple of 16 rows for each of {} warps", s.block_m, s.warps),
    );
    refuse(s.section == 0, "section=0 is not positive".into());
    refuse(!arch.tensor_ops.contains(&s.tensor_op), format!("{arch} has no {}", knob_text(s, "tensor_op")));
    refuse(!arch.copy_ops.contains(&s.copy), format!("{arch} has no {}", knob_text(s, "copy")));
    refuse(
        s.copy == CopyOp::CpAsync && instance.alignment() < 4,
        format!("cp.async copies at least 4 bytes, rows of tiles are aligned to {}", instance.alignment()),
    );
    refuse(s.copy == CopyOp::Sync && s.stages > 2, "more than two stages of synchronous copies overlap nothing".into());
    refuse(
        s.tensor_op == TensorOp::Ffma && s.operand_a == OperandA::Registers,
        "tensor_op=ffma reads its operands from shared memory: operand_a=shared".into(),
    );
    for reason in specialized_reasons(instance, normal, s) {
        refuse(true, reason);
    }
    for elem in operand_types(instance, normal) {
        let tensor = s.tensor_op != TensorOp::Ffma;
        refuse(elem == Elem::F32 && tensor, "f32 products take tensor_op=ffma".into());
        refuse(elem != Elem::F32 && !tensor, format!("tensor_op=ffma takes f32 operands, not {}", elem.name()));
        refuse(elem == Elem::Bf16 && !arch.bf16, format!("{arch} has no bf16"));
        refuse(elem == Elem::Bf16 && s.tensor_op == TensorOp::MmaM16n8k8, "mma_m16n8k8 takes f16 here".into());
    }
    refuse(!arch.bf16 && instance.binding.types.values().any(|&e| e == Elem::Bf16), format!("{arch} has no bf16"));
    if s.order == WorkOrder::Lpt {
        refuse(
            !matches!(lower::trip_trend(instance, s), Some(Trend::Rising | Trend::Falling)),
            "order=lpt needs a loop whose length depends on the last grid dimension".into(),
        );
    }
    if s.running_max != RunningMax::Exact
        && let Some(why) = lower::why_not_lazy(kernel)
    {
        refuse(true, lazy_reason(&why));
    }
    if s.walk == Walk::Descending
        && let Some(why) = lower::why_not_descending(kernel)
    {
        refuse(true, format!("walk=descending takes the tiles of a loop in another order than the text: {why}"));
    }
    for (name, extent) in range_lengths(kernel) {
        match instance.binding.size(kernel, &extent) {
            Some(n) if n >= 1 => {}
            Some(n) => refuse(true, format!("the range {name} has length {n}")),
            None => refuse(true, format!("the length of the range {name} is not known at compile time")),
        }
    }
    reasons
}

/// Reasons about the knobs of specialised roles.
fn specialized_reasons(instance: &Instance, normal: &Kernel, s: &Schedule) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: String| {
        if condition {
            reasons.push(reason);
        }
    };
    let plain = Schedule::default();
    let knobs = |names: &[&'static str]| {
        let knob = |name: &str| KNOBS.iter().find(|k| k.name == name).expect("a knob");
        names.iter().find(|n| (knob(n).get)(s) != (knob(n).get)(&plain)).map(|n| knob_text(s, n))
    };
    if s.tensor_op != TensorOp::Wgmma {
        refuse(s.copy == CopyOp::Tma, "copy=tma fills tiles for tensor_op=wgmma only".into());
        if let Some(knob) = knobs(&["overlap", "ping_pong", "persistent", "outer_stages", "producer_registers"]) {
            refuse(true, format!("{knob} is a knob of tensor_op=wgmma"));
        }
        return reasons;
    }
    refuse(s.copy != CopyOp::Tma, "tensor_op=wgmma reads tiles that copy=tma fills".into());
    refuse(operand_types(instance, normal).is_empty(), "tensor_op=wgmma needs a matrix product".into());
    if let Some(knob) = knobs(&["swizzle", "fragments", "operand_a", "batch_m"]) {
        refuse(true, format!("{knob} is a knob of mma.sync: wgmma reads both operands from swizzled tiles"));
    }
    let groups = s.warps / WARPGROUP;
    refuse(
        !s.warps.is_multiple_of(WARPGROUP) || s.block_m != 16 * s.warps,
        format!("wgmma takes 64 rows for each group of 4 warps: block_m={} and warps={} do not fit", s.block_m, s.warps),
    );
    refuse(
        instance.facts.alignment < 16,
        format!("TMA needs addresses and strides that are multiples of 16 bytes, they are of {}", instance.facts.alignment),
    );
    refuse(s.ping_pong != PingPong::Off && groups < 2, "ping_pong takes two warpgroups or more".into());
    refuse(!(1..=4).contains(&s.outer_stages), format!("outer_stages={} is not between 1 and 4", s.outer_stages));
    refuse(
        s.outer_stages > 1 && s.persistent == Persistent::Off,
        "outer_stages loads ahead for the next program of a block: persistent=static or dynamic".into(),
    );
    if let Some((producer, consumer)) = lower::register_split(s) {
        let fits = |n: u32| (24..=240).contains(&n) && n.is_multiple_of(8);
        refuse(
            !fits(producer) || !fits(consumer),
            format!("setmaxnreg takes multiples of 8 from 24 to 240, not {producer} and {consumer}"),
        );
    }
    reasons
}

/// Registers that the compiler wants at launch for a product, beyond its accumulator (ptxas C7602).
const WGMMA_REGISTERS: u32 = 30;

/// Reasons against a plan with asynchronous products.
pub(crate) fn wgmma_reasons(plan: &Plan, launched: u32) -> Vec<String> {
    let mut reasons = Vec::new();
    for v in &plan.variables {
        let Storage::Fragment(Shape::Accumulator) = v.storage else { continue };
        if v.n_tiles > 32 {
            reasons.push(format!("wgmma computes up to 256 columns, {} has {}", v.name, 8 * v.n_tiles));
        }
        let needed = v.registers() + WGMMA_REGISTERS;
        if needed > launched {
            reasons.push(format!(
                "a product with {} columns needs {needed} registers per thread, {launched} are launched",
                8 * v.n_tiles
            ));
        }
        if v.m_tiles != 1 {
            reasons.push(format!("wgmma computes 64 rows for each group of 4 warps, {} has other rows", v.name));
        }
    }
    reasons
}

/// `knob=value`, as the schedule's text form has it.
fn knob_text(schedule: &Schedule, name: &str) -> String {
    let knob = KNOBS.iter().find(|k| k.name == name).expect("every field of a schedule is a knob");
    format!("{name}={}", (knob.get)(schedule))
}

/// Element types of matrix-product operands.
pub(crate) fn operand_types(instance: &Instance, kernel: &Kernel) -> Vec<Elem> {
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        if let Op::Dot { a, b, .. } = kernel.ops[op].op {
            for v in [a, b] {
                let elem = instance.binding.elem(kernel, kernel.tile(v).elem);
                if !found.contains(&elem) {
                    found.push(elem);
                }
            }
        }
    }
    found
}

/// Compile-time ranges that tiles have, with their text.
fn range_lengths(kernel: &Kernel) -> Vec<(String, SizeExpr)> {
    let mut found: BTreeMap<String, SizeExpr> = BTreeMap::new();
    for value in kernel.values.values() {
        if let Type::Tile(t) = &value.ty {
            for dim in &t.dims {
                if let Dim::Range(len) = dim {
                    found.insert(kernel.size_text(len), len.clone());
                }
            }
        }
    }
    found.into_iter().collect()
}
