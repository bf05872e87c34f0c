//! Loops over single positions, such as the merge of a split loop's parts: the loads of several
//! positions are in flight together.
//!
//! A body that loads waits for that, a latency of memory for every position. Unrolling alone does
//! not change that: `ptxas` keeps the loads of a position behind what is computed of the position
//! before, since that takes fewer registers. So the loads of several positions are written first,
//! each into a variable of its own, and then what is computed of each.

use std::collections::HashSet;

use flashtile_templates::LoopTogether;

use super::writer::{BODY, Writer};
use crate::error::Error;
use crate::plan::{Effects, Expr, LoopId, Plan, Stmt, StmtOp, VarId, any, each, effects, peak};

/// Positions whose loads are in flight together, at most.
const MOST: u32 = 8;
/// Registers for addresses and the like.
const ADDRESSES: u32 = 32;

/// How a loop loads ahead.
pub(super) struct Ahead {
    /// Which statements of the body are loads that are made ahead, or constants that these name.
    statements: Vec<usize>,
    /// What they load.
    variables: Vec<VarId>,
    /// Positions at once.
    count: u32,
    /// Whether the last positions may be fewer.
    ragged: bool,
}

impl Writer<'_> {
    /// How the loop loads ahead; `None` if it does not: its body has no load that needs nothing of
    /// the position before, or stores, or registers are scarce.
    pub(super) fn loads_ahead(&self, id: LoopId, from: u32, body: &[Stmt]) -> Option<Ahead> {
        let plan = self.plan();
        let l = &plan.loops[id];
        if plan.is_specialized() || any(body, &|op| matches!(op, StmtOp::Loop { .. })) {
            return None;
        }
        let (statements, variables) = independent_loads(plan, body)?;
        let registers: u32 = variables.iter().map(|&v| plan.variables[v].registers()).sum();
        let have = self.e.arch.registers_of_thread(plan.threads(), plan.min_blocks);
        let free = have.saturating_sub(peak(plan) + ADDRESSES);
        let most = (free / registers.max(1)).min(MOST);
        let (count, ragged) = match (&l.lo, &l.hi) {
            (Expr::Int(lo), Expr::Int(hi)) => at_once(u32::try_from(hi - lo - i64::from(from)).ok()?, most),
            _ => (most, true),
        };
        (count > 1).then_some(Ahead { statements, variables, count, ragged })
    }

    /// A loop over single positions that loads nothing ahead: how many positions the compiler is to
    /// unroll, as many as registers allow to be in flight. Of a loop with another one in it the
    /// compiler would write each copy of that for itself.
    pub(super) fn positions_at_once(&self, body: &[Stmt]) -> u32 {
        const REGISTERS: u32 = 144;
        if any(body, &|op| matches!(op, StmtOp::Loop { .. })) {
            return 1;
        }
        let loaded = |s: &Stmt| match &s.op {
            StmtOp::Load { to, .. } => self.plan().variables[*to].registers(),
            StmtOp::LoadState { to, .. } => to.iter().map(|&v| self.plan().variables[v].registers()).sum(),
            _ => 0,
        };
        (REGISTERS / body.iter().map(loaded).sum::<u32>().max(1)).clamp(1, MOST)
    }

    /// The loop, loading ahead.
    pub(super) fn loop_ahead(
        &mut self,
        id: LoopId,
        (from, to): (String, String),
        body: &[Stmt],
        how: &Ahead,
    ) -> Result<String, Error> {
        let coordinate = self.plan().loops[id].coordinate.clone();
        let variables = how.variables.iter().map(|&v| self.name(v)).collect();
        let loads: Vec<Stmt> = how.statements.iter().map(|&at| body[at].clone()).collect();
        // Constants are written in both: the rest names them too.
        let is_of_rest = |at: &usize| !how.statements.contains(at) || !matches!(body[*at].op, StmtOp::Load { .. });
        let of_rest: Vec<usize> = (0..body.len()).filter(is_of_rest).collect();
        self.depth += 1;
        let loads = self.inner(&loads);
        // Waits are known by their places in the plan: the rest is no copy.
        let rest = of_rest.chunk_by(|a, b| a + 1 == *b).map(|run| self.inner(&body[run[0]..=run[run.len() - 1]]));
        let rest = rest.collect::<Result<String, Error>>();
        self.depth -= 1;
        let (count, ragged) = (how.count, how.ragged);
        let context = LoopTogether { coordinate, from, to, count, ragged, variables, loads: BODY.into(), body: BODY.into() };
        self.nested_twice(&context, [loads?, rest?])
    }
}

/// The loads of a loop's body that may be made for several positions before the rest is made for
/// the first, with the constants that they name, and what they load.
fn independent_loads(plan: &Plan, body: &[Stmt]) -> Option<(Vec<usize>, Vec<VarId>)> {
    let all: Vec<Effects> = body.iter().map(|stmt| effects(plan, stmt)).collect();
    // What the rest writes is of the position before until the rest has been made.
    let mut of_rest: HashSet<&String> = all.iter().flat_map(|found| &found.writes).collect();
    let mut touched: HashSet<&String> = HashSet::new();
    let (mut statements, mut variables) = (Vec::new(), Vec::new());
    for (at, (stmt, found)) in body.iter().zip(&all).enumerate() {
        let once = |name: &String| all.iter().filter(|other| other.writes.contains(name)).count() == 1;
        let is_free = found.reads.iter().all(|name| !of_rest.contains(name));
        let is_first = found.writes.iter().all(|name| once(name) && !touched.contains(name));
        match stmt.op {
            StmtOp::Load { .. } | StmtOp::Let { .. } if is_free && is_first => {
                of_rest.retain(|name| !found.writes.contains(*name));
                statements.push(at);
                if let StmtOp::Load { to, .. } = stmt.op {
                    variables.push(to);
                }
            }
            _ => touched.extend(found.reads.iter().chain(&found.writes)),
        }
    }
    let last = statements.iter().rposition(|&at| matches!(body[at].op, StmtOp::Load { .. }))?;
    statements.truncate(last + 1);
    variables.iter().all(|&v| !is_used_elsewhere(plan, body, v)).then_some((statements, variables))
}

/// Whether a variable is used outside of a loop's body.
fn is_used_elsewhere(plan: &Plan, body: &[Stmt], v: VarId) -> bool {
    let uses = |stmts: &[Stmt]| {
        let mut count = 0;
        each(stmts, &mut |op| {
            let mut named = op.variables().contains(&v);
            op.expressions().into_iter().for_each(|e| {
                e.visit(&mut |e| named |= e.own_name() == Some(plan.variables[v].name.as_str()));
            });
            count += usize::from(named);
        });
        count
    };
    plan.roles.iter().map(|role| uses(&role.body)).sum::<usize>() != uses(body)
}

/// How many of `trips` positions are made at once, at most `most`, and whether the last are fewer.
fn at_once(trips: u32, most: u32) -> (u32, bool) {
    if trips <= most {
        return (trips, false);
    }
    let even = (most / 2 + 1..=most).rev().find(|&count| trips.is_multiple_of(count));
    even.map_or((most, true), |count| (count, false))
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn positions_are_divided_evenly_where_that_keeps_most_loads_in_flight() {
        assert_eq!([4, 8, 16, 12, 128].map(|trips| at_once(trips, 8)), [4, 8, 8, 6, 8].map(|count| (count, false)));
        assert_eq!([13, 22].map(|trips| at_once(trips, 8)), [(8, true); 2]);
        assert_eq!([at_once(6, 1), at_once(6, 0), at_once(0, 8)], [(1, false), (0, true), (0, false)]);
    }
}
