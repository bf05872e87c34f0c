//! The functions in the layout of candle-flash-attn, compared with candle's operators.

mod reference;

use candle_core::{DType, Result, Tensor};
use flashtile_candle::attention::{flash_attn, flash_attn_alibi, flash_attn_softcap, flash_attn_windowed};
use reference::{Sizes, attention, difference, mask, random};

/// No size is a multiple of a tile; groups of 1, 3 and 4 heads; fewer queries than keys, and one.
const SHAPES: [Sizes; 4] = [[2, 3, 3, 37, 37, 32], [1, 9, 3, 5, 70, 64], [2, 4, 1, 65, 130, 40], [3, 2, 2, 1, 19, 16]];

const TYPES: [(DType, f32); 3] = [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

/// Runs a function on all shapes and types; `expected` is given the scores with their scale.
fn check(
    found: impl Fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>,
    expected: impl Fn(&Tensor, Sizes) -> Result<Tensor>,
) -> Result<()> {
    for sizes in SHAPES {
        let [b, h, g, m, n, d] = sizes;
        for (dtype, tolerance) in TYPES {
            let (q, k, v) = (random(&[b, m, h, d], dtype)?, random(&[b, n, g, d], dtype)?, random(&[b, n, g, d], dtype)?);
            let scale = 1.0 / (d as f32).sqrt();
            let found = found(&q, &k, &v, scale)?;
            assert_eq!((found.dims(), found.dtype()), (q.dims(), dtype));
            assert!(found.is_contiguous());
            let heads = [&q, &k, &v].map(|x| x.transpose(1, 2));
            let [q, k, v] = heads;
            let wanted = attention(&q?, &k?, &v?, |s| expected(&(s * f64::from(scale))?, sizes))?.transpose(1, 2)?;
            let difference = difference(&found, &wanted)?;
            assert!(difference < tolerance, "{sizes:?} {dtype:?}: differs by {difference}");
        }
    }
    Ok(())
}

#[test]
fn full_and_causal() -> Result<()> {
    check(|q, k, v, scale| flash_attn(q, k, v, scale, false), |s, _| Ok(s.clone()))?;
    let causal = |s: &Tensor, [_, _, _, m, n, _]: Sizes| s.broadcast_add(&mask(m, n, |i, j| i >= j)?);
    check(|q, k, v, scale| flash_attn(q, k, v, scale, true), causal)?;
    check(|q, k, v, scale| flash_attn_windowed(q, k, v, scale, None, Some(0)), causal)?;
    check(|q, k, v, scale| flash_attn_windowed(q, k, v, scale, None, None), |s, _| Ok(s.clone()))
}

#[test]
fn windows() -> Result<()> {
    for left in [0, 7, 200] {
        let seen = move |i: i64, j: i64| i >= j && i - j <= left;
        check(
            |q, k, v, scale| flash_attn_windowed(q, k, v, scale, Some(left as usize), Some(0)),
            |s, [_, _, _, m, n, _]| s.broadcast_add(&mask(m, n, seen)?),
        )?;
    }
    let x = random(&[1, 4, 2, 8], DType::F32)?;
    let causal = flash_attn(&x, &x, &x, 1.0, true)?;
    for left in [x.dim(1)?, i32::MAX as usize, usize::MAX] {
        assert_eq!(difference(&flash_attn_windowed(&x, &x, &x, 1.0, Some(left), Some(0))?, &causal)?, 0.0);
    }
    let error = flash_attn_windowed(&x, &x, &x, 1.0, Some(1), Some(1)).expect_err("not built in").to_string();
    assert!(error.contains("write its mask in a kernel text for Operator::from_text"), "{error}");
    Ok(())
}

#[test]
fn alibi() -> Result<()> {
    let slopes = |h: usize| {
        let values: Vec<f32> = (1..=h).map(|at| (0.5f32).powi(at as i32)).collect();
        Tensor::from_vec(values, h, &candle_core::Device::Cpu)
    };
    check(
        |q, k, v, scale| flash_attn_alibi(q, k, v, &slopes(q.dim(2)?)?, scale, true),
        |s, [_, h, _, m, n, _]| {
            let distance: Vec<f32> = (0..m * n).map(|at| (at / n + n) as f32 - (m + at % n) as f32).collect();
            let distance = Tensor::from_vec(distance, (1, m, n), s.device())?;
            let bias = slopes(h)?.reshape((h, 1, 1))?.broadcast_mul(&distance)?;
            s.broadcast_sub(&bias)?.broadcast_add(&mask(m, n, |i, j| i >= j)?)
        },
    )
}

#[test]
fn softcap() -> Result<()> {
    check(
        |q, k, v, scale| flash_attn_softcap(q, k, v, scale, 2.0),
        |s, [_, _, _, m, n, _]| ((s / 2.0)?.tanh()? * 2.0)?.broadcast_add(&mask(m, n, |i, j| i >= j)?),
    )
}

#[test]
fn ranks_and_groups_are_checked() -> Result<()> {
    let x = random(&[1, 4, 3, 8], DType::F32)?;
    let error = flash_attn(&x.squeeze(0)?, &x, &x, 1.0, true).expect_err("of rank 3").to_string();
    assert!(error.contains("q has shape [4, 3, 8]"), "{error}");
    let two = x.narrow(2, 0, 2)?;
    let error = flash_attn(&x, &two, &two, 1.0, true).expect_err("3 heads for 2").to_string();
    assert!(error.contains("3 query heads are no multiple of 2 key heads"), "{error}");
    Ok(())
}
