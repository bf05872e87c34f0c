//! Hints of the code generator, beside those of the analyses ([`flashtile_dsl::analysis::hints`]): rows that cannot fold, products
//! that cannot go through `wgmma`, and kernels that no schedule can execute on a GPU.
//!
//! Every hint restates a refusal of a rewrite or of lowering, with the place that the refusal names.

use std::collections::HashSet;

use flashtile_dsl::analysis::hints::{self as analyses, Hint, Lost, merged};
use flashtile_dsl::ir::{Elem, Kernel, Op, OpId, SizeExpr, Span, ValueId};

use crate::arch::{Arch, TensorOp};
use crate::error::Error;
use crate::instance::Instance;
use crate::launches;
use crate::legality::{operand_types, range_lengths};
use crate::planning::planned;
use crate::reason::Reason;
use crate::rewrite::{as_generated, depth};
use crate::schedule::{BlockKnobs, Precompute, Schedule};
use crate::space::{smallest_each, with_precomputed};

/// What a kernel loses on an architecture, each cause once, in the order of the text. The kernel is
/// as written: hints name what stands in its text.
pub fn hints(instance: &Instance, arch: &'static Arch) -> Vec<Hint> {
    let mut found = analyses::hints(&instance.kernel, &|size| instance.binding.size(&instance.kernel, size));
    found.extend(fold(instance));
    // Constants that somebody else chose may make a range empty: that says nothing of the text.
    let is_empty = |(_, len): &(String, _)| instance.binding.size(&instance.kernel, len).is_some_and(|n| n < 1);
    if !range_lengths(&instance.kernel).iter().any(is_empty) {
        let generated = Instance { kernel: as_generated(&instance.kernel, &instance.binding), ..instance.clone() };
        found.extend(products(&generated, arch));
    }
    merged(&instance.kernel, found)
}

/// Why rows of heads that read the same tiles stay apart.
fn fold(instance: &Instance) -> Option<Hint> {
    let refused = launches::why_not_fold_shared(&instance.kernel)?;
    Some(Hint::new(Lost::Fold, refused.span, refused.why, refused.instead))
}

/// A product that would go through tensor cores if what is computed of 16-bit numbers were rounded
/// to them before it is multiplied.
fn unrounded(instance: &Instance, arch: &Arch) -> Option<Hint> {
    let (kernel, binding) = (&instance.kernel, &instance.binding);
    let mixed = operand_types(instance, kernel).iter().any(|elem| *elem != Elem::F32);
    if !mixed && !arch.tensor_ops.contains(&TensorOp::Wgmma) {
        return None;
    }
    let is_of_16_bits = |elem: Elem| binding.elem(kernel, elem).bytes() == Some(2);
    let is_computed = |value: ValueId| kernel.tile(value).elem == Elem::F32 && !is_loaded(kernel, value);
    let unrounded = |op: OpId| match kernel.ops[op].op {
        Op::Dot { a, b, .. } => [a, b].into_iter().find(|&v| is_computed(v)).zip(loaded_type(kernel, [a, b], is_of_16_bits)),
        _ => None,
    };
    let (op, (_, elem)) = kernel.walk().into_iter().find_map(|(_, op)| Some((op, unrounded(op)?)))?;
    let lost = if mixed { Lost::Gpu } else { Lost::Wgmma };
    let because = "an operand is computed in f32, and tensor cores multiply 16-bit numbers";
    let instead =
        format!("round what is computed, and what goes with it, to 16 bits: `dot(p.to::<{}>(), ..)`", kernel.elem_name(elem));
    Some(Hint::new(lost, kernel.ops[op].span, because, instead))
}

/// Whether a value is a load, or a view of one.
fn is_loaded(kernel: &Kernel, value: ValueId) -> bool {
    match kernel.def(value) {
        Some((_, Op::Load { .. })) => true,
        Some((_, Op::Transpose(x))) => is_loaded(kernel, *x),
        _ => false,
    }
}

/// The type of a tensor, one that is asked for, which some of these values are computed of.
fn loaded_type(kernel: &Kernel, values: [ValueId; 2], asked: impl Fn(Elem) -> bool) -> Option<Elem> {
    let (mut seen, mut waiting) = (HashSet::new(), values.to_vec());
    while let Some(value) = waiting.pop() {
        let Some((_, op)) = kernel.def(value).filter(|_| seen.insert(value)) else { continue };
        match op {
            Op::Load { tensor, .. } if asked(kernel.tensor(*tensor).elem) => return Some(kernel.tensor(*tensor).elem),
            op => waiting.extend(op.operands()),
        }
    }
    None
}

