//! Constructors of [`IndexExpr`] that fold constants and keep a canonical form, and the order they can prove.
//!
//! The canonical form: minima and maxima outermost, then sums of leaves with coefficients (positive
//! ones first), then divisions whose dividends hold no multiple of the divisor. What is used to
//! prove `a <= b`: sizes, tile numbers and what a search finds are not negative, and quotients by
//! one divisor compare as their dividends do.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::index::IndexExpr;
use crate::ir::SizeExpr;

/// Larger than any number of tiles, and small enough for 32-bit arithmetic.
pub const BEYOND: i64 = 1 << 30;

/// A sum of leaves with coefficients, and a constant. No coefficient is zero.
#[derive(Clone, Default, Debug)]
struct Linear {
    terms: BTreeMap<IndexExpr, i64>,
    constant: i64,
}

impl Linear {
    fn of(e: &IndexExpr) -> Self {
        let mut out = Self::default();
        out.accumulate(e, 1);
        out.terms.retain(|_, c| *c != 0);
        out
    }

    fn accumulate(&mut self, e: &IndexExpr, factor: i64) {
        match e {
            IndexExpr::Const(c) => self.constant += c * factor,
            IndexExpr::Size(s) if s.parts().2 == 1 => {
                let (terms, constant, _) = s.parts();
                self.constant += constant * factor;
                for (&size, &c) in terms {
                    *self.terms.entry(IndexExpr::Size(SizeExpr::size(size))).or_insert(0) += c * factor;
                }
            }
            IndexExpr::Add(a, b) => {
                self.accumulate(a, factor);
                self.accumulate(b, factor);
            }
            IndexExpr::Sub(a, b) => {
                self.accumulate(a, factor);
                self.accumulate(b, -factor);
            }
            IndexExpr::Mul(a, c) => self.accumulate(a, factor * c),
            leaf => *self.terms.entry(leaf.clone()).or_insert(0) += factor,
        }
    }

    /// `self * a + other * b`.
    fn combined(&self, a: i64, other: &Self, b: i64) -> Self {
        let mut terms: BTreeMap<_, _> = self.terms.iter().map(|(t, &c)| (t.clone(), c * a)).collect();
        for (t, &c) in &other.terms {
            *terms.entry(t.clone()).or_insert(0) += c * b;
        }
        terms.retain(|_, c| *c != 0);
        Self { terms, constant: self.constant * a + other.constant * b }
    }

    fn into_expr(self) -> IndexExpr {
        // Coordinates first, as in the kernel text; then sizes; then the rest; negative terms and the constant last.
        let rank = |e: &IndexExpr| match e {
            IndexExpr::Tile(_) => 0,
            IndexExpr::Index(_) | IndexExpr::Param(_) | IndexExpr::Loaded(_) | IndexExpr::Found(_) => 1,
            IndexExpr::Size(_) => 2,
            _ => 3,
        };
        let mut terms: Vec<_> = self.terms.into_iter().collect();
        terms.sort_by_key(|(e, c)| (*c < 0, rank(e)));
        let scaled = |e: IndexExpr, c: i64| if c == 1 { e } else { IndexExpr::Mul(Arc::new(e), c) };
        let mut sum: Option<IndexExpr> = None;
        for (e, c) in terms {
            sum = Some(match sum {
                None => scaled(e, c),
                Some(s) if c < 0 => IndexExpr::Sub(Arc::new(s), Arc::new(scaled(e, -c))),
                Some(s) => IndexExpr::Add(Arc::new(s), Arc::new(scaled(e, c))),
            });
        }
        match (sum, self.constant) {
            (None, c) => IndexExpr::Const(c),
            (Some(s), 0) => s,
            (Some(s), c) if c < 0 => IndexExpr::Sub(Arc::new(s), Arc::new(IndexExpr::Const(-c))),
            (Some(s), c) => IndexExpr::Add(Arc::new(s), Arc::new(IndexExpr::Const(c))),
        }
    }

