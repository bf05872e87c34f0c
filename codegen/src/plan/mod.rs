//! The plan: what each warp does, statement by statement.
//!
//! A plan is between the IR and the text. Values have become fragments in registers or tiles in shared memory, copies are
//! issued and waited for, loops have bounds. Everything that could go wrong between threads is explicit here, and
//! [`verify`] checks it for any trip count before a line of CUDA is written.
//!
//! ## Meaning
//!
//! * A *tile* is a ring of one or more slots in shared memory. `Copy` fills a slot. With `cp.async`
//!   a copy has landed when a `Wait` that names it returns. Other threads see it after the next
//!   `Barrier`.
//! * A *wait* names what it waits for ([`Event`]): copies, products into an accumulator, products
//!   that read a slot. The hardware counts groups, which end in the order of their issue. The
//!   numbers of `wait_group` are derived from that order, in one place (`completion.rs`).
//! * A *variable* is a fragment in the registers of a thread: an accumulator in the layout of the PTX ISA's `mma.m16n8k16`, a
//!   row or column vector that goes with it, a packed A operand, or one uniform value.
//! * A `Compute` makes tiles out of others: all warps share the elements, and each thread reads and writes whole 16-byte parts
//!   of rows. A tile that it makes may lie in a slot that it reads; others see it after the next `Barrier`.
//! * An `Add` adds to global memory without reading it to registers. Each element is added once,
//!   atomically, so that threads and programs may add to one tile, one after the other or at once.
//!   A load or a store of the tile is behind a barrier after it, or before it.
//! * An *iteration* of a loop is named relative to the one in progress, so that copies may run ahead: slot `n % slots`
//!   belongs to iteration `n`. Which tile an iteration visits is said by the loop alone ([`LoopInfo::tile`]): from the lowest up,
//!   from the highest down, or from the last that nothing cuts up and then from the lowest.
//!
//! * The warps that compute may be *column groups*. Each group has all rows of a tile, its warps
//!   sharing them, and an equal share of the columns of every fragment with columns: group 0 the
//!   first. Fragments of rows are the same in all groups. A right operand is read at the group's
//!   columns; a left operand is needed whole, so that what the groups have computed of it is staged
//!   in shared memory. `Publish` writes a group's part of a value for each row to a tile, and `Merge`
//!   reduces the parts of all groups, in their order, so that all get the same. Other warps see what
//!   `Stage` and `Publish` write after the next `Barrier`. Of a tile with mbarriers of its own an
//!   `Exchange` says so: each warp supplies what it has staged in a slot, and reads the slot when it
//!   has awaited the others; it frees the slot, and writes it again when all have freed it. So no
//!   warp waits for the others at once.
//!
//! A plan has one role, where all warps copy and compute, or several: *producers* that fill rings
//! and *consumers* that compute. Each ring has one role that fills it and others that drain it,
//! which its statements say (`rings.rs`). Then
//!
//! * a ring is first in, first out: `Fill` waits until the next slot is empty and starts a copy into it, `Acquire` waits until
//!   the next slot is full, `Release` hands it back and goes on to the next. Each role has its own place in each ring, which it
//!   keeps from program to program. A slot has two mbarriers: full (one arrival and the bytes of the copy) and empty (an arrival
//!   of every warp that drains the ring);
//! * a `Dot` is asynchronous: it is issued as a group of its own, and reads its operands and writes
//!   its accumulator until a `Wait` that names it returns;
//! * `TakeTurn` and `PassTurn` hand a token round the warpgroups of the consumers. The first warpgroup has it at the start;
//! * `Work` repeats its body for each program that the block takes, and then for those of which a
//!   `MakeAgain` has said so. In these `Guard::Again` holds, for all roles. What a program
//!   stores when it is made again is stored over what it stored before. Behind a launch that made many
//!   again, [`WARY_LAUNCHES`] launches begin with `Guard::Again`;
//! * `ReadRows` reads the slot in use of a ring to registers, and is done where it stands.
//!
//! Programs that walk the parts of one loop may meet (`Meeting`), in one of two ways:
//!
//! * by a semaphore, a word of the workspace that says whose turn it is. `AwaitPart` waits for the turn of the program's part,
//!   `LoadState` and `SaveState` read and write the state that goes from part to part in global memory, and `PassPart` gives the
//!   turn to the next part; the last part gives it back to the first, so that the word is zero again. The wait acquires and the
//!   pass releases, for all threads that compute;
//! * as blocks of a cluster. `SaveState` writes the program's own state to its shared memory, `LoadState` reads that of the
//!   block of a rank, and `ClusterBarrier` is between the two, and before the block ends.
//!
//! Every thread saves and loads its own elements: the threads of two blocks have the same.
//!
//! A wait for a part ends. A program waits for the part before, and programs are numbered so that earlier parts come first. A block
//! runs one program, and blocks begin in the order of their index. So of the programs that have not ended the first is on the
//! machine, and what it waits for has been passed; when it ends the same holds of the next. That blocks begin in order is what GPUs
//! do and what serial split-K reductions rely on (CUTLASS, `semaphore.h`). Blocks that stay would not do: the program before may
//! be one of a block that has not begun, and does not while all that have begun wait.

mod alike;
mod cases;
mod completion;
mod effects;
mod expr;
mod pressure;
mod rename;
mod rings;
mod text;
mod verify;
mod visit;

pub(crate) use alike::Alike;
pub(crate) use completion::{Completion, InFlight};
pub(crate) use effects::{Effects, effects};
pub use expr::{Builtin, Cast, Expr, Function, Operator, Param, Prefix, Shape};
pub use pressure::{
    copies_in_registers, lent_operands, most_in_flight, peak, products_of_a_step, reads_of_pairs, streamed_tiles,
};
pub use rings::RingRoles;
pub use text::{PlanFile, TextError};
pub(crate) use verify::state_bytes;
pub use verify::verify;
pub(crate) use visit::{any, each};

use flashtile_dsl::ir::{Elem, ReduceOp, Span};

use crate::abi::TensorMap;
use crate::arch::CopyOp;
use crate::schedule::{Persistent, SharedLayout, Walk};

/// Index of a [`SharedTile`].
pub type TileId = usize;
/// Index of a [`Variable`].
pub type VarId = usize;
/// Index of a [`LoopInfo`].
pub type LoopId = usize;

/// The mbarriers of a tile that producers fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barriers {
    /// A ring of its own, with mbarriers at a byte offset: full, one a slot, then empty.
    At(u32),
    /// Those of another ring. The tile comes with that one: a `Fill` of the ring fills a slot of
    /// both, and whoever acquires the slot has both.
    Of(TileId),
}

/// A box of a tensor that a `Fill` brings with that of its ring.
#[derive(Clone, PartialEq, Debug)]
pub struct Companion {
    /// Tile that has the mbarriers of the ring.
    pub tile: TileId,
    /// Index of the tensor map.
    pub map: usize,
    /// Coordinates of the box, innermost first.
    pub at: Vec<Expr>,
}

