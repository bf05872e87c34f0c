//! Operands of products that are computed elementwise from loaded tiles, such as rotated keys.
//!
//! A product reads its right operand from shared memory, whole, whichever warp computed it. So a computed operand is made
//! there: all warps share its elements, each thread takes whole 16-byte parts of rows, and a barrier follows. What a loop
//! streams is read from its ring, and the operand takes the place of a tile of the ring where one of its type and shape is
//! needed for nothing else; anything else is read from global memory. A left operand that does not depend on a product is made
//! in the same way: once, before the loop that uses it, if nothing in it changes there.
//!
//! Operands of one shape that are needed at one point are made by one statement, so that what they share is read once.

use std::collections::{HashMap, HashSet};

use flashtile_dsl::ir::{BinaryOp, BlockId, Dim, Kernel, Op, OpId, Type, ValueId};

use super::uses::{contains, users_and_order};
use crate::schedule::BlockKnobs;

/// Operands that one statement makes.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The operands.
    pub operands: Vec<ValueId>,
    /// The op before which they are made: a product, or a loop that contains it.
    pub before: OpId,
    /// The block of that op.
    pub block: BlockId,
}

/// What is computed in shared memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ComputedOperands {
    /// Groups, in order.
    pub groups: Vec<Group>,
    /// Values that only computed operands, and products, need: they are no fragments.
    pub values: HashSet<ValueId>,
    /// Matrices that a group reads, and where: loads by the group's op.
    pub reads: HashMap<OpId, Vec<OpId>>,
}

/// Whether left operands are computed in shared memory too: `wgmma` has them in registers.
pub(super) fn lefts_are_shared(schedule: &BlockKnobs) -> bool {
    !schedule.tensor_op.is_asynchronous()
}

/// The value of which `value` is a view, and whether that is transposed.
pub(super) fn untransposed(kernel: &Kernel, value: ValueId) -> (ValueId, bool) {
    let (mut value, mut transposed) = (value, false);
    while let Some((_, &Op::Transpose(x))) = kernel.def(value) {
        (value, transposed) = (x, !transposed);
    }
    (value, transposed)
}

impl ComputedOperands {
    /// The operands of a kernel that are to be computed in shared memory; the left ones only if `left`.
    pub fn of(kernel: &Kernel, left: bool) -> Self {
        let search = Search::new(kernel);
        let (mut rights, mut lefts) = (Vec::new(), Vec::new());
        for (_, op) in kernel.walk() {
            let Op::Dot { a, b, .. } = kernel.ops[op].op else { continue };
            let (b, _) = untransposed(kernel, b);
            if search.is_computed(b) && !rights.contains(&b) {
                rights.push(b);
            }
            let viewed = matches!(kernel.def(a), Some((_, Op::Transpose(_))));
            if left && !viewed && search.is_computed(a) && !lefts.contains(&a) {
                lefts.push(a);
            }
        }
        // A left operand that is a fragment for another use stays one.
        let values = loop {
            let values = search.only_for(rights.iter().chain(&lefts).copied());
            let before = lefts.len();
            lefts.retain(|&a| rights.contains(&a) || search.matrices(a).iter().all(|v| values.contains(v)));
            if lefts.len() == before {
                break values;
            }
        };
        let operands: Vec<ValueId> = rights.iter().chain(lefts.iter().filter(|a| !rights.contains(a))).copied().collect();
        let groups = search.groups(&operands);
        let mut reads: HashMap<OpId, Vec<OpId>> = HashMap::new();
        for group in &groups {
            for &operand in &group.operands {
                for load in search.matrices(operand).into_iter().filter_map(|v| search.load(v)) {
                    let at = reads.entry(load).or_default();
                    if !at.contains(&group.before) {
                        at.push(group.before);
                    }
                }
            }
        }
        Self { groups, values, reads }
    }

    /// Whether the value is an operand that is computed.
    pub fn has(&self, operand: ValueId) -> bool {
        self.groups.iter().any(|g| g.operands.contains(&operand))
    }

    /// Whether an op makes a value that only computed operands, and products, need.
    pub fn makes(&self, kernel: &Kernel, op: OpId) -> bool {
        kernel.ops[op].results.iter().any(|r| self.values.contains(r))
    }

