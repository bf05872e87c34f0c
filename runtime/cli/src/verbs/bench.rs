//! `flashtile bench`: times a kernel as launches run it, and checks what it computes.

use clap::Args;
use flashtile::device::{DeviceKind, Origin};
use flashtile::tuner::{InputData, MeasureOptions, Measured, measure};
use flashtile::{BoundKernel, Device};
use flashtile_dsl::analysis::cost::Workload;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::gradient::{self, GradientFlags};
use crate::output::{Output, seconds};
use crate::subject::{Subject, SubjectFlags};
use crate::target::{PlanFlags, launch_options};
use crate::verbs::tune::Budget;

/// Flags of `flashtile bench`.
#[derive(Args, Debug)]
pub struct Flags {
    #[command(flatten)]
    subject: SubjectFlags,
    #[command(flatten)]
    pub gradient: GradientFlags,
    /// Device: cpu or cuda:N; by default the best one there is
    #[arg(long)]
    device: Option<String>,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Schedule to time: knobs on top of the defaults; without it the tuned schedule or the model's choice
    #[arg(long, value_name = "KNOB=VALUE,..")]
    schedule: Option<String>,
    #[command(flatten)]
    plan: PlanFlags,
    /// Runs that count
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Begin no run of a kernel later than this after its first
    #[arg(long, default_value = "10s", value_name = "TIME")]
    budget: Budget,
    /// Seed of the random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What an input holds where the kernel's text should not say it; may be repeated. Settings,
    /// apart by commas: scale=S, growth=G (rows grow from a tenth to G), normal, range=A..B,
    /// constant=C, ids=N, sorted-ids=N, even-ids=N, lengths[=N], bits=SHARE, permutation
    #[arg(long, value_name = "NAME:SETTING,..")]
    data: Vec<InputData>,
}

/// One result: what `--json` prints on a line.
#[derive(Serialize, Debug)]
pub struct Row {
    /// Kernel.
    pub kernel: String,
    /// Run-time sizes and constants.
    pub shape: BTreeMap<String, i64>,
    /// Element type.
    pub dtype: String,
    /// Device.
    pub device: String,
    /// Schedule; none on a device that compiles nothing.
    pub schedule: Option<String>,
    /// Where the schedule comes from.
    pub origin: Option<Origin>,
    /// Median in milliseconds.
    pub median_ms: f64,
    /// Shortest in milliseconds.
    pub min_ms: f64,
    /// Runs.
    pub repetitions: u32,
    /// Nominal FLOPs of the products per time.
    pub tflops: f64,
    /// Bytes of inputs and outputs per time.
    pub gbytes_per_s: f64,
    /// Largest error against the float64 oracle.
    pub max_error: f64,
    /// Whether every output is within the tolerance.
    pub right: bool,
}

impl Row {
    /// A result, with rates from the kernel's cost.
    pub fn new(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, device: &Device, measured: &Measured) -> Self {
        let cost = Workload { kernel: kernel.ir(), binding: kernel.binding(), sizes }.cost();
        let bytes = cost.algorithm.read + cost.algorithm.written;
        let time = measured.times.median;
        let mut shape = sizes.clone();
        shape.extend(kernel.binding().consts.clone());
        Self {
            kernel: kernel.ir().name.clone(),
            shape,
            dtype: kernel.binding().types.values().next().map_or("-", |e| e.name()).to_owned(),
            device: device.info().name.clone(),
            schedule: measured.variant.as_ref().map(|v| v.schedule.to_string()),
            origin: measured.variant.as_ref().map(|v| v.origin),
            median_ms: time * 1e3,
            min_ms: measured.times.min * 1e3,
            repetitions: measured.times.repetitions,
            tflops: cost.nominal_flops as f64 / time / 1e12,
            gbytes_per_s: bytes as f64 / time / 1e9,
            max_error: measured.max_error(),
            right: measured.is_right(),
        }
    }

    /// The shape as text.
    pub fn shape(&self) -> String {
        self.shape.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",")
    }

    /// TFLOP/s as text, with digits also for slow devices.
    pub fn rate(&self) -> String {
        rate(self.tflops)
    }
}

