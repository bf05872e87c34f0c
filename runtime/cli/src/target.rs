//! Which architecture and schedule: from flags to what the code generator takes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use flashtile::cache::{Bucket, Cache, DeviceKey, TuningKey};
use flashtile::device::{DeviceInfo, DeviceKind, EmulatedCode, Emulation, GivenPlans, machine_of};
use flashtile::emulator::Options;
use flashtile::kernel::{BUILTINS, KernelError};
use flashtile::lowering::{self, Machine};
use flashtile::tuner::model_key;
use flashtile::{ARCHS, Arch, BoundKernel, Device, Elem, Facts, LaunchOptions, Schedule};
use flashtile_codegen::plan::PlanFile;
use flashtile_codegen::{closest, knobs_set, says_all};

use crate::failure::{Failure, Result};
use crate::files;
use crate::flags::GlobalFlags;
use crate::settings::only_once;

/// Architecture of code where there is neither a flag nor a GPU.
pub const DEFAULT_ARCH: &str = "sm_90a";

/// Flags that say what code is generated for and how.
#[derive(Args, Clone, Debug, Default)]
pub struct TargetFlags {
    /// Architecture, such as sm_80; by default that of the first GPU, or sm_90a where there is none
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<String>,
    /// Knobs to change in the schedule that the cost model chooses (see `flashtile list --knobs`):
    /// `knob=value` of the main launch, `combine.warps=2` of another one. Behind `defaults,` it is
    /// the defaults that are changed
    #[arg(long, value_name = "KNOB=VALUE,..")]
    pub schedule: Option<String>,
    /// Start from the schedule that tuning found for this shape, not from the cost model's choice
    #[arg(long, conflicts_with = "plan")]
    pub tuned: bool,
}

/// Flags that say how the emulator executes.
#[derive(Args, Clone, Debug, Default)]
pub struct EmulationFlags {
    /// On the emulator: when asynchronous operations take effect (landing=late, early or random), which warp goes on
    /// (order=forward, backward, rotating or random), and seed=N; by default landing=late,order=forward
    #[arg(long, value_name = "KEY=VALUE,..")]
    emulate: Option<String>,
    /// On the emulator: execute this code in place of what is generated, such as an edited copy of it: CUDA C, or PTX if its
    /// name ends with .ptx
    #[arg(long, value_name = "FILE")]
    code: Option<PathBuf>,
    /// On the emulator: a block that executes so many instructions of warps while no warp writes memory, passes a barrier or
    /// reads new memory is in an endless loop, which is a fault; by default 4194304. A loop that has effects and reads no new
    /// memory is one after 16 times as many
    #[arg(long, value_name = "N")]
    max_steps: Option<std::num::NonZeroU64>,
}

impl EmulationFlags {
    /// Whether one of them is there.
    pub fn is_given(&self) -> bool {
        self.emulate.is_some() || self.code.is_some() || self.max_steps.is_some()
    }

    /// The file of code that is executed in place of what is generated.
    pub fn code(&self) -> Option<&Path> {
        self.code.as_deref()
    }

    /// What they say, for a device.
    pub fn emulation(&self, device: &Device) -> Result<Emulation> {
        if self.is_given() && device.info().kind != DeviceKind::Emulator {
            let flags = "--emulate, --code and --max-steps";
            return Err(Failure::Usage(format!("{flags} have no meaning on {device}; give --device emulator")));
        }
        let options = self.emulate.as_deref().unwrap_or_default().parse::<Options>();
        let mut options = options.map_err(|e| Failure::Usage(e.to_string()))?;
        if let Some(steps) = self.max_steps {
            options.stall_limit = steps.get();
        }
        let code = |path: &PathBuf| -> Result<EmulatedCode> {
            let text = Arc::from(files::read_text(path)?);
            let is_ptx = path.extension().is_some_and(|extension| extension == "ptx");
            Ok(if is_ptx { EmulatedCode::Ptx(text) } else { EmulatedCode::Cuda(text) })
        };
        Ok(Emulation { options, code: self.code.as_ref().map(code).transpose()? })
    }
}

