//! The cache between processes: writers killed in the middle of a write, and two processes that tune at once.
//!
//! Has a `main` of its own, since it starts itself as the other processes. Needs NVRTC: found, or installed once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flashtile::cache::{Cache, ModuleKey, ModuleRecord};
use flashtile::toolchain::PtxasReport;
use flashtile::tuner::{TuneOptions, tune};
use flashtile::{Arch, Device, Elem, Kernel, Schedule};

const TESTS: &[(&str, fn())] = &[
    ("writers_killed_in_the_middle_leave_whole_entries", writers_killed_in_the_middle_leave_whole_entries),
    ("two_processes_tune_at_once_and_lose_nothing", two_processes_tune_at_once_and_lose_nothing),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["as-writer", directory] => write_for_ever(Path::new(directory)),
        ["as-tuner", directory, stages] => tune_one(Path::new(directory), stages.parse().expect("a number")),
        // What `cargo test -- --list` and editors ask for.
        ["--list", ..] => TESTS.iter().for_each(|(name, _)| println!("{name}: test")),
        _ => {
            let filter = arguments.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_default();
            for (name, test) in TESTS.iter().filter(|(name, _)| name.contains(&filter)) {
                test();
                println!("test {name} ... ok");
            }
        }
    }
}

fn start(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    Command::new(program).args(arguments).spawn().expect("starts")
}

/// A record large enough that a kill often comes in the middle of its write.
fn record(content: u8) -> ModuleRecord {
    ModuleRecord {
        key: ModuleKey::new("source", "sm_80"),
        nvrtc: (13, 0),
        report: PtxasReport::default(),
        cubin: vec![content; 1 << 20],
        ptx: String::new(),
    }
}

fn write_for_ever(directory: &Path) {
    let cache = Cache::at(directory);
    for content in (0..=u8::MAX).cycle() {
        assert!(cache.keep_module(&record(content)));
    }
}

fn writers_killed_in_the_middle_leave_whole_entries() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = warnings.clone();
    let cache = Cache::with_warnings(path, move |line| told.lock().expect("no panic").push(line.to_owned()));
    let mut found = 0;
    for round in 0..12u64 {
        let mut writers = [start(&["as-writer", path]), start(&["as-writer", path])];
        let end = Instant::now() + Duration::from_millis(60 + 17 * round);
        while Instant::now() < end {
            // While they write, a reader sees whole entries.
            if let Some(entry) = cache.module(&record(0).key, None) {
                found += 1;
                assert!(entry.cubin.iter().all(|&b| b == entry.cubin[0]) && entry.cubin.len() == 1 << 20);
            }
        }
        for writer in &mut writers {
            writer.kill().expect("kills"); // SIGKILL
            writer.wait().expect("ends");
        }
    }
    assert!(found > 0, "the writers wrote");
    // The lock of the killed is free, what they left is swept, and the entry is as good as ever.
    assert!(cache.keep_module(&record(7)));
    assert_eq!(cache.module(&record(0).key, None), Some(record(7)));
    let files: Vec<_> = std::fs::read_dir(directory.path().join("modules")).expect("is there").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(*warnings.lock().expect("no panic"), Vec::<String>::new());
}

/// Tunes over two schedules of this number of stages, for the model of sm_80.
fn tune_one(directory: &Path, stages: u32) {
    let kernel = Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
    let schedule = |block_m: u32| {
        Schedule::default().with_main(|main| (main.stages, main.block_m, main.warps) = (stages, block_m, block_m / 16))
    };
    let options = TuneOptions {
        arch: Arch::named("sm_80"),
        schedules: Some(vec![schedule(64), schedule(128)]),
        cache: Cache::with_warnings(directory, |line| panic!("{line}")),
        ..TuneOptions::default()
    };
    let report = tune(&kernel, &sizes(), &Device::cpu(), &options).expect("tunes");
    assert!(report.kept && report.record.candidates.len() == 2);
}

fn sizes() -> BTreeMap<String, i64> {
    [("B", 1), ("H", 4), ("G", 4), ("M", 512), ("N", 512)].map(|(name, size)| (name.to_owned(), size)).into()
}

fn two_processes_tune_at_once_and_lose_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let mut tuners = [start(&["as-tuner", path, "1"]), start(&["as-tuner", path, "2"])];
    for tuner in &mut tuners {
        assert!(tuner.wait().expect("ends").success());
    }
    let cache = Cache::at(path);
    let list = cache.list().expect("lists");
    assert!(list.iter().all(|entry| entry.fault.is_none()), "{list:?}");
    let tunings: Vec<_> = list.iter().filter(|entry| entry.path.parent().is_some_and(|p| p.ends_with("tuning"))).collect();
    assert_eq!((tunings.len(), list.len()), (1, 5), "one record, the code of four schedules: {list:?}");
    assert!(tunings[0].description.contains("4 candidates"), "{}", tunings[0].description);
}
