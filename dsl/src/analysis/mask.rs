//! From masks and memory bounds to loop bounds: which tiles of a loop are skipped, which are full, which are cut.
//!
//! The positions come from [`super::predicate`], the licence to skip from [`super::unchanged`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::index::{IndexExpr, Lookups, Trend};
use super::listed::{Listed, listed};
use super::predicate::{Boundary, Gap, Holds, Run, Summaries, Walk, defined_in};
use super::unchanged::{Unchanged, Unproven, unchanged};
use crate::ir::{AxisId, BlockId, Kernel, Op, OpId, SizeExpr, ValueId};

/// The tiles of one loop, in ascending order: `[lo, full_lo)` cut, `[full_lo, full_hi)` full,
/// `[full_hi, hi)` cut; what lies outside `[lo, hi)` is skipped, and what lies in the gap between
/// two runs. Always `lo <= full_lo <= full_hi <= hi` (the expressions are clamped), and `lo >= 0`,
/// `hi <= ceil(extent / block)`. `lo == hi` is an empty loop.
///
/// Of a loop that walks a part of its tiles these are the tiles of all parts together.
///
/// In a full tile every mask of the body keeps every element of rows that exist, and every position of the loop axis
/// exists. In a skipped tile the masks keep nothing, and the loop's carried values would not change, or in no way that
/// anything stored depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopRuns {
    /// First tile walked.
    pub lo: IndexExpr,
    /// First full tile.
    pub full_lo: IndexExpr,
    /// One past the last full tile.
    pub full_hi: IndexExpr,
    /// One past the last tile walked.
    pub hi: IndexExpr,
    /// Tiles among them that are skipped: `lo <= gap.lo <= gap.hi <= hi`, and no full tile is in
    /// it.
    pub gap: Option<Gap>,
}

/// What a schedule says about masks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaskOptions {
    /// Whether tiles that a mask hides may be skipped.
    pub early_stop: bool,
    /// Whether bounds may read what is loaded. Without that they are known at launch.
    pub loaded: bool,
    /// Which tensors are summarised, of those that are loaded for each position of a loop.
    pub summaries: Summaries,
}

impl Default for MaskOptions {
    fn default() -> Self {
        Self { early_stop: true, loaded: true, summaries: Summaries::Declared }
    }
}

/// What is known of one mask of a loop body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskFacts {
    /// The mask.
    pub op: OpId,
    /// Where along the loop its predicate holds.
    pub holds: Holds,
    /// Whether a tile of which it keeps nothing may be skipped.
    pub hidden: Unchanged,
}

impl MaskFacts {
    /// Whether the predicate is true in every tile, whatever the sizes: the mask needs no code.
    pub fn is_always_true(&self) -> bool {
        self.holds.everywhere.is_all()
    }
}

/// What is known of the tiles of one loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopMasks {
    /// The loop.
    pub loop_op: OpId,
    /// The tiles walked.
    pub runs: LoopRuns,
    /// The masks of the body, in order, with those of loops inside it, and each
    /// `select(keep, x, 0.0)` of a constant by which tiles may be skipped. Empty if there is none.
    pub masks: Vec<MaskFacts>,
    /// Number of tiles of the axis: `ceil(extent / block)`.
    pub tiles: IndexExpr,
    /// One past the last tile that memory does not cut: `floor(extent / block)`. Tiles `memory_full .. tiles` (one at most)
    /// are cut by the memory bound.
    pub memory_full: IndexExpr,
    /// The tiles in which every mask keeps every element that exists, the memory bound left aside.
    pub unmasked: Run,
    /// The tiles that are not skipped for the masks' sake, before clamping.
    pub walked: Run,
    /// Why tiles that a mask hides are walked all the same.
    pub not_skipped: Option<Unproven>,
    /// The masks whose predicates are true in every tile that is walked, because others are skipped
    /// for them: they need no code, and loops inside know that they hold. Such is a mask that leaves
    /// all of a tile or nothing. Of a loop over heads it is the condition that a head is one of a
    /// group.
    pub implied: Vec<OpId>,
    /// What launches ahead can list of them, if the options take all summaries.
    pub listed: Option<Listed>,
}

