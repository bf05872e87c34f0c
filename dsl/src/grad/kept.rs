//! What the forward kernel stores for its gradient.

use std::collections::BTreeMap;

use super::NotDifferentiable;
use super::copy::Copy;
use super::forward::{Forward, Slot};
use super::names::free_name;
use crate::analysis::streaming::{Base, Form};
use crate::ir::{
    At, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, Param, ParamId, ParamKind, ProgramDim, SizeExpr, TensorDecl,
    UnaryOp, ValueId,
};

/// What one kernel of a gradient leaves to later ones: gradients of results of loops, by their
/// slots.
pub(super) type Left = BTreeMap<usize, Stored>;

/// What the forward kernel stores for its gradient.
pub(super) struct Kept {
    /// By the slot of a maximum: `m + ln(l)`.
    references: BTreeMap<usize, Stored>,
    /// By the slot of a maximum, the slot of `l`.
    sums: BTreeMap<usize, usize>,
    /// By the slot of a result of the loop: its value where the reference of its maximum is taken
    /// for the maximum.
    values: BTreeMap<usize, Stored>,
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
        let mut made = Self { references: BTreeMap::new(), sums: BTreeMap::new(), values: BTreeMap::new() };
        let stored = |param: ParamId, at: Vec<At>| {
            let decl = TensorDecl { direction: Direction::In, ..kernel.tensor(param).clone() };
            Stored { name: kernel.params[param].name.clone(), at, decl, is_new: false }
        };
        let rescaled = |maximum: usize| {
            let is = move |form: &Form| matches!(form, Form::RescaledSum { maximum: m, .. } if *m == maximum);
            forward.slots.iter().enumerate().filter(move |(_, slot)| is(&slot.form))
        };
        for (slot, Slot { form, result, .. }) in forward.slots.iter().enumerate() {
            let name = forward.name_of_slot(slot);
            match form {
                Form::RunningMaximum { .. } => {
                    let rank_1 = |(_, slot): &(usize, &Slot)| kernel.tile(slot.result).rank() == 1;
                    let sum = || rescaled(slot).find(rank_1).map(|(slot, _)| slot);
                    if let Some((param, at, sum)) = forward.stored_reference(slot) {
                        made.references.insert(slot, stored(param, at));
                        made.sums.insert(slot, sum);
                    } else if let Some(sum) = sum() {
                        made.references.insert(slot, row_tensor(forward, &format!("{name}_reference"), *result));
                        made.sums.insert(slot, sum);
                    }
                }
                Form::Sum { .. } => {
                    made.values.insert(slot, row_tensor(forward, &format!("{name}_sum"), *result));
                }
                _ => {}
            }
        }
        for (slot, Slot { form, result, .. }) in forward.slots.iter().enumerate() {
            let Form::RescaledSum { maximum, .. } = form else { continue };
            let Some(&sum) = made.sums.get(maximum).filter(|sum| **sum != slot) else { continue };
            let name = forward.name_of_slot(slot);
            let kept = match forward.stored_quotient(slot, sum) {
                Some((param, at)) => stored(param, at),
                None => row_tensor(forward, &format!("{name}_mean"), *result),
            };
            made.values.insert(slot, kept);
        }
        made
    }

    /// Presets what the loop gives and what its sums are rescaled by. Loads what is stored of rows.
    pub fn preset(&self, copy: &mut Copy<'_, '_>) -> Result<(), NotDifferentiable> {
        let forward = copy.forward;
        for (&maximum, stored) in &self.references {
            let reference = stored.load(copy)?;
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
        for &sum in self.sums.values() {
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
        for (&maximum, stored) in &self.references {
            let sum = self.sums[&maximum];
            let Form::RescaledSum { base, .. } = forward.slots[sum].form else { unreachable!("a sum that is rescaled") };
            store(stored, &|b| {
                let op = if base == Base::E { UnaryOp::Ln } else { UnaryOp::Log2 };
                let logarithm = b.emit(Op::Unary(op, result(sum)));
                b.emit(Op::Binary(BinaryOp::Add, result(maximum), logarithm))
            });
        }
        for (&slot, stored) in &self.values {
            store(stored, &|b| match forward.slots[slot].form {
                Form::RescaledSum { maximum, .. } => {
                    b.emit(Op::Binary(BinaryOp::DivOrZero, result(slot), result(self.sums[&maximum])))
                }
                _ => result(slot),
            });
        }
        b.finish()
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
