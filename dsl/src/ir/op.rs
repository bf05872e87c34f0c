//! Operations. What each computes is told in the module text of [`crate::ir`].

use serde::{Deserialize, Serialize};

use super::elementwise::{BinaryOp, IndexOp, UnaryOp};
use super::entity::{AxisId, BlockId, ParamId, SizeId, ValueId};
use super::size::SizeExpr;
use super::types::{Dim, Elem};

/// Elementwise comparisons of two tiles of one element type, giving a bool tile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum CompareOp {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// Row-wise reductions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Maximum of each row.
    Max,
    /// Sum of each row.
    Sum,
}

/// What elements hold that do not exist: those that a mask hides, those beyond an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Fill {
    /// Minus infinity, which changes no maximum.
    NegInf,
    /// 0, which changes no sum.
    Zero,
}

impl Fill {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Fill::NegInf => f64::NEG_INFINITY,
            Fill::Zero => 0.0,
        }
    }

    /// What leaves a reduction as it is.
    pub fn neutral(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Max => Fill::NegInf,
            ReduceOp::Sum => Fill::Zero,
        }
    }
}

/// How one dimension of a tensor is addressed by a load or store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// One position, given by an [`super::Type::Index`] value; the dimension disappears.
    Index(ValueId),
    /// The tile at a [`super::Type::Coord`] value; gives a [`Dim::Axis`].
    Tile(ValueId),
    /// `start .. start + len`, compile-time; gives a [`Dim::Range`] of `len`.
    Range {
        /// First element.
        start: SizeExpr,
        /// Number of elements.
        len: SizeExpr,
    },
}

/// One dimension of the grid of programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramDim {
    /// One program per value of `0 .. size`; gives an index.
    Each(SizeExpr),
    /// One program per tile of the axis; gives a coordinate.
    Tiles(AxisId),
}

/// A part of the tiles of a loop: what is walked by the programs that have this index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Number of the part, below `count`: a program id.
    pub index: ValueId,
    /// Number of parts.
    pub count: u32,
}

