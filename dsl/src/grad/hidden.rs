//! Sums of gradients of which some are hidden, and stores of them.
//!
//! What a mask hides has no gradient, and an element that is absent in a term is absent in the sum.
//! So a term counts as 0 where it is hidden and the value whose gradient the sum is exists: of
//! `rowsum(p) + rowsum(mask(p, keep))` each element of `p` has the gradient of the first sum.
//!
//! A store writes what is hidden too. Of a gradient that is 0.
//!
//! Each element of a value that is stored counts, so that its gradient has all of them, as each
//! share of it has ([`Reverse::of_all_elements`]): of `exp(mask(x, keep)) + c * x`, stored, pairs
//! that the mask hides have the gradient `c`, though a factor of the other share is hidden.

use std::collections::HashMap;

use super::NotDifferentiable;
use super::hiding::{Hiding, Made, in_order, is_absent, masks};
use super::rules::{Adjoint, Reverse};
use crate::ir::edit::users;
use crate::ir::{BinaryOp, Fill, Op, UnaryOp, ValueId, broadcast};

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
        // Of what is stored shares have all elements.
        if self.is_read_apart(of) || self.readers(of).stores {
            return self.sum(a, b);
        }
        let there = masks(forward.kernel, of, &Made::new());
        let known = |v: ValueId| self.copy.known.get(&forward.canonical(v)).copied();
        let there = there.iter().filter_map(|hiding| hiding.among(known));
        let there: Vec<Hiding> = there.chain(self.copy.counts.map(Hiding::everywhere)).collect();
        let [of_a, of_b] = [a, b].map(|g| self.hidings(g.value));
        let mut zero_beyond = |g: Adjoint, own: &[Hiding], other: &[Hiding]| {
            let excess = own.iter().filter(|hiding| !hiding.is_within(other.iter().chain(&there)));
            let value = excess.fold(g.value, |value, hiding| {
                let value = match self.copy.b.kernel.def(value) {
                    Some((_, &Op::Mask { x, keep, .. })) if *hiding == Hiding::of(keep, &self.made) => x,
                    _ => value,
                };
                self.zero_for(hiding, value)
            });
            Adjoint { value, ..g }
        };
        let (a, b) = (zero_beyond(a, &of_a, &of_b), zero_beyond(b, &of_b, &of_a));
        self.sum(a, b)
    }

    /// The gradient of a sum, for one of its terms: the sum is absent where the other term is.
    pub fn of_term(&mut self, sum: ValueId, term: ValueId, g: Adjoint) -> Result<Adjoint, NotDifferentiable> {
        // What is stored of it counts as it is.
        if self.readers(sum).stores {
            return Ok(g);
        }
        let of_term = masks(self.copy.forward.kernel, term, &Made::new());
        let mut missing = self.hidings_here(sum, |hiding| !hiding.is_within(&of_term))?;
        let hidden = self.hidings(g.value);
        missing.retain(|hiding| !hiding.is_within(&hidden));
        Ok(Adjoint { value: self.absent_by(&missing, g.value), ..g })
    }

    /// What hides elements of a value of the forward kernel, as far as it is asked for.
    fn hidings_here(&mut self, of: ValueId, asked: impl Fn(&Hiding) -> bool) -> Result<Vec<Hiding>, NotDifferentiable> {
        let found = masks(self.copy.forward.kernel, of, &Made::new()).into_iter().filter(asked);
        let mut here = Vec::new();
        for Hiding { keep, taken } in found {
            let taken = taken.into_iter().map(|(cond, is)| Ok((self.copy.value(cond)?, is))).collect::<Result<_, _>>()?;
            here.push(Hiding { keep: self.copy.value(keep)?, taken });
        }
        Ok(here)
    }

    /// A share of the gradient of a value with all its elements, if the value is stored. By way of
    /// a value that is stored itself an element that the text hides has the number that it computes
    /// there. A sum, and what is made for sums alone, leaves the element out: it is 0.
    pub fn of_all_elements(&mut self, of: ValueId, share: ValueId) -> Result<ValueId, NotDifferentiable> {
        let kernel = self.copy.forward.kernel;
        let Some(op) = self.by_way_of.map(|id| &kernel.ops[id]) else { return Ok(share) };
        let takes_all = |op: &Op| op.is_elementwise() || matches!(op, Op::Transpose(_) | Op::Full { .. });
        let is_for_sums = !takes_all(&op.op) || !self.readers(op.results[0]).stores;
        if !self.readers(of).stores {
            return Ok(share);
        }
        let value = self.revealed(share);
        if !is_for_sums {
            return Ok(self.written(value));
        }
        let source = if takes_all(&op.op) { op.results[0] } else { of };
        let mut hidden = self.hidden_beside_zeros(value);
        for hiding in self.hidings_here(source, |_| true)? {
            let is_zero = hiding.taken.is_empty() && self.beyond(value, hiding.keep) == Some(0.0);
            if !is_zero && !hiding.is_within(&hidden) {
                hidden.push(hiding);
            }
        }
        let value = hidden.iter().fold(value, |value, hiding| self.zero_for(hiding, value));
        // What a hidden factor makes 0 is 0 for products and sums too.
        Ok(self.written(value))
    }

    /// A gradient that is absent where a condition does not hold. The condition may tell elements
    /// apart that have one gradient, as those of a row sum do.
    pub fn hidden(&mut self, x: ValueId, keep: ValueId) -> ValueId {
        let (own, of_keep) = (self.copy.dims(x), self.copy.dims(keep));
        let x = match of_keep.iter().all(|dim| own.contains(dim)) {
            true => x,
            false => self.copy.spread(x, broadcast(&own, &of_keep).unwrap_or(of_keep)),
        };
        let value = self.copy.op(Op::Mask { x, keep, fill: Fill::NegInf });
        self.hiding.insert(value);
        value
    }

    /// A truth value that holds where an element exists.
    fn holds(&mut self, hiding: &Hiding) -> ValueId {
        let holds = hiding.taken.iter().fold(hiding.keep, |holds, &(cond, is)| {
            let other = if is { self.copy.op(Op::Unary(UnaryOp::Not, cond)) } else { cond };
            self.copy.op(Op::Binary(BinaryOp::Or, holds, other))
        });
        if !hiding.taken.is_empty() {
            self.made.insert(holds, hiding.clone());
        }
        holds
    }

    /// A value, and 0 where its elements are hidden.
    fn zero_for(&mut self, hiding: &Hiding, value: ValueId) -> ValueId {
        let (keep, zero) = (self.holds(hiding), self.copy.float(0.0));
        self.copy.select(keep, value, zero)
    }

    /// A gradient that a choice has made of `g`: it is absent wherever that is. Where it chose the
    /// number 0, a factor that is no number there would count else.
    pub fn hidden_as(&mut self, g: ValueId, chosen: ValueId) -> ValueId {
        let own = masks(&self.copy.b.kernel, chosen, &self.made);
        let missing: Vec<Hiding> = self.hidings(g).into_iter().filter(|hiding| !hiding.is_within(&own)).collect();
        self.absent_by(&missing, chosen)
    }

    /// A gradient that is absent wherever one of these hides it.
    fn absent_by(&mut self, hidings: &[Hiding], value: ValueId) -> ValueId {
        hidings.iter().fold(value, |value, hiding| {
            let keep = self.holds(hiding);
            self.hidden(value, keep)
        })
    }

    /// What hides elements of a gradient. Of one that is 0 wherever it is not hidden by a truth value,
    /// it is that alone.
    fn hidings(&self, value: ValueId) -> Vec<Hiding> {
        let kernel = &self.copy.b.kernel;
        let found = masks(kernel, value, &self.made).into_iter().map(|hiding| {
            let is_absent = || is_absent(kernel, value, hiding.keep, &self.made);
            if !hiding.taken.is_empty() && is_absent() { Hiding::everywhere(hiding.keep) } else { hiding }
        });
        in_order(found.collect())
    }

    /// The gradient of a value as it is stored: 0 where it is absent.
    pub fn shown(&mut self, of: ValueId, value: ValueId) -> Result<ValueId, NotDifferentiable> {
        let value = self.revealed(value);
        if let Some((_, &Op::Transpose(x))) = self.copy.b.kernel.def(value) {
            let shown = self.shown(of, x)?;
            return Ok(if shown == x { value } else { self.copy.transposed(shown) });
        }
        if self.is_read_apart(of) {
            return Ok(value);
        }
        self.shown_by(of, value)
    }

    /// A share of the gradient of a value that is one load of several of the same tile, some of which
    /// are read for stores and some for sums: 0 where it is absent for its own readers.
    pub fn own_share(&mut self, own: ValueId, value: ValueId) -> Result<ValueId, NotDifferentiable> {
        if !self.is_read_apart(self.copy.forward.canonical(own)) {
            return Ok(value);
        }
        let value = self.revealed(value);
        self.shown_by(own, value)
    }

    fn shown_by(&mut self, of: ValueId, value: ValueId) -> Result<ValueId, NotDifferentiable> {
        let readers = self.readers(of);
        if readers.stores && !readers.others {
            return Ok(value);
        }
        let hidden = self.hidden_beside_zeros(value);
        if readers.stores && !hidden.is_empty() {
            return Err(self.read_for_both(of));
        }
        Ok(hidden.iter().fold(value, |value, hiding| self.zero_for(hiding, value)))
    }

    /// A gradient that is to be summed up: a store of what it belongs to takes hidden elements too.
    pub fn summed_share(&mut self, own: ValueId, value: ValueId) -> Result<ValueId, NotDifferentiable> {
        let readers = self.readers(own);
        if !readers.stores || self.hidden_beside_zeros(value).is_empty() {
            return Ok(value);
        }
        if readers.others {
            return Err(self.read_for_both(own));
        }
        let value = self.revealed(value);
        Ok(self.written(value))
    }

    fn read_for_both(&self, of: ValueId) -> NotDifferentiable {
        let forward = self.copy.forward;
        let what = format!("`{}`, with which a mask hides elements, is read for sums and for what is stored", forward.name(of));
        NotDifferentiable::new(what, forward.span(of), "store and sum what is made of loads of their own")
    }

    /// What hides elements of a gradient, but for a factor that the text masks: it is 0 there.
    fn hidden_beside_zeros(&self, value: ValueId) -> Vec<Hiding> {
        let is_zero = |hiding: &Hiding| hiding.taken.is_empty() && self.beyond(value, hiding.keep) == Some(0.0);
        self.hidings(value).into_iter().filter(|hiding| !is_zero(hiding)).collect()
    }

    /// Whether a tile is loaded several times, for stores and for sums.
    fn is_read_apart(&mut self, canonical: ValueId) -> bool {
        let forward = self.copy.forward;
        if !matches!(forward.kernel.def(canonical), Some((_, Op::Load { .. }))) {
            return false;
        }
        if let Some(&known) = self.read_apart.get(&canonical) {
            return known;
        }
        let readers: Vec<_> = forward.loads_like(canonical).map(|v| self.readers(v)).collect();
        let apart = readers.len() > 1 && readers.iter().any(|of| of.stores) && readers.iter().any(|of| of.others);
        self.read_apart.insert(canonical, apart);
        apart
    }

    /// A value of which all elements exist, as a store writes it: what is hidden is the number that
    /// the text computes there.
    fn written(&mut self, value: ValueId) -> ValueId {
        let hidings = self.hidings(value);
        let Some((_, op)) = self.copy.b.kernel.def(value).filter(|_| !hidings.is_empty()) else { return value };
        let op = op.clone();
        let number = |hiding: &Hiding| self.beyond(value, hiding.keep).filter(|x| x.is_finite() && hiding.taken.is_empty());
        if let [hiding] = &hidings[..]
            && let Some(number) = number(hiding)
        {
            let (keep, number) = (hiding.keep, self.copy.float(number));
            return self.copy.select(keep, value, number);
        }
        match op {
            Op::Mask { x, keep, fill } => {
                let (x, fill) = (self.written(x), self.copy.float(fill.value()));
                self.copy.select(keep, x, fill)
            }
            op if op.is_elementwise() || matches!(op, Op::Transpose(_) | Op::Full { .. }) => {
                self.made_of(value, &op, Self::written)
            }
            _ => value,
        }
    }

    /// The value of an op, made of other operands: of what `other` has for each.
    fn made_of(&mut self, value: ValueId, op: &Op, other: fn(&mut Self, ValueId) -> ValueId) -> ValueId {
        let others: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, other(self, v))).collect();
        match others.iter().all(|(before, now)| before == now) {
            true => value,
            false => self.copy.op(op.clone().map_operands(|v| others[&v])),
        }
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
            Op::Unary(..) | Op::Binary(..) | Op::Select { .. } | Op::Transpose(_) => self.made_of(value, &op, Self::revealed),
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
            None => !masks(&self.copy.b.kernel, v, &self.made).iter().any(|hiding| hiding.keep == keep),
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
            Op::Select { cond, on_false, .. } if cond == keep => of(on_false),
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
