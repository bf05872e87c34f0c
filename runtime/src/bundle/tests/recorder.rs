//! A device that writes down launches in place of executing them: what the stub driver writes, line
//! by line.

use std::any::Any;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use flashtile_codegen::{Arch, Generated};
use flashtile_dsl::ir::Elem;

use crate::device::{
    Backend, Call, CallArgument, CarriedCode, CodeResources, CompiledLauncher, Device, DeviceError, DeviceInfo, DeviceKind,
    ForeignMemory, GpuInfo, LaunchOptions, Launcher, MAX_BYTES, Memory, Meter, Processor, StepSize, StepsPlan, describe,
    runs_native,
};
use crate::error::Result;
use crate::kernel::BoundKernel;

/// Where every launch's workspace lies: the counters of all launches, zeroed, then scratch.
pub(super) const WORKSPACE: u64 = 1 << 40;

/// The device. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: DeviceInfo,
    meter: Meter,
    lines: Mutex<Vec<String>>,
}

/// Code of a bundle on it.
#[derive(Debug)]
pub(super) struct Recorded {
    plan: StepsPlan,
    /// Of the machine code.
    hash: u64,
}

impl Recorder {
    pub fn new(capability: (u32, u32), sms: u32) -> Self {
        let gpu = GpuInfo {
            capability,
            sms,
            l2_bytes: 0,
            shared_per_block: 0,
            clock_ghz: 0.0,
            memory_gbytes_per_s: 0.0,
            driver: (13, 0),
        };
        let (id, name) = ("cuda:0".to_owned(), "a recorder".to_owned());
        let info = DeviceInfo { id, kind: DeviceKind::Cuda, name, memory_bytes: 0, gpu: Some(gpu) };
        Self(Arc::new(Inner { info, meter: Meter::default(), lines: Mutex::default() }))
    }

    pub fn device(&self) -> Device {
        Device::of(Arc::new(self.clone()))
    }

    /// What was written down since the last time.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lines.lock().expect("not poisoned"))
    }

    fn write(&self, line: String) {
        self.0.lines.lock().expect("not poisoned").push(line);
    }
}

/// The hash of the stub driver.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Memory that is an address and nothing more.
#[derive(Debug)]
struct Place(ForeignPlace);

#[derive(Debug)]
struct ForeignPlace {
    address: u64,
    bytes: usize,
}

