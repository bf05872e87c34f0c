//! Loops. Tiles that a loop loads for its products are streamed through rings in shared memory, and copied ahead.
//!
//! With two or more slots (`stages`), a step waits for the tiles of its iteration, passes a barrier, and issues the copies
//! of iteration `j + slots - 1` into the slots that iteration `j - 1` has left:
//!
//! ```text
//! prologue: copy 0 .. slots-1, a group each
//! step j:   wait j; barrier; copy j + slots - 1, commit; compute
//! ```
//!
//! With one slot, streams are acquired one after the other, each as soon as the one before has been used for the last
//! time; the barrier of an acquisition also says that the slot of the stream before is free, so its next copy is issued
//! there. With two streams (K and V of attention) that is the order of FlashAttention-2:
//!
//! ```text
//! prologue: copy K 0
//! step j:   wait K j; barrier; copy V j; QK; wait V j; barrier; copy K j+1; softmax; PV
//! ```

use std::sync::Arc;

use flashtile_dsl::analysis::index::{IndexExpr, Search, SearchEnd, Symbol};
use flashtile_dsl::analysis::mask::{self, LoopRuns, MaskOptions};
use flashtile_dsl::analysis::streaming::Streaming;
use flashtile_dsl::ir::{At, AxisId, AxisKind, BlockId, Kernel, Op, OpId, Part, ReduceOp, SizeExpr, Type, ValueDef, ValueId};

use super::context::{Home, Lowering, Made};
use super::groups::closed;
use super::pipeline::Loop;
use super::specialize::settled;
use super::{elementwise, running_max, uses};
use crate::error::Error;
use crate::plan::{
    Cast, Event, Expr, Function, Guard, Iteration, LetType, LoopGap, LoopId, LoopInfo, LoopList, Operator, Slot, Stmt, StmtOp,
    TileId, VarId,
};
use crate::rewrite::edit;
use crate::schedule::{OperandA as OperandAKnob, RunningMax, Walk};

/// The tiles that a loop walks, as [`LoopInfo`] has them.
pub(super) struct Tiles {
    pub lo: Expr,
    pub full_lo: Expr,
    pub full_hi: Expr,
    pub hi: Expr,
    pub gap: Option<LoopGap>,
    pub list: Option<LoopList>,
}

impl Tiles {
    /// Single positions: nothing asks whether these are full.
    fn single(lo: Expr, hi: Expr, gap: Option<LoopGap>) -> Self {
        Self { full_lo: lo.clone(), full_hi: lo.clone(), lo, hi, gap, list: None }
    }

    /// The last place that nothing cuts; the last one of all where bounds do not tell, as those of a
    /// list and of tiles with a gap. Nothing depends on it but the order of a walk.
    fn last_whole(&self) -> Expr {
        let last = |end: Expr| Expr::infix(Operator::Sub, end, Expr::Int(1));
        if self.gap.is_some() || self.list.is_some() {
            return last(self.hi.clone());
        }
        // A part of the tiles may end before, or begin behind, those that nothing cuts.
        let end = Expr::call(Function::Least, [self.full_hi.clone(), self.hi.clone()]);
        Expr::call(Function::Most, [last(end), self.lo.clone()])
    }
}

/// A tile that a loop streams.
#[derive(Clone, Debug)]
struct Stream {
    load: OpId,
    tile: TileId,
    /// Index in the body of the first and of the last product that reads it.
    first_use: usize,
    last_use: usize,
}

/// Streams that are acquired together.
#[derive(Clone, Debug)]
struct Group {
    streams: Vec<Stream>,
    first_use: usize,
    last_use: usize,
}

/// Why the loops of a kernel cannot visit their tiles in another order than the text says; `None`
/// if they can.
pub fn why_not_reordered(kernel: &Kernel) -> Option<String> {
    let over_tiles = |op: &OpId| match kernel.ops[*op].op {
        Op::For { axis, .. } => kernel.axes[axis].kind != AxisKind::Each,
        _ => false,
    };
    let loops: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).filter(over_tiles).collect();
    if loops.is_empty() {
        return Some("no loop walks tiles".into());
    }
    loops.into_iter().find_map(|op| Streaming::of(kernel, op).why_not_regrouped(kernel)).map(|why| why.to_string())
}

