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
/// the order of [`Form::ALL`] the last that takes less than 0.98 of those before it. The plain form
/// where nothing is predicted of it.
pub fn fastest(mut predicted: Vec<(Form, Option<f64>)>) -> Form {
    predicted.sort_by_key(|(form, _)| Form::ALL.iter().position(|other| other == form));
    let Some(&(Form::Plain, Some(plain))) = predicted.first() else { return Form::Plain };
    let better = |best: (Form, f64), (form, seconds): (Form, Option<f64>)| match seconds {
        Some(seconds) if seconds < WORTH * best.1 => (form, seconds),
        _ => best,
    };
    predicted.into_iter().skip(1).fold((Form::Plain, plain), better).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_taken_that_is_worth_it() {
        let of = |seconds: [Option<f64>; 4]| fastest(Form::ALL.into_iter().zip(seconds).rev().collect());
        assert_eq!(of([Some(1.0), Some(0.99), Some(0.99), None]), Form::Plain);
        assert_eq!(of([Some(1.0), Some(0.9), Some(0.88), Some(0.8)]), Form::FusedShares);
        assert_eq!(of([Some(1.0), Some(0.9), Some(0.8), Some(0.8)]), Form::PlainShares);
        assert_eq!(of([Some(1.0), Some(0.9), None, Some(0.89)]), Form::Fused);
        assert_eq!(of([None, Some(0.9), None, None]), Form::Plain, "nothing to compare with");
        assert_eq!(fastest(Vec::new()), Form::Plain);
    }
}
