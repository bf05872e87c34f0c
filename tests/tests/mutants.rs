//! The check of the checker: kernels that differ from a kernel in one place must fail its `verify`.
//!
//! Every built-in kernel and every kernel of `tests/kernels` is mutated in every place ([`flashtile_tests::mutants`]). A mutant is
//! judged on the inputs and shapes that `verify` takes by default, with its tolerance, but interpreted. Those that pass are listed
//! in `tests/mutants.txt`, each with the reason. A mutant that passes and is not listed fails the test; so does a listed one that
//! is found now. A mutant that is said to be equivalent must give the same in f64, where nothing is rounded: on those inputs,
//! on inputs of other seeds, and on shapes that `verify` does not take.
//!
//! `FLASHTILE_BLESS=1` writes the list anew: reasons stay, and what has none gets `?`, which fails until a reason is given.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use flashtile::kernel::BUILTINS;
use flashtile::tuner::{InputData, Trial, steep_data};
use flashtile::verify::{Programs, STEEP_SHAPES, default_consts, default_shapes, is_walked};
use flashtile::{BoundKernel, Elem, Kernel};
use flashtile_tests::mutants::{Mutant, mutants};

/// Positions of a tile of a loop, as on the CPU device.
const BLOCK: usize = 64;
/// Programs on which all mutants are judged. Those that pass are judged on all programs of `verify`.
const SAMPLE: Programs = Programs::Sample { count: 6, seed: 1 };
/// Results that nothing rounds differ by no more than this where two texts mean the same.
const EQUAL: f64 = 1e-9;
/// The share of mutants that change the meaning and are found.
const FOUND: f64 = 0.98;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every kernel with its name, that of its file, bound as `verify` binds it.
fn kernels() -> Vec<(String, BoundKernel)> {
    let entries = std::fs::read_dir(folder().join("kernels")).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    let bind = |kernel: Kernel| {
        let consts = default_consts(kernel.ir(), &BTreeMap::new());
        kernel.bind(Elem::Bf16, consts.iter().map(|(n, v)| (n.as_str(), *v))).expect("binds")
    };
    let built_in = BUILTINS.iter().map(|b| (b.name.to_owned(), bind(Kernel::builtin(b.name).expect(b.name))));
    let own = paths.iter().map(|path| {
        let kernel = Kernel::open(&path.to_string_lossy()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path.file_stem().expect("a file has a name").to_string_lossy().into_owned(), bind(kernel))
    });
    // What `nest0` stores depends on the size of tiles: it adds the same once for each tile of `C`.
    built_in.chain(own).filter(|(name, _)| name != "nest0").collect()
}

/// What a list says of the mutants that pass.
#[derive(Default)]
struct List {
    /// Reasons by tag, and whether what has them means the same as the kernel.
    reasons: BTreeMap<String, (bool, String)>,
    /// Tags by mutant.
    tags: BTreeMap<String, String>,
}

impl List {
    fn path() -> PathBuf {
        folder().join("mutants.txt")
    }

    fn read() -> Self {
        let mut list = Self::default();
        for line in std::fs::read_to_string(Self::path()).unwrap_or_default().lines() {
            if let Some((tag, mutant)) = line.split_once(" | ") {
                list.tags.insert(mutant.trim().to_owned(), tag.trim().to_owned());
            } else if let Some((kind, (tag, reason))) = line.split_once(' ').and_then(|(k, r)| Some((k, r.split_once(": ")?)))
                && (kind == "equivalent" || kind == "unseen")
            {
                list.reasons.insert(tag.to_owned(), (kind == "equivalent", reason.to_owned()));
            }
        }
        list
    }
}

/// Mutants of one kernel.
struct Judged {
    all: usize,
    /// Those that pass, by name, with their largest difference where nothing is rounded.
    passed: Vec<(String, f64)>,
}

/// What `verify` judges a kernel on by default: its shapes, the first of them on steep inputs too, if the kernel bears them.
fn trials(kernel: &BoundKernel, programs: Programs) -> Vec<Trial> {
    let shapes = default_shapes(kernel.ir(), &kernel.binding().consts);
    let plain = InputData::default();
    let trial = |shape: &BTreeMap<String, i64>, data: &InputData| Trial::new(kernel, shape, 0, data, programs).expect("draws");
    let mut trials: Vec<Trial> = shapes.iter().map(|shape| trial(shape, &plain)).collect();
    let steep = shapes.iter().take(STEEP_SHAPES).filter_map(|shape| {
        let data = steep_data(kernel, shape, &plain).expect("fits")?;
        Some(trial(shape, &data)).filter(Trial::is_steady)
    });
    trials.extend(steep);
    trials
}

