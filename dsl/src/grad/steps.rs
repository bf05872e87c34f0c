//! Steps that kernels of gradients have in common: back through the bodies of loops, sums of what
//! loops do not move along, and stores.

use std::collections::{BTreeMap, HashMap};

use super::NotDifferentiable;
use super::copy::{Copy, Open, Shares};
use super::forward::{Class, Forward, WantedLoad};
use super::kept::{Left, Stored};
use super::names::grad_name;
use super::rules::{Adjoint, Reverse};
use super::totals::Share;
use crate::analysis::streaming::Form;
use crate::ir::{BinaryOp, BlockId, Dim, Direction, Kernel, Op, TensorDecl, ValueId};

/// Stores the gradients of loaded tiles, or the share of this program where several programs load
/// the same.
pub(super) fn store_gradients(reverse: &mut Reverse<'_, '_>, loads: &[WantedLoad]) -> Result<Vec<Share>, NotDifferentiable> {
    let mut shares = Vec::new();
    for load in loads {
        let (value, tensor, at) = load;
        let forward = reverse.copy.forward;
        let share = match reverse.copy.shares {
            Shares::None | Shares::OfColumns => None,
            Shares::OfRows | Shares::OfPairs => Share::of(forward, load)?,
        };
        let mut dims = reverse.dims_of_gradient(*value);
        if reverse.copy.is_turned_there(*value) {
            dims.reverse();
        }
        let gradient = gradient_in(reverse, *value, dims);
        let (name, decl, at) = match &share {
            Some(share) => (share.name.clone(), share.decl(Direction::Out), share.place()),
            None => {
                let (name, decl) = forward.gradient(*tensor);
                (name, decl, at.clone())
            }
        };
        let gradient = reverse.shown(*value, gradient)?;
        let (output, at) = (reverse.copy.tensor(&name, decl), reverse.copy.place(&at)?);
        reverse.copy.b.append(Op::Store { tensor: output, at, value: gradient });
        shares.extend(share);
    }
    Ok(shares)
}

/// The gradient of a loaded tile, with its dimensions: it may be the same along one of them.
pub(super) fn gradient_of(reverse: &mut Reverse<'_, '_>, value: ValueId) -> (ValueId, Vec<Dim>) {
    let dims = reverse.dims_of_gradient(value);
    (gradient_in(reverse, value, dims.clone()), dims)
}

/// The gradient of a loaded tile, in this order of its dimensions.
fn gradient_in(reverse: &mut Reverse<'_, '_>, value: ValueId, dims: Vec<Dim>) -> ValueId {
    let gradient = match reverse.adjoints.remove(&value) {
        Some(g) => reverse.applied(g),
        None => reverse.copy.filled(0.0, dims.clone()),
    };
    let own = reverse.copy.dims(gradient);
    if own.len() == dims.len() && own != dims {
        return reverse.copy.transposed(gradient);
    }
    reverse.copy.spread(gradient, dims)
}

/// Gives what is stored in a block its gradients, which are loaded where it is stored.
pub(super) fn give_stored(
    reverse: &mut Reverse<'_, '_>,
    block: BlockId,
    given: &mut HashMap<ValueId, Stored>,
) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    for &op in &forward.kernel.blocks[block].ops {
        if let Op::Scatter { tensor, at, value } = &forward.kernel.ops[op].op {
            if forward.given.contains(tensor) && forward.needed.contains(value) {
                let decl = TensorDecl { direction: Direction::In, ..forward.kernel.tensor(*tensor).clone() };
                let tensor = reverse.copy.tensor(&grad_name(&forward.kernel.params[*tensor].name), decl);
                let at = at.iter().map(|&v| reverse.copy.value(v)).collect::<Result<_, _>>()?;
                let g = reverse.copy.op(Op::Gather { tensor, at });
                reverse.give(*value, g.into())?;
            }
            continue;
        }
        let Op::Store { tensor, at, value } = &forward.kernel.ops[op].op else { continue };
        if forward.given.contains(tensor) && forward.needed.contains(value) {
            let decl = TensorDecl { direction: Direction::In, ..forward.kernel.tensor(*tensor).clone() };
            let name = grad_name(&forward.kernel.params[*tensor].name);
            let stored = Stored { name, at: at.clone(), decl, is_new: false };
            let g = stored.load(&mut reverse.copy)?;
            given.insert(g, stored);
            reverse.give(*value, g.into())?;
        }
    }
    Ok(())
}

