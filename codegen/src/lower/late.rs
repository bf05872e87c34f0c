//! Loops of consumers whose products are waited for as late as what they compute is needed.
//!
//! Products that depend on nothing that the step computes are issued first, and every other one as
//! soon as its operand is packed. A product stays in flight until a statement needs what it writes,
//! or writes what it reads: past the end of the step if that is in the next one. Of the columns of
//! a gradient, which sum up `dv` and `dk` over rows, a step is so:
//!
//! ```text
//! advance Q; acquire Q; s = k q; acquire dO; dp = v dO
//! settle dk of the step before, s; release the Q before; p; dv += p dO
//! settle dp, ds; settle dv; release dO; pack ds; dk += ds Q
//! ```
//!
//! A slot that a product of the step before still reads is kept while the next is in use. What warps
//! stage for each other has two slots, and one barrier a step.
//!
//! A product across the warps, whose result is added to sums in memory, is made a step later, when
//! all warps have long staged their rows of its operand: they exchange the slots of it, and none
//! waits for the others at a barrier. Of the columns of the fused gradient the end of a step is so:
//!
//! ```text
//! reserve ds; ds; stage ds; supply ds; barrier of the warpgroup
//! await ds of the step before; dq of it += ds.t k; dk += ds Q
//! settle dv, dq; free ds of the step before; add dq of it to memory
//! ```
//!
//! Column groups, which need the whole of an operand that each has computed a share of, exchange it
//! in the same way, so that no group waits for the other at a barrier. Its tile has one slot:
//!
//! ```text
//! settle dk of the step before, s; free ds of it; p; reserve p; stage p; supply p
//! await p; dv += p dO; settle dp; ds; reserve ds; stage ds; supply ds
//! await ds; dk += ds Q; settle dv; free p; release dO
//! ```
//!
//! A product across these groups is made behind the scores of the next step, and waits for nothing
//! where `dk` has awaited what it reads. Its tile has two slots:
//!
//! ```text
//! s = k q; dp = v dO; dq of the step before = ds.t k; settle dk of it, s; p; ..; dv += p dO
//! settle dp; ds; settle dq; reserve ds; stage ds; supply ds; await ds; dk += ds Q
//! free ds of the step before; add dq of it to memory; settle dv; free p; release dO
//! ```
//!
//! With one group and `sum_lag=0` it is the last product of its own step, and takes the registers of
//! scores that the step is done with. The operand needs one slot then, and no product is in flight
//! from one step to the next:
//!
//! ```text
//! reserve ds; ds; stage ds; supply ds; dk += ds Q, with ds from registers
//! await ds; dq += ds.t k; settle all; free ds; add dq to memory
//! ```

use std::collections::HashMap;

use flashtile_dsl::ir::{Elem, Span};

use super::context::Lowering;
use super::groups::in_slot;
use super::pipeline::Loop;
use crate::error::Error;
use crate::plan::{
    Effects, Event, Exchange, Guard, Iteration, OperandA, Shape, Slot, Stmt, StmtOp, Storage, TileId, VarId, Variable, effects,
};
use crate::schedule::{PingPong, SharedLayout};

/// A product that was issued and not waited for.
#[derive(Clone, Debug)]
struct Flight {
    acc: VarId,
    /// Whether it takes its left operand from registers that a step packs.
    packed: bool,
    effects: Effects,
    /// Rings of the loop that it reads.
    tiles: Vec<TileId>,
    /// The tile that it takes its left operand from.
    left: Option<TileId>,
    /// Tiles that column groups exchange, and it reads.
    exchanged: Vec<TileId>,
    /// Whether the step before has issued it.
    before: bool,
}

/// What stands for a vector along columns while it waits.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// Its elements, spread over the lanes of each warp.
    lanes: VarId,
    /// By way of which every lane gets its own.
    tile: TileId,
}

/// A column fragment, spread over the lanes of each warp.
fn lanes_of(column: &Variable) -> Variable {
    Variable { storage: Storage::Lanes, ..column.clone() }
}

/// Columns of a part of an operand that is turned: rows of 128 bytes.
const TURNED_COLUMNS: u32 = 64;

/// A product across the warps, which may be made a step later than what it reads.
#[derive(Clone, Debug)]
struct Across {
    acc: VarId,
    /// Its left operand, which warps exchange.
    tile: TileId,
    dot: Stmt,
    /// What adds its result to memory, with the names that this needs.
    added: Vec<Stmt>,
}

impl Across {
    /// A step of the exchange of the slot of the iteration in progress.
    fn exchange(&self, step: Exchange, l: &Loop<'_>) -> StmtOp {
        StmtOp::Exchange { step, tile: self.tile, slot: Slot::Of(Iteration::Ahead(l.id, 0)) }
    }

    fn plain(&self, op: StmtOp) -> Stmt {
        Stmt::new(op, self.dot.span)
    }