/// Further inputs for mutants that may be equivalent: other seeds, and shapes that are one smaller where there is something.
fn others(kernel: &BoundKernel) -> Vec<Trial> {
    let shapes = default_shapes(kernel.ir(), &kernel.binding().consts);
    let mut walked: Vec<BTreeMap<String, i64>> = Vec::new();
    for shape in &shapes {
        let smaller = |(name, size): (&String, &i64)| {
            let less = if is_walked(kernel.ir(), name) && *size > 1 { size - 1 } else { *size };
            (name.clone(), less)
        };
        walked.extend([shape.clone(), shape.iter().map(smaller).collect()]);
    }
    let trial = |(seed, shape): (usize, &BTreeMap<String, i64>)| {
        // Sizes that must be a multiple of something may not bear another length.
        Trial::new(kernel, shape, seed as u64 + 1, &InputData::default(), Programs::All).ok()
    };
    walked.iter().enumerate().filter_map(trial).collect()
}

/// Whether the mutant is right on all of these.
fn passes(kernel: &BoundKernel, mutant: &Mutant, trials: &[Trial]) -> bool {
    trials.iter().all(|trial| {
        let verdicts = trial.judge(&mutant.kernel, kernel.binding(), BLOCK);
        verdicts.is_ok_and(|verdicts| verdicts.iter().all(|v| v.passed()))
    })
}

fn judged((name, kernel): &(String, BoundKernel)) -> Judged {
    let sample = trials(kernel, SAMPLE);
    for trial in &sample {
        let own = trial.judge(kernel.ir(), kernel.binding(), BLOCK).expect("runs");
        assert!(own.iter().all(|v| v.passed()), "{name} itself is wrong: {own:?}");
        assert!(trial.difference(kernel.ir(), kernel.binding(), BLOCK).expect("runs") <= EQUAL, "{name} differs from itself");
    }
    let mutants = mutants(kernel.ir());
    let mut left: Vec<(usize, &Mutant)> =
        mutants.iter().enumerate().filter(|(_, mutant)| passes(kernel, mutant, &sample)).collect();
    let whole = trials(kernel, Programs::All);
    left.retain(|(_, mutant)| passes(kernel, mutant, &whole));
    let others = if left.is_empty() { Vec::new() } else { others(kernel) };
    let mut passed = Vec::new();
    for (_, mutant) in left {
        let difference = |trial: &Trial| trial.difference(&mutant.kernel, kernel.binding(), BLOCK).unwrap_or(f64::INFINITY);
        let (line, column) = mutant.place;
        let mut text = format!("{name} {line}:{column} {}", mutant.change);
        while passed.iter().any(|(other, _)| *other == text) {
            text.push_str(" again");
        }
        passed.push((text, whole.iter().chain(&others).map(difference).fold(0.0, f64::max)));
    }
    Judged { all: mutants.len(), passed }
}

#[test]
fn mutants_fail_verify() {
    use rayon::prelude::*;
    let kernels = kernels();
    let judged: Vec<Judged> = kernels.par_iter().map(judged).collect();
    let list = List::read();
    let mut problems = Vec::new();
    let (mut all, mut equivalent, mut unseen) = (0, 0, 0);
    let mut found = BTreeSet::new();
    for judged in &judged {
        all += judged.all;
        for (mutant, difference) in &judged.passed {
            found.insert(mutant.clone());
            match list.tags.get(mutant).and_then(|tag| list.reasons.get(tag)) {
                None => {
                    unseen += 1;
                    problems.push(format!("passes, and no reason is given (differs by {difference:.1e}): {mutant}"));
                }
                Some((true, reason)) => {
                    equivalent += 1;
                    if *difference > EQUAL {
                        problems.push(format!("differs by {difference:.1e}, but is said to be equivalent ({reason}): {mutant}"));
                    }
                }
                Some((false, _)) => unseen += 1,
            }
        }
    }
    for mutant in list.tags.keys().filter(|m| !found.contains(*m)) {
        problems.push(format!("is listed, but does not pass: {mutant}"));
    }
    let changing = all - equivalent;
    let share = (changing - unseen) as f64 / changing as f64;
    if std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1") {
        bless(&list, &judged);
    }
    println!("{all} mutants, {equivalent} equivalent, {unseen} not seen: {:.2}% found", share * 100.0);
    assert!(problems.is_empty(), "{} problems (FLASHTILE_BLESS=1 lists anew)\n{}", problems.len(), problems.join("\n"));
    assert!(share >= FOUND, "only {:.2}% of the mutants that change the meaning are found", share * 100.0);
    assert!(all > 1000, "only {all} mutants were made");
}

fn bless(list: &List, judged: &[Judged]) {
    let mut text = String::from(
        "Mutants that pass `verify`, by tests/mutants.rs. First the reasons, then each mutant with the tag of its reason.\n\n",
    );
    for kind in [true, false] {
        for (tag, (_, reason)) in list.reasons.iter().filter(|(_, (equivalent, _))| *equivalent == kind) {
            let kind = if kind { "equivalent" } else { "unseen" };
            let _ = writeln!(text, "{kind} {tag}: {reason}");
        }
    }
    for judged in judged.iter().filter(|j| !j.passed.is_empty()) {
        text.push('\n');
        for (mutant, difference) in &judged.passed {
            let tag = list.tags.get(mutant).map_or("?", String::as_str);
            let note = if tag == "?" { format!("   <- differs by {difference:.1e}") } else { String::new() };
            let _ = writeln!(text, "{tag} | {mutant}{note}");
        }
    }
    std::fs::write(List::path(), text).expect("the list is written");
}
