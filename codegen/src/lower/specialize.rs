//! The roles of a block whose products are asynchronous: one warpgroup produces tiles, the others consume them.
//!
//! Lowering makes the statements of the consumers. The producer's are their image: the same programs, loops and branches, with
//! a `Fill` for every `Acquire` and nothing else, so that both agree on the order of tiles in every ring.

use flashtile_dsl::ir::{At, AxisKind, Dim, Op, OpId, ParamId, Type, ValueId};

use super::context::{Lowering, Source};
use super::rows_read::held;
use super::{shares, unused};
use crate::abi::TensorMap;
use crate::arch::WARPGROUP;
use crate::error::Error;
use crate::plan::{
    Barriers, Companion, Event, Expr, Guard, LoopId, Operator, Role, RoleKind, SharedTile, Slot, Stmt, StmtOp, TileId, each,
};
use crate::schedule::{BlockKnobs, Persistent, SharedLayout};

/// Registers of a multiprocessor's threads, in all (every architecture with `setmaxnreg` has as many).
const REGISTERS: u32 = 65_536;

/// Rows of what one copy of TMA takes, at most (CUDA driver API, `cuTensorMapEncodeTiled`, `boxDim`).
const MOST_ROWS: u32 = 256;

/// Registers per thread of the producer and of the consumers under `setmaxnreg`, which moves them from one to the other; `None`
/// if the schedule leaves them as launched. Values are multiples of 8 from 24 to 240 (PTX ISA 9.7.19.5).
pub fn register_split(schedule: &BlockKnobs) -> Option<(u32, u32)> {
    let producer = schedule.producer_registers;
    if producer == 0 {
        return None;
    }
    let groups = (schedule.warps / WARPGROUP).max(1);
    let threads = 32 * WARPGROUP * (groups + 1);
    let launched = REGISTERS / (threads * schedule.min_blocks.max(1)) / 8 * 8;
    let consumer = (launched * (groups + 1)).saturating_sub(producer) / groups / 8 * 8;
    Some((producer, consumer.min(240)))
}

