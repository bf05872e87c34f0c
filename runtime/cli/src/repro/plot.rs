//! Figures as SVG: bars for steps, lines for lengths; ours filled or solid, published ones hollow or dashed.

use std::fmt::Write as _;

use super::experiment::{Experiment, Style};
use super::results::{Results, TableResults};
use super::sheet::number;

/// Colours of series, told apart also in grey (Okabe and Ito 2008).
pub const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// The area of the plot itself: left, top, right, bottom.
pub const AREA: (f64, f64, f64, f64) = (72.0, 56.0, 556.0, 360.0);

/// A drawing under construction.
pub struct Drawing(String);

impl Drawing {
    /// A drawing with these two lines above it.
    pub fn new(title: &str, subtitle: &str) -> Self {
        let mut drawing = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ));
        drawing.text(12.0, 20.0, "start", title);
        drawing.text(12.0, 38.0, "start", subtitle);
        drawing
    }

    /// Adds an element.
    pub fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// Adds text that begins, ends or has its middle at a point.
    pub fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(text)));
    }

    /// Adds a straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"));
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, paint: &str) {
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {paint}/>"
        ));
    }

    /// The text of the file.
    pub fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The plot of a table.
pub fn svg(experiment: &Experiment, table: &TableResults, results: &Results) -> String {
    let published = table.table.published_on.map(|gpu| format!("; published: {gpu}")).unwrap_or_default();
    let title = format!("{}: {}", experiment.name, table.table.caption);
    let subtitle = format!("{}; ours: {}{published}", table.table.unit.text(), results.device);
    let drawing = Drawing::new(&title, &subtitle);
    match table.table.style {
        Style::Steps => bars(drawing, table),
        Style::Lines(variable) => lines(drawing, table, variable),
    }
}

/// Pairs of bars: ours filled, published hollow.
fn bars(mut drawing: Drawing, table: &TableResults) -> String {
    let rows = &table.table.rows;
    let values: Vec<[Option<f64>; 2]> =
        rows.iter().enumerate().map(|(r, row)| [table.figure(r, 0), row.cells[0].published]).collect();
    let most = values.iter().flatten().flatten().copied().fold(0.0, f64::max);
    let (left, top, _, bottom) = AREA;
    let right = WIDTH - 24.0;
    let scale = Scale::linear(most);
    drawing.axis(&scale, (left, right));
    let slot = (right - left) / rows.len().max(1) as f64;
    for (r, (row, pair)) in rows.iter().zip(&values).enumerate() {
        let x = left + slot * r as f64;
        let paints = [format!("fill=\"{}\"", COLOURS[0]), format!("fill=\"white\" stroke=\"{}\"", COLOURS[1])];
        for (n, (value, (class, paint))) in pair.iter().zip(["ours", "published"].into_iter().zip(paints)).enumerate() {
            let Some(value) = value else { continue };
            let y = scale.y(*value);
            let at = x + slot * (0.12 + 0.38 * n as f64);
            drawing.rect((at, y), (slot * 0.36, bottom - y), class, &paint);
            drawing.text(at + slot * 0.18, (y - 4.0).max(top), "middle", &number(*value));
        }
        // Labels are long: every other one a line lower.
        drawing.text(x + slot / 2.0, bottom + 18.0 + 16.0 * (r % 2) as f64, "middle", &row.label);
    }
    let paint = format!("fill=\"white\" stroke=\"{}\"", COLOURS[1]);
    drawing.rect((left, HEIGHT - 22.0), (12.0, 12.0), "key", &format!("fill=\"{}\"", COLOURS[0]));
    drawing.text(left + 18.0, HEIGHT - 12.0, "start", "ours");
    if table.table.published_on.is_some() {
        drawing.rect((left + 70.0, HEIGHT - 22.0), (12.0, 12.0), "key", &paint);
        drawing.text(left + 88.0, HEIGHT - 12.0, "start", "published");
    }
    drawing.end()
}

