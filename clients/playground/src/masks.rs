//! Tiles of loops as pictures, for the sizes that a page gives.

use flashtile_codegen::{Schedule, block_size};
use flashtile_dsl::analysis::mask::{LoopMasks, MaskOptions, loop_masks};
use flashtile_dsl::analysis::picture::picture;
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{AxisId, AxisKind, Op, OpId, SizeExpr, Type, ValueId};
use serde_json::{Value, json};

use crate::subject::Subject;

/// Tiles on a side of a picture at most.
const MOST_TILES: i64 = 256;

/// What is known of each loop.
pub fn of_loops(subject: &Subject, schedule: &Schedule) -> Vec<(OpId, LoopMasks)> {
    let kernel = &subject.instance.kernel;
    let block = |axis: AxisId| i64::from(block_size(kernel, &schedule.main, axis));
    let size = |size: &SizeExpr| size.eval(|id| subject.size(kernel.size_name(id)));
    let options = MaskOptions { early_stop: schedule.main.early_stop, summaries: Summaries::All, ..MaskOptions::default() };
    let loops = kernel.walk().into_iter().filter(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. }));
    loops.map(|(_, op)| (op, loop_masks(kernel, op, &block, &size, options))).collect()
}

/// The bounds of all loops in words.
pub fn text(subject: &Subject, loops: &[(OpId, LoopMasks)]) -> String {
    let texts: Vec<String> = loops.iter().map(|(_, masks)| masks.text(&subject.instance.kernel)).collect();
    if texts.is_empty() { "no loops\n".to_owned() } else { texts.join("\n") }
}

/// A loop as a picture, or why there is none: the program's rows down, the tiles of the loop
/// across.
pub fn drawn(subject: &Subject, schedule: &Schedule, op: OpId, masks: &LoopMasks) -> Value {
    let kernel = &subject.instance.kernel;
    let Op::For { axis, .. } = kernel.ops[op].op else { unreachable!("a loop") };
    let columns = &kernel.axes[axis];
    let without = |why: &str| json!({ "loop": columns.name, "why": why });
    if masks.runs.exprs().chain([&masks.tiles]).any(|expr| expr.is_loaded()) {
        return without("which tiles are walked depends on data, which is read when the kernel runs");
    }
    let Some((rows, row_axis)) = kernel.axes.iter().find(|(_, axis)| axis.kind == AxisKind::Program) else {
        return without("the program has no rows");
    };
    let extent = |size: &SizeExpr| size.eval(|id| subject.size(kernel.size_name(id)));
    let block = |axis: AxisId| i64::from(block_size(kernel, &schedule.main, axis));
    let (Some(down), Some(across)) = (extent(&row_axis.extent), extent(&columns.extent)) else {
        return without("a length depends on data, which is read when the kernel runs");
    };
    let (down, across) = (tiles(down, block(rows)), tiles(across, block(axis)));
    if down > MOST_TILES || across > MOST_TILES {
        return without("there are more than 256 tiles on a side; give smaller lengths");
    }
    let size = |size: &SizeExpr| extent(size).unwrap_or(0);
    // Coordinates along the rows are the number of the row tile; every other index, such as a head,
    // is 0.
    let value = |row: i64, value: ValueId| if *kernel.ty(value) == Type::Coord(rows) { row } else { 0 };
    let lines = picture(masks, down, &size, &value, &|_| 0, &|_| 0);
    json!({
        "loop": columns.name,
        "rows": row_axis.name,
        "block_rows": block(rows),
        "block_columns": block(axis),
        "tiles": lines,
    })
}

/// Tiles that so many positions take.
fn tiles(positions: i64, block: i64) -> i64 {
    (positions + block - 1) / block
}
