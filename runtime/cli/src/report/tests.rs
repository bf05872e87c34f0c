use std::collections::BTreeMap;
use std::path::Path;

use flashtile::Elem;
use flashtile::cache::{Candidate, Measurement, Outcome, Stage};
use flashtile::lowering::{LaunchTerms, StepTerms, TimeTerms};
use flashtile::toolchain::PtxasReport;
use flashtile_codegen::plan::SharedTile;
use flashtile_codegen::{Resources, Schedule, SharedLayout};
use flashtile_dsl::analysis::cost;
use roxmltree::{Document, Node, ParsingOptions};

use super::page;
use super::tuning::{Tuning, Won, WonLaunch, Work};

/// Text that a page must not take for markup.
const HOSTILE: &str = "<script src=\"http://elsewhere/\">a && b</script>\u{1b}";

fn candidate(schedule: &str, predicted: f64, outcome: Outcome) -> Candidate {
    Candidate { outcome, ..Candidate::new(schedule.parse().expect("a schedule"), predicted) }
}

fn timed(schedule: &str, median: f64, outcome: Outcome) -> Candidate {
    Candidate {
        measured: Some(Measurement { median, min: 0.98 * median, repetitions: 10 }),
        max_error: Some(1.5e-3),
        report: Some(PtxasReport { registers: 168, ..PtxasReport::default() }),
        ..candidate(schedule, 0.9 * median, outcome)
    }
}

fn rejected(schedule: &str, stage: Stage, reason: &str) -> Candidate {
    let predicted = if stage == Stage::Legality { f64::INFINITY } else { 2.5e-4 };
    candidate(schedule, predicted, Outcome::Rejected { stage, reason: reason.to_owned() })
}

fn step(trips: f64, cycles: f64) -> StepTerms {
    let share = |part: f64| part * cycles;
    StepTerms {
        trips,
        cycles,
        issue: share(0.25),
        tensor: share(0.75),
        special: share(0.5),
        shared: share(0.125),
        copies: share(0.375),
    }
}

fn won() -> Won {
    let launch = LaunchTerms {
        name: "kernel_main".to_owned(),
        begin: 4e-6,
        seconds: 2e-4,
        compute: 1.9e-4,
        memory: 3e-5,
        meeting: 0.0,
        bytes: 2.5e8,
        programs: 1024.0,
        resident: 1,
        slots: 132.0,
        program_cycles: 21000.0,
        cut_cycles: 1000.0,
        outside: step(1.0, 4000.0),
        steps: vec![step(8.0, 2000.0)],
    };
    let tile = SharedTile {
        name: "k_0".to_owned(),
        elem: Elem::Bf16,
        rows: 64,
        columns: 64,
        pitch: 128,
        layout: SharedLayout::Xor,
        slabs: 1,
        woven: false,
        slots: 2,
        offset: 0,
        warp_private: false,
        barriers: None,
        exchange: None,
    };
    Won {
        plan: format!("plan {HOSTILE}\n  wait 1 < 2\n"),
        terms: TimeTerms { launches: vec![launch], main: 0, seconds: 2.04e-4 },
        launches: vec![WonLaunch {
            name: "kernel_main".to_owned(),
            predicted: Resources { shared_bytes: 98304, registers: 160, threads: 384, blocks_per_sm: 1, ..Resources::default() },
            registers: Some(168),
            tiles: vec![tile],
        }],
    }
}

