//! Texts that people write and that once came out wrong or were refused, on the emulator against
//! float64: what stands in another order than in the built-in kernels, sums behind split loops,
//! gradients of functions with kinks. Needs NVRTC, no GPU.

use std::collections::BTreeMap;

use flashtile::toolchain::Toolchain;
use flashtile::tuner::{Chain, InputData, Slopes, judge, slopes};
use flashtile::verify::{HostArgument, HostTensor, run};
use flashtile::{Arch, BoundKernel, Device, Elem, Gradient, Kernel, LaunchOptions};
use flashtile_codegen::{Facts, as_generated, space};
use flashtile_dsl::grad::Form;
use flashtile_dsl::ir::{Direction, Param, ParamKind, SizeExpr, SourceText};
use flashtile_dsl::text::write;

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn sizes(all: &[(&str, i64)]) -> BTreeMap<String, i64> {
    all.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
}

/// The kernel is right on the emulator of an architecture under a schedule.
fn is_right(text: &str, consts: &[(&str, i64)], shape: &[(&str, i64)], arch: &str, schedule: &str) {
    is_right_in(Elem::Bf16, text, consts, shape, arch, schedule);
}

/// The same of another type.
fn is_right_in(elem: Elem, text: &str, consts: &[(&str, i64)], shape: &[(&str, i64)], arch: &str, schedule: &str) {
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch),
        schedule: Some(schedule.parse().expect("a schedule")),
        ..LaunchOptions::default()
    };
    let bound = kernel(text).bind(elem, consts.iter().copied()).expect("binds");
    let what = format!("{schedule} on {arch}\n{text}");
    let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|error| panic!("{error}\n{what}"));
    let verdicts = judge(&loaded, &sizes(shape), 3).unwrap_or_else(|error| panic!("{error}\n{what}"));
    for verdict in verdicts {
        assert!(verdict.passed() && !verdict.all_zero, "{verdict}\n{what}");
    }
}

/// Attention with a further tensor of each key; `PROBABILITIES` and `SUMS` are its steps.
const STREAMED: &str = "pub fn streamed<T: Element, const D: usize>(
    q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>,
    MORE scale: f32, o: &mut Tensor<T, (B, M, D)>,
) {
    let (b, i) = program(B, tiles(M));
    let q_i = load(q, [b, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = mask(dot(q_i, load(k, [b, j, ..]).t()) * scale, pos(i) + N - M >= pos(j));
        let m_new = max(m, rowmax(s));
        let reference = visible_or_zero(m_new);
        let alpha = exp(m - reference);
        PROBABILITIES
        SUMS
        m = m_new;
    }
    store(o, [b, i, ..], div_or_zero(acc, l));
}";

/// Its text with these steps, and the further tensors that they load.
fn streamed(probabilities: &str, sums: &str) -> String {
    let more = [
        ("load(x, ", "x: &Tensor<f32, (B, N)>, "),
        ("load(w, ", "w: &Tensor<f32, (B, M, N)>, "),
        ("load(r, ", "r: &Tensor<T, (B, N, D)>, "),
    ];
    let more: String = more.into_iter().filter(|(load, _)| sums.contains(load)).map(|(_, param)| param).collect();
    STREAMED.replace("MORE", &more).replace("PROBABILITIES", probabilities).replace("SUMS", sums)
}

const USUAL: [&str; 2] =
    ["let p = exp(s - reference);", "l = l * alpha + rowsum(p); acc = acc * alpha + dot(FACTOR.to::<T>(), load(v, [b, j, ..]));"];

/// What is loaded, or multiplied, behind the maximum of a step and enters its probabilities is that
/// of the step, whichever form the maximum has.
#[test]
fn what_stands_behind_the_row_maximum_is_of_the_same_step() {
    let factors = [
        "(p * load(x, [b, j]))",
        "(p * load(w, [b, i, j]))",
        "(p * (dot(q_i, load(r, [b, j, ..]).t()) * scale))",
        "(load(x, [b, j]) * p * load(w, [b, i, j]))",
    ];
    let hopper = "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=32";
    for factor in factors {
        let text = streamed(USUAL[0], &USUAL[1].replace("FACTOR", factor));
        for maximum in ["optimistic", "max_first", "first"] {
            let shape = [("B", 2), ("M", 37), ("N", 131)];
            let persistent = if maximum == "first" { ",persistent=static,min_blocks=1" } else { "" };
            let paths = [
                ("sm_80", "defaults,block_m=32,block_n=32,warps=2".to_owned()),
                ("sm_90a", format!("{hopper},overlap=off{persistent}")),
                ("sm_90a", format!("{hopper},overlap=on{persistent}")),
            ];
            for (arch, knobs) in paths.into_iter().skip(if maximum == "first" { 2 } else { 0 }) {
                is_right(&text, &[("D", 32)], &shape, arch, &format!("{knobs},running_max={maximum}"));
            }
        }
    }
}

/// Finite numbers for "hidden" (`docs/language.md`): inputs hold truth values, and hide rows whole.
#[test]
fn rows_that_large_numbers_hide_weigh_their_keys_alike() {
    let masked = "mask(dot(q_i, load(k, [b, j, ..]).t()) * scale, pos(i) + N - M >= pos(j))";
    let hopper = "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=32,overlap=on";
    for score in [
        "dot(q_i, load(k, [b, j, ..]).t()) * scale + (1.0 - load(keep, [b, j])) * -1e30",
        "(dot(q_i, load(k, [b, j, ..]).t()) + (1.0 - load(keep, [b, j])) * -3e37) * scale",
    ] {
        let text = streamed(USUAL[0], &USUAL[1].replace("FACTOR", "p"));
        let text = text.replace(masked, score).replace("scale: f32,", "keep: &Tensor<f32, (B, N)>, scale: f32,");
        for maximum in ["exact", "max_first", "optimistic"] {
            let paths = [("sm_80", "defaults,block_m=32,block_n=32,warps=2"), ("sm_90a", hopper)];
            for (arch, knobs) in paths {
                let shape = [("B", 3), ("M", 37), ("N", 131)];
                is_right(&text, &[("D", 32)], &shape, arch, &format!("{knobs},running_max={maximum}"));
            }
        }
    }
}

/// Probabilities that are rounded first, as in Triton's texts: both the sum and the product take
/// them so.
#[test]
fn rounded_probabilities_are_summed_and_multiplied() {
    let steps =
        ["let p = exp(s - reference).to::<T>();", "l = l * alpha + rowsum(p); acc = acc * alpha + dot(p, load(v, [b, j, ..]));"];
    let text = streamed(steps[0], steps[1]);
    for (arch, knobs) in [
        ("sm_80", "defaults,block_m=32,block_n=32,warps=2"),
        ("sm_80", "defaults,block_m=32,block_n=32,warps=2,running_max=optimistic"),
        ("sm_90a", "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=32,overlap=on,running_max=optimistic"),
        ("sm_90a", "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=32,running_max=max_first"),
    ] {
        is_right(&text, &[("D", 32)], &[("B", 2), ("M", 37), ("N", 131)], arch, knobs);
    }
}

/// A sum that the launch which merges the parts of a loop adds to is set to 0 before.
#[test]
fn sums_behind_split_loops_begin_at_zero() {
    let text = "pub fn totals(x: &Tensor<f32, (U, M, N)>, y: &mut Tensor<f32, (M)>) {
        let (u, i) = program(U, tiles(M));
        let mut sum = zeros(i);
        for j in tiles(N) {
            sum += rowsum(load(x, [u, i, j]));
        }
        add(y, [i], sum);
    }";
    let paths = [
        ("sm_80", "split_k=1"),
        ("sm_80", "split_k=3"),
        ("sm_80", "split_k=2,fixup=semaphore"),
        ("sm_90a", "split_k=2,fixup=cluster"),
    ];
    for (arch, parts) in paths {
        let knobs = format!("defaults,tensor_op=ffma,block_m=32,block_n=32,warps=2,{parts}");
        is_right(text, &[], &[("U", 3), ("M", 37), ("N", 131)], arch, &knobs);
    }
}

