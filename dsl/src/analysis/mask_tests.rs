//! Mask analysis against brute force: random predicates, sizes and blocks.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::index::{Lookups, Search, Symbol, Trend};
use super::mask::{LoopMasks, MaskOptions, loop_masks};
use super::predicate::Summaries;
use super::samples::{Scope, Softmax, attention, binary, causal, integer};
use super::unchanged::{Unchanged, Unproven, unchanged};
use crate::ir::{BinaryOp, Builder, CompareOp, Kernel, Op, OpId, SizeExpr, SourceText, UnaryOp, ValueId};

/// An integer of a random predicate.
#[derive(Clone, Debug)]
enum Number {
    Constant(i64),
    Row,
    Column,
    Shift,
    /// Loaded: [`LOADED`].
    Loaded,
    /// Loaded for each row: [`loaded_of_row`].
    LoadedOfRow,
    /// Loaded for each column: [`loaded_of_column`].
    LoadedOfColumn(Column),
    Sum(Box<Number>, Box<Number>),
    Difference(Box<Number>, Box<Number>),
    Times(Box<Number>, i64),
    Over(Box<Number>, i64),
    Remainder(Box<Number>, i64),
    /// The quotient by a number that is known in a launch.
    OverKnown(Box<Number>, Known),
    /// The remainder of that quotient.
    RemainderByKnown(Box<Number>, Known),
    /// `x / known * known`.
    MultipleOfKnown(Box<Number>, Known),
    /// The product with a number that is known in a launch.
    TimesKnown(Box<Number>, Known),
    Least(Box<Number>, Box<Number>),
    Most(Box<Number>, Box<Number>),
    Absolute(Box<Number>),
}

/// A divisor or factor that is known in a launch. It may be negative; what is loaded may be 0.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// `2 * shift + 1`.
    Shift,
    /// What is loaded, and a constant.
    Loaded(i64),
}

impl Known {
    fn number(self) -> Number {
        match self {
            Known::Shift => Number::Sum(Box::new(Number::Times(Box::new(Number::Shift), 2)), Box::new(Number::Constant(1))),
            Known::Loaded(c) => Number::Sum(Box::new(Number::Loaded), Box::new(Number::Constant(c))),
        }
    }
}

/// What is loaded.
const LOADED: i64 = 13;

fn floor_div(x: i64, divisor: i64) -> i64 {
    if divisor == 0 { 0 } else { (divisor.signum() * x).div_euclid(divisor.abs()) }
}

/// What is loaded for a row.
fn loaded_of_row(i: i64) -> i64 {
    (i * 7 + 3) % 29 - 6
}

/// What is loaded for a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// Numbers of documents, one after the other.
    Document,
    /// Numbers in no order.
    Scattered,
}

impl Column {
    const ALL: [Self; 2] = [Column::Document, Column::Scattered];

    /// The name of the tensor.
    fn name(self) -> &'static str {
        match self {
            Column::Document => "document_of_column",
            Column::Scattered => "number_of_column",
        }
    }

    /// What it holds.
    fn number(self, j: i64) -> i64 {
        match self {
            Column::Document => j / 7 - 2,
            Column::Scattered => (j * 11 + 5) % 17 - 4,
        }
    }
}

/// What a search finds: in the columns that exist, `columns` of them.
fn found(kernel: &Kernel, columns: i64, search: &Search, from: Option<i64>, to: Option<i64>) -> i64 {
    let Some((_, Op::Load { tensor, .. })) = kernel.def(search.load) else { panic!("a load") };
    let column = Column::ALL.into_iter().find(|c| c.name() == kernel.params[*tensor].name).expect("of columns");
    let tiles = (0..columns).step_by(search.block as usize).map(|start| {
        let numbers = (start..(start + search.block).min(columns)).map(|j| column.number(j) as i32);
        (numbers.clone().min().expect("a column"), numbers.max().expect("a column"))
    });
    search.end.find(tiles.collect::<Vec<_>>(), from.unwrap_or(i64::MIN)..=to.unwrap_or(i64::MAX))
}

