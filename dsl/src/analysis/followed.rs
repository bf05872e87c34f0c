//! Why a predicate is not followed, or not to the end: what hints are made of ([`super::hints`]).

use super::index::is_short;
use super::predicate::{Opaque, OpaqueWhy, Walk};
use crate::ir::{BinaryOp, Elem, Op, UnaryOp, ValueId};

impl Walk<'_> {
    /// What prevents that the predicate is followed: one entry for each comparison, or other condition, of which nothing is known.
    pub fn opaque(&self, value: ValueId) -> Vec<Opaque> {
        let other = || vec![Opaque { value, why: OpaqueWhy::Other }];
        if !is_short(self.kernel, value) {
            return vec![Opaque { value, why: OpaqueWhy::Long }];
        }
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Unary(UnaryOp::Not, x) | Op::Full { value: x, .. } | Op::Transpose(x)) => self.opaque(*x),
            Some(Op::Binary(BinaryOp::And | BinaryOp::Or, a, b)) => [self.opaque(*a), self.opaque(*b)].concat(),
            Some(Op::Compare(op, a, b)) => {
                if [a, b].iter().any(|v| self.kernel.tile(**v).elem != Elem::I32) {
                    return vec![Opaque { value, why: OpaqueWhy::Floats }];
                }
                let unknown = [a, b].into_iter().find_map(|&v| self.side(v, *op).err());
                unknown.or_else(|| [a, b].into_iter().find_map(|&v| self.ranged(v))).into_iter().collect()
            }
            Some(Op::Load { tensor, at }) if self.loaded(value, *tensor, at).is_some() => Vec::new(),
            Some(Op::Load { .. } | Op::Gather { .. }) => vec![Opaque { value, why: OpaqueWhy::Loaded }],
            _ => other(),
        }
    }

    /// A minimum, a maximum or an absolute value that moves with the loop, and of which only the
    /// range is known. What stands in a sum, or is multiplied or divided by a constant, is taken
    /// apart.
    fn ranged(&self, value: ValueId) -> Option<Opaque> {
        if !self.walks_in(value) {
            return None;
        }
        let range = || Some(Opaque { value, why: OpaqueWhy::Range });
        let is_apart = || self.taken_apart(value).is_ok_and(|side| side.is_some());
        match self.kernel.def(value).map(|(_, op)| op)? {
            Op::Full { value, .. } | Op::Transpose(value) => self.ranged(*value),
            Op::Binary(BinaryOp::Max | BinaryOp::Min, ..) | Op::Unary(UnaryOp::Abs, _) if !is_apart() => range(),
            Op::Binary(_, a, b) if is_apart() => self.ranged(*a).or_else(|| self.ranged(*b)),
            Op::Unary(_, x) if is_apart() => self.ranged(*x),
            Op::Binary(_, a, b) => self.several(*a).or_else(|| self.several(*b)),
            Op::Unary(_, x) => self.several(*x),
            _ => None,
        }
    }

    /// What in a number that is not taken apart is one of several numbers that move with the loop.
    fn several(&self, value: ValueId) -> Option<Opaque> {
        match self.kernel.def(value).map(|(_, op)| op)? {
            Op::Binary(BinaryOp::Max | BinaryOp::Min, ..) | Op::Unary(UnaryOp::Abs, _) if self.walks_in(value) => {
                Some(Opaque { value, why: OpaqueWhy::Range })
            }
            Op::Full { value: x, .. } | Op::Transpose(x) | Op::Unary(_, x) => self.several(*x),
            Op::Binary(_, a, b) => self.several(*a).or_else(|| self.several(*b)),
            _ => None,
        }
    }

    /// Whether the positions of the loop occur in an integer.
    pub(super) fn walks_in(&self, value: ValueId) -> bool {
        self.kernel.any_behind(value, |v| match self.kernel.def(v) {
            Some((_, Op::Pos(c))) => Some(*c == self.coordinate),
            _ => None,
        })
    }

    /// The disjunctions in the predicate that hold in two separate runs of tiles, with what lies between walked too.
    pub fn gaps(&self, value: ValueId) -> Vec<ValueId> {
        if is_short(self.kernel, value) { self.gaps_where(value, true) } else { Vec::new() }
    }

    fn gaps_where(&self, value: ValueId, wanted: bool) -> Vec<ValueId> {
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Unary(UnaryOp::Not, x)) => self.gaps_where(*x, !wanted),
            Some(Op::Full { value: x, .. } | Op::Transpose(x)) => self.gaps_where(*x, wanted),
            Some(Op::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b)) => {
                let inner = [self.gaps_where(*a, wanted), self.gaps_where(*b, wanted)].concat();
                let joins = (*op == BinaryOp::Or) == wanted;
                let (left, right) = (self.predicate(*a, wanted).somewhere, self.predicate(*b, wanted).somewhere);
                if joins && inner.is_empty() && left.leaves_a_gap(&right) { vec![value] } else { inner }
            }
            _ => Vec::new(),
        }
    }
}
