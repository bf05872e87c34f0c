//! Why a schedule is not legal for a kernel and an architecture: what speaks against it before it
//! is planned, and of its plan.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::ir::{Dim, Direction, Elem, Kernel, Op, Param, ParamKind, SizeExpr, Type};

use crate::arch::{Arch, CopyOp, TensorOp, WARPGROUP};
use crate::artifact::Resources;
use crate::elementwise_tiles::{elementwise_tiles, sharing_dims};
use crate::instance::Instance;
use crate::lower;
use crate::plan::{Plan, Shape, Storage, most_in_flight};
use crate::reason::{Reason, Resource};
use crate::schedule::{BlockKnobs, Knob, Overlap, Persistent, PingPong, RunningMax};

/// Why a multiprocessor cannot hold `min_blocks` blocks at once. The promise goes to the compiler,
/// which divides the registers by it; persistent blocks are launched in that number. So more blocks
/// than fit would have few registers each, and the last of them would wait for the end of the
/// first.
pub(crate) fn min_blocks_reason(min_blocks: u32, shared_bytes: u32, threads: u32, arch: &Arch) -> Option<Reason> {
    let shared = Resources::shared_of_block(arch, shared_bytes) as u64;
    let blocks = min_blocks;
    let threads = (Resource::Threads { blocks }, u64::from(threads), u64::from(arch.threads_per_sm));
    let shared = (Resource::Shared { blocks }, shared, arch.shared_per_sm as u64);
    let too_many = |(of, each, have): (Resource, u64, u64)| {
        let wanted = u64::from(blocks) * each;
        (wanted > have).then_some(Reason::Resource { of, wanted, have })
    };
    [threads, shared].into_iter().find_map(too_many)
}

pub(crate) fn lazy_reason(why: String) -> Reason {
    Reason::text("running_max", "a lazy running maximum needs a streaming softmax", Some(why))
}

/// Why the kernel's text takes a knob at its default only; `None` if it takes others.
pub(crate) fn against_text(knob: &str, instance: &Instance, block: &BlockKnobs) -> Option<Reason> {
    let kernel = &instance.kernel;
    match knob {
        "order" => {
            let depends = matches!(lower::trip_trend(instance, block), Some(Trend::Rising | Trend::Falling));
            let needs = "order=lpt needs a loop whose length depends on the last grid dimension";
            (!depends).then(|| Reason::text("order", needs, None))
        }
        "running_max" => lower::why_not_lazy(kernel).map(lazy_reason),
        "walk" => {
            let needs = "a walk that is not ascending takes the tiles of a loop in another order than the text";
            lower::why_not_reordered(kernel).map(|why| Reason::text("walk", needs, Some(why)))
        }
        "sum_lag" => {
            let needs = "sum_lag=0 needs an output that a product is added to";
            (!kernel.has_sums()).then(|| Reason::text("sum_lag", needs, None))
        }
        "held_columns" => {
            let needs = "held_columns needs a loop with a product whose left operand stays for all steps";
            (!lower::has_left_operand_that_stays(kernel)).then(|| Reason::text("held_columns", needs, None))
        }
        "share_tiles" => {
            let needs = "share_tiles=on needs programs that read the same tiles of elementwise work";
            sharing_dims(kernel).is_empty().then(|| Reason::text("share_tiles", needs, None))
        }
        "tile_loads" => {
            let needs = "tile_loads=tma needs a loop that loads tiles of 16-bit numbers, with the rows of the program and aligned to 16 bytes, for its elementwise work";
            elementwise_tiles(instance).is_empty().then(|| Reason::text("tile_loads", needs, None))
        }
        "v_stages" => {
            let needs = "v_stages needs a loop with two products or more, one of which alone reads a streamed tile";
            lower::own_operands(kernel).is_empty().then(|| Reason::text("v_stages", needs, None))
        }
        _ => None,
    }
}

/// Positions of a tile, at most.
pub(crate) const MOST_BLOCK: u32 = 512;

