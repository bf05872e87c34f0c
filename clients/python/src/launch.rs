//! Launches on tensors of PyTorch. What follows from element types, shapes and strides is worked
//! out once and kept; a later call of the same kind reads addresses, allocates outputs and launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashtile::bundle::BundledKernel;
use flashtile::client::{Kept, KeptEntry, LoadedKernels, Param, TensorForm, stream};
use flashtile::kernel::Deduced;
use flashtile::{ArgumentForm, ArgumentValue, Device, Elem, Kernel, LoadedKernel, PreparedLaunch};
use pyo3::intern;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::error::{ArgumentError, raised};
use crate::form::{Place, Seen};
use crate::host::{Host, NewOutput};
use crate::noted::{self, Noted, Tuned};
use crate::tensor::{Number, Scale};

/// A kernel with what the user has fixed, and its prepared launches.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub kernel: Kernel,
    /// Types and sizes that are known before any call.
    pub known: Deduced,
    /// Its code, if it comes from a bundle.
    pub bundled: Option<BundledKernel>,
    pub params: Vec<Param>,
    loaded: LoadedKernels<Place>,
    prepared: Kept<Key, Prepared>,
    tuned: Tuned,
}

/// Launches of one kind, with what they have in common.
pub(crate) type PreparedEntry = Arc<KeptEntry<Key, Prepared>>;

/// What launches of one kind have in common: what the caller knows, the device, and the tensors.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub known: Option<Known>,
    pub place: Place,
    pub forms: Vec<TensorForm>,
}

impl Key {
    /// Whether it is that of a call.
    pub fn is_of<'a>(&self, known: &Option<Known>, place: Place, read: impl Iterator<Item = &'a Read>) -> bool {
        self.place == place && self.known == *known && self.forms.iter().eq(forms(read))
    }

    /// That of a call.
    pub fn of<'a>(known: Option<Known>, place: Place, read: impl Iterator<Item = &'a Read>) -> Self {
        Self { known, place, forms: forms(read).copied().collect() }
    }
}

/// The forms of the tensors among arguments.
fn forms<'a>(read: impl Iterator<Item = &'a Read>) -> impl Iterator<Item = &'a TensorForm> {
    read.filter_map(Read::seen).map(|seen| &seen.form)
}

/// Types and sizes that a caller knows and no input tells.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Known {
    pub types: Vec<(String, Elem)>,
    pub sizes: Vec<(String, i64)>,
}

impl Known {
    /// Those of these names, if there are any.
    pub fn only(&self, types: &[String], sizes: &[String]) -> Option<Self> {
        let types: Vec<_> = self.types.iter().filter(|(name, _)| types.contains(name)).cloned().collect();
        let sizes: Vec<_> = self.sizes.iter().filter(|(name, _)| sizes.contains(name)).cloned().collect();
        (!types.is_empty() || !sizes.is_empty()).then_some(Self { types, sizes })
    }
}

/// Launches of one kind, ready but for addresses and numbers.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub kernel: Arc<LoadedKernel>,
    /// Without outputs of the caller's own, whose strides may be others.
    pub launch: PreparedLaunch,
    /// By name.
    sizes: BTreeMap<String, i64>,
    /// In the order of the parameters.
    pub outputs: Vec<NewOutput>,
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

/// Queries, keys and values that kernels of attention take as they are.
pub(crate) struct Attended<'a, 'py> {
    pub objects: &'a [Bound<'py, PyAny>; 3],
    pub seen: [Seen; 3],
}

/// An argument, read.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    Tensor(Seen),
    Number(Number),
}

/// The arguments that a kernel reads, in order. Those of most kernels are on the stack: more than a
/// kilobyte is what allocators are slow with.
pub(crate) type Inputs = SmallVec<[Read; 8]>;

/// The same of all arguments, as a launch takes them.
type Values = SmallVec<[ArgumentValue; 16]>;

impl Launcher {
    pub fn new(kernel: Kernel, known: Deduced, bundled: Option<BundledKernel>) -> Self {
        let params = Param::of(&kernel);
        Self { kernel, known, bundled, params, loaded: LoadedKernels::default(), prepared: Kept::default(), tuned: Tuned::now() }
    }

