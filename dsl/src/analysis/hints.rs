//! Hints: what a kernel's text makes slower than it need be, which value is the cause, and what to write instead.
//!
//! Nothing is decided here. Every hint restates a reason of an analysis ([`super::mask`], [`super::predicate`], [`super::unchanged`],
//! [`super::streaming`]), so that it vanishes when the analysis learns to follow the text. Where a proof fails ([`Unproven`]), the cause
//! is found by asking the proof again under assumptions: the smallest set of values that would make it hold, had they started from
//! nothing. Hints on folding and on `wgmma` are the code generator's.

use std::collections::BTreeSet;

use super::classes::Classes;
use super::mask::{LoopMasks, MaskOptions, kept_where, loop_masks};
use super::predicate::{Boundary, Opaque, OpaqueWhy, Run, Summaries, Walk, defined_in};
use super::streaming::{NotRegrouped, NotStreaming, Streaming};
use super::unchanged::{Assumptions, Unchanged, Unproven, unchanged_if};
use super::unmasked::Unmasked;
use crate::ir::{AxisKind, BinaryOp, BlockId, IndexOp, Kernel, Op, OpId, ReduceOp, SizeExpr, Span, ValueDef, ValueId};
use crate::syntax::{Call, Diagnostic, Severity};

/// What a kernel loses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lost {
    /// Tiles that a mask hides are walked.
    Skips,
    /// Tiles between two runs that a mask leaves are walked.
    Gap,
    /// The loop cannot be split into parts that run side by side.
    Split,
    /// The rows of the heads that read the same keys stay apart.
    Fold,
    /// Products go through `mma.sync` on an architecture with `wgmma`.
    Wgmma,
    /// There is no code for a GPU.
    Gpu,
}

impl Lost {
    /// Every loss.
    pub const ALL: [Self; 6] = [Self::Skips, Self::Gap, Self::Split, Self::Fold, Self::Wgmma, Self::Gpu];

    /// A word for it, as in the command's JSON.
    pub fn name(self) -> &'static str {
        match self {
            Lost::Skips => "skips",
            Lost::Gap => "gap",
            Lost::Split => "split",
            Lost::Fold => "fold",
            Lost::Wgmma => "wgmma",
            Lost::Gpu => "gpu",
        }
    }

    /// What is lost, in one sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Lost::Skips => "tiles that the mask hides are walked all the same",
            Lost::Gap => "tiles between the two runs that the mask leaves are walked all the same",
            Lost::Split => "the loop cannot be split into parts that run side by side",
            Lost::Fold => "the rows of heads that read the same keys cannot fold into one tile",
            Lost::Wgmma => "products cannot go through `wgmma`",
            Lost::Gpu => "no code can be generated for a GPU",
        }
    }
}

/// Something that a kernel loses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// What; never empty.
    pub lost: Vec<Lost>,
    /// The value or operation that prevents it.
    pub span: Span,
    /// Why it prevents it, in a few words.
    pub because: String,
    /// What to write instead.
    pub instead: String,
    /// The calls that may lead there, if the place is in a helper.
    pub calls: Vec<Call>,
}

impl Hint {
    /// A loss with its cause; the calls are found by [`merged`].
    pub fn new(lost: Lost, span: Span, because: impl Into<String>, instead: impl Into<String>) -> Self {
        Self { lost: vec![lost], span, because: because.into(), instead: instead.into(), calls: Vec::new() }
    }

    /// What is lost, in words.
    pub fn message(&self) -> String {
        self.lost.iter().map(|lost| lost.sentence()).collect::<Vec<_>>().join(", and ")
    }
}

impl From<Hint> for Diagnostic {
    fn from(hint: Hint) -> Self {
        let message = hint.message();
        let diagnostic = Diagnostic::new(hint.span, message).label(hint.because).help(hint.instead);
        diagnostic.severity(Severity::Hint).called_by(hint.calls)
    }
}

/// Block size of every axis here: where runs of tiles end does not matter, whether they can be told does.
const BLOCK: i64 = 64;

/// What the loops of a kernel lose. `size` knows the sizes that are fixed at compile time.
pub fn hints(kernel: &Kernel, size: &dyn Fn(&SizeExpr) -> Option<i64>) -> Vec<Hint> {
    let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
    let loops: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).filter(is_loop).collect();
    let mut found = Vec::new();
    for &loop_op in &loops {
        let of = Loop { kernel, loop_op, size };
        // A loop over single positions has no tiles that a mask could hide.
        if of.walks_tiles() {
            found.extend(of.skips());
        }
        if loops.len() == 1 {
            found.extend(of.split());
        }
    }
    merged(kernel, found)
}

