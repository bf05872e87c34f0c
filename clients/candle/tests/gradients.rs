//! Gradients in candle's graph, compared with those that candle derives of its own operators.

mod reference;

use std::sync::{Arc, Mutex};

use candle_core::{D, DType, Device, Result, Tensor, Var};
use flashtile_candle::attention::{flash_attn, flash_attn_softcap, flash_attn_windowed};
use flashtile_candle::flashtile::Form;
use flashtile_candle::{Error, Launched, Operator};
use reference::{Sizes, attention, difference, mask, random, relative_difference};

/// Ragged sizes, groups of heads, fewer queries than keys.
const SHAPES: [Sizes; 4] = [[2, 3, 3, 37, 37, 32], [1, 6, 2, 5, 70, 64], [2, 4, 1, 65, 130, 24], [1, 2, 1, 20, 29, 16]];

/// Gradients of a sum of the result with weights, by the variables.
fn gradients(result: &Tensor, weights: &Tensor, variables: &[Var]) -> Result<Vec<Tensor>> {
    let store = result.to_dtype(DType::F32)?.mul(weights)?.sum_all()?.backward()?;
    let of = |variable: &Var| store.get(variable).cloned().ok_or_else(|| candle_core::Error::msg("no gradient"));
    variables.iter().map(of).collect()
}

/// Compares both gradients of `q`, `k` and `v` in the layout of candle-flash-attn.
fn check(
    dtype: DType,
    tolerance: f32,
    found: impl Fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>,
    scores: impl Fn(&Tensor, Sizes) -> Result<Tensor>,
) -> Result<()> {
    for sizes in SHAPES {
        let [b, h, g, m, n, d] = sizes;
        let scale = 1.0 / (d as f32).sqrt();
        let shapes = [[b, m, h, d], [b, n, g, d], [b, n, g, d]];
        let variables = shapes.iter().map(|shape| Var::from_tensor(&random(shape, dtype)?)).collect::<Result<Vec<_>>>()?;
        let weights = random(&[b, m, h, d], DType::F32)?;
        let [q, k, v] = &variables[..] else { unreachable!("three variables") };
        let ours = gradients(&found(q, k, v, scale)?, &weights, &variables)?;
        let heads = |x: &Var| x.transpose(1, 2)?.to_dtype(DType::F32);
        let theirs = attention(&heads(q)?, &heads(k)?, &heads(v)?, |s| scores(&(s * f64::from(scale))?, sizes))?;
        let theirs = gradients(&theirs.transpose(1, 2)?, &weights, &variables)?;
        for ((name, found), wanted) in ["q", "k", "v"].iter().zip(&ours).zip(&theirs) {
            assert_eq!((found.dims(), found.dtype()), (wanted.dims(), dtype));
            let difference = relative_difference(found, wanted)?;
            assert!(difference < tolerance, "{sizes:?} {dtype:?}: the gradient of {name} differs by {difference}");
        }
    }
    Ok(())
}

#[test]
fn of_full_attention() -> Result<()> {
    check(DType::F32, 1e-5, |q, k, v, scale| flash_attn(q, k, v, scale, false), |s, _| Ok(s.clone()))
}

fn causal(s: &Tensor, [_, _, _, m, n, _]: Sizes) -> Result<Tensor> {
    s.broadcast_add(&mask(m, n, |i, j| i >= j)?)
}

#[test]
fn of_causal_attention() -> Result<()> {
    let found = |q: &Tensor, k: &Tensor, v: &Tensor, scale| flash_attn(q, k, v, scale, true);
    check(DType::F32, 1e-5, found, causal)?;
    check(DType::BF16, 3e-2, found, causal)
}

