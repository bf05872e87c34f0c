//! Element types that tensors hold, as Rust types.
//!
//! Conversions to and from bytes go through little-endian byte arrays, so no `unsafe` is needed and a big-endian host
//! would be right too.

use flashtile_dsl::ir::Elem;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A type that a tensor may hold: `f32`, [`struct@f16`], [`bf16`] or `i32`, and as an input `bool`,
/// `u8`, `i8`, [`struct@crate::f8e4m3`] or [`struct@crate::f8e5m2`].
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

/// An [`Element`] of which every bit pattern is a value: all but `bool`. Memory that holds such
/// elements may be lent for writing ([`crate::Loans::write`]): whatever is written there, the
/// lender finds values of the type.
pub trait AnyBits: Element {}

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
        impl AnyBits for $ty {}
    };
}

macro_rules! small_float {
    ($ty:ty, $elem:ident) => {
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const ELEM: Elem = Elem::$elem;
            const BYTES: usize = 1;

            fn write_bytes(self, out: &mut Vec<u8>) {
                out.push(self.to_bits());
            }
            fn read_bytes(bytes: &[u8]) -> Self {
                Self::from_bits(bytes[0])
            }
            /// The nearest value; beyond the largest number the largest number.
            fn from_f32(x: f32) -> Self {
                <$ty>::from_f32(x)
            }
            fn to_f32(self) -> f32 {
                <$ty>::to_f32(&self)
            }
        }
        impl AnyBits for $ty {}
    };
}

element!(f32, F32, 4, |x| x, |x| x);
element!(f16, F16, 2, f16::from_f32, f16::to_f32);
element!(bf16, Bf16, 2, bf16::from_f32, bf16::to_f32);
element!(i32, I32, 4, |x: f32| x as i32, |x: i32| x as f32);
element!(u8, U8, 1, |x: f32| x as u8, f32::from);
element!(i8, I8, 1, |x: f32| x as i8, f32::from);
small_float!(F8E4M3, F8E4M3);
small_float!(F8E5M2, F8E5M2);

impl sealed::Sealed for bool {}
/// A byte that is not 0 is true.
impl Element for bool {
    const ELEM: Elem = Elem::Bool;
    const BYTES: usize = 1;

    fn write_bytes(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }
    fn read_bytes(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn from_f32(x: f32) -> Self {
        x != 0.0
    }
    fn to_f32(self) -> f32 {
        u8::from(self).into()
    }
}

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
        round_trips::<i8>(&values);
        round_trips::<u8>(&[0.0, 1.0, 255.0]);
        round_trips::<F8E4M3>(&[0.0, 1.0, -2.0, 96.0, -448.0, 2f32.powi(-9)]);
        round_trips::<F8E5M2>(&[0.0, 1.0, -2.0, 96.0, -57344.0, 2f32.powi(-16)]);
        round_trips::<bool>(&[0.0, 1.0]);
        assert!(bool::read_bytes(&[128]));
    }
}
