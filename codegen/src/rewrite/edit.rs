//! Editing a kernel in place: inserting ops, replacing uses, removing what nothing needs.

use std::collections::{HashMap, HashSet};

pub use flashtile_dsl::analysis::live::{remove_dead, yielded};
pub use flashtile_dsl::ir::edit::{Place, add_tensor, beside, insert, insert_before, places, replace_uses, users};
use flashtile_dsl::ir::{
    Axis, AxisId, AxisKind, BlockId, IndexOp, Kernel, Op, OpData, OpId, ProgramDim, SizeExpr, Span, Type, ValueData, ValueDef,
    ValueId,
};

/// A size as an index; `emit` adds an op to a kernel and gives its only result.
pub fn index_of(size: &SizeExpr, emit: &mut impl FnMut(Op) -> ValueId) -> ValueId {
    assert!(!size.is_rounded(), "no op rounds up");
    let (terms, constant, divisor) = size.parts();
    let mut sum = emit(Op::IndexConst(constant));
    for (&of, &times) in terms {
        let (of, times) = (emit(Op::SizeOf(of)), emit(Op::IndexConst(times)));
        let term = emit(Op::Index(IndexOp::Mul, of, times));
        sum = emit(Op::Index(IndexOp::Add, sum, term));
    }
    if divisor != 1 {
        let divisor = emit(Op::IndexConst(divisor));
        sum = emit(Op::Index(IndexOp::Div, sum, divisor));
    }
    sum
}

/// Inserts `op` at the end of a block and returns its only result.
pub fn insert_last(kernel: &mut Kernel, block: BlockId, op: Op, span: Span) -> ValueId {
    let place = Place { block, index: kernel.blocks[block].ops.len() };
    insert(kernel, place, op, span)
}

/// Appends an op without results to a block.
pub fn append(kernel: &mut Kernel, block: BlockId, op: Op, span: Span) {
    let id = kernel.ops.push(OpData { op, results: Vec::new(), span });
    kernel.blocks[block].ops.push(id);
}

/// The place just after the definition of `value`, in its block.
pub fn after_definition(kernel: &Kernel, value: ValueId) -> Place {
    match kernel.values[value].def {
        ValueDef::Result(op, _) => {
            let place = places(kernel)[&op];
            Place { block: place.block, index: place.index + 1 }
        }
        ValueDef::BlockParam(block, _) => Place { block, index: 0 },
    }
}

/// The loop with this body.
pub fn loop_of(kernel: &Kernel, body: BlockId) -> Option<OpId> {
    let is_it = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { body: own, .. } if own == body);
    kernel.walk().into_iter().map(|(_, op)| op).find(is_it)
}

/// The place after the leading `program` op of the kernel body.
pub fn entry(kernel: &Kernel) -> Place {
    let leading = kernel.blocks[kernel.body].ops.first().is_some_and(|&op| matches!(kernel.ops[op].op, Op::Program(_)));
    Place { block: kernel.body, index: usize::from(leading) }
}

/// A kernel without what nothing needs: ops, carried values, parameters; everything numbered anew.
pub fn finished(mut kernel: Kernel) -> Kernel {
    remove_dead(&mut kernel);
    remove_unused_params(&mut kernel);
    kernel.renumbered()
}

/// A name like `wanted` that no parameter, size or type parameter has, and none of `others`.
pub fn free_name<'a>(kernel: &Kernel, wanted: &str, others: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut name: String = wanted.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let taken = |name: &str| {
        let sizes = kernel.sizes.values().any(|s| s.name == name);
        let types = kernel.type_params.iter().any(|t| t == name);
        kernel.param_named(name).is_some() || sizes || types || others.clone().any(|other| other == name)
    };
    while taken(&name) {
        name.push('_');
    }
    name
}

/// A name like `wanted` that no axis has.
pub fn free_axis_name(kernel: &Kernel, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    while kernel.axes.values().any(|axis| axis.name == name) {
        name.push('_');
    }
    name
}

/// Where an axis that is added to the grid stands among its tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmongTiles {
    First,
    Last,
}

