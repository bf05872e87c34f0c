//! How kernels are compiled and which schedule they run with.

use flashtile_codegen::{Arch, Schedule};

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
    /// Generate code for this architecture, which may be older than the GPU's; it then runs through its PTX.
    pub arch: Option<&'static Arch>,
    /// How the emulator executes launches.
    pub emulation: Emulation,
}
