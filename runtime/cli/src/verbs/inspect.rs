//! `flashtile inspect`: every stage between kernel text and machine code, as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flashtile::bundle::{BundleTarget, Wanted, code_of_launch};
use flashtile::cache::Cache;
use flashtile::device::{DeviceKind, GivenPlans};
use flashtile::lowering::{self, CallingContract, Code, Generated, GeneratedLaunch};
use flashtile::tuner::judge;
use flashtile::{BoundKernel, Device, Facts, Kernel, LaunchOptions, Schedule};
use flashtile_codegen::plan::PlanFile;
use flashtile_codegen::{Arch, Instance, Resources, block_size, layout};
use flashtile_dsl::analysis::cost::Workload;
use flashtile_dsl::analysis::dependence::Dependences;
use flashtile_dsl::analysis::mask::{MaskOptions, loop_masks};
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{Op, ParamKind, SizeExpr};
use flashtile_dsl::text::write;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::gradient::{GradientFlags, has_more_outputs};
use crate::hints;
use crate::output::{self, Output};
use crate::subject::{Subject, SubjectFlags, file_of};
use crate::target::{EmulationFlags, PlanFlags, Target, TargetFlags};
use crate::{files, machine, profile};

/// Flags of `flashtile inspect`.
#[derive(Args, Debug)]
pub struct Flags {
    #[command(flatten)]
    subject: SubjectFlags,
    #[command(flatten)]
    target: TargetFlags,
    #[command(flatten)]
    plan: PlanFlags,
    /// Show what a launch takes: the schedule that tuning found for this shape or one near it, else, of
    /// what the cost model prefers, the fastest with what its code keeps in memory. Needs NVRTC
    #[arg(long, conflicts_with_all = ["schedule", "tuned", "plan"])]
    as_launched: bool,
    /// What to show
    #[arg(long, value_enum, default_value = "cuda")]
    emit: Emit,
    #[command(flatten)]
    gradient: GradientFlags,
    /// Write to this file instead of standard output; for cubin, the directory to write files into
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// With --emit layout: draw the tile as SVG into this file too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// With --emit layout: only the tile of this name; the first one by default for SVG
    #[arg(long, value_name = "NAME")]
    tile: Option<String>,
    /// With --emit profile: the device that runs the launch; only the emulator can
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    emulation: EmulationFlags,
}

impl Flags {
    /// Refuses to write over a file that is read.
    fn keep_apart(&self) -> Result<()> {
        let read =
            [("the kernel", file_of(&self.subject.kernel)), ("the plan", self.plan.path()), ("the code", self.emulation.code())];
        let written = [("--out", &self.out), ("--svg", &self.svg)];
        written
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path.as_ref()?)))
            .try_for_each(|(flag, path)| files::keep_apart(flag, path, &read))
    }

    /// Refuses flags that say nothing of what is shown.
    fn refuse_idle(&self) -> Result<()> {
        let only = |given: bool, flag: &str, emit: Emit, name: &str| match given && self.emit != emit {
            true => Err(Failure::Usage(format!("{flag} has no meaning here; it goes with --emit {name}"))),
            false => Ok(()),
        };
        only(self.svg.is_some(), "--svg", Emit::Layout, "layout")?;
        only(self.tile.is_some(), "--tile", Emit::Layout, "layout")?;
        only(self.device.is_some(), "--device", Emit::Profile, "profile")?;
        only(self.emulation.is_given(), "--emulate, --code or --max-steps", Emit::Profile, "profile")?;
        let scheduled = [
            (self.target.schedule.is_some(), "--schedule"),
            (self.target.tuned, "--tuned"),
            (self.plan.is_given(), "--plan"),
            (self.as_launched, "--as-launched"),
        ];
        match scheduled.into_iter().find(|(given, _)| *given && self.emit.is_of_text()) {
            Some((_, flag)) => {
                let what = "has no meaning here: the kernel is shown as it was read, before it has a schedule";
                Err(Failure::Usage(format!("{flag} {what}; --emit normal shows what a schedule makes of it")))
            }
            None => Ok(()),
        }
    }
}

