//! Why a schedule is not legal: reasons as data, each with its sentence.
//!
//! A sentence says what is wrong and, where one knob mends it, which value does. [`Summary`] is
//! what a user sees: the three reasons that matter most, in the order of [`Mended`].

use std::fmt;

/// A reason against a schedule. Its sentence is what [`fmt::Display`] writes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The kernel, its types or its constants: no schedule is legal for them.
    Kernel {
        /// The sentence.
        why: String,
    },
    /// The kernel does what this compiler cannot execute in this way.
    Unsupported {
        /// The sentence.
        why: String,
    },
    /// The architecture lacks something.
    Arch {
        /// The architecture.
        arch: &'static str,
        /// What it lacks.
        lacks: String,
        /// The knob that asks for it; none if the kernel does.
        knob: Option<&'static str>,
        /// What to write in place of it, where one value is better than the others.
        instead: Option<&'static str>,
    },
    /// A value that a knob cannot have, whatever the other knobs are.
    Value {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: String,
        /// What a value is, as in `is not between 1 and 8`.
        needs: String,
    },
    /// Operands of products, by their type or their place in memory.
    Operand {
        /// The knob that takes others.
        knob: &'static str,
        /// The sentence.
        why: String,
    },
    /// A knob asks for something of the kernel's text or of the arguments that they do not have.
    Text {
        /// The knob.
        knob: &'static str,
        /// What it asks for.
        needs: String,
        /// What is in the way, if more is known.
        why: Option<String>,
    },
    /// Knobs that do not go together.
    Knobs {
        /// The knob to change.
        knob: &'static str,
        /// A knob that it does not go with.
        with: &'static str,
        /// The sentence.
        why: String,
    },
    /// Knobs are given to a launch that the schedule does not make.
    Launch {
        /// The name given.
        name: String,
        /// Names of the launches beside the main one.
        known: Vec<String>,
    },
    /// A launch beside the main one.
    Beside {
        /// Its name.
        launch: String,
        /// The reason against its knobs.
        reason: Box<Reason>,
    },
    /// A block or a multiprocessor has too little.
    Resource {
        /// Of what.
        of: Resource,
        /// How much the schedule takes.
        wanted: u64,
        /// How much there is.
        have: u64,
    },
    /// The instruction of a product computes no tile of this shape.
    Product {
        /// The sentence.
        why: String,
    },
    /// ptxas refuses or spoils what is legal by the PTX ISA.
    Quirk {
        /// Its message.
        message: &'static str,
        /// The sentence.
        why: String,
    },
    /// The plan verifier or the IR verifier refuses what the compiler made: a bug in the compiler.
    Fault {
        /// The sentence.
        why: String,
    },
}

/// What a schedule takes too much of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resource {
    /// Bytes of shared memory of a block.
    SharedOfBlock,
    /// Registers of a thread, as estimated.
    RegistersOfThread,
    /// Threads of a multiprocessor that holds `min_blocks` blocks.
    Threads {
        /// The blocks.
        blocks: u32,
    },
    /// Bytes of shared memory of a multiprocessor that holds `min_blocks` blocks.
    Shared {
        /// The blocks.
        blocks: u32,
    },
}

/// What mends a reason. The order is that in which a user sees reasons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mended {
    /// No knob: another kernel, type or architecture.
    ByNoKnob,
    /// This knob alone.
    ByOneKnob(&'static str),
    /// Several knobs together, such as smaller tiles.
    BySeveral,
}

impl Reason {
    /// What mends it.
    pub fn mended(&self) -> Mended {
        match self {
            Reason::Kernel { .. } | Reason::Unsupported { .. } | Reason::Launch { .. } | Reason::Arch { knob: None, .. } => {
                Mended::ByNoKnob
            }
            Reason::Arch { knob: Some(knob), .. }
            | Reason::Value { knob, .. }
            | Reason::Operand { knob, .. }
            | Reason::Text { knob, .. }
            | Reason::Knobs { knob, .. } => Mended::ByOneKnob(knob),
            Reason::Beside { reason, .. } => reason.mended(),
            Reason::Resource { of: Resource::Threads { .. } | Resource::Shared { .. }, .. } => Mended::ByOneKnob("min_blocks"),
            Reason::Resource { .. } | Reason::Product { .. } | Reason::Quirk { .. } | Reason::Fault { .. } => Mended::BySeveral,
        }
    }

