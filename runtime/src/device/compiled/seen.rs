//! A call as compiled code sees it: with folded rows if it folds, and with scratch tensors after the arguments.

use flashtile_codegen::{FoldedRows, Scratch};
use flashtile_dsl::ir;

use super::scratch::{ScratchLayout, ScratchPlan};
use crate::device::fold::{FoldPlan, FoldedCall};
use crate::device::{Call, CallArgument, Memory};

/// How code sees calls. Names are resolved once.
#[derive(Clone, Debug)]
pub(crate) struct CallPlan {
    fold: Option<FoldPlan>,
    scratch: ScratchPlan,
}

/// A call, seen so.
pub(crate) struct SeenCall<'a> {
    call: Call<'a>,
    folded: Option<FoldedCall>,
    layout: ScratchLayout,
}

impl CallPlan {
    /// Of code with these folded rows and scratch tensors, and the kernel with the sizes that its launches know. An error names what
    /// the kernel does not have, which is a fault of the generator.
    pub fn new(folded: Option<&FoldedRows>, scratch: &[Scratch], kernel: &ir::Kernel) -> Result<(Self, ir::Kernel), String> {
        let fold = folded.map(|rows| FoldPlan::new(rows, kernel)).transpose()?;
        let kernel = fold.as_ref().map_or_else(|| kernel.clone(), |fold| fold.kernel(kernel));
        let scratch = ScratchPlan::new(scratch, &kernel)?;
        Ok((Self { fold, scratch }, kernel))
    }

    /// Whether code sees calls as they are.
    pub fn is_plain(&self) -> bool {
        self.fold.is_none() && self.scratch.is_empty()
    }

    /// A call, whose arguments have the facts that the code was made for; `None` if its scratch tensors are larger than any memory.
    pub fn see<'a>(&self, call: &Call<'a>) -> Option<SeenCall<'a>> {
        let folded =
            self.fold.as_ref().map(|fold| fold.view(call).expect("a variant is launched on arguments that have its facts"));
        let layout = self.scratch.layout(folded.as_ref().map_or(call.sizes, |folded| &folded.sizes))?;
        Some(SeenCall { call: *call, folded, layout })
    }
}

impl SeenCall<'_> {
    /// Values of all sizes.
    pub fn sizes(&self) -> &[i64] {
        self.folded.as_ref().map_or(self.call.sizes, |folded| &folded.sizes)
    }

    /// Bytes of the scratch tensors.
    pub fn scratch_bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The arguments, and after them the scratch tensors in memory that begins at `address`.
    pub fn arguments<'a>(&'a self, memory: &'a dyn Memory, address: u64) -> Vec<CallArgument<'a>> {
        let mut arguments: Vec<CallArgument<'a>> = match &self.folded {
            Some(folded) => folded.arguments(self.call.arguments).collect(),
            None => self.call.arguments.to_vec(),
        };
        arguments.extend(self.layout.arguments(memory, address));
        arguments
    }
}
