//! Errors of kernels.

use flashtile_codegen::{Reason, Summary};
use flashtile_dsl::ir::Elem;
use flashtile_dsl::syntax::Diagnostics;

/// Why a kernel cannot be had, bound or compiled.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The text is not a kernel: every error of the text, each with its place.
    #[error("{0}")]
    Text(Box<Diagnostics>),
    /// A file of kernels cannot be read.
    #[error("failed to read kernel file {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// No kernel of this name.
    #[error("no kernel `{name}` in {place}; there is {known}")]
    Unknown {
        /// Name asked for.
        name: String,
        /// Where it was looked for.
        place: String,
        /// Names that there are.
        known: String,
    },
    /// A file holds several kernels and none was named.
    #[error("{place} holds several kernels ({known}); name one as FILE:NAME")]
    Ambiguous {
        /// The file.
        place: String,
        /// Names that there are.
        known: String,
    },
    /// An output that a kernel cannot do without.
    #[error("kernel `{kernel}` cannot do without the output `{name}`: {reason}")]
    Output {
        /// The kernel.
        kernel: String,
        /// Name of the output.
        name: String,
        /// Why.
        reason: String,
    },
    /// Type parameters or constants are not bound.
    #[error("kernel `{kernel}` has no value for {}; `Kernel::bind` gives type parameters and constants theirs", missing.join(", "))]
    Unbound {
        /// The kernel.
        kernel: String,
        /// Names of what is missing.
        missing: Vec<String>,
    },
    /// A binding names what the kernel does not have.
    #[error("kernel `{kernel}` has no {what} `{name}`; it has {known}")]
    NoSuchGeneric {
        /// The kernel.
        kernel: String,
        /// `type parameter` or `constant`.
        what: &'static str,
        /// Name given.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// A type parameter is bound to a type that is not an element type of floats.
    #[error("type parameter `{name}` cannot be {found}; expected f32, f16 or bf16", found = found.name())]
    TypeArgument {
        /// The type parameter.
        name: String,
        /// Type given.
        found: Elem,
    },
    /// A constant is bound to a value that no tensor can have.
    #[error("constant `{name}` cannot be {value}; expected a positive number")]
    ConstArgument {
        /// The constant.
        name: String,
        /// Value given.
        value: i64,
    },
    /// No schedule is legal for the kernel on the architecture.
    #[error("kernel `{kernel}` has no schedule for {arch}: {reason}")]
    NoSchedule {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Why, in words: the reasons that matter most.
        reason: String,
        /// All reasons of the schedules that were tried, without repetition.
        reasons: Vec<Reason>,
    },
    /// A schedule that was asked for is not legal.
    #[error("schedule {schedule} is not legal for kernel `{kernel}` on {arch}: {}", Summary::of(reasons))]
    IllegalSchedule {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// The schedule.
        schedule: String,
        /// All reasons against.
        reasons: Vec<Reason>,
    },
    /// The plan verifier refused a plan that was given in place of the compiler's own.
    #[error("the plan of kernel `{kernel}` on {arch} is wrong: {}", faults.join("; "))]
    RefusedPlan {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// All faults, each with the trip counts that show it.
        faults: Vec<String>,
    },
    /// Plans were given of another kernel, or of one with other types or constants.
    #[error("the plan is of {plan}, not of {kernel}; give the kernel, types and constants that it names")]
    PlanOf {
        /// What the plans are of.
        plan: String,
        /// What they were given for.
        kernel: String,
    },
    /// Plans were given that assume more of arguments than holds of those of a launch.
    #[error(
        "the plans given for kernel `{kernel}` assume that {}, which does not hold of this launch; give plans that were made \
         for such arguments", assumed.join(", and that ")
    )]
    PlanFacts {
        /// The kernel.
        kernel: String,
        /// What the plans assume and the arguments do not have.
        assumed: Vec<String>,
    },
    /// Code generation failed.
    #[error("failed to generate code for kernel `{kernel}` on {arch}: {reason}")]
    Generate {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Why.
        reason: String,
    },
    /// The interpreter refused the kernel.
    #[error("failed to execute kernel `{kernel}`: {reason}")]
    Execute {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// No such architecture.
    #[error("`{name}` is not an architecture; expected {known}")]
    UnknownArchitecture {
        /// Name given.
        name: String,
        /// Names that there are.
        known: String,
    },
}

impl From<Diagnostics> for KernelError {
    fn from(diagnostics: Diagnostics) -> Self {
        KernelError::Text(Box::new(diagnostics))
    }
}
