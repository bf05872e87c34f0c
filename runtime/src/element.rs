//! Element types that tensors hold, as Rust types.
//!
//! Conversions to and from bytes go through little-endian byte arrays, so no `unsafe` is needed and a big-endian host
//! would be right too.

use flashtile_dsl::ir::Elem;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A type that a tensor may hold: `f32`, [`struct@f16`], [`bf16`] or `i32`.
///
/// ```
/// use flashtile::{Element, bf16};
/// assert_eq!(bf16::ELEM.name(), "bf16");
/// assert_eq!(bf16::from_f32(1.0).to_f32(), 1.0);
/// ```
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The element type of the tile IR.
    const ELEM: Elem;
    /// Size in memory in bytes.
    const BYTES: usize;

    /// Appends the little-endian bytes of `self`.
    fn write_bytes(self, out: &mut Vec<u8>);
    /// The value of these `BYTES` little-endian bytes.
    fn read_bytes(bytes: &[u8]) -> Self;
    /// The value nearest to `x`.
    fn from_f32(x: f32) -> Self;
    /// The value as f32 (an integer beyond 2^24 is rounded).
    fn to_f32(self) -> f32;
}

macro_rules! element {
    ($ty:ty, $elem:ident, $bytes:literal, $from:expr, $to:expr) => {
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const ELEM: Elem = Elem::$elem;
            const BYTES: usize = $bytes;

            fn write_bytes(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn read_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many bytes as the element has"))
            }
            fn from_f32(x: f32) -> Self {
                ($from)(x)
            }
            fn to_f32(self) -> f32 {
                ($to)(self)
            }
        }
    };
}

element!(f32, F32, 4, |x| x, |x| x);
element!(f16, F16, 2, f16::from_f32, f16::to_f32);
element!(bf16, Bf16, 2, bf16::from_f32, bf16::to_f32);
element!(i32, I32, 4, |x: f32| x as i32, |x: i32| x as f32);

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trips<T: Element>(values: &[f32]) {
        let mut bytes = Vec::new();
        values.iter().for_each(|&x| T::from_f32(x).write_bytes(&mut bytes));
        assert_eq!(bytes.len(), values.len() * T::BYTES);
        let back: Vec<f32> = bytes.chunks(T::BYTES).map(|b| T::read_bytes(b).to_f32()).collect();
        assert_eq!(back, values);
        assert_eq!(T::ELEM.bytes(), Some(T::BYTES));
    }

    #[test]
    fn every_element_type_round_trips_through_bytes() {
        let values = [0.0, 1.0, -2.0, 96.0];
        round_trips::<f32>(&values);
        round_trips::<f16>(&values);
        round_trips::<bf16>(&values);
        round_trips::<i32>(&values);
    }
}
