//! Parameters of a kernel, as calls need them.

use flashtile_dsl::ir::{Elem, ParamKind};

use crate::kernel::Kernel;

/// A parameter of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Whether it is a tensor; else it is a scalar.
    pub is_tensor: bool,
    /// Whether the kernel reads it. Scalars are read.
    pub is_read: bool,
    /// Whether the kernel writes it.
    pub is_written: bool,
    /// The element type that the text declares, or the type of the scalar.
    pub elem: Elem,
}

impl Param {
    /// All parameters of a kernel, in order.
    pub fn of(kernel: &Kernel) -> Vec<Self> {
        let of = kernel.ir().params.values().map(|param| {
            let (is_tensor, elem) = match &param.kind {
                ParamKind::Tensor(tensor) => (true, tensor.elem),
                ParamKind::Scalar(elem) => (false, *elem),
            };
            let (is_read, is_written) = (param.kind.is_read(), param.kind.is_written());
            Self { name: param.name.clone(), is_tensor, is_read, is_written, elem }
        });
        of.collect()
    }

    /// What belongs to parameters in their order, of what belongs to those that are read and to
    /// those that are written, each in order.
    pub fn in_order<T>(
        params: &[Self],
        read: impl IntoIterator<Item = T>,
        written: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = T> {
        let (mut read, mut written) = (read.into_iter(), written.into_iter());
        params.iter().filter_map(move |param| if param.is_written { written.next() } else { read.next() })
    }
}
