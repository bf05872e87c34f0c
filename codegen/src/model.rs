//! The cost model: how long a plan takes, from what its statements issue.
//!
//! Every statement is counted in the units of a multiprocessor: issue slots, tensor-core, special-function and shared-memory
//! cycles. A step of a block takes as long as the unit that is busiest over all resident blocks, made longer by the others the
//! less there is to overlap them with, and by a latency that more warps hide. Programs are dealt to multiprocessors in the
//! order of the grid; the last wave is only as good as it is full. The constants at the top were fitted to measurements (see
//! docs/performance.md); what matters is the order of candidates, not the time.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::index::Lookups;
use flashtile_dsl::analysis::mask::{self, MaskOptions};
use flashtile_dsl::ir::{AxisKind, Op, ProgramDim, ReduceOp, SizeExpr, ValueId};
use flashtile_templates::expr::{Expr, Function, Shape};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::arch::{Arch, TensorOp};
use crate::blocks;
use crate::error::Error;
use crate::generate::{self, PlannedLaunch};
use crate::instance::Instance;
use crate::launches;
use crate::lower;
use crate::plan::{
    Computed, Guard, Input, InputSource, MeetBy, Meeting, OperandA, Parts, Plan, Shared, SharedTile, Stmt, StmtOp,
};
use crate::rewrite;
use crate::schedule::{Fragments, Persistent, PingPong, Schedule, WorkOrder};
use crate::space;

/// How far units overlap: the exponent of the norm that joins their times. Infinity would be perfect overlap, 1 none.
const OVERLAP: f64 = 2.2;
/// Cycles that a barrier and the latencies around it cost a block in every step, before other warps hide them.
const STEP_LATENCY: f64 = 900.0;
/// Cycles to start and finish a block.
const BLOCK_LATENCY: f64 = 2500.0;
/// The same for a program of a block that goes on to the next, whose first tiles are there already, or are not.
const PROGRAM_LATENCY: [f64; 2] = [600.0, 1400.0];
/// Cycles of a load from memory that nothing hides but a few other loads.
const LOAD_LATENCY: f64 = 300.0;
/// Seconds from the issue of a copy to its arrival where memory is busy.
const MEMORY_LATENCY: f64 = 1e-6;
/// Cycles a step of a warpgroup costs beyond its units, before other warpgroups hide them.
const GROUP_STEP_LATENCY: f64 = 100.0;
/// Cycles from one instruction of a warp to its next, where nothing else delays it: a warpgroup's step takes at least these and its own
/// products, however much others hide.
const OWN_CYCLES: f64 = 2.5;
/// The exponent that joins that with what the units take.
const OWN_CHAIN: f64 = 4.0;
/// The exponent where a warpgroup waits for its products before it goes on.
const NO_OVERLAP: f64 = 1.25;

/// Estimated registers per thread from which on the compiler spills so that it shows, and the cost of each further one.
const SPILL_FROM: u32 = 240;
const SPILL_COST: f64 = 0.02;
/// Registers that consumers should have beyond the estimate: with none to spare products were serialised in all of 12 kernels, with 4
/// to 7 in none of 34, of which 5 spilled, all of them with more than 200 registers.
const SPARE: u32 = 4;
/// One in so many of a consumer's registers is what it should have beyond the estimate so as not to spill.
const SPARE_SHARE: u32 = 32;
/// Factor of products that are serialised, and of steps that spill a little.
const SERIALIZED: f64 = 1.5;
const SPILLING: f64 = 1.05;
/// Seconds to start a launch, and from the end of one to the start of the next.
const LAUNCH: f64 = 3e-6;
const LAUNCH_GAP: f64 = 2e-6;
/// The same where it may begin before the other has ended.
const EARLY_LAUNCH_GAP: f64 = 1e-6;
/// Cycles from a program's turn to that of the next part: the semaphore is seen, the state read, merged and written, and the turn
/// passed. No other program can do it meanwhile.
const TURN_OF_PART: f64 = 2500.0;
/// Cycles of the barriers of a cluster, and of the read of a state from another block.
const CLUSTER_LATENCY: f64 = 2000.0;
const STATE_OF_CLUSTER: f64 = 1000.0;
/// Share of the multiprocessors that stay idle for each block of a cluster: a cluster lies within a GPC, and fills it not quite.
const IDLE_FOR_CLUSTER: f64 = 0.025;
/// Schedules with splits, the best by prediction, with which the other ways to combine the parts are judged.
const COMBINED: usize = 32;
/// Schedules, the best by prediction, whose loops are tried from the last tile too.
const DESCENDING: usize = 8;
/// What turns of warpgroups gain.
const TURNS: f64 = 0.99;

