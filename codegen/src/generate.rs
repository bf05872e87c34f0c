//! The way from an instance to a file: checks, normal form, plan, text.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::analysis::cost::{Work, Workload};
use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::analysis::mask::MaskOptions;
use flashtile_dsl::analysis::reach::Reach;
use flashtile_dsl::ir::{AxisKind, Binding, Dim, Elem, Kernel, Op, ParamKind, ProgramDim, SizeExpr, TensorDecl, Type, verify};
use flashtile_templates::expr::Shape;
use serde::{Deserialize, Serialize};

use crate::abi::{Abi, Blocks, FoldedRows, GridDim, Scratch, SizeTerm};
use crate::arch::{Arch, CopyOp, TensorOp};
use crate::blocks;
use crate::emit::{self, Emission};
use crate::error::Error;
use crate::instance::Instance;
use crate::launches::{self, Launches, Piece};
use crate::lower;
use crate::names;
use crate::plan::{self, MeetBy, Plan, Storage};
use crate::rewrite;
use crate::schedule::{KNOBS, OperandA, Persistent, PingPong, RunningMax, Schedule, Walk, WorkOrder};
use crate::space;

/// Generated code and how to call it.
#[derive(Clone, PartialEq, Debug)]
pub struct Generated {
    /// The `.cu` file.
    pub source: String,
    /// The launches, in order.
    pub launches: Vec<Launch>,
    /// Which of them the knobs of the schedule are about.
    pub main: usize,
    /// Tensors between the launches.
    pub scratch: Vec<Scratch>,
    /// How the launches see the tensors of a call, if not as the kernel text does: they have a size more.
    pub folded: Option<FoldedRows>,
    /// The schedule it was generated under.
    pub schedule: Schedule,
    /// The architecture.
    pub arch: &'static str,
    /// What must hold of the arguments, in words.
    pub assumptions: Vec<String>,
    /// Why products do not go through `wgmma` although the architecture has it, if the kernel cannot use it.
    pub fallback: Option<String>,
}

/// One launch of generated code.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// The calling contract.
    pub abi: Abi,
    /// Resources as predicted from the plan.
    pub predicted: Resources,
    /// The kernel that it executes, before it was normalised: that of the text, or a part of it.
    pub kernel: Kernel,
    /// The schedule that it is generated under, of which no knob asks for further launches.
    pub schedule: Schedule,
    /// The normalised kernel, for inspection.
    pub normal: Kernel,
    /// The plan, for inspection.
    pub plan: Plan,
}

impl Generated {
    /// The launch that the knobs of the schedule are about.
    pub fn main(&self) -> &Launch {
        &self.launches[self.main]
    }

    /// The work that all launches execute together, for these run-time sizes: whole tiles of every trip, every load and store of
    /// every program, what lies between the launches included.
    pub fn executed(&self, binding: &Binding, sizes: &BTreeMap<String, i64>) -> Work {
        let mut all = Work::default();
        let with_size = self.folded.as_ref().and_then(|folded| folded.with_size(sizes));
        let sizes = with_size.as_ref().unwrap_or(sizes);
        for Launch { kernel, schedule, .. } in &self.launches {
            let block = |axis| i64::from(blocks::block(kernel, schedule, axis));
            let options = MaskOptions { early_stop: schedule.early_stop };
            all += Workload { kernel, binding, sizes }.executed(&block, options);
        }
        all
    }
}

/// Resources of a block, as predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Registers per thread (an estimate: the compiler decides).
    pub registers: u32,
    /// Threads.
    pub threads: u32,
    /// Blocks resident on a multiprocessor.
    pub blocks_per_sm: u32,
    /// What limits that number.
    pub limit: Limit,
}

/// What limits the number of resident blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Registers.
    #[default]
    Registers,
    /// Shared memory.
    Shared,
    /// Threads.
    Threads,
    /// Resident blocks.
    Blocks,
}

