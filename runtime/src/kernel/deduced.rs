//! What the inputs of a call say of a kernel: its types and sizes, and from these the forms of its
//! outputs. For callers that allocate outputs themselves.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use flashtile_dsl::ir::{self, Binding, Elem, ParamKind, SizeExpr, SizeId, SizeKind};

use super::{BoundKernel, Kernel};
use crate::error::{ArgumentError, Result};

/// Element types and sizes of one call, by the names in the kernel's text; see [`Kernel::deduce`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deduced {
    /// Element types by the name of the type parameter.
    pub types: BTreeMap<String, Elem>,
    /// Sizes by name, of constants and of dimensions.
    pub sizes: BTreeMap<String, i64>,
}

impl Deduced {
    /// Whether all types and sizes of a kernel are among these.
    pub fn has_all_of(&self, kernel: &Kernel) -> bool {
        let ir = kernel.ir();
        ir.sizes.values().all(|size| self.sizes.contains_key(&size.name))
            && ir.type_params.iter().all(|name| self.types.contains_key(name))
    }
}

/// Element type and shape of an output; see [`Kernel::outputs`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputForm<'a> {
    /// Name of the parameter.
    pub name: &'a str,
    /// Element type.
    pub elem: Elem,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

impl Kernel {
    /// The element types and sizes that follow from input tensors, given by the name of the
    /// parameter. `known` holds what is known before; what no input determines is left out.
    ///
    /// Only as much is read of the inputs as is needed: whether their types and extents fit the
    /// kernel, or one another, is checked by the launch. What was known of lengths is checked here.
    ///
    /// ```
    /// use flashtile::{Elem, Kernel, kernel::Deduced};
    /// let kernel = Kernel::builtin("causal_attention")?;
    /// let deduced = kernel.deduce(Deduced::default(), |name| match name {
    ///     "q" => Some((Elem::F16, &[2, 8, 5, 64])),
    ///     "k" | "v" => Some((Elem::F16, &[2, 4, 7, 64])),
    ///     _ => None,
    /// })?;
    /// assert_eq!((deduced.sizes["G"], deduced.sizes["D"]), (4, 64));
    /// let lse = &kernel.outputs(&deduced)?[1];
    /// assert_eq!((lse.name, lse.elem, &lse.shape[..]), ("lse", Elem::F32, &[2, 8, 5][..]));
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ArgumentError::Rank`] for an input with more or fewer dimensions than are declared,
    /// [`ArgumentError::Extent`] for one of another length than is known.
    pub fn deduce<'a>(&self, known: Deduced, input: impl Fn(&str) -> Option<(Elem, &'a [usize])>) -> Result<Deduced> {
        let ir = self.ir();
        let mut found = known;
        let inputs: Vec<_> = tensors(ir)
            .filter(|(_, declared)| declared.direction.is_read())
            .filter_map(|(name, declared)| input(name).map(|(elem, shape)| (name, declared, elem, shape)))
            .collect();
        for &(name, declared, elem, shape) in &inputs {
            if shape.len() != declared.shape.len() {
                let extents: Vec<_> = declared.shape.iter().map(|extent| ir.size_text(extent)).collect();
                let (name, expected, found) = (name.to_owned(), extents.len(), shape.to_vec());
                return Err(ArgumentError::Rank { name, expected, declared: format!("({})", extents.join(", ")), found }.into());
            }
            if let Elem::Generic(of) = declared.elem {
                found.types.entry(ir.type_params[of as usize].clone()).or_insert(elem);
            }
        }
        for &(name, declared, _, shape) in &inputs {
            for (dimension, (extent, &given)) in declared.shape.iter().zip(shape).enumerate() {
                let is_of_lengths = extent.sizes().any(|size| ir.sizes[size].kind != SizeKind::Const);
                let wanted = extent.eval(|size| found.sizes.get(ir.size_name(size)).copied()).filter(|_| is_of_lengths);
                if let Some(expected) = wanted.filter(|&expected| i64::try_from(given) != Ok(expected)) {
                    let (name, declared, because) = (name.to_owned(), ir.size_text(extent), "fixed before the call".to_owned());
                    return Err(ArgumentError::Extent { name, dimension, declared, expected, because, found: given }.into());
                }
            }
        }
        let dimensions = inputs.iter().flat_map(|(_, declared, _, shape)| declared.shape.iter().zip(*shape));
        let dimensions: Vec<_> = dimensions.map(|(extent, &found)| (ir, extent, found)).collect();
        solve(&mut found.sizes, &dimensions);
        Ok(found)
    }

    /// The outputs of a call, in the order of the parameters.
    ///
    /// # Errors
    /// [`ArgumentError::Undetermined`] for an element type or an extent that does not follow from
    /// what was deduced.
    pub fn outputs(&self, deduced: &Deduced) -> Result<Vec<OutputForm<'_>>> {
        let ir = self.ir();
        let undetermined = |size: String| ArgumentError::Undetermined { kernel: ir.name.clone(), size };
        let form = |(name, declared): (_, &ir::TensorDecl)| {
            let extent = |extent: &SizeExpr| {
                let value = extent.eval(|size| deduced.sizes.get(ir.size_name(size)).copied());
                value.and_then(|value| usize::try_from(value).ok()).ok_or_else(|| undetermined(ir.size_text(extent)))
            };
            let elem = match declared.elem {
                Elem::Generic(of) => {
                    let parameter = &ir.type_params[of as usize];
                    *deduced.types.get(parameter).ok_or_else(|| undetermined(parameter.clone()))?
                }
                elem => elem,
            };
            let shape = declared.shape.iter().map(extent).collect::<Result<_, ArgumentError>>()?;
            Ok(OutputForm { name, elem, shape })
        };
        tensors(ir).filter(|(_, declared)| declared.direction.is_written()).map(form).collect()
    }

    /// The kernel, bound to the types and constants that were deduced.
    ///
    /// # Errors
    /// As [`Kernel::bind_to`]: something is not known, or no possible value.
    pub fn bind_deduced(&self, deduced: &Deduced) -> Result<BoundKernel> {
        let consts = self.ir().sizes.values().filter(|size| size.kind == SizeKind::Const);
        let consts = consts.filter_map(|size| Some((size.name.clone(), *deduced.sizes.get(&size.name)?))).collect();
        let types = self.ir().type_params.iter();
        let types = types.filter_map(|name| Some((name.clone(), *deduced.types.get(name)?))).collect();
        self.bind_to(Binding { types, consts })
    }
}

fn tensors(ir: &ir::Kernel) -> impl Iterator<Item = (&str, &ir::TensorDecl)> {
    ir.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(tensor) => Some((&*param.name, tensor)),
        ParamKind::Scalar(_) => None,
    })
}

/// Sizes by name of kernels that work on tensors of the same names, such as those of a gradient:
/// `sizes`, and those that follow where a kernel has another name for the extent of a tensor.
///
/// ```
/// use flashtile::Kernel;
/// use flashtile::kernel::sizes_among;
/// let text = "
/// pub fn sums(x: &Tensor<f32, (M + 1)>, m: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M + 1)>) {
///     let i = program(tiles(M + 1));
///     store(y, [i], load(x, [i]) + load(m, [0]));
/// }
/// pub fn doubled(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
///     let i = program(tiles(N));
///     store(y, [i], 2.0 * load(x, [i]));
/// }";
/// let source = flashtile::SourceText { name: "sums.rs".into(), text: text.into(), first_line: 1 };
/// let kernels = Kernel::from_source(&source)?;
/// let given = [("M".to_owned(), 3)].into();
/// let sizes = sizes_among(kernels.iter().map(Kernel::ir), &given, &Default::default());
/// assert_eq!(sizes["N"], 4);
/// # Ok::<(), flashtile::Error>(())
/// ```
pub fn sizes_among<'a>(
    kernels: impl Iterator<Item = &'a ir::Kernel>,
    sizes: &BTreeMap<String, i64>,
    consts: &BTreeMap<String, i64>,
) -> BTreeMap<String, i64> {
    let of_kernel = |ir: &'a ir::Kernel| {
        tensors(ir).flat_map(move |(name, declared)| {
            declared.shape.iter().enumerate().map(move |(dim, extent)| (ir, (name, dim), extent))
        })
    };
    let extents: Vec<_> = kernels.flat_map(of_kernel).collect();
    let mut known = consts.clone();
    known.extend(sizes.clone());
    loop {
        let before = known.len();
        let value = |(ir, place, extent): &(&ir::Kernel, (&'a str, usize), &SizeExpr)| {
            let value = extent.eval(|size| known.get(ir.size_name(size)).copied())?;
            Some((*place, usize::try_from(value).ok()?))
        };
        let values: BTreeMap<(&str, usize), usize> = extents.iter().filter_map(value).collect();
        let found = |&(ir, place, extent): &(_, _, _)| Some((ir, extent, *values.get(&place)?));
        let dimensions: Vec<_> = extents.iter().filter_map(found).collect();
        solve(&mut known, &dimensions);
        if known.len() == before {
            known.retain(|name, _| sizes.contains_key(name) || !consts.contains_key(name));
            return known;
        }
    }
}

