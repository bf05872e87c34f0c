//! Faults planted in real kernels: a dropped wait, barrier, fence or commit, a flipped phase, a wrong swizzle, mask or
//! stage. Each must show as a finding or as a wrong result, and none may crash or hang the emulator.

mod common;

use std::collections::HashSet;

use common::hopper::{Config, run, run_specialised};
use common::{Attention, Element, Shape, distance, run_attention};
use flashtile_emulator::{Module, Options, Report};
use rayon::prelude::*;

/// A planted fault: what is replaced, where (number of the occurrence), and by what.
struct Mutant {
    kernel: usize,
    line: usize,
    what: String,
    text: String,
}

/// The text with one line replaced; `None` drops it.
fn with_line(text: &str, line: usize, new: Option<&str>) -> String {
    let lines = text.lines().enumerate().filter_map(|(n, old)| if n == line { new } else { Some(old) });
    lines.flat_map(|l| [l, "\n"]).collect()
}

/// Lines on which an instruction stands.
fn sites(text: &str, opcode: &str) -> Vec<(usize, String)> {
    let hit = |l: &str| l.split_whitespace().any(|w| w.trim_end_matches(';') == opcode);
    text.lines().enumerate().filter(|(_, l)| hit(l)).map(|(n, l)| (n, l.trim().to_owned())).collect()
}

/// What looks like a fault and is none, by kernel and line.
const HARMLESS: &[(usize, usize, &str)] = &[
    (0, 214, "the copies of the group belong to the next one, which is waited for just as early"),
    (0, 217, "the last tile has room for one more, which the mask leaves out"),
    (0, 547, "only zeros are copied, over numbers whose weight is zero"),
    (0, 1302, "no copy is in flight any more"),
    (1, 214, "the copies of the group belong to the next one, which is waited for just as early"),
    (1, 255, "the last tile has room for one more, which the mask leaves out"),
    (1, 621, "the last tile has room for one more, which the mask leaves out"),
    (1, 933, "only zeros are copied, over numbers whose weight is zero"),
    (1, 1759, "no copy is in flight any more"),
    (2, 160, "this barrier is not used"),
    (2, 174, "fence.mbarrier_init, which stands before it, suffices"),
    (2, 214, "the first tile of a block lies below either bound"),
    (2, 247, "the last tile has room for one more, which the mask leaves out"),
    (2, 509, "the phase turns from 0 to 1 here, never back"),
    (2, 3660, "of the unrolled copies of the ring this one turns the phase from 0 to 1, or not at all"),
    (2, 3820, "of the unrolled copies of the ring this one turns the phase from 0 to 1, or not at all"),
    (2, 3958, "of the unrolled copies of the ring this one turns the phase from 0 to 1, or not at all"),
    (2, 4107, "of the unrolled copies of the ring this one turns the phase from 0 to 1, or not at all"),
    (2, 1937, "the ping-pong orders work, not data"),
    (2, 2115, "the registers have not been touched since the fence of the other product"),
    (3, 156, "this barrier is not used"),
    (3, 170, "fence.mbarrier_init, which stands before it, suffices"),
    (3, 2421, "the phase turns from 0 to 1 here, never back"),
    (3, 5063, "the first tile of a block lies below either bound"),
    (3, 3702, "the registers have not been touched since the fence of the other product"),
    (4, 152, "fence.mbarrier_init, which stands before it, suffices"),
    (4, 204, "the number of tiles is the same"),
    (4, 1075, "the turns order work, not data"),
    (4, 1265, "the registers have not been touched since the fence of the other product"),
    (4, 2519, "the number of tiles is the same"),
    (4, 2520, "the number of tiles is the same"),
    (3, 4836, "a warp writes over the rows of Q that only it reads"),
];

