//! The plan: what each warp does, statement by statement.
//!
//! A plan is between the IR and the text. Values have become fragments in registers or tiles in shared memory, copies are
//! issued and waited for, loops have bounds. Everything that could go wrong between threads is explicit here, and
//! [`verify`] checks it for any trip count before a line of CUDA is written.
//!
//! ## Meaning
//!
//! * A *tile* is a ring of one or more slots in shared memory. `Copy` fills a slot (asynchronously with `cp.async`: it lands
//!   when a `Wait` says so; others see it after the next `Barrier`).
//! * A *variable* is a fragment in the registers of a thread: an accumulator in the layout of the PTX ISA's `mma.m16n8k16`, a
//!   row or column vector that goes with it, a packed A operand, or one uniform value.
//! * An *iteration* of a loop is named relative to the one in progress, so that copies may run ahead: slot `n % slots`
//!   belongs to iteration `n`.

mod display;
mod pressure;
mod verify;

pub use pressure::peak;
pub use verify::verify;

use flashtile_dsl::ir::{Elem, ParamId, ReduceOp, Span};
use flashtile_templates::expr::{Expr, Shape};

use crate::schedule::SharedLayout;

/// Index of a [`SharedTile`].
pub type TileId = usize;
/// Index of a [`Variable`].
pub type VarId = usize;
/// Index of a [`LoopInfo`].
pub type LoopId = usize;

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
    /// Slots.
    pub slots: u32,
    /// Byte offset of slot 0.
    pub offset: u32,
    /// Whether each warp writes and reads only rows of its own (no block barrier is needed).
    pub warp_private: bool,
}

impl SharedTile {
    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> u32 {
        self.rows * self.pitch
    }

    /// Whether rows are swizzled.
    pub fn swizzle(&self) -> u32 {
        u32::from(self.layout == SharedLayout::Xor)
    }
}

/// Storage of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// f32 fragment of this shape.
    Fragment(Shape),
    /// 16-bit pairs in the layout of an A operand: `u32 [m_tiles][n_tiles][2]`.
    Packed,
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
    /// Column tiles of 8 (1 where there are no columns).
    pub n_tiles: u32,
    /// Element type of a uniform: float or int.
    pub integer: bool,
}

impl Variable {
    /// 32-bit registers per thread.
    pub fn registers(&self) -> u32 {
        match self.storage {
            Storage::Fragment(Shape::Uniform) => 1,
            Storage::Fragment(Shape::Row) => 2 * self.m_tiles,
            Storage::Fragment(Shape::Column) => 2 * self.n_tiles,
            Storage::Fragment(Shape::Accumulator) => 4 * self.m_tiles * self.n_tiles,
            Storage::Packed => 2 * self.m_tiles * self.n_tiles,
        }
    }
}

/// A loop over tiles.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopInfo {
    /// Name of the coordinate.
    pub coordinate: String,
    /// First tile.
    pub lo: Expr,
    /// First tile that nothing cuts.
    pub full_lo: Expr,
    /// One past the last tile that nothing cuts.
    pub full_hi: Expr,
    /// One past the last tile.
    pub hi: Expr,
    /// Slots of its rings; 0 if it streams nothing.
    pub slots: u32,
}

/// An iteration of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// Iteration number `n`, before the loop.
    First(LoopId, u32),
    /// The one `n` after the one in progress.
    Ahead(LoopId, u32),
}

/// Which slot of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The only one.
    Only,
    /// That of an iteration.
    Of(Iteration),
}

/// A tile of a tensor in global memory.
#[derive(Clone, PartialEq, Debug)]
pub struct GlobalTile {
    /// The tensor.
    pub tensor: ParamId,
    /// Address of the tile's origin.
    pub origin: Expr,
    /// Elements from row to row (of a vector: from position to position).
    pub row_stride: Expr,
    /// Rows (positions) that exist from the origin on.
    pub rows_present: Expr,
    /// Columns that exist from the origin on.
    pub columns_present: Expr,
    /// Whether the columns that exist are all those of the padded tile.
    pub columns_full: bool,
}

/// When a statement is executed.
#[derive(Clone, PartialEq, Debug)]
pub enum Guard {
    /// If the iteration exists.
    Exists(Iteration),
    /// If the tile in progress is cut by a mask or a bound.
    Cut(LoopId),
    /// If the condition holds for some element of a row fragment in some lane of the warp: a choice of each warp by itself.
    Vote {
        /// Condition per element.
        condition: Expr,
        /// Row tiles.
        m_tiles: u32,
    },
}

/// The A operand of a product.
#[derive(Clone, PartialEq, Debug)]
pub enum OperandA {
    /// A tile in shared memory; each warp reads its rows.
    Tile(TileId, Slot),
    /// A packed variable.
    Packed(VarId),
}

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub enum StmtOp {
    /// A uniform constant.
    Let {
        /// Name.
        name: String,
        /// Whether it is an integer (else a float).
        integer: bool,
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
        /// Value per element.
        value: Expr,
    },
    /// Row-wise reduction.
    Reduce {
        /// Row fragment.
        to: VarId,
        /// Accumulator fragment.
        from: VarId,
        /// Operation.
        operation: ReduceOp,
        /// Whether all lanes of a row get the result.
        across_quad: bool,
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
    /// Ends a group of copies.
    Commit,
    /// Waits until at most so many groups are in flight.
    Wait(u32),
    /// Barrier of the block.
    Barrier,
    /// A operand from a tile to registers.
    LoadFragments {
        /// Packed variable.
        to: VarId,
        /// Tile.
        tile: TileId,
        /// Slot.
        slot: Slot,
    },
    /// Matrix product.
    Dot {
        /// Accumulator.
        acc: VarId,
        /// Whether it starts at 0.
        zero: bool,
        /// A.
        a: OperandA,
        /// B's tile.
        b: TileId,
        /// B's slot.
        b_slot: Slot,
        /// Whether rows of B's tile are columns of the product.
        k_major: bool,
        /// Length of the contraction, padded.
        depth: u32,
        /// Whether this is the last product of a loop body (the one that preloaded fragments serve).
        last: bool,
    },
    /// Writes a fragment to a warp-private tile.
    Stage {
        /// Tile.
        tile: TileId,
        /// Accumulator fragment.
        from: VarId,
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
    /// Statements under a condition.
    When {
        /// Condition.
        guard: Guard,
        /// Statements.
        body: Vec<Stmt>,
    },
    /// A loop.
    Loop {
        /// Which.
        id: LoopId,
        /// Statements.
        body: Vec<Stmt>,
    },
}

/// A statement with its place in the kernel text.
#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    /// What it does.
    pub op: StmtOp,
    /// Where it comes from.
    pub span: Span,
}

/// What a group of warps of the block does.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// `all` where every warp copies and computes.
    pub name: String,
    /// Number of warps.
    pub warps: u32,
    /// Statements.
    pub body: Vec<Stmt>,
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
    /// Whether copies are asynchronous.
    pub asynchronous: bool,
}

impl Plan {
    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        self.tiles.iter().map(|t| t.offset + t.slots * t.slot_bytes()).max().unwrap_or(0)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|r| r.warps * 32).sum()
    }
}
