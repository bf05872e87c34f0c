//! The plan verifier against the emulator: plans with one change, drawn from all changes of plans
//! of every path. What the verifier accepts is compiled and executed for loops of no, one, two, and
//! more iterations, with tiles that are cut, in several orders of execution: the emulator must find
//! nothing. The verifier does not judge arithmetic, so that a plan that it accepts may compute
//! wrong numbers; those are counted. Needs NVRTC, no GPU.
//!
//! The test command takes the same sample every time. `FLASHTILE_SEED` draws another one,
//! `FLASHTILE_MUTANTS=N` takes N changes of each plan, and `FLASHTILE_MUTANTS=all` all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use flashtile::device::{Emulation, EmulatorError, GivenPlans};
use flashtile::emulator::{Landing, Options, Order};
use flashtile::kernel::{BoundKernel, Kernel, KernelError};
use flashtile::toolchain::Toolchain;
use flashtile::verify::{HostArgument, HostTensor, Programs, Reference, run};
use flashtile::{Arch, Device, Elem, Error, Facts, LaunchOptions, LoadedKernel, Schedule, SourceText};
use flashtile_codegen::plan::Plan;
use flashtile_codegen::{check, draw, plans};
use flashtile_dsl::ir::{Direction, ParamKind, SizeExpr};
use flashtile_tests::plan_mutants::{Change, changes};
use flashtile_tests::random::Numbers;

const ATTENTION: &str = include_str!("../../runtime/kernels/attention.rs");
const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const ROTARY: &str = include_str!("../../runtime/kernels/causal_rope_attention.rs");
const MATMUL: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");
const SOFTMAX: &str = include_str!("../../runtime/kernels/row_softmax.rs");
/// The gradients of queries, keys and values, of which one kernel makes the scores.
const FUSED: &str = include_str!("../fused/causal_attention.rs");
/// The gradients of keys and values.
const BACKWARD: &str = include_str!("../kernels/dkv.rs");
/// A loop in a loop.
const NEST: &str = include_str!("../kernels/nest0.rs");
/// A loop after a loop.
const SIBLINGS: &str = "
pub fn siblings<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (C, D)>, w: &Tensor<T, (C, D)>, o: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut m = full(i, 0.0);
    for j in tiles(N) {
        m = max(m, rowmax(dot(q_i, load(k, [j, ..]).t())));
    }
    let mut acc = zeros((i, D));
    for c in tiles(C) {
        let p = dot(q_i, load(w, [c, ..]).t()) / (1.0 + m);
        acc += dot(p.to::<T>(), load(v, [c, ..]));
    }
    store(o, [i, ..], acc);
}";

