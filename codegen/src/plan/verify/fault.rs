//! Faults as they are found: each with the line at which it shows, if the plan was read from a
//! text.

use std::collections::BTreeSet;

/// Faults, without repetition.
#[derive(Clone, Default, Debug)]
pub(super) struct Faults {
    /// Line of the statement in progress; 0 for none.
    pub at: u32,
    found: BTreeSet<(u32, String)>,
}

impl Faults {
    /// Adds a fault of the statement in progress.
    pub fn insert(&mut self, what: impl Into<String>) {
        self.found.insert((self.at, what.into()));
    }

    /// Adds faults that were found elsewhere.
    pub fn join(&mut self, other: Faults) {
        self.found.extend(other.found);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Each as a sentence, with its line.
    pub fn sentences(self) -> impl Iterator<Item = String> {
        self.found.into_iter().map(|(line, what)| if line == 0 { what } else { format!("line {line}: {what}") })
    }
}
