//! Schedules with every knob drawn, for tests that want what no tuner tries.
//!
//! [`crate::space()`] holds what is worth timing. Here every value of every knob may meet every other, within what one choice
//! says about the next: a knob of `wgmma` keeps its default under another instruction, a copy needs its alignment. So a good
//! part of what is drawn is legal; whether a schedule is, [`crate::check`] says.

use flashtile_dsl::ir::Elem;

use crate::arch::{Arch, CopyOp, TensorOp, WARPGROUP};
use crate::instance::Instance;
use crate::launches;
use crate::legality::{self, operand_types};
use crate::lower;
use crate::schedule::{
    BLayout, Differences, KNOBS, Knob, LoopOrder, Overlap, Persistent, Precompute, RunningMax, Schedule, Scope, Summaries, Terms,
    Walk, WorkOrder,
};
use crate::space;

/// What says which values others may have: drawn first, in this order.
const FIRST: &[&str] = &["tensor_op", "copy", "warps", "column_groups", "persistent", "split_k", "precompute"];

/// The texts of all values of a knob that [`draw`] may give it.
pub fn drawn_values(knob: &Knob) -> Vec<String> {
    let texts = (knob.values)();
    if !texts.is_empty() {
        return texts.into_iter().map(str::to_owned).collect();
    }
    knob.numbers.iter().map(u32::to_string).collect()
}

/// A schedule with every knob drawn, also of the launches beside the main one, half of which keep
/// the knobs that they have by themselves; `next(bound)` gives a number below `bound`. It is
/// coherent, but not always legal.
///
/// ```
/// use flashtile_codegen::{Arch, Facts, Instance, check, draw};
/// # use flashtile_dsl::ir::{Binding, Elem, SourceText};
/// # let text = "pub fn scale<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
/// #     let i = program(tiles(N));
/// #     store(y, [i], 2.0 * load(x, [i]));
/// # }";
/// # let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
/// # let kernel = flashtile_dsl::syntax::parse(&source).expect("is well formed").remove(0);
/// # let binding = Binding::new(&kernel, Elem::F16, Vec::<(&str, i64)>::new());
/// let instance = Instance { facts: Facts::best(&kernel), kernel, binding };
/// let arch = Arch::named("sm_80").expect("in the table");
/// let mut state = 1_usize;
/// let mut next = |bound| {
///     state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
///     (state >> 33) % bound
/// };
/// let legal = (0..100).map(|_| draw(&instance, arch, &mut next)).filter(|s| check(&instance, s, arch).is_legal());
/// assert!(legal.count() > 30);
/// ```
pub fn draw(instance: &Instance, arch: &'static Arch, next: &mut dyn FnMut(usize) -> usize) -> Schedule {
    let mut schedule = drawn(instance, arch, next, |_| true);
    // A schedule that makes no launches is not legal; what its launches would be does not matter.
    let beside = launches::launches(instance, &schedule, arch).map(|made| made.beside().cloned().collect::<Vec<_>>());
    for piece in beside.unwrap_or_default() {
        if next(2) == 0 {
            continue;
        }
        let block = drawn(&piece.instance, arch, next, |knob| knob.scope == Scope::Block).main;
        let overrides = schedule.beside.entry(piece.name).or_default();
        for (knob, of) in Knob::of_blocks() {
            let value = (of.get)(&block);
            assert!(overrides.set(knob, &value), "{}={value} is a value of the table", knob.name);
        }
    }
    schedule
}

/// A schedule with these knobs drawn.
fn drawn(
    instance: &Instance,
    arch: &'static Arch,
    next: &mut dyn FnMut(usize) -> usize,
    which: impl Fn(&Knob) -> bool,
) -> Schedule {
    let mut schedule = Schedule::default();
    let first = FIRST.iter().map(|name| Knob::named(name).expect("a knob"));
    let all = first.chain(KNOBS.iter().filter(|k| !FIRST.contains(&k.name)));
    for knob in all.filter(|knob| which(knob)) {
        let values = coherent(knob, &schedule, instance, arch);
        if !values.is_empty() {
            let value = &values[next(values.len())];
            assert!((knob.set)(&mut schedule, value), "{}={value} is a value of the table", knob.name);
        }
    }
    schedule
}

