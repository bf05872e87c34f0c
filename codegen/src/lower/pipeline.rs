//! Loops of consumers: products are asynchronous, and rings are filled by a producer.
//!
//! Without `overlap` a step issues a product, waits for it and goes on. With `overlap` the body is taken apart by its
//! dependences into
//!
//! * *lead*: products of tiles and of registers that stay, which depend on nothing that the loop carries;
//! * *middle*: everything else;
//! * *tail*: products that end in a carried accumulator, after which nothing in the body reads it.
//!
//! Then the tail of an iteration is issued together with the lead of the next, and runs while the middle of that is computed:
//!
//! ```text
//! step 0:     acquire K; lead; settle; release K; middle
//! step j > 0: acquire K j; lead j; acquire V j-1; tail j-1; loads j; settle lead; release K
//!             early middle j; settle tail; release V; late middle j
//! end:        acquire V; tail; settle; release V
//! ```
//!
//! *Loads* are those of the middle that take few registers, such as the bits of a mask or a number
//! for each key. *Late* is what conflicts with the tail in flight, such as a rescale of its
//! accumulator or the packing of its operand, and what depends on that. With
//! `running_max=optimistic` the operand is packed early, so it has two sets of registers in turn,
//! and the loop makes two steps at a time.
//!
//! With `running_max=first` the loop is there twice behind its first step: once without any test of
//! the maximum, and once as with `max_first`, for programs that are made again.
//!
//! With `overlap=late` a body is not taken apart so: see [`super::late`].
//!
//! Where a body is a tail alone, as in a matrix product, those of two steps are in flight together:
//!
//! ```text
//! step 0:     acquire A, B; tail
//! step j > 0: advance A, B; acquire A j, B j; tail j; settle tail j-1; release A j-1, B j-1
//! end:        settle; release A, B
//! ```

use flashtile_dsl::ir::{AxisId, BlockId, Kernel, Op, OpId, ValueId};

use super::context::{Home, Lowering};
use super::running_max;
use super::uses;
use crate::error::Error;
use crate::plan::{Effects, Event, Guard, Iteration, LoopId, OperandA, Slot, Stmt, StmtOp, TileId, VarId, each, effects};
use crate::schedule::{Overlap, PingPong, RunningMax};

/// A loop being lowered.
pub(super) struct Loop<'a> {
    pub op: OpId,
    pub id: LoopId,
    pub axis: AxisId,
    pub body: BlockId,
    pub coordinate: ValueId,
    pub carried: &'a [VarId],
}

/// A loop body taken apart.
#[derive(Clone, Debug)]
struct Parts {
    lead: Vec<Stmt>,
    middle: Vec<Stmt>,
    tail: Vec<Stmt>,
}

