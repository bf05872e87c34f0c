//! A launch on storages of candle. Inputs are read where they lie; outputs are new storages.

use std::sync::Arc;

use candle_core::{Layout, Storage};
use flashtile::client::{Param, TensorForm};
use flashtile::{ArgumentForm, ArgumentValue, Elem, LoadedKernel, PreparedLaunch, Stream};

use crate::error::Result;
use crate::output::Planned;

/// What a launch uses, for those who watch it; see [`crate::Operator::with_observer`].
pub struct Launched<'a> {
    /// The kernel, made ready for the device.
    pub kernel: &'a LoadedKernel,
    /// Its arguments, in order: of tensors, the addresses of candle's memory.
    pub arguments: &'a [(ArgumentForm<'a>, ArgumentValue)],
    /// The stream of candle on a GPU.
    pub stream: Option<&'a Stream>,
}

/// Called before each launch.
pub(crate) type Observer = Arc<dyn Fn(&Launched<'_>) + Send + Sync>;

/// One input of a launch.
pub(crate) enum Given<'a> {
    Tensor { storage: &'a Storage, layout: &'a Layout, stored: Elem, form: TensorForm },
    F32(f32),
    I32(i32),
}

/// A launch, but for the memory of its outputs.
pub(crate) struct Launch<'a> {
    pub kernel: &'a LoadedKernel,
    pub prepared: &'a PreparedLaunch,
    pub params: &'a [Param],
    /// In the order of the parameters.
    pub inputs: &'a [Given<'a>],
    /// In the order of the parameters.
    pub outputs: &'a [Planned],
    pub observer: Option<&'a Observer>,
}

impl Launch<'_> {
    /// Queues the launch. Addresses are those of the inputs (scalars have none) and of the outputs.
    ///
    /// # Safety
    /// Each address is that of memory of its tensor, checked to hold the form, which lives until the
    /// work has ended. Other work on it is ordered with the stream.
    pub unsafe fn queue(&self, stream: &Stream, read: &[u64], written: &[u64]) -> Result<()> {
        let (mut inputs, mut outputs) = (self.inputs.iter().zip(read), self.outputs.iter().zip(written));
        let arguments = self.params.iter().filter_map(|param| match param.is_written {
            true => outputs.next().map(|(planned, at)| (planned.form.of_argument(), ArgumentValue::Address(*at))),
            false => inputs.next().map(|(given, at)| (given.form(), given.value(*at))),
        });
        let arguments: Vec<(ArgumentForm<'_>, ArgumentValue)> = arguments.collect();
        if let Some(observer) = self.observer {
            observer(&Launched { kernel: self.kernel, arguments: &arguments, stream: stream.as_raw().map(|_| stream) });
        }
        let values: Vec<ArgumentValue> = arguments.iter().map(|(_, value)| *value).collect();
        // SAFETY: as the caller promises.
        Ok(unsafe { self.prepared.launch_on(stream, &values) }?)
    }
}

impl Given<'_> {
    /// What it is, but for its address or its value.
    pub fn form(&self) -> ArgumentForm<'_> {
        match self {
            Given::Tensor { form, .. } => form.of_argument(),
            Given::F32(_) => ArgumentForm::F32,
            Given::I32(_) => ArgumentForm::I32,
        }
    }

    fn value(&self, address: u64) -> ArgumentValue {
        match *self {
            Given::Tensor { .. } => ArgumentValue::Address(address),
            Given::F32(x) => ArgumentValue::F32(x),
            Given::I32(x) => ArgumentValue::I32(x),
        }
    }
}
