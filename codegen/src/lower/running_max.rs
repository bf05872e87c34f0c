//! The forms of the running maximum.
//!
//! A streaming softmax carries a maximum `m` and values rescaled by `alpha = exp(m - m_new)`. The maximum is only the reference
//! that keeps exponentials finite: any reference gives the same quotients `acc / l` and the same `m + ln(l)`, as long as
//! nothing overflows. So it need not move in every step:
//!
//! * `max_first`: the maximum of a step is taken per lane, with no exchange between lanes; only if some lane of the warp finds
//!   a score above the reference by more than the room of an exponential do the lanes exchange maxima, the reference move, and
//!   the carried values get rescaled.
//! * `optimistic`: exponentials are taken against the old reference at once. The row sums, needed anyway, show an overflow
//!   (and a reference that is still `-inf`); then a warp makes the step again, exactly.
//!
//! With `wgmma` lanes compare scores as integers first, three at once: a lane's *bound* is no less than 0
//! and than each of its scores. Only where the bound leaves the room the lanes take the maximum itself,
//! and ask again.
//!
//! Where the reference moves it leaves *headroom*: it is as far above the largest score as small
//! exponentials allow, so that what grows from there needs not move it soon again. A row that has seen
//! nothing has no reference, and asks for one as soon as it sees something.
//!
//! Licence: [`Streaming`] recognises the recurrence. What is made of the carried values after the loop
//! must be the same for every reference, such as quotients of each other and `m + ln(l)` ([`is_seen`]),
//! or, where the loop walks a part of its tiles, they are stored as the state that they are. Nothing
//! but the running maximum reads the row maximum of a step. The reference may start from any value,
//! such as an attention sink. One that may start as +inf is tested in every step, because the text
//! makes NaN of the carried values then.
//!
//! Room: 2^64 where P is bf16 or f32 (its products and sums stay finite for |V| below 2^46), 2^15 for
//! f16, less what exponentials are multiplied by before they are rounded to it: elements of a tensor
//! leave none, so that no exponential may exceed 1. Headroom: 2^16 where P is bf16 (products of |V|
//! above 2^-86 keep 24 bits; `m + ln(l)` errs by 5e-7 more), none for f16 and f32.

use std::collections::HashSet;

use flashtile_dsl::analysis::onward::Onward;
use flashtile_dsl::analysis::streaming::{Form, Streaming, constant_fill};
use flashtile_dsl::ir::{BinaryOp, BlockId, Fill, Kernel, Op, OpId, ReduceOp, UnaryOp, ValueId};

use super::seen::is_seen;
use crate::instance::Instance;
use crate::rewrite::edit;

/// A loop whose maximum may be lazy, in terms of the normalised kernel.
#[derive(Clone, Debug)]
pub(super) struct Recurrence {
    /// Carried maximum.
    pub(super) maximum: ValueId,
    /// `rowmax` of the scores of a step.
    pub(super) row_maximum: OpId,
    /// The next maximum.
    pub(super) next: ValueId,
    /// Ops from the next maximum to the factor, in order, the `max` itself included.
    pub(super) section: Vec<OpId>,
    /// `x * factor` for every rescaled carried value `x`.
    pub(super) rescales: Vec<(ValueId, OpId)>,
    /// Argument of the exponential that is the factor.
    pub(super) exponent: ValueId,
    /// Ops that take exponentials against the reference, sum and round them, in order.
    pub(super) exponentials: Vec<OpId>,
    /// Loads that stand behind the row maximum in the text and enter these, with what addresses
    /// them, in order.
    pub(super) fetched: Vec<OpId>,
    /// The row sum that shows an overflow; `None` if none does, as a sum of any sign.
    pub(super) sum: Option<OpId>,
    /// What that sum tells of rows that have seen nothing; `None` if nothing.
    pub(super) unseen: Option<Unseen>,
    /// Whether the maximum starts from a value that may be +inf.
    pub(super) starts_anywhere: bool,
    /// Whether the loop goes on from what a loop around it hands to it.
    pub(super) goes_on: bool,
}

/// How exponentials come from the reference, where their sum alone shows a row that sees something
/// for the first time: against the least float they are 0 for what is hidden, and infinite else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unseen {
    /// `visible_or_zero` of the next maximum.
    pub(super) visible: OpId,
    /// Its product with the scale of scores.
    pub(super) scaled: Option<OpId>,
}