/// A random predicate.
#[derive(Clone, Debug)]
enum Predicate {
    Compare(CompareOp, Number, Number),
    And(Box<Predicate>, Box<Predicate>),
    Or(Box<Predicate>, Box<Predicate>),
    Not(Box<Predicate>),
}

impl Number {
    fn build(&self, b: &mut Builder, s: &Scope) -> ValueId {
        let mut two = |op, x: &Number, y: &Number| {
            let (x, y) = (x.build(b, s), y.build(b, s));
            binary(b, op, x, y)
        };
        match self {
            Number::Constant(c) => integer(b, *c),
            Number::Row => s.row(b),
            Number::Column => s.column(b),
            Number::Shift => s.shift(b),
            Number::Loaded => s.loaded(b),
            Number::LoadedOfRow => s.loaded_of_row(b),
            Number::LoadedOfColumn(column) => s.loaded_of_column(b, column.name()),
            Number::Sum(x, y) => two(BinaryOp::Add, x, y),
            Number::Difference(x, y) => two(BinaryOp::Sub, x, y),
            Number::Least(x, y) => two(BinaryOp::Min, x, y),
            Number::Most(x, y) => two(BinaryOp::Max, x, y),
            Number::Absolute(x) => {
                let x = x.build(b, s);
                b.emit(Op::Unary(UnaryOp::Abs, x))
            }
            Number::Times(x, c) => two(BinaryOp::Mul, x, &Number::Constant(*c)),
            Number::Over(x, c) => two(BinaryOp::Div, x, &Number::Constant(*c)),
            Number::Remainder(x, c) => two(BinaryOp::Rem, x, &Number::Constant(*c)),
            Number::OverKnown(x, known) => two(BinaryOp::Div, x, &known.number()),
            Number::RemainderByKnown(x, known) => two(BinaryOp::Rem, x, &known.number()),
            Number::TimesKnown(x, known) => two(BinaryOp::Mul, x, &known.number()),
            Number::MultipleOfKnown(x, known) => {
                let (x, known) = (x.build(b, s), known.number().build(b, s));
                let quotient = binary(b, BinaryOp::Div, x, known);
                binary(b, BinaryOp::Mul, quotient, known)
            }
        }
    }

    fn eval(&self, i: i64, j: i64, shift: i64) -> i64 {
        let of = |x: &Number| x.eval(i, j, shift);
        match self {
            Number::Constant(c) => *c,
            Number::Row => i,
            Number::Column => j,
            Number::Shift => shift,
            Number::Loaded => LOADED,
            Number::LoadedOfRow => loaded_of_row(i),
            Number::LoadedOfColumn(column) => column.number(j),
            Number::Sum(x, y) => of(x) + of(y),
            Number::Difference(x, y) => of(x) - of(y),
            Number::Least(x, y) => of(x).min(of(y)),
            Number::Most(x, y) => of(x).max(of(y)),
            Number::Absolute(x) => of(x).abs(),
            Number::Times(x, c) => of(x) * c,
            Number::Over(x, c) => of(x).div_euclid(*c),
            Number::Remainder(x, c) => of(x).rem_euclid(*c),
            Number::OverKnown(x, known) => floor_div(of(x), of(&known.number())),
            Number::TimesKnown(x, known) => of(x) * of(&known.number()),
            Number::RemainderByKnown(x, known) => {
                let (x, divisor) = (of(x), of(&known.number()));
                x - floor_div(x, divisor) * divisor
            }
            Number::MultipleOfKnown(x, known) => {
                let divisor = of(&known.number());
                floor_div(of(x), divisor) * divisor
            }
        }
    }
}

