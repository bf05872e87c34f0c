//! The entry: candidates of a kernel for a shape, evidence from the cache, the search, the result.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flashtile_codegen::{Arch, Facts, Instance, Integers, Ranker, Reason, RunningMax, Schedule, Summary, with_first_maximum};
use flashtile_dsl::analysis::reach::Width;
use flashtile_dsl::ir::{Elem, Entity, ParamId, ParamKind};

use super::TuneError;
use super::bench::{Compilation, Compiler, Rejection};
use super::emulated;
use super::gate::Gate;
use super::gpu::GpuBench;
use super::inputs::{self, Inputs};
use super::options::{Event, TuneOptions};
use super::queue::Queue;
use super::search::{self, KEEP_EVERY, Limits, Stop, compile_all, note_compilation};
use crate::cache::{Bucket, Candidate, DeviceKey, ModuleKey, Outcome, Stage, TuningKey, TuningRecord};
use crate::device::cuda::{Cuda, Timer};
use crate::device::{Device, machine_of, packed_facts};
use crate::error::{Error, Result};
use crate::kernel::{BoundKernel, KernelError};
use crate::lowering::{self, Code, Machine, Ranking};
use crate::toolchain::ToolchainError;
use flashtile_dsl::inputs::{InputData, Plan, Values};

/// Result of tuning.
#[derive(Clone, PartialEq, Debug)]
pub struct TuneReport {
    /// Every candidate with its evidence, and the winner.
    pub record: TuningRecord,
    /// Why the search ended.
    pub stop: Stop,
    /// Whether times are the cost model's, since there was no GPU.
    pub predicted: bool,
    /// Whether the cache had the whole result, and nothing was done.
    pub from_cache: bool,
    /// Whether the result was kept in the cache.
    pub kept: bool,
    /// What launches take in place of the winner: an earlier search found a faster one.
    pub earlier: Option<Candidate>,
    /// Seconds it took.
    pub seconds: f64,
}

impl TuneReport {
    /// The best candidate; there always is one.
    pub fn winner(&self) -> &Candidate {
        self.record.winning().expect("a report is made only with a winner")
    }

    /// The winner's time in seconds: measured, or predicted.
    pub fn seconds_per_run(&self) -> f64 {
        let winner = self.winner();
        winner.measured.as_ref().map_or(winner.predicted, |m| m.median)
    }
}

/// Finds the best schedule of a kernel for a shape, given by the names of its run-time sizes.
///
/// On a GPU every candidate is checked against the float64 oracle before it is timed. On the CPU, with an architecture
/// in the options, every candidate is compiled, checked for spills, executed on the emulator at a small size, which finds races,
/// wrong results and bank conflicts, and ranked by the cost model. Results are kept in
/// the cache, also those of a search that is cancelled or cut short, and are used by launches of that bucket of sizes.
///
/// # Errors
/// [`TuneError`] for sizes that do not fit, or if no candidate works;
/// [`crate::launch::ArgumentError`] for sizes and integers that a launch refuses;
/// [`ToolchainError`] without NVRTC; whatever the device says when the inputs are made.
pub fn tune(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, device: &Device, options: &TuneOptions) -> Result<TuneReport> {
    let start = Instant::now();
    let gpu = device.backend().as_any().downcast_ref::<Cuda>();
    let arch = match (options.arch, gpu) {
        (Some(arch), _) => arch,
        (None, Some(gpu)) => gpu.arch(),
        (None, None) => return Err(TuneError::NoArchitecture { device: device.to_string() }.into()),
    };
    // Candidates are many, and each would be refused.
    inputs::check(kernel, sizes, &options.data)?;
    let facts = facts_of(kernel, sizes, &options.data)?;
    let mut task = Task {
        kernel,
        sizes,
        arch,
        machine: machine_of(arch, gpu.map(Cuda::gpu)),
        options,
        facts: facts.clone(),
        // Loaded before anything else, so that its absence is one clear error.
        nvrtc: options.toolchain.nvrtc()?.version(),
        illegal: Vec::new(),
        key: TuningKey::new(
            (&kernel.ir().name, &kernel.fingerprint()),
            kernel.binding().clone(),
            facts,
            Bucket::of(sizes.iter().filter(|(n, _)| !kernel.binding().consts.contains_key(*n)).map(|(n, &s)| (n.as_str(), s))),
            arch.name,
            match gpu {
                Some(_) => device.info().key(),
                None => model_key(arch),
            },
        ),
    };
    let known = if options.afresh { None } else { task.known() };
    if let Some(record) = known.clone().filter(|r| r.complete && r.winner.is_some() && options.schedules.is_none()) {
        let seconds = start.elapsed().as_secs_f64();
        let predicted = gpu.is_none();
        let stop = Stop::Exhausted;
        return Ok(TuneReport { record, stop, predicted, from_cache: true, kept: true, earlier: None, seconds });
    }
    let mut candidates = task.candidates(known.as_ref())?;
    if candidates.is_empty() {
        return Err(task.no_winner(&task.record(candidates, None, false), &Stop::Exhausted).into());
    }
    let (winner, stop) = match gpu {
        Some(gpu) => task.measure(&mut candidates, gpu, device, start)?,
        None => task.predict(&mut candidates, start),
    };
    task.report(candidates, winner, stop, gpu.is_none(), start)
}

