//! Matrix products and how their operands get where the instruction wants them.

use flashtile_dsl::ir::{Dim, Elem, Op, ValueId};

use super::computed;
use super::context::{Home, Lowering};
use super::row_warps;
use crate::arch::TensorOp;
use crate::error::Error;
use crate::plan::{Atom, Expr, FragmentLoads, OperandA, Shape, Slot, StmtOp, Storage, TileId, VarId, Variable};
use crate::schedule::Fragments;

impl Lowering<'_> {
    /// `result = a * b (+ acc)`.
    pub(super) fn dot(&mut self, result: ValueId, a: ValueId, b: ValueId, acc: Option<ValueId>) -> Result<(), Error> {
        let inner = self.kernel.tile(a).dims[1].clone();
        let depth = self.depth(&inner);
        let (b_tile, b_slot, k_major) = self.operand_b(b)?;
        let b_column = self.parts_at.get(&computed::untransposed(self.kernel, b).0).copied().unwrap_or(0);
        let is_across = self.classes.across.contains(&result);
        let (a, a_turned) = match self.loaded_turned(a) {
            _ if is_across => (self.turned_operand(a)?, true),
            Some(turned) => (turned, true),
            None => (self.operand_a(a)?, false),
        };
        self.acquire_operands(&a, b_tile);
        let to = match acc {
            None if is_across => self.destination_across(result, b_tile)?,
            None => self.destination(result),
            Some(start) => self.accumulator(result, start)?,
        };
        let atom = self.atom(k_major, self.is_last_product(result));
        self.push(StmtOp::Dot { acc: to, zero: acc.is_none(), a, a_turned, b: b_tile, b_slot, b_column, k_major, depth, atom });
        self.shares_begin_with_parts(to, b_tile, k_major)?;
        self.homes.insert(result, Home::Variable(to));
        Ok(())
    }

    /// A transposed tile in shared memory that warpgroups read by columns, each 64 of them: those that a
    /// swizzle of 128 bytes keeps together.
    fn loaded_turned(&self, a: ValueId) -> Option<OperandA> {
        let &Op::Transpose(loaded) = self.kernel.def(a)?.1 else { return None };
        let made = self.tile_of(loaded).filter(|made| !made.transposed && self.is_specialized())?;
        (self.plan.tiles[made.tile].pitch == 128).then_some(OperandA::Tile(made.tile, made.slot))
    }

    /// A computed tile that is read by columns: every warpgroup needs all rows of its columns, so it
    /// is staged.
    fn turned_operand(&mut self, a: ValueId) -> Result<OperandA, Error> {
        let (tile, _) = computed::untransposed(self.kernel, a);
        if !self.is_specialized() {
            let instead = "take tensor_op=wgmma (sm_90a), or sum over rows in a kernel of its own, which has them for \
                           columns; of a gradient, take --grad-form plain, which does so";
            return Err(self.unsupported_but(a, "a computed tile, transposed, as the left operand of dot", instead));
        }
        match self.homes.get(&tile) {
            Some(&Home::Variable(v)) if self.plan.variables[v].storage == Storage::Packed => {
                Ok(OperandA::Tile(self.stage_operand(tile, v), Slot::Only))
            }
            Some(&Home::Tile(staged)) => Ok(OperandA::Tile(staged, Slot::Only)),
            _ => Err(self.unsupported_but(
                a,
                "a computed f32 tile as the left operand of a tensor-core dot",
                "convert it to 16 bits, `.to::<T>()`",
            )),
        }
    }

    /// A fragment whose rows are columns of other fragments: as many warps as have 16 rows each
    /// share them, and the others have further columns of the right operand, as many as a swizzle
    /// keeps together. The last of them may have more than there are.
    fn destination_across(&mut self, result: ValueId, b: TileId) -> Result<VarId, Error> {
        if let Some(&v) = self.forced.get(&result) {
            return Ok(v);
        }
        let dims = self.kernel.tile(result).dims.clone();
        let (rows, columns, warps) = (self.padded(&dims[0]), self.padded(&dims[1]), self.schedule.warps);
        let row_warps = (rows / 16).min(warps);
        let groups = warps / row_warps.max(1);
        let whole = rows == 16 * row_warps && row_warps.is_multiple_of(4) && warps.is_multiple_of(row_warps);
        let part = self.plan.tiles[b].pitch.min(128) / 2;
        let share = if groups > 1 { columns.div_ceil(part * groups) * part } else { columns };
        let all_have_some = columns > share * (groups - 1);
        if !whole || !all_have_some || !self.widen(b, share * groups) {
            let what = format!("a product across the warps of {rows} rows and {columns} columns by {warps} warps");
            let advice = "take blocks of 64 rows for each 4 warps, or of 64 rows where each 4 warps get 64 columns";
            return Err(Error::unsupported(what, advice, self.span));
        }
        let name = self.value_name(result);
        let (storage, n_tiles) = (Storage::Fragment(Shape::Accumulator), share / 8);
        self.plan.variables.push(Variable {
            name,
            storage,
            m_tiles: 1,
            n_tiles,
            across: Some(row_warps),
            integer: false,
            bits: false,
        });
        Ok(self.plan.variables.len() - 1)
    }

    /// Gives a tile that TMA fills so many columns, and says whether it has them. Those behind its own
    /// are boxes more, of zeros beyond the tensor: what a product makes of them is added nowhere.
    fn widen(&mut self, tile: TileId, columns: u32) -> bool {
        let t = &mut self.plan.tiles[tile];
        let is_filled = t.barriers.is_some() && !t.is_narrow();
        if t.columns < columns && is_filled {
            (t.columns, t.slabs) = (columns, columns.div_ceil(t.pitch / 2));
        }
        t.columns >= columns
    }

    /// The instruction of a product, the last of a loop's body or not.
    fn atom(&self, k_major: bool, last: bool) -> Atom {
        let k = match self.schedule.tensor_op {
            TensorOp::Ffma => return Atom::Ffma,
            TensorOp::Wgmma => return Atom::Wgmma,
            TensorOp::MmaM16n8k8 => 8,
            TensorOp::MmaM16n8k16 => 16,
        };
        let b = match self.schedule.fragments {
            Fragments::Single => FragmentLoads::Single,
            Fragments::PairedKMajor if !k_major => FragmentLoads::Single,
            // Where the body ends, nothing else waits for the registers.
            Fragments::Preload if last => FragmentLoads::Preload,
            Fragments::Paired | Fragments::PairedKMajor | Fragments::Preload => FragmentLoads::Paired,
            Fragments::DoubleBuffer => FragmentLoads::DoubleBuffer,
        };
        Atom::Mma { k, b, batch_m: self.schedule.batch_m }
    }

    /// The variable the product is added to: that of the start value if nothing reads it afterwards, else a copy.
    fn accumulator(&mut self, result: ValueId, start: ValueId) -> Result<VarId, Error> {
        if let (Some(&Home::Variable(v)), None) = (self.homes.get(&start), self.forced.get(&result))
            && self.classes.users[&start].len() == 1
            && !self.is_block_param(start)
        {
            return Ok(v);
        }
        let value = self.expr(start)?;
        let to = self.destination(result);
        if value != self.element(to) {
            self.push(StmtOp::Map { to, value });
        }
        Ok(to)
    }

    fn is_block_param(&self, value: ValueId) -> bool {
        self.kernel.def(value).is_none()
    }

    fn acquire_operands(&mut self, a: &OperandA, b: TileId) {
        let waits = |tile: TileId| self.is_pending(tile);
        let needed = waits(b) || matches!(a, OperandA::Tile(tile, _) if waits(*tile));
        if needed {
            self.acquire();
        }
    }

    /// Whether no later product is in the same block.
    fn is_last_product(&self, result: ValueId) -> bool {
        let Some((op, _)) = self.kernel.def(result) else { return false };
        let block = self.kernel.blocks.values().find(|b| b.ops.contains(&op)).expect("the op is in a block");
        block.ops.iter().rev().find(|&&o| matches!(self.kernel.ops[o].op, Op::Dot { .. })) == Some(&op)
    }

    /// Tile, slot and whether it is read transposed.
    fn operand_b(&mut self, b: ValueId) -> Result<(TileId, Slot, bool), Error> {
        let (value, transposed) = computed::untransposed(self.kernel, b);
        match self.tile_of(value) {
            Some(made) => Ok((made.tile, made.slot, transposed != made.transposed)),
            None => match self.homes.get(&value) {
                Some(&Home::Variable(v)) if self.plan.variables[v].storage == Storage::Packed => {
                    Ok((self.stage_operand(value, v), Slot::Only, transposed))
                }
                Some(Home::Variable(_) | Home::Inline(_)) if !self.schedule.tensor_op.is_of_tensor_cores() => {
                    let from = self.variable(value)?;
                    Ok((self.stage_fragment(value, from), Slot::Only, transposed))
                }
                _ => Err(Error::unsupported(
                    "a computed right operand of dot that products do not have to themselves, in 16 bits",
                    "convert it for the product alone, `.to::<T>()`, or store the tile and load it in a kernel of its own",
                    self.span,
                )),
            },
        }
    }

    fn operand_a(&mut self, a: ValueId) -> Result<OperandA, Error> {
        if let Some((_, Op::Transpose(_))) = self.kernel.def(a) {
            let instead = match self.kernel.tile(a).dims.last() {
                // A product over the tiles of an axis reads them as they lie.
                Some(Dim::Range(length)) => {
                    let length = self.kernel.size_text(length);
                    format!("add up the product in a loop, `for j in tiles({length})`, which loads the tile of `j`")
                }
                _ => "store its tensor transposed in memory, rows of the product first, and load it without `.t()`".into(),
            };
            return Err(self.unsupported_but(a, "a transposed tile as the left operand of dot", &instead));
        }
        if let Some(made) = self.tile_of(a) {
            if made.transposed {
                return Err(Error::unsupported(
                    "a left operand of dot that is computed from transposed tiles",
                    "write the product transposed, with this operand on the right",
                    self.span,
                ));
            }
            return Ok(match self.fragments_of.get(&made.tile) {
                Some(&packed) => OperandA::Packed(packed),
                None => OperandA::Tile(made.tile, made.slot),
            });
        }
        match self.homes.get(&a).cloned() {
            Some(Home::Variable(v)) if self.plan.variables[v].storage == Storage::Packed => {
                if self.schedule.column_groups == 1 {
                    return Ok(OperandA::Packed(v));
                }
                Ok(OperandA::Tile(self.stage_operand(a, v), Slot::Only))
            }
            Some(Home::Variable(_) | Home::Inline(_)) if !self.schedule.tensor_op.is_of_tensor_cores() => self.stage(a),
            _ => {
                let what = "a computed f32 tile as the left operand of a tensor-core dot";
                Err(self.unsupported_but(a, what, "convert it to 16 bits, `.to::<T>()`"))
            }
        }
    }

    /// Writes a fragment to shared memory, where other lanes of the warp can read it, and the warps
    /// of other column groups that have its rows.
    fn stage(&mut self, a: ValueId) -> Result<OperandA, Error> {
        let from = self.variable(a)?;
        if self.schedule.column_groups > 1 {
            return Ok(OperandA::Tile(self.stage_fragment(a, from), Slot::Only));
        }
        let dims = self.kernel.tile(a).dims.clone();
        let (rows, columns) = (self.padded(&dims[0]), self.padded(&dims[1]));
        let wanted = format!("{}_tile", self.plan.variables[from].name);
        let tile = match self.plan.tiles.iter().position(|t| t.warp_private && t.rows == rows && t.columns == columns) {
            Some(tile) => tile,
            None => {
                let name = self.unique(&wanted);
                self.add_tile(name, Elem::F32, rows, columns, 1, true)
            }
        };
        self.push(StmtOp::Stage { tile, slot: Slot::Only, from, turned: false });
        Ok(OperandA::Tile(tile, Slot::Only))
    }

    /// Converts a fragment to a packed A operand.
    pub(super) fn pack(&mut self, result: ValueId, value: Expr) -> Result<(), Error> {
        let elem = self.instance.binding.elem(self.kernel, self.kernel.tile(result).elem);
        // What a step before has staged of it was of that step.
        self.made.remove(&result);
        if let Some(&to) = self.forced.get(&result) {
            self.push(StmtOp::Pack { to, elem, value });
            self.homes.insert(result, Home::Variable(to));
            return Ok(());
        }
        let dims = self.kernel.tile(result).dims.clone();
        let (_, m_tiles, n_tiles) = self.shape(&dims);
        let base = self.kernel.values[result].name.clone().unwrap_or_else(|| "operand".into());
        let name = self.unique(&format!("{base}_packed"));
        self.plan.variables.push(Variable {
            name,
            storage: Storage::Packed,
            m_tiles,
            n_tiles,
            across: None,
            integer: true,
            bits: false,
        });
        let to = self.plan.variables.len() - 1;
        self.push(StmtOp::Pack { to, elem, value });
        self.homes.insert(result, Home::Variable(to));
        Ok(())
    }

    /// Loads the fragments of a loop-invariant A operand into registers, once.
    pub(super) fn load_fragments(&mut self, tile: TileId) {
        let columns = self.plan.tiles[tile].columns;
        let to = self.load_columns(tile, 0, columns, "fragments");
        self.fragments_of.insert(tile, to);
    }

    /// Loads so many columns of an A operand, from one on, to registers, which are named so.
    pub(super) fn load_columns(&mut self, tile: TileId, column: u32, columns: u32, what: &str) -> VarId {
        let t = &self.plan.tiles[tile];
        let (m_tiles, n_tiles) = (t.rows / (16 * row_warps(self.schedule)), columns / 8);
        let name = t.name.trim_end_matches("_tile").to_owned();
        let name = self.unique(&format!("{name}_{what}"));
        self.plan.variables.push(Variable {
            name,
            storage: Storage::Packed,
            m_tiles,
            n_tiles,
            across: None,
            integer: true,
            bits: false,
        });
        let to = self.plan.variables.len() - 1;
        self.push(StmtOp::LoadFragments { to, tile, slot: Slot::Only, column });
        to
    }
}
