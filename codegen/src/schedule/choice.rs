//! Values of knobs: choices with a name each, and numbers.

use serde::{Deserialize, Serialize};

use crate::arch::{CopyOp, TensorOp};

/// What a knob may be: a choice, or a number.
pub(super) trait Value: Sized + PartialEq {
    /// All values as text; empty for a number.
    fn texts() -> Vec<&'static str>;
    /// The text form.
    fn text(&self) -> String;
    /// The value of a text.
    fn from_text(text: &str) -> Option<Self>;
}

impl Value for u32 {
    fn texts() -> Vec<&'static str> {
        Vec::new()
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Gives a type its texts, a row for each value.
macro_rules! texts {
    ($name:ty: $($text:literal = $value:expr),+ $(,)?) => {
        impl Value for $name {
            fn texts() -> Vec<&'static str> {
                vec![$($text),+]
            }

            fn text(&self) -> String {
                let row = [$(($text, $value)),+].into_iter().find(|(_, value)| value == self);
                row.map(|(text, _)| text.to_owned()).expect("every value has a text")
            }

            fn from_text(text: &str) -> Option<Self> {
                [$(($text, $value)),+].into_iter().find(|(t, _)| *t == text).map(|(_, value)| value)
            }
        }
    };
}

texts!(bool: "off" = false, "on" = true);
texts!(
    TensorOp: "ffma" = Self::Ffma,
    "mma_m16n8k8" = Self::MmaM16n8k8,
    "mma_m16n8k16" = Self::MmaM16n8k16,
    "wgmma" = Self::Wgmma,
);
texts!(CopyOp: "sync" = Self::Sync, "cp_async" = Self::CpAsync, "tma" = Self::Tma);

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        texts!($name: $($text = $name::$variant),+);
    };
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
        /// Two fragments per `ldmatrix` (`.x4`) of an operand whose rows run along the contraction
        /// (K), one per `.x2.trans` of one whose rows run across it (V).
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
    /// Which operands of products, of those that the text computes from tensors alone, are computed
    /// once for all programs, by launches ahead. The others are computed by every program that
    /// needs them.
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
    /// Where values are computed that depend on how far apart two positions are, and on nothing else
    /// of a tile.
    Differences {
        /// For each pair of positions.
        InPlace = "in_place",
        /// For each difference, by a launch ahead; the kernel reads them.
        Ahead = "ahead",
    }
}

choices! {
    /// How vectors along the columns of a product are added to it.
    Terms {
        /// By additions, element by element.
        Added = "added",
        /// By a further step of the product, with what a launch ahead makes of them.
        Product = "product",
    }
}

choices! {
    /// How tiles of 16-bit numbers that a loop loads for its elementwise work, such as a bias, reach registers.
    TileLoads {
        /// Each lane loads its elements from global memory.
        Direct = "direct",
        /// By TMA through a ring, as the operands of products do.
        Tma = "tma",
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
    /// How the running maximum of a streaming softmax moves. All forms are exact in the end: it
    /// only is the reference that keeps exponentials finite, and what is carried is rescaled
    /// whenever it moves.
    RunningMax {
        /// In every step, to the maximum so far.
        Exact = "exact",
        /// Only when a score exceeds it by so much that exponentials could overflow; the maximum of
        /// a step is taken per lane.
        MaxFirst = "max_first",
        /// Exponentials are taken against the old one at once; a step whose sums show an overflow
        /// is redone with a new one.
        Optimistic = "optimistic",
        /// Not at all after the first tile of a loop. A program whose sums overflow, or of which
        /// the first tile shows nothing of a row, is made again with `max_first`, in the same
        /// launch.
        First = "first",
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
    /// What is done while products are in flight.
    Overlap {
        /// Nothing: each is waited for where it is issued.
        Off = "off",
        /// The last products of a step run beside the first of the next and the elementwise work
        /// between.
        On = "on",
        /// All that needs no result of theirs: each is waited for as late as may be.
        Late = "late",
    }
}

choices! {
    /// What warpgroups of a block do in turn, so that one multiplies while another takes
    /// exponentials.
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
        /// As they are given: of those that the text transposes the product reads rows as its
        /// columns.
        AsGiven = "as_given",
        /// Those that the text transposes, transposed by a kernel of its own, launched before.
        Pretransposed = "pretransposed",
        /// Copied by a kernel of its own, launched before, to rows that begin at whole lines of the
        /// L2 cache. Where they are not aligned to 16 bytes, left operands are copied too, and tiles
        /// of 16-bit numbers that a loop loads for its elementwise work.
        Copied = "copied",
    }
}

choices! {
    /// Which of rows and the loop over the other axis is the outer loop.
    LoopOrder {
        /// A program for each tile of rows, and the loop in it, which carries its state in
        /// registers.
        AsWritten = "as_written",
        /// The loop outside and rows inside (the order of FlashAttention-1): a program walks all
        /// rows for every tile of the loop, and the state of each tile of rows lies in global
        /// memory in the meantime.
        Interchanged = "interchanged",
    }
}

choices! {
    /// In which order a loop visits its tiles.
    Walk {
        /// From the first, as the text says.
        Ascending = "ascending",
        /// From the last: tiles that the ragged end or a causal mask cuts come first, and those
        /// that nothing cuts follow. A maximum that grows along the loop is found at once.
        Descending = "descending",
        /// The last one that nothing cuts and those behind it, then from the first. A maximum that
        /// grows along the loop, or falls, is found in the first few.
        LastFirst = "last_first",
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
    /// Whether what masks load for each position of a loop is summarised ahead, so that the loop
    /// skips tiles by it.
    Summaries {
        /// It is not: such a mask skips nothing.
        Off = "off",
        /// The least and the largest integer of each tile are.
        On = "on",
        /// The tiles of which masks leave anything are listed for each program, and the loop walks
        /// its list.
        Listed = "listed",
    }
}

choices! {
    /// What combines the parts of a split loop.
    Fixup {
        /// A kernel of its own, launched after the one that walks the parts.
        Kernel = "kernel",
        /// Two such kernels: one for groups of parts, as many side by side, and one for the groups.
        Tree = "tree",
        /// The programs that walk the parts, one after the other in the order of the parts, each
        /// when a semaphore says so.
        Semaphore = "semaphore",
        /// The programs that walk the parts, which are the blocks of a cluster and read each
        /// other's states in shared memory.
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
