//! Mutants of compiled kernels on the emulator: PTX of each path of the compiler with one instruction changed. A mutant that
//! changes a result, or would never end, must be found: by the emulator, or because the result is wrong. Needs NVRTC, no GPU.
//!
//! A mutant that is the same bit by bit under three schedules, without a finding, counts as equivalent: it removed what was
//! not needed for this problem, such as a mask of rows that are not there. The test command takes a sample that is the same
//! every time. `FLASHTILE_MUTANTS=N` takes up to N sites of each kind in each kernel, and prints every mutant that is not
//! found; `FLASHTILE_MUTANTS=all` takes all sites.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flashtile::conformance::{Prepared, cases};
use flashtile::device::{EmulatedCode, Emulation, EmulatorError};
use flashtile::emulator::{Landing, Options, Order};
use flashtile::toolchain::Toolchain;
use flashtile::verify::{HostArgument, Programs, Reference};
use flashtile::{Arch, Device, Error, LaunchOptions, Schedule, verify};

/// A kernel that is mutated: architecture, knobs, and the case of the suite that it computes.
struct Subject {
    name: &'static str,
    arch: &'static str,
    case: &'static str,
    knobs: &'static str,
}

const SUBJECTS: [Subject; 8] = [
    Subject {
        name: "mma.sync and cp.async",
        arch: "sm_80",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "block_m=64,block_n=32,warps=4,stages=2,copy=cp_async",
    },
    Subject {
        name: "one warp",
        arch: "sm_80",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "block_m=16,block_n=32,warps=1,stages=2,copy=cp_async",
    },
    Subject {
        name: "semaphore",
        arch: "sm_80",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "block_m=64,block_n=16,split_k=3,fixup=semaphore",
    },
    Subject {
        name: "cluster",
        arch: "sm_90a",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "block_m=64,block_n=16,split_k=4,fixup=cluster",
    },
    Subject {
        name: "wgmma, TMA and setmaxnreg",
        arch: "sm_90a",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "tensor_op=wgmma,copy=tma,block_m=128,warps=8,block_n=32,stages=2,producer_registers=24,min_blocks=1",
    },
    Subject {
        name: "column groups",
        arch: "sm_90a",
        case: "mla_decode/f16/B2_H33_N65_C128_R32/normal/scale=0.2",
        knobs: "tensor_op=wgmma,copy=tma,block_m=64,warps=8,column_groups=2,block_n=32,stages=2,running_max=max_first",
    },
    Subject {
        name: "persistent blocks with a counter",
        arch: "sm_90a",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "tensor_op=wgmma,copy=tma,block_m=64,warps=4,block_n=32,stages=2,persistent=dynamic,outer_stages=2",
    },
    Subject {
        name: "wgmma and semaphore",
        arch: "sm_90a",
        case: "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal",
        knobs: "tensor_op=wgmma,copy=tma,block_m=64,block_n=16,split_k=4,fixup=semaphore",
    },
];

/// An instruction on a line of PTX.
#[derive(Clone, Copy)]
struct Instruction<'t> {
    /// Such as `@%p1`; empty without one.
    guard: &'t str,
    opcode: &'t str,
    /// Without the semicolon.
    operands: &'t str,
}

impl<'t> Instruction<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let text = line.trim().strip_suffix(';')?;
        let (guard, text) = match text.strip_prefix('@') {
            Some(_) => text.split_once(char::is_whitespace)?,
            None => ("", text),
        };
        let (opcode, operands) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let known = opcode.starts_with(|c: char| c.is_ascii_lowercase());
        known.then_some(Self { guard, opcode, operands: operands.trim() })
    }

    fn text(&self) -> String {
        format!("{} {} {};", self.guard, self.opcode, self.operands)
    }

    fn with(&self, opcode: &str, operands: &str) -> String {
        format!("{} {opcode} {operands};", self.guard)
    }

    fn is(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.opcode == *name || self.opcode.starts_with(&format!("{name}.")))
    }
}

