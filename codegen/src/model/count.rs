//! What an iteration of a loop of a plan issues, in cycles of the units of a multiprocessor for one warp.

use std::collections::HashSet;

use flashtile_dsl::ir::ParamKind;

use crate::abi::Scratch;
use crate::arch::Arch;
use crate::instance::Instance;
use crate::ops::{self, FunctionCost};
use crate::plan::{
    Alike, Atom, Computed, Event, Expr, FragmentLoads, Guard, Input, InputSource, MeetBy, OperandA, Operator, Parts, Plan,
    Reduction, Shape, Shared, SharedTile, Stmt, StmtOp, Storage, Voters, any,
};
use crate::schedule::BlockKnobs;

/// Cycles of the units of a multiprocessor, for one warp.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Units {
    pub issue: f64,
    pub tensor: f64,
    pub special: f64,
    pub shared: f64,
    pub barriers: f64,
    pub turns: f64,
    /// Bytes that copies bring from the L2 cache to shared memory, for the whole block.
    pub l2_bytes: f64,
    /// Rows of boxes, or of 128 bytes, that they come in.
    pub l2_rows: f64,
    /// Rows more, of boxes in which the tensor ends.
    pub l2_cut: f64,
    /// Those of the bytes that TMA brings from rows which begin at odd multiples of 16 bytes.
    pub l2_odd_bytes: f64,
    /// Those of the rows that do.
    pub l2_odd_rows: f64,
    /// Bytes that are added to memory from shared memory, for the whole block.
    pub added_bytes: f64,
    /// Pieces of 16 bytes that a lane loads from global memory one after the other, for elementwise
    /// work of matrices, or what is read of them by words where rows are not aligned.
    pub pieces: f64,
    /// Those that are read by words.
    pub unaligned_pieces: f64,
    /// Vectors along columns that are loaded, or wait in the lanes of a warp and are handed out,
    /// between products.
    pub column_vectors: f64,
}

impl Units {
    pub fn add(&mut self, other: Units, times: f64) {
        self.issue += other.issue * times;
        self.tensor += other.tensor * times;
        self.special += other.special * times;
        self.shared += other.shared * times;
        self.barriers += other.barriers * times;
        self.turns += other.turns * times;
        self.l2_bytes += other.l2_bytes * times;
        self.l2_rows += other.l2_rows * times;
        self.l2_cut += other.l2_cut * times;
        self.l2_odd_bytes += other.l2_odd_bytes * times;
        self.l2_odd_rows += other.l2_odd_rows * times;
        self.added_bytes += other.added_bytes * times;
        self.pieces += other.pieces * times;
        self.unaligned_pieces += other.unaligned_pieces * times;
        self.column_vectors += other.column_vectors * times;
    }
}

/// What a row of 16 bytes takes of the time of one of 64 or 128, in plans that add rows. In the plain
/// form it takes more: counted so, columns of d 80 (32 batches, 25 heads, N = 512) were given terms
/// by a product, 0.272 ms for 0.228, and those of d 64 at 8192 smaller tiles, 1.92 for 1.84 (H200,
/// 2026-12-01).
const NARROW_ROW: f64 = 0.25;
/// Rows that a row of a box takes more, if the tensor ends within the box: measured with 64 rows of
/// scores a block, at head dims 80, 104, 112 and 120 (docs/performance.md, "What decides at head
/// dims and lengths of one's own").
const CUT_ROW: f64 = 1.0;
/// Counts a plan.
pub(super) struct Counter<'a> {
    pub plan: &'a Plan,
    pub instance: &'a Instance,
    /// Tensors between the launches: their rows are padded.
    pub scratch: &'a [Scratch],
    pub schedule: &'a BlockKnobs,
    pub arch: &'a Arch,
    alike: Alike,
    /// Outside of loops.
    pub outside: Units,
    /// In one iteration of each loop.
    pub loops: Vec<Units>,
    /// In one iteration of each loop more, if a mask or the end of memory cuts its tile.
    pub cut: Vec<Units>,
    /// Iterations of each loop that are made outside of it.
    pub from: Vec<f64>,
}

impl<'a> Counter<'a> {
    /// Counts all roles of a plan. Of a producer only what it copies counts: its instructions take a few slots of one warp.
    pub fn count(
        plan: &'a Plan,
        instance: &'a Instance,
        scratch: &'a [Scratch],
        schedule: &'a BlockKnobs,
        arch: &'a Arch,
    ) -> Self {
        let loops = vec![Units::default(); plan.loops.len()];
        let from = vec![0.0; plan.loops.len()];
        let mut counter = Self {
            plan,
            instance,
            scratch,
            schedule,
            arch,
            alike: Alike::of(plan),
            outside: Units::default(),
            cut: loops.clone(),
            loops,
            from,
        };
        for role in &plan.roles {
            counter.block(&role.body, None, 1.0);
        }
        counter
    }