impl Lowering<'_> {
    /// Pushes the statements of a loop.
    pub(super) fn pipelined(&mut self, l: &Loop<'_>) -> Result<(), Error> {
        let span = self.span;
        self.make_operands(l.op)?;
        self.rings(l)?;
        self.rings_of_rows(l.id, l.body, l.coordinate)?;
        if self.schedule.overlap == Overlap::Off {
            let step = self.step(l, false)?;
            self.span = span;
            let [step] = self.with_held_columns(l, [step])?;
            if let Some(columns) = self.registers_that_ptxas_mixes_up(&step) {
                let what = format!(
                    "overlap=off in a loop whose products of {columns} columns take A from registers, one from what stays for all steps \
                     and one from what each step packs, for which ptxas 13.0 allots the same registers"
                );
                let advice = "set overlap=on, or give the two another width, by block_n";
                return Err(Error::unsupported(what, advice, span));
            }
            self.span = span;
            let body = self.in_turn(l, step);
            let body = self.freed(l, body);
            self.push(StmtOp::Loop { id: l.id, from: 0, unroll: 1, body });
            return Ok(());
        }
        let first = self.step(l, true)?;
        self.write_the_same_variables(l.body);
        let recurrence = running_max::recurrence(self.instance, self.kernel, l.op, l.body);
        // A lazy first step has left the reference for the next maximum: a step that moves it needs both.
        if let Some(r) = &recurrence {
            self.forced.retain(|&value, &mut to| value != r.next || self.homes.get(&r.maximum) != Some(&Home::Variable(to)));
        }
        let body = match recurrence.filter(|_| self.schedule.running_max == RunningMax::First) {
            None => self.whole_loop(l, first)?,
            Some(recurrence) => {
                let mut once = self.whole_loop(l, first.clone())?;
                self.running_max = RunningMax::MaxFirst;
                let mut again = self.whole_loop(l, first)?;
                self.running_max = RunningMax::First;
                // The first step is the same in both.
                let same = once.iter().zip(&again).take_while(|(a, b)| a == b).count();
                let mut body: Vec<Stmt> = once.drain(..same).collect();
                again.drain(..same);
                body.push(Stmt::new(StmtOp::When { guard: Guard::Again, body: again, otherwise: once }, span));
                body.extend(self.collect(|this| this.make_again_unless_right(&recurrence))?);
                body
            }
        };
        self.span = span;
        self.push(StmtOp::When { guard: Guard::Exists(Iteration::First(l.id, 0)), body, otherwise: Vec::new() });
        Ok(())
    }

    /// The statements of a loop whose products overlap, with those of its first iteration.
    fn whole_loop(&mut self, l: &Loop<'_>, first: Vec<Stmt>) -> Result<Vec<Stmt>, Error> {
        let span = self.span;
        let step = self.step(l, false)?;
        self.span = span;
        match self.schedule.overlap {
            Overlap::Late => {
                let [first, step] = self.with_held_columns(l, [first, step])?;
                self.late(l, first, step)
            }
            _ => self.overlapped(l, first, step),
        }
    }

    /// A ring for every tile that the loop streams.
    fn rings(&mut self, l: &Loop<'_>) -> Result<(), Error> {
        let ops = self.kernel.blocks[l.body].ops.clone();
        let mut most = self.schedule.stages;
        let mut later = Vec::new();
        for &op in &ops {
            let data = &self.kernel.ops[op];
            let streamed = self.classes.shared_loads.contains(&op) && data.op.operands().contains(&l.coordinate);
            if !streamed {
                continue;
            }
            let value = data.results[0];
            if let Some((base, column)) = self.part_of(op, &ops) {
                self.parts_at.insert(value, column);
                later.push((value, base));
                continue;
            }
            if self.products_of(value, &ops).is_empty() && self.computed_uses(op, &ops).is_empty() {
                return Err(self.unsupported(value, "a streamed tile that an inner loop reads"));
            }
            let slots = match self.schedule.v_stages {
                own if own > 0 && own_operand(self.kernel, l.body) == Some(value) => own,
                _ => self.schedule.stages,
            };
            let tile = self.new_ring(op, slots, Some((l.id, l.coordinate)))?;
            most = most.max(slots);
            self.homes.insert(value, Home::Tile(tile));
            self.slots_of.insert(value, Slot::Of(Iteration::Ahead(l.id, 0)));
        }
        for (value, base) in later {
            let home = self.homes[&self.kernel.ops[base].results[0]].clone();
            self.homes.insert(value, home);
            self.slots_of.insert(value, Slot::Of(Iteration::Ahead(l.id, 0)));
        }
        // The verifier tries trip counts up to a multiple of this: slots of a ring are alike, so
        // the longest ring has all cases.
        self.plan.loops[l.id].slots = most;
        Ok(())
    }

    /// The statements of one iteration, products in their places. In the first one of a walk the running
    /// maximum is exact, or leaves headroom if it is lazy later, and accumulators that are still zero are
    /// not rescaled.
    fn step(&mut self, l: &Loop<'_>, first: bool) -> Result<Vec<Stmt>, Error> {
        let recurrence = running_max::recurrence(self.instance, self.kernel, l.op, l.body);
        let moves = recurrence.clone().filter(|_| self.running_max != RunningMax::Exact);
        let begins = first && !moves.as_ref().is_some_and(|r| r.goes_on);
        let (raised, lazy) = if begins { (moves, None) } else { (None, moves) };
        let taken_over = lazy.as_ref().map(|r| self.lazy_ops(r)).unwrap_or_default();
        let mut unscaled: Vec<(ValueId, OpId)> = Vec::new();
        if let (true, Some(r)) = (first, &recurrence) {
            unscaled.extend(r.accumulator_rescales(self.kernel).filter(|&(x, _)| self.starts_at_zero(l.body, x)));
        }
        self.assign_in_place(l.body);
        self.collect(|this| {
            this.enter_iteration(l.id, l.coordinate, l.axis);
            for op in this.kernel.blocks[l.body].ops.clone() {
                this.span = this.kernel.ops[op].span;
                if let Some(&(x, _)) = unscaled.iter().find(|&&(_, o)| o == op) {
                    let home = this.homes[&x].clone();
                    this.homes.insert(this.kernel.ops[op].results[0], home);
                    continue;
                }
                match &lazy {
                    Some(r) if r.starts_at(op) => this.lower_lazy(r)?,
                    Some(_) if taken_over.contains(&op) => {}
                    _ => this.op(op)?,
                }
                if let Some(r) = raised.as_ref().filter(|r| r.starts_at(op)) {
                    let maximum = this.variable(this.kernel.ops[op].results[0])?;
                    this.raise(r, maximum)?;
                }
            }
            this.leave_iteration(l.body, l.carried)
        })
    }

    fn starts_at_zero(&self, body: BlockId, param: ValueId) -> bool {
        let params = &self.kernel.blocks[body].params;
        let slot = params[1..].iter().position(|&p| p == param).and_then(|i| uses::slot(self.kernel, body, i));
        slot.is_some_and(|(init, ..)| uses::is_zero(self.kernel, init))
    }

    /// Lets a body that is lowered again write the variables it wrote before.
    fn write_the_same_variables(&mut self, body: BlockId) {
        for &op in &self.kernel.blocks[body].ops {
            for &result in &self.kernel.ops[op].results {
                if let Some(&Home::Variable(v)) = self.homes.get(&result) {
                    self.forced.entry(result).or_insert(v);
                }
            }
        }
    }

    /// The width of two products that take A from packed registers, one from what no step writes and one from what every step does,
    /// and that are done one after the other. ptxas 13.0 gives both operands the same registers if the two are of one width, and
    /// what stayed is lost in the second step: in all 12 such kernels of the 252 whose machine code was looked at, and in no other.
    fn registers_that_ptxas_mixes_up(&self, step: &[Stmt]) -> Option<u32> {
        let all: Vec<Effects> = step.iter().map(|s| effects(&self.plan, s)).collect();
        let products = step.iter().filter_map(|stmt| match stmt.op {
            StmtOp::Dot { acc, a: OperandA::Packed(v), .. } => Some((self.stays(v, &all), 8 * self.plan.variables[acc].n_tiles)),
            _ => None,
        });
        let products: Vec<(bool, u32)> = products.collect();
        products.iter().find(|&&(stays, columns)| stays && products.contains(&(false, columns))).map(|&(_, columns)| columns)
    }

    /// Whether no statement of a step with these effects writes a variable.
    fn stays(&self, v: VarId, step: &[Effects]) -> bool {
        step.iter().all(|effects| !effects.writes.contains(&self.plan.variables[v].name))
    }

    /// A step whose products are waited for one by one.
    fn in_turn(&mut self, l: &Loop<'_>, step: Vec<Stmt>) -> Vec<Stmt> {
        let mut body = Vec::new();
        let used: Vec<Vec<TileId>> = step.iter().map(|s| self.streamed_operands(l, std::slice::from_ref(s))).collect();
        let turns = self.schedule.ping_pong == PingPong::Products;
        // What the product behind each statement adds to.
        let added_to: Vec<Option<VarId>> = (1..=step.len())
            .map(|next| match step.get(next).map(|stmt| &stmt.op) {
                Some(StmtOp::Dot { acc, zero: false, .. }) => Some(*acc),
                _ => None,
            })
            .collect();
        // Tiles that are read for the last time, and are handed back when that is done.
        let mut read: Vec<TileId> = Vec::new();
        for (index, stmt) in step.into_iter().enumerate() {
            let span = stmt.span;
            let plain = |op| Stmt::new(op, span);
            let mut goes_on = false;
            for &tile in &used[index] {
                if !used[..index].iter().flatten().any(|&t| t == tile) {
                    body.push(plain(StmtOp::Acquire { tile, slot: Slot::Of(Iteration::Ahead(l.id, 0)) }));
                }
            }
            // A loop within this one waits for its own products.
            if let StmtOp::Dot { acc, .. } = stmt.op {
                let done = products_into(std::slice::from_ref(&stmt));
                body.extend(turns.then(|| plain(StmtOp::TakeTurn)));
                body.push(stmt);
                body.extend(turns.then(|| plain(StmtOp::PassTurn)));
                // What is added to it at once waits for it by itself.
                goes_on = added_to[index] == Some(acc);
                body.extend((!goes_on).then(|| plain(StmtOp::Wait(done))));
            } else {
                body.push(stmt);
            }
            let last = |tile: &&TileId| !used[index + 1..].iter().flatten().any(|t| t == *tile);
            read.extend(used[index].iter().filter(last));
            if !goes_on {
                body.extend(read.drain(..).map(|tile| plain(StmtOp::Release(tile))));
            }
        }
        body
    }

    /// The loop with products ahead of and behind the rest.
    fn overlapped(&mut self, l: &Loop<'_>, first: Vec<Stmt>, step: Vec<Stmt>) -> Result<Vec<Stmt>, Error> {
        if first.iter().chain(&step).any(|stmt| matches!(stmt.op, StmtOp::Stage { .. })) {
            return Err(Error::unsupported(
                "overlap=on in a loop with an operand of a product that warps stage for each other",
                "set overlap=off",
                self.span,
            ));
        }
        let (first, step) = (self.parts(l, first), self.parts(l, step));
        if step.lead.is_empty() && !step.tail.is_empty() && first.tail == step.tail && only_names(&step.middle) {
            return self.lagged(l, first, step);
        }
        if step.lead.is_empty() || step.tail.is_empty() || first.tail != step.tail {
            return Err(Error::unsupported(
                "overlap=on in a loop without a product that depends on nothing carried and one that ends in a carried value",
                "set overlap=late or off",
                self.span,
            ));
        }
        if step.middle.iter().any(|s| matches!(s.op, StmtOp::Dot { .. } | StmtOp::When { guard: Guard::Exists(_), .. })) {
            return Err(Error::unsupported(
                "overlap=on in a loop with a product or a loop between the first products and the last",
                "set overlap=late, or off with a loop",
                self.span,
            ));
        }
        let (ahead, behind) = (self.streamed_operands(l, &step.lead), self.streamed_operands(l, &step.tail));
        if ahead.iter().any(|t| behind.contains(t)) {
            return Err(Error::unsupported(
                "overlap=on with a tile that is read ahead and behind",
                "set overlap=late or off",
                self.span,
            ));
        }
        let span = self.span;
        let plain = |op| Stmt::new(op, span);
        let mut out = vec![plain(StmtOp::Step { at: Iteration::First(l.id, 0), body: self.first_step(l, first, &ahead) })];
        // The second set of registers of each operand that is packed while the tail reads the first.
        let pairs: Vec<(VarId, VarId)> = match self.running_max {
            RunningMax::Optimistic => packed_operands(&step.tail).into_iter().map(|v| (v, self.second_set(v))).collect(),
            _ => Vec::new(),
        };
        let (mut even, mut odd) = (step.clone(), step);
        for &(v, second) in &pairs {
            replace_packed(&mut even.middle, v, second);
            replace_packed(&mut odd.tail, v, second);
        }
        let (tail_even, tail_odd) = (even.tail.clone(), odd.tail.clone());
        let last = self.overlapped_step(l, even.clone(), (&ahead, &behind));
        if pairs.is_empty() {
            out.push(plain(StmtOp::Loop { id: l.id, from: 1, unroll: 1, body: last }));
            out.extend(self.end(l, tail_even, &behind));
            return Ok(out);
        }
        let two = [even, odd].into_iter().enumerate().map(|(n, parts)| {
            let body = self.overlapped_step(l, parts, (&ahead, &behind));
            plain(StmtOp::Step { at: Iteration::Ahead(l.id, n as u32), body })
        });
        let two = two.collect();
        out.push(plain(StmtOp::Loop { id: l.id, from: 1, unroll: 2, body: two }));
        let mut body = vec![plain(StmtOp::Step { at: Iteration::Last(l.id), body: last })];
        body.extend(self.end(l, tail_odd, &behind));
        let otherwise = self.end(l, tail_even, &behind);
        out.push(plain(StmtOp::When { guard: Guard::OneLeft(l.id), body, otherwise }));
        Ok(out)
    }

    /// The loop of products alone: those of a step are issued while those of the step before run.
    fn lagged(&self, l: &Loop<'_>, first: Parts, step: Parts) -> Result<Vec<Stmt>, Error> {
        let tiles = self.streamed_operands(l, &step.tail);
        if tiles.iter().any(|&tile| self.plan.tiles[tile].slots < 2) {
            return Err(Error::unsupported(
                "overlap=on in a loop of products with one slot of a tile, which the products of two steps would need",
                "set stages=2 and no v_stages, or overlap=off",
                self.span,
            ));
        }
        let plain = |op| Stmt::new(op, self.span);
        let turns = self.schedule.ping_pong == PingPong::Products;
        let now = Slot::Of(Iteration::Ahead(l.id, 0));
        let products = |parts: Parts| {
            let mut body = parts.middle;
            body.extend(tiles.iter().map(|&tile| plain(StmtOp::Acquire { tile, slot: now })));
            body.extend(turns.then(|| plain(StmtOp::TakeTurn)));
            body.extend(parts.tail);
            body.extend(turns.then(|| plain(StmtOp::PassTurn)));
            body
        };
        let before = Slot::Of(Iteration::Behind(l.id, 1));
        let done = products_into(&step.tail);
        let mut body: Vec<Stmt> = tiles.iter().map(|&tile| plain(StmtOp::Advance(tile))).collect();
        body.extend(products(step));
        body.push(plain(StmtOp::Wait(tiles.iter().map(|&tile| Event::Read(tile, before)).collect())));
        body.extend(tiles.iter().map(|&tile| plain(StmtOp::ReleaseBefore(tile))));
        let mut out = vec![plain(StmtOp::Step { at: Iteration::First(l.id, 0), body: products(first) })];
        out.push(plain(StmtOp::Loop { id: l.id, from: 1, unroll: 1, body }));
        out.push(plain(StmtOp::Wait(done)));
        out.extend(tiles.iter().map(|&tile| plain(StmtOp::Release(tile))));
        Ok(out)
    }

    fn first_step(&self, l: &Loop<'_>, parts: Parts, ahead: &[TileId]) -> Vec<Stmt> {
        let plain = |op| Stmt::new(op, self.span);
        let now = Slot::Of(Iteration::Ahead(l.id, 0));
        let mut body: Vec<Stmt> = ahead.iter().map(|&tile| plain(StmtOp::Acquire { tile, slot: now })).collect();
        let lead = products_into(&parts.lead);
        body.extend(parts.lead);
        body.push(plain(StmtOp::Wait(lead)));
        body.extend(ahead.iter().map(|&tile| plain(StmtOp::Release(tile))));
        let turns = self.schedule.ping_pong == PingPong::Elementwise;
        body.extend(turns.then(|| plain(StmtOp::TakeTurn)));
        body.extend(parts.middle);
        body.extend(turns.then(|| plain(StmtOp::PassTurn)));
        body
    }

    fn overlapped_step(&self, l: &Loop<'_>, parts: Parts, (ahead, behind): (&[TileId], &[TileId])) -> Vec<Stmt> {
        let plain = |op| Stmt::new(op, self.span);
        let (now, before) = (Iteration::Ahead(l.id, 0), Iteration::Behind(l.id, 1));
        let turn = |this: &Self, section| this.schedule.ping_pong == section;
        let mut tail = parts.tail;
        retime(&mut tail, before);
        let (early, late) = self.split_around(&tail, parts.middle);
        let registers = |to: VarId| self.plan.variables[to].registers();
        let (loads, early) = self.loads_ahead(&parts.lead, early, &registers);
        let mut body: Vec<Stmt> = Vec::new();
        body.extend(ahead.iter().map(|&tile| plain(StmtOp::Acquire { tile, slot: Slot::Of(now) })));
        body.extend(turn(self, PingPong::Products).then(|| plain(StmtOp::TakeTurn)));
        let (lead, lagging) = (products_into(&parts.lead), products_into(&tail));
        body.extend(parts.lead);
        body.extend(behind.iter().map(|&tile| plain(StmtOp::Acquire { tile, slot: Slot::Of(before) })));
        body.extend(tail);
        body.extend(turn(self, PingPong::Products).then(|| plain(StmtOp::PassTurn)));
        body.extend(loads);
        body.push(plain(StmtOp::Wait(lead)));
        body.extend(ahead.iter().map(|&tile| plain(StmtOp::Release(tile))));
        body.extend(turn(self, PingPong::Elementwise).then(|| plain(StmtOp::TakeTurn)));
        body.extend(early);
        body.extend(turn(self, PingPong::Elementwise).then(|| plain(StmtOp::PassTurn)));
        body.push(plain(StmtOp::Wait(lagging)));
        body.extend(behind.iter().map(|&tile| plain(StmtOp::Release(tile))));
        body.extend(late);
        body
    }

    /// The tail of the last iteration.
    fn end(&self, l: &Loop<'_>, mut tail: Vec<Stmt>, behind: &[TileId]) -> Vec<Stmt> {
        let plain = |op| Stmt::new(op, self.span);
        retime(&mut tail, Iteration::Last(l.id));
        let slot = Slot::Of(Iteration::Last(l.id));
        let mut body: Vec<Stmt> = behind.iter().map(|&tile| plain(StmtOp::Acquire { tile, slot })).collect();
        let done = products_into(&tail);
        body.extend(tail);
        body.push(plain(StmtOp::Wait(done)));
        body.extend(behind.iter().map(|&tile| plain(StmtOp::Release(tile))));
        body
    }

    fn parts(&self, l: &Loop<'_>, step: Vec<Stmt>) -> Parts {
        let leads = self.leads(&step);
        let all: Vec<Effects> = step.iter().map(|s| effects(&self.plan, s)).collect();
        let is_tail = |index: usize| match &step[index].op {
            StmtOp::Dot { acc, zero: false, .. } => {
                l.carried.contains(acc) && all[index + 1..].iter().all(|later| !later.conflicts(&all[index]))
            }
            _ => false,
        };
        let kinds: Vec<(bool, bool)> = (0..step.len()).map(|index| (leads.contains(&index), is_tail(index))).collect();
        let mut parts = Parts { lead: Vec::new(), middle: Vec::new(), tail: Vec::new() };
        for (stmt, (lead, tail)) in step.into_iter().zip(kinds) {
            match (lead, tail) {
                (true, _) => parts.lead.push(stmt),
                (_, true) => parts.tail.push(stmt),
                _ => parts.middle.push(stmt),
            }
        }
        parts
    }

    /// The products of a step that depend on nothing it computes, by their places.
    pub(super) fn leads(&self, step: &[Stmt]) -> Vec<usize> {
        let all: Vec<Effects> = step.iter().map(|s| effects(&self.plan, s)).collect();
        // Of tiles, or of registers that nothing in the step writes; one that adds to another lead is one too.
        let mut leads: Vec<usize> = Vec::new();
        for (index, stmt) in step.iter().enumerate() {
            let StmtOp::Dot { zero, acc, a, .. } = &stmt.op else { continue };
            let constant = match a {
                OperandA::Tile(..) => true,
                OperandA::Packed(v) => self.stays(*v, &all),
            };
            let begun = |&&lead: &&usize| matches!(&step[lead].op, StmtOp::Dot { zero: true, acc: of, .. } if of == acc);
            let free = (0..index).all(|earlier| leads.contains(&earlier) || !all[earlier].conflicts(&all[index]));
            if constant && free && (*zero || leads.iter().any(|lead| begun(&lead))) {
                leads.push(index);
            }
        }
        leads
    }

    /// Splits statements into those that may run while `tail` is in flight, and those that may not or depend on such.
    fn split_around(&self, tail: &[Stmt], middle: Vec<Stmt>) -> (Vec<Stmt>, Vec<Stmt>) {
        let mut blocked = Effects::default();
        for stmt in tail {
            blocked.join(effects(&self.plan, stmt));
        }
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for stmt in middle {
            let own = effects(&self.plan, &stmt);
            if own.conflicts(&blocked) {
                blocked.join(own);
                late.push(stmt);
            } else {
                early.push(stmt);
            }
        }
        (early, late)
    }

    /// Splits statements into loads that are begun while `lead` is in flight, so that their latency
    /// is hidden, with the constants that they name, and the rest. Loads of many `registers`
    /// stay where they are: these would be taken for as long as the products run.
    pub(super) fn loads_ahead(
        &self,
        lead: &[Stmt],
        early: Vec<Stmt>,
        registers: &dyn Fn(VarId) -> u32,
    ) -> (Vec<Stmt>, Vec<Stmt>) {
        const REGISTERS: u32 = 16;
        let all: Vec<Effects> = early.iter().map(|stmt| effects(&self.plan, stmt)).collect();
        let mut blocked = Effects::default();
        lead.iter().for_each(|stmt| blocked.join(effects(&self.plan, stmt)));
        let mut moved = vec![false; early.len()];
        for (index, stmt) in early.iter().enumerate() {
            let light = match stmt.op {
                StmtOp::Load { to, .. } => registers(to) <= REGISTERS,
                StmtOp::Let { .. } => true,
                _ => false,
            };
            moved[index] = light && !all[index].conflicts(&blocked);
            if !moved[index] {
                blocked.join(all[index].clone());
            }
        }
        let mut named = Effects::default();
        for index in (0..early.len()).rev().filter(|&index| moved[index]).collect::<Vec<_>>() {
            moved[index] = matches!(early[index].op, StmtOp::Load { .. }) || !named.reads.is_disjoint(&all[index].writes);
            if moved[index] {
                named.join(all[index].clone());
            }
        }
        let mut moved = moved.into_iter();
        early.into_iter().partition(|_| moved.next().expect("one for each statement"))
    }

    /// Rings of this loop that products read, in order; those in loops within it among them.
    pub(super) fn streamed_operands(&self, l: &Loop<'_>, stmts: &[Stmt]) -> Vec<TileId> {
        let mut found = Vec::new();
        each(stmts, &mut |op| {
            let StmtOp::Dot { a, b, .. } = op else { return };
            let a = if let OperandA::Tile(tile, _) = a { Some(*tile) } else { None };
            for tile in a.into_iter().chain([*b]) {
                let streamed = self.sources.get(&tile).and_then(|s| s.streamed).is_some_and(|(id, _)| id == l.id);
                if streamed && !found.contains(&tile) {
                    found.push(tile);
                }
            }
        });
        found
    }

    fn second_set(&mut self, v: VarId) -> VarId {
        let name = self.unique(&format!("{}_odd", self.plan.variables[v].name));
        self.like(v, name)
    }
}

