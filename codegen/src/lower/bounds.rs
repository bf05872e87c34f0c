//! Makes padding harmless: values outside of the extents are overwritten where an analysis
//! ([`super::padding`]) asks for it.

use flashtile_dsl::ir::{AxisId, Dim, Fill, ProgramDim, ReduceOp, ValueId};

use super::context::{Home, Lowering};
use super::padding::overwritten;
use crate::error::Error;
use crate::plan::{Builtin, Expr, Guard, LetType, LoopId, Operator, Stmt, StmtOp, VarId};
use crate::schedule::Edges;

impl Lowering<'_> {
    /// What a reduction of `x` reads: the value in `from`, or a copy if its padding holds what
    /// another reduction wants.
    pub(super) fn reduced(&mut self, x: ValueId, from: VarId, operation: ReduceOp) -> VarId {
        let held = self.classes.guards.get(&overwritten(self.kernel, x)).copied();
        if held.is_none_or(|held| held == Fill::neutral(operation)) {
            return from;
        }
        let dims = self.kernel.tile(x).dims.clone();
        let Some(bounds) = self.within_last(&dims) else { return from };
        let name = self.unique(&format!("{}_padded", self.plan.variables[from].name));
        let to = self.new_variable(name, &dims, false);
        let fill = Expr::Float(Fill::neutral(operation).value());
        let value = Expr::Select(Box::new(bounds), Box::new(self.element(from)), Box::new(fill));
        self.push(StmtOp::Map { to, value });
        to
    }

    /// Overwrites the padding of `value` if something needs that.
    pub(super) fn guard_padding(&mut self, value: ValueId) -> Result<(), Error> {
        self.guard_rows(value)?;
        let Some(&fill) = self.classes.guards.get(&value) else { return Ok(()) };
        if let Some(Home::Inline(_)) = self.homes.get(&value) {
            self.variable(value)?;
        }
        let Some(&Home::Variable(to)) = self.homes.get(&value) else {
            return Err(self.unsupported(value, "a loaded tile that needs its padding overwritten"));
        };
        let dims = self.kernel.tile(value).dims.clone();
        let fill = Expr::Float(fill.value());
        let bounds = self.in_bounds(&dims).into_iter().chain(self.within_range(&dims));
        let Some(bounds) = bounds.reduce(|a, b| Expr::infix(Operator::And, a, b)) else { return Ok(()) };
        let value = Expr::Select(Box::new(bounds), Box::new(self.element(to)), Box::new(fill));
        self.push_on_cut_tiles(&dims, vec![StmtOp::Map { to, value }])
    }

    /// Overwrites what a value holds beyond the rows that exist, if a product sums over rows.
    fn guard_rows(&mut self, value: ValueId) -> Result<(), Error> {
        if !self.classes.row_guards.contains(&value) {
            return Ok(());
        }
        let Some(&Dim::Axis(axis)) = self.kernel.tile(value).dims.first() else { return Ok(()) };
        let to = self.variable(value)?;
        let extent = self.size(&self.kernel.axes[axis].extent);
        let exists = Expr::infix(Operator::Lt, self.position(axis), extent.clone());
        let value = Expr::Select(Box::new(exists), Box::new(self.element(to)), Box::new(Expr::Float(0.0)));
        let coordinate = self.program_coordinate(axis);
        let next = Expr::infix(Operator::Add, Expr::name(coordinate), Expr::Int(1));
        let end = Expr::infix(Operator::Mul, next, Expr::Int(i64::from(self.block_size(axis))));
        let guard = Guard::Holds(Expr::infix(Operator::Gt, end, extent));
        let body = vec![Stmt::new(StmtOp::Map { to, value }, self.span)];
        self.push(StmtOp::When { guard, body, otherwise: Vec::new() });
        Ok(())
    }

    /// The name of the coordinate of an axis that programs have tiles of.
    fn program_coordinate(&self, axis: AxisId) -> String {
        let program = self.kernel.blocks[self.kernel.body].ops[0];
        let of = self.kernel.grid().iter().position(|dim| *dim == ProgramDim::Tiles(axis)).expect("rows are tiles of the grid");
        self.coordinate(self.kernel.ops[program].results[of]).to_owned()
    }

    /// `position < extent` for every loop axis among `dims`; `None` if there is none.
    pub(super) fn in_bounds(&self, dims: &[Dim]) -> Option<Expr> {
        let tests = dims.iter().filter_map(|d| self.is_loop_axis(d)).map(|axis| {
            let extent = self.size(&self.kernel.axes[axis].extent);
            Expr::infix(Operator::Lt, self.position(axis), extent)
        });
        tests.reduce(|a, b| Expr::infix(Operator::And, a, b))
    }

    /// Whether a column exists, where the columns are a range that is padded.
    fn within_range(&mut self, dims: &[Dim]) -> Option<Expr> {
        let [_, columns @ Dim::Range(len)] = dims else { return None };
        let (exact, padded) = (self.constant(len), self.padded(columns));
        if exact == padded {
            return None;
        }
        let name = self.unique("column");
        let value = self.in_group(Expr::Builtin(Builtin::FirstColumn), padded);
        self.push(StmtOp::Let { name: name.clone(), ty: LetType::Int, value });
        Some(Expr::infix(Operator::Lt, Expr::ColumnPosition(name), Expr::Int(exact.into())))
    }

    /// The same where columns are a loop's too.
    fn within_last(&mut self, dims: &[Dim]) -> Option<Expr> {
        match dims.last() {
            Some(dim) if self.is_loop_axis(dim).is_some() => self.in_bounds(dims),
            _ => self.within_range(dims),
        }
    }

    /// The position along an axis of an element of the fragment being computed.
    pub(super) fn position(&self, axis: AxisId) -> Expr {
        let first = self.classes.first_position[&axis].clone();
        if self.classes.is_row(&Dim::Axis(axis)) { Expr::RowPosition(first) } else { Expr::ColumnPosition(first) }
    }

    /// Pushes statements that matter only on tiles that a mask or a bound cuts.
    pub(super) fn push_on_cut_tiles(&mut self, dims: &[Dim], ops: Vec<StmtOp>) -> Result<(), Error> {
        let mut loops: Vec<LoopId> = dims.iter().filter_map(|d| self.is_loop_axis(d)).map(|a| self.loops_by_axis[&a]).collect();
        loops.sort_unstable();
        match self.schedule.edges {
            Edges::Split if !loops.is_empty() => {
                let guard = Guard::Cut(loops);
                let body = self.collect(|this| {
                    ops.into_iter().for_each(|op| this.push(op));
                    Ok(())
                })?;
                self.push(StmtOp::When { guard, body, otherwise: Vec::new() });
            }
            _ => ops.into_iter().for_each(|op| self.push(op)),
        }
        Ok(())
    }
}
