//! What a launch did, instruction by instruction and line by line.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::finding::SourceLine;
use crate::machine::Counters;
use crate::program::{Binary, Kernel, Op, Program, Ternary, Unary};

/// Kinds of instructions, by the unit that executes them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionKind {
    /// Integers, predicates, moves and selections.
    Integer,
    /// f32 and packed 16-bit arithmetic.
    Float,
    /// Exponentials, logarithms, reciprocals, roots.
    Special,
    /// Conversions.
    Conversion,
    /// Tensor products.
    Tensor,
    /// Shared memory, matrices included.
    Shared,
    /// Global memory, copies included.
    Global,
    /// Local and parameter memory.
    Other,
    /// Shuffles, votes, reductions and matrices that lanes transpose.
    Exchange,
    /// Branches, barriers, fences and waits.
    Control,
}

/// What a set of instructions did.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Work {
    /// Instructions that warps executed.
    pub warp_instructions: u64,
    /// The same times the lanes that took part.
    pub lane_instructions: u64,
    /// Instructions of warps by kind.
    pub kinds: BTreeMap<InstructionKind, u64>,
    /// Accesses of warps to shared memory.
    pub shared_requests: u64,
    /// Wavefronts that these took.
    pub wavefronts: u64,
    /// Wavefronts that they would have taken without bank conflicts.
    pub ideal_wavefronts: u64,
    /// Most ways that the lanes of an access conflict on one bank; 1 is free of conflicts.
    pub worst_conflict: u32,
    /// Accesses of warps to global memory.
    pub global_requests: u64,
    /// 32-byte sectors that these touched.
    pub sectors: u64,
    /// Bytes that lanes asked of global memory.
    pub global_bytes: u64,
    /// Bytes that bulk and tensor copies moved.
    pub bulk_bytes: u64,
    /// Multiplications and additions of tensor products.
    pub tensor_operations: u64,
}

impl Work {
    /// Wavefronts that bank conflicts cost.
    pub fn conflicts(&self) -> u64 {
        self.wavefronts - self.ideal_wavefronts
    }

    /// Adds what other instructions did.
    pub fn add(&mut self, other: &Work) {
        self.warp_instructions += other.warp_instructions;
        self.lane_instructions += other.lane_instructions;
        for (kind, n) in &other.kinds {
            *self.kinds.entry(*kind).or_default() += n;
        }
        self.shared_requests += other.shared_requests;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.worst_conflict = self.worst_conflict.max(other.worst_conflict);
        self.global_requests += other.global_requests;
        self.sectors += other.sectors;
        self.global_bytes += other.global_bytes;
        self.bulk_bytes += other.bulk_bytes;
        self.tensor_operations += other.tensor_operations;
    }
}

/// What one instruction did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct InstructionProfile {
    /// Its opcode.
    pub instruction: String,
    /// Its kind.
    pub kind: InstructionKind,
    /// Its line of the PTX text.
    pub ptx_line: u32,
    /// Its source lines, innermost first.
    pub lines: Vec<SourceLine>,
    /// What it did.
    pub work: Work,
}

/// What the instructions of a line of the kernel text did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LineProfile {
    /// The line; `None` for instructions without one.
    pub line: Option<SourceLine>,
    /// What they did.
    pub work: Work,
}

/// What a launch did: its instructions, in order of the text.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// Those that were executed.
    pub instructions: Vec<InstructionProfile>,
}

impl Profile {
    pub(crate) fn new(program: &Program, kernel: &Kernel, counters: &[Counters]) -> Self {
        let one = |(n, c): (usize, &Counters)| {
            let step = &kernel.steps[n];
            let kind = kind(&step.op);
            InstructionProfile {
                instruction: kernel.opcodes[n].to_string(),
                kind,
                ptx_line: step.line,
                lines: program.lines.chain(step.location).to_vec(),
                work: Work {
                    warp_instructions: c.executed,
                    lane_instructions: c.lanes,
                    kinds: [(kind, c.executed)].into(),
                    shared_requests: c.shared_requests,
                    wavefronts: c.wavefronts,
                    ideal_wavefronts: c.ideal_wavefronts,
                    worst_conflict: c.worst,
                    global_requests: c.global_requests,
                    sectors: c.sectors,
                    global_bytes: c.bytes,
                    bulk_bytes: c.bulk_bytes,
                    tensor_operations: c.executed * tensor_operations(&step.op),
                },
            }
        };
        Self { instructions: counters.iter().enumerate().filter(|(_, c)| c.executed > 0).map(one).collect() }
    }

    /// All together.
    pub fn total(&self) -> Work {
        let mut total = Work::default();
        self.instructions.iter().for_each(|i| total.add(&i.work));
        total
    }

    /// By line of the kernel text, in order of file and line. An instruction counts to its outermost line.
    pub fn by_line(&self) -> Vec<LineProfile> {
        let mut lines: BTreeMap<Option<(&str, u32)>, LineProfile> = BTreeMap::new();
        for i in &self.instructions {
            let line = i.lines.last();
            let new = || LineProfile { line: line.cloned(), work: Work::default() };
            lines.entry(line.map(|l| (&*l.file, l.line))).or_insert_with(new).work.add(&i.work);
        }
        lines.into_values().collect()
    }
}

