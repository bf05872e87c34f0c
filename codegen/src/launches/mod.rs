//! Which launches a schedule makes of a kernel: one, or several with tensors between them.
//!
//! A launch has a kernel of its own, in tile IR, and a schedule of its own; each goes the same way
//! to a plan and to text. What one launch leaves to a later one are *scratch* tensors: outputs of
//! the one kernel and inputs of the other, which are no parameters of the kernel text.
//!
//! What a kernel adds up (`add`) is set to 0 by a launch ahead, whatever the schedule
//! (`clear.rs`).
//!
//! `stages.rs` lists the rewrites that make launches, in the order in which they are applied.
//! `pieces.rs` applies those that a schedule asks for, and gives each launch its schedule. Each
//! rewrite is a file, and gives a [`Staged`].

mod ahead;
mod carried;
mod clear;
mod copied;
mod differences;
mod fold;
mod folded;
mod interchange;
mod lists;
mod pieces;
mod precompute;
mod pretranspose;
mod split;
mod staged;
mod stages;
mod summaries;
mod terms;

pub(crate) use copied::with_copies;
pub use copied::{copy_ahead, why_not_copy};
pub(crate) use differences::with_differences;
pub use differences::{by_difference, why_not_differences};
pub use fold::{NotFolded, fold, folded_rows, why_not_fold, why_not_fold_shared, why_not_folded};
pub(crate) use folded::FOLDING_SIZES;
pub use folded::Folded;
pub use interchange::{interchange, why_not_interchange};
pub use lists::why_not_list;
pub(crate) use pieces::{Launches, Piece, launches};
pub use precompute::{Sides, precompute, why_not_precompute};
pub use pretranspose::{pretranspose, why_not_pretranspose};
pub use split::{split, why_not_split};
pub use staged::{NotStaged, Staged};
pub(crate) use stages::{MAX_SPLITS, why_not_combine};
pub use summaries::{summarise, why_not_summarise};
pub(crate) use terms::with_terms;
pub use terms::{terms_of_products, why_not_terms};