/// A ring of tiles in shared memory.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedTile {
    /// Name.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Rows.
    pub rows: u32,
    /// Columns, padded to whole fragments.
    pub columns: u32,
    /// Bytes from row to row.
    pub pitch: u32,
    /// Layout.
    pub layout: SharedLayout,
    /// Parts of so many columns as fill a row's pitch, one after the other: 1 but for tiles that TMA fills.
    pub slabs: u32,
    /// Whether the parts of a row follow each other, in place of the rows of a part.
    pub woven: bool,
    /// Slots.
    pub slots: u32,
    /// Byte offset of slot 0.
    pub offset: u32,
    /// Whether each warp writes and reads only rows of its own (no block barrier is needed).
    pub warp_private: bool,
    /// The mbarriers of a ring between roles.
    pub barriers: Option<Barriers>,
    /// Byte offset of the mbarriers by which warps exchange what they stage for each other: one a
    /// slot for what was supplied, then for what was freed. Without these barriers do it.
    pub exchange: Option<u32>,
}

impl SharedTile {
    /// Columns of a slab of a narrow tile, whose rows are one chunk of 16 bytes: the right operand
    /// of a product with so few numbers in a row. In rows of more chunks TMA would ask for each
    /// chunk by itself. `wgmma` takes steps of 16. Where the numbers are finite, there is one slab,
    /// which a step reads twice: the left operand has zeros for the second time. Elsewhere 0 times
    /// an infinite number would be NaN, and a second slab has been zeros since the program began.
    pub const NARROW: u32 = 8;

    /// Whether it is narrow.
    pub fn is_narrow(&self) -> bool {
        self.barriers.is_some() && self.pitch == 16 && self.columns == self.slabs * Self::NARROW
    }

    /// Whether a step of a product reads its rows twice.
    pub fn is_read_twice(&self) -> bool {
        self.is_narrow() && self.slabs == 1
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> u32 {
        self.slabs * self.rows * self.pitch
    }

    /// Slabs of a slot that a copy fills.
    pub fn filled_slabs(&self) -> u32 {
        if self.is_narrow() { 1 } else { self.slabs }
    }

    /// Bytes of one slot that a copy fills.
    pub fn filled_bytes(&self) -> u32 {
        self.filled_slabs() * self.rows * self.pitch
    }

    /// Byte offsets of what is zero from the beginning on, and bytes of each.
    pub fn zeros(&self) -> impl Iterator<Item = (u32, u32)> {
        let (filled, slot) = (self.filled_bytes(), self.slot_bytes());
        (0..self.slots).map(move |number| (self.offset + number * slot + filled, slot - filled)).filter(|(_, bytes)| *bytes > 0)
    }

    /// Byte offset of the mbarriers of a ring, full before empty; `None` of what is no ring of its
    /// own.
    pub fn ring_at(&self) -> Option<u32> {
        match self.barriers {
            Some(Barriers::At(at)) => Some(at),
            _ => None,
        }
    }

    /// Offsets of its mbarriers, of either kind.
    pub fn mbarriers(&self) -> impl Iterator<Item = u32> {
        self.ring_at().into_iter().chain(self.exchange)
    }

    /// Whether rows are swizzled.
    pub fn swizzle(&self) -> u32 {
        u32::from(self.layout == SharedLayout::Xor)
    }

    /// Where the 16-byte chunk `chunk` of row `row` lies, in bytes from the start of its slot: `tile_offset` of the
    /// templates, in Rust.
    pub fn chunk_offset(&self, row: u32, chunk: u32) -> u32 {
        let chunks = (self.pitch / 16).clamp(1, 8);
        let key = if self.swizzle() == 1 { (row / (8 / chunks)) % chunks } else { 0 };
        row * self.pitch + ((chunk ^ key) << 4)
    }

    /// How many of the eight rows `row .. row + 8`, at the chunk `chunk`, fall on the same banks: what `ldmatrix` reads in
    /// one phase takes so many passes. 1 is free of conflicts.
    pub fn conflicts(&self, row: u32, chunk: u32) -> u32 {
        let mut rows_on = [0; 8];
        for row in row..row + 8 {
            // Shared memory has 32 banks of 4 bytes: a chunk is on four of them, 8 groups in all.
            rows_on[(self.chunk_offset(row, chunk) / 16 % 8) as usize] += 1;
        }
        rows_on.into_iter().max().expect("eight groups")
    }
}

/// Storage of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// f32 fragment of this shape.
    Fragment(Shape),
    /// 16-bit pairs in the layout of an A operand: `u32 [m_tiles][n_tiles][2]`.
    Packed,
    /// f32 vector along columns, spread over the lanes of a warp: lane l has columns 2l and 2l + 1
    /// of each 64. It takes an eighth of the registers of a column fragment, of which every eighth
    /// lane has the same.
    Lanes,
    /// One truth value per warp.
    Flag,
}

/// A fragment in registers.
#[derive(Clone, PartialEq, Debug)]
pub struct Variable {
    /// Name, unique in the plan.
    pub name: String,
    /// Storage.
    pub storage: Storage,
    /// Row tiles of 16 per warp (1 where there are no rows).
    pub m_tiles: u32,
    /// Column tiles of 8 (1 where there are no columns): those of a column group.
    pub n_tiles: u32,
    /// Warps that share its rows, where these are not the warps that share the rows of other
    /// variables. The others have further columns: the fragment lies *across*, as its rows are
    /// columns elsewhere.
    pub across: Option<u32>,
    /// Element type of a uniform: float or int.
    pub integer: bool,
    /// Whether it is an accumulator fragment of truth values, which has one bit for each. Only a
    /// load writes it.
    pub bits: bool,
}

impl Variable {
    /// 32-bit registers per thread.
    pub fn registers(&self) -> u32 {
        match self.storage {
            Storage::Fragment(Shape::Uniform) => 1,
            Storage::Fragment(Shape::Row) => 2 * self.m_tiles,
            Storage::Fragment(Shape::Column) => 2 * self.n_tiles,
            Storage::Fragment(Shape::Accumulator) if self.bits => 2 * self.m_tiles * self.n_tiles.div_ceil(16),
            Storage::Fragment(Shape::Accumulator) => 4 * self.m_tiles * self.n_tiles,
            Storage::Packed => 2 * self.m_tiles * self.n_tiles,
            Storage::Lanes => 2 * self.n_tiles.div_ceil(8),
            Storage::Flag => 0,
        }
    }
}

/// Tiles between two runs that a loop leaves out.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopGap {
    /// The first of them.
    pub at: Expr,
    /// How many.
    pub tiles: Expr,
}

/// A list of the tiles that a loop walks, in global memory.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopList {
    /// Address of the first entry. An entry is four times the number of a tile, plus 2
    /// where nothing cuts it, plus 1 where something may.
    pub entries: Expr,
    /// Name of the entry of the iteration in progress.
    pub entry: String,
}

impl LoopList {
    /// The tile of an entry.
    fn tile(entry: Expr) -> Expr {
        Expr::infix(Operator::Shr, entry, Expr::Int(2))
    }

