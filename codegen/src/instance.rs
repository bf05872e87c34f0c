//! A kernel with everything fixed that generated code depends on but a schedule does not choose.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::ir::{At, Binding, Entity, Kernel, Op};
use serde::{Deserialize, Serialize};

/// What is known about the arguments of a launch beyond their types. Code generated under facts may only be launched
/// on arguments that have them; the launcher checks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Names of scalar parameters that are positive and finite. Licenses folding a scale through a maximum.
    pub positive: BTreeSet<String>,
    /// The address of every tensor of [`wide_tensors`] and all its strides but the last are multiples of this many bytes: 16,
    /// 8, 4, 2 or 1; but for those that [`Facts::aligned`] names.
    pub alignment: u32,
    /// Tensors whose addresses and strides are multiples of another number of bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aligned: BTreeMap<String, u32>,
    /// The rows of the heads of a group can be addressed as rows of one ([`crate::folded_rows`]):
    /// every group has as many heads, and one stride leads from row to row. Never of a kernel
    /// without such rows.
    pub foldable: bool,
    /// Tensors whose numbers are all finite: tensors between the launches of a kernel, of which the
    /// launch that writes them sees to it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub finite: BTreeSet<String>,
    /// Index arithmetic may need 64 bits. It is not so of almost all calls ([`flashtile_dsl::analysis::reach`]), and code for
    /// those computes in 32.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wide: bool,
}

impl Facts {
    /// Nothing known but the natural alignment of a 2-byte element, and that index arithmetic stays within 32 bits.
    pub fn none() -> Self {
        Self {
            positive: BTreeSet::new(),
            alignment: 2,
            aligned: BTreeMap::new(),
            foldable: false,
            finite: BTreeSet::new(),
            wide: false,
        }
    }

    /// Bytes that the address and the strides of a tensor are multiples of.
    pub fn alignment_of(&self, tensor: &str) -> u32 {
        self.aligned.get(tensor).copied().unwrap_or(self.alignment)
    }

    /// The same facts about tensors that are aligned so: `alignment` is that of most bytes, and
    /// other tensors are named. There is one way to say it, so that equal facts compare equal.
    #[must_use]
    pub fn with_alignments<N: Into<String>>(mut self, tensors: impl IntoIterator<Item = (N, u32)>) -> Self {
        let all: BTreeMap<String, u32> = tensors.into_iter().map(|(name, bytes)| (name.into(), bytes.min(16))).collect();
        self.alignment = all.values().copied().max().unwrap_or(16);
        self.aligned = all;
        self.aligned.retain(|_, bytes| *bytes != self.alignment);
        self
    }

    /// What code that was generated under these facts takes for granted, in words, and arguments
    /// with the other facts do not have; empty if it may be launched on them.
    pub fn beyond(&self, others: &Self) -> Vec<String> {
        let mut beyond: Vec<String> = self.positive.difference(&others.positive).map(|name| format!("{name} > 0")).collect();
        if self.alignment > others.alignment {
            beyond.push(format!("addresses and strides of matrices are multiples of {} bytes", self.alignment));
        }
        let named: BTreeSet<&String> = self.aligned.keys().chain(others.aligned.keys()).collect();
        for name in named {
            let (own, other) = (self.alignment_of(name), others.alignment_of(name));
            // What holds of all tensors but named ones was said of all.
            if own > other && !(own == self.alignment && other == others.alignment) {
                beyond.push(format!("addresses and strides of {name} are multiples of {own} bytes"));
            }
        }
        if self.foldable && !others.foldable {
            beyond.push("rows of the heads of a group can be addressed as rows of one".into());
        }
        beyond.extend(self.finite.difference(&others.finite).map(|name| format!("numbers of {name} are finite")));
        if others.wide && !self.wide {
            beyond.push("index arithmetic stays within 32 bits".into());
        }
        beyond
    }
}

/// For every parameter, whether it is a tensor that generated code moves many bytes at a time: one
/// that is loaded or stored as a matrix. Vectors and scalars (such as the LSE, whose strides are as
/// odd as its length) are moved element by element, and their alignment does not matter. Nor does
/// that of a matrix of one-byte elements that is stored.
pub fn wide_tensors(kernel: &Kernel) -> Vec<bool> {
    let mut wide = vec![false; kernel.params.len()];
    for (_, op) in kernel.walk() {
        let (tensor, at, is_load) = match &kernel.ops[op].op {
            Op::Load { tensor, at } => (tensor, at, true),
            Op::Store { tensor, at, .. } => (tensor, at, false),
            _ => continue,
        };
        let is_matrix = at.iter().filter(|a| !matches!(a, At::Index(_))).count() == 2;
        let has_bytes = kernel.tensor(*tensor).elem.bytes() == Some(1);
        wide[tensor.index()] |= is_matrix && (is_load || !has_bytes);
    }
    wide
}

impl Instance {
    /// Bytes that the address of every row of every tile of a tensor is a multiple of: its
    /// alignment, less where a tile starts at a column within it, such as the second half of a
    /// head.
    pub fn alignment_of(&self, tensor: &str) -> u32 {
        let kernel = &self.kernel;
        let mut alignment = self.facts.alignment_of(tensor);
        for (_, op) in kernel.walk() {
            let (Op::Load { tensor: of, at } | Op::Store { tensor: of, at, .. }) = &kernel.ops[op].op else { continue };
            if kernel.params[*of].name != tensor {
                continue;
            }
            let Some(At::Range { start, .. }) = at.last() else { continue };
            let bytes = self.binding.elem(kernel, kernel.tensor(*of).elem).bytes().unwrap_or(1) as u64;
            let start = self.binding.size(kernel, start).unwrap_or(1).unsigned_abs() * bytes;
            if start > 0 {
                alignment = alignment.min(1 << start.trailing_zeros().min(4));
            }
        }
        alignment
    }

    /// The same facts about another kernel, of a launch that a rewrite made: tensors in scratch
    /// memory begin, and have rows that begin, at multiples of 16 bytes. Those that are `finite` hold
    /// finite numbers alone.
    #[must_use]
    pub fn of_launch(&self, kernel: Kernel, scratch: &[String], finite: &[String]) -> Self {
        let mut made = Self { kernel, ..self.clone() };
        if made.facts.alignment < 16 {
            made.facts.aligned.extend(scratch.iter().map(|name| (name.clone(), 16)));
        }
        made.facts.finite.extend(finite.iter().cloned());
        made
    }
}

/// A verified kernel with its generics bound, under facts about its arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Instance {
    /// The kernel, verified. Code is generated for it as [`crate::as_generated`] gives it.
    pub kernel: Kernel,
    /// Values of its generics.
    pub binding: Binding,
    /// What is known of the arguments.
    pub facts: Facts,
}
