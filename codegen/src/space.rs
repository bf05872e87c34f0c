//! The schedules that are tried: every legal combination of the knob values that matter to a kernel.
//!
//! A knob that cannot change the code of a kernel (block_k where nothing has it, work order where all programs are alike)
//! keeps its default, so that no two schedules of the space are the same program. Values that never won anywhere are not
//! here, though a schedule written by hand may use them.
//!
//! Splits and folded rows are not here either: whether they help depends on the sizes. The ranking
//! adds splits ([`splits`]) to the schedules whose programs do not fill the machine, and folds rows
//! ([`FoldedSpace`]) where that makes far fewer programs. Nor are loops that are walked in
//! another order: only the data say whether they help, and the ranking adds them ([`reordered`]) to
//! the best schedules. Programs that take the maximum of their first tile for all of them are for
//! tuners alone ([`with_first_maximum`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::OnceLock;

use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::ir::{AxisId, AxisKind, BinaryOp, Elem, Kernel, Op, OpId, Type, ValueId};

use crate::abi::FoldedSizes;
use crate::arch::{Arch, CopyOp, TensorOp};
use crate::blocks::{self, BlockKnob};
use crate::elementwise_tiles::{elementwise_tiles, shares_bytes, sharing_dims};
use crate::instance::Instance;
use crate::instruction::{copies_by_elements, warp_copy_op, warp_tensor_op};
use crate::launches::{self, MAX_SPLITS};
use crate::lower;
use crate::parallel::each;
use crate::planning::{check, fits};
use crate::reason::Summary;
use crate::schedule::{
    BLayout, BlockKnobs, Differences, Fixup, OperandA, Overlap, PackGqa, Persistent, PingPong, Precompute, RunningMax, Schedule,
    Summaries, Terms, TileLoads, Walk, WorkOrder,
};

/// All legal schedules of the space, in a fixed order.
pub fn space(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    candidates(instance, arch).into_iter().filter(|s| check(instance, s, arch).is_legal()).collect()
}

/// All combinations, legal or not, with what depends on differences of positions in place and, where
/// that is possible, computed ahead.
pub(crate) fn candidates(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    let mut all = candidates_of_pairs(instance, arch);
    if let Some(main) = launches::with_differences(instance) {
        let ahead = candidates_of_pairs(&main, arch).into_iter();
        all.extend(ahead.map(|schedule| schedule.with_launches(|launches| launches.differences = Differences::Ahead)));
    }
    all
}

/// The same without launches ahead for differences: with computed operands in place and, where that
/// is possible, computed ahead.
fn candidates_of_pairs(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    let mut all = candidates_in_place(instance, arch);
    for precompute in [Precompute::B, Precompute::Ab] {
        match with_precomputed(instance, precompute) {
            Some(main) => {
                let ahead = candidates_in_place(&main, arch).into_iter();
                all.extend(ahead.map(|schedule| schedule.with_launches(|launches| launches.precompute = precompute)));
            }
            // The compiler made a wrong kernel: this schedule says so among the rejected
            // candidates.
            None if can_precompute(instance, precompute) => {
                all.push(Schedule::from(smallest()).with_launches(|launches| launches.precompute = precompute));
            }
            None => {}
        }
    }
    // A step that overlaps others loads vectors behind a wait, into registers: what it need not hold
    // pays there. Warpgroups that share columns wait for what they load between products.
    if let Some(main) = launches::with_terms(instance) {
        let pays = |schedule: &Schedule| schedule.main.overlap != Overlap::Off || schedule.main.column_groups > 1;
        let steps = |main: &Instance| {
            let steps = candidates_in_place(main, arch).into_iter().filter(pays);
            steps.map(|schedule| schedule.with_launches(|launches| launches.terms = Terms::Product))
        };
        all.extend(steps(&main));
        if let Some(main) = launches::with_copies(&main, &instance.kernel) {
            let with_copies = steps(&main);
            all.extend(with_copies.map(|schedule| schedule.with_launches(|launches| launches.b_layout = BLayout::Copied)));
        }
    }
    if let Some(main) = launches::with_copies(instance, &instance.kernel) {
        // Where warps would copy the operands as they are by elements, it pays for them too.
        let by_elements = copies_by_elements(instance, arch);
        let pays = |schedule: &Schedule| schedule.main.tensor_op.is_asynchronous() || by_elements;
        let with_copies = candidates_in_place(&main, arch).into_iter().filter(pays);
        all.extend(with_copies.map(|schedule| schedule.with_launches(|launches| launches.b_layout = BLayout::Copied)));
    }
    if launches::why_not_summarise(instance).is_none() {
        all = all.into_iter().map(|schedule| schedule.with_launches(|launches| launches.summaries = Summaries::On)).collect();
    }
    if launches::why_not_list(instance).is_none() {
        let listed: Vec<Schedule> =
            all.iter().map(|schedule| schedule.with_launches(|launches| launches.summaries = Summaries::Listed)).collect();
        all.extend(listed);
    }
    all
}

