//! Loads that overlap, taken apart: keys of which a part are the values too.
//!
//! ```text
//! dot(load(q, [.., ..]), load(kv, [.., ..]).t())    // and elsewhere load(kv, [.., ..C])
//! ```
//!
//! becomes a product for `..C` and one for `C..`, so that each element is loaded at one place: the
//! gradient of a place is stored once, the sum of what all its uses give.
//!
//! Invariant: the kernel means the same, and values that are not taken apart keep their numbers.

use crate::analysis::live::remove_dead;
use crate::ir::edit::{insert_before, replace_uses, users};
use crate::ir::{At, BinaryOp, Kernel, Op, OpId, ParamId, SizeExpr, ValueId};

/// A range of a dimension.
#[derive(Clone, PartialEq, Eq)]
struct Range {
    start: SizeExpr,
    len: SizeExpr,
}

/// The kernel, with loads of these tensors taken apart where others load a part of the same. A load
/// that is used otherwise than to sum over the dimension stays as it is.
pub(super) fn in_parts(kernel: &Kernel, tensors: &[String]) -> Kernel {
    let mut made = kernel.clone();
    for tensor in tensors.iter().filter_map(|name| kernel.param_named(name)) {
        while let Some((load, dim, cut)) = whole_of_a_part(&made, tensor) {
            let Some(products) = products_over(&made, load, dim) else { break };
            for product in products {
                take_apart(&mut made, &product, &cut);
            }
            remove_dead(&mut made);
        }
    }
    made
}

/// A load of a tensor, the dimension in which another load begins or ends within it, and where that
/// is, from the start of the load.
fn whole_of_a_part(kernel: &Kernel, tensor: ParamId) -> Option<(OpId, usize, SizeExpr)> {
    let loads: Vec<(OpId, &Vec<At>)> = kernel
        .walk()
        .into_iter()
        .filter_map(|(_, op)| match &kernel.ops[op].op {
            Op::Load { tensor: other, at } if *other == tensor => Some((op, at)),
            _ => None,
        })
        .collect();
    for &(load, at) in &loads {
        for (dim, entry) in at.iter().enumerate() {
            let At::Range { start, len } = entry else { continue };
            let ends = loads.iter().filter_map(|(_, other)| match &other[dim] {
                At::Range { start, len } => Some([start.clone(), start.add(len)]),
                _ => None,
            });
            let within = |cut: &SizeExpr| [240, 5040].into_iter().all(|scale| is_within(cut, len, scale));
            if let Some(cut) = ends.flatten().map(|end| end.sub(start)).find(within) {
                return Some((load, dim, cut));
            }
        }
    }
    None
}

/// Whether a place is behind the first and before the last of a length, at sizes of this scale.
fn is_within(cut: &SizeExpr, len: &SizeExpr, scale: i64) -> bool {
    let at = |size: &SizeExpr| size.eval(|s| Some((1 + s.0 as i64) * scale));
    matches!((at(cut), at(len)), (Some(cut), Some(len)) if 0 < cut && cut < len)
}

/// A product that sums over a dimension of two loads.
struct Product {
    dot: OpId,
    /// The operands: from the load to what is multiplied, and the dimension of the load's tensor.
    operands: [(Vec<OpId>, usize); 2],
}

/// The products that use a load, if all uses sum over the dimension.
fn products_over(kernel: &Kernel, load: OpId, dim: usize) -> Option<Vec<Product>> {
    let mut found = Vec::new();
    let mut work = vec![kernel.ops[load].results[0]];
    while let Some(value) = work.pop() {
        for user in users(kernel, value) {
            match kernel.ops[user].op {
                Op::Transpose(_) | Op::Cast(..) => work.push(kernel.ops[user].results[0]),
                Op::Dot { a, b, acc } if acc != Some(value) => {
                    let operands = [summed(kernel, a, 1)?, summed(kernel, b, 0)?];
                    let own = |(path, along): &(Vec<OpId>, usize)| path[0] == load && *along == dim;
                    let both = operands.iter().filter(|operand| operand.0[0] == load).count();
                    if both != 1 || !operands.iter().any(own) {
                        return None;
                    }
                    found.push(Product { dot: user, operands });
                }
                _ => return None,
            }
        }
    }
    Some(found)
}

/// How an operand is made of a load, and which dimension of the tensor its dimension `along` is.
fn summed(kernel: &Kernel, operand: ValueId, along: usize) -> Option<(Vec<OpId>, usize)> {
    let (mut path, mut value, mut along) = (Vec::new(), operand, along);
    loop {
        let ops = kernel.walk();
        let &(_, op) = ops.iter().find(|(_, op)| kernel.ops[*op].results.contains(&value))?;
        path.insert(0, op);
        match &kernel.ops[op].op {
            &Op::Transpose(x) => (value, along) = (x, 1 - along),
            &Op::Cast(_, x) => value = x,
            Op::Load { at, .. } => {
                let kept = |(_, entry): &(usize, &At)| !matches!(entry, At::Index(_));
                let (dim, entry) = at.iter().enumerate().filter(kept).nth(along)?;
                return matches!(entry, At::Range { .. }).then_some((path, dim));
            }
            _ => return None,
        }
    }
}

/// Puts two products in the place of one, up to a place of the dimension and from it on.
fn take_apart(kernel: &mut Kernel, product: &Product, cut: &SizeExpr) {
    let Op::Dot { acc, .. } = kernel.ops[product.dot].op else { unreachable!("a product") };
    let (result, span) = (kernel.ops[product.dot].results[0], kernel.ops[product.dot].span);
    let mut parts = [None, acc].into_iter();
    let [first, second] = [false, true].map(|behind| {
        let [a, b] = [0, 1].map(|n| part_of(kernel, &product.operands[n], cut, behind));
        insert_before(kernel, product.dot, Op::Dot { a, b, acc: parts.next().expect("two parts") }, span)
    });
    let sum = insert_before(kernel, product.dot, Op::Binary(BinaryOp::Add, first, second), span);
    kernel.values[sum].name = kernel.values[result].name.take();
    replace_uses(kernel, result, sum, &[]);
}

/// A part of an operand: before the cut, or behind it.
fn part_of(kernel: &mut Kernel, (path, dim): &(Vec<OpId>, usize), cut: &SizeExpr, behind: bool) -> ValueId {
    let mut value = None;
    for &op in path {
        let span = kernel.ops[op].span;
        let made = match (kernel.ops[op].op.clone(), value) {
            (Op::Load { tensor, mut at }, _) => {
                let At::Range { start, len } = &at[*dim] else { unreachable!("a range is summed over") };
                let Range { start, len } = match behind {
                    false => Range { start: start.clone(), len: cut.clone() },
                    true => Range { start: start.add(cut), len: len.sub(cut) },
                };
                at[*dim] = At::Range { start, len };
                Op::Load { tensor, at }
            }
            (made, part) => made.map_operands(|_| part.expect("the load comes first")),
        };
        value = Some(insert_before(kernel, op, made, span));
    }
    value.expect("an operand is loaded")
}
