//! Closed-form integer expressions over what is the same in a whole program: program ids, tile coordinates and sizes.
//!
//! Build them with the constructors ([`IndexExpr::plus`] and its like), which fold constants and keep a canonical form:
//! see [`super::simplify`].

use std::fmt;
use std::sync::Arc;

use crate::ir::{At, IndexOp, Kernel, Op, ParamId, SizeExpr, ValueDef, ValueId};

/// An integer expression. No divisor is below 1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IndexExpr {
    /// A constant.
    Const(i64),
    /// A size expression.
    Size(SizeExpr),
    /// The value of an [`crate::ir::Type::Index`] value.
    Index(ValueId),
    /// The number (not the position) of the tile at an [`crate::ir::Type::Coord`] value.
    Tile(ValueId),
    /// The value of an `I32` scalar parameter of the kernel.
    Param(ParamId),
    /// A loaded integer, or the extreme one of a tile of them.
    Loaded(Symbol),
    /// A tile of a loop, found by what is loaded for its positions.
    Found(Arc<Search>),
    /// Sum.
    Add(Arc<IndexExpr>, Arc<IndexExpr>),
    /// Difference.
    Sub(Arc<IndexExpr>, Arc<IndexExpr>),
    /// Product with a constant.
    Mul(Arc<IndexExpr>, i64),
    /// Quotient rounded towards negative infinity.
    FloorDiv(Arc<IndexExpr>, i64),
    /// Quotient rounded towards positive infinity.
    CeilDiv(Arc<IndexExpr>, i64),
    /// Product of two expressions.
    Product(Arc<IndexExpr>, Arc<IndexExpr>),
    /// Quotient by an expression that is never below 1, rounded towards negative infinity.
    Over(Arc<IndexExpr>, Arc<IndexExpr>),
    /// Minimum.
    Min(Arc<IndexExpr>, Arc<IndexExpr>),
    /// Maximum.
    Max(Arc<IndexExpr>, Arc<IndexExpr>),
}

/// A loaded `i32` that is the same in a whole program, and known before its loops run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Symbol {
    /// The number that a load gives.
    Value(ValueId),
    /// The least of the numbers that a load gives.
    Least(ValueId),
    /// The largest of them.
    Most(ValueId),
}

impl Symbol {
    /// The result of the load.
    pub fn load(self) -> ValueId {
        match self {
            Symbol::Value(v) | Symbol::Least(v) | Symbol::Most(v) => v,
        }
    }
}

/// A search over the tiles of a loop, by the least and the largest of the integers that a load
/// gives for the positions of each. It gives a number of tiles, from 0 to all.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Search {
    /// The result of the load, which is in the loop.
    pub load: ValueId,
    /// Positions of a tile.
    pub block: i64,
    /// What is looked for.
    pub end: SearchEnd,
    /// The least integer that counts; all small ones do if there is none.
    pub from: Option<IndexExpr>,
    /// The largest that counts; all large ones do if there is none.
    pub to: Option<IndexExpr>,
}

impl Search {
    /// The tensor that is loaded, where, and the dimension that the loop walks.
    ///
    /// # Panics
    /// If the search is not of `kernel`.
    pub fn read<'k>(&self, kernel: &'k Kernel) -> (ParamId, &'k [At], usize) {
        let Some((_, Op::Load { tensor, at })) = kernel.def(self.load) else { panic!("a search is of a load") };
        let dim = at.iter().position(|at| matches!(at, At::Tile(_))).expect("a load for each position");
        (*tensor, at, dim)
    }
}

/// What a [`Search`] looks for. A tile *meets* the range if its extremes leave room for an integer
/// of the range between them, and is *within* it if all its integers are in the range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SearchEnd {
    /// The first tile that meets the range; the number of tiles if none does.
    FirstMeeting,
    /// One past the last tile that meets it; 0 if none does.
    PastMeeting,
    /// The first tile within the range; the number of tiles if none is.
    FirstWithin,
    /// One past the last of the tiles that follow the first one within the range without one
    /// between that is not; the number of tiles if there is none.
    PastWithin,
}