/// The instance that is left if operands are computed ahead, if they can be. None for a kernel that
/// came out wrong either: generating code under a schedule that asks for it says so.
pub(crate) fn with_precomputed(instance: &Instance, precompute: Precompute) -> Option<Instance> {
    let Some(sides) = launches::Sides::of(precompute) else { return Some(instance.clone()) };
    Some(launches::precompute(&instance.kernel, sides).ok()?.main_of(instance))
}

/// Whether the kernel has operands that can be computed ahead as this says.
pub(crate) fn can_precompute(instance: &Instance, precompute: Precompute) -> bool {
    launches::Sides::of(precompute).is_none_or(|sides| launches::why_not_precompute(&instance.kernel, sides).is_none())
}

/// All combinations of the architecture's best tensor instruction if the kernel can use it, else those of the next.
fn candidates_in_place(instance: &Instance, arch: &'static Arch) -> Vec<Schedule> {
    let blocks = match why_not_wgmma(instance, arch) {
        None => {
            let columns = column_groups(instance, arch);
            let found = wgmma_candidates(instance, arch, columns, false);
            let more = || {
                let more = COLUMN_GROUPS.into_iter().filter(|more| *more > columns);
                let more = more.filter(|&more| can_share_columns(instance, more, true, arch));
                more.flat_map(|more| wgmma_candidates(instance, arch, more, false).schedules)
            };
            match found.warpgroups {
                // Few columns a step leave little of what `wgmma` gains: more groups of warps may have
                // more.
                0 => {
                    let few = wgmma_candidates(instance, arch, columns, true).schedules;
                    few.into_iter().chain(more()).chain(warp_candidates(instance, arch)).collect()
                }
                // One warpgroup by itself leaves the tensor cores idle while it computes elements: two
                // that share columns may keep them busy.
                1 => found.schedules.into_iter().chain(more()).collect(),
                _ => found.schedules,
            }
        }
        Some(_) => {
            let mut all = warp_candidates(instance, arch);
            // It stands for all of its kind, so that the reasons against them are among those of the candidates.
            all.extend(arch.tensor_ops.contains(&TensorOp::Wgmma).then(smallest));
            all
        }
    };
    blocks.into_iter().map(Schedule::from).collect()
}

/// Why the kernel cannot use `wgmma` although the architecture has it; `None` if it can, or if there is none.
pub fn fallback(instance: &Instance, arch: &'static Arch) -> Option<String> {
    why_not_wgmma(instance, arch).filter(|_| arch.tensor_ops.contains(&TensorOp::Wgmma))
}

/// Whether some schedule of the kernel multiplies with `wgmma`, its operands computed as this says.
pub(crate) fn can_use_wgmma(instance: &Instance, precompute: Precompute, arch: &'static Arch) -> bool {
    with_precomputed(instance, precompute).is_some_and(|main| why_not_wgmma(&main, arch).is_none())
}

/// Numbers of column groups that are tried.
const COLUMN_GROUPS: [u32; 2] = [1, 2];

fn why_not_wgmma(instance: &Instance, arch: &'static Arch) -> Option<String> {
    if !arch.tensor_ops.contains(&TensorOp::Wgmma) {
        return Some(format!("{arch} has no wgmma"));
    }
    let legality = check(instance, &smallest().into(), arch);
    let others = || smallest_each().into_iter().skip(1).any(|schedule| fits(instance, &schedule.into(), arch));
    (!legality.is_legal() && !others()).then(|| Summary::of(&legality.reasons).to_string())
}

/// The smallest tiles of all kernels that `wgmma` can compute.
pub(crate) fn smallest_each() -> Vec<BlockKnobs> {
    COLUMN_GROUPS.into_iter().flat_map(smallest_with).collect()
}

/// The smallest tiles with so many column groups, and those of kernels that cannot have them: with
/// wide accumulators, or whose loops walk rows, which are as many as the rows of a state that
/// products sum over.
fn smallest_with(columns: u32) -> Vec<BlockKnobs> {
    let of = smallest_of(columns);
    let rows = |warps| BlockKnobs { block_m: 16 * warps, block_n: 16 * warps, warps: warps * columns, ..of.clone() };
    match columns {
        1 => vec![of.clone(), rows(4), rows(8)],
        _ => vec![of.clone(), rows(4)],
    }
}

/// Groups of warps that share columns, in the schedules of a kernel that `wgmma` can compute: as
/// few as hold its accumulators.
fn column_groups(instance: &Instance, arch: &'static Arch) -> u32 {
    let has_room = |columns: &u32| smallest_with(*columns).into_iter().any(|of| fits(instance, &of.into(), arch));
    COLUMN_GROUPS.into_iter().find(has_room).unwrap_or(1)
}