    /// The entry at a place of the list.
    fn at(&self, place: Expr) -> Expr {
        Expr::call(Function::Read, [Expr::infix(Operator::Add, self.entries.clone(), place)])
    }

    /// The tile of the iteration in progress.
    pub fn in_progress(&self) -> Expr {
        Self::tile(Expr::name(self.entry.clone()))
    }

    /// Whether the tile of the iteration in progress may be cut.
    pub fn is_cut(&self) -> Expr {
        let whole = Expr::infix(Operator::BitAnd, Expr::name(self.entry.clone()), Expr::Int(2));
        Expr::infix(Operator::Eq, whole, Expr::Int(0))
    }
}

/// A loop over tiles.
///
/// Its coordinate counts the tiles that are walked, from `lo` on: without a gap it is the number of
/// the tile. With one, what comes behind the gap has a tile that is larger by the length of the gap
/// ([`LoopInfo::visited`]). With a list it is a place in the list. Where the last tile comes first,
/// coordinates begin with that tile and go on behind `hi`, where they stand for the lowest ones.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopInfo {
    /// Name of the coordinate.
    pub coordinate: String,
    /// Lowest tile.
    pub lo: Expr,
    /// Lowest tile that nothing cuts.
    pub full_lo: Expr,
    /// One past the highest tile that nothing cuts.
    pub full_hi: Expr,
    /// One past the highest place: one past the highest tile, less the length of the gap.
    pub hi: Expr,
    /// Tiles that are left out.
    pub gap: Option<LoopGap>,
    /// The list that it walks, in place of all tiles from the lowest to the highest. Then nothing is
    /// said by `full_lo` and `full_hi`.
    pub list: Option<LoopList>,
    /// In which order it visits them.
    pub walk: Walk,
    /// Coordinate of the first iteration: the highest where it descends, else the lowest. Where the
    /// last tile comes first, it is the last place that nothing cuts, as far as that is known.
    pub first: Expr,
    /// Slots of its rings; 0 if it streams nothing.
    pub slots: u32,
    /// Whether it walks single positions, and not tiles.
    pub single: bool,
}

impl LoopInfo {
    /// The tile of an iteration, in terms of the coordinate if it is named relative to the one in progress.
    pub fn tile(&self, iteration: Iteration) -> Expr {
        self.visited(self.place(iteration))
    }

    /// The place of a coordinate among the tiles that are walked, from the lowest tile on.
    fn place_of(&self, coordinate: Expr) -> Expr {
        match self.walk {
            Walk::Ascending | Walk::Descending => coordinate,
            // Coordinates go on behind the highest place, and these stand for the lowest ones.
            Walk::LastFirst => {
                let within = Expr::infix(Operator::Lt, coordinate.clone(), self.hi.clone());
                let again = Expr::infix(Operator::Sub, coordinate.clone(), self.count());
                Expr::Select(Box::new(within), Box::new(coordinate), Box::new(again))
            }
        }
    }

    /// How many iterations there are.
    pub fn count(&self) -> Expr {
        Expr::infix(Operator::Sub, self.hi.clone(), self.lo.clone())
    }

    /// One past the highest coordinate.
    pub fn end(&self) -> Expr {
        match self.walk {
            Walk::Ascending | Walk::Descending => self.hi.clone(),
            Walk::LastFirst => Expr::infix(Operator::Add, self.first.clone(), self.count()),
        }
    }

    /// The entry of the iteration in progress, where a list is walked.
    pub fn entry(&self) -> Option<Expr> {
        let list = self.list.as_ref()?;
        Some(list.at(self.place_of(Expr::name(self.coordinate.clone()))))
    }

    /// The tile at a coordinate.
    pub fn visited(&self, coordinate: Expr) -> Expr {
        let coordinate = self.place_of(coordinate);
        if let Some(list) = &self.list {
            return LoopList::tile(list.at(coordinate));
        }
        let Some(LoopGap { at, tiles }) = &self.gap else { return coordinate };
        let behind = Expr::infix(Operator::Ge, coordinate.clone(), at.clone());
        let further = Expr::Select(Box::new(behind), Box::new(tiles.clone()), Box::new(Expr::Int(0)));
        Expr::infix(Operator::Add, coordinate, further)
    }

    /// Whether each coordinate is that of its tile.
    pub fn is_direct(&self) -> bool {
        self.list.is_none() && self.gap.is_none() && self.walk != Walk::LastFirst
    }

    /// Expressions beside the bounds: those of the gap and of the list.
    pub fn beside_bounds(&self) -> impl Iterator<Item = &Expr> {
        self.gap.iter().flat_map(|gap| [&gap.at, &gap.tiles]).chain(self.list.iter().map(|list| &list.entries))
    }

    /// Whether the tile of the iteration in progress may be cut by a mask or a bound.
    pub fn is_cut(&self) -> Expr {
        if let Some(list) = &self.list {
            return list.is_cut();
        }
        let tile = self.visited(Expr::name(self.coordinate.clone()));
        let after = Expr::infix(Operator::Ge, tile.clone(), self.full_hi.clone());
        if self.full_lo == self.lo {
            return after;
        }
        Expr::infix(Operator::Or, Expr::infix(Operator::Lt, tile, self.full_lo.clone()), after)
    }

    /// The coordinate of an iteration.
    pub fn place(&self, iteration: Iteration) -> Expr {
        let in_progress = || Expr::name(self.coordinate.clone());
        match iteration {
            Iteration::First(_, n) => self.onwards(self.first.clone(), n),
            Iteration::Ahead(_, n) => self.onwards(in_progress(), n),
            Iteration::Behind(_, n) => match self.walk {
                Walk::Ascending | Walk::LastFirst => Expr::infix(Operator::Sub, in_progress(), Expr::Int(n.into())),
                Walk::Descending => Expr::infix(Operator::Add, in_progress(), Expr::Int(n.into())),
            },
            Iteration::Last(_) => match self.walk {
                Walk::Ascending | Walk::LastFirst => Expr::infix(Operator::Sub, self.end(), Expr::Int(1)),
                Walk::Descending => self.lo.clone(),
            },
        }
    }

    /// The coordinate that comes `n` iterations after another.
    pub fn onwards(&self, coordinate: Expr, n: u32) -> Expr {
        match self.walk {
            Walk::Ascending | Walk::LastFirst => Expr::infix(Operator::Add, coordinate, Expr::Int(n.into())),
            Walk::Descending => Expr::infix(Operator::Sub, coordinate, Expr::Int(n.into())),
        }
    }

    /// Whether an iteration exists, if those before it do.
    pub fn exists(&self, iteration: Iteration) -> Expr {
        match self.walk {
            Walk::Ascending | Walk::LastFirst => Expr::infix(Operator::Lt, self.place(iteration), self.end()),
            Walk::Descending => Expr::infix(Operator::Ge, self.place(iteration), self.lo.clone()),
        }
    }

    /// The number of the iteration in progress.
    pub fn number(&self) -> Expr {
        let in_progress = Expr::name(self.coordinate.clone());
        match self.walk {
            Walk::Ascending | Walk::LastFirst => Expr::infix(Operator::Sub, in_progress, self.first.clone()),
            Walk::Descending => Expr::infix(Operator::Sub, self.first.clone(), in_progress),
        }
    }
}

