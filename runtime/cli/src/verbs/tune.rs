//! `flashtile tune`: the fastest schedule for a shape, with the evidence.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use flashtile::cache::{Candidate, Outcome};
use flashtile::device::{DeviceError, machine_of};
use flashtile::tuner::{Cancel, Event, InputData, Stop, TuneError, TuneOptions, TuneReport, model_key, tune};
use flashtile::{Arch, BoundKernel, Device, Schedule};
use flashtile_codegen::KNOBS;
use indicatif::ProgressBar;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::gradient::{self, GradientFlags};
use crate::output::{Output, seconds};
use crate::report::{self, Search, Tuning, in_the_race, order};
use crate::subject::{Subject, SubjectFlags, file_of};
use crate::target::arch_named;
use crate::{files, hints, settings};

/// Flags of `flashtile tune`.
#[derive(Args, Debug)]
pub struct Flags {
    #[command(flatten)]
    subject: SubjectFlags,
    #[command(flatten)]
    pub gradient: GradientFlags,
    /// Device: cuda:N, or emulator with --arch, where nothing is timed; by default cuda:0, or the
    /// emulator where --arch is given and there is no GPU
    #[arg(long)]
    device: Option<String>,
    /// Generate code for this architecture; with no GPU candidates are compiled, checked on the
    /// emulator and ranked by the cost model
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Time after which no further candidate is tried, such as 60s, 2m or 500ms. It runs from the
    /// start, so that the ranking of all candidates, of up to half a minute, counts, but is not cut
    /// short; some candidates are tried in any case (see docs/tuning.md). With --grad each kernel
    /// has the same share of it
    #[arg(long, default_value = "60s", value_name = "TIME")]
    budget: Budget,
    /// Threads that compile; by default one per core
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Try no more than so many candidates, best predicted first
    #[arg(long, value_name = "N")]
    max_candidates: Option<NonZeroUsize>,
    /// Consider only the schedules of this file, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "grad")]
    schedules: Option<PathBuf>,
    /// Start afresh, whatever the cache knows
    #[arg(long)]
    afresh: bool,
    /// Seed of the random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What an input holds where the kernel's text should not say it; may be repeated. Settings,
    /// apart by commas: scale=S, growth=G (rows grow from a tenth to G), normal, range=A..B,
    /// constant=C, ids=N, sorted-ids=N, even-ids=N, lengths[=N], bits=SHARE, permutation
    #[arg(long, value_name = "NAME:SETTING,..")]
    data: Vec<InputData>,
    /// Candidates to show
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
    /// Write a page about the search into this file too: roofline, every candidate with its time and
    /// why it was or was not measured, errors, the effect of each knob, the winner's plan with its
    /// timeline, its tiles in shared memory. One file, with no script and nothing from elsewhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A duration on the command line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget(pub Duration);

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
        let wrong = || format!("`{text}` is not a time; expected something like 60s, 2m or 500ms");
        let (number, unit) = units.iter().find_map(|(u, s)| Some((text.strip_suffix(u)?, s))).ok_or_else(wrong)?;
        let value: f64 = number.trim().parse().map_err(|_| wrong())?;
        Duration::try_from_secs_f64(value * unit).map(Budget).map_err(|_| wrong())
    }
}

/// What the kernels that a command tunes have in common.
struct Common<'a> {
    flags: &'a Flags,
    global: &'a GlobalFlags,
    device: Device,
    arch: Option<&'static Arch>,
    /// Time for each kernel.
    budget: Duration,
    /// Whether there are several kernels, so that each is named.
    several: bool,
    cancel: Cancel,
}