/// Reasons that need no plan.
pub(crate) fn static_reasons(instance: &Instance, normal: &Kernel, s: &BlockKnobs, arch: &Arch) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: Reason| {
        if condition && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    };
    let kernel = &instance.kernel;
    let lacks = |what: String, knob| Reason::Arch { arch: arch.name, lacks: what, knob, instead: None };
    let operand = |knob, why: String| Reason::Operand { knob, why };
    refuse(!(1..=16).contains(&s.warps), Reason::not_between("warps", s.warps, 1, 16));
    refuse(!(1..=8).contains(&s.stages), Reason::not_between("stages", s.stages, 1, 8));
    for reason in block_reasons(s) {
        refuse(true, reason);
    }
    let known = matches!(s.column_groups, 1 | 2 | 4);
    refuse(!known, value("column_groups", s.column_groups, "1, 2 or 4"));
    let shared = || {
        Reason::knobs("column_groups", "warps", format!("column_groups={} does not divide warps={}", s.column_groups, s.warps))
    };
    refuse(known && !s.warps.is_multiple_of(s.column_groups), shared());
    let row_warps = (s.warps / if known { s.column_groups } else { 1 }).max(1);
    let each = format!("block_m={} is not a multiple of 16 rows for each of {row_warps} warps", s.block_m);
    refuse(!s.block_m.is_multiple_of(16 * row_warps), Reason::knobs("block_m", "warps", each));
    refuse(s.section == 0, value("section", 0, "positive"));
    refuse(s.sum_lag > 1, Reason::not_between("sum_lag", s.sum_lag, 0, 1));
    refuse(!arch.tensor_ops.contains(&s.tensor_op), lacks(knob_text(s, "tensor_op"), Some("tensor_op")));
    refuse(!arch.copy_ops.contains(&s.copy), lacks(knob_text(s, "copy"), Some("copy")));
    for reason in alignment_reasons(instance, normal, s) {
        refuse(true, reason);
    }
    refuse(
        s.copy == CopyOp::Sync && s.stages > 2,
        Reason::knobs("stages", "copy", "more than two stages of synchronous copies overlap nothing"),
    );
    for (knob, requires) in Knob::of_blocks().filter_map(|(knob, _)| Some((knob, knob.lacks(s)?))) {
        refuse(true, Reason::knobs(knob.name, requires.knob, format!("{} takes {requires}", knob_text(s, knob.name))));
    }
    if s.column_programs > 1
        && let Some(why) = why_no_column_programs(normal)
    {
        refuse(true, Reason::text("column_programs", "column_programs needs columns that are computed apart", Some(why)));
    }
    refuse(s.column_programs == 0, value("column_programs", 0, "positive"));
    for reason in specialized_reasons(instance, normal, s) {
        refuse(true, reason);
    }
    for reason in maximum_reasons(instance, normal, s) {
        refuse(true, reason);
    }
    let no_bf16 = || lacks("bf16".into(), None);
    for elem in operand_types(instance, normal) {
        let tensor = s.tensor_op != TensorOp::Ffma;
        let taken = |why: String| operand("tensor_op", why);
        refuse(elem == Elem::F32 && tensor, taken("f32 products take tensor_op=ffma".into()));
        refuse(elem != Elem::F32 && !tensor, taken(format!("tensor_op=ffma takes f32 operands, not {}", elem.name())));
        refuse(elem == Elem::Bf16 && !arch.bf16, no_bf16());
        refuse(elem == Elem::Bf16 && s.tensor_op == TensorOp::MmaM16n8k8, taken("mma_m16n8k8 takes f16 here".into()));
    }
    refuse(!arch.bf16 && instance.binding.types.values().any(|&e| e == Elem::Bf16), no_bf16());
    for (knob, of) in Knob::of_blocks() {
        if (of.get)(s) != (of.get)(&BlockKnobs::default())
            && let Some(reason) = against_text(knob.name, instance, s)
        {
            refuse(true, reason);
        }
    }
    for (name, extent) in range_lengths(kernel) {
        let unknown = || format!("the length of the range {name} is not known at compile time");
        match instance.binding.size(kernel, &extent) {
            Some(n) if n >= 1 => {}
            Some(n) => refuse(true, Reason::Kernel { why: format!("the range {name} has length {n}") }),
            None => refuse(true, Reason::Kernel { why: unknown() }),
        }
    }
    reasons
}

/// A knob's number that is none of those that it takes.
fn value(knob: &'static str, value: u32, needs: &str) -> Reason {
    Reason::Value { knob, value: value.to_string(), needs: needs.into() }
}

/// Reasons against numbers of positions.
fn block_reasons(s: &BlockKnobs) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (name, size) in [("block_m", s.block_m), ("block_n", s.block_n), ("block_k", s.block_k)] {
        let is_block = size != 0 && size % 16 == 0 && size <= MOST_BLOCK;
        reasons.extend((!is_block).then(|| value(name, size, &format!("a multiple of 16 up to {MOST_BLOCK}"))));
    }
    let held = s.held_columns;
    reasons.extend((!held.is_multiple_of(64)).then(|| value("held_columns", held, "a multiple of 64")));
    reasons
}

