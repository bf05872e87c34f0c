//! Counts the memory that a device has given out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a device's memory that this process has allocated through this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Now.
    pub current: usize,
    /// The most since [`super::Device::reset_peak_memory`], or since the start.
    pub peak: usize,
}

/// The count of one device.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    current: AtomicUsize,
    peak: AtomicUsize,
}

impl Meter {
    /// Counts an allocation for as long as the result lives.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let current = self.current.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(current, Ordering::SeqCst);
        Held { meter: self.clone(), bytes }
    }

    /// What is held.
    pub fn read(&self) -> MemoryUse {
        MemoryUse { current: self.current.load(Ordering::SeqCst), peak: self.peak.load(Ordering::SeqCst) }
    }

    /// Takes what is held now for the most so far.
    pub fn reset_peak(&self) {
        self.peak.store(self.current.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// An allocation that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    meter: Arc<Meter>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.current.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_stays_and_is_reset() {
        let meter = Arc::new(Meter::default());
        let one = meter.hold(100);
        drop(meter.hold(50));
        assert_eq!(meter.read(), MemoryUse { current: 100, peak: 150 });
        meter.reset_peak();
        assert_eq!(meter.read(), MemoryUse { current: 100, peak: 100 });
        drop(one);
        assert_eq!(meter.read(), MemoryUse { current: 0, peak: 100 });
    }
}
