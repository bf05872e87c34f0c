//! Figures as tables of text: for a terminal, or in Markdown.

use std::fmt::Write as _;

use flashtile::emulator::InstructionKind;

use super::experiment::{Cell, Profiled, Ratio, Style, Unit, Work};
use super::results::{Code, Counted, Figures, Results, TableResults, ways};
use super::runner::Mode;
use crate::output;

/// A table of text with a title and notes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sheet {
    /// What it shows.
    pub title: String,
    /// Columns.
    pub header: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
    /// Notes that cells refer to.
    pub notes: Vec<String>,
}

impl Sheet {
    fn new(title: impl Into<String>, header: &[&str]) -> Self {
        Self { title: title.into(), header: header.iter().map(|&h| h.to_owned()).collect(), ..Self::default() }
    }

    /// A reference to a note.
    fn note(&mut self, text: &str) -> String {
        let at = self.notes.iter().position(|note| note == text).unwrap_or_else(|| {
            self.notes.push(text.to_owned());
            self.notes.len() - 1
        });
        format!("({})", at + 1)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let header: Vec<&str> = self.header.iter().map(String::as_str).collect();
        let table = output::table(&header, self.rows.clone());
        let mut out = format!("{}\n{}\n", self.title, table.trim_end());
        for (n, note) in self.notes.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "({}) {note}", n + 1);
        }
        out
    }

    /// In Markdown.
    pub fn markdown(&self) -> String {
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "));
        let mut out = format!("{}:\n\n{}{}\n", self.title, line(&self.header), "| --- ".repeat(self.header.len()) + "|");
        self.rows.iter().for_each(|row| out.push_str(&line(row)));
        for (n, note) in self.notes.iter().enumerate() {
            let _ = write!(out, "\n({}) {note}\n", n + 1);
        }
        out
    }
}

/// Every sheet of an experiment: its claims, then each table with what is known of its code and of its launches.
pub fn sheets(results: &Results) -> Vec<Sheet> {
    let mut all = Vec::new();
    for claims in &results.claims {
        let mut sheet = Sheet::new(claims.caption, &["the post", "found", ""]);
        for claim in &claims.claims {
            sheet.rows.push(vec![claim.published.to_owned(), claim.found.clone(), claim.verdict()]);
        }
        all.push(sheet);
    }
    for table in &results.tables {
        all.push(match table.table.style {
            Style::Steps => steps(table, results),
            Style::Lines(variable) => lines(table, variable, results),
        });
        all.extend(memory(table));
        all.extend(code(table));
        all.extend(roofline(table));
        all.extend(counted(table, results));
        all.extend(mix(table));
    }
    all
}

/// A number with so many digits as tell something.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 100.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

fn optional(x: Option<f64>) -> String {
    x.map_or_else(|| "-".to_owned(), number)
}

/// The figure of a cell, or a reference to why there is none.
fn cell_text(sheet: &mut Sheet, table: &TableResults, row: usize, cell: usize, mode: Mode) -> String {
    match (table.figure(row, cell), &table.cells[row][cell]) {
        (Some(figure), _) => number(figure),
        (None, Err(why)) => sheet.note(why),
        (None, Ok(_)) if mode != Mode::Timed => "checked".to_owned(),
        (None, Ok(_)) => "-".to_owned(),
    }
}

fn head(table: &TableResults, results: &Results) -> String {
    let torch = results.torch.as_ref().map(|version| format!(", PyTorch {version}")).unwrap_or_default();
    let of_table = (0..table.table.rows.len()).flat_map(|r| (0..table.table.rows[r].cells.len()).map(move |c| (r, c)));
    let mut codes = of_table.filter_map(|(r, c)| table.figures(r, c)).flat_map(|figures| &figures.code);
    let untuned = if codes.any(|code| code.origin == "model") { ", untuned: the cost model's choice" } else { "" };
    format!("{}, in {}; ours on {}{untuned}{torch}", table.table.caption, table.table.unit.text(), results.device)
}

