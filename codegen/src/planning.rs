//! From an instance and a schedule to the plans of its launches: rewrites, normal form, lowering,
//! resources.

use flashtile_dsl::analysis::reach::Reach;
use flashtile_dsl::ir::{AxisKind, Elem, Kernel, ProgramDim};

use crate::abi::{Abi, Blocks, FoldedRows, GridDim, Scratch, SizeTerm};
use crate::arch::Arch;
use crate::artifact::{Legality, Resources};
use crate::blocks;
use crate::emit;
use crate::error::Error;
use crate::instance::Instance;
use crate::interface;
use crate::launches::{self, Launches, Piece};
use crate::legality::{lazy_reason, min_blocks_reason, static_reasons, wgmma_reasons};
use crate::lower::{self, Meets};
use crate::names;
use crate::plan::{self, MeetBy, Plan};
use crate::reason::{Reason, Resource};
use crate::rewrite;
use crate::schedule::{BlockKnobs, Fixup, LaunchKnobs, Overlap, Persistent, RunningMax, Schedule};

/// Checks a schedule without generating code. The reasons against a schedule that is legal
/// otherwise are what the plan verifier says of its plans.
pub fn check(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Legality {
    match planned(instance, schedule, arch) {
        Ok(planned) => planned.legality(),
        Err(error) => Legality { reasons: error.into_reasons(), predicted: Resources::default() },
    }
}

/// Whether a schedule has plans that nothing speaks against but, maybe, the plan verifier: what a
/// search asks many times, since to verify plans takes as long as to make them.
pub(crate) fn fits(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> bool {
    planned(instance, schedule, arch).is_ok_and(|planned| planned.reasons.is_empty())
}

/// The plans of all launches, and what was found out on the way to them.
pub(crate) struct Planned {
    /// The launches, in order.
    pub launches: Vec<PlannedLaunch>,
    /// The one that the knobs are about.
    pub main: usize,
    /// Tensors between them.
    pub scratch: Vec<Scratch>,
    /// How they see the tensors of a call.
    pub folded: Option<FoldedRows>,
    /// Reasons against the schedule.
    pub reasons: Vec<Reason>,
    /// What must hold of the arguments.
    pub assumptions: Vec<String>,
}

impl Planned {
    /// What the plan verifier says of the plans, and what they do with tensors that their kernels
    /// do not.
    pub fn faults(&self) -> Vec<String> {
        let of = |launch: &PlannedLaunch| {
            let mut faults = plan::verify(&launch.plan);
            faults.extend(interface::faults(&launch.plan, &launch.normal));
            faults
        };
        self.launches.iter().flat_map(of).collect()
    }

    fn legality(self) -> Legality {
        let faults = || self.faults().into_iter().map(|why| Reason::Fault { why }).collect();
        let reasons = if self.reasons.is_empty() { faults() } else { self.reasons.clone() };
        Legality { predicted: self.launches[self.main].predicted, reasons }
    }
}

/// The plan of one launch.
pub(crate) struct PlannedLaunch {
    /// What is launched.
    pub piece: Piece,
    /// The plan.
    pub plan: Plan,
    /// The normalised kernel.
    pub normal: Kernel,
    /// Predicted resources.
    pub predicted: Resources,
    /// Names of scalars assumed positive.
    assumed: Vec<String>,
    /// Reasons against the schedule.
    reasons: Vec<Reason>,
}

impl PlannedLaunch {
    /// The calling contract; `plan`: its plan, with the names of the text.
    pub fn abi(&self, plan: &Plan, early: bool) -> Abi {
        let (instance, schedule) = (&self.piece.instance, &self.piece.knobs);
        Abi {
            entry: names::entry(&instance.kernel.name),
            tensor_maps: plan.maps.clone(),
            fields: emit::fields(instance, plan),
            grid: grid(instance, schedule),
            blocks: match plan.work {
                Persistent::Off => Blocks::PerProgram,
                Persistent::Static | Persistent::Dynamic => Blocks::Persistent(schedule.min_blocks.max(1)),
            },
            threads: plan.threads(),
            shared_bytes: plan.shared_bytes() as usize,
            cluster: plan.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster).map_or(1, |m| m.parts),
            registers: plan.roles.iter().map(|r| r.registers.unwrap_or(0) * r.warps * 32).sum(),
            early,
        }
    }
}

/// Plans an instance under a schedule, without generating text.
pub(crate) fn planned(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Planned, Error> {
    planned_with(None, instance, schedule, arch)
}

/// As [`planned`], with these plans for the launches, in order.
pub(crate) fn planned_from(
    plans: Vec<Plan>,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Planned, Error> {
    planned_with(Some(plans), instance, schedule, arch)
}

fn planned_with(
    given: Option<Vec<Plan>>,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Planned, Error> {
    if let Some(name) = instance.binding.check(&instance.kernel).into_iter().next() {
        return Err(Error::Unbound(name));
    }
    let illegal = |reasons| Error::Illegal { arch: arch.name, reasons };
    if schedule.launches.split_k != 1
        && schedule.main.running_max != RunningMax::Exact
        && let Some(why) = lower::why_not_lazy(&instance.kernel)
    {
        // Of a part nobody can tell: its state is not what the text stores.
        return Err(illegal(vec![lazy_reason(why)]));
    }
    let Launches { pieces, main, mut scratch, folded, assumption } = launches::launches(instance, schedule, arch)?;
    let given: Vec<Option<Plan>> = match given {
        None => vec![None; pieces.len()],
        Some(plans) if plans.len() == pieces.len() => plans.into_iter().map(Some).collect(),
        Some(plans) => return Err(Error::PlanCount { launches: pieces.len(), plans: plans.len() }),
    };
    let launches = pieces
        .into_iter()
        .zip(given)
        .enumerate()
        .map(|(number, (piece, given))| {
            let meets = piece.meets.then(|| meets(&schedule.launches));
            planned_launch(piece, given, (number == main, meets), arch)
        })
        .collect::<Result<Vec<_>, _>>()?;
    scratch.extend(launches.iter().filter_map(state_scratch));
    let mut reasons: Vec<Reason> = Vec::new();
    let mut assumptions: Vec<String> = Vec::new();
    for launch in &launches {
        reasons.extend(launch.reasons.iter().cloned());
        let assumed = launch.assumed.iter().map(|name| format!("{name} > 0"));
        assumptions.extend(assumed.filter(|a| !assumptions.contains(a)).collect::<Vec<_>>());
    }
    assumptions.extend(assumption);
    let facts = &instance.facts;
    if facts.alignment > 2 {
        let but: String = facts.aligned.iter().map(|(name, bytes)| format!(", those of {name} of {bytes}")).collect();
        assumptions.push(format!("addresses and strides of matrices are multiples of {} bytes{but}", facts.alignment));
    }
    if !instance.facts.wide && Reach::new(&instance.kernel, &instance.binding).may_be_wide() {
        assumptions.push("index arithmetic stays within 32 bits".into());
    }
    if assumptions.is_empty() {
        assumptions.push("nothing".into());
    }
    Ok(Planned { launches, main, scratch, folded, reasons, assumptions })
}

/// How programs that walk parts meet.
fn meets(launches: &LaunchKnobs) -> Meets {
    let by = if launches.fixup == Fixup::Semaphore { MeetBy::Semaphore } else { MeetBy::Cluster };
    Meets { by, parts: launches.split_k }
}

/// The memory of the states that go from part to part by a semaphore: one for all programs that
/// differ in their part only.
fn state_scratch(launch: &PlannedLaunch) -> Option<Scratch> {
    let meeting = launch.plan.meeting.as_ref().filter(|m| m.by == MeetBy::Semaphore)?;
    let programs = grid(&launch.piece.instance, &launch.piece.knobs).into_iter().skip(1);
    let mut shape: Vec<SizeTerm> = programs
        .map(|dim| match dim {
            GridDim::Each(term) => term,
            // ceil(((terms + constant) / divisor) / block)
            GridDim::Tiles(term, block) => {
                let (block, divisor) = (i64::from(block), term.divisor);
                SizeTerm { constant: term.constant + divisor * (block - 1), divisor: divisor * block, ..term }
            }
        })
        .collect();
    let words = meeting.state_bytes(launch.plan.computing_threads()) / 4;
    shape.push(SizeTerm { terms: Vec::new(), constant: words.into(), divisor: 1 });
    Some(Scratch { name: meeting.memory.clone(), elem: Elem::F32, shape })
}

/// Plans one launch, or takes the plan that is given. Of one that only follows or prepares, the
/// estimate of registers is no reason: what it loads is used at once.
fn planned_launch(
    piece: Piece,
    given: Option<Plan>,
    (is_main, meets): (bool, Option<Meets>),
    arch: &'static Arch,
) -> Result<PlannedLaunch, Error> {
    let Piece { name, instance, knobs: schedule, .. } = &piece;
    let of_launch = |reason: Reason| match is_main {
        true => reason,
        false => Reason::Beside { launch: name.clone(), reason: Box::new(reason) },
    };
    let (mut normal, assumed) = rewrite::normalize(instance, schedule);
    lower::make_twice(&mut normal, schedule);
    let mut reasons = static_reasons(instance, &normal, schedule, arch);
    if !reasons.is_empty() {
        let reasons = reasons.into_iter().map(of_launch).collect();
        return Err(Error::Illegal { arch: arch.name, reasons });
    }
    let plan = given.map_or_else(|| lower::lower(&normal, instance, schedule, meets, &assumed), Ok);
    let plan = plan.map_err(|error| match error {
        uneven @ Error::Uneven { .. } => {
            let reasons = uneven.into_reasons().into_iter().map(of_launch).collect();
            Error::Illegal { arch: arch.name, reasons }
        }
        other => other,
    })?;
    reasons.extend(plan.maps.iter().filter_map(|map| {
        let bytes = instance.facts.alignment_of(&map.tensor);
        let why = || format!("the plan has a tensor map of {}, which is aligned to {bytes} bytes of 16", map.tensor);
        (bytes < 16).then(|| Reason::Fault { why: why() })
    }));
    let shared_bytes = plan.shared_bytes();
    if shared_bytes as usize > arch.shared_per_block {
        let have = arch.shared_per_block as u64;
        reasons.push(Reason::Resource { of: Resource::SharedOfBlock, wanted: shared_bytes.into(), have });
    }
    let registers = estimate_registers(&plan, schedule);
    let threads = plan.threads();
    let of_thread = arch.registers_of_thread(threads, schedule.min_blocks);
    let most = match plan.computing().and_then(|role| role.registers) {
        _ if !plan.is_specialized() => 255,
        Some(asked) => asked,
        None => of_thread,
    };
    if is_main && registers > most {
        let of = Resource::RegistersOfThread;
        reasons.push(Reason::Resource { of, wanted: registers.into(), have: most.into() });
    }
    if plan.is_specialized() {
        reasons.extend(wgmma_reasons(&plan, of_thread, most));
    }
    // What a block is launched with, before roles move registers from one to the other.
    let asked: Option<u32> = plan.roles.iter().map(|role| Some(role.registers? * role.warps)).sum();
    let launched = asked.map_or(registers.min(of_thread), |asked| asked.div_ceil(threads / 32));
    let (blocks_per_sm, limit) = Resources::occupancy(arch, launched, shared_bytes, threads);
    reasons.extend(min_blocks_reason(schedule.min_blocks, shared_bytes, threads, arch));
    let predicted = Resources { shared_bytes, registers, threads, blocks_per_sm, limit };
    let reasons = reasons.into_iter().map(of_launch).collect();
    Ok(PlannedLaunch { plan, normal, predicted, assumed, reasons, piece })
}

/// Registers per thread: fragments at the widest moment, and addresses and the like. Preloaded
/// fragments are not among them: the compiler moves their loads down to where registers are free.
fn estimate_registers(plan: &Plan, schedule: &BlockKnobs) -> u32 {
    // Addresses and the like. Roles that only compute have few: at d 64 and 128 reads of pairs take no
    // more of them either (60 cases, of which 9 spill).
    let others = match plan.is_specialized() {
        true => 12,
        false => 20 + plan::reads_of_pairs(plan) + plan::copies_in_registers(plan),
    };
    // Columns of a gradient (d 48 to 128, 64 to 128 queries a step, 216 to 240 registers): ptxas 13.0
    // made products wait for each other with 8 and less to spare, in each of 5 cases, and with 13 and
    // more in none of 16; with late waits with 12 and less, in each of 5, and with 16 in none of 15.
    // That is with two streamed tiles. With four (`terms=product`) it did so with 12 in 6 of 10
    // cases, and with 16 and more in none of 90.
    let adds_across = plan.column_groups == 1 && plan.tiles.iter().any(|tile| tile.exchange.is_some());
    let of_terms = plan::streamed_tiles(plan) > 2;
    let of_products = match schedule.overlap {
        _ if !schedule.tensor_op.is_asynchronous() => 0,
        // No product is in flight between steps with `sum_lag=0`: with four streamed tiles 4 and
        // more to spare were enough in each of 12 cases (d 48 to 128; 4 bytes spilt in 2 of them).
        // With two it spilt up to 232 bytes in 11 of 12 that had 4 to 20.
        Overlap::Late if schedule.sum_lag == 0 && of_terms => 0,
        // With `sum_lag=1` products waited for each other with 4 to 12 to spare in 6 of 6 cases and
        // in none of 7 with 20; of these 2 spilt, which had further masks. With two it spilt 56 to
        // 84 bytes with 18, which costs little, and nothing with 34.
        Overlap::Late if adds_across && of_terms => 13,
        Overlap::Late => 8 + 2 * plan::streamed_tiles(plan),
        Overlap::Off if plan::products_of_a_step(plan) > 2 => 8,
        // Operands that stay for all steps, as rotated queries do, are needed twice where the loop has
        // two steps (d 32 to 128, 88 to 240 registers): products waited for each other in 66 of 71
        // cases that had fewer to spare, and in none of 98 that had more.
        Overlap::On => plan::lent_operands(plan),
        Overlap::Off => 0,
    };
    plan::peak(plan) + others + of_products
}

fn grid(instance: &Instance, schedule: &BlockKnobs) -> Vec<GridDim> {
    let kernel = &instance.kernel;
    let term = |size| SizeTerm::of(kernel, &instance.binding, size);
    let shared = i64::from(schedule.column_programs);
    let sharing = (shared > 1).then(|| GridDim::Each(SizeTerm { terms: Vec::new(), constant: shared, divisor: 1 }));
    kernel
        .grid()
        .iter()
        .map(|dim| match dim {
            ProgramDim::Each(size) => GridDim::Each(term(size)),
            ProgramDim::Tiles(axis) => {
                debug_assert_eq!(kernel.axes[*axis].kind, AxisKind::Program);
                GridDim::Tiles(term(&kernel.axes[*axis].extent), blocks::block(kernel, schedule, *axis))
            }
        })
        .chain(sharing)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Facts;
    use crate::plan::StmtOp;
    use flashtile_dsl::ir::{Binding, SourceText};

    #[test]
    fn a_schedule_whose_plan_is_wrong_is_not_legal() {
        let text = include_str!("../../runtime/kernels/causal_attention.rs");
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).expect("is well formed").remove(0);
        let binding = Binding::new(&kernel, Elem::F16, [("D", 64)]);
        let instance = Instance { facts: Facts::best(&kernel), kernel, binding };
        let (schedule, arch) = (Schedule::default(), Arch::named("sm_80").expect("in the table"));
        assert_eq!(check(&instance, &schedule, arch).reasons, []);
        let mut planned = planned(&instance, &schedule, arch).expect("is legal");
        planned.launches[0].plan.roles[0].body.retain(|stmt| !matches!(stmt.op, StmtOp::Copy { .. }));
        let legality = planned.legality();
        let unfilled = |r: &Reason| matches!(r, Reason::Fault { why } if why.contains("is read before it is filled"));
        let said = legality.reasons.iter().any(unfilled);
        assert!(said && !legality.is_legal(), "{legality:?}");
    }
}
