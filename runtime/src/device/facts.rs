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
    /// Of what the addresses and strides (but the last) of the tensors that are moved as matrices
    /// are multiples.
    alignment: Alignments,
    /// The rows of heads that read the same keys can be folded.
    pub foldable: bool,
    /// Index arithmetic may need 64 bits.
    pub wide: bool,
}

/// Of how many bytes the places of tensors are multiples: of the `n`-th the power of two in the
/// `n`-th group of [`BITS`] bits. Tensors beyond the last group share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Alignments(u128);

/// Bits that hold the powers from 1 to 16 bytes.
const BITS: usize = 3;
const GROUPS: usize = u128::BITS as usize / BITS;

impl Alignments {
    /// Of tensors of 16 bytes, all of them.
    const BEST: Self = Self::filled(4);

    const fn filled(power: u128) -> Self {
        let (mut all, mut n) = (0, 0);
        while n < GROUPS {
            all |= power << (BITS * n);
            n += 1;
        }
        Self(all)
    }

    /// Bytes of the `n`-th tensor.
    fn bytes(self, n: usize) -> u32 {
        1 << (self.0 >> (BITS * n.min(GROUPS - 1)) & ((1 << BITS) - 1))
    }

    /// Lowers what is known of the `n`-th tensor to what bits that are set in its address or
    /// strides say.
    fn lower(&mut self, n: usize, bits: u64) {
        let at = BITS * n.min(GROUPS - 1);
        let (known, found) = (self.0 >> at & ((1 << BITS) - 1), u128::from((bits | 16).trailing_zeros()));
        self.0 -= (known - known.min(found)) << at;
    }
}

/// What follows from shapes and strides of the facts about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FixedFacts {
    /// Of the strides of the tensors that are moved as matrices.
    strides: Alignments,
    foldable: bool,
}

impl FixedFacts {
    /// Of the tensors of a call; `wide` and `fold` as [`FactKey::of`] takes them.
    pub fn of(call: &Call<'_>, wide: &[bool], fold: Option<&FoldPlan>) -> Self {
        let mut aligned = Alignments::BEST;
        let moved = call.arguments.iter().zip(wide).filter(|(_, wide)| **wide);
        for (n, (argument, _)) in moved.enumerate() {
            if let CallArgument::Tensor { elem, shape, strides, .. } = *argument {
                aligned.lower(n, place_bits(elem, 0, shape, strides));
            }
        }
        let strides = |param: usize| match call.arguments[param] {
            CallArgument::Tensor { strides, .. } => Some(strides),
            CallArgument::F32(_) | CallArgument::I32(_) => None,
        };
        Self { strides: aligned, foldable: fold.is_some_and(|fold| fold.folds(call.sizes, strides)) }
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
        let mut alignment = fixed.strides;
        let moved = arguments.iter().zip(wide).filter(|(_, wide)| **wide);
        for (n, (argument, _)) in moved.enumerate() {
            if let CallArgument::Tensor { address, .. } = *argument {
                alignment.lower(n, address);
            }
        }
        Self { positive, alignment, foldable: fixed.foldable, wide: call.width == Width::Wide }
    }

    /// The facts of most calls: scalars are positive, tensors lie as a device allocates them.
    pub fn common(scalars: usize, is_foldable: bool) -> Self {
        let positive = 1u32.checked_shl(scalars as u32).map_or(u32::MAX, |bit| bit - 1);
        Self { positive, alignment: Alignments::BEST, foldable: is_foldable, wide: false }
    }

    /// Bytes that the address and strides of the `n`-th tensor that is moved as a matrix are
    /// multiples of.
    pub fn alignment_of(&self, n: usize) -> u32 {
        self.alignment.bytes(n)
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

/// Bytes of which numbers with these bits set between them are multiples, 16 at most.
fn alignment(bits: u64) -> u32 {
    1 << (bits | 16).trailing_zeros()
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
    let (mut facts, mut aligned) = (Facts::none(), Vec::new());
    let ir = kernel.ir();
    for ((number, param), wide) in ir.params.values().enumerate().zip(wide_tensors(ir)) {
        if scalar(number).is_some_and(is_positive) {
            facts.positive.insert(param.name.clone());
        }
        if let Some(tensor) = tensor(number)
            && wide
        {
            let offset = tensor.offset * tensor.elem.bytes().unwrap_or(1);
            let bits = place_bits(tensor.elem, offset as u64, &tensor.shape, &tensor.strides);
            aligned.push((param.name.clone(), alignment(bits)));
        }
    }
    let fold = FoldPlan::of(ir, kernel.binding());
    let foldable = fold.is_some_and(|fold| fold.folds(sizes, |number| tensor(number).map(|t| &t.strides[..])));
    let wide = is_wide(kernel, sizes, integer);
    Facts { foldable, wide, ..facts }.with_alignments(aligned)
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
    let mut aligned = Vec::new();
    for ((param, shape), wide) in ir.params.values().zip(shapes).zip(wide_tensors(ir)) {
        if !wide {
            continue;
        }
        let (ParamKind::Tensor(tensor), Some(shape)) = (&param.kind, shape) else { continue };
        let (mut stride, mut bits) = (kernel.binding().elem(ir, tensor.elem).bytes().unwrap_or(1), 0);
        for (d, &extent) in shape.iter().enumerate().rev() {
            if d + 1 < shape.len() && extent > 1 {
                bits |= stride as u64;
            }
            stride *= extent.max(1);
        }
        aligned.push((param.name.clone(), alignment(bits)));
    }
    let foldable = FoldPlan::of(ir, kernel.binding()).is_some_and(|fold| fold.folds_packed(sizes));
    let wide = is_wide(kernel, sizes, integer);
    Facts { foldable, wide, ..Facts::best(ir) }.with_alignments(aligned)
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
            FactKey::of(&call, &[], &[true], None).alignment_of(0)
        };
        assert_eq!(of(Elem::F16, 256, &[2, 128], &[128, 1]), 16);
        assert_eq!(of(Elem::F16, 256, &[2, 100], &[100, 1]), 8);
        assert_eq!(of(Elem::F16, 256, &[2, 7], &[7, 1]), 2);
        assert_eq!(of(Elem::F32, 256, &[2, 7], &[7, 1]), 4);
        assert_eq!(of(Elem::F16, 256, &[1, 7], &[7, 1]), 16, "one row needs no stride");
        assert_eq!(of(Elem::F16, 258, &[2, 128], &[128, 1]), 2);
    }

    #[test]
    fn each_tensor_has_its_alignment() {
        let mut all = Alignments::BEST;
        let of = |all: Alignments| [0, 1, 2, GROUPS - 1, GROUPS, 2 * GROUPS].map(|n| all.bytes(n));
        assert_eq!(of(all), [16; 6]);
        all.lower(1, 8 | 64);
        all.lower(1, 32);
        all.lower(2, 2 + 4);
        assert_eq!(of(all), [16, 8, 2, 16, 16, 16]);
        // Those without a place of their own are as the least of them.
        all.lower(GROUPS + 3, 4);
        assert_eq!(of(all), [16, 8, 2, 4, 4, 4]);
        all.lower(0, 1);
        assert_eq!(of(all), [1, 8, 2, 4, 4, 4]);
    }
}