/// Whether a schedule is legal.
#[derive(Clone, PartialEq, Debug)]
pub struct Legality {
    /// All reasons against, in words; empty if it is legal.
    pub reasons: Vec<String>,
    /// Predicted resources (of what could be planned; zero if nothing could).
    pub predicted: Resources,
}

impl Legality {
    /// Whether nothing speaks against the schedule.
    pub fn is_legal(&self) -> bool {
        self.reasons.is_empty()
    }
}

impl Resources {
    /// Bytes of a multiprocessor's shared memory that a block takes.
    fn shared_of_block(arch: &Arch, shared_bytes: u32) -> usize {
        let reserved = if arch.capability >= (8, 0) { 1024 } else { 0 };
        shared_bytes.next_multiple_of(128) as usize + reserved
    }

    /// Resident blocks of a kernel with these registers, shared memory and threads.
    pub fn occupancy(arch: &Arch, registers: u32, shared_bytes: u32, threads: u32) -> (u32, Limit) {
        // Registers are given to warps in units of 256, shared memory to blocks in units of 128 bytes, 1 KiB of it reserved per
        // block.
        let per_block = registers.next_multiple_of(8) * threads.next_multiple_of(32);
        let shared = Self::shared_of_block(arch, shared_bytes);
        let limits = [
            (arch.registers_per_sm / per_block.max(1), Limit::Registers),
            ((arch.shared_per_sm / shared.max(1)) as u32, Limit::Shared),
            (arch.threads_per_sm / threads.max(1), Limit::Threads),
            (arch.blocks_per_sm, Limit::Blocks),
        ];
        limits.into_iter().min_by_key(|(n, _)| *n).expect("four limits")
    }
}

/// Checks a schedule without generating code.
pub fn check(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Legality {
    match planned(instance, schedule, arch) {
        Ok(planned) => Legality { predicted: planned.launches[planned.main].predicted, reasons: planned.reasons },
        Err(Error::Illegal { reasons, .. }) => Legality { reasons, predicted: Resources::default() },
        Err(other) => Legality { reasons: vec![other.to_string()], predicted: Resources::default() },
    }
}

/// Generates the code of an instance under a schedule.
pub fn generate(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Generated, Error> {
    generate_planned(planned(instance, schedule, arch)?, instance, schedule, arch)
}

/// Generates code from the plans of an instance's launches under a schedule.
pub(crate) fn generate_planned(
    planned: Planned,
    instance: &Instance,
    schedule: &Schedule,
    arch: &'static Arch,
) -> Result<Generated, Error> {
    if !planned.reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons: planned.reasons });
    }
    for launch in &planned.launches {
        // The kernel of the text was verified before it came here; those that a schedule makes of it were not.
        verify(&launch.piece.instance.kernel)
            .map_err(|faults| Error::WrongKernel(faults.iter().map(ToString::to_string).collect()))?;
    }
    let faults: Vec<String> = planned.launches.iter().flat_map(|launch| plan::verify(&launch.plan)).collect();
    if !faults.is_empty() {
        return Err(Error::WrongPlan(faults));
    }
    let early = |number| arch.dependent_launches && number > 0;
    let abis: Vec<Abi> = planned.launches.iter().enumerate().map(|(n, launch)| launch.abi(early(n))).collect();
    let fallback = (schedule.tensor_op != TensorOp::Wgmma).then(|| space::fallback(instance, arch)).flatten();
    let emissions: Vec<Emission<'_>> = planned
        .launches
        .iter()
        .enumerate()
        .map(|(n, PlannedLaunch { piece, plan, .. })| Emission {
            plan,
            instance: &piece.instance,
            schedule: &piece.schedule,
            arch,
            abi: &abis[n],
            wait: wait(&planned.launches, &abis, n),
            next_is_early: abis.get(n + 1).is_some_and(|next| next.early),
        })
        .collect();
    let head = emit::Head { instance, schedule, arch, assumptions: &planned.assumptions, fallback: fallback.as_deref() };
    let source = emit::emit(&head, &emissions)?;
    let launches = planned.launches.into_iter().zip(abis).map(|(launch, abi)| Launch {
        abi,
        predicted: launch.predicted,
        kernel: launch.piece.instance.kernel,
        schedule: launch.piece.schedule,
        normal: launch.normal,
        plan: launch.plan,
    });
    Ok(Generated {
        source,
        launches: launches.collect(),
        main: planned.main,
        scratch: planned.scratch,
        folded: planned.folded,
        schedule: schedule.clone(),
        arch: arch.name,
        assumptions: planned.assumptions,
        fallback,
    })
}

