//! Padding. A tile in registers or shared memory is padded to whole blocks; the IR's tiles are
//! ragged. Reductions and contractions along a loop axis, or along a range whose length is no
//! multiple of a block, must not see the padding. So it must hold what changes nothing: `-inf`
//! under a maximum, 0 under a sum or product. Loads pad with 0 and masks with `-inf`; where that
//! does not suffice a value is guarded: its padding is overwritten right after it is computed,
//! along loops on cut tiles only.

use std::collections::{HashMap, HashSet};

use flashtile_dsl::ir::{AxisKind, BinaryOp, Dim, Fill, Kernel, Op, UnaryOp, ValueDef, ValueId};

use super::computed::keeps_zero;
use crate::error::Error;
use crate::rewrite::is_positive;

/// The values whose padding along a loop axis, or a range that `is_padded`, must be overwritten,
/// and with what.
///
/// # Errors
/// A value is multiplied along the axis, and its maximum taken before.
pub(super) fn guards(
    kernel: &Kernel,
    assumed: &[String],
    is_padded: &dyn Fn(&Dim) -> bool,
) -> Result<HashMap<ValueId, Fill>, Error> {
    let has_padding = |dim: &Dim| match dim {
        Dim::Axis(a) => kernel.axes[*a].kind == AxisKind::Loop,
        Dim::Range(_) => is_padded(dim),
    };
    let along = |v: ValueId| kernel.tile(v).dims.get(1).filter(|dim| has_padding(dim));
    let mut demands = Demands { kernel, assumed, guards: HashMap::new(), pinned: HashMap::new(), seen: HashSet::new() };
    let wanted = kernel.walk().into_iter().filter_map(|(_, op)| match &kernel.ops[op].op {
        Op::Reduce(operation, x) => Some((op, *x, along(*x)?, Fill::neutral(*operation))),
        Op::Dot { a, .. } => Some((op, *a, along(*a)?, Fill::Zero)),
        _ => None,
    });
    let wanted: Vec<_> = wanted.collect();
    for &(_, value, dim, fill) in &wanted {
        demands.pin(value, dim, fill);
    }
    for (op, value, dim, fill) in wanted {
        let is_product = matches!(kernel.ops[op].op, Op::Dot { .. });
        // A reduction reads a copy where the padding holds something else (`Lowering::reduced`).
        if !demands.meet(value, dim, fill) && is_product {
            return Err(Error::unsupported(
                "a value that is multiplied along a loop after its maximum was taken along it",
                "mask it for the maximum, `mask(x, pos(j) < N)`",
                kernel.ops[op].span,
            ));
        }
    }
    Ok(demands.guards)
}

/// The value whose padding is overwritten for `value`. A cast keeps what its operand holds, and only the operand is in a form that
/// can be overwritten.
pub(super) fn overwritten(kernel: &Kernel, value: ValueId) -> ValueId {
    let mut target = value;
    while let Some((_, Op::Cast(_, x))) = kernel.def(target) {
        target = *x;
    }
    target
}

/// What padding must hold for the ops seen so far.
struct Demands<'a> {
    kernel: &'a Kernel,
    assumed: &'a [String],
    guards: HashMap<ValueId, Fill>,
    /// What the padding of values holds by itself, and ops rely on.
    pinned: HashMap<ValueId, Fill>,
    /// Values that were looked at for what they hold by themselves.
    seen: HashSet<(ValueId, Fill)>,
}

