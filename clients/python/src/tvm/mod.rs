//! Functions that other libraries call through [tvm-ffi](https://tvm.apache.org/ffi): kernels on
//! tensors of JAX, CuPy, NumPy and any other library that speaks DLPack. Nothing here touches
//! Python.
//!
//! | module | subject |
//! | --- | --- |
//! | `abi` | values and functions as tvm-ffi passes them (`tvm/ffi/c_api.h`) |
//! | `callable` | a kernel that is called with tensors and numbers |
//!
//! The library exports `kernel(text, place, name, nvrtc)` and `builtin(name, nvrtc)`, which return
//! functions. `name`, and the folder of NVRTC, may be none.

mod abi;
mod callable;

use std::ffi::c_void;

use flashtile::Kernel;

use abi::{Failure, Value};
use callable::Callable;

use crate::kernel;

/// `builtin(name, nvrtc)`: the built-in kernel of a name, as a function.
///
/// # Safety
/// As tvm-ffi calls it: `arguments` points to `count` values, `result` to a value that holds no
/// object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __tvm_ffi_builtin(_: *mut c_void, arguments: *const Value, count: i32, result: *mut Value) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        abi::answer(arguments, count, result, |api, arguments| {
            let [name, nvrtc] = arguments else { return Err(Failure::count("builtin", 2, arguments.len())) };
            let name = name.text()?.ok_or_else(|| Failure::of_type("the name of a built-in kernel is a string"))?;
            api.function(Callable::new(Kernel::builtin(name)?, nvrtc.text()?))
        })
    }
}

/// `kernel(text, place, name, nvrtc)`: a kernel of a text, by its name or the only one, as a
/// function.
///
/// # Safety
/// As [`__tvm_ffi_builtin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __tvm_ffi_kernel(_: *mut c_void, arguments: *const Value, count: i32, result: *mut Value) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        abi::answer(arguments, count, result, |api, arguments| {
            let [text, place, name, nvrtc] = arguments else { return Err(Failure::count("kernel", 4, arguments.len())) };
            let text = text.text()?.ok_or_else(|| Failure::of_type("the text of a kernel is a string"))?;
            let kernel = kernel::of_text(text, place.text()?.unwrap_or("kernel text"), name.text()?)?;
            api.function(Callable::new(kernel, nvrtc.text()?))
        })
    }
}
