//! Bank conflicts that the emulator counts are those that Nsight Compute counts for the same kernels on a GPU. Needs NVRTC, no
//! GPU: the numbers of the GPU are kept here, and `python3 bench/conflicts.py` makes them again where there is one.
//!
//! Copies by `cp.async` are not compared: they write when data arrive, in pieces that the addresses alone do not tell.

use std::collections::BTreeMap;

use flashtile::device::Emulation;
use flashtile::toolchain::Toolchain;
use flashtile::tuner::judge;
use flashtile::{Arch, Device, Elem, Kernel, LaunchOptions, Schedule};

/// Kernel, element type, head dim, copy and layout of tiles; warp instructions and wavefronts of `LDSM`, `LDS` and `STS`.
type Row = (&'static str, Elem, i64, &'static str, &'static str, [u64; 2], [u64; 2], [u64; 2]);

/// Counted by Nsight Compute 2025.3 (source counters) on an H200, driver 580.159.04, CUDA 13.0, 2026-11-21:
/// `python3 bench/conflicts.py`. B = 1, H = G = 2, M = N = 200.
#[rustfmt::skip]
const COUNTED: &[Row] = &[
    ("attention", Elem::F16, 64, "sync", "off", [4608, 147_456], [0, 0], [1152, 4608]),
    ("attention", Elem::F16, 64, "sync", "padded", [4608, 18_432], [0, 0], [1152, 4608]),
    ("attention", Elem::F16, 64, "sync", "xor", [4608, 18_432], [0, 0], [1152, 4608]),
    ("attention", Elem::F16, 64, "cp_async", "off", [4608, 147_456], [0, 0], [0, 0]),
    ("attention", Elem::F16, 64, "cp_async", "padded", [4608, 18_432], [0, 0], [0, 0]),
    ("attention", Elem::F16, 64, "cp_async", "xor", [4608, 18_432], [0, 0], [0, 0]),
    ("attention", Elem::Bf16, 128, "cp_async", "off", [9216, 294_912], [0, 0], [0, 0]),
    ("attention", Elem::Bf16, 128, "cp_async", "padded", [9216, 36_864], [0, 0], [0, 0]),
    ("attention", Elem::Bf16, 128, "cp_async", "xor", [9216, 36_864], [0, 0], [0, 0]),
    ("causal_attention", Elem::F16, 32, "cp_async", "off", [1440, 23_040], [0, 0], [0, 0]),
    ("causal_attention", Elem::F16, 32, "cp_async", "padded", [1440, 5760], [0, 0], [0, 0]),
    ("causal_attention", Elem::F16, 32, "cp_async", "xor", [1440, 5760], [0, 0], [0, 0]),
    ("attention", Elem::F16, 80, "cp_async", "off", [5760, 46_080], [0, 0], [0, 0]),
    ("attention", Elem::F16, 80, "cp_async", "padded", [5760, 23_040], [0, 0], [0, 0]),
    ("attention", Elem::F16, 80, "cp_async", "xor", [5760, 23_040], [0, 0], [0, 0]),
    ("attention", Elem::F32, 32, "sync", "off", [0, 0], [50_176, 344_064], [2816, 18_432]),
    ("attention", Elem::F32, 32, "sync", "padded", [0, 0], [50_176, 129_024], [2816, 11_264]),
    ("attention", Elem::F32, 32, "sync", "xor", [0, 0], [50_176, 129_024], [2816, 11_264]),
    ("attention", Elem::F32, 32, "cp_async", "off", [0, 0], [50_176, 344_064], [1792, 14_336]),
    ("attention", Elem::F32, 32, "cp_async", "padded", [0, 0], [50_176, 129_024], [1792, 7168]),
    ("attention", Elem::F32, 32, "cp_async", "xor", [0, 0], [50_176, 129_024], [1792, 7168]),
    ("attention", Elem::F32, 64, "cp_async", "off", [0, 0], [96_768, 659_456], [1792, 14_336]),
    ("attention", Elem::F32, 64, "cp_async", "padded", [0, 0], [96_768, 250_880], [1792, 7168]),
    ("attention", Elem::F32, 64, "cp_async", "xor", [0, 0], [96_768, 250_880], [1792, 7168]),
];

/// The schedules of `bench/conflicts.py`.
fn schedule(elem: Elem, copy: &str, layout: &str) -> Schedule {
    let (op, block_n) = if elem == Elem::F32 { ("ffma", 32) } else { ("mma_m16n8k16", 64) };
    let stages = if copy == "sync" { 1 } else { 2 };
    let text = format!(
        "block_m=64,block_n={block_n},block_k=32,warps=4,tensor_op={op},copy={copy},stages={stages},swizzle={layout},\
         fragments=paired,operand_a=shared,batch_m=on,exponential=exp2,running_max=exact,early_stop=on,edges=split,order=grid,\
         min_blocks=0"
    );
    text.parse().expect("is a schedule")
}

#[test]
fn bank_conflicts_are_those_that_nsight_compute_counts() {
    let sizes: BTreeMap<String, i64> =
        [("B", 1), ("H", 2), ("G", 2), ("M", 200), ("N", 200)].map(|(n, v)| (n.to_owned(), v)).into();
    for &(name, elem, d, copy, layout, ldsm, lds, sts) in COUNTED {
        let kernel = Kernel::builtin(name).expect("a built-in").bind(elem, [("D", d)]).expect("binds");
        let mut emulation = Emulation::default();
        emulation.options.profile = true;
        let options = LaunchOptions {
            toolchain: Toolchain::shared(),
            schedule: Some(schedule(elem, copy, layout)),
            arch: Arch::named("sm_90a"),
            emulation,
            ..LaunchOptions::default()
        };
        let loaded = kernel.on_with(&Device::emulator(), options).expect("loads");
        assert!(judge(&loaded, &sizes, 0).expect("runs").iter().all(|verdict| verdict.passed()));
        let profile = loaded.reports().remove(0).profile.expect("was asked for");
        let counted = |opcode: &str| {
            let of = profile.instructions.iter().filter(|i| i.instruction.starts_with(opcode) && i.work.shared_requests > 0);
            of.fold([0, 0], |[n, w], i| [n + i.work.shared_requests, w + i.work.wavefronts])
        };
        let found = ["ldmatrix", "ld.shared", "st.shared"].map(counted);
        assert_eq!(found, [ldsm, lds, sts], "{name} {} d={d} copy={copy} swizzle={layout}", elem.name());
        // Layouts that are there to avoid conflicts do, for the loads of operands.
        let conflicts: u64 =
            profile.instructions.iter().filter(|i| i.instruction.starts_with("ld")).map(|i| i.work.conflicts()).sum();
        assert_eq!(conflicts > 0, layout == "off", "{name} d={d} {layout}: {conflicts}");
    }
}
