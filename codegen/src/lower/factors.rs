//! Factors of a product in flight: multiplied before what they are made of changes.
//!
//! A gradient multiplies what is behind a product by several numbers of each score. Of softcap these
//! are the weight and the slope of `tanh`:
//!
//! ```text
//! t = tanh(..); s = t * cap; p = ex2(s - lse); dv += p dO; ds = dp * p * (1 - t * t)
//! ```
//!
//! So `t` waits beside `p` for `dp`, which takes a register for each score of a thread. Multiplied
//! at once, `t` gives its registers to `s`, and `s` to `p`. The product is waited for sooner, behind
//! the functions that make `t`:
//!
//! ```text
//! t = tanh(..); dp = dp * (1 - t * t); s = t * cap; p = ex2(s - lse); dv += p dO; ds = dp * p
//! ```

use super::context::Lowering;
use crate::plan::{Expr, Operator, Plan, Shape, Stmt, StmtOp, VarId, effects};

/// A product of the step, and factors that are multiplied before a statement.
struct Sooner {
    acc: VarId,
    factors: Vec<Expr>,
    before: usize,
    /// What the statement that had all factors multiplies.
    rest: Expr,
}

impl Lowering<'_> {
    /// Multiplies products by factors before what these are made of changes, where that frees
    /// registers.
    pub(super) fn multiply_factors_early(&self, step: &mut Vec<Stmt>) {
        let mut at = 0;
        while at < step.len() {
            if let Some(sooner) = self.sooner(step, at) {
                let by = Expr::Element(self.plan.variables[sooner.acc].name.clone(), Shape::Accumulator);
                let multiplied = StmtOp::Map { to: sooner.acc, value: product(by, sooner.factors) };
                if let StmtOp::Map { value, .. } = &mut step[at].op {
                    *value = sooner.rest;
                }
                step.insert(sooner.before, Stmt::new(multiplied, step[at].span));
                at += 1;
            }
            at += 1;
        }
    }

    /// What a statement multiplies that is multiplied sooner.
    fn sooner(&self, step: &[Stmt], at: usize) -> Option<Sooner> {
        let StmtOp::Map { value, .. } = &step[at].op else { return None };
        let step = Read { plan: &self.plan, step };
        let mut all = Vec::new();
        flatten(value, &mut all);
        let (place, acc) = all.iter().enumerate().find_map(|(place, e)| Some((place, step.product_read_once(e, at)?)))?;
        let by = all.remove(place);
        let (factors, rest): (Vec<Expr>, Vec<Expr>) = all.into_iter().partition(|e| step.last_use_before(e, at).is_some());
        let before = factors.iter().filter_map(|e| step.last_use_before(e, at)).max()?;
        let issued = step.step[..before].iter().any(|stmt| is_product_into(stmt, acc));
        let is_known = |e: &Expr| matrices(e).iter().all(|name| step.made(name, at).is_none_or(|made| made < before));
        let gains = issued && factors.iter().all(is_known) && rest.iter().any(|e| !is_known(e));
        gains.then(|| Sooner { acc, before, factors, rest: product(by, rest) })
    }
}

/// The statements of a step, by what they read and write.
struct Read<'a> {
    plan: &'a Plan,
    step: &'a [Stmt],
}

impl Read<'_> {
    fn reads(&self, at: usize, name: &str) -> bool {
        effects(self.plan, &self.step[at]).reads.contains(name)
    }

    /// The last statement before another one that writes a variable.
    fn made(&self, name: &str, at: usize) -> Option<usize> {
        (0..at).rev().find(|&made| effects(self.plan, &self.step[made]).writes.contains(name))
    }

    /// The accumulator of a product of the step that one statement alone reads.
    fn product_read_once(&self, e: &Expr, at: usize) -> Option<VarId> {
        let Expr::Element(name, Shape::Accumulator) = e else { return None };
        let acc = self.plan.variables.iter().position(|variable| variable.name == *name)?;
        let others = || self.step.iter().enumerate().filter(|(place, _)| *place != at);
        let issued = self.step[..at].iter().any(|stmt| is_product_into(stmt, acc));
        let read = others().any(|(place, stmt)| !is_product_into(stmt, acc) && self.reads(place, name));
        let changed = others().any(|(_, stmt)| !is_product_into(stmt, acc) && effects(self.plan, stmt).writes.contains(name));
        (issued && !read && !changed).then_some(acc)
    }

    /// Of a factor that is made in the step, and that nothing needs behind a statement: the last one
    /// before that needs what it is made of.
    fn last_use_before(&self, e: &Expr, at: usize) -> Option<usize> {
        let made: Vec<&str> = matrices(e).into_iter().filter(|name| self.made(name, at).is_some()).collect();
        let used = |places: std::ops::Range<usize>| places.rev().find(|&place| made.iter().any(|name| self.reads(place, name)));
        match used(at + 1..self.step.len()) {
            Some(_) => None,
            None => used(0..at),
        }
    }
}

fn is_product_into(stmt: &Stmt, into: VarId) -> bool {
    matches!(stmt.op, StmtOp::Dot { acc, .. } if acc == into)
}

/// The matrices whose elements an expression has.
fn matrices(e: &Expr) -> Vec<&str> {
    let mut found = Vec::new();
    e.visit(&mut |e| {
        if let Expr::Element(name, Shape::Accumulator) = e {
            found.push(name.as_str());
        }
    });
    found
}

/// The factors of a product.
fn flatten(e: &Expr, into: &mut Vec<Expr>) {
    match e {
        Expr::Infix(Operator::Mul, a, b) => {
            flatten(a, into);
            flatten(b, into);
        }
        e => into.push(e.clone()),
    }
}

fn product(first: Expr, others: Vec<Expr>) -> Expr {
    others.into_iter().fold(first, |product, e| Expr::infix(Operator::Mul, product, e))
}
