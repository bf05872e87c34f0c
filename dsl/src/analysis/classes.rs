//! Classes of floating-point values: the domain of the abstract interpretation in [`super::unchanged`].
//!
//! A set of classes over-approximates what an element may be. What a function of one operand gives
//! follows from its row in the table of ops; the transfer functions of two operands follow IEEE 754
//! and the module text of [`crate::ir`] for maxima. The sign of zero is not tracked.

use std::sync::LazyLock;

use crate::ir::{BinaryOp, UnaryOp};

/// A set of classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Classes(u8);

impl Classes {
    /// `-inf`.
    pub const NEG_INF: Self = Self(1);
    /// 0, of either sign.
    pub const ZERO: Self = Self(2);
    /// 1.
    pub const ONE: Self = Self(4);
    /// Any other finite number.
    pub const OTHER: Self = Self(8);
    /// `+inf`.
    pub const POS_INF: Self = Self(16);
    /// NaN.
    pub const NAN: Self = Self(32);
    /// No value.
    pub const NONE: Self = Self(0);
    /// Any finite number.
    pub const FINITE: Self = Self(2 | 4 | 8);
    /// Anything but NaN.
    pub const NUMBER: Self = Self(31);
    /// Anything.
    pub const ANY: Self = Self(63);

    const SINGLE: [Self; 6] = [Self::NEG_INF, Self::ZERO, Self::ONE, Self::OTHER, Self::POS_INF, Self::NAN];

    /// The class of a number.
    pub fn of(x: f64) -> Self {
        match x {
            x if x.is_nan() => Self::NAN,
            f64::INFINITY => Self::POS_INF,
            f64::NEG_INFINITY => Self::NEG_INF,
            0.0 => Self::ZERO,
            1.0 => Self::ONE,
            _ => Self::OTHER,
        }
    }

    /// The classes of either set.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The classes of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every class of `self` is in `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether a class is common to both.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all values of the set are the same value.
    pub fn is_one_value(self) -> bool {
        self != Self::OTHER && Self::SINGLE.contains(&self)
    }

    fn iter(self) -> impl Iterator<Item = Self> {
        Self::SINGLE.into_iter().filter(move |c| c.within(self))
    }

    /// What `op` may give.
    pub fn unary(self, op: UnaryOp) -> Self {
        self.iter().fold(Self::NONE, |set, c| set.or(unary(op, c)))
    }

    /// What `op` may give on `self` and `other`.
    pub fn binary(self, op: BinaryOp, other: Self) -> Self {
        BINARY[op as usize][usize::from(self.0)][usize::from(other.0)]
    }

    /// What rounding to fewer bits may give.
    pub fn rounded(self) -> Self {
        if self.meets(Self::OTHER) { self.or(Self::NUMBER) } else { self }
    }

    /// The sum of one element or more.
    pub fn sum(self) -> Self {
        let mut sum = self;
        loop {
            let next = sum.or(sum.binary(BinaryOp::Add, self));
            if next == sum {
                return sum;
            }
            sum = next;
        }
    }

    /// The maximum of one element or more: NaN does not take part.
    pub fn maximum(self) -> Self {
        let numbers = self.and(Self::NUMBER);
        if self.meets(Self::NAN) { numbers.or(Self::NEG_INF) } else { numbers }
    }
}

/// What each op of two operands may give on two sets. Proofs ask for it more than for all else.
static BINARY: LazyLock<Vec<[[Classes; 64]; 64]>> = LazyLock::new(|| {
    let sets = std::array::from_fn(|set| Classes(set as u8));
    let table = |op: BinaryOp| sets.map(|a: Classes| sets.map(|b| of_sets(op, a, b)));
    let mut tables = vec![[[Classes::ANY; 64]; 64]; BinaryOp::ALL.iter().map(|op| *op as usize + 1).max().unwrap_or(0)];
    BinaryOp::ALL.iter().for_each(|op| tables[*op as usize] = table(*op));
    tables
});

/// What an op may give on two sets, class by class.
fn of_sets(op: BinaryOp, a: Classes, b: Classes) -> Classes {
    a.iter().fold(Classes::NONE, |set, a| b.iter().fold(set, |set, b| set.or(binary(op, a, b))))
}

fn unary(op: UnaryOp, c: Classes) -> Classes {
    let row = op.row();
    let Some(f) = row.float else { return Classes::ANY };
    let all = |values: &[f64]| values.iter().fold(Classes::NONE, |set, &x| set.or(Classes::of(x)));
    let of = |x: f64| (f.double)(x);
    match c {
        Classes::NEG_INF => all(&[of(f64::NEG_INFINITY)]),
        Classes::ZERO => all(&[of(0.0), of(-0.0)]),
        Classes::ONE => all(&[of(1.0)]),
        Classes::POS_INF => all(&[of(f64::INFINITY)]),
        Classes::NAN => all(&[of(f64::NAN)]),
        _ => all(row.others),
    }
}

