//! What each elementwise op becomes in CUDA C: one row an op, and what the functions of CUDA that
//! rows call cost.
//!
//! The meaning of an op, and all that analyses ask of it, stands in its row in
//! `dsl/src/ir/elementwise.rs`. A row here is for an op on its own. Lowering replaces some by what
//! is cheaper where they stand: `tanh` and quotients that may be approximate, quotients of rows,
//! products that are references.

use flashtile_dsl::ir::{BinaryOp, UnaryOp};
use flashtile_templates::expr::{Expr, Function};

/// A function of one operand; `integer`: of an `i32`.
pub(crate) fn unary(op: UnaryOp, x: Expr, integer: bool) -> Expr {
    use std::f64::consts::{LN_2, LOG2_E};
    match (op, integer) {
        (UnaryOp::Neg, _) => Expr::Prefix("-", Box::new(x)),
        (UnaryOp::Abs, false) => Expr::call(Function::Abs, [x]),
        (UnaryOp::Abs, true) => Expr::call(Function::Most, [x.clone(), Expr::Prefix("-", Box::new(x))]),
        (UnaryOp::Exp, _) => Expr::call(Function::Ex2, [Expr::infix("*", x, Expr::Float(LOG2_E))]),
        (UnaryOp::Exp2, _) => Expr::call(Function::Ex2, [x]),
        (UnaryOp::Ln, _) => Expr::infix("*", Expr::call(Function::Lg2, [x]), Expr::Float(LN_2)),
        (UnaryOp::Log2, _) => Expr::call(Function::Lg2, [x]),
        (UnaryOp::Tanh, _) => Expr::call(Function::Tanh, [x]),
        (UnaryOp::Not, _) => Expr::Prefix("!", Box::new(x)),
        (UnaryOp::VisibleOrZero, _) => Expr::call(Function::VisibleOrZero, [x]),
        (UnaryOp::Sqrt, _) => Expr::call(Function::Library("sqrtf"), [x]),
        (UnaryOp::Rsqrt, _) => Expr::call(Function::Library("rsqrtf"), [x]),
        (UnaryOp::Sin, _) => Expr::call(Function::Library("sinf"), [x]),
        (UnaryOp::Cos, _) => Expr::call(Function::Library("cosf"), [x]),
        (UnaryOp::Floor, _) => Expr::call(Function::Library("floorf"), [x]),
    }
}

/// A function of two operands; `integer`: of two `i32`.
pub(crate) fn binary(op: BinaryOp, a: Expr, b: Expr, integer: bool) -> Expr {
    match (op, integer) {
        (BinaryOp::Add, false) => sum(a, b),
        (BinaryOp::Sub, false) => difference(a, b),
        (BinaryOp::Add, true) => Expr::infix("+", a, b),
        (BinaryOp::Sub, true) => Expr::infix("-", a, b),
        (BinaryOp::Mul, _) => Expr::infix("*", a, b),
        (BinaryOp::Div, false) => Expr::infix("/", a, b),
        (BinaryOp::Div | BinaryOp::DivOrZero, true) => Expr::call(Function::FloorDiv, [a, b]),
        (BinaryOp::Rem, _) => Expr::call(Function::FloorRem, [a, b]),
        (BinaryOp::Max, false) => Expr::call(Function::Max, [a, b]),
        (BinaryOp::Max, true) => Expr::call(Function::Most, [a, b]),
        (BinaryOp::Min, false) => Expr::call(Function::Min, [a, b]),
        (BinaryOp::Min, true) => Expr::call(Function::Least, [a, b]),
        (BinaryOp::DivOrZero, false) => Expr::call(Function::DivOrZero, [a, b]),
        (BinaryOp::And, _) => Expr::infix("&&", a, b),
        (BinaryOp::Or, _) => Expr::infix("||", a, b),
        (BinaryOp::BitAnd, _) => Expr::infix("&", a, b),
        (BinaryOp::BitOr, _) => Expr::infix("|", a, b),
        (BinaryOp::BitXor, _) => Expr::infix("^", a, b),
        (BinaryOp::Shl, _) => Expr::infix("<<", a, places(b)),
        (BinaryOp::Shr, _) => Expr::infix(">>", a, places(b)),
        // Its result has no sign, and would make whatever it meets have none.
        (BinaryOp::MulHi, _) => Expr::ToInt(Box::new(Expr::call(Function::Library("__umulhi"), [a, b]))),
    }
}

/// By how many places a shift goes: C leaves open what happens beyond 31.
fn places(b: Expr) -> Expr {
    match b {
        Expr::Int(0..=31) => b,
        b => Expr::infix("&", b, Expr::Int(31)),
    }
}

/// Instructions, and among them those of the special function unit, of a function of CUDA's own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LibraryCost {
    /// Other instructions, on the path that all but rare operands take.
    pub instructions: f64,
    /// Instructions of the special function unit.
    pub special: f64,
}

/// Functions of CUDA's own that take more than one instruction.
const LIBRARY: &[(&str, LibraryCost)] = &[
    // An approximation, two steps to the nearest number, and a test for operands that need more.
    ("sqrtf", LibraryCost { instructions: 7.0, special: 1.0 }),
    // A reduction to a quarter of the circle, and a polynomial. Operands beyond 105615 take a loop.
    ("sinf", LibraryCost { instructions: 24.0, special: 0.0 }),
    ("cosf", LibraryCost { instructions: 24.0, special: 0.0 }),
    ("rsqrtf", LibraryCost { instructions: 3.0, special: 1.0 }),
];

/// What a function of CUDA's own costs; one instruction, if nothing else is known of it.
pub(crate) fn library_cost(name: &str) -> LibraryCost {
    let row = LIBRARY.iter().find(|(own, _)| *own == name);
    row.map_or(LibraryCost { instructions: 1.0, special: 0.0 }, |(_, cost)| *cost)
}

/// `a + b`, one multiply-add if one of them is a product: said here, so that the compiler never
/// takes a product apart from its sum to use it twice.
fn sum(a: Expr, b: Expr) -> Expr {
    match (a, b) {
        (Expr::Infix("*", x, y), c) | (c, Expr::Infix("*", x, y)) => Expr::call(Function::MultiplyAdd, [*x, *y, c]),
        (a, b) => Expr::infix("+", a, b),
    }
}

/// `a - b`, likewise.
fn difference(a: Expr, b: Expr) -> Expr {
    let negated = |x: Expr| Expr::Prefix("-", Box::new(x));
    match (a, b) {
        (Expr::Infix("*", x, y), c) => Expr::call(Function::MultiplyAdd, [*x, *y, negated(c)]),
        (c, Expr::Infix("*", x, y)) => Expr::call(Function::MultiplyAdd, [negated(*x), *y, c]),
        (a, b) => Expr::infix("-", a, b),
    }
}
