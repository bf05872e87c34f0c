//! Types: operands, shapes, constants, carried values, results.

use super::rule::{BadOps, Errors, Rule};
use crate::ir::builder::{broadcast, result_types};
use crate::ir::elementwise::Operands;
use crate::ir::entity::{OpId, ParamId, ValueId};
use crate::ir::kernel::{AxisKind, Kernel, ParamKind, SizeKind, ValueDef};
use crate::ir::op::{At, Op};
use crate::ir::size::SizeExpr;
use crate::ir::types::{Dim, Elem, TileType, Type};

/// A violated rule, before its place is added.
type Fault = (Rule, String);

/// Checks the types of all ops; returns those with a fault.
pub(super) fn check(errors: &mut Errors<'_>) -> BadOps {
    let kernel = errors.kernel;
    for param in kernel.params.values() {
        if let Some(message) = declaration(&param.kind) {
            errors.kernel(Rule::Operand, format!("parameter `{}`: {message}", param.name));
        }
    }
    let mut bad = BadOps::new();
    let ops: Vec<OpId> = kernel.walk().into_iter().map(|(_, id)| id).collect();
    for &id in &ops {
        let data = &kernel.ops[id];
        let name = data.op.mnemonic();
        let checker = Checker { kernel };
        if let Err((rule, message)) = checker.operands(&data.op) {
            errors.at(rule, id, format!("{name}: {message}"));
            bad.insert(id);
            continue;
        }
        if let Op::For { .. } = data.op {
            if let Err((rule, message)) = checker.carried(id) {
                errors.at(rule, id, format!("{name}: {message}"));
                bad.insert(id);
            }
            continue;
        }
        let expected = result_types(kernel, &data.op);
        let found: Vec<_> = data.results.iter().map(|&v| kernel.ty(v).clone()).collect();
        if expected != found {
            let text = |types: &[Type]| types.iter().map(|t| kernel.type_text(t)).collect::<Vec<_>>().join(", ");
            errors.at(Rule::Result, id, format!("{name}: expected results ({}), found ({})", text(&expected), text(&found)));
            bad.insert(id);
        }
        for ty in &found {
            if let Err((rule, message)) = checker.well_formed(ty) {
                errors.at(rule, id, format!("{name}: {message}"));
                bad.insert(id);
            }
        }
    }
    bad
}

/// What is wrong with the declaration of a parameter.
fn declaration(kind: &ParamKind) -> Option<&'static str> {
    match kind {
        ParamKind::Scalar(Elem::F32 | Elem::I32) => None,
        ParamKind::Scalar(_) => Some("a scalar is f32 or i32"),
        ParamKind::Tensor(tensor) if tensor.direction.is_written() && !tensor.elem.is_stored() => {
            Some("a tensor that is written holds f32, f16, bf16 or i32")
        }
        ParamKind::Tensor(tensor) if tensor.shape.is_empty() => Some("a tensor has a dimension"),
        ParamKind::Tensor(_) => None,
    }
}

/// Looks at one op.
struct Checker<'k> {
    kernel: &'k Kernel,
}

