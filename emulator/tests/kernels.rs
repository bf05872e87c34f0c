//! Kernels that flashtile compiled, executed: right results, no findings, under every schedule of warps and copies.

mod common;

use common::{Attention, Element, Parameters, Shape, distance, findings, random, run_attention};
use flashtile_emulator::{GlobalMemory, Landing, Launch, Module, Options, Order};

const SMALL: Shape = Shape { b: 1, h: 2, g: 1, m: 96, n: 80, d: 64 };

/// Every landing with every order, and some seeds.
fn schedules() -> Vec<Options> {
    let mut all = vec![];
    for landing in [Landing::Late, Landing::Early, Landing::Random] {
        for order in [Order::Forward, Order::Backward, Order::Rotating, Order::Random] {
            let mut options = Options::random(all.len() as u64);
            (options.landing, options.order) = (landing, order);
            all.push(options);
        }
    }
    all
}

struct Case {
    name: &'static str,
    text: &'static str,
    element: Element,
    causal: bool,
    tile: usize,
    /// Threads and bytes of shared memory.
    launch: (u32, u32),
    tolerance: f64,
}

fn cases() -> [Case; 4] {
    [
        Case {
            name: "attention",
            text: include_str!("data/attention_f16_sm_80.ptx"),
            element: Element::F16,
            causal: false,
            tile: 64,
            launch: (128, 24576),
            tolerance: 1e-3,
        },
        Case {
            name: "causal_attention",
            text: include_str!("data/causal_attention_bf16_sm_80.ptx"),
            element: Element::Bf16,
            causal: true,
            tile: 32,
            launch: (64, 28672),
            tolerance: 8e-3,
        },
        Case {
            name: "attention",
            text: include_str!("data/attention_f16_sm_75.ptx"),
            element: Element::F16,
            causal: false,
            tile: 32,
            launch: (64, 12288),
            tolerance: 1e-3,
        },
        Case {
            name: "attention",
            text: include_str!("data/attention_f32_sm_80.ptx"),
            element: Element::F32,
            causal: false,
            tile: 32,
            launch: (64, 18432),
            tolerance: 1e-5,
        },
    ]
}

fn check(case: &Case, shape: Shape, options: &Options) {
    let module = Module::load(case.text).expect("loads");
    let kernel = module.kernel(case.name).expect("is there");
    let problem = Attention::new(shape, case.causal, case.element);
    let (o, lse, report) = run_attention(&kernel, &problem, case.element, case.tile, case.launch, options);
    assert!(report.findings.is_empty(), "{options:?}\n{}", findings(&report));
    let (o_reference, lse_reference) = problem.reference();
    let (o, lse) = (distance(&o, &o_reference), distance(&lse, &lse_reference));
    assert!(o < case.tolerance && lse < 1e-4, "{options:?}: o is off by {o}, lse by {lse}");
}

#[test]
fn attention_is_right_under_every_schedule() {
    for case in cases() {
        for options in schedules() {
            check(&case, SMALL, &options);
        }
    }
}

#[test]
fn ragged_shapes_are_right() {
    for case in cases() {
        for (m, n) in [(1, 1), (33, 17), (64, 200), (100, 31)] {
            check(&case, Shape { b: 2, h: 2, g: 2, m, n, d: 64 }, &Options::default());
        }
    }
}

#[test]
fn a_product_with_gelu_is_right() {
    let (m, n, k) = (70, 90, 50);
    let element = Element::F16;
    let (a, b, bias) = (element.round(&random(1, m * k)), element.round(&random(2, k * n)), element.round(&random(3, n)));
    let mut reference = vec![];
    for i in 0..m {
        for j in 0..n {
            let x: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum::<f64>() + f64::from(bias[j]);
            reference.push(0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh()));
        }
    }
    // Strides are multiples of 16 bytes.
    let padded = |x: &[f32], columns: usize, stride: usize| -> Vec<f32> {
        x.chunks(columns).flat_map(|row| row.iter().copied().chain(vec![0.0; stride - columns])).collect()
    };
    let module = Module::load(include_str!("data/matmul_gelu_f16_sm_75.ptx")).expect("loads");
    for options in schedules() {
        let mut memory = GlobalMemory::new();
        let buffers = [padded(&a, k, 56), padded(&b, n, 96), bias.clone()].map(|x| memory.allocate_from(&element.encode(&x)));
        let c = memory.allocate((m * 96 * 2) as u64);
        let block = Parameters::default()
            .pointer(buffers[0])
            .strides(&[56])
            .pointer(buffers[1])
            .strides(&[96])
            .pointer(buffers[2])
            .pointer(c)
            .strides(&[96])
            .sizes(&[m, k, n].map(|x| x as i32))
            .finish();
        let blocks = (m.div_ceil(32) * n.div_ceil(32)) as u32;
        let launch =
            Launch { grid: [blocks, 1, 1], block: [64, 1, 1], shared_bytes: 8192, parameters: vec![block], pending: vec![] };
        let report = module.kernel("matmul_gelu").expect("is there").launch(&memory, &launch, &options).expect("launches");
        assert!(report.findings.is_empty(), "{options:?}\n{}", findings(&report));
        let ours = element.decode(&memory.read(c));
        let ours: Vec<f32> = ours.chunks(96).flat_map(|row| row[..n].to_vec()).collect();
        let off = distance(&ours, &reference);
        assert!(off < 1e-2, "{options:?}: off by {off}");
    }
}

#[test]
fn runs_repeat() {
    let case = &cases()[0];
    let module = Module::load(case.text).expect("loads");
    let kernel = module.kernel(case.name).expect("is there");
    let problem = Attention::new(SMALL, false, case.element);
    let run = || run_attention(&kernel, &problem, case.element, case.tile, case.launch, &Options::random(5));
    assert_eq!(run(), run());
}