fn binary(op: BinaryOp, a: Classes, b: Classes) -> Classes {
    use Classes as C;
    match op {
        BinaryOp::Max | BinaryOp::Min => {
            let (first, last) = if op == BinaryOp::Max { (C::POS_INF, C::NEG_INF) } else { (C::NEG_INF, C::POS_INF) };
            return match (a, b) {
                (C::NAN, x) | (x, C::NAN) => x,
                (x, y) if x == first || y == first => first,
                (x, y) if x == last => y,
                (x, y) if y == last => x,
                (x, y) => x.or(y),
            };
        }
        BinaryOp::DivOrZero if (a, b) == (C::ZERO, C::ZERO) => return C::ZERO,
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::DivOrZero => {}
        _ => return C::ANY,
    }
    if a == C::NAN || b == C::NAN {
        return C::NAN;
    }
    match op {
        BinaryOp::Add => match (a, b) {
            (C::NEG_INF, C::POS_INF) | (C::POS_INF, C::NEG_INF) => C::NAN,
            (C::NEG_INF | C::POS_INF, _) => a,
            (_, C::NEG_INF | C::POS_INF) => b,
            (C::ZERO, x) | (x, C::ZERO) => x,
            (C::ONE, C::ONE) => C::OTHER,
            // 1 is too small to carry a finite number to infinity.
            (C::ONE, _) | (_, C::ONE) => C::FINITE,
            _ => C::NUMBER,
        },
        BinaryOp::Sub => match (a, b) {
            (C::ONE, C::ONE) => C::ZERO,
            _ => of_sets(BinaryOp::Add, a, unary(UnaryOp::Neg, b)),
        },
        BinaryOp::Mul => match (a, b) {
            (C::ZERO, C::NEG_INF | C::POS_INF) | (C::NEG_INF | C::POS_INF, C::ZERO) => C::NAN,
            (C::ZERO, _) | (_, C::ZERO) => C::ZERO,
            (C::ONE, x) | (x, C::ONE) => x,
            (C::OTHER, C::OTHER) => C::NUMBER,
            // The sign of the other operand is not known.
            (C::OTHER, _) | (_, C::OTHER) => C::NEG_INF.or(C::POS_INF),
            (x, y) => {
                if x == y {
                    C::POS_INF
                } else {
                    C::NEG_INF
                }
            }
        },
        _ => match (a, b) {
            (C::ZERO, C::ZERO) | (C::NEG_INF | C::POS_INF, C::NEG_INF | C::POS_INF) => C::NAN,
            (C::ZERO, _) | (_, C::NEG_INF | C::POS_INF) => C::ZERO,
            (x, C::ONE) => x,
            (_, C::ZERO) => C::NEG_INF.or(C::POS_INF),
            (C::NEG_INF | C::POS_INF, _) => C::NEG_INF.or(C::POS_INF),
            _ => C::NUMBER,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [f32; 21] = [
        f32::NEG_INFINITY,
        f32::INFINITY,
        f32::NAN,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        0.999_999_94,
        1.000_000_1,
        1.5,
        2.25,
        -3.0,
        1e30,
        -1e30,
        1e-30,
        1e-42,
        -1e-42,
        88.0,
        200.0,
    ];

    #[test]
    fn functions_of_one_operand_stay_in_their_classes() {
        for op in UnaryOp::ALL {
            let Some(f) = op.row().float.map(|f| f.single) else { continue };
            for x in SAMPLES {
                let (got, bound) = (Classes::of(f(x).into()), Classes::of(x.into()).unary(*op));
                assert!(got.within(bound), "{op:?}({x}) = {} is not in {bound:?}", f(x));
            }
        }
    }

    #[test]
    fn functions_of_two_operands_stay_in_their_classes() {
        for op in BinaryOp::ALL {
            let Some(f) = op.row().float.map(|f| f.single) else { continue };
            let f = |x: f32, y: f32| {
                let mut out = Vec::new();
                f(Err(x), Err(y), 1, &mut out);
                out[0]
            };
            for x in SAMPLES {
                for y in SAMPLES {
                    let (got, bound) = (Classes::of(f(x, y).into()), Classes::of(x.into()).binary(*op, Classes::of(y.into())));
                    assert!(got.within(bound), "{op:?}({x}, {y}) = {} is not in {bound:?}", f(x, y));
                }
            }
        }
    }

    #[test]
    fn sums_and_maxima() {
        assert_eq!(Classes::ZERO.sum(), Classes::ZERO);
        assert_eq!(Classes::ZERO.or(Classes::NAN).sum(), Classes::ZERO.or(Classes::NAN));
        assert_eq!(Classes::ONE.sum(), Classes::FINITE);
        assert_eq!(Classes::NAN.maximum(), Classes::NEG_INF);
    }
}
