//! What a value becomes where a running maximum is chosen otherwise.
//!
//! The maximum of a streaming softmax is a reference: of `m` moved by a number, the sums that it
//! rescales become another multiple, and what a kernel stores stays. The gradient holds the maximum
//! fixed, which is right for outputs that no choice of it changes. That is checked here, as units
//! of measure are: each value moves along with the maximum, is multiplied by a power, or stays.

use std::collections::HashMap;

use super::NotDifferentiable;
use super::forward::Forward;
use crate::analysis::streaming::{Base, Form};
use crate::ir::{BinaryOp, Op, OpId, ReduceOp, UnaryOp, ValueId};

/// What a value becomes where the maximum in a slot grows by `x`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Scale {
    /// It stays.
    Same,
    /// It grows by a multiple of `x`.
    Shifted(usize, f64),
    /// It is multiplied by the base to the power of a multiple of `x`.
    Scaled(usize, Base, f64),
    /// Something else, from this op on.
    Mixed(usize, OpId),
}

impl Scale {
    /// The slot of the maximum that it depends on.
    fn maximum(self) -> Option<usize> {
        match self {
            Scale::Same => None,
            Scale::Shifted(m, _) | Scale::Scaled(m, ..) | Scale::Mixed(m, _) => Some(m),
        }
    }

    /// The same with another multiple; `None` where there is none.
    fn times(self, by: f64) -> Option<Self> {
        match self {
            Scale::Same => Some(self),
            Scale::Shifted(m, k) => Some(Scale::Shifted(m, k * by)),
            Scale::Scaled(m, base, k) => Some(Scale::Scaled(m, base, k * by)),
            Scale::Mixed(..) => None,
        }
        .map(Scale::simplified)
    }

    fn simplified(self) -> Self {
        match self {
            Scale::Shifted(_, k) | Scale::Scaled(_, _, k) if k == 0.0 => Scale::Same,
            other => other,
        }
    }

    /// Of a sum.
    fn plus(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Scale::Shifted(m, x), Scale::Shifted(n, y)) if m == n => Some(Scale::Shifted(m, x + y).simplified()),
            (Scale::Shifted(..), Scale::Same) => Some(self),
            (Scale::Same, Scale::Shifted(..)) => Some(other),
            (x, y) if x == y => Some(x),
            _ => None,
        }
    }

    /// Of a product.
    fn product(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Scale::Scaled(m, a, x), Scale::Scaled(n, b, y)) if m == n && a == b => Some(Scale::Scaled(m, a, x + y).simplified()),
            (Scale::Scaled(..) | Scale::Same, Scale::Same) => Some(self),
            (Scale::Same, Scale::Scaled(..)) => Some(other),
            _ => None,
        }
    }
}

/// Checks that no choice of a running maximum changes an output whose gradient is given.
pub(super) fn check(forward: &Forward<'_>) -> Result<(), NotDifferentiable> {
    let mut scales: HashMap<ValueId, Scale> = HashMap::new();
    for (n, slot) in forward.slots.iter().enumerate() {
        let scale = match slot.form {
            Form::RunningMaximum { .. } => Scale::Shifted(n, 1.0),
            Form::RescaledSum { maximum, base, .. } => Scale::Scaled(maximum, base, -1.0),
            _ => Scale::Same,
        };
        scales.insert(slot.result, scale);
    }
    for id in forward.in_order() {
        let data = &forward.kernel.ops[id];
        if forward.walk_of(id).is_some() {
            continue;
        }
        if let Op::Store { tensor, value, .. } = data.op {
            let scale = scales.get(&value).copied().unwrap_or(Scale::Same);
            if let Some(maximum) = scale.maximum().filter(|_| forward.given.contains(&tensor)) {
                let at = if let Scale::Mixed(_, op) = scale { op } else { id };
                let name = forward.name(forward.slots[maximum].result);
                let what = format!("`{name}` is used otherwise than by `acc / l` or `m + ln(l)`");
                let instead = "store quotients of what one maximum rescales, and the logarithm of a sum with its maximum";
                return Err(NotDifferentiable::new(what, forward.kernel.ops[at].span, instead));
            }
        }
        let scale = of_op(forward, &data.op, &|v| scales.get(&v).copied().unwrap_or(Scale::Same));
        let mixed = || {
            let maximum = data.op.operands().iter().find_map(|v| scales.get(v)?.maximum());
            maximum.map_or(Scale::Same, |m| Scale::Mixed(m, id))
        };
        // What is mixed stays so, from where it was made.
        let earlier = data.op.operands().into_iter().find_map(|v| match scales.get(&v) {
            Some(&scale @ Scale::Mixed(..)) => Some(scale),
            _ => None,
        });
        let scale = earlier.or(scale).unwrap_or_else(mixed);
        scales.extend(data.results.iter().map(|&result| (result, scale)));
    }
    Ok(())
}