/// Instructions that order, move or publish data: their absence is a fault.
const SYNCHRONIZING: &[&str] = &[
    "bar",
    "barrier",
    "fence",
    "membar",
    "mbarrier",
    "cp.async",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "setmaxnreg",
    "atom",
    "red",
    "griddepcontrol",
    "elect",
];

/// Operands whose first address is 16 bytes further.
fn moved(operands: &str) -> String {
    let Some((address, rest)) = operands.split_once(']') else { return operands.to_owned() };
    match address.rsplit_once('+').and_then(|(base, offset)| Some((base, offset.parse::<i64>().ok()?))) {
        Some((base, offset)) => format!("{base}+{}]{rest}", offset + 16),
        None => format!("{address}+16]{rest}"),
    }
}

/// What one instruction can become: a kind of mutation and the new text of the line.
fn changes(i: &Instruction<'_>) -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, String)> = vec![];
    let mut add = |kind, text: String| {
        if text != i.text() {
            all.push((kind, text));
        }
    };
    let (opcode, operands) = (i.opcode, i.operands);
    let sync = i.is(SYNCHRONIZING);
    let waits = opcode.starts_with("mbarrier.try_wait");
    if waits {
        let predicate = operands.split(',').next().unwrap_or_default();
        add("drop a wait at an mbarrier", format!("setp.eq.u32 {predicate}, 0, 0;"));
    } else if sync || i.is(&["st", "ldmatrix", "stmatrix", "mma", "wgmma.mma_async"]) {
        add(if sync { "drop synchronization" } else { "drop a store or product" }, String::new());
    }
    if sync && !waits {
        add("execute twice", format!("{} {}", i.text(), i.text()));
    }
    for (from, to) in [
        (".acquire", ".relaxed"),
        (".release", ".relaxed"),
        (".acq_rel", ".relaxed"),
        (".acq_rel", ".acquire"),
        (".acq_rel", ".release"),
        (".gpu", ".cta"),
    ] {
        if i.is(&["ld", "st", "atom", "red", "barrier.cluster"]) && opcode.contains(from) {
            add("weaken order or scope", i.with(&opcode.replace(from, to), operands));
        }
    }
    if i.is(&["ld", "st"]) && (opcode.contains(".acquire") || opcode.contains(".release")) {
        let weak = opcode.replace(".acquire.gpu", "").replace(".release.gpu", "");
        add("weaken order or scope", i.with(&weak, operands));
    }
    if opcode.starts_with("fence.proxy.async.shared") {
        add("weaken order or scope", i.with("fence.proxy.async.global", operands));
    }
    if i.is(&["cp.async.wait_group", "wgmma.wait_group", "cp.async.bulk.wait_group"])
        && let Ok(n) = operands.parse::<u32>()
    {
        add("wait for fewer groups", i.with(opcode, &(n + 1).to_string()));
    }
    let last = operands.rsplit(',').next().unwrap_or_default().trim();
    let front = &operands[..operands.len() - last.len()];
    if opcode.starts_with("mbarrier.arrive.expect_tx") {
        for change in ["add.s32 x, y, 16", "sub.s32 x, y, 128"] {
            add(
                "other bytes of a transaction",
                format!("{{ .reg .b32 x; {}; {}}}", change.replace('y', last), i.with(opcode, &format!("{front} x"))),
            );
        }
    }
    if opcode.starts_with("mbarrier.try_wait.parity") {
        let flipped = i.with(opcode, &format!("{front} x"));
        add("flip a parity", format!("{{ .reg .b32 x; xor.b32 x, {last}, 1; {flipped} }}"));
    }
    if opcode.starts_with("mbarrier.init") {
        add("other arrivals", format!("{{ .reg .b32 x; add.s32 x, {last}, 1; {} }}", i.with(opcode, &format!("{front} x"))));
    }
    if let (true, Ok(count)) = (i.is(&["setmaxnreg"]), operands.parse::<i32>()) {
        for more in [-8, 8] {
            add("other registers", i.with(opcode, &(count + more).to_string()));
        }
        let other = if opcode.contains(".inc") { opcode.replace(".inc", ".dec") } else { opcode.replace(".dec", ".inc") };
        add("registers the wrong way", i.with(&other, operands));
        add("registers the wrong way", i.with(&other, if count > 100 { "24" } else { "240" }));
        add(
            "registers of one warp",
            format!("{{ .reg .b32 x; .reg .pred q; mov.u32 x, %tid.x; and.b32 x, x, 96; setp.eq.u32 q, x, 0; @q {} }}", i.text()),
        );
    }
    if i.is(&["bar.sync", "bar.arrive", "barrier.sync", "barrier.arrive"]) {
        match operands.split_once(',') {
            Some((id, threads)) => {
                add(
                    "another barrier",
                    format!("{{ .reg .b32 x; add.s32 x, {id}, 1; {} }}", i.with(opcode, &format!("x, {threads}"))),
                );
                add(
                    "other threads",
                    format!("{{ .reg .b32 x; add.s32 x, {threads}, 32; {} }}", i.with(opcode, &format!("{id}, x"))),
                );
            }
            None => add("another barrier", i.with(opcode, "15")),
        }
        add("a barrier of the warp", "bar.warp.sync -1;".to_owned());
    }
    if !i.guard.is_empty() {
        let negated = match i.guard.strip_prefix("@!") {
            Some(predicate) => format!("@{predicate}"),
            None => i.guard.replace('@', "@!"),
        };
        add("negate a guard", format!("{negated} {opcode} {operands};"));
        if opcode != "bra" {
            add("drop a guard", format!("{opcode} {operands};"));
        }
    }
    if i.is(&["ld.shared", "st.shared", "ld.global", "st.global", "ldmatrix", "stmatrix", "cp.async.cg", "cp.async.ca"]) {
        add("another address", i.with(opcode, &moved(operands)));
    }
    if i.is(&["ldmatrix"]) {
        let other =
            if opcode.contains(".trans") { opcode.replace(".trans", "") } else { opcode.replace(".shared", ".trans.shared") };
        add("a matrix turned round", i.with(&other, operands));
    }
    for (from, to) in [
        ("setp.lt.", "setp.le."),
        ("setp.gt.", "setp.ge."),
        ("setp.ge.", "setp.gt."),
        ("setp.le.", "setp.lt."),
        ("setp.eq.", "setp.ne."),
        ("setp.ne.", "setp.eq."),
        ("add.s32", "sub.s32"),
        ("add.s64", "sub.s64"),
        ("sub.s32", "add.s32"),
        ("mul.lo.s32", "add.s32"),
        ("xor.b32", "or.b32"),
        ("or.b32", "and.b32"),
        ("and.b32", "or.b32"),
        ("shl.b32", "shr.u32"),
        ("shr.u32", "shl.b32"),
        ("sub.f32", "add.f32"),
        ("add.f32", "sub.f32"),
        ("mul.f32", "add.f32"),
        ("max.s32", "min.s32"),
        ("min.s32", "max.s32"),
        ("ex2.approx.ftz.f32", "lg2.approx.ftz.f32"),
        ("rcp.approx.ftz.f32", "ex2.approx.ftz.f32"),
        ("shfl.sync.bfly", "shfl.sync.down"),
    ] {
        if opcode.starts_with(from) {
            add("another operation", i.with(&opcode.replacen(from, to, 1), operands));
        }
    }
    let parts: Vec<&str> = operands.split(',').map(str::trim).collect();
    let plain = !operands.contains(['{', '[', '|']);
    if plain
        && parts.len() >= 3
        && i.is(&["add", "sub", "mul", "mad", "fma", "setp", "selp", "shl", "shr", "xor", "and", "or", "max", "min"])
    {
        // The first source in place of the second, if they are of the same class. Another maximum of a softmax leaves the result
        // as it is but for rounding, so that maxima are left alone here and above.
        let class = |part: &str| part.starts_with('%').then(|| part.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned());
        if opcode != "max.f32" && class(parts[1]).is_some() && class(parts[1]) == class(parts[2]) && parts[1] != parts[2] {
            let mut other = parts.clone();
            other[2] = parts[1];
            add("another register", i.with(opcode, &other.join(", ")));
        }
    }
    let integer = parts.iter().rposition(|part| part.parse::<i64>().is_ok());
    if let (true, Some(at)) =
        (plain && i.is(&["add", "sub", "mov", "mad", "setp", "shl", "shr", "and", "or", "xor", "mul", "selp", "shfl"]), integer)
    {
        let value: i64 = parts[at].parse().expect("it was just parsed");
        let mut other: Vec<String> = parts.iter().map(|&p| p.to_owned()).collect();
        other[at] = (value + 1).to_string();
        add("another constant", i.with(opcode, &other.join(", ")));
    }
    if let Some(at) = operands.find("0f")
        && operands[at + 2..].len() >= 8
        && operands[at + 2..at + 10].chars().all(|c| c.is_ascii_hexdigit())
    {
        let bits = u32::from_str_radix(&operands[at + 2..at + 10], 16).expect("eight digits");
        let doubled = (f32::from_bits(bits) * 2.0 + f32::from(u8::from(bits << 1 == 0))).to_bits();
        if doubled != bits {
            add("another constant", i.with(opcode, &format!("{}{doubled:08X}{}", &operands[..at + 2], &operands[at + 10..])));
        }
    }
    all
}

