//! Arguments of a launch.

use flashtile_dsl::ir::Elem;

use crate::device::CallArgument;
use crate::element::Element;
use crate::tensor::{AnyTensor, Tensor};

/// One argument of a launch, in the order of the kernel's parameters. Made with `From`: `(&q).into()`, `0.125.into()`.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A tensor that is read.
    Input(&'a AnyTensor),
    /// A tensor that is written.
    Output(&'a AnyTensor),
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

/// What an argument of a launch is, but for its place in memory or its value: what a
/// [`PreparedLaunch`](super::PreparedLaunch) is prepared for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentForm<'a> {
    /// A tensor.
    Tensor {
        /// Element type.
        elem: Elem,
        /// Extents, outermost first.
        shape: &'a [usize],
        /// Strides in elements, outermost first.
        strides: &'a [usize],
    },
    /// An f32 scalar.
    F32,
    /// An i32 scalar.
    I32,
}

/// What a [`PreparedLaunch`](super::PreparedLaunch) is given for an argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ArgumentValue {
    /// The address of the first element of a tensor: a device pointer on a GPU.
    Address(u64),
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

impl<'a> ArgumentForm<'a> {
    /// The extents, if it is a tensor.
    pub(crate) fn shape(&self) -> Option<&'a [usize]> {
        match *self {
            ArgumentForm::Tensor { shape, .. } => Some(shape),
            ArgumentForm::F32 | ArgumentForm::I32 => None,
        }
    }

    /// What it is, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            ArgumentForm::Tensor { elem, shape, .. } => format!("a tensor of {} {shape:?}", elem.name()),
            ArgumentForm::F32 => "an f32".to_owned(),
            ArgumentForm::I32 => "an i32".to_owned(),
        }
    }
}

impl<'a> Argument<'a> {
    /// What it is, but for its place in memory or its value.
    pub(crate) fn form(&self) -> ArgumentForm<'a> {
        match *self {
            Argument::Input(t) | Argument::Output(t) => {
                ArgumentForm::Tensor { elem: t.elem(), shape: t.shape(), strides: t.strides() }
            }
            Argument::F32(_) => ArgumentForm::F32,
            Argument::I32(_) => ArgumentForm::I32,
        }
    }

    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&'a AnyTensor> {
        match *self {
            Argument::Input(t) | Argument::Output(t) => Some(t),
            Argument::F32(_) | Argument::I32(_) => None,
        }
    }

    /// As a device takes it.
    pub(crate) fn raw(&self) -> CallArgument<'a> {
        match *self {
            Argument::Input(t) => t.raw(false),
            Argument::Output(t) => t.raw(true),
            Argument::F32(x) => CallArgument::F32(x),
            Argument::I32(x) => CallArgument::I32(x),
        }
    }

    /// What it is, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Argument::Input(t) | Argument::Output(t) => format!("a tensor of {} {:?}", t.elem().name(), t.shape()),
            Argument::F32(x) => format!("the f32 {x}"),
            Argument::I32(x) => format!("the i32 {x}"),
        }
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for Argument<'a> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Argument::Input(tensor.as_any())
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for Argument<'a> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        Argument::Output(tensor.as_any())
    }
}

impl<'a> From<&'a AnyTensor> for Argument<'a> {
    fn from(tensor: &'a AnyTensor) -> Self {
        Argument::Input(tensor)
    }
}

impl<'a> From<&'a mut AnyTensor> for Argument<'a> {
    fn from(tensor: &'a mut AnyTensor) -> Self {
        Argument::Output(tensor)
    }
}

impl From<f32> for Argument<'_> {
    fn from(x: f32) -> Self {
        Argument::F32(x)
    }
}

impl From<i32> for Argument<'_> {
    fn from(x: i32) -> Self {
        Argument::I32(x)
    }
}
