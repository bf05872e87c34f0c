//! Memory: addresses, directions, what is stored, and that stores are complete and disjoint.

use std::collections::BTreeSet;

use super::rule::{BadOps, Errors, Rule};
use crate::ir::elementwise::{BinaryOp, IndexOp, UnaryOp};
use crate::ir::entity::{AxisId, BlockId, OpId, ParamId, ValueId};
use crate::ir::kernel::{AxisKind, Direction, Kernel, ParamKind, TensorDecl, ValueDef};
use crate::ir::op::{At, Op, ProgramDim, ReduceOp};
use crate::ir::size::SizeExpr;
use crate::ir::types::{Dim, Elem, Type};

/// Checks loads and stores; of ops in `bad` nothing is said.
pub(super) fn check(errors: &mut Errors<'_>, bad: &BadOps) {
    let kernel = errors.kernel;
    let mut stores = Vec::new();
    for (block, id) in kernel.walk() {
        let (tensor, at, value) = match &kernel.ops[id].op {
            Op::Load { tensor, at } => (*tensor, at, None),
            Op::Store { tensor, at, value } => (*tensor, at, Some(*value)),
            Op::Gather { tensor, at } | Op::Scatter { tensor, at, .. } => {
                if kernel.ops[id].op.written().is_some() {
                    stores.push((block, id, *tensor));
                }
                if !bad.contains(&id) {
                    check_elements(errors, id, *tensor, at);
                }
                continue;
            }
            Op::BlockExtreme { tensor, at, .. } | Op::Nonzero { tensor, at } => {
                if !bad.contains(&id) {
                    check_blocks(errors, id, *tensor, at);
                }
                continue;
            }
            _ => continue,
        };
        if value.is_some() {
            stores.push((block, id, tensor));
        }
        if bad.contains(&id) {
            continue;
        }
        let name = &kernel.params[tensor].name;
        let ParamKind::Tensor(decl) = &kernel.params[tensor].kind else {
            // Such an op is in `bad`.
            continue;
        };
        match value {
            None if !decl.direction.is_read() => errors.at(Rule::Direction, id, format!("the output `{name}` is loaded")),
            Some(_) if !decl.direction.is_written() => errors.at(Rule::Direction, id, format!("the input `{name}` is stored to")),
            _ => {}
        }
        if !check_address(errors, id, decl, at) {
            continue;
        }
        if let Some(value) = value {
            check_stored(errors, id, decl, at, value);
        }
    }
    check_outputs(errors, &stores);
    let sums = |tensor: ParamId| kernel.params[tensor].kind.is_sum();
    let all: Vec<_> = stores.iter().map(|&(block, id, _)| (block, id)).collect();
    for &(block, id, _) in stores.iter().filter(|&&(_, id, tensor)| sums(tensor) && !bad.contains(&id)) {
        check_added(errors, block, id);
    }
    stores.retain(|&(_, _, tensor)| !sums(tensor));
    for &(block, id, tensor) in stores.iter().filter(|(_, id, _)| !bad.contains(id)) {
        check_disjoint(errors, block, id, tensor);
    }
    check_twice(errors, &stores);
    check_sums(errors);
    check_in_out(errors);
    for &(block, id) in all.iter().filter(|(_, id)| !bad.contains(id)) {
        check_tiling(errors, block, id);
    }
    check_summaries(errors);
    check_lists(errors);
}

/// Checks what extremes of blocks, or places of elements, are taken of.
fn check_blocks(errors: &mut Errors<'_>, id: OpId, tensor: ParamId, at: &[At]) {
    let kernel = errors.kernel;
    let ParamKind::Tensor(decl) = &kernel.params[tensor].kind else { return };
    let name = &kernel.params[tensor].name;
    if !(decl.elem.is_integer() || decl.elem == Elem::Bool) || decl.direction != Direction::In {
        errors.at(Rule::Direction, id, format!("`{name}` is no input of integers or truth values"));
    }
    if check_address(errors, id, decl, at) {
        let tiles = at.iter().filter(|entry| matches!(entry, At::Tile(_))).count();
        if tiles != 1 || at.iter().any(|entry| matches!(entry, At::Range { .. })) {
            let what = format!("`{}` is along one coordinate, at indices", kernel.ops[id].op.mnemonic());
            errors.at(Rule::Address, id, what);
        }
    }
}

