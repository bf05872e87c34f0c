//! Decoded instructions. A `u32` operand is a row: of 32-bit values (which 16-bit registers are, too) unless its name or
//! comment says 64-bit (`x`) or predicate (`p`).

use crate::memory::Scope;
use crate::syntax::Space;

/// One 32-bit operand and result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unary {
    Not,
    Negate,
    Absolute,
    CountBits,
    LeadingZeros,
    /// The place of the highest bit that is set; all ones of 0.
    TopBit,
    /// How far that bit is from the top; all ones of 0.
    ShiftToTop,
    Reverse,
    /// `not.b16`
    NotHalf,
    /// `neg.s16` and `abs.s16`
    NegateHalf,
    AbsoluteHalf,
    /// Sign bit of an f32 flipped or cleared.
    FloatNegate,
    FloatAbsolute,
    /// rcp, correctly rounded; also for the approximate form.
    Reciprocal,
    /// Denormals in and out become zero.
    ReciprocalFlush,
    SquareRoot,
    ReciprocalRoot,
    Exp2,
    /// Denormals in and out become zero.
    Exp2Flush,
    Log2,
    Log2Flush,
    /// tanh.approx, rounded to the 11 bits that it has.
    Tanh,
    Sine,
    Cosine,
}

/// Two 32-bit operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    MultiplyHighUnsigned,
    MultiplyHighSigned,
    DivideUnsigned,
    DivideSigned,
    RemainderUnsigned,
    RemainderSigned,
    MinUnsigned,
    MinSigned,
    MaxUnsigned,
    MaxSigned,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRightUnsigned,
    ShiftRightSigned,
    /// 16-bit forms, whose operands and result are in the lower half.
    AddHalf,
    SubtractHalf,
    MultiplyHalf,
    MultiplyHighHalf,
    ShiftLeftHalf,
    ShiftRightSignedHalf,
    DivideSignedHalf,
    RemainderSignedHalf,
    MinSignedHalf,
    MaxSignedHalf,
    FloatAdd,
    FloatSubtract,
    FloatMultiply,
    FloatDivide,
    FloatMin,
    FloatMax,
    /// `min.NaN`, `max.NaN`: NaN wins.
    FloatMinNan,
    FloatMaxNan,
    /// `copysign d, a, b`: magnitude of b, sign of a.
    CopySign,
}

/// Three 32-bit operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ternary {
    MultiplyAdd,
    /// `mad.lo` of 16 bits.
    MultiplyAddHalf,
    FloatMultiplyAdd,
    /// Clamped to [0, 1], NaN to 0.
    FloatMultiplyAddSaturated,
    Permute,
    FunnelLeft,
    FunnelRight,
    /// Bit field extraction: value, position, length.
    ExtractUnsigned,
    ExtractSigned,
}

/// Two 64-bit operands; of shifts the second is 32-bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wide {
    Add,
    Subtract,
    Multiply,
    MultiplyHighUnsigned,
    MultiplyHighSigned,
    DivideUnsigned,
    DivideSigned,
    RemainderUnsigned,
    RemainderSigned,
    MinUnsigned,
    MinSigned,
    MaxUnsigned,
    MaxSigned,
    And,
    Or,
    Xor,
    /// Of doubles.
    FloatMultiply,
}

/// Shifts of 64-bit values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shift {
    Left,
    RightUnsigned,
    RightSigned,
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparable {
    Unsigned,
    Signed,
    /// 16-bit two's complement.
    SignedHalf,
    /// False where an operand is NaN.
    Float,
    /// True where an operand is NaN.
    FloatUnordered,
    /// Both are numbers; either is NaN.
    FloatNumbers,
    FloatNan,
    UnsignedWide,
    SignedWide,
}

/// How predicates combine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

/// Number formats of conversions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    Unsigned(u8),
    Signed(u8),
    F16,
    Bf16,
    F32,
}

/// Formats of floats of one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SmallFloat {
    E4m3,
    E5m2,
}

/// Rounding of conversions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// An address: a row (64-bit where `wide`) and a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub row: u32,
    pub wide: bool,
    pub offset: i64,
}

