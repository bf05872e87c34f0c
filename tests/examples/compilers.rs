//! Versions of NVRTC beside each other: what they make of the built-in kernels.
//!
//! ```sh
//! cargo run --release -p flashtile-tests --example compilers -- 13.0 13.5 /opt/cuda/lib64
//! ```
//!
//! Each argument is what `--nvrtc` takes: a version that can be installed, a library, or its directory. The kernels are compiled
//! in bf16, for sm_80 and sm_90a, with the schedule that the model chooses and some that a tuner tries. Compared are the registers
//! of a thread, the bytes that it spills, remarks such as that `wgmma` is serialised, and operands that the machine code loses
//! ([`flashtile_tests::sass`]). Each version runs in a process of its own: two builds of one version cannot be loaded at once.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::{Command, ExitCode, Stdio};

use flashtile::kernel::BUILTINS;
use flashtile::toolchain::{Toolchain, ToolchainOptions};
use flashtile_codegen::{Arch, Facts, Instance, Machine, TensorOp, generate, rank};
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};
use flashtile_tests::sass::lost_operands;
use serde::{Deserialize, Serialize};

/// Says to a process that it compiles for another one.
const COMPILE: &str = "--compile";

/// Sizes for which the model ranks schedules.
const SIZES: &[(&str, i64)] = &[("B", 2), ("H", 16), ("G", 16), ("M", 4096), ("N", 4096), ("K", 4096), ("C", 128)];

/// Head dims, of kernels that have one.
const HEAD_DIMS: &[i64] = &[64, 128];

const ARCHS: &[&str] = &["sm_80", "sm_90a"];

/// Places in the ranking of the model: its choice, and schedules that a tuner would time.
const PLACES: &[usize] = &[0, 2, 9, 29];

/// What became of one program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Row {
    program: String,
    arch: String,
    /// Whether the model chooses the schedule.
    chosen: bool,
    registers: u32,
    spilled: u32,
    remarks: Vec<String>,
    /// Operands that are lost.
    lost: Vec<String>,
    /// What the compiler says, if it refuses.
    error: Option<String>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [flag, nvrtc] if flag == COMPILE => compile_all(nvrtc).map(|()| ExitCode::SUCCESS),
        [_, _, ..] => compare(&arguments),
        _ => {
            eprintln!("expected two versions of NVRTC or more, such as `13.0 13.5`");
            Ok(ExitCode::from(2))
        }
    }
}

/// The kernels with their constants bound.
fn instances() -> Result<Vec<Instance>, Box<dyn Error>> {
    let mut all = Vec::new();
    for builtin in BUILTINS {
        let source = SourceText { name: builtin.file.into(), text: builtin.text.into(), first_line: 1 };
        let kernel: Kernel = flashtile_dsl::syntax::parse(&source)?.remove(0);
        let dims = if builtin.text.contains("const D") { HEAD_DIMS } else { &HEAD_DIMS[..1] };
        for &dim in dims {
            let consts = if dims.len() > 1 { vec![("D", dim)] } else { Vec::new() };
            let binding = Binding::new(&kernel, Elem::Bf16, consts);
            all.push(Instance { binding, facts: Facts::best(&kernel), kernel: kernel.clone() });
        }
    }
    Ok(all)
}

