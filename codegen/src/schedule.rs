//! The schedule: every choice about how a kernel is executed that its text does not make. Plain data.
//!
//! Each knob is one row of [`KNOBS`]: its name in the text form, what it does, and the values it takes. The text form is
//! `block_m=128,block_n=64,warps=4,...`; a knob left out keeps the value of the schedule it is applied to.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arch::{CopyOp, TensorOp};

/// Version of the schedule space: part of every cache key, raised when a knob or its meaning changes.
pub const SPACE_VERSION: u32 = 14;

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl Choice for $name {
            const VALUES: &'static [(&'static str, Self)] = &[$(($text, $name::$variant)),+];
        }
    };
}

/// A knob value with a text form.
trait Choice: Sized + Copy + PartialEq + 'static {
    const VALUES: &'static [(&'static str, Self)];

    fn text(self) -> String {
        Self::VALUES.iter().find(|(_, v)| *v == self).map(|(t, _)| (*t).to_owned()).expect("every value has a text")
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::VALUES.iter().find(|(t, _)| *t == text).map(|(_, v)| *v)
    }
}

choices! {
    /// Layout of a tile in shared memory.
    SharedLayout {
        /// Rows packed one after the other.
        Plain = "off",
        /// Rows padded to an odd number of 16-byte chunks.
        Padded = "padded",
        /// The 16-byte chunk index of a row xored with the row number.
        Xor = "xor",
    }
}

choices! {
    /// How the B operand's fragments reach registers.
    Fragments {
        /// One fragment per `ldmatrix` (`.x2`).
        Single = "single",
        /// Two fragments per `ldmatrix` (`.x4`) of an operand whose rows run along the contraction (K), one per `.x2.trans` of one
        /// whose rows run across it (V).
        PairedKMajor = "paired_k_major",
        /// Two fragments per `ldmatrix` (`.x4`, `.x4.trans`).
        Paired = "paired",
        /// All fragments of the second product of a step loaded before its first multiply.
        Preload = "preload",
        /// The next pair loaded while the current one is multiplied.
        DoubleBuffer = "double_buffer",
    }
}

choices! {
    /// Where the loop-invariant A operand (Q) lives.
    OperandA {
        /// In shared memory; fragments are loaded in every step.
        Shared = "shared",
        /// In registers for the whole loop.
        Registers = "registers",
    }
}

choices! {
    /// Which operands of products, of those that the text computes from tensors alone, are computed once for all programs, by
    /// launches ahead. The others are computed by every program that needs them.
    Precompute {
        /// None.
        Off = "off",
        /// The right ones (B).
        B = "b",
        /// The right ones and the left ones (A).
        Ab = "ab",
    }
}

impl Precompute {
    /// All values.
    pub(crate) const ALL: [Self; 3] = [Self::Off, Self::B, Self::Ab];

    /// Its text form.
    pub(crate) fn name(self) -> String {
        self.text()
    }
}

choices! {
    /// How exponentials are evaluated.
    Exponential {
        /// As written: scale, subtract, multiply by log2 e, `ex2`.
        Exp = "exp",
        /// `ex2` of one multiply-add, the scale folded into the factor.
        Exp2 = "exp2",
    }
}

choices! {
    /// How the running maximum of a streaming softmax moves. All forms are exact in the end: it only is the reference that keeps
    /// exponentials finite, and what is carried is rescaled whenever it moves.
    RunningMax {
        /// In every step, to the maximum so far.
        Exact = "exact",
        /// Only when a score exceeds it by so much that exponentials could overflow; the maximum of a step is taken per lane.
        MaxFirst = "max_first",
        /// Exponentials are taken against the old one at once; a step whose sums show an overflow is redone with a new one.
        Optimistic = "optimistic",
    }
}

choices! {
    /// Order in which blocks take programs.
    WorkOrder {
        /// As numbered: the last grid dimension fastest.
        Grid = "grid",
        /// Longest processing time first: programs with the longest loops first, the outer
        /// dimensions fastest within a section of them.
        Lpt = "lpt",
    }
}

choices! {
    /// How blocks get programs.
    Persistent {
        /// A block runs one program.
        Off = "off",
        /// As many blocks as run at once; each takes every so-many-th program.
        Static = "static",
        /// As many blocks as run at once; each takes the next program that nobody has.
        Dynamic = "dynamic",
    }
}