/// Checks what elements are gathered from, or added to.
fn check_elements(errors: &mut Errors<'_>, id: OpId, tensor: ParamId, at: &[ValueId]) {
    let kernel = errors.kernel;
    let ParamKind::Tensor(decl) = &kernel.params[tensor].kind else { return };
    let name = &kernel.params[tensor].name;
    match kernel.ops[id].op.written() {
        None if decl.direction != Direction::In => {
            errors.at(Rule::Direction, id, format!("`{name}` is gathered from, and is no input"));
        }
        Some(_) if decl.direction != Direction::Sum => {
            errors.at(Rule::Direction, id, format!("elements are added to `{name}`, which is no sum"));
        }
        _ => {}
    }
    if at.len() != decl.shape.len() {
        errors.at(Rule::Address, id, format!("{} entries address {} dimensions", at.len(), decl.shape.len()));
    }
    if at.iter().all(|v| *kernel.ty(*v) == Type::Index) {
        let what = match kernel.ops[id].op.written() {
            None => "elements are gathered at indices alone, which a load is for",
            Some(_) => "elements are added at indices alone, which a store is for",
        };
        errors.at(Rule::Address, id, what.to_owned());
    }
}

/// Checks that a store at the tile of a loop, or an add in the loop, takes nothing that depends on what
/// the loop carries.
fn check_tiling(errors: &mut Errors<'_>, block: BlockId, id: OpId) {
    let kernel = errors.kernel;
    let Some(value) = kernel.ops[id].op.stored() else { return };
    let adds = kernel.ops[id].op.written().is_some_and(|to| kernel.params[to].kind.is_sum());
    let around: Vec<BlockId> = loops_around(kernel, block).into_iter().map(|(_, body)| body).collect();
    let addressed = kernel.ops[id].op.operands();
    let loops = kernel.walk().into_iter().filter_map(|(_, op)| match kernel.ops[op].op {
        Op::For { axis, body, .. } if kernel.axes[axis].kind == AxisKind::Loop => Some(body),
        _ => None,
    });
    for body in loops {
        let params = &kernel.blocks[body].params;
        let counts = if adds { around.contains(&body) } else { addressed.contains(&params[0]) };
        if counts && depends(kernel, value, &varying(kernel, body)) {
            let name = kernel.values[params[0]].name.as_deref().unwrap_or("the loop");
            let what = format!(
                "what is {} for a tile of `{name}` depends on the tiles before it, and the schedule says how many these are: \
                 walk parts of one length, `for c in 0..n`, or {} it in a kernel of its own",
                if adds { "added" } else { "stored" },
                if adds { "add" } else { "store" },
            );
            errors.at(Rule::Tiling, id, what);
        }
    }
}

/// What a loop carries and changes, in its body.
fn varying(kernel: &Kernel, body: BlockId) -> BTreeSet<ValueId> {
    let yielded = kernel.blocks[body].ops.last().map(|&op| &kernel.ops[op].op);
    let Some(Op::Yield(next)) = yielded else { return BTreeSet::new() };
    let carried = kernel.blocks[body].params.iter().skip(1);
    carried.zip(next).filter(|(param, next)| param != next).map(|(&param, _)| param).collect()
}

/// Whether a value is made of one of these.
fn depends(kernel: &Kernel, value: ValueId, on: &BTreeSet<ValueId>) -> bool {
    let (mut seen, mut work) = (BTreeSet::new(), vec![value]);
    while let Some(v) = work.pop() {
        if on.contains(&v) {
            return true;
        }
        if let (true, ValueDef::Result(op, _)) = (seen.insert(v), kernel.values[v].def) {
            work.extend(kernel.ops[op].op.operands());
            // What a loop inside yields.
            if let Op::For { body, .. } = kernel.ops[op].op {
                work.extend(kernel.blocks[body].ops.iter().flat_map(|&op| kernel.ops[op].op.operands()));
            }
        }
    }
    false
}

