//! Contexts of the statement templates, one per plan statement. Text fields hold rendered expressions.

use serde::Serialize;

use crate::render::Template;

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $template:literal { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Debug, Serialize)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

            impl Template for $name {
                const NAME: &'static str = concat!("statement/", $template);
            }
        )+
    };
}

/// Shared memory that holds zeros from the beginning of a program on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Zeros {
    /// Byte offset.
    pub at: u32,
    /// Bytes.
    pub bytes: u32,
}

/// mbarriers of a ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RingBarriers {
    /// Slots.
    pub slots: u32,
    /// Offset of the full mbarriers.
    pub full: u32,
    /// Arrivals that fill a slot: one of a copy, or one of each warp that writes it.
    pub fills: u32,
    /// Offset of the empty mbarriers.
    pub empty: u32,
    /// Arrivals that hand a slot back: one of each warp that drains the ring.
    pub arrivals: u32,
}

/// A variable of a state: every thread has its elements in pieces, and the pieces of one number lie side by side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StateRun {
    /// Loops over the pieces.
    pub each: String,
    /// Offset of the run in bytes.
    pub offset: u32,
    /// Bytes of a piece.
    pub width: u32,
    /// Number of the piece.
    pub index: String,
    /// The piece.
    pub piece: String,
}

/// A part of a warp's rows that one box adds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AddedPart {
    /// Bytes from the start of the rows.
    pub offset: u32,
    /// First column.
    pub column: String,
}

/// A box of a tensor that fills a part of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FillBox {
    /// Address of the part.
    pub to: String,
    /// Name of the tensor map.
    pub map: String,
    /// Coordinates of the box, apart by commas.
    pub at: String,
}

/// An input of a [`Compute`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PartInput {
    /// Name of its elements.
    pub name: String,
    /// `tile` (in shared memory), `matrix`, `row` or `column` (in global memory).
    pub kind: String,
    /// C type of the elements of a tile.
    pub elem: String,
    /// C type of what they are computed with.
    pub r#type: String,
    /// Elements of a part.
    pub width: u32,
    /// Shared address of the tile, or global address of the origin.
    pub from: String,
    /// Bytes from row to row of a tile in shared memory.
    pub pitch: u32,
    /// 1 if it is swizzled.
    pub swizzle: u32,
    /// Elements from row to row (or from position to position) in global memory.
    pub stride: String,
    /// Rows (or positions) that exist.
    pub rows_present: String,
    /// Columns that exist.
    pub columns_present: String,
    /// Whether rows in global memory may be read 16 bytes at a time.
    pub vectors: bool,
}

/// A value that others of a [`Compute`] need.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SharedValue {
    /// C type.
    pub r#type: String,
    /// Name.
    pub name: String,
    /// Expression per element.
    pub value: String,
}

/// A tile that a [`Compute`] makes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ComputedTile {
    /// Name.
    pub name: String,
    /// Shared address.
    pub to: String,
    /// Bytes from row to row.
    pub pitch: u32,
    /// 1 if it is swizzled.
    pub swizzle: u32,
    /// Packing wrapper, or nothing if elements are f32.
    pub pack: String,
    /// Expression per element.
    pub value: String,
}

