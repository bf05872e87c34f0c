//! Errors, what is allowed of them, and the verdict. The rule is told at [`OutputReference`].

use std::fmt;

use flashtile_dsl::ir::{Elem, ParamId};
use serde::Serialize;

use super::launch::rounded;

/// How large errors may be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Bound {
    /// Largest error of the baseline.
    pub baseline_max: f64,
    /// The largest error may be so many times that.
    pub max_ratio: f64,
    /// Mean error of the baseline.
    pub baseline_mean: f64,
    /// Largest error that is always allowed; a mean error of an eighth of it is, over many elements.
    pub floor: f64,
    /// Elements that the mean is taken over.
    pub elements: usize,
    /// Errors of their own among these: of elements, or of rows that a program stores whole, whose
    /// elements have a factor in common.
    pub apart: usize,
}

/// The largest magnitudes of what errors are relative to, where that is more than the result.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Terms {
    /// Of what stored values are sums of; 0 where they are no sums.
    pub stored: f64,
    /// Of the terms of exponents, [`flashtile_dsl::interpret::Interpreter::exponent_terms`].
    pub exponents: f64,
}

impl Bound {
    /// The largest error may be so many times that of a baseline that rounds matrices to 16 bits.
    pub const MAX_RATIO: f64 = 2.0;
    /// The same of a baseline in f32. Both computations then round alike, in orders of their own, and the larger of two
    /// largest errors is often more than twice the other where a few elements have most of the error: 1.1 to 3.5 times for a
    /// right kernel on seven draws of keys that grow 30-fold. The mean is held as closely as elsewhere.
    pub const MAX_RATIO_F32: f64 = 4.0;
    /// The mean error may be so many times that of the baseline, over many elements.
    pub const MEAN_RATIO: f64 = 1.2;
    /// Largest error that is always allowed, relative to the largest exact magnitude: 16 roundings of an f32. In f32 the baseline has
    /// exponentials rounded once, where `ex2.approx` is off by two units in the last place (PTX ISA), and averages of many values
    /// are smaller than what was averaged, to which the roundings are relative. With 8 one in 24 right kernels of few outputs failed.
    pub const FLOOR: f64 = 16.0 * (f32::EPSILON / 2.0) as f64;
    /// Rounding at random errs by so much more than rounding to nearest: the mean square of an error
    /// is a sixth of a unit's, where it is a twelfth.
    pub const SCATTER: f64 = std::f64::consts::SQRT_2;
    /// What further computations may raise a baseline by. A text that jumps, such as at a multiple of
    /// a number that rounds, jumps in these elsewhere. Of what 155 runs called wrong by luck 5.3 times
    /// the allowed error was the most.
    pub const LUCK: f64 = 8.0;
    /// An error that is always allowed: GPUs take what is less than the least normal f32 for 0, and
    /// a product makes up to this of it.
    pub const UNDERFLOW: f64 = 256.0 * f32::MIN_POSITIVE as f64;

    /// The bound for an output of these exact values, for which the plain computation, which rounds
    /// matrices to `matrices`, gave `plain`. So many elements, `in_row`, have errors in common.
    pub(super) fn new(elem: Elem, exact: &[f64], plain: &[f64], matrices: Elem, terms: Terms, in_row: usize) -> Self {
        let baseline = Errors::of(exact, plain.iter().copied());
        let rounding = Errors::of_rounding(elem, exact);
        let largest = exact.iter().filter(|x| x.is_finite()).fold(terms.stored, |m, x| m.max(x.abs()));
        Self {
            baseline_max: baseline.max.max(rounding.max),
            max_ratio: if matrices == Elem::F32 { Self::MAX_RATIO_F32 } else { Self::MAX_RATIO },
            baseline_mean: baseline.mean.max(rounding.mean),
            floor: (Self::FLOOR + terms.exponents * f64::from(f32::EPSILON / 2.0)) * largest + Self::UNDERFLOW,
            elements: exact.len(),
            apart: exact.len() / in_row.max(1),
        }
    }

    /// The bound, if what further computations of the same text store counts as well. They round at
    /// random.
    pub(super) fn beside(&self, elem: Elem, exact: &[f64], scattered: &[Vec<f64>]) -> Self {
        let mut wider = *self;
        for stored in scattered {
            let errors = Errors::of(exact, stored.iter().map(|&x| rounded(elem, x)));
            wider.baseline_max = wider.baseline_max.max(errors.max / Self::SCATTER);
            wider.baseline_mean = wider.baseline_mean.max(errors.mean / Self::SCATTER);
        }
        let most = |baseline: f64| Self::LUCK * (baseline + self.floor / self.max_ratio);
        wider.baseline_max = wider.baseline_max.min(most(self.baseline_max));
        wider.baseline_mean = wider.baseline_mean.min(most(self.baseline_mean));
        wider
    }

