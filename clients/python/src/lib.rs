//! The native part of the Python package `flashtile`: kernels on tensors of PyTorch, which is
//! neither linked nor imported here.
//!
//! | module | subject |
//! | --- | --- |
//! | `kernel` | kernels as Python holds them |
//! | `launch` | launches, prepared once for each kind of arguments |
//! | `tensor` | tensors and numbers of a call |
//! | `exchange` | tensors and streams through functions of C |
//! | `ahead` | tuning, and bundles of compiled code |
//! | `host` | what is needed of PyTorch, handed over by the Python layer |
//! | `error` | exceptions |

mod ahead;
mod error;
mod exchange;
mod host;
mod kernel;
mod launch;
mod tensor;

use pyo3::prelude::*;

/// The native module.
#[pymodule]
fn _flashtile(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add_class::<kernel::PyKernel>()?;
    module.add_class::<ahead::PyBundle>()?;
    module.add_class::<ahead::Noted>()?;
    module.add_function(wrap_pyfunction!(ahead::begin_noting, module)?)?;
    module.add_function(wrap_pyfunction!(ahead::end_noting, module)?)?;
    module.add_function(wrap_pyfunction!(ahead::write_bundle, module)?)?;
    module.add_function(wrap_pyfunction!(host::set_host, module)?)?;
    module.add("BUILTINS", flashtile::kernel::BUILTINS.iter().map(|builtin| builtin.name).collect::<Vec<_>>())
}
