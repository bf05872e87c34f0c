//! The pages of `docs/repro` hold the tables that a run on a GPU prints, column for column and row
//! for row. Figures are not compared: they are of the machine and the day.

use std::path::Path;

use super::experiment::{Section, Unit, Work};
use super::results::{ClaimResults, Code, Counted, Figures, Results, TableResults};
use super::runner::Mode;
use super::sheet::{Sheet, sheets};
use super::{EXPERIMENTS, Experiment, files};

/// What a run on a GPU would print, with the same figures in every cell, and no claim.
fn imagined(experiment: &Experiment) -> Results {
    let mut results = Results {
        device: "a GPU".to_owned(),
        mode: Mode::Timed,
        torch: Some("2.0".to_owned()),
        tables: Vec::new(),
        claims: Vec::new(),
        failure: None,
    };
    for section in (experiment.sections)() {
        match section {
            Section::Claims(claims) => {
                let (text, all) = (String::new(), Vec::new());
                results.claims.push(ClaimResults { caption: claims.caption, text, claims: all });
            }
            Section::Table(table) => {
                let is_counted = table.style == super::experiment::Style::Steps;
                let cells = table.rows.iter().map(|row| {
                    let figures = |work: &Work| match work {
                        Work::Ours(sequence) => figures(sequence.launches.len(), row.label.as_str(), is_counted),
                        Work::Peer(_) => Figures { time: Some((1.0, 1.0, 1)), memory: Some((1.0, None)), ..Figures::default() },
                    };
                    row.cells.iter().map(|cell| Ok(figures(&cell.work))).collect()
                });
                let cells = cells.collect();
                results.tables.push(TableResults { table, cells });
            }
        }
    }
    results
}

fn figures(launches: usize, shape: &str, is_counted: bool) -> Figures {
    let code = Code {
        schedule: String::new(),
        origin: "tuned".to_owned(),
        registers: Some(128),
        spills: Some(0),
        shared_bytes: 1024,
        threads: 128,
        occupancy: (0.5, "registers".to_owned()),
    };
    Figures {
        shape: shape.to_owned(),
        time: Some((1.0, 1.0, 1)),
        flops: 1e9,
        memory: Some((1024.0, Some(1024.0))),
        max_error: Some(1e-4),
        code: vec![code; launches],
        counted: is_counted.then(Counted::default),
        traffic: Some((1 << 20, 1 << 20)),
        tensors: Some((1 << 20, 1 << 20)),
        intensity: 10.0,
        peak: Some((1e12, 1e12)),
    }
}

/// A table as a page shows it: title without the machine, columns, and the first cell of each row.
#[derive(PartialEq, Eq, Debug)]
struct Shown {
    title: String,
    columns: Vec<String>,
    rows: Vec<String>,
}

fn without_machine(title: &str) -> String {
    title.split("; ours on ").next().unwrap_or(title).trim_end_matches(':').to_owned()
}

impl Shown {
    fn of(sheet: &Sheet) -> Self {
        let rows = sheet.rows.iter().map(|row| row[0].clone()).collect();
        Self { title: without_machine(&sheet.title), columns: sheet.header.clone(), rows }
    }

    /// Every table of a block of a page.
    fn all(block: &str) -> Vec<Self> {
        let cells = |line: &str| -> Vec<String> {
            let inside = line.trim().trim_start_matches('|').strip_suffix('|').unwrap_or_default();
            inside.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let lines: Vec<&str> = block.lines().collect();
        let mut all: Vec<Self> = Vec::new();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("| ---")) {
            let title = lines[..at - 1].iter().rev().find(|line| !line.is_empty()).copied().unwrap_or_default();
            let rows = lines[at + 1..].iter().take_while(|line| line.starts_with('|')).map(|line| cells(line).remove(0));
            all.push(Self { title: without_machine(title), columns: cells(lines[at - 1]), rows: rows.collect() });
        }
        all
    }
}

/// What stands on a page between the lines that `bench/paste.py` replaces.
fn block(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/repro/{name}.md"));
    let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let inside = page.split_once(&format!("<!-- begin: {name} -->\n")).and_then(|(_, rest)| {
        let (inside, _) = rest.split_once(&format!("<!-- end: {name} -->\n"))?;
        Some(inside.to_owned())
    });
    inside.unwrap_or_else(|| panic!("{}: no lines `<!-- begin: {name} -->` and `<!-- end: {name} -->`", path.display()))
}

