//! A launch without its sizes: what the statements of its plan issue, what it holds, the knobs that
//! matter to its time.

use flashtile_dsl::ir::{AxisKind, BinaryOp, BlockId, Kernel, Op, OpId};

use super::count::{Counter, Units, row_bytes};
use super::extent::Extent;
use super::makespan::Order;
use crate::abi::Scratch;
use crate::arch::Arch;
use crate::lower;
use crate::plan::{MeetBy, Meeting, Plan, Shape, SharedTile, Stmt, StmtOp, Storage, any};
use crate::planning::PlannedLaunch;
use crate::schedule::{BlockKnobs, Overlap, Persistent, PingPong, RunningMax, WorkOrder};

/// Cycles of a load from memory that nothing hides but a few other loads.
const LOAD_LATENCY: f64 = 300.0;
/// One in so many of the registers of a thread is what it should have beyond the estimate: with
/// 255, more than 240 spill so that it shows. And the cost of each further one. Of 16 warps a
/// thread has 128: columns of rotated keys at d 256, which need 246, spilled 3460 bytes.
const SPILL_SHARE: u32 = 16;
const SPILL_COST: f64 = 0.02;
/// Bytes that memory is read by.
const LINE: i64 = 64;
/// Registers that consumers should have beyond the estimate: with none to spare products were serialised in all of 12
/// kernels, with 4 to 7 in none of 34, of which 5 spilled, all of them with more than 200 registers.
const SPARE: u32 = 4;
/// One in so many of a consumer's registers is what it should have beyond the estimate so as not to spill.
const SPARE_SHARE: u32 = 32;
/// Factor of products that are serialised, and of steps that spill a little.
const SERIALIZED: f64 = 1.5;
const SPILLING: f64 = 1.05;
/// Cycles from a program's turn to that of the next part: the semaphore is seen, the state read, merged and written, and
/// the turn passed. No other program can do it meanwhile.
const TURN_OF_PART: f64 = 2500.0;
/// Cycles of the barriers of a cluster, and of the read of a state from another block.
const CLUSTER_LATENCY: f64 = 2000.0;
const STATE_OF_CLUSTER: f64 = 1000.0;

/// What the time of a launch depends on, but for its sizes.
pub(super) struct Profile {
    /// Outside of loops, and in one iteration of each loop.
    pub outside: Units,
    pub steps: Vec<Units>,
    /// In such an iteration more, if its tile is cut.
    pub cut: Vec<Units>,
    /// Iterations of each loop that are made outside of it.
    pub from: Vec<f64>,
    /// Cycles of each loop's iteration that no unit is busy in.
    pub waits: Vec<f64>,
    /// When the tiles of each loop's step come.
    pub arrives: Vec<Arrival>,
    /// Its programs.
    pub extent: Extent,
    /// Warps of a block that compute.
    pub warps: f64,
    /// Blocks of a multiprocessor.
    pub resident: u32,
    /// Whether blocks have a producer and consumers.
    pub specialized: bool,
    /// Whether it is the main launch, without products: a warp waits for each of its instructions.
    pub of_rows: bool,
    /// How products and elementwise work of a step overlap.
    pub overlap: Overlap,
    /// Whether a step adds products to two tiles or more, as columns of a gradient do.
    pub several_sums: bool,
    /// Whether warpgroups share the columns of a program, which they exchange scores for.
    pub shares_columns: bool,
    /// Whether a product across the warps is made in the step of its operand (`sum_lag=0`).
    pub in_step: bool,
    /// Whether warpgroups issue their products in turns.
    pub turns: bool,
    /// Whether its code is too long for the instruction cache.
    pub fetches: bool,
    /// Whether exponentials are computed before it is known that they stay in the room of the
    /// reference.
    pub optimistic: bool,
    /// How blocks get programs.
    pub persistent: Persistent,
    /// In which order.
    pub order: Order,
    /// Whether the first tiles of the next program are loaded meanwhile.
    pub prepared: bool,
    /// Factor for what the compiler does where registers run short.
    pub spills: f64,
    /// Bytes of memory that a block has in flight.
    pub in_flight: u32,
    /// Whether TMA reads rows that are no multiple of 64 bytes, by which memory is read: they share
    /// such pieces with their neighbours.
    pub shares_lines: bool,
    /// Cycles that programs which walk parts take to meet, after all else.
    pub meeting: f64,
    /// Blocks of a cluster, 0 without.
    pub cluster: u32,
}

