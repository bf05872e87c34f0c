//! Gradients from Rust: `#[grad(..)]` in `flash_kernel!`, against finite differences and against
//! the kernels launched one by one.

use std::collections::BTreeMap;

use flashtile::tuner::{self, Chain, InputData, Slopes};
use flashtile::{Argument, Device, Elem, Error, Gradient, Kernel, LaunchOptions, Tensor, Workspace, f16, flash_kernel};
use flashtile_dsl::ir::{Param, SourceText};

flash_kernel! {
    /// Attention that stores what its gradient reads.
    #[grad(q, k, v)]
    fn attention<T: Element, const D: usize>(
        q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (H, N, D)>, v: &Tensor<T, (H, N, D)>, scale: f32,
        o: &mut Tensor<T, (H, M, D)>, lse: &mut Tensor<f32, (H, M)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let q_i = load(q, [h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [h, j, ..]).t()) * scale, pos(i) + N - M >= pos(j));
            let m2 = max(m, rowmax(s));
            let r = visible_or_zero(m2);
            let p = exp(s - r);
            let c = exp(m - r);
            l = l * c + rowsum(p);
            acc = acc * c + dot(p.to::<T>(), load(v, [h, j, ..]));
            m = m2;
        }
        store(o, [h, i, ..], div_or_zero(acc, l));
        store(lse, [h, i], m + ln(l));
    }

    /// The loss of words of a vocabulary, whose scores have their gradients stored.
    #[grad(x, w, from(loss), form(stored))]
    fn stored_loss<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, w: &Tensor<T, (V, D)>, target: &Tensor<i32, (M)>, loss: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let target_i = load(target, [i]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut wanted = zeros(i);
        for j in tiles(V) {
            let s = dot(load(x, [i, ..]), load(w, [j, ..]).t());
            let m_new = max(m, rowmax(s));
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            wanted += rowsum(select(target_i == pos(j), s, 0.0));
            m = m_new;
        }
        store(loss, [i], m + ln(l) - wanted);
    }

    /// The same, whose scores are made once.
    #[grad(q, k, v, form(fused))]
    fn fused_attention<T: Element, const D: usize>(
        q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (H, N, D)>, v: &Tensor<T, (H, N, D)>, scale: f32,
        o: &mut Tensor<T, (H, M, D)>, lse: &mut Tensor<f32, (H, M)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let q_i = load(q, [h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [h, j, ..]).t()) * scale, pos(i) + N - M >= pos(j));
            let m2 = max(m, rowmax(s));
            let r = visible_or_zero(m2);
            let p = exp(s - r);
            let c = exp(m - r);
            l = l * c + rowsum(p);
            acc = acc * c + dot(p.to::<T>(), load(v, [h, j, ..]));
            m = m2;
        }
        store(o, [h, i, ..], div_or_zero(acc, l));
        store(lse, [h, i], m + ln(l));
    }

    /// Attention that stores its output alone, and whose gradients are named.
    #[grad(v, q, from(o))]
    fn output_alone<const D: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, v: &Tensor<f32, (N, D)>, o: &mut Tensor<f32, (M, D)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [j, ..]).t());
            let m2 = max(m, rowmax(s));
            let r = visible_or_zero(m2);
            let p = exp(s - r);
            let c = exp(m - r);
            l = l * c + rowsum(p);
            acc = acc * c + dot(p, load(v, [j, ..]));
            m = m2;
        }
        store(o, [i, ..], div_or_zero(acc, l));
    }

    /// Queries, keys and values of one tensor, which has a fourth part that is not loaded.
    #[grad(qkv, from(o))]
    fn packed<const D: usize>(
        qkv: &Tensor<f32, (N, 4, D)>, o: &mut Tensor<f32, (N, D)>, lse: &mut Tensor<f32, (N)>,
    ) {
        let i = program(tiles(N));
        let q_i = load(qkv, [i, 0, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(qkv, [j, 1, ..]).t()), pos(i) >= pos(j));
            let m2 = max(m, rowmax(s));
            let r = visible_or_zero(m2);
            let p = exp(s - r);
            let c = exp(m - r);
            l = l * c + rowsum(p);
            acc = acc * c + dot(p, load(qkv, [j, 3, ..]));
            m = m2;
        }
        store(o, [i, ..], div_or_zero(acc, l));
        store(lse, [i], m + ln(l));
    }
}

