//! The numbers of a call, and how large they may be.

use crate::ir::ParamId;

/// The largest size, extent of an axis, and number of programs of a launch.
///
/// Generated code counts positions in 32 bits. A padded tile and copies that run ahead address
/// positions beyond the extent, by less than 2^16.
pub const MAX_SIZE: i64 = (1 << 31) - (1 << 16);

/// Sizes and scalars of a call.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// All sizes, by [`crate::ir::SizeId`].
    pub sizes: &'a [i64],
    /// The i32 scalars, by [`ParamId`].
    pub scalar: &'a dyn Fn(ParamId) -> i32,
}
