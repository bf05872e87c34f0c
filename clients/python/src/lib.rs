//! The native part of the Python package `flashtile`: kernels on tensors of PyTorch, which is
//! neither linked nor imported here, and on those of any library that calls through tvm-ffi.
//!
//! | module | subject |
//! | --- | --- |
//! | `kernel` | kernels as Python holds them |
//! | `launch` | launches, prepared once for each kind of arguments |
//! | `blocks` | the lists of a `BlockMask`, and their tables |
//! | `flex` | calls of `flex` of known kinds |
//! | `held` | what Python functions hold, as a key |
//! | `chain` | kernels that one call launches one after the other |
//! | `tensor` | tensors and numbers of a call, read |
//! | `form` | what a launch knows of a tensor |
//! | `dlpack` | tensors as DLPack describes them |
//! | `exchange` | tensors and streams through functions of C |
//! | `tvm` | functions that tvm-ffi calls |
//! | `noted` | launches that a function makes, and their tuning |
//! | `bundle` | bundles of compiled code |
//! | `call` | calls of Python with nothing made for them |
//! | `host` | what is needed of PyTorch, handed over by the Python layer |
//! | `error` | exceptions |
//! | `lock` | locks of caches |

mod blocks;
mod bundle;
mod call;
mod chain;
mod dlpack;
mod error;
mod exchange;
mod flex;
mod form;
mod held;
mod host;
mod kernel;
mod launch;
mod lock;
mod noted;
mod tensor;
mod tvm;

use flashtile::Form;
use pyo3::prelude::*;

/// The form of a gradient to take, by its name, of forms and the seconds that they are predicted to
/// take.
#[pyfunction]
fn fastest_form(predicted: Vec<(String, Option<f64>)>) -> PyResult<&'static str> {
    let named = |(name, seconds): (String, Option<f64>)| Ok((kernel::form_named(&name)?, seconds));
    Ok(flashtile::client::fastest(predicted.into_iter().map(named).collect::<PyResult<_>>()?).name())
}

/// The native module.
#[pymodule]
fn _flashtile(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add_class::<kernel::PyKernel>()?;
    module.add_class::<chain::Chain>()?;
    module.add_class::<blocks::BlockState>()?;
    module.add_class::<blocks::KeptBlocks>()?;
    module.add_class::<flex::FlexCalls>()?;
    module.add_class::<held::HeldKey>()?;
    module.add_class::<bundle::PyBundle>()?;
    module.add_class::<noted::Noted>()?;
    module.add("FORMS", Form::ALL.map(|form| (form.name(), form.is_fused())))?;
    module.add_function(wrap_pyfunction!(fastest_form, module)?)?;
    module.add_function(wrap_pyfunction!(noted::begin_noting, module)?)?;
    module.add_function(wrap_pyfunction!(noted::end_noting, module)?)?;
    module.add_function(wrap_pyfunction!(bundle::write_bundle, module)?)?;
    module.add_function(wrap_pyfunction!(host::set_host, module)?)?;
    module.add("BUILTINS", flashtile::kernel::BUILTINS.iter().map(|builtin| builtin.name).collect::<Vec<_>>())
}
