//! The search against a device of invented times and a clock that the measurements move.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use flashtile_codegen::Schedule;

use super::bench::{Bench, Compilation, Compiler, Rejection};
use super::options::{Cancel, Event};
use super::search::{Found, Limits, Stop, search};
use crate::cache::{Candidate, Outcome, Stage};
use crate::toolchain::PtxasReport;

/// What happens to the candidate of each `block_m`.
#[derive(Clone, Debug, Default)]
struct Fate {
    seconds: f64,
    /// How much longer it takes under load.
    slower: f64,
    fails_under_load: Option<&'static str>,
    reject: Option<Rejection>,
    spills: u32,
    remark: Option<&'static str>,
    /// Whether others that begin later are compiled before it.
    compiles_late: bool,
    /// Whether its second run, the first that counts, stands still for ten times as long.
    stalls: bool,
}

fn runs(seconds: f64) -> Fate {
    Fate { seconds, ..Fate::default() }
}

struct World {
    fates: Vec<Fate>,
    clock: Cell<f64>,
    /// Every run: candidate.
    log: RefCell<Vec<usize>>,
}

struct Fake<'a>(&'a World);

fn compile(fates: &[Fate], schedule: &Schedule) -> Result<Compilation<usize>, Rejection> {
    let code = schedule.main.block_m as usize;
    if let Some(rejection) = fates[code].reject.clone().filter(|r| r.stage == Stage::Compile) {
        return Err(rejection);
    }
    if fates[code].compiles_late {
        std::thread::sleep(Duration::from_millis(100));
    }
    let remarks = fates[code].remark.iter().map(|r| (*r).to_owned()).collect();
    let report = PtxasReport { spill_stores: fates[code].spills, remarks, ..PtxasReport::default() };
    Ok(Compilation { code, source_hash: format!("{code}"), report, seconds: 0.1, max_error: None })
}

/// Only the fates are shared with the compiling threads.
struct Fates(Vec<Fate>);

impl Compiler for Fates {
    type Code = usize;
    fn compile(&self, schedule: &Schedule) -> Result<Compilation<usize>, Rejection> {
        compile(&self.0, schedule)
    }
}

impl Bench<usize> for Fake<'_> {
    type Loaded = usize;

    fn check(&mut self, code: usize) -> Result<(usize, f64), Rejection> {
        match self.0.fates[code].reject.clone().filter(|r| r.stage == Stage::Check) {
            Some(rejection) => Err(rejection),
            None => Ok((code, 1e-3)),
        }
    }

    fn time(&mut self, loaded: &usize) -> Result<f64, Rejection> {
        self.0.log.borrow_mut().push(*loaded);
        if let Some(rejection) = self.0.fates[*loaded].reject.clone().filter(|r| r.stage == Stage::Launch) {
            return Err(rejection);
        }
        // A little noise, the same in every test.
        let noise = 1.0 + 0.01 * ((self.0.log.borrow().len() * 7919 % 100) as f64 / 100.0 - 0.5);
        let stalls = self.0.fates[*loaded].stalls && self.0.log.borrow().iter().filter(|&l| l == loaded).count() == 2;
        let seconds = self.0.fates[*loaded].seconds * noise * if stalls { 10.0 } else { 1.0 };
        self.0.clock.set(self.0.clock.get() + seconds);
        Ok(seconds)
    }

    fn time_under_load(&mut self, loaded: &usize) -> Result<f64, Rejection> {
        if let Some(reason) = self.0.fates[*loaded].fails_under_load {
            return Err(Rejection::new(Stage::Launch, reason));
        }
        Ok(self.time(loaded)? + self.0.fates[*loaded].slower)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.0.clock.get())
    }
}

struct Run {
    found: Found,
    candidates: Vec<Candidate>,
    log: Vec<usize>,
    events: Vec<Event>,
    kept: usize,
}

fn run_with(fates: &[Fate], budget: f64, roofline: f64, cancel: &Cancel, known: Option<Vec<Candidate>>) -> Run {
    run_from(0.0, fates, budget, roofline, cancel, known)
}

/// A search that begins when the clock shows so many seconds.
fn run_after(seconds: f64, fates: &[Fate], budget: f64) -> Run {
    run_from(seconds, fates, budget, 0.0, &Cancel::default(), None)
}

fn run_from(clock: f64, fates: &[Fate], budget: f64, roofline: f64, cancel: &Cancel, known: Option<Vec<Candidate>>) -> Run {
    let world = World { fates: fates.to_vec(), clock: Cell::new(clock), log: RefCell::default() };
    let fresh = |i: usize| Candidate::new(Schedule::default().with_main(|main| main.block_m = i as u32), i as f64);
    let mut candidates = known.unwrap_or_else(|| (0..fates.len()).map(fresh).collect());
    let events = RefCell::new(Vec::new());
    let jobs = if fates.iter().any(|fate| fate.compiles_late) { 2 } else { 1 };
    let limits = Limits { budget: Duration::from_secs_f64(budget), jobs, spill_limit: 64, roofline, cancel };
    let mut kept = 0;
    let on_event = |event: &Event| events.borrow_mut().push(event.clone());
    let mut keep = |_: &[Candidate]| kept += 1;
    let found = search(&mut candidates, &Fates(fates.to_vec()), Fake(&world), &limits, &on_event, &mut keep);
    Run { found, candidates, log: world.log.into_inner(), events: events.into_inner(), kept }
}

