//! The verifier: what every kernel satisfies that a pass, an analysis or a backend is given.
//!
//! Structure, checked first (the rest relies on it):
//!
//! * `Entity`: every reference (to a value, op, block, axis, size, parameter, type parameter) is in range.
//! * `Nesting`: every op stands in one block at most; the body of every loop is a block of its own; loops do not contain
//!   themselves.
//! * `Definition`: values know where they are defined: results their op, parameters their block.
//! * `Program`: the first op of the kernel is `program`, and there is no other.
//! * `Yield`: every loop body ends in `yield`, the kernel body has none, and none stands elsewhere.
//! * `Dominance`: every operand is defined before its use, in the same block or one around it.
//! * `Axis`: a program axis belongs to one dimension of the grid, a loop axis to one loop.
//! * `Part`: what chooses a part of a loop is a program id of a grid dimension of as many programs as there are parts, so that
//!   every part is walked once.
//! * `Name`: type parameters, sizes and parameters have names that differ.
//!
//! Types:
//!
//! * `Carried`: a loop's initial values, body parameters, yielded values and results agree in number and type, and the
//!   first body parameter is the coordinate of its axis.
//! * `Operand`: operands are of the kind that the op wants: indices, coordinates, tiles, of the
//!   right element type and rank. Tiles hold no `u8`, `i8`, `f8e4m3` and `f8e5m2`. Tensors that are
//!   written hold none of these, and no `bool`.
//! * `Rank`: tiles have at most 2 dimensions, no axis twice, none of single positions, and ranges of const length.
//! * `Broadcast`: elementwise operands broadcast; a mask has only dimensions of what it masks; an accumulator has the
//!   type of its product.
//! * `Contraction`: the inner dimensions and the element types of a product agree.
//! * `Constant`: constants are f32, or i32 with an integral value in range; neither is NaN.
//! * `Result`: results have the types that the op gives.
//!
//! Memory:
//!
//! * `Address`: a load or store has one entry for each dimension; a coordinate walks the extent of its dimension; a range
//!   lies inside where both are constants.
//! * `Direction`: inputs are loaded, outputs stored, in-out tensors both; scalars are neither.
//! * `Stored`: the stored tile has the dimensions of its place and an element type that rounds to the tensor's.
//! * `Output`: every output is stored to, and every loop around a store is addressed by it, so that it is stored on every path.
//!   So it is of stores to all outputs but sums, to which any program and iteration may add.
//! * `Disjoint`: a store addresses every dimension of the grid, so that no two programs write the same place, and no two
//!   stores write the same place of a tensor.
//! * `InOut`: a tensor that is read and written has one load and one store. They stand in one block, the load first, and address
//!   the same tile. So with `Disjoint` nothing but the same program, in an earlier iteration of loops that do not address the
//!   tile, stores what a load reads, and loops around need not address such a store.
//! * `Tiling`: what a loop over tiles stores for the tile that it is at does not depend on what it carries, which is a matter of
//!   the tiles before it: how many these are, the schedule says. For the same reason what is added to a sum is a sum over
//!   each axis whose tiles do not tell the place, by `rowsum` or `dot`.
//!
//! Not checked: that stores cover a whole output, that a range is in bounds where sizes are symbolic, that a value computed
//! from a program id differs between programs, and that the result does not depend on block sizes otherwise (the types see to
//! most of it).

mod memory;
mod rule;
mod structure;
mod types;

use super::kernel::Kernel;
use rule::Errors;
pub use rule::{Rule, VerifyError};

/// Checks a kernel against every rule.
///
/// # Errors
/// All violations found. Where the structure is wrong, types and memory are not looked at.
pub fn verify(kernel: &Kernel) -> Result<(), Vec<VerifyError>> {
    let mut errors = Errors { kernel, list: Vec::new() };
    structure::check_entities(&mut errors);
    if errors.list.is_empty() {
        structure::check_blocks(&mut errors);
    }
    if errors.list.is_empty() {
        let bad = types::check(&mut errors);
        memory::check(&mut errors, &bad);
    }
    if errors.list.is_empty() { Ok(()) } else { Err(errors.list) }
}
