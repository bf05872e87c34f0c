//! A kernel compiled for one schedule, loaded and ready to be executed.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use flashtile_dsl::ir;
use flashtile_emulator::{Launch, Module, Options, Report, Swizzle, TensorMap};

use super::handle::{Emulator, MULTIPROCESSORS};
use super::memory::EmulatorMemory;
use crate::device::compiled::{CallPlan, MAX_BYTES, MapPlan, StepPlan, StepSize, StepsPlan, argument_named, describe};
use crate::device::{Call, CallArgument, DeviceError, DeviceKind, EmulatorError, Memory};
use crate::error::Result;
use crate::kernel::KernelError;
use crate::lowering::CallingContract;

/// Loaded code and how to call it.
#[derive(Debug)]
pub(crate) struct Variant {
    emulator: Emulator,
    module: Arc<Module>,
    /// Name of the kernel.
    name: String,
    arch: &'static str,
    steps: Vec<Step>,
    calls: CallPlan,
    /// What came of the last launch, step by step.
    reports: Mutex<Vec<Report>>,
}

/// One launch of a call.
#[derive(Debug)]
struct Step {
    plan: StepPlan,
    /// Positions of the arguments that it writes.
    writes: Vec<usize>,
    /// What the last launch left for the next one in its workspace.
    kept: Mutex<Vec<u8>>,
}

impl Variant {
    pub fn new(
        emulator: &Emulator,
        kernel: &ir::Kernel,
        contract: &CallingContract,
        arch: &'static str,
        module: Arc<Module>,
    ) -> Result<Self> {
        let fault = |reason: String| KernelError::Generate { kernel: kernel.name.clone(), arch: arch.to_owned(), reason };
        let StepsPlan { steps: plans, calls, kernel: seen } = StepsPlan::new(contract, kernel).map_err(fault)?;
        let step = |(plan, writes): (StepPlan, &Vec<String>)| {
            let writes = writes.iter().map(|name| argument_named(&seen, &contract.scratch, name));
            let kept = Mutex::new(vec![0; plan.parameters.kept().len()]);
            Ok(Step { plan, writes: writes.collect::<Result<_, String>>()?, kept })
        };
        let steps = plans.into_iter().zip(&contract.writes).map(step);
        Ok(Self {
            emulator: emulator.clone(),
            module,
            name: kernel.name.clone(),
            arch,
            steps: steps.collect::<Result<_, String>>().map_err(fault)?,
            calls,
            reports: Mutex::default(),
        })
    }