fn run(fates: &[Fate]) -> Run {
    run_with(fates, 1e9, 0.0, &Cancel::default(), None)
}

#[test]
fn the_fastest_wins_and_losers_are_dropped_early() {
    let run = run(&[5.0, 2.0, 1.0, 1.01, 1.1, 1.4, 9.0].map(runs));
    assert_eq!(run.found, Found { winner: Some(2), stop: Stop::Exhausted });
    let outcome = |i: usize| &run.candidates[i].outcome;
    assert_eq!(*outcome(6), Outcome::Eliminated { round: 1 });
    assert_eq!(*outcome(5), Outcome::Eliminated { round: 2 });
    assert_eq!(*outcome(4), Outcome::Eliminated { round: 3 });
    assert_eq!((outcome(2), outcome(3)), (&Outcome::Measured, &Outcome::Measured));
    let times = |i: usize| run.log.iter().filter(|&&l| l == i).count();
    assert_eq!(times(6), 3, "one warm-up and two runs at nine times the best");
    assert!(times(2) == times(3) && times(2) > 30, "the best two have as many runs: {} and {}", times(2), times(3));
    assert!(run.events.iter().any(|e| matches!(e, Event::RunOff { .. })));
    assert!(run.candidates.iter().all(|c| c.measured.is_some() && c.max_error == Some(1e-3)));
    assert!(run.kept >= 1);
}

#[test]
fn a_stall_beside_one_run_does_not_put_a_candidate_out() {
    let run = run(&[runs(1.2), Fate { stalls: true, ..runs(1.0) }, runs(1.3)]);
    assert_eq!(run.found, Found { winner: Some(1), stop: Stop::Exhausted });
}

/// One of each kind is waited for beyond the budget; the best of them still run against each other.
#[test]
fn the_run_off_has_time_also_where_the_first_round_took_all() {
    let hot = Fate { slower: 1.0, ..runs(5.0) };
    let run = run_with(&[hot, runs(5.1)], 40.0, 0.0, &Cancel::default(), None);
    assert!(run.candidates.iter().all(|c| c.measured.as_ref().is_some_and(|m| m.repetitions > 3)), "{:?}", run.candidates);
}

#[test]
fn what_is_best_under_load_wins_among_the_best() {
    let hot = Fate { slower: 0.2, ..runs(1.0) };
    let run = run(&[hot, runs(1.03), runs(1.02), runs(1.3)]);
    assert_eq!(run.found, Found { winner: Some(2), stop: Stop::Exhausted });
    let loaded: Vec<bool> = run.candidates.iter().map(|c| c.under_load.is_some()).collect();
    assert_eq!(loaded, [true, true, true, false]);
    assert!(run.candidates[0].measured.as_ref().is_some_and(|m| m.median < 1.01), "single runs are kept apart");
    assert!(run.events.contains(&Event::RunOff { candidates: 3 }));
}

#[test]
fn what_fails_under_load_is_out() {
    let failing = Fate { fails_under_load: Some("unspecified launch failure"), ..runs(1.0) };
    let run = run(&[failing, runs(1.03), runs(1.02)]);
    assert_eq!(run.found, Found { winner: Some(2), stop: Stop::Exhausted });
    assert!(matches!(&run.candidates[0].outcome, Outcome::Rejected { stage: Stage::Launch, .. }));
}

#[test]
fn every_rejection_says_where_and_why() {
    let out = |stage, reason: &str| Fate { reject: Some(Rejection::new(stage, reason)), ..runs(0.1) };
    let mut fates = [
        out(Stage::Compile, "syntax"),
        out(Stage::Check, "max error 0.5"),
        out(Stage::Launch, "invalid argument"),
        Fate { spills: 65, ..runs(0.1) },
        Fate { spills: 64, ..runs(1.0) },
        Fate { remark: Some("(C7510) serialized"), ..runs(0.1) },
    ];
    fates[1].reject.as_mut().expect("is out").max_error = Some(0.5);
    let run = run(&fates);
    assert_eq!(run.found.winner, Some(4), "the fast ones are wrong, and a few bytes of spills are allowed");
    let rejected = |i: usize| match &run.candidates[i].outcome {
        Outcome::Rejected { stage, reason } => (*stage, reason.as_str()),
        other => panic!("candidate {i} is {other:?}"),
    };
    assert_eq!(rejected(0), (Stage::Compile, "syntax"));
    assert_eq!(rejected(1), (Stage::Check, "max error 0.5"));
    assert_eq!(run.candidates[1].max_error, Some(0.5), "the error of wrong results is kept");
    assert_eq!(rejected(2), (Stage::Launch, "invalid argument"));
    assert_eq!(rejected(3), (Stage::Spills, "65 bytes of spills, 64 are allowed"));
    assert_eq!(rejected(5), (Stage::Remark, "(C7510) serialized"));
    assert!(!run.log.contains(&1), "nothing is timed before it is right");
}

