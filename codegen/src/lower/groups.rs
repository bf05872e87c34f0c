//! What the warps of a block exchange: operands of products that each has a share of, and with
//! `column_groups` values for each row.

use flashtile_dsl::ir::{BlockId, Dim, Elem, Op, OpId, ReduceOp, Span, ValueId};

use super::computed;
use super::context::{Home, Lowering, Made};
use super::pipeline::Loop;
use super::{least_share, row_warps, shares};
use crate::abi::TensorMap;
use crate::error::Error;
use crate::plan::{
    Builtin, Event, Exchange, Expr, GlobalTile, Iteration, OperandA, Operator, Slot, Stmt, StmtOp, Storage, TileId, VarId,
};
use crate::schedule::{Overlap, Persistent, SharedLayout};

/// Most column groups.
const MOST: u32 = 4;

impl Lowering<'_> {
    /// A column, or a first column, of a dimension of so many columns in the share of the warp's
    /// group.
    pub(super) fn in_group(&self, column: Expr, columns: u32) -> Expr {
        match self.share_begins(columns) {
            Some(first) => Expr::infix(Operator::Add, column, first),
            None => column,
        }
    }

    /// The first column of the group's share, if columns are shared.
    pub(super) fn share_begins(&self, columns: u32) -> Option<Expr> {
        let share = Expr::Int((columns / shares(self.schedule)).into());
        let groups = self.schedule.column_groups;
        let group = || Expr::Builtin(Builtin::ColumnGroup);
        let number = match &self.column_program {
            Some(program) if groups == 1 => program.clone(),
            Some(program) => {
                let before = Expr::infix(Operator::Mul, program.clone(), Expr::Int(groups.into()));
                Expr::infix(Operator::Add, before, group())
            }
            None if groups == 1 => return None,
            None => group(),
        };
        Some(Expr::infix(Operator::Mul, number, share))
    }

    /// The group's share of a tile that fragments are loaded from or stored to.
    pub(super) fn share(&self, tile: GlobalTile, dims: &[Dim]) -> GlobalTile {
        let Some(columns) = dims.last().filter(|dim| dims.len() == 2 || !self.classes.is_row(dim)) else { return tile };
        let Some(begins) = self.share_begins(self.padded(columns)) else { return tile };
        let further = |stride: &Expr| match stride {
            Expr::Int(1) => begins.clone(),
            stride => Expr::infix(Operator::Mul, begins.clone().wide(), stride.clone()),
        };
        let less = |present: Expr| Expr::infix(Operator::Sub, present, begins.clone());
        if dims.len() == 1 {
            // A vector: its positions are what rows are of a matrix.
            let origin = Expr::infix(Operator::Add, tile.origin, further(&tile.row_stride));
            return GlobalTile { origin, rows_present: less(tile.rows_present), ..tile };
        }
        let origin = Expr::infix(Operator::Add, tile.origin, further(&tile.column_stride));
        GlobalTile { origin, columns_present: less(tile.columns_present), ..tile }
    }

    /// Where a value for each row is stored: by one of the programs that share columns.
    pub(super) fn stored_once(&self, tile: GlobalTile, dims: &[Dim]) -> GlobalTile {
        let of_rows = dims.len() == 1 && self.classes.is_row(&dims[0]);
        let Some(program) = self.column_program.as_ref().filter(|_| of_rows) else { return tile };
        let first = Expr::infix(Operator::Eq, program.clone(), Expr::Int(0));
        let rows_present = Expr::Select(Box::new(first), Box::new(tile.rows_present), Box::new(Expr::Int(0)));
        GlobalTile { rows_present, ..tile }
    }

    /// Reduces what the column groups have of a value for each row.
    pub(super) fn merge_groups(&mut self, v: VarId, operation: ReduceOp) {
        if self.schedule.column_groups == 1 {
            return;
        }
        let name = self.unique(&format!("{}_groups", self.plan.variables[v].name));
        let rows = 16 * self.plan.variables[v].m_tiles * row_warps(self.schedule);
        let tile = self.add_tile(name, Elem::F32, rows, MOST, 1, false);
        let t = &mut self.plan.tiles[tile];
        (t.pitch, t.layout) = (4 * MOST, SharedLayout::Plain);
        // In a loop the end of its body sees to it that all have read what was published before.
        if self.loops_by_axis.is_empty() && self.schedule.persistent != Persistent::Off {
            self.push(StmtOp::Barrier);
        }
        self.push(StmtOp::Publish { tile, from: v });
        self.push(StmtOp::Barrier);
        self.push(StmtOp::Merge { to: v, tile, operation });
    }

    /// Writes the operands that are computed before a loop to where the products of its steps read
    /// them: once, and also where the loop walks nothing.
    pub(super) fn stage_operands(&mut self, walk: OpId, body: BlockId) {
        let kernel = self.kernel;
        let within = kernel.ops_within(body);
        // What the step before of a loop around has written is still read.
        let mut again = !kernel.blocks[kernel.body].ops.contains(&walk);
        let shares = self.schedule.column_groups != 1;
        let operands = within.iter().flat_map(|&op| match kernel.ops[op].op {
            Op::Dot { a, b, .. } => [(a, shares), (computed::untransposed(kernel, b).0, true)].to_vec(),
            _ => Vec::new(),
        });
        let of_tensor_cores = self.schedule.tensor_op.is_of_tensor_cores();
        for (value, is_shared) in operands.collect::<Vec<_>>() {
            let is_before = kernel.def(value).is_some_and(|(op, _)| !within.contains(&op));
            if !is_shared || !is_before || self.tile_of(value).is_some() {
                continue;
            }
            let Some(&Home::Variable(from)) = self.homes.get(&value) else { continue };
            let is_packed = self.plan.variables[from].storage == Storage::Packed;
            if !is_packed && of_tensor_cores {
                continue;
            }
            if std::mem::take(&mut again) {
                self.push(StmtOp::Barrier);
            }
            if is_packed {
                self.stage_operand(value, from)
            } else {
                self.stage_fragment(value, from)
            };
        }
    }

    /// Writes an operand of multiply-adds to where all warps that need it read it. Its fragment stays
    /// what elementwise work reads.
    pub(super) fn stage_fragment(&mut self, a: ValueId, from: VarId) -> TileId {
        let tile = self.stage_operand(a, from);
        self.homes.insert(a, Home::Variable(from));
        tile
    }

    /// Writes an operand to where all warps read it: a right operand, which every warp needs whole,
    /// or with column groups a left one, of which each group has a share.
    pub(super) fn stage_operand(&mut self, a: ValueId, from: VarId) -> TileId {
        let tile = self.staged_tile(a, from);
        if self.loops_by_axis.is_empty() && self.schedule.persistent != Persistent::Off {
            self.push(StmtOp::Barrier);
        }
        let operand = Staged { value: a, from, tile };
        self.push(operand.statement());
        self.push(StmtOp::Barrier);
        if self.schedule.overlap == Overlap::Late {
            self.forced.entry(a).or_insert(from);
        }
        self.is_staged(&operand);
        tile
    }

    /// The tile that an operand is staged in.
    fn staged_tile(&mut self, a: ValueId, from: VarId) -> TileId {
        let of = self.kernel.tile(a);
        let (rows, columns) = (self.padded(&of.dims[0]), self.padded(&of.dims[1]));
        // All steps of a loop whose products are waited for late write the same tile.
        let known = self.staged.get(&a).copied().filter(|_| self.schedule.overlap == Overlap::Late);
        let tile = known.unwrap_or_else(|| {
            let name = self.unique(&format!("{}_tile", self.plan.variables[from].name.trim_end_matches("_packed")));
            let elem = self.instance.binding.elem(self.kernel, of.elem);
            self.add_tile(name, elem, rows, columns, 1, false)
        });
        self.staged.insert(a, tile);
        if self.is_specialized() {
            // As TMA would lay it out.
            let (t, slab) = (&mut self.plan.tiles[tile], TensorMap::slab(columns));
            (t.pitch, t.slabs, t.layout) = (2 * slab, columns.div_ceil(slab), SharedLayout::Xor);
        }
        tile
    }

    /// Products read an operand where it is staged.
    pub(super) fn is_staged(&mut self, staged: &Staged) {
        let &Staged { value, tile, .. } = staged;
        self.homes.insert(value, Home::Tile(tile));
        self.made.insert(value, Made { tile, slot: Slot::Only, transposed: false });
    }

    /// Stages the left operands of products that these operations have made, of which each column
    /// group has a share. They are visible to the others behind the next barrier.
    pub(super) fn staged_between_groups(&mut self, made: &[OpId]) -> Vec<Staged> {
        let kernel = self.kernel;
        if self.schedule.column_groups == 1 {
            return Vec::new();
        }
        let results = made.iter().flat_map(|&op| kernel.ops[op].results.iter().copied());
        let is_left = |value: ValueId| {
            self.classes.users[&value].iter().any(|&user| matches!(kernel.ops[user].op, Op::Dot { a, .. } if a == value))
        };
        let left: Vec<ValueId> = results.filter(|&value| is_left(value)).collect();
        let mut staged = Vec::new();
        for value in left {
            let Some(&Home::Variable(from)) = self.homes.get(&value) else { continue };
            if self.plan.variables[from].storage == Storage::Packed {
                let operand = Staged { value, from, tile: self.staged_tile(value, from) };
                self.push(operand.statement());
                staged.push(operand);
            }
        }
        staged
    }

    /// A body that ends a step: tiles that warps stage for each other in it, and that the next step
    /// may not write before all have read them, are freed by those who have, and reserved where
    /// the first product of the step is on its way. That costs no barrier.
    pub(super) fn freed(&mut self, l: &Loop<'_>, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let tiles = read_at_the_end(&body);
        let staged = |tile: &TileId| body.iter().any(|stmt| matches!(stmt.op, StmtOp::Stage { tile: t, .. } if t == *tile));
        if !tiles.iter().all(staged) {
            return closed(body, self.span);
        }
        let slot = Slot::Of(Iteration::Ahead(l.id, 0));
        for tile in tiles {
            self.plan.tiles[tile].exchange = Some(0);
            in_slot(&mut body, tile, slot);
            let plain = |step| Stmt::new(StmtOp::Exchange { step, tile, slot }, self.span);
            let last = body.iter().rposition(|stmt| stmt.op.multiplies(tile)).expect("a product reads it");
            let wait = body[last..].iter().position(|stmt| matches!(stmt.op, StmtOp::Wait(_)));
            let settled = wait.map_or(body.len(), |further| last + further + 1);
            body.insert(settled, plain(Exchange::Free));
            let waits = |stmt: &Stmt| matches!(stmt.op, StmtOp::Wait(_) | StmtOp::Stage { .. });
            let first = body.iter().position(waits).expect("it is staged");
            body.insert(first, plain(Exchange::Reserve));
        }
        body
    }

    /// Refuses a product of a warpgroup whose right operand a column group would read from the middle
    /// of columns that lie together.
    pub(super) fn shares_begin_with_parts(&self, acc: VarId, b: TileId, k_major: bool) -> Result<(), Error> {
        let (columns, t) = (8 * self.plan.variables[acc].n_tiles, &self.plan.tiles[b]);
        let part = t.pitch.min(128) / 2;
        let reads_parts = self.schedule.tensor_op.is_asynchronous() && self.schedule.column_groups > 1;
        if !reads_parts || k_major || columns.is_multiple_of(part) {
            return Ok(());
        }
        let what = format!(
            "{} column groups of a product of {} columns: {part} columns of its right operand lie together",
            self.schedule.column_groups,
            columns * self.schedule.column_groups
        );
        Err(Error::unsupported(what, "set column_groups=1", self.span))
    }

    /// The columns of a fragment do not divide among the groups.
    pub(super) fn uneven_columns(&self, name: &str, columns: u32) -> Error {
        let shares = shares(self.schedule);
        let least = least_share(self.schedule.tensor_op);
        let what =
            format!("{name} has {columns} columns, which do not divide into {shares} shares, of {least} or a multiple each");
        Error::unsupported(what, "take another block_n, or fewer column_groups and column_programs", self.span)
    }
}

