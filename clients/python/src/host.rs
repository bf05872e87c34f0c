//! What this library needs of PyTorch, which it neither links nor imports: the Python layer hands
//! over a few objects and functions when it is imported.

use std::path::PathBuf;

use flashtile::client::{MAX_RANK, TensorForm};
use flashtile::toolchain::{Toolchain, ToolchainOptions};
use flashtile::{Elem, LaunchOptions};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::call;
use crate::error::{ArgumentError, raised};
use crate::exchange::Exchange;
use crate::form::Place;

/// Objects and functions of PyTorch.
#[derive(Debug)]
pub(crate) struct Host {
    /// Types of tensors that are plain memory: no subclass that dispatches in its own way.
    types: Vec<Py<PyAny>>,
    /// Types of elements, and what they are here.
    dtypes: Vec<(Py<PyAny>, Elem)>,
    /// `torch.empty_strided`, which costs less than `torch.empty`.
    empty: Py<PyAny>,
    /// What compiled graphs of PyTorch allocate with, of sizes, strides and a type, on the CPU and
    /// on the current GPU: it costs half of that.
    empty_at_once: Option<[Py<PyAny>; 2]>,
    /// The handle of the current stream of a GPU, by its number.
    stream: Py<PyAny>,
    /// Whether the current stream is captured.
    capturing: Py<PyAny>,
    modes: Modes,
    /// The current GPU, and the function that sets it; `None` where there is one GPU at most.
    current: Option<(Py<PyAny>, Py<PyAny>)>,
    toolchain: Toolchain,
    /// Functions of C that read tensors and streams, where PyTorch has them.
    exchange: Option<Exchange>,
}

/// What else PyTorch may make of a call than a launch.
#[derive(Debug)]
pub(crate) struct Modes {
    /// How many modes of the dispatcher are on.
    dispatch: Py<PyAny>,
    /// The level of a transformation of functions, or `None`.
    functorch: Py<PyAny>,
    /// `torch.autograd.forward_ad`, whose `_current_level` is below 0 where there is none.
    forward_ad: Py<PyAny>,
    /// Whether gradients are recorded.
    gradients: Py<PyAny>,
    /// Whether `torch.jit.trace` makes a trace.
    tracing: Py<PyAny>,
}

/// An output that PyTorch allocates.
#[derive(Debug)]
pub(crate) struct NewOutput {
    pub form: TensorForm,
    pub shape: Py<PyTuple>,
    pub strides: Py<PyTuple>,
    /// Type, as PyTorch takes it.
    pub dtype: Py<PyAny>,
    /// Type and device, as PyTorch takes them.
    pub options: Py<PyDict>,
}

impl NewOutput {
    /// A packed tensor of this shape on a device of PyTorch, by the name of the output.
    pub fn new(
        py: Python<'_>,
        host: &Host,
        name: &str,
        elem: Elem,
        shape: &[usize],
        device: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let dtype = host.dtype(name, elem)?;
        let options = PyDict::new(py);
        options.set_item("dtype", dtype)?;
        options.set_item("device", device)?;
        let strides = flashtile::Tensor::<f32>::packed_strides(shape).map_err(raised)?;
        let dimensions = shape.iter().copied().zip(strides.iter().copied());
        let many = || ArgumentError::new_err(format!("output `{name}` has more than {MAX_RANK} dimensions"));
        let form = TensorForm::new(elem, dimensions).ok_or_else(many)?;
        let (shape, strides) = (PyTuple::new(py, shape)?.unbind(), PyTuple::new(py, strides)?.unbind());
        Ok(Self { form, shape, strides, dtype: dtype.clone_ref(py), options: options.unbind() })
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.form.shape().iter().product::<usize>() * self.form.elem.bytes().expect("an output has an element type")
    }
}

static HOST: PyOnceLock<Host> = PyOnceLock::new();

/// Hands over the objects and functions; called once, by the Python layer.
#[pyfunction]
#[pyo3(signature = (*, types, dtypes, empty, empty_at_once, stream, capturing, modes, current, nvrtc, exchange))]
#[expect(clippy::too_many_arguments, reason = "all are named where the function is called")]
pub(crate) fn set_host(
    py: Python<'_>,
    types: Vec<Py<PyAny>>,
    dtypes: Vec<(Py<PyAny>, String)>,
    empty: Py<PyAny>,
    empty_at_once: Option<[Py<PyAny>; 2]>,
    stream: Py<PyAny>,
    capturing: Py<PyAny>,
    modes: [Py<PyAny>; 5],
    current: Option<(Py<PyAny>, Py<PyAny>)>,
    nvrtc: Option<PathBuf>,
    exchange: Option<Py<PyAny>>,
) -> PyResult<()> {
    let elem = |(dtype, name): (Py<PyAny>, String)| {
        let elem = Elem::from_name(&name).ok_or_else(|| PyRuntimeError::new_err(format!("no element type `{name}`")))?;
        Ok((dtype, elem))
    };
    let dtypes = dtypes.into_iter().map(elem).collect::<PyResult<_>>()?;
    let defaults = ToolchainOptions::default();
    let toolchain = match nvrtc.filter(|_| defaults.nvrtc.is_none()) {
        Some(place) => Toolchain::new(ToolchainOptions { nvrtc: Some(place), ..defaults }),
        None => Toolchain::shared(),
    };
    let exchange = exchange.and_then(|capsule| Exchange::of(capsule.bind(py)));
    let [dispatch, functorch, forward_ad, gradients, tracing] = modes;
    let modes = Modes { dispatch, functorch, forward_ad, gradients, tracing };
    let host = Host { types, dtypes, empty, empty_at_once, stream, capturing, modes, current, toolchain, exchange };
    HOST.set(py, host).map_err(|_| PyRuntimeError::new_err("set_host was called before"))
}

