//! Which cases a run takes of many: a share, another one by its seed. `FLASHTILE_SEED` repeats a run,
//! and `FLASHTILE_PAIRS=all` takes every case.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// One for all tests of a program, however long they take.
static OF_RUN: LazyLock<Turn> = LazyLock::new(Turn::asked_for);

/// The turn of a run.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Chooses the share, and what else a test draws.
    pub seed: u64,
    /// Whether every case is taken.
    pub takes_all: bool,
}

impl Turn {
    /// That of this run. Its seed is printed, for a failure to be repeated.
    ///
    /// # Panics
    /// If `FLASHTILE_SEED` is not a number.
    pub fn of_run() -> Self {
        println!("FLASHTILE_SEED={}", OF_RUN.seed);
        *OF_RUN
    }

    fn asked_for() -> Self {
        let seed = match std::env::var("FLASHTILE_SEED") {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("FLASHTILE_SEED={text} is not a number")),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs(),
        };
        let takes_all = std::env::var_os("FLASHTILE_PAIRS").is_some_and(|value| value == "all");
        Self { seed, takes_all }
    }

    /// Whether a case of this number is taken, where a run takes one of so many.
    pub fn has(self, number: usize, of: usize) -> bool {
        self.takes_all || number % of == (self.seed % of as u64) as usize
    }

    /// Those of some items, such as architectures, that a case of this number is run with: one, or all.
    pub fn some_of<T>(self, number: usize, items: &[T]) -> impl Iterator<Item = &T> {
        let turn = move |at: usize| self.has(number + at, items.len());
        items.iter().enumerate().filter(move |(at, _)| turn(*at)).map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_follow_each_other_take_every_case() {
        let taken = |seed: u64| {
            let turn = Turn { seed, takes_all: false };
            (0..10).flat_map(move |number| turn.some_of(number, &["a", "b", "c"]).map(move |item| (number, *item)))
        };
        assert_eq!(taken(7).count(), 10);
        let mut all: Vec<_> = (7..10).flat_map(taken).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 30);
        let turn = Turn { seed: 7, takes_all: true };
        assert_eq!(turn.some_of(4, &["a", "b", "c"]).count(), 3);
    }
}