    /// Whether a statement of its step makes it, or adds its result to memory.
    fn is_of(&self, op: &StmtOp) -> bool {
        matches!(op, StmtOp::Dot { acc, .. } if *acc == self.acc) || self.adds(op)
    }

    /// Whether a statement adds its result to memory.
    fn adds(&self, op: &StmtOp) -> bool {
        match op {
            StmtOp::PutRows { from, .. } | StmtOp::Add { from, .. } => *from == self.acc,
            StmtOp::AddRows { of, .. } => *of == self.acc,
            _ => false,
        }
    }

    /// Statements for the step before the one in progress.
    fn before(&self, l: &Loop<'_>, body: Vec<Stmt>) -> Stmt {
        self.plain(StmtOp::Step { at: Iteration::Behind(l.id, 1), body })
    }

    /// Issues it.
    fn issued(&self, l: &Loop<'_>) -> Vec<Stmt> {
        vec![self.plain(self.exchange(Exchange::Await, l)), self.dot.clone()]
    }

    /// When it is done.
    fn settled(&self, l: &Loop<'_>) -> Vec<Stmt> {
        [self.plain(self.exchange(Exchange::Free, l))].into_iter().chain(self.added.iter().cloned()).collect()
    }

    /// That of the last step, behind the loop, issued so.
    fn after_the_last(&self, l: &Loop<'_>, issued: Vec<Stmt>) -> Stmt {
        let mut body = issued;
        body.push(self.plain(StmtOp::Wait(vec![Event::Product(self.acc)])));
        body.extend(self.settled(l));
        self.plain(StmtOp::Step { at: Iteration::Last(l.id), body })
    }
}

/// The statements of a step on the way.
struct Step<'a> {
    l: &'a Loop<'a>,
    out: Vec<Stmt>,
    in_flight: Vec<Flight>,
    /// Rings whose slot of this step is held.
    held: Vec<TileId>,
    /// Products of this step that are not issued yet, by the rings and exchanged tiles that they
    /// read.
    to_come: Vec<Vec<TileId>>,
}

