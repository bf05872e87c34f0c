//! A kernel with everything fixed that generated code depends on but a schedule does not choose.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{At, Binding, Entity, Kernel, Op, ParamId, ParamKind, Type, ValueId};
use serde::{Deserialize, Serialize};

/// What is known about the arguments of a launch beyond their types. Code generated under facts may only be launched
/// on arguments that have them; the launcher checks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Names of scalar parameters that are positive and finite. Licenses folding a scale through a maximum.
    pub positive: BTreeSet<String>,
    /// The address of every tensor of [`wide_tensors`] and all its strides but the last are multiples of this many bytes: 16,
    /// 8, 4, 2 or 1.
    pub alignment: u32,
    /// The rows of the heads of a group can be addressed as rows of one ([`crate::folded_rows`]):
    /// every group has as many heads, and one stride leads from row to row. Never of a kernel
    /// without such rows.
    pub foldable: bool,
    /// Index arithmetic may need 64 bits. It is not so of almost all calls ([`flashtile_dsl::analysis::reach`]), and code for
    /// those computes in 32.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wide: bool,
}

impl Facts {
    /// Nothing known but the natural alignment of a 2-byte element, and that index arithmetic stays within 32 bits.
    pub fn none() -> Self {
        Self { positive: BTreeSet::new(), alignment: 2, foldable: false, wide: false }
    }

    /// What code that was generated under these facts takes for granted, in words, and arguments
    /// with the other facts do not have; empty if it may be launched on them.
    pub fn beyond(&self, others: &Self) -> Vec<String> {
        let mut beyond: Vec<String> = self.positive.difference(&others.positive).map(|name| format!("{name} > 0")).collect();
        if self.alignment > others.alignment {
            beyond.push(format!("addresses and strides of matrices are multiples of {} bytes", self.alignment));
        }
        if self.foldable && !others.foldable {
            beyond.push("rows of the heads of a group can be addressed as rows of one".into());
        }
        if others.wide && !self.wide {
            beyond.push("index arithmetic stays within 32 bits".into());
        }
        beyond
    }
}

/// For every parameter, whether it is a tensor that generated code moves many bytes at a time: one
/// that is loaded or stored as a matrix. Vectors and scalars (such as the LSE, whose strides are as
/// odd as its length) are moved element by element, and their alignment does not matter. Nor does
/// that of a matrix of one-byte elements that is no operand of a product, such as a boolean mask
/// with rows of odd length: code that loads it asks for the alignment itself.
pub fn wide_tensors(kernel: &Kernel) -> Vec<bool> {
    let mut wide = vec![false; kernel.params.len()];
    moved(kernel).into_iter().for_each(|(tensor, _)| wide[tensor.index()] = true);
    wide
}

/// Loads and stores of matrices whose alignment matters: the tensor, and what addresses its
/// columns.
fn moved(kernel: &Kernel) -> Vec<(ParamId, Option<&At>)> {
    let has_bytes = |kind: &ParamKind| matches!(kind, ParamKind::Tensor(t) if t.elem.bytes() == Some(1));
    let operands = if kernel.params.values().any(|p| has_bytes(&p.kind)) { operands(kernel) } else { BTreeSet::new() };
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        let data = &kernel.ops[op];
        if let Op::Load { tensor, at } | Op::Store { tensor, at, .. } = &data.op {
            let matrix = at.iter().filter(|a| !matches!(a, At::Index(_))).count() == 2;
            let bytes = kernel.tensor(*tensor).elem.bytes() == Some(1);
            if matrix && (!bytes || data.results.iter().any(|v| operands.contains(v))) {
                found.push((*tensor, at.last()));
            }
        }
    }
    found
}

/// Matrices from which operands of products are computed element by element, and these operands.
fn operands(kernel: &Kernel) -> BTreeSet<ValueId> {
    let mut all = BTreeSet::new();
    for (_, op) in kernel.walk() {
        let Op::Dot { a, b, .. } = kernel.ops[op].op else { continue };
        for operand in [a, b] {
            let (mut found, mut work, mut elementwise) = (BTreeSet::new(), vec![operand], true);
            while let Some(v) = work.pop() {
                if !matches!(kernel.ty(v), Type::Tile(t) if t.rank() == 2) || !found.insert(v) {
                    continue;
                }
                match kernel.def(v).map(|(_, op)| op) {
                    Some(Op::Load { .. }) => {}
                    Some(op) if op.is_elementwise() || matches!(op, Op::Full { .. } | Op::Transpose(_)) => {
                        work.extend(op.operands())
                    }
                    // An operand that depends on a product or a reduction is a fragment.
                    _ => elementwise = false,
                }
            }
            if elementwise {
                all.extend(found);
            }
        }
    }
    all
}

impl Instance {
    /// Bytes that the address of every row of every tile of [`wide_tensors`] is a multiple of: the alignment of the tensors, less
    /// where a tile starts at a column within its tensor, such as the second half of a head.
    pub fn alignment(&self) -> u32 {
        let kernel = &self.kernel;
        let mut alignment = self.facts.alignment;
        for (tensor, columns) in moved(kernel) {
            let Some(At::Range { start, .. }) = columns else { continue };
            let bytes = self.binding.elem(kernel, kernel.tensor(tensor).elem).bytes().unwrap_or(1) as u64;
            let start = self.binding.size(kernel, start).unwrap_or(1).unsigned_abs() * bytes;
            if start > 0 {
                alignment = alignment.min(1 << start.trailing_zeros().min(4));
            }
        }
        alignment
    }
}

/// A verified kernel with its generics bound, under facts about its arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Instance {
    /// The kernel, verified. Code is generated for tiles whose rows are an axis: see
    /// [`crate::with_row_axes`].
    pub kernel: Kernel,
    /// Values of its generics.
    pub binding: Binding,
    /// What is known of the arguments.
    pub facts: Facts,
}
