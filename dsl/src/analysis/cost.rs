//! What a kernel costs for given sizes: arithmetic, special functions and memory traffic, and the roofline they give.
//!
//! Each is counted twice. The *algorithm's* count is what the kernel text asks for, whatever the schedule: elements that a mask
//! hides do not count, every input is read once and every output written once. The *schedule's* count is what given blocks
//! execute: whole tiles of every trip, every load of every program.
//!
//! TFLOP/s are reported by [`Cost::nominal_flops`]: the FLOPs of the dots times the fraction that the masks keep, where an
//! element on the boundary of a comparison counts half. For causal attention with M = N it is `4 B H M N D / 2` exactly, the
//! convention of the field; without a mask it is `4 B H M N D`.
//!
//! The algorithm's count is of kernels of the text. The schedule's is of the kernels of launches too, with all programs: a loop that
//! walks a part of its tiles walks all of them in as many programs as there are parts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::index::Lookups;
use super::mask::{MaskOptions, loop_masks};
use super::predicate::Boundary;
use super::visible::{Evaluator, Point, Visible, leaves, program_values, spread, visible};
use crate::ir::{
    AxisId, AxisKind, BinaryOp, Binding, BlockId, Dim, Elem, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, SizeExpr, SizeId,
    SizeKind, UnaryOp, ValueId,
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
    /// Special functions (exponentials, logarithms, tanh, divisions) per second.
    pub special_per_s: f64,
}

/// Work of one kind of count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// FLOPs of matrix products: 2 per multiply-add.
    pub flops: u64,
    /// Special functions: exponentials, logarithms, tanh, divisions.
    pub special: u64,
    /// Bytes read from global memory.
    pub read: u64,
    /// Bytes written to global memory.
    pub written: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.flops += other.flops;
        self.special += other.special;
        self.read += other.read;
        self.written += other.written;
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
            ((self.read + self.written) as f64 / machine.bytes_per_s, Limit::Memory),
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
        let mut counter = Algorithm { load: self, eval, masks: Vec::new(), cost: Work::default(), nominal: 0, exact: true };
        counter.block(self.kernel.body);
        let (mut work, kernel) = (counter.cost, self.kernel);
        let used = |tensor| {
            kernel.walk().iter().any(
                |&(_, op)| matches!(&kernel.ops[op].op, Op::Load { tensor: t, .. } | Op::Store { tensor: t, .. } if *t == tensor),
            )
        };
        for (id, param) in kernel.params.iter() {
            if let (ParamKind::Tensor(t), true) = (&param.kind, used(id)) {
                let elements: u64 = t.shape.iter().map(|s| counter.eval.size(s).max(0) as u64).product();
                let bytes = elements * self.binding.elem(kernel, t.elem).bytes().unwrap_or(0) as u64;
                if t.direction.is_read() {
                    work.read += bytes;
                }
                if t.direction.is_written() {
                    work.written += bytes;
                }
            }
        }
        Cost { algorithm: work, exact: counter.exact, nominal_flops: counter.nominal }
    }

    /// The work that a schedule with these blocks executes: whole tiles (of the block size also at the edges) for products and
    /// special functions, the elements that exist for memory.
    pub fn executed(&self, block: &dyn Fn(AxisId) -> i64, options: MaskOptions) -> Work {
        let size = |s| self.size_of(s);
        let param = |p| self.param(p);
        let eval = Evaluator { kernel: self.kernel, size: &size, param: &param };
        let kernel = self.kernel;
        // The grid dimensions whose tiles must be told apart: all tiled ones, and what loop bounds read.
        let fold = |s: &SizeExpr| Some(eval.size(s));
        let bounds: Vec<ValueId> = kernel
            .walk()
            .into_iter()
            .filter(|(_, op)| matches!(kernel.ops[*op].op, Op::For { .. }))
            .flat_map(|(_, op)| loop_masks(kernel, op, block, &fold, options).runs.ends().map(|e| e.values()).concat())
            .flat_map(|v| leaves(kernel, v))
            .collect();
        let mut points = vec![Point::new()];
        let mut factor = 1u64;
        for (dim, &v) in kernel.grid().iter().zip(program_values(kernel)) {
            match dim {
                ProgramDim::Tiles(a) => spread(&mut points, v, ceil_div(eval.size(&kernel.axes[*a].extent), block(*a))),
                ProgramDim::Each(s) if bounds.contains(&v) => spread(&mut points, v, eval.size(s)),
                ProgramDim::Each(s) => factor *= eval.size(s).max(0) as u64,
            }
        }
        let mut counter = Executed { load: self, eval, block, options, work: Work::default() };
        for mut point in points {
            let mut lengths = BTreeMap::new();
            for (dim, v) in kernel.grid().iter().zip(program_values(kernel)) {
                if let ProgramDim::Tiles(a) = dim {
                    lengths.insert(*a, counter.tile(*a, point[v]));
                }
            }
            counter.block(kernel.body, &mut point, &mut lengths, factor);
        }
        counter.work
    }
}

