//! The text form of a kernel, which [`super::parse_text`] reads back. `inspect --emit ir` prints it.
//!
//! ```text
//! kernel scale_rows {
//!   doc "Scales each row."
//!   type T
//!   size M runtime
//!   size D const
//!   param x: &tensor<T, (M, D)>
//!   param y: &mut tensor<T, (M, D)>
//!   axis i: program over M
//!
//!   %0: coord<i> = program tiles(i)  ; i
//!   %1: tile<T, (i, D)> = load_tile x[tile %0, 0 .. D]  ; x_i
//!   store_tile y[tile %0, 0 .. D], %1
//! }
//! ```
//!
//! One op a line: results with their types, the op with its attributes and operands, and after `;` the names of the
//! results, `_` for none. A loop holds its body, whose first line names the parameters. Axes that share a name are told
//! apart by their number (`j.2`). Spans and the source are not printed.

use std::fmt::{self, Write};

use super::entity::{AxisId, BlockId, Entity, OpId, ParamId, SizeId, ValueId};
use super::kernel::{AxisKind, Direction, Kernel, ParamKind, SizeKind};
use super::op::{At, Op, ProgramDim};
use super::size::SizeExpr;
use super::types::{Dim, Elem, Type};

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printer = Printer { kernel: self, out: String::new() };
        printer.kernel()?;
        f.write_str(&printer.out)
    }
}

/// The text-form name of an axis: its own if no other axis and no size has it, else with its number.
pub(super) fn axis_name(kernel: &Kernel, axis: AxisId) -> String {
    let Some(data) = kernel.axes.get(axis) else { return axis.to_string() };
    let shared = kernel.axes.iter().any(|(id, other)| id != axis && other.name == data.name);
    if shared || kernel.size_named(&data.name).is_some() { format!("{}.{}", data.name, axis.index()) } else { data.name.clone() }
}

struct Printer<'k> {
    kernel: &'k Kernel,
    out: String,
}

