//! Products whose depth is too wide for shared memory, in steps of it.
//!
//! A product reads all columns of both operands, so that a program holds rows of these in shared
//! memory. Rows of 2048 columns, such as those of a model whose loss is computed from its hidden
//! states, leave room for 16 of them. Where both operands are loaded for the product, it may be a
//! sum of products, as in a matmul:
//!
//! ```text
//! let x_i = load(x, [i, ..]);              for j in tiles(V) {
//! for j in tiles(V) {                          let mut s = zeros((i, j));
//!     let s = dot(x_i,                         for depth in tiles(D) {
//!         load(w, [j, ..]).t());                   s += dot(load(x, [i, depth]),
//!     ..                                               load(w, [j, depth]).t());
//! }                                            }
//!                                              ..
//!                                          }
//! ```
//!
//! The left operand is read again for each tile of the right one, from the L2 cache.
//!
//! The new axes are part of the kernel before a schedule is asked for, as those of rows are
//! ([`super::rows`]). The interpreter executes the kernel as written.

use flashtile_dsl::ir::{At, AxisKind, BinaryOp, Binding, Builder, Dim, Elem, Kernel, Op, OpId, SizeExpr, ValueId};

use super::edit;

/// Columns that a product reads at once where the kernel computes no sums of so many columns, such as
/// those of attention. Tiles of 192 by 192 and steps of 64 have room then. `linear_cross_entropy` of
/// 50304 words takes 1.13 of the time in steps at 448 columns, and 0.59 at 512 (H200, 2026-12-01;
/// docs/performance.md, "Kernels of products").
const AT_ONCE: i64 = 448;
/// The same elsewhere: latent attention has 576, and heads of up to 640 columns are multiplied whole.
const AT_ONCE_WITH_SUMS: i64 = 640;

/// The kernel with wide products in steps of their depth, where their operands are loaded for them.
pub(super) fn in_depths(kernel: &Kernel, binding: &Binding) -> Kernel {
    let products: Vec<OpId> =
        kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| matches!(kernel.ops[op].op, Op::Dot { .. })).collect();
    let is_range = |dim: &Dim| matches!(dim, Dim::Range(_));
    let has_sums = products.iter().any(|&op| kernel.tile(kernel.ops[op].results[0]).dims.iter().any(is_range));
    let at_once = if has_sums { AT_ONCE_WITH_SUMS } else { AT_ONCE };
    let is_wide = |op: &OpId| depth(kernel, *op).and_then(|len| binding.size(kernel, len)).is_some_and(|n| n > at_once);
    let wide: Vec<OpId> = products.into_iter().filter(is_wide).collect();
    let walked: Vec<Walked> = wide.into_iter().filter_map(|op| Walked::of(kernel, op)).collect();
    if walked.is_empty() {
        return kernel.clone();
    }
    let mut made = kernel.clone();
    for product in walked {
        made = product.in_steps(made);
    }
    edit::remove_dead(&mut made);
    made.renumbered()
}

/// The dimension that a product sums over, if it is a range.
pub(crate) fn depth(kernel: &Kernel, product: OpId) -> Option<&SizeExpr> {
    let Op::Dot { a, .. } = kernel.ops[product].op else { return None };
    match kernel.tile(a).dims.last() {
        Some(Dim::Range(len)) => Some(len),
        _ => None,
    }
}

/// A product that can be made in steps.
struct Walked {
    product: OpId,
    operands: [Loaded; 2],
    depth: SizeExpr,
}

/// How an operand is loaded.
struct Loaded {
    op: Op,
    is_transposed: bool,
}

impl Walked {
    /// `None` if an operand is computed, or the depth is a part of a dimension.
    fn of(kernel: &Kernel, product: OpId) -> Option<Self> {
        let Op::Dot { a, b, acc: None } = kernel.ops[product].op else { return None };
        let depth = depth(kernel, product)?.clone();
        let of_floats = kernel.tile(kernel.ops[product].results[0]).elem == Elem::F32;
        let operands = [Loaded::of(kernel, a, &depth)?, Loaded::of(kernel, b, &depth)?];
        of_floats.then_some(Self { product, operands, depth })
    }

    /// The kernel with a loop in the product's place.
    fn in_steps(self, kernel: Kernel) -> Kernel {
        let (whole, place) = (kernel.ops[self.product].results[0], edit::places(&kernel)[&self.product]);
        let (dims, name) = (kernel.tile(whole).dims.clone(), kernel.values[whole].name.clone());
        // At the end of the text, from where it is moved to its place.
        let end = kernel.blocks[kernel.body].ops.len();
        let mut b = Builder::at_end_of(kernel);
        b.span = b.kernel.ops[self.product].span;
        let value = b.emit(Op::Constant(Elem::F32, 0.0));
        let zeros = b.emit(Op::Full { value, dims });
        b.kernel.values[zeros].name = name.or_else(|| Some("product".to_owned()));
        let axis = b.axis(edit::free_axis_name(&b.kernel, "depth"), self.depth.clone(), AxisKind::Loop);
        let (coordinate, carried) = b.begin_for(axis, &[zeros]);
        let [left, right] = self.operands.map(|operand| operand.tile(&mut b, coordinate, &self.depth));
        let part = b.emit(Op::Dot { a: left, b: right, acc: None });
        let next = b.emit(Op::Binary(BinaryOp::Add, carried[0], part));
        let sum = b.end_for(axis, vec![zeros], vec![next])[0];
        let mut kernel = b.finish();
        let body = kernel.body;
        let moved = kernel.blocks[body].ops.split_off(end);
        kernel.blocks[place.block].ops.splice(place.index..=place.index, moved);
        edit::replace_uses(&mut kernel, whole, sum, &[]);
        kernel
    }
}

impl Loaded {
    /// How a matrix is loaded that has a whole dimension of this length; `None` if it is computed.
    fn of(kernel: &Kernel, v: ValueId, depth: &SizeExpr) -> Option<Self> {
        let (load, is_transposed) = match kernel.def(v)?.1 {
            Op::Transpose(x) => (kernel.def(*x)?.1, true),
            load => (load, false),
        };
        let Op::Load { tensor, at } = load else { return None };
        let is_depth = |at: &At| matches!(at, At::Range { len, .. } if len == depth);
        let shape = &kernel.tensor(*tensor).shape;
        let mut ranges = at.iter().zip(shape).filter(|(at, _)| is_depth(at));
        let is_whole = |(at, extent): (&At, &SizeExpr)| {
            *extent == *depth && matches!(at, At::Range { start, .. } if *start == SizeExpr::constant(0))
        };
        (ranges.next().is_some_and(is_whole) && ranges.next().is_none()).then(|| Self { op: load.clone(), is_transposed })
    }

    /// A tile of it.
    fn tile(mut self, b: &mut Builder, coordinate: ValueId, depth: &SizeExpr) -> ValueId {
        if let Op::Load { at, .. } = &mut self.op {
            for at in at.iter_mut().filter(|at| matches!(at, At::Range { len, .. } if len == depth)) {
                *at = At::Tile(coordinate);
            }
        }
        let loaded = b.emit(self.op);
        if self.is_transposed { b.emit(Op::Transpose(loaded)) } else { loaded }
    }
}
