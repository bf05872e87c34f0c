//! Size terms of an ABI, resolved: sums over the sizes of a call.

use flashtile_codegen::SizeTerm;
use flashtile_dsl::ir::{self, Entity};

/// A size term, its sizes found among those of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Term {
    terms: Vec<(usize, i64)>,
    constant: i64,
    divisor: i64,
}

impl Term {
    /// Resolves the names. An error is a fault of the generator.
    pub fn new(term: &SizeTerm, kernel: &ir::Kernel) -> Result<Self, String> {
        let terms = term.terms.iter().map(|(name, c)| Ok((size_named(kernel, name)?, *c))).collect::<Result<_, String>>()?;
        match term.divisor {
            0 => Err("a size divided by zero".to_owned()),
            divisor => Ok(Self { terms, constant: term.constant, divisor }),
        }
    }

    /// The value, 0 if it is negative; `None` if it is too large.
    pub fn eval(&self, sizes: &[i64]) -> Option<i64> {
        let sum = self.terms.iter().try_fold(self.constant, |sum, (size, c)| sum.checked_add(c.checked_mul(sizes[*size])?))?;
        Some(sum.div_euclid(self.divisor).max(0))
    }
}

/// Position of a size.
pub(super) fn size_named(kernel: &ir::Kernel, name: &str) -> Result<usize, String> {
    let id = kernel.size_named(name).ok_or_else(|| format!("the kernel has no size `{name}`"))?;
    Ok(id.index())
}