impl Printer<'_> {
    fn kernel(&mut self) -> fmt::Result {
        let kernel = self.kernel;
        writeln!(self.out, "kernel {} {{", kernel.name)?;
        if !kernel.doc.is_empty() {
            writeln!(self.out, "  doc {:?}", kernel.doc)?;
        }
        for name in &kernel.type_params {
            writeln!(self.out, "  type {name}")?;
        }
        for size in kernel.sizes.values() {
            let kind = match size.kind {
                SizeKind::Runtime => "runtime",
                SizeKind::Const => "const",
            };
            writeln!(self.out, "  size {} {kind}", size.name)?;
        }
        for param in kernel.params.values() {
            match &param.kind {
                ParamKind::Scalar(elem) => writeln!(self.out, "  param {}: {}", param.name, self.elem(*elem))?,
                ParamKind::Tensor(tensor) => {
                    let reference = match tensor.direction {
                        Direction::In => "&",
                        Direction::Out => "&mut ",
                        Direction::Sum => "&sum ",
                        Direction::InOut => "&inout ",
                    };
                    let shape: Vec<_> = tensor.shape.iter().map(|s| self.size(s)).collect();
                    let elem = self.elem(tensor.elem);
                    writeln!(self.out, "  param {}: {reference}tensor<{elem}, ({})>", param.name, shape.join(", "))?;
                }
            }
        }
        for summary in &kernel.summaries {
            let [of, least, most] = [summary.of, summary.least, summary.most].map(|param| self.param(param));
            writeln!(self.out, "  summary {of}: {least}, {most} of blocks of {} along {}", summary.block, summary.dim)?;
        }
        for (id, axis) in kernel.axes.iter() {
            let kind = match axis.kind {
                AxisKind::Program => "program",
                AxisKind::Loop => "loop",
                AxisKind::Each => "each",
            };
            writeln!(self.out, "  axis {}: {kind} over {}", axis_name(kernel, id), self.size(&axis.extent))?;
        }
        for list in &kernel.lists {
            let (axis, tensor) = (axis_name(kernel, list.axis), self.param(list.tensor));
            let dims: Vec<String> = list.dims.iter().map(ToString::to_string).collect();
            let at = if dims.is_empty() { String::new() } else { format!(" at {}", dims.join(", ")) };
            writeln!(self.out, "  list {axis}: tiles of {} in {tensor} for {} rows{at}", list.block, list.rows)?;
        }

        self.out.push('\n');
        self.block(kernel.body, 1)?;
        self.out.push_str("}\n");
        Ok(())
    }

    fn block(&mut self, block: BlockId, depth: usize) -> fmt::Result {
        let kernel = self.kernel;
        let Some(data) = kernel.blocks.get(block) else {
            return writeln!(self.out, "{:1$}{block} does not exist", "", 2 * depth);
        };
        for &op in &data.ops {
            self.op(op, depth)?;
        }
        Ok(())
    }

    fn op(&mut self, id: OpId, depth: usize) -> fmt::Result {
        let kernel = self.kernel;
        let Some(data) = kernel.ops.get(id) else {
            return writeln!(self.out, "{:1$}{id} does not exist", "", 2 * depth);
        };
        let mut line = self.typed(&data.results);
        if !line.is_empty() {
            line.push_str(" = ");
        }
        line.push_str(data.op.mnemonic());
        let rest = self.rest(&data.op);
        if !rest.is_empty() {
            line.push(' ');
            line.push_str(&rest);
        }
        let names = self.names(&data.results);
        match data.op {
            Op::For { body, .. } => {
                writeln!(self.out, "{:1$}{line} {{{names}", "", 2 * depth)?;
                if let Some(block) = kernel.blocks.get(body) {
                    let (typed, names) = (self.typed(&block.params), self.names(&block.params));
                    writeln!(self.out, "{:1$}params {typed}{names}", "", 2 * depth + 2)?;
                }
                self.block(body, depth + 1)?;
                writeln!(self.out, "{:1$}}}", "", 2 * depth)
            }
            _ => writeln!(self.out, "{:1$}{line}{names}", "", 2 * depth),
        }
    }

    /// Attributes and operands.
    fn rest(&self, op: &Op) -> String {
        match op {
            Op::Program(dims) => {
                let dims = dims.iter().map(|dim| match dim {
                    ProgramDim::Each(size) => self.size(size),
                    ProgramDim::Tiles(axis) => format!("tiles({})", axis_name(self.kernel, *axis)),
                });
                dims.collect::<Vec<_>>().join(", ")
            }
            Op::IndexConst(value) => value.to_string(),
            Op::SizeOf(size) => self.size_name(*size),
            Op::Constant(elem, value) => format!("{} {value:?}", self.elem(*elem)),
            Op::Scalar(param) => self.param(*param),
            Op::Full { value, dims } => format!("({}), {value}", self.dims(dims)),
            Op::Load { tensor, at } | Op::Nonzero { tensor, at } => format!("{}[{}]", self.param(*tensor), self.at(at)),
            Op::Gather { tensor, at } => format!("{}[{}]", self.param(*tensor), values(at)),
            Op::BlockExtreme { tensor, at, block, .. } => format!("{}[{}] of {block}", self.param(*tensor), self.at(at)),
            Op::Store { tensor, at, value } => format!("{}[{}], {value}", self.param(*tensor), self.at(at)),
            Op::Scatter { tensor, at, value } => format!("{}[{}], {value}", self.param(*tensor), values(at)),
            Op::Cast(elem, x) => format!("{}, {x}", self.elem(*elem)),
            Op::Dot { a, b, acc: Some(acc) } => format!("{a}, {b}, acc {acc}"),
            Op::For { axis, part, init, .. } => {
                let part = part.map_or(String::new(), |p| format!("part {} of {} ", p.index, p.count));
                format!("{} {part}({})", axis_name(self.kernel, *axis), values(init))
            }
            other => values(&other.operands()),
        }
    }

    fn at(&self, at: &[At]) -> String {
        let entries = at.iter().map(|entry| match entry {
            At::Index(v) => v.to_string(),
            At::Tile(v) => format!("tile {v}"),
            At::Range { start, len } => format!("{} .. {}", self.size(start), self.size(&start.add(len))),
        });
        entries.collect::<Vec<_>>().join(", ")
    }

    /// Values with their types.
    fn typed(&self, values: &[ValueId]) -> String {
        let typed = values.iter().map(|&v| match self.kernel.values.get(v) {
            Some(data) => format!("{v}: {}", self.ty(&data.ty)),
            None => format!("{v}: ?"),
        });
        typed.collect::<Vec<_>>().join(", ")
    }

    /// The names of values, with the semicolon; nothing if none has one.
    fn names(&self, values: &[ValueId]) -> String {
        let name = |v: &ValueId| self.kernel.values.get(*v).and_then(|data| data.name.as_deref());
        if values.iter().all(|v| name(v).is_none()) {
            return String::new();
        }
        let names: Vec<_> = values.iter().map(|v| name(v).map_or("_".into(), quoted)).collect();
        format!("  ; {}", names.join(", "))
    }

    fn ty(&self, ty: &Type) -> String {
        match ty {
            Type::Index => "index".into(),
            Type::Coord(axis) => format!("coord<{}>", axis_name(self.kernel, *axis)),
            Type::Tile(tile) if tile.dims.is_empty() => self.elem(tile.elem),
            Type::Tile(tile) => format!("tile<{}, ({})>", self.elem(tile.elem), self.dims(&tile.dims)),
        }
    }

    fn dims(&self, dims: &[Dim]) -> String {
        let dims = dims.iter().map(|dim| match dim {
            Dim::Axis(axis) => axis_name(self.kernel, *axis),
            Dim::Range(len) => self.size(len),
        });
        dims.collect::<Vec<_>>().join(", ")
    }

    fn elem(&self, elem: Elem) -> String {
        self.kernel.elem_name(elem).to_owned()
    }

    fn param(&self, param: ParamId) -> String {
        self.kernel.params.get(param).map_or_else(|| param.to_string(), |data| data.name.clone())
    }

    fn size_name(&self, size: SizeId) -> String {
        self.kernel.sizes.get(size).map_or_else(|| size.to_string(), |data| data.name.clone())
    }

    fn size(&self, size: &SizeExpr) -> String {
        size.display(|s| self.kernel.sizes.get(s).map_or("?", |data| &data.name))
    }
}

fn values(values: &[ValueId]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A name as it is where the reader takes it for one, else in quotes.
fn quoted(name: &str) -> String {
    let mut chars = name.chars();
    let plain = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_') && chars.all(|c| c.is_alphanumeric() || c == '_');
    if plain && name != "_" { name.to_owned() } else { format!("{name:?}") }
}