impl LoopMasks {
    /// Whether no mask of the body ever hides anything: only the memory bound cuts tiles.
    pub fn is_unmasked(&self) -> bool {
        self.unmasked.is_all()
    }

    /// Whether the extent is a multiple of the block, so that memory cuts no tile.
    pub fn is_memory_even(&self) -> bool {
        self.tiles == self.memory_full
    }

    /// Number of tiles walked.
    pub fn trips(&self) -> IndexExpr {
        let all = self.runs.hi.minus(&self.runs.lo);
        self.runs.gap.as_ref().map_or(all.clone(), |gap| all.minus(&gap.hi.minus(&gap.lo)))
    }

    /// How the number of tiles walked moves with a coordinate (or index) of the program; `None` where that cannot be told.
    /// Work is ordered by it, longest loops first.
    pub fn trips_trend(&self, kernel: &Kernel, coordinate: ValueId) -> Option<Trend> {
        self.trips().trend(kernel, coordinate)
    }

    /// The runs of tiles, as they are printed.
    fn parts(&self) -> Vec<(&'static str, &IndexExpr, &IndexExpr)> {
        let LoopRuns { lo, full_lo, full_hi, hi, gap } = &self.runs;
        let gap = gap.as_ref().map(|gap| ("but not", &gap.lo, &gap.hi));
        [("cut", lo, full_lo), ("full", full_lo, full_hi), ("cut", full_hi, hi)].into_iter().chain(gap).collect()
    }

    /// Names of the number of tiles and of the ends that are no constants, where an end is too long
    /// to be written again for each that is clamped to it; else none.
    fn names(&self, kernel: &Kernel) -> Vec<(&'static str, &IndexExpr)> {
        if self.runs.ends().into_iter().all(|end| end.text(kernel).len() <= 100) {
            return Vec::new();
        }
        let LoopRuns { lo, full_lo, full_hi, hi, .. } = &self.runs;
        let mut names = vec![("tiles", &self.tiles)];
        for (name, end) in [("begin", lo), ("end", hi), ("full begin", full_lo), ("full end", full_hi)] {
            if end.as_const().is_none() && names.iter().all(|(_, other)| *other != end) {
                names.push((name, end));
            }
        }
        names
    }

    /// The printed form, a few lines.
    pub fn text(&self, kernel: &Kernel) -> String {
        let Op::For { axis, .. } = &kernel.ops[self.loop_op].op else { unreachable!("built for a loop") };
        let axis = &kernel.axes[*axis];
        let e = |e: &IndexExpr| e.text(kernel);
        let mut out = String::new();
        let mut line = |text: String| writeln!(out, "{text}").expect("strings take what is written");
        line(format!("for {} in tiles({})", axis.name, kernel.size_text(&axis.extent)));
        let unproved = |facts: &MaskFacts| matches!(facts.hidden, Unchanged::Unproved(_));
        let together = self.not_skipped.is_none() && !self.walked.is_all() && self.masks.iter().all(unproved);
        for facts in &self.masks {
            let name = kernel.ops[facts.op].results.first().and_then(|&r| kernel.values[r].name.as_deref()).unwrap_or("_");
            line(format!("  mask `{name}`"));
            line(format!("    holds somewhere   {}", run_text(kernel, &facts.holds.somewhere)));
            line(format!("    holds everywhere  {}", run_text(kernel, &facts.holds.everywhere)));
            line(format!(
                "    a hidden tile     {}",
                match &facts.hidden {
                    Unchanged::Always => "changes nothing".into(),
                    Unchanged::Unseen => "changes nothing that is stored".into(),
                    Unchanged::AfterFirst => "changes nothing after the first tile".into(),
                    Unchanged::Unproved(_) if together => "changes nothing where every mask hides it".into(),
                    Unchanged::Unproved(why) => format!("is walked: {why}"),
                }
            ));
        }
        if self.masks.is_empty() {
            line("  no mask".into());
        }
        line(format!("  tiles               {}", e(&self.tiles)));
        line(format!("  cut by memory       {} .. {}", e(&self.memory_full), e(&self.tiles)));
        let names = self.names(kernel);
        // An end by its name, or in terms of the other names.
        let end = |end: &IndexExpr, own: &str| {
            let others = names.iter().filter(|(name, _)| *name != own);
            end.text_with(kernel, &others.map(|&(name, end)| (end, name)).collect::<Vec<_>>())
        };
        for (what, lo, hi) in self.parts() {
            line(format!("  {what:<19} {lo} .. {hi}", lo = end(lo, ""), hi = end(hi, "")));
        }
        for (name, of) in names.iter().skip(1) {
            line(format!("  {name:<19} {}", end(of, name)));
        }
        if let Some(listed) = &self.listed {
            let rows = listed.rows.map_or(String::new(), |(_, rows)| format!(" for each tile of {}", kernel.axes[rows].name));
            line(format!("  listed ahead        the tiles that masks leave anything of{rows}"));
        }
        if let Some(why) = &self.not_skipped {
            line(format!("  nothing skipped     {why}"));
        }
        out
    }
}

