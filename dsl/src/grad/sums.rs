//! Gradients of rows that a kernel of columns adds up, and the kernel behind that takes them back
//! to the inputs of rows.

use std::collections::BTreeSet;

use super::NotDifferentiable;
use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward, WantedLoad};
use super::kept::{Stored, row_tensor};
use super::names::grad_name;
use super::rules::{Adjoint, Reverse};
use super::steps::{finish, if_it_stores, store_gradients};
use super::totals::Share;
use crate::ir::{BinaryOp, Direction, Elem, Kernel, Op, SizeExpr, SizeKind, TensorDecl, UnaryOp, ValueId};

/// What columns add up: the gradient of a value of rows, but for a factor that is one for the whole
/// program.
pub(super) struct Summed {
    of: ValueId,
    sum: Stored,
    factor: Option<Factor>,
}

/// A number for the whole program, to be made in another kernel.
enum Factor {
    /// A value of the forward kernel.
    Of(ValueId),
    Constant(Elem, f64),
    Unary(UnaryOp, Box<Factor>),
    Binary(BinaryOp, Box<Factor>, Box<Factor>),
}

impl Factor {
    /// How a value of a kernel is made, in one that has a tensor of this shape; `None` if it is made
    /// otherwise, or of a size that the shape has not.
    fn of(copy: &Copy<'_, '_>, value: ValueId, shape: &[SizeExpr]) -> Option<Self> {
        if let Some(known) = copy.known.iter().filter(|(_, here)| **here == value).map(|(&there, _)| there).min() {
            return (!needs_other_size(copy.forward.kernel, known, shape)).then_some(Self::Of(known));
        }
        let of = |v: ValueId| Self::of(copy, v, shape).map(Box::new);
        Some(match *copy.b.kernel.def(value)?.1 {
            Op::Constant(elem, x) => Self::Constant(elem, x),
            Op::Unary(op, x) => Self::Unary(op, of(x)?),
            Op::Binary(op, a, b) => Self::Binary(op, of(a)?, of(b)?),
            _ => return None,
        })
    }

    /// Makes it.
    fn make(&self, copy: &mut Copy<'_, '_>) -> Result<ValueId, NotDifferentiable> {
        match self {
            Self::Of(value) => copy.value(*value),
            Self::Constant(elem, x) => Ok(copy.constant(*elem, *x)),
            Self::Unary(op, x) => {
                let x = x.make(copy)?;
                Ok(copy.unary(*op, x))
            }
            Self::Binary(op, a, b) => {
                let (a, b) = (a.make(copy)?, b.make(copy)?);
                Ok(copy.binary(*op, a, b))
            }
        }
    }
}

/// Whether a value depends on a size of a launch that is not in this shape.
fn needs_other_size(kernel: &Kernel, value: ValueId, shape: &[SizeExpr]) -> bool {
    match kernel.def(value) {
        Some((_, &Op::SizeOf(size))) => {
            let is_of_launch = kernel.sizes[size].kind == SizeKind::Runtime;
            is_of_launch && !shape.iter().any(|extent| extent.sizes().any(|other| other == size))
        }
        Some((_, op)) => op.operands().into_iter().any(|v| needs_other_size(kernel, v, shape)),
        None => false,
    }
}

/// Adds what a step gives to the gradients of rows to sums, where rows enter the loop. It stands in
/// the loop of a kernel of columns.
pub(super) fn add_rows(reverse: &mut Reverse<'_, '_>) -> Result<Vec<Summed>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let given: BTreeSet<ValueId> = reverse.adjoints.keys().copied().filter(|&v| forward.class(v) == Class::Row).collect();
    let mut sums = Vec::new();
    for of in given {
        let given = reverse.adjoints[&of];
        reverse.adjoints.remove(&of);
        let name = match forward.kernel.def(of) {
            Some((_, Op::Load { tensor, .. })) => forward.kernel.params[*tensor].name.clone(),
            _ => forward.name(of).trim_start_matches('%').to_owned(),
        };
        // Several parts of one tensor have a sum each.
        let names = (1..).map(|n| format!("{}_sum{}", grad_name(&name), if n == 1 { String::new() } else { n.to_string() }));
        let taken = |sum: &Stored| sums.iter().any(|other: &Summed| other.sum.name == sum.name);
        let mut sum = names.map(|name| row_tensor(forward, &name, of)).find(|sum| !taken(sum)).expect("numbers do not end");
        sum.decl.elem = Elem::F32;
        // A factor is applied behind, to all at once, if it can be made there.
        let behind = given.factor.and_then(|factor| Factor::of(&reverse.copy, factor, &sum.decl.shape));
        let gradient = if behind.is_some() { given.value } else { reverse.applied_before(given) };
        let (decl, dims) = (TensorDecl { direction: Direction::Sum, ..sum.decl.clone() }, reverse.dims_of_gradient(of));
        let (output, at) = (reverse.copy.tensor(&sum.name, decl), reverse.copy.place(&sum.at)?);
        let value = reverse.copy.spread(gradient, dims);
        reverse.copy.b.append(Op::Store { tensor: output, at, value });
        sums.push(Summed { of, sum, factor: behind });
    }
    Ok(sums)
}

/// The kernel that takes sums back through what rows make of their inputs, and rounds; with the shares
/// that its programs store of what several of them load.
pub(super) fn sums_kernel(
    forward: &Forward<'_>,
    sums: &[Summed],
    rows: &[WantedLoad],
) -> Result<(Option<Kernel>, Vec<Share>), NotDifferentiable> {
    let of_rows = forward.only(rows, &[]);
    let mut copy = Copy::new(&of_rows, format!("{}_grad_sums", forward.kernel.name), Orientation::Rows);
    copy.whole_program();
    let mut reverse = Reverse::new(copy);
    for Summed { of, sum, factor } in sums {
        let value = sum.load(&mut reverse.copy)?;
        let factor = factor.as_ref().map(|factor| factor.make(&mut reverse.copy)).transpose()?;
        reverse.give(*of, Adjoint { value, factor })?;
    }
    for &op in forward.kernel.blocks[forward.kernel.body].ops.iter().rev() {
        if forward.walk_of(op).is_none() {
            reverse.through(op)?;
        }
    }
    let shares = store_gradients(&mut reverse, rows)?;
    Ok((if_it_stores(finish(reverse, "rows", "Nothing")), shares))
}