/// Operands whose elements a mask hides, in front of products that a launch ahead computes or not: what
/// is loaded of one holds 0 there.
#[test]
fn what_masks_hide_of_operands_stays_hidden() {
    let right = "pub fn seen<T: Element, const D: usize>(
        q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, lens: &Tensor<i32, (B)>,
        o: &mut Tensor<T, (B, M, D)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let q_i = load(q, [b, i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let p = tanh(dot(q_i, load(k, [b, j, ..]).t()) * 0.1);
            let v_j = mask(load(v, [b, j, ..]) * 0.5, pos(j) < load(lens, [b]));
            acc += dot(p.to::<T>(), v_j.to::<T>());
        }
        store(o, [b, i, ..], acc);
    }";
    let left = "pub fn seen<T: Element, const D: usize>(
        a: &Tensor<T, (M, N)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(load(a, [i, j]), pos(i) >= pos(j));
            acc += dot((s * 2.0).to::<T>(), load(v, [j, ..]));
        }
        store(o, [i, ..], acc);
    }";
    let hopper = "defaults,tensor_op=wgmma,copy=tma,warps=4,block_m=64,block_n=64";
    for ahead in ["off", "b"] {
        let shape = [("B", 2), ("M", 65), ("N", 80)];
        is_right(right, &[("D", 32)], &shape, "sm_80", &format!("defaults,block_m=32,block_n=32,warps=2,precompute={ahead}"));
    }
    is_right(right, &[("D", 64)], &[("B", 2), ("M", 65), ("N", 80)], "sm_90a", &format!("{hopper},precompute=b"));
    for ahead in ["off", "ab"] {
        is_right(
            left,
            &[("D", 32)],
            &[("M", 65), ("N", 80)],
            "sm_80",
            &format!("defaults,block_m=32,warps=2,precompute={ahead}"),
        );
    }
}

/// An operand whose maximum is taken too: what pads its tiles is 0 for the product, and less than
/// all for the maximum.
#[test]
fn loaded_operands_have_maxima() {
    let text = "pub fn both<T: Element, const D: usize>(
        x: &Tensor<T, (M, N)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>, top: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let mut acc = zeros((i, D));
        let mut m = full(i, -INF);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]).to::<f32>() - 9.0;
            let y_ij = load(x, [i, j]).to::<f32>();
            acc += dot(y_ij.to::<T>(), load(v, [j, ..]));
            m = max(m, max(rowmax(x_ij), rowmax(y_ij) - 20.0));
        }
        store(o, [i, ..], acc);
        store(top, [i], m);
    }";
    for (arch, knobs) in
        [("sm_80", "defaults,block_m=32,block_n=32,warps=2"), ("sm_80", "defaults,block_m=64,block_n=64,warps=4")]
    {
        is_right(text, &[("D", 32)], &[("M", 65), ("N", 40)], arch, knobs);
    }
}

/// The same of rows whose number of columns is no multiple of a step, and of what is made of them.
#[test]
fn operands_are_made_of_rows_that_have_maxima() {
    let steps = [
        ("load(q, [i, ..])", "store(p, [i, ..], dot((x * 0.5).to::<T>(), w_a)); store(o, [i], rowmax(x.to::<f32>()));"),
        ("tanh(load(q, [i, ..]).to::<f32>())", "store(p, [i, ..], dot((x * 0.5).to::<T>(), w_a)); store(o, [i], rowmax(x));"),
        ("tanh(load(q, [i, ..]).to::<f32>())", "store(o, [i], rowmax(x)); store(p, [i, ..], dot((x * 0.5).to::<T>(), w_a));"),
        (
            "tanh(load(q, [i, ..]).to::<f32>())",
            "let y = x * 0.5; store(p, [i, ..], dot(y.to::<T>(), w_a)); store(o, [i], rowmax(x - 2.0) + rowmax(y));",
        ),
        (
            "load(q, [i, ..])",
            "let y = x.to::<f32>() * 0.5; store(o, [i], rowmax(y - 9.0)); store(p, [i, ..], dot((y * 2.0).to::<T>(), w_a));",
        ),
    ];
    for (x, step) in steps {
        let text = format!(
            "pub fn rows<T: Element, const D: usize>(
                q: &Tensor<T, (M, D)>, w: &Tensor<T, (D, 16)>, o: &mut Tensor<f32, (M)>, p: &mut Tensor<f32, (M, 16)>,
            ) {{
                let i = program(tiles(M));
                let x = {x};
                let w_a = load(w, [.., ..]);
                {step}
            }}"
        );
        is_right(&text, &[("D", 40)], &[("M", 37)], "sm_80", "defaults,block_m=32,warps=2");
    }
}

