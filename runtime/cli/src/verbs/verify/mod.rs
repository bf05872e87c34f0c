//! `flashtile verify`: results against the float64 oracle, by the conformance suite, with the default or drawn schedules, or on
//! shapes of one's own.

mod flags;
mod shapes;

use std::collections::BTreeSet;

use flashtile::conformance::{self, Case, CaseResult, Comparison, Sample};
use flashtile::device::{DeviceKind, Emulation};
use flashtile::{Device, Elem, Kernel, LaunchOptions, verify};
use flashtile_dsl::ir::{Param, ParamKind};
use indicatif::ProgressBar;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::Output;
use crate::target::{arch_named, launch_options};

pub use flags::Flags;
use flags::arch_drawn_for;

/// Verifies.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let in_suite = flags.kernel.as_ref().is_none_or(|name| conformance::cases().iter().any(|case| case.kernel == *name));
    let on_shapes = !flags.shape.is_empty() || !flags.data.is_empty() || flags.plan.is_given() || flags.gradient.is_given();
    // What is no case of the suite is run on shapes.
    let of_shapes = flags.kernel.as_deref().filter(|_| on_shapes || !in_suite);
    flags.gradient.refuse_plan(&flags.plan)?;
    if of_shapes.is_none() && (!flags.set.is_empty() || flags.dtype.is_some()) {
        let what = "cases of the suite have constants, scalars and types of their own";
        return Err(Failure::Usage(format!("{what}; give --shape with --set and --dtype, or choose cases by --filter")));
    }
    if flags.schedules == Some(0) {
        return Err(Failure::Usage("--schedules 0 runs nothing; give 1 or more".to_owned()));
    }
    if flags.plan.is_given() && (flags.all || flags.schedules.is_some() || flags.role.is_some()) {
        let what = "--plan checks one kernel of one's own choice, with --shape or at its usual shapes";
        return Err(Failure::Usage(format!("{what}; leave out --all, --schedules and --as")));
    }
    if flags.list && of_shapes.is_none() && flags.schedules.is_none() {
        return chosen(flags)?.iter().try_for_each(|case| list(case, output));
    }
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => Device::best(),
    };
    let against = flags.against.as_deref().map(str::parse).transpose()?;
    let emulated = [Some(&device), against.as_ref()].into_iter().flatten().find(|d| d.info().kind == DeviceKind::Emulator);
    let emulation = flags.emulation.emulation(emulated.unwrap_or(&device))?;
    match (flags.schedules, of_shapes) {
        (None, _) => {}
        (Some(_), Some(_)) if against.is_some() => {
            return Err(Failure::Usage(
                "--against compares cases of the suite: name a kernel of it, and leave out --shape, --data and --grad".into(),
            ));
        }
        (Some(count), Some(kernel)) => return shapes::drawn_shapes(flags, kernel, count, &device, emulation, global, output),
        (Some(count), None) => return sampled(flags, count, [Some(&device), against.as_ref()], emulation, global, output),
    }
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    let options = LaunchOptions { emulation, ..options };
    if let (Some(kernel), Some(role)) = (&flags.kernel, &flags.role) {
        return in_role(flags, kernel, role, &device, &options, output);
    }
    match of_shapes {
        Some(kernel) => shapes::shapes(flags, kernel, &device, &options, output),
        None => suite(flags, &device, &options, output),
    }
}

/// The cases of the suite that flags leave; at least one.
fn chosen(flags: &Flags) -> Result<Vec<Case>> {
    let mut cases = conformance::cases();
    let names: Vec<String> = cases.iter().map(Case::name).collect();
    // A case may be named by the beginning of another's name.
    let asked = |name: &String, text: &String| name.contains(text) && (name == text || !names.contains(text));
    cases.retain(|case| {
        let name = case.name();
        flags.kernel.as_ref().is_none_or(|kernel| case.kernel == *kernel)
            && (!flags.small || case.small)
            && flags.filter.iter().all(|text| asked(&name, text))
    });
    match cases.is_empty() {
        true => Err(Failure::Usage("no case of the suite is left; see `flashtile verify --all --list`".to_owned())),
        false => Ok(cases),
    }
}

