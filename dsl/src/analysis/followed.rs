//! Why a predicate is not followed, or not to the end: what hints are made of ([`super::hints`]).

use super::predicate::{Opaque, OpaqueWhy, Walk};
use crate::ir::{BinaryOp, CompareOp, Elem, Op, UnaryOp, ValueId};

impl Walk<'_> {
    /// What prevents that the predicate is followed: one entry for each comparison, or other condition, of which nothing is known.
    pub fn opaque(&self, value: ValueId) -> Vec<Opaque> {
        let other = || vec![Opaque { value, why: OpaqueWhy::Other }];
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Unary(UnaryOp::Not, x) | Op::Full { value: x, .. } | Op::Transpose(x)) => self.opaque(*x),
            Some(Op::Binary(BinaryOp::And | BinaryOp::Or, a, b)) => [self.opaque(*a), self.opaque(*b)].concat(),
            Some(Op::Compare(op, a, b)) => {
                if [a, b].iter().any(|v| self.kernel.tile(**v).elem != Elem::I32) {
                    return vec![Opaque { value, why: OpaqueWhy::Floats }];
                }
                let unknown = [a, b].into_iter().find_map(|&v| self.side(v, *op).err());
                let ordered = !matches!(op, CompareOp::Eq | CompareOp::Ne);
                unknown.or_else(|| [a, b].into_iter().find_map(|&v| self.ranged(v, ordered))).into_iter().collect()
            }
            Some(Op::Load { tensor, at }) if self.is_summarised(value, *tensor, at) => Vec::new(),
            Some(Op::Load { .. } | Op::Gather { .. }) => vec![Opaque { value, why: OpaqueWhy::Loaded }],
            _ => other(),
        }
    }

    /// A part of an integer that moves with the loop, and of which only the range is known. What stands alone on a side of an order
    /// (`alone`) is taken apart.
    fn ranged(&self, value: ValueId, alone: bool) -> Option<Opaque> {
        let range = || Some(Opaque { value, why: OpaqueWhy::Range });
        match self.kernel.def(value).map(|(_, op)| op)? {
            Op::Full { value, .. } | Op::Transpose(value) => self.ranged(*value, alone),
            Op::Binary(BinaryOp::Max | BinaryOp::Min, a, b) if alone => self.ranged(*a, true).or_else(|| self.ranged(*b, true)),
            Op::Unary(UnaryOp::Abs, x) if alone => self.ranged(*x, false),
            Op::Binary(BinaryOp::Max | BinaryOp::Min, a, b) if self.walks_in(*a) || self.walks_in(*b) => range(),
            Op::Unary(UnaryOp::Abs, x) if self.walks_in(*x) => range(),
            Op::Binary(_, a, b) => self.ranged(*a, false).or_else(|| self.ranged(*b, false)),
            Op::Unary(_, x) => self.ranged(*x, false),
            _ => None,
        }
    }

    /// Whether the positions of the loop occur in an integer.
    fn walks_in(&self, value: ValueId) -> bool {
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Pos(c)) => *c == self.coordinate,
            Some(op) => op.operands().into_iter().any(|v| self.walks_in(v)),
            None => false,
        }
    }

    /// The disjunctions in the predicate that hold in two separate runs of tiles, with what lies between walked too.
    pub fn gaps(&self, value: ValueId) -> Vec<ValueId> {
        self.gaps_where(value, true)
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
