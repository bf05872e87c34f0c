//! In which ways a kernel uses its inputs.

use std::collections::HashMap;

use super::forward::{Class, Forward, Shape, are_apart};
use super::names::grad_name;
use super::uses::{Computed, Part, Uses, in_place};
use super::{NotDifferentiable, Request};
use crate::ir::edit::insert_before;
use crate::ir::{At, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, ValueDef, ValueId};

/// A load or a gather.
struct Use {
    op: OpId,
    at: Vec<At>,
    /// Whether what it loads for the whole program changes columns, and something else too.
    is_mixed: bool,
}

/// Loads of one use, or all gathers of kernels of rows, or of columns.
struct Way {
    loads: Vec<Use>,
    computed: Vec<Computed>,
    is_gathered: bool,
    /// Whether its gradient comes in shares.
    has_shares: bool,
    /// Whether what it loads for the whole program changes columns, or what it gathers is of columns.
    for_columns: bool,
}

/// Takes the uses of wanted inputs apart.
pub(super) fn uses_apart(kernel: &Kernel, request: &Request) -> Result<(Kernel, Uses), NotDifferentiable> {
    let forward = Forward::of(kernel, request, &Uses::default())?;
    let (mut made, mut uses) = (kernel.clone(), Uses::default());
    let of_tensor = |&tensor: &ParamId| (tensor, ways(&forward, tensor, request.form.has_shares()));
    let all: Vec<(ParamId, Vec<Way>)> = forward.wanted.iter().map(of_tensor).collect();
    let is_copied = |way: &Way, own: &Use| way.for_columns && own.is_mixed;
    let of_way = |way: &Way| way.loads.iter().filter(|own| is_copied(way, own)).map(|own| own.op).collect::<Vec<_>>();
    let copied: Vec<OpId> = all.iter().flat_map(|(_, ways)| ways).flat_map(of_way).collect();
    let copies = once_more(&mut made, &forward, &copied);
    for (tensor, ways) in all {
        if ways.len() < 2 && ways.iter().all(|way| way.computed.is_empty()) {
            continue;
        }
        let several = ways.len() > 1;
        for (number, way) in ways.into_iter().enumerate() {
            let param = if number == 0 { tensor } else { made.params.push(kernel.params[tensor].clone()) };
            for own in &way.loads {
                let op = if is_copied(&way, own) { copies[&own.op] } else { own.op };
                *made.ops[op].op.param_mut().expect("it loads a tensor") = param;
            }
            let own = &kernel.params[tensor].name;
            let name = if several { format!("{own}_{}", number + 1) } else { format!("{own}_parts") };
            uses.parts.insert(param, Part { name: free_gradient(kernel, &name), computed: way.computed });
            uses.of_input.entry(tensor).or_default().push(param);
        }
    }
    Ok((made, uses))
}

/// Whether an index is computed of dimensions of the grid and sizes alone.
fn is_computed(forward: &Forward<'_>, index: ValueId) -> bool {
    forward.program.contains(&index)
        || match forward.kernel.def(index) {
            Some((_, Op::IndexConst(_) | Op::SizeOf(_))) => true,
            Some((_, op @ Op::Index(..))) => op.operands().into_iter().all(|v| is_computed(forward, v)),
            _ => false,
        }
}

