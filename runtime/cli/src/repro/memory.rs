//! Memory of attention with and without the matrices S and P, and its time.
//!
//! Source: "FlashAttention from Scratch"; B = 1, H = 1, d = 64, f16.

use flashtile::conformance::{self, Case};
use flashtile::{Arch, Device, Elem, LaunchOptions};

use super::boundary::{self, Boundary};
use super::experiment::{
    Cell, Claim, Claims, Experiment, Findings, How, Launch, Ratio, Row, Section, Sequence, Style, Table, Text, Unit, Work,
};
use super::judge::wrong;
use super::peers::{Library, Peer};
use super::runner::{Mode, Runner};
use crate::failure::Result;

pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    post: "FlashAttention from Scratch",
    about: "peak memory, traffic and time of attention in three kernels and in one, what a causal mask saves, one to three stages, planted faults",
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

/// What the post adds up for naive attention at one length: Q, K and V read (256 KiB each), S and P
/// written and read (8 MiB each).
const TRAFFIC: (i64, f64) = (2048, 32.75);

/// Heads that fill a GPU: those of the claim about the causal mask where programs do not all run at
/// once.
const MANY_HEADS: i64 = 64;

/// The tile of the tables whose schedules are fixed.
const TILE: &str = "block_m=64,block_n=64,warps=4";

/// Three kernels with S and P in memory.
const NAIVE: &str = include_str!("kernels/naive.rs");
/// Faults in the text of the kernel, planted.
const FAULTS: &str = include_str!("kernels/faults.rs");

fn naive(name: &'static str) -> Text {
    Text::Own { file: "naive.rs", text: NAIVE, name }
}

fn fault(name: &'static str) -> Text {
    Text::Own { file: "faults.rs", text: FAULTS, name }
}

fn launch(kernel: Text, heads: i64, length: i64, how: How) -> Launch {
    let sizes = [("B", 1), ("H", heads), ("G", heads), ("M", length), ("N", length), ("D", 64)];
    Launch::new(kernel, Elem::F16, &sizes, how)
}

fn flash(kernel: &'static str, length: i64, how: How) -> Work {
    Work::Ours(launch(Text::Builtin(kernel), 1, length, how).into())
}

fn fixed(knobs: &str) -> How {
    How::Knobs(format!("{TILE}{knobs}"))
}

fn unfused(length: i64, how: &How) -> Work {
    let launches = ["naive_scores", "naive_softmax", "naive_output"].map(|name| launch(naive(name), 1, length, how.clone()));
    let oracle = Some(launch(Text::Builtin("attention"), 1, length, How::Tuned));
    Work::Ours(Sequence { launches: launches.to_vec(), oracle })
}

fn peer(what: Library, length: i64) -> Work {
    Work::Peer(Peer { what, like: launch(Text::Builtin("attention"), 1, length, How::Tuned), causal: false })
}

