//! State of a warp, and its control flow: divergence with a stack of paths that wait for each
//! other.

use crate::memory::windows;
use crate::program::{Address, END, Kernel, Row};

/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// A path that waits for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Path {
    pc: u32,
    lanes: u32,
    /// Instruction before which it ends.
    until: u32,
}

/// A warp.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub index: u32,
    pub words: Vec<[u32; 32]>,
    pub doubles: Vec<[u64; 32]>,
    pub predicates: Vec<u32>,
    /// Next instruction and the lanes on this path.
    pub pc: u32,
    pub lanes: u32,
    until: u32,
    waiting: Vec<Path>,
    /// Lanes that have not exited.
    pub live: u32,
    /// Local memory of all lanes, one after another.
    pub local: Vec<u8>,
    pub local_bytes: u32,
    /// Whether a local byte is written.
    pub local_initialised: Vec<bool>,
    /// The strong access to global memory that it executed last, if it wrote nothing since:
    /// instruction, addresses and values.
    pub poll: Option<(u32, Vec<(u64, u32)>)>,
}

/// Where a warp runs.
pub(crate) struct Place {
    pub block: [u32; 3],
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    /// Blocks of a cluster, and the block's rank in it.
    pub cluster: [u32; 3],
    pub rank: u32,
    pub shared_bytes: u32,
}

impl Warp {
    /// A warp before its first instruction: of its block the one of this index, of the cluster that
    /// of `first + index`.
    pub fn new(kernel: &Kernel, first: u32, index: u32, place: &Place) -> Self {
        let [predicates, words, doubles] = kernel.registers;
        let threads = place.threads.iter().product::<u32>();
        let before = 32 * index;
        let live = if threads - before >= 32 { FULL } else { (1 << (threads - before)) - 1 };
        let mut rows = vec![[0; 32]; words as usize];
        rows.extend(kernel.words.iter().map(|row| std::array::from_fn(|lane| value(*row, lane as u32, index, place))));
        let mut wide = vec![[0; 32]; doubles as usize];
        let own = u64::from(windows::of_rank(place.rank));
        wide.extend(kernel.doubles.iter().map(|&(x, shared)| [if shared { x + own } else { x }; 32]));
        let mut flags = vec![0; predicates as usize];
        flags.extend([0, FULL]);
        let local = kernel.local_bytes as usize * 32;
        Self {
            index: first + index,
            words: rows,
            doubles: wide,
            predicates: flags,
            pc: 0,
            lanes: live,
            until: END,
            waiting: vec![],
            live,
            local: vec![0xff; local],
            local_bytes: kernel.local_bytes,
            local_initialised: vec![false; local],
            poll: None,
        }
    }

    /// On to the next instruction.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.pc += 1;
        if self.pc == self.until {
            self.resume();
        }
    }

    /// A branch of the lanes `taken`, the others going on; `meet` is where they meet again.
    pub fn branch(&mut self, taken: u32, target: u32, meet: u32) {
        let others = self.lanes & !taken;
        if taken == 0 {
            return self.advance();
        }
        if others == 0 {
            self.pc = target;
            if self.pc == self.until {
                self.resume();
            }
            return;
        }
        let next = self.pc + 1;
        // Where the paths meet this one goes on, unless it ends there too.
        if meet != self.until {
            self.waiting.push(Path { pc: meet, lanes: self.lanes, until: self.until });
        }
        self.waiting.push(Path { pc: next, lanes: others, until: meet });
        self.waiting.push(Path { pc: target, lanes: taken, until: meet });
        self.resume();
    }

    /// Ends lanes.
    pub fn exit(&mut self, lanes: u32) {
        self.live &= !lanes;
        self.lanes &= !lanes;
        if self.lanes == 0 {
            self.resume();
        } else {
            self.advance();
        }
    }

    /// Takes up the latest path that has anything to do.
    fn resume(&mut self) {
        while let Some(path) = self.waiting.pop() {
            let lanes = path.lanes & self.live;
            if lanes == 0 || path.pc == END || path.pc == path.until {
                continue;
            }
            (self.pc, self.lanes, self.until) = (path.pc, lanes, path.until);
            return;
        }
        self.lanes = 0;
    }

    /// Address of a lane's access.
    #[inline(always)]
    pub fn address(&self, a: &Address, lane: usize) -> u64 {
        if a.wide {
            self.doubles[a.row as usize][lane].wrapping_add_signed(a.offset)
        } else {
            self.words[a.row as usize][lane].wrapping_add(a.offset as u32).into()
        }
    }
}

fn value(row: Row, lane: u32, warp: u32, place: &Place) -> u32 {
    let thread = 32 * warp + lane;
    let [x, y, _] = place.threads;
    match row {
        Row::Constant(c) => c,
        Row::Thread(0) => thread % x,
        Row::Thread(1) => thread / x % y,
        Row::Thread(_) => thread / x / y,
        Row::Threads(d) => place.threads[usize::from(d)],
        Row::Block(d) => place.block[usize::from(d)],
        Row::Blocks(d) => place.grid[usize::from(d)],
        Row::Lane => lane,
        Row::Warp => warp,
        Row::Warps => place.threads.iter().product::<u32>().div_ceil(32),
        Row::LanesBefore => (1 << lane) - 1,
        Row::LanesUpTo => FULL >> (31 - lane),
        Row::LanesAfter => !(FULL >> (31 - lane)),
        Row::LanesFrom => FULL << lane,
        Row::LaneBit => 1 << lane,
        Row::SharedBytes => place.shared_bytes,
        Row::Shared(address) => address + windows::of_rank(place.rank),
        Row::Rank => place.rank,
        Row::Ranks => place.cluster.iter().product(),
        Row::BlockOfCluster(d) => place.block[usize::from(d)] % place.cluster[usize::from(d)],
        Row::BlocksOfCluster(d) => place.cluster[usize::from(d)],
        Row::Cluster(d) => place.block[usize::from(d)] / place.cluster[usize::from(d)],
        Row::Clusters(d) => place.grid[usize::from(d)] / place.cluster[usize::from(d)],
    }
}

/// The numbers of the lanes in a mask.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros();
        mask &= mask - 1;
        Some(lane as usize)
    })
}
