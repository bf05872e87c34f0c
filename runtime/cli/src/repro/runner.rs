//! Runs the cells of an experiment: timed on a GPU; where there is none, on a small shape under the same schedule, counted on the
//! emulator or checked on the CPU. Every result is compared with the float64 oracle.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use flashtile::device::{DeviceKind, machine_of};
use flashtile::emulator::Profile;
use flashtile::lowering::{self, Generated};
use flashtile::tuner::{
    MeasureOptions, MeasuredSequence, Part, TuneOptions, count_memory, count_scratch, measure_sequence, tune,
};
use flashtile::verify::OutputVerdict;
use flashtile::{Arch, BoundKernel, Device, Facts, LaunchOptions, Schedule};
use flashtile_codegen::Resources;
use flashtile_dsl::analysis::cost::{Work, Workload};

use super::figures::{Code, Counted, Figures};
use super::launch::{How, Launch, Sequence, defaults};
use super::peers::{Peer, PeerFigures, PeerResults, Peers};
use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::target::TargetFlags;

/// How figures come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Timed on a GPU.
    Timed,
    /// Counted on the emulator, on a small shape.
    Counted,
    /// Checked on the CPU, on a small shape.
    Checked,
}

/// Longest sequence on the emulator and the CPU: two tiles or more of every schedule here.
const LONGEST: i64 = 256;

/// What cells run on, and how.
pub struct Runner<'a> {
    /// How figures come about.
    pub mode: Mode,
    device: Device,
    arch: &'static Arch,
    global: &'a GlobalFlags,
    options: RunnerOptions,
    /// Figures by what was asked for: a cell that stands in two tables is measured once.
    known: HashMap<String, Figures>,
    /// What small shapes did, by what ran: rows that differ in length alone run the same there.
    small: RefCell<HashMap<String, Executed>>,
    /// Figures of peers by what ran: a peer that stands in two tables is timed once.
    peers: HashMap<String, Result<PeerFigures, String>>,
    /// Version of the peers' library.
    library: Option<String>,
}

/// What came of running a sequence.
#[derive(Clone)]
struct Executed {
    measured: MeasuredSequence,
    counted: Option<Counted>,
}

/// How cells are timed.
pub struct RunnerOptions {
    /// Runs of a cell that count.
    pub repetitions: u32,
    /// Time to tune a cell; none to take what was tuned before, or the cost model's choice.
    pub tuning: Option<Duration>,
    /// Whether sequences are cut to an eighth on a GPU too.
    pub quick: bool,
    /// What runs beside ours.
    pub peers: Peers,
}

/// Time for the runs of a cell.
const BUDGET: Duration = Duration::from_secs(4);

impl<'a> Runner<'a> {
    /// A runner of cells on a device; on the best one if none is named: a GPU, the emulator where there is a compiler, the CPU.
    ///
    /// # Errors
    /// No such device or architecture.
    pub fn new(device: Option<&str>, arch: Option<&str>, global: &'a GlobalFlags, options: RunnerOptions) -> Result<Self> {
        let compiles = || global.toolchain().nvrtc().is_ok();
        let device = match device {
            Some(name) => name.parse()?,
            None => match Device::best() {
                gpu if gpu.is_cuda() => gpu,
                _ if compiles() => "emulator".parse()?,
                cpu => cpu,
            },
        };
        let mode = match device.info().kind {
            DeviceKind::Cuda => Mode::Timed,
            DeviceKind::Emulator => Mode::Counted,
            DeviceKind::Cpu => Mode::Checked,
        };
        let target = TargetFlags { arch: arch.map(str::to_owned), ..TargetFlags::default() }.target()?;
        let (known, small, peers) = (HashMap::new(), RefCell::default(), HashMap::new());
        Ok(Self { mode, device, arch: target.arch, global, options, known, small, peers, library: None })
    }

    /// Where it runs, in words.
    pub fn device(&self) -> String {
        match self.mode {
            Mode::Timed | Mode::Checked => self.device.info().name.clone(),
            Mode::Counted => format!("{} ({})", self.device.info().name, self.arch),
        }
    }

    /// The device, for claims that run kernels.
    pub fn on(&self) -> &Device {
        &self.device
    }

    /// How kernels are compiled, without a schedule.
    pub fn launch_options(&self) -> LaunchOptions {
        let mut options = self.global.launch_options();
        if self.mode != Mode::Checked {
            options.arch = Some(self.arch);
        }
        options
    }

    /// The architecture that code is generated for.
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// Whether code is compiled. It is not where the CPU is asked for, since a compiler might have
    /// to be installed first.
    pub fn compiles(&self) -> bool {
        self.mode != Mode::Checked
    }

