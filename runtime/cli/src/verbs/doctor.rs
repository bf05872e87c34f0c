//! `flashtile doctor`: what was found on this machine, what needs it, and how to get what is missing.

use std::process::Command;

use clap::Args;
use flashtile::Device;
use flashtile::cache::Cache;
use flashtile::device::{DeviceError, DeviceKind};
use flashtile::toolchain::{Toolchain, ToolchainError, ToolchainOptions};
use serde::Serialize;

use crate::failure::Result;
use crate::flags::GlobalFlags;
use crate::output::Output;

/// Flags of `flashtile doctor`.
#[derive(Args, Debug)]
pub struct Flags {}

/// One thing that was looked for.
#[derive(Serialize, Debug)]
struct Finding {
    /// What.
    subject: &'static str,
    /// Whether it is there and of use.
    ok: bool,
    /// What was found, or why it is of no use.
    found: String,
    /// How to get it; empty if it is there.
    fix: String,
}

/// A group of tests and what it needs.
struct TestGroup {
    name: &'static str,
    command: &'static str,
    needs: &'static [&'static str],
}

/// Every group of tests.
const TEST_GROUPS: &[TestGroup] = &[
    TestGroup { name: "front end, analyses, golden files, CPU device", command: "cargo test", needs: &[] },
    TestGroup { name: "compilation of schedules for every architecture", command: "cargo test", needs: &["NVRTC"] },
    TestGroup { name: "conformance on the CPU", command: "flashtile verify --all --device cpu", needs: &[] },
    TestGroup { name: "conformance on the emulator", command: "flashtile verify --all --device emulator", needs: &["NVRTC"] },
    TestGroup { name: "conformance on a GPU", command: "flashtile verify --all --device cuda:0", needs: &["GPU", "NVRTC"] },
    TestGroup {
        name: "launches, streams and foreign memory on a GPU",
        command: "cargo test --release -p flashtile --test gpu -- --ignored",
        needs: &["GPU", "NVRTC"],
    },
    TestGroup {
        name: "the emulator against a GPU, bit by bit",
        command: "flashtile verify --all --schedules 300 --device cuda:0 --against emulator",
        needs: &["GPU", "NVRTC"],
    },
    TestGroup {
        name: "bank conflicts against Nsight Compute",
        command: "python3 bench/conflicts.py",
        needs: &["GPU", "NVRTC", "Python"],
    },
    TestGroup {
        name: "generated files under nvcc",
        command: "cargo test -p flashtile-tests --test nvcc -- --ignored",
        needs: &["NVRTC", "nvcc"],
    },
    TestGroup { name: "disassembly", command: "flashtile inspect attention --emit sass", needs: &["NVRTC", "disassembler"] },
    TestGroup { name: "operators of candle on the CPU", command: "cd clients/candle && cargo test --release", needs: &[] },
    TestGroup {
        name: "models with candle",
        command: "cd clients/candle && cargo run --release --example smollm2 (and minilm)",
        needs: &["Python"],
    },
    TestGroup {
        name: "operators of candle on a GPU",
        command: "cd clients/candle && cargo run --release --features cuda --example storage -- cuda",
        needs: &["GPU", "NVRTC"],
    },
    TestGroup { name: "a bundle from C on a GPU", command: "bash tests/gpu/bundle.sh DIR", needs: &["GPU"] },
    TestGroup { name: "comparison with peers", command: "python3 bench/bench.py", needs: &["GPU", "Python"] },
];

/// Looks.
pub fn run(_: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let toolchain = searching_only(global);
    let installs = !global.no_install;
    let findings = [gpu(), nvrtc(&toolchain, installs), disassembler(&toolchain, installs), nvcc(), cache(), python()];
    let missing = |group: &TestGroup| -> Vec<&str> {
        let lacks = |need: &&&str| findings.iter().any(|f| f.subject == **need && !f.ok);
        group.needs.iter().filter(lacks).copied().collect()
    };
    if output.json {
        findings.iter().try_for_each(|finding| output.json(finding))?;
        return TEST_GROUPS.iter().try_for_each(|group| {
            output.json(&serde_json::json!({
                "tests": group.name,
                "command": group.command,
                "needs": group.needs,
                "missing": missing(group),
            }))
        });
    }
    let mark = |ok: bool| if ok { "yes" } else { "no" }.to_owned();
    let row = |f: &Finding| vec![f.subject.to_owned(), mark(f.ok), brief(f)];
    output.table(&["", "there", "found"], findings.iter().map(row))?;
    for finding in findings.iter().filter(|f| !f.ok) {
        output.text(format!("to get {}: {}", finding.subject, finding.fix))?;
        if let Some((_, places)) = finding.found.split_once(": looked for ") {
            output.text(format!("  looked for {}", places.trim_start_matches("it in").trim()))?;
        }
    }
    let row = |group: &TestGroup| {
        let missing = missing(group);
        let state = if missing.is_empty() { "can run here".to_owned() } else { format!("needs {}", missing.join(", ")) };
        vec![group.name.to_owned(), state, group.command.to_owned()]
    };
    output.table(&["tests", "", "command"], TEST_GROUPS.iter().map(row))
}

/// What was found, without the list of every place where a missing library was looked for; `--json` has it.
fn brief(finding: &Finding) -> String {
    let end = if finding.ok { None } else { finding.found.find(": looked for") };
    finding.found[..end.unwrap_or(finding.found.len())].to_owned()
}

