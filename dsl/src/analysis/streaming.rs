//! Recognises streaming reductions: loops whose carried state may be computed over parts of the axis and combined.
//!
//! Three forms of carried values are recognised, structurally:
//!
//! * a running maximum: `m <- max(m, rowmax(x))`, where `x` does not depend on carried values;
//! * a sum: `x <- x + f`, where `f` does not depend on carried values;
//! * a rescaled sum: `x <- x * exp(m - r) + f`, where `m` is a running maximum, `r` its next value (or
//!   `visible_or_zero` of that), and `f` is homogeneous of degree 1 in `exp(-r)`: products of `exp(y - r)` with what does not
//!   depend on carried values, their sums, row sums and casts. (A cast to 16 bits rounds; the scaling is by a power of the
//!   base, and the result is the same up to that rounding.)
//!
//! A loop that only hands its values on to a loop within, and gets them back from it, has the forms
//! of that one: pages and the positions of each are one reduction.
//!
//! A loop of such values alone, without stores, is an associative reduction: two partial states combine as [`Streaming::combine`]
//! says, in any grouping. It licenses splits of the sequence, conditional rescale and the optimistic maximum. Where moreover a tile
//! that a row sees nothing of stands for nothing seen, tiles may be walked in any order, and in parts that start from nothing:
//! see [`Streaming::why_not_regrouped`].

use std::collections::{BTreeMap, BTreeSet};

use super::classes::Classes;
use super::dependence::carried_dependences;
use super::onward::Onward;
use super::predicate::defined_in;
use super::unchanged::{Unchanged, Unproven, unchanged, why_start_counts};
use crate::ir::{BinaryOp, Kernel, Op, OpId, ReduceOp, UnaryOp, ValueDef, ValueId};

/// Base of the exponentials of a rescaled sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// `exp`.
    E,
    /// `exp2`.
    Two,
}

impl Base {
    /// The name of the exponential in kernel text.
    pub fn function(self) -> &'static str {
        match self {
            Base::E => "exp",
            Base::Two => "exp2",
        }
    }
}

/// What a loop hands on to a loop within.
struct Within {
    /// The forms of these values, by their places in the loop.
    forms: BTreeMap<usize, Form>,
    /// The loop whose body is a step.
    step: OpId,
    /// Where the loop carries the values of that one.
    places: Vec<usize>,
}

/// How a carried value moves from one iteration to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// It does not.
    Constant,
    /// `m <- max(m, rowmax(scores))`.
    RunningMaximum {
        /// The tiles whose row maxima it takes in.
        scores: Vec<ValueId>,
    },
    /// `x <- x + term`, or several terms, as two `x += ..` in a body add them.
    Sum {
        /// What is added, the last first.
        terms: Vec<ValueId>,
    },
    /// `x <- x * exp(m - reference) + term`.
    RescaledSum {
        /// The place of the running maximum among the carried values.
        maximum: usize,
        /// Base of the exponentials.
        base: Base,
        /// The factor `exp(m - reference)`.
        factor: ValueId,
        /// The next maximum, possibly through `visible_or_zero`.
        reference: ValueId,
        /// What is added.
        term: ValueId,
    },
    /// None of these.
    Other(NotStreaming),
}

/// Why a carried value is none of the forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotStreaming {
    /// Its next value is some other operation.
    #[error("its next value is neither a maximum nor a sum")]
    NeitherMaximumNorSum,
    /// A sum of terms that carried values change.
    #[error("what is added depends on carried values")]
    TermIsCarried,
    /// What is kept is computed otherwise.
    #[error("what is kept of it is not a product")]
    KeptIsNoProduct,
    /// Both factors, or neither, are the value itself.
    #[error("it is not multiplied by a factor")]
    NoFactor,
    /// The factor is some other expression.
    #[error("the factor is not an exponential of the maximum's move")]
    FactorIsNoExponential,
    /// The exponent of the factor starts elsewhere.
    #[error("the factor does not start from a carried maximum")]
    FactorStartsElsewhere,
    /// The carried value that the exponent starts from is no running maximum.
    #[error("what the factor starts from is not a running maximum")]
    FactorStartsFromNoMaximum,
    /// The exponent of the factor ends elsewhere.
    #[error("the factor does not end at the next maximum")]
    FactorEndsElsewhere,
    /// The term has another reference than the factor.
    #[error("what is added does not scale with the maximum")]
    TermDoesNotScale,
}

