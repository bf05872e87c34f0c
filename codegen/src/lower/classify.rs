//! What each value becomes. Decided once, before any statement is made.

use std::collections::{HashMap, HashSet};

use flashtile_dsl::ir::{
    AxisId, BinaryOp, BlockId, Dim, Elem, Fill, Kernel, Op, OpId, ReduceOp, SizeExpr, Type, ValueDef, ValueId,
};

use super::approximate::Approximation;
use super::computed::{ComputedOperands, untransposed};
use super::copied::copied_loads;
use super::padding;
use super::turned::Turned;
use super::uses::{slot, users_and_order};
use crate::error::Error;
use crate::rewrite::{NoAxis, rows_axis};

/// Decisions about values and axes.
pub(super) struct Classes {
    /// Axes and ranges that run over rows of fragments.
    rows: HashSet<DimKey>,
    /// Axes whose positions some op asks for.
    pub positions: HashSet<AxisId>,
    /// Name of the variable with the thread's first position along an axis, once it is entered.
    pub first_position: HashMap<AxisId, String>,
    /// Loads that go to shared memory.
    pub shared_loads: HashSet<OpId>,
    /// Operands of products that are computed in shared memory.
    pub computed: ComputedOperands,
    /// Row sums kept per lane until the end of their loop.
    pub partial: HashSet<ValueId>,
    /// Loop results whose lanes' parts are to be summed after the loop.
    pub completed: HashSet<ValueId>,
    /// Gathers of matrices that are read two rows at once.
    pub turned: HashMap<OpId, Turned>,
    /// Ops that may use instructions that err by about one rounding to 16 bits.
    pub approximate: HashMap<OpId, Approximation>,
    /// Products of a computed tile, transposed, that are added to a tensor: their rows are columns of
    /// the tile, so that they lie across the warps otherwise than all else.
    pub across: HashSet<ValueId>,
    /// Lengths of ranges that are columns of products.
    pub of_products: HashSet<SizeExpr>,
    /// Values whose padding beyond the rows of the program must be 0, since such products sum over
    /// rows.
    pub row_guards: HashSet<ValueId>,
    /// Values evaluated where they are used.
    pub inline: HashSet<ValueId>,
    /// Loads of vectors of which only the conditions of masks are made: tiles that no mask cuts
    /// need none. (Where a mask loads a matrix, it cuts every tile.)
    pub for_masks: HashSet<OpId>,
    /// Values whose padding must be overwritten.
    pub guards: HashMap<ValueId, Fill>,
    /// Ops that use a value, in order.
    pub users: HashMap<ValueId, Vec<OpId>>,
    /// Position of every op in program order.
    pub order: HashMap<OpId, usize>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum DimKey {
    Axis(AxisId),
    Range(SizeExpr),
}

fn key(dim: &Dim) -> DimKey {
    match dim {
        Dim::Axis(a) => DimKey::Axis(*a),
        Dim::Range(len) => DimKey::Range(len.clone()),
    }
}

impl Classes {
    /// The classes of a kernel's values; left operands may be computed in shared memory only if
    /// `left`. `is_padded` says of a range whether its columns are padded.
    pub fn new(
        kernel: &Kernel,
        assumed: &[String],
        left: bool,
        turned: HashMap<OpId, Turned>,
        is_padded: &dyn Fn(&Dim) -> bool,
    ) -> Result<Self, Error> {
        let (users, order) = users_and_order(kernel);
        let computed = ComputedOperands::of(kernel, left);
        let shared_loads = shared_loads(kernel, &users, &computed)?;
        let across = across(kernel, &users, &computed);
        let elsewhere = computed.values.union(&across.iter().map(|(product, _)| *product).collect()).copied().collect();
        let rows = row_dims(kernel, &shared_loads, &elsewhere)?;
        let row_guards = across.iter().map(|(_, tile)| padding::overwritten(kernel, *tile)).collect();
        let mut classes = Self {
            rows,
            positions: HashSet::new(),
            first_position: HashMap::new(),
            shared_loads,
            computed,
            partial: HashSet::new(),
            completed: HashSet::new(),
            turned,
            approximate: HashMap::new(),
            across: across.into_iter().map(|(product, _)| product).collect(),
            row_guards,
            of_products: of_products(kernel),
            inline: HashSet::new(),
            for_masks: HashSet::new(),
            guards: HashMap::new(),
            users,
            order,
        };
        classes.turned.retain(|op, _| !classes.computed.values.contains(&kernel.ops[*op].results[0]));
        classes.guards = padding::guards(kernel, assumed, is_padded)?;
        classes.guards.retain(|v, _| !classes.computed.values.contains(v));
        classes.find_partial_sums(kernel);
        classes.find_inline(kernel);
        classes.find_positions(kernel);
        classes.find_loads_for_masks(kernel);
        Ok(classes)
    }