/// What a kernel loses whose constants are not fixed yet: each is taken to be known.
pub fn hints_unbound(kernel: &Kernel) -> Vec<Hint> {
    let constant = |id| (kernel.sizes[id].kind == crate::ir::SizeKind::Const).then_some(BLOCK);
    hints(kernel, &|size| size.eval(constant))
}

/// One hint for each cause, in the order of the text, with the calls that lead there.
pub fn merged(kernel: &Kernel, hints: Vec<Hint>) -> Vec<Hint> {
    let mut out: Vec<Hint> = Vec::new();
    for hint in hints {
        match out.iter_mut().find(|other| other.span == hint.span && other.instead == hint.instead) {
            Some(other) => other.lost.extend(hint.lost),
            None => out.push(hint),
        }
    }
    for hint in &mut out {
        hint.lost.sort_unstable();
        hint.lost.dedup();
        hint.calls = kernel.calls_to(hint.span).into_iter().map(Call::from).collect();
    }
    out.sort_by_key(|hint| (hint.span.start, hint.span.end));
    out
}

/// The name of a value, or its text where it has none.
fn quoted(kernel: &Kernel, value: ValueId) -> String {
    kernel.values[value].name.as_ref().map_or_else(|| text(kernel, value), |name| format!("`{name}`"))
}

/// The text of a value, on one line.
fn text(kernel: &Kernel, value: ValueId) -> String {
    let span = span_of(kernel, value);
    match kernel.source.text.get(span.start as usize..span.end as usize).filter(|text| !text.is_empty()) {
        Some(text) => format!("`{}`", text.split_whitespace().collect::<Vec<_>>().join(" ")),
        None => format!("`{value}`"),
    }
}

/// Where a value is computed: of a parameter of a loop, the loop's header.
fn span_of(kernel: &Kernel, value: ValueId) -> Span {
    match kernel.values[value].def {
        ValueDef::Result(op, _) => kernel.ops[op].span,
        ValueDef::BlockParam(block, _) => {
            let is_owner = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { body, .. } if body == block);
            kernel.walk().into_iter().map(|(_, op)| op).find(is_owner).map_or(kernel.name_span, |op| kernel.ops[op].span)
        }
    }
}

/// A loop that is asked about.
struct Loop<'a> {
    kernel: &'a Kernel,
    loop_op: OpId,
    size: &'a dyn Fn(&SizeExpr) -> Option<i64>,
}

/// What a proof needs that it does not have.
enum Cause {
    /// These carried values start from something else than nothing.
    Starts(Vec<usize>),
    /// Something else.
    Other,
}

