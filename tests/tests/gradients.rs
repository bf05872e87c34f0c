//! Gradients of the built-in kernels: their texts are in `tests/gradients`, and each has code for
//! every GPU. That they are right against float64 is `dsl/tests/grad.rs`.

use std::path::Path;

use flashtile::device::{Emulation, GivenPlans};
use flashtile::emulator::Options;
use flashtile::toolchain::Toolchain;
use flashtile::tuner::{Chain, InputData};
use flashtile::{AnyTensor, Argument, Device, Form, Gradient, Kernel, LaunchOptions, LoadedGradient, Workspace, f16};
use flashtile_codegen::plan::{
    Event, Exchange, Expr, GlobalTile, Operator, Plan, PlanFile, Shape, Slot, Stmt, StmtOp, Storage, verify as faults_of,
};
use flashtile_codegen::{Arch, Facts, Instance, Machine, Schedule, TensorOp, generate, hints, plans, rank, space};
use flashtile_dsl::analysis::hints::Lost;
use flashtile_dsl::analysis::mask::{MaskOptions, loop_masks};
use flashtile_dsl::ir::{Binding, Elem, Op, SizeKind, SourceText};
use flashtile_tests::planted::{change_first, planted, remove, says};
use flashtile_tests::turns::Turn;

/// Kernels, the inputs whose gradients are wanted, and the outputs whose gradients are given.
const GRADIENTS: [(&str, &str, &str); 29] = [
    ("alibi_attention", "q,k,v,slopes", "o"),
    ("attention", "q,k,v", "o"),
    ("bias_attention", "q,k,v,bias", "o"),
    ("block_attention", "q,k,v", "o"),
    ("causal_attention", "q,k,v", "o"),
    ("causal_rope_attention", "q,k,v", "o"),
    ("cross_attention", "q,k,v", "o"),
    ("decode_attention", "q,k,v", "o"),
    ("differential_attention", "q,k,v", "o"),
    ("document_attention", "q,k,v", "o"),
    ("dropout_attention", "q,k,v", "o"),
    ("layer_norm", "x,w,bias", "y"),
    ("linear_cross_entropy", "x,w", "loss"),
    ("matmul_gelu", "a,b,bias", "c"),
    ("mla_decode", "q,kv", "o"),
    ("mla_prefill", "q,q_rot,k,k_rot,v", "o"),
    ("prefix_attention", "q,k,v", "o"),
    ("query_norm_attention", "q,k,v,weight", "o"),
    ("relative_attention", "q,k,v,table", "o"),
    ("rms_norm", "x,w", "y"),
    ("rope_attention", "q,k,v", "o"),
    ("rotate", "x", "y"),
    ("row_softmax", "x", "y"),
    ("sigmoid_attention", "q,k,v", "o"),
    ("sink_attention", "q,k,v,sinks", "o"),
    ("sliding_window", "q,k,v", "o"),
    ("softcap_attention", "q,k,v", "o"),
    ("swiglu", "x,gate,up", "y"),
    ("tree_attention", "q,k,v", "o"),
];

/// Those whose fused form has code for `sm_90a`.
const FUSED: [(&str, &str); 19] = [
    ("alibi_attention", "q,k,v"),
    ("attention", "q,k,v"),
    ("bias_attention", "q,k,v,bias"),
    ("block_attention", "q,k,v"),
    ("causal_attention", "q,k,v"),
    ("causal_rope_attention", "q,k,v"),
    ("cross_attention", "q,k,v"),
    ("decode_attention", "q,k,v"),
    ("differential_attention", "q,k,v"),
    ("document_attention", "q,k,v"),
    ("dropout_attention", "q,k,v"),
    ("mla_prefill", "q,q_rot,k,k_rot,v"),
    ("prefix_attention", "q,k,v"),
    ("relative_attention", "q,k,v,table"),
    ("rope_attention", "q,k,v"),
    ("sigmoid_attention", "q,k,v"),
    ("sink_attention", "q,k,v"),
    ("softcap_attention", "q,k,v"),
    ("tree_attention", "q,k,v"),
];

/// Some whose columns have several programs, with the form in which their text is kept.
const SHARES: [(Form, &str, &str); 4] = [
    (Form::FusedShares, "causal_attention", "q,k,v"),
    (Form::PlainShares, "sliding_window", "q,k,v"),
    (Form::PlainShares, "mla_prefill", "q,q_rot,k,k_rot,v"),
    (Form::FusedShares, "softcap_attention", "q,k,v"),
];

/// Those whose operands have gradients in the stored form.
const STORED: [(&str, &str, &str); 1] = [("linear_cross_entropy", "x,w", "loss")];

fn gradients_in(form: Form, kernel: &Kernel, of: &str, from: &str) -> Gradient {
    let [of, from] = [of, from].map(|text| text.split(',').collect::<Vec<_>>());
    kernel.gradient_in(form, &of, &from).unwrap_or_else(|e| panic!("{}: {e}", kernel.name()))
}

fn gradients(kernel: &Kernel, of: &str, from: &str) -> Gradient {
    gradients_in(Form::Plain, kernel, of, from)
}

fn gradient(kernel: &Kernel, of: &str, from: &str) -> Vec<Kernel> {
    gradients(kernel, of, from).backward
}

fn instance(kernel: &Kernel) -> Instance {
    let ir = kernel.ir().clone();
    let consts = ir.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), 64));
    let binding = Binding::new(&ir, Elem::F16, consts.collect::<Vec<_>>());
    Instance { facts: Facts::best(&ir), kernel: flashtile_codegen::as_generated(&ir, &binding), binding }
}