/// Whether so many groups of warps can share the columns of the kernel's tiles.
pub(crate) fn can_share_columns(instance: &Instance, columns: u32, wgmma: bool, arch: &'static Arch) -> bool {
    let smallest = if wgmma {
        smallest_with(columns)
    } else {
        let (tensor_op, copy) = (warp_tensor_op(instance, arch), warp_copy_op(instance, arch));
        let base = BlockKnobs { tensor_op, copy, ..BlockKnobs::default() };
        vec![smallest_of_warps(&base, columns, lower::least_share(tensor_op) * columns)]
    };
    smallest.into_iter().any(|of| fits(instance, &of.into(), arch))
}

/// The smallest tiles of warps that multiply by themselves, one in each of so many column groups, with
/// steps of so many columns.
fn smallest_of_warps(base: &BlockKnobs, columns: u32, block_n: u32) -> BlockKnobs {
    let base = base.clone();
    BlockKnobs { block_m: 16, warps: columns, column_groups: columns, block_n, block_k: 32, stages: 1, ..base }
}

/// [`smallest`] with so many column groups.
fn smallest_of(columns: u32) -> BlockKnobs {
    match columns {
        1 => smallest(),
        _ => BlockKnobs {
            warps: 4 * columns,
            block_n: 16 * columns,
            column_groups: columns,
            min_blocks: 1,
            producer_registers: 24,
            ..smallest()
        },
    }
}

/// Rounds of blocks that split programs may take where the machine is not filled once.
const ROUNDS: f64 = 2.0;
/// And where it is half full or more.
const MORE_ROUNDS: f64 = 4.0;
/// Rounds of blocks without a split from which on none is tried.
const MANY: f64 = 3.0;
/// Share of the slots of all rounds that programs without a split take, from which on none is
/// tried.
const USED: f64 = 0.8;
/// What a split must win of that share.
const GAIN: f64 = 1.15;

/// The splits worth trying where a launch has `programs` for `slots` that run at once, and a loop
/// of `trips`: those that give every part a tile, and leave few slots empty in the rounds that they
/// take. None where few are empty without a split.
///
/// Where half of the machine is empty, that is the two largest powers of two, and what fills one
/// round and two. Powers of two alone would leave much of a machine empty: 40 programs in 4 parts
/// take two rounds of 132 slots, and in 3 parts one.
pub(crate) fn splits(programs: f64, slots: f64, trips: f64) -> Splits {
    let used = |parts: u32| {
        let rounds = programs * f64::from(parts) / slots;
        rounds / rounds.ceil()
    };
    let half_empty = programs <= 0.5 * slots;
    if programs > MANY * slots || (!half_empty && used(1) > USED) {
        return Splits::default();
    }
    let most = if half_empty { ROUNDS } else { MORE_ROUNDS };
    let filling = |rounds: u32| (f64::from(rounds) * slots / programs).min(MAX_SPLITS.into()) as u32;
    let fits = |&parts: &u32| parts > 1 && programs * f64::from(parts) <= most * slots && f64::from(parts) <= trips;
    let mut found: Vec<u32> = (1..=most as u32).map(filling).filter(|&parts| used(parts) >= GAIN * used(1)).collect();
    if half_empty {
        let powers: Vec<u32> = (1..=MAX_SPLITS.ilog2()).map(|exponent| 1 << exponent).filter(fits).collect();
        found.extend(&powers[powers.len().saturating_sub(2)..]);
    }
    found.retain(fits);
    found.sort_unstable();
    found.dedup();
    Splits { counts: found, half_empty }
}

/// Splits worth trying.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Splits {
    /// Numbers of parts, ascending.
    pub counts: Vec<u32>,
    /// Whether half of the machine is empty without a split.
    pub half_empty: bool,
}

/// The schedules with folded rows, of a kernel whose heads may be folded.
pub(crate) struct FoldedSpace {
    /// The kernel that folds rows, and how it sees tensors.
    kernel: Kernel,
    folded: launches::Folded,
    /// All of them, made when sizes first ask for any.
    all: OnceLock<Vec<Schedule>>,
}

impl FoldedSpace {
    /// None if the rows of no heads can be folded, or if the folded kernel came out wrong:
    /// generating code with `pack_gqa=on` says so.
    pub fn of(instance: &Instance) -> Option<Self> {
        let made = if instance.facts.foldable { launches::fold(&instance.kernel).ok() } else { None }?;
        Some(Self { kernel: made.main, folded: made.folded?, all: OnceLock::new() })
    }

