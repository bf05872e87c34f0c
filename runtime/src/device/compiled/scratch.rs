//! Scratch tensors: what one launch of a variant leaves to a later one, in one piece of memory.
//!
//! Names are resolved once; laying out a call's tensors then allocates nothing on the device.

use flashtile_codegen::Scratch;
use flashtile_dsl::ir::{self, Elem, Entity};

use super::term::Term;
use crate::device::{CallArgument, Memory};

/// Distance of tensors in bytes: what device memory itself is aligned to.
const ALIGNMENT: usize = 256;

/// Position of an argument: of a parameter of the kernel, or after them of a scratch tensor.
pub(crate) fn argument_named(kernel: &ir::Kernel, scratch: &[Scratch], name: &str) -> Result<usize, String> {
    let own = kernel.param_named(name).map(Entity::index);
    let after = || scratch.iter().position(|s| s.name == name).map(|n| kernel.params.len() + n);
    own.or_else(after).ok_or_else(|| format!("the kernel has no parameter `{name}`"))
}

/// How to lay out the scratch tensors of a variant.
#[derive(Clone, Debug)]
pub(crate) struct ScratchPlan {
    tensors: Vec<(Scratch, Vec<Term>)>,
}

/// The scratch tensors of a call, laid out.
#[derive(Clone, Debug)]
pub(crate) struct ScratchLayout {
    tensors: Vec<Placed>,
    /// Bytes of all.
    pub bytes: usize,
}

#[derive(Clone, Debug)]
struct Placed {
    elem: Elem,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl ScratchPlan {
    /// Resolves the sizes. An error names what the kernel does not have, which is a fault of the generator.
    pub fn new(scratch: &[Scratch], kernel: &ir::Kernel) -> Result<Self, String> {
        let resolved = |s: &Scratch| {
            let shape = s.shape.iter().map(|t| Term::new(t, kernel)).collect::<Result<Vec<_>, String>>()?;
            Ok((s.clone(), shape))
        };
        Ok(Self { tensors: scratch.iter().map(resolved).collect::<Result<_, String>>()? })
    }

    /// Whether there are no scratch tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Lays out the tensors of a call; `None` if they are larger than any memory.
    pub fn layout(&self, sizes: &[i64]) -> Option<ScratchLayout> {
        let extents = |shape: &[Term]| shape.iter().map(|t| usize::try_from(t.eval(sizes)?).ok()).collect();
        ScratchLayout::new(self.tensors.iter().map(|(scratch, shape)| (scratch, extents(shape))))
    }
}

/// Bytes of scratch tensors in all, given sizes by name; `None` if a size is missing, or they are
/// larger than any memory.
pub(crate) fn scratch_bytes(scratch: &[Scratch], size: impl Fn(&str) -> Option<i64>) -> Option<usize> {
    let extents = |s: &Scratch| s.shape.iter().map(|t| usize::try_from(t.eval(&size)?).ok()).collect();
    Some(ScratchLayout::new(scratch.iter().map(|s| (s, extents(s))))?.bytes)
}

impl ScratchLayout {
    /// Tensors of these extents, one after the other.
    fn new<'a>(all: impl Iterator<Item = (&'a Scratch, Option<Vec<usize>>)>) -> Option<Self> {
        let mut bytes = 0usize;
        let mut tensors = Vec::new();
        for (scratch, extents) in all {
            let extents = extents?;
            // Strides are products of extents: what is small enough in all has none that overflows.
            extents.iter().try_fold(16usize, |all, &n| all.checked_mul(n.max(1).checked_add(Scratch::ALIGNMENT)?))?;
            let (strides, own) = scratch.layout(&extents);
            let offset = bytes.next_multiple_of(ALIGNMENT);
            bytes = offset.checked_add(own)?;
            tensors.push(Placed { elem: scratch.elem, offset, shape: extents, strides });
        }
        Some(Self { tensors, bytes })
    }

    /// The tensors as arguments, in memory that begins at `address`.
    pub fn arguments<'a>(&'a self, memory: &'a dyn Memory, address: u64) -> impl Iterator<Item = CallArgument<'a>> {
        self.tensors.iter().map(move |t| CallArgument::Tensor {
            memory: Some(memory),
            offset: t.offset / t.elem.bytes().expect("bound: an element type in memory"),
            elem: t.elem,
            address: address + t.offset as u64,
            shape: &t.shape,
            strides: &t.strides,
            writes: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashtile_codegen::SizeTerm;
    use flashtile_dsl::ir::{Builder, SizeKind};

    #[test]
    fn tensors_lie_one_after_the_other() {
        let mut b = Builder::new("split");
        b.size("M", SizeKind::Runtime);
        let kernel = b.finish();
        let fixed = |n: i64| SizeTerm { terms: vec![], constant: n, divisor: 1 };
        let m = SizeTerm { terms: vec![("M".into(), 1)], constant: 0, divisor: 1 };
        let tensor = |name: &str, shape: Vec<SizeTerm>| Scratch { name: name.into(), elem: Elem::F32, shape };
        let scratch = [tensor("m_parts", vec![fixed(4), m.clone()]), tensor("acc_parts", vec![fixed(4), m, fixed(6)])];
        let plan = ScratchPlan::new(&scratch, &kernel).expect("the size is known");
        let layout = plan.layout(&[10]).expect("small");
        assert_eq!(layout.bytes, 256 + 4 * 10 * 8 * 4);
        assert_eq!((layout.tensors[1].offset, &layout.tensors[1].strides[..]), (256, &[80, 8, 1][..]));
        assert_eq!(plan.layout(&[0]).expect("empty").bytes, 0);
        assert!(plan.layout(&[1 << 62]).is_none());
        assert_eq!(argument_named(&kernel, &scratch, "acc_parts"), Ok(1));
        assert_eq!(argument_named(&kernel, &scratch, "x").expect_err("no x"), "the kernel has no parameter `x`");
    }
}