impl Recurrence {
    /// Ops that rescale accumulators, and the carried values that these are.
    pub fn accumulator_rescales<'a>(&'a self, kernel: &'a Kernel) -> impl Iterator<Item = (ValueId, OpId)> + 'a {
        self.rescales.iter().copied().filter(|&(x, _)| kernel.tile(x).rank() == 2)
    }

    /// Whether the lazy step stands where this op does.
    pub fn starts_at(&self, op: OpId) -> bool {
        op == self.row_maximum
    }
}

/// Why no loop of the kernel can have a lazy maximum; `None` if one can.
pub fn why_not_lazy(kernel: &Kernel) -> Option<String> {
    let loops: Vec<OpId> =
        kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| matches!(kernel.ops[op].op, Op::For { .. })).collect();
    let mut reason = "no loop carries a running maximum and values rescaled by it".to_owned();
    for id in loops {
        match license(kernel, id) {
            Ok(()) => return None,
            Err(Some(why)) => reason = why,
            Err(None) => {}
        }
    }
    Some(reason)
}

/// Whether a loop whose maximum may be lazy is in another one.
pub(crate) fn is_lazy_within(kernel: &Kernel) -> bool {
    let is_within = |(_, op): (_, OpId)| {
        matches!(kernel.ops[op].op, Op::For { .. }) && kernel.loop_around(op).is_some() && license(kernel, op).is_ok()
    };
    kernel.walk().into_iter().any(is_within)
}

/// Whether the loop's maximum may be lazy: `Err(None)` if it has none, `Err(why)` if something sees the maximum itself.
fn license(kernel: &Kernel, id: OpId) -> Result<(), Option<String>> {
    let streaming = Streaming::of(kernel, id);
    let maximum = streaming.forms.iter().position(|f| matches!(f, Form::RunningMaximum { .. }));
    let rescaled: Vec<usize> =
        (0..streaming.forms.len()).filter(|&k| matches!(streaming.forms[k], Form::RescaledSum { .. })).collect();
    if maximum.is_none() || rescaled.is_empty() {
        return Err(None);
    }
    if streaming.stores || streaming.forms.iter().any(|f| matches!(f, Form::Other(_))) {
        return Err(Some("the loop carries more than a running maximum and values rescaled by it".into()));
    }
    let Op::For { body, .. } = kernel.ops[id].op else { unreachable!("asked about a loop") };
    let next = maximum.map(|slot| edit::yielded(kernel, body)[slot]);
    if !next.is_some_and(|next| reads_maxima_alone(kernel, next)) {
        return Err(Some("something besides the running maximum reads the row maximum of a step".into()));
    }
    match is_seen(kernel, id, &streaming) {
        true => Err(Some("something after the loop sees the maximum itself, not only quotients and m + ln(l)".into())),
        false => Ok(()),
    }
}

/// Whether the row maxima that a running maximum is of have no other reader: a lazy step does not
/// make them, but a bound, or what lies above them. The text may say one of them twice.
fn reads_maxima_alone(kernel: &Kernel, next: ValueId) -> bool {
    let Some((maximum, &Op::Binary(BinaryOp::Max, a, b))) = kernel.def(next) else { return false };
    let scores = |v: ValueId| match kernel.def(v) {
        Some((_, &Op::Reduce(ReduceOp::Max, x))) => Some(x),
        _ => None,
    };
    let of = [scores(a), scores(b)];
    let same = kernel.walk().into_iter().map(|(_, op)| &kernel.ops[op]);
    let same = same.filter(|data| matches!(data.op, Op::Reduce(ReduceOp::Max, x) if of.contains(&Some(x))));
    same.map(|data| edit::users(kernel, data.results[0])).all(|users| users.iter().all(|&op| op == maximum))
}

