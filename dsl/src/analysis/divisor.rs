//! Products, quotients, multiples and remainders of integers by a number that is known at launch: a
//! size, an `i32` parameter, or an integer that is loaded.
//!
//! They are followed as those by constants are, for numbers from 1 on. A smaller number is taken
//! for 1, and nothing is concluded from a comparison in which it occurs: [`Holds::where_positive`].
//! So a launch with a negative block size walks every tile, and is right.
//!
//! Not followed: a divisor that differs from position to position, and a quotient of what is itself
//! divided by a number that is known at launch (`x / s / t`, whose limits may leave 64 bits;
//! `x / (s * t)` is followed).

use super::index::IndexExpr;
use super::predicate::{Form, Gap, Holds, Run, Term};
use super::simplify::BEYOND;

impl Term {
    /// The number that it is the quotient of, or the multiple.
    pub(super) fn of_form(&self) -> Option<&Form> {
        match self {
            Term::Quotient(form, _) | Term::Over(form, _) | Term::Multiple(form, _) | Term::Times(form, _) => Some(form),
            Term::Position(_) | Term::Remainder(..) | Term::Between(..) | Term::Summarised(_) => None,
        }
    }

    /// The largest value of the form of which the term is at most `k`.
    pub(super) fn last(&self, k: &IndexExpr) -> IndexExpr {
        let one = IndexExpr::from(1);
        match self {
            Term::Quotient(_, d) => k.times(*d).plus(&(d - 1).into()),
            Term::Over(_, d) => k.plus(&one).product(d).minus(&one),
            Term::Multiple(_, d) => k.over(d).plus(&one).product(d).minus(&one),
            Term::Times(_, factor) => k.over(factor),
            Term::Position(_) | Term::Remainder(..) | Term::Between(..) | Term::Summarised(_) => k.clone(),
        }
    }

    /// The smallest value of the form of which the term is at least `k`.
    pub(super) fn first(&self, k: &IndexExpr) -> IndexExpr {
        match self {
            Term::Quotient(_, d) => k.times(*d),
            Term::Over(_, d) => k.product(d),
            // The multiples from k on begin at ceil(k / d) * d.
            Term::Multiple(_, d) => k.plus(d).minus(&1.into()).over(d).product(d),
            Term::Times(_, factor) => k.plus(factor).minus(&1.into()).over(factor),
            Term::Position(_) | Term::Remainder(..) | Term::Between(..) | Term::Summarised(_) => k.clone(),
        }
    }

    /// Whether it holds a divisor that is known at launch.
    fn divides_at_launch(&self) -> bool {
        match self {
            Term::Over(..) | Term::Multiple(..) | Term::Remainder(..) => true,
            Term::Quotient(form, _) | Term::Times(form, _) => form.terms.keys().any(Term::divides_at_launch),
            Term::Position(_) | Term::Between(..) | Term::Summarised(_) => false,
        }
    }
}

impl Form {
    /// The product with a number that is known at launch, if it has a form. The number may be below
    /// 1, unless it `is_positive`.
    pub(super) fn times(&self, factor: &Self, is_positive: bool) -> Option<Self> {
        if !factor.terms.is_empty() {
            return None;
        }
        let both = |form: Self| Some(form.given(&self.divisors).given(&factor.divisors));
        if self.terms.is_empty() {
            return both(Self::uniform(self.rest.product(&factor.rest)));
        }
        let at_least_one = factor.rest.max_of(&1.into());
        // x / s * s
        match self.terms.iter().next() {
            Some((Term::Over(form, d), &c)) if self.terms.len() == 1 && self.rest == 0.into() && *d == at_least_one => {
                both(Self::term(Term::Multiple(form.clone(), d.clone())).scaled(c))
            }
            // Limits of what is divided by another number, and multiplied, may leave 64 bits.
            _ if self.terms.keys().any(Term::divides_at_launch) => None,
            _ if is_positive => both(Self::term(Term::Times(Box::new(self.clone()), factor.rest.clone()))),
            _ => {
                let mut product = Self::term(Term::Times(Box::new(self.clone()), at_least_one));
                product.divisors.insert(factor.rest.clone());
                both(product)
            }
        }
    }

