//! Sums of gradients of which some are hidden.
//!
//! What a mask hides has no gradient, and an element that is absent in a term is absent in the sum.
//! So a term counts as 0 where it is hidden and the value whose gradient the sum is exists: of
//! `rowsum(p) + rowsum(mask(p, keep))` each element of `p` has the gradient of the first sum.

use super::NotDifferentiable;
use super::rules::{Adjoint, Reverse};
use crate::ir::{Fill, Kernel, Op, ValueId};

impl Reverse<'_, '_> {
    /// The sum of two gradients of a value of the forward kernel.
    pub fn sum_of(&mut self, of: ValueId, a: Adjoint, b: Adjoint) -> Adjoint {
        let forward = self.copy.forward;
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
        let missing = here.into_iter().filter(|keep| !hidden.contains(keep));
        let value = missing.fold(g.value, |x, keep| self.copy.op(Op::Mask { x, keep, fill: Fill::NegInf }));
        Ok(Adjoint { value, ..g })
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
