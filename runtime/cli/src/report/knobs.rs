//! What each value of each knob comes to: the best and the median time of the candidates that have
//! it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use flashtile::Schedule;
use flashtile::cache::Candidate;
use flashtile_codegen::KNOBS;

use super::chart::percent;
use super::evidence::{in_the_race, time};
use super::markup::{Column, Markup};
use super::tuning::Tuning;
use crate::output::seconds;

/// What a launch beside the main one has where a schedule does not say.
const BY_ITSELF: &str = "by itself";

/// Candidates with a value.
#[derive(Default)]
struct Effect {
    /// Times of those that have one, shortest first.
    times: Vec<f64>,
    /// Those that are out.
    out: usize,
}

impl Effect {
    fn best(&self) -> Option<f64> {
        self.times.first().copied()
    }

    fn median(&self) -> Option<f64> {
        let (count, middle) = (self.times.len(), self.times.len() / 2);
        match count % 2 {
            _ if count == 0 => None,
            0 => Some((self.times[middle - 1] + self.times[middle]) / 2.0),
            _ => Some(self.times[middle]),
        }
    }
}

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let schedules = tuning.candidates.iter().map(|candidate| &candidate.schedule);
    let beside: BTreeSet<(String, &str)> = schedules.flat_map(beside).map(|(launch, knob, _)| (launch, knob)).collect();
    let of_main = KNOBS.iter().map(|knob| (knob.name.to_owned(), knob.get));
    let mut effects: Vec<(String, Vec<(String, Effect)>)> =
        of_main.map(|(name, get)| (name, effects(tuning, |candidate| get(&candidate.schedule)))).collect();
    effects.extend(beside.iter().map(|(launch, knob)| {
        let value = |candidate: &Candidate| {
            let mut of_launch = beside_of(&candidate.schedule, launch, knob);
            of_launch.next().unwrap_or_else(|| BY_ITSELF.to_owned())
        };
        (format!("{launch}.{knob}"), self::effects(tuning, value))
    }));
    let (varied, same): (Vec<_>, Vec<_>) = effects.into_iter().partition(|(_, values)| values.len() > 1);
    let kind = if tuning.predicted { "predicted" } else { "measured" };
    page.paragraph(format!(
        "The best and the median {kind} time of the candidates that have a value, whatever their other knobs. In brackets: \
         how much longer than the best of all. Bars: best (filled) and median (line), over the slowest median."
    ));
    if varied.is_empty() {
        page.paragraph("All candidates have the same knobs.");
    } else {
        table(tuning, &varied, page);
    }
    if !same.is_empty() {
        let names: Vec<String> = same.iter().filter_map(|(name, values)| Some(format!("{name}={}", values.first()?.0))).collect();
        page.paragraph(format!("All candidates have {}.", names.join(", ")));
    }
}

/// Knobs of the launches beside the main one that a schedule gives: launch, knob, value.
fn beside(schedule: &Schedule) -> impl Iterator<Item = (String, &'static str, String)> {
    schedule
        .beside
        .iter()
        .flat_map(|(launch, overrides)| overrides.iter().map(move |(knob, value)| (launch.clone(), knob, value.to_owned())))
}

fn beside_of(schedule: &Schedule, launch: &str, knob: &str) -> impl Iterator<Item = String> {
    beside(schedule).filter(move |(of, name, _)| of == launch && *name == knob).map(|(.., value)| value)
}

/// The values of a knob in their order, each with the candidates that have it.
fn effects(tuning: &Tuning, value: impl Fn(&Candidate) -> String) -> Vec<(String, Effect)> {
    let mut found: BTreeMap<String, Effect> = BTreeMap::new();
    for candidate in &tuning.candidates {
        let effect = found.entry(value(candidate)).or_default();
        // Where there are measured times, predicted ones are not mixed with them.
        let is_timed = in_the_race(candidate) && (tuning.predicted || candidate.measured.is_some());
        if is_timed && time(candidate).is_finite() {
            effect.times.push(time(candidate));
        } else {
            effect.out += 1;
        }
    }
    let mut values: Vec<(String, Effect)> = found.into_iter().collect();
    values.iter_mut().for_each(|(_, effect)| effect.times.sort_by(f64::total_cmp));
    values.sort_by(|a, b| by_value(&a.0, &b.0));
    values
}

/// Numbers by their size, other values by their letters.
fn by_value(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

fn table(tuning: &Tuning, varied: &[(String, Vec<(String, Effect)>)], page: &mut Markup) {
    let all = || varied.iter().flat_map(|(_, values)| values);
    let slowest = all().filter_map(|(_, effect)| effect.median()).fold(0.0, f64::max);
    let fastest = all().filter_map(|(_, effect)| effect.best()).fold(f64::INFINITY, f64::min);
    let told = |time: f64| format!("{} (+{:.1}%)", seconds(time), 100.0 * (time / fastest - 1.0));
    let words = [Column::Words("knob"), Column::Words("value")];
    let numbers = [Column::Number("timed"), Column::Number("best"), Column::Number("median")];
    let rest = [Column::Words(""), Column::Number("not timed"), Column::Words("")];
    page.table(&[&words[..], &numbers, &rest].concat(), |page| {
        for (name, values) in varied {
            for (number, (value, effect)) in values.iter().enumerate() {
                let class = if number == 0 { "first" } else { "" };
                page.element("tr", &[("class", &class)], |page| {
                    page.words("td", &[], if number == 0 { name.as_str() } else { "" });
                    page.words("td", &[], value);
                    page.words("td", &[("class", &"number")], effect.times.len());
                    for time in [effect.best(), effect.median()] {
                        page.words("td", &[("class", &"number")], time.map_or_else(|| "-".to_owned(), told));
                    }
                    page.element("td", &[], |page| bar(effect, slowest, page));
                    page.words("td", &[("class", &"number")], effect.out);
                    page.words("td", &[("class", &"mark")], if has(tuning, name, value) { "winner" } else { "" });
                });
            }
        }
    });
}

/// Whether the winner has this value of a knob.
fn has(tuning: &Tuning, name: &str, value: &str) -> bool {
    let Some(winner) = tuning.winning() else { return false };
    match name.split_once('.') {
        Some((launch, knob)) => beside_of(&winner.schedule, launch, knob).next().as_deref().unwrap_or(BY_ITSELF) == value,
        None => KNOBS.iter().any(|knob| knob.name == name && (knob.get)(&winner.schedule) == value),
    }
}

fn bar(effect: &Effect, slowest: f64, page: &mut Markup) {
    let (Some(best), Some(median)) = (effect.best(), effect.median()) else { return };
    let at = |time: f64| percent((99.0 * time / slowest).min(99.0));
    page.element("svg", &[("class", &"small"), ("width", &120), ("height", &12), ("aria-hidden", &"true")], |page| {
        page.leaf("rect", &[("class", &"bar"), ("x", &0), ("y", &1), ("width", &at(best)), ("height", &10)]);
        page.leaf("line", &[("class", &"mark"), ("x1", &at(median)), ("x2", &at(median)), ("y1", &0), ("y2", &12)]);
    });
}
