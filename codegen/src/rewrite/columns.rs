//! Rows that a program loads whole, in passes over tiles of their columns.
//!
//! A tile lies in the registers of the warps that compute it, so that a row of a constant width,
//! `load(x, [i, ..])`, has room up to a width. A wider one may be walked where nothing but
//! elementwise work and reductions of rows is done with it:
//!
//! ```text
//! let a = load(x, [i, ..]);            let mut n = zeros(i);
//! let n = rowsum(a * a) / D;           for column in tiles(D) {
//! store(y, [i, ..], a * rsqrt(n));         let a = load(x, [i, column]);
//!                                          n += rowsum(a * a);
//!                                      }
//!                                      let n = n / D;
//!                                      for column_ in tiles(D) {
//!                                          let a = load(x, [i, column_]);
//!                                          store(y, [i, column_], a * rsqrt(n));
//!                                      }
//! ```
//!
//! Each reduction is made in a pass behind those that it depends on, and what is as wide as the row
//! is computed anew in each pass that needs it. The first pass reads memory, the others mostly a
//! cache. All stores are made in the last pass: an output that is the input's memory is read before
//! it is written, as in the text.
//!
//! The new axes are part of the kernel before a schedule is asked for, as those of rows are
//! ([`super::rows`]). The interpreter executes the kernel as written.

use std::collections::{HashMap, HashSet};

use flashtile_dsl::ir::{
    At, AxisId, AxisKind, BinaryOp, Binding, BlockId, Builder, Dim, Elem, Fill, Kernel, Op, OpId, ReduceOp, SizeExpr, Type,
    ValueId,
};

use super::edit;

/// Columns of a row that stay in registers: two such values of 16 rows take half of a warp's.
const HELD: i64 = 128;
/// Columns of all values of a row that are needed at once, where four groups of warps share them:
/// of 16 rows they take 160 registers of each lane.
const HELD_AT_ONCE: i64 = 1280;
/// Four groups of warps have so many columns, or a multiple of it.
const SHARED_BY_FOUR: i64 = 64;

/// The kernel with wide rows walked in passes, where nothing speaks against it. A kernel that has
/// none, or does more with them, stays as it is.
pub fn in_passes(kernel: &Kernel, binding: &Binding) -> Kernel {
    let mut made = kernel.clone();
    let mut tried: HashSet<SizeExpr> = HashSet::new();
    while let Some(width) = wide(&made, binding).into_iter().find(|width| tried.insert(width.clone())) {
        if let Some(passes) = Passes::of(&made, &width) {
            made = passes.walked();
        }
    }
    made
}

/// Why rows that are too wide for registers are not walked, and what to write for them, where the
/// only reason is that they are parts of a dimension.
pub fn why_not_in_passes(kernel: &Kernel, binding: &Binding) -> Option<String> {
    let of_parts = |width: &SizeExpr| {
        let mut passes = Passes { kernel, width, before: HashMap::new(), wide: Vec::new(), last: 0, parts: false };
        if passes.stopped() {
            passes.parts = true;
            return !passes.stopped();
        }
        false
    };
    let width = wide(kernel, binding).into_iter().find(of_parts)?;
    Some(format!(
        "rows of {} columns are too wide for registers; they are walked where they are a whole dimension of a tensor, and here \
         they are a part of one: split the dimension in the text, as `(M, 2, D)` for `(M, 2 * D)`, and load `[i, 0, ..]`, \
         `[i, 1, ..]`; the memory is the same",
        kernel.size_text(&width)
    ))
}

