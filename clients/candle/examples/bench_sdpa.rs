//! Times causal attention of flashtile beside candle's operators on a GPU.
//!
//! `cargo run --release --features cuda --example bench_sdpa`, with `-- f16` for another type. A
//! time is the median of rounds, each of which queues some calls and waits for them. Both results
//! are compared first.

#[path = "../tests/reference/mod.rs"]
mod reference;

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor, bail};
use candle_nn::ops::softmax;
use flashtile_candle::attention::flash_attn;
use reference::difference;

/// Batches, query heads, key heads, positions, head dim.
const SHAPES: [[usize; 5]; 4] = [[4, 16, 16, 1024, 128], [2, 16, 4, 2048, 128], [1, 32, 8, 4096, 128], [2, 16, 16, 2048, 64]];
const ROUNDS: usize = 9;
/// Calls of a round.
const CALLS: u32 = 10;

fn main() -> Result<()> {
    let (dtype, tolerance) = match std::env::args().nth(1).as_deref() {
        None | Some("bf16") => (DType::BF16, 3e-2),
        Some("f16") => (DType::F16, 4e-3),
        Some(other) => bail!("no type `{other}`; there are bf16 and f16"),
    };
    let device = Device::new_cuda(0)?;
    for [b, h, g, n, d] in SHAPES {
        let random = |heads: usize| Tensor::randn(0f32, 1.0, (b, n, heads, d), &device)?.to_dtype(dtype);
        let (q, k, v) = (random(h)?, random(g)?, random(g)?);
        let scale = 1.0 / (d as f32).sqrt();
        let hidden = reference::mask(n, n, |i, j| i >= j)?.to_device(&device)?.to_dtype(dtype)?;
        let ours = || flash_attn(&q, &k, &v, scale, true);
        let theirs = || by_candle(&q, &k, &v, scale, &hidden);
        let difference = difference(&ours()?, &theirs()?)?;
        if difference >= tolerance {
            bail!("{dtype:?}: results differ by {difference}, allowed are {tolerance}");
        }
        // Products of pairs that are not hidden.
        let flops = 4.0 * (b * h * d) as f64 * (n * (n + 1) / 2) as f64;
        let (ours, theirs) = (time(&device, ours)?, time(&device, theirs)?);
        let rate = |seconds: f64| flops / seconds * 1e-12;
        println!(
            "{dtype:?} B={b} H={h} G={g} N={n} D={d}: flashtile {:.3} ms ({:.0} TFLOP/s), candle {:.3} ms ({:.0} TFLOP/s)",
            ours * 1e3,
            rate(ours),
            theirs * 1e3,
            rate(theirs)
        );
    }
    Ok(())
}

/// Seconds of a call: the median of rounds.
fn time(device: &Device, call: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        device.synchronize()?;
        rounds.push(start.elapsed().as_secs_f64() / f64::from(CALLS));
    }
    // The first round loads code.
    rounds.remove(0);
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// Causal attention of `(B, N, H, D)` by candle's operators.
fn by_candle(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, hidden: &Tensor) -> Result<Tensor> {
    let ((b, n, h, d), g) = (q.dims4()?, k.dim(2)?);
    let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let repeat = |x: &Tensor| heads(x)?.unsqueeze(2)?.broadcast_as((b, g, h / g, n, d))?.reshape((b, h, n, d));
    let scores = (heads(q)?.matmul(&repeat(k)?.t()?)? * f64::from(scale))?.broadcast_add(hidden)?;
    softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)?.transpose(1, 2)
}
