//! The boundary mask of generated code, and two faults of it: left out, and applied after the
//! maximum.
//!
//! Kernel text has no boundary mask: the compiler derives it from `tiles(N)` where the block does
//! not divide N. So the faults are planted in the generated CUDA C, which then runs on the emulator
//! and is judged by the oracle as any other code is.

use std::sync::Arc;

use flashtile::conformance::{self, Case};
use flashtile::device::EmulatedCode;
use flashtile::{Device, Elem, Facts, LaunchOptions, Schedule, lowering};

use super::experiment::defaults;
use crate::failure::{Failure, Result};

/// What is done to the boundary mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// Nothing.
    Kept,
    /// It is left out: keys beyond the last count as keys of zeros.
    LeftOut,
    /// It is applied after the maximum of the step is taken.
    AfterMaximum,
}

/// The condition of the mask: whether the tile is one that the end of the keys cuts.
const CUT: &str = "    if (j >= j_full_end) {\n";
/// How the statement that takes the new maximum begins; it stands on one line.
const MAXIMUM: &str = "m_new[mt][r] = fmax(";

impl Boundary {
    /// Generated code with this done to it; `None` if the mask or the maximum is not found, or they
    /// come in another order.
    pub fn plant(self, source: &str) -> Option<String> {
        let (before, rest) = source.split_once(CUT)?;
        let (mask, rest) = rest.split_once("\n    }\n")?;
        let mask = format!("{CUT}{mask}\n    }}\n");
        let maximum = rest.find(MAXIMUM)?;
        let behind = maximum + rest[maximum..].find('\n')? + 1;
        Some(match self {
            Boundary::Kept => source.to_owned(),
            Boundary::LeftOut => format!("{before}{rest}"),
            Boundary::AfterMaximum => format!("{before}{}{mask}{}", &rest[..behind], &rest[behind..]),
        })
    }
}

/// Scores so large and so often negative that all scores of a row may be far below 0, the score of
/// a key beyond the last one.
const LARGE_SCALE: f32 = 100.0;

/// Cases whose last tile of keys is cut: ordinary values, and large scores over three keys.
fn cases() -> Vec<Case> {
    let is_base = |case: &Case| case.kernel == "attention" && case.elem == Elem::F16 && case.name().ends_with("/normal");
    let base = conformance::cases().into_iter().find(is_base).expect("the suite has a case of attention in f16");
    let with = |n, scalars| {
        let sizes = vec![("B", 1), ("H", 1), ("G", 1), ("M", 64), ("N", n)];
        Case { sizes, consts: vec![("D", 64)], scalars, ..base.clone() }
    };
    vec![with(67, vec![("scale", 0.125)]), with(3, vec![("scale", LARGE_SCALE)])]
}

/// How many of the cases are wrong with this done to the boundary mask, and how many there are.
/// Needs NVRTC.
///
/// # Errors The generated code has no boundary mask before its maximum, or cannot be run.
pub fn wrong(boundary: Boundary, options: &LaunchOptions) -> Result<(usize, usize)> {
    let arch = options.arch.expect("code is generated for an architecture");
    let schedule: Schedule = defaults(arch).with("block_m=64,block_n=64,warps=4,running_max=exact,fragments=single")?;
    let cases = cases();
    let mut wrong = 0;
    for case in &cases {
        let mut prepared = case.prepare()?;
        let kernel = prepared.kernel.clone();
        let source = lowering::generate(&kernel.instance(Facts::best(kernel.ir())), &schedule, arch)?.source;
        let planted = boundary.plant(&source);
        let planted =
            planted.ok_or_else(|| Failure::Verification("generated code has no boundary mask to plant a fault in".into()))?;
        let mut options = LaunchOptions { schedule: Some(schedule.clone()), ..options.clone() };
        options.emulation.code = Some(EmulatedCode::Cuda(Arc::from(planted)));
        let loaded = kernel.on_with(&Device::emulator(), options)?;
        flashtile::verify::run(&loaded, &mut prepared.arguments)?;
        wrong += usize::from(prepared.judge().1.is_some());
    }
    Ok((wrong, cases.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashtile::Arch;

    /// Needs NVRTC: found, or installed once.
    #[test]
    fn both_faults_of_the_boundary_mask_are_found() {
        for arch in ["sm_75", "sm_80"] {
            let options = LaunchOptions { arch: Some(Arch::named(arch).expect("in the table")), ..LaunchOptions::default() };
            let found = |boundary| wrong(boundary, &options).unwrap_or_else(|error| panic!("{boundary:?} on {arch}: {error}"));
            assert_eq!(found(Boundary::Kept), (0, 2), "{arch}");
            assert_eq!(found(Boundary::LeftOut), (2, 2), "{arch}");
            // A maximum that is too large only shifts the exponentials, until all of a row
            // underflow.
            assert_eq!(found(Boundary::AfterMaximum), (1, 2), "{arch}");
        }
    }
}
