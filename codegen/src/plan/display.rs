//! The printed form of a plan: `inspect --emit plan`.

use std::fmt;

use flashtile_dsl::ir::ReduceOp;
use flashtile_templates::expr::{Domain, Expr, Shape};

use super::{Guard, InputSource, Iteration, LoopId, OperandA, Plan, Slot, Stmt, StmtOp, Storage};
use crate::schedule::Walk;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {} ({} threads, {} bytes of shared memory)", self.name, self.threads(), self.shared_bytes())?;
        for t in &self.tiles {
            writeln!(
                f,
                "  tile {}: {} x {} x {} {}, pitch {}, {:?}, at {}{}{}",
                t.name,
                t.slots,
                t.rows,
                t.columns,
                t.elem.name(),
                t.pitch,
                t.layout,
                t.offset,
                if t.warp_private { ", warp-private" } else { "" },
                t.barriers.map(|at| format!(", mbarriers at {at}")).unwrap_or_default()
            )?;
        }
        for v in &self.variables {
            let kind = match v.storage {
                Storage::Fragment(shape) => format!("{shape:?}").to_lowercase(),
                Storage::Packed => "packed".into(),
                Storage::Flag => "flag".into(),
            };
            writeln!(f, "  {kind} {}: {} x {} tiles, {} registers", v.name, v.m_tiles, v.n_tiles, v.registers())?;
        }
        for role in &self.roles {
            let registers = role.registers.map(|n| format!(", {n} registers")).unwrap_or_default();
            writeln!(f, "role {} ({} warps{registers})", role.name, role.warps)?;
            self.block(f, &role.body, 1)?;
        }
        Ok(())
    }
}

impl Plan {
    fn block(&self, f: &mut fmt::Formatter<'_>, body: &[Stmt], depth: usize) -> fmt::Result {
        for stmt in body {
            self.statement(f, &stmt.op, depth)?;
        }
        Ok(())
    }

