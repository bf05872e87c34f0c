//! `flashtile verify`: results against the float64 oracle, by the conformance suite, with the default or drawn schedules, or on
//! shapes of one's own.

use std::collections::BTreeMap;

use clap::Args;
use flashtile::conformance::{self, Case, CaseResult, Comparison, Sample};
use flashtile::device::{DeviceKind, Emulation};
use flashtile::tuner::{Chain, InputData, Slopes, slopes};
use flashtile::{Arch, BoundKernel, Device, Elem, Gradient, Kernel, LaunchOptions, Schedule, verify};
use indicatif::ProgressBar;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::gradient::{GradientFlags, has_more_outputs};
use crate::output::Output;
use crate::settings::{Numbers, Sizes};
use crate::subject::{DType, Subject, SubjectFlags};
use crate::target::{DEFAULT_ARCH, EmulationFlags, PlanFlags, arch_named, launch_options};

/// Flags of `flashtile verify`.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// A built-in's name, FILE, or FILE:NAME; one that the suite has runs its cases
    #[arg(required_unless_present = "all")]
    kernel: Option<String>,
    /// Run the cases of this kernel of the suite, and its oracle, on KERNEL, which must have the same parameters: whether one
    /// computes what the other does
    #[arg(long = "as", value_name = "NAME", conflicts_with_all = ["all", "shape", "schedules", "list", "grad"])]
    role: Option<String>,
    /// Run the whole conformance suite
    #[arg(long, conflicts_with_all = ["kernel", "grad"])]
    all: bool,
    /// Device: cpu, cuda:N or emulator; by default the best one there is that is not the emulator
    #[arg(long)]
    device: Option<String>,
    /// Only cases whose name contains this, such as bf16 or D256; may be repeated, all must hold; a
    /// whole name is that case alone. With --shape, --grad or a kernel of one's own: only lines
    /// that contain this before the colon, such as N=1
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Only the cases that are quick even on slow devices; on the emulator all others must be asked for with --filter
    #[arg(long, conflicts_with = "grad")]
    small: bool,
    /// List the cases instead of running them
    #[arg(long)]
    list: bool,
    /// Run so many cases of the suite, drawn at random, each with a legal schedule of which every knob is drawn. With
    /// --shape, --data, --grad or a kernel of one's own: so many schedules, on its shapes in turns
    #[arg(long, value_name = "N", conflicts_with = "schedule")]
    schedules: Option<usize>,
    /// Check these shapes instead of the suite, such as B=1,H=2,G=1,M=113,N=203,D=64; may be repeated
    #[arg(long, alias = "shapes", value_name = "NAME=SIZE,..", conflicts_with = "all")]
    shape: Vec<Sizes>,
    /// With --shape, --data or a kernel of one's own: constants and scalars by name; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    set: Vec<Numbers>,
    /// With --shape or a kernel of one's own: element type
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: DType,
    /// With --shape or a kernel of one's own: seed of the random inputs; a case of the suite has its own. With --schedules:
    /// seed of the draw
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// With --shape or a kernel of one's own, and else in place of the suite: what an input holds where the kernel's text should not say it; may be repeated.
    /// Settings, apart by commas: scale=S, growth=G (rows grow from a tenth to G), normal, range=A..B, constant=C, ids=N,
    /// sorted-ids=N, even-ids=N, lengths[=N], bits=SHARE, permutation
    #[arg(long, value_name = "NAME:SETTING,..", conflicts_with_all = ["all", "role"])]
    data: Vec<InputData>,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Run with this schedule: knobs on top of the defaults
    #[arg(long, value_name = "KNOB=VALUE,..")]
    schedule: Option<String>,
    #[command(flatten)]
    gradient: GradientFlags,
    #[command(flatten)]
    plan: PlanFlags,
    /// With --schedules: run every sample on this device too, with the same source, and compare the outputs bit by bit
    #[arg(long, value_name = "DEVICE", requires = "schedules")]
    against: Option<String>,
    #[command(flatten)]
    emulation: EmulationFlags,
}