/// Multiples of 1/64 between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) % 129) as f32 / 64.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensor<T: flashtile::Element>(shape: &[usize], seed: u64) -> Tensor<T> {
    let count = shape.iter().product();
    Tensor::from_f32(&Device::cpu(), shape, &numbers(count, seed)).expect("fits")
}

fn zeros<T: flashtile::Element>(shape: &[usize]) -> Tensor<T> {
    Tensor::zeros(&Device::cpu(), shape).expect("fits")
}

fn floats<T: flashtile::Element>(tensor: &Tensor<T>) -> Vec<f32> {
    tensor.as_any().to_f32().expect("reads")
}

/// Slopes of a function of some numbers, of fourth order.
fn slopes(at: &[f32], f: impl Fn(&[f32]) -> f64) -> Vec<f64> {
    let step = 1.0 / 16.0;
    let moved = |n: usize, by: f32| {
        let mut moved = at.to_vec();
        moved[n] += by;
        f(&moved)
    };
    let near = |n| moved(n, step) - moved(n, -step);
    let far = |n| moved(n, 2.0 * step) - moved(n, -2.0 * step);
    (0..at.len()).map(|n| (8.0 * near(n) - far(n)) / (12.0 * f64::from(step))).collect()
}

#[track_caller]
fn close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(found) - expected).abs() < 1e-3 * (1.0 + expected.abs()), "{what}[{at}]: {found} for {expected}");
    }
}

const H: usize = 2;
const M: usize = 7;
const N: usize = 9;
const D: usize = 4;

