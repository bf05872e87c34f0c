//! Memory of attention with and without the matrices S and P, and its time.
//!
//! Source: "FlashAttention from Scratch"; B = 1, H = 1, d = 64, f16.

use flashtile::conformance::{self, Case, Values, run_with};
use flashtile::verify;
use flashtile::{Device, Elem};

use super::experiment::{
    Cell, Claim, Claims, Experiment, Findings, How, Launch, Row, Section, Sequence, Style, Table, Text, Unit, Work,
};
use super::peers::{Library, Peer};
use super::runner::{Mode, Runner};
use crate::failure::Result;

pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    post: "FlashAttention from Scratch",
    about: "peak memory and time of attention in three kernels and in one, one to three stages, planted faults",
    sections,
};

const PUBLISHED_ON: &str = "Tesla T4";

/// A length, with the published MiB of naive and flash, and milliseconds of naive, flash, causal and SDPA.
struct Length(i64, [f64; 2], [f64; 4]);

const LENGTHS: [Length; 5] = [
    Length(512, [1.06, 0.06], [0.059, 0.239, 0.167, 0.064]),
    Length(1024, [4.12, 0.12], [0.080, 0.441, 0.264, 0.123]),
    Length(2048, [16.25, 0.25], [0.290, 1.410, 1.171, 0.144]),
    Length(4096, [64.50, 0.50], [1.062, 3.929, 2.082, 0.363]),
    Length(8192, [257.00, 1.00], [4.268, 13.604, 9.159, 1.582]),
];

/// Three kernels with S and P in memory.
const NAIVE: &str = include_str!("kernels/naive.rs");
/// The two faults that the post tells of, planted.
const FAULTS: &str = include_str!("kernels/faults.rs");

fn naive(name: &'static str) -> Text {
    Text::Own { file: "naive.rs", text: NAIVE, name }
}

fn fault(name: &'static str) -> Text {
    Text::Own { file: "faults.rs", text: FAULTS, name }
}

fn launch(kernel: Text, length: i64, how: How) -> Launch {
    let sizes = [("B", 1), ("H", 1), ("G", 1), ("M", length), ("N", length), ("D", 64)];
    Launch::new(kernel, Elem::F16, &sizes, how)
}

fn flash(kernel: &'static str, length: i64, how: How) -> Work {
    Work::Ours(launch(Text::Builtin(kernel), length, how).into())
}

fn unfused(length: i64) -> Work {
    let launches = ["naive_scores", "naive_softmax", "naive_output"].map(|name| launch(naive(name), length, How::Tuned));
    let oracle = Some(launch(Text::Builtin("attention"), length, How::Tuned));
    Work::Ours(Sequence { launches: launches.to_vec(), oracle })
}

fn peer(what: Library, length: i64) -> Work {
    Work::Peer(Peer { what, like: launch(Text::Builtin("attention"), length, How::Tuned), causal: false })
}

