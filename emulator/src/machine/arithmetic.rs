//! Instructions that only touch registers, over the lanes of a warp.

use half::{bf16, f16};

use super::state::{FULL, Warp};
use crate::numeric::{self, bits, float, flush};
use crate::program::{Binary, Comparable, Compare, Logic, Number, Op, PairOp, Shift, Ternary, Unary, Wide};

impl Warp {
    #[inline(always)]
    fn map1(&mut self, mask: u32, d: u32, a: u32, f: impl Fn(u32) -> u32) {
        let x = self.words[a as usize];
        put(&mut self.words[d as usize], mask, |l| f(x[l]));
    }

    #[inline(always)]
    fn map2(&mut self, mask: u32, d: u32, a: u32, b: u32, f: impl Fn(u32, u32) -> u32) {
        let (x, y) = (self.words[a as usize], self.words[b as usize]);
        put(&mut self.words[d as usize], mask, |l| f(x[l], y[l]));
    }

    #[inline(always)]
    fn map3(&mut self, mask: u32, d: u32, a: u32, b: u32, c: u32, f: impl Fn(u32, u32, u32) -> u32) {
        let (x, y, z) = (self.words[a as usize], self.words[b as usize], self.words[c as usize]);
        put(&mut self.words[d as usize], mask, |l| f(x[l], y[l], z[l]));
    }

    #[inline(always)]
    fn float1(&mut self, mask: u32, d: u32, a: u32, f: impl Fn(f32) -> f32) {
        self.map1(mask, d, a, |x| bits(f(float(x))));
    }

    #[inline(always)]
    fn float2(&mut self, mask: u32, flushed: bool, d: u32, a: u32, b: u32, f: impl Fn(f32, f32) -> f32) {
        if flushed {
            self.map2(mask, d, a, b, |x, y| flush(bits(f(float(flush(x)), float(flush(y))))));
        } else {
            self.map2(mask, d, a, b, |x, y| bits(f(float(x), float(y))));
        }
    }

    #[inline(always)]
    fn wide2(&mut self, mask: u32, d: u32, a: u32, b: u32, f: impl Fn(u64, u64) -> u64) {
        let (x, y) = (self.doubles[a as usize], self.doubles[b as usize]);
        put(&mut self.doubles[d as usize], mask, |l| f(x[l], y[l]));
    }

    /// Sets a predicate of the lanes in a mask.
    #[inline(always)]
    pub fn set_predicate(&mut self, mask: u32, p: u32, value: u32) {
        let old = &mut self.predicates[p as usize];
        *old = *old & !mask | value & mask;
    }