/// Tunes.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let mut subject = flags.subject.open()?;
    let sizes = subject.all_sizes()?;
    subject.consts = subject.bind(output)?.binding().consts.clone();
    let subjects = gradient::subjects(&flags.gradient, &subject)?;
    let data = gradient::data_of(&subjects, &flags.data)?;
    let arch = flags.arch.as_deref().map(arch_named).transpose()?;
    let device = device(flags.device.as_deref(), arch)?;
    if let Some(path) = &flags.html {
        let read = [("the kernel", file_of(&flags.subject.kernel)), ("the schedules", flags.schedules.as_deref())];
        files::keep_apart("--html", path, &read)?;
        // Known before time is spent on what could not be written.
        files::check_writable(path)?;
    }
    let cancel = Cancel::default();
    let on_signal = cancel.clone();
    if ctrlc::set_handler(move || on_signal.cancel()).is_err() {
        output.note("note: Ctrl-C cannot be caught here and loses what is not yet kept");
    }
    let budget = flags.budget.0 / subjects.len().max(1) as u32;
    let common = Common { flags, global, device, arch, budget, several: flags.gradient.is_given(), cancel };
    let (times, tunings) = common.tune_all(&subjects, &data, output);
    if let Some(path) = flags.html.as_deref().filter(|_| !tunings.is_empty()) {
        files::write(path, report::page(&tunings).as_bytes())?;
        output.note(format!("wrote {}", path.display()));
    }
    let times = times?;
    if !common.several {
        return Ok(());
    }
    let (forward, backward) = (times[0], times[1..].iter().sum::<f64>());
    match output.json {
        true => output.json(&json!({
            "gradient": subject.kernel.name(),
            "shape": sizes,
            "forward_ms": forward * 1e3,
            "backward_ms": backward * 1e3,
            "total_ms": (forward + backward) * 1e3,
        })),
        false => output.text(format!(
            "total: {} (forward {}, backward {})",
            seconds(forward + backward),
            seconds(forward),
            seconds(backward)
        )),
    }
}

/// The device to tune on: the one that is named, else the first GPU. Where there is no GPU, the
/// CPU if an architecture says what to tune for: candidates are checked on the emulator then.
fn device(name: Option<&str>, arch: Option<&'static Arch>) -> Result<Device> {
    let found = match name {
        Some(name) => name.parse(),
        None => match Device::cuda(0) {
            Err(_) if arch.is_some() => Ok(Device::cpu()),
            found => found,
        },
    };
    found.map_err(|error| {
        let reason = match &error {
            flashtile::Error::Device(DeviceError::NoDriver { .. }) => "no CUDA driver".to_owned(),
            flashtile::Error::Device(DeviceError::NoSuchGpu { ordinal, count }) => {
                format!("no GPU number {ordinal}: the driver sees {count}")
            }
            _ => return error.into(),
        };
        Failure::NoGpuToTune { reason, to_do: WITHOUT_GPU }
    })
}

/// What to do where there is no GPU to tune on.
const WITHOUT_GPU: &str = "tune on a machine with a GPU (`flashtile doctor` says what was looked for), or give --arch sm_90a, or \
    another architecture, and --device emulator: candidates are then checked on the emulator and ranked by the cost model";