/// The toolchain, installing nothing: a diagnosis changes nothing.
fn searching_only(global: &GlobalFlags) -> Toolchain {
    let mut options = ToolchainOptions::default();
    if global.nvrtc.is_some() {
        options.nvrtc.clone_from(&global.nvrtc);
    }
    options.install = false;
    options.progress = std::sync::Arc::new(|_| {});
    Toolchain::new(options)
}

fn finding(subject: &'static str, found: Result<String, String>, fix: &str) -> Finding {
    match found {
        Ok(found) => Finding { subject, ok: true, found, fix: String::new() },
        Err(why) => Finding { subject, ok: false, found: why, fix: fix.to_owned() },
    }
}

fn gpu() -> Finding {
    let mut found = Vec::new();
    let mut fault = None;
    for ordinal in 0.. {
        match Device::cuda(ordinal) {
            Ok(device) => found.push(describe(&device)),
            Err(error) => {
                fault = Some(reason(&error));
                break;
            }
        }
    }
    let found = if found.is_empty() { Err(fault.unwrap_or_default()) } else { Ok(found.join("\n")) };
    finding("GPU", found, "install the NVIDIA driver on a machine with a GPU of compute capability 7.5 or later")
}

/// Why there is no GPU; of a driver that is missing, everywhere it was looked for.
fn reason(error: &flashtile::Error) -> String {
    match error {
        flashtile::Error::Device(DeviceError::NoDriver { looked_for }) => {
            format!("no CUDA driver: looked for {}", looked_for.join(", "))
        }
        other => other.to_string(),
    }
}

fn describe(device: &Device) -> String {
    let info = device.info();
    debug_assert_eq!(info.kind, DeviceKind::Cuda);
    let gpu = info.gpu.as_ref().map(|gpu| {
        let ((major, minor), (driver, driver_minor)) = (gpu.capability, gpu.driver);
        format!("compute capability {major}.{minor}, {} SMs, driver for CUDA {driver}.{driver_minor}", gpu.sms)
    });
    format!("{}: {}, {}, {} GiB", info.id, info.name, gpu.unwrap_or_default(), info.memory_bytes >> 30)
}

/// Only tests use it.
fn nvcc() -> Finding {
    let program = std::env::var("FLASHTILE_NVCC").unwrap_or_else(|_| "nvcc".to_owned());
    let found = match Command::new(&program).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text.lines().find_map(|line| Some(line.split_once("release ")?.1.to_owned()));
            Ok(format!("{program}, release {}", version.unwrap_or_default()))
        }
        Ok(output) => Err(format!("{program} --version fails with {}", output.status)),
        Err(error) => Err(format!("{program} does not run: {error}")),
    };
    finding("nvcc", found, "put it on PATH or name it in FLASHTILE_NVCC; `.ci/run` installs it with pip")
}

fn nvrtc(toolchain: &Toolchain, installs: bool) -> Finding {
    let found = toolchain.nvrtc().map_err(missing).map(|nvrtc| {
        let (major, minor) = nvrtc.version();
        format!("version {major}.{minor} at {}", nvrtc.path().display())
    });
    let offline = "offline set FLASHTILE_NVRTC, or unset it if it is of the wrong version";
    finding("NVRTC", found, &format!("{}; {offline}", installed(installs)))
}

fn disassembler(toolchain: &Toolchain, installs: bool) -> Finding {
    // A tool that is there refuses these bytes; one that is missing is told apart by its error.
    let found = match toolchain.disassemble(b"") {
        Ok(_) => Ok("nvdisasm or cuobjdump".to_owned()),
        Err(ToolchainError::Tool { tool, .. }) => Ok(tool),
        Err(error) => Err(missing(error)),
    };
    let fix = format!("{} (`inspect --emit sass`); offline put nvdisasm on PATH", installed(installs));
    finding("disassembler", found, &fix)
}

/// How what can be installed comes to be there.
fn installed(installs: bool) -> &'static str {
    if installs { "it is installed when first needed" } else { "without --no-install it is installed when first needed" }
}

/// Why a compiler or a tool is of no use. Of one that is nowhere, the places alone: the search of
/// this verb installs nothing, which says nothing of other verbs.
fn missing(error: ToolchainError) -> String {
    let nowhere = |what: &str, places: &[String]| format!("no {what}: looked for it in\n  {}", places.join("\n  "));
    match error {
        ToolchainError::NotFound { looked_in, .. } => nowhere("NVRTC (the CUDA run-time compiler)", &looked_in),
        ToolchainError::NoTool { tool, looked_in, .. } => nowhere(&tool, &looked_in),
        other => other.to_string(),
    }
}

fn cache() -> Finding {
    let cache = Cache::shared();
    let found = match cache.directory() {
        None => Err("neither FLASHTILE_CACHE nor HOME says where".to_owned()),
        Some(directory) => {
            let entries = cache.list().map_or(0, |entries| entries.len());
            match cache.probe() {
                Ok(()) => Ok(format!("{} ({entries} entries)", directory.display())),
                Err(error) => Err(error.to_string()),
            }
        }
    };
    finding("cache", found, "set FLASHTILE_CACHE to a directory that can be written; without it nothing is remembered")
}

fn python() -> Finding {
    let version = |name: &str| {
        let output = Command::new(name).arg("--version").output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let found = version("python3").or_else(|| version("python")).ok_or_else(|| "no python3 on PATH".to_owned());
    finding("Python", found, "install Python 3 with pip; it is needed only to install NVRTC and for bench/")
}
