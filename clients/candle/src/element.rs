//! Element types of candle and of flashtile.

use candle_core::DType;
use flashtile::Elem;

/// Calls a body with the Rust type of an element type that both libraries have, else another body.
macro_rules! with_element {
    ($elem:expr, $ty:ident => $body:expr, else $other:expr) => {
        match $elem {
            flashtile::Elem::F32 => {
                type $ty = f32;
                $body
            }
            flashtile::Elem::F16 => {
                type $ty = flashtile::f16;
                $body
            }
            flashtile::Elem::Bf16 => {
                type $ty = flashtile::bf16;
                $body
            }
            flashtile::Elem::I32 => {
                type $ty = i32;
                $body
            }
            flashtile::Elem::U8 => {
                type $ty = u8;
                $body
            }
            flashtile::Elem::F8E4M3 => {
                type $ty = flashtile::f8e4m3;
                $body
            }
            _ => $other,
        }
    };
}
pub(crate) use with_element;

/// The element type of flashtile; `None` for a type that kernels do not have.
pub(crate) fn elem(dtype: DType) -> Option<Elem> {
    match dtype {
        DType::F32 => Some(Elem::F32),
        DType::F16 => Some(Elem::F16),
        DType::BF16 => Some(Elem::Bf16),
        DType::I32 => Some(Elem::I32),
        DType::U8 => Some(Elem::U8),
        DType::F8E4M3 => Some(Elem::F8E4M3),
        _ => None,
    }
}
