//! Which launches a schedule makes of a kernel: one, or several with tensors between them.
//!
//! A launch has a kernel of its own, in tile IR, and a schedule of its own; each goes the same way to a plan and to text. What
//! one launch leaves to a later one are *scratch* tensors: outputs of the one kernel and inputs of the other, which are no
//! parameters of the kernel text.

use flashtile_dsl::ir::{Kernel, ParamKind};

use crate::abi::{FoldedRows, Scratch, SizeTerm};
use crate::arch::{Arch, CopyOp, TensorOp};
use crate::instance::Instance;
use crate::instruction::{warp_copy_op, warp_tensor_op};
use crate::rewrite::{self, Folded, Staged};
use crate::schedule::{BLayout, Combine, Fold, LoopOrder, Persistent, Precompute, RunningMax, Schedule, Walk};

/// Parts that a loop may be split into.
const MAX_SPLITS: u32 = 128;

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
    /// How the launches see the tensors of a call, if not as the kernel text does.
    pub folded: Option<FoldedRows>,
    /// What they assume of the arguments, in words.
    pub assumption: Option<String>,
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
        precompute: Precompute::Off,
        loop_order: LoopOrder::AsWritten,
        fold: Fold::Off,
        ..schedule.clone()
    };
    // Ahead of everything else, so that what lies between launches has the sizes of the folded kernel too.
    let (unfolded, mut folded, mut assumption) = (instance, None, None);
    let mut instance = unfolded.clone();
    let mut reasons = Vec::new();
    if schedule.fold == Fold::Heads {
        match rewrite::fold(&unfolded.kernel) {
            Ok(made) => {
                let text = foldable_text(&made);
                if !unfolded.facts.foldable {
                    reasons.push(format!("fold=heads takes arguments of which it is known that {text}; fold=off takes any"));
                }
                assumption = Some(text);
                folded = Some(made.rows(&unfolded.binding));
                instance.kernel = made.kernel;
            }
            Err(why) => reasons.push(format!("fold=heads has nothing to fold: {why}")),
        }
    }
    let instance = &instance;
    let of = |kernel: Kernel| Instance { kernel, ..instance.clone() };
    let follows = |kernel: Kernel| {
        let instance = of(kernel);
        let schedule = follower(&instance, &whole, arch);
        Piece { instance, schedule }
    };
    let (mut pieces, mut scratch) = (Vec::new(), Vec::new());
    let mut kernel = instance.kernel.clone();
    // What rewrites move ahead. `tall`: with more rows a block than other launches that move
    // little.
    let mut stage = |refused: &str, tall: bool, rewrite: &dyn Fn(&Kernel) -> Result<Staged, String>| match rewrite(&kernel) {
        Ok(Staged { ahead, main, between }) => {
            scratch.extend(between.iter().map(|name| scratch_tensor(instance, &main, name)));
            for Piece { instance, schedule } in ahead.into_iter().map(follows) {
                let schedule = if tall { Schedule { block_m: 64, warps: 4, ..schedule } } else { schedule };
                pieces.push(Piece { instance, schedule });
            }
            kernel = main;
        }
        Err(why) => reasons.push(format!("{refused}: {why}")),
    };
    if let Some(sides) = rewrite::Sides::of(schedule.precompute) {
        let refused = format!("precompute={} has nothing to do", schedule.precompute.name());
        stage(&refused, true, &|kernel| rewrite::precompute(kernel, sides));
    }
    match schedule.b_layout {
        BLayout::AsGiven => {}
        BLayout::Pretransposed => stage("b_layout=pretransposed has nothing to transpose", false, &rewrite::pretranspose),
        BLayout::Copied => {
            stage("b_layout=copied has nothing to copy", true, &|kernel| rewrite::copy_ahead(&of(kernel.clone())));
        }
    }
    let main = pieces.len();
    if !(1..=MAX_SPLITS).contains(&schedule.splits) {
        reasons.push(format!("splits={} is not between 1 and {MAX_SPLITS}", schedule.splits));
    }
    reasons.extend(why_not_combine(schedule, arch));
    let parts = match (schedule.splits, schedule.combine) {
        _ if !reasons.is_empty() => Ok(Parts::One),
        (1, _) => Ok(Parts::One),
        (count, Combine::Kernel) => rewrite::split(&kernel, count).map(|split| Parts::Apart(Box::new(split))),
        (count, Combine::Tree) => rewrite::split_grouped(&kernel, count).map(|split| Parts::Grouped(Box::new(split))),
        (count, Combine::Semaphore | Combine::Cluster) => {
            rewrite::split_joined(&kernel, count).map(|kernel| Parts::Joined(Box::new(kernel)))
        }
    };
    let parts = parts.unwrap_or_else(|why| {
        reasons.push(format!("splits={} needs one streaming reduction: {why}", schedule.splits));
        Parts::One
    });
    let mut interchanged = None;
    if schedule.loop_order == LoopOrder::Interchanged {
        reasons.extend(against_interchange(schedule));
        match rewrite::interchange(&kernel) {
            Ok(made) => interchanged = Some(made),
            Err(why) => reasons.push(format!("loop_order=interchanged does not apply: {why}")),
        }
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    if let Some(made) = interchanged {
        scratch.extend(made.between.iter().map(|name| scratch_tensor(instance, &made.main, name)));
        pieces.push(follows(made.start));
        pieces.push(Piece { instance: of(made.main), schedule: whole.clone() });
        pieces.push(follows(made.finish));
        return Ok(Launches { pieces, main: main + 1, scratch, folded, assumption });
    }
    match parts {
        Parts::One => pieces.push(Piece { instance: of(kernel), schedule: whole.clone() }),
        Parts::Joined(joined) => {
            let knobs = Schedule { splits: schedule.splits, combine: schedule.combine, ..whole.clone() };
            pieces.push(Piece { instance: of(*joined), schedule: knobs });
        }
        Parts::Apart(split) => {
            scratch.extend(split.between.iter().map(|name| scratch_tensor(instance, &split.partial, name)));
            pieces.push(Piece { instance: of(split.partial), schedule: whole.clone() });
            pieces.push(follows(split.combine));
        }
        Parts::Grouped(grouped) => {
            let rewrite::GroupedSplit { split, group, before } = *grouped;
            scratch.extend(before.iter().map(|name| scratch_tensor(instance, &split.partial, name)));
            scratch.extend(split.between.iter().map(|name| scratch_tensor(instance, &group, name)));
            pieces.push(Piece { instance: of(split.partial), schedule: whole.clone() });
            pieces.extend([group, split.combine].map(follows));
        }
    }
    Ok(Launches { pieces, main, scratch, folded, assumption })
}