/// Sums of which masks hide parts in different places, and the inputs whose gradients are asked for.
const HIDDEN_PARTS: [(&str, &str); 6] = [
    ("let s = PRODUCT; t += rowsum(exp(mask(abs(s), pos(i) >= pos(j))) + s * 0.25);", "q,k"),
    ("let s = PRODUCT; t += rowsum(max(mask(load(x, [i, j]), pos(i) >= pos(j)), s)) + rowsum(s * s);", "q,k"),
    ("let a = load(x, [i, j]); let b = select(pos(j) < 20, mask(a, pos(i) >= pos(j)), a); t += rowsum(b * a + a);", "x"),
    ("t += rowsum(load(y, [i, j]) * mask(load(x, [i, j]), pos(i) >= pos(j)));", "y,x"),
    ("let d = mask(load(x, [i, j]), pos(i) >= pos(j)); t += rowsum(ln(d * d + 0.5));", "x"),
    ("t += rowsum(mask(PRODUCT, pos(i) >= pos(j)));", "q,k"),
];

#[test]
fn gradients_of_sums_of_which_parts_are_hidden_are_right() {
    for (step, of) in HIDDEN_PARTS {
        let used =
            |name: &str| step.contains(&format!("load({name},")) || (["q", "k"].contains(&name) && step.contains("PRODUCT"));
        let params: String = [("q", "(M, D)"), ("k", "(N, D)"), ("x", "(M, N)"), ("y", "(M, N)")]
            .into_iter()
            .filter(|(name, _)| used(name))
            .map(|(name, shape)| format!("{name}: &Tensor<f32, {shape}>, "))
            .collect();
        let is_product = used("q");
        let generic = if is_product { "<const D: usize>" } else { "" };
        let first = if is_product { "let q_i = load(q, [i, ..]);" } else { "" };
        let step = step.replace("PRODUCT", "dot(q_i, load(k, [j, ..]).t())");
        let text = format!(
            "pub fn parts{generic}({params}o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M)); {first}
                let mut t = zeros(i);
                for j in tiles(N) {{ {step} }}
                store(o, [i], t);
            }}"
        );
        let kernel = kernel(&text);
        let of: Vec<&str> = of.split(',').collect();
        let gradient = kernel.gradient_in(Form::Plain, &of, &["o"]).unwrap_or_else(|errors| panic!("{errors}"));
        let consts = if is_product { sizes(&[("D", 16)]) } else { BTreeMap::new() };
        let found = slopes(&gradient, &consts, &sizes(&[("M", 33), ("N", 40)]), 3, &InputData::default()).expect("runs");
        let Slopes::Of(found) = found else { panic!("{found:?} of\n{text}") };
        assert_eq!(found.len(), of.len());
        found.iter().for_each(|slope| assert!(slope.passed(), "{slope} of\n{text}"));
    }
}

/// A factor of elements of which a mask hides some, in a sum and in a store, which writes these too.
/// Each loads the factor by itself.
#[test]
fn stores_count_what_masks_hide_and_sums_do_not() {
    for (shape, place) in [("(M, N)", "[i, j]"), ("(N)", "[j]"), ("(M)", "[i]")] {
        for sums in [true, false] {
            let sum = if sums { format!("acc += rowsum(e * load(b, {place}));") } else { "acc += rowsum(e);".to_owned() };
            let text = format!(
                "pub fn parts(
                    x: &Tensor<f32, (M, N)>, b: &Tensor<f32, {shape}>,
                    p: &mut Tensor<f32, (M, N)>, s: &mut Tensor<f32, (M)>,
                ) {{
                    let i = program(tiles(M));
                    let mut acc = zeros(i);
                    for j in tiles(N) {{
                        let e = exp(mask(load(x, [i, j]), pos(i) >= pos(j))) + 1.0;
                        store(p, [i, j], e * load(b, {place}));
                        {sum}
                    }}
                    store(s, [i], acc);
                }}"
            );
            slopes_pass(&text, &["b"], &["p", "s"], &[], &[("M", 33), ("N", 40)]);
        }
    }
    // One load that is read for both.
    for (shape, place) in [("(M, N)", "[i, j]"), ("(N)", "[j]"), ("(M)", "[i]")] {
        for (value, sum) in [
            ("(exp(mask(load(x, [i, j]), pos(i) >= pos(j))) + 1.0) * factor", "eb"),
            ("max(exp(mask(load(x, [i, j]), pos(i) >= pos(j))), 0.5) * factor", "load(x, [i, j]) * factor"),
            ("exp(mask(load(x, [i, j]), pos(i) >= pos(j))) + factor", "exp(mask(load(x, [i, j]), pos(j) % 3 != 0)) * eb"),
        ] {
            let text = format!(
                "pub fn parts(
                    x: &Tensor<f32, (M, N)>, b: &Tensor<f32, {shape}>,
                    p: &mut Tensor<f32, (M, N)>, s: &mut Tensor<f32, (M)>,
                ) {{
                    let i = program(tiles(M));
                    let mut acc = zeros(i);
                    for j in tiles(N) {{
                        let factor = load(b, {place}) + 0.0 * load(x, [i, j]);
                        let eb = {value};
                        store(p, [i, j], eb);
                        acc += rowsum({sum});
                    }}
                    store(s, [i], acc);
                }}"
            );
            slopes_pass(&text, &["b"], &["p", "s"], &[], &[("M", 33), ("N", 40)]);
        }
    }
}

/// Gradients are right by finite differences of the forward kernel.
fn slopes_pass(text: &str, of: &[&str], from: &[&str], consts: &[(&str, i64)], shape: &[(&str, i64)]) {
    let gradient = kernel(text).gradient_in(Form::Plain, of, from).unwrap_or_else(|errors| panic!("{errors} of\n{text}"));
    let found = slopes(&gradient, &sizes(consts), &sizes(shape), 3, &InputData::default()).expect("runs");
    let Slopes::Of(found) = found else { panic!("{found:?} of\n{text}") };
    found.iter().for_each(|slope| assert!(slope.passed(), "{slope} of\n{text}"));
}

