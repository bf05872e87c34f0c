//! The largest error of each candidate beside its time.

use flashtile::cache::Candidate;

use super::chart::{Axis, Scale, key, plot, short};
use super::evidence::{Fate, fate, time, verdict};
use super::markup::Markup;
use super::tuning::Tuning;
use crate::output::seconds;

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let with_error = tuning.candidates.iter().enumerate().filter_map(|(index, candidate)| {
        let is_drawn = time(candidate).is_finite();
        Some((candidate, candidate.max_error.filter(|_| is_drawn)?, fate(candidate, tuning.winner == Some(index))))
    });
    let mut points: Vec<(&Candidate, f64, Fate)> = with_error.collect();
    let inputs = match tuning.predicted {
        true => "of the small call that the emulator ran; times are predicted",
        false => "of the call that was timed",
    };
    page.paragraph(format!(
        "The largest error of any output against the float64 oracle, {inputs}. A candidate that failed its check was not timed: \
         it stands at its predicted time."
    ));
    if points.is_empty() {
        return page.paragraph("No candidate was compared with the oracle.");
    }
    // The winner last, over the others.
    points.sort_by_key(|(_, _, fate)| std::cmp::Reverse(*fate));
    let has_zero = points.iter().any(|(_, error, _)| *error <= 0.0);
    let y = Scale::logarithmic(points.iter().map(|(_, error, _)| *error), if has_zero { 10.0 } else { 2.0 });
    let x = Scale::logarithmic(points.iter().map(|(candidate, ..)| time(candidate)), 1.1);
    let across = Axis { name: if tuning.predicted { "predicted time" } else { "time" }, scale: x, text: &axis_time };
    let down = Axis { name: "largest error", scale: y, text: &short };
    plot(page, "The largest error of each candidate over its time", &across, &down, |plot| {
        for (candidate, error, fate) in &points {
            let class = match fate {
                Fate::Winner => "point winner",
                Fate::Failed => "point failed",
                _ => "point",
            };
            let verdict = verdict(candidate, tuning.winning(), &tuning.ended);
            let title = format!("{error:.2e} in {}; {verdict}; {}", seconds(time(candidate)), candidate.schedule);
            plot.point((time(candidate), *error), class, &title);
        }
    });
    key(page, &[("point winner", "the winner"), ("point", "right"), ("point failed", "failed")]);
    if has_zero {
        page.paragraph("An error of 0 stands at the lower edge.");
    }
}

fn axis_time(time: f64) -> String {
    match time {
        t if t >= 1.0 => format!("{} s", short(t)),
        t if t >= 1e-3 => format!("{} ms", short(t * 1e3)),
        t => format!("{} us", short(t * 1e6)),
    }
}