/// Why the tiles of a loop may not be walked in another order, or in parts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotRegrouped {
    /// The loop stores.
    #[error("the loop stores")]
    Stores,
    /// A carried value has no form that can be combined.
    #[error("`{name}` is no streaming reduction: {why}")]
    NotStreaming {
        /// Its place among the carried values.
        slot: usize,
        /// Its name.
        name: String,
        /// Which form it lacks.
        why: NotStreaming,
    },
    /// A rescaled sum does not start from nothing, and something stored tells.
    #[error("{0}")]
    Start(Unproven),
    /// Hidden rows make NaN.
    #[error("scores of a row that are all -inf make NaN: pass the maximum through visible_or_zero")]
    HiddenRowIsNan,
    /// A first tile that is hidden makes NaN.
    #[error("a first tile with nothing visible makes NaN: pass the maximum through visible_or_zero")]
    HiddenFirstTileIsNan,
    /// A hidden tile may change the state.
    #[error("a tile with nothing visible may count: {0}")]
    HiddenTileCounts(Unproven),
}

/// What a loop carries, with the form of each value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Streaming {
    /// The loop.
    pub loop_op: OpId,
    /// One form per carried value.
    pub forms: Vec<Form>,
    /// Whether the body stores.
    pub stores: bool,
    /// The loop whose body is a step: this one, or one within that it hands its values on to.
    step: OpId,
    /// Where this loop carries the values of that one.
    places: Vec<usize>,
}

