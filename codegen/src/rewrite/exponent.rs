//! Exponentials: `exp` to `exp2`, and a positive scale folded from the scores into the factor of the exponent.
//!
//! With `s = d * k`, `k > 0`: `rowmax(d * k) = k * rowmax(d)`, `max`, `mask` and `visible_or_zero` commute with `k` too,
//! so a running maximum may be kept of the unscaled `d`, and `exp(s - m)` is `exp2(d * c - m * c)` with
//! `c = k * log2(e)`: one multiply-add and one `ex2` an element. It fails for `k <= 0` (for 0 because `0 * -inf` is NaN), so
//! the scale must be a positive constant or a parameter that the facts say is positive.
//!
//! The product `m * c` is rounded, so that `exp2(d * c - m * c)` is off by half a unit in its last place: by nothing for
//! scores of any use, and by all where a row has seen only what stands for "hidden" as a finite
//! number (-1e30, a bias of the least number of its type). Scores that may be so large
//! ([`super::large`]) have a factor for each row, which is a power of two from
//! [`WITHOUT_FRACTIONS`] on: the product is exact then.
//!
//! A maximum that starts from a value of the kernel (an attention sink) starts from that value over `k`. Finite stays finite: where the quotient would
//! overflow, the largest finite number stands for it. Its exponentials are 0 or infinite either way.

use std::collections::HashMap;
use std::f64::consts::LOG2_E;

use flashtile_dsl::ir::{
    BinaryOp, BlockId, CompareOp, Elem, Kernel, Op, OpId, ParamId, ReduceOp, Span, UnaryOp, ValueData, ValueDef, ValueId,
};

use super::edit::{self, Place};
use super::large::may_be_large;
use crate::instance::Facts;

/// From here on f32 has no fractions: numbers differ by 2 or not at all.
const WITHOUT_FRACTIONS: f64 = 16_777_216.0;

/// `exp(x)` becomes `exp2(x * log2 e)`.
pub fn exp_to_exp2(kernel: &mut Kernel) {
    for (_, id) in kernel.walk() {
        if let Op::Unary(UnaryOp::Exp, x) = kernel.ops[id].op {
            let scaled = multiply_by(kernel, x, id, LOG2_E);
            kernel.ops[id].op = Op::Unary(UnaryOp::Exp2, scaled);
        }
    }
}

/// `exp(a - b)`, with `b` of lower rank than `a` or both of one rank, becomes `exp2(a * log2 e - b * log2 e)`: the first product fuses with the
/// subtraction, the second is one per row. Where `a` may be too large for that, the factor of a row depends on `b`, and
/// differences of rows stay as they are.
pub fn distribute(kernel: &mut Kernel) {
    let all = differences(kernel);
    let any_large = all.iter().any(|difference| difference.is_large);
    for Difference { id, of: [a, b], is_large } in all {
        let (matrix, row) = (kernel.tile(a).rank() == 2, kernel.tile(b).rank() == 1);
        if any_large && !matrix {
            continue;
        }
        let mut factor = before(kernel, id, Op::Constant(Elem::F32, LOG2_E));
        if is_large && row {
            let one = before(kernel, id, Op::Constant(Elem::F32, 1.0));
            factor = factor_of_row(kernel, b, [factor, one], id);
        }
        let [a, b] = [a, b].map(|x| before(kernel, id, Op::Binary(BinaryOp::Mul, x, factor)));
        let difference = before(kernel, id, Op::Binary(BinaryOp::Sub, a, b));
        kernel.ops[id].op = Op::Unary(UnaryOp::Exp2, difference);
    }
}

/// The exponential of a difference.
struct Difference {
    id: OpId,
    of: [ValueId; 2],
    /// Whether what is subtracted from may be too large for a product that is rounded.
    is_large: bool,
}

/// The exponentials of differences.
fn differences(kernel: &Kernel) -> Vec<Difference> {
    let difference = |id: OpId| {
        let Op::Unary(UnaryOp::Exp, x) = kernel.ops[id].op else { return None };
        let Some((_, &Op::Binary(BinaryOp::Sub, a, b))) = kernel.def(x) else { return None };
        Some(Difference { id, of: [a, b], is_large: may_be_large(kernel, a) })
    };
    kernel.walk().into_iter().filter_map(|(_, id)| difference(id)).collect()
}

