//! Seconds of a schedule at given sizes: its launches, one after the other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Constants;
use super::count::Units;
use super::extent::{Programs, Trips};
use super::integers::Integers;
use super::machine::Machine;
use super::makespan::{Order, makespan};
use super::profile::{Arrival, Profile};
use super::terms::{LaunchTerms, StepTerms, TimeTerms};
use crate::abi::FoldedRows;
use crate::arch::Arch;
use crate::error::Error;
use crate::instance::Instance;
use crate::launches;
use crate::planning::{Planned, planned};
use crate::reason::Reason;
use crate::schedule::{Overlap, Persistent, Schedule};

/// Seconds to start a launch, and from the end of one to the start of the next.
const LAUNCH: f64 = 3e-6;
const LAUNCH_GAP: f64 = 2e-6;
/// The same where it may begin before the other has ended.
const EARLY_LAUNCH_GAP: f64 = 1e-6;
/// The same of launches ahead of the one that the schedule is about. That one reads all that they
/// write, so it waits for the last of their blocks. Copies of 7 MB made a causal call of 49 us 6 us
/// longer (d 232, N = 1052, H100).
const AHEAD: f64 = 8e-6;
/// Seconds from the issue of a copy to its arrival where memory is busy.
const MEMORY_LATENCY: f64 = 1e-6;
/// Cycles from the release of a slot of a ring to the arrival of what is copied into it: these, and
/// its bytes by so many of a cycle, of one copy at a time. With two slots steps of 32, 57 and 114 KB
/// take 1760, 2720 and 5000 cycles, with four 780, 1600 and 3200 (H200, `matmul_gelu` and `swiglu`,
/// 2026-12-01; `tests/evidence/h200_products.json`).
const RING_LATENCY: f64 = 450.0;
const RING_BYTES: f64 = 25.0;
/// Bytes that the L2 cache keeps for who reads them again: an H100 and an H200 have 50 MB, an A100 40 MB.
const CACHE: f64 = 50e6;
/// Slots of rings up to which neighbours find what they share in the L2 cache, the share of all that
/// is read again for so much more, and the most. One query of 256 heads over 11406 keys, the heads of
/// a position side by side, takes 1.00 to 1.03, 1.28 to 1.30, 1.31 to 1.36 and 1.31 to 1.56 of the
/// least time with slots of 13, 19, 22 and 30 MB (d 72, 104 and 112; H200, 2026-12-01), and reads
/// 1.19 of its keys with 11 MB and 1.79 with 30. Heads that lie one behind the other lose nothing.
const NEIGHBOURS_HELD: f64 = 13e6;
const NEIGHBOURS_AGAIN: f64 = 0.6;
const NEIGHBOURS_MOST: f64 = 0.45;
/// Factor of steps whose products are waited for at once beside another warpgroup, over those that
/// are waited for late: this, and a share of what instructions take over what products do. Rows of a
/// gradient took 1.04 to 1.09 (d 64, 128 by 128), 1.00 to 1.04 (d 96), 0.95 to 0.99 (d 128, 128 by 96)
/// and 0.94 to 0.97 (d 192, 128 by 80) of late ones (H200, 2026-11-26; docs/backward.md, "Rates").
const BESIDE: f64 = 0.87;
const BESIDE_ISSUE: f64 = 0.335;
/// How far units overlap where products are waited for late: rows of a gradient take 0.236 ms
/// (H100, d 96, N = 1536, 96 heads, 2026-11-25).
const LATE_OVERLAP: f64 = 1.6;
/// The same where a step adds to several sums, whose products are in flight meanwhile: columns of
/// that gradient take 0.279 ms where their vectors are steps of a product, and 0.253 at d 80.
const LATE_SUMS_OVERLAP: f64 = 2.3;
/// The share of its products that a warpgroup waits for in such steps: blocks of 64 by 64 take 1650
/// cycles a step (H100, d 128, 2026-11-25), of which products are 1088 and instructions 950.
const LATE_SUMS_WAITED: f64 = 0.5;
/// Cycles that a vector along columns takes in such steps, which is loaded and handed out to lanes:
/// with two, the same columns take 0.359 and 0.368 ms.
const LATE_VECTOR: f64 = 420.0;
/// The same in steps that add rows to memory (H100, d 64 and 128, N = 512 to 8192; docs/backward.md,
/// "Rates").
const ADDING_OVERLAP: f64 = 1.65;
/// Cycles of a step in which all warps wait for each other's operand, over those of one that makes
/// the product a step later (H100, d 128, N = 8192: 5.06 and 4.32 to 4.70 ms; docs/backward.md).
const IN_STEP: f64 = 1.12;
/// Bytes that a multiprocessor adds to memory in a cycle, with all others: 2.1 G numbers took 2.25 ms
/// (H100; docs/backward.md, "Rates of the fused form").
const ADDED_BYTES: f64 = 16.0;
/// How far what is added overlaps with all else: blocks of 64 keys and queries add twice as much for
/// each pair as those of 128, and took 1.32 of the time (H100, d 64, N = 8192).
const ADDS_OVERLAP: f64 = 2.0;
/// How far all else overlaps with what a step of column groups loads and adds, both by way of one
/// cache: 64 keys by 64 queries of 192 columns load 48 KB and add as much. They took 5.65 ms with the
/// product a step later and 5.88 without (H200, N = 8192, 2026-12-02), and 4.5 to 4.8 were predicted
/// without this; now 6.5, so that a form that adds nothing is taken where both are level.
const CACHE_OVERLAP: f64 = 8.0;
/// Cycles that a step which adds rows takes at least: products, scores, the exchange of these, and
/// the product with the keys follow each other. Blocks of 64 keys by 64 queries take 2700 to 2900
/// cycles a step, with or without another block beside them (H100, d 64 and 128, 2026-11-25), which
/// is 0.75 of what such steps are predicted to take.
const ADDING_STEP: f64 = 3700.0;
/// Factor of such steps, which are predicted to take 1.2 to 1.4 of what they do without it (24
/// shapes of tests on an H100, 2026-11-25; where nothing is added, steps are predicted within 1.1).
const AS_LATE: f64 = 0.84;
/// Cycles that a vector along columns takes which waits in lanes and is handed out: with vectors that
/// are steps of a product columns of a gradient take 640 (d 96) and 540 (d 72) cycles a step less of
/// two (H100, 2026-11-25), and steps are predicted to take 1.4 of what they do.
const DISTRIBUTED: f64 = 420.0;
/// The same of one that is loaded where it is needed, in steps whose products are waited for: of two 280
/// cycles at d 192, and 320 at d 256, with the products that take their place. Of a bias of each key, in
/// steps that overlap, 190 (H200, d 128, 2026-11-28: loaded in front of the wait for the product).
const LOADED_COLUMN: f64 = 200.0;
/// Factor of what warpgroups do that share the columns of a program: columns of a gradient take 4.60 ms
/// in steps of 64 rows and 3.96 in steps of 96, which are predicted to take 7.5 and 6.2 without it
/// (H100, d 192, N = 8192, 2026-11-25).
const SHARED_COLUMNS: f64 = 0.63;
/// The same where products are waited for late, over products that are waited for at once: 0.95 to
/// 0.98 at d 192 and 256.
const SHARED_COLUMNS_LATE: f64 = 0.97;
/// Cycles that a lane waits for a piece of 16 bytes of a matrix that elementwise work reads from
/// global memory, before it loads the next: steps of 192 by 64 with a bias took 5700 cycles where a
/// ring brought it in 2800 (H100, d 128; docs/performance.md, "A bias"). That was with a branch
/// before each load. Without, aligned pieces take 3000 cycles a step, and are never a choice where a
/// ring can bring them; what is read by words takes 4500 in steps of 192 by 48 (H200, 2026-12-01).
const LOADED_PIECE: f64 = 900.0;
/// The same where products are waited for late, of what is read by words: rows of a gradient with a
/// bias of 2245 keys (d 128, 128 by 80) take 240 us, 134 with one of 2248 keys (H200, 2026-12-01).
const LOADED_WORDS: f64 = 900.0;
/// How far units overlap where warps multiply by themselves (`mma.sync`): fitted to one sweep of an H200 by hand.
const WARPS_OVERLAP: f64 = 2.2;
/// How far the blocks of a launch differ in the work of one program each, over its mean, where data
/// bound loops and each block is given its programs ahead; the sum of `n` programs differs by a factor
/// of `sqrt(n)` less. 12 documents of 4096 took 1.19 of what they do where blocks take programs as they
/// come free (H200, d 64, 15 programs for each block, 2026-11-26).
const UNEVEN: f64 = 1.0;
/// Cycles of a program in which a multiprocessor waits for instructions, if data bound its loops and
/// the maximum is optimistic: searches, masks by data, and four copies of a step are 4300 to 6300
/// instructions, which no instruction cache holds; code with `max_first` has 2900 to 3800. With 1200,
/// which fitted when rows that see nothing had steps made again, documents of d 128 had `max_first`,
/// and took 1.06 (8192) and 1.11 (16384) of what `optimistic` takes (H200, 2026-11-27).
const FETCHED: f64 = 600.0;
/// Factor of steps with an optimistic maximum whose instructions take less than this share of what
/// their products do. Another warpgroup's products hide the instructions of `max_first` there, so
/// that `optimistic` has only its longer code: it takes 1.00 and 1.01 of the time of `max_first` at
/// d 256 and 192, each with its best tile (means of four shapes), which is predicted to take 1.01
/// and 1.03 of it. At d 128, where instructions are 0.39 and more, it takes 0.95 (H200, 2026-11-29;
/// docs/performance.md, "Data").
const HIDDEN_INSTRUCTIONS: f64 = 1.0 / 3.0;
const OPTIMISTIC: f64 = 1.04;
/// Factor of three blocks of a warpgroup, each with a producer of its own, over fewer: without a mask
/// 64 by 64 tiles of d 64 are predicted to take 0.99 of 192 by 96 (N = 2048), and took 1.06; with a
/// causal mask 0.94, and took 0.97 (H200, 2026-11-26).
const THREE_BLOCKS: f64 = 1.02;
/// Share of the multiprocessors that stay idle for each block of a cluster: a cluster lies within a GPC, and fills it not quite.
const IDLE_FOR_CLUSTER: f64 = 0.025;