/// Why there is no code, or none that multiplies by the best tensor instruction. Products of f32 have no tensor instruction: what
/// is f32 in memory loses nothing.
fn products(instance: &Instance, arch: &'static Arch) -> Option<Hint> {
    let types = operand_types(instance, &instance.kernel);
    let of_f32 = types.contains(&Elem::F32);
    if of_f32 && let Some(hint) = unrounded(instance, arch) {
        return Some(hint);
    }
    let ways = [Precompute::Off, Precompute::B, Precompute::Ab];
    let ways: Vec<Precompute> = ways.into_iter().filter(|&way| with_precomputed(instance, way).is_some()).collect();
    // What speaks against each, where each of the schedules is refused. What is computed ahead
    // needs code too.
    let refused = |schedules: &[BlockKnobs]| -> Vec<Vec<Refusal>> {
        let of = |&way: &Precompute| -> Option<Vec<Refusal>> {
            let whole = |main: &BlockKnobs| Schedule::from(main.clone()).with_launches(|launches| launches.precompute = way);
            let refusals = schedules.iter().map(|schedule| refusal(instance, &whole(schedule), arch));
            refusals.collect()
        };
        ways.iter().map(of).take_while(Option::is_some).flatten().collect()
    };
    // The schedule with the defaults asks for little: what it cannot do, none can, but for what
    // only `wgmma` multiplies.
    let tensor_op = if of_f32 { TensorOp::Ffma } else { BlockKnobs::default().tensor_op };
    let of_warps = |warps: u32| BlockKnobs { tensor_op, warps, ..BlockKnobs::default() };
    // Few rows divide among fewer warps than the defaults have.
    let mut plain = [BlockKnobs::default().warps, 2].map(of_warps).to_vec();
    let of_little = plain.len();
    if !of_f32 && arch.tensor_ops.contains(&TensorOp::Wgmma) {
        plain.extend(smallest_each());
    }
    let mut plain = refused(&plain);
    for refusals in &mut plain {
        refusals.truncate(of_little);
        refusals.retain(|refusal| refusal.of_text);
    }
    if plain.len() == ways.len()
        && plain.iter().all(|of_text| !of_text.is_empty())
        && let Some(Refusal { because, instead, span, .. }) = plain.into_iter().flatten().next()
    {
        return Some(Hint::new(Lost::Gpu, span, because, instead));
    }
    if types.is_empty() || of_f32 || !arch.tensor_ops.contains(&TensorOp::Wgmma) {
        return None;
    }
    let fast = refused(&smallest_each());
    let all = fast.len() == ways.len();
    let Refusal { because, instead, span, .. } = fast.into_iter().flatten().next().filter(|_| all)?;
    Some(Hint::new(Lost::Wgmma, span, because, instead))
}

/// What to do about a product that sums over a wide dimension at once.
fn summed_whole(instance: &Instance) -> Option<String> {
    /// The widest heads of attention.
    const WIDE: i64 = 576;
    let kernel = &instance.kernel;
    let mut depths = kernel.walk().into_iter().filter_map(|(_, op)| depth(kernel, op));
    let is_wide = |len: &&SizeExpr| instance.binding.size(kernel, len).is_some_and(|n| n > WIDE);
    let size = kernel.size_text(depths.find(is_wide)?);
    Some(format!(
        "walk the dimension that is summed over: `for d in tiles({size}) {{ acc = acc + dot(.., ..); }}`, of loads of its tiles"
    ))
}

/// Why a schedule cannot execute a kernel.
struct Refusal {
    because: String,
    instead: String,
    span: Span,
    /// Whether the text is the reason, and not the schedule.
    of_text: bool,
}

fn refusal(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Option<Refusal> {
    let product = || {
        let kernel = &instance.kernel;
        let is_product = |op: &_| matches!(kernel.ops[*op].op, Op::Dot { .. });
        let first = kernel.walk().into_iter().map(|(_, op)| op).find(is_product);
        first.map_or(kernel.name_span, |op| kernel.ops[op].span)
    };
    let illegal = |reasons: Vec<Reason>| {
        // What `wgmma` itself lacks says more than what follows from it.
        let own = reasons.iter().find(|reason| matches!(reason, Reason::Product { .. })).or(reasons.first());
        Refusal {
            because: own.map(Reason::to_string).unwrap_or_default(),
            instead: summed_whole(instance).unwrap_or_else(|| {
                "give wide dimensions in two ranges, `..D / 2` and `D / 2..`, with an accumulator each; else products go \
                 through `mma.sync` where its registers suffice"
                    .to_owned()
            }),
            span: product(),
            of_text: false,
        }
    };
    match planned(instance, schedule, arch) {
        Ok(planned) if planned.reasons.is_empty() => None,
        Ok(planned) => Some(illegal(planned.reasons)),
        Err(Error::Illegal { reasons, .. }) => Some(illegal(reasons)),
        Err(Error::Unsupported { what, instead, span }) => Some(Refusal { because: what, instead, span, of_text: true }),
        // Faults of the compiler, and generics that are not bound: generating code says so.
        Err(_) => None,
    }
}
