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
//! Licence: [`Streaming`] recognises the recurrence; what is made of the carried values after the loop must be the same for every
//! reference, such as quotients of each other and `m + ln(l)` ([`is_seen`]), or, where the loop walks a part of its tiles, they are
//! stored as the state that they are. The reference may start from any value, such as an attention sink. One that may start as +inf
//! is tested in every step, because the text makes NaN of the carried values then. Room: 2^64 where P is bf16 or f32 (its products and sums stay finite for |V| below 2^46), 2^15 for f16.

use std::collections::HashSet;

use flashtile_dsl::analysis::streaming::{Form, Streaming, constant_fill};
use flashtile_dsl::ir::{BinaryOp, BlockId, Elem, Kernel, Op, OpId, ReduceOp, UnaryOp, ValueId};

use super::context::{Home, Lowering};
use super::seen::is_seen;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{Expr, Function, Guard, Operator, Prefix, Stmt, StmtOp, Storage, VarId, Variable};
use crate::rewrite::edit;
use crate::schedule::{Overlap, RunningMax};

/// A loop whose maximum may be lazy, in terms of the normalised kernel.
#[derive(Clone, Debug)]
pub(super) struct Recurrence {
    /// Carried maximum.
    maximum: ValueId,
    /// `rowmax` of the scores of a step.
    row_maximum: OpId,
    /// The next maximum.
    next: ValueId,
    /// Ops from the next maximum to the factor, in order, the `max` itself included.
    section: Vec<OpId>,
    /// `x * factor` for every rescaled carried value `x`.
    rescales: Vec<(ValueId, OpId)>,
    /// Argument of the exponential that is the factor.
    exponent: ValueId,
    /// Ops that take exponentials against the reference, sum and round them, in order.
    exponentials: Vec<OpId>,
    /// Loads that stand behind the row maximum in the text and enter these, with what addresses
    /// them, in order.
    fetched: Vec<OpId>,
    /// The row sum that shows an overflow.
    sum: OpId,
    /// Whether the maximum starts from a value that may be +inf.
    starts_anywhere: bool,
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
    match is_seen(kernel, id, &streaming) {
        true => Err(Some("something after the loop sees the maximum itself, not only quotients and m + ln(l)".into())),
        false => Ok(()),
    }
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
    let depends = |roots: &[ValueId]| {
        let mut found: HashSet<ValueId> = roots.iter().copied().collect();
        for &op in ops {
            if kernel.ops[op].op.operands().iter().any(|v| found.contains(v)) {
                found.extend(&kernel.ops[op].results);
            }
        }
        found
    };
    let on_next = depends(&[next]);
    // The factor: an exponential of what only the maxima and uniform values enter.
    let row_only = |v: ValueId| kernel.tile(v).rank() <= 1;
    let factor_op = ops.iter().copied().find(
        |&op| matches!(kernel.ops[op].op, Op::Unary(UnaryOp::Exp2 | UnaryOp::Exp, x) if on_next.contains(&x) && row_only(x)),
    )?;
    let (factor, exponent) = (kernel.ops[factor_op].results[0], *kernel.ops[factor_op].op.operands().first()?);
    let mut needed: HashSet<ValueId> = HashSet::from([factor]);
    let mut section: Vec<OpId> = Vec::new();
    for &op in ops.iter().rev() {
        let result = kernel.ops[op].results.first();
        if op != row_maximum && result.is_some_and(|r| needed.contains(r) && row_only(*r)) {
            needed.extend(kernel.ops[op].op.operands());
            section.insert(0, op);
        }
    }
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
    let sum = exponentials.iter().copied().find(|&op| matches!(kernel.ops[op].op, Op::Reduce(ReduceOp::Sum, _)))?;
    let Op::For { init, .. } = &kernel.ops[id].op else { unreachable!("a loop") };
    let start = params.iter().position(|&p| p == maximum).and_then(|slot| constant_fill(kernel, init[slot]));
    let starts_anywhere = start.is_none_or(|m| m == f64::INFINITY);
    Some(Recurrence { maximum, row_maximum, next, section, rescales, exponent, exponentials, fetched, sum, starts_anywhere })
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

impl Lowering<'_> {
    /// log2 of how far exponentials may exceed 1: as far as what they are rounded to holds.
    fn room(&self, r: &Recurrence) -> f64 {
        let f16 = r.exponentials.iter().any(|&op| match self.kernel.ops[op].op {
            Op::Cast(elem, _) => self.instance.binding.elem(self.kernel, elem) == Elem::F16,
            _ => false,
        });
        if f16 { 15.0 } else { 64.0 }
    }