#[test]
fn of_windows_and_bounded_scores() -> Result<()> {
    check(
        DType::F32,
        1e-5,
        |q, k, v, scale| flash_attn_windowed(q, k, v, scale, Some(6), Some(0)),
        |s, [_, _, _, m, n, _]| s.broadcast_add(&mask(m, n, |i, j| i >= j && i - j <= 6)?),
    )?;
    check(
        DType::F32,
        1e-5,
        |q, k, v, scale| flash_attn_softcap(q, k, v, scale, 2.0),
        |s, sizes| causal(&((s / 2.0)?.tanh()? * 2.0)?, sizes),
    )
}

/// Only keys are a variable; the gradient comes back through candle's operators before and behind.
#[test]
fn of_some_inputs_within_a_graph() -> Result<()> {
    let (x, w) = (random(&[1, 12, 2, 16], DType::F32)?, Var::from_tensor(&random(&[16, 16], DType::F32)?)?);
    let project = || x.flatten(0, 2)?.matmul(&w)?.reshape((1, 12, 2, 16));
    let weights = random(&[1, 12, 2, 16], DType::F32)?;
    let ours = flash_attn(&x, &project()?, &x, 0.25, true)?.sqr()?;
    let ours = gradients(&ours, &weights, std::slice::from_ref(&w))?;
    let heads = |x: &Tensor| x.transpose(1, 2);
    let theirs = attention(&heads(&x)?, &heads(&project()?)?, &heads(&x)?, |s| causal(&(s * 0.25)?, [1, 2, 2, 12, 12, 16]))?;
    let theirs = gradients(&theirs.transpose(1, 2)?.sqr()?, &weights, &[w])?;
    assert!(difference(&ours[0], &theirs[0])? < 1e-4);
    Ok(())
}

/// A kernel whose gradient needs more than it stores: the forward pass takes the kernel with
/// outputs more, which the caller does not see.
#[test]
fn of_a_norm() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let norm = Operator::builtin("rms_norm")?;
    let (x, w) = (Var::from_tensor(&random(&[7, 48], DType::F32)?)?, Var::from_tensor(&random(&[48], DType::F32)?)?);
    let outputs = norm.call_named(&[("x", x.as_tensor().into()), ("w", w.as_tensor().into()), ("eps", 1e-5.into())])?;
    let result = outputs.into_tensors();
    assert_eq!(result.len(), 1);
    let weights = random(&[7, 48], DType::F32)?;
    let variables = [x.clone(), w.clone()];
    let ours = gradients(&result[0], &weights, &variables)?;
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
    let theirs = gradients(&x.broadcast_div(&scale)?.broadcast_mul(&w)?, &weights, &variables)?;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(difference(ours, theirs)? < 1e-4);
    }
    Ok(())
}

/// What a kernel does not load of an input, or does not depend on, has the gradient 0: a kernel
/// ahead of the others stores it, and reads no tensor.
#[test]
fn of_inputs_that_are_loaded_in_part() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let part = Operator::from_text(
        "pub fn part<const D: usize>(x: &Tensor<f32, (M, 3, D)>, y: &mut Tensor<f32, (M, D)>) {
            let i = program(tiles(M));
            store(y, [i, ..], load(x, [i, 0, ..]) * load(x, [i, 2, ..]));
        }",
    )?;
    let x = Var::from_tensor(&random(&[9, 3, 16], DType::F32)?)?;
    let weights = random(&[9, 16], DType::F32)?;
    let ours = gradients(&part.call(&[x.as_tensor().into()])?.into_first(), &weights, std::slice::from_ref(&x))?;
    let theirs = gradients(&x.narrow(1, 0, 1)?.mul(&x.narrow(1, 2, 1)?)?.squeeze(1)?, &weights, std::slice::from_ref(&x))?;
    assert_eq!(difference(&ours[0], &theirs[0])?, 0.0);
    Ok(())
}

