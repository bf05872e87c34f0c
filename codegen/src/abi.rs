//! How a generated kernel is called: the contract between generated code and whoever launches it.

use flashtile_dsl::ir::Elem;
use serde::{Deserialize, Serialize};

/// Contents of one field of the parameter block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// Device address (u64) of the tensor parameter's first element.
    Pointer(String),
    /// Stride in elements (i64) of a dimension of a tensor parameter.
    Stride(String, u32),
    /// A run-time size (i32).
    Size(String),
    /// A scalar parameter (f32 or i32, as declared).
    Scalar(String),
    /// Device address (u64) of a zeroed workspace, which the kernel leaves zeroed.
    Workspace {
        /// Its bytes, but for those of programs.
        bytes: u64,
        /// Bytes more for each program of the launch.
        per_program: u64,
    },
}

impl Field {
    /// Size in bytes, which is its alignment too.
    pub fn bytes(&self) -> usize {
        match self {
            Field::Pointer(_) | Field::Stride(..) | Field::Workspace { .. } => 8,
            Field::Size(_) | Field::Scalar(_) => 4,
        }
    }
}

/// A TMA tensor map, passed by value as a kernel parameter of its own, before the parameter block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorMap {
    /// Name of the kernel parameter.
    pub name: String,
    /// The tensor parameter of the kernel text that it maps.
    pub tensor: String,
    /// Dimensions of the tensor, innermost first: its last one, that of the tile's rows, the others.
    pub order: Vec<u32>,
    /// Box in elements along each of these. The innermost is a width of [`TensorMap::slab`]: a box is rows of so many elements,
    /// swizzled over their length. What lies outside of the tensor reads as zero.
    pub tile: Vec<u32>,
}

impl TensorMap {
    /// 16-bit elements in the rows of the boxes that a tile of `columns` is filled with: 64, the 128-byte swizzle, or 32, the
    /// 64-byte swizzle, where these pad less.
    pub fn slab(columns: u32) -> u32 {
        if columns.next_multiple_of(32) < columns.next_multiple_of(64) { 32 } else { 64 }
    }

    /// Bytes over which the rows of a box are swizzled.
    pub fn swizzle_bytes(&self) -> u32 {
        2 * self.tile[0]
    }
}

/// One dimension of the grid of programs, as in the kernel text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GridDim {
    /// As many as the size expression (text over the kernel's sizes, constants folded) says.
    Each(SizeTerm),
    /// `ceil(extent / block)`.
    Tiles(SizeTerm, u32),
}

/// `(sum of coefficient * size + constant) / divisor` over run-time sizes, by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SizeTerm {
    /// Sizes with coefficients.
    pub terms: Vec<(String, i64)>,
    /// Constant.
    pub constant: i64,
    /// Divisor.
    pub divisor: i64,
}

impl SizeTerm {
    /// The value, given run-time sizes by name. `None` if one is missing.
    pub fn eval(&self, size: impl Fn(&str) -> Option<i64>) -> Option<i64> {
        let mut sum = self.constant;
        for (name, coefficient) in &self.terms {
            sum += coefficient * size(name)?;
        }
        Some(sum.div_euclid(self.divisor))
    }
}

/// A tensor between launches: one writes it, a later one reads it. The launches know it by its name, as a parameter of theirs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scratch {
    /// Its name, which no parameter of the kernel text has.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Extents, outermost first.
    pub shape: Vec<SizeTerm>,
}

impl Scratch {
    /// Multiple of bytes that rows and tensors begin at: what the widest copy takes.
    pub const ALIGNMENT: usize = 16;

    /// Strides in elements for these extents, and the bytes of the tensor: rows one after the other, each at an aligned address.
    pub fn layout(&self, shape: &[usize]) -> (Vec<usize>, usize) {
        let bytes = self.elem.bytes().expect("bound: an element type in memory");
        let mut strides = vec![1; shape.len()];
        let mut step = shape.last().map_or(1, |row| row.next_multiple_of(Self::ALIGNMENT / bytes));
        for (stride, extent) in strides.iter_mut().zip(shape).rev().skip(1) {
            *stride = step;
            step *= extent;
        }
        (strides, step * bytes)
    }
}

/// How many blocks to launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blocks {
    /// One block per program: the product of the grid dimensions, as a one-dimensional grid.
    PerProgram,
    /// As many as are resident at once (multiprocessors times this), or fewer if there are fewer programs.
    Persistent(u32),
}

/// How to call a generated kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Abi {
    /// Name of the `extern "C"` entry point.
    pub entry: String,
    /// Tensor maps, in parameter order.
    pub tensor_maps: Vec<TensorMap>,
    /// Fields of the parameter block (one struct passed by value), in order; each at the next multiple of its size.
    pub fields: Vec<Field>,
    /// Grid of programs, outermost first.
    pub grid: Vec<GridDim>,
    /// Launch shape.
    pub blocks: Blocks,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
    /// Blocks of a cluster along x; 1 for none.
    pub cluster: u32,
    /// Registers that the roles of a block ask for in all (`setmaxnreg`), 0 if they keep what the launch gives them. A block that
    /// is launched with fewer never ends.
    pub registers: u32,
    /// Whether the launch may be queued to begin while the one before it runs (programmatic stream serialization). Its code waits
    /// itself for what it needs of it, and does not end before it.
    pub early: bool,
}

impl Abi {
    /// Byte offset of each field and the size of the parameter block.
    pub fn layout(&self) -> (Vec<usize>, usize) {
        let mut at = 0usize;
        let mut offsets = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            at = at.next_multiple_of(field.bytes());
            offsets.push(at);
            at += field.bytes();
        }
        (offsets, at.next_multiple_of(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_scratch_are_aligned() {
        let scratch = Scratch { name: "acc_parts".into(), elem: Elem::F32, shape: vec![] };
        assert_eq!(scratch.layout(&[4, 3, 10, 6]), (vec![240, 80, 8, 1], 4 * 240 * 4));
        assert_eq!(scratch.layout(&[4, 3, 0]), (vec![0, 0, 1], 0));
        assert_eq!(scratch.layout(&[]), (vec![], 4));
    }

    #[test]
    fn fields_are_naturally_aligned() {
        let abi = Abi {
            entry: "f".into(),
            tensor_maps: vec![],
            fields: vec![Field::Size("N".into()), Field::Pointer("q".into()), Field::Scalar("scale".into())],
            grid: vec![],
            blocks: Blocks::PerProgram,
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            registers: 0,
            early: false,
        };
        assert_eq!(abi.layout(), (vec![0, 8, 16], 24));
    }
}