/// Instructions whose absence is a fault.
const DROPPED: &[&str] = &[
    "cp.async.wait_group",
    "cp.async.commit_group",
    "bar.sync",
    "bar.warp.sync",
    "bar.arrive",
    "wgmma.fence.sync.aligned",
    "wgmma.wait_group.sync.aligned",
    "wgmma.commit_group.sync.aligned",
    "mbarrier.init.shared::cta.b64",
    "mbarrier.arrive.shared::cta.b64",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "fence.proxy.async.shared::cta",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group.read",
    "cp.async.cg.shared.global",
];

fn mutants(kernel: usize, text: &str, executed: &HashSet<usize>, most: usize) -> Vec<Mutant> {
    let mut all = vec![];
    let mut add = |line: usize, what: String, text: String| all.push(Mutant { kernel, line: line + 1, what, text });
    // Of many sites of a kind a sample.
    let sample = |mut sites: Vec<(usize, String)>| {
        sites.retain(|s| executed.contains(&(s.0 + 1)));
        let step = sites.len().div_ceil(most).max(1);
        sites.into_iter().step_by(step).collect::<Vec<_>>()
    };
    for opcode in DROPPED {
        for (line, old) in sample(sites(text, opcode)) {
            add(line, format!("dropped line {}: {old}", line + 1), with_line(text, line, None));
        }
    }
    for (line, old) in sample(sites(text, "cp.async.wait_group")) {
        for (from, to) in [(" 0;", " 1;"), (" 1;", " 2;"), (" 2;", " 3;")] {
            if old.contains(from) {
                add(
                    line,
                    format!("line {}: {old} waits for {to}", line + 1),
                    with_line(text, line, Some(&old.replace(from, to))),
                );
            }
        }
    }
    // Phases of mbarriers.
    for (line, old) in sample(sites(text, "mbarrier.try_wait.parity.shared::cta.b64")) {
        let parity = old.rsplit(' ').next().unwrap_or_default().trim_end_matches(';');
        let flipped = format!("{{ .reg .b32 x; xor.b32 x, {parity}, 1; {}; }}", old.replace(&format!(" {parity};"), " x"));
        add(line, format!("line {}: {old} flipped", line + 1), with_line(text, line, Some(&flipped)));
    }
    // Swizzles without their term, phases that turn once only.
    for (line, old) in sample(sites(text, "xor.b32")) {
        add(line, format!("line {}: {old} made or", line + 1), with_line(text, line, Some(&old.replace("xor.b32", "or.b32"))));
    }
    // Extents one too many.
    for (line, old) in sample(sites(text, "ld.param.u32")) {
        let register = old.split_whitespace().nth(1).unwrap_or_default().trim_end_matches(',');
        let more = format!("{old} add.s32 {register}, {register}, 1;");
        add(line, format!("line {}: {old} one more", line + 1), with_line(text, line, Some(&more)));
    }
    for (line, old) in sample(sites(text, "mbarrier.arrive.expect_tx.shared::cta.b64")) {
        let bytes = old.rsplit(' ').next().unwrap_or_default().trim_end_matches(';');
        let fewer = format!("{{ .reg .b32 x; sub.s32 x, {bytes}, 128; {} }}", old.replace(&format!(" {bytes};"), " x;"));
        add(line, format!("line {}: {old} 128 bytes fewer", line + 1), with_line(text, line, Some(&fewer)));
    }
    for (line, old) in sample(sites(text, "wgmma.wait_group.sync.aligned")) {
        let later = old.replace(" 1;", " 2;").replace(" 0;", " 1;");
        add(line, format!("line {}: {old} made {later}", line + 1), with_line(text, line, Some(&later)));
    }
    // A matrix one row off, a copy one chunk off.
    for opcode in ["ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] {
        for (line, old) in sample(sites(text, opcode)) {
            add(line, format!("line {}: {old} one row off", line + 1), with_line(text, line, Some(&old.replace("];", "+128];"))));
        }
    }
    for (line, old) in sample(sites(text, "cp.async.cg.shared.global")) {
        add(
            line,
            format!("line {}: {old} one chunk off", line + 1),
            with_line(text, line, Some(&old.replacen("],", "+16],", 1))),
        );
    }
    all
}

