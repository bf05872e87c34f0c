//! Elements of one byte in compiled code: which instructions kernels keep, and forms that the
//! conformance suite has no kernel of. Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions};
use flashtile_codegen::plan::{PlanFile, verify};
use flashtile_codegen::{Facts, Instance, Schedule, TensorOp, hints, plans, space, wide_tensors};
use flashtile_dsl::analysis::hints::Lost;
use flashtile_dsl::ir::SourceText;
use flashtile_tests::planted::says;

pub(crate) fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// A kernel of the suite, for the best facts.
fn instance(name: &str) -> Instance {
    let suite = flashtile::conformance::kernels::KERNELS;
    let text = suite.iter().find(|k| k.name == name).unwrap_or_else(|| panic!("no kernel {name}")).text;
    let bound = kernel(text).bind(Elem::Bf16, [("D", 64)]).expect("binds");
    let facts = Facts::best(bound.ir());
    bound.instance(facts)
}

#[test]
fn stored_masks_and_quantised_keys_keep_wgmma() {
    let hopper = Arch::named("sm_90a").expect("in the table");
    for name in ["boolean_mask", "keep_bits", "int8_keys", "uint8_keys", "e4m3_keys", "e5m2_keys"] {
        let instance = instance(name);
        let wgmma = space(&instance, hopper).iter().filter(|s| s.main.tensor_op == TensorOp::Wgmma).count();
        assert!(wgmma > 20, "{name}: {wgmma} schedules multiply by wgmma");
        let found: Vec<Lost> = hints(&instance, hopper).into_iter().flat_map(|hint| hint.lost).collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn a_mask_leaves_the_alignment_of_other_tensors_alone() {
    let wide = |name: &str| {
        let kernel = instance(name).kernel;
        let names = kernel.params.values().map(|p| p.name.clone());
        names.zip(wide_tensors(&kernel)).filter(|(_, wide)| *wide).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(wide("int8_keys"), ["q", "k", "v", "o"]);
    let names = ["q", "k", "v", "keep", "o"];
    assert_eq!(wide("boolean_mask"), names);
    let facts = Facts::none().with_alignments(names.map(|name| (name, if name == "keep" { 1 } else { 16 })));
    assert_eq!(names.map(|name| facts.alignment_of(name)), [16, 16, 16, 1, 16]);
    let odd = Instance { facts, ..instance("boolean_mask") };
    let hopper = Arch::named("sm_90a").expect("in the table");
    assert!(space(&odd, hopper).iter().filter(|s| s.main.tensor_op == TensorOp::Wgmma).count() > 20);
}

#[test]
fn truth_values_are_bits_that_a_load_alone_writes() {
    let (instance, arch) = (instance("boolean_mask"), Arch::named("sm_80").expect("in the table"));
    let schedule = Schedule::default();
    let own = plans(&instance, &schedule, arch).expect("is legal");
    let text = PlanFile::text(&instance, &schedule, arch, &own);
    assert!(text.contains(": accumulator bits 1 x 8"), "{text}");
    let back = PlanFile::read(&text, Some(&instance.kernel.source)).expect("reads");
    assert_eq!(back.plans[0].to_string(), own[0].to_string());
    // A word of 32 bits for each of two rows, where a number for each score would take 32 words.
    let bits = own[0].variables.iter().find(|v| v.bits).expect("of the mask");
    assert_eq!(bits.registers(), 2);
    let name = &bits.name;
    for (from, to) in
        [("load keep: bool".to_owned(), "load keep: u8".into()), (format!("{name}: accumulator"), format!("{name}: row"))]
    {
        let changed = text.replace(&from, &to);
        assert_ne!(changed, text);
        let changed = PlanFile::read(&changed, Some(&instance.kernel.source)).expect("reads");
        says(&verify(&changed.plans[0]), "has bits, which a load of a matrix of truth values alone writes");
    }
}

#[test]
fn bits_are_loaded_while_products_run() {
    let (instance, arch) = (instance("boolean_mask"), Arch::named("sm_90a").expect("in the table"));
    for max in ["exact", "optimistic"] {
        let schedule = format!("block_m=128,block_n=64,warps=8,tensor_op=wgmma,copy=tma,overlap=on,running_max={max}");
        let text = plans(&instance, &schedule.parse().expect("a schedule"), arch).expect("is legal")[0].to_string();
        let (_, consumers) = text.split_once("role consumers").expect("a role");
        let (_, step) = consumers.split_once("loop j from 1").expect("the steps behind the first");
        let place = |what: &str| step.find(what).unwrap_or_else(|| panic!("no `{what}` in {step}"));
        let (issued, loaded, waited) = (place("s = dot("), place("= load keep"), place("wait s"));
        assert!(issued < loaded && loaded < waited, "{step}");
    }
}

/// The output of a kernel, its last parameter, of f32, on the CPU device and on the emulator.
fn outputs(text: &str, inputs: &[(Elem, &[usize], Vec<u8>)], output: &[usize]) -> Vec<(String, Vec<f32>)> {
    let kernel = kernel(text);
    let run = |device: &Device, arch: Option<&'static str>| {
        let options =
            LaunchOptions { toolchain: Toolchain::shared(), arch: arch.and_then(Arch::named), ..LaunchOptions::default() };
        let consts: Vec<_> = kernel.ir().sizes.values().filter(|s| s.name == "D").map(|s| (s.name.clone(), 8)).collect();
        let loaded = kernel.bind(Elem::F32, consts).expect("binds").on_with(device, options).expect("compiles");
        let tensor = |(elem, shape, bytes): &(Elem, &[usize], Vec<u8>)| AnyTensor::from_bytes(device, *elem, shape, bytes);
        let inputs: Vec<AnyTensor> = inputs.iter().map(|input| tensor(input).expect("fits")).collect();
        let output = AnyTensor::zeros(device, Elem::F32, output).expect("fits");
        let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
        arguments.push(Argument::Output(&output));
        loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}\n{text}"));
        output.to_f32().expect("is read")
    };
    let mut found = vec![("cpu".to_owned(), run(&Device::cpu(), None))];
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        found.push((arch.to_owned(), run(&Device::emulator(), Some(arch))));
    }
    found
}