/// Verifies.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let in_suite = flags.kernel.as_ref().is_none_or(|name| conformance::cases().iter().any(|case| case.kernel == *name));
    let on_shapes = !flags.shape.is_empty() || !flags.data.is_empty() || flags.plan.is_given() || flags.gradient.is_given();
    // What is no case of the suite is run on shapes.
    let of_shapes = flags.kernel.as_deref().filter(|_| on_shapes || !in_suite);
    if flags.list && flags.gradient.is_given() && flags.schedules.is_none() {
        return Err(Failure::Usage("--list with --grad says what --schedules draws; give --schedules N, or leave it out".into()));
    }
    flags.gradient.refuse_plan(&flags.plan)?;
    if flags.plan.is_given() && (flags.all || flags.schedules.is_some() || flags.role.is_some()) {
        let what = "--plan checks one kernel of one's own choice, with --shape or at its usual shapes";
        return Err(Failure::Usage(format!("{what}; leave out --all, --schedules and --as")));
    }
    if flags.list && in_suite && flags.shape.is_empty() && flags.data.is_empty() && flags.schedules.is_none() {
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
            return Err(Failure::Usage("--against compares cases of the suite; leave out --shape, --data and --grad".into()));
        }
        (Some(count), Some(kernel)) => return drawn_shapes(flags, kernel, count, &device, emulation, global, output),
        (Some(count), None) => return sampled(flags, count, [Some(&device), against.as_ref()], emulation, global, output),
    }
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    let options = LaunchOptions { emulation, ..options };
    if let (Some(kernel), Some(role)) = (&flags.kernel, &flags.role) {
        return in_role(flags, kernel, role, &device, &options, output);
    }
    match of_shapes {
        Some(kernel) => shapes(flags, kernel, &device, &options, output),
        None => suite(flags, &device, &options, output),
    }
}