    /// The candidates of the kernel that folds rows, all whose programs become at most half as many for these sizes. `unfolded`
    /// are the candidates of the kernel as it is, which have the same blocks: where none of these is large enough, nothing is
    /// planned.
    pub fn schedules(
        &self,
        instance: &Instance,
        arch: &'static Arch,
        sizes: &BTreeMap<String, i64>,
        unfolded: &[Schedule],
    ) -> Vec<Schedule> {
        let found = self.folded.rows(&self.kernel, &instance.binding).sizes(|name| sizes.get(name).copied());
        let Some(FoldedSizes { share, rows, folded, .. }) = found else { return Vec::new() };
        let fewer = |schedule: &Schedule| {
            let block = u64::from(blocks::block(&self.kernel, &schedule.main, self.folded.axis).max(1));
            let tiles = |rows: i64| rows.unsigned_abs().div_ceil(block);
            2 * tiles(folded) <= share.unsigned_abs() * tiles(rows)
        };
        if !unfolded.iter().any(fewer) {
            return Vec::new();
        }
        let all = self.all.get_or_init(|| {
            let all = candidates(&Instance { kernel: self.kernel.clone(), ..instance.clone() }, arch);
            all.into_iter().map(|schedule| schedule.with_launches(|launches| launches.pack_gqa = PackGqa::On)).collect()
        });
        all.iter().filter(|schedule| fewer(schedule)).cloned().collect()
    }
}

/// Parts from which on merging them in groups is worth a launch more.
const GROUPED: u32 = 16;

/// A schedule with splits, with every other way to combine the parts that the architecture has. Blocks of programs that meet do
/// not stay.
pub(crate) fn combining(split: &Schedule, arch: &Arch) -> Vec<Schedule> {
    let with = |fixup| split.with_launches(|launches| launches.fixup = fixup);
    let meeting = |fixup| leaving_its_block(&with(fixup));
    let mut all = [Fixup::Semaphore, Fixup::Cluster].map(meeting).to_vec();
    all.extend((split.launches.split_k >= GROUPED).then(|| with(Fixup::Tree)));
    all.retain(|schedule| launches::why_not_combine(schedule, arch).is_empty());
    all
}

/// Programs for each slot up to which blocks that end with their program are tried.
const FEW: f64 = 2.0;

/// The schedule with a block for each program where there are so few programs that blocks hardly
/// have a second one: nothing is gained by staying then, and asking for the next program costs.
pub(crate) fn leaving(schedule: &Schedule, programs: f64, slots: f64) -> Option<Schedule> {
    let leaves = schedule.main.persistent != Persistent::Off && programs <= FEW * slots;
    leaves.then(|| leaving_its_block(schedule))
}

/// The schedule with a block for each program.
fn leaving_its_block(schedule: &Schedule) -> Schedule {
    schedule.with_main(|main| (main.persistent, main.outer_stages) = (Persistent::Off, 1))
}

/// The schedule without summaries of what masks load, if it has them.
pub(crate) fn unsummarised(schedule: &Schedule) -> Option<Schedule> {
    let has = schedule.launches.summaries == Summaries::On;
    has.then(|| schedule.with_launches(|launches| launches.summaries = Summaries::Off))
}

/// The schedule with its loops walked in other orders, where that may matter: a lazy maximum moves
/// as often as scores grow along the walk. The kernel's loops must allow it.
pub(crate) fn reordered(schedule: &Schedule) -> Vec<Schedule> {
    let matters = schedule.main.tensor_op.is_asynchronous() && schedule.main.running_max != RunningMax::Exact;
    let walks = if matters { &[Walk::LastFirst, Walk::Descending][..] } else { &[] };
    walks.iter().map(|&walk| schedule.with_main(|main| main.walk = walk)).collect()
}

/// Of walks that take equally long, the one to take where nothing is known of the data.
///
/// A walk that begins with the last tile that nothing cuts takes as long as one from the first, and
/// meets fewer maxima where scores grow (docs/performance.md, "Data"). Two kinds of masks take another:
///
/// * Where a number that grows with the distance of keys is added to masked scores, as in ALiBi, the
///   nearest keys are expected to have the largest, and these are the last.
/// * Where a mask compares what is loaded for each key, as of documents, the data tell which tiles are
///   cut. The walk would begin with the last of all, which shows some rows few keys or none.
pub(crate) fn untuned_walk(instance: &Instance) -> Walk {
    let kernel = &instance.kernel;
    let masked = kernel.ops.values().any(|op| matches!(op.op, Op::Mask { .. }));
    if masked && adds_distances(kernel) {
        Walk::Descending
    } else if masked && launches::why_not_summarise(instance).is_none() {
        Walk::Ascending
    } else {
        Walk::LastFirst
    }
}

