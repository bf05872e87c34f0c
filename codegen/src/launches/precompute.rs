//! Operands of products that a kernel computes, computed by launches ahead of it.
//!
//! A right operand that depends on nothing but its own axes and on indices of the tensors it is
//! made of, such as keys that are rotated by their position, is the same for many programs: every
//! program that walks these keys computes it again. The *preparing* kernel has one program for each
//! of its tiles, computes it as the text does, and stores it to a scratch tensor of the same
//! element type; the original loads it from there. No value changes: the operand was rounded to
//! that type anyway. A reduction of the rows that a loop walks, such as the length of each key,
//! goes the same way.
//!
//! A left operand such as rotated queries is computed once by each program as it is. Ahead of it, it is a tile in memory like any
//! other, which copies can bring in while another program runs. A sum of products whose operands are all computed ahead, such as
//! those of the halves of a rotated vector, then is one product: the operands lie side by side in one tensor.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::analysis::hidden::HiddenElements;
use flashtile_dsl::ir::{At, AxisKind, BinaryOp, Dim, Direction, Kernel, Op, OpId, SizeExpr, TensorDecl, Type, ValueId};

use super::ahead::{Ahead as Operand, ahead as operand, by_launch, program};
use super::staged::{NotStaged, Staged};
use crate::rewrite::{edit, mask_stored, with_row_axes};
use crate::schedule::Precompute;

/// Which operands are computed ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sides {
    /// Right ones.
    Right,
    /// Right ones, and all left ones that can be.
    Both,
}

impl Sides {
    /// What a schedule says; `None` if nothing is computed ahead.
    pub(crate) fn of(precompute: Precompute) -> Option<Self> {
        match precompute {
            Precompute::Off => None,
            Precompute::B => Some(Self::Right),
            Precompute::Ab => Some(Self::Both),
        }
    }
}

/// Why no operand of the kernel can be computed ahead; `None` if one of each side can.
pub fn why_not_precompute(kernel: &Kernel, sides: Sides) -> Option<String> {
    operands(kernel, sides).err()
}

/// Computes operands of a kernel ahead of it.
///
/// # Errors
/// What [`why_not_precompute`] says.
pub fn precompute(kernel: &Kernel, sides: Sides) -> Result<Staged, NotStaged> {
    let operands = operands(kernel, sides)?;
    let sums = sums(kernel, &operands);
    let tensors = tensors(kernel, &operands, &sums);
    let numbers: Vec<usize> = (0..operands.len()).collect();
    let groups = by_launch(&numbers, |&number| operands[number].program(kernel));
    let ahead = groups.into_iter().map(|(suffix, group)| {
        let group: Vec<usize> = group.into_iter().copied().collect();
        preparing(kernel, &operands, &group, &tensors, format!("{}_prepare{suffix}", kernel.name))
    });
    let between = tensors.iter().map(|t| t.name.clone()).collect();
    Staged::new(ahead.collect(), main(kernel, &operands, &tensors, &sums), Vec::new(), between)
}

/// What can be computed ahead: the right operands that are computed, reductions of rows that loops
/// walk, and for [`Sides::Both`] left operands, at least one.
fn operands(kernel: &Kernel, sides: Sides) -> Result<Vec<Operand>, String> {
    let dots: Vec<(ValueId, ValueId)> = kernel
        .walk()
        .into_iter()
        .filter_map(|(_, op)| match kernel.ops[op].op {
            Op::Dot { a, b, .. } => Some((a, untransposed(kernel, b))),
            _ => None,
        })
        .collect();
    let computed = |v: &ValueId| !matches!(kernel.def(*v), Some((_, Op::Load { .. })));
    let distinct = |values: Vec<ValueId>| {
        let mut seen = BTreeSet::new();
        values.into_iter().filter(|v| seen.insert(*v)).collect::<Vec<_>>()
    };
    let right = distinct(dots.iter().map(|d| d.1).filter(computed).collect());
    // One that stays would be computed in place all the same; but one of what the block itself
    // computes is nowhere else.
    let apart = right.iter().filter(|&&v| !is_of_products(kernel, v));
    let hidden = HiddenElements::new(kernel, &|_| false);
    let taken_out = |v: ValueId| {
        if hidden.condition(v).is_some() && !is_of_products_alone(kernel, v) {
            return Err(format!("a mask hides elements of `{}`, which is more than an operand", kept_name(kernel, v)));
        }
        operand(kernel, v)
    };
    let mut found = apart.map(|&v| taken_out(v)).collect::<Result<Vec<_>, _>>()?;
    let reduced = reductions(kernel, &found).into_iter().filter(|&v| hidden.condition(v).is_none());
    found.extend(reduced.filter_map(|v| operand(kernel, v).ok()));
    if sides == Sides::Both {
        let left = distinct(dots.iter().map(|d| d.0).filter(computed).filter(|v| !right.contains(v)).collect());
        let mut why = "no left operand is computed".to_owned();
        let before = found.len();
        for value in left {
            match taken_out(value) {
                Ok(operand) => found.push(operand),
                Err(reason) => why = reason,
            }
        }
        if found.len() == before {
            return Err(why);
        }
    }
    if found.is_empty() {
        return Err("no right operand is computed, and no row of a loop reduced".into());
    }
    Ok(found)
}

