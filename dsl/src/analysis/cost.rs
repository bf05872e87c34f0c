//! What a kernel costs for given sizes: arithmetic, special functions and memory traffic, and the roofline they give.
//!
//! Each is counted twice. The *algorithm's* count is what the kernel text asks for, whatever the schedule: elements that a mask
//! hides do not count, every output is written once, and of every input what is loaded is read once: no more than all of it, and
//! of a pool of pages as many as are walked. The *schedule's* count is what given blocks execute: whole tiles of every trip, every
//! load of every program.
//!
//! TFLOP/s are reported by [`Cost::nominal_flops`]: the FLOPs of the dots times the fraction that the masks keep, where an
//! element on the boundary of a comparison counts half. For causal attention with M = N it is `4 B H M N D / 2` exactly, the
//! convention of the field; without a mask it is `4 B H M N D`.
//!
//! Counts are closed forms: their time does not grow with the sizes ([`super::visible`], `sum`). Those that are too large for
//! their type are its largest number.
//!
//! The algorithm's count is of kernels of the text. The schedule's is of the kernels of launches too, with all programs: a loop that
//! walks a part of its tiles walks all of them in as many programs as there are parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use super::index::index_reads;
use super::mask::{LoopRuns, MaskOptions, loop_runs};
use super::predicate::Boundary;
use super::sum::{Counts, Leaf, band, common_period, sum};
use super::visible::{Evaluator, Point, Visible, leaves, program_values, visible};
use crate::ir::{
    AxisId, AxisKind, Binding, BlockId, Dim, Elem, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, SizeExpr, SizeId, SizeKind,
    ValueId,
};

/// Sizes, element types and blocks that a cost is for.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Its element types and const sizes.
    pub binding: &'a Binding,
    /// Its run-time sizes and integer scalar parameters by name.
    pub sizes: &'a BTreeMap<String, i64>,
}

/// Peak rates of a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Matrix FLOP/s of the element type.
    pub flops: f64,
    /// Bytes/s of global memory.
    pub bytes_per_s: f64,
    /// Special functions (exponentials, logarithms, roots, divisions and the like) per second.
    pub special_per_s: f64,
}

/// Work of one kind of count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// FLOPs of matrix products: 2 per multiply-add.
    pub flops: u64,
    /// Special functions: exponentials, logarithms, roots, divisions and the like.
    pub special: u64,
    /// Bytes read from global memory.
    pub read: u64,
    /// Bytes written to global memory.
    pub written: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.flops = self.flops.saturating_add(other.flops);
        self.special = self.special.saturating_add(other.special);
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
    }
}

/// What bounds the time of some work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Matrix products.
    Flops,
    /// Global memory.
    Memory,
    /// Special functions.
    Special,
}

impl Work {
    /// The least time in seconds in which the machine can do it, and what limits it.
    pub fn roofline(&self, machine: &Machine) -> (f64, Limit) {
        let times = [
            (self.flops as f64 / machine.flops, Limit::Flops),
            (self.read.saturating_add(self.written) as f64 / machine.bytes_per_s, Limit::Memory),
            (self.special as f64 / machine.special_per_s, Limit::Special),
        ];
        times.into_iter().fold((0.0, Limit::Flops), |best, t| if t.0 > best.0 { t } else { best })
    }
}

/// The cost of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// What the text asks for.
    pub algorithm: Work,
    /// Whether the counts of the algorithm are exact; else (masks over loaded data) they are upper bounds.
    pub exact: bool,
    /// FLOPs by which TFLOP/s are reported.
    pub nominal_flops: u64,
    /// Bytes that are read at least: of what masks hide from rows, as if all rows saw the same.
    pub least_read: u64,
}