/// An iteration of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// Iteration number `n`, before the loop.
    First(LoopId, u32),
    /// The one `n` after the one in progress.
    Ahead(LoopId, u32),
    /// The one `n` before the one in progress.
    Behind(LoopId, u32),
    /// The last one, after the loop.
    Last(LoopId),
}

impl Iteration {
    /// The loop that it is of.
    pub fn of_loop(self) -> LoopId {
        match self {
            Iteration::First(id, _) | Iteration::Ahead(id, _) | Iteration::Behind(id, _) | Iteration::Last(id) => id,
        }
    }
}

/// Which slot of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The only one.
    Only,
    /// That of an iteration.
    Of(Iteration),
}

/// The end of something asynchronous, which a [`StmtOp::Wait`] waits for.
///
/// What does not exist is not waited for: the copy for an iteration that the loop does not make,
/// and products that were not issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The copy into a slot for an iteration has landed.
    Copied(TileId, Slot),
    /// All products that were issued into an accumulator are done.
    Product(VarId),
    /// All products that were issued and read a slot are done.
    Read(TileId, Slot),
}

/// A tile of a tensor in global memory.
#[derive(Clone, PartialEq, Debug)]
pub struct GlobalTile {
    /// Name of the tensor.
    pub tensor: String,
    /// Type of its elements.
    pub elem: Elem,
    /// Address of the tile's origin.
    pub origin: Expr,
    /// Elements from row to row (of a vector: from position to position).
    pub row_stride: Expr,
    /// Rows (positions) that exist from the origin on.
    pub rows_present: Expr,
    /// Elements from column to column: 1, but where a tile lies transposed.
    pub column_stride: Expr,
    /// Columns that exist from the origin on.
    pub columns_present: Expr,
    /// Whether the columns that exist are all those of the padded tile.
    pub columns_full: bool,
}

impl GlobalTile {
    /// The same elements, with rows for columns.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            row_stride: self.column_stride,
            rows_present: self.columns_present,
            column_stride: self.row_stride,
            columns_present: self.rows_present,
            columns_full: false,
            ..self
        }
    }

    /// Whether rows lie side by side, columns apart, and two elements of a column fill a register.
    pub fn comes_in_pairs(&self) -> bool {
        self.row_stride == Expr::Int(1) && self.column_stride != Expr::Int(1) && self.elem.bytes() == Some(2)
    }
}

/// What a row-wise reduction gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The largest element; a number wins over NaN.
    Max,
    /// 0, or the largest element where that is more; NaN may win. It compares the bits as integers,
    /// whose order is that of floats from 0 on, and puts negative floats below.
    Bound,
}

impl From<ReduceOp> for Reduction {
    fn from(operation: ReduceOp) -> Self {
        match operation {
            ReduceOp::Max => Self::Max,
            ReduceOp::Sum => Self::Sum,
        }
    }
}

/// When a statement is executed.
#[derive(Clone, PartialEq, Debug)]
pub enum Guard {
    /// If the iteration exists.
    Exists(Iteration),
    /// If the tile in progress of one of the loops is cut by a mask or a bound.
    Cut(Vec<LoopId>),
    /// If a condition holds, which is one for the program.
    Holds(Expr),
    /// If the condition holds for some element of a row fragment in some lane of the voters.
    /// A vote within another of the same flag narrows it: the flag is that of the inner one.
    Vote {
        /// Condition per element.
        condition: Expr,
        /// Row tiles.
        m_tiles: u32,
        /// Remembers the choice.
        flag: Option<VarId>,
        /// Whose choice it is.
        of: Voters,
    },
    /// If the vote that a flag remembers was for it.
    Flag(VarId),
    /// If the program is made again.
    Again,
    /// If a loop that takes two iterations at a time from the second one on leaves one over.
    OneLeft(LoopId),
    /// If the program walks the first part.
    FirstPart,
    /// If the program walks the last part.
    LastPart,
    /// In the warps whose number modulo the parts is that of the program's part: of the same warps in a cluster's blocks it is one.
    OwnWarps,
}

impl Guard {
    /// Whether few steps take the branch.
    pub fn is_rare(&self) -> bool {
        matches!(self, Guard::Cut(_) | Guard::Holds(_) | Guard::Flag(_))
    }
}

/// Who makes a choice together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Voters {
    /// The lanes of a warp: each warp chooses by itself.
    Warp,
    /// All warps of the role, which meet at a barrier and choose alike: what is written before is
    /// visible behind it, and there may be barriers in the branch.
    Role,
}

/// The A operand of a product.
#[derive(Clone, PartialEq, Debug)]
pub enum OperandA {
    /// A tile in shared memory; each warp reads its rows.
    Tile(TileId, Slot),
    /// A packed variable.
    Packed(VarId),
}

/// The instruction that a product is made of, and how the fragments of its operands reach
/// registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atom {
    /// Multiply-adds of single elements in f32. A is a tile.
    Ffma,
    /// `mma.sync` of a warp (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions"),
    /// m16n8.
    Mma {
        /// Length of the contraction of one instruction: 8 or 16.
        k: u32,
        /// How fragments of B are loaded.
        b: FragmentLoads,
        /// Whether the fragments of A of all row tiles are in registers together.
        batch_m: bool,
    },
    /// `wgmma.mma_async` of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
    /// Multiply-Accumulate Instructions"), m64k16. B is a tile.
    Wgmma,
}

impl Atom {
    /// Whether a product is issued, and done when a wait says so.
    pub fn is_asynchronous(self) -> bool {
        self == Atom::Wgmma
    }
}

/// How the fragments of B's tile are loaded for `mma.sync`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragmentLoads {
    /// One with each `ldmatrix`.
    Single,
    /// Two with each `ldmatrix`.
    Paired,
    /// Two with each, all of them before the first product.
    Preload,
    /// Two with each, those of the next step while the products of this one run.
    DoubleBuffer,
}

impl FragmentLoads {
    /// All of them, with their names.
    pub const ALL: &[(FragmentLoads, &str)] = &[
        (FragmentLoads::Single, "single"),
        (FragmentLoads::Paired, "paired"),
        (FragmentLoads::Preload, "preload"),
        (FragmentLoads::DoubleBuffer, "double_buffer"),
    ];

    /// The name in the text of a plan.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(loads, _)| *loads == self).map(|(_, name)| *name).expect("each has a row")
    }
}

/// A step of the exchange of a slot, in the order in which a slot goes through them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Waits until all warps have freed the slot; the first time of each slot there is nothing to
    /// wait for. Then it is written.
    Reserve,
    /// Says that the warp has written its rows.
    Supply,
    /// Waits until all warps have supplied theirs. Then all rows are read.
    Await,
    /// Says that the warp reads the slot no more.
    Free,
}