/// The values of a knob that go with what is drawn before it; none if the architecture has no instruction for the kernel.
fn coherent(knob: &Knob, drawn: &Schedule, instance: &Instance, arch: &'static Arch) -> Vec<String> {
    let Schedule { launches: of_launches, main, .. } = drawn;
    let wgmma = main.tensor_op.is_asynchronous();
    let default = || vec![(knob.get)(&Schedule::default())];
    let refused = || legality::against_text(knob.name, instance, main).is_some();
    if !knob.requires.iter().all(|requires| requires.holds(main)) || refused() {
        return default();
    }
    match knob.name {
        "tensor_op" => kept(knob, |s| takes(s.main.tensor_op, instance, arch)),
        "copy" => kept(knob, |s| match s.main.copy {
            CopyOp::Tma => wgmma,
            CopyOp::CpAsync => {
                let offered = !wgmma && arch.copy_ops.contains(&CopyOp::CpAsync);
                offered && lower::copied_alignment(&instance.kernel, main, instance) >= 4
            }
            CopyOp::Sync => !wgmma,
        }),
        "warps" => kept(knob, |s| !wgmma || s.main.warps.is_multiple_of(WARPGROUP)),
        "column_groups" => kept(knob, |s| {
            let (groups, each) = (s.main.column_groups, if wgmma { WARPGROUP } else { 1 });
            groups == 1 || (main.warps.is_multiple_of(each * groups) && space::can_share_columns(instance, groups, wgmma, arch))
        }),
        // As many rows as a warp multiplies at once, or twice that.
        "block_m" if wgmma => vec![(16 * main.warps / main.column_groups).to_string()],
        "block_m" => {
            let row_warps = main.warps / main.column_groups;
            kept(knob, |s| [16, 32].map(|rows| rows * row_warps).contains(&s.main.block_m))
        }
        // Shares are no less than an instruction takes. What groups stage of more than 128 columns
        // leaves a block of the older architectures too little shared memory.
        "block_n" if main.column_groups > 1 => {
            let least = lower::least_share(main.tensor_op) * main.column_groups;
            kept(knob, |s| s.main.block_n.is_multiple_of(least) && s.main.block_n <= 128)
        }
        "stages" => kept(knob, |s| main.copy != CopyOp::Sync || s.main.stages <= 2),
        "ping_pong" if main.warps == WARPGROUP => default(),
        "ping_pong" if main.column_groups > 1 => default(),
        "overlap" if main.column_groups > 1 => kept(knob, |s| match s.main.overlap {
            Overlap::Off => true,
            Overlap::Late => main.running_max != RunningMax::Optimistic,
            Overlap::On => false,
        }),
        "running_max" if main.column_groups > 1 => kept(knob, |s| s.main.running_max != RunningMax::First),
        "running_max" => kept(knob, |s| wgmma || s.main.running_max != RunningMax::First),
        "overlap" if main.running_max == RunningMax::First => kept(knob, |s| s.main.overlap != Overlap::Off),
        "persistent" if main.running_max == RunningMax::First => kept(knob, |s| s.main.persistent != Persistent::Off),
        "precompute" => kept(knob, |s| {
            let precompute = s.launches.precompute;
            space::can_precompute(instance, precompute) && (!wgmma || space::can_use_wgmma(instance, precompute, arch))
        }),
        "split_k" if launches::why_not_split(&instance.kernel).is_some() => default(),
        "fixup" if of_launches.split_k == 1 => default(),
        "fixup" => {
            let mut values = drawn_values(knob);
            values.retain(|value| {
                let mut schedule = drawn.clone();
                (knob.set)(&mut schedule, value) && launches::why_not_combine(&schedule, arch).is_empty()
            });
            values
        }
        "differences" => kept(knob, |s| {
            s.launches.differences == Differences::InPlace || launches::why_not_differences(&instance.kernel).is_none()
        }),
        "terms" => kept(knob, |s| s.launches.terms == Terms::Added || launches::why_not_terms(instance).is_none()),
        "b_layout" => kept(knob, |s| match s.launches.b_layout {
            BLayout::AsGiven => true,
            BLayout::Pretransposed => launches::why_not_pretranspose(&instance.kernel).is_none(),
            BLayout::Copied => launches::why_not_copy(instance).is_none(),
        }),
        "loop_order"
            if wgmma
                || of_launches.split_k != 1
                || main.running_max != RunningMax::Exact
                || main.order != WorkOrder::Grid
                || main.walk != Walk::Ascending =>
        {
            default()
        }
        "loop_order" if launches::why_not_interchange(&instance.kernel).is_some() => default(),
        "summaries" => kept(knob, |s| match s.launches.summaries {
            Summaries::Off => true,
            Summaries::On => launches::why_not_summarise(instance).is_none(),
            Summaries::Listed => {
                let as_written = of_launches.loop_order == LoopOrder::AsWritten;
                as_written && main.early_stop && launches::why_not_list(instance).is_none()
            }
        }),
        "pack_gqa" if !instance.facts.foldable => default(),
        _ => drawn_values(knob),
    }
}

/// The values of a knob with which a schedule is as `wanted`.
fn kept(knob: &Knob, wanted: impl Fn(&Schedule) -> bool) -> Vec<String> {
    let mut values = drawn_values(knob);
    values.retain(|value| {
        let mut schedule = Schedule::default();
        (knob.set)(&mut schedule, value) && wanted(&schedule)
    });
    values
}

/// Whether products of the kernel's operands may go through this instruction.
fn takes(op: TensorOp, instance: &Instance, arch: &'static Arch) -> bool {
    let operands = operand_types(instance, &instance.kernel);
    arch.tensor_ops.contains(&op)
        && match op {
            // Where nothing is multiplied any instruction will do.
            TensorOp::Ffma => operands.iter().all(|&e| e == Elem::F32),
            TensorOp::MmaM16n8k8 => operands.iter().all(|&e| e == Elem::F16),
            TensorOp::MmaM16n8k16 => !operands.contains(&Elem::F32),
            TensorOp::Wgmma => Precompute::ALL.into_iter().any(|p| space::can_use_wgmma(instance, p, arch)),
        }
}