/// A mask hides a factor or a term of what is stored of each pair: the others count there, in
/// products too.
#[test]
fn products_of_stored_pairs_count_what_masks_hide() {
    let before = "let (b, i) = program(B, tiles(M));
        let q_i = load(q, [b, i, ..]);
        for j in tiles(N) {
            let x = dot(q_i, load(k, [b, j, ..]).t()) * 0.3;";
    for (more, stores) in [
        // Scores, and weights of the pairs that see each other.
        ("", "store(y, [b, i, j], x); store(w, [b, i, j], exp(mask(x, pos(i) >= pos(j))));"),
        ("", "store(y, [b, i, j], exp(mask(x, pos(i) >= pos(j))) + 0.5 * x); store(w, [b, i, j], x * x);"),
        // A hidden factor alone.
        (
            "e: &Tensor<f32, (M, N)>, ",
            "store(y, [b, i, j], x * (1.0 + exp(mask(load(e, [i, j]), pos(i) >= pos(j))))); store(w, [b, i, j], tanh(x));",
        ),
        (
            "e: &Tensor<f32, (M, N)>, ",
            "store(y, [b, i, j], select(pos(j) % 2 == 0, exp(mask(x * load(e, [i, j]), pos(i) >= pos(j))), x * 2.0));
             store(w, [b, i, j], 1.0 / (1.0 + exp(-mask(x, pos(j) < 17))));",
        ),
    ] {
        let text = format!(
            "pub fn pairs<T: Element, const D: usize>(
                q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, {more}y: &mut Tensor<T, (B, M, N)>, w: &mut Tensor<T, (B, M, N)>,
            ) {{ {before} {stores} }} }}"
        );
        slopes_pass(&text, &["q", "k"], &["y", "w"], &[("D", 16)], &[("B", 2), ("M", 14), ("N", 30)]);
    }
}

/// Sums that are as large as there are columns, and divided behind the loop: the forward kernel of
/// the gradient keeps them in f32, where 16 bits have no room for them.
#[test]
fn plain_sums_of_gradients_have_room() {
    let text = "pub fn normed<T: Element, const D: usize>(
            q: &Tensor<T, (B, N, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, o: &mut Tensor<T, (B, N, D)>,
        ) {
            let (b, i) = program(B, tiles(N));
            let q_i = load(q, [b, i, ..]);
            let mut l = zeros(i);
            let mut acc = zeros((i, D));
            for j in tiles(N) {
                let s = select(pos(i) >= pos(j), dot(q_i, load(k, [b, j, ..]).t()), 0.0);
                l += rowsum(s);
                acc += dot(s.to::<T>(), load(v, [b, j, ..]));
            }
            store(o, [b, i, ..], acc / (l + 0.001));
        }";
    let gradient = kernel(text).gradient_in(Form::Plain, &["q", "k", "v"], &["o"]).expect("has one");
    let sum = gradient.forward.ir().params.values().find(|param| param.name == "acc_sum").expect("a sum");
    let ParamKind::Tensor(sum) = &sum.kind else { panic!("a tensor") };
    assert_eq!(sum.elem, Elem::F32);
    let bound = [&gradient.forward].into_iter().chain(&gradient.backward).map(|kernel| kernel.bind(Elem::F16, [("D", 64)]));
    let kernels: Vec<_> = bound.collect::<flashtile::Result<_>>().expect("binds");
    let data = ["q", "k", "v"].map(|name| format!("{name}:range=1..3").parse::<InputData>().expect("data").0);
    let data = InputData(data.into_iter().flatten().collect());
    let mut chain = Chain::new(kernels.clone(), &sizes(&[("B", 1), ("N", 200)]), 0, &data).expect("fits");
    for kernel in &kernels {
        for verdict in chain.judge(&kernel.on(&Device::cpu()).expect("loads")).expect("runs") {
            assert!(verdict.passed() && !verdict.compares_nothing(), "{verdict}");
        }
    }
}

/// Texts whose functions have kinks, with the inputs whose gradients are asked for. Loaded numbers
/// of 16 bits meet literals.
const KINKS: [(&str, &str); 7] = [
    // Choices between values that meet.
    (
        "pub fn leaky<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M)>) {
            let i = program(tiles(M));
            let mut s = zeros(i);
            for j in tiles(N) {
                let x_ij = load(x, [i, j]).to::<f32>();
                s += rowsum(select(x_ij > 0.0, x_ij, 0.2 * x_ij));
            }
            store(y, [i], s);
        }",
        "x",
    ),
    (
        "pub fn elu<T: Element>(x: &Tensor<T, (M, N)>, g: &Tensor<f32, (M)>, y: &mut Tensor<T, (M)>) {
            let i = program(tiles(M));
            let g_i = load(g, [i]);
            let mut s = zeros(i);
            for j in tiles(N) {
                let z = load(x, [i, j]) * g_i;
                s += rowsum(select(g_i < z, z * z, g_i * z));
                s += rowsum(select(z > 0.0, z, exp(z) - 1.0));
            }
            store(y, [i], s);
        }",
        "x,g",
    ),
    (
        "pub fn l1<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M)>) {
            let i = program(tiles(M));
            let mut s = zeros(i);
            for j in tiles(N) { s += rowsum(abs(load(x, [i, j]))); }
            store(y, [i], s);
        }",
        "x",
    ),
    (
        "pub fn relu<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            store(y, [i, j], max(load(x, [i, j]), 0.0));
        }",
        "x",
    ),
    (
        "pub fn clamped<T: Element>(x: &Tensor<T, (M, N)>, b: &Tensor<T, (N)>, y: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            store(y, [i, j], min(max(load(x, [i, j]) + load(b, [j]), -0.5), 1.5));
        }",
        "x,b",
    ),
    (
        "pub fn hidden<T: Element>(x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, b: &Tensor<T, (N)>, y: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            let mut a = zeros((i, j));
            for k in tiles(K) { a += dot(load(x, [i, k]), load(w, [k, j])); }
            let z = max(a + load(b, [j]), 0.0);
            store(y, [i, j], z * z);
        }",
        "x,w,b",
    ),
    (
        "pub fn gated<T: Element, const D: usize>(
            q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, gate: &Tensor<T, (B, M)>,
            o: &mut Tensor<T, (B, M, D)>,
        ) {
            let (b, i) = program(B, tiles(M));
            let mut acc = zeros((i, D));
            for j in tiles(N) {
                let s = max(dot(load(q, [b, i, ..]), load(k, [b, j, ..]).t()), 0.0);
                acc += dot((s * s).to::<T>(), load(v, [b, j, ..]));
            }
            store(o, [b, i, ..], acc * abs(load(gate, [b, i])));
        }",
        "q,k,v,gate",
    ),
];