/// A schedule of a kernel, planned: all that its time depends on but the sizes. Planning takes milliseconds, a prediction
/// from here microseconds.
pub struct Prepared {
    launches: Vec<Profile>,
    /// Names of their entry functions.
    names: Vec<String>,
    /// The launch that the knobs are about.
    main: usize,
    folded: Option<FoldedRows>,
    /// Seconds from the end of the main launch, or of one behind it, to the start of the next.
    gap: f64,
    arch: &'static str,
}

/// What the model says of a schedule at given sizes.
pub(super) struct Judged {
    pub seconds: f64,
    /// Programs of the launch that the schedule is about.
    pub programs: f64,
    /// How many of them run at once.
    pub slots: f64,
    /// Trips of its longest loop.
    pub trips: f64,
}

/// Plans a schedule for predictions.
///
/// # Errors
/// [`Error::Illegal`] with the reasons against the schedule, [`Error::Unsupported`].
pub fn prepare(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Prepared, Error> {
    prepare_planned(&planned(instance, schedule, arch)?, arch)
}

/// Takes from plans what predictions need.
///
/// # Errors
/// [`Error::Illegal`] with the reasons against the schedule.
pub(super) fn prepare_planned(planned: &Planned, arch: &'static Arch) -> Result<Prepared, Error> {
    if !planned.reasons.is_empty() {
        return Err(Error::Illegal { arch: arch.name, reasons: planned.reasons.clone() });
    }
    let gap = if arch.dependent_launches { EARLY_LAUNCH_GAP } else { LAUNCH_GAP };
    Ok(Prepared {
        gap,
        names: planned.launches.iter().map(|launch| launch.piece.name.clone()).collect(),
        launches: planned
            .launches
            .iter()
            .enumerate()
            .map(|(number, launch)| Profile::of(launch, &planned.scratch, arch, number == planned.main))
            .collect(),
        main: planned.main,
        folded: planned.folded.clone(),
        arch: arch.name,
    })
}

impl Prepared {
    /// Predicted seconds of a call with these run-time sizes.
    ///
    /// # Errors
    /// [`Error::Illegal`] if rows are folded and the sizes do not allow it.
    pub fn seconds(&self, sizes: &BTreeMap<String, i64>, machine: &Machine, constants: &Constants) -> Result<f64, Error> {
        Ok(self.judge(sizes, &Integers::default(), machine, constants)?.seconds)
    }

    pub(super) fn judge(
        &self,
        sizes: &BTreeMap<String, i64>,
        integers: &Integers,
        machine: &Machine,
        constants: &Constants,
    ) -> Result<Judged, Error> {
        let sizes = self.sizes_of_launches(sizes)?;
        let mut judged = Judged { seconds: 0.0, programs: 0.0, slots: 0.0, trips: 0.0 };
        for (number, profile) in self.launches.iter().enumerate() {
            let Timed { seconds, programs, trips, .. } = time(profile, (&sizes, integers), machine, constants);
            judged.seconds += self.gap_before(number) + seconds;
            if number == self.main {
                judged.programs = programs;
                judged.slots = f64::from(machine.sms * profile.resident);
                judged.trips = trips;
            }
        }
        Ok(judged)
    }

    /// What the seconds of [`Prepared::seconds`] are made of.
    ///
    /// # Errors
    /// As [`Prepared::seconds`].
    pub fn terms(
        &self,
        sizes: &BTreeMap<String, i64>,
        integers: &Integers,
        machine: &Machine,
        constants: &Constants,
    ) -> Result<TimeTerms, Error> {
        let sizes = self.sizes_of_launches(sizes)?;
        let mut terms = TimeTerms { launches: Vec::new(), main: self.main, seconds: 0.0 };
        for (number, (profile, name)) in self.launches.iter().zip(&self.names).enumerate() {
            let timed = time(profile, (&sizes, integers), machine, constants);
            let programs = profile.extent.programs(&sizes, integers);
            let resident = f64::from(profile.resident);
            let terms_of =
                |units: &Units, cycles: f64, trips: f64| step_terms(profile, units, cycles, trips, resident, constants);
            let start = cycles(profile, &profile.outside, resident, constants) + start_cycles(profile, resident, constants);
            let of_loops = |trips: fn(&Trips, f64) -> f64| -> Vec<f64> {
                let mean_of = |(number, from): (usize, &f64)| {
                    mean(&programs.trips.iter().map(|all| trips(&all[number], *from)).collect::<Vec<_>>())
                };
                profile.from.iter().enumerate().map(mean_of).collect()
            };
            let (made, cut) = (of_loops(Trips::made), of_loops(|trips, _| trips.cut));
            let cut_cycles = cut_cycles(profile, resident, constants).iter().zip(&cut).map(|(c, n)| c * n).sum();
            let step = |(number, trips): (usize, &f64)| {
                terms_of(&profile.steps[number], step_cycles(profile, number, resident, constants), *trips)
            };
            let begin = terms.seconds + self.gap_before(number);
            terms.launches.push(LaunchTerms {
                name: name.clone(),
                begin,
                seconds: timed.seconds,
                compute: timed.compute,
                memory: timed.memory,
                meeting: timed.meeting,
                bytes: timed.bytes,
                programs: timed.programs,
                resident: profile.resident,
                slots: f64::from(machine.sms) * resident,
                program_cycles: mean(&work(profile, &programs, resident, constants)),
                cut_cycles,
                outside: terms_of(&profile.outside, start, 1.0),
                steps: made.iter().enumerate().map(step).collect(),
            });
            terms.seconds = begin + timed.seconds;
        }
        Ok(terms)
    }

    /// Seconds before a launch: those to start the first, else those since the end of the one before it.
    fn gap_before(&self, number: usize) -> f64 {
        match number {
            0 => LAUNCH,
            ahead if ahead <= self.main => AHEAD,
            _ => self.gap,
        }
    }

    /// The sizes as the launches have them.
    fn sizes_of_launches<'a>(&self, sizes: &'a BTreeMap<String, i64>) -> Result<Cow<'a, BTreeMap<String, i64>>, Error> {
        let Some(folded) = &self.folded else { return Ok(Cow::Borrowed(sizes)) };
        let with_size = folded.with_size(sizes).ok_or_else(|| Error::Illegal {
            arch: self.arch,
            reasons: vec![Reason::text(
                "pack_gqa",
                format!("pack_gqa=on takes heads, as many in every group, {}; pack_gqa=off takes any", launches::FOLDING_SIZES),
                None,
            )],
        })?;
        Ok(Cow::Owned(with_size))
    }
}