/// The device a time is predicted for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Multiprocessors.
    pub sms: u32,
    /// Clock in GHz.
    pub ghz: f64,
    /// Memory bandwidth in GB/s.
    pub gbytes_per_s: f64,
}

impl Machine {
    /// A typical card of the architecture.
    pub fn typical(arch: &Arch) -> Self {
        Self { sms: arch.typical_sms, ghz: arch.typical_ghz, gbytes_per_s: arch.typical_gbytes_per_s }
    }
}

/// Cycles of the units of a multiprocessor, for one warp.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Units {
    issue: f64,
    tensor: f64,
    special: f64,
    shared: f64,
    barriers: f64,
    turns: f64,
}

impl Units {
    fn add(&mut self, other: Units, times: f64) {
        self.issue += other.issue * times;
        self.tensor += other.tensor * times;
        self.special += other.special * times;
        self.shared += other.shared * times;
        self.barriers += other.barriers * times;
        self.turns += other.turns * times;
    }
}

/// Predicted seconds of one launch with these run-time sizes.
pub fn predict(
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<f64, Error> {
    Ok(judge(instance, schedule, arch, sizes, machine)?.seconds)
}

/// What the model says of a schedule.
struct Judged {
    seconds: f64,
    /// Programs of the launch that the schedule is about.
    programs: f64,
    /// How many of them run at once.
    slots: f64,
    /// Trips of its longest loop.
    trips: f64,
}

fn judge(
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Judged, Error> {
    let planned = generate::planned(instance, schedule, arch)?;
    if !planned.reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons: planned.reasons });
    }
    let with_size = match &planned.folded {
        Some(folded) => Some(folded.with_size(sizes).ok_or_else(|| Error::Illegal {
            arch: arch.name,
            reasons: vec![format!(
                "fold=heads takes heads, as many in every group, {}; fold=off takes any",
                launches::FOLDING_SIZES
            )],
        })?),
        None => None,
    };
    let sizes = with_size.as_ref().unwrap_or(sizes);
    let gap = if arch.dependent_launches { EARLY_LAUNCH_GAP } else { LAUNCH_GAP };
    let gaps = gap * (planned.launches.len() - 1) as f64;
    let seconds = planned.launches.iter().map(|launch| time(launch, arch, sizes, machine)).sum::<f64>() + gaps + LAUNCH;
    let main = &planned.launches[planned.main];
    let (programs, trips) = trips(&main.piece.instance, &main.piece.schedule, sizes);
    let trips = trips.iter().flatten().copied().fold(0.0, f64::max);
    Ok(Judged { seconds, programs, slots: f64::from(machine.sms * resident(main)), trips })
}

/// Blocks of a launch that are on a multiprocessor at once.
fn resident(launch: &PlannedLaunch) -> u32 {
    match launch.piece.schedule.persistent {
        Persistent::Off => launch.predicted.blocks_per_sm.max(1),
        _ => launch.piece.schedule.min_blocks.max(1),
    }
}