/// The cases that a device runs: of those that flags leave, on the emulator the small ones unless others were named. Those of
/// a type that the architecture asked for lacks are left out.
fn chosen_for(flags: &Flags, device: &Device, output: &mut Output) -> Result<Vec<Case>> {
    let mut cases = chosen(flags)?;
    if let Some(arch) = flags.arch.as_deref().map(arch_named).transpose()?
        && !arch.bf16
        && cases.iter().any(|case| case.elem != Elem::Bf16)
    {
        let all = cases.len();
        cases.retain(|case| case.elem != Elem::Bf16);
        if cases.len() < all {
            output.note(format!("{} of {all} cases are of types that {arch} has; it has no bf16", cases.len()));
        }
    }
    if device.info().kind == DeviceKind::Emulator && flags.filter.is_empty() && cases.iter().any(|case| case.small) {
        let all = cases.len();
        cases.retain(|case| case.small);
        if cases.len() < all && !flags.small {
            output.note(format!("{} of {all} cases are small enough for {device}; name others with --filter", cases.len()));
        }
    }
    Ok(cases)
}

fn list(case: &Case, output: &mut Output) -> Result<()> {
    match output.json {
        true => output.json(&json!({ "case": case.name(), "seed": case.seed(), "small": case.small })),
        false => output.text(format!("{} seed={:#x}", case.name(), case.seed())),
    }
}

/// Runs cases of one kernel of the suite on another kernel.
fn in_role(flags: &Flags, kernel: &str, role: &str, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let suite: BTreeSet<&str> = conformance::cases().iter().map(|case| case.kernel).collect();
    if !suite.contains(role) {
        let known = suite.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("--as {role}: the suite has no kernel of this name; it has {known}")));
    }
    let cases = chosen_for(&Flags { kernel: Some(role.to_owned()), ..flags.clone() }, device, output)?;
    if device.compiles() {
        options.toolchain.nvrtc()?; // one clear error instead of one per case
    }
    let kernel = Kernel::open(kernel)?;
    check_parameters(&kernel, role)?;
    let report = conformance::run_with(&cases, |bound, arguments| {
        let loaded = kernel.bind_to(bound.binding().clone())?.on_with(device, options.clone())?;
        verify::run(&loaded, arguments)
    });
    for (case, result) in cases.iter().zip(&report.cases) {
        tell(case, result, output)?;
    }
    summary(&report.cases, device, None, output)
}

/// Refuses a kernel that has other parameters than the one whose cases it is run on.
fn check_parameters(kernel: &Kernel, role: &str) -> Result<()> {
    let of_role = Kernel::open(role)?;
    let kinds = |kernel: &Kernel| {
        let kind = |param: &Param| match &param.kind {
            ParamKind::Scalar(elem) => kernel.ir().elem_name(*elem).to_owned(),
            ParamKind::Tensor(t) => {
                let reference = if t.direction.is_written() { "&mut " } else { "&" };
                format!("{reference}Tensor of {} with {} dimensions", kernel.ir().elem_name(t.elem), t.shape.len())
            }
        };
        kernel.ir().params.values().map(kind).collect::<Vec<_>>()
    };
    let (own, wanted) = (kinds(kernel), kinds(&of_role));
    if own == wanted {
        return Ok(());
    }
    let what = match own.iter().zip(&wanted).position(|(own, wanted)| own != wanted) {
        Some(at) => format!("parameter {} is {}, and of `{role}` {}", at + 1, own[at], wanted[at]),
        None => format!("{} parameters, and `{role}` {}", own.len(), wanted.len()),
    };
    Err(Failure::Usage(format!("--as {role}: `{}` has other parameters: {what}", kernel.name())))
}

