//! The knobs, a row each: name, type, default, the values that tests draw, what other knobs must be
//! for it to mean something, and what it does.
//!
//! [`LaunchKnobs`] say which launches a kernel becomes; [`BlockKnobs`] say all about one launch; a
//! [`Schedule`] has the first, and the second for each launch. The command line, the documentation,
//! legality, [`crate::draw()`] and the tests walk the table.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::choice::{
    BLayout, Differences, Edges, Exponential, Fixup, Fragments, LoopOrder, OperandA, Overlap, PackGqa, Persistent, PingPong,
    Precompute, RunningMax, SharedLayout, Summaries, Terms, TileLoads, Value, Walk, WorkOrder,
};
use crate::arch::{CopyOp, TensorOp};

/// Version of the schedule space: part of every cache key, raised when a knob or its meaning
/// changes.
pub const SPACE_VERSION: u32 = 28;

/// A schedule. Legality depends on the kernel and the architecture: see [`crate::check`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Schedule {
    /// Which launches there are.
    pub launches: LaunchKnobs,
    /// The main launch.
    pub main: BlockKnobs,
    /// The launches beside the main one, by name: what differs from the schedules that they have by
    /// themselves, which are of small blocks.
    pub beside: BTreeMap<String, Overrides>,
}

impl Schedule {
    /// This schedule with other launches.
    pub fn with_launches(&self, change: impl FnOnce(&mut LaunchKnobs)) -> Self {
        let mut schedule = self.clone();
        change(&mut schedule.launches);
        schedule
    }

    /// This schedule with other knobs of the main launch.
    pub fn with_main(&self, change: impl FnOnce(&mut BlockKnobs)) -> Self {
        let mut schedule = self.clone();
        change(&mut schedule.main);
        schedule
    }
}

impl From<BlockKnobs> for Schedule {
    fn from(main: BlockKnobs) -> Self {
        Self { main, ..Self::default() }
    }
}

/// Knobs of one launch that are given, by name, with their values as text. Only [`Self::set`] adds
/// one, so that each is a knob of a launch and has a value of that knob.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Overrides(BTreeMap<String, String>);

impl TryFrom<BTreeMap<String, String>> for Overrides {
    type Error = String;

    fn try_from(given: BTreeMap<String, String>) -> Result<Self, String> {
        let mut overrides = Self::default();
        for (name, value) in given {
            let known = Knob::named(&name).filter(|knob| overrides.set(knob, &value));
            known.ok_or_else(|| format!("{name}={value} is no knob of a launch and a value of it"))?;
        }
        Ok(overrides)
    }
}

impl Overrides {
    /// Gives a knob a value; false if it is no knob of a launch, or if the text is no value of it.
    pub fn set(&mut self, knob: &Knob, value: &str) -> bool {
        let mut block = BlockKnobs::default();
        let Some(of) = knob.of_block.filter(|of| (of.set)(&mut block, value)) else { return false };
        // As the knob itself writes it: `04` is 4.
        self.0.insert(knob.name.to_owned(), (of.get)(&block));
        true
    }

    /// The knobs of a launch with these values.
    pub fn applied(&self, mut block: BlockKnobs) -> BlockKnobs {
        for (name, value) in &self.0 {
            let of = Knob::named(name).and_then(|knob| knob.of_block);
            let is_value = of.is_some_and(|of| (of.set)(&mut block, value));
            debug_assert!(is_value, "`set` checked {name}={value}");
        }
        block
    }

    /// The knobs in the order of the table, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        KNOBS.iter().filter_map(|knob| Some((knob.name, self.0.get(knob.name)?.as_str())))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a knob is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Which launches there are.
    Launches,
    /// One launch.
    Block,
}

/// A condition under which a knob means something: another knob has one of these values. Elsewhere
/// only its default is legal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requires {
    /// The other knob.
    pub knob: &'static str,
    /// Its values.
    pub values: &'static [&'static str],
}

/// A knob: a row of the table.
pub struct Knob {
    /// Name in the text form.
    pub name: &'static str,
    /// What it does, one sentence.
    pub doc: &'static str,
    /// What it is about.
    pub scope: Scope,
    /// What other knobs must be for it to mean something.
    pub requires: &'static [Requires],
    /// Values that tests draw, if it is a number.
    pub numbers: &'static [u32],
    /// Values it takes, as text; empty for a number.
    pub values: fn() -> Vec<&'static str>,
    /// Its value in the main launch, as text.
    pub get: fn(&Schedule) -> String,
    /// Sets it from text, in the main launch; false if the text is no value of the knob.
    pub set: fn(&mut Schedule, &str) -> bool,
    /// The same for one launch.
    pub of_block: Option<OfBlock>,
}

/// How a knob of [`Scope::Block`] is read and set in one launch.
#[derive(Clone, Copy)]
pub struct OfBlock {
    /// Its value as text.
    pub get: fn(&BlockKnobs) -> String,
    /// Sets it from text; false if the text is no value of the knob.
    pub set: fn(&mut BlockKnobs, &str) -> bool,
}