fn run_text(kernel: &Kernel, run: &Run) -> String {
    if run.is_none() {
        return "in no tile".into();
    }
    match (&run.lo, &run.hi) {
        (None, None) => "in every tile".into(),
        (lo, hi) => {
            let end = |e: &Option<IndexExpr>| e.as_ref().map_or(String::new(), |e| e.text(kernel));
            format!("{} .. {}", end(lo), end(hi)).trim().to_owned()
        }
    }
}

/// The tiles of a loop: see [`loop_masks`], which tells more.
pub fn loop_runs(
    kernel: &Kernel,
    loop_op: OpId,
    block: &dyn Fn(AxisId) -> i64,
    size: &dyn Fn(&SizeExpr) -> Option<i64>,
    options: MaskOptions,
) -> LoopRuns {
    loop_masks(kernel, loop_op, block, size, options).runs
}

/// The condition of an op whose elements are a constant where that does not hold, and the value
/// where it holds: a mask, or `select(keep, x, 0.0)`.
pub fn kept_where(kernel: &Kernel, op: OpId) -> Option<(ValueId, ValueId)> {
    let is_constant = |v: ValueId| match kernel.def(v) {
        Some((_, &Op::Full { value, .. })) => matches!(kernel.def(value), Some((_, Op::Constant(..)))),
        found => matches!(found, Some((_, Op::Constant(..)))),
    };
    // One number for a tile is no tile that may stand for the result.
    let is_whole = |v: ValueId| kernel.tile(v).dims == kernel.tile(kernel.ops[op].results[0]).dims;
    match kernel.ops[op].op {
        Op::Mask { x, keep, .. } => Some((keep, x)),
        Op::Select { cond, on_true, on_false } if is_constant(on_false) && is_whole(on_true) => Some((cond, on_true)),
        _ => None,
    }
}

