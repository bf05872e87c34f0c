//! Kernels: parameters, sizes, axes, and the arenas of values, ops and blocks.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::elementwise::UnaryOp;
use super::entity::{Arena, AxisId, BlockId, OpId, ParamId, SizeId, ValueId};
use super::op::{Op, ProgramDim};
use super::size::SizeExpr;
use super::types::{Dim, Elem, TileType, Type};

/// A byte range of the kernel text. `0..0` where there is none (IR built by hand or by a rewrite).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// The text a kernel was read from, for diagnostics and `#line`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceText {
    /// File name as shown to the user; empty for IR with no text.
    pub name: String,
    /// The text that spans index.
    pub text: Arc<str>,
    /// Line of the file, from 1, on which `text` begins.
    pub first_line: u32,
}

impl SourceText {
    /// Line (in the file) and column of the start of `span`, both from 1; `None` for an empty span.
    pub fn line_column(&self, span: Span) -> Option<(u32, u32)> {
        if span == Span::default() {
            return None;
        }
        let before = self.text.get(..span.start as usize)?;
        let line = before.bytes().filter(|&b| b == b'\n').count() as u32;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() as u32;
        Some((self.first_line + line, column + 1))
    }
}

/// A named size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Size {
    /// Name in the kernel text.
    pub name: String,
    /// When it is known.
    pub kind: SizeKind,
}

/// When a size is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeKind {
    /// A dimension of the tensors given at launch.
    Runtime,
    /// A const generic, fixed by the [`Binding`].
    Const,
}

/// A tile axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Name of the coordinate in the kernel text: `i`, `j`.
    pub name: String,
    /// Number of positions that the axis walks.
    pub extent: SizeExpr,
    /// What walks it.
    pub kind: AxisKind,
}

/// What walks a tile axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisKind {
    /// The grid: one program per tile.
    Program,
    /// A `for` loop.
    Loop,
    /// A `for` loop that takes every position by itself and gives its index. No tile has such an axis.
    Each,
}

/// A kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Name in the kernel text.
    pub name: String,
    /// Tensor or scalar.
    pub kind: ParamKind,
    /// Where it is declared.
    pub span: Span,
}

/// A tensor parameter's declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorDecl {
    /// Element type.
    pub elem: Elem,
    /// Extents, outermost first; the last dimension is contiguous in memory.
    pub shape: Vec<SizeExpr>,
    /// What the kernel does with it.
    pub direction: Direction,
}

/// What two tensors say of a third one: the least and the largest integer of each block of it.
///
/// It is an assumption: a launch ahead has made them so. An analysis may skip tiles by it; the
/// meaning of a kernel does not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The tensor, an input of integers, or of truth values, which count as 0 and 1.
    pub of: ParamId,
    /// Its dimension that blocks divide.
    pub dim: usize,
    /// Elements of a block.
    pub block: u32,
    /// The least element of each block: shaped as the tensor. Place `p` of that dimension is about
    /// block `p`; places beyond the last block say nothing.
    pub least: ParamId,
    /// The largest element of each block.
    pub most: ParamId,
}

/// Which tiles of a loop its masks leave anything of, for each program: listed in ascending order.
///
/// It is an assumption: launches ahead have made the list so. Tiles that are not in it change
/// nothing, so that a compiler may walk those of the list alone; the meaning of a kernel does not
/// depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TileList {
    /// The axis of the loop.
    pub axis: AxisId,
    /// Positions of one of its tiles.
    pub block: u32,
    /// Positions of a tile of rows, where lists differ between these; else 1.
    pub rows: u32,
    /// The lists, an input of i32: a dimension for each of `dims`, and one with a place for each
    /// tile of the loop. An entry is four times the number of a tile, plus 2 where masks keep all of
    /// it and memory does not cut it, plus 1 where not. Behind the last is -1.
    pub tensor: ParamId,
    /// The dimensions of the grid that tell lists apart, by number. Of one that is tiled the list is
    /// at the number of the tile.
    pub dims: Vec<usize>,
}

/// What a kernel does with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// It is read, and nothing writes it while the kernel runs: `&` in kernel text.
    In,
    /// It is written, never read: `&mut` in kernel text.
    Out,
    /// What programs store to it is added up, from 0 on: `&mut` in kernel text, and `add` for its
    /// stores. Programs and iterations may store to the same place.
    Sum,
    /// Tiles of it are read and written back. Kernel text has no word for it: rewrites make such tensors, of what a loop carries.
    InOut,
}

impl Direction {
    /// Whether loads read it.
    pub fn is_read(self) -> bool {
        matches!(self, Direction::In | Direction::InOut)
    }