    /// Whether a vector of this dimension is a row vector.
    pub fn is_row(&self, dim: &Dim) -> bool {
        self.rows.contains(&key(dim))
    }

    fn users_of(&self, value: ValueId) -> &[OpId] {
        self.users.get(&value).map_or(&[], Vec::as_slice)
    }

    /// Row sums are linear: `l * alpha + rowsum(p)` may be kept per lane, and summed over the lanes after the loop.
    fn find_partial_sums(&mut self, kernel: &Kernel) {
        let mut candidates: HashSet<ValueId> =
            defined(kernel).filter(|&v| matches!(kernel.ty(v), Type::Tile(t) if t.rank() == 1) && is_linear(kernel, v)).collect();
        loop {
            let keep: HashSet<ValueId> =
                candidates.iter().copied().filter(|&v| self.may_be_partial(kernel, v, &candidates)).collect();
            if keep.len() == candidates.len() {
                break;
            }
            candidates = keep;
        }
        // A loop result is complete: the sum over lanes follows the loop.
        for &v in &candidates {
            if is_loop_result(kernel, v) {
                self.completed.insert(v);
            } else {
                self.partial.insert(v);
            }
        }
    }

    fn may_be_partial(&self, kernel: &Kernel, v: ValueId, candidates: &HashSet<ValueId>) -> bool {
        // What a loop gives is complete for what reads it.
        let partial = |v: &ValueId| candidates.contains(v) && !is_loop_result(kernel, *v);
        let uses_keep_it_so = |v: ValueId| {
            self.users_of(v).iter().all(|&op| match &kernel.ops[op].op {
                Op::Binary(BinaryOp::Add, a, b) => partial(a) && partial(b) && candidates.contains(&kernel.ops[op].results[0]),
                Op::Binary(BinaryOp::Mul, a, b) => (partial(a) != partial(b)) && candidates.contains(&kernel.ops[op].results[0]),
                Op::Yield(_) | Op::For { .. } => true, // the slot is checked below
                _ => false,
            })
        };
        match kernel.values[v].def {
            ValueDef::Result(op, index) => match &kernel.ops[op].op {
                Op::Reduce(ReduceOp::Sum, _) => uses_keep_it_so(v) && self.slots_partial(kernel, v, candidates),
                Op::Binary(BinaryOp::Add, a, b) => {
                    partial(a) && partial(b) && uses_keep_it_so(v) && self.slots_partial(kernel, v, candidates)
                }
                Op::Binary(BinaryOp::Mul, a, b) => {
                    (partial(a) != partial(b)) && uses_keep_it_so(v) && self.slots_partial(kernel, v, candidates)
                }
                Op::For { body, .. } => candidates.contains(&kernel.blocks[*body].params[index as usize + 1]),
                _ => false,
            },
            ValueDef::BlockParam(body, index) if index > 0 => {
                let Some((init, next, result)) = slot(kernel, body, index as usize - 1) else { return false };
                // The initial value is complete; each of the lanes starts from its share (`Lowering::enter_carried`).
                !candidates.contains(&init) && partial(&next) && candidates.contains(&result) && uses_keep_it_so(v)
            }
            ValueDef::BlockParam(..) => false,
        }
    }

