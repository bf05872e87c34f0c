//! A launch on storages of candle. Inputs are lent where they lie; outputs are new storages.

use std::sync::Arc;

use candle_core::{Layout, Storage};
use flashtile::kernel::OutputForm;
use flashtile::{AnyTensor, Argument, Elem, LoadedKernel, Stream};

use crate::error::{Error, Result};

/// What a launch uses, for those who watch it; see [`crate::Operator::with_observer`].
pub struct Launched<'a> {
    /// The kernel, made ready for the device.
    pub kernel: &'a LoadedKernel,
    /// Its arguments: tensors over the memory of candle.
    pub arguments: &'a [Argument<'a>],
    /// The stream of candle on a GPU.
    pub stream: Option<&'a Stream>,
}

/// Called before each launch.
pub(crate) type Observer = Arc<dyn Fn(&Launched<'_>) + Send + Sync>;

/// One input of a launch.
pub(crate) enum Given<'a> {
    Tensor { storage: &'a Storage, layout: &'a Layout, stored: Elem, declared: Elem },
    F32(f32),
    I32(i32),
}

/// A launch, but for the memory of its outputs.
pub(crate) struct Launch<'a> {
    pub kernel: &'a LoadedKernel,
    /// In the order of the parameters.
    pub inputs: Vec<Given<'a>>,
    /// In the order of the parameters.
    pub outputs: Vec<OutputForm<'a>>,
    /// Strides of the outputs.
    pub strides: Vec<Vec<usize>>,
    pub observer: Option<&'a Observer>,
}

impl Launch<'_> {
    /// Launches with the tensors of the inputs (none for scalars) and of the outputs.
    pub fn queue(&self, stream: Option<&Stream>, inputs: &[Option<AnyTensor>], outputs: &[AnyTensor]) -> flashtile::Result<()> {
        let mut read = self.inputs.iter().zip(inputs);
        let mut written = outputs.iter();
        let params = self.kernel.kernel().ir().params.values();
        let arguments = params.filter_map(|param| match param.kind.is_written() {
            true => written.next().map(Argument::Output),
            false => read.next().and_then(|(given, tensor)| match given {
                Given::Tensor { .. } => tensor.as_ref().map(Argument::Input),
                Given::F32(x) => Some(Argument::F32(*x)),
                Given::I32(x) => Some(Argument::I32(*x)),
            }),
        });
        let arguments: Vec<Argument<'_>> = arguments.collect();
        if let Some(observer) = self.observer {
            observer(&Launched { kernel: self.kernel, arguments: &arguments, stream });
        }
        match stream {
            Some(stream) => self.kernel.launch_on(stream, &arguments),
            None => self.kernel.launch(&arguments),
        }
    }

    /// The error for an output that candle has no type for.
    pub fn no_output_type(form: &OutputForm<'_>) -> Error {
        Error::OutputType { name: form.name.to_owned(), elem: form.elem.name() }
    }
}

/// A tensor as its parameter declares it: candle keeps truth values as `u8`.
pub(crate) fn as_declared(tensor: &AnyTensor, declared: Elem) -> flashtile::Result<AnyTensor> {
    match (tensor.elem(), declared) {
        (Elem::U8, Elem::Bool) => tensor.as_bool(),
        _ => Ok(tensor.clone()),
    }
}

/// Extents as an allocation counts them.
pub(crate) fn elements(form: &OutputForm<'_>) -> Result<usize> {
    let all = form.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
    let too_large = || flashtile::Error::from(flashtile::tensor::TensorError::TooLarge(form.shape.clone()));
    Ok(all.ok_or_else(too_large)?)
}