    /// The largest error allowed.
    pub fn max(&self) -> f64 {
        self.max_ratio * self.baseline_max + self.floor
    }

    /// The mean error allowed. The mean of a single error of its own is that error, for which as much
    /// is allowed as for any; of n of them, a share of 1 / n of the way to that.
    pub fn mean(&self) -> f64 {
        let between = |many: f64, one: f64, n: usize| many + (one - many) / n.max(1) as f64;
        let ratio = between(Self::MEAN_RATIO, self.max_ratio, self.apart);
        ratio * self.baseline_mean + between(1.0 / 8.0, 1.0, self.elements) * self.floor
    }
}

/// Half a unit in the last place of a number in a 16-bit type, of so many digits.
fn half_unit(x: f64, least_exponent: i32, digits: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return 0.0;
    }
    let exponent = (x.abs().log2().floor() as i32).max(least_exponent);
    2f64.powi(exponent - digits)
}

/// Errors over the elements at which both the exact and the other value are finite.
struct Errors {
    max: f64,
    mean: f64,
}

impl Errors {
    /// What rounding to an element type errs by: to 16 bits, numbers of this size at most, and in
    /// the mean half of that; else these numbers.
    fn of_rounding(elem: Elem, exact: &[f64]) -> Self {
        let (least_exponent, digits) = match elem {
            Elem::F16 => (-14, 11),
            Elem::Bf16 => (-126, 8),
            _ => return Self::of(exact, exact.iter().map(|&x| rounded(elem, x))),
        };
        let nothing = vec![0.0; exact.len()];
        let largest = Self::of(&nothing, exact.iter().map(|&x| half_unit(x, least_exponent, digits)));
        Self { mean: largest.mean / 2.0, ..largest }
    }

    fn of(exact: &[f64], other: impl Iterator<Item = f64>) -> Self {
        let (mut max, mut sum, mut count) = (0.0f64, 0.0, 0u64);
        for (&exact, other) in exact.iter().zip(other) {
            let error = (exact - other).abs();
            if error.is_finite() {
                max = max.max(error);
                sum += error;
                count += 1;
            }
        }
        Self { max, mean: if count == 0 { 0.0 } else { sum / count as f64 } }
    }
}

/// Why an output is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A NaN or an infinity where the oracle has none, or the other way round.
    NotFinite,
    /// The largest error is too large.
    MaxError,
    /// The mean error is too large.
    MeanError,
    /// No element is finite, though all that the kernels before have read and stored is: a tensor
    /// that one of them leaves to the next overflows.
    NothingFinite,
}

/// The element that is furthest off.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    /// Its index in the output.
    pub index: Vec<usize>,
    /// The exact value.
    pub exact: f64,
    /// The value found.
    pub found: f64,
}

/// What one output must hold.
///
/// # The tolerance
///
/// Error is the distance to the float64 oracle: the same text, every operation in f64, no rounding.
/// It is measured over all elements whose exact value is finite, and no element is left out of
/// them.
///
/// * The **maximum** error is at most 2 times (4 times if `T = f32`), and the **mean** error at
///   most 1.2 times, the error of the baseline, over many elements, or rows where a program stores
///   rows whole: the elements of these err alike.
/// * The baseline is the plain 16-bit computation of the same text on the same inputs (`Plain16`),
///   run over the whole extent of every loop. Its error is never taken to be less than what
///   rounding numbers of the size of the exact values to a 16-bit output may err by: half a unit in
///   the last place, and half of that in the mean.
/// * An f32 output of a 16-bit kernel (an LSE) has its own baseline by the same rule.
/// * One computation may be right by luck, such as where one number is stored, or one rounding of a
///   query moves all scores of its row. So what is further off is held against the worst of seven:
///   the baseline, and six that round at random where it rounds to nearest, two of which sum rows
///   before they round ([`flashtile_dsl::interpret::Scattered`]). The errors of these count by
///   [`Bound::SCATTER`] less, and raise the baseline to [`Bound::LUCK`] times what it was at most.
/// * To that is added [`Bound::FLOOR`] times the largest exact magnitude, 16 roundings of an f32,
///   and for the mean two roundings: the baseline may be exact (one key, a row maximum) where f32
///   accumulation in another order is not. Where a sum is stored, its terms count as well: a loss
///   `m + ln(l) - x` of 0 is no more exact than `m` is. Where the exponential of a difference is
///   taken, half a unit in the last place of its terms counts too: that of `s - s` is 1 only as far
///   as `s` times `log2(e)` is exact.
/// * NaN for NaN, and an infinity for the same infinity. A finite value too large for the element
///   type may be the infinity that it rounds to. Where a hidden element meets what is not finite
///   ("Hidden means absent" in [`flashtile_dsl::ir`]) NaN is right as well, and the verdict says in
///   how many elements it was. In a kernel behind others, such as those of a gradient, it is right
///   only if a drawn input is not finite, or if the first kernel has such elements: else the NaN is
///   the later text's own ([`crate::tuner::Chain`]).
#[derive(Clone, PartialEq, Debug)]
pub struct OutputReference {
    /// The parameter.
    pub param: ParamId,
    /// Its name.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements known, by index in row-major order: all, or those of a sample.
    pub places: Vec<usize>,
    /// Exact values at the places.
    pub exact: Vec<f64>,
    /// Where NaN is right as well, by place: a hidden element met what is not finite. Empty if
    /// nowhere.
    pub or_nan: Vec<bool>,
    /// What errors are allowed.
    pub bound: Bound,
    /// Whether the baseline is finite wherever the exact value is.
    pub steady: bool,
}

