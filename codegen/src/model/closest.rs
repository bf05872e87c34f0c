//! A schedule of which a person gave a few knobs: the rest is what the model would choose.

use crate::schedule::{KNOBS, Schedule, ScheduleError};

/// Schedules of the ranking that are tried with knobs changed, until one is legal.
const CLOSE: usize = 200;

/// The names of the knobs that a text sets, in its order.
pub fn knobs_set(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(|item| item.split('=').next().unwrap_or_default().trim()).filter(|name| !name.is_empty())
}

/// Whether a text says all of a schedule, so that the model's choice does not matter.
pub fn says_all(text: &str) -> bool {
    Schedule::is_whole(text) || KNOBS.iter().all(|knob| knobs_set(text).any(|name| name == knob.name))
}

/// The schedule that a text means: the best of a ranking that has the knobs of the text already. If
/// there is none, the first of the best ones, and then of the defaults, that is legal with these
/// knobs changed; if there is none either, the best with the knobs changed, or the defaults if
/// nothing is ranked, so that generating code says why it is not legal.
///
/// # Errors
/// The first item of the text that is wrong.
pub fn closest<'a>(
    ranked: impl IntoIterator<Item = &'a Schedule>,
    text: &str,
    legal: impl Fn(&Schedule) -> bool,
) -> Result<Schedule, ScheduleError> {
    let given = Schedule::default().with(text)?;
    let ranked: Vec<&Schedule> = ranked.into_iter().collect();
    let changed = ranked.iter().map(|schedule| schedule.with(text)).collect::<Result<Vec<_>, _>>()?;
    if let Some((same, _)) = ranked.iter().zip(&changed).find(|(own, changed)| **own == *changed) {
        return Ok((*same).clone());
    }
    // The defaults are the last resort, such as for an instruction that the space of the
    // architecture leaves out.
    let found = changed.iter().take(CLOSE).chain([&given]).find(|schedule| legal(schedule)).cloned();
    Ok(found.or_else(|| changed.into_iter().next()).unwrap_or(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_sets_every_knob_says_all() {
        let all: Vec<String> = KNOBS.iter().map(|k| format!("{}={}", k.name, (k.get)(&Schedule::default()))).collect();
        assert!(says_all(&all.join(",")) && !says_all(&all[1..].join(",")));
        assert!(says_all(&Schedule::default().to_string()) && says_all("defaults,block_m=64"));
        assert!(!says_all("block_m=64"));
    }

    #[test]
    fn the_best_that_has_the_knobs_wins_then_the_first_that_is_legal() {
        let of = |text: &str| Schedule::default().with(text).expect("knobs");
        let ranked = [of("block_m=64"), of("block_m=128"), of("block_m=128,block_n=32")];
        let closest = |text: &str, legal: fn(&Schedule) -> bool| closest(&ranked, text, legal).expect("knobs").to_string();
        assert_eq!(closest("block_m=128", |_| false), of("block_m=128").to_string());
        assert_eq!(
            closest("warps=8", |s| s.to_string().contains("block_n=32")),
            of("block_m=128,block_n=32,warps=8").to_string()
        );
        assert_eq!(closest("warps=8", |_| false), of("block_m=64,warps=8").to_string());
        let of_none = |legal: fn(&Schedule) -> bool| super::closest([], "warps=8", legal).expect("knobs").to_string();
        assert_eq!([of_none(|_| true), of_none(|_| false)], [of("warps=8").to_string(), of("warps=8").to_string()]);
    }
}