#[test]
fn gradients_of_built_in_kernels_have_the_texts_of_the_golden_files() {
    let bless = std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1");
    let plain = GRADIENTS.into_iter().map(|(name, of, from)| (Form::Plain, name, of, from));
    let fused = FUSED.into_iter().map(|(name, of)| (Form::Fused, name, of, "o"));
    let shares = SHARES.into_iter().map(|(form, name, of)| (form, name, of, "o"));
    let stored = STORED.into_iter().map(|(name, of, from)| (Form::Stored, name, of, from));
    for (form, name, of, from) in plain.chain(fused).chain(shares).chain(stored) {
        let texts = |form: Form| -> Vec<String> {
            let kernels = gradients_in(form, &Kernel::builtin(name).expect("built in"), of, from).backward;
            kernels.iter().map(|kernel| kernel.text().to_owned()).collect()
        };
        // With shares, what other files have is left out.
        let others = if form.has_shares() { texts(Form::of(form.is_fused(), false)) } else { Vec::new() };
        let found: Vec<String> = texts(form).into_iter().filter(|text| !others.contains(text)).collect();
        let found = found.join("\n");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(match form {
            Form::Plain => "gradients",
            Form::Fused => "fused",
            Form::PlainShares | Form::FusedShares => "shares",
            Form::Stored => "stored",
        });
        let golden = folder.join(format!("{name}.rs"));
        if bless {
            std::fs::write(&golden, &found).expect("is writable");
            continue;
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(found == expected, "{} says otherwise (FLASHTILE_BLESS=1 writes it anew):\n{found}", golden.display());
        assert!(found.lines().all(|line| line.len() <= 130), "{found}");
    }
}

#[test]
fn gradients_of_built_in_kernels_have_code() {
    let mut lost = Vec::new();
    for (name, of, from) in GRADIENTS {
        for kernel in gradient(&Kernel::builtin(name).expect("built in"), of, from) {
            for arch in ["sm_75", "sm_80", "sm_90a"].map(|name| Arch::named(name).expect("known")) {
                let found = hints(&instance(&kernel), arch).into_iter().flat_map(|hint| hint.lost);
                let of_code = found.filter(|lost| matches!(lost, Lost::Gpu | Lost::Wgmma));
                lost.extend(of_code.map(|lost| format!("{} on {arch}: {}", kernel.name(), lost.name())));
            }
        }
    }
    assert_eq!(lost, Vec::<String>::new());
}

#[test]
fn gradients_of_heads_with_keys_of_their_own_keep_wgmma() {
    let hopper = Arch::named("sm_90a").expect("in the table");
    for name in ["attention", "causal_attention", "softcap_attention"] {
        let text = Kernel::builtin(name).expect("built in").text().to_owned();
        let text = text.replace(", G, N, D)", ", H, N, D)").replace("[b, g, j", "[b, h, j").replace("let g = h * G / H;", "");
        let source = SourceText { name: format!("{name}.rs"), text: text.into(), first_line: 1 };
        let own = Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}")).remove(0);
        for kernel in gradient(&own, "q,k,v", "o") {
            let wgmma = space(&instance(&kernel), hopper).iter().filter(|s| s.main.tensor_op == TensorOp::Wgmma).count();
            assert!(wgmma > 20, "{}: {wgmma} schedules multiply by wgmma", kernel.name());
        }
    }
}

/// The width of multi-head latent attention with its projections absorbed (DeepSeek-V2): 512 and 64.
/// Products of one step are added to one sum, each by itself, so that it fits.
#[test]
fn gradients_of_latent_attention_have_code_at_its_width() {
    let hopper = Arch::named("sm_90a").expect("in the table");
    for kernel in gradient(&Kernel::builtin("mla_decode").expect("built in"), "q,kv", "o") {
        let ir = kernel.ir().clone();
        let binding = Binding::new(&ir, Elem::Bf16, [("C".to_owned(), 512), ("R".to_owned(), 64)]);
        let wide = Instance { facts: Facts::best(&ir), kernel: flashtile_codegen::as_generated(&ir, &binding), binding };
        let is_legal = |schedule: &Schedule| generate(&wide, schedule, hopper).is_ok();
        let found = space(&wide, hopper).into_iter().find(is_legal);
        let found = found.unwrap_or_else(|| panic!("`{}` has no code", kernel.name()));
        assert_eq!(found.main.tensor_op, TensorOp::Wgmma, "{}", kernel.name());
    }
}

/// A layer with weights as `nn.Linear` has them, `x w^T`, or in the other order; with an epilogue.
fn layer(weights: &str, operand: &str, more: &str) -> Kernel {
    let s = if operand.contains("load(s,") { "s: &Tensor<T, (M, K)>," } else { "" };
    let u = if more.is_empty() { String::new() } else { format!("u: &Tensor<T, {weights}>,") };
    let text = format!(
        "pub fn layer<T: Element>(
            x: &Tensor<T, (M, K)>, w: &Tensor<T, {weights}>, {s} {u} y: &mut Tensor<T, (M, N)>,
        ) {{
            let (i, j) = program(tiles(M), tiles(N));
            let mut a = zeros((i, j));
            let mut b = zeros((i, j));
            for k in tiles(K) {{
                let x_ik = load(x, [i, k]);
                a += dot({operand}, WEIGHTS(w));
                {more}
            }}
            store(y, [i, j], max(a, 0.0) + b);
        }}"
    );
    let place = if weights == "(N, K)" { ", [j, k]).t()" } else { ", [k, j])" };
    let text = ["w", "u"].iter().fold(text, |text, t| text.replace(&format!("WEIGHTS({t})"), &format!("load({t}{place}")));
    let source = SourceText { name: "layer.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}")).remove(0)
}

/// The gradient of weights is a product in the order of the weights: no sum is transposed.
#[test]
fn gradients_of_linear_layers_have_code_and_keep_wgmma() {
    let gated = "(x_ik * load(s, [i, k])).to::<T>()";
    let two = "b += dot(x_ik, WEIGHTS(u));";
    for (operand, more, of) in [("x_ik", "", "x,w"), ("x_ik", two, "x,w,u"), (gated, "", "x,w,s")] {
        for weights in ["(N, K)", "(K, N)"] {
            for kernel in gradient(&layer(weights, operand, more), of, "y") {
                let of_weights = kernel.name().ends_with("grad_w");
                assert!(!of_weights || !kernel.text().contains(")).t()"), "{}", kernel.text());
                for name in ["sm_75", "sm_80", "sm_90a"] {
                    let arch = Arch::named(name).expect("in the table");
                    let found = space(&instance(&kernel), arch);
                    assert!(!found.is_empty(), "no code on {name}: {}", kernel.text());
                    let wgmma = found.iter().filter(|s| s.main.tensor_op == TensorOp::Wgmma).count();
                    let is_plain = name == "sm_90a" && operand == "x_ik" && !kernel.name().ends_with("pairs");
                    assert!(!is_plain || wgmma > 20, "{wgmma} schedules multiply by wgmma: {}", kernel.text());
                }
            }
        }
    }
    let shape = [("M", 65), ("N", 70), ("K", 40)];
    for arch in Turn::of_run().some_of(0, &["sm_75", "sm_80", "sm_90a"]) {
        judge_kernel(Form::Plain, &layer("(N, K)", "x_ik", two), ("x,w,u", "y"), arch, &shape, "");
    }
}

