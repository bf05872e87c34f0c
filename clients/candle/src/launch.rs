//! A launch on storages of candle. Inputs are read where they lie; outputs are new storages.

use std::sync::Arc;

use candle_core::{Layout, Storage, StorageRef};
use flashtile::client::{Param, TensorForm};
use flashtile::{ArgumentForm, ArgumentValue, Elem, LoadedKernel, PreparedLaunch, Stream};

use crate::element::elem;
use crate::error::{Error, Result};
use crate::input::Input;
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

/// One input of a launch. The storage of a tensor is locked for reading until the launch is queued.
pub(crate) enum Given<'a> {
    Tensor { storage: StorageRef<'a>, layout: &'a Layout, stored: Elem, form: TensorForm },
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
    /// The storages of the outputs: those that were begun, and new ones. `own` takes a storage of
    /// the launch's device out of one of any.
    pub fn storages<S>(
        &self,
        begun: Vec<Option<Storage>>,
        own: impl Fn(Storage) -> Option<S>,
        new: impl Fn(&Planned) -> Result<S>,
    ) -> Result<Vec<S>> {
        let of = |(planned, begun): (&Planned, Option<Storage>)| match begun {
            Some(begun) => Ok(own(begun).expect("checked: all kernels run on one device")),
            None => new(planned),
        };
        self.outputs.iter().zip(begun).map(of).collect()
    }

    /// Queues the launch. Addresses are those of the inputs (scalars have none) and of the outputs.
    ///
    /// # Safety
    /// Each address is that of memory of its tensor, checked to hold the form, which lives until
    /// the work has ended. Other work on it is ordered with the stream.
    pub unsafe fn queue(&self, stream: &Stream, read: &[u64], written: &[u64]) -> Result<()> {
        let inputs = self.inputs.iter().zip(read).map(|(given, at)| given.value(*at));
        let outputs = written.iter().map(|at| ArgumentValue::Address(*at));
        let values: Vec<ArgumentValue> = Param::in_order(self.params, inputs, outputs).collect();
        if let Some(observer) = self.observer {
            let outputs = self.outputs.iter().map(|planned| planned.form.of_argument());
            let forms = Param::in_order(self.params, self.inputs.iter().map(Given::form), outputs);
            let arguments: Vec<_> = forms.zip(values.iter().copied()).collect();
            observer(&Launched { kernel: self.kernel, arguments: &arguments, stream: stream.as_raw().map(|_| stream) });
        }
        // SAFETY: as the caller promises.
        Ok(unsafe { self.prepared.launch_on(stream, &values) }?)
    }
}

impl<'a> Given<'a> {
    /// An input for a parameter.
    pub fn of(param: &Param, input: Input<'a>) -> Result<Self> {
        let tensor = match input {
            Input::Tensor(tensor) => tensor,
            Input::F32(x) => return Ok(Given::F32(x)),
            Input::I32(x) => return Ok(Given::I32(x)),
        };
        let dtype = tensor.dtype();
        let stored = elem(dtype).ok_or_else(|| Error::DType { name: param.name.clone(), dtype })?;
        let (storage, layout) = tensor.storage_and_layout();
        // candle keeps truth values as bytes.
        let read = if (stored, param.elem) == (Elem::U8, Elem::Bool) { Elem::Bool } else { stored };
        let (shape, strides) = (layout.dims(), layout.stride());
        let form = TensorForm::new(read, shape.iter().copied().zip(strides.iter().copied()));
        let form = form.ok_or_else(|| Error::Dimensions { name: param.name.clone(), rank: shape.len() })?;
        Ok(Given::Tensor { storage, layout, stored, form })
    }

    /// What it is, but for its address or its value.
    fn form(&self) -> ArgumentForm<'_> {
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
