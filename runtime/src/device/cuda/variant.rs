//! A kernel compiled for one schedule, loaded and ready to be launched: one launch a call, or several with scratch between.

use std::ffi::c_void;

use cudarc::driver::sys;
use flashtile_codegen::Arch;
use flashtile_dsl::ir;

use super::driver::check_status;
use super::gpu::Cuda;
use super::image::Form;
use super::module::Module;
use super::stream::CudaStream;
use super::tensor_map::{self, RawMap};
use super::workspace::{ScratchMemory, Workspaces};
use crate::cache::ModuleRecord;
use crate::device::compiled::{CallPlan, MAX_BYTES, MAX_MAPS, StepPlan, StepSize, StepsPlan};
use crate::device::{Call, CallArgument, CodeResources, DeviceError, Memory};
use crate::error::Result;
use crate::kernel::KernelError;
use crate::lowering::CallingContract;

/// Loaded code and how to call it.
#[derive(Debug)]
pub(crate) struct Variant {
    gpu: Cuda,
    module: Module,
    /// The launches of a call, in order; each an entry point of the module.
    steps: Vec<Step>,
    /// The one that the schedule is about.
    main: usize,
    calls: CallPlan,
    memory: ScratchMemory,
}

/// One launch of a call.
#[derive(Debug)]
struct Step {
    /// Place of the entry point in the module.
    entry: usize,
    plan: StepPlan,
    workspaces: Workspaces,
}

/// The parameter block on the stack.
#[repr(C, align(16))]
struct Block([u8; MAX_BYTES]);

impl Variant {
    /// Loads code onto a GPU, as machine code or through its PTX.
    pub fn load(
        gpu: &Cuda,
        kernel: &ir::Kernel,
        contract: &CallingContract,
        module: &ModuleRecord,
        arch: &'static Arch,
    ) -> Result<Self> {
        let form = Form::choose(arch, &gpu.properties().name, gpu.gpu().capability)?;
        let fault = |reason: String| KernelError::Generate { kernel: kernel.name.clone(), arch: arch.name.to_owned(), reason };
        let StepsPlan { steps: plans, calls, .. } = StepsPlan::new(contract, kernel).map_err(fault)?;
        let entries: Vec<(&str, usize)> = plans.iter().map(|plan| (plan.entry.as_str(), plan.shared_bytes)).collect();
        let module = Module::load(gpu.context(), &form.of(module), &entries)?;
        let mut steps = Vec::with_capacity(plans.len());
        for (entry, plan) in plans.into_iter().enumerate() {
            let workspaces = Workspaces::new(gpu, plan.parameters.workspace_at_first())?;
            steps.push(Step { entry, plan, workspaces });
        }
        Ok(Self { gpu: gpu.clone(), module, steps, main: contract.main, calls, memory: ScratchMemory::default() })
    }

    /// Resources of the launch that the schedule is about, as the driver reports them.
    pub fn resources(&self) -> Result<CodeResources, DeviceError> {
        let step = &self.steps[self.main];
        let (registers, local_bytes) = self.module.resources(step.entry)?;
        let blocks_per_sm = self.module.occupancy(step.entry, step.plan.threads, step.plan.shared_bytes)?;
        Ok(CodeResources { registers, local_bytes, blocks_per_sm })
    }

    /// Queues the launches of a call. Allocates nothing on the device, unless scratch tensors are larger than ever before.
    pub fn launch(&self, call: &Call<'_>, stream: &CudaStream) -> Result<(), DeviceError> {
        match &self.steps[..] {
            [step] if self.calls.is_plain() => {
                step.launch(&self.gpu, &self.module, (call.arguments, call.sizes), stream, false).map(drop)
            }
            _ => self.launch_all(call, stream),
        }
    }

