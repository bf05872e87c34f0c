//! A kernel compiled for one schedule, loaded and ready to be executed.

use std::sync::{Arc, Mutex};

use flashtile_dsl::ir;
use flashtile_emulator::{Launch, Module, Options, Report, Swizzle, TensorMap};

use super::{Emulator, EmulatorError, EmulatorMemory, MULTIPROCESSORS};
use crate::device::compiled::{MAX_BYTES, MapPlan, Parameters, describe, resolve_maps};
use crate::device::{Call, CallArgument, DeviceError, Memory};
use crate::error::Result;
use crate::kernel::KernelError;
use crate::lowering::Generated;

/// A loaded kernel and how to call it.
#[derive(Debug)]
pub(crate) struct Variant {
    emulator: Emulator,
    module: Arc<Module>,
    entry: String,
    arch: &'static str,
    parameters: Parameters,
    /// Bytes of the parameter block.
    bytes: usize,
    maps: Vec<MapPlan>,
    threads: u32,
    shared_bytes: usize,
    /// What came of the last launch.
    report: Mutex<Option<Report>>,
}

impl Variant {
    pub fn new(emulator: &Emulator, kernel: &ir::Kernel, generated: &Generated, module: Arc<Module>) -> Result<Self> {
        let abi = &generated.abi;
        let arch = generated.arch;
        let fault = |reason: String| KernelError::Generate { kernel: kernel.name.clone(), arch: arch.to_owned(), reason };
        Ok(Self {
            emulator: emulator.clone(),
            module,
            entry: abi.entry.clone(),
            arch,
            parameters: Parameters::new(abi, kernel).map_err(fault)?,
            bytes: abi.layout().1,
            maps: resolve_maps(&abi.tensor_maps, kernel).map_err(fault)?,
            threads: abi.threads,
            shared_bytes: abi.shared_bytes,
            report: Mutex::default(),
        })
    }

    /// What came of the last launch; empty if there was none.
    pub fn reports(&self) -> Vec<Report> {
        self.report.lock().unwrap_or_else(|e| e.into_inner()).iter().cloned().collect()
    }

    /// Executes a launch.
    pub fn launch(&self, call: &Call<'_>, options: &Options) -> Result<()> {
        if call.stream.is_some() {
            return Err(DeviceError::NoStreams("emulator".to_owned()).into());
        }
        let Some(blocks) = self.parameters.blocks(call.sizes, MULTIPROCESSORS) else {
            return Err(DeviceError::GridTooLarge { device: "emulator".to_owned() }.into());
        };
        if blocks == 0 {
            return Ok(()); // there is no program to run
        }
        let workspace = EmulatorMemory::zeroed(&self.emulator, self.parameters.workspace as usize);
        let mut block = [0; MAX_BYTES];
        self.parameters.pack(call.arguments, call.sizes, workspace.address(), &mut block);
        let maps = self.maps.iter().map(|plan| self.tensor_map(&call.arguments[plan.param], plan));
        let mut parameters = maps.collect::<Result<Vec<_>, EmulatorError>>()?;
        parameters.push(block[..self.bytes].to_vec());
        let launch = Launch {
            grid: [blocks, 1, 1],
            block: [self.threads, 1, 1],
            shared_bytes: u32::try_from(self.shared_bytes).expect("at most 227 KiB"),
            parameters,
        };
        let kernel = self.entry.clone();
        let loaded = self.module.kernel(&self.entry);
        let loaded = loaded.map_err(|error| EmulatorError::Load { kernel: kernel.clone(), arch: self.arch.to_owned(), error })?;
        let report = loaded.launch(&self.emulator.memory(), &launch, options);
        let report = report.map_err(|error| EmulatorError::Launch { kernel: kernel.clone(), error })?;
        let findings = report.findings.clone();
        *self.report.lock().unwrap_or_else(|e| e.into_inner()) = Some(report);
        if !findings.is_empty() {
            let (arch, options) = (self.arch.to_owned(), Box::new(options.clone()));
            return Err(EmulatorError::Findings { kernel, arch, options, findings }.into());
        }
        let mut left = vec![0; workspace.bytes()];
        workspace.read(0, &mut left)?;
        match left.iter().filter(|&&byte| byte != 0).count() {
            0 => Ok(()),
            bytes => Err(EmulatorError::Workspace { kernel, bytes }.into()),
        }
    }

    fn tensor_map(&self, argument: &CallArgument<'_>, plan: &MapPlan) -> Result<Vec<u8>, EmulatorError> {
        let refused = |reason: String| EmulatorError::TensorMap { kernel: self.entry.clone(), reason };
        let description = describe(argument, &plan.order).map_err(refused)?;
        let (extents, strides) = (&description.extents, &description.strides);
        let map = TensorMap::at(description.address, 2, extents, strides, &plan.tile, Swizzle::Bytes128);
        Ok(map.map_err(|e| refused(e.to_string()))?.encode().to_vec())
    }
}
