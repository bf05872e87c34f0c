//! Integers as sums of positions: how far apart two positions are, such as
//! `pos(i) - pos(j) + N - M`.

use std::collections::BTreeMap;

use super::index::{IndexExpr, index_expr, is_short};
use crate::ir::{BinaryOp, Elem, Kernel, Op, SizeExpr, UnaryOp, ValueId};

/// A sum of multiples of positions, of a size, and of multiples of other integers.
///
/// Sums of `i32` wrap, so that the order of their terms is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sum {
    /// By the coordinate of the tile whose positions they are; none is 0.
    pub positions: BTreeMap<ValueId, i64>,
    /// What is known at launch.
    pub size: SizeExpr,
    /// Rank-0 values whose form is not known.
    pub others: BTreeMap<ValueId, i64>,
}

impl Sum {
    /// An `i32` value as a sum; `None` if it is none.
    pub fn of(kernel: &Kernel, value: ValueId) -> Option<Self> {
        if !is_short(kernel, value) {
            return None;
        }
        let is_i32 = kernel.tile(value).elem == Elem::I32;
        is_i32.then(|| sum(kernel, value)).flatten()
    }

    fn of_size(size: SizeExpr) -> Self {
        Self { positions: BTreeMap::new(), size, others: BTreeMap::new() }
    }

    /// `self + factor * other`.
    fn plus(mut self, other: &Self, factor: i64) -> Self {
        let add = |to: &mut BTreeMap<ValueId, i64>, from: &BTreeMap<ValueId, i64>| {
            for (&v, times) in from {
                *to.entry(v).or_default() += times * factor;
            }
            to.retain(|_, times| *times != 0);
        };
        add(&mut self.positions, &other.positions);
        add(&mut self.others, &other.others);
        self.size = self.size.add(&other.size.mul(factor));
        self
    }

    fn times(self, factor: i64) -> Self {
        Self::of_size(SizeExpr::constant(0)).plus(&self, factor)
    }

    /// The number, if it is one of the text.
    fn as_constant(&self) -> Option<i64> {
        (self.positions.is_empty() && self.others.is_empty()).then(|| self.size.as_constant()).flatten()
    }

    /// `self - other`.
    #[must_use]
    pub fn minus(self, other: &Self) -> Self {
        self.plus(other, -1)
    }

    /// The coordinates of two tiles whose positions it subtracts, that of the first one and that of
    /// the one which is subtracted.
    pub fn difference(&self) -> Option<(ValueId, ValueId)> {
        let mut found = self.positions.iter();
        match (found.next(), found.next(), found.next()) {
            (Some((&a, 1)), Some((&b, -1)), None) => Some((a, b)),
            (Some((&b, -1)), Some((&a, 1)), None) => Some((a, b)),
            _ => None,
        }
    }
}

fn sum(kernel: &Kernel, value: ValueId) -> Option<Sum> {
    let nothing = || Sum::of_size(SizeExpr::constant(0));
    let below = |v: ValueId| sum(kernel, v);
    let (_, op) = kernel.def(value)?;
    let made = match *op {
        Op::Pos(coordinate) => Some(Sum { positions: BTreeMap::from([(coordinate, 1)]), ..nothing() }),
        Op::Constant(Elem::I32, c) => Some(Sum::of_size(SizeExpr::constant(c as i64))),
        Op::FromIndex(index) => size(&index_expr(kernel, index)).map(Sum::of_size),
        Op::Full { value, .. } => below(value),
        Op::Unary(UnaryOp::Neg, x) => below(x).map(|x| x.times(-1)),
        Op::Binary(BinaryOp::Add, a, b) => below(a).zip(below(b)).map(|(a, b)| a.plus(&b, 1)),
        Op::Binary(BinaryOp::Sub, a, b) => below(a).zip(below(b)).map(|(a, b)| a.minus(&b)),
        Op::Binary(BinaryOp::Mul, a, b) => below(a).zip(below(b)).and_then(|(a, b)| match (a.as_constant(), b.as_constant()) {
            (_, Some(factor)) => Some(a.times(factor)),
            (Some(factor), None) => Some(b.times(factor)),
            (None, None) => None,
        }),
        _ => None,
    };
    let is_small = |made: &Sum| {
        let mut factors = made.positions.values().chain(made.others.values());
        made.size.is_small() && factors.all(|factor| factor.unsigned_abs() < 1 << 30)
    };
    made.filter(is_small)
        .or_else(|| kernel.tile(value).dims.is_empty().then(|| Sum { others: BTreeMap::from([(value, 1)]), ..nothing() }))
}

/// A closed form as a size, if it is linear in sizes.
fn size(expr: &IndexExpr) -> Option<SizeExpr> {
    Some(match expr {
        IndexExpr::Const(c) => SizeExpr::constant(*c),
        IndexExpr::Size(of) if !of.is_rounded() => of.clone(),
        IndexExpr::Add(a, b) => size(a)?.add(&size(b)?),
        IndexExpr::Sub(a, b) => size(a)?.sub(&size(b)?),
        IndexExpr::Mul(a, factor) => size(a)?.mul(*factor),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;
    use crate::syntax::parse;

    /// The index of the gather of a kernel, which has these words in its text.
    fn index(words: &str) -> (Kernel, Option<Sum>) {
        let text = format!(
            "pub fn k(t: &Tensor<f32, (R)>, x: &Tensor<f32, (M, N)>, w: i32, y: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut sum = zeros(i);
                for j in tiles(N) {{ sum = sum + rowsum(load(x, [i, j]) * load(t, [{words}])) * w.to::<f32>(); }}
                store(y, [i], sum);
            }}"
        );
        let kernel = parse(&SourceText { name: "k".into(), text: text.into(), first_line: 1 }).expect("is well formed").remove(0);
        let gather = kernel.walk().into_iter().find_map(|(_, op)| match &kernel.ops[op].op {
            Op::Gather { at, .. } => Some(at[0]),
            _ => None,
        });
        let sum = Sum::of(&kernel, gather.expect("a gather"));
        (kernel, sum)
    }

    #[test]
    fn sums_of_positions_are_told_apart_from_other_integers() {
        let difference = |words: &str| index(words).1.and_then(|sum| Some((sum.difference()?, sum)));
        let (_, sum) = difference("pos(i) + N - (pos(j) + M) * 1 + 3").expect("a difference");
        assert!(sum.others.is_empty() && !sum.size.sizes().collect::<Vec<_>>().is_empty());
        let (_, sum) = difference("w - (pos(j) - pos(i)) + 3").expect("a difference");
        assert_eq!(sum.others.values().collect::<Vec<_>>(), [&1]);
        let ((a, b), _) = difference("pos(i) - pos(j)").expect("a difference");
        assert_eq!(difference("-(pos(i) - pos(j))").expect("a difference").0, (b, a));
        for none in [
            "pos(i) + pos(j)",
            "pos(i) * 2 - pos(j)",
            "pos(i) - pos(j) * w",
            "max(pos(i) - pos(j), 0)",
            "pos(j) - pos(j) + pos(i)",
        ] {
            assert_eq!(difference(none), None, "{none}");
        }
    }
}