/// Whether a value depends on a product, or on what a loop carries.
fn is_of_products(kernel: &Kernel, value: ValueId) -> bool {
    kernel.any_behind(value, |v| match kernel.def(v) {
        _ if !matches!(kernel.ty(v), Type::Tile(_)) => Some(false),
        None | Some((_, Op::Dot { .. } | Op::For { .. })) => Some(true),
        Some((_, Op::Load { .. })) => Some(false),
        Some(_) => None,
    })
}

/// Sums and maxima of the rows that a loop walks, such as the squared length of each key, but for
/// those that only `operands` need. No product takes them, but they are computed as operands are:
/// in place a loop has no use of its rows.
fn reductions(kernel: &Kernel, operands: &[Operand]) -> Vec<ValueId> {
    let is_loop = |dim: &Dim| matches!(dim, Dim::Axis(axis) if kernel.axes[*axis].kind == AxisKind::Loop);
    let inside = |op: &OpId| operands.iter().any(|operand| operand.ops.contains(op));
    let reduced = kernel.walk().into_iter().filter_map(|(block, op)| match kernel.ops[op].op {
        Op::Reduce(_, x) if block != kernel.body && is_loop(&kernel.tile(x).dims[0]) => Some(kernel.ops[op].results[0]),
        _ => None,
    });
    reduced.filter(|&v| !edit::users(kernel, v).iter().all(inside)).collect()
}

/// Whether products alone read a value, as it is or transposed.
fn is_of_products_alone(kernel: &Kernel, value: ValueId) -> bool {
    edit::users(kernel, value).into_iter().all(|user| match kernel.ops[user].op {
        Op::Dot { a, b, .. } => a == value || b == value,
        Op::Transpose(_) => is_of_products_alone(kernel, kernel.ops[user].results[0]),
        _ => false,
    })
}

/// What a value is the transpose of, or itself.
fn untransposed(kernel: &Kernel, value: ValueId) -> ValueId {
    match kernel.def(value) {
        Some((_, Op::Transpose(x))) => *x,
        _ => value,
    }
}

/// `dot(a1, b1.t()) + dot(a2, b2.t())`, all four computed ahead: one product over both contractions.
struct Sum {
    /// The op whose result it is.
    op: OpId,
    /// What is added to, besides.
    onto: Option<ValueId>,
    /// The left operands, and the right ones, by number.
    left: [usize; 2],
    right: [usize; 2],
}

