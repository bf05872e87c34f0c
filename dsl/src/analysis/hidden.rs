//! Which elements of a value masks hide, and what they hold.
//!
//! "Hidden means absent" in the module text of [`crate::ir`] is the meaning; this is what a
//! compiler knows of it from the text alone. A reduction or a contraction must not see what is
//! hidden. It does not where a hidden element holds what changes nothing
//! ([`HiddenElements::fill`]); elsewhere the compiler masks the operand once more, by its
//! [`HiddenElements::condition`].

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{BinaryOp, Fill, Kernel, Op, UnaryOp, ValueId};

/// When an element exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Where the truth value holds.
    Holds(ValueId),
    /// Where the condition of the transposed value holds.
    Transposed(Box<Condition>),
    /// Where all hold.
    All(Vec<Condition>),
    /// Where the truth value holds the first must hold, elsewhere the second; one that is `None`
    /// always does.
    Either(ValueId, Option<Box<Condition>>, Option<Box<Condition>>),
}

/// What is known of the hidden elements of every value of a kernel.
///
/// A loaded value that is subtracted may be `-inf`, as the log of a sum of nothing is: then what a
/// hidden element holds is not known. Of what the text computes itself that is not expected: where
/// a running maximum is `-inf` nothing was seen, and the text says what follows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HiddenElements {
    conditions: BTreeMap<ValueId, Condition>,
    fills: BTreeMap<ValueId, Fill>,
    /// What tensors hold, or is computed elementwise from that alone, and may be `-inf`.
    loaded: BTreeSet<ValueId>,
    /// What the text computes of rows, or carries.
    computed: BTreeSet<ValueId>,
    /// What is computed elementwise from positions alone, and may be any number of some pairs.
    positional: BTreeSet<ValueId>,
    /// What may be infinite or NaN for pairs that a mask hides behind it, although it is finite for
    /// all others: roots, logarithms, exponentials and quotients of pairs or of positions.
    wild: BTreeSet<ValueId>,
}

impl HiddenElements {
    /// Of a kernel; `positive` says which values are known to be above 0.
    pub fn new(kernel: &Kernel, positive: &dyn Fn(ValueId) -> bool) -> Self {
        let mut found = Self::default();
        for (_, id) in kernel.walk() {
            let data = &kernel.ops[id];
            if let Op::For { body, .. } = data.op {
                found.computed.extend(data.results.iter().chain(&kernel.blocks[body].params[1..]));
            }
            let [result] = data.results[..] else { continue };
            let of_computed = || data.op.operands().iter().any(|v| found.computed.contains(v));
            let computes = match data.op {
                // What a tensor holds, wherever it is read.
                Op::Load { .. } | Op::Gather { .. } => false,
                Op::Reduce(..) | Op::Dot { .. } => true,
                _ => of_computed(),
            };
            if computes {
                found.computed.insert(result);
            }
            if let Some(condition) = found.condition_of(&data.op) {
                found.conditions.insert(result, condition);
                // Where nothing is hidden nothing is held.
                if let Some(fill) = found.fill_of(&data.op, positive) {
                    found.fills.insert(result, fill);
                }
            }
            if !found.computed.contains(&result) && found.is_loaded(&data.op) {
                found.loaded.insert(result);
            }
            if found.is_positional(&data.op) {
                found.positional.insert(result);
            }
            if found.is_wild(kernel, &data.op, result) {
                found.wild.insert(result);
            }
        }
        found
    }

    /// When the elements of a value exist; `None` if all do.
    pub fn condition(&self, value: ValueId) -> Option<&Condition> {
        self.conditions.get(&value)
    }

    /// What every hidden element of a value holds, if it is not NaN; `None` if that is not known,
    /// or nothing of it is hidden.
    pub fn fill(&self, value: ValueId) -> Option<Fill> {
        self.fills.get(&value).copied()
    }

