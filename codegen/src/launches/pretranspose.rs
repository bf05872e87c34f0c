//! Right operands transposed in global memory before the kernel runs.
//!
//! `dot(q_i, load(k, [b, g, j, ..]).t())` reads rows of K as columns of the product. Here every tensor that is only read so gets a
//! kernel that writes it transposed, and the main kernel reads the tile as it is: `dot(q_i, load(k_transposed, [b, g, .., j]))`.

use std::collections::BTreeMap;

use flashtile_dsl::ir::{
    At, AxisKind, Dim, Direction, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, TensorDecl, TileType, Type,
};

use super::staged::{NotStaged, Staged};
use crate::rewrite::edit;

/// Why nothing can be transposed beforehand; `None` if something can.
pub fn why_not_pretranspose(kernel: &Kernel) -> Option<String> {
    candidates(kernel)
        .is_empty()
        .then(|| "no right operand of a product is a transposed tile of an input's last two dimensions".into())
}

/// Transposes what can be.
///
/// # Errors
/// What [`why_not_pretranspose`] says.
pub fn pretranspose(kernel: &Kernel) -> Result<Staged, NotStaged> {
    let mut main = kernel.clone();
    let (mut ahead, mut between) = (Vec::new(), Vec::new());
    let found = candidates(kernel);
    if found.is_empty() {
        return Err(why_not_pretranspose(kernel).expect("there is no candidate").into());
    }
    for (tensor, loads) in found {
        let name = edit::free_name(&main, &format!("{}_transposed", kernel.params[tensor].name), std::iter::empty());
        let decl = kernel.tensor(tensor);
        let mut shape = decl.shape.clone();
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        let written = TensorDecl { shape, direction: Direction::Out, ..decl.clone() };
        ahead.push(transposer(kernel, tensor, &name, &written, loads[0]));
        let param = edit::add_tensor(&mut main, &name, TensorDecl { direction: Direction::In, ..written });
        for load in loads {
            read_as_it_is(&mut main, load, param);
        }
        between.push(name);
    }
    Staged::new(ahead, edit::finished(main), Vec::new(), between)
}

/// The tensors that can be transposed, with all loads of each. Every use of such a tensor is a transposed right operand.
fn candidates(kernel: &Kernel) -> BTreeMap<ParamId, Vec<OpId>> {
    let mut found: BTreeMap<ParamId, Vec<OpId>> = BTreeMap::new();
    let mut others = Vec::new();
    for (_, id) in kernel.walk() {
        let Op::Load { tensor, at } = &kernel.ops[id].op else { continue };
        match is_candidate(kernel, id, *tensor, at) {
            true => found.entry(*tensor).or_default().push(id),
            false => others.push(*tensor),
        }
    }
    found.retain(|tensor, _| !others.contains(tensor));
    found
}

fn is_candidate(kernel: &Kernel, id: OpId, tensor: ParamId, at: &[At]) -> bool {
    let [before @ .., At::Tile(_), At::Range { .. }] = at else { return false };
    let is_const = |size: &SizeExpr| size.sizes().all(|s| kernel.sizes[s].kind == flashtile_dsl::ir::SizeKind::Const);
    let width = kernel.tensor(tensor).shape.last().expect("it has two dimensions");
    let loaded = kernel.ops[id].results[0];
    let transposes = edit::users(kernel, loaded);
    let only_right = |op: &OpId| match kernel.ops[*op].op {
        Op::Transpose(_) => {
            let turned = kernel.ops[*op].results[0];
            let users = edit::users(kernel, turned);
            let right = |user: &OpId| matches!(kernel.ops[*user].op, Op::Dot { a, b, .. } if b == turned && a != turned);
            !users.is_empty() && users.iter().all(right)
        }
        _ => false,
    };
    before.iter().all(|a| matches!(a, At::Index(_)))
        && is_const(width)
        && !transposes.is_empty()
        && transposes.iter().all(only_right)
}

/// Makes a load read the transposed tensor, and what read its transpose read it.
fn read_as_it_is(kernel: &mut Kernel, load: OpId, tensor: ParamId) {
    let Op::Load { mut at, .. } = kernel.ops[load].op.clone() else { unreachable!("a load") };
    let last = at.len() - 1;
    at.swap(last - 1, last);
    let loaded = kernel.ops[load].results[0];
    let tile = kernel.tile(loaded).clone();
    let transposes = edit::users(kernel, loaded);
    kernel.ops[load].op = Op::Load { tensor, at };
    let dims: Vec<Dim> = tile.dims.iter().rev().cloned().collect();
    kernel.values[loaded].ty = Type::Tile(TileType::new(tile.elem, dims));
    for transpose in transposes {
        let turned = kernel.ops[transpose].results[0];
        edit::replace_uses(kernel, turned, loaded, &[]);
    }
}

/// The kernel that writes a tensor transposed: a program for each tile of rows.
fn transposer(kernel: &Kernel, tensor: ParamId, name: &str, written: &TensorDecl, load: OpId) -> Kernel {
    let decl = kernel.tensor(tensor);
    let mut b = edit::beside(kernel, format!("{}_transpose_{}", kernel.name, kernel.params[tensor].name));
    b.span = kernel.ops[load].span;
    let from = b.kernel.params.push(kernel.params[tensor].clone());
    let to = edit::add_tensor(&mut b.kernel, name, written.clone());
    let (outer, matrix) = decl.shape.split_at(decl.shape.len() - 2);
    let rows = b.axis("row", matrix[0].clone(), AxisKind::Program);
    let dims = outer.iter().cloned().map(ProgramDim::Each).chain([ProgramDim::Tiles(rows)]).collect();
    let (_, place) = b.append(Op::Program(dims));
    let (&tile, outer) = place.split_last().expect("a program for each tile");
    b.name(tile, "row");
    let whole = At::Range { start: SizeExpr::constant(0), len: matrix[1].clone() };
    let at = |last: [At; 2]| outer.iter().map(|&v| At::Index(v)).chain(last).collect::<Vec<_>>();
    let loaded = b.emit(Op::Load { tensor: from, at: at([At::Tile(tile), whole.clone()]) });
    let turned = b.emit(Op::Transpose(loaded));
    b.append(Op::Store { tensor: to, at: at([whole, At::Tile(tile)]), value: turned });
    b.finish()
}