/// What to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Emit {
    /// Kernel text, as it is written by the compiler; with --grad, that of the gradients
    Text,
    /// Tile IR, as read
    Ir,
    /// Tile IR after the rewrites
    Normal,
    /// Dependences, components, legal interchanges, streaming reductions
    Deps,
    /// The flow of values between statements as a graph in the Mermaid notation
    DepsGraph,
    /// Bounds of loops: tiles skipped, full and cut
    Mask,
    /// FLOPs, special functions, bytes, and the roofline
    Cost,
    /// Tiles, fragments and loops, and the statements of each role, in a text that --plan reads
    Plan,
    /// CUDA C
    Cuda,
    /// PTX
    Ptx,
    /// Machine code as text
    Sass,
    /// The machine instructions of each innermost loop, by the line of the kernel that they are of
    /// and by what they do
    Instructions,
    /// Registers, spills, shared memory, occupancy: predicted, and as compiled
    Resources,
    /// What a launch does on the emulator, by line: instructions, bank conflicts, sectors; needs no GPU. Sizes that are not
    /// given are small
    Profile,
    /// Tiles in shared memory with their banks
    Layout,
    /// How generated code is called, as JSON
    Abi,
    /// Machine code, source and ABI, as files in the directory --out
    Cubin,
}

impl Emit {
    /// Whether it shows the kernel as it was read: no schedule changes anything there.
    fn is_of_text(self) -> bool {
        matches!(self, Self::Text | Self::Ir | Self::Deps | Self::DepsGraph)
    }
}

/// Lengths of walked axes that are profiled where no flag gives them: two tiles or more, the last one cut.
const PROFILED: [i64; 1] = [200];

/// Everything that a stage may need.
struct Stage<'a> {
    subject: Subject,
    bound: BoundKernel,
    facts: Facts,
    target: Target,
    schedule: Schedule,
    /// Whether the cost model chose it, so that a launch may take another one.
    is_of_model: bool,
    /// Plans in place of those of the schedule.
    plans: Option<GivenPlans>,
    global: &'a GlobalFlags,
}

/// Shows a stage.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let subject = flags.subject.open()?;
    let is_of_text = flags.emit.is_of_text() && flags.target.arch.is_none();
    let target = if is_of_text { None } else { Some(flags.target.target()?) };
    let arch = target.as_ref().map_or_else(hints::usual_arch, |target| target.arch);
    hints::tell(subject.kernel.ir(), &subject.hints(arch), output);
    if flags.gradient.is_given() && flags.emit != Emit::Text {
        return Err(Failure::Usage("--grad shows kernel text: give --emit text".to_owned()));
    }
    flags.refuse_idle()?;
    flags.keep_apart()?;
    let ir = subject.kernel.ir();
    let as_read = match flags.emit {
        Emit::Text => Some(text(flags, &subject.kernel)?),
        Emit::Ir => Some(ir.to_string()),
        Emit::Deps => Some(Dependences::of(ir).text(ir)),
        Emit::DepsGraph => Some(Dependences::of(ir).mermaid()),
        _ => None,
    };
    let stage = match (as_read, target) {
        (Some(text), _) => return show(flags, output, &subject, arch, None, text),
        (None, Some(target)) => Stage::new(flags, subject, target, global, output)?,
        (None, None) => unreachable!("what is no text as it was read has a target"),
    };
    let text = match flags.emit {
        Emit::Text | Emit::Ir | Emit::Deps | Emit::DepsGraph => unreachable!("shown above"),
        Emit::Normal => each(&stage.generated()?, |launch| launch.normal.to_string()),
        Emit::Mask => stage.masks()?,
        Emit::Cost => stage.cost()?,
        Emit::Plan => stage.plans()?,
        Emit::Cuda => stage.generated()?.source,
        Emit::Ptx => stage.code(output)?.module.ptx,
        Emit::Sass => global.toolchain().disassemble(&stage.code(output)?.module.cubin)?,
        Emit::Instructions => stage.instructions()?,
        Emit::Resources => return stage.resources(flags, output),
        Emit::Layout => layouts(flags, &stage.generated()?)?,
        Emit::Profile => return stage.profile(flags, output),
        Emit::Abi => pretty(&calls(&stage.generated()?)),
        Emit::Cubin => return stage.cubin(flags, output),
    };
    show(flags, output, &stage.subject, stage.target.arch, Some(&stage), text)
}