/// The recurrence of a loop of the normalised kernel, if its maximum may be lazy.
pub(super) fn recurrence(instance: &Instance, kernel: &Kernel, id: OpId, body: BlockId) -> Option<Recurrence> {
    license(&instance.kernel, id).ok()?;
    let ops = &kernel.blocks[body].ops;
    let params = &kernel.blocks[body].params[1..];
    let yields = edit::yielded(kernel, body);
    let (maximum, next, row_maximum) = params.iter().zip(&yields).find_map(|(&param, &next)| match kernel.def(next) {
        Some((_, &Op::Binary(BinaryOp::Max, a, b))) if a == param || b == param => {
            let other = if a == param { b } else { a };
            match kernel.def(other) {
                Some((op, Op::Reduce(ReduceOp::Max, _))) if ops.contains(&op) => Some((param, next, op)),
                _ => None,
            }
        }
        _ => None,
    })?;
    if !reads_maxima_alone(kernel, next) {
        return None;
    }
    let on_next = depend_on(kernel, ops, next);
    // The factor: an exponential of what only the maxima and uniform values enter.
    let row_only = |v: ValueId| kernel.tile(v).rank() <= 1;
    let factor_op = ops.iter().copied().find(
        |&op| matches!(kernel.ops[op].op, Op::Unary(UnaryOp::Exp2 | UnaryOp::Exp, x) if on_next.contains(&x) && row_only(x)),
    )?;
    let (factor, exponent) = (kernel.ops[factor_op].results[0], *kernel.ops[factor_op].op.operands().first()?);
    let section = row_section(kernel, ops, factor, row_maximum);
    let rescales: Vec<(ValueId, OpId)> = ops
        .iter()
        .filter_map(|&op| match kernel.ops[op].op {
            Op::Binary(BinaryOp::Mul, a, b) if b == factor && params.contains(&a) => Some((a, op)),
            Op::Binary(BinaryOp::Mul, a, b) if a == factor && params.contains(&b) => Some((b, op)),
            _ => None,
        })
        .collect();
    // Nothing else may use the factor, and a rescaled value may have no other use.
    let only = |v: ValueId, op: OpId| edit::users(kernel, v) == [op];
    let factor_users = edit::users(kernel, factor);
    if factor_users.len() != rescales.len() || !rescales.iter().all(|&(x, op)| only(x, op)) {
        return None;
    }
    let (exponentials, fetched) = exponential_ops(kernel, ops, &on_next, &section, &rescales);
    let Op::Reduce(ReduceOp::Max, scores) = kernel.ops[row_maximum].op else { unreachable!("a row maximum") };
    let shows = |op: &OpId| matches!(kernel.ops[*op].op, Op::Reduce(ReduceOp::Sum, x) if shows_overflow(kernel, x, scores));
    let sum = exponentials.iter().copied().find(shows);
    let unseen = sum.and_then(|sum| unseen(kernel, next, sum, &exponentials, &section));
    let walk = Onward::from(kernel, id, |_| false);
    let starts = walk.starts(kernel);
    let start = params.iter().position(|&p| p == maximum).and_then(|slot| constant_fill(kernel, starts[slot]));
    let starts_anywhere = start.is_none_or(|m| m == f64::INFINITY);
    Some(Recurrence {
        maximum,
        row_maximum,
        next,
        section,
        rescales,
        exponent,
        exponentials,
        fetched,
        sum,
        unseen,
        starts_anywhere,
        goes_on: walk.outer() != id,
    })
}

/// `root`, and the values that the operations make of it.
fn depend_on(kernel: &Kernel, ops: &[OpId], root: ValueId) -> HashSet<ValueId> {
    let mut found = HashSet::from([root]);
    for &op in ops {
        if kernel.ops[op].op.operands().iter().any(|v| found.contains(v)) {
            found.extend(&kernel.ops[op].results);
        }
    }
    found
}

/// The operations on rows that make the factor of the row maximum, in their order.
fn row_section(kernel: &Kernel, ops: &[OpId], factor: ValueId, row_maximum: OpId) -> Vec<OpId> {
    let mut needed = HashSet::from([factor]);
    let mut section = Vec::new();
    for &op in ops.iter().rev() {
        let makes_row = |r: &ValueId| needed.contains(r) && kernel.tile(*r).rank() <= 1;
        if op != row_maximum && kernel.ops[op].results.first().is_some_and(makes_row) {
            needed.extend(kernel.ops[op].op.operands());
            section.push(op);
        }
    }
    section.reverse();
    section
}

