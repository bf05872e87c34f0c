//! What the lanes of a row have of its values: all of them the same, or each a part of it.
//!
//! Fragments of rows are in the four lanes that share a row, and with column groups in the warps of
//! all groups. A sum or a maximum over columns begins as a part in each lane ([`Part`]); `quad_sum`
//! and `quad_max` make the parts of a group out of it, `publish` and `merge` what all have. What is
//! linear may be computed of parts of sums, what keeps the order of parts of maxima. All else takes
//! values that are the same in all lanes: stores, columns, and branches that warps of several groups
//! take together.

use std::collections::BTreeMap;

use flashtile_dsl::ir::ReduceOp;

use super::fault::Faults;
use crate::plan::{
    Expr, Function, Guard, Operator, Plan, Prefix, Reduction, Shape, Stmt, StmtOp, Storage, TileId, VarId, Voters,
};

/// Values of parts that are taken for whole ones, and whole ones that are added up once more.
pub(super) fn faults(plan: &Plan) -> Faults {
    let mut walk = Walk { plan, has: BTreeMap::new(), published: BTreeMap::new(), faults: Faults::default() };
    for role in &plan.roles {
        walk.has.clear();
        walk.block(&role.body);
    }
    walk.faults
}

/// Whose parts make the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Those of all lanes that share a row.
    Lanes,
    /// Those of the column groups: the lanes of one have the same.
    Groups,
}

/// What lanes have of a value for each row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// 0, which is a part of any sum too.
    Zero,
    /// All have the value.
    Whole,
    /// The value is the sum of the parts.
    Sum(Part),
    /// The value is the largest of the parts.
    Max(Part),
    /// Each has something of its own, of which nothing makes the value.
    Own,
}

use Kind::{Max, Own, Sum, Whole, Zero};

impl Kind {
    fn is_whole(self) -> bool {
        matches!(self, Whole | Zero)
    }

    /// Of a value that is one or the other.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            _ if self == other => self,
            (Zero, kind @ (Whole | Sum(_))) | (kind @ (Whole | Sum(_)), Zero) => kind,
            _ => Own,
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Zero, kind) | (kind, Zero) => kind,
            (Whole, Whole) => Whole,
            (Sum(a), Sum(b)) if a == b => Sum(a),
            (Max(part), Whole) | (Whole, Max(part)) => Max(part),
            _ => Own,
        }
    }

    fn minus(self, other: Self) -> Self {
        if matches!(other, Max(_)) { Own } else { self.plus(other) }
    }

    fn times(self, other: Self) -> Self {
        match (self, other) {
            (Zero, _) | (_, Zero) => Zero,
            (Whole, Whole) => Whole,
            (Sum(part), Whole) | (Whole, Sum(part)) => Sum(part),
            _ => Own,
        }
    }

    fn over(self, divisor: Self) -> Self {
        if divisor.is_whole() { self.times(Whole) } else { Own }
    }

    fn maximum(self, other: Self) -> Self {
        match (self, other) {
            (Max(a), Max(b)) if a != b => Own,
            (Max(part), Max(_) | Whole | Zero) | (Whole | Zero, Max(part)) => Max(part),
            _ if self.is_whole() && other.is_whole() => Whole,
            _ => Own,
        }
    }
}

struct Walk<'p> {
    plan: &'p Plan,
    /// Of the fragments of rows that were written.
    has: BTreeMap<VarId, Kind>,
    /// Of the tiles that groups have written their parts to.
    published: BTreeMap<TileId, Kind>,
    faults: Faults,
}

