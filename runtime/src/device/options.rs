//! How kernels are compiled and which schedule they run with.

use std::sync::Arc;

use flashtile_codegen::plan::{Plan, PlanFile};
use flashtile_codegen::{Arch, Facts, Schedule};
use flashtile_dsl::ir::Binding;

use super::Emulation;
use crate::cache::Cache;
use crate::device::Carried;
use crate::kernel::{BoundKernel, KernelError};
use crate::toolchain::Toolchain;

/// How kernels are compiled and which schedule they run with. The default: the shared toolchain and cache, code for the
/// GPU at hand, and for each launch the tuned schedule if the cache has one, else the cost model's choice.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// Compiler.
    pub toolchain: Toolchain,
    /// Where compiled code and tuning results are kept.
    pub cache: Cache,
    /// A schedule for every launch, instead of the tuned one or the model's choice.
    pub schedule: Option<Schedule>,
    /// Plans for every launch, with their schedule, instead of those that the code generator makes.
    pub plans: Option<GivenPlans>,
    /// Generate code for this architecture, which may be older than the GPU's; it then runs through its PTX.
    pub arch: Option<&'static Arch>,
    /// Code of a bundle, in place of what would be chosen and compiled. [`crate::Bundle`] sets it.
    pub carried: Option<Carried>,
    /// How the emulator executes launches.
    pub emulation: Emulation,
}

/// Plans to generate code from, such as edited ones: what [`flashtile_codegen::plans`] gives, one
/// for each launch of a kernel. They take the place of the plans of a schedule, which stands beside
/// them.
#[derive(Clone, PartialEq, Debug)]
pub struct GivenPlans {
    /// The schedule that they were made under. It takes the place of [`LaunchOptions::schedule`].
    pub schedule: Schedule,
    /// What they take for granted of arguments. Launches with other arguments are refused.
    pub facts: Facts,
    /// The plans, in order.
    pub plans: Arc<[Plan]>,
}

impl GivenPlans {
    /// The plans of a file, for a kernel.
    ///
    /// # Errors
    /// [`KernelError::PlanOf`] if they are of another kernel, or of one with other types or
    /// constants.
    pub fn of(file: PlanFile, kernel: &BoundKernel) -> Result<Self, KernelError> {
        let PlanFile { kernel: name, binding, facts, schedule, plans, .. } = file;
        if name != kernel.ir().name || binding != *kernel.binding() {
            let of = |name: &str, binding| format!("`{name}` with {}", described(binding));
            return Err(KernelError::PlanOf { plan: of(&name, &binding), kernel: of(&kernel.ir().name, kernel.binding()) });
        }
        Ok(Self { schedule, facts, plans: plans.into() })
    }
}

/// Types and constants, as the text of a plan has them.
fn described(binding: &Binding) -> String {
    let types = binding.types.iter().map(|(name, elem)| format!("{name} = {}", elem.name()));
    let all: Vec<String> = types.chain(binding.consts.iter().map(|(name, n)| format!("{name} = {n}"))).collect();
    if all.is_empty() { "no types or constants".into() } else { all.join(", ") }
}
