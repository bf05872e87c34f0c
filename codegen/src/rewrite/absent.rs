//! Reductions and contractions do not see what masks hide.
//!
//! Most operands hold what changes nothing there: a row maximum sees `-inf`, a product the 0 that
//! `exp` makes of it. Others are masked once more, by the condition under which their elements
//! exist: of `exp(s) + 1.0` a hidden element would count as 1, and of `tanh(s)` as -1.

use std::collections::HashMap;

use flashtile_dsl::analysis::hidden::{Condition, HiddenElements};
use flashtile_dsl::ir::{BinaryOp, Elem, Fill, Kernel, Op, OpId, Span, UnaryOp, ValueId};

use super::edit;

/// Masks the operands of reductions and contractions that hold something else than what changes
/// nothing. `assumed` are the scalar parameters that are known to be positive.
pub fn mask_operands(kernel: &mut Kernel, assumed: &[String]) {
    mask(kernel, assumed, |op| match op {
        Op::Reduce(op, x) => Some((vec![*x], Fill::neutral(*op))),
        Op::Dot { a, b, .. } => Some((vec![*a, *b], Fill::Zero)),
        Op::Scatter { value, .. } => Some((vec![*value], Fill::Zero)),
        _ => None,
    });
}

/// Stores 0 for what masks hide: of a kernel that computes operands of products for another one.
pub fn mask_stored(kernel: &mut Kernel) {
    mask(kernel, &[], |op| match op {
        Op::Store { value, .. } => Some((vec![*value], Fill::Zero)),
        _ => None,
    });
}

/// Masks operands of ops that do not hold a fill in their hidden elements.
fn mask(kernel: &mut Kernel, assumed: &[String], wanted: impl Fn(&Op) -> Option<(Vec<ValueId>, Fill)>) {
    let hidden = HiddenElements::new(kernel, &|v| is_positive(kernel, assumed, v));
    let mut done = HashMap::new();
    for (_, id) in kernel.walk() {
        let Some((values, fill)) = wanted(&kernel.ops[id].op) else { continue };
        for value in values {
            if hidden.condition(value).is_none() || hidden.fill(value) == Some(fill) {
                continue;
            }
            let masked = Masking { hidden: &hidden, fill, before: id, done: &mut done }.masked(kernel, value);
            kernel.ops[id].op = match kernel.ops[id].op.clone() {
                Op::Dot { a, b, acc } => {
                    let of = |v| if v == value { masked } else { v };
                    Op::Dot { a: of(a), b: of(b), acc }
                }
                op => op.map_operands(|v| if v == value { masked } else { v }),
            };
        }
    }
}

/// Whether a value is above 0.
pub(crate) fn is_positive(kernel: &Kernel, assumed: &[String], value: ValueId) -> bool {
    match kernel.def(value) {
        Some((_, Op::Constant(Elem::F32, c))) => *c > 0.0,
        Some((_, Op::Scalar(p))) => assumed.contains(&kernel.params[*p].name),
        Some((_, Op::Binary(BinaryOp::Mul, a, b))) => is_positive(kernel, assumed, *a) && is_positive(kernel, assumed, *b),
        Some((_, Op::Full { value, .. })) => is_positive(kernel, assumed, *value),
        Some((_, &Op::Unary(UnaryOp::Exp2, x))) => rounded_down(kernel, x).is_some_and(|x| is_positive(kernel, assumed, x)),
        Some((_, Op::Select { on_true, on_false, .. })) => {
            is_positive(kernel, assumed, *on_true) && is_positive(kernel, assumed, *on_false)
        }
        _ => false,
    }
}

/// The number whose power of two, no larger, `exponent` is of: `floor(log2(x))`.
fn rounded_down(kernel: &Kernel, exponent: ValueId) -> Option<ValueId> {
    let Some((_, &Op::Unary(UnaryOp::Floor, logarithm))) = kernel.def(exponent) else { return None };
    match kernel.def(logarithm) {
        Some((_, &Op::Unary(UnaryOp::Log2, x))) => Some(x),
        _ => None,
    }
}

/// An operand that is masked for an op.
struct Masking<'a> {
    hidden: &'a HiddenElements,
    fill: Fill,
    before: OpId,
    /// Values that were masked for an earlier op, with their fill.
    done: &'a mut HashMap<(ValueId, Fill), ValueId>,
}

impl Masking<'_> {
    fn insert(&self, kernel: &mut Kernel, op: Op, span: Span) -> ValueId {
        edit::insert_before(kernel, self.before, op, span)
    }

    /// The value, masked where it was computed: casts and transpositions follow.
    fn masked(&mut self, kernel: &mut Kernel, value: ValueId) -> ValueId {
        if let Some(&known) = self.done.get(&(value, self.fill)) {
            return known;
        }
        let span = kernel.def(value).map_or_else(Span::default, |(id, _)| kernel.ops[id].span);
        let made = match kernel.def(value).map(|(_, op)| op.clone()) {
            Some(Op::Cast(elem, x)) => {
                let x = self.masked(kernel, x);
                self.insert(kernel, Op::Cast(elem, x), span)
            }
            Some(Op::Transpose(x)) => {
                let x = self.masked(kernel, x);
                self.insert(kernel, Op::Transpose(x), span)
            }
            _ => {
                let condition = self.hidden.condition(value).expect("of a value that hides something").clone();
                let keep = self.condition(kernel, &condition, span);
                self.insert(kernel, Op::Mask { x: value, keep, fill: self.fill }, span)
            }
        };
        self.done.insert((value, self.fill), made);
        made
    }

    fn condition(&self, kernel: &mut Kernel, condition: &Condition, span: Span) -> ValueId {
        match condition {
            Condition::Holds(keep) => *keep,
            Condition::Transposed(of) => {
                let keep = self.condition(kernel, of, span);
                match kernel.tile(keep).rank() {
                    2 => self.insert(kernel, Op::Transpose(keep), span),
                    // A vector is repeated along the axis that it lacks, wherever that is.
                    _ => keep,
                }
            }
            Condition::All(all) => {
                let all: Vec<ValueId> = all.iter().map(|one| self.condition(kernel, one, span)).collect();
                self.joined(kernel, BinaryOp::And, &all, span)
            }
            Condition::Either(taken, on_true, on_false) => {
                let not = self.insert(kernel, Op::Unary(UnaryOp::Not, *taken), span);
                let mut both = Vec::new();
                for (taken, branch) in [(*taken, on_true), (not, on_false)] {
                    let holds = match branch {
                        Some(branch) => {
                            let branch = self.condition(kernel, branch, span);
                            self.joined(kernel, BinaryOp::And, &[taken, branch], span)
                        }
                        None => taken,
                    };
                    both.push(holds);
                }
                self.joined(kernel, BinaryOp::Or, &both, span)
            }
        }
    }

    fn joined(&self, kernel: &mut Kernel, op: BinaryOp, values: &[ValueId], span: Span) -> ValueId {
        let join = |a, b| self.insert(kernel, Op::Binary(op, a, b), span);
        values.iter().copied().reduce(join).expect("at least one")
    }
}
