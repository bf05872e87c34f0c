//! Sums over the tiles or rows of an axis, in time that does not grow with their number.
//!
//! What is counted of a tile is made of closed-form expressions ([`IndexExpr`]): ends of runs, with minima, maxima and
//! quotients. Between two places where a minimum or maximum changes its mind, such an expression is a straight line with a saw of
//! a fixed period on it, so that `f(i + period) - f(i)` is the same for every `i`: an arithmetic series for each residue. [`band`]
//! proves that of a range, from bounds on the distance of the expression to its line; [`sum`] halves the range where it cannot.
//! Only ranges of few periods, at the places themselves, are counted one by one.

use std::ops::Range;

use super::index::{IndexExpr, Lookups};
use crate::ir::ValueId;

/// Longest period that is used. It is a multiple of what occurs in divisions: block sizes and constants of masks.
const MOST_PERIOD: i128 = 1 << 14;
/// Periods up to which a range is counted one by one.
const FEW: i64 = 2;

/// What is counted: several numbers side by side. They saturate.
pub(super) type Counts<const K: usize> = [i128; K];

fn added<const K: usize>(a: Counts<K>, b: Counts<K>) -> Counts<K> {
    std::array::from_fn(|k| a[k].saturating_add(b[k]))
}

fn times<const K: usize>(a: Counts<K>, factor: i128) -> Counts<K> {
    a.map(|x| x.saturating_mul(factor))
}

/// The sum of `f` over a range. `period` gives one for which `f(i + period) - f(i)` is the same in a whole range, if it knows one.
pub(super) fn sum<const K: usize>(
    range: Range<i64>,
    period: &dyn Fn(i64, i64) -> Option<i64>,
    f: &mut dyn FnMut(i64) -> Counts<K>,
) -> Counts<K> {
    let mut total = [0; K];
    let mut pending = vec![range];
    while let Some(Range { start, end }) = pending.pop() {
        let count = end - start;
        if count <= 0 {
            continue;
        }
        match period(start, end) {
            Some(period) if count > FEW * period => total = added(total, series(start, count, period, f)),
            Some(_) => total = (start..end).fold(total, |total, i| added(total, f(i))),
            None if count <= FEW => total = (start..end).fold(total, |total, i| added(total, f(i))),
            None => {
                let middle = start + count / 2;
                pending.extend([start..middle, middle..end]);
            }
        }
    }
    total
}

/// An arithmetic series for each residue: what a period holds, and by how much the next one differs.
fn series<const K: usize>(start: i64, count: i64, period: i64, f: &mut dyn FnMut(i64) -> Counts<K>) -> Counts<K> {
    let first: Vec<Counts<K>> = (0..period).map(|k| f(start + k)).collect();
    let next = f(start + period);
    let step: Counts<K> = std::array::from_fn(|k| next[k].saturating_sub(first[0][k]));
    let (whole, rest) = (i128::from(count / period), (count % period) as usize);
    let mut total = times(step, (whole * (whole - 1) / 2).saturating_mul(period.into()));
    for (k, &value) in first.iter().enumerate() {
        total = added(total, times(value, whole + i128::from(k < rest)));
    }
    added(total, times(step, whole.saturating_mul(rest as i128)))
}

/// How an expression lies about a line over a range: `slope * i + low <= over * e(i) <= slope * i + high`, and
/// `e(i + period) - e(i)` is the same for all `i`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Band {
    slope: i128,
    low: i128,
    high: i128,
    over: i128,
    period: i128,
}

/// What a leaf of an expression does as the index moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaf {
    /// It is the index.
    Moves,
    /// It stays.
    Stays,
    /// It moves in another way.
    Unknown,
}

impl Band {
    fn constant(c: i64) -> Self {
        Self { slope: 0, low: c.into(), high: c.into(), over: 1, period: 1 }
    }

    /// By how much the expression grows in a period.
    fn growth(&self) -> i128 {
        self.slope * self.period / self.over
    }

    fn plus(self, other: Self, factor: i128) -> Option<Self> {
        let over = lcm(self.over, other.over)?;
        let (a, b) = (over / self.over, over / other.over * factor);
        let (low, high) = if factor < 0 { (other.high, other.low) } else { (other.low, other.high) };
        Some(Self {
            slope: self.slope.checked_mul(a)?.checked_add(other.slope.checked_mul(b)?)?,
            low: self.low.checked_mul(a)?.checked_add(low.checked_mul(b)?)?,
            high: self.high.checked_mul(a)?.checked_add(high.checked_mul(b)?)?,
            over,
            period: lcm(self.period, other.period)?,
        })
    }

    fn scaled(self, factor: i64) -> Option<Self> {
        Self { over: 1, ..Self::constant(0) }.plus(self, factor.into())
    }