fn rows(cells: impl Fn(&Length) -> Vec<(&'static str, Work, Option<f64>)>) -> Vec<Row> {
    let row = |length: &Length| {
        let cell = |(series, work, published)| Cell { series, work, published, profiled: None };
        Row { label: length.0.to_string(), x: length.0 as f64, cells: cells(length).into_iter().map(cell).collect() }
    };
    LENGTHS.iter().map(row).collect()
}

fn sections() -> Vec<Section> {
    let memory = rows(|Length(n, [naive, flash_mib], _)| {
        vec![
            ("naive", unfused(*n), Some(*naive)),
            ("flash", flash("attention", *n, How::Tuned), Some(*flash_mib)),
            ("naive, PyTorch", peer(Library::Naive, *n), None),
            ("SDPA", peer(Library::Sdpa, *n), None),
        ]
    });
    let time = rows(|Length(n, _, [naive, full, causal, sdpa])| {
        vec![
            ("naive", unfused(*n), Some(*naive)),
            ("flash", flash("attention", *n, How::Tuned), Some(*full)),
            ("causal", flash("causal_attention", *n, How::Tuned), Some(*causal)),
            ("SDPA", peer(Library::Sdpa, *n), Some(*sdpa)),
            ("naive, PyTorch", peer(Library::Naive, *n), None),
        ]
    });
    let stages = rows(|Length(n, ..)| {
        let knobs = |text: &str| flash("attention", *n, How::Knobs(text.to_owned()));
        let cp_async = |stages| knobs(&format!("block_m=64,block_n=64,warps=4,copy=cp_async,stages={stages}"));
        vec![
            ("synchronous", knobs("block_m=64,block_n=64,warps=4,copy=sync,stages=1"), None),
            ("1 stage", cp_async(1), None),
            ("2 stages", cp_async(2), None),
            ("3 stages", cp_async(3), None),
        ]
    });
    let table = |name, caption, unit, published_on, rows| {
        Section::Table(Table { name, caption, unit, published_on, style: Style::Lines("N"), rows })
    };
    vec![
        Section::Claims(Claims { caption: "Faults that the post tells of, and its correctness grid", run: claims }),
        table("memory", "Peak memory beyond q, k and v; B = 1, H = 1, d = 64, f16", Unit::Mebibytes, Some(PUBLISHED_ON), memory),
        table("time", "Time of a forward pass; B = 1, H = 1, d = 64, f16", Unit::Milliseconds, Some(PUBLISHED_ON), time),
        table(
            "stages",
            "Time with one to three slots of K and V, tiles of 64 by 64; B = 1, H = 1, d = 64, f16, no mask",
            Unit::Milliseconds,
            None,
            stages,
        ),
    ]
}

/// Cases of a kernel of the suite under which a fault could show: growing scores too, where what is hidden is large.
fn cases(kernel: &str) -> Vec<Case> {
    let telling = |case: &Case| case.small || matches!(case.values, Values::Growing(_));
    conformance::cases().into_iter().filter(|case| case.kernel == kernel && case.elem == Elem::F16 && telling(case)).collect()
}

/// How many of the cases of a kernel another kernel gets wrong on the CPU.
fn wrong(kernel: &str, other: Text) -> Result<(usize, usize)> {
    let (device, cases, other) = (Device::cpu(), cases(kernel), other.open()?);
    let report = run_with(&cases, |kernel, arguments| {
        let loaded = other.bind_to(kernel.binding().clone())?.on(&device)?;
        verify::run(&loaded, arguments)
    });
    Ok((report.failures().count(), cases.len()))
}

/// Whether a case belongs to the grid of 192 regular shapes.
fn in_grid(case: &Case) -> bool {
    let size = |name: &str| case.sizes.iter().chain(&case.consts).find(|(n, _)| *n == name).map_or(0, |(_, size)| *size);
    matches!(case.kernel, "attention" | "causal_attention")
        && size("M") == size("N")
        && [64, 128, 256, 512].contains(&size("N"))
        && [32, 64, 128].contains(&size("D"))
        && [1, 2].contains(&size("B"))
        && [1, 4].contains(&size("H"))
        && size("G") == size("H")
        && case.name().ends_with("/normal")
        && case.elem != Elem::F32
}

fn claims(runner: &Runner<'_>) -> Result<Findings> {
    let rejected = |kernel, name| -> Result<(String, bool)> {
        let (wrong, all) = wrong(kernel, fault(name))?;
        Ok((format!("`{name}` fails {wrong} of {all} cases of `{kernel}`"), wrong > 0))
    };
    let (sound, all) = wrong("causal_attention", fault("neither_fault"))?;
    let factor = rejected("attention", "factor_of_the_step_before")?;
    let late = rejected("causal_attention", "mask_after_maximum")?;
    let mut grid: Vec<Case> = conformance::cases().into_iter().filter(in_grid).collect();
    let total = grid.len();
    if runner.mode != Mode::Timed {
        grid.retain(|case| case.small);
    }
    let report = conformance::run(runner.on(), &runner.launch_options(), &grid);
    let failed = report.failures().count();
    let on = if grid.len() == total { String::new() } else { " (the small ones)".to_owned() };
    Ok(Findings {
        text: String::new(),
        claims: vec![
            Claim::of("a correction factor computed before the maximum is updated gives wrong results", factor.0, factor.1),
            Claim::of("a mask applied after the maximum does not help", late.0, late.1),
            Claim::of(
                "compute the factor first and mask before the maximum, and results are right",
                format!("the same text without either fault fails {sound} of {all} cases of `causal_attention`"),
                sound == 0,
            ),
            Claim::of(
                "192 correctness tests, 96 of them causal, pass",
                format!("{} of the {total} run{on}, {failed} failed", grid.len()),
                failed == 0 && total == 192,
            ),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_that_come_along_are_kernels() {
        for name in ["naive_scores", "naive_softmax", "naive_output"] {
            naive(name).open().expect(name);
        }
        for name in ["factor_of_the_step_before", "mask_after_maximum", "neither_fault"] {
            fault(name).open().expect(name);
        }
    }

    #[test]
    fn planted_faults_are_rejected_and_sound_text_is_not() {
        assert!(wrong("attention", fault("factor_of_the_step_before")).expect("runs").0 > 0);
        assert!(wrong("causal_attention", fault("mask_after_maximum")).expect("runs").0 > 0);
        assert_eq!(wrong("causal_attention", fault("neither_fault")).expect("runs").0, 0);
    }

    #[test]
    fn the_grid_of_the_post_is_in_the_suite() {
        let grid: Vec<Case> = conformance::cases().into_iter().filter(in_grid).collect();
        assert_eq!(grid.len(), 192);
        assert_eq!(grid.iter().filter(|case| case.kernel == "causal_attention").count(), 96);
    }
}
