//! What is wrong with a kernel, with both parties and their lines.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A line of the kernel text or of the generated code, from `.loc`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct SourceLine {
    /// The file.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 where it is not known.
    pub column: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Kinds of findings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// An access beyond a buffer, the shared memory, the parameters or a thread's local memory.
    OutOfBounds,
    /// An address that is not a multiple of the width of the access.
    Misaligned,
    /// A read of bytes that nobody wrote.
    Uninitialised,
    /// An access to shared memory that an asynchronous copy is writing.
    InFlight,
    /// A write to shared memory that an asynchronous copy or product is reading.
    WriteUnderRead,
    /// Two accesses to shared memory, one of them a write, that no barrier orders.
    Race,
    /// Two accesses to global memory, one of them a write, that neither barriers nor release and acquire order.
    GlobalRace,
    /// The asynchronous proxy reads what was written through the generic proxy with no `fence.proxy.async` between.
    UnfencedProxy,
    /// Registers of a wgmma are touched before its group was waited for.
    AccumulatorInFlight,
    /// Registers of a wgmma were written, and no `wgmma.fence` came before it.
    UnfencedRegisters,
    /// A barrier that part of a warp, or threads that disagree about it, reach.
    BarrierDivergence,
    /// No warp can go on.
    Deadlock,
    /// An mbarrier that is used uninitialised or out of turn.
    PhaseMisuse,
    /// A copy or product that nobody waited for before the block ended.
    NeverWaited,
    /// An access to what a launch before this one may still be writing, with no `griddepcontrol.wait` before it.
    BeforeWait,
    /// A loop that never ends: a spin for a value that nobody writes, or a loop that does not advance.
    EndlessLoop,
    /// A `setmaxnreg` that not all warps of a warpgroup execute, or that goes the wrong way; too few registers for a product.
    RegisterBudget,
    /// The launch ran for more instructions than allowed.
    InstructionLimit,
    /// A `trap`.
    Trap,
    /// An operand that no GPU takes, such as an unknown swizzle in a descriptor.
    IllegalOperand,
}

impl FindingKind {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "access out of bounds",
            FindingKind::Misaligned => "misaligned access",
            FindingKind::Uninitialised => "read of uninitialised memory",
            FindingKind::InFlight => "access to memory that a copy in flight is writing",
            FindingKind::WriteUnderRead => "write to memory that is still being read asynchronously",
            FindingKind::Race => "race in shared memory",
            FindingKind::GlobalRace => "race in global memory",
            FindingKind::UnfencedProxy => "asynchronous read of a generic write without fence.proxy.async",
            FindingKind::AccumulatorInFlight => "registers of a wgmma in flight are touched",
            FindingKind::UnfencedRegisters => "registers of a wgmma were written without wgmma.fence",
            FindingKind::BarrierDivergence => "divergent barrier",
            FindingKind::Deadlock => "deadlock",
            FindingKind::PhaseMisuse => "misuse of an mbarrier",
            FindingKind::NeverWaited => "never waited for",
            FindingKind::BeforeWait => "access before griddepcontrol.wait to what an earlier launch writes",
            FindingKind::EndlessLoop => "endless loop",
            FindingKind::RegisterBudget => "misuse of setmaxnreg",
            FindingKind::InstructionLimit => "too many instructions",
            FindingKind::Trap => "trap",
            FindingKind::IllegalOperand => "illegal operand",
        }
    }
}

/// One side of a finding: an instruction that a thread executed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Party {
    /// The instruction's opcode.
    pub instruction: String,
    /// Line of the PTX text, from 1.
    pub ptx_line: u32,
    /// Lines of the source, innermost first; the last one is that of the kernel text. Empty without line information.
    pub lines: Vec<SourceLine>,
    /// Rank of the block in its cluster, of kernels that are launched in clusters.
    pub rank: Option<u32>,
    /// Index of the block in the grid, where it is of another block (or cluster) than the finding.
    pub block: Option<[u32; 3]>,
    /// Warp of the block.
    pub warp: u32,
    /// Lane of the warp; `None` for the whole warp or several lanes.
    pub lane: Option<u32>,
}

impl Party {
    /// The line of the kernel text.
    pub fn kernel_line(&self) -> Option<&SourceLine> {
        self.lines.last()
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.kernel_line() {
            write!(f, "{line}: ")?;
        }
        write!(f, "`{}` (PTX line {}", self.instruction, self.ptx_line)?;
        if self.lines.len() > 1 {
            write!(f, ", by way of {}", self.lines[0])?;
        }
        write!(f, ") by warp {}", self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, " lane {lane}")?;
        }
        if let Some([x, y, z]) = self.block {
            write!(f, " of block ({x}, {y}, {z})")?;
        }
        match self.rank {
            Some(rank) => write!(f, " of rank {rank} of the cluster"),
            None => Ok(()),
        }
    }
}

/// A fault of a kernel. Equal faults of the same two instructions in a block are one finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Who found it: the later party.
    pub party: Party,
    /// The other one, of faults that take two.
    pub other: Option<Party>,
    /// Address space and address in it, of faults at an address.
    pub address: Option<(&'static str, u64)>,
    /// More in words; may be empty.
    pub detail: String,
    /// How often it happened in the block.
    pub count: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.describe())?;
        if let Some((space, address)) = self.address {
            write!(f, " at {space} address {address:#x}")?;
        }
        let [x, y, z] = self.block;
        write!(f, " in block ({x}, {y}, {z})\n  {}", self.party)?;
        if let Some(other) = &self.other {
            write!(f, "\n  {other}")?;
        }
        if !self.detail.is_empty() {
            write!(f, "\n  {}", self.detail)?;
        }
        if self.count > 1 {
            write!(f, "\n  {} times", self.count)?;
        }
        Ok(())
    }
}