choices! {
    /// What warpgroups of a block do in turn, so that one multiplies while another takes exponentials.
    PingPong {
        /// Nothing: they meet as it happens.
        Off = "off",
        /// The issue of products.
        Products = "products",
        /// The elementwise work between products.
        Elementwise = "elementwise",
    }
}

choices! {
    /// How right operands of products lie in global memory.
    BLayout {
        /// As they are given: of those that the text transposes the product reads rows as its columns.
        AsGiven = "as_given",
        /// Those that the text transposes, transposed by a kernel of its own, launched before.
        Pretransposed = "pretransposed",
        /// Copied by a kernel of its own, launched before, to rows that begin at whole lines of the L2 cache.
        Copied = "copied",
    }
}

choices! {
    /// Which of rows and the loop over the other axis is the outer loop.
    LoopOrder {
        /// A program for each tile of rows, and the loop in it, which carries its state in registers.
        AsWritten = "as_written",
        /// The loop outside and rows inside (the order of FlashAttention-1): a program walks all rows for every tile of the loop, and
        /// the state of each tile of rows lies in global memory in the meantime.
        Interchanged = "interchanged",
    }
}

choices! {
    /// In which order a loop visits its tiles.
    Walk {
        /// From the first, as the text says.
        Ascending = "ascending",
        /// From the last: tiles that the ragged end or a causal mask cuts come first, and those that nothing cuts follow. A maximum that
        /// grows along the loop is found at once.
        Descending = "descending",
    }
}

choices! {
    /// Whose rows a tile of rows holds. GQA is grouped-query attention: several heads read the same
    /// keys.
    PackGqa {
        /// Those of one head.
        Off = "off",
        /// Those of all heads that read the same keys, one head after the other.
        On = "on",
    }
}

choices! {
    /// What combines the parts of a split loop.
    Fixup {
        /// A kernel of its own, launched after the one that walks the parts.
        Kernel = "kernel",
        /// Two such kernels: one for groups of parts, as many side by side, and one for the groups.
        Tree = "tree",
        /// The programs that walk the parts, one after the other in the order of the parts, each when a semaphore says so.
        Semaphore = "semaphore",
        /// The programs that walk the parts, which are the blocks of a cluster and read each other's states in shared memory.
        Cluster = "cluster",
    }
}

choices! {
    /// What is done with tiles that a mask or a memory bound cuts.
    Edges {
        /// Only tiles that are cut test the predicate.
        Split = "split",
        /// Every tile tests the predicate.
        Every = "every",
    }
}

impl Choice for bool {
    const VALUES: &'static [(&'static str, Self)] = &[("off", false), ("on", true)];
}

impl Choice for TensorOp {
    const VALUES: &'static [(&'static str, Self)] =
        &[("ffma", Self::Ffma), ("mma_m16n8k8", Self::MmaM16n8k8), ("mma_m16n8k16", Self::MmaM16n8k16), ("wgmma", Self::Wgmma)];
}

impl Choice for CopyOp {
    const VALUES: &'static [(&'static str, Self)] = &[("sync", Self::Sync), ("cp_async", Self::CpAsync), ("tma", Self::Tma)];
}

