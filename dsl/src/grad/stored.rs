//! The stored form of [`super::streams`]: the gradient of each score is stored, and gradients of
//! operands are products of that.
//!
//! * *Pairs* makes the product of a tile of rows and a tile of columns again, and stores the gradient
//!   of each of its elements, in the type of the operands.
//! * One kernel for each operand: the gradient of the product as a kernel of its own (`product.rs`),
//!   which has tiles of the dimension that is summed along, too.
//!
//! No program holds whole rows of an operand, nor whole sums for them, so they may be as wide as
//! they like; and three products are made for the four of the plain form. It takes as much memory as
//! there are scores. What is no operand has its gradient as in the plain form.

use std::collections::HashMap;

use super::forward::{Class, Forward, WantedLoad};
use super::kept::Kept;
use super::names::grad_name;
use super::pairs::{PairGroup, PairTarget, loads_of};
use super::product::of_product;
use super::streams::kernels_with;
use super::uses::Uses;
use super::{Form, NotDifferentiable, Request};
use crate::ir::{
    At, AxisKind, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, OpId, Param, ParamId, ParamKind, ProgramDim, SizeExpr,
    TensorDecl, ValueId,
};

/// A product of what rows load with what columns load.
struct Product {
    value: ValueId,
    /// Its operands: the loads of rows and of columns.
    operands: [Operand; 2],
}

/// An operand of a product, as it is loaded.
struct Operand {
    tensor: ParamId,
    at: Vec<At>,
    /// The loads whose gradients are wanted, if they are.
    wanted: Option<WantedLoad>,
}

/// The kernels of the gradients of a kernel whose grid has tiles of rows, in the stored form.
pub(super) fn stored(forward: &Forward<'_>, kept: &Kept) -> Result<Vec<Kernel>, NotDifferentiable> {
    let products = products(forward);
    let names = names_of(forward, &products);
    if products.is_empty() {
        let name = &forward.kernel.name;
        let what = format!("no input of `{name}` whose gradient is asked for is nothing but an operand of a product of scores");
        return Err(NotDifferentiable::new(what, forward.kernel.name_span, "take the plain form"));
    }
    let mut groups = Vec::new();
    for (product, name) in products.iter().zip(&names) {
        let loads: Vec<WantedLoad> = product.operands.iter().filter_map(|operand| operand.wanted.clone()).collect();
        let (shape, at) = of_scores(forward);
        let elem = forward.kernel.tensor(product.operands[0].tensor).elem;
        let decl = TensorDecl { elem, shape, direction: Direction::Out };
        let target = PairTarget { of: product.value, name: grad_name(name), decl, at };
        groups.push(PairGroup::of_all(forward, target, loads));
    }
    // What is no operand has its gradient as in the plain form.
    let taken = loads_of(&groups);
    let all = [Class::Row, Class::Column, Class::Pair, Class::Program].map(|class| forward.wanted_loads(class));
    let others: Vec<&WantedLoad> = all.iter().flatten().filter(|load| !taken.contains(&load.0)).collect();
    let gathers = [Class::Row, Class::Column, Class::Pair].map(|class| forward.wanted_gathers(class));
    let rest = forward.only(others, gathers.iter().flatten());
    let mut backward = kernels_with(&rest, forward, kept, Form::Stored, groups)?;
    for (product, name) in products.iter().zip(&names) {
        backward.extend(of_operands(forward, product, name)?);
    }
    Ok(backward)
}

/// The products of scores with an operand whose gradient is wanted and that is nothing else.
fn products(forward: &Forward<'_>) -> Vec<Product> {
    let mut found: Vec<Product> = Vec::new();
    for op in forward.in_order() {
        let Op::Dot { a, b, acc: None } = forward.kernel.ops[op].op else { continue };
        let value = forward.kernel.ops[op].results[0];
        if forward.class(value) != Class::Pair || !forward.needed.contains(&value) {
            continue;
        }
        let sides = match (forward.class(a), forward.class(b)) {
            (Class::Row, Class::Column) => [a, b],
            (Class::Column, Class::Row) => [b, a],
            _ => continue,
        };
        let [Some(row), Some(column)] = sides.map(|v| operand(forward, op, v)) else { continue };
        let elem = |operand: &Operand| forward.kernel.tensor(operand.tensor).elem;
        if elem(&row) == elem(&column) && [&row, &column].iter().any(|operand| operand.wanted.is_some()) {
            found.push(Product { value, operands: [row, column] });
        }
    }
    found
}

