//! `mma.sync`: fragments in registers, and their product (PTX ISA, "Matrix Fragments for mma.m16n8k8, .m16n8k16").
//!
//! Products of elements are exact. The sum of an element of d with its k products is taken in f64, in order of k, and
//! rounded to f32 once: as if exact, but for sums that lose more than 29 bits to cancellation. Tensor cores truncate what
//! they align, by no more than a few units of the largest term's last place.

use super::state::{Block, FULL, Warp};
use crate::numeric::{bits, float, from_bf16, from_f16};
use crate::program::{Factor, Mma};

/// Element of a packed pair, by its format.
#[inline(always)]
pub(crate) fn element(of: Factor, half: u16) -> f32 {
    match of {
        Factor::F16 => from_f16(half),
        Factor::Bf16 | Factor::Tf32 => from_bf16(half),
    }
}

/// Row and column of element `e` of register pair `r` in an A fragment of 16-bit elements, in lane `lane`: 16 rows, `r` runs
/// over four (m16k16) or two (m16k8) registers.
#[inline(always)]
pub(crate) fn a_place(lane: usize, r: usize, e: usize) -> (usize, usize) {
    (lane / 4 + 8 * (r % 2), 2 * (lane % 4) + e + 8 * (r / 2))
}

/// Row (k) and column (n) of element `e` of register `r` in a B fragment of 16-bit elements.
#[inline(always)]
pub(crate) fn b_place(lane: usize, r: usize, e: usize) -> (usize, usize) {
    (2 * (lane % 4) + e + 8 * r, lane / 4)
}

/// Row and column of register `r` of an accumulator fragment of 8 columns.
#[inline(always)]
pub(crate) fn c_place(lane: usize, r: usize) -> (usize, usize) {
    (lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2)
}

/// A's and B's elements of an `mma.sync`: 16 x k and k x 8.
fn operands(warp: &Warp, mma: &Mma) -> ([[f32; 16]; 16], [[f64; 8]; 16]) {
    let (mut a, mut b) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    if mma.factor == Factor::Tf32 {
        // 32-bit elements: the low 13 bits are not looked at.
        let value = |x: u32| float(x & 0xffff_e000);
        for lane in 0..32 {
            for r in 0..usize::from(mma.k) / 2 {
                a[lane / 4 + 8 * (r % 2)][lane % 4 + 4 * (r / 2)] = value(warp.words[mma.a[r] as usize][lane]);
            }
            for r in 0..usize::from(mma.k) / 4 {
                b[lane % 4 + 4 * r][lane / 4] = value(warp.words[mma.b[r] as usize][lane]).into();
            }
        }
        return (a, b);
    }
    for r in 0..usize::from(mma.k) / 4 {
        let row = &warp.words[mma.a[r] as usize];
        for (lane, pair) in row.iter().enumerate() {
            let (i, j) = a_place(lane, r, 0);
            a[i][j] = element(mma.factor, *pair as u16);
            a[i][j + 1] = element(mma.factor, (*pair >> 16) as u16);
        }
    }
    for r in 0..usize::from(mma.k) / 8 {
        let row = &warp.words[mma.b[r] as usize];
        for (lane, pair) in row.iter().enumerate() {
            let (i, j) = b_place(lane, r, 0);
            b[i][j] = element(mma.factor, *pair as u16).into();
            b[i + 1][j] = element(mma.factor, (*pair >> 16) as u16).into();
        }
    }
    (a, b)
}

impl Block<'_> {
    pub(super) fn mma(&mut self, warp: &mut Warp, mma: &Mma, mask: u32, pc: u32) {
        self.whole(warp, mask, pc);
        let (a, b) = operands(warp, mma);
        let mut sums = [[0f64; 8]; 16];
        for r in 0..4 {
            for (lane, x) in warp.words[mma.c[r] as usize].iter().enumerate() {
                let (i, j) = c_place(lane, r);
                sums[i][j] = float(*x).into();
            }
        }
        for (row, sum) in a.iter().zip(&mut sums) {
            multiply(&row[..mma.k.into()], &b, sum);
        }
        for r in 0..4 {
            let d = &mut warp.words[mma.d[r] as usize];
            for (lane, x) in d.iter_mut().enumerate().filter(|(lane, _)| mask == FULL || mask >> lane & 1 != 0) {
                let (i, j) = c_place(lane, r);
                *x = bits(sums[i][j] as f32);
            }
        }
    }
}

/// Adds a row's products.
#[inline(always)]
fn multiply(a: &[f32], b: &[[f64; 8]; 16], sum: &mut [f64; 8]) {
    for (&x, row) in a.iter().zip(b) {
        let x = f64::from(x);
        for (s, &y) in sum.iter_mut().zip(row) {
            *s += x * y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures "MMA .m16n8k16 fragment layout" of the PTX ISA: first and last lanes.
    #[test]
    fn fragments_are_those_of_the_isa() {
        // a0,a1: row groupID, a2,a3: row groupID + 8, a4,a5: columns + 8.
        assert_eq!(a_place(0, 0, 0), (0, 0));
        assert_eq!(a_place(31, 0, 1), (7, 7));
        assert_eq!(a_place(5, 1, 0), (9, 2));
        assert_eq!(a_place(5, 2, 1), (1, 11));
        assert_eq!(a_place(31, 3, 1), (15, 15));
        // b0,b1: row 2 * threadID_in_group, b2,b3: + 8; column groupID.
        assert_eq!(b_place(6, 0, 1), (5, 1));
        assert_eq!(b_place(31, 1, 1), (15, 7));
        // c0,c1: row groupID; c2,c3: + 8.
        assert_eq!(c_place(6, 1), (1, 5));
        assert_eq!(c_place(31, 3), (15, 7));
    }

    #[test]
    fn fragments_cover_their_matrix_once() {
        let mut seen = [[0; 16]; 16];
        for lane in 0..32 {
            for r in 0..4 {
                for e in 0..2 {
                    let (i, j) = a_place(lane, r, e);
                    seen[i][j] += 1;
                }
            }
        }
        assert!(seen.iter().flatten().all(|&n| n == 1));
    }
}
