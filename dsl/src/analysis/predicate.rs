//! Where along a loop a predicate over positions holds: interval arithmetic over tiles.
//!
//! A predicate is a boolean formula over comparisons of integer forms: positions of the loop's axis and of other axes,
//! sizes, program ids, constants, products with and quotients by what is known at launch
//! (`divisor.rs`). Of an index loop the index is the position. For each tile of the loop it holds *somewhere*,
//! *everywhere*, both or neither, in the rows that exist. Both sets are given as runs of tiles in closed form, on the
//! safe side: the tiles where it holds somewhere are a superset, those where it holds everywhere a subset. They are
//! exact for comparisons in which the loop's position occurs once, for their conjunctions, and for disjunctions that
//! stay one run. A minimum, a maximum or an absolute value of what moves with the loop is taken
//! apart into these. Loaded data may hold anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::{IndexExpr, Search, SearchEnd, Symbol, index_expr, is_short};
use super::simplify::BEYOND;
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, CompareOp, Elem, Entity, IndexOp, Kernel, Op, ParamId, ProgramDim, SizeExpr, Type, UnaryOp,
    ValueDef, ValueId,
};

/// A run of tiles `lo .. hi`; an end that is `None` is open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// First tile.
    pub lo: Option<IndexExpr>,
    /// One past the last tile.
    pub hi: Option<IndexExpr>,
}

impl Run {
    /// Every tile.
    pub fn all() -> Self {
        Self::default()
    }

    /// No tile.
    pub fn none() -> Self {
        Self { lo: Some(0.into()), hi: Some(0.into()) }
    }

    /// Whether it is every tile for sure.
    pub fn is_all(&self) -> bool {
        self.lo.is_none() && self.hi.is_none()
    }

    /// Whether it is no tile for sure.
    pub fn is_none(&self) -> bool {
        matches!((&self.lo, &self.hi), (Some(lo), Some(hi)) if hi.at_most(lo))
            || self.hi.as_ref().is_some_and(|hi| hi.at_most(&0.into()))
    }

    /// The tiles of both.
    pub fn intersect(&self, other: &Self) -> Self {
        Self { lo: join(&self.lo, &other.lo, IndexExpr::max_of), hi: join(&self.hi, &other.hi, IndexExpr::min_of) }
    }

    /// The smallest run that holds both.
    pub fn hull(&self, other: &Self) -> Self {
        if self.is_none() {
            return other.clone();
        }
        if other.is_none() {
            return self.clone();
        }
        self.first_to_last(other)
    }

    /// From the first tile of either to the last one.
    fn first_to_last(&self, other: &Self) -> Self {
        // No tile has no first one: it begins beyond the last.
        let begin = |run: &Self, other: &Self| match other.lo {
            Some(_) => run.lo.clone().or_else(|| run.begin_of_all_or_none()),
            None => run.lo.clone(),
        };
        let (lo, other_lo) = (begin(self, other), begin(other, self));
        Self { lo: meet(&lo, &other_lo, IndexExpr::min_of), hi: meet(&self.hi, &other.hi, IndexExpr::max_of) }
    }

    /// Of a run that is every tile or none, which is known at launch: 0 where it is every tile,
    /// else beyond the last.
    fn begin_of_all_or_none(&self) -> Option<IndexExpr> {
        fn begin(end: &IndexExpr) -> Option<IndexExpr> {
            match end {
                IndexExpr::Mul(open, BEYOND) => Some(IndexExpr::from(1).minus(open).times(BEYOND)),
                IndexExpr::Min(a, b) => Some(begin(a)?.max_of(&begin(b)?)),
                IndexExpr::Max(a, b) => Some(begin(a)?.min_of(&begin(b)?)),
                _ => None,
            }
        }
        if self.lo.is_none() { begin(self.hi.as_ref()?) } else { None }
    }

    /// Whether it is every tile or none.
    pub fn is_all_or_none(&self) -> bool {
        self.is_all() || self.is_none() || self.begin_of_all_or_none().is_some()
    }

    /// Whether the union of the two is known to be one run.
    fn is_one_run_with(&self, other: &Self) -> bool {
        let overlap = |a: &Self, b: &Self| match (&a.hi, &b.lo) {
            (Some(hi), Some(lo)) => lo.at_most(hi),
            _ => true,
        };
        // With a common end the union is one run, also if one of the two is empty.
        let one = |run: &Self| run.begin_of_all_or_none().is_some();
        self.lo == other.lo || self.hi == other.hi || one(self) || one(other) || {
            let bounded = [self, other].iter().all(|r| r.lo.is_none() || r.hi.is_none());
            bounded && overlap(self, other) && overlap(other, self)
        }
    }

