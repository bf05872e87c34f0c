//! Edits of a kernel in place: ops inserted, uses replaced; and kernels to be launched beside one.
//! Values of an edited kernel keep their numbers.

use std::collections::HashMap;

use super::builder::{Builder, result_types};
use super::entity::{BlockId, OpId, ParamId, ValueId};
use super::kernel::{Kernel, OpData, Param, ParamKind, Span, TensorDecl, ValueData, ValueDef};
use super::op::Op;

/// Where to insert: before the op at `index` of `block`.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The block.
    pub block: BlockId,
    /// Position in its list of ops.
    pub index: usize,
}

/// Inserts `op` and returns its only result.
pub fn insert(kernel: &mut Kernel, place: Place, op: Op, span: Span) -> ValueId {
    let types = result_types(kernel, &op);
    assert_eq!(types.len(), 1, "inserted ops have one result");
    let id = kernel.ops.push(OpData { op, results: Vec::new(), span });
    let ty = types.into_iter().next().expect("one result");
    let value = kernel.values.push(ValueData { ty, def: ValueDef::Result(id, 0), name: None });
    kernel.ops[id].results.push(value);
    kernel.blocks[place.block].ops.insert(place.index, id);
    value
}

/// Inserts `op` before another one and returns its only result.
pub fn insert_before(kernel: &mut Kernel, other: OpId, op: Op, span: Span) -> ValueId {
    let place = places(kernel)[&other];
    insert(kernel, place, op, span)
}

/// The block and index of every op.
pub fn places(kernel: &Kernel) -> HashMap<OpId, Place> {
    kernel
        .blocks
        .iter()
        .flat_map(|(block, data)| data.ops.iter().enumerate().map(move |(index, &op)| (op, Place { block, index })))
        .collect()
}

/// Replaces every use of `old` by `new`, except in the ops of `except`.
pub fn replace_uses(kernel: &mut Kernel, old: ValueId, new: ValueId, except: &[OpId]) {
    for id in kernel.ops.keys() {
        if !except.contains(&id) && kernel.ops[id].op.operands().contains(&old) {
            kernel.ops[id].op = kernel.ops[id].op.map_operands(|v| if v == old { new } else { v });
        }
    }
}

/// The ops in blocks that use `value`.
pub fn users(kernel: &Kernel, value: ValueId) -> Vec<OpId> {
    kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| kernel.ops[op].op.operands().contains(&value)).collect()
}

/// A builder of a kernel that is launched beside `kernel`: over the same sizes and element types,
/// and with the same text for its places.
pub fn beside(kernel: &Kernel, name: String) -> Builder {
    let mut b = Builder::new(name);
    b.kernel.type_params.clone_from(&kernel.type_params);
    b.kernel.sizes = kernel.sizes.clone();
    b.kernel.source = kernel.source.clone();
    b
}

/// Adds a tensor parameter that no text declares.
pub fn add_tensor(kernel: &mut Kernel, name: &str, decl: TensorDecl) -> ParamId {
    kernel.params.push(Param { name: name.to_owned(), kind: ParamKind::Tensor(decl), span: Span::default() })
}

/// Removes a parameter that no op names; those behind it move up. `kernel` is as a text declares
/// it: no launch ahead has summarised or listed anything for it.
///
/// # Panics
/// If an op names it, or a launch ahead has made something for the kernel.
pub fn remove_param(kernel: &mut Kernel, removed: ParamId) {
    assert!(kernel.summaries.is_empty() && kernel.lists.is_empty(), "made by launches ahead");
    let old = std::mem::take(&mut kernel.params);
    let mut moved = HashMap::new();
    for (id, param) in old.iter().filter(|(id, _)| *id != removed) {
        moved.insert(id, kernel.params.push(param.clone()));
    }
    for id in kernel.ops.keys() {
        if let Some(param) = kernel.ops[id].op.param_mut() {
            *param = moved[param];
        }
    }
}