    /// A value that is not between two others.
    pub(crate) fn not_between(knob: &'static str, value: u32, least: u32, most: u32) -> Self {
        Self::Value { knob, value: value.to_string(), needs: format!("between {least} and {most}") }
    }

    /// Knobs that do not go together.
    pub(crate) fn knobs(knob: &'static str, with: &'static str, why: impl Into<String>) -> Self {
        Self::Knobs { knob, with, why: why.into() }
    }

    /// Something that a knob asks of the kernel's text.
    pub(crate) fn text(knob: &'static str, needs: impl Into<String>, why: Option<String>) -> Self {
        Self::Text { knob, needs: needs.into(), why }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Kernel { why }
            | Reason::Unsupported { why }
            | Reason::Operand { why, .. }
            | Reason::Knobs { why, .. }
            | Reason::Product { why }
            | Reason::Quirk { why, .. }
            | Reason::Fault { why } => f.write_str(why),
            Reason::Arch { arch, lacks, instead: None, .. } => write!(f, "{arch} has no {lacks}"),
            Reason::Arch { arch, lacks, instead: Some(instead), .. } => write!(f, "{arch} has no {lacks}: {instead}"),
            Reason::Beside { launch, reason } => write!(f, "launch {launch}: {reason}"),
            Reason::Launch { name, known } if known.is_empty() => {
                write!(f, "there is no launch {name}: this schedule makes the main launch alone, whose knobs have no prefix")
            }
            Reason::Launch { name, known } => {
                write!(
                    f,
                    "there is no launch {name}: beside the main one, whose knobs have no prefix, there is {}",
                    known.join(", ")
                )
            }
            Reason::Value { knob, value, needs } => write!(f, "{knob}={value} is not {needs}"),
            Reason::Text { needs, why: None, .. } => f.write_str(needs),
            Reason::Text { needs, why: Some(why), .. } => write!(f, "{needs}: {why}"),
            Reason::Resource { of: Resource::SharedOfBlock, wanted, have } => {
                write!(f, "needs {wanted} bytes of shared memory, a block has {have}")
            }
            Reason::Resource { of: Resource::RegistersOfThread, wanted, have } => {
                write!(f, "needs about {wanted} registers per thread, a thread has {have}")
            }
            Reason::Resource { of: Resource::Threads { blocks }, wanted, have } => {
                let each = wanted / u64::from(*blocks).max(1);
                write!(f, "min_blocks={blocks} blocks of {each} threads exceed the {have} of a multiprocessor")
            }
            Reason::Resource { of: Resource::Shared { blocks }, wanted, have } => {
                let each = wanted / u64::from(*blocks).max(1);
                write!(f, "min_blocks={blocks} blocks of {each} bytes of shared memory exceed the {have} of a multiprocessor")
            }
        }
    }
}

/// How many reasons are about the same resource and miss it by less.
fn nearer(reason: &Reason, all: &[Reason]) -> usize {
    let Reason::Resource { of, wanted, have } = reason else { return 0 };
    let kind = std::mem::discriminant(of);
    let misses_less = |other: &&Reason| match other {
        Reason::Resource { of, wanted: w, have: h } if std::mem::discriminant(of) == kind => {
            u128::from(*w) * u128::from(*have) < u128::from(*wanted) * u128::from(*h)
        }
        _ => false,
    };
    all.iter().filter(misses_less).count()
}

/// Reasons that a user sees without asking for all.
const SEEN: usize = 3;