    fn block(&mut self, body: &[Stmt], inside: Option<usize>, times: f64) {
        for stmt in body {
            match &stmt.op {
                StmtOp::When { guard, body, otherwise } => match guard {
                    Guard::Cut(_) | Guard::Holds(_) => self.cut(body, inside, times),
                    // A maximum that moves only when it must moves rarely.
                    Guard::Vote { of: Voters::Role, .. } => self.add(Units { barriers: 1.0, ..Units::default() }, inside, times),
                    Guard::Vote { .. } | Guard::Flag(_) => {}
                    Guard::Exists(_) => self.block(body, inside, times),
                    // Few programs are made again.
                    Guard::OneLeft(_) | Guard::FirstPart | Guard::Again => self.block(otherwise, inside, times),
                    // What one of the programs that meet does, or each for its share of the warps.
                    Guard::LastPart | Guard::OwnWarps => {
                        let share = 1.0 / self.plan.meeting.as_ref().map_or(1.0, |m| f64::from(m.parts));
                        self.block(body, inside, times * share);
                        self.block(otherwise, inside, times);
                    }
                },
                StmtOp::Loop { id, body, from, unroll } => {
                    self.from[*id] = f64::from(*from);
                    self.block(body, Some(*id), times / f64::from(*unroll));
                }
                StmtOp::Step { body, .. } | StmtOp::Work(body) => self.block(body, inside, times),
                op => self.add(self.statement(op), inside, times),
            }
        }
    }

    /// Adds what is done so many times in an iteration of a loop, or outside of loops.
    fn add(&mut self, units: Units, inside: Option<usize>, times: f64) {
        match inside {
            Some(id) => self.loops[id].add(units, times),
            None => self.outside.add(units, times),
        }
    }

    /// What only cut tiles do. Outside of a loop stand its first and last iterations: one cut tile is counted there or here.
    fn cut(&mut self, body: &[Stmt], inside: Option<usize>, times: f64) {
        let Some(id) = inside else { return };
        for stmt in body {
            if stmt.op.bodies().is_empty() {
                let units = self.statement(&stmt.op);
                self.cut[id].add(units, times);
            }
            for body in stmt.op.bodies() {
                self.cut(body, inside, times);
            }
        }
    }

    /// Cycles per warp: an instruction takes an issue slot of one of four schedulers.
    fn instructions(n: f64) -> Units {
        Units { issue: n / 4.0, ..Units::default() }
    }

    fn elements(&self, v: usize) -> f64 {
        f64::from(self.plan.variables[v].registers())
    }

    /// An expression of the elements of a variable: what elements have in common is computed once, and
    /// so is what occurs twice, if it is made of bits of positions.
    fn elementwise(&self, value: &Expr, to: usize) -> Units {
        let (n, v) = (self.elements(to), &self.plan.variables[to]);
        if !self.alike.is_of_bits(value) {
            return self.expression(value, n);
        }
        let (mut instructions, mut special, mut known) = (0.0, 0.0, HashSet::new());
        // The last that is looked at is the value itself.
        let mut least = n;
        self.alike.walk(value, v, &mut |e, numbers, text| {
            let times = f64::from(numbers).min(n);
            least = times;
            if known.insert(text) {
                let cost = cost_of(e);
                instructions += times * (cost.instructions - if is_fused(e) { 1.0 } else { 0.0 });
                special += times * cost.special;
            }
        });
        Units {
            issue: (instructions + special).max(least) / 4.0,
            special: special * 32.0 / f64::from(self.arch.special_per_clock),
            ..Units::default()
        }
    }

    /// An expression evaluated `n` times per thread.
    fn expression(&self, value: &Expr, n: f64) -> Units {
        let (mut instructions, mut special) = (0.0, 0.0);
        value.visit(&mut |e| {
            let cost = cost_of(e);
            special += cost.special;
            instructions += cost.instructions;
        });
        // A product that feeds a sum is one instruction with it.
        let fused = count_fused(value);
        let total = (instructions + special - fused).max(1.0);
        Units { issue: total * n / 4.0, special: special * n * 32.0 / f64::from(self.arch.special_per_clock), ..Units::default() }
    }

