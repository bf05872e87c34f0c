//! Integers that bound loops: those that somebody knows, and what is taken for the others.
//!
//! A window's width, a length, the numbers of documents: how many tiles a loop walks depends on
//! them. A tuner knows what it will time. A launch does not look at its data, so that the model
//! takes these numbers to be typical:
//!
//! * an integer parameter, and a number that is loaded, is large, so that it hides nothing;
//! * numbers that a search compares with those of rows are numbers of documents, which are
//!   contiguous and all alike: eight in a sequence, of 256 positions at least.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashtile_dsl::analysis::index::{IndexExpr, Lookups, Search, SearchEnd, Symbol, index_expr};
use flashtile_dsl::ir::{At, Kernel, Op, ParamId, SizeExpr, ValueId};

/// An integer of which nothing is known.
const LARGE: i64 = 1 << 30;
/// Documents of a sequence of which nothing is known, and their least length.
const DOCUMENTS: i64 = 8;
const SHORT: i64 = 256;

/// Integers that a launch reads, by the names of the kernel's parameters.
#[derive(Clone, Default, Debug)]
pub struct Integers {
    scalars: BTreeMap<String, i64>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    shape: Vec<usize>,
    /// In row-major order.
    values: Arc<[i32]>,
}

impl Integers {
    /// Adds the value of an integer parameter.
    pub fn scalar(&mut self, name: &str, value: i64) {
        self.scalars.insert(name.to_owned(), value);
    }

    /// Adds the elements of a tensor, in row-major order.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: Vec<i32>) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "the elements of `{name}`");
        self.tensors.insert(name.to_owned(), Tensor { shape: shape.to_vec(), values: values.into() });
    }

    /// Whether elements of tensors are known.
    pub(super) fn know_tensors(&self) -> bool {
        !self.tensors.is_empty()
    }

    fn of<'a>(&'a self, kernel: &Kernel, param: ParamId) -> Option<&'a Tensor> {
        self.tensors.get(&kernel.params[param].name)
    }
}

/// A kernel in a launch: what does not differ between places.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub kernel: &'a Kernel,
    pub integers: &'a Integers,
    pub size: &'a dyn Fn(&SizeExpr) -> i64,
    /// Positions of a tile of a coordinate.
    pub block: &'a dyn Fn(ValueId) -> i64,
}

/// A place of a loop.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub launch: Launch<'a>,
    /// Of index values, and tiles of coordinates.
    pub value: &'a dyn Fn(ValueId) -> i64,
    /// Positions of the loop.
    pub extent: i64,
}

