//! Floating-point arithmetic of the interpreter, and where it rounds.

use half::{bf16, f16};

use crate::inputs::Random;
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

/// How arithmetic rounds. Implemented by [`Exact64`], [`Ir32`], [`Plain16`] and [`Scattered`]
/// alone.
pub trait Rounding: Send + Sync + Sized {
    /// The type that floats are computed in.
    type Real: Real;

    /// Rounds values that are cast or stored to `elem`, a concrete float type.
    fn round_cast(&self, elem: Elem, values: &mut [Self::Real]);

    /// Rounds the float result of an op.
    fn round_result(&self, of: Computed, values: &mut [Self::Real]);

    /// Whether a sum of the rows of a matrix that [`Rounding::round_result`] rounds takes the
    /// numbers from before.
    fn sums_before_rounding(&self) -> bool {
        false
    }
}

/// What has computed a result.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// The result has rank 2.
    pub matrix: bool,
    /// An elementwise op, with a vector among its operands.
    pub row_wise: bool,
    /// An op whose result is exact, such as a maximum: others may compare it with its operands.
    pub exact: bool,
}

impl Computed {
    /// Whether a library stores it in 16 bits.
    pub(super) fn is_stored(self) -> bool {
        self.matrix && !self.row_wise
    }
}

/// Everything in f64; casts and stores round nothing. With loops of one tile, the oracle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact64;

impl Rounding for Exact64 {
    type Real = f64;
    fn round_cast(&self, _: Elem, _: &mut [f64]) {}
    fn round_result(&self, _: Computed, _: &mut [f64]) {}
}

/// What the IR means: f32, rounded to 16 bits by casts and stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ir32;

impl Rounding for Ir32 {
    type Real = f32;
    fn round_cast(&self, elem: Elem, values: &mut [f32]) {
        round_all(elem, values);
    }
    fn round_result(&self, _: Computed, _: &mut [f32]) {}
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
    fn round_result(&self, of: Computed, values: &mut [f32]) {
        if of.is_stored() {
            round_all(self.elem, values);
        }
    }
}

/// Another computation of the same text, which rounds at random. Results of several of these say
/// how far right computations of the text lie apart, where the result of one may be near to the
/// exact one by luck.
///
/// What [`Plain16`] rounds to 16 bits is rounded up or down, with the probabilities that make the
/// mean right. Another float moves by a unit in the last place of an f32 in one case of twelve. So
/// errors of either kind have twice the variance of those of rounding to nearest. What is exact
/// stays: the result of a maximum, and numbers of few digits, such as those that arithmetic on
/// positions and counts gives. Others may compare them, round them down, or take them for an index.
#[derive(Clone, Copy, Debug)]
pub struct Scattered {
    plain: Plain16,
    seed: u64,
    sums_before_rounding: bool,
}

impl Scattered {
    /// As `plain`, with random numbers of this seed.
    pub fn new(plain: Plain16, seed: u64) -> Self {
        Self { plain, seed, sums_before_rounding: false }
    }

    /// The same, but for sums of the rows of a rounded matrix, which take the numbers from before:
    /// so `p / l` of a row of one key errs by the rounding of `p`, in place of by nothing.
    #[must_use]
    pub fn summing_before_rounding(self) -> Self {
        Self { sums_before_rounding: self.plain.elem != Elem::F32, ..self }
    }

    /// Random bits for an element of a result.
    fn bits(&self, x: f32, index: usize) -> u32 {
        let told_apart = (u64::from(x.to_bits()) << 32 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (Random(self.seed ^ told_apart).bits() >> 32) as u32
    }

    fn scatter_all(&self, elem: Elem, values: &mut [f32]) {
        for (index, x) in values.iter_mut().enumerate() {
            *x = scattered(elem, *x, self.bits(*x, index));
        }
    }
}

impl Rounding for Scattered {
    type Real = f32;
    fn round_cast(&self, elem: Elem, values: &mut [f32]) {
        if elem != Elem::F32 {
            self.scatter_all(elem, values);
        }
    }
    fn round_result(&self, of: Computed, values: &mut [f32]) {
        match of.exact {
            true => self.plain.round_result(of, values),
            false => self.scatter_all(if of.is_stored() { self.plain.elem } else { Elem::F32 }, values),
        }
    }
    fn sums_before_rounding(&self) -> bool {
        self.sums_before_rounding
    }
}

/// The last digits of an f32, which are 0 in one of 4096 numbers that were rounded, and in most
/// that were not.
const EXACT: u32 = 0xfff;

/// Rounds an f32 to an element type, away from 0 with the probability of what is cut off; an f32
/// itself moves by a unit in the last place, or does not.
fn scattered(elem: Elem, x: f32, random: u32) -> f32 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Bits of an f32 that the type does not have; of numbers below the least normal f16 more.
    let cut = match elem {
        Elem::F16 => 13 + (-14 - exponent(x)).clamp(0, 10),
        Elem::Bf16 => 16,
        _ if x.to_bits() & EXACT == 0 => return x,
        _ => {
            let by = match random % 24 {
                0 => u32::MAX,
                1 => 1,
                _ => 0,
            };
            return f32::from_bits(x.to_bits().wrapping_add(by));
        }
    };
    let below = (1u32 << cut) - 1;
    round(elem, f32::from_bits(x.to_bits().wrapping_add(random & below) & !below))
}

/// The exponent of a number other than 0.
fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 0xff) as i32 - 127
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
    fn what_is_scattered_is_rounded_up_or_down_and_right_in_the_mean() {
        for (elem, unit) in [(Elem::Bf16, 1.0 / 128.0), (Elem::F16, 1.0 / 1024.0), (Elem::F32, f32::EPSILON)] {
            for x in [1.0 + 0.3 * unit, -1.75 - 0.8 * unit, 1e-3, 3e-6, 60000.1, 0.0, 7.0, 0.125, f32::INFINITY] {
                let of = |seed| {
                    let mut values = [x];
                    let plain = Plain16 { elem };
                    let computed = Computed { matrix: true, row_wise: false, exact: false };
                    Scattered::new(plain, seed).round_result(computed, &mut values);
                    assert_eq!(values[0], round(elem, values[0]), "{elem:?} {x}");
                    f64::from(values[0])
                };
                let all: Vec<f64> = (0..4000).map(of).collect();
                let (least, most) =
                    all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &x| (least.min(x), most.max(x)));
                if [0.0, 7.0, 0.125, f32::INFINITY].contains(&x) {
                    assert_eq!((least, most), (f64::from(x), f64::from(x)));
                    continue;
                }
                // f16 has less digits below 2^-14.
                let unit = f64::from(unit) * f64::from(x).abs().max(if elem == Elem::F16 { 2f64.powi(-14) } else { 0.0 });
                assert!(
                    most - least <= 2.01 * unit && least <= f64::from(x) && f64::from(x) <= most,
                    "{elem:?} {x}: {least} {most}"
                );
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                assert!((mean - f64::from(x)).abs() < 0.06 * unit, "{elem:?} {x}: {mean}");
            }
        }
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
