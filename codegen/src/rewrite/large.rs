//! Which scores may be numbers that stand for something else than a score: a finite number for
//! "hidden", such as -1e30 or the least number of a type.
//!
//! Such a number is a constant of at least [`HIDES`], or comes with a launch, in a scalar or in a
//! tensor. It is added to a product, or chosen in its place: `s + bias`, `select(keep, s, -1e30)`,
//! or, where truth values are numbers, `s + (1.0 - keep) * -1e30`. What a product is multiplied by is
//! its scale, `dot(q, k) * scale`, and what only positions are multiplied by is a slope: scores of
//! these are of any size that scores have. Exponentials of products are of any size at all.

use std::collections::HashMap;

use flashtile_dsl::analysis::magnitude::HIDES;
use flashtile_dsl::ir::{BinaryOp, Dim, Elem, Kernel, Op, UnaryOp, ValueDef, ValueId};

use super::edit;

/// Numbers of a row of the parts of a vector that is a step of a product (`launches/terms.rs`); those
/// behind the parts are 0.
pub(crate) const PARTS_WIDTH: i64 = 8;

/// Whether scores may be so large.
pub(super) fn may_be_large(kernel: &Kernel, scores: ValueId) -> bool {
    Sizes { kernel, known: HashMap::new() }.is_large(scores)
}

struct Sizes<'a> {
    kernel: &'a Kernel,
    known: HashMap<ValueId, bool>,
}

impl Sizes<'_> {
    fn is_large(&mut self, v: ValueId) -> bool {
        if let Some(&known) = self.known.get(&v) {
            return known;
        }
        // What a loop carries is as large as what it starts from and what a step adds to it.
        self.known.insert(v, false);
        let is_large = self.is_made_large(v);
        self.known.insert(v, is_large);
        is_large
    }

    fn is_made_large(&mut self, v: ValueId) -> bool {
        let kernel = self.kernel;
        let carried = |body, slot: usize, init: &[ValueId]| [init[slot], edit::yielded(kernel, body)[slot]];
        let (op, slot) = match kernel.values[v].def {
            ValueDef::Result(id, slot) => (&kernel.ops[id].op, slot as usize),
            ValueDef::BlockParam(body, index) => match (edit::loop_of(kernel, body), index.checked_sub(1)) {
                (Some(id), Some(slot)) => (&kernel.ops[id].op, slot as usize),
                _ => return false,
            },
        };
        match *op {
            Op::Constant(Elem::F32, c) => c.is_finite() && c.abs() >= HIDES,
            Op::Scalar(_) | Op::Load { .. } | Op::Gather { .. } => true,
            // A maximum that a loop carries is as large as the scores that it is subtracted from, or
            // starts from a number of the row.
            Op::For { .. } if kernel.tile(v).rank() < 2 => false,
            Op::For { body, ref init, .. } => carried(body, slot, init).into_iter().any(|v| self.is_large_float(v)),
            Op::Binary(BinaryOp::Mul, a, b) => self.is_large_by(a, b) || self.is_large_by(b, a),
            Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, b) => {
                let is_tiny = matches!(kernel.def(b), Some((_, Op::Constant(_, c))) if c.abs() <= 1.0 / HIDES);
                self.is_large_by(a, b) || ((is_tiny || self.is_of_launch(b)) && !self.is_of_product(a) && self.is_chosen(a))
            }
            Op::Cast(_, x) if !is_float(kernel, x) => self.is_chosen(x),
            Op::Unary(UnaryOp::Sqrt | UnaryOp::Floor, x) => self.is_large_float(x),
            // Of a product, if nothing is subtracted from it, any number may come.
            Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, x) => {
                let is_bounded = matches!(kernel.def(x), Some((_, Op::Binary(BinaryOp::Sub, ..))));
                self.is_of_product(x) && !is_bounded
            }
            Op::Unary(f, x) => f.row().linear && self.is_large_float(x),
            Op::Dot { a, b, acc: Some(acc) } => self.is_large_float(acc) || self.may_add_vector(a, b),
            Op::Binary(BinaryOp::Rem, ..) | Op::Dot { .. } | Op::Compare(..) => false,
            ref op => op.operands().into_iter().any(|v| self.is_large_float(v)),
        }
    }

    /// Whether a product that is added to another one may be a vector in parts, such as a bias of each
    /// key (`terms=product`): it sums over as few numbers as these have.
    fn may_add_vector(&self, a: ValueId, b: ValueId) -> bool {
        let is_loaded = |v: ValueId| match self.kernel.def(v) {
            Some((_, Op::Load { .. })) => true,
            Some((_, &Op::Transpose(x))) => matches!(self.kernel.def(x), Some((_, Op::Load { .. }))),
            _ => false,
        };
        let width = match self.kernel.tile(a).dims.last() {
            Some(Dim::Range(len)) => len.as_constant(),
            _ => None,
        };
        is_loaded(a) && is_loaded(b) && width == Some(PARTS_WIDTH)
    }

    fn is_large_float(&mut self, v: ValueId) -> bool {
        is_float(self.kernel, v) && self.is_large(v)
    }

    /// Whether `a` makes its product, or its quotient, with `b` large.
    fn is_large_by(&mut self, a: ValueId, b: ValueId) -> bool {
        self.is_large_float(a) && !self.is_of_product(b) && (!self.is_of_launch(a) || self.is_chosen(b))
    }

    /// Whether a value is one number for the whole program, which the text does not tell.
    fn is_of_launch(&self, v: ValueId) -> bool {
        match self.kernel.def(v) {
            Some((_, Op::Constant(..))) => false,
            Some((_, &Op::Full { value, .. })) => self.is_of_launch(value),
            _ => self.kernel.ty(v).tile().is_some_and(|tile| tile.rank() == 0),
        }
    }

    /// Whether a value is made of a product.
    fn is_of_product(&self, v: ValueId) -> bool {
        self.kernel.any_behind(v, |v| matches!(self.kernel.def(v), Some((_, Op::Dot { .. }))).then_some(true))
    }

    /// Whether elements of a value are loaded or chosen, so that they may be truth values. What is
    /// made of positions alone is no such value.
    fn is_chosen(&self, v: ValueId) -> bool {
        self.kernel.any_behind(v, |v| match self.kernel.def(v) {
            Some((_, Op::Load { .. } | Op::Gather { .. })) => Some(self.kernel.tile(v).rank() > 0),
            Some((_, Op::Select { .. } | Op::Compare(..))) => Some(true),
            Some((_, Op::Dot { .. })) | None => Some(false),
            Some(_) => None,
        })
    }
}

fn is_float(kernel: &Kernel, v: ValueId) -> bool {
    kernel.ty(v).tile().is_some_and(|tile| tile.elem.is_float())
}
