//! # The tile IR
//!
//! A kernel is one *program* run for every point of a grid. Its values are *tiles*: small dense arrays of rank 0, 1
//! or 2 whose dimensions are either a **tile axis** (a named, blocked dimension such as the query rows `i`) or a
//! **range** of compile-time length (such as the head dim `D`). Every tile axis has an extent, the run-time size that
//! it walks; a schedule chooses its block size, which the IR never mentions.
//!
//! ## Meaning
//!
//! * **Tiles are ragged.** The tile of axis `i` with extent `M` and block `b` at coordinate `t` holds exactly the
//!   positions `t*b .. min((t+1)*b, M)`. Positions at or beyond the extent do not exist: a reduction or a contraction
//!   over the axis does not see them, a load does not read them, a store does not write them. A compiler that works on
//!   padded tiles must keep this meaning; what it puts in the padding is its own business.
//! * **The result does not depend on block sizes**, up to the rounding of f32 accumulation. A kernel whose meaning
//!   depends on them (one that stores a per-tile value at a per-row place, say) does not type-check.
//! * **Arithmetic is f32.** 16-bit values are widened when they are loaded; a cast to a 16-bit type rounds to nearest
//!   even; a cast to `i32` goes towards zero, to the nearest `i32` where it is too large, and NaN
//!   becomes 0; a store rounds to the tensor's element type. `Dot` accumulates in f32.
//! * **Elements of one byte are in memory only.** A load gives the same value in a wider type: of
//!   `u8` and `i8` an `i32`, of `f8e4m3` and `f8e5m2` an `f32` (every value is exact there, and NaN
//!   is NaN). A load of `bool` gives truth values: a byte is false if it is 0, and true otherwise.
//!   Nothing is stored to tensors of these types.
//! * **Indices are 64-bit integers**: program ids, sizes, and what `Index` computes of them. `Div`
//!   and `Rem` round towards negative infinity; by a loaded 0 the quotient is 0, and the remainder
//!   what is divided. **`i32` tiles are 32-bit integers that wrap**, and a position, or an index in
//!   an `i32` tile, is its lower 32 bits. Sizes, extents of axes and the number of programs are
//!   from 0 to [`MAX_SIZE`](crate::analysis::reach::MAX_SIZE). A call is refused, on every device
//!   and before anything runs, where an index leaves 64 bits or the dimension that it addresses,
//!   where a divisor that nothing loads is 0, and where an `i32` wraps that is used as an index or
//!   compared in a mask: loop bounds are derived from masks in integers without end.
//!   [`crate::analysis::reach`] finds that out from sizes and scalars. A compiler may compute in 32
//!   bits what it knows to stay there.
//! * **Elementwise ops broadcast by axis name**: a value lacking a dimension of the other operand is repeated along it.
//!   The dimensions of the result are ordered: the lhs's, then the rhs's not yet there; two rank-1 operands of
//!   different axes give a matrix ordered by [`AxisId`] (order of definition), a range after an axis.
//! * What an elementwise op computes of floats, integers and truth values stands in its row:
//!   [`UnaryRow`], [`BinaryRow`]. Ops on bits (`BitAnd`, `Shl`, `MulHi`) take integers as their 32
//!   bits: a shift is by the lower five bits of its second operand, `Shr` fills up with the sign,
//!   and `MulHi` takes both operands without sign. No loop bounds are derived from them.
//! * `Reduce` works along the last dimension of a rank-2 tile and gives a rank-1 tile. The maximum of nothing is
//!   `-inf`, the sum of nothing is 0. NaN in a maximum is ignored only if IEEE `maximumNumber` says so: a row maximum
//!   returns the largest number, and a NaN element then reappears through the exponential it feeds.
//! * **Hidden means absent.** `Mask { x, keep, fill }` is `x` where `keep` holds, and hides the
//!   other elements. An element that is hidden does not exist, as a position beyond the extent does
//!   not: a reduction or a contraction does not see it. An elementwise op, a transpose and a `Full`
//!   hide an element of their result where an operand's is hidden; a `Select` where that of its
//!   condition is, or that of the operand which it takes there; a `Dot` where that of its
//!   accumulator is. Other results are not hidden, nor is what a loop carries.
//! * **A hidden element holds a value all the same**, which a store writes: the *fill* of its mask,
//!   `-inf` or 0, and what ops make of that (`exp` of `-inf` is 0). Where a contraction would
//!   multiply a hidden element with something that is not finite, or where what a hidden element
//!   holds is NaN, two results are right: that without the element, and NaN. So a tile that is
//!   hidden as a whole need not be computed, and memory behind it may hold anything.
//! * `VisibleOrZero(x)` is `0` where `x == -inf`, else `x` (also for `+inf` and NaN). `DivOrZero(a, b)` is `0` where both
//!   are 0, else `a / b`.
//! * `For` runs its body for every tile of its axis in ascending order, carrying values. The parameters of its body
//!   block are the coordinate, then the carried values; `yield` gives the next ones; the results of the op are the last
//!   ones. A loop over an empty extent gives its initial values. A loop over an axis of single positions gives its body an
//!   index in place of the coordinate.
//! * A `For` with a [`Part`] walks one of `count` parts of its tiles: consecutive runs, in ascending order, that hold every tile
//!   once. Where the runs end is not said, and a part may be empty: the interpreter divides all tiles evenly, a compiler those
//!   that a mask leaves anything of. So what such a loop gives is a *state*, of use only where the states of all parts
//!   meet; an analysis ([`crate::analysis::streaming`]) says how. Which state stands for the same part is not said either: a
//!   running maximum may be any reference that what is rescaled by it goes with.
//! * `OfPart { value, part, at }` is what `value` is in the program that is the same but for the program id `part`, which is `at`
//!   there. So states of parts may meet in one kernel: every program merges them and goes on with the same.
//! * `Gather` reads one element of a tensor for each element of its result: at an index where the
//!   entry of a dimension is one, at the position that a tile of integers has for the element where
//!   it is a tile. Indices must be in their dimensions, as those of a load. A position of a tile
//!   that is not is moved to the nearest one that is. So results are the same on every device, and
//!   memory safety does not rest on what tensors hold. A dimension that is addressed by a tile has
//!   a position.
//! * `BlockExtreme` is the least or the largest of the integers of each block along a dimension.
//!   Its axis has the extent of that dimension, and its position `p` stands for block `p`; blocks
//!   beyond the end are empty. Only rewrites make one: [`Kernel::summaries`] says which inputs of a
//!   kernel hold the extremes of another, which analyses may use and which changes no result.
//! * `Nonzero` lists the elements along a dimension that are not 0: position `p` of its axis stands
//!   for the `p`-th of them. Only rewrites make one: [`Kernel::lists`] says which inputs of a kernel
//!   list the tiles of a loop that masks leave anything of, and changes no result.
//! * A tensor is strided, its last dimension contiguous. Stores of one kernel write disjoint places, but that programs which met in
//!   an `OfPart` write the same to the same place.
//! * A *sum* is an output whose stores add: each element is the sum of what is stored to its place
//!   in all programs and iterations, in any order, and 0 where nothing is. It holds f32.
//! * A tensor that is read and written (*in-out*) has one load and one store, of the same tile in the same block, the load first.
//!   A load gives what the program stored to the tile the last time, and what was there before the kernel if it has not yet.
//!
//! [`crate::interpret`] is this section in code.
//!
//! Architecture invariant: IR values are immutable once built by [`Builder`]; passes make a new kernel.

mod builder;
mod cleared;
pub mod edit;
mod elementwise;
mod entity;
mod kernel;
mod op;
mod parse;
mod print;
mod renumber;
mod size;
mod types;
mod verify;
mod whole;

pub use builder::{Builder, broadcast, result_types, selected_dims};
pub use cleared::cleared;
pub use elementwise::{
    BinaryOp, BinaryRow, FloatBinary, FloatUnary, IndexOp, Operands, Precedence, RowOperand, Spelling, UnaryOp, UnaryRow,
};
pub(crate) use elementwise::{floor_div, floor_rem, map_row};
pub use entity::{Arena, AxisId, BlockId, Entity, OpId, ParamId, SizeId, ValueId};
pub use kernel::{
    Axis, AxisKind, Binding, BlockData, Direction, HelperCall, Kernel, OpData, Param, ParamKind, Size, SizeKind, SourceText,
    Span, Summary, TensorDecl, TileList, ValueData, ValueDef,
};
pub use op::{At, CompareOp, Fill, Op, Part, ProgramDim, ReduceOp};
pub use parse::{TextError, parse_text};
pub use size::SizeExpr;
pub use types::{Dim, Elem, TileType, Type};
pub use verify::{Rule, VerifyError, verify};
pub use whole::Whole;