/// An operand that is a load, transposed or not, of whole rows or columns.
fn operand(forward: &Forward<'_>, product: OpId, value: ValueId) -> Option<Operand> {
    let kernel = forward.kernel;
    let load = match kernel.def(value)?.1 {
        Op::Transpose(x) => *x,
        _ => value,
    };
    let Op::Load { tensor, at } = kernel.def(load)?.1 else { return None };
    let shape = &kernel.tensor(*tensor).shape;
    let is_plain = |(entry, extent): (&At, &SizeExpr)| match entry {
        At::Index(v) => is_of_grid(forward, *v),
        At::Tile(_) => true,
        At::Range { start, len } => *start == SizeExpr::constant(0) && len == extent,
    };
    let ranges = at.iter().filter(|entry| matches!(entry, At::Range { .. })).count();
    if ranges != 1 || !at.iter().zip(shape).all(is_plain) {
        return None;
    }
    let canonical = forward.canonical(load);
    let class = forward.class(load);
    let wanted = forward.wanted_loads(class).into_iter().find(|wanted| wanted.0 == canonical);
    // Programs that load the same have their sums by columns.
    let is_known = |v: ValueId| forward.program.contains(&v) || !forward.depends_on_program(v);
    let is_own = at.iter().all(|entry| !matches!(entry, At::Index(v) if !is_known(*v)));
    let wanted = wanted.filter(|wanted| is_own && wanted.2 == *at && is_read_by_one(forward, canonical, product));
    Some(Operand { tensor: *tensor, at: at.clone(), wanted })
}

/// Whether an index is made of dimensions of the grid, sizes and numbers.
fn is_of_grid(forward: &Forward<'_>, index: ValueId) -> bool {
    let is_made = || match forward.kernel.def(index) {
        Some((_, op @ (Op::Index(..) | Op::SizeOf(_) | Op::IndexConst(_)))) => {
            op.operands().into_iter().all(|v| is_of_grid(forward, v))
        }
        _ => false,
    };
    forward.program.contains(&index) || is_made()
}

/// Whether a product alone reads a load, as it is or transposed, and nothing else loads the tensor.
fn is_read_by_one(forward: &Forward<'_>, canonical: ValueId, product: OpId) -> bool {
    let kernel = forward.kernel;
    let Some((_, Op::Load { tensor, .. })) = kernel.def(canonical) else { return false };
    let is_one = |(_, op): &(_, OpId)| match &kernel.ops[*op].op {
        Op::Load { tensor: other, .. } | Op::Gather { tensor: other, .. } if other == tensor => {
            forward.canonical(kernel.ops[*op].results[0]) == canonical
        }
        _ => true,
    };
    let mut of: Vec<ValueId> = forward.loads_like(canonical).collect();
    let all = kernel.walk();
    let turned = all.iter().filter_map(|(_, op)| match kernel.ops[*op].op {
        Op::Transpose(x) if of.contains(&x) => Some((*op, kernel.ops[*op].results[0])),
        _ => None,
    });
    let (turning, values): (Vec<OpId>, Vec<ValueId>) = turned.unzip();
    of.extend(values);
    let reads = |op: &OpId| kernel.ops[*op].op.operands().iter().any(|v| of.contains(v));
    all.iter().all(is_one) && all.iter().all(|(_, op)| *op == product || turning.contains(op) || !reads(op))
}

/// Names for products, each that of the value, if it has one that is free.
fn names_of(forward: &Forward<'_>, products: &[Product]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for product in products {
        let own = forward.kernel.values[product.value].name.clone().unwrap_or_else(|| "scores".to_owned());
        let is_taken = |name: &String, names: &[String]| {
            let has = |name: &str| forward.kernel.param_named(name).is_some();
            names.contains(name) || has(name) || has(&grad_name(name))
        };
        let mut name = own;
        while is_taken(&name, &names) {
            name.push('_');
        }
        names.push(name);
    }
    names
}

/// The shape of all scores, and the place of a tile, by values of the forward kernel.
fn of_scores(forward: &Forward<'_>) -> (Vec<SizeExpr>, Vec<At>) {
    let kernel = forward.kernel;
    let each = forward.each_dims().map(|(v, extent)| (extent, At::Index(v)));
    let tiles = [forward.row, forward.columns[0]].map(|(v, axis)| (kernel.axes[axis].extent.clone(), At::Tile(v)));
    each.chain(tiles).unzip()
}

/// The kernels of the gradients of the operands of a product, which read that of the product.
fn of_operands(forward: &Forward<'_>, product: &Product, name: &str) -> Result<Vec<Kernel>, NotDifferentiable> {
    let by_itself = by_itself(forward, product, name);
    let wanted = product.operands.iter().filter(|operand| operand.wanted.is_some());
    let of = wanted.map(|operand| forward.kernel.params[operand.tensor].name.clone()).collect();
    let request = Request { of, from: vec![name.to_owned()], form: Form::Plain };
    let forward = Forward::of(&by_itself, &request, &Uses::default())?;
    of_product(&forward, &Kept::of(&forward))
}

