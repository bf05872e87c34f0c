//! Values of integer tensors: each element from its place and the seed alone, so that all threads may draw.

use crate::analysis::uses::{Meaning, Use};
use crate::ir::{Elem, SizeExpr};
use rayon::prelude::*;

use super::{Random, Values};

/// Ids of a tensor that is compared with another.
const IDS: u32 = 4;
/// Numbers of a tensor that is compared in order with another.
const ORDERED: u32 = 16;
/// Share of the larger of two classes: of keys that are kept, mostly.
const KEPT: f64 = 0.7;
/// One value in so many is a mark, an end of a range of lengths, and so on.
const SELDOM: u64 = 8;
/// The first id, where nobody says what ids are: f32 does not tell it from the next.
const FIRST_ID: i64 = 1 << 24;
/// The largest magnitude of a number.
const NUMBER: i64 = 3;

/// What the integers of one tensor are.
#[derive(Clone, PartialEq, Debug)]
pub struct Integers {
    kind: Kind,
    marks: Vec<i64>,
    /// The least and the largest value that the elements hold.
    ends: [i64; 2],
}

#[derive(Clone, PartialEq, Debug)]
enum Kind {
    /// From the first, below the second.
    Range(i64, i64),
    /// From 0 to this, both ends among them.
    Lengths(i64),
    /// Runs of numbers that grow, so many, from the first on.
    Sorted(u32, i64),
    /// Runs of equal length, so many.
    Even(u32),
    /// One of these; of two, mostly the second.
    Classes(Vec<i64>, f64),
    /// Indices below this: each at most once in a row, where there are enough.
    Index(i64),
}

impl Integers {
    /// What the user says, or else what the text says; `extent` gives sizes.
    pub fn new(of: &Use, elem: Elem, said: Option<Values>, columns: usize, extent: impl Fn(&SizeExpr) -> i64) -> Self {
        let ends = elem.integers().unwrap_or([0, 1]);
        let extent_over = |all: &SizeExpr, over: i64| extent(all).max(0) / over.max(1);
        let longest = match &of.meaning {
            Meaning::Length { extent: all, over } | Meaning::Place { extent: all, over } => extent_over(all, *over),
            Meaning::Index(all) => extent(all),
            Meaning::Distance { .. } => of.meaning.reach(&extent).unwrap_or(0),
            _ => columns as i64,
        };
        let kind = match said {
            Some(Values::Constant(value)) => Kind::Range(value as i64, value as i64 + 1),
            Some(Values::Range(from, to)) => Kind::Range(from as i64, to as i64),
            Some(Values::Ids(count)) => Kind::Range(0, count.into()),
            Some(Values::SortedIds(count)) => Kind::Sorted(count, 0),
            Some(Values::EvenIds(count)) => Kind::Even(count),
            Some(Values::Lengths(most)) => Kind::Lengths(most.map_or(longest, i64::from)),
            Some(Values::Bits(share)) => Kind::Classes(vec![0, 1], share),
            Some(Values::Permutation) => Kind::Index(columns as i64),
            Some(Values::Normal) | None => match &of.meaning {
                Meaning::Index(all) => Kind::Index(extent(all)),
                Meaning::Place { .. } | Meaning::Distance { .. } => Kind::Range(0, longest.max(1)),
                Meaning::Length { .. } => Kind::Lengths(longest),
                Meaning::Ids(_) if elem.is_narrow() => Kind::Sorted(IDS, 0),
                Meaning::Ids(_) => Kind::Sorted(IDS, FIRST_ID),
                Meaning::Order(_) => Kind::Sorted(ORDERED, 0),
                Meaning::Classes(values) => Kind::Classes(values.iter().copied().collect(), KEPT),
                // Quantised numbers take every value of their type.
                Meaning::Number | Meaning::Unknown if elem.is_narrow() => Kind::Range(ends[0], ends[1] + 1),
                Meaning::Number | Meaning::Unknown => Kind::Range(-NUMBER, NUMBER + 1),
            },
        };
        let marks = if said.is_some() { Vec::new() } else { of.marks.iter().copied().collect() };
        Self { kind, marks, ends }
    }

