//! Launches on tensors of PyTorch. What follows from element types, shapes and strides is worked
//! out once and kept; a later call of the same kind reads addresses, allocates outputs and launches.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use flashtile::bundle::BundledKernel;
use flashtile::kernel::{Deduced, ParamKind};
use flashtile::{AnyTensor, Argument, Device, Elem, Kernel, LoadedKernel, Stream};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::ahead::{self, Noted};
use crate::error::{ArgumentError, raised};
use crate::host::Host;
use crate::tensor::{Form, Number, Place, Seen, over};

/// Prepared launches that are kept. Beyond that all are dropped: shapes then vary without end, and
/// preparing a launch takes microseconds.
const KEPT: usize = 4096;

/// A kernel with what the user has fixed, and its prepared launches.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub kernel: Kernel,
    /// Types and sizes that are known before any call.
    pub known: Deduced,
    /// Its code, if it comes from a bundle.
    pub bundled: Option<BundledKernel>,
    params: Vec<Param>,
    loaded: Mutex<Vec<(Place, Arc<LoadedKernel>)>>,
    prepared: Mutex<HashMap<Key, Arc<Prepared>>>,
    /// That of the call before, which is found without a key of its own.
    recent: Mutex<Option<Arc<Prepared>>>,
    /// How often something had been tuned when code was loaded.
    tuned: AtomicU64,
}

/// A parameter, as calls need it.
#[derive(Debug)]
struct Param {
    name: String,
    is_tensor: bool,
    is_written: bool,
    elem: Elem,
}

/// What launches of one kind have in common: what the caller knows, the device, and the tensors.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    known: Option<Known>,
    place: Place,
    forms: Vec<Form>,
}

/// Types and sizes that a caller knows and no input tells.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Known {
    pub types: Vec<(String, Elem)>,
    pub sizes: Vec<(String, i64)>,
}

/// Launches of one kind, ready but for addresses and numbers.
#[derive(Debug)]
struct Prepared {
    key: Key,
    kernel: Arc<LoadedKernel>,
    device: Device,
    /// By name.
    sizes: BTreeMap<String, i64>,
    /// In the order of the parameters.
    outputs: Vec<NewOutput>,
}

/// An output that PyTorch allocates.
#[derive(Debug)]
pub(crate) struct NewOutput {
    form: Form,
    pub shape: Py<PyTuple>,
    pub strides: Py<PyTuple>,
    /// Type and device, as PyTorch takes them.
    pub options: Py<PyDict>,
    /// An input of this type, shape and strides: what is like it costs less to allocate.
    like: Option<usize>,
}

/// What a call is given.
pub(crate) struct Given<'a, 'py> {
    /// In the order of the input parameters.
    pub inputs: &'a [Bound<'py, PyAny>],
    /// In the order of the output parameters; without it they are allocated.
    pub outputs: Option<&'a [Bound<'py, PyAny>]>,
    /// A tensor that says where to run, for kernels without inputs that do.
    pub like: Option<&'a Bound<'py, PyAny>>,
    /// What no input tells.
    pub known: Option<Known>,
    /// Whether a tensor that needs a gradient is left to the caller.
    pub with_gradients: bool,
}

/// What is asked of a kernel of attention.
#[derive(Clone, Copy)]
pub(crate) struct Attend {
    pub is_causal: bool,
    pub enable_gqa: bool,
    /// Whether a tensor that needs a gradient is left to the caller.
    pub with_gradients: bool,
}

/// An argument, read.
enum Read {
    Tensor(Seen),
    Number(Number),
}

impl Launcher {
    pub fn new(kernel: Kernel, known: Deduced, bundled: Option<BundledKernel>) -> Self {
        let param = |(name, kind): (String, &ParamKind)| match kind {
            ParamKind::Tensor(tensor) => {
                Param { name, is_tensor: true, is_written: tensor.direction.is_written(), elem: tensor.elem }
            }
            ParamKind::Scalar(elem) => Param { name, is_tensor: false, is_written: false, elem: *elem },
        };
        let params = kernel.ir().params.values().map(|given| param((given.name.clone(), &given.kind))).collect();
        Self {
            kernel,
            known,
            bundled,
            params,
            loaded: Mutex::default(),
            prepared: Mutex::default(),
            recent: Mutex::default(),
            tuned: AtomicU64::new(ahead::tuned()),
        }
    }