fn floats(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn a_product_of_f32_takes_small_floats_as_they_are_loaded() {
    let text = "pub fn f<const D: usize>(q: &Tensor<f32, (M, D)>, k: &Tensor<f8e5m2, (N, D)>, y: &mut Tensor<f32, (M, N)>) {
        let (i, j) = program(tiles(M), tiles(N));
        store(y, [i, j], dot(load(q, [i, ..]), load(k, [j, ..]).t()));
    }";
    let (m, n, d) = (19, 35, 8);
    let q: Vec<f32> = (0..m * d).map(|at| (at * 7 % 16) as f32 - 8.0).collect();
    // Numbers of either sign from a denormal to 1.75.
    let k: Vec<u8> = (0..n * d).map(|at| (at * 13 % 64) as u8 | ((at % 2) as u8) << 7).collect();
    let value = |byte: u8| f32::from(flashtile::f16::from_bits(u16::from(byte) << 8));
    let dot = |i: usize, j: usize| (0..d).map(|c| q[i * d + c] * value(k[j * d + c])).sum::<f32>();
    let wanted: Vec<f32> = (0..m * n).map(|at| dot(at / n, at % n)).collect();
    for (device, found) in outputs(text, &[(Elem::F32, &[m, d], floats(&q)), (Elem::F8E5M2, &[n, d], k.clone())], &[m, n]) {
        assert_eq!(found, wanted, "on {device}");
    }
}

#[test]
fn bounds_and_indices_are_loaded_from_bytes() {
    let text = "pub fn f(
        x: &Tensor<f32, (T, N)>, table: &Tensor<u8, (B)>, ends: &Tensor<u8, (B, M)>, begin: &Tensor<i8, (B)>,
        y: &mut Tensor<f32, (B, M)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let row = load(table, [b]);
        let mut sum = zeros(i);
        for j in tiles(N) {
            let seen = pos(j) < load(ends, [b, i]) && pos(j) >= load(begin, [b]);
            sum += rowsum(exp(mask(full((i, j), 0.0) + load(x, [row, j]), seen)));
        }
        store(y, [b, i], sum);
    }";
    let (t, n, b, m) = (5usize, 300usize, 3usize, 21usize);
    let table = [4u8, 0, 2];
    let begin = [-128i8, 3, 127];
    let ends: Vec<u8> = (0..b * m).map(|at| (at * 37 % 256) as u8).collect();
    // All are exactly 1.
    let x = vec![0.0f32; t * n];
    let seen = |at: usize| (i32::from(ends[at]) - i32::from(begin[at / m]).max(0)).max(0);
    let wanted: Vec<f32> = (0..b * m).map(|at| seen(at) as f32).collect();
    assert!(wanted.contains(&0.0) && wanted.iter().any(|x| *x > 100.0), "rows see nothing, and much");
    let inputs = [
        (Elem::F32, &[t, n][..], floats(&x)),
        (Elem::U8, &[b][..], table.to_vec()),
        (Elem::U8, &[b, m][..], ends.clone()),
        (Elem::I8, &[b][..], begin.iter().map(|x| *x as u8).collect()),
    ];
    for (device, found) in outputs(text, &inputs, &[b, m]) {
        assert_eq!(found, wanted, "on {device}");
    }
}
