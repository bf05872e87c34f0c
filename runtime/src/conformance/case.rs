//! What a case is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use flashtile_dsl::ir::{Elem, SourceText};

use super::kernels::KERNELS;
use crate::error::Result;
use crate::kernel::{BoundKernel, Kernel, KernelError};

/// How the inputs are drawn. All start from independent standard normal values, rounded to the element type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Values {
    /// As they are.
    Normal,
    /// Scores grow along the walk over keys: row `j` of `k` is scaled from 1 at the first key to this at the last.
    Growing(f32),
    /// The same key in every row of `k`: all scores of a query are equal.
    EqualScores,
    /// One row of `q` is NaN, one has an infinite element.
    SpecialQueries,
    /// One row of `k` is NaN, one has an infinite element.
    SpecialKeys,
    /// Elements of `v` are NaN, +inf, -inf. Where a mask hides their keys, the result is that
    /// without them, or NaN.
    SpecialValues,
    /// Integer tensors hold the least and the largest `i32`, small negative and positive numbers,
    /// in turn.
    WildIntegers,
    /// The first third of `lse` is -inf, as of rows that see nothing; so many rows of `keep` are 0.
    NothingSeen,
    /// Every element of `q` is positive and the first rows of `k` are -inf: their keys count as not visible.
    HiddenKeys,
    /// -1, 0 and 1 instead of normal values: sums of products are exact.
    Integers,
    /// `sinks` holds -inf, numbers far above and far below the scores, +inf and NaN, one a head, in turn.
    SpecialSinks,
    /// Tensors of elements of one byte hold every byte in turn.
    EveryByte,
    /// The first tensor has -inf, +inf and NaN in rows of their own, and a row of -inf.
    SpecialRows,
}

impl Values {
    fn name(self) -> String {
        match self {
            Values::Normal => "normal".into(),
            Values::Growing(factor) => format!("growing{factor}x"),
            Values::EqualScores => "equal_scores".into(),
            Values::SpecialQueries => "special_q".into(),
            Values::SpecialKeys => "special_k".into(),
            Values::SpecialValues => "special_v".into(),
            Values::WildIntegers => "wild_integers".into(),
            Values::NothingSeen => "nothing_seen".into(),
            Values::HiddenKeys => "hidden_keys".into(),
            Values::Integers => "integers".into(),
            Values::SpecialSinks => "special_sinks".into(),
            Values::EveryByte => "every_byte".into(),
            Values::SpecialRows => "special_rows".into(),
        }
    }
}

/// How tensors lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Row-major without gaps.
    Packed,
    /// Rows of `(batch, heads, rows, columns)` tensors lie as `(batch, rows, heads, columns)`.
    HeadsInner,
    /// So many elements of gap after each row; an odd number leaves no alignment but the element's own.
    Padded(usize),
}

impl Layout {
    fn name(self) -> String {
        match self {
            Layout::Packed => "packed".into(),
            Layout::HeadsInner => "bshd".into(),
            Layout::Padded(gap) => format!("padded{gap}"),
        }
    }
}

/// One launch that every device must get right.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// A built-in kernel or one of [`KERNELS`].
    pub kernel: &'static str,
    /// What the kernel's type parameters are.
    pub elem: Elem,
    /// Const sizes.
    pub consts: Vec<(&'static str, i64)>,
    /// Run-time sizes.
    pub sizes: Vec<(&'static str, i64)>,
    /// Scalar parameters; i32 ones are given as whole numbers.
    pub scalars: Vec<(&'static str, f32)>,
    /// How inputs are drawn.
    pub values: Values,
    /// How tensors lie in memory.
    pub layout: Layout,
    /// Whether it is quick even on a device that is thousands of times slower than a CPU.
    pub small: bool,
}

impl Case {
    /// A name that says everything, in the same words for ever: `causal_attention/bf16/B1_H2_G1_M113_N203_D64/normal`,
    /// then the scalars if they are not the usual ones, and the layout if it is not packed.
    pub fn name(&self) -> String {
        let mut name = format!("{}/{}/", self.kernel, self.elem.name());
        let all: Vec<String> = self.sizes.iter().chain(&self.consts).map(|(n, v)| format!("{n}{v}")).collect();
        name.push_str(&all.join("_"));
        // Writing to a string cannot fail.
        let _ = write!(name, "/{}", self.values.name());
        for (scalar, value) in &self.scalars {
            if *scalar != "scale" || *value != self.usual_scale() {
                let _ = write!(name, "/{scalar}={value}");
            }
        }
        if self.layout != Layout::Packed {
            let _ = write!(name, "/{}", self.layout.name());
        }
        name
    }

    /// `1 / sqrt(D)`.
    pub fn usual_scale(&self) -> f32 {
        self.consts.iter().find(|(name, _)| *name == "D").map_or(1.0, |(_, d)| 1.0 / (*d as f32).sqrt())
    }

    /// The seed of its inputs: a hash of its name, so that a case keeps its inputs when others come and go.
    pub fn seed(&self) -> u64 {
        self.name().bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
    }

    /// The kernel, bound.
    ///
    /// # Errors
    /// No such kernel, or its text has errors.
    pub fn bound(&self) -> Result<BoundKernel> {
        let kernel = match KERNELS.iter().find(|k| k.name == self.kernel) {
            None => Kernel::builtin(self.kernel)?,
            Some(own) => {
                let source = SourceText { name: format!("{}.rs", own.name), text: own.text.into(), first_line: 1 };
                Kernel::from_source(&source)?.into_iter().next().ok_or_else(|| KernelError::Unknown {
                    name: self.kernel.to_owned(),
                    place: "the conformance suite".to_owned(),
                    known: KERNELS.iter().map(|k| k.name).collect::<Vec<_>>().join(", "),
                })?
            }
        };
        kernel.bind(self.elem, self.consts.iter().copied())
    }

    /// Whether every device must give the same bits: nothing that it computes is rounded but what it stores.
    pub fn is_exact(&self) -> bool {
        self.values == Values::Integers
    }

    /// All sizes by name.
    pub fn all_sizes(&self) -> BTreeMap<&'static str, i64> {
        self.sizes.iter().chain(&self.consts).copied().collect()
    }
}
