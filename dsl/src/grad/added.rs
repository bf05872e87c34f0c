//! The kernels that add up the gradients of the uses of an input.

use std::collections::HashMap;

use super::forward::Forward;
use super::names::grad_name;
use super::uses::{Part, Uses, in_place};
use crate::ir::edit::{add_tensor, beside};
use crate::ir::{At, AxisKind, BinaryOp, Builder, CompareOp, Direction, Elem, Kernel, Op, ParamId, TensorDecl, ValueId, Whole};

/// The kernels that add up the gradients of uses.
pub(super) fn sums_of_uses(forward: &Forward<'_>, uses: &Uses) -> Vec<Kernel> {
    uses.of_input.iter().map(|(&input, params)| sum(forward, uses, input, params)).collect()
}

fn sum(forward: &Forward<'_>, uses: &Uses, input: ParamId, params: &[ParamId]) -> Kernel {
    let (kernel, name) = (forward.kernel, &forward.kernel.params[input].name);
    let mut b = beside(kernel, format!("{}_{}", kernel.name, grad_name(name)));
    b.kernel.doc = format!("The gradient of `{name}`: the sum of those of its uses in `{}`.", kernel.name);
    let parts: Vec<&Part> = params.iter().map(|param| &uses.parts[param]).collect();
    let inputs: Vec<ParamId> = params
        .iter()
        .map(|&param| {
            let (name, decl) = uses.gradient(kernel, param);
            add_tensor(&mut b.kernel, &name, TensorDecl { direction: Direction::In, ..decl })
        })
        .collect();
    let decl = kernel.tensor(input).clone();
    let output = add_tensor(&mut b.kernel, &grad_name(name), TensorDecl { direction: Direction::Out, ..decl.clone() });
    let whole = Whole::of(&mut b, &decl, &|dim| parts.iter().any(|part| part.computed.iter().any(|own| own.dim == dim)));
    let mut total = None;
    for (part, tensor) in parts.into_iter().zip(inputs) {
        total = Some(added(part, &mut b, forward, &whole, tensor, total));
    }
    let value = total.expect("an input has a use");
    b.append(Op::Store { tensor: output, at: whole.at, value });
    b.finish().renumbered()
}

/// A total and the gradient of a part, at a place of the input.
fn added(part: &Part, b: &mut Builder, forward: &Forward<'_>, whole: &Whole, tensor: ParamId, total: Option<ValueId>) -> ValueId {
    let Some(total) = total.or_else(|| (!part.computed.is_empty()).then(|| whole.zeros(b))) else {
        return b.emit(Op::Load { tensor, at: whole.at.clone() });
    };
    let (mut open, mut known, mut carried) = (Vec::new(), HashMap::new(), total);
    for (there, extent) in part.computed.iter().flat_map(|computed| &computed.by) {
        let axis = b.axis(forward.name(*there), extent.clone(), AxisKind::Each);
        let (here, next) = b.begin_for(axis, &[carried]);
        known.insert(*there, here);
        open.push((axis, carried));
        carried = next[0];
    }
    let at = in_place(&part.computed, whole.at.clone(), |(v, _)| At::Index(known[v]));
    let mut term = b.emit(Op::Load { tensor, at });
    for computed in &part.computed {
        let index = index_here(b, forward, computed.index, &known);
        let index = b.emit(Op::FromIndex(index));
        let own = match whole.at[computed.dim] {
            At::Index(v) => b.emit(Op::FromIndex(v)),
            At::Tile(v) => b.emit(Op::Pos(v)),
            At::Range { .. } => unreachable!("a computed dimension is no range"),
        };
        let cond = b.emit(Op::Compare(CompareOp::Eq, own, index));
        let on_false = b.emit(Op::Constant(Elem::F32, 0.0));
        term = b.emit(Op::Select { cond, on_true: term, on_false });
    }
    let mut total = b.emit(Op::Binary(BinaryOp::Add, carried, term));
    for (axis, init) in open.into_iter().rev() {
        total = b.end_for(axis, vec![init], vec![total])[0];
    }
    total
}

/// An index of the forward kernel, made of indices that are known here.
fn index_here(b: &mut Builder, forward: &Forward<'_>, index: ValueId, known: &HashMap<ValueId, ValueId>) -> ValueId {
    if let Some(&here) = known.get(&index) {
        return here;
    }
    let (_, op) = forward.kernel.def(index).expect("what is computed has an op");
    let operands: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, index_here(b, forward, v, known))).collect();
    b.emit(op.map_operands(|v| operands[&v]))
}
