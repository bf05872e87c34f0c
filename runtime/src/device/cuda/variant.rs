//! A kernel compiled for one schedule, loaded and ready to be launched: one launch a call, or several with scratch between.

use std::ffi::c_void;
use std::mem::MaybeUninit;

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

/// What calls of a variant have in common that differ in addresses, scalars and streams only.
#[derive(Debug)]
pub(crate) struct FixedLaunch {
    /// If a call is one launch that sees its arguments as they are: its size and its tensor maps,
    /// but for their addresses.
    step: Option<(StepSize, Vec<RawMap>)>,
}

impl FixedLaunch {
    /// Of calls of which nothing is known.
    pub fn none() -> Self {
        Self { step: None }
    }
}

/// The parameter block on the stack.
#[repr(C, align(16))]
struct Block([MaybeUninit<u8>; MAX_BYTES]);

impl Block {
    /// Its first bytes, which are 0 to begin with.
    fn zeroed(&mut self, bytes: usize) -> &mut [u8] {
        let block = &mut self.0[..bytes];
        block.fill(MaybeUninit::new(0));
        // SAFETY: all of these bytes have just been written.
        unsafe { std::slice::from_raw_parts_mut(block.as_mut_ptr().cast(), bytes) }
    }
}

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

    /// What calls have in common that differ from this one in addresses, scalars and streams only.
    pub fn fix(&self, call: &Call<'_>) -> Result<FixedLaunch, DeviceError> {
        let [step] = &self.steps[..] else { return Ok(FixedLaunch::none()) };
        if !self.calls.is_plain() {
            return Ok(FixedLaunch::none());
        }
        let Some(size) = step.size(&self.gpu, call.sizes)? else { return Ok(FixedLaunch::none()) };
        Ok(FixedLaunch { step: Some((size, step.maps(&self.gpu, call.arguments)?)) })
    }

    /// Queues the launches of a call. Allocates nothing on the device, unless scratch tensors are larger than ever before.
    pub fn launch(&self, call: &Call<'_>, fixed: &FixedLaunch, stream: &CudaStream) -> Result<(), DeviceError> {
        match (&self.steps[..], &fixed.step) {
            ([step], Some((size, maps))) => {
                let mut own = [RawMap::EMPTY; MAX_MAPS];
                for ((map, fixed), plan) in own.iter_mut().zip(maps).zip(&step.plan.maps) {
                    *map = *fixed;
                    tensor_map::move_to(&self.gpu.context().id, map, &call.arguments[plan.param])?;
                }
                let maps = &mut own[..maps.len()];
                step.queue(&self.gpu, &self.module, (call.arguments, call.sizes), (*size, maps), stream, false)
            }
            ([step], None) if self.calls.is_plain() => {
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
        let Some(size) = self.size(gpu, sizes)? else {
            return Ok(false); // there is no program to run
        };
        let mut maps = [RawMap::EMPTY; MAX_MAPS];
        let mut count = 0;
        for (map, plan) in maps.iter_mut().zip(&self.plan.maps) {
            *map = tensor_map::encode(&gpu.context().id, &arguments[plan.param], plan)?;
            count += 1;
        }
        self.queue(gpu, module, (arguments, sizes), (size, &mut maps[..count]), stream, follows)?;
        Ok(true)
    }

    /// How large the launch is; `None` if there is no program to run.
    fn size(&self, gpu: &Cuda, sizes: &[i64]) -> Result<Option<StepSize>, DeviceError> {
        let too_large = |_| DeviceError::GridTooLarge { device: gpu.context().id.clone() };
        self.plan.size(sizes, gpu.gpu().sms).map_err(too_large)
    }

    /// Its tensor maps.
    fn maps(&self, gpu: &Cuda, arguments: &[CallArgument<'_>]) -> Result<Vec<RawMap>, DeviceError> {
        self.plan.maps.iter().map(|plan| tensor_map::encode(&gpu.context().id, &arguments[plan.param], plan)).collect()
    }

    /// Queues the launch, of this size and with these tensor maps. Allocates nothing.
    fn queue(
        &self,
        gpu: &Cuda,
        module: &Module,
        (arguments, sizes): (&[CallArgument<'_>], &[i64]),
        (size, maps): (StepSize, &mut [RawMap]),
        stream: &CudaStream,
        follows: bool,
    ) -> Result<(), DeviceError> {
        let context = gpu.context();
        context.bind()?;
        let workspace = self.workspaces.address(gpu, stream, size.workspace)?;
        let mut block = Block([MaybeUninit::uninit(); MAX_BYTES]);
        let block = block.zeroed(self.plan.bytes);
        self.plan.parameters.pack(arguments, sizes, workspace, block);
        // Kernel parameters: each tensor map by value, then the block by value.
        let mut pointers: [*mut c_void; MAX_MAPS + 1] = [std::ptr::null_mut(); MAX_MAPS + 1];
        let count = maps.len();
        for (pointer, map) in pointers.iter_mut().zip(maps) {
            *pointer = (&raw mut *map).cast();
        }
        pointers[count] = block.as_mut_ptr().cast();
        let early = follows && self.plan.early;
        self.queue_function((&context.id, stream), module.function(self.entry), size.blocks, early, &mut pointers)
    }

    fn queue_function(
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
