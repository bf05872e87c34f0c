//! What the integer arithmetic of one call reaches, from the sizes and scalars of its arguments.
//!
//! The IR's indices are 64-bit integers, and its `i32` tiles are 32-bit integers (see
//! [`crate::ir`]). No index may leave its width or the dimension that it addresses, no divisor may
//! be zero, and no `i32` that is an index or decides what is seen may leave its width; any other
//! wraps around. Whether a call keeps to that follows from its sizes and scalars, and not from the
//! contents of its tensors. This module finds it out by interval arithmetic: once per kernel the
//! integer values are collected ([`Reach::new`]), and once per call they are evaluated
//! ([`Reach::check`]), without an allocation where the intervals prove everything.
//!
//! An interval may be wider than what is reached (`i - i % 2` of `i` in 0 ..= 9 gives -1 ..= 9).
//! Then the program ids, loop indices and positions that the value depends on are bisected until
//! the question is decided.
//!
//! Not covered: what is computed from loaded elements. No launcher knows their values before the
//! launch, so the text moves an index that is made of them into its dimension.
//!
//! [`Integers`] asks the same of all calls at once: which integers may wrap around in one.

mod call;
mod every;
mod interval;
mod node;
mod parts;

use super::mask::kept_where;
use crate::ir::{
    At, BinaryOp, Binding, Elem, Entity, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, SizeKind, Span, Type, UnaryOp, ValueId,
};
pub use call::{MAX_SIZE, Values};
pub use every::Integers;
use interval::Interval;
pub use node::Node;
use node::{Known, Nodes};
pub use parts::{Indexed, IndexedAt};

/// Steps of a bisection before it gives up.
pub const MAX_STEPS: usize = 1 << 16;

/// What is wrong with the sizes and scalars of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A size or an extent that is negative, no whole number, or above [`MAX_SIZE`]; also where a term of it is above.
    Size {
        /// The size, as in the kernel text.
        text: String,
        /// Its value; `None` where it is no whole number.
        value: Option<i64>,
    },
    /// More programs than a launch can have.
    Programs,
    /// An index outside of the dimension that it addresses.
    Outside {
        /// The tensor.
        tensor: ParamId,
        /// The dimension, from 0.
        dimension: usize,
        /// The index, as in the kernel text.
        text: String,
        /// A value that it takes.
        value: i64,
        /// Extent of the dimension.
        extent: i64,
        /// Place in the kernel text.
        span: Span,
    },
    /// A divisor that is zero.
    Division {
        /// The divisor, as in the kernel text.
        text: String,
        /// Place in the kernel text.
        span: Span,
    },
    /// A value that leaves its width.
    Overflow {
        /// The value, as in the kernel text.
        text: String,
        /// Bits of its type.
        bits: u32,
        /// Place in the kernel text.
        span: Span,
    },
    /// Bisection did not decide whether the value keeps to its range.
    Undecided {
        /// The value, as in the kernel text.
        text: String,
        /// Place in the kernel text.
        span: Span,
    },
}

/// The width of a kernel's index arithmetic in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// Indices and loop bounds stay within 32 bits.
    Narrow,
    /// They may need 64.
    Wide,
}

/// An index of a load or store.
#[derive(Clone, PartialEq, Debug)]
struct Access {
    tensor: ParamId,
    dimension: usize,
    extent: SizeExpr,
    place: Place,
    span: Span,
}

#[derive(Clone, PartialEq, Debug)]
enum Place {
    /// The node of an index.
    Index(usize),
    /// A range: its start and length.
    Range(SizeExpr, SizeExpr),
}

/// A value whose reach is asked for: a divisor that may not be 0, or a value that may not leave its width.
#[derive(Clone, PartialEq, Debug)]
struct Watched {
    node: usize,
    span: Span,
}

/// The integer arithmetic of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Reach {
    nodes: Nodes,
    accesses: Vec<Access>,
    divisors: Vec<Watched>,
    /// Index values, in 64 bits.
    indices: Vec<Watched>,
    /// `i32` values that masks compare or that are used as indices, in 32 bits.
    exact: Vec<Watched>,
    /// The two sides of comparisons of integers; of sums of positions, sizes and scalars, the sum and 0.
    comparisons: Vec<[usize; 2]>,
    /// Extents of axes and sizes of ranges, with the names of the text.
    sizes: Vec<(SizeExpr, String)>,
    /// Extents of the grid, and whether there is a program for each position.
    grid: Vec<(SizeExpr, bool)>,
    /// Sizes that are known before a call.
    consts: Vec<Option<i64>>,
}