/// An operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// The position of this program in the grid; one result per dimension. The first op of the kernel, and only there.
    Program(Vec<ProgramDim>),
    /// An integer constant. Gives an index.
    IndexConst(i64),
    /// The value of a size. Gives an index.
    SizeOf(SizeId),
    /// Integer arithmetic on indices.
    Index(IndexOp, ValueId, ValueId),
    /// A scalar constant: of element type `F32`, or `I32` if it is integral.
    Constant(Elem, f64),
    /// A scalar kernel parameter, rank 0.
    Scalar(ParamId),
    /// An index as a rank-0 `I32` tile.
    FromIndex(ValueId),
    /// A rank-0 `I32` tile (an element of a page table, say) as an index.
    ToIndex(ValueId),
    /// The positions of a tile: an `I32` tile of the one axis of the coordinate.
    Pos(ValueId),
    /// A tile filled with a scalar.
    Full {
        /// Rank-0 value.
        value: ValueId,
        /// Dimensions of the result.
        dims: Vec<Dim>,
    },
    /// Reads a tile, or a scalar if every dimension is addressed by an index.
    Load {
        /// A tensor parameter.
        tensor: ParamId,
        /// One entry per dimension of the tensor.
        at: Vec<At>,
    },
    /// The least (or largest) of each block of `block` integers along the dimension that a
    /// coordinate addresses: position `p` of its axis stands for the elements `p * block ..` of
    /// that dimension, as many as exist. The least of nothing is `i32::MAX`, the largest
    /// `i32::MIN`. Kernel text has no word for it: rewrites summarise tensors by it.
    BlockExtreme {
        /// A tensor of integers, or of truth values, which are 0 and 1.
        tensor: ParamId,
        /// One entry per dimension of the tensor: a coordinate for one, indices for the others.
        at: Vec<At>,
        /// Elements of a block.
        block: u32,
        /// Whether the largest is wanted.
        largest: bool,
    },
    /// Which elements along the dimension that a coordinate addresses are not 0: position `p` of its
    /// axis stands for the `p`-th of them, and gives four times its place plus what it is; -1 where
    /// there are no more. Kernel text has no word for it: rewrites list tiles by it.
    Nonzero {
        /// A tensor of integers from 0 to 3.
        tensor: ParamId,
        /// One entry per dimension of the tensor: a coordinate for one, indices for the others.
        at: Vec<At>,
    },
    /// An element of a tensor for each element of the result: elementwise in the tiles of positions
    /// that `at` has. A position below 0 is the first of its dimension, one beyond the end the last.
    Gather {
        /// An input.
        tensor: ParamId,
        /// One entry per dimension of the tensor: an [`super::Type::Index`], or an `I32` tile of
        /// positions, broadcast by axis name.
        at: Vec<ValueId>,
    },
    /// Writes a tile, rounding to the tensor's element type. No result.
    Store {
        /// An `&mut` tensor parameter.
        tensor: ParamId,
        /// One entry per dimension of the tensor.
        at: Vec<At>,
        /// The tile to write; its dimensions are those that `at` gives.
        value: ValueId,
    },
    /// Adds each element of a tile to an element of a tensor: elementwise in the tiles of positions
    /// that `at` has, each in the dimension's range as for a gather. Several elements may go to one
    /// place; hidden elements go nowhere. No result.
    Scatter {
        /// A sum.
        tensor: ParamId,
        /// One entry per dimension of the tensor: an [`super::Type::Index`], or an `I32` tile of
        /// positions, broadcast by axis name to the dimensions of `value`.
        at: Vec<ValueId>,
        /// The tile to add.
        value: ValueId,
    },
    /// An elementwise function.
    Unary(UnaryOp, ValueId),
    /// An elementwise function of two operands, broadcast by axis name.
    Binary(BinaryOp, ValueId, ValueId),
    /// An elementwise comparison, broadcast by axis name.
    Compare(CompareOp, ValueId, ValueId),
    /// `if cond { on_true } else { on_false }` elementwise, broadcast by axis name.
    Select {
        /// Bool tile.
        cond: ValueId,
        /// Where it holds.
        on_true: ValueId,
        /// Elsewhere.
        on_false: ValueId,
    },
    /// `x` where `keep` holds; the other elements are hidden, and hold the fill. `keep` has only
    /// dimensions of `x`.
    Mask {
        /// Float tile.
        x: ValueId,
        /// Bool tile.
        keep: ValueId,
        /// What hidden elements hold.
        fill: Fill,
    },
    /// Conversion to another element type; to 16 bits rounds to nearest even.
    Cast(Elem, ValueId),
    /// Swaps the dimensions of a rank-2 tile. Moves no data: it says how an operand is read.
    Transpose(ValueId),
    /// Matrix product `a (m, k) * b (k, n)`, plus `acc (m, n)` if given. Accumulates in f32.
    Dot {
        /// Left operand.
        a: ValueId,
        /// Right operand, of the same element type.
        b: ValueId,
        /// F32 tile to add to.
        acc: Option<ValueId>,
    },
    /// Reduces the last dimension of a rank-2 tile.
    Reduce(ReduceOp, ValueId),
    /// What `value` is in the program that is the same but for `part`, which is `at` there. It is a value of the kernel's body,
    /// which that program computes too.
    OfPart {
        /// A tile that the body defines.
        value: ValueId,
        /// A program id.
        part: ValueId,
        /// Its value in the other program, below the number of programs along that dimension.
        at: ValueId,
    },
    /// A loop over the tiles of an axis.
    For {
        /// A loop axis (or one of single positions), owned by this op.
        axis: AxisId,
        /// The part of its tiles that is walked; all if there is none.
        part: Option<Part>,
        /// Block with parameters `[coordinate or index, carried...]`, ended by a `Yield` of as many values as are carried.
        body: BlockId,
        /// Initial values of what is carried.
        init: Vec<ValueId>,
    },
    /// Ends a loop body: the carried values of the next iteration.
    Yield(Vec<ValueId>),
}

