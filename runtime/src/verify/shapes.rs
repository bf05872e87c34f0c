//! The shapes that a kernel of one's own is checked on: few, small, and such that every part of the text acts.
//!
//! Axes that tiles walk have lengths of which no two are equal and no tile divides one, more and fewer rows than keys, a single
//! row, and a single key; the longest are several tiles of every schedule. In the last shape loops have nothing to walk, so
//! that results are the initial values of what loops carry. Sizes of the grid are 2 or 3, heads share groups unevenly to what
//! a wrong quotient would do, and sizes of which the text divides fit.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::lengths::{addressed, is_walked};
use flashtile_dsl::analysis::uses::groupings;
use flashtile_dsl::ir::{
    At, AxisKind, BinaryOp, IndexOp, Kernel, Op, ParamKind, ProgramDim, Size, SizeExpr, SizeId, SizeKind, Type, ValueId,
};

/// A round of the check.
struct Round {
    /// Lengths of walked axes, in order of the sizes; further axes begin again.
    walked: [i64; 3],
    /// Heads and groups.
    grouped: (i64, i64),
    /// Any other size.
    other: i64,
}

/// The first so many default shapes are also checked on steep inputs, where exponents are over a hundred times as large. All in
/// which loops walk something: with several tiles maxima fall by more than `exp` can hold, and rows of few keys lie far below 0.
pub const STEEP_SHAPES: usize = 4;

const ROUNDS: [Round; 4] = [
    Round { walked: [203, 331, 150], grouped: (4, 2), other: 2 },
    Round { walked: [131, 67, 87], grouped: (6, 2), other: 3 },
    Round { walked: [1, 331, 40], grouped: (3, 3), other: 2 },
    Round { walked: [67, 1, 1], grouped: (2, 1), other: 1 },
];

/// The round whose other sizes the shape has in which loops walk nothing.
const EMPTY: usize = 1;

/// Constants to check a kernel with, where the user gives none: 64 and, so that two are never taken for each other, 32; 64 for all
/// where a range would not fit into its dimension.
pub fn default_consts(kernel: &Kernel, given: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let names = kernel.sizes.values().filter(|size| size.kind == SizeKind::Const).map(|size| &size.name);
    let missing: Vec<&String> = names.filter(|name| !given.contains_key(*name)).collect();
    let with = |further: i64| {
        let values = missing.iter().enumerate().map(|(at, name)| ((*name).clone(), if at == 0 { 64 } else { further }));
        given.iter().map(|(name, value)| (name.clone(), *value)).chain(values).collect::<BTreeMap<_, _>>()
    };
    let different = with(32);
    if fits(kernel, &different) { different } else { with(64) }
}

/// Whether every range of compile-time length lies in its dimension, as far as constants say.
fn fits(kernel: &Kernel, consts: &BTreeMap<String, i64>) -> bool {
    let constant = |id: SizeId| consts.get(kernel.size_name(id)).copied();
    kernel.walk().into_iter().all(|(_, op)| {
        let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &kernel.ops[op].op else { return true };
        at.iter().zip(&kernel.tensor(*tensor).shape).all(|(at, extent)| match at {
            At::Range { start, len } => match (start.add(len).eval(constant), extent.eval(constant)) {
                (Some(end), Some(extent)) => end <= extent,
                _ => true,
            },
            _ => true,
        })
    })
}

/// Run-time sizes to check a kernel on whose constants have these values: the first shape exercises the most.
pub fn default_shapes(kernel: &Kernel, consts: &BTreeMap<String, i64>) -> Vec<BTreeMap<String, i64>> {
    let groupings = groupings(kernel);
    let shape = |round: &Round| -> BTreeMap<String, i64> {
        let mut walked = 0;
        let mut of = |id: SizeId, name: &str| {
            if is_walked(kernel, name) || is_gathered(kernel, name) {
                walked += 1;
                return round.walked[(walked - 1) % round.walked.len()].max(addressed(kernel, name, consts));
            }
            let heads = groupings.iter().any(|(heads, _)| *heads == id).then_some(round.grouped.0);
            let groups = groupings.iter().any(|(_, groups)| *groups == id).then_some(round.grouped.1);
            heads.or(groups).unwrap_or(round.other).max(addressed(kernel, name, consts))
        };
        let mut chosen = consts.clone();
        let mut shape = BTreeMap::new();
        for (id, size) in kernel.sizes.iter().filter(|(_, size)| size.kind == SizeKind::Runtime) {
            let n = whole(kernel, id, of(id, &size.name), &mut chosen);
            shape.insert(size.name.clone(), n);
        }
        shape
    };
    let mut shapes: Vec<_> = ROUNDS.iter().map(shape).collect();
    let empty = |(id, size): &(SizeId, &Size)| size.kind == SizeKind::Runtime && can_be_empty(kernel, *id);
    let empty: Vec<&String> = kernel.sizes.iter().filter(empty).map(|(_, size)| &size.name).collect();
    if !empty.is_empty() {
        let mut nothing = shape(&ROUNDS[EMPTY]);
        nothing.extend(empty.into_iter().map(|name| (name.clone(), 0)));
        shapes.push(nothing);
    }
    shapes
}