impl Predicate {
    fn build(&self, b: &mut Builder, s: &Scope) -> ValueId {
        match self {
            Predicate::Compare(op, x, y) => {
                let (x, y) = (x.build(b, s), y.build(b, s));
                b.emit(Op::Compare(*op, x, y))
            }
            Predicate::And(x, y) => {
                let (x, y) = (x.build(b, s), y.build(b, s));
                binary(b, BinaryOp::And, x, y)
            }
            Predicate::Or(x, y) => {
                let (x, y) = (x.build(b, s), y.build(b, s));
                binary(b, BinaryOp::Or, x, y)
            }
            Predicate::Not(x) => {
                let x = x.build(b, s);
                b.emit(Op::Unary(UnaryOp::Not, x))
            }
        }
    }

    fn eval(&self, i: i64, j: i64, shift: i64) -> bool {
        match self {
            Predicate::Compare(op, x, y) => {
                let (x, y) = (x.eval(i, j, shift), y.eval(i, j, shift));
                match op {
                    CompareOp::Eq => x == y,
                    CompareOp::Ne => x != y,
                    CompareOp::Lt => x < y,
                    CompareOp::Le => x <= y,
                    CompareOp::Gt => x > y,
                    CompareOp::Ge => x >= y,
                }
            }
            Predicate::And(x, y) => x.eval(i, j, shift) && y.eval(i, j, shift),
            Predicate::Or(x, y) => x.eval(i, j, shift) || y.eval(i, j, shift),
            Predicate::Not(x) => !x.eval(i, j, shift),
        }
    }

    /// The mask works on a matrix: a predicate that lacks a position still broadcasts, but not one that lacks both.
    fn whole(self) -> Self {
        let column = Predicate::Compare(CompareOp::Ge, Number::Column, Number::Constant(0));
        let row = Predicate::Compare(CompareOp::Ge, Number::Row, Number::Constant(0));
        Predicate::And(Box::new(self), Box::new(Predicate::And(Box::new(row), Box::new(column))))
    }
}

fn known() -> impl Strategy<Value = Known> {
    let number = |number: i64| Just(Known::Loaded(number - LOADED));
    prop_oneof![Just(Known::Shift), number(0), number(1), (-20i64..60).prop_map(Known::Loaded)]
}

fn number() -> impl Strategy<Value = Number> {
    let leaf = prop_oneof![
        (-40i64..40).prop_map(Number::Constant),
        Just(Number::Row),
        Just(Number::Column),
        Just(Number::Column),
        Just(Number::Shift),
        Just(Number::Loaded),
        Just(Number::LoadedOfRow),
        prop::sample::select(Column::ALL.to_vec()).prop_map(Number::LoadedOfColumn),
    ];
    leaf.prop_recursive(3, 8, 2, |x| {
        let pair = (x.clone(), x.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            pair.clone().prop_map(|(a, b)| Number::Sum(a, b)),
            pair.clone().prop_map(|(a, b)| Number::Difference(a, b)),
            pair.clone().prop_map(|(a, b)| Number::Least(a, b)),
            pair.prop_map(|(a, b)| Number::Most(a, b)),
            (x.clone(), -3i64..4).prop_map(|(a, c)| Number::Times(Box::new(a), c)),
            (x.clone(), 1i64..9).prop_map(|(a, c)| Number::Over(Box::new(a), c)),
            (x.clone(), 1i64..9).prop_map(|(a, c)| Number::Remainder(Box::new(a), c)),
            x.clone().prop_map(|a| Number::Absolute(Box::new(a))),
            (x.clone(), known()).prop_map(|(a, k)| Number::OverKnown(Box::new(a), k)),
            (x.clone(), known()).prop_map(|(a, k)| Number::RemainderByKnown(Box::new(a), k)),
            (x.clone(), known()).prop_map(|(a, k)| Number::MultipleOfKnown(Box::new(a), k)),
            (x, known()).prop_map(|(a, k)| Number::TimesKnown(Box::new(a), k)),
        ]
    })
}

