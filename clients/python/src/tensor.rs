//! Reads the arguments of a call: tensors of PyTorch and numbers. Tensors are read through the
//! functions of [`crate::exchange`] where PyTorch has them, else through their Python attributes.

use flashtile::Elem;
use flashtile::client::{MAX_RANK, TensorForm};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};

use crate::call;
use crate::error::ArgumentError;
use crate::form::{Place, Seen};
use crate::host::Host;

/// A number of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    F32(f32),
    I32(i32),
}

/// A scale as a call gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// None: `1 / sqrt(D)`.
    Default,
    Number(f64),
    /// Anything else, which the Python layer converts or refuses.
    Other,
}

impl FromPyObject<'_, '_> for Scale {
    type Error = PyErr;

    /// A tensor is a number for Python too, but its gradient would be lost: it is not read.
    fn extract(scale: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if scale.is_none() {
            return Ok(Self::Default);
        }
        let is_of_python = scale.is_instance_of::<PyFloat>() || scale.is_instance_of::<PyInt>();
        Ok(match is_of_python || !scale.hasattr(intern!(scale.py(), "data_ptr"))? {
            true => scale.extract().map_or(Self::Other, Self::Number),
            false => Self::Other,
        })
    }
}

impl Seen {
    /// A plain tensor; `None` where PyTorch's dispatcher has more to do than to read memory:
    /// a subclass, or numbers that are to be negated when they are read.
    pub fn read(host: &Host, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        if !host.is_plain(object) {
            let is_tensor = object.hasattr(intern!(py, "data_ptr"))?;
            let message = || format!("argument `{name}` must be a tensor, not {}", type_name(object));
            return if is_tensor { Ok(None) } else { Err(ArgumentError::new_err(message())) };
        }
        // What the exchange does not know is read below, which says what is wrong with it.
        if let Some(seen) = host.exchange().and_then(|exchange| exchange.read(object)) {
            return seen.unless_negated(object);
        }
        if is_negated(object)? {
            return Ok(None);
        }
        let layout = object.getattr(intern!(py, "layout"))?.str()?;
        if object.getattr(intern!(py, "is_nested"))?.is_truthy()? || layout.to_string_lossy() != "torch.strided" {
            return Err(ArgumentError::new_err(format!(
                "argument `{name}` is nested or sparse; give it as a dense tensor, by `.to_padded_tensor` or `.to_dense`"
            )));
        }
        let dtype = object.getattr(intern!(py, "dtype"))?;
        let elem = host.elem(&dtype).ok_or_else(|| unread(name, &dtype))?;
        let place = Self::place(name, object)?;
        let shape = numbers(&object.getattr(intern!(py, "shape"))?)?;
        let strides = numbers(&object.call_method0(intern!(py, "stride"))?)?;
        let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let rank = shape.len();
        let form = TensorForm::new(elem, shape.into_iter().zip(strides))
            .ok_or_else(|| ArgumentError::new_err(format!("argument `{name}` has {rank} dimensions; {MAX_RANK} are possible")))?;
        Ok(Some(Self { address, place, form }))
    }

    /// A tensor of a plain type that is read by one call of C; `None` for any other.
    pub fn read_at_once(host: &Host, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        match host.exchange().and_then(|exchange| exchange.read(object)) {
            Some(seen) => seen.unless_negated(object),
            None => Ok(None),
        }
    }

    /// Itself, unless its numbers are to be negated when they are read, as those of the imaginary
    /// parts of conjugates: integers never are.
    fn unless_negated(self, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let is_integer = matches!(self.form.elem, Elem::I32 | Elem::I8 | Elem::U8 | Elem::Bool);
        Ok((is_integer || !is_negated(object)?).then_some(self))
    }

    fn place(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Place> {
        let py = object.py();
        if object.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
            return Ok(Place::Gpu(object.call_method0(intern!(py, "get_device"))?.extract()?));
        }
        if object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            return Ok(Place::Cpu);
        }
        let device = object.getattr(intern!(py, "device"))?.str()?;
        let device = device.to_string_lossy();
        Err(ArgumentError::new_err(format!("argument `{name}` is on {device}; kernels run on cpu and cuda, move it with `.to`")))
    }
}

impl FromPyObject<'_, '_> for Number {
    type Error = PyErr;

    /// A number that has its type in Python.
    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if number.is_instance_of::<PyInt>() {
            return number.extract().map(Self::I32);
        }
        let value: f64 = number.extract()?;
        Ok(Self::F32(value as f32))
    }
}

impl Number {
    /// A number for a parameter of this element type.
    pub fn read(name: &str, elem: Elem, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = |expected: &str| {
            let found = type_name(object);
            ArgumentError::new_err(format!("argument `{name}` must be {expected}, not {found}"))
        };
        if elem == Elem::I32 {
            if !object.is_instance_of::<PyInt>() || object.is_instance_of::<PyBool>() {
                return Err(wrong("an int"));
            }
            let beyond = |_| ArgumentError::new_err(format!("argument `{name}` is {object}, which is no integer of 32 bits"));
            return object.extract().map(Number::I32).map_err(beyond);
        }
        let is_number = object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>();
        if !is_number || object.is_instance_of::<PyBool>() {
            return Err(wrong("a float (of a tensor of one element, `.item()`)"));
        }
        let beyond = |_| ArgumentError::new_err(format!("argument `{name}` is an integer beyond f32"));
        let exact: f64 = object.extract().map_err(beyond)?;
        let value = exact as f32;
        if value.is_infinite() && exact.is_finite() {
            return Err(ArgumentError::new_err(format!("argument `{name}` is {exact:e}, which is beyond f32")));
        }
        Ok(Number::F32(value))
    }
}

/// Whether the numbers of a tensor are to be negated when they are read.
fn is_negated(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    call::method(object, intern!(object.py(), "is_neg"))?.is_truthy()
}

/// Extents or strides.
fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let tuple = object.cast::<PyTuple>()?;
    tuple.iter_borrowed().map(|number| number.extract()).collect()
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "an object".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn unread(name: &str, dtype: &Bound<'_, PyAny>) -> PyErr {
    let hint = match dtype.to_string().as_str() {
        "torch.int64" | "torch.int16" => "; convert it with `.to(torch.int32)`",
        "torch.float64" => "; convert it with `.to(torch.float32)`",
        _ => "",
    };
    ArgumentError::new_err(format!("argument `{name}` holds {dtype}, which kernels do not read{hint}"))
}
