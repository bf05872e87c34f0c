//! Code that a bundle carries, and which variant of it runs for a call. The C launcher follows the
//! same rule.
//!
//! 1. Of the variants whose facts the call has, those with the most facts ([`strength`]).
//! 2. Of these, the one whose sizes are nearest: the sum over all run-time sizes of how many
//!    eighths of an octave lie between ([`eighths`]).
//! 3. Of several, the first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use flashtile_codegen::{Facts, Schedule};
use serde::{Deserialize, Serialize};

use super::Origin;
use crate::cache::ModuleRecord;
use crate::error::BundleError;
use crate::lowering::CallingContract;

/// For which arguments code was made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Variant {
    /// Facts that the code takes for granted.
    pub facts: Facts,
    /// Sizes that the schedule was chosen for.
    pub sizes: BTreeMap<String, i64>,
    /// Where the schedule comes from.
    pub origin: Origin,
    /// Place of the code.
    pub code: usize,
}

/// The code of a kernel for one architecture, as a bundle carries it. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Carried(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kernel: String,
    code: Vec<CarriedCode>,
    variants: Vec<Variant>,
}

/// Code of a bundle.
#[derive(Clone, Debug)]
pub(crate) struct CarriedCode {
    pub schedule: Schedule,
    pub contract: CallingContract,
    pub module: ModuleRecord,
}

impl Carried {
    /// Code of the kernel of this name, and the variants that name it by its place.
    pub(crate) fn new(kernel: &str, code: Vec<CarriedCode>, variants: Vec<Variant>) -> Self {
        Self(Arc::new(Inner { kernel: kernel.to_owned(), code, variants }))
    }

    /// The variant for a call.
    pub(crate) fn choose(&self, facts: &Facts, sizes: &BTreeMap<String, i64>) -> Result<&Variant, BundleError> {
        choose(&self.0.variants, facts, sizes).map_err(|needed| BundleError::NoVariant { kernel: self.0.kernel.clone(), needed })
    }

    /// Code by its place.
    pub(crate) fn code(&self, place: usize) -> &CarriedCode {
        &self.0.code[place]
    }
}

/// How much facts take for granted: 32-bit index arithmetic before folded rows, alignment, and
/// positive scalars. Facts that other facts follow from take no less for granted.
pub(crate) fn strength(facts: &Facts) -> (bool, bool, u32, Reverse<u32>, usize) {
    let short = facts.aligned.values().map(|bytes| (facts.alignment / bytes).ilog2()).sum();
    (!facts.wide, facts.foldable, facts.alignment, Reverse(short), facts.positive.len())
}

/// Where a size is on a scale of ratios, in eighths of an octave: 0 for 0, and another number for
/// each size up to 16.
pub(crate) fn eighths(size: i64) -> i64 {
    let Some(octave) = u64::try_from(size).ok().and_then(u64::checked_ilog2) else { return 0 };
    // The three bits behind the first.
    let eighth = if octave < 3 { size << (3 - octave) } else { size >> (octave - 3) } % 8;
    1 + 8 * i64::from(octave) + eighth
}

/// The variant that runs for a call; an error has what the variant that asks least asks for in
/// vain.
fn choose<'a>(variants: &'a [Variant], facts: &Facts, sizes: &BTreeMap<String, i64>) -> Result<&'a Variant, Vec<String>> {
    let fits = variants.iter().filter(|v| v.facts.beyond(facts).is_empty());
    let distance = |v: &Variant| -> i64 {
        let apart = |(name, &size): (&String, &i64)| v.sizes.get(name).map_or(0, |own| (eighths(size) - eighths(*own)).abs());
        sizes.iter().map(apart).sum()
    };
    fits.min_by_key(|v| (Reverse(strength(&v.facts)), distance(v))).ok_or_else(|| {
        let least = variants.iter().min_by_key(|v| strength(&v.facts));
        least.map(|v| v.facts.beyond(facts)).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(facts: Facts, n: i64, code: usize) -> Variant {
        Variant { facts, sizes: [("N".to_owned(), n)].into(), origin: Origin::Model, code }
    }

    #[test]
    fn most_facts_come_first_then_the_nearest_sizes() {
        let aligned = Facts { alignment: 16, ..Facts::none() };
        let wide = Facts { wide: true, ..Facts::none() };
        let all = [variant(wide.clone(), 64, 0), variant(aligned.clone(), 64, 1), variant(aligned.clone(), 4096, 2)];
        let of = |facts: &Facts, n: i64| choose(&all, facts, &[("N".to_owned(), n)].into()).map(|v| v.code);
        assert_eq!([of(&aligned, 0), of(&aligned, 500), of(&aligned, 600)], [Ok(1), Ok(1), Ok(2)]);
        let all_general = [Facts::none(), wide.clone(), Facts { wide: true, ..aligned.clone() }];
        all_general.iter().for_each(|facts| assert_eq!(of(facts, 64), Ok(0), "{facts:?}"));
        let refused = choose(&all[1..], &wide, &BTreeMap::new()).expect_err("more than the call has");
        assert_eq!(refused.len(), 2, "{refused:?}");
    }

    /// Of two batch sizes between the same powers of two each call takes its own.
    #[test]
    fn sizes_of_an_octave_are_told_apart() {
        let all = [5, 8, 6].map(|n| variant(Facts::none(), n, n as usize));
        let of = |n: i64| choose(&all, &Facts::none(), &[("N".to_owned(), n)].into()).map(|v| v.code);
        assert_eq!([1, 5, 6, 7, 8, 9].map(of), [5, 5, 6, 8, 8, 8].map(Ok));
    }

    #[test]
    fn eighths_of_octaves_follow_each_other() {
        let numbers: Vec<i64> = (0..5000).map(eighths).collect();
        assert_eq!([-1, 0, 1, 2, 3, 4, 1024].map(eighths), [0, 0, 1, 9, 13, 17, 81]);
        assert!(numbers.is_sorted());
        assert!(numbers[..17].windows(2).all(|two| two[0] < two[1]), "{:?}", &numbers[..17]);
        for (first, size) in (17..5000).map(|size| (numbers.partition_point(|&n| n < numbers[size]), size)) {
            assert!(8 * size < 9 * first + 8, "{size} is counted as {first}");
        }
        assert_eq!(eighths(i64::MAX), 1 + 8 * 62 + 7);
    }
}
