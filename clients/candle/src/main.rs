//! candle-core and flashtile in one program: attention on tensors that candle owns, compared with candle's own.
//!
//! `cargo run --release` runs on the CPU, `cargo run --release --features cuda -- cuda` on the first GPU. The program ends
//! with an error if a result is wrong, or if a tensor was copied.

mod attention;

use attention::Attention;
use candle_core::{D, DType, Device, Result, Tensor, bail};

/// Batches, query heads, key heads, queries, keys, head dim.
const SIZES: [usize; 6] = [2, 6, 2, 70, 133, 64];

fn main() -> Result<()> {
    let gpu = std::env::args().nth(1).is_some_and(|name| name == "cuda");
    let device = if gpu { Device::new_cuda(0)? } else { Device::Cpu };
    // candle rounds each step to the element type, flashtile only the result.
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let error = compare(&device, dtype)?;
        println!("{dtype:?} on {:?}: largest difference {error:.1e}, nothing copied", device.location());
        // The comparison must fail for NaN too.
        if !(error < tolerance) {
            bail!("{dtype:?}: differs from candle by {error}, allowed are {tolerance}");
        }
    }
    Ok(())
}

/// The largest difference between both.
fn compare(device: &Device, dtype: DType) -> Result<f32> {
    let [b, h, g, m, n, d] = SIZES;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
    // A projection gives (B, M, H * D): its heads are a transposed view, which neither side copies.
    let q = random(&[b, m, h * d])?.reshape((b, m, h, d))?.transpose(1, 2)?;
    let (k, v) = (random(&[b, n, g, d])?.transpose(1, 2)?, random(&[b, g, n, d])?);
    let scale = 1.0 / (d as f32).sqrt();
    let op = Attention::new(device, dtype, d, scale)?;
    op.device().reset_peak_memory();
    let before = op.device().memory_use();
    let found = q.apply_op3_no_bwd(&k, &v, &op)?;
    let after = op.device().memory_use();
    // What the kernel itself needs, such as counters, is allocated on a GPU when its code is loaded.
    let allocated = after.peak - before.current;
    let largest = b * h * m * d * dtype.size_in_bytes();
    if allocated >= largest {
        bail!("{allocated} bytes were allocated beside candle's, as many as a tensor has");
    }
    let expected = reference(&q, &k, &v, scale)?;
    let difference = (found.to_dtype(DType::F32)? - expected)?.abs()?;
    difference.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()
}

/// Causal attention by candle's own operators, in f32.
fn reference(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let [b, h, g, m, n, d] = SIZES;
    let f32 = |x: &Tensor| x.to_dtype(DType::F32)?.contiguous();
    let repeat = |x: &Tensor| f32(x)?.unsqueeze(2)?.expand((b, g, h / g, n, d))?.reshape((b, h, n, d));
    let (q, k, v) = (f32(q)?, repeat(k)?, repeat(v)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? * f64::from(scale))?;
    // Bottom-right aligned: the last query sees all keys.
    let hidden = |i: usize, j: usize| if i + n - m >= j { 0.0 } else { f32::NEG_INFINITY };
    let mask: Vec<f32> = (0..m).flat_map(|i| (0..n).map(move |j| hidden(i, j))).collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(mask, (m, n), q.device())?)?;
    let p = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    p.broadcast_div(&p.sum_keepdim(D::Minus1)?)?.matmul(&v)
}
