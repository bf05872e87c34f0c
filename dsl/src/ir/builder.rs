//! Builds kernels op by op, inferring result types.
//!
//! The builder trusts its caller: it panics on operands that the front end or the text-form reader must have refused.
//! [`super::Kernel`]s from outside are checked by the verifier.

use super::elementwise::Operands;
use super::entity::{AxisId, BlockId, OpId, SizeId, ValueId};
use super::kernel::{Axis, AxisKind, BlockData, Kernel, OpData, Size, SizeKind, Span, ValueData, ValueDef};
use super::op::{At, Op, Part, ProgramDim};
use super::size::SizeExpr;
use super::types::{Dim, Elem, TileType, Type};

/// Appends ops to the blocks of a kernel.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The kernel so far. Its parameters, sizes and source may be filled in directly.
    pub kernel: Kernel,
    /// Span given to the next ops.
    pub span: Span,
    blocks: Vec<BlockId>,
}

impl Builder {
    /// A builder positioned in the body of an empty kernel.
    pub fn new(name: impl Into<String>) -> Self {
        let mut kernel = Kernel { name: name.into(), ..Kernel::default() };
        kernel.body = kernel.blocks.push(BlockData::default());
        let body = kernel.body;
        Self { kernel, span: Span::default(), blocks: vec![body] }
    }

    /// Adds a named size, or returns the one of that name.
    pub fn size(&mut self, name: &str, kind: SizeKind) -> SizeId {
        match self.kernel.size_named(name) {
            Some(id) => id,
            None => self.kernel.sizes.push(Size { name: name.into(), kind }),
        }
    }

    /// Adds an axis.
    pub fn axis(&mut self, name: impl Into<String>, extent: SizeExpr, kind: AxisKind) -> AxisId {
        self.kernel.axes.push(Axis { name: name.into(), extent, kind })
    }

    /// The block that ops are appended to.
    pub fn block(&self) -> BlockId {
        *self.blocks.last().expect("the kernel body is never left")
    }

    /// Appends an op with one result and returns it.
    pub fn emit(&mut self, op: Op) -> ValueId {
        let (_, results) = self.append(op);
        assert_eq!(results.len(), 1, "op has one result");
        results[0]
    }

    /// Appends an op and returns it with its results. Not for `For`: see [`Builder::begin_for`].
    pub fn append(&mut self, op: Op) -> (OpId, Vec<ValueId>) {
        let types = result_types(&self.kernel, &op);
        let block = self.block();
        let id = self.kernel.ops.push(OpData { op, results: Vec::new(), span: self.span });
        let results: Vec<_> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.kernel.values.push(ValueData { ty, def: ValueDef::Result(id, i as u32), name: None }))
            .collect();
        self.kernel.ops[id].results.clone_from(&results);
        self.kernel.blocks[block].ops.push(id);
        (id, results)
    }

    /// A builder that goes on at the end of a kernel's body.
    pub fn at_end_of(kernel: Kernel) -> Self {
        let body = kernel.body;
        Self { kernel, span: Span::default(), blocks: vec![body] }
    }

    /// How many loop bodies are open.
    pub fn depth(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Appends an op with one result to the block in which `depth` loop bodies are open: before the
    /// loop that is open in it.
    pub fn emit_at(&mut self, depth: usize, op: Op) -> ValueId {
        let inner = self.blocks.split_off(depth + 1);
        let value = self.emit(op);
        self.blocks.extend(inner);
        value
    }

    /// Opens a loop body; returns the coordinate (of an axis of single positions: the index) and the carried values, which have the types of `init`.
    pub fn begin_for(&mut self, axis: AxisId, init: &[ValueId]) -> (ValueId, Vec<ValueId>) {
        let body = self.kernel.blocks.push(BlockData::default());
        let param = |kernel: &mut Kernel, ty| {
            let index = kernel.blocks[body].params.len() as u32;
            let v = kernel.values.push(ValueData { ty, def: ValueDef::BlockParam(body, index), name: None });
            kernel.blocks[body].params.push(v);
            v
        };
        let place = match self.kernel.axes[axis].kind {
            AxisKind::Each => Type::Index,
            AxisKind::Program | AxisKind::Loop => Type::Coord(axis),
        };
        let coordinate = param(&mut self.kernel, place);
        self.kernel.values[coordinate].name = Some(self.kernel.axes[axis].name.clone());
        let carried = init
            .iter()
            .map(|&v| {
                let (ty, name) = (self.kernel.values[v].ty.clone(), self.kernel.values[v].name.clone());
                let p = param(&mut self.kernel, ty);
                self.kernel.values[p].name = name;
                p
            })
            .collect();
        self.blocks.push(body);
        (coordinate, carried)
    }

    /// Closes the loop body opened last, yielding `next`; returns the loop's results.
    pub fn end_for(&mut self, axis: AxisId, init: Vec<ValueId>, next: Vec<ValueId>) -> Vec<ValueId> {
        self.end_part(axis, None, init, next)
    }

    /// The same for a loop that walks a part of its tiles.
    pub fn end_part(&mut self, axis: AxisId, part: Option<Part>, init: Vec<ValueId>, next: Vec<ValueId>) -> Vec<ValueId> {
        self.append(Op::Yield(next));
        let body = self.blocks.pop().expect("a loop body is open");
        let names: Vec<_> = init.iter().map(|&v| self.kernel.values[v].name.clone()).collect();
        let (_, results) = self.append(Op::For { axis, part, body, init });
        for (&r, name) in results.iter().zip(names) {
            self.kernel.values[r].name = name;
        }
        results
    }

    /// Names a value after the variable it is bound to.
    pub fn name(&mut self, value: ValueId, name: impl Into<String>) -> ValueId {
        self.kernel.values[value].name = Some(name.into());
        value
    }

    /// The finished kernel.
    pub fn finish(self) -> Kernel {
        assert_eq!(self.blocks.len(), 1, "every loop is closed");
        self.kernel
    }
}

