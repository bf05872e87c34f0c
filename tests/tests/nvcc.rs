//! Generated files compile with nvcc, by the command that their own header prints. nvcc declares more than NVRTC does.
//!
//! Needs nvcc and a host compiler, no GPU. The test command of the README does without nvcc, so these tests run on demand only:
//! `cargo test --release --workspace --test nvcc -- --ignored`, with nvcc on `PATH` or named by
//! `FLASHTILE_NVCC`. CI installs it (`.ci/run`); `flashtile doctor` says whether it is there. Without
//! nvcc the tests fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use flashtile::toolchain::Toolchain;
use flashtile_codegen::{ARCHS, Arch, Facts, Generated, Instance, Machine, Schedule, default_schedule, generate};
use flashtile_dsl::ir::{Binding, Elem, Kernel, SizeKind, SourceText};
use flashtile_tests::odd_names::ODD_NAMES;
use rayon::prelude::*;

const KERNELS: [(&str, &str); 5] = [
    ("attention", include_str!("../../runtime/kernels/attention.rs")),
    ("causal_attention", include_str!("../../runtime/kernels/causal_attention.rs")),
    ("causal_rope_attention", include_str!("../../runtime/kernels/causal_rope_attention.rs")),
    ("matmul_gelu", include_str!("../../runtime/kernels/matmul_gelu.rs")),
    ("odd_names", ODD_NAMES),
];

/// Schedules that use every kind of template, with the first architecture that has them.
const SCHEDULES: [(&str, &str); 6] = [
    ("sm_80", "copy=sync,stages=1,swizzle=off,fragments=single,split_k=3,fixup=semaphore"),
    ("sm_80", "b_layout=pretransposed,block_m=64,block_n=64"),
    ("sm_80", "running_max=max_first,persistent=off,order=lpt"),
    (
        "sm_90a",
        "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8,overlap=on,persistent=dynamic,running_max=optimistic,stages=2",
    ),
    ("sm_90a", "tensor_op=wgmma,copy=tma,block_m=64,block_n=64,split_k=4,fixup=cluster,stages=2"),
    ("sm_90a", "tensor_op=wgmma,copy=tma,block_m=64,block_n=64,persistent=static,stages=2"),
];

fn instances(arch: &Arch) -> Vec<Instance> {
    let mut all = Vec::new();
    for (name, text) in KERNELS {
        let source = SourceText { name: format!("{name}.rs"), text: text.into(), first_line: 1 };
        for kernel in flashtile_dsl::syntax::parse(&source).expect("well formed") {
            for elem in [Elem::F16, Elem::Bf16, Elem::F32] {
                if elem == Elem::Bf16 && !arch.bf16 {
                    continue;
                }
                let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), 64));
                let binding = Binding::new(&kernel, elem, consts.collect::<Vec<_>>());
                let best = Facts::best(&kernel);
                for facts in [best.clone(), Facts { alignment: 4, wide: true, ..best }] {
                    all.push(Instance { kernel: kernel.clone(), binding: binding.clone(), facts });
                }
            }
        }
    }
    all
}

fn sizes(kernel: &Kernel) -> BTreeMap<String, i64> {
    let runtime = kernel.sizes.values().filter(|s| s.kind == SizeKind::Runtime);
    runtime.map(|s| (s.name.clone(), if s.name.len() == 1 && "MNK".contains(&s.name) { 1024 } else { 4 })).collect()
}

fn nvcc() -> String {
    std::env::var("FLASHTILE_NVCC").unwrap_or_else(|_| "nvcc".into())
}

/// The file, compiled by the command in its header, in a directory of its own.
fn compile(generated: &Generated, directory: &Path) -> Result<PathBuf, String> {
    let (_, command) = generated.source.split_once("// by hand: ").expect("the header has a command");
    let command = command.lines().next().expect("a line");
    let mut words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words.remove(0), "nvcc", "{command}");
    let file = words.last().expect("a file").to_string();
    std::fs::create_dir_all(directory).expect("is made");
    std::fs::write(directory.join(&file), &generated.source).expect("is written");
    let nvcc = nvcc();
    let output = Command::new(&nvcc).args(&words).current_dir(directory).output();
    let output = output.unwrap_or_else(|error| panic!("{nvcc} does not run ({error}); `.ci/run` says how to install it"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{command}\n{said}"));
    }
    Ok(directory.join(file).with_extension("cubin"))
}

