//! A file of plans: those of a kernel's launches, with what they were made for.

use std::fmt::Write;

use flashtile_dsl::ir::{Binding, SourceText};

use super::super::Plan;
use super::error::TextError;
use super::lexer::{Line, lines};
use super::read;
use super::read_expression::{Cursor, Elements};
use crate::arch::Arch;
use crate::instance::{Facts, Instance};
use crate::schedule::{Persistent, Schedule};

/// The plans of a kernel's launches, with what they were made for.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanFile {
    /// Name of the kernel in the text.
    pub kernel: String,
    /// Its element types and constants.
    pub binding: Binding,
    /// What is known of arguments.
    pub facts: Facts,
    /// The architecture.
    pub arch: &'static Arch,
    /// The schedule that the plans were made under. It says how many launches there are, and how
    /// blocks are launched.
    pub schedule: Schedule,
    /// The plans, in the order of the launches.
    pub plans: Vec<Plan>,
}

impl PlanFile {
    /// The text of the plans of an instance's launches under a schedule.
    pub fn text<'a>(instance: &Instance, schedule: &Schedule, arch: &Arch, plans: impl IntoIterator<Item = &'a Plan>) -> String {
        let Instance { kernel, binding, facts } = instance;
        let types = binding.types.iter().map(|(name, elem)| format!("{name} = {}", elem.name()));
        let bound: Vec<String> = types.chain(binding.consts.iter().map(|(name, n)| format!("{name} = {n}"))).collect();
        let colon = if bound.is_empty() { "" } else { ": " };
        let mut text = format!("kernel {}{colon}{}\narch {}\n", kernel.name, bound.join(", "), arch.name);
        let flags = [(facts.foldable, ", foldable"), (facts.wide, ", wide")];
        let flags: String = flags.iter().filter(|(holds, _)| *holds).map(|(_, text)| *text).collect();
        let positive: String = facts.positive.iter().map(|name| format!(", positive {name}")).collect();
        let aligned: String = facts.aligned.iter().map(|(name, bytes)| format!(", aligned {name} {bytes}")).collect();
        write!(text, "facts aligned to {} bytes{aligned}{flags}{positive}\nschedule {schedule}\n", facts.alignment)
            .expect("a string takes all");
        for plan in plans {
            text.push('\n');
            text.push_str(&plan.text(Some(&kernel.source)));
        }
        text
    }

    /// Reads a text. `source` is the text of the kernel, whose lines statements may name.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn read(text: &str, source: Option<&SourceText>) -> Result<Self, TextError> {
        let (mut schedule, mut without) = (None, String::new());
        // What a schedule's text has is read by the schedule.
        for (number, line) in (1..).zip(text.lines()) {
            match line.strip_prefix("schedule ") {
                Some(knobs) => {
                    let knobs = knobs.split("//").next().unwrap_or_default().trim();
                    let parsed: Result<Schedule, _> = knobs.parse();
                    schedule = Some(parsed.map_err(|e| TextError { line: number, message: e.to_string() })?);
                }
                None => without.push_str(line),
            }
            without.push('\n');
        }
        let lines = lines(&without).map_err(|(line, message)| TextError { line, message })?;
        let mut head = Head::default();
        let mut at = 0;
        while let Some(line) = lines.get(at)
            && head.line(line).map_err(|message| TextError { line: line.number, message })?
        {
            at += 1;
        }
        let first = lines.get(at).map_or(1, |line| line.number);
        let missing = |what: &str| TextError { line: first, message: format!("expected a line `{what}` before this") };
        let (kernel, binding) = head.kernel.ok_or_else(|| missing("kernel NAME: T = ELEM, D = N"))?;
        let arch = head.arch.ok_or_else(|| missing("arch NAME"))?;
        let facts = head.facts.ok_or_else(|| missing("facts aligned to N bytes"))?;
        let schedule = schedule.ok_or_else(|| missing("schedule KNOB=VALUE,.."))?;
        let mut file = PlanFile { kernel, binding, facts, arch, schedule, plans: Vec::new() };
        while at < lines.len() {
            let (plan, next) = read::plan(&lines, at, source)?;
            file.plans.push(plan);
            at = next;
        }
        if file.plans.is_empty() {
            return Err(TextError { line: first, message: "the file has no plan: a line `plan NAME` begins one".into() });
        }
        Ok(file)
    }

    /// Refuses a line `programs E, once` that says another number than its launch has. Such a
    /// launch has a block for each program of its grid, whatever the plan says, so that the line
    /// would change nothing. `own` are the plans that the compiler makes of the file's kernel,
    /// facts and schedule.
    ///
    /// # Errors
    /// The line and what it must be.
    pub fn check_programs(&self, own: &[Plan]) -> Result<(), String> {
        for (given, own) in self.plans.iter().zip(own) {
            if given.work == Persistent::Off && given.programs != own.programs {
                let (name, wrong, right) = (&given.name, &given.programs, &own.programs);
                return Err(format!(
                    "plan {name}: `programs {wrong}, once` would change nothing, since the launch has a block for each of its \
                     programs; write `programs {right}, once`"
                ));
            }
        }
        Ok(())
    }
}

