//! Streams and graphs of a GPU.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::{check, check_status, functions};
use super::event::Event;
use super::uses::{Access, Entered, Uses};
use crate::device::DeviceError;

/// A stream: one of ours, destroyed on drop, or one of the caller's.
#[derive(Debug)]
pub(crate) struct CudaStream {
    context: Arc<Context>,
    stream: sys::CUstream,
    owned: bool,
    /// The place up to which others wait for this stream. It is recorded anew for each launch: who waits for an earlier
    /// launch then waits for a later one too.
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
        Ok(Self { context: context.clone(), stream, owned: true, mark: OnceLock::new() })
    }

    /// The caller's stream.
    ///
    /// # Safety
    /// `stream` is a `CUstream` of this context, alive for as long as the result is.
    pub unsafe fn borrowed(context: &Arc<Context>, stream: *mut std::ffi::c_void) -> Self {
        Self { context: context.clone(), stream: stream.cast(), owned: false, mark: OnceLock::new() }
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Whether it is a stream of this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The driver's handle.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.stream.cast()
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
        event.record(self)?;
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
        event.record(other)?;
        event.hold_back(self)
    }

    /// Waits for everything queued.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        check(&self.context.id, "cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Starts capturing what is queued, instead of running it.
    pub fn begin_capture(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let begun = unsafe { result::stream::begin_capture(self.stream, mode) };
        check(&self.context.id, "cuStreamBeginCapture_v2", begun)?;
        if let Some(capture) = self.capture()? {
            self.context.captures.begin(capture);
        }
        Ok(())
    }

    /// Whether what is queued is captured.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        Ok(self.capture()?.is_some())
    }

    /// The number of the capture that what is queued goes into, the same on all streams of it; `None` if nothing is captured.
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

    /// Ends capturing and makes what was queued launchable.
    pub fn end_capture(&self) -> Result<CudaGraph, DeviceError> {
        self.context.bind()?;
        let id = &self.context.id;
        let uses = self.capture()?.map(|capture| self.context.captures.end(capture)).unwrap_or_default();
        // SAFETY: the stream is alive; a stream that captures nothing gives an error.
        let graph = check(id, "cuStreamEndCapture", unsafe { result::stream::end_capture(self.stream) })?;
        // SAFETY: the graph was just made.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; an instantiated graph does not need it any more.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let executable = check(id, "cuGraphInstantiateWithFlags", executable)?;
        let graph = CudaGraph { context: self.context.clone(), executable, uses };
        check(id, "cuGraphDestroy", destroyed)?;
        Ok(graph)
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

/// The uses of memory by the captures that run, so that launches of their graphs wait and are waited for.
#[derive(Debug, Default)]
pub(super) struct Captures {
    running: Mutex<Vec<(u64, CapturedUses)>>,
}

/// The uses of memory by a graph.
type CapturedUses = Vec<(Arc<Uses>, Access)>;

impl Captures {
    fn begin(&self, capture: u64) {
        self.lock().push((capture, Vec::new()));
    }

    /// Notes a use by captured work. A capture that another library began is not known here.
    pub fn note(&self, capture: u64, uses: &Arc<Uses>, access: Access) {
        let mut running = self.lock();
        let Some((_, noted)) = running.iter_mut().find(|(of, _)| *of == capture) else { return };
        match noted.iter_mut().find(|(of, _)| Arc::ptr_eq(of, uses)) {
            Some((_, before)) => *before = before.and(access),
            None => noted.push((uses.clone(), access)),
        }
    }

    fn end(&self, capture: u64) -> CapturedUses {
        let mut running = self.lock();
        match running.iter().position(|(of, _)| *of == capture) {
            Some(at) => running.swap_remove(at).1,
            None => Vec::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, CapturedUses)>> {
        // A poisoned lock holds uses like any other: no change of them panics half-way.
        self.running.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Captured work.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
    uses: CapturedUses,
}

// SAFETY: a graph handle may be used from any thread, though not from two at once: see `launch`.
unsafe impl Send for CudaGraph {}
// SAFETY: the driver serialises launches of one executable graph.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Queues the captured work, after what uses its memory on other streams. `own` is the device's own stream.
    pub fn launch(&self, stream: &CudaStream, own: &CudaStream) -> Result<(), DeviceError> {
        if !stream.is_of(&self.context) {
            return Err(DeviceError::OtherDevice { device: self.context.id.clone() });
        }
        let _entered = Entered::new(&self.context.id, self.uses.iter().map(|(uses, _)| &**uses))?;
        let capture = stream.capture()?;
        if capture.is_none() {
            self.uses.iter().try_for_each(|(uses, access)| uses.order(*access, stream, own))?;
        }
        self.context.bind()?;
        // SAFETY: graph and stream are alive.
        check(&self.context.id, "cuGraphLaunch", unsafe { result::graph::launch(self.executable, stream.raw()) })?;
        match capture {
            Some(capture) => {
                self.uses.iter().for_each(|(uses, access)| self.context.captures.note(capture, uses, *access));
            }
            None => {
                let mark = stream.mark()?;
                self.uses.iter().for_each(|(uses, access)| uses.note(&mark, *access));
            }
        }
        Ok(())
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: we created it and destroy it once. A failure leaves nothing to be done.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}
