//! The fused form of [`super::streams`]: the kernel of columns makes the scores of each pair once,
//! and adds what a step gives to the gradients of rows to sums.
//!
//! * *Rows* stores what columns need of rows, and walks nothing.
//! * *Columns* gives the gradients of columns, and adds those of rows: `grad_q_sum`.
//! * *Sums* takes these back through what rows make of their inputs, and rounds them, a program for
//!   each tile of rows.
//!
//! Five products are made of attention for the seven of the plain form. In which order programs add
//! is not said, so two launches may differ in the last bits of what rows get.

use std::collections::BTreeSet;

use super::NotDifferentiable;
use super::copy::{Copy, Orientation};
use super::forward::{Class, Forward, WantedLoad};
use super::kept::{Kept, Stored, grad_name, row_tensor};
use super::rules::{Adjoint, Reverse};
use super::steps::{finish, if_it_stores, store_gradients};
use super::streams::{ColumnGroup, OfRowsMade, column_groups, columns_kernel, rows_kernel};
use crate::ir::{BinaryOp, Direction, Elem, Kernel, Op, ParamId, TensorDecl, UnaryOp, ValueId};

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
    /// How a value of a kernel is made; `None` if it is made otherwise.
    fn of(copy: &Copy<'_, '_>, value: ValueId) -> Option<Self> {
        if let Some(known) = copy.known.iter().filter(|(_, here)| **here == value).map(|(&there, _)| there).min() {
            return Some(Self::Of(known));
        }
        let of = |v: ValueId| Self::of(copy, v).map(Box::new);
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

/// The kernels of the gradients of a kernel whose grid has tiles of rows, in the fused form.
pub(super) fn fused(forward: &Forward<'_>, kept: &Kept) -> Result<Vec<Kernel>, NotDifferentiable> {
    let groups = column_groups(forward);
    let rows_wanted = forward.wanted_loads(Class::Row);
    check(forward, &groups, &rows_wanted)?;
    // Rows get nothing but what columns give: no input of theirs is gone back to.
    let of_rows = forward.only(Vec::new()).with_results_of(forward);
    let left = rows_kernel(&of_rows, kept, &|_| true)?.left;
    let (mut columns, mut sums) = (Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        // The first group walks the pairs for rows too.
        let of_rows = if number == 0 { &rows_wanted[..] } else { &[] };
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let tensors: BTreeSet<ParamId> = group.loads.iter().chain(of_rows).map(|(_, tensor, _)| *tensor).collect();
        let of_group = forward.only(tensors.into_iter().collect());
        let (kernel, made) = columns_kernel(&of_group, kept, &left, group, number.is_empty(), &number)?;
        columns.push(kernel);
        sums.extend(made);
    }
    let read = |name: &str| columns.iter().any(|kernel| kernel.param_named(name).is_some());
    let OfRowsMade { kernel: rows, .. } = rows_kernel(&of_rows, kept, &read)?;
    let rounded = sums_kernel(forward, &sums, &rows_wanted)?;
    Ok(rows.into_iter().chain(columns).chain(rounded).collect())
}

/// Refuses what the fused form is not built for.
fn check(forward: &Forward<'_>, groups: &[ColumnGroup], rows: &[WantedLoad]) -> Result<(), NotDifferentiable> {
    let plain = "take the plain form, which gives these gradients";
    let refuse = |what: &str| Err(NotDifferentiable::new(what, forward.kernel.name_span, plain));
    if forward.walks.len() != 1 {
        return refuse("a kernel without one loop over columns has no fused form");
    }
    if groups.is_empty() || rows.is_empty() {
        return refuse("gradients of rows alone, or of columns alone, have no fused form: nothing is made twice");
    }
    let others = [Class::Pair, Class::Program].into_iter().flat_map(|class| forward.wanted_loads(class));
    if let Some((value, tensor, _)) = others.into_iter().next() {
        let what = format!("the gradient of `{}`, which is no tensor of rows or columns, has no fused form", {
            &forward.kernel.params[tensor].name
        });
        return Err(NotDifferentiable::new(what, forward.span(value), plain));
    }
    // What rows get outside of the loop would be added by no program of columns.
    let outside = rows.iter().find(|(value, ..)| forward.is_used_behind(*value));
    match outside {
        Some((value, tensor, _)) => {
            let what = format!("`{}` is used behind the loop too", forward.kernel.params[*tensor].name);
            Err(NotDifferentiable::new(what, forward.span(*value), plain))
        }
        None => Ok(()),
    }
}

/// Adds what a step gives to the gradients of rows to sums, where rows enter the loop. It stands in
/// the loop of a kernel of columns.
pub(super) fn add_rows(reverse: &mut Reverse<'_, '_>) -> Result<Vec<Summed>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    let given: BTreeSet<ValueId> = reverse.adjoints.keys().copied().filter(|&v| forward.class(v) == Class::Row).collect();
    let mut sums = Vec::new();
    for of in given {
        let Adjoint { value: mut gradient, factor } = reverse.adjoints[&of];
        reverse.adjoints.remove(&of);
        // A factor is applied behind, to all at once, if it can be made there.
        let behind = factor.and_then(|factor| Factor::of(&reverse.copy, factor));
        if let (Some(factor), None) = (factor, &behind) {
            gradient = reverse.copy.mul(gradient, factor);
        }
        let name = match forward.kernel.def(of) {
            Some((_, Op::Load { tensor, .. })) => forward.kernel.params[*tensor].name.clone(),
            _ => forward.name(of).trim_start_matches('%').to_owned(),
        };
        // Several parts of one tensor have a sum each.
        let names = (1..).map(|n| format!("{}_sum{}", grad_name(&name), if n == 1 { String::new() } else { n.to_string() }));
        let taken = |sum: &Stored| sums.iter().any(|other: &Summed| other.sum.name == sum.name);
        let mut sum = names.map(|name| row_tensor(forward, &name, of)).find(|sum| !taken(sum)).expect("numbers do not end");
        sum.decl.elem = Elem::F32;
        let (decl, dims) = (TensorDecl { direction: Direction::Sum, ..sum.decl.clone() }, reverse.dims_of_gradient(of));
        let (output, at) = (reverse.copy.tensor(&sum.name, decl), reverse.copy.place(&sum.at)?);
        let value = reverse.copy.spread(gradient, dims);
        reverse.copy.b.append(Op::Store { tensor: output, at, value });
        sums.push(Summed { of, sum, factor: behind });
    }
    Ok(sums)
}

/// The kernel that takes sums back through what rows make of their inputs, and rounds.
fn sums_kernel(forward: &Forward<'_>, sums: &[Summed], rows: &[WantedLoad]) -> Result<Option<Kernel>, NotDifferentiable> {
    let tensors: BTreeSet<ParamId> = rows.iter().map(|(_, tensor, _)| *tensor).collect();
    let of_rows = forward.only(tensors.into_iter().collect());
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
    store_gradients(&mut reverse, rows)?;
    Ok(if_it_stores(finish(reverse, "rows", "Nothing")))
}
