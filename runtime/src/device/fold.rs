//! Folded rows of a launch: what the arguments must be for it, and how they look to code that folds.
//!
//! Names are resolved once; whether a call folds is then found out without an allocation.

use flashtile_codegen::{FoldedRows, FoldedSizes, folded_rows};
use flashtile_dsl::ir::{self, Binding, Entity, Size, SizeKind};

use super::{Call, CallArgument};

/// The [`FoldedRows`] of a kernel, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FoldPlan {
    rows: FoldedRows,
    /// The sizes that they depend on, each with its position.
    sizes: Vec<(String, usize)>,
    /// Positions of the tensors, and the dimensions of heads in them.
    tensors: Vec<(usize, usize)>,
}

impl FoldPlan {
    /// Of the rows that `pack_gqa=on` folds of a kernel, if it has such.
    pub fn of(kernel: &ir::Kernel, binding: &Binding) -> Option<Self> {
        folded_rows(kernel, binding).map(|rows| Self::new(&rows, kernel).expect("the names are the kernel's own"))
    }

    /// Resolves the names. An error names what the kernel does not have, which is a fault of the generator.
    pub fn new(rows: &FoldedRows, kernel: &ir::Kernel) -> Result<Self, String> {
        let names = [&rows.heads, &rows.groups, &rows.rows].into_iter().flat_map(|term| term.terms.iter().map(|(name, _)| name));
        let size = |name: &String| {
            let id = kernel.size_named(name).ok_or_else(|| format!("the kernel has no size `{name}`"))?;
            Ok((name.clone(), id.index()))
        };
        let tensor = |(name, dimension): &(String, u32)| {
            let id = kernel.param_named(name).ok_or_else(|| format!("the kernel has no parameter `{name}`"))?;
            Ok((id.index(), *dimension as usize))
        };
        Ok(Self {
            rows: rows.clone(),
            sizes: names.map(size).collect::<Result<_, String>>()?,
            tensors: rows.tensors.iter().map(tensor).collect::<Result<_, String>>()?,
        })
    }

    /// The kernel as launches know it: with the size that its text does not have, after all others.
    pub fn kernel(&self, kernel: &ir::Kernel) -> ir::Kernel {
        let mut kernel = kernel.clone();
        kernel.sizes.push(Size { name: self.rows.size.clone(), kind: SizeKind::Runtime });
        kernel
    }

    /// The sizes of folded rows, given those of the kernel text; `None` if they do not fold.
    fn sizes(&self, sizes: &[i64]) -> Option<FoldedSizes> {
        self.rows.sizes(|name| self.sizes.iter().find(|(known, _)| known == name).map(|(_, place)| sizes[*place]))
    }

    /// Whether sizes fold where tensors are packed.
    pub fn folds_packed(&self, sizes: &[i64]) -> bool {
        self.sizes(sizes).is_some()
    }

    /// Whether sizes and tensors, found by position, fold: what [`flashtile_codegen::Facts::foldable`] says.
    pub fn folds<'a>(&self, sizes: &[i64], strides: impl Fn(usize) -> Option<&'a [usize]>) -> bool {
        let Some(sizes) = self.sizes(sizes) else { return false };
        self.tensors
            .iter()
            .all(|&(param, dimension)| strides(param).is_some_and(|strides| folded_strides(sizes, strides, dimension).is_some()))
    }

    /// A call as code that folds sees it; `None` if its arguments do not fold.
    pub fn view(&self, call: &Call<'_>) -> Option<FoldedCall> {
        let found = self.sizes(call.sizes)?;
        let groups = usize::try_from(found.groups).ok()?;
        let folded = usize::try_from(found.folded).ok()?;
        let view = |&(param, dimension): &(usize, usize)| {
            let CallArgument::Tensor { shape, strides, .. } = call.arguments[param] else { return None };
            let (mut shape, mut strides) = (shape.to_vec(), strides.to_vec());
            let pair = folded_strides(found, &strides, dimension)?;
            shape[dimension..dimension + 2].copy_from_slice(&[groups, folded]);
            strides[dimension..dimension + 2].copy_from_slice(&pair);
            Some((param, shape, strides))
        };
        let tensors = self.tensors.iter().map(view).collect::<Option<Vec<_>>>()?;
        Some(FoldedCall { sizes: call.sizes.iter().copied().chain([found.folded]).collect(), tensors })
    }
}

fn folded_strides(sizes: FoldedSizes, strides: &[usize], dimension: usize) -> Option<[usize; 2]> {
    FoldedRows::strides(sizes, [strides[dimension], strides[dimension + 1]], dimension + 2 == strides.len())
}

/// A call whose rows are folded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FoldedCall {
    /// Values of all sizes, the rows of a group last.
    pub sizes: Vec<i64>,
    /// Positions, shapes and strides of the tensors that are seen in another way.
    tensors: Vec<(usize, Vec<usize>, Vec<usize>)>,
}

