//! Loads and stores: how the entries in brackets address the dimensions of a tensor. A load with a
//! tile of positions among its entries is a gather.

use syn::punctuated::Punctuated;
use syn::{Expr, ExprCall, ExprRange, RangeLimits, Token};

use super::diagnostic::{Checked, Diagnostic};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand, SizeTree};
use super::signature::quoted;
use crate::ir::{
    At, BinaryOp, Dim, Direction, Elem, IndexOp, Kernel, Op, ParamId, SizeExpr, SizeKind, Span, TileType, Type, ValueId,
    broadcast, selected_dims,
};

/// Whether the expression is negative whatever the sizes are, which are at least 1.
fn always_negative(size: &SizeExpr) -> bool {
    let (terms, constant, _) = size.parts();
    terms.values().all(|&c| c <= 0) && terms.values().sum::<i64>() + constant < 0
}

/// The integer arithmetic that gives a value, as an index or as an `i32`.
fn arithmetic(kernel: &Kernel, v: ValueId) -> Option<(IndexOp, ValueId, ValueId)> {
    match *kernel.def(v)?.1 {
        Op::FromIndex(x) | Op::ToIndex(x) => arithmetic(kernel, x),
        Op::Index(op, a, b) => Some((op, a, b)),
        Op::Binary(op, a, b) => Some((op.row().index?, a, b)),
        _ => None,
    }
}

/// The value as arithmetic of sizes.
fn sizes_of(kernel: &Kernel, v: ValueId) -> Option<SizeTree> {
    match *kernel.def(v)?.1 {
        Op::FromIndex(x) | Op::ToIndex(x) => sizes_of(kernel, x),
        Op::IndexConst(c) => Some(SizeTree::Const(c)),
        Op::Constant(Elem::I32, c) => Some(SizeTree::Const(c as i64)),
        Op::SizeOf(size) => Some(SizeTree::Size(size)),
        _ => {
            let (op, a, b) = arithmetic(kernel, v)?;
            Some(SizeTree::Op(op, Box::new(sizes_of(kernel, a)?), Box::new(sizes_of(kernel, b)?)))
        }
    }
}

/// The `x` of an index that is written as `min(max(x, 0), N - 1)` in a dimension of N.
pub(crate) fn moved_within(kernel: &Kernel, index: ValueId, extent: &SizeExpr) -> Option<ValueId> {
    let sides = |v: ValueId, wanted: IndexOp| match arithmetic(kernel, v) {
        Some((op, a, b)) if op == wanted => Some([a, b]),
        _ => None,
    };
    let is = |v: ValueId, size: &SizeExpr| sizes_of(kernel, v).and_then(|tree| tree.to_expr()).as_ref() == Some(size);
    // The side that is not this size.
    let beside = |[a, b]: [ValueId; 2], size: &SizeExpr| match (is(a, size), is(b, size)) {
        (_, true) => Some(a),
        (true, false) => Some(b),
        (false, false) => None,
    };
    let not_below = beside(sides(index, IndexOp::Min)?, &extent.sub(&SizeExpr::constant(1)))?;
    beside(sides(not_below, IndexOp::Max)?, &SizeExpr::constant(0))
}

/// What to do about a tile that is stored to a place of another shape.
fn goes_elsewhere(tile: &[Dim], place: &[Dim]) -> &'static str {
    if tile.iter().rev().eq(place) {
        "transpose it: `.t()`"
    } else if place.is_empty() {
        "this is one place: sum the tile up first, or let `add` sum it up there, at positions \
         that are all the same, such as `[0 * pos(i) + b]`"
    } else {
        "a coordinate stores the tile of its axis, `..` the whole dimension, an index one position"
    }
}

/// How an entry addresses its dimension.
enum Entry {
    /// A place, or several that lie side by side.
    At(At),
    /// A tile of positions.
    Positions(ValueId, Span),
}

impl Entry {
    /// What a tile at places that lie side by side has for it.
    fn place(self) -> Option<At> {
        match self {
            Entry::At(place) => Some(place),
            Entry::Positions(..) => None,
        }
    }
}