/// Tells of a case as it is judged, so that a run that is stopped has said what it found: a
/// failure, and where no bar is drawn how far the run is.
fn watched(result: &CaseResult, bar: &ProgressBar, output: &Output) {
    const EVERY: u64 = 100;
    bar.set_message(result.name.clone());
    bar.inc(1);
    if let Some(failure) = &result.failure {
        bar.suspend(|| output.note(format!("failed {}: {failure}", result.name)));
    }
    let done = bar.position();
    if bar.is_hidden() && done.is_multiple_of(EVERY) {
        output.note(format!("{done} of {} cases are judged", bar.length().unwrap_or(done)));
    }
}

/// Runs cases of the suite, side by side.
fn suite(flags: &Flags, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let cases = chosen_for(flags, device, output)?;
    if device.compiles() {
        options.toolchain.nvrtc()?; // one clear error instead of one per case
    }
    let bar = output.progress(cases.len(), "verifying");
    let report = conformance::run_watched(device, options, &cases, |result| watched(result, &bar, output));
    bar.finish_and_clear();
    for (case, result) in cases.iter().zip(&report.cases) {
        tell(case, result, output)?;
    }
    summary(&report.cases, device, None, output)
}

/// Runs cases of the suite with schedules drawn for them, side by side; with --list it says which.
fn sampled(
    flags: &Flags,
    count: usize,
    devices: [Option<&Device>; 2],
    emulation: Emulation,
    global: &GlobalFlags,
    output: &mut Output,
) -> Result<()> {
    let device = devices[0].expect("the first is always there");
    // The slower one decides which cases are small enough.
    let slower = devices[1].filter(|d| d.info().kind == DeviceKind::Emulator).unwrap_or(device);
    let cases = chosen_for(flags, slower, output)?;
    let arch = arch_drawn_for(flags, device)?;
    let samples = conformance::samples(&cases, arch, count, flags.seed)?;
    if flags.list {
        return samples.iter().try_for_each(|sample| list_sample(sample, output));
    }
    let options = LaunchOptions { emulation, ..launch_options(global, device, Some(arch.name), None)? };
    options.toolchain.nvrtc()?; // one clear error instead of one per case
    if let Some(other) = devices[1] {
        return compared([device, other], &options, &samples, flags, output);
    }
    let bar = output.progress(samples.len(), "verifying");
    let report = conformance::run_samples(device, &options, &samples, |result| watched(result, &bar, output));
    bar.finish_and_clear();
    for (sample, result) in samples.iter().zip(&report.cases) {
        tell_sample(sample, result, flags, output)?;
    }
    summary(&report.cases, device, Some(flags.seed), output)
}

/// Runs samples on two devices and tells how far they agree.
fn compared(
    devices: [&Device; 2],
    options: &LaunchOptions,
    samples: &[Sample],
    flags: &Flags,
    output: &mut Output,
) -> Result<()> {
    let bar = output.progress(samples.len(), "comparing");
    let own = devices.map(|device| LaunchOptions { arch: options.arch.filter(|_| device.compiles()), ..options.clone() });
    let report = conformance::compare([(devices[0], &own[0]), (devices[1], &own[1])], samples, |comparison| {
        bar.set_message(comparison.name.clone());
        bar.inc(1);
    });
    bar.finish_and_clear();
    for (Sample { schedule, .. }, found) in samples.iter().zip(&report) {
        let failure = found.failure.as_deref();
        match output.json {
            true => {
                let Comparison { name, exact, outputs, failure } = found;
                let schedule = schedule.to_string();
                let line = json!({ "case": name, "exact": exact, "schedule": schedule, "outputs": outputs, "failure": failure });
                output.json(&line)?;
            }
            false => failure.map_or(Ok(()), |f| output.text(format!("failed {} schedule={schedule}: {f}", found.name)))?,
        }
    }
    let failed = report.iter().filter(|c| c.failure.is_some()).count();
    let total = |exact: bool| {
        let outputs = report.iter().filter(|c| c.exact == exact).flat_map(|c| &c.outputs);
        outputs.fold([0, 0, 0], |[all, equal, ulps], o| [all + o.elements, equal + o.equal, ulps.max(o.most_ulps)])
    };
    let [a, b] = devices;
    for (what, [all, equal, ulps]) in [("exact", total(true)), ("other", total(false))] {
        let cases = report.iter().filter(|c| c.exact == (what == "exact")).count();
        match output.json {
            true => {
                let line = json!({ "cases": cases, "kind": what, "elements": all, "equal": equal, "most_ulps": ulps });
                output.json(&line)?;
            }
            false => output.text(format!(
                "{cases} {what} cases: {equal} of {all} elements are the same bits on {a} and {b}, others differ by up to {ulps} ulp"
            ))?,
        }
    }
    let what = format!("{failed} of {} samples, drawn with --seed {}, fail on {a} against {b}", report.len(), flags.seed);
    match (failed, output.json) {
        (0, true) => Ok(()),
        (0, false) => output.text(what),
        _ => Err(Failure::Verification(what)),
    }
}

