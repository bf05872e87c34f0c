//! Generated code of every architecture, compiled by NVRTC: it compiles, spills little, takes about the registers that were
//! predicted, compiles fast, and keeps the operands of products of warpgroups in registers of their own. Needs no GPU; where NVRTC
//! or a disassembler can neither be found nor installed, the test fails.
//!
//! What is compiled is a sample of three kinds: schedules that the model chooses where nothing is tuned, schedules drawn from
//! [`space`], which a tuner tries, and schedules with every knob drawn, chosen greedily so that as many pairs of values as
//! possible meet in some variant. It is the same in every run: `FLASHTILE_SEED` draws another one, `FLASHTILE_VARIANTS` a
//! larger one.
//!
//! Registers are predicted from what is live at the widest moment of a plan. The compiler takes more where it may (it loads
//! ahead and keeps addresses), so the prediction is a floor, and the excess is bounded for the median variant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use flashtile::toolchain::{Compiled, Toolchain};
use flashtile_codegen::{
    ARCHS, Arch, Differences, Facts, Generated, Instance, KNOBS, Machine, Reason, Resources, Schedule, TensorOp, TileLoads,
    check, default_schedule, draw, drawn_values, generate, space,
};
use flashtile_dsl::inputs::Random;
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};
use flashtile_tests::sass::{Findings, lost_operands};

/// Variants compiled, without those that the model chooses.
const VARIANTS: usize = 128;
/// Kernels for which the model chooses a schedule, on each architecture.
const CHOSEN: usize = 2;
/// Free schedules among which half of the variants is chosen.
const DRAWS: usize = 2500;
/// Such schedules for Hopper alone, which has more knobs than the others.
const HOPPER_DRAWS: usize = 800;
/// Such schedules of a kernel with a bias.
const BIAS_DRAWS: usize = 200;
/// Part of the pairs of values, of all that some legal draw has, that the sample has to have.
const PAIRS: f64 = 0.9;

/// Bytes that a schedule of the model's choice may spill, stores and loads together, in a thread. Of f32, whose products are
/// unrolled multiply-adds, the compiler loads more ahead than it has registers for. A loop that streams five rings, as rotary
/// attention has, keeps the addresses of as many. On Turing, whose copies go through registers, a walk of listed tiles whose
/// masks are loaded spills where d is 128 (492 bytes): the prediction of registers does not see it.
const CHOSEN_SPILLS: u32 = 192;
const CHOSEN_SPILLS_F32: u32 = 512;
const CHOSEN_SPILLS_TURING: u32 = 512;
/// Part of the schedules of the space that may spill at all: they lose against others. With walks of listed tiles it is 0.21.
const SPILLING: f64 = 0.25;
/// How many registers fewer than predicted a thread may take.
const REGISTERS_UNDER: u32 = 8;
/// How many more than predicted it may take, in the median of the schedules of the space.
const REGISTERS_OVER: i64 = 64;
/// How many times as long as the yardstick the median variant may take to compile. Seconds would
/// judge the machine: cores differ by a factor of two, and a shared core is slower than one alone.
const MEDIAN_YARDSTICKS: f64 = 2.0;
/// The yardstick is compiled once with so many variants.
const YARDSTICK_EACH: usize = 8;

/// A program that does not change with flashtile, as long as generated code: multiply-adds,
/// exponentials and shared memory in an unrolled loop.
const YARDSTICK: &str = r#"
extern "C" __global__ void yardstick(float *out, const float *in, int n)
{
    __shared__ float tile[128 * 33];
    float sums[32];
    for (int e = 0; e < 32; e++) sums[e] = 0.0f;
    for (int k = 0; k < n; k++) {
        for (int e = 0; e < 32; e++) tile[threadIdx.x * 33 + e] = in[(k * 32 + e) * 128 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < 16; r++) {
            float row = tile[((threadIdx.x + r) & 127) * 33 + r];
            #pragma unroll
            for (int e = 0; e < 32; e++) sums[e] = fmaf(row, exp2f(sums[(e + r) & 31] - row), tile[(r * 8 + e) & 127] + sums[e]);
        }
        __syncthreads();
    }
    for (int e = 0; e < 32; e++) out[e * 128 + threadIdx.x] = sums[e];
}
"#;

