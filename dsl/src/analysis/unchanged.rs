//! Proof that a tile of which a mask leaves nothing changes no carried value of a loop, so that it may be skipped.
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
//! One assumption is not proved: loaded elements and scalar parameters are finite where they meet a zero of a masked tile
//! (`0 * inf`). A skipped
//! tile is not read, and so its infinities and NaNs are not seen. Everything else holds for all inputs.

use std::collections::{BTreeMap, BTreeSet};

use super::classes::Classes;
use crate::ir::{AxisId, BinaryOp, BlockId, Dim, Elem, Kernel, Op, OpId, ReduceOp, Type, UnaryOp, ValueDef, ValueId};

/// Whether tiles with nothing visible leave the carried values as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// Any such tile does.
    Always,
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
}

/// What is taken for granted of values in a proof: the classes that each is in.
pub type Assumptions = BTreeMap<ValueId, Classes>;

/// Decides whether a tile in which the masks `masked` keep nothing leaves the carried values of the loop as they are.
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
    let Op::For { body, init, .. } = &kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let proof = Proof { kernel, body: *body, init, masked, assumed };
    if proof.ops().iter().any(|&op| matches!(kernel.ops[op].op, Op::Store { .. })) {
        return Unchanged::Unproved(Unproven::Stores);
    }
    let next = proof.next();
    let carried = &kernel.blocks[*body].params[1..];
    let maxima: Vec<Maximum> = (0..carried.len()).filter_map(|k| proof.maximum(k, next[k])).collect();
    // A maximum of numbers is a number: NaN does not win.
    let numbers: BTreeMap<_, _> = maxima.iter().map(|m| (m.index, Classes::NUMBER)).collect();
    let mut after_first = false;
    for (k, &c) in carried.iter().enumerate() {
        let plain = proof.kept(k, &numbers, None, next[k]);
        if plain || maxima.iter().any(|m| m.index != k && proof.tied(m, k, next[k], Classes::ZERO.or(Classes::NAN), false)) {
            continue;
        }
        if maxima.iter().any(|m| m.index != k && proof.tied(m, k, next[k], Classes::NAN, true)) {
            after_first = true;
            continue;
        }
        let name = kernel.values[c].name.clone().unwrap_or_else(|| c.to_string());
        return Unchanged::Unproved(Unproven::MayChange { slot: k, name });
    }
    if after_first { Unchanged::AfterFirst } else { Unchanged::Always }
}

/// A carried running maximum.
struct Maximum {
    /// Its place among the carried values.
    index: usize,
    /// The tiles whose row maxima it takes in.
    scores: Vec<ValueId>,
    /// Its row axis.
    rows: AxisId,
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
}

impl Known {
    fn new(classes: Classes) -> Self {
        Self { classes, some: Classes::NONE, same: None }
    }
}

struct Proof<'a> {
    kernel: &'a Kernel,
    body: BlockId,
    init: &'a [ValueId],
    masked: &'a BTreeSet<OpId>,
    assumed: &'a Assumptions,
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
}

