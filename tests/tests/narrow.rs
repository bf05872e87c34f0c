//! Right operands of products with eight numbers in a row: `wgmma` takes steps of 16, and the
//! second half of each row is zeros that the program writes when it begins.

use flashtile::device::{EmulatedCode, Emulation, EmulatorError};
use flashtile::emulator::FindingKind;
use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Argument as Given, BoundKernel, Device, Error, LaunchOptions, Schedule, bf16};
use flashtile_codegen::{Arch, Facts};
use flashtile_dsl::ir::{Elem, SourceText};

const TEXT: &str = "
pub fn products<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (M, N)>) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    for j in tiles(N) {
        store(o, [i, j], dot(q_i, load(k, [j, ..]).t()));
    }
}";

const KNOBS: &str = "block_m=64,block_n=32,tensor_op=wgmma,copy=tma,stages=2";
const ROWS: usize = 70;
const COLUMNS: usize = 100;

fn kernel() -> BoundKernel {
    let source = SourceText { name: "kernel.rs".into(), text: TEXT.into(), first_line: 1 };
    let kernel = flashtile::Kernel::from_source(&source).expect("well formed").remove(0);
    kernel.bind(Elem::Bf16, [("D", 8)]).expect("binds")
}

/// What the kernel stores, with a key that is infinite in one number; on the emulator as generated
/// or as `spoil` makes it.
fn stored(device: &Device, spoil: Option<&dyn Fn(&str) -> String>) -> Result<Vec<f32>, Error> {
    let (kernel, arch) = (kernel(), Arch::named("sm_90a").expect("is known"));
    let schedule: Schedule = KNOBS.parse().expect("a schedule");
    let code = spoil.map(|spoil| {
        let instance = kernel.instance(Facts::best(kernel.ir()));
        let source = flashtile::lowering::generate(&instance, &schedule, arch).expect("generates").source;
        EmulatedCode::Cuda(spoil(&source).into())
    });
    let on_emulator = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Some(arch),
        schedule: Some(schedule),
        emulation: Emulation { code, ..Emulation::default() },
        ..LaunchOptions::default()
    };
    let loaded = kernel.on_with(device, if device.compiles() { on_emulator } else { LaunchOptions::default() })?;
    let tensor = |rows: usize, infinite: Option<usize>| {
        let number = |at: usize| if infinite == Some(at) { f32::INFINITY } else { (at % 13) as f32 + 1.0 };
        let bytes: Vec<u8> = (0..rows * 8).flat_map(|at| bf16::from_f32(number(at)).to_le_bytes()).collect();
        AnyTensor::from_bytes(device, Elem::Bf16, &[rows, 8], &bytes)
    };
    let (q, k) = (tensor(ROWS, None)?, tensor(COLUMNS, Some(8 * 41 + 3))?);
    let o = AnyTensor::zeros(device, Elem::F32, &[ROWS, COLUMNS])?;
    loaded.launch(&[Given::from(&q), (&k).into(), Given::Output(&o)])?;
    Ok(o.to_bytes()?.chunks(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect())
}

#[test]
fn an_infinite_number_stays_in_its_column() {
    let (right, on_emulator) = (stored(&Device::cpu(), None), stored(&Device::emulator(), None));
    let (right, on_emulator) = (right.expect("runs"), on_emulator.expect("runs"));
    assert_eq!(right.iter().filter(|x| x.is_infinite()).count(), ROWS);
    assert_eq!(right, on_emulator);
}

#[test]
fn missing_zeros_are_found() {
    let found = |spoil: &dyn Fn(&str) -> String| {
        let error = stored(&Device::emulator(), Some(spoil)).expect_err("a fault is planted");
        let Error::Emulator(EmulatorError::Findings { findings, .. }) = &error else { panic!("{error}") };
        findings.iter().map(|finding| finding.kind).collect::<Vec<FindingKind>>()
    };
    let without = |source: &str, which: &dyn Fn(&str) -> bool| {
        let kept: Vec<&str> = source.lines().filter(|line| !which(line)).collect();
        assert!(kept.len() < source.lines().count(), "{source}");
        kept.join("\n")
    };
    let is_zeroed = |line: &str| line.contains("uint4{0, 0, 0, 0}");
    assert!(found(&|source| without(source, &is_zeroed)).contains(&FindingKind::Uninitialised));
    assert!(found(&|source| without(source, &|line| line.trim() == "proxy_fence();")).contains(&FindingKind::UnfencedProxy));
}