impl Workload<'_> {
    fn size_of(&self, id: SizeId) -> i64 {
        let size = &self.kernel.sizes[id];
        let table = match size.kind {
            SizeKind::Const => &self.binding.consts,
            SizeKind::Runtime => self.sizes,
        };
        table.get(&size.name).copied().unwrap_or(0)
    }

    fn param(&self, id: ParamId) -> i64 {
        self.sizes.get(&self.kernel.params[id].name).copied().unwrap_or(0)
    }

    /// Names of sizes and integer scalar parameters that the kernel has and the workload lacks; their value would be 0.
    pub fn missing(&self) -> Vec<String> {
        let known = |s: &crate::ir::Size| match s.kind {
            SizeKind::Const => self.binding.consts.contains_key(&s.name),
            SizeKind::Runtime => self.sizes.contains_key(&s.name),
        };
        let integer = |p: &&crate::ir::Param| p.kind == ParamKind::Scalar(Elem::I32) && !self.sizes.contains_key(&p.name);
        let sizes = self.kernel.sizes.values().filter(|s| !known(s)).map(|s| s.name.clone());
        sizes.chain(self.kernel.params.values().filter(integer).map(|p| p.name.clone())).collect()
    }

    /// The cost of the algorithm.
    pub fn cost(&self) -> Cost {
        let size = |s| self.size_of(s);
        let param = |p| self.param(p);
        let eval = Evaluator { kernel: self.kernel, size: &size, param: &param };
        let mut counter = Algorithm {
            load: self,
            eval,
            around: Vec::new(),
            masks: Vec::new(),
            read: BTreeMap::new(),
            cost: Work::default(),
            nominal: 0,
            exact: true,
        };
        counter.block(self.kernel.body);
        let (mut work, mut least_read, kernel) = (counter.cost, 0u64, self.kernel);
        for (id, param) in kernel.params.iter() {
            let ParamKind::Tensor(t) = &param.kind else { continue };
            let loaded = counter.read.get(&id).copied();
            if loaded.is_none() && !kernel.walk().iter().any(|&(_, op)| kernel.ops[op].op.written() == Some(id)) {
                continue;
            }
            let all = product(t.shape.iter().map(|s| counter.eval.size(s).max(0) as u64));
            let each = self.binding.elem(kernel, t.elem).bytes().unwrap_or(0) as u64;
            if t.direction.is_read() {
                let elements = loaded.unwrap_or(Loaded { most: all, least: all });
                work.read = work.read.saturating_add(elements.most.min(all).saturating_mul(each));
                least_read = least_read.saturating_add(elements.least.saturating_mul(each));
            }
            if t.direction.is_written() {
                work.written = work.written.saturating_add(all.saturating_mul(each));
            }
        }
        Cost { algorithm: work, exact: counter.exact, nominal_flops: counter.nominal, least_read }
    }

    /// The work that a schedule with these blocks executes: whole tiles (of the block size also at the edges) for products and
    /// special functions, the elements that exist for memory.
    pub fn executed(&self, block: &dyn Fn(AxisId) -> i64, options: MaskOptions) -> Work {
        self.executed_by(block, options, true)
    }

    /// As [`Workload::executed`]; counts tile by tile if it is not to use closed forms.
    fn executed_by(&self, block: &dyn Fn(AxisId) -> i64, options: MaskOptions, closed: bool) -> Work {
        let size = |s| self.size_of(s);
        let param = |p| self.param(p);
        let eval = Evaluator { kernel: self.kernel, size: &size, param: &param };
        let kernel = self.kernel;
        let fold = |s: &SizeExpr| Some(eval.size(s));
        // What is loaded is not known: as if it hid nothing.
        let options = MaskOptions { loaded: false, ..options };
        let loops = kernel.walk().into_iter().filter(|(_, op)| matches!(kernel.ops[*op].op, Op::For { .. }));
        let runs: BTreeMap<OpId, LoopRuns> = loops.map(|(_, op)| (op, loop_runs(kernel, op, block, &fold, options))).collect();
        let mut counter = Executed { load: self, eval, block, runs, closed };
        // The grid dimensions that loop bounds read are told apart, and come last.
        let mut factor = 1i128;
        let (mut alike, mut apart) = (Vec::new(), Vec::new());
        for (dim, &v) in kernel.grid().iter().zip(program_values(kernel)) {
            let read = counter.runs.keys().any(|&op| counter.reads(op, v));
            match dim {
                ProgramDim::Each(s) if !read => factor = factor.saturating_mul(counter.eval.size(s).max(0).into()),
                ProgramDim::Each(s) => apart.push(GridDim { v, axis: None, count: counter.eval.size(s) }),
                ProgramDim::Tiles(a) => {
                    let dim = GridDim { v, axis: Some(*a), count: counter.tiles(*a) };
                    if read { apart.push(dim) } else { alike.push(dim) }
                }
            }
        }
        let alike_count = alike.len();
        let dims = [alike, apart].concat();
        let [flops, special, read, written] = counter
            .grid(&dims, alike_count, &mut Point::new(), &mut BTreeMap::new(), factor)
            .map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        Work { flops, special, read, written }
    }
}

/// A dimension of the grid.
#[derive(Clone, Copy)]
struct GridDim {
    v: ValueId,
    /// The axis whose tiles are its programs.
    axis: Option<AxisId>,
    /// Programs along it.
    count: i64,
}

/// A product that saturates.
fn product(factors: impl Iterator<Item = u64>) -> u64 {
    factors.fold(1, u64::saturating_mul)
}

/// Elements of a tensor that are loaded, each once.
#[derive(Clone, Copy, Default)]
struct Loaded {
    most: u64,
    least: u64,
}

/// What the masks of a loop keep.
struct LoopMask {
    /// The loop's axis, and that of the rows.
    axes: [AxisId; 2],
    /// What is visible as written.
    seen: Visible,
    /// The sum of the closed and the open count.
    both: u64,
    /// Loops over single positions around the loop: what is visible counts these.
    depth: usize,
}

/// Counts of the text.
struct Algorithm<'a> {
    load: &'a Workload<'a>,
    eval: Evaluator<'a>,
    /// Indices of the loops over single positions around, innermost last, and how many positions
    /// they walk.
    around: Vec<(ValueId, i64)>,
    /// Masks of the loops around, innermost last.
    masks: Vec<LoopMask>,
    read: BTreeMap<ParamId, Loaded>,
    cost: Work,
    nominal: u64,
    exact: bool,
}

