//! Whether a plan keeps to the tensors of its kernel: it stores every tensor that the kernel stores
//! and no other, and loads only those that the kernel loads. A plan knows tensors by name alone, so
//! that its verifier cannot tell.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{Kernel, Op, ParamId};

use crate::plan::{InputSource, Plan, Stmt, StmtOp};

/// Names of tensors.
#[derive(Default)]
struct Tensors<'a> {
    loaded: BTreeSet<&'a str>,
    stored: BTreeSet<&'a str>,
}

/// What a plan does with tensors that its kernel does not, and the other way round.
pub(crate) fn faults(plan: &Plan, kernel: &Kernel) -> Vec<String> {
    let (mut of_plan, of_kernel) = (Tensors::default(), of_kernel(kernel));
    for role in &plan.roles {
        collect(plan, &role.body, &mut of_plan);
    }
    let never = of_kernel.stored.difference(&of_plan.stored).map(|name| format!("{name} is never stored"));
    let other = of_plan.stored.difference(&of_kernel.stored).map(|name| format!("{name} is stored, which the kernel never does"));
    let read = of_plan.loaded.difference(&of_kernel.loaded).map(|name| format!("{name} is read, which the kernel never does"));
    never.chain(other).chain(read).collect()
}

fn of_kernel(kernel: &Kernel) -> Tensors<'_> {
    let mut found = Tensors::default();
    let name = |tensor: ParamId| kernel.params[tensor].name.as_str();
    for (_, op) in kernel.walk() {
        match &kernel.ops[op].op {
            Op::Load { tensor, .. } => drop(found.loaded.insert(name(*tensor))),
            Op::Store { tensor, .. } => drop(found.stored.insert(name(*tensor))),
            _ => {}
        }
    }
    found
}

fn collect<'a>(plan: &'a Plan, body: &'a [Stmt], found: &mut Tensors<'a>) {
    for stmt in body {
        match &stmt.op {
            StmtOp::Copy { from, .. } | StmtOp::Load { from, .. } => drop(found.loaded.insert(&from.tensor)),
            StmtOp::Compute { inputs, .. } => {
                for input in inputs {
                    match &input.from {
                        InputSource::Tile(..) => {}
                        InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                            found.loaded.insert(&from.tensor);
                        }
                    }
                }
            }
            StmtOp::Fill { map, .. } => found.loaded.extend(plan.maps.get(*map).map(|map| map.tensor.as_str())),
            StmtOp::Store { to, .. } => drop(found.stored.insert(&to.tensor)),
            _ => {}
        }
        stmt.op.bodies().into_iter().for_each(|body| collect(plan, body, found));
    }
}