impl FoldedCall {
    /// The arguments, in the order of the call that this was made of.
    pub fn arguments<'a>(&'a self, arguments: &'a [CallArgument<'a>]) -> impl Iterator<Item = CallArgument<'a>> {
        arguments.iter().enumerate().map(|(position, &argument)| {
            let seen = self.tensors.iter().find(|(param, ..)| *param == position);
            match (argument, seen) {
                (CallArgument::Tensor { memory, offset, elem, address, writes, .. }, Some((_, shape, strides))) => {
                    CallArgument::Tensor { memory, offset, elem, address, shape, strides, writes }
                }
                (argument, _) => argument,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cpu;
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::analysis::reach::Width;
    use flashtile_dsl::ir::Elem;

    fn plan() -> (FoldPlan, ir::Kernel) {
        let kernel = Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 8)]).expect("binds");
        (FoldPlan::of(kernel.ir(), kernel.binding()).expect("queries are grouped"), kernel.ir().clone())
    }

    /// Sizes of 6 heads in 2 groups, with 5 rows each or as many as given.
    fn sizes(kernel: &ir::Kernel, rows: i64, groups: i64) -> Vec<i64> {
        let of = |name: &str| match name {
            "D" => 8,
            "B" => 1,
            "H" => 6,
            "G" => groups,
            "M" => rows,
            _ => 40,
        };
        kernel.sizes.values().map(|s| of(&s.name)).collect()
    }

    #[test]
    fn calls_fold_by_their_sizes_and_strides() {
        let (plan, kernel) = plan();
        let folds = |rows: i64, groups: i64, strides: [&[usize]; 3]| {
            let of = |param: usize| match kernel.params[ir::ParamId::from_index(param)].name.as_str() {
                "q" => Some(strides[0]),
                "o" => Some(strides[1]),
                "lse" => Some(strides[2]),
                _ => None,
            };
            plan.folds(&sizes(&kernel, rows, groups), of)
        };
        let (packed, lse) = (&[240, 40, 8, 1][..], &[30, 5, 1][..]);
        assert!(folds(5, 2, [packed, packed, lse]));
        assert!(folds(5, 2, [&[480, 80, 16, 1], packed, lse]), "rows far apart");
        assert!(!folds(5, 2, [&[240, 8, 48, 1], packed, lse]), "rows outside of heads");
        assert!(!folds(5, 2, [packed, packed, &[48, 8, 1]]), "a gap between the heads of one tensor");
        assert!(!folds(5, 4, [packed, packed, lse]), "6 heads in 4 groups");
        assert!(folds(5, 6, [&[240, 8, 48, 1], packed, lse]), "a group for each head");
        assert!(folds(1, 2, [&[48, 8, 48, 1], &[96, 16, 9, 1], &[6, 1, 1]]));
        assert!(!folds(1, 2, [&[48, 8, 8, 1], &[48, 8, 8, 1], &[48, 8, 1]]), "the last dimension is contiguous");
    }

    #[test]
    fn code_that_folds_sees_groups_and_their_rows() {
        let (plan, kernel) = plan();
        let memory = Cpu::device().allocate(16).expect("small");
        let own = |shape: &'static [usize], strides: &'static [usize]| CallArgument::Tensor {
            memory: Some(&*memory),
            offset: 3,
            elem: Elem::F16,
            address: 4096,
            shape,
            strides,
            writes: false,
        };
        let rows = own(&[1, 6, 5, 8], &[240, 40, 8, 1]);
        let keys = own(&[1, 2, 40, 8], &[640, 320, 8, 1]);
        let arguments = [rows, keys, keys, CallArgument::F32(1.0), rows, own(&[1, 6, 5], &[30, 5, 1])];
        let sizes = sizes(&kernel, 5, 2);
        let call = plan.view(&Call { arguments: &arguments, sizes: &sizes, width: Width::Narrow, stream: None }).expect("folds");
        assert_eq!((call.sizes.len(), call.sizes.last()), (sizes.len() + 1, Some(&15)));
        let seen: Vec<_> = call.arguments(&arguments).collect();
        let of = |position: usize| match seen[position] {
            CallArgument::Tensor { offset: 3, address: 4096, shape, strides, .. } => (shape.to_vec(), strides.to_vec()),
            _ => panic!("a tensor in the same place"),
        };
        assert_eq!(of(0), (vec![1, 2, 15, 8], vec![240, 120, 8, 1]));
        assert_eq!(of(1), (vec![1, 2, 40, 8], vec![640, 320, 8, 1]));
        assert_eq!(of(5), (vec![1, 2, 15], vec![30, 15, 1]));
        let id = plan.kernel(&kernel).size_named("folded_rows").expect("a size more");
        assert_eq!(id.index(), sizes.len());
    }
}