impl Lowering<'_> {
    /// `load(tensor, [...])`.
    pub(super) fn load(&mut self, call: &ExprCall) -> Checked<Located> {
        let span = self.positions.of(call);
        let tensor = self.tensor(&call.args[0], "load");
        let (tensor, name) = match tensor {
            Ok(tensor) => (tensor, self.builder.kernel.params[tensor].name.clone()),
            Err(reported) => {
                self.mention(&call.args[1]);
                return Err(reported);
            }
        };
        if self.builder.kernel.tensor(tensor).direction.is_written() {
            let error = Diagnostic::new(self.positions.of(&call.args[0]), format!("`{name}` is an output and cannot be loaded"))
                .label("declared `&mut`")
                .help("keep the value in a variable, or declare another parameter as the input");
            self.mention(&call.args[1]);
            return Err(self.reporter.report(error));
        }
        let entries = self.at(tensor, &call.args[1])?;
        if entries.iter().any(|(entry, _)| matches!(entry, Entry::Positions(..))) {
            return self.gather(tensor, &entries, span);
        }
        let at: Vec<At> = entries.into_iter().filter_map(|(entry, _)| entry.place()).collect();
        let dims = selected_dims(&self.builder.kernel, &at);
        self.check_dims(&dims, self.positions.of(&call.args[1]))?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Load { tensor, at }, span)), span })
    }

    /// A load of single elements, at the positions that tiles have.
    fn gather(&mut self, tensor: ParamId, entries: &[(Entry, Span)], span: Span) -> Checked<Located> {
        let (at, _) = self.elements(entries, "a load")?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Gather { tensor, at }, span)), span })
    }

    /// Where single elements lie, at the positions that tiles have, and the dimensions that these
    /// have together.
    fn elements(&mut self, entries: &[(Entry, Span)], what: &str) -> Checked<(Vec<ValueId>, Vec<Dim>)> {
        let mut at = Vec::with_capacity(entries.len());
        let mut dims: Vec<Dim> = Vec::new();
        for (entry, of) in entries {
            let value = match entry {
                Entry::At(At::Index(v)) | Entry::Positions(v, _) => *v,
                Entry::At(At::Tile(v)) => self.emit(Op::Pos(*v), *of),
                Entry::At(At::Range { .. }) => {
                    let error = Diagnostic::new(*of, "a range beside a tile of positions")
                        .label(format!("{what} at the positions of a tile takes single elements"))
                        .help("walk the dimension in a loop over single positions, `for t in 0..N`, and address it by `t`");
                    return Err(self.reporter.report(error));
                }
            };
            if let Type::Tile(tile) = self.builder.kernel.ty(value) {
                let Some(joined) = broadcast(&dims, &tile.dims) else {
                    let tile = self.builder.kernel.type_text(&Type::Tile(tile.clone()));
                    let error = Diagnostic::new(*of, "these positions do not go together")
                        .label(format!("found {tile}"))
                        .help("tiles of positions broadcast as operands of `+` do");
                    return Err(self.reporter.report(error));
                };
                dims = joined;
            }
            at.push(value);
        }
        Ok((at, dims))
    }

    /// An `add` of single elements, to the positions that tiles have.
    fn scatter(&mut self, tensor: ParamId, entries: &[(Entry, Span)], value: Located, span: Span) -> Checked<()> {
        let (at, dims) = self.elements(entries, "an add")?;
        let (found, value_span) = (self.describe(&value.operand), value.span);
        let mut value = self.tile_or_f32(value)?;
        value = self.cast_integer_like(value, Elem::F32, value_span);
        let tile = self.builder.kernel.tile(value).clone();
        let joined = broadcast(&dims, &tile.dims).filter(|_| tile.elem.is_float());
        let Some(joined) = joined else {
            let places = self.builder.kernel.type_text(&Type::Tile(TileType::new(Elem::F32, dims)));
            let error = Diagnostic::new(value_span, "what is added does not go with the positions it goes to")
                .label(format!("found {found}, and places of {places}"))
                .help("tiles of positions and what is added broadcast as operands of `+` do; integers are widened to floats");
            return Err(self.reporter.report(error));
        };
        if tile.dims.is_empty() {
            value = self.emit(Op::Full { value, dims: joined }, value_span);
        } else if tile.dims != joined {
            let zero = self.emit(Op::Constant(Elem::F32, 0.0), value_span);
            let zeros = self.emit(Op::Full { value: zero, dims: joined }, value_span);
            value = self.emit(Op::Binary(BinaryOp::Add, zeros, value), value_span);
        }
        self.builder.span = span;
        self.builder.append(Op::Scatter { tensor, at, value });
        Ok(())
    }

    /// `store(tensor, [...], value);` or `add(tensor, [...], value);`: `word` says which.
    pub(super) fn store(&mut self, word: &str, call: &ExprCall) -> Checked<()> {
        self.check_store_arity(word, call)?;
        let span = self.positions.of(call);
        let tensor = self.tensor(&call.args[0], word);
        let value = self.expression(&call.args[2]);
        let tensor = match tensor {
            Ok(tensor) => tensor,
            Err(reported) => {
                self.mention(&call.args[1]);
                return Err(reported);
            }
        };
        let again = !self.stored.insert(tensor);
        let decl = self.builder.kernel.tensor(tensor).clone();
        if !decl.direction.is_written() {
            let name = self.builder.kernel.params[tensor].name.clone();
            let error =
                Diagnostic::new(self.positions.of(&call.args[0]), format!("`{name}` is an input and cannot be stored to"))
                    .label("declared `&`")
                    .help(format!("declare it as an output, `{name}: &mut Tensor<...>`"));
            self.mention(&call.args[1]);
            return Err(self.reporter.report(error));
        }
        if let Err(reported) = self.sums_or_stores(word, tensor, again, span) {
            self.mention(&call.args[1]);
            return Err(reported);
        }
        let at = self.at(tensor, &call.args[1]);
        let (value, entries) = (value?, at?);
        if word == "add" && entries.iter().any(|(entry, _)| matches!(entry, Entry::Positions(..))) {
            return self.scatter(tensor, &entries, value, span);
        }
        let mut at = Vec::with_capacity(entries.len());
        for (entry, _) in entries {
            match entry {
                Entry::At(place) => at.push(place),
                Entry::Positions(_, span) => {
                    let error = Diagnostic::new(span, "a store goes to no positions of a tile")
                        .label("several elements might go to one place")
                        .help("address it by a coordinate, an index or a range, or sum what goes to one place up: `add`");
                    return Err(self.reporter.report(error));
                }
            }
        }
        let dims = selected_dims(&self.builder.kernel, &at);
        self.check_dims(&dims, self.positions.of(&call.args[1]))?;
        let (found, value_span) = (self.describe(&value.operand), value.span);
        let integer = decl.elem == Elem::I32 && matches!(value.operand, Operand::Number(Number::Int(_)));
        let mut value = if integer { self.tile(value)? } else { self.tile_or_f32(value)? };
        if self.builder.kernel.tile(value).dims.is_empty() && !dims.is_empty() {
            value = self.emit(Op::Full { value, dims: dims.clone() }, value_span);
        }
        value = self.cast_integer_like(value, decl.elem, value_span);
        let tile = self.builder.kernel.tile(value).clone();
        let wanted = TileType::new(decl.elem, dims);
        let wanted_text = self.builder.kernel.type_text(&Type::Tile(wanted.clone()));
        if tile.dims != wanted.dims {
            let help = goes_elsewhere(&tile.dims, &wanted.dims);
            let error = Diagnostic::new(value_span, "the stored tile has another shape than the place it goes to")
                .label(format!("expected {wanted_text}, found {found}"));
            return Err(self.reporter.report(error.help(help)));
        }
        if tile.elem == Elem::Bool || tile.elem.is_float() != decl.elem.is_float() {
            let error = Diagnostic::new(value_span, "the stored tile has another element type than the tensor")
                .label(format!("expected {wanted_text}, found {found}"))
                .help("floats are rounded to the tensor's type, integers are widened; nothing else is converted");
            return Err(self.reporter.report(error));
        }
        self.builder.span = span;
        self.builder.append(Op::Store { tensor, at, value });
        Ok(())
    }

    /// Makes an output a sum with its first `add`. All that goes to a tensor is added, or all is
    /// stored.
    fn sums_or_stores(&mut self, word: &str, tensor: ParamId, again: bool, span: Span) -> Checked<()> {
        let kernel = &self.builder.kernel;
        let (decl, name, adds) = (kernel.tensor(tensor), kernel.params[tensor].name.clone(), word == "add");
        let (sums, elem, wrong) = (decl.direction == Direction::Sum, kernel.elem_name(decl.elem), decl.elem != Elem::F32);
        if again && sums != adds {
            let error = Diagnostic::new(span, format!("`{name}` is both stored and added to"))
                .label("what a place holds would depend on which comes first");
            return Err(self.reporter.report(error.help("use two outputs, or `add` for all of one")));
        }
        if adds && wrong {
            let error =
                Diagnostic::new(span, format!("`{name}` holds `{elem}`, and sums are of `f32`")).label("each `add` would round");
            let help = format!("declare it `{name}: &mut Tensor<f32, (..)>`, and round the sum in another kernel");
            return Err(self.reporter.report(error.help(help)));
        }
        if let (true, crate::ir::ParamKind::Tensor(decl)) = (adds, &mut self.builder.kernel.params[tensor].kind) {
            decl.direction = Direction::Sum;
        }
        Ok(())
    }

    /// The operand as a tile, a literal as an f32.
    fn tile_or_f32(&mut self, x: Located) -> Checked<ValueId> {
        match x.operand {
            Operand::Number(number) => self.tile(Located { operand: Operand::Number(Number::Float(number.as_f64())), ..x }),
            _ => self.tile(x),
        }
    }

    /// Looks at the entries of a list whose tensor has an error, so that the names in it count as used.
    fn mention(&mut self, list: &Expr) {
        if let Expr::Array(array) = list {
            for entry in array.elems.iter().filter(|e| !matches!(e, Expr::Range(_))) {
                let _reported = self.expression(entry);
            }
        }
    }

    fn tensor(&mut self, expr: &Expr, function: &str) -> Checked<ParamId> {
        let Located { operand, span } = self.expression(expr)?;
        match operand {
            Operand::Tensor(param) => Ok(param),
            other => {
                let tensors = self.builder.kernel.params.values();
                let names: Vec<_> = tensors
                    .filter(|p| matches!(p.kind, crate::ir::ParamKind::Tensor(_)))
                    .map(|p| format!("`{}`", p.name))
                    .collect();
                let error = Diagnostic::new(span, format!("`{function}` takes a tensor first"))
                    .label(format!("found {}", self.describe(&other)))
                    .help(format!("the tensors of this kernel are {}", names.join(", ")));
                Err(self.reporter.report(error))
            }
        }
    }

    /// The entries of a list, each with its place in the text.
    fn at(&mut self, tensor: ParamId, list: &Expr) -> Checked<Vec<(Entry, Span)>> {
        let name = self.builder.kernel.params[tensor].name.clone();
        let shape = self.builder.kernel.tensor(tensor).shape.clone();
        let dims: Vec<_> = shape.iter().map(|size| self.builder.kernel.size_text(size)).collect();
        let help = format!("`{name}` has the dimensions ({}): give an index, a coordinate or a range for each", dims.join(", "));
        let span = self.positions.of(list);
        let Expr::Array(array) = list else {
            let error = Diagnostic::new(span, "expected a list in brackets").label(format!("found {}", quoted(list)));
            return Err(self.reporter.report(error.help(help)));
        };
        if array.elems.len() != shape.len() {
            self.mention(list);
            let (expected, found) = (shape.len(), array.elems.len());
            let (dimensions, entries) = if expected == 1 { ("dimension", "entry") } else { ("dimensions", "entries") };
            let error = Diagnostic::new(span, format!("`{name}` has {expected} {dimensions}, but {found} are addressed"));
            return Err(self.reporter.report(error.label(format!("expected {expected} {entries}")).help(help)));
        }
        self.entries(&array.elems, &shape, &name)
    }

    fn entries(
        &mut self,
        entries: &Punctuated<Expr, Token![,]>,
        shape: &[SizeExpr],
        tensor: &str,
    ) -> Checked<Vec<(Entry, Span)>> {
        let at: Vec<_> = entries
            .iter()
            .zip(shape)
            .enumerate()
            .map(|(dimension, (entry, extent))| {
                let addressed = match entry {
                    Expr::Range(range) => self.range(range, extent).map(Entry::At),
                    other => self.entry(other, extent, tensor, dimension),
                };
                addressed.map(|addressed| (addressed, self.positions.of(entry)))
            })
            .collect();
        at.into_iter().collect()
    }

    /// An index, a coordinate or a tile of positions.
    fn entry(&mut self, entry: &Expr, extent: &SizeExpr, tensor: &str, dimension: usize) -> Checked<Entry> {
        let x = self.expression(entry)?;
        let span = x.span;
        if let Operand::Value(value) = x.operand
            && let Type::Coord(axis) = *self.builder.kernel.ty(value)
        {
            let kernel = &self.builder.kernel;
            let walked = &kernel.axes[axis].extent;
            if walked == extent {
                return Ok(Entry::At(At::Tile(value)));
            }
            let name = &kernel.axes[axis].name;
            let (walked, extent) = (kernel.size_text(walked), kernel.size_text(extent));
            let error =
                Diagnostic::new(span, format!("`{name}` walks {walked}, but dimension {dimension} of `{tensor}` is {extent}"))
                    .label(format!("expected a coordinate of tiles({extent}), found one of tiles({walked})"))
                    .help(format!("address it by a coordinate of `tiles({extent})`, an index or a range"));
            return Err(self.reporter.report(error));
        }
        let constant = match &x.operand {
            Operand::Number(Number::Int(value)) => Some(SizeExpr::constant((*value).clamp(-(1 << 30), 1 << 30))),
            Operand::Size(tree) => tree.to_expr(),
            _ => None,
        };
        if let Some(position) = constant {
            let last = extent.sub(&SizeExpr::constant(1)).sub(&position);
            if always_negative(&position) || always_negative(&last) {
                let kernel = &self.builder.kernel;
                let found = kernel.size_text(&position);
                let error = Diagnostic::new(span, format!("position {found} is outside dimension {dimension} of `{tensor}`"))
                    .label(format!("the dimension is 0 .. {}", kernel.size_text(extent)));
                return Err(self.reporter.report(error.help("positions count from 0")));
            }
        }
        if matches!(x.operand, Operand::Tensor(_)) {
            return self.tile(x).map(|_| unreachable!("a tensor is no tile"));
        }
        if let Operand::Value(value) = x.operand
            && let Type::Tile(tile) = self.builder.kernel.ty(value)
            && tile.elem == Elem::I32
            && tile.rank() > 0
        {
            return Ok(Entry::Positions(value, span));
        }
        let index = self.index(x)?;
        Ok(Entry::At(At::Index(self.within(index, extent, span))))
    }

    /// An index that no launch can check, moved into the dimension: below 0 it is the first position,
    /// beyond the end the last, as tiles of positions are.
    fn within(&mut self, index: ValueId, extent: &SizeExpr, span: Span) -> ValueId {
        let kernel = &self.builder.kernel;
        if !kernel.is_of_data(index) || moved_within(kernel, index, extent).is_some() {
            return index;
        }
        let zero = self.emit(Op::IndexConst(0), span);
        let not_below = self.emit(Op::Index(IndexOp::Max, index, zero), span);
        let last = SizeTree::of(&extent.sub(&SizeExpr::constant(1))).emit(&mut self.builder);
        self.emit(Op::Index(IndexOp::Min, not_below, last), span)
    }

    /// `..`, `a..`, `..b`, `a..b`.
    fn range(&mut self, range: &ExprRange, extent: &SizeExpr) -> Checked<At> {
        let span = self.positions.of(range);
        if let RangeLimits::Closed(token) = &range.limits {
            let error = Diagnostic::new(self.positions.of(token), "a range excludes its end").label("found `..=`");
            return Err(self.reporter.report(error.help("write `a..b`")));
        }
        let start = range.start.as_ref().map_or_else(|| Ok(SizeExpr::constant(0)), |start| self.size(start));
        let end = range.end.as_ref().map_or_else(|| Ok(extent.clone()), |end| self.size(end));
        let (start, end) = (start?, end?);
        let len = end.sub(&start);
        self.check_const(&len, span)?;
        self.check_const(&start, span)?;
        let bounds = [&start, &len, &extent.sub(&end)];
        if bounds.iter().any(|b| always_negative(b)) {
            let kernel = &self.builder.kernel;
            let (start, end, extent) = (kernel.size_text(&start), kernel.size_text(&end), kernel.size_text(extent));
            let error = Diagnostic::new(span, format!("the range {start} .. {end} is outside the dimension"))
                .label(format!("the dimension is 0 .. {extent}"))
                .help("a range lies inside its dimension and does not end before it starts");
            return Err(self.reporter.report(error));
        }
        if len.as_constant() == Some(0) {
            let error = Diagnostic::new(span, "this range is empty").help("remove the load, or widen the range");
            return Err(self.reporter.report(error));
        }
        Ok(At::Range { start, len })
    }

    /// Reports a length that is known only at launch.
    pub(super) fn check_const(&mut self, length: &SizeExpr, span: Span) -> Checked<()> {
        let kernel = &self.builder.kernel;
        let Some(size) = length.sizes().find(|&s| kernel.sizes[s].kind == SizeKind::Runtime) else { return Ok(()) };
        let name = kernel.size_name(size);
        let error = Diagnostic::new(span, format!("`{name}` is known only at launch"))
            .label("a range has a length that is known to the compiler")
            .help(format!("walk it in tiles, `for j in tiles({name})`, or declare `const {name}: usize`"));
        Err(self.reporter.report(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SizeId;

    #[test]
    fn negative_for_every_size() {
        let d = SizeExpr::size(SizeId(0));
        assert!(always_negative(&SizeExpr::constant(-1)));
        assert!(always_negative(&SizeExpr::constant(0).sub(&d)));
        assert!(!always_negative(&d.sub(&SizeExpr::constant(8))));
        assert!(!always_negative(&SizeExpr::constant(1).sub(&d)));
    }

    #[test]
    fn dims_are_compared_by_length() {
        let half = SizeExpr::size(SizeId(0)).div(2).expect("nonzero");
        assert_eq!(Dim::Range(half.clone()), Dim::Range(SizeExpr::size(SizeId(0)).sub(&half)));
    }
}