/// What [`crate::Facts::foldable`] says of the arguments, in words.
fn foldable_text(folded: &Folded) -> String {
    let size = |size| folded.kernel.size_text(size);
    let (heads, groups, rows) = (size(&folded.heads), size(&folded.groups), size(&folded.rows));
    let names: Vec<String> = folded.tensors.iter().map(|(name, _)| format!("`{name}`")).collect();
    let whole = if groups == "1" { String::new() } else { format!("{heads} is a multiple of {groups}, and ") };
    format!("{whole}heads of {} follow each other, {rows} rows apart ({FOLDING_SIZES})", names.join(", "))
}

/// What sizes fold, in words.
pub(crate) const FOLDING_SIZES: &str = "at least one, and at most 2^31 - 2^16 rows in a group";

/// Why the rows of heads that read the same keys cannot be folded, if the kernel has such: what is not known of the arguments.
pub fn why_not_folded(instance: &Instance) -> Option<String> {
    let made = if instance.facts.foldable { None } else { rewrite::fold(&instance.kernel).ok() };
    made.map(|made| format!("it is not known that {}", foldable_text(&made)))
}

/// How the parts of a loop are made.
enum Parts {
    /// There is one: the loop as it is.
    One,
    /// A kernel for the parts, and one that merges them.
    Apart(Box<rewrite::Split>),
    /// The same, and one that merges groups of them in between.
    Grouped(Box<rewrite::GroupedSplit>),
    /// One kernel, in which the programs of the parts meet.
    Joined(Box<Kernel>),
}

/// Knobs that do not go with loops that are exchanged.
fn against_interchange(schedule: &Schedule) -> Vec<String> {
    let mut reasons = Vec::new();
    if schedule.tensor_op == TensorOp::Wgmma || schedule.copy == CopyOp::Tma {
        reasons.push(
            "loop_order=interchanged makes a loop in a loop, which the roles of wgmma do not walk: take ffma or mma.sync"
                .to_owned(),
        );
    }
    if schedule.splits != 1 {
        reasons.push(format!("loop_order=interchanged walks all tiles in each program: splits=1, not {}", schedule.splits));
    }
    if schedule.running_max != RunningMax::Exact {
        reasons.push("loop_order=interchanged stores the running maximum in every step: running_max=exact".to_owned());
    }
    if schedule.walk != Walk::Ascending {
        reasons.push(
            "loop_order=interchanged stores the state after every tile, in the order of the text: walk=ascending".to_owned(),
        );
    }
    reasons
}

/// Blocks of a cluster, as many as any launch may have (CUDA C++ Programming Guide, "Thread Block Clusters").
const CLUSTERS: [u32; 3] = [2, 4, 8];

/// Why the parts of a loop cannot be combined so.
pub(crate) fn why_not_combine(schedule: &Schedule, arch: &Arch) -> Vec<String> {
    let mut reasons = Vec::new();
    let combine = match schedule.combine {
        Combine::Kernel => return reasons,
        Combine::Tree => {
            if rewrite::groups(schedule.splits).is_none() {
                reasons.push(format!("combine=tree takes parts that divide into groups, 4 or more: splits={}", schedule.splits));
            }
            return reasons;
        }
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
        if !arch.clusters {
            reasons.push(format!("{arch} has no clusters of blocks: combine=kernel, tree or semaphore"));
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
        tensor_op: warp_tensor_op(instance, arch),
        copy: warp_copy_op(instance, arch),
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
        shape: decl.shape.iter().map(|size| SizeTerm::of(&instance.kernel, &instance.binding, size)).collect(),
    }
}
