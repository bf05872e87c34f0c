//! Errors of code generation.

use flashtile_dsl::ir::Span;

use crate::reason::{Reason, Summary};

/// Why no code was generated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// The schedule is not legal for the kernel and architecture.
    #[error("illegal schedule for {arch}: {}", Summary::of(reasons))]
    Illegal {
        /// The architecture.
        arch: &'static str,
        /// All reasons.
        reasons: Vec<Reason>,
    },
    /// No schedule of the space is legal.
    #[error("no legal schedule for {arch}: {}", Summary::of(reasons))]
    NoLegalSchedule {
        /// The architecture.
        arch: &'static str,
        /// Reasons of the schedules tried, without repetition.
        reasons: Vec<Reason>,
    },
    /// The kernel uses something that no schedule of this compiler can execute on a GPU yet.
    #[error("{what}: not supported on a GPU yet; {instead}")]
    Unsupported {
        /// What it uses.
        what: String,
        /// What to do instead.
        instead: String,
        /// Where.
        span: Span,
    },
    /// Rows of a fragment do not divide among the warps as those of the others do.
    #[error("{tile} has {rows} rows, {because}: {instead}")]
    Uneven {
        /// The fragment: its name in the text, or its dimensions.
        tile: String,
        /// Its rows.
        rows: u32,
        /// What they do not go with.
        because: String,
        /// What mends it.
        instead: String,
    },
    /// The plan verifier refused the plan that was made: a bug in the compiler, not in the kernel.
    #[error("the compiler made a wrong plan (please report it): {}", .0.join("; "))]
    WrongPlan(Vec<String>),
    /// The plan verifier refused a plan that was given in place of the compiler's own.
    #[error("the plan is wrong: {}", .0.join("; "))]
    RefusedPlan(Vec<String>),
    /// Plans were given for another number of launches than the schedule makes.
    #[error("the schedule makes {launches} launches, but {plans} plans were given; give one plan for each launch, in order")]
    PlanCount {
        /// Launches of the schedule.
        launches: usize,
        /// Plans that were given.
        plans: usize,
    },
    /// The IR verifier refused a kernel that a schedule made of the kernel of the text: a bug in the compiler.
    #[error("the compiler made a wrong kernel (please report it): {}", .0.join("; "))]
    WrongKernel(Vec<String>),
    /// A generic of the kernel is not bound.
    #[error("`{0}` is not bound; give it a value")]
    Unbound(String),
    /// A template failed to render: a bug in the compiler.
    #[error("failed to render a template (please report it): {0}")]
    Template(#[from] flashtile_templates::Error),
}

impl Error {
    /// The same as reasons against a schedule.
    pub fn into_reasons(self) -> Vec<Reason> {
        let why = self.to_string();
        match self {
            Error::Illegal { reasons, .. } | Error::NoLegalSchedule { reasons, .. } => reasons,
            Error::Unsupported { .. } => vec![Reason::Unsupported { why }],
            Error::Uneven { .. } => vec![Reason::knobs("warps", "block_n", why)],
            Error::Unbound(_) => vec![Reason::Kernel { why }],
            Error::WrongPlan(_)
            | Error::RefusedPlan(_)
            | Error::PlanCount { .. }
            | Error::WrongKernel(_)
            | Error::Template(_) => vec![Reason::Fault { why }],
        }
    }

    /// An [`Error::Unsupported`].
    pub(crate) fn unsupported(what: impl Into<String>, instead: impl Into<String>, span: Span) -> Self {
        Error::Unsupported { what: what.into(), instead: instead.into(), span }
    }
}