impl Streaming {
    /// Analyses the carried values of a loop.
    ///
    /// # Panics
    /// If `loop_op` is not a `for`.
    pub fn of(kernel: &Kernel, loop_op: OpId) -> Self {
        let Op::For { body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
        let carried = &kernel.blocks[body].params[1..];
        let next = match kernel.blocks[body].ops.last().map(|&op| &kernel.ops[op].op) {
            Some(Op::Yield(next)) => next,
            _ => panic!("verified: a loop body ends in a yield"),
        };
        let dependences = carried_dependences(kernel, loop_op);
        let stores = dependences.keys().any(|&op| kernel.ops[op].op.written().is_some());
        let within = Self::of_loop_within(kernel, loop_op, &dependences);
        let body = Body { kernel, carried, next, dependences };
        let forms: Vec<Form> = (0..carried.len()).map(|k| body.form(k)).collect();
        let mut found = Self { loop_op, forms, stores, step: loop_op, places: (0..carried.len()).collect() };
        // Beside what it hands on a loop may count or add up; what a maximum rescales is in one loop.
        let rescales = |k: usize| matches!(found.forms[k], Form::RescaledSum { .. });
        if let Some(Within { forms, step, places }) = within
            && (0..carried.len()).all(|k| forms.contains_key(&k) || !rescales(k))
        {
            (found.step, found.places) = (step, places);
            forms.into_iter().for_each(|(k, form)| found.forms[k] = form);
        }
        found
    }

    /// The reduction of a loop within that `loop_op` hands values on to; `None` if there is none, or
    /// if it reads what `loop_op` carries beside that.
    fn of_loop_within(kernel: &Kernel, loop_op: OpId, dependences: &BTreeMap<OpId, BTreeSet<usize>>) -> Option<Within> {
        let Op::For { body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
        let walk = Onward::within(kernel, loop_op)?;
        let inner = walk.innermost();
        let Op::For { body: inner_body, .. } = kernel.ops[inner].op else { unreachable!("a loop") };
        let depends = |v: &ValueId| match kernel.values[*v].def {
            ValueDef::BlockParam(block, number) => block == body && number > 0,
            ValueDef::Result(op, _) => {
                kernel.blocks[body].ops.contains(&op) && dependences.get(&op).is_some_and(|on| !on.is_empty())
            }
        };
        if kernel.ops_within(inner_body).iter().any(|&op| kernel.ops[op].op.operands().iter().any(depends)) {
            return None;
        }
        let Self { forms, step, places: in_step, .. } = Self::of(kernel, inner);
        let places = walk.places();
        let outside = |(k, mut form): (usize, Form)| {
            if let Form::RescaledSum { maximum, .. } = &mut form {
                *maximum = places[*maximum];
            }
            (places[k], form)
        };
        Some(Within {
            forms: forms.into_iter().enumerate().map(outside).collect(),
            step,
            places: in_step.into_iter().map(|k| places[k]).collect(),
        })
    }

    /// Whether the loop may be split over its axis and the parts combined.
    pub fn is_associative(&self) -> bool {
        !self.stores && !self.forms.is_empty() && !self.forms.iter().any(|f| matches!(f, Form::Other(_)))
    }

    /// Why the tiles of the loop may not be walked in another order than that of the text, or in parts that start from nothing and
    /// are merged; `None` if they may.
    pub fn why_not_regrouped(&self, kernel: &Kernel) -> Option<NotRegrouped> {
        if self.stores {
            return Some(NotRegrouped::Stores);
        }
        let Op::For { body, ref init, .. } = kernel.ops[self.loop_op].op else { unreachable!("built for a loop") };
        let starts = |slot: usize| constant_fill(kernel, init[slot]);
        // A merge makes 0 of these where their maximum starts as -inf and nothing is seen.
        let mut zeroed = Vec::new();
        for (slot, form) in self.forms.iter().enumerate() {
            let v = kernel.blocks[body].params[1 + slot];
            let name = || kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
            match form {
                Form::Other(why) => return Some(NotRegrouped::NotStreaming { slot, name: name(), why: *why }),
                Form::RescaledSum { maximum, .. } => {
                    if starts(*maximum).is_none_or(|m| m == f64::NEG_INFINITY) {
                        zeroed.push((slot, *maximum));
                    }
                }
                Form::Constant | Form::RunningMaximum { .. } | Form::Sum { .. } => {}
            }
        }
        let in_step = |slot: usize| self.places.iter().position(|&place| place == slot).expect("it is rescaled in a step");
        let zeroed: Vec<(usize, usize)> = zeroed.into_iter().map(|(slot, maximum)| (in_step(slot), in_step(maximum))).collect();
        if let Some(why) = why_start_counts(kernel, self.step, &zeroed) {
            return Some(NotRegrouped::Start(why));
        }
        self.why_nothing_seen_counts(kernel)
    }

    /// Why a tile that a row sees nothing of, wherever it is walked, may not stand for nothing seen; `None` if it does.
    fn why_nothing_seen_counts(&self, kernel: &Kernel) -> Option<NotRegrouped> {
        if !self.forms.iter().any(|f| matches!(f, Form::RescaledSum { .. })) {
            return None;
        }
        for form in &self.forms {
            let Form::RescaledSum { maximum, reference, .. } = form else { continue };
            let Form::RunningMaximum { scores } = &self.forms[*maximum] else { continue };
            let visible = matches!(kernel.def(*reference), Some((_, Op::Unary(UnaryOp::VisibleOrZero, _))));
            if !visible && scores.iter().any(|&x| may_be_negative_infinity(kernel, x)) {
                return Some(NotRegrouped::HiddenRowIsNan);
            }
        }
        let Op::For { body, .. } = kernel.ops[self.loop_op].op else { unreachable!("built for a loop") };
        let inner = defined_in(kernel, body);
        let is_mask = |op: &OpId| {
            let data = &kernel.ops[*op];
            matches!(data.op, Op::Mask { .. }) && data.results.iter().all(|r| inner.contains(r))
        };
        let masks = kernel.walk().into_iter().map(|(_, op)| op).filter(is_mask);
        // What a loop within hides, a step of it shows.
        let of_step = |op: &OpId| kernel.loop_around(*op) == Some(self.step);
        let asked = |op: &OpId| if of_step(op) { self.step } else { self.loop_op };
        masks.into_iter().find_map(|op| match unchanged(kernel, asked(&op), &BTreeSet::from([op])) {
            Unchanged::Always | Unchanged::Unseen => None,
            Unchanged::AfterFirst => Some(NotRegrouped::HiddenFirstTileIsNan),
            Unchanged::Unproved(why) => Some(NotRegrouped::HiddenTileCounts(why)),
        })
    }

    /// How two states `x.a` and `x.b` combine to `x`, one line per carried value; empty if the loop is not associative.
    pub fn combine(&self, kernel: &Kernel) -> Vec<String> {
        if !self.is_associative() {
            return Vec::new();
        }
        let Op::For { body, .. } = kernel.ops[self.loop_op].op else { unreachable!("built for a loop") };
        let name = |k: usize| {
            let v = kernel.blocks[body].params[1 + k];
            kernel.values[v].name.clone().unwrap_or_else(|| v.to_string())
        };
        let line = |(k, form): (usize, &Form)| {
            let x = name(k);
            match form {
                Form::Constant | Form::Other(_) => format!("{x} = {x}.a"),
                Form::RunningMaximum { .. } => format!("{x} = max({x}.a, {x}.b)"),
                Form::Sum { .. } => format!("{x} = {x}.a + {x}.b"),
                Form::RescaledSum { maximum, base, reference, .. } => {
                    let (m, f) = (name(*maximum), base.function());
                    let visible = matches!(kernel.def(*reference), Some((_, Op::Unary(UnaryOp::VisibleOrZero, _))));
                    let r = if visible { format!("visible_or_zero({m})") } else { m.clone() };
                    format!("{x} = {x}.a * {f}({m}.a - {r}) + {x}.b * {f}({m}.b - {r})")
                }
            }
        };
        let maxima_first = |(_, form): &(usize, &Form)| !matches!(form, Form::RunningMaximum { .. });
        let mut forms: Vec<_> = self.forms.iter().enumerate().collect();
        forms.sort_by_key(maxima_first);
        forms.into_iter().map(line).collect()
    }
}

/// Whether all elements of a row of scores may be -inf, masks aside, which are asked about by themselves. Products of finite operands
/// are finite, and so are positions and scalar parameters; a tensor that is added, such as a bias, may hold anything.
fn may_be_negative_infinity(kernel: &Kernel, v: ValueId) -> bool {
    let may = |x: &ValueId| may_be_negative_infinity(kernel, *x);
    if let Some(start) = start_of_products(kernel, v) {
        return may(&start);
    }
    match kernel.def(v).map(|(_, op)| op) {
        Some(Op::Dot { .. } | Op::Pos(_) | Op::FromIndex(_) | Op::Scalar(_)) => false,
        Some(Op::Constant(_, c)) => c.is_infinite(),
        Some(Op::Mask { x, .. } | Op::Cast(_, x) | Op::Transpose(x)) => may(x),
        Some(Op::Full { value, .. }) => may(value),
        Some(Op::Unary(op, x)) => may(x) || Classes::FINITE.unary(*op).meets(Classes::NEG_INF),
        Some(Op::Binary(_, a, b)) => may(a) || may(b),
        Some(Op::Select { on_true, on_false, .. }) => may(on_true) || may(on_false),
        _ => true,
    }
}

/// What a sum starts from, to which a loop adds nothing but products.
fn start_of_products(kernel: &Kernel, v: ValueId) -> Option<ValueId> {
    let ValueDef::Result(op, slot) = kernel.values[v].def else { return None };
    let Op::For { body, init, .. } = &kernel.ops[op].op else { return None };
    let carried = *kernel.blocks[*body].params.get(1 + slot as usize)?;
    let Op::Yield(next) = &kernel.ops[*kernel.blocks[*body].ops.last()?].op else { return None };
    let is_product = |x: &ValueId| matches!(kernel.def(*x), Some((_, Op::Dot { acc: None, .. })));
    let adds = match kernel.def(next[slot as usize])?.1 {
        Op::Dot { acc, .. } => *acc == Some(carried),
        Op::Binary(BinaryOp::Add, a, b) => (*a == carried && is_product(b)) || (*b == carried && is_product(a)),
        _ => false,
    };
    adds.then(|| init[slot as usize])
}

/// The number that a value is filled with, if it is a constant.
pub fn constant_fill(kernel: &Kernel, value: ValueId) -> Option<f64> {
    match kernel.def(value)?.1 {
        Op::Full { value, .. } => constant_fill(kernel, *value),
        Op::Constant(_, c) => Some(*c),
        _ => None,
    }
}

struct Body<'a> {
    kernel: &'a Kernel,
    carried: &'a [ValueId],
    next: &'a [ValueId],
    dependences: BTreeMap<OpId, BTreeSet<usize>>,
}

impl Body<'_> {
    fn form(&self, k: usize) -> Form {
        let (own, next) = (self.carried[k], self.next[k]);
        if own == next {
            return Form::Constant;
        }
        if let Some(scores) = self.maximum(k) {
            return Form::RunningMaximum { scores };
        }
        match self.added(k) {
            Some((terms, true)) => return Form::Sum { terms },
            Some((_, false)) => return Form::Other(NotStreaming::TermIsCarried),
            None => {}
        }
        let Some((kept, term)) = self.kept_and_added(next, k) else {
            return Form::Other(NotStreaming::NeitherMaximumNorSum);
        };
        match self.rescaled(own, kept, term, next) {
            Ok(form) => form,
            Err(why) => Form::Other(why),
        }
    }

