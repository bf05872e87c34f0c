//! Streams of a GPU.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::{check, check_status, functions};
use super::event::Event;
use crate::device::DeviceError;

/// A stream: one of ours, destroyed on drop, or one of the caller's.
#[derive(Debug)]
pub(crate) struct CudaStream {
    context: Arc<Context>,
    stream: sys::CUstream,
    owned: bool,
    /// Whether the caller sees to the order of all work on the memory that launches here use.
    ordered: bool,
    /// The place up to which others wait for this stream. It is recorded anew for each launch: who
    /// waits for an earlier launch then waits for a later one too.
    mark: OnceLock<Arc<Event>>,
}

// SAFETY: a stream handle may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver locks what is shared.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// A new stream that does not wait for the legacy default stream.
    pub fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let created = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = check(&context.id, "cuStreamCreate", created)?;
        Ok(Self { context: context.clone(), stream, owned: true, ordered: false, mark: OnceLock::new() })
    }

    /// The caller's stream.
    ///
    /// # Safety
    /// `stream` is a `CUstream` of this context, alive for as long as the result is. If it is
    /// `ordered`, the caller orders all work on memory that launches on it use.
    pub unsafe fn borrowed(context: &Arc<Context>, stream: *mut std::ffi::c_void, ordered: bool) -> Self {
        Self { context: context.clone(), stream: stream.cast(), owned: false, ordered, mark: OnceLock::new() }
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether launches here neither wait for other streams nor are waited for.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Whether it is a stream of this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The driver's handle.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.stream.cast()
    }

    /// Moves an event of this context to behind all that is queued.
    pub(super) fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: event and stream are alive and of one context.
        check(&self.context.id, "cuEventRecord", unsafe { result::event::record(event.raw(), self.stream) })
    }

    /// Makes what is queued from now on wait for an event of this context, as it was last recorded.
    /// The host does not wait.
    pub(super) fn hold_for(&self, event: &Event) -> Result<(), DeviceError> {
        self.context.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are alive and of one context.
        let waits = unsafe { result::stream::wait_event(self.stream, event.raw(), flags) };
        check(&self.context.id, "cuStreamWaitEvent", waits)
    }

    /// An event behind everything queued.
    pub(super) fn mark(&self) -> Result<Arc<Event>, DeviceError> {
        let event = match self.mark.get() {
            Some(event) => event,
            None => {
                let event = Arc::new(Event::untimed(&self.context)?);
                self.mark.get_or_init(|| event)
            }
        };
        self.record(event)?;
        Ok(event.clone())
    }

    /// Whether an event is that of [`CudaStream::mark`]: this stream need not wait for it.
    pub(super) fn has(&self, event: &Arc<Event>) -> bool {
        self.mark.get().is_some_and(|own| Arc::ptr_eq(own, event))
    }

    /// Makes what is queued here from now on wait for what is queued on another stream.
    pub fn wait_for(&self, other: &CudaStream) -> Result<(), DeviceError> {
        // An event of its own: the mark of a stream that captures must not become part of the graph.
        let event = Event::untimed(&other.context)?;
        other.record(&event)?;
        self.hold_for(&event)
    }

    /// Waits for everything queued.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        check(&self.context.id, "cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Whether what is queued is captured.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        Ok(self.capture()?.is_some())
    }

    /// The number of the capture that what is queued goes into, the same on all streams of it;
    /// `None` if nothing is captured.
    pub(super) fn capture(&self) -> Result<Option<u64>, DeviceError> {
        self.context.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is alive; `status` and `id` are written before the call returns, and what is not asked for is null.
        let asked = unsafe { (functions()?.stream_get_capture_info)(self.stream, &mut status, &mut id, graph, nodes, count) };
        check_status(&self.context.id, "cuStreamGetCaptureInfo_v2", asked)?;
        Ok((status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE).then_some(id))
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.owned && self.context.bind().is_ok() {
            // SAFETY: we created it and destroy it once; the driver finishes queued work first. A failure leaves
            // nothing to be done.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}