impl Op {
    /// The values this op reads, in order (a loop: its initial values, then the index of its part; not what its body reads).
    pub fn operands(&self) -> Vec<ValueId> {
        match self {
            Op::Program(_) | Op::IndexConst(_) | Op::SizeOf(_) | Op::Constant(..) | Op::Scalar(_) => vec![],
            Op::FromIndex(x)
            | Op::ToIndex(x)
            | Op::Pos(x)
            | Op::Unary(_, x)
            | Op::Cast(_, x)
            | Op::Transpose(x)
            | Op::Reduce(_, x) => vec![*x],
            Op::Index(_, a, b) | Op::Binary(_, a, b) | Op::Compare(_, a, b) => vec![*a, *b],
            Op::Full { value, .. } => vec![*value],
            Op::Load { at, .. } | Op::BlockExtreme { at, .. } | Op::Nonzero { at, .. } => at_values(at),
            Op::Gather { at, .. } => at.clone(),
            Op::Store { at, value, .. } => at_values(at).into_iter().chain([*value]).collect(),
            Op::Scatter { at, value, .. } => at.iter().chain([value]).copied().collect(),
            Op::Select { cond, on_true, on_false } => vec![*cond, *on_true, *on_false],
            Op::Mask { x, keep, .. } => vec![*x, *keep],
            Op::Dot { a, b, acc } => [*a, *b].into_iter().chain(*acc).collect(),
            Op::OfPart { value, part, at } => vec![*value, *part, *at],
            Op::For { init, part, .. } => init.iter().copied().chain(part.map(|p| p.index)).collect(),
            Op::Yield(values) => values.clone(),
        }
    }

    /// The parameter that it names.
    pub fn param_mut(&mut self) -> Option<&mut ParamId> {
        match self {
            Op::Scalar(p)
            | Op::Load { tensor: p, .. }
            | Op::BlockExtreme { tensor: p, .. }
            | Op::Nonzero { tensor: p, .. }
            | Op::Gather { tensor: p, .. }
            | Op::Store { tensor: p, .. }
            | Op::Scatter { tensor: p, .. } => Some(p),
            _ => None,
        }
    }

    /// The tensor that it writes or adds to.
    pub fn written(&self) -> Option<ParamId> {
        match self {
            Op::Store { tensor, .. } | Op::Scatter { tensor, .. } => Some(*tensor),
            _ => None,
        }
    }

