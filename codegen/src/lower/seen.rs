//! Whether something after a loop sees the running maximum itself, and not only what is the same
//! for every reference.

use std::collections::HashMap;

use flashtile_dsl::analysis::onward::Onward;
use flashtile_dsl::analysis::streaming::{Base, Form, Streaming};
use flashtile_dsl::ir::{BinaryOp, Kernel, Op, OpId, UnaryOp, ValueId};

/// How a value after the loop depends on the references that carried values stand for. What does
/// not depend on them is not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dependence {
    /// The reference of this number itself.
    Reference(usize),
    /// Something minus the reference.
    Below(usize),
    /// One reference minus another.
    Move(usize, usize),
    /// `exp(-reference)` times what does not depend on it.
    Weight(usize),
    /// `exp` of a move: what turns weights of the one reference into weights of the other.
    Factor(usize, usize),
    /// The logarithm of a weight.
    Log(usize),
}

/// A value that depends on the reference in a way that nothing later undoes.
struct Seen;

/// Whether something depends on which reference the values stand for that a loop carries: after the
/// loop, or in a loop around it that hands them on ([`Onward`]), or after that one.
///
/// Quotients of weights do not, and neither does a reference plus the logarithm of a weight.
/// Weights may be added, and moved to another reference (`l * exp(m - max(m, sink))`). They may be
/// made anew against a reference that is no less (`exp(sink - max(m, sink))`). `exp(sink - m)` may
/// overflow where the maximum itself would not let it.
pub(super) fn is_seen(kernel: &Kernel, id: OpId, streaming: &Streaming) -> bool {
    let walk = Onward::from(kernel, id, |_| false);
    let outer = &kernel.ops[walk.outer()];
    let Op::For { part, .. } = outer.op else { unreachable!("asked about a loop") };
    let Ok(mut after) = AfterLoop::of(kernel, &walk, streaming) else { return true };
    for (_, op) in kernel.walk() {
        let data = &kernel.ops[op];
        let mut known = data.op.operands().into_iter().enumerate().filter(|(_, v)| after.known.contains_key(v)).peekable();
        if known.peek().is_none() || known.all(|(operand, _)| walk.goes_on(kernel, op, operand)) {
            continue;
        }
        // The state of a part is stored as it is.
        let state = |value: &ValueId| part.is_some() && outer.results.contains(value);
        if matches!(&data.op, Op::Store { value, .. } | Op::Scatter { value, .. } | Op::OfPart { value, .. } if state(value)) {
            continue;
        }
        let Ok(found) = after.result(&data.op) else { return true };
        after.known.extend(data.results.first().copied().zip(found));
    }
    false
}

/// What is known of values after a loop.
struct AfterLoop<'a> {
    kernel: &'a Kernel,
    /// Of what the rescaled sums are powers; `None` if there are none.
    base: Option<Base>,
    known: HashMap<ValueId, Dependence>,
    /// The highest number of a reference.
    references: usize,
    /// What a reference is no less than.
    bounds: HashMap<usize, Vec<ValueId>>,
}

impl<'a> AfterLoop<'a> {
    /// Of what the loops of a walk give, and of what those around the innermost one are entered with.
    fn of(kernel: &'a Kernel, walk: &Onward, streaming: &Streaming) -> Result<Self, Seen> {
        let mut after = Self { kernel, base: None, known: HashMap::new(), references: 0, bounds: HashMap::new() };
        for form in &streaming.forms {
            match form {
                Form::RescaledSum { base, .. } if after.base.is_some_and(|known| known != *base) => return Err(Seen),
                Form::RescaledSum { base, .. } => after.base = Some(*base),
                _ => {}
            }
        }
        for values in walk.moments(kernel) {
            for (form, &value) in streaming.forms.iter().zip(&values) {
                if matches!(form, Form::RunningMaximum { .. }) {
                    after.references += 1;
                    after.known.insert(value, Dependence::Reference(after.references));
                }
            }
            for (form, &value) in streaming.forms.iter().zip(&values) {
                if let Form::RescaledSum { maximum, .. } = form {
                    let Some(Dependence::Reference(r)) = after.get(values[*maximum]) else { return Err(Seen) };
                    after.known.insert(value, Dependence::Weight(r));
                }
            }
        }
        Ok(after)
    }