    /// What is added to carried value `k`, one after the other, to make its next value, the last
    /// first, and whether none of it depends on carried values; `None` if that is no sum that
    /// begins with the carried value.
    fn added(&self, k: usize) -> Option<(Vec<ValueId>, bool)> {
        let (own, mut sum) = (self.carried[k], self.next[k]);
        let (mut terms, mut is_free) = (Vec::new(), true);
        while sum != own {
            let (kept, term) = self.kept_and_added(sum, k)?;
            is_free &= match self.kernel.def(sum) {
                Some((_, Op::Dot { a, b, .. })) => self.is_free(*a) && self.is_free(*b),
                _ => self.is_free(term),
            };
            terms.push(term);
            sum = kept;
        }
        Some((terms, is_free))
    }

    /// What a sum has of carried value `k`, and what it adds to that.
    fn kept_and_added(&self, sum: ValueId, k: usize) -> Option<(ValueId, ValueId)> {
        match self.kernel.def(sum)? {
            (_, Op::Binary(BinaryOp::Add, a, b)) if self.reads(*a, k) => Some((*a, *b)),
            (_, Op::Binary(BinaryOp::Add, a, b)) => Some((*b, *a)),
            // The product is what is added.
            (_, Op::Dot { acc: Some(acc), .. }) => Some((*acc, sum)),
            _ => None,
        }
    }