    /// How kernels are compiled for the emulator, whatever the device of the runner is.
    pub fn emulator_options(&self) -> LaunchOptions {
        LaunchOptions { arch: Some(self.arch), ..self.global.launch_options() }
    }

    /// Multiprocessors of the GPU; of a typical one of the architecture where there is none.
    pub fn multiprocessors(&self) -> u32 {
        machine_of(self.arch, self.device.info().gpu.as_ref()).sms
    }

    /// Runs the peers of a table, those that did not run before: on a GPU only.
    ///
    /// # Errors
    /// As [`Peers::run`].
    pub fn peers(&mut self, peers: &[&Peer], watch: impl Fn()) -> Result<PeerResults> {
        if self.mode != Mode::Timed {
            let why = "peers are timed, on a GPU".to_owned();
            return Ok(PeerResults { version: None, figures: peers.iter().map(|_| Err(why.clone())).collect() });
        }
        let keys: Vec<String> = peers.iter().map(|peer| peer.key()).collect();
        let mut new: Vec<(&String, &Peer)> = Vec::new();
        for (key, &peer) in keys.iter().zip(peers) {
            if self.peers.contains_key(key) || new.iter().any(|(other, _)| *other == key) {
                watch();
            } else {
                new.push((key, peer));
            }
        }
        let all: Vec<&Peer> = new.iter().map(|(_, peer)| *peer).collect();
        let ran = self.options.peers.run(&all, self.options.repetitions, BUDGET.as_secs_f64(), watch)?;
        self.library = self.library.take().or(ran.version);
        for ((key, _), figures) in new.into_iter().zip(ran.figures) {
            self.peers.insert(key.clone(), figures);
        }
        Ok(PeerResults { version: self.library.clone(), figures: keys.iter().map(|key| self.peers[key].clone()).collect() })
    }

    /// Nominal FLOPs of a launch.
    ///
    /// # Errors
    /// Its kernel is not there.
    pub fn flops(&self, launch: &Launch) -> Result<f64> {
        let (bound, sizes) = bind(launch)?;
        let workload = Workload { kernel: bound.ir(), binding: bound.binding(), sizes: &sizes };
        Ok(workload.cost().nominal_flops as f64)
    }

    /// Peak FLOP/s and bytes/s of the GPU for the element type of a launch; `None` where there is no GPU.
    fn peak(&self, launch: &Launch) -> Result<Option<(f64, f64)>> {
        let info = self.device.info();
        let Some(gpu) = &info.gpu else { return Ok(None) };
        let peak = lowering::peak(&bind(launch)?.0, self.arch, &machine_of(self.arch, Some(gpu)));
        Ok(Some((peak.flops, peak.bytes_per_s)))
    }

    /// Why the architecture does not have a sequence.
    ///
    /// # Errors
    /// Knobs that are none.
    pub fn lacks(&self, sequence: &Sequence) -> Result<Option<String>> {
        for launch in &sequence.launches {
            if let Some(why) = launch.lacks(self.arch)? {
                return Ok(Some(format!("not on {}: {why}", self.arch)));
            }
        }
        Ok(None)
    }

    /// The work that a launch executes under its schedule, whole tiles of every trip.
    ///
    /// # Errors
    /// A schedule that is not legal.
    pub fn executed(&self, launch: &Launch) -> Result<Work> {
        let (bound, sizes) = bind(launch)?;
        let facts = Facts::best(bound.ir());
        let (schedule, _) = self.chosen(launch, &bound, &facts, &sizes)?;
        let generated = lowering::generate(&bound.instance(facts), &schedule, self.arch)?;
        Ok(generated.executed(bound.binding(), &sizes))
    }

    /// Runs a sequence; on a GPU counts it on the emulator too, on a small shape, if that is `wanted`.
    ///
    /// # Errors
    /// A schedule that is not legal, a compiler or device that fails, or a result that is wrong.
    pub fn run(&mut self, sequence: &Sequence, counts: bool) -> Result<Figures> {
        let ran = match (self.mode, self.options.quick) {
            (Mode::Timed, false) => sequence.clone(),
            (Mode::Timed, true) => sequence.map(|launch| launch.shorter(longest(sequence) / 8)),
            _ => sequence.map(|launch| launch.small(LONGEST)),
        };
        let launches = |of: &Sequence| of.launches.iter().map(|l| (l.kernel, l.elem, l.sizes.clone(), l.how.clone())).collect();
        // The schedule of a small shape is that of the whole one, which the model may choose.
        let key: Vec<_> = launches(if self.mode == Mode::Timed { &ran } else { sequence });
        let key = format!("{counts} {key:?}");
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let mut figures = self.measure(sequence, &ran, &self.device, self.mode)?;
        if counts && self.mode == Mode::Timed {
            let (emulator, small) = ("emulator".parse()?, sequence.map(|launch| launch.small(LONGEST)));
            figures.counted = self.measure(sequence, &small, &emulator, Mode::Counted)?.counted;
        }
        self.known.insert(key, figures.clone());
        Ok(figures)
    }