impl Exchange {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Exchange); 4] =
        [("reserve", Exchange::Reserve), ("supply", Exchange::Supply), ("await", Exchange::Await), ("free", Exchange::Free)];

    /// The name in the text of a plan.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, step)| *step == self).map(|(name, _)| *name).expect("each has a row")
    }
}

/// A tile that a [`StmtOp::Compute`] makes.
#[derive(Clone, PartialEq, Debug)]
pub struct Computed {
    /// Tile.
    pub tile: TileId,
    /// Slot.
    pub slot: Slot,
    /// Value per element, rounded to the type of the tile.
    pub value: Expr,
}

/// What a [`StmtOp::Compute`] reads.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// Name under which expressions know its elements.
    pub name: String,
    /// Where it is.
    pub from: InputSource,
}

/// Where an input of a [`StmtOp::Compute`] is.
#[derive(Clone, PartialEq, Debug)]
pub enum InputSource {
    /// A tile of the same shape in shared memory.
    Tile(TileId, Slot),
    /// A tile of the same shape in global memory.
    Matrix(GlobalTile),
    /// A vector along the rows, in global memory.
    Row(GlobalTile),
    /// A vector along the columns, in global memory.
    Column(GlobalTile),
}

/// A value that several expressions of a [`StmtOp::Compute`] share.
#[derive(Clone, PartialEq, Debug)]
pub struct Shared {
    /// Name.
    pub name: String,
    /// Element type: f32, i32 or bool.
    pub elem: Elem,
    /// Value per element.
    pub value: Expr,
}

/// The type of a uniform constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LetType {
    /// f32.
    Float,
    /// An integer of 32 bits.
    Int,
    /// An integer of 64 bits.
    Wide,
}

impl LetType {
    /// Of an element of a tile.
    pub fn of(integer: bool) -> Self {
        if integer { LetType::Int } else { LetType::Float }
    }
}

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub enum StmtOp {
    /// A uniform constant.
    Let {
        /// Name.
        name: String,
        /// Its type.
        ty: LetType,
        /// Value.
        value: Expr,
    },
    /// Elementwise: `to = value`.
    Map {
        /// Fragment.
        to: VarId,
        /// Value per element.
        value: Expr,
    },
    /// Elementwise conversion of pairs to 16 bits.
    Pack {
        /// Packed variable.
        to: VarId,
        /// Type of the elements.
        elem: Elem,
        /// Value per element.
        value: Expr,
    },
    /// Row-wise reduction.
    Reduce {
        /// Row fragment.
        to: VarId,
        /// Accumulator fragment.
        from: VarId,
        /// What it gives.
        operation: Reduction,
        /// Whether all lanes of a row get the result.
        across_quad: bool,
    },
    /// Makes a column fragment of a vector that is spread over lanes.
    Distribute {
        /// Column fragment.
        to: VarId,
        /// Vector of as many columns.
        from: VarId,
        /// Tile by way of which it goes, with a row for each warp.
        tile: TileId,
    },
    /// Completes a row sum kept per lane.
    QuadSum(VarId),
    /// Completes a row maximum kept per lane.
    QuadMax(VarId),
    /// Fills a slot from global memory.
    Copy {
        /// Tile.
        tile: TileId,
        /// Slot.
        slot: Slot,
        /// Source.
        from: GlobalTile,
    },
    /// Elementwise: makes tiles in shared memory, the work shared by all warps.
    Compute {
        /// Tiles it makes, all of one shape.
        to: Vec<Computed>,
        /// What it reads.
        inputs: Vec<Input>,
        /// Values that several others need, in order.
        shared: Vec<Shared>,
    },
    /// Ends a group of copies.
    Commit,
    /// Waits until all of this is done.
    Wait(Vec<Event>),
    /// Barrier of the block.
    Barrier,
    /// A step of the exchange of what warps of a role stage for each other in a slot.
    Exchange {
        /// Which.
        step: Exchange,
        /// Tile.
        tile: TileId,
        /// Slot.
        slot: Slot,
    },
    /// A operand from a tile to registers: the columns of the tile from one on.
    LoadFragments {
        /// Packed variable.
        to: VarId,
        /// Tile.
        tile: TileId,
        /// Slot.
        slot: Slot,
        /// First column.
        column: u32,
    },
    /// A fragment from a slot of a ring, each warp its rows: what a loop loads for its elementwise work.
    ReadRows {
        /// Accumulator fragment.
        to: VarId,
        /// Ring of 16-bit elements.
        tile: TileId,
        /// Slot.
        slot: Slot,
        /// Whether rows of the fragment are columns of the tile.
        turned: bool,
    },
    /// Matrix product.
    Dot {
        /// Accumulator.
        acc: VarId,
        /// Whether it starts at 0.
        zero: bool,
        /// A.
        a: OperandA,
        /// Whether columns of A's tile are rows of the product.
        a_turned: bool,
        /// B's tile.
        b: TileId,
        /// B's slot.
        b_slot: Slot,
        /// The first column of B's tile that is read: the operand may be a part of a tile, as the
        /// values are of compressed keys.
        b_column: u32,
        /// Whether rows of B's tile are columns of the product.
        k_major: bool,
        /// Length of the contraction, padded.
        depth: u32,
        /// The instruction that it is made of.
        atom: Atom,
    },
    /// Writes a fragment to a tile: one that is private to warps, or with column groups one that
    /// is an operand of products.
    Stage {
        /// Tile.
        tile: TileId,
        /// Slot of it.
        slot: Slot,
        /// Accumulator fragment, or packed variable.
        from: VarId,
        /// Whether rows of a packed variable become columns of the tile.
        turned: bool,
    },
    /// Writes what this column group has of a value for each row to a tile with a column for each
    /// group.
    Publish {
        /// Tile.
        tile: TileId,
        /// Row fragment.
        from: VarId,
    },
    /// Reduces what the column groups have published.
    Merge {
        /// Row fragment.
        to: VarId,
        /// Tile.
        tile: TileId,
        /// Operation.
        operation: ReduceOp,
    },
    /// A fragment from global memory; 0 where nothing exists.
    Load {
        /// Fragment.
        to: VarId,
        /// Source.
        from: GlobalTile,
    },
    /// A fragment to global memory.
    Store {
        /// Destination.
        to: GlobalTile,
        /// Value per element.
        value: Expr,
        /// The variable, if the value is just one.
        variable: Option<VarId>,
        /// Shape of the value.
        shape: Shape,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
    },
    /// Adds a fragment to a tile of a tensor, or to places of a tensor, element by element, in any
    /// order with what others add.
    Add {
        /// What it is added to: 32-bit floats. Where elements go to places, its strides are 0.
        to: GlobalTile,
        /// Fragment of rows, of columns, or of both.
        from: VarId,
        /// Where each element goes, if these are not the elements of the tile: elements from the
        /// origin of `to`.
        place: Option<Expr>,
    },
    /// Writes a fragment to rows of each warp's own in shared memory, from which [`StmtOp::AddRows`]
    /// adds it, when what it added from there before has been read.
    PutRows {
        /// Tile.
        tile: TileId,
        /// Accumulator fragment.
        from: VarId,
    },
    /// Adds to a tensor what a warp has put in rows of its own: boxes of a tensor map, which TMA
    /// reads and adds later on (`cp.reduce.async.bulk.tensor`). Nothing is added beyond the tensor.
    AddRows {
        /// The map of the tensor, of 32-bit floats.
        map: usize,
        /// Where the tile begins of which all warps have rows, innermost dimension first.
        at: Vec<Expr>,
        /// Tile.
        tile: TileId,
        /// Fragment that was put there.
        of: VarId,
    },
    /// Statements under a condition.
    When {
        /// Condition.
        guard: Guard,
        /// Statements.
        body: Vec<Stmt>,
        /// Statements if it does not hold.
        otherwise: Vec<Stmt>,
    },
    /// A loop.
    Loop {
        /// Which.
        id: LoopId,
        /// Iterations made before it.
        from: u32,
        /// Iterations it makes at a time; if more than one, the body is so many steps, and fewer may be left over.
        unroll: u32,
        /// Statements.
        body: Vec<Stmt>,
    },
    /// One iteration of a loop, outside of it or one of several that it makes at a time.
    Step {
        /// Which: its first, its last, or so many ahead of the first of those made at a time.
        at: Iteration,
        /// Statements.
        body: Vec<Stmt>,
    },
    /// Producer: waits until the next slot of a ring is empty, and starts to fill it.
    Fill {
        /// Ring.
        tile: TileId,
        /// What the slot is for.
        slot: Slot,
        /// Index of the tensor map.
        map: usize,
        /// Coordinates of the box, innermost first.
        at: Vec<Expr>,
        /// What comes with it: one box of each tile that has the ring's mbarriers.
        with: Vec<Companion>,
    },
    /// Consumers: wait until the next slot of a ring is full.
    Acquire {
        /// Ring.
        tile: TileId,
        /// What it is expected to hold.
        slot: Slot,
    },
    /// Consumers: hand a slot back and go on to the next.
    Release(TileId),
    /// Consumers: go on to the next slot and keep the one before.
    Advance(TileId),
    /// Consumers: hand the slot back that was kept.
    ReleaseBefore(TileId),
    /// A warpgroup waits for its turn.
    TakeTurn,
    /// A warpgroup gives the turn to the next.
    PassTurn,
    /// Statements for each program that the block takes.
    Work(Vec<Stmt>),
    /// Has the block make the program again, when it has made all that it takes, if the condition
    /// holds for some element of a row fragment in some lane of a warp. One that is made again is
    /// not made a third time.
    MakeAgain {
        /// Condition per element.
        condition: Expr,
        /// Row tiles.
        m_tiles: u32,
    },
    /// Waits for the turn of the program's part.
    AwaitPart,
    /// Gives the turn to the next part.
    PassPart,
    /// Writes a state, a variable for each of its values, to where programs meet.
    SaveState(Vec<VarId>),
    /// Reads a state.
    LoadState {
        /// Variables, of the same kinds as those that were saved.
        to: Vec<VarId>,
        /// Rank of the block whose state it is; that of the semaphore if there is none.
        from: Option<Expr>,
    },
    /// Barrier of the threads of a cluster that compute.
    ClusterBarrier,
}