    /// Whether stores write it.
    pub fn is_written(self) -> bool {
        self != Direction::In
    }
}

/// What a parameter is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamKind {
    /// A tensor in global memory.
    Tensor(TensorDecl),
    /// A scalar passed by value: `F32` or `I32`.
    Scalar(Elem),
}

impl ParamKind {
    /// Whether it is an output: a tensor that is written.
    pub fn is_written(&self) -> bool {
        matches!(self, ParamKind::Tensor(tensor) if tensor.direction.is_written())
    }

    /// Whether it is a sum: a tensor that stores add to.
    pub fn is_sum(&self) -> bool {
        matches!(self, ParamKind::Tensor(tensor) if tensor.direction == Direction::Sum)
    }

    /// Whether it is an input: a scalar, or a tensor that is read.
    pub fn is_read(&self) -> bool {
        !matches!(self, ParamKind::Tensor(tensor) if !tensor.direction.is_read())
    }
}

/// An op with its results and place in the text.
#[derive(Clone, PartialEq, Debug)]
pub struct OpData {
    /// The operation.
    pub op: Op,
    /// Its results.
    pub results: Vec<ValueId>,
    /// Place in the kernel text.
    pub span: Span,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// Result `index` of an op.
    Result(OpId, u32),
    /// Parameter `index` of a block.
    BlockParam(BlockId, u32),
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// Its definition.
    pub def: ValueDef,
    /// Name in the kernel text, if it was bound by a `let` or assigned to a variable.
    pub name: Option<String>,
}

/// A block: parameters and ops in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockData {
    /// Parameters.
    pub params: Vec<ValueId>,
    /// Ops in order.
    pub ops: Vec<OpId>,
}

/// A kernel in IR form.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Where the name stands in the kernel text.
    pub name_span: Span,
    /// Documentation comment, without the slashes.
    pub doc: String,
    /// Names of the type parameters, indexed by [`Elem::Generic`].
    pub type_params: Vec<String>,
    /// Named sizes, const generics first, in order of appearance.
    pub sizes: Arena<SizeId, Size>,
    /// Parameters in order.
    pub params: Arena<ParamId, Param>,
    /// What is known of parameters by other parameters.
    pub summaries: Vec<Summary>,
    /// What is known of loops by parameters.
    pub lists: Vec<TileList>,
    /// Tile axes in order of definition.
    pub axes: Arena<AxisId, Axis>,
    /// Values.
    pub values: Arena<ValueId, ValueData>,
    /// Ops.
    pub ops: Arena<OpId, OpData>,
    /// Blocks.
    pub blocks: Arena<BlockId, BlockData>,
    /// The outermost block.
    pub body: BlockId,
    /// The text it came from.
    pub source: SourceText,
    /// The calls of helper functions, whose bodies are part of the kernel, in order.
    pub calls: Vec<HelperCall>,
}

/// A call of a helper function in kernel text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelperCall {
    /// Name of the helper.
    pub name: String,
    /// The helper, from its first token to its last.
    pub body: Span,
    /// The call.
    pub at: Span,
}

impl Kernel {
    /// The calls that may lead to a place in a helper, the innermost first; none of a place in the
    /// kernel itself.
    pub fn calls_to(&self, place: Span) -> Vec<&HelperCall> {
        let holds = |outer: Span, inner: Span| outer.start <= inner.start && inner.end <= outer.end;
        let (mut found, mut places): (Vec<&HelperCall>, Vec<Span>) = (Vec::new(), vec![place]);
        while let Some(place) = places.pop().filter(|&place| place != Span::default()) {
            for call in self.calls.iter().filter(|call| holds(call.body, place)) {
                if !found.iter().any(|other| other.at == call.at) {
                    found.push(call);
                    places.push(call.at);
                }
            }
        }
        found
    }

