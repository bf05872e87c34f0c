//! What an experiment is. Everything here is data; `runner` gives it meaning.

use flashtile::{Arch, Elem, Facts, Kernel, Schedule, SourceText};
use flashtile_codegen::{Combine, CopyOp, TensorOp};
use flashtile_dsl::ir::SizeKind;

use super::peers::Peer;
use super::runner::Runner;
use crate::failure::Result;

/// A published experiment.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Title of the post.
    pub post: &'static str,
    /// What is run again, in a sentence without a full stop.
    pub about: &'static str,
    /// Its sections, in order.
    pub sections: fn() -> Vec<Section>,
}

/// A part of an experiment.
pub enum Section {
    /// Figures.
    Table(Table),
    /// Statements that hold or not.
    Claims(Claims),
}

/// Figures of one unit.
pub struct Table {
    /// Name, unique in the experiment: part of file names.
    pub name: &'static str,
    /// What is measured, and on which shapes.
    pub caption: &'static str,
    /// Unit of the figures, ours and published.
    pub unit: Unit,
    /// The GPU that the published figures are from; `None` if none were published.
    pub published_on: Option<&'static str>,
    /// How it is laid out and drawn.
    pub style: Style,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Columns that are quotients of two series, after the series.
    pub ratios: &'static [Ratio],
}

/// A column of a table of lines: one series over another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ratio {
    /// The series that is divided.
    pub of: &'static str,
    /// The series that it is divided by.
    pub over: &'static str,
}

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

/// Layout of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// A row for each step, with one cell, its gain over another row, and its resources; drawn as
    /// bars.
    Steps,
    /// A row for each value of this variable, with a cell for each series; drawn as lines.
    Lines(&'static str),
}

/// A row.
pub struct Row {
    /// Its name.
    pub label: String,
    /// Where it stands on the axis of a plot of lines.
    pub x: f64,
    /// In a table of steps: the label of the row that its gain is over.
    pub over: Option<&'static str>,
    /// Its cells, one per series.
    pub cells: Vec<Cell>,
}

/// A figure to be measured, and the published one.
pub struct Cell {
    /// The series that it belongs to; in a table of steps, the step.
    pub series: &'static str,
    /// What is run.
    pub work: Work,
    /// What was published for it.
    pub published: Option<f64>,
    /// What the post profiled of it.
    pub profiled: Option<Profiled>,
}

/// What a profiler told of a kernel in a post, as far as it was published.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Profiled {
    /// Bytes read from DRAM and written to it.
    pub bytes: Option<(f64, f64)>,
    /// Theoretical occupancy, and what limits it.
    pub occupancy: Option<(f64, &'static str)>,
    /// Wavefronts of a load from shared memory.
    pub load_ways: Option<f64>,
    /// Wavefronts of a store to it.
    pub store_ways: Option<f64>,
}

/// What a cell runs.
pub enum Work {
    /// Kernels of ours.
    Ours(Sequence),
    /// A library.
    Peer(Peer),
}

/// Kernels that run one after the other.
#[derive(Clone)]
pub struct Sequence {
    /// The launches.
    pub launches: Vec<Launch>,
    /// A kernel that computes the same, whose float64 oracle judges the sequence; the only launch itself if `None`.
    pub oracle: Option<Launch>,
}

/// The value of a size by its name.
pub type NamedSize = (&'static str, i64);

/// One launch.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Text,
    /// Element type.
    pub elem: Elem,
    /// Constants and run-time sizes; those that the kernel does not have are for others of the sequence.
    pub sizes: Vec<NamedSize>,
    /// Tensors by parameter, for parameters whose tensor is not named as they are.
    pub tensors: Vec<(&'static str, &'static str)>,
    /// Its schedule.
    pub how: How,
}

/// A kernel's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Text {
    /// A built-in kernel.
    Builtin(&'static str),
    /// A kernel of a text that an experiment brings along.
    Own {
        /// Name of the file.
        file: &'static str,
        /// The text of the file.
        text: &'static str,
        /// The kernel.
        name: &'static str,
    },
}

/// How a schedule is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum How {
    /// These knobs, on top of the defaults for the architecture ([`defaults`]).
    Knobs(String),
    /// Tuned on the GPU; the cost model's choice where there is none.
    Tuned,
}

