//! The C launcher against the launches of this crate: the same arguments, line by line the same
//! calls of the driver.
//!
//! A bundle is made of kernels of every kind. Its C files are compiled with a program that reads
//! calls from a file, and run with a driver that only writes down what it is asked for
//! (`stub_cuda.c`). The same calls are launched from Rust, on a device that writes down the same
//! (`recorder.rs`). Needs NVRTC and `cc`.

mod calls;
mod compare;
mod recorder;
mod refusals;

use std::path::Path;
use std::sync::OnceLock;

use flashtile_codegen::{Arch, Schedule};
use flashtile_dsl::grad::Form;
use flashtile_dsl::ir::{Elem, SourceText};

use super::contract::KernelContract;
use super::{BundleBuilder, BundleTarget, Wanted};
use crate::cache::Cache;
use crate::device::machine_of;
use crate::kernel::{BoundKernel, Kernel};
use crate::toolchain::Toolchain;
use crate::tuner::model_key;

/// A bundle of kernels of every kind.
struct Made {
    dir: tempfile::TempDir,
    kernels: Vec<(BoundKernel, KernelContract)>,
}

/// Sums that a launch ahead zeroes, with names of which C makes something else.
const TOTALS: &str = "pub fn double(int: &Tensor<f32, (B, M, N)>, NULL: i32, int_: &mut Tensor<f32, (M, N)>) {
    let (b, i, j) = program(B, tiles(M), tiles(N));
    add(int_, [i, j], load(int, [b / NULL * NULL, i, j]));
}";

/// Bits in indices, in a divisor, and in a comparison. Each index leaves its dimension in some calls.
const BITS: &str = "pub fn bits(x: &Tensor<f32, (B, M)>, w: i32, y: &mut Tensor<f32, (B, M)>) {
    let (b, i) = program(B, tiles(M));
    let shifted = load(x, [b + 1 & w, i]) + load(x, [(b << 28 >> 28) - b, i]);
    let divided = shifted + load(x, [mul_hi(b, w), i]) + load(x, [b / ((b ^ w) & 7 | 1), i]);
    let all = divided + load(x, [b ^ w & 1, i]) + load(x, [b | w & 2, i]);
    store(y, [b, i], select((pos(i) ^ w) * 8 < 100, all, 0.0));
}";

/// Kernels with the architecture, the sizes that schedules are chosen for, and knobs; and whether
/// there is general code.
type Row = (&'static str, Elem, &'static [(&'static str, i64)], &'static str, &'static [(&'static str, i64)], &'static str, bool);

const D: &[(&str, i64)] = &[("D", 64)];
const SHORT: &[(&str, i64)] = &[("B", 2), ("H", 4), ("G", 2), ("M", 64), ("N", 512)];
const BLOCKS: &[(&str, i64)] = &[("B", 1), ("H", 4), ("G", 2), ("M", 512), ("N", 512), ("R", 8), ("C", 8)];
/// As far from `SHORT` as to have calls in the middle.
const LONG: &[(&str, i64)] = &[("B", 2), ("H", 16), ("G", 16), ("M", 2048), ("N", 2048)];

/// A schedule of the model's for sm_90a, with the counter of dynamic scheduling.
const WGMMA: &str = "defaults,block_n=128,block_k=64,tensor_op=wgmma,copy=tma,stages=3,running_max=optimistic,min_blocks=1,\
    overlap=on,persistent=dynamic,outer_stages=2";

/// A schedule of a fused gradient: boxes of narrow rows, and of rows that are split.
const FUSED: &str = "defaults,block_m=128,block_n=128,warps=8,tensor_op=wgmma,copy=tma,min_blocks=1,overlap=late,sum_lag=0,\
    producer_registers=24,terms=product";

const ROWS: &[Row] = &[
    ("attention", Elem::Bf16, D, "sm_90a", LONG, WGMMA, true),
    ("attention", Elem::Bf16, D, "sm_90a", SHORT, "defaults,pack_gqa=on", false),
    ("attention", Elem::Bf16, D, "sm_80", SHORT, "defaults", true),
    ("causal_attention", Elem::F16, D, "sm_90a", SHORT, "defaults,split_k=4,fixup=kernel", true),
    ("causal_attention", Elem::F16, D, "sm_90a", LONG, "defaults,split_k=2,fixup=semaphore", false),
    ("document_attention", Elem::Bf16, D, "sm_90a", LONG, "defaults,summaries=on", false),
    ("block_attention", Elem::Bf16, &[("D", 64), ("S", 64)], "sm_90a", BLOCKS, "defaults,summaries=listed", false),
    ("row_softmax", Elem::F32, &[], "sm_80", &[("M", 512), ("N", 1000)], "defaults", true),
    ("row_softmax", Elem::F32, &[], "sm_90a", &[("M", 512), ("N", 1000)], "defaults", false),
    ("gradient", Elem::Bf16, D, "sm_90a", LONG, FUSED, false),
    ("totals", Elem::F32, &[], "sm_90a", &[("B", 4), ("M", 512), ("N", 512)], "defaults", true),
    ("bits", Elem::F32, &[], "sm_90a", &[("B", 4), ("M", 512)], "defaults", true),
];

fn kernel(name: &str, elem: Elem, consts: &[(&str, i64)]) -> BoundKernel {
    let written = |text: &str| {
        let source = SourceText { name: format!("{name}.rs"), text: text.into(), first_line: 1 };
        Kernel::from_source(&source).expect("well formed").remove(0)
    };
    let kernel = match name {
        "totals" => written(TOTALS),
        "bits" => written(BITS),
        "gradient" => {
            let forward = Kernel::builtin("attention").expect("a built-in");
            forward.gradient_in(Form::Fused, &["q", "k", "v"], &["o"]).expect("has one").backward.swap_remove(1)
        }
        name => Kernel::builtin(name).expect("a built-in"),
    };
    kernel.bind(elem, consts.iter().copied()).expect("binds")
}

/// The bundle, made once in the process.
fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let mut builder = BundleBuilder::new(Toolchain::shared(), Cache::disabled());
        for (name, elem, consts, arch, sizes, knobs, general) in ROWS {
            let kernel = kernel(name, *elem, consts);
            let arch = Arch::named(arch).expect("in the table");
            let target = BundleTarget { arch, machine: machine_of(arch, None), device: model_key(arch) };
            let known = |(size, value): &(&str, i64)| kernel.ir().size_named(size).map(|_| ((*size).to_owned(), *value));
            let sizes = sizes.iter().filter_map(known).collect();
            let wanted = Wanted::shape(&kernel, &sizes).expect("sizes fit");
            let schedule: Schedule = knobs.parse().expect("knobs");
            builder.add(&kernel, &target, &wanted, Some(&schedule)).expect("compiles");
            if *general {
                let plain = "defaults,copy=sync".parse().expect("knobs");
                builder.add(&kernel, &target, &Wanted::general(&kernel, &sizes), Some(&plain)).expect("compiles");
            }
        }
        let kernels = builder.kernels().to_vec();
        builder.write(&dir.path().join("bundle")).expect("writes");
        Made { dir, kernels }
    })
}

impl Made {
    fn bundle(&self) -> std::path::PathBuf {
        self.dir.path().join("bundle")
    }
}

/// Compiles C files with every warning an error.
fn compile(dir: &Path, arguments: &[&str]) {
    let mut cc = std::process::Command::new("cc");
    let output =
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]).args(arguments).current_dir(dir).output().expect("cc is installed");
    assert!(output.status.success(), "cc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