    /// Whether a load is read by groups in its own block, a loop body, and nowhere else: then the loop streams it.
    pub fn is_streamed(&self, kernel: &Kernel, load: OpId) -> bool {
        let Some(block) = kernel.walk().into_iter().find(|&(_, op)| op == load).map(|(block, _)| block) else { return false };
        let here = |&at: &OpId| self.groups.iter().any(|g| g.before == at && g.block == block);
        block != kernel.body
            && kernel.ops[load].op.operands().contains(&kernel.blocks[block].params[0])
            && self.reads.get(&load).is_some_and(|at| at.iter().all(here))
    }
}

/// A walk over the operands of a kernel.
struct Search<'a> {
    kernel: &'a Kernel,
    users: HashMap<ValueId, Vec<OpId>>,
    order: HashMap<OpId, usize>,
}

impl<'a> Search<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        let (users, order) = users_and_order(kernel);
        Self { kernel, users, order }
    }

    fn users(&self, value: ValueId) -> &[OpId] {
        self.users.get(&value).map_or(&[], Vec::as_slice)
    }

    fn load(&self, value: ValueId) -> Option<OpId> {
        self.kernel.def(value).filter(|(_, op)| matches!(op, Op::Load { .. })).map(|(id, _)| id)
    }

    /// Whether an operand is computed, and from nothing but loads and scalars.
    fn is_computed(&self, operand: ValueId) -> bool {
        self.load(operand).is_none() && self.is_elementwise(operand)
    }

    fn is_elementwise(&self, value: ValueId) -> bool {
        let Type::Tile(ty) = self.kernel.ty(value) else { return true };
        if ty.rank() == 0 {
            return true;
        }
        match self.kernel.def(value).map(|(_, op)| op) {
            Some(Op::Load { .. } | Op::Pos(_)) => true,
            Some(op) if op.is_elementwise() || matches!(op, Op::Full { .. } | Op::Transpose(_)) => {
                op.operands().into_iter().all(|v| self.is_elementwise(v))
            }
            _ => false,
        }
    }

    /// The tiles of rank 1 and 2 that an operand is computed from, itself included.
    fn tiles(&self, operand: ValueId) -> Vec<ValueId> {
        let (mut found, mut work) = (Vec::new(), vec![operand]);
        while let Some(v) = work.pop() {
            if !matches!(self.kernel.ty(v), Type::Tile(t) if t.rank() > 0) || found.contains(&v) {
                continue;
            }
            found.push(v);
            if let Some((_, op)) = self.kernel.def(v)
                && !matches!(op, Op::Load { .. })
            {
                work.extend(op.operands());
            }
        }
        found
    }

    fn matrices(&self, operand: ValueId) -> Vec<ValueId> {
        self.tiles(operand).into_iter().filter(|&v| self.kernel.tile(v).rank() == 2).collect()
    }

    /// The values that nothing needs but these operands and products.
    fn only_for(&self, operands: impl Iterator<Item = ValueId>) -> HashSet<ValueId> {
        let roots: HashSet<ValueId> = operands.collect();
        let mut values: HashSet<ValueId> = roots.iter().flat_map(|&v| self.tiles(v)).collect();
        loop {
            let keep: HashSet<ValueId> = values
                .iter()
                .copied()
                .filter(|&v| {
                    let product = roots.contains(&v) || self.load(v).is_some();
                    self.users(v).iter().all(|&op| self.is_inside(op, v, product, &values))
                })
                .collect();
            if keep.len() == values.len() {
                return keep;
            }
            values = keep;
        }
    }

    /// Whether a use of `v` is by another of `values`, or (if that is `allowed`) by a product.
    fn is_inside(&self, op: OpId, v: ValueId, allowed: bool, values: &HashSet<ValueId>) -> bool {
        match &self.kernel.ops[op].op {
            Op::Dot { acc, .. } => allowed && *acc != Some(v),
            Op::Transpose(_) => {
                let result = self.kernel.ops[op].results[0];
                values.contains(&result)
                    || (!self.users(result).is_empty()
                        && self.users(result).iter().all(|&u| self.is_inside(u, result, allowed, values)))
            }
            _ => self.kernel.ops[op].results.iter().any(|r| values.contains(r)),
        }
    }

    /// The products that read an operand, transposed or not.
    fn products(&self, operand: ValueId) -> Vec<OpId> {
        let (mut found, mut work) = (Vec::new(), vec![operand]);
        while let Some(v) = work.pop() {
            for &user in self.users(v) {
                match self.kernel.ops[user].op {
                    Op::Transpose(_) => work.push(self.kernel.ops[user].results[0]),
                    Op::Dot { .. } => found.push(user),
                    _ => {}
                }
            }
        }
        found
    }

    /// The first op of the operand's block that is or contains a product that reads it.
    fn first_use(&self, operand: ValueId) -> Option<(BlockId, OpId)> {
        let (def, _) = self.kernel.def(operand)?;
        let (block, data) = self.kernel.blocks.iter().find(|(_, b)| b.ops.contains(&def))?;
        let products = self.products(operand);
        let first = data.ops.iter().copied().find(|op| products.iter().any(|p| contains(self.kernel, *op, *p)))?;
        Some((block, first))
    }

    fn groups(&self, operands: &[ValueId]) -> Vec<Group> {
        let order = |v: ValueId| self.kernel.def(v).map_or(0, |(op, _)| self.order[&op]);
        let mut uses: Vec<(ValueId, BlockId, OpId)> =
            operands.iter().filter_map(|&v| self.first_use(v).map(|(block, op)| (v, block, op))).collect();
        uses.sort_by_key(|&(v, _, op)| (self.order[&op], order(v)));
        let mut groups: Vec<Group> = Vec::new();
        let mut dims: Vec<Vec<Dim>> = Vec::new();
        for (v, block, before) in uses {
            let own = self.stored_dims(v);
            let fits = |(g, d): (&Group, &Vec<Dim>)| g.block == block && order(v) < self.order[&g.before] && *d == own;
            match groups.iter().zip(&dims).position(fits) {
                Some(at) => groups[at].operands.push(v),
                None => {
                    groups.push(Group { operands: vec![v], before, block });
                    dims.push(own);
                }
            }
        }
        groups
    }

    /// The dimensions of the tile that holds an operand: those of the matrices that it is computed from.
    fn stored_dims(&self, operand: ValueId) -> Vec<Dim> {
        let mut dims = self.kernel.tile(operand).dims.clone();
        if is_transposed(self.kernel, operand).unwrap_or(false) {
            dims.reverse();
        }
        dims
    }
}

