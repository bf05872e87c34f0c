//! What an experiment is. Everything here is data; `runner` gives it meaning.

use flashtile::{Elem, Kernel, Schedule, SourceText};
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
}

impl Unit {
    /// As it is written behind a figure.
    pub fn text(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Tflops => "TFLOP/s",
            Unit::Mebibytes => "MiB",
        }
    }
}

/// Layout of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// A row for each step, with one cell, its gain over the one before it, and its resources; drawn as bars.
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
    /// Compute capability that its schedule needs at least: on others it is not there, which is no failure.
    pub least: (u32, u32),
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
    /// These knobs, on top of the defaults.
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
pub struct Claim {
    /// What the post says.
    pub published: &'static str,
    /// What was found.
    pub found: String,
    /// Whether they agree.
    pub holds: bool,
}

impl Claim {
    /// A claim that holds if what was found is what was expected.
    pub fn of(published: &'static str, found: impl Into<String>, holds: bool) -> Self {
        Self { published, found: found.into(), holds }
    }
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
        Self { kernel, elem, sizes: sizes.to_vec(), tensors: Vec::new(), how, least: (0, 0) }
    }

    /// With other names for tensors.
    pub fn with(mut self, tensors: &[(&'static str, &'static str)]) -> Self {
        self.tensors = tensors.to_vec();
        self
    }

    /// For a compute capability and later ones only.
    pub fn since(mut self, least: (u32, u32)) -> Self {
        self.least = least;
        self
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