    fn statement(&self, f: &mut fmt::Formatter<'_>, op: &StmtOp, depth: usize) -> fmt::Result {
        write!(f, "{:1$}", "", depth * 2)?;
        let variable = |v: &usize| self.variables[*v].name.as_str();
        match op {
            StmtOp::Let { name, value, .. } => writeln!(f, "let {name} = {}", value.text(Domain::Uniform)),
            StmtOp::Map { to, value } => writeln!(f, "{} = {}", variable(to), self.expression(value, *to)),
            StmtOp::Pack { to, value, .. } => {
                writeln!(f, "pack {} = ({}, {})", variable(to), value.text(Domain::Pair(0)), value.text(Domain::Pair(1)))
            }
            StmtOp::Reduce { to, from, operation, across_quad } => {
                let name = if *operation == ReduceOp::Max { "rowmax" } else { "rowsum" };
                writeln!(f, "{} = {name}{} {}", variable(to), if *across_quad { "" } else { ".lane" }, variable(from))
            }
            StmtOp::QuadMax(v) => writeln!(f, "quad_max {}", variable(v)),
            StmtOp::QuadSum(v) => writeln!(f, "quad_sum {}", variable(v)),
            StmtOp::Copy { tile, slot, from } => {
                writeln!(f, "copy {}{} <- {}", self.tiles[*tile].name, self.slot(*slot), from.origin.text(Domain::Uniform))
            }
            StmtOp::Compute { to, inputs, shared } => {
                writeln!(f, "compute")?;
                let inner = (depth + 1) * 2;
                for input in inputs {
                    let origin = |what: &str, e: &Expr| format!("{what} {}", e.text(Domain::Uniform));
                    let from = match &input.from {
                        InputSource::Tile(tile, slot) => format!("{}{}", self.tiles[*tile].name, self.slot(*slot)),
                        InputSource::Matrix(from) => origin("load", &from.origin),
                        InputSource::Row(from) => origin("load.row", &from.origin),
                        InputSource::Column(from) => origin("load.column", &from.origin),
                    };
                    writeln!(f, "{:inner$}{} = {from}", "", input.name)?;
                }
                for s in shared {
                    writeln!(f, "{:inner$}{} = {}", "", s.name, s.value.text(Domain::Part))?;
                }
                for t in to {
                    let (name, slot) = (&self.tiles[t.tile].name, self.slot(t.slot));
                    writeln!(f, "{:inner$}{name}{slot} <- {}", "", t.value.text(Domain::Part))?;
                }
                Ok(())
            }
            StmtOp::Commit => writeln!(f, "commit"),
            StmtOp::Wait(pending) => writeln!(f, "wait pending={pending}"),
            StmtOp::Barrier => writeln!(f, "barrier"),
            StmtOp::LoadFragments { to, tile, slot } => {
                writeln!(f, "{} = fragments {}{}", variable(to), self.tiles[*tile].name, self.slot(*slot))
            }
            StmtOp::Dot { acc, zero, a, b, b_slot, k_major, depth, .. } => {
                let a = match a {
                    OperandA::Tile(tile, slot) => format!("{}{}", self.tiles[*tile].name, self.slot(*slot)),
                    OperandA::Packed(v) => variable(v).to_owned(),
                };
                let (name, b, t) = (variable(acc), &self.tiles[*b].name, if *k_major { ".t" } else { "" });
                writeln!(f, "{name} {} dot({a}, {b}{}{t}) depth={depth}", if *zero { "=" } else { "+=" }, self.slot(*b_slot))
            }
            StmtOp::Stage { tile, from } => writeln!(f, "stage {} <- {}", self.tiles[*tile].name, variable(from)),
            StmtOp::Load { to, from } => writeln!(f, "{} = load {}", variable(to), from.origin.text(Domain::Uniform)),
            StmtOp::Store { to, value, shape, .. } => {
                let domain = match shape {
                    Shape::Row => Domain::Row,
                    Shape::Column => Domain::Column,
                    Shape::Accumulator => Domain::Accumulator,
                    Shape::Uniform => Domain::Uniform,
                };
                let turned = if to.column_stride == Expr::Int(1) { "" } else { ".t" };
                writeln!(f, "store{turned} {} <- {}", to.origin.text(Domain::Uniform), value.text(domain))
            }
            StmtOp::When { guard, body, otherwise } => {
                match guard {
                    Guard::Exists(iteration) => writeln!(f, "when {} exists", self.iteration(*iteration))?,
                    Guard::Vote { condition, .. } => writeln!(f, "when any lane has {}", condition.text(Domain::Row))?,
                    Guard::Cut(ids) => {
                        let tiles: Vec<&str> = ids.iter().map(|&id| self.loops[id].coordinate.as_str()).collect();
                        writeln!(f, "when tile {} is cut", tiles.join(" or "))?;
                    }
                    Guard::Flag(v) => writeln!(f, "when {}", variable(v))?,
                    Guard::FirstPart => writeln!(f, "when the part is the first")?,
                    Guard::LastPart => writeln!(f, "when the part is the last")?,
                    Guard::OwnWarps => writeln!(f, "in the warps of the part")?,
                    Guard::OneLeft(id) => writeln!(f, "when one {} is left", self.loops[*id].coordinate)?,
                }
                self.block(f, body, depth + 1)?;
                if !otherwise.is_empty() {
                    writeln!(f, "{:1$}otherwise", "", depth * 2)?;
                    self.block(f, otherwise, depth + 1)?;
                }
                Ok(())
            }
            StmtOp::Step { at, body } => {
                writeln!(f, "step {}", self.iteration(*at))?;
                self.block(f, body, depth + 1)
            }
            StmtOp::Work(body) => {
                writeln!(f, "for each program of {} ({:?})", self.programs.text(Domain::Uniform), self.work)?;
                self.block(f, body, depth + 1)
            }
            StmtOp::Fill { tile, slot, map, at } => {
                let at: Vec<String> = at.iter().map(|e| e.text(Domain::Uniform)).collect();
                let name = &self.tiles[*tile].name;
                writeln!(f, "fill {name}{} <- {}[{}]", self.slot(*slot), self.maps[*map].name, at.join(", "))
            }
            StmtOp::Acquire { tile, slot } => writeln!(f, "acquire {}{}", self.tiles[*tile].name, self.slot(*slot)),
            StmtOp::Release(tile) => writeln!(f, "release {}", self.tiles[*tile].name),
            StmtOp::Advance(tile) => writeln!(f, "advance {}", self.tiles[*tile].name),
            StmtOp::ReleaseBefore(tile) => writeln!(f, "release {} of the step before", self.tiles[*tile].name),
            StmtOp::Settle(pending) => writeln!(f, "settle pending={pending}"),
            StmtOp::TakeTurn => writeln!(f, "take turn"),
            StmtOp::PassTurn => writeln!(f, "pass turn"),
            StmtOp::AwaitPart => writeln!(f, "await part"),
            StmtOp::PassPart => writeln!(f, "pass part"),
            StmtOp::SaveState(from) => {
                writeln!(f, "save state {}", from.iter().map(variable).collect::<Vec<_>>().join(", "))
            }
            StmtOp::LoadState { to, from } => {
                let from = from.as_ref().map_or_else(String::new, |rank| format!(" of {}", rank.text(Domain::Uniform)));
                writeln!(f, "{} = load state{from}", to.iter().map(variable).collect::<Vec<_>>().join(", "))
            }
            StmtOp::ClusterBarrier => writeln!(f, "cluster barrier"),
            StmtOp::Loop { id, from, unroll, body } => {
                let l = &self.loops[*id];
                let text = |e: &Expr| e.text(Domain::Uniform);
                let after = |sign| if *from > 0 { format!(" {sign} {from}") } else { String::new() };
                let (lo, hi) = (text(&l.lo), text(&l.hi));
                let walked = match l.walk {
                    Walk::Ascending => format!("in {lo}{}..{hi}", after('+')),
                    Walk::Descending => format!("descending in {lo}..{hi}{}", after('-')),
                };
                writeln!(
                    f,
                    "loop {} {walked} full {}..{}{}",
                    l.coordinate,
                    text(&l.full_lo),
                    text(&l.full_hi),
                    if *unroll > 1 { format!(", {unroll} at a time") } else { String::new() }
                )?;
                self.block(f, body, depth + 1)
            }
        }
    }