impl Lowering<'_> {
    /// Refuses a loop whose products cannot be waited for late.
    fn waits_late(&self, step: &[Stmt]) -> Result<(), Error> {
        let span = self.span;
        let why_not = |what: &str, advice: &str| Err(Error::unsupported(what, advice, span));
        if self.schedule.ping_pong != PingPong::Off {
            return why_not("overlap=late with turns of warpgroups", "set ping_pong=off");
        }
        let holds_others = |stmt: &Stmt| matches!(stmt.op, StmtOp::Loop { .. } | StmtOp::When { guard: Guard::Exists(_), .. });
        if step.iter().any(holds_others) {
            return why_not("overlap=late in a loop with another loop in it", "set overlap=off");
        }
        // Of barriers it knows those behind what is staged.
        let count = |wanted: fn(&StmtOp) -> bool| step.iter().filter(|stmt| wanted(&stmt.op)).count();
        if count(|op| *op == StmtOp::Barrier) != count(|op| matches!(op, StmtOp::Stage { .. })) {
            return why_not("overlap=late in a loop whose warps exchange more than operands of products", "set overlap=off");
        }
        if self.leads(step).is_empty() {
            return why_not(
                "overlap=late in a loop without a product that depends on nothing it computes",
                "set overlap=on or off",
            );
        }
        Ok(())
    }

    /// The statements of a loop: those of its first step, of the others, and what settles the last.
    pub(super) fn late(&mut self, l: &Loop<'_>, first: Vec<Stmt>, step: Vec<Stmt>) -> Result<Vec<Stmt>, Error> {
        self.waits_late(&step)?;
        let span = self.span;
        let mut spread = HashMap::new();
        let [mut first, mut step] = [first, step];
        for step in [&mut first, &mut step] {
            self.multiply_factors_early(step);
        }
        stage_alike(&first, &step, span)?;
        let stages = match self.schedule.column_groups {
            1 => self.in_two_slots(l, [&mut first, &mut step]),
            _ => self.between_groups(l, [&mut first, &mut step]),
        };
        let (across, last) = self.placed_across(l, [&mut first, &mut step])?;
        let plain = move |op| Stmt::new(op, span);
        let first = self.issued_early(first, &mut spread);
        let step = self.issued_early(step, &mut spread);
        let [first, step] = match self.schedule.column_groups {
            1 => [first, step],
            _ => [first, step].map(|step| self.exchanged_between_groups(l, step)),
        };
        let waiting = |stmts, before: &[Flight], done: &[VarId]| self.waiting_late(l, stmts, before, done, across.as_ref());
        let (_, leaves) = waiting(first.clone(), &[], &[]);
        let (_, again) = waiting(step.clone(), &leaves, &[]);
        // What the other steps do not leave in flight the first does not either.
        let only_first: Vec<VarId> = leaves.iter().map(|flight| flight.acc).collect();
        let only_first: Vec<VarId> = only_first.into_iter().filter(|acc| again.iter().all(|flight| flight.acc != *acc)).collect();
        let (mut first, leaves) = waiting(first, &[], &only_first);
        let (body, again) = waiting(step, &leaves, &[]);
        let left = |flights: &[Flight]| -> Vec<(VarId, Vec<TileId>)> {
            flights.iter().map(|flight| (flight.acc, flight.tiles.clone())).collect()
        };
        if left(&leaves) != left(&again) {
            return Err(Error::unsupported(
                "overlap=late in a loop whose first step leaves other products in flight than the rest",
                "set overlap=off",
                self.span,
            ));
        }
        let lent = lent(&first, &leaves);
        first.extend((!lent.is_empty()).then(|| plain(StmtOp::Wait(lent))));
        let kept: Vec<TileId> = distinct(leaves.iter().flat_map(|flight| flight.tiles.iter().copied()));
        if kept.iter().any(|&tile| self.plan.tiles[tile].slots < 2) {
            return Err(Error::unsupported(
                "overlap=late with one slot of a tile that products of two steps read at once",
                "set stages=2 and no v_stages, or overlap=off",
                self.span,
            ));
        }
        let mut out = vec![plain(StmtOp::Step { at: Iteration::First(l.id, 0), body: first })];
        out.push(plain(StmtOp::Loop { id: l.id, from: 1, unroll: 1, body }));
        out.extend((!leaves.is_empty()).then(|| plain(StmtOp::Wait(events(&leaves)))));
        out.extend(kept.into_iter().map(|tile| plain(StmtOp::Release(tile))));
        let exchanged = distinct(leaves.iter().flat_map(|flight| flight.exchanged.iter().copied()));
        out.extend(freed(l, Some(Iteration::Last(l.id)), exchanged, span));
        out.extend(last);
        // What comes next stages to slots that other warps may still read.
        let staged_with_barriers = stages.iter().any(|&tile| self.plan.tiles[tile].exchange.is_none());
        out.extend(staged_with_barriers.then(|| plain(StmtOp::Barrier)));
        Ok(out)
    }

    /// Puts the product across the warps where the schedule wants it, and gives it, with what is left
    /// of it behind the loop.
    fn placed_across(&mut self, l: &Loop<'_>, steps: [&mut Vec<Stmt>; 2]) -> Result<(Option<Across>, Option<Stmt>), Error> {
        let [first, step] = steps;
        let (lags, by_groups) = (self.schedule.sum_lag == 1, self.plan.column_groups > 1);
        let Some(across) = self.behind(l, step).filter(|_| self.behind(l, first).is_some()) else {
            let what = "sum_lag=0 in a loop without a product across the warps that is added to memory";
            return if lags { Ok((None, None)) } else { Err(Error::unsupported(what, "set sum_lag=1", self.span)) };
        };
        let take = |steps: &mut Vec<Stmt>| std::mem::take(steps);
        let last = match (lags, by_groups) {
            // Its operand is exchanged as those of other products are.
            (false, true) => None,
            (false, false) => {
                let turned = self.turned(&across);
                *first = in_its_step(l, &turned, take(first));
                *step = in_its_step(l, &turned, take(step));
                None
            }
            (true, true) => {
                self.plan.tiles[across.tile].slots = 2;
                let is_awaited = step.iter().any(|stmt| !across.is_of(&stmt.op) && left_tile(&stmt.op) == Some(across.tile));
                let issued = if is_awaited { vec![across.dot.clone()] } else { across.issued(l) };
                *first = behind_the_scores(l, &across, take(first), Vec::new());
                *step = behind_the_scores(l, &across, take(step), issued.clone());
                Some(across.after_the_last(l, issued))
            }
            (true, false) => {
                self.plan.tiles[across.tile].exchange = Some(0);
                *first = a_step_later(l, &across, take(first), false);
                *step = a_step_later(l, &across, take(step), true);
                Some(across.after_the_last(l, across.issued(l)))
            }
        };
        if !by_groups {
            [first, step].into_iter().for_each(|step| self.reserved_before_computed(step, across.tile));
        }
        Ok((Some(across), last))
    }

    /// The product across the warps that a step may leave to the next: what it reads of the step is
    /// one staged tile, all rows of which no other product needs, and its result is added to memory.
    fn behind(&self, l: &Loop<'_>, step: &[Stmt]) -> Option<Across> {
        step.iter().find_map(|stmt| {
            let StmtOp::Dot { acc, a: OperandA::Tile(tile, _), a_turned: true, zero: true, b, .. } = stmt.op else { return None };
            let staged =
                |tile: TileId| step.iter().any(|stmt| matches!(stmt.op, StmtOp::Stage { tile: other, .. } if other == tile));
            if !staged(tile) || staged(b) || !self.streamed_operands(l, std::slice::from_ref(stmt)).is_empty() {
                return None;
            }
            let alone = |other: &Stmt| match &other.op {
                StmtOp::Dot { acc: into, a, a_turned, b, .. } => {
                    *into == acc || (*b != tile && (!matches!(a, OperandA::Tile(t, _) if *t == tile) || !a_turned))
                }
                _ => true,
            };
            let name = &self.plan.variables[acc].name;
            let users: Vec<&Stmt> = step.iter().filter(|other| effects(&self.plan, other).reads.contains(name)).collect();
            let mut across = Across { acc, tile, dot: stmt.clone(), added: Vec::new() };
            let only_added = !users.is_empty() && users.iter().all(|user| across.adds(&user.op));
            (only_added && step.iter().all(alone)).then(|| {
                across.added = step.iter().filter(|other| across.adds(&other.op)).cloned().collect();
                self.take_names_along(&mut across.added, step);
                across
            })
        })
    }

    /// The product across the warps with its operand as it is read: its rows, which are columns of
    /// what warps have made, are rows of the tile. So `stmatrix` writes it to one address of a lane
    /// and offsets from there, where it takes four otherwise. At d 64 that leaves `ptxas` the
    /// registers.
    fn turned(&mut self, across: &Across) -> Across {
        let tile = &mut self.plan.tiles[across.tile];
        (tile.exchange, tile.slots) = (Some(0), 1);
        (tile.rows, tile.columns) = (tile.columns, tile.rows);
        let part = tile.columns.min(TURNED_COLUMNS);
        (tile.pitch, tile.slabs) = (2 * part, tile.columns.div_ceil(part));
        let mut dot = across.dot.clone();
        if let StmtOp::Dot { a_turned, .. } = &mut dot.op {
            *a_turned = false;
        }
        Across { dot, ..across.clone() }
    }

    /// Puts the names of a step that statements need ahead of them.
    fn take_names_along(&self, statements: &mut Vec<Stmt>, step: &[Stmt]) {
        for name in step.iter().rev().filter(|stmt| matches!(stmt.op, StmtOp::Let { .. })) {
            let own = effects(&self.plan, name);
            if statements.iter().any(|stmt| !effects(&self.plan, stmt).reads.is_disjoint(&own.writes)) {
                statements.insert(0, name.clone());
            }
        }
    }

    /// Gives two slots to tiles that warps stage for each other, and says which these are.
    ///
    /// The barrier behind what a step stages then is the only one of the step. A slot is written
    /// again two steps later: the barrier between says that all warps have done with it, whose
    /// products of a step are settled before those of the next have made what is staged.
    fn in_two_slots(&mut self, l: &Loop<'_>, steps: [&mut Vec<Stmt>; 2]) -> Vec<TileId> {
        let of_step = Slot::Of(Iteration::Ahead(l.id, 0));
        let written = |stmt: &Stmt| if let StmtOp::Stage { tile, .. } = stmt.op { Some(tile) } else { None };
        let staged: Vec<TileId> = steps.iter().flat_map(|step| step.iter().filter_map(written)).collect();
        for step in steps {
            staged.iter().for_each(|&tile| in_slot(step, tile, of_step));
        }
        staged.iter().for_each(|&tile| self.plan.tiles[tile].slots = 2);
        staged
    }

    /// Gives mbarriers to the tiles that column groups stage for each other, in place of the
    /// barriers behind them, and says which these are: a group whose columns are staged goes on to
    /// what it computes next. A tile has one slot, which is freed when the products that read it
    /// are settled: those of a step are before the next has made what is staged.
    fn between_groups(&mut self, l: &Loop<'_>, steps: [&mut Vec<Stmt>; 2]) -> Vec<TileId> {
        let [first, step] = steps;
        let staged = self.in_two_slots(l, [first, step]);
        [first, step].into_iter().for_each(|step| step.retain(|stmt| stmt.op != StmtOp::Barrier));
        staged.iter().for_each(|&tile| (self.plan.tiles[tile].exchange, self.plan.tiles[tile].slots) = (Some(0), 1));
        staged
    }

    /// Has a step wait for the slot of what it stages in a tile before that is computed, so that rows
    /// are stored while others are computed. What it computes before waits for no other warp.
    fn reserved_before_computed(&self, step: &mut [Stmt], tile: TileId) {
        let is_reserve = |stmt: &Stmt| matches!(stmt.op, StmtOp::Exchange { step: Exchange::Reserve, tile: t, .. } if t == tile);
        let at = step.iter().position(is_reserve).expect("what is staged has its exchange");
        let mut of = effects(&self.plan, &step[at + 1]).reads;
        let computed = step[..at].iter().rev().take_while(|stmt| {
            let found = effects(&self.plan, stmt);
            let is_computed = (stmt.op.is_elementwise() || stmt.op.is_rare_branch()) && found.writes.is_subset(&of);
            if is_computed && matches!(stmt.op, StmtOp::Pack { .. }) {
                of.extend(found.reads);
            }
            is_computed
        });
        let first = at - computed.count();
        step[first..=at].rotate_right(1);
    }

    /// A step with the exchange of what column groups stage for each other.
    fn exchanged_between_groups(&self, l: &Loop<'_>, step: Vec<Stmt>) -> Vec<Stmt> {
        let mut awaited: Vec<TileId> = Vec::new();
        let mut out = Vec::new();
        for stmt in step {
            let span = stmt.span;
            let exchange = |step, tile| Stmt::new(StmtOp::Exchange { step, tile, slot: only_slot(l) }, span);
            match stmt.op {
                StmtOp::Stage { tile, .. } => {
                    out.extend([exchange(Exchange::Reserve, tile), stmt, exchange(Exchange::Supply, tile)]);
                }
                _ => {
                    let mut read = self.exchanged_operands(&stmt);
                    read.retain(|tile| !awaited.contains(tile));
                    out.extend(read.iter().map(|&tile| exchange(Exchange::Await, tile)));
                    awaited.extend(read);
                    out.push(stmt);
                }
            }
        }
        out
    }

    /// Tiles that column groups exchange, and a product reads.
    fn exchanged_operands(&self, stmt: &Stmt) -> Vec<TileId> {
        let StmtOp::Dot { a, b, .. } = &stmt.op else { return Vec::new() };
        let a = if let OperandA::Tile(tile, _) = a { Some(*tile) } else { None };
        let exchanged = |tile: &TileId| self.plan.column_groups > 1 && self.plan.tiles[*tile].exchange.is_some();
        distinct(a.into_iter().chain([*b]).filter(exchanged))
    }

    /// The statements of a step with each product as early as its operands allow.
    /// Vectors along columns that are loaded meanwhile are spread over lanes until they are needed.
    fn issued_early(&mut self, step: Vec<Stmt>, spread: &mut HashMap<VarId, Spread>) -> Vec<Stmt> {
        let leads = self.leads(&step);
        let all: Vec<Effects> = step.iter().map(|stmt| effects(&self.plan, stmt)).collect();
        // Whose result is needed first comes first.
        let needed = |lead: usize| {
            let reads = |later: &Effects| !later.reads.is_disjoint(&all[lead].writes);
            (lead + 1..step.len()).find(|&later| !leads.contains(&later) && reads(&all[later])).unwrap_or(step.len())
        };
        let mut order = leads.clone();
        order.sort_by_key(|&lead| needed(lead));
        let mut out: Vec<Stmt> = order.iter().map(|&lead| step[lead].clone()).collect();
        let rest: Vec<Stmt> = step.iter().enumerate().filter(|(n, _)| !leads.contains(n)).map(|(_, stmt)| stmt.clone()).collect();
        let waiting = |to: VarId| match self.is_spread(to) {
            true => lanes_of(&self.plan.variables[to]).registers(),
            false => self.plan.variables[to].registers(),
        };
        let (mut loads, mut rest) = self.loads_ahead(&out, rest, &waiting);
        for load in &mut loads {
            let StmtOp::Load { to, .. } = &mut load.op else { continue };
            let Some(Spread { lanes, tile }) = self.spread(*to, spread) else { continue };
            let column = std::mem::replace(to, lanes);
            let name = &self.plan.variables[column].name;
            if let Some(first) = rest.iter().position(|stmt| effects(&self.plan, stmt).reads.contains(name)) {
                rest.insert(first, Stmt::new(StmtOp::Distribute { to: column, from: lanes, tile }, load.span));
            }
        }
        out.extend(loads);
        let begin = out.len();
        let operands: Vec<VarId> = rest.iter().filter_map(|stmt| packed_operand(&stmt.op)).collect();
        let staged: Vec<(VarId, TileId)> = rest.iter().filter_map(staged_from).collect();
        let by_groups = self.plan.column_groups > 1;
        for stmt in rest {
            let rises = match &stmt.op {
                StmtOp::Dot { .. } => true,
                StmtOp::Pack { to, .. } => operands.contains(to) || (by_groups && staged.iter().any(|(from, _)| from == to)),
                StmtOp::Stage { .. } => by_groups,
                _ => false,
            };
            let own = effects(&self.plan, &stmt);
            // What other warps wait for comes first, and what is awaited from them is there then.
            let of_packed = packed_operand(&stmt.op).and_then(|v| Some(staged.iter().find(|(from, _)| *from == v)?.1));
            let shared = left_tile(&stmt.op).or(of_packed);
            let behind = |other: &Stmt| {
                let waits = matches!(other.op, StmtOp::Exchange { step: Exchange::Await | Exchange::Supply, tile, .. } if shared == Some(tile));
                waits || effects(&self.plan, other).conflicts(&own)
            };
            let mut at = match rises {
                true => out[begin..].iter().rposition(behind).map_or(begin, |last| begin + last + 1),
                false => out.len(),
            };
            // Products that may be issued at one place keep their order.
            while product_into(&stmt.op).is_some() && out.get(at).is_some_and(|next| product_into(&next.op).is_some()) {
                at += 1;
            }
            out.insert(at, stmt);
        }
        out
    }

    /// Whether a column fragment is spread over lanes while it waits: where that is shorter.
    fn is_spread(&self, column: VarId) -> bool {
        let v = &self.plan.variables[column];
        v.storage == Storage::Fragment(Shape::Column) && v.n_tiles >= 2 && self.plan.column_groups == 1
    }

    /// The vector over lanes that stands for a column fragment while it waits.
    fn spread(&mut self, column: VarId, known: &mut HashMap<VarId, Spread>) -> Option<Spread> {
        if !self.is_spread(column) {
            return None;
        }
        let v = &self.plan.variables[column];
        if let Some(&spread) = known.get(&column) {
            return Some(spread);
        }
        let (variable, wanted, variable_tiles) = (v.clone(), format!("{}_lanes", v.name), v.n_tiles);
        let name = self.unique(&wanted);
        self.plan.variables.push(Variable { name, ..lanes_of(&variable) });
        let lanes = self.plan.variables.len() - 1;
        let (name, columns) = (self.unique(&format!("{wanted}_tile")), 64 * variable_tiles.div_ceil(8));
        let tile = self.add_tile(name, Elem::F32, self.schedule.warps.next_multiple_of(8), columns, 1, true);
        let t = &mut self.plan.tiles[tile];
        (t.pitch, t.layout) = (4 * columns, SharedLayout::Plain);
        known.insert(column, Spread { lanes, tile });
        Some(Spread { lanes, tile })
    }

    /// Adds waits to the statements of a step that begins with products of the one before in
    /// flight, and gives those that it leaves. Those into the accumulators of `done` it does not leave.
    ///
    /// Where a product takes registers that were packed while another that takes registers was in
    /// flight, ptxas 13.0 makes all products wait for each other (C7512, C7513), but for steps with
    /// a product across the warps: `one_at_a_time` settles the one before.
    fn waiting_late(
        &self,
        l: &Loop<'_>,
        stmts: Vec<Stmt>,
        before: &[Flight],
        done: &[VarId],
        across: Option<&Across>,
    ) -> (Vec<Stmt>, Vec<Flight>) {
        let one_at_a_time = across.is_none();
        // The product across the warps frees its operand by itself, where it is a step later.
        let lagging = across.filter(|_| self.schedule.sum_lag == 1).map(|across| across.tile);
        let read = |stmt: &Stmt| self.streamed_operands(l, std::slice::from_ref(stmt));
        let of_product = |stmt: &Stmt| [read(stmt), self.exchanged_operands(stmt)].concat();
        let products = stmts.iter().filter(|stmt| product_into(&stmt.op).is_some());
        let mut step = Step {
            l,
            out: Vec::new(),
            in_flight: before.iter().map(|flight| Flight { before: true, ..flight.clone() }).collect(),
            held: Vec::new(),
            to_come: products.map(of_product).collect(),
        };
        // What was loaded before the loop is the same in all steps.
        let packs: Vec<VarId> =
            stmts.iter().filter_map(|stmt| if let StmtOp::Pack { to, .. } = stmt.op { Some(to) } else { None }).collect();
        for stmt in stmts {
            let own = effects(&self.plan, &stmt);
            let acc = product_into(&stmt.op);
            let packed = packed_operand(&stmt.op).is_some_and(|v| packs.contains(&v));
            let left = left_tile(&stmt.op);
            let freed = match stmt.op {
                StmtOp::Exchange { step: Exchange::Free, tile, .. } => Some(tile),
                _ => None,
            };
            // Products into one accumulator follow each other by themselves.
            let needs = |flight: &Flight| match acc {
                Some(acc) => {
                    (acc != flight.acc && flight.effects.conflicts(&own))
                        || (packed && flight.packed && !flight.before && one_at_a_time)
                }
                None => flight.effects.conflicts(&own) || (freed.is_some() && freed == flight.left),
            };
            if let Some(last) = step.in_flight.iter().rposition(needs) {
                step.settle(last, stmt.span);
            }
            let tiles = if acc.is_some() { read(&stmt) } else { Vec::new() };
            let mut exchanged = self.exchanged_operands(&stmt);
            exchanged.retain(|&tile| lagging != Some(tile));
            for &tile in &tiles {
                step.acquire(tile, &stmt);
            }
            step.out.push(stmt);
            if let Some(acc) = acc {
                step.to_come.remove(0);
                step.in_flight.push(Flight { acc, packed, effects: own, tiles, left, exchanged, before: false });
            }
        }
        // Of column groups the last product of a step alone stays in flight: the rings that the others
        // read are loaded again while it and the next ones run.
        let others = step.in_flight.len().saturating_sub(2);
        let by_groups = self.plan.column_groups > 1 && step.in_flight.len() > 1;
        let last = step.in_flight.iter().rposition(|flight| done.contains(&flight.acc));
        if let Some(last) = last.max(by_groups.then_some(others)) {
            step.settle(last, self.span);
        }
        let leaves = step.in_flight;
        (step.out, leaves)
    }
}

