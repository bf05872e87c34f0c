//! Quotients and remainders of positions by powers of two, as the bits that they are.
//!
//! A lane has several elements of a matrix, whose positions differ in few bits. What is made of the
//! other bits is the same for all of them, and is computed once: of `pos(j) / 16` and `pos(i) / 16`
//! eight elements of a lane make one number. The compiler of CUDA C finds that, if it is told in
//! bits ([`Function::Bits`]); of a division it does not.

use flashtile_dsl::ir::{BinaryOp, Dim, Op, Type, ValueId};

use super::context::Lowering;
use crate::plan::{Builtin, Expr, Function, Operator};

impl Lowering<'_> {
    /// The bits that `x op y` is, if these are a position, or what is made of one, and a power of
    /// two: of negative numbers too. `of` is what `x` computes.
    pub(super) fn of_bits(&self, op: BinaryOp, of: ValueId, x: &Expr, y: &Expr) -> Option<Expr> {
        let &Expr::Int(by) = y else { return None };
        if !(2..=1 << 30).contains(&by) || by.count_ones() > 1 || !x.has_position() {
            return None;
        }
        let x = if self.has_bits_apart(of) { Expr::call(Function::Bits, [x.clone()]) } else { x.clone() };
        match op {
            BinaryOp::Div => Some(Expr::infix(Operator::Shr, x, Expr::Int(by.trailing_zeros().into()))),
            BinaryOp::Rem => Some(Expr::infix(Operator::BitAnd, x, Expr::Int(by - 1))),
            _ => None,
        }
    }

    /// Whether a value is a position along an axis whose tiles begin at multiples of 16.
    fn has_bits_apart(&self, value: ValueId) -> bool {
        let Some((_, Op::Pos(coordinate))) = self.kernel.def(value) else { return false };
        let Type::Coord(axis) = self.kernel.ty(*coordinate) else { return false };
        let first = if self.classes.is_row(&Dim::Axis(*axis)) { Builtin::FirstRow } else { Builtin::FirstColumn };
        self.first_position(*axis, Expr::name("tile")).begins_at_sixteens(first)
    }
}