/// Compiles everything with one NVRTC and prints a line of JSON for each program.
fn compile_all(nvrtc: &str) -> Result<(), Box<dyn Error>> {
    let toolchain = Toolchain::new(ToolchainOptions { nvrtc: Some(nvrtc.into()), ..ToolchainOptions::default() });
    toolchain.nvrtc()?;
    let sizes = SIZES.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    for instance in instances()? {
        for arch in ARCHS {
            let arch = Arch::named(arch).ok_or_else(|| format!("{arch} is not in the table"))?;
            let ranked = match rank(&instance, arch, &sizes, &Machine::typical(arch)) {
                Ok(ranked) => ranked,
                Err(error) => {
                    eprintln!("{} for {arch} is left out: {error}", instance.kernel.name);
                    continue;
                }
            };
            for &place in PLACES {
                let Some((schedule, _)) = ranked.get(place) else { continue };
                let source = generate(&instance, schedule, arch)?.source;
                let dim = instance.binding.consts.values().map(|d| format!(" D={d}")).collect::<String>();
                let mut row = Row {
                    program: format!("{}{dim} {schedule}", instance.kernel.name),
                    arch: arch.name.to_owned(),
                    chosen: place == 0,
                    registers: 0,
                    spilled: 0,
                    remarks: Vec::new(),
                    lost: Vec::new(),
                    error: None,
                };
                match toolchain.compile(&source, &instance.kernel.name, arch.name) {
                    Ok(compiled) => {
                        row.registers = compiled.report.registers;
                        row.spilled = compiled.report.spill_stores + compiled.report.spill_loads;
                        row.remarks = compiled.report.remarks.clone();
                        if schedule.main.tensor_op == TensorOp::Wgmma {
                            let found = lost_operands(&toolchain.disassemble(&compiled.cubin)?)?;
                            row.lost = found.lost.iter().map(ToString::to_string).collect();
                        }
                    }
                    Err(error) => row.error = Some(error.to_string()),
                }
                println!("{}", serde_json::to_string(&row)?);
            }
        }
    }
    Ok(())
}

/// Runs a process for each version, and prints their totals and what differs from the first.
fn compare(versions: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let mut results: Vec<(&str, Vec<Row>)> = Vec::new();
    for version in versions {
        eprintln!("NVRTC {version}");
        let child = Command::new(std::env::current_exe()?).args([COMPILE, version]).stderr(Stdio::inherit()).output()?;
        if !child.status.success() {
            return Err(format!("the process for NVRTC {version} failed").into());
        }
        let text = String::from_utf8(child.stdout)?;
        results.push((version, text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?));
    }
    println!(
        "| NVRTC | GPU | programs | refused | registers | spill | bytes spilled | same registers and spills | remarks | operands lost |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let first: BTreeMap<_, _> = results[0].1.iter().map(|row| ((&row.arch, &row.program), row)).collect();
    for arch in ARCHS {
        for (version, rows) in &results {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.arch == *arch).collect();
            let total = |of: &dyn Fn(&Row) -> usize| rows.iter().map(|row| of(row)).sum::<usize>();
            let same = |row: &Row| {
                let other = first[&(&row.arch, &row.program)];
                usize::from((row.registers, row.spilled) == (other.registers, other.spilled))
            };
            println!(
                "| {version} | {arch} | {} | {} | {} | {} | {} | {} | {} | {} |",
                rows.len(),
                total(&|row| usize::from(row.error.is_some())),
                total(&|row| row.registers as usize),
                total(&|row| usize::from(row.spilled > 0)),
                total(&|row| row.spilled as usize),
                total(&same),
                total(&|row| row.remarks.len()),
                total(&|row| row.lost.len()),
            );
        }
    }
    println!("\nRegisters and bytes spilled, where a version differs from {} in the model's choice:\n", results[0].0);
    for (version, rows) in &results[1..] {
        for row in rows.iter().filter(|row| row.chosen) {
            let other = first[&(&row.arch, &row.program)];
            if (row.registers, row.spilled) != (other.registers, other.spilled) {
                let (from, to) = ((other.registers, other.spilled), (row.registers, row.spilled));
                println!("{version} {}: {} {} to {} {}: {}", row.arch, from.0, from.1, to.0, to.1, row.program);
            }
        }
    }
    println!("\nErrors, remarks and lost operands:\n");
    for (version, rows) in &results {
        for row in rows {
            for told in row.error.iter().chain(&row.remarks).chain(&row.lost) {
                println!("{version} {}: {}: {told}", row.arch, row.program);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