/// Whether a sum of `summed` is too large wherever an exponential of the scores is: each element is
/// one of these, or the only thing that is made of one, times what is not negative.
fn shows_overflow(kernel: &Kernel, summed: ValueId, scores: ValueId) -> bool {
    let alone = |v: ValueId| edit::users(kernel, v).len() == 1 && shows_overflow(kernel, v, scores);
    let is_same =
        |f: ValueId, g: ValueId| f == g || constant_fill(kernel, f).is_some_and(|value| constant_fill(kernel, g) == Some(value));
    // The scores less a reference, or both times one factor.
    let is_of_scores = |a: ValueId, b: ValueId| match (kernel.def(a), kernel.def(b)) {
        _ if a == scores => true,
        (Some((_, &Op::Binary(BinaryOp::Mul, a, f))), Some((_, &Op::Binary(BinaryOp::Mul, b, g)))) => {
            let factor = if a == scores { f } else { a };
            (a == scores || f == scores) && (is_same(factor, g) || is_same(factor, b))
        }
        _ => false,
    };
    match kernel.def(summed).map(|(_, op)| op) {
        Some(&Op::Unary(UnaryOp::Exp2 | UnaryOp::Exp, x)) => match kernel.def(x) {
            Some((_, &Op::Binary(BinaryOp::Sub, a, b))) => is_of_scores(a, b),
            // `(a - b) * log2 e`, where the difference is made first.
            Some((_, &Op::Binary(BinaryOp::Mul, a, _))) => {
                matches!(kernel.def(a), Some((_, &Op::Binary(BinaryOp::Sub, a, _))) if a == scores)
            }
            _ => false,
        },
        Some(&Op::Cast(_, x)) => shows_overflow(kernel, x, scores),
        Some(&Op::Mask { x, fill: Fill::Zero, .. }) => alone(x),
        Some(&Op::Binary(BinaryOp::Mul, a, b)) => {
            (alone(a) && is_not_negative(kernel, b)) || (alone(b) && is_not_negative(kernel, a))
        }
        _ => false,
    }
}

/// Whether no element of a value is negative, whatever the tensors hold.
fn is_not_negative(kernel: &Kernel, v: ValueId) -> bool {
    let is = |v: ValueId| is_not_negative(kernel, v);
    match kernel.def(v).map(|(_, op)| op) {
        Some(Op::Constant(_, x)) => *x >= 0.0,
        Some(Op::Unary(UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Abs | UnaryOp::Sqrt | UnaryOp::Rsqrt, _)) => true,
        Some(&(Op::Full { value: x, .. } | Op::Cast(_, x) | Op::Reduce(_, x) | Op::Transpose(x))) => is(x),
        Some(&Op::Binary(BinaryOp::Max, a, b)) => is(a) || is(b),
        Some(&Op::Binary(BinaryOp::Mul, a, b)) => a == b || (is(a) && is(b)),
        Some(&Op::Binary(BinaryOp::Add | BinaryOp::Div | BinaryOp::Min, a, b)) => is(a) && is(b),
        Some(&Op::Select { on_true, on_false, .. }) => is(on_true) && is(on_false),
        Some(&Op::Mask { x, fill: Fill::Zero, .. }) => is(x),
        Some(Op::Compare(..)) => true,
        _ => false,
    }
}

/// Why no loop of the normalised kernel can take exponentials against an old reference and look at
/// their sum.
pub(crate) fn why_not_optimistic(instance: &Instance, normal: &Kernel) -> Option<String> {
    let lazy = |(_, op): (_, OpId)| match normal.ops[op].op {
        Op::For { body, .. } => recurrence(instance, normal, op, body),
        _ => None,
    };
    let without_sum = normal.walk().into_iter().filter_map(lazy).any(|r| r.sum.is_none());
    without_sum.then(|| "no row sum shows each overflow: sums of exponentials of the scores themselves do".to_owned())
}

