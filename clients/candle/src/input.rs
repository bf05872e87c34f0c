//! What an operator is called with and what it returns.

use candle_core::{Tensor, Var};
use flashtile::Kernel;

use crate::error::{Error, Result};

/// One input of a call. Made with `From`: `(&q).into()`, `0.125.into()`.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A tensor, read where candle has it.
    Tensor(&'a Tensor),
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Tensor(tensor)
    }
}

impl<'a> From<&'a Var> for Input<'a> {
    fn from(var: &'a Var) -> Self {
        Input::Tensor(var.as_tensor())
    }
}

impl From<f32> for Input<'_> {
    fn from(x: f32) -> Self {
        Input::F32(x)
    }
}

impl From<i32> for Input<'_> {
    fn from(x: i32) -> Self {
        Input::I32(x)
    }
}

/// The outputs of a call, in the order of the kernel's parameters.
#[derive(Clone, Debug)]
pub struct Outputs {
    pub(crate) kernel: String,
    pub(crate) named: Vec<(String, Tensor)>,
}

impl Outputs {
    /// The output of this name.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the names that there are.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let found = self.named.iter().find(|(known, _)| known == name);
        found.map(|(_, tensor)| tensor).ok_or_else(|| Error::Unknown {
            kernel: self.kernel.clone(),
            what: "output",
            name: name.to_owned(),
            known: self.named.iter().map(|(known, _)| known.clone()).collect(),
        })
    }

    /// The tensors, in order.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.named.into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// The first output, which is the result of most kernels.
    ///
    /// # Panics
    /// Never: a verified kernel has an output.
    pub fn into_first(self) -> Tensor {
        self.into_tensors().into_iter().next().expect("a verified kernel stores something")
    }
}

/// Inputs in the order of the kernel's parameters, with the names of these.
pub(crate) type Named<'a> = Vec<(&'a str, Input<'a>)>;

/// Names of a kernel's inputs, in order.
pub(crate) fn input_names(kernel: &Kernel) -> impl Iterator<Item = &str> {
    kernel.ir().params.values().filter(|param| !param.kind.is_written()).map(|param| &*param.name)
}

/// Inputs in order, with their names.
pub(crate) fn in_order<'a>(kernel: &'a Kernel, inputs: &[Input<'a>]) -> Result<Named<'a>> {
    let found = inputs.len();
    if input_names(kernel).count() != found {
        let names = input_names(kernel).map(str::to_owned).collect();
        return Err(Error::Count { kernel: kernel.name().to_owned(), names, found });
    }
    Ok(input_names(kernel).zip(inputs.iter().copied()).collect())
}

/// Named inputs in any order, brought into that of the parameters.
pub(crate) fn by_name<'a>(kernel: &'a Kernel, inputs: &[(&str, Input<'a>)]) -> Result<Named<'a>> {
    for (at, (name, _)) in inputs.iter().enumerate() {
        let is_known = input_names(kernel).any(|known| known == *name);
        if !is_known || inputs[..at].iter().any(|(before, _)| before == name) {
            let known = input_names(kernel).map(str::to_owned).collect();
            let (kernel, name) = (kernel.name().to_owned(), (*name).to_owned());
            return Err(Error::Unknown { kernel, what: "input", name, known });
        }
    }
    let find = |name: &'a str| {
        let found = inputs.iter().find(|(given, _)| *given == name);
        let missing = || Error::Missing { kernel: kernel.name().to_owned(), name: name.to_owned() };
        found.map(|(_, input)| (name, *input)).ok_or_else(missing)
    };
    input_names(kernel).map(find).collect()
}