    fn get(&self, v: ValueId) -> Option<Dependence> {
        self.known.get(&v).copied()
    }

    /// What the result of an op depends on, if it depends on a reference.
    fn result(&mut self, op: &Op) -> Result<Option<Dependence>, Seen> {
        match *op {
            Op::Unary(UnaryOp::VisibleOrZero, x) if matches!(self.get(x), Some(Dependence::Reference(_))) => Ok(self.get(x)),
            Op::Unary(function @ (UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Ln | UnaryOp::Log2), x) => self.power(function, x),
            Op::Binary(operation, a, b) => self.combined(operation, a, b),
            _ => Err(Seen),
        }
    }

    /// Of an exponential or a logarithm.
    fn power(&self, function: UnaryOp, x: ValueId) -> Result<Option<Dependence>, Seen> {
        use Dependence::{Below, Factor, Log, Move, Weight};
        let natural = matches!(function, UnaryOp::Exp | UnaryOp::Ln);
        let exponential = matches!(function, UnaryOp::Exp | UnaryOp::Exp2);
        match self.get(x) {
            _ if natural != (self.base == Some(Base::E)) => Err(Seen),
            Some(Below(r)) if exponential => Ok(Some(Weight(r))),
            Some(Move(from, to)) if exponential => Ok(Some(Factor(from, to))),
            Some(Weight(r)) if !exponential => Ok(Some(Log(r))),
            _ => Err(Seen),
        }
    }

    /// Of an op of two values.
    fn combined(&mut self, operation: BinaryOp, a: ValueId, b: ValueId) -> Result<Option<Dependence>, Seen> {
        use BinaryOp::{Add, Div, DivOrZero, Max, Mul, Sub};
        use Dependence::{Below, Factor, Log, Move, Reference, Weight};
        Ok(match (operation, self.get(a), self.get(b)) {
            (Max, Some(Reference(r)), None) => Some(self.raised(r, b)),
            (Max, None, Some(Reference(r))) => Some(self.raised(r, a)),
            (Sub, None, Some(Reference(r))) if self.is_below(a, r) => Some(Below(r)),
            (Sub, Some(Reference(from)), Some(Reference(to))) => Some(Move(from, to)),
            (Mul | Div, Some(Weight(r)), None) | (Mul, None, Some(Weight(r))) => Some(Weight(r)),
            (Mul, Some(Weight(r)), Some(Factor(from, to))) | (Mul, Some(Factor(from, to)), Some(Weight(r))) if r == from => {
                Some(Weight(to))
            }
            (Add, Some(Weight(r)), Some(Weight(other))) if r == other => Some(Weight(r)),
            (Div | DivOrZero, Some(Weight(r)), Some(Weight(other))) if r == other => None,
            (Add, Some(Reference(r)), Some(Log(other))) | (Add, Some(Log(other)), Some(Reference(r))) if r == other => None,
            _ => return Err(Seen),
        })
    }

    /// A new reference: the greater of one and another value.
    fn raised(&mut self, r: usize, other: ValueId) -> Dependence {
        let bound = self.bounds.get(&r).into_iter().flatten().copied().chain([other]).collect();
        self.references += 1;
        self.bounds.insert(self.references, bound);
        Dependence::Reference(self.references)
    }

    /// Whether a reference is no less than a value.
    fn is_below(&self, value: ValueId, r: usize) -> bool {
        let def = |v: ValueId| self.kernel.def(v).map(|(_, op)| op);
        let equal = |x: ValueId| x == value || (def(x).is_some() && def(x) == def(value));
        self.bounds.get(&r).is_some_and(|all| all.iter().any(|&x| equal(x)))
    }
}
