//! The rules, and the errors found against them.

use std::collections::BTreeSet;

use crate::ir::entity::OpId;
use crate::ir::kernel::{Kernel, Span};

/// What an error violates. The text of the folder `ir/verify` tells of each rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "the text of the folder has the list")]
pub enum Rule {
    Entity,
    Nesting,
    Definition,
    Program,
    Yield,
    Dominance,
    Axis,
    Part,
    Name,
    Carried,
    Operand,
    Rank,
    Broadcast,
    Contraction,
    Constant,
    Result,
    Address,
    Direction,
    Stored,
    Output,
    Disjoint,
    InOut,
    Tiling,
}

impl Rule {
    /// All rules, in the order of that text.
    pub const ALL: [Rule; 23] = [
        Rule::Entity,
        Rule::Nesting,
        Rule::Definition,
        Rule::Program,
        Rule::Yield,
        Rule::Dominance,
        Rule::Axis,
        Rule::Part,
        Rule::Name,
        Rule::Carried,
        Rule::Operand,
        Rule::Rank,
        Rule::Broadcast,
        Rule::Contraction,
        Rule::Constant,
        Rule::Result,
        Rule::Address,
        Rule::Direction,
        Rule::Stored,
        Rule::Output,
        Rule::Disjoint,
        Rule::InOut,
        Rule::Tiling,
    ];
}

/// A violated rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct VerifyError {
    /// The rule.
    pub rule: Rule,
    /// The op it is violated at, if it is one.
    pub op: Option<OpId>,
    /// Place in the kernel text; empty if there is none.
    pub span: Span,
    /// What is wrong, in words.
    pub message: String,
}

/// Ops with a wrong operand or address, about which nothing more is said.
pub(super) type BadOps = BTreeSet<OpId>;

/// The errors so far.
pub(super) struct Errors<'k> {
    pub kernel: &'k Kernel,
    pub list: Vec<VerifyError>,
}

impl Errors<'_> {
    pub fn at(&mut self, rule: Rule, op: OpId, message: impl Into<String>) {
        let span = self.kernel.ops.get(op).map_or_else(Span::default, |data| data.span);
        self.list.push(VerifyError { rule, op: Some(op), span, message: message.into() });
    }

    pub fn kernel(&mut self, rule: Rule, message: impl Into<String>) {
        let span = self.kernel.name_span;
        self.list.push(VerifyError { rule, op: None, span, message: message.into() });
    }
}
