//! The page around the sections.

use super::chart::short;
use super::evidence::{Fate, fate, time};
use super::markup::Markup;
use super::tuning::Tuning;
use super::{candidates, errors, knobs, layouts, plan, roofline};
use crate::output::seconds;

const STYLE: &str = include_str!("style.css");

/// The sections: anchor, heading, what fills it.
type Section = (&'static str, &'static str, fn(&Tuning, &mut Markup));

const SECTIONS: [Section; 6] = [
    ("roofline", "Roofline", roofline::section),
    ("candidates", "Candidates", candidates::section),
    ("errors", "Error beside time", errors::section),
    ("knobs", "Knobs", knobs::section),
    ("plan", "Plan of the winner", plan::section),
    ("layouts", "Shared memory of the winner", layouts::section),
];

/// The page about these kernels.
pub fn page(tunings: &[Tuning]) -> String {
    let names = tunings.iter().map(|tuning| tuning.kernel.as_str()).collect::<Vec<_>>().join(", ");
    let mut page = Markup::default();
    page.made("<!DOCTYPE html>\n");
    page.element("html", &[("lang", &"en")], |page| {
        page.element("head", &[], |page| {
            page.leaf("meta", &[("charset", &"utf-8")]);
            page.leaf("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
            page.leaf("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
            page.words("title", &[], format!("flashtile tune: {names}"));
            page.element("style", &[], |page| page.made(STYLE));
        });
        page.element("body", &[], |page| {
            for (number, tuning) in tunings.iter().enumerate() {
                article(tuning, number, page);
            }
        });
    });
    page.end()
}

fn article(tuning: &Tuning, number: usize, page: &mut Markup) {
    let anchor = |name: &str| format!("{name}-{number}");
    page.element("article", &[], |page| {
        page.words("h1", &[], &tuning.kernel);
        page.words("p", &[("class", &"lead")], summary(tuning));
        page.element("div", &[("class", &"box")], |page| {
            page.element("table", &[("class", &"about")], |page| {
                for (name, value) in &tuning.about {
                    page.element("tr", &[], |page| {
                        page.words("th", &[("scope", &"row")], name);
                        page.words("td", &[], value);
                    });
                }
            });
        });
        page.element("nav", &[], |page| {
            for (name, heading, _) in SECTIONS {
                page.words("a", &[("href", &format!("#{}", anchor(name)))], heading);
                page.text(" ");
            }
        });
        for (name, heading, fill) in SECTIONS {
            page.element("section", &[("id", &anchor(name))], |page| {
                page.words("h2", &[], heading);
                fill(tuning, page);
            });
        }
    });
}

/// What came of the search, in a paragraph.
fn summary(tuning: &Tuning) -> String {
    let count = |wanted: Fate| {
        let fates = tuning.candidates.iter().enumerate().map(|(index, c)| fate(c, tuning.winner == Some(index)));
        fates.filter(|fate| *fate == wanted).count()
    };
    let kind = if tuning.predicted { "predicted" } else { "measured" };
    let winner = match tuning.winning() {
        Some(winner) if tuning.work.flops > 0.0 => {
            let rate = tuning.work.flops / time(winner) / 1e12;
            format!("The winner takes {} ({kind}; {} TFLOP/s).", seconds(time(winner)), short(rate))
        }
        Some(winner) => format!("The winner takes {} ({kind}).", seconds(time(winner))),
        None => "No candidate works.".to_owned(),
    };
    let were = |fate: Fate| match count(fate) {
        1 => "1 was".to_owned(),
        number => format!("{number} were"),
    };
    format!(
        "{winner} Of {}, {} slower, {} not tried, {} failed, {} refused; {}.",
        match tuning.candidates.len() {
            1 => "1 candidate".to_owned(),
            number => format!("{number} candidates"),
        },
        were(Fate::Slower),
        were(Fate::Skipped),
        count(Fate::Failed),
        were(Fate::Refused),
        tuning.ended
    )
}
