//! Tiles in global memory (origins, strides, what exists) and in shared memory (geometry, places).

use flashtile_dsl::ir::{At, Dim, Direction, Elem, Op, OpId, ParamId, SizeExpr, Type, ValueId};

use super::context::{Home, Lowering, Pending};
use super::{APART, STRIDED};
use crate::error::Error;
use crate::plan::{
    Barriers, Cast, Event, Expr, Function, GlobalTile, LetType, Operator, Param, Shape, SharedTile, Slot, StmtOp, Storage,
    TileId, VarId,
};
use crate::schedule::{Persistent, SharedLayout};

impl Lowering<'_> {
    /// The tile of `tensor` that `at` addresses; `tile_number` overrides the coordinate of a loop axis (a copy that runs
    /// ahead addresses a later tile).
    pub(super) fn global_tile(&self, tensor: ParamId, at: &[At], tile_number: Option<(ValueId, Expr)>) -> GlobalTile {
        let decl = self.kernel.tensor(tensor);
        let name = &self.kernel.params[tensor].name;
        let last = at.len() - 1;
        let stride = |d: usize| if d == last { Expr::Int(1) } else { Expr::Param(Param::Stride(name.clone(), d as u32)) };
        let mut origin = Expr::Param(Param::Address(name.clone()));
        let mut present: Vec<(Expr, Expr, bool)> = Vec::new(); // stride, elements that exist, whole padded tile
        for (d, (a, extent)) in at.iter().zip(&decl.shape).enumerate() {
            let start = match a {
                At::Index(v) => self.index(*v),
                At::Tile(v) => {
                    let Type::Coord(axis) = self.kernel.ty(*v) else { unreachable!("verified: a coordinate") };
                    let number = match &tile_number {
                        Some((coordinate, number)) if coordinate == v => number.clone(),
                        _ => Expr::name(self.coordinate(*v)),
                    };
                    let start = Expr::infix(Operator::Mul, number, Expr::Int(i64::from(self.block_size(*axis))));
                    present.push((stride(d), Expr::infix(Operator::Sub, self.size(extent), start.clone()), false));
                    start
                }
                At::Range { start, len } => {
                    let exact = self.constant(len);
                    let is_full = exact == self.padded(&Dim::Range(len.clone()));
                    present.push((stride(d), Expr::Int(i64::from(exact)), is_full));
                    self.size(start)
                }
            };
            if start == Expr::Int(0) {
                continue;
            }
            let offset = if d == last { start } else { Expr::infix(Operator::Mul, start.cast(Cast::Wide), stride(d)) };
            origin = Expr::infix(Operator::Add, origin, offset);
        }
        let one = (Expr::Int(1), Expr::Int(1), true);
        let mut present = present.into_iter();
        let rows = present.next().unwrap_or_else(|| one.clone());
        let columns = present.next().unwrap_or(one);
        GlobalTile {
            tensor: name.clone(),
            elem: self.instance.binding.elem(self.kernel, decl.elem),
            origin,
            row_stride: rows.0,
            rows_present: rows.1,
            column_stride: columns.0,
            columns_present: columns.1,
            columns_full: columns.2,
        }
    }

    /// What lies along a dimension of a tensor, from its first place on, at the indices of `at`.
    pub(super) fn whole_row(&self, tensor: ParamId, at: &[At], dim: usize) -> GlobalTile {
        let mut at = at.to_vec();
        at[dim] = At::Range { start: SizeExpr::constant(0), len: SizeExpr::constant(1) };
        self.global_tile(tensor, &at, None)
    }

    pub(super) fn load(&mut self, id: OpId, tensor: ParamId, at: &[At]) -> Result<(), Error> {
        let result = self.kernel.ops[id].results[0];
        let dims = self.dims_of(at);
        if self.classes.shared_loads.contains(&id) {
            if self.kernel.tensor(tensor).direction == Direction::InOut {
                return Err(self.unsupported(result, "a tile of a tensor that is read and written as an operand of dot"));
            }
            // A streamed tile was given its ring by the loop; any other is copied once, here.
            if !self.homes.contains_key(&result) {
                if self.is_specialized() {
                    let tile = self.new_ring(id, self.schedule.outer_stages, None)?;
                    self.homes.insert(result, Home::Tile(tile));
                    return Ok(());
                }
                let tile = self.new_tile(id, 1)?;
                let from = self.global_tile(tensor, at, None);
                self.push(StmtOp::Copy { tile, slot: Slot::Only, from });
                self.push_commit();
                self.pending.push(Pending { tile });
                self.homes.insert(result, Home::Tile(tile));
            }
            return Ok(());
        }
        let from = self.global_tile(tensor, at, None);
        self.exchange.loaded |= self.kernel.tensor(tensor).direction == Direction::InOut;
        if dims.is_empty() {
            let name = self.value_name(result);
            let integer = !self.kernel.tile(result).elem.is_float();
            let read = Expr::call(Function::Read, [from.origin]);
            self.push(StmtOp::Let { name: name.clone(), ty: LetType::of(integer), value: read });
            self.homes.insert(result, Home::Inline(Expr::Name(name)));
            return Ok(());
        }
        if self.read_ring(id, false) {
            return Ok(());
        }
        let from = self.share(from, &dims);
        let to = self.destination(result);
        if dims.len() == 2 && from.elem == Elem::Bool && !self.forced.contains_key(&result) {
            self.plan.variables[to].bits = true;
        }
        self.homes.insert(result, Home::Variable(to));
        if self.classes.for_masks.contains(&id) {
            self.for_masks.insert(to, from);
        } else {
            self.push(StmtOp::Load { to, from });
        }
        Ok(())
    }

    /// Loads a matrix that memory has the other way round: from its ring, or two rows at once.
    pub(super) fn load_turned(&mut self, id: OpId) {
        if self.read_ring(id, true) {
            return;
        }
        let result = self.kernel.ops[id].results[0];
        let (tensor, at) = self.read_by(id);
        let from = self.share(self.global_tile(tensor, at, None).transposed(), &self.kernel.tile(result).dims);
        let to = self.destination(result);
        self.homes.insert(result, Home::Variable(to));
        self.push(StmtOp::Load { to, from });
    }

    /// Reads a matrix from its ring, and says whether it has one.
    fn read_ring(&mut self, id: OpId, turned: bool) -> bool {
        let Some(&(tile, slot)) = self.read_from.get(&id) else { return false };
        let result = self.kernel.ops[id].results[0];
        let to = self.destination(result);
        self.homes.insert(result, Home::Variable(to));
        self.push(StmtOp::ReadRows { to, tile, slot, turned });
        true
    }

    /// What an op reads that loads a matrix, as memory has it.
    pub(super) fn read_by(&self, load: OpId) -> (ParamId, &[At]) {
        match (&self.kernel.ops[load].op, self.classes.turned.get(&load)) {
            (Op::Load { tensor, at }, _) => (*tensor, at),
            (_, Some(turned)) => (turned.tensor, &turned.at),
            _ => unreachable!("a load"),
        }
    }

    pub(super) fn store(&mut self, tensor: ParamId, at: &[At], value: ValueId) -> Result<(), Error> {
        let dims = self.dims_of(at);
        let mut to = self.global_tile(tensor, at, None);
        let (mut value, mut dims) = (value, dims);
        while let Some((_, &Op::Transpose(x))) = self.kernel.def(value) {
            // Nothing moves: rows of the fragment are columns of the place.
            to = to.transposed();
            dims.reverse();
            value = x;
        }
        if self.kernel.params[tensor].kind.is_sum() {
            if dims.is_empty() {
                let what = "`add` of a number that is one for the whole program";
                return Err(Error::unsupported(what, "store it for each program, and sum up in a kernel of its own", self.span));
            }
            let from = self.variable(value)?;
            // What lies across has shares of its own.
            let to = if self.plan.variables[from].across.is_some() { to } else { self.share(to, &dims) };
            let to = self.stored_once(to, &dims);
            match self.rows_to_add(tensor, at, &to, from) {
                None => self.push(StmtOp::Add { to, from, place: None }),
                Some((tile, map)) => {
                    self.push(StmtOp::PutRows { tile, from });
                    let at = self.box_origin(map, at, None);
                    self.push(StmtOp::AddRows { map, at, tile, of: from });
                }
            }
            return Ok(());
        }
        if dims.len() == 2 {
            self.variable(value)?;
        }
        let value = self.expr(value)?;
        let to = self.stored_once(self.share(to, &dims), &dims);
        let (shape, m_tiles, n_tiles) = self.shape(&dims);
        let variable = self.plan.stored_elements(&value, shape);
        if self.kernel.tensor(tensor).direction == Direction::InOut {
            if self.exchange.loaded {
                self.push(StmtOp::Barrier);
            }
            self.exchange.stored = true;
        }
        self.push(StmtOp::Store { to, value, variable, shape, m_tiles, n_tiles });
        Ok(())
    }

    /// Adds each element of a tile to a place of its own.
    pub(super) fn scatter(&mut self, tensor: ParamId, at: &[ValueId], value: ValueId) -> Result<(), Error> {
        let dims = self.kernel.tile(value).dims.clone();
        let from = self.variable(value)?;
        let (origin, places) = self.elements(tensor, at)?;
        let place = places.into_iter().reduce(|sum, place| Expr::infix(Operator::Add, sum, place)).unwrap_or(Expr::Int(0));
        let present = dims.iter().map(|dim| self.present(dim)).collect::<Vec<_>>();
        let to = GlobalTile {
            tensor: self.kernel.params[tensor].name.clone(),
            elem: Elem::F32,
            origin,
            row_stride: Expr::Int(0),
            rows_present: present[0].clone(),
            column_stride: Expr::Int(0),
            columns_present: present.get(1).cloned().unwrap_or(Expr::Int(1)),
            columns_full: false,
        };
        let to = self.stored_once(self.share(to, &dims), &dims);
        self.push(StmtOp::Add { to, from, place: Some(place) });
        Ok(())
    }

    /// How many elements of the tile along a dimension exist, from its first on.
    fn present(&self, dim: &Dim) -> Expr {
        let axis = match dim {
            Dim::Range(len) => return Expr::Int(self.constant(len).into()),
            Dim::Axis(axis) => *axis,
        };
        let is_of_axis = |v: &&ValueId| *self.kernel.ty(**v) == Type::Coord(axis);
        let coordinate = *self.homes.keys().find(is_of_axis).expect("verified: a tile's axis has a coordinate in scope");
        let block = Expr::Int(self.block_size(axis).into());
        let start = Expr::infix(Operator::Mul, Expr::name(self.coordinate(coordinate)), block);
        Expr::infix(Operator::Sub, self.size(&self.kernel.axes[axis].extent), start)
    }

    /// The tile by way of which rows of a fragment are added, and the tensor map through which TMA
    /// does that, if it can.
    fn rows_to_add(&mut self, tensor: ParamId, at: &[At], to: &GlobalTile, from: VarId) -> Option<(TileId, usize)> {
        let v = &self.plan.variables[from];
        let groups = v.across.map_or(1, |warps| self.schedule.warps / warps);
        // Columns beyond the range are left out where the tensor ends there, as rows beyond it are.
        let is_range = to.columns_full && to.columns_present == Expr::Int(i64::from(8 * v.n_tiles * groups));
        let ends = is_range || self.is_end(tensor, at);
        let has_all = v.across.is_some() || self.share_begins(8 * v.n_tiles).is_none();
        let whole = ends && to.column_stride == Expr::Int(1) && has_all;
        let tiled = matches!(at.iter().find(|a| !matches!(a, At::Index(_))), Some(At::Tile(_)));
        if v.storage != Storage::Fragment(Shape::Accumulator) || !whole || !tiled || !(2..=5).contains(&at.len()) {
            return None;
        }
        let name = &self.kernel.params[tensor].name;
        if !self.is_specialized() || self.instance.alignment_of(name) < 16 {
            return None;
        }
        let (of_warp, columns) = (16 * v.m_tiles, 8 * v.n_tiles);
        // Columns of a box, 128 or 64 bytes.
        let slab = [32, 16].into_iter().find(|slab| columns.is_multiple_of(*slab))?;
        // Half a warp writes four rows at once. Where rows have four parts, each behind the other, the
        // swizzle puts two of these rows in the same banks.
        let woven = columns > slab && slab == 32 && !columns.is_multiple_of(4 * slab);
        let split = woven && at.len() <= 4 && self.is_whole_parts(tensor, at, slab);
        let map = match split {
            true => self.map_of_parts(tensor, at, [slab, columns / slab, of_warp], 4),
            false => self.map_of(tensor, at, [slab, of_warp], 4),
        };
        let rows = of_warp * self.schedule.warps;
        if let Some(&known) = self.tiles_to_add.get(&(rows, columns, split)) {
            return Some((known, map));
        }
        let name = self.unique(&format!("{}_rows", self.plan.variables[from].name));
        let tile = self.add_tile(name, Elem::F32, rows, columns, 1, true);
        let t = &mut self.plan.tiles[tile];
        (t.pitch, t.slabs, t.woven, t.layout) = (4 * slab, columns / slab, split, SharedLayout::Xor);
        self.tiles_to_add.insert((rows, columns, split), tile);
        Some((tile, map))
    }

    /// Whether the columns that are loaded or stored are the last ones of a tensor.
    pub(super) fn is_end(&self, tensor: ParamId, at: &[At]) -> bool {
        let extent = self.kernel.tensor(tensor).shape.last();
        matches!((at.last(), extent), (Some(At::Range { start, len }), Some(extent)) if start.add(len) == *extent)
    }

    /// Whether rows of a tensor are parts of so many columns, and what is loaded or stored of them
    /// begins at one.
    fn is_whole_parts(&self, tensor: ParamId, at: &[At], columns: u32) -> bool {
        let extent = self.kernel.tensor(tensor).shape.last().map(|extent| self.constant(extent));
        let is_multiple = |n: u32| n.is_multiple_of(columns);
        let begins = matches!(at.last(), Some(At::Range { start, .. }) if is_multiple(self.constant(start)));
        begins && extent.is_some_and(is_multiple)
    }

    /// A shared-memory ring for the tile of a load.
    pub(super) fn new_tile(&mut self, load: OpId, slots: u32) -> Result<TileId, Error> {
        let (tensor, at) = self.read_by(load);
        let result = self.kernel.ops[load].results[0];
        if matches!(at.last(), Some(At::Index(_))) {
            return Err(self.unsupported_but(result, STRIDED, APART));
        }
        let dims = self.dims_of(at);
        let elem = self.instance.binding.elem(self.kernel, self.kernel.tensor(tensor).elem);
        let wanted = self.kernel.values[result].name.clone().unwrap_or_else(|| self.kernel.params[tensor].name.clone());
        let name = self.unique(&format!("{wanted}_tile"));
        let (rows, columns) = (self.padded(&dims[0]), self.padded(&dims[1]));
        Ok(self.add_tile(name, elem, rows, columns, slots, false))
    }

    pub(super) fn add_tile(
        &mut self,
        name: String,
        elem: Elem,
        rows: u32,
        columns: u32,
        slots: u32,
        warp_private: bool,
    ) -> TileId {
        let layout = self.schedule.swizzle;
        let pitch = pitch(columns * elem.bytes().expect("bound: an element type in memory") as u32, layout);
        let (slabs, offset, barriers) = (1, 0, None);
        self.plan.tiles.push(SharedTile {
            name,
            elem,
            rows,
            columns,
            pitch,
            layout,
            slabs,
            woven: false,
            slots,
            offset,
            warp_private,
            barriers,
            exchange: None,
        });
        self.plan.tiles.len() - 1
    }

    /// Gives every tile its place, one after the other.
    pub(super) fn place_tiles(&mut self) {
        let mut at: u32 = 0;
        let specialized = self.is_specialized();
        for tile in &mut self.plan.tiles {
            // A swizzle repeats after eight rows.
            if specialized && tile.layout == SharedLayout::Xor {
                at = at.next_multiple_of(8 * tile.pitch);
            }
            tile.offset = at;
            at = (at + tile.slots * tile.slot_bytes()).next_multiple_of(128);
        }
        for tile in self.plan.tiles.iter_mut().filter(|t| t.ring_at().is_some()) {
            tile.barriers = Some(Barriers::At(at));
            at += 16 * tile.slots;
        }
        for tile in self.plan.tiles.iter_mut().filter(|t| t.exchange.is_some()) {
            tile.exchange = Some(at);
            at += 16 * tile.slots;
        }
        if self.plan.work == Persistent::Dynamic || self.plan.makes_again() {
            self.plan.work_ring = Some(at);
            at += self.plan.work_ring_bytes();
        }
        if let Some(meeting) = &mut self.plan.meeting {
            meeting.offset = at.next_multiple_of(128);
        }
    }

    pub(super) fn push_commit(&mut self) {
        if self.plan.is_asynchronous() {
            self.push(StmtOp::Commit);
        }
    }

    /// Waits for copies, if they are not done where they stand.
    pub(super) fn push_wait(&mut self, copies: Vec<Event>) {
        if self.plan.is_asynchronous() && !copies.is_empty() {
            self.push(StmtOp::Wait(copies));
        }
    }

    /// The copies outside loops that are not yet waited for. They are waited for now.
    pub(super) fn take_pending(&mut self) -> Vec<Event> {
        self.pending.drain(..).map(|pending| Event::Copied(pending.tile, Slot::Only)).collect()
    }

    /// Makes tiles copied outside loops visible to all warps.
    pub(super) fn acquire_pending(&mut self) {
        if !self.pending.is_empty() {
            self.acquire();
        }
    }

    /// Waits for the copies outside loops, and makes them visible to all warps.
    pub(super) fn acquire(&mut self) {
        let copies = self.take_pending();
        self.push_wait(copies);
        self.push(StmtOp::Barrier);
    }

    /// Whether the value is a tile that waits to be acquired.
    pub(super) fn is_pending(&self, tile: TileId) -> bool {
        self.landed.contains(&tile) || self.pending.iter().any(|p| p.tile == tile)
    }

    /// Length of the contraction between two operands whose inner dimension is `dim`.
    pub(super) fn depth(&self, dim: &Dim) -> u32 {
        self.padded(dim)
    }
}

/// Bytes from row to row of a tile with rows of `bytes`, under a layout.
///
/// A swizzle permutes the 16-byte chunks of a row within groups of 8 (or of all, if there are fewer: then a power of two), so
/// rows are whole groups. Padding makes the number of chunks odd, so that 8 rows at one column fall on all banks.
pub(crate) fn pitch(bytes: u32, layout: SharedLayout) -> u32 {
    let chunks = bytes.div_ceil(16);
    let chunks = match layout {
        SharedLayout::Plain => chunks,
        SharedLayout::Padded => chunks | 1,
        // Rows of elements of one byte may be a single chunk, which could not trade its place.
        SharedLayout::Xor if chunks < 8 => chunks.next_power_of_two().max(2),
        SharedLayout::Xor => chunks.next_multiple_of(8),
    };
    chunks * 16
}
