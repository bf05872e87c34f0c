//! Register pressure of a plan: how many registers its variables need at the widest moment.
//!
//! A variable is live from its first write to its last read; one that is read in a loop it was written before lives to the
//! loop's end. An operand read for the last time where another variable is written gives its registers to it. The compiler
//! decides in the end, and also needs registers for addresses; see [`crate::Resources`].

use flashtile_templates::expr::Expr;

use super::{Guard, OperandA, Plan, Stmt, StmtOp, VarId};

/// Registers of all variables live at the widest moment.
pub fn peak(plan: &Plan) -> u32 {
    let mut live = Liveness { plan, at: 0, ranges: vec![None; plan.variables.len()] };
    for role in &plan.roles {
        live.block(&role.body);
    }
    let end = live.at;
    (0..=end)
        .map(|at| {
            let live = live.ranges.iter().zip(&plan.variables);
            live.filter(|(range, _)| range.is_some_and(|(from, to)| from <= at && at < to)).map(|(_, v)| v.registers()).sum()
        })
        .max()
        .unwrap_or(0)
}

struct Liveness<'a> {
    plan: &'a Plan,
    at: usize,
    /// First write and last read.
    ranges: Vec<Option<(usize, usize)>>,
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

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.at += 1;
            match &stmt.op {
                StmtOp::Map { to, value } | StmtOp::Pack { to, value } => {
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
                    if let Guard::Vote { condition, .. } = guard {
                        self.reads(condition);
                    }
                    self.block(body);
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
