//! Floating-point arithmetic of the interpreter, and where it rounds.

use half::{bf16, f16};

use crate::ir::{Binding, Elem, FloatBinary, FloatUnary, Kernel, RowOperand};

/// A floating-point type that tiles are computed in.
pub trait Real:
    Copy
    + PartialOrd
    + Send
    + Sync
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// The nearest value.
    fn from_f64(x: f64) -> Self;
    /// The same value.
    fn from_f32(x: f32) -> Self;
    /// The same value.
    fn to_f64(self) -> f64;
    /// The nearest f32.
    fn to_f32(self) -> f32;
    /// The function in this precision.
    fn unary(f: FloatUnary) -> fn(Self) -> Self;
    /// The function in this precision.
    fn binary(f: FloatBinary) -> fn(RowOperand<'_, Self>, RowOperand<'_, Self>, usize, &mut Vec<Self>);
    /// Larger operand; a number wins over NaN.
    fn max(self, other: Self) -> Self;
    /// `c += a b` for row-major matrices `a (m, k)`, `b (k, n)` and `c (m, n)`.
    ///
    /// # Panics
    /// If a slice does not have exactly the elements of its matrix.
    fn matrix_product(m: usize, k: usize, n: usize, a: &[Self], b: &[Self], c: &mut [Self]);
}

macro_rules! real {
    ($t:ident, $precision:ident, $gemm:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            #[inline]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline]
            fn from_f32(x: f32) -> Self {
                x as $t
            }
            #[inline]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline]
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn unary(f: FloatUnary) -> fn(Self) -> Self {
                f.$precision
            }
            fn binary(f: FloatBinary) -> fn(RowOperand<'_, Self>, RowOperand<'_, Self>, usize, &mut Vec<Self>) {
                f.$precision
            }
            #[inline]
            fn max(self, other: Self) -> Self {
                $t::max(self, other)
            }
            fn matrix_product(m: usize, k: usize, n: usize, a: &[Self], b: &[Self], c: &mut [Self]) {
                assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "row-major matrices without gaps");
                if m == 0 || k == 0 || n == 0 {
                    return;
                }
                let (rows_a, rows_b) = (k as isize, n as isize);
                // SAFETY: the assertion above says that every element addressed by these row-major strides lies in its
                // slice; `c` is borrowed mutably, so it overlaps neither `a` nor `b`.
                unsafe {
                    $gemm(m, k, n, 1.0, a.as_ptr(), rows_a, 1, b.as_ptr(), rows_b, 1, 1.0, c.as_mut_ptr(), rows_b, 1);
                }
            }
        }
    };
}

real!(f32, single, matrixmultiply::sgemm);
real!(f64, double, matrixmultiply::dgemm);

/// Rounds an f32 to an element type, to nearest even. The identity for what is not a 16-bit float.
pub(super) fn round(elem: Elem, x: f32) -> f32 {
    match elem {
        Elem::F16 => f16::from_f32(x).to_f32(),
        Elem::Bf16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// How arithmetic rounds. Implemented by [`Exact64`], [`Ir32`] and [`Plain16`] alone.
pub trait Rounding: Send + Sync + Sized {
    /// The type that floats are computed in.
    type Real: Real;

    /// Rounds values that are cast or stored to `elem`, a concrete float type.
    fn round_cast(&self, elem: Elem, values: &mut [Self::Real]);

    /// Rounds the float result of an op. `matrix`: the result has rank 2. `row_wise`: an
    /// elementwise op with a vector among its operands computed the result.
    fn round_result(&self, matrix: bool, row_wise: bool, values: &mut [Self::Real]);
}

/// Everything in f64; casts and stores round nothing. With loops of one tile, the oracle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact64;

impl Rounding for Exact64 {
    type Real = f64;
    fn round_cast(&self, _: Elem, _: &mut [f64]) {}
    fn round_result(&self, _: bool, _: bool, _: &mut [f64]) {}
}

/// What the IR means: f32, rounded to 16 bits by casts and stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ir32;

impl Rounding for Ir32 {
    type Real = f32;
    fn round_cast(&self, elem: Elem, values: &mut [f32]) {
        round_all(elem, values);
    }
    fn round_result(&self, _: bool, _: bool, _: &mut [f32]) {}
}

/// The plain 16-bit computation of the same text: an op computes in f32 and writes its matrix in
/// the kernel's element type `T`, as a library does that runs the text op by op on 16-bit tensors.
/// Row vectors and scalars stay f32, and so does an elementwise op of a matrix with a vector (`s -
/// m`): it is a step of a row-wise function (softmax) that such a library computes in f32 and
/// rounds at its end. For attention that is: S rounded, P rounded, O rounded.
///
/// With `T = f32` it is plain f32.
#[derive(Clone, Copy, Debug)]
pub struct Plain16 {
    /// The element type that matrices are rounded to.
    pub elem: Elem,
}

impl Plain16 {
    /// Rounds to what `binding` gives the kernel's first type parameter; f32 if there is none.
    pub fn new(kernel: &Kernel, binding: &Binding) -> Self {
        let elem = kernel.type_params.first().and_then(|t| binding.types.get(t)).copied().unwrap_or(Elem::F32);
        Self { elem }
    }
}

impl Rounding for Plain16 {
    type Real = f32;
    fn round_cast(&self, elem: Elem, values: &mut [f32]) {
        round_all(elem, values);
    }
    fn round_result(&self, matrix: bool, row_wise: bool, values: &mut [f32]) {
        if matrix && !row_wise {
            round_all(self.elem, values);
        }
    }
}

fn round_all(elem: Elem, values: &mut [f32]) {
    match elem {
        Elem::F16 => values.iter_mut().for_each(|x| *x = round(Elem::F16, *x)),
        Elem::Bf16 => values.iter_mut().for_each(|x| *x = round(Elem::Bf16, *x)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_round_to_nearest_even() {
        assert_eq!(round(Elem::Bf16, 1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(round(Elem::Bf16, 1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(round(Elem::F16, 65520.0), f32::INFINITY);
        assert_eq!(round(Elem::F32, 1.0 + f32::EPSILON), 1.0 + f32::EPSILON);
    }

    #[test]
    fn a_product_adds_to_its_accumulator() {
        let mut c = [1.0f32, 1.0];
        f32::matrix_product(1, 3, 2, &[1.0, 2.0, 3.0], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &mut c);
        assert_eq!(c, [5.0, 6.0]);
        f32::matrix_product(1, 0, 2, &[], &[], &mut c);
        assert_eq!(c, [5.0, 6.0]);
    }

    #[test]
    fn a_number_wins_over_nan() {
        assert_eq!(Real::max(f32::NAN, 1.0), 1.0);
        let least = crate::ir::BinaryOp::Min.row().float.expect("of numbers");
        assert_eq!(least.of(1.0, f64::NAN), 1.0);
    }
}