    /// Forgets what is loaded if something was tuned since, so that the call takes it.
    fn refresh(&self) {
        if self.tuned.has_changed() {
            self.prepared.clear();
            self.loaded.clear();
        }
    }

    /// Parameters that are read.
    pub fn inputs(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_written)
    }

    /// Parameters that are written.
    pub fn outputs(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| param.is_written)
    }

    /// Seconds that the cost model predicts for a launch of these types and sizes on a GPU; `None`
    /// where the GPU has no code for the kernel, or something is not known.
    pub fn predicted(&self, py: Python<'_>, gpu: usize, known: Known) -> PyResult<Option<f64>> {
        self.refresh();
        let Known { types, sizes } = known;
        let mut deduced = self.known.clone();
        deduced.types.extend(types);
        deduced.sizes.extend(sizes);
        if !deduced.has_all_of(&self.kernel) {
            return Ok(None);
        }
        let kernel = self.loaded(py, Host::get(py)?, Place::Gpu(gpu), &deduced)?;
        py.detach(|| flashtile::client::predicted(&kernel, &deduced)).map_err(raised)
    }

    /// Launches; returns the outputs. `None` if an argument is no plain tensor, or needs a gradient
    /// that the caller sees to: nothing has happened then.
    pub fn call<'py>(&self, py: Python<'py>, mut given: Given<'_, 'py>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let host = Host::get(py)?;
        let Some(inputs) = self.read_inputs(host, &given)? else { return Ok(None) };
        let known = given.known.take();
        let at = self.place(host, &inputs, &given)?;
        let prepared = self.prepared(py, host, at, &inputs, known)?;
        self.run(py, host, &prepared, &inputs, given.outputs).map(Some)
    }

    /// Launches a kernel of attention on queries, keys and values, with a scale or `1 / sqrt(D)`,
    /// tensors `also`, and numbers; returns its outputs. `None` if something else is to be done, or
    /// said, which the caller sees to, as where one of `also` is `None`: nothing has happened then.
    pub fn attend<'py>(
        &self,
        py: Python<'py>,
        attended: &Attended<'_, 'py>,
        scale: Scale,
        also: impl Iterator<Item = PyResult<Option<Seen>>>,
        numbers: &[Number],
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let host = Host::get(py)?;
        let [query, ..] = &attended.seen;
        let head_dim = query.form.shape()[3] as f64;
        let scale = match scale {
            Scale::Default => 1.0 / head_dim.sqrt(),
            Scale::Number(scale) => scale,
            Scale::Other => return Ok(None),
        } as f32;
        if !scale.is_finite() {
            return Ok(None);
        }
        let mut inputs = Inputs::with_capacity(self.params.len());
        inputs.extend(attended.seen.iter().copied().map(Read::Tensor));
        inputs.push(Read::Number(Number::F32(scale)));
        for (param, tensor) in self.inputs().skip(4).zip(also) {
            match tensor? {
                Some(tensor) if tensor.place == query.place => inputs.push(Read::Tensor(tensor.for_param(param))),
                _ => return Ok(None),
            }
        }
        inputs.extend(numbers.iter().copied().map(Read::Number));
        let prepared = self.prepared(py, host, (query.place, &attended.objects[0]), &inputs, None)?;
        self.run(py, host, &prepared, &inputs, None).map(Some)
    }

    /// Allocates outputs, unless they are given, and launches.
    fn run<'py>(
        &self,
        py: Python<'py>,
        host: &Host,
        entry: &KeptEntry<Key, Prepared>,
        inputs: &[Read],
        outputs: Option<&[Bound<'py, PyAny>]>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let KeptEntry { key, value: prepared } = entry;
        let place = key.place;
        let current = host.current(py)?;
        let (made, others);
        let mut launch = &prepared.launch;
        let mut values = Values::new();
        match outputs {
            Some(outputs) => {
                made = outputs.to_vec();
                let written = self.read_outputs(host, place, outputs)?;
                if !prepared.writes_to(&written) {
                    others = self.prepared_for(&prepared.kernel, inputs, &written)?;
                    launch = &others;
                }
                let to = written.iter().map(|seen| ArgumentValue::Address(seen.address as u64));
                values.extend(Param::in_order(&self.params, inputs.iter().map(Read::value), to));
            }
            None => {
                // With the types, shapes and strides that the launch is prepared for.
                let new = |output: &NewOutput| host.empty(py, place, current, output);
                made = prepared.outputs.iter().map(new).collect::<PyResult<Vec<_>>>()?;
                let address = |output| -> PyResult<_> { Ok(ArgumentValue::Address(host.address(output)? as u64)) };
                let to = made.iter().map(address);
                for value in Param::in_order(&self.params, inputs.iter().map(|read| Ok(read.value())), to) {
                    values.push(value?);
                }
            }
        }
        // SAFETY: the tensors are held until then; their shapes and strides stay within their memory.
        unsafe { queue(py, host, place, current, prepared.kernel.device(), &[(launch, &values)])? };
        Ok(made)
    }

    /// Launches on arguments of these forms.
    pub fn prepared_for(&self, kernel: &LoadedKernel, inputs: &[Read], written: &[Seen]) -> PyResult<PreparedLaunch> {
        let to = written.iter().map(|seen| seen.form.of_argument());
        let forms: Vec<ArgumentForm<'_>> = Param::in_order(&self.params, inputs.iter().map(Read::form), to).collect();
        kernel.prepare(&forms).map_err(raised)
    }

    fn read_inputs(&self, host: &Host, given: &Given<'_, '_>) -> PyResult<Option<Inputs>> {
        let mut read = Inputs::with_capacity(given.inputs.len());
        for (param, object) in self.inputs().zip(given.inputs) {
            if !param.is_tensor {
                read.push(Read::Number(Number::read(&param.name, param.elem, object)?));
                continue;
            }
            let Some(seen) = read_tensor(host, param, object, given.with_gradients)? else { return Ok(None) };
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
        let read = self.inputs().zip(inputs).zip(given.inputs);
        let tensors = read.filter_map(|((param, read), object)| Some((param, read.seen()?, object)));
        if let Some(found) = common_place(tensors)? {
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
        at: (Place, &Bound<'_, PyAny>),
        inputs: &[Read],
        known: Option<Known>,
    ) -> PyResult<PreparedEntry> {
        let prepared = self.found(py, host, at, inputs, known)?;
        self.note(&prepared);
        Ok(prepared)
    }

    /// Notes a launch, if launches are noted.
    pub fn note(&self, prepared: &PreparedEntry) {
        noted::note(|| Noted {
            kernel: prepared.value.kernel.kernel().clone(),
            sizes: prepared.value.sizes.clone(),
            place: prepared.key.place,
            is_bundled: self.bundled.is_some(),
        });
    }

    /// What is ready for inputs of these forms, made if it is not. `like` is a tensor on the device.
    pub fn found(
        &self,
        py: Python<'_>,
        host: &Host,
        (place, like): (Place, &Bound<'_, PyAny>),
        inputs: &[Read],
        known: Option<Known>,
    ) -> PyResult<PreparedEntry> {
        self.refresh();
        let is_it = |key: &Key| key.is_of(&known, place, inputs.iter());
        let key = || Key::of(known.clone(), place, inputs.iter());
        self.prepared.get(is_it, key, |key| self.prepare(py, host, key, inputs, like))
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
        self.kernel.deduce(known, |name| form(name).map(|form| (form.elem, form.shape()))).map_err(raised)
    }

    fn prepare(&self, py: Python<'_>, host: &Host, key: &Key, inputs: &[Read], like: &Bound<'_, PyAny>) -> PyResult<Prepared> {
        let deduced = self.deduced(key)?;
        let torch_device = like.getattr(intern!(py, "device"))?;
        let output =
            |form: flashtile::kernel::OutputForm<'_>| NewOutput::new(py, host, form.name, form.elem, &form.shape, &torch_device);
        let outputs = self.kernel.outputs(&deduced).map_err(raised)?;
        let outputs = outputs.into_iter().map(output).collect::<PyResult<Vec<_>>>()?;
        let kernel = self.loaded(py, host, key.place, &deduced)?;
        let new: Vec<Seen> = outputs.iter().map(|output| Seen { address: 0, place: key.place, form: output.form }).collect();
        let launch = self.prepared_for(&kernel, inputs, &new)?;
        Ok(Prepared { kernel, launch, sizes: deduced.sizes, outputs })
    }

    /// The kernel, made ready for a device, types and constants.
    fn loaded(&self, py: Python<'_>, host: &Host, place: Place, deduced: &Deduced) -> PyResult<Arc<LoadedKernel>> {
        let bound = self.kernel.bind_deduced(deduced).map_err(raised)?;
        let load = || {
            let device = place.device()?;
            match &self.bundled {
                Some(bundled) => bundled.on(&device),
                None => bound.on_with(&device, host.options()),
            }
        };
        self.loaded.get(place, &bound, || host.keeping_current(py, place, || py.detach(load))?.map_err(raised))
    }

    /// The tensors that a caller gives for outputs. Whether they fit is checked by the launch.
    fn read_outputs(&self, host: &Host, place: Place, outputs: &[Bound<'_, PyAny>]) -> PyResult<Vec<Seen>> {
        let read = |(param, object): (&Param, &Bound<'_, PyAny>)| {
            let name = &param.name;
            let seen = Seen::read(host, name, object)?;
            let seen = seen.ok_or_else(|| ArgumentError::new_err(format!("output `{name}` must be a plain tensor")))?;
            if seen.place != place {
                let message = format!("output `{name}` is on {}, inputs are on {place}; move it with `.to`", seen.place);
                return Err(ArgumentError::new_err(message));
            }
            Ok(seen)
        };
        self.outputs().zip(outputs).map(read).collect()
    }
}

impl Prepared {
    /// Whether outputs are as they are allocated.
    pub fn writes_to(&self, written: &[Seen]) -> bool {
        self.outputs.iter().map(|output| &output.form).eq(written.iter().map(|seen| &seen.form))
    }
}

impl<'a, 'py> Attended<'a, 'py> {
    /// Queries `(B, H, M, D)`, keys `(B, G, N, D)` and values `(B, G, N, E)`, rows without gaps;
    /// `None` if they are otherwise, or something else than a launch comes of a call: a gradient of
    /// one is recorded, or PyTorch's dispatcher sees the call.
    pub fn read(host: &Host, objects: &'a [Bound<'py, PyAny>; 3], enable_gqa: bool) -> PyResult<Option<Self>> {
        let [query, key, value] = objects;
        let py = query.py();
        if host.is_dispatched(py)? {
            return Ok(None);
        }
        let read = |object: &Bound<'py, PyAny>| {
            if !host.is_plain(object) || records_gradient(host, object)? {
                return Ok(None);
            }
            Seen::read(host, "query", object)
        };
        let Some(query) = read(query)? else { return Ok(None) };
        let Some(key) = read(key)? else { return Ok(None) };
        let Some(value) = read(value)? else { return Ok(None) };
        let seen = [query, key, value];
        Ok(fits(&seen, enable_gqa).then_some(Self { objects, seen }))
    }
}

/// Whether queries, keys and values are those of a kernel.
fn fits(seen: &[Seen; 3], enable_gqa: bool) -> bool {
    let [q, k, v] = seen;
    let is_plain = |x: &Seen| x.form.strides().len() == 4 && x.form.strides()[3] == 1 && x.place == q.place;
    if !seen.iter().all(is_plain) || q.form.elem != k.form.elem || k.form.elem != v.form.elem {
        return false;
    }
    let (&[batch, heads, _, width], &[batches, groups, _, depth]) = (q.form.shape(), k.form.shape()) else {
        return false;
    };
    let shares = enable_gqa && groups > 0 && heads % groups == 0;
    k.form.shape()[..3] == v.form.shape()[..3] && (batch, width) == (batches, depth) && (heads == groups || shares)
}

/// Queues launches on PyTorch's current stream, one after the other.
///
/// # Safety
/// The values of each launch are those of tensors in the forms that it is prepared for, or lie in such
/// memory, and what holds that memory is held until this returns.
pub(crate) unsafe fn queue(
    py: Python<'_>,
    host: &Host,
    place: Place,
    current: Option<usize>,
    device: &Device,
    launches: &[(&PreparedLaunch, &[ArgumentValue])],
) -> PyResult<()> {
    let of = match place {
        Place::Cpu => None,
        Place::Gpu(gpu) => Some((gpu, host.stream(py, gpu)?)),
    };
    // SAFETY: the handle is that of PyTorch's current stream, of the primary context, and is used for
    // no longer. PyTorch orders all work on its memory by its streams.
    let stream = unsafe { stream(device, of) }.map_err(raised)?;
    // SAFETY: as the caller says. PyTorch frees and uses its memory in the order of its current
    // stream, which is that of the launches.
    let run = || launches.iter().try_for_each(|(launch, values)| unsafe { launch.launch_on(&stream, values) });
    host.keeping(py, place, current, || py.detach(run))?.map_err(raised)
}

/// The place of the first of some tensors, and that one; `None` if there is none.
///
/// # Errors
/// The name of a tensor that is elsewhere.
pub(crate) fn common_place<'a, 'b, 'py: 'b>(
    tensors: impl Iterator<Item = (&'a Param, &'a Seen, &'b Bound<'py, PyAny>)>,
) -> PyResult<Option<(Place, &'b Bound<'py, PyAny>)>> {
    let mut found: Option<(Place, &Bound<'py, PyAny>)> = None;
    for (Param { name, .. }, &Seen { place, .. }, object) in tensors {
        let (expected, _) = *found.get_or_insert((place, object));
        if place != expected {
            let message = format!("argument `{name}` is on {place}, those before on {expected}; move it with `.to`");
            return Err(ArgumentError::new_err(message));
        }
    }
    Ok(found)
}

/// A tensor for a parameter; `None` if it is no plain tensor, or needs a gradient that is left to the
/// caller.
pub(crate) fn read_tensor(host: &Host, param: &Param, object: &Bound<'_, PyAny>, with_gradients: bool) -> PyResult<Option<Seen>> {
    let Some(seen) = Seen::read(host, &param.name, object)? else { return Ok(None) };
    if with_gradients && needs_gradient(object)? {
        return Ok(None);
    }
    Ok(Some(seen.for_param(param)))
}

impl Seen {
    /// As a parameter takes it: bytes as truth values.
    fn for_param(mut self, param: &Param) -> Self {
        if param.elem == Elem::Bool && matches!(self.form.elem, Elem::U8 | Elem::I8) {
            self.form.elem = Elem::Bool;
        }
        self
    }
}

/// Whether a gradient of a tensor is recorded by a call.
pub(crate) fn records_gradient(host: &Host, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(needs_gradient(object)? && host.is_grad_enabled(object.py())?)
}

/// Whether PyTorch keeps what the gradient of a tensor needs.
fn needs_gradient(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.getattr(intern!(object.py(), "requires_grad"))?.is_truthy()
}

impl Read {
    /// The tensor, if it is one.
    pub fn seen(&self) -> Option<&Seen> {
        match self {
            Read::Tensor(seen) => Some(seen),
            Read::Number(_) => None,
        }
    }

    fn form(&self) -> ArgumentForm<'_> {
        match self {
            Read::Tensor(seen) => seen.form.of_argument(),
            Read::Number(Number::F32(_)) => ArgumentForm::F32,
            Read::Number(Number::I32(_)) => ArgumentForm::I32,
        }
    }

    /// As a launch takes it.
    pub fn value(&self) -> ArgumentValue {
        match *self {
            Read::Tensor(Seen { address, .. }) => ArgumentValue::Address(address as u64),
            Read::Number(Number::F32(x)) => ArgumentValue::F32(x),
            Read::Number(Number::I32(x)) => ArgumentValue::I32(x),
        }
    }
}