/// A product of tiles of the grid that is whole in one step, with weights in both orders: their
/// gradient is added up as the product makes it, and turned where it is stored. Where the scores
/// are made again from weights that lie turned, a launch ahead turns them.
#[test]
fn gradients_of_products_in_one_step_are_right() {
    let turned = "dot(load(x, [i, ..]), load(w, [.., j])) + load(u, [j])";
    let turned_with_epilogue = "tanh(dot(load(x, [i, ..]), load(w, [.., j])) + load(u, [j]))";
    let with_epilogue = "tanh(dot(load(x, [i, ..]), load(w, [j, ..]).t()) + load(u, [j]))";
    let products = [("(K, N)", turned), ("(K, N)", turned_with_epilogue), ("(N, K)", with_epilogue)];
    for (number, (weights, value)) in products.into_iter().enumerate() {
        let text = format!(
            "pub fn step<T: Element, const K: usize>(
                x: &Tensor<T, (M, K)>, w: &Tensor<T, {weights}>, u: &Tensor<T, (N)>, y: &mut Tensor<T, (M, N)>,
            ) {{
                let (i, j) = program(tiles(M), tiles(N));
                store(y, [i, j], {value});
            }}"
        );
        let source = SourceText { name: "step.rs".into(), text: text.into(), first_line: 1 };
        let kernel = Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}")).remove(0);
        for arch in Turn::of_run().some_of(number, &["sm_75", "sm_90a"]) {
            judge_kernel(Form::Plain, &kernel, ("x,w,u", "y"), arch, &[("M", 65), ("N", 70), ("K", 40)], "");
        }
    }
}

/// Sizes that no block divides, heads in groups, and more rows than columns.
const SIZES: [(&str, i64); 12] = [
    ("B", 2),
    ("H", 4),
    ("G", 2),
    ("M", 83),
    ("N", 71),
    ("K", 90),
    ("V", 101),
    ("D", 64),
    ("E", 64),
    ("C", 32),
    ("R", 32),
    ("S", 64),
];

/// Runs the chain of a gradient on the emulator, each kernel on what those before it store. Sizes
/// are [`SIZES`] but for those that are `given`.
fn judge_on(name: &str, of: &str, from: &str, arch: &str, given: &[(&str, i64)], data: &str) {
    judge_in(Form::Plain, (name, of, from), arch, given, data);
}

fn judge_in(form: Form, (name, of, from): (&str, &str, &str), arch: &str, given: &[(&str, i64)], data: &str) {
    judge_kernel(form, &Kernel::builtin(name).expect("built in"), (of, from), arch, given, data);
}

fn judge_kernel(form: Form, kernel: &Kernel, of: (&str, &str), arch: &str, given: &[(&str, i64)], data: &str) {
    judge_elements(Elem::F16, &gradients_in(form, kernel, of.0, of.1), arch, given, data);
}

fn judge_elements(elem: Elem, made: &Gradient, arch: &str, given: &[(&str, i64)], data: &str) {
    let name = made.forward.name();
    let size_of = |name: &str| {
        let find = |sizes: &[(&str, i64)]| sizes.iter().find(|(size, _)| *size == name).map(|&(_, n)| n);
        find(given).or_else(|| find(&SIZES)).unwrap_or_else(|| panic!("{name} has a size"))
    };
    let all = || [&made.forward].into_iter().chain(&made.backward);
    let bound = |kernel: &Kernel| {
        let consts = kernel.ir().sizes.values().filter(|size| size.kind == SizeKind::Const);
        let consts: Vec<(&str, i64)> = consts.map(|size| (size.name.as_str(), size_of(&size.name))).collect();
        kernel.bind(elem, consts).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let kernels: Vec<_> = all().map(bound).collect();
    let runtime = all().flat_map(|kernel| kernel.ir().sizes.values().filter(|size| size.kind != SizeKind::Const));
    let sizes = runtime.map(|size| (size.name.clone(), size_of(&size.name))).collect();
    let data: InputData = data.parse().unwrap_or_else(|e| panic!("{data}: {e}"));
    let mut chain = Chain::new(kernels.clone(), &sizes, 7, &data).unwrap_or_else(|e| panic!("{name}: {e}"));
    chain.pass().unwrap_or_else(|e| panic!("{name}: {e}"));
    for kernel in &kernels[1..] {
        let arch = Some(Arch::named(arch).expect("in the table"));
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, ..LaunchOptions::default() };
        let loaded = kernel.on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{name}: {e}"));
        for verdict in chain.judge(&loaded).unwrap_or_else(|e| panic!("{name}: {e}")) {
            assert!(verdict.passed(), "{} on {arch:?} for {sizes:?}, {data}: {verdict:?}", kernel.ir().name);
        }
    }
}

fn judge(name: &str, of: &str, from: &str, arch: &str) {
    judge_on(name, of, from, arch, &[], "");
}

/// Cases that other libraries had wrong (their reports are named): each in the form without
/// atomics, for which wrong offsets, padded rows and empty ranges remain.
#[test]
fn what_others_had_wrong_is_right() {
    let far_below = "scale:constant=1 q:constant=1 k:range=-2..-1.5";
    type Case = (&'static str, &'static [(&'static str, i64)], &'static str);
    let cases: [Case; 12] = [
        // Scores near -100 with padded keys, whose exponential overflows where they count as 0
        // (pytorch 196678).
        ("attention", &[("N", 192)], far_below),
        ("causal_attention", &[("N", 190)], far_below),
        // One query, and a logarithm of the sum far below 0 (cudnn-frontend 1072).
        ("attention", &[("M", 1), ("N", 192)], far_below),
        // Rows that see nothing (flash-attention 443, 334, 1947).
        ("causal_attention", &[("M", 90), ("N", 3)], ""),
        ("sliding_window", &[("M", 90), ("N", 3)], "window:constant=2"),
        // The slope of a cap at what is hidden.
        ("softcap_attention", &[("M", 90), ("N", 70)], "cap:constant=0.5"),
        // Rows and columns beyond the tiles: 1 more, 1 less, and one alone.
        ("attention", &[("M", 65), ("N", 127)], ""),
        ("causal_attention", &[("M", 1), ("N", 1)], ""),
        // Nothing to read, or nothing to give (flash-attention 1254, 1713, 2562).
        ("attention", &[("M", 0)], ""),
        ("causal_attention", &[("N", 0)], ""),
        // Groups of three heads, and of all (native-sparse-attention 27).
        ("causal_attention", &[("H", 6)], ""),
        ("attention", &[("H", 5), ("G", 1)], ""),
    ];
    let turn = Turn::of_run();
    for (number, (name, sizes, data)) in cases.into_iter().enumerate() {
        let sizes = [&[("B", 1)], sizes].concat();
        let ways = [(Form::Plain, "sm_80"), (Form::Plain, "sm_90a"), (Form::Fused, "sm_90a")];
        for &(form, arch) in turn.some_of(number, &ways) {
            judge_in(form, (name, "q,k,v", "o"), arch, &sizes, data);
        }
    }
    // Values of another width than the keys, at 192 and 128.
    let sizes = [("B", 1), ("H", 2), ("M", 70), ("N", 40), ("D", 128), ("R", 64), ("E", 128)];
    judge_on("mla_prefill", "q,q_rot,k,k_rot,v", "o", "sm_90a", &sizes, "");
}

/// Attention of one head whose output passes through a gate of each element.
const GATED: &str = "pub fn gated<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, \
    v: &Tensor<T, (N, D)>, gate: &Tensor<T, (M, D)>, o: &mut Tensor<T, (M, D)>) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [j, ..]).t());
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let p = exp(s - m_new);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [j, ..]));
            m = m_new;
        }
        let g = load(gate, [i, ..]);
        store(o, [i, ..], acc / l * (g / (1.0 + exp(-g))));
    }";