    /// The tiles between the two, if there may be any: behind the end of the one, before the begin
    /// of the other. Where it ends before it begins, or goes beyond the hull, it stands for less.
    pub fn gap(&self, other: &Self) -> Option<Gap> {
        if !self.leaves_a_gap(other) {
            return None;
        }
        // A run that ends before it begins is empty where it begins.
        let end = |run: &Self| match (&run.lo, &run.hi) {
            (Some(lo), Some(hi)) => Some(hi.max_of(lo)),
            (_, hi) => hi.clone(),
        };
        let lo = join(&end(self), &end(other), IndexExpr::min_of)?;
        let hi = join(&self.lo, &other.lo, IndexExpr::max_of)?;
        (!hi.at_most(&lo)).then_some(Gap { lo, hi })
    }

    /// Whether there may be tiles between the two, so that [`Run::hull`] holds more than both.
    pub fn leaves_a_gap(&self, other: &Self) -> bool {
        !self.is_none() && !other.is_none() && !self.is_all() && !other.is_all() && !self.is_one_run_with(other)
    }

    /// One run inside the union of the two: the union itself where it is one run.
    pub fn inside_union(&self, other: &Self) -> Self {
        let one_run = self.is_one_run_with(other);
        if self.is_none() || other.is_all() {
            other.clone()
        } else if one_run && !other.is_none() {
            self.first_to_last(other)
        } else if other.moves_with_a_tile() && !self.moves_with_a_tile() && !other.is_none() {
            // What depends on the program's own tile (a window) is taken for the longer one.
            other.clone()
        } else {
            self.clone()
        }
    }

    fn moves_with_a_tile(&self) -> bool {
        [&self.lo, &self.hi].into_iter().flatten().any(|e| !e.values().is_empty())
    }
}

/// Tiles between two runs, `lo .. hi`; none if `hi` is not above `lo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// First tile.
    pub lo: IndexExpr,
    /// One past the last.
    pub hi: IndexExpr,
}

type End = Option<IndexExpr>;

/// An end of an intersection: an open end gives way.
fn join(a: &End, b: &End, both: impl Fn(&IndexExpr, &IndexExpr) -> IndexExpr) -> End {
    match (a, b) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (a, b) => a.clone().or_else(|| b.clone()),
    }
}

/// An end of a union: an open end wins.
fn meet(a: &End, b: &End, both: impl Fn(&IndexExpr, &IndexExpr) -> IndexExpr) -> End {
    Some(both(a.as_ref()?, b.as_ref()?))
}

/// Where a predicate holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Outside of these tiles it holds nowhere.
    pub somewhere: Run,
    /// Nor in these, which lie between two runs of them.
    pub gap: Option<Gap>,
    /// In these tiles it holds everywhere.
    pub everywhere: Run,
}

impl Holds {
    /// Nothing is known.
    pub fn unknown() -> Self {
        Self { somewhere: Run::all(), gap: None, everywhere: Run::none() }
    }

    /// What is known where both hold.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            somewhere: self.somewhere.intersect(&other.somewhere),
            gap: self.gap.clone().or_else(|| other.gap.clone()),
            everywhere: self.everywhere.intersect(&other.everywhere),
        }
    }

    /// What is known where one of the two holds. Of more than two runs the gaps are not followed.
    pub(super) fn or(&self, other: &Self) -> Self {
        let gap = match (&self.gap, &other.gap) {
            (None, None) => self.somewhere.gap(&other.somewhere),
            (Some(gap), None) if other.somewhere.is_none() => Some(gap.clone()),
            (None, Some(gap)) if self.somewhere.is_none() => Some(gap.clone()),
            _ => None,
        };
        Self {
            somewhere: self.somewhere.hull(&other.somewhere),
            gap,
            everywhere: self.everywhere.inside_union(&other.everywhere),
        }
    }
}

/// An integer that varies over a tile.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Term {
    /// The position along the axis of a coordinate.
    Position(ValueId),
    /// `floor(form / divisor)`.
    Quotient(Box<Form>, i64),
    /// `floor(form / divisor)`, of a divisor that is known at launch and never below 1.
    Over(Box<Form>, IndexExpr),
    /// `form - form % divisor`, of such a divisor.
    Multiple(Box<Form>, IndexExpr),
    /// `form * factor`, of a factor that is known at launch and never below 1.
    Times(Box<Form>, IndexExpr),
    /// `form % divisor`, of such a divisor.
    Remainder(Box<Form>, IndexExpr),
    /// The value, known to lie between two expressions.
    Between(ValueId, IndexExpr, IndexExpr),
    /// What is loaded for each position of the loop, of which each tile's extremes are known.
    Summarised(ValueId),
}

