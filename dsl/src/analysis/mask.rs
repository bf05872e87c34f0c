//! From masks and memory bounds to loop bounds: which tiles of a loop are skipped, which are full, which are cut.

use crate::analysis::index::IndexExpr;

/// The tiles of one loop, in ascending order: `[lo, full_lo)` cut, `[full_lo, full_hi)` full, `[full_hi, hi)` cut; what
/// lies outside `[lo, hi)` is skipped. Always `lo <= full_lo <= full_hi <= hi` (the expressions are clamped), and
/// `lo >= 0`, `hi <= ceil(extent / block)`. `lo == hi` is an empty loop.
///
/// In a full tile every mask of the body keeps every element of rows that exist, and every position of the loop axis
/// exists. In a skipped tile the masks keep nothing, and the loop's carried values would not change.
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
}
