//! The launches of a call: what each is launched with, from the calling contract. Names are
//! resolved once.
//!
//! Architecture invariant: every launcher of compiled code asks this module for grids, parameters
//! and tensor maps. The C launcher of a bundle, which cannot, is compared with it.

use flashtile_dsl::ir;

use super::maps::{MapPlan, resolve_maps};
use super::parameters::Parameters;
use super::seen::CallPlan;
use crate::lowering::CallingContract;

/// The launches of a call, and how they see its arguments.
#[derive(Clone, Debug)]
pub(crate) struct StepsPlan {
    pub steps: Vec<StepPlan>,
    pub calls: CallPlan,
    /// The kernel with the sizes that the launches know.
    pub kernel: ir::Kernel,
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct StepPlan {
    /// Name of the entry point.
    pub entry: String,
    pub parameters: Parameters,
    /// Bytes of the parameter block.
    pub bytes: usize,
    /// Argument and tile of each tensor map.
    pub maps: Vec<MapPlan>,
    pub threads: u32,
    pub shared_bytes: usize,
    pub cluster: u32,
    /// Whether it may begin while the one before it ends.
    pub early: bool,
}

/// How large a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StepSize {
    pub blocks: u32,
    /// Bytes of zeroed workspace.
    pub workspace: u64,
}

/// A grid or workspace beyond what can be launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLarge;

impl StepsPlan {
    /// Resolves the names of a contract. An error names what the kernel does not have, which is a
    /// fault of the generator.
    pub fn new(contract: &CallingContract, kernel: &ir::Kernel) -> Result<Self, String> {
        let (calls, kernel) = CallPlan::new(contract.folded.as_ref(), &contract.scratch, kernel)?;
        let step = |abi: &flashtile_codegen::Abi| {
            Ok(StepPlan {
                entry: abi.entry.clone(),
                parameters: Parameters::new(abi, &kernel, &contract.scratch)?,
                bytes: abi.layout().1,
                maps: resolve_maps(&abi.tensor_maps, &kernel, &contract.scratch)?,
                threads: abi.threads,
                shared_bytes: abi.shared_bytes,
                cluster: abi.cluster.max(1),
                early: abi.early,
            })
        };
        let steps = contract.launches.iter().map(step).collect::<Result<Vec<_>, String>>()?;
        Ok(Self { steps, calls, kernel })
    }
}

impl StepPlan {
    /// How large the launch is on a device of so many multiprocessors; `None` if there is no
    /// program to run.
    pub fn size(&self, sizes: &[i64], sms: u32) -> Result<Option<StepSize>, TooLarge> {
        let blocks = self.parameters.blocks(sizes, sms).ok_or(TooLarge)?;
        if blocks == 0 {
            return Ok(None);
        }
        let workspace = self.parameters.workspace(sizes).ok_or(TooLarge)?;
        Ok(Some(StepSize { blocks, workspace }))
    }
}
