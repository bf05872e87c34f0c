//! The text form of a schedule: `defaults,block_m=128,split_k=4,combine.warps=2`.
//!
//! An item `knob=value` is about the main launch, or about which launches there are; an item
//! `launch.knob=value` is about a launch beside the main one. A knob that is left out keeps the
//! value of the schedule that the text is applied to. The word `defaults` as the first item gives
//! every knob its default: what is printed begins with it, names no knob at its default, and so is
//! the same schedule wherever it is read.

use std::fmt;

use super::knobs::{KNOBS, Knob, RENAMED_KNOBS, RENAMED_VALUES, Schedule};

/// The first item of a text that says all.
const DEFAULTS: &str = "defaults";

/// Why a text is not a schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// Not of the form `knob=value`.
    #[error("`{0}` is not of the form knob=value")]
    Form(String),
    /// `defaults` behind other items, which it would undo.
    #[error("`defaults` is not the first item; it gives every knob its default: write it first")]
    LateDefaults,
    /// No such knob.
    #[error("unknown knob `{name}`; the knobs are {known}")]
    UnknownKnob {
        /// What was given.
        name: String,
        /// All names.
        known: String,
    },
    /// A knob of one launch was wanted, but it says which launches there are.
    #[error("`{knob}` is no knob of a single launch, so `{launch}.{knob}` means nothing; the knobs of a launch are {known}")]
    NotOfLaunch {
        /// The launch.
        launch: String,
        /// The knob.
        knob: &'static str,
        /// All names of knobs of a launch.
        known: String,
    },
    /// A name that a knob had in an earlier version.
    #[error("knob `{old}` has a new name, `{new}`: write `{instead}`")]
    RenamedKnob {
        /// What was given.
        old: &'static str,
        /// The name of today.
        new: &'static str,
        /// The item with the names of today.
        instead: String,
    },
    /// A name that a value of the knob had in an earlier version.
    #[error("value `{old}` of knob `{knob}` has a new name, `{new}`: write `{knob}={new}`")]
    RenamedValue {
        /// The knob.
        knob: &'static str,
        /// What was given.
        old: String,
        /// The name of today.
        new: &'static str,
    },
    /// Not a value of the knob.
    #[error("`{value}` is not a value of knob `{knob}`; expected {expected}")]
    Value {
        /// The knob.
        knob: &'static str,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
}

/// The value of today for an earlier value of a knob.
fn renamed_value(knob: &str, value: &str) -> Option<&'static str> {
    RENAMED_VALUES.iter().find(|(of, old, _)| (*of, *old) == (knob, value)).map(|(_, _, new)| *new)
}

/// What is said of a name that no knob has.
fn unknown(name: &str, value: &str) -> ScheduleError {
    match RENAMED_KNOBS.iter().find(|(old, _)| *old == name) {
        Some(&(old, new)) => {
            let instead = format!("{new}={}", renamed_value(new, value).unwrap_or(value));
            ScheduleError::RenamedKnob { old, new, instead }
        }
        None => ScheduleError::UnknownKnob { name: name.to_owned(), known: names(KNOBS.iter()) },
    }
}

fn names<'k>(knobs: impl Iterator<Item = &'k Knob>) -> String {
    knobs.map(|knob| knob.name).collect::<Vec<_>>().join(", ")
}

impl Schedule {
    /// This schedule with the knobs named in `text` (`knob=value,...`) changed.
    ///
    /// ```
    /// use flashtile_codegen::Schedule;
    /// let split: Schedule = "block_m=128,split_k=4,combine.warps=2".parse()?;
    /// assert_eq!(split.with("split_k=8")?.to_string(), "defaults,block_m=128,split_k=8,combine.warps=2");
    /// assert_eq!(split.with("defaults,split_k=8")?.to_string(), "defaults,split_k=8");
    /// # Ok::<(), flashtile_codegen::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// The first item that is wrong.
    pub fn with(&self, text: &str) -> Result<Self, ScheduleError> {
        let mut schedule = self.clone();
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        for (number, item) in items.enumerate() {
            if item == DEFAULTS && number > 0 {
                return Err(ScheduleError::LateDefaults);
            } else if item == DEFAULTS {
                schedule = Self::default();
            } else {
                schedule.set(item)?;
            }
        }
        Ok(schedule)
    }

