//! Values of a kernel that launches ahead of it compute, once for all programs.
//!
//! Such a value depends on nothing but its own axes and on indices of the tensors that it is made
//! of. The kernel that computes it has a program for each of its tiles.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::ir::{At, AxisKind, Dim, Kernel, Op, OpData, OpId, ProgramDim, SizeExpr, Span, Type, ValueDef, ValueId};

/// A value that a launch ahead can compute.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ahead {
    pub value: ValueId,
    /// What it is computed by.
    pub ops: BTreeSet<OpId>,
    /// Indices that address the tensors it is made of, with the extents that they run over.
    pub indices: BTreeMap<ValueId, SizeExpr>,
    /// Coordinates of its axes, in the order of its dimensions.
    pub coordinates: Vec<ValueId>,
}

impl Ahead {
    /// The grid that makes it: its dimensions, and the value that each stands for.
    pub fn program(&self, kernel: &Kernel) -> Vec<(ProgramDim, ValueId)> {
        let each = self.indices.iter().map(|(&v, extent)| (ProgramDim::Each(extent.clone()), v));
        let tiles = self.coordinates.iter().map(|&v| {
            let Type::Coord(axis) = *kernel.ty(v) else { unreachable!("a coordinate") };
            (ProgramDim::Tiles(axis), v)
        });
        each.chain(tiles).collect()
    }

    /// Notes that an index addresses a dimension of what it is made of.
    fn at_index(&mut self, kernel: &Kernel, v: ValueId, extent: &SizeExpr) -> Result<(), String> {
        match self.indices.get(&v) {
            Some(known) if known != extent => {
                let name = kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
                let (a, b) = (kernel.size_text(known), kernel.size_text(extent));
                Err(format!("`{name}` addresses dimensions of {a} and of {b}"))
            }
            _ => {
                self.indices.insert(v, extent.clone());
                Ok(())
            }
        }
    }

    /// Where it is kept if it has a tensor of its own: the indices, its own dimensions. Each entry with its extent.
    pub fn place(&self, kernel: &Kernel) -> Vec<(At, SizeExpr)> {
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

/// Whether an index is one number for all programs of a launch, such as the number of a layer. The
/// launch ahead computes it too; any other index has a program for each of its numbers there.
fn is_of_launch(kernel: &Kernel, v: ValueId) -> bool {
    let Some((_, op)) = kernel.def(v) else { return false };
    let is_one = match op {
        Op::IndexConst(_) | Op::SizeOf(_) | Op::Constant(..) | Op::Scalar(_) => true,
        Op::ToIndex(_) | Op::FromIndex(_) | Op::Index(..) => true,
        Op::Load { at, .. } => at.iter().all(|at| matches!(at, At::Index(_))),
        // Arithmetic of such numbers.
        op => op.is_elementwise() && kernel.tile(v).dims.is_empty(),
    };
    is_one && op.operands().into_iter().all(|v| is_of_launch(kernel, v))
}

/// What a launch ahead needs to compute a value, or why none can.
pub(super) fn ahead(kernel: &Kernel, value: ValueId) -> Result<Ahead, String> {
    let mut made = Ahead { value, ops: BTreeSet::new(), indices: BTreeMap::new(), coordinates: Vec::new() };
    let mut coordinates: BTreeSet<ValueId> = BTreeSet::new();
    let name = |v: ValueId| kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
    let own = format!("`{}`", name(value));
    let mut work = vec![value];
    while let Some(v) = work.pop() {
        let Some((id, op)) = kernel.def(v) else {
            return Err(format!("{own} depends on `{}`, which a loop carries", name(v)));
        };
        if !made.ops.insert(id) {
            continue;
        }
        match op {
            Op::Load { tensor, at } => {
                for (at, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
                    match at {
                        At::Tile(v) => {
                            coordinates.insert(*v);
                        }
                        At::Index(v) if is_of_launch(kernel, *v) => work.push(*v),
                        At::Index(v) => made.at_index(kernel, *v, extent)?,
                        At::Range { .. } => {}
                    }
                }
            }
            Op::Pos(v) => {
                coordinates.insert(*v);
            }
            Op::Gather { tensor, at } => {
                for (v, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
                    match kernel.ty(*v) {
                        Type::Index if !is_of_launch(kernel, *v) => made.at_index(kernel, *v, extent)?,
                        _ => work.push(*v),
                    }
                }
            }
            Op::Constant(..) | Op::Scalar(_) | Op::Full { .. } | Op::Transpose(_) => work.extend(op.operands()),
            op if op.is_elementwise() => work.extend(op.operands()),
            // Sizes are the same in every launch.
            Op::FromIndex(_) | Op::ToIndex(_) | Op::Index(..) => work.extend(op.operands()),
            Op::SizeOf(_) | Op::IndexConst(_) => {}
            // A reduction of whole rows, such as the length of a key.
            Op::Reduce(_, x) if matches!(kernel.tile(*x).dims.last(), Some(Dim::Range(_))) => work.push(*x),
            _ => return Err(format!("{own} is made by `{}`, which is not elementwise", op.mnemonic())),
        }
    }
    for dim in &kernel.tile(value).dims {
        let Dim::Axis(axis) = dim else { continue };
        let of = |v: &ValueId| *kernel.ty(*v) == Type::Coord(*axis);
        let coordinate = coordinates.iter().copied().find(of);
        made.coordinates.push(coordinate.ok_or_else(|| format!("{own} has an axis that none of its tensors has"))?);
    }
    match coordinates.iter().find(|v| !made.coordinates.contains(v)) {
        Some(v) => Err(format!("{own} depends on the tile `{}`, which is none of its own", name(*v))),
        None => Ok(made),
    }
}

/// Values by the launch that makes them, which those of the same `grid` share: what the launch has
/// behind its name, and the values.
pub(super) fn by_launch<'a, T, Grid: PartialEq>(values: &'a [T], grid: impl Fn(&'a T) -> Grid) -> Vec<(String, Vec<&'a T>)> {
    let mut groups: Vec<(Grid, Vec<&T>)> = Vec::new();
    for value in values {
        let own = grid(value);
        match groups.iter_mut().find(|(known, _)| *known == own) {
            Some((_, group)) => group.push(value),
            None => groups.push((own, vec![value])),
        }
    }
    let alone = groups.len() == 1;
    let suffix = |number| if alone { String::new() } else { format!("_{number}") };
    groups.into_iter().enumerate().map(|(number, (_, group))| (suffix(number), group)).collect()
}

/// A kernel that computes values whose programs are alike, and stores nothing yet; with the place in
/// the text of the original's program.
pub(super) fn program(original: &Kernel, values: &[&Ahead], name: String) -> (Kernel, Span) {
    let mut kernel = original.clone();
    kernel.name = name;
    let program = values[0].program(original);
    let span = original.ops[original.blocks[original.body].ops[0]].span;
    let made = |op: &OpId| values.iter().any(|value| value.ops.contains(op));
    let ops: Vec<OpId> = original.walk().into_iter().map(|(_, op)| op).filter(made).collect();
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
    (kernel, span)
}