/// Registers that a load fills or a store reads, in order of address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub space: Space,
    pub address: Address,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element: u8,
    /// Sign-extend when loading 8 or 16 bits.
    pub signed: bool,
    /// Rows, 64-bit for elements of 8 bytes or where `wide`; `u32::MAX` is the sink `_`.
    pub rows: Box<[u32]>,
    /// Whether elements narrower than 8 bytes live in 64-bit rows.
    pub wide: bool,
    /// Whether it is a strong operation, which other blocks may answer.
    pub order: MemoryOrder,
}

/// What an access to memory says of its order with those of other threads (PTX ISA 8.3 and 8.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemoryOrder {
    /// Of strong operations (`.relaxed`, `.acquire`, `.release`, `.volatile`, atomic ones); `None` of weak ones.
    pub scope: Option<Scope>,
    pub acquires: bool,
    pub releases: bool,
}

impl Access {
    /// Bytes of the whole access of a lane.
    pub fn bytes(&self) -> u32 {
        u32::from(self.element) * self.rows.len() as u32
    }
}

/// Read-modify-write operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Atomic {
    Add,
    FloatAdd,
    MinUnsigned,
    MinSigned,
    MaxUnsigned,
    MaxSigned,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
    /// Increment, wrapping at the operand.
    Increment,
    Decrement,
}

/// Modes of shuffles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// The predicates of a `bar.red.and` or `.or`: where the result goes, and which of each thread's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BarrierVotes {
    pub d: u32,
    pub p: u32,
    pub negate: bool,
    /// Whether all must hold, or one.
    pub all: bool,
}

/// Modes of votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// Warp-wide reductions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reduction {
    Add,
    MinUnsigned,
    MinSigned,
    MaxUnsigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

/// Element formats of tensor products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Factor {
    F16,
    Bf16,
    Tf32,
}

/// `mma.sync` with f32 accumulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mma {
    pub factor: Factor,
    /// Depth: 8 or 16 of 16-bit elements, 4 or 8 of tf32.
    pub k: u8,
    pub d: [u32; 4],
    /// As many as are used.
    pub a: [u32; 4],
    pub b: [u32; 2],
    pub c: [u32; 4],
}

/// Where wgmma finds A.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LeftFactor {
    /// A 64-bit row with a descriptor; whether A is M-major.
    Shared { descriptor: u32, transposed: bool },
    /// Fragment registers.
    Registers([u32; 4]),
}

/// `wgmma.mma_async.m64nNk16` with f32 accumulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wgmma {
    pub factor: Factor,
    pub n: u16,
    pub d: Box<[u32]>,
    pub a: LeftFactor,
    /// 64-bit row with B's descriptor; whether B is N-major.
    pub descriptor: u32,
    pub transposed: bool,
    /// Predicate `scale-d`: whether d is added. `None` where it is a constant, given next.
    pub accumulate: Option<u32>,
    pub accumulate_constant: bool,
    pub negate_a: bool,
    pub negate_b: bool,
}

/// A tensor copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorCopy {
    /// 64-bit row with the generic address of the tensor map.
    pub map: Address,
    /// Rows of the coordinates, innermost first.
    pub coordinates: Box<[u32]>,
    pub shared: Address,
    /// The mbarrier of a load.
    pub barrier: Option<Address>,
}

