//! Statements that move tiles: global to shared memory, global memory to registers and back.

use flashtile_dsl::ir::Elem;
use flashtile_templates::{
    AddAt, AddElements, AddRows, AddedPart, CopyTile, LoadFragment, LoadGlobal, LoadPairs, PutRows, StoreColumn, StoreElements,
    StoreFragment, StorePairs, StoreRow, When, Wrapper,
};

use super::expression::{Domain, element_text, text};
use super::writer::parenthesized;
use super::writer::{BODY, UNIFORM_WARP, Writer};
use crate::arch::CopyOp;
use crate::error::Error;
use crate::plan::{Expr, Function, GlobalTile, Param, Shape, Slot, StmtOp, Storage, TileId, VarId, Variable};

/// Row within the tile's origin.
fn row_text(domain: Domain) -> String {
    text(&Expr::RowPosition("first_row".into()), domain)
}

/// Column within the tile's origin.
fn column_text(domain: Domain) -> String {
    text(&Expr::ColumnPosition("first_column".into()), domain)
}

/// A value as it is stored.
fn narrowed(value: &Expr, elem: Elem) -> Expr {
    match elem {
        Elem::F16 => Expr::call(Function::NarrowF16, [value.clone()]),
        Elem::Bf16 => Expr::call(Function::NarrowBf16, [value.clone()]),
        _ => value.clone(),
    }
}