impl Algorithm<'_> {
    fn block(&mut self, block: BlockId) {
        let kernel = self.load.kernel;
        for &op in &kernel.blocks[block].ops {
            match &kernel.ops[op].op {
                Op::For { axis, body, .. } => {
                    let masks = self.masks_of(op, *axis);
                    let (known, depth) = (self.masks.len(), self.around.len());
                    self.masks.extend(masks);
                    if kernel.axes[*axis].kind == AxisKind::Each {
                        self.around.push((kernel.blocks[*body].params[0], self.eval.size(&kernel.axes[*axis].extent)));
                    }
                    self.block(*body);
                    self.masks.truncate(known);
                    self.around.truncate(depth);
                }
                Op::Dot { a, b, .. } => {
                    let (a, b) = (&kernel.tile(*a).dims, &kernel.tile(*b).dims);
                    let (written, nominal) = self.elements(&[a[0].clone(), a[1].clone(), b[1].clone()]);
                    self.cost.flops = self.cost.flops.saturating_add(written.saturating_mul(2));
                    self.nominal = self.nominal.saturating_add(nominal);
                }
                Op::Load { tensor, .. } | Op::Gather { tensor, .. } => {
                    let loaded = self.loaded(op, *tensor);
                    let read = self.read.entry(*tensor).or_default();
                    // Another load may be of the same elements.
                    let (most, least) = (read.most.saturating_add(loaded.most), read.least.max(loaded.least));
                    *read = Loaded { most, least };
                }
                Op::Unary(..) | Op::Binary(..) => {
                    if let Some(dims) = special(kernel, op).filter(|dims| block == kernel.body || self.loops_of(dims)) {
                        self.cost.special = self.cost.special.saturating_add(self.elements(dims).0);
                    }
                }
                _ => {}
            }
        }
    }

    /// Elements that a load reads: its own dimensions for each index that its place depends on. Few
    /// pages of a pool, or columns of a table, may be all that is loaded.
    fn loaded(&self, load: OpId, tensor: ParamId) -> Loaded {
        let kernel = self.load.kernel;
        let data = &kernel.ops[load];
        let (mut behind, mut todo) = (BTreeSet::new(), data.op.operands());
        while let Some(v) = todo.pop() {
            if behind.insert(v)
                && let Some((_, op)) = kernel.def(v)
            {
                todo.extend(op.operands());
            }
        }
        let dims = &kernel.tile(data.results[0]).dims;
        let grid = kernel.grid().iter().zip(program_values(kernel)).filter_map(|(dim, v)| match dim {
            ProgramDim::Each(s) => Some((*v, self.eval.size(s))),
            ProgramDim::Tiles(_) => None,
        });
        let around = self.around[self.mask_of(dims).map_or(0, |mask| mask.depth)..].iter().copied();
        let other = grid.chain(around).filter(|(v, _)| !behind.contains(v)).map(|(_, count)| count.max(1) as u64);
        let all = product(kernel.tensor(tensor).shape.iter().map(|s| self.eval.size(s).max(0) as u64));
        let elements = (self.elements(dims).0 / product(other)).min(all);
        // What a mask hides from all rows is not read: the average row sees no more than all rows
        // together, and these see no more than if no two saw the same.
        let has = |axis: AxisId| dims.contains(&Dim::Axis(axis));
        let hides = self.masks.iter().rfind(|mask| has(mask.axes[0]) && !has(mask.axes[1]));
        let Some(LoopMask { axes: [_, rows], seen, .. }) = hides.filter(|mask| mask.seen.all > 0) else {
            return Loaded { most: elements, least: elements };
        };
        let rows = self.eval.size(&kernel.axes[*rows].extent).max(0) as u128;
        let of_rows = |rows: u128| (u128::from(elements) * rows).saturating_mul(seen.kept.into()).div_ceil(seen.all.into());
        let [most, least] = [rows, 1].map(|rows| u64::try_from(of_rows(rows)).map_or(elements, |n| n.min(elements)));
        Loaded { most, least }
    }

    /// Whether one of these dimensions is of a loop: else elements are computed once per tile, which is the schedule's business.
    fn loops_of(&self, dims: &[Dim]) -> bool {
        dims.iter().any(|d| matches!(d, Dim::Axis(a) if self.load.kernel.axes[*a].kind == AxisKind::Loop))
    }

    fn masks_of(&mut self, loop_op: OpId, axis: AxisId) -> Option<LoopMask> {
        let kernel = self.load.kernel;
        let Op::For { body, .. } = kernel.ops[loop_op].op else { unreachable!("a loop") };
        let seen = visible(&self.eval, loop_op, &self.around, Boundary::Written);
        let Some(seen) = seen else {
            // A mask that is not counted makes the counts upper bounds.
            self.exact &= !kernel.blocks[body].ops.iter().any(|&op| matches!(kernel.ops[op].op, Op::Mask { .. }));
            return None;
        };
        self.exact &= seen.exact;
        let at = |boundary| visible(&self.eval, loop_op, &self.around, boundary).map_or(seen.kept, |v| v.kept);
        let both = at(Boundary::Closed).saturating_add(at(Boundary::Open));
        let rows = kernel.blocks[body].ops.iter().find_map(|&op| match &kernel.ops[op].op {
            Op::Mask { x, .. } => kernel.tile(*x).dims.iter().find_map(|d| match d {
                Dim::Axis(a) if *a != axis => Some(*a),
                _ => None,
            }),
            _ => None,
        });
        let rows = rows.expect("a counted mask has a row axis");
        Some(LoopMask { axes: [axis, rows], seen, both, depth: self.around.len() })
    }

    /// The mask of a space over these dimensions.
    fn mask_of(&self, dims: &[Dim]) -> Option<&LoopMask> {
        let has = |axis: AxisId| dims.contains(&Dim::Axis(axis));
        self.masks.iter().find(|mask| mask.axes.into_iter().all(has))
    }

    /// Elements of a space over these dimensions, the grid and the loops over single positions
    /// around: those kept, and twice those kept with boundaries halved.
    fn elements(&self, dims: &[Dim]) -> (u64, u64) {
        let kernel = self.load.kernel;
        let mut each = 1u64;
        for dim in kernel.grid() {
            if let ProgramDim::Each(s) = dim {
                each = each.saturating_mul(self.eval.size(s).max(0) as u64);
            }
        }
        let mask = self.mask_of(dims);
        let masked = |d: &Dim| mask.is_some_and(|mask| mask.axes.map(Dim::Axis).contains(d));
        let rest = dims.iter().filter(|d| !masked(d));
        let rest = rest.map(|d| match d {
            Dim::Axis(a) => self.eval.size(&kernel.axes[*a].extent),
            Dim::Range(len) => self.eval.size(len),
        });
        let around = self.around[mask.map_or(0, |mask| mask.depth)..].iter().map(|(_, count)| *count);
        let rest = product(rest.chain(around).map(|n| n.max(0) as u64));
        let all = each.saturating_mul(rest);
        match mask {
            Some(LoopMask { seen, both, .. }) => (seen.kept.saturating_mul(rest), both.saturating_mul(rest)),
            None => (all, all.saturating_mul(2)),
        }
    }
}