/// The end of products, by their accumulators.
fn products_into(stmts: &[Stmt]) -> Vec<Event> {
    let mut found = Vec::new();
    for stmt in stmts {
        if let StmtOp::Dot { acc, .. } = stmt.op
            && !found.contains(&Event::Product(acc))
        {
            found.push(Event::Product(acc));
        }
    }
    found
}

/// Whether statements only name what they compute.
fn only_names(stmts: &[Stmt]) -> bool {
    stmts.iter().all(|s| matches!(s.op, StmtOp::Let { .. }))
}

/// Packed variables that products read.
fn packed_operands(stmts: &[Stmt]) -> Vec<VarId> {
    let mut found = Vec::new();
    for stmt in stmts {
        if let StmtOp::Dot { a: OperandA::Packed(v), .. } = stmt.op
            && !found.contains(&v)
        {
            found.push(v);
        }
    }
    found
}

/// Replaces a packed variable, wherever it is written or read.
fn replace_packed(stmts: &mut [Stmt], from: VarId, with: VarId) {
    for stmt in stmts {
        match &mut stmt.op {
            StmtOp::Pack { to: v, .. } | StmtOp::Dot { a: OperandA::Packed(v), .. } if *v == from => *v = with,
            _ => {}
        }
        for body in stmt.op.bodies_mut() {
            replace_packed(body, from, with);
        }
    }
}