/// How much faster: the quotient of the speeds less one, so that +100 % is twice as fast. The
/// figures are of the table's unit.
fn gain(unit: Unit, before: Option<f64>, now: Option<f64>) -> String {
    match (before, now, unit) {
        (Some(before), Some(now), Unit::Tflops) => format!("{:+.1} %", 100.0 * (now / before - 1.0)),
        // Of a time, less is more.
        (Some(before), Some(now), _) => format!("{:+.1} %", 100.0 * (before / now - 1.0)),
        _ => "-".to_owned(),
    }
}

fn steps(table: &TableResults, results: &Results) -> Sheet {
    let (unit, published_on) = (table.table.unit, table.table.published_on);
    let mut header = vec!["step".to_owned(), unit.text().to_owned(), "faster".to_owned()];
    if let Some(gpu) = published_on {
        header.extend([format!("{}, {gpu}", unit.text()), "faster there".to_owned()]);
    }
    header.push("than".to_owned());
    // A rate has its time beside it.
    let timed = unit != Unit::Milliseconds;
    header.extend(timed.then(|| "ms".to_owned()));
    header.push("max error".to_owned());
    let mut sheet = Sheet { title: head(table, results), header, ..Sheet::default() };
    for (r, row) in table.table.rows.iter().enumerate() {
        let cell = &row.cells[0];
        let before = row.over.and_then(|label| table.table.rows.iter().position(|other| other.label == label));
        let published = |r: usize| table.table.rows[r].cells[0].published;
        let mut line = vec![row.label.clone(), cell_text(&mut sheet, table, r, 0, results.mode)];
        line.push(gain(unit, before.and_then(|b| table.figure(b, 0)), table.figure(r, 0)));
        if published_on.is_some() {
            line.push(optional(cell.published));
            line.push(gain(unit, before.and_then(published), cell.published));
        }
        line.push(row.over.unwrap_or("-").to_owned());
        let figures = table.figures(r, 0);
        line.extend(timed.then(|| optional(figures.and_then(|f| f.time).map(|t| t.0))));
        line.push(figures.and_then(|f| f.max_error).map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}")));
        sheet.rows.push(line);
    }
    sheet
}

fn lines(table: &TableResults, variable: &str, results: &Results) -> Sheet {
    let mut header = vec![variable.to_owned()];
    let series: Vec<&Cell> = table.table.rows.first().map(|row| row.cells.iter().collect()).unwrap_or_default();
    for cell in &series {
        header.push(cell.series.to_owned());
        if let (Some(gpu), true) = (table.table.published_on, is_published(table, cell.series)) {
            header.push(format!("{}, {gpu}", cell.series));
        }
    }
    let ratios = table.table.ratios;
    let there =
        |ratio: &Ratio| table.table.published_on.filter(|_| is_published(table, ratio.of) && is_published(table, ratio.over));
    for ratio in ratios {
        header.push(format!("{} / {}", ratio.of, ratio.over));
        header.extend(there(ratio).map(|gpu| format!("{} / {}, {gpu}", ratio.of, ratio.over)));
    }
    let mut sheet = Sheet { title: head(table, results), header, ..Sheet::default() };
    for (r, row) in table.table.rows.iter().enumerate() {
        let mut line = vec![row.label.clone()];
        for (c, cell) in row.cells.iter().enumerate() {
            line.push(cell_text(&mut sheet, table, r, c, results.mode));
            if table.table.published_on.is_some() && is_published(table, cell.series) {
                line.push(optional(cell.published));
            }
        }
        for ratio in ratios {
            let quotient = |figure: &dyn Fn(usize) -> Option<f64>| {
                let of = |series| row.cells.iter().position(|cell| cell.series == series).and_then(figure);
                Some(of(ratio.of)? / of(ratio.over)?)
            };
            line.push(optional(quotient(&|c| table.figure(r, c))));
            if there(ratio).is_some() {
                line.push(optional(quotient(&|c| row.cells[c].published)));
            }
        }
        sheet.rows.push(line);
    }
    sheet
}

fn is_published(table: &TableResults, series: &str) -> bool {
    let cells = table.table.rows.iter().flat_map(|row| &row.cells);
    cells.into_iter().any(|cell| cell.series == series && cell.published.is_some())
}

