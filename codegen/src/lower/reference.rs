//! The reference of exponentials in a step with a lazy maximum: when it moves, how far, and what the
//! step makes of it. [`super::running_max`] says which loops may have one, and why.

use std::collections::HashSet;

use flashtile_dsl::ir::{BinaryOp, Elem, Kernel, Op, OpId, ReduceOp, UnaryOp, ValueId};

use super::context::{Home, Lowering};
use super::running_max::Recurrence;
use crate::error::Error;
use crate::plan::{Expr, Function, Guard, Operator, Prefix, Reduction, Stmt, StmtOp, Storage, VarId, Variable, Voters};
use crate::rewrite::edit;
use crate::schedule::{Overlap, RunningMax};

/// The farthest that a reference is put above scores.
const FARTHEST: f64 = 1e30;

/// log2 of the largest exponential of bf16 and f32, and of f16, whose largest number is just below
/// 2^16.
const ROOM: f64 = 64.0;
const F16_ROOM: f64 = 15.0;
/// log2 of what a number that is one for the whole launch is taken to be at most, such as that of
/// dropout, which makes up for what is left out.
const NUMBER: f64 = 7.0;

/// What exponentials are multiplied by.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Factor {
    /// 2 to the power of this, at most.
    AtMost(f64),
    /// By elements of a tensor, positions and the like.
    Unknown,
}

/// What exponentials are multiplied by in a value; `None` if it has none.
fn factor(kernel: &Kernel, value: ValueId) -> Option<Factor> {
    let (_, op) = kernel.def(value)?;
    let of = |v: &ValueId| factor(kernel, *v);
    match op {
        Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, _) => Some(Factor::AtMost(0.0)),
        Op::Unary(UnaryOp::Neg | UnaryOp::Abs, x) | Op::Cast(_, x) | Op::Mask { x, .. } => of(x),
        Op::Select { on_true, on_false, .. } => match (of(on_true), of(on_false)) {
            (Some(by), None) if is_constant(kernel, *on_false) => Some(by),
            (None, Some(by)) if is_constant(kernel, *on_true) => Some(by),
            (None, None) => None,
            _ => Some(Factor::Unknown),
        },
        Op::Binary(BinaryOp::Mul, a, b) => match (of(a), of(b)) {
            (None, None) => None,
            (Some(by), None) => Some(times(kernel, by, *b)),
            (None, Some(by)) => Some(times(kernel, by, *a)),
            _ => Some(Factor::Unknown),
        },
        op if op.is_elementwise() => op.operands().iter().any(|v| of(v).is_some()).then_some(Factor::Unknown),
        _ => None,
    }
}

/// A factor and another value, which has no exponential.
fn times(kernel: &Kernel, by: Factor, other: ValueId) -> Factor {
    match (by, kernel.def(other)) {
        (Factor::AtMost(bits), Some((_, Op::Constant(_, c)))) => Factor::AtMost(bits + c.abs().log2().max(0.0)),
        (Factor::AtMost(bits), _) if kernel.tile(other).rank() == 0 => Factor::AtMost(bits + NUMBER),
        _ => Factor::Unknown,
    }
}

/// Whether a value is a constant, which is no larger for another reference.
fn is_constant(kernel: &Kernel, value: ValueId) -> bool {
    match kernel.def(value) {
        Some((_, Op::Constant(..))) => true,
        Some((_, Op::Full { value, .. } | Op::Cast(_, value))) => is_constant(kernel, *value),
        _ => false,
    }
}