/// A loss of attention and of its LSE, each alone and both.
#[test]
fn of_several_outputs() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::builtin("attention")?;
    let qkv = (0..3).map(|_| Var::from_tensor(&random(&[1, 2, 9, 16], DType::F32)?)).collect::<Result<Vec<_>>>()?;
    let made = operator.call(&[(&qkv[0]).into(), (&qkv[1]).into(), (&qkv[2]).into(), 0.25.into()])?;
    let scores = (qkv[0].matmul(&qkv[1].t()?)? * 0.25)?;
    let theirs =
        [candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&qkv[2])?, scores.log_sum_exp(D::Minus1)?.reshape((1, 2, 9))?];
    let ours = [made.get("o")?, made.get("lse")?];
    let weights = [random(ours[0].dims(), DType::F32)?, random(ours[1].dims(), DType::F32)?];
    let loss = |outputs: [&Tensor; 2], of: &[usize]| -> Result<Tensor> {
        let parts = of.iter().map(|&at| (outputs[at] * &weights[at])?.sum_all()).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&parts, 0)?.sum_all()
    };
    for of in [&[0][..], &[1], &[0, 1], &[1, 1]] {
        let (ours, theirs) = (loss(ours, of)?.backward()?, loss([&theirs[0], &theirs[1]], of)?.backward()?);
        for (name, x) in ["q", "k", "v"].into_iter().zip(&qkv) {
            let theirs = theirs.get(x).cloned().map_or_else(|| x.zeros_like(), Ok)?;
            let ours = ours.get(x).ok_or_else(|| candle_core::Error::msg("no gradient"))?;
            assert!(difference(ours, &theirs)? < 1e-5, "{name} of {of:?}");
        }
    }
    let detached = qkv[0].as_tensor().detach();
    let made = operator.call(&[(&detached).into(), (&detached).into(), (&detached).into(), 0.25.into()])?;
    assert!(!made.get("o")?.track_op() && !made.get("lse")?.track_op());
    Ok(())
}

/// The gradient of the first output needs what the kernel does not store, that of the second
/// something else of the same name or nothing: each has its own.
#[test]
fn what_a_gradient_needs_is_its_own() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let two = Operator::from_text(
        "pub fn two<const D: usize>(
            q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, v: &Tensor<f32, (N, D)>, w: &Tensor<f32, (N, D)>,
            y: &mut Tensor<f32, (M, D)>, z: &mut Tensor<f32, (M, D)>,
        ) {
            let i = program(tiles(M));
            let mut m = full(i, -INF);
            let mut l = zeros(i);
            let mut a = zeros((i, D));
            let mut b = zeros((i, D));
            for j in tiles(N) {
                let s = dot(load(q, [i, ..]), load(k, [j, ..]).t());
                let m_new = max(m, rowmax(s));
                let alpha = exp(m - m_new);
                let p = exp(s - m_new);
                l = l * alpha + rowsum(p);
                a = a * alpha + dot(p, load(v, [j, ..]));
                b = b * alpha + dot(p, load(w, [j, ..]));
                m = m_new;
            }
            store(y, [i, ..], a / l);
            store(z, [i, ..], sin(b / l));
        }",
    )?;
    let x = (0..2).map(|_| Var::from_tensor(&random(&[7, 16], DType::F32)?)).collect::<Result<Vec<_>>>()?;
    let vw = [random(&[7, 16], DType::F32)?, random(&[7, 16], DType::F32)?];
    let made = two.call(&[(&x[0]).into(), (&x[1]).into(), (&vw[0]).into(), (&vw[1]).into()])?;
    let p = candle_nn::ops::softmax(&x[0].matmul(&x[1].t()?)?, D::Minus1)?;
    let theirs = [p.matmul(&vw[0])?, p.matmul(&vw[1])?.sin()?];
    for (name, theirs) in ["y", "z"].into_iter().zip(theirs) {
        let weights = random(&[7, 16], DType::F32)?;
        let found = gradients(made.get(name)?, &weights, &x)?;
        for (ours, theirs) in found.iter().zip(gradients(&theirs, &weights, &x)?) {
            assert!(relative_difference(ours, &theirs)? < 1e-5, "{name}");
        }
    }
    Ok(())
}