/// Dimensions of the result of an elementwise op on operands of these dimensions; `None` if they do not broadcast.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    if let ([x], [y]) = (a, b)
        && x != y
    {
        let key = |d: &Dim| match d {
            Dim::Axis(axis) => (0, axis.0),
            Dim::Range(_) => (1, 0),
        };
        return Some(if key(x) <= key(y) { vec![x.clone(), y.clone()] } else { vec![y.clone(), x.clone()] });
    }
    let (wide, narrow) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    // The narrower operand's dimensions must be a subsequence of the wider one's.
    let mut rest = wide.iter();
    narrow.iter().all(|d| rest.any(|w| w == d)).then(|| wide.to_vec())
}

/// The dimensions that `at` selects.
pub fn selected_dims(kernel: &Kernel, at: &[At]) -> Vec<Dim> {
    at.iter()
        .filter_map(|a| match a {
            At::Index(_) => None,
            At::Tile(v) => match kernel.ty(*v) {
                Type::Coord(axis) => Some(Dim::Axis(*axis)),
                other => panic!("a tile is addressed by a coordinate, not {other:?}"),
            },
            At::Range { len, .. } => Some(Dim::Range(len.clone())),
        })
        .collect()
}

/// Element type of arithmetic on `a` and `b`: floats are f32, integers i32, truth values bool.
fn arithmetic(a: Elem, b: Elem) -> Elem {
    match (a, b) {
        (Elem::Bool, Elem::Bool) => Elem::Bool,
        (Elem::I32, Elem::I32) => Elem::I32,
        _ => Elem::F32,
    }
}

/// Types of the results of `op`, whose operands are in `kernel`.
///
/// # Panics
/// On operands of the wrong kind.
pub fn result_types(kernel: &Kernel, op: &Op) -> Vec<Type> {
    let tile = |v: &ValueId| kernel.tile(*v);
    let joined = |a: &[Dim], b: &[Dim]| broadcast(a, b).expect("operands broadcast");
    let one = |t: TileType| vec![Type::Tile(t)];
    match op {
        Op::Program(dims) => dims
            .iter()
            .map(|d| match d {
                ProgramDim::Each(_) => Type::Index,
                ProgramDim::Tiles(axis) => Type::Coord(*axis),
            })
            .collect(),
        Op::IndexConst(_) | Op::SizeOf(_) | Op::Index(..) | Op::ToIndex(_) => vec![Type::Index],
        Op::Constant(elem, _) => one(TileType::scalar(*elem)),
        Op::Scalar(p) => match kernel.params[*p].kind {
            super::kernel::ParamKind::Scalar(elem) => one(TileType::scalar(elem)),
            super::kernel::ParamKind::Tensor(_) => panic!("a scalar parameter"),
        },
        Op::FromIndex(_) => one(TileType::scalar(Elem::I32)),
        Op::Pos(v) => match kernel.ty(*v) {
            Type::Coord(axis) => one(TileType::new(Elem::I32, [Dim::Axis(*axis)])),
            other => panic!("a coordinate has positions, not {other:?}"),
        },
        Op::Full { value, dims } => one(TileType::new(tile(value).elem, dims.clone())),
        Op::Load { tensor, at } => one(TileType::new(kernel.tensor(*tensor).elem.loaded(), selected_dims(kernel, at))),
        Op::Gather { tensor, at } => {
            let tiles = at.iter().filter_map(|v| kernel.ty(*v).tile());
            let dims = tiles.fold(Vec::new(), |dims, t| joined(&dims, &t.dims));
            one(TileType::new(kernel.tensor(*tensor).elem.loaded(), dims))
        }
        Op::BlockExtreme { at, .. } | Op::Nonzero { at, .. } => one(TileType::new(Elem::I32, selected_dims(kernel, at))),
        Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) => vec![],
        Op::Unary(op, x) => {
            let t = tile(x);
            one(match op.row().operand {
                Operands::Truths => t.clone(),
                _ => t.with_elem(arithmetic(t.elem, t.elem)),
            })
        }
        Op::Binary(_, a, b) => one(TileType::new(arithmetic(tile(a).elem, tile(b).elem), joined(&tile(a).dims, &tile(b).dims))),
        Op::Compare(_, a, b) => one(TileType::new(Elem::Bool, joined(&tile(a).dims, &tile(b).dims))),
        Op::Select { cond, on_true, on_false } => {
            let (t, f) = (tile(on_true), tile(on_false));
            let dims = joined(&joined(&t.dims, &f.dims), &tile(cond).dims);
            one(TileType::new(if t.elem == f.elem { t.elem } else { arithmetic(t.elem, f.elem) }, dims))
        }
        Op::Mask { x, .. } => one(tile(x).with_elem(Elem::F32)),
        Op::Cast(elem, x) => one(tile(x).with_elem(*elem)),
        Op::Transpose(x) => {
            let t = tile(x);
            one(TileType::new(t.elem, t.dims.iter().rev().cloned().collect::<Vec<_>>()))
        }
        Op::Dot { a, b, .. } => one(TileType::new(Elem::F32, [tile(a).dims[0].clone(), tile(b).dims[1].clone()])),
        Op::Reduce(_, x) => one(TileType::new(Elem::F32, [tile(x).dims[0].clone()])),
        Op::OfPart { value, .. } => one(tile(value).clone()),
        Op::For { init, .. } => init.iter().map(|&v| kernel.ty(v).clone()).collect(),
    }
}
