//! Structure: references, nesting, definitions, order.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Errors, Rule};
use crate::ir::entity::{AxisId, BlockId, OpId, ParamId, SizeId, ValueId};
use crate::ir::kernel::{AxisKind, Kernel, ParamKind, ValueDef};
use crate::ir::op::{At, Op, Part, ProgramDim};
use crate::ir::size::SizeExpr;
use crate::ir::types::{Dim, Elem, Type};

/// Checks that every reference is in range.
pub(super) fn check_entities(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    let refs = References { kernel };
    let mut wrong = Vec::new();
    if kernel.blocks.get(kernel.body).is_none() {
        wrong.push((None, format!("the body {} does not exist", kernel.body)));
    }
    for (id, axis) in kernel.axes.iter() {
        wrong.extend(refs.size(&axis.extent).map(|m| (None, format!("the extent of {id}: {m}"))));
    }
    for param in kernel.params.values() {
        let (elem, shape) = match &param.kind {
            ParamKind::Tensor(tensor) => (tensor.elem, &tensor.shape[..]),
            ParamKind::Scalar(elem) => (*elem, &[][..]),
        };
        let faults = refs.elem(elem).into_iter().chain(shape.iter().filter_map(|s| refs.size(s)));
        wrong.extend(faults.map(|m| (None, format!("parameter `{}`: {m}", param.name))));
    }
    for (id, value) in kernel.values.iter() {
        wrong.extend(refs.ty(&value.ty).map(|m| (None, format!("the type of {id}: {m}"))));
        let def = match value.def {
            ValueDef::Result(op, _) => kernel.ops.get(op).is_none(),
            ValueDef::BlockParam(block, _) => kernel.blocks.get(block).is_none(),
        };
        if def {
            wrong.push((None, format!("{id} is defined by {:?}, which does not exist", value.def)));
        }
    }
    for (id, block) in kernel.blocks.iter() {
        wrong.extend(block.params.iter().filter_map(|&v| refs.value(v)).map(|m| (None, format!("a parameter of {id}: {m}"))));
        let ops = block.ops.iter().filter(|&&op| kernel.ops.get(op).is_none());
        wrong.extend(ops.map(|op| (None, format!("{id} contains {op}, which does not exist"))));
    }
    for (id, data) in kernel.ops.iter() {
        let values = data.op.operands().into_iter().chain(data.results.iter().copied());
        let faults = values.filter_map(|v| refs.value(v)).chain(refs.op(&data.op));
        wrong.extend(faults.map(|m| (Some(id), format!("{}: {m}", data.op.mnemonic()))));
    }
    for (op, message) in wrong {
        match op {
            Some(op) => errors.at(Rule::Entity, op, message),
            None => errors.kernel(Rule::Entity, message),
        }
    }
}

/// Looks for references out of range; each gives the fault in words.
struct References<'k> {
    kernel: &'k Kernel,
}

impl References<'_> {
    fn value(&self, v: ValueId) -> Option<String> {
        self.kernel.values.get(v).is_none().then(|| format!("value {v} does not exist"))
    }

    fn axis(&self, axis: AxisId) -> Option<String> {
        self.kernel.axes.get(axis).is_none().then(|| format!("{axis} does not exist"))
    }

    fn param(&self, param: ParamId) -> Option<String> {
        self.kernel.params.get(param).is_none().then(|| format!("{param} does not exist"))
    }

    fn size(&self, size: &SizeExpr) -> Option<String> {
        let missing = |id: &SizeId| self.kernel.sizes.get(*id).is_none();
        size.sizes().find(missing).map(|id| format!("{id} does not exist"))
    }

    fn elem(&self, elem: Elem) -> Option<String> {
        match elem {
            Elem::Generic(i) if i as usize >= self.kernel.type_params.len() => Some(format!("type parameter {i} does not exist")),
            _ => None,
        }
    }

    fn dim(&self, dim: &Dim) -> Option<String> {
        match dim {
            Dim::Axis(axis) => self.axis(*axis),
            Dim::Range(len) => self.size(len),
        }
    }

    fn ty(&self, ty: &Type) -> Option<String> {
        match ty {
            Type::Index => None,
            Type::Coord(axis) => self.axis(*axis),
            Type::Tile(tile) => self.elem(tile.elem).or_else(|| tile.dims.iter().find_map(|d| self.dim(d))),
        }
    }

    fn at(&self, at: &[At]) -> Option<String> {
        at.iter().find_map(|entry| match entry {
            At::Index(_) | At::Tile(_) => None,
            At::Range { start, len } => self.size(start).or_else(|| self.size(len)),
        })
    }

    /// What an op refers to beside its operands.
    fn op(&self, op: &Op) -> Option<String> {
        match op {
            Op::Program(dims) => dims.iter().find_map(|dim| match dim {
                ProgramDim::Each(size) => self.size(size),
                ProgramDim::Tiles(axis) => self.axis(*axis),
            }),
            Op::SizeOf(size) => self.size(&SizeExpr::size(*size)),
            Op::Scalar(param) | Op::Gather { tensor: param, .. } | Op::Scatter { tensor: param, .. } => self.param(*param),
            Op::Constant(elem, _) | Op::Cast(elem, _) => self.elem(*elem),
            Op::Full { dims, .. } => dims.iter().find_map(|d| self.dim(d)),
            Op::Load { tensor, at } | Op::Store { tensor, at, .. } => self.param(*tensor).or_else(|| self.at(at)),
            Op::For { axis, body, .. } => {
                let block = self.kernel.blocks.get(*body).is_none().then(|| format!("{body} does not exist"));
                self.axis(*axis).or(block)
            }
            _ => None,
        }
    }
}