/// The way from the next maximum to the exponentials that the row sum is of, if these are all and
/// nothing else is made of the reference but the factor.
fn unseen(kernel: &Kernel, next: ValueId, sum: OpId, exponentials: &[OpId], section: &[OpId]) -> Option<Unseen> {
    let Op::Reduce(_, summed) = kernel.ops[sum].op else { return None };
    let is_exponential = |op: &Op| matches!(op, Op::Unary(UnaryOp::Exp2 | UnaryOp::Exp, x) if kernel.tile(*x).rank() == 2);
    if exponentials.iter().filter(|&&op| is_exponential(&kernel.ops[op].op)).count() != 1 {
        return None;
    }
    let (_, &Op::Unary(UnaryOp::Exp2 | UnaryOp::Exp, exponent)) = kernel.def(summed)? else { return None };
    let (below, &Op::Binary(BinaryOp::Sub, _, reference)) = kernel.def(exponent)? else { return None };
    let of_next = |v: ValueId| kernel.def(v).filter(|(_, op)| **op == Op::Unary(UnaryOp::VisibleOrZero, next)).map(|(op, _)| op);
    let found = match (of_next(reference), kernel.def(reference)?) {
        (Some(visible), _) => Unseen { visible, scaled: None },
        (None, (last, &Op::Binary(BinaryOp::Mul, a, b))) => {
            Unseen { visible: of_next(a).or_else(|| of_next(b))?, scaled: Some(last) }
        }
        _ => return None,
    };
    let alone = |of: OpId| edit::users(kernel, kernel.ops[of].results[0]).iter().all(|op| *op == below || section.contains(op));
    [Some(found.visible), found.scaled].into_iter().flatten().all(alone).then_some(found)
}

/// Elementwise ops and row sums that depend on the reference and on nothing that a product gives,
/// and the loads that these need and that stand behind the row maximum, with what addresses them.
fn exponential_ops(
    kernel: &Kernel,
    ops: &[OpId],
    on_next: &HashSet<ValueId>,
    section: &[OpId],
    rescales: &[(ValueId, OpId)],
) -> (Vec<OpId>, Vec<OpId>) {
    let start = ops.iter().position(|&op| matches!(kernel.ops[op].op, Op::Reduce(ReduceOp::Max, _))).unwrap_or(0);
    let mut late: HashSet<ValueId> = rescales.iter().flat_map(|&(_, op)| kernel.ops[op].results.clone()).collect();
    let mut found = Vec::new();
    for (index, &op) in ops.iter().enumerate() {
        let data = &kernel.ops[op];
        let operands = data.op.operands();
        let elementwise =
            data.op.is_arithmetic() || matches!(data.op, Op::Gather { .. } | Op::Reduce(ReduceOp::Sum, _) | Op::Constant(..));
        // What a product or a loop gives, or a tensor that is written, is there at its place in the
        // text and not before.
        if index > start && (stays(kernel, op) || operands.iter().any(|v| late.contains(v))) {
            late.extend(&data.results);
            continue;
        }
        if operands.iter().any(|v| late.contains(v)) || !elementwise {
            late.extend(data.results.iter().filter(|r| on_next.contains(r)));
            continue;
        }
        if data.results.iter().any(|r| on_next.contains(r)) && !section.contains(&op) && !rescales.iter().any(|&(_, o)| o == op) {
            found.push(op);
        }
    }
    // With what stands after the row maximum in the text and enters them.
    let mut needed: HashSet<ValueId> = found.iter().flat_map(|&op| kernel.ops[op].op.operands()).collect();
    let mut addressed: HashSet<ValueId> = HashSet::new();
    let (mut all, mut fetched) = (Vec::new(), Vec::new());
    for (index, &op) in ops.iter().enumerate().rev() {
        let data = &kernel.ops[op];
        let feeds = |values: &HashSet<ValueId>| data.results.iter().any(|r| values.contains(r));
        let behind = index > start && !section.contains(&op);
        if behind && (feeds(&addressed) || (feeds(&needed) && matches!(data.op, Op::Load { .. }))) {
            addressed.extend(data.op.operands());
            fetched.insert(0, op);
        } else if found.contains(&op) || (behind && feeds(&needed)) {
            needed.extend(data.op.operands());
            all.insert(0, op);
        }
    }
    (all, fetched)
}

/// Whether an op cannot be made before those in front of it.
fn stays(kernel: &Kernel, op: OpId) -> bool {
    match kernel.ops[op].op {
        Op::Load { tensor, .. } => kernel.tensor(tensor).direction.is_written(),
        Op::Dot { .. } | Op::For { .. } => true,
        _ => false,
    }
}
