//! Rewrites from tile IR to tile IR that bring a kernel to the normal form the plan is made from.
//!
//! Each keeps the meaning of the kernel (under the facts it is given); each is printed by `inspect --emit ir`.

mod accumulate;
mod copied;
pub(crate) mod edit;
mod exponent;
mod fold;
mod hoist;
mod interchange;
mod precompute;
mod pretranspose;
mod split;
mod staged;
mod uniform;

use flashtile_dsl::ir::Kernel;

pub(crate) use copied::copies_pay;
pub use copied::{copy_ahead, why_not_copy};
pub use fold::{Folded, NotFolded, fold, folded_rows, why_not_fold, why_not_fold_shared};
pub use interchange::{Interchanged, interchange, why_not_interchange};
pub use precompute::{Sides, precompute, why_not_precompute};
pub use pretranspose::{pretranspose, why_not_pretranspose};
pub use split::{GroupedSplit, Split, groups, split, split_grouped, split_joined, why_not_split};
pub use staged::Staged;

use crate::instance::Facts;
use crate::schedule::{Exponential, Schedule};

/// The normal form of `kernel` under `schedule`, and the names of the scalar parameters assumed positive.
pub fn normalize(kernel: &Kernel, facts: &Facts, schedule: &Schedule) -> (Kernel, Vec<String>) {
    let mut kernel = kernel.clone();
    let mut assumed = Vec::new();
    if schedule.exponential == Exponential::Exp2 {
        assumed = exponent::fold_scale(&mut kernel, facts);
        exponent::distribute(&mut kernel);
    }
    exponent::exp_to_exp2(&mut kernel);
    uniform::join_factors(&mut kernel);
    accumulate::accumulate_dots(&mut kernel);
    hoist::hoist_invariants(&mut kernel);
    edit::merge_equal(&mut kernel);
    edit::remove_dead(&mut kernel);
    (kernel, assumed)
}