/// What a step adds to a carried value, if it is a sum.
pub(super) fn terms<'f>(forward: &'f Forward<'_>, slot: usize) -> &'f [ValueId] {
    match &forward.slots[slot].form {
        Form::Sum { terms } => terms,
        Form::RescaledSum { term, .. } => std::slice::from_ref(term),
        _ => &[],
    }
}

/// Gradients of results of loops, by their slots.
pub(super) type OfResults = BTreeMap<usize, Adjoint>;

/// Goes back through the bodies of loops, from the last, in a loop that is open, and gives the
/// gradients of what that loop does not move along, each in one sum. Of the kernel of rows a pass
/// gives those of one loop, `only`.
pub(super) fn step(
    reverse: &mut Reverse<'_, '_>,
    of_results: &OfResults,
    only: Option<usize>,
    walks: &[usize],
) -> Result<Vec<Sum>, NotDifferentiable> {
    let forward = reverse.copy.forward;
    reverse.in_loop = true;
    for &walk in walks.iter().rev() {
        for (&slot, &g) in of_results.iter().filter(|(slot, _)| forward.slots[**slot].walk == walk) {
            for &term in terms(forward, slot).iter().filter(|term| forward.needed.contains(term)) {
                let sum = match reverse.adjoints.remove(&term) {
                    Some(other) => reverse.sum_of(term, other, g),
                    None => g,
                };
                reverse.adjoints.insert(term, sum);
            }
        }
        let body = forward.walks[walk].body;
        give_stored(reverse, body, &mut HashMap::new())?;
        for &op in forward.kernel.blocks[body].ops.iter().rev() {
            reverse.through(op)?;
        }
        if only.is_some_and(|only| only != walk) {
            reverse.collected.clear();
        }
    }
    // What the kernel makes for its whole program, and differs along what is walked here.
    for &op in forward.kernel.blocks[forward.kernel.body].ops.iter().rev() {
        let moves = |v: &ValueId| forward.class(*v) == Class::Program && reverse.copy.moves(*v);
        if forward.walk_of(op).is_none() && forward.kernel.ops[op].results.first().is_some_and(moves) {
            reverse.through(op)?;
        }
    }
    reverse.in_loop = false;
    let mut sums: Vec<(ValueId, Adjoint)> = Vec::new();
    for (to, g) in std::mem::take(&mut reverse.collected) {
        match sums.iter().position(|(other, _)| *other == to) {
            Some(at) => sums[at].1 = reverse.sum(sums[at].1, g),
            None => sums.push((to, g)),
        }
    }
    Ok(sums.into_iter().map(|(to, g)| Sum::of(&reverse.copy, to, g)).collect())
}

/// A gradient that a loop sums up.
pub(super) struct Sum {
    /// What it is the gradient of.
    to: ValueId,
    /// What a step adds.
    g: Adjoint,
    /// Whether the whole sum is turned: a tile whose rows are columns elsewhere is added up as the
    /// product makes it.
    is_turned: bool,
}

impl Sum {
    fn of(copy: &Copy<'_, '_>, to: ValueId, g: Adjoint) -> Self {
        let def = |v: ValueId| copy.b.kernel.def(v).map(|(_, op)| op);
        match def(g.value) {
            Some(&Op::Transpose(value)) if matches!(def(value), Some(Op::Dot { .. })) => {
                Self { to, g: Adjoint { value, ..g }, is_turned: true }
            }
            _ => Self { to, g, is_turned: false },
        }
    }
}

/// Sums the gradients of what is the same in all loops that `open` opens, and takes them back
/// through what the forward kernel makes of its inputs. `of_results` loads the gradients of results
/// in these loops; `in_step` does more behind the gradients of a step.
pub(super) fn sum_up(
    reverse: &mut Reverse<'_, '_>,
    open: impl Fn(&mut Copy<'_, '_>, &[ValueId]) -> Result<Open, NotDifferentiable>,
    of_results: impl Fn(&mut Copy<'_, '_>) -> Result<OfResults, NotDifferentiable>,
    in_step: impl FnOnce(&mut Reverse<'_, '_>) -> Result<(), NotDifferentiable>,
) -> Result<(), NotDifferentiable> {
    let forward = reverse.copy.forward;
    let walks: Vec<usize> = (0..forward.walks.len()).collect();
    // Which gradients there are is known when the step was taken once.
    let mut tried = reverse.clone();
    open(&mut tried.copy, &[])?;
    let given = of_results(&mut tried.copy)?;
    let sums = step(&mut tried, &given, None, &walks)?;
    let init = zeros(reverse, &sums);
    let loops = open(&mut reverse.copy, &init)?;
    let given = of_results(&mut reverse.copy)?;
    let sums = step(reverse, &given, None, &walks)?;
    in_step(reverse)?;
    let (_, carried) = loops.last().expect("an axis is walked");
    let next = added(reverse, carried, &sums);
    let results = reverse.copy.close(loops, &init, next);
    hand_over(reverse, &sums, results)?;
    for op in forward.in_order().into_iter().rev() {
        reverse.through(op)?;
    }
    Ok(())
}