/// Checks that summaries have the shapes of what they summarise.
fn check_summaries(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    for summary in &kernel.summaries {
        let shape = |param| match kernel.params.get(param).map(|p| &p.kind) {
            Some(ParamKind::Tensor(decl)) if decl.direction == Direction::In => Some((&decl.shape, decl.elem)),
            _ => None,
        };
        let known = |elem: Elem| elem.is_integer() || elem == Elem::Bool;
        let of = shape(summary.of).filter(|(shape, elem)| summary.dim < shape.len() && summary.block > 0 && known(*elem));
        let of = of.map(|(shape, _)| (shape, Elem::I32));
        if of.is_none() || shape(summary.least) != of || shape(summary.most) != of {
            errors.kernel(Rule::Address, "a summary is no input of i32 with the shape of what it summarises".to_owned());
        }
    }
}

/// Checks that lists of tiles are inputs of i32, with a dimension for each of the grid that tells
/// them apart, and belong to loops.
fn check_lists(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    for list in &kernel.lists {
        let declared = |decl: &TensorDecl| {
            decl.direction == Direction::In && decl.elem == Elem::I32 && decl.shape.len() == list.dims.len() + 1
        };
        let known = matches!(kernel.params.get(list.tensor).map(|p| &p.kind), Some(ParamKind::Tensor(decl)) if declared(decl));
        let of_loop = kernel.axes.get(list.axis).is_some_and(|axis| axis.kind == AxisKind::Loop);
        let tiled = |&&dim: &&usize| matches!(kernel.grid().get(dim), Some(ProgramDim::Tiles(_)));
        let of_grid = list.dims.iter().all(|&dim| dim < kernel.grid().len()) && list.dims.iter().filter(tiled).count() <= 1;
        if !known || !of_loop || !of_grid || list.block == 0 || list.rows == 0 {
            let what = "a list of tiles is no input of i32 with a dimension for each of the grid that tells lists apart";
            errors.kernel(Rule::Address, what.to_owned());
        }
    }
}

/// Checks that what is added does not depend on how many tiles there are: along each axis whose
/// tiles do not tell the place, it is a sum.
fn check_added(errors: &mut Errors<'_>, block: BlockId, id: OpId) {
    let kernel = errors.kernel;
    let Some(value) = kernel.ops[id].op.stored() else { return };
    let of_program = kernel.grid().iter().filter_map(|dim| match dim {
        ProgramDim::Tiles(axis) => Some(*axis),
        ProgramDim::Each(_) => None,
    });
    let of_loops = loops_around(kernel, block).into_iter().map(|(axis, _)| axis);
    let tiled = of_loops.filter(|axis| kernel.axes[*axis].kind == AxisKind::Loop).chain(of_program);
    let told = |axis: &AxisId| match &kernel.ops[id].op {
        Op::Store { at, .. } => at.iter().any(|at| matches!(at, At::Tile(v) if *kernel.ty(*v) == Type::Coord(*axis))),
        // Each element goes to a place of its own.
        _ => kernel.tile(value).dims.contains(&Dim::Axis(*axis)),
    };
    for axis in tiled.filter(|axis| !told(axis)).collect::<Vec<_>>() {
        if !is_sum_along(kernel, value, axis) {
            let name = &kernel.axes[axis].name;
            let what = format!(
                "what is added is no sum over `{name}`, so that it is added once for each of its tiles, and the schedule says how \
                 many these are: add what `rowsum` or `dot` sum over `{name}`, or take `{name}` out of the grid"
            );
            errors.at(Rule::Tiling, id, what);
        }
    }
}

/// Whether a value is a sum over the positions of a tile of an axis, or 0.
fn is_sum_along(kernel: &Kernel, value: ValueId, axis: AxisId) -> bool {
    let along = |v: ValueId| is_sum_along(kernel, v, axis);
    let ends_in = |v: ValueId| kernel.tile(v).dims.last() == Some(&Dim::Axis(axis));
    match kernel.def(value).map(|(_, op)| op) {
        Some(Op::Dot { a, acc, .. }) => ends_in(*a) && acc.is_none_or(along),
        Some(Op::Reduce(ReduceOp::Sum, x)) => ends_in(*x) || along(*x),
        Some(Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b)) => along(*a) && along(*b),
        Some(Op::Binary(BinaryOp::Mul, a, b)) => {
            [(a, b), (b, a)].into_iter().any(|(sum, by)| along(*sum) && is_alike(kernel, *by, axis))
        }
        Some(Op::Binary(BinaryOp::Div, a, b)) => along(*a) && is_alike(kernel, *b, axis),
        Some(Op::Unary(UnaryOp::Neg, x) | Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. }) => along(*x),
        Some(Op::Constant(_, x)) => *x == 0.0,
        _ => false,
    }
}