/// The scale of what an op gives; `None` where it mixes.
fn of_op(forward: &Forward<'_>, op: &Op, of: &dyn Fn(ValueId) -> Scale) -> Option<Scale> {
    let constant = |v: ValueId| match forward.kernel.def(v)?.1 {
        &Op::Constant(_, x) => Some(x),
        _ => None,
    };
    match *op {
        Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } | Op::Mask { x, .. } => Some(of(x)),
        Op::Reduce(ReduceOp::Max, x) => Some(of(x)),
        Op::Reduce(ReduceOp::Sum, x) => of(x).product(Scale::Same),
        Op::Unary(unary, x) => match (unary, of(x)) {
            (_, Scale::Same) => Some(Scale::Same),
            (UnaryOp::VisibleOrZero, scale) => Some(scale),
            (UnaryOp::Neg, scale @ Scale::Scaled(..)) => Some(scale),
            (UnaryOp::Neg, scale) => scale.times(-1.0),
            (UnaryOp::Exp, Scale::Shifted(m, k)) => Some(Scale::Scaled(m, Base::E, k)),
            (UnaryOp::Exp2, Scale::Shifted(m, k)) => Some(Scale::Scaled(m, Base::Two, k)),
            (UnaryOp::Ln, Scale::Scaled(m, Base::E, k)) | (UnaryOp::Log2, Scale::Scaled(m, Base::Two, k)) => {
                Some(Scale::Shifted(m, k))
            }
            (UnaryOp::Abs, scale @ Scale::Scaled(..)) => Some(scale),
            (UnaryOp::Sqrt, scale @ Scale::Scaled(..)) => scale.times(0.5),
            (UnaryOp::Rsqrt, scale @ Scale::Scaled(..)) => scale.times(-0.5),
            _ => None,
        },
        Op::Binary(binary, a, b) => {
            let (x, y) = (of(a), of(b));
            match (binary, x, y) {
                (BinaryOp::Add, ..) => x.plus(y),
                (BinaryOp::Sub, Scale::Scaled(..), _) => x.plus(y),
                (BinaryOp::Sub, ..) => x.plus(y.times(-1.0)?),
                (BinaryOp::Mul, Scale::Shifted(..), Scale::Same) => x.times(constant(b)?),
                (BinaryOp::Mul, Scale::Same, Scale::Shifted(..)) => y.times(constant(a)?),
                (BinaryOp::Mul, ..) => x.product(y),
                (BinaryOp::Div, Scale::Shifted(..), Scale::Same) => x.times(1.0 / constant(b)?),
                (BinaryOp::Div | BinaryOp::DivOrZero, _, Scale::Same | Scale::Scaled(..)) => x.product(y.times(-1.0)?),
                (BinaryOp::Max | BinaryOp::Min, ..) => (x == y).then_some(x),
                _ => (x == Scale::Same && y == Scale::Same).then_some(Scale::Same),
            }
        }
        Op::Select { cond, on_true, on_false } => {
            let (x, y) = (of(on_true), of(on_false));
            // 0 is a multiple of every power.
            let scale = match (x, y) {
                (Scale::Scaled(..), Scale::Same) if constant(on_false) == Some(0.0) => Some(x),
                (Scale::Same, Scale::Scaled(..)) if constant(on_true) == Some(0.0) => Some(y),
                _ => (x == y).then_some(x),
            };
            scale.filter(|_| of(cond) == Scale::Same)
        }
        Op::Compare(_, a, b) => match (of(a), of(b)) {
            (Scale::Shifted(..), y) => (of(a) == y).then_some(Scale::Same),
            (x, y) => (x == y).then_some(Scale::Same),
        },
        Op::Dot { a, b, acc } => {
            let product = of(a).product(of(b))?;
            acc.map_or(Some(product), |acc| product.plus(of(acc)))
        }
        ref other => other.operands().into_iter().all(|v| of(v) == Scale::Same).then_some(Scale::Same),
    }
}

#[cfg(test)]
mod tests {
    use super::super::uses::Uses;
    use super::super::{Form, Request};
    use super::*;
    use crate::ir::SourceText;
    use crate::syntax::parse;

    /// Whether the output of a kernel that stores this behind (or in) a second loop is one that no
    /// choice of `m` changes.
    fn stays(stored: &str) -> Result<(), String> {
        let text = format!(
            "pub fn k<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<f32, (M, N)>) {{
                let i = program(tiles(M));
                let mut m = full(i, -INF);
                let mut l = zeros(i);
                for j in tiles(N) {{
                    let s = load(x, [i, j]);
                    let m_new = max(m, rowmax(s));
                    let r = visible_or_zero(m_new);
                    l = l * exp(m - r) + rowsum(exp(s - r));
                    m = m_new;
                }}
                for j in tiles(N) {{ let s = load(x, [i, j]); store(y, [i, j], {stored}); }}
            }}"
        );
        let source = SourceText { name: "k.rs".into(), text: text.into(), first_line: 1 };
        let kernel = parse(&source).unwrap_or_else(|e| panic!("{e}")).remove(0);
        let request = Request { of: vec!["x".into()], from: vec!["y".into()], form: Form::Plain };
        Forward::of(&kernel, &request, &Uses::default()).and_then(|forward| check(&forward)).map_err(|e| e.what)
    }

    #[test]
    fn outputs_that_no_choice_of_the_maximum_changes_are_told_from_others() {
        for good in [
            "s - (m + ln(l))",
            "exp(s - m) / l",
            "div_or_zero(exp(s - visible_or_zero(m)), l)",
            "exp(s - m - ln(l))",
            "sqrt(exp(2.0 * s - 2.0 * m)) / l",
            "exp(s) + 1.0",
            "select(s > m + ln(l), s, 0.0)",
            "select(s > 0.0, exp(s - m), 0.0) / l",
            "select(s > 0.0, 0.0, exp(s - m)) / l",
        ] {
            stays(good).unwrap_or_else(|why| panic!("{good}: {why}"));
        }
        for wrong in [
            "s - m",
            "exp(s - m)",
            "exp(s - m) / (l * l)",
            "exp2(s - m) / l",
            "exp(s - 2.0 * m) / l",
            "s + l",
            "s * l",
            "s + tanh(m)",
            "select(s > m, s, 0.0)",
            "select(s > 0.0, exp(s - m), 1.0) / l",
            "s + (m + 1.0) * (m - 1.0)",
        ] {
            let why = stays(wrong).expect_err(wrong);
            assert!(why.contains("is used otherwise than by"), "{wrong}: {why}");
        }
    }
}