/// The flag that gives a plan in place of the compiler's.
#[derive(Args, Clone, Debug, Default)]
pub struct PlanFlags {
    /// Generate code from the plan in this file, such as an edited one that `inspect --emit plan`
    /// printed. It names its schedule and architecture, and the types and constants of the kernel
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "arch"])]
    plan: Option<PathBuf>,
}

impl PlanFlags {
    /// Whether a plan is given.
    pub fn is_given(&self) -> bool {
        self.plan.is_some()
    }

    /// The path of the file.
    pub fn path(&self) -> Option<&Path> {
        self.plan.as_deref()
    }

    /// The file, for a kernel of this text.
    pub fn read(&self, kernel: &BoundKernel) -> Result<Option<PlanFile>> {
        let Some(path) = &self.plan else { return Ok(None) };
        let text = files::read_text(path)?;
        let wrong = |error: &dyn Display| Failure::Usage(format!("{}: {error}", path.display()));
        let read = |source| PlanFile::read(&text, source).map_err(|error| wrong(&error));
        // Another kernel is named before lines of its text are looked up in this one's.
        GivenPlans::of(read(None)?, kernel)?;
        let file = read(Some(&kernel.ir().source))?;
        // Where the compiler has no plans under this schedule, generating code says why.
        if let Ok(own) = flashtile_codegen::plans(&kernel.instance(file.facts.clone()), &file.schedule, file.arch) {
            file.check_programs(&own).map_err(|error| wrong(&error))?;
        }
        Ok(Some(file))
    }

    /// Launches from the plan, if one is given.
    pub fn apply(&self, options: LaunchOptions, device: &Device, kernel: &BoundKernel) -> Result<LaunchOptions> {
        let Some(file) = self.read(kernel)? else { return Ok(options) };
        if !device.compiles() {
            let what = format!("{device} compiles nothing, so --plan has no meaning; give --device cuda:N or emulator");
            return Err(Failure::Usage(what));
        }
        let arch = Some(file.arch);
        Ok(LaunchOptions { arch, plans: Some(GivenPlans::of(file, kernel)?), ..options })
    }
}

/// The architecture of this name.
pub fn arch_named(name: &str) -> Result<&'static Arch> {
    let known = || ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    Ok(Arch::named(name).ok_or_else(|| KernelError::UnknownArchitecture { name: name.to_owned(), known: known() })?)
}

/// What code is generated for.
#[derive(Clone, Debug)]
pub struct Target {
    /// The architecture.
    pub arch: &'static Arch,
    /// The machine of the cost model: the GPU, or a typical one.
    pub machine: Machine,
    /// What tuning results are kept under: the GPU, or the typical machine.
    pub key: DeviceKey,
}

impl Target {
    /// Code for this architecture: for the first GPU if it is of it, else for a typical one.
    pub fn of(arch: &'static Arch) -> Self {
        Self::on(arch, Device::cuda(0).ok().map(|d| d.info().clone()))
    }

    fn on(arch: &'static Arch, gpu: Option<DeviceInfo>) -> Self {
        let gpu = gpu.filter(|info| arch_of(info) == Some(arch));
        let machine = machine_of(arch, gpu.as_ref().and_then(|info| info.gpu.as_ref()));
        let key = gpu.map_or_else(|| model_key(arch), |info| info.key());
        Self { arch, machine, key }
    }
}

/// The architecture of a GPU.
fn arch_of(info: &DeviceInfo) -> Option<&'static Arch> {
    info.gpu.as_ref().and_then(|gpu| Arch::for_capability(gpu.capability.0, gpu.capability.1))
}

impl TargetFlags {
    /// The architecture asked for, else that of the first GPU, else the default.
    pub fn target(&self) -> Result<Target> {
        let gpu = Device::cuda(0).ok().map(|d| d.info().clone());
        let of_gpu = gpu.as_ref().and_then(arch_of);
        let arch = match &self.arch {
            Some(name) => arch_named(name)?,
            None => of_gpu.or_else(|| Arch::named(DEFAULT_ARCH)).expect("the default is in the table"),
        };
        Ok(Target::on(arch, gpu))
    }