    /// The value, if it is the same in the whole range.
    fn as_const(&self) -> Option<i64> {
        let is_one = self.slope == 0 && self.low == self.high && self.over == 1;
        is_one.then(|| i64::try_from(self.low).ok())?
    }

    fn floor_div(self, divisor: i64) -> Option<Self> {
        let divisor = i128::from(divisor);
        let over = self.over.checked_mul(divisor)?;
        // The saw: floor(x / d) is less than x / d by at most (d - 1) / d, and x is whole.
        let low = self.low.checked_sub((divisor - 1).checked_mul(self.over)?)?;
        let period = self.period.checked_mul(divisor / gcd(divisor, self.growth()))?;
        (period <= MOST_PERIOD).then_some(Self { low, over, period, ..self })
    }

    /// The least and largest value in the range, in units of `1 / over`.
    fn ends(&self, start: i64, end: i64) -> Option<(i128, i128)> {
        let at = |i: i64| self.slope.checked_mul(i.into());
        let (a, b) = (at(start)?, at(end - 1)?);
        Some((a.min(b).checked_add(self.low)?, a.max(b).checked_add(self.high)?))
    }

    /// Whether the expression is at most `bound` in the whole range, or more than that in the whole range.
    pub fn at_most(&self, bound: i64, start: i64, end: i64) -> Option<bool> {
        let (least, most) = self.ends(start, end)?;
        let bound = i128::from(bound).checked_mul(self.over)?;
        match () {
            () if most <= bound => Some(true),
            () if least > bound => Some(false),
            () => None,
        }
    }

    /// The period.
    pub fn period(&self) -> i64 {
        self.period as i64
    }
}

/// The band of an expression over `start .. end`; `None` where none is known.
pub(super) fn band(e: &IndexExpr, leaf: &dyn Fn(ValueId) -> Leaf, at: Lookups<'_>, start: i64, end: i64) -> Option<Band> {
    let of = |e: &IndexExpr| band(e, leaf, at, start, end);
    match e {
        IndexExpr::Const(c) => Some(Band::constant(*c)),
        IndexExpr::Size(s) => Some(Band::constant((at.size)(s))),
        IndexExpr::Param(p) => Some(Band::constant((at.param)(*p))),
        IndexExpr::Loaded(_) | IndexExpr::Found(_) => None,
        IndexExpr::Index(v) | IndexExpr::Tile(v) => match leaf(*v) {
            Leaf::Moves => Some(Band { slope: 1, ..Band::constant(0) }),
            Leaf::Stays => Some(Band::constant((at.value)(*v))),
            Leaf::Unknown => None,
        },
        IndexExpr::Add(a, b) => of(a)?.plus(of(b)?, 1),
        IndexExpr::Sub(a, b) => of(a)?.plus(of(b)?, -1),
        IndexExpr::Mul(a, c) => of(a)?.scaled(*c),
        IndexExpr::FloorDiv(a, d) => of(a)?.floor_div(*d),
        IndexExpr::CeilDiv(a, d) => of(a)?.scaled(-1)?.floor_div(*d)?.scaled(-1),
        IndexExpr::Product(a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            match (a.as_const(), b.as_const()) {
                (_, Some(c)) => a.scaled(c),
                (Some(c), None) => b.scaled(c),
                (None, None) => None,
            }
        }
        IndexExpr::Over(a, d) => of(a)?.floor_div(of(d)?.as_const()?),
        IndexExpr::Min(a, b) => chosen(of(a)?, of(b)?, start, end, true),
        IndexExpr::Max(a, b) => chosen(of(a)?, of(b)?, start, end, false),
    }
}

/// The band of the smaller, or larger, of two: one of them if that is the same in the whole range, or both if they are parallel.
fn chosen(a: Band, b: Band, start: i64, end: i64, smaller: bool) -> Option<Band> {
    let distance = a.plus(b, -1)?;
    let (least, most) = distance.ends(start, end)?;
    if most <= 0 {
        return Some(if smaller { a } else { b });
    }
    if least >= 0 {
        return Some(if smaller { b } else { a });
    }
    if distance.slope != 0 {
        return None;
    }
    // Parallel: whichever it is at some place, it is again a period later.
    let pick = |x: i128, y: i128| if smaller { x.min(y) } else { x.max(y) };
    let (p, q) = (distance.over / a.over, distance.over / b.over);
    let period = distance.period;
    (period <= MOST_PERIOD).then_some(Band {
        slope: a.slope.checked_mul(p)?,
        low: pick(a.low.checked_mul(p)?, b.low.checked_mul(q)?),
        high: pick(a.high.checked_mul(p)?, b.high.checked_mul(q)?),
        over: distance.over,
        period,
    })
}