/// A search with a candidate of each kind.
fn tuning() -> Tuning {
    let faster_alone = Candidate {
        under_load: Some(Measurement { median: 2.3e-4, min: 2.2e-4, repetitions: 5 }),
        ..timed("block_m=128,stages=3", 2.05e-4, Outcome::Measured)
    };
    let winner = Candidate {
        under_load: Some(Measurement { median: 2.2e-4, min: 2.1e-4, repetitions: 5 }),
        ..timed("block_m=128", 2.1e-4, Outcome::Measured)
    };
    let wrong = Candidate { max_error: Some(0.75), ..rejected("block_m=32", Stage::Check, "o[0, 1]: an error is too large") };
    let candidates = vec![
        faster_alone,
        winner,
        timed("block_m=64,stages=4", 6.3e-4, Outcome::Eliminated { round: 1 }),
        wrong,
        rejected("stages=4", Stage::Spills, "96 bytes of spills, 64 are allowed"),
        candidate("block_m=16", 9e-4, Outcome::NotTried),
        rejected("block_m=24", Stage::Legality, HOSTILE),
    ];
    Tuning {
        kernel: format!("kernel {HOSTILE}"),
        about: vec![("device", "a GPU & more".to_owned())],
        arch: "sm_90a".to_owned(),
        predicted: false,
        ended: "the budget is spent".to_owned(),
        bytes: [2.5e8, 2.5e8, 5e8].map(Some).into_iter().chain([None; 4]).collect(),
        candidates,
        winner: Some(1),
        work: Work { flops: 1.375e11, special: 2.7e8, bytes: 1.34e8, exact: true },
        peak: cost::Machine { flops: 9.2e14, bytes_per_s: 4.3e12, special_per_s: 3.6e12 },
        won: Some(won()),
    }
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}\n{page}"))
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|part| part.text()).collect()
}

/// Rows of the table of candidates that have a class, as text.
fn rows(document: &Document<'_>, class: &str) -> Vec<String> {
    let rows = document.descendants().filter(|node| node.has_tag_name("tr") && node.attribute("class") == Some(class));
    rows.map(text).collect()
}

/// What a page would load or run, if anything.
fn foreign(document: &Document<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        if ["script", "link", "img", "image", "iframe", "object", "embed", "base", "use"].contains(&name) {
            found.push(name.to_owned());
        }
        let is_away = |name: &str, value: &str| match name {
            "href" => !value.starts_with('#'),
            "src" | "srcset" | "data" | "action" => true,
            name => name.starts_with("on") || value.contains("url(") || value.contains("javascript:"),
        };
        let away = node.attributes().filter(|a| is_away(a.name(), a.value()));
        found.extend(away.map(|a| format!("{}={}", a.name(), a.value())));
        if name == "style" {
            let style = text(node);
            found.extend(["url(", "@import", "http"].iter().filter(|word| style.contains(**word)).map(|word| (*word).to_owned()));
        }
    }
    found
}

#[test]
fn the_page_of_a_fixed_search_is_as_before() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report/page.html");
    let found = page(&[tuning()]);
    if std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&golden, &found).expect("writes");
    }
    let expected = std::fs::read_to_string(&golden).expect("the golden page");
    let differ = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(found == expected, "{} says otherwise (FLASHTILE_BLESS=1 writes it anew): {differ:?}", golden.display());
}

#[test]
fn the_page_is_well_formed_and_takes_nothing_from_elsewhere() {
    let predicted = Tuning { predicted: true, ..tuning() };
    let without = Tuning { winner: None, won: None, ..tuning() };
    let no_products = Tuning { work: Work { flops: 0.0, ..tuning().work }, ..tuning() };
    for tunings in [vec![tuning(), tuning()], vec![predicted], vec![without], vec![no_products]] {
        let page = page(&tunings);
        let document = parsed(&page);
        assert_eq!(foreign(&document), [""; 0]);
        assert!(!page.contains("<script") && !page.contains(HOSTILE));
        // Whoever reads the page reads the text as it was, but for what has no form in XML.
        let heading = document.descendants().find(|node| node.has_tag_name("h1")).expect("a heading");
        assert_eq!(text(heading), format!("kernel {}", HOSTILE.replace('\u{1b}', "\u{fffd}")));
        let ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
        let links = document.descendants().filter_map(|node| node.attribute("href"));
        assert_eq!(links.map(|link| link.trim_start_matches('#')).collect::<Vec<_>>(), ids, "an anchor for every link");
        assert_eq!(ids.len(), 6 * tunings.len());
    }
}

/// The check of the check: each kind of what a page must not have is found.
#[test]
fn what_a_page_would_load_is_found() {
    let found = |inside: &str| foreign(&parsed(&format!("<!DOCTYPE html><html>{inside}</html>")));
    assert_eq!(found("<script>1</script>"), ["script"]);
    assert_eq!(found("<a href=\"https://elsewhere/\">a</a><a href=\"#here\">b</a>"), ["href=https://elsewhere/"]);
    assert_eq!(found("<p onclick=\"f()\">a</p><input src=\"x\"/>"), ["onclick=f()", "src=x"]);
    assert_eq!(found("<style>@import \"a\"; p { background: url(b) }</style>"), ["url(", "@import"]);
}

