//! The commands of file tests that generate code: normal form, plan, CUDA C, and reasons against a schedule.

use flashtile_codegen::{Arch, Error, Facts, Generated, Instance, Launch, Schedule, as_generated, generate};
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};
use flashtile_dsl::syntax::{Diagnostic, Diagnostics, Style, render};

/// What is generated: a kernel with its generics bound, under a schedule, for an architecture.
pub(super) struct Request {
    /// With the kernel as written.
    instance: Instance,
    schedule: Schedule,
    arch: &'static Arch,
    part: Part,
}

/// What of the generated file is printed.
#[derive(Clone, Copy)]
enum Part {
    File,
    Kernel,
}

impl Request {
    /// Reads `schedule=KNOB=V,.. arch=A facts=best|none part=file|kernel T=ELEM D=64`. A knob left out has its default, `arch` is
    /// sm_80, type parameters are f16, facts the best, and the whole file is printed.
    pub(super) fn read(kernel: &Kernel, options: &[(&str, &str)]) -> Result<Self, String> {
        let mut binding = Binding::new(kernel, Elem::F16, [] as [(&str, i64); 0]);
        let mut facts = Facts::best(kernel);
        let mut schedule = Schedule::default();
        let mut arch = Arch::named("sm_80").expect("an architecture of the table");
        let mut part = Part::File;
        for &(name, value) in options {
            match name {
                "part" => {
                    part = match value {
                        "file" => Part::File,
                        "kernel" => Part::Kernel,
                        _ => return Err(format!("a part is file or kernel, not `{value}`")),
                    }
                }
                "schedule" => schedule = value.parse().map_err(|e| format!("{e}"))?,
                "arch" => arch = Arch::named(value).ok_or_else(|| format!("unknown architecture `{value}`"))?,
                "facts" => {
                    facts = match value {
                        "best" => Facts::best(kernel),
                        "none" => Facts::none(),
                        _ => return Err(format!("facts are best or none, not `{value}`")),
                    }
                }
                _ if kernel.type_params.iter().any(|t| t == name) => {
                    let elem = Elem::from_name(value).ok_or_else(|| format!("`{value}` is not an element type"))?;
                    binding.types.insert(name.into(), elem);
                }
                _ if kernel.size_named(name).is_some() => {
                    let size = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
                    binding.consts.insert(name.into(), size);
                }
                _ => {
                    return Err(format!(
                        "`{name}` is no size or type parameter of `{}`, nor schedule, arch, facts or part",
                        kernel.name
                    ));
                }
            }
        }
        Ok(Self { instance: Instance { kernel: kernel.clone(), binding, facts }, schedule, arch, part })
    }

    /// The generated code.
    pub(super) fn generate(&self) -> Result<Generated, String> {
        self.generated().map_err(|e| e.to_string())
    }

    fn generated(&self) -> Result<Generated, Error> {
        let instance = Instance { kernel: as_generated(&self.instance.kernel, &self.instance.binding), ..self.instance.clone() };
        generate(&instance, &self.schedule, self.arch)
    }

    /// The texts of all launches, one after the other.
    pub(super) fn each(&self, text: impl Fn(&Launch) -> String) -> Result<String, String> {
        Ok(self.generate()?.launches.iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// The CUDA C, or the kernel alone without the device functions before it.
    pub(super) fn source(&self) -> Result<String, String> {
        let source = self.generate()?.source;
        match self.part {
            Part::File => Ok(source),
            Part::Kernel => {
                let start = source.find("extern \"C\"").ok_or("the generated file has no kernel")?;
                Ok(source[start..].to_owned())
            }
        }
    }

    /// What is lost, rendered with the lines of the text.
    pub(super) fn hints(&self, source: &SourceText) -> String {
        let list: Vec<Diagnostic> =
            flashtile_codegen::hints(&self.instance, self.arch).into_iter().map(Diagnostic::from).collect();
        match list.is_empty() {
            true => format!("{}: none", self.instance.kernel.name),
            false => render(&Diagnostics { list, source: source.clone() }, Style::Plain),
        }
    }

    /// Why there is none, a reason a line.
    pub(super) fn refusal(&self) -> Result<String, String> {
        match self.generated() {
            Ok(_) => Err("the schedule is legal".into()),
            Err(Error::Illegal { reasons, .. }) => Ok(reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
            Err(other) => Ok(other.to_string()),
        }
    }
}