/// A changed text.
struct Mutant {
    subject: usize,
    line: usize,
    kind: &'static str,
    what: String,
    text: String,
}

/// The text with lines replaced.
fn replaced(text: &str, new: &[(usize, String)]) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for (n, line) in text.lines().enumerate() {
        let line = new.iter().find(|(at, _)| *at == n).map_or(line, |(_, new)| new);
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Up to so many mutants of each kind, spread over the executed lines of the kernel.
fn mutants(subject: usize, text: &str, executed: &BTreeSet<u32>, most: usize) -> Vec<Mutant> {
    let lines: Vec<&str> = text.lines().collect();
    let mut by_kind: BTreeMap<&'static str, Vec<Mutant>> = BTreeMap::new();
    let sites = |n: usize| executed.contains(&(n as u32 + 1));
    for n in (0..lines.len()).filter(|&n| sites(n)) {
        let Some(i) = Instruction::parse(lines[n]) else { continue };
        for (kind, new) in changes(&i) {
            let what = format!("{} -> {}", lines[n].trim(), new.trim());
            by_kind.entry(kind).or_default().push(Mutant { subject, line: n + 1, kind, what, text: replaced(text, &[(n, new)]) });
        }
        // Moved behind the next access to memory of the same straight piece of code.
        if i.is(SYNCHRONIZING) && !i.opcode.contains("try_wait") {
            let end = (n + 1..lines.len().min(n + 60))
                .find(|&m| lines[m].contains("bra") || lines[m].trim_end().ends_with(':') || lines[m].contains('}'));
            let accesses = [
                "ld.shared",
                "st.shared",
                "ld.global",
                "st.global",
                "ldmatrix",
                "cp.async",
                "wgmma.mma_async",
                "st.release",
                "ld.acquire",
            ];
            let target = (n + 1..end.unwrap_or(n + 1)).find(|&m| accesses.iter().any(|a| lines[m].contains(a)));
            if let Some(target) = target {
                let moved = [(n, String::new()), (target, format!("{}\t{}", lines[target], lines[n].trim()))];
                let what = format!("{} behind {}", lines[n].trim(), lines[target].trim());
                let kind = "move behind the next access";
                by_kind.entry(kind).or_default().push(Mutant { subject, line: n + 1, kind, what, text: replaced(text, &moved) });
            }
        }
    }
    let sample = |all: Vec<Mutant>| {
        let step = all.len().div_ceil(most).max(1);
        // Another start in each kernel, so that the kernels' samples differ.
        all.into_iter().skip(subject % step).step_by(step)
    };
    by_kind.into_values().flat_map(sample).collect()
}

/// What came of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verdict {
    /// By the emulator.
    Found,
    /// No PTX that the emulator knows.
    Refused,
    /// By the oracle.
    Wrong,
    /// Other bits that the oracle takes for right.
    Hidden,
    Equivalent,
    /// It takes too long.
    Hung,
    Crashed,
}

