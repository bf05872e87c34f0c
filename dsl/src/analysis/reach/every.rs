//! What holds of the integers of a kernel in every call that a launch accepts.

use std::collections::BTreeSet;

use super::interval::Interval;
use super::node::{self, Known, Node, Nodes};
use super::{Binding, Elem, Entity, Kernel, Reach, SizeExpr, Type, ValueId};

/// Which of the 32-bit integers of a kernel may wrap around in a call.
///
/// Sizes are known as far as the binding has them, and are at most [`super::MAX_SIZE`]; scalars and
/// what is loaded are any `i32`. What a mask compares does not wrap, since a launch that would make
/// it wrap is refused.
#[derive(Clone, Debug)]
pub struct Integers {
    nodes: Nodes,
    wrapping: BTreeSet<usize>,
}

impl Integers {
    /// Of a verified kernel.
    pub fn new(kernel: &Kernel, binding: &Binding) -> Self {
        let mut reach = Reach::new(kernel, binding);
        for (_, op) in kernel.walk() {
            for &value in &kernel.ops[op].results {
                if matches!(kernel.ty(value), Type::Tile(tile) if tile.elem == Elem::I32) {
                    reach.nodes.of(kernel, value);
                }
            }
        }
        // What is made of loaded numbers is watched in vain.
        let exact = reach.exact.iter().map(|watched| watched.node);
        let exact: BTreeSet<usize> = exact.filter(|&node| !reach.nodes.is_of_data(node)).collect();
        let size = |s: &SizeExpr| s.eval(|id| reach.consts[id.index()]);
        let leaf = |_, leaf: &Node| match node::in_any_call(leaf, &size) {
            Interval::Unknown => Interval::I32,
            range => range,
        };
        let mut known = vec![Known::default(); reach.nodes.len()];
        let mut wrapping = BTreeSet::new();
        for at in 0..known.len() {
            reach.nodes.evaluate_some(&[at], &mut known, leaf);
            if !known[at].range.is_within(Interval::I32) && !known[at].range.is_empty() {
                known[at].range = Interval::I32;
                if !exact.contains(&at) {
                    wrapping.insert(at);
                }
            }
        }
        Self { nodes: reach.nodes, wrapping }
    }

    /// Whether there are calls in which a sum, difference, product or negative value leaves 32 bits.
    /// `narrow`: of those that [`super::Width::Narrow`] is found of, in which sums of positions, sizes
    /// and scalars stay within.
    pub fn wraps(&self, value: ValueId, narrow: bool) -> bool {
        self.nodes.known(value).is_none_or(|node| self.wrapping.contains(&node) && !(narrow && self.nodes.is_sum(node)))
    }
}