struct Timed {
    seconds: f64,
    /// Of them, what computation takes by itself, memory by itself, and the meeting of programs.
    compute: f64,
    memory: f64,
    meeting: f64,
    /// Between global memory and the L2 cache.
    bytes: f64,
    programs: f64,
    /// Of the longest loop.
    trips: f64,
}

/// Seconds of one launch, but for its start.
fn time(
    profile: &Profile,
    (sizes, integers): (&BTreeMap<String, i64>, &Integers),
    machine: &Machine,
    constants: &Constants,
) -> Timed {
    let programs = profile.extent.programs(sizes, integers);
    let count = programs.count() as f64;
    let resident = f64::from(profile.resident);
    let per_tile = work(profile, &programs, resident, constants);
    let slots = f64::from(machine.sms) * resident * (1.0 - IDLE_FOR_CLUSTER * f64::from(profile.cluster));
    // A last wave that fills no more than a block of each multiprocessor runs as if it were alone there.
    let alone = || mean(&work(profile, &programs, 1.0, constants));
    let even_end = if resident > 1.0 && count % slots <= f64::from(machine.sms) { Some(alone()) } else { None };
    let total = makespan(&per_tile, programs.last, programs.outer, slots, profile.order, even_end);
    let seconds = |cycles: f64| cycles / (machine.ghz * 1e9);
    // A block that is given programs ahead cannot know that other blocks have shorter ones.
    let ahead = profile.persistent == Persistent::Static && profile.extent.by_data;
    let uneven = if ahead { 1.0 + UNEVEN * (slots / count.max(slots)).sqrt() } else { 1.0 };
    let blocks = if profile.specialized && profile.resident > 2 { THREE_BLOCKS } else { 1.0 };
    let compute = seconds(total * uneven * blocks * profile.spills);
    // A block has as much memory traffic in flight as its rings hold: few blocks do not fill the bandwidth.
    let reached = match profile.in_flight {
        0 => f64::INFINITY,
        bytes => count.min(slots) * f64::from(bytes) / MEMORY_LATENCY,
    };
    let again = read_again(profile, &programs, sizes, slots, constants) + neighbours_read_again(profile, &programs, sizes, slots);
    let bytes = profile.extent.bytes(sizes) + again;
    let memory = bytes / reached.clamp(1.0, machine.gbytes_per_s * 1e9);
    let meeting = seconds(profile.meeting);
    Timed {
        // Parts end together, so that nothing is left to hide their meeting behind.
        seconds: joined(compute, memory, constants.memory_overlap) + meeting,
        compute,
        memory,
        meeting,
        bytes,
        programs: count,
        trips: programs.trips.iter().flatten().map(|t| t.all).fold(0.0, f64::max),
    }
}

