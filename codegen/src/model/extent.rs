//! What sizes add to a profile: programs, the trips of their loops, bytes of memory.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::analysis::index::IndexExpr;
use flashtile_dsl::analysis::listed::listed;
use flashtile_dsl::analysis::mask::{self, LoopRuns, MaskOptions};
use flashtile_dsl::ir::{AxisId, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, SizeExpr, Type, ValueId};

use super::integers::{Integers, Launch, Place};
use crate::blocks;
use crate::instance::Instance;
use crate::schedule::BlockKnobs;

/// Tiles of the last grid dimension whose loops are evaluated, and iterations of a loop around
/// another one, at most.
const SAMPLES: i64 = 64;
/// Programs of the other dimensions whose loops are evaluated, where what they load is known, at most.
const SEQUENCES: i64 = 4;

/// The loops of a kernel under a schedule: which tiles each walks, in closed form.
pub(super) struct Extent {
    instance: Instance,
    /// Positions of one block of each grid dimension; `None` for a dimension that is not tiled.
    blocks: Vec<Option<i64>>,
    /// Of each axis.
    block_of: BTreeMap<AxisId, i64>,
    coordinates: Vec<ValueId>,
    loops: Vec<LoopExtent>,
    /// Tensors that loops read.
    streamed: BTreeSet<ParamId>,
    /// Programs that share columns.
    shared: i64,
    /// Whether data say how many tiles loops walk.
    pub by_data: bool,
}

struct LoopExtent {
    runs: LoopRuns,
    /// Programs that share its tiles.
    parts: u32,
    /// The loop around it.
    around: Option<usize>,
    /// The coordinate or index of its iterations.
    index: ValueId,
    axis: AxisId,
    /// Whether its tiles depend on the index of a loop around it.
    varies: bool,
    /// Of a loop that walks a list, how many of its tiles are listed, and whether they are cut.
    listed: Option<(f64, bool)>,
}

/// The programs of a launch.
pub(super) struct Programs {
    /// Tiles of the last grid dimension.
    pub last: u64,
    /// Programs for each of them.
    pub outer: u64,
    /// For some of these tiles, evenly spread, the trips of each loop in all.
    pub trips: Vec<Vec<Trips>>,
}

/// Some iterations of a loop, evenly spread: its index and those of the loops around it.
type Visits = Vec<Vec<(ValueId, i64)>>;

/// Iterations of a loop, in all.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Trips {
    /// All.
    pub all: f64,
    /// Those whose tile a mask or the end of memory cuts.
    pub cut: f64,
}

/// Of a loop that walks a list, the share of its tiles that is listed, and whether masks cut these:
/// what masks look at is taken to be true half of the time, for each group of positions by itself.
fn listed_share(
    kernel: &Kernel,
    op: OpId,
    block: &dyn Fn(AxisId) -> i64,
    size: &dyn Fn(&SizeExpr) -> Option<i64>,
) -> Option<(f64, bool)> {
    let Op::For { axis, body, ref init, .. } = kernel.ops[op].op else { unreachable!("a loop") };
    kernel.list(axis, block)?;
    // A part of a loop has the list of the whole.
    let mut whole = kernel.clone();
    whole.ops[op].op = Op::For { axis, part: None, body, init: init.clone() };
    let listed = listed(&whole, op, block, size).ok().flatten()?;
    let groups = listed.groups_of_a_tile(listed.rows.map_or(1, |(_, rows)| block(rows)), block(axis));
    Some((1.0 - 0.5f64.powi(groups.try_into().unwrap_or(i32::MAX)), groups > 1))
}

impl Trips {
    fn add(&mut self, other: Trips) {
        self.all += other.all;
        self.cut += other.cut;
    }

    fn over(self, count: f64) -> Self {
        Self { all: self.all / count, cut: self.cut / count }
    }

    /// Those that the loop makes, if so many are made outside of it.
    pub fn made(&self, outside: f64) -> f64 {
        (self.all - outside).max(0.0)
    }
}

