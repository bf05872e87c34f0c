//! Vectors along columns as steps of products (`terms=product`): what the launches give is what the
//! kernel gives, the parts of a vector are the vector, and what cannot be taken apart is refused.

use std::collections::BTreeMap;

use flashtile::device::Emulation;
use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Argument as Given, Device, LaunchOptions, LoadedKernel, bf16};
use flashtile_codegen::{Arch, Facts, Instance, Staged, terms_of_products, why_not_terms};
use flashtile_dsl::interpret::{Argument, Blocks, HostTensor, Interpreter, Ir32};
use flashtile_dsl::ir::{Binding, Direction, Elem, Kernel, ParamKind, SizeKind, SourceText};
use proptest::prelude::*;

/// A sum behind a factor and a mask, one in front of them, one of a vector that all heads share, and
/// heads in groups.
const TEXT: &str = "
pub fn columns<const D: usize>(
    q: &Tensor<bf16, (H, M, D)>, k: &Tensor<bf16, (G, N, D)>, x: &Tensor<f32, (H, M)>, y: &Tensor<f32, (M)>,
    scale: f32, o: &mut Tensor<f32, (G, H, N)>,
) {
    let (g, h, j) = program(G, H, tiles(N));
    let k_j = load(k, [g, j, ..]);
    let mut l = zeros(j);
    for i in tiles(M) {
        let q_i = load(q, [h, i, ..]);
        let s = mask(dot(k_j, q_i.t()) * scale, pos(i) >= pos(j));
        let p = exp(s - visible_or_zero(load(x, [h, i])));
        let d = load(y, [i]) * 3.0 + dot(k_j, q_i.t()) * 2.0 + abs(load(x, [h, i]));
        l = l + rowsum(p * d);
    }
    store(o, [g, h, j], l);
}";

const D: i64 = 8;
/// The largest number of `bf16`.
const LARGEST: f64 = 3.389_531_389_251_535_5e38;
const SCALE: f32 = 0.7;

fn parse(text: &str) -> Kernel {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn instance(text: &str) -> Instance {
    let kernel = parse(text);
    Instance { binding: binding(&kernel), facts: Facts::best(&kernel), kernel }
}

fn binding(kernel: &Kernel) -> Binding {
    let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), D));
    Binding::new(kernel, Elem::Bf16, consts)
}

type Tensors = BTreeMap<String, HostTensor>;

/// Sizes and blocks of a call.
#[derive(Clone, Debug)]
struct Call {
    rows: i64,
    columns: i64,
    blocks: (usize, usize),
}

impl Call {
    fn size(&self, name: &str) -> i64 {
        match name {
            "M" => self.rows,
            "N" => self.columns,
            "H" => 3,
            "G" => 2,
            _ => D,
        }
    }

    /// The extents of each tensor of a kernel.
    fn shape(&self, kernel: &Kernel, name: &str) -> Vec<usize> {
        let param = kernel.param_named(name).expect("it has the tensor");
        let extents = kernel.tensor(param).shape.iter();
        extents.map(|size| size.eval(|id| Some(self.size(kernel.size_name(id)))).expect("has a value") as usize).collect()
    }

    fn inputs(&self, kernel: &Kernel, value: impl Fn(&str, usize) -> f64) -> Tensors {
        let read = kernel.params.values().filter_map(|param| match &param.kind {
            ParamKind::Tensor(decl) if decl.direction.is_read() => Some((param.name.clone(), decl.elem)),
            _ => None,
        });
        let tensor = |(name, elem): (String, Elem)| {
            let shape = self.shape(kernel, &name);
            let values: Vec<f64> = (0..shape.iter().product()).map(|n| value(&name, n)).collect();
            (name, HostTensor::from_f64(elem, &shape, &values))
        };
        read.map(tensor).collect()
    }