    fn condition_of(&self, op: &Op) -> Option<Condition> {
        let of = |v: &ValueId| self.conditions.get(v).cloned();
        match op {
            Op::Mask { x, keep, .. } => all([of(x), of(keep), Some(Condition::Holds(*keep))]),
            Op::Transpose(x) => of(x).map(|c| Condition::Transposed(Box::new(c))),
            Op::Unary(_, x) | Op::Cast(_, x) | Op::Full { value: x, .. } => of(x),
            Op::Binary(_, a, b) | Op::Compare(_, a, b) => all([of(a), of(b)]),
            Op::Dot { acc, .. } => acc.as_ref().and_then(of),
            Op::Gather { at, .. } => all(at.iter().map(of)),
            Op::Select { cond, on_true, on_false } => {
                let either = match (of(on_true), of(on_false)) {
                    (a, b) if a == b => a,
                    (a, b) => Some(Condition::Either(*cond, a.map(Box::new), b.map(Box::new))),
                };
                all([of(cond), either])
            }
            _ => None,
        }
    }

    fn fill_of(&self, op: &Op, positive: &dyn Fn(ValueId) -> bool) -> Option<Fill> {
        let of = |v: &ValueId| self.fill(*v);
        let hides = |v: &ValueId| self.conditions.contains_key(v);
        match op {
            Op::Mask { x, keep, fill } => (!hides(keep) && (!hides(x) || of(x) == Some(*fill))).then_some(*fill),
            Op::Transpose(x) | Op::Cast(_, x) | Op::Full { value: x, .. } => of(x),
            Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, x) => (of(x) == Some(Fill::NegInf)).then_some(Fill::Zero),
            Op::Unary(UnaryOp::VisibleOrZero, x) => of(x).map(|_| Fill::Zero),
            Op::Binary(op, a, b) => match (hides(a), hides(b)) {
                (true, true) => of(a).filter(|fill| of(b) == Some(*fill)).filter(|fill| match op {
                    BinaryOp::Mul => *fill == Fill::Zero,
                    BinaryOp::Add | BinaryOp::Max | BinaryOp::Min => true,
                    _ => false,
                }),
                (true, false) => self.with_seen(*op, of(a)?, *b, positive),
                (false, true) if matches!(op, BinaryOp::Mul | BinaryOp::Add) => self.with_seen(*op, of(b)?, *a, positive),
                _ => None,
            },
            Op::Select { cond, on_true, on_false } => {
                let mut fills = [on_true, on_false].into_iter().filter(|v| hides(v)).map(of);
                let first = fills.next()??;
                (!hides(cond) && fills.all(|fill| fill == Some(first))).then_some(first)
            }
            _ => None,
        }
    }

    /// What a hidden element that holds `fill` gives with an element that exists, on its right or,
    /// of a sum or product, on either side.
    fn with_seen(&self, op: BinaryOp, fill: Fill, seen: ValueId, positive: &dyn Fn(ValueId) -> bool) -> Option<Fill> {
        let tame = !self.wild.contains(&seen);
        let known = match (op, fill) {
            (BinaryOp::Mul | BinaryOp::DivOrZero, Fill::Zero) | (BinaryOp::Add, Fill::NegInf) => tame,
            (BinaryOp::Div, Fill::Zero) => tame && !self.positional.contains(&seen),
            (BinaryOp::Mul | BinaryOp::Div, Fill::NegInf) => positive(seen),
            (BinaryOp::Sub, Fill::NegInf) => tame && !self.loaded.contains(&seen),
            _ => false,
        };
        known.then_some(fill)
    }

    fn is_positional(&self, op: &Op) -> bool {
        let of = |v: &ValueId| self.positional.contains(v);
        match op {
            Op::Pos(_) => true,
            op if op.is_elementwise() => op.operands().iter().any(of),
            Op::Transpose(x) | Op::Full { value: x, .. } => of(x),
            _ => false,
        }
    }

    fn is_wild(&self, kernel: &Kernel, op: &Op, result: ValueId) -> bool {
        let of = |v: &ValueId| self.wild.contains(v);
        // Of rows the text says what follows.
        let of_pairs = |v: &ValueId| kernel.tile(*v).rank() == 2 || self.positional.contains(v);
        match op {
            Op::Unary(UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Ln | UnaryOp::Log2 | UnaryOp::Sqrt | UnaryOp::Rsqrt, x) => {
                of(x) || of_pairs(x)
            }
            Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, b) if kernel.tile(result).elem.is_float() => {
                of(a) || of(b) || of_pairs(b)
            }
            Op::Gather { .. } => false,
            op if op.is_elementwise() => op.operands().iter().any(of),
            Op::Transpose(x) | Op::Full { value: x, .. } => of(x),
            _ => false,
        }
    }

    fn is_loaded(&self, op: &Op) -> bool {
        let of = |v: &ValueId| self.loaded.contains(v);
        match op {
            Op::Load { .. } | Op::Gather { .. } => true,
            Op::Unary(UnaryOp::VisibleOrZero, _) => false,
            Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } | Op::Unary(_, x) => of(x),
            Op::Binary(_, a, b) => of(a) || of(b),
            _ => false,
        }
    }
}