#[test]
fn functions_with_kinks_have_gradients() {
    let shape = [("B", 2), ("M", 37), ("N", 67), ("K", 45)];
    for (text, of) in KINKS {
        let kernel = kernel(text);
        let given: Vec<&str> = of.split(',').collect();
        let output = if text.contains("o: &mut") { "o" } else { "y" };
        let gradient = kernel.gradient_in(Form::Plain, &given, &[output]).unwrap_or_else(|errors| panic!("{errors}"));
        let has = |name: &str| kernel.ir().size_named(name).is_some();
        let shape: Vec<(&str, i64)> = shape.into_iter().filter(|(name, _)| has(name)).collect();
        let consts = if has("D") { sizes(&[("D", 16)]) } else { BTreeMap::new() };
        let found = slopes(&gradient, &consts, &sizes(&shape), 5, &InputData::default()).expect("runs");
        let Slopes::Of(found) = found else { panic!("{found:?} of\n{text}") };
        assert_eq!(found.len(), given.len());
        found.iter().for_each(|slope| assert!(slope.passed(), "{slope} of\n{text}"));
        // A gradient of half the size is far off.
        found.iter().for_each(|slope| {
            assert!((slope.found / 2.0 - slope.slope).abs() > slope.allowed || slope.slope.abs() < slope.allowed)
        });
    }
}

/// Texts with sums over rows, the inputs whose gradients are asked for, and the outputs whose
/// gradients are given.
const COLUMN_SUMS: [(&str, &str, &str); 5] = [
    (
        "pub fn counted<T: Element>(
            x: &Tensor<T, (B, M, N)>, w: &Tensor<f32, (N)>, y: &mut Tensor<T, (B, M, N)>, s: &mut Tensor<f32, (B, N)>,
        ) {
            let (b, i) = program(B, tiles(M));
            for j in tiles(N) {
                let t = load(x, [b, i, j]) * load(w, [j]);
                store(y, [b, i, j], t);
                add(s, [b, j], 2.0 * rowsum((t * t).t()));
            }
        }",
        "x,w",
        "y,s",
    ),
    (
        "pub fn turned<T: Element, const D: usize>(
            x: &Tensor<T, (M, N)>, w: &Tensor<T, (M, D)>, y: &mut Tensor<f32, (N, D)>,
        ) {
            let i = program(tiles(M));
            let w_i = load(w, [i, ..]);
            for j in tiles(N) {
                add(y, [j, ..], dot(load(x, [i, j]).t(), w_i));
            }
        }",
        "x,w",
        "y",
    ),
    (
        "pub fn gathers<T: Element, const D: usize>(
            q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, w: &Tensor<T, (M, D)>, y: &mut Tensor<f32, (N, D)>,
        ) {
            let i = program(tiles(M));
            let (q_i, w_i) = (load(q, [i, ..]), load(w, [i, ..]));
            for j in tiles(N) {
                let p = tanh(dot(q_i, load(k, [j, ..]).t()) * 0.25);
                add(y, [j, ..], dot(p.to::<T>().t(), w_i));
            }
        }",
        "q,k,w",
        "y",
    ),
    (
        "pub fn squares<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, y: &mut Tensor<f32, (D)>) {
            let i = program(tiles(M));
            let x_i = load(x, [i, ..]);
            add(y, [..], rowsum((x_i * x_i).t()));
        }",
        "x",
        "y",
    ),
    (
        "pub fn mass<T: Element, const D: usize>(
            q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, lse: &Tensor<f32, (B, M)>,
            o: &mut Tensor<T, (B, M, D)>, mass: &mut Tensor<f32, (B, N)>,
        ) {
            let (b, i) = program(B, tiles(M));
            let (q_i, r) = (load(q, [b, i, ..]), load(lse, [b, i]));
            let mut acc = zeros((i, D));
            for j in tiles(N) {
                let p = exp(dot(q_i, load(k, [b, j, ..]).t()) * 0.25 - r);
                acc += dot(p.to::<T>(), load(v, [b, j, ..]));
                add(mass, [b, j], rowsum(p.t()));
            }
            store(o, [b, i, ..], acc);
        }",
        "q,k,v,lse",
        "o,mass",
    ),
];

#[test]
fn sums_over_rows_have_gradients() {
    let shape = [("B", 2), ("M", 37), ("N", 67)];
    for (text, of, from) in COLUMN_SUMS {
        let kernel = kernel(text);
        let (of, from): (Vec<&str>, Vec<&str>) = (of.split(',').collect(), from.split(',').collect());
        let mut gradient = kernel.gradient(&of, &from).unwrap_or_else(|errors| panic!("{errors}"));
        let has = |name: &str| kernel.ir().size_named(name).is_some();
        let shape = sizes(&shape.into_iter().filter(|(name, _)| has(name)).collect::<Vec<_>>());
        let consts = if has("D") { sizes(&[("D", 16)]) } else { BTreeMap::new() };
        let slopes_of = |gradient: &Gradient| match slopes(gradient, &consts, &shape, 5, &InputData::default()) {
            Ok(Slopes::Of(found)) => found,
            other => panic!("{other:?} of\n{text}"),
        };
        let found = slopes_of(&gradient);
        assert_eq!(found.len(), of.len());
        found.iter().for_each(|slope| assert!(slope.passed(), "{slope} of\n{text}"));
        // Kernels that leave out what an output takes are found.
        if let [first, _] = from[..] {
            gradient = kernel.gradient(&of, &[first]).expect("has one");
            gradient.from = from.iter().map(ToString::to_string).collect();
            assert!(slopes_of(&gradient).iter().any(|slope| !slope.passed()), "{text}");
        }
    }
}