/// The architecture that schedules are drawn for. A list of what would run needs no GPU.
fn arch_drawn_for(flags: &Flags, device: &Device) -> Result<&'static Arch> {
    match (flags.arch.as_deref().map(arch_named).transpose()?, &device.info().gpu) {
        (Some(arch), _) if flags.list || device.compiles() => Ok(arch),
        (None, Some(gpu)) => Ok(Arch::for_capability(gpu.capability.0, gpu.capability.1).expect("a device has an architecture")),
        (None, None) if device.compiles() => arch_named(DEFAULT_ARCH),
        _ => {
            let instead = "give --device cuda:N or emulator, or --list and --arch ARCH to see what is drawn";
            Err(Failure::Usage(format!("{device} compiles nothing, so schedules do not matter there; {instead}")))
        }
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
    let cases = chosen_for(&Flags { kernel: Some(role.to_owned()), ..flags.clone() }, device, output)?;
    if device.compiles() {
        options.toolchain.nvrtc()?; // one clear error instead of one per case
    }
    let kernel = Kernel::open(kernel)?;
    let report = conformance::run_with(&cases, |bound, arguments| {
        let loaded = kernel.bind_to(bound.binding().clone())?.on_with(device, options.clone())?;
        verify::run(&loaded, arguments)
    });
    for (case, result) in cases.iter().zip(&report.cases) {
        tell(case, result, output)?;
    }
    summary(&report.cases, device, None, output)
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

/// A check on shapes: those given, else those that exercise a kernel's text. The kernel is judged,
/// or the kernels of its gradient, each on what those before it store.
struct Shapes<'a> {
    flags: &'a Flags,
    device: &'a Device,
    options: &'a LaunchOptions,
    /// Outputs that are wrong.
    wrong: usize,
    /// Cases that --filter leaves.
    cases: usize,
    /// For which architecture schedules are drawn, and the number of the draw.
    draw: Option<(&'static Arch, usize)>,
}

/// A kernel that is run on a shape.
struct Link {
    /// What lines call it.
    name: String,
    kernel: BoundKernel,
    /// Whether it runs on the device; else only the oracle runs it, for what it stores.
    judged: bool,
}

/// Checks a kernel on shapes.
fn shapes(flags: &Flags, kernel: &str, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let subjects = shaped(flags, kernel, output)?;
    // Steep inputs need several tiles of keys, and rows that see few of them.
    let steep_shapes = if flags.shape.is_empty() || flags.data.is_empty() { verify::STEEP_SHAPES } else { 0 };
    let mut check = Shapes { flags, device, options, wrong: 0, cases: 0, draw: None };
    for (at, (subject, sizes)) in subjects.iter().enumerate() {
        let data = subject.input_data(&flags.data);
        let links = links(flags, kernel, subject)?;
        let mut chain = Chain::new(links.iter().map(|link| link.kernel.clone()).collect(), sizes, flags.seed, &data)?;
        check.chain(&links, &mut chain, sizes, None, output)?;
        if at < steep_shapes
            && let Some((data, mut chain)) = chain.steep()?
        {
            check.chain(&links, &mut chain, sizes, Some(&data), output)?;
        }
        if let Some(gradient) = flags.gradient.of(&subject.kernel)? {
            check.slopes(&gradient, subject, sizes, &data, output)?;
        }
    }
    check.end()
}

/// Checks a kernel, or the kernels of its gradient, with schedules drawn for them, on its shapes in turns. Every second
/// draw has steep inputs.
fn drawn_shapes(
    flags: &Flags,
    kernel: &str,
    count: usize,
    device: &Device,
    emulation: Emulation,
    global: &GlobalFlags,
    output: &mut Output,
) -> Result<()> {
    let arch = arch_drawn_for(flags, device)?;
    let options = match flags.list {
        true => LaunchOptions::default(),
        false => LaunchOptions { emulation, ..launch_options(global, device, Some(arch.name), None)? },
    };
    if !flags.list {
        options.toolchain.nvrtc()?; // one clear error instead of one per draw
    }
    let subjects = shaped(flags, kernel, output)?;
    let mut check = Shapes { flags, device, options: &options, wrong: 0, cases: 0, draw: None };
    for number in 0..count {
        let (subject, sizes) = &subjects[number % subjects.len()];
        check.draw = Some((arch, number));
        let data = subject.input_data(&flags.data);
        let links = links(flags, kernel, subject)?;
        let mut chain = Chain::new(links.iter().map(|link| link.kernel.clone()).collect(), sizes, flags.seed, &data)?;
        let steep = if number % 2 == 1 { chain.steep()? } else { None };
        match steep {
            _ if flags.list => check.list(&links, &chain, sizes, output)?,
            Some((data, mut chain)) => check.chain(&links, &mut chain, sizes, Some(&data), output)?,
            None => check.chain(&links, &mut chain, sizes, None, output)?,
        }
    }
    if !flags.list && !output.json && check.wrong == 0 {
        let (cases, seed) = (check.cases, flags.seed);
        output.text(format!("{cases} of {cases} checks passed with schedules drawn with --seed {seed} on {device}"))?;
    }
    check.end()
}

/// The kernel that is named with the sizes of every shape that it is checked on.
fn shaped(flags: &Flags, kernel: &str, output: &Output) -> Result<Vec<(Subject, BTreeMap<String, i64>)>> {
    let subject = |shape: Vec<Sizes>| {
        let flags = SubjectFlags { kernel: kernel.to_owned(), dtype: flags.dtype, set: flags.set.clone(), shape };
        let mut subject = flags.open()?;
        let consts = verify::default_consts(subject.kernel.ir(), &subject.consts);
        for (name, value) in consts.iter().filter(|(name, _)| !subject.consts.contains_key(*name)) {
            output.note(format!("note: {name}={value}; give --set {name}=.. for another"));
        }
        subject.consts = consts;
        Ok::<Subject, Failure>(subject)
    };
    if flags.shape.is_empty() {
        let subject = subject(Vec::new())?;
        return Ok(subject.checked_shapes().into_iter().map(|sizes| (subject.clone(), sizes)).collect());
    }
    let sized = |shape: &Sizes| {
        let subject = subject(vec![shape.clone()])?;
        let sizes = subject.all_sizes()?;
        Ok((subject, sizes))
    };
    flags.shape.iter().map(sized).collect()
}

/// What is run for a kernel: itself, or the kernels of its gradient. Of these the forward kernel is
/// judged if it is another than the kernel that is named.
fn links(flags: &Flags, kernel: &str, subject: &Subject) -> Result<Vec<Link>> {
    let link = |name: &str, kernel: Kernel, judged| {
        let of = subject.of_kernel(kernel);
        Ok(Link { name: name.to_owned(), kernel: of.kernel.bind(of.elem, of.consts)?, judged })
    };
    let Some(gradient) = flags.gradient.of(&subject.kernel)? else {
        return Ok(vec![link(kernel, subject.kernel.clone(), true)?]);
    };
    let more = has_more_outputs(&gradient, &subject.kernel);
    let forward = link(gradient.forward.name(), gradient.forward.clone(), more);
    let backward = gradient.backward.iter().map(|kernel| link(kernel.name(), kernel.clone(), true));
    [forward].into_iter().chain(backward).collect()
}

/// Sizes as `--shape` takes them.
fn shape_text(sizes: &BTreeMap<String, i64>) -> String {
    sizes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",")
}