    /// The schedule for these sizes: the best by the model of those that have the knobs asked for, or what tuning found with
    /// these knobs changed. Where the model knows no such schedule, its choice or the defaults with the knobs changed; if that is not
    /// legal, generating code says why.
    pub fn schedule(
        &self,
        kernel: &BoundKernel,
        facts: &Facts,
        target: &Target,
        sizes: &BTreeMap<String, i64>,
    ) -> Result<Schedule> {
        let text = self.schedule.as_deref().unwrap_or_default();
        only_once(knobs_set(text))?;
        // Unknown knobs are told first: they are wrong whatever the model chooses.
        let given = Schedule::default().with(text)?;
        if says_all(text) {
            return Ok(given);
        }
        if self.tuned {
            return Ok(tuned(kernel, facts, target, sizes)?.with(text)?);
        }
        let instance = kernel.instance(facts.clone());
        let ranked = match lowering::rank(&instance, target.arch, sizes, &target.machine) {
            // What a person gives may be legal where nothing is that the model knows.
            Err(KernelError::NoSchedule { .. }) if !text.is_empty() => Vec::new(),
            ranked => ranked?,
        };
        let legal = |schedule: &Schedule| lowering::check(&instance, schedule, target.arch).is_ok();
        Ok(closest(ranked.iter().map(|(schedule, _)| schedule), text, legal)?)
    }
}

/// What tuning found for the bucket of these sizes.
fn tuned(kernel: &BoundKernel, facts: &Facts, target: &Target, sizes: &BTreeMap<String, i64>) -> Result<Schedule> {
    let ir = kernel.ir();
    let bucket = Bucket::of(sizes.iter().map(|(name, &size)| (name.as_str(), size)));
    let (binding, device) = (kernel.binding().clone(), target.key.clone());
    let key = TuningKey::new((&ir.name, &kernel.fingerprint()), binding, facts.clone(), bucket, target.arch.name, device);
    let record = Cache::shared().tuning(&key);
    record.as_ref().and_then(|r| r.winning()).map(|w| w.schedule.clone()).ok_or_else(|| {
        let shape: Vec<String> = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        let (arch, shape) = (target.arch, shape.join(","));
        Failure::Usage(format!(
            "nothing is tuned for {} {shape} on {}; run `flashtile tune {} --arch {arch} --shape {shape}`",
            ir.name,
            target.key.name,
            arguments_of(kernel),
        ))
    })
}

/// What a command line says of a kernel and its binding.
fn arguments_of(kernel: &BoundKernel) -> String {
    let (ir, binding) = (kernel.ir(), kernel.binding());
    let is_builtin = BUILTINS.iter().any(|builtin| builtin.name == ir.name && builtin.file == ir.source.name);
    let named = if is_builtin { ir.name.clone() } else { format!("{}:{}", ir.source.name, ir.name) };
    let types = binding.types.values().find(|elem| **elem != Elem::Bf16).map(|elem| format!(" --dtype {}", elem.name()));
    let consts: Vec<String> = binding.consts.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let set = if consts.is_empty() { String::new() } else { format!(" --set {}", consts.join(",")) };
    format!("{named}{}{set}", types.unwrap_or_default())
}

/// How launches on a device are compiled, with the architecture and the schedule that flags ask for.
pub fn launch_options(
    global: &GlobalFlags,
    device: &Device,
    arch: Option<&str>,
    schedule: Option<&str>,
) -> Result<LaunchOptions> {
    let mut options = global.launch_options();
    only_once(knobs_set(schedule.unwrap_or_default()))?;
    options.arch = arch.map(arch_named).transpose()?;
    options.schedule = schedule.map(str::parse).transpose()?;
    if !device.compiles() && (options.arch.is_some() || options.schedule.is_some()) {
        let what = format!("{device} compiles nothing, so --arch and --schedule have no meaning; give another --device");
        return Err(Failure::Usage(what));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_architecture_names_those_that_there_are() {
        let error = arch_named("sm_42").expect_err("there is none").to_string();
        assert!(error.starts_with("`sm_42` is not an architecture; expected sm_75, sm_80"), "{error}");
        assert_eq!(arch_named("sm_90").expect("an alias").name, "sm_90a");
    }
}
