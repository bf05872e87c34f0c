//! What the winner does: its launches in time, what a program of the main launch does, what each
//! unit is busy with, its resources, and its plan.

use flashtile::lowering::{LaunchTerms, StepTerms};
use flashtile_codegen::Limit;

use super::chart::{key, percent, short};
use super::evidence::time;
use super::markup::{Attributes, Column, Markup};
use super::tuning::{Tuning, Won};
use crate::output::seconds;

/// Pixels from bar to bar, with the text above each.
const STEP: usize = 32;
/// Classes of the parts of a program, in turn: the colours of neighbours differ.
const PARTS: [&str; 4] = ["part-0", "part-1", "part-2", "part-3"];

pub fn section(tuning: &Tuning, page: &mut Markup) {
    let (Some(won), Some(winner)) = (&tuning.won, tuning.winning()) else {
        return page.paragraph("There is no winner, so that there is no plan.");
    };
    page.element("p", &[], |page| {
        page.text("Schedule: ");
        page.words("code", &[], winner.schedule.to_string().replace(',', ", "));
    });
    let measured = match &winner.measured {
        Some(_) => format!("{} were measured", seconds(time(winner))),
        None => "nothing was measured".to_owned(),
    };
    page.paragraph(format!(
        "The timeline is the cost model's, which predicts {} for the call; {measured}.",
        seconds(won.terms.seconds)
    ));
    page.words("h3", &[], "Launches of a call");
    launches(won, page);
    if let Some(main) = won.terms.launches.get(won.terms.main) {
        page.words("h3", &[], "A program of the main launch");
        program(main, page);
    }
    page.words("h3", &[], "Resources of a block");
    resources(won, page);
    page.words("h3", &[], "Plan");
    page.paragraph("What each warp does, statement by statement, in the notation of docs/plan.md.");
    page.element("details", &[("open", &"open")], |page| {
        page.words("summary", &[], "The plan of each launch");
        page.words("pre", &[("class", &"box tall"), ("tabindex", &"0")], &won.plan);
    });
}

/// A bar with text above it.
struct Bar<'a> {
    class: &'a str,
    /// In seconds, or in cycles.
    begin: f64,
    length: f64,
    words: String,
}

