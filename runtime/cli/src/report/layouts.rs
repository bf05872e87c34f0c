//! The tiles of the winner in shared memory: rows by chunks of 16 bytes, coloured by their banks.

use super::markup::Markup;
use super::tuning::Tuning;
use flashtile_codegen::layout;

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let Some(won) = &tuning.won else {
        return page.paragraph("There is no winner, so that there are no tiles.");
    };
    if won.launches.iter().all(|launch| launch.tiles.is_empty()) {
        return page.paragraph("The winner has no tile in shared memory.");
    }
    page.paragraph(
        "Each cell is a chunk of 16 bytes, with the four banks that it fills; a colour is a group of banks. Cells of a column \
         that have one colour are read one after the other. The pattern repeats below the rows that are drawn.",
    );
    for launch in won.launches.iter().filter(|launch| !launch.tiles.is_empty()) {
        page.words("h3", &[], &launch.name);
        for tile in &launch.tiles {
            page.element("figure", &[("class", &"box layout"), ("tabindex", &"0")], |page| page.made(&layout::svg(tile)));
        }
    }
}
