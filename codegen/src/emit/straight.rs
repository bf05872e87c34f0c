//! Elementwise statements with rarely taken branches between them, such as `p = exp2(..)`, the mask
//! of a cut tile, and the conversion of `p`. A branch parts what ptxas schedules: all exponentials
//! end before the first conversion begins. So such a run of statements is written twice: with its
//! branches, and, for all other steps, in one piece without them. What stages the last of its values
//! in shared memory belongs to it, so that rows are stored while others are converted. This is done
//! where all warps wait for each other in a step, as they exchange what they stage; elsewhere it
//! costs (docs/backward.md, "Rates").

use super::writer::{BODY, Writer, parenthesized};
use crate::error::Error;
use crate::plan::{Stmt, StmtOp};
use flashtile_templates::{Otherwise, When};

impl Writer<'_> {
    /// How many statements a run has that begins here: elementwise ones, the first and the last of
    /// them no branch, a branch between, and what stages the last one. `None` if there is none.
    pub(super) fn run_with_branches(&self, stmts: &[Stmt]) -> Option<usize> {
        let exchange = self.plan().tiles.iter().any(|tile| tile.exchange.is_some());
        if !exchange || !stmts.first().is_some_and(|stmt| stmt.op.is_elementwise()) {
            return None;
        }
        let is_other = |stmt: &Stmt| !stmt.op.is_elementwise() && !stmt.op.is_rare_branch();
        let end = stmts.iter().position(is_other).unwrap_or(stmts.len());
        let end = stmts[..end].iter().rposition(|stmt| stmt.op.is_elementwise())? + 1;
        if !stmts[..end].iter().any(|stmt| stmt.op.is_rare_branch()) {
            return None;
        }
        let stages = stmts.get(end).is_some_and(|stmt| matches!(stmt.op, StmtOp::Stage { .. }));
        Some(end + usize::from(stages))
    }

    /// Such a run, with its branches where one of them is taken, and else without.
    pub(super) fn run(&mut self, stmts: &[Stmt]) -> Result<String, Error> {
        let mut conditions: Vec<String> = Vec::new();
        for stmt in stmts {
            let StmtOp::When { guard, .. } = &stmt.op else { continue };
            let condition = self.guard(guard);
            if !conditions.contains(&condition) {
                conditions.push(condition);
            }
        }
        let condition = match &conditions[..] {
            [condition] => condition.clone(),
            several => several.iter().map(|c| parenthesized(c)).collect::<Vec<_>>().join(" || "),
        };
        self.depth += 1;
        let line = self.line;
        let with = self.statements(stmts);
        self.line = line;
        let straight: Vec<Stmt> = stmts.iter().filter(|stmt| !stmt.op.is_rare_branch()).cloned().collect();
        let without = self.statements(&straight);
        self.depth -= 1;
        let mut text = self.nested(&When { condition, rare: true, body: BODY.into() }, with?)?;
        text.push_str(&self.nested(&Otherwise { body: BODY.into() }, without?)?);
        Ok(text)
    }
}