impl Extent {
    pub fn of(instance: &Instance, schedule: &BlockKnobs) -> Self {
        let kernel = &instance.kernel;
        let block = |axis| i64::from(blocks::block(kernel, schedule, axis));
        let blocks = kernel.grid().iter().map(|d| match d {
            ProgramDim::Each(_) => None,
            ProgramDim::Tiles(axis) => Some(block(*axis)),
        });
        let coordinates = match kernel.blocks[kernel.body].ops.first() {
            Some(&op) if !kernel.grid().is_empty() => kernel.ops[op].results.clone(),
            _ => Vec::new(),
        };
        let walk = kernel.walk().into_iter();
        let (homes, ops): (Vec<_>, Vec<_>) = walk.filter(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. })).unzip();
        // A loop in a loop makes its trips in each of the other's.
        let around = |home| ops.iter().position(|&op| matches!(kernel.ops[op].op, Op::For { body, .. } if body == home));
        let loop_of = |op: OpId| match kernel.ops[op].op {
            Op::For { axis, body, .. } => (axis, kernel.blocks[body].params[0]),
            _ => unreachable!("a loop"),
        };
        let indices: BTreeSet<ValueId> = ops.iter().map(|&op| loop_of(op).1).collect();
        let size = |s: &SizeExpr| instance.binding.size(kernel, s);
        let options = MaskOptions { early_stop: schedule.early_stop, ..MaskOptions::default() };
        let loops = ops.iter().zip(homes).map(|(&op, home)| {
            let runs = mask::loop_runs(kernel, op, &block, &size, options);
            let varies = runs.exprs().any(|expr| expr.values().iter().any(|value| indices.contains(value)));
            LoopExtent {
                listed: listed_share(kernel, op, &block, &size),
                varies,
                runs,
                parts: match kernel.ops[op].op {
                    Op::For { part: Some(part), .. } => part.count,
                    _ => 1,
                },
                around: around(home),
                index: loop_of(op).1,
                axis: loop_of(op).0,
            }
        });
        let streamed = kernel.walk().into_iter().filter_map(|(block, op)| match &kernel.ops[op].op {
            Op::Load { tensor, .. } if block != kernel.body => Some(*tensor),
            _ => None,
        });
        let loops: Vec<LoopExtent> = loops.collect();
        let is_by_data = |walked: &LoopExtent| walked.listed.is_some() || walked.runs.exprs().any(IndexExpr::is_loaded);
        Self {
            by_data: loops.iter().any(is_by_data),
            blocks: blocks.collect(),
            block_of: kernel.axes.keys().map(|axis| (axis, block(axis))).collect(),
            coordinates,
            loops,
            streamed: streamed.collect(),
            shared: schedule.column_programs.into(),
            instance: instance.clone(),
        }
    }

    fn size(&self, size: &SizeExpr, sizes: &BTreeMap<String, i64>) -> i64 {
        let (kernel, consts) = (&self.instance.kernel, &self.instance.binding.consts);
        let known = |name: &str| consts.get(name).or_else(|| sizes.get(name)).copied();
        size.eval(|id| known(kernel.size_name(id))).unwrap_or(1)
    }

    /// The programs for these sizes, and these integers.
    pub fn programs(&self, sizes: &BTreeMap<String, i64>, integers: &Integers) -> Programs {
        let kernel = &self.instance.kernel;
        let size = |s: &SizeExpr| self.size(s, sizes);
        let block = |coordinate: ValueId| match kernel.ty(coordinate) {
            Type::Coord(axis) => self.block_of[axis],
            _ => 1,
        };
        let launch = Launch { kernel, integers, size: &size, block: &block };
        let count = |(dim, block): (&ProgramDim, &Option<i64>)| match (dim, block) {
            (ProgramDim::Tiles(axis), Some(block)) => -(-size(&kernel.axes[*axis].extent)).div_euclid(*block),
            (ProgramDim::Each(s), _) => size(s),
            (ProgramDim::Tiles(_), None) => unreachable!("a tiled dimension has a block"),
        };
        let counts: Vec<i64> = kernel.grid().iter().zip(&self.blocks).map(count).collect();
        let last = counts.last().copied().unwrap_or(1).max(0);
        let outer: i64 = counts.iter().rev().skip(1).map(|n| (*n).max(0)).product::<i64>() * self.shared;
        let samples = last.min(SAMPLES);
        // Of what is loaded for sequences, several are looked at; all are alike where nothing is known.
        let sequences = if integers.know_tensors() { outer.clamp(1, SEQUENCES) } else { 1 };
        let trips = (0..samples).map(|sample| {
            let tile = spread(sample, samples, last);
            let mut sum = vec![Trips::default(); self.loops.len()];
            for sequence in 0..sequences {
                let of_outer = if sequences > 1 { spread(sequence, sequences, outer / self.shared) } else { 0 };
                let at = place(&counts, of_outer, tile);
                let coordinate = |v: ValueId| self.coordinates.iter().position(|&c| c == v).map_or(0, |dim| at[dim]);
                sum.iter_mut().zip(self.trips(launch, &coordinate)).for_each(|(sum, trips)| sum.add(trips));
            }
            sum.into_iter().map(|sum| sum.over(sequences as f64)).collect()
        });
        let trips = trips.collect();
        Programs { last: last.unsigned_abs(), outer: outer.unsigned_abs(), trips }
    }

    /// The trips of each loop in one program.
    fn trips(&self, launch: Launch<'_>, coordinate: &dyn Fn(ValueId) -> i64) -> Vec<Trips> {
        let mut trips: Vec<Trips> = Vec::new();
        let mut visits: Vec<Visits> = Vec::new();
        for walked in &self.loops {
            let times = walked.around.map_or(1.0, |around| trips[around].all);
            let around = walked.around.map_or_else(|| vec![Vec::new()], |around| visits[around].clone());
            // The first iteration stands for all where none differs.
            let seen = if walked.varies { around.len() } else { 1 };
            let each: Vec<Walked> = around.iter().take(seen).map(|of| walked.at(launch, coordinate, of)).collect();
            let mean =
                |part: fn(&Trips) -> f64| times * each.iter().map(|w| part(&w.trips)).sum::<f64>() / each.len().max(1) as f64;
            trips.push(Trips { all: mean(|t| t.all), cut: mean(|t| t.cut) });
            let most = (SAMPLES / each.len().max(1) as i64).max(1);
            let iterations = |(of, walk): (&Vec<(ValueId, i64)>, &Walked)| {
                let [lo, hi] = walk.tiles;
                let count = (hi - lo).clamp(0, most);
                let at = move |n| lo + spread(n, count, hi - lo);
                (0..count).map(move |n| (walked.index, at(n))).map(|own| [of.as_slice(), &[own]].concat()).collect::<Visits>()
            };
            visits.push(around.iter().zip(&each).flat_map(iterations).collect());
        }
        trips
    }

    /// The fewest bytes a launch moves: every tensor once.
    pub fn bytes(&self, sizes: &BTreeMap<String, i64>) -> f64 {
        let params = &self.instance.kernel.params;
        params.values().map(|param| self.bytes_of(&param.kind, sizes)).sum()
    }

    /// The same of the tensors that loops read.
    pub fn streamed_bytes(&self, sizes: &BTreeMap<String, i64>) -> f64 {
        self.streamed.iter().map(|&param| self.bytes_of(&self.instance.kernel.params[param].kind, sizes)).sum()
    }

    fn bytes_of(&self, kind: &ParamKind, sizes: &BTreeMap<String, i64>) -> f64 {
        let (kernel, binding) = (&self.instance.kernel, &self.instance.binding);
        match kind {
            ParamKind::Tensor(t) => {
                let elements: f64 = t.shape.iter().map(|s| self.size(s, sizes) as f64).product();
                elements * binding.elem(kernel, t.elem).bytes().unwrap_or(4) as f64
            }
            ParamKind::Scalar(_) => 0.0,
        }
    }
}

