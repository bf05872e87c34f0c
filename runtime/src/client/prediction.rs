//! What the cost model says of a call before it is made, for libraries that choose the form of a
//! gradient. It launches nothing.

use crate::error::{Error, KernelError, Result};
use crate::kernel::Deduced;
use crate::launch::LoadedKernel;

/// What the fused form of a gradient must be predicted to take of the plain form's time: the model
/// is not exact, and the plain form gives the same bits in each launch.
pub const FUSED_IS_WORTH: f64 = 0.95;

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