impl OutputReference {
    /// The values at the known places, which `value` gives by index in row-major order.
    pub(crate) fn at_places(&self, value: impl Fn(usize) -> f64) -> Vec<f64> {
        self.places.iter().map(|&at| value(at)).collect()
    }

    /// Judges values at the known places.
    pub(super) fn check(&self, found: &[f64]) -> OutputVerdict {
        OutputVerdict::new(self, found)
    }
}

/// The judgement of one output.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OutputVerdict {
    /// The parameter.
    pub name: String,
    /// Elements judged.
    pub elements: usize,
    /// Elements compared: those that are finite, or NaN where that is right as well.
    pub compared: usize,
    /// Whether each of them should be 0, so that inputs show little of the kernel.
    pub all_zero: bool,
    /// Elements that are NaN, and right, since a hidden element met what is not finite.
    pub hidden_nan: usize,
    /// Largest error.
    pub max_error: f64,
    /// Mean error.
    pub mean_error: f64,
    /// What is allowed.
    pub bound: Bound,
    /// The element that is furthest off, or the first whose NaN or infinity is wrong; `None` if all are exact.
    pub worst: Option<Worst>,
    /// Why it is wrong; `None` if it is right.
    pub failure: Option<Failure>,
}

impl OutputVerdict {
    pub(super) fn new(reference: &OutputReference, found: &[f64]) -> Self {
        let (mut max, mut sum, mut finite) = (0.0f64, 0.0, 0u64);
        let (mut worst, mut stray, mut hidden_nan) = (None, None, 0);
        for (at, (&exact, &found)) in reference.exact.iter().zip(found).enumerate() {
            if found.is_nan() && reference.or_nan.get(at) == Some(&true) {
                // As exact as it can be: the bound of the mean is over all elements.
                hidden_nan += 1;
                finite += 1;
                continue;
            }
            let same_kind = match rounded(reference.elem, exact) {
                kind if kind.is_nan() => found.is_nan(),
                kind if kind.is_infinite() => found == kind || (exact.is_finite() && found.is_finite()),
                _ => found.is_finite(),
            };
            if !same_kind {
                stray = stray.or(Some(at));
            }
            let error = (exact - found).abs();
            if error.is_finite() {
                if error > max {
                    (max, worst) = (error, Some(at));
                }
                sum += error;
                finite += 1;
            }
        }
        let mean = if finite == 0 { 0.0 } else { sum / finite as f64 };
        let failure = if stray.is_some() {
            Some(Failure::NotFinite)
        } else if max > reference.bound.max() {
            Some(Failure::MaxError)
        } else if mean > reference.bound.mean() {
            Some(Failure::MeanError)
        } else {
            None
        };
        let worst = stray.or(worst).map(|at| Worst {
            index: index(&reference.shape, reference.places[at]),
            exact: reference.exact[at],
            found: found[at],
        });
        Self {
            name: reference.name.clone(),
            elements: found.len(),
            compared: finite as usize,
            all_zero: !found.is_empty() && reference.exact.iter().all(|&x| x == 0.0),
            hidden_nan,
            max_error: max,
            mean_error: mean,
            bound: reference.bound,
            worst,
            failure,
        }
    }

    /// Whether the output is right.
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// Whether elements were judged and none of them compared, since none should be finite.
    pub fn compares_nothing(&self) -> bool {
        self.elements > 0 && self.compared == 0
    }

