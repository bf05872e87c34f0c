//! The figures of an experiment.

use super::experiment::{Claim, Experiment, Section, Style, Table, Work};
pub use super::figures::{Code, Counted, Figures, ways};
use super::peers::Peer;
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