    /// Runs `ran`, a sequence that differs from `full` in sizes at most, under the schedules of `full`.
    fn measure(&self, full: &Sequence, ran: &Sequence, device: &Device, mode: Mode) -> Result<Figures> {
        let chosen = full.launches.iter().map(|launch| self.schedule(launch, mode)).collect::<Result<Vec<_>>>()?;
        let schedules: Vec<&Schedule> = chosen.iter().map(|c| &c.schedule).collect();
        let Executed { measured, counted } = match mode {
            Mode::Timed => self.execute(ran, &schedules, device, mode)?,
            Mode::Counted | Mode::Checked => {
                let what: Vec<_> = ran.launches.iter().map(|l| (l.kernel, l.elem, &l.sizes)).collect();
                // The CPU executes no schedule.
                let how = if mode == Mode::Counted { schedules.as_slice() } else { &[] };
                let key = format!("{mode:?} {what:?} {how:?}");
                let known = self.small.borrow().get(&key).cloned();
                let executed = known.map_or_else(|| self.execute(ran, &schedules, device, mode), Ok)?;
                self.small.borrow_mut().insert(key, executed.clone());
                executed
            }
        };
        let judge = ran.judge();
        let memory = match mode {
            Mode::Timed => (measured.memory.counted as f64, measured.memory.driver.map(|bytes| bytes as f64)),
            // What is allocated does not depend on what runs. A stream keeps scratch memory for its
            // largest call.
            _ => {
                let scratch = chosen.iter().map(|c| c.scratch).max().unwrap_or(0);
                ((allocated(full)? + scratch) as f64, None)
            }
        };
        let sum = |of: fn(&Chosen) -> u64| chosen.iter().map(of).sum::<u64>();
        let traffic = (sum(|c| c.asked.read), sum(|c| c.asked.written));
        let tensors = (sum(|c| c.once.read), sum(|c| c.once.written));
        let shape: Vec<String> = judge.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        Ok(Figures {
            shape: shape.join(","),
            time: measured.times.as_ref().map(|t| (t.median * 1e3, t.min * 1e3, t.repetitions)),
            flops: self.flops(judge)?,
            memory: Some(memory),
            max_error: Some(measured.max_error()),
            code: chosen.into_iter().map(|c| c.code).collect(),
            counted,
            traffic: Some(traffic),
            tensors: Some(tensors),
            intensity: self.flops(full.judge())? / (traffic.0 + traffic.1).max(1) as f64,
            peak: self.peak(judge)?,
        })
    }

    /// Runs a sequence under these schedules, and compares what comes out with the oracle.
    fn execute(&self, ran: &Sequence, schedules: &[&Schedule], device: &Device, mode: Mode) -> Result<Executed> {
        let mut parts = Vec::new();
        for (launch, &schedule) in ran.launches.iter().zip(schedules) {
            let mut options = self.launch_options();
            match mode {
                Mode::Checked => options.arch = None,
                Mode::Timed | Mode::Counted => options.schedule = Some(schedule.clone()),
            }
            options.emulation.options.profile = true;
            let (kernel, sizes) = bind(launch)?;
            let loaded = kernel.on_with(device, options)?;
            parts.push((Part { kernel, sizes, tensors: names(launch) }, loaded));
        }
        let judge = ran.judge();
        let (kernel, sizes) = bind(judge)?;
        let oracle = Part { kernel, sizes, tensors: names(judge) };
        let options = match mode {
            Mode::Timed => MeasureOptions { repetitions: self.options.repetitions, budget: BUDGET, ..MeasureOptions::default() },
            _ => MeasureOptions { repetitions: 0, warm_ups: 0, ..MeasureOptions::default() },
        };
        let measured = measure_sequence(&parts, &oracle, &options)?;
        if let Some(wrong) = measured.verdicts.iter().find(|v: &&OutputVerdict| !v.passed()) {
            return Err(Failure::Verification(format!("{} is wrong: {wrong}", judge.kernel.name())));
        }
        let profiles: Vec<Profile> =
            parts.iter().flat_map(|(_, loaded)| loaded.reports()).filter_map(|report| report.profile).collect();
        let counted = (!profiles.is_empty()).then(|| Counted::of(&profiles, measured.max_error()));
        Ok(Executed { measured, counted })
    }