    /// Splits off what `divisor` divides: `self = divisor * .0 + .1`, with `0 <= .1.constant < divisor`.
    fn split(&self, divisor: i64) -> (Self, Self) {
        let (mut multiple, mut rest) = (Self::default(), Self::default());
        for (t, &c) in &self.terms {
            if c % divisor == 0 {
                multiple.terms.insert(t.clone(), c / divisor);
            } else {
                rest.terms.insert(t.clone(), c);
            }
        }
        multiple.constant = self.constant.div_euclid(divisor);
        rest.constant = self.constant.rem_euclid(divisor);
        (multiple, rest)
    }

    /// A constant that the sum is never below.
    fn lower_bound(&self) -> Option<i64> {
        let mut bound = self.constant;
        let mut quotients: Vec<(&IndexExpr, i64)> = Vec::new();
        for (t, &c) in &self.terms {
            match t {
                IndexExpr::Tile(_) | IndexExpr::Found(_) if c > 0 => {}
                IndexExpr::Size(s) if c > 0 && s.parts().1 >= 0 && s.parts().0.values().all(|&k| k >= 0) => {}
                IndexExpr::FloorDiv(..) | IndexExpr::CeilDiv(..) => quotients.push((t, c)),
                IndexExpr::Max(..) | IndexExpr::Min(..) | IndexExpr::Product(..) | IndexExpr::Over(..) if c > 0 => {
                    bound += c * lower_bound(t)?;
                }
                _ => return None,
            }
        }
        // Pair each subtracted quotient with an added one of the same divisor and coefficient, or take it at its largest.
        let mut added: Vec<_> = quotients.iter().filter(|(_, c)| *c > 0).copied().collect();
        for (q, c) in quotients.into_iter().filter(|(_, c)| *c < 0) {
            let pair = added.iter().enumerate().filter(|(_, (_, pc))| *pc == -c);
            let gap = match pair.filter_map(|(k, (p, _))| Some((k, quotient_gap(p, q)?))).next() {
                Some((place, gap)) => {
                    added.remove(place);
                    gap
                }
                None => -upper_bound(q)?,
            };
            bound += -c * gap;
        }
        for (p, c) in added {
            bound += c * lower_bound(p)?;
        }
        Some(bound)
    }
}

fn ceil_div(a: i64, d: i64) -> i64 {
    -(-a).div_euclid(d)
}

/// A constant that `e` is never below.
fn lower_bound(e: &IndexExpr) -> Option<i64> {
    match e {
        IndexExpr::Max(a, b) => match (lower_bound(a), lower_bound(b)) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        },
        IndexExpr::Min(a, b) => Some(lower_bound(a)?.min(lower_bound(b)?)),
        IndexExpr::FloorDiv(a, d) => Some(lower_bound(a)?.div_euclid(*d)),
        IndexExpr::CeilDiv(a, d) => Some(ceil_div(lower_bound(a)?, *d)),
        // A divisor of 1 at least brings a quotient no further than to 0.
        IndexExpr::Over(a, _) => Some(lower_bound(a)?.min(0)),
        IndexExpr::Product(a, b) => {
            let (a, b) = (lower_bound(a)?, lower_bound(b)?);
            (a >= 0 && b >= 0).then(|| a.saturating_mul(b))
        }
        _ => Linear::of(e).lower_bound(),
    }
}

/// A constant that a quotient is never above.
fn upper_bound(q: &IndexExpr) -> Option<i64> {
    let (up, x, d) = quotient(q)?;
    let most = -Linear::default().combined(1, &Linear::of(x), -1).lower_bound()?;
    Some(if up { ceil_div(most, d) } else { most.div_euclid(d) })
}

/// A constant that `p - q` is never below, for two quotients by the same divisor.
fn quotient_gap(p: &IndexExpr, q: &IndexExpr) -> Option<i64> {
    let (up_p, y, d) = quotient(p)?;
    let (up_q, x, e) = quotient(q)?;
    if d != e {
        return None;
    }
    let gap = Linear::of(y).combined(1, &Linear::of(x), -1).lower_bound()?;
    Some(match (up_p, up_q) {
        (false, false) | (true, true) => gap.div_euclid(d),
        (true, false) => ceil_div(gap, d),
        // floor(y/d) >= (y - d + 1)/d and ceil(x/d) <= (x + d - 1)/d.
        (false, true) => ceil_div(gap - 2 * d + 2, d),
    })
}

