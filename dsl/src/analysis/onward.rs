//! Loops within loops that carry the same values on, such as pages and the positions of each: one
//! walk of several loops.
//!
//! The inner loop goes on from where its run before has ended, so that the walk starts from what the
//! outermost loop starts from, and ends with what that one gives.

use super::live::yielded;
use crate::ir::{Kernel, Op, OpId, ValueId};

/// A walk: loops that carry the same values on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Onward {
    /// The loops, the innermost first. Each with the places that the values of the innermost one
    /// have among those that it carries.
    loops: Vec<(OpId, Vec<usize>)>,
}

impl Onward {
    /// The walk whose innermost loop is `loop_op`: the loops around it, as far as each carries on all
    /// that this one carries. A value for which `stays` is the start of a walk of its own.
    pub fn from(kernel: &Kernel, loop_op: OpId, stays: impl Fn(ValueId) -> bool) -> Self {
        let mut loops = vec![(loop_op, (0..init(kernel, loop_op).len()).collect::<Vec<_>>())];
        while let Some(around) = loops.last().and_then(|(of, places)| carried_on(kernel, *of, places, &stays)) {
            loops.push(around);
        }
        Self { loops }
    }

    /// The loop within `outer` that carries on values of it; `None` if there is none.
    pub fn within(kernel: &Kernel, outer: OpId) -> Option<Self> {
        let Op::For { body, .. } = kernel.ops[outer].op else { return None };
        let inner = kernel.blocks[body].ops.iter().find_map(|&of| {
            let Op::For { ref init, .. } = kernel.ops[of].op else { return None };
            let around = carried_on(kernel, of, &(0..init.len()).collect::<Vec<_>>(), &|_| false)?;
            (!around.1.is_empty()).then_some((of, around))
        });
        let (of, around) = inner?;
        Some(Self { loops: vec![(of, (0..around.1.len()).collect()), around] })
    }

    /// Its innermost loop.
    pub fn innermost(&self) -> OpId {
        self.loops[0].0
    }

    /// Where its outermost loop carries the values of the innermost one.
    pub fn places(&self) -> &[usize] {
        &self.outermost().1
    }

    /// What its values start from, in the order of the innermost loop.
    pub fn starts(&self, kernel: &Kernel) -> Vec<ValueId> {
        let (outer, places) = self.outermost();
        places.iter().map(|&place| init(kernel, *outer)[place]).collect()
    }

    /// What each of its loops gives, with the place of the value in the innermost one.
    pub fn results<'k>(&'k self, kernel: &'k Kernel) -> impl Iterator<Item = (usize, ValueId)> + 'k {
        let of = |(of, places): &'k (OpId, Vec<usize>)| {
            let results = &kernel.ops[*of].results;
            places.iter().enumerate().map(|(k, &place)| (k, results[place]))
        };
        self.loops.iter().flat_map(of)
    }

    /// What each of its loops is entered with, but the innermost one, and what each gives: all values of
    /// one moment, in the order of the innermost loop.
    pub fn moments(&self, kernel: &Kernel) -> Vec<Vec<ValueId>> {
        let mut moments = Vec::new();
        for (of, places) in &self.loops {
            if let (Op::For { body, .. }, true) = (&kernel.ops[*of].op, *of != self.innermost()) {
                let params = &kernel.blocks[*body].params[1..];
                moments.push(places.iter().map(|&place| params[place]).collect());
            }
            moments.push(places.iter().map(|&place| kernel.ops[*of].results[place]).collect());
        }
        moments
    }

    /// Whether an operand of an op goes on in the walk: the op is a loop of it, or the `yield` of one.
    pub fn goes_on(&self, kernel: &Kernel, op: OpId, operand: usize) -> bool {
        let enters = |(of, places): &(OpId, Vec<usize>)| *of == op && places.contains(&operand);
        let is_inside = op != self.outermost().0;
        (is_inside && self.loops.iter().any(enters)) || self.handed_on(kernel, op).contains(&operand)
    }

    /// Its outermost loop.
    pub fn outer(&self) -> OpId {
        self.outermost().0
    }

    /// Places at which the `yield` of a loop around the innermost one hands values of the walk on.
    pub fn handed_on(&self, kernel: &Kernel, op: OpId) -> &[usize] {
        let ends = |(of, _): &&(OpId, Vec<usize>)| match kernel.ops[*of].op {
            Op::For { body, .. } => kernel.blocks[body].ops.last() == Some(&op),
            _ => false,
        };
        self.loops[1..].iter().find(ends).map_or(&[], |(_, places)| places)
    }

    fn outermost(&self) -> &(OpId, Vec<usize>) {
        self.loops.last().expect("a walk has a loop")
    }
}

fn init(kernel: &Kernel, op: OpId) -> &[ValueId] {
    match &kernel.ops[op].op {
        Op::For { init, .. } => init,
        _ => &[],
    }
}

/// The loop around `of`, and where it carries those values that `of` has at these `places` and gives
/// back to it; `None` if there is no loop, or if it does not carry all of them.
fn carried_on(kernel: &Kernel, of: OpId, places: &[usize], stays: &impl Fn(ValueId) -> bool) -> Option<(OpId, Vec<usize>)> {
    let outer = kernel.loop_around(of)?;
    let Op::For { body, .. } = kernel.ops[outer].op else { return None };
    let (carried, next) = (&kernel.blocks[body].params[1..], yielded(kernel, body));
    let around = |&place: &usize| {
        let v = init(kernel, of)[place];
        let around = carried.iter().position(|&c| c == v)?;
        (next[around] == kernel.ops[of].results[place] && !stays(v)).then_some(around)
    };
    Some((outer, places.iter().map(around).collect::<Option<_>>()?))
}
