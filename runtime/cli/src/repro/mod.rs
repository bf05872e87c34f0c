//! Published experiments, run again: what each is, how its rows are measured, and how figures are shown beside the published.
//!
//! | file | subject |
//! | --- | --- |
//! | `experiment` | what an experiment is: tables of cells, each something to run and the figure that was published for it |
//! | `ladder`, `archaeology`, `dependence`, `rope`, `memory` | the experiments, as data |
//! | `kernels/` | kernel texts that they need and that are not built in |
//! | `judge`, `boundary` | whether such a text is right; faults of the mask that the compiler adds |
//! | `runner` | runs a cell: timed on a GPU, counted on the emulator, checked on the CPU |
//! | `peers`, `peers.py` | what PyTorch runs beside ours, in a process of its own |
//! | `results` | the figures of an experiment |
//! | `sheet`, `csv` | figures as text or Markdown, as CSV |
//! | `plot`, `roofline` | figures as SVG: bars and lines; rates over FLOPs per byte |

mod archaeology;
mod boundary;
mod csv;
mod dependence;
mod experiment;
mod figures;
mod judge;
mod ladder;
mod launch;
mod memory;
#[cfg(test)]
mod pages;
mod peers;
mod plot;
mod results;
mod roofline;
mod rope;
mod runner;
mod sheet;

pub use experiment::Experiment;
pub use peers::Peers;
pub use results::Results;
pub use runner::{Mode, Runner, RunnerOptions};
pub use sheet::sheets;

/// Every experiment, in the order in which they are listed and run.
pub const EXPERIMENTS: &[Experiment] =
    &[ladder::EXPERIMENT, archaeology::EXPERIMENT, dependence::EXPERIMENT, rope::EXPERIMENT, memory::EXPERIMENT];

/// What `--json` prints: an object for each claim and for each cell.
pub fn objects(experiment: &Experiment, results: &Results) -> Vec<serde_json::Value> {
    let name = experiment.name;
    let mut objects = Vec::new();
    for claims in &results.claims {
        objects.extend(claims.claims.iter().map(|claim| {
            serde_json::json!({
                "experiment": name,
                "about": claims.caption,
                "claim": claim.published,
                "found": claim.found,
                "holds": claim.holds,
                "why": claim.why,
            })
        }));
    }
    objects.extend(csv::objects(name, results));
    objects
}

/// The CSV of an experiment, and the plots of its tables by file name.
pub fn files(experiment: &Experiment, results: &Results) -> Vec<(String, String)> {
    let name = experiment.name;
    let mut files = Vec::new();
    if !results.tables.is_empty() {
        files.push((format!("{name}.csv"), csv::csv(name, results)));
    }
    for table in &results.tables {
        files.push((format!("{name}-{}.svg", table.table.name), plot::svg(experiment, table, results)));
        let roofline = roofline::svg(experiment, table, results);
        files.extend(roofline.map(|svg| (format!("{name}-{}-roofline.svg", table.table.name), svg)));
    }
    files
}