/// Bytes that come from memory again, because what is read in between does not fit into the L2 cache.
///
/// The programs that run at once share what they stream: those of one head walk the same keys together. After them others
/// of the same head walk the keys again, and find them in the cache if all that the heads of a section stream fits.
fn read_again(profile: &Profile, programs: &Programs, sizes: &BTreeMap<String, i64>, slots: f64, constants: &Constants) -> f64 {
    let unique = profile.extent.streamed_bytes(sizes);
    if unique <= CACHE || programs.trips.is_empty() {
        return 0.0;
    }
    let streamed = streamed(profile, programs);
    let (last, outer) = (programs.last as f64, programs.outer as f64);
    let section = match profile.order {
        Order::Grid => slots / last,
        Order::Lpt { section } => section as f64,
    };
    let section = section.clamp(1.0, outer);
    // Heads of a group read the same keys.
    let distinct = unique / streamed.iter().copied().fold(1.0, f64::max);
    let share = (outer / distinct.max(1.0)).max(1.0);
    let together = (slots / section).clamp(1.0, last) * share.min(section);
    let passes = mean(&streamed) * last * outer / together;
    let beyond = (unique * section / outer / CACHE - 1.0).clamp(0.0, 1.0);
    constants.read_again * beyond * (passes - unique).max(0.0)
}