/// An operand that is staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    value: ValueId,
    from: VarId,
    tile: TileId,
}

impl Staged {
    /// Each group writes its share.
    pub fn statement(&self) -> StmtOp {
        StmtOp::Stage { tile: self.tile, slot: Slot::Only, from: self.from, turned: false }
    }
}

/// Has statements, and those that they hold, write and read a staged tile in this slot.
pub(super) fn in_slot(body: &mut [Stmt], of: TileId, to: Slot) {
    for stmt in body {
        match &mut stmt.op {
            StmtOp::Stage { tile, slot, .. } if *tile == of => *slot = to,
            StmtOp::Dot { a, b, b_slot, .. } => {
                if let OperandA::Tile(tile, slot) = a
                    && *tile == of
                {
                    *slot = to;
                }
                if *b == of {
                    *b_slot = to;
                }
            }
            _ => {}
        }
        stmt.op.bodies_mut().into_iter().for_each(|body| in_slot(body, of, to));
    }
}

/// The body of a loop, with a barrier at its end if it needs one.
pub(super) fn closed(mut body: Vec<Stmt>, span: Span) -> Vec<Stmt> {
    if !read_at_the_end(&body).is_empty() {
        body.push(Stmt::new(StmtOp::Barrier, span));
    }
    body
}