/// When the tiles come that a loop's step multiplies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Arrival {
    /// What the step computes hides it.
    Hidden,
    /// Beside so many steps.
    Ahead(f64),
    /// When the step before has ended, with no room for them until then.
    Behind,
}

/// That of the loop `op`: a step that does nothing but add products to sums, or a step of an index,
/// is short beside what its copies take. A slot is in use until the products of the next step begin.
fn arrival(kernel: &Kernel, op: OpId, body: BlockId, plan: &Plan, schedule: &BlockKnobs) -> Arrival {
    if lower::multiplies_what_an_index_loads(kernel, op) {
        return match schedule.outer_stages {
            1 => Arrival::Behind,
            slots => Arrival::Ahead(f64::from(slots - 1)),
        };
    }
    only_sums(kernel, body).then(|| steps_ahead(plan)).flatten().map_or(Arrival::Hidden, Arrival::Ahead)
}

impl Profile {
    /// That of a launch, the one that the schedule is about or another.
    pub fn of(planned: &PlannedLaunch, scratch: &[Scratch], arch: &Arch, is_main: bool) -> Self {
        let (instance, schedule, plan) = (&planned.piece.instance, &planned.piece.knobs, &planned.plan);
        let Counter { outside, loops: steps, cut, from, .. } = Counter::count(plan, instance, scratch, schedule, arch);
        let kernel = &instance.kernel;
        let waits_for_rows =
            schedule.overlap == Overlap::Late && plan.roles.iter().any(|role| any(&role.body, &reads_of_two(plan)));
        let wait = |op: &Op| match op {
            // What is loaded at a single position is used at once.
            Op::For { axis, .. } if kernel.axes[*axis].kind == AxisKind::Each => Some(LOAD_LATENCY),
            Op::For { .. } => Some(if waits_for_rows { LOAD_LATENCY } else { 0.0 }),
            _ => None,
        };
        let ring = |tile: &&SharedTile| tile.slots > 1 || tile.barriers.is_some();
        let arrives = |op: OpId| match kernel.ops[op].op {
            Op::For { body, .. } => {
                Some(if plan.is_specialized() { arrival(kernel, op, body, plan, schedule) } else { Arrival::Hidden })
            }
            _ => None,
        };
        let by_cluster = plan.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster);
        let extent = Extent::of(instance, schedule);
        Self {
            outside,
            steps,
            cut,
            from,
            waits: kernel.walk().into_iter().filter_map(|(_, op)| wait(&kernel.ops[op].op)).collect(),
            arrives: kernel.walk().into_iter().filter_map(|(_, op)| arrives(op)).collect(),
            fetches: extent.by_data && schedule.running_max == RunningMax::Optimistic,
            optimistic: plan.is_specialized() && schedule.running_max == RunningMax::Optimistic,
            extent,
            warps: f64::from(schedule.warps),
            resident: resident(planned),
            specialized: plan.is_specialized(),
            of_rows: is_main && !kernel.walk().into_iter().any(|(_, op)| matches!(kernel.ops[op].op, Op::Dot { .. })),
            overlap: schedule.overlap,
            several_sums: several_sums(kernel),
            shares_columns: plan.is_specialized() && schedule.column_groups > 1,
            in_step: schedule.overlap == Overlap::Late && schedule.sum_lag == 0,
            turns: schedule.ping_pong == PingPong::Products,
            persistent: schedule.persistent,
            order: match schedule.order {
                WorkOrder::Grid => Order::Grid,
                WorkOrder::Lpt => Order::Lpt { section: schedule.section.into() },
            },
            prepared: schedule.outer_stages > 1,
            spills: spills(planned, schedule, arch),
            in_flight: match plan.tiles.iter().filter(ring).map(|tile| tile.slots * tile.slot_bytes()).sum() {
                0 if is_main => loaded_at_once(plan, schedule.warps),
                bytes => bytes,
            },
            shares_lines: plan.maps.iter().any(|map| {
                let padded = scratch.iter().any(|s| s.name == map.tensor);
                !padded && row_bytes(instance, &map.tensor).is_some_and(|row| row % LINE != 0)
            }),
            meeting: meeting_cycles(plan),
            cluster: by_cluster.map_or(0, |m| m.parts),
        }
    }
}