    /// Whether it adds to an output.
    pub fn has_sums(&self) -> bool {
        self.params.values().any(|param| param.kind.is_sum())
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value].ty
    }

    /// Tile type of a value that the verifier knows to be a tile.
    ///
    /// # Panics
    /// If it is not: a bug in the caller, since a verified kernel has tiles where ops want them.
    pub fn tile(&self, value: ValueId) -> &TileType {
        self.ty(value).tile().expect("verified: a tile operand")
    }

    /// The axis of the index loop that `value` is the index of.
    pub fn axis_of_index(&self, value: ValueId) -> Option<AxisId> {
        self.ops.values().find_map(|data| match data.op {
            Op::For { axis, body, .. } if self.blocks[body].params.first() == Some(&value) => Some(axis),
            _ => None,
        })
    }

    /// The op that defines `value`, unless it is a block parameter.
    pub fn def(&self, value: ValueId) -> Option<(OpId, &Op)> {
        match self.values[value].def {
            ValueDef::Result(op, _) => Some((op, &self.ops[op].op)),
            ValueDef::BlockParam(..) => None,
        }
    }

    /// Whether `found` says so of a value, or of one that it is computed from. Each value is asked
    /// once; `None` asks those that it is computed from.
    pub fn any_behind(&self, value: ValueId, found: impl Fn(ValueId) -> Option<bool>) -> bool {
        let (mut seen, mut work) = (HashSet::from([value]), vec![value]);
        while let Some(v) = work.pop() {
            match (found(v), self.def(v)) {
                (Some(true), _) => return true,
                (None, Some((_, op))) => work.extend(op.operands().into_iter().filter(|&v| seen.insert(v))),
                (Some(false), _) | (None, None) => {}
            }
        }
        false
    }

    /// Whether a value depends on what a kernel loads, or a loop carries: no launch knows it.
    pub fn is_of_data(&self, value: ValueId) -> bool {
        self.any_behind(value, |v| match self.def(v) {
            Some((_, Op::Load { .. } | Op::Gather { .. } | Op::For { .. } | Op::OfPart { .. })) => Some(true),
            Some((_, Op::Program(_))) => Some(false),
            Some(_) => None,
            None => Some(matches!(self.ty(v), Type::Tile(_))),
        })
    }

    /// Whether a value is written as minus infinity everywhere.
    pub fn is_negative_infinity(&self, value: ValueId) -> bool {
        match self.def(value) {
            Some((_, &Op::Full { value, .. } | &Op::Cast(Elem::F32, value))) => self.is_negative_infinity(value),
            Some((_, &Op::Unary(UnaryOp::Neg, x))) => matches!(self.def(x), Some((_, Op::Constant(_, x))) if *x == f64::INFINITY),
            Some((_, Op::Constant(_, x))) => *x == f64::NEG_INFINITY,
            _ => false,
        }
    }

    /// The tensor declaration of a parameter that the verifier knows to be a tensor.
    ///
    /// # Panics
    /// If it is a scalar: a bug in the caller.
    pub fn tensor(&self, param: ParamId) -> &TensorDecl {
        match &self.params[param].kind {
            ParamKind::Tensor(t) => t,
            ParamKind::Scalar(_) => panic!("verified: parameter `{}` is a tensor", self.params[param].name),
        }
    }

    /// What says the extremes of blocks of a tensor.
    pub fn summary(&self, of: ParamId, dim: usize, block: i64) -> Option<&Summary> {
        self.summaries.iter().find(|s| s.of == of && s.dim == dim && i64::from(s.block) == block)
    }

    /// The list of the tiles of a loop, where its blocks are those of `block`.
    pub fn list(&self, axis: AxisId, block: &dyn Fn(AxisId) -> i64) -> Option<&TileList> {
        let rows = |dim: &usize| match self.grid()[*dim] {
            ProgramDim::Tiles(rows) => Some(block(rows)),
            ProgramDim::Each(_) => None,
        };
        self.lists.iter().find(|list| {
            let rows = list.dims.iter().find_map(rows).unwrap_or(1);
            list.axis == axis && i64::from(list.block) == block(axis) && i64::from(list.rows) == rows
        })
    }

    /// The dimensions of the grid, outermost first. Empty if the kernel has no `program` op.
    pub fn grid(&self) -> &[ProgramDim] {
        match self.blocks[self.body].ops.first().map(|&op| &self.ops[op].op) {
            Some(Op::Program(dims)) => dims,
            _ => &[],
        }
    }

    /// Name of a size.
    pub fn size_name(&self, size: SizeId) -> &str {
        &self.sizes[size].name
    }

    /// The size of this name.
    pub fn size_named(&self, name: &str) -> Option<SizeId> {
        self.sizes.iter().find(|(_, s)| s.name == name).map(|(id, _)| id)
    }

    /// The parameter of this name.
    pub fn param_named(&self, name: &str) -> Option<ParamId> {
        self.params.iter().find(|(_, p)| p.name == name).map(|(id, _)| id)
    }

    /// Names of the outputs of a type parameter: those whose gradients are given where nobody says
    /// which are.
    pub fn generic_outputs(&self) -> impl Iterator<Item = &str> {
        let generic = |param: &&Param| {
            let of = |decl: &TensorDecl| matches!(decl.elem, Elem::Generic(_));
            param.kind.is_written() && matches!(&param.kind, ParamKind::Tensor(decl) if of(decl))
        };
        self.params.values().filter(generic).map(|param| param.name.as_str())
    }

    /// The names of the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.params.values().filter(|param| param.kind.is_written()).map(|param| param.name.as_str())
    }

    /// The tensors of floats that are written, or those that are not.
    pub fn float_tensors(&self, written: bool) -> impl Iterator<Item = ParamId> {
        let of_floats = |kind: &ParamKind| matches!(kind, ParamKind::Tensor(decl) if decl.elem.is_float());
        let fits = move |(_, param): &(ParamId, &Param)| param.kind.is_written() == written && of_floats(&param.kind);
        self.params.iter().filter(fits).map(|(id, _)| id)
    }

    /// Text of an element type, with the name of a type parameter.
    pub fn elem_name(&self, elem: Elem) -> &str {
        match elem {
            Elem::Generic(i) => self.type_params.get(i as usize).map_or("?", String::as_str),
            other => other.name(),
        }
    }

    /// Text of a size expression.
    pub fn size_text(&self, size: &SizeExpr) -> String {
        size.display(|s| self.size_name(s))
    }

    /// Text of a dimension: the name of the axis, or the length.
    pub fn dim_text(&self, dim: &Dim) -> String {
        match dim {
            Dim::Axis(a) => self.axes[*a].name.clone(),
            Dim::Range(len) => self.size_text(len),
        }
    }

    /// Text of a type: `index`, `coord<i>`, `f32`, `tile<f32, (i, D)>`.
    pub fn type_text(&self, ty: &Type) -> String {
        match ty {
            Type::Index => "index".into(),
            Type::Coord(a) => format!("coord<{}>", self.axes[*a].name),
            Type::Tile(t) if t.dims.is_empty() => self.elem_name(t.elem).into(),
            Type::Tile(t) => {
                let dims: Vec<_> = t.dims.iter().map(|d| self.dim_text(d)).collect();
                format!("tile<{}, ({})>", self.elem_name(t.elem), dims.join(", "))
            }
        }
    }

    /// All ops in program order, loop bodies included, each with the block it is in.
    pub fn walk(&self) -> Vec<(BlockId, OpId)> {
        let mut out = Vec::new();
        if !self.blocks.is_empty() {
            self.visit(self.body, &mut out);
        }
        out
    }

    /// The ops of a block, and of the loops in it.
    pub fn ops_within(&self, block: BlockId) -> Vec<OpId> {
        let mut out = Vec::new();
        self.visit(block, &mut out);
        out.into_iter().map(|(_, op)| op).collect()
    }

    /// The loop in whose body an op stands.
    pub fn loop_around(&self, op: OpId) -> Option<OpId> {
        let holds = |of: &OpId| match self.ops[*of].op {
            Op::For { body, .. } => self.blocks[body].ops.contains(&op),
            _ => false,
        };
        self.walk().into_iter().map(|(_, of)| of).find(holds)
    }

    fn visit(&self, block: BlockId, out: &mut Vec<(BlockId, OpId)>) {
        for &op in &self.blocks[block].ops {
            out.push((block, op));
            if let Op::For { body, .. } = self.ops[op].op {
                self.visit(body, out);
            }
        }
    }
}

