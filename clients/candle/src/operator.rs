//! Any kernel of the language as an operator on tensors of candle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, DeviceLocation, Storage, Tensor};
use flashtile::kernel::Deduced;
use flashtile::{Elem, Kernel, LaunchOptions, LoadedKernel};

use crate::autograd::{self, Backward};
use crate::element::elem;
use crate::error::{Error, Result};
use crate::input::{Input, Named, Outputs, by_name, in_order};
use crate::launch::{Given, Launch, Launched, Observer};
use crate::output::{Output, Place};

/// A kernel as an operator on tensors of candle: on candle's CPU, and with the feature `cuda` on
/// its GPUs, in candle's memory and on candle's stream.
///
/// Element types, constants and the shapes of outputs follow from the inputs of each call. For each
/// device, type and constant the kernel is made ready once. Any strides will do, but the last
/// dimension must be contiguous: nothing is copied.
///
/// If inputs need gradients (`Var`s, and what is computed from them), the result is part of
/// candle's graph, and `backward` runs the kernels that `flashtile::Kernel::gradient` derives.
/// candle lets an operator have at most three such inputs and one such output; other outputs, such
/// as the LSE of attention, carry no gradient.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use flashtile_candle::Operator;
///
/// let softmax = Operator::builtin("row_softmax")?;
/// let x = Tensor::new(&[[0f32, 0.0], [1.0, 1.0]], &Device::Cpu)?;
/// let y = softmax.call(&[(&x).into()])?.into_first();
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok::<(), flashtile_candle::Error>(())
/// ```
pub struct Operator {
    kernel: Kernel,
    /// What the user has fixed.
    known: Deduced,
    /// The output that is differentiated, where the user has named one.
    from: Option<String>,
    /// By name of the output: its dimensions in the order of memory.
    layouts: BTreeMap<String, Vec<usize>>,
    options: LaunchOptions,
    observer: Option<Observer>,
    loaded: Mutex<Vec<Loaded>>,
    /// By the names of the inputs that need gradients.
    backward: Mutex<BTreeMap<Vec<String>, Derived>>,
}

/// A gradient, or why there is none.
pub(crate) type Derived = Result<Arc<Backward>, Arc<Error>>;

/// A kernel made ready for a device, types and constants.
struct Loaded {
    place: DeviceLocation,
    bound: flashtile::BoundKernel,
    kernel: Arc<LoadedKernel>,
}

/// What a launch has made.
pub(crate) struct Made {
    /// In the order of the parameters.
    pub outputs: Vec<Output>,
    /// Types and sizes of the call.
    pub deduced: Deduced,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operator({})", self.kernel.name())
    }
}