fn predicate() -> impl Strategy<Value = Predicate> {
    use CompareOp::{Eq, Ge, Gt, Le, Lt, Ne};
    let leaf = (prop::sample::select(vec![Eq, Ne, Lt, Le, Gt, Ge]), number(), number())
        .prop_map(|(op, a, b)| Predicate::Compare(op, a, b));
    leaf.prop_recursive(3, 6, 2, |x| {
        prop_oneof![
            (x.clone(), x.clone()).prop_map(|(a, b)| Predicate::And(Box::new(a), Box::new(b))),
            (x.clone(), x.clone()).prop_map(|(a, b)| Predicate::Or(Box::new(a), Box::new(b))),
            x.prop_map(|a| Predicate::Not(Box::new(a))),
        ]
    })
}

/// Sizes and blocks of a test.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: i64,
    n: i64,
    block_m: i64,
    block_n: i64,
}

fn shape() -> impl Strategy<Value = Shape> {
    (1i64..40, 0i64..40, prop::sample::select(vec![1i64, 3, 4, 8, 16]), prop::sample::select(vec![1i64, 3, 4, 8, 16]))
        .prop_map(|(m, n, block_m, block_n)| Shape { m, n, block_m, block_n })
}

fn analysed(kernel: &Kernel, loop_op: OpId, scope: &Scope, shape: Shape, early_stop: bool) -> LoopMasks {
    let rows = match kernel.ty(scope.i) {
        crate::ir::Type::Coord(axis) => *axis,
        _ => unreachable!("i is a coordinate"),
    };
    let block = move |axis| if axis == rows { shape.block_m } else { shape.block_n };
    loop_masks(
        kernel,
        loop_op,
        &block,
        &|_| None,
        MaskOptions { early_stop, summaries: Summaries::All, ..MaskOptions::default() },
    )
}

/// What brute force finds in the tiles of row tile `t`: for each key tile, whether anything is visible and whether
/// everything is.
fn brute_force(keep: &dyn Fn(i64, i64) -> bool, shape: Shape, t: i64) -> Vec<(bool, bool)> {
    let rows = t * shape.block_m..((t + 1) * shape.block_m).min(shape.m);
    (0..(shape.n + shape.block_n - 1) / shape.block_n)
        .map(|u| {
            let columns = u * shape.block_n..((u + 1) * shape.block_n).min(shape.n);
            let all = |f: &dyn Fn(bool) -> bool| rows.clone().all(|i| columns.clone().all(|j| f(keep(i, j))));
            (!all(&|kept| !kept), all(&|kept| kept))
        })
        .collect()
}

/// Checks that runs are ordered, sound, and, if `exact`, as tight as one run can be.
fn check(kernel: &Kernel, masks: &LoopMasks, scope: &Scope, shape: Shape, keep: &dyn Fn(i64, i64) -> bool, exact: bool) {
    let size = |s: &SizeExpr| {
        s.eval(|s| Some(if s == scope.m { shape.m } else { shape.n })).expect("M and N are the sizes of the sample's loops")
    };
    for t in 0..(shape.m + shape.block_m - 1) / shape.block_m {
        let rows = t * shape.block_m..((t + 1) * shape.block_m).min(shape.m);
        let loaded = |symbol| match symbol {
            Symbol::Value(_) => LOADED,
            Symbol::Least(_) => rows.clone().map(loaded_of_row).min().expect("a tile has a row"),
            Symbol::Most(_) => rows.clone().map(loaded_of_row).max().expect("a tile has a row"),
        };
        let found = |search: &Search, from, to| found(kernel, shape.n, search, from, to);
        let at = Lookups { size: &size, value: &|_| t, param: &|_| 0, loaded: &loaded, found: &found };
        let [lo, full_lo, full_hi, hi] = masks.runs.eval(at);
        let tiles = brute_force(keep, shape, t);
        assert!(0 <= lo && lo <= full_lo && full_lo <= full_hi && full_hi <= hi && hi <= tiles.len() as i64, "order at {t}");
        let gap = masks.runs.gap.as_ref().map_or(hi..hi, |gap| gap.lo.eval(at)..gap.hi.eval(at));
        assert!(lo <= gap.start && gap.start <= gap.end && gap.end <= hi, "the gap at {t}");
        assert_eq!(gap.end - gap.start, masks.runs.between(at));
        for (u, &(some, all)) in tiles.iter().enumerate() {
            let u = u as i64;
            assert!(!gap.contains(&u) || !some, "row tile {t}: key tile {u} is in the gap but visible");
            assert!((lo..hi).contains(&u) || !some, "row tile {t}: key tile {u} is skipped but visible");
            let whole = (u + 1) * shape.block_n <= shape.n;
            assert!(!(full_lo..full_hi).contains(&u) || (all && whole), "row tile {t}: key tile {u} is not full");
            if exact {
                // That the last tile ends early is not used against a mask that starts beyond its end.
                assert!(!(lo..hi).contains(&u) || some || !whole, "row tile {t}: key tile {u} is hidden but walked");
                assert!((full_lo..full_hi).contains(&u) || !(all && whole), "row tile {t}: key tile {u} is full but cut");
            }
        }
    }
}