/// Whether loops walk the size and nothing fails if there is none of it: no program, no index and no quotient needs one.
fn can_be_empty(kernel: &Kernel, size: SizeId) -> bool {
    let has = |extent: &SizeExpr| extent.sizes().any(|id| id == size);
    let mut axes = kernel.axes.values().filter(|axis| has(&axis.extent)).peekable();
    let only_loops = axes.peek().is_some() && axes.all(|axis| axis.kind != AxisKind::Program);
    let at_0 = |extent: &SizeExpr| has(extent) && (extent.parts().1 < 0 || extent.parts().0.values().any(|c| *c < 0));
    let negative = kernel.params.values().any(|p| matches!(&p.kind, ParamKind::Tensor(t) if t.shape.iter().any(at_0)));
    let in_grid = kernel.grid().iter().any(|dim| matches!(dim, ProgramDim::Each(extent) if has(extent)));
    let is_size = |v: &ValueId| match kernel.def(*v) {
        Some((_, Op::FromIndex(x))) => matches!(kernel.def(*x), Some((_, Op::SizeOf(id))) if *id == size),
        Some((_, Op::SizeOf(id))) => *id == size,
        _ => false,
    };
    let needed = kernel.walk().into_iter().any(|(_, op)| match &kernel.ops[op].op {
        Op::Load { tensor, at } | Op::Store { tensor, at, .. } => {
            let extents = &kernel.tensor(*tensor).shape;
            at.iter().zip(extents).any(|(at, extent)| !matches!(at, At::Tile(_)) && has(extent))
        }
        Op::Gather { tensor, .. } | Op::Scatter { tensor, .. } => kernel.tensor(*tensor).shape.iter().any(has),
        Op::Index(IndexOp::Div | IndexOp::Rem, _, by) | Op::Binary(BinaryOp::Div | BinaryOp::Rem, _, by) => is_size(by),
        _ => false,
    });
    only_loops && !in_grid && !needed && !negative
}

/// Whether tiles of positions address a dimension of the size.
fn is_gathered(kernel: &Kernel, name: &str) -> bool {
    let of = |extent: &SizeExpr| extent.sizes().any(|id| kernel.size_name(id) == name);
    kernel.walk().into_iter().any(|(_, op)| match &kernel.ops[op].op {
        Op::Gather { tensor, at } => {
            at.iter().zip(&kernel.tensor(*tensor).shape).any(|(v, extent)| *kernel.ty(*v) != Type::Index && of(extent))
        }
        _ => false,
    })
}

