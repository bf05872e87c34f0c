//! A candidate: its time, its place among the others, and what became of it in words.

use std::cmp::Ordering;

use flashtile::cache::{Candidate, Outcome, Stage};

/// Whether it has a time that is compared with others: nothing spoke against it.
pub fn in_the_race(candidate: &Candidate) -> bool {
    matches!(candidate.outcome, Outcome::Measured | Outcome::Predicted | Outcome::Eliminated { .. })
}

/// Seconds of a run: measured, or predicted.
pub fn time(candidate: &Candidate) -> f64 {
    candidate.measured.as_ref().map_or(candidate.predicted, |m| m.median)
}

/// Best first: by the run-off under load, which decides among the best few, then by the time of a
/// run.
pub fn order(a: &Candidate, b: &Candidate) -> Ordering {
    let under_load = |c: &Candidate| c.under_load.as_ref().map_or(f64::INFINITY, |m| m.median);
    under_load(a).total_cmp(&under_load(b)).then(time(a).total_cmp(&time(b)))
}

/// Groups of candidates, in the order of the page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fate {
    /// The fastest.
    Winner,
    /// It has a time.
    Slower,
    /// The search ended before its turn.
    Skipped,
    /// It is out, for a reason that running or compiling it has shown.
    Failed,
    /// It was refused before there was code.
    Refused,
}

/// What became of a candidate.
pub fn fate(candidate: &Candidate, is_winner: bool) -> Fate {
    match &candidate.outcome {
        _ if is_winner => Fate::Winner,
        Outcome::Measured | Outcome::Predicted | Outcome::Eliminated { .. } => Fate::Slower,
        Outcome::NotTried => Fate::Skipped,
        Outcome::Rejected { stage: Stage::Legality | Stage::Generate, .. } => Fate::Refused,
        Outcome::Rejected { .. } => Fate::Failed,
    }
}

/// What became of a candidate, in words. `best` is the winner, `ended` says why the search ended.
pub fn verdict(candidate: &Candidate, best: Option<&Candidate>, ended: &str) -> String {
    let slower = || match best.map(|best| time(candidate) / time(best)) {
        Some(factor) if factor >= 2.0 => format!("slower: {factor:.1} times the winner's time"),
        Some(factor) if factor > 1.0 => format!("slower by {:.2}%", 100.0 * (factor - 1.0)),
        Some(_) => "as fast by itself, but slower than the winner under load".to_owned(),
        None => "there is no winner".to_owned(),
    };
    match &candidate.outcome {
        _ if best.is_some_and(|best| std::ptr::eq(best, candidate)) => "winner".to_owned(),
        Outcome::Measured => slower(),
        Outcome::Predicted if best.is_some_and(|best| time(candidate) <= time(best)) => {
            "not measured, predicted as fast as the winner".to_owned()
        }
        Outcome::Predicted => format!("not measured, predicted {}", slower()),
        Outcome::Eliminated { round } => format!("{}; eliminated in round {round}", slower()),
        Outcome::NotTried => format!("not measured: the search ended before its turn ({ended})"),
        Outcome::Rejected { stage, reason } => format!("{}: {reason}", stage_words(*stage)),
    }
}

fn stage_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Legality => "not measured: refused by the plan",
        Stage::Generate => "not measured: refused by the code generator",
        Stage::Compile => "not measured: it does not compile",
        Stage::Remark => "not measured: ptxas serialises it",
        Stage::Spills => "not measured: it spills registers",
        Stage::Launch => "not measured: it does not run",
        Stage::Check => "not measured: it failed its check",
        Stage::Conflicts => "out: bank conflicts",
    }
}
