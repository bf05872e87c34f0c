//! How a kernel that takes the rows of several heads for rows of one sees the tensors of a call.

use flashtile_dsl::ir::{AxisId, Binding, Kernel, SizeExpr};

use crate::abi::{FoldedRows, SizeTerm};

/// What sizes fold, in words.
pub(crate) const FOLDING_SIZES: &str = "at least one, and at most 2^31 - 2^16 rows in a group";

/// The view that a kernel with folded rows has of tensors.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The size that the original does not have: the rows of a group.
    pub size: String,
    /// Heads, over the sizes of the original.
    pub heads: SizeExpr,
    /// Groups, likewise.
    pub groups: SizeExpr,
    /// Rows of a head, likewise.
    pub rows: SizeExpr,
    /// The axis of the rows.
    pub axis: AxisId,
    /// The tensors that are viewed in another way, each with the dimension of the heads, which that
    /// of the rows follows.
    pub tensors: Vec<(String, u32)>,
}

impl Folded {
    /// How the tensors of a call look to `kernel`, which folds rows so, constants bound.
    pub fn rows(&self, kernel: &Kernel, binding: &Binding) -> FoldedRows {
        let term = |size| SizeTerm::of(kernel, binding, size);
        FoldedRows {
            size: self.size.clone(),
            heads: term(&self.heads),
            groups: term(&self.groups),
            rows: term(&self.rows),
            tensors: self.tensors.clone(),
        }
    }

    /// What [`crate::Facts::foldable`] says of the arguments, in words.
    pub(super) fn text(&self, kernel: &Kernel) -> String {
        let size = |size| kernel.size_text(size);
        let (heads, groups, rows) = (size(&self.heads), size(&self.groups), size(&self.rows));
        let names: Vec<String> = self.tensors.iter().map(|(name, _)| format!("`{name}`")).collect();
        let whole = if groups == "1" { String::new() } else { format!("{heads} is a multiple of {groups}, and ") };
        format!("{whole}heads of {} follow each other, {rows} rows apart ({FOLDING_SIZES})", names.join(", "))
    }
}
