//! Code for a schedule: generated, then taken from the cache or compiled and kept there.

use flashtile_codegen::{Abi, Arch, Facts, Generated, Schedule};

use super::registers::SPILLED;
use super::{CallingContract, generate};
use crate::cache::{Cache, ModuleKey, ModuleRecord};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::toolchain::{Toolchain, ToolchainError};

/// Code for a schedule, ready to be loaded.
#[derive(Clone, Debug)]
pub struct Code {
    /// The schedule.
    pub schedule: Schedule,
    /// CUDA C.
    pub source: String,
    /// How to call it.
    pub contract: CallingContract,
    /// Compiled.
    pub module: ModuleRecord,
    /// Seconds that NVRTC took; 0 if the code came from the cache.
    pub compile_seconds: f64,
}

impl Code {
    /// How to call the launch that the knobs of the schedule are about.
    pub fn main(&self) -> &Abi {
        &self.contract.launches[self.contract.main]
    }

    /// Whether threads keep their values in registers, all but a few. Where the code that the cost
    /// model ranks first does not, a launch compares others.
    pub fn is_in_registers(&self) -> bool {
        self.module.report.stack <= SPILLED
    }
}

/// Generates the code of a schedule, and compiles it unless the cache has it: see
/// [`compile_generated`].
///
/// # Errors
/// [`crate::kernel::KernelError`] if the schedule is not legal, [`crate::toolchain::ToolchainError`].
pub fn compile(
    kernel: &BoundKernel,
    facts: &Facts,
    schedule: &Schedule,
    arch: &'static Arch,
    toolchain: &Toolchain,
    cache: &Cache,
) -> Result<Code> {
    let generated = generate(&kernel.instance(facts.clone()), schedule, arch)?;
    compile_generated(&kernel.ir().name, generated, toolchain, cache)
}

/// Compiles the code of the kernel of this name, unless the cache has it. NVRTC is looked for only
/// if it is needed, or named by the user: then code of another version is not taken from the cache.
///
/// # Errors
/// [`crate::toolchain::ToolchainError`].
pub fn compile_generated(kernel: &str, generated: Generated, toolchain: &Toolchain, cache: &Cache) -> Result<Code> {
    let key = ModuleKey::new(&generated.source, generated.arch);
    let (module, compile_seconds) = match cache.module(&key, toolchain.required_version()?) {
        Some(module) => (module, 0.0),
        None => {
            let compiled = toolchain.compile(&generated.source, &format!("{kernel}.cu"), generated.arch)?;
            let module =
                ModuleRecord { key, nvrtc: compiled.nvrtc, report: compiled.report, cubin: compiled.cubin, ptx: compiled.ptx };
            cache.keep_module(&module);
            (module, compiled.seconds)
        }
    };
    let contract = CallingContract::of(&generated);
    for abi in &contract.launches {
        // Registers are given to a thread in units of 8.
        let registers = module.report.entries.get(&abi.entry).copied().unwrap_or(module.report.registers);
        let (asked, launched) = (abi.registers, registers.next_multiple_of(8) * abi.threads);
        if asked > launched {
            return Err(ToolchainError::Registers { name: abi.entry.clone(), asked, launched }.into());
        }
    }
    Ok(Code { schedule: generated.schedule, source: generated.source, contract, module, compile_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_codegen::Arch;
    use flashtile_dsl::ir::Elem;

    /// Needs NVRTC: found, or installed once.
    #[test]
    fn code_is_compiled_once_and_then_comes_from_the_cache() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::with_warnings(dir.path(), |line| panic!("{line}"));
        let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
        let facts = Facts::best(kernel.ir());
        let arch = Arch::named("sm_80").expect("in the table");
        let compile =
            |cache: &Cache| compile(&kernel, &facts, &Schedule::default(), arch, &Toolchain::shared(), cache).expect("compiles");
        let first = compile(&cache);
        assert!(first.compile_seconds > 0.0 && first.module.report.registers > 32, "{:?}", first.module.report);
        assert_eq!(first.module.report.remarks, Vec::<String>::new());
        let second = compile(&cache);
        assert_eq!((second.compile_seconds, &second.module), (0.0, &first.module));
        assert_eq!(cache.list().expect("lists").len(), 1);
    }
}
