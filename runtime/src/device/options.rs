//! How kernels are compiled and which schedule they run with.

use std::sync::Arc;

use flashtile_codegen::plan::Plan;
use flashtile_codegen::{Arch, Facts, Schedule};

use super::Emulation;
use crate::cache::Cache;
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
    /// How the emulator executes launches.
    pub emulation: Emulation,
}

/// Plans to generate code from, such as edited ones: what [`flashtile_codegen::plans`] gives, one for each launch of a kernel.
/// They take the place of the plans of a schedule, which stands beside them.
#[derive(Clone, PartialEq, Debug)]
pub struct GivenPlans {
    /// The schedule that they were made under. It takes the place of [`LaunchOptions::schedule`].
    pub schedule: Schedule,
    /// What they take for granted of arguments. Launches with other arguments are refused.
    pub facts: Facts,
    /// The plans, in order.
    pub plans: Arc<[Plan]>,
}