impl Lowering<'_> {
    /// A ring of tiles that the producer fills from where `load` reads.
    pub(super) fn new_ring(&mut self, load: OpId, slots: u32, streamed: Option<(LoopId, ValueId)>) -> Result<TileId, Error> {
        let (tensor, at) = self.read_by(load);
        let at = at.to_vec();
        let tile = self.new_tile(load, slots)?;
        let shape = self.kernel.tensor(tensor).shape.len();
        let result = self.kernel.ops[load].results[0];
        // A box is as wide as the padded tile: what it holds beyond the range must be nothing, which is 0.
        if let Some(At::Range { len, .. }) = at.last()
            && !self.is_end(tensor, &at)
        {
            let (columns, padded) = (self.constant(len), self.padded(&Dim::Range(len.clone())));
            if padded > columns {
                let multiple = if columns.is_multiple_of(16) { 32 * shares(self.schedule) } else { 16 };
                return Err(Error::unsupported(
                    format!("TMA of columns that end within a tensor and are no multiple of {multiple}"),
                    "take copy=cp_async with tensor_op=mma_m16n8k16, or store these columns as a tensor of their own",
                    self.span,
                ));
            }
        }
        if !(2..=5).contains(&shape) {
            return Err(self.unsupported(result, "TMA of a tensor with more than 5 dimensions"));
        }
        let columns = match at.last() {
            Some(At::Range { len, .. }) => Some(self.constant(len)),
            _ => None,
        };
        let is_narrow = columns.is_some_and(|columns| columns <= SharedTile::NARROW) && self.is_a_right_operand(result);
        let t = &mut self.plan.tiles[tile];
        if t.elem.bytes() != Some(2) {
            let what = format!("wgmma of a tile of {}, which TMA copies for products of 16-bit elements alone", t.elem.name());
            let instead = "convert it ahead with precompute=b, or take tensor_op=mma_m16n8k16";
            return Err(self.unsupported_but(result, &what, instead));
        }
        if t.rows > MOST_ROWS {
            let what = format!("TMA of {} rows", t.rows);
            return Err(self.unsupported_but(result, &what, "take blocks of 256 rows at most (block_m, block_n)"));
        }
        let padded = t.columns;
        let columns = columns.unwrap_or(padded);
        let (slab, layout) = match is_narrow {
            true => (SharedTile::NARROW, SharedLayout::Plain),
            false => (self.slab_of(columns, padded), SharedLayout::Xor),
        };
        let is_finite = self.instance.facts.finite.contains(&self.kernel.params[tensor].name);
        let t = &mut self.plan.tiles[tile];
        if is_narrow && is_finite {
            t.columns = slab;
        }
        (t.pitch, t.slabs, t.layout) = (2 * slab, t.columns.div_ceil(slab), layout);
        t.barriers = Some(Barriers::At(0));
        let rows = t.rows;
        let map = self.map_of(tensor, &at, [slab, rows], 2);
        self.sources.insert(tile, Source { load, map, streamed, within: self.positions_around(load) });
        Ok(tile)
    }

    /// Columns of the boxes that a tile of so many, padded to so many, is filled with: those that begin
    /// the share of a column group begin a box.
    fn slab_of(&self, columns: u32, padded: u32) -> u32 {
        let slab = TensorMap::slab(columns);
        let shares = shares(self.schedule);
        let begins_boxes = |slab: u32| (padded / shares).is_multiple_of(slab);
        if shares > 1 && !begins_boxes(slab) && begins_boxes(32) { 32 } else { slab }
    }

    /// Whether nothing reads a loaded tile but products, as right operands with rows for columns,
    /// whose left operands are loaded as well: what these hold beyond their last column is 0.
    fn is_a_right_operand(&self, loaded: ValueId) -> bool {
        let users = |value: ValueId| self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        let is_load = |value: ValueId| matches!(self.kernel.def(value), Some((_, Op::Load { .. })));
        let of_product = |turned: ValueId| {
            users(turned).iter().all(|&op| matches!(self.kernel.ops[op].op, Op::Dot { a, b, .. } if b == turned && is_load(a)))
        };
        let is_turned =
            |op: &OpId| matches!(self.kernel.ops[*op].op, Op::Transpose(_)) && of_product(self.kernel.ops[*op].results[0]);
        users(loaded).iter().all(is_turned)
    }

    /// The tensor map of boxes of so many columns and rows.
    pub(super) fn map_of(&mut self, tensor: ParamId, at: &[At], [columns, rows]: [u32; 2], element_bytes: u32) -> usize {
        self.map_with(tensor, order_of(at), &[columns, rows], element_bytes)
    }

    /// The same of boxes whose rows are parts of so many columns.
    pub(super) fn map_of_parts(
        &mut self,
        tensor: ParamId,
        at: &[At],
        [columns, parts, rows]: [u32; 3],
        element_bytes: u32,
    ) -> usize {
        let mut order = order_of(at);
        order.insert(0, order[0]);
        self.map_with(tensor, order, &[columns, parts, rows], element_bytes)
    }

    /// The tensor map of boxes that have so many elements along the first dimensions, and one along
    /// the others.
    fn map_with(&mut self, tensor: ParamId, order: Vec<u32>, first: &[u32], element_bytes: u32) -> usize {
        let mut tile = first.to_vec();
        tile.resize(order.len(), 1);
        let tensor = self.kernel.params[tensor].name.clone();
        let same = |m: &TensorMap| m.tensor == tensor && m.order == order && m.tile == tile;
        self.plan.maps.iter().position(same).unwrap_or_else(|| {
            let name = self.unique(&format!("{tensor}_map"));
            self.plan.maps.push(TensorMap { name, tensor, order, tile, element_bytes });
            self.plan.maps.len() - 1
        })
    }

    /// The loop over single positions in whose body an op stands.
    fn positions_around(&self, op: OpId) -> Option<LoopId> {
        let Op::For { axis, .. } = self.kernel.ops[self.kernel.loop_around(op)?].op else { return None };
        let single = self.kernel.axes[axis].kind == AxisKind::Each;
        if single { self.loops_by_axis.get(&axis).copied() } else { None }
    }

    /// Makes the roles.
    pub(super) fn specialize(&mut self, body: Vec<Stmt>) -> Result<(), Error> {
        let mut body = held(settled(body));
        let outer: Vec<TileId> =
            (0..self.plan.tiles.len()).filter(|tile| self.sources.get(tile).is_some_and(|s| s.streamed.is_none())).collect();
        for tile in outer {
            match self.sources[&tile].within {
                None => hold(&mut body, tile),
                Some(id) => hold(body_of(&mut body, id).expect("the loop has statements"), tile),
            }
        }
        self.bring_together(&mut body);
        let producer = self.image(&body)?;
        let registers = register_split(self.schedule);
        let role = |this: &Self, kind: RoleKind, warps, registers, body: Vec<Stmt>| {
            let body = unused::drop_unused_constants(body, &this.plan);
            let span = this.span;
            let body = if this.schedule.persistent == Persistent::Off { body } else { vec![Stmt::new(StmtOp::Work(body), span)] };
            Role { kind, name: kind.name().into(), warps, registers, body }
        };
        let producer = role(self, RoleKind::Producer, WARPGROUP, registers.map(|r| r.0), producer);
        self.knows_its_numbers(&producer)?;
        let consumers = role(self, RoleKind::Consumers, self.schedule.warps, registers.map(|r| r.1), body);
        self.plan.roles.extend([producer, consumers]);
        Ok(())
    }

    /// Refuses a producer that would need a number which the loops of the consumers carry.
    fn knows_its_numbers(&self, producer: &Role) -> Result<(), Error> {
        let mut unknown = None;
        let variable = |name: &str| self.plan.variables.iter().any(|v| v.name == name);
        each(&producer.body, &mut |op| {
            op.expressions().into_iter().for_each(|e| {
                e.visit(&mut |e| {
                    unknown = unknown.take().or_else(|| e.own_name().filter(|name| variable(name)).map(str::to_owned))
                });
            });
        });
        let Some(name) = unknown else { return Ok(()) };
        let what = format!("copies by TMA from a place that depends on the number `{name}`, which a loop carries");
        let instead = "load the number at the top of the loop's body, or set copy=cp_async,tensor_op=mma_m16n8k16";
        Err(Error::unsupported(what, instead, self.span))
    }

    /// The box that fills a slot of a tile: its tensor map, and where it begins.
    pub(super) fn box_of(&self, tile: TileId, slot: Slot) -> (usize, Vec<Expr>) {
        let source = &self.sources[&tile];
        let (_, at) = self.read_by(source.load);
        let streamed = match (source.streamed, slot) {
            (Some((id, coordinate)), Slot::Of(iteration)) => Some((coordinate, self.plan.loops[id].tile(iteration))),
            _ => None,
        };
        (source.map, self.box_origin(source.map, at, streamed))
    }

    /// The producer's image of the consumers' statements.
    fn image(&self, body: &[Stmt]) -> Result<Vec<Stmt>, Error> {
        let mut out = Vec::new();
        for stmt in body {
            let op = match &stmt.op {
                StmtOp::Let { .. } => stmt.op.clone(),
                StmtOp::Acquire { tile, slot } => {
                    let with = self.plan.companions(*tile).into_iter().map(|tile| {
                        let (map, at) = self.box_of(tile, *slot);
                        Companion { tile, map, at }
                    });
                    let (with, (map, at)) = (with.collect(), self.box_of(*tile, *slot));
                    StmtOp::Fill { tile: *tile, slot: *slot, map, at, with }
                }
                StmtOp::When { guard: Guard::Vote { .. } | Guard::Flag(_) | Guard::Cut(_) | Guard::Holds(_), .. } => continue,
                StmtOp::When { guard, body, otherwise } => {
                    let (body, otherwise) = (self.image(body)?, self.image(otherwise)?);
                    if *guard == Guard::Again && body == otherwise {
                        out.extend(body);
                        continue;
                    }
                    StmtOp::When { guard: guard.clone(), body, otherwise }
                }
                StmtOp::Loop { id, from, unroll, body } => {
                    StmtOp::Loop { id: *id, from: *from, unroll: *unroll, body: self.image(body)? }
                }
                StmtOp::Step { at, body } => StmtOp::Step { at: *at, body: self.image(body)? },
                _ => continue,
            };
            let bodies = op.bodies();
            if bodies.is_empty() || bodies.iter().any(|b| b.iter().any(|s| !matches!(s.op, StmtOp::Let { .. }))) {
                out.push(Stmt::new(op, stmt.span));
            }
        }
        Ok(out)
    }

    /// Coordinates of a box of a tensor map, innermost first; of a slot of a ring with the number of
    /// its tile.
    pub(super) fn box_origin(&self, map: usize, at: &[At], streamed: Option<(ValueId, Expr)>) -> Vec<Expr> {
        let number = |v: ValueId| match &streamed {
            Some((coordinate, number)) if *coordinate == v => number.clone(),
            _ => Expr::name(self.coordinate(v)),
        };
        let start = |a: &At| match a {
            At::Index(v) => self.index(*v),
            At::Tile(v) => {
                let Type::Coord(axis) = self.kernel.ty(*v) else { unreachable!("verified: a coordinate") };
                Expr::infix(Operator::Mul, number(*v), Expr::Int(i64::from(self.block_size(*axis))))
            }
            At::Range { start, .. } => self.size(start),
        };
        let map = &self.plan.maps[map];
        let mut origin: Vec<Expr> = map.order.iter().map(|&d| start(&at[d as usize])).collect();
        if map.is_split() {
            let Some(At::Range { start, .. }) = at.last() else { unreachable!("columns are a range") };
            origin[0] = Expr::Int(0);
            origin[1] = Expr::Int(i64::from(self.constant(start) / map.tile[0]));
        }
        origin
    }
}