    /// The values, in row-major order. `shared` is a seed that all inputs of a kernel have in common.
    pub fn values(&self, shape: &[usize], seed: u64, shared: u64) -> Vec<i32> {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let mut values = vec![0i32; shape.iter().product()];
        values.par_chunks_mut(columns).enumerate().for_each(|(row, values)| {
            let mut random = Random(seed.wrapping_add((row as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)));
            let row_values = self.row(row * columns, columns, &mut random, &mut Random(shared ^ ((row as u64) << 32)));
            for (slot, value) in values.iter_mut().zip(row_values) {
                let mark = if self.marks.is_empty() || random.below(SELDOM) != 0 {
                    None
                } else {
                    Some(self.marks[random.below(self.marks.len() as u64) as usize])
                };
                *slot = mark.unwrap_or(value).clamp(self.ends[0], self.ends[1]) as i32;
            }
        });
        values
    }

    /// Values of a row whose first element is the tensor's element `first`.
    fn row(&self, first: usize, columns: usize, random: &mut Random, shared: &mut Random) -> Vec<i64> {
        let mut below = |end: i64| random.below(end.max(1) as u64) as i64;
        match &self.kind {
            Kind::Range(from, to) => (0..columns).map(|_| from + below(to - from)).collect(),
            // The first that are drawn are one that cuts, all, and nothing.
            Kind::Lengths(most) => (first..first + columns)
                .map(|at| match (at, below(SELDOM as i64)) {
                    (0, _) => (most * 3 + 4) / 5,
                    (1, _) | (3.., 0) => *most,
                    (2, _) | (3.., 1) => 0,
                    _ => below(most + 1),
                })
                .collect(),
            Kind::Even(count) => (0..columns).map(|column| (column as i64 * i64::from(*count)) / columns as i64).collect(),
            Kind::Sorted(count, first) => {
                // Runs end at the same shares of every input's rows, up to a sixteenth.
                let count = (*count).min(1 << 16);
                let mut ends: Vec<f64> = (1..count).map(|_| f64::from(shared.unit())).collect();
                ends.iter_mut().for_each(|end| *end += (f64::from(random.unit()) - 0.5) / 16.0);
                ends.sort_by(f64::total_cmp);
                let along = |column: usize| (column as f64 + 0.5) / columns as f64;
                (0..columns).map(|column| first + ends.partition_point(|end| *end <= along(column)) as i64).collect()
            }
            Kind::Classes(values, share) => match &values[..] {
                [other, kept] => (0..columns).map(|_| if f64::from(random.unit()) <= *share { *kept } else { *other }).collect(),
                values => (0..columns).map(|_| values[below(values.len() as i64) as usize]).collect(),
            },
            Kind::Index(extent) if *extent >= columns as i64 && *extent <= 1 << 24 => {
                let mut all: Vec<i64> = (0..*extent).collect();
                for at in 0..columns {
                    let other = at as i64 + below(extent - at as i64);
                    all.swap(at, other as usize);
                }
                all.truncate(columns);
                all
            }
            Kind::Index(extent) => (0..columns).map(|_| below(*extent)).collect(),
        }
    }
}

