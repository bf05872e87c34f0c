//! Sums of gradients of which some are hidden, and stores of them.
//!
//! What a mask hides has no gradient, and an element that is absent in a term is absent in the sum.
//! So a term counts as 0 where it is hidden and the value whose gradient the sum is exists: of
//! `rowsum(p) + rowsum(mask(p, keep))` each element of `p` has the gradient of the first sum.
//!
//! A store writes what is hidden too. Of a gradient that is 0.

use std::cmp;
use std::collections::HashMap;

use super::NotDifferentiable;
use super::rules::{Adjoint, Reverse};
use crate::ir::edit::users;
use crate::ir::{BinaryOp, Fill, Kernel, Op, UnaryOp, ValueId};

/// What hides elements of a value: an element is hidden where the truth value does not hold, of those
/// that selections take on their way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hiding {
    keep: ValueId,
    /// Conditions of selections, and what each is for the element to be taken.
    taken: Vec<(ValueId, bool)>,
}

impl Hiding {
    /// Everywhere that a truth value does not hold.
    fn everywhere(keep: ValueId) -> Self {
        Self { keep, taken: Vec::new() }
    }

    /// The same in terms of other values; `None` if one of them is not known.
    fn among(&self, known: impl Fn(ValueId) -> Option<ValueId>) -> Option<Self> {
        let taken = self.taken.iter().map(|&(cond, is)| Some((known(cond)?, is))).collect::<Option<_>>()?;
        Some(Self { keep: known(self.keep)?, taken })
    }
}

/// What reads a value.
#[derive(Clone, Copy, Default)]
struct Readers {
    stores: bool,
    /// Reductions, products and loops.
    others: bool,
}

impl Reverse<'_, '_> {
    /// The sum of two gradients of a value of the forward kernel.
    pub fn sum_of(&mut self, of: ValueId, a: Adjoint, b: Adjoint) -> Adjoint {
        let forward = self.copy.forward;
        if let Readers { stores: true, others: false } = self.readers(of) {
            // A store takes an element as it is.
            let [a, b] = [a, b].map(|g| Adjoint { value: self.revealed(g.value), ..g });
            return self.sum(a, b);
        }
        let there = masks(forward.kernel, of);
        let known = |v: ValueId| self.copy.known.get(&forward.canonical(v)).copied();
        let there = there.iter().filter_map(|hiding| hiding.among(known));
        let there: Vec<Hiding> = there.chain(self.copy.counts.map(Hiding::everywhere)).collect();
        let [of_a, of_b] = [a, b].map(|g| masks(&self.copy.b.kernel, g.value));
        let mut there_too = |g: Adjoint, own: &[Hiding], other: &[Hiding]| {
            let excess = own.iter().filter(|hiding| !other.contains(hiding) && !there.contains(hiding));
            let value = excess.fold(g.value, |value, hiding| {
                let value = match self.copy.b.kernel.def(value) {
                    Some((_, &Op::Mask { x, keep, .. })) if *hiding == Hiding::everywhere(keep) => x,
                    _ => value,
                };
                self.zero_for(hiding, value)
            });
            Adjoint { value, ..g }
        };
        let (a, b) = (there_too(a, &of_a, &of_b), there_too(b, &of_b, &of_a));
        self.sum(a, b)
    }

    /// The gradient of a sum, for one of its terms: the sum is absent where the other term is.
    pub fn of_term(&mut self, sum: ValueId, term: ValueId, g: Adjoint) -> Result<Adjoint, NotDifferentiable> {
        let forward = self.copy.forward;
        let of_term = masks(forward.kernel, term);
        let of_others = masks(forward.kernel, sum).into_iter().filter(|hiding| !of_term.contains(hiding));
        let mut here = Vec::new();
        for Hiding { keep, taken } in of_others {
            let taken = taken.into_iter().map(|(cond, is)| Ok((self.copy.value(cond)?, is))).collect::<Result<_, _>>()?;
            here.push(Hiding { keep: self.copy.value(keep)?, taken });
        }
        let hidden = masks(&self.copy.b.kernel, g.value);
        let missing: Vec<_> = here.into_iter().filter(|hiding| !hidden.contains(hiding)).collect();
        if missing.is_empty() {
            return Ok(g);
        }
        match self.readers(sum) {
            // What is stored of it counts as it is.
            Readers { stores: true, others: false } => Ok(g),
            Readers { stores: false, .. } => {
                let value = missing.iter().fold(g.value, |x, hiding| {
                    let keep = self.holds(hiding);
                    self.hidden(x, keep)
                });
                Ok(Adjoint { value, ..g })
            }
            Readers { stores: true, others: true } => {
                let what = format!("`{}`, of which a mask hides a term, is stored and summed", forward.name(sum));
                let instead = "mask the other terms too, or store and sum values of their own";
                Err(NotDifferentiable::new(what, forward.span(sum), instead))
            }
        }
    }