/// Makes products read streamed tiles of this iteration.
fn retime(stmts: &mut [Stmt], iteration: Iteration) {
    for stmt in stmts {
        if let StmtOp::Dot { a, b_slot, .. } = &mut stmt.op {
            if let OperandA::Tile(_, slot @ Slot::Of(_)) = a {
                *slot = Slot::Of(iteration);
            }
            if let Slot::Of(_) = b_slot {
                *b_slot = Slot::Of(iteration);
            }
        }
    }
}

/// The tiles whose rings `v_stages` sizes, one for each loop that has such a tile.
pub(crate) fn own_operands(kernel: &Kernel) -> Vec<ValueId> {
    let walk = kernel.walk().into_iter();
    let bodies = walk.filter_map(|(_, op)| match kernel.ops[op].op {
        Op::For { body, .. } => Some(body),
        _ => None,
    });
    bodies.filter_map(|body| own_operand(kernel, body)).collect()
}

/// The tile that one product of a loop alone reads, as its right operand, where another product
/// reads another: that of the last product, or of the last that has such a tile. It is V: of the
/// gradient of queries the last product reads the keys, as the first one does.
fn own_operand(kernel: &Kernel, body: BlockId) -> Option<ValueId> {
    let tile = |operand: ValueId| match kernel.def(operand) {
        Some((_, Op::Transpose(x))) => *x,
        _ => operand,
    };
    let products = kernel.blocks[body].ops.iter().filter_map(|&op| match kernel.ops[op].op {
        Op::Dot { a, b, .. } => Some((tile(a), tile(b))),
        _ => None,
    });
    let products: Vec<(ValueId, ValueId)> = products.collect();
    let streamed = |(op, by): (OpId, &Op)| matches!(by, Op::Load { .. }) && kernel.blocks[body].ops.contains(&op);
    let reads = |v: ValueId| products.iter().filter(|&&(a, b)| a == v || b == v).count();
    let own = |&v: &ValueId| reads(v) == 1 && products.len() > 1 && kernel.def(v).is_some_and(streamed);
    let has_others = products.iter().any(|&(_, b)| b != products[0].1);
    products.iter().rev().map(|&(_, b)| b).find(own).filter(|_| has_others)
}
