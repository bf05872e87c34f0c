//! Sums of gradients of which some are hidden, and stores of them.
//!
//! What a mask hides has no gradient, and an element that is absent in a term is absent in the sum.
//! So a term counts as 0 where it is hidden and the value whose gradient the sum is exists: of
//! `rowsum(p) + rowsum(mask(p, keep))` each element of `p` has the gradient of the first sum.
//!
//! A store writes what is hidden too. Of a gradient that is 0.

use std::collections::HashMap;

use super::NotDifferentiable;
use super::rules::{Adjoint, Reverse};
use crate::ir::edit::users;
use crate::ir::{BinaryOp, Fill, Kernel, Op, UnaryOp, ValueId};

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
            let [a, b] = [a, b].map(|g| Adjoint { value: self.shown(g.value), ..g });
            return self.sum(a, b);
        }
        let there = masks(forward.kernel, of);
        let there = there.into_iter().filter_map(|keep| self.copy.known.get(&forward.canonical(keep)).copied());
        let there: Vec<ValueId> = there.chain(self.copy.counts).collect();
        let [of_a, of_b] = [a, b].map(|g| masks(&self.copy.b.kernel, g.value));
        let mut shown = |g: Adjoint, own: &[ValueId], other: &[ValueId]| {
            let zero = self.copy.float(0.0);
            let excess = own.iter().filter(|keep| !other.contains(keep) && !there.contains(keep));
            let value = excess.fold(g.value, |value, &keep| {
                let value = match self.copy.b.kernel.def(value) {
                    Some((_, &Op::Mask { x, keep: other, .. })) if other == keep => x,
                    _ => value,
                };
                self.copy.select(keep, value, zero)
            });
            Adjoint { value, ..g }
        };
        let (a, b) = (shown(a, &of_a, &of_b), shown(b, &of_b, &of_a));
        self.sum(a, b)
    }

    /// The gradient of a sum, for one of its terms: the sum is absent where the other term is.
    pub fn of_term(&mut self, sum: ValueId, term: ValueId, g: Adjoint) -> Result<Adjoint, NotDifferentiable> {
        let forward = self.copy.forward;
        let of_term = masks(forward.kernel, term);
        let of_others = masks(forward.kernel, sum).into_iter().filter(|keep| !of_term.contains(keep));
        let here = of_others.map(|keep| self.copy.value(keep)).collect::<Result<Vec<_>, _>>()?;
        let hidden = masks(&self.copy.b.kernel, g.value);
        let missing: Vec<_> = here.into_iter().filter(|keep| !hidden.contains(keep)).collect();
        if missing.is_empty() {
            return Ok(g);
        }
        match self.readers(sum) {
            // What is stored of it counts as it is.
            Readers { stores: true, others: false } => Ok(g),
            Readers { stores: false, .. } => {
                let value = missing.into_iter().fold(g.value, |x, keep| self.hidden(x, keep));
                Ok(Adjoint { value, ..g })
            }
            Readers { stores: true, others: true } => {
                let what = format!("`{}`, of which a mask hides a term, is stored and summed", forward.name(sum));
                let instead = "mask the other terms too, or store and sum values of their own";
                Err(NotDifferentiable::new(what, forward.span(sum), instead))
            }
        }
    }

    /// A gradient that is absent where a condition does not hold.
    pub fn hidden(&mut self, x: ValueId, keep: ValueId) -> ValueId {
        let value = self.copy.op(Op::Mask { x, keep, fill: Fill::NegInf });
        self.hiding.insert(value);
        value
    }

    /// A gradient as it is stored: 0 where it is absent.
    pub fn shown(&mut self, value: ValueId) -> ValueId {
        let Some((_, op)) = self.copy.b.kernel.def(value) else { return value };
        let op = op.clone();
        match op {
            Op::Mask { x, keep, .. } if self.hiding.contains(&value) => {
                let (x, zero) = (self.shown(x), self.copy.float(0.0));
                self.copy.select(keep, x, zero)
            }
            Op::Cast(elem, x) => match self.shown(x) {
                shown if shown == x => value,
                shown => self.copy.cast(shown, elem),
            },
            Op::Unary(..) | Op::Binary(..) | Op::Select { .. } | Op::Transpose(_) => {
                let shown: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, self.shown(v))).collect();
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
                (BinaryOp::Mul, a, b) if a == Some(0.0) || b == Some(0.0) => Some(0.0),
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

/// The conditions of masks that hide elements of a value. Where one does not hold an element is
/// hidden, or 0.
fn masks(kernel: &Kernel, value: ValueId) -> Vec<ValueId> {
    let Some((_, op)) = kernel.def(value) else { return Vec::new() };
    let is_zero = |v: ValueId| match kernel.def(v) {
        Some((_, &Op::Constant(_, x))) => x == 0.0,
        Some((_, &Op::Full { value, .. })) => matches!(kernel.def(value), Some((_, &Op::Constant(_, x))) if x == 0.0),
        _ => false,
    };
    let mut found = match *op {
        Op::Mask { x, keep, .. } => [masks(kernel, x), vec![keep]].concat(),
        Op::Select { cond, on_true, on_false } if is_zero(on_false) => {
            masks(kernel, on_true).into_iter().filter(|&keep| keep != cond).collect()
        }
        Op::Select { on_true, on_false, .. } if is_zero(on_true) => masks(kernel, on_false),
        Op::Select { .. } | Op::Gather { .. } => Vec::new(),
        ref op if op.is_elementwise() => op.operands().into_iter().flat_map(|v| masks(kernel, v)).collect(),
        _ => Vec::new(),
    };
    found.sort_unstable();
    found.dedup();
    found
}
