//! The rate of each candidate over its FLOPs per byte of global memory, under the roof of the
//! machine.

use super::chart::{Axis, Scale, Side, key, plot, short};
use super::evidence::{in_the_race, time};
use super::markup::Markup;
use super::tuning::Tuning;
use crate::output::seconds;

/// A candidate under the roof.
struct Point {
    index: usize,
    /// FLOPs per byte.
    intensity: f64,
    /// TFLOP/s.
    rate: f64,
}

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let (work, peak) = (&tuning.work, &tuning.peak);
    page.paragraph(origin(tuning));
    if work.flops <= 0.0 {
        return without_products(tuning, page);
    }
    let timed = tuning.candidates.iter().enumerate().filter(|(_, c)| in_the_race(c) && time(c).is_finite());
    let points: Vec<Point> = timed
        .clone()
        .filter_map(|(index, candidate)| {
            let intensity = work.flops / tuning.bytes.get(index).copied().flatten()?;
            Some(Point { index, intensity, rate: work.flops / time(candidate) / 1e12 })
        })
        .collect();
    let unknown = timed.count() - points.len();
    if points.is_empty() {
        return page.paragraph("No candidate has a time, so that there is no point.");
    }
    let ridge = peak.flops / peak.bytes_per_s;
    let roof = |intensity: f64| (intensity * peak.bytes_per_s).min(peak.flops) / 1e12;
    let special = (work.special > 0.0).then(|| work.flops / (work.special / peak.special_per_s) / 1e12);
    let x = Scale::logarithmic(points.iter().map(|point| point.intensity).chain([ridge]), 2.0);
    let rates = points.iter().map(|point| point.rate).chain([peak.flops / 1e12]).chain(special);
    let y = Scale::logarithmic(rates, 1.5);
    let across = Axis { name: "FLOP per byte of global memory", scale: x, text: &short };
    let down = Axis { name: "TFLOP/s", scale: y, text: &short };
    plot(page, "Roofline: the rate of each candidate over its arithmetic intensity", &across, &down, |plot| {
        // Where the memory's roof is below the chart it begins further right.
        let from = x.from().max(y.from() * 1e12 / peak.bytes_per_s);
        plot.line((from, roof(from)), (ridge, roof(ridge)), "roof");
        plot.line((ridge, roof(ridge)), (x.to(), roof(x.to())), "roof");
        // The name of the lower roof stands below it, so that neither line strikes a name.
        let is_higher = special.is_some_and(|rate| rate > peak.flops / 1e12);
        let (of_products, of_special) = if is_higher { (Side::Below, Side::Above) } else { (Side::Above, Side::Below) };
        plot.note((x.to(), peak.flops / 1e12), of_products, "matrix products");
        if let Some(rate) = special {
            plot.line((x.from(), rate), (x.to(), rate), "roof-special");
            plot.note((x.to(), rate), of_special, "special functions");
        }
        // The winner is drawn last, over the others.
        let (winner, others): (Vec<_>, Vec<_>) = points.iter().partition(|point| tuning.winner == Some(point.index));
        for (class, of) in [("point", others), ("point winner", winner)] {
            for point in of {
                plot.point((point.intensity, point.rate), class, &told(tuning, point));
            }
        }
    });
    let mut entries = vec![("point winner", "the winner"), ("point", "another candidate"), ("roof", "products, memory")];
    entries.extend(special.map(|_| ("roof-special", "special functions at their peak rate")));
    key(page, &entries);
    page.paragraph(peaks(tuning, special));
    if let Some(point) = points.iter().find(|point| tuning.winner == Some(point.index)) {
        let roof = special.map_or(roof(point.intensity), |special| special.min(roof(point.intensity)));
        let (rate, share) = (short(point.rate), 100.0 * point.rate / roof);
        let at = short(point.intensity);
        page.paragraph(format!(
            "The winner: {rate} TFLOP/s at {at} FLOP per byte, {share:.0}% of its roof of {} TFLOP/s.",
            short(roof)
        ));
    }
    if unknown > 0 {
        page.paragraph(format!("{unknown} candidates are not drawn: the model does not say what they move."));
    }
}

/// Where rates, peaks and bytes are from.
fn origin(tuning: &Tuning) -> String {
    let rates = match tuning.predicted {
        true => format!(
            "Nothing here was measured: no GPU was used. Rates are from times that the cost model predicts for a typical \
             {}; results and faults are from the emulator, which ran each candidate that was tried at a small size.",
            tuning.arch
        ),
        false => "Rates are from measured times of single runs.".to_owned(),
    };
    let counts = if tuning.work.exact { "" } else { " A mask reads data, so that counts of work are upper bounds." };
    format!(
        "{rates} Peaks are those of the machine of the cost model. Bytes are the model's count of what goes between global \
         memory and the L2 cache: each tensor once, and what is read again.{counts}"
    )
}

fn peaks(tuning: &Tuning, special: Option<f64>) -> String {
    let peak = &tuning.peak;
    let special = special.map(|rate| format!("; special functions alone allow {} TFLOP/s", short(rate))).unwrap_or_default();
    format!(
        "Peaks: {} TFLOP/s of products, {} TB/s of memory, which meet at {} FLOP per byte{special}. A call has {} GFLOP, and \
         moves {} MB at least.",
        short(peak.flops / 1e12),
        short(peak.bytes_per_s / 1e12),
        short(peak.flops / peak.bytes_per_s),
        short(tuning.work.flops / 1e9),
        short(tuning.work.bytes / 1e6)
    )
}

/// A kernel that has no FLOPs of products: its rate is that of memory.
fn without_products(tuning: &Tuning, page: &mut Markup) {
    let (bytes, peak) = (tuning.work.bytes, tuning.peak.bytes_per_s);
    let least = format!(
        "The kernel has no matrix products, so that its roof is memory: {} MB at least, at {} TB/s in {}.",
        short(bytes / 1e6),
        short(peak / 1e12),
        seconds(bytes / peak)
    );
    page.paragraph(least);
    if let Some(winner) = tuning.winning() {
        let rate = bytes / time(winner);
        page.paragraph(format!("The winner: {} TB/s, {:.0}% of that.", short(rate / 1e12), 100.0 * rate / peak));
    }
}

fn told(tuning: &Tuning, point: &Point) -> String {
    let candidate = &tuning.candidates[point.index];
    let (time, rate, at) = (seconds(time(candidate)), short(point.rate), short(point.intensity));
    format!("{time}, {rate} TFLOP/s at {at} FLOP/B: {}", candidate.schedule)
}
