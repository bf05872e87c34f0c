//! Sizes known before launch: exact rational-linear expressions over named sizes, such as `N`, `D / 2` or `2 * D - 8`.

use std::collections::BTreeMap;
use std::fmt;

use super::entity::SizeId;

/// `(sum of terms + constant) / divisor`, in lowest terms; the division must be exact when evaluated.
///
/// Equality is structural and, thanks to the canonical form, semantic for all values of the sizes.
///
/// A number of blocks ([`SizeExpr::ceil`]) is the one size whose division leaves a remainder. It
/// stands alone: nothing is computed of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SizeExpr {
    terms: BTreeMap<SizeId, i64>,
    constant: i64,
    divisor: i64,
    /// Whether the division rounds to negative infinity.
    rounded: bool,
}

impl SizeExpr {
    /// The constant `value`.
    pub fn constant(value: i64) -> Self {
        Self { terms: BTreeMap::new(), constant: value, divisor: 1, rounded: false }
    }

    /// The size itself.
    pub fn size(size: SizeId) -> Self {
        Self { terms: BTreeMap::from([(size, 1)]), constant: 0, divisor: 1, rounded: false }
    }

    /// `self + other`.
    pub fn add(&self, other: &Self) -> Self {
        self.combine(other, 1)
    }

    /// `self - other`.
    pub fn sub(&self, other: &Self) -> Self {
        self.combine(other, -1)
    }

    /// `self * factor`.
    pub fn mul(&self, factor: i64) -> Self {
        let terms = self.terms.iter().map(|(&s, &c)| (s, c * factor)).collect();
        Self { terms, constant: self.constant * factor, divisor: self.divisor, rounded: false }.canonical()
    }

    /// `self / divisor`, exact. `None` if `divisor` is zero.
    pub fn div(&self, divisor: i64) -> Option<Self> {
        if divisor == 0 {
            return None;
        }
        let sign = divisor.signum();
        Some(Self { divisor: self.divisor * divisor.abs(), ..self.mul(sign) }.canonical())
    }

    /// The quotient rounded up: of `N / 128`, how many blocks of 128 hold `N` positions. Rewrites
    /// declare tensors with a place for each block; kernel text has no word for it.
    ///
    /// # Panics
    /// If the expression is such a number already.
    pub fn ceil(&self) -> Self {
        assert!(!self.rounded, "a number of blocks stands alone");
        if self.divisor == 1 {
            return self.clone();
        }
        let up = Self { constant: self.constant + self.divisor - 1, rounded: true, ..self.clone() };
        if up.terms.is_empty() { Self::constant(up.constant.div_euclid(up.divisor)) } else { up }
    }

    /// Whether it is a number of blocks: [`SizeExpr::ceil`].
    pub fn is_rounded(&self) -> bool {
        self.rounded
    }

    /// The value, if no size occurs.
    pub fn as_constant(&self) -> Option<i64> {
        (self.terms.is_empty() && self.divisor == 1).then_some(self.constant)
    }

    /// The size, if the expression is just one.
    pub fn as_size(&self) -> Option<SizeId> {
        match (self.terms.iter().next(), self.terms.len(), self.constant, self.divisor) {
            (Some((&size, &1)), 1, 0, 1) => Some(size),
            _ => None,
        }
    }