impl Walk<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            self.statement(&stmt.op);
        }
    }

    fn statement(&mut self, op: &StmtOp) {
        op.expressions().into_iter().for_each(|e| self.shares(e));
        match op {
            StmtOp::Map { to, value } if self.is_row(*to) => {
                let kind = self.kind(value);
                self.has.insert(*to, kind);
            }
            StmtOp::Reduce { to, operation, across_quad, .. } => {
                let part = if *across_quad { Part::Groups } else { Part::Lanes };
                let kind = if *operation == Reduction::Sum { Sum(part) } else { Max(part) };
                self.has.insert(*to, self.of_groups(kind));
            }
            StmtOp::QuadSum(v) => self.over_lanes(*v, "added up", Sum),
            StmtOp::QuadMax(v) if self.of(*v).is_whole() => {}
            StmtOp::QuadMax(v) => self.over_lanes(*v, "compared", Max),
            StmtOp::Publish { tile, from } => {
                self.published.insert(*tile, self.of(*from));
            }
            StmtOp::Merge { to, tile, operation } => self.merge(*to, *tile, *operation),
            StmtOp::When { guard, body, otherwise } => self.when(guard, body, otherwise),
            StmtOp::Loop { body, .. } => loop {
                let before = self.has.clone();
                self.block(body);
                self.join(&before);
                if self.has == before {
                    break;
                }
            },
            StmtOp::Work(body) | StmtOp::Step { body, .. } => self.block(body),
            // A program is made again if it is so in some lane.
            StmtOp::MakeAgain { .. } => {}
            _ => {
                let uses = op.uses();
                uses.reads.iter().for_each(|&v| self.is_read(v));
                op.expressions().into_iter().for_each(|e| self.is_read_in(e));
                for v in uses.writes {
                    self.has.insert(v, Whole);
                }
            }
        }
    }

    fn when(&mut self, guard: &Guard, body: &[Stmt], otherwise: &[Stmt]) {
        match guard {
            // The warps of all groups meet at barriers, and take their branches together.
            Guard::Vote { condition, of: Voters::Warp, .. } if self.plan.column_groups > 1 => self.is_read_in(condition),
            Guard::Holds(condition) => self.is_read_in(condition),
            _ => {}
        }
        let before = self.has.clone();
        self.block(body);
        let then = std::mem::replace(&mut self.has, before);
        self.block(otherwise);
        self.join(&then);
    }

    /// What is so on either of two ways. What one of them has not written is not read behind them.
    fn join(&mut self, other: &BTreeMap<VarId, Kind>) {
        for (&v, &kind) in other {
            self.has.entry(v).and_modify(|own| *own = own.or(kind)).or_insert(kind);
        }
    }

    /// Parts of lanes become parts of a group.
    fn over_lanes(&mut self, v: VarId, how: &str, of: fn(Part) -> Kind) {
        let name = &self.plan.variables[v].name;
        let kind = self.of(v);
        if kind == of(Part::Lanes) {
            self.has.insert(v, self.of_groups(of(Part::Groups)));
        } else if kind != Zero {
            let why = if kind.is_whole() { "which all have the same" } else { "which have no parts of it" };
            self.faults.insert(format!("{name} is {how} over the lanes of a row, {why}"));
        }
    }

    /// Where there is one group, what its lanes have is whole.
    fn of_groups(&self, kind: Kind) -> Kind {
        match kind {
            Sum(Part::Groups) | Max(Part::Groups) if self.plan.column_groups == 1 => Whole,
            kind => kind,
        }
    }

    fn merge(&mut self, to: VarId, tile: TileId, operation: ReduceOp) {
        let wanted = if operation == ReduceOp::Sum { Sum(Part::Groups) } else { Max(Part::Groups) };
        let found = self.published.get(&tile).copied().unwrap_or(Own);
        if found != wanted && found != Zero {
            let name = &self.plan.variables[to].name;
            let why = if found.is_whole() { "which all have the same" } else { "which have published no parts of it" };
            self.faults.insert(format!("{name} is merged of the column groups, {why}"));
        }
        self.has.insert(to, Whole);
    }

    fn is_row(&self, v: VarId) -> bool {
        self.plan.variables[v].storage == Storage::Fragment(Shape::Row)
    }

    /// What lanes have of a variable. What was not written is the subject of others.
    fn of(&self, v: VarId) -> Kind {
        self.has.get(&v).copied().unwrap_or(Whole)
    }

    fn is_read(&mut self, v: VarId) {
        if self.is_row(v) && !self.of(v).is_whole() {
            let name = &self.plan.variables[v].name;
            self.faults.insert(format!("{name} is read where each lane of a row has a part of it"));
        }
    }

    fn is_read_in(&mut self, e: &Expr) {
        let mut read = Vec::new();
        e.visit(&mut |e| read.extend(self.plan.stored(e)));
        read.into_iter().for_each(|v| self.is_read(v));
    }

    /// Shares are of the lanes that a sum is taken over.
    fn shares(&mut self, e: &Expr) {
        let lanes = i64::from(4 * self.plan.column_groups);
        let mut wrong = false;
        e.visit(&mut |e| wrong |= matches!(e, Expr::Call(Function::Share, of) if of.get(1) != Some(&Expr::Int(lanes))));
        if wrong {
            self.faults.insert(format!("a value is shared by another number than the {lanes} lanes that have a row"));
        }
    }

    /// What lanes have of an expression.
    fn kind(&self, e: &Expr) -> Kind {
        match e {
            Expr::Float(0.0) => Zero,
            Expr::Element(_, Shape::Row) => self.plan.stored(e).map_or(Whole, |v| self.of(v)),
            Expr::Element(_, Shape::Column | Shape::Accumulator) | Expr::ColumnPosition(_) => Own,
            Expr::Prefix(Prefix::Neg, x) if !matches!(self.kind(x), Max(_)) => self.kind(x),
            Expr::Infix(operator, a, b) => {
                let (a, b) = (self.kind(a), self.kind(b));
                match operator {
                    Operator::Add => a.plus(b),
                    Operator::Sub => a.minus(b),
                    Operator::Mul => a.times(b),
                    Operator::Div => a.over(b),
                    _ if a.is_whole() && b.is_whole() => Whole,
                    _ => Own,
                }
            }
            Expr::Call(function, operands) => {
                let kinds: Vec<Kind> = operands.iter().map(|e| self.kind(e)).collect();
                match (function, kinds.as_slice()) {
                    (Function::Share, [Zero, _]) => Zero,
                    (Function::Share, [Whole, _]) => Sum(Part::Lanes),
                    (Function::Share, _) => Own,
                    (Function::MultiplyAdd, [a, b, c]) => a.times(*b).plus(*c),
                    (Function::RoundedProduct, [a, b]) => a.times(*b),
                    (Function::DivFull, [a, b]) => a.over(*b),
                    (Function::Max, [a, b]) => a.maximum(*b),
                    (_, kinds) if kinds.iter().all(|kind| kind.is_whole()) => Whole,
                    _ => Own,
                }
            }
            Expr::Select(condition, a, b) if self.kind(condition).is_whole() => self.kind(a).or(self.kind(b)),
            _ => {
                let mut all_whole = true;
                e.operands(&mut |e| all_whole &= self.kind(e).is_whole());
                if all_whole { Whole } else { Own }
            }
        }
    }
}