/// When a launch waits for those before it: in the end, if it touches nothing that they write and writes nothing that they touch.
fn wait(launches: &[PlannedLaunch], abis: &[Abi], number: usize) -> emit::LaunchWait {
    let (before, this) = (&launches[..number], &launches[number]);
    let tensors = |launch: &PlannedLaunch, only_written: bool| -> BTreeSet<String> {
        let wanted = |t: &TensorDecl| !only_written || t.direction.is_written();
        let params = launch.piece.instance.kernel.params.values();
        params.filter(|p| matches!(&p.kind, ParamKind::Tensor(t) if wanted(t))).map(|p| p.name.clone()).collect()
    };
    let meets = |other: &PlannedLaunch| {
        !tensors(other, true).is_disjoint(&tensors(this, false)) || !tensors(other, false).is_disjoint(&tensors(this, true))
    };
    if !abis[number].early {
        emit::LaunchWait::Never
    } else if this.plan.is_specialized() || before.iter().any(meets) {
        emit::LaunchWait::First
    } else {
        emit::LaunchWait::Last
    }
}

/// The plans of all launches, and what was found out on the way to them.
pub(crate) struct Planned {
    /// The launches, in order.
    pub launches: Vec<PlannedLaunch>,
    /// The one that the knobs are about.
    pub main: usize,
    /// Tensors between them.
    pub scratch: Vec<Scratch>,
    /// How they see the tensors of a call.
    pub folded: Option<FoldedRows>,
    /// Reasons against the schedule.
    pub reasons: Vec<String>,
    /// What must hold of the arguments.
    pub assumptions: Vec<String>,
}

/// The plan of one launch.
pub(crate) struct PlannedLaunch {
    /// What is launched.
    pub piece: Piece,
    /// The plan.
    pub plan: Plan,
    /// The normalised kernel.
    pub normal: Kernel,
    /// Predicted resources.
    pub predicted: Resources,
    /// Names of scalars assumed positive.
    assumed: Vec<String>,
    /// Reasons against the schedule.
    reasons: Vec<String>,
}

impl PlannedLaunch {
    fn abi(&self, early: bool) -> Abi {
        let (instance, schedule, plan) = (&self.piece.instance, &self.piece.schedule, &self.plan);
        Abi {
            entry: names::entry(&instance.kernel.name),
            tensor_maps: plan.maps.clone(),
            fields: emit::fields(instance, plan),
            grid: grid(instance, schedule),
            blocks: match schedule.persistent {
                Persistent::Off => Blocks::PerProgram,
                Persistent::Static | Persistent::Dynamic => Blocks::Persistent(schedule.min_blocks.max(1)),
            },
            threads: plan.threads(),
            shared_bytes: plan.shared_bytes() as usize,
            cluster: plan.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster).map_or(1, |m| m.parts),
            registers: plan.roles.iter().map(|r| r.registers.unwrap_or(0) * r.warps * 32).sum(),
            early,
        }
    }
}