impl Proof<'_> {
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

    fn next(&self) -> &[ValueId] {
        match self.kernel.blocks[self.body].ops.last().map(|&op| &self.kernel.ops[op].op) {
            Some(Op::Yield(next)) => next,
            _ => panic!("verified: a loop body ends in a yield"),
        }
    }

    /// Recognises `max(m, rowmax(x), ..)` of a rank-1 value whose initial value is not NaN.
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
        let number = self.initial(self.init[index]).within(Classes::NUMBER);
        (itself && number && !scores.is_empty()).then_some(Maximum { index, scores, rows })
    }

    /// The classes that a value of the body may be in, with what is assumed of it.
    fn assumed(&self, v: ValueId, classes: Classes) -> Classes {
        let both = self.assumed.get(&v).map(|assumed| assumed.and(classes));
        both.filter(|both| *both != Classes::NONE).unwrap_or(classes)
    }

    /// Classes of a value defined before the loop.
    fn initial(&self, v: ValueId) -> Classes {
        let classes = match self.kernel.def(v) {
            Some((_, Op::Constant(_, c))) => Classes::of(*c),
            Some((_, Op::Full { value, .. } | Op::Cast(Elem::F32, value))) => self.initial(*value),
            Some((_, Op::Unary(op, x))) => self.initial(*x).unary(*op),
            _ => Classes::ANY,
        };
        self.assumed.get(&v).copied().unwrap_or(classes)
    }

    /// Whether a masked tile gives the carried value `k` back, from a start with the carried classes `from`.
    fn kept(&self, k: usize, from: &BTreeMap<usize, Classes>, rows: Option<AxisId>, next: ValueId) -> bool {
        let start = Start { carried: from, given: BTreeMap::new(), masked: true, rows };
        let end = self.run(&start, next);
        let before = from.get(&k).copied().unwrap_or(Classes::ANY);
        end.same == Some(k) || (end.classes == before && before.is_one_value())
    }

    /// Whether carried value `k` is kept by a masked tile thanks to its ties with the maximum `m`, where `nothing` is what
    /// it may be while `m = -inf` (from the second tile on, if `late`).
    fn tied(&self, m: &Maximum, k: usize, next: ValueId, nothing: Classes, late: bool) -> bool {
        let nan = Classes::NAN;
        let given = |known: Known| -> BTreeMap<ValueId, Known> { m.scores.iter().map(|&x| (x, known)).collect() };
        let runs_into = |from: &[(usize, Classes)], given: BTreeMap<ValueId, Known>, wanted: Classes| {
            let carried = from.iter().copied().collect();
            let start = Start { carried: &carried, given, masked: false, rows: Some(m.rows) };
            self.run(&start, next).classes.within(wanted)
        };
        let hidden = || given(Known::new(Classes::NEG_INF.or(nan)));
        let (first_m, first) = (self.initial(self.init[m.index]), self.initial(self.init[k]));

        // m = -inf implies that the value is `nothing`. The next maximum is -inf only if the old one and all scores were.
        let starts_with_nothing = match (first_m.meets(Classes::NEG_INF), late) {
            (false, _) => true,
            (true, false) => first.within(nothing),
            (true, true) => runs_into(&[(m.index, Classes::NEG_INF), (k, first)], hidden(), nothing),
        };
        let stays_nothing = || runs_into(&[(m.index, Classes::NEG_INF), (k, nothing)], hidden(), nothing);
        // m = +inf implies that the value is NaN. The next maximum is +inf if the old one was, or a score is.
        let starts_poisoned = || !first_m.meets(Classes::POS_INF) || first.within(nan);
        let stays_poisoned = || runs_into(&[(m.index, Classes::POS_INF), (k, nan)], BTreeMap::new(), nan);
        let gets_poisoned = || {
            m.scores.iter().all(|&x| {
                let infinite = Known { classes: Classes::ANY, some: Classes::POS_INF, same: None };
                runs_into(&[(m.index, Classes::NUMBER)], BTreeMap::from([(x, infinite)]), nan)
            })
        };
        let kept = |classes: Classes, value: Classes| {
            let from = BTreeMap::from([(m.index, classes), (k, value)]);
            self.kept(k, &from, Some(m.rows), next)
        };
        starts_with_nothing
            && stays_nothing()
            && starts_poisoned()
            && stays_poisoned()
            && gets_poisoned()
            && kept(Classes::NEG_INF, nothing)
            && kept(Classes::FINITE, Classes::ANY)
            && kept(Classes::POS_INF, nan)
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
                Known { classes, some: Classes::NONE, same: Some(k) }
            }
            ValueDef::BlockParam(..) => Known::new(Classes::ANY),
            ValueDef::Result(op, _) => match self.kernel.ty(v) {
                Type::Tile(_) => self.op(start, op, v, memo),
                Type::Index | Type::Coord(_) => Known::new(Classes::ANY),
            },
        };
        let known = Known { classes: self.assumed(v, known.classes), ..known };
        memo.insert(v, known);
        known
    }

    fn op(&self, start: &Start<'_>, op: OpId, result: ValueId, memo: &mut BTreeMap<ValueId, Known>) -> Known {
        let dims = |v: ValueId| &self.kernel.tile(v).dims;
        let mut get = |v: ValueId| self.value(start, v, memo);
        let any = Known::new(Classes::ANY);
        // Only one row is known along the row axis: nothing that adds up its rows is.
        let mixes_rows = |d: &Dim| matches!((d, start.rows), (Dim::Axis(a), Some(rows)) if *a == rows);
        match &self.kernel.ops[op].op {
            Op::Constant(_, c) => Known::new(Classes::of(*c)),
            Op::Full { value, .. } => Known { same: None, ..get(*value) },
            Op::Load { .. } | Op::Scalar(_) if start.masked => Known::new(Classes::FINITE),
            Op::Unary(op, x) => {
                let x = get(*x);
                let keeps = *op == UnaryOp::VisibleOrZero && !x.classes.meets(Classes::NEG_INF);
                Known { classes: x.classes.unary(*op), some: x.some.unary(*op), same: x.same.filter(|_| keeps) }
            }
            Op::Binary(op, a, b) => {
                let (x, y) = (get(*a), get(*b));
                let mut known = binary(*op, a == b, x, y);
                for (operand, v, other, left) in [(x, *a, y, true), (y, *b, x, false)] {
                    if operand.some != Classes::NONE && known.some == Classes::NONE && dims(v) == dims(result) {
                        let some =
                            if left { operand.some.binary(*op, other.classes) } else { other.classes.binary(*op, operand.some) };
                        known.some = some;
                    }
                }
                known
            }
            Op::Select { on_true, on_false, .. } => {
                let (x, y) = (get(*on_true), get(*on_false));
                Known { classes: x.classes.or(y.classes), some: Classes::NONE, same: x.same.filter(|_| x.same == y.same) }
            }
            Op::Mask { .. } if start.masked && self.masked.contains(&op) => Known::new(Classes::NEG_INF),
            Op::Mask { x, .. } => Known::new(get(*x).classes.or(Classes::NEG_INF)),
            Op::Cast(elem, x) => {
                let x = get(*x);
                match elem {
                    Elem::F32 => x,
                    Elem::I32 | Elem::Bool => any,
                    _ => Known { classes: x.classes.rounded(), some: x.some.rounded(), same: None },
                }
            }
            Op::Dot { a, b, acc } => {
                if mixes_rows(&dims(*a)[1]) {
                    return any;
                }
                let (x, y) = (get(*a), get(*b));
                let product = x.classes.binary(BinaryOp::Mul, y.classes).sum();
                let product = if x.some == Classes::NAN { Classes::NAN } else { product };
                match acc {
                    Some(acc) => binary(BinaryOp::Add, false, get(*acc), Known::new(product)),
                    None => Known::new(product),
                }
            }
            Op::Reduce(op, x) => {
                if mixes_rows(&dims(*x)[1]) {
                    return any;
                }
                let x = get(*x);
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
    Known { classes, some: Classes::NONE, same }
}
