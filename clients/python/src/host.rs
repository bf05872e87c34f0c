//! What this library needs of PyTorch, which it neither links nor imports: the Python layer hands
//! over a few objects and functions when it is imported.

use std::path::PathBuf;

use flashtile::toolchain::{Toolchain, ToolchainOptions};
use flashtile::{Elem, LaunchOptions};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::error::ArgumentError;

/// Objects and functions of PyTorch.
#[derive(Debug)]
pub(crate) struct Host {
    /// Types of tensors that are plain memory: no subclass that dispatches in its own way.
    types: Vec<Py<PyAny>>,
    /// Types of elements, and what they are here.
    dtypes: Vec<(Py<PyAny>, Elem)>,
    /// `torch.empty_strided`, which costs less than `torch.empty`.
    empty: Py<PyAny>,
    /// The handle of the current stream of a GPU, by its number.
    stream: Py<PyAny>,
    /// The current GPU, and the function that sets it; `None` where there is one GPU at most.
    current: Option<(Py<PyAny>, Py<PyAny>)>,
    toolchain: Toolchain,
}

static HOST: PyOnceLock<Host> = PyOnceLock::new();

/// Hands over the objects and functions; called once, by the Python layer.
#[pyfunction]
#[pyo3(signature = (*, types, dtypes, empty, stream, current, nvrtc))]
pub(crate) fn set_host(
    py: Python<'_>,
    types: Vec<Py<PyAny>>,
    dtypes: Vec<(Py<PyAny>, String)>,
    empty: Py<PyAny>,
    stream: Py<PyAny>,
    current: Option<(Py<PyAny>, Py<PyAny>)>,
    nvrtc: Option<PathBuf>,
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
    let host = Host { types, dtypes, empty, stream, current, toolchain };
    HOST.set(py, host).map_err(|_| PyRuntimeError::new_err("set_host was called before"))
}

impl Host {
    /// What was handed over.
    pub fn get(py: Python<'_>) -> PyResult<&Host> {
        HOST.get(py).ok_or_else(|| PyRuntimeError::new_err("import `flashtile`, not `flashtile._flashtile`"))
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

    /// A new tensor that holds nothing yet.
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Py<PyTuple>,
        strides: &Py<PyTuple>,
        options: &Py<PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.empty.bind(py).call((shape, strides), Some(options.bind(py)))
    }

    /// The handle of the current stream of a GPU.
    pub fn stream(&self, py: Python<'_>, gpu: usize) -> PyResult<usize> {
        self.stream.bind(py).call1((gpu,))?.extract()
    }

    /// Runs a function that makes another GPU current, and makes the one before current again.
    pub fn keeping_current<T>(&self, py: Python<'_>, gpu: usize, run: impl FnOnce() -> T) -> PyResult<T> {
        let Some((current, set_current)) = &self.current else { return Ok(run()) };
        let before: usize = current.bind(py).call0()?.extract()?;
        let result = run();
        if before != gpu {
            set_current.bind(py).call1((before,))?;
        }
        Ok(result)
    }

    /// How kernels are compiled.
    pub fn options(&self) -> LaunchOptions {
        LaunchOptions { toolchain: self.toolchain.clone(), ..LaunchOptions::default() }
    }
}