impl Host {
    /// What was handed over.
    pub fn get(py: Python<'_>) -> PyResult<&Host> {
        HOST.get(py).ok_or_else(|| PyRuntimeError::new_err("import `flashtile`, not `flashtile._flashtile`"))
    }

    /// Functions that read tensors.
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_ref()
    }

    /// Whether an object is a tensor that is plain memory.
    pub fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let found = object.get_type();
        self.types.iter().any(|known| known.as_ptr() == found.as_ptr())
    }

    /// The element type of a type of PyTorch.
    pub fn elem(&self, dtype: &Bound<'_, PyAny>) -> Option<Elem> {
        // Types of PyTorch are objects that exist once.
        self.dtypes.iter().find(|(known, _)| known.as_ptr() == dtype.as_ptr()).map(|(_, elem)| *elem)
    }

    /// PyTorch's type of an element type.
    pub fn dtype(&self, output: &str, elem: Elem) -> PyResult<&Py<PyAny>> {
        let known = self.dtypes.iter().find(|(_, known)| *known == elem);
        let missing = || ArgumentError::new_err(format!("output `{output}` holds {}, which PyTorch does not", elem.name()));
        known.map(|(dtype, _)| dtype).ok_or_else(missing)
    }

    /// A new tensor that holds nothing yet. `current` is the current GPU.
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        place: Place,
        current: Option<usize>,
        output: &NewOutput,
    ) -> PyResult<Bound<'py, PyAny>> {
        let at_once = self.empty_at_once.as_ref().and_then(|[cpu, gpu]| match (place, current) {
            (Place::Cpu, _) => Some(cpu),
            (Place::Gpu(_), None) => Some(gpu),
            (Place::Gpu(index), Some(current)) => (index == current).then_some(gpu),
        });
        match at_once {
            Some(empty) => {
                call::function(empty.bind(py), [output.shape.bind(py), output.strides.bind(py), output.dtype.bind(py)])
            }
            None => self.empty.bind(py).call((&output.shape, &output.strides), Some(output.options.bind(py))),
        }
    }

    /// The address of a tensor's first element.
    pub fn address(&self, tensor: &Bound<'_, PyAny>) -> PyResult<usize> {
        match self.exchange.and_then(|exchange| exchange.address(tensor)) {
            Some(address) => Ok(address),
            None => tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract(),
        }
    }

    /// The handle of the current stream of a GPU.
    pub fn stream(&self, py: Python<'_>, gpu: usize) -> PyResult<usize> {
        match self.exchange.and_then(|exchange| exchange.stream(gpu)) {
            Some(stream) => Ok(stream),
            None => self.stream.bind(py).call1((gpu,))?.extract(),
        }
    }

    /// Whether a call goes through PyTorch's dispatcher, outside of `torch.compile`.
    pub fn is_dispatched(&self, py: Python<'_>) -> PyResult<bool> {
        let Modes { dispatch, functorch, forward_ad, tracing, .. } = &self.modes;
        Ok(dispatch.bind(py).call0()?.extract::<i64>()? > 0
            || !functorch.bind(py).call0()?.is_none()
            || tracing.bind(py).call0()?.is_truthy()?
            || forward_ad.bind(py).getattr(intern!(py, "_current_level"))?.extract::<i64>()? >= 0)
    }

    /// Whether gradients of tensors that need them are recorded.
    pub fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.modes.gradients.bind(py).call0()?.is_truthy()
    }

    /// Whether PyTorch captures the current stream into a graph.
    pub fn is_capturing(&self, py: Python<'_>) -> PyResult<bool> {
        self.capturing.bind(py).call0()?.is_truthy()
    }

    /// The current GPU; `None` where there is one at most.
    pub fn current(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let Some((current, _)) = &self.current else { return Ok(None) };
        current.bind(py).call0()?.extract().map(Some)
    }

    /// Runs a function that may make the GPU of a place current, and makes the one before current
    /// again.
    pub fn keeping_current<T>(&self, py: Python<'_>, place: Place, run: impl FnOnce() -> T) -> PyResult<T> {
        self.keeping(py, place, self.current(py)?, run)
    }

    /// The same where the GPU before is known.
    pub fn keeping<T>(&self, py: Python<'_>, place: Place, before: Option<usize>, run: impl FnOnce() -> T) -> PyResult<T> {
        let result = run();
        if let (Some((_, set_current)), Some(before), Place::Gpu(gpu)) = (&self.current, before, place)
            && before != gpu
        {
            set_current.bind(py).call1((before,))?;
        }
        Ok(result)
    }

    /// How kernels are compiled.
    pub fn options(&self) -> LaunchOptions {
        LaunchOptions { toolchain: self.toolchain.clone(), ..LaunchOptions::default() }
    }
}
