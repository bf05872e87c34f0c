//! From plans to a file.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{ParamKind, TensorDecl};

use crate::abi::Abi;
use crate::arch::Arch;
use crate::artifact::{Generated, Launch};
use crate::emit::{self, Emission};
use crate::error::Error;
use crate::instance::Instance;
use crate::names;
use crate::plan::Plan;
use crate::planning::{Planned, PlannedLaunch, planned};
use crate::reason::Reason;
use crate::schedule::{Precompute, Schedule};
use crate::space;

/// Generates the code of an instance under a schedule.
pub fn generate(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Generated, Error> {
    let planned = planned(instance, schedule, arch).map_err(|error| or_precomputed(error, instance, schedule, arch))?;
    generate_planned(planned, instance, schedule, arch)
}

/// What no schedule can do with a text that computes all operands in the loop, as a reason against
/// this one, if computing operands ahead mends it.
fn or_precomputed(error: Error, instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Error {
    let Error::Unsupported { what, .. } = &error else { return error };
    let of_text = |what: &str| {
        let plain = planned(instance, &Schedule::default(), arch);
        matches!(plain, Err(Error::Unsupported { what: other, .. }) if other == what)
    };
    if schedule.launches.precompute != Precompute::Off || !of_text(what) {
        return error;
    }
    let can = |&way: &Precompute| {
        let ahead = schedule.clone().with_launches(|launches| launches.precompute = way);
        planned(instance, &ahead, arch).is_ok_and(|planned| planned.reasons.is_empty())
    };
    match [Precompute::B, Precompute::Ab].into_iter().find(can) {
        Some(way) => {
            let instead = format!("precompute={} computes it ahead", way.name());
            Error::Illegal { arch: arch.name, reasons: vec![Reason::text("precompute", what, Some(instead))] }
        }
        None => error,
    }
}

/// Generates code from the plans of an instance's launches under a schedule.
pub(crate) fn generate_planned(
    planned: Planned,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Generated, Error> {
    if !planned.reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons: planned.reasons });
    }
    let faults = planned.faults();
    if !faults.is_empty() {
        return Err(Error::WrongPlan(faults));
    }
    let early = |number| arch.dependent_launches && number > 0;
    let plans: Vec<Plan> = planned.launches.iter().map(|launch| names::in_c(&launch.plan)).collect();
    let abis: Vec<Abi> = planned.launches.iter().enumerate().map(|(n, launch)| launch.abi(&plans[n], early(n))).collect();
    let fallback = (!schedule.main.tensor_op.is_asynchronous()).then(|| space::fallback(instance, arch)).flatten();
    let emissions: Vec<Emission<'_>> = planned
        .launches
        .iter()
        .enumerate()
        .map(|(n, PlannedLaunch { piece, .. })| Emission {
            plan: &plans[n],
            instance: &piece.instance,
            arch,
            abi: &abis[n],
            wait: wait(&planned.launches, &abis, n),
            next_is_early: abis.get(n + 1).is_some_and(|next| next.early),
        })
        .collect();
    let head = emit::Head { instance, schedule, arch, assumptions: &planned.assumptions, fallback: fallback.as_deref() };
    let source = emit::emit(&head, &emissions)?;
    let launches = planned.launches.into_iter().zip(abis).map(|(launch, abi)| Launch {
        abi,
        predicted: launch.predicted,
        kernel: launch.piece.instance.kernel,
        name: launch.piece.name,
        knobs: launch.piece.knobs,
        normal: launch.normal,
        plan: launch.plan,
    });
    Ok(Generated {
        source,
        launches: launches.collect(),
        main: planned.main,
        scratch: planned.scratch,
        folded: planned.folded,
        schedule: schedule.clone(),
        arch: arch.name,
        assumptions: planned.assumptions,
        fallback,
    })
}

/// When a launch waits for those before it: in the end, if it touches nothing that they write and writes nothing that they touch.
fn wait(launches: &[PlannedLaunch], abis: &[Abi], number: usize) -> emit::LaunchWait {
    let (before, this) = (&launches[..number], &launches[number]);
    let tensors = |launch: &PlannedLaunch, only_written: bool| -> BTreeSet<String> {
        let wanted = |t: &TensorDecl| !only_written || t.direction.is_written();
        let params = launch.piece.instance.kernel.params.values();
        params.filter(|p| matches!(&p.kind, ParamKind::Tensor(t) if wanted(t))).map(|p| p.name.clone()).collect()
    };
    let meets = |other: &PlannedLaunch| {
        !tensors(other, true).is_disjoint(&tensors(this, false)) || !tensors(other, false).is_disjoint(&tensors(this, true))
    };
    if !abis[number].early {
        emit::LaunchWait::Never
    } else if this.plan.is_specialized() || before.iter().any(meets) {
        emit::LaunchWait::First
    } else {
        emit::LaunchWait::Last
    }
}
