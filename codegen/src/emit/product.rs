//! Statements of matrix products: which fragments, from where, through which instruction.

use std::collections::BTreeSet;

use flashtile_dsl::ir::ReduceOp;
use flashtile_templates::{
    DotFfma, DotMma, DotWgmma, LoadFragments, Merge, Publish, ReadRows, Stage, StagePacked, StageTurned, Wrapper, wgmma_name,
};

use super::writer::Writer;
use crate::arch::WARPGROUP;
use crate::error::Error;
use crate::plan::{Atom, FragmentLoads, OperandA, SharedTile, Slot, StmtOp, Storage, TileId, VarId, Variable, each};

impl Writer<'_> {
    /// Address of this warp's rows of a tile.
    pub(super) fn warp_rows(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        let (row_warps, address) = (self.plan().row_warps(), self.slot_address(tile, slot));
        let bytes = t.rows / row_warps * t.pitch;
        match self.plan().column_groups {
            1 => format!("{address} + warp * {bytes}"),
            _ => format!("{address} + warp % {row_warps} * {bytes}"),
        }
    }

    pub(super) fn load_fragments(&mut self, to: VarId, tile: TileId, slot: Slot, column: u32) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::Tile, Wrapper::LdmatrixX4]);
        let (v, t) = (&self.plan().variables[to], &self.plan().tiles[tile]);
        let from = self.warp_rows(tile, slot);
        self.render(&LoadFragments {
            to: v.name.clone(),
            from: if column > 0 { format!("{from} + {}", self.bytes_before(tile, column)) } else { from },
            m_tiles: v.m_tiles,
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            lane_offset: format!("lane_rows_{}", t.pitch),
            // Steps of 16 columns that a slab has.
            slab: if t.slabs > 1 { t.pitch / 32 } else { 0 },
            slab_bytes: t.rows * t.pitch,
            together: self.plan().is_specialized(),
        })
    }

    pub(super) fn read_rows(&mut self, to: VarId, tile: TileId, slot: Slot, turned: bool) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::Tile, Wrapper::LdmatrixX4, Wrapper::Widen, Wrapper::WidenPair]);
        let (v, t) = (&self.plan().variables[to], &self.plan().tiles[tile]);
        self.render(&ReadRows {
            turned,
            to: v.name.clone(),
            from: if turned { self.slot_address(tile, slot) } else { self.warp_rows(tile, slot) },
            m_tiles: v.m_tiles,
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            lane_offset: format!("lane_rows_{}", t.pitch),
            slab: t.pitch / 32,
            slab_bytes: t.rows * t.pitch,
            elem: t.elem.name().into(),
        })
    }

    pub(super) fn dot(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, a_turned, b, b_slot, b_column, k_major, depth, atom } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let note = match a {
            OperandA::Tile(tile, _) => format!("{}{}", self.plan().tiles[*tile].name, if *a_turned { "^T" } else { "" }),
            OperandA::Packed(p) => self.name(*p),
        };
        let note =
            format!("{} {} {note} * {}{}", v.name, if *zero { "=" } else { "+=" }, tb.name, if *k_major { "^T" } else { "" });
        let (k, fragments, batch_m) = match *atom {
            Atom::Wgmma => return self.dot_wgmma(op, note),
            Atom::Ffma => return self.dot_ffma(op, note),
            Atom::Mma { k, b, batch_m } => (k, b, batch_m),
        };
        let shape = if k == 8 { "m16n8k8" } else { "m16n8k16" };
        let suffix = self.suffix(tb.elem);
        self.wrappers.extend([Wrapper::Tile, Wrapper::Mma { shape, elem: tb.elem.name(), suffix }]);
        let single = fragments == FragmentLoads::Single;
        let width = if single { "x2" } else { "x4" };
        self.wrappers.insert(if single { Wrapper::LdmatrixX2 } else { Wrapper::LdmatrixX4 });
        let register = |n: usize| match a {
            OperandA::Packed(p) => format!("{}[mt][2 * kt + {}][{}]", self.name(*p), n / 2, n % 2).replace(" + 0]", "]"),
            OperandA::Tile(..) => format!("a[{}][{n}]", if batch_m { "mt" } else { "0" }),
        };
        let registers = [0, 1, 2, 3].map(register);
        let (a_address, a_pitch, a_swizzle) = match a {
            OperandA::Tile(tile, slot) => {
                let t = &self.plan().tiles[*tile];
                (self.warp_rows(*tile, *slot), t.pitch, t.swizzle())
            }
            OperandA::Packed(_) => (String::new(), 0, 0),
        };
        if matches!(a, OperandA::Tile(..)) {
            self.wrappers.insert(Wrapper::LdmatrixX4);
        }
        let [a0, a1, a2, a3] = registers;
        let operand = (*b, *b_slot, *b_column);
        // Within columns that lie together chunks are counted from the first one of the tile.
        let (b_address, b_chunk) = if !*k_major && self.begins_within_part(&v, &tb) {
            (self.part_of_tile(operand), self.before_share(v.n_tiles))
        } else {
            (self.operand_b(&v, operand, 8 * v.n_tiles, *k_major), String::new())
        };
        self.render(&DotMma {
            suffix,
            note,
            zero: *zero,
            acc: v.name,
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            k_tiles: depth / 16,
            a_shared: matches!(a, OperandA::Tile(..)),
            a: a_address,
            a_pitch,
            a_swizzle,
            a_lane: format!("lane_rows_{a_pitch}"),
            a0,
            a1,
            a2,
            a3,
            b: b_address,
            b_chunk,
            b_pitch: tb.pitch,
            b_swizzle: tb.swizzle(),
            b_lane: format!("lane_{}_{}", if *k_major { "pairs" } else { "rows" }, tb.pitch),
            k_major: *k_major,
            load_b: format!("ldmatrix_{width}{}", if *k_major { "" } else { "_trans" }),
            fragments: fragments.name(),
            batch_m,
        })
    }

    /// A product by multiply-adds.
    fn dot_ffma(&mut self, op: &StmtOp, note: String) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, b, b_slot, k_major, depth, .. } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let OperandA::Tile(tile, slot) = a else { unreachable!("the scalar path stages A in shared memory") };
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Tile]);
        let ta = self.plan().tiles[*tile].clone();
        self.render(&DotFfma {
            note,
            zero: *zero,
            acc: v.name,
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            depth: *depth,
            a: self.slot_address(*tile, *slot),
            a_pitch: ta.pitch,
            a_swizzle: ta.swizzle(),
            a_row: "first_row".into(),
            b: self.slot_address(*b, *b_slot),
            b_row: self.before_share(8 * v.n_tiles),
            // A chunk has four columns.
            b_chunk: self.before_share(2 * v.n_tiles),
            b_pitch: tb.pitch,
            b_swizzle: tb.swizzle(),
            k_major: *k_major,
        })
    }

    /// A product of a warpgroup.
    fn dot_wgmma(&mut self, op: &StmtOp, note: String) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, a_turned, b, b_slot, b_column, k_major, depth, .. } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let row_groups = self.plan().row_warps_of(&v) / WARPGROUP;
        let (n, a_shared, elem) = (8 * v.n_tiles, matches!(a, OperandA::Tile(..)), tb.elem.name());
        self.wrappers.extend([Wrapper::Descriptor, Wrapper::WgmmaGroup]);
        let anew = self.descriptors_are_many();
        self.wrappers.extend(anew.then_some(Wrapper::Mov));
        let made = |address: String| if anew { format!("mov({address})") } else { address };
        let suffix = self.suffix(tb.elem);
        self.wrappers.insert(Wrapper::Wgmma { n, a_shared, a_turned: *a_turned, k_major: *k_major, elem, suffix });
        let (a_address, a_pitch, a_part) = match a {
            OperandA::Tile(tile, slot) => {
                // A warpgroup has 64 rows of the product: rows of the tile, or one of its slabs.
                let t = &self.plan().tiles[*tile];
                let bytes = if *a_turned { t.rows * t.pitch } else { 64 * t.pitch };
                let slot = self.slot_address(*tile, *slot);
                let address = match (self.plan().computing_warps() / WARPGROUP / row_groups, row_groups) {
                    (1, _) => format!("{slot} + group * {bytes}"),
                    (_, 1) => slot,
                    (_, groups) => format!("{slot} + group % {groups} * {bytes}"),
                };
                (address, t.pitch, t.rows * t.pitch)
            }
            OperandA::Packed(_) => (String::new(), 0, 0),
        };
        let register = |n: usize| match a {
            OperandA::Packed(p) => format!("{}[0][2 * kt + {}][{}]", self.name(*p), n / 2, n % 2).replace(" + 0]", "]"),
            OperandA::Tile(..) => String::new(),
        };
        let [a0, a1, a2, a3] = [0, 1, 2, 3].map(register);
        self.render(&DotWgmma {
            note,
            zero: *zero,
            acc: v.name.clone(),
            k_tiles: depth / 16,
            product: wgmma_name(n, (a_shared, *a_turned), *k_major, suffix),
            a_shared,
            a_turned: *a_turned,
            a: made(a_address),
            a_pitch,
            a_part,
            a0,
            a1,
            a2,
            a3,
            b: made(self.operand_b(&v, (*b, *b_slot, *b_column), n, *k_major)),
            b_pitch: tb.pitch,
            b_part: if tb.is_read_twice() { 0 } else { tb.rows * tb.pitch },
            k_major: *k_major,
        })
    }

    /// Whether the products of the plan have more descriptors than uniform registers hold: three
    /// right operands or more. Where these are kept from step to step, ptxas 13.0 spills them, so that
    /// each product makes its own.
    fn descriptors_are_many(&self) -> bool {
        let mut operands = BTreeSet::new();
        for role in &self.plan().roles {
            each(&role.body, &mut |op| {
                if let StmtOp::Dot { b, k_major, .. } = op {
                    operands.insert((*b, *k_major));
                }
            });
        }
        operands.len() > 2
    }

    /// What numbers in the share of a column group are counted from, where each group has so many: a
    /// first term, or nothing where there is one group.
    fn before_share(&self, each: u32) -> String {
        if self.plan().column_groups == 1 { String::new() } else { format!("column_group * {each} + ") }
    }

    /// Whether the columns of a group begin between columns of a tile that a swizzle keeps together.
    fn begins_within_part(&self, acc: &Variable, of: &SharedTile) -> bool {
        let share_bytes = 16 * acc.n_tiles;
        self.plan().column_groups > 1 && of.swizzle() == 1 && !share_bytes.is_multiple_of(of.pitch.min(128))
    }

    /// Where the columns of a part of a tile begin.
    fn part_of_tile(&self, (tile, slot, column): (TileId, Slot, u32)) -> String {
        let address = self.slot_address(tile, slot);
        if column > 0 { format!("{address} + {}", self.bytes_before(tile, column)) } else { address }
    }

    /// Bytes before a column of 16 bits of a tile; one that TMA fills has them in slabs.
    fn bytes_before(&self, tile: TileId, column: u32) -> u32 {
        let t = &self.plan().tiles[tile];
        match t.slabs {
            1 => 2 * column,
            _ => column / (t.pitch / 2) * t.rows * t.pitch + column % (t.pitch / 2) * 2,
        }
    }

    /// Where a right operand begins in its tile: at the columns of a part, and at the columns of
    /// the product that the group has, `n` of them.
    fn operand_b(&self, acc: &Variable, operand: (TileId, Slot, u32), n: u32, k_major: bool) -> String {
        let mut address = self.part_of_tile(operand);
        let tile = operand.0;
        let share = if k_major { n * self.plan().tiles[tile].pitch } else { self.bytes_before(tile, n) };
        match acc.across {
            Some(warps) if warps < self.plan().computing_warps() => {
                address += &format!(" + group / {} * {share}", warps / WARPGROUP);
            }
            None if self.plan().column_groups > 1 => address += &format!(" + column_group * {share}"),
            _ => {}
        }
        address
    }

    /// An operand of products across the warps, the rows of each warp as columns of the tile.
    pub(super) fn stage_turned(&mut self, tile: TileId, slot: Slot, from: VarId) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::Tile, Wrapper::StmatrixX4 { turned: true }, Wrapper::ProxyFence]);
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&StageTurned {
            to: self.slot_address(tile, slot),
            from: v.name.clone(),
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            part: t.rows * t.pitch,
            columns: t.pitch / 2,
        })
    }

    /// The share of a column group of an operand of products.
    fn stage_packed(&mut self, tile: TileId, slot: Slot, from: VarId) -> Result<String, Error> {
        let asynchronous = self.plan().is_specialized();
        let fast = self.e.arch.capability >= (9, 0);
        self.wrappers.extend([Wrapper::Tile, if fast { Wrapper::StmatrixX4 { turned: false } } else { Wrapper::SharedAccess }]);
        self.wrappers.extend(asynchronous.then_some(Wrapper::ProxyFence));
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&StagePacked {
            to: self.slot_address(tile, slot),
            from: v.name.clone(),
            m_tiles: v.m_tiles,
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            part: t.rows * t.pitch,
            row: if fast { "first_row - lane / 4 + lane % 16" } else { "first_row" }.into(),
            chunk: match (self.plan().column_groups, fast) {
                (1, true) => "lane / 16".into(),
                (1, false) => "0".into(),
                (_, fast) => format!("column_group * {}{}", v.n_tiles, if fast { " + lane / 16" } else { "" }),
            },
            fast,
            asynchronous,
            // Chunks of a slab, or of a whole row.
            chunks: if t.slabs > 1 { t.pitch / 16 } else { t.columns / 8 },
        })
    }

    pub(super) fn publish(&mut self, tile: TileId, from: VarId) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::SharedAccess);
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&Publish {
            to: format!("{} + column_group * 4", self.slot_address(tile, Slot::Only)),
            from: v.name.clone(),
            m_tiles: v.m_tiles,
            pitch: t.pitch,
            row: "first_row".into(),
        })
    }

    pub(super) fn merge(&mut self, to: VarId, tile: TileId, operation: ReduceOp) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Fmax]);
        let (v, t) = (&self.plan().variables[to], &self.plan().tiles[tile]);
        self.render(&Merge {
            to: v.name.clone(),
            from: self.slot_address(tile, Slot::Only),
            m_tiles: v.m_tiles,
            pitch: t.pitch,
            row: "first_row".into(),
            groups: self.plan().column_groups,
            operation: if operation == ReduceOp::Max { "max" } else { "sum" },
        })
    }

    pub(super) fn stage(&mut self, tile: TileId, slot: Slot, from: VarId) -> Result<String, Error> {
        if self.plan().variables[from].storage == Storage::Packed {
            return self.stage_packed(tile, slot, from);
        }
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Tile]);
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&Stage {
            to: self.slot_address(tile, slot),
            from: v.name.clone(),
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            row: "first_row".into(),
            // A chunk has four columns.
            chunk: self.before_share(2 * v.n_tiles),
        })
    }
}