/// Whether a value is the same for all tiles of an axis, as far as its ops show.
fn is_alike(kernel: &Kernel, value: ValueId, axis: AxisId) -> bool {
    !kernel.any_behind(value, |v| match kernel.def(v) {
        Some((_, Op::For { .. })) => Some(true),
        Some((_, Op::Program(_))) => Some(*kernel.ty(v) == Type::Coord(axis)),
        Some(_) => None,
        None => Some(!matches!(kernel.ty(v), Type::Coord(other) if *other != axis) && *kernel.ty(v) != Type::Index),
    })
}

/// Checks that sums are of f32.
fn check_sums(errors: &mut Errors<'_>) {
    for param in errors.kernel.params.values() {
        if matches!(&param.kind, ParamKind::Tensor(decl) if decl.direction == Direction::Sum && decl.elem != Elem::F32) {
            errors.kernel(Rule::Stored, format!("`{}` is a sum, which is of f32", param.name));
        }
    }
}

/// Checks that a tensor that is read and written has one load, and one store of the same tile after it.
fn check_in_out(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    let ops = kernel.walk();
    for (tensor, param) in kernel.params.iter() {
        if !matches!(&param.kind, ParamKind::Tensor(decl) if decl.direction == Direction::InOut) {
            continue;
        }
        let loads: Vec<_> =
            ops.iter().filter(|(_, op)| matches!(&kernel.ops[*op].op, Op::Load { tensor: t, .. } if *t == tensor)).collect();
        let stores: Vec<_> =
            ops.iter().filter(|(_, op)| matches!(&kernel.ops[*op].op, Op::Store { tensor: t, .. } if *t == tensor)).collect();
        let name = &param.name;
        let (&[&(block, load)], &[&(other, store)]) = (&loads[..], &stores[..]) else {
            errors.kernel(
                Rule::InOut,
                format!(
                    "`{name}` is read and written, with {} loads and {} stores, and not one of each",
                    loads.len(),
                    stores.len()
                ),
            );
            continue;
        };
        let place = |op: OpId| kernel.blocks[block].ops.iter().position(|&o| o == op);
        if block != other || place(load) > place(store) {
            errors.at(Rule::InOut, store, format!("the store to `{name}` does not follow its load in the same block"));
        }
        if let (Op::Load { at: from, .. }, Op::Store { at: to, .. }) = (&kernel.ops[load].op, &kernel.ops[store].op)
            && from != to
        {
            errors.at(Rule::InOut, store, format!("the store to `{name}` and its load address different tiles"));
        }
    }
}

/// Whether there is one sound entry for each dimension.
fn check_address(errors: &mut Errors<'_>, id: OpId, decl: &TensorDecl, at: &[At]) -> bool {
    let kernel = errors.kernel;
    if at.len() != decl.shape.len() {
        errors.at(Rule::Address, id, format!("{} entries address {} dimensions", at.len(), decl.shape.len()));
        return false;
    }
    let before = errors.list.len();
    for (entry, extent) in at.iter().zip(&decl.shape) {
        match entry {
            At::Index(_) => {}
            At::Tile(v) => {
                if let Type::Coord(axis) = kernel.ty(*v)
                    && kernel.axes[*axis].extent != *extent
                {
                    let walked = kernel.size_text(&kernel.axes[*axis].extent);
                    let extent = kernel.size_text(extent);
                    errors.at(Rule::Address, id, format!("a coordinate of {walked} addresses a dimension of {extent}"));
                }
            }
            At::Range { start, len } => {
                let beyond = extent.sub(&start.add(len));
                let negative = |size: &crate::ir::SizeExpr| size.as_constant().is_some_and(|c| c < 0);
                if negative(start) || negative(&beyond) || len.as_constant().is_some_and(|c| c <= 0) {
                    let range = format!("{} .. + {}", kernel.size_text(start), kernel.size_text(len));
                    errors.at(Rule::Address, id, format!("the range {range} is not in 0 .. {}", kernel.size_text(extent)));
                }
            }
        }
    }
    errors.list.len() == before
}

