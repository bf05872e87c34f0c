//! Warnings about what a kernel names and does not need: variables that nothing reads, variables
//! that a loop carries and that no store depends on, variables that are `mut` and never change,
//! sizes and element types that no parameter has. (An unused parameter, and an output that nothing
//! is stored to, are errors.) A name that starts with `_` is never warned of.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens;
use syn::{GenericParam, ItemFn};

use super::diagnostic::{Diagnostic, Severity};
use super::kernel::{Lowering, identifiers};
use super::position::bare;
use super::scope::{Origin, VariableId};
use crate::ir::{Kernel, Op, ValueDef, ValueId};

/// The values that what is stored depends on.
fn live(kernel: &Kernel) -> BTreeSet<ValueId> {
    let stores = kernel.walk().into_iter().map(|(_, op)| &kernel.ops[op].op).filter(|op| op.written().is_some());
    let mut todo: Vec<ValueId> = stores.flat_map(Op::operands).collect();
    let mut live = BTreeSet::new();
    while let Some(value) = todo.pop() {
        if !live.insert(value) {
            continue;
        }
        // What a loop carries lives in all iterations if it lives in one.
        let carried = |op: &Op, slot: usize| match op {
            Op::For { init, body, .. } => {
                let last = kernel.blocks[*body].ops.last().map(|&op| &kernel.ops[op].op);
                let next = if let Some(Op::Yield(next)) = last { next.get(slot) } else { None };
                init.get(slot).into_iter().chain(next).copied().collect()
            }
            other => other.operands(),
        };
        match kernel.values[value].def {
            ValueDef::Result(op, slot) => todo.extend(carried(&kernel.ops[op].op, slot as usize)),
            ValueDef::BlockParam(block, place) => {
                let is_owner = |op: &&Op| matches!(op, Op::For { body, .. } if *body == block);
                let owner = kernel.walk().into_iter().map(|(_, op)| &kernel.ops[op].op).find(is_owner);
                if let (Some(owner), Some(slot)) = (owner, (place as usize).checked_sub(1)) {
                    todo.extend(carried(owner, slot));
                }
            }
        }
    }
    live
}

impl Lowering<'_> {
    /// The warnings on a function that has no errors, in the order of the text.
    pub(super) fn unused(&self, function: &ItemFn) -> Vec<Diagnostic> {
        let live = live(&self.builder.kernel);
        let mut found = Vec::new();
        // A `let` that hides a variable is warned of itself, if nothing reads it.
        let hidden: BTreeSet<VariableId> = self.scopes.all().filter_map(|(id, _)| self.scopes.hides(id)).collect();
        // A variable of a helper is one in each call.
        let mut places: BTreeMap<(u32, u32, &str), Vec<VariableId>> = BTreeMap::new();
        for (id, variable) in self.scopes.all() {
            places.entry((variable.span.start, variable.span.end, &variable.name)).or_default().push(id);
        }
        for ids in places.values() {
            let id = ids[0];
            let variable = self.scopes.get(id);
            let name = &variable.name;
            if variable.origin == Origin::Param || name.starts_with('_') {
                continue;
            }
            if !ids.iter().any(|&id| self.scopes.is_read(id)) {
                let hidden = self.scopes.hides(id).map(|hidden| self.scopes.get(hidden));
                let help = match hidden {
                    Some(_) => format!(
                        "this `let` makes a new variable; write `{name} = ..` to change the `{name}` of before, which the loop carries"
                    ),
                    None => format!("remove it, or call it `_{name}`"),
                };
                let warning = Diagnostic::new(variable.span, format!("`{name}` is never used")).label("nothing reads it");
                found.push(warning.help(help));
            } else if variable.origin == Origin::LetMut
                && ids.iter().all(|&id| self.scopes.held(id).iter().all(|value| !live.contains(value)))
            {
                let warning = Diagnostic::new(variable.span, format!("`{name}` has no effect"))
                    .label("nothing that is stored depends on it");
                found.push(warning.help("store what is made of it, or remove it"));
            } else if variable.origin == Origin::LetMut
                && ids.iter().all(|&id| self.scopes.held(id).len() == 1 && !hidden.contains(&id))
            {
                let warning = Diagnostic::new(variable.span, format!("`{name}` is `mut`, and nothing is assigned to it"))
                    .label("keeps this value");
                found.push(warning.help(format!("assign to it, `{name} = ..`, or leave out `mut`")));
            }
        }
        let mentioned: BTreeSet<String> =
            [function.sig.inputs.to_token_stream(), function.block.to_token_stream()].into_iter().flat_map(identifiers).collect();
        for param in &function.sig.generics.params {
            let ident = match param {
                GenericParam::Type(param) => &param.ident,
                GenericParam::Const(param) => &param.ident,
                GenericParam::Lifetime(_) => continue,
            };
            let name = bare(ident);
            if !mentioned.contains(&name) && !name.starts_with('_') {
                let warning =
                    Diagnostic::new(self.positions.of(ident), format!("`{name}` is never used")).label("unused generic");
                found.push(warning.help("remove it; every caller has to give it"));
            }
        }
        found.sort_by_key(|warning| warning.span.start);
        found.into_iter().map(|warning| warning.severity(Severity::Warning)).collect()
    }
}
