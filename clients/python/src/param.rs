//! Parameters of a kernel, as calls need them.

use flashtile::kernel::ParamKind;
use flashtile::{Elem, Kernel};

/// A parameter.
#[derive(Debug)]
pub(crate) struct Param {
    pub name: String,
    pub is_tensor: bool,
    pub is_written: bool,
    pub elem: Elem,
}

impl Param {
    /// All parameters of a kernel, in order.
    pub fn of(kernel: &Kernel) -> Vec<Self> {
        let of = kernel.ir().params.values().map(|param| {
            let (is_tensor, is_written, elem) = match &param.kind {
                ParamKind::Tensor(tensor) => (true, tensor.direction.is_written(), tensor.elem),
                ParamKind::Scalar(elem) => (false, false, *elem),
            };
            Self { name: param.name.clone(), is_tensor, is_written, elem }
        });
        of.collect()
    }
}