impl Reach {
    /// Collects the integer arithmetic of a verified kernel.
    pub fn new(kernel: &Kernel, binding: &Binding) -> Self {
        let mut reach = Self {
            nodes: Nodes::default(),
            accesses: Vec::new(),
            divisors: Vec::new(),
            indices: Vec::new(),
            exact: Vec::new(),
            comparisons: Vec::new(),
            sizes: Vec::new(),
            grid: Vec::new(),
            consts: kernel.sizes.values().map(|s| binding.consts.get(&s.name).copied()).collect(),
        };
        for size in kernel.sizes.iter().filter(|(_, s)| s.kind == SizeKind::Runtime).map(|(id, _)| SizeExpr::size(id)) {
            reach.watch_size(kernel, &size);
        }
        for axis in kernel.axes.values() {
            reach.watch_size(kernel, &axis.extent);
        }
        for dim in kernel.grid() {
            let (extent, each) = match dim {
                ProgramDim::Each(size) => (size.clone(), true),
                ProgramDim::Tiles(axis) => (kernel.axes[*axis].extent.clone(), false),
            };
            reach.watch_size(kernel, &extent);
            reach.grid.push((extent, each));
        }
        for (_, op) in kernel.walk() {
            reach.op(kernel, binding, op);
        }
        reach
    }

    fn watch_size(&mut self, kernel: &Kernel, size: &SizeExpr) {
        if !self.sizes.iter().any(|(known, _)| known == size) {
            self.sizes.push((size.clone(), kernel.size_text(size)));
        }
    }

    fn op(&mut self, kernel: &Kernel, binding: &Binding, id: OpId) {
        let data = &kernel.ops[id];
        let span = data.span;
        match &data.op {
            Op::Load { tensor, at } | Op::Store { tensor, at, .. } => {
                for (dimension, (at, extent)) in at.iter().zip(&kernel.tensor(*tensor).shape).enumerate() {
                    let place = match at {
                        At::Index(v) => Place::Index(self.place(kernel, *v)),
                        At::Range { start, len } => Place::Range(start.clone(), len.clone()),
                        At::Tile(_) => continue,
                    };
                    let extent = extent.clone();
                    self.accesses.push(Access { tensor: *tensor, dimension, extent, place, span });
                }
            }
            Op::Gather { tensor, at } | Op::Scatter { tensor, at, .. } => {
                for (dimension, (&v, extent)) in at.iter().zip(&kernel.tensor(*tensor).shape).enumerate() {
                    let node = match (kernel.ty(v), kernel.def(v)) {
                        (Type::Index, _) => self.place(kernel, v),
                        // The positions of a tile that walks the dimension.
                        (_, Some((_, Op::Pos(c)))) if walks(kernel, *c, extent) => continue,
                        // Positions are moved into the dimension, which has one.
                        _ => self.nodes.constant(0),
                    };
                    let (extent, place) = (extent.clone(), Place::Index(node));
                    self.accesses.push(Access { tensor: *tensor, dimension, extent, place, span });
                }
            }
            Op::Index(..) | Op::IndexConst(_) | Op::ToIndex(_) => {
                let node = self.nodes.of(kernel, data.results[0]);
                self.indices.push(Watched { node, span });
                self.divisor(span, node);
                if let Node::Widened(x) = self.nodes[node] {
                    self.watch_exact(x, span);
                }
            }
            Op::Binary(op, ..) if op.row().divides && kernel.tile(data.results[0]).elem == Elem::I32 => {
                let node = self.nodes.of(kernel, data.results[0]);
                self.divisor(span, node);
            }
            Op::Binary(BinaryOp::Add | BinaryOp::Sub, ..) | Op::Unary(UnaryOp::Neg | UnaryOp::Abs, _)
                if kernel.tile(data.results[0]).elem == Elem::I32 =>
            {
                let node = self.nodes.of(kernel, data.results[0]);
                if self.nodes.is_sum(node) {
                    let sides = [node, self.nodes.constant(0)];
                    self.comparisons.push(sides);
                }
            }
            Op::Compare(_, a, b) if [a, b].iter().all(|v| binding.elem(kernel, kernel.tile(**v).elem) == Elem::I32) => {
                let sides = [self.nodes.of(kernel, *a), self.nodes.of(kernel, *b)];
                self.comparisons.push(sides);
            }
            Op::Mask { keep, .. } => self.mask(kernel, *keep),
            // What hides is a mask, and so is what chooses a number elsewhere: bounds of loops may come
            // of both.
            &Op::Select { cond, on_true, on_false }
                if kept_where(kernel, id).is_some() || [on_true, on_false].iter().any(|&v| kernel.is_negative_infinity(v)) =>
            {
                self.mask(kernel, cond);
            }
            _ => {}
        }
    }

