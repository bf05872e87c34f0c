//! The stages of a schedule: rewrites that make launches of a kernel, each with the knobs that ask
//! for it.
//!
//! A new stage is a row of [`STAGES`] and a file with its rewrite.

use flashtile_dsl::ir::Kernel;

use super::copied::copy_ahead;
use super::fold::fold;
use super::interchange::interchange;
use super::precompute::{Sides, precompute};
use super::pretranspose::pretranspose;
use super::split::{groups, split};
use super::staged::{NotStaged, Staged};
use crate::arch::{Arch, CopyOp};
use crate::instance::Instance;
use crate::schedule::{BLayout, Fixup, LoopOrder, PackGqa, Persistent, Precompute, RunningMax, Schedule, Walk};

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
    pub asked: fn(&Schedule) -> bool,
    /// Turns its knobs off. The schedule of `main` then has them off, unless its programs meet.
    pub off: fn(&mut Schedule),
    /// The rewrite of what earlier stages have made. Its reasons name the knobs.
    pub make: fn(&Request<'_>, &Kernel) -> Result<Staged, NotStaged>,
    /// Whether the launches ahead and behind have many rows a block. The others have few, so that
    /// there are many blocks.
    pub tall: bool,
}

/// All stages, in the order in which they are applied. `fold` is first, so that what lies between
/// launches has the sizes of the folded kernel.
pub(super) const STAGES: [Stage; 6] = [
    Stage {
        asked: |schedule| schedule.pack_gqa == PackGqa::On,
        off: |schedule| schedule.pack_gqa = PackGqa::Off,
        make: fold_heads,
        tall: false,
    },
    Stage {
        asked: |schedule| schedule.precompute != Precompute::Off,
        off: |schedule| schedule.precompute = Precompute::Off,
        make: compute_ahead,
        tall: true,
    },
    Stage {
        asked: |schedule| schedule.b_layout == BLayout::Pretransposed,
        off: |schedule| schedule.b_layout = BLayout::AsGiven,
        make: |_, kernel| pretranspose(kernel).map_err(|e| e.wanting("b_layout=pretransposed has nothing to transpose")),
        tall: false,
    },
    Stage {
        asked: |schedule| schedule.b_layout == BLayout::Copied,
        off: |schedule| schedule.b_layout = BLayout::AsGiven,
        make: |request, kernel| {
            let instance = Instance { kernel: kernel.clone(), ..request.instance.clone() };
            copy_ahead(&instance).map_err(|e| e.wanting("b_layout=copied has nothing to copy"))
        },
        tall: true,
    },
    Stage {
        asked: |schedule| schedule.loop_order == LoopOrder::Interchanged,
        off: |schedule| schedule.loop_order = LoopOrder::AsWritten,
        make: exchange_loops,
        tall: false,
    },
    Stage {
        asked: |schedule| schedule.split_k != 1 || schedule.fixup != Fixup::Kernel,
        off: |schedule| (schedule.split_k, schedule.fixup) = (1, Fixup::Kernel),
        make: split_loop,
        tall: false,
    },
];

