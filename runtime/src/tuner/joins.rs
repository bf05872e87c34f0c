//! Choices between two values that are equal where the choice changes, as of `select(x > 0.0, x, 0.1
//! * x)`: the kernel has a kink there, and does not jump. What else jumps is asked in
//! [`super::slopes`].

use std::collections::HashMap;

use flashtile_dsl::ir::edit::users;
use flashtile_dsl::ir::{Kernel, Op, OpId, ValueId};

/// Numbers that stand for what the two values are made of.
const DRAWS: [f64; 3] = [0.618_034, -1.324_718, 2.236_068];
/// Relative difference of values that are equal.
const EQUAL: f64 = 1e-9;

/// Whether a comparison of floats only chooses between values that are equal where both sides are,
/// as far as the text shows: by numbers, on some draws.
pub(super) fn joins(kernel: &Kernel, compare: OpId) -> bool {
    let data = &kernel.ops[compare];
    let Op::Compare(_, a, b) = data.op else { return false };
    let chosen = |&op: &OpId| match kernel.ops[op].op {
        Op::Select { cond, on_true, on_false } if cond == data.results[0] && on_true != cond && on_false != cond => {
            Some((on_true, on_false))
        }
        _ => None,
    };
    let users = users(kernel, data.results[0]);
    let choices: Option<Vec<(ValueId, ValueId)>> = users.iter().map(chosen).collect();
    let equal = |draw: f64, (x, y): (ValueId, ValueId)| {
        let mut at = At { kernel, draw, known: HashMap::new() };
        let border = at.value(b);
        at.is(a, border);
        let (x, y) = (at.value(x), at.value(y));
        (x - y).abs() <= EQUAL * (1.0 + x.abs())
    };
    choices.is_some_and(|all| DRAWS.iter().all(|&draw| all.iter().all(|&choice| equal(draw, choice))))
}

/// Values by number.
struct At<'k> {
    kernel: &'k Kernel,
    draw: f64,
    known: HashMap<ValueId, f64>,
}

impl At<'_> {
    /// A value, and what it is but another type or shape of, has this number.
    fn is(&mut self, v: ValueId, number: f64) {
        self.known.insert(v, number);
        if let Some((_, &(Op::Cast(_, x) | Op::Full { value: x, .. }))) = self.kernel.def(v) {
            self.is(x, number);
        }
    }

    /// The number of a value; that of a draw if it is made of what has no number here.
    fn value(&mut self, v: ValueId) -> f64 {
        if let Some(&known) = self.known.get(&v) {
            return known;
        }
        let found = match self.kernel.def(v).map(|(_, op)| op.clone()) {
            Some(Op::Constant(_, x)) => Some(x),
            Some(Op::Cast(_, x) | Op::Full { value: x, .. }) => Some(self.value(x)),
            Some(Op::Unary(op, x)) => op.row().float.map(|f| (f.double)(self.value(x))),
            Some(Op::Binary(op, a, b)) => op.row().float.map(|f| f.of(self.value(a), self.value(b))),
            _ => None,
        };
        let drawn = self.draw * (1.0 + self.known.len() as f64 * 0.37);
        let number = found.unwrap_or(drawn);
        self.known.insert(v, number);
        number
    }
}
