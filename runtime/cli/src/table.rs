//! Tables as text, as wide as the terminal at most. No word of a cell is broken: a table that is too wide gets narrower cells, with
//! lines broken between words and behind commas; one that is still too wide is printed row by row, each cell with its header.

use comfy_table::{ContentArrangement, Table};

/// Width of a table where there is no terminal.
const WIDTH: usize = 120;
/// What stands between the cells of a row that is printed by itself.
const BETWEEN: &str = "; ";

/// A table as text, as wide as the terminal at most.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let probe = Table::new();
    let width = if probe.is_tty() { probe.width().map_or(WIDTH, usize::from) } else { WIDTH };
    within(width, header, &rows.into_iter().collect::<Vec<_>>())
}

fn within(width: usize, header: &[&str], rows: &[Vec<String>]) -> String {
    let lines = || std::iter::once(header.iter().map(|&h| h.to_owned()).collect()).chain(rows.iter().cloned());
    let widest = |of: fn(&str) -> usize| -> Vec<usize> {
        let column = |c: usize| lines().filter_map(|line: Vec<String>| line.get(c).map(|cell| of(cell))).max().unwrap_or(0);
        (0..header.len()).map(column).collect()
    };
    let natural = widest(|cell| cell.lines().map(length).max().unwrap_or(0));
    // Borders, and a space on both sides of each cell.
    let Some(room) = width.checked_sub(2 + 2 * header.len() + header.len().saturating_sub(1)) else {
        return stacked(width, header, rows);
    };
    if natural.iter().sum::<usize>() <= room {
        return drawn(header, rows);
    }
    let mut columns = widest(|cell| words(cell).map(|word| length(word.trim_end())).max().unwrap_or(0));
    let Some(mut spare) = room.checked_sub(columns.iter().sum()) else { return stacked(width, header, rows) };
    while spare > 0 {
        // The column that lacks most gets the next character.
        let most = (0..columns.len()).max_by_key(|&c| natural[c].saturating_sub(columns[c])).expect("a table has columns");
        columns[most] += 1;
        spare -= 1;
    }
    let wrapped = |line: Vec<String>| line.iter().zip(&columns).map(|(cell, &width)| wrap(cell, width)).collect::<Vec<_>>();
    let mut lines = lines().map(wrapped);
    let header = lines.next().expect("the header comes first");
    drawn(&header.iter().map(String::as_str).collect::<Vec<_>>(), &lines.collect::<Vec<_>>())
}

fn drawn(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table.add_rows(rows.iter().cloned());
    table.trim_fmt()
}

/// Row by row, each cell behind its header.
fn stacked(width: usize, header: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = format!("{}\n", wrap("(a row is told in lines of its own: the table is wider than the terminal)", width));
    for (n, row) in rows.iter().enumerate() {
        let number = format!("{:>3}  ", n + 1);
        let named = |(name, cell): (&&str, &String)| match name.is_empty() {
            true => cell.clone(),
            false => format!("{name} {cell}"),
        };
        let cells: Vec<String> = header.iter().zip(row).map(named).collect();
        let text = wrap_pieces(cells.iter().map(String::as_str), BETWEEN, width.saturating_sub(number.len()));
        let indented = text.replace('\n', &format!("\n{}", " ".repeat(number.len())));
        out.push_str(&format!("{number}{indented}\n"));
    }
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Words that stay whole: they end behind spaces, and, where they are lists such as schedules, behind commas.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', ',', '\n'])
}

/// Lines of at most so many characters, but for longer words.
fn wrap(text: &str, width: usize) -> String {
    let wrapped = |line: &str| {
        let (mut out, mut used) = (String::new(), 0);
        for word in words(line) {
            if used > 0 && used + length(word.trim_end()) > width {
                out.truncate(out.trim_end().len());
                out.push('\n');
                used = 0;
            }
            out.push_str(word);
            used += length(word);
        }
        out.truncate(out.trim_end().len());
        out
    };
    text.lines().map(wrapped).collect::<Vec<_>>().join("\n")
}

/// Pieces side by side, in lines of at most so many characters. A piece that fits into a line is not broken.
fn wrap_pieces<'a>(pieces: impl Iterator<Item = &'a str>, between: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let piece = wrap(piece, width);
        match lines.last_mut() {
            Some(line) if length(line.rsplit('\n').next().unwrap_or(line)) + length(between) + length(&piece) <= width => {
                line.push_str(between);
                line.push_str(&piece);
            }
            _ => lines.push(piece),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&c| c.to_owned()).collect()
    }

    /// No line is longer, and every word of every cell is there whole.
    fn check(text: &str, width: usize, header: &[&str], rows: &[Vec<String>]) {
        for line in text.lines() {
            assert!(length(line) <= width, "{width}: {line}");
        }
        let cells = header.iter().copied().chain(rows.iter().flatten().map(String::as_str));
        for word in cells.flat_map(words).map(str::trim) {
            assert!(text.contains(word), "`{word}` at {width} in\n{text}");
        }
    }

    #[test]
    fn a_table_that_fits_is_drawn_as_it_is() {
        let rows = [row(&["attention", "1 ms"]), row(&["row_softmax", "20 us"])];
        let text = within(80, &["kernel", "time"], &rows);
        check(&text, 80, &["kernel", "time"], &rows);
        assert!(text.contains("│ attention     1 ms  │"), "{text}");
    }

    #[test]
    fn no_word_is_broken_at_any_width() {
        let header = ["candidates", "differs in", "time", "max", "why not"];
        let rows = [
            row(&["1", "tensor_op=wgmma,max=optimistic,block_m=128", "1.2 ms", "optimistic", "rejected: needs 234512 bytes"]),
            row(&["12", "block_n=64", "900 us", "-", "its turn never came"]),
        ];
        for width in 30..160 {
            check(&within(width, &header, &rows), width, &header, &rows);
        }
        let drawn = within(80, &header, &rows);
        assert!(drawn.starts_with('┌') && drawn.contains("max=optimistic,"), "{drawn}");
        let stacked = within(44, &header, &rows);
        assert!(stacked.starts_with("(a row is told in lines of its own"), "{stacked}");
        assert!(stacked.contains("\n  2  candidates 12; differs in block_n=64\n"), "{stacked}");
    }

    #[test]
    fn a_table_is_as_wide_as_it_may_be() {
        let rows = [row(&["a b c d e f g h i j k l m n o p", "x"])];
        let text = within(24, &["letters", "n"], &rows);
        assert!(text.lines().all(|line| length(line) <= 24) && text.lines().any(|line| length(line) > 20), "{text}");
    }
}
