//! Warp-specialised attention for sm_90a, executed: tensor copies, mbarrier rings, wgmma, ping-pong barriers.

mod common;

use common::hopper::{Config, run, run_specialised};
use common::{Attention, Element, Shape, distance, findings};
use flashtile_emulator::{Landing, Module, Options, Order};

const CONFIGS: [Config; 3] = [
    Config {
        text: include_str!("data/hopper_full.ptx"),
        element: Element::Bf16,
        causal: false,
        consumers: 2,
        block_n: 32,
        shared_bytes: 32912,
        persistent: true,
    },
    // P goes through shared memory (stmatrix), O is stored by tensor copies.
    Config {
        text: include_str!("data/hopper_staged.ptx"),
        element: Element::Bf16,
        causal: false,
        consumers: 1,
        block_n: 64,
        shared_bytes: 49296,
        persistent: true,
    },
    // Q is loaded to registers.
    Config {
        text: include_str!("data/hopper_registers.ptx"),
        element: Element::F16,
        causal: false,
        consumers: 2,
        block_n: 32,
        shared_bytes: 32912,
        persistent: true,
    },
];

fn check(config: &Config, shape: Shape, blocks: usize, options: &Options) {
    let module = Module::load(config.text).expect("loads");
    let kernel = module.kernel("fwd").expect("is there");
    let problem = Attention::new(shape, config.causal, config.element);
    let (o, lse, report) = run(&kernel, config, &problem, blocks, options);
    assert!(report.findings.is_empty(), "{shape:?} {options:?}\n{}", findings(&report));
    let (o_reference, lse_reference) = problem.reference();
    let (o, lse) = (distance(&o, &o_reference), distance(&lse, &lse_reference));
    assert!(o < 8e-3 && lse < 1e-4, "{shape:?} {options:?}: o is off by {o}, lse by {lse}");
}

#[test]
fn warp_specialised_attention_is_right_under_every_schedule() {
    for config in &CONFIGS {
        for landing in [Landing::Late, Landing::Early, Landing::Random] {
            for order in [Order::Forward, Order::Backward, Order::Rotating, Order::Random] {
                let mut options = Options::random(11);
                (options.landing, options.order) = (landing, order);
                check(config, Shape { b: 1, h: 2, g: 1, m: 128, n: 128, d: 64 }, 2, &options);
            }
        }
    }
}

/// What flashtile makes of its causal attention: a producer, two consumer warpgroups that take turns, programs handed out
/// by a counter.
#[test]
fn specialised_roles_are_right_under_every_schedule() {
    let module = Module::load(include_str!("data/causal_attention_bf16_sm_90a.ptx")).expect("loads");
    let kernel = module.kernel("causal_attention").expect("is there");
    for (m, n) in [(200, 238), (128, 64), (1, 33), (77, 200)] {
        let problem = Attention::new(Shape { b: 2, h: 2, g: 1, m, n, d: 64 }, true, Element::Bf16);
        let (o_reference, lse_reference) = problem.reference();
        for landing in [Landing::Late, Landing::Early, Landing::Random] {
            for order in [Order::Forward, Order::Backward, Order::Rotating, Order::Random] {
                let mut options = Options::random(5);
                (options.landing, options.order) = (landing, order);
                let (o, lse, report) = run_specialised(&kernel, &problem, &options);
                assert!(report.findings.is_empty(), "{m} x {n} {options}\n{}", findings(&report));
                let (o, lse) = (distance(&o, &o_reference), distance(&lse, &lse_reference));
                assert!(o < 8e-3 && lse < 1e-4, "{m} x {n} {options}: o is off by {o}, lse by {lse}");
            }
        }
    }
}

#[test]
fn ragged_shapes_are_right() {
    for config in &CONFIGS {
        for (m, n) in [(1, 33), (200, 77), (130, 130), (77, 100)] {
            check(config, Shape { b: 2, h: 2, g: 2, m, n, d: 64 }, 3, &Options::default());
        }
    }
}
