//! A kernel with everything fixed that generated code depends on but a schedule does not choose.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{At, Binding, Entity, Kernel, Op};
use serde::{Deserialize, Serialize};

/// What is known about the arguments of a launch beyond their types. Code generated under facts may only be launched
/// on arguments that have them; the launcher checks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Names of scalar parameters that are positive and finite. Licenses folding a scale through a maximum.
    pub positive: BTreeSet<String>,
    /// The address of every tensor of [`wide_tensors`] and all its strides but the last are multiples of this many bytes: 16,
    /// 8, 4 or 2.
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

/// For every parameter, whether it is a tensor that generated code moves many bytes at a time: one that is loaded or stored as
/// a matrix. Vectors and scalars (such as the LSE, whose strides are as odd as its length) are moved element by element, and
/// their alignment does not matter.
pub fn wide_tensors(kernel: &Kernel) -> Vec<bool> {
    let mut wide = vec![false; kernel.params.len()];
    for (_, op) in kernel.walk() {
        if let Op::Load { tensor, at } | Op::Store { tensor, at, .. } = &kernel.ops[op].op {
            let matrix = at.iter().filter(|a| !matches!(a, At::Index(_))).count() == 2;
            wide[tensor.index()] |= matrix;
        }
    }
    wide
}

impl Instance {
    /// Bytes that the address of every row of every tile of [`wide_tensors`] is a multiple of: the alignment of the tensors, less
    /// where a tile starts at a column within its tensor, such as the second half of a head.
    pub fn alignment(&self) -> u32 {
        let kernel = &self.kernel;
        let mut alignment = self.facts.alignment;
        for (_, op) in kernel.walk() {
            let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &kernel.ops[op].op else { continue };
            let matrix = at.iter().filter(|a| !matches!(a, At::Index(_))).count() == 2;
            let Some(At::Range { start, .. }) = at.last().filter(|_| matrix) else { continue };
            let bytes = self.binding.elem(kernel, kernel.tensor(*tensor).elem).bytes().unwrap_or(1) as u64;
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
    /// The kernel, verified.
    pub kernel: Kernel,
    /// Values of its generics.
    pub binding: Binding,
    /// What is known of the arguments.
    pub facts: Facts,
}
