//! How fast kernels run. Asks for an optimised build on a quiet machine:
//! `cargo test --release -p flashtile-emulator --test speed -- --ignored --nocapture`.

mod common;

use std::time::Instant;

use common::hopper::{Config, run};
use common::{Attention, Element, Shape, run_attention};
use flashtile_emulator::{Module, Options};

// Eight times M = N = 256.
const SHAPE: Shape = Shape { b: 1, h: 1, g: 1, m: 256, n: 2048, d: 64 };

#[test]
#[ignore = "measures time: needs an optimised build and a quiet machine"]
fn fifty_million_lane_instructions_a_second_on_a_core() {
    for (text, name, element, tile, launch) in [
        (include_str!("data/attention_f16_sm_80.ptx"), "attention", Element::F16, 64, (128, 24576)),
        (include_str!("data/attention_f16_sm_75.ptx"), "attention", Element::F16, 32, (64, 12288)),
        (include_str!("data/causal_attention_bf16_sm_80.ptx"), "causal_attention", Element::Bf16, 32, (64, 28672)),
        (include_str!("data/attention_f32_sm_80.ptx"), "attention", Element::F32, 32, (64, 18432)),
    ] {
        for profile in [false, true] {
            let module = Module::load(text).expect("loads");
            let problem = Attention::new(SHAPE, name.starts_with("causal"), element);
            let mut options = Options::default();
            (options.parallel, options.profile) = (false, profile);
            let kernel = module.kernel(name).expect("is there");
            let start = Instant::now();
            let (.., report) = run_attention(&kernel, &problem, element, tile, launch, &options);
            judge(&format!("{name} {element:?} {launch:?} profile {profile}"), start, report.lane_instructions, !profile);
        }
    }
    let config = Config {
        text: include_str!("data/hopper_full.ptx"),
        element: Element::Bf16,
        causal: false,
        consumers: 2,
        block_n: 32,
        shared_bytes: 32912,
        persistent: true,
    };
    let module = Module::load(config.text).expect("loads");
    let problem = Attention::new(SHAPE, false, config.element);
    let mut options = Options::default();
    options.parallel = false;
    let start = Instant::now();
    let (.., report) = run(&module.kernel("fwd").expect("is there"), &config, &problem, 2, &options);
    // Few instructions do nearly all of the work there: a product of a warp counts as 32.
    judge("warp-specialised", start, report.lane_instructions, false);
}

fn judge(name: &str, start: Instant, lane_instructions: u64, fast: bool) {
    let seconds = start.elapsed().as_secs_f64();
    let rate = lane_instructions as f64 / seconds / 1e6;
    println!("{name}: {seconds:.3} s, {lane_instructions} lane-instructions, {rate:.0} million a second");
    assert!(seconds < 3.0 && (!fast || rate > 50.0), "{name}: {seconds} s, {rate} million lane-instructions a second");
}
