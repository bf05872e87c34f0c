//! Streams: queues of a device in which work runs in order; and graphs captured from them.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use super::cuda::{Cuda, CudaGraph, CudaStream};
use super::{CallStream, Device, DeviceError};
use crate::error::Result;

/// A queue of a device. Work queued on one stream runs in order. Clones are the same stream.
///
/// Every device has streams, so that one code path serves all. On the CPU and the emulator a launch
/// has ended when it returns: there a stream holds no work.
///
/// A launch waits, on the device, for launches on other streams whose results it reads or whose
/// arguments it overwrites. Reads such as [`crate::Tensor::to_vec`] wait for all launches that
/// write the tensor, on whatever stream. Work that another library queues is not known here: give
/// launches the stream of that library, or call [`Stream::wait_for`].
///
/// ```
/// use flashtile::{Device, Stream};
/// let stream = Stream::new(&Device::cpu())?;
/// stream.synchronize()?;
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    /// The stream of the driver, on a GPU.
    cuda: Option<Arc<CudaStream>>,
}

impl Stream {
    /// A new stream of a device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(device: &Device) -> Result<Self> {
        let cuda = gpu(device).map(|gpu| CudaStream::new(gpu.context())).transpose()?;
        Ok(Self { device: device.clone(), cuda: cuda.map(Arc::new) })
    }

    /// The caller's stream of a GPU, such as one of candle, of PyTorch or of another CUDA library.
    /// Null is the legacy default stream.
    ///
    /// # Safety
    /// `stream` is a `CUstream` of the primary context of `device`, alive for as long as the result
    /// and its clones are.
    ///
    /// # Errors
    /// [`DeviceError::NoStreams`] if the device is not a GPU.
    pub unsafe fn from_raw(device: &Device, stream: *mut c_void) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::borrowed(device, stream, false) }
    }

    /// As [`Stream::from_raw`], of a caller who orders all work on the tensors of its launches, as
    /// PyTorch does by its current stream. A launch costs fewer calls of the driver: it waits for no
    /// other stream, and leaves no event for others to wait for.
    ///
    /// # Safety
    /// As [`Stream::from_raw`]. Other work on memory that a launch on this stream uses, of this
    /// library too, is queued so that it ends before the launch begins, or begins after it ends,
    /// unless both only read.
    ///
    /// # Errors
    /// As [`Stream::from_raw`].
    pub unsafe fn from_raw_ordered(device: &Device, stream: *mut c_void) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::borrowed(device, stream, true) }
    }

    /// # Safety
    /// As [`Stream::from_raw`], and of a stream that is `ordered` as [`Stream::from_raw_ordered`].
    unsafe fn borrowed(device: &Device, stream: *mut c_void, ordered: bool) -> Result<Self> {
        let gpu = gpu(device).ok_or_else(|| DeviceError::NoStreams(device.to_string()))?;
        // SAFETY: as the caller promises.
        let cuda = unsafe { CudaStream::borrowed(gpu.context(), stream, ordered) };
        Ok(Self { device: device.clone(), cuda: Some(Arc::new(cuda)) })
    }

    /// The driver's handle, a `CUstream`, for other CUDA libraries; `None` on a device that is not
    /// a GPU. It lives as long as this stream and its clones.
    pub fn as_raw(&self) -> Option<*mut c_void> {
        self.cuda.as_ref().map(|stream| stream.handle())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    /// Something queued failed.
    pub fn synchronize(&self) -> Result<()> {
        match &self.cuda {
            Some(stream) => Ok(stream.synchronize()?),
            None => Ok(()), // launches return when they are done
        }
    }

    /// Makes what is queued here from now on wait for what is queued on another stream until now.
    /// The device waits, not the host.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] for a stream of another device; or the driver refuses.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self.device != other.device {
            return Err(DeviceError::OtherDevice { device: self.device.to_string() }.into());
        }
        match (&self.cuda, &other.cuda) {
            (Some(stream), Some(other)) => Ok(stream.wait_for(other)?),
            _ => Ok(()), // there is no work to wait for
        }
    }

    /// Captures what `queue` queues on this stream into a graph, without running it.
    ///
    /// Launches in it must have been made once before with arguments of the same kind: the first
    /// one allocates and compiles, which a capture does not allow.
    ///
    /// # Errors
    /// [`DeviceError::NoGraphs`] if the device is not a GPU; what `queue` says, or the driver's
    /// refusal.
    pub fn capture(&self, queue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let none = || DeviceError::NoGraphs(self.device.to_string());
        let (stream, gpu) = self.cuda.as_ref().zip(gpu(&self.device)).ok_or_else(none)?;
        gpu.captures().begin(stream)?;
        let queued = queue();
        // The capture is ended even after an error, or the stream would be of no more use.
        let graph = gpu.captures().end(stream);
        queued?;
        Ok(Graph { cuda: Arc::new(graph?) })
    }

    /// The stream as its device takes it.
    pub(crate) fn of_call(&self) -> CallStream<'_> {
        CallStream { kind: self.device.info().kind, driver: self.cuda.as_deref().map(|stream| stream as &dyn Any) }
    }
}

/// Captured work, which is launched as one. Tensors it uses must outlive its launches.
#[derive(Clone, Debug)]
pub struct Graph {
    cuda: Arc<CudaGraph>,
}

impl Graph {
    /// Queues the captured work on a stream, after the work on other streams that it depends on.
    ///
    /// # Errors
    /// [`DeviceError::GivenBack`] if the memory of a tensor that it uses is gone,
    /// [`DeviceError::OtherDevice`] for a stream of another device; or the driver refuses.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let other = || DeviceError::OtherDevice { device: "that of the graph".to_owned() };
        let (queue, gpu) = stream.cuda.as_ref().zip(gpu(&stream.device)).ok_or_else(other)?;
        Ok(self.cuda.launch(queue, gpu.stream())?)
    }
}

fn gpu(device: &Device) -> Option<&Cuda> {
    device.backend().as_any().downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn every_device_has_streams() {
        for device in [Device::cpu(), Device::emulator()] {
            let (one, other) = (Stream::new(&device).expect("a stream"), Stream::new(&device).expect("a stream"));
            one.synchronize().expect("nothing is queued");
            one.wait_for(&other).expect("nothing is queued");
            assert_eq!((one.device(), one.as_raw()), (&device, None));
            let error = one.capture(|| Ok(())).expect_err("no graphs");
            assert!(matches!(error, Error::Device(DeviceError::NoGraphs(name)) if name == device.to_string()));
            // SAFETY: the device has no driver, so that the stream is refused before it is looked at.
            let error = unsafe { Stream::from_raw(&device, std::ptr::null_mut()) }.expect_err("no driver");
            assert!(matches!(error, Error::Device(DeviceError::NoStreams(name)) if name == device.to_string()));
        }
    }

    #[test]
    fn streams_of_two_devices_do_not_wait_for_each_other() {
        let (one, other) = (Stream::new(&Device::cpu()), Stream::new(&Device::emulator()));
        let error = one.expect("a stream").wait_for(&other.expect("a stream")).expect_err("two devices");
        assert!(matches!(error, Error::Device(DeviceError::OtherDevice { device }) if device == "cpu"));
    }
}
