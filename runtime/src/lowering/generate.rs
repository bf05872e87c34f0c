//! The code generator's answers, with this crate's errors.

use std::collections::BTreeMap;

use flashtile_codegen::plan::Plan;
use flashtile_codegen::{Arch, Constants, Instance, Integers, Ranker, Reason, Schedule, TimeTerms};
pub use flashtile_codegen::{Generated, Launch as GeneratedLaunch, Machine, Ranking};

use flashtile_dsl::analysis::cost;

use crate::kernel::{BoundKernel, KernelError};

/// Whether a schedule is legal.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons.
pub fn check(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<(), KernelError> {
    let legality = flashtile_codegen::check(instance, schedule, arch);
    if legality.is_legal() { Ok(()) } else { Err(illegal(&instance.kernel.name, schedule, arch, legality.reasons)) }
}

/// Generates code.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons, or [`KernelError::Generate`].
pub fn generate(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Generated, KernelError> {
    flashtile_codegen::generate(instance, schedule, arch).map_err(|error| fault(error, &instance.kernel.name, schedule, arch))
}

/// As [`generate`], from these plans in place of the launches' own, one for each launch.
///
/// # Errors
/// As [`generate`]; [`KernelError::RefusedPlan`] with what the plan verifier says.
pub fn generate_from(
    plans: Vec<Plan>,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Generated, KernelError> {
    flashtile_codegen::generate_from(plans, instance, schedule, arch)
        .map_err(|error| fault(error, &instance.kernel.name, schedule, arch))
}

/// As [`generate`], from the plans that a ranker has made for a prediction, if these were its last.
///
/// # Errors
/// As [`generate`].
pub fn generate_with(
    ranker: &Ranker,
    kernel: &BoundKernel,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Generated, KernelError> {
    ranker.generate(schedule).map_err(|error| fault(error, &kernel.ir().name, schedule, arch))
}

fn fault(error: flashtile_codegen::Error, kernel: &str, schedule: &Schedule, arch: &Arch) -> KernelError {
    match error {
        flashtile_codegen::Error::Illegal { reasons, .. } => illegal(kernel, schedule, arch, reasons),
        flashtile_codegen::Error::RefusedPlan(faults) => {
            KernelError::RefusedPlan { kernel: kernel.to_owned(), arch: arch.name.to_owned(), faults }
        }
        other => KernelError::Generate { kernel: kernel.to_owned(), arch: arch.name.to_owned(), reason: other.to_string() },
    }
}

/// All legal schedules of the space with the seconds that the cost model predicts, best first.
///
/// # Errors
/// [`KernelError::NoSchedule`] with the reasons if none is legal.
pub fn rank(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Vec<(Schedule, f64)>, KernelError> {
    flashtile_codegen::rank(instance, arch, sizes, machine).map_err(|error| no_schedule(&instance.kernel.name, arch, &error))
}

/// As [`rank`], with what a ranker has planned before.
///
/// # Errors
/// As [`rank`].
pub fn rank_with(
    ranker: &Ranker,
    kernel: &BoundKernel,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Vec<(Schedule, f64)>, KernelError> {
    ranker.rank(sizes, machine).map_err(|error| no_schedule(&kernel.ir().name, arch, &error))
}

/// All schedules of the space: those of [`rank_with`], and those that are not legal with the reasons.
///
/// # Errors
/// [`KernelError::NoSchedule`] if no schedule could be, whatever its knobs.
pub fn ranking(
    ranker: &Ranker,
    kernel: &BoundKernel,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Ranking, KernelError> {
    ranker.ranking(sizes, machine).map_err(|error| no_schedule(&kernel.ir().name, arch, &error))
}

fn no_schedule(kernel: &str, arch: &Arch, error: &flashtile_codegen::Error) -> KernelError {
    let reasons = match error {
        flashtile_codegen::Error::NoLegalSchedule { reasons, .. } => reasons.clone(),
        _ => Vec::new(),
    };
    KernelError::NoSchedule { kernel: kernel.to_owned(), arch: arch.name.to_owned(), reason: error.to_string(), reasons }
}

/// The schedule that the cost model ranks first.
///
/// # Errors
/// As [`rank`].
pub fn default_schedule(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Schedule, KernelError> {
    Ok(rank(instance, arch, sizes, machine)?.into_iter().next().expect("a ranking is not empty").0)
}

/// What the predicted seconds of a call are made of: launches, and what the units of a multiprocessor do in each step.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons, or [`KernelError::Generate`].
pub fn terms(
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
    (sizes, integers): (&BTreeMap<String, i64>, &Integers),
    machine: &Machine,
) -> Result<TimeTerms, KernelError> {
    flashtile_codegen::prepare(instance, schedule, arch)
        .and_then(|prepared| prepared.terms(sizes, integers, machine, &Constants::FITTED))
        .map_err(|error| fault(error, &instance.kernel.name, schedule, arch))
}

fn illegal(kernel: &str, schedule: &Schedule, arch: &Arch, reasons: Vec<Reason>) -> KernelError {
    KernelError::IllegalSchedule {
        kernel: kernel.to_owned(),
        arch: arch.name.to_owned(),
        schedule: schedule.to_string(),
        reasons,
    }
}

/// Peak rates of a machine for a kernel's element types.
pub fn peak(kernel: &BoundKernel, arch: &Arch, machine: &Machine) -> cost::Machine {
    machine.peak(arch, kernel.binding())
}

/// Seconds below which no schedule can get: the work that the text asks for at the peak rates of the machine.
pub fn roofline(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, arch: &Arch, machine: &Machine) -> f64 {
    let (seconds, exact) = work(kernel, sizes, arch, machine);
    // Where counts are upper bounds there is no lower bound of the time.
    if exact { seconds } else { 0.0 }
}

/// Seconds of the work that the text asks for at the peak rates of the machine, at most: as if
/// masks and data hid nothing where they cannot be told.
pub fn most_work(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, arch: &Arch, machine: &Machine) -> f64 {
    work(kernel, sizes, arch, machine).0
}

/// Seconds of the work at the peak rates, and whether they are exact and not an upper bound.
fn work(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, arch: &Arch, machine: &Machine) -> (f64, bool) {
    let cost = cost::Workload { kernel: kernel.ir(), binding: kernel.binding(), sizes }.cost();
    (cost.roofline(&peak(kernel, arch, machine)).0, cost.exact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::Elem;

    /// What a prediction is made of adds up to the prediction, with one launch and with several.
    #[test]
    fn the_terms_of_a_prediction_add_up() {
        let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::Bf16, [("D", 64)]).expect("binds");
        let sizes = [("B", 1), ("H", 4), ("G", 4), ("M", 1000), ("N", 3000)].map(|(n, v)| (n.to_owned(), v)).into();
        let instance = kernel.instance(flashtile_codegen::Facts::best(kernel.ir()));
        let arch = Arch::named("sm_90a").expect("is in the table");
        let machine = Machine::typical(arch);
        for (text, launches) in [("block_m=64", 1), ("block_m=64,split_k=4", 2)] {
            let schedule: Schedule = text.parse().expect("a schedule");
            let terms = terms(&instance, &schedule, arch, (&sizes, &Integers::default()), &machine).expect("legal");
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
            assert!(
                near(terms.seconds, flashtile_codegen::predict(&instance, &schedule, arch, &sizes, &machine).expect("legal")),
                "{text}: {terms:?}"
            );
            assert_eq!(terms.launches.len(), launches, "{text}");
            let last = &terms.launches[launches - 1];
            assert!(near(last.begin + last.seconds, terms.seconds));
            for launch in &terms.launches {
                let steps: f64 = launch.steps.iter().map(|step| step.trips * step.cycles).sum();
                assert!(near(launch.outside.cycles + steps + launch.cut_cycles, launch.program_cycles), "{text}: {launch:?}");
                assert!(launch.seconds >= launch.compute.max(launch.memory) + launch.meeting, "{text}: {launch:?}");
                assert!(launch.memory >= launch.bytes / (machine.gbytes_per_s * 1e9) && launch.bytes > 0.0, "{text}: {launch:?}");
            }
            let main = &terms.launches[terms.main];
            assert!(main.cut_cycles > 0.0, "a causal mask cuts tiles");
            assert!(main.steps.iter().all(|step| step.tensor > 0.0 && step.trips > 1.0), "{main:?}");
        }
        let wrong = "block_m=24".parse().expect("a schedule");
        let error = super::terms(&instance, &wrong, arch, (&sizes, &Integers::default()), &machine).expect_err("is refused");
        assert!(matches!(error, KernelError::IllegalSchedule { .. }), "{error}");
    }
}
