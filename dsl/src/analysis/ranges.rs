//! Compile-time ranges of tiles, as loops that the text does not write: which elements along them are computed by themselves.
//!
//! A range runs through ops: an elementwise op keeps it, a product keeps the columns of its right operand and the rows of its
//! left one, a loop carries it. Elements along it are independent unless a product contracts it or a reduction takes it in; then
//! it is a reduction inside of one statement, and no loop carries it.

use std::collections::BTreeMap;

use super::expression::Expressions;
use crate::ir::{Dim, Kernel, Op, OpId, SizeExpr, Type, ValueId};

/// A range and the tiles that it runs through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Its length.
    pub length: SizeExpr,
    /// Variables and tensors that have it, in order of the text.
    pub members: Vec<String>,
    /// The ops that reduce over it. None: its elements may be computed at the same time.
    pub reduced_by: Vec<OpId>,
}

impl Range {
    /// Whether its elements may be computed at the same time.
    pub fn is_parallel(&self) -> bool {
        self.reduced_by.is_empty()
    }
}

/// A dimension of a value: the value, and 0 or 1.
pub type Place = (ValueId, usize);

/// Finds the ranges of a kernel, in order of the text.
pub fn ranges(kernel: &Kernel) -> Vec<Range> {
    let places = Places::of(kernel);
    let expressions = Expressions::new(kernel);
    let mut order: Vec<Place> = Vec::new();
    let mut all: BTreeMap<Place, Range> = BTreeMap::new();
    let mut note = |place: Place, name: Option<String>| {
        let Some(length) = places.length(place) else { return };
        let root = places.root(place);
        let range = all.entry(root).or_insert_with(|| {
            order.push(root);
            Range { length, members: Vec::new(), reduced_by: Vec::new() }
        });
        if let Some(name) = name.filter(|name| !range.members.contains(name)) {
            range.members.push(name);
        }
    };
    for (_, op) in kernel.walk() {
        let data = &kernel.ops[op];
        if let Op::Store { tensor, value, .. } = &data.op {
            (0..2).for_each(|k| note((*value, k), Some(kernel.params[*tensor].name.clone())));
        }
        for &result in &data.results {
            let own = kernel.values[result].name.clone();
            let name = own.or_else(|| matches!(data.op, Op::Load { .. }).then(|| expressions.statement(op).0));
            (0..2).for_each(|k| note((result, k), name.clone()));
        }
    }
    for &(place, op) in &places.reduced {
        let root = places.root(place);
        if let Some(range) = all.get_mut(&root).filter(|range| !range.reduced_by.contains(&op)) {
            range.reduced_by.push(op);
        }
    }
    order.into_iter().filter_map(|root| all.remove(&root)).filter(|range| !range.members.is_empty()).collect()
}

/// Which dimensions of values run along the same range. The two dimensions of a tile `(D, D)` are
/// two places: they are the same range only where some op says so.
pub struct Places<'a> {
    kernel: &'a Kernel,
    /// Places that are the same range, as a forest.
    parent: BTreeMap<Place, Place>,
    /// The places that ops reduce or contract, with the op, in order.
    pub reduced: Vec<(Place, OpId)>,
}

impl<'a> Places<'a> {
    /// The places of a kernel.
    pub fn of(kernel: &'a Kernel) -> Self {
        let mut places = Self { kernel, parent: BTreeMap::new(), reduced: Vec::new() };
        for (_, op) in kernel.walk() {
            places.op(op);
        }
        places
    }