fn sample(softmax: Softmax, p: &Predicate) -> (Kernel, OpId, Scope) {
    attention(softmax, &[&|b: &mut Builder, s: &Scope| p.build(b, s)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn runs_are_sound(p in predicate(), shape in shape()) {
        let p = p.whole();
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        prop_assert_eq!(&masks.masks[0].hidden, &Unchanged::Always);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shape.n - shape.m), false);
    }

    #[test]
    fn two_masks_are_sound(p in predicate(), q in predicate(), shape in shape()) {
        let (p, q) = (p.whole(), q.whole());
        let (kernel, loop_op, scope) =
            attention(Softmax::Named, &[&|b: &mut Builder, s: &Scope| p.build(b, s), &|b: &mut Builder, s: &Scope| q.build(b, s)]);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        let shift = shape.n - shape.m;
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shift) && q.eval(i, j, shift), false);
    }

    #[test]
    fn windows_and_prefixes_are_exact(shape in shape(), width in 0i64..30, prefix in 0i64..30, chunk in 1i64..9, kind in 0..6) {
        use Number::{Column, Constant, Difference, Over, Row, Shift, Sum};
        let row = || Sum(Box::new(Row), Box::new(Shift));
        let causal = Predicate::Compare(CompareOp::Ge, row(), Column);
        let window = Predicate::Compare(
            CompareOp::Lt, Difference(Box::new(row()), Box::new(Column)), Constant(width));
        let within = Predicate::Compare(CompareOp::Lt, Column, Constant(prefix));
        let over = |x: Number| Over(Box::new(x), chunk);
        let p = match kind {
            0 => causal,
            1 => Predicate::And(Box::new(causal), Box::new(within)),
            2 => Predicate::Or(Box::new(causal), Box::new(within)),
            3 => Predicate::Not(Box::new(causal)),
            4 => Predicate::Compare(CompareOp::Ge, over(Row), over(Column)),
            _ => Predicate::Not(Box::new(Predicate::Or(Box::new(Predicate::Not(Box::new(causal))), Box::new(Predicate::Not(Box::new(within)))))),
        };
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shape.n - shape.m), true);
        // A window that both starts and ends inside the keys.
        let causal = Predicate::Compare(CompareOp::Ge, row(), Column);
        let p = Predicate::And(Box::new(causal), Box::new(window));
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shape.n - shape.m), width > 0);
    }

    /// A window around a position that is kept away from the ends, such as that of NATTEN: from the
    /// side of the rows, and from that of the columns, where what moves with the loop is clamped.
    #[test]
    fn clamped_windows_are_exact(shape in shape(), ends in (0i64..30, 0i64..30), width in 0i64..20, chunk in 1i64..9, kind in 0..5) {
        use Number::{Absolute, Column, Constant, Difference, Least, Most, Over, Row, Sum, Times};
        let of = |x: Number| Box::new(x);
        let chunks = |x: Number| Over(of(x), chunk);
        let (first, last) = (Constant(ends.0.min(ends.1)), Constant(ends.0.max(ends.1)));
        let clamped = |x: Number| Least(of(Most(of(x), of(first.clone()))), of(last.clone()));
        let within = |x: Number, y: Number| {
            Predicate::Compare(CompareOp::Le, Absolute(of(Difference(of(x), of(y)))), Constant(width))
        };
        let p = match kind {
            0 => within(clamped(chunks(Row)), chunks(Column)),
            1 => within(clamped(chunks(Column)), chunks(Row)),
            2 => Predicate::Compare(
                CompareOp::Lt, Sum(of(Absolute(of(Difference(of(Row), of(Column))))), of(Constant(1))), Constant(width)),
            3 => Predicate::Compare(
                CompareOp::Eq, Times(of(chunks(clamped(Column))), -1), Difference(of(Constant(width)), of(Row))),
            _ => Predicate::Not(Box::new(within(Row, chunks(clamped(Column))))),
        };
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p.clone().whole());
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        // Of several rows, and of two runs, what is known may be less; so it is where nothing
        // holds.
        let exact = shape.block_m == 1 && kind != 4 && (kind != 2 || width > 1);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shape.n - shape.m), exact);
    }

    /// Keys of one's own document, which are in order: as tight as by hand.
    #[test]
    fn documents_in_order_are_exact(shape in shape(), is_causal in prop::bool::ANY) {
        use Number::{Column as Position, LoadedOfColumn, Over, Row, Difference, Constant};
        let own = Difference(Box::new(Over(Box::new(Row), 7)), Box::new(Constant(2)));
        let document = Predicate::Compare(CompareOp::Eq, own, LoadedOfColumn(Column::Document));
        let causal = Predicate::Compare(CompareOp::Ge, Row, Position);
        let p = if is_causal { Predicate::And(Box::new(document), Box::new(causal)) } else { document };
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, 0), true);
    }

    #[test]
    fn blocks_of_a_size_known_at_launch_are_exact(shape in shape(), size in 1i64..60, kind in 0..6) {
        use Number::{Column, Difference, MultipleOfKnown, OverKnown, RemainderByKnown, Row, Times};
        let known = Known::Loaded(size - LOADED);
        let of = |x: Number| Box::new(x);
        let (row, column) = (OverKnown(of(Row), known), OverKnown(of(Column), known));
        let p = match kind {
            0 => Predicate::Compare(CompareOp::Eq, row, column),
            1 => Predicate::Compare(CompareOp::Ge, row, column),
            // The own block and the one before it.
            2 => Predicate::And(
                Box::new(Predicate::Compare(CompareOp::Ge, row.clone(), column.clone())),
                Box::new(Predicate::Compare(
                    CompareOp::Le, row, Number::Sum(of(column), of(Number::Constant(1))))),
            ),
            3 => Predicate::Compare(CompareOp::Le, MultipleOfKnown(of(Row), known), Column),
            4 => Predicate::Compare(
                CompareOp::Le, Difference(of(Row), of(RemainderByKnown(of(Row), known))), Column),
            // A window of two blocks.
            _ => Predicate::Compare(CompareOp::Lt, Difference(of(Row), of(Column)), Times(of(known.number()), 2)),
        };
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p);
        let masks = analysed(&kernel, loop_op, &scope, shape, true);
        check(&kernel, &masks, &scope, shape, &|i, j| p.eval(i, j, shape.n - shape.m), true);
    }

    #[test]
    fn simplification_keeps_the_value(p in predicate(), shape in shape()) {
        let (kernel, loop_op, scope) = sample(Softmax::Named, &p.whole());
        let general = analysed(&kernel, loop_op, &scope, shape, true);
        let value_of = |s: &SizeExpr| s.eval(|s| Some(if s == scope.m { shape.m } else { shape.n })).expect("known");
        for t in 0..(shape.m + shape.block_m - 1) / shape.block_m {
            let at = Lookups { size: &value_of, value: &|_| t, param: &|_| 0, loaded: &|_| 0, found: &|_, _, _| 0 };
            for e in general.runs.ends() {
                let folded = e.fold_sizes(&|s| Some(value_of(s)));
                prop_assert_eq!(folded.eval(at), e.eval(at), "{} became {}", e, folded);
            }
        }
    }
}