/// What `div_or_zero` gives where the divisor is 0 has the gradient 0: rows whose scores are all
/// below 0, and rows that see nothing.
#[test]
fn rows_without_a_divisor_have_gradients_of_zero() {
    let text = "pub fn weighted<T: Element>(p: &Tensor<T, (M, N)>, v: &Tensor<T, (N, 16)>, o: &mut Tensor<T, (M, 16)>) {
        let i = program(tiles(M));
        let mut l = zeros(i);
        let mut acc = zeros((i, 16));
        for j in tiles(N) {
            let s = max(load(p, [i, j]).to::<f32>(), 0.0);
            l += rowsum(s);
            acc += dot(s.to::<T>(), load(v, [j, ..]));
        }
        store(o, [i, ..], div_or_zero(acc, l));
    }";
    let gradient = kernel(text).gradient(&["p", "v"], &["o"]).expect("has one");
    for (data, zero) in [("p:range=-2..-1", true), ("p:range=-2..0.2", false)] {
        let data: InputData = data.parse().expect("data");
        let found = slopes(&gradient, &BTreeMap::new(), &sizes(&[("M", 19), ("N", 3)]), 5, &data).expect("runs");
        let Slopes::Of(found) = found else { panic!("{found:?}") };
        found.iter().for_each(|slope| assert!(slope.passed() && (slope.found == 0.0) == zero, "{slope}, {data:?}"));
    }
}

/// Steps lead past many kinks where what has them is a sum of products: a shorter one tells.
#[test]
fn slopes_of_sums_with_kinks_are_found() {
    let text = "pub fn hidden<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, w1: &Tensor<T, (F, D)>, w2: &Tensor<T, (F, D)>, y: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let x_i = load(x, [i, ..]);
        let mut acc = zeros((i, D));
        for f in tiles(F) {
            let h = max(dot(x_i, load(w1, [f, ..]).t()), 0.0);
            acc += dot(h.to::<T>(), load(w2, [f, ..]));
        }
        store(y, [i, ..], acc);
    }";
    let gradient = kernel(text).gradient_in(Form::Plain, &["x", "w1"], &["y"]).expect("has one");
    for seed in 0..6 {
        let shape = sizes(&[("M", 130), ("F", 129)]);
        let found = slopes(&gradient, &sizes(&[("D", 40)]), &shape, seed, &InputData::default()).expect("runs");
        let Slopes::Of(found) = found else { panic!("{found:?}") };
        found.iter().for_each(|slope| assert!(slope.passed(), "{slope}, seed {seed}"));
    }
}

/// Scores of several softmaxes that are all computed first: each has its turn, so that their tiles
/// need not be in registers at once.
#[test]
fn softmaxes_of_one_loop_have_turns() {
    let usual = Kernel::builtin("differential_attention").expect("built in");
    let scores = "        let s2 = mask(dot(q2, load(k, [b, h, j, 1, ..]).t()) * scale, pos(i) + N - M >= pos(j));\n";
    let maxima = "        let m_new2 = max(m2, rowmax(s2));\n";
    let text = write(usual.ir()).expect("has a text");
    assert!(text.contains(scores) && text.contains(maxima), "{text}");
    let first = text.replace(scores, "").replace("        let m_new = ", &format!("{scores}        let m_new = "));
    let both = first.replace(maxima, "").replace("        let m_ref = ", &format!("{maxima}        let m_ref = "));
    let consts = [("D", 128), ("E", 256)];
    let generated = |kernel: &Kernel| {
        let bound = kernel.bind(Elem::Bf16, consts).expect("binds");
        as_generated(bound.ir(), bound.binding()).renumbered().without_spans()
    };
    let usual = kernel(&text);
    let wanted = generated(&usual);
    assert_eq!(wanted, usual.ir().renumbered().without_spans(), "they have turns in this text");
    let wanted = wanted.to_string();
    for text in [&first, &both] {
        assert_ne!(kernel(text).ir().renumbered().without_spans().to_string(), wanted);
        assert_eq!(generated(&kernel(text)).to_string(), wanted, "{text}");
        let shape = [("B", 1), ("H", 2), ("M", 37), ("N", 70)];
        is_right(text, &[("D", 32), ("E", 64)], &shape, "sm_80", "block_m=32,block_n=32,warps=2");
    }
    // Accumulators too wide for the warps of sm_80 are shared.
    for arch in ["sm_80", "sm_90a"] {
        let instance = kernel(&both).bind(Elem::Bf16, consts).expect("binds");
        let instance = instance.instance(Facts::best(instance.ir()));
        assert!(space(&instance, Arch::named(arch).expect("in the table")).len() > 3, "{arch}");
    }
}

/// A softmax that goes on from loop to loop, as over the pages of keys: the scale of its scores is
/// folded in both loops.
const PAGES: &str = "pub fn pages<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (G, N, D)>, v: &Tensor<T, (G, N, D)>, scale: f32, o: &mut Tensor<f32, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for g in 0..G {
        for j in tiles(N) {
            let s = dot(q_i, load(k, [g, j, ..]).t()) * scale;
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let p = exp(s - m_new);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [g, j, ..]));
            m = m_new;
        }
    }
    store(o, [i, ..], acc / l);
}";

/// Chunked linear attention: a tile of queries is an operand in its loop and in one within it.
const CHUNKS: &str = "pub fn chunks<T: Element, const D: usize>(
    q: &Tensor<T, (H, C, D, D)>, k: &Tensor<T, (H, C, D, D)>, v: &Tensor<T, (H, C, D, D)>, o: &mut Tensor<T, (H, C, D, D)>,
) {
    let h = program(H);
    let mut state = zeros((D, D));
    for c in 0..C {
        for i in tiles(D) {
            let q_i = load(q, [h, c, i, ..]);
            let mut acc = dot(q_i, state.to::<T>());
            for j in tiles(D) {
                acc += dot(dot(q_i, load(k, [h, c, j, ..]).t()).to::<T>(), load(v, [h, c, j, ..]));
            }
            store(o, [h, c, i, ..], acc);
        }
        for j in tiles(D) {
            state += dot(load(k, [h, c, j, ..]).t(), load(v, [h, c, j, ..]));
        }
    }
}";