    fn expression(&self, value: &Expr, to: usize) -> String {
        value.text(self.domain(to))
    }

    /// The domain in which elements of a variable are evaluated.
    pub fn domain(&self, variable: usize) -> Domain {
        match self.variables[variable].storage {
            Storage::Fragment(Shape::Uniform) => Domain::Uniform,
            Storage::Fragment(Shape::Row) => Domain::Row,
            Storage::Fragment(Shape::Column) => Domain::Column,
            Storage::Fragment(Shape::Accumulator) => Domain::Accumulator,
            Storage::Packed => Domain::Pair(0),
            Storage::Flag => Domain::Uniform,
        }
    }

    fn slot(&self, slot: Slot) -> String {
        match slot {
            Slot::Only => String::new(),
            Slot::Of(iteration) => format!("[{}]", self.iteration(iteration)),
        }
    }

    fn iteration(&self, iteration: Iteration) -> String {
        let name = |id: LoopId| &self.loops[id].coordinate;
        match iteration {
            Iteration::First(id, n) => format!("{}#{n}", name(id)),
            Iteration::Ahead(id, 0) => name(id).clone(),
            Iteration::Ahead(id, n) => format!("{}+{n}", name(id)),
            Iteration::Behind(id, n) => format!("{}-{n}", name(id)),
            Iteration::Last(id) => format!("{}#last", name(id)),
        }
    }
}
