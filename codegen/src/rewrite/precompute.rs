//! Right operands of products that a kernel computes, computed by launches ahead of it.
//!
//! A right operand that depends on nothing but its own axes and on indices of the tensors it is made of, such as keys that are
//! rotated by their position, is the same for many programs: every program that walks these keys computes it again. The
//! *preparing* kernel has one program for each of its tiles, computes it as the text does, and stores it to a scratch tensor
//! of the same element type; the original loads it from there. No value changes: the operand was rounded to that type
//! anyway.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::ir::{
    At, AxisKind, Dim, Direction, Kernel, Op, OpData, OpId, Param, ParamKind, ProgramDim, SizeExpr, Span, TensorDecl, Type,
    ValueDef, ValueId,
};

use super::edit;

/// A kernel whose computed right operands are loaded, and the kernels that compute them.
#[derive(Clone, Debug)]
pub struct Precomputed {
    /// The kernels that are launched first.
    pub ahead: Vec<Kernel>,
    /// The original, without the computation.
    pub main: Kernel,
    /// Names of the tensors between, outputs of `ahead` and inputs of `main`.
    pub between: Vec<String>,
}

/// Why no right operand of the kernel can be computed ahead; `None` if one can.
pub fn why_not_precompute(kernel: &Kernel) -> Option<String> {
    operands(kernel).err()
}

/// Computes the right operands of a kernel ahead of it, all that can be.
///
/// # Errors
/// What [`why_not_precompute`] says.
pub fn precompute(kernel: &Kernel) -> Result<Precomputed, String> {
    let operands = operands(kernel)?;
    let names = names(kernel, &operands);
    // Operands that the same programs make share a launch.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (number, operand) in operands.iter().enumerate() {
        match groups.iter_mut().find(|group| operands[group[0]].program(kernel) == operand.program(kernel)) {
            Some(group) => group.push(number),
            None => groups.push(vec![number]),
        }
    }
    let one = groups.len() == 1;
    let ahead = groups.iter().enumerate().map(|(number, group)| {
        let suffix = if one { String::new() } else { format!("_{number}") };
        let stored: Vec<(&Operand, &str)> = group.iter().map(|&n| (&operands[n], names[n].as_str())).collect();
        preparing(kernel, &stored, format!("{}_prepare{suffix}", kernel.name))
    });
    Ok(Precomputed { ahead: ahead.collect(), main: main(kernel, &operands, &names), between: names })
}

/// A right operand that can be computed ahead.
#[derive(Clone, Debug, PartialEq)]
struct Operand {
    value: ValueId,
    /// What it is computed by.
    ops: BTreeSet<OpId>,
    /// Indices that address the tensors it is made of, with the extents that they run over.
    indices: BTreeMap<ValueId, SizeExpr>,
    /// Coordinates of its axes, in the order of its dimensions.
    coordinates: Vec<ValueId>,
}

impl Operand {
    /// The grid that makes it: its dimensions, and the value that each stands for.
    fn program(&self, kernel: &Kernel) -> Vec<(ProgramDim, ValueId)> {
        let each = self.indices.iter().map(|(&v, extent)| (ProgramDim::Each(extent.clone()), v));
        let tiles = self.coordinates.iter().map(|&v| {
            let Type::Coord(axis) = *kernel.ty(v) else { unreachable!("a coordinate") };
            (ProgramDim::Tiles(axis), v)
        });
        each.chain(tiles).collect()
    }

    /// Where it is kept: the indices, its own dimensions. Each entry with its extent.
    fn place(&self, kernel: &Kernel) -> Vec<(At, SizeExpr)> {
        let mut out: Vec<(At, SizeExpr)> = self.indices.iter().map(|(&v, extent)| (At::Index(v), extent.clone())).collect();
        for dim in &kernel.tile(self.value).dims {
            out.push(match dim {
                Dim::Axis(axis) => {
                    let of = |v: &&ValueId| *kernel.ty(**v) == Type::Coord(*axis);
                    let coordinate = self.coordinates.iter().find(of).expect("each axis has its coordinate");
                    (At::Tile(*coordinate), kernel.axes[*axis].extent.clone())
                }
                Dim::Range(len) => (At::Range { start: SizeExpr::constant(0), len: len.clone() }, len.clone()),
            });
        }
        out
    }
}

/// The computed right operands of all products; at least one.
fn operands(kernel: &Kernel) -> Result<Vec<Operand>, String> {
    let mut found: Vec<Operand> = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    for (_, op) in kernel.walk() {
        let Op::Dot { b, .. } = kernel.ops[op].op else { continue };
        let value = match kernel.def(b) {
            Some((_, Op::Transpose(x))) => *x,
            _ => b,
        };
        if matches!(kernel.def(value), Some((_, Op::Load { .. }))) || found.iter().any(|o| o.value == value) {
            continue;
        }
        match operand(kernel, value) {
            Ok(operand) => found.push(operand),
            Err(why) => reasons.push(why),
        }
    }
    match (found.is_empty(), reasons.pop()) {
        (false, None) => Ok(found),
        (true, None) => Err("no right operand is computed".into()),
        // One that stays would be computed in place all the same.
        (_, Some(why)) => Err(why),
    }
}