/// Where all of them hold.
fn all(conditions: impl IntoIterator<Item = Option<Condition>>) -> Option<Condition> {
    let mut found: Vec<Condition> = Vec::new();
    for condition in conditions.into_iter().flatten() {
        let parts = match condition {
            Condition::All(parts) => parts,
            other => vec![other],
        };
        for part in parts {
            if !found.contains(&part) {
                found.push(part);
            }
        }
    }
    match found.len() {
        0 | 1 => found.pop(),
        _ => Some(Condition::All(found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;

    /// What is known of the value of each name in the body of a program.
    fn known(body: &str) -> Vec<(String, bool, Option<Fill>)> {
        let text = format!(
            "flash_kernel! {{ pub fn k<const D: usize>(x: &Tensor<f32, (M, D)>, l: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M, D)>, e: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let x_i = load(x, [i, ..]);
                let l_i = load(l, [i]);
                let s = mask(x_i, pos(i) < 7);
                {body}
                store(o, [i, ..], out);
                store(e, [i], l_i + rowsum(s));
            }} }}"
        );
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let kernel = crate::syntax::parse(&source).expect("a kernel").remove(0);
        let values = kernel.values.iter().filter_map(|(v, data)| Some((v, data.name.clone()?)));
        let hidden = HiddenElements::new(&kernel, &|_| false);
        values.map(|(v, name)| (name, hidden.condition(v).is_some(), hidden.fill(v))).collect()
    }

    #[test]
    fn what_hidden_elements_hold_follows_from_the_text() {
        let (zero, infinite) = (Some(Fill::Zero), Some(Fill::NegInf));
        let table = [
            ("s", true, infinite),
            ("exp(s)", true, zero),
            ("exp(s - 3.0)", true, zero),
            ("exp(s - rowmax(s))", true, zero),
            // The log of a sum that was stored is -inf where nothing was seen.
            ("exp(s - l_i)", true, None),
            ("exp(s) * (x_i - l_i)", true, zero),
            ("exp(s) + 1.0", true, None),
            ("exp(s - visible_or_zero(l_i))", true, zero),
            ("exp(s - max(l_i, rowmax(s)))", true, zero),
            ("s + l_i", true, infinite),
            ("s * 2.0", true, None),
            ("tanh(s)", true, None),
            ("visible_or_zero(s)", true, zero),
            ("select(x_i > 0.0, exp(s), exp(s) * 2.0)", true, zero),
            ("select(x_i > 0.0, s, exp(s))", true, None),
            ("select(s > 0.0, x_i, x_i * 2.0)", true, None),
            ("mask(s, pos(i) > 2)", true, infinite),
            ("mask(exp(s), pos(i) > 2)", true, None),
            ("max(s, x_i)", true, None),
            // What is finite for all that is seen may be NaN or infinite where nothing is.
            ("exp(s) * sqrt((7 - pos(i)).to::<f32>())", true, None),
            ("exp(s) / (7 - pos(i)).to::<f32>()", true, None),
            ("exp(s) / l_i", true, zero),
            ("exp(s) * exp(x_i)", true, None),
            ("exp(s) * rsqrt(l_i)", true, zero),
            ("exp(s) * (1.0 - tanh(x_i) * tanh(x_i))", true, zero),
            ("exp(s) * select(x_i > 0.0, x_i / x_i, 0.0)", true, None),
            ("s + ln(x_i)", true, None),
            ("exp(s) * (7 - pos(i)).to::<f32>()", true, zero),
            ("x_i", false, None),
            ("x_i - rowmax(s)", false, None),
        ];
        for (text, hides, fill) in table {
            let found = known(&format!("let out = {text};"));
            let out = found.iter().find(|(name, ..)| name == "out").or(found.iter().find(|(name, ..)| name == text));
            let (_, may_hide, known) = out.unwrap_or_else(|| panic!("{text}: {found:?}"));
            assert_eq!((*may_hide, *known), (hides, fill), "{text}");
        }
    }
}