impl Step<'_> {
    /// Holds the slot of this step, and keeps that of the one before while products read it.
    fn acquire(&mut self, tile: TileId, stmt: &Stmt) {
        if self.held.contains(&tile) {
            return;
        }
        if self.in_flight.iter().any(|flight| flight.before && flight.tiles.contains(&tile)) {
            self.out.push(Stmt::new(StmtOp::Advance(tile), stmt.span));
        }
        let slot = Slot::Of(Iteration::Ahead(self.l.id, 0));
        self.out.push(Stmt::new(StmtOp::Acquire { tile, slot }, stmt.span));
        self.held.push(tile);
    }

    /// Waits for the products up to one of them, and hands back what no other reads.
    fn settle(&mut self, mut last: usize, span: Span) {
        // A wait names accumulators: it waits for all products into them.
        while let Some(more) =
            self.in_flight.iter().rposition(|flight| self.in_flight[..=last].iter().any(|done| done.acc == flight.acc))
            && more > last
        {
            last = more;
        }
        let done: Vec<Flight> = self.in_flight.drain(..=last).collect();
        self.out.push(Stmt::new(StmtOp::Wait(events(&done)), span));
        for before in [true, false] {
            let of_step = |flight: &&Flight| flight.before == before;
            let in_use = |tile: &TileId| {
                let reads = |flight: &Flight| flight.tiles.contains(tile) || flight.exchanged.contains(tile);
                let to_come = !before && self.to_come.iter().any(|tiles| tiles.contains(tile));
                to_come || self.in_flight.iter().filter(of_step).any(reads)
            };
            let done = || done.iter().filter(of_step);
            let exchanged = distinct(done().flat_map(|flight| flight.exchanged.iter().copied()).filter(|tile| !in_use(tile)));
            let tiles = distinct(done().flat_map(|flight| flight.tiles.iter().copied()).filter(|tile| !in_use(tile)));
            self.out.extend(freed(self.l, before.then_some(Iteration::Behind(self.l.id, 1)), exchanged, span));
            for tile in tiles {
                // The slot of the step before is kept, if that of this one is held already.
                let op = match before && self.held.contains(&tile) {
                    true => StmtOp::ReleaseBefore(tile),
                    false => StmtOp::Release(tile),
                };
                self.out.push(Stmt::new(op, span));
                if !before {
                    self.held.retain(|&held| held != tile);
                }
            }
        }
    }
}