/// The computed indices of a load that kernels of rows give the gradient of.
fn computed(forward: &Forward<'_>, op: OpId, tensor: ParamId, at: &[At]) -> Vec<Computed> {
    // Kernels of columns walk the dimensions of the grid that columns lack.
    if forward.shape == Shape::Rows && forward.class(forward.kernel.ops[op].results[0]) == Class::Column {
        return Vec::new();
    }
    let is_own = |index: ValueId| forward.program.contains(&index);
    let of_grid = |index: ValueId| !is_own(index) && forward.depends_on_program(index) && is_computed(forward, index);
    let found = replaced(forward, at, &|_, index| of_grid(index));
    if !lacks(forward, op, &in_place(&found, at.to_vec(), |(v, _)| At::Index(*v))) {
        return found;
    }
    // A kernel of totals gives one dimension to an index, of its own extent.
    let (kernel, shape) = (forward.kernel, &forward.kernel.tensor(tensor).shape);
    let is_other = |dim: usize, index: ValueId| {
        let again = at.iter().filter(|entry| **entry == At::Index(index)).count() > 1;
        let grid = kernel.grid().iter().zip(&forward.program).find(|(_, v)| **v == index);
        again || !matches!(grid, Some((ProgramDim::Each(extent), _)) if *extent == shape[dim])
    };
    replaced(forward, at, &|dim, index| of_grid(index) || is_own(index) && is_other(dim, index))
}

/// Dimensions whose indices are replaced by those of the grid that they depend on.
fn replaced(forward: &Forward<'_>, at: &[At], is_replaced: &dyn Fn(usize, ValueId) -> bool) -> Vec<Computed> {
    let indices = at.iter().enumerate().filter_map(|(dim, entry)| if let At::Index(v) = entry { Some((dim, *v)) } else { None });
    let (changed, kept): (Vec<_>, Vec<_>) = indices.partition(|&(dim, index)| is_replaced(dim, index));
    let mut taken: Vec<ValueId> = kept.into_iter().map(|(_, v)| v).collect();
    let mut found = Vec::new();
    for (dim, index) in changed {
        let grid = forward.kernel.grid().iter().zip(&forward.program);
        let by: Vec<(ValueId, SizeExpr)> = grid
            .filter_map(|(dim, &v)| match dim {
                ProgramDim::Each(extent) if !taken.contains(&v) && depends_on(forward, index, v) => Some((v, extent.clone())),
                _ => None,
            })
            .collect();
        taken.extend(by.iter().map(|(v, _)| *v));
        found.push(Computed { dim, index, by });
    }
    found
}

fn depends_on(forward: &Forward<'_>, index: ValueId, on: ValueId) -> bool {
    index == on || forward.kernel.def(index).is_some_and(|(_, op)| op.operands().into_iter().any(|v| depends_on(forward, v, on)))
}

/// The ways in which a kernel uses an input. Columns have programs for their own indices, unless
/// these have shares.
fn ways(forward: &Forward<'_>, tensor: ParamId, has_shares: bool) -> Vec<Way> {
    let mut ways = Vec::new();
    for op in forward.in_order() {
        let (is_gathered, at) = match &forward.kernel.ops[op].op {
            Op::Gather { tensor: t, .. } if *t == tensor => (true, Vec::new()),
            Op::Load { tensor: t, at } if *t == tensor => (false, at.clone()),
            _ => continue,
        };
        let value = forward.canonical(forward.kernel.ops[op].results[0]);
        let [of_columns, of_others] = match (is_gathered, forward.is_for_columns(value)) {
            (true, _) => [forward.class(value) == Class::Column, forward.class(value) != Class::Column],
            (false, true) => forward.users_by_side(value).map(|users| !users.is_empty()),
            (false, false) => [false, true],
        };
        let is_mixed = of_columns && of_others;
        for for_columns in [of_others.then_some(false), of_columns.then_some(true)].into_iter().flatten() {
            let by_columns = for_columns && !has_shares;
            let computed = if is_gathered || by_columns { Vec::new() } else { computed(forward, op, tensor, &at) };
            let place = in_place(&computed, at.clone(), |(v, _)| At::Index(*v));
            let loads = vec![Use { op, at: at.clone(), is_mixed }];
            let has_shares = !is_gathered && lacks(forward, op, &place);
            join(forward, &mut ways, Way { loads, computed, is_gathered, has_shares, for_columns });
        }
    }
    ways
}