/// A side of a comparison.
pub(super) enum Side {
    /// One number.
    Form(Form),
    /// The largest or smallest of several.
    Extremum {
        /// Whether it is the largest.
        largest: bool,
        /// The numbers, at least one.
        of: Vec<Side>,
    },
}

/// A sum of terms with coefficients and of what is the same in the whole program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Form {
    pub(super) terms: BTreeMap<Term, i64>,
    pub(super) rest: IndexExpr,
    /// Divisors that are known at launch. Where one of them is below 1, the form is another number.
    pub(super) divisors: BTreeSet<IndexExpr>,
}

impl Form {
    pub(super) fn uniform(rest: IndexExpr) -> Self {
        Self { terms: BTreeMap::new(), rest, divisors: BTreeSet::new() }
    }

    pub(super) fn term(term: Term) -> Self {
        Self { terms: BTreeMap::from([(term, 1)]), ..Self::uniform(0.into()) }
    }

    /// The same number, computed from what `others` are computed from.
    fn computed_from(mut self, others: &[&Self]) -> Self {
        self.divisors.extend(others.iter().flat_map(|other| other.divisors.iter().cloned()));
        self
    }

    /// `self + factor * other`.
    pub(super) fn plus(&self, other: &Self, factor: i64) -> Self {
        let mut terms = self.terms.clone();
        for (t, &c) in &other.terms {
            *terms.entry(t.clone()).or_insert(0) += factor * c;
        }
        terms.retain(|_, c| *c != 0);
        let rest = self.rest.plus(&other.rest.times(factor));
        Self { terms, rest, divisors: BTreeSet::new() }.computed_from(&[self, other])
    }

    pub(super) fn scaled(&self, factor: i64) -> Self {
        Self::uniform(0.into()).plus(self, factor)
    }

    pub(super) fn as_const(&self) -> Option<i64> {
        if self.terms.is_empty() { self.rest.as_const() } else { None }
    }

    pub(super) fn floor_div(&self, divisor: i64) -> Self {
        match self.terms.is_empty() {
            true => Self::uniform(self.rest.floor_div(divisor)),
            false => Self::term(Term::Quotient(Box::new(self.clone()), divisor)),
        }
        .computed_from(&[self])
    }
}

/// A value of a predicate that cannot be followed before the loop runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opaque {
    /// The value.
    pub value: ValueId,
    /// Why.
    pub why: OpaqueWhy,
}

/// Why a value of a predicate cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpaqueWhy {
    /// It is loaded.
    Loaded,
    /// It is an absolute value, a minimum or a maximum in a sum: only its range is known.
    Range,
    /// It divides, and differs from position to position, or divides a quotient by a number that is
    /// known at launch.
    Divisor,
    /// It is a product of two run-time values.
    Product,
    /// It compares floats.
    Floats,
    /// It is too long where each value is written out for each of its uses.
    Long,
    /// It is made by an operation that is not followed.
    Other,
}

/// How comparisons treat equality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// As written.
    Written,
    /// `<` is taken for `<=`, `>` for `>=`.
    Closed,
    /// `<=` is taken for `<`, `>=` for `>`.
    Open,
}

impl Boundary {
    /// The comparison that stands for `op`.
    pub fn of(self, op: CompareOp) -> CompareOp {
        match (self, op) {
            (Boundary::Closed, CompareOp::Lt) => CompareOp::Le,
            (Boundary::Closed, CompareOp::Gt) => CompareOp::Ge,
            (Boundary::Open, CompareOp::Le) => CompareOp::Lt,
            (Boundary::Open, CompareOp::Ge) => CompareOp::Gt,
            (_, op) => op,
        }
    }
}

/// Which tensors are summarised: of which of them bounds may search the extremes of tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Summaries {
    /// None.
    None,
    /// Those of which the kernel says so ([`Kernel::summaries`]).
    Declared,
    /// All that can be.
    All,
}

/// The loop that predicates are seen from, with what a schedule and a binding fix.
pub struct Walk<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The coordinate of the loop.
    pub coordinate: ValueId,
    /// Values defined in the loop body (its parameters too): not known before the loop.
    pub inner: &'a BTreeSet<ValueId>,
    /// Block size of an axis.
    pub block: &'a dyn Fn(AxisId) -> i64,
    /// Value of a size expression, where it is known at compile time.
    pub size: &'a dyn Fn(&SizeExpr) -> Option<i64>,
    /// How comparisons treat equality.
    pub boundary: Boundary,
    /// Whether what is loaded before the loop is followed.
    pub loaded: bool,
    /// Of which tensors that are loaded in the loop the extremes of tiles are known.
    pub summaries: Summaries,
}

