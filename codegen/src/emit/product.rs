//! Statements of matrix products: which fragments, from where, through which instruction.

use flashtile_templates::{DotFfma, DotMma, DotWgmma, LoadFragments, Stage, Wrapper, wgmma_name};

use super::writer::Writer;
use crate::error::Error;
use crate::plan::{Atom, FragmentLoads, OperandA, Slot, StmtOp, TileId, VarId};

impl Writer<'_> {
    /// Address of this warp's rows of a tile.
    pub(super) fn warp_rows(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        format!("{} + warp * {}", self.slot_address(tile, slot), t.rows / self.plan().computing_warps() * t.pitch)
    }

    pub(super) fn load_fragments(&mut self, to: VarId, tile: TileId, slot: Slot) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::Tile, Wrapper::LdmatrixX4]);
        let (v, t) = (&self.plan().variables[to], &self.plan().tiles[tile]);
        self.render(&LoadFragments {
            to: v.name.clone(),
            from: self.warp_rows(tile, slot),
            m_tiles: v.m_tiles,
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            lane_offset: format!("lane_rows_{}", t.pitch),
        })
    }

    pub(super) fn dot(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, b, b_slot, k_major, depth, atom } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let note = match a {
            OperandA::Tile(tile, _) => self.plan().tiles[*tile].name.clone(),
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
        self.wrappers.extend([Wrapper::Tile, Wrapper::Mma { shape, elem: tb.elem.name() }]);
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
        self.render(&DotMma {
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
            b: self.slot_address(*b, *b_slot),
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
            b_pitch: tb.pitch,
            b_swizzle: tb.swizzle(),
            k_major: *k_major,
        })
    }

    /// A product of a warpgroup.
    fn dot_wgmma(&mut self, op: &StmtOp, note: String) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, b, b_slot, k_major, depth, .. } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let (n, a_shared, elem) = (8 * v.n_tiles, matches!(a, OperandA::Tile(..)), tb.elem.name());
        self.wrappers.extend([Wrapper::Descriptor, Wrapper::WgmmaGroup]);
        self.wrappers.insert(Wrapper::Wgmma { n, a_shared, k_major: *k_major, elem });
        let (a_address, a_pitch, a_part) = match a {
            OperandA::Tile(tile, slot) => {
                // A warpgroup has 64 rows.
                let t = &self.plan().tiles[*tile];
                (format!("{} + group * {}", self.slot_address(*tile, *slot), 64 * t.pitch), t.pitch, t.rows * t.pitch)
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
            acc: v.name,
            k_tiles: depth / 16,
            product: wgmma_name(n, a_shared, *k_major),
            a_shared,
            a: a_address,
            a_pitch,
            a_part,
            a0,
            a1,
            a2,
            a3,
            b: self.slot_address(*b, *b_slot),
            b_pitch: tb.pitch,
            b_part: tb.rows * tb.pitch,
            k_major: *k_major,
        })
    }

    pub(super) fn stage(&mut self, tile: TileId, from: VarId) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Tile]);
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&Stage {
            to: self.slot_address(tile, Slot::Only),
            from: v.name.clone(),
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            row: "first_row".into(),
        })
    }
}