impl StmtOp {
    /// The statement lists inside.
    pub fn bodies(&self) -> Vec<&[Stmt]> {
        match self {
            StmtOp::When { body, otherwise, .. } => vec![body, otherwise],
            StmtOp::Loop { body, .. } | StmtOp::Step { body, .. } | StmtOp::Work(body) => vec![body],
            _ => Vec::new(),
        }
    }

    /// The statement lists inside, to change.
    pub fn bodies_mut(&mut self) -> Vec<&mut Vec<Stmt>> {
        match self {
            StmtOp::When { body, otherwise, .. } => vec![body, otherwise],
            StmtOp::Loop { body, .. } | StmtOp::Step { body, .. } | StmtOp::Work(body) => vec![body],
            _ => Vec::new(),
        }
    }

    /// Whether it computes elements of fragments from elements at the same places, and nothing else.
    pub fn is_elementwise(&self) -> bool {
        matches!(self, StmtOp::Map { .. } | StmtOp::Pack { .. })
    }

    /// Whether it is a branch that few steps take, with nothing but elementwise statements.
    pub fn is_rare_branch(&self) -> bool {
        let StmtOp::When { guard, body, otherwise } = self else { return false };
        guard.is_rare() && otherwise.is_empty() && body.iter().all(|stmt| stmt.op.is_elementwise())
    }
}

/// A statement with its place in the kernel text.
#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    /// What it does.
    pub op: StmtOp,
    /// Where it comes from.
    pub span: Span,
    /// Its line in the text that the plan was read from; 0 if it was read from none.
    pub line: u32,
}

impl Stmt {
    /// A statement that comes from this place.
    pub fn new(op: StmtOp, span: Span) -> Self {
        Self { op, span, line: 0 }
    }
}

/// What a role is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleKind {
    /// All warps of the block, which copy and compute.
    All,
    /// One warp that fills rings. It has a warpgroup of its own, because registers are moved
    /// between warpgroups.
    Producer,
    /// Warpgroups that compute, each by itself, from what producers fill.
    Consumers,
}

impl RoleKind {
    /// All of them, with their names.
    pub const ALL: [(&'static str, RoleKind); 3] =
        [("all", RoleKind::All), ("producer", RoleKind::Producer), ("consumers", RoleKind::Consumers)];

    /// The name in the text of a plan.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map(|(name, _)| *name).expect("each has a row")
    }
}

/// What a group of warps of the block does. Roles have their warps in order: those of the first
/// role are the first of the block.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// What it is for.
    pub kind: RoleKind,
    /// Its own name; that of the kind if it needs none.
    pub name: String,
    /// Number of warps.
    pub warps: u32,
    /// Registers per thread, if the role asks for a number of its own (`setmaxnreg`).
    pub registers: Option<u32>,
    /// Statements.
    pub body: Vec<Stmt>,
}

impl Role {
    /// Warps that do what the role does: a producer is one.
    pub fn acting_warps(&self) -> u32 {
        match self.kind {
            RoleKind::Producer => 1,
            RoleKind::All | RoleKind::Consumers => self.warps,
        }
    }
}

/// A plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Kernel name.
    pub name: String,
    /// Tiles in shared memory.
    pub tiles: Vec<SharedTile>,
    /// Fragments in registers.
    pub variables: Vec<Variable>,
    /// Loops.
    pub loops: Vec<LoopInfo>,
    /// Roles.
    pub roles: Vec<Role>,
    /// How `Copy` brings tiles to shared memory.
    pub copy: CopyOp,
    /// Bytes of each of its copies; 0 for element by element.
    pub copy_bytes: u32,
    /// Rows of a tile of rows that belong to each warp that computes.
    pub rows_per_warp: u32,
    /// Groups of the warps that compute, each with a share of the columns.
    pub column_groups: u32,
    /// Blocks that a multiprocessor must have room for, which bounds a thread's registers; 0 for
    /// as many as it has.
    pub min_blocks: u32,
    /// Tensor maps that tiles are filled through.
    pub maps: Vec<TensorMap>,
    /// How blocks get programs.
    pub work: Persistent,
    /// Number of programs.
    pub programs: Expr,
    /// Byte offset of the ring that hands program numbers from the producer to the consumers, if
    /// work is dynamic or programs may be made again.
    pub work_ring: Option<u32>,
    /// Where programs that walk the parts of a loop meet.
    pub meeting: Option<Meeting>,
}