/// Statements that are checked, not measured.
pub struct Claims {
    /// What they are about.
    pub caption: &'static str,
    /// Finds out.
    pub run: fn(&Runner<'_>) -> Result<Findings>,
}

/// What was found out.
pub struct Findings {
    /// The report that the claims are about, if a reader wants to see it.
    pub text: String,
    /// The claims.
    pub claims: Vec<Claim>,
}

/// A statement of the post.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What the post says.
    pub published: &'static str,
    /// What was found.
    pub found: String,
    /// Whether they agree; `None` if that was not looked into.
    pub holds: Option<bool>,
    /// Why they do not agree, if that is known beforehand; or why it was not looked into.
    pub why: Option<&'static str>,
}

impl Claim {
    /// A claim that holds if what was found is what was expected.
    pub fn of(published: &'static str, found: impl Into<String>, holds: bool) -> Self {
        Self { published, found: found.into(), holds: Some(holds), why: None }
    }

    /// A claim of which it is known that it does not hold, and why.
    pub fn departs(published: &'static str, found: impl Into<String>, holds: bool, why: &'static str) -> Self {
        Self { why: Some(why), ..Self::of(published, found, holds) }
    }

    /// A claim that this device cannot look into, and why.
    pub fn not_run(published: &'static str, why: &'static str) -> Self {
        Self { published, found: "-".to_owned(), holds: None, why: Some(why) }
    }

    /// Whether it came out as expected: it holds, is known not to, or was not looked into.
    pub fn is_expected(&self) -> bool {
        self.holds.is_none_or(|holds| holds == self.why.is_none())
    }

    /// The verdict in words.
    pub fn verdict(&self) -> String {
        match (self.holds, self.why) {
            (Some(true), None) => "holds".to_owned(),
            (Some(false), None) => "DOES NOT HOLD".to_owned(),
            (Some(false), Some(why)) => format!("does not hold: {why}"),
            (Some(true), Some(_)) => "HOLDS, which was not expected".to_owned(),
            (None, why) => format!("not run: {}", why.unwrap_or_default()),
        }
    }
}

/// The schedule on top of which the knobs of an experiment are taken: the defaults, with what the
/// architecture has of tensor products through `mma.sync`, and of copies, where it lacks the usual
/// ones.
pub fn defaults(arch: &Arch) -> Schedule {
    let mut schedule = Schedule::default();
    let is_mma = |op: &&TensorOp| matches!(op, TensorOp::MmaM16n8k16 | TensorOp::MmaM16n8k8);
    if let Some(&best) = arch.tensor_ops.iter().find(is_mma) {
        schedule.tensor_op = best;
    }
    if !arch.copy_ops.contains(&schedule.copy) {
        (schedule.copy, schedule.stages) = (CopyOp::Sync, 1);
    }
    schedule
}

impl Text {
    /// The kernel.
    pub fn open(self) -> Result<Kernel> {
        match self {
            Text::Builtin(name) => Ok(Kernel::builtin(name)?),
            Text::Own { file, text, name } => {
                let source = SourceText { name: file.to_owned(), text: text.into(), first_line: 1 };
                let kernels = Kernel::from_source(&source)?;
                Ok(kernels.into_iter().find(|k| k.name() == name).expect("a test opens every text that comes along"))
            }
        }
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Text::Builtin(name) | Text::Own { name, .. } => name,
        }
    }
}

impl Launch {
    /// A launch whose tensors are named as the parameters are.
    pub fn new(kernel: Text, elem: Elem, sizes: &[NamedSize], how: How) -> Self {
        Self { kernel, elem, sizes: sizes.to_vec(), tensors: Vec::new(), how }
    }

    /// With other names for tensors.
    pub fn with(mut self, tensors: &[(&'static str, &'static str)]) -> Self {
        self.tensors = tensors.to_vec();
        self
    }