/// Whether positions along the axis of a loop enter a matrix of floats as numbers.
fn adds_distances(kernel: &Kernel) -> bool {
    let walked = |v: ValueId| match kernel.ty(v) {
        Type::Coord(axis) => kernel.axes[*axis].kind == AxisKind::Loop,
        _ => false,
    };
    let mut of_positions: HashSet<ValueId> = HashSet::new();
    for (_, id) in kernel.walk() {
        let data = &kernel.ops[id];
        let is_of = match data.op {
            Op::Pos(v) => walked(v),
            Op::Binary(..) | Op::Cast(..) => data.op.operands().iter().any(|v| of_positions.contains(v)),
            _ => false,
        };
        let Some(&result) = data.results.first().filter(|_| is_of) else { continue };
        let Type::Tile(tile) = kernel.ty(result) else { continue };
        let is_sum = matches!(data.op, Op::Binary(BinaryOp::Add | BinaryOp::Sub, ..));
        if is_sum && tile.elem == Elem::F32 && tile.rank() == 2 {
            return true;
        }
        of_positions.insert(result);
    }
    false
}

/// Schedules to try beside these, whose programs take the maximum of their first tile for all: of
/// the same tiles, and where these have 192 rows and 64 columns, of 256 rows, for which nothing
/// else leaves enough registers. A tuner measures them on the data that it is given; on others half
/// of the work may be for nothing, so that nobody takes one untuned. None where P is f16, of which
/// scores of a standard deviation of 8 have too little room, and none where rows begin at keys of
/// their own, as with a sliding window: the first tile shows some rows of most programs nothing.
pub fn with_first_maximum<'a>(instance: &Instance, legal: impl Iterator<Item = &'a Schedule>) -> Vec<Schedule> {
    let mut found: Vec<Schedule> = Vec::new();
    let few_bits = instance.binding.types.values().any(|&elem| elem == Elem::F16);
    if few_bits || !lower::rows_begin_alike(instance, &wgmma_schedule()) {
        return found;
    }
    let takes = |main: &BlockKnobs| {
        main.running_max == RunningMax::MaxFirst
            && main.tensor_op.is_asynchronous()
            && main.overlap == Overlap::On
            && main.persistent != Persistent::Off
    };
    for schedule in legal.filter(|schedule| takes(&schedule.main)) {
        found.push(schedule.with_main(|main| main.running_max = RunningMax::First));
        if (schedule.main.block_m, schedule.main.block_n, schedule.main.warps) == (192, 64, 12) {
            found.push(schedule.with_main(|main| (main.running_max, main.block_m, main.warps) = (RunningMax::First, 256, 16)));
        }
    }
    found
}

/// The smallest tiles: what speaks against these speaks against all.
pub(crate) fn smallest() -> BlockKnobs {
    BlockKnobs { block_m: 64, block_n: 16, block_k: 64, warps: 4, stages: 1, ..wgmma_schedule() }
}

fn wgmma_schedule() -> BlockKnobs {
    BlockKnobs { tensor_op: TensorOp::Wgmma, copy: CopyOp::Tma, ..BlockKnobs::default() }
}

/// What may be done while products are in flight: beside each other if the loop can be taken apart so,
/// else nothing, or what needs no result of theirs.
fn overlaps(instance: &Instance, arch: &'static Arch) -> &'static [Overlap] {
    let with = |overlap, of| fits(instance, &BlockKnobs { overlap, stages: 2, ..of }.into(), arch);
    let takes = |overlap: Overlap| smallest_each().into_iter().any(|of| with(overlap, of));
    match (takes(Overlap::On), takes(Overlap::Late)) {
        (true, _) => &[Overlap::On],
        (false, true) => &[Overlap::Off, Overlap::Late],
        (false, false) => &[Overlap::Off],
    }
}

/// What may be done while products are in flight, each with the steps by which a product that is
/// added to memory may lag.
fn waits(kernel: &Kernel, overlaps: &[Overlap]) -> Vec<(Overlap, u32)> {
    let lags = |overlap: Overlap| if kernel.has_sums() && overlap == Overlap::Late { &[1, 0][..] } else { &[1] };
    overlaps.iter().flat_map(|&overlap| lags(overlap).iter().map(move |&lag| (overlap, lag))).collect()
}

/// How blocks that stay get programs, and in which order.
fn work_of_blocks(instance: &Instance) -> &'static [(Persistent, WorkOrder, u32)] {
    const BY_LENGTH: [(Persistent, WorkOrder, u32); 3] = [
        (Persistent::Dynamic, WorkOrder::Lpt, 16),
        (Persistent::Dynamic, WorkOrder::Lpt, 32),
        (Persistent::Dynamic, WorkOrder::Lpt, 64),
    ];
    match lower::trip_trend(instance, &wgmma_schedule()) {
        Some(Trend::Rising | Trend::Falling) => &BY_LENGTH,
        // Only the data tell which programs are long: a block that is done takes the next one.
        _ if lower::trips_are_loaded(instance, &wgmma_schedule()) || launches::why_not_list(instance).is_none() => {
            &[(Persistent::Dynamic, WorkOrder::Grid, 16), (Persistent::Static, WorkOrder::Grid, 16)]
        }
        _ => &[(Persistent::Static, WorkOrder::Grid, 16)],
    }
}