impl Common<'_> {
    /// Tunes all kernels, to the first that fails: the seconds of the winners, and what a page tells of the kernels, of one that
    /// fails with evidence too.
    fn tune_all(&self, subjects: &[Subject], data: &[Vec<InputData>], output: &mut Output) -> (Result<Vec<f64>>, Vec<Tuning>) {
        let (mut times, mut tunings) = (Vec::new(), Vec::new());
        for (subject, data) in subjects.iter().zip(data) {
            match self.tune(subject, data, &mut tunings, output) {
                Ok(time) => times.push(time),
                Err(failure) => return (Err(failure), tunings),
            }
        }
        (Ok(times), tunings)
    }

    /// Tunes a kernel and tells what came of it; gives the seconds of the winner.
    fn tune(&self, subject: &Subject, data: &[InputData], tunings: &mut Vec<Tuning>, output: &mut Output) -> Result<f64> {
        let Self { flags, global, device, arch, cancel, .. } = self;
        let sizes = subject.all_sizes()?;
        let bound = subject.bind(output)?;
        if self.several && !output.json {
            output.text(format!("{}:", bound.ir().name))?;
        }
        let lost = subject.hints(arch.or_else(|| arch_of(device)).unwrap_or_else(hints::usual_arch));
        hints::tell(bound.ir(), &lost, output);
        let bar = output.progress(0, "tuning");
        let mut options = TuneOptions {
            budget: self.budget,
            arch: *arch,
            schedules: flags.schedules.as_deref().map(settings::schedules).transpose()?,
            max_candidates: flags.max_candidates.map(NonZeroUsize::get),
            afresh: flags.afresh,
            seed: flags.seed,
            data: subject.input_data(data)?,
            toolchain: global.toolchain(),
            cancel: cancel.clone(),
            on_event: on_event(bar.clone()),
            ..TuneOptions::default()
        };
        if let Some(jobs) = flags.jobs {
            options.jobs = jobs.get();
        }
        let result = tune(&bound, &sizes, device, &options);
        bar.finish_and_clear();
        if self.flags.html.is_some() {
            tunings.extend(self.told(subject, &bound, &options.data, &result)?);
        }
        let report = match result {
            Ok(report) => report,
            Err(_) if cancel.is_cancelled() => return Err(Failure::Interrupted),
            Err(error) if global.explain => {
                if let flashtile::Error::Tune(TuneError::NoneLeft { evidence, .. }) = &error {
                    explain(evidence, &Schedule::default(), "defaults", output)?;
                }
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        show(flags, global.explain, &report, hints::json(bound.ir(), &lost), output)?;
        match report.stop {
            Stop::Cancelled => Err(Failure::Interrupted),
            Stop::DeviceLost(reason) => Err(Failure::DeviceLost(reason)),
            _ => Ok(report.seconds_per_run()),
        }
    }

    /// What a page tells of a result, if it has candidates.
    fn told(
        &self,
        subject: &Subject,
        kernel: &BoundKernel,
        data: &InputData,
        result: &flashtile::Result<TuneReport>,
    ) -> Result<Option<Tuning>> {
        let info = self.device.info();
        let Some(arch) = self.arch.or_else(|| arch_of(&self.device)) else { return Ok(None) };
        let predicted = info.gpu.is_none();
        let machine = machine_of(arch, info.gpu.as_ref());
        let search = match result {
            Ok(TuneReport { record, stop, from_cache, .. }) => Search {
                kernel,
                arch,
                machine,
                predicted,
                device: &record.key.device,
                facts: &record.key.facts,
                sizes: &record.sizes,
                data: &record.data,
                seed: self.flags.seed,
                candidates: &record.candidates,
                winner: record.winner,
                from_cache: *from_cache,
                ended: report::ended(stop),
            },
            Err(flashtile::Error::Tune(TuneError::NoneLeft { evidence, .. })) => Search {
                kernel,
                arch,
                machine,
                predicted,
                device: &if predicted { model_key(arch) } else { info.key() },
                facts: &subject.facts(kernel)?,
                sizes: &subject.all_sizes()?,
                data,
                seed: self.flags.seed,
                candidates: evidence,
                winner: None,
                from_cache: false,
                ended: "none is left".to_owned(),
            },
            Err(_) => return Ok(None),
        };
        Ok(Some(Tuning::of(&search)?))
    }
}

/// The architecture of a GPU.
fn arch_of(device: &Device) -> Option<&'static Arch> {
    let (major, minor) = device.info().gpu.as_ref()?.capability;
    Arch::for_capability(major, minor)
}

/// Moves the progress bar.
pub fn on_event(bar: ProgressBar) -> flashtile::tuner::OnEvent {
    Arc::new(move |event| match event {
        Event::Started { candidates, known } => {
            bar.set_length(*candidates as u64);
            bar.set_position(*known as u64);
        }
        Event::Tried { done, rejected, best, .. } => {
            bar.set_position(*done as u64);
            let best = best.map_or("none yet".to_owned(), seconds);
            bar.set_message(format!("best {best}, {rejected} rejected"));
        }
        Event::Round { round, candidates, best } => {
            bar.set_message(format!("round {round}: {candidates} left, best {}", seconds(*best)));
        }
        Event::RunOff { candidates } => bar.set_message(format!("run-off of {candidates} under load")),
        _ => {}
    })
}