impl SearchEnd {
    /// The name in printed forms.
    pub fn name(self) -> &'static str {
        match self {
            SearchEnd::FirstMeeting => "first_meeting",
            SearchEnd::PastMeeting => "past_meeting",
            SearchEnd::FirstWithin => "first_within",
            SearchEnd::PastWithin => "past_within",
        }
    }

    /// What is found among tiles of these extremes.
    ///
    /// ```
    /// use flashtile_dsl::analysis::index::SearchEnd;
    /// let tiles = [(0, 0), (0, 2), (2, 2), (2, 2), (3, 7)];
    /// let find = |end: SearchEnd| end.find(tiles, i64::from(2)..=2);
    /// assert_eq!([find(SearchEnd::FirstMeeting), find(SearchEnd::PastMeeting)], [1, 4]);
    /// assert_eq!([find(SearchEnd::FirstWithin), find(SearchEnd::PastWithin)], [2, 4]);
    /// ```
    pub fn find(
        self,
        tiles: impl IntoIterator<Item = (i32, i32), IntoIter: ExactSizeIterator + DoubleEndedIterator>,
        range: std::ops::RangeInclusive<i64>,
    ) -> i64 {
        let mut tiles = tiles.into_iter();
        let count = tiles.len() as i64;
        let meets = |(least, most): (i32, i32)| i64::from(least) <= *range.end() && i64::from(most) >= *range.start();
        let within = |(least, most): (i32, i32)| i64::from(least) >= *range.start() && i64::from(most) <= *range.end();
        let place = |found: Option<usize>| found.map_or(count, |n| n as i64);
        match self {
            SearchEnd::FirstMeeting => place(tiles.position(meets)),
            SearchEnd::PastMeeting => tiles.rposition(meets).map_or(0, |n| n as i64 + 1),
            SearchEnd::FirstWithin => place(tiles.position(within)),
            SearchEnd::PastWithin => match tiles.position(within) {
                None => count,
                Some(first) => tiles.position(|tile| !within(tile)).map_or(count, |n| (first + 1 + n) as i64),
            },
        }
    }
}

/// What a search finds, given the values of the ends of its range.
pub type Finds<'a> = dyn Fn(&Search, Option<i64>, Option<i64>) -> i64 + 'a;

/// What the leaves of an [`IndexExpr`] stand for.
#[derive(Clone, Copy)]
pub struct Lookups<'a> {
    /// The value of a size expression.
    pub size: &'a dyn Fn(&SizeExpr) -> i64,
    /// The value of an index value, or the tile number of a coordinate.
    pub value: &'a dyn Fn(ValueId) -> i64,
    /// The value of an integer scalar parameter.
    pub param: &'a dyn Fn(ParamId) -> i64,
    /// The value of what is loaded.
    pub loaded: &'a dyn Fn(Symbol) -> i64,
    /// What a search finds, with the values of the ends of its range.
    pub found: &'a Finds<'a>,
}

/// How an expression moves with one of its leaves, all others fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trend {
    /// It does not depend on it.
    Constant,
    /// It never falls as the leaf grows.
    Rising,
    /// It never rises as the leaf grows.
    Falling,
}

impl Trend {
    /// The trend of the negation.
    pub fn reversed(self) -> Self {
        match self {
            Trend::Constant => Trend::Constant,
            Trend::Rising => Trend::Falling,
            Trend::Falling => Trend::Rising,
        }
    }

    /// The trend of a sum, minimum or maximum of two expressions; `None` if they pull apart.
    pub fn with(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Trend::Constant, t) | (t, Trend::Constant) => Some(t),
            (a, b) => (a == b).then_some(a),
        }
    }
}

