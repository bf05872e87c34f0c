//! Intervals of integers, with the operations of the IR on them.
//!
//! Ends are 128 bits wide and saturate, so that a value that leaves 64 bits is seen to do so.

/// The values that an integer may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Interval {
    /// None: the op is not executed.
    #[default]
    Empty,
    /// It depends on loaded elements.
    Unknown,
    /// These, ends included.
    Between(i128, i128),
}

use Interval::{Between, Empty, Unknown};

impl Interval {
    pub const I32: Self = Between(i32::MIN as i128, i32::MAX as i128);
    pub const I64: Self = Between(i64::MIN as i128, i64::MAX as i128);

    /// The values `lo ..= hi`.
    pub fn new(lo: i128, hi: i128) -> Self {
        if lo <= hi { Between(lo, hi) } else { Empty }
    }

    /// One value.
    pub fn point(x: i64) -> Self {
        Between(x.into(), x.into())
    }

    pub fn is_empty(self) -> bool {
        self == Empty
    }

    pub fn is_unknown(self) -> bool {
        self == Unknown
    }

    /// Number of values.
    pub fn len(self) -> i128 {
        match self {
            Between(lo, hi) => hi - lo + 1,
            Empty | Unknown => 0,
        }
    }

    /// The lower and the upper half of at least two values.
    pub fn halves(self) -> [Self; 2] {
        let Between(lo, hi) = self else { return [self, Empty] };
        let middle = lo + (hi - lo) / 2;
        [Self::new(lo, middle), Self::new(middle + 1, hi)]
    }

    /// The least and the largest value, if values are known.
    pub fn ends(self) -> Option<[i128; 2]> {
        match self {
            Between(lo, hi) => Some([lo, hi]),
            Empty | Unknown => None,
        }
    }

    pub fn contains(self, x: i128) -> bool {
        matches!(self, Between(lo, hi) if lo <= x && x <= hi)
    }

    /// Whether all values are known and in the other interval.
    pub fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Between(lo, hi), Between(least, most)) => least <= lo && hi <= most,
            _ => false,
        }
    }

    /// The largest absolute value; 0 where nothing is known.
    pub fn magnitude(self) -> i128 {
        match self {
            Between(lo, hi) => lo.saturating_abs().max(hi.saturating_abs()),
            Empty | Unknown => 0,
        }
    }

    /// The smallest interval that holds both.
    pub fn hull(self, other: Self) -> Self {
        match (self, other) {
            (Empty, x) | (x, Empty) => x,
            (Unknown, _) | (_, Unknown) => Unknown,
            (Between(a, b), Between(c, d)) => Between(a.min(c), b.max(d)),
        }
    }

    /// The interval of an operation whose extremes lie at the ends of its operands.
    fn of_ends(self, other: Self, f: impl Fn(i128, i128) -> i128) -> Self {
        match (self, other) {
            (Empty, _) | (_, Empty) => Empty,
            (Unknown, _) | (_, Unknown) => Unknown,
            (Between(a, b), Between(c, d)) => {
                let all = [f(a, c), f(a, d), f(b, c), f(b, d)];
                let (lo, hi) = all.into_iter().fold((all[0], all[0]), |(lo, hi), x| (lo.min(x), hi.max(x)));
                Between(lo, hi)
            }
        }
    }

    pub fn plus(self, other: Self) -> Self {
        self.of_ends(other, i128::saturating_add)
    }

    pub fn minus(self, other: Self) -> Self {
        self.of_ends(other, i128::saturating_sub)
    }

    pub fn times(self, other: Self) -> Self {
        self.of_ends(other, i128::saturating_mul)
    }

    pub fn least(self, other: Self) -> Self {
        self.of_ends(other, i128::min)
    }

    pub fn most(self, other: Self) -> Self {
        self.of_ends(other, i128::max)
    }

    pub fn negated(self) -> Self {
        Self::point(0).minus(self)
    }

    pub fn absolute(self) -> Self {
        match self {
            Between(lo, hi) if lo < 0 && hi > 0 => Between(0, self.magnitude()),
            Between(lo, hi) => Between(lo.saturating_abs().min(hi.saturating_abs()), self.magnitude()),
            Empty | Unknown => self,
        }
    }

    /// The negative values of a divisor, 0, and the positive ones.
    fn signs(self) -> [Self; 3] {
        match self {
            Between(lo, hi) => [Self::new(lo, hi.min(-1)), Self::new(lo.max(0), hi.min(0)), Self::new(lo.max(1), hi)],
            Empty | Unknown => [self; 3],
        }
    }

    /// The quotient rounded down, which is 0 where the divisor is.
    pub fn floor_div(self, divisor: Self) -> Self {
        divisor.signs().into_iter().fold(Empty, |all, part| all.hull(self.of_ends(part, floor_div)))
    }

    /// The remainder of that, with the sign of the divisor; all of it where the divisor is 0.
    pub fn floor_rem(self, divisor: Self) -> Self {
        divisor.signs().into_iter().fold(Empty, |all, part| all.hull(self.remainder(part)))
    }

    /// The remainder for divisors of one sign.
    fn remainder(self, divisor: Self) -> Self {
        let (Between(a, b), Between(c, d)) = (self, divisor) else { return self.of_ends(divisor, |x, _| x) };
        if c == d && floor_div(a, c) == floor_div(b, c) {
            let (a, b) = (a - floor_div(a, c) * c, b - floor_div(b, c) * c);
            return Between(a, b);
        }
        if c > 0 {
            let most = if a >= 0 { b.min(d - 1) } else { d - 1 };
            Between(if a >= 0 && b < c { a } else { 0 }, most)
        } else {
            Between(c + 1, 0)
        }
    }
}