impl Shapes<'_> {
    /// What the whole check says.
    fn end(&self) -> Result<()> {
        match self {
            Shapes { cases: 0, .. } => Err(Failure::Usage("--filter leaves no case; leave it out to see their names".to_owned())),
            Shapes { wrong: 0, .. } => Ok(()),
            Shapes { wrong, .. } => Err(Failure::Verification(format!("{wrong} outputs are wrong"))),
        }
    }

    /// The schedule that is drawn for a kernel of a chain, if any is.
    fn drawn(&self, kernel: &BoundKernel, chain: &Chain) -> Result<Option<Schedule>> {
        let Some((arch, number)) = self.draw else { return Ok(None) };
        let instance = kernel.instance(chain.facts(kernel)?);
        Ok(Some(conformance::drawn_schedule(&instance, arch, self.flags.seed, number)?))
    }

    /// Says which schedules a draw is of.
    fn list(&mut self, links: &[Link], chain: &Chain, sizes: &BTreeMap<String, i64>, output: &mut Output) -> Result<()> {
        let shape = shape_text(sizes);
        for Link { name, kernel, .. } in links.iter().filter(|link| link.judged) {
            let case = format!("{name} {shape} seed={}", self.flags.seed);
            if !self.flags.filter.iter().all(|text| case.contains(text)) {
                continue;
            }
            self.cases += 1;
            let schedule = self.drawn(kernel, chain)?.expect("a draw is listed").to_string();
            match output.json {
                true => output.json(&json!({ "kernel": name, "shape": sizes, "seed": self.flags.seed, "schedule": schedule }))?,
                false => output.text(format!("{case} schedule={schedule}"))?,
            }
        }
        Ok(())
    }

    /// Compares the kernels of a gradient, taken together, with slopes of the forward kernel.
    fn slopes(
        &mut self,
        gradient: &Gradient,
        subject: &Subject,
        sizes: &BTreeMap<String, i64>,
        data: &InputData,
        output: &mut Output,
    ) -> Result<()> {
        let name = format!("{}_grad", subject.kernel.name());
        let case = format!("{name} {} seed={}", shape_text(sizes), self.flags.seed);
        if !self.flags.filter.iter().all(|text| case.contains(text)) {
            return Ok(());
        }
        self.cases += 1;
        let data = data.of_inputs(gradient.forward.ir());
        let found = slopes(gradient, &subject.consts, sizes, self.flags.seed, &data)?;
        if output.json {
            output.json(&json!({ "kernel": name, "shape": sizes, "seed": self.flags.seed, "slopes": found }))?;
        }
        match found {
            Slopes::None { why } => output.note(format!("note: {case}: not compared with slopes: {why}")),
            Slopes::Of(slopes) => {
                for slope in slopes {
                    if !output.json {
                        output.text(format!("{case}: {slope}"))?;
                    }
                    self.wrong += usize::from(!slope.passed());
                }
            }
        }
        Ok(())
    }

    /// Runs kernels one after the other and tells what is wrong. On steep inputs it ends where a
    /// text itself overflows in f32.
    fn chain(
        &mut self,
        links: &[Link],
        chain: &mut Chain,
        sizes: &BTreeMap<String, i64>,
        steep: Option<&InputData>,
        output: &mut Output,
    ) -> Result<()> {
        let shape = shape_text(sizes);
        let on = steep.map(|data| format!(" data={data}")).unwrap_or_default();
        for Link { name, kernel, judged } in links {
            let case = format!("{name} {shape} seed={}{on}", self.flags.seed);
            if !judged || !self.flags.filter.iter().all(|text| case.contains(text)) {
                chain.pass()?;
                continue;
            }
            self.cases += 1;
            let schedule = self.drawn(kernel, chain)?;
            let of_draw = schedule.as_ref().map(|schedule| format!(" schedule={schedule}")).unwrap_or_default();
            let mut options = self.flags.plan.apply(self.options.clone(), self.device, kernel)?;
            options.schedule = schedule.or(options.schedule);
            let loaded = kernel.on_with(self.device, options)?;
            let verdicts = match steep {
                None => chain.judge(&loaded)?,
                Some(_) => match chain.judge_steady(&loaded)? {
                    Some(verdicts) => verdicts,
                    None => return Ok(()),
                },
            };
            for verdict in verdicts {
                match output.json {
                    true => {
                        let mut line = json!({
                            "kernel": name, "shape": sizes, "seed": self.flags.seed, "data": steep, "output": verdict
                        });
                        if !of_draw.is_empty() {
                            line["schedule"] = of_draw.trim_start_matches(" schedule=").into();
                        }
                        output.json(&line)?;
                    }
                    // Of many draws those that are wrong.
                    false if self.draw.is_some() && verdict.passed() => {}
                    false => output.text(format!("{case}{of_draw}: {verdict}"))?,
                }
                self.wrong += usize::from(!verdict.passed());
            }
        }
        Ok(())
    }
}
