//! Every elementwise op of the table in compiled code, against its meaning in f64 or in 32-bit
//! integers: as a scalar of a program, in a computed operand, and on an accumulator. Executed on
//! the emulator; needs NVRTC, no GPU.

use flashtile::device::Emulation;
use flashtile::emulator::Options;
use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions};
use flashtile_dsl::ir::{BinaryOp, Operands, SourceText, Spelling, UnaryOp};

const ARCHS: [&str; 3] = ["sm_75", "sm_80", "sm_90a"];

/// What the outputs, the last parameters, are after a launch. All elements have four bytes;
/// `consts` and the type are `D = 32`, f16.
fn launch(
    text: &str,
    device: &Device,
    arch: &'static str,
    inputs: &[(Elem, Vec<usize>, Vec<u8>)],
    outputs: &[Vec<usize>],
) -> Vec<Vec<f32>> {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}\n{text}")).remove(0);
    let consts = kernel.ir().sizes.values().filter(|s| s.name == "D").map(|s| (s.name.clone(), 32)).collect::<Vec<_>>();
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch).filter(|_| !device.to_string().starts_with("cpu")),
        emulation: Emulation { options: Options::default(), ..Emulation::default() },
        ..LaunchOptions::default()
    };
    let loaded =
        kernel.bind(Elem::F16, consts).expect("binds").on_with(device, options).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let tensor = |(elem, shape, bytes): &(Elem, Vec<usize>, Vec<u8>)| AnyTensor::from_bytes(device, *elem, shape, bytes);
    let inputs: Vec<AnyTensor> = inputs.iter().map(|input| tensor(input).expect("fits")).collect();
    let outputs: Vec<AnyTensor> = outputs.iter().map(|shape| AnyTensor::zeros(device, Elem::F32, shape).expect("fits")).collect();
    let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
    arguments.extend(outputs.iter().map(Argument::Output));
    loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}\n{text}"));
    let floats = |bytes: Vec<u8>| bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
    outputs.iter().map(|output| floats(output.to_bytes().expect("is read"))).collect()
}

/// The call or the operator with its operands.
fn unary(op: UnaryOp, x: &str) -> String {
    match op.row().spelling {
        Spelling::Prefix(sign) => format!("({sign}({x}))"),
        Spelling::Call | Spelling::Infix(..) => format!("{}({x})", op.row().mnemonic),
    }
}

fn binary(op: BinaryOp, x: &str, y: &str) -> String {
    match op.row().spelling {
        Spelling::Infix(sign, _) => format!("({x} {sign} {y})"),
        Spelling::Call | Spelling::Prefix(_) => format!("{}({x}, {y})", op.row().mnemonic),
    }
}

#[test]
fn functions_of_a_float_are_near_their_meaning_in_f64() {
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 0.25, 1e-30, 1e30, -1e30, 100.25];
    let inputs: Vec<f32> = special.into_iter().chain((0..200).map(|k| (k as f32 - 77.0) * 0.37)).collect();
    let bytes: Vec<u8> = inputs.iter().flat_map(|x| x.to_le_bytes()).collect();
    for op in UnaryOp::ALL {
        let Some(meaning) = op.row().float else { continue };
        let text = format!(
            "pub fn f(x: &Tensor<f32, (N)>, o: &mut Tensor<f32, (N)>) {{
                let n = program(N);
                store(o, [n], {});
            }}",
            unary(*op, "load(x, [n])")
        );
        for arch in ARCHS {
            let input = (Elem::F32, vec![inputs.len()], bytes.clone());
            let found = launch(&text, &Device::emulator(), arch, &[input], &[vec![inputs.len()]]).remove(0);
            for (&x, y) in inputs.iter().zip(found) {
                let wanted = (meaning.double)(f64::from(x)) as f32;
                let right =
                    wanted == y || (wanted.is_nan() && y.is_nan()) || (wanted - y).abs() <= 2e-5 * wanted.abs().min(1e30) + 1e-6;
                assert!(right, "{op:?}({x}) = {y} on {arch}, expected {wanted}");
            }
        }
    }
}

/// Angles of every power of 2, and those next to multiples of a quarter of a circle, where little of
/// the angle is left.
#[test]
fn sin_and_cos_are_off_by_two_units_in_the_last_place() {
    let powers = (-40..128).flat_map(|e| [1.0, 1.234_567_8, 1.999_999_9].map(|m: f64| m * 2f64.powi(e)));
    let quarters = [1.0, 2.0, 3.0, 710.0, 67_235.0, 67_236.0, 67_237.0, 1e6, 8_388_607.0, 1e12, 3e25];
    let near = quarters.into_iter().map(|n| n * std::f64::consts::FRAC_PI_2);
    let next = |x: f32| [x.next_down(), x, x.next_up()];
    let finite = powers.chain(near).flat_map(|x| next(x as f32)).filter(|x| x.is_finite());
    let angles: Vec<f32> = finite.flat_map(|x| [x, -x]).collect();
    let text = "pub fn f(x: &Tensor<f32, (N)>, s: &mut Tensor<f32, (N)>, c: &mut Tensor<f32, (N)>) {
        let n = program(N);
        store(s, [n], sin(load(x, [n])));
        store(c, [n], cos(load(x, [n])));
    }";
    let bytes = angles.iter().flat_map(|x| x.to_le_bytes()).collect();
    let shape = vec![angles.len()];
    let input = (Elem::F32, shape.clone(), bytes);
    let found = launch(text, &Device::emulator(), "sm_80", &[input], &[shape.clone(), shape]);
    for (op, found) in [UnaryOp::Sin, UnaryOp::Cos].into_iter().zip(found) {
        let meaning = op.row().float.expect("a function of floats").double;
        for (&x, y) in angles.iter().zip(found) {
            let wanted = meaning(f64::from(x));
            let unit = 2f64.powi(wanted.abs().log2().floor() as i32 - 23);
            let rest = if x.abs() > 105_615.0 { 2f64.powi(-37) } else { 0.0 };
            let error = (f64::from(y) - wanted).abs();
            assert!(error <= 2.0 * unit + rest, "{op:?}({x}) = {y}, expected {wanted}: {} units", error / unit);
        }
    }
}