/// Sizes for which the model chooses.
const SIZES: &[(&str, i64)] = &[("B", 2), ("H", 16), ("G", 16), ("M", 4096), ("N", 4096), ("K", 4096)];

/// Kernels of the sample: name in reports, text, head dimensions (none where the kernel has no such size).
const KERNELS: &[(&str, &str, &[i64])] = &[
    ("attention", include_str!("../../runtime/kernels/attention.rs"), &[8, 64, 72, 96, 128, 256]),
    ("causal_attention", include_str!("../../runtime/kernels/causal_attention.rs"), &[16, 40, 64, 128, 192, 256]),
    ("window", include_str!("../filetests/generated/mask_window.ft"), &[64, 128]),
    ("matmul_gelu", include_str!("../../runtime/kernels/matmul_gelu.rs"), &[]),
    ("row_softmax", include_str!("../../runtime/kernels/row_softmax.rs"), &[]),
    ("causal_rope_attention", include_str!("../../runtime/kernels/causal_rope_attention.rs"), &[40, 64, 128]),
    ("document_attention", include_str!("../../runtime/kernels/document_attention.rs"), &[64, 128]),
    ("block_attention", include_str!("../../runtime/kernels/block_attention.rs"), &[64, 128]),
    ("key_bias", include_str!("../filetests/generated/terms.ft"), &[64, 128]),
    ("computed_operands", include_str!("../filetests/generated/computed_operands.ft"), &[]),
];

/// The kernel whose masks list blocks, and the name of the size of its blocks.
const BLOCKS: (&str, &str) = ("block_attention", "S");

/// Where a schedule comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The model ranks it first.
    Model,
    /// The tuner would try it.
    Space,
    /// Every knob was drawn.
    Free,
}

/// One program to compile.
struct Variant {
    kernel: &'static str,
    instance: Instance,
    schedule: Schedule,
    arch: &'static Arch,
    predicted: Resources,
    origin: Origin,
}

impl Variant {
    /// Everything that was chosen, as names and values.
    fn choices(&self) -> Vec<(&'static str, String)> {
        let mut all: Vec<_> = KNOBS.iter().map(|k| (k.name, (k.get)(&self.schedule))).collect();
        all.push(("kernel", self.kernel.to_owned()));
        all.push(("arch", self.arch.name.to_owned()));
        all.extend(self.instance.binding.types.values().map(|e| ("T", e.name().to_owned())));
        all.extend(self.instance.binding.consts.values().map(|d| ("D", d.to_string())));
        all.push(("alignment", self.instance.facts.alignment.to_string()));
        all.push(("positive", (!self.instance.facts.positive.is_empty()).to_string()));
        all
    }

    fn name(&self) -> String {
        let of_kernel = |(name, _): &(&str, String)| !KNOBS.iter().any(|k| k.name == *name);
        let chosen: Vec<_> = self.choices().into_iter().filter(of_kernel).map(|(n, v)| format!("{n}={v}")).collect();
        format!("{:?}: {} schedule={}", self.origin, chosen.join(" "), self.schedule)
    }

    fn generate(&self) -> Generated {
        generate(&self.instance, &self.schedule, self.arch).unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }
}

