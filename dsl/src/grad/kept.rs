//! What the forward kernel stores for its gradient.

use std::collections::BTreeMap;

use super::NotDifferentiable;
use super::copy::Copy;
use super::forward::{Forward, Slot};
use super::names::free_name;
use crate::analysis::streaming::{Base, Form, constant_fill};
use crate::ir::{
    At, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, Param, ParamId, ParamKind, ProgramDim, ReduceOp, SizeExpr,
    TensorDecl, UnaryOp, ValueId,
};

/// What one kernel of a gradient leaves to later ones: gradients of results of loops, by their
/// slots.
pub(super) type Left = BTreeMap<usize, Stored>;

/// What the forward kernel stores for its gradient.
pub(super) struct Kept {
    /// By the slot of a maximum: what is taken for it.
    references: BTreeMap<usize, Reference>,
    /// By the slot of a result of the loop: its value where the reference of its maximum is taken
    /// for the maximum.
    values: BTreeMap<usize, Stored>,
}

/// What is taken for a maximum: the maximum and the logarithm of a divisor, so that what the maximum
/// rescales is divided by the divisor.
struct Reference {
    stored: Stored,
    divisor: Divisor,
}

/// What the sums that a maximum rescales are divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Divisor {
    /// The sum in a slot, which is not small wherever a row sees anything: it becomes 1.
    Sum(usize),
    /// `max(abs(l), 1)` of the sum `l` in a slot, which may have any sign.
    Magnitude(usize),
    /// Nothing: the sums have a number for each pair.
    One,
}

/// A tensor with a value for each row.
#[derive(Clone)]
pub(super) struct Stored {
    pub name: String,
    /// Its place, by values of the forward kernel.
    pub at: Vec<At>,
    pub decl: TensorDecl,
    /// Whether the forward kernel has no such output.
    pub is_new: bool,
}

impl Kept {
    pub fn of(forward: &Forward<'_>) -> Self {
        let kernel = forward.kernel;
        let mut made = Self { references: BTreeMap::new(), values: BTreeMap::new() };
        let stored = |param: ParamId, at: Vec<At>| {
            let decl = TensorDecl { direction: Direction::In, ..kernel.tensor(param).clone() };
            Stored { name: kernel.params[param].name.clone(), at, decl, is_new: false }
        };
        for (slot, Slot { form, result, .. }) in forward.slots.iter().enumerate() {
            let name = forward.name_of_slot(slot);
            match form {
                Form::RunningMaximum { .. } => {
                    let reference = match (forward.stored_reference(slot), divisor(forward, slot)) {
                        (Some((param, at, sum)), _) => Reference { stored: stored(param, at), divisor: Divisor::Sum(sum) },
                        (None, Some(divisor)) => {
                            Reference { stored: row_tensor(forward, &format!("{name}_reference"), *result), divisor }
                        }
                        (None, None) => continue,
                    };
                    made.references.insert(slot, reference);
                }
                Form::Sum { .. } => {
                    // A plain sum is as large as there are columns, whatever divides it behind the
                    // loop.
                    let sum = row_tensor(forward, &format!("{name}_sum"), *result);
                    let decl = TensorDecl { elem: Elem::F32, ..sum.decl };
                    made.values.insert(slot, Stored { decl, ..sum });
                }
                _ => {}
            }
        }
        for (slot, Slot { form, result, .. }) in forward.slots.iter().enumerate() {
            let Form::RescaledSum { maximum, .. } = form else { continue };
            let Some(reference) = made.references.get(maximum).filter(|r| r.divisor != Divisor::Sum(slot)) else { continue };
            let name = forward.name_of_slot(slot);
            let quotient = match reference.divisor {
                Divisor::Sum(sum) => forward.stored_quotient(slot, sum),
                Divisor::Magnitude(_) | Divisor::One => None,
            };
            let kept = match quotient {
                Some((param, at)) => stored(param, at),
                None => {
                    let made = row_tensor(forward, &format!("{name}_mean"), *result);
                    // Undivided sums are as large as there are columns.
                    let elem = if reference.divisor == Divisor::One { Elem::F32 } else { made.decl.elem };
                    Stored { decl: TensorDecl { elem, ..made.decl }, ..made }
                }
            };
            made.values.insert(slot, kept);
        }
        made
    }

