//! Running cases and judging what came out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use flashtile_dsl::ir::{Entity, Kernel};
use rayon::prelude::*;
use serde::Serialize;

use super::case::Case;
use super::data;
use crate::device::{Device, LaunchOptions};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::launch::LoadedKernel;
use crate::verify::{self, HostArgument, OutputVerdict, Programs, Reference};

/// A case ready to be launched.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The kernel.
    pub kernel: BoundKernel,
    /// Arguments in order of the parameters. The outputs are poisoned; a launch overwrites them in place.
    pub arguments: Vec<HostArgument>,
    reference: Reference,
    before: Vec<HostArgument>,
}

/// How one case went.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaseResult {
    /// Name of the case.
    pub name: String,
    /// The judgement of every output; empty if the launch failed.
    pub outputs: Vec<OutputVerdict>,
    /// What is wrong, in words; `None` if all is right.
    pub failure: Option<String>,
}

/// How all cases went.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// One per case, in order of the table.
    pub cases: Vec<CaseResult>,
}

impl Report {
    /// Number of cases that passed.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|c| c.failure.is_none()).count()
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|c| c.failure.is_some())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.failures() {
            writeln!(f, "failed {}: {}", case.name, case.failure.as_deref().unwrap_or_default())?;
        }
        write!(f, "{} of {} cases passed", self.passed(), self.cases.len())
    }
}

impl Case {
    /// Makes the arguments and computes what the launch must give.
    ///
    /// # Errors
    /// The kernel of the case has errors.
    pub fn prepare(&self) -> Result<Prepared> {
        let kernel = self.bound()?;
        let arguments = data::arguments(self, kernel.ir());
        let reference = Reference::new(&kernel, &self.sizes_by_id(kernel.ir()), &arguments, Programs::All)?;
        Ok(Prepared { kernel, before: arguments.clone(), arguments, reference })
    }

    /// How the case goes on what `launch` runs kernels on.
    fn judged(&self, launch: impl FnOnce(&BoundKernel, &mut [HostArgument]) -> Result<()>) -> CaseResult {
        let judged = self.prepare().and_then(|mut prepared| {
            launch(&prepared.kernel, &mut prepared.arguments)?;
            Ok(prepared.judge())
        });
        let (outputs, failure) = judged.unwrap_or_else(|error| (Vec::new(), Some(error.to_string())));
        CaseResult { name: self.name(), outputs, failure }
    }

    fn sizes_by_id(&self, kernel: &Kernel) -> Vec<i64> {
        let sizes = self.all_sizes();
        kernel.sizes.values().map(|s| *sizes.get(s.name.as_str()).expect("the table gives every size")).collect()
    }
}

impl Prepared {
    /// Judges the arguments after the launch.
    pub fn judge(&self) -> (Vec<OutputVerdict>, Option<String>) {
        let outputs = self.reference.check(&self.arguments);
        let ir = self.kernel.ir();
        let stray = self.reference.outputs.iter().find_map(|output| {
            let tensor = |all: &[HostArgument]| all[output.param.index()].tensor().cloned();
            let (before, after) = (tensor(&self.before)?, tensor(&self.arguments)?);
            data::inspect(&ir.params[output.param].name, &before, &after)
        });
        let wrong = outputs.iter().find(|o| !o.passed()).map(ToString::to_string);
        (outputs, stray.or(wrong))
    }
}

/// Runs cases on a device.
pub fn run<'a>(device: &Device, options: &LaunchOptions, cases: impl IntoIterator<Item = &'a Case>) -> Report {
    run_watched(device, options, cases, |_| {})
}

/// Runs cases on a device, telling `watch` of each as it is judged. Cases of one bound kernel follow each
/// other on one [`LoadedKernel`], which plans its schedules once; bound kernels run side by side. Where
/// the schedule is given each case is loaded by itself, so that it finds nothing that a case before it
/// left.
pub fn run_watched<'a>(
    device: &Device,
    options: &LaunchOptions,
    cases: impl IntoIterator<Item = &'a Case>,
    watch: impl Fn(&CaseResult) + Sync,
) -> Report {
    let cases: Vec<&Case> = cases.into_iter().collect();
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let is_given = options.schedule.is_some() || options.plans.is_some();
    for (number, case) in cases.iter().enumerate() {
        let alone = is_given.then_some(number);
        groups.entry((case.kernel, case.elem.name(), &case.consts, alone)).or_default().push(number);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    // The longest first, so that no thread is left with one at the end.
    groups.sort_by_key(|group| Reverse(group.len()));
    let of_group = |group: Vec<usize>| {
        let mut loaded: Option<LoadedKernel> = None;
        let launch = |kernel: &BoundKernel, arguments: &mut [HostArgument]| {
            let loaded = match &mut loaded {
                Some(loaded) => loaded,
                none => none.insert(kernel.on_with(device, options.clone())?),
            };
            verify::run(loaded, arguments)
        };
        judge_group(&cases, group, launch, &watch)
    };
    let mut judged: Vec<(usize, CaseResult)> = groups.into_par_iter().with_max_len(1).flat_map_iter(of_group).collect();
    judged.sort_by_key(|(number, _)| *number);
    Report { cases: judged.into_iter().map(|(_, result)| result).collect() }
}

/// Runs the cases of these numbers one after the other.
fn judge_group(
    cases: &[&Case],
    group: Vec<usize>,
    mut launch: impl FnMut(&BoundKernel, &mut [HostArgument]) -> Result<()>,
    watch: impl Fn(&CaseResult),
) -> Vec<(usize, CaseResult)> {
    let of_case = |number: usize| {
        let result = cases[number].judged(&mut launch);
        watch(&result);
        (number, result)
    };
    group.into_iter().map(of_case).collect()
}

/// Runs cases on whatever `launch` runs kernels on: it reads the inputs and overwrites the outputs' memory.
pub fn run_with<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    launch: impl Fn(&BoundKernel, &mut [HostArgument]) -> Result<()> + Sync,
) -> Report {
    judge_all(cases, |_, kernel, arguments| launch(kernel, arguments), |_| {})
}

/// Cases are independent, and most of a case is the compiler's and the oracle's work: they run side by side. `launch` is told
/// the number of the case too.
pub(super) fn judge_all<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    launch: impl Fn(usize, &BoundKernel, &mut [HostArgument]) -> Result<()> + Sync,
    watch: impl Fn(&CaseResult) + Sync,
) -> Report {
    let cases: Vec<&Case> = cases.into_iter().collect();
    let of_case = |(number, case): (usize, &Case)| {
        let result = case.judged(|kernel, arguments| launch(number, kernel, arguments));
        watch(&result);
        result
    };
    Report { cases: cases.into_par_iter().enumerate().map(of_case).collect() }
}
