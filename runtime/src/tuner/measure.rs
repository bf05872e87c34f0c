//! Times a kernel as launches run it, and judges what it computes. Unlike tuning it chooses nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::InputData;
use super::gate::Gate;
use super::inputs::{Inputs, Value, all_sizes};
use super::search::median;
use crate::cache::Measurement;
use crate::device::cuda::{Cuda, Timer};
use crate::device::{Device, VariantInfo};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::launch::LoadedKernel;
use crate::verify::OutputVerdict;
use flashtile_dsl::inputs::Plan;

/// How often to run.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasureOptions {
    /// Runs that count; at least one is made.
    pub repetitions: u32,
    /// Runs before them, which do not count.
    pub warm_ups: u32,
    /// No run begins later than this after the first one that counts.
    pub budget: Duration,
    /// Seed of the random inputs and of the programs that the oracle runs.
    pub seed: u64,
    /// What the random inputs are like.
    pub data: InputData,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        Self { repetitions: 30, warm_ups: 3, budget: Duration::from_secs(10), seed: 0, data: InputData::default() }
    }
}

/// Times, and the judgement of what was computed.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Times of one launch in seconds. On a GPU by events, with the L2 cache flushed before each; on the CPU by the clock.
    pub times: Measurement,
    /// One per output, on a sample of the programs.
    pub verdicts: Vec<OutputVerdict>,
    /// The code that ran; none on a device that compiles nothing.
    pub variant: Option<VariantInfo>,
}

impl Measured {
    /// The largest error of any output.
    pub fn max_error(&self) -> f64 {
        self.verdicts.iter().map(|v| v.max_error).fold(0.0, f64::max)
    }

    /// Whether every output is right.
    pub fn is_right(&self) -> bool {
        self.verdicts.iter().all(OutputVerdict::passed)
    }
}

/// Runs a kernel on random inputs of a shape, given by the names of its run-time sizes; compares the
/// outputs of the first run with the float64 oracle on a sample of the programs; then times it.
///
/// Inputs hold what the options say, and else what the kernel's text asks for: scores of order 1, windows and lengths that
/// cut, ids that meet.
///
/// # Errors
/// [`super::TuneError::Size`] for sizes that do not fit; what launches and the device say.
pub fn measure(kernel: &LoadedKernel, sizes: &BTreeMap<String, i64>, options: &MeasureOptions) -> Result<Measured> {
    let (inputs, verdicts) = checked(kernel, sizes, options.seed, &options.data)?;
    let device = kernel.device();
    let times = time(device, options, || kernel.launch(&inputs.arguments()))?;
    Ok(Measured { times, verdicts, variant: kernel.variants().into_iter().next() })
}

/// Times what `launch` queues on the device's own stream.
pub(super) fn time(device: &Device, options: &MeasureOptions, launch: impl Fn() -> Result<()>) -> Result<Measurement> {
    let timer = device.backend().as_any().downcast_ref::<Cuda>().map(Timer::new).transpose()?;
    let time = || match &timer {
        Some(timer) => timer.time(&launch),
        None => {
            let start = Instant::now();
            launch()?;
            Ok(start.elapsed().as_secs_f64())
        }
    };
    for _ in 0..options.warm_ups {
        time()?;
    }
    let start = Instant::now();
    let mut samples = vec![time()?];
    while samples.len() < options.repetitions as usize && start.elapsed() < options.budget {
        samples.push(time()?);
    }
    let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Measurement { median: median(&samples), min, repetitions: samples.len() as u32 })
}

/// Runs a kernel once on inputs as [`measure`] draws them, and judges its outputs on a sample of the programs.
///
/// # Errors
/// As [`measure`].
pub fn judge(kernel: &LoadedKernel, sizes: &BTreeMap<String, i64>, seed: u64) -> Result<Vec<OutputVerdict>> {
    judge_on(kernel, sizes, seed, &InputData::default())
}

/// The same on inputs that hold what `data` says.
///
/// # Errors
/// As [`measure`]; [`super::TuneError::Data`] for data that an input cannot hold.
pub fn judge_on(kernel: &LoadedKernel, sizes: &BTreeMap<String, i64>, seed: u64, data: &InputData) -> Result<Vec<OutputVerdict>> {
    checked(kernel, sizes, seed, data).map(|(_, verdicts)| verdicts)
}

/// The same on steep inputs: exponents are more than a hundred times as large, so that a wrong running maximum overflows.
///
/// Gives the data, to say which inputs they were. `None` if no input scales an exponent, or if the text itself overflows in f32
/// on such inputs.
///
/// # Errors
/// As [`judge_on`].
pub fn judge_steep(
    kernel: &LoadedKernel,
    sizes: &BTreeMap<String, i64>,
    seed: u64,
    data: &InputData,
) -> Result<Option<(InputData, Vec<OutputVerdict>)>> {
    let Some(steep) = steep_data(kernel.kernel(), sizes, data)? else { return Ok(None) };
    let inputs = Inputs::random(kernel.kernel(), sizes, kernel.device(), seed, &steep)?;
    let gate = Gate::new(kernel.kernel(), &inputs, seed)?;
    if !gate.is_steady() {
        return Ok(None);
    }
    launch(kernel, &inputs)?;
    let verdicts = gate.verdicts(&inputs)?;
    Ok(Some((steep, verdicts)))
}

/// The data with which exponents are much larger; `None` if no input that `data` leaves open scales one.
///
/// # Errors
/// Sizes or data that do not fit the kernel.
pub fn steep_data(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, data: &InputData) -> Result<Option<InputData>> {
    let sizes = all_sizes(kernel, sizes)?;
    let plan = Plan::new(kernel.ir(), &sizes, data).map_err(super::TuneError::from)?;
    Ok(plan.steep())
}

/// Runs the kernel once on outputs that hold NaN, so that what is never written shows.
pub(super) fn launch(kernel: &LoadedKernel, inputs: &Inputs) -> Result<()> {
    for value in &inputs.values {
        if let Value::Output(tensor) = value {
            tensor.fill_bytes(0xff)?;
        }
    }
    kernel.launch(&inputs.arguments())?;
    kernel.device().synchronize()
}

fn checked(
    kernel: &LoadedKernel,
    sizes: &BTreeMap<String, i64>,
    seed: u64,
    data: &InputData,
) -> Result<(Inputs, Vec<OutputVerdict>)> {
    let inputs = Inputs::random(kernel.kernel(), sizes, kernel.device(), seed, data)?;
    launch(kernel, &inputs)?;
    let verdicts = Gate::new(kernel.kernel(), &inputs, seed)?.verdicts(&inputs)?;
    Ok((inputs, verdicts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::Elem;

    #[test]
    fn the_cpu_is_timed_and_judged() {
        let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::Bf16, [("D", 16)]).expect("binds");
        let loaded = kernel.on(&Device::cpu()).expect("the CPU runs everything");
        let sizes = [("B", 1), ("H", 2), ("G", 1), ("M", 33), ("N", 40)].map(|(n, v)| (n.to_owned(), v)).into();
        let options = MeasureOptions { repetitions: 3, warm_ups: 0, ..MeasureOptions::default() };
        let measured = measure(&loaded, &sizes, &options).expect("runs");
        assert_eq!(measured.times.repetitions, 3);
        assert!(measured.times.median >= measured.times.min && measured.times.min > 0.0);
        assert!(measured.is_right(), "{:?}", measured.verdicts);
        assert_eq!(measured.verdicts.len(), 2);
        assert_eq!(measured.variant, None);
    }
}