    /// Forgets what is loaded if something was tuned since, so that the call takes it.
    fn refresh(&self) {
        let tuned = ahead::tuned();
        if self.tuned.swap(tuned, Ordering::Relaxed) == tuned {
            return;
        }
        lock(&self.prepared).clear();
        lock(&self.recent).take();
        lock(&self.loaded).clear();
    }

    fn inputs(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_written)
    }

    fn outputs(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| param.is_written)
    }

    /// Launches; returns the outputs. `None` if an argument is no plain tensor, or needs a gradient
    /// that the caller sees to: nothing has happened then.
    pub fn call<'py>(&self, py: Python<'py>, mut given: Given<'_, 'py>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let host = Host::get(py)?;
        let Some(inputs) = self.read_inputs(host, &given)? else { return Ok(None) };
        let known = given.known.take();
        let at = self.place(host, &inputs, &given)?;
        let prepared = self.prepared(py, host, at, &inputs, known)?;
        self.run(py, host, &prepared, (&inputs, given.inputs), given.outputs).map(Some)
    }

    /// Launches a kernel of attention whose inputs are queries, keys, values and a scale, if these
    /// are all as the kernel takes them; returns its first output. `None` if something else is to
    /// be done, or said, which the caller sees to: nothing has happened then.
    pub fn attend<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>; 3],
        scale: Option<f64>,
        options: Attend,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let host = Host::get(py)?;
        let mut seen = Vec::with_capacity(3);
        for object in objects {
            if !host.is_plain(object) || (options.with_gradients && needs_gradient(object)?) {
                return Ok(None);
            }
            let Some(read) = Seen::read(host, "query", object)? else { return Ok(None) };
            seen.push(read);
        }
        if !options.fits(&seen) {
            return Ok(None);
        }
        let head_dim = seen[0].form.shape[3] as f64;
        let scale = scale.unwrap_or_else(|| 1.0 / head_dim.sqrt()) as f32;
        if !scale.is_finite() {
            return Ok(None);
        }
        let scale = Number::F32(scale);
        let place = seen[0].place;
        let inputs: Vec<Read> = seen.into_iter().map(Read::Tensor).chain([Read::Number(scale)]).collect();
        let prepared = self.prepared(py, host, (place, &objects[0]), &inputs, None)?;
        let outputs = self.run(py, host, &prepared, (&inputs, objects), None)?;
        Ok(outputs.into_iter().next())
    }

    /// Allocates outputs, unless they are given, and launches. The objects are those of the inputs
    /// that are tensors, at least of the first of them.
    fn run<'py>(
        &self,
        py: Python<'py>,
        host: &Host,
        prepared: &Prepared,
        (inputs, objects): (&[Read], &[Bound<'py, PyAny>]),
        outputs: Option<&[Bound<'py, PyAny>]>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (made, written);
        match outputs {
            Some(outputs) => {
                made = outputs.to_vec();
                written = self.read_outputs(host, prepared.key.place, outputs, &prepared.device)?;
            }
            None => {
                let new = |output: &NewOutput| host.empty(py, output.like.map(|at| &objects[at]), output);
                made = prepared.outputs.iter().map(new).collect::<PyResult<_>>()?;
                written = prepared.new_outputs(host, &made)?;
            }
        }
        let read = inputs.iter().map(|read| read.tensor(&prepared.device)).collect::<PyResult<Vec<_>>>()?;
        self.launch(py, host, prepared, (inputs, &read), &written)?;
        Ok(made)
    }

    fn read_inputs(&self, host: &Host, given: &Given<'_, '_>) -> PyResult<Option<Vec<Read>>> {
        let mut read = Vec::with_capacity(given.inputs.len());
        for (param, object) in self.inputs().zip(given.inputs) {
            if !param.is_tensor {
                read.push(Read::Number(Number::read(&param.name, param.elem, object)?));
                continue;
            }
            let Some(mut seen) = Seen::read(host, &param.name, object)? else { return Ok(None) };
            if given.with_gradients && needs_gradient(object)? {
                return Ok(None);
            }
            if param.elem == Elem::Bool && matches!(seen.form.elem, Elem::U8 | Elem::I8) {
                seen.form.elem = Elem::Bool; // bytes as truth values
            }
            read.push(Read::Tensor(seen));
        }
        Ok(Some(read))
    }

    /// The device of all inputs, and a tensor on it.
    fn place<'a, 'py>(
        &self,
        host: &Host,
        inputs: &[Read],
        given: &'a Given<'_, 'py>,
    ) -> PyResult<(Place, &'a Bound<'py, PyAny>)> {
        let mut found: Option<(Place, &Bound<'py, PyAny>)> = None;
        for ((param, read), object) in self.inputs().zip(inputs).zip(given.inputs) {
            let Read::Tensor(seen) = read else { continue };
            let (expected, _) = *found.get_or_insert((seen.place, object));
            if seen.place != expected {
                let (name, place) = (&param.name, seen.place);
                let message = format!("argument `{name}` is on {place}, those before on {expected}; move it with `.to`");
                return Err(ArgumentError::new_err(message));
            }
        }
        if let Some(found) = found {
            return Ok(found);
        }
        let none = || {
            let kernel = self.kernel.name();
            ArgumentError::new_err(format!("kernel `{kernel}` was given no tensor, so that nothing says where it runs"))
        };
        let like = given.like.ok_or_else(none)?;
        Ok((Seen::read(host, "like", like)?.ok_or_else(none)?.place, like))
    }

    fn prepared(
        &self,
        py: Python<'_>,
        host: &Host,
        (place, like): (Place, &Bound<'_, PyAny>),
        inputs: &[Read],
        known: Option<Known>,
    ) -> PyResult<Arc<Prepared>> {
        self.refresh();
        let prepared = self.found(py, host, (place, like), inputs, known)?;
        ahead::note(|| Noted {
            kernel: prepared.kernel.kernel().clone(),
            sizes: prepared.sizes.clone(),
            place,
            is_bundled: self.bundled.is_some(),
        });
        Ok(prepared)
    }

    fn found(
        &self,
        py: Python<'_>,
        host: &Host,
        (place, like): (Place, &Bound<'_, PyAny>),
        inputs: &[Read],
        known: Option<Known>,
    ) -> PyResult<Arc<Prepared>> {
        let forms = || inputs.iter().filter_map(Read::seen).map(|seen| &seen.form);
        let is_it = |key: &Key| key.place == place && key.known == known && key.forms.iter().eq(forms());
        if let Some(prepared) = &*lock(&self.recent)
            && is_it(&prepared.key)
        {
            return Ok(prepared.clone());
        }
        let key = Key { known, place, forms: forms().cloned().collect() };
        let kept = lock(&self.prepared).get(&key).cloned();
        let prepared = match kept {
            Some(prepared) => prepared,
            None => {
                let prepared = Arc::new(self.prepare(py, host, key.clone(), inputs, like)?);
                let mut kept = lock(&self.prepared);
                if kept.len() >= KEPT {
                    kept.clear();
                }
                kept.insert(key, prepared.clone());
                prepared
            }
        };
        *lock(&self.recent) = Some(prepared.clone());
        Ok(prepared)
    }

    /// What the tensors of a call say of the kernel.
    fn deduced(&self, key: &Key) -> PyResult<Deduced> {
        let mut known = self.known.clone();
        if let Some(more) = &key.known {
            known.types.extend(more.types.iter().cloned());
            known.sizes.extend(more.sizes.iter().cloned());
        }
        let names: Vec<&str> = self.inputs().filter(|param| param.is_tensor).map(|param| &*param.name).collect();
        let form = |name: &str| names.iter().position(|known| *known == name).map(|at| &key.forms[at]);
        self.kernel.deduce(known, |name| form(name).map(|form| (form.elem, &form.shape[..]))).map_err(raised)
    }

    fn prepare(&self, py: Python<'_>, host: &Host, key: Key, inputs: &[Read], like: &Bound<'_, PyAny>) -> PyResult<Prepared> {
        let deduced = self.deduced(&key)?;
        let torch_device = like.getattr(intern!(py, "device"))?;
        let output = |form: flashtile::kernel::OutputForm<'_>| {
            let options = PyDict::new(py);
            options.set_item("dtype", host.dtype(form.name, form.elem)?)?;
            options.set_item("device", &torch_device)?;
            let shape = PyTuple::new(py, &form.shape)?.unbind();
            let strides = flashtile::Tensor::<f32>::packed_strides(&form.shape).map_err(raised)?;
            let form = Form { elem: form.elem, shape: form.shape, strides };
            let strides = PyTuple::new(py, &form.strides)?.unbind();
            // Truth values may be given as bytes.
            let is_like = |input: &Read| form.elem != Elem::Bool && input.seen().is_some_and(|seen| seen.form == form);
            let like = inputs.iter().position(is_like);
            Ok(NewOutput { form, shape, strides, options: options.unbind(), like })
        };
        let outputs = self.kernel.outputs(&deduced).map_err(raised)?;
        let outputs = outputs.into_iter().map(output).collect::<PyResult<Vec<_>>>()?;
        let kernel = self.loaded(py, host, key.place, &deduced)?;
        Ok(Prepared { device: kernel.device().clone(), kernel, key, sizes: deduced.sizes, outputs })
    }

    /// The kernel, made ready for a device, types and constants.
    fn loaded(&self, py: Python<'_>, host: &Host, place: Place, deduced: &Deduced) -> PyResult<Arc<LoadedKernel>> {
        let bound = self.kernel.bind_deduced(deduced).map_err(raised)?;
        let is_it =
            |(known, kernel): &&(Place, Arc<LoadedKernel>)| *known == place && kernel.kernel().binding() == bound.binding();
        if let Some((_, kernel)) = lock(&self.loaded).iter().find(is_it) {
            return Ok(kernel.clone());
        }
        let load = || {
            let device = device(place)?;
            match &self.bundled {
                Some(bundled) => bundled.on(&device),
                None => bound.on_with(&device, host.options()),
            }
        };
        let kernel = Arc::new(keeping_current(py, host, place, || py.detach(load))?.map_err(raised)?);
        lock(&self.loaded).push((place, kernel.clone()));
        Ok(kernel)
    }

    /// The tensors that a caller gives for outputs. Whether they fit is checked by the launch.
    fn read_outputs(&self, host: &Host, place: Place, outputs: &[Bound<'_, PyAny>], device: &Device) -> PyResult<Vec<AnyTensor>> {
        let read = |(param, object): (&Param, &Bound<'_, PyAny>)| {
            let name = &param.name;
            let seen = Seen::read(host, name, object)?;
            let seen = seen.ok_or_else(|| ArgumentError::new_err(format!("output `{name}` must be a plain tensor")))?;
            if seen.place != place {
                let message = format!("output `{name}` is on {}, inputs are on {place}; move it with `.to`", seen.place);
                return Err(ArgumentError::new_err(message));
            }
            // SAFETY: the caller holds the tensor until the launch is queued, and PyTorch uses its
            // memory in the order of its current stream.
            unsafe { seen.tensor(device) }
        };
        self.outputs().zip(outputs).map(read).collect()
    }

    fn launch(
        &self,
        py: Python<'_>,
        host: &Host,
        prepared: &Prepared,
        (inputs, read): (&[Read], &[Option<AnyTensor>]),
        written: &[AnyTensor],
    ) -> PyResult<()> {
        let (mut inputs, mut written) = (inputs.iter().zip(read), written.iter());
        let arguments = self.params.iter().filter_map(|param| match param.is_written {
            true => written.next().map(Argument::Output),
            false => inputs.next().and_then(|(given, tensor)| match given {
                Read::Tensor(_) => tensor.as_ref().map(Argument::Input),
                Read::Number(Number::F32(x)) => Some(Argument::F32(*x)),
                Read::Number(Number::I32(x)) => Some(Argument::I32(*x)),
            }),
        });
        let arguments: Vec<Argument<'_>> = arguments.collect();
        let kernel = &prepared.kernel;
        let launched = match prepared.key.place {
            Place::Cpu => py.detach(|| kernel.launch(&arguments)),
            Place::Gpu(gpu) => {
                let stream = stream(&prepared.device, gpu, host.stream(py, gpu)?)?;
                host.keeping_current(py, gpu, || py.detach(|| kernel.launch_on(&stream, &arguments)))?
            }
        };
        launched.map_err(raised)
    }
}

impl Prepared {
    /// Outputs that were just allocated.
    fn new_outputs(&self, host: &Host, outputs: &[Bound<'_, PyAny>]) -> PyResult<Vec<AnyTensor>> {
        let tensor = |(new, output): (&NewOutput, &Bound<'_, PyAny>)| {
            let address = host.address(output)?;
            // SAFETY: PyTorch has just allocated the tensor with this type and shape, without gaps,
            // and uses its memory in the order of its current stream.
            unsafe { over(&self.device, address, &new.form) }
        };
        self.outputs.iter().zip(outputs).map(tensor).collect()
    }
}

impl Attend {
    /// Whether queries, keys and values are those of a kernel with one head dim: `(B, H, M, D)` and
    /// `(B, G, N, D)`, rows without gaps. With a causal mask of the first positions there are as
    /// many queries as keys.
    fn fits(self, seen: &[Seen]) -> bool {
        let [q, k, v] = seen else { return false };
        let is_plain = |x: &Seen| x.form.shape.len() == 4 && x.form.strides[3] == 1 && x.place == q.place;
        if !seen.iter().all(is_plain) || q.form.elem != k.form.elem || k.form.elem != v.form.elem {
            return false;
        }
        let (&[batch, heads, rows, width], keys) = (q.form.four(), k.form.four());
        let shares = self.enable_gqa && keys[1] > 0 && heads % keys[1] == 0;
        keys == v.form.four()
            && (batch, width) == (keys[0], keys[3])
            && (heads == keys[1] || shares)
            && (rows == keys[2] || !self.is_causal)
    }
}

/// Whether PyTorch keeps what the gradient of a tensor needs.
fn needs_gradient(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.getattr(intern!(object.py(), "requires_grad"))?.is_truthy()
}

impl Read {
    fn seen(&self) -> Option<&Seen> {
        match self {
            Read::Tensor(seen) => Some(seen),
            Read::Number(_) => None,
        }
    }

    fn tensor(&self, device: &Device) -> PyResult<Option<AnyTensor>> {
        // SAFETY: the caller of the launch holds the tensor until it is queued, and PyTorch uses its
        // memory in the order of its current stream, which is that of the launch.
        self.seen().map(|seen| unsafe { seen.tensor(device) }).transpose()
    }
}

/// The device of a place.
pub(crate) fn device(place: Place) -> flashtile::Result<Device> {
    match place {
        Place::Cpu => Ok(Device::cpu()),
        Place::Gpu(gpu) => Device::cuda(gpu),
    }
}

/// Runs a function that may make a GPU current, and makes the one before current again.
pub(crate) fn keeping_current<T>(py: Python<'_>, host: &Host, place: Place, run: impl FnOnce() -> T) -> PyResult<T> {
    match place {
        Place::Cpu => Ok(run()),
        Place::Gpu(gpu) => host.keeping_current(py, gpu, run),
    }
}

/// PyTorch's stream of a GPU.
fn stream(device: &Device, gpu: usize, handle: usize) -> PyResult<Stream> {
    static STREAMS: LazyLock<Mutex<HashMap<(usize, usize), Stream>>> = LazyLock::new(Mutex::default);
    let mut streams = lock(&STREAMS);
    if let Some(stream) = streams.get(&(gpu, handle)) {
        return Ok(stream.clone());
    }
    // SAFETY: PyTorch's streams are of the primary context. It keeps those of its own for the whole
    // process; of another one the handle is used while it is PyTorch's current stream, no later.
    // PyTorch orders all work on its memory by its streams.
    let stream = unsafe { Stream::from_raw_ordered(device, std::ptr::with_exposed_provenance_mut(handle)) }.map_err(raised)?;
    streams.insert((gpu, handle), stream.clone());
    Ok(stream)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked is a cache: it holds whole entries even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
