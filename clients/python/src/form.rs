//! What a launch knows of a tensor of PyTorch: its place, form and address. How these are read is
//! the subject of [`crate::tensor`].

use flashtile::Device;
use flashtile::client::TensorForm;

/// Where a tensor lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    Cpu,
    Gpu(usize),
}

impl Place {
    /// The device.
    pub fn device(self) -> flashtile::Result<Device> {
        match self {
            Place::Cpu => Ok(Device::cpu()),
            Place::Gpu(gpu) => Device::cuda(gpu),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Gpu(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A tensor of PyTorch as a call gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub address: usize,
    pub place: Place,
    pub form: TensorForm,
}