const SHAPE: Shape = Shape { m: 100, n: 100, block_m: 64, block_n: 64 };

#[test]
fn causal_bounds_are_readable() {
    let (kernel, loop_op, scope) = attention(Softmax::Named, &[&causal]);
    let masks = analysed(&kernel, loop_op, &scope, SHAPE, true);
    let text = |e: &super::index::IndexExpr| e.text(&kernel);
    assert_eq!(text(&masks.runs.lo), "0");
    assert_eq!(text(&masks.runs.full_lo), "0");
    assert_eq!(text(&masks.runs.full_hi), "max(min(i + floor((N - M + 1) / 64), floor(N / 64)), 0)");
    assert_eq!(text(&masks.runs.hi), "max(min(i + ceil((N - M) / 64) + 1, ceil(N / 64)), 0)");
    assert_eq!(masks.trips_trend(&kernel, scope.i), Some(Trend::Rising));
}

#[test]
fn without_early_stop_hidden_tiles_are_cut() {
    let (kernel, loop_op, scope) = attention(Softmax::Named, &[&causal]);
    let masks = analysed(&kernel, loop_op, &scope, SHAPE, false);
    assert_eq!(masks.runs.lo.as_const(), Some(0));
    assert_eq!(masks.runs.hi, masks.tiles);
}