/// Seconds of one launch, but for its start.
fn time(planned: &PlannedLaunch, arch: &Arch, sizes: &BTreeMap<String, i64>, machine: &Machine) -> f64 {
    let (instance, schedule, plan) = (&planned.piece.instance, &planned.piece.schedule, &planned.plan);
    let loops = vec![Units::default(); plan.loops.len()];
    let mut counter = Counter { plan, schedule, arch, outside: Units::default(), from: vec![0.0; plan.loops.len()], loops };
    // A producer takes a few issue slots of a warp.
    for role in plan.roles.iter().filter(|r| r.name != "producer") {
        counter.block(&role.body, None, 1.0);
    }
    let resident = resident(planned);
    let warps = f64::from(schedule.warps) * f64::from(resident);
    let cycles = |units: &Units| {
        let busy = [units.issue, units.tensor, units.special, units.shared].map(|u| (u * warps).max(0.0));
        let exponent = if plan.is_specialized() && !schedule.overlap { NO_OVERLAP } else { OVERLAP };
        let joined: f64 = busy.iter().map(|b| b.powf(exponent)).sum::<f64>().powf(1.0 / exponent);
        let joined = if schedule.ping_pong == PingPong::Products { joined * TURNS } else { joined };
        let own = 4.0 * (OWN_CYCLES * units.issue + units.tensor);
        let joined = match plan.is_specialized() {
            true => (joined.powf(OWN_CHAIN) + own.powf(OWN_CHAIN)).powf(1.0 / OWN_CHAIN),
            false => joined,
        };
        // A few warps cannot hide a barrier: its cost is shared by the blocks that go on meanwhile.
        let groups = f64::from(schedule.warps / 4 * resident).max(1.0);
        joined + units.barriers * STEP_LATENCY / f64::from(resident) + units.turns * GROUP_STEP_LATENCY / groups
    };
    let (programs, trips) = trips(instance, schedule, sizes);
    let start = match schedule.persistent {
        Persistent::Off => BLOCK_LATENCY,
        // The other blocks of the multiprocessor compute meanwhile.
        _ => PROGRAM_LATENCY[usize::from(schedule.outer_stages < 2)] / f64::from(resident),
    };
    let outside = cycles(&counter.outside) + start;
    let latency = |op: &Op| match op {
        // What is loaded at a single position is used at once.
        Op::For { axis, .. } if instance.kernel.axes[*axis].kind == AxisKind::Each => LOAD_LATENCY,
        _ => 0.0,
    };
    let loops = instance.kernel.walk().into_iter().map(|(_, op)| &instance.kernel.ops[op].op);
    let latencies = loops.filter(|op| matches!(op, Op::For { .. })).map(latency);
    let steps: Vec<f64> = counter.loops.iter().zip(latencies).map(|(units, latency)| cycles(units) + latency).collect();
    // Work of `resident` blocks together, in cycles of a multiprocessor.
    let work = |trips: &[f64]| {
        let made = trips.iter().zip(&counter.from).map(|(n, from)| (n - from).max(0.0));
        outside + steps.iter().zip(made).map(|(s, n)| s * n).sum::<f64>()
    };
    let per_tile: Vec<f64> = trips.iter().map(|t| work(t)).collect();
    let mean = per_tile.iter().sum::<f64>() / per_tile.len().max(1) as f64;
    let longest = per_tile.iter().copied().fold(0.0, f64::max);
    let cluster = plan.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster).map_or(0, |m| m.parts);
    let slots = f64::from(machine.sms * resident) * (1.0 - IDLE_FOR_CLUSTER * f64::from(cluster));
    let waves = programs / slots;
    let even = per_tile.iter().all(|&t| (t - mean).abs() <= 0.05 * mean);
    let total = if even {
        mean * waves.ceil().max(1.0)
    } else {
        // Uneven programs: the end is ragged by up to a long program, half of one if the long ones come first.
        let ragged = if schedule.order == WorkOrder::LongestFirst { 0.25 } else { 0.5 };
        (mean * waves + longest * ragged).max(longest)
    };
    // Past what a thread has, the compiler spills, or serialises products.
    let registers = planned.predicted.registers;
    let spills = match lower::register_split(schedule) {
        Some((_, consumer)) if registers + SPARE > consumer => SERIALIZED,
        Some((_, consumer)) if registers + consumer / SPARE_SHARE > consumer => SPILLING,
        Some(_) => 1.0,
        None => 1.0 + SPILL_COST * f64::from(registers.saturating_sub(SPILL_FROM)),
    };
    let seconds = |cycles: f64| cycles / (machine.ghz * 1e9);
    let compute = seconds(total * spills);
    // A block has as much memory traffic in flight as its rings hold: few blocks do not fill the bandwidth.
    let ring = |tile: &&SharedTile| tile.slots > 1 || tile.barriers.is_some();
    let in_flight: u32 = plan.tiles.iter().filter(ring).map(|tile| tile.slots * tile.slot_bytes()).sum();
    let reached = match in_flight {
        0 => f64::INFINITY,
        bytes => programs.min(slots) * f64::from(bytes) / MEMORY_LATENCY,
    };
    let memory = bytes(instance, sizes) / reached.clamp(1.0, machine.gbytes_per_s * 1e9);
    // Parts end together, so that nothing is left to hide their meeting behind.
    compute.max(memory) + seconds(meeting_cycles(plan))
}