#[test]
fn rows_that_see_one_column_have_scores_without_gradient_in_every_form() {
    let source = SourceText { name: "gated.rs".into(), text: GATED.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).expect("well formed").remove(0);
    let (device, shape) = (Device::cpu(), [5, 16]);
    let drawn = |shape: &[usize], seed: usize| {
        let values = (0..shape.iter().product()).map(|at| ((at * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0);
        let bytes: Vec<u8> = values.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
        AnyTensor::from_bytes(&device, Elem::F16, shape, &bytes).expect("fits")
    };
    let [q, gate, grad_o] = [0, 1, 2].map(|seed| drawn(&shape, seed));
    let [k, v] = [3, 4].map(|seed| drawn(&[1, 16], seed));
    let [o, mean, grad_q] = [Elem::F16; 3].map(|elem| AnyTensor::zeros(&device, elem, &shape).expect("fits"));
    let reference = AnyTensor::zeros(&device, Elem::F32, &shape[..1]).expect("fits");
    for form in [Form::Plain, Form::Fused] {
        let made = gradients_in(form, &kernel, "q,k", "o");
        let bound = |kernel: &Kernel| kernel.bind(Elem::F16, [("D", 16)]).and_then(|bound| bound.on(&device)).expect("loads");
        let inputs = [&q, &k, &v, &gate].map(Argument::from);
        let outputs = [&o, &reference, &mean].map(Argument::Output);
        let forward = bound(&made.forward);
        forward.launch(&[&inputs[..], &outputs].concat()).expect("is launched");
        let names = ["q", "k", "v", "gate", "m_reference", "acc_mean", "grad_o", "grad_q"];
        let gradient = LoadedGradient::new(made.backward.iter().map(bound), &names).expect("is complete");
        let kept = [&reference, &mean, &grad_o].map(Argument::from);
        let all = [&inputs[..], &kept, &[Argument::Output(&grad_q)]].concat();
        gradient.launch(&mut Workspace::default(), &all).expect("is launched");
        let found = grad_q.to_bytes().expect("is read");
        let values: Vec<f32> = found.chunks(2).map(|x| f16::from_le_bytes([x[0], x[1]]).to_f32()).collect();
        assert!(values.iter().all(|x| x.abs() < 1e-6), "{form:?}: {values:?}");
    }
}

/// Each on one of two architectures, in turn; half of them, so that the halves are judged side by
/// side.
fn judge_gradients(half: usize) {
    let turn = Turn::of_run();
    for (number, (name, of, from)) in GRADIENTS.into_iter().enumerate().skip(half).step_by(2) {
        for arch in turn.some_of(number / 2, &["sm_80", "sm_90a"]) {
            judge(name, of, from, arch);
        }
    }
}

#[test]
fn gradients_of_built_in_kernels_are_right() {
    judge_gradients(0);
}

#[test]
fn gradients_of_the_other_built_in_kernels_are_right() {
    judge_gradients(1);
}

#[test]
fn fused_gradients_of_built_in_kernels_are_right_on_hopper() {
    let turn = Turn::of_run();
    for (_, (name, of)) in FUSED.into_iter().enumerate().filter(|(number, _)| turn.has(*number, 2)) {
        judge_in(Form::Fused, (name, of, "o"), "sm_90a", &[], "");
    }
}

/// Of a bias that batches share, tiles that a mask hides as a whole have the gradient 0, and their
/// pairs are not made: what is hidden adds 0 or NaN to the sum of the batches.
#[test]
fn pairs_that_a_mask_hides_are_not_made() {
    let text = include_str!("../asked/bias_causal.rs");
    let of_all_heads = text.replace("load(bias, [h, i, j])", "load(bias, [i, j])").replace("(H, M, N)", "(M, N)");
    for (number, text) in [text.to_owned(), of_all_heads].into_iter().enumerate() {
        let source = SourceText { name: "bias_causal.rs".into(), text: text.into(), first_line: 1 };
        let kernel = Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}")).remove(0);
        let made = gradients_in(Form::Fused, &kernel, "q,k,v,bias", "o");
        let pairs = made.backward.iter().find(|kernel| kernel.name().ends_with("grad_pairs")).expect("has one");
        let ir = &instance(pairs).kernel;
        let loops = ir.walk().into_iter().filter(|(_, op)| matches!(ir.ops[*op].op, Op::For { .. }));
        let shown: Vec<String> =
            loops.map(|(_, op)| loop_masks(ir, op, &|_| 64, &|_| None, MaskOptions::default()).text(ir)).collect();
        assert_eq!(shown.len(), 1 + number);
        assert!(shown.iter().all(|shown| shown.contains("a hidden tile     changes nothing")), "{shown:?}");
        // Rows that see nothing, and tiles that are hidden, cut and visible.
        let ways = [(Form::Fused, "sm_90a"), (Form::Plain, "sm_80"), (Form::Plain, "sm_90a")];
        for &(form, arch) in Turn::of_run().some_of(number, &ways) {
            judge_kernel(form, &kernel, ("q,k,v,bias", "o"), arch, &[("M", 300), ("N", 270)], "");
        }
    }
}

#[test]
fn stored_gradients_of_scores_are_right() {
    for (name, of, from) in STORED {
        for arch in ["sm_75", "sm_80", "sm_90a"] {
            // Wider than a program holds, in several steps, of which the last is cut.
            for depth in [64, 712] {
                judge_in(Form::Stored, (name, of, from), arch, &[("D", depth)], "");
            }
        }
    }
}

#[test]
fn shares_of_columns_are_right() {
    let turn = Turn::of_run();
    for (number, (form, name, of)) in SHARES.into_iter().enumerate() {
        // Groups of two, of one or two (five heads of two), and of all.
        for sizes in turn.some_of(number, &[&[][..], &[("H", 5)], &[("H", 3), ("G", 1)]]) {
            judge_in(form, (name, of, "o"), "sm_90a", sizes, "");
        }
        if turn.has(number, 2) {
            judge_in(Form::PlainShares, (name, of, "o"), "sm_80", &[], "");
        }
    }
}

/// The plan of one of the kernels of a gradient on `sm_90a`, at a head dim of 64.
fn plan_of_part(made: &Gradient, part: &str, schedule: &Schedule) -> Plan {
    let kernel = made.backward.iter().find(|kernel| kernel.name().contains(part)).expect("has one");
    plans(&instance(kernel), schedule, Arch::named("sm_90a").expect("in the table")).expect("legal").remove(0)
}

/// Judges the kernels of a gradient on the emulator for `sm_90a`, one of them by a schedule.
fn judge_part(made: &Gradient, part: &str, schedule: &Schedule, sizes: &[(&str, i64)]) {
    let consts = |kernel: &Kernel| kernel.bind(Elem::F16, [("D", 64)]).expect("binds");
    let kernels: Vec<_> = [&made.forward].into_iter().chain(&made.backward).map(consts).collect();
    let run_time = sizes.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
    let mut chain = Chain::new(kernels.clone(), &run_time, 7, &InputData::default()).expect("fits");
    chain.pass().expect("runs");
    for kernel in &kernels[1..] {
        let schedule = kernel.ir().name.contains(part).then(|| schedule.clone());
        let arch = Some(Arch::named("sm_90a").expect("in the table"));
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, schedule, ..LaunchOptions::default() };
        let loaded = kernel.on_with(&Device::emulator(), options).expect("loads");
        for verdict in chain.judge(&loaded).expect("runs") {
            assert!(verdict.passed(), "{} with {part} by a schedule: {verdict:?}", kernel.ir().name);
        }
    }
}

