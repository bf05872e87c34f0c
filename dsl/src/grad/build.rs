//! The kernels of a gradient.

use std::collections::BTreeSet;
use std::fmt;

use super::added::sums_of_uses;
use super::alike::with_shared_indices;
use super::columns::{ColumnGroup, column_groups};
use super::extents::with_extents_of_its_own;
use super::forward::{Forward, Shape};
use super::fused::fused;
use super::kept::Kept;
use super::names::grad_name;
use super::needed::{check_loaded, for_outputs};
use super::parts::in_parts;
use super::product::of_product;
use super::stored::stored;
use super::streams::of_rows_and_columns;
use super::totals::stored_to;
use super::walked::columns_walked;
use super::ways::uses_apart;
use super::{Form, Gradient, NotDifferentiable, Request, scales};
use crate::ir::{Kernel, Op, Param, ParamId, ParamKind, SizeId, SizeKind, SourceText, cleared, verify};
use crate::syntax::parse;
use crate::text::write;

/// The gradient of a kernel.
///
/// # Errors
/// [`NotDifferentiable`]: what stands against it, and where.
pub fn gradient(kernel: &Kernel, request: &Request) -> Result<Gradient, NotDifferentiable> {
    let kernel = &with_shared_indices(kernel);
    check_loaded(kernel, request)?;
    check_names(kernel, request)?;
    let apart = columns_walked(in_parts(&for_outputs(kernel, request), &request.of));
    let (apart, uses) = uses_apart(&apart, request)?;
    let mut forward = Forward::of(&apart, request, &uses)?;
    let without_effect = forward.without_effect();
    scales::check(&forward)?;
    let kept = Kept::of(&forward);
    let backward = match forward.shape {
        _ if forward.wanted.is_empty() => Vec::new(),
        Shape::Rows if request.form.is_fused() => fused(&forward, &kept, request.form)?,
        Shape::Rows if request.form == Form::Stored => stored(&forward, &kept)?,
        Shape::Rows => of_rows_and_columns(&forward, &kept, request.form)?,
        Shape::Product if request.form != Form::Plain => {
            let what = format!("a matrix product has no {} form of its gradients", request.form.name());
            return Err(NotDifferentiable::new(what, kernel.name_span, "take the plain form"));
        }
        Shape::Product => of_product(&forward, &kept)?,
    };
    let partly = forward.wanted.iter().filter(|&&tensor| !forward.is_covered(tensor)).chain(&without_effect);
    let groups = match forward.shape {
        Shape::Rows => column_groups(&forward, request.form)?,
        Shape::Product => Vec::new(),
    };
    let zeros = partly.map(|&tensor| zeros(&forward, &groups, tensor)).collect::<Result<Vec<_>, _>>()?;
    let backward = zeros.into_iter().chain(backward).chain(sums_of_uses(&forward, &uses));
    let backward: Vec<Kernel> = backward.map(with_extents_of_its_own).collect();
    let used = |name: &str| backward.iter().any(|kernel| kernel.param_named(name).is_some());
    let made = kept.forward(&forward, kernel.clone(), &used);
    backward.iter().try_for_each(|made| check_sizes(made, kernel, request.form))?;
    check_complete(&made, &backward, request)?;
    let backward = backward.iter().map(read_back).collect::<Result<_, _>>()?;
    Ok(Gradient { forward: read_back(&made)?, backward })
}

/// The kernel that sets the gradient of an input to 0: what is not loaded has no other.
fn zeros(forward: &Forward<'_>, groups: &[ColumnGroup], tensor: ParamId) -> Result<Kernel, NotDifferentiable> {
    let (of, input) = (forward.kernel, &forward.kernel.params[tensor].name);
    let (name, decl) = stored_to(forward, groups, tensor)?;
    let mut made = cleared(of, format!("{}_{name}_zeros", of.name), &name, &decl);
    made.doc = format!("Zeros in the gradient of `{input}`: `{}` does not load all of it.", of.name);
    Ok(made.renumbered())
}

/// Refuses a request of nothing, names that it has twice, and parameters that have the names of
/// gradients.
fn check_names(kernel: &Kernel, request: &Request) -> Result<(), NotDifferentiable> {
    let refused = |what: String, instead: &str| Err(NotDifferentiable::new(what, kernel.name_span, instead));
    for (names, kind) in [(&request.of, "input"), (&request.from, "output")] {
        if names.is_empty() {
            return refused(
                format!("no {kind} of `{}` is named", kernel.name),
                "say which inputs get gradients, and of which outputs",
            );
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return refused(format!("`{name}` is named twice"), "name it once");
        }
    }
    let of = request.of.iter().chain(&request.from).find_map(|name| Some((name, kernel.param_named(&grad_name(name))?)));
    match of {
        None => Ok(()),
        Some((name, param)) => {
            let Param { name: own, span, .. } = &kernel.params[param];
            let what = format!("`{own}` has the name of the gradient of `{name}`");
            Err(NotDifferentiable::new(what, *span, format!("rename the parameter, such as to `of_{name}`")))
        }
    }
}

