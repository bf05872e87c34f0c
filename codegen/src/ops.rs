//! What each elementwise op becomes in a plan: one row an op, and what the functions that rows call
//! cost.
//!
//! The meaning of an op, and all that analyses ask of it, stands in its row in
//! `dsl/src/ir/elementwise.rs`. A row here is for an op on its own. Lowering replaces some by what
//! is cheaper where they stand: `tanh` and quotients that may be approximate, quotients of rows,
//! quotients and remainders of positions by powers of two, products that are references.

use crate::plan::{Cast, Expr, Function, Operator, Prefix};
use flashtile_dsl::ir::{BinaryOp, UnaryOp};

/// What an op computes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Numbers {
    /// Floats, or truth values.
    Floats,
    /// Integers; the result fits in 32 bits whatever the call, which C++ may rely on.
    Integers,
    /// Integers whose result wraps around: C++ leaves open what `+`, `-` and `*` of `int` do there.
    Wrapping,
}

/// A function of one operand.
pub(crate) fn unary(op: UnaryOp, x: Expr, numbers: Numbers) -> Expr {
    use std::f64::consts::{LN_2, LOG2_E};
    let negative = |x| match numbers {
        Numbers::Wrapping => Expr::call(Function::WrapSub, [Expr::Int(0), x]),
        Numbers::Floats | Numbers::Integers => Expr::prefix(Prefix::Neg, x),
    };
    match (op, numbers != Numbers::Floats) {
        (UnaryOp::Neg, _) => negative(x),
        (UnaryOp::Abs, false) => Expr::call(Function::Abs, [x]),
        (UnaryOp::Abs, true) => Expr::call(Function::Most, [x.clone(), negative(x)]),
        (UnaryOp::Exp, _) => Expr::call(Function::Ex2, [Expr::infix(Operator::Mul, x, Expr::Float(LOG2_E))]),
        (UnaryOp::Exp2, _) => Expr::call(Function::Ex2, [x]),
        (UnaryOp::Ln, _) => Expr::infix(Operator::Mul, Expr::call(Function::Lg2, [x]), Expr::Float(LN_2)),
        (UnaryOp::Log2, _) => Expr::call(Function::Lg2, [x]),
        (UnaryOp::Tanh, _) => Expr::call(Function::Tanh, [x]),
        (UnaryOp::Not, _) => Expr::prefix(Prefix::Not, x),
        (UnaryOp::VisibleOrZero, _) => Expr::call(Function::VisibleOrZero, [x]),
        (UnaryOp::Sqrt, _) => Expr::call(Function::Sqrt, [x]),
        (UnaryOp::Rsqrt, _) => Expr::call(Function::Rsqrt, [x]),
        (UnaryOp::Sin, _) => Expr::call(Function::Sin, [x]),
        (UnaryOp::Cos, _) => Expr::call(Function::Cos, [x]),
        (UnaryOp::Floor, _) => Expr::call(Function::Floor, [x]),
    }
}

/// A function of two operands.
pub(crate) fn binary(op: BinaryOp, a: Expr, b: Expr, numbers: Numbers) -> Expr {
    if numbers == Numbers::Wrapping
        && let Some(function) = wrapping(op)
    {
        return Expr::call(function, [a, b]);
    }
    match (op, numbers != Numbers::Floats) {
        (BinaryOp::Add, false) => sum(a, b),
        (BinaryOp::Sub, false) => difference(a, b),
        (BinaryOp::Add, true) => Expr::infix(Operator::Add, a, b),
        (BinaryOp::Sub, true) => Expr::infix(Operator::Sub, a, b),
        (BinaryOp::Mul, _) => Expr::infix(Operator::Mul, a, b),
        (BinaryOp::Div, false) => Expr::infix(Operator::Div, a, b),
        (BinaryOp::Div | BinaryOp::DivOrZero, true) => Expr::call(Function::FloorDiv, [a, b]),
        (BinaryOp::Rem, _) => Expr::call(Function::FloorRem, [a, b]),
        (BinaryOp::Max, false) => Expr::call(Function::Max, [a, b]),
        (BinaryOp::Max, true) => Expr::call(Function::Most, [a, b]),
        (BinaryOp::Min, false) => Expr::call(Function::Min, [a, b]),
        (BinaryOp::Min, true) => Expr::call(Function::Least, [a, b]),
        (BinaryOp::DivOrZero, false) => Expr::call(Function::DivOrZero, [a, b]),
        (BinaryOp::And, _) => Expr::infix(Operator::And, a, b),
        (BinaryOp::Or, _) => Expr::infix(Operator::Or, a, b),
        (BinaryOp::BitAnd, _) => Expr::infix(Operator::BitAnd, a, b),
        (BinaryOp::BitOr, _) => Expr::infix(Operator::BitOr, a, b),
        (BinaryOp::BitXor, _) => Expr::infix(Operator::BitXor, a, b),
        (BinaryOp::Shl, _) => Expr::infix(Operator::Shl, a, places(b)),
        (BinaryOp::Shr, _) => Expr::infix(Operator::Shr, a, places(b)),
        // Its result has no sign, and would make whatever it meets have none.
        (BinaryOp::MulHi, _) => Expr::call(Function::MulHi, [a, b]).cast(Cast::Int),
    }
}