/// The first factor where `row` has fractions, else the second.
fn factor_of_row(kernel: &mut Kernel, row: ValueId, factors: [ValueId; 2], id: OpId) -> ValueId {
    let dims = kernel.tile(row).dims.clone();
    let most = before(kernel, id, Op::Constant(Elem::F32, WITHOUT_FRACTIONS));
    let magnitude = before(kernel, id, Op::Unary(UnaryOp::Abs, row));
    let has_fractions = before(kernel, id, Op::Compare(CompareOp::Lt, magnitude, most));
    let [on_true, on_false] = factors.map(|value| before(kernel, id, Op::Full { value, dims: dims.clone() }));
    before(kernel, id, Op::Select { cond: has_fractions, on_true, on_false })
}

fn before(kernel: &mut Kernel, id: OpId, op: Op) -> ValueId {
    let span = kernel.ops[id].span;
    edit::insert_before(kernel, id, op, span)
}

fn multiply_by(kernel: &mut Kernel, x: ValueId, id: OpId, factor: f64) -> ValueId {
    let factor = before(kernel, id, Op::Constant(Elem::F32, factor));
    before(kernel, id, Op::Binary(BinaryOp::Mul, x, factor))
}

/// A positive uniform factor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scale {
    /// A parameter of which the facts say that it is positive.
    Param(ParamId),
    /// A constant.
    Constant(f64),
}

impl Scale {
    /// The op that gives it.
    pub fn op(self) -> Op {
        match self {
            Self::Param(p) => Op::Scalar(p),
            Self::Constant(c) => Op::Constant(Elem::F32, c),
        }
    }
}

/// Folds positive scales into exponentials. Returns the names of the parameters assumed positive.
pub fn fold_scale(kernel: &mut Kernel, facts: &Facts) -> Vec<String> {
    let mut scales: Vec<Scale> = Vec::new();
    for (_, id) in kernel.walk() {
        if let Op::Binary(BinaryOp::Mul, a, b) = kernel.ops[id].op {
            for scale in [positive(kernel, a, facts), positive(kernel, b, facts)].into_iter().flatten() {
                if !scales.contains(&scale) {
                    scales.push(scale);
                }
            }
        }
    }
    let mut assumed = Vec::new();
    for scale in scales {
        let mut trial = Fold { kernel: kernel.clone(), scale, facts, unscaled: HashMap::new(), failed: false };
        let folded = trial.run();
        if folded && !trial.failed {
            *kernel = trial.kernel;
            edit::remove_dead(kernel);
            if let Scale::Param(p) = scale {
                assumed.push(kernel.params[p].name.clone());
            }
        }
    }
    assumed
}

/// The factor that a value is, if it is known to be positive.
pub fn positive(kernel: &Kernel, value: ValueId, facts: &Facts) -> Option<Scale> {
    match kernel.def(value)?.1 {
        Op::Scalar(p) if facts.positive.contains(&kernel.params[*p].name) => Some(Scale::Param(*p)),
        Op::Constant(Elem::F32, c) if *c > 0.0 && c.is_finite() => Some(Scale::Constant(*c)),
        _ => None,
    }
}

/// One attempt to fold one scale.
struct Fold<'a> {
    kernel: Kernel,
    scale: Scale,
    facts: &'a Facts,
    /// For a value `v = scale * u`: `u`.
    unscaled: HashMap<ValueId, Option<ValueId>>,
    failed: bool,
}