/// Plans to change: a kernel, and the knobs of a schedule; `None` for schedules that are drawn.
const SUBJECTS: [(&str, &str, Option<&str>); 41] = [
    (CAUSAL, "sm_80", Some("block_m=16,block_n=32,warps=2,column_groups=2,stages=2,running_max=optimistic")),
    (ATTENTION, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=2,held_columns=64")),
    (ATTENTION, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=1")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2")),
    (CAUSAL, "sm_80", Some("block_m=16,block_n=32,warps=1,stages=3,operand_a=registers,edges=every")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2,running_max=optimistic,walk=descending")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=3,running_max=optimistic,walk=last_first")),
    (ATTENTION, "sm_75", Some("block_m=32,block_n=16,warps=2,tensor_op=mma_m16n8k8,copy=sync,stages=2,b_layout=pretransposed")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,tensor_op=ffma,copy=sync,stages=1")),
    (BACKWARD, "sm_80", Some("block_m=32,block_n=16,warps=2,tensor_op=ffma,copy=cp_async,stages=2")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,split_k=3")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,split_k=3,fixup=semaphore")),
    (CAUSAL, "sm_90a", Some("block_m=32,block_n=16,warps=2,split_k=4,fixup=cluster")),
    (CAUSAL, "sm_80", Some("block_m=32,block_n=16,warps=2,loop_order=interchanged,stages=2")),
    (ROTARY, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2")),
    (ROTARY, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=3,operand_a=registers")),
    (MATMUL, "sm_80", Some("block_m=32,block_n=32,block_k=16,warps=2,stages=3")),
    (SOFTMAX, "sm_80", Some("block_m=32,block_n=32,warps=2,copy=sync,stages=1")),
    (BACKWARD, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2")),
    (BACKWARD, "sm_80", Some("block_m=32,block_n=16,warps=2,copy=sync,stages=1")),
    (NEST, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2")),
    (NEST, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=2,persistent=static")),
    (SIBLINGS, "sm_80", Some("block_m=32,block_n=16,warps=2,stages=2")),
    (SIBLINGS, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=2")),
    (CAUSAL, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=2")),
    (ATTENTION, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=128,block_n=16,warps=8,stages=2,overlap=on,ping_pong=products")),
    (
        CAUSAL,
        "sm_90a",
        Some(
            "tensor_op=wgmma,copy=tma,block_m=128,block_n=16,warps=8,stages=2,overlap=on,running_max=optimistic,\
             ping_pong=elementwise,persistent=dynamic,outer_stages=2,producer_registers=40",
        ),
    ),
    (CAUSAL, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=1,persistent=dynamic")),
    (
        CAUSAL,
        "sm_90a",
        Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,stages=2,overlap=on,running_max=first,persistent=static"),
    ),
    (CAUSAL, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,split_k=2,fixup=semaphore")),
    (CAUSAL, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=16,warps=4,split_k=2,fixup=cluster")),
    (MATMUL, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=32,block_k=16,warps=4,stages=3,overlap=on")),
    (FUSED, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=64,warps=4,overlap=late,terms=product")),
    (FUSED, "sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=64,warps=4,overlap=late,terms=product,sum_lag=0")),
    (ATTENTION, "sm_80", None),
    (CAUSAL, "sm_80", None),
    (CAUSAL, "sm_75", None),
    (ROTARY, "sm_80", None),
    (MATMUL, "sm_80", None),
    (CAUSAL, "sm_90a", None),
    (ATTENTION, "sm_90a", None),
];
/// Changes of each plan that the test command draws.
const CHANGES: usize = 24;
/// Columns of a head.
const D: i64 = 32;
/// Of a fused gradient, so that its terms come with its queries.
const D_OF_COLUMNS: i64 = 96;
/// Instructions without progress that no kernel here comes near.
const STALL: u64 = 20_000;

type Sizes = BTreeMap<String, i64>;

/// Columns of a head of a kernel.
fn columns_of(kernel: &str) -> i64 {
    if kernel.ends_with("_grad_columns") { D_OF_COLUMNS } else { D }
}

/// Sizes of the launches of a kernel: no, one, two, and more tiles of `tile` positions to walk,
/// whole and cut; a whole and a cut tile of rows, two of them, and part of one.
fn shapes(kernel: &BoundKernel, rows: i64, tile: i64) -> Vec<Sizes> {
    let walks = [(rows, 0), (1, 8), (rows + 8, tile), (rows, 2 * tile - 8), (3, 3 * tile), (rows + 1, 4 * tile + 8)];
    // The trips of two loops do not go along with each other.
    let others = [tile, 2 * tile, 3 * tile - 8, 0, tile, 2 * tile];
    let of = |(&(rows, walked), other): (&(i64, i64), i64)| {
        let all = kernel.ir().sizes.values();
        let value = |name: &str| match (kernel.ir().name.as_str(), name) {
            ("dkv" | "causal_attention_grad_columns", "M") | ("matmul_gelu", "K") => walked,
            ("dkv" | "causal_attention_grad_columns", "N") | (_, "M") => rows,
            ("matmul_gelu", "N") => tile + 8,
            ("nest0" | "siblings", "C") => other,
            (_, "C") => D / 2,
            (_, "N") => walked,
            (_, "H") => 2,
            (_, "D") => columns_of(kernel.ir().name.as_str()),
            _ => 1,
        };
        all.map(|size| (size.name.clone(), value(&size.name))).collect()
    };
    walks.iter().zip(others).map(of).collect()
}

/// Arguments of these sizes: tensors without gaps, values near those of a normal distribution.
fn arguments(kernel: &BoundKernel, sizes: &Sizes) -> Vec<HostArgument> {
    let (ir, mut numbers) = (kernel.ir(), Numbers(7));
    let argument = |kind: &ParamKind| match kind {
        ParamKind::Scalar(Elem::F32) => HostArgument::F32(0.25),
        ParamKind::Scalar(_) => HostArgument::I32(1),
        ParamKind::Tensor(tensor) => {
            let extent = |size: &SizeExpr| size.eval(|s| sizes.get(ir.size_name(s)).copied()).expect("every size is given");
            let shape: Vec<usize> = tensor.shape.iter().map(|size| extent(size) as usize).collect();
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| numbers.value()).collect();
            let host = HostTensor::from_f64(kernel.binding().elem(ir, tensor.elem), &shape, &values);
            if tensor.direction == Direction::In { HostArgument::Input(host) } else { HostArgument::Output(host) }
        }
    };
    ir.params.values().map(|p| &p.kind).map(argument).collect()
}

/// A launch that the plans of a subject are executed with.
struct Trial {
    arguments: Vec<HostArgument>,
    reference: Reference,
    /// The arguments after the launch of the plans as they are.
    right: Vec<HostArgument>,
}

/// Plans that are changed, and how they are executed.
struct Subject {
    kernel: BoundKernel,
    arch: &'static Arch,
    schedule: Schedule,
    facts: Facts,
    plans: Vec<Plan>,
    trials: Vec<Trial>,
}

/// What came of plans.
#[derive(Clone, PartialEq, Debug)]
enum Outcome {
    Refused(Vec<String>),
    /// Accepted, and the emulator finds a fault, or they are no code.
    Gap(String),
    Wrong(String),
    Right,
}

impl Subject {
    fn new(number: usize, seed: u64) -> Self {
        let (text, arch, knobs) = SUBJECTS[number];
        let text = text.trim();
        let text = text.strip_prefix("flash_kernel! {").and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let mut kernels = Kernel::from_source(&source).expect("is well formed");
        let of_columns = kernels.iter().position(|kernel| kernel.name().ends_with("_grad_columns"));
        let kernel = kernels.swap_remove(of_columns.unwrap_or(0));
        let consts = kernel.ir().size_named("D").map(|_| ("D", columns_of(kernel.name())));
        // The scalar path takes operands of 32 bits, the others take those of 16. Terms of products
        // are parts in bf16.
        let has = |what: &str| knobs.is_some_and(|knobs| knobs.contains(what));
        let elem = match (has("tensor_op=ffma"), has("terms=product")) {
            (true, _) => Elem::F32,
            (_, true) => Elem::Bf16,
            _ => Elem::F16,
        };
        let kernel = kernel.bind(elem, consts).expect("binds");
        let (facts, arch) = (Facts::best(kernel.ir()), Arch::named(arch).expect("in the table"));
        let instance = kernel.instance(facts.clone());
        let mut numbers = Numbers(seed.wrapping_mul(1000) + number as u64);
        let schedule = match knobs {
            Some(knobs) => knobs.parse().expect("a schedule"),
            None => loop {
                let drawn = draw(&instance, arch, &mut |bound| numbers.below(bound));
                let small = drawn.main.block_m <= 128 && drawn.main.block_n <= 32 && drawn.launches.split_k <= 3;
                if small && check(&instance, &drawn, arch).is_legal() {
                    break drawn;
                }
            },
        };
        let plans = plans(&instance, &schedule, arch).unwrap_or_else(|error| panic!("{schedule}: {error}"));
        let (rows, tile) = (i64::from(schedule.main.block_m), i64::from(schedule.main.block_n));
        let tile = if kernel.ir().name == "matmul_gelu" { i64::from(schedule.main.block_k) } else { tile };
        let trial = |sizes: &Sizes| {
            let arguments = arguments(&kernel, sizes);
            let by_id: Vec<i64> = kernel.ir().sizes.values().map(|size| sizes[size.name.as_str()]).collect();
            let reference = Reference::new(&kernel, &by_id, &arguments, Programs::All).expect("runs");
            Trial { arguments, reference, right: Vec::new() }
        };
        let trials = shapes(&kernel, rows, tile).iter().map(trial).collect();
        let mut subject = Self { kernel, arch, schedule, facts, plans, trials };
        let loaded = subject.load(&subject.plans, Options::default()).expect("nothing is generated yet");
        for trial in &mut subject.trials {
            trial.right = trial.arguments.clone();
            run(&loaded, &mut trial.right).expect("the plans are right");
        }
        subject
    }

    fn name(&self) -> String {
        format!("{} on {} with {}", self.kernel.ir().name, self.arch, self.schedule)
    }

    fn load(&self, plans: &[Plan], mut options: Options) -> Result<LoadedKernel, Error> {
        (options.parallel, options.stall_limit) = (false, STALL);
        let given = GivenPlans { schedule: self.schedule.clone(), facts: self.facts.clone(), plans: plans.into() };
        let options = LaunchOptions {
            toolchain: Toolchain::shared(),
            arch: Some(self.arch),
            plans: Some(given),
            emulation: Emulation { options, ..Emulation::default() },
            ..LaunchOptions::default()
        };
        self.kernel.on_with(&Device::emulator(), options)
    }

    fn execute(&self, plans: &[Plan]) -> Outcome {
        let mut early = Options::default();
        (early.landing, early.order) = (Landing::Early, Order::Backward);
        let orders = [Options::default(), early, Options::random(1)];
        let loaded = orders.map(|options| self.load(plans, options).expect("nothing is generated yet"));
        let mut outcome = Outcome::Right;
        for (number, trial) in self.trials.iter().enumerate() {
            // Each trial in one order, each order with loops of few and of many iterations.
            let mut arguments = trial.arguments.clone();
            match run(&loaded[number % 3], &mut arguments) {
                Ok(()) => {
                    if arguments == trial.right {
                        continue;
                    }
                    let wrong = trial.reference.check(&arguments).into_iter().find(|verdict| !verdict.passed());
                    outcome = wrong.map_or(outcome, |verdict| Outcome::Wrong(format!("in trial {number}: {verdict}")));
                }
                Err(Error::Kernel(KernelError::RefusedPlan { faults, .. })) => return Outcome::Refused(faults),
                Err(Error::Emulator(EmulatorError::Findings { findings, .. })) => {
                    return Outcome::Gap(format!("{}, in trial {number}: {}", findings[0].kind.describe(), findings[0]));
                }
                Err(Error::Kernel(KernelError::IllegalSchedule { reasons, .. })) => {
                    return Outcome::Refused(reasons.iter().map(ToString::to_string).collect());
                }
                Err(other) => return Outcome::Gap(other.to_string()),
            }
        }
        outcome
    }

    fn judge(&self, launch: usize, change: &Change) -> (Outcome, String) {
        let mut plans = self.plans.clone();
        let (changed, what) = change.of(&plans[launch]);
        plans[launch] = changed;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(&plans)));
        (outcome.unwrap_or_else(|_| Outcome::Gap("a panic".into())), what)
    }
}

/// Executes `work` for all numbers below `count` on all cores.
fn side_by_side(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    work(number);
                }
            });
        }
    });
}

/// The number that a variable of the environment gives, if it is set.
fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(match text.as_str() {
        "all" => u64::MAX,
        text => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    })
}

#[test]
fn the_verifier_accepts_nothing_that_the_emulator_finds() {
    let seed = asked("FLASHTILE_SEED").unwrap_or(1);
    let most = asked("FLASHTILE_MUTANTS").map_or(CHANGES, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let made: Vec<Mutex<Option<Subject>>> = SUBJECTS.iter().map(|_| Mutex::new(None)).collect();
    side_by_side(SUBJECTS.len(), |number| {
        let subject = Subject::new(number, seed);
        assert_eq!(subject.execute(&subject.plans), Outcome::Right, "{}", subject.name());
        *made[number].lock().expect("no test panics with it") = Some(subject);
    });
    let subjects: Vec<Subject> =
        made.into_iter().map(|m| m.into_inner().expect("no test panics with it").expect("was made")).collect();
    let mut mutants: Vec<(usize, usize, Change)> = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        let all = subject.plans.iter().enumerate().flat_map(|(launch, plan)| changes(plan).into_iter().map(move |c| (launch, c)));
        let mut all: Vec<(usize, Change)> = all.collect();
        let mut numbers = Numbers(seed.wrapping_mul(77) + number as u64);
        for _ in 0..most.min(all.len()) {
            let (launch, change) = all.swap_remove(numbers.below(all.len()));
            mutants.push((number, launch, change));
        }
    }
    let results = Mutex::new(Vec::new());
    side_by_side(mutants.len(), |n| {
        let (subject, launch, change) = &mutants[n];
        let (outcome, what) = subjects[*subject].judge(*launch, change);
        let what = format!("{}, launch {launch}: {what}", subjects[*subject].name());
        results.lock().expect("no test panics with it").push((outcome, what, change.kind()));
    });
    let results = results.into_inner().expect("no test panics with it");
    let count = |is: fn(&Outcome) -> bool| results.iter().filter(|(outcome, ..)| is(outcome)).count();
    let refused = count(|o| matches!(o, Outcome::Refused(_)));
    let (wrong, right) = (count(|o| matches!(o, Outcome::Wrong(_))), count(|o| *o == Outcome::Right));
    let mut gaps: Vec<String> = results
        .iter()
        .filter_map(|(outcome, what, _)| match outcome {
            Outcome::Gap(why) => Some(format!("{what}\n    {why}")),
            _ => None,
        })
        .collect();
    gaps.sort();
    println!(
        "FLASHTILE_SEED={seed}: {} changes of {} plans: {refused} refused, {wrong} accepted with wrong numbers, {right} accepted \
         and right, {} accepted by the verifier and found by the emulator",
        results.len(),
        subjects.len(),
        gaps.len()
    );
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
    let kinds: BTreeSet<&str> = results.iter().map(|(.., kind)| *kind).collect();
    assert!(kinds.len() >= 15, "only {} kinds of changes: {kinds:?}", kinds.len());
    assert!(refused > results.len() / 4 && right > 0, "the sample tells little");
}