/// The text of a kernel, or of its gradients.
fn text(flags: &Flags, kernel: &Kernel) -> Result<String> {
    let Some(gradient) = flags.gradient.of(kernel)? else {
        return write(kernel.ir()).map_err(|why| Failure::Usage(why.to_string()));
    };
    let forward = has_more_outputs(&gradient, kernel).then_some(&gradient.forward);
    Ok(forward.into_iter().chain(&gradient.backward).map(Kernel::text).collect::<Vec<_>>().join("\n"))
}

/// The texts of all launches, one after the other.
fn each(generated: &Generated, text: impl Fn(&GeneratedLaunch) -> String) -> String {
    generated.launches.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// How generated code is called: its launches, and what lies between them.
fn calls(generated: &Generated) -> serde_json::Value {
    serde_json::to_value(CallingContract::of(generated)).expect("plain data has string keys")
}

/// Prints the text of a stage, or writes it to a file.
fn show(
    flags: &Flags,
    output: &mut Output,
    subject: &Subject,
    arch: &'static Arch,
    stage: Option<&Stage<'_>>,
    text: String,
) -> Result<()> {
    if let Some(path) = &flags.out {
        let newline = if text.ends_with('\n') { "" } else { "\n" };
        files::write(path, format!("{text}{newline}").as_bytes())?;
        output.note(format!("wrote {}", path.display()));
        return Ok(());
    }
    if !output.json {
        return output.text(text);
    }
    let emit = flags.emit.to_possible_value().map(|v| v.get_name().to_owned());
    output.json(&json!({
        "kernel": subject.kernel.name(),
        "emit": emit,
        "arch": stage.map(|s| s.target.arch.name),
        "schedule": stage.map(|s| s.schedule.to_string()),
        "hints": hints::json(subject.kernel.ir(), &subject.hints(arch)),
        "text": text,
    }))
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data has string keys")
}

impl<'a> Stage<'a> {
    fn new(flags: &Flags, subject: Subject, target: Target, global: &'a GlobalFlags, output: &Output) -> Result<Self> {
        let bound = subject.bind(output)?;
        if let Some(file) = flags.plan.read(&bound)? {
            let target = Target::of(file.arch);
            let plans = GivenPlans::of(file, &bound)?;
            let (facts, schedule) = (plans.facts.clone(), plans.schedule.clone());
            return Ok(Self { subject, bound, facts, target, schedule, is_of_model: false, plans: Some(plans), global });
        }
        let (facts, sizes) = (subject.facts(&bound)?, subject.typical_sizes());
        let schedule = match flags.as_launched {
            true => {
                let on = BundleTarget { arch: target.arch, machine: target.machine, device: target.key.clone() };
                let wanted = Wanted { facts: facts.clone(), sizes };
                code_of_launch(&bound, &on, &wanted, &global.toolchain(), &Cache::shared())?.0.schedule
            }
            false => flags.target.schedule(&bound, &facts, &target, &sizes)?,
        };
        let is_of_model = !(flags.as_launched || flags.target.tuned || flags.target.schedule.is_some());
        Ok(Self { subject, bound, facts, target, schedule, is_of_model, plans: None, global })
    }

    fn instance(&self) -> Instance {
        self.bound.instance(self.facts.clone())
    }

    fn generated(&self) -> Result<Generated> {
        let (instance, arch) = (self.instance(), self.target.arch);
        Ok(match &self.plans {
            Some(given) => lowering::generate_from(given.plans.to_vec(), &instance, &self.schedule, arch)?,
            None => lowering::generate(&instance, &self.schedule, arch)?,
        })
    }

    /// The plans of all launches, as a file that `--plan` takes.
    fn plans(&self) -> Result<String> {
        let generated = self.generated()?;
        let plans = generated.launches.iter().map(|launch| &launch.plan);
        Ok(PlanFile::text(&self.instance(), &self.schedule, self.target.arch, plans))
    }

    fn code(&self, output: &Output) -> Result<Code> {
        let toolchain = self.global.toolchain();
        let code = lowering::compile_generated(&self.bound.ir().name, self.generated()?, &toolchain, &Cache::shared())?;
        if self.is_of_model && !code.is_in_registers() {
            let bytes = code.module.report.stack;
            output.note(format!(
                "note: threads keep {bytes} bytes of their values in memory, so that a launch tries the next tiles too: \
                 --as-launched shows what it takes"
            ));
        }
        Ok(code)
    }

    fn block(&self, axis: flashtile_dsl::ir::AxisId) -> i64 {
        i64::from(block_size(self.bound.ir(), &self.schedule.main, axis))
    }

    fn masks(&self) -> Result<String> {
        lowering::check(&self.instance(), &self.schedule, self.target.arch)?;
        let ir = self.bound.ir();
        let size = |size: &SizeExpr| {
            let (consts, sizes) = (&self.bound.binding().consts, &self.subject.sizes);
            size.eval(|s| consts.get(ir.size_name(s)).or_else(|| sizes.get(ir.size_name(s))).copied())
        };
        let options =
            MaskOptions { early_stop: self.schedule.main.early_stop, summaries: Summaries::All, ..MaskOptions::default() };
        let loops = ir.walk().into_iter().filter(|&(_, op)| matches!(ir.ops[op].op, Op::For { .. }));
        let texts: Vec<String> =
            loops.map(|(_, op)| loop_masks(ir, op, &|axis| self.block(axis), &size, options).text(ir)).collect();
        Ok(if texts.is_empty() { "no loops\n".to_owned() } else { texts.join("\n") })
    }

    fn cost(&self) -> Result<String> {
        let sizes = self.subject.typical_sizes();
        let workload = Workload { kernel: self.bound.ir(), binding: self.bound.binding(), sizes: &sizes };
        let executed = self.generated()?.executed(self.bound.binding(), &sizes);
        let peak = lowering::peak(&self.bound, self.target.arch, &self.target.machine);
        let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        let machine = &self.target.machine;
        let head = format!("{} on {} ({} SMs, {} GHz)", sizes.join(","), self.target.arch, machine.sms, machine.ghz);
        Ok(format!("{head}\n{}", workload.cost().text(Some(&executed), Some(&peak))))
    }

    fn instructions(&self) -> Result<String> {
        let generated = self.generated()?;
        let (program, lines) = machine::without_lines(&generated.source);
        let name = format!("{}.cu", self.bound.ir().name);
        let found = self.global.toolchain().disassemble_with_lines(&program, &name, self.target.arch.name)?;
        machine::text(&found, &lines, &self.bound.ir().source.text).map_err(Failure::Usage)
    }

    fn resources(&self, flags: &Flags, output: &mut Output) -> Result<()> {
        let generated = self.generated()?;
        let unfolded = flashtile_codegen::why_not_folded(&self.bound.instance(self.facts.clone()));
        let predicted = generated.main().predicted;
        let arch = self.target.arch;
        let compiled = self.code(output);
        let report = compiled.as_ref().ok().map(|code| &code.module.report);
        // Of several launches, the one that the schedule is about.
        let main = &generated.main().abi.entry;
        let registers = report.map(|r| r.entries.get(main).copied().unwrap_or(r.registers));
        let actual = report
            .zip(registers)
            .map(|(r, registers)| Resources::occupancy(arch, registers, predicted.shared_bytes + r.shared, predicted.threads));
        let share = |blocks: u32| f64::from(blocks * predicted.threads) / f64::from(arch.threads_per_sm);
        if output.json {
            output.json(&json!({
                "kernel": self.bound.ir().name,
                "arch": arch.name,
                "schedule": self.schedule.to_string(),
                "predicted": predicted,
                "compiled": report,
                "blocks_per_sm": actual.map(|(blocks, _)| blocks),
                "occupancy": actual.map(|(blocks, _)| share(blocks)),
                "limit": actual.map(|(_, limit)| limit),
                "fallback": generated.fallback,
                "unfolded": unfolded,
                "hints": hints::json(self.subject.kernel.ir(), &self.subject.hints(arch)),
                "seconds": compiled.as_ref().ok().map(|c| c.compile_seconds),
            }))?;
        } else {
            let limit = |limit: flashtile_codegen::Limit| format!("{limit:?}").to_lowercase();
            let none = || "-".to_owned();
            let of = |value: fn(&flashtile::toolchain::PtxasReport) -> u32| report.map_or_else(none, |r| value(r).to_string());
            let row = |name: &str, predicted: String, compiled: String| vec![name.to_owned(), predicted, compiled];
            let text = output::table(
                &["", "predicted", "compiled"],
                [
                    row("registers of a thread", predicted.registers.to_string(), registers.map_or_else(none, |r| r.to_string())),
                    row("bytes of spill stores", none(), of(|r| r.spill_stores)),
                    row("bytes of spill loads", none(), of(|r| r.spill_loads)),
                    row("bytes of stack", none(), of(|r| r.stack)),
                    row("bytes of dynamic shared memory", predicted.shared_bytes.to_string(), predicted.shared_bytes.to_string()),
                    row("bytes of static shared memory", "0".to_owned(), of(|r| r.shared)),
                    row("threads of a block", predicted.threads.to_string(), predicted.threads.to_string()),
                    row(
                        "blocks of a multiprocessor",
                        predicted.blocks_per_sm.to_string(),
                        actual.map_or_else(none, |(n, _)| n.to_string()),
                    ),
                    row(
                        "occupancy",
                        format!("{:.0} %", 100.0 * share(predicted.blocks_per_sm)),
                        actual.map_or_else(none, |(n, _)| format!("{:.0} %", 100.0 * share(n))),
                    ),
                    row("limited by", limit(predicted.limit), actual.map_or_else(none, |(_, l)| limit(l))),
                ],
            );
            let remarks = report.map(|r| r.remarks.join("\n")).unwrap_or_default();
            let head = format!("{} on {arch} with {}", self.bound.ir().name, self.schedule);
            let fallback = generated.fallback.map(|why| format!("no wgmma: {why}\n")).unwrap_or_default();
            let unfolded = unfolded.map(|why| format!("no fold: {why}\n")).unwrap_or_default();
            let others = generated.launches.iter().enumerate().filter(|(n, _)| *n != generated.main).map(|(n, launch)| {
                let entry = &launch.abi.entry;
                let registers = report.and_then(|r| r.entries.get(entry)).map_or_else(none, u32::to_string);
                let order = if n < generated.main { "before" } else { "after" };
                format!("{order} it {entry}: {registers} registers, {} threads\n", launch.predicted.threads)
            });
            let others: String = others.collect();
            let text = format!("{head}\n{fallback}{unfolded}{text}\n{others}{remarks}");
            match &flags.out {
                Some(path) => files::write(path, text.as_bytes()).map(|_| ())?,
                None => output.text(text.trim_end())?,
            }
        }
        // The prediction is shown also where nothing can be compiled; but that is still a failure.
        compiled.map(|_| ())
    }

    /// Runs a launch on the emulator and shows what it did. Its results are judged too: the profile of a wrong kernel is of no
    /// use.
    fn profile(&self, flags: &Flags, output: &mut Output) -> Result<()> {
        let device: Device = flags.device.as_deref().unwrap_or("emulator").parse()?;
        if device.info().kind != DeviceKind::Emulator {
            let instead = "give --device emulator, or profile on a GPU with Nsight Compute";
            return Err(Failure::Usage(format!("{device} does not count what a launch does; {instead}")));
        }
        let mut emulation = flags.emulation.emulation(&device)?;
        emulation.options.profile = true;
        let sizes = self.subject.small_sizes(&PROFILED, 0);
        let toolchain = self.global.toolchain();
        let (arch, schedule, plans) = (Some(self.target.arch), Some(self.schedule.clone()), self.plans.clone());
        let options = LaunchOptions { toolchain, arch, schedule, plans, emulation, ..LaunchOptions::default() };
        let loaded = self.bound.on_with(&device, options)?;
        if let Some(wrong) = judge(&loaded, &sizes, 0)?.iter().find(|verdict| !verdict.passed()) {
            return Err(Failure::Verification(wrong.to_string()));
        }
        // Of several launches, the one that the schedule is about.
        let report = loaded.reports().into_iter().nth(self.generated()?.main);
        let profile = report
            .and_then(|r| r.profile)
            .ok_or_else(|| Failure::Usage("a launch of these sizes runs no program; give larger ones with --shape".to_owned()))?;
        let source = &self.bound.ir().source;
        let shape = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
        let text = match output.json {
            true => serde_json::to_string(&json!({
                "kernel": self.bound.ir().name,
                "arch": self.target.arch.name,
                "schedule": self.schedule.to_string(),
                "shape": sizes,
                "total": profile.total(),
                "lines": profile.by_line(),
                "instructions": profile.instructions,
            }))
            .expect("plain data has string keys"),
            false => {
                let head = format!("{} {shape} on {} with {}", self.bound.ir().name, self.target.arch, self.schedule);
                format!("{head}\n\n{}", profile::text(&profile, &source.name, &source.text))
            }
        };
        match &flags.out {
            Some(path) => {
                files::write(path, format!("{text}\n").as_bytes())?;
                output.note(format!("wrote {}", path.display()));
                Ok(())
            }
            None => output.text(text),
        }
    }

    fn cubin(&self, flags: &Flags, output: &mut Output) -> Result<()> {
        let Some(dir) = &flags.out else {
            return Err(Failure::Usage("--emit cubin writes files; give the directory with --out DIR".to_owned()));
        };
        let code = self.code(output)?;
        files::make_directory(dir)?;
        let name = &self.bound.ir().name;
        let scalars: BTreeMap<&str, &str> = self
            .bound
            .ir()
            .params
            .values()
            .filter_map(|p| match p.kind {
                ParamKind::Scalar(elem) => Some((p.name.as_str(), elem.name())),
                ParamKind::Tensor(_) => None,
            })
            .collect();
        let mut meta = json!({
            "kernel": name,
            "arch": self.target.arch.name,
            "dtype": self.subject.elem.name(),
            "consts": self.bound.binding().consts,
            "schedule": code.schedule.to_string(),
            "report": code.module.report,
            "scalars": scalars,
            "positive": self.facts.positive,
            "alignment": self.facts.alignment,
            "foldable": self.facts.foldable,
            "wide": self.facts.wide,
        });
        let contract = serde_json::to_value(&code.contract).expect("plain data has string keys");
        let own = meta.as_object_mut().expect("an object");
        own.extend(contract.as_object().expect("an object").clone());
        let file = |extension: &str| -> PathBuf { Path::new(dir).join(format!("{name}.{extension}")) };
        files::write(&file("cubin"), &code.module.cubin)?;
        files::write(&file("cu"), code.source.as_bytes())?;
        files::write(&file("ptx"), code.module.ptx.as_bytes())?;
        // The last one: whoever sees it sees the others.
        files::write(&file("json"), pretty(&meta).as_bytes())?;
        match output.json {
            true => output.json(&meta),
            false => output.text(format!("wrote {name}.cubin, .cu, .ptx and .json into {}", dir.display())),
        }
    }
}

/// Pictures of the tiles, and the SVG of one.
fn layouts(flags: &Flags, generated: &Generated) -> Result<String> {
    let all: Vec<_> = generated.launches.iter().flat_map(|launch| &launch.plan.tiles).collect();
    let chosen: Vec<_> = all.iter().filter(|t| flags.tile.as_ref().is_none_or(|name| *name == t.name)).collect();
    let Some(first) = chosen.first() else {
        let known: Vec<&str> = all.iter().map(|t| t.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(match &flags.tile {
            Some(name) => Failure::Usage(format!("no tile `{name}` in shared memory; there is {known}")),
            None => Failure::Usage(format!("kernel `{}` has no tile in shared memory", generated.main().plan.name)),
        });
    };
    if let Some(path) = &flags.svg {
        files::write(path, layout::svg(first).as_bytes())?;
    }
    Ok(chosen.iter().map(|tile| layout::text(tile)).collect::<Vec<_>>().join("\n"))
}
