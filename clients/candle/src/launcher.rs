//! Kernels made ready for devices, types and constants as calls need them, and launched.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, DeviceLocation, Storage, Tensor};
use flashtile::client::{Kept, KeptEntry, LoadedKernels, Param, TensorForm};
use flashtile::kernel::Deduced;
use flashtile::{ArgumentForm, Kernel, LaunchOptions, LoadedKernel, PreparedLaunch};

use crate::error::{Error, Result};
use crate::input::{Input, Named};
use crate::launch::{Given, Launch, Observer};
use crate::output::{Output, Planned};

/// A kernel with what the user has fixed.
pub(crate) struct Launcher {
    pub kernel: Kernel,
    /// Types and sizes that are known before any call.
    pub known: Deduced,
    /// By name of the output: its dimensions in the order of memory.
    pub layouts: BTreeMap<String, Vec<usize>>,
    pub options: LaunchOptions,
    pub observer: Option<Observer>,
    params: Vec<Param>,
    loaded: LoadedKernels<DeviceLocation>,
    prepared: Kept<Key, Prepared>,
}

/// What calls of one kind have in common: what is known before, the device, and the inputs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    known: Deduced,
    place: DeviceLocation,
    /// In the order of the parameters.
    inputs: Vec<InputForm>,
}

/// An input, but for its address or its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum InputForm {
    Tensor(TensorForm),
    F32,
    I32,
}

/// Calls of one kind, ready but for addresses and numbers.
struct Prepared {
    kernel: Arc<LoadedKernel>,
    launch: PreparedLaunch,
    /// In the order of the parameters.
    outputs: Vec<Planned>,
    /// Types and sizes.
    deduced: Deduced,
}

/// What a launch has made.
pub(crate) struct Made {
    kind: Arc<KeptEntry<Key, Prepared>>,
    /// In the order of the parameters.
    pub outputs: Vec<Output>,
}

impl Launcher {
    pub fn new(kernel: Kernel) -> Self {
        Self {
            params: Param::of(&kernel),
            kernel,
            known: Deduced::default(),
            layouts: BTreeMap::new(),
            options: LaunchOptions::default(),
            observer: None,
            loaded: LoadedKernels::default(),
            prepared: Kept::default(),
        }
    }

    /// The same settings for the forward kernel of a gradient, or for one of its backward kernels.
    pub fn with_kernel(&self, kernel: Kernel, options: LaunchOptions) -> Self {
        let (known, layouts, observer) = (self.known.clone(), self.layouts.clone(), self.observer.clone());
        Self { known, layouts, options, observer, ..Self::new(kernel) }
    }

    /// Launches without a place in candle's graph, on the device of the inputs.
    pub fn launch(&self, inputs: &Named<'_>, known: &Deduced) -> Result<Made> {
        let device = self.device(inputs)?;
        self.launch_on(device, inputs, known, &mut BTreeMap::new())
    }

    /// The same on a device on which all inputs are. An output that a kernel before has stored in
    /// part, by its name, is taken from `begun` and stored to; the others are new.
    pub fn launch_on(
        &self,
        device: &Device,
        inputs: &Named<'_>,
        known: &Deduced,
        begun: &mut BTreeMap<String, Output>,
    ) -> Result<Made> {
        let place = device.location();
        let params = self.params.iter().filter(|param| !param.is_written);
        let given = inputs.iter().zip(params).map(|((_, input), param)| Given::of(param, *input)).collect::<Result<Vec<_>>>()?;
        let forms = || given.iter().map(InputForm::of);
        let is_it = |key: &Key| key.place == place && key.inputs.iter().copied().eq(forms()) && key.known == *known;
        let key = || Key { known: known.clone(), place, inputs: forms().collect() };
        let kind = self.prepared.get(is_it, key, |key| self.prepare(key))?;
        let Prepared { kernel, launch, outputs, .. } = &kind.value;
        let (params, observer) = (&self.params[..], self.observer.as_ref());
        let begun = outputs.iter().map(|planned| Some(begun.remove(&planned.name)?.storage)).collect();
        let stored = on_device(device, &Launch { kernel, prepared: launch, params, inputs: &given, outputs, observer }, begun)?;
        let outputs = outputs.iter().zip(stored).map(|(planned, storage)| planned.made(storage)).collect();
        Ok(Made { kind, outputs })
    }

