//! What a part of a sum needs: the programs that add to it, and the tiles of loops in which they do.
//!
//! Of the gradient of queries that programs of keys add to, `add(dq, [b, h, i, ..], ..)` in a loop
//! over tiles `i`, the rows of one `i` need the programs of one `b` and `h`, and of each one step:
//!
//! ```text
//! along 0: program 0, along 1: program 1, along 2: tiles of i, along 3: all
//! ```

use super::live::storing_only;
use crate::ir::{At, Kernel, Op, OpId, ParamId, ProgramDim, Type, ValueDef, ValueId};

/// The kernel that adds to a sum and stores nothing else, and what each dimension of the sum tells
/// of its programs and loops.
#[derive(Clone, Debug)]
pub struct Addends {
    /// What only the sum needs, with the parameters of the whole kernel.
    pub kernel: Kernel,
    /// One for each dimension.
    pub along: Vec<Along>,
}

/// What adds to a position, or to a tile of positions, of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Along {
    /// Programs that have its number in this dimension of the grid.
    Program {
        /// Dimension of the grid.
        dim: usize,
        /// Whether the number is one of a tile; else it is the position.
        tile: bool,
    },
    /// The iteration of this number: of a loop that carries nothing.
    Loop {
        /// Coordinate or index that the loop gives.
        at: ValueId,
        /// Whether the number is one of a tile; else it is the position.
        tile: bool,
    },
    /// Anything may.
    All,
}

impl Addends {
    /// Of this sum.
    pub fn of(kernel: &Kernel, sum: ParamId) -> Self {
        let part = storing_only(kernel, sum);
        let places = part.walk().into_iter().filter_map(|(_, op)| match &part.ops[op].op {
            Op::Store { at, .. } => Some(at.iter().map(|at| along(&part, at)).collect::<Vec<_>>()),
            Op::Scatter { at, .. } => {
                let of = |v: &ValueId| match part.ty(*v) {
                    Type::Index => along(&part, &At::Index(*v)),
                    _ => Along::All,
                };
                Some(at.iter().map(of).collect())
            }
            _ => None,
        });
        // Several ops that add agree, or tell nothing.
        let agreed =
            places.reduce(|all, one| all.into_iter().zip(one).map(|(a, b)| if a == b { a } else { Along::All }).collect());
        let along = agreed.unwrap_or_else(|| vec![Along::All; kernel.tensor(sum).shape.len()]);
        Self { kernel: part, along }
    }
}

fn along(kernel: &Kernel, at: &At) -> Along {
    let (value, tile) = match at {
        At::Index(value) => (*value, false),
        At::Tile(value) => (*value, true),
        At::Range { .. } => return Along::All,
    };
    match kernel.values[value].def {
        ValueDef::Result(op, dim) => match &kernel.ops[op].op {
            Op::Program(dims) if tile == matches!(dims[dim as usize], ProgramDim::Tiles(_)) => {
                Along::Program { dim: dim as usize, tile }
            }
            _ => Along::All,
        },
        ValueDef::BlockParam(block, 0) => {
            let over = |op: &OpId| matches!(&kernel.ops[*op].op, Op::For { body, init, part: None, .. } if *body == block && init.is_empty());
            match kernel.walk().into_iter().any(|(_, op)| over(&op)) {
                true => Along::Loop { at: value, tile },
                false => Along::All,
            }
        }
        ValueDef::BlockParam(..) => Along::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;

    /// What the dimensions of the first sum tell, `ops` being the ops that the sum needs.
    fn addends_of(body: &str) -> Addends {
        let (g, n) = if body.contains("tiles(N)") { ("G", "N") } else { ("H", "M") };
        let text = format!(
            "pub fn f<T: Element, const D: usize>(q: &Tensor<T, (H, M, D)>, k: &Tensor<T, ({g}, {n}, D)>, \
             sum: &mut Tensor<f32, (H, M, D)>, out: &mut Tensor<T, ({g}, {n}, D)>) {{ {body} }}"
        );
        let kernels = crate::syntax::parse(&SourceText { name: "f.rs".to_owned(), text: text.into(), first_line: 1 });
        let kernel = kernels.unwrap_or_else(|e| panic!("{e:?}")).remove(0);
        let sum = kernel.params.keys().find(|&p| kernel.params[p].kind.is_sum()).expect("a sum");
        Addends::of(&kernel, sum)
    }

    const COLUMNS: &str = "let (g, j) = program(G, tiles(N)); let c = load(k, [g, j, ..]); let mut acc = zeros((j, D));
        for h in 0..H {
            let mut own = acc;
            for i in tiles(M) {
                let r = load(q, [h, i, ..]);
                let p = mask(dot(c, r.t()), h * G / H == g);
                add(sum, [h, i, ..], dot(p.to::<T>().t(), c));
                own = own + dot(p.to::<T>(), r);
            }
            acc = own;
        }
        store(out, [g, j, ..], acc);";

    #[test]
    fn rows_need_one_iteration_of_loops_that_carry_only_other_outputs() {
        let found = addends_of(COLUMNS);
        let [Along::Loop { tile: false, .. }, Along::Loop { tile: true, .. }, Along::All] = found.along[..] else {
            panic!("{:?}", found.along)
        };
        let stores =
            |kernel: &Kernel| kernel.walk().iter().filter(|(_, op)| matches!(kernel.ops[*op].op, Op::Store { .. })).count();
        assert_eq!(stores(&found.kernel), 1, "the other output is left out");
    }

    #[test]
    fn a_loop_that_carries_what_the_sum_needs_is_run_whole() {
        let text = COLUMNS.replace("h * G / H == g", "before == 0").replace("for h in", "let mut before = 0; for h in");
        let found = addends_of(&text.replace("acc = own;", "acc = own; before = before + 1;"));
        let [Along::All, Along::Loop { tile: true, .. }, Along::All] = found.along[..] else { panic!("{:?}", found.along) };
    }

    #[test]
    fn programs_and_computed_indices() {
        let body = "let (h, i) = program(H, tiles(M)); let r = load(q, [h, i, ..]) + load(k, [h, i, ..]);
            add(sum, [h, i, ..], r.to::<f32>()); store(out, [h, i, ..], r);";
        let (own, other) = (addends_of(body), addends_of(&body.replace("add(sum, [h,", "add(sum, [h / 2,")));
        let rows = Along::Program { dim: 1, tile: true };
        assert_eq!(own.along, [Along::Program { dim: 0, tile: false }, rows, Along::All]);
        assert_eq!(other.along, [Along::All, rows, Along::All]);
    }

    #[test]
    fn ops_that_add_to_other_places_leave_nothing_to_tell() {
        let body = "let (h, i) = program(H, tiles(M)); let r = load(q, [h, i, ..]) + load(k, [h, i, ..]);
            let x = r.to::<f32>(); add(sum, [h, i, ..], x); add(sum, [H - 1 - h, i, ..], x); store(out, [h, i, ..], r);";
        assert_eq!(addends_of(body).along, [Along::All, Along::Program { dim: 1, tile: true }, Along::All]);
    }
}
