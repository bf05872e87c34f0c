//! Types of IR values.

use serde::{Deserialize, Serialize};

use super::entity::AxisId;
use super::size::SizeExpr;

/// Element type of a tile or tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Elem {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit signed integer: positions and integer tensors.
    I32,
    /// Truth value; never in memory.
    Bool,
    /// The kernel's type parameter of this index (`T` in `fn f<T: Element>`), fixed by a [`super::Binding`].
    Generic(u32),
}

impl Elem {
    /// Size in memory in bytes; `None` for `Bool` and for an unbound type parameter.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Elem::F32 | Elem::I32 => Some(4),
            Elem::F16 | Elem::Bf16 => Some(2),
            Elem::Bool | Elem::Generic(_) => None,
        }
    }

    /// The name in kernel text, but for a type parameter.
    pub fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
            Elem::I32 => "i32",
            Elem::Bool => "bool",
            Elem::Generic(_) => "type parameter",
        }
    }

    /// The element type of this name in kernel text.
    pub fn from_name(name: &str) -> Option<Self> {
        [Elem::F32, Elem::F16, Elem::Bf16, Elem::I32, Elem::Bool].into_iter().find(|e| e.name() == name)
    }

    /// Whether it is a floating-point type (a type parameter is: `Element` is implemented by floats alone).
    pub fn is_float(self) -> bool {
        !matches!(self, Elem::I32 | Elem::Bool)
    }
}

/// One dimension of a tile.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dim {
    /// A tile axis; its length is the block size that the schedule chooses, cut at the extent.
    Axis(AxisId),
    /// A compile-time number of elements. Two ranges are the same dimension if their lengths are equal.
    Range(SizeExpr),
}

/// Element type and dimensions. Rank 0 is a scalar that is the same in the whole program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileType {
    /// Element type.
    pub elem: Elem,
    /// Dimensions, row-major: `[rows, columns]` for rank 2.
    pub dims: Vec<Dim>,
}

impl TileType {
    /// A tile type.
    pub fn new(elem: Elem, dims: impl Into<Vec<Dim>>) -> Self {
        Self { elem, dims: dims.into() }
    }

    /// A scalar type.
    pub fn scalar(elem: Elem) -> Self {
        Self { elem, dims: Vec::new() }
    }

    /// Number of dimensions, 0 to 2.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The same dimensions with another element type.
    pub fn with_elem(&self, elem: Elem) -> Self {
        Self { elem, dims: self.dims.clone() }
    }
}

/// Type of an IR value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A 64-bit integer, the same in the whole program: program ids, sizes and what is computed from them.
    Index,
    /// The coordinate of a tile along an axis.
    Coord(AxisId),
    /// A tile or scalar.
    Tile(TileType),
}

impl Type {
    /// The tile type, if it is one.
    pub fn tile(&self) -> Option<&TileType> {
        match self {
            Type::Tile(t) => Some(t),
            _ => None,
        }
    }
}
