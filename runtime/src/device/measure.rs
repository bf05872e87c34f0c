//! Times of work on a device.

use std::time::Instant;

use super::Device;
use super::cuda::{Cuda, Timer};
use crate::error::Result;

/// Seconds of `repetitions` runs of what `run` queues on the device's own stream, after `warm_ups` that do not count.
///
/// On a GPU: by device events, with the L2 cache flushed before each run. On the CPU: by the clock.
///
/// # Errors
/// What `run` says, or the device fails.
///
/// ```
/// use flashtile::device::{Device, measure};
/// let seconds = measure(&Device::cpu(), 1, 3, || Ok(()))?;
/// assert_eq!(seconds.len(), 3);
/// # Ok::<(), flashtile::Error>(())
/// ```
pub fn measure(device: &Device, warm_ups: usize, repetitions: usize, mut run: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let timer = match device.backend().as_any().downcast_ref::<Cuda>() {
        Some(gpu) => Some(Timer::new(gpu)?),
        None => None,
    };
    let mut seconds = Vec::with_capacity(repetitions);
    for n in 0..warm_ups + repetitions {
        let time = match &timer {
            Some(timer) => timer.time(&mut run)?,
            None => {
                let start = Instant::now();
                run()?;
                start.elapsed().as_secs_f64()
            }
        };
        if n >= warm_ups {
            seconds.push(time);
        }
    }
    Ok(seconds)
}
