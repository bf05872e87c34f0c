//! Measured times of schedules, and how the cost model judges them.
//!
//! A file of `tests/evidence` is JSON: `schedules`, and for each of `cells` a kernel, head dim,
//! sizes, machine, and the milliseconds of every schedule that was timed, by its number. They are
//! what `flashtile tune` measured of the whole space, in its cache entries. Those of an H200 are of
//! `bench.py run` (docs/performance.md, "One token over cached keys"), and no constant was fitted to
//! them.

use std::collections::BTreeMap;

use flashtile_codegen::{Arch, Constants, Facts, Instance, Machine, Prepared, Schedule, prepare};
use flashtile_dsl::ir::{Binding, Elem, SourceText};
use serde::Deserialize;

const FILES: [&str; 5] = [
    include_str!("../evidence/h100.json"),
    include_str!("../evidence/h100_rows.json"),
    include_str!("../evidence/h100_dynamic.json"),
    include_str!("../evidence/h200_decode.json"),
    include_str!("../evidence/h200_products.json"),
];

/// Whether the model's constants were fitted to a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// They were.
    Fitted,
    /// They were not.
    HeldOut,
}

/// A measured cell.
pub struct Cell {
    /// Kernel, head dim, heads and lengths.
    pub name: String,
    /// Which half it belongs to.
    pub half: Half,
    sizes: BTreeMap<String, i64>,
    machine: Machine,
    measured: Vec<Measured>,
}

struct Measured {
    schedule: Schedule,
    prepared: Prepared,
    seconds: f64,
}

/// What the model says of a cell.
pub struct Judged {
    /// Time of the schedule that the model ranks first, over that of the fastest.
    pub choice: f64,
    /// That schedule, in short.
    pub chosen: String,
    /// Predicted over measured time of the schedules within 1.3 of the fastest: geometric mean.
    pub ratio: f64,
    /// Standard deviation of its logarithm.
    pub spread: f64,
    /// What a fit makes small: wrong order among fast schedules, and a wrong scale, which matters less.
    pub loss: f64,
}

#[derive(Deserialize)]
struct File {
    schedules: Vec<String>,
    cells: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    kernel: String,
    /// Head dim, of kernels that have one.
    d: Option<i64>,
    sizes: BTreeMap<String, i64>,
    gpu: String,
    sms: u32,
    ghz: f64,
    gbytes_per_s: f64,
    measured: Vec<(usize, f64)>,
}

/// The cells whose schedules are legal today.
///
/// # Panics
/// If a file is damaged.
pub fn cells() -> Vec<Cell> {
    let files = FILES.iter().map(|text| serde_json::from_str::<File>(text).expect("a file of evidence"));
    files.flat_map(|file| file.cells.iter().map(|line| cell(line, &file.schedules)).collect::<Vec<_>>()).collect()
}

fn cell(line: &Line, schedules: &[String]) -> Cell {
    let arch = Arch::named("sm_90a").expect("in the table");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/kernels");
    let text = std::fs::read_to_string(format!("{path}/{}.rs", line.kernel)).expect("the text of a built-in");
    let source = SourceText { name: line.kernel.as_str().into(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).expect("a kernel").remove(0);
    let binding = Binding::new(&kernel, Elem::Bf16, line.d.map(|d| ("D", d)));
    let instance = Instance { facts: Facts::best(&kernel), binding, kernel };
    let base = Schedule::default().with("block_k=64,tensor_op=wgmma,copy=tma").expect("knobs");
    let measured = line.measured.iter().filter_map(|(number, ms)| {
        let schedule = base.with(&schedules[*number]).expect("a schedule");
        // A schedule that was legal when it was measured may be refused today.
        let prepared = prepare(&instance, &schedule, arch).ok()?;
        Some(Measured { schedule, prepared, seconds: ms / 1e3 })
    });
    let sizes: Vec<String> = line.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let by_number = line.d.unwrap_or(0) / 32 + line.sizes["N"] / 1000;
    Cell {
        name: format!("{} {} d {} {}", line.gpu, line.kernel, line.d.unwrap_or(0), sizes.join(",")),
        half: if line.gpu != "H200" && by_number % 2 == 0 { Half::Fitted } else { Half::HeldOut },
        sizes: line.sizes.clone(),
        machine: Machine { sms: line.sms, ghz: line.ghz, gbytes_per_s: line.gbytes_per_s },
        measured: measured.collect(),
    }
}

/// Schedules within this factor of the fastest must be in the right order.
const NEAR: f64 = 1.3;

impl Cell {
    /// How many schedules were timed.
    pub fn timed(&self) -> usize {
        self.measured.len()
    }

    /// Time of the fastest of the `count` schedules that the model ranks first, over that of the
    /// fastest of all.
    pub fn fastest_of_first(&self, count: usize, constants: &Constants) -> f64 {
        let seconds = |m: &Measured| m.prepared.seconds(&self.sizes, &self.machine, constants).unwrap_or(f64::INFINITY);
        let mut ranked: Vec<(f64, f64)> = self.measured.iter().map(|m| (seconds(m), m.seconds)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let fastest = |of: &[(f64, f64)]| of.iter().map(|(_, measured)| *measured).fold(f64::INFINITY, f64::min);
        fastest(&ranked[..count.min(ranked.len())]) / fastest(&ranked)
    }

    /// What the model with these constants says.
    pub fn judge(&self, constants: &Constants) -> Judged {
        let predicted: Vec<f64> = self
            .measured
            .iter()
            .map(|m| m.prepared.seconds(&self.sizes, &self.machine, constants).unwrap_or(f64::INFINITY))
            .collect();
        let fastest = self.measured.iter().map(|m| m.seconds).fold(f64::INFINITY, f64::min);
        let errors: Vec<(f64, f64)> =
            self.measured.iter().zip(&predicted).map(|(m, p)| ((p / m.seconds).ln(), m.seconds / fastest)).collect();
        let near: Vec<f64> = errors.iter().filter(|(_, slow)| *slow <= NEAR).map(|(e, _)| *e).collect();
        let mean = near.iter().sum::<f64>() / near.len().max(1) as f64;
        // A slow schedule that is predicted to be fast costs as much as it is slow.
        let wrong = |&(e, slow): &(f64, f64)| if slow <= NEAR { (e - mean).powi(2) } else { (e - mean).min(0.0).powi(2) };
        let spread = near.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / near.len().max(1) as f64;
        let chosen = (0..predicted.len()).min_by(|&a, &b| predicted[a].total_cmp(&predicted[b])).expect("a schedule");
        let s = &self.measured[chosen].schedule;
        let choice = self.measured[chosen].seconds / fastest;
        let order = errors.iter().map(wrong).sum::<f64>() / errors.len().max(1) as f64;
        Judged {
            choice,
            chosen: format!(
                "{}x{} s{} mb{} os{}",
                s.main.block_m, s.main.block_n, s.main.stages, s.main.min_blocks, s.main.outer_stages
            ),
            ratio: mean.exp(),
            spread: spread.sqrt(),
            loss: order + 0.05 * mean.powi(2) + 0.5 * choice.ln().powi(2),
        }
    }
}
