//! Factors that are the same for all elements of a matrix: `x * u / v` becomes `x * (u / v)`.
//!
//! A chain of products and quotients with scalars (`dot(q, k) * scale / cap`) becomes one product an element, and the scalar is
//! computed once, before the loop where nothing in it changes. The product is rounded in another order, to the same number of
//! roundings or fewer. The quotient of the scalars must not leave the range of f32, as the factor of
//! [`super::exponent`] must not. A division by a matrix or a vector is not touched.
//!
//! A mask between two factors does not part them: what it hides is 0 or -inf, which are their own
//! multiples by a positive constant. So `exp(mask(s * scale, ..))` has one product an element, too.

use flashtile_dsl::ir::{BinaryOp, Elem, Kernel, Op, OpId, ValueId};

use super::edit;

/// A matrix with its uniform factors.
struct Chain {
    base: ValueId,
    factors: Vec<ValueId>,
    divisors: Vec<ValueId>,
}

/// Joins the uniform factors of matrices.
pub fn join_factors(kernel: &mut Kernel) {
    while let Some(masked) = kernel.walk().into_iter().find_map(|(_, id)| masked_product(kernel, id)) {
        mask_the_product(kernel, masked);
    }
    for (_, id) in kernel.walk() {
        let Some(&result) = kernel.ops[id].results.first() else { continue };
        // A link inside a longer chain is joined with the chain's end.
        let inner = matches!(edit::users(kernel, result)[..], [user] if link(kernel, user).is_some_and(|(x, ..)| x == result));
        if inner || link(kernel, id).is_none() {
            continue;
        }
        let chain = chain(kernel, id);
        if chain.factors.len() + chain.divisors.len() < 2 && chain.divisors.is_empty() {
            continue;
        }
        let factor = factor(kernel, id, &chain);
        kernel.ops[id].op = Op::Binary(BinaryOp::Mul, chain.base, factor);
    }
    edit::remove_dead(kernel);
}

/// A product of what a mask leaves and a positive constant.
struct Masked {
    mask: OpId,
    product: OpId,
    factor: f64,
}

/// The op, if it multiplies a masked matrix that has a uniform factor of its own, and nothing else
/// reads that matrix.
fn masked_product(kernel: &Kernel, product: OpId) -> Option<Masked> {
    let (matrix, scalar, false) = link(kernel, product)? else { return None };
    let factor = match kernel.def(scalar)?.1 {
        Op::Constant(Elem::F32, c) if *c > 0.0 && c.is_finite() => *c,
        _ => return None,
    };
    let mask_of = |value: ValueId| match kernel.def(value) {
        Some((id, &Op::Mask { x, .. })) if edit::users(kernel, value).len() == 1 => Some((id, x)),
        _ => None,
    };
    let (mask, mut inner) = mask_of(matrix)?;
    while let Some((_, further)) = mask_of(inner) {
        inner = further;
    }
    let has_factor = edit::users(kernel, inner).len() == 1 && link(kernel, kernel.def(inner)?.0).is_some();
    has_factor.then_some(Masked { mask, product, factor })
}

/// Multiplies first, and masks the product.
fn mask_the_product(kernel: &mut Kernel, masked: Masked) {
    let Masked { mask, product, factor } = masked;
    let span = kernel.ops[product].span;
    let Op::Mask { x, keep, fill } = kernel.ops[mask].op else { unreachable!("a mask") };
    let [before, result] = [mask, product].map(|id| kernel.ops[id].results[0]);
    let factor = edit::insert_before(kernel, mask, Op::Constant(Elem::F32, factor), span);
    let scaled = edit::insert_before(kernel, mask, Op::Binary(BinaryOp::Mul, x, factor), span);
    kernel.ops[mask].op = Op::Mask { x: scaled, keep, fill };
    edit::replace_uses(kernel, result, before, &[]);
    let block = edit::places(kernel)[&product].block;
    kernel.blocks[block].ops.retain(|&op| op != product);
}

/// The matrix and the scalar of a product or quotient, and whether the matrix is divided.
fn link(kernel: &Kernel, id: OpId) -> Option<(ValueId, ValueId, bool)> {
    let float = |v: ValueId, rank: usize| {
        let tile = kernel.tile(v);
        tile.rank() == rank && tile.elem == Elem::F32
    };
    match kernel.ops[id].op {
        Op::Binary(BinaryOp::Mul, a, b) if float(a, 2) && float(b, 0) => Some((a, b, false)),
        Op::Binary(BinaryOp::Mul, a, b) if float(a, 0) && float(b, 2) => Some((b, a, false)),
        Op::Binary(BinaryOp::Div, a, b) if float(a, 2) && float(b, 0) => Some((a, b, true)),
        _ => None,
    }
}

fn chain(kernel: &Kernel, end: OpId) -> Chain {
    let mut found = Chain { base: kernel.ops[end].results[0], factors: Vec::new(), divisors: Vec::new() };
    let mut next = Some(end);
    while let Some(id) = next {
        let Some((x, scalar, divided)) = link(kernel, id) else { break };
        if divided { &mut found.divisors } else { &mut found.factors }.push(scalar);
        found.base = x;
        next = kernel.def(x).map(|(op, _)| op).filter(|_| edit::users(kernel, x).len() == 1);
    }
    found
}

/// The product of the factors over that of the divisors, made before the op.
fn factor(kernel: &mut Kernel, id: OpId, chain: &Chain) -> ValueId {
    let before = |kernel: &mut Kernel, op: Op| {
        let span = kernel.ops[id].span;
        edit::insert_before(kernel, id, op, span)
    };
    let product = |kernel: &mut Kernel, values: &[ValueId]| {
        values.iter().copied().reduce(|a, b| before(kernel, Op::Binary(BinaryOp::Mul, a, b)))
    };
    let (factors, divisors) = (product(kernel, &chain.factors), product(kernel, &chain.divisors));
    match (factors, divisors) {
        (Some(factor), None) => factor,
        (factor, divisor) => {
            let factor = factor.unwrap_or_else(|| before(kernel, Op::Constant(Elem::F32, 1.0)));
            let divisor = divisor.expect("a chain has a factor or a divisor");
            before(kernel, Op::Binary(BinaryOp::Div, factor, divisor))
        }
    }
}