    fn statement(&self, op: &StmtOp) -> Units {
        match op {
            StmtOp::Map { to, value } => self.elementwise(value, *to),
            StmtOp::Pack { to, value, .. } => {
                let units = self.elementwise(value, *to);
                let converted = self.elements(*to) / 4.0;
                let issue = if self.alike.is_of_bits(value) { units.issue + converted } else { converted };
                Units { issue, ..units }
            }
            StmtOp::Reduce { from, across_quad, operation, .. } => {
                let v = &self.plan.variables[*from];
                let shuffles = if *across_quad { 4.0 * f64::from(v.m_tiles) } else { 0.0 };
                // A maximum has half the rate of a sum (CUDA C++ Programming Guide, "Arithmetic Instructions"). A bound
                // has half of its instructions, and kernels with it take 2 to 3% less (docs/performance.md); what
                // the model says of the forms of the maximum was fitted before it was there, and stands.
                let slots = if *operation == Reduction::Sum { 1.0 } else { 2.0 };
                let mut units = Self::instructions(slots * self.elements(*from) + 2.0 * shuffles);
                units.shared = shuffles;
                units
            }
            StmtOp::Distribute { to, .. } => {
                let pairs = self.elements(*to) / 2.0;
                Units { issue: (pairs + 4.0) / 4.0, shared: 2.0 * pairs, column_vectors: 1.0, ..Units::default() }
            }
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => Self::instructions(4.0 * self.elements(*v)),
            StmtOp::Copy { tile, .. } => {
                let t = &self.plan.tiles[*tile];
                let bytes = t.elem.bytes().unwrap_or(4) as u32;
                // Where rows begin anywhere, elements are copied one by one, by a load and a store.
                let (piece, each) = if self.plan.copy_bytes == 0 { (bytes, 2.0) } else { (self.plan.copy_bytes, 1.0) };
                let per_warp = f64::from(t.rows * t.columns * bytes) / f64::from(piece * 32 * self.schedule.warps);
                // A copy whose addresses do not advance by constants computes each of them (templates/cuda/device/copy_cp_async).
                let threads = 32 * self.schedule.warps;
                let pieces = (t.columns * bytes / piece).max(1);
                let advances = threads.is_multiple_of(pieces) && (threads / pieces).is_multiple_of(8);
                let instructions = if advances { 4.0 } else { 24.0 };
                let shared = per_warp * f64::from(piece.div_ceil(4));
                Units { issue: each * per_warp * instructions / 4.0, shared, ..self.copied(t) }
            }
            StmtOp::Compute { to, inputs, shared } => self.compute(to, inputs, shared),
            StmtOp::LoadFragments { to, .. } => self.ldmatrix(self.elements(*to) / 4.0),
            // `ldmatrix` of eight elements of a lane, each of which is widened.
            StmtOp::ReadRows { to, .. } => {
                let read = self.ldmatrix(self.elements(*to) / 8.0);
                Units { issue: read.issue + self.elements(*to) / 4.0, ..read }
            }
            StmtOp::Dot { acc, a, b, depth, atom, .. } => self.product(*acc, a, *b, *depth, *atom),
            StmtOp::Stage { from, .. } => {
                let n = self.elements(*from) / 2.0;
                Units { issue: 2.0 * n / 4.0, shared: n * 2.0, ..Units::default() }
            }
            // A store for two elements, and a cycle of shared memory; and a select for each, unless
            // the parts of a row follow each other.
            StmtOp::PutRows { from, tile } => {
                let (n, select) = (self.elements(*from), if self.plan.tiles[*tile].woven { 0.0 } else { 1.0 });
                Units { issue: (0.5 + select) * n / 4.0, shared: n, ..Units::default() }
            }
            StmtOp::AddRows { tile, .. } => {
                let added_bytes = f64::from(self.plan.tiles[*tile].slot_bytes());
                Units { issue: 1.0, added_bytes, ..Units::default() }
            }
            StmtOp::Publish { from: v, .. } | StmtOp::Merge { to: v, .. } => {
                let n = self.elements(*v);
                Units { issue: 2.0 * n / 4.0, shared: n, ..Units::default() }
            }
            // A place, a comparison with the one before, and an addition for each element.
            StmtOp::Add { from, place: Some(_), .. } => Self::instructions(8.0 * self.elements(*from)),
            // Bytes are loaded eight at a time and become bits four at a time.
            StmtOp::Load { to, .. } if self.plan.variables[*to].bits => Self::instructions(2.5 * self.elements(*to)),
            // Two rows are read at once, and transposed; each load asks for eight rows of memory.
            StmtOp::Load { to, from } if from.comes_in_pairs() => Self::instructions(4.0 * self.elements(*to)),
            StmtOp::Load { to, from } => {
                let v = &self.plan.variables[*to];
                let column_vectors = if v.storage == Storage::Fragment(Shape::Column) { 1.0 } else { 0.0 };
                let by_pieces = v.storage == Storage::Fragment(Shape::Accumulator) && from.elem.bytes() == Some(2);
                let pieces = if by_pieces { f64::from(2 * v.m_tiles * v.n_tiles.div_ceil(4)) } else { 0.0 };
                let unaligned_pieces = if self.instance.alignment_of(&from.tensor) >= 16 { 0.0 } else { pieces };
                Units { column_vectors, pieces, unaligned_pieces, ..Self::instructions(4.0 * self.elements(*to)) }
            }
            StmtOp::Store { m_tiles, n_tiles, shape, .. } => {
                let n = match shape {
                    Shape::Accumulator => f64::from(4 * m_tiles * n_tiles),
                    _ => f64::from(2 * m_tiles.max(n_tiles)),
                };
                Self::instructions(3.0 * n)
            }
            StmtOp::Barrier => Units { barriers: 1.0, ..Units::default() },
            // A wait for products stands where the tensor cores and the other units take turns.
            StmtOp::Wait(events) if !events.iter().all(|event| matches!(event, Event::Copied(..))) => {
                Units { turns: 1.0, issue: 1.0, ..Units::default() }
            }
            StmtOp::Let { .. } | StmtOp::Commit | StmtOp::Wait(_) => Self::instructions(2.0),
            StmtOp::Fill { tile, map, with, .. } => {
                let mut units = self.filled(&self.plan.tiles[*tile], *map);
                for companion in with {
                    units.add(self.filled(&self.plan.tiles[companion.tile], companion.map), 1.0);
                }
                units
            }
            StmtOp::SaveState(variables) | StmtOp::LoadState { to: variables, .. } => {
                let elements: f64 = variables.iter().map(|&v| self.elements(v)).sum();
                let shared = if self.plan.meeting.as_ref().is_some_and(|m| m.by == MeetBy::Cluster) { elements } else { 0.0 };
                Units { issue: elements / 4.0, shared, ..Units::default() }
            }
            StmtOp::When { .. } | StmtOp::Loop { .. } | StmtOp::Step { .. } | StmtOp::Work(_) => unreachable!("walked by block"),
            // Rings, turns and meetings: a few instructions. What meeting takes beside them is not
            // of the multiprocessor's units: see `meeting_cycles`.
            _ => Self::instructions(4.0),
        }
    }