    /// Where `v` is yielded or is a loop's initial value, the slot's parameter must be partial too.
    fn slots_partial(&self, kernel: &Kernel, v: ValueId, candidates: &HashSet<ValueId>) -> bool {
        self.users_of(v).iter().all(|&op| match &kernel.ops[op].op {
            Op::Yield(values) => {
                let Some(body) = kernel.walk().into_iter().find(|&(_, o)| o == op).map(|(b, _)| b) else { return false };
                values.iter().enumerate().all(|(i, &y)| y != v || candidates.contains(&kernel.blocks[body].params[i + 1]))
            }
            Op::For { .. } => false,
            _ => true,
        })
    }

    /// Predicates, integers and what is used once by an elementwise op of the same dimensions are
    /// not stored, but for what would be written out in many places at length.
    fn find_inline(&mut self, kernel: &Kernel) {
        // Of predicates and integers that are not stored: how many ops their expressions have.
        let mut terms: HashMap<ValueId, usize> = HashMap::new();
        for (block, op) in kernel.walk() {
            let Some(&result) = kernel.ops[op].results.first() else { continue };
            let Type::Tile(ty) = kernel.ty(result) else { continue };
            let by_itself = &kernel.ops[op].op;
            let elementwise = by_itself.is_arithmetic() || matches!(by_itself, Op::FromIndex(_) | Op::Pos(_) | Op::Gather { .. });
            let cheap = matches!(kernel.ops[op].op, Op::Constant(..) | Op::Scalar(_) | Op::Full { .. });
            if cheap {
                self.inline.insert(result);
                continue;
            }
            if !elementwise
                || self.turned.contains_key(&op)
                || self.guards.contains_key(&result)
                || self.row_guards.contains(&result)
            {
                continue;
            }
            if matches!(ty.elem, Elem::Bool | Elem::I32) {
                let of_operands = kernel.ops[op].op.operands().into_iter().map(|v| terms.get(&v).copied().unwrap_or(1));
                let terms_of = 1 + of_operands.sum::<usize>();
                if terms_of <= MOST_TERMS || self.users_of(result).len() < 2 {
                    self.inline.insert(result);
                    terms.insert(result, terms_of);
                }
                continue;
            }
            if let [user] = self.users_of(result) {
                let consumer = &kernel.ops[*user];
                let same_block = kernel.blocks[block].ops.contains(user);
                let reads = consumer.op.operands().iter().filter(|&&o| o == result).count();
                let fits = match &consumer.op {
                    op if op.is_arithmetic() => {
                        matches!(kernel.ty(consumer.results[0]), Type::Tile(t) if t.dims == ty.dims)
                    }
                    Op::Store { .. } => ty.rank() <= 1,
                    _ => false,
                };
                if same_block && reads == 1 && fits {
                    self.inline.insert(result);
                }
            }
        }
    }

    fn find_loads_for_masks(&mut self, kernel: &Kernel) {
        for (block, op) in kernel.walk() {
            let Op::Load { tensor, .. } = kernel.ops[op].op else { continue };
            let result = kernel.ops[op].results[0];
            let in_loop = block != kernel.body && kernel.tile(result).rank() == 1 && !self.shared_loads.contains(&op);
            if in_loop && !kernel.tensor(tensor).direction.is_written() && self.is_for_masks(kernel, block, result) {
                self.for_masks.insert(op);
            }
        }
    }

    /// Whether masks of the same block take all that is made of a value, as their conditions.
    fn is_for_masks(&self, kernel: &Kernel, block: BlockId, value: ValueId) -> bool {
        let users = self.users_of(value);
        !users.is_empty()
            && users.iter().all(|&user| match kernel.ops[user].op {
                _ if !kernel.blocks[block].ops.contains(&user) => false,
                Op::Mask { x, keep, .. } => keep == value && x != value,
                _ => {
                    let result = kernel.ops[user].results.first().copied();
                    result.is_some_and(|r| self.inline.contains(&r) && self.is_for_masks(kernel, block, r))
                }
            })
    }