fn operand(kernel: &Kernel, value: ValueId) -> Result<Operand, String> {
    let mut operand = Operand { value, ops: BTreeSet::new(), indices: BTreeMap::new(), coordinates: Vec::new() };
    let mut coordinates: BTreeSet<ValueId> = BTreeSet::new();
    let name = |v: ValueId| kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
    let own = format!("`{}`", name(value));
    let mut work = vec![value];
    while let Some(v) = work.pop() {
        let Some((id, op)) = kernel.def(v) else {
            return Err(format!("{own} depends on `{}`, which a loop carries", name(v)));
        };
        if !operand.ops.insert(id) {
            continue;
        }
        match op {
            Op::Load { tensor, at } => {
                for (at, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
                    match at {
                        At::Tile(v) => {
                            coordinates.insert(*v);
                        }
                        At::Index(v) => match operand.indices.get(v) {
                            Some(known) if known != extent => {
                                let (a, b) = (kernel.size_text(known), kernel.size_text(extent));
                                return Err(format!("`{}` addresses dimensions of {a} and of {b}", name(*v)));
                            }
                            _ => {
                                operand.indices.insert(*v, extent.clone());
                            }
                        },
                        At::Range { .. } => {}
                    }
                }
            }
            Op::Pos(v) => {
                coordinates.insert(*v);
            }
            Op::Constant(..)
            | Op::Scalar(_)
            | Op::Full { .. }
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Compare(..)
            | Op::Select { .. }
            | Op::Mask { .. }
            | Op::Cast(..)
            | Op::Transpose(_) => work.extend(op.operands()),
            _ => return Err(format!("{own} is made by `{}`, which is not elementwise", op.mnemonic())),
        }
    }
    for dim in &kernel.tile(value).dims {
        let Dim::Axis(axis) = dim else { continue };
        let of = |v: &ValueId| *kernel.ty(*v) == Type::Coord(*axis);
        let coordinate = coordinates.iter().copied().find(of);
        operand.coordinates.push(coordinate.ok_or_else(|| format!("{own} has an axis that none of its tensors has"))?);
    }
    match coordinates.iter().find(|v| !operand.coordinates.contains(v)) {
        Some(v) => Err(format!("{own} depends on the tile `{}`, which is none of its own", name(*v))),
        None => Ok(operand),
    }
}

/// Names of the tensors between, which nothing else has.
fn names(kernel: &Kernel, operands: &[Operand]) -> Vec<String> {
    let mut taken: BTreeSet<String> = kernel.params.values().map(|p| p.name.clone()).collect();
    taken.extend(kernel.sizes.values().map(|s| s.name.clone()));
    taken.extend(kernel.type_params.iter().cloned());
    let mut out = Vec::new();
    for operand in operands {
        let own = kernel.values[operand.value].name.clone().unwrap_or_else(|| operand.value.to_string());
        let plain: String = own.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let mut name = format!("{plain}_all");
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        out.push(name);
    }
    out
}

fn tensor(kernel: &Kernel, operand: &Operand, name: &str, direction: Direction) -> Param {
    let shape = operand.place(kernel).into_iter().map(|(_, extent)| extent).collect();
    let decl = TensorDecl { elem: kernel.tile(operand.value).elem, shape, direction };
    Param { name: name.to_owned(), kind: ParamKind::Tensor(decl), span: Span::default() }
}

/// The kernel that computes operands which the same programs make.
fn preparing(original: &Kernel, stored: &[(&Operand, &str)], name: String) -> Kernel {
    let mut kernel = original.clone();
    kernel.name = name;
    let program = stored[0].0.program(original);
    let span = original.ops[original.blocks[original.body].ops[0]].span;
    let ops = original.walk().into_iter().map(|(_, op)| op).filter(|op| stored.iter().any(|(o, _)| o.ops.contains(op)));
    let ops: Vec<OpId> = ops.collect();
    let results: Vec<ValueId> = program.iter().map(|(_, v)| *v).collect();
    let dims = program.into_iter().map(|(dim, _)| dim).collect::<Vec<_>>();
    for dim in &dims {
        if let ProgramDim::Tiles(axis) = dim {
            kernel.axes[*axis].kind = AxisKind::Program;
        }
    }
    // What was an index or a coordinate of the original is one of the program.
    let first = kernel.ops.push(OpData { op: Op::Program(dims), results: results.clone(), span });
    for (number, &v) in results.iter().enumerate() {
        kernel.values[v].def = ValueDef::Result(first, number as u32);
    }
    let body = kernel.body;
    kernel.blocks[body].ops = [first].into_iter().chain(ops).collect();
    for (operand, name) in stored {
        let param = kernel.params.push(tensor(original, operand, name, Direction::Out));
        let at = operand.place(original).into_iter().map(|(at, _)| at).collect();
        let op = Op::Store { tensor: param, at, value: operand.value };
        let id = kernel.ops.push(OpData { op, results: Vec::new(), span });
        kernel.blocks[body].ops.push(id);
    }
    finish(kernel)
}

/// The original with loads in place of what was computed.
fn main(original: &Kernel, operands: &[Operand], names: &[String]) -> Kernel {
    let mut kernel = original.clone();
    for (operand, name) in operands.iter().zip(names) {
        let param = kernel.params.push(tensor(original, operand, name, Direction::In));
        let at = operand.place(original).into_iter().map(|(at, _)| at).collect();
        let (id, _) = original.def(operand.value).expect("it is computed");
        let span = original.ops[id].span;
        let place = edit::after_definition(&kernel, operand.value);
        let loaded = edit::insert(&mut kernel, place, Op::Load { tensor: param, at }, span);
        kernel.values[loaded].name.clone_from(&original.values[operand.value].name);
        edit::replace_uses(&mut kernel, operand.value, loaded, &[]);
    }
    finish(kernel)
}

/// Without what nothing needs; everything numbered anew.
fn finish(mut kernel: Kernel) -> Kernel {
    edit::remove_dead(&mut kernel);
    edit::remove_unused_params(&mut kernel);
    kernel.renumbered()
}