/// Counts of the text.
struct Algorithm<'a> {
    load: &'a Workload<'a>,
    eval: Evaluator<'a>,
    /// Masks of the loops around, innermost last: the loop's axis and row axis with what is visible as written, and the sum
    /// of the closed and the open count.
    masks: Vec<(AxisId, AxisId, Visible, u64)>,
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
                    let known = self.masks.len();
                    self.masks.extend(masks);
                    self.block(*body);
                    self.masks.truncate(known);
                }
                Op::Dot { a, b, .. } => {
                    let (a, b) = (&kernel.tile(*a).dims, &kernel.tile(*b).dims);
                    let (written, nominal) = self.elements(&[a[0].clone(), a[1].clone(), b[1].clone()]);
                    self.cost.flops += 2 * written;
                    self.nominal += nominal;
                }
                Op::Unary(..) | Op::Binary(..) => {
                    let result = kernel.ops[op].results[0];
                    let streams = block == kernel.body || self.loops_of(result);
                    if special(kernel, op) && streams {
                        self.cost.special += self.elements(&kernel.tile(result).dims).0;
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a value has a dimension of a loop: else it is computed once per tile, which is the schedule's business.
    fn loops_of(&self, v: ValueId) -> bool {
        let kernel = self.load.kernel;
        kernel.tile(v).dims.iter().any(|d| matches!(d, Dim::Axis(a) if kernel.axes[*a].kind == AxisKind::Loop))
    }

    fn masks_of(&mut self, loop_op: OpId, axis: AxisId) -> Option<(AxisId, AxisId, Visible, u64)> {
        let kernel = self.load.kernel;
        let Op::For { body, .. } = kernel.ops[loop_op].op else { unreachable!("a loop") };
        let seen = visible(&self.eval, loop_op, Boundary::Written);
        let Some(seen) = seen else {
            // A mask that is not counted makes the counts upper bounds.
            self.exact &= !kernel.blocks[body].ops.iter().any(|&op| matches!(kernel.ops[op].op, Op::Mask { .. }));
            return None;
        };
        self.exact &= seen.exact;
        let at = |boundary| visible(&self.eval, loop_op, boundary).map_or(seen.kept, |v| v.kept);
        let both = at(Boundary::Closed) + at(Boundary::Open);
        let rows = kernel.blocks[body].ops.iter().find_map(|&op| match &kernel.ops[op].op {
            Op::Mask { x, .. } => kernel.tile(*x).dims.iter().find_map(|d| match d {
                Dim::Axis(a) if *a != axis => Some(*a),
                _ => None,
            }),
            _ => None,
        });
        Some((axis, rows.expect("a counted mask has a row axis"), seen, both))
    }

    /// Elements of a space over these dimensions and the grid: those kept, and twice those kept with boundaries halved.
    fn elements(&self, dims: &[Dim]) -> (u64, u64) {
        let kernel = self.load.kernel;
        let mut each = 1u64;
        for dim in kernel.grid() {
            if let ProgramDim::Each(s) = dim {
                each *= self.eval.size(s).max(0) as u64;
            }
        }
        let has = |axis: AxisId| dims.contains(&Dim::Axis(axis));
        let mask = self.masks.iter().find(|(axis, rows, ..)| has(*axis) && has(*rows));
        let rest = dims.iter().filter(|d| !mask.is_some_and(|(a, r, ..)| **d == Dim::Axis(*a) || **d == Dim::Axis(*r)));
        let rest: u64 = rest
            .map(|d| match d {
                Dim::Axis(a) => self.eval.size(&kernel.axes[*a].extent),
                Dim::Range(len) => self.eval.size(len),
            })
            .map(|n| n.max(0) as u64)
            .product();
        match mask {
            Some((_, _, seen, both)) => (seen.kept * rest, both * rest),
            None => (each * rest, 2 * each * rest),
        }
    }
}

/// Lengths of the tile at hand along an axis.
#[derive(Clone, Copy)]
struct Length {
    /// Elements of whole tiles.
    whole: u64,
    /// Elements that exist.
    real: u64,
}

/// Counts of a schedule.
struct Executed<'a> {
    load: &'a Workload<'a>,
    eval: Evaluator<'a>,
    block: &'a dyn Fn(AxisId) -> i64,
    options: MaskOptions,
    work: Work,
}