impl Operator {
    /// The operator of a kernel.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            known: Deduced::default(),
            from: None,
            layouts: BTreeMap::new(),
            options: LaunchOptions::default(),
            observer: None,
            loaded: Mutex::default(),
            backward: Mutex::default(),
        }
    }

    /// The operator of a built-in kernel.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn builtin(name: &str) -> Result<Self> {
        Ok(Self::new(Kernel::builtin(name)?))
    }

    /// The operator of the one kernel of a text in the kernel language.
    ///
    /// # Errors
    /// The text has errors, or no or several kernels.
    pub fn from_text(text: &str) -> Result<Self> {
        let source = flashtile::SourceText { name: "kernel text".to_owned(), text: text.into(), first_line: 1 };
        let mut kernels = Kernel::from_source(&source)?;
        match (kernels.pop(), kernels.is_empty()) {
            (Some(kernel), true) => Ok(Self::new(kernel)),
            (last, _) => {
                let known = kernels.iter().chain(&last).map(Kernel::name).collect::<Vec<_>>().join(", ");
                let place = source.name;
                Err(flashtile::Error::from(flashtile::kernel::KernelError::Ambiguous { place, known }).into())
            }
        }
    }

    /// Fixes a constant or a size by name, such as a constant that no input determines.
    #[must_use]
    pub fn with_size(mut self, name: impl Into<String>, value: i64) -> Self {
        self.known.sizes.insert(name.into(), value);
        self
    }

    /// Fixes a type parameter by name, such as one that no input determines.
    #[must_use]
    pub fn with_type(mut self, name: impl Into<String>, elem: Elem) -> Self {
        self.known.types.insert(name.into(), elem);
        self
    }

    /// Names the output whose gradient is propagated. Needed where several outputs are of a type
    /// parameter.
    #[must_use]
    pub fn with_gradient_from(mut self, output: impl Into<String>) -> Self {
        self.from = Some(output.into());
        self
    }

    /// The order in which the dimensions of an output lie in memory, outermost first. Without it
    /// they lie in the order of the kernel. The last dimension stays the last.
    ///
    /// With `with_layout("o", [0, 2, 1, 3])` the output `(B, H, M, D)` of attention is a view of
    /// memory `(B, M, H, D)`, so that the next projection takes it without a copy.
    #[must_use]
    pub fn with_layout(mut self, output: impl Into<String>, order: impl Into<Vec<usize>>) -> Self {
        self.layouts.insert(output.into(), order.into());
        self
    }

    /// How the kernel is compiled and with which schedule it runs. Backward kernels take the
    /// compiler and the cache of it, and schedules of their own.
    #[must_use]
    pub fn with_options(mut self, options: LaunchOptions) -> Self {
        self.options = options;
        self
    }

    /// Calls a function before each launch with what the launch uses, for tests and logs.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Fn(&Launched<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Runs the kernel on inputs in the order of its parameters, outputs left out.
    ///
    /// # Errors
    /// [`enum@Error`]: the inputs do not fit the kernel, or the compiler or the device failed.
    pub fn call(&self, inputs: &[Input<'_>]) -> Result<Outputs> {
        self.run(&in_order(&self.kernel, inputs)?)
    }

    /// Runs the kernel on inputs by name, in any order.
    ///
    /// # Errors
    /// As [`Operator::call`].
    pub fn call_named(&self, inputs: &[(&str, Input<'_>)]) -> Result<Outputs> {
        self.run(&by_name(&self.kernel, inputs)?)
    }

    fn run(&self, inputs: &Named<'_>) -> Result<Outputs> {
        let tracked = autograd::tracked(inputs);
        let named = if tracked.is_empty() {
            self.launch(inputs, &self.known)?.tensors()?
        } else {
            autograd::run(self, inputs, &tracked)?
        };
        Ok(Outputs { kernel: self.kernel.name().to_owned(), named })
    }

    /// Launches without a place in candle's graph.
    pub(crate) fn launch(&self, inputs: &Named<'_>, known: &Deduced) -> Result<Made> {
        let guards: Vec<_> = inputs.iter().map(|(_, input)| tensor(*input).map(Tensor::storage_and_layout)).collect();
        self.refuse_in_out()?;
        let place = self.place(inputs)?;
        let types = inputs.iter().map(|(name, input)| tensor(*input).map(|tensor| stored(name, tensor)).transpose());
        let types = types.collect::<Result<Vec<_>>>()?;
        let given = |name: &str| {
            let at = inputs.iter().position(|(given, _)| given == name)?;
            Some((types[at]?, tensor(inputs[at].1)?.dims()))
        };
        let deduced = self.kernel.deduce(known.clone(), given)?;
        let kernel = self.loaded(place, &deduced)?;
        let outputs = self.kernel.outputs(&deduced)?;
        let places =
            outputs.iter().map(|form| Place::new(self.kernel.name(), form, self.layouts.get(form.name).map(Vec::as_slice)));
        let places = places.collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = outputs.iter().map(|form| form.name.to_owned()).collect();
        let mut arguments = Vec::new();
        for (at, (name, input)) in inputs.iter().enumerate() {
            arguments.push(match (input, &guards[at], types[at]) {
                (Input::Tensor(_), Some((storage, layout)), Some(stored)) => {
                    Given::Tensor { storage, layout, stored, declared: self.declared(name)? }
                }
                (Input::I32(x), ..) => Given::I32(*x),
                (Input::F32(x), ..) => Given::F32(*x),
                (Input::Tensor(_), ..) => unreachable!("a tensor has a storage and a type"),
            });
        }
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
    fn declared(&self, name: &str) -> Result<Elem> {
        let ir = self.kernel.ir();
        let param = ir.params.values().find(|param| param.name == name);
        Ok(match param.map(|param| &param.kind) {
            Some(flashtile::kernel::ParamKind::Tensor(tensor)) => tensor.elem,
            Some(flashtile::kernel::ParamKind::Scalar(elem)) => *elem,
            None => unreachable!("inputs have names of parameters"),
        })
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

    /// The gradient of inputs, derived once; or why there is none.
    pub(crate) fn derived(&self, of: &[String]) -> Derived {
        let mut known = self.backward.lock().unwrap_or_else(PoisonError::into_inner);
        let derive = || Backward::derive(self, of).map(Arc::new).map_err(Arc::new);
        known.entry(of.to_vec()).or_insert_with(derive).clone()
    }

    /// An operator with the settings of this one and the forward kernel of a gradient, or one of
    /// its backward kernels.
    pub(crate) fn with_kernel(&self, kernel: Kernel, options: LaunchOptions) -> Self {
        let (known, layouts, observer) = (self.known.clone(), self.layouts.clone(), self.observer.clone());
        Self { known, layouts, options, observer, ..Self::new(kernel) }
    }

    pub(crate) fn options(&self) -> &LaunchOptions {
        &self.options
    }

    pub(crate) fn known(&self) -> &Deduced {
        &self.known
    }

    /// The output that the user has named for gradients.
    pub(crate) fn from(&self) -> Option<&str> {
        self.from.as_deref()
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

/// The element type of an input.
fn stored(name: &str, tensor: &Tensor) -> Result<Elem> {
    let dtype: DType = tensor.dtype();
    elem(dtype).ok_or_else(|| Error::DType { name: name.to_owned(), dtype })
}
