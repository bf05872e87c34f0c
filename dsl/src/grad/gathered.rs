//! Gradients of inputs that are gathered, such as a table of relative positions: elements of the
//! same place get a sum, whose terms are added to the place one by one, in any order.

use super::NotDifferentiable;
use super::forward::{Forward, Gathered};
use super::names::free_name;
use super::rules::Reverse;
use crate::ir::edit::{add_tensor, beside};
use crate::ir::{At, AxisKind, Dim, Direction, Elem, Kernel, Op, ParamId, ProgramDim, TensorDecl};

/// The sum that the gradient of a gathered input is made in: the gradient itself, if that is of
/// f32.
fn sum_name(forward: &Forward<'_>, tensor: ParamId) -> String {
    let (name, decl) = forward.gradient(tensor);
    match decl.elem {
        Elem::F32 => name,
        _ => free_name(forward.kernel, &format!("{name}_sum")),
    }
}

fn sum_decl(forward: &Forward<'_>, tensor: ParamId) -> TensorDecl {
    TensorDecl { elem: Elem::F32, direction: Direction::Sum, ..forward.gradient(tensor).1 }
}

/// Adds the gradients of gathered elements to their places.
pub(super) fn scatter_gradients(reverse: &mut Reverse<'_, '_>, gathers: &[Gathered]) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    for Gathered { value, tensor, at } in gathers {
        let dims = reverse.dims_of_gradient(*value);
        let gradient = match reverse.adjoints.remove(value) {
            Some(g) => reverse.applied(g),
            None => reverse.copy.filled(0.0, dims.clone()),
        };
        let gradient = reverse.copy.spread(gradient, dims);
        let gradient = reverse.counted(gradient);
        let at = at.iter().map(|&v| reverse.copy.value(v)).collect::<Result<_, _>>()?;
        let sum = reverse.copy.tensor(&sum_name(forward, *tensor), sum_decl(forward, *tensor));
        reverse.copy.b.append(Op::Scatter { tensor: sum, at, value: gradient });
    }
    Ok(())
}

/// Kernels that round the sums of gathered inputs to their types, where these are not f32.
pub(super) fn rounded(forward: &Forward<'_>) -> Vec<Kernel> {
    let mut tensors: Vec<ParamId> = forward.gathers().iter().map(|gathered| gathered.tensor).collect();
    tensors.sort_unstable();
    tensors.dedup();
    tensors.retain(|&tensor| forward.gradient(tensor).1.elem != Elem::F32);
    tensors.into_iter().map(|tensor| rounding(forward, tensor)).collect()
}

fn rounding(forward: &Forward<'_>, tensor: ParamId) -> Kernel {
    let (of, input) = (forward.kernel, &forward.kernel.params[tensor].name);
    let (name, decl) = forward.gradient(tensor);
    let mut b = beside(of, format!("{}_{name}", of.name));
    b.kernel.doc = format!("The gradient of `{input}`, rounded: of `{}`.", of.name);
    let sum = add_tensor(
        &mut b.kernel,
        &sum_name(forward, tensor),
        TensorDecl { direction: Direction::In, ..sum_decl(forward, tensor) },
    );
    let output = add_tensor(&mut b.kernel, &name, decl.clone());
    let last = decl.shape.len() - 1;
    let axis = b.axis("e", decl.shape[last].clone(), AxisKind::Program);
    let dims = decl.shape.iter().enumerate().map(|(dim, extent)| match dim == last {
        true => ProgramDim::Tiles(axis),
        false => ProgramDim::Each(extent.clone()),
    });
    let (_, place) = b.append(Op::Program(dims.collect()));
    b.name(place[last], "e");
    let at: Vec<At> = place.iter().enumerate().map(|(dim, &v)| if dim == last { At::Tile(v) } else { At::Index(v) }).collect();
    let value = b.emit(Op::Load { tensor: sum, at: at.clone() });
    debug_assert_eq!(b.kernel.tile(value).dims, [Dim::Axis(axis)]);
    b.append(Op::Store { tensor: output, at, value });
    b.finish().renumbered()
}
