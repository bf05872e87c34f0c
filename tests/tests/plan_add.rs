//! A plan that adds to a tensor in memory in place of loading, adding and storing: made by hand of
//! the plan of a loop over keys around a loop over rows. The code is right on the emulator, and
//! sums that are none are refused. Needs NVRTC, no GPU.

use flashtile::device::GivenPlans;
use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, BoundKernel, Device, Facts, Kernel, LaunchOptions, Schedule};
use flashtile_codegen::plan::{PlanFile, StmtOp, verify};
use flashtile_codegen::{generate_from, plans};
use flashtile_dsl::ir::{Elem, SourceText};
use flashtile_tests::planted::{planted, says};

/// No maximum rescales what is summed.
const KERNEL: &str = "
pub fn relu_attention<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>,
    k: &Tensor<T, (N, D)>,
    v: &Tensor<T, (N, D)>,
    o: &mut Tensor<f32, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [j, ..]).t());
        acc = acc + dot(max(s, 0.0).to::<T>(), load(v, [j, ..]));
    }
    store(o, [i, ..], acc);
}
";
const D: usize = 32;

fn kernel() -> BoundKernel {
    let source = SourceText { name: "kernel.rs".into(), text: KERNEL.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).expect("well formed").remove(0);
    kernel.bind(Elem::Bf16, [("D", D as i64)]).expect("binds")
}

fn arch() -> &'static Arch {
    Arch::named("sm_80").expect("in the table")
}

fn schedule(stages: u32) -> Schedule {
    format!("loop_order=interchanged,block_m=64,block_n=32,stages={stages}").parse().expect("a schedule")
}

fn facts() -> Facts {
    Facts::best(kernel().ir())
}