impl IndexExpr {
    /// The value.
    ///
    /// ```
    /// use flashtile_dsl::analysis::index::{IndexExpr, Lookups};
    /// use flashtile_dsl::ir::{SizeExpr, SizeId};
    /// let tiles = IndexExpr::from(SizeExpr::size(SizeId(0))).ceil_div(64);
    /// assert_eq!(tiles.eval(Lookups { size: &|_| 65, value: &|_| 0, param: &|_| 0, loaded: &|_| 0, found: &|_, _, _| 0 }), 2);
    /// ```
    pub fn eval(&self, at: Lookups<'_>) -> i64 {
        match self {
            IndexExpr::Const(c) => *c,
            IndexExpr::Size(s) => (at.size)(s),
            IndexExpr::Index(v) | IndexExpr::Tile(v) => (at.value)(*v),
            IndexExpr::Param(p) => (at.param)(*p),
            IndexExpr::Loaded(symbol) => (at.loaded)(*symbol),
            IndexExpr::Found(search) => {
                let end = |e: &Option<IndexExpr>| e.as_ref().map(|e| e.eval(at));
                (at.found)(search, end(&search.from), end(&search.to))
            }
            IndexExpr::Add(a, b) => a.eval(at) + b.eval(at),
            IndexExpr::Sub(a, b) => a.eval(at) - b.eval(at),
            IndexExpr::Mul(a, c) => a.eval(at) * c,
            IndexExpr::FloorDiv(a, d) => a.eval(at).div_euclid(*d),
            IndexExpr::CeilDiv(a, d) => -(-a.eval(at)).div_euclid(*d),
            IndexExpr::Product(a, b) => a.eval(at).saturating_mul(b.eval(at)),
            IndexExpr::Over(a, d) => a.eval(at).div_euclid(d.eval(at)),
            IndexExpr::Min(a, b) => a.eval(at).min(b.eval(at)),
            IndexExpr::Max(a, b) => a.eval(at).max(b.eval(at)),
        }
    }

    /// The same expression with constants for the sizes that `size` knows.
    pub fn fold_sizes(&self, size: &dyn Fn(&SizeExpr) -> Option<i64>) -> Self {
        let fold = |e: &IndexExpr| e.fold_sizes(size);
        match self {
            IndexExpr::Size(s) => size(s).map_or_else(|| self.clone(), IndexExpr::Const),
            IndexExpr::Const(_) | IndexExpr::Index(_) | IndexExpr::Tile(_) | IndexExpr::Param(_) | IndexExpr::Loaded(_) => {
                self.clone()
            }
            IndexExpr::Found(search) => {
                let (from, to) = (search.from.as_ref().map(fold), search.to.as_ref().map(fold));
                IndexExpr::Found(Arc::new(Search { from, to, ..search.as_ref().clone() }))
            }
            IndexExpr::Add(a, b) => fold(a).plus(&fold(b)),
            IndexExpr::Sub(a, b) => fold(a).minus(&fold(b)),
            IndexExpr::Mul(a, c) => fold(a).times(*c),
            IndexExpr::FloorDiv(a, d) => fold(a).floor_div(*d),
            IndexExpr::CeilDiv(a, d) => fold(a).ceil_div(*d),
            IndexExpr::Product(a, b) => fold(a).product(&fold(b)),
            IndexExpr::Over(a, d) => fold(a).over(&fold(d)),
            IndexExpr::Min(a, b) => fold(a).min_of(&fold(b)),
            IndexExpr::Max(a, b) => fold(a).max_of(&fold(b)),
        }
    }