/// How programs that walk the parts of a loop meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeetBy {
    /// One after the other, each waiting for its turn; states pass through global memory.
    Semaphore,
    /// As blocks of one cluster, which read each other's states in shared memory.
    Cluster,
}

/// Where programs that walk the parts of a loop meet.
#[derive(Clone, PartialEq, Debug)]
pub struct Meeting {
    /// How.
    pub by: MeetBy,
    /// Number of parts.
    pub parts: u32,
    /// Name of the program's part.
    pub part: String,
    /// Number of the programs that meet, among all that do: which word of the workspace and which state is theirs.
    pub group: Expr,
    /// Name of the parameter that holds the states, by a semaphore.
    pub memory: String,
    /// Bytes of a thread's state.
    pub bytes: u32,
    /// Byte offset of the state in shared memory, in a cluster.
    pub offset: u32,
}

impl Meeting {
    /// Bytes of the state of a block with so many threads that compute.
    pub fn state_bytes(&self, threads: u32) -> u32 {
        self.bytes * threads
    }
}

/// How the threads of a block share the elements of a [`StmtOp::Compute`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Rows.
    pub rows: u32,
    /// Elements of a part: 16 bytes of the narrowest type, so that every tile is read and written 16 bytes at a time.
    pub width: u32,
    /// Parts of a row.
    pub per_row: u32,
    /// Threads.
    pub threads: u32,
    /// Parts of each thread, the last of which may not exist.
    pub per_thread: u32,
    /// Parts that are read before the first of them is computed.
    pub batch: u32,
}

impl Parts {
    /// The parts of the tiles `to`, computed from `inputs`.
    ///
    /// # Panics
    /// If `to` is empty: a statement makes at least one tile.
    pub fn of(plan: &Plan, to: &[Computed], inputs: &[Input]) -> Self {
        let t = &plan.tiles[to[0].tile];
        let read = inputs.iter().filter_map(|i| match i.from {
            InputSource::Tile(tile, _) => plan.tiles[tile].elem.bytes(),
            InputSource::Matrix(ref from) => from.elem.bytes(),
            InputSource::Row(_) | InputSource::Column(_) => None,
        });
        let written = to.iter().filter_map(|t| plan.tiles[t.tile].elem.bytes());
        let narrowest = read.chain(written).min().unwrap_or(4) as u32;
        let width = 16 / narrowest;
        let per_row = t.columns / width;
        let threads = plan.computing().map_or(32, |r| 32 * r.warps);
        let per_thread = (t.rows * per_row).div_ceil(threads);
        Self { rows: t.rows, width, per_row, threads, per_thread, batch: per_thread.clamp(1, 2) }
    }

    /// Whether every thread has as many parts, all in one column, so that addresses advance by constants.
    pub fn is_even(&self) -> bool {
        self.threads.is_multiple_of(self.per_row)
            && (self.rows * self.per_row).is_multiple_of(self.threads)
            && self.per_thread.is_multiple_of(self.batch)
    }
}

/// Launches that begin with what programs are made again with, behind one that made many again: a
/// try in so many costs 2% at most.
pub const WARY_LAUNCHES: u32 = 64;
/// One program in so many may be made again before launches are wary: making it twice takes as much
/// time as is won with the others.
pub const FEW_AGAIN: u32 = 16;
/// Slots of the ring of program numbers.
pub const WORK_SLOTS: u32 = 2;
/// Bytes of the ring of program numbers: a full and an empty mbarrier and a number for each slot.
pub const WORK_RING_BYTES: u32 = WORK_SLOTS * 20;

