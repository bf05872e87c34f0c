//! `flashtile demo`: the main job from end to end: a kernel's text, its check, its code, its time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flashtile::cache::Cache;
use flashtile::device::DeviceKind;
use flashtile::kernel::BUILTINS;
use flashtile::lowering;
use flashtile::tuner::{MeasureOptions, Measured, TuneOptions, measure, tune};
use flashtile::{BoundKernel, Device, Elem, Facts, Kernel};
use serde_json::json;

use super::bench::{Row, wrong};
use super::tune::on_event;
use crate::failure::{Failure, Result};
use crate::files;
use crate::flags::GlobalFlags;
use crate::output::{self, Output, seconds};
use crate::target::TargetFlags;

/// Flags of `flashtile demo`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Device: cpu or cuda:N; by default the best one there is
    #[arg(long)]
    device: Option<String>,
}

/// The kernel of the demonstration.
const KERNEL: &str = "causal_attention";
/// Head dim on a GPU and on the CPU.
const HEAD_DIM: [i64; 2] = [128, 64];
/// Sizes on a GPU and on the CPU, which is slower by orders of magnitude.
const SIZES: [(&str, [i64; 2]); 5] = [("B", [2, 1]), ("H", [16, 4]), ("G", [16, 2]), ("M", [4096, 512]), ("N", [4096, 512])];
/// Time for tuning on a GPU.
const TUNING: Duration = Duration::from_secs(20);

/// Generated code of the demonstration.
struct Code {
    arch: &'static str,
    schedule: String,
    path: PathBuf,
    /// What NVRTC made of it, in words.
    compiled: String,
}

/// Demonstrates.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => best(global, output)?,
    };
    if device.info().kind == DeviceKind::Emulator {
        return Err(Failure::Usage(
            "the demonstration tells times, which mean nothing on the emulator; give cpu or cuda:N".to_owned(),
        ));
    }
    let (gpu, place) = (0, usize::from(!device.is_cuda()));
    let text = BUILTINS.iter().find(|b| b.name == KERNEL).map(|b| b.text).unwrap_or_default();
    let bind = |place: usize| Kernel::builtin(KERNEL)?.bind(Elem::Bf16, [("D", HEAD_DIM[place])]);
    let sizes_of = |place: usize| -> BTreeMap<String, i64> {
        SIZES.iter().map(|(name, sizes)| ((*name).to_owned(), sizes[place])).collect()
    };
    let (bound, sizes) = (bind(place)?, sizes_of(place));
    if !output.json {
        output.text(format!("The kernel, as it is written:\n\n{text}"))?;
        output.text(format!("Device: {device}, {}", device.info().name))?;
    }
    // Code is for a shape that is worth a GPU, also where the CPU then runs a smaller one.
    let code = generate(&bind(gpu)?, &sizes_of(gpu), global)?;
    if !output.json {
        let shape: Vec<String> = sizes_of(gpu).iter().map(|(name, size)| format!("{name}={size}")).collect();
        output.text(format!("Code for {}, {},D={}: {}", code.arch, shape.join(","), HEAD_DIM[gpu], code.compiled))?;
    }
    let loaded = bound.on_with(&device, global.launch_options())?;
    if device.is_cuda() {
        tune_briefly(&bound, &sizes, &device, global, output)?;
    }
    let measuring = MeasureOptions {
        repetitions: if device.is_cuda() { 30 } else { 5 },
        warm_ups: if device.is_cuda() { 3 } else { 0 },
        budget: Duration::from_secs(5),
        ..MeasureOptions::default()
    };
    let measured = measure(&loaded, &sizes, &measuring)?;
    if !output.json {
        for verdict in &measured.verdicts {
            output.text(format!("Checked against float64: {verdict}"))?;
        }
    }
    summary(&Row::new(&bound, &sizes, &device, &measured), &measured, &code, output)?;
    wrong(&measured)
}

/// The best device that can be used to the end: a GPU is of no use without NVRTC.
fn best(global: &GlobalFlags, output: &mut Output) -> Result<Device> {
    let device = Device::best();
    if device.is_cuda() && global.toolchain().nvrtc().is_err() {
        output.note(format!("note: {device} is there, but NVRTC is not (see `flashtile doctor`); the CPU is used"));
        return Ok(Device::cpu());
    }
    Ok(device)
}

/// A directory for the source: in the cache, or, where that cannot be used, a new one that nobody can have prepared.
fn directory(cache: &Cache) -> Result<PathBuf> {
    if let (Ok(()), Some(directory)) = (cache.probe(), cache.directory()) {
        let directory = directory.join("demo");
        files::make_directory(&directory)?;
        return Ok(directory);
    }
    let made = tempfile::Builder::new().prefix("flashtile-demo-").tempdir();
    made.map(tempfile::TempDir::keep).map_err(|e| Failure::io("create a directory in", &std::env::temp_dir(), &e))
}

