//! How a generated kernel is called: the contract between generated code and whoever launches it.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::reach::MAX_SIZE;
use flashtile_dsl::ir::{Binding, Elem, Kernel, SizeExpr, SizeKind};
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
    /// Device address (u64) of a zeroed workspace, which the kernel leaves zeroed, but for what it
    /// keeps for its next launch.
    Workspace {
        /// Its bytes, but for those of programs.
        bytes: u64,
        /// Bytes more for each program of the launch.
        per_program: u64,
        /// The last ones of `bytes`, which are kept: zeros are right there too, and forget.
        #[serde(default)]
        kept: u64,
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
    /// Where the last one comes twice, it is split: the first time it is as many elements as a row
    /// of the box has, which divide it, and the second time it is the parts of so many elements.
    pub order: Vec<u32>,
    /// Box in elements along each of these. A box is rows of so many elements as the first says,
    /// 128 or 64 bytes, swizzled over their length, or 16 bytes, one after the other. What lies
    /// outside of the tensor reads as zero, and is not written.
    pub tile: Vec<u32>,
    /// Bytes of an element.
    pub element_bytes: u32,
}

impl TensorMap {
    /// 16-bit elements in the rows of the boxes that a tile of so many columns (before padding) is filled with: 64, the 128-byte
    /// swizzle, or 32, the 64-byte swizzle.
    ///
    /// Boxes of 32 pad less where the columns are an odd multiple of 32. Elsewhere rows of 64 bytes would not start at
    /// multiples of 64 bytes in memory, and twice as many of them arrive at half the rate (docs/performance.md, "Head dims
    /// that are no multiple of 64").
    pub fn slab(columns: u32) -> u32 {
        if columns <= 32 || columns % 64 == 32 { 32 } else { 64 }
    }

    /// Whether the last dimension of the tensor is split.
    pub fn is_split(&self) -> bool {
        self.order.first() == self.order.get(1)
    }

    /// Bytes of a row of a box, over which it is swizzled; rows of 16 bytes, a single chunk, are not.
    pub fn row_bytes(&self) -> u32 {
        self.element_bytes * self.tile[0]
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
    /// A size of a kernel whose constants are bound.
    pub(crate) fn of(kernel: &Kernel, binding: &Binding, size: &SizeExpr) -> Self {
        let (terms, mut constant, divisor) = size.parts();
        let mut named = Vec::new();
        for (&id, &coefficient) in terms {
            let s = &kernel.sizes[id];
            match s.kind {
                SizeKind::Const => constant += coefficient * binding.consts[&s.name],
                SizeKind::Runtime => named.push((s.name.clone(), coefficient)),
            }
        }
        Self { terms: named, constant, divisor }
    }

    /// The value, given run-time sizes by name. `None` if one is missing.
    pub fn eval(&self, size: impl Fn(&str) -> Option<i64>) -> Option<i64> {
        Some(self.sum(size)?.div_euclid(self.divisor))
    }

    /// The value where the division leaves no remainder.
    fn exact(&self, size: impl Fn(&str) -> Option<i64>) -> Option<i64> {
        let sum = self.sum(size)?;
        (sum % self.divisor == 0).then_some(sum / self.divisor)
    }

    fn sum(&self, size: impl Fn(&str) -> Option<i64>) -> Option<i64> {
        let terms = self.terms.iter();
        terms.map(|(name, coefficient)| Some((size(name)?, coefficient))).try_fold(self.constant, |sum, term| {
            let (size, coefficient) = term?;
            sum.checked_add(size.checked_mul(*coefficient)?)
        })
    }
}

/// Rows of grouped heads as rows of one tile (`pack_gqa=on`): how the tensors of a call look to its
/// launches.
///
/// `heads` heads come in `groups` groups, the heads of a group one after the other, and each has `rows` rows. The launches have a
/// size that the kernel text does not have, the rows of a group, and address dimensions `(heads, rows)` of a tensor as
/// `(groups, rows of a group)`. Nothing is copied, so it takes strides that let it ([`FoldedRows::strides`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FoldedRows {
    /// Name of the size.
    pub size: String,
    /// Heads.
    pub heads: SizeTerm,
    /// Groups of heads.
    pub groups: SizeTerm,
    /// Rows of a head.
    pub rows: SizeTerm,
    /// The tensors, by name, each with the dimension of its heads; that of their rows is the next.
    pub tensors: Vec<(String, u32)>,
}

/// The sizes of [`FoldedRows`] in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoldedSizes {
    /// Groups of heads.
    pub groups: i64,
    /// Heads of a group.
    pub share: i64,
    /// Rows of a head.
    pub rows: i64,
    /// Rows of a group.
    pub folded: i64,
}

impl FoldedRows {
    /// The sizes, given those of the kernel text by name. `None` if the heads are not so many to each group, or the rows of a group
    /// more than [`MAX_SIZE`].
    pub fn sizes(&self, size: impl Fn(&str) -> Option<i64>) -> Option<FoldedSizes> {
        let (heads, rows) = (self.heads.exact(&size)?, self.rows.exact(&size)?);
        let groups = self.groups.exact(&size).filter(|&groups| groups > 0)?;
        let share = (heads > 0 && heads % groups == 0).then_some(heads / groups)?;
        let folded = share.checked_mul(rows).filter(|folded| (0..=MAX_SIZE).contains(folded))?;
        Some(FoldedSizes { groups, share, rows, folded })
    }

