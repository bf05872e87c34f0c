//! Kernels as Python holds them.

use std::collections::BTreeMap;

use flashtile::kernel::{Deduced, KernelError as TextError, ParamKind};
use flashtile::{Elem, Form, Kernel, SourceText};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::error::{ArgumentError, GradientError, raised};
use crate::host::Host;
use crate::launch::{Attended, Given, Known, Launcher};
use crate::tensor::Scale;

/// A kernel, with the types and sizes that the user has fixed.
#[pyclass(name = "Kernel", module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct PyKernel {
    pub launcher: Launcher,
}

impl PyKernel {
    pub fn new(kernel: Kernel) -> Self {
        Self { launcher: Launcher::new(kernel, Deduced::default(), None) }
    }

    fn kernel(&self) -> &Kernel {
        &self.launcher.kernel
    }
}

#[pymethods]
impl PyKernel {
    /// The built-in kernel of a name.
    #[staticmethod]
    fn builtin(name: &str) -> PyResult<Self> {
        Kernel::builtin(name).map(Self::new).map_err(raised)
    }

    /// A kernel of a text, by its name, or the only one.
    #[staticmethod]
    fn from_text(text: &str, place: &str, name: Option<&str>) -> PyResult<Self> {
        of_text(text, place, name).map(Self::new).map_err(raised)
    }

    /// The kernel with types and sizes that no input tells, or that must be these.
    fn fixed(&self, types: BTreeMap<String, String>, sizes: BTreeMap<String, i64>) -> PyResult<Self> {
        let types = types.into_iter().map(|(name, elem)| Ok((name, named(&elem)?))).collect::<PyResult<_>>()?;
        let known = Deduced { types, sizes };
        let ir = self.kernel().ir();
        let unknown = |what: &str, name: &str, known: Vec<&str>| {
            let (kernel, known) = (&ir.name, known.join(", "));
            Err(ArgumentError::new_err(format!("kernel `{kernel}` has no {what} `{name}`; it has {known}")))
        };
        if let Some(name) = known.types.keys().find(|name| !ir.type_params.contains(name)) {
            return unknown("type parameter", name, ir.type_params.iter().map(String::as_str).collect());
        }
        if let Some(name) = known.sizes.keys().find(|name| ir.size_named(name).is_none()) {
            return unknown("size", name, ir.sizes.values().map(|size| &*size.name).collect());
        }
        Ok(Self { launcher: Launcher::new(self.kernel().clone(), known, None) })
    }

    /// Name.
    #[getter]
    fn name(&self) -> &str {
        self.kernel().name()
    }

    /// Text, as it was read or as a rewrite has written it.
    #[getter]
    fn text(&self) -> &str {
        self.kernel().text()
    }

    /// What was fixed, as text: a part of the identity of the kernel.
    #[getter]
    fn known(&self) -> String {
        let Deduced { types, sizes } = &self.launcher.known;
        let types = types.iter().map(|(name, elem)| format!("{name}={}", elem.name()));
        let sizes = sizes.iter().map(|(name, size)| format!("{name}={size}"));
        // Of two bundles each has code of its own.
        let bundle = self.launcher.bundled.as_ref().map(|_| format!("bundled as {:p}", &self.launcher));
        types.chain(sizes).chain(bundle).collect::<Vec<_>>().join(",")
    }

    /// Names and values of the sizes that were fixed.
    #[getter]
    fn known_sizes(&self) -> BTreeMap<String, i64> {
        self.launcher.known.sizes.clone()
    }

