//! Arguments of a launch.

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

impl<'a> Argument<'a> {
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