/// Checks blocks and what stands in them. References are known to be in range.
pub(super) fn check_blocks(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    check_names(errors);
    check_definitions(errors);
    if !check_nesting(errors) {
        // Walking the blocks might not end.
        return;
    }
    check_order(errors, kernel.body, None, &mut BTreeSet::new());
    check_axes(errors);
}

fn check_names(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    let types = kernel.type_params.iter().map(|name| ("type parameter", name));
    let sizes = kernel.sizes.values().map(|size| ("size", &size.name));
    let params = kernel.params.values().map(|param| ("parameter", &param.name));
    let mut seen = BTreeSet::new();
    for (what, name) in types.chain(sizes).chain(params) {
        if name.is_empty() {
            errors.kernel(Rule::Name, format!("a {what} has no name"));
        } else if !seen.insert(name) {
            errors.kernel(Rule::Name, format!("the name `{name}` is taken when a {what} has it"));
        }
    }
}

fn check_definitions(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    for (id, data) in kernel.ops.iter() {
        for (n, &result) in data.results.iter().enumerate() {
            if kernel.values[result].def != ValueDef::Result(id, n as u32) {
                errors.at(
                    Rule::Definition,
                    id,
                    format!("{result} is a result of {id}, but says {:?}", kernel.values[result].def),
                );
            }
        }
    }
    for (id, block) in kernel.blocks.iter() {
        for (n, &param) in block.params.iter().enumerate() {
            if kernel.values[param].def != ValueDef::BlockParam(id, n as u32) {
                errors
                    .kernel(Rule::Definition, format!("{param} is a parameter of {id}, but says {:?}", kernel.values[param].def));
            }
        }
    }
}

/// Whether blocks form a tree.
fn check_nesting(errors: &mut Errors<'_>) -> bool {
    let kernel = errors.kernel;
    let before = errors.list.len();
    let mut places: BTreeMap<OpId, BlockId> = BTreeMap::new();
    let mut owners: BTreeMap<BlockId, OpId> = BTreeMap::new();
    for (id, block) in kernel.blocks.iter() {
        for &op in &block.ops {
            if let Some(other) = places.insert(op, id) {
                errors.at(Rule::Nesting, op, format!("{op} stands in {other} and again in {id}"));
            }
            if let Op::For { body, .. } = kernel.ops[op].op {
                if body == kernel.body {
                    errors.at(Rule::Nesting, op, "the body of a loop is the body of the kernel");
                }
                if owners.insert(body, op).is_some() {
                    errors.at(Rule::Nesting, op, format!("{body} is the body of two loops"));
                }
            }
        }
    }
    // A block that does not lead out to the kernel body, within as many steps as there are blocks, is in a circle.
    for (id, &owner) in &owners {
        let mut block = *id;
        for _ in 0..kernel.blocks.len() {
            match owners.get(&block).and_then(|op| places.get(op)) {
                Some(&outer) => block = outer,
                None => break,
            }
        }
        if owners.contains_key(&block) && places.contains_key(&owners[&block]) {
            errors.at(Rule::Nesting, owner, format!("the loop over {id} contains itself"));
        }
    }
    errors.list.len() == before
}