/// What is tried with so many groups of warps that share columns.
struct WgmmaCandidates {
    schedules: Vec<BlockKnobs>,
    /// Warpgroups of a multiprocessor that compute, in the schedule that fits and has most of them.
    warpgroups: u32,
}

/// Slots of rings that are tried.
fn slots_of_rings(traits: &Traits, adds_by_groups: bool) -> &'static [u32] {
    match (traits.streams, traits.block_k) {
        (false, _) => &[1],
        // What column groups add takes the room of a second slot at d 200 to 256.
        (true, false) if adds_by_groups => &[1, 2, 3],
        (true, false) => &[2, 3],
        // A loop of nothing but products: its steps are short beside what a copy takes.
        (true, true) => &[2, 3, 4],
    }
}

/// What was measured (docs/performance.md): programs are best taken by blocks that stay; products that overlap and the lane-wise
/// or optimistic maximum won in every cell, a turn for the elementwise section in none. Tiles of elementwise work, such as a
/// bias, come through rings.
///
/// So many groups of warps share the columns of tiles. With `narrow` steps have few columns, for
/// kernels that compute much else of each element.
fn wgmma_candidates(instance: &Instance, arch: &'static Arch, columns: u32, narrow: bool) -> WgmmaCandidates {
    let kernel = &instance.kernel;
    let traits = Traits::of(kernel);
    let maxima = match lower::why_not_lazy(kernel) {
        None => &[RunningMax::MaxFirst, RunningMax::Optimistic][..],
        Some(_) => &[RunningMax::Exact][..],
    };
    let overlaps = overlaps(instance, arch);
    let waits = waits(kernel, overlaps);
    // Warps and blocks per multiprocessor, and the registers of the producer: fewer where consumers need all there are.
    let shapes: &[(u32, u32, &[u32])] = match columns {
        1 => &[(4, 1, &[0]), (4, 2, &[40]), (4, 3, &[24]), (4, 4, &[24]), (8, 1, &[40, 24]), (12, 1, &[32])],
        _ => &[(8, 1, &[40, 24])],
    };
    let n: &[u32] = match (traits.block_n, columns) {
        (true, 1) if narrow => &[16, 32, 48],
        (true, _) if narrow => &[32, 48],
        (true, 1) => &[48, 64, 80, 96, 128, 160, 192, 256],
        (true, _) => &[32, 64, 96, 128, 160, 192, 256],
        (false, _) => &[64],
    };
    let k: &[u32] = if traits.block_k { &[64, 128] } else { &[64] };
    let stages = slots_of_rings(&traits, columns > 1 && kernel.has_sums());
    let work = work_of_blocks(instance);
    let shares: &[bool] = if sharing_dims(kernel).is_empty() || shares_bytes(kernel) { &[false] } else { &[true, false] };
    let by_ring = columns == 1 && !elementwise_tiles(instance).is_empty();
    let mut bases = Vec::new();
    for &(warps, min_blocks, splits) in shapes {
        for &block_n in n {
            // Narrow steps are for the tallest tiles, whose accumulators leave few registers.
            if block_n < 64 && warps < 12 && columns == 1 && !narrow {
                continue;
            }
            for &block_k in k {
                for &stages in stages {
                    for (&running_max, &(overlap, sum_lag)) in
                        maxima.iter().flat_map(|max| waits.iter().map(move |wait| (max, wait)))
                    {
                        if columns > 1 && overlap != Overlap::Off && running_max == RunningMax::Optimistic {
                            continue;
                        }
                        let holds = columns > 1 && overlap != Overlap::On && traits.invariant_a;
                        bases.extend(held_columns(holds).iter().map(|&held_columns| {
                            let base = BlockKnobs {
                                block_m: 16 * warps / columns,
                                warps,
                                column_groups: columns,
                                block_n,
                                block_k,
                                stages,
                                running_max,
                                min_blocks,
                                overlap,
                                held_columns,
                                sum_lag,
                                tile_loads: if by_ring { TileLoads::Tma } else { TileLoads::Direct },
                                ..wgmma_schedule()
                            };
                            (base, splits)
                        }));
                    }
                }
            }
        }
    }
    // Each is planned and verified, which is most of what a ranking takes.
    let fit = |(base, splits): &(BlockKnobs, &[u32])| fitting(instance, arch, base, splits, traits.outer);
    let fitting: Vec<Option<BlockKnobs>> = each(bases.iter().collect(), fit);
    let warpgroups = fitting.iter().flatten().map(|fits| fits.warps * fits.min_blocks / 4).max().unwrap_or(0);
    let all = bases.into_iter().zip(fitting).flat_map(|((base, splits), fitting)| match fitting {
        Some(fitting) => in_turns(&fitting, overlaps, shares, work),
        // Once, for the reasons against it.
        None => {
            let producer_registers = splits.last().copied().unwrap_or_default();
            vec![BlockKnobs { producer_registers, persistent: Persistent::Static, ..base }]
        }
    });
    WgmmaCandidates { schedules: all.collect(), warpgroups }
}