    /// Whether its errors alone are too large.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.failure, Some(Failure::MaxError | Failure::MeanError))
    }
}

impl fmt::Display for OutputVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.failure {
            None => "right",
            Some(Failure::NotFinite) => "wrong: NaN or infinity does not match",
            Some(Failure::MaxError) => "wrong: an error is too large",
            Some(Failure::MeanError) => "wrong: the mean error is too large",
            Some(Failure::NothingFinite) => {
                "wrong: no element is finite, though all inputs and what the first kernel stores of its own outputs are"
            }
        };
        write!(
            f,
            "{} {what}; max error {:.2e} (allowed {:.2e}), mean {:.2e} (allowed {:.2e})",
            self.name,
            self.max_error,
            self.bound.max(),
            self.mean_error,
            self.bound.mean()
        )?;
        if let Some(worst) = &self.worst {
            write!(f, ", worst at {:?}: {} for {}", worst.index, worst.found, worst.exact)?;
        }
        if self.hidden_nan > 0 {
            write!(f, "; {} of {} elements are NaN, where hidden elements meet NaN or infinity", self.hidden_nan, self.elements)?;
        }
        if self.compares_nothing() && self.passed() {
            write!(f, "; none of it should be finite, so nothing is compared: --data and --set give other inputs")?;
        }
        if self.all_zero {
            write!(f, "; all of it is 0, so these inputs show little: --data and --set give others")?;
        }
        Ok(())
    }
}

fn index(shape: &[usize], place: usize) -> Vec<usize> {
    let mut rest = place;
    let mut index = vec![0; shape.len()];
    for (i, extent) in index.iter_mut().zip(shape).rev() {
        (*i, rest) = (rest % extent, rest / extent);
    }
    index
}

#[cfg(test)]
mod tests {
    use flashtile_dsl::ir::ParamId;

    use super::*;

    fn judge(elem: Elem, exact: &[f64], plain: &[f64], found: &[f64]) -> OutputVerdict {
        let reference = OutputReference {
            param: ParamId(0),
            name: "o".into(),
            elem,
            shape: vec![2, exact.len() / 2],
            places: (0..exact.len()).collect(),
            exact: exact.to_vec(),
            or_nan: Vec::new(),
            bound: Bound::new(elem, exact, plain, elem, Terms::default(), 1),
            steady: true,
        };
        OutputVerdict::new(&reference, found)
    }

    #[test]
    fn nan_is_right_where_a_hidden_element_met_what_is_not_finite() {
        let exact = [1.0, 2.0];
        let mut reference = OutputReference {
            param: ParamId(0),
            name: "o".into(),
            elem: Elem::F32,
            shape: vec![1, 2],
            places: vec![0, 1],
            exact: exact.to_vec(),
            or_nan: vec![true, false],
            bound: Bound::new(Elem::F32, &exact, &exact, Elem::F32, Terms::default(), 1),
            steady: true,
        };
        let verdict = reference.check(&[f64::NAN, 2.0]);
        assert!(verdict.passed() && reference.check(&exact).passed());
        assert!(
            verdict.to_string().ends_with("; 1 of 2 elements are NaN, where hidden elements meet NaN or infinity"),
            "{verdict}"
        );
        // Infinity is not, nor is another number, nor NaN elsewhere.
        for found in [[f64::INFINITY, 2.0], [1.5, 2.0], [1.0, f64::NAN]] {
            assert!(!reference.check(&found).passed(), "{found:?}");
        }
        reference.or_nan.clear();
        assert!(!reference.check(&[f64::NAN, 2.0]).passed());
    }