impl Demands<'_> {
    /// Notes what padding holds by itself, of the value and of what it is made of, if it is what an
    /// op wants of the value.
    fn pin(&mut self, value: ValueId, dim: &Dim, want: Fill) {
        if !self.seen.insert((value, want)) || !self.holds(value, dim, want) {
            return;
        }
        self.pinned.entry(overwritten(self.kernel, value)).or_insert(want);
        let Some((_, op)) = self.kernel.def(value) else { return };
        if op.is_arithmetic() || matches!(op, Op::Transpose(_)) {
            for operand in op.operands().into_iter().filter(|v| self.kernel.tile(*v).dims.contains(dim)) {
                self.pin(operand, dim, Fill::Zero);
                self.pin(operand, dim, Fill::NegInf);
            }
        }
    }

    /// Sees to it that the padding of a value holds what an op wants; false if it holds something
    /// else.
    fn meet(&mut self, value: ValueId, dim: &Dim, want: Fill) -> bool {
        if self.holds(value, dim, want) {
            return true;
        }
        let target = overwritten(self.kernel, value);
        let held = self.pinned.get(&target).copied().unwrap_or(want);
        *self.guards.entry(target).or_insert(held) == want
    }

    /// Whether the padding of a value holds this already.
    fn holds(&self, value: ValueId, dim: &Dim, want: Fill) -> bool {
        let Self { kernel, assumed, guards, .. } = self;
        let by_itself = want == Fill::Zero && matches!(dim, Dim::Range(_)) && keeps_zero(kernel, value);
        by_itself || Context { kernel, assumed, dim }.padding(value, guards) == Some(want)
    }
}

/// Whether a condition is false in its padding along a dimension, since it is not unless a truth value
/// holds that is loaded along it: loads pad with 0.
pub(super) fn is_false_beyond(kernel: &Kernel, condition: ValueId, dim: &Dim) -> bool {
    match kernel.def(condition) {
        Some((_, Op::Load { .. })) => kernel.tile(condition).dims.contains(dim),
        Some((_, Op::Binary(BinaryOp::And, a, b))) => [a, b].into_iter().any(|side| is_false_beyond(kernel, *side, dim)),
        _ => false,
    }
}

struct Context<'a> {
    kernel: &'a Kernel,
    assumed: &'a [String],
    dim: &'a Dim,
}

impl Context<'_> {
    fn has_dim(&self, value: ValueId) -> bool {
        self.kernel.tile(value).dims.contains(self.dim)
    }

    /// What the padding of `value` along the dimension holds; `None` if that is unknown.
    fn padding(&self, value: ValueId, guards: &HashMap<ValueId, Fill>) -> Option<Fill> {
        if let Some(fill) = guards.get(&value) {
            return Some(*fill);
        }
        let ValueDef::Result(op, _) = self.kernel.values[value].def else { return None };
        match &self.kernel.ops[op].op {
            Op::Load { .. } => Some(Fill::Zero),
            // Along a loop what is beyond the axis is masked with all that is hidden, along a range
            // what the condition says of it.
            Op::Mask { x, keep, fill } => match self.dim {
                Dim::Range(_) if !is_false_beyond(self.kernel, *keep, self.dim) => {
                    self.padding(*x, guards).filter(|held| held == fill)
                }
                _ => Some(*fill),
            },
            Op::Cast(_, x) | Op::Transpose(x) => self.padding(*x, guards),
            Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, x) => (self.padding(*x, guards) == Some(Fill::NegInf)).then_some(Fill::Zero),
            Op::Binary(BinaryOp::Mul, a, b) => {
                let (x, factor) = if self.has_dim(*a) { (a, b) } else { (b, a) };
                let keeps = !self.has_dim(*factor)
                    && is_positive(self.kernel, self.assumed, *factor)
                    && self.padding(*x, guards) == Some(Fill::NegInf);
                keeps.then_some(Fill::NegInf)
            }
            // Subtracting something that is not itself -inf. A row whose maximum is -inf saw nothing, and is guarded by
            // visible_or_zero or is NaN by the kernel's own text.
            Op::Binary(BinaryOp::Sub, a, b) if self.has_dim(*a) && !self.has_dim(*b) => {
                (self.padding(*a, guards) == Some(Fill::NegInf)).then_some(Fill::NegInf)
            }
            _ => None,
        }
    }
}
