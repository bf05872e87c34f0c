//! `flashtile repro`: published experiments, run again here, with the published figures beside.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::tune::Budget;
use crate::failure::{Failure, Result};
use crate::files;
use crate::flags::GlobalFlags;
use crate::output::Output;
use crate::repro::{self, EXPERIMENTS, Experiment, Mode, Peers, Results, Runner, RunnerOptions, sheets};

/// Flags of `flashtile repro`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Experiments to run, or `all`
    #[arg(required_unless_present = "list")]
    names: Vec<String>,
    /// List the experiments instead
    #[arg(long, conflicts_with = "names")]
    list: bool,
    /// Device: cuda:N times; emulator counts and cpu checks, on small shapes; by default the best one there is
    #[arg(long)]
    device: Option<String>,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Directory for plots and tables
    #[arg(long, value_name = "DIR", default_value = "flashtile-repro")]
    out: PathBuf,
    /// Print tables in Markdown, as docs/repro has them
    #[arg(long)]
    markdown: bool,
    /// On a GPU: cut sequences to an eighth of the published length
    #[arg(long)]
    quick: bool,
    /// Runs of a figure that count
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Time to tune a kernel where the experiment tunes it
    #[arg(long, default_value = "10s", value_name = "TIME")]
    budget: Budget,
    /// Tune nothing: take what was tuned before, or the cost model's choice
    #[arg(long)]
    no_tune: bool,
    /// Python that has PyTorch, for the peers; by default python3 on the path, if it has
    #[arg(long, value_name = "PATH", conflicts_with = "no_peers")]
    python: Option<PathBuf>,
    /// Leave the peers out
    #[arg(long)]
    no_peers: bool,
}

/// Reproduces.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    if flags.list {
        return list(output);
    }
    let chosen = chosen(&flags.names)?;
    let options = RunnerOptions {
        repetitions: flags.repetitions,
        tuning: (!flags.no_tune).then_some(flags.budget.0),
        quick: flags.quick,
        peers: match &flags.python {
            _ if flags.no_peers => Peers::Off,
            Some(path) => Peers::Python(path.clone()),
            None => Peers::Found,
        },
    };
    // Told before minutes are spent on what could not be written.
    files::make_directory(&flags.out)?;
    let mut runner = Runner::new(flags.device.as_deref(), flags.arch.as_deref(), global, options)?;
    if runner.mode != Mode::Timed {
        output.note(format!(
            "note: {} times nothing; small shapes are checked, and counted where that is possible",
            runner.device()
        ));
    }
    let mut first = None;
    for experiment in chosen {
        let failure = experiment.check().and_then(|()| one(experiment, flags, &mut runner, output)).err();
        if let Some(failure) = failure {
            if matches!(failure, Failure::Closed) {
                return Err(failure);
            }
            if flags.names.len() > 1 || flags.names == ["all"] {
                output.note(format!("{}: {failure}", experiment.name));
            }
            first.get_or_insert(failure);
        }
    }
    first.map_or(Ok(()), Err)
}

fn list(output: &mut Output) -> Result<()> {
    if output.json {
        return EXPERIMENTS
            .iter()
            .try_for_each(|e| output.json(&json!({ "experiment": e.name, "post": e.post, "about": e.about })));
    }
    let row = |e: &Experiment| vec![e.name.to_owned(), e.about.to_owned(), e.post.to_owned()];
    output.table(&["experiment", "what is run again", "post"], EXPERIMENTS.iter().map(row))
}

/// The experiments of these names, each once.
fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    let known = || EXPERIMENTS.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let found: Vec<_> = EXPERIMENTS.iter().filter(|e| name == "all" || e.name == name).collect();
        if found.is_empty() {
            return Err(Failure::Usage(format!("no experiment `{name}`; expected all, or some of {}", known())));
        }
        for experiment in found {
            if !chosen.iter().any(|e| e.name == experiment.name) {
                chosen.push(experiment);
            }
        }
    }
    Ok(chosen)
}

fn one(experiment: &Experiment, flags: &Flags, runner: &mut Runner<'_>, output: &mut Output) -> Result<()> {
    let results = Results::of(experiment, runner, output)?;
    let files = repro::files(experiment, &results);
    let mut written = Vec::new();
    for (name, text) in &files {
        let path = flags.out.join(name);
        files::write(&path, text.as_bytes())?;
        written.push(path.display().to_string());
    }
    if output.json {
        for object in repro::objects(experiment, &results) {
            output.json(&object)?;
        }
        output.json(&json!({ "experiment": experiment.name, "device": results.device, "files": written }))?;
    } else {
        let head = format!("{} ({})", experiment.name, experiment.post);
        output.text(if flags.markdown { format!("## {head}\n") } else { format!("{head}\n") })?;
        if !flags.markdown {
            for claims in results.claims.iter().filter(|claims| !claims.text.is_empty()) {
                output.text(format!("{}\n\n{}", claims.caption, claims.text))?;
            }
        }
        for sheet in sheets(&results) {
            output.text(if flags.markdown { sheet.markdown() + "\n" } else { sheet.text() })?;
        }
        for path in &written {
            output.note(format!("wrote {path}"));
        }
    }
    results.failure.map_or(Ok(()), Err)
}