    /// The scores of a running maximum.
    fn maximum(&self, k: usize) -> Option<Vec<ValueId>> {
        let (mut scores, mut itself, mut rest) = (Vec::new(), false, vec![self.next[k]]);
        while let Some(v) = rest.pop() {
            match self.kernel.def(v) {
                _ if v == self.carried[k] => itself = true,
                Some((_, Op::Binary(BinaryOp::Max, a, b))) => rest.extend([*a, *b]),
                Some((_, Op::Reduce(ReduceOp::Max, x))) if self.is_free(*x) => scores.push(*x),
                _ => return None,
            }
        }
        (itself && !scores.is_empty()).then_some(scores)
    }

    fn rescaled(&self, own: ValueId, kept: ValueId, term: ValueId, next: ValueId) -> Result<Form, NotStreaming> {
        let Some((_, Op::Binary(BinaryOp::Mul, a, b))) = self.kernel.def(kept) else {
            return Err(NotStreaming::KeptIsNoProduct);
        };
        let factor = match (*a == own, *b == own) {
            (true, false) => *b,
            (false, true) => *a,
            _ => return Err(NotStreaming::NoFactor),
        };
        let no_factor = NotStreaming::FactorIsNoExponential;
        let (base, moved) = self.exponential(factor).ok_or(no_factor)?;
        let Some((_, Op::Binary(BinaryOp::Sub, m, reference))) = self.kernel.def(moved) else { return Err(no_factor) };
        let maximum = self.carried.iter().position(|c| c == m).ok_or(NotStreaming::FactorStartsElsewhere)?;
        self.maximum(maximum).ok_or(NotStreaming::FactorStartsFromNoMaximum)?;
        let new = match self.kernel.def(*reference) {
            Some((_, Op::Unary(UnaryOp::VisibleOrZero, x))) => *x,
            _ => *reference,
        };
        if new != self.next[maximum] {
            return Err(NotStreaming::FactorEndsElsewhere);
        }
        let homogeneous = match self.kernel.def(next) {
            Some((_, Op::Dot { a, b, acc: Some(_) })) => self.product(*a, *b, base, *reference),
            _ => self.is_homogeneous(term, base, *reference),
        };
        if !homogeneous {
            return Err(NotStreaming::TermDoesNotScale);
        }
        Ok(Form::RescaledSum { maximum, base, factor, reference: *reference, term })
    }