    /// What it asks for and the architecture does not have, in words.
    ///
    /// # Errors
    /// The kernel is not there, or the knobs are none.
    pub fn lacks(&self, arch: &'static Arch) -> Result<Option<String>> {
        if self.elem == Elem::Bf16 && !arch.bf16 {
            return Ok(Some("it has no bf16".to_owned()));
        }
        let How::Knobs(knobs) = &self.how else { return Ok(None) };
        let schedule = defaults(arch).with(knobs)?;
        let feature = match schedule {
            _ if !arch.copy_ops.contains(&schedule.copy) => match schedule.copy {
                CopyOp::Tma => "it has no tensor copies",
                _ => "it has no cp.async",
            },
            _ if !arch.tensor_ops.contains(&schedule.tensor_op) => "it has no such tensor product",
            _ if schedule.combine == Combine::Cluster && !arch.clusters => "it has no clusters",
            _ => return self.lacks_shared_memory(&schedule, arch),
        };
        Ok(Some(feature.to_owned()))
    }

    /// Whether a block of the schedule needs more shared memory than the architecture gives it, in
    /// words.
    fn lacks_shared_memory(&self, schedule: &Schedule, arch: &'static Arch) -> Result<Option<String>> {
        let kernel = self.kernel.open()?;
        let bound = kernel.bind(self.elem, self.split(&kernel).0)?;
        let needed = flashtile_codegen::check(&bound.instance(Facts::best(bound.ir())), schedule, arch).predicted.shared_bytes;
        let (needed, has) = (needed as usize, arch.shared_per_block);
        Ok((needed > has).then(|| format!("it needs {} KiB of shared memory, a block has {}", needed >> 10, has >> 10)))
    }

    /// The value of a size, 1 if it has none.
    pub fn size(&self, name: &str) -> i64 {
        self.sizes.iter().find(|(n, _)| *n == name).map_or(1, |(_, size)| *size)
    }

    /// Constants of the kernel, and its run-time sizes.
    pub fn split(&self, kernel: &Kernel) -> (Vec<NamedSize>, Vec<NamedSize>) {
        let kind = |name: &str| kernel.ir().size_named(name).map(|id| kernel.ir().sizes[id].kind);
        let of = |wanted| self.sizes.iter().copied().filter(|(name, _)| kind(name) == Some(wanted)).collect();
        (of(SizeKind::Const), of(SizeKind::Runtime))
    }

    /// The same with so few programs and keys that an emulator executes it in moments.
    pub fn small(&self, longest: i64) -> Self {
        let mut small = self.shorter(longest);
        let groups = (self.size("H") / self.size("G").max(1)).max(1);
        for (name, size) in &mut small.sizes {
            match *name {
                "B" | "G" => *size = 1,
                "H" => *size = groups.min(2),
                _ => {}
            }
        }
        small
    }

    /// The same on axes that are no longer than this.
    pub fn shorter(&self, longest: i64) -> Self {
        let mut shorter = self.clone();
        for (_, size) in shorter.sizes.iter_mut().filter(|(name, _)| matches!(*name, "M" | "N")) {
            *size = (*size).min(longest.max(1));
        }
        shorter
    }
}

impl From<Launch> for Sequence {
    fn from(launch: Launch) -> Self {
        Self { launches: vec![launch], oracle: None }
    }
}

impl Sequence {
    /// The sequence with every launch replaced.
    pub fn map(&self, change: impl Fn(&Launch) -> Launch) -> Self {
        Self { launches: self.launches.iter().map(&change).collect(), oracle: self.oracle.as_ref().map(&change) }
    }

    /// What judges it.
    pub fn judge(&self) -> &Launch {
        self.oracle.as_ref().unwrap_or_else(|| self.launches.first().expect("a sequence has a launch"))
    }
}

impl Experiment {
    /// Opens every kernel and reads every schedule: an experiment that needs what is not there fails before it runs anything.
    pub fn check(&self) -> Result<()> {
        let sections = (self.sections)();
        let tables = sections.iter().filter_map(|section| match section {
            Section::Table(table) => Some(table),
            Section::Claims(_) => None,
        });
        for cell in tables.flat_map(|table| &table.rows).flat_map(|row| &row.cells) {
            let Work::Ours(sequence) = &cell.work else { continue };
            for launch in sequence.launches.iter().chain(&sequence.oracle) {
                launch.kernel.open()?;
                if let How::Knobs(knobs) = &launch.how {
                    Schedule::default().with(knobs)?;
                }
            }
        }
        Ok(())
    }
}