/// Times.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let mut subject = flags.subject.open()?;
    let sizes = subject.all_sizes()?;
    subject.consts = subject.bind(output)?.binding().consts.clone();
    flags.gradient.refuse_plan(&flags.plan)?;
    let subjects = gradient::subjects(&flags.gradient, &subject)?;
    let data = gradient::data_of(&subjects, &flags.data)?;
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => Device::best(),
    };
    if device.info().kind == DeviceKind::Emulator {
        let instead = "see what a launch does with inspect --emit profile, or give --device cuda:N or cpu";
        return Err(Failure::Usage(format!("times on the emulator mean nothing; {instead}")));
    }
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    let mut timed = Vec::new();
    for (subject, data) in subjects.iter().zip(&data) {
        let bound = subject.bind(output)?;
        let loaded = bound.on_with(&device, flags.plan.apply(options.clone(), &device, &bound)?)?;
        let measuring = MeasureOptions {
            repetitions: flags.repetitions,
            budget: flags.budget.0,
            seed: flags.seed,
            data: subject.input_data(data)?,
            warm_ups: if device.is_cuda() { 3 } else { 0 },
        };
        let sizes = subject.all_sizes()?;
        let measured = measure(&loaded, &sizes, &measuring)?;
        let row = Row::new(&bound, &sizes, &device, &measured);
        if output.json {
            output.json(&row)?;
        }
        timed.push((row, measured));
    }
    if !output.json {
        told(&timed, output)?;
    }
    if let ([_, backward @ ..], true) = (&*timed, flags.gradient.is_given()) {
        told_together(&subject, &sizes, backward, output)?;
    }
    timed.iter().try_for_each(|(_, measured)| wrong(measured))
}

/// A table of results, and their schedules.
fn told(timed: &[(Row, Measured)], output: &mut Output) -> Result<()> {
    let row = |(row, measured): &(Row, Measured)| {
        vec![
            row.kernel.clone(),
            row.shape(),
            row.dtype.clone(),
            row.device.clone(),
            seconds(measured.times.median),
            row.rate(),
            format!("{:.1}", row.gbytes_per_s),
            format!("{:.2e}", row.max_error),
        ]
    };
    let header = ["kernel", "shape", "dtype", "device", "median", "TFLOP/s", "GB/s", "max error"];
    output.table(&header, timed.iter().map(row))?;
    for (row, measured) in timed {
        if let Some(variant) = &measured.variant {
            let of = if timed.len() > 1 { format!(" of {}", row.kernel) } else { String::new() };
            let origin = format!("{:?}", variant.origin).to_lowercase();
            output.text(format!("schedule{of} ({origin}): {}", variant.schedule))?;
        }
    }
    Ok(())
}

/// What the backward kernels take together, at the rate of the products that they make.
fn told_together(
    subject: &Subject,
    sizes: &BTreeMap<String, i64>,
    backward: &[(Row, Measured)],
    output: &mut Output,
) -> Result<()> {
    let time: f64 = backward.iter().map(|(_, measured)| measured.times.median).sum();
    let tflops = backward.iter().map(|(row, measured)| row.tflops * measured.times.median).sum::<f64>() / time;
    match output.json {
        true => output.json(&json!({
            "gradient": subject.kernel.name(), "shape": sizes, "backward_ms": time * 1e3, "backward_tflops": tflops
        })),
        false => output.text(format!("backward: {}, {} TFLOP/s", seconds(time), rate(tflops))),
    }
}

/// TFLOP/s as text, with digits also for slow devices.
fn rate(tflops: f64) -> String {
    if tflops >= 1.0 { format!("{tflops:.1}") } else { format!("{tflops:.4}") }
}

/// A failure if an output is wrong.
pub fn wrong(measured: &Measured) -> Result<()> {
    let wrong: Vec<String> = measured.verdicts.iter().filter(|v| !v.passed()).map(ToString::to_string).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Verification(wrong.join("\n"))) }
}