    /// Executes all programs of a kernel in f32, and adds what it stores to the tensors.
    fn run(&self, kernel: &Kernel, tensors: &mut Tensors) {
        let sizes: Vec<i64> = kernel.sizes.values().map(|s| self.size(&s.name)).collect();
        let argument = |param: &flashtile_dsl::ir::Param| match &param.kind {
            ParamKind::Scalar(_) => Argument::F32(SCALE),
            ParamKind::Tensor(t) if t.direction == Direction::Out => Argument::Output,
            ParamKind::Tensor(_) => Argument::Input(tensors[&param.name].view()),
        };
        let arguments: Vec<Argument<'_>> = kernel.params.values().map(argument).collect();
        let blocks = kernel.axes.keys().enumerate().map(|(n, _)| if n == 0 { self.blocks.0 } else { self.blocks.1 });
        let blocks = Blocks::PerAxis(blocks.collect());
        let binding = binding(kernel);
        let interpreter = Interpreter::new(kernel, &binding, &sizes, &blocks, &arguments, Ir32);
        let interpreter = interpreter.unwrap_or_else(|e| panic!("{e}"));
        let mut stored = Tensors::new();
        for (id, param) in kernel.params.iter() {
            if let ParamKind::Tensor(tensor) = &param.kind
                && tensor.direction.is_written()
            {
                let shape = interpreter.shape(id);
                let nothing = vec![f64::NAN; shape.iter().product()];
                stored.insert(param.name.clone(), HostTensor::from_f64(tensor.elem, shape, &nothing));
            }
        }
        for program in 0..interpreter.programs() {
            for tile in interpreter.run(program).unwrap_or_else(|e| panic!("{e}")) {
                let shape = interpreter.shape(tile.param);
                let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
                let to = stored.get_mut(&kernel.params[tile.param].name).expect("an output");
                let ParamKind::Tensor(tensor) = &kernel.params[tile.param].kind else { unreachable!("a tensor") };
                tile.write(tensor.elem, &strides, to.memory_mut());
            }
        }
        tensors.append(&mut stored);
    }

    /// The first element of `o` that a kernel and its launches differ in.
    fn difference(&self, kernel: &Kernel, made: &Staged, seed: u64) -> Option<String> {
        let value = |name: &str, n: usize| drawn(seed, name, n);
        let (mut whole, mut parts) = (self.inputs(kernel, value), self.inputs(kernel, value));
        self.run(kernel, &mut whole);
        made.kernels().for_each(|launch| self.run(launch, &mut parts));
        let (a, b) = (whole["o"].to_f64(), parts["o"].to_f64());
        let largest = a.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        // What is no number is no match either.
        let same = |x: f64, y: f64| (x - y).abs() <= 2e-5 * largest;
        let at = a.iter().zip(&b).position(|(&x, &y)| !same(x, y))?;
        Some(format!("{} for {} at {at}", b[at], a[at]))
    }
}