/// Checks `program`, `yield` and dominance in a block and the loops in it.
fn check_order(errors: &mut Errors<'_>, block: BlockId, owner: Option<OpId>, defined: &mut BTreeSet<ValueId>) {
    let kernel = errors.kernel;
    let data = &kernel.blocks[block];
    if owner.is_none() {
        match data.ops.first() {
            Some(&op) if matches!(kernel.ops[op].op, Op::Program(_)) => {}
            _ => errors.kernel(Rule::Program, "the first op of a kernel is `program`"),
        }
        if !data.params.is_empty() {
            errors.kernel(Rule::Definition, "the body of a kernel has no parameters");
        }
    }
    let mut here: Vec<ValueId> = data.params.clone();
    defined.extend(data.params.iter().copied());
    for (n, &id) in data.ops.iter().enumerate() {
        let op = &kernel.ops[id].op;
        if matches!(op, Op::Program(_)) && (owner.is_some() || n > 0) {
            errors.at(Rule::Program, id, "`program` stands first in the kernel and nowhere else");
        }
        let is_last = n + 1 == data.ops.len();
        if matches!(op, Op::Yield(_)) && (owner.is_none() || !is_last) {
            errors.at(Rule::Yield, id, "`yield` ends a loop body and stands nowhere else");
        }
        for operand in op.operands() {
            if !defined.contains(&operand) {
                errors.at(Rule::Dominance, id, format!("{operand} is used by {} before it is defined", op.mnemonic()));
            }
        }
        if let Op::For { body, .. } = op {
            check_order(errors, *body, Some(id), defined);
        }
        defined.extend(kernel.ops[id].results.iter().copied());
        here.extend(kernel.ops[id].results.iter().copied());
    }
    if let Some(owner) = owner {
        match data.ops.last() {
            Some(&last) if matches!(kernel.ops[last].op, Op::Yield(_)) => {}
            _ => errors.at(Rule::Yield, owner, "a loop body ends in `yield`"),
        }
        here.iter().for_each(|value| {
            defined.remove(value);
        });
    }
}

/// Checks that programs walk every part of a loop.
fn check_part(errors: &mut Errors<'_>, id: OpId, part: Part) {
    let kernel = errors.kernel;
    let program = kernel.blocks[kernel.body].ops.first().map(|&op| &kernel.ops[op]);
    let dim = program.and_then(|data| {
        let place = data.results.iter().position(|&r| r == part.index)?;
        if let Op::Program(dims) = &data.op { dims.get(place) } else { None }
    });
    let whole = matches!(dim, Some(ProgramDim::Each(size)) if size.as_constant() == Some(i64::from(part.count)));
    if !whole || part.count == 0 {
        let (index, count) = (part.index, part.count);
        errors.at(Rule::Part, id, format!("{index} is no program id of {count} programs, so that not every part is walked once"));
    }
}

fn check_axes(errors: &mut Errors<'_>) {
    let kernel = errors.kernel;
    let mut owners: BTreeMap<AxisId, usize> = BTreeMap::new();
    for (_, id) in kernel.walk() {
        let owned: Vec<(AxisId, AxisKind)> = match &kernel.ops[id].op {
            Op::Program(dims) => dims
                .iter()
                .filter_map(|dim| match dim {
                    ProgramDim::Tiles(axis) => Some((*axis, AxisKind::Program)),
                    ProgramDim::Each(_) => None,
                })
                .collect(),
            Op::For { axis, .. } if kernel.axes[*axis].kind == AxisKind::Each => vec![(*axis, AxisKind::Each)],
            Op::For { axis, .. } => vec![(*axis, AxisKind::Loop)],
            _ => vec![],
        };
        if let Op::For { part: Some(part), .. } = &kernel.ops[id].op {
            check_part(errors, id, *part);
        }
        for (axis, kind) in owned {
            *owners.entry(axis).or_default() += 1;
            if kernel.axes[axis].kind != kind {
                errors.at(
                    Rule::Axis,
                    id,
                    format!("{axis} is not an axis of a {}", if kind == AxisKind::Program { "grid" } else { "loop" }),
                );
            }
            if owners[&axis] > 1 {
                errors.at(Rule::Axis, id, format!("{axis} is walked twice"));
            }
        }
    }
}