/// Bars over one axis that ends at `end`, each on a line of its own.
fn bars(page: &mut Markup, label: &str, end: f64, bars: &[Bar<'_>]) {
    let height = bars.len() * STEP;
    page.element("svg", &[("class", &"chart"), ("height", &height), ("role", &"img"), ("aria-label", &label)], |page| {
        for (line, bar) in bars.iter().enumerate() {
            let top = line * STEP;
            let share = |value: f64| percent(100.0 * (value / end).clamp(0.0, 1.0));
            page.words("text", &[("x", &0), ("y", &(top + 12))], &bar.words);
            let track: Attributes<'_> =
                &[("class", &"track"), ("x", &0), ("y", &(top + 17)), ("width", &"100%"), ("height", &10)];
            page.leaf("rect", track);
            let (x, width) = (share(bar.begin), share(bar.length));
            let place: Attributes<'_> =
                &[("class", &bar.class), ("x", &x), ("y", &(top + 17)), ("width", &width), ("height", &10)];
            page.leaf("rect", place);
        }
    });
}

/// Each launch from its beginning to its end, with what computation and memory take of it.
fn launches(won: &Won, page: &mut Markup) {
    let mut all = Vec::new();
    for (number, launch) in won.terms.launches.iter().enumerate() {
        let LaunchTerms { begin, seconds: length, compute, memory, meeting, .. } = *launch;
        let main = if number == won.terms.main { " (main)" } else { "" };
        let words = format!("{}{main}: {}, from {}", launch.name, seconds(length), seconds(begin));
        all.push(Bar { class: "bar", begin, length, words });
        all.push(Bar { class: "part-1", begin, length: compute, words: format!("computation by itself: {}", seconds(compute)) });
        all.push(Bar { class: "part-2", begin, length: memory, words: format!("global memory by itself: {}", seconds(memory)) });
        if meeting > 0.0 {
            let words = format!("programs meet: {}", seconds(meeting));
            all.push(Bar { class: "part-3", begin: begin + length - meeting, length: meeting, words });
        }
    }
    bars(page, "When each launch begins and ends", won.terms.seconds, &all);
}

/// A part of a program: its name, and what it is made of.
fn parts(launch: &LaunchTerms) -> Vec<(String, StepTerms)> {
    let loops = launch.steps.iter().enumerate();
    let outside = ("outside of loops".to_owned(), launch.outside);
    std::iter::once(outside).chain(loops.map(|(number, step)| (format!("loop {number}, an iteration"), *step))).collect()
}

fn program(launch: &LaunchTerms, page: &mut Markup) {
    page.paragraph(format!(
        "{} programs, of which the machine runs up to {} at once, {} on each multiprocessor. The resident blocks of a multiprocessor get through a program each \
         in {} cycles, in the mean over programs: the parts below, one after the other.",
        short(launch.programs),
        short(launch.slots),
        launch.resident,
        short(launch.program_cycles)
    ));
    let parts = parts(launch);
    let cut = (launch.cut_cycles > 0.0).then(|| ("what cut tiles take more".to_owned(), launch.cut_cycles));
    let all: Vec<(String, f64)> = parts.iter().map(|(name, step)| (name.clone(), step.trips * step.cycles)).chain(cut).collect();
    let total = launch.program_cycles;
    page.element(
        "svg",
        &[("class", &"chart"), ("height", &26), ("role", &"img"), ("aria-label", &"Parts of a program")],
        |page| {
            let mut begin = 0.0;
            for (number, (name, cycles)) in all.iter().enumerate() {
                let (x, width) = (percent(100.0 * begin / total), percent(100.0 * cycles / total));
                let class = PARTS[number % PARTS.len()];
                let place: Attributes<'_> = &[("class", &class), ("x", &x), ("y", &2), ("width", &width), ("height", &22)];
                page.element("rect", place, |page| page.words("title", &[], format!("{name}: {} cycles", short(*cycles))));
                begin += cycles;
            }
        },
    );
    let entries: Vec<(String, String)> = all
        .iter()
        .enumerate()
        .map(|(number, (name, cycles))| {
            let name = name.trim_end_matches(", an iteration");
            let share = 100.0 * cycles / total;
            (format!("bar {}", PARTS[number % PARTS.len()]), format!("{name}: {} cycles, {share:.0}%", short(*cycles)))
        })
        .collect();
    key(page, &entries.iter().map(|(class, words)| (class.as_str(), words.as_str())).collect::<Vec<_>>());
    page.paragraph(
        "How long each unit of the multiprocessor is busy in a part, over all resident blocks; the busiest is marked:",
    );
    for (name, step) in parts.iter().filter(|(_, step)| step.trips > 0.0 && step.cycles > 0.0) {
        units(name, step, page);
    }
}

/// What the units are busy with in a part of a program.
fn units(name: &str, step: &StepTerms, page: &mut Markup) {
    let times = if (step.trips - 1.0).abs() < 1e-9 { "once".to_owned() } else { format!("{} times", short(step.trips)) };
    page.words("h4", &[], format!("{name}: {} cycles, {times}", short(step.cycles)));
    let units = [
        ("issue slots", step.issue),
        ("matrix products", step.tensor),
        ("special functions", step.special),
        ("shared memory", step.shared),
        ("copies from the L2 cache", step.copies),
    ];
    let busiest = units.iter().map(|(_, cycles)| *cycles).fold(0.0, f64::max);
    let bar = |(unit, cycles): (&str, f64)| {
        let class = if cycles >= busiest { "bar winner" } else { "bar" };
        let words = format!("{unit}: {} cycles, {:.0}%", short(cycles), 100.0 * cycles / step.cycles);
        Bar { class, begin: 0.0, length: cycles, words }
    };
    bars(page, &format!("Units in {name}"), step.cycles, &units.map(bar));
}

fn resources(won: &Won, page: &mut Markup) {
    let numbers = ["threads", "registers (predicted)", "registers", "shared memory", "blocks of a multiprocessor"];
    let (first, last) = (Column::Words("launch"), Column::Words("limited by"));
    let columns: Vec<Column<'_>> = std::iter::once(first).chain(numbers.map(Column::Number)).chain([last]).collect();
    page.table(&columns, |page| {
        for launch in &won.launches {
            let predicted = &launch.predicted;
            let limit = match predicted.limit {
                Limit::Registers => "registers",
                Limit::Shared => "shared memory",
                Limit::Threads => "threads",
                Limit::Blocks => "blocks",
            };
            let numbers = [
                predicted.threads.to_string(),
                predicted.registers.to_string(),
                launch.registers.map_or_else(|| "-".to_owned(), |registers| registers.to_string()),
                format!("{} bytes", predicted.shared_bytes),
                predicted.blocks_per_sm.to_string(),
            ];
            page.element("tr", &[], |page| {
                page.words("td", &[], &launch.name);
                numbers.iter().for_each(|number| page.words("td", &[("class", &"number")], number));
                page.words("td", &[], limit);
            });
        }
    });
}