/// Facts of launches with these sizes and packed tensors, of which the data says what scalars are.
///
/// # Errors
/// A size is unknown, missing or impossible, or the data is of no input.
pub fn facts_of(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, data: &InputData) -> Result<Facts> {
    let all_sizes = inputs::all_sizes(kernel, sizes)?;
    let plan = Plan::new(kernel.ir(), &all_sizes, data).map_err(TuneError::from)?;
    let integer = |param: usize| plan.i32(ParamId::from_index(param));
    let mut facts = packed_facts(kernel, &all_sizes, &inputs::shapes(kernel, &all_sizes)?, integer);
    facts.positive.retain(|name| match data.of(name).values {
        Some(Values::Constant(value)) => value > 0.0 && value.is_finite(),
        _ => true,
    });
    Ok(facts)
}

/// The integers of a call with these sizes and this data, as far as they may bound loops.
///
/// # Errors
/// As [`facts_of`].
pub fn integers_of(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>, data: &InputData, seed: u64) -> Result<Integers> {
    /// Tensors of more elements are tables and masks of single pairs, which bound no loop.
    const MOST: usize = 1 << 22;
    let (ir, all_sizes) = (kernel.ir(), inputs::all_sizes(kernel, sizes)?);
    let plan = Plan::new(ir, &all_sizes, data).map_err(TuneError::from)?;
    let mut integers = Integers::default();
    for ((id, param), shape) in ir.params.iter().zip(inputs::shapes(kernel, &all_sizes)?) {
        match (&param.kind, shape) {
            (ParamKind::Scalar(Elem::I32), _) => integers.scalar(&param.name, plan.i32(id).into()),
            (ParamKind::Tensor(t), Some(shape))
                if t.elem == Elem::I32 && !t.direction.is_written() && shape.iter().product::<usize>() <= MOST =>
            {
                let values = plan.values(id, &shape, seed).into_iter().map(|x| x as i32);
                integers.tensor(&param.name, &shape, values.collect());
            }
            _ => {}
        }
    }
    Ok(integers)
}

/// What identifies the typical machine of an architecture, for which candidates are ranked where there is no GPU.
pub fn model_key(arch: &Arch) -> DeviceKey {
    DeviceKey {
        name: format!("model of {arch}"),
        capability: arch.capability,
        sms: arch.typical_sms,
        memory_bytes: 0,
        driver: (0, 0),
    }
}

struct Task<'a> {
    kernel: &'a BoundKernel,
    sizes: &'a BTreeMap<String, i64>,
    arch: &'static Arch,
    machine: Machine,
    options: &'a TuneOptions,
    facts: Facts,
    nvrtc: (u32, u32),
    /// Schedules that are not legal, with all reasons. The search does not see them; they are in
    /// every record.
    illegal: Vec<(Schedule, Vec<Reason>)>,
    key: TuningKey,
}