/// A product as a kernel of its own, which stores all scores.
fn by_itself(forward: &Forward<'_>, product: &Product, name: &str) -> Kernel {
    let source = forward.kernel;
    let mut b = Builder::new(source.name.clone());
    b.kernel.type_params.clone_from(&source.type_params);
    b.kernel.sizes = source.sizes.clone();
    let axes = [forward.row.1, forward.columns[0].1].map(|axis| {
        let axis = &source.axes[axis];
        b.axis(axis.name.clone(), axis.extent.clone(), AxisKind::Program)
    });
    let params = product.operands.each_ref().map(|operand| {
        let Param { name, kind, span } = source.params[operand.tensor].clone();
        b.kernel.params.push(Param { name, kind, span })
    });
    let (shape, _) = of_scores(forward);
    let elem = source.tensor(product.operands[0].tensor).elem;
    let decl = TensorDecl { elem, shape, direction: Direction::Out };
    let output = b.kernel.params.push(Param { name: name.to_owned(), kind: ParamKind::Tensor(decl), span: source.name_span });
    let each: Vec<(ValueId, SizeExpr)> = forward.each_dims().collect();
    let dims = each.iter().map(|(_, extent)| ProgramDim::Each(extent.clone())).chain(axes.map(ProgramDim::Tiles));
    let (_, program) = b.append(Op::Program(dims.collect()));
    let there = each.iter().map(|(v, _)| *v).chain([forward.row.0, forward.columns[0].0]);
    for (&here, there) in program.iter().zip(there.clone()) {
        b.kernel.values[here].name.clone_from(&source.values[there].name);
    }
    let mut here: HashMap<ValueId, ValueId> = there.zip(program.iter().copied()).collect();
    let zero = b.emit(Op::Constant(Elem::F32, 0.0));
    let zeros = b.emit(Op::Full { value: zero, dims: axes.map(Dim::Axis).to_vec() });
    b.kernel.values[zeros].name = Some(name.to_owned());
    let depth = product.operands[0].at.iter().find_map(|entry| match entry {
        At::Range { len, .. } => Some(len.clone()),
        _ => None,
    });
    let inner = b.axis("c", depth.expect("an operand has a range"), AxisKind::Loop);
    let (c, carried) = b.begin_for(inner, &[zeros]);
    b.kernel.values[c].name = Some("c".to_owned());
    let mut operands = Vec::new();
    for (operand, tensor) in product.operands.iter().zip(params) {
        let mut at = Vec::new();
        for entry in &operand.at {
            at.push(match *entry {
                At::Range { .. } => At::Tile(c),
                At::Tile(v) if forward.is_column(v) => At::Tile(here[&forward.columns[0].0]),
                At::Tile(v) => At::Tile(here[&v]),
                At::Index(v) => At::Index(index(&mut b, source, &mut here, v)),
            });
        }
        operands.push(b.emit(Op::Load { tensor, at }));
    }
    let first = |v: ValueId, b: &Builder| b.kernel.tile(v).dims[0].clone();
    let [mut left, mut right] = [operands[0], operands[1]];
    if first(left, &b) != Dim::Axis(axes[0]) {
        left = b.emit(Op::Transpose(left));
    }
    if first(right, &b) != Dim::Axis(inner) {
        right = b.emit(Op::Transpose(right));
    }
    let dot = b.emit(Op::Dot { a: left, b: right, acc: None });
    let next = b.emit(Op::Binary(BinaryOp::Add, carried[0], dot));
    let sum = b.end_for(inner, vec![zeros], vec![next])[0];
    let at = program.iter().enumerate().map(|(n, &v)| if n < each.len() { At::Index(v) } else { At::Tile(v) }).collect();
    b.append(Op::Store { tensor: output, at, value: sum });
    b.finish().renumbered()
}

/// An index of a kernel in another one, where values are known `here`.
fn index(b: &mut Builder, of: &Kernel, here: &mut HashMap<ValueId, ValueId>, v: ValueId) -> ValueId {
    if let Some(&known) = here.get(&v) {
        return known;
    }
    let (_, op) = of.def(v).expect("made of dimensions of the grid, sizes and numbers");
    let operands: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, index(b, of, here, v))).collect();
    let made = b.emit(op.map_operands(|v| operands[&v]));
    here.insert(v, made);
    made
}