#[test]
fn vectors_of_more_columns_than_a_lane_has_two_of_wait_spread_too() {
    let made = gradients(&Kernel::builtin("attention").expect("built in"), "q,k,v", "o");
    // One part of 64 columns, and two: of 80, half of the second is not there.
    for (block_n, parts) in [(64, 1), (80, 2), (112, 2)] {
        let schedule = format!(
            "tensor_op=wgmma,copy=tma,overlap=late,block_m=128,block_n={block_n},warps=8,min_blocks=1,producer_registers=24"
        );
        let schedule: Schedule = schedule.parse().expect("a schedule");
        let plan = plan_of_part(&made, "columns", &schedule);
        let spread: Vec<u32> =
            plan.variables.iter().filter(|v| v.storage == Storage::Lanes).map(|v| v.n_tiles.div_ceil(8)).collect();
        assert_eq!(spread, [parts, parts], "lse and grad_l in steps of {block_n}");
        judge_part(&made, "columns", &schedule, &[("B", 1), ("H", 2), ("G", 2), ("M", 250), ("N", 140)]);
    }
}

/// A bias comes through a ring in all kernels that read it, whatever way round they have it, and
/// whenever they wait for products.
#[test]
fn biases_come_through_rings_in_gradients() {
    let made = gradients(&Kernel::builtin("bias_attention").expect("built in"), "q,k,v", "o");
    for (part, word, block_n) in [("rows", "= rows_of bias_tile", 64), ("columns", "= columns_of bias_tile", 48)] {
        for (overlap, stages) in [("off", 2), ("late", 2), ("late", 3)] {
            let schedule = format!(
                "tensor_op=wgmma,copy=tma,tile_loads=tma,overlap={overlap},stages={stages},block_m=128,block_n={block_n},warps=8,\
                 min_blocks=1,producer_registers=24"
            );
            let schedule: Schedule = schedule.parse().expect("a schedule");
            let text = plan_of_part(&made, part, &schedule).to_string();
            assert!(text.contains(word) && !text.contains("load bias"), "{part}, {overlap}:\n{text}");
            for (rows, columns) in [(210, 136), (47, 328)] {
                judge_part(&made, part, &schedule, &[("B", 2), ("H", 2), ("G", 1), ("M", rows), ("N", columns)]);
            }
        }
        // Rows that TMA cannot read are copied to where it can.
        let copied = format!(
            "tensor_op=wgmma,copy=tma,tile_loads=tma,b_layout=copied,overlap=late,stages=3,block_m=128,block_n={block_n},warps=8,\
             min_blocks=1,producer_registers=24"
        );
        let sizes = [("B", 2), ("H", 2), ("G", 1), ("M", 210), ("N", 135)];
        judge_part(&made, part, &copied.parse().expect("a schedule"), &sizes);
    }
}

#[test]
fn faults_in_tiles_that_are_read_by_columns_are_found() {
    let made = gradients(&Kernel::builtin("bias_attention").expect("built in"), "q,k,v", "o");
    let schedule =
        "tensor_op=wgmma,copy=tma,tile_loads=tma,overlap=late,block_m=128,block_n=48,warps=8,min_blocks=1,producer_registers=24";
    let plan = plan_of_part(&made, "columns", &schedule.parse().expect("a schedule"));
    let by_rows = planted(plan.clone(), 1, &mut |body, index| match &mut body[index].op {
        StmtOp::ReadRows { turned, .. } => std::mem::take(turned),
        _ => false,
    });
    says(&by_rows, "bias_tile has 48 x 128 elements, where 128 x 48 are read or written");
    let changed = |change: &dyn Fn(&mut Plan, usize)| {
        let mut plan = plan.clone();
        let ring = plan.tiles.iter().position(|tile| tile.name == "bias_tile").expect("a ring of the bias");
        change(&mut plan, ring);
        faults_of(&plan)
    };
    says(&changed(&|plan, ring| plan.tiles[ring].columns = 64), "bias_tile has 48 x 64 elements");
    says(&changed(&|plan, ring| plan.tiles[ring].rows = 64), "bias_tile has 64 x 128 elements");
    let narrower = changed(&|plan, ring| (plan.tiles[ring].pitch, plan.tiles[ring].slabs) = (64, 4));
    says(&narrower, "bias_tile is no tile of whole lines of which each warp reads 16 columns");
    let early = planted(plan, 1, &mut |body, index| {
        let is_ring = matches!(body[index].op, StmtOp::ReadRows { .. });
        if is_ring {
            body.swap(index - 1, index);
        }
        is_ring
    });
    says(&early, "bias_tile is read but not acquired");
}

/// The gradient of a table of distances.
fn of_distances() -> Gradient {
    gradients(&Kernel::builtin("relative_attention").expect("built in"), "q,k,v,table", "o")
}

/// Whether the kernel of rows of the gradient of a table is right on the emulator by these plans.
fn is_right_by(plans: GivenPlans) -> Result<bool, flashtile::Error> {
    let made = of_distances();
    let size_of = |name: &str| SIZES.iter().find(|(size, _)| *size == name).expect("has a size").1;
    let all = || [&made.forward].into_iter().chain(&made.backward);
    let sizes = all().flat_map(|kernel| kernel.ir().sizes.values()).filter(|size| size.kind != SizeKind::Const);
    let sizes = sizes.map(|size| (size.name.clone(), size_of(&size.name))).collect();
    let bound = |kernel: &Kernel| {
        let has_constants = kernel.ir().sizes.values().any(|size| size.kind == SizeKind::Const);
        kernel.bind(Elem::F16, has_constants.then_some(("D", 64))).expect("binds")
    };
    let bound: Vec<_> = all().map(bound).collect();
    let mut chain = Chain::new(bound.clone(), &sizes, 7, &InputData::default()).expect("fits");
    chain.pass().expect("the forward kernel runs");
    let arch = Arch::named("sm_80");
    let options = LaunchOptions { toolchain: Toolchain::shared(), arch, plans: Some(plans), ..LaunchOptions::default() };
    let loaded = bound[1].on_with(&Device::emulator(), options).expect("loads");
    Ok(chain.judge(&loaded)?.iter().all(|verdict| verdict.passed()))
}

