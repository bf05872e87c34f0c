//! What the code generator gives: files, launches and how to call them.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::cost::{Work, Workload};
use flashtile_dsl::analysis::mask::MaskOptions;
use flashtile_dsl::ir::{Binding, Kernel};
use serde::{Deserialize, Serialize};

use crate::abi::{Abi, FoldedRows, Scratch};
use crate::arch::Arch;
use crate::blocks;
use crate::plan::Plan;
use crate::reason::Reason;
use crate::schedule::{BlockKnobs, Schedule};

/// Generated code and how to call it.
#[derive(Clone, PartialEq, Debug)]
pub struct Generated {
    /// The `.cu` file.
    pub source: String,
    /// The launches, in order.
    pub launches: Vec<Launch>,
    /// Which of them the knobs of the schedule are about.
    pub main: usize,
    /// Tensors between the launches.
    pub scratch: Vec<Scratch>,
    /// How the launches see the tensors of a call, if not as the kernel text does: they have a size
    /// more.
    pub folded: Option<FoldedRows>,
    /// The schedule it was generated under.
    pub schedule: Schedule,
    /// The architecture.
    pub arch: &'static str,
    /// What must hold of the arguments, in words.
    pub assumptions: Vec<String>,
    /// Why products do not go through `wgmma` although the architecture has it, if the kernel
    /// cannot use it.
    pub fallback: Option<String>,
}

/// One launch of generated code.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// The calling contract.
    pub abi: Abi,
    /// Resources as predicted from the plan.
    pub predicted: Resources,
    /// The kernel that it executes, before it was normalised: that of the text, or a part of it.
    pub kernel: Kernel,
    /// Its name among the launches, as a schedule has it: `combine.warps=2`.
    pub name: String,
    /// The knobs that it is generated under.
    pub knobs: BlockKnobs,
    /// The normalised kernel, for inspection.
    pub normal: Kernel,
    /// The plan, for inspection.
    pub plan: Plan,
}

impl Generated {
    /// The launch that the knobs of the schedule are about.
    pub fn main(&self) -> &Launch {
        &self.launches[self.main]
    }

    /// The work that all launches execute together, for these run-time sizes: whole tiles of every
    /// trip, every load and store of every program, what lies between the launches included.
    pub fn executed(&self, binding: &Binding, sizes: &BTreeMap<String, i64>) -> Work {
        let mut all = Work::default();
        let with_size = self.folded.as_ref().and_then(|folded| folded.with_size(sizes));
        let sizes = with_size.as_ref().unwrap_or(sizes);
        for Launch { kernel, knobs, .. } in &self.launches {
            let block = |axis| i64::from(blocks::block(kernel, knobs, axis));
            let options = MaskOptions { early_stop: knobs.early_stop, ..MaskOptions::default() };
            all += Workload { kernel, binding, sizes }.executed(&block, options);
        }
        all
    }
}

/// Resources of a block, as predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Registers per thread (an estimate: the compiler decides).
    pub registers: u32,
    /// Threads.
    pub threads: u32,
    /// Blocks resident on a multiprocessor.
    pub blocks_per_sm: u32,
    /// What limits that number.
    pub limit: Limit,
}

/// What limits the number of resident blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Registers.
    #[default]
    Registers,
    /// Shared memory.
    Shared,
    /// Threads.
    Threads,
    /// Resident blocks.
    Blocks,
}

/// Whether a schedule is legal.
#[derive(Clone, PartialEq, Debug)]
pub struct Legality {
    /// All reasons against; empty if it is legal.
    pub reasons: Vec<Reason>,
    /// Predicted resources (of what could be planned; zero if nothing could).
    pub predicted: Resources,
}

impl Legality {
    /// Whether nothing speaks against the schedule.
    pub fn is_legal(&self) -> bool {
        self.reasons.is_empty()
    }
}

impl Resources {
    /// Bytes of a multiprocessor's shared memory that a block takes.
    pub(crate) fn shared_of_block(arch: &Arch, shared_bytes: u32) -> usize {
        let reserved = if arch.capability >= (8, 0) { 1024 } else { 0 };
        shared_bytes.next_multiple_of(128) as usize + reserved
    }

    /// Resident blocks of a kernel with these registers, shared memory and threads.
    pub fn occupancy(arch: &Arch, registers: u32, shared_bytes: u32, threads: u32) -> (u32, Limit) {
        // Registers are given to warps in units of 256, shared memory to blocks in units of 128
        // bytes, 1 KiB of it reserved per block.
        let per_block = registers.next_multiple_of(8) * threads.next_multiple_of(32);
        let shared = Self::shared_of_block(arch, shared_bytes);
        let limits = [
            (arch.registers_per_sm / per_block.max(1), Limit::Registers),
            ((arch.shared_per_sm / shared.max(1)) as u32, Limit::Shared),
            (arch.threads_per_sm / threads.max(1), Limit::Threads),
            (arch.blocks_per_sm, Limit::Blocks),
        ];
        limits.into_iter().min_by_key(|(n, _)| *n).expect("four limits")
    }
}