fn kernel(text: &str) -> Kernel {
    let text = text.split("; run:").next().unwrap_or_default();
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

/// A kernel with its generics bound and facts, at random.
fn instance(random: &mut Random, kernels: &[Kernel], arch: &Arch) -> (&'static str, Instance) {
    let which = random.below(KERNELS.len() as u64) as usize;
    let (name, _, dims) = KERNELS[which];
    let kernel = &kernels[which];
    let elems: &[Elem] = if arch.bf16 { &[Elem::F16, Elem::Bf16, Elem::F32] } else { &[Elem::F16, Elem::F32] };
    let mut consts = if dims.is_empty() { Vec::new() } else { vec![("D", random.of(dims))] };
    if name == BLOCKS.0 {
        consts.push((BLOCKS.1, 128));
    }
    let binding = Binding::new(kernel, random.of(elems), consts);
    let mut facts = if random.below(4) == 0 { Facts::none() } else { Facts::best(kernel) };
    facts.alignment = random.of(&[16, 16, 16, 8, 4, 2]);
    (name, Instance { kernel: kernel.clone(), binding, facts })
}

/// What runs where nothing is tuned.
fn from_model(random: &mut Random, kernels: &[Kernel]) -> Vec<Variant> {
    let sizes = SIZES.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    let mut instances = Vec::new();
    for arch in ARCHS.iter().flat_map(|arch| [arch; CHOSEN]) {
        let (name, mut instance) = instance(random, kernels, arch);
        instance.facts = Facts::best(&instance.kernel);
        instances.push((name, instance, arch));
    }
    in_parallel(&instances, |(name, instance, arch)| {
        let schedule = default_schedule(instance, arch, &sizes, &Machine::typical(arch))
            .unwrap_or_else(|e| panic!("{name} {:?} on {arch}: {e}", instance.binding));
        let predicted = check(instance, &schedule, arch).predicted;
        Variant { kernel: name, instance: instance.clone(), schedule, arch, predicted, origin: Origin::Model }
    })
}

/// Legal schedules that a tuner would try, some for every architecture.
fn from_space(random: &mut Random, kernels: &[Kernel], count: usize) -> Vec<Variant> {
    let mut found = Vec::new();
    let mut archs = ARCHS.iter().cycle();
    while found.len() < count {
        let arch = archs.next().expect("a cycle does not end");
        let (name, instance) = instance(random, kernels, arch);
        let schedules = space(&instance, arch);
        if let Some(schedule) = schedules.get(random.below(schedules.len() as u64) as usize) {
            let predicted = check(&instance, schedule, arch).predicted;
            found.push(Variant { kernel: name, instance, schedule: schedule.clone(), arch, predicted, origin: Origin::Space });
        }
    }
    found
}

/// Legal ones of schedules with every knob drawn.
fn free_draws(random: &mut Random, kernels: &[Kernel]) -> Vec<Variant> {
    let hopper = Arch::named("sm_90a").expect("in the table");
    let archs = ARCHS.iter().cycle().take(DRAWS).chain(std::iter::repeat_n(hopper, HOPPER_DRAWS));
    let drawn: Vec<Variant> = archs
        .map(|arch| {
            let (kernel, instance) = instance(random, kernels, arch);
            let schedule = draw(&instance, arch, &mut |bound| random.below(bound as u64) as usize);
            Variant { kernel, instance, schedule, arch, predicted: Resources::default(), origin: Origin::Free }
        })
        .collect();
    let legality = in_parallel(&drawn, |v| check(&v.instance, &v.schedule, v.arch));
    let legal = drawn.into_iter().zip(legality).filter(|(_, l)| l.is_legal());
    legal.map(|(variant, l)| Variant { predicted: l.predicted, ..variant }).collect()
}

/// The same of one kernel on Hopper, of the schedules that are `kept`: few of all kernels load tiles for
/// elementwise work or tables of differences, and knobs are about these.
fn draws_of(random: &mut Random, (name, text): (&'static str, &str), kept: fn(&Schedule) -> bool) -> Vec<Variant> {
    let kernel = kernel(text);
    let arch = Arch::named("sm_90a").expect("in the table");
    let drawn = (0..BIAS_DRAWS).map(|number| {
        let binding = Binding::new(&kernel, Elem::Bf16, [("D", [64, 128][number % 2])]);
        let instance = Instance { facts: Facts::best(&kernel), kernel: kernel.clone(), binding };
        let schedule = draw(&instance, arch, &mut |bound| random.below(bound as u64) as usize);
        let legality = check(&instance, &schedule, arch);
        let kept = legality.is_legal() && kept(&schedule);
        let predicted = legality.predicted;
        kept.then_some(Variant { kernel: name, instance, schedule, arch, predicted, origin: Origin::Free })
    });
    drawn.flatten().collect()
}

type Choice = (&'static str, String);

fn pairs(variant: &Variant) -> Vec<(Choice, Choice)> {
    let choices = variant.choices();
    let mut all = Vec::new();
    for (i, a) in choices.iter().enumerate() {
        all.extend(choices[i + 1..].iter().map(|b| (a.clone(), b.clone())));
    }
    all
}

/// Chooses `count` of the pool, each the one with the most pairs not seen before. Returns them and the part of all pairs seen.
fn spread(mut pool: Vec<Variant>, count: usize) -> (Vec<Variant>, f64) {
    let mut number: BTreeMap<(Choice, Choice), usize> = BTreeMap::new();
    let mut of: Vec<Vec<usize>> = Vec::new();
    for variant in &pool {
        let numbers = pairs(variant).into_iter().map(|p| {
            let next = number.len();
            *number.entry(p).or_insert(next)
        });
        of.push(numbers.collect());
    }
    let mut seen = vec![false; number.len()];
    let mut chosen = Vec::new();
    while chosen.len() < count && !pool.is_empty() {
        let best = (0..pool.len()).max_by_key(|&i| of[i].iter().filter(|&&p| !seen[p]).count()).expect("the pool is not empty");
        of.swap_remove(best).into_iter().for_each(|p| seen[p] = true);
        chosen.push(pool.swap_remove(best));
    }
    let covered = seen.iter().filter(|&&s| s).count() as f64 / seen.len().max(1) as f64;
    (chosen, covered)
}

fn from_environment(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Seconds that this thread has spent on a core: what it takes on an idle machine, however busy this one is.
fn thread_seconds() -> f64 {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("the test measures with {path}: {e}"));
    let nanoseconds: f64 = text.split(' ').next().and_then(|t| t.parse().ok()).expect("the first number is the time on a core");
    nanoseconds * 1e-9
}

/// Results of all items, in order, found on all cores.
fn in_parallel<T: Sync, R: Send>(items: &[T], result: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, R>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let found = result(item);
                    results.lock().expect("no thread panics with it").insert(index, found);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics with it").into_values().collect()
}

/// A compiled program and the seconds of a core it took.
type Outcome = (Result<Compiled, String>, f64);

fn timed(source: &str, kernel: &str, arch: &Arch, toolchain: &Toolchain) -> Outcome {
    let start = thread_seconds();
    let compiled = toolchain.compile(source, kernel, arch.name).map_err(|e| e.to_string());
    (compiled, thread_seconds() - start)
}

/// All variants compiled, and the seconds that the yardstick took, again and again among them.
fn compile_all(variants: &[Variant], toolchain: &Toolchain) -> (Vec<Outcome>, f64) {
    let numbered: Vec<(usize, &Variant)> = variants.iter().enumerate().collect();
    let compiled = in_parallel(&numbered, |&(index, variant)| {
        let yardstick = (index % YARDSTICK_EACH == 0).then(|| {
            let (compiled, seconds) = timed(YARDSTICK, "yardstick", variant.arch, toolchain);
            compiled.unwrap_or_else(|e| panic!("the yardstick compiles: {e}"));
            seconds
        });
        (timed(&variant.generate().source, variant.kernel, variant.arch, toolchain), yardstick)
    });
    let yardsticks: Vec<f64> = compiled.iter().filter_map(|(_, seconds)| *seconds).collect();
    (compiled.into_iter().map(|(outcome, _)| outcome).collect(), median_seconds(&yardsticks))
}

/// What the machine code of products of warpgroups does with their operands: faults, and how many products take A from registers.
fn operands(name: &str, cubin: &[u8], toolchain: &Toolchain) -> (Vec<String>, usize) {
    let found = toolchain.disassemble(cubin).map_err(|e| e.to_string());
    match found.and_then(|text| lost_operands(&text).map_err(|e| e.to_string())) {
        Ok(Findings { products, lost }) => {
            (lost.iter().map(|l| format!("{name}\n    an operand is lost: {l}")).collect(), products)
        }
        Err(error) => (vec![format!("{name}\n    {error}")], 0),
    }
}

fn median(values: &[i64]) -> i64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

fn median_seconds(seconds: &[f64]) -> f64 {
    median(&seconds.iter().map(|s| (s * 1e6) as i64).collect::<Vec<_>>()) as f64 * 1e-6
}

/// What is wrong with a compiled variant.
fn faults(variant: &Variant, compiled: &Compiled) -> Vec<String> {
    let report = &compiled.report;
    // Free schedules may have so few registers that products are serialised: slow, not wrong, and the tuner rejects them.
    let told = |remark: &&String| variant.origin != Origin::Free || !remark.contains("insufficient register resources");
    let mut faults: Vec<String> = report.remarks.iter().filter(told).map(|r| format!("remark: {r}")).collect();
    let mut refuse = |condition: bool, fault: String| {
        if condition {
            faults.push(fault);
        }
    };
    refuse(report.registers > 255, format!("{} registers", report.registers));
    // A promise of resident blocks makes the compiler spill instead; roles that move registers are launched with their mean.
    let alone = variant.schedule.launches.split_k == 1;
    if alone && variant.schedule.main.min_blocks == 0 && variant.schedule.main.producer_registers == 0 {
        let predicted = variant.predicted.registers;
        let under = report.registers + REGISTERS_UNDER < predicted;
        refuse(under && variant.origin != Origin::Free, format!("takes {} registers, predicted {predicted}", report.registers));
    }
    let spills = report.spill_stores + report.spill_loads;
    let budget = match variant.schedule.main.tensor_op {
        TensorOp::Ffma => CHOSEN_SPILLS_F32,
        TensorOp::MmaM16n8k8 => CHOSEN_SPILLS_TURING,
        _ => CHOSEN_SPILLS,
    };
    let over = spills > budget && variant.origin == Origin::Model;
    refuse(over, format!("spills {spills} bytes, the budget is {budget}"));
    faults
}

#[test]
fn a_sample_of_the_legal_schedules_compiles_for_every_architecture() {
    let toolchain = Toolchain::shared();
    let nvrtc = toolchain.nvrtc().unwrap_or_else(|e| panic!("{e}"));
    let seed = from_environment("FLASHTILE_SEED", 2) as u64;
    let count = from_environment("FLASHTILE_VARIANTS", VARIANTS);
    let kernels: Vec<Kernel> = KERNELS.iter().map(|(_, text, _)| kernel(text)).collect();
    let mut random = Random(seed);
    let start = std::time::Instant::now();
    let mut variants = from_model(&mut random, &kernels);
    variants.extend(from_space(&mut random, &kernels, count / 2));
    let drawn = free_draws(&mut random, &kernels);
    let legal = drawn.len();
    let (free, covered) = spread(drawn, count - count / 2);
    variants.extend(free);
    let with_bias = ("bias_attention", include_str!("../../runtime/kernels/bias_attention.rs"));
    variants.extend(spread(draws_of(&mut random, with_bias, |schedule| schedule.main.tile_loads == TileLoads::Tma), 4).0);
    variants.extend(spread(draws_of(&mut random, with_bias, |schedule| schedule.main.share_tiles), 2).0);
    let relative = ("relative_attention", include_str!("../../runtime/kernels/relative_attention.rs"));
    let ahead = |schedule: &Schedule| schedule.launches.differences == Differences::Ahead;
    variants.extend(spread(draws_of(&mut random, relative, ahead), 2).0);
    println!("{nvrtc:?}; FLASHTILE_SEED={seed}, FLASHTILE_VARIANTS={count}: {} variants", variants.len());
    println!(
        "{legal} of {} free draws are legal; {:.1} % of their pairs are covered; {:?}",
        DRAWS + HOPPER_DRAWS,
        covered * 100.0,
        start.elapsed()
    );

    let (outcomes, yardstick) = compile_all(&variants, &toolchain);
    let mut failures = Vec::new();
    let (mut excess, mut spilling, mut chosen) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (variant, (compiled, _)) in variants.iter().zip(&outcomes) {
        let found = match compiled {
            Ok(compiled) => faults(variant, compiled),
            Err(error) => vec![error.clone()],
        };
        failures.extend(found.into_iter().map(|f| format!("{}\n    {f}", variant.name())));
        let Ok(compiled) = compiled else { continue };
        let spills = compiled.report.spill_stores + compiled.report.spill_loads;
        match variant.origin {
            Origin::Model => {
                let most = chosen.entry(variant.schedule.main.tensor_op).or_insert(0);
                *most = spills.max(*most);
            }
            Origin::Space => {
                excess.push(i64::from(compiled.report.registers) - i64::from(variant.predicted.registers));
                spilling.push(spills > 0);
            }
            Origin::Free => {}
        }
    }
    let of_warpgroups: Vec<_> =
        variants.iter().zip(&outcomes).filter(|(v, _)| v.schedule.main.tensor_op == TensorOp::Wgmma).collect();
    let looked_at = in_parallel(&of_warpgroups, |(variant, (compiled, _))| match compiled {
        Ok(compiled) => operands(&variant.name(), &compiled.cubin, &toolchain),
        Err(_) => (Vec::new(), 0),
    });
    let products: usize = looked_at.iter().map(|(_, products)| products).sum();
    println!("{} variants with wgmma: {products} products in loops take A from registers", of_warpgroups.len());
    failures.extend(looked_at.into_iter().flat_map(|(faults, _)| faults));
    println!("most bytes spilt by a schedule that the model chooses: {chosen:?}");
    let median_excess = median(&excess);
    let spilling = spilling.iter().filter(|&&s| s).count() as f64 / spilling.len().max(1) as f64;
    println!("schedules of the space: {:.0} % spill, median of registers over prediction {median_excess}", spilling * 100.0);
    let seconds: Vec<f64> = outcomes.iter().map(|(_, seconds)| *seconds).collect();
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    let median_seconds = median_seconds(&seconds);
    let yardsticks = median_seconds / yardstick;
    println!("compile time on one core: median {median_seconds:.2} s, slowest {slowest:.2} s, yardstick {yardstick:.2} s");
    println!("the median variant takes {yardsticks:.2} yardsticks");

    assert!(failures.is_empty(), "{} faults\n\n{}", failures.len(), failures.join("\n"));
    assert!(products > 0, "some variant takes A from registers");
    assert!(spilling <= SPILLING, "{:.0} % of the schedules of the space spill", spilling * 100.0);
    assert!(median_excess <= REGISTERS_OVER, "the median schedule takes {median_excess} registers more than predicted");
    // Less would be the time of a thread that only waits for another one.
    assert!(median_seconds >= 0.01, "the median variant takes {median_seconds:.3} s of a core");
    assert!(yardstick >= 0.01, "the yardstick takes {yardstick:.3} s of a core");
    assert!(yardsticks <= MEDIAN_YARDSTICKS, "the median variant takes {yardsticks:.2} yardsticks of {yardstick:.2} s");
    let tried: BTreeSet<(&str, String)> = variants.iter().flat_map(Variant::choices).collect();
    for knob in KNOBS {
        for value in drawn_values(knob) {
            assert!(tried.contains(&(knob.name, value.clone())), "{}={value} is compiled", knob.name);
        }
    }
    for arch in ARCHS {
        assert!(tried.contains(&("arch", arch.name.to_owned())), "{arch} is compiled for");
    }
    assert!(covered >= PAIRS, "{:.1} % of the pairs of values are covered", covered * 100.0);
}

/// ptxas refuses a `wgmma` for whose accumulator a block of that size leaves too few registers, and legality says so first.
#[test]
fn the_widest_product_that_is_legal_compiles() {
    let (matmul, attention) = (kernel(KERNELS[3].1), kernel(KERNELS[0].1));
    let arch = Arch::named("sm_90a").expect("in the table");
    let of = |kernel: &Kernel, columns: i64, warps: u32, min_blocks: u32| {
        let consts = if kernel.name == "attention" { vec![("D", columns)] } else { Vec::new() };
        let instance =
            Instance { binding: Binding::new(kernel, Elem::Bf16, consts), facts: Facts::best(kernel), kernel: kernel.clone() };
        let block_n = if kernel.name == "attention" { 16 } else { columns };
        let schedule = format!(
            "tensor_op=wgmma,copy=tma,stages=1,block_m={},warps={warps},block_n={block_n},block_k=64,min_blocks={min_blocks},\
             producer_registers=24",
            16 * warps
        );
        (instance, schedule.parse::<Schedule>().expect("is a schedule"))
    };
    for (kernel, columns, warps, min_blocks) in [(&matmul, 192, 12, 1), (&matmul, 96, 8, 2), (&attention, 192, 12, 1)] {
        let (instance, schedule) = of(kernel, columns, warps, min_blocks);
        let source = generate(&instance, &schedule, arch).unwrap_or_else(|e| panic!("{schedule}: {e}")).source;
        Toolchain::shared().compile(&source, &kernel.name, arch.name).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        let (instance, wider) = of(kernel, columns + 16, warps, min_blocks);
        let reasons = check(&instance, &wider, arch).reasons;
        let refused = |reason: &Reason| matches!(reason, Reason::Quirk { message: "C7602", .. });
        assert!(reasons.iter().any(refused), "{wider}: {reasons:?}");
    }
}

/// Operands that stay for all steps of a loop keep their registers, beside ones that each step packs. See [`lost_operands`].
#[test]
fn operands_that_stay_in_registers_are_not_lost() {
    const ROPE: &str = include_str!("../../runtime/kernels/rope_attention.rs");
    const SCALED: &str = include_str!("../filetests/errors/products_of_one_width.ft");
    let arch = Arch::named("sm_90a").expect("in the table");
    let toolchain = Toolchain::shared();
    // Without overlap no schedule is legal whose products are of one width, which is `block_n` of one and the head's of the other.
    let cases = [
        (ROPE, 64, 96, "overlap=off,precompute=b"),
        (ROPE, 64, 64, "overlap=on,precompute=b"),
        (ROPE, 96, 64, "overlap=off,precompute=b"),
        (ROPE, 96, 96, "overlap=on,precompute=b"),
        (SCALED, 64, 96, "overlap=off"),
    ];
    let looked_at = in_parallel(&cases, |&(text, d, block_n, rest)| {
        let kernel = kernel(text);
        let sizes = [("D", d), ("E", d)];
        let consts: Vec<(&str, i64)> = sizes.into_iter().filter(|(name, _)| text.contains(&format!("const {name}:"))).collect();
        let binding = Binding::new(&kernel, Elem::Bf16, consts);
        let instance = Instance { binding, facts: Facts::best(&kernel), kernel: kernel.clone() };
        let schedule =
            format!("block_m=64,warps=4,block_n={block_n},block_k=16,tensor_op=wgmma,copy=tma,stages=1,min_blocks=1,{rest}");
        let name = format!("{} D={d} schedule={schedule}", kernel.name);
        let schedule = schedule.parse::<Schedule>().unwrap_or_else(|e| panic!("{name}: {e}"));
        let source = generate(&instance, &schedule, arch).unwrap_or_else(|e| panic!("{name}: {e}")).source;
        let compiled = toolchain.compile(&source, &kernel.name, arch.name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (faults, products) = operands(&name, &compiled.cubin, &toolchain);
        (faults, products, name)
    });
    for (_, products, name) in &looked_at {
        // Each of the two operands has 64 columns at least, of which an instruction takes 16.
        assert!(*products >= 8, "{name}: {products} products in loops take A from registers");
    }
    let faults: Vec<String> = looked_at.into_iter().flat_map(|(faults, ..)| faults).collect();
    assert!(faults.is_empty(), "{} faults\n\n{}", faults.len(), faults.join("\n"));
}