impl Plan {
    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let tiles = self.tiles.iter().map(|t| t.offset + t.slots * t.slot_bytes());
        let barriers = self.tiles.iter().flat_map(|t| t.mbarriers().map(|at| at + 16 * t.slots));
        let cluster = self.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster);
        let state = cluster.map(|m| m.offset + m.state_bytes(self.computing_threads()));
        tiles.chain(barriers).chain(self.work_ring.map(|at| at + self.work_ring_bytes())).chain(state).max().unwrap_or(0)
    }

    /// The role that computes: rows are shared by its warps.
    pub fn computing(&self) -> Option<&Role> {
        self.roles.iter().find(|role| role.kind != RoleKind::Producer)
    }

    /// Warps of the roles before one.
    pub fn warps_before(&self, role: usize) -> u32 {
        self.roles[..role].iter().map(|r| r.warps).sum()
    }

    /// Warps of a block that compute.
    pub fn computing_warps(&self) -> u32 {
        self.computing().map_or(0, |role| role.warps)
    }

    /// Warps that share the rows of a tile: those of a column group.
    pub fn row_warps(&self) -> u32 {
        self.computing_warps() / self.column_groups.max(1)
    }

    /// Warps that share the rows of a fragment.
    pub fn row_warps_of(&self, v: &Variable) -> u32 {
        v.across.unwrap_or_else(|| self.row_warps())
    }

    /// Threads of a block that compute.
    pub fn computing_threads(&self) -> u32 {
        32 * self.computing_warps()
    }

    /// The variable that a value is, if it is just one.
    pub fn stored(&self, value: &Expr) -> Option<VarId> {
        let Expr::Element(name, _) = value else { return None };
        self.variables.iter().position(|v| v.name == *name)
    }

    /// The variable whose elements a store of this shape writes, if the value is just one: a number
    /// that all threads have goes to every place.
    pub fn stored_elements(&self, value: &Expr, shape: Shape) -> Option<VarId> {
        let everywhere = |v: VarId| shape != Shape::Uniform && self.variables[v].storage == Storage::Fragment(Shape::Uniform);
        self.stored(value).filter(|&v| !everywhere(v))
    }

    /// Whether copies are asynchronous.
    pub fn is_asynchronous(&self) -> bool {
        self.copy != CopyOp::Sync
    }

    /// Whether producers fill the rings.
    pub fn is_specialized(&self) -> bool {
        self.roles.iter().any(|role| role.kind != RoleKind::All)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|r| r.warps * 32).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(layout: SharedLayout, pitch: u32) -> SharedTile {
        let (name, elem) = ("k".to_owned(), Elem::F16);
        SharedTile {
            name,
            elem,
            rows: 64,
            columns: pitch / 2,
            pitch,
            layout,
            slabs: 1,
            woven: false,
            slots: 1,
            offset: 0,
            warp_private: false,
            barriers: None,
            exchange: None,
        }
    }

    /// The value of a sum, a difference or a comparison, the coordinate of loops being `tile`, and
    /// a list having each third tile.
    fn value(e: &Expr, tile: i64) -> i64 {
        match e {
            Expr::Int(n) => *n,
            Expr::Name(_) => tile,
            Expr::Select(c, a, b) => value(if value(c, tile) == 1 { a } else { b }, tile),
            Expr::Infix(operator, a, b) => {
                let (a, b) = (value(a, tile), value(b, tile));
                match *operator {
                    Operator::Add => a + b,
                    Operator::Sub => a - b,
                    Operator::Lt => i64::from(a < b),
                    Operator::Ge => i64::from(a >= b),
                    Operator::Shr => a >> b,
                    other => unreachable!("{other:?}"),
                }
            }
            Expr::Call(Function::Read, arguments) => 4 * 3 * value(&arguments[0], tile) + 2,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn iterations_visit_every_tile_once_in_each_order() {
        // The coordinate of the tile at which a gap begins, and its length.
        let gaps = [None, Some((0, 4)), Some((1, 2)), Some((5, 1)), Some((2, 0))];
        let over = gaps.map(|gap| (gap, false)).into_iter().chain([(None, true)]);
        // A walk, and how many tiles from the first one on come last.
        let walks =
            [(Walk::Ascending, 0), (Walk::Descending, 0), (Walk::LastFirst, 0), (Walk::LastFirst, 2), (Walk::LastFirst, 4)];
        for (walk, begun, lo, trips, (gap, listed)) in walks.into_iter().flat_map(|(walk, begun)| {
            let over = over.clone();
            let of_lo = move |lo| (0..6).map(move |trips| (walk, begun, lo, trips));
            let of_walk = [0, 3].into_iter().flat_map(of_lo);
            of_walk.flat_map(move |(walk, begun, lo, trips)| over.clone().map(move |over| (walk, begun, lo, trips, over)))
        }) {
            let hi = lo + trips;
            let mut places: Vec<i64> = (lo..hi).collect();
            let begun = begun.min((trips - 1).max(0));
            let (first, coordinates) = match walk {
                Walk::Ascending => (lo, places.clone()),
                Walk::Descending => {
                    places.reverse();
                    (hi - 1, places.clone())
                }
                Walk::LastFirst => {
                    places.rotate_left(begun as usize);
                    (lo + begun, (lo + begun..hi + begun).collect())
                }
            };
            let behind = |place: i64| gap.map_or(0, |(at, tiles)| if place >= lo + at { tiles } else { 0 });
            let tile = |place: i64| if listed { 3 * place } else { place + behind(place) };
            let tiles: Vec<i64> = places.iter().map(|&place| tile(place)).collect();
            let gap = gap.map(|(at, tiles)| LoopGap { at: Expr::Int(lo + at), tiles: Expr::Int(tiles) });
            let (lo, hi, first) = (Expr::Int(lo), Expr::Int(hi), Expr::Int(first));
            let info = LoopInfo {
                coordinate: "j".into(),
                lo: lo.clone(),
                gap,
                list: listed.then(|| LoopList { entries: Expr::Int(0), entry: "j_entry".into() }),
                full_lo: lo,
                full_hi: hi.clone(),
                hi,
                walk,
                first,
                slots: 2,
                single: false,
            };
            let of = |n: usize| tiles.get(n).copied();
            for n in 0..tiles.len() + 2 {
                let at = Iteration::First(0, n as u32);
                assert_eq!(value(&info.exists(at), 0) == 1, of(n).is_some(), "{walk:?} {n} of {tiles:?}");
                assert!(of(n).is_none_or(|tile| value(&info.tile(at), 0) == tile), "{walk:?} {n} of {tiles:?}");
            }
            for (now, &place) in coordinates.iter().enumerate() {
                assert_eq!(value(&info.number(), place), now as i64);
                assert!(info.entry().is_none_or(|entry| value(&LoopList::tile(entry), place) == tiles[now]), "{walk:?} {now}");
                for n in 0..3_u32 {
                    let (ahead, behind) = (Iteration::Ahead(0, n), Iteration::Behind(0, n));
                    let (there, before) = (of(now + n as usize), now.checked_sub(n as usize).and_then(of));
                    assert_eq!(value(&info.exists(ahead), place) == 1, there.is_some());
                    assert!(there.is_none_or(|t| value(&info.tile(ahead), place) == t));
                    assert!(before.is_none_or(|t| value(&info.tile(behind), place) == t));
                }
            }
            assert!(tiles.last().is_none_or(|&last| value(&info.tile(Iteration::Last(0)), 0) == last));
        }
    }

    #[test]
    fn chunks_lie_where_the_templates_put_them() {
        // layout, pitch, row, chunk, offset: by hand from `tile_offset` in tile.cu.j2.
        let table = [
            (SharedLayout::Plain, 128, 3, 5, 3 * 128 + 5 * 16),
            (SharedLayout::Padded, 144, 3, 5, 3 * 144 + 5 * 16),
            (SharedLayout::Xor, 128, 0, 5, 5 * 16),
            (SharedLayout::Xor, 128, 3, 5, 3 * 128 + 6 * 16),
            (SharedLayout::Xor, 128, 11, 5, 11 * 128 + 6 * 16),
            (SharedLayout::Xor, 256, 7, 15, 7 * 256 + 8 * 16),
            (SharedLayout::Xor, 64, 1, 0, 64),
            (SharedLayout::Xor, 64, 2, 0, 2 * 64 + 16),
            (SharedLayout::Xor, 32, 4, 0, 4 * 32 + 16),
        ];
        for (layout, pitch, row, chunk, offset) in table {
            assert_eq!(tile(layout, pitch).chunk_offset(row, chunk), offset, "{layout:?} {pitch} {row} {chunk}");
        }
    }

    #[test]
    fn every_chunk_has_a_place_of_its_own() {
        for (layout, pitch) in
            [(SharedLayout::Xor, 32), (SharedLayout::Xor, 64), (SharedLayout::Xor, 128), (SharedLayout::Xor, 512)]
        {
            let tile = tile(layout, pitch);
            let places: std::collections::BTreeSet<u32> = (0..64)
                .flat_map(|row| (0..pitch / 16).map(move |chunk| (row, chunk)))
                .map(|(r, c)| tile.chunk_offset(r, c))
                .collect();
            assert_eq!(places.len() as u32, 64 * pitch / 16);
            assert_eq!(places.last(), Some(&(tile.slot_bytes() - 16)));
        }
    }

    #[test]
    fn swizzled_and_padded_tiles_are_free_of_conflicts() {
        let worst = |layout, pitch: u32| {
            let tile = tile(layout, pitch);
            (0..64 / 8).flat_map(|r| (0..pitch / 16).map(move |c| (8 * r, c))).map(|(r, c)| tile.conflicts(r, c)).max()
        };
        assert_eq!(worst(SharedLayout::Plain, 128), Some(8));
        assert_eq!(worst(SharedLayout::Plain, 64), Some(4));
        assert_eq!(worst(SharedLayout::Padded, 144), Some(1));
        for pitch in [32, 64, 128, 256, 512] {
            assert_eq!(worst(SharedLayout::Xor, pitch), Some(1), "{pitch}");
        }
    }
}