/// A number in -3 .. 3, of a tensor's element.
fn drawn(seed: u64, name: &str, n: usize) -> f64 {
    let mut state = name.bytes().fold(seed, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    state = (state ^ n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ (state >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    3.0 * ((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn launches_mean_what_the_kernel_means(
        rows in 1i64..20, columns in 1i64..20, blocks in (1usize..9, 1usize..9), seed in any::<u64>(),
    ) {
        let instance = instance(TEXT);
        let made = terms_of_products(&instance).expect("it has three");
        let ones = made.between.iter().filter(|name| name.starts_with("ones")).count();
        prop_assert_eq!((made.between.len(), ones), (4, 1), "{:?}", made.between);
        // An exponential is made of the sum with `x`, and a sum over rows of the others.
        prop_assert_eq!(&made.finite, &["x_parts"]);
        let call = Call { rows, columns, blocks };
        // In exact arithmetic a cast does not round, and the tensor of parts would.
        prop_assert_eq!(call.difference(&instance.kernel, &made, seed), None);
    }
}

#[test]
fn one_part_fewer_is_noticed() {
    let instance = instance(TEXT);
    let mut made = terms_of_products(&instance).expect("it has three");
    let call = Call { rows: 19, columns: 13, blocks: (4, 5) };
    assert_eq!(call.difference(&instance.kernel, &made, 3), None);
    // The first kernel stores the second part of `x` at column 1.
    let kernel = &mut made.ahead[0];
    let stores: Vec<_> = kernel.walk().into_iter().filter(|(_, op)| kernel.ops[*op].op.mnemonic().starts_with("store")).collect();
    let (block, second) = stores[1];
    kernel.blocks[block].ops.retain(|&op| op != second);
    assert!(call.difference(&instance.kernel, &made, 3).is_some());
}

#[test]
fn parts_of_a_vector_are_the_vector() {
    let values = [0.0, 1.0, -1.0 / 3.0, 1e-30, 7.123_456_7e20, -65504.1, 3.0e38, f64::INFINITY, f64::NEG_INFINITY];
    let instance = instance(TEXT);
    let made = terms_of_products(&instance).expect("it has three");
    let call = Call { rows: values.len() as i64, columns: 4, blocks: (4, 4) };
    let mut tensors = call.inputs(&instance.kernel, |name, n| match name {
        "x" | "y" => f64::from(values[n % values.len()] as f32),
        _ => 0.0,
    });
    made.ahead.iter().for_each(|kernel| call.run(kernel, &mut tensors));
    // An exponential is made of the sum with `x`, and a sum over rows of the one with `y`.
    for (name, times, by) in [("x_parts", -1.0, SCALE), ("y_parts", 3.0, 2.0)] {
        let found = tensors[name].to_f64();
        for (row, &value) in found.chunks(8).zip(values.iter().cycle()) {
            // Rows that see nothing have the reference 0.
            let value = if name == "x_parts" && value == f64::NEG_INFINITY { 0.0 } else { value };
            let whole = value as f32 * times;
            let quotient = f64::from(whole) / f64::from(by);
            // Two vectors meet the product of `y`.
            let most = if name == "x_parts" { LARGEST } else { LARGEST / 2.0 };
            let is_kept = name == "y_parts" && !whole.is_finite();
            let wanted = if is_kept { quotient } else { f64::from(quotient.clamp(-most, most) as f32) };
            let sum: f64 = row.iter().sum();
            let near = (sum - wanted).abs() <= wanted.abs() * 2f64.powi(-23);
            assert!(sum == wanted || near, "{name}: {row:?} for {wanted}");
            assert!(row[3..].iter().all(|&x| x == 0.0), "{name}: {row:?}");
        }
    }
}

#[test]
fn what_cannot_be_taken_apart_is_refused() {
    let plain = "
pub fn columns<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, x: &Tensor<f32, (M)>, scale: f32, o: &mut Tensor<f32, (N)>,
) {
    let j = program(tiles(N));
    let k_j = load(k, [j, ..]);
    let mut l = zeros(j);
    for i in tiles(M) {
        let s = dot(k_j, load(q, [i, ..]).t()) * scale;
        l = l + rowsum(s + load(x, [i]));
    }
    store(o, [j], l);
}";
    assert_eq!(why_not_terms(&instance(plain)), None);
    let of = |elem: Elem| {
        let kernel = parse(plain);
        let binding = Binding::new(&kernel, elem, [("D", D)]);
        why_not_terms(&Instance { binding, facts: Facts::best(&kernel), kernel }).expect("refused")
    };
    assert!(of(Elem::F16).contains("parts of f16 do not hold every f32"), "{}", of(Elem::F16));
    assert!(of(Elem::F32).contains("parts of f32"));
    // A vector of the type of the operands is widened.
    assert_eq!(why_not_terms(&instance(&plain.replace("x: &Tensor<f32", "x: &Tensor<T"))), None);
    let kernel = parse(plain);
    let unknown =
        Instance { binding: binding(&kernel), facts: Facts { positive: Default::default(), ..Facts::best(&kernel) }, kernel };
    assert!(why_not_terms(&unknown).expect("the scale may be 0").contains("no vector along columns"));
    for (from, to) in [
        // A sum that something else needs without the vector.
        ("rowsum(s + load(x, [i]))", "rowsum(s + load(x, [i])) + rowsum(s)"),
        // No sum.
        ("s + load(x, [i])", "s * load(x, [i])"),
        // What is not linear stays in front of the sum.
        ("s + load(x, [i])", "exp(s) + load(x, [i])"),
    ] {
        assert!(plain.contains(from));
        let why = why_not_terms(&instance(&plain.replace(from, to))).expect("refused");
        assert!(why.contains("no vector along columns is added to a product"), "{to}: {why}");
    }
}

/// Attention with a bias of each key.
const KEY_BIAS: &str = "
pub fn key_bias<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, bias: &Tensor<f32, (N)>, scale: f32,
    o: &mut Tensor<f32, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [j, ..]).t()) * scale + load(bias, [j]);
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [j, ..]));
        m = m_new;
    }
    store(o, [i, ..], div_or_zero(acc, l));
}";

