//! `flashtile verify`: results against the float64 oracle, by the conformance suite or on shapes of one's own.

use std::collections::BTreeMap;

use clap::Args;
use flashtile::conformance::{self, Case, CaseResult};
use flashtile::tuner::{MeasureOptions, measure};
use flashtile::{Device, LaunchOptions};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::Output;
use crate::settings::{Numbers, Sizes};
use crate::subject::{DType, Subject, SubjectFlags};
use crate::target::launch_options;

/// Flags of `flashtile verify`.
#[derive(Args, Debug)]
pub struct Flags {
    /// A built-in's name, FILE, or FILE:NAME; one that the suite has runs its cases
    #[arg(required_unless_present = "all")]
    kernel: Option<String>,
    /// Run the whole conformance suite
    #[arg(long, conflicts_with = "kernel")]
    all: bool,
    /// Device: cpu or cuda:N; by default the best one there is
    #[arg(long)]
    device: Option<String>,
    /// Only cases whose name contains this, such as bf16 or D256; may be repeated, all must hold
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Only the cases that are quick even on slow devices
    #[arg(long)]
    small: bool,
    /// List the cases instead of running them
    #[arg(long)]
    list: bool,
    /// Check these shapes instead of the suite, such as B=1,H=2,G=1,M=113,N=203,D=64; may be repeated
    #[arg(long, alias = "shapes", value_name = "NAME=SIZE,..", conflicts_with = "all")]
    shape: Vec<Sizes>,
    /// With --shape or a kernel of one's own: constants by name; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    set: Vec<Numbers>,
    /// With --shape or a kernel of one's own: element type
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: DType,
    /// With --shape or a kernel of one's own: seed of the random inputs; a case of the suite has its own
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Run with this schedule: knobs on top of the defaults
    #[arg(long, value_name = "KNOB=VALUE,..")]
    schedule: Option<String>,
}

/// Lengths of walked axes in the shapes that kernels of one's own are checked on.
const RAGGED: [i64; 4] = [1, 7, 113, 203];

/// Verifies.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let in_suite = flags.kernel.as_ref().is_none_or(|name| conformance::cases().iter().any(|case| case.kernel == *name));
    if flags.list && in_suite && flags.shape.is_empty() {
        return chosen(flags).iter().try_for_each(|case| list(case, output));
    }
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => Device::best(),
    };
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    match (&flags.kernel, in_suite && flags.shape.is_empty()) {
        (Some(kernel), false) => shapes(flags, kernel, &device, &options, output),
        _ => suite(flags, &device, &options, output),
    }
}

fn chosen(flags: &Flags) -> Vec<Case> {
    let mut cases = conformance::cases();
    cases.retain(|case| {
        let name = case.name();
        flags.kernel.as_ref().is_none_or(|kernel| case.kernel == *kernel)
            && (!flags.small || case.small)
            && flags.filter.iter().all(|text| name.contains(text))
    });
    cases
}

fn list(case: &Case, output: &mut Output) -> Result<()> {
    match output.json {
        true => output.json(&json!({ "case": case.name(), "seed": case.seed(), "small": case.small })),
        false => output.text(format!("{} seed={:#x}", case.name(), case.seed())),
    }
}

/// Runs cases of the suite, side by side.
fn suite(flags: &Flags, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let cases = chosen(flags);
    if cases.is_empty() {
        return Err(Failure::Usage("no case of the suite is left; see `flashtile verify --all --list`".to_owned()));
    }
    if device.is_cuda() {
        options.toolchain.nvrtc()?; // one clear error instead of one per case
    }
    let bar = output.progress(cases.len(), "verifying");
    let report = conformance::run_watched(device, options, &cases, |result| {
        bar.set_message(result.name.clone());
        bar.inc(1);
    });
    bar.finish_and_clear();
    for (case, result) in cases.iter().zip(&report.cases) {
        tell(case, result, output)?;
    }
    let failed = report.cases.iter().filter(|result| result.failure.is_some()).count();
    let summary = format!("{} of {} cases passed on {device} ({})", cases.len() - failed, cases.len(), device.info().name);
    match output.json {
        true => output.json(&json!({ "passed": cases.len() - failed, "cases": cases.len(), "device": device.to_string() }))?,
        false => output.text(&summary)?,
    }
    if failed == 0 { Ok(()) } else { Err(Failure::Verification(format!("{failed} of {} cases failed on {device}", cases.len()))) }
}

/// With JSON every case, else only those that failed.
fn tell(case: &Case, result: &CaseResult, output: &mut Output) -> Result<()> {
    if output.json {
        let CaseResult { name, outputs, failure } = result;
        return output.json(&json!({ "case": name, "seed": case.seed(), "outputs": outputs, "failure": failure }));
    }
    match &result.failure {
        Some(failure) => output.text(format!("failed {} seed={:#x}: {failure}", result.name, case.seed())),
        None => Ok(()),
    }
}

/// Checks a kernel on shapes: those given, else ragged ones.
fn shapes(flags: &Flags, kernel: &str, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let subject =
        |shape: Vec<Sizes>| SubjectFlags { kernel: kernel.to_owned(), dtype: flags.dtype, set: flags.set.clone(), shape }.open();
    let mut subjects: Vec<(Subject, BTreeMap<String, i64>)> = Vec::new();
    if flags.shape.is_empty() {
        let subject = subject(Vec::new())?;
        subjects.extend(RAGGED.iter().enumerate().map(|(round, _)| (subject.clone(), subject.small_sizes(&RAGGED, round))));
    } else {
        for shape in &flags.shape {
            let subject = subject(vec![shape.clone()])?;
            let sizes = subject.all_sizes()?;
            subjects.push((subject, sizes));
        }
    }
    let mut wrong = Vec::new();
    for (subject, sizes) in &subjects {
        let bound = subject.bind(output)?;
        let loaded = bound.on_with(device, options.clone())?;
        let once = MeasureOptions { repetitions: 1, warm_ups: 0, seed: flags.seed, ..MeasureOptions::default() };
        let verdicts = measure(&loaded, sizes, &once)?.verdicts;
        let shape = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
        for verdict in &verdicts {
            let line = format!("{kernel} {shape} seed={}: {verdict}", flags.seed);
            match output.json {
                true => output.json(&json!({ "kernel": kernel, "shape": sizes, "seed": flags.seed, "output": verdict }))?,
                false => output.text(&line)?,
            }
            if !verdict.passed() {
                wrong.push(line);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Verification(format!("{} outputs are wrong", wrong.len()))) }
}