#[test]
fn a_candidate_with_wrong_results_shows_as_failed() {
    let page = page(&[tuning()]);
    let document = parsed(&page);
    let failed = rows(&document, "failed");
    assert_eq!(failed.len(), 2, "{failed:?}");
    let wrong = failed.iter().find(|row| row.contains("block_m=32")).expect("is listed");
    assert!(wrong.contains("it failed its check: o[0, 1]: an error is too large") && wrong.contains("7.5e-1"), "{wrong}");
    let points = document.descendants().filter(|node| node.attribute("class") == Some("point failed"));
    let points: Vec<String> = points.map(text).collect();
    assert!(points.iter().any(|point| point.starts_with("7.50e-1 in 250.00 us; not measured: it failed")), "{points:?}");
    let bars = document.descendants().filter(|node| node.attribute("class") == Some("bar failed") && node.has_children());
    assert_eq!(bars.count(), 2);
    // The same candidate with right results is none of these.
    let mut right = tuning();
    right.candidates[3] = timed("block_m=32", 5e-4, Outcome::Measured);
    let page = super::page(&[right]);
    let document = parsed(&page);
    assert_eq!(rows(&document, "failed").len(), 1);
}

#[test]
fn every_candidate_has_a_row_with_its_reason() {
    let page = page(&[tuning()]);
    let document = parsed(&page);
    let one = |class: &str| {
        let rows = rows(&document, class);
        assert!(!rows.is_empty(), "{class}");
        rows.join("\n").trim_start().to_owned()
    };
    // The run-off under load decides, not the time of a single run.
    assert!(one("winner").starts_with("1\n210.00 us\n220.00 us\n"), "{}", one("winner"));
    let slower = one("slower");
    assert!(slower.contains("as fast by itself, but slower than the winner under load"), "{slower}");
    assert!(slower.contains("slower: 3.0 times the winner's time; eliminated in round 1"), "{slower}");
    assert!(one("skipped").contains("not measured: the search ended before its turn (the budget is spent)"));
    assert!(one("failed").contains("it spills registers: 96 bytes of spills, 64 are allowed"));
    assert!(one("refused").contains("refused by the plan: <script"));
}

#[test]
fn candidates_that_were_not_measured_are_folded() {
    let page = page(&[tuning()]);
    let document = parsed(&page);
    let folded = |class: &str| {
        let rows = document.descendants().filter(|node| node.has_tag_name("tr") && node.attribute("class") == Some(class));
        rows.map(|row| row.ancestors().any(|node| node.has_tag_name("details"))).collect::<Vec<_>>()
    };
    assert_eq!(["winner", "failed"].map(folded), [vec![false], vec![false; 2]]);
    assert_eq!(["skipped", "refused"].map(folded), [vec![true], vec![true]]);
    let named: Vec<String> = document.descendants().filter(|node| node.has_tag_name("summary")).map(text).collect();
    assert!(named.contains(&"Not tried: 1".to_owned()), "{named:?}");
}

#[test]
fn one_candidate_was_and_several_were() {
    let lead = |tuning: Tuning| {
        let page = page(&[tuning]);
        let document = parsed(&page);
        text(document.descendants().find(|node| node.attribute("class") == Some("lead")).expect("a summary"))
    };
    let several = lead(tuning());
    assert!(several.contains("Of 7 candidates, 2 were slower, 1 was not tried, 2 failed, 1 was refused; "), "{several}");
    let alone = Tuning { candidates: vec![tuning().candidates.remove(1)], winner: Some(0), ..tuning() };
    assert!(lead(alone).contains("Of 1 candidate, 0 were slower"));
}