/// Sums of two products that can be one.
fn sums(kernel: &Kernel, operands: &[Operand]) -> Vec<Sum> {
    let number = |v: ValueId| operands.iter().position(|o| o.value == v);
    // The operands of a product by number, contracted over the last dimension of each.
    let product = |v: ValueId| {
        let (_, &Op::Dot { a, b, acc }) = kernel.def(v)? else { return None };
        let (_, &Op::Transpose(x)) = kernel.def(b)? else { return None };
        Some((number(a)?, number(x)?, acc))
    };
    let used_once = |v: ValueId| edit::users(kernel, v).len() == 1;
    let beside = |x: usize, y: usize| {
        let dims = |o: &Operand| kernel.tile(o.value).dims.clone();
        let (own, other) = (dims(&operands[x]), dims(&operands[y]));
        x != y
            && operands[x].program(kernel) == operands[y].program(kernel)
            && own[..own.len() - 1] == other[..other.len() - 1]
            && [own, other].iter().all(|d| matches!(d.last(), Some(Dim::Range(_))))
            && kernel.tile(operands[x].value).elem == kernel.tile(operands[y].value).elem
    };
    let mut found: Vec<Sum> = Vec::new();
    for (_, op) in kernel.walk() {
        let (first, second) = match kernel.ops[op].op {
            Op::Binary(BinaryOp::Add, x, y) if used_once(x) && used_once(y) => (x, Some(y)),
            Op::Dot { acc: Some(x), .. } if used_once(x) => (x, None),
            _ => continue,
        };
        let second = second.unwrap_or(kernel.ops[op].results[0]);
        let (Some((a1, b1, onto)), Some((a2, b2, added))) = (product(first), product(second)) else { continue };
        // A sum of two accumulating products adds to both.
        let both_accumulate = onto.is_some() && added.is_some_and(|v| v != first);
        let taken = |n: &usize| found.iter().any(|s| s.left.contains(n) || s.right.contains(n));
        if !both_accumulate && beside(a1, a2) && beside(b1, b2) && ![a1, a2, b1, b2].iter().any(taken) {
            let onto = onto.or(added.filter(|v| *v != first));
            found.push(Sum { op, onto, left: [a1, a2], right: [b1, b2] });
        }
    }
    found
}

/// A tensor between the launches: operands side by side along their last dimension.
struct Between {
    name: String,
    parts: Vec<usize>,
}

impl Between {
    /// Where a part of it lies, or the whole. Each entry with its extent in the tensor.
    fn place(&self, kernel: &Kernel, operands: &[Operand], part: Option<usize>) -> Vec<(At, SizeExpr)> {
        let mut place = operands[self.parts[0]].place(kernel);
        if let [_, _, ..] = self.parts[..] {
            let length = |n: usize| match kernel.tile(operands[n].value).dims.last() {
                Some(Dim::Range(len)) => len.clone(),
                _ => unreachable!("operands lie side by side along a range"),
            };
            let sum = |parts: &[usize]| parts.iter().fold(SizeExpr::constant(0), |sum, &n| sum.add(&length(n)));
            let whole = sum(&self.parts);
            let (start, len) = match part {
                None => (SizeExpr::constant(0), whole.clone()),
                Some(n) => {
                    let before = self.parts.iter().position(|&p| p == n).expect("a part of it");
                    (sum(&self.parts[..before]), length(n))
                }
            };
            *place.last_mut().expect("a matrix has columns") = (At::Range { start, len }, whole);
        }
        place
    }

    /// The tensor, in the original's terms.
    fn decl(&self, original: &Kernel, operands: &[Operand], direction: Direction) -> TensorDecl {
        let shape = self.place(original, operands, None).into_iter().map(|(_, extent)| extent).collect();
        TensorDecl { elem: original.tile(operands[self.parts[0]].value).elem, shape, direction }
    }
}

/// The tensors between.
fn tensors(kernel: &Kernel, operands: &[Operand], sums: &[Sum]) -> Vec<Between> {
    let mut out: Vec<Between> = Vec::new();
    let own = |&n: &usize| kept_name(kernel, operands[n].value);
    for number in 0..operands.len() {
        if out.iter().any(|t| t.parts.contains(&number)) {
            continue;
        }
        let pairs = sums.iter().flat_map(|s| [s.left, s.right]);
        let parts = pairs.into_iter().find(|pair| pair.contains(&number)).map_or(vec![number], |pair| pair.to_vec());
        let wanted = format!("{}_all", parts.iter().map(own).collect::<Vec<_>>().join("_"));
        let name = edit::free_name(kernel, &wanted, out.iter().map(|t| t.name.as_str()));
        out.push(Between { name, parts });
    }
    out
}

