//! A tile as text: a line per row, a column per chunk, each with its banks.

use std::fmt::Write as _;

use crate::plan::SharedTile;

use super::{chunks, group, rows, title, used_chunks, verdict};

/// The picture.
pub fn text(tile: &SharedTile) -> String {
    let mut out = format!("{}\n", title(tile));
    let mut line = |head: String, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>8}")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {head:<7}{cells}");
    };
    line("chunk".into(), (0..chunks(tile)).map(|c| c.to_string()).collect());
    for row in 0..rows(tile) {
        let banks = |chunk| {
            let first = 4 * group(tile, row, chunk);
            format!("{first}-{}", first + 3)
        };
        line(format!("row {row:>3}"), (0..chunks(tile)).map(banks).collect());
    }
    let conflicts = (0..used_chunks(tile)).map(|chunk| tile.conflicts(0, chunk).to_string()).collect();
    line("conflicts".into(), conflicts);
    if rows(tile) < tile.rows {
        let _ = writeln!(out, "  rows {} to {} repeat the pattern", rows(tile), tile.rows - 1);
    }
    out.push_str(&verdict(tile));
    out.push('\n');
    out
}
