//! What outputs whose gradients are given depend on: all else of a kernel is left out before the
//! kernel is taken apart.

use std::collections::HashSet;

use super::{NotDifferentiable, Request};
use crate::analysis::live::{live_values, remove_dead};
use crate::analysis::streaming::{Form, Streaming};
use crate::ir::{Kernel, Op, OpId, ParamId, ValueDef, ValueId};

/// The kernel with what the outputs of a request need. Its values keep their numbers. Other outputs
/// are left where they are made of nothing else: the logarithm of a sum with its maximum serves the
/// gradient of a quotient.
pub(super) fn for_outputs(kernel: &Kernel, request: &Request) -> Kernel {
    let given: HashSet<ParamId> = request.from.iter().filter_map(|name| kernel.param_named(name)).collect();
    let is_given = |op: &Op| op.written().is_none_or(|tensor| given.contains(&tensor));
    let part = storing(kernel, |op| is_given(&kernel.ops[op].op));
    let mut live = live_values(&part);
    live.extend(rescaled(kernel, &live));
    let is_made_of_live = |op: OpId| {
        kernel.blocks[kernel.body].ops.contains(&op) && kernel.ops[op].op.operands().iter().all(|&v| is_made(kernel, &live, v))
    };
    let mut made = storing(kernel, |op| is_given(&kernel.ops[op].op) || is_made_of_live(op));
    remove_dead(&mut made);
    made
}

/// The kernel with some of its stores.
fn storing(kernel: &Kernel, is_kept: impl Fn(OpId) -> bool) -> Kernel {
    let mut part = kernel.clone();
    for block in kernel.blocks.keys() {
        part.blocks[block].ops.retain(|&op| is_kept(op));
    }
    part
}

/// The results of loops that a maximum rescales, which is live.
fn rescaled(kernel: &Kernel, live: &HashSet<ValueId>) -> Vec<ValueId> {
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        let Op::For { .. } = kernel.ops[op].op else { continue };
        let results = &kernel.ops[op].results;
        for (slot, form) in Streaming::of(kernel, op).forms.into_iter().enumerate() {
            if let Form::RescaledSum { maximum, .. } = form
                && live.contains(&results[maximum])
            {
                found.push(results[slot]);
            }
        }
    }
    found
}

/// Whether a value is made of what is live, by ops that neither load nor loop.
fn is_made(kernel: &Kernel, live: &HashSet<ValueId>, value: ValueId) -> bool {
    if live.contains(&value) {
        return true;
    }
    let ValueDef::Result(op, _) = kernel.values[value].def else { return false };
    match &kernel.ops[op].op {
        Op::Load { .. } | Op::Gather { .. } | Op::For { .. } => false,
        op => op.operands().into_iter().all(|v| is_made(kernel, live, v)),
    }
}

/// Checks that wanted inputs are loaded at all. Those that no output of the request depends on have
/// gradients of 0.
pub(super) fn check_loaded(kernel: &Kernel, request: &Request) -> Result<(), NotDifferentiable> {
    let is_loaded = |param: ParamId| {
        let of_param =
            |op: OpId| matches!(kernel.ops[op].op, Op::Load { tensor, .. } | Op::Gather { tensor, .. } if tensor == param);
        kernel.walk().into_iter().any(|(_, op)| of_param(op))
    };
    let wanted = request.of.iter().filter_map(|name| kernel.param_named(name));
    for param in wanted.filter(|&param| kernel.float_tensors(false).any(|other| other == param)) {
        if !is_loaded(param) {
            let param = &kernel.params[param];
            let instead = "leave it out: gradients are built of what is loaded by tiles and indices";
            return Err(NotDifferentiable::new(format!("`{}` is not loaded", param.name), param.span, instead));
        }
    }
    Ok(())
}