/// Analyses the masks of a loop, with block sizes as `block` says and the sizes that `size` knows folded in.
///
/// # Panics
/// If `loop_op` is not a `for`, or a block size is not positive.
pub fn loop_masks(
    kernel: &Kernel,
    loop_op: OpId,
    block: &dyn Fn(AxisId) -> i64,
    size: &dyn Fn(&SizeExpr) -> Option<i64>,
    options: MaskOptions,
) -> LoopMasks {
    let Op::For { axis, body, .. } = &kernel.ops[loop_op].op else { panic!("a loop is analysed") };
    let inner = defined_in(kernel, *body);
    let walk = Walk {
        kernel,
        coordinate: kernel.blocks[*body].params[0],
        inner: &inner,
        block,
        size,
        boundary: Boundary::Written,
        loaded: options.loaded,
        summaries: if options.loaded { options.summaries } else { Summaries::None },
    };
    let around = kernel.loop_around(loop_op);
    let known = around.map_or_else(Vec::new, |around| loop_masks(kernel, around, block, size, options).implied);
    let masks = masks_of(&walk, loop_op, &known);

    // Code for a `select` is there in each tile.
    let cut = masks.iter().filter(|m| is_mask(kernel, m.op));
    let unmasked = cut.fold(Run::all(), |run, m| run.intersect(&m.holds.everywhere));
    let (Walked { run: walked, gap, after_first }, not_skipped) =
        if options.early_stop { walked(kernel, loop_op, &masks) } else { (Walked::all(), None) };

    let (zero, b) = (IndexExpr::from(0), block(*axis));
    let extent = IndexExpr::from(kernel.axes[*axis].extent.clone()).fold_sizes(size);
    let (tiles, memory_full) = (extent.ceil_div(b), extent.floor_div(b));
    let clamp = |e: &IndexExpr, lo: &IndexExpr, hi: &IndexExpr| e.max_of(lo).min_of(hi);
    let mut lo = walked.lo.as_ref().map_or(zero.clone(), |lo| clamp(lo, &zero, &tiles));
    let mut hi = walked.hi.as_ref().map_or(tiles.clone(), |hi| hi.min_of(&tiles).max_of(&lo));
    if after_first {
        lo = zero.clone();
        hi = hi.max_of(&tiles.min_of(&1.into()));
    }
    let full_lo = clamp(unmasked.lo.as_ref().unwrap_or(&lo), &lo, &hi);
    let full_end = unmasked.hi.as_ref().map_or(memory_full.clone(), |hi| hi.min_of(&memory_full));
    let full_hi = clamp(&full_end, &full_lo, &hi);
    let gap = gap.map(|gap| {
        let begin = clamp(&gap.lo, &lo, &hi);
        Gap { hi: clamp(&gap.hi, &begin, &hi), lo: begin }
    });
    let runs = LoopRuns { lo, full_lo, full_hi, hi, gap };
    // A listed loop walks what its list holds.
    let skips = not_skipped.is_none() && !after_first && kernel.list(*axis, block).is_none();
    let one_skips = |facts: &&MaskFacts| {
        let proved = matches!(facts.hidden, Unchanged::Always | Unchanged::Unseen);
        proved && tells(kernel, *body, facts) && facts.holds.gap.is_none() && facts.holds.somewhere == facts.holds.everywhere
    };
    let implied = match options.early_stop && skips {
        true => known.into_iter().chain(masks.iter().filter(one_skips).map(|facts| facts.op)).collect(),
        false => known,
    };
    let lists = options.early_stop && options.loaded && options.summaries == Summaries::All;
    let listed = if lists { listed(kernel, loop_op, block, size).ok().flatten() } else { None };
    LoopMasks { loop_op, runs, masks, tiles, memory_full, unmasked, walked, not_skipped, implied, listed }
}

fn is_mask(kernel: &Kernel, op: OpId) -> bool {
    matches!(kernel.ops[op].op, Op::Mask { .. })
}

/// The masks of a loop, in order, but for those of which it is `known` that they hold.
fn masks_of(walk: &Walk<'_>, loop_op: OpId, known: &[OpId]) -> Vec<MaskFacts> {
    let kernel = walk.kernel;
    let of_loop = |op: OpId| kernel.ops[op].results.iter().all(|r| walk.inner.contains(r));
    // Where one condition keeps nothing, all that have it keep nothing.
    let mut alike: BTreeMap<ValueId, BTreeSet<OpId>> = BTreeMap::new();
    for op in kernel.ops.keys().filter(|&op| of_loop(op) && !known.contains(&op)) {
        if let Some((keep, _)) = kept_where(kernel, op) {
            alike.entry(keep).or_default().insert(op);
        }
    }
    let mut masks: Vec<MaskFacts> = Vec::new();
    for (keep, ops) in alike {
        let hidden = unchanged(kernel, loop_op, &ops);
        // A `select` hides nothing; tiles of which it gives the constant alone may be skipped.
        let counts = |op: &OpId| is_mask(kernel, *op) || !matches!(hidden, Unchanged::Unproved(_));
        let counted: Vec<OpId> = ops.into_iter().filter(counts).collect();
        if !counted.is_empty() {
            let holds = walk.holds(keep);
            masks.extend(counted.into_iter().map(|op| MaskFacts { op, holds: holds.clone(), hidden: hidden.clone() }));
        }
    }
    masks.sort_by_key(|facts| facts.op);
    masks
}

