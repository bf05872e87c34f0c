//! Loops: over the tiles of an axis, `for j in tiles(N)`, and over single positions,
//! `for t in 0..n`; what they carry follows from what their bodies assign.

use syn::{Block, Expr, ExprForLoop, ExprRange, Pat, RangeLimits};

use super::diagnostic::{Checked, Diagnostic};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand, SizeTree};
use super::position::bare;
use super::scope::{Meaning, Origin, Variable, VariableId};
use super::signature::quoted;
use super::statement::call_of;
use crate::ir::{AxisKind, IndexOp, Op, SizeExpr, Type, ValueId};

/// What a loop walks.
enum Walk {
    /// The tiles of the positions from 0.
    Tiles(SizeExpr),
    /// Single positions.
    Positions {
        /// The first one.
        start: SizeTree,
        /// How many there are.
        extent: SizeExpr,
    },
}

impl Lowering<'_> {
    /// `for name in walked { .. }`.
    pub(super) fn for_loop(&mut self, statement: &ExprForLoop) -> Checked<()> {
        if let Some(label) = &statement.label {
            let error = Diagnostic::new(self.positions.of(label), "loops have no labels");
            self.reporter.report(error.help("remove it; a loop has no `break` and no `continue`"));
        }
        let name = match &*statement.pat {
            Pat::Ident(ident) if ident.mutability.is_none() && ident.by_ref.is_none() && ident.subpat.is_none() => {
                Some(&ident.ident)
            }
            other => {
                let error = Diagnostic::new(self.positions.of(other), "expected a name for the place of the loop")
                    .label(format!("found {}", quoted(other)));
                self.reporter.report(error.help("write `for j in tiles(N)`"));
                None
            }
        };
        let walk = self.walk(&statement.expr);
        // A loop whose header has an error is checked once more without one, as if over some size.
        let sound = walk.as_ref().map(|_| ()).map_err(|&reported| reported);
        let walk = walk.unwrap_or(Walk::Tiles(SizeExpr::constant(1)));
        let axis_name = name.map_or_else(|| "_".to_owned(), bare);
        let (extent, kind) = match &walk {
            Walk::Tiles(extent) => (extent.clone(), AxisKind::Loop),
            Walk::Positions { extent, .. } => (extent.clone(), AxisKind::Each),
        };
        let axis = self.builder.axis(axis_name.clone(), extent, kind);

        let carried = self.carried(&statement.body);
        let init: Vec<_> = carried.iter().map(|&(_, value)| value).collect();

        let header = self.positions.range(statement.for_token.span, self.last_span(&statement.expr));
        self.builder.span = header;
        let (place, params) = self.builder.begin_for(axis, &init);
        for (&(id, _), &param) in carried.iter().zip(&params) {
            let name = self.scopes.get(id).name.clone();
            self.builder.name(param, name);
            self.scopes.set(id, Meaning::Operand(Operand::Value(param)));
        }
        self.scopes.open();
        if let Some(name) = name {
            let span = self.positions.of(name);
            let place = self.place(&walk, place, &axis_name);
            let meaning = if sound.is_ok() { Meaning::Operand(Operand::Value(place)) } else { Meaning::Unknown };
            let origin = if kind == AxisKind::Each { Origin::Position } else { Origin::Coordinate };
            self.scopes.declare(Variable { name: axis_name, meaning, origin, span });
        }
        self.block(&statement.body);
        self.scopes.close();

        let next: Vec<_> = carried
            .iter()
            .zip(&params)
            .map(|(&(id, _), &param)| match self.scopes.get(id).meaning {
                Meaning::Operand(Operand::Value(value)) => value,
                _ => param,
            })
            .collect();
        self.builder.span = header;
        let results = self.builder.end_for(axis, init, next);
        for (&(id, _), &result) in carried.iter().zip(&results) {
            let name = self.scopes.get(id).name.clone();
            self.builder.name(result, name);
            self.scopes.set(id, Meaning::Operand(Operand::Value(result)));
        }
        sound
    }

    fn last_span(&self, expr: &Expr) -> proc_macro2::Span {
        let last = quote::ToTokens::to_token_stream(expr).into_iter().last();
        last.map_or_else(proc_macro2::Span::call_site, |tree| tree.span())
    }

    /// The variables that the body of a loop assigns, with the values before the loop. A loop carries
    /// tiles: an index becomes an `i32`.
    fn carried(&mut self, body: &Block) -> Vec<(VariableId, ValueId)> {
        let mut carried = Vec::new();
        for id in self.scopes.assigned_in(body) {
            let Meaning::Operand(Operand::Value(mut value)) = self.scopes.get(id).meaning else { continue };
            if *self.builder.kernel.ty(value) == Type::Index {
                value = self.builder.emit(Op::FromIndex(value));
                self.scopes.set(id, Meaning::Operand(Operand::Value(value)));
            }
            carried.push((id, value));
        }
        carried
    }

    /// What the name of a loop means in the body.
    fn place(&mut self, walk: &Walk, place: ValueId, name: &str) -> ValueId {
        match walk {
            Walk::Positions { start, .. } if *start != SizeTree::Const(0) => {
                let start = start.emit(&mut self.builder);
                let shifted = self.builder.emit(Op::Index(IndexOp::Add, start, place));
                self.builder.name(shifted, name)
            }
            Walk::Tiles(_) | Walk::Positions { .. } => place,
        }
    }

    fn walk(&mut self, walked: &Expr) -> Checked<Walk> {
        match (call_of(walked, "tiles"), walked) {
            (Some(call), _) => self.tiles(call).map(Walk::Tiles),
            (None, Expr::Range(range)) => self.single_positions(range),
            (None, Expr::Paren(paren)) => self.walk(&paren.expr),
            (None, other) => {
                let help = "write `for j in tiles(N)`, which walks the positions 0 .. N a tile at a time, or `for t in 0..N`, \
                            which walks them one by one";
                let error = Diagnostic::new(self.positions.of(other), "a loop walks tiles or a range of positions")
                    .label(format!("expected `tiles(...)` or a range, found {}", quoted(other)));
                Err(self.reporter.report(error.help(help)))
            }
        }
    }

    /// `start..end`, of sizes.
    fn single_positions(&mut self, range: &ExprRange) -> Checked<Walk> {
        let span = self.positions.of(range);
        if let RangeLimits::Closed(token) = &range.limits {
            let error = Diagnostic::new(self.positions.of(token), "a range excludes its end").label("found `..=`");
            return Err(self.reporter.report(error.help("write `a..b`")));
        }
        let (Some(start), Some(end)) = (&range.start, &range.end) else {
            let error =
                Diagnostic::new(span, "the range of a loop has a start and an end").label(format!("found {}", quoted(range)));
            return Err(self.reporter.report(error.help("write `for t in 0..N`")));
        };
        // Both are checked even if one has an error.
        let (start, end) = (self.loop_bound(start), self.loop_bound(end));
        let ((tree, start), (_, end)) = (start?, end?);
        let extent = end.sub(&start);
        if let Some(extent) = extent.as_constant().filter(|&extent| extent < 1) {
            let error = Diagnostic::new(span, "this range is empty").label(format!("it has {extent} positions"));
            return Err(self.reporter.report(error.help("remove the loop, or widen the range")));
        }
        Ok(Walk::Positions { start: tree, extent })
    }

    /// A bound of a range of positions, as written and as a linear expression.
    fn loop_bound(&mut self, expr: &Expr) -> Checked<(SizeTree, SizeExpr)> {
        let Located { operand, span } = self.expression(expr)?;
        let tree = match &operand {
            Operand::Number(Number::Int(value)) => SizeTree::Const(*value),
            Operand::Size(tree) => tree.clone(),
            Operand::Value(_) | Operand::Number(_) | Operand::Tensor(_) => {
                let error = Diagnostic::new(span, "the bound of a loop is no expression of sizes")
                    .label(format!("found {}", self.describe(&operand)))
                    .help(
                        "walk all positions that there may be, `for t in 0..N`, and leave out those beyond a bound `n` that \
                         is a scalar or loaded: `select(t < n, x, 0.0)`",
                    );
                return Err(self.reporter.report(error));
            }
        };
        match tree.to_expr() {
            Some(size) => Ok((tree, size)),
            None => {
                let error = Diagnostic::new(span, "the bound of a loop is not linear in the sizes")
                    .label("not linear, or beyond 2^30")
                    .help(
                        "give a tensor a dimension of this length: a launch can take the heads `H` of a tensor as `(G, R)`, \
                         and the loop is `for r in 0..R`",
                    );
                Err(self.reporter.report(error))
            }
        }
    }
}
