//! What an expression evaluates to before it must be an IR value: literals, sizes and tensors take no op until they meet
//! something that says what they are.

use crate::ir::{Builder, IndexOp, Op, ParamId, SizeExpr, SizeId, Span, ValueId};

/// The result of an expression.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Operand {
    /// An IR value.
    Value(ValueId),
    /// A literal, or arithmetic on literals.
    Number(Number),
    /// An expression over sizes.
    Size(SizeTree),
    /// A tensor parameter.
    Tensor(ParamId),
}

/// An operand with its place in the text.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) operand: Operand,
    pub(super) span: Span,
}

/// A number with no element type yet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    /// Written without a point: an index, an i32 or an f32.
    Int(i64),
    /// An f32.
    Float(f64),
}

impl Number {
    /// The value as a float.
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }
}

/// Integer arithmetic on sizes, kept as written: it is a [`SizeExpr`] in a range, and ops elsewhere.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum SizeTree {
    Const(i64),
    Size(SizeId),
    Op(IndexOp, Box<SizeTree>, Box<SizeTree>),
}

impl SizeTree {
    /// The same as an exact expression; `None` where it is not linear in the sizes, or its numbers are beyond reason.
    pub(super) fn to_expr(&self) -> Option<SizeExpr> {
        let expr = match self {
            SizeTree::Const(value) => Some(SizeExpr::constant(*value)),
            SizeTree::Size(size) => Some(SizeExpr::size(*size)),
            SizeTree::Op(op, a, b) => {
                let (a, b) = (a.to_expr()?, b.to_expr()?);
                match op {
                    IndexOp::Add => Some(a.add(&b)),
                    IndexOp::Sub => Some(a.sub(&b)),
                    IndexOp::Mul => match (a.as_constant(), b.as_constant()) {
                        (_, Some(factor)) => Some(a.mul(factor)),
                        (Some(factor), None) => Some(b.mul(factor)),
                        (None, None) => None,
                    },
                    IndexOp::Div => a.div(b.as_constant()?),
                    IndexOp::Rem | IndexOp::Min | IndexOp::Max => None,
                }
            }
        }?;
        expr.is_small().then_some(expr)
    }

    /// An expression, which is no number of blocks.
    pub(super) fn of(size: &SizeExpr) -> Self {
        let join = |op, a: Self, b: Self| SizeTree::Op(op, Box::new(a), Box::new(b));
        let (terms, constant, divisor) = size.parts();
        let each = |(&size, &times): (&SizeId, &i64)| match times.abs() {
            1 => (SizeTree::Size(size), times < 0),
            of => (join(IndexOp::Mul, SizeTree::Size(size), SizeTree::Const(of)), times < 0),
        };
        let number = (constant != 0 || terms.is_empty()).then(|| (SizeTree::Const(constant.abs()), constant < 0));
        let mut sum = None;
        for (term, negative) in terms.iter().map(each).chain(number) {
            sum = Some(match (sum, negative) {
                (None, false) => term,
                (None, true) => join(IndexOp::Sub, SizeTree::Const(0), term),
                (Some(sum), false) => join(IndexOp::Add, sum, term),
                (Some(sum), true) => join(IndexOp::Sub, sum, term),
            });
        }
        let sum = sum.expect("a term, or the number");
        if divisor == 1 { sum } else { join(IndexOp::Div, sum, SizeTree::Const(divisor)) }
    }

    /// Appends ops that compute it as an index.
    pub(super) fn emit(&self, builder: &mut Builder) -> ValueId {
        match self {
            SizeTree::Const(value) => builder.emit(Op::IndexConst(*value)),
            SizeTree::Size(size) => {
                let value = builder.emit(Op::SizeOf(*size));
                let name = builder.kernel.size_name(*size).to_owned();
                builder.name(value, name)
            }
            SizeTree::Op(op, a, b) => {
                let (a, b) = (a.emit(builder), b.emit(builder));
                builder.emit(Op::Index(*op, a, b))
            }
        }
    }
}