/// Inputs and an oracle that take three times the budget leave a winner all the same.
#[test]
fn a_budget_that_was_spent_before_the_search_gives_a_winner() {
    let run = run_after(6.0, &[runs(0.2), runs(0.1)], 2.0);
    assert!(run.found.winner.is_some(), "{:?}", run.found);
}

/// A budget that is spent before anything was measured, on the ranking say, still gives a winner.
#[test]
fn a_search_goes_on_until_something_is_measured() {
    let fates: Vec<Fate> = (0..10).map(|i| runs(1.0 + 0.001 * i as f64)).collect();
    let run = run_with(&fates, 2.0, 0.0, &Cancel::default(), None);
    assert_eq!((run.found.stop, run.found.winner), (Stop::Budget, Some(0)));
}

#[test]
fn the_budget_ends_the_first_round_and_leaves_time_for_the_others() {
    let fates: Vec<Fate> = (0..100).map(|i| runs(1.0 + 0.001 * i as f64)).collect();
    let run = run_with(&fates, 100.0, 0.0, &Cancel::default(), None);
    assert_eq!(run.found.stop, Stop::Budget);
    let tried = run.candidates.iter().filter(|c| c.tried()).count();
    assert!((15..25).contains(&tried), "{tried} candidates of four runs of a second in 75 s");
    assert!(run.found.winner.is_some_and(|w| w < 25));
    assert!(run.events.iter().any(|e| matches!(e, Event::Round { round: 2, .. })));
    assert_eq!(run.candidates[99].outcome, Outcome::NotTried);
}

#[test]
fn a_candidate_at_the_roofline_ends_the_search() {
    let run = run_with(&[3.0, 1.0, 1.0, 1.0].map(runs), 1e9, 0.99, &Cancel::default(), None);
    assert_eq!(run.found, Found { winner: Some(1), stop: Stop::Roofline });
    assert_eq!(run.candidates[3].outcome, Outcome::NotTried);
}

#[test]
fn cancelling_keeps_what_is_known() {
    let cancel = Cancel::default();
    cancel.cancel();
    let run = run_with(&[1.0, 2.0].map(runs), 1e9, 0.0, &cancel, None);
    assert_eq!((run.found, run.kept), (Found { winner: None, stop: Stop::Cancelled }, 1));
}

#[test]
fn a_lost_device_ends_the_search_with_its_reason() {
    let lost = Rejection { fatal: true, ..Rejection::new(Stage::Launch, "CUDA_ERROR_ILLEGAL_ADDRESS") };
    let run = run(&[runs(1.0), Fate { reject: Some(lost), ..runs(1.0) }, runs(0.5)]);
    assert_eq!(run.found.stop, Stop::DeviceLost("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned()));
    assert_eq!(run.found.winner, Some(0), "what was measured before stands");
    assert!(matches!(run.candidates[1].outcome, Outcome::Rejected { stage: Stage::Launch, .. }));
}

#[test]
fn evidence_of_an_earlier_search_is_used() {
    let fates = [5.0, 1.0, 1.2, 1.02].map(runs);
    let first = run(&fates);
    let again = run_with(&fates, 1e9, 0.0, &Cancel::default(), Some(first.candidates));
    assert_eq!(again.found.winner, Some(1));
    assert!(!again.log.contains(&2), "eliminated before, and so is the slow one");
    assert!(again.events.contains(&Event::Started { candidates: 4, known: 2 }), "{:?}", again.events[0]);
}

#[test]
fn nothing_to_try_finds_nothing() {
    assert_eq!(run(&[]).found, Found { winner: None, stop: Stop::Exhausted });
}

#[test]
fn the_best_predicted_is_tried_even_if_others_are_compiled_before_it() {
    let late = |seconds| Fate { compiles_late: true, ..runs(seconds) };
    let of = |budget| run_with(&[late(1.0), runs(3.0), runs(3.0), runs(3.0)], budget, 0.0, &Cancel::default(), None);
    let run = of(10.0);
    assert_eq!(run.found, Found { winner: Some(0), stop: Stop::Budget });
    assert!(run.candidates[2].measured.is_none(), "what is not waited for is not tried beyond the budget");
    assert_eq!(of(5.0).found, Found { winner: Some(0), stop: Stop::Budget });
}

/// What the model ranks first is what is left of a search that has no time for a second candidate,
/// also where its code takes longest to compile.
#[test]
fn the_first_of_the_ranking_is_tried_first() {
    let run = run_after(6.0, &[Fate { compiles_late: true, ..runs(0.1) }, runs(0.3)], 2.0);
    assert_eq!(run.found.winner, Some(0), "{:?}", run.found);
}