/// What a loop walks in one iteration of the loops around it.
struct Walked {
    trips: Trips,
    /// The first tile, and one past the last.
    tiles: [i64; 2],
}

impl LoopExtent {
    /// What is walked where the indices of the loops around it have these values.
    fn at(&self, launch: Launch<'_>, coordinate: &dyn Fn(ValueId) -> i64, around: &[(ValueId, i64)]) -> Walked {
        let value = |v: ValueId| around.iter().find(|(index, _)| *index == v).map_or_else(|| coordinate(v), |(_, at)| *at);
        let extent = (launch.size)(&launch.kernel.axes[self.axis].extent);
        let place = Place { launch, value: &value, extent };
        let ([lo, full_lo, full_hi, hi], between) = place.look(|at| (self.runs.eval(at), self.runs.between(at)));
        let own = |tiles: f64| (tiles.max(0.0) / f64::from(self.parts)).ceil();
        let trips = if let Some((share, cut)) = self.listed {
            let all = own((hi - lo) as f64 * share);
            Trips { all, cut: if cut { all } else { 0.0 } }
        } else {
            let walked = hi - lo - between;
            Trips { all: own(walked as f64), cut: own((walked - (full_hi - full_lo).max(0)) as f64) }
        };
        Walked { trips, tiles: [lo, hi] }
    }
}

/// The coordinates of a program: the tile of the last dimension, and of the others the place that has
/// this number among all of theirs.
fn place(counts: &[i64], mut outer: i64, tile: i64) -> Vec<i64> {
    let mut place = vec![0; counts.len()];
    let Some((last, others)) = place.split_last_mut() else { return place };
    *last = tile;
    for (at, &count) in others.iter_mut().zip(counts).rev() {
        *at = outer % count.max(1);
        outer /= count.max(1);
    }
    place
}

/// The middle of a part of a range that is divided into so many.
fn spread(part: i64, parts: i64, length: i64) -> i64 {
    (2 * part + 1) * length / (2 * parts)
}

impl Programs {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.last * self.outer
    }
}
