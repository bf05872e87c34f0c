//! `flashtile bundle`: kernels compiled ahead of time, as a directory that C and Rust programs
//! launch from.

use std::path::PathBuf;

use clap::Args;
use flashtile::bundle::{BundleBuilder, BundleTarget, Manifest, Wanted};
use flashtile::cache::Cache;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::Output;
use crate::settings::{Numbers, Settings, Sizes};
use crate::subject::{DType, Subject, SubjectFlags};
use crate::target::{DEFAULT_ARCH, Target, TargetFlags, arch_named};

/// Flags of `flashtile bundle`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Built-ins' names (see `flashtile list`), FILE, or FILE:NAME
    #[arg(required = true, value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Element types of the kernels' type parameters; each kernel is bundled for each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16")]
    dtype: Vec<DType>,
    /// Constants and scalars of the kernels by name, such as D=128 or scale=0.1; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    set: Vec<Numbers>,
    /// Sizes by name, such as B=2,H=16,G=16,M=8192,N=8192,D=128, that schedules are chosen for; may
    /// be repeated, once for each shape. A kernel takes the sizes that it has; sizes that are not
    /// given are typical ones. Code for one shape runs for all
    #[arg(long, value_name = "NAME=SIZE,..")]
    shapes: Vec<Sizes>,
    /// Architectures, such as sm_80,sm_90a; by default sm_90a
    #[arg(long, value_name = "ARCH,..", value_delimiter = ',')]
    arch: Vec<String>,
    /// Knobs to change in the schedules that the cost model chooses for the shapes, as for
    /// `flashtile inspect`; by default tuned schedules are taken where there are some. General code
    /// keeps its own
    #[arg(long, value_name = "KNOB=VALUE,..")]
    schedule: Option<String>,
    /// Leave out the code for arguments of which nothing is known (misaligned, negative scalars,
    /// 64-bit indices): launches with such arguments are an error that names the fact
    #[arg(long)]
    no_general: bool,
    /// The directory to write, new or with a bundle in it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Compiles and writes.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let mut builder = BundleBuilder::new(global.toolchain(), Cache::shared());
    let archs = if flags.arch.is_empty() { vec![DEFAULT_ARCH.to_owned()] } else { flags.arch.clone() };
    let archs = archs.iter().map(|name| arch_named(name)).collect::<Result<Vec<_>>>()?;
    let all = subjects(flags)?;
    let knobs = TargetFlags { schedule: flags.schedule.clone(), ..TargetFlags::default() };
    let mut done: Vec<flashtile::BoundKernel> = Vec::new();
    for subject in &all {
        let bound = subject.bind(output)?;
        let sizes = subject.typical_sizes();
        let mut shape = Wanted::shape(&bound, &sizes)?;
        shape.facts.positive.retain(|name| subject.scalars.get(name).is_none_or(|&x| x > 0.0 && x.is_finite()));
        for &arch in &archs {
            let of_arch = Target::of(arch);
            let given = flags.schedule.is_some().then(|| knobs.schedule(&bound, &shape.facts, &of_arch, &sizes)).transpose()?;
            let target = BundleTarget { arch, machine: of_arch.machine, device: of_arch.key };
            builder.add(&bound, &target, &shape, given.as_ref())?;
            // A kernel has general code once, whatever its shapes.
            if !flags.no_general && !done.contains(&bound) {
                builder.add(&bound, &target, &Wanted::general(&bound, &sizes), None)?;
            }
        }
        done.push(bound);
    }
    let manifest = builder.write(&flags.out)?;
    tell(flags, &manifest, output)
}

/// Each kernel with each type and shape.
fn subjects(flags: &Flags) -> Result<Vec<Subject>> {
    let none = [Sizes::default()];
    let shapes = if flags.shapes.is_empty() { &none[..] } else { &flags.shapes[..] };
    let mut all = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for kernel in &flags.kernels {
        let opened = flashtile::Kernel::open(kernel)?;
        let ir = opened.ir();
        let is_known = |name: &str| ir.size_named(name).is_some() || ir.param_named(name).is_some();
        for shape in shapes {
            let kept = |list: &Sizes| Settings(list.0.iter().filter(|(name, _)| is_known(name)).cloned().collect());
            let set = flags.set.iter().map(|list| Settings(list.0.iter().filter(|(name, _)| is_known(name)).cloned().collect()));
            for &dtype in &flags.dtype {
                let subject =
                    SubjectFlags { kernel: kernel.clone(), dtype, set: set.clone().collect(), shape: vec![kept(shape)] };
                all.push(subject.open()?);
            }
        }
        let given = shapes.iter().flat_map(|list| list.names()).chain(flags.set.iter().flat_map(|list| list.names()));
        for name in given {
            if is_known(name) { seen.push(name) } else { unknown.push(name) }
        }
    }
    match unknown.into_iter().find(|name| !seen.contains(name)) {
        None => Ok(all),
        Some(name) => Err(Failure::Usage(format!("no kernel of the bundle has a size or scalar `{name}`"))),
    }
}

fn tell(flags: &Flags, manifest: &Manifest, output: &mut Output) -> Result<()> {
    let bytes: u64 = manifest.files.values().map(|file| file.bytes).sum();
    if output.json {
        return output.json(&json!({ "directory": flags.out.display().to_string(), "bytes": bytes, "manifest": manifest }));
    }
    let kernels = manifest.kernels.join(", ");
    output.text(format!("wrote {kernels} into {}: {} files, {bytes} bytes", flags.out.display(), manifest.files.len() + 1))
}