impl Knob {
    /// The knob of this name.
    pub fn named(name: &str) -> Option<&'static Knob> {
        KNOBS.iter().find(|knob| knob.name == name)
    }

    /// The knobs of one launch, each with how it is read and set there.
    pub fn of_blocks() -> impl Iterator<Item = (&'static Knob, OfBlock)> {
        KNOBS.iter().filter_map(|knob| Some((knob, knob.of_block?)))
    }

    /// `knob=value`, as the text form of a schedule has it.
    pub(crate) fn text(&self, schedule: &Schedule) -> String {
        format!("{}={}", self.name, (self.get)(schedule))
    }

    /// What the knob requires and a launch does not have; `None` if it has its default there.
    pub(crate) fn lacks(&self, block: &BlockKnobs) -> Option<Requires> {
        let of = self.of_block?;
        if (of.get)(block) == (of.get)(&BlockKnobs::default()) {
            return None;
        }
        self.requires.iter().copied().find(|requires| !requires.holds(block))
    }
}

impl Requires {
    /// Whether the other knob has one of the values.
    pub(crate) fn holds(&self, block: &BlockKnobs) -> bool {
        let of = Knob::named(self.knob).and_then(|knob| knob.of_block).expect("a knob of a launch requires one of a launch");
        self.values.contains(&(of.get)(block).as_str())
    }
}

/// The knob is one of the asynchronous products, which a producer feeds.
const WGMMA: Requires = Requires { knob: "tensor_op", values: &["wgmma"] };
/// The knob is one of loops whose products are waited for late.
const LATE: Requires = Requires { knob: "overlap", values: &["late"] };
/// The knob is one of loops whose products are waited for one by one, or late.
const NOT_ON: Requires = Requires { knob: "overlap", values: &["off", "late"] };
/// The knob is one of warps that have all columns of their rows.
const ONE_GROUP: Requires = Requires { knob: "column_groups", values: &["1"] };
/// The knob is one of fragments that warps load; `wgmma` reads both operands from swizzled tiles.
const WARP: Requires = Requires { knob: "tensor_op", values: &["ffma", "mma_m16n8k8", "mma_m16n8k16"] };
/// The knob is one of operands in registers, which tensor cores take.
const MMA: Requires = Requires { knob: "tensor_op", values: &["mma_m16n8k8", "mma_m16n8k16"] };
/// The knob is one of blocks that run several programs.
const STAYS: Requires = Requires { knob: "persistent", values: &["static", "dynamic"] };

impl fmt::Display for Requires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values {
            [before @ .., last] if !before.is_empty() => write!(f, "{}={} or {last}", self.knob, before.join(", ")),
            values => write!(f, "{}={}", self.knob, values.concat()),
        }
    }
}

macro_rules! knobs {
    ($($(#[$doc:meta])* $part:ident: $knobs:ident, $scope:ident {
        $($field:ident: $type:ty = $default:expr, [$($number:literal),*], [$($requires:expr),*], $what:literal;)+
    })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
            pub struct $knobs {
                $(#[doc = $what] pub $field: $type,)+
            }

            impl Default for $knobs {
                fn default() -> Self {
                    Self { $($field: $default),+ }
                }
            }
        )+

        /// Every knob, in the order of the text form.
        pub const KNOBS: &[Knob] = &[$($(Knob {
            name: stringify!($field),
            doc: $what,
            scope: Scope::$scope,
            requires: &[$($requires),*],
            numbers: &[$($number),*],
            values: <$type as Value>::texts,
            get: |s| s.$part.$field.text(),
            set: |s, text| Value::from_text(text).map(|v| s.$part.$field = v).is_some(),
            of_block: knobs!(@of_block $scope, $field),
        },)+)+];
    };
    (@of_block Launches, $field:ident) => { None };
    (@of_block Block, $field:ident) => {
        Some(OfBlock {
            get: |s| s.$field.text(),
            set: |s, text| Value::from_text(text).map(|v| s.$field = v).is_some(),
        })
    };
}

