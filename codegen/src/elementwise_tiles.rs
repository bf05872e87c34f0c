//! Which loads of a kernel are tiles of elementwise work: of two tiled dimensions, in a loop over one
//! of them, and of no product, such as a bias of the scores.

use std::collections::HashSet;

use flashtile_dsl::ir::{At, AxisKind, Direction, Elem, Kernel, Op, OpId, ParamId, ProgramDim, ValueId};

use crate::instance::Instance;
use crate::rewrite::apart;

/// The loads of a kernel's loops over tiles that `tile_loads=tma` is about: the rows of their tiles,
/// or of the transposes of these, are those of the program, so that `ldmatrix` gives each lane the
/// pairs of its accumulators.
pub(crate) fn elementwise_tiles(instance: &Instance) -> Vec<OpId> {
    let by_ring = |op: &OpId| comes_by_ring(&instance.kernel, instance, loaded(&instance.kernel, *op));
    elementwise_rows(instance).into_iter().filter(by_ring).collect()
}

/// The same, and those of which TMA cannot read the tensor where it lies, but could read a copy.
pub(crate) fn elementwise_rows(instance: &Instance) -> Vec<OpId> {
    let kernel = &instance.kernel;
    let has_rows_of_program = |op: OpId| {
        let Op::Load { at, .. } = &kernel.ops[op].op else { unreachable!("a load") };
        at.iter().find(|at| matches!(at, At::Tile(_))).is_some_and(|rows| is_of_program(kernel, rows))
    };
    let all = all_elementwise(kernel).into_iter().filter(|&op| has_rows_of_program(op)).chain(turned(kernel));
    all.filter(|&op| is_for_rings(kernel, instance, loaded(kernel, op))).collect()
}

/// The loads of loops over tiles of which elementwise work reads the transpose, whose rows are those
/// of the program.
fn turned(kernel: &Kernel) -> Vec<OpId> {
    let in_loop = |op: OpId| kernel.loop_around(op).is_some();
    let load = |op: OpId| match kernel.ops[op].op {
        Op::Transpose(x) => Some((kernel.def(x)?.0, apart(kernel, op)?.1)),
        _ => None,
    };
    let loads = kernel.walk().into_iter().filter_map(|(_, op)| load(op));
    let by_columns = |at: &[At]| at.last().is_some_and(|columns| is_of_program(kernel, columns));
    loads.filter(|(op, at)| in_loop(*op) && by_columns(at)).map(|(op, _)| op).collect()
}

/// Whether a dimension is walked by the tiles of the grid.
fn is_of_program(kernel: &Kernel, at: &At) -> bool {
    matches!(at, At::Tile(v) if matches!(kernel.def(*v), Some((_, Op::Program(_)))))
}

/// The tensor of a load.
fn loaded(kernel: &Kernel, load: OpId) -> ParamId {
    let Op::Load { tensor, .. } = kernel.ops[load].op else { unreachable!("a load") };
    tensor
}

/// The dimensions of the grid, but for tiled ones, that no tile of elementwise work depends on: the
/// programs along them read the same ones. None where the kernel loads no such tile.
pub(crate) fn sharing_dims(kernel: &Kernel) -> Vec<usize> {
    let (loads, grid) = (all_elementwise(kernel), kernel.grid());
    let Some(&program) = kernel.blocks[kernel.body].ops.first().filter(|_| !loads.is_empty()) else { return Vec::new() };
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut waiting: Vec<ValueId> = loads.iter().flat_map(|op| kernel.ops[*op].op.operands()).collect();
    while let Some(value) = waiting.pop() {
        if read.insert(value)
            && let Some((_, op)) = kernel.def(value)
        {
            waiting.extend(op.operands());
        }
    }
    let shared = |(d, dim): (usize, &ProgramDim)| {
        let stays = matches!(dim, ProgramDim::Each(_)) && !read.contains(&kernel.ops[program].results[d]);
        stays.then_some(d)
    };
    grid.iter().enumerate().filter_map(shared).collect()
}

/// Whether all tiles of elementwise work are of one byte an element. Programs that read the same ones
/// find these in the L2 cache in any order, and lose keys and values if they follow each other.
pub(crate) fn shares_bytes(kernel: &Kernel) -> bool {
    let is_bytes = |op: &OpId| kernel.ops[*op].results.iter().all(|&v| kernel.tile(v).elem.bytes() == Some(1));
    all_elementwise(kernel).iter().all(is_bytes)
}

fn all_elementwise(kernel: &Kernel) -> Vec<OpId> {
    let of_loop = |(_, op): (_, OpId)| match &kernel.ops[op].op {
        Op::For { axis, body, .. } if kernel.axes[*axis].kind != AxisKind::Each => {
            let ops = &kernel.blocks[*body].ops;
            elementwise(kernel, ops, kernel.blocks[*body].params[0])
        }
        _ => Vec::new(),
    };
    kernel.walk().into_iter().flat_map(of_loop).collect()
}

/// Whether TMA can copy tiles of a tensor where it lies, and `ldmatrix` can read them.
pub(crate) fn comes_by_ring(kernel: &Kernel, instance: &Instance, tensor: ParamId) -> bool {
    is_for_rings(kernel, instance, tensor) && instance.facts.alignment_of(&kernel.params[tensor].name) >= 16
}

/// Whether TMA takes tensors of so many dimensions, and `ldmatrix` their elements.
fn is_for_rings(kernel: &Kernel, instance: &Instance, tensor: ParamId) -> bool {
    let decl = kernel.tensor(tensor);
    (2..=5).contains(&decl.shape.len()) && matches!(instance.binding.elem(kernel, decl.elem), Elem::F16 | Elem::Bf16)
}

/// Those among the ops of a loop's body: of two tiled dimensions, the last of which lies together in
/// memory, one of them that of the loop, and of no product.
pub(crate) fn elementwise(kernel: &Kernel, ops: &[OpId], coordinate: ValueId) -> Vec<OpId> {
    let mut operands: HashSet<ValueId> = HashSet::new();
    for op in kernel.ops.values() {
        match op.op {
            Op::Dot { a, b, .. } => operands.extend([a, b]),
            Op::Transpose(x) => _ = operands.insert(x),
            _ => {}
        }
    }
    let qualifies = |op: &OpId| {
        let data = &kernel.ops[*op];
        let Op::Load { tensor, at } = &data.op else { return false };
        let decl = kernel.tensor(*tensor);
        let tiles = at.iter().filter(|a| matches!(a, At::Tile(_))).count();
        let others = at.iter().filter(|a| matches!(a, At::Range { .. })).count();
        let lies = tiles == 2 && others == 0 && matches!(at.last(), Some(At::Tile(_))) && (2..=5).contains(&at.len());
        let streamed = data.op.operands().contains(&coordinate);
        lies && streamed && decl.direction == Direction::In && !operands.contains(&data.results[0])
    };
    ops.iter().copied().filter(qualifies).collect()
}