/// Cycles that programs which walk parts take to meet, after all else.
fn meeting_cycles(plan: &Plan) -> f64 {
    match &plan.meeting {
        Some(Meeting { by: MeetBy::Semaphore, parts, .. }) => TURN_OF_PART * f64::from(*parts),
        Some(Meeting { parts, .. }) => CLUSTER_LATENCY + STATE_OF_CLUSTER * f64::from(*parts),
        None => 0.0,
    }
}

/// The schedule that the model ranks first.
pub fn default_schedule(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Schedule, Error> {
    let ranked = rank(instance, arch, sizes, machine)?;
    Ok(ranked.into_iter().next().expect("a ranking is not empty").0)
}

/// The schedules of the space, judged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ranking {
    /// Those that are legal, with their predicted seconds, best first.
    pub legal: Vec<(Schedule, f64)>,
    /// Those that are not, with all reasons against each, in the order of the space.
    pub illegal: Vec<(Schedule, Vec<String>)>,
}

impl Ranking {
    /// Notes a schedule that is not legal.
    fn refuse(&mut self, schedule: Schedule, error: Error) -> Result<(), Error> {
        let reasons = match error {
            Error::Illegal { reasons, .. } => reasons,
            error @ Error::Unsupported { .. } => vec![error.to_string()],
            other => return Err(other),
        };
        self.illegal.push((schedule, reasons));
        Ok(())
    }
}