/// Bytes that programs stream, of each tile of a section.
fn streamed(profile: &Profile, programs: &Programs) -> Vec<f64> {
    let of_tile = |trips: &Vec<Trips>| profile.steps.iter().zip(trips).map(|(step, n)| step.l2_bytes * n.all).sum::<f64>();
    programs.trips.iter().map(of_tile).collect()
}

/// Bytes that come from memory again, because what is read with them has left the L2 cache when its
/// own program asks for it: rows of heads that lie side by side share pieces of 64 bytes, and the
/// programs of such heads drift apart by what they have in flight. Where several programs read the
/// same keys these stay in the cache.
fn neighbours_read_again(profile: &Profile, programs: &Programs, sizes: &BTreeMap<String, i64>, slots: f64) -> f64 {
    let (unique, count) = (profile.extent.streamed_bytes(sizes), programs.count() as f64);
    let all = mean(&streamed(profile, programs)) * count;
    if !profile.shares_lines || unique <= CACHE || all > 2.0 * unique {
        return 0.0;
    }
    let held = count.min(slots) * f64::from(profile.in_flight);
    unique * (NEIGHBOURS_AGAIN * (held / NEIGHBOURS_HELD - 1.0)).clamp(0.0, NEIGHBOURS_MOST)
}

/// Cycles in which a multiprocessor with so many resident blocks begins and ends a program of each.
fn start_cycles(profile: &Profile, resident: f64, constants: &Constants) -> f64 {
    match profile.persistent {
        Persistent::Off => constants.block,
        // The other blocks of the multiprocessor compute meanwhile.
        persistent => {
            let own = if profile.prepared { constants.program } else { constants.program_unprepared };
            let asks = if persistent == Persistent::Dynamic { constants.program_dynamic } else { 0.0 };
            (own + asks) / resident
        }
    }
}

