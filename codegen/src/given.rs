//! Plans that come and go: those of a schedule for whoever wants to look at them or edit them, and
//! code from plans that are given. [`generate_planned`] verifies the plans that are given as it
//! verifies all.

use crate::arch::Arch;
use crate::artifact::Generated;
use crate::error::Error;
use crate::generate::generate_planned;
use crate::instance::Instance;
use crate::plan::Plan;
use crate::planning::{planned, planned_from};
use crate::schedule::Schedule;

/// As [`crate::generate()`], from these plans in place of those that the launches of the schedule
/// have by themselves: one plan for each launch, in order. [`plans`] gives the launches' own. The
/// verifier judges the plans that are given as it judges any.
///
/// # Errors
/// As [`crate::generate()`]; [`Error::PlanCount`] for another number of plans,
/// [`Error::RefusedPlan`] with the verifier's reasons.
pub fn generate_from(
    plans: Vec<Plan>,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Generated, Error> {
    let planned = planned_from(plans, instance, schedule, arch)?;
    generate_planned(planned, instance, schedule, arch).map_err(|error| match error {
        Error::WrongPlan(faults) => Error::RefusedPlan(faults),
        other => other,
    })
}

/// The plans of the launches of an instance under a schedule, in order.
///
/// # Errors
/// As [`crate::generate()`].
pub fn plans(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Vec<Plan>, Error> {
    let planned = planned(instance, schedule, arch)?;
    if !planned.reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons: planned.reasons });
    }
    Ok(planned.launches.into_iter().map(|launch| launch.plan).collect())
}
