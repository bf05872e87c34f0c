//! Proof that a tile of which a mask leaves nothing changes no carried value of a loop, or none that anything stored depends on, so
//! that it may be skipped.
//!
//! The body is interpreted over classes of values ([`Classes`]), for one row. A carried running maximum
//! `m <- max(m, rowmax(x))` splits the proof into the cases `m = -inf`, `m` finite and `m = +inf`. Two invariants tie another
//! carried value `c` (a row sum, an accumulator) to it; both are proved by induction over the walked tiles:
//!
//! * `m = -inf` implies that `c` is 0 or NaN: nothing was visible. With the maximum passed through `visible_or_zero` the
//!   initial values give it. Without, a tile with nothing visible gives NaN (`-inf - -inf`), so that the invariant is
//!   "`m = -inf` implies that `c` is NaN", and holds only after the first tile: [`Unchanged::AfterFirst`].
//! * `m = +inf` implies that `c` is NaN: a row with an infinite score has `inf - inf` in it.
//!
//! Under them the masked body is run in each of the cases, and must give `c` back.
//!
//! A loop that goes on from the results of an earlier one has the invariants from that. Loops
//! within loops that carry the same values on, such as pages and the positions of each, are one
//! walk: the inner loop starts from what the outer one starts from, or from its own results.
//!
//! # Initial values that break the invariants
//!
//! An attention sink starts from `m = load(sinks, ..)` and `l = 1`. If `m = -inf` there, a hidden tile makes 0 of `l`
//! (`1 * exp(-inf)`): it changes the state. The change is without effect, if three things are proved:
//!
//! * hidden tiles change the state only while `m = -inf`, and then `m` stays and `c` becomes 0;
//! * the next walked tile *erases* `c`: from `m = -inf` the next values are the same for the initial `c` and for 0, whatever
//!   the tile holds. Two runs of the body are compared for that (`Known::equal`);
//! * a row that no walked tile follows ends with the initial `c` or with 0, and what the kernel stores is the same for both, such as
//!   `div_or_zero(acc, l)` and `m + ln(l)` with `acc = 0`: `Proof::end_alike`.
//!
//! A maximum that starts as +inf or NaN makes NaN of `c` in the first tile that is walked, hidden or not, which is proved
//! too. So the rule is:
//!
//! * a row that sees something is NaN from such a start;
//! * a row that sees nothing is NaN, or what the initial values give. The text says the former, and the latter is what the text
//!   says of a loop without tiles.
//!
//! # Sums of hidden pairs
//!
//! A loop that carries a tile of pairs, such as the gradient of a bias, adds pairs to the tile that
//! its mask hides. The sum is hidden where a pair is: of NaN in place of what hidden elements hold
//! the IR says that both results are right ([`crate::ir`]). Where all hidden elements hold 0 or NaN
//! ([`HiddenElements::fill`]), the sum as it was before is right then too, and the tile is skipped.
//!
//! # Assumptions
//!
//! Loaded elements and scalar parameters are finite where they are initial values other than a
//! maximum. Everything else holds for all inputs: reductions and contractions see nothing of what
//! is hidden ([`crate::ir`]), whatever it meets.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::classes::Classes;
use super::hidden::HiddenElements;
use super::live::yielded;
use super::onward::Onward;
use super::predicate::defined_in;
use crate::ir::{
    AxisId, BinaryOp, BlockId, CompareOp, Dim, Elem, Fill, Kernel, Op, OpId, ReduceOp, Type, UnaryOp, ValueDef, ValueId,
};

/// Whether tiles with nothing visible leave the carried values as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// Any such tile does.
    Always,
    /// Any such tile does, but for values that a row starts from and that the first walked tile erases. Nothing that is stored depends
    /// on whether such a tile was walked.
    Unseen,
    /// Any such tile but the first of the loop does.
    AfterFirst,
    /// Not proved, for this reason.
    Unproved(Unproven),
}

/// Why it is not proved that a hidden tile changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unproven {
    /// The body stores.
    #[error("the body stores")]
    Stores,
    /// A carried value may change.
    #[error("`{name}` may change")]
    MayChange {
        /// Its place among the carried values.
        slot: usize,
        /// Its name.
        name: String,
    },
    /// A hidden tile makes 0 of an initial value, and an output tells whether one was walked.
    #[error("`{told}` of a row that sees nothing depends on what `{name}` starts from")]
    StartIsTold {
        /// The place of the value among the carried ones.
        slot: usize,
        /// Its name.
        name: String,
        /// The output, or the value that a loop around carries.
        told: String,
    },
}

/// What is taken for granted of values in a proof: the classes that each is in.
pub type Assumptions = BTreeMap<ValueId, Classes>;

/// Decides whether a tile in which the masks `masked` keep nothing leaves the carried values of the
/// loop as they are. A `select` among them takes its second value.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub fn unchanged(kernel: &Kernel, loop_op: OpId, masked: &BTreeSet<OpId>) -> Unchanged {
    unchanged_if(kernel, loop_op, masked, &Assumptions::new())
}