    /// A gradient that is absent where a condition does not hold. The condition may tell elements
    /// apart that have one gradient, as those of a row sum do.
    pub fn hidden(&mut self, x: ValueId, keep: ValueId) -> ValueId {
        let (own, wanted) = (self.copy.dims(x), self.copy.dims(keep));
        let x = if wanted.iter().all(|dim| own.contains(dim)) { x } else { self.copy.spread(x, wanted) };
        let value = self.copy.op(Op::Mask { x, keep, fill: Fill::NegInf });
        self.hiding.insert(value);
        value
    }

    /// A truth value that holds where an element exists.
    fn holds(&mut self, hiding: &Hiding) -> ValueId {
        hiding.taken.iter().fold(hiding.keep, |holds, &(cond, is)| {
            let other = if is { self.copy.op(Op::Unary(UnaryOp::Not, cond)) } else { cond };
            self.copy.op(Op::Binary(BinaryOp::Or, holds, other))
        })
    }

    /// A value, and 0 where its elements are hidden.
    fn zero_for(&mut self, hiding: &Hiding, value: ValueId) -> ValueId {
        let (keep, zero) = (self.holds(hiding), self.copy.float(0.0));
        self.copy.select(keep, value, zero)
    }

    /// The gradient of a value as it is stored: 0 where it is absent.
    pub fn shown(&mut self, of: ValueId, value: ValueId) -> ValueId {
        let value = self.revealed(value);
        if self.readers(of).stores {
            return value;
        }
        let kernel = &self.copy.b.kernel;
        // Of a factor that the text masks.
        let hidden: Vec<Hiding> = masks(kernel, value)
            .into_iter()
            .filter(|hiding| !(hiding.taken.is_empty() && self.beyond(value, hiding.keep) == Some(0.0)))
            .collect();
        hidden.iter().fold(value, |value, hiding| self.zero_for(hiding, value))
    }

    /// A gradient that is 0 where a mask of [`Reverse::hidden`] hides it.
    fn revealed(&mut self, value: ValueId) -> ValueId {
        let Some((_, op)) = self.copy.b.kernel.def(value) else { return value };
        let op = op.clone();
        match op {
            Op::Mask { x, keep, .. } if self.hiding.contains(&value) => {
                let (x, zero) = (self.revealed(x), self.copy.float(0.0));
                self.copy.select(keep, x, zero)
            }
            Op::Cast(elem, x) => match self.revealed(x) {
                shown if shown == x => value,
                shown => self.copy.cast(shown, elem),
            },
            Op::Unary(..) | Op::Binary(..) | Op::Select { .. } | Op::Transpose(_) => {
                let shown: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, self.revealed(v))).collect();
                match shown.iter().all(|(before, now)| before == now) {
                    true => value,
                    false => self.copy.op(op.map_operands(|v| shown[&v])),
                }
            }
            _ => value,
        }
    }

    /// What an element holds that a condition hides; `None` if that is unknown.
    pub fn beyond(&self, value: ValueId, keep: ValueId) -> Option<f64> {
        let of = |v: ValueId| self.beyond(v, keep);
        let known = |x: f64| Some(x).filter(|x| !x.is_nan());
        let infinite = |x: Option<f64>| x.filter(|x| x.is_infinite());
        // What is not known is finite where no mask has a say in it.
        let is_finite = |v: ValueId, x: Option<f64>| match x {
            Some(x) => x.is_finite(),
            None => !masks(&self.copy.b.kernel, v).iter().any(|hiding| hiding.keep == keep),
        };
        match *self.copy.b.kernel.def(value)?.1 {
            Op::Mask { keep: other, fill, .. } if other == keep => match self.hiding.contains(&value) {
                true => Some(0.0),
                false => Some(fill.value()),
            },
            Op::Mask { x, .. } | Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } => of(x),
            Op::Constant(_, x) => Some(x),
            Op::Unary(UnaryOp::Neg, x) => of(x).map(|x| -x),
            Op::Unary(UnaryOp::Exp, x) => of(x).map(f64::exp),
            Op::Unary(UnaryOp::Exp2, x) => of(x).map(f64::exp2),
            Op::Unary(UnaryOp::Tanh, x) => of(x).map(f64::tanh),
            Op::Unary(UnaryOp::VisibleOrZero, x) => of(x).map(|x| if x == f64::NEG_INFINITY { 0.0 } else { x }),
            Op::Binary(op, a, b) => match (op, of(a), of(b)) {
                (BinaryOp::Add, Some(a), Some(b)) => known(a + b),
                (BinaryOp::Sub, Some(a), Some(b)) => known(a - b),
                (BinaryOp::Mul, Some(0.0), x) if is_finite(b, x) => Some(0.0),
                (BinaryOp::Mul, x, Some(0.0)) if is_finite(a, x) => Some(0.0),
                (BinaryOp::Mul, Some(0.0), _) | (BinaryOp::Mul, _, Some(0.0)) => None,
                (BinaryOp::Div, Some(0.0), x) if x == Some(0.0) || (x.is_none() && !is_finite(b, x)) => None,
                (BinaryOp::Mul, Some(a), Some(b)) => known(a * b),
                (BinaryOp::Div | BinaryOp::DivOrZero, Some(0.0), _) => Some(0.0),
                (BinaryOp::Div, Some(a), Some(b)) => known(a / b),
                (BinaryOp::Div, None, Some(b)) if b.is_infinite() => Some(0.0),
                // Elements that exist are finite, and factors of exponents positive.
                (BinaryOp::Add | BinaryOp::Mul, a, b) => infinite(a).or(infinite(b)),
                (BinaryOp::Sub, a, b) => infinite(a).or(infinite(b).map(|b| -b)),
                (BinaryOp::Div, a, _) => infinite(a),
                _ => None,
            },
            Op::Select { on_true, on_false, .. } => of(on_true).filter(|x| of(on_false) == Some(*x)),
            _ => None,
        }
    }

    /// What reads a value of the forward kernel, or what is made of it element by element.
    fn readers(&self, value: ValueId) -> Readers {
        let kernel = self.copy.forward.kernel;
        let (mut seen, mut found) = (vec![value], Readers::default());
        let mut next = 0;
        while let Some(&of) = seen.get(next) {
            next += 1;
            for user in users(kernel, of) {
                match &kernel.ops[user].op {
                    Op::Store { .. } => found.stores = true,
                    op if op.is_elementwise() || matches!(op, Op::Transpose(_) | Op::Full { .. }) => {
                        let result = kernel.ops[user].results[0];
                        if !seen.contains(&result) {
                            seen.push(result);
                        }
                    }
                    _ => found.others = true,
                }
            }
        }
        found
    }
}