/// Cycles in which a multiprocessor with so many resident blocks gets through a program of each, for some tiles.
fn work(profile: &Profile, programs: &Programs, resident: f64, constants: &Constants) -> Vec<f64> {
    let fetched = if profile.fetches { FETCHED * resident } else { 0.0 };
    let outside = cycles(profile, &profile.outside, resident, constants) + start_cycles(profile, resident, constants) + fetched;
    let steps: Vec<f64> = (0..profile.steps.len()).map(|number| step_cycles(profile, number, resident, constants)).collect();
    let cuts = cut_cycles(profile, resident, constants);
    let of_tile = |trips: &Vec<Trips>| {
        let made = trips.iter().zip(&profile.from).map(|(n, from)| n.made(*from));
        let cut = cuts.iter().zip(trips).map(|(c, n)| c * n.cut).sum::<f64>();
        outside + cut + steps.iter().zip(made).map(|(s, n)| s * n).sum::<f64>()
    };
    programs.trips.iter().map(of_tile).collect()
}

/// Cycles in which all resident blocks make an iteration of a loop.
fn step_cycles(profile: &Profile, number: usize, resident: f64, constants: &Constants) -> f64 {
    let units = &profile.steps[number];
    let busy = cycles(profile, units, resident, constants) + profile.waits[number];
    let arrival = RING_LATENCY + units.l2_bytes / RING_BYTES;
    match profile.arrives[number] {
        Arrival::Hidden => busy,
        Arrival::Ahead(steps) => joined(busy, arrival / steps, constants.own_chain),
        // Other blocks compute meanwhile.
        Arrival::Behind => joined(busy, busy / resident + arrival, constants.own_chain),
    }
}