/// A schedule. Legality depends on the kernel and the architecture: see [`crate::check`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// Block size of the first tiled grid axis (query rows).
    pub block_m: u32,
    /// Block size of the second tiled grid axis, or of the loops if there is none (key rows).
    pub block_n: u32,
    /// Block size of the loops of a kernel with two tiled grid axes (the contraction of a matmul).
    pub block_k: u32,
    /// Warps of a block that compute.
    pub warps: u32,
    /// Instruction of matrix products.
    pub tensor_op: TensorOp,
    /// Copy to shared memory.
    pub copy: CopyOp,
    /// Slots of each ring of streamed tiles.
    pub stages: u32,
    /// Layout of tiles in shared memory.
    pub swizzle: SharedLayout,
    /// B fragments.
    pub fragments: Fragments,
    /// Loop-invariant A operand.
    pub operand_a: OperandA,
    /// Right operands that the text computes.
    pub precompute: Precompute,
    /// Whether one B fragment serves all row tiles of a warp before the next is loaded.
    pub batch_m: bool,
    /// Exponentials.
    pub exponential: Exponential,
    /// Running maximum.
    pub running_max: RunningMax,
    /// Whether loops stop at (and start from) the first tile that a mask leaves anything of.
    pub early_stop: bool,
    /// Cut tiles.
    pub edges: Edges,
    /// Order of programs.
    pub order: WorkOrder,
    /// Programs of the outer grid dimensions that form a section of `order=lpt`.
    pub section: u32,
    /// Blocks per multiprocessor promised to the compiler (`__launch_bounds__`); 0 promises nothing.
    pub min_blocks: u32,
    /// Whether products run ahead of and behind the elementwise work of a step: the next step's first product and this step's
    /// last are in flight meanwhile.
    pub overlap: bool,
    /// Turns of warpgroups.
    pub ping_pong: PingPong,
    /// How blocks get programs.
    pub persistent: Persistent,
    /// Slots of each ring of tiles loaded once a program.
    pub outer_stages: u32,
    /// Registers a thread of the producer keeps (`setmaxnreg`), the others go to the consumers; 0 leaves them as launched.
    pub producer_registers: u32,
    /// Parts that the loop of a streaming reduction is split into, each a program of its own; 1 does not split it.
    pub split_k: u32,
    /// What combines the parts of a split loop.
    pub fixup: Fixup,
    /// Right operands that the text transposes (K).
    pub b_layout: BLayout,
    /// Order of rows and the loop.
    pub loop_order: LoopOrder,
    /// Order of the tiles of loops.
    pub walk: Walk,
    /// Rows of a tile.
    pub pack_gqa: PackGqa,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            block_m: 64,
            block_n: 64,
            block_k: 32,
            warps: 4,
            tensor_op: TensorOp::MmaM16n8k16,
            copy: CopyOp::CpAsync,
            stages: 2,
            swizzle: SharedLayout::Xor,
            fragments: Fragments::Paired,
            operand_a: OperandA::Shared,
            precompute: Precompute::Off,
            batch_m: true,
            exponential: Exponential::Exp2,
            running_max: RunningMax::Exact,
            early_stop: true,
            edges: Edges::Split,
            order: WorkOrder::Grid,
            section: 16,
            min_blocks: 0,
            overlap: false,
            ping_pong: PingPong::Off,
            persistent: Persistent::Off,
            outer_stages: 1,
            producer_registers: 0,
            split_k: 1,
            fixup: Fixup::Kernel,
            b_layout: BLayout::AsGiven,
            loop_order: LoopOrder::AsWritten,
            walk: Walk::Ascending,
            pack_gqa: PackGqa::Off,
        }
    }
}

/// A knob: a row of the table that the command line, the documentation and the tests walk.
pub struct Knob {
    /// Name in the text form.
    pub name: &'static str,
    /// What it does, one sentence.
    pub doc: &'static str,
    /// Values it takes, as text; empty for a number.
    pub values: fn() -> Vec<&'static str>,
    /// Its value as text.
    pub get: fn(&Schedule) -> String,
    /// Sets it from text; false if the text is no value of the knob.
    pub set: fn(&mut Schedule, &str) -> bool,
}

fn texts<T: Choice>(_: fn(&Schedule) -> T) -> Vec<&'static str> {
    T::VALUES.iter().map(|(t, _)| *t).collect()
}

macro_rules! knobs {
    ($($field:ident : $kind:tt, $doc:literal;)+) => {
        /// Every knob, in the order of the text form.
        pub const KNOBS: &[Knob] = &[$(knobs!(@knob $field, $kind, $doc)),+];
    };
    (@knob $field:ident, number, $doc:literal) => {
        Knob {
            name: stringify!($field),
            doc: $doc,
            values: || Vec::new(),
            get: |s| s.$field.to_string(),
            set: |s, text| text.parse().map(|v| s.$field = v).is_ok(),
        }
    };
    (@knob $field:ident, choice, $doc:literal) => {
        Knob {
            name: stringify!($field),
            doc: $doc,
            values: || texts(|s| s.$field),
            get: |s| s.$field.text(),
            set: |s, text| Choice::from_text(text).map(|v| s.$field = v).is_some(),
        }
    };
}

