//! A block, or the blocks of a cluster: all that its warps share, and what each of them waits for.
//!
//! Warps are numbered through the blocks of a cluster, so that clocks, findings and waits are of
//! the cluster as a whole.

use std::ops::Range;

use super::barriers::{ClusterBarrier, NamedBarrier, Object};
use super::clocks::Clocks;
use super::copies::{Bulk, Copies, Unlanded};
use super::counters::Counters;
use super::pace::Pace;
use super::products::Products;
use super::progress::Progress;
use super::record::{At, Record};
use super::registers::Registers;
use super::warp::{Place, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{GlobalMemory, MANY, Region, Shared, Traces, Trouble};
use crate::options::{Options, Random};
use crate::program::Kernel;
use crate::syntax::Space;

/// What is the same for all blocks of a launch.
pub(crate) struct Launched<'l> {
    pub kernel: &'l Kernel,
    pub memory: &'l GlobalMemory,
    /// Variables of the module.
    pub variables: &'l Region,
    pub parameters: &'l [u8],
    pub options: &'l Options,
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    pub dynamic_shared: u32,
    /// Bytes that launches before this one may still be writing.
    pub pending: &'l [Range<u64>],
    /// Blocks that have begun, and those that wait for others.
    pub progress: &'l Progress,
    /// Accesses to global memory; `None` where races are not looked for.
    pub traces: Option<&'l Traces>,
}

/// Whether a warp can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Ready,
    Exited,
    /// At a named barrier.
    AtBarrier {
        id: u32,
        step: u32,
    },
    /// At an mbarrier, for a phase of this parity.
    AtObject {
        address: u32,
        parity: u32,
        step: u32,
    },
    /// At the barrier of the cluster.
    AtCluster {
        step: u32,
    },
    /// At a `setmaxnreg.inc`, for so many registers per thread.
    AtRegisters {
        count: u32,
        step: u32,
    },
    /// At a value in global memory that another block is to change.
    AtGlobal {
        step: u32,
    },
}

/// What comes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// On with the same warp.
    Continue,
    /// Another warp's turn.
    Yield,
}

/// A block that runs, or the blocks of a cluster.
pub(crate) struct Block<'l> {
    pub launched: &'l Launched<'l>,
    pub kernel: &'l Kernel,
    pub shared: Shared,
    pub warps: Vec<Warp>,
    pub warps_per_block: u32,
    /// Blocks of the cluster.
    pub ranks: u32,
    pub cluster: ClusterBarrier,
    pub status: Vec<Status>,
    /// Lanes of each warp that have waited for the launches before this one.
    pub waited: Vec<u32>,
    pub clocks: Clocks,
    pub registers: Registers,
    pub pace: Pace,
    pub barriers: Vec<NamedBarrier>,
    pub objects: Vec<Object>,
    /// Copies of each warp's own threads.
    pub copies: Vec<Copies>,
    /// Copies of the asynchronous proxy.
    pub bulk: Vec<Bulk>,
    /// Copies to global memory that were waited for as far as they read, and not as far as they
    /// write.
    pub unlanded: Vec<Unlanded>,
    pub products: Vec<Products>,
    /// Who issued the asynchronous operation of each number, from 1.
    pub flights: Vec<At>,
    pub record: Record,
    pub counters: Vec<Counters>,
    pub random: Random,
    /// Instructions of warps, and of their lanes.
    pub executed: [u64; 2],
}