/// A subject that is ready to be run.
struct Ready {
    prepared: Prepared,
    reference: Reference,
    schedule: Schedule,
    arch: &'static Arch,
    ptx: String,
    executed: BTreeSet<u32>,
    /// Bytes of the arguments after a run, in which the outputs are.
    right: Vec<Vec<u8>>,
}

/// Instructions without progress that no kernel here comes near.
const STALL: u64 = 20_000;

fn launch(ready: &Ready, text: &str, mut options: Options) -> Result<Vec<HostArgument>, Error> {
    (options.parallel, options.stall_limit) = (false, STALL);
    let emulation = Emulation { options, code: Some(EmulatedCode::Ptx(text.into())) };
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Some(ready.arch),
        schedule: Some(ready.schedule.clone()),
        emulation,
        ..LaunchOptions::default()
    };
    let mut arguments = ready.prepared.arguments.clone();
    verify::run(&ready.prepared.kernel.on_with(&Device::emulator(), options)?, &mut arguments)?;
    Ok(arguments)
}

fn bytes(arguments: &[HostArgument]) -> Vec<Vec<u8>> {
    arguments.iter().map(|argument| format!("{argument:?}").into_bytes()).collect()
}

fn prepare(subject: &Subject) -> Ready {
    let arch = Arch::named(subject.arch).expect("in the table");
    let case = cases().into_iter().find(|case| case.name() == subject.case).expect("in the table");
    let prepared = case.prepare().expect("prepares");
    let schedule: Schedule = subject.knobs.parse().expect("a schedule");
    let facts = case.facts().expect("binds");
    let generated = flashtile::lowering::generate(&prepared.kernel.instance(facts), &schedule, arch);
    let source = generated.unwrap_or_else(|e| panic!("{}: {e}", subject.name)).source;
    let ptx = Toolchain::shared().compile_ptx(&source, "kernel.cu", arch.name).expect("compiles");
    let sizes = case.all_sizes();
    let sizes: Vec<i64> = prepared.kernel.ir().sizes.values().map(|size| sizes[size.name.as_str()]).collect();
    let reference = Reference::new(&prepared.kernel, &sizes, &prepared.arguments, Programs::All).expect("runs");
    let mut ready = Ready { prepared, reference, schedule, arch, ptx, executed: BTreeSet::new(), right: vec![] };
    let arguments = launch(&ready, &ready.ptx, Options::default()).unwrap_or_else(|e| panic!("{}: {e}", subject.name));
    assert!(ready.reference.check(&arguments).iter().all(|v| v.passed()), "{} is wrong as compiled", subject.name);
    ready.right = bytes(&arguments);
    ready.executed = executed(&ready);
    ready
}