    fn launch_all(&self, call: &Call<'_>, stream: &CudaStream) -> Result<(), DeviceError> {
        let too_large = || DeviceError::GridTooLarge { device: self.gpu.context().id.clone() };
        let seen = self.calls.see(call).ok_or_else(too_large)?;
        let memory = self.memory.get(&self.gpu, stream, seen.scratch_bytes())?;
        let arguments = seen.arguments(&*memory, memory.address());
        // A launch begins early beside those of its own call only: of others it is not known what it must wait for.
        let mut queued = false;
        for step in &self.steps {
            queued |= step.launch(&self.gpu, &self.module, (&arguments, seen.sizes()), stream, queued)?;
        }
        Ok(())
    }
}

impl Step {
    /// Queues the launch, if it has any program; whether it has. `follows` another of its call. Allocates nothing.
    fn launch(
        &self,
        gpu: &Cuda,
        module: &Module,
        (arguments, sizes): (&[CallArgument<'_>], &[i64]),
        stream: &CudaStream,
        follows: bool,
    ) -> Result<bool, DeviceError> {
        let context = gpu.context();
        let too_large = |_| DeviceError::GridTooLarge { device: context.id.clone() };
        let Some(StepSize { blocks, workspace: bytes }) = self.plan.size(sizes, gpu.gpu().sms).map_err(too_large)? else {
            return Ok(false); // there is no program to run
        };
        context.bind()?;
        let workspace = self.workspaces.address(gpu, stream, bytes)?;
        let mut block = Block([0; MAX_BYTES]);
        self.plan.parameters.pack(arguments, sizes, workspace, &mut block.0);
        let mut maps = [RawMap::EMPTY; MAX_MAPS];
        for (map, plan) in maps.iter_mut().zip(&self.plan.maps) {
            *map = tensor_map::encode(&context.id, &arguments[plan.param], plan)?;
        }
        // Kernel parameters: each tensor map by value, then the block by value.
        let mut pointers: [*mut c_void; MAX_MAPS + 1] = [std::ptr::null_mut(); MAX_MAPS + 1];
        for (pointer, map) in pointers.iter_mut().zip(&mut maps[..self.plan.maps.len()]) {
            *pointer = (&raw mut *map).cast();
        }
        pointers[self.plan.maps.len()] = block.0.as_mut_ptr().cast();
        self.queue((&context.id, stream), module.function(self.entry), blocks, follows && self.plan.early, &mut pointers)?;
        Ok(true)
    }

    fn queue(
        &self,
        (id, stream): (&str, &CudaStream),
        function: sys::CUfunction,
        blocks: u32,
        early: bool,
        pointers: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let shared = u32::try_from(self.plan.shared_bytes).expect("at most 227 KiB");
        let mut attributes = [cluster_attribute(self.plan.cluster), early_attribute()];
        let attributes = match (self.plan.cluster > 1, early) {
            (false, false) => &mut attributes[..0],
            (true, false) => &mut attributes[..1],
            (true, true) => &mut attributes[..],
            (false, true) => &mut attributes[1..],
        };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.plan.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the function is of a loaded module; `pointers` holds one pointer per kernel parameter, each to as many bytes as
        // the kernel declares (its ABI), and the driver copies them before it returns. The addresses in the block are of
        // allocations that the arguments keep alive until the call returns; freeing one later waits for the device. The
        // configuration and its attributes live beyond the call.
        let status = unsafe { sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()) };
        check_status(id, "cuLaunchKernelEx", status)
    }
}

/// Attribute of a launch: blocks of a cluster.
fn cluster_attribute(blocks: u32) -> sys::CUlaunchAttribute {
    let mut attribute = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    attribute.value.clusterDim.x = blocks;
    attribute.value.clusterDim.y = 1;
    attribute.value.clusterDim.z = 1;
    attribute
}

/// Attribute of a launch: it may begin while the one before it in the stream ends.
fn early_attribute() -> sys::CUlaunchAttribute {
    let mut attribute = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

fn attribute(id: sys::CUlaunchAttributeID) -> sys::CUlaunchAttribute {
    // SAFETY: the attribute is plain data, for which zeros are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = id;
    attribute
}
