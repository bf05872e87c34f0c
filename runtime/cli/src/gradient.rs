//! The kernels of a gradient in place of the kernel that is named.

use clap::Args;
use flashtile::kernel::KernelError;
use flashtile::tuner::InputData;
use flashtile::{Form, Gradient, Kernel};

use crate::failure::{Failure, Result};
use crate::subject::Subject;
use crate::target::PlanFlags;

/// Flags that ask for a gradient.
#[derive(Args, Clone, Debug)]
pub struct GradientFlags {
    /// Take the kernels of the gradients of KERNEL with respect to these inputs, and the forward
    /// kernel that they need, not KERNEL itself; docs/backward.md says what is done with them.
    /// `inspect` prints them with --emit text
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    grad: Vec<String>,
    /// With --grad: the outputs whose gradients are given; those of a type parameter by default
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', requires = "grad")]
    grad_from: Vec<String>,
    /// With --grad: which kernels compute the gradients; docs/backward.md compares them
    #[arg(long, value_name = "FORM", value_enum, default_value_t = FormFlag::Plain, requires = "grad")]
    grad_form: FormFlag,
}

/// Forms of gradients.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum FormFlag {
    /// Rows and columns make the scores of all pairs each: the same bits in every launch
    Plain,
    /// One kernel makes the scores, and adds to the gradients of rows in any order
    Fused,
    /// The plain form with columns for each program: of grouped queries for each head, whose shares
    /// are summed up behind
    PlainShares,
    /// The fused form with such columns
    FusedShares,
    /// The gradient of each score is stored, and gradients of operands are products of that: for wide
    /// rows, such as those of hidden states
    Stored,
}

impl GradientFlags {
    /// Whether a gradient is asked for.
    pub fn is_given(&self) -> bool {
        !self.grad.is_empty()
    }

    /// Refuses a plan, which is of one kernel.
    pub fn refuse_plan(&self, plan: &PlanFlags) -> Result<()> {
        if !plan.is_given() || !self.is_given() {
            return Ok(());
        }
        let what = "--plan is of one kernel, and --grad takes several";
        Err(Failure::Usage(format!("{what}; write them to a file with inspect --grad --emit text, and name one of it")))
    }

    /// The error of a kernel that has no schedule, with what helps where it is one of a gradient whose
    /// form others may be taken for.
    pub fn explained(&self, error: Failure) -> Failure {
        match error {
            Failure::Library(flashtile::Error::Kernel(KernelError::NoSchedule { kernel, arch, reason, reasons }))
                if self.is_given() =>
            {
                let instead = match self.grad_form {
                    FormFlag::Plain => "stored, if the kernel has that form, which holds no whole rows",
                    _ => "plain, which has other kernels",
                };
                let reason = format!("{reason}; or take --grad-form {instead}");
                KernelError::NoSchedule { kernel, arch, reason, reasons }.into()
            }
            other => other,
        }
    }

    /// The kernels of the gradient of a kernel, if one is asked for.
    pub fn of(&self, kernel: &Kernel) -> Result<Option<Gradient>> {
        if !self.is_given() {
            return Ok(None);
        }
        let from: Vec<&str> = match self.grad_from.is_empty() {
            true => kernel.ir().generic_outputs().collect(),
            false => self.grad_from.iter().map(String::as_str).collect(),
        };
        if from.is_empty() {
            let outputs: Vec<&str> = kernel.ir().float_tensors(true).map(|id| &*kernel.ir().params[id].name).collect();
            if outputs.is_empty() {
                return Err(Failure::Usage(format!("kernel `{}` has no output of floats, and so no gradient", kernel.name())));
            }
            let what = format!("kernel `{}` has no output of a type parameter", kernel.name());
            let instead = "say with --grad-from which of its outputs have a gradient";
            return Err(Failure::Usage(format!("{what}; {instead} ({})", outputs.join(", "))));
        }
        let params = || kernel.ir().params.values();
        let inputs: Vec<&str> = params().filter(|param| !param.kind.is_written()).map(|param| &*param.name).collect();
        check_names("--grad", &self.grad, kernel, "input", &inputs)?;
        check_names("--grad-from", &self.grad_from, kernel, "output", &kernel.ir().outputs().collect::<Vec<_>>())?;
        // In the order of the parameters, each once: so the kernels take them.
        let params: Vec<&str> = params().map(|param| &*param.name).collect();
        let declared = |names: &[&str]| params.iter().copied().filter(|name| names.contains(name)).collect::<Vec<_>>();
        let of = declared(&self.grad.iter().map(String::as_str).collect::<Vec<_>>());
        let from = declared(&from);
        let form = match self.grad_form {
            FormFlag::Plain => Form::Plain,
            FormFlag::Fused => Form::Fused,
            FormFlag::PlainShares => Form::PlainShares,
            FormFlag::FusedShares => Form::FusedShares,
            FormFlag::Stored => Form::Stored,
        };
        Ok(Some(kernel.gradient_in(form, &of, &from)?))
    }
}

/// Refuses names that are none of a kernel's.
fn check_names(flag: &str, names: &[String], kernel: &Kernel, what: &str, known: &[&str]) -> Result<()> {
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let listed = known.join(", ");
            let said = format!("{flag}: kernel `{}` has no {what} `{name}`; its {what}s are {listed}", kernel.name());
            Err(Failure::Usage(said))
        }
    }
}

/// Whether the forward kernel of a gradient has outputs that the kernel itself has not.
pub fn has_more_outputs(gradient: &Gradient, kernel: &Kernel) -> bool {
    gradient.forward.ir().params.len() > kernel.ir().params.len()
}

/// What flags say of a kernel, for each of the kernels that a verb takes: the kernel itself, or the
/// forward kernel of its gradient and those behind it.
pub fn subjects(flags: &GradientFlags, subject: &Subject) -> Result<Vec<Subject>> {
    Ok(match flags.of(&subject.kernel)? {
        None => vec![subject.clone()],
        Some(Gradient { forward, backward, .. }) => {
            let kernels: Vec<Kernel> = [forward].into_iter().chain(backward).collect();
            let subject = subject.among(&kernels);
            kernels.into_iter().map(|kernel| subject.of_kernel(kernel)).collect()
        }
    })
}

/// What `--data` says of the inputs of each of several kernels; an error if one says something of
/// an input that none has. A kernel that is alone refuses that itself.
pub fn data_of(subjects: &[Subject], data: &[InputData]) -> Result<Vec<Vec<InputData>>> {
    if let [_] = subjects {
        return Ok(vec![data.to_vec()]);
    }
    let of = |subject: &Subject| data.iter().map(|data| data.of_inputs(subject.kernel.ir())).collect::<Vec<_>>();
    let all: Vec<Vec<InputData>> = subjects.iter().map(of).collect();
    let is_input = |name: &String| all.iter().flatten().any(|data| data.0.contains_key(name));
    match data.iter().flat_map(|data| data.0.keys()).find(|name| !is_input(name)) {
        Some(name) => {
            let kernels: Vec<&str> = subjects.iter().map(|subject| subject.kernel.name()).collect();
            let what = format!("`{name}`, for which --data is given, is no input of {}", kernels.join(", "));
            Err(Failure::Usage(what))
        }
        None => Ok(all),
    }
}