    /// The schedule of a launch, what it becomes, and the bytes that it moves.
    fn schedule(&self, launch: &Launch, mode: Mode) -> Result<Chosen> {
        let (bound, sizes) = bind(launch)?;
        let facts = Facts::best(bound.ir());
        let (schedule, origin) = self.chosen(launch, &bound, &facts, &sizes)?;
        // Said before anything runs, and on devices that compile nothing too.
        let generated = lowering::generate(&bound.instance(facts), &schedule, self.arch)?;
        let code = Code { origin: origin.to_owned(), ..self.code(&bound.ir().name, &schedule, &generated, mode)? };
        Ok(Chosen {
            asked: generated.executed(bound.binding(), &sizes),
            once: Workload { kernel: bound.ir(), binding: bound.binding(), sizes: &sizes }.cost().algorithm,
            scratch: count_scratch(&generated, &sizes).expect("published shapes fit into memory"),
            schedule,
            code,
        })
    }

    /// The schedule of a launch and where it comes from: given, found by tuning, or ranked first by
    /// the cost model.
    fn chosen(
        &self,
        launch: &Launch,
        bound: &BoundKernel,
        facts: &Facts,
        sizes: &BTreeMap<String, i64>,
    ) -> Result<(Schedule, &'static str)> {
        if let How::Knobs(knobs) = &launch.how {
            return Ok((defaults(self.arch).with(knobs)?, "given"));
        }
        if let (Mode::Timed, Some(budget)) = (self.mode, self.options.tuning) {
            let toolchain = self.global.toolchain();
            let options = TuneOptions { budget, arch: Some(self.arch), toolchain, ..TuneOptions::default() };
            return Ok((tune(bound, sizes, &self.device, &options)?.winner().schedule.clone(), "tuned"));
        }
        let target = TargetFlags { arch: Some(self.arch.name.to_owned()), ..TargetFlags::default() };
        Ok((target.schedule(bound, facts, &target.target()?, sizes)?, "model"))
    }

    /// What the compiler makes of a schedule; its prediction where there is none.
    fn code(&self, kernel: &str, schedule: &Schedule, generated: &Generated, mode: Mode) -> Result<Code> {
        let toolchain = self.global.toolchain();
        let compiled = match mode {
            Mode::Checked => None,
            _ => {
                let cache = self.global.launch_options().cache;
                Some(lowering::compile_generated(kernel, generated.clone(), &toolchain, &cache)?)
            }
        };
        let report = compiled.as_ref().map(|code| &code.module.report);
        let predicted = generated.main().predicted;
        let shared_bytes = predicted.shared_bytes + report.map_or(0, |r| r.shared);
        // Of several launches, the one that the schedule is about.
        let registers = report.map(|r| r.entries.get(&generated.main().abi.entry).copied().unwrap_or(r.registers));
        let (blocks, limit) = match registers {
            Some(registers) => Resources::occupancy(self.arch, registers, shared_bytes, predicted.threads),
            None => (predicted.blocks_per_sm, predicted.limit),
        };
        Ok(Code {
            schedule: schedule.to_string(),
            origin: "given".to_owned(),
            registers,
            spills: report.map(|r| r.spill_stores + r.spill_loads),
            shared_bytes,
            threads: predicted.threads,
            occupancy: (
                f64::from(blocks * predicted.threads) / f64::from(self.arch.threads_per_sm),
                format!("{limit:?}").to_lowercase(),
            ),
        })
    }
}

/// How a launch runs.
struct Chosen {
    schedule: Schedule,
    code: Code,
    /// The work of all that the schedule makes of it; its bytes are what programs ask of global
    /// memory.
    asked: Work,
    /// The work of the text; its bytes are those of every tensor, once.
    once: Work,
    /// Bytes between the launches of the schedule.
    scratch: usize,
}

/// The kernel of a launch, bound, and its run-time sizes.
fn bind(launch: &Launch) -> Result<(BoundKernel, BTreeMap<String, i64>)> {
    let kernel = launch.kernel.open()?;
    let (consts, sizes) = launch.split(&kernel);
    let bound = kernel.bind(launch.elem, consts)?;
    Ok((bound, sizes.into_iter().map(|(name, size)| (name.to_owned(), size)).collect()))
}

fn names(launch: &Launch) -> BTreeMap<String, String> {
    launch.tensors.iter().map(|(param, tensor)| ((*param).to_owned(), (*tensor).to_owned())).collect()
}

/// The longest axis of a sequence.
fn longest(sequence: &Sequence) -> i64 {
    sequence.launches.iter().map(|launch| launch.size("M").max(launch.size("N"))).max().unwrap_or(1)
}

/// Bytes that the tensors of a sequence take beyond its inputs.
fn allocated(sequence: &Sequence) -> Result<usize> {
    let parts = sequence.launches.iter().map(|launch| {
        let (kernel, sizes) = bind(launch)?;
        Ok(Part { kernel, sizes, tensors: names(launch) })
    });
    Ok(count_memory(&Device::cpu(), &parts.collect::<Result<Vec<_>>>()?)?)
}