/// Lines of the PTX that are executed.
fn executed(ready: &Ready) -> BTreeSet<u32> {
    let mut options = Options::default();
    options.profile = true;
    let emulation = Emulation { options, code: Some(EmulatedCode::Ptx(ready.ptx.as_str().into())) };
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Some(ready.arch),
        schedule: Some(ready.schedule.clone()),
        emulation,
        ..LaunchOptions::default()
    };
    let mut arguments = ready.prepared.arguments.clone();
    let loaded = ready.prepared.kernel.on_with(&Device::emulator(), options).expect("loads");
    verify::run(&loaded, &mut arguments).expect("is right");
    let reports = loaded.reports();
    let profiles = reports.iter().filter_map(|report| report.profile.as_ref());
    profiles.flat_map(|profile| profile.instructions.iter().map(|i| i.ptx_line)).collect()
}

/// The default schedule, and two others for mutants that change nothing in the first.
fn schedules() -> [Options; 3] {
    let mut early = Options::default();
    (early.landing, early.order) = (Landing::Early, Order::Backward);
    [Options::default(), early, Options::random(1)]
}

fn judge(ready: &Ready, mutant: &Mutant) -> (Verdict, String) {
    let start = Instant::now();
    let mut verdict = (Verdict::Equivalent, String::new());
    for options in schedules() {
        match catch_unwind(AssertUnwindSafe(|| launch(ready, &mutant.text, options))) {
            Err(_) => return (Verdict::Crashed, String::new()),
            Ok(Err(Error::Emulator(error @ EmulatorError::Load { .. }))) => return (Verdict::Refused, error.to_string()),
            Ok(Err(error)) => return (Verdict::Found, error.to_string()),
            Ok(Ok(arguments)) => {
                if bytes(&arguments) != ready.right {
                    if !ready.reference.check(&arguments).iter().all(|v| v.passed()) {
                        return (Verdict::Wrong, String::new());
                    }
                    verdict.0 = Verdict::Hidden;
                }
            }
        }
    }
    if start.elapsed() > Duration::from_secs(60) {
        verdict.0 = Verdict::Hung;
    }
    verdict
}