    fn find_positions(&mut self, kernel: &Kernel) {
        for (_, op) in kernel.walk() {
            let result = kernel.ops[op].results.first();
            if let (Op::Pos(_) | Op::BlockExtreme { .. } | Op::Nonzero { .. }, Some(&result)) = (&kernel.ops[op].op, result) {
                self.positions.extend(axes(kernel, result));
            }
        }
        for &value in self.guards.keys().chain(&self.row_guards) {
            self.positions.extend(axes(kernel, value));
        }
        for (_, op) in kernel.walk() {
            if let Op::Mask { x, .. } = kernel.ops[op].op {
                self.positions.extend(axes(kernel, x));
            }
        }
    }
}

/// Ops of an expression that is written out for each of several uses. Arithmetic that mixes integers
/// doubles it from step to step.
const MOST_TERMS: usize = 64;

/// Lengths of ranges that are columns of products.
fn of_products(kernel: &Kernel) -> HashSet<SizeExpr> {
    let columns = kernel.walk().into_iter().filter_map(|(_, op)| match kernel.ops[op].op {
        Op::Dot { .. } => kernel.tile(kernel.ops[op].results[0]).dims.last(),
        _ => None,
    });
    let ranges = columns.filter_map(|dim| if let Dim::Range(len) = dim { Some(len.clone()) } else { None });
    ranges.collect()
}

/// Products of a computed tile, transposed, that are added to a tensor and used for nothing else,
/// each with the tile.
fn across(kernel: &Kernel, users: &HashMap<ValueId, Vec<OpId>>, computed: &ComputedOperands) -> Vec<(ValueId, ValueId)> {
    let adds = |op: &OpId| match kernel.ops[*op].op {
        Op::Store { tensor, .. } => kernel.params[tensor].kind.is_sum(),
        _ => false,
    };
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        let Op::Dot { a, acc: None, .. } = kernel.ops[op].op else { continue };
        let (tile, transposed) = untransposed(kernel, a);
        let made = !computed.values.contains(&tile) && !matches!(kernel.def(tile), None | Some((_, Op::Load { .. })));
        let result = kernel.ops[op].results[0];
        if transposed && made && users.get(&result).is_some_and(|users| users.iter().all(adds)) {
            found.push((result, tile));
        }
    }
    found
}

fn axes(kernel: &Kernel, value: ValueId) -> Vec<AxisId> {
    kernel.tile(value).dims.iter().filter_map(|d| if let Dim::Axis(a) = d { Some(*a) } else { None }).collect()
}

/// Whether the value's definition can keep a row sum in parts: the sum itself, what is linear in it, and what a loop carries.
fn is_linear(kernel: &Kernel, v: ValueId) -> bool {
    match kernel.def(v) {
        Some((_, op)) => {
            matches!(op, Op::Reduce(ReduceOp::Sum, _) | Op::Binary(BinaryOp::Add | BinaryOp::Mul, ..) | Op::For { .. })
        }
        None => true,
    }
}

/// Values that some op of the kernel defines. The arena holds others too: those of ops that rewrites removed.
fn defined(kernel: &Kernel) -> impl Iterator<Item = ValueId> + '_ {
    kernel.walk().into_iter().flat_map(|(_, id)| {
        let data = &kernel.ops[id];
        let params = match data.op {
            Op::For { body, .. } => &kernel.blocks[body].params[..],
            _ => &[],
        };
        data.results.iter().chain(params).copied()
    })
}

fn is_loop_result(kernel: &Kernel, v: ValueId) -> bool {
    matches!(kernel.values[v].def, ValueDef::Result(op, _) if matches!(kernel.ops[op].op, Op::For { .. }))
}