    /// The node of an index that addresses a dimension. One that is made of what is loaded was moved
    /// into the dimension, which has a position then.
    fn place(&mut self, kernel: &Kernel, index: ValueId) -> usize {
        let node = self.nodes.of(kernel, index);
        if self.nodes.is_of_data(node) { self.nodes.constant(0) } else { node }
    }

    /// Watches an `i32`, and what it is computed from: it may not wrap.
    fn watch_exact(&mut self, root: usize, span: Span) {
        for node in self.nodes.below(root) {
            let watched = Watched { node, span };
            if !self.exact.contains(&watched) {
                self.exact.push(watched);
            }
        }
    }

    /// Watches the divisor of a quotient.
    fn divisor(&mut self, span: Span, quotient: usize) {
        if let Node::Binary(op, _, divisor) = self.nodes[quotient]
            && op.row().divides
        {
            self.divisors.push(Watched { node: divisor, span });
        }
    }

    /// Watches the integers that a mask compares: loop bounds are derived from them as numbers of unlimited width.
    fn mask(&mut self, kernel: &Kernel, keep: ValueId) {
        let Some((id, op)) = kernel.def(keep) else { return };
        match op {
            Op::Unary(UnaryOp::Not, x) | Op::Full { value: x, .. } | Op::Transpose(x) => self.mask(kernel, *x),
            Op::Binary(BinaryOp::And | BinaryOp::Or, a, b) => {
                self.mask(kernel, *a);
                self.mask(kernel, *b);
            }
            Op::Compare(_, a, b) if [a, b].iter().all(|v| kernel.tile(**v).elem == Elem::I32) => {
                let sides = [self.nodes.of(kernel, *a), self.nodes.of(kernel, *b)];
                // What is computed from loaded elements on the other side changes nothing of this one.
                for side in sides {
                    if self.nodes.is_form(side) {
                        self.watch_exact(side, kernel.ops[id].span);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether there are sizes and scalars for which index arithmetic needs more than 32 bits.
    pub fn may_be_wide(&self) -> bool {
        let mut known = vec![Known::default(); self.nodes.len()];
        let size = |s: &SizeExpr| s.eval(|id| self.consts[id.index()]);
        self.nodes.evaluate(&mut known, |leaf| node::in_any_call(leaf, &size));
        !self.is_narrow(&known)
    }

    /// Checks the sizes and scalars of a call, and says which width its index arithmetic needs.
    ///
    /// # Errors
    /// The first [`Fault`] that is found.
    pub fn check(&self, call: Values<'_>) -> Result<Width, Fault> {
        let size = |s: &SizeExpr| s.eval(|id| call.sizes.get(id.index()).copied());
        for (expr, text) in &self.sizes {
            let value = size(expr);
            let (terms, constant, _) = expr.parts();
            let sum = terms.iter().fold(constant.unsigned_abs(), |sum, (id, c)| {
                sum.saturating_add(call.sizes[id.index()].unsigned_abs().saturating_mul(c.unsigned_abs()))
            });
            if value.is_none_or(|v| !(0..=MAX_SIZE).contains(&v)) || sum > MAX_SIZE.unsigned_abs() {
                return Err(Fault::Size { text: text.clone(), value });
            }
        }
        let mut programs: i64 = 1;
        for (extent, each) in &self.grid {
            match size(extent).expect("checked above") {
                0 => return Ok(Width::Narrow),
                // How many tiles there are depends on the schedule.
                _ if !each => {}
                count => programs = programs.saturating_mul(count),
            }
        }
        if programs > MAX_SIZE {
            return Err(Fault::Programs);
        }
        const ON_STACK: usize = 48;
        let mut on_stack = [Known::default(); ON_STACK];
        let mut allocated = Vec::new();
        let known = match self.nodes.len() {
            n @ 0..=ON_STACK => &mut on_stack[..n],
            n => {
                allocated.resize(n, Known::default());
                &mut allocated[..]
            }
        };
        self.nodes.evaluate(known, |leaf| node::in_call(leaf, &call));
        self.check_values(&call, known)?;
        Ok(if self.is_narrow(known) { Width::Narrow } else { Width::Wide })
    }

    fn check_values(&self, call: &Values<'_>, known: &[Known]) -> Result<(), Fault> {
        let text = |node: usize| self.nodes.text(node);
        for &Watched { node, span } in &self.divisors {
            let decided = self.decide(call, known, node, &|x| !x.contains(0), &|x| x == 0);
            decided.map_err(|at| match at {
                Some(_) => Fault::Division { text: text(node), span },
                None => Fault::Undecided { text: text(node), span },
            })?;
        }
        for (bits, watched) in [(64, &self.indices), (32, &self.exact)] {
            let limits = if bits == 64 { Interval::I64 } else { Interval::I32 };
            for &Watched { node, span } in watched {
                let decided = self.decide(call, known, node, &|x| x.is_within(limits), &|x| !limits.contains(x));
                decided.map_err(|at| match at {
                    Some(_) => Fault::Overflow { text: text(node), bits, span },
                    None => Fault::Undecided { text: text(node), span },
                })?;
            }
        }
        for access in &self.accesses {
            self.check_access(call, known, access)?;
        }
        Ok(())
    }

    fn check_access(&self, call: &Values<'_>, known: &[Known], access: &Access) -> Result<(), Fault> {
        let size = |s: &SizeExpr| s.eval(|id| call.sizes.get(id.index()).copied());
        let &Access { tensor, dimension, span, .. } = access;
        // A shape is checked where it is solved for sizes.
        let Some(extent) = size(&access.extent) else { return Ok(()) };
        let outside = |text: String, value: i64| Fault::Outside { tensor, dimension, text, value, extent, span };
        match &access.place {
            Place::Range(start, len) => match (size(start), size(len)) {
                (Some(start), Some(len)) if start < 0 => Err(outside(format!("{start} .. {}", start + len), start)),
                (Some(start), Some(len)) if start + len > extent => {
                    Err(outside(format!("{start} .. {}", start + len), start + len - 1))
                }
                _ => Ok(()),
            },
            Place::Index(node) => {
                let inside = Interval::new(0, i128::from(extent) - 1);
                let decided = self.decide(call, known, *node, &|x| x.is_within(inside), &|x| !inside.contains(x));
                decided.map_err(|at| match at {
                    Some(value) => outside(self.nodes.text(*node), i64::try_from(value).unwrap_or(i64::MAX)),
                    None => Fault::Undecided { text: self.nodes.text(*node), span },
                })
            }
        }
    }

    /// Decides whether a value is as it should be for all program ids, loop indices and positions that it depends on:
    /// `proves` an interval of it, and `fails` at one value of it. An error has a value that fails, if one was found.
    /// What depends on loaded elements, or on a loop that has no iterations, is left alone.
    fn decide(
        &self,
        call: &Values<'_>,
        known: &[Known],
        node: usize,
        proves: &dyn Fn(Interval) -> bool,
        fails: &dyn Fn(i128) -> bool,
    ) -> Result<(), Option<i128>> {
        let value = known[node].range;
        if value.is_unknown() || value.is_empty() || proves(value) {
            return Ok(());
        }
        self.bisect(call, known, node, proves, fails)
    }

    fn bisect(
        &self,
        call: &Values<'_>,
        known: &[Known],
        node: usize,
        proves: &dyn Fn(Interval) -> bool,
        fails: &dyn Fn(i128) -> bool,
    ) -> Result<(), Option<i128>> {
        let below = self.nodes.below(node);
        let leaves: Vec<usize> = below.iter().copied().filter(|&n| self.nodes[n].varies()).collect();
        let mut scratch = known.to_vec();
        let mut of = |ranges: &[Interval]| {
            let at = |leaf: usize| leaves.iter().position(|&l| l == leaf).map(|place| ranges[place]);
            self.nodes.evaluate_some(&below, &mut scratch, |n, leaf| at(n).unwrap_or_else(|| node::in_call(leaf, call)));
            scratch[node].range
        };
        let mut open: Vec<Vec<Interval>> = vec![leaves.iter().map(|&l| known[l].range).collect()];
        for _ in 0..MAX_STEPS {
            let Some(ranges) = open.pop() else { return Ok(()) };
            if proves(of(&ranges)) {
                continue;
            }
            for end in 0..2 {
                let corner = ranges.iter().filter_map(|r| r.ends().map(|ends| Interval::new(ends[end], ends[end])));
                let corner: Vec<Interval> = corner.collect();
                if let Some([at, _]) = of(&corner).ends().filter(|[at, _]| fails(*at)) {
                    return Err(Some(at));
                }
            }
            // At one point the interval is exact, and it does not fail there.
            let divisible = (0..ranges.len()).filter(|&n| ranges[n].len() > 1);
            let Some(widest) = divisible.max_by_key(|&n| ranges[n].len()) else { continue };
            for half in ranges[widest].halves() {
                let mut part = ranges.clone();
                part[widest] = half;
                open.push(part);
            }
        }
        Err(None)
    }

    /// Whether indices, what loop bounds are made of, and sums of positions stay within 32 bits.
    fn is_narrow(&self, known: &[Known]) -> bool {
        let narrow = |w: &Watched| match known[w.node].range {
            Interval::Empty => true,
            // An index that is loaded is an i32, and what is computed from it is not known.
            Interval::Unknown => matches!(self.nodes[w.node], Node::Widened(_)),
            range => range.is_within(Interval::I32),
        };
        self.indices.iter().all(narrow)
            && self.comparisons.iter().all(|sides| {
                // Bounds add the terms of both sides in any order, multiplied by the divisors.
                let total = sides.iter().fold(2i128, |sum, &s| sum.saturating_add(known[s].magnitude));
                let divisors = sides.iter().fold(1i128, |all, &s| all.saturating_mul(known[s].divisors.max(1)));
                total.saturating_mul(divisors).saturating_add(1 << 20) < 1 << 31
            })
    }
}

/// Whether a coordinate walks a dimension of this extent.
fn walks(kernel: &Kernel, coordinate: ValueId, extent: &SizeExpr) -> bool {
    matches!(kernel.ty(coordinate), Type::Coord(axis) if kernel.axes[*axis].extent == *extent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;
    use crate::syntax;

    fn kernel(text: &str) -> Kernel {
        let source = SourceText { name: "kernel".into(), text: text.into(), first_line: 1 };
        syntax::parse(&source).expect("well formed").remove(0)
    }

    /// What is found of a call with these sizes, in the order of the text, and this scalar.
    fn found(text: &str, sizes: &[i64], scalar: i32) -> Result<Width, Fault> {
        let kernel = kernel(text);
        let binding = Binding::new(&kernel, Elem::F32, [("D", 16)]);
        let mut sizes = sizes.iter();
        let all = kernel.sizes.values().map(|s| match s.kind {
            SizeKind::Const => binding.consts[&s.name],
            SizeKind::Runtime => *sizes.next().expect("a value for each size"),
        });
        let all: Vec<i64> = all.collect();
        Reach::new(&kernel, &binding).check(Values { sizes: &all, scalar: &|_| scalar })
    }

    /// The parameter `w`, if the text has it.
    fn scalar(text: &str) -> &'static str {
        if text.contains('w') { "w: i32," } else { "" }
    }

    fn indexed(index: &str) -> String {
        let w = scalar(index);
        format!(
            "pub fn f(x: &Tensor<f32, (H, N)>, y: &Tensor<f32, (G, N)>, {w} o: &mut Tensor<f32, (H, N)>) {{
                let (h, i) = program(H, tiles(N));
                store(o, [h, i], load(x, [h, i]) + load(y, [{index}, i]));
            }}"
        )
    }

    fn masked(keep: &str) -> String {
        let w = scalar(keep);
        format!(
            "pub fn f<const D: usize>(x: &Tensor<f32, (M, D)>, y: &Tensor<f32, (N, D)>, {w} o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let q = load(x, [i, ..]);
                let mut m = full(i, -INF);
                for j in tiles(N) {{ m = max(m, rowmax(mask(dot(q, load(y, [j, ..]).t()), {keep}))); }}
                store(o, [i], m);
            }}"
        )
    }

    fn outside(found: Result<Width, Fault>) -> Option<(i64, i64)> {
        match found {
            Err(Fault::Outside { value, extent, .. }) => Some((value, extent)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_product_needs_64_bits_from_46341_heads_on() {
        let text = indexed("h * G / H");
        let of = |heads| found(&text, &[heads, 8, heads], 0);
        // 46340 * 46341 is the first product beyond 2^31.
        assert_eq!([of(46_340), of(46_341), of(46_342)], [Ok(Width::Narrow), Ok(Width::Narrow), Ok(Width::Wide)]);
        assert_eq!(of(MAX_SIZE), Ok(Width::Wide));
        assert!(Reach::new(&kernel(&text), &Binding::default()).may_be_wide());
        assert!(!Reach::new(&kernel(&indexed("0")), &Binding::default()).may_be_wide());
        let cubes = indexed("h * H * H / H / H * G / H");
        assert!(matches!(found(&cubes, &[MAX_SIZE, 8, 1], 0), Err(Fault::Overflow { bits: 64, .. })));
    }

    #[test]
    fn an_index_outside_of_its_dimension_is_found_and_only_that() {
        let of = |index: &str, heads, groups| found(&indexed(index), &[heads, 8, groups], 0);
        assert_eq!(outside(of("h * G / H", 4, 0)), Some((0, 0)));
        assert_eq!(of("h * G / H", 0, 0), Ok(Width::Narrow), "no program reads anything");
        assert_eq!(of("h * G / H", 7, 3), Ok(Width::Narrow));
        assert_eq!(outside(of("h + 1", 4, 4)), Some((4, 4)));
        assert_eq!(outside(of("h - 1", 4, 4)), Some((-1, 4)));
        // The interval of this is -1 ..= 9, its values are 0, 2, .. 8.
        assert_eq!(of("h - h % 2", 10, 9), Ok(Width::Narrow));
        assert_eq!(outside(of("h - h % 2", 10, 8)), Some((8, 8)));
        let large = 1 << 20;
        assert_eq!(of("h - h % 2", large, large - 1), Ok(Width::Narrow));
        assert_eq!(outside(of("h - h % 2", large, large - 2)), Some((large - 2, large - 2)));
    }

    #[test]
    fn scalars_are_indices_too() {
        let of = |index: &str, w| found(&indexed(index), &[4, 8, 4], w);
        assert_eq!(of("h / w", 2), Ok(Width::Narrow));
        assert!(matches!(of("h / w", 0), Err(Fault::Division { text, .. }) if text == "w"));
        assert_eq!(outside(of("w", 4)), Some((4, 4)));
        assert_eq!(outside(of("h / w", -1)), Some((-3, 4)));
        // A scalar is an i32, and so is a product with it.
        assert!(matches!(of("h * w / w", i32::MAX), Err(Fault::Overflow { bits: 32, text, .. }) if text == "h * w"));
    }

    #[test]
    fn sizes_are_whole_and_fit() {
        let size = |n: i64| match found(&indexed("h"), &[1, n, 1], 0) {
            Err(Fault::Size { value, .. }) => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&indexed("h"), &[1, MAX_SIZE, 1], 0), Ok(Width::Narrow));
        assert_eq!([size(MAX_SIZE + 1), size(-1)], [Some(MAX_SIZE + 1), Some(-1)]);
        assert_eq!(found(&indexed("h"), &[MAX_SIZE, 1, MAX_SIZE], 0), Ok(Width::Narrow));
        let programs = "pub fn f(x: &Tensor<f32, (A, B)>, o: &mut Tensor<f32, (A, B)>) {
            let (a, b) = program(A, B);
            store(o, [a, b], load(x, [a, b]));
        }";
        assert_eq!(found(programs, &[1 << 15, 1 << 15], 0), Ok(Width::Narrow));
        assert_eq!(found(programs, &[1 << 16, 1 << 15], 0), Err(Fault::Programs));
    }

    #[test]
    fn what_a_mask_compares_stays_in_its_32_bits_or_is_a_fault() {
        let of = |keep: &str, m, n, w| found(&masked(keep), &[m, n], w);
        let causal = "pos(i) + N - M >= pos(j)";
        assert_eq!(of(causal, 1 << 20, 1 << 20, 0), Ok(Width::Narrow));
        assert_eq!(of(causal, 1, 1 << 30, 0), Ok(Width::Wide), "bounds add N and the extent of j");
        assert!(matches!(of(causal, MAX_SIZE, MAX_SIZE, 0), Err(Fault::Overflow { bits: 32, text, .. }) if text == "pos(i) + N"));
        let window = "pos(j) > pos(i) - w";
        assert_eq!(of(window, 64, 64, 16), Ok(Width::Narrow));
        assert_eq!(of(window, 64, 64, i32::MAX), Ok(Width::Wide));
        assert!(matches!(of("pos(j) < pos(i) + w", 64, 64, i32::MAX), Err(Fault::Overflow { bits: 32, .. })));
        assert_eq!(of("pos(i) / 64 == pos(j) / 64", 1 << 20, 1 << 20, 0), Ok(Width::Narrow));
        // What is loaded on the other side changes nothing of this one, and what hides is a mask.
        let loaded = |hidden: &str| {
            let text = masked("pos(j) <= w").replace("mask(dot(q, load(y, [j, ..]).t()), pos(j) <= w)", hidden);
            match hidden.contains("load(z") {
                true => text.replace("x: &Tensor<f32, (M, D)>,", "x: &Tensor<f32, (M, D)>, z: &Tensor<i32, (M)>,"),
                false => text,
            }
        };
        for hidden in [
            "mask(dot(q, load(y, [j, ..]).t()), pos(j) + w > pos(i) + load(z, [i]))",
            "select(pos(j) + w > pos(i), dot(q, load(y, [j, ..]).t()), -INF)",
            "dot(q, load(y, [j, ..]).t()) + select(pos(j) + w > pos(i), 0.0, -INF)",
        ] {
            let of = |w| found(&loaded(hidden), &[64, 64], w);
            assert_eq!(of(16), Ok(Width::Narrow));
            assert!(matches!(of(i32::MAX), Err(Fault::Overflow { bits: 32, text, .. }) if text == "pos(j) + w"), "{hidden}");
        }
        // A product of positions is nothing that bounds are derived from: it wraps as its type says.
        assert_eq!(of("pos(i) * pos(j) > 0", 1 << 20, 1 << 20, 0), Ok(Width::Wide));
    }

    #[test]
    fn bits_of_indices_are_known_one_by_one() {
        let of = |index: &str, heads, groups| found(&indexed(index), &[heads, 8, groups], 0);
        assert_eq!(of("h & 3", 8, 4), Ok(Width::Narrow));
        assert_eq!(outside(of("h & 3", 4, 3)), Some((3, 3)));
        assert_eq!(of("h & 3", 2, 2), Ok(Width::Narrow), "3 is not reached");
        // 12, 16, .. 28 divide, and 0 does not.
        assert_eq!(of("h / ((h | 3) ^ 31)", 17, 2), Ok(Width::Narrow));
        assert!(matches!(of("h / ((h | 3) ^ 31)", 40, 2), Err(Fault::Division { .. })));
    }

    #[test]
    fn what_chooses_a_number_is_a_mask() {
        let text = masked("pos(j) <= w").replace("mask(dot(q, load(y, [j, ..]).t()), pos(j) <= w)", "KEEP");
        let of = |chosen: &str, w| found(&text.replace("KEEP", chosen), &[64, 64], w);
        let zero = "select(pos(j) + w > pos(i), dot(q, load(y, [j, ..]).t()), 0.0)";
        assert_eq!(of(zero, 16), Ok(Width::Narrow));
        assert!(matches!(of(zero, i32::MAX), Err(Fault::Overflow { bits: 32, text, .. }) if text == "pos(j) + w"));
        let both = "select(pos(j) + w > pos(i), dot(q, load(y, [j, ..]).t()), dot(q, load(y, [j, ..]).t()) * 2.0)";
        assert_eq!(of(both, i32::MAX), Ok(Width::Wide), "no bound comes of it, and it wraps");
    }

    #[test]
    fn integers_that_may_wrap_are_told_from_those_that_never_do() {
        let wraps = |value: &str, w: &str| {
            let text = format!(
                "pub fn f(x: &Tensor<i32, (M)>, b: &Tensor<u8, (M)>, {w} y: &mut Tensor<i32, (M)>) {{
                    let i = program(tiles(M));
                    let (a, c) = (load(x, [i]), load(b, [i]));
                    store(y, [i], {value} + 0 * a * c);
                }}"
            );
            let kernel = kernel(&text);
            let integers = Integers::new(&kernel, &Binding::default());
            let stored = kernel.walk().into_iter().find_map(|(_, id)| match kernel.ops[id].op {
                Op::Store { value, .. } => kernel.def(value).map(|(_, op)| op.operands()[0]),
                _ => None,
            });
            integers.wraps(stored.expect("a sum is stored"), false)
        };
        for never in [
            "(pos(i) - M)",
            "(pos(i) + 7)",
            "((a & 7) * 3)",
            "(a % 5 - 9)",
            "(min(max(a, 0), 9) * 100)",
            "(pos(i) * pos(i) / 1000000 + 5)",
        ] {
            assert!(!wraps(never, ""), "{never}");
        }
        for may in ["(a + 1)", "(-a)", "abs(a)", "(pos(i) * 4)"] {
            assert!(wraps(may, ""), "{may}");
        }
        assert!(wraps("(pos(i) + w)", "w: i32,"));
        // In calls that are found narrow, sums of positions, sizes and scalars stay within 32 bits.
        let sum = "pub fn f(x: &Tensor<i32, (M)>, w: i32, y: &mut Tensor<i32, (M)>) {
            let i = program(tiles(M));
            store(y, [i], (pos(i) + M - w) * load(x, [i]));
        }";
        let with = kernel(sum);
        let integers = Integers::new(&with, &Binding::default());
        let sums: Vec<ValueId> = with
            .ops
            .values()
            .filter(|data| matches!(data.op, Op::Binary(BinaryOp::Add | BinaryOp::Sub, ..)))
            .map(|data| data.results[0])
            .collect();
        assert_eq!(
            sums.iter().map(|&v| [integers.wraps(v, false), integers.wraps(v, true)]).collect::<Vec<_>>(),
            [[true, false]; 2]
        );
        let of = |m, w| found(sum, &[m], w);
        assert_eq!(
            [of(64, 5), of(64, i32::MAX), of(64, i32::MIN), of(1 << 30, 0)].map(|width| width == Ok(Width::Narrow)),
            [true, false, false, false]
        );
        // A launch checks an index, but for one that is loaded.
        let text = |index: &str| {
            format!(
                "pub fn f(x: &Tensor<f32, (H, N)>, n: &Tensor<i32, (H)>, w: i32, o: &mut Tensor<f32, (H, N)>) {{
                    let (h, i) = program(H, tiles(N));
                    store(o, [h, i], load(x, [{index}, i]) + load(n, [h]) + w);
                }}"
            )
        };
        for (index, may) in [("h * w", false), ("load(n, [h]) * 2 + 1", true)] {
            let kernel = kernel(&text(index));
            let integers = Integers::new(&kernel, &Binding::default());
            let products = kernel.ops.values().filter(|data| matches!(data.op, Op::Binary(BinaryOp::Mul, ..)));
            let found: Vec<bool> = products.map(|data| integers.wraps(data.results[0], false)).collect();
            assert_eq!(found, [may], "{index}");
        }
    }
}
