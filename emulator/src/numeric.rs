//! Arithmetic of single values as the PTX ISA states it. Values are bits of 32-bit registers.

use half::{bf16, f16};

use crate::program::{Number, Rounding, SmallFloat};

/// What arithmetic gives where there is no number.
pub(crate) const NAN: u32 = 0x7fff_ffff;

/// Bits of a result: NaN is canonical.
#[inline(always)]
pub(crate) fn bits(x: f32) -> u32 {
    if x.is_nan() { NAN } else { x.to_bits() }
}

#[inline(always)]
pub(crate) fn float(x: u32) -> f32 {
    f32::from_bits(x)
}

/// A denormal becomes zero of its sign.
#[inline(always)]
pub(crate) fn flush(x: u32) -> u32 {
    if x & 0x7f80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// `a * b + c` rounded once. The product is exact in f64; the sum is rounded to odd there, after which rounding to f32 is
/// as if done at once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let s = p + c;
    let back = s - p;
    let error = (p - (s - back)) + (c - back);
    let bits = s.to_bits();
    let inexact = error.abs() > 0.0;
    let away = (error > 0.0) == (s > 0.0);
    let nudged = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact && bits & 1 == 0 { nudged } else { bits }) as f32
}

/// The smaller one; a number wins over NaN, -0 is below +0 (PTX ISA, `min`).
#[inline(always)]
pub(crate) fn min(a: u32, b: u32) -> u32 {
    extremum(a, b, |a, b| a < b || (a == b && a.is_sign_negative()))
}

/// The larger one.
#[inline(always)]
pub(crate) fn max(a: u32, b: u32) -> u32 {
    extremum(a, b, |a, b| a > b || (a == b && a.is_sign_positive()))
}

#[inline(always)]
fn extremum(a: u32, b: u32, first: impl Fn(f32, f32) -> bool) -> u32 {
    let (x, y) = (float(a), float(b));
    let chosen = if y.is_nan() || first(x, y) { a } else { b };
    if x.is_nan() && y.is_nan() { NAN } else { chosen }
}

/// 2^x, correctly rounded but for about one result in ten thousand; `ex2.approx` may err by 2 ulp.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    const SHIFT: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer
    let x = f64::from(x);
    // NaN stays NaN in `clamp`.
    let y = x.clamp(-200.0, 200.0);
    let n = (y + SHIFT) - SHIFT;
    let t = (y - n) * std::f64::consts::LN_2;
    let mut p = 1.0 / 3_628_800.0;
    for c in [1.0 / 362_880.0, 1.0 / 40_320.0, 1.0 / 5_040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * t + c;
    }
    let scale = f64::from_bits((((n + 1023.0) as i64) as u64) << 52);
    (p * scale) as f32
}

/// 2^x with denormal arguments and results as zero (`ex2.approx.ftz`).
#[inline(always)]
pub(crate) fn exp2_flush(x: u32) -> u32 {
    flush(bits(exp2(float(flush(x)))))
}

/// log2(x), correctly rounded to within f64's own error.
pub(crate) fn log2(x: f32) -> f32 {
    f64::from(x).log2() as f32
}

/// tanh(x) rounded to 11 significant bits, the precision of `tanh.approx`: its relative error is at most 2^-11 (PTX ISA), and
/// so is that of this rounding. A GPU gives other bits within the same bound.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    const DROPPED: u32 = 24 - 11;
    let y = (f64::from(x).tanh() as f32).to_bits();
    // Ties to even; NaN stays NaN, because 1 is the largest magnitude that is rounded.
    let half = (1 << (DROPPED - 1)) - 1 + (y >> DROPPED & 1);
    if x.is_nan() { x } else { f32::from_bits((y + half) >> DROPPED << DROPPED) }
}

/// Value of an f16.
#[inline(always)]
pub(crate) fn from_f16(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    // A multiplication by 2^112 moves the exponent and normalises what is denormal.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | u32::from(h & 0x8000) << 16)
}

