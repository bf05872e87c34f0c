//! The roofline of a table of steps as SVG: the rate of each step over its FLOPs per byte, under
//! the roof of the GPU.

use super::experiment::{Experiment, Style};
use super::plot::{AREA, COLOURS, Drawing, Scale};
use super::results::{Figures, Results, TableResults};

/// A step under the roof.
struct Point<'a> {
    name: &'a str,
    /// Nominal FLOPs per byte that the launches ask of global memory.
    intensity: f64,
    /// TFLOP/s.
    rate: f64,
}

/// The drawing of a table whose steps were timed on a GPU.
pub fn svg(experiment: &Experiment, table: &TableResults, results: &Results) -> Option<String> {
    if table.table.style != Style::Steps {
        return None;
    }
    let rows = table.table.rows.iter().enumerate();
    let timed: Vec<(&str, &Figures)> = rows.filter_map(|(r, row)| Some((row.label.as_str(), table.figures(r, 0)?))).collect();
    let (flops, bandwidth) = timed.iter().find_map(|(_, figures)| figures.peak)?;
    let points: Vec<Point<'_>> = timed
        .iter()
        .filter(|(_, figures)| figures.traffic.is_some())
        .filter_map(|(name, figures)| {
            let (median, ..) = figures.time?;
            Some(Point { name, intensity: figures.intensity, rate: figures.flops / median / 1e9 })
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    let ridge = flops / bandwidth;
    let intensities = || points.iter().map(|point| point.intensity).chain([ridge]);
    let least = intensities().fold(f64::INFINITY, f64::min) / 2.0;
    let most = intensities().fold(0.0, f64::max) * 2.0;
    let roof = |intensity: f64| (intensity * bandwidth).min(flops) / 1e12;
    let (left, _, right, bottom) = AREA;
    let scale = Scale::decades(points.iter().map(|point| point.rate).chain([roof(least), roof(most)]));
    let x = |intensity: f64| left + (right - left) * (intensity / least).ln() / (most / least).ln();

    let title = format!("{}: roofline of {}", experiment.name, table.table.caption);
    let subtitle = format!("TFLOP/s over nominal FLOPs per byte asked of global memory; {}", results.device);
    let mut drawing = Drawing::new(&title, &subtitle);
    drawing.axis(&scale, (left, right));
    let mut power = 2f64.powf(least.log2().ceil());
    while power <= most {
        drawing.line((x(power), bottom), (x(power), bottom + 4.0), "black");
        drawing.text(x(power), bottom + 18.0, "middle", &format!("{power}"));
        power *= 2.0;
    }
    drawing.text((left + right) / 2.0, bottom + 38.0, "middle", "FLOP/B");
    let corners = [least, ridge, most].map(|at| format!("{:.1},{:.1}", x(at), scale.y(roof(at))));
    drawing.add(format_args!(
        "<polyline class=\"roof\" points=\"{}\" fill=\"none\" stroke=\"black\" stroke-width=\"2\"/>",
        corners.join(" ")
    ));
    for (n, point) in points.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let at = (x(point.intensity), scale.y(point.rate));
        // More steps than colours: the second round is hollow.
        let fill = if n < COLOURS.len() { colour } else { "white" };
        let key = AREA.1 + 8.0 + 18.0 * n as f64;
        for (class, (cx, cy)) in [("step", at), ("key", (right + 24.0, key))] {
            drawing.add(format_args!(
                "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
            ));
        }
        drawing.text(right + 36.0, key + 4.0, "start", point.name);
    }
    Some(drawing.end())
}