/// What [`unchanged`] would say if the values of `assumed` were in these classes. An initial value is replaced; a value of the body
/// that is never in them is left as it is.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub fn unchanged_if(kernel: &Kernel, loop_op: OpId, masked: &BTreeSet<OpId>, assumed: &Assumptions) -> Unchanged {
    let Op::For { body, .. } = &kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    if let Some(step) = step_of(kernel, loop_op, masked) {
        return unchanged_if(kernel, step, masked, assumed);
    }
    let walk = &Onward::from(kernel, loop_op, |v| assumed.contains_key(&v));
    let init = &walk.starts(kernel);
    let held = &OnceCell::new();
    let proof = Proof { kernel, walk, body: *body, init, masked, assumed, compares: true, held };
    if proof.ops().iter().any(|&op| kernel.ops[op].op.written().is_some() && !proof.adds_nothing(op)) {
        return Unchanged::Unproved(Unproven::Stores);
    }
    let next = proof.next();
    let carried = &kernel.blocks[*body].params[1..];
    let maxima: Vec<Maximum> = (0..carried.len()).filter_map(|k| proof.maximum(k, next[k])).collect();
    // A maximum of numbers is a number: NaN does not win.
    let numbers: BTreeMap<_, _> = maxima.iter().map(|m| (m.index, Classes::NUMBER)).collect();
    let starts_as = |classes: Classes| maxima.iter().find(|m| m.first.within(classes));
    if let Some(poisoned) = starts_as(Classes::POS_INF.or(Classes::NAN)) {
        return Unchanged::Unproved(Unproven::MayChange { slot: poisoned.index, name: proof.name(carried[poisoned.index]) });
    }
    // A hidden tile makes -inf of a maximum that is NaN, which other scores are greater than.
    let compares = !maxima.iter().any(|m| m.first.meets(Classes::NAN));
    let alone = Proof { compares, ..proof };
    let (mut after_first, mut unseen) = (false, false);
    let mut ends = vec![End::default(); carried.len()];
    for (k, &c) in carried.iter().enumerate() {
        if alone.kept(k, &numbers, None, next[k]) {
            // Of the initial values only a maximum may be NaN.
            unseen |= maxima.iter().any(|m| m.index == k && m.first.meets(Classes::NAN));
            continue;
        }
        let others = || maxima.iter().filter(|m| m.index != k);
        if let Some((m, tie)) = others().find_map(|m| Some((m, proof.tied(m, k, next[k])?))) {
            unseen |= tie.erased || !m.first.within(Classes::NEG_INF.or(Classes::FINITE));
            ends[k] = End { maximum: Some(m.index), classes: tie.end, erased: tie.erased };
            continue;
        }
        if others().any(|m| proof.tied_late(m, k, next[k])) {
            after_first = true;
            continue;
        }
        let name = kernel.values[c].name.clone().unwrap_or_else(|| c.to_string());
        return Unchanged::Unproved(Unproven::MayChange { slot: k, name });
    }
    // The first tile is walked in any case, after which nothing is left of the initial values.
    if after_first {
        return Unchanged::AfterFirst;
    }
    if !unseen {
        return Unchanged::Always;
    }
    match proof.end_alike(&maxima, &ends) {
        Ok(()) => Unchanged::Unseen,
        Err(why) => Unchanged::Unproved(why),
    }
}

/// The loop within `loop_op` that does all that counts, if all masks are of its steps: a tile of
/// `loop_op` whose every score is hidden, such as a page, then changes what a hidden step changes.
fn step_of(kernel: &Kernel, loop_op: OpId, masked: &BTreeSet<OpId>) -> Option<OpId> {
    let Op::For { body, .. } = kernel.ops[loop_op].op else { return None };
    let walk = Onward::within(kernel, loop_op)?;
    let step = walk.innermost();
    let Op::For { body: inner, .. } = kernel.ops[step].op else { return None };
    let steps: BTreeSet<OpId> = kernel.ops_within(inner).into_iter().collect();
    let (carried, next) = (&kernel.blocks[body].params[1..], yielded(kernel, body));
    let kept = |k: usize| walk.places().contains(&k) || next[k] == carried[k];
    let stores = |op: &OpId| kernel.ops[*op].op.written().is_some() && !steps.contains(op);
    let alone = (0..carried.len()).all(kept) && !kernel.ops_within(body).iter().any(stores);
    (alone && !masked.is_empty() && masked.is_subset(&steps)).then_some(step)
}

/// Why the results of a walk may not start from 0 in place of the initial value, in rows whose running
/// maximum is `-inf` at the end; `None` if nothing that is stored depends on it. `zeroed` holds the
/// carried values, each with its maximum, by their places in the innermost loop, `loop_op`.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub(super) fn why_start_counts(kernel: &Kernel, loop_op: OpId, zeroed: &[(usize, usize)]) -> Option<Unproven> {
    let Op::For { body, .. } = &kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let (masked, assumed) = (BTreeSet::new(), Assumptions::new());
    let walk = &Onward::from(kernel, loop_op, |_| false);
    let init = &walk.starts(kernel);
    let held = &OnceCell::new();
    let proof = Proof { kernel, walk, body: *body, init, masked: &masked, assumed: &assumed, compares: true, held };
    let next = proof.next();
    let maxima: Vec<Maximum> = (0..init.len()).filter_map(|k| proof.maximum(k, next[k])).collect();
    let mut ends = vec![End::default(); init.len()];
    for &(k, maximum) in zeroed {
        let classes = proof.initial(init[k], Classes::FINITE);
        ends[k] = End { maximum: Some(maximum), classes: classes.or(Classes::ZERO), erased: classes != Classes::ZERO };
    }
    proof.end_alike(&maxima, &ends).err()
}

