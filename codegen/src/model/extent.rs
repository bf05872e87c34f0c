//! What sizes add to a profile: programs, the trips of their loops, bytes of memory.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::analysis::index::{Lookups, Search, SearchEnd};
use flashtile_dsl::analysis::listed::listed;
use flashtile_dsl::analysis::mask::{self, LoopRuns, MaskOptions};
use flashtile_dsl::ir::{AxisId, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, SizeExpr, ValueId};

use crate::blocks;
use crate::instance::Instance;
use crate::schedule::BlockKnobs;

/// Tiles of the last grid dimension whose loops are evaluated, at most.
const SAMPLES: i64 = 64;

/// The loops of a kernel under a schedule: which tiles each walks, in closed form.
pub(super) struct Extent {
    instance: Instance,
    /// Positions of one block of each grid dimension; `None` for a dimension that is not tiled.
    blocks: Vec<Option<i64>>,
    coordinates: Vec<ValueId>,
    loops: Vec<LoopExtent>,
    /// Tensors that loops read.
    streamed: BTreeSet<ParamId>,
    /// Programs that share columns.
    shared: i64,
}

struct LoopExtent {
    runs: LoopRuns,
    /// Programs that share its tiles.
    parts: u32,
    /// The loop around it.
    around: Option<usize>,
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

/// Iterations of a loop, in all.
#[derive(Clone, Copy, PartialEq, Debug)]
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
        let size = |s: &SizeExpr| instance.binding.size(kernel, s);
        let options = MaskOptions { early_stop: schedule.early_stop, ..MaskOptions::default() };
        let loops = ops.iter().zip(homes).map(|(&op, home)| LoopExtent {
            listed: listed_share(kernel, op, &block, &size),
            runs: mask::loop_runs(kernel, op, &block, &size, options),
            parts: match kernel.ops[op].op {
                Op::For { part: Some(part), .. } => part.count,
                _ => 1,
            },
            around: around(home),
        });
        let streamed = kernel.walk().into_iter().filter_map(|(block, op)| match &kernel.ops[op].op {
            Op::Load { tensor, .. } if block != kernel.body => Some(*tensor),
            _ => None,
        });
        Self {
            blocks: blocks.collect(),
            coordinates,
            loops: loops.collect(),
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

    /// The programs for these sizes.
    pub fn programs(&self, sizes: &BTreeMap<String, i64>) -> Programs {
        let kernel = &self.instance.kernel;
        let size = |s: &SizeExpr| self.size(s, sizes);
        let count = |(dim, block): (&ProgramDim, &Option<i64>)| match (dim, block) {
            (ProgramDim::Tiles(axis), Some(block)) => -(-size(&kernel.axes[*axis].extent)).div_euclid(*block),
            (ProgramDim::Each(s), _) => size(s),
            (ProgramDim::Tiles(_), None) => unreachable!("a tiled dimension has a block"),
        };
        let counts: Vec<i64> = kernel.grid().iter().zip(&self.blocks).map(count).collect();
        let last = counts.last().copied().unwrap_or(1).max(0);
        let outer: i64 = counts.iter().rev().skip(1).map(|n| (*n).max(0)).product::<i64>() * self.shared;
        let samples = last.min(SAMPLES);
        let trips = (0..samples).map(|sample| {
            let tile = (2 * sample + 1) * last / (2 * samples);
            let value = |v: ValueId| match self.coordinates.iter().position(|&c| c == v) {
                Some(d) if d + 1 == counts.len() => tile,
                _ => 0,
            };
            let mut trips: Vec<Trips> = Vec::new();
            for LoopExtent { runs, parts, around, listed } in &self.loops {
                // Integer parameters and what is loaded are not known here: large, so that a window
                // of that width, or a length, hides nothing.
                let (param, loaded) = (|_| 1 << 30, |_| 1 << 30);
                // A search is taken to skip nothing, and to find all tiles full.
                let found = |search: &Search, _, _| match search.end {
                    SearchEnd::FirstMeeting | SearchEnd::FirstWithin => 0,
                    SearchEnd::PastMeeting | SearchEnd::PastWithin => 1 << 30,
                };
                let at = Lookups { size: &size, value: &value, param: &param, loaded: &loaded, found: &found };
                let [lo, full_lo, full_hi, hi] = runs.eval(at);
                let times = around.map_or(1.0, |loop_around: usize| trips[loop_around].all);
                if let &Some((share, cut)) = listed {
                    let all = ((hi - lo).max(0) as f64 * share / f64::from(*parts)).ceil() * times;
                    trips.push(Trips { all, cut: if cut { all } else { 0.0 } });
                    continue;
                }
                let skipped = runs.between(at);
                let own = |tiles: i64| (tiles.max(0) as f64 / f64::from(*parts)).ceil() * times;
                trips.push(Trips { all: own(hi - lo - skipped), cut: own(hi - lo - skipped - (full_hi - full_lo).max(0)) });
            }
            trips
        });
        Programs { last: last.unsigned_abs(), outer: outer.unsigned_abs(), trips: trips.collect() }
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

impl Programs {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.last * self.outer
    }
}
