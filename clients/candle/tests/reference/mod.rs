//! Attention by candle's own operators, which candle differentiates, and comparisons.

#![allow(dead_code, reason = "each test file uses a part")]

use std::cell::RefCell;

use candle_core::{D, DType, Device, Result, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};

/// Batches, query heads, key heads, queries, keys, head dim.
pub type Sizes = [usize; 6];

/// What is added to scores before the softmax: 0 where a key is seen, and minus infinity elsewhere.
pub fn mask(m: usize, n: usize, sees: impl Fn(i64, i64) -> bool) -> Result<Tensor> {
    let value = |i: usize, j: usize| if sees((i + n) as i64 - m as i64, j as i64) { 0.0 } else { f32::NEG_INFINITY };
    let values: Vec<f32> = (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| value(i, j)).collect();
    Tensor::from_vec(values, (m, n), &Device::Cpu)
}

/// Attention of `q (B, H, M, D)`, `k` and `v (B, G, N, D)` in f32; `scores` changes the scores.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, scores: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (b, h, _, d) = q.dims4()?;
    let (_, g, n, _) = k.dims4()?;
    let f32 = |x: &Tensor| x.to_dtype(DType::F32)?.contiguous();
    let repeat = |x: &Tensor| f32(x)?.unsqueeze(2)?.broadcast_as((b, g, h / g, n, d))?.reshape((b, h, n, d));
    let (q, k, v) = (f32(q)?, repeat(k)?, repeat(v)?);
    let s = scores(&q.matmul(&k.t()?.contiguous()?)?)?;
    let p = s.broadcast_sub(&s.max_keepdim(D::Minus1)?.detach())?.exp()?;
    p.broadcast_div(&p.sum_keepdim(D::Minus1)?)?.matmul(&v)
}

/// The largest element, by its absolute value.
fn largest(x: &Tensor) -> Result<f32> {
    let values = x.to_dtype(DType::F32)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
    // NaN must not pass for small.
    Ok(values.into_iter().fold(0.0, |most, x| if x.is_nan() { f32::INFINITY } else { most.max(x) }))
}

/// The largest difference of an element.
pub fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    largest(&(a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?)
}

/// That, in units of the largest element of `wanted` where it is above 1.
pub fn relative_difference(found: &Tensor, wanted: &Tensor) -> Result<f32> {
    Ok(difference(found, wanted)? / largest(wanted)?.max(1.0))
}

thread_local! {
    /// Each test has a thread of its own, and so the same numbers in each run.
    static GENERATOR: RefCell<StdRng> = RefCell::new(StdRng::seed_from_u64(0));
}

/// Normally distributed numbers.
pub fn random(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let number = |rng: &mut StdRng| -> f32 { StandardNormal.sample(rng) };
    let values: Vec<f32> = GENERATOR.with_borrow_mut(|rng| (0..shape.iter().product()).map(|_| number(rng)).collect());
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}
