//! Which launches a schedule makes of a kernel: one, or several with tensors between them.
//!
//! A launch has a kernel of its own, in tile IR, and a schedule of its own; each goes the same way to a plan and to text. What
//! one launch leaves to a later one are *scratch* tensors: outputs of the one kernel and inputs of the other, which are no
//! parameters of the kernel text.

use flashtile_dsl::ir::{Kernel, ParamKind};

use crate::abi::Scratch;
use crate::arch::Arch;
use crate::generate;
use crate::instance::Instance;
use crate::rewrite;
use crate::schedule::{BLayout, Combine, OperandB, Persistent, Schedule};
use crate::space;

/// Parts that a loop may be split into.
const MAX_SPLITS: u32 = 64;

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its kernel.
    pub instance: Instance,
    /// Its schedule, of which no knob asks for further launches.
    pub schedule: Schedule,
}

/// The launches, in order.
#[derive(Clone, Debug)]
pub(crate) struct Launches {
    pub pieces: Vec<Piece>,
    /// The one that the knobs of the schedule are about.
    pub main: usize,
    pub scratch: Vec<Scratch>,
}

/// The launches of an instance under a schedule.
///
/// # Errors
/// Reasons against the schedule.
pub(crate) fn launches(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Launches, Vec<String>> {
    let whole = Schedule {
        splits: 1,
        combine: Combine::Kernel,
        b_layout: BLayout::AsGiven,
        operand_b: OperandB::Inline,
        ..schedule.clone()
    };
    let of = |kernel: Kernel| Instance { kernel, ..instance.clone() };
    let follows = |kernel: Kernel| {
        let instance = of(kernel);
        let schedule = follower(&instance, &whole, arch);
        Piece { instance, schedule }
    };
    let (mut reasons, mut pieces, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    let mut kernel = instance.kernel.clone();
    if schedule.operand_b == OperandB::Precomputed {
        match rewrite::precompute(&kernel) {
            Ok(made) => {
                scratch.extend(made.between.iter().map(|name| scratch_tensor(instance, &made.main, name)));
                for ahead in made.ahead {
                    let Piece { instance, schedule } = follows(ahead);
                    pieces.push(Piece { instance, schedule: Schedule { block_m: 64, warps: 4, ..schedule } });
                }
                kernel = made.main;
            }
            Err(why) => reasons.push(format!("operand_b=precomputed has nothing to do: {why}")),
        }
    }
    if schedule.b_layout == BLayout::Pretransposed {
        match rewrite::pretranspose(&kernel) {
            Ok(made) => {
                scratch.extend(made.between.iter().map(|name| scratch_tensor(instance, &made.main, name)));
                pieces.extend(made.prepare.into_iter().map(follows));
                kernel = made.main;
            }
            Err(why) => reasons.push(format!("b_layout=pretransposed has nothing to transpose: {why}")),
        }
    }
    let main = pieces.len();
    if !(1..=MAX_SPLITS).contains(&schedule.splits) {
        reasons.push(format!("splits={} is not between 1 and {MAX_SPLITS}", schedule.splits));
    }
    reasons.extend(why_not_combine(schedule, arch));
    let split = match (schedule.splits, schedule.combine) {
        _ if !reasons.is_empty() => None,
        (1, _) => None,
        (count, Combine::Semaphore | Combine::Cluster) => match rewrite::split_joined(&kernel, count) {
            Ok(joined) => {
                let knobs = Schedule { splits: count, combine: schedule.combine, ..whole.clone() };
                pieces.push(Piece { instance: of(joined), schedule: knobs });
                return Ok(Launches { pieces, main, scratch });
            }
            Err(why) => {
                reasons.push(format!("splits={count} needs one streaming reduction: {why}"));
                None
            }
        },
        (count, Combine::Kernel) => match rewrite::split(&kernel, count) {
            Ok(split) => Some(split),
            Err(why) => {
                reasons.push(format!("splits={count} needs one streaming reduction: {why}"));
                None
            }
        },
    };
    if !reasons.is_empty() {
        return Err(reasons);
    }
    match split {
        None => pieces.push(Piece { instance: of(kernel), schedule: whole.clone() }),
        Some(split) => {
            scratch.extend(split.between.iter().map(|name| scratch_tensor(instance, &split.partial, name)));
            pieces.push(Piece { instance: of(split.partial), schedule: whole.clone() });
            pieces.push(follows(split.combine));
        }
    }
    Ok(Launches { pieces, main, scratch })
}

/// Blocks of a cluster, as many as any launch may have (CUDA C++ Programming Guide, "Thread Block Clusters").
const CLUSTERS: [u32; 3] = [2, 4, 8];

/// Why the parts of a loop cannot be combined so.
pub(crate) fn why_not_combine(schedule: &Schedule, arch: &Arch) -> Vec<String> {
    let mut reasons = Vec::new();
    let combine = match schedule.combine {
        Combine::Kernel => return reasons,
        Combine::Semaphore => "combine=semaphore",
        Combine::Cluster => "combine=cluster",
    };
    if schedule.splits == 1 {
        reasons.push(format!("{combine} has no parts to combine: splits=1"));
    }
    if schedule.persistent != Persistent::Off {
        // Of a program that waits, the one before may be of a block that has not begun, and never will while others wait.
        reasons.push(format!("{combine} takes blocks of one program each, in the order of the programs: persistent=off"));
    }
    if schedule.combine == Combine::Cluster {
        if arch.capability < (9, 0) {
            reasons.push(format!("{arch} has no clusters of blocks: combine=semaphore or combine=kernel"));
        }
        if schedule.splits > 1 && !CLUSTERS.contains(&schedule.splits) {
            reasons.push(format!(
                "combine=cluster takes 2, 4 or 8 parts, a block of a cluster for each: splits={}",
                schedule.splits
            ));
        }
    }
    reasons
}

/// The schedule of a launch that moves little and computes less: small blocks, so that there are many.
fn follower(instance: &Instance, main: &Schedule, arch: &'static Arch) -> Schedule {
    Schedule {
        block_m: 16,
        warps: 1,
        stages: 1,
        tensor_op: space::warp_tensor_op(instance, arch),
        copy: space::warp_copy_op(instance, arch),
        exponential: main.exponential,
        ..Schedule::default()
    }
}

/// The scratch tensor of a parameter.
fn scratch_tensor(instance: &Instance, kernel: &Kernel, name: &str) -> Scratch {
    let param = kernel.param_named(name).expect("the kernel has what lies between");
    let ParamKind::Tensor(decl) = &kernel.params[param].kind else { unreachable!("a tensor") };
    Scratch {
        name: name.to_owned(),
        elem: instance.binding.elem(kernel, decl.elem),
        shape: decl.shape.iter().map(|size| generate::term(instance, size)).collect(),
    }
}
