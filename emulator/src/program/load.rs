//! A tree to programs: variables and parameters get addresses, instructions are decoded and joined to the control flow.

use std::collections::HashMap;

use super::Lines;
use super::control::{Flow, reconvergence};
use super::operands::Decoder;
use super::operation::Op;
use super::touched::{tensor_rows, touched};
use crate::LoadError;
use crate::memory::windows;
use crate::syntax::{KernelTree, Space, Tree, Variable};

/// What a row that is no register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    Constant(u32),
    /// `%tid`, `%ntid`, `%ctaid`, `%nctaid` along a dimension.
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    Warp,
    Warps,
    /// Lanes before, up to, after, from this one: `lt`, `le`, `gt`, `ge`; and this one alone.
    LanesBefore,
    LanesUpTo,
    LanesAfter,
    LanesFrom,
    LaneBit,
    SharedBytes,
    /// An address in the block's own shared memory.
    Shared(u32),
    /// Rank of the block in its cluster, and blocks of a cluster: `%cluster_ctarank`, `%cluster_nctarank`.
    Rank,
    Ranks,
    /// `%cluster_ctaid`, `%cluster_nctaid`, `%clusterid`, `%nclusterid` along a dimension.
    BlockOfCluster(u8),
    BlocksOfCluster(u8),
    Cluster(u8),
    Clusters(u8),
}

impl Row {
    /// A special register by name (PTX ISA 10).
    pub fn special(name: &str) -> Option<Self> {
        let (name, dimension) = match name.rsplit_once('.') {
            Some((name, "x")) => (name, 0),
            Some((name, "y")) => (name, 1),
            Some((name, "z")) => (name, 2),
            _ => (name, 3),
        };
        Some(match (name, dimension) {
            ("%tid", d @ 0..3) => Row::Thread(d),
            ("%ntid", d @ 0..3) => Row::Threads(d),
            ("%ctaid", d @ 0..3) => Row::Block(d),
            ("%nctaid", d @ 0..3) => Row::Blocks(d),
            ("%laneid", 3) => Row::Lane,
            ("%warpid", 3) => Row::Warp,
            ("%nwarpid", 3) => Row::Warps,
            ("%lanemask_lt", 3) => Row::LanesBefore,
            ("%lanemask_le", 3) => Row::LanesUpTo,
            ("%lanemask_gt", 3) => Row::LanesAfter,
            ("%lanemask_ge", 3) => Row::LanesFrom,
            ("%lanemask_eq", 3) => Row::LaneBit,
            ("%dynamic_smem_size", 3) => Row::SharedBytes,
            // A launch without clusters is one of clusters of one block.
            ("%cluster_ctarank", 3) => Row::Rank,
            ("%cluster_nctarank", 3) => Row::Ranks,
            ("%cluster_ctaid", d @ 0..3) => Row::BlockOfCluster(d),
            ("%cluster_nctaid", d @ 0..3) => Row::BlocksOfCluster(d),
            ("%clusterid", d @ 0..3) => Row::Cluster(d),
            ("%nclusterid", d @ 0..3) => Row::Clusters(d),
            _ => return None,
        })
    }
}

/// Place of a parameter in the parameter space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameter {
    pub offset: u32,
    pub bytes: u32,
}

/// An instruction in its place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Step {
    pub op: Op,
    /// Predicate, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// Where lanes that part here meet again.
    pub meet: u32,
    /// Line of the PTX text.
    pub line: u32,
    pub location: Option<u32>,
    /// Registers of wgmmas that it touches besides: see [`touched`].
    pub touched: Box<[u32]>,
}

/// A kernel ready for execution.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub name: String,
    pub steps: Vec<Step>,
    /// Opcode of each instruction, for reports.
    pub opcodes: Vec<Box<str>>,
    /// Predicate, 32-bit and 64-bit registers.
    pub registers: [u32; 3],
    /// Rows after the 32-bit registers.
    pub words: Vec<Row>,
    /// Values of the rows after the 64-bit registers, and whether they are addresses in the block's own shared memory.
    pub doubles: Vec<(u64, bool)>,
    pub parameters: Vec<Parameter>,
    pub parameter_bytes: u32,
    /// Bytes of shared memory before the dynamic part.
    pub static_shared: u32,
    pub local_bytes: u32,
    pub max_threads: Option<u32>,
    /// Blocks that a multiprocessor is to hold, 0 if nothing is said, and most registers of a thread.
    pub min_blocks: u32,
    pub max_registers: Option<u32>,
    /// Blocks of a cluster along x, y and z.
    pub cluster: [u32; 3],
    /// Largest power of two, up to 16, that divides the width of every access to shared memory.
    pub granule: u32,
    /// Whether any register is used by a wgmma.
    pub uses_wgmma: bool,
}

/// A module ready for execution.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub target: String,
    pub kernels: Vec<Kernel>,
    pub lines: Lines,
    /// Initial bytes of the module's variables, from [`windows::MODULE`] on.
    pub variables: Vec<u8>,
}

impl Program {
    /// Loads a module from its tree.
    pub fn new(tree: &Tree<'_>) -> Result<Self, LoadError> {
        let mut symbols = HashMap::new();
        let mut variables = vec![];
        for v in tree.variables.iter().filter(|v| v.space != Space::Shared) {
            place_initialised(v, &mut variables, &mut symbols);
        }
        let mut kernels = vec![];
        for kernel in &tree.kernels {
            let mut symbols = symbols.clone();
            for v in kernel.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)) {
                place_initialised(v, &mut variables, &mut symbols);
            }
            kernels.push(load(tree, kernel, symbols)?);
        }
        Ok(Self { target: tree.target.to_owned(), kernels, lines: Lines::new(tree), variables })
    }
}