    /// The strides of the dimensions `(groups, rows of a group)` of a tensor whose dimensions `(heads, rows)` have these strides, all in
    /// elements. `is_last`: no dimension follows, so that the rows must be contiguous. `None` if one stride does not lead from each row
    /// of a group to the next.
    pub fn strides(sizes: FoldedSizes, [head, row]: [usize; 2], is_last: bool) -> Option<[usize; 2]> {
        let FoldedSizes { share, rows, .. } = sizes;
        if share == 1 || rows == 0 {
            return Some([head, row]);
        }
        let share = usize::try_from(share).ok()?;
        let step = if rows == 1 { head } else { row };
        let even = usize::try_from(rows).ok()?.checked_mul(step) == Some(head);
        (even && (!is_last || step == 1)).then_some([head.checked_mul(share)?, step])
    }

    /// Sizes by name, those of the kernel text and the rows of a group. `None` as [`FoldedRows::sizes`].
    pub fn with_size(&self, sizes: &BTreeMap<String, i64>) -> Option<BTreeMap<String, i64>> {
        let folded = self.sizes(|name| sizes.get(name).copied())?.folded;
        let mut all = sizes.clone();
        all.insert(self.size.clone(), folded);
        Some(all)
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
    /// Multiple of bytes that tensors begin at, and rows of as many bytes or more: a line of the L2 cache.
    pub const ALIGNMENT: usize = 128;
    /// The same of short rows: what the widest copy takes.
    pub const LEAST_ALIGNMENT: usize = 16;

    /// Multiple of bytes that rows of so many bytes begin at: the next power of two, so that no row is padded by as much as it has,
    /// between [`Self::LEAST_ALIGNMENT`] and [`Self::ALIGNMENT`].
    pub fn row_alignment(bytes: usize) -> usize {
        bytes.checked_next_power_of_two().unwrap_or(Self::ALIGNMENT).clamp(Self::LEAST_ALIGNMENT, Self::ALIGNMENT)
    }

    /// Strides in elements for these extents, and the bytes of the tensor: rows one after the other, each at an aligned address.
    pub fn layout(&self, shape: &[usize]) -> (Vec<usize>, usize) {
        let bytes = self.elem.bytes().expect("bound: an element type in memory");
        let mut strides = vec![1; shape.len()];
        let padded = |row: &usize| row.next_multiple_of(Self::row_alignment(row * bytes) / bytes);
        let mut step = shape.last().map_or(1, padded);
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
    /// Whether the launch may be queued to begin while the one before it runs (programmatic dependent launch), if that is one of the same
    /// call. Its code waits itself for what it needs of it, and does not end before it.
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
        assert_eq!(scratch.layout(&[4, 3, 10, 100]).0, [3840, 1280, 128, 1]);
        assert_eq!(scratch.layout(&[4, 3, 0]), (vec![0, 0, 1], 0));
        assert_eq!(scratch.layout(&[]), (vec![], 4));
    }

    fn folded(groups: SizeTerm) -> FoldedRows {
        let size = |name: &str| SizeTerm { terms: vec![(name.to_owned(), 1)], constant: 0, divisor: 1 };
        FoldedRows { size: "folded_rows".into(), heads: size("H"), groups, rows: size("M"), tensors: vec![("q".into(), 1)] }
    }

    #[test]
    fn heads_fold_where_every_group_has_as_many() {
        let of = |groups: SizeTerm, h: i64, m: i64| {
            let sizes = BTreeMap::from([("H".to_owned(), h), ("G".to_owned(), 2), ("M".to_owned(), m)]);
            folded(groups).with_size(&sizes).map(|sizes| sizes["folded_rows"])
        };
        let by_size = || SizeTerm { terms: vec![("G".into(), 1)], constant: 0, divisor: 1 };
        let by_share = || SizeTerm { terms: vec![("H".into(), 1)], constant: 0, divisor: 3 };
        let one = || SizeTerm { terms: vec![], constant: 1, divisor: 1 };
        assert_eq!([of(by_size(), 8, 5), of(by_size(), 2, 5), of(by_size(), 8, 0)], [Some(20), Some(5), Some(0)]);
        assert_eq!([of(by_size(), 7, 5), of(by_size(), 0, 5), of(by_size(), 1, 5)], [None; 3]);
        assert_eq!([of(by_share(), 9, 5), of(by_share(), 8, 5), of(by_share(), 2, 5)], [Some(15), None, None]);
        assert_eq!([of(one(), 7, 5), of(one(), 1 << 16, 1 << 15)], [Some(35), None]);
    }

    #[test]
    fn one_stride_leads_through_the_rows_of_a_group() {
        let sizes = |share: i64, rows: i64| FoldedSizes { groups: 2, share, rows, folded: share * rows };
        let of = |share, rows, strides| FoldedRows::strides(sizes(share, rows), strides, false);
        assert_eq!(of(4, 5, [40, 8]), Some([160, 8]));
        assert_eq!(of(4, 5, [48, 8]), None, "a gap between heads");
        assert_eq!(of(4, 5, [8, 64]), None, "rows outside of heads");
        assert_eq!(of(4, 1, [48, 9]), Some([192, 48]), "the stride of one row is never used");
        assert_eq!(of(1, 5, [8, 64]), Some([8, 64]), "one head a group");
        let last = |rows, strides| FoldedRows::strides(sizes(4, rows), strides, true);
        assert_eq!([last(5, [5, 1]), last(1, [1, 1])], [Some([20, 1]), Some([4, 1])]);
        assert_eq!([last(5, [6, 1]), last(1, [3, 1])], [None; 2], "the last dimension is contiguous");
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