impl Walk<'_> {
    /// Where the bool value holds.
    pub fn holds(&self, value: ValueId) -> Holds {
        self.predicate(value, true)
    }

    /// Where `value == wanted` holds: a negation is carried down to the comparisons.
    pub(super) fn predicate(&self, value: ValueId, wanted: bool) -> Holds {
        match is_short(self.kernel, value) {
            true => self.short_predicate(value, wanted),
            false => Holds::unknown(),
        }
    }

    fn short_predicate(&self, value: ValueId, wanted: bool) -> Holds {
        let Some((_, op)) = self.kernel.def(value) else { return Holds::unknown() };
        match op {
            Op::Unary(UnaryOp::Not, x) => self.short_predicate(*x, !wanted),
            Op::Full { value, .. } => self.short_predicate(*value, wanted),
            Op::Transpose(x) => self.short_predicate(*x, wanted),
            Op::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (self.short_predicate(*a, wanted), self.short_predicate(*b, wanted));
                if (*op == BinaryOp::And) == wanted { a.and(&b) } else { a.or(&b) }
            }
            Op::Compare(op, a, b) => {
                let integers = [a, b].iter().all(|v| self.kernel.tile(**v).elem == Elem::I32);
                let op = self.boundary.of(if wanted { *op } else { negated(*op) });
                match (integers, self.side(*a, op), self.side(*b, op)) {
                    (true, Ok(a), Ok(b)) => self.compared(op, &a, &b),
                    _ => Holds::unknown(),
                }
            }
            // Truth values count as 0 and 1.
            Op::Load { tensor, at } if self.is_summarised(value, *tensor, at) => {
                let wanted = IndexExpr::from(i64::from(wanted));
                self.searched(value, [Some(&wanted); 2], [Some(&wanted); 2])
            }
            Op::Load { tensor, at } => match self.loaded(value, *tensor, at) {
                Some(form) if wanted => self.comparison(CompareOp::Ge, &form, &Form::uniform(1.into())),
                Some(form) => self.comparison(CompareOp::Le, &form, &Form::uniform(0.into())),
                None => Holds::unknown(),
            },
            _ => Holds::unknown(),
        }
    }

    fn compared(&self, op: CompareOp, a: &Side, b: &Side) -> Holds {
        match (op, a, b) {
            (CompareOp::Eq | CompareOp::Ne, Side::Form(a), Side::Form(b)) => self.comparison(op, a, b),
            (CompareOp::Eq, ..) => self.sides(CompareOp::Le, a, b).and(&self.sides(CompareOp::Ge, a, b)),
            (CompareOp::Ne, ..) => self.sides(CompareOp::Lt, a, b).or(&self.sides(CompareOp::Gt, a, b)),
            _ => self.sides(op, a, b),
        }
    }

    /// An order of two numbers.
    fn sides(&self, op: CompareOp, a: &Side, b: &Side) -> Holds {
        let below = matches!(op, CompareOp::Le | CompareOp::Lt);
        let joined = |all: bool, holds: Vec<Holds>| {
            let mut holds = holds.into_iter();
            let first = holds.next().expect("an extremum is of two numbers");
            holds.fold(first, |joined, next| if all { joined.and(&next) } else { joined.or(&next) })
        };
        match (a, b) {
            (Side::Form(a), Side::Form(b)) => self.comparison(op, a, b),
            (Side::Extremum { largest, of }, b) => joined(*largest == below, of.iter().map(|a| self.sides(op, a, b)).collect()),
            (a, Side::Extremum { largest, of }) => joined(*largest != below, of.iter().map(|b| self.sides(op, a, b)).collect()),
        }
    }

    fn comparison(&self, op: CompareOp, a: &Form, b: &Form) -> Holds {
        let ab = a.plus(b, -1).without_remainders();
        let ba = ab.scaled(-1);
        let one = Form::uniform(1.into());
        let holds = match op {
            CompareOp::Le => self.not_positive(&ab),
            CompareOp::Ge => self.not_positive(&ba),
            CompareOp::Lt => self.not_positive(&ab.plus(&one, 1)),
            CompareOp::Gt => self.not_positive(&ba.plus(&one, 1)),
            CompareOp::Eq => match self.summarised(&ab) {
                Some(holds) => holds,
                None => self.not_positive(&ab).and(&self.not_positive(&ba)),
            },
            CompareOp::Ne => self.not_positive(&ab.plus(&one, 1)).or(&self.not_positive(&ba.plus(&one, 1))),
        };
        ab.divisors.iter().fold(holds, |holds, divisor| holds.where_positive(divisor))
    }

    /// Where `form == 0` holds, if its one term of the loop is loaded for each position: a search
    /// for tiles that meet a range, which says more than two searches for an end each.
    fn summarised(&self, form: &Form) -> Option<Holds> {
        let (own, lo, hi) = self.isolated(form);
        let (Term::Summarised(load), coefficient @ (1 | -1)) = own? else { return None };
        // The term is between the ends for rows that exist: -hi ..= -lo, or lo ..= hi.
        let (least, most) = if coefficient > 0 { (hi.times(-1), lo.times(-1)) } else { (lo, hi) };
        Some(self.searched(load, [Some(&least), Some(&most)], [Some(&most), Some(&least)]))
    }

    /// Where what is loaded for each position is in a range: tiles that meet the loose one, tiles
    /// within the tight one.
    fn searched(&self, load: ValueId, loose: [Option<&IndexExpr>; 2], tight: [Option<&IndexExpr>; 2]) -> Holds {
        let block = self.block_of(self.coordinate);
        let find = |end, [from, to]: [Option<&IndexExpr>; 2]| {
            Some(IndexExpr::Found(Arc::new(Search { load, block, end, from: from.cloned(), to: to.cloned() })))
        };
        Holds {
            somewhere: Run { lo: find(SearchEnd::FirstMeeting, loose), hi: find(SearchEnd::PastMeeting, loose) },
            gap: None,
            everywhere: Run { lo: find(SearchEnd::FirstWithin, tight), hi: find(SearchEnd::PastWithin, tight) },
        }
    }

    /// Where `form <= 0` holds.
    fn not_positive(&self, form: &Form) -> Holds {
        let (own, lo, hi) = self.isolated(form);
        match own {
            Some((term, coefficient)) => self.solve(&term, coefficient, lo, hi),
            None => Holds { somewhere: gate(&lo), gap: None, everywhere: gate(&hi) },
        }
    }

    /// One term in which the loop's position occurs, with its coefficient, and the least and largest value of the rest.
    fn isolated(&self, form: &Form) -> (Option<(Term, i64)>, IndexExpr, IndexExpr) {
        let own = form.terms.iter().find(|(t, _)| self.walks(t)).map(|(t, &c)| (t.clone(), c));
        let mut rest = form.clone();
        if let Some((t, _)) = &own {
            rest.terms.remove(t);
        }
        let (lo, hi) = self.range(&rest);
        (own, lo, hi)
    }

    /// Where `coefficient * term + r <= 0` holds, `r` between `lo` and `hi`.
    fn solve(&self, term: &Term, coefficient: i64, lo: IndexExpr, hi: IndexExpr) -> Holds {
        if coefficient > 0 {
            self.below(term, lo.times(-1).floor_div(coefficient), hi.times(-1).floor_div(coefficient))
        } else {
            self.above(term, lo.ceil_div(-coefficient), hi.ceil_div(-coefficient))
        }
    }

    /// Where `term <= bound` holds, with the bound at its loosest and at its tightest.
    fn below(&self, term: &Term, loose: IndexExpr, tight: IndexExpr) -> Holds {
        if let Term::Summarised(load) = term {
            return self.searched(*load, [None, Some(&loose)], [None, Some(&tight)]);
        }
        match term.of_form() {
            Some(form) => {
                // The term is at most k where form - last(k) <= 0.
                let (own, lo, hi) = self.isolated(form);
                let (own, coefficient) = own.expect("the term walks the loop");
                self.solve(&own, coefficient, lo.minus(&term.last(&loose)), hi.minus(&term.last(&tight)))
            }
            None => {
                let block = self.block_of(self.coordinate);
                let end = |k: &IndexExpr| k.plus(&1.into());
                let everywhere = (!self.extent(self.coordinate).at_most(&end(&tight))).then(|| end(&tight).floor_div(block));
                Holds {
                    somewhere: Run { lo: None, hi: Some(end(&loose).ceil_div(block)) },
                    gap: None,
                    everywhere: Run { lo: None, hi: everywhere },
                }
            }
        }
    }

    /// Where `term >= bound` holds, with the bound at its loosest and at its tightest.
    fn above(&self, term: &Term, loose: IndexExpr, tight: IndexExpr) -> Holds {
        if let Term::Summarised(load) = term {
            return self.searched(*load, [Some(&loose), None], [Some(&tight), None]);
        }
        match term.of_form() {
            Some(form) => {
                // The term is at least k where -form + first(k) <= 0.
                let (own, lo, hi) = self.isolated(form);
                let (own, coefficient) = own.expect("the term walks the loop");
                self.solve(&own, -coefficient, term.first(&loose).minus(&hi), term.first(&tight).minus(&lo))
            }
            None => {
                let block = self.block_of(self.coordinate);
                let from = |k: IndexExpr| (!k.at_most(&0.into())).then_some(k);
                Holds {
                    somewhere: Run { lo: from(loose.floor_div(block)), hi: None },
                    gap: None,
                    everywhere: Run { lo: from(tight.ceil_div(block)), hi: None },
                }
            }
        }
    }

    /// Whether the term follows the position of the loop: it never falls, or never rises, as that
    /// grows.
    pub(super) fn walks(&self, term: &Term) -> bool {
        match term {
            Term::Position(c) => *c == self.coordinate,
            Term::Quotient(form, _) | Term::Over(form, _) | Term::Multiple(form, _) | Term::Times(form, _) => {
                form.terms.keys().any(|t| self.walks(t))
            }
            Term::Summarised(_) => true,
            Term::Remainder(..) | Term::Between(..) => false,
        }
    }

    /// Least and largest value of a form; the loop's own position ranges over the whole extent here.
    fn range(&self, form: &Form) -> (IndexExpr, IndexExpr) {
        let (mut least, mut most) = (form.rest.clone(), form.rest.clone());
        for (term, &c) in &form.terms {
            let (lo, hi) = match term {
                Term::Position(v) if *v == self.coordinate || self.inner.contains(v) => {
                    (0.into(), self.extent(*v).minus(&1.into()))
                }
                Term::Position(v) => {
                    let (tile, block) = (IndexExpr::Tile(*v), self.block_of(*v));
                    let end = tile.plus(&1.into()).times(block).min_of(&self.extent(*v));
                    (tile.times(block), end.minus(&1.into()))
                }
                Term::Quotient(form, d) => {
                    let (lo, hi) = self.range(form);
                    (lo.floor_div(*d), hi.floor_div(*d))
                }
                Term::Over(form, d) => {
                    let (lo, hi) = self.range(form);
                    (lo.over(d), hi.over(d))
                }
                Term::Multiple(form, d) => {
                    let (lo, hi) = self.range(form);
                    (lo.over(d).product(d), hi.over(d).product(d))
                }
                Term::Times(form, factor) => {
                    let (lo, hi) = self.range(form);
                    (lo.product(factor), hi.product(factor))
                }
                Term::Remainder(_, d) => (0.into(), d.minus(&1.into())),
                Term::Between(_, lo, hi) => (lo.clone(), hi.clone()),
                Term::Summarised(_) => (i64::from(i32::MIN).into(), i64::from(i32::MAX).into()),
            };
            let (lo, hi) = if c < 0 { (hi, lo) } else { (lo, hi) };
            least = least.plus(&lo.times(c));
            most = most.plus(&hi.times(c));
        }
        (least, most)
    }

    /// The integer tile as a form, or the value that prevents it.
    pub(super) fn form(&self, value: ValueId) -> Result<Form, Opaque> {
        match is_short(self.kernel, value) {
            true => self.short_form(value),
            false => Err(Opaque { value, why: OpaqueWhy::Long }),
        }
    }

    fn short_form(&self, value: ValueId) -> Result<Form, Opaque> {
        let opaque = |why| Opaque { value, why };
        let other = || opaque(OpaqueWhy::Other);
        let (_, op) = self.kernel.def(value).ok_or_else(other)?;
        match op {
            Op::Constant(Elem::I32, c) => Ok(Form::uniform((*c as i64).into())),
            Op::FromIndex(v) => self.index(*v).ok_or_else(other),
            Op::Scalar(p) => Ok(Form::uniform(IndexExpr::Param(*p))),
            Op::Pos(c) => Ok(Form::term(Term::Position(*c))),
            Op::Full { value, .. } | Op::Transpose(value) => self.short_form(*value),
            Op::Cast(Elem::I32, x) if self.kernel.tile(*x).elem == Elem::I32 => self.short_form(*x),
            Op::Load { tensor, at } => self.loaded(value, *tensor, at).ok_or(opaque(OpaqueWhy::Loaded)),
            Op::Gather { .. } => Err(opaque(OpaqueWhy::Loaded)),
            Op::Unary(UnaryOp::Neg, x) => Ok(self.short_form(*x)?.scaled(-1)),
            Op::Unary(UnaryOp::Abs, x) => {
                let x = self.short_form(*x)?;
                let (least, most) = self.range(&x);
                let nearest = least.max_of(&most.times(-1)).max_of(&0.into());
                Ok(Form::term(Term::Between(value, nearest, most.max_of(&least.times(-1)))).computed_from(&[&x]))
            }
            Op::Binary(op, a, b) => {
                let (b_value, a, b) = (*b, self.short_form(*a)?, self.short_form(*b)?);
                let divisor = || match b.as_const() {
                    None => Opaque { value: b_value, why: OpaqueWhy::Divisor },
                    Some(_) => other(),
                };
                match op {
                    BinaryOp::Add => Ok(a.plus(&b, 1)),
                    BinaryOp::Sub => Ok(a.plus(&b, -1)),
                    BinaryOp::Mul => self.product(&a, &b).ok_or(opaque(OpaqueWhy::Product)),
                    BinaryOp::Div => a.quotient(&b).ok_or_else(divisor),
                    BinaryOp::Rem => a.rest_of_quotient(&b).ok_or_else(divisor),
                    BinaryOp::Min if a.terms.is_empty() && b.terms.is_empty() => {
                        Ok(Form::uniform(a.rest.min_of(&b.rest)).computed_from(&[&a, &b]))
                    }
                    BinaryOp::Max if a.terms.is_empty() && b.terms.is_empty() => {
                        Ok(Form::uniform(a.rest.max_of(&b.rest)).computed_from(&[&a, &b]))
                    }
                    BinaryOp::Min | BinaryOp::Max => {
                        let ((a_lo, a_hi), (b_lo, b_hi)) = (self.range(&a), self.range(&b));
                        let bounds = match op {
                            BinaryOp::Min => (a_lo.min_of(&b_lo), a_hi.min_of(&b_hi)),
                            _ => (a_lo.max_of(&b_lo), a_hi.max_of(&b_hi)),
                        };
                        Ok(Form::term(Term::Between(value, bounds.0, bounds.1)).computed_from(&[&a, &b]))
                    }
                    _ => Err(other()),
                }
            }
            _ => Err(other()),
        }
    }

    /// An index value as a form: one that is known before the loop, or made of the index of the loop.
    fn index(&self, v: ValueId) -> Option<Form> {
        if v == self.coordinate {
            return Some(Form::term(Term::Position(v)));
        }
        let e = index_expr(self.kernel, v).fold_sizes(self.size);
        if e.values().iter().all(|v| !self.inner.contains(v)) {
            return Some(Form::uniform(e));
        }
        let Some((_, Op::Index(op, a, b))) = self.kernel.def(v) else { return None };
        let (a, b) = (self.index(*a)?, self.index(*b)?);
        match op {
            IndexOp::Add => Some(a.plus(&b, 1)),
            IndexOp::Sub => Some(a.plus(&b, -1)),
            IndexOp::Mul => self.product(&a, &b),
            IndexOp::Div => a.quotient(&b),
            IndexOp::Rem => a.rest_of_quotient(&b),
            IndexOp::Min | IndexOp::Max => None,
        }
    }

    /// The product of two numbers, one of which is known at launch.
    fn product(&self, a: &Form, b: &Form) -> Option<Form> {
        match (a.as_const(), b.as_const()) {
            (Some(c), _) => Some(b.scaled(c)),
            (_, Some(c)) => Some(a.scaled(c)),
            _ => a.times(b, self.is_positive(b)).or_else(|| b.times(a, self.is_positive(a))),
        }
    }

    /// Whether a number is above 0 wherever a program runs: a size of a dimension of the grid.
    fn is_positive(&self, number: &Form) -> bool {
        let IndexExpr::Size(size) = &number.rest else { return false };
        let extent = |dim: &ProgramDim| match dim {
            ProgramDim::Each(extent) => extent == size,
            ProgramDim::Tiles(axis) => self.kernel.axes[*axis].extent == *size,
        };
        number.terms.is_empty() && self.kernel.grid().iter().any(extent)
    }

    /// The number that a load gives, or of a tile of them the least and the largest, if that can be
    /// loaded before the loop.
    pub(super) fn loaded(&self, value: ValueId, tensor: ParamId, at: &[At]) -> Option<Form> {
        let kernel = self.kernel;
        // What the kernel writes may change.
        if !self.loaded
            || kernel.tensor(tensor).direction.is_written()
            || !matches!(kernel.tile(value).elem, Elem::I32 | Elem::Bool)
        {
            return None;
        }
        if self.is_summarised(value, tensor, at) {
            return Some(Form::term(Term::Summarised(value)));
        }
        let known = |at: &At| match at {
            At::Index(v) => self.is_known_before(*v),
            At::Tile(c) => !self.inner.contains(c) && kernel.axes[self.axis_of(*c)].kind == AxisKind::Program,
            At::Range { .. } => false,
        };
        if !at.iter().all(known) {
            return None;
        }
        let leaf = |symbol| IndexExpr::Loaded(symbol);
        match kernel.tile(value).rank() {
            0 => Some(Form::uniform(leaf(Symbol::Value(value)))),
            1 => Some(Form::term(Term::Between(value, leaf(Symbol::Least(value)), leaf(Symbol::Most(value))))),
            _ => None,
        }
    }

    /// Whether a load gives an integer or a truth value for each position of the loop, and the
    /// extremes of each tile are known.
    pub(super) fn is_summarised(&self, value: ValueId, tensor: ParamId, at: &[At]) -> bool {
        let own = |at: &At| matches!(at, At::Tile(c) if *c == self.coordinate);
        let known = |at: &At| own(at) || matches!(at, At::Index(v) if self.is_known_before(*v));
        let Some(dim) = at.iter().position(own) else { return false };
        if !at.iter().all(known) || self.kernel.tile(value).rank() != 1 {
            return false;
        }
        let block = self.block_of(self.coordinate);
        match self.summaries {
            Summaries::None => false,
            Summaries::All => !self.kernel.tensor(tensor).direction.is_written(),
            Summaries::Declared => self.kernel.summary(tensor, dim, block).is_some(),
        }
    }

    /// Whether an index can be computed before the loop.
    fn is_known_before(&self, v: ValueId) -> bool {
        match self.kernel.def(v) {
            Some((_, Op::Index(_, a, b))) => self.is_known_before(*a) && self.is_known_before(*b),
            Some((_, Op::IndexConst(_) | Op::SizeOf(_) | Op::Program(_))) => true,
            Some((_, Op::ToIndex(x))) => {
                let is_number = matches!(self.kernel.def(*x), Some((_, Op::Load { .. } | Op::Scalar(_))));
                is_number && self.form(*x).is_ok_and(|form| form.terms.is_empty())
            }
            _ => !self.inner.contains(&v),
        }
    }

    fn axis_of(&self, coordinate: ValueId) -> AxisId {
        match self.kernel.ty(coordinate) {
            Type::Coord(axis) => *axis,
            // Of an index loop the index counts single positions.
            Type::Index => self.kernel.axis_of_index(coordinate).expect("positions belong to a loop or a coordinate"),
            Type::Tile(_) => panic!("verified: positions belong to a coordinate, not to a tile"),
        }
    }

    fn block_of(&self, coordinate: ValueId) -> i64 {
        (self.block)(self.axis_of(coordinate))
    }

    fn extent(&self, coordinate: ValueId) -> IndexExpr {
        let extent = &self.kernel.axes[self.axis_of(coordinate)].extent;
        IndexExpr::from(extent.clone()).fold_sizes(self.size)
    }
}