/// Whether an operand's matrices are transposed on the way to it: all or none; `None` if some are and some are not.
pub(super) fn is_transposed(kernel: &Kernel, operand: ValueId) -> Option<bool> {
    fn walk(kernel: &Kernel, v: ValueId, transposed: bool, seen: &mut HashSet<(ValueId, bool)>, found: &mut [bool; 2]) {
        if !matches!(kernel.ty(v), Type::Tile(t) if t.rank() == 2) || !seen.insert((v, transposed)) {
            return;
        }
        match kernel.def(v) {
            Some((_, Op::Load { .. })) => found[usize::from(transposed)] = true,
            Some((_, Op::Transpose(x))) => walk(kernel, *x, !transposed, seen, found),
            Some((_, op)) => op.operands().into_iter().for_each(|x| walk(kernel, x, transposed, seen, found)),
            None => {}
        }
    }
    let mut found = [false; 2];
    walk(kernel, operand, false, &mut HashSet::new(), &mut found);
    match found {
        [true, true] => None,
        [_, transposed] => Some(transposed),
    }
}

/// Whether a computed tile is zero wherever all that is loaded for it is.
pub(super) fn keeps_zero(kernel: &Kernel, v: ValueId) -> bool {
    is_zero_of(kernel, v, &mut HashMap::new())
}

fn is_zero_of(kernel: &Kernel, v: ValueId, known: &mut HashMap<ValueId, bool>) -> bool {
    if let Some(&known) = known.get(&v) {
        return known;
    }
    let Some((_, op)) = kernel.def(v) else { return false };
    let mut zero = |x: &ValueId| is_zero_of(kernel, *x, known);
    let finite = |x: &ValueId| matches!(kernel.def(*x), Some((_, Op::Constant(_, c))) if c.is_finite());
    let is_zero = match op {
        Op::Load { .. } => kernel.tile(v).rank() == 2,
        Op::Cast(_, x) | Op::Transpose(x) => zero(x),
        Op::Unary(op, x) => op.keeps_zero() && zero(x),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Max | BinaryOp::Min, a, b) => zero(a) && zero(b),
        Op::Binary(BinaryOp::Mul, a, b) => (zero(a) && (zero(b) || finite(b))) || (finite(a) && zero(b)),
        _ => false,
    };
    known.insert(v, is_zero);
    is_zero
}