/// Rank-2 loads that only products use, or that a loop streams for operands that are computed from them.
fn shared_loads(
    kernel: &Kernel,
    users: &HashMap<ValueId, Vec<OpId>>,
    computed: &ComputedOperands,
) -> Result<HashSet<OpId>, Error> {
    let mut found = HashSet::new();
    for (op, uses) in copied_loads(kernel, users, computed) {
        let Op::Load { tensor, .. } = kernel.ops[op].op else { unreachable!("a load") };
        if uses.by_product && kernel.tensor(tensor).elem.is_narrow() {
            return Err(Error::unsupported(
                "elements of one byte as an operand of dot",
                "cast them first, `.to::<f32>()`",
                kernel.ops[op].span,
            ));
        }
        if !uses.by_others.is_empty() {
            return Err(Error::unsupported(
                "a loaded tile that is both an operand of dot and used elementwise",
                "compute what is elementwise in a kernel of its own, and load its result here",
                kernel.ops[op].span,
            ));
        }
        found.insert(op);
    }
    Ok(found)
}

/// The dimensions that run over the rows of fragments: first dimensions of rank-2 values that live in registers.
fn row_dims(kernel: &Kernel, shared: &HashSet<OpId>, computed: &HashSet<ValueId>) -> Result<HashSet<DimKey>, Error> {
    let mut rows = HashSet::new();
    let mut columns = HashMap::new();
    for (_, op) in kernel.walk() {
        let data = &kernel.ops[op];
        if shared.contains(&op) || matches!(data.op, Op::Transpose(_)) {
            continue;
        }
        for &result in data.results.iter().filter(|r| !computed.contains(r)) {
            let Type::Tile(t) = kernel.ty(result) else { continue };
            let [r, c] = t.dims.as_slice() else { continue };
            // Rows that a product sums over are whole in a block, which stages them.
            let whole = |why: &NoAxis| matches!(why, NoAxis::Reduced(op) if matches!(kernel.ops[*op].op, Op::Dot { .. }));
            let no_axis = (!matches!(r, Dim::Axis(_))).then(|| rows_axis(kernel));
            if let Some(made) = no_axis.filter(|made| !made.as_ref().is_err_and(whole)) {
                return Err(match made {
                    Err(why) => why.refusal(kernel),
                    Ok(_) => Error::unsupported(
                        "a computed tile whose rows are no tile axis",
                        "give its rows an axis of the grid or of a loop",
                        data.span,
                    ),
                });
            }
            rows.insert(key(r));
            columns.insert(key(c), data.span);
        }
    }
    // A vector that meets no matrix lies along rows.
    for (id, _) in kernel.axes.iter() {
        if !columns.contains_key(&DimKey::Axis(id)) {
            rows.insert(DimKey::Axis(id));
        }
    }
    // A range may be both, unless a vector would not say which it is.
    let of_vector = |key: &DimKey| {
        let results = kernel.walk().into_iter().flat_map(|(_, op)| kernel.ops[op].results.iter());
        let mut dims = results.filter_map(|&v| match kernel.ty(v) {
            Type::Tile(tile) if tile.rank() == 1 => Some(self::key(&tile.dims[0])),
            _ => None,
        });
        dims.any(|dim| dim == *key)
    };
    let both = |key: &DimKey| rows.contains(key) && (matches!(key, DimKey::Axis(_)) || of_vector(key));
    match columns.iter().find(|(c, _)| both(c)) {
        Some((_, &span)) => Err(Error::unsupported(
            "an axis that runs over the rows of one computed tile and the columns of another",
            // With one product there is no other to transpose.
            match kernel.walk().iter().filter(|(_, op)| matches!(kernel.ops[*op].op, Op::Dot { .. })).count() {
                0 | 1 => "transpose what is computed, `(..).t()`, last, or walk the axes in the other order in `program`",
                _ => "write one of the two products transposed",
            },
            span,
        )),
        None => Ok(rows),
    }
}