    /// The device of all inputs.
    fn device<'a>(&self, inputs: &Named<'a>) -> Result<&'a Device> {
        let mut device = None;
        for (name, input) in inputs {
            let Some(found) = tensor(*input).map(Tensor::device) else { continue };
            let (expected, found) = (device.get_or_insert(found).location(), found.location());
            if found != expected {
                return Err(Error::Device { name: (*name).to_owned(), expected, found });
            }
        }
        device.ok_or_else(|| Error::NoTensor(self.kernel.name().to_owned()))
    }

    /// Makes calls of a kind ready.
    fn prepare(&self, key: &Key) -> Result<Prepared> {
        self.refuse_in_out()?;
        let inputs = || self.params.iter().filter(|param| !param.is_written).zip(&key.inputs);
        let given = |name: &str| match inputs().find(|(param, _)| param.name == name)?.1 {
            InputForm::Tensor(form) => Some((form.elem, form.shape())),
            InputForm::F32 | InputForm::I32 => None,
        };
        let deduced = self.kernel.deduce(key.known.clone(), given)?;
        let bound = self.kernel.bind_deduced(&deduced)?;
        let device = || match key.place {
            DeviceLocation::Cpu => Ok(flashtile::Device::cpu()),
            #[cfg(feature = "cuda")]
            DeviceLocation::Cuda { gpu_id } => Ok(flashtile::Device::cuda(gpu_id)?),
            other => Err(Error::NoDevice(other)),
        };
        let kernel = self.loaded.get(key.place, &bound, || Ok::<_, Error>(bound.on_with(&device()?, self.options.clone())?))?;
        let outputs = self.kernel.outputs(&deduced)?;
        let planned = outputs.iter().map(|of| Planned::new(self.kernel.name(), of, self.layouts.get(of.name).map(Vec::as_slice)));
        let outputs = planned.collect::<Result<Vec<_>>>()?;
        let written = outputs.iter().map(|planned| planned.form.of_argument());
        let forms = Param::in_order(&self.params, key.inputs.iter().map(InputForm::of_argument), written);
        let launch = kernel.prepare(&forms.collect::<Vec<_>>())?;
        Ok(Prepared { kernel, launch, outputs, deduced })
    }

    /// Seconds that the cost model predicts for a launch of these types and sizes; `None` on the
    /// CPU, where a GPU has no code for the kernel, and where something is not known.
    pub fn predicted(&self, place: DeviceLocation, deduced: &Deduced) -> Result<Option<f64>> {
        #[cfg(feature = "cuda")]
        if let DeviceLocation::Cuda { gpu_id } = place {
            if !deduced.has_all_of(&self.kernel) {
                return Ok(None);
            }
            let bound = self.kernel.bind_deduced(deduced)?;
            let load = || Ok::<_, Error>(bound.on_with(&flashtile::Device::cuda(gpu_id)?, self.options.clone())?);
            return Ok(flashtile::client::predicted(&*self.loaded.get(place, &bound, load)?, deduced)?);
        }
        let _nothing_is_predicted = (place, deduced);
        Ok(None)
    }

    /// Refuses a tensor that is read and written back: outputs are made anew.
    fn refuse_in_out(&self) -> Result<()> {
        match self.params.iter().find(|param| param.is_written && param.is_read) {
            Some(param) => Err(Error::InOut { kernel: self.kernel.name().to_owned(), name: param.name.clone() }),
            None => Ok(()),
        }
    }
}

impl Made {
    /// The outputs, with no place in candle's graph.
    pub fn tensors(self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.outputs.into_iter().map(Output::tensor).collect::<candle_core::Result<_>>()?)
    }

    /// Types and sizes of the call.
    pub fn deduced(&self) -> &Deduced {
        &self.kind.value.deduced
    }
}

impl InputForm {
    fn of(given: &Given<'_>) -> Self {
        match given {
            Given::Tensor { form, .. } => InputForm::Tensor(*form),
            Given::F32(_) => InputForm::F32,
            Given::I32(_) => InputForm::I32,
        }
    }

    fn of_argument(&self) -> ArgumentForm<'_> {
        match self {
            InputForm::Tensor(form) => form.of_argument(),
            InputForm::F32 => ArgumentForm::F32,
            InputForm::I32 => ArgumentForm::I32,
        }
    }
}

/// Runs a launch. An output that was begun keeps its storage; the others get a new one.
fn on_device(device: &Device, launch: &Launch<'_>, begun: Vec<Option<Storage>>) -> Result<Vec<Storage>> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(candle) = device {
        return crate::cuda::run(launch, candle, begun);
    }
    debug_assert!(device.is_cpu(), "other devices were refused");
    crate::cpu::run(launch, begun)
}

pub(crate) fn tensor(input: Input<'_>) -> Option<&Tensor> {
    match input {
        Input::Tensor(tensor) => Some(tensor),
        Input::F32(_) | Input::I32(_) => None,
    }
}