/// The dimensions of a tensor, innermost first: its last one, that of the tile's rows, the others.
fn order_of(at: &[At]) -> Vec<u32> {
    let last = at.len() - 1;
    let rows = at.iter().position(|a| !matches!(a, At::Index(_))).expect("a matrix has rows");
    [last, rows].into_iter().chain((0..last).rev().filter(|&d| d != rows)).map(|d| d as u32).collect()
}

/// Waits for every product outside of loops over tiles, where it stands.
pub(super) fn settled(body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::new();
    for stmt in body {
        let span = stmt.span;
        let acc = if let StmtOp::Dot { acc, .. } = stmt.op { Some(acc) } else { None };
        out.push(stmt);
        out.extend(acc.map(|acc| Stmt::new(StmtOp::Wait(vec![Event::Product(acc)]), span)));
    }
    out
}

/// Acquires a tile that is loaded once a program as late, and releases it as early, as what reads it allows: a slot that is free
/// early is filled for the next program while this one still computes, and a ring that is acquired before it is filled before it.
fn hold(body: &mut Vec<Stmt>, tile: TileId) {
    let users: Vec<usize> = (0..body.len()).filter(|&i| reads(&body[i], tile)).collect();
    let (Some(&first), Some(&last)) = (users.first(), users.last()) else { return };
    if first == last
        && let StmtOp::When { guard: Guard::Exists(_), body: inner, otherwise } = &mut body[first].op
        && otherwise.is_empty()
    {
        hold(inner, tile);
        return;
    }
    if first == last
        && let StmtOp::When { guard: Guard::Again, body: again, otherwise } = &mut body[first].op
    {
        hold(again, tile);
        hold(otherwise, tile);
        return;
    }
    release(body, last, tile);
    acquire(body, first, tile);
}