/// The function that wraps around, of an op that may leave 32 bits.
fn wrapping(op: BinaryOp) -> Option<Function> {
    match op {
        BinaryOp::Add => Some(Function::WrapAdd),
        BinaryOp::Sub => Some(Function::WrapSub),
        BinaryOp::Mul => Some(Function::WrapMul),
        _ => None,
    }
}

/// By how many places a shift goes: C leaves open what happens beyond 31.
fn places(b: Expr) -> Expr {
    match b {
        Expr::Int(0..=31) => b,
        b => Expr::infix(Operator::BitAnd, b, Expr::Int(31)),
    }
}

/// Instructions of a function, in slots of issue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct FunctionCost {
    /// Instructions, but for those of the special function unit, on the path that all but rare
    /// operands take.
    pub instructions: f64,
    /// Instructions of the special function unit.
    pub special: f64,
}

/// What a function costs: one instruction, if it has no row.
pub(crate) fn cost(function: Function) -> FunctionCost {
    let (instructions, special) = match function {
        Function::Ex2 | Function::Lg2 | Function::Reciprocal | Function::ReciprocalNormal | Function::TanhApprox => (0.0, 1.0),
        Function::TanhAbsolute => (3.0, 2.0),
        // Two tests of the range, two scalings and a product.
        Function::DivFull => (4.0, 1.0),
        Function::Tanh => (12.0, 2.0),
        Function::DivOrZero => (10.0, 0.0),
        // An approximation, two steps to the nearest number, and a test for operands that need
        // more.
        Function::Sqrt => (7.0, 1.0),
        Function::Rsqrt => (3.0, 1.0),
        // A reduction to a quarter of the circle, and two polynomials. Operands beyond 105615 take a
        // longer one.
        Function::Sin | Function::Cos => (20.0, 0.0),
        Function::Bits => (0.0, 0.0),
        _ => (1.0, 0.0),
    };
    FunctionCost { instructions, special }
}

/// `a + b`, one multiply-add if one of them is a product: said here, so that the compiler never
/// takes a product apart from its sum to use it twice.
fn sum(a: Expr, b: Expr) -> Expr {
    match (a, b) {
        (Expr::Infix(Operator::Mul, x, y), c) | (c, Expr::Infix(Operator::Mul, x, y)) => {
            Expr::call(Function::MultiplyAdd, [*x, *y, c])
        }
        (a, b) => Expr::infix(Operator::Add, a, b),
    }
}

/// `a - b`, likewise.
fn difference(a: Expr, b: Expr) -> Expr {
    let negated = |x: Expr| Expr::prefix(Prefix::Neg, x);
    match (a, b) {
        (Expr::Infix(Operator::Mul, x, y), c) => Expr::call(Function::MultiplyAdd, [*x, *y, negated(c)]),
        (c, Expr::Infix(Operator::Mul, x, y)) => Expr::call(Function::MultiplyAdd, [negated(*x), *y, c]),
        (a, b) => Expr::infix(Operator::Sub, a, b),
    }
}
