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
    /// Truth value. In memory it is a byte, which is true unless it is 0.
    Bool,
    /// 8-bit unsigned integer, in memory only: a load gives `I32`.
    U8,
    /// 8-bit signed integer, in memory only: a load gives `I32`.
    I8,
    /// OCP E4M3, in memory only: a load gives `F32`. It has NaN (`0x7f` and `0xff`) and no
    /// infinities.
    F8E4M3,
    /// OCP E5M2, in memory only: a load gives `F32`. It has infinities and NaN, as the upper byte
    /// of an f16 has.
    F8E5M2,
    /// The kernel's type parameter of this index (`T` in `fn f<T: Element>`), fixed by a [`super::Binding`].
    Generic(u32),
}

impl Elem {
    /// Every concrete element type.
    pub const ALL: [Elem; 9] =
        [Elem::F32, Elem::F16, Elem::Bf16, Elem::I32, Elem::Bool, Elem::U8, Elem::I8, Elem::F8E4M3, Elem::F8E5M2];

    /// Size in memory in bytes; `None` for an unbound type parameter.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Elem::F32 | Elem::I32 => Some(4),
            Elem::F16 | Elem::Bf16 => Some(2),
            Elem::Bool | Elem::U8 | Elem::I8 | Elem::F8E4M3 | Elem::F8E5M2 => Some(1),
            Elem::Generic(_) => None,
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
            Elem::U8 => "u8",
            Elem::I8 => "i8",
            Elem::F8E4M3 => "f8e4m3",
            Elem::F8E5M2 => "f8e5m2",
            Elem::Generic(_) => "type parameter",
        }
    }

    /// The element type of this name in kernel text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.name() == name)
    }

    /// Whether it is a floating-point type (a type parameter is: it stands for floats alone).
    pub fn is_float(self) -> bool {
        !self.is_integer() && self != Elem::Bool
    }

    /// Whether it is an integer type.
    pub fn is_integer(self) -> bool {
        matches!(self, Elem::I32 | Elem::U8 | Elem::I8)
    }

    /// What a load of such elements gives: the type itself, or a wider one that holds every value
    /// of it.
    pub fn loaded(self) -> Self {
        match self {
            Elem::U8 | Elem::I8 => Elem::I32,
            Elem::F8E4M3 | Elem::F8E5M2 => Elem::F32,
            own => own,
        }
    }

    /// Whether tensors hold it and tiles do not: a load widens it.
    pub fn is_narrow(self) -> bool {
        self.loaded() != self
    }

    /// Whether kernels may store it. Of what is one byte wide they only load.
    pub fn is_stored(self) -> bool {
        self != Elem::Bool && !self.is_narrow()
    }

    /// The least and the largest value of an integer type.
    pub fn integers(self) -> Option<[i64; 2]> {
        match self {
            Elem::I32 => Some([i32::MIN.into(), i32::MAX.into()]),
            Elem::U8 => Some([0, u8::MAX.into()]),
            Elem::I8 => Some([i8::MIN.into(), i8::MAX.into()]),
            _ => None,
        }
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
