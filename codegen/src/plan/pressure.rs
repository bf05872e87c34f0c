//! Register pressure of a plan: how many registers its variables need at the widest moment.
//!
//! A variable is live from its first write to its last read; one that is read in a loop it was written before lives to the
//! loop's end. An operand read for the last time where another variable is written gives its registers to it. The compiler
//! decides in the end, and also needs registers for addresses; see [`crate::Resources`].

use std::collections::HashSet;

use flashtile_templates::expr::{Expr, Shape};

use super::{Guard, OperandA, Plan, Stmt, StmtOp, Storage, VarId};

/// Registers of all variables live at the widest moment.
pub fn peak(plan: &Plan) -> u32 {
    let transient = transients(plan);
    let mut live =
        Liveness { plan, at: 0, ranges: vec![None; plan.variables.len()], ended: Vec::new(), transient, borders: Vec::new() };
    for role in &plan.roles {
        live.block(&role.body);
    }
    let (end, borders) = (live.at, std::mem::take(&mut live.borders));
    (0..=end)
        .map(|at| {
            let now = live.ranges.iter().enumerate().filter_map(|(v, range)| range.map(|range| (v, range)));
            now.chain(live.ended.iter().copied())
                .map(|(v, range)| (range, &plan.variables[v]))
                .filter(|((from, to), _)| (*from..*to).contains(&at))
                .map(|((from, to), v)| if passing(&borders, from, to) { v.registers() / 4 } else { v.registers() })
                .sum()
        })
        .max()
        .unwrap_or(0)
}

/// Fragments that no product, branch condition or store reads: they are done with where the statements after them are.
fn transients(plan: &Plan) -> HashSet<VarId> {
    fn lasting(body: &[Stmt], found: &mut HashSet<VarId>) {
        for stmt in body {
            match &stmt.op {
                StmtOp::Dot { acc, a, .. } => {
                    found.insert(*acc);
                    if let OperandA::Packed(v) = a {
                        found.insert(*v);
                    }
                }
                StmtOp::Store { variable: Some(v), .. } => {
                    found.insert(*v);
                }
                StmtOp::When { body, .. } | StmtOp::Loop { body, .. } => lasting(body, found),
                _ => {}
            }
        }
    }
    let mut found = HashSet::new();
    for role in &plan.roles {
        lasting(&role.body, &mut found);
    }
    let accumulator = |v: &VarId| plan.variables[*v].storage == Storage::Fragment(Shape::Accumulator);
    (0..plan.variables.len()).filter(|v| accumulator(v) && !found.contains(v)).collect()
}

/// Whether a fragment lives for so short a run of elementwise statements that the compiler computes and consumes it piece by
/// piece.
fn passing(borders: &[usize], from: usize, to: usize) -> bool {
    to - from <= 4 && !borders.iter().any(|&b| from < b && b <= to)
}

struct Liveness<'a> {
    plan: &'a Plan,
    at: usize,
    /// First write and last read.
    ranges: Vec<Option<(usize, usize)>>,
    /// Ranges that ended before a branch wrote the variable anew, for itself alone.
    ended: Vec<(VarId, (usize, usize))>,
    /// Accumulators that only elementwise statements and row sums read.
    transient: HashSet<VarId>,
    /// Statements that are not elementwise: products, branches, loops, barriers.
    borders: Vec<usize>,
}

impl Liveness<'_> {
    fn write(&mut self, v: VarId) {
        let at = self.at;
        let range = self.ranges[v].get_or_insert((at, at + 1));
        range.1 = range.1.max(at + 1);
    }

    fn read(&mut self, v: VarId) {
        let at = self.at;
        let range = self.ranges[v].get_or_insert((at, at));
        range.1 = range.1.max(at);
    }

    fn reads(&mut self, value: &Expr) {
        let mut names = Vec::new();
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                names.push(name.clone());
            }
        });
        for name in names {
            if let Some(v) = self.plan.variables.iter().position(|v| v.name == name) {
                self.read(v);
            }
        }
    }

    /// What a branch writes and reads for itself alone, although it was written (and done with) before, has two ranges.
    fn split(&mut self, before: Vec<Option<(usize, usize)>>, start: usize) {
        for (v, before) in before.into_iter().enumerate() {
            let (Some(before), Some(now)) = (before, self.ranges[v]) else { continue };
            if before.1 <= start && now.1 > start && self.transient.contains(&v) {
                self.ended.push((v, before));
                self.ranges[v] = Some((start + 1, now.1));
            }
        }
    }

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.at += 1;
            let elementwise = matches!(
                stmt.op,
                StmtOp::Map { .. } | StmtOp::Pack { .. } | StmtOp::Reduce { across_quad: false, .. } | StmtOp::Let { .. }
            );
            if !elementwise {
                self.borders.push(self.at);
            }
            match &stmt.op {
                StmtOp::Map { to, value } | StmtOp::Pack { to, value, .. } => {
                    self.reads(value);
                    self.write(*to);
                }
                StmtOp::Reduce { to, from, .. } => {
                    self.read(*from);
                    self.write(*to);
                }
                StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => self.read(*v),
                StmtOp::LoadFragments { to, .. } | StmtOp::Load { to, .. } => self.write(*to),
                StmtOp::Dot { acc, a, .. } => {
                    if let OperandA::Packed(v) = a {
                        // Read while the accumulator is written.
                        self.read(*v);
                        self.ranges[*v].as_mut().expect("just read").1 += 1;
                    }
                    self.write(*acc);
                }
                StmtOp::Stage { from, .. } => self.read(*from),
                StmtOp::Store { value, variable, .. } => {
                    self.reads(value);
                    if let Some(v) = variable {
                        self.read(*v);
                    }
                }
                StmtOp::When { guard, body } => {
                    let Guard::Vote { condition, .. } = guard else {
                        self.block(body);
                        continue;
                    };
                    self.reads(condition);
                    let before = self.ranges.clone();
                    let start = self.at;
                    self.block(body);
                    self.split(before, start);
                }
                StmtOp::Loop { body, .. } => {
                    let start = self.at;
                    self.block(body);
                    let end = self.at + 1;
                    for range in self.ranges.iter_mut().flatten() {
                        if range.0 <= start && range.1 > start {
                            range.1 = range.1.max(end);
                        }
                    }
                }
                StmtOp::Let { .. } | StmtOp::Copy { .. } | StmtOp::Commit | StmtOp::Wait(_) | StmtOp::Barrier => {}
            }
        }
    }
}