    /// The ops that a lazy maximum takes over, so that the walk over the body skips them.
    pub(super) fn lazy_ops(&self, r: &Recurrence) -> HashSet<OpId> {
        let mut ops: HashSet<OpId> = r.section.iter().copied().collect();
        ops.extend(r.rescales.iter().map(|&(_, op)| op));
        ops.insert(r.row_maximum);
        if self.running_max == RunningMax::Optimistic {
            ops.extend(r.exponentials.iter().chain(&r.fetched));
        }
        ops
    }

    /// Lowers the step's maximum, rescaling and (if optimistic) exponentials, where the row maximum stands in the text.
    pub(super) fn lower_lazy(&mut self, r: &Recurrence) -> Result<(), Error> {
        let Some(&Home::Variable(m)) = self.homes.get(&r.maximum) else { unreachable!("carried values have variables") };
        match self.running_max {
            RunningMax::First => self.reference_from(r, m),
            RunningMax::Exact => unreachable!("exact maxima are lowered as written"),
            RunningMax::MaxFirst => {
                let lane = self.lane_maximum(r)?;
                // The exponent of the factor, were the lane's maximum the new reference.
                let condition = self.exponent_against(r, lane)?;
                let mut within = Expr::infix(Operator::Ge, condition, Expr::Float(-self.room(r)));
                if r.starts_anywhere {
                    within = Expr::infix(
                        Operator::And,
                        within,
                        Expr::infix(Operator::Lt, self.element(m), Expr::Float(f64::INFINITY)),
                    );
                }
                let condition = Expr::prefix(Prefix::Not, within);
                let body = self.collect(|this| {
                    if this.schedule.column_groups == 1 {
                        this.push(StmtOp::QuadMax(lane));
                    }
                    this.move_reference(r, m)
                })?;
                self.vote(condition, m, body);
                self.reference_from(r, m)
            }
            RunningMax::Optimistic => {
                // Once, however often the step is made.
                for &op in &r.fetched {
                    self.op(op)?;
                }
                self.reference_from(r, m)?;
                for &op in &r.exponentials {
                    self.op(op)?;
                }
                let sum = self.kernel.ops[r.sum].results[0];
                let limit = Expr::infix(Operator::Le, self.expr(sum)?, Expr::Float(2f64.powf(self.room(r))));
                let known = if r.starts_anywhere {
                    let magnitude = Expr::call(Function::Abs, [self.element(m)]);
                    Expr::infix(Operator::Lt, magnitude, Expr::Float(f64::INFINITY))
                } else {
                    Expr::infix(Operator::Gt, self.element(m), Expr::Float(f64::NEG_INFINITY))
                };
                let condition = Expr::prefix(Prefix::Not, Expr::infix(Operator::And, limit, known));
                // The step made again writes the same variables.
                for &op in &r.exponentials {
                    for &result in &self.kernel.ops[op].results {
                        if let Some(&Home::Variable(v)) = self.homes.get(&result) {
                            self.forced.insert(result, v);
                        }
                    }
                }
                let body = self.collect(|this| {
                    let lane = this.lane_maximum(r)?;
                    this.push(StmtOp::QuadMax(lane));
                    this.move_reference(r, m)?;
                    this.reference_from(r, m)?;
                    r.exponentials.iter().try_for_each(|&op| this.op(op))
                })?;
                self.vote(condition, m, body);
                self.reference_from(r, m)
            }
        }
    }

    /// Has the program made again if a sum that the loop has carried is too large, or the reference
    /// unknown: the end of [`RunningMax::First`]. Sums are those of a lane.
    pub(super) fn make_again_unless_right(&mut self, r: &Recurrence) -> Result<(), Error> {
        let Some(&Home::Variable(m)) = self.homes.get(&r.maximum) else { unreachable!("carried values have variables") };
        let magnitude = |of: Expr| Expr::call(Function::Abs, [of]);
        let mut right = Expr::infix(Operator::Lt, magnitude(self.element(m)), Expr::Float(f64::INFINITY));
        for (x, _) in r.rescales.iter().filter(|&&(x, _)| self.kernel.tile(x).rank() <= 1) {
            let limit = Expr::Float(2f64.powf(self.room(r)));
            right = Expr::infix(Operator::And, right, Expr::infix(Operator::Le, magnitude(self.expr(*x)?), limit));
        }
        let m_tiles = self.plan.variables[m].m_tiles;
        self.push(StmtOp::MakeAgain { condition: Expr::prefix(Prefix::Not, right), m_tiles });
        Ok(())
    }