/// Cycles of each loop that a cut tile takes more than a whole one.
fn cut_cycles(profile: &Profile, resident: f64, constants: &Constants) -> Vec<f64> {
    profile.cut.iter().map(|units| constants.cut * cycles(profile, units, resident, constants)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Two times that overlap more or less: the norm with this exponent.
fn joined(a: f64, b: f64, exponent: f64) -> f64 {
    (a.powf(exponent) + b.powf(exponent)).powf(1.0 / exponent)
}

/// What this makes of the time of a program, of which it takes so many cycles.
fn step_terms(profile: &Profile, units: &Units, cycles: f64, trips: f64, resident: f64, constants: &Constants) -> StepTerms {
    let [issue, tensor, special, shared] = busy_cycles(profile, units, resident);
    let copies = copy_cycles(units, constants) * resident;
    StepTerms { trips, cycles, issue, tensor, special, shared, copies }
}

/// Cycles that the units of a multiprocessor are busy with this, over all resident blocks: issue slots, products, special
/// functions, shared memory.
fn busy_cycles(profile: &Profile, units: &Units, resident: f64) -> [f64; 4] {
    let warps = profile.warps * resident;
    [units.issue, units.tensor, units.special, units.shared].map(|u| (u * warps).max(0.0))
}

/// Cycles in which the copies of one block bring this from the L2 cache.
fn copy_cycles(units: &Units, constants: &Constants) -> f64 {
    let more = constants.odd_rows - 1.0;
    let bytes = units.l2_bytes + more * units.l2_odd_bytes;
    let rows = units.l2_rows + units.l2_cut + more * units.l2_odd_rows;
    (bytes / constants.l2_bytes).max(rows / constants.l2_rows)
}

/// Cycles in which all resident blocks get through this.
fn cycles(profile: &Profile, units: &Units, resident: f64, constants: &Constants) -> f64 {
    let warps = profile.warps * resident;
    let l2 = copy_cycles(units, constants);
    let busy = busy_cycles(profile, units, resident);
    // Groups that share columns wait for each other in a step, so that little is beside products.
    let overlap = if profile.shares_columns { Overlap::Off } else { profile.overlap };
    let late_sums = overlap == Overlap::Late && profile.several_sums && units.added_bytes == 0.0;
    // One sum at a time: what a warpgroup waits for, another one hides.
    let beside = overlap == Overlap::Off && warps >= 8.0 && !profile.several_sums && !profile.shares_columns;
    let exponent = match (profile.specialized, overlap) {
        (false, _) => WARPS_OVERLAP,
        (true, Overlap::On) if warps >= 12.0 => constants.overlap_of_three,
        (true, Overlap::On) => constants.overlap,
        (true, Overlap::Late) if units.added_bytes > 0.0 => ADDING_OVERLAP,
        (true, Overlap::Late) if late_sums => LATE_SUMS_OVERLAP,
        (true, Overlap::Late) => LATE_OVERLAP,
        (true, Overlap::Off) if beside => LATE_OVERLAP,
        (true, Overlap::Off) => constants.no_overlap,
    };
    let joined: f64 = busy.iter().map(|b| b.powf(exponent)).sum::<f64>().powf(1.0 / exponent);
    let joined = if profile.turns { joined * constants.turns } else { joined };
    let joined = if profile.in_step { joined * IN_STEP } else { joined };
    let joined = match profile.specialized && beside {
        true => joined * (BESIDE + BESIDE_ISSUE * (units.issue / units.tensor).min(1.0)),
        false => joined,
    };
    let joined = if profile.specialized {
        // A warpgroup waits for all of its products, but for some of several sums.
        let waited = if late_sums { LATE_SUMS_WAITED } else { 1.0 };
        // Where products are waited for late, loads are on their way meanwhile, but for those of words.
        let loads = match overlap {
            Overlap::Late => LOADED_WORDS * units.unaligned_pieces,
            _ => LOADED_PIECE * units.pieces,
        };
        let own = 4.0 * (constants.own_cycles * units.issue + waited * units.tensor) + loads;
        let chain = constants.own_chain;
        // Copies run ahead of all else: what they take shows where it is more than the rest.
        (joined.powf(chain) + own.powf(chain) + (l2 * resident).powf(chain)).powf(1.0 / chain)
    } else if profile.of_rows {
        // Few warps, each with many columns: nothing hides the latencies of one behind another.
        self::joined(joined, 4.0 * constants.own_cycles * units.issue, constants.own_chain)
    } else {
        joined
    };
    let joined = self::joined(joined, resident * units.added_bytes / ADDED_BYTES, ADDS_OVERLAP);
    let joined = match units.added_bytes > 0.0 {
        true => AS_LATE * self::joined(joined, ADDING_STEP, constants.own_chain) + DISTRIBUTED * units.column_vectors,
        false if profile.specialized && overlap == Overlap::Late => joined + LATE_VECTOR * units.column_vectors,
        false if profile.specialized => joined + LOADED_COLUMN * units.column_vectors * resident,
        false => joined,
    };
    // A few warps cannot hide a barrier: its cost is shared by the blocks that go on meanwhile.
    let groups = (profile.warps / 4.0 * resident).max(1.0).floor();
    let all = joined + units.barriers * constants.barrier / resident + units.turns * constants.group_step / groups;
    let is_hidden = units.issue < HIDDEN_INSTRUCTIONS * units.tensor;
    let all = if profile.optimistic && is_hidden { all * OPTIMISTIC } else { all };
    let all = match (profile.shares_columns, profile.overlap) {
        (true, Overlap::Late) => SHARED_COLUMNS * SHARED_COLUMNS_LATE * all,
        (true, _) => SHARED_COLUMNS * all,
        (false, _) => all,
    };
    match profile.shares_columns && units.added_bytes > 0.0 {
        true => {
            self::joined(all, resident * (units.l2_bytes / constants.l2_bytes + units.added_bytes / ADDED_BYTES), CACHE_OVERLAP)
        }
        false => all,
    }
}