impl Task<'_> {
    /// What the cache knows, by the same NVRTC, of candidates whose code is still the same. The result
    /// of a search that went to its end holds for all sizes of the bucket, and the times of another
    /// one for its own.
    fn known(&self) -> Option<TuningRecord> {
        let record = self.options.cache.tuning(&self.key)?;
        let holds = record.nvrtc == self.nvrtc && record.data == self.options.data;
        let mut record = Some(record).filter(|r| holds && (r.complete || r.sizes == *self.sizes))?;
        let winner = record.winning().map(|w| w.schedule.clone());
        let instance = self.kernel.instance(self.facts.clone());
        let mut changed = false;
        record.candidates.retain(|c| {
            let same = |source: String| ModuleKey::hash_of_code(&source) == c.source_hash;
            let kept = match lowering::generate(&instance, &c.schedule, self.arch) {
                Ok(generated) => c.tried() && same(generated.source),
                Err(_) => c.is_illegal(),
            };
            changed |= !kept && c.tried();
            kept
        });
        record.complete &= !changed;
        record.winner = winner.and_then(|w| record.candidates.iter().position(|c| c.schedule == w));
        Some(record)
    }

    /// The legal candidates, best predicted first, with what is known of them. The others are set aside.
    fn candidates(&mut self, known: Option<&TuningRecord>) -> Result<Vec<Candidate>> {
        let instance = self.kernel.instance(self.facts.clone());
        let integers = integers_of(self.kernel, self.sizes, &self.options.data, self.options.seed)?;
        let ranker = Ranker::new(&instance, self.arch).reading(integers);
        let Ranking { mut legal, illegal } = match &self.options.schedules {
            None => {
                let mut ranking = lowering::ranking(&ranker, self.kernel, self.arch, self.sizes, &self.machine)?;
                if !self.options.data.is_normal() {
                    let exact = exact_twins(&ranking.legal);
                    ranking.legal.extend(self.judged(&ranker, &instance, &exact).legal);
                }
                let first = with_first_maximum(&instance, ranking.legal.iter().map(|(schedule, _)| schedule));
                ranking.legal.extend(self.judged(&ranker, &instance, &first).legal);
                ranking
            }
            Some(schedules) => self.judged(&ranker, &instance, schedules),
        };
        legal.sort_by(|a, b| a.1.total_cmp(&b.1));
        legal.truncate(self.options.max_candidates.unwrap_or(usize::MAX));
        self.illegal = illegal;
        let candidate = |(schedule, predicted): (Schedule, f64)| {
            let same = |c: &&Candidate| c.schedule == schedule;
            match known.and_then(|r| r.candidates.iter().find(same)) {
                Some(candidate) => Candidate { predicted, ..candidate.clone() },
                None => Candidate::new(schedule, predicted),
            }
        };
        Ok(legal.into_iter().map(candidate).collect())
    }

    /// Schedules that were given, with what the model predicts.
    fn judged(&self, ranker: &Ranker, instance: &Instance, schedules: &[Schedule]) -> Ranking {
        let mut ranking = Ranking::default();
        for schedule in schedules {
            match lowering::check(instance, schedule, self.arch) {
                Err(KernelError::IllegalSchedule { reasons, .. }) => ranking.illegal.push((schedule.clone(), reasons)),
                _ => {
                    let predicted = ranker.predict(schedule, self.sizes, &self.machine).unwrap_or(f64::INFINITY);
                    ranking.legal.push((schedule.clone(), predicted));
                }
            }
        }
        ranking
    }

    /// The search on a GPU.
    fn measure(
        &self,
        candidates: &mut [Candidate],
        gpu: &Cuda,
        device: &Device,
        start: Instant,
    ) -> Result<(Option<usize>, Stop)> {
        let inputs = Inputs::random(self.kernel, self.sizes, device, self.options.seed, &self.options.data)?;
        let gate = Gate::new(self.kernel, &inputs, self.options.seed)?;
        let timer = Timer::new(gpu)?;
        let width = if self.facts.wide { Width::Wide } else { Width::Narrow };
        let bench = GpuBench { gpu, width, kernel: self.kernel, arch: self.arch, inputs: &inputs, gate, timer, start };
        let limits = Limits {
            budget: self.options.budget,
            jobs: self.options.jobs,
            spill_limit: self.options.spill_limit,
            roofline: lowering::roofline(self.kernel, self.sizes, self.arch, &self.machine),
            cancel: &self.options.cancel,
        };
        let on_event = |event: &Event| (self.options.on_event)(event);
        let mut keep = |candidates: &[Candidate]| {
            self.options.cache.keep_tuning(&self.record(candidates.to_vec(), None, false));
        };
        let found = search::search(candidates, self, bench, &limits, &on_event, &mut keep);
        Ok((found.winner, found.stop))
    }

    /// Compiles every candidate, checks it on the emulator, and ranks by the model.
    fn predict(&self, candidates: &mut [Candidate], start: Instant) -> (Option<usize>, Stop) {
        let todo: Vec<usize> = (0..candidates.len()).filter(|&i| !candidates[i].tried()).collect();
        let of = candidates.len();
        (self.options.on_event)(&Event::Started { candidates: of, known: of - todo.len() });
        let schedules: Vec<Schedule> = candidates.iter().map(|c| c.schedule.clone()).collect();
        let (end, mut stop, mut done) = (AtomicBool::new(false), Stop::Exhausted, of - todo.len());
        let checked = Emulated { task: self, sizes: emulated::small_sizes(self.kernel, self.sizes) };
        let queue = Queue::new(todo.iter().map(|&i| (i, &schedules[i], candidates[i].predicted)));
        compile_all(&checked, &schedules, &queue, self.options.jobs, &end, |index, compiled| {
            let candidate = &mut candidates[index];
            if note_compilation(candidate, compiled, self.options.spill_limit).is_some() {
                candidate.outcome = Outcome::Predicted;
            }
            done += 1;
            let rejected = candidates.iter().filter(|c| matches!(c.outcome, Outcome::Rejected { .. })).count();
            let best = best_predicted(candidates).map(|i| candidates[i].predicted);
            (self.options.on_event)(&Event::Tried { done, of, rejected, best });
            if done < of && self.options.cancel.is_cancelled() {
                stop = Stop::Cancelled;
            } else if done < of && start.elapsed() > self.options.budget {
                stop = Stop::Budget;
            }
            end.store(stop != Stop::Exhausted, Ordering::Relaxed);
            if done.is_multiple_of(KEEP_EVERY) {
                self.options.cache.keep_tuning(&self.record(candidates.to_vec(), None, false));
            }
        });
        (best_predicted(candidates), stop)
    }

    fn record(&self, mut candidates: Vec<Candidate>, winner: Option<usize>, complete: bool) -> TuningRecord {
        let illegal = self.illegal.iter();
        candidates.extend(illegal.map(|(schedule, reasons)| Candidate::illegal(schedule.clone(), reasons)));
        let (key, sizes) = (self.key.clone(), self.sizes.clone());
        TuningRecord { key, nvrtc: self.nvrtc, sizes, data: self.options.data.clone(), winner, complete, candidates }
    }

    fn report(
        &self,
        candidates: Vec<Candidate>,
        winner: Option<usize>,
        stop: Stop,
        predicted: bool,
        start: Instant,
    ) -> Result<TuneReport> {
        // A search among a part of the space says nothing of the rest.
        let whole = self.options.schedules.is_none() && self.options.max_candidates.is_none();
        let complete = matches!(stop, Stop::Exhausted | Stop::Roofline) && whole;
        let record = self.record(candidates, winner, complete);
        let cache = &self.options.cache;
        // What is measured afresh replaces what was known, if it found anything.
        let kept = match self.options.afresh && winner.is_some() {
            true => cache.replace_tuning(&record),
            false => cache.merge_tuning(&record),
        };
        if winner.is_none() {
            return Err(self.no_winner(&record, &stop).into());
        }
        let earlier = kept.as_ref().and_then(TuningRecord::winning).cloned();
        let earlier = earlier.filter(|c| Some(&c.schedule) != record.winning().map(|own| &own.schedule));
        let (kept, seconds) = (kept.is_some(), start.elapsed().as_secs_f64());
        Ok(TuneReport { record, stop, predicted, from_cache: false, kept, earlier, seconds })
    }

    fn no_winner(&self, record: &TuningRecord, stop: &Stop) -> TuneError {
        let kernel = self.kernel.ir().name.clone();
        let first = record.candidates.iter().find_map(|c| match &c.outcome {
            Outcome::Rejected { reason, .. } if !c.is_illegal() => Some(reason.clone()),
            _ => None,
        });
        let first = first.or_else(|| self.illegal.first().map(|(_, reasons)| Summary::of(reasons).to_string()));
        match (stop, first) {
            (Stop::Budget, None) => TuneError::Ended { kernel, why: "the budget was spent".to_owned() },
            (Stop::Cancelled, _) => TuneError::Ended { kernel, why: "it was cancelled".to_owned() },
            (_, first) => TuneError::NoneLeft {
                kernel,
                device: self.key.device.name.clone(),
                candidates: record.candidates.len(),
                first: first.unwrap_or_else(|| "there is none".to_owned()),
                evidence: record.candidates.clone(),
            },
        }
    }
}

