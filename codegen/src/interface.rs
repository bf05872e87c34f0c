//! Whether a plan keeps to the tensors of its kernel: it stores every tensor that the kernel stores
//! and no other, and loads only those that the kernel loads. A plan knows tensors by name alone, so
//! that its verifier cannot tell.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{Kernel, Op, ParamId};

use crate::plan::{Plan, Stmt};

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
            Op::Load { tensor, .. } | Op::Gather { tensor, .. } => drop(found.loaded.insert(name(*tensor))),
            Op::Store { tensor, .. } | Op::Scatter { tensor, .. } => {
                found.stored.insert(name(*tensor));
                // To add is to read and to write.
                if kernel.params[*tensor].kind.is_sum() {
                    found.loaded.insert(name(*tensor));
                }
            }
            _ => {}
        }
    }
    found
}

fn collect<'a>(plan: &'a Plan, body: &'a [Stmt], found: &mut Tensors<'a>) {
    for stmt in body {
        let uses = stmt.op.uses();
        found.loaded.extend(uses.loads.iter().map(|from| from.tensor.as_str()));
        found.loaded.extend(uses.map.and_then(|map| plan.maps.get(map)).map(|map| map.tensor.as_str()));
        found.stored.extend(uses.stores.iter().map(|to| to.tensor.as_str()));
        if let Some(map) = uses.adds.and_then(|map| plan.maps.get(map)) {
            found.loaded.insert(&map.tensor);
            found.stored.insert(&map.tensor);
        }
        stmt.op.bodies().into_iter().for_each(|body| collect(plan, body, found));
    }
}