impl Writer<'_> {
    pub(super) fn copy(&mut self, tile: TileId, slot: Slot, from: &GlobalTile) -> Result<String, Error> {
        let (op, bytes) = (self.plan().copy, self.plan().copy_bytes);
        self.wrappers.extend([Wrapper::Integer, Wrapper::Tile]);
        match op {
            CopyOp::Sync => self.wrappers.extend([Wrapper::SharedAccess, Wrapper::CopySync { bytes }]),
            _ => self.wrappers.extend([Wrapper::CpAsync { bytes }, Wrapper::CopyCpAsync { bytes }]),
        }
        let t = self.plan().tiles[tile].clone();
        let context = CopyTile {
            rows: t.rows,
            columns: t.columns,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            to: self.slot_address(tile, slot),
            from: self.uniform(&from.origin),
            row_stride: self.uniform(&from.row_stride),
            rows_present: self.uniform(&from.rows_present),
            columns_present: self.uniform(&from.columns_present),
        };
        self.render(&context)
    }

    pub(super) fn load(&mut self, to: VarId, from: &GlobalTile) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::Widen);
        let v = self.plan().variables[to].clone();
        let elem = from.elem;
        let aligned = self.e.instance.alignment_of(&from.tensor);
        let contiguous = from.column_stride == Expr::Int(1);
        // A lane reads two rows of a column at once, or eight columns of a row.
        let turned = from.comes_in_pairs() && aligned >= 4;
        let whole = elem.bytes().is_some_and(|bytes| aligned as usize >= 8 * bytes);
        let function = match (elem.bytes(), whole) {
            _ if v.storage != Storage::Fragment(Shape::Accumulator) => None,
            _ if turned => Some(("load_turned", Wrapper::LoadTurned)),
            _ if !contiguous => None,
            (Some(2), true) => Some(("load_fragment", Wrapper::LoadQuad)),
            (Some(2), false) => Some(("load_shifted", Wrapper::LoadShifted)),
            (Some(1), true) if v.bits => Some(("load_bits", Wrapper::LoadBits)),
            (Some(1), false) if v.bits => Some(("load_bits_shifted", Wrapper::LoadBitsShifted)),
            (Some(1), true) => Some(("load_bytes", Wrapper::LoadBytes)),
            (Some(1), false) => Some(("load_bytes_shifted", Wrapper::LoadBytesShifted)),
            _ => None,
        };
        if let Some((function, wrapper)) = function {
            self.wrappers.extend([Wrapper::WidenPair, wrapper]);
            self.wrappers.extend(v.bits.then_some(Wrapper::TruthBits));
            self.wrappers.extend(turned.then_some(Wrapper::Movmatrix));
            let base = match turned || whole {
                true => String::new(),
                false => self.uniform(&Expr::Param(Param::Address(from.tensor.clone()))),
            };
            let stride = if turned { &from.column_stride } else { &from.row_stride };
            let fragment = LoadFragment {
                function,
                to: v.name.clone(),
                base,
                from: self.uniform(&from.origin),
                m_tiles: v.m_tiles,
                n_tiles: v.n_tiles,
                stride: self.uniform(stride),
                first_row: "first_row".into(),
                rows_present: self.uniform(&from.rows_present),
                columns_present: self.uniform(&from.columns_present),
            };
            return self.render(&fragment);
        }
        let of_f32 = elem == Elem::F32 && v.storage == Storage::Fragment(Shape::Accumulator);
        if of_f32 && contiguous && from.columns_full && aligned >= 8 {
            let pairs = LoadPairs {
                to: v.name.clone(),
                m_tiles: v.m_tiles,
                n_tiles: v.n_tiles,
                row: row_text(Domain::Pair(0)),
                column: column_text(Domain::Pair(0)),
                from: parenthesized(&self.uniform(&from.origin)),
                row_stride: self.uniform(&from.row_stride),
                rows_present: self.uniform(&from.rows_present),
            };
            return self.render(&pairs);
        }
        self.load_elements(to, from)
    }

    /// Elements from column to column; nothing where columns follow each other.
    fn column_stride(&mut self, of: &GlobalTile) -> String {
        if of.column_stride == Expr::Int(1) { String::new() } else { self.uniform(&of.column_stride) }
    }

    /// Element by element.
    fn load_elements(&mut self, to: VarId, from: &GlobalTile) -> Result<String, Error> {
        let v = self.plan().variables[to].clone();
        let domain = Domain::of_variable(&v);
        if v.storage == Storage::Lanes {
            let context = LoadGlobal {
                each: self.each(to, domain),
                to: format!("{}[vector_part][e]", v.name),
                rank: 1,
                row: "64 * vector_part + 2 * lane + e".into(),
                column: String::new(),
                from: parenthesized(&self.uniform(&from.origin)),
                row_stride: self.uniform(&from.row_stride),
                column_stride: String::new(),
                rows_present: self.uniform(&from.rows_present),
                columns_present: self.uniform(&from.columns_present),
            };
            return self.render(&context);
        }
        let Storage::Fragment(shape) = v.storage else { unreachable!("loads write fragments") };
        let (rank, row, column) = match shape {
            Shape::Accumulator => (2, row_text(domain), column_text(domain)),
            Shape::Row => (1, row_text(domain), String::new()),
            Shape::Column => (1, column_text(domain), String::new()),
            Shape::Uniform => unreachable!("scalars are read by a let"),
        };
        let column_stride = self.column_stride(from);
        let context = LoadGlobal {
            each: self.each(to, domain),
            to: element_text(&self.name(to), shape, domain),
            rank,
            row,
            column,
            from: parenthesized(&self.uniform(&from.origin)),
            row_stride: self.uniform(&from.row_stride),
            column_stride,
            rows_present: self.uniform(&from.rows_present),
            columns_present: self.uniform(&from.columns_present),
        };
        self.render(&context)
    }

    /// Adds a fragment to a tile of a tensor.
    pub(super) fn add(&mut self, to: &GlobalTile, from: VarId) -> Result<String, Error> {
        let v = self.plan().variables[from].clone();
        self.wrappers.insert(Wrapper::RedAdd);
        match v.storage {
            Storage::Fragment(shape @ Shape::Row) => {
                return self.store_row(to, v.m_tiles, &Expr::Element(v.name, shape), true);
            }
            Storage::Fragment(shape @ Shape::Column) => {
                return self.store_column(to, v.n_tiles, &Expr::Element(v.name, shape), true);
            }
            _ => {}
        }
        let column_stride = self.column_stride(to);
        let (row, column) = match v.across {
            None => (row_text(Domain::Accumulator), column_text(Domain::Accumulator)),
            Some(warps) => {
                // The warps that share rows, then those that have further columns.
                let first_row = format!("warp % {warps} * {} + lane / 4", 16 * v.m_tiles);
                let row = text(&Expr::RowPosition(first_row), Domain::Accumulator);
                let first_column = format!("warp / {warps} * {} + first_column", 8 * v.n_tiles);
                (row, text(&Expr::ColumnPosition(first_column), Domain::Accumulator))
            }
        };
        let context = AddElements {
            to: parenthesized(&self.uniform(&to.origin)),
            from: v.name,
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            row_stride: self.uniform(&to.row_stride),
            row,
            column,
            column_stride,
            rows_present: self.uniform(&to.rows_present),
            columns_present: self.uniform(&to.columns_present),
        };
        self.render(&context)
    }

    /// Adds each element of a fragment to a place of its own.
    pub(super) fn add_at(&mut self, to: &GlobalTile, place: &Expr, from: VarId) -> Result<String, Error> {
        let v = self.plan().variables[from].clone();
        self.wrappers.extend([Wrapper::RedAdd, Wrapper::RedAddRun]);
        let Storage::Fragment(shape) = v.storage else { unreachable!("verified: a fragment is added") };
        let domain = Domain::of(shape);
        let (rows, columns) = (self.bound(&to.rows_present), self.bound(&to.columns_present));
        let (each, of_thread, positions, present) = match shape {
            Shape::Accumulator => (
                // Elements of one row follow each other: what goes to one place is summed first.
                format!("EACH(mt, {}) EACH(r, 2) EACH(nt, {}) EACH(odd, 2)", v.m_tiles, v.n_tiles),
                String::new(),
                format!("e = 2 * r + odd, row = {}, column = {}", row_text(domain), column_text(domain)),
                format!("row < {rows} && column < {columns}"),
            ),
            Shape::Row => (
                self.each(from, domain),
                format!("{}lane % 4 == 0 && ", self.first_group()),
                format!("row = {}", row_text(domain)),
                format!("row < {rows}"),
            ),
            Shape::Column => (
                self.each(from, domain),
                format!("{} && lane < 4 && ", self.first_warp()),
                format!("column = {}", column_text(domain)),
                format!("column < {rows}"),
            ),
            Shape::Uniform => unreachable!("verified: a fragment with rows or columns"),
        };
        let context = AddAt {
            each,
            positions,
            present: format!("{of_thread}{present}"),
            to: parenthesized(&self.uniform(&to.origin)),
            place: self.text(place, domain),
            from: element_text(&v.name, shape, domain),
        };
        self.render(&context)
    }

    /// Where the rows of a warp begin in a tile; `warp` is the name of its number.
    fn rows_of(&self, warp: &str, tile: TileId, v: &Variable) -> String {
        let t = &self.plan().tiles[tile];
        let row = t.pitch * if t.woven { t.slabs } else { 1 };
        format!("{} + {warp} * {}", self.slot_address(tile, Slot::Only), 16 * v.m_tiles * row)
    }

    pub(super) fn put_rows(&mut self, tile: TileId, from: VarId) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::BulkGroup, Wrapper::Tile]);
        let (v, t) = (self.plan().variables[from].clone(), self.plan().tiles[tile].clone());
        let to = self.rows_of("warp", tile, &v);
        let slab = t.pitch / 32;
        // Half a warp writes 8 columns of four rows at once. A swizzle over 128 bytes puts those of
        // two rows that follow each other in the same banks, one over 64 bytes those of the first
        // and the third.
        let (rows_apart, apart) = if slab == 4 { (4, 2) } else { (8, 1) };
        let slab_bytes = t.rows * t.pitch;
        // The number of a row is that of a lane's first one and a part, bit by bit, and so is what its
        // swizzle takes of it.
        let one_address = t.woven && t.pitch == 128 && t.slabs == 2;
        self.wrappers.extend(one_address.then_some(Wrapper::Mov));
        self.render(&PutRows {
            parts: if t.woven { t.slabs } else { 0 },
            one_address,
            to,
            from: v.name,
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            pitch: t.pitch,
            slab,
            slab_bytes,
            rows_apart,
            apart,
        })
    }

    pub(super) fn add_rows(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::AddRows { map, at, tile, of } = op else { unreachable!("rows to add") };
        self.wrappers.extend([Wrapper::BulkGroup, Wrapper::ProxyFence, Wrapper::TmaReduce { rank: at.len() as u32 }]);
        let (v, t) = (self.plan().variables[*of].clone(), self.plan().tiles[*tile].clone());
        let (rows, columns) = (16 * v.m_tiles, 8 * v.n_tiles);
        // A box of a split row begins at its part, and has all columns of that.
        let (begin, at) = if t.woven { ("0, ", &at[1..]) } else { ("", &at[..]) };
        let (first, first_row) = (self.uniform(&at[0]), self.uniform(&at[1]));
        let own_rows = match v.across {
            None => format!("{UNIFORM_WARP} * {rows}"),
            Some(warps) => format!("{UNIFORM_WARP} % {warps} * {rows}"),
        };
        // Of warps that share rows each has so many columns, or parts, as lie behind those of others.
        let column = |width: u32, further: Option<u32>| {
            let own = v.across.map(|warps| format!("{UNIFORM_WARP} / {warps} * {width}"));
            format!("{begin}{}", sum_of([Some(first.clone()), own, further.map(|n| n.to_string())]))
        };
        let part = |n: u32| AddedPart { offset: n * t.rows * t.pitch, column: column(columns, Some(n * t.pitch / 4)) };
        let context = AddRows {
            from: self.rows_of(UNIFORM_WARP, *tile, &v),
            map: self.plan().maps[*map].name.clone(),
            parts: match t.woven {
                true => vec![AddedPart { offset: 0, column: column(t.slabs, None) }],
                false => (0..t.slabs).map(part).collect(),
            },
            row: sum_of([Some(first_row), Some(own_rows), None]),
            others: at[2..].iter().map(|e| format!(", {}", self.uniform(e))).collect(),
        };
        self.render(&context)
    }

    /// The condition, with what joins it to another one, of the first of the groups that have rows
    /// in common.
    fn first_group(&self) -> &'static str {
        if self.plan().column_groups == 1 { "" } else { "column_group == 0 && " }
    }

    /// The condition of the first of the warps that have columns in common.
    fn first_warp(&self) -> String {
        match self.plan().column_groups {
            1 => "warp == 0".into(),
            _ => format!("warp % {} == 0", self.plan().row_warps()),
        }
    }

    /// Stores a vector along rows, or adds it to what is there.
    fn store_row(&mut self, to: &GlobalTile, m_tiles: u32, value: &Expr, adds: bool) -> Result<String, Error> {
        let context = StoreRow {
            to: parenthesized(&self.uniform(&to.origin)),
            m_tiles,
            row_stride: self.uniform(&to.row_stride),
            row: row_text(Domain::Row),
            rows_present: self.bound(&to.rows_present),
            value: self.text(value, Domain::Row),
            once: self.first_group(),
            adds,
        };
        self.render(&context)
    }

    /// The same of a vector along columns, which all warps that share rows have.
    fn store_column(&mut self, to: &GlobalTile, n_tiles: u32, value: &Expr, adds: bool) -> Result<String, Error> {
        let context = StoreColumn {
            to: parenthesized(&self.uniform(&to.origin)),
            n_tiles,
            column_stride: self.uniform(&to.row_stride),
            column: column_text(Domain::Column),
            columns_present: self.bound(&to.rows_present),
            value: self.text(value, Domain::Column),
            first_warp: self.first_warp(),
            adds,
        };
        self.render(&context)
    }

    /// What a row is compared with.
    fn bound(&mut self, e: &Expr) -> String {
        let text = self.uniform(e);
        if matches!(e, Expr::Select(..)) { format!("({text})") } else { text }
    }

    pub(super) fn store(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Store { to, value, variable, shape, m_tiles, n_tiles } = op else { unreachable!("a store") };
        let elem = to.elem;
        let origin = self.uniform(&to.origin);
        let row_stride = self.uniform(&to.row_stride);
        let rows_present = self.bound(&to.rows_present);
        let columns_present = self.uniform(&to.columns_present);
        let column_stride = self.column_stride(to);
        let aligned = self.e.instance.alignment_of(&to.tensor);
        let contiguous = *shape == Shape::Accumulator && to.column_stride == Expr::Int(1);
        let quad = contiguous && matches!(elem, Elem::F16 | Elem::Bf16) && aligned == 16;
        if let (true, Some(v)) = (quad, variable) {
            let pack = self.pack_wrapper(elem);
            let suffix = self.suffix(elem);
            self.wrappers.extend([Wrapper::StGlobal, Wrapper::StoreQuad { pack, suffix }]);
            return self.render(&StoreFragment {
                suffix,
                to: origin,
                from: self.name(*v),
                m_tiles: *m_tiles,
                n_tiles: *n_tiles,
                row_stride,
                first_row: "first_row".into(),
                rows_present,
                // A constant, so that no column is tested where all exist.
                columns_present: if to.columns_full { (8 * n_tiles).to_string() } else { columns_present },
            });
        }
        let narrowed = narrowed(value, elem);
        let origin = parenthesized(&origin);
        let pairs = contiguous && elem == Elem::F32 && to.columns_full && aligned >= 8;
        match shape {
            Shape::Accumulator if pairs => {
                let [first, second] = [0, 1].map(|element| self.text(&narrowed, Domain::Pair(element)));
                self.render(&StorePairs {
                    to: origin,
                    m_tiles: *m_tiles,
                    n_tiles: *n_tiles,
                    row: row_text(Domain::Pair(0)),
                    column: column_text(Domain::Pair(0)),
                    row_stride,
                    rows_present,
                    first,
                    second,
                })
            }
            Shape::Accumulator => {
                let value = self.text(&narrowed, Domain::Accumulator);
                self.render(&StoreElements {
                    to: origin,
                    m_tiles: *m_tiles,
                    n_tiles: *n_tiles,
                    row_stride,
                    row: row_text(Domain::Accumulator),
                    column: column_text(Domain::Accumulator),
                    column_stride,
                    rows_present,
                    columns_present,
                    value,
                })
            }
            Shape::Row => self.store_row(to, *m_tiles, &narrowed, false),
            Shape::Column => self.store_column(to, *n_tiles, &narrowed, false),
            Shape::Uniform => {
                let value = self.uniform(&narrowed);
                self.depth += 1;
                let body = self.render(&flashtile_templates::Assign { name: format!("*{origin}"), value });
                self.depth -= 1;
                self.nested(&When { condition: "warp == 0 && lane == 0".into(), rare: false, body: BODY.into() }, body?)
            }
        }
    }
}

/// The sum of a first term, which may be 0, and others.
fn sum_of<const N: usize>(terms: [Option<String>; N]) -> String {
    let mut terms: Vec<String> = terms.into_iter().flatten().collect();
    if terms.len() > 1 && terms[0] == "0" {
        terms.remove(0);
    }
    terms.join(" + ")
}
