//! Whatever text it is given, the emulator ends with an error or a report.

mod common;

use common::{Attention, Element, Shape, run_attention};
use flashtile_emulator::{GlobalMemory, Launch, Module, Options};
use proptest::prelude::*;

/// Loads and, if it loads, runs a text: as the kernel it was, and with parameters that mean nothing.
fn survive(text: &str) {
    let Ok(module) = Module::load(text) else { return };
    if let Ok(kernel) = module.kernel("attention")
        && kernel.parameter_bytes().eq([176])
        && text.contains(".maxntid 128,")
    {
        let mut options = Options::random(3);
        options.instruction_limit = 200_000;
        let problem = Attention::new(Shape { b: 1, h: 1, g: 1, m: 40, n: 70, d: 64 }, false, Element::F16);
        run_attention(&kernel, &problem, Element::F16, 64, (128, 24576), &options);
    }
    let names: Vec<String> = module.kernels().map(str::to_owned).collect();
    for name in names {
        let kernel = module.kernel(&name).expect("was listed");
        let mut memory = GlobalMemory::new();
        let buffer = memory.allocate(1 << 12);
        // Every eight bytes are an address, or a small number.
        let fill = |bytes: usize| -> Vec<u8> {
            (0..bytes)
                .map(|n| if n / 8 % 4 == 0 { buffer.address.to_le_bytes()[n % 8] } else { u8::from(n % 8 == 0) * 16 })
                .collect()
        };
        let parameters = kernel.parameter_bytes().map(fill).collect();
        let launch = Launch { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 8192, parameters, pending: vec![] };
        let mut options = Options::random(3);
        options.instruction_limit = 20_000;
        options.profile = true;
        let report = kernel.launch(&memory, &launch, &options);
        if let Ok(report) = report {
            for finding in &report.findings {
                assert!(!finding.to_string().is_empty());
            }
        }
    }
}

const TEXTS: [&str; 4] = [
    include_str!("data/attention_f16_sm_80.ptx"),
    include_str!("data/attention_f32_sm_80.ptx"),
    include_str!("data/matmul_gelu_f16_sm_75.ptx"),
    include_str!("data/hopper_staged.ptx"),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lines_that_are_lost_or_doubled(which in 0..4usize, edits in proptest::collection::vec((0.0f64..1.0, 0..3u8), 1..6)) {
        let mut lines: Vec<&str> = TEXTS[which].lines().collect();
        for (place, edit) in edits {
            let at = ((lines.len() - 1) as f64 * place) as usize;
            match edit {
                0 => { lines.remove(at); }
                1 => lines.insert(at, lines[at]),
                _ => lines.swap(at, at / 2),
            }
        }
        survive(&lines.join("\n"));
    }

    #[test]
    fn numbers_that_change(which in 0..4usize, place in 0.0f64..1.0, digit in 0..10u8) {
        let mut bytes = TEXTS[which].as_bytes().to_vec();
        let digits: Vec<usize> = (0..bytes.len()).filter(|&n| bytes[n].is_ascii_digit()).collect();
        bytes[digits[((digits.len() - 1) as f64 * place) as usize]] = b'0' + digit;
        survive(&String::from_utf8(bytes).expect("is ASCII"));
    }

    #[test]
    fn texts_that_end_early(which in 0..4usize, place in 0.0f64..1.0) {
        let text = TEXTS[which];
        survive(&text[..(text.len() as f64 * place) as usize]);
    }

    #[test]
    fn any_text(text in "[ -~\n]{0,200}") {
        survive(&text);
        survive(&format!(".version 9.0 .target sm_80 .address_size 64 .entry k() {{ {text} }}"));
    }
}