/// Reasons against a running maximum that is made again where it does not do.
fn maximum_reasons(instance: &Instance, normal: &Kernel, s: &BlockKnobs) -> Vec<Reason> {
    let mut reasons = against_first_maximum(&instance.kernel, s);
    if s.running_max == RunningMax::Optimistic {
        let needs = "running_max=optimistic needs a sum that shows overflows";
        let why = lower::why_not_optimistic(instance, normal);
        reasons.extend(why.map(|why| Reason::text("running_max", needs, Some(why))));
        let alike = "column groups vote on the reference at a barrier in a step: running_max=optimistic takes overlap=off \
                     with column_groups";
        let apart = s.column_groups > 1 && s.overlap != Overlap::Off;
        reasons.extend(apart.then(|| Reason::knobs("running_max", "overlap", alike)));
    }
    reasons
}

/// Reasons against programs that are made again where the maximum of their first tile does not do.
fn against_first_maximum(kernel: &Kernel, s: &BlockKnobs) -> Vec<Reason> {
    if s.running_max != RunningMax::First {
        return Vec::new();
    }
    let needs = [
        ("tensor_op", s.tensor_op == TensorOp::Wgmma, "tensor_op=wgmma"),
        ("overlap", s.overlap != Overlap::Off, "overlap=on or late, whose first step stands before the loop"),
        ("persistent", s.persistent != Persistent::Off, "persistent=static or dynamic, whose blocks make programs again"),
    ];
    let lacking = needs.into_iter().filter(|(_, has, _)| !has);
    let mut reasons: Vec<Reason> =
        lacking.map(|(knob, _, needs)| Reason::knobs("running_max", knob, format!("running_max=first takes {needs}"))).collect();
    if lower::is_lazy_within(kernel) {
        let why = "a loop around it goes through it several times; set running_max=max_first".to_owned();
        reasons.push(Reason::text("running_max", "running_max=first asks at the end of its loop, once a program", Some(why)));
    }
    let changed = |param: &&Param| match &param.kind {
        ParamKind::Tensor(tensor) => matches!(tensor.direction, Direction::InOut | Direction::Sum),
        ParamKind::Scalar(_) => false,
    };
    reasons.extend(kernel.params.values().find(changed).map(|param| {
        let why = format!("{} would be changed twice", param.name);
        Reason::text("running_max", "running_max=first makes programs again", Some(why))
    }));
    reasons
}

/// Why programs cannot share the columns of a kernel's tiles; `None` if they can.
pub(crate) fn why_no_column_programs(kernel: &Kernel) -> Option<String> {
    kernel.walk().into_iter().find_map(|(_, op)| {
        let why = match kernel.ops[op].op {
            Op::Dot { .. } => "the kernel has a product, whose operands are needed whole",
            Op::Reduce(..) => "the kernel reduces columns",
            Op::OfPart { .. } => "programs of the kernel meet",
            Op::Load { tensor, .. } if kernel.tensor(tensor).direction == Direction::InOut => "the kernel reads what it writes",
            Op::Store { value, .. } if kernel.tile(value).rank() == 0 => "the kernel stores a scalar",
            _ => return None,
        };
        Some(why.to_owned())
    })
}

/// Tensors that a copy cannot read where they lie.
fn alignment_reasons(instance: &Instance, normal: &Kernel, s: &BlockKnobs) -> Vec<Reason> {
    if s.copy == CopyOp::Sync {
        return Vec::new();
    }
    let short = |name: String| {
        let why = match s.copy {
            CopyOp::Sync => None,
            CopyOp::CpAsync => {
                let bytes = instance.alignment_of(&name);
                (bytes < 4).then(|| format!("cp.async copies at least 4 bytes, rows of tiles of {name} are aligned to {bytes}"))
            }
            CopyOp::Tma => {
                let bytes = instance.facts.alignment_of(&name);
                let needs = "TMA needs addresses and strides that are multiples of 16 bytes";
                (bytes < 16).then(|| format!("{needs}, those of {name} are of {bytes}"))
            }
        };
        why.map(|why| Reason::Operand { knob: "copy", why })
    };
    lower::copied_tensors(normal, s).into_iter().filter_map(short).collect()
}