/// A line per series over a logarithmic axis: ours solid, published dashed.
fn lines(mut drawing: Drawing, table: &TableResults, variable: &str) -> String {
    let rows = &table.table.rows;
    let series: Vec<&str> = rows.first().map(|row| row.cells.iter().map(|c| c.series).collect()).unwrap_or_default();
    let line = |c: usize, published: bool| -> Vec<(f64, f64)> {
        let value = |r: usize| if published { rows[r].cells[c].published } else { table.figure(r, c) };
        rows.iter().enumerate().filter_map(|(r, row)| Some((row.x, value(r)?))).collect()
    };
    let all: Vec<(f64, f64)> = (0..series.len()).flat_map(|c| [line(c, false), line(c, true)].concat()).collect();
    let (left, _, right, bottom) = AREA;
    let scale = Scale::fitting(all.iter().map(|p| p.1));
    drawing.axis(&scale, (left, right));
    let (first, last) = (rows.first().map_or(1.0, |r| r.x), rows.last().map_or(1.0, |r| r.x));
    let span = (last / first).log2().max(f64::MIN_POSITIVE);
    let x = |value: f64| {
        if last > first { left + 12.0 + (right - left - 24.0) * (value / first).log2() / span } else { (left + right) / 2.0 }
    };
    for row in rows {
        drawing.line((x(row.x), bottom), (x(row.x), bottom + 4.0), "black");
        drawing.text(x(row.x), bottom + 18.0, "middle", &row.label);
    }
    drawing.text((left + right) / 2.0, bottom + 38.0, "middle", variable);
    let mut key = AREA.1 + 8.0;
    for (c, name) in series.iter().enumerate() {
        let colour = COLOURS[c % COLOURS.len()];
        for (published, dash, class) in [(false, "", "ours"), (true, " stroke-dasharray=\"5 4\"", "published")] {
            let points = line(c, published);
            if points.is_empty() {
                continue;
            }
            let text: Vec<String> = points.iter().map(|&(at, value)| format!("{:.1},{:.1}", x(at), scale.y(value))).collect();
            drawing.add(format_args!(
                "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                text.join(" ")
            ));
            for (at, value) in points {
                let fill = if published { "white" } else { colour };
                drawing.add(format_args!(
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{colour}\"/>",
                    x(at),
                    scale.y(value)
                ));
            }
            let (from, to) = ((right + 12.0, key), (right + 36.0, key));
            drawing.add(format_args!(
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                from.0, from.1, to.0, to.1
            ));
            let suffix = if published { ", published" } else { "" };
            drawing.text(right + 42.0, key + 4.0, "start", &format!("{name}{suffix}"));
            key += 18.0;
        }
    }
    drawing.end()
}

impl Drawing {
    /// The frame, with the ticks of the vertical axis.
    pub fn axis(&mut self, scale: &Scale, (left, right): (f64, f64)) {
        let (_, top, _, bottom) = AREA;
        for tick in scale.ticks() {
            let y = scale.y(tick);
            self.line((left, y), (right, y), "#dddddd");
            self.text(left - 6.0, y + 4.0, "end", &trimmed(tick));
        }
        self.line((left, top), (left, bottom), "black");
        self.line((left, bottom), (right, bottom), "black");
    }
}

/// A tick without needless digits.
fn trimmed(tick: f64) -> String {
    if tick >= 1.0 { format!("{tick:.0}") } else { format!("{tick}") }
}

/// The vertical axis.
pub enum Scale {
    /// From 0 to this, which is not 0.
    Linear(f64),
    /// From one power of ten to another.
    Decades(i32, i32),
}

impl Scale {
    fn linear(most: f64) -> Self {
        Self::Linear(if most > 0.0 { most * 1.1 } else { 1.0 })
    }

    /// The decades that hold all values.
    pub fn decades(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0.0), |(a, b), v| (v.min(a), v.max(b)));
        Self::Decades(least.log10().floor() as i32, most.log10().ceil() as i32)
    }

    /// Decades where values are more than ten times apart.
    fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0.0), |(a, b), v| (v.min(a), v.max(b)));
        match most / least > 10.0 {
            true => Self::Decades(least.log10().floor() as i32, most.log10().ceil() as i32),
            false => Self::linear(most),
        }
    }

    /// Where a value stands.
    pub fn y(&self, value: f64) -> f64 {
        let (_, top, _, bottom) = AREA;
        let share = match *self {
            Self::Linear(most) => value / most,
            Self::Decades(from, to) => (value.log10() - f64::from(from)) / f64::from((to - from).max(1)),
        };
        bottom - (bottom - top) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear(most) => {
                let rough = most / 5.0;
                let decade = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * decade).find(|&s| s >= rough).unwrap_or(rough);
                (0..=(most / step) as u32).map(|n| f64::from(n) * step).collect()
            }
            Self::Decades(from, to) => (from..=to).map(|e| 10f64.powi(e)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values() {
        let linear = Scale::fitting([10.0, 80.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        let decades = Scale::fitting([0.024, 49.0].into_iter());
        assert_eq!(decades.ticks().len(), 5);
        assert!(decades.y(0.01) > decades.y(1.0) && decades.y(1.0) > decades.y(100.0));
        assert_eq!(Scale::fitting(std::iter::empty()).ticks()[0], 0.0);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a < b & \"c\""), "a &lt; b &amp; &quot;c&quot;");
    }
}