impl Place<'_> {
    /// Looks bounds of the loop up.
    pub fn look<T>(self, read: impl FnOnce(Lookups<'_>) -> T) -> T {
        let param = |param| self.param(param);
        let loaded = |symbol| self.loaded(symbol);
        let found = |search: &Search, from, to| self.found(search, from, to);
        read(Lookups { size: self.launch.size, value: self.value, param: &param, loaded: &loaded, found: &found })
    }

    fn kernel(&self) -> &Kernel {
        self.launch.kernel
    }

    /// An integer parameter.
    fn param(&self, param: ParamId) -> i64 {
        self.launch.integers.scalars.get(&self.kernel().params[param].name).copied().unwrap_or(LARGE)
    }

    /// A number that is loaded.
    fn loaded(&self, symbol: Symbol) -> i64 {
        let numbers = self.kernel().def(symbol.load()).and_then(|(_, op)| match op {
            Op::Load { tensor, at } => self.numbers(*tensor, at),
            _ => None,
        });
        let Some(numbers) = numbers else { return LARGE };
        let number = match symbol {
            Symbol::Value(_) | Symbol::Least(_) => numbers.iter().min(),
            Symbol::Most(_) => numbers.iter().max(),
        };
        number.map_or(LARGE, |&number| number.into())
    }

    /// The elements that a load gives along the last dimension, if they are known.
    fn numbers(&self, tensor: ParamId, at: &[At]) -> Option<&[i32]> {
        let row = self.row(self.launch.integers.of(self.kernel(), tensor)?, at)?;
        let (first, count) = match at.last()? {
            At::Index(v) => (self.index(*v)?, 1),
            At::Tile(coordinate) => self.tile(*coordinate),
            At::Range { .. } => return None,
        };
        let [first, count] = [usize::try_from(first).ok()?, usize::try_from(count).ok()?];
        row.get(first..(first + count).min(row.len()))
    }

    /// All elements of the row that a load is of.
    fn row<'t>(&self, tensor: &'t Tensor, at: &[At]) -> Option<&'t [i32]> {
        let (&width, outer) = tensor.shape.split_last().filter(|_| at.len() == tensor.shape.len())?;
        let mut number = 0;
        for (at, &extent) in at.iter().zip(outer) {
            let At::Index(v) = at else { return None };
            number = number * extent + usize::try_from(self.index(*v)?).ok().filter(|&place| place < extent)?;
        }
        tensor.values.get(number * width..(number + 1) * width)
    }

    /// The first position of the tile at a coordinate, and how many positions it has.
    fn tile(&self, coordinate: ValueId) -> (i64, i64) {
        let block = (self.launch.block)(coordinate);
        ((self.value)(coordinate) * block, block)
    }

    fn index(&self, v: ValueId) -> Option<i64> {
        let expr = index_expr(self.kernel(), v);
        let at = Lookups { size: self.launch.size, value: self.value, param: &|_| 0, loaded: &|_| 0, found: &|_, _, _| 0 };
        (!expr.is_loaded()).then(|| expr.eval(at))
    }

    /// What a search finds, with the ends of its range as they are known.
    fn found(&self, search: &Search, from: Option<i64>, to: Option<i64>) -> i64 {
        let (tensor, at, dim) = search.read(self.kernel());
        let known = self.launch.integers.of(self.kernel(), tensor).filter(|tensor| dim + 1 == tensor.shape.len());
        if let Some(found) = known.and_then(|tensor| self.found_among(tensor, at, search, from, to)) {
            return found;
        }
        match (self.document(search.from.as_ref()), self.document(search.to.as_ref())) {
            (None, None) => match search.end {
                SearchEnd::FirstMeeting | SearchEnd::FirstWithin => 0,
                SearchEnd::PastMeeting | SearchEnd::PastWithin => LARGE,
            },
            (from, to) => self.found_among_documents(search, from, to),
        }
    }

    fn found_among(&self, tensor: &Tensor, at: &[At], search: &Search, from: Option<i64>, to: Option<i64>) -> Option<i64> {
        let row = self.row(tensor, at)?;
        let block = usize::try_from(search.block).ok()?;
        let extremes = row.chunks(block).map(|tile| tile.iter().fold((i32::MAX, i32::MIN), |(l, m), &x| (l.min(x), m.max(x))));
        Some(search.end.find(extremes.collect::<Vec<_>>(), from.unwrap_or(i64::MIN)..=to.unwrap_or(i64::MAX)))
    }

    /// Positions of a document.
    fn length(&self) -> i64 {
        (self.extent / DOCUMENTS).max(SHORT)
    }

    /// The value of an end of a range that numbers of rows make, which are those of documents; `None`
    /// if it is made of something else.
    fn document(&self, end: Option<&IndexExpr>) -> Option<i64> {
        let end = end.filter(|end| end.symbols().iter().any(|symbol| self.of_rows(*symbol).is_some()))?;
        let number = |symbol: Symbol| {
            let Some((first, count)) = self.of_rows(symbol) else { return LARGE };
            let at = if matches!(symbol, Symbol::Most(_)) { first + count - 1 } else { first };
            at.div_euclid(self.length())
        };
        let param = |param| self.param(param);
        Some(end.eval(Lookups { size: self.launch.size, value: self.value, param: &param, loaded: &number, found: &|_, _, _| 0 }))
    }

    /// The first position and the number of positions of a tile of rows, of which numbers are loaded.
    fn of_rows(&self, symbol: Symbol) -> Option<(i64, i64)> {
        let Some((_, Op::Load { at, .. })) = self.kernel().def(symbol.load()) else { return None };
        at.iter().find_map(|at| match at {
            At::Tile(coordinate) => Some(self.tile(*coordinate)),
            _ => None,
        })
    }

    /// The same among documents that are all alike.
    fn found_among_documents(&self, search: &Search, from: Option<i64>, to: Option<i64>) -> i64 {
        let (length, block) = (self.length(), search.block);
        let first = from.map_or(0, |from| from.saturating_mul(length).clamp(0, self.extent));
        let past = to.map_or(self.extent, |to| to.saturating_add(1).saturating_mul(length).clamp(0, self.extent));
        let up = |position: i64| -(-position).div_euclid(block);
        let tiles = up(self.extent);
        // The last tile may be shorter than the others.
        let whole = if past == self.extent { tiles } else { past.div_euclid(block) };
        match search.end {
            SearchEnd::FirstMeeting => first.div_euclid(block),
            SearchEnd::PastMeeting => up(past),
            SearchEnd::FirstWithin | SearchEnd::PastWithin if up(first) >= whole => tiles,
            SearchEnd::FirstWithin => up(first),
            SearchEnd::PastWithin => whole,
        }
    }
}