#[test]
fn pages_have_the_tables_that_are_printed() {
    for experiment in EXPERIMENTS {
        let printed: Vec<Shown> = sheets(&imagined(experiment)).iter().map(Shown::of).collect();
        let on_page = Shown::all(&block(experiment.name));
        let titles = |all: &[Shown]| all.iter().map(|shown| shown.title.clone()).collect::<Vec<_>>();
        assert_eq!(titles(&on_page), titles(&printed), "tables of docs/repro/{}.md", experiment.name);
        for (page, printed) in on_page.iter().zip(&printed) {
            let place = format!("docs/repro/{}.md, `{}`", experiment.name, page.title);
            assert_eq!(page.columns, printed.columns, "columns of {place}");
            // Claims are not run here, and of what ran the same one row is printed.
            if !printed.rows.is_empty() && !printed.columns.contains(&"shape".to_owned()) {
                assert_eq!(page.rows, printed.rows, "rows of {place}");
            }
        }
    }
}

#[test]
fn a_table_of_a_page_is_read() {
    let block = "Times, in ms; ours on X:\n\n| N | ours |\n| --- | --- |\n| 512 | 1 |\n| 1024 | 2 |\n\n(1) a note\n";
    let text = |all: &[&str]| all.iter().map(|&t| t.to_owned()).collect::<Vec<_>>();
    let rows = text(&["512", "1024"]);
    assert_eq!(Shown::all(block), [Shown { title: "Times, in ms".to_owned(), columns: text(&["N", "ours"]), rows }]);
}

#[test]
fn timed_steps_are_drawn_under_the_roof() {
    let archaeology = EXPERIMENTS.iter().find(|e| e.name == "archaeology").expect("in the table");
    let results = imagined(archaeology);
    let all = files(archaeology, &results);
    let svg = |name: &str| all.iter().find(|(file, _)| file == name).map(|(_, svg)| svg.clone());
    let drawn = svg("archaeology-f32-roofline.svg").expect("drawn for a table of steps");
    assert_eq!(drawn.matches("class=\"roof\"").count(), 1);
    assert_eq!(drawn.matches("class=\"step\"").count(), 8, "seven versions and the tuned one; a peer has no bytes");
    assert!(!drawn.contains("NaN") && !drawn.contains("inf\""), "{drawn}");
    let untimed = Results { mode: Mode::Checked, ..imagined(archaeology) };
    let without = |mut results: Results| {
        results.tables.iter_mut().flat_map(|t| t.cells.iter_mut().flatten().flatten()).for_each(|f| f.time = None);
        files(archaeology, &results).len()
    };
    assert_eq!(without(untimed), all.len() - 2, "nothing is drawn of what was not timed");
}

/// Rows whose schedules are fixed are legal on every architecture, or it lacks something that the
/// row is about.
#[test]
fn fixed_rows_are_legal_or_lacking_on_every_architecture() {
    use super::experiment::{How, defaults};
    use flashtile::{ARCHS, Facts, lowering};
    let mut lacking = std::collections::BTreeSet::new();
    for arch in ARCHS {
        for experiment in EXPERIMENTS {
            let sections = (experiment.sections)();
            let tables = sections.iter().filter_map(|s| if let Section::Table(table) = s { Some(table) } else { None });
            for cell in tables.flat_map(|table| &table.rows).flat_map(|row| &row.cells) {
                let Work::Ours(sequence) = &cell.work else { continue };
                for launch in &sequence.launches {
                    let How::Knobs(knobs) = &launch.how else { continue };
                    if let Some(why) = launch.lacks(arch).expect("knobs") {
                        lacking.insert((arch.name, why));
                        continue;
                    }
                    let schedule = defaults(arch).with(knobs).expect("knobs");
                    let kernel = launch.kernel.open().expect("a kernel");
                    let (consts, _) = launch.split(&kernel);
                    let bound = kernel.bind(launch.elem, consts).expect("binds");
                    let instance = bound.instance(Facts::best(bound.ir()));
                    lowering::check(&instance, &schedule, arch)
                        .unwrap_or_else(|e| panic!("{} {} on {arch}: {e}", experiment.name, cell.series));
                }
            }
        }
    }
    let of = |name: &str| lacking.iter().filter(|(arch, _)| *arch == name).map(|(_, why)| why.as_str()).collect::<Vec<_>>();
    // Kernel 02 of the ladder keeps a tile of queries and tiles of 128 keys and values.
    let too_large = "it needs 80 KiB of shared memory, a block has 64";
    assert_eq!(of("sm_75"), ["it has no clusters", "it has no cp.async", too_large]);
    assert_eq!(of("sm_80"), ["it has no clusters"]);
    assert!(!lacking.iter().any(|(arch, _)| *arch == "sm_90a"), "{lacking:?}");
}

/// The units of traffic are two: what tensors hold, and what programs ask for.
#[test]
fn traffic_has_two_units() {
    let figures = Figures { traffic: Some((3 << 20, 1 << 20)), tensors: Some((1 << 20, 1 << 20)), ..Figures::default() };
    assert_eq!(figures.in_unit(Unit::AskedTraffic), Some(4.0));
    assert_eq!(figures.in_unit(Unit::TensorTraffic), Some(2.0));
}