impl Profile {
    /// A source text with what the instructions of each line did before it: times executed by warps, wavefronts and the most
    /// ways of bank conflicts, sectors. `file` is its name as in the lines; an instruction counts to every line that it was
    /// inlined through, so that functions show their share too.
    pub fn annotate(&self, file: &str, text: &str) -> String {
        let mut work: BTreeMap<u32, Work> = BTreeMap::new();
        for i in &self.instructions {
            let mut lines: Vec<u32> = i.lines.iter().filter(|l| &*l.file == file).map(|l| l.line).collect();
            lines.sort_unstable();
            lines.dedup();
            for line in lines {
                work.entry(line).or_default().add(&i.work);
            }
        }
        let mut all = format!("{:>12} {:>10} {:>4} {:>10} |\n", "instructions", "wavefronts", "ways", "sectors");
        for (line, source) in (1..).zip(text.lines()) {
            let annotated = match work.get(&line) {
                Some(w) => {
                    format!(
                        "{:>12} {:>10} {:>4} {:>10} | {source}",
                        w.warp_instructions, w.wavefronts, w.worst_conflict, w.sectors
                    )
                }
                None => format!("{:39} | {source}", ""),
            };
            all.push_str(annotated.trim_end());
            all.push('\n');
        }
        all
    }
}

/// A table of the lines.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>12} {:>10} {:>10} {:>10} {:>6} {:>10} {:>12}  line",
            "instructions", "special", "tensor", "wavefronts", "ways", "sectors", "bytes"
        )?;
        let mut row = |name: &str, work: &Work| {
            let kind = |k| work.kinds.get(&k).copied().unwrap_or(0);
            writeln!(
                f,
                "{:>12} {:>10} {:>10} {:>10} {:>6} {:>10} {:>12}  {name}",
                work.warp_instructions,
                kind(InstructionKind::Special),
                kind(InstructionKind::Tensor),
                work.wavefronts,
                work.worst_conflict,
                work.sectors,
                work.global_bytes + work.bulk_bytes
            )
        };
        for line in self.by_line() {
            row(&line.line.map_or_else(|| "(no line)".to_owned(), |l| l.to_string()), &line.work)?;
        }
        row("total", &self.total())
    }
}

fn kind(op: &Op) -> InstructionKind {
    use crate::syntax::Space;
    use InstructionKind::{Control, Conversion, Exchange, Float, Global, Integer, Other, Shared, Special, Tensor};
    let space = |space: Space| match space {
        Space::Shared => Shared,
        Space::Global | Space::Generic => Global,
        _ => Other,
    };
    match op {
        Op::Unary { op, .. } => match op {
            Unary::FloatNegate | Unary::FloatAbsolute => Float,
            Unary::Not
            | Unary::NotHalf
            | Unary::NegateHalf
            | Unary::AbsoluteHalf
            | Unary::Negate
            | Unary::Absolute
            | Unary::CountBits
            | Unary::LeadingZeros
            | Unary::TopBit
            | Unary::ShiftToTop
            | Unary::Reverse => Integer,
            _ => Special,
        },
        Op::Binary { op, .. } => match op {
            Binary::FloatAdd | Binary::FloatSubtract | Binary::FloatMultiply => Float,
            Binary::FloatMin | Binary::FloatMax | Binary::FloatMinNan | Binary::FloatMaxNan => Float,
            Binary::FloatDivide => Special,
            _ => Integer,
        },
        Op::Ternary { op: Ternary::FloatMultiplyAdd | Ternary::FloatMultiplyAddSaturated, .. } | Op::PairArithmetic { .. } => {
            Float
        }
        Op::Convert { .. } | Op::ConvertIntegerWide { .. } | Op::Pack { .. } | Op::WidenPair { .. } | Op::RoundTf32 { .. } => {
            Conversion
        }
        Op::DoubleOfInteger { .. } | Op::FloatOfDouble { .. } => Conversion,
        Op::Load(a) | Op::Store(a) => space(a.space),
        Op::Atomic { space: s, .. } => space(*s),
        Op::LoadMatrix { .. } | Op::StoreMatrix { .. } => Shared,
        Op::AddVector { .. } | Op::CopyAsync { .. } | Op::TensorLoad(_) | Op::TensorStore { .. } | Op::BulkCopy { .. } => Global,
        Op::Mma(_) | Op::Wgmma(_) => Tensor,
        Op::Shuffle { .. } | Op::Vote { .. } | Op::Reduce { .. } | Op::Elect { .. } | Op::MoveMatrix { .. } => Exchange,
        Op::Nop
        | Op::AwaitLaunches
        | Op::SetRegisters { .. }
        | Op::CommitCopies
        | Op::WaitCopies { .. }
        | Op::WarpBarrier { .. }
        | Op::Barrier { .. }
        | Op::Fence { .. }
        | Op::FenceProxyAsync { .. }
        | Op::BarrierInit { .. }
        | Op::BarrierInvalidate { .. }
        | Op::BarrierArrive { .. }
        | Op::BarrierExpect { .. }
        | Op::BarrierTest { .. }
        | Op::CommitBulk
        | Op::WaitBulk { .. }
        | Op::WgmmaFence
        | Op::WgmmaCommit
        | Op::WgmmaWait { .. }
        | Op::Branch { .. }
        | Op::Exit
        | Op::Trap => Control,
        _ => Integer,
    }
}

/// Multiplications and additions of a warp's tensor instruction.
fn tensor_operations(op: &Op) -> u64 {
    match op {
        Op::Mma(mma) => 2 * 16 * 8 * u64::from(mma.k),
        Op::Wgmma(wgmma) => 2 * 16 * u64::from(wgmma.n) * 16,
        _ => 0,
    }
}