/// `pack_gqa=on`.
fn fold_heads(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotStaged> {
    let made = fold(kernel).map_err(|e| e.wanting("pack_gqa=on has nothing to fold"))?;
    match &made.folded {
        Some(folded) if !request.instance.facts.foldable => {
            let text = folded.text(&made.main);
            Err(format!("pack_gqa=on takes arguments of which it is known that {text}; pack_gqa=off takes any").into())
        }
        _ => Ok(made),
    }
}

/// `precompute=b` and `ab`.
fn compute_ahead(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotStaged> {
    let knob = request.schedule.precompute;
    let sides = Sides::of(knob).expect("the stage was asked for");
    precompute(kernel, sides).map_err(|e| e.wanting(&format!("precompute={} has nothing to do", knob.name())))
}

/// `loop_order=interchanged`.
fn exchange_loops(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotStaged> {
    let mut reasons = against_interchange(request.schedule);
    match interchange(kernel).map_err(|e| e.wanting("loop_order=interchanged does not apply")) {
        Err(NotStaged::Refused(why)) => {
            reasons.extend(why);
            Err(NotStaged::Refused(reasons))
        }
        Ok(_) if !reasons.is_empty() => Err(NotStaged::Refused(reasons)),
        made => made,
    }
}

/// Knobs that do not go with loops that are exchanged.
fn against_interchange(schedule: &Schedule) -> Vec<String> {
    let mut reasons = Vec::new();
    if schedule.tensor_op.is_asynchronous() || schedule.copy == CopyOp::Tma {
        reasons.push(
            "loop_order=interchanged makes a loop in a loop, which the roles of wgmma do not walk: take ffma or mma.sync"
                .to_owned(),
        );
    }
    if schedule.split_k != 1 {
        reasons.push(format!("loop_order=interchanged walks all tiles in each program: split_k=1, not {}", schedule.split_k));
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

/// Parts that a loop may be split into.
const MAX_SPLITS: u32 = 128;

/// `split_k` and `fixup`.
fn split_loop(request: &Request<'_>, kernel: &Kernel) -> Result<Staged, NotStaged> {
    let Schedule { split_k, fixup, .. } = *request.schedule;
    let mut reasons = Vec::new();
    if !(1..=MAX_SPLITS).contains(&split_k) {
        reasons.push(format!("split_k={split_k} is not between 1 and {MAX_SPLITS}"));
    }
    reasons.extend(why_not_combine(request.schedule, request.arch));
    if !reasons.is_empty() {
        return Err(NotStaged::Refused(reasons));
    }
    split(kernel, split_k, fixup).map_err(|e| e.wanting(&format!("split_k={split_k} needs one streaming reduction")))
}

/// Blocks of a cluster, as many as any launch may have (CUDA C++ Programming Guide, "Thread Block
/// Clusters").
const CLUSTERS: [u32; 3] = [2, 4, 8];

/// Why the parts of a loop cannot be combined so.
pub(crate) fn why_not_combine(schedule: &Schedule, arch: &Arch) -> Vec<String> {
    let mut reasons = Vec::new();
    let fixup = match schedule.fixup {
        Fixup::Kernel => return reasons,
        Fixup::Tree => {
            if groups(schedule.split_k).is_none() {
                reasons.push(format!("fixup=tree takes parts that divide into groups, 4 or more: split_k={}", schedule.split_k));
            }
            return reasons;
        }
        Fixup::Semaphore => "fixup=semaphore",
        Fixup::Cluster => "fixup=cluster",
    };
    if schedule.split_k == 1 {
        reasons.push(format!("{fixup} has no parts to combine: split_k=1"));
    }
    if schedule.persistent != Persistent::Off {
        // Of a program that waits, the one before may be of a block that has not begun, and never
        // will while others wait.
        reasons.push(format!("{fixup} takes blocks of one program each, in the order of the programs: persistent=off"));
    }
    if schedule.fixup == Fixup::Cluster {
        if !arch.clusters {
            reasons.push(format!("{arch} has no clusters of blocks: fixup=kernel, tree or semaphore"));
        }
        if schedule.split_k > 1 && !CLUSTERS.contains(&schedule.split_k) {
            reasons.push(format!(
                "fixup=cluster takes 2, 4 or 8 parts, a block of a cluster for each: split_k={}",
                schedule.split_k
            ));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_asked_for_by_its_knobs_alone() {
        let plain = Schedule::default();
        assert!(STAGES.iter().all(|stage| !(stage.asked)(&plain)));
        let asking = [
            "pack_gqa=on",
            "precompute=b",
            "b_layout=pretransposed",
            "b_layout=copied",
            "loop_order=interchanged",
            "split_k=4,fixup=tree",
        ];
        assert_eq!(asking.len(), STAGES.len(), "a line for each stage");
        for (number, knobs) in asking.into_iter().enumerate() {
            let mut schedule: Schedule = knobs.parse().expect("a schedule");
            let asked: Vec<usize> = (0..STAGES.len()).filter(|&n| (STAGES[n].asked)(&schedule)).collect();
            assert_eq!(asked, [number], "{knobs}");
            (STAGES[number].off)(&mut schedule);
            assert_eq!(schedule, plain, "{knobs}: turned off, but something is left");
        }
    }
}
