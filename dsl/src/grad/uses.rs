//! Inputs that a kernel uses in several ways: each use has a gradient of its own, and a kernel
//! behind adds these up.
//!
//! ```text
//! s + load(f, [b, h, i]) - load(f, [b, h, j])     // rows and columns load the same
//! s * load(ks, [h * G / H])                       // programs of a group load the same
//! ```
//!
//! A use is an input by itself while the kernel is taken apart: a parameter of the same name. The
//! kernels of the gradient read one tensor, and write `grad_f_1` and `grad_f_2` in f32. What is
//! loaded at an index that is computed of dimensions of the grid (`h * G / H`) has its gradient for
//! these (`h`), and the kernel behind adds up those of one index.
//!
//! Invariant: loads of one use are of one element, or apart; where programs share what they load,
//! they differ in ranges and numbers alone.

use std::collections::BTreeMap;

use super::names::grad_name;
use crate::ir::{At, Direction, Elem, Kernel, ParamId, SizeExpr, TensorDecl, ValueId};

/// The uses of the inputs whose gradients are wanted.
#[derive(Clone, Default)]
pub(super) struct Uses {
    /// By the parameter of a use; an input with one use has no entry.
    pub parts: BTreeMap<ParamId, Part>,
    /// Inputs with several uses: the parameters of these, of which the first is the input's own.
    pub of_input: BTreeMap<ParamId, Vec<ParamId>>,
}

/// A use that has a gradient of its own.
#[derive(Clone)]
pub(super) struct Part {
    /// The tensor that it is stored in.
    pub name: String,
    pub computed: Vec<Computed>,
}

/// A dimension that is loaded at an index which is computed of dimensions of the grid.
#[derive(Clone, PartialEq)]
pub(super) struct Computed {
    pub dim: usize,
    pub index: ValueId,
    /// The dimensions of the grid that stand in its place in the gradient.
    pub by: Vec<(ValueId, SizeExpr)>,
}

impl Uses {
    /// The parameters of an input: one for each use.
    pub fn of(&self, input: ParamId) -> Vec<ParamId> {
        self.of_input.get(&input).cloned().unwrap_or_else(|| vec![input])
    }

    /// The tensor that the gradient of a parameter is stored in: its name, and its declaration.
    pub fn gradient(&self, kernel: &Kernel, param: ParamId) -> (String, TensorDecl) {
        let mut decl = TensorDecl { direction: Direction::Out, ..kernel.tensor(param).clone() };
        let Some(part) = self.parts.get(&param) else { return (grad_name(&kernel.params[param].name), decl) };
        decl.elem = Elem::F32;
        decl.shape = in_place(&part.computed, decl.shape, |(_, extent)| extent.clone());
        (part.name.clone(), decl)
    }

    /// The place of that gradient, of a place of the parameter.
    pub fn place(&self, param: ParamId, at: &[At]) -> Vec<At> {
        match self.parts.get(&param) {
            Some(part) => in_place(&part.computed, at.to_vec(), |(v, _)| At::Index(*v)),
            None => at.to_vec(),
        }
    }
}

/// What each dimension has, that of a computed index replaced.
pub(super) fn in_place<T>(computed: &[Computed], of_input: Vec<T>, by: impl Fn(&(ValueId, SizeExpr)) -> T) -> Vec<T> {
    let mut made = Vec::new();
    for (dim, own) in of_input.into_iter().enumerate() {
        match computed.iter().find(|computed| computed.dim == dim) {
            Some(computed) => made.extend(computed.by.iter().map(&by)),
            None => made.push(own),
        }
    }
    made
}