    /// The items in which it differs from another schedule, as the text form has them.
    pub fn difference(&self, from: &Schedule) -> Vec<String> {
        let mut items: Vec<String> =
            KNOBS.iter().filter(|knob| (knob.get)(self) != (knob.get)(from)).map(|knob| knob.text(self)).collect();
        for (launch, overrides) in &self.beside {
            let known = from.beside.get(launch);
            let same = |item: &(&str, &str)| known.is_some_and(|known| known.iter().any(|other| other == *item));
            let differ = overrides.iter().filter(|item| !same(item));
            items.extend(differ.map(|(knob, value)| format!("{launch}.{knob}={value}")));
        }
        items
    }

    /// Whether a text says all of a schedule, so that it is the same whatever it is applied to.
    pub fn is_whole(text: &str) -> bool {
        let mut items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.next() == Some(DEFAULTS)
    }

    /// Does what one item says.
    fn set(&mut self, item: &str) -> Result<(), ScheduleError> {
        let (name, value) = item.split_once('=').ok_or_else(|| ScheduleError::Form(item.to_owned()))?;
        let (place, value) = (name.trim(), value.trim());
        let (launch, name) = place.split_once('.').map_or((None, place), |(launch, name)| (Some(launch), name));
        let knob = Knob::named(name).ok_or_else(|| unknown(name, value))?;
        if let Some(new) = renamed_value(knob.name, value) {
            return Err(ScheduleError::RenamedValue { knob: knob.name, old: value.to_owned(), new });
        }
        let is_value = match launch {
            None => (knob.set)(self, value),
            Some(launch) if knob.of_block.is_some() => self.beside.entry(launch.to_owned()).or_default().set(knob, value),
            Some(launch) => {
                let known = names(Knob::of_blocks().map(|(knob, _)| knob));
                return Err(ScheduleError::NotOfLaunch { launch: launch.to_owned(), knob: knob.name, known });
            }
        };
        if is_value {
            return Ok(());
        }
        let values = (knob.values)();
        let expected = if values.is_empty() { "a non-negative number".to_owned() } else { values.join(", ") };
        Err(ScheduleError::Value { knob: knob.name, value: value.to_owned(), expected })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DEFAULTS)?;
        self.difference(&Schedule::default()).into_iter().try_for_each(|item| write!(f, ",{item}"))
    }
}