knobs! {
    block_m: number, "block size of the first tiled grid axis (query rows)";
    block_n: number, "block size of the second tiled grid axis, or of the loops if there is none (key rows)";
    block_k: number, "block size of the loops of a kernel with two tiled grid axes";
    warps: number, "warps of a block that compute";
    tensor_op: choice, "instruction of matrix products";
    copy: choice, "how tiles reach shared memory";
    stages: number, "slots of each ring of streamed tiles";
    swizzle: choice, "layout of tiles in shared memory";
    fragments: choice, "how B fragments reach registers";
    operand_a: choice, "where the loop-invariant A operand lives";
    precompute: choice, "operands of products that the text computes, computed by launches ahead";
    batch_m: choice, "one B fragment serves all row tiles of a warp";
    exponential: choice, "how exponentials are evaluated";
    running_max: choice, "when the running maximum of a streaming softmax moves";
    early_stop: choice, "loops skip tiles that a mask leaves nothing of";
    edges: choice, "which tiles test the mask";
    order: choice, "order in which blocks take programs";
    section: number, "outer programs per section of order=lpt";
    min_blocks: number, "blocks per multiprocessor promised to the compiler; 0 promises nothing";
    overlap: choice, "products are in flight during the elementwise work of a step, or the next products (wgmma)";
    ping_pong: choice, "what warpgroups do in turn (wgmma)";
    persistent: choice, "how blocks get programs (wgmma)";
    outer_stages: number, "slots of each ring of tiles loaded once a program (wgmma)";
    producer_registers: number, "registers a producer thread keeps, the others go to consumers; 0 leaves them (wgmma)";
    split_k: number, "parts that the loop of a streaming reduction is split into; 1 does not split it";
    fixup: choice, "what combines the parts of a split loop";
    b_layout: choice, "how right operands (K and V) lie in global memory";
    loop_order: choice, "whether rows or the loop over the other axis (keys) is the outer loop";
    walk: choice, "order in which loops visit their tiles";
    pack_gqa: choice, "whether a tile holds the rows of all heads that read the same keys, or of one";
}

/// Names that knobs had in earlier versions of the schedule space, each with the name of today. A
/// text with an earlier name is refused.
const RENAMED_KNOBS: &[(&str, &str)] =
    &[("shared", "swizzle"), ("splits", "split_k"), ("combine", "fixup"), ("fold", "pack_gqa")];

/// The same of values: the knob by its name of today, the earlier value, the value of today.
const RENAMED_VALUES: &[(&str, &str, &str)] =
    &[("swizzle", "plain", "off"), ("order", "longest_first", "lpt"), ("pack_gqa", "heads", "on")];

/// The value of today for an earlier value of a knob.
fn renamed_value(knob: &str, value: &str) -> Option<&'static str> {
    RENAMED_VALUES.iter().find(|(of, old, _)| (*of, *old) == (knob, value)).map(|(_, _, new)| *new)
}

/// Why a text is not a schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// Not of the form `knob=value`.
    #[error("`{0}` is not of the form knob=value")]
    Form(String),
    /// No such knob.
    #[error("unknown knob `{name}`; the knobs are {known}")]
    UnknownKnob {
        /// What was given.
        name: String,
        /// All names.
        known: String,
    },
    /// A name that a knob had in an earlier version.
    #[error("knob `{old}` has a new name, `{new}`: write `{instead}`")]
    RenamedKnob {
        /// What was given.
        old: &'static str,
        /// The name of today.
        new: &'static str,
        /// The item with the names of today.
        instead: String,
    },
    /// A name that a value of the knob had in an earlier version.
    #[error("value `{old}` of knob `{knob}` has a new name, `{new}`: write `{knob}={new}`")]
    RenamedValue {
        /// The knob.
        knob: &'static str,
        /// What was given.
        old: String,
        /// The name of today.
        new: &'static str,
    },
    /// Not a value of the knob.
    #[error("`{value}` is not a value of knob `{knob}`; expected {expected}")]
    Value {
        /// The knob.
        knob: &'static str,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
}