/// Every tile where `x <= 0`, none elsewhere: `x` is the same for all tiles. See
/// [`Run::begin_of_all_or_none`].
fn gate(x: &IndexExpr) -> Run {
    if x.at_most(&0.into()) {
        Run::all()
    } else if IndexExpr::from(1).at_most(x) {
        Run::none()
    } else {
        let open = IndexExpr::from(1).minus(x).max_of(&0.into()).min_of(&1.into());
        Run { lo: None, hi: Some(open.times(BEYOND)) }
    }
}

/// The comparison that holds where `op` does not.
pub fn negated(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
        CompareOp::Lt => CompareOp::Ge,
        CompareOp::Le => CompareOp::Gt,
        CompareOp::Gt => CompareOp::Le,
        CompareOp::Ge => CompareOp::Lt,
    }
}

/// The values defined in the body of a loop, at any depth, its parameters included.
pub fn defined_in(kernel: &Kernel, body: crate::ir::BlockId) -> BTreeSet<ValueId> {
    let mut blocks = BTreeSet::from([body.index()]);
    let mut values: BTreeSet<ValueId> = kernel.blocks[body].params.iter().copied().collect();
    for (block, op) in kernel.walk() {
        if blocks.contains(&block.index()) {
            values.extend(&kernel.ops[op].results);
            if let Op::For { body, .. } = kernel.ops[op].op {
                blocks.insert(body.index());
                values.extend(&kernel.blocks[body].params);
            }
        }
    }
    debug_assert!(values.iter().all(|&v| !matches!(kernel.values[v].def, ValueDef::BlockParam(b, _) if b == kernel.body)));
    values
}