/// All legal schedules of the space with their predicted seconds, best first.
pub fn rank(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Vec<(Schedule, f64)>, Error> {
    let Ranking { legal, illegal } = ranking(instance, arch, sizes, machine)?;
    if legal.is_empty() {
        let mut reasons: Vec<String> = illegal.into_iter().flat_map(|(_, reasons)| reasons).collect();
        reasons.sort();
        reasons.dedup();
        return Err(Error::NoLegalSchedule { arch: arch.name, reasons });
    }
    Ok(legal)
}

/// All schedules of the space, also those that are not legal, with the reasons. Either list may be empty. Schedules whose programs
/// do not fill the machine are there with splits too, those whose heads share tiles that one of them does not fill with folded rows, and
/// the best of those with a lazy maximum with their loops walked from the last tile.
pub fn ranking(
    instance: &Instance,
    arch: &'static Arch,
    sizes: &BTreeMap<String, i64>,
    machine: &Machine,
) -> Result<Ranking, Error> {
    let judged = |schedules: Vec<Schedule>| -> Vec<(Schedule, Result<Judged, Error>)> {
        let judge = |schedule: Schedule| {
            let judged = judge(instance, &schedule, arch, sizes, machine);
            (schedule, judged)
        };
        schedules.into_par_iter().map(judge).collect()
    };
    let mut ranking = Ranking::default();
    let mut unsupported = None;
    let can_split = rewrite::why_not_split(&instance.kernel).is_none();
    let mut splits = Vec::new();
    let mut candidates = space::candidates(instance, arch);
    candidates.extend(space::folded(instance, arch, sizes, &candidates));
    for (schedule, judged) in judged(candidates) {
        match judged {
            Ok(judged) => {
                if can_split {
                    let counts = space::splits(judged.programs, judged.slots, judged.trips);
                    splits.extend(counts.into_iter().map(|splits| Schedule { splits, ..schedule.clone() }));
                }
                ranking.legal.push((schedule, judged.seconds));
            }
            // One instruction may take what another does not.
            Err(error @ Error::Unsupported { .. }) => {
                ranking.illegal.push((schedule, vec![error.to_string()]));
                unsupported = Some(error);
            }
            Err(error) => ranking.refuse(schedule, error)?,
        }
    }
    let mut in_parts = Vec::new();
    for (schedule, judged) in judged(splits) {
        match judged {
            Ok(judged) => in_parts.push((schedule, judged.seconds)),
            Err(error) => ranking.refuse(schedule, error)?,
        }
    }
    // How the parts are combined matters less than which parts there are: the other ways are tried with the best of these.
    in_parts.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut combining: Vec<Schedule> = Vec::new();
    for schedule in in_parts.iter().take(COMBINED).flat_map(|(schedule, _)| space::combining(schedule, arch)) {
        if !combining.contains(&schedule) {
            combining.push(schedule);
        }
    }
    ranking.legal.extend(in_parts);
    for (schedule, judged) in judged(combining) {
        match judged {
            Ok(judged) => ranking.legal.push((schedule, judged.seconds)),
            Err(error) => ranking.refuse(schedule, error)?,
        }
    }
    if let (true, Some(error)) = (ranking.legal.is_empty(), unsupported) {
        return Err(error);
    }
    ranking.legal.sort_by(|a, b| a.1.total_cmp(&b.1));
    if lower::why_not_descending(&instance.kernel).is_none() {
        // Steps cost the same in either order: how often a maximum moves is a matter of the data.
        let best = ranking.legal.iter().filter_map(|(schedule, _)| space::descending(schedule)).take(DESCENDING).collect();
        for (schedule, judged) in judged(best) {
            match judged {
                Ok(judged) => ranking.legal.push((schedule, judged.seconds)),
                Err(error) => ranking.refuse(schedule, error)?,
            }
        }
        ranking.legal.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    Ok(ranking)
}

/// Number of programs, and for every tile of the last grid dimension (a sample of them) the trips of each loop in all.
fn trips(instance: &Instance, schedule: &Schedule, sizes: &BTreeMap<String, i64>) -> (f64, Vec<Vec<f64>>) {
    let kernel = &instance.kernel;
    let size = |s: &SizeExpr| {
        s.eval(|id| {
            let name = kernel.size_name(id);
            instance.binding.consts.get(name).or_else(|| sizes.get(name)).copied()
        })
        .unwrap_or(1)
    };
    let block = |axis| i64::from(blocks::block(kernel, schedule, axis));
    let counts: Vec<i64> = kernel
        .grid()
        .iter()
        .map(|d| match d {
            ProgramDim::Each(s) => size(s),
            ProgramDim::Tiles(axis) => -(-size(&kernel.axes[*axis].extent)).div_euclid(block(*axis)),
        })
        .collect();
    let programs = counts.iter().product::<i64>().max(0) as f64;
    let coordinates: Vec<ValueId> = match kernel.blocks[kernel.body].ops.first() {
        Some(&op) if !kernel.grid().is_empty() => kernel.ops[op].results.clone(),
        _ => Vec::new(),
    };
    let walk = kernel.walk().into_iter();
    let (blocks, loops): (Vec<_>, Vec<_>) = walk.filter(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. })).unzip();
    // A loop in a loop makes its trips in each of the other's.
    let around = |block| loops.iter().position(|&op| matches!(kernel.ops[op].op, Op::For { body, .. } if body == block));
    let around: Vec<Option<usize>> = blocks.into_iter().map(around).collect();
    let bounds: Vec<_> = loops
        .iter()
        .map(|&op| {
            let parts = match kernel.ops[op].op {
                Op::For { part: Some(part), .. } => part.count,
                _ => 1,
            };
            let runs = mask::loop_runs(
                kernel,
                op,
                &block,
                &|s| instance.binding.size(kernel, s),
                MaskOptions { early_stop: schedule.early_stop },
            );
            (runs, parts)
        })
        .collect();
    let last = counts.last().copied().unwrap_or(1).max(1);
    let samples = last.min(32);
    let tiles = (0..samples)
        .map(|sample| {
            let tile = sample * last / samples + (last / samples) / 2;
            let value = |v: ValueId| match coordinates.iter().position(|&c| c == v) {
                Some(d) if d + 1 == counts.len() => tile,
                _ => 0,
            };
            let mut trips: Vec<f64> = Vec::new();
            for ((b, parts), around) in bounds.iter().zip(&around) {
                // Integer parameters are not known here: large, so that a window of that width hides nothing.
                let [lo, _, _, hi] = b.eval(Lookups { size: &size, value: &value, param: &|_| 1 << 30 });
                let own = ((hi - lo).max(0) as f64 / f64::from(*parts)).ceil();
                trips.push(own * around.map_or(1.0, |loop_around| trips[loop_around]));
            }
            trips
        })
        .collect();
    (programs, tiles)
}