/// The least size, from `least` on, with which the extents are whole whose other sizes are `chosen`;
/// it is chosen then. Where no size does that, one of which each extent is a multiple by itself.
fn whole(kernel: &Kernel, size: SizeId, least: i64, chosen: &mut BTreeMap<String, i64>) -> i64 {
    let tensors = kernel.params.values().filter_map(|p| match &p.kind {
        ParamKind::Tensor(t) => Some(&t.shape),
        ParamKind::Scalar(_) => None,
    });
    let extents = tensors.flatten().chain(kernel.axes.values().map(|axis| &axis.extent));
    let extents: Vec<&SizeExpr> = extents.filter(|extent| extent.sizes().any(|id| id == size)).collect();
    let step = extents.iter().map(|extent| extent.parts().2).fold(1, |all, by| if all % by == 0 { all } else { all * by });
    let name = kernel.size_name(size);
    let mut fits = |n: i64| {
        chosen.insert(name.to_owned(), n);
        extents.iter().all(|extent| {
            let (terms, constant, divisor) = extent.parts();
            let term = |(id, times): (&SizeId, &i64)| chosen.get(kernel.size_name(*id)).map(|n| n * times);
            let sum: Option<i64> = terms.iter().map(term).sum();
            sum.is_none_or(|sum| extent.is_rounded() || (sum + constant) % divisor == 0)
        })
    };
    let n = (least..least + step).find(|n| fits(*n)).unwrap_or((least + step - 1) / step * step);
    chosen.insert(name.to_owned(), n);
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel as Text;

    fn shapes(text: &str, consts: &[(&str, i64)]) -> Vec<BTreeMap<String, i64>> {
        let source = flashtile_dsl::ir::SourceText { name: "test.rs".into(), text: text.into(), first_line: 1 };
        let kernel = Text::from_source(&source).expect("a kernel").remove(0);
        default_shapes(kernel.ir(), &consts.iter().map(|&(n, v)| (n.to_owned(), v)).collect())
    }

    #[test]
    fn attention_has_groups_and_both_kinds_of_rectangles() {
        let kernel = Text::builtin("causal_rope_attention").expect("a built-in");
        let found = default_shapes(kernel.ir(), &[("D".to_owned(), 64)].into());
        let of = |name: &str| found.iter().map(|s| s[name]).collect::<Vec<_>>();
        assert_eq!((of("M"), of("N")), (vec![203, 131, 1, 67, 131], vec![331, 67, 331, 1, 0]));
        assert_eq!((of("H"), of("G"), of("B")), (vec![4, 6, 3, 2, 6], vec![2, 2, 3, 1, 2], vec![2, 3, 2, 1, 3]));
        assert_eq!(of("C"), [32; 5], "as many columns as are read");
    }

    #[test]
    fn constants_differ_where_ranges_let_them() {
        let consts = |columns: &str| {
            let text = format!(
                "pub fn f<const D: usize, const E: usize>(x: &Tensor<f32, (M, {columns})>, y: &mut Tensor<f32, (M, E)>) {{
                    let i = program(tiles(M));
                    store(y, [i, ..], load(x, [i, ..E]) * D);
                }}"
            );
            let source = flashtile_dsl::ir::SourceText { name: "test.rs".into(), text: text.into(), first_line: 1 };
            let kernel = Text::from_source(&source).expect("a kernel").remove(0);
            let of = |given: &[(&str, i64)]| {
                let consts = default_consts(kernel.ir(), &given.iter().map(|&(n, v)| (n.to_owned(), v)).collect());
                (consts["D"], consts["E"])
            };
            (of(&[]), of(&[("D", 16)]))
        };
        assert_eq!(consts("D"), ((64, 32), (16, 64)), "a range that is too long is for the launch to refuse");
    }

    #[test]
    fn a_constant_that_loops_walk_is_no_size_of_a_shape() {
        let sums = "pub fn f<const E: usize>(x: &Tensor<f32, (M, E)>, y: &mut Tensor<f32, (M)>) {
            let i = program(tiles(M));
            let mut a = zeros(i);
            for e in tiles(E) { a += rowsum(load(x, [i, e])); }
            store(y, [i], a);
        }";
        let found = shapes(sums, &[("E", 64)]);
        assert!(found.len() > 2 && found.iter().all(|shape| shape.keys().eq(["M"])), "{found:?}");
    }

    #[test]
    fn loops_walk_nothing_in_the_last_shape() {
        let of = |text: &str| shapes(text, &[]).iter().map(|s| (s["M"], s["N"])).collect::<Vec<_>>();
        let sums = "pub fn f(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M)>) {
            let i = program(tiles(M));
            let mut a = zeros(i);
            for j in tiles(N) { a += rowsum(load(x, [i, j]))WHAT; }
            store(y, [i], a);
        }";
        assert_eq!(of(&sums.replace("WHAT", "")).last(), Some(&(131, 0)));
        let divides = of(&sums.replace("WHAT", " + (pos(i) % N)"));
        assert!(divides.iter().all(|s| s.1 > 0), "nothing is divided by 0: {divides:?}");
    }

    #[test]
    fn sizes_reach_as_far_as_the_text() {
        let text = "pub fn f(x: &Tensor<f32, (P, N)>, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            let mut a = load(x, [4, i]) + load(x, [1, i]);
            for j in tiles(N / 8) { a += rowsum(select(pos(i) >= pos(j), 1.0, 0.0)); }
            store(y, [i], a);
        }";
        let found = shapes(text, &[]);
        assert!(found.iter().all(|s| s["P"] == 5 && s["N"] > 0 && s["N"] % 8 == 0), "{found:?}");
    }

    #[test]
    fn dimensions_that_divide_are_whole() {
        let text = "pub fn f(
            x: &Tensor<f32, ((N - 1) / 2)>, w: &Tensor<f32, (M)>, z: &Tensor<f32, ((M + N) / 3)>, y: &mut Tensor<f32, (N)>,
        ) {
            let i = program(tiles(N));
            store(y, [i], load(x, [0]) + load(w, [0]) + load(z, [0]));
        }";
        let found = shapes(text, &[]);
        assert!(found.iter().all(|s| s["N"] % 2 == 1 && (s["M"] + s["N"]) % 3 == 0), "{found:?}");
        assert!(found.iter().any(|s| s["N"] == 203), "no more than is needed: {found:?}");
        assert!(found.iter().all(|s| s["N"] >= 3), "`x` has an element: {found:?}");
    }

    #[test]
    fn sizes_are_what_computed_dimensions_need() {
        let text = "pub fn f(x: &Tensor<f32, (2 * P - 3, 4)>, z: &Tensor<f32, (N - 5)>, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [4, 3]) + load(z, [0]));
        }";
        let found = shapes(text, &[]);
        assert!(found.iter().all(|s| s["P"] == 4 && s["N"] >= 5), "{found:?}");
    }
}
