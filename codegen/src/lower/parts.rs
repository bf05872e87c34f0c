//! Loads of some columns of a tile that the same loop loads too: the values of MLA are the first
//! columns of its keys. One copy serves both, and a product reads the columns where they lie.

use flashtile_dsl::ir::{At, Op, OpId, SizeExpr, ValueId};

use super::context::Lowering;

/// Columns of 16 bits that lie together in a tile that TMA fills: an operand begins with the first
/// of so many.
const TOGETHER: i64 = 64;

impl Lowering<'_> {
    /// The load of which a load gives some columns, among `ops`, and the first of the columns.
    pub(super) fn part_of(&self, load: OpId, ops: &[OpId]) -> Option<(OpId, u32)> {
        if !self.is_only_right_operand(self.kernel.ops[load].results[0]) {
            return None;
        }
        let (start, len) = self.columns_of(load)?;
        let Op::Load { tensor, at } = &self.kernel.ops[load].op else { return None };
        let column_in = |base: OpId| -> Option<(i64, u32)> {
            let Op::Load { tensor: of, at: base_at } = &self.kernel.ops[base].op else { return None };
            let (base_start, base_len) = self.columns_of(base)?;
            let (from, end) = (start - base_start, start + len - base_start);
            let inside = from >= 0 && end <= base_len && len < base_len;
            let whole = from % TOGETHER == 0 && end % 16 == 0;
            let same = tensor == of && at[..at.len() - 1] == base_at[..at.len() - 1];
            (inside && whole && same).then(|| (base_len, u32::try_from(from).expect("not negative")))
        };
        // An operand that is computed from a tile may take its place.
        let stays = |base: &OpId| self.classes.shared_loads.contains(base) && !self.classes.computed.reads.contains_key(base);
        let bases = ops.iter().copied().filter(|base| *base != load && stays(base));
        // The widest is no part itself.
        let widest = bases.filter_map(|base| Some((column_in(base)?, base))).max_by_key(|((len, _), _)| *len);
        widest.map(|((_, column), base)| (base, column))
    }

    /// The first column of a load, and their number, if they are a range of known length.
    fn columns_of(&self, load: OpId) -> Option<(i64, i64)> {
        let Op::Load { at, .. } = &self.kernel.ops[load].op else { return None };
        let Some(At::Range { start, len }) = at.last() else { return None };
        let known = |size: &SizeExpr| self.instance.binding.size(self.kernel, size);
        Some((known(start)?, known(len)?))
    }

    /// Whether products read a value as their right operand, transposed or not, and nothing else
    /// reads it.
    fn is_only_right_operand(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        users.iter().all(|&user| match self.kernel.ops[user].op {
            Op::Transpose(_) => self.is_only_right_operand(self.kernel.ops[user].results[0]),
            Op::Dot { a, acc, .. } => a != value && acc != Some(value),
            _ => false,
        })
    }
}