impl<'l> Block<'l> {
    /// The blocks of these indices, which are the cluster of a number in the order of their ranks;
    /// one block by itself is a cluster of one.
    pub fn new(launched: &'l Launched<'l>, number: u32, ids: &[[u32; 3]]) -> Self {
        let kernel = launched.kernel;
        let warps_per_block = launched.threads.iter().product::<u32>().div_ceil(32);
        let ranks = ids.len() as u32;
        let warps = (ranks * warps_per_block) as usize;
        let shared_bytes = kernel.static_shared + launched.dynamic_shared;
        let place = |rank: u32| Place {
            block: ids[rank as usize],
            grid: launched.grid,
            threads: launched.threads,
            cluster: kernel.cluster,
            rank,
            shared_bytes: launched.dynamic_shared,
        };
        let warp = |w: u32| {
            let rank = w / warps_per_block;
            Warp::new(kernel, rank * warps_per_block, w % warps_per_block, &place(rank))
        };
        let id = ids[0];
        let index =
            u64::from(id[0]) + u64::from(launched.grid[0]) * (u64::from(id[1]) + u64::from(launched.grid[1]) * u64::from(id[2]));
        let counters = if launched.options.profile { kernel.steps.len() } else { 0 };
        Self {
            launched,
            kernel,
            shared: Shared::new(shared_bytes, ranks, kernel.granule, warps, launched.options.races),
            warps: (0..warps as u32).map(warp).collect(),
            warps_per_block,
            ranks,
            cluster: ClusterBarrier::new(warps),
            status: vec![Status::Ready; warps],
            waited: vec![0; warps],
            clocks: Clocks::new(number, warps),
            registers: Registers::new(kernel, ranks, warps),
            pace: Pace::new(warps),
            barriers: vec![NamedBarrier::default(); 16 * ranks as usize],
            objects: vec![],
            copies: (0..warps).map(|_| Copies::default()).collect(),
            bulk: vec![],
            unlanded: vec![],
            products: (0..warps).map(|_| Products::new(kernel)).collect(),
            flights: vec![],
            record: Record::default(),
            counters: vec![Counters::default(); counters],
            random: Random::new(launched.options.seed, index),
            executed: [0; 2],
        }
    }

    /// Rank of the block that a warp is of.
    pub fn rank(&self, warp: u32) -> u32 {
        warp / self.warps_per_block
    }

    /// The warps of a block.
    pub fn warps_of(&self, rank: u32) -> std::ops::Range<usize> {
        let (first, count) = ((rank * self.warps_per_block) as usize, self.warps_per_block as usize);
        first..first + count
    }

    /// Notes what is wrong with an access to shared memory.
    #[cold]
    pub fn trouble(&mut self, trouble: Trouble, at: At, address: u64) {
        let flight = |n: u32| self.flights.get(n as usize - 1).copied();
        let written = |w: crate::memory::Writer| At { step: w.step, warp: w.warp, lane: w.lane };
        let (kind, other, detail) = match trouble {
            Trouble::OutOfBounds => {
                let bytes = self.kernel.static_shared + self.launched.dynamic_shared;
                (
                    FindingKind::OutOfBounds,
                    None,
                    format!("the block has {bytes} bytes of shared memory from address {}", crate::memory::windows::SHARED_START),
                )
            }
            Trouble::Misaligned => (FindingKind::Misaligned, None, String::new()),
            Trouble::Uninitialised => (FindingKind::Uninitialised, None, String::new()),
            Trouble::InFlight(n) => (FindingKind::InFlight, flight(n), String::new()),
            Trouble::BeingRead(n) => (FindingKind::WriteUnderRead, flight(n), String::new()),
            Trouble::AfterWrite(w) if w.agent == at.warp => (
                FindingKind::Race,
                Some(written(w)),
                "another lane of the same warp wrote it, with no warp barrier between".to_owned(),
            ),
            Trouble::AfterWrite(w) if w.asynchronous => (
                FindingKind::Race,
                Some(written(w)),
                "an asynchronous copy wrote it, whose mbarrier was not waited for".to_owned(),
            ),
            Trouble::AfterWrite(w) => {
                (FindingKind::Race, Some(written(w)), "written by another warp with no barrier between".to_owned())
            }
            Trouble::AfterRead { warp, lane, step } => {
                let whose = if warp == at.warp { "another lane of the same warp" } else { "another warp" };
                (FindingKind::Race, Some(At { step, warp, lane }), format!("read by {whose} with no barrier between"))
            }
            Trouble::Ended { rank } => {
                (FindingKind::OutOfBounds, None, format!("the block of rank {rank} has ended, and its shared memory with it"))
            }
            Trouble::Unfenced(w) => (FindingKind::UnfencedProxy, Some(written(w)), String::new()),
        };
        self.record.add(kind, at, other, Some((Space::Shared, address)), || detail);
    }

    /// Gives an asynchronous operation a number.
    pub fn take_off(&mut self, at: At) -> u32 {
        self.flights.push(at);
        self.flights.len() as u32
    }

    /// The value that all lanes of a mask hold; a finding if they differ.
    pub fn uniform(&mut self, warp: &Warp, row: u32, mask: u32, pc: u32, what: &str) -> u32 {
        let values = &warp.words[row as usize];
        let first = values[mask.trailing_zeros() as usize];
        if lanes(mask).any(|l| values[l] != first) {
            let at = At { step: pc, warp: warp.index as u16, lane: MANY };
            self.record
                .add(FindingKind::BarrierDivergence, at, None, None, || format!("{what} differs between the lanes of a warp"));
        }
        first
    }
}
