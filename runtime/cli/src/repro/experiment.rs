//! What an experiment is. Everything here is data; `runner` gives it meaning.

use flashtile::Schedule;

pub use super::figures::Unit;
pub use super::launch::{How, Launch, Sequence, Text, defaults};
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
