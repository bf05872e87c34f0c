//! The code generator's answers, with this crate's errors.

use std::collections::BTreeMap;

pub use flashtile_codegen::Generated;
use flashtile_codegen::{Arch, Instance, Schedule};

use crate::kernel::KernelError;

/// What the cost model knows of a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Multiprocessors.
    pub sms: u32,
    /// Clock in GHz.
    pub ghz: f64,
    /// Memory bandwidth in GB/s.
    pub gbytes_per_s: f64,
}

/// Whether a schedule is legal.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons.
pub fn check(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<(), KernelError> {
    let legality = flashtile_codegen::check(instance, schedule, arch);
    if legality.is_legal() { Ok(()) } else { Err(illegal(instance, schedule, arch, legality.reasons)) }
}

/// Generates code.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons, or [`KernelError::Generate`].
pub fn generate(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Generated, KernelError> {
    flashtile_codegen::generate(instance, schedule, arch).map_err(|error| match error {
        flashtile_codegen::Error::Illegal { reasons, .. } => illegal(instance, schedule, arch, reasons),
        other => {
            KernelError::Generate { kernel: instance.kernel.name.clone(), arch: arch.name.to_owned(), reason: other.to_string() }
        }
    })
}

/// All legal schedules of the sampled space.
pub fn space(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    let defaults = [Schedule::default()];
    defaults.into_iter().filter(|s| check(instance, s, arch).is_ok()).collect()
}

/// Seconds that the cost model predicts.
pub fn predict(_: &Instance, _: &Schedule, _: &'static Arch, _sizes: &BTreeMap<String, i64>, _machine: &Machine) -> f64 {
    f64::INFINITY
}

/// The cost model's choice.
///
/// # Errors
/// [`KernelError::NoSchedule`].
pub fn default_schedule(
    instance: &Instance,
    arch: &'static Arch,
    _sizes: &BTreeMap<String, i64>,
    _machine: &Machine,
) -> Result<Schedule, KernelError> {
    space(instance, arch).into_iter().next().ok_or_else(|| KernelError::NoSchedule {
        kernel: instance.kernel.name.clone(),
        arch: arch.name.to_owned(),
        reason: "no schedule of the space is legal".to_owned(),
    })
}

fn illegal(instance: &Instance, schedule: &Schedule, arch: &Arch, reasons: Vec<String>) -> KernelError {
    KernelError::IllegalSchedule {
        kernel: instance.kernel.name.clone(),
        arch: arch.name.to_owned(),
        schedule: schedule.to_string(),
        reasons,
    }
}