/// Lengths of the tile at hand along an axis.
#[derive(Clone, Copy)]
struct Length {
    /// Elements of whole tiles.
    whole: i128,
    /// Elements that exist.
    real: i128,
}

/// FLOPs, special functions, bytes read, bytes written.
type Sums = Counts<4>;

/// Counts of a schedule.
struct Executed<'a> {
    load: &'a Workload<'a>,
    eval: Evaluator<'a>,
    block: &'a dyn Fn(AxisId) -> i64,
    /// The tiles that each loop walks.
    runs: BTreeMap<OpId, LoopRuns>,
    /// Whether sums are closed forms, not counted tile by tile.
    closed: bool,
}

impl Executed<'_> {
    fn extent(&self, axis: AxisId) -> i64 {
        self.eval.size(&self.load.kernel.axes[axis].extent)
    }

    /// Tiles of an axis.
    fn tiles(&self, axis: AxisId) -> i64 {
        ceil_div(self.extent(axis), (self.block)(axis))
    }

    /// Whether the last tile of an axis is cut by memory.
    fn is_cut(&self, axis: AxisId) -> bool {
        self.extent(axis) % (self.block)(axis) != 0
    }

    fn tile(&self, axis: AxisId, tile: i64) -> Length {
        let (b, extent) = ((self.block)(axis), self.extent(axis));
        Length { whole: b.into(), real: (extent - tile * b).clamp(0, b).into() }
    }

    /// Whether the ends of a loop depend on a coordinate or program id.
    fn reads(&self, op: OpId, v: ValueId) -> bool {
        self.runs[&op].exprs().flat_map(|e| e.values()).any(|read| read == v || leaves(self.load.kernel, read).contains(&v))
    }

    /// The loops in a block, at any depth, each with those around it there.
    fn loops(&self, block: BlockId) -> Vec<Vec<OpId>> {
        let kernel = self.load.kernel;
        let mut found = Vec::new();
        for &op in &kernel.blocks[block].ops {
            if let Op::For { body, .. } = kernel.ops[op].op {
                found.push(vec![op]);
                found.extend(self.loops(body).into_iter().map(|inner| [vec![op], inner].concat()));
            }
        }
        found
    }

    /// All programs along these dimensions, of which the first few (`alike`) no loop bound reads.
    fn grid(
        &mut self,
        dims: &[GridDim],
        alike: usize,
        point: &mut Point,
        lengths: &mut BTreeMap<AxisId, Length>,
        factor: i128,
    ) -> Sums {
        let body = self.load.kernel.body;
        let Some((&GridDim { v, axis, count }, rest)) = dims.split_first() else {
            return self.block(body, point, lengths, factor);
        };
        let outer = point.clone();
        let mut at = |counter: &mut Self, i: i64, factor: i128| {
            point.insert(v, i);
            if let Some(axis) = axis {
                lengths.insert(axis, counter.tile(axis, i));
            }
            let sums = counter.grid(rest, alike.saturating_sub(1), point, lengths, factor);
            point.remove(&v);
            sums
        };
        if alike > 0 && self.closed {
            // Programs that differ in nothing but the last one's length.
            let (most, last) = (at(self, 0, factor.saturating_mul((count - 1).max(0).into())), at(self, count - 1, factor));
            return if count > 0 { plus(most, last) } else { Sums::default() };
        }
        let this = std::cell::RefCell::new(self);
        let period = |start, end| match rest.is_empty() {
            true => this.borrow().period(Moving { v, axis, count }, body, &outer, start, end),
            false => None,
        };
        sum(0..count, &period, &mut |i| at(&mut this.borrow_mut(), i, factor))
    }

    /// After how many steps of a coordinate or program id what a block executes has grown by as much as in the steps before.
    fn period(&self, moving: Moving, block: BlockId, point: &Point, start: i64, end: i64) -> Option<i64> {
        if !self.closed {
            return None;
        }
        let Moving { v, axis, count } = moving;
        if end == count && end - start > 1 && axis.is_some_and(|axis| self.is_cut(axis)) {
            return None;
        }
        let kernel = self.load.kernel;
        let size = |s: &SizeExpr| self.eval.size(s);
        let value = |v: ValueId| self.eval.index(v, point).expect("loop bounds read program ids and sizes");
        let at = self.eval.lookups(&size, &value);
        let leaf = |read: ValueId| match () {
            () if read == v => Leaf::Moves,
            () if index_reads(kernel, read, v) || self.eval.index(read, point).is_none() => Leaf::Unknown,
            () => Leaf::Stays,
        };
        let mut periods = Vec::new();
        for nest in self.loops(block) {
            let (&op, around) = nest.split_last().expect("a nest has a loop");
            if !self.reads(op, v) {
                continue;
            }
            // Trip counts that move together make a product of two lines.
            if around.iter().any(|&outer| self.reads(outer, v)) {
                return None;
            }
            let Op::For { axis, .. } = kernel.ops[op].op else { unreachable!("a loop") };
            let runs = &self.runs[&op];
            let (lo, hi) = (band(&runs.lo, &leaf, at, start, end)?, band(&runs.hi, &leaf, at, start, end)?);
            if self.is_cut(axis) {
                // Whether the last tile, which is shorter, is walked must be the same in the whole range.
                let never = hi.at_most(self.tiles(axis) - 1, start, end)?;
                if !never {
                    band(&runs.hi.minus(&runs.lo), &leaf, at, start, end)?.at_most(0, start, end)?;
                }
            }
            periods.extend([lo.period(), hi.period()]);
            if let Some(gap) = &runs.gap {
                for edge in [&gap.lo, &gap.hi] {
                    periods.push(band(edge, &leaf, at, start, end)?.period());
                }
            }
        }
        common_period(periods)
    }

    fn block(&mut self, block: BlockId, point: &mut Point, lengths: &mut BTreeMap<AxisId, Length>, factor: i128) -> Sums {
        let kernel = self.load.kernel;
        let mut sums = Sums::default();
        for &op in &kernel.blocks[block].ops {
            let data = &kernel.ops[op];
            let product = |dims: &[Dim], whole: bool| -> i128 {
                let length = |d: &Dim| match d {
                    Dim::Axis(a) => lengths.get(a).map_or(0, |l| if whole { l.whole } else { l.real }),
                    Dim::Range(len) => self.eval.size(len).max(0).into(),
                };
                dims.iter().map(length).fold(factor, i128::saturating_mul)
            };
            let bytes = |tensor| {
                let elem = kernel.tensor(tensor).elem;
                self.load.binding.elem(kernel, elem).bytes().unwrap_or(0) as i128
            };
            let own = match &data.op {
                Op::Dot { a, b, .. } => {
                    let (a, b) = (&kernel.tile(*a).dims, &kernel.tile(*b).dims);
                    [product(&[a[0].clone(), a[1].clone(), b[1].clone()], true).saturating_mul(2), 0, 0, 0]
                }
                Op::Unary(..) | Op::Binary(..) => [0, special(kernel, op).map_or(0, |dims| product(dims, true)), 0, 0],
                Op::Load { tensor, .. } | Op::Gather { tensor, .. } => {
                    [0, 0, product(&kernel.tile(data.results[0]).dims, false).saturating_mul(bytes(*tensor)), 0]
                }
                Op::Store { tensor, value, .. } | Op::Scatter { tensor, value, .. } => {
                    [0, 0, 0, product(&kernel.tile(*value).dims, false).saturating_mul(bytes(*tensor))]
                }
                Op::For { axis, part, body, .. } => {
                    let parts = part.map_or(1, |part| i128::from(part.count));
                    self.walk(op, *axis, *body, point, lengths, factor / parts)
                }
                _ => continue,
            };
            sums = plus(sums, own);
        }
        sums
    }

    fn walk(
        &mut self,
        op: OpId,
        axis: AxisId,
        body: BlockId,
        point: &mut Point,
        lengths: &mut BTreeMap<AxisId, Length>,
        factor: i128,
    ) -> Sums {
        let kernel = self.load.kernel;
        let size = |s: &SizeExpr| self.eval.size(s);
        let value = |v: ValueId| self.eval.index(v, point).expect("loop bounds read program ids and sizes");
        let at = self.eval.lookups(&size, &value);
        let runs = &self.runs[&op];
        let [lo, _, _, hi] = runs.eval(at);
        let gap = runs.gap.as_ref().map_or(hi..hi, |gap| gap.lo.eval(at)..gap.hi.eval(at));
        if hi <= lo {
            return Sums::default();
        }
        let coordinate = kernel.blocks[body].params[0];
        let depends = self.loops(body).iter().flatten().any(|&inner| self.reads(inner, coordinate));
        let outer = point.clone();
        let mut at = |counter: &mut Self, t: i64, factor: i128| {
            point.insert(coordinate, t);
            lengths.insert(axis, counter.tile(axis, t));
            let sums = counter.block(body, point, lengths, factor);
            point.remove(&coordinate);
            lengths.remove(&axis);
            sums
        };
        if !depends && self.closed {
            // All tiles but the last one walked cost the same.
            let last = if gap.end == hi { gap.start - 1 } else { hi - 1 };
            let walked = hi - lo - (gap.end - gap.start);
            if walked <= 0 {
                return Sums::default();
            }
            let most = at(self, lo, factor.saturating_mul((walked - 1).into()));
            return plus(most, at(self, last, factor));
        }
        let count = self.tiles(axis);
        let this = std::cell::RefCell::new(self);
        let moving = Moving { v: coordinate, axis: Some(axis), count };
        let mut part = |tiles: Range<i64>| {
            sum(tiles, &|start, end| this.borrow().period(moving, body, &outer, start, end), &mut |t| {
                at(&mut this.borrow_mut(), t, factor)
            })
        };
        plus(part(lo..gap.start), part(gap.end..hi))
    }
}

