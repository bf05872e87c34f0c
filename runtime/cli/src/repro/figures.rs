//! What is known of a cell: times, memory, code, and what launches did on the emulator.

use flashtile::emulator::{Profile, Work as Executed};

use super::peers::{Peer, PeerFigures};

/// Unit of figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Time of a run.
    Milliseconds,
    /// Nominal FLOPs per time.
    Tflops,
    /// Peak memory beyond the inputs, in 2^20 bytes.
    Mebibytes,
    /// Bytes that the launches move, in 2^20 bytes, if each launch moves each of its tensors once.
    TensorTraffic,
    /// Bytes that the launches ask of global memory, in 2^20 bytes: a tile that several programs
    /// load counts for each of them.
    AskedTraffic,
}

impl Unit {
    /// As it is written behind a figure.
    pub fn text(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Tflops => "TFLOP/s",
            Unit::Mebibytes | Unit::TensorTraffic | Unit::AskedTraffic => "MiB",
        }
    }
}

/// What is known of a cell.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The sizes that ran.
    pub shape: String,
    /// Milliseconds of a run: median, shortest, and how many runs.
    pub time: Option<(f64, f64, u32)>,
    /// Nominal FLOPs of a run.
    pub flops: f64,
    /// Bytes of peak memory beyond the inputs: counted, and as the driver says.
    pub memory: Option<(f64, Option<f64>)>,
    /// The largest error against the float64 oracle.
    pub max_error: Option<f64>,
    /// The code of each launch.
    pub code: Vec<Code>,
    /// What the launches did on the emulator.
    pub counted: Option<Counted>,
    /// Bytes that all launches read and write on the sizes of the table, every load counted.
    pub traffic: Option<(u64, u64)>,
    /// The same if every launch of the table moved each of its tensors once.
    pub tensors: Option<(u64, u64)>,
    /// Nominal FLOPs per byte of these.
    pub intensity: f64,
    /// Peak FLOP/s and bytes/s of the GPU, where there is one.
    pub peak: Option<(f64, f64)>,
}

/// What launches did on the emulator.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// All instructions.
    pub total: Executed,
    /// Those that load from shared memory.
    pub loads: Executed,
    /// Those that store to it.
    pub stores: Executed,
    /// The largest error of what was computed there.
    pub max_error: f64,
}

impl Counted {
    /// What the launches of these profiles did together, and the largest error of what they
    /// computed.
    pub fn of(profiles: &[Profile], max_error: f64) -> Self {
        let mut all = Self { max_error, ..Self::default() };
        for i in profiles.iter().flat_map(|profile| &profile.instructions) {
            all.total.add(&i.work);
            let kinds = [(&mut all.loads, ["ld.shared", "ldmatrix"]), (&mut all.stores, ["st.shared", "stmatrix"])];
            for (sum, opcodes) in kinds {
                if opcodes.iter().any(|opcode| i.instruction.starts_with(opcode)) {
                    sum.add(&i.work);
                }
            }
        }
        all
    }
}

/// Wavefronts of an access to shared memory, on average: what Nsight Compute calls an n-way bank
/// conflict.
pub fn ways(work: &Executed) -> Option<f64> {
    (work.shared_requests > 0).then(|| work.wavefronts as f64 / work.shared_requests as f64)
}

/// Code of a launch.
#[derive(Clone, Debug)]
pub struct Code {
    /// Its schedule.
    pub schedule: String,
    /// Where that comes from.
    pub origin: String,
    /// Registers of a thread; `None` where nothing was compiled.
    pub registers: Option<u32>,
    /// Bytes of spill stores and loads.
    pub spills: Option<u32>,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Share of a multiprocessor's threads, and what limits it.
    pub occupancy: (f64, String),
}

impl Figures {
    /// The figure in a unit.
    pub fn in_unit(&self, unit: Unit) -> Option<f64> {
        let mebibytes = |(read, written): (u64, u64)| (read + written) as f64 / f64::from(1 << 20);
        match unit {
            Unit::Milliseconds => self.time.map(|(median, ..)| median),
            Unit::Tflops => self.time.map(|(median, ..)| self.flops / median / 1e9),
            Unit::Mebibytes => self.memory.map(|(counted, _)| counted / f64::from(1 << 20)),
            Unit::TensorTraffic => self.tensors.map(mebibytes),
            Unit::AskedTraffic => self.traffic.map(mebibytes),
        }
    }

    pub fn of_peer(peer: &Peer, figures: &PeerFigures, flops: f64) -> Self {
        let sizes: Vec<String> = peer.like.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        Self {
            shape: sizes.join(","),
            time: Some((figures.ms, figures.min_ms, 0)),
            flops,
            memory: Some((figures.mib * f64::from(1 << 20), None)),
            ..Self::default()
        }
    }
}