fn place_initialised<'t>(v: &Variable<'t>, memory: &mut Vec<u8>, symbols: &mut HashMap<&'t str, (Space, u64)>) {
    let at = memory.len().next_multiple_of(v.align.max(1) as usize);
    memory.resize(at + v.bytes as usize, 0);
    let initial = v.initial.len().min(v.bytes as usize);
    memory[at..at + initial].copy_from_slice(&v.initial[..initial]);
    symbols.insert(v.name, (v.space, windows::MODULE + at as u64));
}

fn load<'t>(tree: &Tree<'t>, kernel: &KernelTree<'t>, mut symbols: HashMap<&'t str, (Space, u64)>) -> Result<Kernel, LoadError> {
    let mut parameters = vec![];
    let mut parameter_bytes = 0u32;
    for p in &kernel.parameters {
        let offset = parameter_bytes.next_multiple_of(p.align.max(1));
        symbols.insert(p.name, (Space::Param, offset.into()));
        parameters.push(Parameter { offset, bytes: p.bytes });
        parameter_bytes = offset + p.bytes;
    }
    let shared = || tree.variables.iter().chain(&kernel.variables).filter(|v| v.space == Space::Shared);
    let mut at = windows::SHARED_START;
    for v in shared().filter(|v| v.bytes > 0) {
        at = at.checked_next_multiple_of(v.align.max(1)).unwrap_or(u32::MAX);
        symbols.insert(v.name, (Space::Shared, at.into()));
        at = at.saturating_add(v.bytes);
    }
    let align = shared().filter(|v| v.bytes == 0).map(|v| v.align.max(1)).max();
    at = at.checked_next_multiple_of(align.unwrap_or(1)).unwrap_or(u32::MAX);
    for v in shared().filter(|v| v.bytes == 0) {
        symbols.insert(v.name, (Space::Shared, at.into()));
    }
    let mut local_bytes = 0u32;
    for v in kernel.variables.iter().filter(|v| v.space == Space::Local) {
        let offset = local_bytes.next_multiple_of(v.align.max(1));
        symbols.insert(v.name, (Space::Local, offset.into()));
        local_bytes = offset.saturating_add(v.bytes);
        if local_bytes > 1 << 19 {
            // No GPU gives a thread more.
            return Err(LoadError::Syntax { line: kernel.line, what: format!("{local_bytes} bytes of local memory") });
        }
    }
    let mut decoder = Decoder { kernel, symbols: &symbols, words: vec![], doubles: vec![], constants: HashMap::new() };
    let mut steps = Vec::with_capacity(kernel.instructions.len() + 1);
    for i in &kernel.instructions {
        let op = decoder.decode(i)?;
        steps.push(Step { op, guard: i.guard, meet: 0, line: i.line, location: i.location, touched: Box::default() });
    }
    // Control may run off the end of the text, or branch there.
    let line = steps.last().map_or(kernel.line, |s| s.line);
    steps.push(Step { op: Op::Exit, guard: None, meet: 0, line, location: None, touched: Box::default() });
    let flow: Vec<Flow> = steps
        .iter()
        .map(|s| match s.op {
            Op::Branch { target } => Flow::Branch { target, guarded: s.guard.is_some() },
            Op::Exit | Op::Trap => Flow::Exit { guarded: s.guard.is_some() },
            _ => Flow::Next,
        })
        .collect();
    for (step, meet) in steps.iter_mut().zip(reconvergence(&flow)) {
        step.meet = meet;
    }
    let (words, doubles) = (decoder.words, decoder.doubles);
    let opcodes = kernel.instructions.iter().map(|i| i.opcode.into()).chain(["exit".into()]).collect();
    let granule = steps.iter().filter_map(|s| shared_width(&s.op)).min().unwrap_or(16).min(16);
    let tensor_rows = tensor_rows(&steps, kernel.registers[1]);
    for step in &mut steps {
        step.touched = touched(&step.op, &tensor_rows);
    }
    let uses_wgmma = steps.iter().any(|s| matches!(s.op, Op::Wgmma(_)));
    Ok(Kernel {
        name: kernel.name.to_owned(),
        steps,
        opcodes,
        registers: kernel.registers,
        words,
        doubles,
        parameters,
        parameter_bytes,
        static_shared: at - windows::SHARED_START,
        local_bytes,
        max_threads: kernel.max_threads,
        min_blocks: kernel.min_blocks,
        max_registers: kernel.max_registers,
        cluster: kernel.cluster,
        granule,
        uses_wgmma,
    })
}

/// Bytes of an access to shared memory; `None` if there is none.
fn shared_width(op: &Op) -> Option<u32> {
    match op {
        Op::Load(a) | Op::Store(a) if matches!(a.space, Space::Shared | Space::Generic) => Some(a.bytes()),
        Op::Atomic { space: Space::Shared | Space::Generic, wide, .. } => Some(if *wide { 8 } else { 4 }),
        Op::CopyAsync { bytes, .. } => Some((*bytes).into()),
        Op::BarrierInit { .. } => Some(8),
        _ => None,
    }
}