fn check_stored(errors: &mut Errors<'_>, id: OpId, decl: &TensorDecl, at: &[At], value: ValueId) {
    let kernel = errors.kernel;
    let place = crate::ir::selected_dims(kernel, at);
    let tile = kernel.tile(value);
    let text = |dims: &[Dim]| dims.iter().map(|d| kernel.dim_text(d)).collect::<Vec<_>>().join(", ");
    if tile.dims != place {
        errors.at(Rule::Stored, id, format!("a tile ({}) goes to a place ({})", text(&tile.dims), text(&place)));
    }
    if tile.elem == Elem::Bool || tile.elem.is_float() != decl.elem.is_float() {
        let (from, to) = (kernel.elem_name(tile.elem), kernel.elem_name(decl.elem));
        errors.at(Rule::Stored, id, format!("elements of {from} go to a tensor of {to}"));
    }
}

fn check_outputs(errors: &mut Errors<'_>, stores: &[(BlockId, OpId, ParamId)]) {
    let kernel = errors.kernel;
    for (id, param) in kernel.params.iter() {
        if param.kind.is_written() && !stores.iter().any(|&(.., tensor)| tensor == id) {
            errors.kernel(Rule::Output, format!("nothing is stored to the output `{}`", param.name));
        }
    }
}

/// Checks that no two programs, and no two iterations, write the same place.
fn check_disjoint(errors: &mut Errors<'_>, block: BlockId, id: OpId, tensor: ParamId) {
    let kernel = errors.kernel;
    let Op::Store { at, .. } = &kernel.ops[id].op else { return };
    let name = &kernel.params[tensor].name;
    let coordinates: BTreeSet<_> = at
        .iter()
        .filter_map(|entry| match entry {
            At::Tile(v) => match kernel.ty(*v) {
                Type::Coord(axis) => Some(*axis),
                _ => None,
            },
            _ => None,
        })
        .collect();
    let mut sources = BTreeSet::new();
    for entry in at {
        if let At::Index(v) = entry {
            collect_sources(kernel, *v, &mut sources);
        }
    }
    let program = kernel.blocks[kernel.body].ops[0];
    for (dim, &result) in kernel.grid().iter().zip(&kernel.ops[program].results) {
        let (shared, what) = match dim {
            ProgramDim::Tiles(axis) => {
                let is_addressed = coordinates.contains(axis);
                ((!is_addressed).then_some("is not addressed by"), kernel.axes[*axis].name.clone())
            }
            ProgramDim::Each(_) => {
                let what = kernel.values[result].name.clone().unwrap_or_else(|| result.to_string());
                (shared_by_programs(kernel, at, result), what)
            }
        };
        if let Some(shared) = shared
            && !same_in_all(kernel, id, result)
        {
            let message = format!("the store to `{name}` {shared} `{what}`: programs that differ in it write the same place");
            errors.at(Rule::Disjoint, id, message);
        }
    }
    if kernel.tensor(tensor).direction == Direction::InOut {
        // Iterations follow each other, each from what the one before it left.
        return;
    }
    for (axis, body) in loops_around(kernel, block) {
        let index = kernel.blocks[body].params.first();
        let by_index = kernel.axes[axis].kind == AxisKind::Each && index.is_some_and(|v| sources.contains(v));
        if !by_index && !coordinates.contains(&axis) {
            errors.at(
                Rule::Output,
                id,
                format!(
                    "the store to `{name}` is inside the loop over `{0}` but not addressed by `{0}`: move it out of the loop",
                    kernel.axes[axis].name
                ),
            );
        }
    }
}