/// Bytes that the warps of a block load to registers before they use them, in the step of a loop
/// that loads most, where nothing is copied to shared memory; 0 where something is.
fn loaded_at_once(plan: &Plan, warps: u32) -> u32 {
    let copies = |op: &StmtOp| matches!(op, StmtOp::Copy { .. } | StmtOp::Fill { .. });
    if plan.roles.iter().any(|role| any(&role.body, &copies)) {
        return 0;
    }
    fn most(plan: &Plan, body: &[Stmt]) -> u32 {
        let (mut own, mut of_loops) = (0, 0);
        for stmt in body {
            match &stmt.op {
                StmtOp::Load { to, from } if plan.variables[*to].storage == Storage::Fragment(Shape::Accumulator) => {
                    own += plan.variables[*to].registers() * from.elem.bytes().unwrap_or(4) as u32;
                }
                StmtOp::Loop { body, .. } => of_loops = of_loops.max(most(plan, body)),
                op => own += op.bodies().into_iter().map(|body| most(plan, body)).sum::<u32>(),
            }
        }
        own.max(of_loops)
    }
    32 * warps * plan.roles.iter().map(|role| most(plan, &role.body)).max().unwrap_or(0)
}

/// Whether all that a loop's body computes are products, and sums of these that it carries.
fn only_sums(kernel: &Kernel, body: BlockId) -> bool {
    let is_sum = |op: &Op| match *op {
        Op::Binary(BinaryOp::Add, a, b) => [a, b].iter().any(|&v| matches!(kernel.def(v), Some((_, Op::Dot { .. })))),
        ref op => matches!(op, Op::Load { .. } | Op::Dot { .. } | Op::Transpose(_) | Op::Yield(_)),
    };
    let ops = &kernel.blocks[body].ops;
    ops.iter().any(|&op| matches!(kernel.ops[op].op, Op::Dot { .. })) && ops.iter().all(|&op| is_sum(&kernel.ops[op].op))
}

/// Steps that the copies of a plan's rings are ahead of their products, with the fewest slots.
fn steps_ahead(plan: &Plan) -> Option<f64> {
    plan.tiles.iter().map(|tile| tile.slots).filter(|&slots| slots > 1).min().map(|slots| f64::from(slots - 1))
}

/// Whether a loop over tiles carries two tiles or more.
fn several_sums(kernel: &Kernel) -> bool {
    let tiles = |op: OpId| kernel.ops[op].results.iter().filter(|&&v| kernel.tile(v).rank() == 2).count();
    let is_loop = |op: OpId| matches!(kernel.ops[op].op, Op::For { axis, .. } if kernel.axes[axis].kind == AxisKind::Loop);
    kernel.walk().into_iter().any(|(_, op)| is_loop(op) && tiles(op) > 1)
}

/// Blocks of a launch that are on a multiprocessor at once.
fn resident(launch: &PlannedLaunch) -> u32 {
    let fit = launch.predicted.blocks_per_sm.max(1);
    match launch.piece.knobs.persistent {
        Persistent::Off => fit,
        _ => launch.piece.knobs.min_blocks.clamp(1, fit),
    }
}

/// Statements that read a ring of two slots for elementwise work. Where operands of products are kept
/// for a step more, its next tile is asked for behind theirs: three slots were 1.06 to 1.25 times as
/// fast in 10 of 10 pairs (200 to 650 cycles of a step; biased gradients, d 64 to 128, H200,
/// 2026-12-02).
fn reads_of_two(plan: &Plan) -> impl Fn(&StmtOp) -> bool {
    |op| matches!(op, StmtOp::ReadRows { tile, .. } if plan.tiles[*tile].slots <= 2)
}

/// Past what a thread has, the compiler spills, or serialises products.
fn spills(planned: &PlannedLaunch, schedule: &BlockKnobs, arch: &Arch) -> f64 {
    let registers = planned.predicted.registers;
    match lower::register_split(schedule) {
        Some((_, consumer)) if registers + SPARE > consumer => SERIALIZED,
        Some((_, consumer)) if registers + consumer / SPARE_SHARE > consumer => SPILLING,
        Some(_) => 1.0,
        None => {
            let most = arch.registers_of_thread(planned.predicted.threads, schedule.min_blocks);
            1.0 + SPILL_COST * f64::from(registers.saturating_sub(most - most / SPILL_SHARE))
        }
    }
}

/// Cycles that programs which walk parts take to meet, after all else.
fn meeting_cycles(plan: &Plan) -> f64 {
    match &plan.meeting {
        Some(Meeting { by: MeetBy::Semaphore, parts, .. }) => TURN_OF_PART * f64::from(*parts),
        Some(Meeting { parts, .. }) => CLUSTER_LATENCY + STATE_OF_CLUSTER * f64::from(*parts),
        None => 0.0,
    }
}