/// Adds an axis of this extent to the grid, under a name like `wanted`, and gives its coordinate.
pub fn add_program_axis(kernel: &mut Kernel, wanted: &str, extent: SizeExpr, among: AmongTiles) -> (AxisId, ValueId) {
    let name = free_axis_name(kernel, wanted);
    let axis = kernel.axes.push(Axis { name: name.clone(), extent, kind: AxisKind::Program });
    let program = kernel.blocks[kernel.body].ops[0];
    let Op::Program(dims) = &mut kernel.ops[program].op else { unreachable!("verified: a kernel begins with `program`") };
    let is_tiles = |dim: &ProgramDim| matches!(dim, ProgramDim::Tiles(_));
    let place = match among {
        AmongTiles::First => dims.iter().position(is_tiles),
        AmongTiles::Last => dims.iter().rposition(is_tiles).map(|last| last + 1),
    };
    let place = place.unwrap_or(dims.len());
    dims.insert(place, ProgramDim::Tiles(axis));
    let def = ValueDef::Result(program, place as u32);
    let coordinate = kernel.values.push(ValueData { ty: Type::Coord(axis), def, name: Some(name) });
    kernel.ops[program].results.insert(place, coordinate);
    for (number, result) in kernel.ops[program].results.clone().into_iter().enumerate() {
        kernel.values[result].def = ValueDef::Result(program, number as u32);
    }
    (axis, coordinate)
}

/// Removes the parameters that no op names; the others keep their order.
pub fn remove_unused_params(kernel: &mut Kernel) {
    let mut used = HashSet::new();
    for (_, id) in kernel.walk() {
        used.extend(kernel.ops[id].op.param_mut().copied());
    }
    kernel.summaries.retain(|summary| used.contains(&summary.of));
    used.extend(kernel.summaries.iter().flat_map(|summary| [summary.least, summary.most]));
    let walked = |axis: AxisId| {
        let over = |id: OpId| matches!(kernel.ops[id].op, Op::For { axis: other, .. } if other == axis);
        kernel.axes[axis].kind == AxisKind::Loop && kernel.walk().into_iter().any(|(_, id)| over(id))
    };
    let lists: Vec<_> = kernel.lists.iter().filter(|list| walked(list.axis)).cloned().collect();
    used.extend(lists.iter().map(|list| list.tensor));
    kernel.lists = lists;
    let old = std::mem::take(&mut kernel.params);
    let mut map = HashMap::new();
    for (id, param) in old.iter().filter(|(id, _)| used.contains(id)) {
        map.insert(id, kernel.params.push(param.clone()));
    }
    for (_, id) in kernel.walk() {
        if let Some(p) = kernel.ops[id].op.param_mut() {
            *p = map[p];
        }
    }
    for summary in &mut kernel.summaries {
        for param in [&mut summary.of, &mut summary.least, &mut summary.most] {
            *param = map[&*param];
        }
    }
    for list in &mut kernel.lists {
        list.tensor = map[&list.tensor];
    }
}

/// Merges ops of one block that compute the same value.
pub fn merge_equal(kernel: &mut Kernel) {
    for block in kernel.blocks.keys() {
        let mut seen: Vec<OpId> = Vec::new();
        for id in kernel.blocks[block].ops.clone() {
            let pure = !matches!(
                kernel.ops[id].op,
                Op::Store { .. }
                    | Op::Scatter { .. }
                    | Op::For { .. }
                    | Op::Yield(_)
                    | Op::Program(_)
                    | Op::Dot { .. }
                    | Op::Full { .. }
            );
            // Indices keep their identity: loop bounds, found by analysing the kernel as written, name them.
            let tile = kernel.ops[id].results.iter().all(|&r| matches!(kernel.ty(r), Type::Tile(_)));
            if !pure || !tile || kernel.ops[id].results.len() != 1 {
                continue;
            }
            match seen.iter().find(|&&other| kernel.ops[other].op == kernel.ops[id].op) {
                Some(&other) => {
                    let (old, new) = (kernel.ops[id].results[0], kernel.ops[other].results[0]);
                    if kernel.ty(old) == kernel.ty(new) {
                        if kernel.values[new].name.is_none() {
                            kernel.values[new].name = kernel.values[old].name.clone();
                        }
                        replace_uses(kernel, old, new, &[]);
                    }
                }
                None => seen.push(id),
            }
        }
    }
}