#[test]
fn mutants_that_change_anything_are_found() {
    let asked = std::env::var("FLASHTILE_MUTANTS").ok();
    let most = match asked.as_deref() {
        None => 4,
        Some("all") => usize::MAX,
        Some(text) => text.parse().unwrap_or_else(|_| panic!("FLASHTILE_MUTANTS={text} is no number and not `all`")),
    };
    let ready: Vec<Ready> = SUBJECTS.iter().map(prepare).collect();
    let all: Vec<Mutant> = ready.iter().enumerate().flat_map(|(n, r)| mutants(n, &r.ptx, &r.executed, most)).collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (verdict, why) = judge(&ready[mutant.subject], mutant);
                    results.lock().expect("no test panics with it").push((verdict, mutant, why));
                }
            });
        }
    });
    let results = results.into_inner().expect("no test panics with it");
    let count = |verdict| results.iter().filter(|(v, ..)| *v == verdict).count();
    let (found, wrong, hidden) = (count(Verdict::Found), count(Verdict::Wrong), count(Verdict::Hidden));
    let (equivalent, hung, crashed) = (count(Verdict::Equivalent), count(Verdict::Hung), count(Verdict::Crashed));
    let refused = count(Verdict::Refused);
    let kinds: BTreeSet<&str> = all.iter().map(|m| m.kind).collect();
    println!(
        "{} mutants of {} kinds: {found} found by the emulator, {wrong} wrong by the oracle, {hidden} changed and not found, \
         {equivalent} equivalent, {refused} refused, {hung} hung, {crashed} crashed",
        all.len(),
        kinds.len()
    );
    let mut list: Vec<String> = results
        .iter()
        .filter(|(v, ..)| asked.is_some() || !matches!(v, Verdict::Equivalent | Verdict::Refused))
        .filter(|(v, ..)| !matches!(v, Verdict::Found | Verdict::Wrong))
        .map(|(v, m, why)| format!("{v:?}: {}, line {}: {}: {} {why}", SUBJECTS[m.subject].name, m.line, m.kind, m.what))
        .collect();
    list.sort();
    let list = list.join("\n");
    println!("{list}");
    assert!(kinds.len() >= 20 && all.len() >= 200, "only {} mutants of {} kinds", all.len(), kinds.len());
    assert_eq!((hung, crashed), (0, 0), "{list}");
    let changed = found + wrong + hidden;
    assert!(50 * hidden <= changed, "{hidden} of {changed} mutants that change something are not found\n{list}");
}
