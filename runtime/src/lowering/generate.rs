//! The code generator's answers, with this crate's errors.

use std::collections::BTreeMap;

use flashtile_codegen::{Abi, Arch, Instance, Schedule};

use crate::kernel::KernelError;

/// Generated code and how to call it.
#[derive(Clone, PartialEq, Debug)]
pub struct Generated {
    /// CUDA C.
    pub source: String,
    /// How to call it.
    pub abi: Abi,
}

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

fn not_joined(instance: &Instance, arch: &Arch) -> KernelError {
    let reason = "the code generator is not joined yet".to_owned();
    KernelError::Generate { kernel: instance.kernel.name.clone(), arch: arch.name.to_owned(), reason }
}

/// Whether a schedule is legal.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons.
pub fn check(instance: &Instance, schedule: &Schedule, arch: &Arch) -> Result<(), KernelError> {
    let _ = schedule;
    Err(not_joined(instance, arch))
}

/// All legal schedules of the sampled space.
pub fn space(_instance: &Instance, _arch: &Arch) -> Vec<Schedule> {
    Vec::new()
}

/// Generates code.
///
/// # Errors
/// [`KernelError::IllegalSchedule`] with all reasons, or [`KernelError::Generate`].
pub fn generate(instance: &Instance, schedule: &Schedule, arch: &Arch) -> Result<Generated, KernelError> {
    check(instance, schedule, arch)?;
    Err(not_joined(instance, arch))
}

/// Seconds that the cost model predicts.
pub fn predict(_: &Instance, _: &Schedule, _: &Arch, _sizes: &BTreeMap<String, i64>, _machine: &Machine) -> f64 {
    f64::INFINITY
}

/// The cost model's choice.
///
/// # Errors
/// [`KernelError::NoSchedule`].
pub fn default_schedule(
    instance: &Instance,
    arch: &Arch,
    _sizes: &BTreeMap<String, i64>,
    _machine: &Machine,
) -> Result<Schedule, KernelError> {
    Err(not_joined(instance, arch))
}