    /// Presets what the loop gives and what its sums are rescaled by. Loads what is stored of rows.
    pub fn preset(&self, copy: &mut Copy<'_, '_>) -> Result<(), NotDifferentiable> {
        let forward = copy.forward;
        for (&maximum, kept) in &self.references {
            let reference = kept.stored.load(copy)?;
            let finite = copy.unary(UnaryOp::VisibleOrZero, reference);
            copy.known.insert(forward.slots[maximum].result, reference);
            copy.known.insert(forward.slots[maximum].next, reference);
            for slot in &forward.slots {
                if let Form::RescaledSum { maximum: m, reference, .. } = slot.form
                    && m == maximum
                {
                    copy.known.insert(reference, finite);
                }
            }
        }
        for kept in self.references.values() {
            let Divisor::Sum(sum) = kept.divisor else { continue };
            let dims = copy.dims_of(forward.slots[sum].result);
            let one = copy.filled(1.0, dims);
            copy.known.insert(forward.slots[sum].result, one);
        }
        for (&slot, stored) in &self.values {
            let value = stored.load(copy)?;
            copy.known.insert(forward.slots[slot].result, value);
        }
        Ok(())
    }

    /// The kernel as it was written, with the outputs that are `used`. Results of its loops are
    /// those of `forward`.
    pub fn forward(&self, forward: &Forward<'_>, written: Kernel, used: &dyn Fn(&str) -> bool) -> Kernel {
        let mut b = Builder::at_end_of(written);
        let result = |slot: usize| forward.slots[slot].result;
        let mut store = |stored: &Stored, make: &dyn Fn(&mut Builder) -> ValueId| {
            if stored.is_new && used(&stored.name) {
                let decl = TensorDecl { direction: Direction::Out, ..stored.decl.clone() };
                let kind = ParamKind::Tensor(decl);
                let tensor = b.kernel.params.push(Param { name: stored.name.clone(), kind, span: forward.kernel.name_span });
                let value = make(&mut b);
                b.append(Op::Store { tensor, at: stored.at.clone(), value });
            }
        };
        for (&maximum, kept) in &self.references {
            store(&kept.stored, &|b| match kept.divisor.value(forward, b) {
                Some((divisor, base)) => {
                    let op = if base == Base::E { UnaryOp::Ln } else { UnaryOp::Log2 };
                    let logarithm = b.emit(Op::Unary(op, divisor));
                    b.emit(Op::Binary(BinaryOp::Add, result(maximum), logarithm))
                }
                None => result(maximum),
            });
        }
        for (&slot, stored) in &self.values {
            store(stored, &|b| match forward.slots[slot].form {
                Form::RescaledSum { maximum, .. } => match self.references[&maximum].divisor.value(forward, b) {
                    Some((divisor, _)) => b.emit(Op::Binary(BinaryOp::DivOrZero, result(slot), divisor)),
                    None => result(slot),
                },
                _ => result(slot),
            });
        }
        b.finish()
    }
}

impl Divisor {
    /// Its value, and the base of the exponentials in its sum.
    fn value(self, forward: &Forward<'_>, b: &mut Builder) -> Option<(ValueId, Base)> {
        let (Self::Sum(sum) | Self::Magnitude(sum)) = self else { return None };
        let Slot { form, result, .. } = &forward.slots[sum];
        let &Form::RescaledSum { base, .. } = form else { unreachable!("a sum that is rescaled") };
        if let Self::Sum(_) = self {
            return Some((*result, base));
        }
        let magnitude = b.emit(Op::Unary(UnaryOp::Abs, *result));
        let one = b.emit(Op::Constant(Elem::F32, 1.0));
        Some((b.emit(Op::Binary(BinaryOp::Max, magnitude, one)), base))
    }
}

/// What divides the sums that a maximum rescales; `None` where it rescales none.
fn divisor(forward: &Forward<'_>, maximum: usize) -> Option<Divisor> {
    let kernel = forward.kernel;
    let rescaled = || {
        forward.slots.iter().enumerate().filter_map(|(slot, data)| match data.form {
            Form::RescaledSum { maximum: m, term, .. } if m == maximum => Some((slot, data, term)),
            _ => None,
        })
    };
    let mut of_rows = rescaled().filter(|(_, data, _)| kernel.tile(data.result).rank() == 1);
    if let Some((sum, ..)) = of_rows.clone().find(|(_, data, _)| is_whole(forward, data)) {
        return Some(Divisor::Sum(sum));
    }
    of_rows.next().map(|(sum, ..)| Divisor::Magnitude(sum)).or_else(|| rescaled().next().map(|_| Divisor::One))
}

