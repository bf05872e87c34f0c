//! Code that a bundle carries, and which variant of it runs for a call. The C launcher follows the
//! same rule.
//!
//! 1. Of the variants whose facts the call has, those with the most facts ([`strength`]).
//! 2. Of these, the one whose sizes are nearest: the sum over all run-time sizes of how many
//!    buckets (powers of two) lie between.
//! 3. Of several, the first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use flashtile_codegen::{Facts, Schedule};
use serde::{Deserialize, Serialize};

use super::Origin;
use crate::cache::{Bucket, ModuleRecord};
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

/// Number of a size's bucket: 0 for 0, else one more than the logarithm of the power of two that it
/// is rounded up to.
pub(crate) fn bucket(size: i64) -> i64 {
    match Bucket::round(size) {
        0 => 0,
        end => 1 + i64::from(end.trailing_zeros()),
    }
}

/// The variant that runs for a call; an error has what the variant that asks least asks for in
/// vain.
fn choose<'a>(variants: &'a [Variant], facts: &Facts, sizes: &BTreeMap<String, i64>) -> Result<&'a Variant, Vec<String>> {
    let fits = variants.iter().filter(|v| v.facts.beyond(facts).is_empty());
    let distance = |v: &Variant| -> i64 {
        let apart = |(name, &size): (&String, &i64)| v.sizes.get(name).map_or(0, |own| (bucket(size) - bucket(*own)).abs());
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

    #[test]
    fn buckets_are_those_of_tuning() {
        assert_eq!([0, 1, 2, 3, 4, 5, 1024, 1025].map(bucket), [0, 1, 2, 3, 3, 4, 11, 12]);
    }
}