    /// The same of a copy by TMA.
    fn filled(&self, tile: &SharedTile, map: usize) -> Units {
        let (mut units, tensor) = (self.copied(tile), &self.plan.maps[map].tensor);
        let row = row_bytes(self.instance, tensor);
        // Rows of a call's tensors follow each other in memory, as far as can be told here.
        let padded = self.scratch.iter().any(|s| s.name == *tensor);
        let odd = !padded && row.is_some_and(|bytes| bytes % 32 != 0);
        if odd {
            (units.l2_odd_bytes, units.l2_odd_rows) = (units.l2_bytes, units.l2_rows);
        }
        // The tensor ends within the last box of a row. What odd rows cost holds for such boxes too.
        if !odd && row.is_some_and(|bytes| bytes % i64::from(tile.pitch) != 0) {
            units.l2_cut = CUT_ROW * f64::from(tile.rows);
        }
        units
    }

    /// What a copy of a tile takes of the way from the L2 cache.
    fn copied(&self, tile: &SharedTile) -> Units {
        // The second half of a narrow tile lies beyond the tensor.
        let columns = if tile.is_narrow() { SharedTile::NARROW } else { tile.columns };
        let bytes = f64::from(tile.rows * columns) * tile.elem.bytes().unwrap_or(4) as f64;
        let row = if tile.barriers.is_some() { f64::from(tile.pitch) } else { 128.0 };
        let width = bytes / f64::from(tile.rows.max(1));
        // A row of 16 bytes is a part of what L2 answers at once.
        let adds_rows = || self.plan.roles.iter().any(|role| any(&role.body, &|op| matches!(op, StmtOp::AddRows { .. })));
        let part = if tile.is_narrow() && adds_rows() { NARROW_ROW } else { 1.0 };
        let rows = f64::from(tile.rows) * (width / row).ceil() * part;
        Units { l2_bytes: bytes, l2_rows: rows, ..Units::default() }
    }

