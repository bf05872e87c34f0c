//! The primary context of a GPU.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::check;
use crate::device::{DeviceError, Meter};

/// The primary context of a GPU. What lives in it holds an `Arc` of it.
///
/// The primary context is never released: it is shared with other libraries of the process, and the
/// driver releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Context {
    context: sys::CUcontext,
    /// `cuda:N`, for messages.
    pub id: String,
    /// Counts what is allocated in it.
    pub meter: Arc<Meter>,
}

// SAFETY: a context handle may be used from any thread; each use makes it current on its own thread first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what is shared.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of a GPU.
    pub(super) fn of(device: sys::CUdevice, id: String) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: `device` is a handle that the driver gave.
        let context = check(&id, "cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let context = Arc::new(Self { context, id, meter: Arc::default() });
        context.bind()?;
        Ok(context)
    }

    /// Whether it is this one.
    pub(super) fn is(&self, context: sys::CUcontext) -> bool {
        self.context == context
    }

    /// Waits for all work in it.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        self.bind()?;
        check(&self.id, "cuCtxSynchronize", result::ctx::synchronize())
    }

    /// Makes the context current on this thread, as every driver call on it needs.
    pub fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the handle came from `cuDevicePrimaryCtxRetain` and is never released.
        check(&self.id, "cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }
}