/// What moves in a sum: the tiles of an axis, or the programs of a grid dimension, of which there are so many.
#[derive(Clone, Copy)]
struct Moving {
    v: ValueId,
    axis: Option<AxisId>,
    count: i64,
}

fn plus(a: Sums, b: Sums) -> Sums {
    std::array::from_fn(|k| a[k].saturating_add(b[k]))
}

/// Of which elements an op takes a special function: those of its result, or of a divisor. The
/// quotients of a matrix by a vector or a number are its products with one reciprocal for each
/// element of that.
fn special(kernel: &Kernel, op: OpId) -> Option<&[Dim]> {
    let result = kernel.tile(kernel.ops[op].results[0]);
    match &kernel.ops[op].op {
        Op::Unary(f, _) => f.row().special.then_some(&result.dims),
        Op::Binary(f, _, divisor) => (f.row().special && result.elem.is_float()).then(|| &kernel.tile(*divisor).dims[..]),
        _ => None,
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

impl Cost {
    /// The least time in seconds in which any machine with these rates can do what the text asks for,
    /// and what limits it.
    pub fn roofline(&self, machine: &Machine) -> (f64, Limit) {
        Work { read: self.least_read, ..self.algorithm }.roofline(machine)
    }

    /// The printed form; with the work of a schedule beside it, if given, and the roofline of a machine.
    pub fn text(&self, executed: Option<&Work>, machine: Option<&Machine>) -> String {
        let mut out = String::new();
        let a = &self.algorithm;
        let mut line = |name: &str, algorithm: String, schedule: Option<String>| {
            let text = format!("{name:<18} {algorithm:>20} {:>20}", schedule.unwrap_or_default());
            writeln!(out, "{}", text.trim_end()).expect("strings take what is written");
        };
        line("", if self.exact { "algorithm" } else { "algorithm, at most" }.into(), executed.map(|_| "schedule".into()));
        line("dot FLOPs", a.flops.to_string(), executed.map(|w| w.flops.to_string()));
        line("nominal FLOPs", self.nominal_flops.to_string(), None);
        line("special functions", a.special.to_string(), executed.map(|w| w.special.to_string()));
        line("bytes read", a.read.to_string(), executed.map(|w| w.read.to_string()));
        line("bytes written", a.written.to_string(), executed.map(|w| w.written.to_string()));
        if let Some(machine) = machine {
            let bound = |(seconds, limit): (f64, Limit)| {
                let limit = match limit {
                    Limit::Flops => "FLOPs",
                    Limit::Memory => "memory",
                    Limit::Special => "special",
                };
                format!("{:.3} us ({limit})", seconds * 1e6)
            };
            line("least time", bound(self.roofline(machine)), executed.map(|work| bound(work.roofline(machine))));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::samples::{Softmax, attention, causal};
    use crate::ir::Elem;

    use crate::analysis::samples::{Scope, binary, integer};
    use crate::ir::{BinaryOp, Builder, CompareOp};
    use proptest::prelude::*;

    /// Of a pool of pages those that a call walks are read, each once, and no more than there are; of
    /// wide rows the columns that are loaded.
    #[test]
    fn what_is_not_loaded_is_not_read() {
        let text = "pub fn f(x: &Tensor<f32, (P, N, 2)>, table: &Tensor<i32, (C)>, y: &mut Tensor<f32, (B, N)>) {
            let (b, i) = program(B, tiles(N));
            let mut sum = zeros(i);
            for c in 0..C {
                sum = sum + load(x, [load(table, [PAGE]), i, 0]);
            }
            store(y, [b, i], sum);
        }";
        let read = |page: &str, pool: i64, walked: i64, programs: i64| {
            let text = text.replace("PAGE", page);
            let source = crate::ir::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
            let kernel = crate::syntax::parse(&source).expect("a kernel").remove(0);
            let binding = Binding::new(&kernel, Elem::F32, std::iter::empty::<(&str, i64)>());
            let sizes = [("P", pool), ("N", 16), ("C", walked), ("B", programs)].map(|(name, n)| (name.to_owned(), n)).into();
            Workload { kernel: &kernel, binding: &binding, sizes: &sizes }.cost().algorithm.read
        };
        let table = 4 * 3;
        assert_eq!(read("c", 1000, 3, 1), table + 3 * 16 * 4, "one of the two columns of three pages");
        assert_eq!(read("c", 1000, 3, 5), table + 3 * 16 * 4, "all programs read the same");
        assert_eq!(read("b", 1000, 3, 3), table + 3 * 16 * 4, "a page for each program, three times");
        assert_eq!(read("min(b, c)", 1000, 3, 5), table + 5 * 3 * 16 * 4, "each may have pages of its own");
        assert_eq!(read("min(b, c)", 2, 3, 100), table + 2 * 16 * 2 * 4, "no more than there is");
    }

    /// Keys that a mask hides from all rows are not read.
    #[test]
    fn what_no_row_sees_is_not_read() {
        let (kernel, ..) = attention(Softmax::Named, &[&predicate(1, 10)]);
        let binding = Binding::new(&kernel, Elem::F16, [("D", 4)]);
        let read = |rows: i64, keys: i64| {
            let sizes = BTreeMap::from([("M".to_owned(), rows), ("N".to_owned(), keys)]);
            let cost = Workload { kernel: &kernel, binding: &binding, sizes: &sizes }.cost();
            assert!(cost.exact);
            // Without the queries, in keys.
            let keys = |bytes: u64| (bytes - rows as u64 * 4 * 2) / (2 * 4 * 2);
            (keys(cost.least_read), keys(cost.algorithm.read))
        };
        // Each row sees the ten keys up to its own.
        assert_eq!(read(1, 1000), (10, 10));
        assert_eq!(read(3, 1000), (10, 30), "twelve: rows see more together than one sees");
        assert_eq!(read(1000, 1000), (10, 1000), "the first rows see less");
        assert_eq!(read(1, 4), (4, 4));
    }

    /// The elements of a row or of a matrix that are divided by one number take one reciprocal.
    #[test]
    fn quotients_take_the_special_functions_of_their_divisors() {
        let special = |value: &str| {
            let text = format!(
                "pub fn f(x: &Tensor<f32, (M, N)>, rows: &Tensor<f32, (M)>, cap: f32, y: &mut Tensor<f32, (M)>) {{
                    let i = program(tiles(M));
                    let row = load(rows, [i]);
                    let mut sum = zeros(i);
                    for j in tiles(N) {{
                        let s = load(x, [i, j]);
                        sum = sum + rowsum({value});
                    }}
                    store(y, [i], sum + row * cap);
                }}"
            );
            let source = crate::ir::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
            let kernel = crate::syntax::parse(&source).expect("a kernel").remove(0);
            let binding = Binding::new(&kernel, Elem::F32, std::iter::empty::<(&str, i64)>());
            let sizes = [("M", 20), ("N", 30)].map(|(name, n)| (name.to_owned(), n)).into();
            let work = Workload { kernel: &kernel, binding: &binding, sizes: &sizes };
            (work.cost().algorithm.special, work.executed(&|_| 10, MaskOptions::default()).special)
        };
        // In steps of ten columns: six tiles.
        assert_eq!(special("s / cap"), (0, 6));
        assert_eq!(special("tanh(s / cap)"), (600, 606));
        assert_eq!(special("s / row"), (0, 60), "once for each row, which is the schedule's business");
        assert_eq!(special("1.0 / (1.0 + exp(-s))"), (1200, 1200));
        assert_eq!(special("1.0 / (1.0 + s * s)"), (600, 600));
    }

    /// Predicates over positions, by number: causal, windows of a width, both with sinks, blocks, dilated, what is not one run.
    fn predicate(kind: u32, width: i64) -> impl Fn(&mut Builder, &Scope) -> ValueId {
        move |b, s| {
            let (row, shift, column) = (s.row(b), s.shift(b), s.column(b));
            let row = binary(b, BinaryOp::Add, row, shift);
            let causal = b.emit(Op::Compare(CompareOp::Ge, row, column));
            let width = integer(b, width);
            let near = binary(b, BinaryOp::Sub, row, width);
            let near = b.emit(Op::Compare(CompareOp::Lt, near, column));
            match kind {
                0 => causal,
                1 => binary(b, BinaryOp::And, causal, near),
                2 => near,
                3 => {
                    let far = binary(b, BinaryOp::Add, row, width);
                    let far = b.emit(Op::Compare(CompareOp::Lt, column, far));
                    binary(b, BinaryOp::And, near, far)
                }
                4 => {
                    let of = |b: &mut Builder, x| binary(b, BinaryOp::Div, x, width);
                    let (rows, columns) = (of(b, row), of(b, column));
                    b.emit(Op::Compare(CompareOp::Eq, rows, columns))
                }
                5 => {
                    let (sinks, few) = (s.column(b), integer(b, 4));
                    let sinks = b.emit(Op::Compare(CompareOp::Lt, sinks, few));
                    let seen = binary(b, BinaryOp::Or, near, sinks);
                    binary(b, BinaryOp::And, causal, seen)
                }
                _ => b.emit(Op::Compare(CompareOp::Ne, row, column)),
            }
        }
    }

    /// Pairs that a predicate keeps, one by one, with the comparisons taken as `boundary` says.
    fn counted(kernel: &Kernel, sizes: &BTreeMap<String, i64>, boundary: Boundary) -> u64 {
        let size = |id: SizeId| sizes.get(&kernel.sizes[id].name).copied().unwrap_or(4);
        let eval = Evaluator { kernel, size: &size, param: &|_| 0 };
        let (_, loop_op) =
            kernel.walk().into_iter().find(|(_, op)| matches!(kernel.ops[*op].op, Op::For { .. })).expect("a loop");
        let Op::For { body, .. } = kernel.ops[loop_op].op else { unreachable!("a loop") };
        let column = kernel.blocks[body].params[0];
        let keeps: Vec<ValueId> = kernel.blocks[body]
            .ops
            .iter()
            .filter_map(|&op| if let Op::Mask { keep, .. } = kernel.ops[op].op { Some(keep) } else { None })
            .collect();
        let (m, n) = (sizes["M"], sizes["N"]);
        let pairs = (0..m).flat_map(|i| (0..n).map(move |j| (i, j)));
        let kept = pairs.filter(|&(i, j)| {
            let point = Point::from([(program_values(kernel)[0], i), (column, j)]);
            keeps.iter().all(|&keep| eval.holds(keep, true, boundary, &point) == Some(true))
        });
        kept.count() as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Closed forms give what counting one by one gives.
        #[test]
        fn closed_forms_are_right(
            kind in 0u32..7, width in 1i64..40, m in 0i64..90, n in 0i64..90, rows in 1i64..20, keys in 1i64..20, second in any::<bool>(),
        ) {
            let (one, two) = (predicate(kind, width), predicate(1, width + 7));
            let (kernel, ..) = match second {
                true => attention(Softmax::Named, &[&one, &two]),
                false => attention(Softmax::Named, &[&one]),
            };
            let binding = Binding::new(&kernel, Elem::F16, [("D", 4)]);
            let sizes = BTreeMap::from([("M".to_owned(), m), ("N".to_owned(), n)]);
            let load = Workload { kernel: &kernel, binding: &binding, sizes: &sizes };
            let cost = load.cost();
            prop_assert!(cost.exact);
            prop_assert_eq!(cost.algorithm.flops, 4 * 4 * counted(&kernel, &sizes, Boundary::Written));
            let both = counted(&kernel, &sizes, Boundary::Closed) + counted(&kernel, &sizes, Boundary::Open);
            prop_assert_eq!(cost.nominal_flops, 2 * 4 * both);
            let block = |axis: AxisId| if kernel.axes[axis].kind == AxisKind::Loop { keys } else { rows };
            for early_stop in [false, true] {
                let options = MaskOptions { early_stop, ..MaskOptions::default() };
                prop_assert_eq!(load.executed_by(&block, options, true), load.executed_by(&block, options, false));
            }
        }
    }

    #[test]
    fn a_million_keys_take_no_longer_than_a_thousand() {
        for kind in 0..6 {
            let mask = predicate(kind, 1000);
            let (kernel, ..) = attention(Softmax::Named, &[&mask]);
            let binding = Binding::new(&kernel, Elem::F16, [("D", 128)]);
            let sizes = BTreeMap::from([("M".to_owned(), 1 << 20), ("N".to_owned(), 1 << 20)]);
            let load = Workload { kernel: &kernel, binding: &binding, sizes: &sizes };
            let start = std::time::Instant::now();
            let cost = load.cost();
            let executed = load.executed(&|_| 64, MaskOptions::default());
            // Seconds of a machine that does other things too; one by one it would be an hour.
            assert!(start.elapsed().as_secs_f64() < 10.0, "kind {kind}: {:?}", start.elapsed());
            assert!(cost.exact || kind == 5, "kind {kind}");
            assert!(executed.flops >= cost.algorithm.flops || !cost.exact, "kind {kind}");
            if kind == 0 {
                assert_eq!(cost.algorithm.flops, 4 * 128 * ((1u64 << 19) * ((1 << 20) + 1)));
            }
        }
    }

    #[test]
    fn counts_saturate() {
        let (kernel, ..) = attention(Softmax::Named, &[&causal]);
        let binding = Binding::new(&kernel, Elem::F16, [("D", i64::from(i32::MAX))]);
        let sizes = BTreeMap::from([("M".to_owned(), i64::from(i32::MAX)), ("N".to_owned(), i64::from(i32::MAX))]);
        let load = Workload { kernel: &kernel, binding: &binding, sizes: &sizes };
        assert_eq!(load.cost().algorithm.flops, u64::MAX);
        assert_eq!(load.executed(&|_| 64, MaskOptions::default()).flops, u64::MAX);
    }

    /// Heads of a group: a loop over all heads, of which a mask leaves some.
    #[test]
    fn loops_over_single_positions_are_counted_as_the_grid_is() {
        let text = "pub fn f<T: Element, const D: usize>(
            q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (G, N, D)>, y: &mut Tensor<f32, (G, N)>,
        ) {
            let (g, j) = program(G, tiles(N));
            let k_j = load(k, [g, j, ..]);
            let mut a = zeros(j);
            for h in 0..H {
                let mut a2 = a;
                for i in tiles(M) {
                    a2 = a2 + rowsum(mask(dot(k_j, load(q, [h, i, ..]).t()), CONDITION));
                }
                a = a2;
            }
            store(y, [g, j], a);
        }";
        let flops = |condition: &str| {
            let text = text.replace("CONDITION", condition);
            let source = crate::ir::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
            let kernel = crate::syntax::parse(&source).unwrap_or_else(|e| panic!("{e}")).remove(0);
            let binding = Binding::new(&kernel, Elem::F16, [("D", 4)]);
            let sizes = [("H", 6), ("G", 2), ("M", 5), ("N", 7)].map(|(name, n)| (name.to_owned(), n)).into();
            let cost = Workload { kernel: &kernel, binding: &binding, sizes: &sizes }.cost();
            assert!(cost.exact, "{condition}");
            (cost.algorithm.flops, cost.nominal_flops)
        };
        let pairs = 5 * 7 * 4 * 2;
        assert_eq!(flops("h * G / H == g"), (6 * pairs, 6 * pairs), "each head is of one group");
        assert_eq!(flops("pos(i) >= 0").0, 2 * 6 * pairs, "of each group all heads");
        assert_eq!(flops("h * G / H == g && pos(i) > 0").0, 6 * pairs * 4 / 5);
    }

    #[test]
    fn visible_pairs_are_counted_exactly() {
        let (kernel, ..) = attention(Softmax::Named, &[&causal]);
        let binding = Binding::new(&kernel, Elem::F16, [("D", 4)]);
        for (m, n) in [(5i64, 7i64), (7, 5), (6, 6), (1, 9), (4, 0)] {
            let sizes = BTreeMap::from([("M".to_owned(), m), ("N".to_owned(), n)]);
            let load = Workload { kernel: &kernel, binding: &binding, sizes: &sizes };
            assert_eq!(load.missing(), Vec::<String>::new());
            let visible: i64 = (0..m).map(|i| (i + n - m + 1).clamp(0, n)).sum();
            let cost = load.cost();
            assert!(cost.exact);
            assert_eq!(cost.algorithm.flops, 4 * visible as u64 * 4);
            if m == n {
                assert_eq!(cost.nominal_flops, (4 * m * n * 4 / 2) as u64, "the convention of the field");
            }
            let written = load.executed(&|_| 2, MaskOptions::default()).written;
            assert_eq!(written, cost.algorithm.written, "every output element is written once");
        }
    }
}
