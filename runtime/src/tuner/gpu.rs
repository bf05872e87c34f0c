//! Checks and measures candidates on a GPU.

use std::time::{Duration, Instant};

use flashtile_codegen::Arch;
use flashtile_dsl::analysis::reach::Width;

use super::bench::{Bench, Rejection};
use super::gate::Gate;
use super::inputs::{Inputs, Value};
use super::search::median;
use crate::cache::Stage;
use crate::device::cuda::{Cuda, FixedLaunch, Timer, Variant};
use crate::device::{Backend, Call, CallArgument};
use crate::error::{Error, Result};
use crate::kernel::BoundKernel;
use crate::lowering::Code;

/// A GPU with inputs on it and what the oracle says of them.
pub(super) struct GpuBench<'a> {
    pub gpu: &'a Cuda,
    /// What index arithmetic needs for the inputs.
    pub width: Width,
    pub kernel: &'a BoundKernel,
    pub arch: &'static Arch,
    pub inputs: &'a Inputs,
    pub gate: Gate,
    pub timer: Timer,
    pub start: Instant,
}

/// Seconds of launches before those that are timed under load, and of those.
const LOAD: f64 = 6e-3;
/// Runs in place of a load where that would run from the cache.
const COLD_RUNS: usize = 5;

impl GpuBench<'_> {
    /// Bytes of all tensors.
    fn tensor_bytes(&self) -> u64 {
        let bytes = |value: &Value| match value {
            Value::Input(tensor) | Value::Output(tensor) => {
                tensor.elem().bytes().unwrap_or(4) * tensor.shape().iter().product::<usize>()
            }
            _ => 0,
        };
        self.inputs.values.iter().map(bytes).sum::<usize>() as u64
    }

    fn launch(&self, variant: &Variant) -> Result<()> {
        let arguments: Vec<CallArgument<'_>> = self.inputs.arguments().iter().map(|a| a.raw()).collect();
        let call = Call { arguments: &arguments, sizes: &self.inputs.sizes, width: self.width, stream: None };
        Ok(variant.launch(&call, &FixedLaunch::none(), self.gpu.stream())?)
    }

    fn rejection(&self, stage: Stage, error: &Error) -> Rejection {
        // After a fault in a kernel the context is lost: then everything fails from there on.
        let fatal = self.gpu.synchronize().is_err();
        Rejection { fatal, ..Rejection::new(stage, error.to_string()) }
    }

    /// Fills the outputs with NaN, so that nothing passes that an earlier candidate has written.
    fn poison(&self) -> Result<()> {
        for value in &self.inputs.values {
            if let Value::Output(tensor) = value {
                tensor.fill_bytes(0xff)?;
            }
        }
        Ok(())
    }
}

impl Bench<Code> for GpuBench<'_> {
    type Loaded = Variant;

    fn check(&mut self, code: Code) -> Result<(Variant, f64), Rejection> {
        let run = || {
            let variant = Variant::load(self.gpu, self.kernel.ir(), &code.contract, &code.module, self.arch)?;
            self.poison()?;
            self.launch(&variant)?;
            self.gpu.synchronize()?;
            Ok((variant, self.gate.check(self.inputs)?))
        };
        let (variant, checked) = run().map_err(|e| self.rejection(Stage::Launch, &e))?;
        Ok((variant, checked?))
    }

    fn time(&mut self, variant: &Variant) -> Result<f64, Rejection> {
        self.timer.time(|| self.launch(variant)).map_err(|e| self.rejection(Stage::Launch, &e))
    }

    fn time_under_load(&mut self, variant: &Variant) -> Result<f64, Rejection> {
        let launch = || self.launch(variant);
        let time = || {
            if self.tensor_bytes() > self.gpu.gpu().l2_bytes {
                return self.timer.time_under_load(LOAD, launch);
            }
            // What fits into the cache is timed with a cold one, as elsewhere.
            let times = (0..COLD_RUNS).map(|_| self.timer.time(launch)).collect::<Result<Vec<_>>>()?;
            Ok(median(&times))
        };
        time().map_err(|e| self.rejection(Stage::Launch, &e))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