/// The tiles that must be walked.
struct Walked {
    /// A run that holds them.
    run: Run,
    /// Tiles of it that need not be.
    gap: Option<Gap>,
    /// Whether the first tile must be walked too.
    after_first: bool,
}

impl Walked {
    fn all() -> Self {
        Self { run: Run::all(), gap: None, after_first: false }
    }

    /// Those where masks hold somewhere, and the first if it must be.
    fn new(holds: &Holds, after_first: bool) -> Self {
        let gap = holds.gap.clone().filter(|_| !after_first);
        Self { run: holds.somewhere.clone(), gap, after_first }
    }
}

/// Whether a mask tells tiles of a loop apart: one of a loop inside that says the same of all does
/// not, and that loop skips by it.
fn tells(kernel: &Kernel, body: BlockId, mask: &MaskFacts) -> bool {
    kernel.blocks[body].ops.contains(&mask.op) || !mask.holds.somewhere.is_all_or_none()
}

/// The tiles that must be walked, and why no tile is skipped although masks hide some.
fn walked(kernel: &Kernel, loop_op: OpId, masks: &[MaskFacts]) -> (Walked, Option<Unproven>) {
    // One mask that hides a tile is enough if that alone leaves the carried values unchanged. Where a
    // mask of a loop inside says the same of all iterations, that loop skips its tiles.
    let Op::For { body, .. } = kernel.ops[loop_op].op else { unreachable!("a loop") };
    let proved = |m: &&MaskFacts| !matches!(m.hidden, Unchanged::Unproved(_));
    let provable: Vec<_> = masks.iter().filter(proved).filter(|m| tells(kernel, body, m)).collect();
    if !provable.is_empty() {
        let all = provable.iter().skip(1).fold(provable[0].holds.clone(), |all, m| all.and(&m.holds));
        return (Walked::new(&all, provable.iter().any(|m| m.hidden == Unchanged::AfterFirst)), None);
    }
    let Some(first) = masks.first() else { return (Walked::all(), None) };
    // Else all of them together may.
    match unchanged(kernel, loop_op, &masks.iter().map(|m| m.op).collect()) {
        Unchanged::Unproved(why) => (Walked::all(), Some(why)),
        proof => {
            let any = masks.iter().skip(1).fold(first.holds.clone(), |any, m| any.or(&m.holds));
            (Walked::new(&any, proof == Unchanged::AfterFirst), None)
        }
    }
}

impl LoopRuns {
    /// `[lo, full_lo, full_hi, hi]`.
    pub fn ends(&self) -> [&IndexExpr; 4] {
        [&self.lo, &self.full_lo, &self.full_hi, &self.hi]
    }

    /// Every expression: the ends, and those of the gap.
    pub fn exprs(&self) -> impl Iterator<Item = &IndexExpr> {
        self.ends().into_iter().chain(self.gap.iter().flat_map(|gap| [&gap.lo, &gap.hi]))
    }

    /// How many of the tiles from the first to the last are skipped, between two runs.
    pub fn between(&self, at: Lookups<'_>) -> i64 {
        self.gap.as_ref().map_or(0, |gap| gap.hi.eval(at) - gap.lo.eval(at))
    }

    /// The values of [`LoopRuns::ends`].
    pub fn eval(&self, at: Lookups<'_>) -> [i64; 4] {
        self.ends().map(|e| e.eval(at))
    }
}