    /// The value, if it is a constant.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            IndexExpr::Const(c) => Some(*c),
            _ => None,
        }
    }

    /// The index values and coordinates that occur.
    pub fn values(&self) -> Vec<ValueId> {
        let mut out = Vec::new();
        self.visit(&mut |e| {
            if let IndexExpr::Index(v) | IndexExpr::Tile(v) = e {
                out.push(*v);
            }
        });
        out.sort_unstable();
        out.dedup();
        out
    }

    /// What is loaded that occurs.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut out = Vec::new();
        self.visit(&mut |e| {
            if let IndexExpr::Loaded(symbol) = e {
                out.push(*symbol);
            }
        });
        out
    }

    /// Whether its value depends on what is loaded.
    pub fn is_loaded(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= matches!(e, IndexExpr::Loaded(_) | IndexExpr::Found(_)));
        found
    }

    /// Whether run-time values are multiplied, or divide.
    pub fn multiplies(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= matches!(e, IndexExpr::Product(..) | IndexExpr::Over(..)));
        found
    }

    /// The searches that occur, each once.
    pub fn searches(&self) -> Vec<&Search> {
        let mut out = Vec::new();
        self.visit(&mut |e| {
            if let IndexExpr::Found(search) = e
                && !out.contains(&search.as_ref())
            {
                out.push(search.as_ref());
            }
        });
        out
    }

    fn visit<'e>(&'e self, f: &mut impl FnMut(&'e IndexExpr)) {
        f(self);
        match self {
            IndexExpr::Const(_)
            | IndexExpr::Size(_)
            | IndexExpr::Index(_)
            | IndexExpr::Tile(_)
            | IndexExpr::Param(_)
            | IndexExpr::Loaded(_) => {}
            IndexExpr::Found(search) => search.from.iter().chain(&search.to).for_each(|e| e.visit(f)),
            IndexExpr::Mul(a, _) | IndexExpr::FloorDiv(a, _) | IndexExpr::CeilDiv(a, _) => a.visit(f),
            IndexExpr::Add(a, b)
            | IndexExpr::Sub(a, b)
            | IndexExpr::Product(a, b)
            | IndexExpr::Over(a, b)
            | IndexExpr::Min(a, b)
            | IndexExpr::Max(a, b) => {
                a.visit(f);
                b.visit(f);
            }
        }
    }

    /// How the expression moves with the coordinate or index `value`; `None` where that cannot be told.
    pub fn trend(&self, kernel: &Kernel, value: ValueId) -> Option<Trend> {
        let of = |e: &IndexExpr| e.trend(kernel, value);
        match self {
            IndexExpr::Const(_) | IndexExpr::Size(_) | IndexExpr::Param(_) => Some(Trend::Constant),
            IndexExpr::Loaded(symbol) => (!load_reads(kernel, symbol.load(), value)).then_some(Trend::Constant),
            IndexExpr::Found(search) => {
                let stays = |e: &IndexExpr| of(e) == Some(Trend::Constant);
                let same = search.from.iter().chain(&search.to).all(stays) && !load_reads(kernel, search.load, value);
                same.then_some(Trend::Constant)
            }
            IndexExpr::Index(v) | IndexExpr::Tile(v) if *v == value => Some(Trend::Rising),
            IndexExpr::Tile(_) => Some(Trend::Constant),
            IndexExpr::Index(v) => (!index_reads(kernel, *v, value)).then_some(Trend::Constant),
            IndexExpr::Add(a, b) | IndexExpr::Min(a, b) | IndexExpr::Max(a, b) => of(a)?.with(of(b)?),
            IndexExpr::Sub(a, b) => of(a)?.with(of(b)?.reversed()),
            IndexExpr::Mul(a, c) => Some(if *c < 0 { of(a)?.reversed() } else { of(a)? }),
            IndexExpr::FloorDiv(a, _) | IndexExpr::CeilDiv(a, _) => of(a),
            IndexExpr::Over(a, d) => (of(d)? == Trend::Constant).then(|| of(a))?,
            IndexExpr::Product(a, b) => match (of(a)?, of(b)?) {
                (Trend::Constant, Trend::Constant) => Some(Trend::Constant),
                (trend, Trend::Constant) if IndexExpr::from(0).at_most(b) => Some(trend),
                _ => None,
            },
        }
    }

    /// The text of the expression, with the names of the kernel text: `i + 1 + ceil((N - M) / 64)`. A coordinate stands
    /// for the number of its tile.
    pub fn text(&self, kernel: &Kernel) -> String {
        self.text_with(kernel, &[])
    }

    /// The same, with names for what is known by one.
    pub fn text_with(&self, kernel: &Kernel, known: &[(&IndexExpr, &str)]) -> String {
        let value = |v: ValueId| kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
        let loaded = |v: ValueId| load_text(kernel, v);
        let names = Names {
            value: &value,
            size: &|s| kernel.size_text(s),
            param: &|p| kernel.params[p].name.clone(),
            loaded: &loaded,
            known,
        };
        self.render(&names, 0)
    }

    fn render(&self, names: &Names<'_>, outer: u8) -> String {
        const SUM: u8 = 1;
        const PRODUCT: u8 = 2;
        if let Some((_, name)) = names.known.iter().find(|(known, _)| *known == self) {
            return (*name).to_owned();
        }
        let sub = |e: &IndexExpr, outer| e.render(names, outer);
        let (text, own) = match self {
            IndexExpr::Const(c) => (c.to_string(), if *c < 0 { SUM } else { PRODUCT + 1 }),
            IndexExpr::Size(s) => {
                let (terms, constant, divisor) = s.parts();
                let simple = terms.len() + usize::from(constant != 0) <= 1 && terms.values().all(|&c| c == 1);
                ((names.size)(s), if simple && divisor == 1 { PRODUCT + 1 } else { SUM })
            }
            IndexExpr::Index(v) | IndexExpr::Tile(v) => ((names.value)(*v), PRODUCT + 1),
            IndexExpr::Param(p) => ((names.param)(*p), PRODUCT + 1),
            IndexExpr::Loaded(symbol) => {
                let name = (names.loaded)(symbol.load());
                let text = match symbol {
                    Symbol::Value(_) => name,
                    Symbol::Least(_) => format!("least({name})"),
                    Symbol::Most(_) => format!("most({name})"),
                };
                (text, PRODUCT + 1)
            }
            IndexExpr::Found(search) => {
                let end = |e: &Option<IndexExpr>| e.as_ref().map_or(String::new(), |e| format!("{} ", sub(e, 0)));
                let range =
                    format!("{}..{}", end(&search.from), search.to.as_ref().map_or(String::new(), |e| format!(" {}", sub(e, 0))));
                (format!("{}({}, {range})", search.end.name(), (names.loaded)(search.load)), PRODUCT + 1)
            }
            IndexExpr::Add(a, b) => (format!("{} + {}", sub(a, SUM), sub(b, SUM)), SUM),
            IndexExpr::Sub(a, b) => (format!("{} - {}", sub(a, SUM), sub(b, PRODUCT)), SUM),
            IndexExpr::Mul(a, c) if *c < 0 => (format!("{} * ({c})", sub(a, PRODUCT)), PRODUCT),
            IndexExpr::Mul(a, c) => (format!("{} * {c}", sub(a, PRODUCT)), PRODUCT),
            IndexExpr::FloorDiv(a, d) => (format!("floor({} / {d})", sub(a, PRODUCT)), PRODUCT + 1),
            IndexExpr::CeilDiv(a, d) => (format!("ceil({} / {d})", sub(a, PRODUCT)), PRODUCT + 1),
            IndexExpr::Product(a, b) => (format!("{} * {}", sub(a, PRODUCT), sub(b, PRODUCT + 1)), PRODUCT),
            IndexExpr::Over(a, d) => (format!("floor({} / {})", sub(a, PRODUCT), sub(d, PRODUCT + 1)), PRODUCT + 1),
            IndexExpr::Min(a, b) => (format!("min({}, {})", sub(a, 0), sub(b, 0)), PRODUCT + 1),
            IndexExpr::Max(a, b) => (format!("max({}, {})", sub(a, 0), sub(b, 0)), PRODUCT + 1),
        };
        if own < outer { format!("({text})") } else { text }
    }
}

