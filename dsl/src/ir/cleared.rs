//! The kernel that stores zeros.

use super::edit::{add_tensor, beside};
use super::kernel::{Direction, Kernel, TensorDecl};
use super::op::Op;
use super::whole::Whole;

/// The kernel of this name that is launched beside another one, and stores zeros to all of a
/// tensor, which has at least one dimension.
pub fn cleared(other: &Kernel, name: String, tensor: &str, decl: &TensorDecl) -> Kernel {
    let mut b = beside(other, name);
    let tensor = add_tensor(&mut b.kernel, tensor, TensorDecl { direction: Direction::Out, ..decl.clone() });
    let whole = Whole::of(&mut b, decl, &|_| false);
    let value = whole.zeros(&mut b);
    b.append(Op::Store { tensor, at: whole.at, value });
    b.finish()
}