    /// Elements are widened, computed in f32 and rounded; a warp moves 512 bytes of shared memory at a time, 128 a cycle.
    fn compute(&self, to: &[Computed], inputs: &[Input], shared: &[Shared]) -> Units {
        let parts = Parts::of(self.plan, to, inputs);
        let (count, width) = (f64::from(parts.per_thread), f64::from(parts.width));
        let accesses = |bytes: usize| width * bytes as f64 / 16.0;
        let mut units = Units::default();
        for input in inputs {
            let (issue, shared) = match &input.from {
                InputSource::Tile(tile, _) => {
                    let n = accesses(self.plan.tiles[*tile].elem.bytes().unwrap_or(4));
                    (2.0 * n + width, 4.0 * n)
                }
                InputSource::Matrix(_) | InputSource::Column(_) => (4.0 + width, 4.0),
                InputSource::Row(_) => (4.0, 1.0),
            };
            units.add(Units { issue: issue / 4.0, shared, ..Units::default() }, count);
        }
        for s in shared {
            units.add(self.expression(&s.value, width), count);
        }
        for t in to {
            units.add(self.expression(&t.value, width), count);
            let n = accesses(self.plan.tiles[t.tile].elem.bytes().unwrap_or(4));
            units.add(Units { issue: (2.0 * n + width / 2.0) / 4.0, shared: 4.0 * n, ..Units::default() }, count);
        }
        units
    }

    fn ldmatrix(&self, n: f64) -> Units {
        // 512 bytes each, 128 a cycle.
        Units { issue: n / 4.0, shared: 4.0 * n, ..Units::default() }
    }

    fn product(&self, acc: usize, a: &OperandA, b: usize, depth: u32, atom: Atom) -> Units {
        let v = &self.plan.variables[acc];
        let (m, n) = (f64::from(v.m_tiles), f64::from(v.n_tiles));
        let depth = f64::from(depth);
        if atom == Atom::Ffma {
            let flops = m * 16.0 * n * 8.0 * depth * 2.0;
            let loads = depth / 4.0 * 2.0 * m + if self.plan.tiles[b].warp_private { 0.0 } else { depth / 4.0 * 2.0 * n };
            return Units {
                issue: (flops / 64.0 + loads) / 4.0,
                tensor: flops / f64::from(self.arch.ffma_flops_per_clock),
                shared: loads * 4.0,
                ..Units::default()
            };
        }
        let k = depth / 16.0;
        let Atom::Mma { k: step, b: loads, batch_m } = atom else {
            let tensor = m * n * k * 4096.0 / f64::from(self.arch.tensor_flops_per_clock);
            // A warpgroup's 64 rows of A, unless they are in registers, and all columns of B, 16 elements deep.
            let rows = if matches!(a, OperandA::Tile(..)) { 64.0 } else { 0.0 };
            let bytes = 2.0 * 16.0 * k * (rows + 8.0 * n);
            return Units { issue: k, tensor, shared: bytes / 128.0 / 4.0, ..Units::default() };
        };
        let products = m * n * depth / f64::from(step);
        let batches = if batch_m { 1.0 } else { m };
        let single = loads == FragmentLoads::Single;
        let pairs = if single { n } else { n / 2.0 };
        let mut loads = pairs * k * batches;
        if matches!(a, OperandA::Tile(..)) {
            loads += m * k;
        }
        let mut units = self.ldmatrix(loads);
        units.issue += products / 4.0;
        units.tensor = m * n * k * 4096.0 / f64::from(self.arch.mma_flops_per_clock);
        units
    }
}

/// What an expression takes beside its operands.
fn cost_of(e: &Expr) -> FunctionCost {
    let instructions = match e {
        Expr::Call(function, _) => return ops::cost(*function),
        Expr::Infix(Operator::Div, ..) => 10.0,
        Expr::Infix(..) | Expr::Select(..) | Expr::Prefix(..) => 1.0,
        _ => 0.0,
    };
    FunctionCost { instructions, special: 0.0 }
}

/// Whether it is the sum of a product: both are one multiply-add.
fn is_fused(e: &Expr) -> bool {
    let is_product = |e: &Expr| matches!(e, Expr::Infix(Operator::Mul, ..));
    matches!(e, Expr::Infix(Operator::Add | Operator::Sub, a, b) if is_product(a) || is_product(b))
}

fn count_fused(value: &Expr) -> f64 {
    let mut fused = 0.0;
    value.visit(&mut |e| fused += f64::from(u8::from(is_fused(e))));
    fused
}

/// Bytes of a row of a tensor, if its last dimension is known.
pub(super) fn row_bytes(instance: &Instance, tensor: &str) -> Option<i64> {
    let (kernel, binding) = (&instance.kernel, &instance.binding);
    let ParamKind::Tensor(t) = &kernel.params.values().find(|p| p.name == tensor)?.kind else { return None };
    Some(binding.size(kernel, t.shape.last()?)? * binding.elem(kernel, t.elem).bytes()? as i64)
}
