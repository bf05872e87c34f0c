//! Events: places in the work of a stream, which the host or another stream can wait for.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::{check, check_status, functions};
use crate::device::DeviceError;

/// An event, destroyed on drop.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks what is shared.
unsafe impl Sync for Event {}

impl Event {
    /// An event with a time.
    pub fn timed(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::new(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event without a time, which costs the device less.
    pub fn untimed(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::new(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn new(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, DeviceError> {
        context.bind()?;
        Ok(Self { context: context.clone(), event: check(&context.id, "cuEventCreate", result::event::create(flags))? })
    }

    pub fn raw(&self) -> sys::CUevent {
        self.event
    }

    /// Whether all work before the event has ended.
    pub fn has_passed(&self) -> Result<bool, DeviceError> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.event) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(&self.context.id, "cuEventQuery", other).map(|()| true),
        }
    }

    /// Waits on the host.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        check(&self.context.id, "cuEventSynchronize", unsafe { result::event::synchronize(self.event) })
    }

    /// Seconds from this event to a later one. Both are timed, and have passed.
    pub fn seconds_to(&self, later: &Event) -> Result<f64, DeviceError> {
        self.context.bind()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive, and `milliseconds` is written before the call returns.
        let status = unsafe { (functions()?.event_elapsed_time)(&mut milliseconds, self.event, later.event) };
        check_status(&self.context.id, "cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: we created it and destroy it once; the driver waits for work that still needs it. A failure leaves
            // nothing to be done.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