#[test]
fn backward_gives_the_slopes_of_the_kernel() {
    let device = Device::cpu();
    let kernel = attention::<f32, D>::on(&device).expect("the CPU runs everything");
    let (queries, keys) = ([H, M, D], [H, N, D]);
    let inputs = [numbers(H * M * D, 1), numbers(H * N * D, 2), numbers(H * N * D, 3)];
    let (mut o, mut lse, grad_o) = (zeros(&queries), zeros(&[H, M]), tensor::<f32>(&queries, 4));
    let of = |values: &[f32], shape: &[usize]| Tensor::from_f32(&device, shape, values).expect("fits");
    let [q, k, v] = [(&inputs[0], queries), (&inputs[1], keys), (&inputs[2], keys)].map(|(x, shape)| of(x, &shape));
    kernel.forward(&q, &k, &v, 0.75, &mut o, &mut lse).expect("runs");
    let (mut grad_q, mut grad_k, mut grad_v) = (zeros(&queries), zeros(&keys), zeros(&keys));
    let mut workspace = Workspace::new();
    kernel.backward(&mut workspace, &q, &k, &v, 0.75, &o, &lse, &grad_o, &mut grad_q, &mut grad_k, &mut grad_v).expect("runs");

    let weights = floats(&grad_o);
    let loss = |q: &[f32], k: &[f32], v: &[f32]| {
        let (mut o, mut lse) = (zeros::<f32>(&queries), zeros(&[H, M]));
        kernel.launch(&of(q, &queries), &of(k, &keys), &of(v, &keys), 0.75, &mut o, &mut lse).expect("runs");
        floats(&o).iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    let [q, k, v] = &inputs;
    close(&floats(&grad_q), &slopes(q, |q| loss(q, k, v)), "grad_q");
    close(&floats(&grad_k), &slopes(k, |k| loss(q, k, v)), "grad_k");
    close(&floats(&grad_v), &slopes(v, |v| loss(q, k, v)), "grad_v");
}

#[test]
fn backward_launches_what_the_gradient_of_the_text_gives() {
    let device = Device::cpu();
    let kernel = attention::<f16, D>::on(&device).expect("the CPU runs everything");
    let made =
        Kernel::gradient(&attention::<f16, D>::source().kernel().expect("reads"), &["q", "k", "v"], &["o"]).expect("has one");
    let names: Vec<&str> = kernel.gradient().kernels().map(|loaded| loaded.kernel().ir().name.as_str()).collect();
    assert_eq!(names, ["attention_grad_rows", "attention_grad_columns"]);
    // A workspace that was used for other sizes is used for these, and for the first again.
    let mut workspace = Workspace::new();
    for (heads, m) in [(1, 3), (2, 40), (1, 3)] {
        let (queries, keys) = ([heads, m, D], [heads, N, D]);
        let (q, k, v) = (tensor::<f16>(&queries, 1), tensor::<f16>(&keys, 2), tensor::<f16>(&keys, 3));
        let (mut o, mut lse, grad_o) = (zeros(&queries), zeros::<f32>(&[heads, m]), tensor::<f16>(&queries, 4));
        kernel.launch(&q, &k, &v, 0.5, &mut o, &mut lse).expect("runs");
        let (mut grad_q, mut grad_k, mut grad_v) = (zeros(&queries), zeros(&keys), zeros(&keys));
        kernel.backward(&mut workspace, &q, &k, &v, 0.5, &o, &lse, &grad_o, &mut grad_q, &mut grad_k, &mut grad_v).expect("runs");

        let (l, q2, k2, v2) = (zeros::<f32>(&[heads, m]), zeros::<f16>(&queries), zeros::<f16>(&keys), zeros::<f16>(&keys));
        for kernel in &made.backward {
            let argument = |param: &Param| match param.name.as_str() {
                "q" => (&q).into(),
                "k" => (&k).into(),
                "v" => (&v).into(),
                "scale" => 0.5.into(),
                "o" => (&o).into(),
                "lse" => (&lse).into(),
                "grad_o" => (&grad_o).into(),
                "grad_l" if kernel.name() == "attention_grad_columns" => (&l).into(),
                "grad_l" => Argument::Output(l.as_any()),
                "grad_q" => Argument::Output(q2.as_any()),
                "grad_k" => Argument::Output(k2.as_any()),
                "grad_v" => Argument::Output(v2.as_any()),
                other => panic!("`{other}` is none of its parameters"),
            };
            let arguments: Vec<Argument<'_>> = kernel.ir().params.values().map(argument).collect();
            let bound = kernel.bind(Elem::F16, [("D", D as i64)]).expect("binds");
            bound.on(&device).expect("the CPU runs everything").launch(&arguments).expect("runs");
        }
        for (found, expected) in [(&grad_q, &q2), (&grad_k, &k2), (&grad_v, &v2)] {
            assert_eq!(found.to_vec().expect("reads"), expected.to_vec().expect("reads"));
            assert!(floats(found).iter().any(|&x| x != 0.0));
        }
    }
}

#[test]
fn the_fused_form_gives_the_gradients_of_the_plain_one() {
    let device = Device::cpu();
    let (plain, fused) = (attention::<f32, D>::on(&device), fused_attention::<f32, D>::on(&device));
    let (plain, fused) = (plain.expect("the CPU runs everything"), fused.expect("the CPU runs everything"));
    let names: Vec<&str> = fused.gradient().kernels().map(|loaded| loaded.kernel().ir().name.as_str()).collect();
    assert_eq!(names, ["rows", "columns", "sums"].map(|kind| format!("fused_attention_grad_{kind}")));
    let mut workspace = Workspace::new();
    // The sums in the workspace start from 0 each time.
    for m in [M, 40, M] {
        let (queries, keys) = ([H, m, D], [H, N, D]);
        let (q, k, v) = (tensor::<f32>(&queries, 1), tensor::<f32>(&keys, 2), tensor::<f32>(&keys, 3));
        let (mut o, mut lse, grad_o) = (zeros(&queries), zeros::<f32>(&[H, m]), tensor::<f32>(&queries, 4));
        fused.forward(&q, &k, &v, 0.5, &mut o, &mut lse).expect("runs");
        let new = || (zeros::<f32>(&queries), zeros::<f32>(&keys), zeros::<f32>(&keys));
        let (mut q1, mut k1, mut v1) = new();
        plain.backward(&mut Workspace::new(), &q, &k, &v, 0.5, &o, &lse, &grad_o, &mut q1, &mut k1, &mut v1).expect("runs");
        let (mut q2, mut k2, mut v2) = new();
        fused.backward(&mut workspace, &q, &k, &v, 0.5, &o, &lse, &grad_o, &mut q2, &mut k2, &mut v2).expect("runs");
        for (name, found, expected) in [("q", &q2, &q1), ("k", &k2, &k1), ("v", &v2, &v1)] {
            let expected: Vec<f64> = floats(expected).into_iter().map(f64::from).collect();
            assert!(expected.iter().any(|&x| x != 0.0));
            close(&floats(found), &expected, name);
        }
    }
}

#[test]
fn the_stored_form_gives_gradients_by_products() {
    let (device, words, depth) = (Device::cpu(), 19, 600);
    let loss = stored_loss::<f32, 600>::on(&device).expect("the CPU runs everything");
    let names: Vec<&str> = loss.gradient().kernels().map(|loaded| loaded.kernel().ir().name.as_str()).collect();
    assert_eq!(names, ["rows", "pairs", "x", "w"].map(|kind| format!("stored_loss_grad_{kind}")));
    let (x, w) = (tensor::<f32>(&[M, depth], 1), tensor::<f32>(&[words, depth], 2));
    let target = Tensor::from_slice(&device, &[M], &(0..M).map(|at| (at * 7 % words) as i32).collect::<Vec<_>>()).expect("fits");
    let (mut losses, mut reference, grad) = (zeros::<f32>(&[M]), zeros::<f32>(&[M]), tensor::<f32>(&[M], 3));
    let (mut grad_x, mut grad_w) = (zeros::<f32>(&[M, depth]), zeros::<f32>(&[words, depth]));
    loss.forward(&x, &w, &target, &mut losses, &mut reference).expect("runs");
    loss.backward(&mut Workspace::new(), &x, &w, &target, &reference, &grad, &mut grad_x, &mut grad_w).expect("runs");
    // By the formula: the softmax without the word that is wanted, times the gradient of the loss.
    let of = |values: &Tensor<f32>| floats(values).into_iter().map(f64::from).collect::<Vec<f64>>();
    let (x, w, grad) = (of(&x), of(&w), of(&grad));
    let (mut of_x, mut of_w) = (vec![0.0; M * depth], vec![0.0; words * depth]);
    for i in 0..M {
        let score = |j: usize| (0..depth).map(|c| x[i * depth + c] * w[j * depth + c]).sum::<f64>();
        let scores: Vec<f64> = (0..words).map(score).collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for (j, s) in scores.iter().enumerate() {
            let wanted = if j == i * 7 % words { 1.0 } else { 0.0 };
            let ds = grad[i] * ((s - largest).exp() / sum - wanted);
            for c in 0..depth {
                of_x[i * depth + c] += ds * w[j * depth + c];
                of_w[j * depth + c] += ds * x[i * depth + c];
            }
        }
    }
    close(&floats(&grad_x), &of_x, "x");
    close(&floats(&grad_w), &of_w, "w");
}

#[test]
fn what_a_kernel_does_not_store_its_forward_launch_does() {
    let device = Device::cpu();
    let kernel = output_alone::<D>::on(&device).expect("the CPU runs everything");
    assert_eq!(kernel.handle().kernel().ir().params.len() + 1, kernel.forward_handle().kernel().ir().params.len());
    let (queries, keys) = ([M, D], [N, D]);
    let inputs = [numbers(M * D, 1), numbers(N * D, 2), numbers(N * D, 3)];
    let of = |values: &[f32], shape: &[usize]| Tensor::<f32>::from_f32(&device, shape, values).expect("fits");
    let (q, k, v, grad_o) = (of(&inputs[0], &queries), of(&inputs[1], &keys), of(&inputs[2], &keys), tensor::<f32>(&queries, 4));
    let (mut o, mut reference) = (zeros(&queries), zeros(&[M]));
    kernel.forward(&q, &k, &v, &mut o, &mut reference).expect("runs");
    let (mut grad_v, mut grad_q) = (zeros(&keys), zeros(&queries));
    // In the order of the attribute.
    kernel.backward(&mut Workspace::new(), &q, &k, &v, &o, &reference, &grad_o, &mut grad_v, &mut grad_q).expect("runs");
    let weights = floats(&grad_o);
    let loss = |q: &[f32], v: &[f32]| {
        let mut o = zeros::<f32>(&queries);
        kernel.launch(&of(q, &queries), &k, &of(v, &keys), &mut o).expect("runs");
        floats(&o).iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    close(&floats(&grad_q), &slopes(&inputs[0], |q| loss(q, &inputs[2])), "grad_q");
    close(&floats(&grad_v), &slopes(&inputs[2], |v| loss(&inputs[0], v)), "grad_v");
}

/// An argument that does not fit is named, and so is the kernel that has no such size.
#[test]
fn arguments_of_backward_are_checked() {
    let kernel = attention::<f32, D>::on_with(&Device::cpu(), LaunchOptions::default()).expect("the CPU runs everything");
    let (queries, keys) = ([H, M, D], [H, N, D]);
    let (q, k, v) = (tensor::<f32>(&queries, 1), tensor::<f32>(&keys, 2), tensor::<f32>(&keys, 3));
    let (o, lse, grad_o) = (zeros(&queries), zeros::<f32>(&[H, M]), zeros::<f32>(&[H, M + 1, D]));
    let (mut grad_q, mut grad_k, mut grad_v) = (zeros(&queries), zeros(&keys), zeros(&keys));
    let wrong = kernel
        .backward(&mut Workspace::new(), &q, &k, &v, 0.5, &o, &lse, &grad_o, &mut grad_q, &mut grad_k, &mut grad_v)
        .expect_err("`grad_o` has a row too many");
    assert!(matches!(wrong, Error::Argument(_)) && wrong.to_string().starts_with("argument `grad_o`: dimension 1"), "{wrong}");
    let too_few = kernel.gradient().launch(&mut Workspace::new(), &[(&q).into()]).expect_err("arguments are missing");
    let names = "(q, k, v, scale, o, lse, grad_o, grad_q, grad_k, grad_v), but 1 were given";
    assert!(too_few.to_string().ends_with(names), "{too_few}");
}

#[test]
fn several_kernels_store_parts_of_one_gradient() {
    let device = Device::cpu();
    let kernel = packed::<D>::on(&device).expect("the CPU runs everything");
    let names: Vec<&str> = kernel.gradient().kernels().map(|loaded| loaded.kernel().ir().name.as_str()).collect();
    assert_eq!(names, ["packed_grad_qkv_zeros", "packed_grad_rows", "packed_grad_columns"]);
    let shape = [N, 4, D];
    let inputs = numbers(N * 4 * D, 1);
    let of = |values: &[f32]| Tensor::<f32>::from_f32(&device, &shape, values).expect("fits");
    let (qkv, grad_o) = (of(&inputs), tensor::<f32>(&[N, D], 4));
    let (mut o, mut lse) = (zeros(&[N, D]), zeros(&[N]));
    kernel.forward(&qkv, &mut o, &mut lse).expect("runs");
    // What the gradient held before is gone.
    let mut grad_qkv = of(&vec![f32::NAN; N * 4 * D]);
    kernel.backward(&mut Workspace::new(), &qkv, &o, &lse, &grad_o, &mut grad_qkv).expect("runs");
    let weights = floats(&grad_o);
    let loss = |qkv: &[f32]| {
        let (mut o, mut lse) = (zeros::<f32>(&[N, D]), zeros(&[N]));
        kernel.launch(&of(qkv), &mut o, &mut lse).expect("runs");
        floats(&o).iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    let found = floats(&grad_qkv);
    close(&found, &slopes(&inputs, loss), "grad_qkv");
    let unloaded = |at: &usize| at / D % 4 == 2;
    assert!((0..found.len()).filter(unloaded).all(|at| found[at] == 0.0));
}

/// Each kernel is right by its own text where one leaves to the next what that does not mean: slopes
/// of the forward kernel tell.
#[test]
fn kernels_that_do_not_belong_together_are_found() {
    let sizes = [("B", 2), ("H", 4), ("G", 2), ("M", 9), ("N", 21)].map(|(name, n)| (name.to_owned(), n)).into();
    let consts = [("D".to_owned(), 8)].into();
    let data = InputData::default();
    let made = Kernel::builtin("causal_attention").expect("built in").gradient(&["q", "k", "v"], &["o"]).expect("has one");
    let of = |gradient: &Gradient| match tuner::slopes(gradient, &consts, &sizes, 3, &data).expect("fits") {
        Slopes::Of(slopes) => slopes,
        other @ Slopes::None { .. } => panic!("{other:?}"),
    };
    let right = of(&made);
    assert_eq!(right.iter().map(|slope| slope.input.as_str()).collect::<Vec<_>>(), ["q", "k", "v"]);
    assert!(right.iter().all(|slope| slope.passed() && slope.slope.abs() > 10.0 * slope.allowed), "{right:?}");

    let left = "store(grad_l, [b, h, i], dl)";
    let text = made.backward[0].text().to_owned();
    assert!(text.contains(left), "{text}");
    let text = text.replace(left, "store(grad_l, [b, h, i], dl * 1.5)");
    let source = SourceText { name: "faulty.rs".to_owned(), text: text.into(), first_line: 1 };
    let mut faulty = made.clone();
    faulty.backward[0] = Kernel::from_source(&source).expect("reads").remove(0);
    // The kernel of columns gives `grad_k` of what it is left.
    let wrong = of(&faulty);
    assert_eq!(wrong.iter().map(|slope| slope.passed()).collect::<Vec<_>>(), [true, false, true], "{wrong:?}");
    let kernels = [&faulty.forward, &faulty.backward[0], &faulty.backward[1]].map(|kernel| kernel.bind(Elem::F16, [("D", 8)]));
    let kernels = kernels.into_iter().collect::<flashtile::Result<Vec<_>>>().expect("bind");
    let mut chain = Chain::new(kernels.clone(), &sizes, 3, &data).expect("fits");
    for kernel in &kernels {
        let loaded = kernel.on(&Device::cpu()).expect("the CPU runs everything");
        assert!(chain.judge(&loaded).expect("runs").iter().all(|verdict| verdict.passed()));
    }
}

/// Squares of large numbers: in f32 their rounding is larger than what a step moves. And what
/// overflows in f32 alone has no slope.
#[test]
fn slopes_are_those_of_f64_where_f32_is_finite() {
    let of = |value: &str| {
        let text = format!(
            "pub fn steep(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M, N)>) {{
                let i = program(tiles(M));
                for j in tiles(N) {{ let v = load(x, [i, j]); store(y, [i, j], {value}); }}
            }}"
        );
        let source = SourceText { name: "steep.rs".to_owned(), text: text.into(), first_line: 1 };
        let made = Kernel::from_source(&source).expect("reads").remove(0).gradient(&["x"], &["y"]).expect("has one");
        let sizes = [("M", 9), ("N", 21)].map(|(name, n)| (name.to_owned(), n)).into();
        tuner::slopes(&made, &BTreeMap::new(), &sizes, 3, &InputData::default()).expect("fits")
    };
    let Slopes::Of(slopes) = of("(v + 1000.0) * (v + 1000.0)") else { panic!("it is smooth") };
    assert!(slopes.iter().all(|slope| slope.passed() && slope.slope.abs() > 10.0 * slope.allowed), "{slopes:?}");
    let Slopes::None { why } = of("exp(v * v * 60.0)") else { panic!("it overflows") };
    assert!(why.contains("not finite"), "{why}");
}

#[test]
fn kernels_that_jump_have_no_slopes() {
    let text = "pub fn steps<T: Element>(x: &Tensor<T, (M, N)>, w: &Tensor<bf16, (M)>, y: &mut Tensor<T, (M, N)>) {
        let i = program(tiles(M));
        let by = load(w, [i]).to::<f32>();
        for j in tiles(N) {
            let x_ij = load(x, [i, j]).to::<f32>();
            store(y, [i, j], (x_ij * floor(x_ij) + by).to::<T>());
        }
    }";
    let source = SourceText { name: "steps.rs".to_owned(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).expect("reads").remove(0);
    let sizes = [("M", 9), ("N", 21)].map(|(name, n)| (name.to_owned(), n)).into();
    let why = |of: &str| {
        let made = kernel.gradient(&[of], &["y"]).expect("has one");
        match tuner::slopes(&made, &BTreeMap::new(), &sizes, 3, &InputData::default()).expect("fits") {
            Slopes::None { why } => why,
            other @ Slopes::Of(_) => panic!("{other:?}"),
        }
    };
    assert!(why("x").contains("`floor`"), "{}", why("x"));
    assert!(why("w").contains("`w` holds bf16"), "{}", why("w"));
}