impl std::str::FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        Schedule::default().with(text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::knobs::Scope;
    use super::*;

    #[test]
    fn text_form_round_trips_for_every_value_of_every_knob() {
        for knob in KNOBS {
            let values = (knob.values)();
            let values = if values.is_empty() { vec!["1", "128"] } else { values };
            for value in values {
                let text = format!("{}={value}", knob.name);
                let schedule: Schedule = text.parse().expect("a value from the table");
                assert_eq!((knob.get)(&schedule), value, "{text}");
                assert_eq!(schedule.to_string().parse(), Ok(schedule));
            }
        }
    }

    #[test]
    fn errors_say_what_is_possible() {
        let error = |text: &str| text.parse::<Schedule>().expect_err(text).to_string();
        assert_eq!(error("block_m"), "`block_m` is not of the form knob=value");
        assert!(error("blok_m=1").starts_with("unknown knob `blok_m`; the knobs are block_m, block_n"));
        assert_eq!(error("swizzle=fast"), "`fast` is not a value of knob `swizzle`; expected off, padded, xor");
        assert_eq!(error("warps=-1"), "`-1` is not a value of knob `warps`; expected a non-negative number");
    }

    #[test]
    fn earlier_names_are_refused_and_the_new_ones_named() {
        let error = |text: &str| text.parse::<Schedule>().expect_err(text).to_string();
        for (text, said) in [
            ("shared=plain", "knob `shared` has a new name, `swizzle`: write `swizzle=off`"),
            ("shared=xor", "knob `shared` has a new name, `swizzle`: write `swizzle=xor`"),
            ("splits=4", "knob `splits` has a new name, `split_k`: write `split_k=4`"),
            ("combine=tree", "knob `combine` has a new name, `fixup`: write `fixup=tree`"),
            ("fold=heads", "knob `fold` has a new name, `pack_gqa`: write `pack_gqa=on`"),
            ("fold=off", "knob `fold` has a new name, `pack_gqa`: write `pack_gqa=off`"),
            ("swizzle=plain", "value `plain` of knob `swizzle` has a new name, `off`: write `swizzle=off`"),
            ("order=longest_first", "value `longest_first` of knob `order` has a new name, `lpt`: write `order=lpt`"),
            ("pack_gqa=heads", "value `heads` of knob `pack_gqa` has a new name, `on`: write `pack_gqa=on`"),
        ] {
            assert_eq!(error(text), said);
        }
    }

    #[test]
    fn earlier_names_lead_to_names_that_exist() {
        for (old, new) in RENAMED_KNOBS {
            let names: Vec<_> = KNOBS.iter().map(|k| k.name).collect();
            assert!(names.contains(new) && !names.contains(old), "{old}: {new}");
        }
        for (of, old, new) in RENAMED_VALUES {
            let values = (KNOBS.iter().find(|k| k.name == *of).expect("a knob of today").values)();
            assert!(values.contains(new) && !values.contains(old), "{of}={old}: {new}");
        }
    }

    #[test]
    fn what_is_printed_names_no_default_and_reads_back_whatever_it_is_applied_to() {
        assert_eq!(Schedule::default().to_string(), "defaults");
        let given = "stages=3,split_k=4,combine.block_m=32,combine.warps=2,block_m=64";
        let schedule: Schedule = given.parse().expect("a schedule");
        let text = schedule.to_string();
        assert_eq!(text, "defaults,stages=3,split_k=4,combine.block_m=32,combine.warps=2");
        let other: Schedule = "block_n=128,prepare.block_m=32".parse().expect("a schedule");
        assert_eq!(other.with(&text), Ok(schedule.clone()));
        assert!(Schedule::is_whole(&text) && !Schedule::is_whole(given));
        let both = other.with(given).expect("a schedule");
        assert_eq!((both.main.block_n, both.main.stages, both.beside.len()), (128, 3, 2));
    }

    #[test]
    fn every_knob_of_a_launch_is_one_of_any_launch_and_no_other_is() {
        for knob in KNOBS {
            let value = (knob.get)(&Schedule::default());
            let parsed = format!("combine.{}={value}", knob.name).parse::<Schedule>();
            match knob.scope {
                Scope::Block => {
                    let schedule = parsed.expect("a knob of a launch");
                    assert_eq!(schedule.main, Schedule::default().main, "{}", knob.name);
                    let given: Vec<_> = schedule.beside["combine"].iter().collect();
                    assert_eq!(given, [(knob.name, value.as_str())]);
                }
                Scope::Launches => {
                    let error = parsed.expect_err("is about all launches").to_string();
                    assert!(error.starts_with(&format!("`{}` is no knob of a single launch", knob.name)), "{error}");
                    assert!(error.contains("the knobs of a launch are block_m, block_n"), "{error}");
                }
            }
        }
        let error = |text: &str| text.parse::<Schedule>().expect_err(text).to_string();
        assert_eq!(error("combine.warps=x"), "`x` is not a value of knob `warps`; expected a non-negative number");
        assert!(error("combine.wraps=1").starts_with("unknown knob `wraps`"));
        assert!(error("stages=1,defaults").contains("write it first"));
    }

    #[test]
    fn overrides_are_kept_as_json_and_refused_if_they_are_no_knobs() {
        let schedule: Schedule = "split_k=4,combine.block_m=32".parse().expect("a schedule");
        let json = serde_json::to_string(&schedule).expect("plain data");
        assert_eq!(serde_json::from_str::<Schedule>(&json).expect("reads back"), schedule);
        for wrong in [r#""block_q":"32""#, r#""split_k":"2""#, r#""block_m":"many""#] {
            let wrong = json.replace(r#""block_m":"32""#, wrong);
            assert!(serde_json::from_str::<Schedule>(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_knob_requires_is_a_knob_of_a_launch_and_values_of_it() {
        for knob in KNOBS {
            for requires in knob.requires {
                let other = Knob::named(requires.knob).expect("a knob");
                assert!(other.scope == Scope::Block && knob.scope == Scope::Block, "{}", knob.name);
                let (values, numbers) = ((other.values)(), other.numbers);
                let is_one = |value: &&str| values.contains(value) || numbers.iter().any(|n| n.to_string() == **value);
                assert!(requires.values.iter().all(is_one), "{}", knob.name);
            }
        }
    }
}
