//! Facts about the arguments of a launch, computed per call.

use flashtile_codegen::{Facts, wide_tensors};
use flashtile_dsl::analysis::reach::{Reach, Values, Width};
use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::{Elem, Entity, ParamKind};

use super::fold::FoldPlan;
use super::{Call, CallArgument};
use crate::kernel::BoundKernel;

/// Facts in a form that is quick to compute and compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FactKey {
    /// Bit `n`: the `n`-th f32 scalar parameter is positive and finite.
    positive: u32,
    /// Addresses and strides (but the last) of the tensors that are moved as matrices are multiples of this: 16, 8, 4 or 2.
    pub alignment: u32,
    /// The rows of heads that read the same keys can be folded.
    pub foldable: bool,
    /// Index arithmetic may need 64 bits.
    pub wide: bool,
}

/// What follows from shapes and strides of the facts about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FixedFacts {
    /// The bits set in the strides of the tensors that are moved as matrices, in bytes, and 16.
    stride_bits: u64,
    foldable: bool,
}

impl FixedFacts {
    /// Of the tensors of a call; `wide` and `fold` as [`FactKey::of`] takes them.
    pub fn of(call: &Call<'_>, wide: &[bool], fold: Option<&FoldPlan>) -> Self {
        let mut stride_bits = 16;
        for (argument, &wide) in call.arguments.iter().zip(wide) {
            if let CallArgument::Tensor { elem, shape, strides, .. } = *argument
                && wide
            {
                stride_bits |= place_bits(elem, 0, shape, strides);
            }
        }
        let strides = |param: usize| match call.arguments[param] {
            CallArgument::Tensor { strides, .. } => Some(strides),
            CallArgument::F32(_) | CallArgument::I32(_) => None,
        };
        Self { stride_bits, foldable: fold.is_some_and(|fold| fold.folds(call.sizes, strides)) }
    }
}

impl FactKey {
    /// The facts about the arguments of a call, of which `scalars` are the f32 ones and `wide` the tensors whose alignment matters;
    /// `fold` says which rows may be folded, if the kernel has any.
    pub fn of(call: &Call<'_>, scalars: &[usize], wide: &[bool], fold: Option<&FoldPlan>) -> Self {
        Self::with(call, scalars, wide, FixedFacts::of(call, wide, fold))
    }

    /// As [`FactKey::of`], where what follows from shapes and strides is known.
    pub fn with(call: &Call<'_>, scalars: &[usize], wide: &[bool], fixed: FixedFacts) -> Self {
        let arguments = call.arguments;
        let mut positive = 0;
        for (bit, &param) in scalars.iter().enumerate() {
            if let CallArgument::F32(x) = arguments[param]
                && is_positive(x)
            {
                positive |= 1 << bit;
            }
        }
        let mut bits = fixed.stride_bits;
        for (argument, &wide) in arguments.iter().zip(wide) {
            if let CallArgument::Tensor { address, .. } = *argument
                && wide
            {
                bits |= address;
            }
        }
        let (alignment, foldable) = (1 << bits.trailing_zeros(), fixed.foldable);
        Self { positive, alignment, foldable, wide: call.width == Width::Wide }
    }

    /// The facts of most calls: scalars are positive, tensors lie as a device allocates them.
    pub fn common(scalars: usize, is_foldable: bool) -> Self {
        let positive = 1u32.checked_shl(scalars as u32).map_or(u32::MAX, |bit| bit - 1);
        Self { positive, alignment: 16, foldable: is_foldable, wide: false }
    }

    /// Whether the `n`-th f32 scalar is positive and finite.
    pub fn is_positive(&self, n: usize) -> bool {
        self.positive >> n & 1 == 1
    }
}

/// Whether a scalar is what [`Facts::positive`] says.
fn is_positive(x: f32) -> bool {
    x > 0.0 && x.is_finite()
}

/// The bits set in the address and the strides of a tensor, in bytes: the lowest one set in those of any is the alignment of all.
fn place_bits(elem: Elem, address: u64, shape: &[usize], strides: &[usize]) -> u64 {
    let bytes = elem.bytes().unwrap_or(1);
    let outer = shape.len().saturating_sub(1);
    // The stride of a dimension of one element is never used.
    let used = shape.iter().zip(strides).take(outer).filter(|(extent, _)| **extent > 1);
    used.fold(address, |bits, (_, stride)| bits | (stride * bytes) as u64)
}

