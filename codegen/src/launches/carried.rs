//! What a loop carries, kept between launches: an f32 tensor for each carried value, with a place
//! for every program, or for every part of every program.

use flashtile_dsl::ir::{At, Dim, Direction, Elem, Kernel, ParamId, ProgramDim, SizeExpr, TensorDecl, ValueId};

use crate::rewrite::edit;

/// A tensor that keeps one carried value.
pub(super) struct Kept {
    pub name: String,
    /// The place of the value among those that the loop carries.
    pub slot: usize,
    /// Where a program finds its tile; behind the part, if the tensor has parts.
    at: Vec<At>,
    shape: Vec<SizeExpr>,
}

impl Kept {
    /// Where a program finds its tile in a tensor without parts.
    pub fn at(&self) -> Vec<At> {
        self.at.clone()
    }

    /// Where a program finds its tile of a part.
    pub fn at_part(&self, part: ValueId) -> Vec<At> {
        [At::Index(part)].into_iter().chain(self.at.iter().cloned()).collect()
    }
}

/// Tensors for carried values, each given with its place among them; with a place for each of
/// `parts` if there are any. Their names end in `ending`, and none is a name of `others`.
///
/// # Errors
/// What [`place`] says.
pub(super) fn kept(
    kernel: &Kernel,
    values: impl Iterator<Item = (usize, ValueId)>,
    (ending, parts): (&str, Option<u32>),
    others: &[Kept],
) -> Result<Vec<Kept>, String> {
    let mut out: Vec<Kept> = Vec::new();
    for (slot, value) in values {
        let (at, extents): (Vec<At>, Vec<SizeExpr>) = place(kernel, value)?.into_iter().unzip();
        let taken = out.iter().chain(others).map(|kept| kept.name.as_str());
        let name = edit::free_name(kernel, &format!("{}_{ending}", name(kernel, value)), taken);
        let parts = parts.map(|count| SizeExpr::constant(count.into()));
        out.push(Kept { name, slot, at, shape: parts.into_iter().chain(extents).collect() });
    }
    Ok(out)
}

/// Adds the tensors to a kernel.
pub(super) fn declare(kernel: &mut Kernel, kept: &[Kept], direction: Direction) -> Vec<ParamId> {
    let decl = |kept: &Kept| TensorDecl { elem: Elem::F32, shape: kept.shape.clone(), direction };
    kept.iter().map(|kept| edit::add_tensor(kernel, &kept.name, decl(kept))).collect()
}

/// Where a carried value is kept: the program, then the dimensions of the value. Each entry with
/// its extent.
///
/// # Errors
/// The value is not f32, or programs of the grid would share its place.
pub(super) fn place(kernel: &Kernel, value: ValueId) -> Result<Vec<(At, SizeExpr)>, String> {
    let (tile, name) = (kernel.tile(value), name(kernel, value));
    if tile.elem != Elem::F32 {
        return Err(format!("`{name}` is {}, and not f32", kernel.elem_name(tile.elem)));
    }
    let mut out = Vec::new();
    let program = &kernel.ops[kernel.blocks[kernel.body].ops[0]].results;
    for (dim, &v) in kernel.grid().iter().zip(program) {
        match dim {
            ProgramDim::Each(size) => out.push((At::Index(v), size.clone())),
            ProgramDim::Tiles(axis) if tile.dims.contains(&Dim::Axis(*axis)) => {}
            ProgramDim::Tiles(axis) => {
                return Err(format!("`{name}` does not have the grid's axis `{}`", kernel.axes[*axis].name));
            }
        }
    }
    for dim in &tile.dims {
        match dim {
            Dim::Axis(axis) => {
                let at = kernel.grid().iter().position(|d| *d == ProgramDim::Tiles(*axis));
                let at = at.ok_or_else(|| format!("`{name}` has an axis that is not the grid's"))?;
                out.push((At::Tile(program[at]), kernel.axes[*axis].extent.clone()));
            }
            Dim::Range(len) => out.push((At::Range { start: SizeExpr::constant(0), len: len.clone() }, len.clone())),
        }
    }
    Ok(out)
}

/// The name of a carried value, or its number.
pub(super) fn name(kernel: &Kernel, value: ValueId) -> String {
    kernel.values[value].name.clone().unwrap_or_else(|| value.to_string())
}
