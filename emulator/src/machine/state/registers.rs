//! How many registers each warp has, and how many of a block nobody has.
//!
//! How many registers a launch gives is up to the compiler. Assumed is what `.maxnreg`, or
//! `.maxntid` (`.reqntid`) with `.minnctapersm`, leave to a thread of 65536 of a multiprocessor, in
//! steps of 8, and no more than the least that an `.inc` of the kernel asks for. Where a kernel has
//! no such directive the count is not known before it is compiled for a GPU, and pools are not
//! followed. What the machine code needs is not known either: that a warp has too few registers is
//! found where a `wgmma` alone names more.

use crate::program::{Kernel, Op};

/// Registers of a multiprocessor: every architecture with `setmaxnreg` has as many.
const OF_MULTIPROCESSOR: u32 = 65_536;
/// Most registers of a thread.
const OF_THREAD: u32 = 256;

/// The registers of the blocks of a cluster.
#[derive(Debug)]
pub(crate) struct Registers {
    /// Registers of a thread of each warp; `None` if the launch does not say how many there are.
    pub warps: Option<Vec<u32>>,
    /// Of each block, registers that nobody has.
    pub free: Vec<u32>,
    /// The `setmaxnreg` that each warp has executed: instruction and the warp's clock.
    pub executed: Vec<Vec<(u32, u32)>>,
}

impl Registers {
    pub fn new(kernel: &Kernel, blocks: u32, warps: usize) -> Self {
        let launched = at_launch(kernel);
        Self { warps: launched.map(|count| vec![count; warps]), free: vec![0; blocks as usize], executed: vec![vec![]; warps] }
    }

    /// Registers of a block that nobody has.
    pub fn free(&self, block: u32) -> u32 {
        self.free[block as usize]
    }
}

/// Registers of a thread at launch, if the kernel's directives fix them.
fn at_launch(kernel: &Kernel) -> Option<u32> {
    let of_threads = kernel.max_threads.map(|threads| {
        let threads = threads.next_multiple_of(32).saturating_mul(kernel.min_blocks.max(1)).max(1);
        (OF_MULTIPROCESSOR / threads).min(OF_THREAD)
    });
    let count = match (kernel.max_registers, of_threads) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b)?,
    };
    let least = |op: &Op| match op {
        Op::SetRegisters { count, increase: true } => Some(*count),
        _ => None,
    };
    let least = kernel.steps.iter().filter_map(|step| least(&step.op)).min();
    Some((count / 8 * 8).min(least.unwrap_or(OF_THREAD)))
}