fn floor_div(a: i128, b: i128) -> i128 {
    if b == 0 {
        return 0;
    }
    let quotient = a / b;
    if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every result of an operation on values of two intervals is in the interval of the results.
    #[test]
    fn operations_hold_all_results() {
        type Operation = (fn(Interval, Interval) -> Interval, fn(i128, i128) -> i128);
        let operations: [Operation; 7] = [
            (Interval::plus, |a, b| a + b),
            (Interval::minus, |a, b| a - b),
            (Interval::times, |a, b| a * b),
            (Interval::least, |a, b| a.min(b)),
            (Interval::most, |a, b| a.max(b)),
            (Interval::floor_div, floor_div),
            (Interval::floor_rem, |a, b| a - floor_div(a, b) * b),
        ];
        let ends: Vec<(i128, i128)> = (-4..=4).flat_map(|lo| (lo..=4).map(move |hi| (lo, hi))).collect();
        for (interval, exact) in operations {
            for &(a, b) in &ends {
                for &(c, d) in &ends {
                    let all = interval(Interval::new(a, b), Interval::new(c, d));
                    for (x, y) in (a..=b).flat_map(|x| (c..=d).map(move |y| (x, y))) {
                        assert!(all.contains(exact(x, y)), "{x} and {y} of {a}..={b} and {c}..={d}: {all:?}");
                    }
                }
            }
        }
        for &(a, b) in &ends {
            assert!((a..=b).all(|x| Interval::new(a, b).absolute().contains(x.abs())));
        }
    }

    #[test]
    fn points_are_exact() {
        let point = |x: i64| Interval::point(x);
        assert_eq!(point(-7).floor_div(point(2)), point(-4));
        assert_eq!(point(-7).floor_rem(point(2)), point(1));
        assert_eq!(point(7).floor_rem(point(-2)), point(-1));
        assert_eq!([point(7).floor_div(point(0)), point(7).floor_rem(point(0))], [point(0), point(7)]);
        assert_eq!(Interval::new(0, 46_999).times(point(47_000)).floor_div(point(47_000)), Interval::new(0, 46_999));
    }
}
