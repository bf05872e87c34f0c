//! `x + dot(a, b)` becomes one dot that accumulates onto `x`, which is what every tensor instruction does.

use flashtile_dsl::ir::{BinaryOp, Kernel, Op};

use super::edit;

/// Folds additions of a dot's only use into the dot.
pub fn accumulate_dots(kernel: &mut Kernel) {
    for (_, id) in kernel.walk() {
        let Op::Binary(BinaryOp::Add, lhs, rhs) = kernel.ops[id].op else { continue };
        let result = kernel.ops[id].results[0];
        for (dot, other) in [(rhs, lhs), (lhs, rhs)] {
            let Some((_, &Op::Dot { a, b, acc: None })) = kernel.def(dot) else { continue };
            if edit::users(kernel, dot).len() == 1 && lhs != rhs && kernel.ty(other) == kernel.ty(result) {
                kernel.ops[id].op = Op::Dot { a, b, acc: Some(other) };
                break;
            }
        }
    }
    edit::remove_dead(kernel);
}