/// The names of roofs that lie close to each other stand on the sides that are apart.
#[test]
fn no_roof_strikes_the_name_of_another() {
    for special in [1e7, 2e8, 2.7e8, 3e8, 5e8, 6e8, 9e9] {
        let page = page(&[Tuning { work: Work { special, ..tuning().work }, ..tuning() }]);
        let document = parsed(&page);
        let number = |node: Node<'_, '_>, name: &str| node.attribute(name).map(|y| y.parse::<f64>().expect("pixels"));
        let roofs = document.descendants().filter(|n| n.attribute("class").is_some_and(|class| class.starts_with("roof")));
        let level = roofs.filter(|n| n.attribute("y1").is_some() && n.attribute("y1") == n.attribute("y2"));
        let level: Vec<f64> = level.filter(|n| n.attribute("x2") != Some("14")).filter_map(|n| number(n, "y1")).collect();
        assert_eq!(level.len(), 2, "{special}");
        let notes: Vec<_> = document.descendants().filter(|n| n.attribute("class") == Some("note")).collect();
        assert_eq!(notes.len(), 2, "{special}");
        for note in notes {
            let base = number(note, "y").expect("a place");
            // Letters of 12 pixels reach from 9 above the base to 3 below it.
            let struck = level.iter().filter(|y| (base - 10.0..=base + 4.0).contains(*y)).count();
            assert_eq!(struck, 0, "{special}: `{}` at {base} over {level:?}", text(note));
        }
    }
}

#[test]
fn the_effect_of_a_knob_is_the_best_and_the_median() {
    let page = page(&[tuning()]);
    let document = parsed(&page);
    let section = document.descendants().find(|node| node.attribute("id") == Some("knobs-0")).expect("a section");
    let cells: Vec<Vec<String>> = section
        .descendants()
        .filter(|node| node.has_tag_name("tr"))
        .map(|row| row.children().filter(|cell| cell.has_tag_name("td")).map(|cell| text(cell).trim().to_owned()).collect())
        .collect();
    let of = |value: &str| -> Vec<&str> {
        let rows = cells.iter().skip_while(|row| row.first().is_none_or(|name| name != "block_m"));
        let row = rows.clone().find(|row| row.get(1).is_some_and(|v| v == value)).unwrap_or_else(|| panic!("{value}: {cells:?}"));
        row.iter().map(String::as_str).collect()
    };
    assert_eq!(of("128"), ["", "128", "2", "205.00 us (+0.0%)", "207.50 us (+1.2%)", "", "0", "winner"]);
    assert_eq!(of("64"), ["", "64", "1", "630.00 us (+207.3%)", "630.00 us (+207.3%)", "", "1", ""]);
    assert_eq!(of("16"), ["block_m", "16", "0", "-", "-", "", "1", ""], "numbers in their order");
    let stated = text(section);
    let same = Schedule::default().main.warps;
    assert!(stated.contains(&format!("warps={same}")), "knobs that do not vary are named: {stated}");
}

#[test]
fn predictions_are_told_as_predictions() {
    let measured = page(&[tuning()]);
    assert!(measured.contains("Rates are from measured times") && !measured.contains("no GPU was used"));
    let mut predicted = Tuning { predicted: true, ..tuning() };
    for candidate in &mut predicted.candidates {
        if candidate.measured.take().is_some() {
            candidate.outcome = Outcome::Predicted;
        }
        candidate.under_load = None;
    }
    let predicted = page(&[predicted]);
    assert!(predicted.contains("Nothing here was measured: no GPU was used") && predicted.contains("189.00 us (predicted;"));
    assert!(predicted.contains("predicted time") && !predicted.contains("what the model predicts<"), "no marks beside bars");
}

#[test]
fn launches_beside_the_main_one_are_knobs_too() {
    let mut tuning = tuning();
    tuning.candidates[0].schedule = "block_m=128,split_k=4,combine.warps=2".parse().expect("a schedule");
    tuning.candidates[1].schedule = "block_m=128,split_k=4".parse().expect("a schedule");
    let page = page(&[tuning]);
    let document = parsed(&page);
    let cells: BTreeMap<String, usize> = document
        .descendants()
        .filter(|node| node.has_tag_name("td") && ["combine.warps", "by itself"].contains(&text(*node).as_str()))
        .fold(BTreeMap::new(), |mut counts, node| {
            *counts.entry(text(node)).or_default() += 1;
            counts
        });
    assert_eq!(cells, [("by itself".to_owned(), 1), ("combine.warps".to_owned(), 1)].into());
}