#[test]
fn loops_in_loops_are_right() {
    let wgmma = "tensor_op=wgmma,copy=tma,block_m=64,warps=4,block_n=64";
    for (arch, schedule) in [("sm_90a", wgmma), ("sm_80", "block_m=32,block_n=32,warps=2")] {
        is_right(PAGES, &[("D", 64)], &[("M", 70), ("G", 3), ("N", 130)], arch, schedule);
    }
    for (arch, schedule) in [("sm_90a", wgmma), ("sm_80", "block_n=32")] {
        let schedule = &format!("{schedule},precompute=ab");
        is_right(CHUNKS, &[("D", 64)], &[("H", 2), ("C", 3)], arch, schedule);
    }
}

/// A right operand of multiply-adds that is computed from products: the state that a loop carries.
#[test]
fn computed_right_operands_of_32_bits_are_right() {
    let chunks = CHUNKS.replace("(H, C, D, D)", "(H, C, S, D)").replace("tiles(D)", "tiles(S)");
    for arch in ["sm_80", "sm_90a"] {
        for (schedule, length) in [("block_m=32,block_n=32,warps=2", 70), ("block_m=32,block_n=16,warps=4,column_groups=2", 20)] {
            let schedule = format!("tensor_op=ffma,precompute=ab,{schedule}");
            is_right_in(Elem::F32, &chunks, &[("D", 32)], &[("H", 2), ("C", 3), ("S", length)], arch, &schedule);
        }
    }
}

/// Where code exists but does not fit, a refusal says by how much, and not what other schedules lack.
#[test]
fn refusals_name_what_a_block_lacks() {
    let chunks = CHUNKS.replace("(H, C, D, D)", "(H, C, S, D)").replace("tiles(D)", "tiles(S)");
    let bound = kernel(&chunks).bind(Elem::Bf16, [("D", 128)]).expect("binds");
    let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named("sm_80"), ..LaunchOptions::default() };
    let loaded = bound.on_with(&Device::emulator(), options).expect("is loaded");
    let refused = judge(&loaded, &sizes(&[("H", 1), ("C", 2), ("S", 64)]), 3).expect_err("does not fit").to_string();
    assert!(refused.contains("bytes of shared memory, a block has"), "{refused}");
    assert!(!refused.contains("transposed"), "{refused}");
}

/// Arguments of a kernel without scalars: small numbers.
fn small_numbers(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>) -> Vec<HostArgument> {
    let ir = kernel.ir();
    let argument = |param: &Param| {
        let ParamKind::Tensor(tensor) = &param.kind else { panic!("`{}` is a scalar", param.name) };
        let extent = |size: &SizeExpr| size.eval(|s| sizes.get(ir.size_name(s)).copied()).expect("every size is given");
        let shape: Vec<usize> = tensor.shape.iter().map(|size| extent(size) as usize).collect();
        let values: Vec<f64> = (0..shape.iter().product()).map(|n: usize| (n as f64).sin() / 16.0).collect();
        let host = HostTensor::from_f64(kernel.binding().elem(ir, tensor.elem), &shape, &values);
        if tensor.direction == Direction::In { HostArgument::Input(host) } else { HostArgument::Output(host) }
    };
    ir.params.values().map(argument).collect()
}

/// A factor that is no number for pairs that the mask behind it hides does no harm: the gradients of
/// what is seen are numbers, as the text's own results are.
#[test]
fn gradients_know_nothing_of_factors_of_hidden_pairs() {
    for factor in [
        "* sqrt((pos(i) - pos(j)).to::<f32>() + 0.5)",
        "/ (pos(i) - pos(j) + 1).to::<f32>()",
        "* exp(-3.0 * (pos(i) - pos(j)).to::<f32>())",
    ] {
        let text = format!(
            "pub fn factors<T: Element, const D: usize>(
                q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (M)>,
            ) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut m = full(i, -INF);
                let mut l = zeros(i);
                for j in tiles(N) {{
                    let s = dot(q_i, load(k, [j, ..]).t()) {factor};
                    let s = mask(s, pos(i) >= pos(j));
                    let m_new = max(m, rowmax(s));
                    let reference = visible_or_zero(m_new);
                    l = l * exp(m - reference) + rowsum(exp(s - reference));
                    m = m_new;
                }}
                store(o, [i], m + ln(l));
            }}"
        );
        let gradient = kernel(&text).gradient(&["q", "k"], &["o"]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for (arch, own) in gradient.backward.iter().flat_map(|own| [("sm_80", own), ("sm_90a", own)]) {
            let bound = own.clone().bind(Elem::F32, [("D", 16)]).expect("binds");
            let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch), ..LaunchOptions::default() };
            let loaded = bound.on_with(&Device::emulator(), options).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let mut arguments = small_numbers(&bound, &sizes(&[("M", 65), ("N", 65), ("D", 16)]));
            run(&loaded, &mut arguments).unwrap_or_else(|error| panic!("{error}\n{text}"));
            for argument in &arguments {
                if let HostArgument::Output(o) = argument {
                    assert!(o.to_f64().iter().all(|x| x.is_finite()), "{} on {arch}\n{text}", own.name());
                }
            }
        }
    }
}

/// Terms that a sum in memory takes in unchanged: the emulator takes no such launch for one that waits.
#[test]
fn terms_that_are_too_small_to_count_are_right() {
    let text = "pub fn sums(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        for t in 0..N {
            add(y, [i], load(x, [t]) * 0.000000001 + 0.0 * pos(i) + select(t == 0, 1.0, 0.0));
        }
    }";
    for arch in ["sm_80", "sm_90a"] {
        is_right(text, &[], &[("M", 20), ("N", 30)], arch, "stages=1");
    }
}

/// What an `add` in a loop over tiles takes does not depend on how many tiles came before.
#[test]
fn sums_of_what_a_loop_carries_are_refused() {
    let text = |added: &str| {
        format!(
            "pub fn totals(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M)>, t: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut m = full(i, -INF);
                for j in tiles(N) {{
                    let s = load(x, [i, j]);
                    m = max(m, rowmax(s));
                    add(t, [i], rowsum({added}));
                }}
                store(y, [i], m);
            }}"
        )
    };
    let of = |added: &str| {
        let source = SourceText { name: "kernel.rs".into(), text: text(added).into(), first_line: 1 };
        Kernel::from_source(&source).map(|_| ()).map_err(|errors| errors.to_string())
    };
    assert_eq!(of("exp(s)"), Ok(()));
    let refused = of("exp(s - m)").expect_err("it depends on the tiles");
    assert!(refused.contains("what is added for a tile of `j` depends on the tiles before it"), "{refused}");
}