/// A carried running maximum.
struct Maximum {
    /// Its place among the carried values.
    index: usize,
    /// The tiles whose row maxima it takes in.
    scores: Vec<ValueId>,
    /// Its row axis.
    rows: AxisId,
    /// Classes of its initial value.
    first: Classes,
}

/// How a carried value is tied to a maximum.
struct Tie {
    /// Whether a hidden tile may change it while the maximum is `-inf`, to what the next walked tile erases.
    erased: bool,
    /// Classes of it at the end of a row whose maximum is still `-inf`.
    end: Classes,
}

/// What a carried value may be at the end of a row that saw nothing.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The maximum that it is tied to; `None` if hidden tiles never change it.
    maximum: Option<usize>,
    /// Its classes if that maximum is `-inf`.
    classes: Classes,
    /// Whether it depends on the hidden tiles that were walked.
    erased: bool,
}

impl Default for End {
    fn default() -> Self {
        Self { maximum: None, classes: Classes::ANY, erased: false }
    }
}

/// What is known of a value in the row at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    /// Classes of all its elements.
    classes: Classes,
    /// Classes one of which some element of the row is in; `NONE` if nothing is known. Rank 2 only.
    some: Classes,
    /// The carried value that it equals.
    same: Option<usize>,
    /// Whether it is the same value in two runs that differ in [`Start::differing`].
    equal: bool,
    /// Whether all its elements are hidden, so that reductions and contractions see nothing of it.
    hidden: bool,
    /// Whether each of its elements is hidden or 0, so that sums see nothing of it.
    vanishes: bool,
}

impl Known {
    fn new(classes: Classes) -> Self {
        Self { classes, some: Classes::NONE, same: None, equal: true, hidden: false, vanishes: false }
    }
}

#[derive(Clone, Copy)]
struct Proof<'a> {
    kernel: &'a Kernel,
    walk: &'a Onward,
    body: BlockId,
    init: &'a [ValueId],
    masked: &'a BTreeSet<OpId>,
    assumed: &'a Assumptions,
    /// Whether comparisons with a maximum that is -inf count, [`Proof::holds_nowhere`].
    compares: bool,
    /// What hidden elements hold, found when it is first asked for.
    held: &'a OnceCell<HiddenElements>,
}

/// What a run of the body starts from.
struct Start<'a> {
    /// Classes of carried values; the others may be anything.
    carried: &'a BTreeMap<usize, Classes>,
    /// What is given for values of the body, instead of what they are computed from.
    given: BTreeMap<ValueId, Known>,
    /// Whether the masks of the proof keep nothing (else: anything).
    masked: bool,
    /// The row axis, along which only the one row is known.
    rows: Option<AxisId>,
    /// Carried values that are not the same in two runs; both are in their classes.
    differing: Vec<usize>,
}