/// Names of leaves in printed forms.
struct Names<'a> {
    value: &'a dyn Fn(ValueId) -> String,
    size: &'a dyn Fn(&SizeExpr) -> String,
    param: &'a dyn Fn(ParamId) -> String,
    loaded: &'a dyn Fn(ValueId) -> String,
    known: &'a [(&'a IndexExpr, &'a str)],
}

/// The name of a loaded value, or the place that it is loaded from.
fn load_text(kernel: &Kernel, v: ValueId) -> String {
    let parameter = |v: ValueId| match kernel.def(v) {
        Some((_, &Op::ToIndex(x))) => match kernel.def(x) {
            Some((_, &Op::Scalar(param))) => Some(kernel.params[param].name.clone()),
            _ => None,
        },
        _ => None,
    };
    let named = |v: ValueId| kernel.values[v].name.clone().or_else(|| parameter(v));
    let name = |v: ValueId| named(v).unwrap_or_else(|| index_expr(kernel, v).text(kernel));
    match (&kernel.values[v].name, kernel.def(v)) {
        (None, Some((_, Op::Load { tensor, at }))) => {
            let entry = |at: &At| match at {
                At::Index(v) | At::Tile(v) => name(*v),
                At::Range { .. } => "..".into(),
            };
            format!("{}[{}]", kernel.params[*tensor].name, at.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        (name, _) => name.clone().unwrap_or_else(|| v.to_string()),
    }
}

/// Whether the place of the load that gives `v` may be computed from `of`.
fn load_reads(kernel: &Kernel, v: ValueId, of: ValueId) -> bool {
    match kernel.def(v) {
        Some((_, Op::Load { at, .. })) => at.iter().any(|at| match at {
            At::Index(v) | At::Tile(v) => index_reads(kernel, *v, of),
            At::Range { .. } => false,
        }),
        _ => true,
    }
}

/// Whether the index value `v` may be computed from `of`.
pub(super) fn index_reads(kernel: &Kernel, v: ValueId, of: ValueId) -> bool {
    v == of
        || match kernel.def(v) {
            Some((_, Op::Index(_, a, b))) => index_reads(kernel, *a, of) || index_reads(kernel, *b, of),
            Some((_, Op::Program(_) | Op::IndexConst(_) | Op::SizeOf(_))) => false,
            Some(_) => true,
            // The index of a loop is computed from nothing, only how far it goes may be.
            None => !matches!(kernel.values[v].def, ValueDef::BlockParam(_, 0)),
        }
}

/// The closed form of an index value. What is not linear in it stays a leaf: [`IndexExpr::Index`], as
/// does one of too many ops.
pub fn index_expr(kernel: &Kernel, v: ValueId) -> IndexExpr {
    match is_short(kernel, v) {
        true => short_expr(kernel, v),
        false => IndexExpr::Index(v),
    }
}

fn short_expr(kernel: &Kernel, v: ValueId) -> IndexExpr {
    let leaf = IndexExpr::Index(v);
    match kernel.def(v) {
        Some((_, Op::IndexConst(c))) => IndexExpr::Const(*c),
        Some((_, Op::SizeOf(s))) => SizeExpr::size(*s).into(),
        Some((_, Op::Index(op, a, b))) => {
            let (a, b) = (short_expr(kernel, *a), short_expr(kernel, *b));
            match op {
                IndexOp::Add => a.plus(&b),
                IndexOp::Sub => a.minus(&b),
                IndexOp::Min => a.min_of(&b),
                IndexOp::Max => a.max_of(&b),
                IndexOp::Mul => match (a.as_const(), b.as_const()) {
                    (_, Some(c)) => a.times(c),
                    (Some(c), None) => b.times(c),
                    (None, None) => leaf,
                },
                IndexOp::Div => match b.as_const() {
                    Some(d) if d > 0 => a.floor_div(d),
                    _ => leaf,
                },
                IndexOp::Rem => match b.as_const() {
                    Some(d) if d > 0 => a.minus(&a.floor_div(d).times(d)),
                    _ => leaf,
                },
            }
        }
        _ => leaf,
    }
}

/// Ops of the longest expression that is brought into a closed form.
const LONGEST: usize = 512;

/// Whether an expression has few ops where each value is written out for each of its uses. Arithmetic
/// that uses what it made twice, step after step, doubles with each.
pub(super) fn is_short(kernel: &Kernel, value: ValueId) -> bool {
    fn take(kernel: &Kernel, value: ValueId, left: &mut usize) -> bool {
        let Some((_, op)) = kernel.def(value) else { return true };
        let is_followed =
            op.is_arithmetic() || matches!(op, Op::Index(..) | Op::FromIndex(_) | Op::Full { .. } | Op::Transpose(_));
        if !is_followed {
            return true;
        }
        *left = left.saturating_sub(1);
        *left > 0 && op.operands().into_iter().all(|operand| take(kernel, operand, left))
    }
    let mut left = LONGEST;
    take(kernel, value, &mut left)
}

impl From<i64> for IndexExpr {
    fn from(c: i64) -> Self {
        IndexExpr::Const(c)
    }
}

impl From<SizeExpr> for IndexExpr {
    fn from(s: SizeExpr) -> Self {
        s.as_constant().map_or(IndexExpr::Size(s), IndexExpr::Const)
    }
}

impl fmt::Display for IndexExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Names {
            value: &|v| v.to_string(),
            size: &|s| s.to_string(),
            param: &|p| p.to_string(),
            loaded: &|v| v.to_string(),
            known: &[],
        };
        f.write_str(&self.render(&names, 0))
    }
}