/// What hides elements of a value, or makes them 0.
fn masks(kernel: &Kernel, value: ValueId) -> Vec<Hiding> {
    found_masks(kernel, value, &mut HashMap::new())
}

fn found_masks(kernel: &Kernel, value: ValueId, known: &mut HashMap<ValueId, Vec<Hiding>>) -> Vec<Hiding> {
    if let Some(found) = known.get(&value) {
        return found.clone();
    }
    let Some((_, op)) = kernel.def(value) else { return Vec::new() };
    let is_zero = |v: ValueId| match kernel.def(v) {
        Some((_, &Op::Constant(_, x))) => x == 0.0,
        Some((_, &Op::Full { value, .. })) => matches!(kernel.def(value), Some((_, &Op::Constant(_, x))) if x == 0.0),
        _ => false,
    };
    let mut of = |v: ValueId| found_masks(kernel, v, known);
    let mut found = match *op {
        Op::Mask { x, keep, .. } => [of(x), vec![Hiding::everywhere(keep)]].concat(),
        Op::Select { cond, on_true, on_false } => {
            let branches = match (is_zero(on_true), is_zero(on_false)) {
                (_, true) => of(on_true).into_iter().filter(|hiding| hiding.keep != cond).collect(),
                (true, false) => of(on_false),
                (false, false) => either(cond, of(on_true), of(on_false)),
            };
            [of(cond), branches].concat()
        }
        ref op if op.is_elementwise() => op.operands().into_iter().flat_map(of).collect(),
        _ => Vec::new(),
    };
    // What a selection takes may be hidden itself: the wider conditions are the last to be applied.
    found.sort_unstable_by_key(|hiding| (cmp::Reverse(hiding.taken.len()), hiding.clone()));
    found.dedup();
    let is_wider = |a: &Hiding, b: &Hiding| a != b && a.keep == b.keep && a.taken.iter().all(|taken| b.taken.contains(taken));
    let all = found.clone();
    found.retain(|hiding| !all.iter().any(|other| is_wider(other, hiding)));
    known.insert(value, found.clone());
    found
}

/// What hides elements of a selection between two values that these hide.
fn either(cond: ValueId, on_true: Vec<Hiding>, on_false: Vec<Hiding>) -> Vec<Hiding> {
    let (mut found, on_true): (Vec<_>, Vec<_>) = on_true.into_iter().partition(|hiding| on_false.contains(hiding));
    // Where its own condition holds, a mask hides nothing.
    let on_true = on_true.into_iter().filter(|hiding| hiding.keep != cond).map(|hiding| (hiding, true)).collect::<Vec<_>>();
    let on_false = on_false.into_iter().filter(|hiding| !found.contains(hiding)).map(|hiding| (hiding, false));
    let of_one: Vec<_> = on_true.into_iter().chain(on_false).collect();
    found.extend(of_one.into_iter().map(|(mut hiding, is)| {
        hiding.taken.push((cond, is));
        hiding.taken.sort_unstable();
        hiding.taken.dedup();
        hiding
    }));
    found
}
