//! `flashtile bench`: times a kernel as launches run it, and checks what it computes.

use clap::Args;
use flashtile::device::{DeviceKind, Origin};
use flashtile::tuner::{InputData, MeasureOptions, Measured, measure};
use flashtile::{BoundKernel, Device};
use flashtile_dsl::analysis::cost::Workload;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::{Output, seconds};
use crate::subject::SubjectFlags;
use crate::target::{PlanFlags, launch_options};
use crate::verbs::tune::Budget;

/// Flags of `flashtile bench`.
#[derive(Args, Debug)]
pub struct Flags {
    #[command(flatten)]
    subject: SubjectFlags,
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
    #[arg(long, default_value_t = 30, value_name = "N")]
    repetitions: u32,
    /// Begin no run later than this after the first
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
        if self.tflops >= 1.0 { format!("{:.1}", self.tflops) } else { format!("{:.4}", self.tflops) }
    }
}

/// Times.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let subject = flags.subject.open()?;
    let sizes = subject.all_sizes()?;
    let bound = subject.bind(output)?;
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => Device::best(),
    };
    if device.info().kind == DeviceKind::Emulator {
        let instead = "see what a launch does with inspect --emit profile, or give --device cuda:N or cpu";
        return Err(Failure::Usage(format!("times on the emulator mean nothing; {instead}")));
    }
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    let options = flags.plan.apply(options, &device, &bound)?;
    let loaded = bound.on_with(&device, options)?;
    let measuring = MeasureOptions {
        repetitions: flags.repetitions,
        budget: flags.budget.0,
        seed: flags.seed,
        data: subject.input_data(&flags.data),
        warm_ups: if device.is_cuda() { 3 } else { 0 },
    };
    let measured = measure(&loaded, &sizes, &measuring)?;
    let row = Row::new(&bound, &sizes, &device, &measured);
    if output.json {
        output.json(&row)?;
    } else {
        output.table(
            &["kernel", "shape", "dtype", "device", "median", "TFLOP/s", "GB/s", "max error"],
            [vec![
                row.kernel.clone(),
                row.shape(),
                row.dtype.clone(),
                row.device.clone(),
                seconds(measured.times.median),
                row.rate(),
                format!("{:.1}", row.gbytes_per_s),
                format!("{:.2e}", row.max_error),
            ]],
        )?;
        if let Some(variant) = &measured.variant {
            let origin = format!("{:?}", variant.origin).to_lowercase();
            output.text(format!("schedule ({origin}): {}", variant.schedule))?;
        }
    }
    wrong(&measured)
}

/// A failure if an output is wrong.
pub fn wrong(measured: &Measured) -> Result<()> {
    let wrong: Vec<String> = measured.verdicts.iter().filter(|v| !v.passed()).map(ToString::to_string).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Verification(wrong.join("\n"))) }
}