impl Lowering<'_> {
    /// What exponentials are multiplied by at most before they are rounded to a type, each of the
    /// conversions to it; a conversion of anything else does not count.
    fn rounded_to<'a>(&'a self, r: &'a Recurrence, asked: Elem) -> impl Iterator<Item = Factor> + 'a {
        r.exponentials.iter().filter_map(move |&op| match self.kernel.ops[op].op {
            Op::Cast(elem, x) if self.instance.binding.elem(self.kernel, elem) == asked => factor(self.kernel, x),
            _ => None,
        })
    }

    /// log2 of how far exponentials may exceed 1: as far as what they are rounded to holds.
    fn room(&self, r: &Recurrence) -> f64 {
        let of_f16 = self.rounded_to(r, Elem::F16).map(|by| match by {
            Factor::AtMost(bits) => (F16_ROOM - bits).max(0.0),
            Factor::Unknown => 0.0,
        });
        of_f16.fold(ROOM, f64::min)
    }

    /// Refuses a form that lets sums of exponentials exceed 1, where what is rounded to f16 may not.
    fn needs_room(&self, r: &Recurrence, form: &str) -> Result<(), Error> {
        if self.room(r) > 0.0 {
            return Ok(());
        }
        let what =
            format!("running_max={form} of exponentials that are multiplied by other numbers before they are rounded to f16");
        Err(Error::unsupported(what, "set running_max=max_first, or multiply what is rounded", self.span))
    }

    /// log2 of how far exponentials may stay below 1 when the reference is new.
    fn headroom(&self, r: &Recurrence) -> f64 {
        if self.rounded_to(r, Elem::Bf16).next().is_some() && self.room(r) >= ROOM { 16.0 } else { 0.0 }
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

    /// Lowers the step's maximum, rescaling and (if optimistic) exponentials, where the row maximum
    /// stands in the text.
    pub(super) fn lower_lazy(&mut self, r: &Recurrence) -> Result<(), Error> {
        let Some(&Home::Variable(m)) = self.homes.get(&r.maximum) else { unreachable!("carried values have variables") };
        match self.running_max {
            RunningMax::First => {
                self.needs_room(r, "first")?;
                self.reference_from(r, m)
            }
            RunningMax::Exact => unreachable!("exact maxima are lowered as written"),
            RunningMax::MaxFirst => self.lower_max_first(r, m),
            RunningMax::Optimistic => {
                self.needs_room(r, "optimistic")?;
                self.lower_optimistic(r, m)
            }
        }
    }

    /// Exponentials against the reference, once no score leaves the room.
    fn lower_max_first(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        if self.compares_integers() {
            let bound = self.lane_bound(r)?;
            let within = self.within_room(r, bound)?;
            let beyond = self.unless(r, m, within);
            let narrower = self.collect(|this| {
                this.maximum_from_bound(r, m, bound)?;
                this.vote_on_maximum(r, m, bound)
            })?;
            self.vote(Voters::Warp, beyond, m, narrower);
        } else {
            let lane = self.lane_maximum(r)?;
            self.vote_on_maximum(r, m, lane)?;
        }
        self.rescale_late();
        self.reference_from(r, m)
    }

    /// Moves the reference if the maximum of some lane leaves the room. What has seen nothing and
    /// sees nothing asks for no reference.
    fn vote_on_maximum(&mut self, r: &Recurrence, m: VarId, lane: VarId) -> Result<(), Error> {
        let hidden = Expr::infix(Operator::Eq, self.element(lane), Expr::Float(f64::NEG_INFINITY));
        let within = Expr::infix(Operator::Or, self.within_room(r, lane)?, hidden);
        let beyond = self.unless(r, m, within);
        let body = self.collect(|this| {
            if this.schedule.column_groups == 1 {
                this.push(StmtOp::QuadMax(lane));
            }
            this.move_reference(r, m, lane)
        })?;
        self.vote(Voters::Warp, beyond, m, body);
        Ok(())
    }

    /// Exponentials against the old reference at once, and the step made again if their sum is too
    /// large. Column groups stage what they have made for the product that reads it, and vote
    /// together: the barrier of the vote is the one that the product waits for.
    fn lower_optimistic(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        // Once, however often the step is made.
        for &op in &r.fetched {
            self.op(op)?;
        }
        self.reference_or_least(r, m)?;
        for &op in &r.exponentials {
            self.op(op)?;
        }
        let Some(sum) = r.sum else {
            let what = "running_max=optimistic of exponentials of which no row sum shows an overflow";
            return Err(Error::unsupported(what, "set running_max=max_first", self.span));
        };
        let sum = self.kernel.ops[sum].results[0];
        let limit = Expr::infix(Operator::Le, self.expr(sum)?, Expr::Float(2f64.powf(self.room(r))));
        let right = match r.unseen {
            Some(_) => limit,
            None => {
                let known = Expr::infix(Operator::Gt, self.element(m), Expr::Float(f64::NEG_INFINITY));
                Expr::infix(Operator::And, limit, known)
            }
        };
        let wrong = self.unless(r, m, right);
        // The step made again writes the same variables.
        for &op in &r.exponentials {
            for &result in &self.kernel.ops[op].results {
                if let Some(&Home::Variable(v)) = self.homes.get(&result) {
                    self.forced.insert(result, v);
                }
            }
        }
        let staged = self.staged_between_groups(&r.exponentials);
        let body = self.collect(|this| {
            let lane = match this.compares_integers() {
                true => {
                    let bound = this.lane_bound(r)?;
                    this.maximum_from_bound(r, m, bound)?;
                    bound
                }
                false => this.lane_maximum(r)?,
            };
            if this.schedule.column_groups == 1 {
                this.push(StmtOp::QuadMax(lane));
            }
            this.move_reference(r, m, lane)?;
            this.reference_from(r, m)?;
            r.exponentials.iter().try_for_each(|&op| this.op(op))?;
            staged.iter().for_each(|staged| this.push(staged.statement()));
            if !staged.is_empty() {
                this.push(StmtOp::Barrier);
            }
            Ok(())
        })?;
        let voters = if self.schedule.column_groups == 1 { Voters::Warp } else { Voters::Role };
        self.vote(voters, wrong, m, body);
        staged.iter().for_each(|staged| self.is_staged(staged));
        self.rescale_late();
        self.reference_from(r, m)
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

    /// A branch that voters take if the condition holds in some lane of them. What is rescaled by then
    /// may be in flight, if products overlap: such accumulators are rescaled in a branch of their own
    /// ([`Self::rescale_late`]).
    fn vote(&mut self, of: Voters, condition: Expr, m: VarId, body: Vec<Stmt>) {
        let m_tiles = self.plan.variables[m].m_tiles;
        let flag = (!self.late_rescales.is_empty()).then(|| self.flag());
        let guard = Guard::Vote { condition, m_tiles, flag, of };
        self.push(StmtOp::When { guard, body, otherwise: Vec::new() });
    }

    /// Rescales what was put off, where the last vote moved the reference.
    fn rescale_late(&mut self) {
        let late = std::mem::take(&mut self.late_rescales);
        if !late.is_empty() {
            let guard = Guard::Flag(self.flag());
            self.push(StmtOp::When { guard, body: late, otherwise: Vec::new() });
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

    /// Whether a lane compares its scores as integers first: what has `wgmma` compares three at once.
    /// Warps that share a row compare what they have found together.
    fn compares_integers(&self) -> bool {
        self.schedule.tensor_op.is_asynchronous() && self.schedule.column_groups == 1
    }

    /// What no score of the lane exceeds. It is written where the maximum itself is written later.
    fn lane_bound(&mut self, r: &Recurrence) -> Result<VarId, Error> {
        let to = self.reduce_scores(r, Reduction::Bound, false)?;
        self.forced.insert(self.kernel.ops[r.row_maximum].results[0], to);
        Ok(to)
    }

    /// Makes the maximum of a bound, which is the maximum where it exceeds 0.
    fn maximum_from_bound(&mut self, r: &Recurrence, m: VarId, bound: VarId) -> Result<(), Error> {
        let unknown = Expr::prefix(Prefix::Not, Expr::infix(Operator::Gt, self.element(bound), Expr::Float(0.0)));
        let maximum = self.collect(|this| this.lane_maximum(r).map(drop))?;
        self.vote(Voters::Warp, unknown, m, maximum);
        Ok(())
    }

    /// The row maximum of the scores, each lane its own part. With column groups it is that of the
    /// whole row, so that the warps that have a row vote alike.
    fn lane_maximum(&mut self, r: &Recurrence) -> Result<VarId, Error> {
        let to = self.reduce_scores(r, Reduction::Max, self.schedule.column_groups > 1)?;
        self.merge_groups(to, ReduceOp::Max);
        self.homes.insert(self.kernel.ops[r.row_maximum].results[0], Home::Variable(to));
        Ok(to)
    }

    /// A reduction of the scores of a step, where their row maximum is written.
    fn reduce_scores(&mut self, r: &Recurrence, operation: Reduction, across_quad: bool) -> Result<VarId, Error> {
        let Op::Reduce(_, x) = self.kernel.ops[r.row_maximum].op else { unreachable!("a row maximum") };
        let from = self.variable(x)?;
        let to = self.destination(self.kernel.ops[r.row_maximum].results[0]);
        self.push(StmtOp::Reduce { to, from, operation, across_quad });
        Ok(to)
    }

    /// Whether exponentials stay within the room, were `largest` the largest score.
    fn within_room(&mut self, r: &Recurrence, largest: VarId) -> Result<Expr, Error> {
        // The exponent of the factor, were that the new reference.
        let exponent = self.exponent_against(r, largest)?;
        Ok(Expr::infix(Operator::Ge, exponent, Expr::Float(-self.room(r))))
    }

    /// Unless a condition holds, and the reference is not +inf.
    fn unless(&self, r: &Recurrence, m: VarId, right: Expr) -> Expr {
        let finite = r.starts_anywhere.then(|| Expr::infix(Operator::Lt, self.element(m), Expr::Float(f64::INFINITY)));
        let right = match finite {
            Some(finite) => Expr::infix(Operator::And, right, finite),
            None => right,
        };
        Expr::prefix(Prefix::Not, right)
    }

    /// Puts a row maximum as far above the scores as the headroom says.
    pub(super) fn raise(&mut self, r: &Recurrence, maximum: VarId) -> Result<(), Error> {
        let bits = self.headroom(r);
        if bits == 0.0 {
            return Ok(());
        }
        let Some(per_unit) = self.exponent_per_unit(r)? else { return Ok(()) };
        let headroom = match per_unit {
            Expr::Float(each) if each > 0.0 => Expr::Float(bits / each),
            // Where scores do not count, any finite reference is right.
            each => {
                let headroom = Expr::call(Function::DivFull, [Expr::Float(bits), each]);
                let least = Expr::call(Function::Max, [headroom, Expr::Float(0.0)]);
                Expr::call(Function::Min, [least, Expr::Float(FARTHEST)])
            }
        };
        let value = Expr::infix(Operator::Add, self.element(maximum), headroom);
        self.push(StmtOp::Map { to: maximum, value });
        Ok(())
    }

    /// How much the base-2 exponent of the factor changes with the reference, if that is one number.
    fn exponent_per_unit(&self, r: &Recurrence) -> Result<Option<Expr>, Error> {
        let kernel = self.kernel;
        let Some((_, &Op::Binary(BinaryOp::Sub, from, _))) = kernel.def(r.exponent) else { return Ok(None) };
        let scale = match kernel.def(from) {
            None if from == r.maximum => Expr::Float(1.0),
            Some((_, &Op::Binary(BinaryOp::Mul, a, b))) => match (a == r.maximum, b == r.maximum) {
                (true, false) if kernel.tile(b).rank() == 0 => self.expr(b)?,
                (false, true) if kernel.tile(a).rank() == 0 => self.expr(a)?,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let natural = edit::users(kernel, r.exponent).iter().any(|&op| matches!(kernel.ops[op].op, Op::Unary(UnaryOp::Exp, _)));
        Ok(Some(match (natural, scale) {
            (false, scale) => scale,
            (true, Expr::Float(scale)) => Expr::Float(scale * std::f64::consts::LOG2_E),
            (true, scale) => Expr::infix(Operator::Mul, scale, Expr::Float(std::f64::consts::LOG2_E)),
        }))
    }

    /// The exponent of the factor with `reference` as the next maximum.
    fn exponent_against(&mut self, r: &Recurrence, reference: VarId) -> Result<Expr, Error> {
        let homes = self.homes.clone();
        self.homes.insert(r.next, Home::Variable(reference));
        let statements = self.collect(|this| {
            for &op in &r.section {
                let data = &this.kernel.ops[op];
                // What lies between the maximum and the exponent, as expressions. `visible_or_zero` is
                // for rows that saw nothing, which move the reference anyway.
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

    /// Moves the reference to a new row maximum: the next maximum, the factor, the rescaled values.
    fn move_reference(&mut self, r: &Recurrence, m: VarId, maximum: VarId) -> Result<(), Error> {
        self.raise(r, maximum)?;
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

    /// [`Self::reference_from`], but the least float is the reference of rows that have seen nothing,
    /// where the sum of their exponentials shows what they see.
    fn reference_or_least(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        let Some(unseen) = r.unseen else { return self.reference_from(r, m) };
        self.stand_for_rescaled(r, m);
        let result = |op: OpId| self.kernel.ops[op].results[0];
        let (visible, last) = (result(unseen.visible), result(unseen.scaled.unwrap_or(unseen.visible)));
        self.homes.insert(visible, Home::Variable(m));
        let reference = match unseen.scaled {
            Some(scaled) => self.elementwise_expr(scaled)?,
            None => self.element(m),
        };
        let to = self.destination(last);
        self.push(StmtOp::Map { to, value: Expr::call(Function::Max, [reference, Expr::Float(f64::from(f32::MIN))]) });
        self.homes.insert(last, Home::Variable(to));
        Ok(())
    }

    /// Makes the carried maximum the reference of what follows, and carried values stand for their
    /// rescaled ones.
    fn reference_from(&mut self, r: &Recurrence, m: VarId) -> Result<(), Error> {
        self.stand_for_rescaled(r, m);
        // Ops of the section that exponentials need as well, and that the carried maximum alone does
        // not enter.
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

    /// Carried values stand for their rescaled ones, the carried maximum for the next.
    fn stand_for_rescaled(&mut self, r: &Recurrence, m: VarId) {
        self.homes.insert(r.next, Home::Variable(m));
        for &(x, op) in &r.rescales {
            let home = self.homes[&x].clone();
            self.homes.insert(self.kernel.ops[op].results[0], home);
        }
    }
}