/// Products in a loop over single positions that loads vectors of each position too: `VECTORS` are
/// their tensors, `TERM` is what the loop adds.
const OVER_POSITIONS: &str = "pub fn scaled<T: Element>(
    x: &Tensor<T, (M, C, 64)>, w: &Tensor<T, (N, C, 64)>, VECTORS, y: &mut Tensor<f32, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let mut a = zeros((i, j));
    for p in 0..C {
        let product = dot(load(x, [i, p, ..]), load(w, [j, p, ..]).t());
        a += TERM;
    }
    store(y, [i, j], a);
}";

/// Heads that are mixed in a loop over single positions, within a loop over tiles.
const MIXED: &str = "pub fn mixed<T: Element, const D: usize>(
    q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (H, N, D)>, v: &Tensor<T, (H, N, D)>,
    lse: &Tensor<f32, (H, M)>, mix: &Tensor<f32, (H, H)>, scale: f32, o: &mut Tensor<T, (H, M, D)>,
) {
    let (h, i) = program(H, tiles(M));
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let mut p = zeros((i, j));
        for t in 0..H {
            let s = dot(load(q, [t, i, ..]), load(k, [t, j, ..]).t()) * scale;
            p += load(mix, [h, t]) * exp(s - load(lse, [t, i]));
        }
        acc = acc + dot(p.to::<T>(), load(v, [h, j, ..]));
    }
    store(o, [h, i, ..], acc);
}";

/// Loads of several positions are made ahead (`codegen/src/emit/ahead.rs`); the copies of the
/// others' tiles are waited for all the same. Until 2026-12-01 these waits were left out.
#[test]
fn products_wait_for_their_copies_in_loops_that_load_vectors_ahead() {
    let shape = [("M", 67), ("N", 75), ("C", 3)];
    let by_copies = [("sm_80", "stages=1"), ("sm_80", "stages=3"), ("sm_90a", "copy=cp_async,stages=2"), ("sm_120", "stages=1")];
    let (rows, columns) = ("r: &Tensor<f32, (M, C)>", "c: &Tensor<f32, (N, C)>");
    let terms = [
        (rows.to_owned(), "product * load(r, [i, p])"),
        (columns.to_owned(), "product * load(c, [j, p])"),
        (format!("{rows}, {columns}"), "product * load(r, [i, p]) * load(c, [j, p])"),
    ];
    for (vectors, term) in terms {
        let text = OVER_POSITIONS.replace("VECTORS", &vectors).replace("TERM", term);
        for (arch, schedule) in by_copies {
            is_right(&text, &[], &shape, arch, schedule);
        }
    }
    for (arch, schedule) in by_copies {
        is_right(MIXED, &[("D", 64)], &[("H", 3), ("M", 40), ("N", 75)], arch, schedule);
    }
}

/// Columns that a range is padded by are no part of a row, whatever a mask says of other things.
/// Until 2026-12-01 they were, where the mask's condition leaves out the columns.
#[test]
fn padding_is_no_part_of_rows_that_a_mask_hides() {
    let text = "pub fn masked<const D: usize>(
        x: &Tensor<f32, (M, D)>, seen: &Tensor<i32, (1)>, of_row: &Tensor<bool, (M)>, o: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let x_i = mask(load(x, [i, ..]), CONDITION);
        store(o, [i], rowsum(FUNCTION));
    }";
    let by_length = ("pos(i) < load(seen, [0])", "of_row: &Tensor<bool, (M)>, ");
    let by_rows = ("load(of_row, [i])", "seen: &Tensor<i32, (1)>, ");
    for (condition, unused) in [by_length, by_rows] {
        for function in ["exp(-abs(x_i))", "max(x_i, 1.0)", "visible_or_zero(x_i) + 1.0"] {
            let text = text.replace(unused, "").replace("CONDITION", condition).replace("FUNCTION", function);
            for (arch, width) in [("sm_80", 72), ("sm_80", 36), ("sm_90a", 40), ("sm_120", 72)] {
                is_right_in(Elem::F16, &text, &[("D", width)], &[("M", 17)], arch, "block_m=64");
            }
        }
    }
}

/// An exponential that is multiplied by elements of a tensor before it is rounded to f16 may not
/// exceed 1. Until 2026-12-01 it could, where one of these was converted.
#[test]
fn weighted_exponentials_stay_finite_in_f16() {
    let text = STREAMED
        .replace("MORE", "w: &Tensor<T, (N)>,")
        .replace("PROBABILITIES", "let p = exp(s - reference);")
        .replace("SUMS", "l = l * alpha + rowsum(p); acc = acc * alpha + dot((p * WEIGHT).to::<T>(), load(v, [b, j, ..]));");
    let shape = [("B", 1), ("M", 33), ("N", 77)];
    for weight in ["load(w, [j]).to::<f32>()", "load(w, [j])", "(32.0 * load(w, [j]))"] {
        let text = text.replace("WEIGHT", weight);
        for (arch, schedule) in
            [("sm_80", "running_max=max_first,block_n=16"), ("sm_90a", "tensor_op=wgmma,copy=tma,running_max=max_first")]
        {
            is_right_in(Elem::F16, &text, &[("D", 32)], &shape, arch, schedule);
        }
        let options = LaunchOptions {
            toolchain: Toolchain::shared(),
            arch: Arch::named("sm_80"),
            schedule: Some("running_max=optimistic".parse().expect("a schedule")),
            ..LaunchOptions::default()
        };
        let bound = kernel(&text).bind(Elem::F16, [("D", 32)]).expect("binds");
        let refusal = match bound.on_with(&Device::emulator(), options) {
            Err(error) => error.to_string(),
            Ok(loaded) => judge(&loaded, &sizes(&shape), 1).err().map(|error| error.to_string()).unwrap_or_default(),
        };
        assert!(refusal.contains("before they are rounded to f16"), "{weight}: {refusal}");
    }
}