/// The slot of a tile that has one.
fn only_slot(l: &Loop<'_>) -> Slot {
    Slot::Of(Iteration::Ahead(l.id, 0))
}

/// Frees what column groups have exchanged in the iteration in progress, or in another one.
fn freed(l: &Loop<'_>, at: Option<Iteration>, tiles: Vec<TileId>, span: Span) -> Vec<Stmt> {
    let free = |tile| Stmt::new(StmtOp::Exchange { step: Exchange::Free, tile, slot: only_slot(l) }, span);
    let body: Vec<Stmt> = tiles.into_iter().map(free).collect();
    match at {
        _ if body.is_empty() => Vec::new(),
        Some(at) => vec![Stmt::new(StmtOp::Step { at, body }, span)],
        None => body,
    }
}

/// The ends of products, by their accumulators.
fn events(flights: &[Flight]) -> Vec<Event> {
    distinct(flights.iter().map(|flight| flight.acc)).into_iter().map(Event::Product).collect()
}

/// Refuses steps of which one alone stages a tile: that would have no slot of each step.
fn stage_alike(first: &[Stmt], step: &[Stmt], span: Span) -> Result<(), Error> {
    let staged = |step: &[Stmt]| -> Vec<TileId> {
        step.iter().filter_map(|stmt| if let StmtOp::Stage { tile, .. } = stmt.op { Some(tile) } else { None }).collect()
    };
    match staged(first) == staged(step) {
        true => Ok(()),
        false => Err(Error::unsupported(
            "overlap=late in a loop whose first step stages other tiles than the rest",
            "set overlap=off",
            span,
        )),
    }
}