#[test]
fn what_is_always_true_needs_no_mask() {
    let seen = |b: &mut Builder, s: &Scope| {
        let (row, column) = (s.row(b), s.column(b));
        let sum = binary(b, BinaryOp::Add, row, column);
        let zero = integer(b, 0);
        b.emit(Op::Compare(CompareOp::Ge, sum, zero))
    };
    let (kernel, loop_op, scope) = attention(Softmax::Named, &[&seen]);
    let masks = analysed(&kernel, loop_op, &scope, SHAPE, true);
    assert!(masks.is_unmasked() && masks.masks[0].is_always_true());
    let (kernel, loop_op, scope) = attention(Softmax::Named, &[&causal]);
    assert!(!analysed(&kernel, loop_op, &scope, SHAPE, true).is_unmasked());
}

#[test]
fn what_the_walked_tiles_imply_needs_no_mask() {
    let implied = |predicate: &dyn Fn(&mut Builder, &Scope) -> ValueId, softmax, early_stop| {
        let (kernel, loop_op, scope) = attention(softmax, &[predicate]);
        analysed(&kernel, loop_op, &scope, SHAPE, early_stop).implied.len()
    };
    let between_tiles = |b: &mut Builder, s: &Scope| {
        let (column, end) = (s.column(b), integer(b, SHAPE.block_n));
        b.emit(Op::Compare(CompareOp::Lt, column, end))
    };
    assert_eq!(implied(&between_tiles, Softmax::Named, true), 1);
    assert_eq!(implied(&between_tiles, Softmax::Named, false), 0, "all tiles are walked");
    assert_eq!(implied(&between_tiles, Softmax::Plain, true), 0, "the first tile is walked");
    assert_eq!(implied(&between_tiles, Softmax::Counting, true), 0, "a hidden tile changes something");
    let within = |b: &mut Builder, s: &Scope| {
        let (column, end) = (s.column(b), integer(b, SHAPE.block_n + 1));
        b.emit(Op::Compare(CompareOp::Lt, column, end))
    };
    assert_eq!(implied(&within, Softmax::Named, true), 0, "the last tile is cut");
    assert_eq!(implied(&causal, Softmax::Named, true), 0);
}

