//! Every candidate, best first: its time as a bar and in a table, and why it was or was not
//! measured.

use flashtile::Schedule;
use flashtile::cache::Candidate;

use super::chart::{key, percent};
use super::evidence::{Fate, fate, order, time, verdict};
use super::markup::{Attributes, Column, Markup};
use super::tuning::Tuning;
use crate::output::seconds;

/// Pixels from bar to bar.
const STEP: usize = 18;
/// Bars: left and the longest, in percent; numbers are left of them and times right.
const LEFT: f64 = 9.0;
const LONGEST: f64 = 58.0;

/// A candidate in its place on the page.
struct Row<'a> {
    candidate: &'a Candidate,
    /// From 1.
    place: usize,
    fate: Fate,
}

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let rows = rows(tuning);
    let (refused, others): (Vec<Row<'_>>, Vec<Row<'_>>) = rows.into_iter().partition(|row| row.fate == Fate::Refused);
    let (skipped, others): (Vec<Row<'_>>, Vec<Row<'_>>) = others.into_iter().partition(|row| row.fate == Fate::Skipped);
    let kind = match tuning.predicted {
        true => "Times are the cost model's predictions.",
        false => "Times are medians of single runs; the few best were timed under load too, which decides among them.",
    };
    let has_failed = others.iter().any(|row| row.fate == Fate::Failed);
    let failed = if has_failed { " The bar of a candidate that failed is as long as the model predicted." } else { "" };
    page.paragraph(format!("{kind}{failed}"));
    bars(tuning, &others, page);
    table(tuning, &others, page);
    if !skipped.is_empty() {
        page.element("details", &[], |page| {
            page.words("summary", &[], format!("Not tried: {}", skipped.len()));
            bars(tuning, &skipped, page);
            table(tuning, &skipped, page);
        });
    }
    if !refused.is_empty() {
        page.element("details", &[], |page| {
            page.words("summary", &[], format!("Refused before there was code: {}", refused.len()));
            table(tuning, &refused, page);
        });
    }
}

/// All candidates: the winner, those with a time from fast to slow, those that were not tried and
/// those that are out by what the model predicts.
fn rows(tuning: &Tuning) -> Vec<Row<'_>> {
    let of = |(index, candidate)| Row { candidate, place: 0, fate: fate(candidate, tuning.winner == Some(index)) };
    let mut rows: Vec<Row<'_>> = tuning.candidates.iter().enumerate().map(of).collect();
    rows.sort_by(|a, b| a.fate.cmp(&b.fate).then_with(|| order(a.candidate, b.candidate)));
    for (place, row) in (1..).zip(&mut rows) {
        row.place = place;
    }
    rows
}