    /// A branch that a warp takes if the condition holds in some lane. What is rescaled by then may be in flight, if products
    /// overlap: such accumulators are rescaled in a branch of their own, which may be put off.
    fn vote(&mut self, condition: Expr, m: VarId, body: Vec<Stmt>) {
        let m_tiles = self.plan.variables[m].m_tiles;
        let late = std::mem::take(&mut self.late_rescales);
        let flag = (!late.is_empty()).then(|| self.flag());
        self.push(StmtOp::When { guard: Guard::Vote { condition, m_tiles, flag }, body, otherwise: Vec::new() });
        if let Some(flag) = flag {
            self.push(StmtOp::When { guard: Guard::Flag(flag), body: late, otherwise: Vec::new() });
        }
    }

    fn flag(&mut self) -> VarId {
        if let Some(v) = self.plan.variables.iter().position(|v| v.storage == Storage::Flag) {
            return v;
        }
        let name = self.unique("moved");
        self.plan.variables.push(Variable {
            name,
            storage: Storage::Flag,
            m_tiles: 1,
            n_tiles: 1,
            across: None,
            integer: true,
            bits: false,
        });
        self.plan.variables.len() - 1
    }

    /// The row maximum of the scores, each lane its own part. With column groups it is that of the
    /// whole row, so that the warps that have a row vote alike.
    fn lane_maximum(&mut self, r: &Recurrence) -> Result<VarId, Error> {
        let Op::Reduce(_, x) = self.kernel.ops[r.row_maximum].op else { unreachable!("a row maximum") };
        let result = self.kernel.ops[r.row_maximum].results[0];
        let from = self.variable(x)?;
        let to = self.destination(result);
        let whole = self.schedule.column_groups > 1;
        self.push(StmtOp::Reduce { to, from, operation: ReduceOp::Max, across_quad: whole });
        self.merge_groups(to, ReduceOp::Max);
        self.homes.insert(result, Home::Variable(to));
        Ok(to)
    }

    /// The exponent of the factor with `reference` as the next maximum.
    fn exponent_against(&mut self, r: &Recurrence, reference: VarId) -> Result<Expr, Error> {
        let homes = self.homes.clone();
        self.homes.insert(r.next, Home::Variable(reference));
        let statements = self.collect(|this| {
            for &op in &r.section {
                let data = &this.kernel.ops[op];
                // What lies between the maximum and the exponent, as expressions; `visible_or_zero` is for rows that saw nothing,
                // which move the reference anyway.
                if data.results[0] == r.next {
                    continue;
                }
                let value = match data.op {
                    Op::Unary(UnaryOp::VisibleOrZero, x) => this.expr(x)?,
                    _ => this.elementwise_expr(op)?,
                };
                this.homes.insert(data.results[0], Home::Inline(value));
            }
            Ok(())
        })?;
        debug_assert!(statements.is_empty());
        let exponent = self.expr(r.exponent);
        self.homes = homes;
        exponent
    }

    /// Moves the reference: the next maximum, the factor, the rescaled values.
    fn move_reference(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        for &op in &r.section {
            self.op(op)?;
        }
        for &(x, op) in &r.rescales {
            let Some(&Home::Variable(v)) = self.homes.get(&x) else { unreachable!("carried values have variables") };
            let accumulator = self.kernel.tile(x).rank() == 2;
            if accumulator && self.schedule.overlap != Overlap::Off {
                for factor in self.kernel.ops[op].op.operands().into_iter().filter(|&o| o != x) {
                    self.variable(factor)?;
                }
            }
            let value = self.elementwise_expr(op)?;
            let rescale = StmtOp::Map { to: v, value };
            if accumulator && self.schedule.overlap != Overlap::Off {
                self.late_rescales.push(Stmt::new(rescale, self.span));
            } else {
                self.push(rescale);
            }
        }
        let value = self.expr(r.next)?;
        self.push(StmtOp::Map { to: m, value });
        Ok(())
    }

    /// Makes the carried maximum the reference of what follows, and carried values stand for their rescaled ones.
    fn reference_from(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        self.homes.insert(r.next, Home::Variable(m));
        for &(x, op) in &r.rescales {
            let home = self.homes[&x].clone();
            self.homes.insert(self.kernel.ops[op].results[0], home);
        }
        // Ops of the section that exponentials need as well, and that the carried maximum alone does not enter.
        let mut on_old: HashSet<ValueId> = HashSet::from([r.maximum]);
        for &op in &r.section {
            let data = &self.kernel.ops[op];
            if data.results[0] == r.next {
                continue;
            }
            if data.op.operands().iter().any(|v| on_old.contains(v)) {
                on_old.extend(&data.results);
                continue;
            }
            self.op(op)?;
        }
        Ok(())
    }
}