/// One variable for all inputs, and a gradient that is the same number everywhere.
#[test]
fn of_a_plain_sum() -> Result<()> {
    let x = Var::from_tensor(&random(&[2, 5, 1, 8], DType::F32)?)?;
    let store = flash_attn(&x, &x, &x, 1.0, false)?.sum_all()?.backward()?;
    let ours = store.get(&x).expect("has a gradient").clone();
    let heads = x.transpose(1, 2)?;
    let store = attention(&heads, &heads, &heads, |s| Ok(s.clone()))?.sum_all()?.backward()?;
    assert!(difference(&ours, store.get(&x).expect("has a gradient"))? < 1e-5);
    Ok(())
}

#[test]
fn of_a_table_that_is_gathered() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let [b, h, g, m, n, d] = [2, 4, 2, 21, 30, 16];
    let r = 9usize;
    let operator = Operator::builtin("relative_attention")?;
    let [q, k, v] = [[b, h, m, d], [b, g, n, d], [b, g, n, d]].map(|shape| random(&shape, DType::F32));
    let ([q, k, v], table) = ([q?, k?, v?], Var::from_tensor(&random(&[h, 2 * r + 1], DType::F32)?)?);
    let weights = random(&[b, h, m, d], DType::F32)?;
    let given = [(&q).into(), (&k).into(), (&v).into(), 0.25.into(), table.as_tensor().into()];
    let ours = operator.call(&given)?.into_first();
    // A row of the table for each pair, by its distance.
    let place = |i: usize, j: usize| (j + r + m).saturating_sub(i + n).min(2 * r) as u32;
    let places: Vec<u32> = (0..m * n).map(|at| place(at / n, at % n)).collect();
    let places = Tensor::from_vec(places, m * n, &Device::Cpu)?;
    let bias = table.index_select(&places, 1)?.reshape((1, h, m, n))?;
    let theirs = attention(&q, &k, &v, |s| (s * 0.25)?.broadcast_add(&bias))?;
    let variables = [table];
    let [ours, theirs] = [ours, theirs].map(|result| gradients(&result, &weights, &variables));
    let difference = difference(&ours?[0], &theirs?[0])?;
    assert!(difference < 1e-4, "{difference}");
    Ok(())
}

#[test]
fn of_both_forms() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let shapes = [[1, 4, 37, 16], [1, 2, 41, 16], [1, 2, 41, 16]];
    let variables = shapes.iter().map(|shape| Var::from_tensor(&random(shape, DType::F32)?)).collect::<Result<Vec<_>>>()?;
    let weights = random(&shapes[0], DType::F32)?;
    let launched = Arc::new(Mutex::new(Vec::new()));
    let of = |form: Option<Form>| -> std::result::Result<Vec<Tensor>, Error> {
        let names = launched.clone();
        let note =
            move |launched: &Launched<'_>| names.lock().expect("no panic").push(launched.kernel.kernel().ir().name.clone());
        let operator = Operator::builtin("causal_attention")?.with_observer(note);
        let operator = form.into_iter().fold(operator, Operator::with_gradient_form);
        let [q, k, v] = [0, 1, 2].map(|n| variables[n].as_tensor().into());
        let o = operator.call(&[q, k, v, 0.25.into()])?.into_first();
        Ok(gradients(&o, &weights, &variables)?)
    };
    let [chosen, plain, fused] = [None, Some(Form::Plain), Some(Form::Fused)].map(of);
    let (chosen, plain, fused) = (chosen?, plain?, fused?);
    for ((chosen, plain), fused) in chosen.iter().zip(&plain).zip(&fused) {
        assert_eq!(difference(chosen, plain)?, 0.0, "the plain form is taken on the CPU");
        assert!(difference(plain, fused)? < 1e-4);
    }
    let launched = launched.lock().expect("no panic");
    assert!(launched.iter().filter(|name| name.ends_with("_grad_sums")).count() == 1, "once fused: {launched:?}");
    let gated = Operator::builtin("bias_attention")?.with_gradient_form(Form::Fused);
    let bias = Var::from_tensor(&random(&[4, 37, 41], DType::F32)?)?;
    let [q, k, v] = [0, 1, 2].map(|n| variables[n].as_tensor().detach());
    let o = gated.call(&[(&q).into(), (&k).into(), (&v).into(), 0.25.into(), bias.as_tensor().into()])?.into_first();
    let error = o.sum_all()?.backward().expect_err("has no such form").to_string();
    assert!(error.contains("no fused form"), "{error}");
    Ok(())
}

