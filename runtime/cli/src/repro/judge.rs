//! Whether a kernel text computes what a kernel of the suite does, by cases of the suite on the
//! CPU.

use flashtile::conformance::{self, Case, Values, run_with};
use flashtile::verify;
use flashtile::{Device, Elem};

use super::experiment::Text;
use crate::failure::Result;

/// Cases of a kernel under which a fault could show: growing scores too, where what is hidden is
/// large.
fn cases(kernel: &str) -> Vec<Case> {
    let telling = |case: &Case| case.small || matches!(case.values, Values::Growing(_));
    conformance::cases().into_iter().filter(|case| case.kernel == kernel && case.elem == Elem::F16 && telling(case)).collect()
}

/// How many of the cases of a kernel another kernel gets wrong, and how many there are.
pub fn wrong(kernel: &str, other: Text) -> Result<(usize, usize)> {
    let (device, cases, other) = (Device::cpu(), cases(kernel), other.open()?);
    let report = run_with(&cases, |kernel, arguments| {
        let loaded = other.bind_to(kernel.binding().clone())?.on(&device)?;
        verify::run(&loaded, arguments)
    });
    Ok((report.failures().count(), cases.len()))
}