/// What is said of a name that no knob has.
fn unknown(name: &str, value: &str) -> ScheduleError {
    match RENAMED_KNOBS.iter().find(|(old, _)| *old == name) {
        Some(&(old, new)) => {
            let instead = format!("{new}={}", renamed_value(new, value).unwrap_or(value));
            ScheduleError::RenamedKnob { old, new, instead }
        }
        None => ScheduleError::UnknownKnob {
            name: name.to_owned(),
            known: KNOBS.iter().map(|k| k.name).collect::<Vec<_>>().join(", "),
        },
    }
}

impl Schedule {
    /// This schedule with the knobs named in `text` (`knob=value,...`) changed.
    pub fn with(&self, text: &str) -> Result<Self, ScheduleError> {
        let mut schedule = self.clone();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| ScheduleError::Form(item.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let knob = KNOBS.iter().find(|k| k.name == name).ok_or_else(|| unknown(name, value))?;
            if let Some(new) = renamed_value(knob.name, value) {
                return Err(ScheduleError::RenamedValue { knob: knob.name, old: value.to_owned(), new });
            }
            if !(knob.set)(&mut schedule, value) {
                let values = (knob.values)();
                let expected = if values.is_empty() { "a non-negative number".to_owned() } else { values.join(", ") };
                return Err(ScheduleError::Value { knob: knob.name, value: value.to_owned(), expected });
            }
        }
        Ok(schedule)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, knob) in KNOBS.iter().enumerate() {
            write!(f, "{}{}={}", if i == 0 { "" } else { "," }, knob.name, (knob.get)(self))?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        Schedule::default().with(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips_for_every_value_of_every_knob() {
        for knob in KNOBS {
            let values = (knob.values)();
            let values = if values.is_empty() { vec!["1", "128"] } else { values };
            for value in values {
                let text = format!("{}={value}", knob.name);
                let schedule: Schedule = text.parse().expect("a value from the table");
                assert_eq!((knob.get)(&schedule), value, "{text}");
                assert_eq!(schedule.to_string().parse(), Ok(schedule));
            }
        }
    }

    #[test]
    fn errors_say_what_is_possible() {
        let error = |text: &str| text.parse::<Schedule>().expect_err(text).to_string();
        assert_eq!(error("block_m"), "`block_m` is not of the form knob=value");
        assert!(error("blok_m=1").starts_with("unknown knob `blok_m`; the knobs are block_m, block_n"));
        assert_eq!(error("swizzle=fast"), "`fast` is not a value of knob `swizzle`; expected off, padded, xor");
        assert_eq!(error("warps=-1"), "`-1` is not a value of knob `warps`; expected a non-negative number");
    }

    #[test]
    fn earlier_names_are_refused_and_the_new_ones_named() {
        let error = |text: &str| text.parse::<Schedule>().expect_err(text).to_string();
        for (text, said) in [
            ("shared=plain", "knob `shared` has a new name, `swizzle`: write `swizzle=off`"),
            ("shared=xor", "knob `shared` has a new name, `swizzle`: write `swizzle=xor`"),
            ("splits=4", "knob `splits` has a new name, `split_k`: write `split_k=4`"),
            ("combine=tree", "knob `combine` has a new name, `fixup`: write `fixup=tree`"),
            ("fold=heads", "knob `fold` has a new name, `pack_gqa`: write `pack_gqa=on`"),
            ("fold=off", "knob `fold` has a new name, `pack_gqa`: write `pack_gqa=off`"),
            ("swizzle=plain", "value `plain` of knob `swizzle` has a new name, `off`: write `swizzle=off`"),
            ("order=longest_first", "value `longest_first` of knob `order` has a new name, `lpt`: write `order=lpt`"),
            ("pack_gqa=heads", "value `heads` of knob `pack_gqa` has a new name, `on`: write `pack_gqa=on`"),
        ] {
            assert_eq!(error(text), said);
        }
    }

    #[test]
    fn earlier_names_lead_to_names_that_exist() {
        for (old, new) in RENAMED_KNOBS {
            let names: Vec<_> = KNOBS.iter().map(|k| k.name).collect();
            assert!(names.contains(new) && !names.contains(old), "{old}: {new}");
        }
        for (of, old, new) in RENAMED_VALUES {
            let values = (KNOBS.iter().find(|k| k.name == *of).expect("a knob of today").values)();
            assert!(values.contains(new) && !values.contains(old), "{of}={old}: {new}");
        }
    }
}