/// The schedules with a lazy running maximum, with an exact one: these win on no normal data, and are not in the space.
fn exact_twins(legal: &[(Schedule, f64)]) -> Vec<Schedule> {
    let mut twins: Vec<Schedule> = Vec::new();
    for (schedule, _) in legal {
        let twin = schedule.with_main(|main| main.running_max = RunningMax::Exact);
        if schedule.main.running_max != RunningMax::Exact && !twins.contains(&twin) {
            twins.push(twin);
        }
    }
    twins
}

fn best_predicted(candidates: &[Candidate]) -> Option<usize> {
    let predicted = candidates.iter().enumerate().filter(|(_, c)| c.outcome == Outcome::Predicted);
    predicted.min_by(|(_, a), (_, b)| a.predicted.total_cmp(&b.predicted)).map(|(i, _)| i)
}

impl Compiler for Task<'_> {
    type Code = Code;

    fn compile(&self, schedule: &Schedule) -> Result<Compilation<Code>, Rejection> {
        let TuneOptions { toolchain, cache, .. } = self.options;
        let code = lowering::compile(self.kernel, &self.facts, schedule, self.arch, toolchain, cache).map_err(|error| {
            let stage = match &error {
                Error::Toolchain(ToolchainError::Compile { .. }) => Stage::Compile,
                Error::Kernel(KernelError::IllegalSchedule { .. } | KernelError::Generate { .. }) => Stage::Generate,
                _ => Stage::Compile,
            };
            Rejection::new(stage, error.to_string())
        })?;
        Ok(Compilation {
            source_hash: ModuleKey::hash_of_code(&code.source),
            report: code.module.report.clone(),
            seconds: code.compile_seconds,
            max_error: None,
            code,
        })
    }
}