/// Little-endian elements of these values. A truth value that holds is any byte but 0: all of them
/// occur.
pub fn encoded(elem: Elem, values: &[i32]) -> Vec<u8> {
    match elem {
        Elem::Bool => values.iter().enumerate().map(|(at, &x)| if x == 0 { 0 } else { 1 + (at * 7 % 255) as u8 }).collect(),
        Elem::U8 | Elem::I8 => values.iter().map(|&x| x as u8).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn drawn(meaning: Meaning, marks: &[i64], said: Option<Values>, shape: &[usize]) -> Vec<i32> {
        let of = Use { meaning, marks: marks.iter().copied().collect() };
        let columns = shape.last().copied().unwrap_or(1);
        Integers::new(&of, Elem::I32, said, columns, |size| size.as_constant().expect("a constant")).values(shape, 5, 9)
    }

    fn extent(n: i64) -> SizeExpr {
        SizeExpr::constant(n)
    }

    #[test]
    fn lengths_have_both_ends_and_cut() {
        for shape in [&[3][..], &[2, 40]] {
            let values = drawn(Meaning::Length { extent: extent(203), over: 1 }, &[], None, shape);
            assert!(values.contains(&0) && values.contains(&203) && values[0] == 122, "{values:?}");
            assert!(values.iter().all(|x| (0..=203).contains(x)));
        }
    }

    #[test]
    fn ids_are_sorted_runs_that_meet_in_both_tensors() {
        let ids = |columns| drawn(Meaning::Ids(Vec::new()), &[], None, &[1, columns]);
        let (a, b) = (ids(113), ids(203));
        assert!(a.is_sorted() && b.is_sorted());
        let shared: BTreeSet<i32> = a.iter().filter(|x| b.contains(x)).copied().collect();
        assert!(shared.len() >= 2 && a.iter().all(|x| (1 << 24..(1 << 24) + 4).contains(x)), "{a:?} {b:?}");
        let narrow = Use { meaning: Meaning::Ids(Vec::new()), marks: BTreeSet::new() };
        let narrow = Integers::new(&narrow, Elem::I8, None, 113, |_| 0).values(&[1, 113], 1, 2);
        assert!(narrow.iter().all(|x| (0..4).contains(x)), "{narrow:?}");
    }

    #[test]
    fn bits_have_a_share_of_both_and_marks_are_among_other_values() {
        let bits = drawn(Meaning::Classes([0, 1].into()), &[], None, &[1000]);
        let kept = bits.iter().filter(|&&x| x == 1).count();
        assert!((600..800).contains(&kept), "{kept}");
        let labels = drawn(Meaning::Place { extent: extent(50), over: 1 }, &[-100], None, &[1000]);
        assert!(labels.contains(&-100) && labels.contains(&49) && labels.iter().all(|&x| x == -100 || (0..50).contains(&x)));
    }

    #[test]
    fn indices_are_apart_where_there_are_enough() {
        let mut row = drawn(Meaning::Index(extent(40)), &[], None, &[40]);
        assert_ne!(row, (0..40).collect::<Vec<_>>());
        row.sort_unstable();
        assert_eq!(row, (0..40).collect::<Vec<_>>());
        assert!(drawn(Meaning::Index(extent(4)), &[], None, &[40]).iter().all(|x| (0..4).contains(x)));
    }

    #[test]
    fn what_the_user_says_goes_first() {
        let said = |values| drawn(Meaning::Ids(Vec::new()), &[7], Some(values), &[2, 100]);
        assert!(said(Values::Constant(3.0)).iter().all(|&x| x == 3));
        assert!(said(Values::Range(-5.0, 5.0)).iter().all(|x| (-5..5).contains(x)));
        assert_eq!(said(Values::Ids(8)).iter().copied().collect::<BTreeSet<i32>>().len(), 8);
        assert_eq!(said(Values::EvenIds(4))[..100].iter().filter(|&&x| x == 3).count(), 25);
        assert!(said(Values::Bits(0.0)).iter().all(|&x| x == 0));
        assert!(said(Values::Lengths(Some(9))).contains(&9));
        let mut row = said(Values::Permutation)[..100].to_vec();
        row.sort_unstable();
        assert_eq!(row, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn elements_of_one_byte_take_all_their_values_and_no_other() {
        let of = |meaning, elem| {
            let of = Use { meaning, marks: BTreeSet::new() };
            let drawn = Integers::new(&of, elem, None, 4096, |size| size.as_constant().expect("a constant"));
            drawn.values(&[2, 4096], 5, 9).into_iter().collect::<BTreeSet<i32>>()
        };
        assert_eq!(of(Meaning::Number, Elem::I8), (-128..=127).collect());
        assert_eq!(of(Meaning::Number, Elem::U8), (0..=255).collect());
        let lengths = of(Meaning::Length { extent: extent(1000), over: 1 }, Elem::U8);
        assert!(lengths.contains(&0) && lengths.last() == Some(&255), "{lengths:?}");
        assert_eq!(of(Meaning::Classes([0, 1].into()), Elem::Bool), [0, 1].into());
        assert_eq!(encoded(Elem::I8, &[-1, -128, 127]), [0xff, 0x80, 0x7f]);
        let truths = encoded(Elem::Bool, &[1; 600]);
        assert_eq!(truths.iter().copied().collect::<BTreeSet<u8>>(), (1..=255).collect());
        assert_eq!(encoded(Elem::Bool, &[0, 0]), [0, 0]);
    }

    #[test]
    fn numbers_are_never_all_zero() {
        for meaning in [Meaning::Number, Meaning::Unknown] {
            let values: BTreeSet<i32> = drawn(meaning, &[], None, &[200]).into_iter().collect();
            assert_eq!(values, (-3..=3).collect());
        }
    }
}
