//! The fused form of [`super::streams`]: the kernel of columns makes the scores of each pair once,
//! and adds what a step gives to the gradients of rows to sums.
//!
//! * *Rows* stores what columns need of rows, and walks nothing.
//! * *Columns* gives the gradients of columns, and adds those of rows: `grad_q_sum`.
//! * *Sums* takes these back through what rows make of their inputs, and rounds them, a program for
//!   each tile of rows. Where several programs load the same, each stores its share, and a kernel of
//!   totals sums these up.
//!
//! * *Pairs* gives the gradients of what has a number for each pair, and makes the scores again
//!   (`pairs.rs`).
//!
//! Five products are made of attention for the seven of the plain form. In which order programs add
//! is not said, so two launches may differ in the last bits of what rows get.

use super::columns::{ColumnGroup, column_groups, sums_of_shares};
use super::forward::{Class, Forward, WantedLoad};
use super::gathered::rounded;
use super::kept::Kept;
use super::pairs::{pair_groups, pair_kernels};
use super::streams::{OfRowsMade, columns_kernel, rows_kernel};
use super::sums::sums_kernel;
use super::totals::all_totals;
use super::{Form, NotDifferentiable};
use crate::ir::Kernel;

/// The kernels of the gradients of a kernel whose grid has tiles of rows, in the fused form.
pub(super) fn fused(forward: &Forward<'_>, kept: &Kept, form: Form) -> Result<Vec<Kernel>, NotDifferentiable> {
    let groups = column_groups(forward, form)?;
    let rows_wanted = forward.wanted_loads(Class::Row);
    check(forward, &groups, &rows_wanted)?;
    // Rows get nothing but what columns give: no input of theirs is gone back to.
    let of_rows = forward.only([], &[]).with_results_of(forward);
    let left = rows_kernel(&of_rows, kept, &|_| true)?.left;
    let (mut columns, mut sums, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        // The first group walks the pairs for rows too.
        let of_rows = if number == 0 { &rows_wanted[..] } else { &[] };
        let of_pairs = if number == 0 { forward.wanted_gathers(Class::Pair) } else { Vec::new() };
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let of_group = forward.only(group.loads().chain(of_rows), of_pairs.iter().chain(&group.gathers));
        let made = columns_kernel(&of_group, kept, &left, group, number.is_empty(), &number)?;
        columns.push(made.kernel);
        sums.extend(made.sums);
        shares.extend(made.shares);
    }
    let pairs = pair_kernels(forward, kept, &left, &pair_groups(forward))?;
    let read = |name: &str| columns.iter().chain(&pairs).any(|kernel| kernel.param_named(name).is_some());
    let OfRowsMade { kernel: rows, .. } = rows_kernel(&of_rows, kept, &read)?;
    let (of_rows_rounded, shares_of_rows) = sums_kernel(forward, &sums, &rows_wanted)?;
    shares.extend(shares_of_rows);
    let of_shares = sums_of_shares(forward, &groups)?;
    let totals = all_totals(forward, &shares)?;
    let behind = of_rows_rounded.into_iter().chain(of_shares).chain(totals).chain(rounded(forward));
    Ok(rows.into_iter().chain(columns).chain(pairs).chain(behind).collect())
}

/// Refuses what the fused form is not built for.
fn check(forward: &Forward<'_>, groups: &[ColumnGroup], rows: &[WantedLoad]) -> Result<(), NotDifferentiable> {
    let plain = "take the plain form";
    let refuse = |what: &str| Err(NotDifferentiable::new(what, forward.kernel.name_span, plain));
    if forward.walks.len() != 1 {
        return refuse("a kernel without one loop over columns has no fused form");
    }
    if groups.is_empty() || rows.is_empty() {
        return refuse("gradients of rows alone, or of columns alone, have no fused form: nothing is made twice");
    }
    let others = [forward.wanted_loads(Class::Pair), forward.wanted_of_programs(false)];
    if let Some((value, tensor, _)) = others.into_iter().flatten().find(|load| !forward.is_of_pairs(load)) {
        let what = format!("the gradient of `{}`, which is no tensor of rows or columns, has no fused form", {
            &forward.kernel.params[tensor].name
        });
        return Err(NotDifferentiable::new(what, forward.span(value), plain));
    }
    if let Some(gathered) = forward.wanted_gathers(Class::Row).first() {
        let name = &forward.kernel.params[gathered.tensor].name;
        let what = format!("the gradient of `{name}`, which is gathered for rows, has no fused form");
        return Err(NotDifferentiable::new(what, forward.span(gathered.value), plain));
    }
    // It would be a sum over the rows of a computed tile, which has no code.
    if let Some((value, tensor, _)) = rows.iter().find(|(value, ..)| forward.kernel.tile(*value).rank() < 2) {
        let name = &forward.kernel.params[*tensor].name;
        let what = format!("the gradient of `{name}`, a number of each row, has no fused form");
        return Err(NotDifferentiable::new(what, forward.span(*value), plain));
    }
    // What rows get outside of the loop would be added by no program of columns.
    let outside = rows.iter().find(|(value, ..)| forward.loads_like(*value).any(|load| forward.is_used_outside(load)));
    match outside {
        Some((value, tensor, _)) => {
            let what =
                format!("`{}` is used behind the loop too, or in what the loop starts from", forward.kernel.params[*tensor].name);
            Err(NotDifferentiable::new(what, forward.span(*value), plain))
        }
        None => Ok(()),
    }
}