/// The facts that a launch with these sizes finds whose parameters, by number, are these f32 and i32 scalars and these
/// tensors, each in memory that is allocated as a device does.
pub(crate) fn host_facts<'a>(
    kernel: &BoundKernel,
    sizes: &[i64],
    scalar: impl Fn(usize) -> Option<f32>,
    integer: impl Fn(usize) -> i32,
    tensor: impl Fn(usize) -> Option<&'a HostTensor>,
) -> Facts {
    let (mut facts, mut bits) = (Facts::none(), 16);
    let ir = kernel.ir();
    for ((number, param), wide) in ir.params.values().enumerate().zip(wide_tensors(ir)) {
        if scalar(number).is_some_and(is_positive) {
            facts.positive.insert(param.name.clone());
        }
        if let Some(tensor) = tensor(number)
            && wide
        {
            let offset = tensor.offset * tensor.elem.bytes().unwrap_or(1);
            bits |= place_bits(tensor.elem, offset as u64, &tensor.shape, &tensor.strides);
        }
    }
    let fold = FoldPlan::of(ir, kernel.binding());
    let foldable = fold.is_some_and(|fold| fold.folds(sizes, |number| tensor(number).map(|t| &t.strides[..])));
    let wide = is_wide(kernel, sizes, integer);
    Facts { alignment: 1 << bits.trailing_zeros(), foldable, wide, ..facts }
}

/// Whether a call with these sizes and i32 scalars needs 64-bit index arithmetic. What no launch accepts needs none.
fn is_wide(kernel: &BoundKernel, sizes: &[i64], integer: impl Fn(usize) -> i32) -> bool {
    let call = Values { sizes, scalar: &|param| integer(param.index()) };
    Reach::new(kernel.ir(), kernel.binding()).check(call) == Ok(Width::Wide)
}

/// Facts about launches with these sizes, packed tensors of these shapes (`None` for scalars), positive f32 scalars and these
/// i32 scalars, by the number of their parameter.
pub(crate) fn packed_facts(
    kernel: &BoundKernel,
    sizes: &[i64],
    shapes: &[Option<Vec<usize>>],
    integer: impl Fn(usize) -> i32,
) -> Facts {
    let ir = kernel.ir();
    let mut bits = 16;
    for ((param, shape), wide) in ir.params.values().zip(shapes).zip(wide_tensors(ir)) {
        if !wide {
            continue;
        }
        let (ParamKind::Tensor(tensor), Some(shape)) = (&param.kind, shape) else { continue };
        let mut stride = kernel.binding().elem(ir, tensor.elem).bytes().unwrap_or(1);
        for (d, &extent) in shape.iter().enumerate().rev() {
            if d + 1 < shape.len() && extent > 1 {
                bits |= stride;
            }
            stride *= extent.max(1);
        }
    }
    let foldable = FoldPlan::of(ir, kernel.binding()).is_some_and(|fold| fold.folds_packed(sizes));
    let wide = is_wide(kernel, sizes, integer);
    Facts { alignment: 1 << bits.trailing_zeros(), foldable, wide, ..Facts::best(ir) }
}

#[cfg(test)]
mod tests {
    use super::super::Cpu;
    use super::*;

    #[test]
    fn signs_of_scalars() {
        let of = |x: f32| {
            let arguments = [CallArgument::I32(1), CallArgument::F32(x)];
            let call = Call { arguments: &arguments, sizes: &[], width: Width::Narrow, stream: None };
            FactKey::of(&call, &[1], &[false, false], None).is_positive(0)
        };
        assert_eq!([1.0, f32::MIN_POSITIVE].map(of), [true; 2]);
        assert_eq!([0.0, -0.0, -1.0, f32::INFINITY, f32::NAN].map(of), [false; 5]);
    }

    #[test]
    fn alignment_of_addresses_and_strides() {
        let memory = Cpu::device().allocate(1).expect("small");
        let of = |elem, address, shape: &[usize], strides: &[usize]| {
            let x = CallArgument::Tensor { memory: Some(&*memory), offset: 0, elem, address, shape, strides, writes: false };
            let call = Call { arguments: &[x], sizes: &[], width: Width::Narrow, stream: None };
            FactKey::of(&call, &[], &[true], None).alignment
        };
        assert_eq!(of(Elem::F16, 256, &[2, 128], &[128, 1]), 16);
        assert_eq!(of(Elem::F16, 256, &[2, 100], &[100, 1]), 8);
        assert_eq!(of(Elem::F16, 256, &[2, 7], &[7, 1]), 2);
        assert_eq!(of(Elem::F32, 256, &[2, 7], &[7, 1]), 4);
        assert_eq!(of(Elem::F16, 256, &[1, 7], &[7, 1]), 16, "one row needs no stride");
        assert_eq!(of(Elem::F16, 258, &[2, 128], &[128, 1]), 2);
    }
}
