//! The figures of an experiment.

use flashtile::emulator::{Profile, Work as Executed};

use super::experiment::{Claim, Experiment, Section, Style, Table, Unit, Work};
use super::peers::{Peer, PeerFigures};
use super::runner::{Mode, Runner};
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Everything that came of an experiment.
pub struct Results {
    /// Where it ran, in words.
    pub device: String,
    /// How.
    pub mode: Mode,
    /// Version of PyTorch, where it ran beside.
    pub torch: Option<String>,
    /// Its tables.
    pub tables: Vec<TableResults>,
    /// Its claims: what about, the report, and each claim.
    pub claims: Vec<ClaimResults>,
    /// The first thing that failed.
    pub failure: Option<Failure>,
}

/// Claims and what was found.
pub struct ClaimResults {
    /// What they are about.
    pub caption: &'static str,
    /// The report.
    pub text: String,
    /// Each.
    pub claims: Vec<Claim>,
}

/// A table and what was measured for it: by row, then by cell.
pub struct TableResults {
    /// The table.
    pub table: Table,
    /// The figures; in words why there is none.
    pub cells: Vec<Vec<Result<Figures, String>>>,
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

    fn of_peer(peer: &Peer, figures: &PeerFigures, flops: f64) -> Self {
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

impl TableResults {
    /// The figures of a row and cell.
    pub fn figures(&self, row: usize, cell: usize) -> Option<&Figures> {
        self.cells[row][cell].as_ref().ok()
    }

    /// The figure of a row and cell in the table's unit.
    pub fn figure(&self, row: usize, cell: usize) -> Option<f64> {
        self.figures(row, cell)?.in_unit(self.table.unit)
    }
}

impl Results {
    /// Runs an experiment. A cell that fails does not keep the others from running.
    ///
    /// # Errors
    /// Something that no cell could run without.
    pub fn of(experiment: &Experiment, runner: &mut Runner<'_>, output: &Output) -> Result<Self> {
        let mut results = Self {
            device: runner.device(),
            mode: runner.mode,
            torch: None,
            tables: Vec::new(),
            claims: Vec::new(),
            failure: None,
        };
        for section in (experiment.sections)() {
            match section {
                Section::Table(table) => {
                    let table = results.measure(table, runner, output)?;
                    results.tables.push(table);
                }
                Section::Claims(claims) => {
                    let findings = (claims.run)(runner)?;
                    for claim in findings.claims.iter().filter(|claim| !claim.is_expected()) {
                        let text = format!("`{}`: {}; found: {}", claim.published, claim.verdict(), claim.found);
                        results.failure.get_or_insert(Failure::Verification(text));
                    }
                    results.claims.push(ClaimResults { caption: claims.caption, text: findings.text, claims: findings.claims });
                }
            }
        }
        Ok(results)
    }

    fn measure(&mut self, table: Table, runner: &mut Runner<'_>, output: &Output) -> Result<TableResults> {
        let count = table.rows.iter().map(|row| row.cells.len()).sum();
        let bar = output.progress(count, table.name);
        let mut cells: Vec<Vec<Result<Figures, String>>> = Vec::new();
        let mut peers: Vec<(usize, usize, &Peer)> = Vec::new();
        for (r, row) in table.rows.iter().enumerate() {
            cells.push(Vec::new());
            for (c, cell) in row.cells.iter().enumerate() {
                bar.set_message(format!("{} {}", row.label, cell.series));
                let figures = match &cell.work {
                    Work::Ours(sequence) => match runner.lacks(sequence)? {
                        Some(why) => Err(why),
                        None => runner.run(sequence, table.style == Style::Steps).map_err(|failure| {
                            let text = failure.to_string();
                            self.failure.get_or_insert(failure);
                            text
                        }),
                    },
                    Work::Peer(peer) => {
                        peers.push((r, c, peer));
                        Err(String::new())
                    }
                };
                if matches!(cell.work, Work::Ours(_)) {
                    bar.inc(1);
                }
                cells[r].push(figures);
            }
        }
        let all: Vec<&Peer> = peers.iter().map(|(_, _, peer)| *peer).collect();
        let ran = runner.peers(&all, || bar.inc(1))?;
        self.torch = self.torch.take().or(ran.version);
        for ((r, c, peer), figures) in peers.into_iter().zip(ran.figures) {
            cells[r][c] = match figures {
                Ok(figures) => Ok(Figures::of_peer(peer, &figures, runner.flops(&peer.like)?)),
                Err(why) => Err(why),
            };
        }
        bar.finish_and_clear();
        Ok(TableResults { table, cells })
    }
}
