//! Streams: queues of a GPU in which work runs in order; and graphs captured from them.

use std::ffi::c_void;
use std::sync::Arc;

use super::cuda::{Cuda, CudaGraph, CudaStream};
use super::{Device, DeviceError};
use crate::error::Result;

/// A queue of a GPU. Work queued on one stream runs in order. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct Stream {
    cuda: Arc<CudaStream>,
}

impl Stream {
    /// A new stream of a GPU.
    ///
    /// # Errors
    /// [`DeviceError::NoStreams`] if the device is not a GPU.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { cuda: Arc::new(CudaStream::new(gpu(device)?.context())?) })
    }

    /// The caller's stream, such as one of PyTorch or of another CUDA library.
    ///
    /// # Safety
    /// `stream` is a `CUstream` of the primary context of `device`, alive for as long as the result and its clones are.
    ///
    /// # Errors
    /// [`DeviceError::NoStreams`] if the device is not a GPU.
    pub unsafe fn from_raw(device: &Device, stream: *mut c_void) -> Result<Self> {
        // SAFETY: as the caller promises.
        let cuda = unsafe { CudaStream::borrowed(gpu(device)?.context(), stream) };
        Ok(Self { cuda: Arc::new(cuda) })
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    /// Something queued failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.cuda.synchronize()?)
    }

    /// Captures what `queue` queues on this stream into a graph, without running it.
    ///
    /// Launches in it must have been made once before with arguments of the same kind: the first one allocates and
    /// compiles, which a capture does not allow.
    ///
    /// # Errors
    /// What `queue` says, or the driver's refusal.
    pub fn capture(&self, queue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.cuda.begin_capture()?;
        let queued = queue();
        // The capture is ended even after an error, or the stream would be of no more use.
        let graph = self.cuda.end_capture();
        queued?;
        Ok(Graph { cuda: Arc::new(graph?) })
    }

    pub(crate) fn cuda(&self) -> &CudaStream {
        &self.cuda
    }
}

/// Captured work, which is launched as one. Tensors it uses must outlive its launches.
#[derive(Clone, Debug)]
pub struct Graph {
    cuda: Arc<CudaGraph>,
}

impl Graph {
    /// Queues the captured work on a stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        Ok(self.cuda.launch(&stream.cuda)?)
    }
}

fn gpu(device: &Device) -> Result<&Cuda, DeviceError> {
    let gpu = device.backend().as_any().downcast_ref::<Cuda>();
    gpu.ok_or_else(|| DeviceError::NoStreams(device.to_string()))
}
