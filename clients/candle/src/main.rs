//! candle-core and flashtile in one program: attention on tensors that candle owns, compared with candle's own.
//!
//! `cargo run --release` runs on the CPU, `cargo run --release --features cuda -- cuda` on the first GPU. The program ends
//! with an error if a result is wrong, if a tensor was copied, or if the kernel did not run on candle's stream.

mod attention;
mod place;

use attention::Attention;
use candle_core::{D, DType, Device, Result, Tensor, bail};

/// Batches, query heads, key heads, queries, keys, head dim.
type Sizes = [usize; 6];

/// Of no use to a tile: no size is a multiple of a block, and a GPU has more processors than this makes programs.
const ODD: Sizes = [2, 6, 2, 70, 133, 64];
/// Of a prompt. Only for a GPU: a CPU would take a minute.
const PROMPT: Sizes = [2, 16, 4, 2048, 2048, 128];
/// One query for each head, as a model has them that generates.
const GENERATION: Sizes = [4, 16, 4, 1, 4000, 128];

fn main() -> Result<()> {
    let gpu = std::env::args().nth(1).is_some_and(|name| name == "cuda");
    if gpu {
        // candle queues on the stream of the thread, or on a stream of the device's own.
        on("candle's stream of this thread", &Device::new_cuda(0)?, &[ODD, GENERATION, PROMPT])?;
        on("candle's own stream", &Device::new_cuda_with_stream(0)?, &[ODD, GENERATION, PROMPT])
    } else {
        on("no stream", &Device::Cpu, &[ODD])
    }
}

/// All sizes and element types on one device.
fn on(stream: &str, device: &Device, cases: &[Sizes]) -> Result<()> {
    println!("on {:?}, {stream}:", device.location());
    for &sizes in cases {
        // candle's attention is in f32. flashtile rounds the probabilities and the result to the element type.
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let Compared { difference, schedule } = compare(device, dtype, sizes)?;
            let [b, h, g, m, n, d] = sizes;
            println!("  {dtype:?} (B, H, G, M, N, D) = ({b}, {h}, {g}, {m}, {n}, {d})");
            println!("    largest difference from candle's attention {difference:.1e}, of {tolerance:.0e} allowed");
            println!("    read and written where candle has the tensors; flashtile allocated nothing in the launch");
            println!("    {schedule}");
            // The comparison must fail for NaN too.
            if !(difference < tolerance) {
                bail!("{dtype:?}: differs from candle by {difference}, allowed are {tolerance}");
            }
        }
    }
    Ok(())
}

struct Compared {
    /// The largest difference of an element of both results.
    difference: f32,
    /// What ran.
    schedule: String,
}

/// Runs both, and looks at what flashtile used.
fn compare(device: &Device, dtype: DType, sizes: Sizes) -> Result<Compared> {
    let [b, h, g, m, n, d] = sizes;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
    // A projection gives (B, M, H * D): its heads are a transposed view, which neither side copies.
    let q = random(&[b, m, h * d])?.reshape((b, m, h, d))?.transpose(1, 2)?;
    let (k, v) = (random(&[b, n, g, d])?.transpose(1, 2)?, random(&[b, g, n, d])?);
    let scale = 1.0 / (d as f32).sqrt();
    let op = Attention::new(device, dtype, d, scale)?;
    // The first launch loads code, and allocates what the kernel itself needs, such as counters.
    q.apply_op3_no_bwd(&k, &v, &op)?;
    op.device().reset_peak_memory();
    let before = op.device().memory_use();
    let found = q.apply_op3_no_bwd(&k, &v, &op)?;
    let allocated = op.device().memory_use().peak - before.current;
    if allocated > 0 {
        bail!("{dtype:?}: {allocated} bytes were allocated beside candle's");
    }
    let Some(launched) = op.launched() else { bail!("{dtype:?}: the kernel was not launched") };
    let candle = [place::address(&q)?, place::address(&k)?, place::address(&v)?, place::address(&found)?];
    if launched.addresses != candle {
        bail!("{dtype:?}: the kernel used {:x?}, candle's tensors lie at {candle:x?}", launched.addresses);
    }
    if launched.stream != stream(device) {
        bail!("{dtype:?}: launched on stream {:x?}, candle's is {:x?}", launched.stream, stream(device));
    }
    let expected = reference(&q, &k, &v, scale, sizes)?;
    let difference = (found.to_dtype(DType::F32)? - expected)?.abs()?;
    let difference = difference.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?;
    Ok(Compared { difference, schedule: op.schedule() })
}

/// The handle of the stream on which candle queues, which a CPU does not have.
fn stream(device: &Device) -> Option<usize> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => Some(cuda.cuda_stream().cu_stream().addr()),
        _ => None,
    }
}

/// Causal attention by candle's own operators, in f32.
fn reference(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, sizes: Sizes) -> Result<Tensor> {
    let [b, h, g, m, n, d] = sizes;
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