impl Lowering<'_> {
    pub(super) fn lower_for(
        &mut self,
        id: OpId,
        axis: AxisId,
        part: Option<Part>,
        body: BlockId,
        init: &[ValueId],
    ) -> Result<(), Error> {
        let (span, exchanged) = (self.span, self.exchange);
        let params = self.kernel.blocks[body].params.clone();
        let name = self.coordinate_name(params[0]);
        let single = self.kernel.axes[axis].kind == AxisKind::Each;
        // Single positions are walked as the text says: the parts of a split loop are merged in their order.
        let walk = if single { Walk::Ascending } else { self.schedule.walk };
        let info = LoopInfo { single, ..self.bounds(id, part, walk, &name) };
        // What bounds of loops in this one load is known in it alone.
        let loaded = self.loaded.clone();
        self.plan.loops.push(info);
        let loop_id = self.plan.loops.len() - 1;
        self.stage_operands(id, body);
        self.loops_by_axis.insert(axis, loop_id);

        let carried = self.enter_carried(&params, init)?;
        if self.is_specialized() {
            match single {
                true => self.positions(loop_id, body, &name, &carried)?,
                false => self.pipelined(&Loop { op: id, id: loop_id, axis, body, coordinate: params[0], carried: &carried })?,
            }
            self.leave_loop(id, axis, &carried);
            self.loaded = loaded;
            return Ok(());
        }
        let groups = self.streams(loop_id, body, params[0])?;
        let slots = if groups.is_empty() { 0 } else { self.schedule.stages };
        self.plan.loops[loop_id].slots = slots;
        for stream in groups.iter().flat_map(|g| &g.streams) {
            self.homes.insert(self.kernel.ops[stream.load].results[0], Home::Tile(stream.tile));
            self.slots_of.insert(self.kernel.ops[stream.load].results[0], Slot::Of(Iteration::Ahead(loop_id, 0)));
        }
        self.prologue(loop_id, &groups, params[0]);
        // They are made before the loop, not in it.
        self.loops_by_axis.remove(&axis);
        self.make_operands(id)?;
        self.loops_by_axis.insert(axis, loop_id);
        self.fragments_before_loop(body, &groups);
        let before: Vec<TileId> = (0..self.plan.tiles.len()).filter(|&tile| self.is_pending(tile)).collect();
        let in_flight: Vec<TileId> = self.pending.iter().map(|pending| pending.tile).collect();

        let statements = self.collect(|this| {
            this.span = span;
            if single {
                this.enter_position(loop_id, params[0], &name);
            } else {
                this.enter_iteration(loop_id, params[0], axis);
            }
            this.lower_body(id, loop_id, body, &groups, params[0])?;
            this.leave_iteration(body, &carried)?;
            if single {
                this.leave_position(body);
            }
            Ok(())
        })?;
        self.span = span;
        self.push(StmtOp::Loop { id: loop_id, from: 0, unroll: 1, body: closed(statements, span) });
        self.leave_loop(id, axis, &carried);
        self.loaded = loaded;
        // The loop may have made no trip, or many.
        self.exchange = self.exchange.or(exchanged);
        self.await_again(before, &in_flight, slots);
        Ok(())
    }

    /// Waits behind a loop for what was copied before it: tiles that were not visible to all warps, of
    /// which some were in flight. What is waited for in the loop is not if the loop makes no trip.
    fn await_again(&mut self, before: Vec<TileId>, in_flight: &[TileId], slots: u32) {
        // It may have been waited for behind a loop in this one, and not be visible to all warps yet.
        let is_waited_for = |this: &Self, tile| in_flight.contains(&tile) && !this.pending.iter().any(|p| p.tile == tile);
        let only_in_loop: Vec<TileId> =
            before.into_iter().filter(|&tile| !self.is_pending(tile) || is_waited_for(self, tile)).collect();
        self.push_wait(only_in_loop.iter().map(|&tile| Event::Copied(tile, Slot::Only)).collect());
        // The enclosing loop fills the rings again, and its next iteration reads what this one stored.
        if !self.loops_by_axis.is_empty() && (slots > 0 || self.exchange.stored) {
            self.push(StmtOp::Barrier);
        } else {
            self.landed.extend(only_in_loop);
        }
    }

    /// A loop over single positions in specialised roles. Rings go on from one position to the
    /// next.
    fn positions(&mut self, id: LoopId, body: BlockId, name: &str, carried: &[VarId]) -> Result<(), Error> {
        let span = self.span;
        let coordinate = self.kernel.blocks[body].params[0];
        let statements = self.collect(|this| {
            this.enter_position(id, coordinate, name);
            for op in this.kernel.blocks[body].ops.clone() {
                this.span = this.kernel.ops[op].span;
                this.op(op)?;
            }
            this.leave_iteration(body, carried)
        })?;
        self.span = span;
        self.push(StmtOp::Loop { id, from: 0, unroll: 1, body: closed(settled(statements), span) });
        Ok(())
    }

    /// Sees to it that the next position may be copied over what this one has read.
    fn leave_position(&mut self, body: BlockId) {
        let copied = self.kernel.blocks[body].ops.iter().any(|op| self.classes.shared_loads.contains(op));
        let reads_none = |stmt: &&Stmt| matches!(stmt.op, StmtOp::Let { .. } | StmtOp::Map { .. });
        let last = self.out.iter().rev().find(|stmt| !reads_none(stmt));
        if copied && !last.is_some_and(|stmt| stmt.op == StmtOp::Barrier) {
            self.push(StmtOp::Barrier);
        }
    }

    /// Defines what an iteration over single positions is at: its position, where a gap that is left
    /// out makes another number of that than the coordinate.
    fn enter_position(&mut self, id: LoopId, coordinate: ValueId, name: &str) {
        let info = &self.plan.loops[id];
        let position = if info.is_direct() {
            name.to_owned()
        } else {
            let value = info.visited(Expr::name(name));
            let position = self.unique(&format!("{name}_at"));
            self.push(StmtOp::Let { name: position.clone(), ty: LetType::Int, value });
            position
        };
        self.homes.insert(coordinate, Home::Inline(Expr::name(position)));
    }

    /// Defines what an iteration is at: its tile, where that is not the coordinate, and positions.
    pub(super) fn enter_iteration(&mut self, id: LoopId, coordinate: ValueId, axis: AxisId) {
        let info = &self.plan.loops[id];
        let name = info.coordinate.clone();
        let value = match info.list.as_ref().zip(info.entry()) {
            Some((list, value)) => {
                let (entry, tile) = (list.entry.clone(), list.in_progress());
                self.push(StmtOp::Let { name: entry, ty: LetType::Int, value });
                tile
            }
            None if info.is_direct() => return self.enter_tile(coordinate, axis, name),
            None => info.visited(Expr::name(name.clone())),
        };
        // A body may be lowered more than once; every time in a scope of its own.
        let tile = match self.gap_tiles.get(&id) {
            Some(tile) => tile.clone(),
            None => self.unique(&format!("{name}_tile")),
        };
        self.gap_tiles.insert(id, tile.clone());
        self.push(StmtOp::Let { name: tile.clone(), ty: LetType::Int, value });
        self.enter_tile(coordinate, axis, tile);
    }

    /// Makes the carried variables the results of the loop.
    fn leave_loop(&mut self, id: OpId, axis: AxisId, carried: &[VarId]) {
        self.loops_by_axis.remove(&axis);
        for (index, &result) in self.kernel.ops[id].results.iter().enumerate() {
            let v = carried[index];
            if self.classes.completed.contains(&result) {
                self.push(StmtOp::QuadSum(v));
                self.merge_groups(v, ReduceOp::Sum);
            }
            self.homes.insert(result, Home::Variable(v));
        }
    }

    /// A name for a loop coordinate. It occurs in addresses inside product statements, whose templates have names of their own.
    fn coordinate_name(&mut self, coordinate: ValueId) -> String {
        let wanted = self.kernel.values[coordinate].name.clone().unwrap_or_else(|| "tile".into());
        self.unique(&wanted)
    }

    /// Loop bounds as constants named after the coordinate.
    fn bounds(&mut self, id: OpId, part: Option<Part>, walk: Walk, name: &str) -> LoopInfo {
        let tiles = self.tiles_walked(id, part, name);
        let named = |this: &mut Self, suffix: &str, place: Expr| match place {
            Expr::Int(_) => place,
            place => this.named_int(name, suffix, place),
        };
        let first = match walk {
            Walk::Ascending => tiles.lo.clone(),
            Walk::Descending => named(self, "last", Expr::infix(Operator::Sub, tiles.hi.clone(), Expr::Int(1))),
            Walk::LastFirst => named(self, "start", tiles.last_whole()),
        };
        let Tiles { lo, full_lo, full_hi, hi, gap, list } = tiles;
        LoopInfo { coordinate: name.to_owned(), lo, full_lo, full_hi, hi, gap, list, walk, first, slots: 0, single: false }
    }

    /// An integer as a constant whose name is that of a coordinate, with a suffix.
    fn named_int(&mut self, name: &str, suffix: &str, value: Expr) -> Expr {
        let name = self.unique(&format!("{name}_{suffix}"));
        self.push_int(&name, value);
        Expr::name(name)
    }

    fn tiles_walked(&mut self, id: OpId, part: Option<Part>, name: &str) -> Tiles {
        if let Some(listed) = self.tiles_listed(id, part, name) {
            return listed;
        }
        // The analysis reads the kernel as written: rewrites keep loops, coordinates and indices, and hide nothing from it.
        let kernel = &self.instance.kernel;
        let runs = mask::loop_runs(
            kernel,
            id,
            &|axis| i64::from(self.block_size(axis)),
            &|size| self.instance.binding.size(kernel, size),
            MaskOptions { early_stop: self.schedule.early_stop, ..MaskOptions::default() },
        );
        // Each end is clamped to those before it, which have names by then.
        self.bounds.clear();
        // What is loaded may be any integer: nothing computed of it may wrap.
        // Nor may a product: the block size of a mask may be far beyond the last key.
        let wide = self.instance.facts.wide || runs.exprs().any(|e| e.is_loaded() || e.multiplies());
        self.load_bounds(&runs);
        // Indices that only conditions of masks named, which the bounds imply, are not in the body.
        runs.exprs().flat_map(IndexExpr::values).for_each(|v| self.index_ahead(v));
        let is_single = matches!(kernel.ops[id].op, Op::For { axis, .. } if kernel.axes[axis].kind == AxisKind::Each);
        let LoopRuns { lo, full_lo, full_hi, hi, gap } = runs;
        let bound = |this: &mut Self, suffix: &str, end: &IndexExpr| {
            let value = this.index_expr(end);
            if matches!(value, Expr::Int(_)) {
                return value;
            }
            // Bounds are tiles of the loop, whatever they are computed from.
            let value = if wide { value.wide().cast(Cast::Int) } else { value };
            let bound = this.named_int(name, suffix, value);
            this.bounds.push((end.clone(), bound.clone()));
            bound
        };
        // Both ends have names: of their difference as one expression, a maximum of negated minima,
        // ptxas 13.0 for sm_90a lost a sign (docs/performance.md, "Compilers").
        let gap = gap.map(|gap| {
            let (at, end) = (bound(self, "gap", &gap.lo), bound(self, "gap_end", &gap.hi));
            let tiles = self.named_int(name, "gap_tiles", Expr::infix(Operator::Sub, end, at.clone()));
            LoopGap { at, tiles }
        });
        // What is left out is not counted by the coordinate.
        let hi = |this: &mut Self, suffix: &str| match &gap {
            None => bound(this, suffix, &hi),
            Some(gap) => {
                let last = bound(this, &format!("last_{suffix}"), &hi);
                this.named_int(name, suffix, Expr::infix(Operator::Sub, last, gap.tiles.clone()))
            }
        };
        let Some(part) = part else {
            let lo = bound(self, "begin", &lo);
            let hi = hi(self, "end");
            if is_single {
                return Tiles::single(lo, hi, gap);
            }
            let full_lo = bound(self, "full_begin", &full_lo);
            let full_hi = bound(self, "full_end", &full_hi);
            return Tiles { lo, full_lo, full_hi, hi, gap, list: None };
        };
        let all_lo = bound(self, "all_begin", &lo);
        let all_hi = hi(self, "all_end");
        if is_single {
            let (lo, hi) = self.own_share(&part, name, all_lo, all_hi);
            return Tiles::single(lo, hi, gap);
        }
        let cut_first = full_lo != lo;
        let full_lo = bound(self, "full_begin", &full_lo);
        let full_hi = bound(self, "full_end", &full_hi);
        let (lo, hi) = self.own_share(&part, name, all_lo.clone(), all_hi);
        // Behind a gap the coordinate at which a part begins is not its tile.
        let full_lo = if cut_first || gap.is_some() { full_lo } else { lo.clone() };
        Tiles { lo, full_lo, full_hi, hi, gap, list: None }
    }

    /// The share of a part of the coordinates `all_lo .. all_hi`: they are divided evenly, the first
    /// parts one tile longer, so that part p ends where part p + 1 begins.
    pub(super) fn own_share(&mut self, part: &Part, name: &str, all_lo: Expr, all_hi: Expr) -> (Expr, Expr) {
        let tiles = if all_lo == Expr::Int(0) { all_hi } else { Expr::infix(Operator::Sub, all_hi, all_lo.clone()) };
        let count = || Expr::Int(part.count.into());
        let share = self.named_int(name, "share", Expr::infix(Operator::Div, tiles.clone(), count()));
        let longer = self.named_int(name, "longer", Expr::infix(Operator::Rem, tiles, count()));
        let begin = |index: Expr| {
            let sum = Expr::infix(
                Operator::Add,
                Expr::infix(Operator::Mul, index.clone(), share.clone()),
                Expr::call(Function::Least, [index, longer.clone()]),
            );
            if all_lo == Expr::Int(0) { sum } else { Expr::infix(Operator::Add, all_lo.clone(), sum) }
        };
        let index = self.index(part.index);
        let lo = self.named_int(name, "begin", begin(index.clone()));
        let hi = self.named_int(name, "end", begin(Expr::infix(Operator::Add, index, Expr::Int(1))));
        (lo, hi)
    }

    /// Loads the integers that the bounds of a loop read, and searches its tiles.
    fn load_bounds(&mut self, runs: &LoopRuns) {
        let mut loaded: Vec<Symbol> = runs.exprs().flat_map(IndexExpr::symbols).collect();
        loaded.sort_unstable();
        loaded.dedup();
        for &symbol in &loaded {
            self.symbol(symbol);
        }
        for search in runs.exprs().flat_map(IndexExpr::searches) {
            self.search(search);
        }
    }

    /// Searches the tiles of a loop before it is entered.
    fn search(&mut self, search: &Search) {
        let found = |end| IndexExpr::Found(Arc::new(Search { end, ..search.clone() }));
        if self.loaded.contains_key(&found(search.end)) {
            return;
        }
        // The analysis reads the kernel as written.
        let kernel = &self.instance.kernel;
        let (tensor, at, dim) = search.read(kernel);
        let summary = kernel.summary(tensor, dim, search.block).expect("the analysis found it");
        self.indices_ahead(at);
        let [least, most] = [summary.least, summary.most].map(|of| self.whole_row(of, at, dim));
        let extent = IndexExpr::from(kernel.tensor(tensor).shape[dim].clone());
        let tiles = self.index_expr(&extent.fold_sizes(&|size| self.instance.binding.size(kernel, size)).ceil_div(search.block));
        let end = |end: &Option<IndexExpr>, beyond: i32| match end {
            Some(end) => self.index_expr(end).wide(),
            None => Expr::Int(beyond.into()),
        };
        let (from, to) = (end(&search.from, i32::MIN), end(&search.to, i32::MAX));
        // One search finds both ends of the run.
        let (function, suffix, first, past) = match search.end {
            SearchEnd::FirstMeeting | SearchEnd::PastMeeting => {
                (Function::TilesMeeting, "meeting", SearchEnd::FirstMeeting, SearchEnd::PastMeeting)
            }
            SearchEnd::FirstWithin | SearchEnd::PastWithin => {
                (Function::TilesWithin, "within", SearchEnd::FirstWithin, SearchEnd::PastWithin)
            }
        };
        let wanted = kernel.values[search.load].name.clone().unwrap_or_else(|| kernel.params[tensor].name.clone());
        // Scratch tensors of one shape are laid out alike.
        let value = Expr::call(function, [least.origin, most.origin, least.row_stride, tiles, from, to]);
        let run = self.unique(&format!("{wanted}_{suffix}"));
        self.push(StmtOp::Let { name: run.clone(), ty: LetType::Wide, value });
        let upper = Expr::infix(Operator::Shr, Expr::name(run.clone()), Expr::Int(32)).cast(Cast::Int);
        for (end, value) in [(first, upper), (past, Expr::name(run).cast(Cast::Int))] {
            self.loaded.insert(found(end), value);
        }
    }

    /// Loads an integer that bounds of a loop read, or the extreme one of a tile. It is the same in
    /// a whole program.
    fn symbol(&mut self, symbol: Symbol) {
        if self.loaded.contains_key(&IndexExpr::Loaded(symbol)) {
            return;
        }
        let load = symbol.load();
        // Rewrites put loads that no loop changes before the loop, and this one may have been made
        // there.
        if let (Symbol::Value(_), Some(Home::Inline(known))) = (symbol, self.homes.get(&load)) {
            self.loaded.insert(IndexExpr::Loaded(symbol), known.clone());
            return;
        }
        let Some((_, Op::Load { tensor, at })) = self.kernel.def(load) else { unreachable!("a symbol is loaded") };
        let (tensor, at) = (*tensor, at.clone());
        self.indices_ahead(&at);
        let from = self.global_tile(tensor, &at, None);
        let wanted = self.kernel.values[load].name.clone().unwrap_or_else(|| self.kernel.params[tensor].name.clone());
        let (suffix, value) = match symbol {
            Symbol::Value(_) => ("", Expr::call(Function::Read, [from.origin])),
            Symbol::Least(_) | Symbol::Most(_) => {
                let Some(At::Tile(c)) = at.iter().find(|at| matches!(at, At::Tile(_))) else { unreachable!("a tile of them") };
                let Type::Coord(axis) = *self.kernel.ty(*c) else { unreachable!("verified: a coordinate") };
                let block = Expr::Int(i64::from(self.block_size(axis)));
                let count = Expr::call(Function::Least, [block, from.rows_present]);
                let (suffix, function) = match symbol {
                    Symbol::Least(_) => ("_least", Function::TileLeast),
                    _ => ("_most", Function::TileMost),
                };
                (suffix, Expr::call(function, [from.origin, from.row_stride, count]))
            }
        };
        let name = self.unique(&format!("{wanted}{suffix}"));
        self.push(StmtOp::Let { name: name.clone(), ty: LetType::Int, value });
        self.loaded.insert(IndexExpr::Loaded(symbol), Expr::name(name));
    }

    /// Sees to it that the indices of a place are known, whichever loop the text computes them in.
    fn indices_ahead(&mut self, at: &[At]) {
        for at in at {
            if let At::Index(v) = at {
                self.index_ahead(*v);
            }
        }
    }

    /// Sees to it that an index is known, which the text computes in a loop that is not entered
    /// yet.
    fn index_ahead(&mut self, v: ValueId) {
        if self.homes.contains_key(&v) {
            return;
        }
        let value = match self.kernel.def(v).map(|(_, op)| op.clone()) {
            Some(Op::IndexConst(n)) => Expr::Int(n),
            Some(Op::SizeOf(s)) => self.size(&SizeExpr::size(s)),
            Some(Op::Index(op, a, b)) => {
                self.index_ahead(a);
                self.index_ahead(b);
                let positive = elementwise::is_positive(self.kernel, b);
                elementwise::index_expr(op, self.index(a), self.index(b), positive)
            }
            Some(Op::ToIndex(x)) => {
                self.symbol(Symbol::Value(x));
                self.loaded[&IndexExpr::Loaded(Symbol::Value(x))].clone()
            }
            _ => unreachable!("the analysis follows no other index"),
        };
        self.homes.insert(v, Home::Inline(value));
    }

    fn index_expr(&self, e: &IndexExpr) -> Expr {
        if let Some((_, named)) = self.bounds.iter().find(|(known, _)| known == e) {
            return named.clone();
        }
        let two = |f: Function, a: &IndexExpr, b: &IndexExpr| Expr::call(f, [self.index_expr(a), self.index_expr(b)]);
        match e {
            IndexExpr::Const(c) => Expr::Int(*c),
            IndexExpr::Size(s) => self.size(s),
            IndexExpr::Index(v) => self.index(*v),
            IndexExpr::Tile(v) => Expr::name(self.coordinate(*v)),
            IndexExpr::Param(p) => Expr::param(self.kernel.params[*p].name.clone()),
            IndexExpr::Loaded(_) | IndexExpr::Found(_) => self.loaded[e].clone(),
            IndexExpr::Add(a, b) => match b.as_ref() {
                IndexExpr::Const(c) if *c < 0 => Expr::infix(Operator::Sub, self.index_expr(a), Expr::Int(-c)),
                _ => Expr::infix(Operator::Add, self.index_expr(a), self.index_expr(b)),
            },
            IndexExpr::Sub(a, b) => Expr::infix(Operator::Sub, self.index_expr(a), self.index_expr(b)),
            IndexExpr::Mul(a, c) => Expr::infix(Operator::Mul, self.index_expr(a), Expr::Int(*c)),
            IndexExpr::FloorDiv(a, c) => Expr::call(Function::FloorDiv, [self.index_expr(a), Expr::Int(*c)]),
            IndexExpr::CeilDiv(a, c) => {
                let raised = Expr::infix(Operator::Add, self.index_expr(a), Expr::Int(c - 1));
                Expr::call(Function::FloorDiv, [raised, Expr::Int(*c)])
            }
            IndexExpr::Product(a, b) => Expr::infix(Operator::Mul, self.index_expr(a), self.index_expr(b)),
            IndexExpr::Over(a, d) => two(Function::FloorDiv, a, d),
            IndexExpr::Min(a, b) => two(Function::Least, a, b),
            IndexExpr::Max(a, b) => two(Function::Most, a, b),
        }
    }

    /// A variable per carried value, holding its initial value.
    pub(super) fn enter_carried(&mut self, params: &[ValueId], init: &[ValueId]) -> Result<Vec<VarId>, Error> {
        let mut carried = Vec::new();
        for (&param, &start) in params[1..].iter().zip(init) {
            let mut value = self.expr(start)?;
            // Four lanes of each column group hold parts of a row's sum, and add them up after the
            // loop.
            if self.classes.partial.contains(&param) && !uses::is_zero(self.kernel, start) {
                let lanes = Expr::Int(i64::from(4 * self.schedule.column_groups));
                value = Expr::call(Function::Share, [value, lanes]);
            }
            if let Some(v) = self.passed_through(param, start) {
                self.homes.insert(param, Home::Variable(v));
                carried.push(v);
                continue;
            }
            let name = self.value_name(param);
            let tile = self.kernel.tile(param);
            let (dims, integer) = (tile.dims.clone(), !tile.elem.is_float());
            let v = self.new_variable(name, &dims, integer);
            self.push(StmtOp::Map { to: v, value });
            self.homes.insert(param, Home::Variable(v));
            carried.push(v);
        }
        Ok(carried)
    }

    /// The variable of what an enclosing loop carries, if a loop in it takes that over for `param`
    /// and hands it back: the two are never alive at once.
    fn passed_through(&self, param: ValueId, start: ValueId) -> Option<VarId> {
        let kernel = self.kernel;
        let (ValueDef::BlockParam(outer, place), ValueDef::BlockParam(inner, slot)) =
            (kernel.values[start].def, kernel.values[param].def)
        else {
            return None;
        };
        let of_inner = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { body, .. } if body == inner);
        let user = kernel.blocks[outer].ops.iter().copied().find(of_inner)?;
        let result = kernel.ops[user].results[slot as usize - 1];
        let back = edit::yielded(kernel, outer)[(place as usize).checked_sub(1)?] == result;
        let once = kernel.ops[user].op.operands().iter().filter(|v| **v == start).count() == 1;
        let alone = self.classes.users.get(&start).is_some_and(|users| *users == [user]);
        let summed = self.classes.partial.contains(&param) || self.classes.completed.contains(&result);
        match self.homes.get(&start) {
            Some(&Home::Variable(v)) if back && once && alone && !summed => Some(v),
            _ => None,
        }
    }

    /// The rings of a loop body, grouped by what is acquired together, in order of use.
    fn streams(&mut self, id: LoopId, body: BlockId, coordinate: ValueId) -> Result<Vec<Group>, Error> {
        let ops = self.kernel.blocks[body].ops.clone();
        if *self.kernel.ty(coordinate) == Type::Index {
            // What a single position loads is copied where it is loaded.
            return Ok(Vec::new());
        }
        let is_streamed = |this: &Self, op: &OpId| {
            let data = &this.kernel.ops[*op];
            let shared = matches!(data.op, Op::Load { .. }) && this.classes.shared_loads.contains(op);
            shared && data.op.operands().contains(&coordinate)
        };
        let streamed: Vec<OpId> = ops.iter().copied().filter(|op| is_streamed(self, op)).collect();
        let parts: Vec<(OpId, (OpId, u32))> = streamed.iter().filter_map(|&op| Some((op, self.part_of(op, &ops)?))).collect();
        let mut streams = Vec::new();
        for &op in streamed.iter().filter(|&&op| !parts.iter().any(|(part, _)| *part == op)) {
            let mut uses = self.products_of(self.kernel.ops[op].results[0], &ops);
            uses.extend(self.computed_uses(op, &ops));
            for (part, _) in parts.iter().filter(|(_, (base, _))| *base == op) {
                uses.extend(self.products_of(self.kernel.ops[*part].results[0], &ops));
            }
            uses.sort_unstable();
            let (Some(&first_use), Some(&last_use)) = (uses.first(), uses.last()) else {
                return Err(self.unsupported(self.kernel.ops[op].results[0], "a streamed tile that an inner loop reads"));
            };
            let tile = self.new_tile(op, self.schedule.stages)?;
            streams.push(Stream { load: op, tile, first_use, last_use });
        }
        for (part, (base, column)) in parts {
            let tile = streams.iter().find(|stream| stream.load == base).map(|stream| stream.tile);
            let (value, tile) = (self.kernel.ops[part].results[0], tile.expect("a part is of a tile that is streamed whole"));
            self.homes.insert(value, Home::Tile(tile));
            self.parts_at.insert(value, column);
            self.slots_of.insert(value, Slot::Of(Iteration::Ahead(id, 0)));
        }
        streams.sort_by_key(|s| (s.first_use, s.last_use));
        let mut groups: Vec<Group> = Vec::new();
        for stream in streams {
            let together = self.schedule.stages > 1;
            match groups.last_mut() {
                Some(group) if together || stream.first_use <= group.last_use => {
                    group.last_use = group.last_use.max(stream.last_use);
                    group.streams.push(stream);
                }
                _ => {
                    let (first_use, last_use) = (stream.first_use, stream.last_use);
                    groups.push(Group { streams: vec![stream], first_use, last_use });
                }
            }
        }
        Ok(groups)
    }

    /// Positions in `ops` of the products that read `value`, possibly transposed, in order. A loop stands for the products in it.
    pub(super) fn products_of(&self, value: ValueId, ops: &[OpId]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut work = vec![value];
        while let Some(v) = work.pop() {
            for &user in self.classes.users.get(&v).map_or(&[][..], Vec::as_slice) {
                match self.kernel.ops[user].op {
                    Op::Transpose(_) => work.push(self.kernel.ops[user].results[0]),
                    Op::Dot { .. } => found.extend(ops.iter().position(|&o| self.has_inside(o, user))),
                    _ => {}
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn prologue(&mut self, id: LoopId, groups: &[Group], coordinate: ValueId) {
        let Some(first) = groups.first() else { return };
        let slots = self.schedule.stages;
        if slots == 1 {
            // All but the last group are one iteration ahead when a step begins.
            for group in &groups[..groups.len().max(2) - 1] {
                self.copy_group(group, Iteration::First(id, 0), coordinate);
            }
        } else {
            for n in 0..slots - 1 {
                self.copy_group(first, Iteration::First(id, n), coordinate);
            }
        }
    }

    /// Copies the tiles of a group for one iteration, if it exists, and ends the group of copies.
    fn copy_group(&mut self, group: &Group, iteration: Iteration, coordinate: ValueId) {
        let (Iteration::First(id, _) | Iteration::Ahead(id, _)) = iteration else { unreachable!("copies run ahead") };
        let number = self.plan.loops[id].tile(iteration);
        let copies = self
            .collect(|this| {
                for stream in &group.streams {
                    let Op::Load { tensor, at } = &this.kernel.ops[stream.load].op else { unreachable!("a load") };
                    this.span = this.kernel.ops[stream.load].span;
                    let from = this.global_tile(*tensor, at, Some((coordinate, number.clone())));
                    this.push(StmtOp::Copy { tile: stream.tile, slot: Slot::Of(iteration), from });
                }
                Ok(())
            })
            .expect("nothing in it fails");
        match iteration {
            // The iteration in progress exists.
            Iteration::Ahead(_, 0) => self.out.extend(copies),
            _ => self.push(StmtOp::When { guard: Guard::Exists(iteration), body: copies, otherwise: Vec::new() }),
        }
        self.push_commit();
    }

    /// A operands that do not change in the loop go to registers before it, if the schedule says so.
    fn fragments_before_loop(&mut self, body: BlockId, groups: &[Group]) {
        if self.schedule.operand_a != OperandAKnob::Registers {
            return;
        }
        let mut tiles = Vec::new();
        for &op in &self.kernel.blocks[body].ops {
            let Op::Dot { a, .. } = self.kernel.ops[op].op else { continue };
            if let Some(Made { tile, slot, transposed: false }) = self.tile_of(a) {
                let streamed = slot != Slot::Only || groups.iter().flat_map(|g| &g.streams).any(|s| s.tile == tile);
                if !streamed && !self.fragments_of.contains_key(&tile) && !tiles.contains(&tile) {
                    tiles.push(tile);
                }
            }
        }
        if tiles.is_empty() {
            return;
        }
        if tiles.iter().any(|&t| self.is_pending(t)) {
            self.acquire();
        }
        for tile in tiles {
            self.load_fragments(tile);
        }
    }

    fn lower_body(&mut self, op: OpId, id: LoopId, body: BlockId, groups: &[Group], coordinate: ValueId) -> Result<(), Error> {
        let slots = self.schedule.stages;
        let lazy = match self.running_max {
            RunningMax::Exact => None,
            _ => running_max::recurrence(self.instance, self.kernel, op, body),
        };
        let taken_over = lazy.as_ref().map(|r| self.lazy_ops(r)).unwrap_or_default();
        self.assign_in_place(body);
        let ops = self.kernel.blocks[body].ops.clone();
        let acquisitions = acquisition_points(groups, slots);
        for (index, &op) in ops.iter().enumerate() {
            for (g, &at) in acquisitions.iter().enumerate() {
                if at == index {
                    self.acquire_group(id, groups, g, coordinate);
                }
            }
            self.span = self.kernel.ops[op].span;
            match &lazy {
                Some(r) if r.starts_at(op) => self.lower_lazy(r)?,
                Some(_) if taken_over.contains(&op) => {}
                _ => self.op(op)?,
            }
        }
        if slots == 1 && groups.len() == 1 {
            // No later acquisition frees the slot: a barrier of its own does.
            self.push(StmtOp::Barrier);
            self.copy_group(&groups[0], Iteration::Ahead(id, 1), coordinate);
        }
        Ok(())
    }

    /// Waits for a group, and issues the copies whose slots the barrier frees.
    fn acquire_group(&mut self, id: LoopId, groups: &[Group], g: usize, coordinate: ValueId) {
        let slots = self.schedule.stages;
        // What was copied before the loop is first needed where the first group is.
        let mut copies = self.take_pending();
        let now = Slot::Of(Iteration::Ahead(id, 0));
        copies.extend(groups[g].streams.iter().map(|stream| Event::Copied(stream.tile, now)));
        self.push_wait(copies);
        self.push(StmtOp::Barrier);
        if slots > 1 {
            self.copy_group(&groups[g], Iteration::Ahead(id, slots - 1), coordinate);
            return;
        }
        let n = groups.len();
        if n > 1 {
            // The group before this one has been read for the last time; the last group's copy belongs to this iteration.
            let before = (g + n - 1) % n;
            let iteration = Iteration::Ahead(id, u32::from(before != n - 1));
            self.copy_group(&groups[before], iteration, coordinate);
        }
    }

    /// Lets values that are yielded be computed in the variable of what they replace, where nothing reads it afterwards.
    pub(super) fn assign_in_place(&mut self, body: BlockId) {
        let params = self.kernel.blocks[body].params.clone();
        let next = edit::yielded(self.kernel, body);
        for (&param, &value) in params[1..].iter().zip(&next) {
            let Some(&Home::Variable(v)) = self.homes.get(&param) else { continue };
            let Some((def, op)) = self.kernel.def(value) else { continue };
            let in_body = self.kernel.blocks[body].ops.contains(&def);
            let computes = matches!(op, Op::Unary(..) | Op::Binary(..) | Op::Select { .. } | Op::Cast(..) | Op::Dot { .. });
            if !in_body || !computes || self.forced.contains_key(&value) {
                continue;
            }
            let at = self.classes.order[&def];
            if let Op::Dot { acc: Some(start), .. } = op {
                let start = *start;
                if start != param {
                    // The rescaled accumulator is computed in place too.
                    let Some((start_def, _)) = self.kernel.def(start) else { continue };
                    let start_at = self.classes.order[&start_def];
                    let free = self.kernel.blocks[body].ops.contains(&start_def)
                        && self.last_read(param) <= Some(start_at)
                        && self.classes.users[&start].len() == 1;
                    if !free {
                        continue;
                    }
                    self.forced.insert(start, v);
                }
            }
            let only_in_place = self.last_read(param) <= Some(at);
            if only_in_place {
                self.forced.insert(value, v);
            }
        }
    }

    /// Position of the last op that reads `value`'s variable, directly or through expressions evaluated later.
    fn last_read(&self, value: ValueId) -> Option<usize> {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        users
            .iter()
            .filter_map(|&op| {
                let inline =
                    self.kernel.ops[op].results.iter().any(|r| self.classes.inline.contains(r) && !self.forced.contains_key(r));
                if inline {
                    self.kernel.ops[op].results.iter().filter_map(|&r| self.last_read(r)).max()
                } else {
                    self.classes.order.get(&op).copied()
                }
            })
            .max()
    }

    /// Moves yielded values into the carried variables.
    pub(super) fn leave_iteration(&mut self, body: BlockId, carried: &[VarId]) -> Result<(), Error> {
        let next = edit::yielded(self.kernel, body);
        let mut moves = Vec::new();
        for (&v, &value) in carried.iter().zip(&next) {
            let expr = self.expr(value)?;
            if expr != self.element(v) {
                moves.push((v, expr));
            }
        }
        // A value read by a later move must not be overwritten by an earlier one.
        let clobbered = |expr: &Expr| {
            let mut hit = false;
            expr.visit(&mut |e| {
                if let Expr::Element(name, _) = e {
                    hit |= carried.iter().any(|&v| self.plan.variables[v].name == *name);
                }
            });
            hit
        };
        if moves.len() > 1 && moves.iter().any(|(_, e)| clobbered(e)) {
            let mut staged = Vec::new();
            for (v, expr) in moves {
                let name = self.unique(&format!("{}_next", self.plan.variables[v].name));
                let to = self.like(v, name);
                self.push(StmtOp::Map { to, value: expr });
                staged.push((v, self.element(to)));
            }
            moves = staged;
        }
        for (to, value) in moves {
            self.push(StmtOp::Map { to, value });
        }
        Ok(())
    }

    /// The slot a tile value is read from.
    pub(super) fn slot_of(&self, value: ValueId) -> Slot {
        self.slots_of.get(&value).copied().unwrap_or(Slot::Only)
    }
}

/// Where in the body each group is acquired: the first at its first use (or the start), the others as soon as the group
/// before has been used for the last time.
fn acquisition_points(groups: &[Group], slots: u32) -> Vec<usize> {
    let mut points = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let at = if g == 0 || slots > 1 { group.first_use } else { (groups[g - 1].last_use + 1).min(group.first_use) };
        points.push(at);
    }
    points
}
