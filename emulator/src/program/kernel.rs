//! A kernel as it is executed: its steps, rows of constants and special registers, parameters and
//! limits.

use super::Lines;
use super::operation::Op;

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
    /// Rank of the block in its cluster, and blocks of a cluster: `%cluster_ctarank`,
    /// `%cluster_nctarank`.
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
    /// Values of the rows after the 64-bit registers, and whether they are addresses in the block's
    /// own shared memory.
    pub doubles: Vec<(u64, bool)>,
    pub parameters: Vec<Parameter>,
    pub parameter_bytes: u32,
    /// Bytes of shared memory before the dynamic part.
    pub static_shared: u32,
    pub local_bytes: u32,
    pub max_threads: Option<u32>,
    /// Blocks that a multiprocessor is to hold, 0 if nothing is said, and most registers of a
    /// thread.
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