/// The fewest bytes a launch moves: every tensor once.
fn bytes(instance: &Instance, sizes: &BTreeMap<String, i64>) -> f64 {
    use flashtile_dsl::ir::ParamKind;
    let kernel = &instance.kernel;
    kernel
        .params
        .values()
        .map(|p| match &p.kind {
            ParamKind::Tensor(t) => {
                let elements: f64 = t
                    .shape
                    .iter()
                    .map(|s| {
                        s.eval(|id| {
                            instance.binding.consts.get(kernel.size_name(id)).or_else(|| sizes.get(kernel.size_name(id))).copied()
                        })
                        .unwrap_or(1) as f64
                    })
                    .product();
                elements * instance.binding.elem(kernel, t.elem).bytes().unwrap_or(4) as f64
            }
            ParamKind::Scalar(_) => 0.0,
        })
        .sum()
}

struct Counter<'a> {
    plan: &'a Plan,
    schedule: &'a Schedule,
    arch: &'a Arch,
    outside: Units,
    loops: Vec<Units>,
    /// Iterations of each loop that are made outside of it.
    from: Vec<f64>,
}

impl Counter<'_> {
    fn block(&mut self, body: &[Stmt], inside: Option<usize>, times: f64) {
        for stmt in body {
            match &stmt.op {
                StmtOp::When { guard, body, otherwise } => match guard {
                    // Cut tiles are few, and a maximum that moves only when it must moves rarely.
                    Guard::Cut(_) | Guard::Vote { .. } | Guard::Flag(_) => {}
                    Guard::Exists(_) => self.block(body, inside, times),
                    Guard::OneLeft(_) | Guard::FirstPart => self.block(otherwise, inside, times),
                    // What one of the programs that meet does, or each for its share of the warps.
                    Guard::LastPart | Guard::OwnWarps => {
                        let share = 1.0 / self.plan.meeting.as_ref().map_or(1.0, |m| f64::from(m.parts));
                        self.block(body, inside, times * share);
                        self.block(otherwise, inside, times);
                    }
                },
                StmtOp::Loop { id, body, from, unroll } => {
                    self.from[*id] = f64::from(*from);
                    self.block(body, Some(*id), times / f64::from(*unroll));
                }
                StmtOp::Step { body, .. } | StmtOp::Work(body) => self.block(body, inside, times),
                op => {
                    let units = self.statement(op);
                    match inside {
                        Some(id) => self.loops[id].add(units, times),
                        None => self.outside.add(units, times),
                    }
                }
            }
        }
    }

    /// Cycles per warp: an instruction takes an issue slot of one of four schedulers.
    fn instructions(n: f64) -> Units {
        Units { issue: n / 4.0, ..Units::default() }
    }

    fn elements(&self, v: usize) -> f64 {
        f64::from(self.plan.variables[v].registers())
    }

    /// An expression evaluated `n` times per thread.
    fn expression(&self, value: &Expr, n: f64) -> Units {
        let (mut instructions, mut special) = (0.0, 0.0);
        value.visit(&mut |e| match e {
            Expr::Call(
                Function::Ex2 | Function::Lg2 | Function::Reciprocal | Function::ReciprocalNormal | Function::TanhApprox,
                _,
            ) => special += 1.0,
            Expr::Call(Function::TanhAbsolute, _) => {
                special += 2.0;
                instructions += 3.0;
            }
            // Two tests of the range, two scalings and a product.
            Expr::Call(Function::DivFull, _) => {
                special += 1.0;
                instructions += 4.0;
            }
            Expr::Call(Function::Tanh, _) => {
                special += 2.0;
                instructions += 12.0;
            }
            Expr::Infix("/", ..) | Expr::Call(Function::DivOrZero, _) => instructions += 10.0,
            Expr::Call(..) | Expr::Infix(..) | Expr::Select(..) | Expr::Prefix(..) => instructions += 1.0,
            _ => {}
        });
        // A product that feeds a sum is one instruction with it.
        let fused = count_fused(value);
        let total = (instructions + special - fused).max(1.0);
        Units { issue: total * n / 4.0, special: special * n * 32.0 / f64::from(self.arch.special_per_clock), ..Units::default() }
    }

    fn statement(&self, op: &StmtOp) -> Units {
        match op {
            StmtOp::Map { to, value } => self.expression(value, self.elements(*to)),
            StmtOp::Pack { to, value, .. } => {
                let mut units = self.expression(value, self.elements(*to));
                units.issue = self.elements(*to) / 4.0;
                units
            }
            StmtOp::Reduce { from, across_quad, operation, .. } => {
                let v = &self.plan.variables[*from];
                let shuffles = if *across_quad { 4.0 * f64::from(v.m_tiles) } else { 0.0 };
                // A maximum has half the rate of a sum (CUDA C++ Programming Guide, "Arithmetic Instructions").
                let slots = if *operation == ReduceOp::Max { 2.0 } else { 1.0 };
                let mut units = Self::instructions(slots * self.elements(*from) + 2.0 * shuffles);
                units.shared = shuffles;
                units
            }
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => Self::instructions(4.0 * self.elements(*v)),
            StmtOp::Copy { tile, .. } => {
                let t = &self.plan.tiles[*tile];
                let chunks = f64::from(t.rows * t.columns * t.elem.bytes().unwrap_or(4) as u32) / 16.0;
                let per_warp = chunks / f64::from(32 * self.schedule.warps);
                // A copy whose addresses do not advance by constants computes each of them (templates/cuda/device/copy_cp_async).
                let threads = 32 * self.schedule.warps;
                let pieces = (t.columns * t.elem.bytes().unwrap_or(4) as u32 / 16).max(1);
                let advances = threads.is_multiple_of(pieces) && (threads / pieces).is_multiple_of(8);
                let instructions = if advances { 4.0 } else { 24.0 };
                Units { issue: per_warp * instructions / 4.0, shared: per_warp * 4.0, ..Units::default() }
            }
            StmtOp::Compute { to, inputs, shared } => self.compute(to, inputs, shared),
            StmtOp::LoadFragments { to, .. } => self.ldmatrix(self.elements(*to) / 4.0),
            StmtOp::Dot { acc, a, b, depth, k_major, .. } => self.product(*acc, a, *b, *depth, *k_major),
            StmtOp::Stage { from, .. } => {
                let n = self.elements(*from) / 2.0;
                Units { issue: 2.0 * n / 4.0, shared: n * 2.0, ..Units::default() }
            }
            StmtOp::Load { to, .. } => Self::instructions(4.0 * self.elements(*to)),
            StmtOp::Store { m_tiles, n_tiles, shape, .. } => {
                let n = match shape {
                    Shape::Accumulator => f64::from(4 * m_tiles * n_tiles),
                    _ => f64::from(2 * m_tiles.max(n_tiles)),
                };
                Self::instructions(3.0 * n)
            }
            StmtOp::Barrier => Units { barriers: 1.0, ..Units::default() },
            StmtOp::Let { .. } | StmtOp::Commit | StmtOp::Wait(_) => Self::instructions(2.0),
            StmtOp::Settle(_) => Units { turns: 1.0, issue: 1.0, ..Units::default() },
            StmtOp::Fill { .. }
            | StmtOp::Acquire { .. }
            | StmtOp::Release(_)
            | StmtOp::Advance(_)
            | StmtOp::ReleaseBefore(_)
            | StmtOp::TakeTurn
            | StmtOp::PassTurn => Self::instructions(4.0),
            StmtOp::SaveState(variables) | StmtOp::LoadState { to: variables, .. } => {
                let elements: f64 = variables.iter().map(|&v| self.elements(v)).sum();
                let shared = if self.plan.meeting.as_ref().is_some_and(|m| m.by == MeetBy::Cluster) { elements } else { 0.0 };
                Units { issue: elements / 4.0, shared, ..Units::default() }
            }
            // What meeting takes is not of the multiprocessor's units: see `meeting_cycles`.
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::ClusterBarrier => Self::instructions(4.0),
            StmtOp::When { .. } | StmtOp::Loop { .. } | StmtOp::Step { .. } | StmtOp::Work(_) => unreachable!("walked by block"),
        }
    }

    /// Elements are widened, computed in f32 and rounded; a warp moves 512 bytes of shared memory at a time, 128 a cycle.
    fn compute(&self, to: &[Computed], inputs: &[Input], shared: &[Shared]) -> Units {
        let parts = Parts::of(self.plan, to, inputs);
        let (count, width) = (f64::from(parts.per_thread), f64::from(parts.width));
        let accesses = |bytes: usize| width * bytes as f64 / 16.0;
        let mut units = Units::default();
        for input in inputs {
            let (issue, shared) = match &input.from {
                InputSource::Tile(tile, _) => {
                    let n = accesses(self.plan.tiles[*tile].elem.bytes().unwrap_or(4));
                    (2.0 * n + width, 4.0 * n)
                }
                InputSource::Matrix(_) | InputSource::Column(_) => (4.0 + width, 4.0),
                InputSource::Row(_) => (4.0, 1.0),
            };
            units.add(Units { issue: issue / 4.0, shared, ..Units::default() }, count);
        }
        for s in shared {
            units.add(self.expression(&s.value, width), count);
        }
        for t in to {
            units.add(self.expression(&t.value, width), count);
            let n = accesses(self.plan.tiles[t.tile].elem.bytes().unwrap_or(4));
            units.add(Units { issue: (2.0 * n + width / 2.0) / 4.0, shared: 4.0 * n, ..Units::default() }, count);
        }
        units
    }

    fn ldmatrix(&self, n: f64) -> Units {
        // 512 bytes each, 128 a cycle.
        Units { issue: n / 4.0, shared: 4.0 * n, ..Units::default() }
    }

    fn product(&self, acc: usize, a: &OperandA, b: usize, depth: u32, k_major: bool) -> Units {
        let v = &self.plan.variables[acc];
        let (m, n) = (f64::from(v.m_tiles), f64::from(v.n_tiles));
        let depth = f64::from(depth);
        if self.schedule.tensor_op == TensorOp::Ffma {
            let flops = m * 16.0 * n * 8.0 * depth * 2.0;
            let loads = depth / 4.0 * 2.0 * m + if self.plan.tiles[b].warp_private { 0.0 } else { depth / 4.0 * 2.0 * n };
            return Units {
                issue: (flops / 64.0 + loads) / 4.0,
                tensor: flops / f64::from(self.arch.ffma_flops_per_clock),
                shared: loads * 4.0,
                ..Units::default()
            };
        }
        let k = depth / 16.0;
        if self.schedule.tensor_op == TensorOp::Wgmma {
            let tensor = m * n * k * 4096.0 / f64::from(self.arch.tensor_flops_per_clock);
            // A warpgroup's 64 rows of A, unless they are in registers, and all columns of B, 16 elements deep.
            let rows = if matches!(a, OperandA::Tile(..)) { 64.0 } else { 0.0 };
            let bytes = 2.0 * 16.0 * k * (rows + 8.0 * n);
            return Units { issue: k, tensor, shared: bytes / 128.0 / 4.0, ..Units::default() };
        }
        let products = m * n * k * if self.schedule.tensor_op == TensorOp::MmaM16n8k8 { 2.0 } else { 1.0 };
        let batches = if self.schedule.batch_m { 1.0 } else { m };
        let single = match self.schedule.fragments {
            Fragments::Single => true,
            Fragments::PairedKMajor => !k_major,
            Fragments::Paired | Fragments::Preload | Fragments::DoubleBuffer => false,
        };
        let pairs = if single { n } else { n / 2.0 };
        let mut loads = pairs * k * batches;
        if matches!(a, OperandA::Tile(..)) {
            loads += m * k;
        }
        let mut units = self.ldmatrix(loads);
        units.issue += products / 4.0;
        units.tensor = m * n * k * 4096.0 / f64::from(self.arch.mma_flops_per_clock);
        units
    }
}

/// Sums of products: each is one multiply-add.
fn count_fused(value: &Expr) -> f64 {
    let mut fused = 0.0;
    value.visit(&mut |e| {
        if let Expr::Infix("+" | "-", a, b) = e
            && (matches!(a.as_ref(), Expr::Infix("*", ..)) || matches!(b.as_ref(), Expr::Infix("*", ..)))
        {
            fused += 1.0;
        }
    });
    fused
}