/// The statements of a loop, wherever it stands.
fn body_of(body: &mut [Stmt], wanted: LoopId) -> Option<&mut Vec<Stmt>> {
    body.iter_mut().find_map(|stmt| {
        let is_wanted = matches!(stmt.op, StmtOp::Loop { id, .. } if id == wanted);
        stmt.op.bodies_mut().into_iter().find_map(|body| if is_wanted { Some(body) } else { body_of(body, wanted) })
    })
}

/// Acquires a tile before `body[first]`, the first that reads it; inside it if that is a step, which is taken once.
fn acquire(body: &mut Vec<Stmt>, first: usize, tile: TileId) {
    let span = body[first].span;
    if let StmtOp::Step { body: step, .. } = &mut body[first].op
        && let Some(inner) = step.iter().position(|s| reads(s, tile))
    {
        acquire(step, inner, tile);
        return;
    }
    body.insert(first, Stmt::new(StmtOp::Acquire { tile, slot: Slot::Only }, span));
}

/// Releases a tile after `body[last]`, the last that reads it, once the products that do are done; in every branch by itself.
fn release(body: &mut Vec<Stmt>, last: usize, tile: TileId) {
    let done = Stmt::new(StmtOp::Release(tile), body[last].span);
    match &mut body[last].op {
        StmtOp::When { body, otherwise, .. } => {
            for branch in [body, otherwise] {
                match branch.iter().rposition(|s| reads(s, tile)) {
                    Some(inner) => release(branch, inner, tile),
                    None => branch.insert(0, done.clone()),
                }
            }
        }
        StmtOp::Step { body: step, .. } => {
            let inner = step.iter().rposition(|s| reads(s, tile)).expect("it reads the tile");
            release(step, inner, tile);
        }
        StmtOp::Dot { .. } => {
            let after = settled_by(body, last).expect("every product is waited for among the statements that issue it");
            body.insert(after + 1, done);
        }
        StmtOp::Loop { body: inner, .. } => {
            // What the loop leaves in flight is waited for behind it.
            let left: Vec<Event> = (0..inner.len())
                .filter(|&index| reads(&inner[index], tile) && settled_by(inner, index).is_none())
                .filter_map(|index| if let StmtOp::Dot { acc, .. } = inner[index].op { Some(Event::Product(acc)) } else { None })
                .collect();
            let names = |stmt: &Stmt| matches!(&stmt.op, StmtOp::Wait(events) if events.iter().any(|event| left.contains(event)));
            let waits = body[last + 1..].iter().rposition(names).map_or(0, |further| further + 1);
            body.insert(last + 1 + waits, done);
        }
        _ => body.insert(last + 1, done),
    }
}

/// The first statement after the product `body[dot]` at which it is done.
fn settled_by(body: &[Stmt], dot: usize) -> Option<usize> {
    let StmtOp::Dot { acc, .. } = body[dot].op else { return None };
    let names = |stmt: &Stmt| matches!(&stmt.op, StmtOp::Wait(events) if events.contains(&Event::Product(acc)));
    (dot + 1..body.len()).find(|&index| names(&body[index]))
}

fn reads(stmt: &Stmt, tile: TileId) -> bool {
    match &stmt.op {
        StmtOp::LoadFragments { tile: t, .. } => *t == tile,
        op if op.multiplies(tile) => true,
        op => op.bodies().into_iter().flatten().any(|s| reads(s, tile)),
    }
}
