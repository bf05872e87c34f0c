//! What lowering knows while it walks a kernel: what values have become, the plan so far, what is
//! in flight.

use std::collections::{BTreeMap, HashMap, HashSet};

use flashtile_dsl::analysis::index::IndexExpr;
use flashtile_dsl::analysis::reach::Integers;
use flashtile_dsl::ir::{AxisId, Kernel, OpId, Span, ValueId};

use super::classify::Classes;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{Expr, GlobalTile, Guard, LoopId, MeetBy, Plan, Slot, Stmt, TileId, VarId};
use crate::schedule::{BlockKnobs, RunningMax};

/// How programs that walk the parts of a loop meet, and how many parts there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meets {
    pub by: MeetBy,
    pub parts: u32,
}

/// What a value has become.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Home {
    /// An expression, evaluated where it is used.
    Inline(Expr),
    /// A variable.
    Variable(VarId),
    /// A tile in shared memory.
    Tile(TileId),
    /// A coordinate; its name.
    Coordinate(String),
}

/// An operand that has been made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub tile: TileId,
    pub slot: Slot,
    /// Whether the tile holds the operand transposed.
    pub transposed: bool,
}

/// Accesses to tensors that are read and written, since the last barrier. Several lanes read an
/// element of a row, and one of them stores it: a barrier stands between what is loaded and what is
/// stored, and between that and the next load of it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Exchange {
    /// Something was loaded.
    pub loaded: bool,
    /// Something was stored.
    pub stored: bool,
}

impl Exchange {
    /// What may have happened on one way or the other.
    pub fn or(self, other: Self) -> Self {
        Self { loaded: self.loaded || other.loaded, stored: self.stored || other.stored }
    }
}

/// Where what comes after the meeting begins, and who does it.
#[derive(Clone, Debug)]
pub(super) struct AfterMeeting {
    /// Number of statements before it.
    pub at: usize,
    pub guard: Guard,
}

/// Where a ring between roles is filled from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub load: OpId,
    /// Index of the tensor map.
    pub map: usize,
    /// The loop that streams it, and its coordinate.
    pub streamed: Option<(LoopId, ValueId)>,
    /// The loop over single positions in whose body it is filled once.
    pub within: Option<LoopId>,
}

/// A tile copied outside any loop and not yet waited for.
pub(super) struct Pending {
    pub tile: TileId,
}

pub(super) struct Lowering<'a> {
    pub kernel: &'a Kernel,
    pub instance: &'a Instance,
    pub schedule: &'a BlockKnobs,
    /// How programs that walk the parts of a loop meet.
    pub meets: Option<Meets>,
    pub classes: Classes,
    /// What the integers of the kernel may be.
    pub integers: Integers,
    pub plan: Plan,
    pub homes: HashMap<ValueId, Home>,
    /// The name of the tile that an iteration of a loop with a gap is at.
    pub gap_tiles: HashMap<LoopId, String>,
    /// What loop bounds load, and what searches find: [`IndexExpr::Loaded`] and
    /// [`IndexExpr::Found`], by name.
    pub loaded: HashMap<IndexExpr, Expr>,
    /// Ends of the loop whose bounds are defined, with their names.
    pub bounds: Vec<(IndexExpr, Expr)>,
    /// Variables that are loaded where a mask reads them.
    pub for_masks: BTreeMap<VarId, GlobalTile>,
    pub names: HashSet<String>,
    /// Variables that values must be computed into (carried values updated in place).
    pub forced: HashMap<ValueId, VarId>,
    pub loops_by_axis: HashMap<AxisId, LoopId>,
    pub pending: Vec<Pending>,
    /// Tiles that were waited for, and of which only a loop that may make no trip has made sure
    /// that other warps see them.
    pub landed: HashSet<TileId>,
    /// Tiles whose A fragments are in registers.
    pub fragments_of: HashMap<TileId, VarId>,
    /// Slots that streamed values are read from.
    pub slots_of: HashMap<ValueId, Slot>,
    /// Rings of loads whose elements elementwise work reads, and the slots that they are in.
    pub read_from: HashMap<OpId, (TileId, Slot)>,
    /// The first column of values that are parts of tiles.
    pub parts_at: HashMap<ValueId, u32>,
    /// Tiles that operands of products were staged in, by operand.
    pub staged: HashMap<ValueId, TileId>,
    /// Tiles from which rows are added, by rows and columns.
    pub tiles_to_add: HashMap<(u32, u32, bool), TileId>,
    /// Which of the programs that share columns this is.
    pub column_program: Option<Expr>,
    /// Computed operands, where they are.
    pub made: HashMap<ValueId, Made>,
    pub out: Vec<Stmt>,
    pub span: Span,
    /// Rings that a producer fills.
    pub sources: HashMap<TileId, Source>,
    /// The form of the running maximum that is lowered.
    pub running_max: RunningMax,
    /// Rescales of accumulators that may be in flight where the reference moves.
    pub late_rescales: Vec<Stmt>,
    /// Accesses to tensors that are read and written, since the last barrier.
    pub exchange: Exchange,
    /// Number of programs along each dimension of the grid.
    pub program_counts: Vec<Expr>,
    /// What comes after the meeting of programs that walk parts.
    pub after_meeting: Option<AfterMeeting>,
    /// The first fragment whose rows do not divide among the warps.
    pub uneven: Option<Error>,
}
