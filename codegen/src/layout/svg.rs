//! A tile as SVG: a cell per chunk, coloured by its group of banks.

use std::fmt::Write as _;

use crate::plan::SharedTile;

use super::{chunks, group, rows, title, used_chunks, verdict};

/// Colours of the eight groups of banks, told apart also in grey (Okabe and Ito 2008, and grey).
const COLOURS: [&str; 8] = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb"];
const CELL: (u32, u32) = (56, 22);
const LEFT: u32 = 64;
const TOP: u32 = 48;
/// Width of a character at most: monospaced fonts of 12 pixels have 7.2.
const CHARACTER: u32 = 8;

/// The drawing.
pub fn svg(tile: &SharedTile) -> String {
    let (columns, rows) = (chunks(tile), rows(tile));
    let (title, verdict) = (title(tile), verdict(tile));
    let text_width =
        [&title, &verdict].map(|text| 8 + CHARACTER * text.chars().count() as u32 + 8).into_iter().max().unwrap_or(0);
    let (width, height) = ((LEFT + columns * CELL.0 + 16).max(text_width), TOP + rows * CELL.1 + 40);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"12\">\n<rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let mut text = |x: u32, y: u32, anchor: &str, text: &str| {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    text(8, 18, "start", &title);
    text(8, height - 12, "start", &verdict);
    for chunk in 0..columns {
        text(LEFT + chunk * CELL.0 + CELL.0 / 2, TOP - 8, "middle", &chunk.to_string());
    }
    for row in 0..rows {
        text(LEFT - 8, TOP + row * CELL.1 + 16, "end", &format!("row {row}"));
    }
    for row in 0..rows {
        for chunk in 0..columns {
            let (x, y) = (LEFT + chunk * CELL.0, TOP + row * CELL.1);
            let group = group(tile, row, chunk);
            let colour = COLOURS[group as usize];
            let _ = writeln!(
                out,
                "<rect class=\"chunk\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{colour}\" stroke=\"black\"/>",
                CELL.0, CELL.1
            );
            let label = format!("{}-{}", 4 * group, 4 * group + 3);
            let (x, y) = (x + CELL.0 / 2, y + 16);
            let _ = writeln!(out, "<text class=\"banks\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>");
        }
        // Padding is drawn hatched out: no element lies there.
        for chunk in used_chunks(tile)..columns {
            let (x, y) = (LEFT + chunk * CELL.0, TOP + row * CELL.1);
            let _ = writeln!(out, "<path class=\"padding\" d=\"M{x} {y}L{} {}\" stroke=\"black\"/>", x + CELL.0, y + CELL.1);
        }
    }
    out.push_str("</svg>\n");
    out
}