/// The widths of rows beyond [`HELD`] or [`HELD_AT_ONCE`], each once, in order.
fn wide(kernel: &Kernel, binding: &Binding) -> Vec<SizeExpr> {
    let mut widths: Vec<&SizeExpr> = Vec::new();
    for (_, id) in kernel.walk() {
        for &v in &kernel.ops[id].results {
            let Type::Tile(tile) = kernel.ty(v) else { continue };
            for dim in &tile.dims {
                if let Dim::Range(width) = dim
                    && !widths.contains(&width)
                {
                    widths.push(width);
                }
            }
        }
    }
    widths.retain(|width| {
        binding.size(kernel, width).is_some_and(|columns| {
            let shared = (columns + SHARED_BY_FOUR - 1) / SHARED_BY_FOUR * SHARED_BY_FOUR;
            columns > HELD || shared * needed_at_once(kernel, width) > HELD_AT_ONCE
        })
    });
    widths.into_iter().cloned().collect()
}

/// How many matrices of this width are needed at once at most, by the order of the text.
fn needed_at_once(kernel: &Kernel, width: &SizeExpr) -> i64 {
    let ops = &kernel.blocks[kernel.body].ops;
    let is_wide = |v: ValueId| match kernel.ty(v) {
        Type::Tile(tile) => tile.rank() == 2 && tile.dims.iter().any(|dim| matches!(dim, Dim::Range(len) if len == width)),
        _ => false,
    };
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    for (n, &id) in ops.iter().enumerate() {
        last.extend(kernel.ops[id].op.operands().into_iter().filter(|&v| is_wide(v)).map(|v| (v, n)));
    }
    let mut ends = vec![0; ops.len()];
    last.values().for_each(|&n| ends[n] += 1);
    let (mut now, mut most) = (0, 0);
    for (n, &id) in ops.iter().enumerate() {
        now += kernel.ops[id].results.iter().filter(|v| last.contains_key(v)).count();
        most = most.max(now);
        now -= ends[n];
    }
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// The body of a loop.
fn body_of(op: &Op) -> Option<BlockId> {
    match op {
        Op::For { body, .. } => Some(*body),
        _ => None,
    }
}

/// In which pass everything of a kernel is computed.
struct Passes<'a> {
    kernel: &'a Kernel,
    width: &'a SizeExpr,
    /// For each value, how many passes are made before it: those of the reductions that it depends
    /// on.
    before: HashMap<ValueId, usize>,
    /// Ops of the body that are as wide as the rows, reductions and stores of them included.
    wide: Vec<OpId>,
    /// The last pass.
    last: usize,
    /// Whether parts of a dimension count as whole ones.
    parts: bool,
}

impl<'a> Passes<'a> {
    /// `None` if something is done with rows of this width that passes cannot do.
    fn of(kernel: &'a Kernel, width: &'a SizeExpr) -> Option<Self> {
        let mut passes = Self { kernel, width, before: HashMap::new(), wide: Vec::new(), last: 0, parts: false };
        if passes.stopped() {
            return None;
        }
        passes.count();
        (!passes.wide.is_empty()).then_some(passes)
    }

    /// Collects what is as wide as the rows; true if passes cannot do something of it.
    fn stopped(&mut self) -> bool {
        self.wide.clear();
        for (block, id) in self.kernel.walk() {
            let data = &self.kernel.ops[id];
            if !self.touches(&data.op, &data.results) {
                continue;
            }
            // A loop goes on as it is, if it has nothing to do with the rows.
            if block != self.kernel.body || !self.can_walk(&data.op) {
                return true;
            }
            self.wide.push(id);
        }
        false
    }

    /// Whether an op has to do with rows.
    fn touches(&self, op: &Op, results: &[ValueId]) -> bool {
        op.operands().iter().chain(results).any(|&v| self.is_wide(v)) || self.addresses(op)
    }

    fn is_wide(&self, v: ValueId) -> bool {
        match self.kernel.ty(v) {
            Type::Tile(tile) => tile.dims.iter().any(|dim| self.is_width(dim)),
            _ => false,
        }
    }

    fn is_width(&self, dim: &Dim) -> bool {
        matches!(dim, Dim::Range(width) if width == self.width)
    }

    /// Whether a load or store addresses a row.
    fn addresses(&self, op: &Op) -> bool {
        let (Op::Load { at, .. } | Op::Store { at, .. }) = op else { return false };
        at.iter().any(|at| matches!(at, At::Range { len, .. } if len == self.width))
    }