/// Columns of a left operand that warps hold in registers: what warps that share columns gain by
/// (docs/performance.md, "MLA decode").
fn held_columns(holds: bool) -> &'static [u32] {
    if holds { &[0, 64, 128, 192] } else { &[0] }
}

/// The schedule with each way in which warpgroups take turns, programs share tiles, and blocks that
/// stay get programs.
fn in_turns(of: &BlockKnobs, overlaps: &[Overlap], shares: &[bool], work: &[(Persistent, WorkOrder, u32)]) -> Vec<BlockKnobs> {
    let turns =
        if of.warps > 4 && overlaps == [Overlap::On] { &[PingPong::Off, PingPong::Products][..] } else { &[PingPong::Off][..] };
    let mut out = Vec::new();
    for (&ping_pong, &share_tiles) in turns.iter().flat_map(|t| shares.iter().map(move |s| (t, s))) {
        for &(persistent, order, section) in work {
            out.push(BlockKnobs { ping_pong, persistent, order, section, share_tiles, ..of.clone() });
        }
    }
    out
}

/// The schedule with two slots for what is loaded once a program if there is room, and the largest share of registers for the
/// producer that leaves the consumers enough. If nothing fits, none.
fn fitting(instance: &Instance, arch: &'static Arch, base: &BlockKnobs, splits: &[u32], outer: bool) -> Option<BlockKnobs> {
    let slots = if outer { &[2, 1][..] } else { &[1][..] };
    let with = |v_stages| {
        let all = splits.iter().flat_map(move |&producer_registers| {
            slots.iter().map(move |&outer_stages| BlockKnobs {
                producer_registers,
                outer_stages,
                v_stages,
                persistent: Persistent::Static,
                ..base.clone()
            })
        });
        all.into_iter().find(|s| fits(instance, &s.clone().into(), arch))
    };
    // A tile that one product alone reads has long been read when the next is needed, where products
    // are waited for at once: one slot makes room for more rows (docs/backward.md, "Rates").
    let one_slot = base.overlap == Overlap::Off && base.stages > 1 && !lower::own_operands(&instance.kernel).is_empty();
    with(0).or_else(|| one_slot.then(|| with(1)).flatten())
}

/// The combinations of instructions that a warp executes by itself.
fn warp_candidates(instance: &Instance, arch: &'static Arch) -> Vec<BlockKnobs> {
    let kernel = &instance.kernel;
    let traits = Traits::of(kernel);
    // The lane-wise maximum won over the exact one in every cell measured (docs/performance.md).
    let running_max = if lower::why_not_lazy(kernel).is_none() { RunningMax::MaxFirst } else { RunningMax::Exact };
    let base = BlockKnobs {
        running_max,
        tensor_op: warp_tensor_op(instance, arch),
        copy: warp_copy_op(instance, arch),
        ..BlockKnobs::default()
    };
    let (columns, narrow) = warp_columns(instance, &base, &traits, arch);
    // block_m, warps, and groups of them that share columns.
    let shapes: Vec<(u32, u32, u32)> = if traits.products {
        // 16 or 32 rows a warp
        let of_rows = [(16, 1), (32, 2), (32, 1), (64, 4), (64, 2), (128, 8), (128, 4), (256, 8)];
        of_rows.into_iter().map(|(block_m, warps)| (block_m, warps * columns, columns)).collect()
    } else {
        // Rows that are loaded whole are as wide as they are: groups of warps share them.
        vec![(16, 1, 1), (64, 4, 1), (128, 8, 1), (16, 2, 2), (16, 4, 4)]
    };
    let n: &[u32] = match (traits.block_n, traits.products) {
        (true, true) if narrow => &[16, 32],
        (true, true) => &[32, 64, 128, 256],
        // Of 512, which 4 groups of warps share.
        (true, false) => &[32, 64, 128, 256, 512],
        (false, _) => &[64],
    };
    let k = if traits.block_k { &[32, 64][..] } else { &[32][..] };
    let stages = match (traits.streams, base.copy) {
        (false, _) => &[1][..],
        (true, CopyOp::Sync) => &[1, 2][..],
        (true, _) => &[1, 2, 3][..],
    };
    let registers = if traits.invariant_a && base.tensor_op.is_of_tensor_cores() {
        &[OperandA::Shared, OperandA::Registers][..]
    } else {
        &[OperandA::Shared][..]
    };
    let orders = match lower::trip_trend(instance, &base) {
        Some(Trend::Rising | Trend::Falling) => &[(WorkOrder::Grid, 16), (WorkOrder::Lpt, 8), (WorkOrder::Lpt, 32)][..],
        _ => &[(WorkOrder::Grid, 16)][..],
    };
    let mut out = Vec::new();
    for &(block_m, warps, column_groups) in shapes.iter().filter(|(_, warps, _)| *warps <= MOST_WARPS) {
        for &block_n in n.iter().filter(|n| **n < 512 || column_groups > 1) {
            for &block_k in k {
                for &stages in stages {
                    for &operand_a in registers {
                        for &(order, section) in orders {
                            out.push(BlockKnobs {
                                block_m,
                                warps,
                                column_groups,
                                block_n,
                                block_k,
                                stages,
                                operand_a,
                                order,
                                section,
                                ..base.clone()
                            });
                        }
                    }
                }
            }
        }
    }
    out
}