    /// What it writes or adds to a tensor.
    pub fn stored(&self) -> Option<ValueId> {
        match self {
            Op::Store { value, .. } | Op::Scatter { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The same op with every operand replaced by `map` of it.
    pub fn map_operands(&self, mut map: impl FnMut(ValueId) -> ValueId) -> Self {
        let mut op = self.clone();
        match &mut op {
            Op::Program(_) | Op::IndexConst(_) | Op::SizeOf(_) | Op::Constant(..) | Op::Scalar(_) => {}
            Op::FromIndex(x)
            | Op::ToIndex(x)
            | Op::Pos(x)
            | Op::Unary(_, x)
            | Op::Cast(_, x)
            | Op::Transpose(x)
            | Op::Reduce(_, x) => *x = map(*x),
            Op::Index(_, a, b) | Op::Binary(_, a, b) | Op::Compare(_, a, b) => {
                *a = map(*a);
                *b = map(*b);
            }
            Op::Full { value, .. } => *value = map(*value),
            Op::Load { at, .. } | Op::BlockExtreme { at, .. } | Op::Nonzero { at, .. } => map_at(at, &mut map),
            Op::Gather { at, .. } => at.iter_mut().for_each(|v| *v = map(*v)),
            Op::Store { at, value, .. } => {
                map_at(at, &mut map);
                *value = map(*value);
            }
            Op::Scatter { at, value, .. } => {
                at.iter_mut().for_each(|v| *v = map(*v));
                *value = map(*value);
            }
            Op::Select { cond, on_true, on_false } => {
                *cond = map(*cond);
                *on_true = map(*on_true);
                *on_false = map(*on_false);
            }
            Op::Mask { x, keep, .. } => {
                *x = map(*x);
                *keep = map(*keep);
            }
            Op::Dot { a, b, acc } => {
                *a = map(*a);
                *b = map(*b);
                if let Some(acc) = acc {
                    *acc = map(*acc);
                }
            }
            Op::OfPart { value, part, at } => {
                *value = map(*value);
                *part = map(*part);
                *at = map(*at);
            }
            Op::For { init, part, .. } => {
                init.iter_mut().for_each(|v| *v = map(*v));
                if let Some(part) = part {
                    part.index = map(part.index);
                }
            }
            Op::Yield(values) => values.iter_mut().for_each(|v| *v = map(*v)),
        }
        op
    }

    /// Whether an element of the result depends on no more than one element of each operand, in the same place.
    pub fn is_elementwise(&self) -> bool {
        self.is_arithmetic() || matches!(self, Op::Mask { .. } | Op::Gather { .. })
    }

    /// Whether the op is elementwise and computes each element from those of its operands alone.
    pub fn is_arithmetic(&self) -> bool {
        matches!(self, Op::Unary(..) | Op::Binary(..) | Op::Compare(..) | Op::Select { .. } | Op::Cast(..))
    }

    /// The name in the text form, without attributes.
    pub fn mnemonic(&self) -> &'static str {
        match self {
            Op::Program(_) => "program",
            Op::IndexConst(_) => "index",
            Op::SizeOf(_) => "size",
            Op::Index(op, ..) => match op {
                IndexOp::Add => "index.add",
                IndexOp::Sub => "index.sub",
                IndexOp::Mul => "index.mul",
                IndexOp::Div => "index.div",
                IndexOp::Rem => "index.rem",
                IndexOp::Min => "index.min",
                IndexOp::Max => "index.max",
            },
            Op::Constant(..) => "const",
            Op::Scalar(_) => "scalar",
            Op::FromIndex(_) => "from_index",
            Op::ToIndex(_) => "to_index",
            Op::Pos(_) => "pos",
            Op::Full { .. } => "full",
            Op::Load { .. } => "load_tile",
            Op::BlockExtreme { largest: false, .. } => "block_min",
            Op::BlockExtreme { largest: true, .. } => "block_max",
            Op::Nonzero { .. } => "nonzero",
            Op::Gather { .. } => "gather",
            Op::Store { .. } => "store_tile",
            Op::Scatter { .. } => "scatter_add",
            Op::Unary(op, _) => op.row().mnemonic,
            Op::Binary(op, ..) => op.row().mnemonic,
            Op::Compare(op, ..) => match op {
                CompareOp::Eq => "cmp.eq",
                CompareOp::Ne => "cmp.ne",
                CompareOp::Lt => "cmp.lt",
                CompareOp::Le => "cmp.le",
                CompareOp::Gt => "cmp.gt",
                CompareOp::Ge => "cmp.ge",
            },
            Op::Select { .. } => "select",
            Op::Mask { fill: Fill::NegInf, .. } => "mask",
            Op::Mask { fill: Fill::Zero, .. } => "mask_zero",
            Op::Cast(..) => "cast",
            Op::Transpose(_) => "transpose",
            Op::Dot { .. } => "dot",
            Op::Reduce(ReduceOp::Max, _) => "rowmax",
            Op::Reduce(ReduceOp::Sum, _) => "rowsum",
            Op::OfPart { .. } => "of_part",
            Op::For { .. } => "for",
            Op::Yield(_) => "yield",
        }
    }
}

fn at_values(at: &[At]) -> Vec<ValueId> {
    at.iter()
        .filter_map(|a| match a {
            At::Index(v) | At::Tile(v) => Some(*v),
            At::Range { .. } => None,
        })
        .collect()
}

fn map_at(at: &mut [At], map: &mut impl FnMut(ValueId) -> ValueId) {
    for a in at {
        match a {
            At::Index(v) | At::Tile(v) => *v = map(*v),
            At::Range { .. } => {}
        }
    }
}
