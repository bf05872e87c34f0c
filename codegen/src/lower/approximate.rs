//! Which elementwise ops may use instructions that err by about one rounding to 16 bits.
//!
//! `tanh.approx.f32` has a relative error of at most 2^-11 (PTX ISA 9.7.3.22). A result rounded to f16 has the same largest error, and
//! one rounded to bf16 four times that. The tolerance (`docs/verification.md`) compares with the plain 16-bit
//! computation of the same text, which rounds the result of every op of a softcap: five roundings a score, where the
//! instruction is one error of that size in f16, and of a quarter of it in bf16. Simulated for caps of 5 to 50 and scores with deviations of 1 to
//! 20, the maximum is below 0.2 (bf16) and 0.6 (f16) of what is allowed, and the mean below 0.4 and 0.6.
//!
//! Sums over many scores (an LSE that is stored as f32) average roundings, but need not average the errors of the instruction. In bf16 they
//! stay below 0.2 of what is allowed; in f16 they reached 1.05. There, `1 - 2 / (1 + exp(2 x))` is taken, whose absolute
//! error is about 2^-22.
//!
//! The rule is decided by dataflow, from the matrix that the op gives:
//!
//! * a cast to 16 bits and a store to a 16-bit tensor end a path;
//! * a store of the matrix to an f32 tensor, a conversion to an integer, a comparison, and an f32 operand of a product forbid it;
//! * a row reduction makes a statistic of the matrix. A statistic may be stored as f32 (the LSE of a softmax), if the matrix itself is
//!   rounded to 16 bits on another path (the P of a softmax).

use std::collections::{HashMap, HashSet};

use flashtile_dsl::ir::{BinaryOp, Binding, Elem, Kernel, Op, OpId, Type, UnaryOp, ValueId};

use super::uses::{slot, users_and_order};

/// How a value depends on the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Dependence {
    /// Element by element, or through a product.
    Matrix,
    /// Through a row reduction.
    Statistic,
}

/// How far an approximate result may be off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Approximation {
    /// By a relative error of 2^-11.
    Relative,
    /// By an absolute error of 2^-22 for results of magnitude 1.
    Absolute,
}

/// The ops that may be approximate: hyperbolic tangents of matrices, and quotients by matrices.
pub(super) fn approximate_ops(kernel: &Kernel, binding: &Binding) -> HashMap<OpId, Approximation> {
    let rank = |v: ValueId| kernel.tile(v).rank();
    let candidates = kernel.walk().into_iter().map(|(_, op)| op).filter(|&op| match kernel.ops[op].op {
        Op::Unary(UnaryOp::Tanh, x) => rank(x) == 2,
        Op::Binary(BinaryOp::Div, _, b) => rank(b) == 2 && kernel.tile(b).elem != Elem::I32,
        _ => false,
    });
    let candidates: Vec<OpId> = candidates.collect();
    if candidates.is_empty() {
        return HashMap::new();
    }
    let (users, _) = users_and_order(kernel);
    let users = |v: ValueId| users.get(&v).map_or(&[][..], Vec::as_slice);
    let allowed = |op: OpId| Some((op, approximation(kernel, binding, kernel.ops[op].results[0], &users)?));
    candidates.into_iter().filter_map(allowed).collect()
}

/// How far `value` may be off; `None` if something depends on it that is neither rounded to 16 bits nor a statistic of what is.
fn approximation<'u>(
    kernel: &Kernel,
    binding: &Binding,
    value: ValueId,
    users: &impl Fn(ValueId) -> &'u [OpId],
) -> Option<Approximation> {
    use Dependence::{Matrix, Statistic};
    let bound = |elem: Elem| binding.elem(kernel, elem);
    let is_half = |elem: Elem| matches!(bound(elem), Elem::F16 | Elem::Bf16);
    let mut seen = HashSet::from([(value, Matrix)]);
    let mut work = vec![(value, Matrix)];
    let (mut rounded, mut to_f16, mut statistic) = (false, false, false);
    while let Some((v, how)) = work.pop() {
        let mut reached = Vec::new();
        for &user in users(v) {
            let data = &kernel.ops[user];
            match &data.op {
                Op::Cast(elem, _) if is_half(*elem) => {
                    rounded |= how == Matrix;
                    to_f16 |= how == Matrix && bound(*elem) == Elem::F16;
                }
                Op::Cast(elem, _) if bound(*elem) != Elem::F32 => return None,
                Op::Store { tensor, value, .. } if *value == v => {
                    let elem = kernel.tensor(*tensor).elem;
                    if is_half(elem) {
                        rounded |= how == Matrix;
                        to_f16 |= how == Matrix && bound(elem) == Elem::F16;
                    } else if how == Matrix {
                        return None;
                    } else {
                        statistic = true;
                    }
                }
                Op::Store { .. } | Op::Scatter { .. } | Op::Compare(..) | Op::ToIndex(_) => return None,
                Op::Unary(op, _) if op.row().jumps => return None,
                Op::Dot { acc, .. } if *acc != Some(v) => return None,
                Op::Reduce(..) => reached.push((data.results[0], Statistic)),
                Op::For { body, init, .. } => {
                    for index in (0..init.len()).filter(|&index| init[index] == v) {
                        reached.push((kernel.blocks[*body].params[index + 1], how));
                        reached.push((data.results[index], how));
                    }
                }
                Op::Yield(values) => {
                    let block = kernel.walk().into_iter().find(|&(_, op)| op == user).map(|(block, _)| block);
                    let block = block?;
                    for index in (0..values.len()).filter(|&index| values[index] == v) {
                        let (_, _, result) = slot(kernel, block, index)?;
                        reached.push((kernel.blocks[block].params[index + 1], how));
                        reached.push((result, how));
                    }
                }
                _ => reached.extend(data.results.iter().map(|&r| (r, how))),
            }
        }
        for next in reached {
            if matches!(kernel.ty(next.0), Type::Tile(_)) && seen.insert(next) {
                work.push(next);
            }
        }
    }
    match (rounded, statistic) {
        (false, true) => None,
        (true, true) if to_f16 => Some(Approximation::Absolute),
        _ => Some(Approximation::Relative),
    }
}

/// Whether a value is at least 1 or NaN: a sum of a constant that is, and of exponentials, magnitudes and squares.
pub(super) fn is_at_least_one(kernel: &Kernel, v: ValueId) -> bool {
    match kernel.def(v) {
        Some((_, Op::Constant(_, c))) => *c >= 1.0,
        Some((_, Op::Full { value, .. })) => is_at_least_one(kernel, *value),
        Some((_, &Op::Binary(BinaryOp::Add, a, b))) => {
            (is_at_least_one(kernel, a) && is_not_negative(kernel, b))
                || (is_not_negative(kernel, a) && is_at_least_one(kernel, b))
        }
        _ => false,
    }
}

fn is_not_negative(kernel: &Kernel, v: ValueId) -> bool {
    let of = |x: ValueId| is_not_negative(kernel, x);
    match kernel.def(v) {
        Some((_, Op::Constant(_, c))) => *c >= 0.0,
        Some((_, Op::Full { value, .. })) => of(*value),
        Some((_, Op::Unary(op, _))) => op.row().never_negative,
        Some((_, &Op::Binary(BinaryOp::Mul, a, b))) => a == b || (of(a) && of(b)),
        Some((_, &Op::Binary(BinaryOp::Add, a, b))) => of(a) && of(b),
        _ => false,
    }
}