const SHAPE: Shape = Shape { b: 2, h: 2, g: 2, m: 200, n: 238, d: 64 };

fn hopper(kernel: usize) -> Config {
    let (text, element, causal, consumers, block_n, shared_bytes) = match kernel {
        2 => (include_str!("data/hopper_full.ptx"), Element::Bf16, false, 2, 32, 32912),
        _ => (include_str!("data/hopper_staged.ptx"), Element::Bf16, false, 1, 64, 49296),
    };
    Config { text, element, causal, consumers, block_n, shared_bytes, persistent: true }
}

/// The original text of a kernel.
fn original(kernel: usize) -> &'static str {
    match kernel {
        0 => include_str!("data/attention_f16_sm_80.ptx"),
        1 => include_str!("data/causal_attention_bf16_sm_80.ptx"),
        4 => include_str!("data/causal_attention_bf16_sm_90a.ptx"),
        kernel => hopper(kernel).text,
    }
}

/// A problem for each kernel, with its solution.
struct Subject {
    kernel: usize,
    problem: Attention,
    o: Vec<f64>,
    lse: Vec<f64>,
}

impl Subject {
    fn new(kernel: usize) -> Self {
        let (causal, element) = match kernel {
            0 => (false, Element::F16),
            1 | 4 => (true, Element::Bf16),
            _ => (false, Element::Bf16),
        };
        let problem = Attention::new(SHAPE, causal, element);
        let (o, lse) = problem.reference();
        Self { kernel, problem, o, lse }
    }

    /// Runs a text of the kernel; whether its result is wrong, and the report.
    fn execute(&self, text: &str, options: &Options) -> (bool, Report) {
        let module = Module::load(text).expect("loads");
        let kernel = |name| module.kernel(name).expect("is there");
        let problem = &self.problem;
        let (o, lse, report): (Vec<f32>, Vec<f32>, Report) = match self.kernel {
            0 => run_attention(&kernel("attention"), problem, Element::F16, 64, (128, 24576), options),
            1 => run_attention(&kernel("causal_attention"), problem, Element::Bf16, 32, (64, 28672), options),
            4 => run_specialised(&kernel("causal_attention"), problem, options),
            number => run(&kernel("fwd"), &hopper(number), problem, 2, options),
        };
        (distance(&o, &self.o) > 8e-3 || distance(&lse, &self.lse) > 1e-3, report)
    }
}

/// Whether the fault shows, in one run with the default schedule.
fn shows(mutant: &Mutant, subject: &Subject) -> bool {
    let mut options = Options::default();
    options.parallel = false;
    options.stall_limit = 100_000;
    let (wrong, report) = subject.execute(&mutant.text, &options);
    wrong || !report.findings.is_empty()
}

#[test]
fn planted_faults_show() {
    let mut all = vec![];
    let subjects: Vec<Subject> = (0..5).map(Subject::new).collect();
    for (kernel, most) in [(0, 4), (1, 4), (2, 6), (3, 6), (4, 8)] {
        // A fault in code that is not executed is none.
        let mut options = Options::default();
        options.profile = true;
        let (wrong, report) = subjects[kernel].execute(original(kernel), &options);
        assert!(!wrong && report.findings.is_empty(), "kernel {kernel} has faults of its own");
        let executed = report.profile.expect("was asked for").instructions.iter().map(|i| i.ptx_line as usize).collect();
        all.extend(mutants(kernel, original(kernel), &executed, most));
    }
    all.retain(|m| !HARMLESS.iter().any(|h| (h.0, h.1) == (m.kernel, m.line)));
    let hidden: Vec<&Mutant> = all.par_iter().filter(|m| !shows(m, &subjects[m.kernel])).collect();
    let list: String = hidden.iter().map(|m| format!("kernel {}, {}\n", m.kernel, m.what)).collect();
    assert!(all.len() >= 60, "only {} faults", all.len());
    assert!(hidden.is_empty(), "{} of {} planted faults do not show:\n{list}", hidden.len(), all.len());
}