#[test]
fn a_kernel_without_one_says_why_in_the_backward_pass() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::from_text(
        "flash_kernel! {
            pub fn largest<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M)>) {
                let i = program(tiles(M));
                let mut m = full(i, -INF);
                for j in tiles(N) {
                    m = max(m, rowmax(load(x, [i, j])));
                }
                store(y, [i], m.to::<T>());
            }
        }",
    )?;
    let x = Var::from_tensor(&Tensor::new(&[[1f32, 3.0], [4.0, 2.0]], &Device::Cpu)?)?;
    let y = operator.call(&[x.as_tensor().into()])?.into_first();
    assert_eq!(y.to_vec1::<f32>()?, [3.0, 4.0]);
    for _ in 0..2 {
        let error = y.sum_all()?.backward().expect_err("has no gradient").to_string();
        assert!(error.contains("kernel text:8:17"), "{error}");
    }
    Ok(())
}

#[test]
fn four_variables_are_too_many() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::builtin("alibi_attention")?;
    let x = Var::from_tensor(&random(&[1, 2, 4, 8], DType::F32)?)?;
    let slopes = Var::from_tensor(&random(&[2], DType::F32)?)?;
    let [q, k, v] = [x.as_tensor(); 3].map(flashtile_candle::Input::from);
    let result = operator.call(&[q, k, v, 1.0.into(), slopes.as_tensor().into()])?.into_first();
    let error = result.sum_all()?.backward().expect_err("four are too many").to_string();
    assert!(error.contains("of kernel `alibi_attention` q, k, v, slopes need gradients"), "{error}");
    let detached = slopes.as_tensor().detach();
    let result = operator.call(&[q, k, v, 1.0.into(), (&detached).into()])?.into_first();
    assert!(result.sum_all()?.backward()?.get(&x).is_some());
    Ok(())
}

/// Settings that change after a call count for the next one.
#[test]
fn settings_after_a_call_count() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let x = Var::from_tensor(&random(&[1, 2, 9, 16], DType::F32)?)?;
    let launched = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let call = |operator: &Operator| -> std::result::Result<Vec<usize>, Box<dyn std::error::Error>> {
        let o = operator.call(&[(&x).into(), (&x).into(), (&x).into(), 0.5.into()])?.into_first();
        o.sum_all()?.backward()?;
        Ok(o.stride().to_vec())
    };
    let operator = Operator::builtin("attention")?;
    assert_eq!(call(&operator)?, [288, 144, 16, 1]);
    let seen = launched.clone();
    let operator = operator.with_layout("o", [0, 2, 1, 3]).with_gradient_form(flashtile::Form::Fused);
    let operator =
        operator.with_observer(move |launch| seen.lock().expect("whole").push(launch.kernel.kernel().ir().name.clone()));
    assert_eq!(call(&operator)?, [288, 16, 32, 1]);
    let launched = launched.lock().expect("whole").clone();
    assert_eq!(launched.len(), 4, "{launched:?}");
    assert!(launched.iter().any(|name| name.ends_with("_sums")), "the fused form: {launched:?}");
    Ok(())
}