/// Refuses a kernel that needs the number of a size that none of its tensors has: no text says it.
fn check_sizes(made: &Kernel, forward: &Kernel, form: Form) -> Result<(), NotDifferentiable> {
    let tensors = made.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(tensor) => Some(tensor),
        ParamKind::Scalar(_) => None,
    });
    let known: BTreeSet<SizeId> = tensors.flat_map(|tensor| &tensor.shape).flat_map(|extent| extent.sizes()).collect();
    let is_unknown = |size: &SizeId| made.sizes[*size].kind == SizeKind::Runtime && !known.contains(size);
    let unknown = made.walk().into_iter().find_map(|(_, op)| match made.ops[op].op {
        Op::SizeOf(size) => Some(size).filter(is_unknown),
        Op::For { axis, .. } => made.axes[axis].extent.sizes().find(is_unknown),
        _ => None,
    });
    match unknown {
        None => Ok(()),
        Some(size) => {
            let name = made.size_name(size);
            let what = format!("`{}` needs the size `{name}`, which none of its tensors has", made.name);
            let other_form = if form == Form::Plain { "" } else { "take the plain form, " };
            let instead =
                format!("{other_form}ask for the gradient of a tensor that has `{name}` too, or give it as a parameter");
            Err(NotDifferentiable::new(what, forward.name_span, instead))
        }
    }
}

/// Sees to it that each gradient which was asked for is stored, and that each kernel reads what is
/// given, or what one before it stores.
fn check_complete(forward: &Kernel, backward: &[Kernel], request: &Request) -> Result<(), NotDifferentiable> {
    let given = request.from.iter().map(|name| grad_name(name)).chain(forward.params.values().map(|param| param.name.clone()));
    let mut known: BTreeSet<String> = given.collect();
    for kernel in backward {
        let (written, read): (Vec<_>, Vec<_>) = kernel.params.values().partition(|param| param.kind.is_written());
        if let Some(param) = read.iter().find(|param| !known.contains(&param.name)) {
            return Err(wrong(forward, format!("nothing before `{}` stores `{}`", kernel.name, param.name)));
        }
        known.extend(written.iter().map(|param| param.name.clone()));
    }
    match request.of.iter().map(|name| grad_name(name)).find(|name| !known.contains(name)) {
        Some(name) => Err(wrong(forward, format!("nothing stores `{name}`"))),
        None => Ok(()),
    }
}

/// What went wrong in making the kernels.
fn wrong(kernel: &Kernel, why: impl fmt::Display) -> NotDifferentiable {
    let what = format!("the compiler made a wrong kernel (please report it): {why}");
    NotDifferentiable::new(what, kernel.name_span, "leave out the inputs that it is about")
}

/// The kernel as it is read from its own text, so that errors and hints have a place in that.
fn read_back(kernel: &Kernel) -> Result<Kernel, NotDifferentiable> {
    verify(kernel).map_err(|errors| wrong(kernel, errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    let text = write(kernel).map_err(|why| wrong(kernel, why))?;
    let source = SourceText { name: format!("{}.rs", kernel.name), text: text.into(), first_line: 1 };
    let mut read = parse(&source).map_err(|errors| wrong(kernel, errors))?;
    read.pop().ok_or_else(|| wrong(kernel, "its text holds no kernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_that_lacks_a_kernel_is_refused() {
        let text = "pub fn normed<const D: usize>(x: &Tensor<f32, (M, D)>, w: &Tensor<f32, (D)>, y: &mut Tensor<f32, (M, D)>) {
            let i = program(tiles(M));
            let v = load(x, [i, ..]);
            store(y, [i, ..], v * rsqrt(rowsum(v * v)) * load(w, [..]));
        }";
        let source = SourceText { name: "normed.rs".into(), text: text.into(), first_line: 1 };
        let kernel = parse(&source).expect("a kernel").remove(0);
        let request = Request { of: vec!["x".into(), "w".into()], from: vec!["y".into()], form: Form::Plain };
        let Gradient { forward, backward } = gradient(&kernel, &request).expect("has one");
        assert!(backward.len() > 1, "shares of the weights are summed up by a kernel of totals");
        assert_eq!(check_complete(&forward, &backward, &request), Ok(()));
        let why = |kernels: &[Kernel]| check_complete(&forward, kernels, &request).expect_err("a kernel lacks").what;
        assert!(why(&backward[1..]).contains("stores `grad_w_shares`"), "{}", why(&backward[1..]));
        assert!(why(&backward[..1]).contains("nothing stores `grad_w`"), "{}", why(&backward[..1]));
    }
}
