//! Minima, maxima and absolute values in a comparison, taken apart: an order with one of several
//! numbers is an order with all, or any, of them. Sums, constant factors and constant divisors keep
//! the order of numbers, so that they are carried into the parts.

use super::predicate::{Form, Opaque, Side, Walk};
use crate::ir::{BinaryOp, CompareOp, Elem, Op, UnaryOp, ValueId};

/// Forms that a number is taken apart into at most: of more, only the range is known.
const MOST_FORMS: usize = 16;

impl Side {
    /// Number of forms.
    fn len(&self) -> usize {
        match self {
            Side::Form(_) => 1,
            Side::Extremum { of, .. } => of.iter().map(Side::len).sum(),
        }
    }

    fn forms(&self) -> Box<dyn Iterator<Item = &Form> + '_> {
        match self {
            Side::Form(form) => Box::new(std::iter::once(form)),
            Side::Extremum { of, .. } => Box::new(of.iter().flat_map(Side::forms)),
        }
    }

    /// The numbers that never fall (`rises`), or never rise, as the forms grow: what is the largest
    /// of some numbers stays so, or becomes the smallest.
    fn map(&self, rises: bool, of_form: &dyn Fn(&Form) -> Side) -> Side {
        match self {
            Side::Form(form) => of_form(form),
            Side::Extremum { largest, of } => {
                Side::Extremum { largest: *largest == rises, of: of.iter().map(|x| x.map(rises, of_form)).collect() }
            }
        }
    }

    fn scaled(&self, factor: i64) -> Side {
        self.map(factor >= 0, &|form| Side::Form(form.scaled(factor)))
    }

    fn floor_div(&self, divisor: i64) -> Side {
        self.map(true, &|form| Side::Form(form.floor_div(divisor)))
    }

    /// `self + factor * other`.
    fn plus(&self, other: &Side, factor: i64) -> Side {
        self.map(true, &|a| other.map(factor >= 0, &|b| Side::Form(a.plus(b, factor))))
    }

    /// The larger one of the number and its negation.
    fn absolute(self) -> Side {
        Side::Extremum { largest: true, of: vec![self.scaled(-1), self] }
    }
}

impl Walk<'_> {
    /// A side of a comparison, taken apart where an order with one of several numbers is an order
    /// with all, or any, of them.
    pub(super) fn side(&self, value: ValueId, op: CompareOp) -> Result<Side, Opaque> {
        let ordered = !matches!(op, CompareOp::Eq | CompareOp::Ne);
        Ok(match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Full { value, .. } | Op::Transpose(value)) => self.side(*value, op)?,
            Some(Op::Binary(which @ (BinaryOp::Max | BinaryOp::Min), a, b)) if ordered => {
                let both = vec![self.side(*a, op)?, self.side(*b, op)?];
                Side::Extremum { largest: *which == BinaryOp::Max, of: both }
            }
            Some(Op::Unary(UnaryOp::Abs, x)) if ordered => self.number(*x)?.absolute(),
            _ => self.number(value)?,
        })
    }

    /// A number, taken apart where what moves with the loop is one of several numbers: a sum with
    /// the largest of some numbers is the largest of the sums.
    fn number(&self, value: ValueId) -> Result<Side, Opaque> {
        match self.taken_apart(value)? {
            Some(side) if side.len() <= MOST_FORMS && side.forms().all(|form| self.is_followed(form)) => Ok(side),
            _ => Ok(Side::Form(self.form(value)?)),
        }
    }

    /// The number, taken apart; `None` if none of it is one of several numbers that move with the
    /// loop.
    pub(super) fn taken_apart(&self, value: ValueId) -> Result<Option<Side>, Opaque> {
        let part = |value: ValueId| match self.taken_apart(value)? {
            Some(side) => Ok((side, true)),
            None => Ok((Side::Form(self.form(value)?), false)),
        };
        let Some((_, op)) = self.kernel.def(value) else { return Ok(None) };
        if self.kernel.tile(value).elem != Elem::I32 || !self.walks_in(value) {
            return Ok(None);
        }
        Ok(match op {
            Op::Full { value, .. } | Op::Transpose(value) => self.taken_apart(*value)?,
            Op::Binary(which @ (BinaryOp::Max | BinaryOp::Min), a, b) => {
                Some(Side::Extremum { largest: *which == BinaryOp::Max, of: vec![part(*a)?.0, part(*b)?.0] })
            }
            Op::Unary(UnaryOp::Abs, x) => Some(part(*x)?.0.absolute()),
            Op::Unary(UnaryOp::Neg, x) => self.taken_apart(*x)?.map(|x| x.scaled(-1)),
            Op::Binary(which @ (BinaryOp::Add | BinaryOp::Sub), a, b) => {
                let ((a, a_apart), (b, b_apart)) = (part(*a)?, part(*b)?);
                let factor = if *which == BinaryOp::Add { 1 } else { -1 };
                let fits = a.len().saturating_mul(b.len()) <= MOST_FORMS;
                ((a_apart || b_apart) && fits).then(|| a.plus(&b, factor))
            }
            Op::Binary(BinaryOp::Mul, a, b) => match (self.constant(*a), self.constant(*b)) {
                (Some(factor), _) => self.taken_apart(*b)?.map(|b| b.scaled(factor)),
                (_, Some(factor)) => self.taken_apart(*a)?.map(|a| a.scaled(factor)),
                _ => None,
            },
            Op::Binary(BinaryOp::Div, a, b) => match self.constant(*b) {
                Some(divisor) if divisor != 0 => {
                    self.taken_apart(*a)?.map(|a| a.scaled(divisor.signum()).floor_div(divisor.abs()))
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// Whether what moves with the loop occurs once: of more, such as `pos(i) % 64`, one is
    /// followed and the range of the others is not less than the extent, so that parts say nothing.
    fn is_followed(&self, form: &Form) -> bool {
        form.terms.keys().filter(|term| self.walks(term)).count() <= 1
    }

    fn constant(&self, value: ValueId) -> Option<i64> {
        self.form(value).ok()?.as_const()
    }
}