/// Value of a bf16.
#[inline(always)]
pub(crate) fn from_bf16(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// A float of one byte as f16, which holds every value of it; NaN is canonical (PTX ISA, `cvt`).
pub(crate) fn widen_byte(byte: u8, of: SmallFloat) -> u16 {
    let sign = u16::from(byte & 0x80) << 8;
    let (exponent, mantissa) = match of {
        SmallFloat::E4m3 => (byte >> 3 & 0xf, f32::from(byte & 7) / 8.0),
        SmallFloat::E5m2 => (byte >> 2 & 0x1f, f32::from(byte & 3) / 4.0),
    };
    let bias = if of == SmallFloat::E4m3 { 7 } else { 15 };
    match (of, exponent, mantissa) {
        (SmallFloat::E4m3, 0xf, 0.875) => 0x7fff,
        (SmallFloat::E5m2, 0x1f, 0.0) => sign | 0x7c00,
        (SmallFloat::E5m2, 0x1f, _) => 0x7fff,
        (_, 0, _) => sign | f16::from_f32(mantissa * 2f32.powi(1 - bias)).to_bits(),
        _ => sign | f16::from_f32((1.0 + mantissa) * 2f32.powi(i32::from(exponent) - bias)).to_bits(),
    }
}

/// An f32 as f16 or bf16; NaN is canonical.
pub(crate) fn narrow(x: f32, to: Number, rounding: Rounding) -> u16 {
    match (to, rounding) {
        (Number::F16, _) if x.is_nan() => 0x7fff,
        (_, _) if x.is_nan() => 0x7fff,
        (Number::F16, Rounding::Zero) => {
            let nearest = f16::from_f32(x);
            // Back by one where rounding went away from zero.
            if f32::from(nearest).abs() > x.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() }
        }
        (Number::F16, _) => f16::from_f32(x).to_bits(),
        (_, Rounding::Zero) => (x.to_bits() >> 16) as u16,
        _ => bf16::from_f32(x).to_bits(),
    }
}

/// An f32 with 10 bits of mantissa, ties away from zero (`cvt.rna.tf32.f32`).
#[inline(always)]
pub(crate) fn round_tf32(x: u32) -> u32 {
    if float(x).is_nan() {
        NAN
    } else if float(x).is_infinite() {
        x
    } else {
        x.wrapping_add(0x1000) & 0xffff_e000
    }
}