/// The reasons that matter most, in one line: first those that no knob mends, then those that one
/// knob mends, then the others. Of each resource that is short the nearest miss comes first, and
/// the others behind those of other resources. Of a plan with many faults the first ones stand.
///
/// ```
/// use flashtile_codegen::{Reason, Summary};
/// let value = |knob| Reason::Value { knob, value: "9".into(), needs: "between 1 and 4".into() };
/// let reasons = [value("stages"), value("outer_stages"), value("warps"), Reason::Kernel { why: "the range D has length 0".into() }];
/// let seen = "the range D has length 0; stages=9 is not between 1 and 4; outer_stages=9 is not between 1 and 4";
/// assert_eq!(Summary::of(&reasons).to_string(), format!("{seen}; and 1 more"));
/// assert_eq!(Summary::all(&reasons).to_string(), format!("{seen}; warps=9 is not between 1 and 4"));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Summary<'r> {
    seen: Vec<&'r Reason>,
    more: usize,
}

impl<'r> Summary<'r> {
    /// The three reasons that matter most, and how many more there are.
    pub fn of(reasons: &'r [Reason]) -> Self {
        let mut all = Self::all(reasons);
        all.more = all.seen.len().saturating_sub(SEEN);
        all.seen.truncate(SEEN);
        all
    }

    /// All reasons, in the same order.
    pub fn all(reasons: &'r [Reason]) -> Self {
        let mut seen: Vec<(&Reason, usize)> = reasons.iter().map(|reason| (reason, nearer(reason, reasons))).collect();
        seen.sort_by_key(|(reason, nearer)| match reason.mended() {
            Mended::ByNoKnob => (0, *nearer),
            Mended::ByOneKnob(_) => (1, *nearer),
            Mended::BySeveral => (2, *nearer),
        });
        Self { seen: seen.into_iter().map(|(reason, _)| reason).collect(), more: 0 }
    }

    /// The reasons that are told.
    pub fn reasons(&self) -> impl Iterator<Item = &'r Reason> {
        self.seen.iter().copied()
    }

    /// How many reasons are left out.
    pub fn more(&self) -> usize {
        self.more
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, reason) in self.seen.iter().enumerate() {
            write!(f, "{}{reason}", if number == 0 { "" } else { "; " })?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One reason of each way to mend it, the other way round.
    fn mixed() -> Vec<Reason> {
        let short = |wanted| Reason::Resource { of: Resource::SharedOfBlock, wanted, have: 100 };
        vec![
            short(120),
            Reason::Resource { of: Resource::Threads { blocks: 3 }, wanted: 3072, have: 2048 },
            Reason::Arch { arch: "sm_75", lacks: "copy=tma".into(), knob: Some("copy"), instead: None },
            Reason::text("walk", "a walk that is not ascending needs sums", Some("no loop walks tiles".into())),
            Reason::Arch { arch: "sm_75", lacks: "bf16".into(), knob: None, instead: None },
        ]
    }

    #[test]
    fn reasons_that_no_knob_mends_come_first_and_those_that_several_mend_last() {
        let reasons = mixed();
        let all = Summary::all(&reasons);
        let order: Vec<Mended> = all.reasons().map(Reason::mended).collect();
        let one = Mended::ByOneKnob;
        assert_eq!(order, [Mended::ByNoKnob, one("min_blocks"), one("copy"), one("walk"), Mended::BySeveral]);
        assert_eq!(all.more(), 0);
        assert_eq!(
            Summary::of(&reasons).to_string(),
            "sm_75 has no bf16; min_blocks=3 blocks of 1024 threads exceed the 2048 of a multiprocessor; \
             sm_75 has no copy=tma; and 2 more"
        );
    }

    #[test]
    fn up_to_three_reasons_are_all_told() {
        let reasons = mixed();
        let three = &reasons[2..];
        assert_eq!(Summary::of(three), Summary::all(three));
        assert_eq!(Summary::of(&[]).to_string(), "");
    }
}