fn loaded(device: &Device, schedule: Option<&str>) -> LoadedKernel {
    let source = SourceText { name: "kernel.rs".into(), text: KEY_BIAS.into(), first_line: 1 };
    let kernel = flashtile::Kernel::from_source(&source).expect("well formed").remove(0);
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: schedule.and_then(|_| Arch::named("sm_90a")),
        schedule: schedule.map(|text| text.parse().expect("a schedule")),
        emulation: Emulation::default(),
        ..LaunchOptions::default()
    };
    kernel.bind(Elem::Bf16, [("D", 64)]).expect("binds").on_with(device, options).expect("loads")
}

/// What the kernel stores for this bias, and queries, keys and values of random numbers.
fn with_bias(kernel: &LoadedKernel, rows: usize, bias: &[f32]) -> Vec<f32> {
    let device = kernel.device();
    let tensor = |name: &str, rows: usize| {
        let bytes: Vec<u8> = (0..rows * 64).flat_map(|n| bf16::from_f32(drawn(5, name, n) as f32 / 3.0).to_le_bytes()).collect();
        AnyTensor::from_bytes(device, Elem::Bf16, &[rows, 64], &bytes).expect("fits")
    };
    let [q, k, v] = [("q", rows), ("k", bias.len()), ("v", bias.len())].map(|(name, rows)| tensor(name, rows));
    let bytes: Vec<u8> = bias.iter().flat_map(|x| x.to_le_bytes()).collect();
    let bias = AnyTensor::from_bytes(device, Elem::F32, &[bias.len()], &bytes).expect("fits");
    let o = AnyTensor::zeros(device, Elem::F32, &[rows, 64]).expect("fits");
    let given = [Given::from(&q), (&k).into(), (&v).into(), (&bias).into(), 0.125f32.into(), Given::Output(&o)];
    kernel.launch(&given).unwrap_or_else(|error| panic!("on {device}: {error}"));
    o.to_bytes().expect("is read").chunks(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect()
}

#[test]
fn biases_may_be_infinite_or_as_large_as_numbers_are() {
    let knobs = "tensor_op=wgmma,copy=tma,block_m=64,block_n=64,warps=4,stages=2,overlap=on,terms=product";
    let kinds: [fn(usize) -> f32; 5] = [
        |_| -1e9,
        |n| if n % 3 == 0 { f32::NEG_INFINITY } else { n as f32 / 90.0 },
        |_| f32::NEG_INFINITY,
        |_| f32::MIN,
        |n| if n < 40 { f32::MIN } else { 0.5 },
    ];
    let reference = loaded(&Device::cpu(), None);
    for running_max in ["max_first", "optimistic"] {
        let made = loaded(&Device::emulator(), Some(&format!("{knobs},running_max={running_max}")));
        for (number, kind) in kinds.iter().enumerate() {
            let bias: Vec<f32> = (0..90).map(kind).collect();
            let [expected, found] = [&reference, &made].map(|kernel| with_bias(kernel, 70, &bias));
            let differ = expected.iter().zip(&found).position(|(a, b)| (a - b).abs() > 2e-2 || a.is_nan() != b.is_nan());
            let values = differ.map(|at| (at, expected[at], found[at]));
            assert_eq!(values, None, "{running_max}, biases of kind {number}");
        }
    }
}
