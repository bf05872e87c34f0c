//! Closed-form integer expressions over what is the same in a whole program: program ids, tile coordinates and sizes.

use crate::ir::{SizeExpr, ValueId};

/// An integer expression. Divisions are by positive constants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexExpr {
    /// A constant.
    Const(i64),
    /// A size expression.
    Size(SizeExpr),
    /// The value of an [`crate::ir::Type::Index`] value.
    Index(ValueId),
    /// The number (not the position) of the tile at an [`crate::ir::Type::Coord`] value.
    Tile(ValueId),
    /// Sum.
    Add(Box<IndexExpr>, Box<IndexExpr>),
    /// Difference.
    Sub(Box<IndexExpr>, Box<IndexExpr>),
    /// Product with a constant.
    Mul(Box<IndexExpr>, i64),
    /// Quotient rounded towards negative infinity.
    FloorDiv(Box<IndexExpr>, i64),
    /// Quotient rounded towards positive infinity.
    CeilDiv(Box<IndexExpr>, i64),
    /// Minimum.
    Min(Box<IndexExpr>, Box<IndexExpr>),
    /// Maximum.
    Max(Box<IndexExpr>, Box<IndexExpr>),
}