/// What the entries of a store do with an id of programs, if programs that differ in it write the
/// same place for certain. `[b / 2, b % 2]` is a place for each id; one of the two alone is not.
fn shared_by_programs(kernel: &Kernel, at: &[At], id: ValueId) -> Option<&'static str> {
    let of_id = |entry: &At| match entry {
        At::Index(v) => {
            let mut sources = BTreeSet::new();
            collect_sources(kernel, *v, &mut sources);
            sources.contains(&id).then_some(*v)
        }
        At::Tile(_) | At::Range { .. } => None,
    };
    let parts: Vec<Option<IndexOp>> = at.iter().filter_map(of_id).map(|v| part_of(kernel, v, id)).collect();
    match parts[..] {
        [] => Some("is not addressed by"),
        [Some(IndexOp::Rem)] => Some("takes only a remainder of"),
        _ if parts.iter().all(|part| *part == Some(IndexOp::Div)) => Some("takes only a quotient of"),
        _ => None,
    }
}

/// The operation if an index is the quotient of an id of programs by a constant above 1, or the
/// remainder, or that times or plus what is the same in all programs: several ids have the same.
fn part_of(kernel: &Kernel, mut v: ValueId, id: ValueId) -> Option<IndexOp> {
    let op = |v: ValueId| kernel.def(v).map(|(_, op)| op);
    let is_fixed = |v: ValueId| matches!(op(v), Some(Op::IndexConst(_) | Op::SizeOf(_)));
    loop {
        v = match op(v) {
            Some(&Op::Index(part @ (IndexOp::Div | IndexOp::Rem), x, by)) if x == id => {
                return matches!(op(by), Some(Op::IndexConst(2..))).then_some(part);
            }
            Some(&Op::Index(IndexOp::Add | IndexOp::Mul | IndexOp::Sub, a, b)) if is_fixed(b) => a,
            Some(&Op::Index(IndexOp::Add | IndexOp::Mul, a, b)) if is_fixed(a) => b,
            _ => return None,
        }
    }
}

/// Whether programs that differ in a program id only store the same to the same place: they have met in an `of_part` of that id,
/// and nothing of the store is computed from the id in another way.
fn same_in_all(kernel: &Kernel, store: OpId, id: ValueId) -> bool {
    let mut todo = kernel.ops[store].op.operands();
    let mut seen = BTreeSet::new();
    let mut met = false;
    while let Some(value) = todo.pop() {
        if value == id {
            return false;
        }
        if !seen.insert(value) {
            continue;
        }
        let loop_of = |body: BlockId| kernel.walk().into_iter().map(|(_, op)| op).find(|&op| is_loop_with(kernel, op, body));
        let source = match kernel.values[value].def {
            ValueDef::Result(op, _) => Some(op),
            ValueDef::BlockParam(body, _) => loop_of(body),
        };
        let Some(source) = source else { continue };
        match &kernel.ops[source].op {
            Op::OfPart { part, at, .. } if *part == id => {
                met = true;
                todo.push(*at);
            }
            Op::For { body, .. } => {
                todo.extend(kernel.ops[source].op.operands());
                todo.extend(kernel.blocks[*body].ops.last().into_iter().flat_map(|&last| kernel.ops[last].op.operands()));
            }
            op => todo.extend(op.operands()),
        }
    }
    met
}

fn is_loop_with(kernel: &Kernel, op: OpId, block: BlockId) -> bool {
    matches!(kernel.ops[op].op, Op::For { body, .. } if body == block)
}

/// Axes and bodies of the loops around a block, inner to outer.
fn loops_around(kernel: &Kernel, block: BlockId) -> Vec<(AxisId, BlockId)> {
    let mut axes = Vec::new();
    let mut block = block;
    while let Some((outer, axis)) = kernel.walk().into_iter().find_map(|(outer, op)| match kernel.ops[op].op {
        Op::For { axis, body, .. } if body == block => Some((outer, axis)),
        _ => None,
    }) {
        axes.push((axis, block));
        block = outer;
    }
    axes
}

