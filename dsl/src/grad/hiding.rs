//! What hides elements of a value, as far as the text tells.

use std::cmp;
use std::collections::HashMap;

use crate::ir::{BinaryOp, Kernel, Op, UnaryOp, ValueId};

/// What hides elements of a value: those for which the truth value `keep` does not hold, and all
/// conditions of selections on their way are as they were `taken`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Hiding {
    pub keep: ValueId,
    /// Conditions of selections, and what each is where the hidden element is selected.
    pub taken: Vec<(ValueId, bool)>,
}

/// Truth values that hold where an element is not hidden so, made for gradients to be 0 elsewhere.
pub(super) type Made = HashMap<ValueId, Hiding>;

impl Hiding {
    /// Everywhere that a truth value does not hold.
    pub fn everywhere(keep: ValueId) -> Self {
        Self { keep, taken: Vec::new() }
    }

    /// What a truth value stands for.
    pub fn of(keep: ValueId, made: &Made) -> Self {
        made.get(&keep).cloned().unwrap_or_else(|| Self::everywhere(keep))
    }

    /// The same in terms of other values; `None` if one of them is not known.
    pub fn among(&self, known: impl Fn(ValueId) -> Option<ValueId>) -> Option<Self> {
        let taken = self.taken.iter().map(|&(cond, is)| Some((known(cond)?, is))).collect::<Option<_>>()?;
        Some(Self { keep: known(self.keep)?, taken })
    }

    /// Whether each element that it hides is hidden by one of `others` too.
    pub fn is_within<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> bool {
        let mut others = others.into_iter();
        others.any(|other| other.keep == self.keep && other.taken.iter().all(|taken| self.taken.contains(taken)))
    }
}

/// What hides elements of a value.
pub(super) fn masks(kernel: &Kernel, value: ValueId, made: &Made) -> Vec<Hiding> {
    found_masks(kernel, value, made, &mut HashMap::new())
}

fn found_masks(kernel: &Kernel, value: ValueId, made: &Made, known: &mut HashMap<ValueId, Vec<Hiding>>) -> Vec<Hiding> {
    if let Some(found) = known.get(&value) {
        return found.clone();
    }
    let Some((_, op)) = kernel.def(value) else { return Vec::new() };
    let mut of = |v: ValueId| found_masks(kernel, v, made, known);
    let found = match *op {
        Op::Mask { x, keep, .. } => [of(x), vec![Hiding::of(keep, made)]].concat(),
        Op::Select { cond, on_true, on_false } => {
            let own = Hiding::of(cond, made);
            // Where its own condition holds, a mask hides nothing.
            let on_true = of(on_true).into_iter().filter(|hiding| hiding.keep != cond && !hiding.is_within([&own])).collect();
            [of(cond), either(cond, on_true, of(on_false))].concat()
        }
        ref op if op.is_elementwise() => op.operands().into_iter().flat_map(of).collect(),
        _ => Vec::new(),
    };
    let found = in_order(found);
    known.insert(value, found.clone());
    found
}

/// Each once. What a selection takes may be hidden itself: the wider conditions are the last to be
/// applied.
pub(super) fn in_order(mut found: Vec<Hiding>) -> Vec<Hiding> {
    found.sort_unstable_by_key(|hiding| (cmp::Reverse(hiding.taken.len()), hiding.clone()));
    found.dedup();
    let all = found.clone();
    found.retain(|hiding| !hiding.is_within(all.iter().filter(|other| *other != hiding)));
    found
}

/// What hides elements of a selection between two values that these hide.
fn either(cond: ValueId, on_true: Vec<Hiding>, on_false: Vec<Hiding>) -> Vec<Hiding> {
    let (mut found, on_true): (Vec<_>, Vec<_>) = on_true.into_iter().partition(|hiding| on_false.contains(hiding));
    let on_false = on_false.into_iter().filter(|hiding| !found.contains(hiding)).map(|hiding| (hiding, false));
    let of_one: Vec<_> = on_true.into_iter().map(|hiding| (hiding, true)).chain(on_false).collect();
    found.extend(of_one.into_iter().map(|(mut hiding, is)| {
        hiding.taken.push((cond, is));
        hiding.taken.sort_unstable();
        hiding.taken.dedup();
        hiding
    }));
    found
}

/// Whether each element of a value is hidden, or 0, where a truth value does not hold.
pub(super) fn is_absent(kernel: &Kernel, value: ValueId, keep: ValueId, made: &Made) -> bool {
    Absent { kernel, keep, made, masks: HashMap::new(), known: HashMap::new() }.is(value)
}

/// Values of which that holds.
struct Absent<'a> {
    kernel: &'a Kernel,
    keep: ValueId,
    made: &'a Made,
    /// What hides elements of the values that were looked at.
    masks: HashMap<ValueId, Vec<Hiding>>,
    known: HashMap<ValueId, bool>,
}

impl Absent<'_> {
    fn is(&mut self, v: ValueId) -> bool {
        if let Some(&known) = self.known.get(&v) {
            return known;
        }
        let is_hidden = found_masks(self.kernel, v, self.made, &mut self.masks).contains(&Hiding::everywhere(self.keep));
        let is_absent = is_hidden || self.is_made_absent(v);
        self.known.insert(v, is_absent);
        is_absent
    }

    fn is_made_absent(&mut self, v: ValueId) -> bool {
        let Some((_, op)) = self.kernel.def(v) else { return false };
        match *op {
            Op::Constant(_, x) => x == 0.0,
            Op::Full { value: x, .. } | Op::Cast(_, x) | Op::Transpose(x) | Op::Mask { x, .. } | Op::Unary(UnaryOp::Neg, x) => {
                self.is(x)
            }
            Op::Select { cond, on_true, on_false } => (cond == self.keep || self.is(on_true)) && self.is(on_false),
            Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) => self.is(a) && self.is(b),
            Op::Binary(BinaryOp::Mul, a, b) => self.is(a) || self.is(b),
            Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, _) => self.is(a),
            _ => false,
        }
    }
}