#[test]
fn faults_in_sums_at_positions_are_found() {
    let made = of_distances();
    let schedule: Schedule = "block_m=64,block_n=32,stages=1".parse().expect("a schedule");
    let (instance, arch) = (instance(&made.backward[0]), Arch::named("sm_80").expect("in the table"));
    let own = plans(&instance, &schedule, arch).expect("legal");
    assert_eq!(own.len(), 2, "one sets the sum to 0");
    let printed = PlanFile::text(&instance, &schedule, arch, &own);
    assert_eq!(PlanFile::read(&printed, Some(&instance.kernel.source)).expect("reads").plans[1].to_string(), own[1].to_string());
    let changed = |change: &dyn Fn(&mut GlobalTile, &mut Expr)| {
        let (mut plan, mut hits) = (own[1].clone(), 0);
        for role in &mut plan.roles {
            change_first(&mut role.body, &mut |body, at| {
                if let StmtOp::Add { to, place: Some(place), .. } = &mut body[at].op {
                    change(to, place);
                    hits += 1;
                }
                false
            });
        }
        assert!(hits > 0, "the plan adds to positions");
        plan
    };
    // Strides, by which a place would be counted twice; a place that is made of what is not there.
    says(&faults_of(&changed(&|to, _| to.row_stride = Expr::Int(1))), "is added to at places of elements, and has strides");
    let nowhere = changed(&|_, place| *place = Expr::Element("nowhere".into(), Shape::Accumulator));
    says(&faults_of(&nowhere), "nowhere");
    // What the verifier cannot know the emulator finds: columns left out, places beyond the end.
    let is_right = |plan: Plan| {
        let plans = [own[0].clone(), plan].into();
        is_right_by(GivenPlans { schedule: schedule.clone(), facts: instance.facts.clone(), plans })
    };
    assert!(is_right(own[1].clone()).expect("runs"), "the plan is right as it is");
    assert!(!is_right(changed(&|to, _| to.columns_present = Expr::Int(16))).expect("runs"), "half of the columns are left out");
    let further = |place: &Expr| Expr::infix(Operator::Add, place.clone(), Expr::Int(1));
    let beyond = is_right(changed(&|_, place| *place = further(place))).expect_err("the last place has none behind it");
    assert!(beyond.to_string().contains("past the end"), "{beyond}");
}

/// The plan of the kernel of columns of the fused form.
fn plan_of_fused(knobs: &str) -> Plan {
    let made = gradients_in(Form::Fused, &Kernel::builtin("causal_attention").expect("built in"), "q,k,v", "o").backward;
    let columns = made.iter().find(|kernel| kernel.name().contains("columns")).expect("it has one");
    let schedule: Schedule = knobs.parse().unwrap_or_else(|e| panic!("{knobs}: {e}"));
    let (instance, arch) = (instance(columns), Arch::named("sm_90a").expect("in the table"));
    let mut plans = plans(&instance, &schedule, arch).expect("legal");
    assert_eq!(plans.len(), 2, "one sets the sum to 0");
    let text = PlanFile::text(&instance, &schedule, arch, &plans);
    assert_eq!(PlanFile::read(&text, Some(&instance.kernel.source)).expect("reads").plans.len(), 2);
    plans.remove(1)
}

#[test]
fn faults_in_products_across_the_warps_are_found() {
    let wgmma = "tensor_op=wgmma,copy=tma,warps=8,block_m=128,block_n=128,stages=2,min_blocks=1,producer_registers=24";
    let plan = plan_of_fused(wgmma);
    let computing = plan.roles.len() - 1;
    let across = plan.variables.iter().position(|v| v.across.is_some()).expect("the gradient of queries lies across");

    // A barrier before all warps read what each has staged; before it is written again they have
    // freed it, and it is reserved.
    assert!(!planted(plan.clone(), computing, &mut remove(|op| *op == StmtOp::Barrier)).is_empty());
    for wanted in [Exchange::Reserve, Exchange::Free] {
        let of_it = remove(|op| matches!(op, StmtOp::Exchange { step, .. } if *step == wanted));
        says(&planted(plan.clone(), computing, &mut { of_it }), "was not reserved");
    }
    // A sum that is added while the product writes it.
    let early = planted(plan.clone(), computing, &mut remove(|op| *op == StmtOp::Wait(vec![Event::Product(across)])));
    says(&early, "is read while a product writes it");
    // Rows of another number of warps.
    let mut fewer = plan.clone();
    fewer.variables[across].across = Some(4);
    assert!(!faults_of(&fewer).is_empty());
    // What lies across is used as what does not.
    let mapped = planted(plan.clone(), computing, &mut |body, index| {
        let hit = matches!(body[index].op, StmtOp::PutRows { .. });
        if hit {
            let value = Expr::Element(plan.variables[across].name.clone(), Shape::Accumulator);
            body.insert(index, Stmt::new(StmtOp::Map { to: across, value }, body[index].span));
        }
        hit
    });
    says(&mapped, "lies across");
}

/// Runs a kernel of columns with a schedule on drawn inputs.
fn judge_columns(kernel: &Kernel, d: i64, schedule: &Schedule, order: Options) {
    let bound = kernel.bind(Elem::Bf16, [("D", d)]).expect("binds");
    let sizes = [("B", 1), ("H", 2), ("G", 1), ("M", 200), ("N", 150)].map(|(name, n)| (name.to_owned(), n)).into();
    let mut chain = Chain::new(vec![bound.clone()], &sizes, 5, &InputData::default()).expect("fits");
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Some(Arch::named("sm_90a").expect("in the table")),
        schedule: Some(schedule.clone()),
        emulation: Emulation { options: order, ..Emulation::default() },
        ..LaunchOptions::default()
    };
    let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{schedule}: {e}"));
    for verdict in chain.judge(&loaded).unwrap_or_else(|e| panic!("{schedule}: {e}")) {
        assert!(verdict.passed(), "{schedule}: {verdict:?}");
    }
}