    /// The quotient by a constant or a number that is known at launch, rounded down, if it has a form.
    pub(super) fn quotient(&self, divisor: &Self) -> Option<Self> {
        match divisor.as_const() {
            None => self.over(divisor),
            Some(0) => None,
            Some(d) => Some(self.scaled(d.signum()).floor_div(d.abs())),
        }
    }

    /// The remainder of that quotient, of a constant above 0.
    pub(super) fn rest_of_quotient(&self, divisor: &Self) -> Option<Self> {
        match divisor.as_const() {
            None => self.remainder(divisor),
            Some(d) => (d > 0).then(|| self.plus(&self.floor_div(d), -d)),
        }
    }

    /// The quotient by a number that is known at launch, rounded down, if it has a form.
    fn over(&self, divisor: &Self) -> Option<Self> {
        self.divided(divisor, IndexExpr::over, Term::Over)
    }

    /// The remainder of that quotient.
    fn remainder(&self, divisor: &Self) -> Option<Self> {
        let remainder = |x: &IndexExpr, d: &IndexExpr| x.minus(&x.over(d).product(d));
        self.divided(divisor, remainder, Term::Remainder)
    }

    fn divided(
        &self,
        divisor: &Self,
        known: impl Fn(&IndexExpr, &IndexExpr) -> IndexExpr,
        term: impl Fn(Box<Self>, IndexExpr) -> Term,
    ) -> Option<Self> {
        if !divisor.terms.is_empty() || self.terms.keys().any(Term::divides_at_launch) {
            return None;
        }
        let (one, d) = (IndexExpr::from(1), &divisor.rest);
        let at_least_one = d.max_of(&one);
        let form = match self.terms.is_empty() {
            true => Self::uniform(known(&self.rest, &at_least_one)),
            false => Self::term(term(Box::new(self.clone()), at_least_one)),
        };
        let mut form = form.given(&self.divisors).given(&divisor.divisors);
        // A launch is refused where a divisor is 0 that nothing loads.
        let least = i64::from(d.is_loaded());
        if !IndexExpr::from(least).at_most(d) {
            form.divisors.insert(d.clone());
        }
        Some(form)
    }

    fn given<'a>(mut self, divisors: impl IntoIterator<Item = &'a IndexExpr>) -> Self {
        self.divisors.extend(divisors.into_iter().cloned());
        self
    }

    /// The same with multiples in place of remainders, where that is the shorter sum, as of
    /// `x - x % s`.
    pub(super) fn without_remainders(&self) -> Self {
        self.terms.iter().fold(self.clone(), |sum, (term, &c)| {
            let Term::Remainder(of, d) = term else { return sum };
            let multiple = Self::term(Term::Multiple(of.clone(), d.clone()));
            let other = sum.plus(&Self::term(term.clone()), -c).plus(of, c).plus(&multiple, -c);
            if other.terms.len() <= sum.terms.len() { other } else { sum }
        })
    }
}

impl Holds {
    /// What is known if the number is 1 or more; nothing if it is less.
    pub(super) fn where_positive(&self, number: &IndexExpr) -> Self {
        let flag = |x: IndexExpr| x.max_of(&0.into()).min_of(&1.into()).times(BEYOND);
        let (positive, other) = (flag(number.clone()), flag(IndexExpr::from(1).minus(number)));
        let Run { lo, hi } = &self.somewhere;
        let somewhere = Run { lo: lo.as_ref().map(|lo| lo.min_of(&positive)), hi: hi.as_ref().map(|hi| hi.max_of(&other)) };
        let everywhere = match &self.everywhere {
            none if none.is_none() => none.clone(),
            Run { lo, hi } => Run { lo: lo.clone(), hi: Some(hi.as_ref().map_or(positive.clone(), |hi| hi.min_of(&positive))) },
        };
        let gap = self.gap.as_ref().map(|gap| Gap { lo: gap.lo.clone(), hi: gap.hi.min_of(&positive) });
        Self { somewhere, gap, everywhere }
    }
}