    /// Whether tiles of columns can be computed one by one: elementwise, or by a reduction of rows,
    /// from whole dimensions of tensors.
    fn can_walk(&self, op: &Op) -> bool {
        let lies = |v: ValueId| match self.kernel.ty(v) {
            Type::Tile(tile) => match &tile.dims[..] {
                [columns] => self.is_width(columns),
                [Dim::Axis(_), columns] => self.is_width(columns),
                _ => false,
            },
            _ => false,
        };
        let wide_ones_lie = op.operands().into_iter().filter(|&v| self.is_wide(v)).all(lies);
        let whole = |at: &[At], shape: &[SizeExpr]| {
            let is_whole = |(at, extent): (&At, &SizeExpr)| match at {
                At::Range { start, len } => {
                    len == self.width && (self.parts || (extent == self.width && *start == SizeExpr::constant(0)))
                }
                _ => true,
            };
            let ranges = at.iter().filter(|at| matches!(at, At::Range { .. })).count();
            // An index may stand behind the columns, which then lie apart.
            let last = at.iter().rfind(|at| !matches!(at, At::Index(_)));
            ranges == 1 && matches!(last, Some(At::Range { .. })) && at.iter().zip(shape).all(is_whole)
        };
        wide_ones_lie
            && match op {
                Op::Load { tensor, at } | Op::Store { tensor, at, .. } => whole(at, &self.kernel.tensor(*tensor).shape),
                Op::Full { dims, .. } => matches!(&dims[..], [columns] | [Dim::Axis(_), columns] if self.is_width(columns)),
                Op::Reduce(_, x) => self.kernel.tile(*x).rank() == 2,
                op => op.is_elementwise(),
            }
    }

    /// Counts the passes before each value, and all passes.
    fn count(&mut self) {
        for (_, id) in self.kernel.walk() {
            let data = &self.kernel.ops[id];
            let (before, reduced) = (self.before_op(id), self.is_reduction(id));
            if self.wide.contains(&id) && (reduced || data.results.is_empty()) {
                self.last = self.last.max(before);
            }
            self.before.extend(data.results.iter().map(|&v| (v, before + usize::from(reduced))));
        }
    }

    fn is_reduction(&self, op: OpId) -> bool {
        matches!(self.kernel.ops[op].op, Op::Reduce(_, x) if self.is_wide(x))
    }

    /// Passes before what an op reads, and a loop its body.
    fn before_op(&self, op: OpId) -> usize {
        let op = &self.kernel.ops[op].op;
        let operands = op.operands().into_iter().filter_map(|v| self.before.get(&v).copied());
        let inside = body_of(op).into_iter().flat_map(|body| &self.kernel.blocks[body].ops).map(|&op| self.before_op(op));
        operands.chain(inside).max().unwrap_or(0)
    }

    /// The kernel in passes.
    fn walked(&self) -> Kernel {
        let original = self.kernel;
        let body = original.body;
        let mut kernel = original.clone();
        kernel.blocks[body].ops.clear();
        let mut b = Builder::at_end_of(kernel);
        let ops = &original.blocks[body].ops;
        let mut made: Vec<(ValueId, ValueId)> = Vec::new();
        for pass in 0..=self.last + 1 {
            let narrow = ops.iter().copied().filter(|op| !self.wide.contains(op) && self.before_op(*op) == pass);
            b.kernel.blocks[body].ops.extend(narrow);
            if pass > self.last {
                break;
            }
            let reduced: Vec<OpId> =
                self.wide.iter().copied().filter(|&op| self.is_reduction(op) && self.before_op(op) == pass).collect();
            let is_store = |op: &OpId| original.ops[*op].results.is_empty();
            let stored: Vec<OpId> = self.wide.iter().copied().filter(|op| pass == self.last && is_store(op)).collect();
            if !reduced.is_empty() || !stored.is_empty() {
                made.extend(self.pass(&mut b, &reduced, &stored));
            }
        }
        let mut kernel = b.finish();
        for (old, new) in made {
            edit::replace_uses(&mut kernel, old, new, &[]);
        }
        kernel.renumbered()
    }