    /// The sizes that occur.
    pub fn sizes(&self) -> impl Iterator<Item = SizeId> + '_ {
        self.terms.keys().copied()
    }

    /// Whether its numbers are below 2^30 and its divisor below 2^10, so that sums of a few such do not overflow. Readers
    /// refuse others.
    pub fn is_small(&self) -> bool {
        let small = |n: &i64| n.unsigned_abs() < 1 << 30;
        self.terms.values().all(small) && small(&self.constant) && self.divisor < 1 << 10
    }

    /// Coefficients of the sizes, the constant and the divisor. The division rounds to negative
    /// infinity where it leaves a remainder.
    pub fn parts(&self) -> (&BTreeMap<SizeId, i64>, i64, i64) {
        (&self.terms, self.constant, self.divisor)
    }

    /// The value under `lookup`; `None` where a size is unknown or the division leaves a remainder.
    pub fn eval(&self, lookup: impl Fn(SizeId) -> Option<i64>) -> Option<i64> {
        let mut sum = self.constant;
        for (&size, &coefficient) in &self.terms {
            sum = sum.checked_add(lookup(size)?.checked_mul(coefficient)?)?;
        }
        (self.rounded || sum % self.divisor == 0).then_some(sum.div_euclid(self.divisor))
    }

    /// The text form, with `name` giving the name of a size.
    pub fn display<'a>(&'a self, name: impl Fn(SizeId) -> &'a str) -> String {
        if self.rounded {
            let exact = Self { constant: self.constant - self.divisor + 1, rounded: false, ..self.clone() };
            return format!("ceil({})", exact.quotient_text(&name));
        }
        self.quotient_text(&name)
    }

    fn quotient_text<'a>(&self, name: &impl Fn(SizeId) -> &'a str) -> String {
        let mut text = String::new();
        for (&size, &c) in &self.terms {
            let sign = match (text.is_empty(), c < 0) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            };
            text.push_str(sign);
            if c.abs() != 1 {
                text.push_str(&format!("{} * ", c.abs()));
            }
            text.push_str(name(size));
        }
        match (text.is_empty(), self.constant) {
            (true, c) => text = c.to_string(),
            (false, 0) => {}
            (false, c) => text.push_str(&format!(" {} {}", if c < 0 { '-' } else { '+' }, c.abs())),
        }
        if self.divisor == 1 {
            return text;
        }
        if self.terms.len() + usize::from(self.constant != 0) > 1 {
            format!("({text}) / {}", self.divisor)
        } else {
            format!("{text} / {}", self.divisor)
        }
    }

    fn combine(&self, other: &Self, sign: i64) -> Self {
        debug_assert!(!self.rounded && !other.rounded, "a number of blocks stands alone");
        let mut terms: BTreeMap<SizeId, i64> = self.terms.iter().map(|(&s, &c)| (s, c * other.divisor)).collect();
        for (&s, &c) in &other.terms {
            *terms.entry(s).or_insert(0) += sign * c * self.divisor;
        }
        let constant = self.constant * other.divisor + sign * other.constant * self.divisor;
        Self { terms, constant, divisor: self.divisor * other.divisor, rounded: false }.canonical()
    }

    fn canonical(mut self) -> Self {
        self.terms.retain(|_, c| *c != 0);
        let mut common = gcd(self.constant, self.divisor);
        for &c in self.terms.values() {
            common = gcd(common, c);
        }
        if common > 1 {
            self.terms.values_mut().for_each(|c| *c /= common);
            self.constant /= common;
            self.divisor /= common;
        }
        self
    }
}

impl fmt::Display for SizeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: BTreeMap<SizeId, String> = self.terms.keys().map(|&s| (s, s.to_string())).collect();
        f.write_str(&self.display(|s| &names[&s]))
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_structurally_equal() {
        let d = SizeExpr::size(SizeId(0));
        let half = d.div(2).expect("nonzero");
        assert_eq!(d.sub(&half), half);
        assert_eq!(half.add(&half), d);
        assert_eq!(half.mul(2).as_size(), Some(SizeId(0)));
    }

    #[test]
    fn division_must_be_exact() {
        let half = SizeExpr::size(SizeId(0)).div(2).expect("nonzero");
        assert_eq!(half.eval(|_| Some(64)), Some(32));
        assert_eq!(half.eval(|_| Some(65)), None);
        assert_eq!(SizeExpr::constant(3).div(0), None);
    }

    #[test]
    fn numbers_of_blocks_round_up() {
        let n = SizeExpr::size(SizeId(0));
        let blocks = n.sub(&SizeExpr::constant(1)).div(64).expect("nonzero").ceil();
        let of = |n: i64| blocks.eval(|_| Some(n));
        assert_eq!([of(0), of(1), of(2), of(65), of(66)], [Some(0), Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!(blocks.display(|_| "N"), "ceil((N - 1) / 64)");
        assert_eq!(SizeExpr::constant(65).div(64).expect("nonzero").ceil(), SizeExpr::constant(2));
        assert_eq!(n.ceil(), n);
    }

    #[test]
    fn text_form() {
        let d = SizeExpr::size(SizeId(0));
        let e = d.mul(2).sub(&SizeExpr::constant(8));
        assert_eq!(e.display(|_| "D"), "2 * D - 8");
        assert_eq!(d.add(&SizeExpr::constant(1)).div(2).expect("nonzero").display(|_| "D"), "(D + 1) / 2");
    }
}