    /// Executes an instruction that only touches registers; whether it is one.
    pub fn arithmetic(&mut self, op: &Op, mask: u32) -> bool {
        match *op {
            Op::Nop => {}
            Op::Move { d, a } => self.map1(mask, d, a, |x| x),
            Op::MoveWide { dx, ax } => {
                let x = self.doubles[ax as usize];
                put(&mut self.doubles[dx as usize], mask, |l| x[l]);
            }
            Op::MovePredicate { dp, ap } => self.set_predicate(mask, dp, self.predicates[ap as usize]),
            Op::SetPredicate { dp, value } => self.set_predicate(mask, dp, if value { FULL } else { 0 }),
            Op::Unary { op, d, a } => self.unary(op, mask, d, a),
            Op::Binary { op, flush, d, a, b } => self.binary(op, flush, mask, d, a, b),
            Op::Ternary { op, flush, d, a, b, c } => self.ternary(op, flush, mask, [d, a, b, c]),
            Op::Insert { d, a, b, c, length } => {
                let n = self.words[length as usize];
                let (x, y, z) = (self.words[a as usize], self.words[b as usize], self.words[c as usize]);
                put(&mut self.words[d as usize], mask, |l| insert(x[l], y[l], z[l], n[l]));
            }
            Op::InsertWide { dx, ax, bx, c, length } => {
                let (at, n) = (self.words[c as usize], self.words[length as usize]);
                let (x, y) = (self.doubles[ax as usize], self.doubles[bx as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| insert_wide(x[l], y[l], at[l], n[l]));
            }
            Op::DoubleOfInteger { dx, ax, signed } => {
                let of = |x: u64| if signed { x as i64 as f64 } else { x as f64 };
                self.wide2(mask, dx, ax, ax, |x, _| of(x).to_bits());
            }
            Op::FloatOfDouble { d, ax } => {
                let x = self.doubles[ax as usize];
                put(&mut self.words[d as usize], mask, |l| bits(f64::from_bits(x[l]) as f32));
            }
            Op::Logic3 { d, a, b, c, table } => self.map3(mask, d, a, b, c, |a, b, c| logic3(a, b, c, table)),
            Op::Wide { op, dx, ax, bx } => self.wide(op, mask, dx, ax, bx),
            Op::WideNot { dx, ax } => self.wide2(mask, dx, ax, ax, |x, _| !x),
            Op::WideNegate { dx, ax } => self.wide2(mask, dx, ax, ax, |x, _| x.wrapping_neg()),
            Op::Shift { op, dx, ax, b } => {
                let (x, n) = (self.doubles[ax as usize], self.words[b as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| match op {
                    Shift::Left => x[l].checked_shl(n[l]).unwrap_or(0),
                    Shift::RightUnsigned => x[l].checked_shr(n[l]).unwrap_or(0),
                    Shift::RightSigned => ((x[l] as i64) >> n[l].min(63)) as u64,
                });
            }
            Op::WideMultiplyAdd { dx, ax, bx, cx } => {
                let (x, y, z) = (self.doubles[ax as usize], self.doubles[bx as usize], self.doubles[cx as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| x[l].wrapping_mul(y[l]).wrapping_add(z[l]));
            }
            Op::MultiplyWide { dx, a, b, cx, signed } => {
                let (x, y) = (self.words[a as usize], self.words[b as usize]);
                let z = cx.map_or([0; 32], |c| self.doubles[c as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| {
                    let product = if signed {
                        (i64::from(x[l] as i32) * i64::from(y[l] as i32)) as u64
                    } else {
                        u64::from(x[l]) * u64::from(y[l])
                    };
                    product.wrapping_add(z[l])
                });
            }
            Op::MultiplyHalves { d, a, b, signed: true } => {
                self.map2(mask, d, a, b, |x, y| (i32::from(x as i16) * i32::from(y as i16)) as u32);
            }
            Op::MultiplyHalves { d, a, b, signed: false } => self.map2(mask, d, a, b, |x, y| (x & 0xffff) * (y & 0xffff)),
            Op::SetP { compare, of, dp, complement, a, b, with } => {
                let plain = self.compare(compare, of, a, b);
                let (result, inverse) = match with {
                    None => (plain, !plain),
                    Some((logic, p, negated)) => {
                        let other = self.predicates[p as usize] ^ if negated { FULL } else { 0 };
                        (combine(logic, plain, other), combine(logic, !plain, other))
                    }
                };
                self.set_predicate(mask, dp, result);
                if let Some(q) = complement {
                    self.set_predicate(mask, q, inverse);
                }
            }
            Op::Set { compare, of, d, a, b, float } => {
                let result = self.compare(compare, of, a, b);
                let one = if float { 1f32.to_bits() } else { u32::MAX };
                put(&mut self.words[d as usize], mask, |l| if result >> l & 1 != 0 { one } else { 0 });
            }
            Op::Select { d, a, b, p } => {
                let chosen = self.predicates[p as usize];
                let (x, y) = (self.words[a as usize], self.words[b as usize]);
                put(&mut self.words[d as usize], mask, |l| if chosen >> l & 1 != 0 { x[l] } else { y[l] });
            }
            Op::SelectWide { dx, ax, bx, p } => {
                let chosen = self.predicates[p as usize];
                let (x, y) = (self.doubles[ax as usize], self.doubles[bx as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| if chosen >> l & 1 != 0 { x[l] } else { y[l] });
            }
            Op::PredicateLogic { op, dp, ap, bp } => {
                self.set_predicate(mask, dp, combine(op, self.predicates[ap as usize], self.predicates[bp as usize]));
            }
            Op::PredicateNot { dp, ap } => self.set_predicate(mask, dp, !self.predicates[ap as usize]),
            Op::Convert { .. }
            | Op::ConvertIntegerWide { .. }
            | Op::Pack { .. }
            | Op::WidenPair { .. }
            | Op::RoundTf32 { .. } => self.convert(op, mask),
            Op::PairArithmetic { of, op, d, a, b, c } => self.map3(mask, d, a, b, c, |x, y, z| pair(of, op, x, y, z)),
            Op::JoinHalves { d, a, b } => self.map2(mask, d, a, b, |x, y| x & 0xffff | y << 16),
            Op::SplitHalves { d: [low, high], a } => {
                let x = self.words[a as usize];
                if low != u32::MAX {
                    put(&mut self.words[low as usize], mask, |l| x[l] & 0xffff);
                }
                if high != u32::MAX {
                    put(&mut self.words[high as usize], mask, |l| x[l] >> 16);
                }
            }
            Op::JoinWords { dx, a, b } => {
                let (x, y) = (self.words[a as usize], self.words[b as usize]);
                put(&mut self.doubles[dx as usize], mask, |l| u64::from(x[l]) | u64::from(y[l]) << 32);
            }
            Op::SplitWords { d: [low, high], ax } => {
                let x = self.doubles[ax as usize];
                if low != u32::MAX {
                    put(&mut self.words[low as usize], mask, |l| x[l] as u32);
                }
                if high != u32::MAX {
                    put(&mut self.words[high as usize], mask, |l| (x[l] >> 32) as u32);
                }
            }
            Op::Window { dx, ax, base, to } => {
                let base = if to { base.wrapping_neg() } else { base };
                self.wide2(mask, dx, ax, ax, |x, _| x.wrapping_add(base));
            }
            Op::ActiveMask { d } => put(&mut self.words[d as usize], mask, |_| mask),
            _ => return false,
        }
        true
    }

    fn unary(&mut self, op: Unary, mask: u32, d: u32, a: u32) {
        match op {
            Unary::Not => self.map1(mask, d, a, |x| !x),
            Unary::NotHalf => self.map1(mask, d, a, |x| !x & 0xffff),
            Unary::NegateHalf => self.map1(mask, d, a, |x| x.wrapping_neg() & 0xffff),
            Unary::AbsoluteHalf => self.map1(mask, d, a, |x| u32::from((x as i16).unsigned_abs())),
            Unary::Negate => self.map1(mask, d, a, u32::wrapping_neg),
            Unary::Absolute => self.map1(mask, d, a, |x| (x as i32).wrapping_abs() as u32),
            Unary::CountBits => self.map1(mask, d, a, u32::count_ones),
            Unary::LeadingZeros => self.map1(mask, d, a, u32::leading_zeros),
            Unary::TopBit => self.map1(mask, d, a, |x| x.checked_ilog2().unwrap_or(u32::MAX)),
            Unary::ShiftToTop => self.map1(mask, d, a, |x| x.checked_ilog2().map_or(u32::MAX, |bit| 31 - bit)),
            Unary::Reverse => self.map1(mask, d, a, u32::reverse_bits),
            Unary::FloatNegate => self.map1(mask, d, a, |x| if float(x).is_nan() { numeric::NAN } else { x ^ 0x8000_0000 }),
            Unary::FloatAbsolute => self.map1(mask, d, a, |x| if float(x).is_nan() { numeric::NAN } else { x & 0x7fff_ffff }),
            Unary::Reciprocal => self.float1(mask, d, a, |x| 1.0 / x),
            Unary::ReciprocalFlush => self.map1(mask, d, a, |x| flush(bits(1.0 / float(flush(x))))),
            Unary::SquareRoot => self.float1(mask, d, a, f32::sqrt),
            Unary::ReciprocalRoot => self.float1(mask, d, a, |x| (1.0 / f64::from(x).sqrt()) as f32),
            Unary::Exp2 => self.float1(mask, d, a, numeric::exp2),
            Unary::Exp2Flush => self.map1(mask, d, a, numeric::exp2_flush),
            Unary::Log2 => self.float1(mask, d, a, numeric::log2),
            Unary::Log2Flush => self.map1(mask, d, a, |x| bits(numeric::log2(float(flush(x))))),
            Unary::Tanh => self.float1(mask, d, a, numeric::tanh),
            Unary::Sine => self.float1(mask, d, a, |x| f64::from(x).sin() as f32),
            Unary::Cosine => self.float1(mask, d, a, |x| f64::from(x).cos() as f32),
        }
    }

    fn binary(&mut self, op: Binary, ftz: bool, m: u32, d: u32, a: u32, b: u32) {
        match op {
            Binary::Add => self.map2(m, d, a, b, u32::wrapping_add),
            Binary::Subtract => self.map2(m, d, a, b, u32::wrapping_sub),
            Binary::Multiply => self.map2(m, d, a, b, u32::wrapping_mul),
            Binary::MultiplyHighUnsigned => self.map2(m, d, a, b, |x, y| ((u64::from(x) * u64::from(y)) >> 32) as u32),
            Binary::MultiplyHighSigned => {
                self.map2(m, d, a, b, |x, y| ((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32);
            }
            // Division by zero has no defined result; all bits set is what GPUs give.
            Binary::DivideUnsigned => self.map2(m, d, a, b, |x, y| x.checked_div(y).unwrap_or(u32::MAX)),
            Binary::DivideSigned => {
                self.map2(m, d, a, b, |x, y| if y == 0 { u32::MAX } else { (x as i32).wrapping_div(y as i32) as u32 });
            }
            Binary::RemainderUnsigned => self.map2(m, d, a, b, |x, y| x.checked_rem(y).unwrap_or(x)),
            Binary::RemainderSigned => {
                self.map2(m, d, a, b, |x, y| if y == 0 { x } else { (x as i32).wrapping_rem(y as i32) as u32 })
            }
            Binary::MinUnsigned => self.map2(m, d, a, b, u32::min),
            Binary::MinSigned => self.map2(m, d, a, b, |x, y| (x as i32).min(y as i32) as u32),
            Binary::MaxUnsigned => self.map2(m, d, a, b, u32::max),
            Binary::MaxSigned => self.map2(m, d, a, b, |x, y| (x as i32).max(y as i32) as u32),
            Binary::And => self.map2(m, d, a, b, |x, y| x & y),
            Binary::Or => self.map2(m, d, a, b, |x, y| x | y),
            Binary::Xor => self.map2(m, d, a, b, |x, y| x ^ y),
            // Shift amounts above the width act as the width.
            Binary::ShiftLeft => self.map2(m, d, a, b, |x, n| if n < 32 { x << n } else { 0 }),
            Binary::ShiftRightUnsigned => self.map2(m, d, a, b, |x, n| if n < 32 { x >> n } else { 0 }),
            Binary::ShiftRightSigned => self.map2(m, d, a, b, |x, n| ((x as i32) >> n.min(31)) as u32),
            Binary::AddHalf => self.map2(m, d, a, b, |x, y| x.wrapping_add(y) & 0xffff),
            Binary::SubtractHalf => self.map2(m, d, a, b, |x, y| x.wrapping_sub(y) & 0xffff),
            Binary::MultiplyHighHalf => self.map2(m, d, a, b, |x, y| ((x & 0xffff) * (y & 0xffff)) >> 16),
            Binary::MultiplyHalf => self.map2(m, d, a, b, |x, y| x.wrapping_mul(y) & 0xffff),
            Binary::ShiftLeftHalf => self.map2(m, d, a, b, |x, n| if n < 16 { (x << n) & 0xffff } else { 0 }),
            Binary::ShiftRightSignedHalf => self.map2(m, d, a, b, |x, n| half(signed_half(x) >> n.min(15))),
            Binary::DivideSignedHalf => {
                self.map2(m, d, a, b, |x, y| half(signed_half(x).checked_div(signed_half(y)).unwrap_or(-1)));
            }
            Binary::RemainderSignedHalf => {
                self.map2(m, d, a, b, |x, y| half(signed_half(x).checked_rem(signed_half(y)).unwrap_or(signed_half(x))));
            }
            Binary::MinSignedHalf => self.map2(m, d, a, b, |x, y| half(signed_half(x).min(signed_half(y)))),
            Binary::MaxSignedHalf => self.map2(m, d, a, b, |x, y| half(signed_half(x).max(signed_half(y)))),
            Binary::FloatAdd => self.float2(m, ftz, d, a, b, |x, y| x + y),
            Binary::FloatSubtract => self.float2(m, ftz, d, a, b, |x, y| x - y),
            Binary::FloatMultiply => self.float2(m, ftz, d, a, b, |x, y| x * y),
            Binary::FloatDivide => self.float2(m, ftz, d, a, b, |x, y| x / y),
            Binary::FloatMin => self.map2(m, d, a, b, numeric::min),
            Binary::FloatMax => self.map2(m, d, a, b, numeric::max),
            Binary::FloatMinNan => {
                self.map2(
                    m,
                    d,
                    a,
                    b,
                    |x, y| if float(x).is_nan() || float(y).is_nan() { numeric::NAN } else { numeric::min(x, y) },
                );
            }
            Binary::FloatMaxNan => {
                self.map2(
                    m,
                    d,
                    a,
                    b,
                    |x, y| if float(x).is_nan() || float(y).is_nan() { numeric::NAN } else { numeric::max(x, y) },
                );
            }
            Binary::CopySign => self.map2(m, d, a, b, |x, y| x & 0x8000_0000 | y & 0x7fff_ffff),
        }
    }

    fn ternary(&mut self, op: Ternary, ftz: bool, m: u32, [d, a, b, c]: [u32; 4]) {
        match op {
            Ternary::MultiplyAdd => self.map3(m, d, a, b, c, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
            Ternary::MultiplyAddHalf => self.map3(m, d, a, b, c, |x, y, z| x.wrapping_mul(y).wrapping_add(z) & 0xffff),
            Ternary::FloatMultiplyAdd if ftz => {
                self.map3(m, d, a, b, c, |x, y, z| flush(bits(numeric::fma(float(flush(x)), float(flush(y)), float(flush(z))))));
            }
            Ternary::FloatMultiplyAdd => self.map3(m, d, a, b, c, |x, y, z| bits(numeric::fma(float(x), float(y), float(z)))),
            Ternary::FloatMultiplyAddSaturated => self.map3(m, d, a, b, c, |x, y, z| {
                let sum = numeric::fma(float(x), float(y), float(z));
                // NaN is clamped to 0, as is -0.
                if sum > 0.0 { sum.min(1.0).to_bits() } else { 0 }
            }),
            Ternary::Permute => self.map3(m, d, a, b, c, permute),
            Ternary::FunnelLeft => {
                self.map3(m, d, a, b, c, |low, high, n| (((u64::from(high) << 32 | u64::from(low)) << (n & 31)) >> 32) as u32);
            }
            Ternary::FunnelRight => {
                self.map3(m, d, a, b, c, |low, high, n| ((u64::from(high) << 32 | u64::from(low)) >> (n & 31)) as u32);
            }
            Ternary::ExtractUnsigned => self.map3(m, d, a, b, c, |x, at, n| extract(x, at, n, false)),
            Ternary::ExtractSigned => self.map3(m, d, a, b, c, |x, at, n| extract(x, at, n, true)),
        }
    }

    fn wide(&mut self, op: Wide, m: u32, d: u32, a: u32, b: u32) {
        match op {
            Wide::Add => self.wide2(m, d, a, b, u64::wrapping_add),
            Wide::Subtract => self.wide2(m, d, a, b, u64::wrapping_sub),
            Wide::Multiply => self.wide2(m, d, a, b, u64::wrapping_mul),
            Wide::MultiplyHighUnsigned => self.wide2(m, d, a, b, |x, y| ((u128::from(x) * u128::from(y)) >> 64) as u64),
            Wide::MultiplyHighSigned => {
                self.wide2(m, d, a, b, |x, y| ((i128::from(x as i64) * i128::from(y as i64)) >> 64) as u64);
            }
            Wide::DivideUnsigned => self.wide2(m, d, a, b, |x, y| x.checked_div(y).unwrap_or(u64::MAX)),
            Wide::DivideSigned => {
                self.wide2(m, d, a, b, |x, y| if y == 0 { u64::MAX } else { (x as i64).wrapping_div(y as i64) as u64 });
            }
            Wide::RemainderUnsigned => self.wide2(m, d, a, b, |x, y| x.checked_rem(y).unwrap_or(x)),
            Wide::RemainderSigned => {
                self.wide2(m, d, a, b, |x, y| if y == 0 { x } else { (x as i64).wrapping_rem(y as i64) as u64 })
            }
            Wide::MinUnsigned => self.wide2(m, d, a, b, u64::min),
            Wide::MinSigned => self.wide2(m, d, a, b, |x, y| (x as i64).min(y as i64) as u64),
            Wide::MaxUnsigned => self.wide2(m, d, a, b, u64::max),
            Wide::MaxSigned => self.wide2(m, d, a, b, |x, y| (x as i64).max(y as i64) as u64),
            Wide::And => self.wide2(m, d, a, b, |x, y| x & y),
            Wide::Or => self.wide2(m, d, a, b, |x, y| x | y),
            Wide::Xor => self.wide2(m, d, a, b, |x, y| x ^ y),
            Wide::FloatMultiply => self.wide2(m, d, a, b, |x, y| (f64::from_bits(x) * f64::from_bits(y)).to_bits()),
        }
    }

    /// The lanes where a comparison holds.
    fn compare(&self, compare: Compare, of: Comparable, a: u32, b: u32) -> u32 {
        let words = || (&self.words[a as usize], &self.words[b as usize]);
        let doubles = || (&self.doubles[a as usize], &self.doubles[b as usize]);
        match of {
            Comparable::Unsigned => holds(compare, words(), |x| x),
            Comparable::Signed => holds(compare, words(), |x| x as i32),
            Comparable::SignedHalf => holds(compare, words(), |x| x as i16),
            Comparable::UnsignedWide => holds(compare, doubles(), |x| x),
            Comparable::SignedWide => holds(compare, doubles(), |x| x as i64),
            Comparable::Float => {
                let numbers = self.numbers(a, b);
                holds(compare, words(), float) & numbers
            }
            Comparable::FloatUnordered => {
                let numbers = self.numbers(a, b);
                holds(compare, words(), float) & numbers | !numbers
            }
            Comparable::FloatNumbers => self.numbers(a, b),
            Comparable::FloatNan => !self.numbers(a, b),
        }
    }

    fn numbers(&self, a: u32, b: u32) -> u32 {
        let (x, y) = (&self.words[a as usize], &self.words[b as usize]);
        mask_of(|l| !float(x[l]).is_nan() && !float(y[l]).is_nan())
    }

    fn convert(&mut self, op: &Op, mask: u32) {
        match *op {
            Op::RoundTf32 { d, a } => self.map1(mask, d, a, numeric::round_tf32),
            Op::WidenPair { of, d, a } => self.map1(mask, d, a, |x| {
                let one = |byte: u32| u32::from(numeric::widen_byte(byte as u8, of));
                one(x) | one(x >> 8) << 16
            }),
            Op::Pack { to, d, a, b, relu } => {
                let one = |x: u32| {
                    let h = numeric::narrow(float(x), to, crate::program::Rounding::Nearest);
                    let negative = h & 0x8000 != 0 && float(x) <= 0.0;
                    u32::from(if relu && negative { 0 } else { h })
                };
                match to {
                    Number::Bf16 if !relu => self.map2(mask, d, a, b, |x, y| bf16_bits(x) << 16 | bf16_bits(y)),
                    _ => self.map2(mask, d, a, b, |x, y| one(x) << 16 | one(y)),
                }
            }
            Op::ConvertIntegerWide { to, from, saturate, d, a, from_double } => {
                let value = |x: u64| {
                    let value = numeric::integer(x, from);
                    match numeric::integer_range(to) {
                        Some((low, high)) if saturate => value.clamp(low, high) as u64,
                        _ => value as u64,
                    }
                };
                let to_wide = matches!(to, Number::Unsigned(8) | Number::Signed(8));
                let source: [u64; 32] =
                    if from_double { self.doubles[a as usize] } else { self.words[a as usize].map(u64::from) };
                if to_wide {
                    put(&mut self.doubles[d as usize], mask, |l| value(source[l]));
                } else {
                    let cut = match to {
                        Number::Unsigned(n) | Number::Signed(n) => u32::MAX >> (32 - 8 * u32::from(n.min(4))),
                        _ => u32::MAX,
                    };
                    put(&mut self.words[d as usize], mask, |l| value(source[l]) as u32 & cut);
                }
            }
            Op::Convert { to, from, rounding, integral, saturate, flush: ftz, d, a } => self.map1(mask, d, a, |x| {
                let source = match from {
                    Number::F32 => Ok(float(if ftz { flush(x) } else { x })),
                    Number::F16 => Ok(numeric::from_f16(x as u16)),
                    Number::Bf16 => Ok(numeric::from_bf16(x as u16)),
                    integer => Err(numeric::integer(x.into(), integer)),
                };
                match (source, to) {
                    (Ok(value), Number::F32) => {
                        let value = if integral { numeric::round(value.into(), rounding) as f32 } else { value };
                        let value = if saturate { if value > 0.0 { value.min(1.0) } else { 0.0 } } else { value };
                        bits(value)
                    }
                    (Ok(value), Number::F16 | Number::Bf16) => {
                        let value = if saturate { if value > 0.0 { value.min(1.0) } else { 0.0 } } else { value };
                        numeric::narrow(value, to, rounding).into()
                    }
                    (Ok(value), to) => numeric::to_integer(value, to, rounding),
                    (Err(value), Number::F32) => bits(numeric::from_integer(value, rounding)),
                    (Err(value), Number::F16 | Number::Bf16) => {
                        numeric::narrow(numeric::from_integer(value, rounding), to, rounding).into()
                    }
                    (Err(value), to) => {
                        let value = match numeric::integer_range(to) {
                            Some((low, high)) if saturate => value.clamp(low, high),
                            _ => value,
                        };
                        // A narrow result is extended to its register as its type says.
                        match to {
                            Number::Unsigned(n) => value as u32 & (u32::MAX >> (32 - 8 * u32::from(n.min(4)))),
                            _ => numeric::integer(value as u64, to) as u32,
                        }
                    }
                }
            }),
            _ => {}
        }
    }
}

/// Writes the lanes of a mask.
#[inline(always)]
pub(crate) fn put<T: Copy>(row: &mut [T; 32], mask: u32, f: impl Fn(usize) -> T) {
    if mask == FULL {
        for (l, to) in row.iter_mut().enumerate() {
            *to = f(l);
        }
    } else {
        for (l, to) in row.iter_mut().enumerate() {
            if mask >> l & 1 != 0 {
                *to = f(l);
            }
        }
    }
}

#[inline(always)]
fn mask_of(f: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for l in 0..32 {
        mask |= u32::from(f(l)) << l;
    }
    mask
}

#[inline(always)]
fn holds<T: Copy, U: PartialOrd>(compare: Compare, (x, y): (&[T; 32], &[T; 32]), of: impl Fn(T) -> U) -> u32 {
    match compare {
        Compare::Equal => mask_of(|l| of(x[l]) == of(y[l])),
        Compare::NotEqual => mask_of(|l| of(x[l]) != of(y[l])),
        Compare::Less => mask_of(|l| of(x[l]) < of(y[l])),
        Compare::LessEqual => mask_of(|l| of(x[l]) <= of(y[l])),
        Compare::Greater => mask_of(|l| of(x[l]) > of(y[l])),
        Compare::GreaterEqual => mask_of(|l| of(x[l]) >= of(y[l])),
    }
}

fn combine(logic: Logic, a: u32, b: u32) -> u32 {
    match logic {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

/// `bf16::from_f32` without branches.
#[inline(always)]
fn bf16_bits(x: u32) -> u32 {
    let rounded = x.wrapping_add(0x7fff + (x >> 16 & 1)) >> 16;
    if float(x).is_nan() { 0x7fff } else { rounded }
}

fn insert(a: u32, b: u32, at: u32, length: u32) -> u32 {
    let (at, length) = (at & 0xff, length & 0xff);
    if at >= 32 || length == 0 {
        return b;
    }
    let field = if length >= 32 { u32::MAX } else { (1 << length) - 1 } << at;
    b & !field | (a << at) & field
}

fn insert_wide(a: u64, b: u64, at: u32, length: u32) -> u64 {
    let (at, length) = (at & 0xff, length & 0xff);
    if at >= 64 || length == 0 {
        return b;
    }
    let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 } << at;
    b & !field | (a << at) & field
}

fn extract(x: u32, at: u32, length: u32, signed: bool) -> u32 {
    let (at, length) = (at & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let sign = if signed { x >> (at + length - 1).min(31) & 1 } else { 0 };
    let field = if length >= 32 { u32::MAX } else { (1 << length) - 1 };
    let shifted = if at >= 32 { 0 } else { x >> at };
    let valid = if at >= 32 { 0 } else { field & u32::MAX >> at };
    (shifted & field) | if sign == 1 { !valid } else { 0 }
}

fn logic3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    (0..8u32).filter(|i| table >> i & 1 != 0).fold(0, |all, i| {
        let pick = |x: u32, bit: u32| if i >> bit & 1 != 0 { x } else { !x };
        all | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

/// `prmt.b32`: each nibble of the selector names a byte of b:a, its top bit asks for the byte's sign instead.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|n| {
        let nibble = selector >> (4 * n) & 0xf;
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    }))
}

/// One operation on both halves of packed pairs, each rounded once.
fn pair(of: Number, op: PairOp, a: u32, b: u32, c: u32) -> u32 {
    let one = |a: u16, b: u16, c: u16| -> u16 {
        let value = |h: u16| if of == Number::F16 { f64::from(f16::from_bits(h)) } else { f64::from(bf16::from_bits(h)) };
        let (x, y, z) = (value(a), value(b), value(c));
        let result = match op {
            PairOp::Add => x + y,
            PairOp::Subtract => x - y,
            PairOp::Multiply => x * y,
            PairOp::MultiplyAdd => x * y + z,
            PairOp::Min => return if y.is_nan() || x < y || (x == y && x.is_sign_negative()) { a } else { b },
            PairOp::Max => return if y.is_nan() || x > y || (x == y && x.is_sign_positive()) { a } else { b },
        };
        if result.is_nan() {
            0x7fff
        } else if of == Number::F16 {
            f16::from_f64(result).to_bits()
        } else {
            bf16::from_f64(result).to_bits()
        }
    };
    let (low, high) = (one(a as u16, b as u16, c as u16), one((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16));
    u32::from(low) | u32::from(high) << 16
}

/// The lower half of a word, as a signed integer of 32 bits.
fn signed_half(x: u32) -> i32 {
    i32::from(x as u16 as i16)
}

/// A number in the lower half of a word.
fn half(x: i32) -> u32 {
    x as u32 & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_move_as_the_isa_says() {
        assert_eq!(permute(0x3322_1100, 0x7766_5544, 0x7610), 0x7766_1100);
        assert_eq!(permute(0x8000_0000, 0, 0x000b), 0x0000_00ff);
        assert_eq!(insert(0b101, 0xffff_ffff, 4, 3), 0xffff_ffdf);
        assert_eq!(insert(1, 7, 40, 3), 7);
        assert_eq!(extract(0xf0, 4, 4, false), 0xf);
        assert_eq!(extract(0xf0, 4, 4, true), 0xffff_ffff);
        assert_eq!(extract(0x8000_0000, 28, 8, true), 0xffff_fff8);
        assert_eq!(logic3(0xf0, 0xcc, 0xaa, 0b1000_0000), 0x80);
        assert_eq!(logic3(0xff00, 0x0ff0, 0x5555, 0x96), 0xff00 ^ 0x0ff0 ^ 0x5555);
        assert_eq!(bf16_bits(1.003_906_3f32.to_bits()), u32::from(bf16::from_f32(1.003_906_3).to_bits()));
    }

    #[test]
    fn pairs_are_two_numbers() {
        let two = |x: f32, y: f32| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(y).to_bits()) << 16;
        assert_eq!(pair(Number::F16, PairOp::Add, two(1.0, 2.0), two(0.5, -2.0), 0), two(1.5, 0.0));
        assert_eq!(pair(Number::F16, PairOp::MultiplyAdd, two(3.0, 2.0), two(2.0, 2.0), two(1.0, -4.0)), two(7.0, 0.0));
    }
}
