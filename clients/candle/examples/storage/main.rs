//! Where a launch of flashtile reads and writes: on the very addresses and the stream of candle,
//! with no memory of its own.
//!
//! `cargo run --release --example storage` runs on the CPU; with `--features cuda -- cuda`, on the
//! first GPU. The program ends with an error if a result differs from candle's, if a tensor was
//! copied, if flashtile allocated memory, or if the kernel did not run on candle's stream.

mod place;
#[path = "../../tests/reference/mod.rs"]
mod reference;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor, bail};
use flashtile::{ArgumentForm, ArgumentValue, Stream};
use flashtile_candle::{Launched, Operator};
use reference::{Sizes, attention, difference, mask};

/// Of no use to a tile: no size is a multiple of a block, and a GPU has more processors than this
/// makes programs.
const ODD: Sizes = [2, 6, 2, 70, 133, 64];
/// Of a prompt. Only for a GPU: on a CPU it would take most of the time.
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
        // candle's attention is in f32. flashtile rounds the probabilities and the result to the
        // element type.
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let Compared { difference, schedule } = compare(device, dtype, sizes)?;
            let [b, h, g, m, n, d] = sizes;
            println!("  {dtype:?} (B, H, G, M, N, D) = ({b}, {h}, {g}, {m}, {n}, {d})");
            println!("    largest difference from candle's attention {difference:.1e}, of {tolerance:.0e} allowed");
            println!("    read and written where candle has the tensors; flashtile allocated nothing in the launch");
            println!("    {schedule}");
            if difference >= tolerance {
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

/// What the latest launch used.
#[derive(Default)]
struct Used {
    addresses: Vec<u64>,
    stream: Option<usize>,
    device: Option<flashtile::Device>,
    schedule: String,
}

impl Used {
    fn of(launched: &Launched<'_>) -> Self {
        let address = |(_, value): &(ArgumentForm<'_>, ArgumentValue)| match value {
            ArgumentValue::Address(address) => Some(*address),
            ArgumentValue::F32(_) | ArgumentValue::I32(_) => None,
        };
        let variants: Vec<String> = launched.kernel.variants().into_iter().map(|v| v.schedule.to_string()).collect();
        Self {
            addresses: launched.arguments.iter().filter_map(address).collect(),
            stream: launched.stream.and_then(Stream::as_raw).map(|handle| handle.addr()),
            device: Some(launched.kernel.device().clone()),
            schedule: if variants.is_empty() { "interpreted".to_owned() } else { variants.join("\n    ") },
        }
    }
}

/// Runs both, and looks at what flashtile used.
fn compare(device: &Device, dtype: DType, sizes: Sizes) -> Result<Compared> {
    let [b, h, g, m, n, d] = sizes;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
    // A projection gives (B, M, H * D): its heads are a transposed view, which neither side copies.
    let q = random(&[b, m, h * d])?.reshape((b, m, h, d))?.transpose(1, 2)?;
    let (k, v) = (random(&[b, n, g, d])?.transpose(1, 2)?, random(&[b, g, n, d])?);
    let scale = 1.0 / (d as f32).sqrt();
    let used = Arc::new(Mutex::new(Used::default()));
    let seen = used.clone();
    let operator = Operator::builtin("causal_attention")?
        .with_observer(move |launched| *seen.lock().unwrap_or_else(PoisonError::into_inner) = Used::of(launched));
    let call = || operator.call(&[(&q).into(), (&k).into(), (&v).into(), scale.into()]);
    // The first launch loads code, and allocates what the kernel itself needs, such as counters.
    call()?;
    let Some(memory) = used.lock().unwrap_or_else(PoisonError::into_inner).device.clone() else {
        bail!("{dtype:?}: the kernel was not launched")
    };
    memory.reset_peak_memory();
    let before = memory.memory_use();
    let outputs = call()?;
    let allocated = memory.memory_use().peak - before.current;
    if allocated > 0 {
        bail!("{dtype:?}: {allocated} bytes were allocated beside candle's");
    }
    let used = used.lock().unwrap_or_else(PoisonError::into_inner);
    let (found, lse) = (outputs.get("o")?, outputs.get("lse")?);
    let candle = [&q, &k, &v, found, lse].into_iter().map(place::address).collect::<Result<Vec<_>>>()?;
    if used.addresses != candle {
        bail!("{dtype:?}: the kernel used {:x?}, candle's tensors lie at {candle:x?}", used.addresses);
    }
    if used.stream != stream(device) {
        bail!("{dtype:?}: launched on stream {:x?}, candle's is {:x?}", used.stream, stream(device));
    }
    // Bottom-right aligned: the last query sees all keys.
    let hidden = mask(m, n, |i, j| i >= j)?.to_device(device)?;
    let expected = attention(&q, &k, &v, |s| (s * f64::from(scale))?.broadcast_add(&hidden))?;
    Ok(Compared { difference: difference(found, &expected)?, schedule: used.schedule.clone() })
}

/// The handle of the stream on which candle queues, which a CPU does not have.
fn stream(device: &Device) -> Option<usize> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => Some(cuda.cuda_stream().cu_stream().addr()),
        _ => None,
    }
}
