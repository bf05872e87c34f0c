//! Names of tensors that a gradient makes.

use crate::ir::Kernel;

/// The name of the gradient of a tensor.
pub(super) fn grad_name(name: &str) -> String {
    format!("grad_{name}")
}

/// The name, with underscores behind it where a parameter of the kernel has it.
pub(super) fn free_name(kernel: &Kernel, name: &str) -> String {
    let mut name = name.to_owned();
    while kernel.param_named(&name).is_some() {
        name.push('_');
    }
    name
}