impl Loop<'_> {
    fn body(&self) -> BlockId {
        let Op::For { body, .. } = self.kernel.ops[self.loop_op].op else { unreachable!("a loop is asked about") };
        body
    }

    fn walks_tiles(&self) -> bool {
        let Op::For { axis, .. } = self.kernel.ops[self.loop_op].op else { unreachable!("a loop is asked about") };
        self.kernel.axes[axis].kind != AxisKind::Each
    }

    fn init(&self) -> &[ValueId] {
        let Op::For { init, .. } = &self.kernel.ops[self.loop_op].op else { unreachable!("a loop is asked about") };
        init
    }

    fn next(&self) -> &[ValueId] {
        match self.kernel.blocks[self.body()].ops.last().map(|&op| &self.kernel.ops[op].op) {
            Some(Op::Yield(next)) => next,
            _ => panic!("verified: a loop body ends in a yield"),
        }
    }

    fn quoted(&self, value: ValueId) -> String {
        quoted(self.kernel, value)
    }

    fn span(&self, value: ValueId) -> Span {
        span_of(self.kernel, value)
    }

    /// Name of a carried value.
    fn name(&self, slot: usize) -> String {
        let carried = self.kernel.blocks[self.body()].params[1 + slot];
        self.kernel.values[carried].name.clone().unwrap_or_else(|| carried.to_string())
    }

    /// What is known of its masks, with all summarised that can be.
    fn masks(&self) -> LoopMasks {
        let options = MaskOptions { summaries: Summaries::All, ..MaskOptions::default() };
        loop_masks(self.kernel, self.loop_op, &|_| BLOCK, self.size, options)
    }

    /// The masks that hide tiles which are walked all the same.
    fn skips(&self) -> Vec<Hint> {
        let masks = self.masks();
        let inner = defined_in(self.kernel, self.body());
        let coordinate = self.kernel.blocks[self.body()].params[0];
        let walk = Walk {
            kernel: self.kernel,
            coordinate,
            inner: &inner,
            block: &|_| BLOCK,
            size: self.size,
            boundary: Boundary::Written,
            loaded: true,
            summaries: Summaries::All,
        };
        let counted: Vec<OpId> = masks.masks.iter().map(|facts| facts.op).collect();
        let mut found: Vec<Hint> =
            walk.unmasked(self.body(), &counted).into_iter().map(|(op, why)| self.unmasked(op, why)).collect();
        // Launches ahead look at every element.
        if masks.listed.is_some() {
            found.extend(self.not_skipped(&masks));
            return found;
        }
        for facts in &masks.masks {
            let (keep, _) = kept_where(self.kernel, facts.op).expect("facts of masks");
            found.extend(walk.opaque(keep).into_iter().filter_map(|opaque| self.opaque(opaque)));
            if masks.runs.gap.is_none() {
                found.extend(walk.gaps(keep).into_iter().map(|either| self.gap(either)));
            }
        }
        found.extend(self.not_skipped(&masks));
        found
    }

    /// Whether an integer is a size or a parameter itself, or a product of such.
    fn is_plain(&self, value: ValueId) -> bool {
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(&(Op::FromIndex(x) | Op::ToIndex(x) | Op::Full { value: x, .. })) => self.is_plain(x),
            Some(&(Op::Binary(BinaryOp::Mul, a, b) | Op::Index(IndexOp::Mul, a, b))) => self.is_plain(a) && self.is_plain(b),
            op => matches!(op, Some(Op::SizeOf(_) | Op::Scalar(_) | Op::IndexConst(_) | Op::Constant(..) | Op::Load { .. })),
        }
    }

    /// A value of a predicate that is not known before the loop.
    fn opaque(&self, opaque: Opaque) -> Option<Hint> {
        let Opaque { value, why } = opaque;
        let text = self.quoted(value);
        let (because, instead) = match why {
            OpaqueWhy::Loaded => {
                let alone = self.kernel.tile(value).dims.is_empty();
                let instead = if alone {
                    "where one launch has one bound, pass it as a parameter of type `i32`; else add what positions and parameters \
                     say of it, such as `&& pos(j) <= pos(i)`"
                } else {
                    "what positions, sizes and `i32` parameters imply is skipped: add it to the condition, such as \
                     `&& pos(i) >= pos(j)`"
                };
                (format!("{text} is loaded: not known before the loop"), instead.to_owned())
            }
            OpaqueWhy::Range => {
                let instead = "let sums, constant factors and constant divisors be all that is between it and the comparison: no remainder, \
                     no run-time factor or divisor";
                (format!("of {text} only the range is known before the loop"), instead.to_owned())
            }
            OpaqueWhy::Divisor => {
                let alone = self.kernel.tile(value).dims.is_empty();
                let (because, instead) = if alone && self.is_plain(value) {
                    ("divides what is divided already", "divide once, by the product: `x / (s * t)` for `x / s / t`")
                } else if alone {
                    (
                        "divides, and is computed from what is known at launch only",
                        "divide by a constant, a size, or an `i32` parameter that is passed computed",
                    )
                } else {
                    (
                        "divides, and differs from position to position",
                        "divide by a constant, an `i32` parameter or a loaded scalar",
                    )
                };
                (format!("{text} {because}"), instead.to_owned())
            }
            OpaqueWhy::Product => {
                let instead = "make one of the factors a constant of the kernel, or pass the product as an `i32` parameter";
                (format!("{text} multiplies two numbers that are known at launch only"), instead.to_owned())
            }
            OpaqueWhy::Floats => {
                let instead = "compare integers: positions, sizes and `i32` parameters";
                (format!("{text} compares floats"), instead.to_owned())
            }
            OpaqueWhy::Long => {
                let instead = "use what a step of the arithmetic made once in the next one, or compare positions themselves";
                (format!("{text} has too many operations, each written out where it is used"), instead.to_owned())
            }
            OpaqueWhy::Other => {
                let instead = "write the condition with comparisons of positions, sizes and `i32` parameters";
                (format!("{text} is not followed by the analysis"), instead.to_owned())
            }
        };
        Some(Hint::new(Lost::Skips, self.span(value), because, instead))
    }

    /// A condition that is written as numbers.
    fn unmasked(&self, op: OpId, why: Unmasked) -> Hint {
        let value = self.kernel.ops[op].results[0];
        let text = self.quoted(value);
        let (because, instead) = match why {
            Unmasked::Added => (
                format!("{text} is added, and what it is added to may be NaN"),
                "hide elements by `mask(s, keep)` in place of adding to them: what is hidden is absent from sums, maxima and products",
            ),
            Unmasked::Multiplied => (
                format!("a product takes {text}, and 0 times what it meets may be NaN"),
                "hide elements by `mask(x, keep)` in place of making them 0, before what is computed of them: what is hidden is absent \
                 from sums and products",
            ),
            Unmasked::Finite => (
                format!("{text} has a finite number where the condition does not hold, which counts as any other score does"),
                "hide elements by `mask(s, keep)`: what is hidden is absent from sums, maxima and products",
            ),
        };
        Hint::new(Lost::Skips, self.kernel.ops[op].span, because, instead)
    }

    /// A disjunction that leaves two runs.
    fn gap(&self, either: ValueId) -> Hint {
        let instead = "give the keys of one side as a tensor of their own (a view of the same memory), and walk it in a loop before \
                       this one that carries the same values";
        Hint::new(Lost::Gap, self.span(either), "one loop walks one run of tiles", instead)
    }

    /// Hidden tiles of which it is not proved that they change nothing.
    fn not_skipped(&self, masks: &LoopMasks) -> Vec<Hint> {
        let hides = masks.masks.iter().fold(None, |hull: Option<Run>, facts| {
            let run = &facts.holds.somewhere;
            Some(hull.map_or_else(|| run.clone(), |hull| hull.hull(run)))
        });
        if hides.is_none_or(|run| run.is_all()) {
            return Vec::new();
        }
        if let Some(why) = &masks.not_skipped {
            let all = masks.masks.iter().map(|facts| facts.op).collect();
            return self.unproved(why, &all, masks, Lost::Skips);
        }
        let late = masks.masks.iter().any(|facts| facts.hidden == Unchanged::AfterFirst);
        if late && masks.walked.lo.is_some() {
            let span = masks.masks.first().map_or_else(Span::default, |facts| self.kernel.ops[facts.op].span);
            return vec![self.nan(Lost::Skips, span)];
        }
        Vec::new()
    }

    /// A first tile that is hidden makes NaN.
    fn nan(&self, lost: Lost, span: Span) -> Hint {
        let because = "a row that has seen nothing yet makes NaN, `-inf - -inf`";
        let instead = "write `let m_ref = visible_or_zero(m_new);`, and subtract `m_ref` from the scores and from `m`";
        Hint::new(lost, span, because, instead)
    }

    /// Why a proof fails, as hints.
    fn unproved(&self, why: &Unproven, masked: &BTreeSet<OpId>, masks: &LoopMasks, lost: Lost) -> Vec<Hint> {
        let hint = |span, because: String, instead: String| Hint::new(lost, span, because, instead);
        if let Unproven::StartIsTold { slot, name, told } = why {
            let value = self.init()[*slot];
            let instead = format!(
                "divide by `div_or_zero`, so that `{told}` of such a row is the same for every start, or start `{name}` from zeros and \
                 merge the initial value after the loop"
            );
            return vec![hint(self.span(value), format!("`{name}` starts from {}", text(self.kernel, value)), instead)];
        }
        let Unproven::MayChange { slot, name } = why else {
            let store = self.kernel.walk().into_iter().map(|(_, op)| op).find(|&op| self.is_store_inside(op));
            let span = store.map_or(self.kernel.ops[self.loop_op].span, |op| self.kernel.ops[op].span);
            let instead = "store after the loop, or in a loop of its own without the mask";
            return vec![hint(span, "the loop stores in every tile".into(), instead.into())];
        };
        match self.cause(masked, masks) {
            Cause::Starts(slots) => {
                let start = |slot: usize| {
                    let value = self.init()[slot];
                    let nothing = if self.is_maximum(slot) { "`full(i, -INF)`" } else { "zeros" };
                    hint(
                        self.span(value),
                        format!("`{}` starts from {}", self.name(slot), text(self.kernel, value)),
                        format!("start `{}` from {nothing}, and merge the initial value after the loop", self.name(slot)),
                    )
                };
                slots.into_iter().map(start).collect()
            }
            Cause::Other => {
                let span = self.span(self.next()[*slot]);
                let because = format!("`{name}` may change in a tile of which nothing is visible");
                let instead = "carry maxima and sums alone, of what a hidden score makes 0: `exp(s - m_ref)` of the masked `s`, with \
                               `m_ref = visible_or_zero(m_new)`";
                vec![hint(span, because, instead.into())]
            }
        }
    }

    fn is_store_inside(&self, op: OpId) -> bool {
        let inside = |block: BlockId| {
            let mut open = vec![self.body()];
            while let Some(at) = open.pop() {
                if at == block {
                    return true;
                }
                for &op in &self.kernel.blocks[at].ops {
                    if let Op::For { body, .. } = self.kernel.ops[op].op {
                        open.push(body);
                    }
                }
            }
            false
        };
        let block = self.kernel.walk().into_iter().find(|&(_, other)| other == op).map(|(block, _)| block);
        self.kernel.ops[op].op.written().is_some() && block.is_some_and(inside)
    }

    /// Whether the carried value takes in row maxima.
    fn is_maximum(&self, slot: usize) -> bool {
        let (mut rest, mut found) = (vec![self.next()[slot]], false);
        while let Some(v) = rest.pop() {
            match self.kernel.def(v).map(|(_, op)| op) {
                Some(Op::Binary(BinaryOp::Max, a, b)) => rest.extend([*a, *b]),
                Some(Op::Reduce(ReduceOp::Max, _)) => found = true,
                _ => {}
            }
        }
        found
    }

    /// The smallest set of assumptions under which the proof holds. Later values are given up before earlier ones, so that what is
    /// left is the root of the matter.
    fn cause(&self, masked: &BTreeSet<OpId>, masks: &LoopMasks) -> Cause {
        let starts: Vec<(ValueId, Classes)> = (0..self.init().len())
            .map(|slot| (self.init()[slot], if self.is_maximum(slot) { Classes::NEG_INF } else { Classes::ZERO }))
            .collect();
        let single: Vec<BTreeSet<OpId>> = masks.masks.iter().map(|facts| BTreeSet::from([facts.op])).collect();
        for masked in std::iter::once(masked).chain(&single) {
            let proved = |kept: &[(ValueId, Classes)]| {
                let assumed: Assumptions = kept.iter().copied().collect();
                let answer = unchanged_if(self.kernel, self.loop_op, masked, &assumed);
                matches!(answer, Unchanged::Always | Unchanged::Unseen)
            };
            let mut kept = starts.clone();
            if kept.is_empty() || !proved(&kept) {
                continue;
            }
            for n in (0..kept.len()).rev() {
                let without = [&kept[..n], &kept[n + 1..]].concat();
                if proved(&without) {
                    kept = without;
                }
            }
            let values: BTreeSet<ValueId> = kept.into_iter().map(|(v, _)| v).collect();
            return Cause::Starts((0..self.init().len()).filter(|&slot| values.contains(&self.init()[slot])).collect());
        }
        Cause::Other
    }

    /// Why the loop has no parts that may run side by side.
    fn split(&self) -> Vec<Hint> {
        let Op::For { axis, .. } = self.kernel.ops[self.loop_op].op else { unreachable!("a loop is asked about") };
        if self.kernel.axes[axis].kind != AxisKind::Loop {
            return Vec::new();
        }
        let Some(why) = Streaming::of(self.kernel, self.loop_op).why_not_regrouped(self.kernel) else { return Vec::new() };
        let next = |slot: usize| self.span(self.next()[slot]);
        let hint = |span, because: String, instead: &str| vec![Hint::new(Lost::Split, span, because, instead)];
        match &why {
            // What such a loop is for.
            NotRegrouped::Stores => Vec::new(),
            NotRegrouped::NotStreaming { slot, why: form, .. } => {
                let instead = match form {
                    NotStreaming::NeitherMaximumNorSum | NotStreaming::TermIsCarried | NotStreaming::KeptIsNoProduct => {
                        "carry maxima, `m = max(m, rowmax(s))`, and sums, `x = x + t` or `x = x * exp(m - m_new) + t`, whose terms \
                         depend on no other carried value: what is neither may be another number for other sizes of tiles, \
                         which `flashtile verify` finds"
                    }
                    NotStreaming::TermDoesNotScale => {
                        "take the exponentials of the term and of the factor from the same reference: `exp(s - m_ref)` and \
                         `exp(m - m_ref)`"
                    }
                    _ => "rescale by `exp(m - m_new)`, where `m_new` is the next value of the carried maximum `m`",
                };
                hint(next(*slot), why.to_string(), instead)
            }
            NotRegrouped::HiddenRowIsNan | NotRegrouped::HiddenFirstTileIsNan => {
                let maximum = (0..self.init().len()).find(|&slot| self.is_maximum(slot)).unwrap_or(0);
                vec![self.nan(Lost::Split, next(maximum))]
            }
            NotRegrouped::Start(unproven) | NotRegrouped::HiddenTileCounts(unproven) => {
                let masks = self.masks();
                let all = masks.masks.iter().map(|facts| facts.op).collect();
                self.unproved(unproven, &all, &masks, Lost::Split)
            }
        }
    }
}