fn quotient(e: &IndexExpr) -> Option<(bool, &IndexExpr, i64)> {
    match e {
        IndexExpr::FloorDiv(x, d) => Some((false, x, *d)),
        IndexExpr::CeilDiv(x, d) => Some((true, x, *d)),
        _ => None,
    }
}

impl IndexExpr {
    /// `self + other`.
    pub fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (IndexExpr::Min(a, b), c) if !c.is_lattice() => a.plus(c).min_of(&b.plus(c)),
            (IndexExpr::Max(a, b), c) if !c.is_lattice() => a.plus(c).max_of(&b.plus(c)),
            (c, lattice) if lattice.is_lattice() && !c.is_lattice() => lattice.plus(c),
            (a, b) => Linear::of(a).combined(1, &Linear::of(b), 1).into_expr(),
        }
    }

    /// `self - other`.
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(-1))
    }

    /// `self * factor`. A product that only says "far beyond" ([`BEYOND`]) stays as it is, so that it stays small.
    pub fn times(&self, factor: i64) -> Self {
        match self {
            _ if factor == 1 => self.clone(),
            lattice if lattice.is_lattice() && factor == BEYOND => IndexExpr::Mul(Arc::new(lattice.clone()), factor),
            IndexExpr::Min(a, b) if factor < 0 => a.times(factor).max_of(&b.times(factor)),
            IndexExpr::Max(a, b) if factor < 0 => a.times(factor).min_of(&b.times(factor)),
            IndexExpr::Min(a, b) if factor > 0 => a.times(factor).min_of(&b.times(factor)),
            IndexExpr::Max(a, b) if factor > 0 => a.times(factor).max_of(&b.times(factor)),
            _ => Linear::of(self).combined(factor, &Linear::default(), 0).into_expr(),
        }
    }

    /// `floor(self / divisor)`.
    ///
    /// # Panics
    /// If the divisor is not positive.
    pub fn floor_div(&self, divisor: i64) -> Self {
        self.quotient(divisor, false)
    }

    /// `ceil(self / divisor)`.
    ///
    /// # Panics
    /// If the divisor is not positive.
    pub fn ceil_div(&self, divisor: i64) -> Self {
        self.quotient(divisor, true)
    }

    /// `self * other`.
    pub fn product(&self, other: &Self) -> Self {
        match (self, other) {
            (IndexExpr::Const(c), x) | (x, IndexExpr::Const(c)) => x.times(*c),
            (IndexExpr::Min(a, b), x) if Self::from(0).at_most(x) => a.product(x).min_of(&b.product(x)),
            (IndexExpr::Max(a, b), x) if Self::from(0).at_most(x) => a.product(x).max_of(&b.product(x)),
            (a, b) => IndexExpr::Product(Arc::new(a.clone()), Arc::new(b.clone())),
        }
    }

    /// `floor(self / max(divisor, 1))`.
    pub fn over(&self, divisor: &Self) -> Self {
        match (self, divisor.max_of(&1.into())) {
            (x, IndexExpr::Const(d)) => x.floor_div(d),
            (IndexExpr::Const(0), _) => 0.into(),
            (IndexExpr::Min(a, b), d) => a.over(&d).min_of(&b.over(&d)),
            (IndexExpr::Max(a, b), d) => a.over(&d).max_of(&b.over(&d)),
            (x, d) => IndexExpr::Over(Arc::new(x.clone()), Arc::new(d)),
        }
    }

    fn quotient(&self, divisor: i64, up: bool) -> Self {
        assert!(divisor > 0, "divisors are positive");
        match self {
            _ if divisor == 1 => self.clone(),
            IndexExpr::Min(a, b) => a.quotient(divisor, up).min_of(&b.quotient(divisor, up)),
            IndexExpr::Max(a, b) => a.quotient(divisor, up).max_of(&b.quotient(divisor, up)),
            _ => {
                let (mut multiple, mut rest) = Linear::of(self).split(divisor);
                if rest.terms.is_empty() {
                    multiple.constant += i64::from(up && rest.constant > 0);
                    return multiple.into_expr();
                }
                if up && rest.constant > divisor / 2 {
                    // Prefer small remainders: ceil((x + 63) / 64) is 1 + ceil((x - 1) / 64).
                    rest.constant -= divisor;
                    multiple.constant += 1;
                }
                let dividend = Arc::new(rest.into_expr());
                let q = if up { IndexExpr::CeilDiv(dividend, divisor) } else { IndexExpr::FloorDiv(dividend, divisor) };
                if multiple.terms.is_empty() && multiple.constant == 0 {
                    return q;
                }
                multiple.combined(1, &Linear::of(&q), 1).into_expr()
            }
        }
    }

    /// The smaller of two.
    pub fn min_of(&self, other: &Self) -> Self {
        let nested = |a, b| IndexExpr::Min(Arc::new(a), Arc::new(b));
        reduced(self, other, false).into_iter().reduce(nested).expect("two operands at least")
    }

    /// The larger of two.
    pub fn max_of(&self, other: &Self) -> Self {
        let nested = |a, b| IndexExpr::Max(Arc::new(a), Arc::new(b));
        reduced(self, other, true).into_iter().reduce(nested).expect("two operands at least")
    }

    /// Whether `self <= other` is proved for all sizes and tile numbers. `false` says nothing.
    pub fn at_most(&self, other: &Self) -> bool {
        self.is_at_most(other, &mut HashMap::new())
    }

    /// [`IndexExpr::at_most`]. A minimum below a maximum is compared by the parts of both, which meet
    /// again on many ways: `known` has the answers for pairs of parts, by their addresses.
    fn is_at_most<'a>(&'a self, other: &'a Self, known: &mut HashMap<[*const Self; 2], bool>) -> bool {
        let pair: [*const Self; 2] = [self, other];
        if let Some(&known) = known.get(&pair) {
            return known;
        }
        let is = match (self, other) {
            (a, b) if a == b => true,
            (IndexExpr::Max(x, y), b) => x.is_at_most(b, known) && y.is_at_most(b, known),
            (a, IndexExpr::Min(x, y)) => a.is_at_most(x, known) && a.is_at_most(y, known),
            (a, b) => {
                let below = matches!(a, IndexExpr::Min(x, y) if x.is_at_most(b, known) || y.is_at_most(b, known));
                let above = |known: &mut _| matches!(b, IndexExpr::Max(x, y) if a.is_at_most(x, known) || a.is_at_most(y, known));
                let gap = || Linear::of(b).combined(1, &Linear::of(a), -1).lower_bound();
                below || above(known) || gap().is_some_and(|gap| gap >= 0)
            }
        };
        known.insert(pair, is);
        is
    }

    fn is_lattice(&self) -> bool {
        matches!(self, IndexExpr::Min(..) | IndexExpr::Max(..))
    }
}