/// Every cell of ours that has figures, once per shape: its name and the figures.
fn distinct(table: &TableResults) -> Vec<(String, &Figures)> {
    distinct_cells(table).into_iter().map(|(name, figures, _)| (name, figures)).collect()
}

/// The same with what a post profiled of each.
fn distinct_cells(table: &TableResults) -> Vec<(String, &Figures, Profiled)> {
    let mut all: Vec<(String, &Figures, Profiled)> = Vec::new();
    for (r, row) in table.table.rows.iter().enumerate() {
        for (c, cell) in row.cells.iter().enumerate() {
            let name = if table.table.style == Style::Steps { row.label.clone() } else { cell.series.to_owned() };
            if let (Work::Ours(_), Some(figures)) = (&cell.work, table.figures(r, c))
                && !all.iter().any(|(known, other, _)| {
                    *known == name && other.shape == figures.shape && schedules(other) == schedules(figures)
                })
            {
                all.push((name, figures, cell.profiled.unwrap_or_default()));
            }
        }
    }
    all
}

fn schedules(figures: &Figures) -> Vec<&str> {
    figures.code.iter().map(|code| code.schedule.as_str()).collect()
}

/// Memory beyond the counted figure: what the driver says.
fn memory(table: &TableResults) -> Option<Sheet> {
    if table.table.unit != Unit::Mebibytes {
        return None;
    }
    let mut sheet = Sheet::new("The same by the driver's free memory, in MiB", &["", "shape", "counted", "driver"]);
    for (name, figures) in distinct(table) {
        if let Some((counted, Some(driver))) = figures.memory {
            let mebibytes = |bytes: f64| number(bytes / f64::from(1 << 20));
            sheet.rows.push(vec![name, figures.shape.clone(), mebibytes(counted), mebibytes(driver)]);
        }
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// What became of the schedules of a table of steps.
fn code(table: &TableResults) -> Option<Sheet> {
    if table.table.style != Style::Steps {
        return None;
    }
    let there = profiler(table);
    let beside = |header: &mut Vec<String>, what: &str| {
        header.push(what.to_owned());
        header.extend(there.map(|gpu| format!("{what}, {gpu}")));
    };
    let mut header: Vec<String> = ["step", "registers", "spills", "shared memory", "threads"].map(str::to_owned).to_vec();
    ["occupancy", "limited by", "bytes read", "bytes written"].into_iter().for_each(|what| beside(&mut header, what));
    let title = "Resources of each step; bytes are those that all its launches ask of global memory";
    let note = there.map(|gpu| format!(", those of the {gpu} what a profiler saw of DRAM")).unwrap_or_default();
    let mut sheet = Sheet { title: format!("{title}{note}"), header, ..Sheet::default() };
    for (name, figures, profiled) in distinct_cells(table) {
        for (n, code) in figures.code.iter().enumerate() {
            let Code { registers, spills, shared_bytes, threads, occupancy: (share, limit), .. } = code;
            let known = |x: &Option<u32>| x.map_or_else(|| "-".to_owned(), |x| x.to_string());
            let name = if n == 0 { name.clone() } else { format!("{name} ({})", n + 1) };
            let profiled = if n == 0 { profiled } else { Profiled::default() };
            let percent = |share: f64| format!("{:.0} %", 100.0 * share);
            let published = |text: Option<String>| there.map(|_| text.unwrap_or_else(|| "-".to_owned()));
            let (read, written) = figures
                .traffic
                .filter(|_| n == 0)
                .map_or_else(|| ("-".to_owned(), "-".to_owned()), |(read, written)| (bytes(read as f64), bytes(written as f64)));
            let mut line = vec![
                name,
                known(registers),
                known(spills),
                bytes(f64::from(*shared_bytes)),
                threads.to_string(),
                percent(*share),
            ];
            line.extend(published(profiled.occupancy.map(|o| percent(o.0))));
            line.push(limit.clone());
            line.extend(published(profiled.occupancy.map(|o| o.1.to_owned())));
            line.push(read);
            line.extend(published(profiled.bytes.map(|b| bytes(b.0))));
            line.push(written);
            line.extend(published(profiled.bytes.map(|b| bytes(b.1))));
            sheet.rows.push(line);
        }
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// The GPU of a table of which a post profiled some step.
fn profiler(table: &TableResults) -> Option<&'static str> {
    let mut cells = table.table.rows.iter().flat_map(|row| &row.cells);
    table.table.published_on.filter(|_| cells.any(|cell| cell.profiled.is_some()))
}

/// Where each step of a table stands under the roofline of the GPU; its intensity alone where there is none.
fn roofline(table: &TableResults) -> Option<Sheet> {
    if table.table.style != Style::Steps {
        return None;
    }
    let all: Vec<_> = distinct(table).into_iter().filter(|(_, figures)| figures.traffic.is_some()).collect();
    let timed = all.iter().any(|(_, figures)| figures.time.is_some() && figures.peak.is_some());
    let title = "Roofline: nominal FLOPs per byte that the launches ask of global memory";
    let mut sheet = match timed {
        true => Sheet::new(
            format!("{title}; the roof is the least of peak FLOP/s and intensity times bandwidth, caches left aside"),
            &["step", "FLOP/B", "TFLOP/s", "roof, TFLOP/s", "of the roof", "roof is"],
        ),
        false => Sheet::new(title, &["step", "FLOP/B"]),
    };
    for (name, figures) in all {
        let mut line = vec![name, number(figures.intensity)];
        if let (Some((median, ..)), Some((flops, bandwidth))) = (figures.time, figures.peak) {
            let (attained, under_memory) = (figures.flops / median * 1e3, figures.intensity * bandwidth);
            let roof = flops.min(under_memory);
            line.extend([
                number(attained / 1e12),
                number(roof / 1e12),
                format!("{:.1} %", 100.0 * attained / roof),
                if under_memory < flops { "memory" } else { "compute" }.to_owned(),
            ]);
        }
        line.resize(sheet.header.len(), "-".to_owned());
        sheet.rows.push(line);
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// Kinds of instructions, in the order of the table.
const KINDS: [(InstructionKind, &str); 10] = [
    (InstructionKind::Tensor, "tensor"),
    (InstructionKind::Float, "float"),
    (InstructionKind::Special, "special"),
    (InstructionKind::Integer, "integer"),
    (InstructionKind::Conversion, "conversion"),
    (InstructionKind::Shared, "shared"),
    (InstructionKind::Global, "global"),
    (InstructionKind::Exchange, "exchange"),
    (InstructionKind::Control, "control"),
    (InstructionKind::Other, "other"),
];

/// Shares of the kinds of instructions of each step of a table, as counted on the emulator.
fn mix(table: &TableResults) -> Option<Sheet> {
    if table.table.style != Style::Steps {
        return None;
    }
    let header: Vec<&str> = ["step"].into_iter().chain(KINDS.map(|(_, name)| name)).collect();
    let mut sheet = Sheet::new("Instruction mix on the emulator, in percent of what warps issue", &header);
    for (name, figures) in distinct(table) {
        let Some(Counted { total, .. }) = &figures.counted else { continue };
        let share = |kind| total.kinds.get(&kind).map_or(0.0, |&n| 100.0 * n as f64 / total.warp_instructions.max(1) as f64);
        sheet.rows.push([name].into_iter().chain(KINDS.map(|(kind, _)| format!("{:.1}", share(kind)))).collect());
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// Bytes in the unit that suits them.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{} GB", number(b / 1e9)),
        b if b >= 1e6 => format!("{} MB", number(b / 1e6)),
        b if b >= 1024.0 => format!("{} KiB", number(b / 1024.0)),
        b => format!("{b:.0} B"),
    }
}

/// Where counts and checks of small shapes are from: the emulator, or the CPU that compiles
/// nothing.
fn counted(table: &TableResults, results: &Results) -> Option<Sheet> {
    let all: Vec<(String, &Figures, Profiled)> = match results.mode {
        // Times are of another shape than counts.
        Mode::Timed => distinct_cells(table).into_iter().filter(|(_, figures, _)| figures.counted.is_some()).collect(),
        _ => distinct_cells(table),
    };
    let mut shapes: Vec<&str> = all.iter().map(|(_, figures, _)| figures.shape.as_str()).collect();
    shapes.dedup();
    let place = match (results.mode, shapes.as_slice()) {
        (Mode::Timed, _) => "on a small shape".to_owned(),
        (_, [one]) => format!("at {one}"),
        _ => "on small shapes".to_owned(),
    };
    let mut sheet = match results.mode {
        Mode::Checked => Sheet::new(format!("Checked against float64 {place}"), &["", "max error"]),
        _ => counts(format!("Counted on the emulator {place}, after a check against float64"), profiler(table)),
    };
    for (name, figures, profiled) in all {
        let mut line = vec![name];
        match &figures.counted {
            Some(counted) => line.extend(counts_of(counted, profiler(table).map(|_| profiled))),
            None => line.push(figures.max_error.map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}"))),
        }
        // Rows of several lengths may have run the same.
        if !sheet.rows.contains(&line) {
            sheet.rows.push(line);
        }
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// A sheet for counts, beside those that a post has of its GPU.
fn counts(title: String, there: Option<&str>) -> Sheet {
    let meaning = "instructions of warps, those of some kinds, wavefronts of a request of shared memory (of any, of a load, of a \
                   store), the most words that one bank gives at a time, sectors of a request of global memory, bytes";
    let mut sheet = Sheet::new(
        format!("{title}: {meaning}"),
        &["", "max error", "issued", "tensor", "float", "special", "shared", "wavefronts", "of a load", "of a store"],
    );
    if let Some(gpu) = there {
        sheet.header.extend([format!("of a load, {gpu}"), format!("of a store, {gpu}")]);
    }
    sheet.header.extend(["on one bank", "sectors", "bytes"].map(str::to_owned));
    sheet
}

/// The cells of a line of counts after its name. `there` is what a post profiled, where its figures
/// stand beside.
fn counts_of(counted: &Counted, there: Option<Profiled>) -> Vec<String> {
    let Counted { total: work, loads, stores, max_error } = counted;
    let each = |n: u64, of: u64| if of == 0 { "-".to_owned() } else { number(n as f64 / of as f64) };
    let kind = |kind| work.kinds.get(&kind).copied().unwrap_or(0).to_string();
    let mut line = vec![
        format!("{max_error:.1e}"),
        work.warp_instructions.to_string(),
        kind(InstructionKind::Tensor),
        kind(InstructionKind::Float),
        kind(InstructionKind::Special),
        work.shared_requests.to_string(),
        each(work.wavefronts, work.shared_requests),
        optional(ways(loads)),
        optional(ways(stores)),
    ];
    if let Some(profiled) = there {
        line.extend([optional(profiled.load_ways), optional(profiled.store_ways)]);
    }
    line.extend([
        if work.shared_requests == 0 { "-".to_owned() } else { work.worst_conflict.to_string() },
        each(work.sectors, work.global_requests),
        bytes((work.global_bytes + work.bulk_bytes) as f64),
    ]);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_are_text_and_markdown() {
        let mut sheet = Sheet::new("Times", &["N", "ours"]);
        let note = sheet.note("no | GPU");
        assert_eq!(sheet.note("no | GPU"), note);
        sheet.rows.push(vec!["512".into(), note]);
        assert!(sheet.text().contains("Times\n") && sheet.text().ends_with("(1) no | GPU\n"), "{}", sheet.text());
        assert_eq!(sheet.markdown(), "Times:\n\n| N | ours |\n| --- | --- |\n| 512 | (1) |\n\n(1) no | GPU\n");
    }

    #[test]
    fn numbers_have_the_digits_that_tell_something() {
        assert_eq!([0.0319, 3.056, 133.2, 4096.4].map(number), ["0.032", "3.06", "133.2", "4096"]);
        assert_eq!([512.0, 2048.0, 11.58e9].map(bytes), ["512 B", "2.00 KiB", "11.58 GB"]);
    }
}