impl Checker<'_> {
    fn text(&self, v: ValueId) -> String {
        format!("{v} of type {}", self.kernel.type_text(self.kernel.ty(v)))
    }

    fn wrong(&self, wanted: &str, v: ValueId) -> Fault {
        (Rule::Operand, format!("expected {wanted}, found {}", self.text(v)))
    }

    fn index(&self, v: ValueId) -> Result<(), Fault> {
        if *self.kernel.ty(v) == Type::Index { Ok(()) } else { Err(self.wrong("an index", v)) }
    }

    fn coordinate(&self, v: ValueId) -> Result<(), Fault> {
        match self.kernel.ty(v) {
            Type::Coord(_) => Ok(()),
            _ => Err(self.wrong("a coordinate", v)),
        }
    }

    fn tile(&self, v: ValueId, wanted: &str, accept: impl Fn(&TileType) -> bool) -> Result<&TileType, Fault> {
        match self.kernel.ty(v) {
            Type::Tile(tile) if accept(tile) => Ok(tile),
            _ => Err(self.wrong(wanted, v)),
        }
    }

    fn broadcast(&self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, Fault> {
        broadcast(a, b).ok_or_else(|| (Rule::Broadcast, format!("({}) and ({}) do not broadcast", self.dims(a), self.dims(b))))
    }

    fn dims(&self, dims: &[Dim]) -> String {
        dims.iter().map(|d| self.kernel.dim_text(d)).collect::<Vec<_>>().join(", ")
    }

    fn const_length(&self, len: &SizeExpr) -> Result<(), Fault> {
        match len.sizes().find(|&s| self.kernel.sizes[s].kind == SizeKind::Runtime) {
            Some(size) => {
                Err((Rule::Rank, format!("the length of a range has the run-time size {}", self.kernel.size_name(size))))
            }
            None => Ok(()),
        }
    }

    /// Whether a tile may have these dimensions.
    fn shape(&self, dims: &[Dim]) -> Result<(), Fault> {
        if dims.len() > 2 {
            return Err((Rule::Rank, format!("({}) are more than 2 dimensions", self.dims(dims))));
        }
        if let [Dim::Axis(a), Dim::Axis(b)] = dims
            && a == b
        {
            return Err((Rule::Rank, format!("({}) has an axis twice", self.dims(dims))));
        }
        dims.iter().try_for_each(|dim| match dim {
            Dim::Axis(axis) if self.kernel.axes[*axis].kind == AxisKind::Each => {
                Err((Rule::Rank, format!("({}) has an axis of single positions", self.dims(dims))))
            }
            Dim::Axis(_) => Ok(()),
            Dim::Range(len) => self.const_length(len),
        })
    }

    fn well_formed(&self, ty: &Type) -> Result<(), Fault> {
        let Some(tile) = ty.tile() else { return Ok(()) };
        if tile.elem.is_narrow() {
            return Err((Rule::Operand, format!("elements of {} are in memory only", tile.elem.name())));
        }
        self.shape(&tile.dims)
    }

    /// Checks what [`result_types`] relies on, and all else about operands.
    fn operands(&self, op: &Op) -> Result<(), Fault> {
        let numeric = |t: &TileType| t.elem != Elem::Bool;
        let float = |t: &TileType| t.elem.is_float();
        let truth = |t: &TileType| t.elem == Elem::Bool;
        let integer = |t: &TileType| t.elem == Elem::I32;
        match op {
            Op::Program(_) | Op::IndexConst(_) | Op::SizeOf(_) => Ok(()),
            Op::Index(_, a, b) => self.index(*a).and(self.index(*b)),
            Op::Constant(elem, value) => constant(*elem, *value),
            Op::Scalar(param) => match self.kernel.params[*param].kind {
                ParamKind::Scalar(_) => Ok(()),
                ParamKind::Tensor(_) => Err((
                    Rule::Operand,
                    format!("expected a scalar parameter, found the tensor `{}`", self.kernel.params[*param].name),
                )),
            },
            Op::FromIndex(x) => self.index(*x),
            Op::ToIndex(x) => self.tile(*x, "an i32 scalar", |t| t.elem == Elem::I32 && t.rank() == 0).map(drop),
            Op::Pos(x) => self.coordinate(*x),
            Op::Full { value, dims } => {
                self.tile(*value, "a scalar", |t| t.rank() == 0)?;
                self.shape(dims)
            }
            Op::Load { tensor, at } | Op::BlockExtreme { tensor, at, .. } | Op::Nonzero { tensor, at } => {
                self.tensor(*tensor).and(self.addresses(at))
            }
            Op::Gather { tensor, at } => self.tensor(*tensor).and(self.positions(at)).map(drop),
            Op::Scatter { tensor, at, value } => {
                self.tensor(*tensor)?;
                let dims = self.positions(at)?;
                let tile = self.tile(*value, "a tile of floats", float)?;
                if self.broadcast(&dims, &tile.dims)? != tile.dims {
                    let what = "positions have dimensions that what is added has not";
                    return Err((Rule::Operand, what.to_owned()));
                }
                Ok(())
            }
            Op::Store { tensor, at, value } => {
                self.tensor(*tensor).and(self.addresses(at))?;
                self.tile(*value, "a tile of numbers", numeric).map(drop)
            }
            Op::Unary(op, x) => match op.row().operand {
                Operands::Truths => self.tile(*x, "truth values", truth),
                Operands::Numbers => self.tile(*x, "numbers", numeric),
                Operands::Floats => self.tile(*x, "floats", float),
                Operands::Integers => self.tile(*x, "integers", integer),
            }
            .map(drop),
            Op::Binary(op, a, b) => {
                let kind = |t: &TileType| match op.row().operands {
                    Operands::Truths => truth(t),
                    Operands::Integers => integer(t),
                    Operands::Floats => float(t),
                    Operands::Numbers => numeric(t),
                };
                let (a, second) = (self.tile(*a, "another operand", kind)?, *b);
                let b = self.tile(second, "another operand", kind)?;
                if a.elem.is_float() != b.elem.is_float() {
                    return Err(self.wrong(if a.elem.is_float() { "floats" } else { "integers" }, second));
                }
                self.broadcast(&a.dims, &b.dims).map(drop)
            }
            Op::Compare(_, a, b) => {
                let (first, second) = (self.tile(*a, "numbers", numeric)?, self.tile(*b, "numbers", numeric)?);
                if first.elem != second.elem {
                    return Err(self.wrong(&format!("elements of {}", self.kernel.elem_name(first.elem)), *b));
                }
                self.broadcast(&first.dims, &second.dims).map(drop)
            }
            Op::Select { cond, on_true, on_false } => {
                let cond = self.tile(*cond, "truth values", truth)?;
                let (t, f) = (self.tile(*on_true, "a tile", |_| true)?, self.tile(*on_false, "a tile", |_| true)?);
                if t.elem != f.elem {
                    return Err(self.wrong(&format!("elements of {}", self.kernel.elem_name(t.elem)), *on_false));
                }
                let dims = self.broadcast(&t.dims, &f.dims)?;
                self.broadcast(&dims, &cond.dims).map(drop)
            }
            Op::Mask { x, keep, .. } => {
                let (x, keep) = (self.tile(*x, "floats", float)?, self.tile(*keep, "truth values", truth)?);
                if self.broadcast(&x.dims, &keep.dims)? == x.dims {
                    return Ok(());
                }
                Err((Rule::Broadcast, format!("({}) has dimensions that ({}) lacks", self.dims(&keep.dims), self.dims(&x.dims))))
            }
            Op::Cast(elem, x) => {
                let from = self.tile(*x, "numbers", numeric)?;
                if (elem.is_float() && !elem.is_narrow()) || *elem == Elem::I32 || *elem == from.elem {
                    return Ok(());
                }
                Err((Rule::Operand, format!("{} cannot be converted to {}", self.text(*x), self.kernel.elem_name(*elem))))
            }
            Op::Transpose(x) => self.tile(*x, "a matrix", |t| t.rank() == 2).map(drop),
            Op::Dot { a, b, acc } => self.dot(*a, *b, *acc),
            Op::Reduce(_, x) => self.tile(*x, "a matrix of floats", |t| t.rank() == 2 && float(t)).map(drop),
            Op::OfPart { value, part, at } => {
                self.tile(*value, "a tile", |_| true)?;
                self.index(*part).and(self.index(*at))?;
                let of = |v: ValueId| match self.kernel.values[v].def {
                    ValueDef::Result(op, _) if self.kernel.blocks[self.kernel.body].ops.contains(&op) => Some(op),
                    _ => None,
                };
                let is_program = |op| matches!(self.kernel.ops[op].op, Op::Program(_));
                if !of(*part).is_some_and(is_program) {
                    return Err(self.wrong("a program id", *part));
                }
                if of(*value).is_none() { Err(self.wrong("a value of the kernel's body", *value)) } else { Ok(()) }
            }
            Op::For { .. } | Op::Yield(_) => Ok(()),
        }
    }

    fn dot(&self, a: ValueId, b: ValueId, acc: Option<ValueId>) -> Result<(), Fault> {
        let matrix = |t: &TileType| t.rank() == 2 && t.elem.is_float();
        let (a, b) = (self.tile(a, "a matrix of floats", matrix)?, self.tile(b, "a matrix of floats", matrix)?);
        if a.elem != b.elem {
            let names = (self.kernel.elem_name(a.elem), self.kernel.elem_name(b.elem));
            return Err((Rule::Contraction, format!("element types {} and {} differ", names.0, names.1)));
        }
        if a.dims[1] != b.dims[0] {
            return Err((
                Rule::Contraction,
                format!("inner dimensions differ: ({}) and ({})", self.dims(&a.dims), self.dims(&b.dims)),
            ));
        }
        let product = TileType::new(Elem::F32, [a.dims[0].clone(), b.dims[1].clone()]);
        match acc {
            Some(acc) if *self.kernel.ty(acc) != Type::Tile(product.clone()) => {
                let wanted = self.kernel.type_text(&Type::Tile(product));
                Err((Rule::Broadcast, format!("expected an accumulator of type {wanted}, found {}", self.text(acc))))
            }
            _ => Ok(()),
        }
    }

    fn tensor(&self, param: ParamId) -> Result<(), Fault> {
        let param = &self.kernel.params[param];
        match param.kind {
            ParamKind::Tensor(_) => Ok(()),
            ParamKind::Scalar(_) => {
                Err((Rule::Direction, format!("`{}` is a scalar, which is neither loaded nor stored", param.name)))
            }
        }
    }

    /// Dimensions that positions of single elements have together.
    fn positions(&self, at: &[ValueId]) -> Result<Vec<Dim>, Fault> {
        let mut dims = Vec::new();
        for &v in at.iter().filter(|v| *self.kernel.ty(**v) != Type::Index) {
            let tile = self.tile(v, "an index or a tile of i32", |t| t.elem == Elem::I32)?;
            dims = self.broadcast(&dims, &tile.dims)?;
        }
        Ok(dims)
    }

    fn addresses(&self, at: &[At]) -> Result<(), Fault> {
        at.iter().try_for_each(|entry| match entry {
            At::Index(v) => self.index(*v),
            At::Tile(v) => self.coordinate(*v),
            At::Range { start, len } => self.const_length(start).and(self.const_length(len)),
        })
    }

    /// Checks the values that a loop carries.
    fn carried(&self, id: OpId) -> Result<(), Fault> {
        let kernel = self.kernel;
        let Op::For { axis, body, init, .. } = &kernel.ops[id].op else { return Ok(()) };
        let block = &kernel.blocks[*body];
        let fault = |message: String| Err((Rule::Carried, message));
        let Some((&coordinate, params)) = block.params.split_first() else {
            return fault(format!("{body} has no coordinate"));
        };
        let place = if kernel.axes[*axis].kind == AxisKind::Each { Type::Index } else { Type::Coord(*axis) };
        if *kernel.ty(coordinate) != place {
            let wanted = if place == Type::Index { "an index" } else { "a coordinate" };
            return fault(format!("the first parameter is {}, expected {wanted} of {axis}", self.text(coordinate)));
        }
        let yielded = match block.ops.last().map(|&op| &kernel.ops[op].op) {
            Some(Op::Yield(values)) => values,
            _ => return fault(format!("{body} yields nothing")),
        };
        for (what, values) in [("parameters", params), ("yielded values", yielded), ("results", &kernel.ops[id].results)] {
            if values.len() != init.len() {
                return fault(format!("{} initial values, but {} {what}", init.len(), values.len()));
            }
            for (&first, &value) in init.iter().zip(values) {
                if kernel.ty(first) != kernel.ty(value) {
                    return fault(format!("{what}: {} begins as {}", self.text(value), self.text(first)));
                }
            }
        }
        Ok(())
    }
}

fn constant(elem: Elem, value: f64) -> Result<(), Fault> {
    let integral = value.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value);
    match elem {
        Elem::F32 if !value.is_nan() => Ok(()),
        Elem::I32 if integral => Ok(()),
        Elem::F32 | Elem::I32 => Err((Rule::Constant, format!("{value} is no value of {}", elem.name()))),
        _ => Err((Rule::Constant, format!("a constant is f32 or i32, not {}", elem.name()))),
    }
}