impl Proof<'_> {
    /// What a loop in the body gives, if its tiles are hidden: what it starts from, if none of them
    /// changes that.
    fn of_loop(&self, start: &Start<'_>, op: OpId, number: usize) -> Option<ValueId> {
        let Op::For { body, init, .. } = &self.kernel.ops[op].op else { return None };
        if !start.masked {
            return None;
        }
        let inside = defined_in(self.kernel, *body);
        let is_inside = |mask: &&OpId| self.kernel.ops[**mask].results.iter().all(|result| inside.contains(result));
        let masked: BTreeSet<OpId> = self.masked.iter().filter(is_inside).copied().collect();
        let changes_nothing = || unchanged_if(self.kernel, op, &masked, self.assumed) == Unchanged::Always;
        (!masked.is_empty() && changes_nothing()).then(|| init[number])
    }

    /// All ops of the body.
    fn ops(&self) -> Vec<OpId> {
        let mut blocks = BTreeSet::from([self.body]);
        let mut out = Vec::new();
        for (block, op) in self.kernel.walk() {
            if blocks.contains(&block) {
                out.push(op);
                if let Op::For { body, .. } = self.kernel.ops[op].op {
                    blocks.insert(body);
                }
            }
        }
        out
    }

    /// Whether a masked tile adds 0 to a sum, or all that it adds is hidden.
    fn adds_nothing(&self, store: OpId) -> bool {
        let op = &self.kernel.ops[store].op;
        let (Some(tensor), Some(value)) = (op.written(), op.stored()) else { return false };
        let start = Start { carried: &BTreeMap::new(), given: BTreeMap::new(), masked: true, rows: None, differing: Vec::new() };
        let known = self.run(&start, value);
        let goes_nowhere = matches!(op, Op::Scatter { .. }) && known.hidden;
        self.kernel.params[tensor].kind.is_sum() && (known.classes == Classes::ZERO || goes_nowhere)
    }

    fn next(&self) -> &[ValueId] {
        match self.kernel.blocks[self.body].ops.last().map(|&op| &self.kernel.ops[op].op) {
            Some(Op::Yield(next)) => next,
            _ => panic!("verified: a loop body ends in a yield"),
        }
    }

    /// Recognises `max(m, rowmax(x), ..)` of a rank-1 value.
    fn maximum(&self, index: usize, next: ValueId) -> Option<Maximum> {
        let carried = self.kernel.blocks[self.body].params[1 + index];
        let [Dim::Axis(rows)] = self.kernel.ty(carried).tile()?.dims[..] else { return None };
        let (mut scores, mut itself, mut rest) = (Vec::new(), false, vec![next]);
        while let Some(v) = rest.pop() {
            match self.kernel.def(v) {
                _ if v == carried => itself = true,
                Some((_, Op::Binary(BinaryOp::Max, a, b))) => rest.extend([*a, *b]),
                Some((_, Op::Reduce(ReduceOp::Max, x))) if self.kernel.tile(*x).dims[0] == Dim::Axis(rows) => scores.push(*x),
                _ => return None,
            }
        }
        let first = self.initial(self.init[index], Classes::ANY);
        (itself && !scores.is_empty()).then_some(Maximum { index, scores, rows, first })
    }

    /// The classes that a value of the body may be in, with what is assumed of it.
    fn assumed(&self, v: ValueId, classes: Classes) -> Classes {
        let both = self.assumed.get(&v).map(|assumed| assumed.and(classes));
        both.filter(|both| *both != Classes::NONE).unwrap_or(classes)
    }

    /// Classes of a value defined before the loop; `given` are those of loaded elements and scalar parameters.
    fn initial(&self, v: ValueId, given: Classes) -> Classes {
        let classes = match self.kernel.def(v) {
            Some((_, Op::Constant(_, c))) => Classes::of(*c),
            Some((_, Op::Full { value, .. } | Op::Cast(Elem::F32, value))) => self.initial(*value, given),
            Some((_, Op::Unary(op, x))) => self.initial(*x, given).unary(*op),
            Some((_, Op::Binary(op, a, b))) => self.initial(*a, given).binary(*op, self.initial(*b, given)),
            Some((_, Op::Load { .. } | Op::Gather { .. } | Op::Scalar(_))) => given,
            _ => Classes::ANY,
        };
        self.assumed.get(&v).copied().unwrap_or(classes)
    }

    /// Whether a masked tile gives the carried value `k` back, from a start with the carried classes `from`.
    fn kept(&self, k: usize, from: &BTreeMap<usize, Classes>, rows: Option<AxisId>, next: ValueId) -> bool {
        let start = Start { carried: from, given: BTreeMap::new(), masked: true, rows, differing: Vec::new() };
        let end = self.run(&start, next);
        let before = from.get(&k).copied().unwrap_or(Classes::ANY);
        end.same == Some(k) || (end.classes == before && before.is_one_value())
    }

    /// Classes of the next value from the carried classes `from`, with what is `given` for values of the body.
    fn after(&self, m: &Maximum, from: &[(usize, Classes)], given: BTreeMap<ValueId, Known>, next: ValueId) -> Classes {
        let carried = from.iter().copied().collect();
        let start = Start { carried: &carried, given, masked: false, rows: Some(m.rows), differing: Vec::new() };
        self.run(&start, next).classes
    }

    /// The scores of a maximum, of which nothing is seen.
    fn hidden(m: &Maximum) -> BTreeMap<ValueId, Known> {
        m.scores.iter().map(|&x| (x, Known::new(Classes::NEG_INF.or(Classes::NAN)))).collect()
    }

    /// Whether the invariants of the header hold after every tile if they hold before it, and a masked tile gives the carried
    /// value `k` back under them; `nothing` is what `k` may be while `m = -inf`.
    fn invariant(&self, m: &Maximum, k: usize, next: ValueId, nothing: Classes) -> bool {
        let kept = |classes: Classes, value: Classes| {
            let from = BTreeMap::from([(m.index, classes), (k, value)]);
            self.kept(k, &from, Some(m.rows), next)
        };
        self.stays(m, k, next, nothing)
            && kept(Classes::NEG_INF, nothing)
            && kept(Classes::FINITE, Classes::ANY)
            && kept(Classes::POS_INF, Classes::NAN)
    }

    /// Whether the invariants hold after every tile if they hold before it.
    fn stays(&self, m: &Maximum, k: usize, next: ValueId, nothing: Classes) -> bool {
        let nan = Classes::NAN;
        // The next maximum is -inf only if the old one and all scores were.
        let stays_nothing = || self.after(m, &[(m.index, Classes::NEG_INF), (k, nothing)], Self::hidden(m), next).within(nothing);
        // The next maximum is +inf if the old one was, or a score is.
        let stays_poisoned = || self.after(m, &[(m.index, Classes::POS_INF), (k, nan)], BTreeMap::new(), next).within(nan);
        let gets_poisoned = || {
            m.scores.iter().all(|&x| {
                let infinite = Known { some: Classes::POS_INF, ..Known::new(Classes::ANY) };
                self.after(m, &[(m.index, Classes::NUMBER)], BTreeMap::from([(x, infinite)]), next).within(nan)
            })
        };
        stays_nothing() && stays_poisoned() && gets_poisoned()
    }

    /// Whether a maximum and carried value `k` go on from an earlier loop that leaves them tied: the
    /// invariants hold where this one begins.
    fn goes_on(&self, m: &Maximum, k: usize, nothing: Classes) -> bool {
        let of_loop = |v: ValueId| match self.kernel.values[v].def {
            ValueDef::Result(op, number) if matches!(self.kernel.ops[op].op, Op::For { .. }) => Some((op, number as usize)),
            _ => None,
        };
        let (Some((op, maximum)), Some((other, own))) = (of_loop(self.init[m.index]), of_loop(self.init[k])) else {
            return false;
        };
        let Op::For { body, init, .. } = &self.kernel.ops[op].op else { return false };
        if op != other {
            return false;
        }
        let walk = &Onward::from(self.kernel, op, |_| true);
        let earlier = Proof { walk, body: *body, init, masked: &BTreeSet::new(), ..*self };
        let next = earlier.next();
        let Some(before) = earlier.maximum(maximum, next[maximum]).filter(|before| before.rows == m.rows) else { return false };
        let starts = !before.first.meets(Classes::NEG_INF) || earlier.initial(init[own], Classes::FINITE).within(nothing);
        earlier.stays(&before, own, next[own], nothing)
            && earlier.poisoned_at_first(&before, own, next[own])
            && (starts || earlier.goes_on(&before, own, nothing))
    }

    /// Whether a maximum that starts as +inf or NaN makes NaN of carried value `k` in the first tile, whatever that holds.
    fn poisoned_at_first(&self, m: &Maximum, k: usize, next: ValueId) -> bool {
        let from = |class: Classes| {
            !m.first.meets(class) || {
                let after = self.after(m, &[(m.index, class), (k, Classes::ANY)], BTreeMap::new(), next);
                after.within(Classes::NAN)
            }
        };
        // A hidden tile makes -inf of a maximum that is NaN; from there `k` stays NaN.
        let stays = || {
            let from = [(m.index, Classes::NEG_INF), (k, Classes::NAN)];
            !m.first.meets(Classes::NAN) || self.after(m, &from, BTreeMap::new(), next).within(Classes::NAN)
        };
        from(Classes::POS_INF) && from(Classes::NAN) && stays()
    }

    /// How carried value `k` is kept by a masked tile, or changed without effect, thanks to its ties with the maximum `m`.
    fn tied(&self, m: &Maximum, k: usize, next: ValueId) -> Option<Tie> {
        let nothing = Classes::ZERO.or(Classes::NAN);
        if !self.invariant(m, k, next, nothing) || !self.poisoned_at_first(m, k, next) {
            return None;
        }
        let first = self.initial(self.init[k], Classes::FINITE);
        if !m.first.meets(Classes::NEG_INF) || first.within(nothing) {
            return Some(Tie { erased: false, end: first });
        }
        if self.goes_on(m, k, nothing) {
            return Some(Tie { erased: false, end: nothing });
        }
        // Hidden tiles make 0 of the initial value; either is erased by the tile that follows.
        let either = first.or(Classes::ZERO);
        let carried = BTreeMap::from([(m.index, Classes::NEG_INF), (k, either)]);
        let run = |masked: bool, given: BTreeMap<ValueId, Known>| {
            self.run(&Start { carried: &carried, given, masked, rows: Some(m.rows), differing: vec![k] }, next)
        };
        let becomes_zero = run(true, BTreeMap::new()).classes == Classes::ZERO;
        let erased = || run(false, BTreeMap::new()).equal;
        let is_nothing = || run(false, Self::hidden(m)).classes.within(nothing);
        (becomes_zero && erased() && is_nothing()).then_some(Tie { erased: true, end: either })
    }

    /// Whether carried value `k` is kept by a masked tile from the second tile on, thanks to its ties with the maximum `m`.
    fn tied_late(&self, m: &Maximum, k: usize, next: ValueId) -> bool {
        let nan = Classes::NAN;
        let first = self.initial(self.init[k], Classes::ANY);
        let starts_with_nothing = || {
            let from = [(m.index, Classes::NEG_INF), (k, first)];
            !m.first.meets(Classes::NEG_INF) || self.after(m, &from, Self::hidden(m), next).within(nan)
        };
        self.invariant(m, k, next, nan) && self.poisoned_at_first(m, k, next) && starts_with_nothing()
    }

    /// Whether everything that is stored after the loop is the same, whichever values of their classes `ends` the carried values that
    /// are erased have, in rows of which some maximum is `-inf` at the end.
    fn end_alike(&self, maxima: &[Maximum], ends: &[End]) -> Result<(), Unproven> {
        let kernel = self.kernel;
        let erased: Vec<&Maximum> =
            maxima.iter().filter(|m| ends.iter().any(|e| e.erased && e.maximum == Some(m.index))).collect();
        let results: Vec<(usize, ValueId)> = self.walk.results(kernel).collect();
        let tainted = self.depends_on(&results.iter().map(|&(_, v)| v).collect::<Vec<_>>());
        let inside: BTreeSet<OpId> = self.ops().into_iter().collect();
        for set in 1..1u32 << erased.len() {
            let nothing: Vec<usize> =
                erased.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, m)| m.index).collect();
            let rows = erased.iter().find(|m| nothing.contains(&m.index)).map(|m| m.rows);
            let result = |k: usize| match ends[k] {
                _ if nothing.contains(&k) => Known::new(Classes::NEG_INF),
                End { maximum: Some(m), classes, erased } if nothing.contains(&m) => {
                    Known { equal: !erased || classes.is_one_value(), ..Known::new(classes) }
                }
                _ => Known::new(Classes::ANY),
            };
            let given = results.iter().map(|&(k, v)| (v, result(k))).collect();
            let start = Start { carried: &BTreeMap::new(), given, masked: false, rows, differing: Vec::new() };
            let mut memo = BTreeMap::new();
            for (_, op) in kernel.walk() {
                let told = match &kernel.ops[op].op {
                    Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) | Op::OfPart { .. } if !inside.contains(&op) => {
                        kernel.ops[op].op.operands()
                    }
                    _ => continue,
                };
                // The walk goes on from what its loops hand on.
                let handed_on = self.walk.handed_on(kernel, op);
                let told = told.into_iter().enumerate().filter(|(place, _)| !handed_on.contains(place)).map(|(_, v)| v);
                let told = told.into_iter().find(|v| tainted.contains(v) && !self.value(&start, *v, &mut memo).equal);
                let Some(v) = told else { continue };
                let told = match &kernel.ops[op].op {
                    Op::Store { tensor, .. } | Op::Scatter { tensor, .. } => kernel.params[*tensor].name.clone(),
                    _ => self.name(v),
                };
                let slot = ends.iter().position(|e| e.erased && e.maximum.is_some_and(|m| nothing.contains(&m)));
                let slot = slot.expect("a maximum of the set has a value that is erased");
                return Err(Unproven::StartIsTold { slot, name: self.name(results[slot].1), told });
            }
        }
        Ok(())
    }

    fn name(&self, v: ValueId) -> String {
        self.kernel.values[v].name.clone().unwrap_or_else(|| v.to_string())
    }

    /// The values that depend on some of `roots`.
    fn depends_on(&self, roots: &[ValueId]) -> BTreeSet<ValueId> {
        let kernel = self.kernel;
        let mut found: BTreeSet<ValueId> = roots.iter().copied().collect();
        loop {
            let before = found.len();
            for (_, op) in kernel.walk() {
                let data = &kernel.ops[op];
                match &data.op {
                    Op::For { body, init, .. } => {
                        let (carried, next) = (&kernel.blocks[*body].params[1..], yielded(kernel, *body));
                        for (k, &result) in data.results.iter().enumerate() {
                            if [init[k], carried[k], next[k]].iter().any(|v| found.contains(v)) {
                                found.extend([carried[k], result]);
                            }
                        }
                    }
                    op if op.operands().iter().any(|v| found.contains(v)) => found.extend(&data.results),
                    _ => {}
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// What is known of `value` after a run of the body.
    fn run(&self, start: &Start<'_>, value: ValueId) -> Known {
        self.value(start, value, &mut BTreeMap::new())
    }

    fn value(&self, start: &Start<'_>, v: ValueId, memo: &mut BTreeMap<ValueId, Known>) -> Known {
        if let Some(known) = start.given.get(&v).or_else(|| memo.get(&v)) {
            return *known;
        }
        let known = match self.kernel.values[v].def {
            ValueDef::BlockParam(block, i) if block == self.body && i > 0 => {
                let k = i as usize - 1;
                let classes = start.carried.get(&k).copied().unwrap_or(Classes::ANY);
                let known = start.carried.contains_key(&k);
                let equal = !start.differing.contains(&k) && (known || start.differing.is_empty());
                Known { same: Some(k), equal: equal || classes.is_one_value(), ..Known::new(classes) }
            }
            ValueDef::BlockParam(..) => {
                let coordinate = !matches!(self.kernel.ty(v), Type::Tile(_));
                Known { equal: coordinate, ..Known::new(Classes::ANY) }
            }
            ValueDef::Result(op, number) => {
                if let Some(init) = self.of_loop(start, op, number as usize) {
                    return self.value(start, init, memo);
                }
                let known = match self.kernel.ty(v) {
                    Type::Tile(_) => self.op(start, op, v, memo),
                    Type::Index | Type::Coord(_) => Known::new(Classes::ANY),
                };
                let opaque = matches!(self.kernel.ops[op].op, Op::For { .. });
                let operands = self.kernel.ops[op].op.operands();
                let equal = !opaque && operands.into_iter().all(|x| self.value(start, x, memo).equal);
                let hidden = self.is_hidden(start, op, memo);
                let vanishes = hidden || known.classes == Classes::ZERO || self.vanishes(start, op, memo);
                Known { equal: equal || known.classes.is_one_value(), hidden, vanishes, ..known }
            }
        };
        let known = Known { classes: self.assumed(v, known.classes), ..known };
        memo.insert(v, known);
        known
    }

    /// Whether an op gives nothing but hidden elements.
    fn is_hidden(&self, start: &Start<'_>, op: OpId, memo: &mut BTreeMap<ValueId, Known>) -> bool {
        let mut hidden = |v: &ValueId| self.value(start, *v, memo).hidden;
        match &self.kernel.ops[op].op {
            Op::Mask { x, keep, .. } => (start.masked && self.masked.contains(&op)) || hidden(x) || hidden(keep),
            Op::Unary(_, x) | Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } => hidden(x),
            Op::Binary(_, a, b) | Op::Compare(_, a, b) => hidden(a) || hidden(b),
            Op::Select { cond, on_true, on_false } => hidden(cond) || (hidden(on_true) && hidden(on_false)),
            Op::Dot { acc, .. } => acc.as_ref().is_some_and(hidden),
            Op::Gather { at, .. } => at.iter().any(hidden),
            _ => false,
        }
    }

    /// Whether each element that an op gives is hidden or 0, because those of its operands are.
    fn vanishes(&self, start: &Start<'_>, op: OpId, memo: &mut BTreeMap<ValueId, Known>) -> bool {
        let mut nothing = |v: &ValueId| self.value(start, *v, memo).vanishes;
        match &self.kernel.ops[op].op {
            Op::Unary(UnaryOp::Neg | UnaryOp::Abs, x) | Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } => {
                nothing(x)
            }
            Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) => nothing(a) && nothing(b),
            Op::Select { on_true, on_false, .. } => nothing(on_true) && nothing(on_false),
            _ => false,
        }
    }

    /// Whether a comparison holds for no element: nothing is greater than what is -inf or NaN, or
    /// less than -inf, as the maximum of a hidden row is.
    fn holds_nowhere(&self, start: &Start<'_>, cond: ValueId, memo: &mut BTreeMap<ValueId, Known>) -> bool {
        let Some((_, Op::Compare(op, a, b))) = self.kernel.def(cond).filter(|_| self.compares) else { return false };
        let (less, more) = match op {
            CompareOp::Lt => (*a, *b),
            CompareOp::Gt => (*b, *a),
            _ => return false,
        };
        let mut within = |v: ValueId, of: Classes| {
            let classes = self.value(start, v, memo).classes;
            classes != Classes::NONE && classes.within(of.or(Classes::NAN))
        };
        within(more, Classes::NEG_INF) || within(less, Classes::POS_INF)
    }

    /// Whether no mask hides an element of a condition: what it chooses would be hidden there.
    fn hides_nothing(&self, cond: ValueId) -> bool {
        match self.kernel.def(cond) {
            Some((_, Op::Mask { .. })) => false,
            Some((_, op)) if op.is_elementwise() || matches!(op, Op::Transpose(_)) => {
                op.operands().into_iter().all(|x| self.hides_nothing(x))
            }
            Some((_, Op::Dot { acc: Some(acc), .. })) => self.hides_nothing(*acc),
            _ => true,
        }
    }

    /// Whether every element of a value that a mask hides holds 0 or NaN.
    fn holds_zero(&self, v: ValueId) -> bool {
        let held = self.held.get_or_init(|| HiddenElements::new(self.kernel, &|_| false));
        held.fill(v) == Some(Fill::Zero)
    }

    /// The value whose elements these are, negated and rounded.
    fn elementwise_of(&self, v: ValueId) -> ValueId {
        match self.kernel.def(v) {
            Some((_, Op::Unary(UnaryOp::Neg, x) | Op::Cast(_, x))) => self.elementwise_of(*x),
            _ => v,
        }
    }

    fn op(&self, start: &Start<'_>, op: OpId, result: ValueId, memo: &mut BTreeMap<ValueId, Known>) -> Known {
        if let Op::Select { cond, on_false, .. } = &self.kernel.ops[op].op
            && self.holds_nowhere(start, *cond, memo)
        {
            return self.value(start, *on_false, memo);
        }
        let dims = |v: ValueId| &self.kernel.tile(v).dims;
        let mut get = |v: ValueId| self.value(start, v, memo);
        let any = Known::new(Classes::ANY);
        // Only one row is known along the row axis: nothing that adds up its rows is.
        let mixes_rows = |d: &Dim| matches!((d, start.rows), (Dim::Axis(a), Some(rows)) if *a == rows);
        match &self.kernel.ops[op].op {
            Op::Constant(_, c) => Known::new(Classes::of(*c)),
            Op::Full { value, .. } => Known { same: None, ..get(*value) },
            Op::Unary(op, x) => {
                let x = get(*x);
                let keeps = *op == UnaryOp::VisibleOrZero && !x.classes.meets(Classes::NEG_INF);
                let same = x.same.filter(|_| keeps);
                Known { some: x.some.unary(*op), same, ..Known::new(x.classes.unary(*op)) }
            }
            Op::Binary(op, a, b) => {
                let (x, y) = (get(*a), get(*b));
                let mut known = binary(*op, a == b, x, y);
                known.same = known.same.or_else(|| match op {
                    BinaryOp::Add | BinaryOp::Sub if y.hidden && self.holds_zero(*b) => x.same,
                    BinaryOp::Add if x.hidden && self.holds_zero(*a) => y.same,
                    _ => None,
                });
                for (operand, v, other, left) in [(x, *a, y, true), (y, *b, x, false)] {
                    if operand.some != Classes::NONE && known.some == Classes::NONE && dims(v) == dims(result) {
                        let some =
                            if left { operand.some.binary(*op, other.classes) } else { other.classes.binary(*op, operand.some) };
                        known.some = some;
                    }
                }
                known
            }
            // Its condition holds nowhere.
            Op::Select { on_false, .. } if start.masked && self.masked.contains(&op) => get(*on_false),
            Op::Select { cond, on_true, on_false } => {
                let (x, y) = (get(*on_true), get(*on_false));
                // Either branch has the element that is known to be there, `p` and `-p`.
                let one = self.elementwise_of(*on_true) == self.elementwise_of(*on_false) && self.hides_nothing(*cond);
                let some =
                    if one && x.some != Classes::NONE && y.some != Classes::NONE { x.some.or(y.some) } else { Classes::NONE };
                Known { some, same: x.same.filter(|_| x.same == y.same), ..Known::new(x.classes.or(y.classes)) }
            }
            Op::Mask { fill, .. } if start.masked && self.masked.contains(&op) => Known::new(Classes::of(fill.value())),
            Op::Mask { x, fill, .. } => Known::new(get(*x).classes.or(Classes::of(fill.value()))),
            Op::Transpose(x) => Known::new(get(*x).classes),
            Op::Cast(elem, x) => {
                let x = get(*x);
                match elem {
                    Elem::F32 => x,
                    elem if !elem.is_float() => any,
                    _ => Known { some: x.some.rounded(), ..Known::new(x.classes.rounded()) },
                }
            }
            Op::Dot { a, b, acc } => {
                let (x, y) = (get(*a), get(*b));
                let product = match x.hidden || y.hidden {
                    true => Classes::ZERO,
                    false if mixes_rows(&dims(*a)[1]) => return any,
                    false if x.some == Classes::NAN => Classes::NAN,
                    false => x.classes.binary(BinaryOp::Mul, y.classes).sum(),
                };
                match acc {
                    Some(acc) => binary(BinaryOp::Add, false, get(*acc), Known::new(product)),
                    None => Known::new(product),
                }
            }
            Op::Reduce(op, x) => {
                let (along, x) = (&dims(*x)[1], get(*x));
                if x.hidden || (x.vanishes && *op == ReduceOp::Sum) {
                    return Known::new(Classes::of(Fill::neutral(*op).value()));
                }
                if mixes_rows(along) {
                    return any;
                }
                Known::new(match op {
                    ReduceOp::Max if x.some == Classes::POS_INF => Classes::POS_INF,
                    ReduceOp::Max => x.classes.maximum(),
                    ReduceOp::Sum if x.some == Classes::NAN => Classes::NAN,
                    ReduceOp::Sum => x.classes.sum(),
                })
            }
            _ => any,
        }
    }
}