/// An f64 rounded to an integer.
pub(crate) fn round(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// The values an integer type holds, as `i128`.
pub(crate) fn integer_range(of: Number) -> Option<(i128, i128)> {
    match of {
        Number::Unsigned(n) => Some((0, (1i128 << (8 * u32::from(n))) - 1)),
        Number::Signed(n) => Some((-(1i128 << (8 * u32::from(n) - 1)), (1i128 << (8 * u32::from(n) - 1)) - 1)),
        _ => None,
    }
}

/// Value of a register that holds an integer of this type.
#[inline(always)]
pub(crate) fn integer(value: u64, of: Number) -> i128 {
    match of {
        Number::Unsigned(n) => i128::from(value & (u64::MAX >> (64 - 8 * u32::from(n)))),
        Number::Signed(n) => {
            let shift = 64 - 8 * u32::from(n);
            i128::from(((value << shift) as i64) >> shift)
        }
        _ => 0,
    }
}

/// An f32 to an integer, clamped to its type; NaN gives 0 (PTX ISA, `cvt`).
pub(crate) fn to_integer(x: f32, to: Number, rounding: Rounding) -> u32 {
    let Some((low, high)) = integer_range(to) else { return 0 };
    if x.is_nan() {
        return 0;
    }
    let rounded = round(x.into(), rounding).clamp(low as f64, high as f64) as i128;
    let value = rounded.clamp(low, high) as u32;
    match to {
        Number::Unsigned(n) | Number::Signed(n) if n < 4 => value & (u32::MAX >> (32 - 8 * u32::from(n))),
        _ => value,
    }
}

/// An f32 with a rounding of its conversion from an exact f64.
pub(crate) fn from_integer(value: i128, rounding: Rounding) -> f32 {
    let exact = value as f64; // 32-bit integers are exact in f64
    let nearest = exact as f32;
    let wrong = match rounding {
        Rounding::Nearest => false,
        Rounding::Zero => f64::from(nearest).abs() > exact.abs(),
        Rounding::Down => f64::from(nearest) > exact,
        Rounding::Up => f64::from(nearest) < exact,
    };
    match (wrong, rounding) {
        (false, _) => nearest,
        (true, Rounding::Up) => nearest.next_up(),
        (true, Rounding::Zero) if exact < 0.0 => nearest.next_up(),
        (true, _) => nearest.next_down(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_win_over_nan_and_zeros_have_signs() {
        let (zero, minus) = (0f32.to_bits(), (-0f32).to_bits());
        assert_eq!(min(zero, minus), minus);
        assert_eq!(max(minus, zero), zero);
        assert_eq!(max(NAN, 1f32.to_bits()), 1f32.to_bits());
        assert_eq!(min(1f32.to_bits(), NAN), 1f32.to_bits());
        assert_eq!(max(0x7f80_0001, 0xffc0_0000), NAN);
    }

    #[test]
    fn exponentials_are_exact_where_they_can_be() {
        for n in -149..128 {
            assert_eq!(exp2(n as f32), 2f64.powi(n) as f32, "{n}");
        }
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert!(exp2(f32::NAN).is_nan());
        assert_eq!(exp2_flush((-127f32).to_bits()), 0);
    }

    #[test]
    fn every_f16_widens_as_it_should() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (from_f16(h), f32::from(f16::from_bits(h)));
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{h:#x}");
        }
    }

    #[test]
    fn floats_of_one_byte_widen_as_their_formats_say() {
        let value = |byte, of| f16::from_bits(widen_byte(byte, of)).to_f32();
        let e4m3 = |byte| value(byte, SmallFloat::E4m3);
        assert_eq!([0x01, 0x07, 0x08, 0x38, 0x7e, 0xfe].map(e4m3), [0.001953125, 0.013671875, 0.015625, 1.0, 448.0, -448.0]);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!(widen_byte(0x80, SmallFloat::E4m3), 0x8000);
        // An e5m2 is the upper byte of an f16.
        for byte in 0..=u8::MAX {
            let (ours, same) = (widen_byte(byte, SmallFloat::E5m2), u16::from(byte) << 8);
            assert!(ours == same || f16::from_bits(ours).is_nan() && f16::from_bits(same).is_nan(), "{byte:#x}");
        }
    }

    #[test]
    fn conversions_to_integers_clamp() {
        assert_eq!(to_integer(f32::NAN, Number::Signed(4), Rounding::Zero), 0);
        assert_eq!(to_integer(3e9, Number::Signed(4), Rounding::Zero), i32::MAX as u32);
        assert_eq!(to_integer(-1.5, Number::Unsigned(4), Rounding::Zero), 0);
        assert_eq!(to_integer(2.5, Number::Signed(4), Rounding::Nearest), 2);
        assert_eq!(to_integer(-2.5, Number::Signed(4), Rounding::Down) as i32, -3);
        assert_eq!(from_integer((1 << 24) + 1, Rounding::Up), 16_777_218.0);
        assert_eq!(narrow(65_519.0, Number::F16, Rounding::Nearest), 0x7bff);
        assert_eq!(narrow(65_520.0, Number::F16, Rounding::Nearest), 0x7c00);
        assert_eq!(narrow(65_535.0, Number::F16, Rounding::Zero), 0x7bff);
    }

    proptest! {
        #[test]
        fn fma_is_rounded_once(a: u32, b: u32, c: u32) {
            let (a, b, c) = (float(a), float(b), float(c));
            prop_assert_eq!(bits(fma(a, b, c)), bits(a.mul_add(b, c)));
        }

        #[test]
        fn fma_is_rounded_once_where_it_cancels(a in -4f32..4.0, b in -4f32..4.0, e in -3i32..4) {
            let c = -(a * b) * (1.0 + e as f32 * f32::EPSILON);
            prop_assert_eq!(bits(fma(a, b, c)), bits(a.mul_add(b, c)));
        }

        #[test]
        fn exp2_errs_by_less_than_documented(x in -150f32..130.0) {
            let exact = f64::from(x).exp2();
            let ours = f64::from(exp2(x));
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            prop_assert!(!ulp.is_finite() || (ours - exact).abs() <= 0.501 * ulp, "{x}: {ours} {exact}");
        }
    }
}