impl Executed<'_> {
    fn tile(&self, axis: AxisId, tile: i64) -> Length {
        let (b, extent) = ((self.block)(axis), self.eval.size(&self.load.kernel.axes[axis].extent));
        Length { whole: b as u64, real: (extent - tile * b).clamp(0, b) as u64 }
    }

    fn block(&mut self, block: BlockId, point: &mut Point, lengths: &mut BTreeMap<AxisId, Length>, factor: u64) {
        let kernel = self.load.kernel;
        for &op in &kernel.blocks[block].ops {
            let data = &kernel.ops[op];
            let product = |dims: &[Dim], whole: bool| -> u64 {
                let length = |d: &Dim| match d {
                    Dim::Axis(a) => lengths.get(a).map_or(0, |l| if whole { l.whole } else { l.real }),
                    Dim::Range(len) => self.eval.size(len).max(0) as u64,
                };
                dims.iter().map(length).product::<u64>() * factor
            };
            let bytes = |tensor| {
                let elem = kernel.tensor(tensor).elem;
                self.load.binding.elem(kernel, elem).bytes().unwrap_or(0) as u64
            };
            match &data.op {
                Op::Dot { a, b, .. } => {
                    let (a, b) = (&kernel.tile(*a).dims, &kernel.tile(*b).dims);
                    self.work.flops += 2 * product(&[a[0].clone(), a[1].clone(), b[1].clone()], true);
                }
                Op::Unary(..) | Op::Binary(..) if special(kernel, op) => {
                    self.work.special += product(&kernel.tile(data.results[0]).dims, true);
                }
                Op::Load { tensor, .. } => {
                    self.work.read += product(&kernel.tile(data.results[0]).dims, false) * bytes(*tensor);
                }
                Op::Store { tensor, value, .. } => {
                    self.work.written += product(&kernel.tile(*value).dims, false) * bytes(*tensor);
                }
                Op::For { axis, part, body, .. } => {
                    let parts = part.map_or(1, |part| u64::from(part.count));
                    self.walk(op, *axis, *body, point, lengths, factor / parts);
                }
                _ => {}
            }
        }
    }

    fn walk(
        &mut self,
        op: OpId,
        axis: AxisId,
        body: BlockId,
        point: &mut Point,
        lengths: &mut BTreeMap<AxisId, Length>,
        factor: u64,
    ) {
        let kernel = self.load.kernel;
        let fold = |s: &SizeExpr| Some(self.eval.size(s));
        let runs = loop_masks(kernel, op, self.block, &fold, self.options).runs;
        let size = |s: &SizeExpr| self.eval.size(s);
        let value = |v: ValueId| self.eval.index(v, point).expect("loop bounds read program ids and sizes");
        let [lo, _, _, hi] = runs.eval(Lookups { size: &size, value: &value, param: self.eval.param });
        let coordinate = kernel.blocks[body].params[0];
        let last = hi.max(lo + 1) - 1;
        // All tiles but the last one walked cost the same, unless a loop inside depends on the coordinate.
        let nested = kernel.blocks[body].ops.iter().any(|&op| matches!(kernel.ops[op].op, Op::For { .. }));
        let tiles: Vec<(i64, u64)> = match (hi > lo, nested) {
            (false, _) => vec![],
            (true, true) => (lo..hi).map(|t| (t, 1)).collect(),
            (true, false) => [(lo, (last - lo) as u64), (last, 1)].into_iter().filter(|(_, times)| *times > 0).collect(),
        };
        for (t, times) in tiles {
            point.insert(coordinate, t);
            lengths.insert(axis, self.tile(axis, t));
            self.block(body, point, lengths, factor * times);
        }
        point.remove(&coordinate);
        lengths.remove(&axis);
    }
}

/// Whether an op takes a special function or a division per element.
fn special(kernel: &Kernel, op: OpId) -> bool {
    match &kernel.ops[op].op {
        Op::Unary(f, _) => matches!(f, UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Ln | UnaryOp::Log2 | UnaryOp::Tanh),
        Op::Binary(f, ..) => {
            matches!(f, BinaryOp::Div | BinaryOp::DivOrZero) && kernel.tile(kernel.ops[op].results[0]).elem.is_float()
        }
        _ => false,
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

impl Cost {
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
            let bound = |w: &Work| {
                let (seconds, limit) = w.roofline(machine);
                let limit = match limit {
                    Limit::Flops => "FLOPs",
                    Limit::Memory => "memory",
                    Limit::Special => "special",
                };
                format!("{:.3} us ({limit})", seconds * 1e6)
            };
            line("least time", bound(a), executed.map(bound));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::samples::{Softmax, attention, causal};
    use crate::ir::Elem;

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
