//! Elementwise statements with rarely taken branches between them, such as `p = exp2(..)`, the mask
//! of a cut tile, and the conversion of `p`. A branch parts what ptxas schedules: all exponentials
//! end before the first conversion begins. So such a run of statements is written twice: with its
//! branches, and, for all other steps, in one piece without them. This is done where all warps wait
//! for each other in a step, as they exchange what they stage; elsewhere it costs
//! (docs/backward.md, "Rates").

use super::writer::{BODY, Writer, parenthesized};
use crate::error::Error;
use crate::plan::{Stmt, StmtOp};
use flashtile_templates::{Otherwise, When};

impl Writer<'_> {
    /// How many statements a run has that begins here: elementwise ones, the first and the last of
    /// them no branch, and a branch between. `None` if there is none.
    pub(super) fn run_with_branches(&self, stmts: &[Stmt]) -> Option<usize> {
        let exchange = self.plan().tiles.iter().any(|tile| tile.exchange.is_some());
        if !exchange || !stmts.first().is_some_and(is_elementwise) {
            return None;
        }
        let end = stmts.iter().position(|stmt| !is_elementwise(stmt) && !is_rare(stmt)).unwrap_or(stmts.len());
        let end = stmts[..end].iter().rposition(is_elementwise)? + 1;
        stmts[..end].iter().any(is_rare).then_some(end)
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
        let straight: Vec<Stmt> = stmts.iter().filter(|stmt| !is_rare(stmt)).cloned().collect();
        let without = self.statements(&straight);
        self.depth -= 1;
        let mut text = self.nested(&When { condition, rare: true, body: BODY.into() }, with?)?;
        text.push_str(&self.nested(&Otherwise { body: BODY.into() }, without?)?);
        Ok(text)
    }
}

fn is_elementwise(stmt: &Stmt) -> bool {
    matches!(stmt.op, StmtOp::Map { .. } | StmtOp::Pack { .. })
}

/// Whether it is a branch that few steps take, with nothing but elementwise statements.
fn is_rare(stmt: &Stmt) -> bool {
    let StmtOp::When { guard, body, otherwise } = &stmt.op else { return false };
    guard.is_rare() && otherwise.is_empty() && body.iter().all(is_elementwise)
}