/// The accumulator of a product, or of the one in a step of another iteration.
fn product_into(op: &StmtOp) -> Option<VarId> {
    match op {
        StmtOp::Dot { acc, .. } => Some(*acc),
        StmtOp::Step { body, .. } => body.iter().find_map(|stmt| product_into(&stmt.op)),
        _ => None,
    }
}

/// The variable that a product takes its left operand from.
fn packed_operand(op: &StmtOp) -> Option<VarId> {
    match op {
        StmtOp::Dot { a: OperandA::Packed(v), .. } => Some(*v),
        _ => None,
    }
}

/// A step with the product across the warps of the step before in place of its own, if there is
/// one before.
fn a_step_later(l: &Loop<'_>, across: &Across, step: Vec<Stmt>, has_before: bool) -> Vec<Stmt> {
    let issued = has_before.then(|| across.before(l, across.issued(l)));
    let mut out = exchanged(l, across, step, issued.into_iter().collect());
    out.extend(has_before.then(|| across.before(l, across.settled(l))));
    out
}

/// A step of column groups with the product across the warps of the step before, if there is one
/// before, `issued` ahead of all that needs what the step computes, and what adds its result behind
/// all else.
fn behind_the_scores(l: &Loop<'_>, across: &Across, step: Vec<Stmt>, issued: Vec<Stmt>) -> Vec<Stmt> {
    let has_before = !issued.is_empty();
    let mut out: Vec<Stmt> = has_before.then(|| across.before(l, issued)).into_iter().collect();
    out.extend(step.into_iter().filter(|stmt| !across.is_of(&stmt.op)));
    out.extend(has_before.then(|| across.before(l, across.settled(l))));
    out
}

