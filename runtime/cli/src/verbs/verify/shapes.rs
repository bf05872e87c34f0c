//! Checks of kernels on shapes: kernels of one's own, gradients, and shapes or data that are given.

use std::collections::BTreeMap;

use flashtile::conformance;
use flashtile::device::Emulation;
use flashtile::tuner::{Chain, InputData, Slopes, slopes};
use flashtile::{Arch, BoundKernel, Device, Gradient, Kernel, LaunchOptions, Schedule, verify};
use serde_json::json;

use super::flags::{Flags, arch_drawn_for};
use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::gradient::has_more_outputs;
use crate::output::Output;
use crate::settings::Sizes;
use crate::subject::{DType, Subject, SubjectFlags};
use crate::target::launch_options;

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
    /// Those that were judged: not on steep inputs on which the text itself overflows.
    judged: usize,
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
pub(super) fn shapes(flags: &Flags, kernel: &str, device: &Device, options: &LaunchOptions, output: &mut Output) -> Result<()> {
    let subjects = shaped(flags, kernel, output)?;
    // Steep inputs need several tiles of keys, and rows that see few of them.
    let steep_shapes = if flags.shape.is_empty() || flags.data.is_empty() { verify::STEEP_SHAPES } else { 0 };
    let mut check = Shapes { flags, device, options, wrong: 0, cases: 0, judged: 0, draw: None };
    for (at, (subject, sizes)) in subjects.iter().enumerate() {
        let data = subject.input_data(&flags.data)?;
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
pub(super) fn drawn_shapes(
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
    let linked = |(subject, sizes)| Ok((links(flags, kernel, &subject)?, subject, sizes));
    let subjects = shaped(flags, kernel, output)?.into_iter().map(linked).collect::<Result<Vec<_>>>()?;
    let mut check = Shapes { flags, device, options: &options, wrong: 0, cases: 0, judged: 0, draw: None };
    for number in 0..count {
        let (links, subject, sizes) = &subjects[number % subjects.len()];
        check.draw = Some((arch, number));
        let data = subject.input_data(&flags.data)?;
        let mut chain = Chain::new(links.iter().map(|link| link.kernel.clone()).collect(), sizes, flags.seed, &data)?;
        let steep = if number % 2 == 1 { chain.steep()? } else { None };
        match steep {
            Some((data, mut chain)) => check.chain(links, &mut chain, sizes, Some(&data), output)?,
            None => check.chain(links, &mut chain, sizes, None, output)?,
        }
    }
    let (judged, cases, seed) = (check.judged, check.cases, flags.seed);
    if !flags.list && output.json {
        let line = json!({ "judged": judged, "cases": cases, "wrong": check.wrong, "device": device.to_string(), "seed": seed });
        output.json(&line)?;
    }
    if !flags.list && !output.json && check.wrong == 0 {
        if judged < cases {
            output.note(format!("note: {} of {cases} checks were not judged: the text overflows there in f32", cases - judged));
        }
        output.text(format!("{judged} of {cases} checks passed with schedules drawn with --seed {seed} on {device}"))?;
    }
    check.end()
}

/// The kernel that is named with the sizes of every shape that it is checked on.
fn shaped(flags: &Flags, kernel: &str, output: &Output) -> Result<Vec<(Subject, BTreeMap<String, i64>)>> {
    let subject = |shape: Vec<Sizes>| {
        let flags =
            SubjectFlags { kernel: kernel.to_owned(), dtype: flags.dtype.unwrap_or(DType::Bf16), set: flags.set.clone(), shape };
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

/// The schedule of a draw behind what a line calls it.
fn of_draw(schedule: Option<&Schedule>) -> String {
    schedule.map(|schedule| format!(" schedule={schedule}")).unwrap_or_default()
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

    /// What lines call a check, and whether --filter leaves it.
    fn case(&self, name: &str, sizes: &BTreeMap<String, i64>, steep: Option<&InputData>) -> (String, bool) {
        let on = steep.map(|data| format!(" data={data}")).unwrap_or_default();
        let case = format!("{name} {} seed={}{on}", shape_text(sizes), self.flags.seed);
        let asked = self.flags.filter.iter().all(|text| case.contains(text));
        (case, asked)
    }

    /// What JSON says of a check.
    fn line(
        &self,
        name: &str,
        sizes: &BTreeMap<String, i64>,
        steep: Option<&InputData>,
        schedule: Option<&Schedule>,
    ) -> serde_json::Value {
        let mut line = json!({ "kernel": name, "shape": sizes, "seed": self.flags.seed, "data": steep });
        if let Some(schedule) = schedule {
            line["schedule"] = schedule.to_string().into();
        }
        line
    }

    /// The schedule that is drawn for a kernel of a chain, if any is.
    fn drawn(&self, kernel: &BoundKernel, chain: &Chain) -> Result<Option<Schedule>> {
        let Some((arch, number)) = self.draw else { return Ok(None) };
        let instance = kernel.instance(chain.facts(kernel)?);
        Ok(Some(conformance::drawn_schedule(&instance, arch, self.flags.seed, number)?))
    }

    /// Says what would be checked, and with which schedules where they are drawn.
    fn list(
        &mut self,
        links: &[Link],
        chain: &Chain,
        sizes: &BTreeMap<String, i64>,
        steep: Option<&InputData>,
        output: &mut Output,
    ) -> Result<()> {
        for Link { name, kernel, .. } in links.iter().filter(|link| link.judged) {
            let (case, asked) = self.case(name, sizes, steep);
            if !asked {
                continue;
            }
            self.cases += 1;
            let schedule = self.drawn(kernel, chain)?;
            match output.json {
                true => output.json(&self.line(name, sizes, steep, schedule.as_ref()))?,
                false => output.text(format!("{case}{}", of_draw(schedule.as_ref())))?,
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
        let (case, asked) = self.case(&name, sizes, None);
        if !asked {
            return Ok(());
        }
        self.cases += 1;
        if self.flags.list {
            return match output.json {
                true => output.json(&json!({ "kernel": name, "shape": sizes, "seed": self.flags.seed })),
                false => output.text(case),
            };
        }
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

    /// Runs kernels one after the other and tells what is wrong, or lists what it would run. On steep
    /// inputs it ends where a text itself overflows in f32.
    fn chain(
        &mut self,
        links: &[Link],
        chain: &mut Chain,
        sizes: &BTreeMap<String, i64>,
        steep: Option<&InputData>,
        output: &mut Output,
    ) -> Result<()> {
        if self.flags.list {
            return self.list(links, chain, sizes, steep, output);
        }
        for Link { name, kernel, judged } in links {
            let (case, asked) = self.case(name, sizes, steep);
            if !judged || !asked {
                chain.pass()?;
                continue;
            }
            self.cases += 1;
            let schedule = self.drawn(kernel, chain)?;
            let line = self.line(name, sizes, steep, schedule.as_ref());
            let of_draw = of_draw(schedule.as_ref());
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
            self.judged += 1;
            for verdict in verdicts {
                match output.json {
                    true => {
                        let mut line = line.clone();
                        line["output"] = json!(verdict);
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
