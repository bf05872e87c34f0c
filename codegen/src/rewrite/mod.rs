//! Rewrites from tile IR to tile IR that bring a kernel to the normal form the plan is made from.
//! Those that make several launches of a kernel are in [`crate::launches`]. The last one,
//! [`crate::lower::make_twice`], asks lowering which operands are computed in shared memory.
//!
//! Each keeps the meaning of the kernel (under the facts it is given); each is printed by `inspect --emit ir`.

mod absent;
mod accumulate;
mod columns;
mod depths;
pub(crate) mod edit;
mod exponent;
mod gathered;
mod hoist;
mod implied;
mod large;
mod order;
mod rows;
mod uniform;

pub(crate) use absent::{is_positive, mask_stored};
pub use columns::in_passes;
pub(crate) use columns::why_not_in_passes;
pub(crate) use depths::depth;
use depths::in_depths;
pub(crate) use exponent::{Scale, positive};
use flashtile_dsl::ir::{Binding, Kernel};
pub(crate) use gathered::apart;
pub(crate) use large::PARTS_WIDTH;
pub use order::softmaxes_in_turn;
pub use rows::with_row_axes;
pub(crate) use rows::{NoAxis, rows_axis};

use crate::instance::Instance;
use crate::schedule::{BlockKnobs, Exponential};

/// The kernel that code is generated for: tiles have axes for their rows ([`with_row_axes`]), what is
/// too wide is walked, products by their depth and rows by their columns ([`in_passes`]), and the
/// softmaxes of a loop stand one behind the other ([`softmaxes_in_turn`]).
pub fn as_generated(kernel: &Kernel, binding: &Binding) -> Kernel {
    softmaxes_in_turn(&in_passes(&in_depths(&with_row_axes(kernel), binding), binding))
}

/// The normal form of an instance's kernel under `schedule`, and the names of the scalar parameters assumed positive.
pub fn normalize(instance: &Instance, schedule: &BlockKnobs) -> (Kernel, Vec<String>) {
    let mut kernel = instance.kernel.clone();
    let mut assumed = Vec::new();
    implied::drop_implied_masks(&mut kernel, instance, schedule);
    gathered::gather_columns(&mut kernel);
    if schedule.exponential == Exponential::Exp2 {
        assumed = exponent::fold_scale(&mut kernel, &instance.facts);
        exponent::distribute(&mut kernel);
        // Factors are joined where nothing else uses the product, what is dead neither.
        edit::remove_dead(&mut kernel);
    }
    exponent::exp_to_exp2(&mut kernel);
    uniform::join_factors(&mut kernel);
    accumulate::accumulate_dots(&mut kernel);
    absent::mask_operands(&mut kernel, &assumed);
    hoist::hoist_invariants(&mut kernel);
    edit::merge_equal(&mut kernel);
    edit::remove_dead(&mut kernel);
    (kernel, assumed)
}