/// Generates code for the GPU, or for a typical one, writes it to a file, and compiles it if NVRTC can be had.
fn generate(bound: &BoundKernel, sizes: &BTreeMap<String, i64>, global: &GlobalFlags) -> Result<Code> {
    let target = TargetFlags::default().target()?;
    let facts = Facts::best(bound.ir());
    let schedule = TargetFlags::default().schedule(bound, &facts, &target, sizes)?;
    let generated = lowering::generate(&bound.instance(facts), &schedule, target.arch)?;
    let cache = Cache::shared();
    let path = directory(&cache)?.join(format!("{KERNEL}_{}.cu", target.arch));
    files::write(&path, generated.source.as_bytes())?;
    let compiled = match lowering::compile_generated(&bound.ir().name, generated, &global.toolchain(), &cache) {
        Ok(code) => {
            let report = &code.module.report;
            let spills = report.spill_stores + report.spill_loads;
            let time = match code.compile_seconds {
                0.0 => "taken from the cache".to_owned(),
                s => format!("compiled by NVRTC in {}", seconds(s)),
            };
            format!(
                "{time}; {} registers, {spills} bytes of spills, {} bytes of shared memory",
                report.registers,
                code.main().shared_bytes
            )
        }
        Err(flashtile::Error::Toolchain(error)) => {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default().trim_end_matches(": looked for it in");
            format!("generated, but not compiled: {first} (`flashtile doctor` says how to get it)")
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Code { arch: target.arch.name, schedule: schedule.to_string(), path, compiled })
}

fn tune_briefly(
    bound: &BoundKernel,
    sizes: &BTreeMap<String, i64>,
    device: &Device,
    global: &GlobalFlags,
    output: &mut Output,
) -> Result<()> {
    let bar = output.progress(0, "tuning");
    let options =
        TuneOptions { budget: TUNING, toolchain: global.toolchain(), on_event: on_event(bar.clone()), ..TuneOptions::default() };
    let report = tune(bound, sizes, device, &options);
    bar.finish_and_clear();
    let report = report?;
    if !output.json {
        let tried = report.record.candidates.iter().filter(|c| c.tried()).count();
        let source = if report.from_cache { "from the cache".to_owned() } else { format!("in {:.1} s", report.seconds) };
        output.text(format!("Tuned {source}: {tried} candidates tried, best {}", seconds(report.seconds_per_run())))?;
    }
    Ok(())
}

fn summary(row: &Row, measured: &Measured, code: &Code, output: &mut Output) -> Result<()> {
    let worst = measured.verdicts.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let (error, allowed) = worst.map_or((0.0, 0.0), |v| (v.max_error, v.bound.max()));
    if output.json {
        return output.json(&json!({
            "result": row,
            "tolerance": allowed,
            "arch": code.arch,
            "source": code.path,
            "source_schedule": code.schedule,
            "compiled": code.compiled,
        }));
    }
    // The CPU executes the tile IR itself: no schedule plays a part.
    let schedule = row.schedule.clone().unwrap_or_else(|| "none: the tile IR is executed".to_owned());
    let rows = [
        ("kernel", row.kernel.clone()),
        ("shape", format!("{} {}", row.shape(), row.dtype)),
        ("device", row.device.clone()),
        ("schedule", schedule.replace(',', ", ")),
        ("max error", format!("{error:.2e} (allowed {allowed:.2e})")),
        ("time", seconds(measured.times.median)),
        ("TFLOP/s", row.rate()),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    output.text(output::table(&["", if row.right { "checked and timed" } else { "timed, and WRONG" }], rows))?;
    output.text(format!(
        "Generated source: {}\n\nTry next:\n  \
         flashtile inspect {KERNEL} --emit mask          what is skipped, and why\n  \
         flashtile inspect {KERNEL} --emit layout        a tile in shared memory with its banks\n  \
         flashtile tune {KERNEL} --arch sm_90a --shape B=2,H=16,G=16,M=8192,N=8192,D=128\n  \
         flashtile verify {KERNEL} --small               the conformance suite\n  \
         flashtile doctor                                        what this machine has, and how to get the rest",
        code.path.display()
    ))
}

/// The share of the allowed error that an output has.
fn share(verdict: &flashtile::verify::OutputVerdict) -> f64 {
    verdict.max_error / verdict.bound.max().max(f64::MIN_POSITIVE)
}