/// The period that several have together, if it is not too long.
pub(super) fn common_period(periods: impl IntoIterator<Item = i64>) -> Option<i64> {
    let common = periods.into_iter().try_fold(1, |common, period| lcm(common, period.into()))?;
    (common <= MOST_PERIOD).then_some(common as i64)
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

fn lcm(a: i128, b: i128) -> Option<i128> {
    (a / gcd(a, b)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{ParamId, SizeId};
    use proptest::prelude::*;

    const I: ValueId = ValueId(0);

    fn expression() -> impl Strategy<Value = IndexExpr> {
        let leaf = prop_oneof![(-300i64..300).prop_map(IndexExpr::Const), Just(IndexExpr::Tile(I)), Just(IndexExpr::Tile(I))];
        leaf.prop_recursive(5, 24, 2, |inner| {
            let two = || (inner.clone(), inner.clone());
            prop_oneof![
                two().prop_map(|(a, b)| a.plus(&b)),
                two().prop_map(|(a, b)| a.minus(&b)),
                two().prop_map(|(a, b)| a.min_of(&b)),
                two().prop_map(|(a, b)| a.max_of(&b)),
                (inner.clone(), -5i64..70).prop_map(|(a, c)| a.times(c)),
                (inner.clone(), 1i64..9).prop_map(|(a, d)| a.floor_div(d)),
                (inner.clone(), -3i64..9).prop_map(|(a, d)| a.over(&number(d))),
                (inner.clone(), -3i64..9).prop_map(|(a, c)| a.product(&number(c))),
                (inner, 1i64..9).prop_map(|(a, d)| a.ceil_div(d)),
            ]
        })
    }

    /// A scalar of this value.
    fn number(c: i64) -> IndexExpr {
        IndexExpr::Param(ParamId((c + 8) as u32))
    }

    fn param(p: ParamId) -> i64 {
        i64::from(p.0) - 8
    }

    fn value(e: &IndexExpr, i: i64) -> i64 {
        e.eval(Lookups { size: &|_| 0, value: &|_| i, param: &param, loaded: &|_| 0, found: &|_, _, _| 0 })
    }

    fn band_of(e: &IndexExpr, start: i64, end: i64) -> Option<Band> {
        band(
            e,
            &|_| Leaf::Moves,
            Lookups { size: &|_| 0, value: &|_| 0, param: &param, loaded: &|_| 0, found: &|_, _, _| 0 },
            start,
            end,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A band holds the expression, which repeats as it says.
        #[test]
        fn bands_hold(e in expression(), start in 0i64..200, count in 1i64..400) {
            let end = start + count;
            if let Some(band) = band_of(&e, start, end) {
                let growth = (start + band.period() < end).then(|| value(&e, start + band.period()) - value(&e, start));
                for i in start..end {
                    let (x, line) = (i128::from(value(&e, i)) * band.over, band.slope * i128::from(i));
                    prop_assert!(line + band.low <= x && x <= line + band.high, "{e} at {i}: {band:?}");
                    if i + band.period() < end {
                        prop_assert_eq!(Some(value(&e, i + band.period()) - value(&e, i)), growth, "{} at {}: {:?}", e, i, band);
                    }
                }
            }
        }

        /// The sum is what counting one by one gives.
        #[test]
        fn sums_are_right(e in expression(), f in expression(), start in 0i64..50, count in 0i64..1500) {
            let end = start + count;
            let period = |a, b| common_period([band_of(&e, a, b)?.period(), band_of(&f, a, b)?.period()]);
            let found = sum(start..end, &period, &mut |i| [value(&e, i).into(), value(&f, i).into()]);
            let expected = (start..end).fold([0i128; 2], |s, i| [s[0] + i128::from(value(&e, i)), s[1] + i128::from(value(&f, i))]);
            prop_assert_eq!(found, expected, "{} and {}", e, f);
        }
    }

    #[test]
    fn a_long_sum_takes_few_steps() {
        // A causal window of keys: min(floor((i + 1) * 64 / 96), n) - max(floor((i * 64 - 1000) / 96), 0).
        let row = IndexExpr::Tile(I).times(64);
        let n = IndexExpr::from(crate::ir::SizeExpr::size(SizeId(0))).fold_sizes(&|_| Some(500_000));
        let hi = row.plus(&64.into()).floor_div(96).min_of(&n);
        let lo = row.minus(&1000.into()).floor_div(96).max_of(&0.into());
        let trips = hi.minus(&lo).max_of(&0.into());
        let mut steps = 0;
        let found = sum(0..1 << 20, &|a, b| Some(band_of(&trips, a, b)?.period()), &mut |i| {
            steps += 1;
            [i128::from(value(&trips, i))]
        });
        let expected: i128 = (0..1 << 20).map(|i| i128::from(value(&trips, i))).sum();
        assert_eq!(found, [expected]);
        assert!(steps < 1000, "{steps} steps");
    }
}
