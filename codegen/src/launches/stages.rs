//! The stages of a schedule: rewrites that make launches of a kernel, each with the knobs that ask
//! for it.
//!
//! A new stage is a row of [`STAGES`] and a file with its rewrite.

use flashtile_dsl::ir::Kernel;

use super::copied::copy_ahead;
use super::differences::by_difference;
use super::fold::fold;
use super::interchange::interchange;
use super::lists::list;
use super::precompute::{Sides, precompute};
use super::pretranspose::pretranspose;
use super::split::{groups, split};
use super::staged::{NotStaged, Staged};
use super::summaries::summarise;
use super::terms::terms_of_products;
use crate::arch::{Arch, CopyOp};
use crate::blocks;
use crate::instance::Instance;
use crate::reason::Reason;
use crate::schedule::{
    BLayout, Differences, Fixup, LaunchKnobs, LoopOrder, PackGqa, Persistent, Precompute, RunningMax, Schedule, Summaries, Terms,
    Walk,
};

/// What is to be launched, as a user asks for it.
pub(super) struct Request<'a> {
    /// The kernel of the text, and what is known of its arguments.
    pub instance: &'a Instance,
    pub schedule: &'a Schedule,
    pub arch: &'static Arch,
}

/// A rewrite, and how a schedule asks for it.
pub(super) struct Stage {
    /// Whether a schedule asks for it.
    pub asked: fn(&LaunchKnobs) -> bool,
    /// The rewrite of what earlier stages have made. Its reasons name the knobs.
    pub make: fn(&Request<'_>, &Kernel) -> Result<Staged, NotMade>,
    /// Whether the launches ahead and behind have many rows a block. The others have few, so that
    /// there are many blocks.
    pub tall: bool,
}

/// Why a stage gives no launches.
pub(super) enum NotMade {
    /// Reasons against the schedule.
    Reasons(Vec<Reason>),
    /// The IR verifier refused a kernel that the rewrite has made: a bug in the compiler.
    WrongKernel(Vec<String>),
}

impl From<Reason> for NotMade {
    fn from(reason: Reason) -> Self {
        Self::Reasons(vec![reason])
    }
}

/// What a rewrite refused, with the knob that asked for it and what the knob wants.
fn wanting(knob: &'static str, needs: impl Into<String>) -> impl FnOnce(NotStaged) -> NotMade {
    move |refused| match refused {
        NotStaged::Refused(why) => Reason::text(knob, needs, Some(why)).into(),
        NotStaged::WrongKernel(faults) => NotMade::WrongKernel(faults),
    }
}

/// All stages, in the order in which they are applied. `fold` is first, so that what lies between
/// launches has the sizes of the folded kernel.
pub(super) const STAGES: [Stage; 10] = [
    Stage { asked: |launches| launches.pack_gqa == PackGqa::On, make: fold_heads, tall: false },
    Stage {
        asked: |launches| launches.differences == Differences::Ahead,
        make: |_, kernel| by_difference(kernel).map_err(wanting("differences", "differences=ahead has nothing to compute")),
        tall: true,
    },
    Stage { asked: |launches| launches.precompute != Precompute::Off, make: compute_ahead, tall: true },
    Stage {
        asked: |launches| launches.terms == Terms::Product,
        make: |request, kernel| {
            let instance = Instance { kernel: kernel.clone(), ..request.instance.clone() };
            terms_of_products(&instance).map_err(wanting("terms", "terms=product has nothing to add"))
        },
        tall: true,
    },
    Stage {
        asked: |launches| launches.b_layout == BLayout::Pretransposed,
        make: |_, kernel| pretranspose(kernel).map_err(wanting("b_layout", "b_layout=pretransposed has nothing to transpose")),
        tall: false,
    },
    Stage {
        asked: |launches| launches.b_layout == BLayout::Copied,
        make: |request, kernel| {
            let instance = Instance { kernel: kernel.clone(), ..request.instance.clone() };
            copy_ahead(&instance, &request.instance.kernel).map_err(wanting("b_layout", "b_layout=copied has nothing to copy"))
        },
        tall: true,
    },
    Stage { asked: |launches| launches.summaries == Summaries::On, make: summarise_ahead, tall: true },
    Stage { asked: |launches| launches.summaries == Summaries::Listed, make: list_ahead, tall: false },
    Stage { asked: |launches| launches.loop_order == LoopOrder::Interchanged, make: exchange_loops, tall: false },
    Stage { asked: |launches| launches.split_k != 1 || launches.fixup != Fixup::Kernel, make: split_loop, tall: false },
];

/// `pack_gqa=on`.
fn fold_heads(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let made = fold(kernel).map_err(wanting("pack_gqa", "pack_gqa=on has nothing to fold"))?;
    match &made.folded {
        Some(folded) if !request.instance.facts.foldable => {
            let text = folded.text(&made.main);
            let needs = format!("pack_gqa=on takes arguments of which it is known that {text}; pack_gqa=off takes any");
            Err(Reason::text("pack_gqa", needs, None).into())
        }
        _ => Ok(made),
    }
}

/// `precompute=b` and `ab`.
fn compute_ahead(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let knob = request.schedule.launches.precompute;
    let sides = Sides::of(knob).expect("the stage was asked for");
    precompute(kernel, sides).map_err(wanting("precompute", format!("precompute={} has nothing to do", knob.name())))
}

/// `summaries=on`.
fn summarise_ahead(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let instance = Instance { kernel: kernel.clone(), ..request.instance.clone() };
    let block = |axis| i64::from(blocks::block(kernel, &request.schedule.main, axis));
    summarise(&instance, &block).map_err(wanting("summaries", "summaries=on has nothing to summarise"))
}

/// `summaries=listed`.
fn list_ahead(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let main = &request.schedule.main;
    if !main.early_stop {
        return Err(Reason::knobs("summaries", "early_stop", "summaries=listed lists tiles to skip: early_stop=on").into());
    }
    let instance = Instance { kernel: kernel.clone(), ..request.instance.clone() };
    let block = |axis| i64::from(blocks::block(kernel, main, axis));
    list(&instance, &block).map_err(wanting("summaries", "summaries=listed has nothing to list"))
}

/// `loop_order=interchanged`.
fn exchange_loops(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let mut reasons = against_interchange(request.schedule);
    match interchange(kernel).map_err(wanting("loop_order", "loop_order=interchanged does not apply")) {
        Err(NotMade::Reasons(why)) => reasons.extend(why),
        made if reasons.is_empty() => return made,
        // What another knob made of the kernel may be why it is no kernel now.
        _ => {}
    }
    Err(NotMade::Reasons(reasons))
}

/// Knobs that do not go with loops that are exchanged.
fn against_interchange(schedule: &Schedule) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, with: &'static str, why: String| {
        if condition {
            reasons.push(Reason::knobs("loop_order", with, format!("loop_order=interchanged {why}")));
        }
    };
    refuse(
        schedule.main.tensor_op.is_asynchronous() || schedule.main.copy == CopyOp::Tma,
        "tensor_op",
        "makes a loop in a loop, which the roles of wgmma do not walk: take ffma or mma.sync".into(),
    );
    let split_k = schedule.launches.split_k;
    refuse(split_k != 1, "split_k", format!("walks all tiles in each program: split_k=1, not {split_k}"));
    refuse(
        schedule.main.running_max != RunningMax::Exact,
        "running_max",
        "stores the running maximum in every step: running_max=exact".into(),
    );
    refuse(
        schedule.launches.summaries == Summaries::Listed,
        "summaries",
        "walks all rows for a tile of the loop, whose list is that of some rows: summaries=off".into(),
    );
    refuse(
        schedule.main.walk != Walk::Ascending,
        "walk",
        "stores the state after every tile, in the order of the text: walk=ascending".into(),
    );
    reasons
}

