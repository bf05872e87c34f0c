//! What a launch knows of a tensor of PyTorch: its place, element type, extents, strides and
//! address. How these are read is the subject of [`crate::tensor`].

use flashtile::{ArgumentForm, Device, Elem};

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

/// Dimensions that a tensor may have.
pub(crate) const MAX_RANK: usize = 8;

/// Element type, extents and strides of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Form {
    pub elem: Elem,
    rank: usize,
    /// 0 beyond the rank, as strides.
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Form {
    /// Of dimensions, each an extent and a stride; `None` if there are more than [`MAX_RANK`].
    pub fn new(elem: Elem, dimensions: impl ExactSizeIterator<Item = (usize, usize)>) -> Option<Self> {
        let mut form = Self { elem, rank: dimensions.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        if form.rank > MAX_RANK {
            return None;
        }
        for (d, (extent, stride)) in dimensions.enumerate() {
            (form.shape[d], form.strides[d]) = (extent, stride);
        }
        Some(form)
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// As launches are prepared for it.
    pub fn of_argument(&self) -> ArgumentForm<'_> {
        ArgumentForm::Tensor { elem: self.elem, shape: self.shape(), strides: self.strides() }
    }
}

/// A tensor of PyTorch as a call gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub address: usize,
    pub place: Place,
    pub form: Form,
}
