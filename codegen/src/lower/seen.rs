//! Whether something after a loop sees the running maximum itself, and not only what is the same
//! for every reference.

use std::collections::HashMap;

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

/// Whether something after the loop depends on which reference the carried values stand for.
///
/// Quotients of weights do not, and neither does a reference plus the logarithm of a weight.
/// Weights may be added, and moved to another reference (`l * exp(m - max(m, sink))`). They may be
/// made anew against a reference that is no less (`exp(sink - max(m, sink))`). `exp(sink - m)` may
/// overflow where the maximum itself would not let it.
pub(super) fn is_seen(kernel: &Kernel, id: OpId, streaming: &Streaming) -> bool {
    let Op::For { part, body, .. } = kernel.ops[id].op else { unreachable!("asked about a loop") };
    let results = &kernel.ops[id].results;
    let Ok(mut after) = AfterLoop::of(kernel, results, streaming) else { return true };
    for (block, op) in kernel.walk() {
        let data = &kernel.ops[op];
        if block == body || !data.op.operands().iter().any(|v| after.known.contains_key(v)) {
            continue;
        }
        // The state of a part is stored as it is.
        let state = |value: &ValueId| part.is_some() && results.contains(value);
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
    /// Of the results of a loop, right behind it.
    fn of(kernel: &'a Kernel, results: &[ValueId], streaming: &Streaming) -> Result<Self, Seen> {
        let (mut base, mut known) = (None, HashMap::new());
        for (form, &result) in streaming.forms.iter().zip(results) {
            match form {
                Form::RunningMaximum { .. } => drop(known.insert(result, Dependence::Reference(known.len()))),
                Form::RescaledSum { base: own, .. } if base.is_some_and(|b| b != *own) => return Err(Seen),
                Form::RescaledSum { base: own, .. } => base = Some(*own),
                _ => {}
            }
        }
        for (form, &result) in streaming.forms.iter().zip(results) {
            if let Form::RescaledSum { maximum, .. } = form {
                let Some(Dependence::Reference(r)) = known.get(&results[*maximum]).copied() else { return Err(Seen) };
                known.insert(result, Dependence::Weight(r));
            }
        }
        Ok(Self { kernel, base, known, references: results.len(), bounds: HashMap::new() })
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