impl Memory for Place {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
    fn address(&self) -> u64 {
        self.0.address
    }
    fn write(&self, _: usize, _: &[u8]) -> Result<(), DeviceError> {
        panic!("nothing is there to be written")
    }
    fn fill(&self, _: u8) -> Result<(), DeviceError> {
        panic!("nothing is there to be written")
    }
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), DeviceError> {
        panic!("nothing is there to be read")
    }
    fn give_back(&self) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Recorder {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(Place(ForeignPlace { address: WORKSPACE, bytes })))
    }
    unsafe fn foreign(&self, memory: ForeignMemory) -> Result<Arc<dyn Memory>, DeviceError> {
        Ok(Arc::new(Place(ForeignPlace { address: memory.address, bytes: memory.bytes })))
    }
    fn meter(&self) -> &Meter {
        &self.0.meter
    }
    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn prepare(&self, kernel: &BoundKernel, options: &LaunchOptions) -> Result<Box<dyn Launcher>> {
        Ok(Box::new(CompiledLauncher::new(self, kernel, options)?))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Processor for Recorder {
    type Variant = Recorded;
    type Fixed = ();

    const TAKES_ADDRESSES: bool = false;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn arch(&self) -> &'static Arch {
        Arch::named("sm_90a").expect("in the table")
    }

    fn check(&self, arch: &'static Arch) -> Result<(), DeviceError> {
        let gpu = self.0.info.gpu.as_ref().expect("a GPU");
        assert!(runs_native(arch, gpu.capability), "the bundle chose {arch} for {:?}", gpu.capability);
        Ok(())
    }

    fn load(&self, _: &BoundKernel, _: Generated, _: &'static Arch, _: &LaunchOptions) -> Result<Recorded> {
        panic!("a bundle compiles nothing")
    }

    fn load_carried(&self, kernel: &BoundKernel, code: &CarriedCode, _: &'static Arch, _: &LaunchOptions) -> Result<Recorded> {
        let plan = StepsPlan::new(&code.contract, kernel.ir()).expect("names are known");
        Ok(Recorded { plan, hash: fnv(&code.module.cubin) })
    }

    fn resources(&self, _: &Recorded) -> Result<Option<CodeResources>, DeviceError> {
        Ok(None)
    }

    fn fix(&self, _: &Recorded, _: &Call<'_>) -> Result<()> {
        Ok(())
    }

    fn launch(&self, variant: &Recorded, call: &Call<'_>, _: &LaunchOptions) -> Result<()> {
        let sms = self.0.info.gpu.as_ref().expect("a GPU").sms;
        let too_large = || DeviceError::GridTooLarge { device: self.0.info.id.clone() };
        let seen = variant.plan.calls.see(call).ok_or_else(too_large)?;
        let size = |step: &crate::device::StepPlan| step.size(seen.sizes(), sms).map_err(|_| too_large());
        let sizes: Vec<Option<StepSize>> = variant.plan.steps.iter().map(size).collect::<Result<_, _>>()?;
        let zeroed: u64 = sizes.iter().flatten().map(|size| size.workspace.next_multiple_of(256)).sum();
        let memory = Place(ForeignPlace { address: WORKSPACE + zeroed, bytes: seen.scratch_bytes() });
        let arguments = seen.arguments(&memory, memory.address());
        self.write(format!("workspace {}", zeroed + seen.scratch_bytes() as u64));
        if zeroed > 0 {
            self.write(format!("zero {WORKSPACE:x} {zeroed} 0 stream 0x7"));
        }
        let (mut counters, mut queued) = (WORKSPACE, false);
        for (step, size) in variant.plan.steps.iter().zip(&sizes) {
            let Some(StepSize { blocks, workspace }) = *size else { continue };
            let mut block = [0; MAX_BYTES];
            step.parameters.pack(&arguments, seen.sizes(), if workspace > 0 { counters } else { 0 }, &mut block);
            let mut line = format!(
                "launch {:x} {} grid {blocks},1,1 block {},1,1 shared {} cluster {} early {} stream 0x7",
                variant.hash,
                step.entry,
                step.threads,
                step.shared_bytes,
                step.cluster,
                u8::from(queued && step.early)
            );
            for map in &step.maps {
                line += &map_text(&arguments[map.param], map);
            }
            line += " parameters ";
            block[..step.bytes].iter().for_each(|byte| write!(line, "{byte:02x}").expect("strings take it"));
            self.write(line);
            counters += workspace.next_multiple_of(256);
            queued = true;
        }
        Ok(())
    }
}

/// The arguments of `cuTensorMapEncodeTiled`, as `device/cuda/tensor_map.rs` gives them.
fn map_text(argument: &CallArgument<'_>, map: &crate::device::MapPlan) -> String {
    use cudarc::driver::sys;
    let description = describe(argument, &map.order, map.tile[0]).expect("what TMA allows");
    let CallArgument::Tensor { elem, .. } = argument else { panic!("a tensor") };
    let ty = match elem {
        Elem::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Elem::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    } as u32;
    let swizzle = match map.row_bytes {
        128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    } as u32;
    let promotion = sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B as u32;
    let mut text = format!(" map {ty}:{:x}:0{swizzle}{promotion}0", description.address);
    for (d, extent) in description.extents.iter().enumerate() {
        let stride = if d == 0 { 0 } else { description.strides[d - 1] };
        write!(text, ":{extent}/{stride}/{}/1", map.tile[d]).expect("strings take it");
    }
    text
}