impl Fold<'_> {
    /// Rewrites every exponential of a scaled rank-2 difference; false if there is none.
    fn run(&mut self) -> bool {
        let mut folded = false;
        let all = differences(&self.kernel);
        let any_large = all.iter().any(|difference| difference.is_large);
        for Difference { id, of: [a, b], is_large } in all {
            let rank = |v: ValueId| self.kernel.tile(v).rank();
            let (of_pairs, of_rows) = (rank(a).max(rank(b)) == 2, rank(b) == 1);
            if is_large && !(of_pairs && of_rows) {
                continue;
            }
            let (Some(a), Some(b)) = (self.unscale(a), self.unscale(b)) else { continue };
            folded |= of_pairs;
            let mut factor = self.factor();
            if is_large {
                factor = self.factor_of_row(b, factor, id);
            }
            // A product is rounded; differences of rows are made first where scores may be large.
            let difference = if any_large && !of_pairs {
                let difference = self.before(id, Op::Binary(BinaryOp::Sub, a, b));
                self.before(id, Op::Binary(BinaryOp::Mul, difference, factor))
            } else {
                let [a, b] = [a, b].map(|x| self.before(id, Op::Binary(BinaryOp::Mul, x, factor)));
                self.before(id, Op::Binary(BinaryOp::Sub, a, b))
            };
            self.kernel.ops[id].op = Op::Unary(UnaryOp::Exp2, difference);
        }
        folded
    }

    fn before(&mut self, id: OpId, op: Op) -> ValueId {
        before(&mut self.kernel, id, op)
    }

    /// `scale * log2 e` where the scaled `row` has fractions. Elsewhere the largest power of two that
    /// is no larger than the scale: products with it are exact, and finite where scaled numbers are.
    fn factor_of_row(&mut self, row: ValueId, factor: ValueId, id: OpId) -> ValueId {
        let scale = self.before(id, self.scale.op());
        let exponent = self.before(id, Op::Unary(UnaryOp::Log2, scale));
        let exponent = self.before(id, Op::Unary(UnaryOp::Floor, exponent));
        let coarse = self.before(id, Op::Unary(UnaryOp::Exp2, exponent));
        let scaled = self.before(id, Op::Binary(BinaryOp::Mul, row, scale));
        factor_of_row(&mut self.kernel, scaled, [factor, coarse], id)
    }

    /// `scale * log2 e`, made at the entry of the kernel.
    fn factor(&mut self) -> ValueId {
        let place = edit::entry(&self.kernel);
        let log2e = edit::insert(&mut self.kernel, place, Op::Constant(Elem::F32, LOG2_E), Span::default());
        let scale = self.scale_value(place);
        let next = Place { index: place.index + 2, ..place };
        let factor = edit::insert(&mut self.kernel, next, Op::Binary(BinaryOp::Mul, scale, log2e), Span::default());
        if let Scale::Param(p) = self.scale {
            self.kernel.values[factor].name = Some(format!("{}_log2e", self.kernel.params[p].name));
        }
        factor
    }

    fn scale_value(&mut self, place: Place) -> ValueId {
        edit::insert(&mut self.kernel, place, self.scale.op(), Span::default())
    }

    /// `u` with `value = scale * u`, or `None` if there is none.
    fn unscale(&mut self, value: ValueId) -> Option<ValueId> {
        if let Some(known) = self.unscaled.get(&value) {
            return *known;
        }
        let result = self.unscale_definition(value);
        self.unscaled.insert(value, result);
        if let (Some(u), Some(name)) = (result, self.kernel.values[value].name.clone())
            && self.kernel.values[u].name.is_none()
        {
            self.kernel.values[u].name = Some(name);
        }
        result
    }

    fn unscale_definition(&mut self, value: ValueId) -> Option<ValueId> {
        let (id, op) = match self.kernel.values[value].def {
            ValueDef::Result(id, index) => match self.kernel.ops[id].op.clone() {
                Op::For { body, .. } => return self.unscale_carried(id, body, index as usize, true),
                op => (id, op),
            },
            ValueDef::BlockParam(body, index) if index > 0 => {
                let owner = edit::loop_of(&self.kernel, body)?;
                return self.unscale_carried(owner, body, index as usize - 1, false);
            }
            ValueDef::BlockParam(..) => return None,
        };
        let new = match op {
            Op::Binary(BinaryOp::Mul, a, b) => {
                let scale = Some(self.scale);
                return if positive(&self.kernel, b, self.facts) == scale {
                    Some(a)
                } else if positive(&self.kernel, a, self.facts) == scale {
                    Some(b)
                } else {
                    None
                };
            }
            // 0 and -inf are their own multiples.
            Op::Full { value: fill, .. } => {
                return match self.kernel.def(fill) {
                    Some((_, Op::Constant(_, c))) if *c == f64::NEG_INFINITY || *c == 0.0 => Some(value),
                    _ => None,
                };
            }
            Op::Mask { x, keep, fill } => Op::Mask { x: self.unscale(x)?, keep, fill },
            Op::Reduce(ReduceOp::Max, x) => Op::Reduce(ReduceOp::Max, self.unscale(x)?),
            Op::Unary(f @ (UnaryOp::VisibleOrZero | UnaryOp::Neg), x) => Op::Unary(f, self.unscale(x)?),
            Op::Binary(f @ (BinaryOp::Max | BinaryOp::Min), a, b) => Op::Binary(f, self.unscale(a)?, self.unscale(b)?),
            _ => return None,
        };
        let place = edit::after_definition(&self.kernel, value);
        let span = self.kernel.ops[id].span;
        Some(edit::insert(&mut self.kernel, place, new, span))
    }

    /// Carries the unscaled value beside the scaled one; what still needs the scaled one gets `u * scale`.
    fn unscale_carried(&mut self, id: OpId, body: BlockId, slot: usize, want_result: bool) -> Option<ValueId> {
        let Op::For { axis, part, init, .. } = self.kernel.ops[id].op.clone() else { return None };
        let param = self.kernel.blocks[body].params[slot + 1];
        let result = self.kernel.ops[id].results[slot];
        let start = match self.unscale(init[slot]) {
            Some(start) => start,
            None => self.divided(init[slot], id)?,
        };
        // Of a loop in a loop the outer one starts the inner one, and goes on from its result: whoever
        // began with the inner one has both by now.
        if let Some(&known) = self.unscaled.get(if want_result { &result } else { &param }) {
            return known;
        }
        let Op::For { init, .. } = self.kernel.ops[id].op.clone() else { return None };
        let ty = self.kernel.ty(param).clone();
        let name = self.kernel.values[param].name.clone();
        let index = self.kernel.blocks[body].params.len() as u32;
        let new_param =
            self.kernel.values.push(ValueData { ty: ty.clone(), def: ValueDef::BlockParam(body, index), name: name.clone() });
        self.kernel.blocks[body].params.push(new_param);
        let new_result = self.kernel.values.push(ValueData { ty, def: ValueDef::Result(id, index - 1), name });
        self.kernel.ops[id].results.push(new_result);
        let mut new_init = init;
        new_init.push(start);
        self.kernel.ops[id].op = Op::For { axis, part, body, init: new_init };
        self.unscaled.insert(param, Some(new_param));
        self.unscaled.insert(result, Some(new_result));
        let next = edit::yielded(&self.kernel, body)[slot];
        let Some(new_next) = self.unscale(next) else {
            self.failed = true; // the whole trial is dropped
            return None;
        };
        let last = *self.kernel.blocks[body].ops.last().expect("a yield");
        let mut values = edit::yielded(&self.kernel, body);
        values.push(new_next);
        self.kernel.ops[last].op = Op::Yield(values);
        self.rescale_after(id, result, new_result);
        Some(if want_result { new_result } else { new_param })
    }

    /// `value / scale` for an initial value of the loop `id`; `None` for matrices.
    fn divided(&mut self, value: ValueId, id: OpId) -> Option<ValueId> {
        let ty = self.kernel.tile(value).clone();
        if ty.elem != Elem::F32 || ty.rank() > 1 {
            return None;
        }
        // What fills a row is divided once.
        let (x, dims) = match self.kernel.def(value) {
            Some((_, Op::Full { value, dims })) => (*value, Some(dims.clone())),
            _ => (value, None),
        };
        let constant = |this: &mut Self, c: f64| before(&mut this.kernel, id, Op::Constant(Elem::F32, c));
        let scale = before(&mut self.kernel, id, self.scale.op());
        let quotient = before(&mut self.kernel, id, Op::Binary(BinaryOp::Div, x, scale));
        let (most, least) = (constant(self, f32::MAX.into()), constant(self, f32::MIN.into()));
        let bounded = before(&mut self.kernel, id, Op::Binary(BinaryOp::Min, quotient, most));
        let bounded = before(&mut self.kernel, id, Op::Binary(BinaryOp::Max, bounded, least));
        let (magnitude, infinity) = (before(&mut self.kernel, id, Op::Unary(UnaryOp::Abs, x)), constant(self, f64::INFINITY));
        let finite = before(&mut self.kernel, id, Op::Compare(CompareOp::Lt, magnitude, infinity));
        let start = before(&mut self.kernel, id, Op::Select { cond: finite, on_true: bounded, on_false: x });
        Some(match dims {
            Some(dims) => before(&mut self.kernel, id, Op::Full { value: start, dims }),
            None => start,
        })
    }

    /// Makes uses of the loop's scaled result read `new_result * scale`.
    fn rescale_after(&mut self, id: OpId, result: ValueId, new_result: ValueId) {
        if edit::users(&self.kernel, result).is_empty() {
            return;
        }
        let place = edit::places(&self.kernel)[&id];
        let place = Place { index: place.index + 1, ..place };
        let span = self.kernel.ops[id].span;
        let scale = self.scale_value(place);
        let next = Place { index: place.index + 1, ..place };
        let scaled = edit::insert(&mut self.kernel, next, Op::Binary(BinaryOp::Mul, new_result, scale), span);
        edit::replace_uses(&mut self.kernel, result, scaled, &[]);
    }
}
