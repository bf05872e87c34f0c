//! The printed form of expressions.
//!
//! Operators bind as in C. An element of a fragment is its name alone: which element is meant says
//! the statement. `row(i_row)` is the position along rows whose first, for the thread, is `i_row`.

use std::fmt;

use super::super::{Expr, Operator, Param, Prefix};

/// Of what is one word, a call or in parentheses.
const ATOM: u8 = 16;
/// Of operators before a value.
const PREFIX: u8 = 14;

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bound(self, f, 0)
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Value(name) => write!(f, "params.{name}"),
            Param::Address(name) => write!(f, "params.{name}.address"),
            Param::Stride(name, d) => write!(f, "params.{name}.stride{d}"),
        }
    }
}

fn precedence(e: &Expr) -> u8 {
    match e {
        Expr::Infix(operator, ..) => operator.precedence(),
        Expr::Prefix(..) => PREFIX,
        Expr::Float(x) if x.is_sign_negative() => PREFIX,
        Expr::Int(x) if *x < 0 => PREFIX,
        _ => ATOM,
    }
}

/// In parentheses, where what is around binds tighter than `outer`.
fn write_bound(e: &Expr, f: &mut fmt::Formatter<'_>, outer: u8) -> fmt::Result {
    let inside = precedence(e) < outer;
    if inside {
        f.write_str("(")?;
    }
    write_bare(e, f)?;
    if inside {
        f.write_str(")")?;
    }
    Ok(())
}

fn write_bare(e: &Expr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let call = |f: &mut fmt::Formatter<'_>, name: &str, operands: &[&Expr]| {
        write!(f, "{name}(")?;
        for (n, e) in operands.iter().enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            write_bound(e, f, 0)?;
        }
        f.write_str(")")
    };
    match e {
        Expr::Float(x) if x.is_infinite() => f.write_str(if *x > 0.0 { "float.infinity" } else { "-float.infinity" }),
        Expr::Float(x) => write!(f, "{x:?}"),
        Expr::Int(x) => write!(f, "{x}"),
        Expr::Name(name) | Expr::Element(name, _) => f.write_str(name),
        Expr::Param(param) => write!(f, "{param}"),
        Expr::Builtin(builtin) => f.write_str(builtin.name()),
        Expr::RowPosition(first) => write!(f, "row({first})"),
        Expr::ColumnPosition(first) => write!(f, "column({first})"),
        Expr::Call(function, operands) => call(f, function.name(), &operands.iter().collect::<Vec<_>>()),
        Expr::Select(condition, yes, no) => call(f, "select", &[condition, yes, no]),
        Expr::Cast(to, x) => call(f, to.name(), &[x]),
        Expr::Prefix(operator, x) => {
            f.write_str(if *operator == Prefix::Neg { "-" } else { "!" })?;
            // A number after the sign would read as a negative number.
            let outer = if matches!(**x, Expr::Int(_) | Expr::Float(_)) { ATOM + 1 } else { PREFIX + 1 };
            write_bound(x, f, outer)
        }
        Expr::Infix(operator, a, b) => {
            let p = operator.precedence();
            write_bound(a, f, p)?;
            write!(f, " {} ", operator.symbol())?;
            write_bound(b, f, p + 1)
        }
    }
}

impl Operator {
    /// The operator with this symbol.
    pub(super) fn named(symbol: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|o| o.symbol() == symbol)
    }
}