#[test]
fn functions_of_integers_are_their_meaning_in_32_bits() {
    let edges =
        [0, 1, -1, 2, 3, 7, 31, 32, 33, -5, 255, 65_535, 65_536, 0x1234_5678, -0x2DAE_E0AD, i32::MAX, i32::MIN, i32::MIN + 1];
    let pairs: Vec<(i32, i32)> = edges.iter().flat_map(|&x| edges.iter().map(move |&y| (x, y))).collect();
    for op in BinaryOp::ALL {
        let Some(meaning) = op.row().integer else { continue };
        let defined = |(x, y): &(i32, i32)| !op.row().divides || (*y != 0 && (*x, *y) != (i32::MIN, -1));
        let pairs: Vec<(i32, i32)> = pairs.iter().copied().filter(defined).collect();
        // Halves of the result, which are floats without loss; `+ 0` of both sides, as an operand
        // that is computed.
        let text = format!(
            "pub fn f(x: &Tensor<i32, (N)>, y: &Tensor<i32, (N)>, high: &mut Tensor<f32, (N)>, low: &mut Tensor<f32, (N)>) {{
                let n = program(N);
                let v = {};
                store(high, [n], (v / 65536).to::<f32>());
                store(low, [n], (v % 65536).to::<f32>());
            }}",
            binary(*op, "load(x, [n])", "load(y, [n])")
        );
        let ints = |values: Vec<i32>| (Elem::I32, vec![pairs.len()], values.into_iter().flat_map(i32::to_le_bytes).collect());
        let inputs = [ints(pairs.iter().map(|p| p.0).collect()), ints(pairs.iter().map(|p| p.1).collect())];
        let shapes = [vec![pairs.len()], vec![pairs.len()]];
        for (device, arch) in [(Device::cpu(), "sm_80"), (Device::emulator(), "sm_75"), (Device::emulator(), "sm_90a")] {
            let found = launch(&text, &device, arch, &inputs, &shapes);
            for (k, &(x, y)) in pairs.iter().enumerate() {
                let value = found[0][k] as i64 * 65_536 + found[1][k] as i64;
                assert_eq!(value, i64::from(meaning(x, y)), "{op:?}({x}, {y}) on {device}, {arch}");
            }
        }
    }
}

#[test]
fn ops_are_right_in_computed_operands_and_on_accumulators() {
    let mut float = "x".to_owned();
    for op in UnaryOp::ALL.iter().filter(|op| op.row().operand == Operands::Floats && op.row().spelling == Spelling::Call) {
        // Between 0.5 and 1.5, where every function is tame; what jumps is given no rounding to
        // amplify.
        let inner = if op.row().jumps { "8.0 * x + 0.3" } else { "abs(x) + 0.5" };
        float = format!("{float} + 0.125 * {}", unary(*op, inner));
    }
    let mut integer = "k".to_owned();
    for op in BinaryOp::ALL.iter().filter(|op| op.row().operands == Operands::Integers && !op.row().divides) {
        integer = format!("({integer} + {})", binary(*op, "k * 20000001", "(r + 3)"));
    }
    let text = format!(
        "pub fn f<T: Element, const D: usize>(
            a: &Tensor<f32, (M, D)>, b: &Tensor<i32, (N, D)>, c: &Tensor<i32, (N)>, o: &mut Tensor<f32, (M, N)>,
        ) {{
            let (i, j) = program(tiles(M), tiles(N));
            let k = load(b, [j, ..]);
            let r = load(c, [j]);
            let whole = {integer} % 7;
            let x = dot((load(a, [i, ..]) * 1.0).to::<T>(), whole.to::<T>().t()) * 0.01;
            store(o, [i, j], {float});
        }}"
    );
    let (m, n) = (37, 50);
    let floats = (0..m * 32).flat_map(|k| ((k * 7 % 16) as f32 / 16.0 - 0.5).to_le_bytes()).collect();
    let ints = |count: usize| (0..count).flat_map(|k| (k as i32 * 1_000_003).to_le_bytes()).collect();
    let inputs = [(Elem::F32, vec![m, 32], floats), (Elem::I32, vec![n, 32], ints(n * 32)), (Elem::I32, vec![n], ints(n))];
    let wanted = launch(&text, &Device::cpu(), "sm_80", &inputs, &[vec![m, n]]).remove(0);
    for arch in ARCHS {
        let found = launch(&text, &Device::emulator(), arch, &inputs, &[vec![m, n]]).remove(0);
        for (k, (x, y)) in wanted.iter().zip(&found).enumerate() {
            assert!((x - y).abs() <= 2e-3 * x.abs().max(1.0), "element {k} on {arch}: {y}, expected {x}\n{text}");
        }
    }
}
