//! Kernels made ready for devices, types and constants as calls need them, and launched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DeviceLocation, Layout, Storage, StorageRef, Tensor};
use flashtile::kernel::{Deduced, ParamKind};
use flashtile::{BoundKernel, Elem, Kernel, LaunchOptions, LoadedKernel};

use crate::element::elem;
use crate::error::{Error, Result};
use crate::input::{Input, Named};
use crate::launch::{Given, Launch, Observer};
use crate::output::{Output, Place};

/// A kernel with what the user has fixed.
pub(crate) struct Launcher {
    pub kernel: Kernel,
    /// Types and sizes that are known before any call.
    pub known: Deduced,
    /// By name of the output: its dimensions in the order of memory.
    pub layouts: BTreeMap<String, Vec<usize>>,
    pub options: LaunchOptions,
    pub observer: Option<Observer>,
    loaded: Mutex<Vec<Loaded>>,
}

/// A kernel made ready for a device, types and constants.
struct Loaded {
    place: DeviceLocation,
    bound: BoundKernel,
    kernel: Arc<LoadedKernel>,
}

/// What a launch has made.
pub(crate) struct Made {
    /// In the order of the parameters.
    pub outputs: Vec<Output>,
    /// Types and sizes of the call.
    pub deduced: Deduced,
}

impl Launcher {
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            known: Deduced::default(),
            layouts: BTreeMap::new(),
            options: LaunchOptions::default(),
            observer: None,
            loaded: Mutex::default(),
        }
    }

    /// The same settings for the forward kernel of a gradient, or for one of its backward kernels.
    pub fn with_kernel(&self, kernel: Kernel, options: LaunchOptions) -> Self {
        let (known, layouts, observer) = (self.known.clone(), self.layouts.clone(), self.observer.clone());
        Self { known, layouts, options, observer, ..Self::new(kernel) }
    }

    /// Launches without a place in candle's graph.
    pub fn launch(&self, inputs: &Named<'_>, known: &Deduced) -> Result<Made> {
        self.refuse_in_out()?;
        let place = self.place(inputs)?;
        let held = inputs.iter().map(|(name, input)| Held::of(name, *input)).collect::<Result<Vec<_>>>()?;
        let given = |name: &str| match &held[inputs.iter().position(|(given, _)| given == name)?] {
            Held::Tensor(_, layout, stored) => Some((*stored, layout.dims())),
            Held::F32(_) | Held::I32(_) => None,
        };
        let deduced = self.kernel.deduce(known.clone(), given)?;
        let kernel = self.loaded(place, &deduced)?;
        let outputs = self.kernel.outputs(&deduced)?;
        let places =
            outputs.iter().map(|form| Place::new(self.kernel.name(), form, self.layouts.get(form.name).map(Vec::as_slice)));
        let places = places.collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = outputs.iter().map(|form| form.name.to_owned()).collect();
        let arguments = inputs.iter().zip(&held).map(|((name, _), held)| held.given(self.declared(name))).collect();
        let strides = places.iter().map(Place::strides).collect();
        let launch = Launch { kernel: &kernel, inputs: arguments, outputs, strides, observer: self.observer.as_ref() };
        let made = names.into_iter().zip(on_device(&launch)?).zip(places);
        let outputs = made.map(|((name, storage), place)| Output { name, storage, place }).collect();
        Ok(Made { outputs, deduced })
    }

    /// The device of all inputs.
    fn place(&self, inputs: &Named<'_>) -> Result<DeviceLocation> {
        let mut place = None;
        for (name, input) in inputs {
            let Some(found) = tensor(*input).map(|tensor| tensor.device().location()) else { continue };
            let expected = *place.get_or_insert(found);
            if found != expected {
                return Err(Error::Device { name: name.clone(), expected, found });
            }
        }
        place.ok_or_else(|| Error::NoTensor(self.kernel.name().to_owned()))
    }

    /// Refuses a tensor that is read and written back: outputs are made anew.
    fn refuse_in_out(&self) -> Result<()> {
        let mut params = self.kernel.ir().params.values();
        match params.find(|param| param.kind.is_written() && param.kind.is_read()) {
            Some(param) => Err(Error::InOut { kernel: self.kernel.name().to_owned(), name: param.name.clone() }),
            None => Ok(()),
        }
    }

    /// The element type that a parameter declares.
    fn declared(&self, name: &str) -> Elem {
        let ir = self.kernel.ir();
        let param = ir.params.values().find(|param| param.name == name);
        match param.map(|param| &param.kind) {
            Some(ParamKind::Tensor(tensor)) => tensor.elem,
            Some(ParamKind::Scalar(elem)) => *elem,
            None => unreachable!("inputs have names of parameters"),
        }
    }

    /// The kernel, made ready for a device, types and constants.
    fn loaded(&self, place: DeviceLocation, deduced: &Deduced) -> Result<Arc<LoadedKernel>> {
        let bound = self.kernel.bind_deduced(deduced)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded.iter().find(|known| known.place == place && known.bound.binding() == bound.binding());
        if let Some(known) = known {
            return Ok(known.kernel.clone());
        }
        let device = match place {
            DeviceLocation::Cpu => flashtile::Device::cpu(),
            #[cfg(feature = "cuda")]
            DeviceLocation::Cuda { gpu_id } => flashtile::Device::cuda(gpu_id)?,
            other => return Err(Error::NoDevice(other)),
        };
        let kernel = Arc::new(bound.on_with(&device, self.options.clone())?);
        loaded.push(Loaded { place, bound, kernel: kernel.clone() });
        Ok(kernel)
    }
}

impl Made {
    /// The outputs, with no place in candle's graph.
    pub fn tensors(self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.outputs.into_iter().map(Output::tensor).collect::<candle_core::Result<_>>()?)
    }
}

fn on_device(launch: &Launch<'_>) -> Result<Vec<Storage>> {
    #[cfg(feature = "cuda")]
    for given in &launch.inputs {
        if let Given::Tensor { storage: Storage::Cuda(storage), .. } = given {
            return crate::cuda::run(launch, candle_core::backend::BackendStorage::device(storage));
        }
    }
    crate::cpu::run(launch)
}

pub(crate) fn tensor(input: Input<'_>) -> Option<&Tensor> {
    match input {
        Input::Tensor(tensor) => Some(tensor),
        Input::F32(_) | Input::I32(_) => None,
    }
}

/// An input. The storage of a tensor is locked for reading until the launch is queued.
enum Held<'a> {
    Tensor(StorageRef<'a>, &'a Layout, Elem),
    F32(f32),
    I32(i32),
}

impl<'a> Held<'a> {
    fn of(name: &str, input: Input<'a>) -> Result<Self> {
        Ok(match input {
            Input::Tensor(tensor) => {
                let dtype = tensor.dtype();
                let stored = elem(dtype).ok_or_else(|| Error::DType { name: name.to_owned(), dtype })?;
                let (storage, layout) = tensor.storage_and_layout();
                Held::Tensor(storage, layout, stored)
            }
            Input::F32(x) => Held::F32(x),
            Input::I32(x) => Held::I32(x),
        })
    }

    /// As a launch takes it, for a parameter of this element type.
    fn given(&self, declared: Elem) -> Given<'_> {
        match self {
            Held::Tensor(storage, layout, stored) => Given::Tensor { storage, layout, stored: *stored, declared },
            Held::F32(x) => Given::F32(*x),
            Held::I32(x) => Given::I32(*x),
        }
    }
}