/// Warps of a block that are tried, where several share the columns of a tile.
const MOST_WARPS: u32 = 16;

/// Groups of warps that share columns, in the schedules of a kernel whose warps multiply by
/// themselves: as few as hold its accumulators. The answer says too whether steps are narrow, since
/// any number of groups has what it needs of registers and shared memory with 16 columns alone.
fn warp_columns(instance: &Instance, base: &BlockKnobs, traits: &Traits, arch: &'static Arch) -> (u32, bool) {
    let has_room = |columns: u32, block_n: u32| {
        let block_n = if traits.block_n { block_n } else { 64 };
        fits(instance, &smallest_of_warps(base, columns, block_n).into(), arch)
    };
    let least = lower::least_share(base.tensor_op);
    let usual = [1, 2, 4].into_iter().find(|&columns| has_room(columns, 32.max(least * columns)));
    let narrow = || [1, 2].into_iter().find(|&columns| traits.block_n && least * columns <= 16 && has_room(columns, 16));
    usual.map(|columns| (columns, false)).or_else(|| narrow().map(|columns| (columns, true))).unwrap_or((1, false))
}

/// What a kernel has that makes a knob matter.
struct Traits {
    products: bool,
    /// Loops over tiles that multiply.
    streams: bool,
    /// A left operand that stays for a loop.
    invariant_a: bool,
    /// Tiles that come once a program, or once an index of a loop that multiplies them.
    outer: bool,
    block_n: bool,
    block_k: bool,
}

impl Traits {
    fn of(kernel: &Kernel) -> Self {
        let walk = kernel.walk();
        let products = walk.iter().any(|&(_, op)| matches!(kernel.ops[op].op, Op::Dot { .. }));
        let is_dot = |op: &OpId| matches!(kernel.ops[*op].op, Op::Dot { .. });
        let streams = walk.iter().any(|&(_, op)| match kernel.ops[op].op {
            Op::For { axis, body, .. } => kernel.axes[axis].kind != AxisKind::Each && kernel.blocks[body].ops.iter().any(is_dot),
            _ => false,
        });
        let invariant_a = lower::has_left_operand_that_stays(kernel);
        let outer = invariant_a || walk.iter().any(|&(_, op)| lower::multiplies_what_an_index_loads(kernel, op));
        let has = |knob| {
            let tiled = |axis: &AxisId| kernel.axes[*axis].kind != AxisKind::Each;
            kernel.axes.keys().filter(tiled).any(|axis| blocks::knob(kernel, axis) == knob)
        };
        Self { products, streams, invariant_a, outer, block_n: has(BlockKnob::N), block_k: has(BlockKnob::K) }
    }
}

#[cfg(test)]
mod tests {
    use super::splits;

    /// 132 multiprocessors with a block each, and loops of 1000 tiles.
    #[test]
    fn parts_fill_rounds_of_blocks() {
        let of = |programs: f64| splits(programs, 132.0, 1000.0).counts;
        assert_eq!(of(5.0), [16, 26, 32, 52], "26 fill one round, 52 two");
        assert_eq!(of(40.0), [2, 3, 4, 6]);
        assert_eq!(of(1.0), [64, 128], "no loop has more than 128 parts");
        assert_eq!(of(140.0), [2, 3], "the second round is nearly empty");
        assert!([120.0, 131.0, 260.0, 1000.0].iter().all(|&programs| of(programs).is_empty()), "few slots are empty");
        assert_eq!(splits(5.0, 132.0, 20.0).counts, [8, 16], "each part has a tile");
    }
}