/// A step with the product across the warps behind all else, of an operand that is turned.
fn in_its_step(l: &Loop<'_>, across: &Across, step: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = exchanged(l, across, step, Vec::new());
    for stmt in &mut out {
        if let StmtOp::Stage { tile, turned, .. } = &mut stmt.op {
            *turned |= *tile == across.tile;
        }
    }
    out.extend(across.issued(l));
    // The names that it needs are there already.
    let is_new = |stmt: &Stmt| !matches!(stmt.op, StmtOp::Let { .. }) || !out.contains(stmt);
    let settled: Vec<Stmt> = across.settled(l).into_iter().filter(is_new).collect();
    out.extend(settled);
    out
}

/// A step without the product across the warps and what adds its result to memory, whose warps
/// exchange its operand where barriers stood; `behind` comes as soon as the operand is staged.
/// Products that need the rows of their own warps take these from registers: nothing is waited for
/// then, and shared memory is read less.
fn exchanged(l: &Loop<'_>, across: &Across, step: Vec<Stmt>, mut behind: Vec<Stmt>) -> Vec<Stmt> {
    let staged = step.iter().filter_map(staged_from).find(|(_, tile)| *tile == across.tile);
    let (from, _) = staged.expect("its operand is staged");
    let mut out = Vec::new();
    let mut statements = step.into_iter().peekable();
    while let Some(mut stmt) = statements.next() {
        let span = stmt.span;
        match &mut stmt.op {
            op if across.is_of(op) => {}
            op if left_tile(op) == Some(across.tile) => {
                if let StmtOp::Dot { a, .. } = op {
                    *a = OperandA::Packed(from);
                }
                out.push(stmt);
            }
            StmtOp::Stage { tile, .. } if *tile == across.tile => {
                let step = |step| Stmt::new(across.exchange(step, l), span);
                out.extend([step(Exchange::Reserve), stmt, step(Exchange::Supply)]);
                statements.next_if(|next| next.op == StmtOp::Barrier);
                out.append(&mut behind);
            }
            _ => out.push(stmt),
        }
    }
    out
}

/// What a first step leaves in flight that reads registers. A product that enters the loop in
/// flight has its operand in registers that none of the loop may have: `ptxas` makes all products
/// of the loop wait for each other then (C7512).
fn lent(first: &[Stmt], leaves: &[Flight]) -> Vec<Event> {
    let enters = |op: &StmtOp| match op {
        StmtOp::Dot { acc, a: OperandA::Packed(_), .. } if leaves.iter().any(|flight| flight.acc == *acc) => Some(*acc),
        _ => None,
    };
    first.iter().filter_map(|stmt| enters(&stmt.op)).map(Event::Product).collect()
}

/// What is staged for other warps, and where.
fn staged_from(stmt: &Stmt) -> Option<(VarId, TileId)> {
    match stmt.op {
        StmtOp::Stage { tile, from, .. } => Some((from, tile)),
        _ => None,
    }
}

/// The tile in shared memory that a product takes its left operand from.
fn left_tile(op: &StmtOp) -> Option<TileId> {
    match op {
        StmtOp::Dot { a: OperandA::Tile(tile, _), .. } => Some(*tile),
        _ => None,
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}