/// The time as a bar and as text, the winner first.
fn bars(tuning: &Tuning, rows: &[Row<'_>], page: &mut Markup) {
    let drawn: Vec<&Row<'_>> = rows.iter().filter(|row| time(row.candidate).is_finite()).collect();
    let longest = drawn.iter().map(|row| time(row.candidate)).fold(0.0, f64::max);
    if longest <= 0.0 {
        return;
    }
    let marks = drawn.iter().any(|row| row.candidate.measured.is_some());
    page.element("div", &[("class", &"box tall"), ("tabindex", &"0")], |page| {
        let height = drawn.len() * STEP + 6;
        let label = "The time of each candidate, best first";
        page.element("svg", &[("class", &"chart"), ("height", &height), ("role", &"img"), ("aria-label", &label)], |page| {
            for (line, row) in drawn.iter().enumerate() {
                bar(tuning, row, line * STEP, longest, page);
            }
        });
    });
    let measured = if tuning.predicted { "predicted" } else { "measured" };
    let kinds = [
        (Fate::Winner, "bar winner", "the winner"),
        (Fate::Slower, "bar", measured),
        (Fate::Skipped, "bar skipped", "not tried, predicted"),
        (Fate::Failed, "bar failed", "failed"),
    ];
    let there = kinds.iter().filter(|(fate, ..)| drawn.iter().any(|row| row.fate == *fate));
    let marked = marks.then_some(("mark predicted", "what the model predicts"));
    key(page, &there.map(|&(_, class, words)| (class, words)).chain(marked).collect::<Vec<_>>());
}

fn bar(tuning: &Tuning, row: &Row<'_>, top: usize, longest: f64, page: &mut Markup) {
    let length = |seconds: f64| LONGEST * (seconds / longest).min(1.0);
    let time = time(row.candidate);
    let class = match row.fate {
        Fate::Winner => "bar winner",
        Fate::Slower | Fate::Refused => "bar",
        Fate::Skipped => "bar skipped",
        Fate::Failed => "bar failed",
    };
    let words = match row.fate {
        Fate::Winner => format!("{}: winner", seconds(time)),
        Fate::Failed => "failed".to_owned(),
        Fate::Skipped => format!("{}, not tried", seconds(time)),
        Fate::Slower | Fate::Refused => seconds(time),
    };
    let (left, width, baseline) = (percent(LEFT), percent(length(time)), top + 14);
    page.words("text", &[("x", &percent(LEFT - 1.0)), ("y", &baseline), ("text-anchor", &"end")], row.place);
    let place: Attributes<'_> = &[("class", &class), ("x", &left), ("y", &(top + 3)), ("width", &width), ("height", &(STEP - 4))];
    page.element("rect", place, |page| page.words("title", &[], told(tuning, row.candidate)));
    let predicted = row.candidate.predicted;
    if row.candidate.measured.is_some() && predicted.is_finite() {
        let (at, end) = (percent(LEFT + length(predicted)), top + STEP);
        page.leaf("line", &[("class", &"mark predicted"), ("x1", &at), ("x2", &at), ("y1", &(top + 2)), ("y2", &end)]);
    }
    let end = percent(LEFT + length(time));
    page.words("text", &[("x", &end), ("dx", &6), ("y", &baseline)], words);
}

fn told(tuning: &Tuning, candidate: &Candidate) -> String {
    format!("{}; {}", verdict(candidate, tuning.winning(), &tuning.ended), candidate.schedule)
}

fn table(tuning: &Tuning, rows: &[Row<'_>], page: &mut Markup) {
    let (from, whose) = match tuning.winning() {
        Some(winner) => (winner.schedule.clone(), "the winner"),
        None => (Schedule::default(), "the defaults"),
    };
    let differs = format!("differs from {whose} in");
    let all: Vec<[Option<String>; 6]> = tuning.candidates.iter().map(numbers).collect();
    // What nobody has, such as measured times where there was no GPU, takes no column.
    let shown: Vec<usize> = (0..NUMBERS.len()).filter(|&n| all.iter().any(|numbers| numbers[n].is_some())).collect();
    let numbered = std::iter::once("").chain(shown.iter().map(|&n| NUMBERS[n])).map(Column::Number);
    let columns: Vec<Column<'_>> = numbered.chain([Column::Words("why"), Column::Words(&differs)]).collect();
    page.table(&columns, |page| {
        for Row { candidate, place, fate } in rows {
            let class = match fate {
                Fate::Winner => "winner",
                Fate::Slower => "slower",
                Fate::Skipped => "skipped",
                Fate::Failed => "failed",
                Fate::Refused => "refused",
            };
            page.element("tr", &[("class", &class)], |page| {
                page.words("td", &[("class", &"number")], place);
                let numbers = numbers(candidate);
                for &n in &shown {
                    page.words("td", &[("class", &"number")], numbers[n].as_deref().unwrap_or("-"));
                }
                page.words("td", &[("class", &"why")], verdict(candidate, tuning.winning(), &tuning.ended));
                let schedule = match fate {
                    Fate::Winner => candidate.schedule.to_string(),
                    _ => candidate.schedule.difference(&from).join(","),
                };
                page.words("td", &[("class", &"schedule")], schedule.replace(',', ", "));
            });
        }
    });
}

/// Names of what [`numbers`] gives.
const NUMBERS: [&str; 6] = ["time", "under load", "predicted", "max error", "registers", "spills"];

/// Times, error and resources of a candidate, as far as they are known.
fn numbers(candidate: &Candidate) -> [Option<String>; 6] {
    let report = candidate.report.as_ref();
    [
        candidate.measured.as_ref().map(|m| seconds(m.median)),
        candidate.under_load.as_ref().map(|m| seconds(m.median)),
        candidate.predicted.is_finite().then(|| seconds(candidate.predicted)),
        candidate.max_error.map(|error| format!("{error:.1e}")),
        report.map(|r| r.registers.to_string()),
        report.map(|r| (r.spill_stores + r.spill_loads).to_string()),
    ]
}