/// The tiles for which a loop's body needs a barrier at its end: what column groups exchange first
/// in an iteration they may still read in the one before.
fn read_at_the_end(body: &[Stmt]) -> Vec<TileId> {
    let barrier = |stmt: &Stmt| stmt.op.is_barrier();
    let first_barrier = body.iter().position(barrier).unwrap_or(body.len());
    let last_barrier = body.iter().rposition(barrier);
    let early = body[..first_barrier].iter().filter_map(|stmt| match stmt.op {
        StmtOp::Publish { tile, .. } | StmtOp::Stage { tile, .. } => Some(tile),
        _ => None,
    });
    let needs = |&tile: &TileId| {
        let reads = |stmt: &Stmt| match &stmt.op {
            StmtOp::Merge { tile: read, .. } => *read == tile,
            op => op.multiplies(tile),
        };
        let last = body.iter().rposition(reads).map(|at| match body[at].op {
            // Read until it is waited for.
            StmtOp::Dot { acc, atom, .. } if atom.is_asynchronous() => {
                let done = |stmt: &Stmt| matches!(&stmt.op, StmtOp::Wait(events) if events.contains(&Event::Product(acc)));
                body.iter().skip(at).position(done).map_or(body.len(), |further| at + further)
            }
            _ => at,
        });
        last.is_some_and(|read| last_barrier.is_none_or(|barrier| barrier < read))
    };
    early.into_iter().filter(needs).collect()
}