#[test]
fn products_that_are_waited_for_late_are_right() {
    let knobs = "tensor_op=wgmma,copy=tma,warps=8,block_m=128,block_n=64,overlap=late,persistent=dynamic,min_blocks=1,producer_registers=40";
    let made = gradient(&Kernel::builtin("causal_attention").expect("built in"), "k,v", "o");
    let columns = made.iter().find(|kernel| kernel.name().contains("columns")).expect("it has one");
    for stages in [2, 3] {
        let schedule: Schedule = format!("{knobs},stages={stages}").parse().expect("a schedule");
        let arch = Arch::named("sm_90a").expect("in the table");
        let plan = plans(&instance(columns), &schedule, arch).unwrap_or_else(|e| panic!("{e}")).remove(0);
        let computing = plan.roles.len() - 1;
        let lanes = plan.variables.iter().filter(|v| v.storage == Storage::Lanes).count();
        assert_eq!(lanes, 2, "the statistics of rows wait spread over lanes");
        // Each wait of the steps behind the first, and each slot that is handed back late.
        let wanted: [fn(&StmtOp) -> bool; 4] = [
            |op| matches!(op, StmtOp::Wait(_)),
            |op| matches!(op, StmtOp::ReleaseBefore(_)),
            |op| matches!(op, StmtOp::Advance(_)),
            |op| matches!(op, StmtOp::Distribute { .. }),
        ];
        for wanted in wanted {
            let faults = planted(plan.clone(), computing, &mut |body, index| match &mut body[index].op {
                StmtOp::Loop { body: steps, .. } => change_first(steps, &mut remove(wanted)),
                _ => false,
            });
            assert!(!faults.is_empty());
        }
        for order in [Options::default(), Options::random(11)] {
            judge_columns(columns, 64, &schedule, order);
        }
    }
    let one = format!("{knobs},stages=1").parse().expect("a schedule");
    let refused = plans(&instance(columns), &one, Arch::named("sm_90a").expect("in the table")).expect_err("one slot");
    assert!(refused.to_string().contains("one slot of a tile that products of two steps read"), "{refused}");
}

/// Two blocks of keys and several steps, of which one, two and three are odd and even. At head dims
/// that are no multiple of 64 the second warpgroup has columns that no tensor has.
#[test]
fn sums_that_the_next_step_adds_are_right() {
    let schedule = "tensor_op=wgmma,copy=tma,warps=8,min_blocks=1,producer_registers=24,block_m=128,block_n=64,overlap=late";
    let schedule = schedule.parse().expect("a schedule");
    for (name, head_dim) in [("attention", 128), ("causal_attention", 128), ("attention", 96), ("causal_attention", 72)] {
        let made = Kernel::builtin(name).expect("built in").gradient_in(Form::Fused, &["q", "k", "v"], &["o"]).expect("has one");
        for order in [Options::default(), Options::random(5), Options::random(6)] {
            judge_columns(&made.backward[1], head_dim, &schedule, order);
        }
    }
}

/// The same where each step adds its own sums: two blocks of keys, and one slot of what warps stage
/// for each other.
#[test]
fn sums_that_a_step_adds_itself_are_right() {
    let knobs = "tensor_op=wgmma,copy=tma,warps=8,min_blocks=1,producer_registers=24,overlap=late,sum_lag=0,terms=product";
    for (name, head_dim, block_n) in [("causal_attention", 64, 128), ("attention", 128, 64)] {
        let made = Kernel::builtin(name).expect("built in").gradient_in(Form::Fused, &["q", "k", "v"], &["o"]).expect("has one");
        let schedule = format!("{knobs},block_m=128,block_n={block_n}").parse().expect("a schedule");
        for order in [Options::default(), Options::random(7)] {
            judge_columns(&made.backward[1], head_dim, &schedule, order);
        }
    }
}

/// Sums of warpgroups that share the columns of `dv`, `dk` and `dq`, a step later, in their own step,
/// and with nothing in flight. Of 136 and 200 columns the second has some that no tensor has.
#[test]
fn sums_that_column_groups_add_are_right() {
    let knobs = "tensor_op=wgmma,copy=tma,warps=8,column_groups=2,block_m=64,block_n=64,min_blocks=1,producer_registers=24";
    for (name, head_dim, of) in [
        ("causal_attention", 192, "overlap=late,terms=product"),
        ("attention", 192, "overlap=late,terms=product,sum_lag=0,held_columns=64"),
        ("attention", 136, "overlap=late"),
        ("causal_attention", 160, "overlap=late,sum_lag=0"),
        ("causal_attention", 200, "overlap=off,stages=1"),
        ("attention", 256, "overlap=off,stages=1"),
    ] {
        let made = Kernel::builtin(name).expect("built in").gradient_in(Form::Fused, &["q", "k", "v"], &["o"]).expect("has one");
        let schedule = format!("{knobs},{of}").parse().expect("a schedule");
        for order in [Options::default(), Options::random(9), Options::random(10)] {
            judge_columns(&made.backward[1], head_dim, &schedule, order);
        }
    }
    // Keys have no gradient: nothing else reads the operand of `dq`.
    let made = Kernel::builtin("attention").expect("built in").gradient_in(Form::Fused, &["q", "v"], &["o"]).expect("has one");
    for lag in [0, 1] {
        let schedule = format!("{knobs},overlap=late,sum_lag={lag}").parse().expect("a schedule");
        judge_columns(&made.backward[1], 192, &schedule, Options::random(12));
    }
}

/// Warpgroups that share 192 columns have 96 each, which begin in the middle of boxes of 64: theirs have
/// 32. Of 200 and 224 columns they have 128 each, of which the last are beyond the tensor.
#[test]
fn columns_of_which_warpgroups_have_parts_are_right() {
    let knobs = "tensor_op=wgmma,copy=tma,warps=8,column_groups=2,block_m=64,block_n=96,min_blocks=1,producer_registers=40";
    let made = gradient(&Kernel::builtin("causal_attention").expect("built in"), "k,v", "o");
    let columns = made.iter().find(|kernel| kernel.name().contains("columns")).expect("it has one");
    for terms in ["added", "product"] {
        let schedule: Schedule = format!("{knobs},terms={terms}").parse().expect("a schedule");
        for order in [Options::default(), Options::random(3)] {
            judge_columns(columns, 192, &schedule, order);
        }
    }
    for head_dim in [200, 224] {
        let schedule = format!("{knobs},block_n=64").replace("block_n=96,", "").parse().expect("a schedule");
        judge_columns(columns, head_dim, &schedule, Options::random(4));
    }
    let bound = columns.bind(Elem::Bf16, [("D", 192)]).expect("binds");
    let sizes = [("B", 2), ("H", 10), ("G", 10), ("M", 8192), ("N", 8192)].map(|(name, n)| (name.to_owned(), n)).into();
    let arch = Arch::named("sm_90a").expect("in the table");
    let instance = bound.instance(Facts::best(bound.ir()));
    let ranked = rank(&instance, arch, &sizes, &Machine::typical(arch)).expect("has schedules");
    assert_eq!(ranked[0].0.main.column_groups, 2, "{}", ranked[0].0);
}