fn rows(cells: impl Fn(&Length) -> Vec<(&'static str, Work, Option<f64>)>) -> Vec<Row> {
    let row = |length: &Length| {
        let cell = |(series, work, published)| Cell { series, work, published, profiled: None };
        Row { label: length.0.to_string(), x: length.0 as f64, over: None, cells: cells(length).into_iter().map(cell).collect() }
    };
    LENGTHS.iter().map(row).collect()
}

fn sections() -> Vec<Section> {
    vec![
        Section::Claims(Claims { caption: "Faults that the post tells of, and its correctness grid", run: claims }),
        Section::Claims(Claims { caption: "What the causal mask saves, tiles of 64 by 64, one head", run: causal_claims }),
        peak_memory(),
        tensor_traffic(),
        asked_traffic(),
        time(),
        causal_mask(),
        stages(),
    ]
}

const NAIVE_OVER_FLASH: &[Ratio] = &[Ratio { of: "naive", over: "flash" }];

/// A table with a row for each length. Without `published_on` nothing was published.
fn table(
    (name, caption): (&'static str, &'static str),
    unit: Unit,
    published_on: Option<&'static str>,
    rows: Vec<Row>,
    ratios: &'static [Ratio],
) -> Section {
    Section::Table(Table { name, caption, unit, published_on, style: Style::Lines("N"), rows, ratios })
}

fn peak_memory() -> Section {
    let rows = rows(|Length(n, [naive, flash_mib], _)| {
        vec![
            // Of one part: nothing but S and P lies between launches.
            ("naive", unfused(*n, &fixed(",split_k=1")), Some(*naive)),
            ("flash", flash("attention", *n, fixed(",split_k=1")), Some(*flash_mib)),
            ("flash, tuned", flash("attention", *n, How::Tuned), None),
            ("naive, PyTorch", peer(Library::Naive, *n), None),
            ("SDPA", peer(Library::Sdpa, *n), None),
        ]
    });
    let caption = "Peak memory beyond q, k and v, memory between launches included; B = 1, H = 1, d = 64, f16";
    table(("memory", caption), Unit::Mebibytes, Some(PUBLISHED_ON), rows, NAIVE_OVER_FLASH)
}

/// Rows of both tables of traffic.
fn traffic_rows() -> Vec<Row> {
    rows(|Length(n, ..)| {
        vec![
            ("naive", unfused(*n, &fixed(",split_k=1")), (*n == TRAFFIC.0).then_some(TRAFFIC.1)),
            ("flash", flash("attention", *n, fixed(",split_k=1")), None),
        ]
    })
}

fn tensor_traffic() -> Section {
    let caption = "Bytes read and written if every launch moves each of its tensors once, as the post adds them up; B = 1, H = 1, d = 64, f16";
    table(("traffic", caption), Unit::TensorTraffic, Some("the post's sum"), traffic_rows(), NAIVE_OVER_FLASH)
}

fn asked_traffic() -> Section {
    let caption =
        "Bytes that all programs ask of global memory, a tile counted for each program that loads it; B = 1, H = 1, d = 64, f16";
    table(("asked", caption), Unit::AskedTraffic, None, traffic_rows(), NAIVE_OVER_FLASH)
}

fn time() -> Section {
    let rows = rows(|Length(n, _, [naive, full, causal, sdpa])| {
        vec![
            ("naive", unfused(*n, &How::Tuned), Some(*naive)),
            ("flash", flash("attention", *n, How::Tuned), Some(*full)),
            ("causal", flash("causal_attention", *n, How::Tuned), Some(*causal)),
            ("SDPA", peer(Library::Sdpa, *n), Some(*sdpa)),
            ("naive, PyTorch", peer(Library::Naive, *n), None),
        ]
    });
    let caption = "Time of a forward pass; B = 1, H = 1, d = 64, f16";
    let ratios = &[Ratio { of: "naive", over: "flash" }, Ratio { of: "flash", over: "causal" }];
    table(("time", caption), Unit::Milliseconds, Some(PUBLISHED_ON), rows, ratios)
}

fn causal_mask() -> Section {
    let rows = rows(|Length(n, ..)| {
        let of = |kernel, heads| Work::Ours(launch(Text::Builtin(kernel), heads, *n, fixed("")).into());
        vec![
            ("full, 1 head", of("attention", 1), None),
            ("causal, 1 head", of("causal_attention", 1), None),
            ("full, 64 heads", of("attention", MANY_HEADS), None),
            ("causal, 64 heads", of("causal_attention", MANY_HEADS), None),
        ]
    });
    let caption = "Time without and with the causal mask, tiles of 64 by 64; B = 1, d = 64, f16";
    let ratios =
        &[Ratio { of: "full, 1 head", over: "causal, 1 head" }, Ratio { of: "full, 64 heads", over: "causal, 64 heads" }];
    table(("causal", caption), Unit::Milliseconds, None, rows, ratios)
}

fn stages() -> Section {
    let rows = rows(|Length(n, ..)| {
        let cp_async = |stages| flash("attention", *n, fixed(&format!(",copy=cp_async,stages={stages}")));
        vec![
            ("synchronous", flash("attention", *n, fixed(",copy=sync,stages=1")), None),
            ("1 stage", cp_async(1), None),
            ("2 stages", cp_async(2), None),
            ("3 stages", cp_async(3), None),
        ]
    });
    let caption = "Time with one to three slots of K and V, tiles of 64 by 64; B = 1, H = 1, d = 64, f16, no mask";
    table(("stages", caption), Unit::Milliseconds, None, rows, &[])
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
    let mut claims =
        vec![Claim::of("a correction factor computed before the maximum is updated gives wrong results", factor.0, factor.1)];
    claims.extend(boundary_claims(runner)?);
    claims.push(Claim::of("the same of a mask that the text has: applied after the maximum it does not help", late.0, late.1));
    claims.push(Claim::of(
        "compute the factor first and mask before the maximum, and results are right",
        format!("the same text without either fault fails {sound} of {all} cases of `causal_attention`"),
        sound == 0,
    ));
    claims.push(grid_claim(runner));
    Ok(Findings { text: String::new(), claims })
}

/// The second fault of the post: the mask of keys beyond the last, where the block does not divide
/// N.
fn boundary_claims(runner: &Runner<'_>) -> Result<Vec<Claim>> {
    const LATE: &str = "a boundary mask applied after the maximum does not help, where the block does not divide N";
    const LEFT_OUT: &str = "without the boundary mask, keys beyond the last one take part";
    const KEPT: &str = "masked before the maximum, they do not";
    if !runner.compiles() {
        let why = "planted in generated code, which the CPU does not run: give --device emulator";
        return Ok([LATE, LEFT_OUT, KEPT].map(|published| Claim::not_run(published, why)).to_vec());
    }
    let options: LaunchOptions = runner.emulator_options();
    let planted = |boundary, published, right: bool| -> Result<Claim> {
        let (wrong, all) = boundary::wrong(boundary, &options)?;
        let found = format!("generated code of `attention` on the emulator: {wrong} of {all} cases are wrong");
        Ok(Claim::of(published, found, (wrong == 0) == right))
    };
    Ok(vec![
        planted(Boundary::AfterMaximum, LATE, false)?,
        planted(Boundary::LeftOut, LEFT_OUT, false)?,
        planted(Boundary::Kept, KEPT, true)?,
    ])
}

/// The correctness grid of the post: on a GPU, or else all of it on the CPU; on the emulator the small
/// cases of it too. Cases of an element type that the architecture lacks run on the CPU alone.
fn grid_claim(runner: &Runner<'_>) -> Claim {
    let grid: Vec<Case> = conformance::cases().into_iter().filter(in_grid).collect();
    let compiled = compiled(&grid, runner.arch());
    let small: Vec<Case> = compiled.iter().filter(|case| case.small).cloned().collect();
    let run = |device: &Device, options: &LaunchOptions, cases: &[Case]| {
        let report = conformance::run(device, options, cases);
        let failed = report.failures().count();
        (format!("{} of the {} on {}, {failed} failed", cases.len(), grid.len(), device.info().name), failed)
    };
    let (cpu, options) = (Device::cpu(), runner.launch_options());
    let mut runs = match runner.mode {
        Mode::Timed => vec![run(runner.on(), &options, &compiled)],
        Mode::Counted => vec![run(runner.on(), &options, &small)],
        Mode::Checked => Vec::new(),
    };
    if runner.mode != Mode::Timed || compiled.len() < grid.len() {
        runs.insert(0, run(&cpu, &LaunchOptions::default(), &grid));
    }
    let found: Vec<&str> = runs.iter().map(|(found, _)| found.as_str()).collect();
    let holds = grid.len() == 192 && runs.iter().all(|(_, failed)| *failed == 0);
    Claim::of("192 correctness tests, 96 of them causal, pass", found.join("; "), holds)
}

/// The cases whose element type the architecture has.
fn compiled(cases: &[Case], arch: &Arch) -> Vec<Case> {
    cases.iter().filter(|case| case.elem != Elem::Bf16 || arch.bf16).cloned().collect()
}

/// Why a mask that saves half of the work saves less of the time: the programs of one head, and the
/// longest of them.
fn causal_claims(runner: &Runner<'_>) -> Result<Findings> {
    let flops = |kernel, rows: i64, length| -> Result<f64> {
        let mut launch = launch(Text::Builtin(kernel), 1, length, fixed(""));
        launch.sizes.iter_mut().filter(|(name, _)| *name == "M").for_each(|(_, size)| *size = rows);
        Ok(runner.executed(&launch)?.flops as f64)
    };
    let (mut saved, mut longest) = (Vec::new(), Vec::new());
    for Length(n, ..) in LENGTHS {
        saved.push(flops("attention", n, n)? / flops("causal_attention", n, n)?);
        // The last tile of rows is a program of its own that sees all keys.
        longest.push(flops("attention", 64, n)? / flops("causal_attention", 64, n)?);
    }
    let text = |values: &[f64]| {
        let of = |(Length(n, ..), value): (&Length, &f64)| format!("{value:.2} at {n}");
        LENGTHS.iter().zip(values).map(of).collect::<Vec<_>>().join(", ")
    };
    let Length(longest_length, ..) = LENGTHS[LENGTHS.len() - 1];
    let (programs, sms) = (longest_length / 64, i64::from(runner.multiprocessors()));
    let published: Vec<f64> = LENGTHS.iter().map(|Length(_, _, [_, full, causal, _])| full / causal).collect();
    let within = |values: &[f64]| values.iter().all(|factor| (1.5..=2.0).contains(factor));
    Ok(Findings {
        text: String::new(),
        claims: vec![
            Claim::of(
                "tiles above the diagonal are skipped: about half of the work at long sequences",
                format!("FLOPs without the mask over those with it: {}", text(&saved)),
                saved.windows(2).all(|pair| pair[0] < pair[1]) && (1.9..2.0).contains(saved.last().unwrap_or(&0.0)),
            ),
            Claim::departs(
                "which gives 1.5 to 2 times the speed",
                format!(
                    "of the longest program: {}; one head of N = {longest_length} is {programs} programs on {sms} multiprocessors",
                    text(&longest)
                ),
                within(&longest),
                "the program of the last rows walks all keys with the mask too, and with few programs the time is that of the longest",
            ),
            Claim::departs(
                "a consistent 1.5 to 2 times, by the post's own table of times",
                text(&published),
                within(&published),
                "its factors lie around the range, not in it",
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
        // A Tesla T4 has no bf16: half of the cases run on the CPU alone.
        let on = |arch| compiled(&grid, Arch::named(arch).expect("in the table")).len();
        assert_eq!((on("sm_75"), on("sm_80")), (96, 192));
    }
}