    /// Name of the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What came of the last launch; empty if there was none.
    pub fn reports(&self) -> Vec<Report> {
        self.reports.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Executes the launches of a call, one after the other.
    pub fn launch(&self, call: &Call<'_>, options: &Options) -> Result<()> {
        if call.stream.is_some_and(|stream| stream.kind != DeviceKind::Emulator) {
            return Err(DeviceError::OtherDevice { device: "emulator".to_owned() }.into());
        }
        let too_large = || DeviceError::GridTooLarge { device: "emulator".to_owned() };
        let seen = self.calls.see(call).ok_or_else(too_large)?;
        let memory = EmulatorMemory::unwritten(&self.emulator, seen.scratch_bytes())?;
        let arguments = seen.arguments(&memory, memory.address());
        self.reports.lock().unwrap_or_else(|e| e.into_inner()).clear();
        let mut pending = Vec::new();
        for step in &self.steps {
            let before = if step.plan.early { pending.clone() } else { Vec::new() };
            self.step(step, &arguments, seen.sizes(), before, options)?;
            pending.extend(step.writes.iter().filter_map(|&at| span(&arguments[at])));
        }
        Ok(())
    }

    /// Executes a step, before which others may still be writing what is `pending`.
    fn step(
        &self,
        step: &Step,
        arguments: &[CallArgument<'_>],
        sizes: &[i64],
        pending: Vec<Range<u64>>,
        options: &Options,
    ) -> Result<()> {
        let too_large = || DeviceError::GridTooLarge { device: "emulator".to_owned() };
        let size = step.plan.size(sizes, MULTIPROCESSORS).map_err(|_| too_large())?;
        let Some(StepSize { blocks, workspace: bytes }) = size else { return Ok(()) }; // there is no program to run
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        let workspace = EmulatorMemory::zeroed(&self.emulator, bytes)?;
        let kept_bytes = step.plan.parameters.kept();
        let before = step.kept.lock().unwrap_or_else(|e| e.into_inner()).clone();
        workspace.write(kept_bytes.start, &before)?;
        let mut block = [0; MAX_BYTES];
        step.plan.parameters.pack(arguments, sizes, workspace.address(), &mut block);
        let maps = step.plan.maps.iter().map(|plan| tensor_map(&step.plan.entry, &arguments[plan.param], plan));
        let mut parameters = maps.collect::<Result<Vec<_>, EmulatorError>>()?;
        parameters.push(block[..step.plan.bytes].to_vec());
        let launch = Launch {
            grid: [blocks, 1, 1],
            block: [step.plan.threads, 1, 1],
            shared_bytes: u32::try_from(step.plan.shared_bytes).expect("at most 227 KiB"),
            parameters,
            pending,
        };
        let kernel = step.plan.entry.clone();
        let loaded = self.module.kernel(&step.plan.entry);
        let loaded = loaded.map_err(|error| EmulatorError::Load { kernel: kernel.clone(), arch: self.arch.to_owned(), error })?;
        let report = loaded.launch(&self.emulator.memory(), &launch, options);
        let report = report.map_err(|error| EmulatorError::Launch { kernel: kernel.clone(), error })?;
        let findings = report.findings.clone();
        self.reports.lock().unwrap_or_else(|e| e.into_inner()).push(report);
        if !findings.is_empty() {
            let (arch, options) = (self.arch.to_owned(), Box::new(options.clone()));
            return Err(EmulatorError::Findings { kernel, arch, options, findings }.into());
        }
        let mut left = vec![0; workspace.bytes()];
        workspace.read(0, &mut left)?;
        *step.kept.lock().unwrap_or_else(|e| e.into_inner()) = left[kept_bytes.clone()].to_vec();
        left[kept_bytes].fill(0);
        match left.iter().filter(|&&byte| byte != 0).count() {
            0 => Ok(()),
            bytes => Err(EmulatorError::Workspace { kernel, bytes }.into()),
        }
    }
}

/// Addresses from the first to the last element of a tensor.
fn span(argument: &CallArgument<'_>) -> Option<Range<u64>> {
    let CallArgument::Tensor { elem, address, shape, strides, .. } = *argument else { return None };
    let last = shape.iter().zip(strides).try_fold(0, |at, (&n, &step)| Some(at + n.checked_sub(1)? * step))?;
    Some(address..address + (last as u64 + 1) * elem.bytes()? as u64)
}

fn tensor_map(kernel: &str, argument: &CallArgument<'_>, plan: &MapPlan) -> Result<Vec<u8>, EmulatorError> {
    let refused = |reason: String| EmulatorError::TensorMap { kernel: kernel.to_owned(), reason };
    let description = describe(argument, &plan.order, plan.tile[0]).map_err(refused)?;
    let (extents, strides) = (&description.extents, &description.strides);
    let swizzle = match plan.row_bytes {
        128 => Swizzle::Bytes128,
        64 => Swizzle::Bytes64,
        16 => Swizzle::None,
        bytes => return Err(refused(format!("boxes of rows of {bytes} bytes"))),
    };
    let CallArgument::Tensor { elem, .. } = argument else { return Err(refused("not a tensor".to_owned())) };
    let bytes = elem.bytes().unwrap_or(2) as u32;
    let map = TensorMap::at(description.address, bytes, extents, strides, &plan.tile, swizzle);
    Ok(map.map_err(|e| refused(e.to_string()))?.encode().to_vec())
}