/// Plans an instance under a schedule, without generating text.
pub(crate) fn planned(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Planned, Error> {
    if let Some(name) = instance.binding.check(&instance.kernel).into_iter().next() {
        return Err(Error::Unbound(name));
    }
    let illegal = |reasons| Error::Illegal { arch: arch.name, reasons };
    if schedule.splits != 1
        && schedule.running_max != RunningMax::Exact
        && let Some(why) = lower::why_not_lazy(&instance.kernel)
    {
        // Of a part nobody can tell: its state is not what the text stores.
        return Err(illegal(vec![lazy_reason(&why)]));
    }
    let Launches { pieces, main, mut scratch, folded, assumption } =
        launches::launches(instance, schedule, arch).map_err(illegal)?;
    let launches = pieces
        .into_iter()
        .enumerate()
        .map(|(number, piece)| planned_launch(piece, number == main, arch))
        .collect::<Result<Vec<_>, _>>()?;
    scratch.extend(launches.iter().filter_map(state_scratch));
    let mut reasons: Vec<String> = Vec::new();
    let mut assumptions: Vec<String> = Vec::new();
    for launch in &launches {
        reasons.extend(launch.reasons.iter().cloned());
        let assumed = launch.assumed.iter().map(|name| format!("{name} > 0"));
        assumptions.extend(assumed.filter(|a| !assumptions.contains(a)).collect::<Vec<_>>());
    }
    assumptions.extend(assumption);
    if instance.facts.alignment > 2 {
        assumptions.push(format!("addresses and strides of matrices are multiples of {} bytes", instance.facts.alignment));
    }
    if !instance.facts.wide && Reach::new(&instance.kernel, &instance.binding).may_be_wide() {
        assumptions.push("index arithmetic stays within 32 bits".into());
    }
    if assumptions.is_empty() {
        assumptions.push("nothing".into());
    }
    Ok(Planned { launches, main, scratch, folded, reasons, assumptions })
}

/// The memory of the states that go from part to part by a semaphore: one for all programs that differ in their part only.
fn state_scratch(launch: &PlannedLaunch) -> Option<Scratch> {
    let meeting = launch.plan.meeting.as_ref().filter(|m| m.by == MeetBy::Semaphore)?;
    let programs = grid(&launch.piece.instance, &launch.piece.schedule).into_iter().skip(1);
    let mut shape: Vec<SizeTerm> = programs
        .map(|dim| match dim {
            GridDim::Each(term) => term,
            // ceil(((terms + constant) / divisor) / block)
            GridDim::Tiles(term, block) => {
                let (block, divisor) = (i64::from(block), term.divisor);
                SizeTerm { constant: term.constant + divisor * (block - 1), divisor: divisor * block, ..term }
            }
        })
        .collect();
    let words = meeting.state_bytes(launch.plan.computing_threads()) / 4;
    shape.push(SizeTerm { terms: Vec::new(), constant: words.into(), divisor: 1 });
    Some(Scratch { name: meeting.memory.clone(), elem: Elem::F32, shape })
}

/// Plans one launch. Of one that only follows or prepares, the estimate of registers is no reason: what it loads is used at once.
fn planned_launch(piece: Piece, is_main: bool, arch: &'static Arch) -> Result<PlannedLaunch, Error> {
    let Piece { instance, schedule } = &piece;
    let (normal, assumed) = rewrite::normalize(&instance.kernel, &instance.facts, schedule);
    let mut reasons = static_reasons(instance, &normal, schedule, arch);
    if !reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons });
    }
    let mut named = normal.clone();
    names::name_values(&mut named);
    let plan = lower::lower(&named, instance, schedule, &assumed)?;
    let shared_bytes = plan.shared_bytes();
    if shared_bytes as usize > arch.shared_per_block {
        reasons.push(format!("needs {shared_bytes} bytes of shared memory, a block has {}", arch.shared_per_block));
    }
    let registers = estimate_registers(&plan);
    let threads = plan.threads();
    let most = match lower::register_split(schedule) {
        _ if !plan.is_specialized() => 255,
        Some((_, consumer)) => consumer,
        None => (arch.registers_per_sm / (threads * schedule.min_blocks.max(1)) / 8 * 8).min(255),
    };
    if is_main && registers > most {
        reasons.push(format!("needs about {registers} registers per thread, a thread has {most}"));
    }
    if plan.is_specialized() {
        let launched = (arch.registers_per_sm / (threads * schedule.min_blocks.max(1)) / 8 * 8).min(255);
        reasons.extend(wgmma_reasons(&plan, launched));
    }
    // What a block is launched with, before roles move registers from one to the other.
    let launched = match lower::register_split(schedule) {
        Some((producer, consumer)) if plan.is_specialized() => {
            (producer * lower::GROUP + consumer * schedule.warps).div_ceil(lower::GROUP + schedule.warps)
        }
        _ => registers.min(255),
    };
    let (blocks_per_sm, limit) = Resources::occupancy(arch, launched, shared_bytes, threads);
    reasons.extend(min_blocks_reason(schedule.min_blocks, shared_bytes, threads, arch));
    let predicted = Resources { shared_bytes, registers, threads, blocks_per_sm, limit };
    Ok(PlannedLaunch { plan, normal, predicted, assumed, reasons, piece })
}