statements! {
    /// `type name extents;`
    Declare = "declare" {
        /// C type.
        r#type: String,
        /// Name.
        name: String,
        /// `[2][8][4]`, or nothing.
        extents: String,
    }
    /// `const type name = value;`
    Let = "let" {
        /// C type.
        r#type: String,
        /// Name.
        name: String,
        /// Expression.
        value: String,
    }
    /// `name = value;`
    Assign = "assign" {
        /// Name.
        name: String,
        /// Expression.
        value: String,
    }
    /// An elementwise assignment.
    Map = "map" {
        /// `EACH` loops.
        each: String,
        /// Destination element.
        to: String,
        /// Expression per element.
        value: String,
    }
    /// Conversion of pairs of elements to 16 bits, in the layout of an A operand.
    Pack = "pack" {
        /// `EACH` loops.
        each: String,
        /// Destination register.
        to: String,
        /// Packing wrapper.
        pack: String,
        /// Lower element.
        lower: String,
        /// Upper element.
        upper: String,
    }
    /// A statement under a condition that is the same in the whole block.
    When = "when" {
        /// Expression.
        condition: String,
        /// Whether it is a branch to be taken now and then, not a choice to be made in every step.
        rare: bool,
        /// Rendered statements.
        body: String,
    }
    /// A loop over tiles.
    Loop = "loop" {
        /// Name of the coordinate.
        coordinate: String,
        /// First.
        from: String,
        /// One past the last; the last itself where it descends.
        to: String,
        /// Whether it goes down.
        descending: bool,
        /// How many iterations the compiler is to lay out one after the other; 0 leaves that to it.
        unroll: u32,
        /// Rendered statements.
        body: String,
    }
    /// A row-wise reduction of a fragment.
    Reduce = "reduce" {
        /// Row fragment.
        to: String,
        /// Accumulator fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// `max`, `sum` or `bound`, the larger of 0 and the largest.
        operation: &'static str,
        /// Whether the four lanes of a row agree on the result; if not, each has its part.
        across_quad: bool,
    }
    /// Makes a column fragment of a vector that is spread over lanes.
    Distribute = "distribute" {
        /// Column fragment.
        to: String,
        /// Vector that is spread over lanes.
        from: String,
        /// Shared address of a tile with a row for each warp.
        tile: String,
        /// Bytes from row to row.
        pitch: u32,
        /// Parts of 64 columns.
        parts: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Whether its numbers are integers.
        integer: bool,
    }
    /// Completes a row maximum whose parts lie in the four lanes of a row.
    QuadMax = "quad_max" {
        /// Row fragment.
        name: String,
        /// Row tiles.
        m_tiles: u32,
    }
    /// Statements that a warp executes if a condition holds for some row in some lane.
    Vote = "vote" {
        /// `EACH` loops over the rows.
        each: String,
        /// Condition per row.
        condition: String,
        /// Name of the variable that remembers the choice, or nothing.
        flag: String,
        /// Whether it holds in some lane of those that choose together.
        any: String,
        /// Rendered statements.
        body: String,
    }
    /// Completes a row sum whose parts lie in the four lanes of a row.
    QuadSum = "quad_sum" {
        /// Row fragment.
        name: String,
        /// Row tiles.
        m_tiles: u32,
    }
    /// A tile from global to shared memory.
    CopyTile = "copy" {
        /// Rows of the tile.
        rows: u32,
        /// Columns of the tile.
        columns: u32,
        /// Bytes from row to row.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// Shared address.
        to: String,
        /// Global address of the tile's origin.
        from: String,
        /// Elements from row to row.
        row_stride: String,
        /// Rows that exist from the origin on.
        rows_present: String,
        /// Columns that exist from the origin on.
        columns_present: String,
    }
    /// Tiles computed in shared memory, by all threads.
    Compute = "compute" {
        /// Comment.
        note: String,
        /// What is read.
        inputs: Vec<PartInput>,
        /// Values that several others need.
        shared: Vec<SharedValue>,
        /// What is written.
        tiles: Vec<ComputedTile>,
        /// Elements of a part.
        width: u32,
        /// Parts that are read before the first of them is computed.
        batch: u32,
        /// Parts of each thread.
        per_thread: u32,
        /// Batches to unroll.
        unroll: u32,
        /// Threads that share the parts.
        threads: u32,
        /// Parts of a tile.
        total: u32,
        /// Whether every thread has as many parts, all in one column.
        even: bool,
        /// Row of a part.
        row: String,
        /// First column of a part.
        column: String,
    }
    /// Ends a group of asynchronous copies.
    Commit = "commit" {}
    /// Waits until at most so many groups are in flight.
    Wait = "wait" {
        /// Groups.
        pending: u32,
    }
    /// A barrier of the threads that compute.
    Barrier = "barrier" {
        /// The call.
        barrier: String,
    }
    /// Parities of the phases that a role waits for next, of a tile whose slots its warps exchange: a
    /// bit for each slot that is supplied, then one for each that is freed.
    ExchangePhases = "exchange_phases" {
        /// Name of the tile.
        name: String,
        /// The first of them.
        phases: u32,
    }
    /// Waits for a slot that warps exchange.
    ExchangeWait = "exchange_wait" {
        /// Name of the tile.
        name: String,
        /// Address of the mbarrier of slot 0.
        at: String,
        /// Number of the slot.
        slot: String,
        /// The bit of its phase.
        bit: String,
    }
    /// Says that a warp has done its part with a slot that warps exchange.
    ExchangeSay = "exchange_say" {
        /// Whether other lanes have just written.
        together: bool,
        /// Address of the mbarrier of slot 0.
        at: String,
        /// Number of the slot.
        slot: String,
    }
    /// A fragment of f32 from 16-bit rows of a tile.
    ReadRows = "read_rows" {
        /// Whether rows of the fragment are columns of the tile.
        turned: bool,
        /// Fragment of f32.
        to: String,
        /// Shared address of this warp's rows; of the tile, if it is turned.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Pairs of column tiles.
        k_tiles: u32,
        /// Bytes from row to row of a slab.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// Name of the lane's offset.
        lane_offset: String,
        /// Pairs of column tiles in a slab.
        slab: u32,
        /// Bytes from slab to slab.
        slab_bytes: u32,
        /// Type of the elements.
        elem: String,
    }
    /// A tile's A fragments to registers.
    LoadFragments = "load_fragments" {
        /// Packed fragment.
        to: String,
        /// Shared address of this warp's rows.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Contraction tiles of 16.
        k_tiles: u32,
        /// Bytes from row to row.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// Name of the lane's offset.
        lane_offset: String,
        /// Contraction tiles of a slab; 0 for a tile of one.
        slab: u32,
        /// Bytes of a slab.
        slab_bytes: u32,
        /// Whether one lane says for the warp that it has read.
        together: bool,
    }
    /// A fragment straight from global memory; 0 where nothing exists.
    LoadGlobal = "load_global" {
        /// `EACH` loops.
        each: String,
        /// Destination element.
        to: String,
        /// 2 for a matrix, 1 for a vector.
        rank: u32,
        /// Row (or position) within the tile's origin.
        row: String,
        /// Column within the tile's origin.
        column: String,
        /// Global address of the origin.
        from: String,
        /// Elements from row to row (or from position to position).
        row_stride: String,
        /// Elements from column to column of a matrix; empty if 1.
        column_stride: String,
        /// Rows (or positions) that exist.
        rows_present: String,
        /// Columns that exist.
        columns_present: String,
    }
    /// A fragment of f32 from global memory, all of whose columns exist, by reads of 8 bytes.
    LoadPairs = "load_pairs" {
        /// Accumulator fragment.
        to: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Row within the tile's origin.
        row: String,
        /// Column of the pair within the tile's origin.
        column: String,
        /// Global address of the origin.
        from: String,
        /// Elements from row to row.
        row_stride: String,
        /// Rows that exist.
        rows_present: String,
    }
    /// A fragment from global memory by reads of 16 bytes, or of 8 where elements have one byte.
    LoadFragment = "load_fragment" {
        /// The device function.
        function: &'static str,
        /// Accumulator fragment.
        to: String,
        /// Address of the tensor, for the function that asks for it; else empty.
        base: String,
        /// Global address of the tile's origin.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Elements from row to row; from column to column, where rows lie side by side.
        stride: String,
        /// This thread's first row within the origin.
        first_row: String,
        /// Rows that exist.
        rows_present: String,
        /// Columns that exist.
        columns_present: String,
    }
    /// A fragment to global memory by 16-byte writes.
    StoreFragment = "store_fragment" {
        /// What the names of functions end with: the type, where a kernel has both of 16 bits.
        suffix: &'static str,
        /// Global address of the tile's origin.
        to: String,
        /// Accumulator fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Elements from row to row.
        row_stride: String,
        /// This thread's first row within the origin.
        first_row: String,
        /// Rows that exist.
        rows_present: String,
        /// Columns that exist.
        columns_present: String,
    }
    /// A fragment added to global memory, element by element.
    AddElements = "add_elements" {
        /// Global address of the tile's origin.
        to: String,
        /// Fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Elements from row to row.
        row_stride: String,
        /// Row within the origin.
        row: String,
        /// Column within the origin.
        column: String,
        /// Elements from column to column; nothing for 1.
        column_stride: String,
        /// Rows that exist.
        rows_present: String,
        /// Columns that exist.
        columns_present: String,
    }
    /// A fragment of which each element is added to a place of its own.
    AddAt = "add_at" {
        /// Loops over the elements.
        each: String,
        /// Definitions of what the loops and the condition name.
        positions: String,
        /// When an element exists, and is this thread's to add.
        present: String,
        /// Global address that places count from.
        to: String,
        /// Place of an element.
        place: String,
        /// Element.
        from: String,
    }
    /// A fragment written to rows of each warp's own, when what was there has been read.
    PutRows = "put_rows" {
        /// Parts of a row, if these follow each other; else 0.
        parts: u32,
        /// Whether a lane's places differ by constants and exclusive ors with constants.
        one_address: bool,
        /// Shared address of the warp's rows.
        to: String,
        /// Fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Bytes from row to row.
        pitch: u32,
        /// Column tiles in a part of the rows.
        slab: u32,
        /// Bytes from part to part.
        slab_bytes: u32,
        /// Lanes of rows that follow each other and write the same column tile at once.
        rows_apart: u32,
        /// The others write the column tile with this bit flipped.
        apart: u32,
    }
    /// Rows of each warp's own added to a tensor.
    AddRows = "add_rows" {
        /// Shared address of the warp's rows.
        from: String,
        /// Name of the tensor map.
        map: String,
        /// Parts of the rows.
        parts: Vec<AddedPart>,
        /// First row.
        row: String,
        /// The other coordinates, each after a comma.
        others: String,
    }
    /// Waits until all that is added has been read from shared memory.
    BulkEnd = "bulk_end" {}
    /// A fragment of f32 to global memory, two elements at a time.
    StorePairs = "store_pairs" {
        /// Global address of the tile's origin.
        to: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Row within the tile's origin.
        row: String,
        /// Column of the pair within the tile's origin.
        column: String,
        /// Elements from row to row.
        row_stride: String,
        /// Rows that exist.
        rows_present: String,
        /// The first element of the pair.
        first: String,
        /// The second.
        second: String,
    }
    /// A fragment to global memory, element by element.
    StoreElements = "store_elements" {
        /// Global address of the tile's origin.
        to: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Elements from row to row.
        row_stride: String,
        /// Row within the origin.
        row: String,
        /// Column within the origin.
        column: String,
        /// Elements from column to column; nothing for 1.
        column_stride: String,
        /// Rows that exist.
        rows_present: String,
        /// Columns that exist.
        columns_present: String,
        /// Converted element.
        value: String,
    }
    /// A row vector to global memory.
    StoreRow = "store_row" {
        /// Global address of the origin.
        to: String,
        /// Row tiles.
        m_tiles: u32,
        /// Elements from position to position.
        row_stride: String,
        /// Row within the origin.
        row: String,
        /// Rows that exist.
        rows_present: String,
        /// Converted element.
        value: String,
        /// A condition that only one of the column groups meets, and `&&`; or nothing.
        once: &'static str,
        /// Whether it is added to what is there.
        adds: bool,
    }
    /// A column vector to global memory.
    StoreColumn = "store_column" {
        /// Global address of the origin.
        to: String,
        /// Column tiles.
        n_tiles: u32,
        /// Elements from position to position.
        column_stride: String,
        /// Column within the origin.
        column: String,
        /// Columns that exist.
        columns_present: String,
        /// Converted element.
        value: String,
        /// Whether the warp is the first of those that have the column.
        first_warp: String,
        /// Whether it is added to what is there.
        adds: bool,
    }
    /// A matrix product through `mma.sync`.
    DotMma = "dot_mma" {
        /// What the names of functions end with: the type, where a kernel has both of 16 bits.
        suffix: &'static str,
        /// Comment.
        note: String,
        /// Whether the accumulator starts at 0.
        zero: bool,
        /// Accumulator fragment.
        acc: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Contraction tiles of 16.
        k_tiles: u32,
        /// Whether A is loaded from shared memory (else the registers `a0..a3` are given).
        a_shared: bool,
        /// Shared address of this warp's rows of A.
        a: String,
        /// Row pitch of A.
        a_pitch: u32,
        /// 1 if A is swizzled.
        a_swizzle: u32,
        /// Name of the lane's offset in A.
        a_lane: String,
        /// First A register of tile `[mt][kt]`.
        a0: String,
        /// Second.
        a1: String,
        /// Third.
        a2: String,
        /// Fourth.
        a3: String,
        /// Shared address of B.
        b: String,
        /// What is added to the number of a chunk (16 bytes) of B's rows: those before the first
        /// one of the warp, or nothing.
        b_chunk: String,
        /// Row pitch of B.
        b_pitch: u32,
        /// 1 if B is swizzled.
        b_swizzle: u32,
        /// Name of the lane's offset in B.
        b_lane: String,
        /// Whether the rows of B's tile are columns of the product.
        k_major: bool,
        /// `ldmatrix` wrapper for B.
        load_b: String,
        /// How B fragments reach registers.
        fragments: &'static str,
        /// Whether one B fragment serves all row tiles.
        batch_m: bool,
    }
    /// A matrix product through scalar multiply-adds.
    DotFfma = "dot_ffma" {
        /// Comment.
        note: String,
        /// Whether the accumulator starts at 0.
        zero: bool,
        /// Accumulator fragment.
        acc: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Length of the contraction, a multiple of 4.
        depth: u32,
        /// Shared address of A.
        a: String,
        /// Row pitch of A.
        a_pitch: u32,
        /// 1 if A is swizzled.
        a_swizzle: u32,
        /// This thread's first row of A.
        a_row: String,
        /// Shared address of B.
        b: String,
        /// What is added to the number of a column of the product: those before the first one of the
        /// warp, or nothing.
        b_row: String,
        /// The same of a chunk (16 bytes) of B's rows, where these are along the columns.
        b_chunk: String,
        /// Row pitch of B.
        b_pitch: u32,
        /// 1 if B is swizzled.
        b_swizzle: u32,
        /// Whether the rows of B's tile are columns of the product.
        k_major: bool,
    }
    /// The mbarriers of all rings, initialised.
    Barriers = "barriers" {
        /// Rings.
        rings: Vec<RingBarriers>,
        /// What holds zeros from the beginning on.
        zeros: Vec<Zeros>,
    }
    /// A role's place in a ring.
    Ring = "ring" {
        /// Name of the ring.
        name: String,
        /// Slots.
        slots: u32,
        /// Parity of the phase that the role waits for first.
        phase: u32,
    }
    /// What some warps do.
    Role = "role" {
        /// Name.
        name: String,
        /// Which warps.
        condition: String,
        /// Registers per thread, or 0 to leave them.
        registers: u32,
        /// `inc` or `dec`.
        change: &'static str,
        /// Rendered statements.
        body: String,
    }
    /// Programs, every so-many-th.
    WorkStatic = "work_static" {
        /// Number of programs.
        programs: String,
        /// Run-time sizes that the statements name.
        sizes: Vec<String>,
        /// Rendered statements.
        body: String,
    }
    /// The list of programs that are made again is empty at first.
    List = "list" {
        /// Offset of its beginning.
        list: u32,
    }
    /// Puts the program on that list if a condition holds for some row in some lane.
    MakeAgain = "make_again" {
        /// `EACH` loops over the rows.
        each: String,
        /// Condition per row.
        condition: String,
        /// Offset of the beginning of the list.
        list: u32,
    }
    /// Programs that a ring hands over, and then those that are made again: who takes them.
    WorkProducer = "work_producer" {
        /// Whether programs may be made again.
        again: bool,
        /// Launches that make all programs as those that are made again, behind one in which many were.
        wary_launches: u32,
        /// One program in so many may be made again without that.
        few_again: u32,
        /// Whether it takes the next that nobody has, or every so-many-th.
        dynamic: bool,
        /// Offset of the list of those that are made again, if there is one.
        list: u32,
        /// Number of programs.
        programs: String,
        /// Offset of the full mbarriers.
        full: u32,
        /// Offset of the empty mbarriers.
        empty: u32,
        /// Offset of the numbers.
        numbers: u32,
        /// Slots.
        slots: u32,
        /// Run-time sizes that the statements name.
        sizes: Vec<String>,
        /// Rendered statements.
        body: String,
    }
    /// Programs that a ring hands over: who is told.
    WorkConsumers = "work_consumers" {
        /// Whether programs may be made again.
        again: bool,
        /// Number of programs.
        programs: String,
        /// Offset of the full mbarriers.
        full: u32,
        /// Offset of the empty mbarriers.
        empty: u32,
        /// Offset of the numbers.
        numbers: u32,
        /// Slots.
        slots: u32,
        /// Run-time sizes that the statements name.
        sizes: Vec<String>,
        /// Rendered statements.
        body: String,
    }
    /// A box of a tensor into the next slot of a ring, once that is empty.
    Fill = "fill" {
        /// Name of the ring.
        name: String,
        /// Address of the empty mbarrier.
        empty: String,
        /// Address of the full mbarrier.
        full: String,
        /// Bytes of the slot, and of what comes with it.
        bytes: u32,
        /// The boxes that fill them.
        boxes: Vec<FillBox>,
        /// On to the next slot.
        advance: String,
    }
    /// Waits until the next slot of a ring is full.
    Acquire = "acquire" {
        /// Name of the ring.
        name: String,
        /// Address of the full mbarrier.
        full: String,
    }
    /// Goes on to the next slot of a ring.
    Advance = "advance" {
        /// Statements that move the place in the ring.
        advance: String,
    }
    /// Hands back the slot before the one in use.
    ReleaseBefore = "release_before" {
        /// Ring.
        name: String,
        /// Byte offset of the mbarriers of empty slots.
        empty: u32,
        /// Slots.
        slots: u32,
    }
    /// Hands a slot back.
    Release = "release" {
        /// Address of the empty mbarrier.
        empty: String,
        /// On to the next slot.
        advance: String,
    }
    /// Waits for products.
    Settle = "settle" {
        /// Groups that may be in flight.
        pending: u32,
        /// Accumulators that are complete.
        ready: Vec<String>,
    }
    /// Waits for the turn.
    TakeTurn = "take_turn" {}
    /// Gives the turn to the next warpgroup.
    PassTurn = "pass_turn" {
        /// Warpgroups.
        groups: u32,
    }
    /// Waits for the turn of a part.
    AwaitPart = "await_part" {
        /// Address of the semaphore.
        semaphore: String,
        /// The part.
        part: String,
        /// Barrier of the threads that compute.
        barrier: String,
    }
    /// Gives the turn to the next part.
    PassPart = "pass_part" {
        /// Address of the semaphore.
        semaphore: String,
        /// The part.
        part: String,
        /// Number of parts.
        parts: u32,
        /// Barrier of the threads that compute.
        barrier: String,
    }
    /// Writes or reads a state.
    State = "state" {
        /// Type of its address.
        r#type: &'static str,
        /// Its address.
        state: String,
        /// `state_save` or `state_load`.
        function: &'static str,
        /// Threads that compute.
        threads: u32,
        /// The variables.
        runs: Vec<StateRun>,
    }
    /// Barrier of the threads of a cluster that compute.
    ClusterBarrier = "cluster_barrier" {}
    /// Gives the first turn.
    FirstTurn = "first_turn" {
        /// Warpgroups.
        groups: u32,
    }
    /// One iteration of a loop.
    Step = "step" {
        /// Name of the coordinate.
        coordinate: String,
        /// Its value.
        value: String,
        /// What the value is, as it is a name; else nothing.
        before: String,
        /// Rendered statements.
        body: String,
    }
    /// A loop that makes several iterations at a time.
    LoopPairs = "loop_pairs" {
        /// Name of the coordinate.
        coordinate: String,
        /// First.
        from: String,
        /// One past the last; the last itself where it descends.
        to: String,
        /// Whether it goes down.
        descending: bool,
        /// Iterations at a time.
        unroll: u32,
        /// Rendered statements.
        body: String,
    }
    /// A loop that loads of several positions together, and then makes their iterations.
    LoopTogether = "loop_together" {
        /// Name of the coordinate.
        coordinate: String,
        /// First.
        from: String,
        /// One past the last.
        to: String,
        /// Positions whose loads are in flight together.
        count: u32,
        /// Whether the last positions may be fewer.
        ragged: bool,
        /// Variables that are loaded.
        variables: Vec<String>,
        /// Rendered loads.
        loads: String,
        /// The other rendered statements.
        body: String,
    }
    /// What is done if the condition before does not hold.
    Otherwise = "otherwise" {
        /// Rendered statements.
        body: String,
    }
    /// A matrix product through `wgmma`, as a group of its own.
    DotWgmma = "dot_wgmma" {
        /// Comment.
        note: String,
        /// Whether the accumulator starts at 0.
        zero: bool,
        /// Accumulator fragment.
        acc: String,
        /// Contraction tiles of 16.
        k_tiles: u32,
        /// Name of the product's wrapper.
        product: String,
        /// Whether A is in shared memory (else the registers `a0..a3` are given).
        a_shared: bool,
        /// Whether it is M-major there: columns of the tile are rows of the product.
        a_turned: bool,
        /// Shared address of this warpgroup's rows of A.
        a: String,
        /// Bytes of a row of a part of A.
        a_pitch: u32,
        /// Bytes from one part of A's columns to the next.
        a_part: u32,
        /// First A register of tile `[0][kt]`.
        a0: String,
        /// Second.
        a1: String,
        /// Third.
        a2: String,
        /// Fourth.
        a3: String,
        /// Shared address of B.
        b: String,
        /// Bytes of a row of a part of B.
        b_pitch: u32,
        /// Bytes from one part of B's columns to the next.
        b_part: u32,
        /// Whether the rows of B's tile are columns of the product.
        k_major: bool,
    }
    /// A packed operand to a tile of which each column group has a share.
    StagePacked = "stage_packed" {
        /// Shared address of the tile.
        to: String,
        /// Packed variable.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles of 16.
        k_tiles: u32,
        /// Row pitch of a part.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// Bytes from one part of the columns to the next.
        part: u32,
        /// The row that this lane gives the address of.
        row: String,
        /// The first chunk of 16 bytes that this lane gives the address of.
        chunk: String,
        /// Whether by `stmatrix`.
        fast: bool,
        /// Whether asynchronous products read it.
        asynchronous: bool,
        /// Chunks of a part of the columns.
        chunks: u32,
    }
    /// A packed operand, the rows of each warp as columns of the tile.
    StageTurned = "stage_turned" {
        /// Shared address of the slot.
        to: String,
        /// Packed operand.
        from: String,
        /// Column tiles of 16 of the operand.
        k_tiles: u32,
        /// Row pitch of a part of the tile.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// Bytes from one part of the tile's columns to the next.
        part: u32,
        /// Columns of a part.
        columns: u32,
    }
    /// A value for each row to where the other column groups read it.
    Publish = "publish" {
        /// Shared address of the group's column.
        to: String,
        /// Row fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Row pitch.
        pitch: u32,
        /// This thread's first row.
        row: String,
    }
    /// The values of all column groups, reduced.
    Merge = "merge" {
        /// Row fragment.
        to: String,
        /// Shared address of the tile.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Row pitch.
        pitch: u32,
        /// This thread's first row.
        row: String,
        /// Column groups: 2 or 4.
        groups: u32,
        /// `max` or `sum`.
        operation: &'static str,
    }
    /// A fragment to a part of shared memory that only this warp reads.
    Stage = "stage" {
        /// Shared address of the staging tile.
        to: String,
        /// Accumulator fragment.
        from: String,
        /// Row tiles.
        m_tiles: u32,
        /// Column tiles.
        n_tiles: u32,
        /// Row pitch.
        pitch: u32,
        /// 1 if swizzled.
        swizzle: u32,
        /// This thread's first row of the staging tile.
        row: String,
        /// What is added to the number of a chunk (16 bytes): those before the first one of the
        /// warp, or nothing.
        chunk: String,
    }
}