/// Reasons about the knobs of specialised roles.
fn specialized_reasons(instance: &Instance, normal: &Kernel, s: &BlockKnobs) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: Reason| {
        if condition {
            reasons.push(reason);
        }
    };
    if s.tensor_op != TensorOp::Wgmma {
        refuse(s.copy == CopyOp::Tma, Reason::knobs("copy", "tensor_op", "copy=tma fills tiles for tensor_op=wgmma only"));
        return reasons;
    }
    refuse(s.copy != CopyOp::Tma, Reason::knobs("copy", "tensor_op", "tensor_op=wgmma reads tiles that copy=tma fills"));
    let no_product = || Reason::text("tensor_op", "tensor_op=wgmma needs a matrix product", None);
    refuse(operand_types(instance, normal).is_empty(), no_product());
    let groups = s.warps / WARPGROUP;
    let (block_m, warps, columns) = (s.block_m, s.warps, s.column_groups);
    let rows = format!("wgmma takes 64 rows for each group of 4 warps: block_m={block_m} and warps={warps} do not fit");
    let rows = if columns == 1 { rows } else { format!("{rows} column_groups={columns}") };
    let fit = warps.is_multiple_of(WARPGROUP * columns.max(1)) && block_m * columns == 16 * warps;
    refuse(!fit, Reason::knobs("block_m", "warps", rows));
    for (knob, off, needs) in [
        ("overlap", s.overlap != Overlap::On, "column groups meet within a step: column_groups takes overlap=off or late"),
        ("ping_pong", s.ping_pong == PingPong::Off, "column groups meet at barriers: column_groups takes ping_pong=off"),
    ] {
        refuse(columns > 1 && !off, Reason::knobs("column_groups", knob, needs));
    }
    refuse(
        s.ping_pong != PingPong::Off && groups < 2,
        Reason::knobs("ping_pong", "warps", "ping_pong takes two warpgroups or more"),
    );
    refuse(s.v_stages > 8, Reason::not_between("v_stages", s.v_stages, 0, 8));
    refuse(!(1..=4).contains(&s.outer_stages), Reason::not_between("outer_stages", s.outer_stages, 1, 4));
    if let Some((producer, consumer)) = lower::register_split(s) {
        let fits = |n: u32| (24..=240).contains(&n) && n.is_multiple_of(8);
        let why = format!("setmaxnreg takes multiples of 8 from 24 to 240, not {producer} and {consumer}");
        refuse(!fits(producer) || !fits(consumer), Reason::knobs("producer_registers", "warps", why));
    }
    reasons
}

/// Registers that the compiler wants at launch for a product, beyond its accumulator (ptxas C7602).
const WGMMA_REGISTERS: u32 = 30;

/// Registers that the compiler wants beside those of the products in flight, or it makes them wait
/// for each other (ptxas 13.0, C7512). With `overlap=on`, d 32 to 128 and 160 or 240 registers, 24
/// are too few and 28 are enough.
const BESIDE_PRODUCTS: u32 = 28;

/// Reasons against a plan with asynchronous products, whose threads have so many registers as they
/// are `launched`, and then.
pub(crate) fn wgmma_reasons(plan: &Plan, launched: u32, then: u32) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let in_flight = most_in_flight(plan);
    if in_flight + BESIDE_PRODUCTS > then {
        let why = format!("products in flight have {in_flight} registers, of {then}: {BESIDE_PRODUCTS} must be left");
        reasons.push(Reason::Quirk { message: "C7512", why });
    }
    for v in &plan.variables {
        let Storage::Fragment(Shape::Accumulator) = v.storage else { continue };
        let columns = 8 * v.n_tiles;
        if v.n_tiles > 32 {
            let why = format!("wgmma computes up to 256 columns, {} has {columns}: column_groups divides them", v.name);
            reasons.push(Reason::Product { why });
        }
        let needed = v.registers() + WGMMA_REGISTERS;
        if needed > launched {
            let why = format!("a product with {columns} columns needs {needed} registers per thread, {launched} are launched");
            reasons.push(Reason::Quirk { message: "C7602", why });
        }
        if v.m_tiles != 1 {
            let why = format!("wgmma computes 64 rows for each group of 4 warps, {} has other rows", v.name);
            reasons.push(Reason::Product { why });
        }
    }
    reasons
}

/// `knob=value`, as the schedule's text form has it.
fn knob_text(block: &BlockKnobs, name: &str) -> String {
    let of = Knob::named(name).and_then(|knob| knob.of_block).expect("every field of a launch's knobs is a knob");
    format!("{name}={}", (of.get)(block))
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
pub(crate) fn range_lengths(kernel: &Kernel) -> Vec<(String, SizeExpr)> {
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