/// Why a multiprocessor cannot hold `min_blocks` blocks at once. The promise goes to the compiler, which
/// divides the registers by it; persistent blocks are launched in that number. So more blocks than fit
/// would have few registers each, and the last of them would wait for the end of the first.
fn min_blocks_reason(min_blocks: u32, shared_bytes: u32, threads: u32, arch: &Arch) -> Option<String> {
    let shared = Resources::shared_of_block(arch, shared_bytes);
    if min_blocks.saturating_mul(threads) > arch.threads_per_sm {
        let most = arch.threads_per_sm;
        Some(format!("min_blocks={min_blocks} blocks of {threads} threads exceed the {most} of a multiprocessor"))
    } else if min_blocks as usize * shared > arch.shared_per_sm {
        let most = arch.shared_per_sm;
        Some(format!("min_blocks={min_blocks} blocks of {shared} bytes of shared memory exceed the {most} of a multiprocessor"))
    } else {
        None
    }
}

fn lazy_reason(why: &str) -> String {
    format!("a lazy running maximum needs a streaming softmax: {why}")
}

/// Reasons that need no plan.
fn static_reasons(instance: &Instance, normal: &Kernel, s: &Schedule, arch: &Arch) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: String| {
        if condition && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    };
    let kernel = &instance.kernel;
    refuse(!(1..=16).contains(&s.warps), format!("warps={} is not between 1 and 16", s.warps));
    refuse(!(1..=8).contains(&s.stages), format!("stages={} is not between 1 and 8", s.stages));
    for (name, value) in [("block_m", s.block_m), ("block_n", s.block_n), ("block_k", s.block_k)] {
        refuse(value == 0 || value % 16 != 0 || value > 512, format!("{name}={value} is not a multiple of 16 up to 512"));
    }
    let rows = 16 * s.warps.max(1);
    refuse(
        !s.block_m.is_multiple_of(rows),
        format!("block_m={} is not a multiple of 16 rows for each of {} warps", s.block_m, s.warps),
    );
    refuse(s.section == 0, "section=0 is not positive".into());
    refuse(!arch.tensor_ops.contains(&s.tensor_op), format!("{arch} has no {}", knob_text(s, "tensor_op")));
    refuse(!arch.copy_ops.contains(&s.copy), format!("{arch} has no {}", knob_text(s, "copy")));
    refuse(
        s.copy == CopyOp::CpAsync && instance.alignment() < 4,
        format!("cp.async copies at least 4 bytes, rows of tiles are aligned to {}", instance.alignment()),
    );
    refuse(s.copy == CopyOp::Sync && s.stages > 2, "more than two stages of synchronous copies overlap nothing".into());
    refuse(
        s.tensor_op == TensorOp::Ffma && s.operand_a == OperandA::Registers,
        "tensor_op=ffma reads its operands from shared memory: operand_a=shared".into(),
    );
    for reason in specialized_reasons(instance, normal, s) {
        refuse(true, reason);
    }
    for elem in operand_types(instance, normal) {
        let tensor = s.tensor_op != TensorOp::Ffma;
        refuse(elem == Elem::F32 && tensor, "f32 products take tensor_op=ffma".into());
        refuse(elem != Elem::F32 && !tensor, format!("tensor_op=ffma takes f32 operands, not {}", elem.name()));
        refuse(elem == Elem::Bf16 && !arch.bf16, format!("{arch} has no bf16"));
        refuse(elem == Elem::Bf16 && s.tensor_op == TensorOp::MmaM16n8k8, "mma_m16n8k8 takes f16 here".into());
    }
    refuse(!arch.bf16 && instance.binding.types.values().any(|&e| e == Elem::Bf16), format!("{arch} has no bf16"));
    if s.order == WorkOrder::LongestFirst {
        refuse(
            !matches!(lower::trip_trend(instance, s), Some(Trend::Rising | Trend::Falling)),
            "order=longest_first needs a loop whose length depends on the last grid dimension".into(),
        );
    }
    if s.running_max != RunningMax::Exact
        && let Some(why) = lower::why_not_lazy(kernel)
    {
        refuse(true, lazy_reason(&why));
    }
    if s.walk == Walk::Descending
        && let Some(why) = lower::why_not_descending(kernel)
    {
        refuse(true, format!("walk=descending takes the tiles of a loop in another order than the text: {why}"));
    }
    for (name, extent) in range_lengths(kernel) {
        match instance.binding.size(kernel, &extent) {
            Some(n) if n >= 1 => {}
            Some(n) => refuse(true, format!("the range {name} has length {n}")),
            None => refuse(true, format!("the length of the range {name} is not known at compile time")),
        }
    }
    reasons
}

