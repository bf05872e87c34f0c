//! Gradients in candle's graph, compared with those that candle derives of its own operators.

mod reference;

use std::sync::{Arc, Mutex};

use candle_core::{D, DType, Device, Result, Tensor, Var};
use flashtile_candle::attention::{flash_attn, flash_attn_softcap, flash_attn_windowed};
use flashtile_candle::flashtile::Form;
use flashtile_candle::{Error, Launched, Operator};
use reference::{Sizes, attention, difference, mask, random};

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
            let largest = wanted.to_dtype(DType::F32)?.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?;
            let difference = difference(found, wanted)? / largest.max(1.0);
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
    // Values do not change what the exponentials sum up to.
    let qkv = (0..3).map(|_| Var::from_tensor(&random(&[1, 2, 9, 16], DType::F32)?)).collect::<Result<Vec<_>>>()?;
    let attention = Operator::builtin("attention")?.with_gradient_from("lse");
    let made = attention.call(&[qkv[0].as_tensor().into(), qkv[1].as_tensor().into(), qkv[2].as_tensor().into(), 0.25.into()])?;
    let lse = made.get("lse")?;
    let weights = random(lse.dims(), DType::F32)?;
    let ours = gradients(lse, &weights, &qkv)?;
    let scores = (qkv[0].matmul(&qkv[1].t()?)? * 0.25)?;
    let theirs = gradients(&scores.log_sum_exp(D::Minus1)?, &weights, &qkv[..2])?;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(difference(ours, theirs)? < 1e-5);
    }
    assert_eq!(difference(&ours[2], &ours[2].zeros_like()?)?, 0.0);
    Ok(())
}

#[test]
fn other_outputs_carry_none() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::builtin("causal_attention")?;
    let x = Var::from_tensor(&random(&[1, 2, 9, 16], DType::F32)?)?;
    let call = |x: &Tensor| operator.call(&[x.into(), x.into(), x.into(), 0.5.into()]);
    let (tracked, detached) = (call(&x)?, call(&x.as_tensor().detach())?);
    for name in ["o", "lse"] {
        assert_eq!(difference(tracked.get(name)?, detached.get(name)?)?, 0.0);
        assert_eq!((tracked.get(name)?.track_op(), detached.get(name)?.track_op()), (name == "o", false));
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

#[test]
fn the_differentiated_output_is_named_where_it_is_not_clear() -> std::result::Result<(), Box<dyn std::error::Error>> {
    const TWO: &str = "flash_kernel! {
        pub fn two<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>, z: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            let x_ij = load(x, [i, j]);
            store(y, [i, j], (x_ij * 2.0).to::<T>());
            store(z, [i, j], (x_ij * 3.0).to::<T>());
        }
    }";
    let x = Var::from_tensor(&random(&[3, 4], DType::F32)?)?;
    let gradient = |operator: Operator, output: &str| -> std::result::Result<Tensor, Error> {
        let outputs = operator.call(&[x.as_tensor().into()])?;
        let store = outputs.get(output)?.sum_all()?.backward()?;
        Ok(store.get(&x).cloned().ok_or_else(|| candle_core::Error::msg("no gradient"))?)
    };
    let error = gradient(Operator::from_text(TWO)?, "y").expect_err("y or z").to_string();
    assert!(error.contains("kernel `two` has no single output to differentiate, but y, z"), "{error}");
    let found = gradient(Operator::from_text(TWO)?.with_gradient_from("z"), "z")?;
    assert_eq!(found.to_vec2::<f32>()?, vec![vec![3.0; 4]; 3]);
    Ok(())
}
