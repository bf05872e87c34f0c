//! Times of work on a GPU, by events, with the L2 cache flushed before each repetition.

use std::sync::Arc;

use super::event::Event;
use super::gpu::Cuda;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use crate::device::DeviceError;
use crate::error::Result;

/// A pair of events and a buffer that is larger than the L2 cache.
#[derive(Debug)]
pub(crate) struct Timer {
    stream: Arc<CudaStream>,
    flush: DeviceMemory,
    start: Event,
    end: Event,
}

impl Timer {
    /// A timer of work on the device's own stream.
    pub fn new(gpu: &Cuda) -> Result<Self, DeviceError> {
        let flush = usize::try_from(gpu.gpu().l2_bytes).unwrap_or(0).max(32 << 20) * 2;
        Ok(Self {
            stream: gpu.stream().clone(),
            flush: gpu.allocate_memory(flush)?,
            start: Event::timed(gpu.context())?,
            end: Event::timed(gpu.context())?,
        })
    }

    /// Seconds that the device takes for what `queue` queues on the device's own stream, with a cold L2 cache. The
    /// flush keeps the device busy while the host queues, so the host's time does not count.
    pub fn time(&self, queue: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.flush.queue_fill(0)?;
        self.between_events(queue)
    }

    /// Seconds of one of many runs of `queue` that follow each other: as many as `seconds` take, after as many that do not count.
    pub fn time_under_load(&self, seconds: f64, queue: impl Fn() -> Result<()>) -> Result<f64> {
        let one = self.between_events(&queue)?;
        let count = (seconds / one.max(1e-7)).ceil().clamp(1.0, 1e4) as u32;
        (0..count).try_for_each(|_| queue())?;
        let all = self.between_events(|| (0..count).try_for_each(|_| queue()))?;
        Ok(all / f64::from(count))
    }

    /// Seconds between two events around what `queue` queues.
    fn between_events(&self, queue: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.stream.record(&self.start)?;
        queue()?;
        self.stream.record(&self.end)?;
        self.end.wait()?;
        Ok(self.start.seconds_to(&self.end)?)
    }
}