/// What fixes a generic kernel: element types for its type parameters, values for its const sizes.
///
/// Invariant (checked by [`Binding::check`]): every type parameter and const size of the kernel is bound.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Binding {
    /// Element types by the name of the type parameter.
    pub types: BTreeMap<String, Elem>,
    /// Values by the name of the const generic.
    pub consts: BTreeMap<String, i64>,
}

impl Binding {
    /// Binds every type parameter of `kernel` to `elem`, and its const sizes by name.
    pub fn new(kernel: &Kernel, elem: Elem, consts: impl IntoIterator<Item = (impl Into<String>, i64)>) -> Self {
        Self {
            types: kernel.type_params.iter().map(|t| (t.clone(), elem)).collect(),
            consts: consts.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        }
    }

    /// Names of what `kernel` needs and the binding lacks.
    pub fn check(&self, kernel: &Kernel) -> Vec<String> {
        let types = kernel.type_params.iter().filter(|t| !self.types.contains_key(*t)).cloned();
        let sizes = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const && !self.consts.contains_key(&s.name));
        types.chain(sizes.map(|s| s.name.clone())).collect()
    }

    /// The concrete element type.
    ///
    /// # Panics
    /// If the type parameter is not bound; see [`Binding::check`].
    pub fn elem(&self, kernel: &Kernel, elem: Elem) -> Elem {
        match elem {
            Elem::Generic(i) => self.types[&kernel.type_params[i as usize]],
            other => other,
        }
    }

    /// The value of an expression over const sizes; `None` if a run-time size occurs or the division is not exact.
    pub fn size(&self, kernel: &Kernel, size: &SizeExpr) -> Option<i64> {
        size.eval(|s| self.consts.get(kernel.size_name(s)).copied())
    }
}