/// Candidates where there is no GPU: compiled, then executed on the emulator.
struct Emulated<'a> {
    task: &'a Task<'a>,
    /// Sizes of the emulated launch.
    sizes: BTreeMap<String, i64>,
}

impl Compiler for Emulated<'_> {
    type Code = Code;

    fn compile(&self, schedule: &Schedule) -> Result<Compilation<Code>, Rejection> {
        let compiled = self.task.compile(schedule)?;
        let max_error = emulated::check(self.task.kernel, &self.sizes, schedule, &compiled.code, self.task.options)?;
        Ok(Compilation { max_error: Some(max_error), ..compiled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::kernel::Kernel;
    use flashtile_codegen::{SharedLayout, TensorOp};
    use flashtile_dsl::ir::Elem;

    fn sizes() -> BTreeMap<String, i64> {
        [("B", 1), ("H", 4), ("G", 4), ("M", 512), ("N", 512)].map(|(n, v)| (n.to_owned(), v)).into()
    }

    fn attention() -> BoundKernel {
        Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds")
    }

    /// Needs NVRTC: found, or installed once.
    #[test]
    fn with_no_gpu_every_candidate_is_compiled_and_ranked_and_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = TuneOptions {
            arch: Arch::named("sm_80"),
            schedules: Some(vec![
                Schedule::default(),
                "stages=1".parse().expect("a schedule"),
                "block_m=24".parse().expect("a schedule"),
                "swizzle=off".parse().expect("a schedule"),
            ]),
            cache: Cache::with_warnings(dir.path(), |line| panic!("{line}")),
            ..TuneOptions::default()
        };
        let report = tune(&attention(), &sizes(), &Device::cpu(), &options).expect("tunes");
        assert!(report.predicted && report.kept && !report.from_cache && report.stop == Stop::Exhausted);
        let predicted: Vec<_> = report.record.candidates.iter().filter(|c| c.outcome == Outcome::Predicted).collect();
        assert_eq!(predicted.len(), 2, "{:?}", report.record.candidates);
        assert!(predicted.iter().all(|c| c.report.as_ref().is_some_and(|r| r.registers > 0)));
        assert!(predicted.iter().all(|c| c.max_error.is_some_and(|error| error > 0.0 && error < 0.01)), "{predicted:?}");
        let conflicting =
            report.record.candidates.iter().find(|c| c.schedule.main.swizzle == SharedLayout::Plain).expect("is kept");
        let Outcome::Rejected { stage: Stage::Conflicts, reason } = &conflicting.outcome else { panic!("{conflicting:?}") };
        assert!(conflicting.max_error.is_some(), "its results were right");
        assert!(reason.contains("ldmatrix") && reason.contains("attention.rs:") && reason.contains("8-way"), "{reason}");
        let illegal = report.record.candidates.last().expect("is kept");
        assert!(
            matches!(&illegal.outcome, Outcome::Rejected { stage: Stage::Legality, reason } if reason.contains("block_m=24"))
        );
        assert!(illegal.schedule.main.block_m == 24 && !illegal.tried() && illegal.source_hash.is_empty());
        let again = tune(&attention(), &sizes(), &Device::cpu(), &options).expect("tunes");
        assert!(again.record.candidates.iter().all(|c| report.record.candidates.contains(c)), "evidence is reused");
        assert!(again.seconds < report.seconds);
    }

    /// Needs NVRTC: found, or installed once.
    #[test]
    fn where_nothing_is_legal_the_error_has_every_candidate_and_why() {
        let schedules = [24, 40].map(|block_m| Schedule::default().with_main(|main| main.block_m = block_m));
        let options = TuneOptions {
            arch: Arch::named("sm_80"),
            schedules: Some(schedules.to_vec()),
            cache: Cache::disabled(),
            ..TuneOptions::default()
        };
        let error = tune(&attention(), &sizes(), &Device::cpu(), &options).expect_err("nothing is legal");
        let Error::Tune(TuneError::NoneLeft { candidates: 2, first, evidence, .. }) = error else { panic!("{error}") };
        assert!(first.contains("block_m=24") && evidence.iter().all(Candidate::is_illegal));
        // The same for the whole space, which has one of wgmma to say why there are no others.
        let kernel = Kernel::builtin("attention").expect("a built-in").bind(Elem::F32, [("D", 4096)]).expect("binds");
        let options = TuneOptions { arch: Arch::named("sm_90a"), schedules: None, ..options };
        let error = tune(&kernel, &sizes(), &Device::cpu(), &options).expect_err("nothing is legal");
        let Error::Tune(TuneError::NoneLeft { evidence, .. }) = error else { panic!("{error}") };
        assert!(evidence.len() > 10 && evidence.iter().all(Candidate::is_illegal));
        assert!(evidence.iter().any(|c| c.schedule.main.tensor_op == TensorOp::Wgmma));
    }

    #[test]
    fn with_neither_gpu_nor_architecture_the_error_says_what_to_give() {
        let error = tune(&attention(), &sizes(), &Device::cpu(), &TuneOptions::default()).expect_err("none").to_string();
        assert!(error.starts_with("cpu has no architecture to tune for; name one (`--arch sm_90a` of the command)"), "{error}");
    }
}