/// The program ids, and indices of loops, that an index is computed from.
fn collect_sources(kernel: &Kernel, value: ValueId, sources: &mut BTreeSet<ValueId>) {
    let mut todo = vec![value];
    let mut seen = BTreeSet::new();
    while let Some(value) = todo.pop() {
        if !seen.insert(value) {
            continue;
        }
        match kernel.values[value].def {
            ValueDef::Result(op, _) => {
                if matches!(kernel.ops[op].op, Op::Program(_)) {
                    sources.insert(value);
                }
                todo.extend(kernel.ops[op].op.operands());
            }
            ValueDef::BlockParam(..) => drop(sources.insert(value)),
        }
    }
}

/// Checks that no place is stored to by two ops, as far as their addresses show.
fn check_twice(errors: &mut Errors<'_>, stores: &[(BlockId, OpId, ParamId)]) {
    let kernel = errors.kernel;
    let at = |id: OpId| match &kernel.ops[id].op {
        Op::Store { at, .. } => Some(&at[..]),
        _ => None,
    };
    for (n, &(_, id, tensor)) in stores.iter().enumerate() {
        let meets = |other: OpId| at(id).zip(at(other)).is_some_and(|(a, b)| meet(kernel, tensor, a, b));
        if stores[..n].iter().any(|&(_, other, t)| t == tensor && meets(other)) {
            errors.at(Rule::Disjoint, id, format!("`{}` is stored to twice at the same place", kernel.params[tensor].name));
        }
    }
}

/// Whether two stores certainly write some place in common, of all that their programs and loops write.
fn meet(kernel: &Kernel, tensor: ParamId, a: &[At], b: &[At]) -> bool {
    let shape = &kernel.tensor(tensor).shape;
    a.len() == b.len()
        && a.len() == shape.len()
        && shape.iter().zip(a.iter().zip(b)).all(|(extent, (a, b))| one_meets(kernel, extent, a, b))
}

/// The same of a dimension of this extent.
fn one_meets(kernel: &Kernel, extent: &SizeExpr, a: &At, b: &At) -> bool {
    // Tiles take all positions, as does an id or a loop's index that runs over all.
    let takes_all = |at: &At| match at {
        At::Tile(_) => true,
        At::Range { start, len } => start.as_constant() == Some(0) && len == extent,
        At::Index(v) => index_extent(kernel, *v).as_ref() == Some(extent),
    };
    let below = |size: &SizeExpr| size.as_constant().is_some_and(|c| c < 0);
    match (a, b) {
        _ if takes_all(a) || takes_all(b) => true,
        (At::Index(a), At::Index(b)) => is_same_index(kernel, *a, *b),
        (At::Range { start, len }, At::Range { start: other, len: length }) => {
            start == other || (below(&start.sub(&other.add(length))) && below(&other.sub(&start.add(len))))
        }
        _ => false,
    }
}

/// Whether two indices are computed alike.
fn is_same_index(kernel: &Kernel, a: ValueId, b: ValueId) -> bool {
    let (mut seen, mut work) = (BTreeSet::new(), vec![(a, b)]);
    while let Some(pair @ (a, b)) = work.pop() {
        if a == b || !seen.insert(pair) {
            continue;
        }
        match (kernel.def(a).map(|(_, op)| op), kernel.def(b).map(|(_, op)| op)) {
            (Some(Op::IndexConst(a)), Some(Op::IndexConst(b))) if a == b => {}
            (Some(Op::SizeOf(a)), Some(Op::SizeOf(b))) if a == b => {}
            (Some(&Op::Index(op, a, b)), Some(&Op::Index(other, c, d))) if op == other => work.extend([(a, c), (b, d)]),
            _ => return false,
        }
    }
    true
}

/// What an id of programs, or the index of a loop, runs over.
fn index_extent(kernel: &Kernel, v: ValueId) -> Option<SizeExpr> {
    match kernel.values[v].def {
        ValueDef::Result(op, n) => match kernel.grid().get(n as usize) {
            Some(ProgramDim::Each(extent)) if matches!(kernel.ops[op].op, Op::Program(_)) => Some(extent.clone()),
            _ => None,
        },
        ValueDef::BlockParam(body, 0) => {
            let &(axis, _) = loops_around(kernel, body).first()?;
            (kernel.axes[axis].kind == AxisKind::Each).then(|| kernel.axes[axis].extent.clone())
        }
        ValueDef::BlockParam(..) => None,
    }
}