fn show(flags: &Flags, explained: bool, report: &TuneReport, hints: serde_json::Value, output: &mut Output) -> Result<()> {
    let record = &report.record;
    let winner = report.winner();
    let illegal = record.candidates.iter().filter(|c| c.is_illegal()).count();
    let legal = record.candidates.len() - illegal;
    if output.json {
        output.json(&json!({
            "kernel": record.key.kernel,
            "shape": record.sizes,
            "data": record.data.to_string(),
            "dtype": record.key.binding.types.values().next().map(|e| e.name()),
            "device": record.key.device.name,
            "arch": record.key.arch,
            "schedule": winner.schedule.to_string(),
            "median_ms": winner.measured.as_ref().map(|m| m.median * 1e3),
            "under_load_ms": winner.under_load.as_ref().map(|m| m.median * 1e3),
            "predicted_ms": winner.predicted * 1e3,
            "predicted": report.predicted,
            "max_error": winner.max_error,
            "stop": report.stop,
            "from_cache": report.from_cache,
            "kept": report.kept,
            "earlier_schedule": report.earlier.as_ref().map(|c| c.schedule.to_string()),
            "seconds": report.seconds,
            "candidates": legal,
            "illegal": illegal,
            "hints": hints,
        }))?;
        return if explained { explain(&record.candidates, &winner.schedule, "winner", output) } else { Ok(()) };
    }
    let mut ranked: Vec<&Candidate> = record.candidates.iter().filter(|c| in_the_race(c)).collect();
    ranked.sort_by(|a, b| order(a, b));
    ranked.retain(|c| c.schedule != winner.schedule);
    ranked.insert(0, winner);
    ranked.truncate(flags.top.max(1));
    candidates(&ranked, output)?;
    if explained {
        explain(&record.candidates, &winner.schedule, "winner", output)?;
    }
    let kind = if report.predicted { "predicted by the cost model, not measured" } else { "measured" };
    let shape = || record.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
    let source = if report.from_cache { format!(", from the cache, for {}", shape()) } else { String::new() };
    output.text(format!("winner: {} ({kind}{source})", seconds(report.seconds_per_run())))?;
    output.text(format!("schedule: {}", winner.schedule))?;
    if let Some(earlier) = &report.earlier {
        let time = earlier.measured.as_ref().map_or(earlier.predicted, |m| m.median);
        let what = "an earlier search found a faster one, which launches take";
        output.text(format!("{what}: {}, {}; --afresh forgets it", seconds(time), earlier.schedule))?;
    }
    let tried = record.candidates.iter().filter(|c| c.tried()).count();
    let is_part = flags.schedules.is_some() || flags.max_candidates.is_some();
    let ended = match report.stop {
        Stop::Exhausted if is_part && !report.from_cache => "no other was asked for".to_owned(),
        _ => report::ended(&report.stop),
    };
    output.text(format!("{tried} of {legal} candidates tried in {:.1} s; {ended}", report.seconds))?;
    if illegal > 0 && !explained {
        output.text(format!("{illegal} more are not legal; --explain says why"))?;
    }
    if !report.kept {
        output.note("note: the result could not be kept in the cache; see `flashtile doctor`");
    }
    Ok(())
}

/// A table of candidates, with the knobs in which they differ.
fn candidates(shown: &[&Candidate], output: &mut Output) -> Result<()> {
    let varies =
        |knob: &&flashtile_codegen::Knob| shown.iter().any(|c| (knob.get)(&c.schedule) != (knob.get)(&shown[0].schedule));
    let knobs: Vec<_> = KNOBS.iter().filter(varies).collect();
    let mut header = vec!["time", "under load", "predicted", "max error", "registers", "spills"];
    header.extend(knobs.iter().map(|knob| knob.name));
    let others = shown.iter().any(|c| !c.schedule.beside.is_empty());
    header.extend(others.then_some("other launches"));
    let none = || "-".to_owned();
    let row = |c: &&Candidate| {
        let mut row = vec![
            c.measured.as_ref().map_or_else(none, |m| seconds(m.median)),
            c.under_load.as_ref().map_or_else(none, |m| seconds(m.median)),
            seconds(c.predicted),
            c.max_error.map_or_else(none, |e| format!("{e:.1e}")),
            c.report.as_ref().map_or_else(none, |r| r.registers.to_string()),
            c.report.as_ref().map_or_else(none, |r| (r.spill_stores + r.spill_loads).to_string()),
        ];
        row.extend(knobs.iter().map(|knob| (knob.get)(&c.schedule)));
        let beside = Schedule { beside: c.schedule.beside.clone(), ..Schedule::default() };
        row.extend(others.then(|| beside.difference(&Schedule::default()).join(",")));
        row
    };
    output.table(&header, shown.iter().map(row))
}

