//! Calls of Python without objects made for them. The stable interface of Python 3.10, which this
//! library is built for, has no vectorcall, so that PyO3 makes a bound method or a tuple for each
//! call. Two older functions of the interface hand arguments on as they are.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// What a method without arguments returns.
pub(crate) fn method<'py>(object: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let end = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: both objects live until the call returns, and no arguments follow. The result is a new
    // reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(object.py(), ffi::PyObject_CallMethodObjArgs(object.as_ptr(), name.as_ptr(), end)) }
}

/// What a function of three arguments, by their places, returns.
pub(crate) fn function<'py>(function: &Bound<'py, PyAny>, [a, b, c]: [&Bound<'py, PyAny>; 3]) -> PyResult<Bound<'py, PyAny>> {
    let end = std::ptr::null_mut::<ffi::PyObject>();
    let (f, a, b, c) = (function.as_ptr(), a.as_ptr(), b.as_ptr(), c.as_ptr());
    // SAFETY: as above, with three arguments before the end.
    unsafe { Bound::from_owned_ptr_or_err(function.py(), ffi::PyObject_CallFunctionObjArgs(f, a, b, c, end)) }
}
