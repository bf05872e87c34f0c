//! Outputs of a launch: their storages, and how their dimensions lie in memory.

use candle_core::op::BackpropOp;
use candle_core::{Result as CandleResult, Storage, Tensor};
use flashtile::client::TensorForm;
use flashtile::kernel::OutputForm;
use flashtile::tensor::TensorError;

use crate::error::{Error, Result};

/// Where the elements of an output lie. Memory has the dimensions in an order of its own, without
/// gaps.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Extents in the order of memory, outermost first.
    shape: Vec<usize>,
    /// For each dimension of the kernel, its place in memory.
    of: Vec<usize>,
}

impl Place {
    /// Dimensions in an order of memory, or in that of the kernel.
    pub fn new(kernel: &str, form: &OutputForm<'_>, order: Option<&[usize]>) -> Result<Self> {
        let rank = form.shape.len();
        let straight: Vec<usize> = (0..rank).collect();
        let order = order.unwrap_or(&straight);
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if sorted != straight || order.last() != straight.last() {
            let (kernel, name) = (kernel.to_owned(), form.name.to_owned());
            return Err(Error::Layout { kernel, name, order: order.to_vec(), rank });
        }
        let mut of = vec![0; rank];
        order.iter().enumerate().for_each(|(place, &dimension)| of[dimension] = place);
        Ok(Self { shape: order.iter().map(|&dimension| form.shape[dimension]).collect(), of })
    }

    /// Strides in the order of the kernel.
    pub fn strides(&self) -> Vec<usize> {
        self.of.iter().map(|&place| self.shape[place + 1..].iter().product()).collect()
    }

    /// A tensor whose dimensions are in the order of memory, seen in that of the kernel.
    pub fn seen(&self, tensor: &Tensor) -> CandleResult<Tensor> {
        tensor.permute(&self.of[..])
    }
}

/// An output as each launch of a kind makes it.
#[derive(Debug)]
pub(crate) struct Planned {
    pub name: String,
    /// As the kernel sees it.
    pub form: TensorForm,
    /// Of the allocation.
    pub elements: usize,
    pub place: Place,
}

impl Planned {
    /// Of a kernel, with dimensions in an order of memory, or in that of the kernel.
    pub fn new(kernel: &str, of: &OutputForm<'_>, order: Option<&[usize]>) -> Result<Self> {
        let place = Place::new(kernel, of, order)?;
        let too_large = || flashtile::Error::from(TensorError::TooLarge(of.shape.clone()));
        let all = of.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
        let elements = all.filter(|&all| all <= isize::MAX as usize).ok_or_else(too_large)?;
        let form = TensorForm::new(of.elem, of.shape.iter().copied().zip(place.strides()));
        let rank = of.shape.len();
        let form = form.ok_or_else(|| Error::Dimensions { name: of.name.to_owned(), rank })?;
        Ok(Self { name: of.name.to_owned(), form, elements, place })
    }

    /// The error for an output that candle has no type for.
    pub fn no_type(&self) -> Error {
        Error::OutputType { name: self.name.clone(), elem: self.form.elem.name() }
    }

    /// An output that a launch has stored.
    pub fn made(&self, storage: Storage) -> Output {
        Output { name: self.name.clone(), storage, place: self.place.clone() }
    }
}

/// An output that a launch has made.
pub(crate) struct Output {
    pub name: String,
    pub storage: Storage,
    pub place: Place,
}

impl Output {
    /// The tensor, with no place in candle's graph.
    pub fn tensor(self) -> CandleResult<(String, Tensor)> {
        let tensor = Tensor::from_storage(self.storage, self.place.shape.clone(), BackpropOp::none(), false);
        Ok((self.name, self.place.seen(&tensor)?))
    }

    /// The storage with its shape in the order of memory, and how the kernel sees it.
    pub fn into_parts(self) -> (Storage, candle_core::Shape, Place) {
        (self.storage, self.place.shape.clone().into(), self.place)
    }
}