/// Every candidate that is out. With JSON every candidate, one a line; else a table, in which those that were rejected for
/// reasons alike are one row, with the first of them by the knobs in which it differs from `from`.
fn explain(candidates: &[Candidate], from: &Schedule, name: &str, output: &mut Output) -> Result<()> {
    if output.json {
        return candidates.iter().try_for_each(|candidate| output.json(candidate));
    }
    let difference = |schedule: &Schedule| schedule.difference(from).join(",");
    let rows =
        grouped(candidates).into_iter().map(|(count, first, why)| vec![count.to_string(), difference(&first.schedule), why]);
    output.table(&["candidates", &format!("(the first) differs from the {name} in"), "why not"], rows)
}

/// Candidates that are out: how many for reasons alike, the first of them, and its reason. Reasons are alike if they differ in
/// numbers only. Only those that were rejected are taken together.
fn grouped(candidates: &[Candidate]) -> Vec<(usize, &Candidate, String)> {
    let mut groups: Vec<(usize, &Candidate, String)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for candidate in candidates {
        let why = match &candidate.outcome {
            Outcome::Rejected { stage, reason } => format!("rejected ({}): {reason}", format!("{stage:?}").to_lowercase()),
            Outcome::Eliminated { round } => {
                groups.push((1, candidate, format!("eliminated in round {round}")));
                continue;
            }
            Outcome::NotTried => {
                groups.push((1, candidate, "its turn never came".to_owned()));
                continue;
            }
            Outcome::Measured | Outcome::Predicted => continue,
        };
        let without_numbers =
            why.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("0");
        let place = *places.entry(without_numbers).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((count, ..)) => *count += 1,
            None => groups.push((1, candidate, why)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use flashtile_codegen::Reason;

    use super::*;

    #[test]
    fn candidates_rejected_for_reasons_alike_are_told_once() {
        let illegal = |stages, why: &str| {
            let reason = Reason::Kernel { why: why.to_owned() };
            Candidate::illegal(Schedule::default().with_main(|main| main.stages = stages), &[reason])
        };
        let eliminated = || Candidate { outcome: Outcome::Eliminated { round: 2 }, ..Candidate::new(Schedule::default(), 1.0) };
        let measured = Candidate { outcome: Outcome::Measured, ..Candidate::new(Schedule::default(), 1.0) };
        let candidates = [
            measured,
            eliminated(),
            eliminated(),
            illegal(3, "needs 120 bytes"),
            illegal(1, "sm_75 has no bf16"),
            illegal(4, "needs 99 bytes"),
        ];
        let groups = grouped(&candidates);
        let told: Vec<(usize, u32, &str)> = groups.iter().map(|(n, c, why)| (*n, c.schedule.main.stages, why.as_str())).collect();
        assert_eq!(
            told,
            [
                (1, 2, "eliminated in round 2"),
                (1, 2, "eliminated in round 2"),
                (2, 3, "rejected (legality): needs 120 bytes"),
                (1, 1, "rejected (legality): sm_75 has no bf16"),
            ]
        );
    }

    #[test]
    fn budgets_have_units() {
        let millis = |text: &str| text.parse::<Budget>().map(|b| b.0.as_millis());
        assert_eq!(["60s", "2m", "500ms", "1.5", "1h"].map(millis), [60_000, 120_000, 500, 1_500, 3_600_000].map(Ok));
        for wrong in ["", "fast", "-1s", "1d"] {
            assert!(millis(wrong).expect_err(wrong).contains("is not a time"), "{wrong}");
        }
    }
}