    fn dims(&self, v: ValueId) -> &'a [Dim] {
        match self.kernel.ty(v) {
            Type::Tile(tile) => &tile.dims,
            _ => &[],
        }
    }

    /// The length of a place that is a range.
    pub fn length(&self, (v, k): Place) -> Option<SizeExpr> {
        match self.dims(v).get(k) {
            Some(Dim::Range(length)) => Some(length.clone()),
            _ => None,
        }
    }

    /// The place that stands for all that are the same range.
    pub fn root(&self, place: Place) -> Place {
        let mut at = place;
        while let Some(&above) = self.parent.get(&at) {
            at = above;
        }
        at
    }

    fn unite(&mut self, a: Place, b: Place) {
        if self.length(a).is_some() && self.length(b).is_some() {
            let (a, b) = (self.root(a), self.root(b));
            if a != b {
                self.parent.insert(a, b);
            }
        }
    }

    /// Every dimension of one value is that of the other.
    fn same(&mut self, a: ValueId, b: ValueId) {
        (0..2).for_each(|k| self.unite((a, k), (b, k)));
    }

    /// The dimensions of an operand are a subsequence of those of the result.
    fn broadcast(&mut self, operand: ValueId, result: ValueId) {
        let mut from = 0;
        for k in 0..self.dims(operand).len() {
            let dim = &self.dims(operand)[k];
            let Some(at) = self.dims(result)[from..].iter().position(|d| d == dim) else { return };
            self.unite((operand, k), (result, from + at));
            from += at + 1;
        }
    }

    fn op(&mut self, op: OpId) {
        let data = &self.kernel.ops[op];
        let result = data.results.first().copied();
        match (&data.op, result) {
            (Op::Transpose(x), Some(r)) => {
                self.unite((*x, 0), (r, 1));
                self.unite((*x, 1), (r, 0));
            }
            (Op::Dot { a, b, acc }, Some(r)) => {
                self.unite((*a, 1), (*b, 0));
                self.reduced.push(((*a, 1), op));
                self.unite((*a, 0), (r, 0));
                self.unite((*b, 1), (r, 1));
                acc.iter().for_each(|&acc| self.same(acc, r));
            }
            (Op::Reduce(_, x), Some(r)) => {
                self.reduced.push(((*x, 1), op));
                self.unite((*x, 0), (r, 0));
            }
            (Op::OfPart { value, .. }, Some(r)) => self.same(*value, r),
            (Op::For { body, init, .. }, _) => {
                let block = &self.kernel.blocks[*body];
                let next = match block.ops.last().map(|&last| &self.kernel.ops[last].op) {
                    Some(Op::Yield(next)) => next.clone(),
                    _ => Vec::new(),
                };
                for (k, &v) in block.params[1..].iter().enumerate() {
                    self.same(v, init[k]);
                    next.get(k).into_iter().for_each(|&n| self.same(v, n));
                    data.results.get(k).into_iter().for_each(|&r| self.same(v, r));
                }
            }
            (op, Some(r)) if op.is_elementwise() => op.operands().into_iter().for_each(|x| self.broadcast(x, r)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;
    use crate::syntax;

    fn texts(text: &str) -> Vec<String> {
        let source = SourceText { name: "kernel".into(), text: text.into(), first_line: 1 };
        let kernel = syntax::parse(&source).expect("well formed").remove(0);
        let line = |r: &Range| format!("{} {} {}", kernel.size_text(&r.length), r.members.join(" "), r.is_parallel());
        ranges(&kernel).iter().map(line).collect()
    }

    #[test]
    fn the_head_dim_is_reduced_in_the_scores_and_parallel_in_the_output() {
        let attention = "
            pub fn f<T: Element, const D: usize>(
                q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
            ) {
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut acc = zeros((i, D));
                for j in tiles(N) {
                    let s = dot(q_i, load(k, [j, ..]).t());
                    acc = acc + dot(s.to::<T>(), load(v, [j, ..]));
                }
                store(o, [i, ..], acc);
            }";
        assert_eq!(texts(attention), ["D q_i k false", "D acc v o true"]);
    }

    #[test]
    fn a_row_sum_reduces_and_what_is_divided_by_it_has_the_range_too() {
        let norm = "
            pub fn f<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, y: &mut Tensor<T, (M, D)>) {
                let i = program(tiles(M));
                let t = load(x, [i, ..]);
                store(y, [i, ..], t / rowsum(t * t));
            }";
        assert_eq!(texts(norm), ["D t y false"]);
    }

    #[test]
    fn rows_and_columns_of_one_length_are_two_ranges() {
        let state = "
            pub fn f<T: Element, const D: usize>(
                k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, decay: &Tensor<f32, (B)>, o: &mut Tensor<f32, (B, D, D)>,
            ) {
                let b = program(B);
                let mut state = zeros((D, D));
                for j in tiles(N) {
                    state = state * load(decay, [b]) + dot(load(k, [j, ..]).t(), load(v, [j, ..]));
                }
                store(o, [b, .., ..], state);
            }";
        assert_eq!(texts(state), ["D state k o true", "D state v o true"]);
    }
}
