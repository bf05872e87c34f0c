//! What the cost model says of a call before it is made, for libraries that choose the form of a
//! gradient. It launches nothing.

use flashtile_dsl::grad::Form;

use crate::error::{Error, KernelError, Result};
use crate::kernel::Deduced;
use crate::launch::LoadedKernel;

/// What another form of a gradient must be predicted to take of the time of the one before it: the
/// model is not exact, the plain form gives the same bits in each launch, and shares take memory.
const WORTH: f64 = 0.98;

/// Seconds that the cost model predicts for a launch of these sizes, as
/// [`LoadedKernel::predicted`] does; `None` too where the device has no code for the kernel.
///
/// # Errors
/// As [`LoadedKernel::predicted`], but for a device that has no schedule.
pub fn predicted(kernel: &LoadedKernel, deduced: &Deduced) -> Result<Option<f64>> {
    match kernel.predicted(&deduced.sizes) {
        Err(Error::Kernel(KernelError::NoSchedule { .. })) => Ok(None),
        predicted => predicted,
    }
}

/// The form to take of these, each with the seconds that all its kernels are predicted to take: in
/// the order of [`Form::ALL`] the last that takes less than 0.98 of those before it. One of which
/// nothing is predicted has no code, and is left out. The stored form takes memory for each score, so
/// that it is taken where no other has code. The plain form where nothing is predicted at all.
pub fn fastest(predicted: Vec<(Form, Option<f64>)>) -> Form {
    let mut known: Vec<(Form, f64)> = predicted.into_iter().filter_map(|(form, seconds)| Some((form, seconds?))).collect();
    known.sort_by_key(|(form, _)| Form::ALL.iter().position(|other| other == form));
    let streamed = known.iter().copied().filter(|(form, _)| *form != Form::Stored);
    let better = |best: (Form, f64), other: (Form, f64)| if other.1 < WORTH * best.1 { other } else { best };
    let best = streamed.reduce(better).or(known.last().copied());
    best.map_or(Form::Plain, |(form, _)| form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_taken_that_is_worth_it() {
        let of = |seconds: [Option<f64>; 5]| fastest(Form::ALL.into_iter().zip(seconds).rev().collect());
        assert_eq!(of([Some(1.0), Some(0.99), Some(0.99), None, None]), Form::Plain);
        assert_eq!(of([Some(1.0), Some(0.9), Some(0.88), Some(0.8), None]), Form::FusedShares);
        assert_eq!(of([Some(1.0), Some(0.9), Some(0.8), Some(0.8), None]), Form::PlainShares);
        assert_eq!(of([Some(1.0), Some(0.9), None, Some(0.89), None]), Form::Fused);
        assert_eq!(of([None, Some(0.9), None, None, Some(0.1)]), Form::Fused, "the plain form has no code");
        assert_eq!(of([Some(1.0), None, None, None, Some(0.1)]), Form::Plain, "it takes memory for each score");
        assert_eq!(of([None, None, None, None, Some(0.1)]), Form::Stored, "no other has code");
        assert_eq!(of([None; 5]), Form::Plain);
        assert_eq!(fastest(Vec::new()), Form::Plain);
    }
}