/// The plan of a kernel whose loop over heads loads operands of products.
fn plan_of_heads(arch: &str, knobs: &str) -> Plan {
    let made = gradient(&Kernel::builtin("mla_prefill").expect("built in"), "k_rot", "o");
    let columns = made.iter().find(|kernel| kernel.name().contains("columns")).expect("it has one");
    let schedule: Schedule = knobs.parse().unwrap_or_else(|e| panic!("{knobs}: {e}"));
    let arch = Arch::named(arch).expect("in the table");
    plans(&instance(columns), &schedule, arch).unwrap_or_else(|e| panic!("{knobs}: {e}")).remove(0)
}

/// Which constants of a plan's loops over single positions read memory, in all roles, and which do so outside of these.
fn reads_by_place(plan: &Plan) -> (Vec<String>, Vec<String>) {
    fn collect(plan: &Plan, body: &[Stmt], inside: bool, found: &mut (Vec<String>, Vec<String>)) {
        for stmt in body {
            let inside = match &stmt.op {
                StmtOp::Let { name, value, .. } => {
                    let mut reads = false;
                    value.visit(&mut |e| reads |= matches!(e, Expr::Call(function, _) if function.reads_memory()));
                    if reads {
                        (if inside { &mut found.0 } else { &mut found.1 }).push(name.clone());
                    }
                    inside
                }
                StmtOp::Loop { id, .. } => inside || plan.loops[*id].single,
                _ => inside,
            };
            stmt.op.bodies().into_iter().for_each(|body| collect(plan, body, inside, found));
        }
    }
    let mut found = (Vec::new(), Vec::new());
    plan.roles.iter().for_each(|role| collect(plan, &role.body, false, &mut found));
    found
}

#[test]
fn what_all_heads_search_alike_is_searched_once() {
    let columns = |text: &str| {
        let forward = Kernel::from_source(&SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 });
        let forward = forward.unwrap_or_else(|e| panic!("{e}")).remove(0);
        gradient(&forward, "q,k,v", "o").into_iter().find(|kernel| kernel.name().contains("columns")).expect("it has one")
    };
    let of_batch = include_str!("../../runtime/kernels/document_attention.rs");
    // Each head has documents of its own: what it searches is its own too.
    let of_heads = of_batch.replace("(B, N)>,\n", "(B, H, N)>,\n").replace("document, [b, ", "document, [b, h, ");
    assert_ne!(of_batch, of_heads);
    for (arch, knobs) in [
        ("sm_80", "summaries=on"),
        ("sm_90a", "tensor_op=wgmma,copy=tma,warps=8,block_m=128,stages=2,min_blocks=1,producer_registers=24,summaries=on"),
    ] {
        let plan = |kernel: &Kernel| {
            let schedule: Schedule = knobs.parse().unwrap_or_else(|e| panic!("{knobs}: {e}"));
            let arch = Arch::named(arch).expect("in the table");
            plans(&instance(kernel), &schedule, arch).unwrap_or_else(|e| panic!("{arch}: {e}")).pop().expect("the main launch")
        };
        let (inside, outside) = reads_by_place(&plan(&columns(of_batch)));
        assert_eq!(inside, Vec::<String>::new(), "{arch}");
        let searched = |names: &[String]| names.iter().any(|name| name.ends_with("_meeting"));
        assert!(searched(&outside), "{arch}: {outside:?}");
        let (inside, outside) = reads_by_place(&plan(&columns(&of_heads)));
        assert!(searched(&inside) && !searched(&outside), "{arch}: {inside:?}, {outside:?}");
    }
}

#[test]
fn faults_in_loops_over_heads_are_found() {
    // Each barrier, of which the last says that the tiles of the next head may be copied.
    let plan = plan_of_heads("sm_80", "block_n=64,block_k=64,warps=4,stages=2");
    let mut barriers = 0;
    loop {
        let (mut seen, mut without) = (0, plan.clone());
        let removed = change_first(&mut without.roles[0].body, &mut |body, index| {
            let is_barrier = body[index].op == StmtOp::Barrier;
            let hit = is_barrier && seen == barriers;
            seen += usize::from(is_barrier);
            if hit {
                body.remove(index);
            }
            hit
        });
        if !removed {
            break;
        }
        barriers += 1;
        assert!(!faults_of(&without).is_empty(), "barrier {barriers} is not missed in {without}");
    }
    assert_eq!(barriers, 2, "one in each step, one behind each head: {plan}");

    // Tiles of a head that consumers keep, or acquire once for all heads.
    let wgmma = "block_n=64,block_k=64,warps=4,tensor_op=wgmma,copy=tma";
    let plan = plan_of_heads("sm_90a", wgmma);
    let computing = plan.roles.len() - 1;
    let kept = planted(plan.clone(), computing, &mut remove(|op| matches!(op, StmtOp::Release(_))));
    assert!(!kept.is_empty());
    let once = planted(plan, computing, &mut |body, index| {
        let StmtOp::Loop { body: heads, .. } = &mut body[index].op else { return false };
        let at = heads.iter().position(|s| matches!(s.op, StmtOp::Acquire { slot: Slot::Only, .. }));
        let acquired = heads.remove(at.expect("a tile of the head"));
        body.insert(index, acquired);
        true
    });
    assert!(!once.is_empty());
}

/// Gradients whose accumulators are too wide for a warp that has all columns of its rows: column
/// groups have a share each. All of them had no schedule once.
const WIDE: [(&str, &str, Elem, i64); 6] = [
    ("attention", "q,k,v", Elem::F32, 256),
    ("query_norm_attention", "q,weight", Elem::F32, 256),
    ("query_norm_attention", "q,weight", Elem::Bf16, 144),
    ("differential_attention", "q,k,v", Elem::Bf16, 160),
    ("rope_attention", "q,k,cos_q,sin_q", Elem::Bf16, 256),
    ("softcap_attention", "k,v", Elem::Bf16, 192),
];

/// The untuned choice, on the emulator.
#[test]
fn gradients_of_wide_heads_are_right() {
    let turn = Turn::of_run();
    for (number, (name, of, elem, d)) in WIDE.into_iter().enumerate() {
        let made = gradients(&Kernel::builtin(name).expect("built in"), of, "o");
        // Multiply-adds are the same on both.
        let archs = if elem == Elem::F32 { &["sm_80"][..] } else { &["sm_80", "sm_90a"] };
        for arch in turn.some_of(number, archs) {
            let sizes = [("B", 1), ("H", 2), ("G", 1), ("M", 37), ("N", 41), ("D", d), ("C", d / 2), ("E", 64)];
            judge_elements(elem, &made, arch, &sizes, "");
        }
    }
}