/// Elementwise; `equal` if both operands are one value.
fn binary(op: BinaryOp, equal: bool, x: Known, y: Known) -> Known {
    let equal = equal || (x.same.is_some() && x.same == y.same);
    let classes = match op {
        BinaryOp::Sub if equal => {
            let finite = if x.classes.meets(Classes::FINITE) { Classes::ZERO } else { Classes::NONE };
            let other = if x.classes.within(Classes::FINITE) { Classes::NONE } else { Classes::NAN };
            finite.or(other)
        }
        BinaryOp::Max | BinaryOp::Min if equal => x.classes,
        _ => x.classes.binary(op, y.classes),
    };
    let keeps = |x: Known, y: Known| match op {
        BinaryOp::Add => y.classes == Classes::ZERO,
        BinaryOp::Mul => {
            y.classes == Classes::ONE || (y.classes == Classes::ZERO && x.classes.within(Classes::ZERO.or(Classes::NAN)))
        }
        BinaryOp::Max => y.classes.within(Classes::NEG_INF.or(Classes::NAN)) && x.classes.within(Classes::NUMBER),
        BinaryOp::Min => y.classes.within(Classes::POS_INF.or(Classes::NAN)) && x.classes.within(Classes::NUMBER),
        _ => false,
    };
    let right_neutral = match op {
        BinaryOp::Sub => y.classes == Classes::ZERO,
        BinaryOp::Div | BinaryOp::DivOrZero => y.classes == Classes::ONE,
        _ => false,
    };
    let same = if keeps(x, y) || right_neutral {
        x.same
    } else if keeps(y, x) {
        y.same
    } else {
        None
    };
    Known { same, ..Known::new(classes) }
}