/// Loads what an earlier kernel has left.
pub(super) fn load_left(copy: &mut Copy<'_, '_>, left: &Left) -> Result<OfResults, NotDifferentiable> {
    left.iter().map(|(&slot, stored)| Ok((slot, stored.load(copy)?.into()))).collect()
}

/// The kernel, if it stores anything.
pub(super) fn if_it_stores(kernel: Kernel) -> Option<Kernel> {
    let stores = kernel.walk().into_iter().any(|(_, op)| kernel.ops[op].op.written().is_some());
    stores.then_some(kernel)
}

/// Zeros to start sums of gradients from.
pub(super) fn zeros(reverse: &mut Reverse<'_, '_>, sums: &[Sum]) -> Vec<ValueId> {
    let forward = reverse.copy.forward;
    let mut init = Vec::new();
    for &Sum { to, is_turned, .. } in sums {
        let mut dims = reverse.dims_of_gradient(to);
        if is_turned {
            dims.reverse();
        }
        let zeros = reverse.copy.filled(0.0, dims);
        let of = match &forward.kernel.def(to) {
            Some((_, Op::Load { tensor, .. })) => forward.kernel.params[*tensor].name.clone(),
            _ => forward.name(to),
        };
        reverse.copy.b.kernel.values[zeros].name = Some(format!("d{}", of.trim_start_matches('%')));
        init.push(zeros);
    }
    init
}

/// What a step yields: what is carried, and the gradients of the step.
pub(super) fn added(reverse: &mut Reverse<'_, '_>, carried: &[ValueId], sums: &[Sum]) -> Vec<ValueId> {
    carried.iter().zip(sums).map(|(&carried, sum)| accumulated(&mut reverse.copy, carried, sum.g.value)).collect()
}

/// A sum and what is added to it. Of a sum of products each is added by itself, so that none needs
/// registers beside those of the sum.
fn accumulated(copy: &mut Copy<'_, '_>, sum: ValueId, term: ValueId) -> ValueId {
    let is_product = |v: ValueId| matches!(copy.b.kernel.def(v), Some((_, Op::Dot { acc: None, .. })));
    match copy.b.kernel.def(term) {
        Some((_, &Op::Binary(BinaryOp::Add, a, b))) if is_product(b) => {
            let sum = accumulated(copy, sum, a);
            copy.op(Op::Binary(BinaryOp::Add, sum, b))
        }
        _ => copy.op(Op::Binary(BinaryOp::Add, sum, term)),
    }
}

/// Gives the results of a loop to what they are the gradients of.
pub(super) fn hand_over(reverse: &mut Reverse<'_, '_>, sums: &[Sum], results: Vec<ValueId>) -> Result<(), NotDifferentiable> {
    for (&Sum { to, g, is_turned }, total) in sums.iter().zip(results) {
        let value = if is_turned { reverse.copy.transposed(total) } else { total };
        reverse.give(to, Adjoint { value, ..g })?;
    }
    Ok(())
}

/// The finished kernel, which has a program for each tile of `tiles`, and gives `otherwise` where
/// it gives no gradient of an input.
pub(super) fn finish(mut reverse: Reverse<'_, '_>, tiles: &str, otherwise: &str) -> Kernel {
    let source = reverse.copy.forward.kernel;
    let wanted: Vec<String> = reverse.copy.forward.wanted.iter().map(|&p| format!("`{}`", source.params[p].name)).collect();
    let what = match wanted.as_slice() {
        [] => otherwise.to_owned(),
        [one] => format!("The gradient of {one}, a program for each tile of {tiles}"),
        several => format!("Gradients of {}, a program for each tile of {tiles}", several.join(", ")),
    };
    reverse.copy.b.kernel.doc = format!("{what}: of `{}`.", source.name);
    reverse.copy.finish(&|name| {
        source.param_named(name).map_or(source.params.len(), |param| {
            source.params.keys().position(|other| other == param).expect("a parameter of the kernel")
        })
    })
}