/// Reasons about the knobs of specialised roles.
fn specialized_reasons(instance: &Instance, normal: &Kernel, s: &Schedule) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: String| {
        if condition {
            reasons.push(reason);
        }
    };
    let plain = Schedule::default();
    let knobs = |names: &[&'static str]| {
        let knob = |name: &str| KNOBS.iter().find(|k| k.name == name).expect("a knob");
        names.iter().find(|n| (knob(n).get)(s) != (knob(n).get)(&plain)).map(|n| knob_text(s, n))
    };
    if s.tensor_op != TensorOp::Wgmma {
        refuse(s.copy == CopyOp::Tma, "copy=tma fills tiles for tensor_op=wgmma only".into());
        if let Some(knob) = knobs(&["overlap", "ping_pong", "persistent", "outer_stages", "producer_registers"]) {
            refuse(true, format!("{knob} is a knob of tensor_op=wgmma"));
        }
        return reasons;
    }
    refuse(s.copy != CopyOp::Tma, "tensor_op=wgmma reads tiles that copy=tma fills".into());
    refuse(operand_types(instance, normal).is_empty(), "tensor_op=wgmma needs a matrix product".into());
    if let Some(knob) = knobs(&["shared", "fragments", "operand_a", "batch_m"]) {
        refuse(true, format!("{knob} is a knob of mma.sync: wgmma reads both operands from swizzled tiles"));
    }
    let groups = s.warps / lower::GROUP;
    refuse(
        !s.warps.is_multiple_of(lower::GROUP) || s.block_m != 16 * s.warps,
        format!("wgmma takes 64 rows for each group of 4 warps: block_m={} and warps={} do not fit", s.block_m, s.warps),
    );
    refuse(
        instance.facts.alignment < 16,
        format!("TMA needs addresses and strides that are multiples of 16 bytes, they are of {}", instance.facts.alignment),
    );
    refuse(s.ping_pong != PingPong::Off && groups < 2, "ping_pong takes two warpgroups or more".into());
    refuse(!(1..=4).contains(&s.outer_stages), format!("outer_stages={} is not between 1 and 4", s.outer_stages));
    refuse(
        s.outer_stages > 1 && s.persistent == Persistent::Off,
        "outer_stages loads ahead for the next program of a block: persistent=static or dynamic".into(),
    );
    if let Some((producer, consumer)) = lower::register_split(s) {
        let fits = |n: u32| (24..=240).contains(&n) && n.is_multiple_of(8);
        refuse(
            !fits(producer) || !fits(consumer),
            format!("setmaxnreg takes multiples of 8 from 24 to 240, not {producer} and {consumer}"),
        );
    }
    reasons
}