/// What an operand is called: by its own name, or by that of what it is the transpose of.
fn kept_name(kernel: &Kernel, value: ValueId) -> String {
    let own = |v: ValueId| kernel.values[v].name.clone();
    let turned = || match kernel.def(value) {
        Some((_, &Op::Transpose(x))) => {
            let of_tensor = || match kernel.def(x) {
                Some((_, Op::Load { tensor, .. })) => Some(kernel.params[*tensor].name.clone()),
                _ => None,
            };
            own(x).or_else(of_tensor).map(|name| format!("{name}_turned"))
        }
        _ => None,
    };
    own(value).or_else(turned).unwrap_or_else(|| value.to_string())
}

/// The kernel that computes operands which the same programs make.
fn preparing(original: &Kernel, operands: &[Operand], group: &[usize], tensors: &[Between], name: String) -> Kernel {
    let parts: Vec<&Operand> = group.iter().map(|&n| &operands[n]).collect();
    let (mut kernel, span) = program(original, &parts, name);
    let body = kernel.body;
    for tensor in tensors.iter().filter(|t| group.contains(&t.parts[0])) {
        let param = edit::add_tensor(&mut kernel, &tensor.name, tensor.decl(original, operands, Direction::Out));
        for &part in &tensor.parts {
            let at = tensor.place(original, operands, Some(part)).into_iter().map(|(at, _)| at).collect();
            let op = Op::Store { tensor: param, at, value: operands[part].value };
            edit::append(&mut kernel, body, op, span);
        }
    }
    // What is loaded knows nothing of masks.
    mask_stored(&mut kernel);
    // What is transposed ahead, such as `load(k, [b, .., j]).t()`, may have a range for its rows.
    with_row_axes(&edit::finished(kernel))
}

/// The original with loads in place of what was computed.
fn main(original: &Kernel, operands: &[Operand], tensors: &[Between], sums: &[Sum]) -> Kernel {
    let mut kernel = original.clone();
    let mut wholes: BTreeMap<usize, ValueId> = BTreeMap::new();
    for tensor in tensors {
        let param = edit::add_tensor(&mut kernel, &tensor.name, tensor.decl(original, operands, Direction::In));
        // A load after the definition of the last part; a whole stands for all of them.
        let load = |kernel: &mut Kernel, value: ValueId, part: Option<usize>| {
            let at = tensor.place(original, operands, part).into_iter().map(|(at, _)| at).collect();
            let (id, _) = original.def(value).expect("it is computed");
            let place = edit::after_definition(kernel, value);
            edit::insert(kernel, place, Op::Load { tensor: param, at }, original.ops[id].span)
        };
        let name = |n: usize| original.values[operands[n].value].name.clone();
        if let [_, _, ..] = tensor.parts[..] {
            let defined = |n: &&usize| {
                original.walk().iter().position(|(_, op)| original.def(operands[**n].value).is_some_and(|d| d.0 == *op))
            };
            let last = *tensor.parts.iter().max_by_key(defined).expect("several parts");
            let whole = load(&mut kernel, operands[last].value, None);
            kernel.values[whole].name = tensor.parts.iter().map(|&n| name(n)).collect::<Option<Vec<_>>>().map(|n| n.join("_"));
            wholes.extend(tensor.parts.iter().map(|&n| (n, whole)));
        }
        for &part in &tensor.parts {
            let value = operands[part].value;
            let loaded = load(&mut kernel, value, Some(part));
            kernel.values[loaded].name = name(part);
            edit::replace_uses(&mut kernel, value, loaded, &[]);
        }
    }
    for sum in sums {
        let span = original.ops[sum.op].span;
        let (a, b) = (wholes[&sum.left[0]], wholes[&sum.right[0]]);
        let insert = |kernel: &mut Kernel, op: Op| edit::insert_before(kernel, sum.op, op, span);
        let b = insert(&mut kernel, Op::Transpose(b));
        let whole = insert(&mut kernel, Op::Dot { a, b, acc: sum.onto });
        let result = original.ops[sum.op].results[0];
        kernel.values[whole].name.clone_from(&original.values[result].name);
        edit::replace_uses(&mut kernel, result, whole, &[]);
    }
    edit::finished(kernel)
}