/// Whether a rescaled sum has all exponentials of its maximum: one of these is 1, or it starts from
/// more than 0. A loop may go on with the sum of one before it.
fn is_whole(forward: &Forward<'_>, sum: &Slot) -> bool {
    let kernel = forward.kernel;
    let Form::RescaledSum { maximum, term, .. } = sum.form else { return false };
    let Slot { form: Form::RunningMaximum { scores }, init: from, .. } = &forward.slots[maximum] else { return false };
    let goes_on = || forward.slots.iter().any(|slot| slot.result == sum.init && is_whole(forward, slot));
    let starts = constant_fill(kernel, *from) == Some(f64::NEG_INFINITY)
        || constant_fill(kernel, sum.init).is_some_and(|x| x > 0.0)
        || goes_on();
    starts && scores.iter().all(|&x| sums_exponentials(kernel, term, x))
}

/// Whether a value is a sum of the exponentials of `scores`, with other numbers that are positive.
fn sums_exponentials(kernel: &Kernel, v: ValueId, scores: ValueId) -> bool {
    let sums = |v: ValueId| sums_exponentials(kernel, v, scores);
    match kernel.def(v).map(|(_, op)| op) {
        Some(&Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, x)) => {
            matches!(kernel.def(x), Some((_, &Op::Binary(BinaryOp::Sub, x, _))) if x == scores)
        }
        Some(&(Op::Reduce(ReduceOp::Sum, x) | Op::Cast(_, x) | Op::Transpose(x))) => sums(x),
        Some(&Op::Binary(BinaryOp::Add, a, b)) => (sums(a) && is_positive(kernel, b)) || (sums(b) && is_positive(kernel, a)),
        Some(&Op::Binary(BinaryOp::Mul, a, b)) => {
            let is_number = |v: ValueId| constant_fill(kernel, v).is_some_and(|x| x > 0.0);
            (sums(a) && is_number(b)) || (sums(b) && is_number(a))
        }
        _ => false,
    }
}

/// Whether a value is a sum or a product of exponentials and positive numbers.
fn is_positive(kernel: &Kernel, v: ValueId) -> bool {
    match kernel.def(v).map(|(_, op)| op) {
        Some(Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, _)) => true,
        Some(Op::Constant(_, x)) => *x > 0.0,
        Some(&(Op::Reduce(ReduceOp::Sum, x) | Op::Cast(_, x) | Op::Full { value: x, .. } | Op::Transpose(x))) => {
            is_positive(kernel, x)
        }
        Some(&Op::Binary(BinaryOp::Add | BinaryOp::Mul, a, b)) => is_positive(kernel, a) && is_positive(kernel, b),
        _ => false,
    }
}

impl Stored {
    /// Loads it.
    pub fn load(&self, copy: &mut Copy<'_, '_>) -> Result<ValueId, NotDifferentiable> {
        let tensor = copy.tensor(&self.name, self.decl.clone());
        let at = copy.place(&self.at)?;
        Ok(copy.load(tensor, at))
    }

    /// Stores a value as it, which is an output then. What has fewer dimensions is spread.
    pub fn store(&self, copy: &mut Copy<'_, '_>, value: ValueId, dims: Vec<Dim>) -> Result<(), NotDifferentiable> {
        let decl = TensorDecl { direction: Direction::Out, ..self.decl.clone() };
        let (tensor, at) = (copy.tensor(&self.name, decl), copy.place(&self.at)?);
        let value = copy.spread(value, dims);
        copy.b.append(Op::Store { tensor, at, value });
        Ok(())
    }
}

/// A tensor with a value for each row or pair, shaped as a result of the loop.
pub(super) fn row_tensor(forward: &Forward<'_>, name: &str, of: ValueId) -> Stored {
    let kernel = forward.kernel;
    let mut at: Vec<At> = Vec::new();
    let mut shape: Vec<SizeExpr> = Vec::new();
    for (dim, &v) in kernel.grid().iter().zip(&forward.program) {
        match dim {
            ProgramDim::Each(extent) => {
                at.push(At::Index(v));
                shape.push(extent.clone());
            }
            ProgramDim::Tiles(axis) => {
                at.push(At::Tile(v));
                shape.push(kernel.axes[*axis].extent.clone());
            }
        }
    }
    let dims = kernel.tile(of).dims.as_slice();
    if let [_, Dim::Range(len)] = dims {
        at.push(At::Range { start: SizeExpr::constant(0), len: len.clone() });
        shape.push(len.clone());
    }
    let elem = row_elem(forward, of);
    Stored { name: free_name(kernel, name), at, decl: TensorDecl { elem, shape, direction: Direction::In }, is_new: true }
}

/// The type of [`row_tensor`].
pub(super) fn row_elem(forward: &Forward<'_>, of: ValueId) -> Elem {
    let is_narrow = forward.kernel.tile(of).rank() > 1 && !forward.kernel.type_params.is_empty();
    if is_narrow { Elem::Generic(0) } else { Elem::F32 }
}
