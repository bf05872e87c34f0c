//! The integer arithmetic of a kernel as a list of parts, for those who evaluate it elsewhere: the
//! C launcher of a bundle checks a call as [`Reach::check`] does, by the same intervals.

use super::{Node, Place, Reach, Watched};
use crate::ir::{ParamId, SizeExpr};

/// An index of a load or store, and the dimension that it may not leave.
#[derive(Clone, Copy, Debug)]
pub struct Indexed<'a> {
    /// The tensor.
    pub tensor: ParamId,
    /// The dimension, from 0.
    pub dimension: usize,
    /// Extent of the dimension.
    pub extent: &'a SizeExpr,
    /// What addresses it.
    pub at: IndexedAt<'a>,
}

/// What addresses a dimension.
#[derive(Clone, Copy, Debug)]
pub enum IndexedAt<'a> {
    /// A node.
    Node(usize),
    /// A range: its start and length.
    Range(&'a SizeExpr, &'a SizeExpr),
}

impl Reach {
    /// The integer values, operands first. Others name them by their place.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        (0..self.nodes.len()).map(|node| &self.nodes[node])
    }

    /// A node, as in the kernel text.
    pub fn text(&self, node: usize) -> String {
        self.nodes.text(node)
    }

    /// The nodes that a node is computed from, itself included, operands first.
    pub fn below(&self, node: usize) -> Vec<usize> {
        self.nodes.below(node)
    }

    /// Nodes that may not be 0.
    pub fn divisors(&self) -> impl Iterator<Item = usize> {
        nodes(&self.divisors)
    }

    /// Index values: nodes that stay within 64 bits.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        nodes(&self.indices)
    }

    /// Nodes that stay within 32 bits.
    pub fn exact(&self) -> impl Iterator<Item = usize> {
        nodes(&self.exact)
    }

    /// Indices of loads and stores.
    pub fn accesses(&self) -> impl Iterator<Item = Indexed<'_>> {
        self.accesses.iter().map(|access| {
            let at = match &access.place {
                Place::Index(node) => IndexedAt::Node(*node),
                Place::Range(start, len) => IndexedAt::Range(start, len),
            };
            Indexed { tensor: access.tensor, dimension: access.dimension, extent: &access.extent, at }
        })
    }

    /// The two sides of comparisons of integers.
    pub fn comparisons(&self) -> &[[usize; 2]] {
        &self.comparisons
    }

    /// Sizes and extents that are whole numbers from 0 to [`super::MAX_SIZE`], with their text.
    pub fn sizes(&self) -> impl Iterator<Item = (&SizeExpr, &str)> {
        self.sizes.iter().map(|(size, text)| (size, text.as_str()))
    }

    /// Extents of the grid, and whether there is a program for each position.
    pub fn grid(&self) -> &[(SizeExpr, bool)] {
        &self.grid
    }
}

fn nodes(watched: &[Watched]) -> impl Iterator<Item = usize> {
    watched.iter().map(|w| w.node)
}
