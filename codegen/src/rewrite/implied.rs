//! Masks that the bounds of loops imply: the tiles that they would hide are skipped.
//!
//! Bounds are taken from the kernel as written, where these masks are.

use flashtile_dsl::analysis::mask::{MaskOptions, kept_where, loop_masks};
use flashtile_dsl::ir::{Kernel, Op, OpId};

use super::edit;
use crate::blocks;
use crate::instance::Instance;
use crate::schedule::BlockKnobs;

/// Drops masks that are true in every tile that is walked. `kernel` is that of the instance, as
/// written.
pub fn drop_implied_masks(kernel: &mut Kernel, instance: &Instance, schedule: &BlockKnobs) {
    let written = &instance.kernel;
    let block = |axis| i64::from(blocks::block(written, schedule, axis));
    let size = |size: &_| instance.binding.size(written, size);
    let options = MaskOptions { early_stop: schedule.early_stop, ..MaskOptions::default() };
    let mut implied: Vec<OpId> = Vec::new();
    for (_, op) in written.walk() {
        if let Op::For { .. } = written.ops[op].op {
            implied.extend(loop_masks(written, op, &block, &size, options).implied);
        }
    }
    for op in implied {
        let (_, x) = kept_where(kernel, op).expect("a mask");
        let result = kernel.ops[op].results[0];
        edit::replace_uses(kernel, result, x, &[]);
    }
    edit::remove_dead(kernel);
}
