//! Charts in SVG that take the width of the page: places across are percentages, places down
//! pixels, so that text has one size at any width.

use std::fmt::Display;

use super::markup::Markup;

/// The plot itself: left and right in percent of the width, top and bottom in pixels.
const LEFT: f64 = 12.0;
const RIGHT: f64 = 97.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 290.0;
const HEIGHT: f64 = 336.0;
/// Marks on an axis at most, so that their numbers do not touch on a narrow page.
const MARKS: usize = 6;
/// Axes whose ends are less than this factor apart have marks at one distance.
const NARROW: f64 = 4.0;

/// A logarithmic axis: from one value to another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    /// Around all values that are above 0, with room of this factor on both sides.
    pub fn logarithmic(values: impl Iterator<Item = f64>, room: f64) -> Self {
        let positive = values.filter(|v| v.is_finite() && *v > 0.0);
        let (least, most) = positive.fold((f64::INFINITY, 0.0f64), |(least, most), v| (least.min(v), most.max(v)));
        let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 1.0) };
        Self { from: least / room, to: most * room }
    }

    /// The least value.
    pub fn from(&self) -> f64 {
        self.from
    }

    /// The largest value.
    pub fn to(&self) -> f64 {
        self.to
    }

    /// The part of the axis below a value: 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        let share = (value.max(self.from) / self.from).ln() / (self.to / self.from).ln();
        share.clamp(0.0, 1.0)
    }

    /// Round values to mark, few of them.
    pub fn marks(&self) -> Vec<f64> {
        let all = if self.to / self.from < NARROW { self.steps() } else { self.decades() };
        let fitting = all.into_iter().find(|marks| marks.len() <= MARKS);
        fitting.filter(|marks| !marks.is_empty()).unwrap_or_else(|| vec![self.from, self.to])
    }

    /// Marks at one distance, for an axis within a decade: many first.
    fn steps(&self) -> Vec<Vec<f64>> {
        let power = 10f64.powf((self.to - self.from).log10().floor());
        let marks = |step: f64| {
            let (first, last) = ((self.from / step).ceil() as i64, (self.to / step).floor() as i64);
            (first..=last).map(|n| n as f64 * step).collect()
        };
        [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].map(|step| marks(step * power)).into()
    }

    /// Marks of the same digits in each decade, or in some: many first.
    fn decades(&self) -> Vec<Vec<f64>> {
        let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let all = |digits: &[f64], step: usize| -> Vec<f64> {
            let powers = (low..=high).filter(|power| power.rem_euclid(step as i32) == 0);
            let marks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
            marks.filter(|mark| (self.from..=self.to).contains(mark)).collect()
        };
        let digits: [&[f64]; 3] = [&[1.0, 2.0, 3.0, 5.0], &[1.0, 2.0, 5.0], &[1.0]];
        digits.iter().map(|digits| all(digits, 1)).chain((2..8).map(|step| all(&[1.0], step))).collect()
    }
}

/// A chart of points over two axes.
pub struct Plot<'a> {
    page: &'a mut Markup,
    x: Scale,
    y: Scale,
}

/// Where a text stands beside its line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Side {
    /// Over it.
    Above,
    /// Under it.
    Below,
}

/// An axis with its name.
pub struct Axis<'a> {
    /// The name, with the unit.
    pub name: &'a str,
    /// The values.
    pub scale: Scale,
    /// A value as text.
    pub text: &'a dyn Fn(f64) -> String,
}

