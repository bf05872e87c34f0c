//! Values of float tensors.

use crate::ir::Elem;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rayon::prelude::*;

use super::{Distribution, Random, Values};

/// What a positive input is at least, before its scale: it may be divided by.
const LEAST: f32 = 0.25;

/// What floats hold: the kernel's text says how large they are, the user what else.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Floats {
    /// Standard deviation.
    pub scale: f64,
    /// Whether they must be positive.
    pub positive: bool,
    /// Whether they are truth values: 0 and 1, more of 1, and in each third row all of them 0.
    pub truths: bool,
    /// What the user says.
    pub like: Distribution,
}

impl Floats {
    /// Normal values without a scale.
    pub fn normal() -> Self {
        Self { scale: 1.0, positive: false, truths: false, like: Distribution::default() }
    }

    /// The value that the generator gives next, in row `row` of `rows`.
    pub fn draw(&self, random: &mut Random, row: usize, rows: usize) -> f64 {
        let factor = self.like.factor(row, rows);
        match self.like.values {
            Some(Values::Constant(value)) => value * factor,
            Some(Values::Range(from, to)) => (from + (to - from) * f64::from(1.0 - random.unit())) * factor,
            Some(_) => f64::from(random.normal()) * factor,
            None if self.truths => {
                let is_true = random.unit() <= 0.7 && row % 3 != 2;
                if is_true { factor } else { 0.0 }
            }
            None if self.positive => f64::from(random.normal().abs() + LEAST) * self.scale * factor,
            None => f64::from(random.normal()) * self.scale * factor,
        }
    }

    /// Little-endian bytes of the values of a tensor.
    pub fn bytes(&self, elem: Elem, shape: &[usize], seed: u64) -> Vec<u8> {
        let count: usize = shape.iter().product();
        let (rows, columns) = match shape {
            [.., rows, columns] => (*rows, (*columns).max(1)),
            [columns] => (1, (*columns).max(1)),
            [] => (1, 1),
        };
        let width = elem.bytes().unwrap_or(4);
        let mut bytes = vec![0u8; count * width];
        // Each run of values has a generator of its own, so that threads share nothing and the values depend on the seed alone.
        const RUN: usize = 1 << 14;
        bytes.par_chunks_mut(RUN * width).enumerate().for_each(|(run, bytes)| {
            let mut random = Random(seed.wrapping_add((run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            for (at, slot) in bytes.chunks_mut(width).enumerate() {
                let row = (run * RUN + at) / columns % rows.max(1);
                write(elem, self.draw(&mut random, row, rows) as f32, slot);
            }
        });
        bytes
    }
}

/// What a parameter of this name holds if it is a table of rotations: cosines or sines, by position and column.
pub fn rotation_table(name: &str, columns: usize) -> Option<impl Fn(usize, usize) -> f64> {
    let of = match name.split('_').next() {
        Some("cos") => f64::cos as fn(f64) -> f64,
        Some("sin") => f64::sin as fn(f64) -> f64,
        _ => return None,
    };
    Some(move |row: usize, column: usize| of(row as f64 * 1e4f64.powf(-(column as f64) / columns as f64)))
}

/// Little-endian bytes of a table of rotations, if the parameter is one.
pub fn rotations(name: &str, elem: Elem, shape: &[usize]) -> Option<Vec<u8>> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let table = rotation_table(name, columns)?;
    let width = elem.bytes().unwrap_or(4);
    let mut bytes = vec![0u8; shape.iter().product::<usize>() * width];
    for (at, slot) in bytes.chunks_mut(width).enumerate() {
        write(elem, table(at / columns, at % columns) as f32, slot);
    }
    Some(bytes)
}

fn write(elem: Elem, x: f32, slot: &mut [u8]) {
    match elem {
        Elem::F16 => slot.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Elem::Bf16 => slot.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        Elem::F8E4M3 => slot[0] = F8E4M3::from_f32(x).to_bits(),
        Elem::F8E5M2 => slot[0] = F8E5M2::from_f32(x).to_bits(),
        _ => slot.copy_from_slice(&x.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
    }

    fn positive() -> Floats {
        Floats { positive: true, ..Floats::normal() }
    }

    #[test]
    fn truth_values_are_0_and_1_and_hide_rows() {
        let values = read(&Floats { truths: true, ..Floats::normal() }.bytes(Elem::F32, &[2, 4, 50], 3));
        let ones: Vec<usize> = values.chunks(50).map(|row| row.iter().filter(|x| **x == 1.0).count()).collect();
        assert!(values.iter().all(|x| [0.0, 1.0].contains(x)) && ones.iter().all(|n| *n < 50), "{ones:?}");
        assert_eq!(ones.iter().map(|n| *n > 20).collect::<Vec<_>>(), [true, true, false, true].repeat(2), "{ones:?}");
    }

    #[test]
    fn values_are_normal_and_repeatable() {
        let normal = |seed| Floats::normal().bytes(Elem::F32, &[100_000], seed);
        let values = read(&normal(7));
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_eq!(normal(7), normal(7));
        assert_ne!(normal(7), normal(8));
    }

    #[test]
    fn rows_grow_as_the_data_say() {
        let like = Distribution { growth: Some(300.0), ..Distribution::default() };
        let values = |like| read(&Floats { like, ..Floats::normal() }.bytes(Elem::F32, &[2, 50, 1000], 7));
        for (at, (x, y)) in values(Distribution::default()).iter().zip(values(like)).enumerate() {
            let near = f64::from(*x) * like.factor(at / 1000 % 50, 50);
            assert!((near - f64::from(y)).abs() <= 1e-6 * near.abs(), "{at}: {near} {y}");
        }
    }

    #[test]
    fn what_the_user_says_replaces_what_the_text_says() {
        let drawn = |values| {
            let like = Distribution { values: Some(values), ..Distribution::default() };
            read(&Floats { scale: 0.01, like, ..positive() }.bytes(Elem::F32, &[1000], 3))
        };
        assert!(drawn(Values::Constant(3.0)).iter().all(|&x| x == 3.0));
        let range = drawn(Values::Range(-2.0, 5.0));
        assert!(
            range.iter().all(|x| (-2.0..5.0).contains(x)) && range.iter().any(|&x| x < -1.0) && range.iter().any(|&x| x > 4.0)
        );
        assert!(drawn(Values::Normal).iter().any(|&x| x < -1.0));
        let drawn = read(&Floats { scale: 0.1, ..positive() }.bytes(Elem::F32, &[1000], 3));
        assert!(drawn.iter().all(|&x| (0.025..1.0).contains(&x)));
    }
}