    #[test]
    fn in_f32_the_largest_error_may_be_four_times_the_baselines() {
        let (exact, plain) = ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.1, 4.1]);
        assert!(judge(Elem::F32, &exact, &plain, &[1.0, 2.0, 3.0, 4.35]).passed());
        assert_eq!(judge(Elem::F32, &exact, &plain, &[1.0, 2.0, 3.0, 4.45]).failure, Some(Failure::MaxError));
        assert_eq!(judge(Elem::F32, &exact, &plain, &[1.1, 2.1, 3.1, 4.1]).failure, Some(Failure::MeanError));
    }

    #[test]
    fn errors_are_held_against_the_baseline() {
        let exact = [1.0, 2.0, 3.0, 4.0];
        let plain = [1.0, 2.0, 3.1, 4.1];
        assert!(judge(Elem::F16, &exact, &plain, &[1.0, 2.0, 3.0, 4.2]).passed());
        let max = judge(Elem::F16, &exact, &plain, &[1.0, 2.0, 3.0, 4.3]);
        assert_eq!(max.failure, Some(Failure::MaxError));
        assert_eq!(max.worst.map(|w| w.index), Some(vec![1, 1]));
        assert_eq!(judge(Elem::F16, &exact, &plain, &[1.1, 2.1, 3.0, 4.1]).failure, Some(Failure::MeanError));
    }

    #[test]
    fn an_exact_baseline_allows_the_rounding_of_f32() {
        let exact = [1.0; 16];
        let judged = |error: f64, count: usize| {
            let mut found = exact;
            found[..count].fill(1.0 + error);
            judge(Elem::F32, &exact, &exact, &found).failure
        };
        assert_eq!(judged(8e-7, 1), None);
        assert_eq!(judged(1.2e-6, 1), Some(Failure::MaxError));
        assert_eq!(judged(1e-7, 16), None);
        assert_eq!(judged(2e-7, 16), Some(Failure::MeanError));
        assert_eq!(judge(Elem::F32, &[1.0, 1.0], &[1.0, 1.0], &[1.0 + 4e-7; 2]).failure, None);
        assert_eq!(judge(Elem::F32, &[1.0, 1.0], &[1.0, 1.0], &[1.0 + 6e-7; 2]).failure, Some(Failure::MeanError));
    }

    /// Attention that copies a value: the plain computation is exact, and one with another reference
    /// of its exponentials is off by a rounding.
    #[test]
    fn an_exact_baseline_allows_a_rounding_to_16_bits() {
        let exact = [1.0; 16];
        let judged = |elem, error: f64, count: usize| {
            let mut found = exact;
            found[..count].fill(1.0 + error);
            judge(elem, &exact, &exact, &found).failure
        };
        let unit = 2f64.powi(-7);
        assert_eq!(judged(Elem::Bf16, unit, 1), None);
        assert_eq!(judged(Elem::Bf16, 2.0 * unit, 1), Some(Failure::MaxError));
        assert_eq!(judged(Elem::Bf16, unit, 12), Some(Failure::MeanError));
        assert_eq!(judged(Elem::F16, unit, 1), Some(Failure::MaxError));
        assert_eq!(judged(Elem::F16, unit / 8.0, 1), None);
    }

    /// A row of a softmax has one factor, which a rounding of its largest term changes.
    #[test]
    fn elements_of_a_row_err_alike() {
        let judged = |in_row: usize| {
            let (exact, plain) = ([1.0; 8], [1.1; 8]);
            Bound::new(Elem::Bf16, &exact, &plain, Elem::Bf16, Terms::default(), in_row).mean()
        };
        assert!(judged(1) < 0.131 && judged(4) > 0.159 && judged(8) > 0.199, "{} {} {}", judged(1), judged(4), judged(8));
    }

    /// A stored sum is as exact as its terms.
    #[test]
    fn the_terms_of_a_sum_count() {
        let bound = |stored| Bound::new(Elem::F32, &[0.0; 4], &[0.0; 4], Elem::F32, Terms { stored, exponents: 0.0 }, 1).max();
        assert_eq!(bound(0.0), Bound::UNDERFLOW);
        assert_eq!(bound(10.0), 10.0 * Bound::FLOOR + Bound::UNDERFLOW);
    }

    /// An exponential of a difference of large numbers is no more exact than they are.
    #[test]
    fn the_terms_of_exponents_count() {
        let bound = |exponents| Bound::new(Elem::F32, &[1.0; 4], &[1.0; 4], Elem::F32, Terms { stored: 0.0, exponents }, 1).max();
        assert!((bound(0.0) - 2f64.powi(-20)).abs() < 1e-12);
        assert!((bound(1024.0) - bound(0.0) - 2f64.powi(-14)).abs() < 1e-12);
    }

    #[test]
    fn nan_for_nan_and_infinity_for_infinity() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let exact = [nan, inf, -inf, 1.0];
        assert!(judge(Elem::Bf16, &exact, &exact, &exact).passed());
        for found in
            [[0.0, inf, -inf, 1.0], [nan, nan, -inf, 1.0], [nan, inf, inf, 1.0], [nan, inf, -inf, nan], [nan, 3e38, -inf, 1.0]]
        {
            assert_eq!(judge(Elem::Bf16, &exact, &exact, &found).failure, Some(Failure::NotFinite), "{found:?}");
        }
        let large = [70000.0, 1.0];
        assert!(judge(Elem::F16, &large, &[inf, 1.0], &[inf, 1.0]).passed());
        assert!(!judge(Elem::F16, &large, &[inf, 1.0], &[nan, 1.0]).passed());
        assert!(!judge(Elem::F32, &large, &large, &[inf, 1.0]).passed());
    }
}