/// The operands of the nested minima (maxima, if `largest`) `a` and `b`, without those that another one makes redundant.
fn reduced(a: &IndexExpr, b: &IndexExpr, largest: bool) -> Vec<IndexExpr> {
    fn flatten<'a>(e: &'a IndexExpr, largest: bool, out: &mut Vec<&'a IndexExpr>) {
        match (e, largest) {
            (IndexExpr::Min(a, b), false) | (IndexExpr::Max(a, b), true) => {
                flatten(a, largest, out);
                flatten(b, largest, out);
            }
            _ => out.push(e),
        }
    }
    let wins = |x: &IndexExpr, y: &IndexExpr| if largest { y.at_most(x) } else { x.at_most(y) };
    let mut all = Vec::new();
    flatten(a, largest, &mut all);
    flatten(b, largest, &mut all);
    let mut kept: Vec<&IndexExpr> = Vec::new();
    for e in all {
        if kept.iter().any(|k| wins(k, e)) {
            continue;
        }
        kept.retain(|k| !wins(e, k));
        kept.push(e);
    }
    kept.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ValueId;

    #[test]
    fn a_minimum_of_many_is_compared_with_a_maximum_of_many() {
        // Of 40 each, there are 10^23 ways through the parts of both.
        let index = |n: u32| IndexExpr::Index(ValueId(n));
        let least = (1..40).fold(index(0), |all, n| IndexExpr::Min(Arc::new(all), Arc::new(index(n))));
        let most = (101..140).fold(index(100), |all, n| IndexExpr::Max(Arc::new(all), Arc::new(index(n))));
        assert!(!least.at_most(&most), "nothing says so");
        let shared = IndexExpr::Max(Arc::new(most), Arc::new(index(0)));
        assert!(least.at_most(&shared), "both have a part in common");
    }
}