#[test]
fn skipping_needs_a_proof() {
    let hidden = |softmax| {
        let (kernel, loop_op, scope) = attention(softmax, &[&causal]);
        analysed(&kernel, loop_op, &scope, SHAPE, true).masks[0].hidden.clone()
    };
    assert_eq!(hidden(Softmax::Named), Unchanged::Always);
    assert_eq!(hidden(Softmax::Plain), Unchanged::AfterFirst);
    assert_eq!(hidden(Softmax::Unscaled), Unchanged::Always);
    assert_eq!(hidden(Softmax::Counting), Unchanged::Unproved(Unproven::MayChange { slot: 2, name: "acc".into() }));
    assert_eq!(hidden(Softmax::Sink), Unchanged::Unseen);
    assert_eq!(hidden(Softmax::PlainSink), Unchanged::AfterFirst);
    let told = Unproven::StartIsTold { slot: 1, name: "l".into(), told: "o".into() };
    assert_eq!(told.to_string(), "`o` of a row that sees nothing depends on what `l` starts from");
    assert_eq!(hidden(Softmax::DividedSink), Unchanged::Unproved(told));
}

#[test]
fn plain_arithmetic_walks_the_first_tile() {
    let (kernel, loop_op, scope) = attention(Softmax::Plain, &[&causal]);
    let shape = Shape { m: 100, n: 10, block_m: 16, block_n: 8 };
    let masks = analysed(&kernel, loop_op, &scope, shape, true);
    let size = |s: &SizeExpr| s.eval(|s| Some(if s == scope.m { shape.m } else { shape.n })).expect("known");
    let runs = masks.runs.eval(Lookups { size: &size, value: &|_| 0, param: &|_| 0, loaded: &|_| 0, found: &|_, _, _| 0 });
    assert_eq!(runs, [0, 0, 0, 1], "rows that see nothing are NaN, which the first tile makes them");
}

#[test]
fn sums_of_hidden_pairs_stay() {
    let hidden = |next: &str| {
        let text = format!(
            "flash_kernel! {{ pub fn k(x: &Tensor<f32, (B, M, N)>, l: &Tensor<f32, (B, M)>, o: &mut Tensor<f32, (M, N)>) {{
                let (i, j) = program(tiles(M), tiles(N));
                let mut sum = zeros((i, j));
                for b in 0..B {{
                    let x_ij = load(x, [b, i, j]);
                    let l_i = load(l, [b, i]);
                    let s = mask(x_ij, pos(j) <= pos(i));
                    sum = {next};
                }}
                store(o, [i, j], sum);
            }} }}"
        );
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let kernel = crate::syntax::parse(&source).unwrap_or_else(|e| panic!("{next}: {e:?}")).remove(0);
        let of_kind = |is: fn(&Op) -> bool| -> Vec<OpId> {
            kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| is(&kernel.ops[op].op)).collect()
        };
        let loop_op = of_kind(|op| matches!(op, Op::For { .. }))[0];
        let masked: BTreeSet<OpId> = of_kind(|op| matches!(op, Op::Mask { .. })).into_iter().collect();
        unchanged(&kernel, loop_op, &masked)
    };
    let stays =
        ["sum + x_ij * exp(s - visible_or_zero(l_i))", "exp(s) * l_i + sum", "sum - x_ij * exp(s)", "sum + visible_or_zero(s)"];
    for next in stays {
        assert_eq!(hidden(next), Unchanged::Always, "{next}");
    }
    // What is hidden holds another number than 0, or one that is not known; or something is seen.
    let changes = [
        "sum + exp(s) + 1.0",
        "sum + s",
        "exp(s) - sum",
        "sum * l_i + exp(s)",
        "sum + exp(s - l_i)",
        "sum + x_ij",
        "max(sum, s)",
    ];
    for next in changes {
        let may_change = Unchanged::Unproved(Unproven::MayChange { slot: 0, name: "sum".into() });
        assert_eq!(hidden(next), may_change, "{next}");
    }
}
