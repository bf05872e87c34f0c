//! # Gradients
//!
//! From a kernel to kernels of the same language that compute its gradients. They are verified,
//! interpreted, scheduled and printed like any other.
//!
//! ## What is differentiated
//!
//! A kernel has one axis of *rows*, tiles of the grid, and loops over tiles of *columns*, whose
//! carried values are streaming reductions ([`crate::analysis::streaming`]). All loops walk the
//! same positions. They are not differentiated step by step. A running maximum `m` is a reference
//! that what is rescaled by it goes with: sums `l = sum(exp(s - m))` and `acc = sum(exp(s - m) v)`
//! enter the results by their quotient `acc / l`, and by `m + ln(l)`, which no choice of `m`
//! changes; `scales.rs` checks that. So the gradient is that for one choice, held fixed: `m +
//! ln(l)` itself, of which `l` is 1 and `acc` is the quotient. The forward kernel stores both for
//! each row; where it has no such output, [`Gradient::forward`] is the kernel with outputs more.
//!
//! Or the grid has tiles of rows and of columns, and one loop sums products up along a third axis:
//! see `product.rs`.
//!
//! ## The kernels
//!
//! * *Rows*: a program for each tile of rows, as in the forward kernel. It takes the gradients of
//!   the outputs back through what follows the loops, which gives those of the loops' results;
//!   walks the columns again for the gradients of what rows load (queries, a bias), in a pass for
//!   each loop; and stores for the kernel of columns what that needs of rows.
//! * *Columns*: a program for each tile of columns, which walks the rows, and dimensions of the
//!   grid that columns do not tell apart, such as the heads of a group. It gives the gradients of
//!   what columns load (keys, values). Scores are made as `k q` here, so that what is summed over
//!   rows is a left operand as it is computed.
//!   With [shares](Form::has_shares) a program has columns of one index of each dimension of the
//!   grid, and stores its share of the gradients of what other programs load too (`columns.rs`).
//! * *Totals*: what several programs load (the slope of a head, a bias that batches share) gets a
//!   share from each, which the kernel of rows stores, and a kernel of its own sums up. What changes
//!   columns, such as the weight of a norm of keys, gets its shares from the kernel of columns.
//! * *Sums of uses*: what a kernel uses in several ways (a number of each position that rows and
//!   columns both load) has a gradient for each (`uses.rs`, `ways.rs`), and a kernel adds these up
//!   (`added.rs`).
//!
//! Every sum is made in one program, in order: the same bits in every launch. Not so the gradient
//! of what is gathered, to whose elements programs add (`gathered.rs`), and in the
//! [fused form](Form::Fused), which makes the scores once: see `fused.rs`.
//!
//! Rules of single ops stand in `rules.rs`.

mod added;
mod alike;
mod build;
mod columns;
mod copy;
mod extents;
mod forward;
mod fused;
mod gathered;
mod hidden;
mod hiding;
mod kept;
mod names;
mod needed;
mod pairs;
mod parts;
mod product;
mod rules;
mod scales;
mod steps;
mod stored;
mod streams;
mod sums;
mod totals;
mod uses;
mod walked;
mod ways;

pub use build::gradient;

use crate::ir::{Kernel, Span};

/// Which kernels compute the gradients of a kernel that walks columns for tiles of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// A kernel of rows and one of columns, each of which makes the scores of all pairs. The same
    /// bits in every launch, but for the gradients of what is gathered.
    #[default]
    Plain,
    /// One kernel makes the scores, and adds to the gradients of rows in any order.
    Fused,
    /// The plain form, with columns for each program of the grid: of grouped queries for each head,
    /// in place of a loop over the heads of a group. Shares of columns are stored in f32, and summed
    /// up behind. More programs, where columns alone have few.
    PlainShares,
    /// The fused form with such shares.
    FusedShares,
    /// The gradient of each score is stored, in as much memory as there are scores, and the gradients of
    /// operands are products of that: for rows that are wider than a program can hold.
    Stored,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Fused, Self::PlainShares, Self::FusedShares, Self::Stored];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fused => "fused",
            Self::PlainShares => "plain-shares",
            Self::FusedShares => "fused-shares",
            Self::Stored => "stored",
        }
    }

    /// The form of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// The form with these properties.
    pub fn of(is_fused: bool, has_shares: bool) -> Self {
        match (is_fused, has_shares) {
            (false, false) => Self::Plain,
            (true, false) => Self::Fused,
            (false, true) => Self::PlainShares,
            (true, true) => Self::FusedShares,
        }
    }

    /// Whether scores are made once, and gradients of rows are sums in any order.
    pub fn is_fused(self) -> bool {
        matches!(self, Self::Fused | Self::FusedShares)
    }

    /// Whether programs store shares of the gradients of columns.
    pub fn has_shares(self) -> bool {
        matches!(self, Self::PlainShares | Self::FusedShares)
    }
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Names of the inputs whose gradients are wanted.
    pub of: Vec<String>,
    /// Names of the outputs whose gradients are given. Nothing that is asked for depends on others.
    pub from: Vec<String>,
    /// The form of the kernels.
    pub form: Form,
}

/// The kernels of a gradient.
///
/// The gradient of a tensor `x` is called `grad_x`, of an output as of an input.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The forward kernel, with the outputs that the others need.
    pub forward: Kernel,
    /// The kernels that compute the gradients, in the order of their launches.
    pub backward: Vec<Kernel>,
}

/// Why a kernel has no gradient, or none that is built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct NotDifferentiable {
    /// What stands against it.
    pub what: String,
    /// Where, in the text of the kernel.
    pub span: Span,
    /// What to do instead.
    pub instead: String,
}

impl NotDifferentiable {
    fn new(what: impl Into<String>, span: Span, instead: impl Into<String>) -> Self {
        Self { what: what.into(), span, instead: instead.into() }
    }
}