/// Adds the sizes that follow from dimensions: extents of a kernel, and what they are.
pub(crate) fn solve<'a, K: Borrow<str> + Ord + From<&'a str>>(
    sizes: &mut BTreeMap<K, i64>,
    dimensions: &[(&'a ir::Kernel, &SizeExpr, usize)],
) {
    // A size may follow from a dimension only when others of it are known.
    loop {
        let before = sizes.len();
        for &(ir, extent, found) in dimensions {
            if let Some((size, value)) = solved(ir, extent, found, |name| sizes.get(name).copied()) {
                sizes.insert(ir.size_name(size).into(), value);
            }
        }
        if sizes.len() == before {
            return;
        }
    }
}

/// The one unknown size of an extent and its value, where the extent is `found`.
fn solved(ir: &ir::Kernel, extent: &SizeExpr, found: usize, known: impl Fn(&str) -> Option<i64>) -> Option<(SizeId, i64)> {
    let (terms, constant, divisor) = extent.parts();
    let value = |size: &SizeId| known(ir.size_name(*size));
    let mut unknown = terms.iter().filter(|(size, _)| value(size).is_none());
    let (&size, &coefficient) = unknown.next()?;
    if unknown.next().is_some() || extent.is_rounded() {
        return None;
    }
    let others: i64 = terms.iter().filter_map(|(other, by)| Some(by * value(other)?)).sum();
    let scaled = i64::try_from(found).ok()?.checked_mul(divisor)? - constant - others;
    (coefficient != 0 && scaled % coefficient == 0).then_some((size, scaled / coefficient))
}

#[cfg(test)]
mod tests {
    use flashtile_dsl::ir::SourceText;

    use super::*;
    use crate::error::Error;

    const TEXT: &str = "flash_kernel! {
        pub fn halves<T: Element, const W: usize>(
            x: &Tensor<T, (N, 2 * W)>, y: &mut Tensor<T, (N, W)>, z: &mut Tensor<f32, (N)>,
        ) {
            let i = program(tiles(N));
            let s = load(x, [i, 0..W]);
            store(y, [i, ..], s.to::<T>());
            store(z, [i], rowsum(s));
        }
    }";

    fn halves() -> Kernel {
        let source = SourceText { name: "halves.rs".to_owned(), text: TEXT.into(), first_line: 1 };
        Kernel::from_source(&source).expect("is a kernel").remove(0)
    }

    #[test]
    fn sizes_follow_from_computed_dimensions() {
        let kernel = halves();
        let deduced = kernel.deduce(Deduced::default(), |_| Some((Elem::Bf16, &[3, 16]))).expect("of this rank");
        assert_eq!(deduced.sizes, BTreeMap::from([("N".to_owned(), 3), ("W".to_owned(), 8)]));
        let shapes: Vec<_> = kernel.outputs(&deduced).expect("known").into_iter().map(|o| (o.name, o.elem, o.shape)).collect();
        assert_eq!(shapes, [("y", Elem::Bf16, vec![3, 8]), ("z", Elem::F32, vec![3])]);
        assert_eq!(kernel.bind_deduced(&deduced).expect("binds").binding().consts["W"], 8);
    }

    #[test]
    fn what_does_not_follow_is_named() {
        let kernel = halves();
        let odd = kernel.deduce(Deduced::default(), |_| Some((Elem::Bf16, &[3, 15]))).expect("of this rank");
        assert_eq!(odd.sizes, BTreeMap::from([("N".to_owned(), 3)]));
        let error = kernel.outputs(&odd).expect_err("W is not known");
        assert!(matches!(error, Error::Argument(ArgumentError::Undetermined { size, .. }) if size == "W"));
        let error = kernel.bind_deduced(&odd).expect_err("W is not known").to_string();
        assert_eq!(error, "kernel `halves` has no value for W; `Kernel::bind` gives type parameters and constants theirs");
        let nothing = kernel.deduce(Deduced::default(), |_| None).expect("no inputs");
        let error = kernel.outputs(&nothing).expect_err("T is not known");
        assert!(matches!(error, Error::Argument(ArgumentError::Undetermined { size, .. }) if size == "T"));
    }

    #[test]
    fn inputs_have_the_rank_that_is_declared() {
        let error = halves().deduce(Deduced::default(), |_| Some((Elem::F32, &[4]))).expect_err("of rank 1").to_string();
        assert_eq!(error, "argument `x` must have 2 dimensions (N, 2 * W), but has shape [4]");
    }

    #[test]
    fn what_is_known_before_is_kept() {
        let known = Deduced { types: BTreeMap::from([("T".to_owned(), Elem::F16)]), ..Deduced::default() };
        let deduced = halves().deduce(known, |_| Some((Elem::F32, &[1, 2]))).expect("of this rank");
        assert_eq!(deduced.types["T"], Elem::F16);
    }
}