/// The instructions of machine code, without what fills it up to a multiple of its alignment.
fn instructions(toolchain: &Toolchain, cubin: &[u8]) -> Vec<String> {
    let text = toolchain.disassemble(cubin).expect("is disassembled");
    let instruction = |line: &str| Some(line.trim().strip_prefix("/*")?.split_once("*/")?.1.split_once(';')?.0.trim().to_owned());
    let mut all: Vec<String> = text.lines().filter_map(instruction).collect();
    while all.last().is_some_and(|last| last == "NOP") {
        all.pop();
    }
    all
}

/// Release of nvcc, such as 13.0.
fn release(nvcc: &str) -> String {
    let output = Command::new(nvcc).arg("--version").output().unwrap_or_else(|error| panic!("{nvcc} does not run ({error})"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let release = text.split_once("release ").and_then(|(_, rest)| rest.split(',').next().map(str::to_owned));
    release.unwrap_or_else(|| panic!("{nvcc} does not say its release: {text}"))
}

/// Compiles the code of one of the schedules, in turn; whether there is any. Of the first instances it
/// compares the machine code with that of NVRTC.
fn compiles(arch: &'static Arch, n: usize, instance: &Instance, toolchain: &Toolchain, root: &Path) -> bool {
    let machine = Machine::typical(arch);
    let chosen = default_schedule(instance, arch, &sizes(&instance.kernel), &machine).expect("some schedule is legal");
    let mut schedules: Vec<Schedule> = vec![chosen];
    let named = SCHEDULES.iter().filter(|(from, _)| *from == arch.name).map(|(_, knobs)| knobs.parse().expect("knobs"));
    schedules.extend(named);
    // One of them for each instance, in turn, and all of them over the instances.
    let schedule = &schedules[n / 4 % schedules.len()];
    let Ok(generated) = generate(instance, schedule, arch) else { return false };
    let what = format!("{} {:?} on {arch} with {schedule}", instance.kernel.name, instance.binding);
    let directory = root.join(format!("{arch}-{n}"));
    let cubin = compile(&generated, &directory).unwrap_or_else(|said| panic!("{what}\n{said}"));
    if n < 8 {
        let name = &instance.kernel.name;
        let same = toolchain.compile(&generated.source, &format!("{name}.cu"), arch.name).expect("NVRTC compiles it");
        let bytes = std::fs::read(&cubin).expect("is read");
        let (ours, theirs) = (instructions(toolchain, &same.cubin), instructions(toolchain, &bytes));
        assert!(ours.len() > 100, "{what}");
        let (major, minor) = toolchain.nvrtc().expect("is loaded").version();
        if release(&nvcc()) == format!("{major}.{minor}") {
            assert!(ours == theirs, "{what}: other machine code");
        }
    }
    true
}

#[test]
#[ignore = "needs nvcc: run it with `-- --ignored` and nvcc on PATH, as .ci/run does"]
fn generated_files_compile_by_the_command_in_their_header() {
    let toolchain = &Toolchain::shared();
    let root = std::env::temp_dir().join(format!("flashtile-nvcc-{}", std::process::id()));
    // A quarter of them on each architecture, another one on the next.
    let quarter = |(first, arch): (usize, &'static Arch)| {
        let some = instances(arch).into_iter().enumerate().skip(first % 4).step_by(4);
        some.map(move |(n, instance)| (arch, n, instance)).collect::<Vec<_>>()
    };
    let work: Vec<_> = ARCHS.iter().enumerate().flat_map(quarter).collect();
    let compiled = work.par_iter().filter(|(arch, n, instance)| compiles(arch, *n, instance, toolchain, &root)).count();
    std::fs::remove_dir_all(&root).expect("is removed");
    assert!(compiled >= 30, "{compiled} files");
    println!("{compiled} files compiled");
}
