//! The tiles of a loop as a picture: one line per tile of the program's rows, one character per tile of the loop.

use super::index::{Lookups, Search, SearchEnd, Symbol};
use super::mask::LoopMasks;
use super::simplify::BEYOND;
use crate::ir::{ParamId, SizeExpr, ValueId};

/// A full tile.
pub const FULL: char = '#';
/// A cut tile.
pub const CUT: char = '/';
/// A skipped tile.
pub const SKIPPED: char = '.';

/// Draws the tiles of a loop for row tiles `0 .. rows`: `#` full, `/` cut, `.` skipped. `size`
/// gives the sizes; `value` the program ids and tile numbers for a row tile, `param` integer scalar
/// parameters, `loaded` what is loaded.
pub fn picture(
    masks: &LoopMasks,
    rows: i64,
    size: &dyn Fn(&SizeExpr) -> i64,
    value: &dyn Fn(i64, ValueId) -> i64,
    param: &dyn Fn(ParamId) -> i64,
    loaded: &dyn Fn(Symbol) -> i64,
) -> Vec<String> {
    let line = |row| {
        let at_row = |v| value(row, v);
        let at = Lookups { size, value: &at_row, param, loaded, found: &untold };
        let [lo, full_lo, full_hi, hi] = masks.runs.eval(at);
        let gap = masks.runs.gap.as_ref().map(|gap| gap.lo.eval(at)..gap.hi.eval(at));
        let tile = |t: i64| match t {
            t if gap.as_ref().is_some_and(|gap| gap.contains(&t)) => SKIPPED,
            t if (full_lo..full_hi).contains(&t) => FULL,
            t if (lo..hi).contains(&t) => CUT,
            _ => SKIPPED,
        };
        (0..masks.tiles.eval(at)).map(tile).collect()
    };
    (0..rows).map(line).collect()
}

/// What a search gives that is told nothing of the tiles: all meet the range, none is within it.
fn untold(search: &Search, _: Option<i64>, _: Option<i64>) -> i64 {
    if search.end == SearchEnd::FirstMeeting { 0 } else { BEYOND }
}