    /// A loop over tiles of columns that makes these reductions and stores; gives for each
    /// reduction what takes its place.
    fn pass(&self, b: &mut Builder, reduced: &[OpId], stored: &[OpId]) -> Vec<(ValueId, ValueId)> {
        let original = self.kernel;
        let result = |op: &OpId| original.ops[*op].results[0];
        let mut init = Vec::new();
        for op in reduced {
            let Op::Reduce(by, _) = original.ops[*op].op else { unreachable!("a reduction") };
            b.span = original.ops[*op].span;
            let value = b.emit(Op::Constant(Elem::F32, Fill::neutral(by).value()));
            let full = b.emit(Op::Full { value, dims: original.tile(result(op)).dims.clone() });
            // What a loop carries has a name, as in a text.
            let word = if by == ReduceOp::Max { "most" } else { "total" };
            let name = original.values[result(op)].name.clone().unwrap_or_else(|| format!("{word}_{}", init.len()));
            b.name(full, name);
            init.push(full);
        }
        let axis = b.axis(edit::free_axis_name(&b.kernel, "column"), self.width.clone(), AxisKind::Loop);
        let (coordinate, carried) = b.begin_for(axis, &init);
        let mut own: HashMap<ValueId, ValueId> = HashMap::new();
        let needed = self.needed(reduced.iter().chain(stored));
        let mut next = Vec::new();
        for &id in self.wide.iter().filter(|op| needed.contains(op)) {
            let data = &original.ops[id];
            b.span = data.span;
            let mut op = data.op.map_operands(|v| own.get(&v).copied().unwrap_or(v));
            self.narrow(&mut op, axis, coordinate);
            if let Some(number) = reduced.iter().position(|other| *other == id) {
                let Op::Reduce(by, _) = op else { unreachable!("a reduction") };
                let part = b.emit(op);
                let join = if by == ReduceOp::Max { BinaryOp::Max } else { BinaryOp::Add };
                next.push((number, b.emit(Op::Binary(join, carried[number], part))));
                continue;
            }
            let (_, results) = b.append(op);
            for (&old, new) in data.results.iter().zip(results) {
                b.kernel.values[new].name.clone_from(&original.values[old].name);
                own.insert(old, new);
            }
        }
        next.sort_by_key(|(number, _)| *number);
        let made = b.end_for(axis, init, next.into_iter().map(|(_, value)| value).collect());
        reduced.iter().map(result).zip(made).collect()
    }

    /// The wide ops that these need, and these.
    fn needed<'b>(&self, roots: impl Iterator<Item = &'b OpId>) -> HashSet<OpId> {
        let mut found: HashSet<OpId> = HashSet::new();
        let mut waiting: Vec<OpId> = roots.copied().collect();
        while let Some(op) = waiting.pop() {
            if found.insert(op) {
                let operands = self.kernel.ops[op].op.operands();
                let wide = operands.into_iter().filter(|&v| self.is_wide(v));
                waiting.extend(wide.filter_map(|v| self.kernel.def(v).map(|(op, _)| op)));
            }
        }
        found
    }

    /// An op on rows as one on a tile of their columns.
    fn narrow(&self, op: &mut Op, axis: AxisId, coordinate: ValueId) {
        match op {
            Op::Load { at, .. } | Op::Store { at, .. } => {
                for at in at.iter_mut().filter(|at| matches!(at, At::Range { .. })) {
                    *at = At::Tile(coordinate);
                }
            }
            Op::Full { dims, .. } => {
                for dim in dims.iter_mut().filter(|dim| self.is_width(dim)) {
                    *dim = Dim::Axis(axis);
                }
            }
            _ => {}
        }
    }
}
