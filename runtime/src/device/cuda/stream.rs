//! Streams and graphs of a GPU.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::{check, check_status};
use crate::device::DeviceError;

/// A stream: one of ours, destroyed on drop, or one of the caller's.
#[derive(Debug)]
pub(crate) struct CudaStream {
    context: Arc<Context>,
    stream: sys::CUstream,
    owned: bool,
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
        Ok(Self { context: context.clone(), stream: check(&context.id, "cuStreamCreate", created)?, owned: true })
    }

    /// The caller's stream.
    ///
    /// # Safety
    /// `stream` is a `CUstream` of this context, alive for as long as the result is.
    pub unsafe fn borrowed(context: &Arc<Context>, stream: *mut std::ffi::c_void) -> Self {
        Self { context: context.clone(), stream: stream.cast(), owned: false }
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Whether it is a stream of this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
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
        check(&self.context.id, "cuStreamBeginCapture_v2", unsafe { result::stream::begin_capture(self.stream, mode) })
    }

    /// Whether what is queued is captured.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        self.context.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, and `status` is written before the call returns.
        let asked = unsafe { sys::cuStreamIsCapturing(self.stream, &mut status) };
        check_status(&self.context.id, "cuStreamIsCapturing", asked)?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The number of the capture that what is queued goes into, the same on all streams of it; `None` if nothing is captured.
    pub(super) fn capture(&self) -> Result<Option<u64>, DeviceError> {
        self.context.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is alive; `status` and `id` are written before the call returns, and what is not asked for is null.
        let asked = unsafe { sys::cuStreamGetCaptureInfo_v2(self.stream, &mut status, &mut id, graph, nodes, count) };
        check_status(&self.context.id, "cuStreamGetCaptureInfo_v2", asked)?;
        Ok((status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE).then_some(id))
    }

    /// Ends capturing and makes what was queued launchable.
    pub fn end_capture(&self) -> Result<CudaGraph, DeviceError> {
        self.context.bind()?;
        let id = &self.context.id;
        // SAFETY: the stream is alive; a stream that captures nothing gives an error.
        let graph = check(id, "cuStreamEndCapture", unsafe { result::stream::end_capture(self.stream) })?;
        // SAFETY: the graph was just made.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; an instantiated graph does not need it any more.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let executable = check(id, "cuGraphInstantiateWithFlags", executable)?;
        let graph = CudaGraph { context: self.context.clone(), executable };
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

/// Captured work.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: a graph handle may be used from any thread, though not from two at once: see `launch`.
unsafe impl Send for CudaGraph {}
// SAFETY: the driver serialises launches of one executable graph.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Queues the captured work.
    pub fn launch(&self, stream: &CudaStream) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: graph and stream are alive.
        check(&self.context.id, "cuGraphLaunch", unsafe { result::graph::launch(self.executable, stream.raw()) })
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
