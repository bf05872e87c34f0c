//! Microseconds of a call on the host: attention by flashtile, and one product of candle beside it.
//! Tensors are so small that the host is slower than the GPU.
//!
//! `cargo run --release --features cuda --example overhead`

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use flashtile_candle::attention::flash_attn;

/// Calls of a round, and rounds.
const CALLS: u32 = 500;
const ROUNDS: usize = 15;

/// The median over rounds; the GPU's work is waited for between them.
fn microseconds(device: &Device, call: impl Fn() -> Result<Tensor>) -> Result<f64> {
    for _ in 0..10 {
        call()?;
    }
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let begin = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        rounds.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let tensor = |heads: usize| Tensor::randn(0f32, 1.0, (1, 64, heads, 64), &device)?.to_dtype(DType::BF16);
    let (q, k, v) = (tensor(4)?, tensor(4)?, tensor(4)?);
    let (a, b) = (q.transpose(1, 2)?.contiguous()?, k.transpose(1, 2)?.transpose(2, 3)?.contiguous()?);
    for causal in [false, true] {
        let took = microseconds(&device, || flash_attn(&q, &k, &v, 0.125, causal))?;
        println!("flash_attn, causal={causal}: {took:.1} us");
    }
    println!("one product of candle: {:.1} us", microseconds(&device, || a.matmul(&b))?);
    println!("one output of candle: {:.1} us", microseconds(&device, || Tensor::zeros(q.shape(), DType::BF16, &device))?);
    Ok(())
}
