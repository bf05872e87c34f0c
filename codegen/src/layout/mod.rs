//! Pictures of a tile in shared memory: on which banks each 16-byte chunk falls, and what that costs `ldmatrix`.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use crate::plan::SharedTile;

/// Bytes of a chunk: what one row of an `ldmatrix` matrix is.
const CHUNK: u32 = 16;
/// Groups of four banks, which a chunk fills: 32 banks of 4 bytes.
const GROUPS: u32 = 8;
/// Rows drawn at most: a swizzle repeats after 8 rows of 128 bytes, so nothing is new below.
const ROWS: u32 = 16;

/// Rows that are drawn.
fn rows(tile: &SharedTile) -> u32 {
    tile.rows.min(ROWS)
}

/// Chunks of a row, those of padding included.
fn chunks(tile: &SharedTile) -> u32 {
    tile.pitch / CHUNK
}

/// Chunks of a row that hold elements.
fn used_chunks(tile: &SharedTile) -> u32 {
    let bytes = tile.columns * tile.elem.bytes().unwrap_or(2) as u32;
    bytes.div_ceil(CHUNK).min(chunks(tile))
}

/// The group of banks of a chunk.
fn group(tile: &SharedTile, row: u32, chunk: u32) -> u32 {
    tile.chunk_offset(row, chunk) / CHUNK % GROUPS
}

/// Passes that the worst `ldmatrix` phase takes: eight rows at one chunk.
fn worst(tile: &SharedTile) -> u32 {
    let phases = (0..tile.rows / 8).flat_map(|r| (0..used_chunks(tile)).map(move |c| (8 * r, c)));
    phases.map(|(row, chunk)| tile.conflicts(row, chunk)).max().unwrap_or(1)
}

/// One line about a tile.
fn title(tile: &SharedTile) -> String {
    let layout = format!("{:?}", tile.layout).to_lowercase();
    format!(
        "tile {}: {} x {} x {} {}, {layout} layout, {} bytes from row to row",
        tile.name,
        tile.slots,
        tile.rows,
        tile.columns,
        tile.elem.name(),
        tile.pitch
    )
}

/// One line about its conflicts.
fn verdict(tile: &SharedTile) -> String {
    match worst(tile) {
        1 => "ldmatrix: every phase (8 rows at one chunk) is free of bank conflicts".to_owned(),
        n => format!("ldmatrix: the worst phase (8 rows at one chunk) has {n}-way bank conflicts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedLayout;
    use flashtile_dsl::ir::Elem;

    fn tile(layout: SharedLayout, pitch: u32) -> SharedTile {
        SharedTile {
            name: "k_0".into(),
            elem: Elem::Bf16,
            rows: 64,
            columns: 64,
            pitch,
            layout,
            slabs: 1,
            woven: false,
            slots: 2,
            offset: 0,
            warp_private: false,
            barriers: None,
            exchange: None,
        }
    }

    #[test]
    fn the_picture_shows_banks_and_conflicts() {
        let plain = text(&tile(SharedLayout::Plain, 128));
        assert!(plain.starts_with("tile k_0: 2 x 64 x 64 bf16, plain layout, 128 bytes from row to row\n"), "{plain}");
        assert!(plain.contains("the worst phase (8 rows at one chunk) has 8-way bank conflicts"), "{plain}");
        let swizzled = text(&tile(SharedLayout::Xor, 128));
        assert!(swizzled.contains("free of bank conflicts"), "{swizzled}");
        assert!(swizzled.contains("  row   1     4-7     0-3   12-15    8-11   20-23   16-19   28-31   24-27\n"), "{swizzled}");
        assert!(swizzled.contains("conflicts       1       1"), "{swizzled}");
    }

    #[test]
    fn the_drawing_has_a_cell_for_each_chunk() {
        let drawing = svg(&tile(SharedLayout::Padded, 144));
        assert!(drawing.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && drawing.ends_with("</svg>\n"));
        assert_eq!(drawing.matches("class=\"chunk\"").count(), 16 * 9);
        assert_eq!(drawing.matches("class=\"padding\"").count(), 16);
    }

    #[test]
    fn the_title_of_a_narrow_tile_is_not_cut_off() {
        let narrow = SharedTile { columns: 16, ..tile(SharedLayout::Plain, 32) };
        let drawing = svg(&narrow);
        let width =
            drawing.split("width=\"").nth(1).and_then(|rest| rest.split('"').next()).and_then(|w| w.parse::<usize>().ok());
        let text = title(&narrow);
        assert!(drawing.contains(&text) && width.is_some_and(|width| width >= 8 + 7 * text.len()), "{width:?}: {text}");
    }
}