fn list_sample(Sample { case, schedule }: &Sample, output: &mut Output) -> Result<()> {
    match output.json {
        true => output.json(&json!({ "case": case.name(), "seed": case.seed(), "schedule": schedule.to_string() })),
        false => output.text(format!("{} seed={:#x} schedule={schedule}", case.name(), case.seed())),
    }
}

/// With JSON every sample, else only those that failed, and how to run them again.
fn tell_sample(Sample { case, schedule }: &Sample, result: &CaseResult, flags: &Flags, output: &mut Output) -> Result<()> {
    if output.json {
        let CaseResult { name, outputs, failure } = result;
        let schedule = schedule.to_string();
        let line = json!({ "case": name, "seed": case.seed(), "schedule": schedule, "outputs": outputs, "failure": failure });
        return output.json(&line);
    }
    let Some(failure) = &result.failure else { return Ok(()) };
    output.text(format!("failed {} seed={:#x} schedule={schedule}: {failure}", result.name, case.seed()))?;
    let flag = |name: &str, value: &Option<String>| value.as_ref().map(|v| format!(" --{name} {v}")).unwrap_or_default();
    let (device, arch) = (flag("device", &flags.device), flag("arch", &flags.arch));
    let filter = case.name();
    output.text(format!("  again: flashtile verify {}{device}{arch} --filter {filter} --schedule {schedule}", case.kernel))
}

/// How many passed, and the seed if schedules were drawn; an error if not all passed.
fn summary(results: &[CaseResult], device: &Device, seed: Option<u64>, output: &mut Output) -> Result<()> {
    let (cases, passed) = (results.len(), results.iter().filter(|result| result.failure.is_none()).count());
    match output.json {
        true => {
            let mut line = json!({ "passed": passed, "cases": cases, "device": device.to_string() });
            if let Some(seed) = seed {
                line["seed"] = seed.into();
            }
            output.json(&line)?;
        }
        false => {
            let drawn = seed.map(|seed| format!(" with schedules drawn with --seed {seed}")).unwrap_or_default();
            output.text(format!("{passed} of {cases} cases passed{drawn} on {device} ({})", device.info().name))?;
        }
    }
    let failed = cases - passed;
    if failed == 0 { Ok(()) } else { Err(Failure::Verification(format!("{failed} of {cases} cases failed on {device}"))) }
}

/// With JSON every case, else only those that failed.
fn tell(case: &Case, result: &CaseResult, output: &mut Output) -> Result<()> {
    if output.json {
        let CaseResult { name, outputs, failure } = result;
        return output.json(&json!({ "case": name, "seed": case.seed(), "outputs": outputs, "failure": failure }));
    }
    match &result.failure {
        Some(failure) => output.text(format!("failed {} seed={:#x}: {failure}", result.name, case.seed())),
        None => Ok(()),
    }
}