    fn exponential(&self, v: ValueId) -> Option<(Base, ValueId)> {
        match self.kernel.def(v)? {
            (_, Op::Unary(UnaryOp::Exp, x)) => Some((Base::E, *x)),
            (_, Op::Unary(UnaryOp::Exp2, x)) => Some((Base::Two, *x)),
            _ => None,
        }
    }

    /// Whether a value scales as `exp(-reference)`.
    fn is_homogeneous(&self, v: ValueId, base: Base, reference: ValueId) -> bool {
        if let Some((found, x)) = self.exponential(v) {
            let is_shifted = match self.kernel.def(x) {
                Some((_, Op::Binary(BinaryOp::Sub, y, r))) => self.is_one_reference(*r, reference) && self.is_free(*y),
                Some((_, Op::Unary(UnaryOp::Neg, r))) => self.is_one_reference(*r, reference),
                _ => false,
            };
            return found == base && is_shifted;
        }
        let of = |v: &ValueId| self.is_homogeneous(*v, base, reference);
        let zero = |v: &ValueId| constant_fill(self.kernel, *v) == Some(0.0);
        match self.kernel.def(v) {
            Some((_, Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b))) => of(a) && of(b),
            // The scale is positive.
            Some((_, Op::Binary(BinaryOp::Max | BinaryOp::Min, a, b))) => {
                (of(a) || zero(a)) && (of(b) || zero(b)) && !(zero(a) && zero(b))
            }
            Some((_, Op::Unary(UnaryOp::Abs, x))) => of(x),
            Some((_, Op::Binary(BinaryOp::Mul, a, b))) => self.product(*a, *b, base, reference),
            Some((_, Op::Binary(BinaryOp::Div, a, b))) => of(a) && self.is_free(*b),
            Some((_, Op::Dot { a, b, acc: None })) => self.product(*a, *b, base, reference),
            Some((_, Op::Unary(UnaryOp::Neg, x) | Op::Reduce(ReduceOp::Sum, x) | Op::Transpose(x) | Op::Cast(_, x))) => of(x),
            // 0 scales as whatever stands beside it.
            Some((_, Op::Select { cond, on_true, on_false })) => {
                let either = |v: &ValueId| zero(v) || of(v);
                self.is_free(*cond) && either(on_true) && either(on_false) && !(zero(on_true) && zero(on_false))
            }
            _ => false,
        }
    }

    /// Whether two values are one reference: `visible_or_zero(m_new)` may be written twice.
    fn is_one_reference(&self, a: ValueId, b: ValueId) -> bool {
        let of = |v: ValueId| match self.kernel.def(v) {
            Some((_, Op::Unary(UnaryOp::VisibleOrZero, x))) => Some(*x),
            _ => None,
        };
        a == b || of(a).is_some_and(|x| of(b) == Some(x))
    }

    fn product(&self, a: ValueId, b: ValueId, base: Base, reference: ValueId) -> bool {
        let (ha, hb) = (self.is_homogeneous(a, base, reference), self.is_homogeneous(b, base, reference));
        (ha && self.is_free(b)) || (hb && self.is_free(a))
    }

    fn is_free(&self, v: ValueId) -> bool {
        self.carried_by(v).is_empty()
    }

    fn reads(&self, v: ValueId, k: usize) -> bool {
        self.carried_by(v).contains(&k)
    }

    fn carried_by(&self, v: ValueId) -> BTreeSet<usize> {
        match self.kernel.values[v].def {
            ValueDef::Result(op, _) => self.dependences.get(&op).cloned().unwrap_or_default(),
            ValueDef::BlockParam(..) => self.carried.iter().position(|&c| c == v).into_iter().collect(),
        }
    }
}
