//! [`Device`]: a cheap handle to a device.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::cpu::Cpu;
use super::cuda::Cuda;
use super::emulator::Emulator;
use super::{Backend, DeviceError, DeviceInfo, DeviceKind, MemoryUse};
use crate::error::{Error, Result};

/// A device that holds tensors and runs kernels. Clones are the same device.
///
/// ```
/// use flashtile::Device;
/// let device: Device = "cpu".parse()?;
/// assert_eq!(device.to_string(), "cpu");
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// The CPU, which executes the tile IR. Always there.
    pub fn cpu() -> Self {
        Self { backend: Cpu::device() }
    }

    /// The emulator, which executes compiled code on the host and checks it. Always there; it needs NVRTC.
    pub fn emulator() -> Self {
        Self { backend: Emulator::device() }
    }

    /// The GPU of this number. The same number gives the same device in the whole process.
    ///
    /// # Errors
    /// [`DeviceError`]: no driver, an old one, no such GPU, or one of an unsupported architecture.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Self { backend: Cuda::device(ordinal)? })
    }

    /// `cuda:0` if it can be used, else the CPU.
    pub fn best() -> Self {
        Self::cuda(0).unwrap_or_else(|_| Self::cpu())
    }

    /// A device of a test's own.
    #[cfg(test)]
    pub(crate) fn of(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// Its properties.
    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// Whether it is a GPU.
    pub fn is_cuda(&self) -> bool {
        self.info().kind == DeviceKind::Cuda
    }

    /// Whether launches are compiled for an architecture and follow a schedule: on a GPU and the emulator, not on the CPU.
    pub fn compiles(&self) -> bool {
        self.info().kind != DeviceKind::Cpu
    }

    /// Waits for everything queued on the device's own stream.
    ///
    /// # Errors
    /// Something queued failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.backend.synchronize()?)
    }

    /// Bytes that this process has allocated on it: tensors, and what kernels need besides (workspaces). Code and the driver's
    /// own memory do not count.
    ///
    /// ```
    /// use flashtile::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::<f32>::zeros(&device, &[4, 8])?;
    /// assert!(device.memory_use().current >= 128);
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    pub fn memory_use(&self) -> MemoryUse {
        self.backend.meter().read()
    }

    /// Takes what is allocated now for the most so far.
    pub fn reset_peak_memory(&self) {
        self.backend.meter().reset_peak();
    }

    /// Bytes of memory that the driver says are free; `None` on a device without a driver.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free_memory(&self) -> Result<Option<usize>> {
        Ok(self.backend.free_memory()?)
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.info().id)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Self::cpu()),
            "cuda" => Self::cuda(0),
            "emulator" => Ok(Self::emulator()),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                Self::cuda(ordinal.ok_or_else(|| DeviceError::UnknownName(text.to_owned()))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        assert_eq!(Device::from_str("cpu").expect("always there"), Device::cpu());
        let error = |text: &str| Device::from_str(text).expect_err(text).to_string();
        assert_eq!(error("gpu"), "`gpu` is not a device; expected cpu, cuda:N (N from 0) or emulator");
        assert_eq!(error("cuda:x"), "`cuda:x` is not a device; expected cpu, cuda:N (N from 0) or emulator");
        assert_eq!(Device::from_str("emulator").expect("always there").to_string(), "emulator");
    }

    #[test]
    fn a_missing_gpu_is_an_error_and_not_a_panic() {
        // Number 4096 is missing everywhere, with a driver and without.
        let error = Device::cuda(4096).expect_err("no machine has so many");
        assert!(matches!(
            error,
            Error::Device(DeviceError::NoDriver { .. } | DeviceError::NoSuchGpu { .. } | DeviceError::Driver { .. })
        ));
    }
}