// Name, type, default; values that are drawn, if it is a number; what it requires; what it does.
knobs! {
    /// All about one launch.
    main: BlockKnobs, Block {
        block_m: u32 = 64, [16, 32, 48, 64, 96, 128, 192, 256], [],
            "block size of the first tiled grid axis (query rows)";
        block_n: u32 = 64, [16, 32, 64, 96, 128, 256], [],
            "block size of the second tiled grid axis, or of the loops if there is none (key rows)";
        block_k: u32 = 32, [16, 32, 64], [],
            "block size of the loops of a kernel with two tiled grid axes (the contraction of a matmul)";
        warps: u32 = 4, [1, 2, 3, 4, 8, 12], [],
            "warps of a block that compute";
        column_groups: u32 = 1, [1, 2], [],
            "groups of warps that share the columns of every tile, so that wide accumulators fit; 1, 2 or 4";
        column_programs: u32 = 1, [1], [],
            "programs that share the columns of every tile, of a launch that multiplies and reduces nothing";
        tensor_op: TensorOp = TensorOp::MmaM16n8k16, [], [],
            "instruction of matrix products";
        copy: CopyOp = CopyOp::CpAsync, [], [],
            "how tiles reach shared memory";
        stages: u32 = 2, [1, 2, 3, 4], [],
            "slots of each ring of streamed tiles";
        v_stages: u32 = 0, [0, 1, 2, 3], [WGMMA],
            "slots of the ring that one product of a step alone reads (V); 0: as many as stages (wgmma)";
        tile_loads: TileLoads = TileLoads::Direct, [], [WGMMA, ONE_GROUP],
            "how 16-bit tiles of elementwise work in a loop, such as a bias, reach registers (tensor_op=wgmma)";
        swizzle: SharedLayout = SharedLayout::Xor, [], [WARP],
            "layout of tiles in shared memory";
        fragments: Fragments = Fragments::Paired, [], [WARP],
            "how B fragments reach registers";
        operand_a: OperandA = OperandA::Shared, [], [MMA],
            "where the loop-invariant A operand (Q) lives";
        batch_m: bool = true, [], [WARP],
            "whether one B fragment serves all row tiles of a warp before the next is loaded";
        exponential: Exponential = Exponential::Exp2, [], [],
            "how exponentials are evaluated";
        running_max: RunningMax = RunningMax::Exact, [], [],
            "how the running maximum of a streaming softmax moves";
        early_stop: bool = true, [], [],
            "whether loops stop at (and start from) the first tile that a mask leaves anything of";
        edges: Edges = Edges::Split, [], [],
            "which tiles test the predicate of a mask";
        order: WorkOrder = WorkOrder::Grid, [], [],
            "order in which blocks take programs";
        share_tiles: bool = false, [], [],
            "whether programs that read the same tiles of elementwise work, such as a bias, follow each other";
        section: u32 = 16, [1, 8, 16], [],
            "outer programs per section of order=lpt";
        min_blocks: u32 = 0, [0, 1, 2], [],
            "blocks per multiprocessor promised to the compiler; 0 promises nothing";
        overlap: Overlap = Overlap::Off, [], [WGMMA],
            "what is done while products are in flight (wgmma)";
        held_columns: u32 = 0, [0, 64, 128, 192], [WGMMA, NOT_ON],
            "last columns of a left operand that stays for a loop (Q) that warps hold in registers (wgmma); 0 or a multiple of 64";
        sum_lag: u32 = 1, [1], [LATE],
            "steps by which a product that is added to memory (dq) lags the step of its operand, 0 or 1 (overlap=late)";
        ping_pong: PingPong = PingPong::Off, [], [WGMMA],
            "what warpgroups do in turn (wgmma)";
        persistent: Persistent = Persistent::Off, [], [WGMMA],
            "how blocks get programs (wgmma)";
        outer_stages: u32 = 1, [1, 2], [WGMMA, STAYS],
            "slots of each ring of tiles loaded once a program (wgmma)";
        producer_registers: u32 = 0, [0, 24, 32, 40], [WGMMA],
            "registers a producer thread keeps, the others go to consumers; 0 leaves them (wgmma)";
        walk: Walk = Walk::Ascending, [], [],
            "order in which loops visit their tiles";
    }
    /// Which launches a kernel becomes.
    launches: LaunchKnobs, Launches {
        precompute: Precompute = Precompute::Off, [], [],
            "which computed operands of products launches ahead compute once for all programs";
        differences: Differences = Differences::InPlace, [], [],
            "where values are computed that depend on how far apart two positions are, such as a bias of T5";
        terms: Terms = Terms::Added, [], [],
            "how vectors along the columns of a product, such as lse of rows, are added to it";
        split_k: u32 = 1, [1, 2, 5, 6], [],
            "parts that the loop of a streaming reduction is split into; 1 does not split it";
        fixup: Fixup = Fixup::Kernel, [], [],
            "what combines the parts of a split loop";
        b_layout: BLayout = BLayout::AsGiven, [], [],
            "how right operands (K and V) lie in global memory";
        loop_order: LoopOrder = LoopOrder::AsWritten, [], [],
            "whether rows or the loop over the other axis (keys) is the outer loop";
        pack_gqa: PackGqa = PackGqa::Off, [], [],
            "whether a tile holds the rows of all heads that read the same keys, or of one";
        summaries: Summaries = Summaries::Off, [], [],
            "whether launches ahead summarise what masks load, such as documents or lists of blocks, so that tiles are skipped";
    }
}

/// Names that knobs had in earlier versions of the schedule space, each with the name of today. A
/// text with an earlier name is refused.
pub(super) const RENAMED_KNOBS: &[(&str, &str)] =
    &[("shared", "swizzle"), ("splits", "split_k"), ("combine", "fixup"), ("fold", "pack_gqa")];

/// The same of values: the knob by its name of today, the earlier value, the value of today.
pub(super) const RENAMED_VALUES: &[(&str, &str, &str)] =
    &[("swizzle", "plain", "off"), ("order", "longest_first", "lpt"), ("pack_gqa", "heads", "on")];