/// A decoded instruction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Op {
    Nop,
    /// `griddepcontrol.wait`: launches before this one have ended.
    AwaitLaunches,
    Move {
        d: u32,
        a: u32,
    },
    MoveWide {
        dx: u32,
        ax: u32,
    },
    MovePredicate {
        dp: u32,
        ap: u32,
    },
    SetPredicate {
        dp: u32,
        value: bool,
    },
    Unary {
        op: Unary,
        d: u32,
        a: u32,
    },
    Binary {
        op: Binary,
        flush: bool,
        d: u32,
        a: u32,
        b: u32,
    },
    Ternary {
        op: Ternary,
        flush: bool,
        d: u32,
        a: u32,
        b: u32,
        c: u32,
    },
    /// Bit field insertion: a into b at position c, of length `length`.
    Insert {
        d: u32,
        a: u32,
        b: u32,
        c: u32,
        length: u32,
    },
    /// The same in 64 bits.
    InsertWide {
        dx: u32,
        ax: u32,
        bx: u32,
        c: u32,
        length: u32,
    },
    Logic3 {
        d: u32,
        a: u32,
        b: u32,
        c: u32,
        table: u8,
    },
    Wide {
        op: Wide,
        dx: u32,
        ax: u32,
        bx: u32,
    },
    WideNot {
        dx: u32,
        ax: u32,
    },
    WideNegate {
        dx: u32,
        ax: u32,
    },
    Shift {
        op: Shift,
        dx: u32,
        ax: u32,
        b: u32,
    },
    WideMultiplyAdd {
        dx: u32,
        ax: u32,
        bx: u32,
        cx: u32,
    },
    /// 32 x 32 -> 64 bits, plus a 64-bit row if there is one.
    MultiplyWide {
        dx: u32,
        a: u32,
        b: u32,
        cx: Option<u32>,
        signed: bool,
    },
    /// 16 x 16 -> 32 bits.
    MultiplyHalves {
        d: u32,
        a: u32,
        b: u32,
        signed: bool,
    },
    SetP {
        compare: Compare,
        of: Comparable,
        dp: u32,
        complement: Option<u32>,
        a: u32,
        b: u32,
        with: Option<(Logic, u32, bool)>,
    },
    /// `set.u32`: all ones, or 1.0 for `float`, where true.
    Set {
        compare: Compare,
        of: Comparable,
        d: u32,
        a: u32,
        b: u32,
        float: bool,
    },
    Select {
        d: u32,
        a: u32,
        b: u32,
        p: u32,
    },
    SelectWide {
        dx: u32,
        ax: u32,
        bx: u32,
        p: u32,
    },
    PredicateLogic {
        op: Logic,
        dp: u32,
        ap: u32,
        bp: u32,
    },
    PredicateNot {
        dp: u32,
        ap: u32,
    },
    /// Conversion between 32-bit rows; `wide` says which side is 64-bit.
    Convert {
        to: Number,
        from: Number,
        rounding: Rounding,
        integral: bool,
        saturate: bool,
        flush: bool,
        d: u32,
        a: u32,
    },
    ConvertIntegerWide {
        to: Number,
        from: Number,
        saturate: bool,
        d: u32,
        a: u32,
        /// Whether `a` is a register of 64 bits.
        from_double: bool,
    },
    /// A 64-bit integer to a double.
    DoubleOfInteger {
        dx: u32,
        ax: u32,
        signed: bool,
    },
    /// A double to f32, rounded to nearest.
    FloatOfDouble {
        d: u32,
        ax: u32,
    },
    /// Two f32 to a packed pair: a above, b below.
    Pack {
        to: Number,
        d: u32,
        a: u32,
        b: u32,
        relu: bool,
    },
    /// A pair of floats of one byte to a packed pair of f16.
    WidenPair {
        of: SmallFloat,
        d: u32,
        a: u32,
    },
    /// Packed pair of f16 or bf16: add, sub, mul, min, max or fma.
    PairArithmetic {
        of: Number,
        op: PairOp,
        d: u32,
        a: u32,
        b: u32,
        c: u32,
    },
    RoundTf32 {
        d: u32,
        a: u32,
    },
    /// `mov.b32 d, {a, b}` and back, of halves.
    JoinHalves {
        d: u32,
        a: u32,
        b: u32,
    },
    SplitHalves {
        d: [u32; 2],
        a: u32,
    },
    JoinWords {
        dx: u32,
        a: u32,
        b: u32,
    },
    SplitWords {
        d: [u32; 2],
        ax: u32,
    },
    /// Adds (`cvta`) or subtracts (`cvta.to`) the base of a window.
    Window {
        dx: u32,
        ax: u32,
        base: u64,
        to: bool,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic {
        op: Atomic,
        space: Space,
        wide: bool,
        order: MemoryOrder,
        d: Option<u32>,
        address: Address,
        a: u32,
        b: u32,
    },
    /// `red.global.add` of a vector of f32, an element at a time.
    AddVector {
        order: MemoryOrder,
        address: Address,
        rows: Box<[u32]>,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u8,
        present: Option<u32>,
    },
    CommitCopies,
    /// All but the latest groups; `None`: everything, committed or not.
    WaitCopies {
        pending: Option<u32>,
    },
    /// `cp.async.mbarrier.arrive`
    LoadMatrix {
        d: Box<[u32]>,
        address: Address,
        transposed: bool,
    },
    StoreMatrix {
        a: Box<[u32]>,
        address: Address,
        transposed: bool,
    },
    /// `movmatrix`: an 8 x 8 matrix of 16-bit elements, transposed between the lanes that hold it.
    MoveMatrix {
        d: u32,
        a: u32,
    },
    Mma(Box<Mma>),
    Shuffle {
        mode: Shuffle,
        d: u32,
        dp: Option<u32>,
        a: u32,
        b: u32,
        c: u32,
        members: u32,
    },
    Vote {
        mode: Vote,
        d: u32,
        p: u32,
        negate: bool,
        members: u32,
    },
    Reduce {
        op: Reduction,
        d: u32,
        a: u32,
        members: u32,
    },
    Elect {
        d: Option<u32>,
        dp: u32,
        members: u32,
    },
    ActiveMask {
        d: u32,
    },
    /// `barrier.cluster.arrive`, and whether what came before is released.
    ClusterArrive {
        release: bool,
        aligned: bool,
    },
    /// `barrier.cluster.wait`
    ClusterWait {
        aligned: bool,
    },
    /// `mapa`: the address in the shared memory of the block of a rank. Generic addresses are 64-bit, others as `wide` says.
    MapAddress {
        d: u32,
        a: u32,
        rank: u32,
        wide: bool,
        generic: bool,
    },
    /// `getctarank`
    RankOf {
        d: u32,
        a: u32,
        wide: bool,
    },
    WarpBarrier {
        members: u32,
    },
    /// `bar.sync`, or `bar.arrive` which does not wait; threads are those of the block if not given.
    /// `bar.red` waits, and gives what the predicates of all threads make.
    Barrier {
        id: u32,
        threads: Option<u32>,
        wait: bool,
        aligned: bool,
        votes: Option<BarrierVotes>,
    },
    /// `setmaxnreg`: registers of a thread from now on.
    SetRegisters {
        count: u32,
        increase: bool,
    },
    Fence {
        scope: Scope,
    },
    /// Of accesses to shared memory, to global memory, or to both.
    FenceProxyAsync {
        shared: bool,
        global: bool,
    },
    BarrierInit {
        address: Address,
        count: u32,
    },
    BarrierInvalidate {
        address: Address,
    },
    BarrierArrive {
        address: Address,
        count: Option<u32>,
        transactions: Option<u32>,
        drop: bool,
        state: Option<u32>,
    },
    BarrierExpect {
        address: Address,
        transactions: u32,
    },
    /// `parity`: a 32-bit row, else `state`, a 64-bit row. `suspend`: `try_wait`.
    BarrierTest {
        dp: u32,
        address: Address,
        parity: Option<u32>,
        state: u32,
        suspend: bool,
    },
    TensorLoad(Box<TensorCopy>),
    /// `adds`: `cp.reduce.async.bulk.tensor`, sums of f32.
    TensorStore {
        copy: Box<TensorCopy>,
        adds: bool,
    },
    /// `cp.async.bulk` of a 32-bit row of bytes, to shared memory if there is a barrier; or
    /// `cp.reduce.async.bulk`, which adds them to what is there.
    BulkCopy {
        shared: Address,
        global: Address,
        bytes: u32,
        barrier: Option<Address>,
        adds: bool,
    },
    CommitBulk,
    WaitBulk {
        pending: u32,
        read: bool,
    },
    WgmmaFence,
    Wgmma(Box<Wgmma>),
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    Branch {
        target: u32,
    },
    Exit,
    Trap,
}

/// Arithmetic of packed pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairOp {
    Add,
    Subtract,
    Multiply,
    Min,
    Max,
    MultiplyAdd,
}