/// Adds the one load of a way to those before.
fn join(forward: &Forward<'_>, ways: &mut Vec<Way>, new: Way) {
    let canonical = |own: &Use| forward.canonical(forward.kernel.ops[own.op].results[0]);
    let at = &new.loads[0].at;
    let fits = |way: &&mut Way| {
        if way.is_gathered || new.is_gathered || way.for_columns != new.for_columns {
            return way.is_gathered == new.is_gathered && way.for_columns == new.for_columns;
        }
        let is_apart = || way.loads.iter().all(|other| are_apart(forward.kernel, at, &other.at));
        let is_alike = || way.loads.iter().all(|other| alike(forward.kernel, at, &other.at));
        way.loads.iter().any(|own| canonical(own) == canonical(&new.loads[0]))
            || way.computed == new.computed && is_apart() && (!(way.has_shares || new.has_shares) || is_alike())
    };
    match ways.iter_mut().find(fits) {
        Some(way) => way.loads.extend(new.loads),
        None => ways.push(new),
    }
}

/// Makes loads once more, and what the kernel makes of them for the whole program, for the columns
/// that these change; gives the load that stands for each there. All at once: a number may be made of
/// several.
fn once_more(kernel: &mut Kernel, forward: &Forward<'_>, loads: &[OpId]) -> HashMap<OpId, OpId> {
    let again = |kernel: &mut Kernel, op: OpId, made: &HashMap<ValueId, ValueId>| {
        let data = forward.kernel.ops[op].op.map_operands(|v| made.get(&v).copied().unwrap_or(v));
        let (span, value) = (kernel.ops[op].span, forward.kernel.ops[op].results[0]);
        let copy = insert_before(kernel, op, data, span);
        kernel.values[copy].name.clone_from(&forward.kernel.values[value].name);
        copy
    };
    let mut made = HashMap::new();
    for op in forward.in_order() {
        let data = &forward.kernel.ops[op];
        let class = data.results.first().map(|&result| forward.class(result));
        let is_load = loads.contains(&op);
        if !is_load && !data.op.operands().iter().any(|v| made.contains_key(v)) {
            continue;
        }
        if is_load || class == Some(Class::Program) && forward.walk_of(op).is_none() {
            let copy = again(kernel, op, &made);
            made.insert(data.results[0], copy);
        } else if class == Some(Class::Column) {
            kernel.ops[op].op = kernel.ops[op].op.map_operands(|v| made.get(&v).copied().unwrap_or(v));
        }
    }
    let copy_of = |&load: &OpId| match kernel.values[made[&forward.kernel.ops[load].results[0]]].def {
        ValueDef::Result(op, _) => (load, op),
        ValueDef::BlockParam(..) => unreachable!("a load"),
    };
    loads.iter().map(copy_of).collect()
}

/// Whether two places of a tensor differ in ranges and numbers alone.
fn alike(kernel: &Kernel, a: &[At], b: &[At]) -> bool {
    let is_number = |entry: &At| matches!(entry, At::Index(v) if matches!(kernel.def(*v), Some((_, Op::IndexConst(_)))));
    a.iter().zip(b).all(|(a, b)| match (a, b) {
        (At::Range { .. }, At::Range { .. }) => true,
        (a, b) => a == b || is_number(a) && is_number(b),
    })
}

/// Whether several programs load what a place has, so that its gradient comes in shares: not where
/// kernels of columns give it, or of an operand.
fn lacks(forward: &Forward<'_>, op: OpId, at: &[At]) -> bool {
    let has = |v: ValueId| at.iter().any(|entry| matches!(entry, At::Index(w) | At::Tile(w) if *w == v));
    let of_programs = match forward.shape {
        Shape::Rows => forward.class(forward.kernel.ops[op].results[0]) != Class::Column,
        Shape::Product => !forward.is_in_loop(op),
    };
    of_programs && !forward.program.iter().all(|&v| has(v))
}

/// A name for the gradient of a use that neither a parameter nor its gradient has.
fn free_gradient(kernel: &Kernel, of: &str) -> String {
    let mut name = grad_name(of);
    while kernel.params.values().any(|param| param.name == name || grad_name(&param.name) == name) {
        name.push('_');
    }
    name
}
