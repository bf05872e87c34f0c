//! The values of a knob, with the reasons against each.

use flashtile_codegen::{Knob, check};
use serde_json::{Value, json};

use crate::request::Asked;
use crate::subject::{Fault, Subject, words};

/// Each value in the schedule that the request means, everything else as it is.
pub fn values(asked: &Asked, name: &str) -> Result<Value, Fault> {
    let subject = Subject::of(asked)?;
    let knob = Knob::named(name).ok_or_else(|| Fault::plain(format!("`{name}` is not a knob")))?;
    let schedule = subject.schedule(&asked.schedule)?;
    let current = (knob.get)(&schedule);
    let mut offered: Vec<String> = (knob.values)().into_iter().map(str::to_owned).collect();
    offered.extend(knob.numbers.iter().map(u32::to_string));
    if !offered.contains(&current) {
        offered.insert(0, current.clone());
    }
    let one = |value: &String| {
        let mut changed = schedule.clone();
        let reasons = match (knob.set)(&mut changed, value) {
            true => words(&check(&subject.generated, &changed, subject.arch).reasons),
            false => vec![format!("`{value}` is no value of `{name}`")],
        };
        json!({ "value": value, "current": *value == current, "reasons": reasons })
    };
    Ok(json!({ "values": offered.iter().map(one).collect::<Vec<_>>() }))
}