/// What stands before the plans.
#[derive(Default)]
struct Head {
    kernel: Option<(String, Binding)>,
    arch: Option<&'static Arch>,
    facts: Option<Facts>,
}

impl Head {
    /// Reads a line, unless it is of a plan.
    fn line(&mut self, line: &Line) -> Result<bool, String> {
        let none = Elements::new();
        let mut c = Cursor::new(&line.tokens, &none);
        if c.takes_word("kernel") {
            let name = c.name("the name of a kernel")?.to_owned();
            let mut binding = Binding::default();
            let mut more = c.takes(":");
            while more {
                let name = c.name("a type parameter or a constant")?.to_owned();
                c.mark("=")?;
                if let Ok(value) = c.number() {
                    binding.consts.insert(name, value);
                } else {
                    binding.types.insert(name, c.elem()?);
                }
                more = c.takes(",");
            }
            self.kernel = Some((name, binding));
        } else if c.takes_word("arch") {
            let name = c.name("an architecture")?;
            self.arch = Some(Arch::named(name).ok_or_else(|| format!("`{name}` is no architecture that code is generated for"))?);
        } else if c.takes_word("facts") {
            c.words("aligned to")?;
            let mut facts = Facts { alignment: c.number()?, ..Facts::none() };
            c.words("bytes")?;
            while c.takes(",") {
                match c.name("`aligned NAME BYTES`, `foldable`, `wide` or `positive NAME`")? {
                    "aligned" => {
                        let name = c.name("the name of a tensor")?.to_owned();
                        facts.aligned.insert(name, c.number()?);
                    }
                    "foldable" => facts.foldable = true,
                    "wide" => facts.wide = true,
                    "positive" => drop(facts.positive.insert(c.name("the name of a scalar")?.to_owned())),
                    other => return Err(format!("`{other}` is no fact")),
                }
            }
            self.facts = Some(facts);
        } else {
            return Ok(false);
        }
        c.end()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::planned;
    use flashtile_dsl::ir::Elem;

    #[test]
    fn a_number_of_programs_without_effect_is_refused() {
        let text = include_str!("../../../../runtime/kernels/causal_attention.rs");
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).expect("a built-in kernel parses").remove(0);
        let (binding, facts) = (Binding::new(&kernel, Elem::F16, [("D", 64)]), Facts::best(&kernel));
        let instance = Instance { kernel, binding, facts };
        let wgmma = "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8,persistent=static";
        for (arch, knobs, line, wrong) in [
            ("sm_80", "block_m=64", "programs params.B * params.H * ((params.M + 63) / 64), once", true),
            ("sm_80", "block_m=64,split_k=4", "programs 4 * params.B * params.H * ((params.M + 63) / 64), once", true),
            // Blocks that stay take as many programs as the line says.
            ("sm_90a", wgmma, "programs params.B * params.H * ((params.M + 127) / 128), static", false),
        ] {
            let (schedule, arch) = (knobs.parse().expect("a schedule"), Arch::named(arch).expect("in the table"));
            let own = planned(&instance, &schedule, arch).expect("is legal").launches;
            let own: Vec<Plan> = own.into_iter().map(|launch| launch.plan).collect();
            let printed = PlanFile::text(&instance, &schedule, arch, &own);
            let read = |text: &str| PlanFile::read(text, None).expect("reads back").check_programs(&own);
            assert_eq!(read(&printed), Ok(()), "{knobs}");
            let changed = printed.replacen("params.B * params.H * (", "params.B * (", 1);
            assert_ne!(changed, printed, "{knobs}: {printed}");
            let error = read(&changed).err();
            assert_eq!(error.is_some(), wrong, "{knobs}: {error:?}");
            assert!(error.iter().all(|error| error.contains("would change nothing") && printed.contains(line)), "{error:?}");
        }
    }
}
