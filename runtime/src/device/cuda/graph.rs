//! Graphs of a GPU: work that a stream captures, and the memory that it uses.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::check;
use super::stream::CudaStream;
use super::uses::{Access, Entered, Uses};
use crate::device::DeviceError;

/// The uses of memory by the captures that run, so that launches of their graphs wait and are
/// waited for.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    running: Mutex<Vec<(u64, CapturedUses)>>,
}

/// The uses of memory by a graph.
type CapturedUses = Vec<(Arc<Uses>, Access)>;

impl Captures {
    /// Starts capturing what is queued on a stream, instead of running it.
    pub fn begin(&self, stream: &CudaStream) -> Result<(), DeviceError> {
        let context = stream.context();
        context.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let begun = unsafe { result::stream::begin_capture(stream.raw(), mode) };
        check(&context.id, "cuStreamBeginCapture_v2", begun)?;
        if let Some(capture) = stream.capture()? {
            self.lock().push((capture, Vec::new()));
        }
        Ok(())
    }

    /// Ends capturing and makes what was queued on a stream launchable.
    pub fn end(self: &Arc<Self>, stream: &CudaStream) -> Result<CudaGraph, DeviceError> {
        let context = stream.context();
        context.bind()?;
        let id = &context.id;
        let uses = stream.capture()?.map(|capture| self.take(capture)).unwrap_or_default();
        // SAFETY: the stream is alive; a stream that captures nothing gives an error.
        let graph = check(id, "cuStreamEndCapture", unsafe { result::stream::end_capture(stream.raw()) })?;
        // SAFETY: the graph was just made.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; an instantiated graph does not need it any more.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let executable = check(id, "cuGraphInstantiateWithFlags", executable)?;
        let graph = CudaGraph { context: context.clone(), executable, uses, captures: self.clone() };
        check(id, "cuGraphDestroy", destroyed)?;
        Ok(graph)
    }

    /// Notes a use by captured work. A capture that another library began is not known here.
    pub(super) fn note(&self, capture: u64, uses: &Arc<Uses>, access: Access) {
        let mut running = self.lock();
        let Some((_, noted)) = running.iter_mut().find(|(of, _)| *of == capture) else { return };
        match noted.iter_mut().find(|(of, _)| Arc::ptr_eq(of, uses)) {
            Some((_, before)) => *before = before.and(access),
            None => noted.push((uses.clone(), access)),
        }
    }

    /// The uses by a capture, which has ended.
    fn take(&self, capture: u64) -> CapturedUses {
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
    /// What the captures that run use: the graph may be launched in one.
    captures: Arc<Captures>,
}

// SAFETY: a graph handle may be used from any thread, though not from two at once: see `launch`.
unsafe impl Send for CudaGraph {}
// SAFETY: the driver serialises launches of one executable graph.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Queues the captured work, after what uses its memory on other streams. `own` is the device's
    /// own stream.
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
                self.uses.iter().for_each(|(uses, access)| self.captures.note(capture, uses, *access));
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
