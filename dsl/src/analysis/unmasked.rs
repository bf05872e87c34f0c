//! Conditions on positions that a kernel's author writes as numbers: `s + select(keep, 0.0, -INF)`,
//! and `select(keep, x, 0.0)` on its way to a product. Neither is a mask: what is added to may be
//! NaN or `INF`, and 0 times what is loaded may be NaN.

use std::collections::HashSet;

use super::predicate::Walk;
use super::streaming::constant_fill;
use crate::ir::{BinaryOp, BlockId, Op, OpId, ValueId};

/// Why a choice between numbers is no mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unmasked {
    /// 0 or a large negative number, which is added to something.
    Added,
    /// 0 where a condition does not hold, which a product takes.
    Multiplied,
    /// A large negative number where a condition does not hold, which is finite.
    Finite,
}

/// Numbers at or below this are added to scores to hide them.
const HIDES: f64 = -1e4;

impl Walk<'_> {
    /// Choices of a loop's body whose conditions hold in some tiles alone, and that are no masks:
    /// of the ops that are not `counted` as such.
    pub(super) fn unmasked(&self, body: BlockId, counted: &[OpId]) -> Vec<(OpId, Unmasked)> {
        let ops = &self.kernel.blocks[body].ops;
        ops.iter().filter(|op| !counted.contains(op)).filter_map(|&op| Some((op, self.why_unmasked(ops, op)?))).collect()
    }

    fn why_unmasked(&self, ops: &[OpId], op: OpId) -> Option<Unmasked> {
        let Op::Select { cond, on_true, on_false } = self.kernel.ops[op].op else { return None };
        let result = self.kernel.ops[op].results[0];
        let [yes, no] = [on_true, on_false].map(|v| constant_fill(self.kernel, v));
        // Where the condition has this value, the number stays.
        let (wanted, why) = match (yes, no) {
            (Some(0.0), Some(fill)) if fill <= HIDES => (true, Unmasked::Added),
            (Some(fill), Some(0.0)) if fill <= HIDES => (false, Unmasked::Added),
            (None, Some(0.0)) => (true, Unmasked::Multiplied),
            (Some(0.0), None) => (false, Unmasked::Multiplied),
            (None, Some(fill)) if fill <= HIDES => (true, Unmasked::Finite),
            (Some(fill), None) if fill <= HIDES => (false, Unmasked::Finite),
            _ => return None,
        };
        let used = match why {
            Unmasked::Added => ops
                .iter()
                .any(|&user| matches!(self.kernel.ops[user].op, Op::Binary(BinaryOp::Add, a, b) if a == result || b == result)),
            Unmasked::Multiplied => self.reaches_product(ops, result),
            Unmasked::Finite => self.kernel.tile(result).rank() == 2,
        };
        (used && !self.predicate(cond, wanted).somewhere.is_all()).then_some(why)
    }

    /// Whether a product takes a value, or what is made of it element by element.
    fn reaches_product(&self, ops: &[OpId], value: ValueId) -> bool {
        let mut made = HashSet::from([value]);
        ops.iter().any(|&op| {
            let data = &self.kernel.ops[op];
            if let Op::Dot { a, b, .. } = data.op {
                return made.contains(&a) || made.contains(&b);
            }
            let passes = data.op.is_elementwise() || matches!(data.op, Op::Transpose(_));
            if passes && data.op.operands().iter().any(|v| made.contains(v)) {
                made.extend(&data.results);
            }
            false
        })
    }
}
