//! What the inputs of a kernel should hold so that a check of its outputs sees every part of its text.
//!
//! Integers get the meaning that their uses give them ([`super::uses`]), floats the size at which what is computed from them is
//! of order 1 ([`super::magnitude`]). The runtime draws values from this, wherever it draws any.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::magnitude::magnitudes;
use super::uses::{Meaning, Use, uses};
use crate::ir::{Elem, Entity, Kernel, ParamId, ParamKind, SizeExpr};

/// What one parameter should hold.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Nothing: it is written.
    Output,
    /// Integers of this meaning, or truth values as 0 and 1.
    Integers(Use),
    /// Floats.
    Floats {
        /// Standard deviation.
        scale: f64,
        /// Whether they must be positive.
        positive: bool,
        /// Whether they are truth values, 0 and 1.
        truths: bool,
    },
    /// An f32 scalar.
    F32(f64),
    /// An i32 scalar, with its meaning.
    I32(i64, Use),
}

/// What every parameter should hold.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    by_param: Vec<Input>,
    exponents: Vec<ParamId>,
}

/// Finds it for sizes that `size` gives. `known` gives the typical size of inputs whose values are fixed.
pub fn inputs(kernel: &Kernel, size: &dyn Fn(&SizeExpr) -> Option<i64>, known: &dyn Fn(ParamId) -> Option<f64>) -> Inputs {
    let (mut uses, magnitudes) = (uses(kernel), magnitudes(kernel, size, known));
    let mut integer = |id| uses.remove(&id).expect("every integer input has a use");
    // Scalars differ, so that a check sees which is which.
    let mut taken = BTreeSet::new();
    let of = |(id, param): (ParamId, &crate::ir::Param)| match &param.kind {
        ParamKind::Tensor(t) if !t.direction.is_read() => Input::Output,
        ParamKind::Tensor(t) if t.elem.is_integer() => Input::Integers(integer(id)),
        // Truth values are the integers 0 and 1.
        ParamKind::Tensor(t) if t.elem == Elem::Bool => {
            Input::Integers(Use { meaning: Meaning::Classes([0, 1].into()), marks: BTreeSet::new() })
        }
        ParamKind::Tensor(_) => {
            let scale = magnitudes.scales.get(&id).copied().unwrap_or(1.0);
            let (positive, truths) = (magnitudes.positive.contains(&id), magnitudes.truths.contains(&id));
            Input::Floats { scale, positive, truths }
        }
        ParamKind::Scalar(Elem::I32) => {
            let of = integer(id);
            let may_differ = !matches!(of.meaning, Meaning::Index(_) | Meaning::Place { .. } | Meaning::Classes(_));
            let mut value = typical(&of.meaning, size);
            while may_differ && taken.contains(&value) {
                value += 1;
            }
            taken.insert(value);
            Input::I32(value, of)
        }
        ParamKind::Scalar(_) => Input::F32(magnitudes.scalars[&id]),
    };
    let by_param = kernel.params.iter().map(of).collect();
    Inputs { by_param, exponents: magnitudes.exponents.iter().copied().collect() }
}

impl Inputs {
    /// What a parameter should hold.
    pub fn of(&self, param: ParamId) -> &Input {
        &self.by_param[param.index()]
    }

    /// Floats that make the arguments of exponentials larger if they are larger.
    pub fn exponents(&self) -> &[ParamId] {
        &self.exponents
    }

    /// One line for each input.
    pub fn text(&self, kernel: &Kernel) -> String {
        let mut text = String::new();
        for (param, input) in kernel.params.values().zip(&self.by_param) {
            let says = match input {
                Input::Output => continue,
                Input::Integers(of) => match &param.kind {
                    ParamKind::Tensor(t) if t.elem.is_narrow() && matches!(of.meaning, Meaning::Number | Meaning::Unknown) => {
                        format!("any {}", t.elem.name())
                    }
                    _ => of.text(kernel),
                },
                Input::Floats { truths: true, .. } => "0 and 1".to_owned(),
                Input::Floats { scale, positive, truths: false } => {
                    let times = if *scale == 1.0 { String::new() } else { format!(", times {scale:.3}") };
                    format!("{}{times}", if *positive { "positive" } else { "normal" })
                }
                Input::F32(x) => format!("{x:.3}"),
                Input::I32(x, of) => format!("{x}: {}", of.text(kernel)),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<8} {says}", param.name);
        }
        text
    }
}

/// A value of this meaning that cuts: neither none nor all of what it is about.
fn typical(meaning: &Meaning, size: &dyn Fn(&SizeExpr) -> Option<i64>) -> i64 {
    let extent = |extent: &SizeExpr| size(extent).unwrap_or(1).max(1);
    match meaning {
        Meaning::Index(all) => extent(all) / 2,
        Meaning::Place { extent: all, over } => extent(all) / over / 2,
        Meaning::Length { extent: all, over } => (extent(all) * 3 / 5 / over).max(1),
        Meaning::Distance { .. } => (meaning.reach(&extent).unwrap_or(1) / 3).max(1),
        Meaning::Ids(_) | Meaning::Order(_) | Meaning::Unknown => 1,
        Meaning::Classes(values) => values.iter().copied().max().unwrap_or(1),
        Meaning::Number => 3,
    }
}