/// Registers that the compiler wants at launch for a product, beyond its accumulator (ptxas C7602).
const WGMMA_REGISTERS: u32 = 30;

/// Reasons against a plan with asynchronous products.
fn wgmma_reasons(plan: &Plan, launched: u32) -> Vec<String> {
    let mut reasons = Vec::new();
    for v in &plan.variables {
        let Storage::Fragment(Shape::Accumulator) = v.storage else { continue };
        if v.n_tiles > 32 {
            reasons.push(format!("wgmma computes up to 256 columns, {} has {}", v.name, 8 * v.n_tiles));
        }
        let needed = v.registers() + WGMMA_REGISTERS;
        if needed > launched {
            reasons.push(format!(
                "a product with {} columns needs {needed} registers per thread, {launched} are launched",
                8 * v.n_tiles
            ));
        }
        if v.m_tiles != 1 {
            reasons.push(format!("wgmma computes 64 rows for each group of 4 warps, {} has other rows", v.name));
        }
    }
    reasons
}

/// `knob=value`, as the schedule's text form has it.
fn knob_text(schedule: &Schedule, name: &str) -> String {
    let knob = KNOBS.iter().find(|k| k.name == name).expect("every field of a schedule is a knob");
    format!("{name}={}", (knob.get)(schedule))
}

/// Element types of matrix-product operands.
pub(crate) fn operand_types(instance: &Instance, kernel: &Kernel) -> Vec<Elem> {
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        if let Op::Dot { a, b, .. } = kernel.ops[op].op {
            for v in [a, b] {
                let elem = instance.binding.elem(kernel, kernel.tile(v).elem);
                if !found.contains(&elem) {
                    found.push(elem);
                }
            }
        }
    }
    found
}

/// Compile-time ranges that tiles have, with their text.
fn range_lengths(kernel: &Kernel) -> Vec<(String, SizeExpr)> {
    let mut found: BTreeMap<String, SizeExpr> = BTreeMap::new();
    for value in kernel.values.values() {
        if let Type::Tile(t) = &value.ty {
            for dim in &t.dims {
                if let Dim::Range(len) = dim {
                    found.insert(kernel.size_text(len), len.clone());
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Registers per thread: fragments at the widest moment, and addresses and the like. Preloaded fragments are not among them: the
/// compiler moves their loads down to where registers are free.
fn estimate_registers(plan: &Plan) -> u32 {
    // Addresses and the like; roles that only compute have few.
    let others = if plan.is_specialized() { 12 } else { 20 };
    plan::peak(plan) + others
}

fn grid(instance: &Instance, schedule: &Schedule) -> Vec<GridDim> {
    let kernel = &instance.kernel;
    kernel
        .grid()
        .iter()
        .map(|dim| match dim {
            ProgramDim::Each(size) => GridDim::Each(term(instance, size)),
            ProgramDim::Tiles(axis) => {
                debug_assert_eq!(kernel.axes[*axis].kind, AxisKind::Program);
                GridDim::Tiles(term(instance, &kernel.axes[*axis].extent), blocks::block(kernel, schedule, *axis))
            }
        })
        .collect()
}

/// A size as the ABI has it.
pub(crate) fn term(instance: &Instance, size: &SizeExpr) -> SizeTerm {
    SizeTerm::of(&instance.kernel, &instance.binding, size)
}