/// Draws axes and what is over them. `label` says what it shows to those who do not see it.
pub fn plot(page: &mut Markup, label: &str, x: &Axis<'_>, y: &Axis<'_>, draw: impl FnOnce(&mut Plot<'_>)) {
    page.element("svg", &[("class", &"chart"), ("height", &HEIGHT), ("role", &"img"), ("aria-label", &label)], |page| {
        let mut plot = Plot { page, x: x.scale, y: y.scale };
        for mark in x.scale.marks() {
            let at = percent(plot.across(mark));
            plot.page.leaf("line", &[("class", &"grid"), ("x1", &at), ("x2", &at), ("y1", &TOP), ("y2", &BOTTOM)]);
            let place: super::markup::Attributes<'_> = &[("x", &at), ("y", &(BOTTOM + 17.0)), ("text-anchor", &"middle")];
            plot.page.words("text", place, (x.text)(mark));
        }
        for mark in y.scale.marks() {
            let at = pixels(plot.down(mark));
            let (left, right) = (percent(LEFT), percent(RIGHT));
            plot.page.leaf("line", &[("class", &"grid"), ("x1", &left), ("x2", &right), ("y1", &at), ("y2", &at)]);
            let place: super::markup::Attributes<'_> =
                &[("x", &left), ("dx", &-5), ("y", &at), ("dy", &4), ("text-anchor", &"end")];
            plot.page.words("text", place, (y.text)(mark));
        }
        plot.page.words("text", &[("x", &"0"), ("y", &14), ("class", &"axis")], y.name);
        let end: super::markup::Attributes<'_> =
            &[("x", &percent(RIGHT)), ("y", &(BOTTOM + 38.0)), ("text-anchor", &"end"), ("class", &"axis")];
        plot.page.words("text", end, x.name);
        draw(&mut plot);
    });
}

impl Plot<'_> {
    /// A point; `title` is shown where a pointer rests on it. The class gives colour and size.
    pub fn point(&mut self, (x, y): (f64, f64), class: &str, title: &str) {
        let (cx, cy) = (percent(self.across(x)), pixels(self.down(y)));
        let radius = if class.contains("winner") { 7 } else { 4 };
        self.page.element("circle", &[("class", &class), ("cx", &cx), ("cy", &cy), ("r", &radius)], |page| {
            page.words("title", &[], title);
        });
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, x2) = (percent(self.across(from.0)), percent(self.across(to.0)));
        let (y1, y2) = (pixels(self.down(from.1)), pixels(self.down(to.1)));
        self.page.leaf("line", &[("class", &class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)]);
    }

    /// Text on one side of a line, which ends at this point.
    pub fn note(&mut self, (x, y): (f64, f64), side: Side, text: &str) {
        let from_line = match side {
            Side::Above => -6.0,
            Side::Below => 15.0,
        };
        let (x, y) = (percent(self.across(x)), pixels(self.down(y) + from_line));
        self.page.words("text", &[("class", &"note"), ("x", &x), ("y", &y), ("text-anchor", &"end")], text);
    }

    fn across(&self, x: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.x.share(x)
    }

    fn down(&self, y: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * self.y.share(y)
    }
}

/// What the marks of a chart mean: class and words of each.
pub fn key(page: &mut Markup, entries: &[(&str, &str)]) {
    page.element("p", &[("class", &"key")], |page| {
        for (class, words) in entries {
            page.element("span", &[], |page| {
                page.element("svg", &[("width", &14), ("height", &14), ("aria-hidden", &"true")], |page| match class {
                    class if class.starts_with("bar") => {
                        page.leaf("rect", &[("class", class), ("x", &1), ("y", &2), ("width", &12), ("height", &10)]);
                    }
                    class if class.starts_with("roof") => {
                        page.leaf("line", &[("class", class), ("x1", &0), ("x2", &14), ("y1", &7), ("y2", &7)]);
                    }
                    class if class.starts_with("mark") => {
                        page.leaf("line", &[("class", class), ("x1", &7), ("x2", &7), ("y1", &1), ("y2", &13)]);
                    }
                    class => page.leaf("circle", &[("class", class), ("cx", &7), ("cy", &7), ("r", &5)]),
                });
                page.text(format!(" {words} "));
            });
        }
    });
}

/// A place across or a width.
pub fn percent(share: f64) -> impl Display {
    format!("{share:.2}%")
}

/// A place down.
pub fn pixels(place: f64) -> impl Display {
    format!("{place:.1}")
}

/// A number of three digits, for people.
pub fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        a if !(1e-3..1e6).contains(&a) => format!("{x:.1e}"),
        a if a >= 100.0 => format!("{x:.0}"),
        a => {
            let digits = (2 - a.log10().floor() as i32).max(0) as usize;
            let text = format!("{x:.digits$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        let marks = |scale: Scale| scale.marks().into_iter().map(short).collect::<Vec<_>>();
        let around = |from: f64, to: f64| marks(Scale::logarithmic([from, to].into_iter(), 1.2));
        assert_eq!(around(3.0, 800.0), ["10", "100"]);
        assert_eq!(around(40.0, 800.0), ["50", "100", "200", "300", "500"]);
        assert_eq!(around(2.4e-4, 2.5e-4), ["2.0e-4", "2.2e-4", "2.4e-4", "2.6e-4", "2.8e-4"]);
        for (from, to) in [(1.0, 1.0), (0.9, 1.1), (1e-7, 1e4), (5e-4, 5e-4), (120.0, 4000.0)] {
            let scale = Scale::logarithmic([from, to].into_iter(), 1.5);
            let marks = scale.marks();
            assert!((2..=MARKS).contains(&marks.len()), "{from} {to}: {marks:?}");
            assert!(marks.iter().all(|mark| (scale.from..=scale.to).contains(mark)), "{from} {to}: {marks:?}");
        }
    }

    #[test]
    fn values_that_cannot_be_drawn_stay_on_the_chart() {
        let scale = Scale::logarithmic([1.0, 100.0].into_iter(), 1.0);
        assert_eq!([0.0, 1.0, 10.0, 100.0, f64::INFINITY].map(|v| scale.share(v)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!(Scale::logarithmic([f64::NAN].into_iter(), 2.0), Scale { from: 0.5, to: 2.0 });
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.0, 1.0, 0.0123456, 12.0, 989.4, 2e-5, 3.2e7].map(short),
            ["0", "1", "0.0123", "12", "989", "2.0e-5", "3.2e7"]
        );
    }
}