/// Parts that a loop may be split into.
pub(crate) const MAX_SPLITS: u32 = 128;

/// `split_k` and `fixup`.
fn split_loop(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotMade> {
    let LaunchKnobs { split_k, fixup, .. } = request.schedule.launches;
    let mut reasons = Vec::new();
    if !(1..=MAX_SPLITS).contains(&split_k) {
        reasons.push(Reason::not_between("split_k", split_k, 1, MAX_SPLITS));
    }
    reasons.extend(why_not_combine(request.schedule, request.arch));
    if !reasons.is_empty() {
        return Err(NotMade::Reasons(reasons));
    }
    split(kernel, split_k, fixup).map_err(wanting("split_k", format!("split_k={split_k} needs one streaming reduction")))
}

/// Blocks of a cluster, as many as any launch may have (CUDA C++ Programming Guide, "Thread Block
/// Clusters").
const CLUSTERS: [u32; 3] = [2, 4, 8];

/// Why the parts of a loop cannot be combined so.
pub(crate) fn why_not_combine(schedule: &Schedule, arch: &Arch) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let split_k = schedule.launches.split_k;
    let fixup = match schedule.launches.fixup {
        Fixup::Kernel => return reasons,
        Fixup::Tree => {
            if groups(split_k).is_none() {
                let why = format!("fixup=tree takes parts that divide into groups, 4 or more: split_k={split_k}");
                reasons.push(Reason::knobs("fixup", "split_k", why));
            }
            return reasons;
        }
        Fixup::Semaphore => "fixup=semaphore",
        Fixup::Cluster => "fixup=cluster",
    };
    if split_k == 1 {
        reasons.push(Reason::knobs("fixup", "split_k", format!("{fixup} has no parts to combine: split_k=1")));
    }
    if schedule.main.persistent != Persistent::Off {
        // A waiting program may hold the block that the program before it needs.
        let why = format!("{fixup} takes blocks of one program each, in the order of the programs: persistent=off");
        reasons.push(Reason::knobs("persistent", "fixup", why));
    }
    if schedule.launches.fixup == Fixup::Cluster {
        if !arch.clusters {
            reasons.push(Reason::Arch {
                arch: arch.name,
                lacks: "clusters of blocks".into(),
                knob: Some("fixup"),
                instead: Some("fixup=kernel, tree or semaphore"),
            });
        }
        if split_k > 1 && !CLUSTERS.contains(&split_k) {
            let why = format!("fixup=cluster takes 2, 4 or 8 parts, a block of a cluster for each: split_k={split_k}");
            reasons.push(Reason::knobs("split_k", "fixup", why));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_asked_for_by_its_knobs_alone() {
        let plain = LaunchKnobs::default();
        assert!(STAGES.iter().all(|stage| !(stage.asked)(&plain)));
        let asking = [
            "pack_gqa=on",
            "differences=ahead",
            "precompute=b",
            "terms=product",
            "b_layout=pretransposed",
            "b_layout=copied",
            "summaries=on",
            "summaries=listed",
            "loop_order=interchanged",
            "split_k=4,fixup=tree",
        ];
        assert_eq!(asking.len(), STAGES.len(), "a line for each stage");
        for (number, knobs) in asking.into_iter().enumerate() {
            let schedule: Schedule = knobs.parse().expect("a schedule");
            let asked: Vec<usize> = (0..STAGES.len()).filter(|&n| (STAGES[n].asked)(&schedule.launches)).collect();
            assert_eq!(asked, [number], "{knobs}");
        }
    }
}