/// The plans of a schedule, with a sum in memory in place of the state that each step loads and
/// stores.
fn edited(stages: u32, edit: impl Fn(&str) -> String) -> PlanFile {
    let instance = kernel().instance(facts());
    let own = plans(&instance, &schedule(stages), arch()).expect("is legal");
    let text = PlanFile::text(&instance, &schedule(stages), arch(), &own);
    let (start, rest) = text.split_once("plan relu_attention_interchanged").expect("three launches");
    let (middle, finish) = rest.split_once("plan relu_attention_finish").expect("three launches");
    let text = format!("{start}plan relu_attention_interchanged{}plan relu_attention_finish{finish}", edit(middle));
    PlanFile::read(&text, Some(&instance.kernel.source)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn summed(text: &str) -> String {
    let line = |line: &str| match line.split_once("store acc_state:") {
        _ if line.contains("= load acc_state") => String::new(),
        Some((indent, rest)) => {
            let (to, _) = rest.split_once(" <- ").expect("a store");
            format!("{indent}add acc_state:{to} <- acc\n")
        }
        None => line.replace("acc += dot(", "acc = dot(") + "\n",
    };
    text.lines().map(line).collect()
}

/// Small numbers, which bf16 has.
fn values(count: usize, seed: usize) -> Vec<u8> {
    let value = |n: usize| ((n * 37 + seed * 11) % 17) as f32 / 8.0 - 1.0;
    (0..count).flat_map(|n| ((value(n).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// What a device computes for so many rows and keys.
fn run(device: &Device, options: LaunchOptions, rows: usize, keys: usize) -> Vec<f32> {
    let loaded = kernel().on_with(device, options).expect("loads");
    let tensor =
        |rows: usize, seed| AnyTensor::from_bytes(device, Elem::Bf16, &[rows, D], &values(rows * D, seed)).expect("fits");
    let inputs = [tensor(rows, 1), tensor(keys, 2), tensor(keys, 3)];
    let output = AnyTensor::zeros(device, Elem::F32, &[rows, D]).expect("fits");
    let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
    arguments.push(Argument::Output(&output));
    loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}"));
    let bytes = output.to_bytes().expect("is read");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

#[test]
fn a_sum_in_memory_is_what_loads_and_stores_make() {
    for stages in [1, 2] {
        let file = edited(stages, summed);
        let middle = &file.plans[1];
        assert_eq!(verify(middle), Vec::<String>::new());
        assert!(middle.to_string().contains("add acc_state"), "{middle}");
        let instance = kernel().instance(facts());
        let printed = PlanFile::text(&instance, &schedule(stages), arch(), &file.plans);
        let again = PlanFile::read(&printed, None).expect("reads back");
        assert_eq!(again.plans[1].to_string(), middle.to_string());
        let code = generate_from(file.plans.clone(), &instance, &schedule(stages), arch()).expect("is right").source;
        assert!(code.contains("red.global.add.f32"), "{code}");
        for (rows, keys) in [(100, 70), (64, 0), (3, 33)] {
            let given = GivenPlans { schedule: schedule(stages), facts: facts(), plans: file.plans.clone().into() };
            let toolchain = Toolchain::shared();
            let options = LaunchOptions { toolchain, arch: Some(arch()), plans: Some(given), ..LaunchOptions::default() };
            let found = run(&Device::emulator(), options, rows, keys);
            let wanted = run(&Device::cpu(), LaunchOptions::default(), rows, keys);
            let far = found.iter().zip(&wanted).position(|(a, b)| (a - b).is_nan() || (a - b).abs() > 1e-2 * b.abs().max(1.0));
            assert_eq!(far, None, "{rows} rows, {keys} keys, stages {stages}: {found:?} {wanted:?}");
            assert!(keys == 0 || wanted.iter().any(|x| x.abs() > 0.5), "the sums are something");
        }
    }
}

#[test]
fn sums_that_are_none_are_refused() {
    let (instance, schedule) = (kernel().instance(facts()), schedule(1));
    // What no launch has stored before.
    let mut plans = edited(1, |text| summed(text).replace("add acc_state:", "add o:")).plans;
    let error = generate_from(plans.clone(), &instance, &schedule, arch()).expect_err("o begins with anything").to_string();
    assert!(error.contains("o is "), "{error}");
    plans = edited(1, summed).plans;
    let middle = plans.remove(1);
    let packed = middle.variables.iter().position(|v| v.name == "operand_packed").expect("P is packed");
    let change = |change: &dyn Fn(&mut StmtOp)| {
        planted(middle.clone(), 0, &mut |body, index| {
            let hit = matches!(body[index].op, StmtOp::Add { .. });
            if hit {
                change(&mut body[index].op);
            }
            hit
        })
    };
    let faults = change(&|op| {
        if let StmtOp::Add { from, .. } = op {
            *from = packed;
        }
    });
    says(&faults, "is no fragment of single values");
    let faults = change(&|op| {
        if let StmtOp::Add { to, .. } = op {
            to.elem = Elem::Bf16;
        }
    });
    says(&faults, "acc_state is added to, which takes f32");
    // The fragment is written behind the sum.
    let faults = planted(middle.clone(), 0, &mut |body, index| {
        let product = matches!(&body[index].op, StmtOp::Dot { acc, .. } if middle.variables[*acc].name == "acc");
        if product {
            let dot = body.remove(index);
            let add = body.iter().position(|stmt| matches!(stmt.op, StmtOp::Add { .. })).expect("in the same list");
            body.insert(add + 1, dot);
        }
        product
    });
    says(&faults, "acc is read before it is written");
    // The state is loaded again with no barrier between.
    let load = "acc = load acc_state: f32 at params.acc_state.address + wide(i * 64) * params.acc_state.stride0, rows params.M - i * 64 by params.acc_state.stride0, columns 32 by 1 full";
    let reloaded = edited(1, |text| {
        let again = |line: &str| match line.trim_start().starts_with("add acc_state") {
            true => format!("{line}\n{}{load}\n", &line[..line.len() - line.trim_start().len()]),
            false => format!("{line}\n"),
        };
        summed(text).lines().map(again).collect()
    });
    says(&verify(&reloaded.plans[1]), "acc_state is loaded or stored with no barrier after it was added to");
}