    /// Names and element types of the type parameters that were fixed.
    #[getter]
    fn known_types(&self) -> BTreeMap<String, &'static str> {
        self.launcher.known.types.iter().map(|(name, elem)| (name.clone(), elem.name())).collect()
    }

    /// Names of all sizes, and of all type parameters.
    #[getter]
    fn generics(&self) -> (Vec<&str>, Vec<&str>) {
        let ir = self.kernel().ir();
        (ir.sizes.values().map(|size| &*size.name).collect(), ir.type_params.iter().map(String::as_str).collect())
    }

    /// The parameters in order, each a dict: `name`, `tensor` (or a scalar), `written`, `read`,
    /// `added` (programs add to it, in any order), `elem` (the name of an element type or of a type
    /// parameter), `generic` (which of both), and `shape`, for each dimension its terms by size, its
    /// constant, its divisor and its text.
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let ir = self.kernel().ir();
        let list = PyList::empty(py);
        for param in ir.params.values() {
            let dict = PyDict::new(py);
            dict.set_item("name", &param.name)?;
            dict.set_item("written", param.kind.is_written())?;
            dict.set_item("read", param.kind.is_read())?;
            dict.set_item("added", param.kind.is_sum())?;
            let (tensor, elem, shape) = match &param.kind {
                ParamKind::Tensor(tensor) => (true, tensor.elem, &tensor.shape[..]),
                ParamKind::Scalar(elem) => (false, *elem, &[][..]),
            };
            dict.set_item("tensor", tensor)?;
            dict.set_item("elem", ir.elem_name(elem))?;
            dict.set_item("generic", matches!(elem, Elem::Generic(_)))?;
            let dimensions = shape.iter().map(|extent| {
                let (terms, constant, divisor) = extent.parts();
                let terms: BTreeMap<&str, i64> = terms.iter().map(|(size, by)| (ir.size_name(*size), *by)).collect();
                (terms, constant, divisor, ir.size_text(extent))
            });
            dict.set_item("shape", dimensions.collect::<Vec<_>>())?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// The forward kernel of a gradient, and its backward kernels in order, in a form of this name:
    /// of fused ones sums differ in their last bits from launch to launch.
    #[pyo3(signature = (of, from, form="plain"))]
    fn gradient(&self, of: Vec<String>, from: Vec<String>, form: &str) -> PyResult<(Self, Vec<Self>)> {
        if self.launcher.bundled.is_some() {
            let name = self.kernel().name();
            return Err(GradientError::new_err(format!(
                "kernel `{name}` is of a bundle, whose kernels are launched as they are; call it in torch.no_grad(), \
                 or its text, from flashtile.kernel(bundled.text), for gradients"
            )));
        }
        let of: Vec<&str> = of.iter().map(String::as_str).collect();
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        let made = self
            .kernel()
            .gradient_in(form_named(form)?, &of, &from)
            .map_err(|error| GradientError::new_err(error.to_string()))?;
        let with_known = |kernel| Self { launcher: Launcher::new(kernel, self.launcher.known.clone(), None) };
        Ok((with_known(made.forward), made.backward.into_iter().map(with_known).collect()))
    }

    /// Seconds that the cost model predicts for a launch of these types and sizes on a GPU, by its
    /// number; `None` where the GPU has no code for the kernel, or something is not known.
    fn predicted(
        &self,
        py: Python<'_>,
        gpu: usize,
        types: Vec<(String, String)>,
        sizes: Vec<(String, i64)>,
    ) -> PyResult<Option<f64>> {
        self.launcher.predicted(py, gpu, Known { types: with_elems(types)?, sizes })
    }

    /// Launches on inputs in the order of the parameters; returns the outputs. `None` if an input is
    /// no plain tensor, or needs a gradient and `with_gradients` leaves these to the caller.
    #[pyo3(signature = (inputs, outputs=None, with_gradients=false, like=None, types=None, sizes=None))]
    fn call<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        outputs: Option<&Bound<'py, PyTuple>>,
        with_gradients: bool,
        like: Option<&Bound<'py, PyAny>>,
        types: Option<Vec<(String, String)>>,
        sizes: Option<Vec<(String, i64)>>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = inputs.py();
        let known = known_of(types, sizes)?;
        let inputs: Vec<_> = inputs.iter().collect();
        let outputs: Option<Vec<_>> = outputs.map(|outputs| outputs.iter().collect());
        let given = Given { inputs: &inputs, outputs: outputs.as_deref(), like, known, with_gradients };
        let made = self.launcher.call(py, given)?;
        made.map(|outputs| PyTuple::new(py, outputs)).transpose()
    }

    /// Launches a kernel of attention on queries `(B, H, M, D)`, keys `(B, G, N, D)` and values
    /// `(B, G, N, E)` that are as it takes them, with a scale or `1 / sqrt(D)`; returns its output, or
    /// a tuple of several. `None` if they are otherwise, or something else comes of the call.
    fn attend<'py>(
        &self,
        query: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
        scale: Scale,
        enable_gqa: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, objects) = (query.py(), [query, key, value]);
        let Some(attended) = Attended::read(Host::get(py)?, &objects, enable_gqa)? else { return Ok(None) };
        let made = self.launcher.attend(py, &attended, scale, std::iter::empty(), &[])?;
        made.map(|made| one_or_all(py, made)).transpose()
    }
}

/// The output of a kernel, or a tuple of several.
pub(crate) fn one_or_all<'py>(py: Python<'py>, mut made: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    match made.len() {
        1 => Ok(made.remove(0)),
        _ => Ok(PyTuple::new(py, made)?.into_any()),
    }
}

/// A kernel of a text, by its name, or the only one.
pub(crate) fn of_text(text: &str, place: &str, name: Option<&str>) -> flashtile::Result<Kernel> {
    let source = SourceText { name: place.to_owned(), text: text.into(), first_line: 1 };
    let kernels = Kernel::from_source(&source)?;
    let known = kernels.iter().map(Kernel::name).collect::<Vec<_>>().join(", ");
    let count = kernels.len();
    let found = kernels.into_iter().find(|kernel| name.is_none_or(|name| kernel.name() == name));
    let place = place.to_owned();
    match (found, name) {
        (Some(_), None) if count > 1 => Err(TextError::Ambiguous { place, known }.into()),
        (Some(kernel), _) => Ok(kernel),
        (None, name) => {
            let name = name.unwrap_or("of any name").to_owned();
            Err(TextError::Unknown { name, place, known }.into())
        }
    }
}

/// What a caller knows, if anything: types by their names, and sizes.
pub(crate) fn known_of(types: Option<Vec<(String, String)>>, sizes: Option<Vec<(String, i64)>>) -> PyResult<Option<Known>> {
    if types.is_none() && sizes.is_none() {
        return Ok(None);
    }
    Ok(Some(Known { types: with_elems(types.unwrap_or_default())?, sizes: sizes.unwrap_or_default() }))
}

/// Element types of their names.
fn with_elems(types: Vec<(String, String)>) -> PyResult<Vec<(String, Elem)>> {
    types.into_iter().map(|(name, elem)| Ok((name, named(&elem)?))).collect()
}

/// The element type of a name.
fn named(elem: &str) -> PyResult<Elem> {
    let known = || Elem::ALL.map(Elem::name).join(", ");
    Elem::from_name(elem).ok_or_else(|| ArgumentError::new_err(format!("no element type `{elem}`; there is {}", known())))
}

/// The form of a gradient of this name.
pub(crate) fn form_named(name: &str) -> PyResult<Form> {
    Form::named(name).ok_or_else(|| {
        let known = Form::ALL.map(Form::name).join(", ");
        pyo3::exceptions::PyValueError::new_err(format!("a gradient has no form `{name}`; its forms are {known}"))
    })
}
