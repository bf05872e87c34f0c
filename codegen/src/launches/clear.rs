//! Sums are set to 0 by a launch ahead of the one that adds to them.

use flashtile_dsl::ir::{Kernel, cleared};

use super::staged::{NotStaged, Staged};

/// A kernel ahead for each sum; `None` if the kernel has none.
pub(super) fn clear_sums(kernel: &Kernel, of: &str) -> Option<Result<Staged, NotStaged>> {
    let sums = kernel.params.keys().filter(|&id| kernel.params[id].kind.is_sum());
    let clear = |id| {
        let name = &kernel.params[id].name;
        cleared(kernel, format!("{of}_clear_{name}"), name, kernel.tensor(id))
    };
    let ahead: Vec<Kernel> = sums.map(clear).collect();
    (!ahead.is_empty()).then(|| Staged::new(ahead, kernel.clone(), Vec::new(), Vec::new()))
}
