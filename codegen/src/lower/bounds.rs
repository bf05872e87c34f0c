//! Makes padding harmless: values outside of the extents are overwritten where an analysis
//! ([`super::padding`]) asks for it.

use flashtile_dsl::ir::{AxisId, Dim, Fill, ReduceOp, ValueId};

use super::context::{Home, Lowering};
use super::padding::overwritten;
use crate::error::Error;
use crate::plan::{Expr, Guard, LoopId, Operator, StmtOp, VarId};
use crate::schedule::Edges;

impl Lowering<'_> {
    /// What a reduction of `x` reads: the value in `from`, or a copy if its padding holds what
    /// another reduction wants.
    pub(super) fn reduced(&mut self, x: ValueId, from: VarId, operation: ReduceOp) -> VarId {
        let held = self.classes.guards.get(&overwritten(self.kernel, x)).copied();
        let dims = self.kernel.tile(x).dims.clone();
        let along = dims.last().and_then(|dim| self.is_loop_axis(dim));
        let (Some(held), Some(_), Some(bounds)) = (held, along, self.in_bounds(&dims)) else { return from };
        if held == Fill::neutral(operation) {
            return from;
        }
        let name = self.unique(&format!("{}_padded", self.plan.variables[from].name));
        let to = self.new_variable(name, &dims, false);
        let fill = Expr::Float(Fill::neutral(operation).value());
        let value = Expr::Select(Box::new(bounds), Box::new(self.element(from)), Box::new(fill));
        self.push(StmtOp::Map { to, value });
        to
    }

    /// Overwrites the padding of `value` if something needs that.
    pub(super) fn guard_padding(&mut self, value: ValueId) -> Result<(), Error> {
        let Some(&fill) = self.classes.guards.get(&value) else { return Ok(()) };
        if let Some(Home::Inline(_)) = self.homes.get(&value) {
            self.variable(value)?;
        }
        let Some(&Home::Variable(to)) = self.homes.get(&value) else {
            return Err(self.unsupported(value, "a loaded tile that needs its padding overwritten"));
        };
        let dims = self.kernel.tile(value).dims.clone();
        let fill = Expr::Float(fill.value());
        let Some(bounds) = self.in_bounds(&dims) else { return Ok(()) };
        let value = Expr::Select(Box::new(bounds), Box::new(self.element(to)), Box::new(fill));
        self.push_on_cut_tiles(&dims, vec![StmtOp::Map { to, value }])
    }

    /// `position < extent` for every loop axis among `dims`; `None` if there is none.
    pub(super) fn in_bounds(&self, dims: &[Dim]) -> Option<Expr> {
        let tests = dims.iter().filter_map(|d| self.is_loop_axis(d)).map(|axis| {
            let extent = self.size(&self.kernel.axes[axis].extent);
            Expr::infix(Operator::Lt, self.position(axis), extent)
        });
        tests.reduce(|a, b| Expr::infix(Operator::And, a, b))
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
