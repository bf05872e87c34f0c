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

use flashtile_dsl::ir::{BinaryOp, BlockId, Dim, Elem, Kernel, Op, OpId, Type, ValueId};

use super::classify::users_and_order;
use super::{Home, Lowering};
use crate::error::Error;
use crate::plan::{
    Builtin, Computed, Expr, Input, InputSource, Iteration, LetType, OperandA, Operator, Shape, Shared, Slot, StmtOp, TileId,
};

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

/// An operand that has been made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub tile: TileId,
    pub slot: Slot,
    /// Whether the tile holds the operand transposed.
    pub transposed: bool,
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
        let first = data.ops.iter().copied().find(|op| products.iter().any(|p| self.contains(*op, *p)))?;
        Some((block, first))
    }

    fn contains(&self, op: OpId, inner: OpId) -> bool {
        match &self.kernel.ops[op].op {
            Op::For { body, .. } => self.kernel.blocks[*body].ops.iter().any(|&o| self.contains(o, inner)),
            _ => op == inner,
        }
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
fn is_transposed(kernel: &Kernel, operand: ValueId) -> Option<bool> {
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
fn keeps_zero(kernel: &Kernel, v: ValueId) -> bool {
    let Some((_, op)) = kernel.def(v) else { return false };
    let zero = |x: &ValueId| keeps_zero(kernel, *x);
    let finite = |x: &ValueId| matches!(kernel.def(*x), Some((_, Op::Constant(_, c))) if c.is_finite());
    match op {
        Op::Load { .. } => kernel.tile(v).rank() == 2,
        Op::Cast(_, x) | Op::Transpose(x) => zero(x),
        Op::Unary(op, x) => op.keeps_zero() && zero(x),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Max | BinaryOp::Min, a, b) => zero(a) && zero(b),
        Op::Binary(BinaryOp::Mul, a, b) => (zero(a) && (zero(b) || finite(b))) || (finite(a) && zero(b)),
        _ => false,
    }
}

/// Makes the expressions of one group.
struct Making {
    inputs: Vec<Input>,
    shared: Vec<Shared>,
    /// Expressions of values, transposed or not.
    done: HashMap<(ValueId, bool), Expr>,
    /// Dimensions of the tiles.
    dims: Vec<Dim>,
    /// Uses of each value within the group.
    uses: HashMap<(ValueId, bool), usize>,
}

impl Lowering<'_> {
    /// Makes the operands that are needed from this op on.
    pub(super) fn make_operands(&mut self, before: OpId) -> Result<(), Error> {
        let groups: Vec<Group> = self.classes.computed.groups.iter().filter(|g| g.before == before).cloned().collect();
        for group in groups {
            self.make_group(&group)?;
        }
        Ok(())
    }

    fn make_group(&mut self, group: &Group) -> Result<(), Error> {
        let span = self.span;
        let kernel = self.kernel;
        let first = group.operands[0];
        if let Some((op, _)) = kernel.def(first) {
            self.span = kernel.ops[op].span;
        }
        if self.is_specialized() {
            return Err(Error::unsupported(
                "a computed tile as the right operand of a dot with tensor_op=wgmma",
                "take tensor_op=mma_m16n8k16, or compute it ahead with precompute=b",
                self.span,
            ));
        }
        let mut transposed = HashMap::new();
        for &operand in &group.operands {
            match is_transposed(kernel, operand) {
                Some(t) => drop(transposed.insert(operand, t)),
                None => {
                    return Err(Error::unsupported(
                        "a computed operand of dot that mixes tiles with transposed tiles",
                        "store one of them transposed in memory, so that both are read alike",
                        self.span,
                    ));
                }
            }
        }
        let mut dims = kernel.tile(first).dims.clone();
        if transposed[&first] {
            dims.reverse();
        }
        let mut making =
            Making { inputs: Vec::new(), shared: Vec::new(), done: HashMap::new(), dims: dims.clone(), uses: HashMap::new() };
        for &operand in &group.operands {
            self.count_uses(operand, transposed[&operand], &mut making.uses);
        }
        let mut values = Vec::new();
        for &operand in &group.operands {
            // The tile rounds to its type: what is said last need not.
            let rounded = match kernel.def(operand) {
                Some((_, &Op::Cast(_, x))) => x,
                _ => operand,
            };
            let value = self.part_expr(rounded, transposed[&operand], &mut making)?;
            values.push(self.with_zero_padding(operand, &dims, value));
        }
        let mut taken: Vec<TileId> = Vec::new();
        let mut to = Vec::new();
        for (&operand, value) in group.operands.iter().zip(values) {
            let (tile, slot) = match self.place_of(operand, group, &value, &making.inputs, &taken) {
                Some(place) => place,
                None => (self.operand_tile(operand, &dims), self.own_slot(operand, group)),
            };
            taken.push(tile);
            to.push(Computed { tile, slot, value });
            self.made.insert(operand, Made { tile, slot, transposed: transposed[&operand] });
        }
        let pending = making.inputs.iter().any(|i| matches!(i.from, InputSource::Tile(tile, _) if self.is_pending(tile)));
        if pending {
            self.acquire();
        } else if self.may_be_read(&taken) {
            self.push(StmtOp::Barrier);
        }
        self.push(StmtOp::Compute { to, inputs: making.inputs, shared: making.shared });
        self.push(StmtOp::Barrier);
        self.span = span;
        Ok(())
    }

    /// A tile of its own for an operand; the same when a loop body is lowered again.
    fn operand_tile(&mut self, operand: ValueId, dims: &[Dim]) -> TileId {
        if let Some(made) = self.made.get(&operand) {
            return made.tile;
        }
        let elem = self.instance.binding.elem(self.kernel, self.kernel.tile(operand).elem);
        let wanted = self.kernel.values[operand].name.clone().unwrap_or_else(|| "operand".into());
        let name = self.unique(&format!("{wanted}_tile"));
        let (rows, columns) = (self.padded(&dims[0]), self.padded(&dims[1]));
        self.add_tile(name, elem, rows, columns, 1, false)
    }

    /// The slot of a tile of its own: that of the iteration, where all products that read it are in the loop body itself.
    fn own_slot(&self, operand: ValueId, group: &Group) -> Slot {
        let body = &self.kernel.blocks[group.block].ops;
        let owner = self.kernel.walk().into_iter().find_map(|(_, op)| match self.kernel.ops[op].op {
            Op::For { axis, body, .. } if body == group.block => self.loops_by_axis.get(&axis).copied(),
            _ => None,
        });
        match owner {
            Some(id) if self.products_reading(operand).iter().all(|p| body.contains(p)) => Slot::Of(Iteration::Ahead(id, 0)),
            _ => Slot::Only,
        }
    }

    /// The slot of an input that the operand may take: of its type, streamed by the loop, and needed for nothing else.
    fn place_of(
        &self,
        operand: ValueId,
        group: &Group,
        value: &Expr,
        inputs: &[Input],
        taken: &[TileId],
    ) -> Option<(TileId, Slot)> {
        // That of the input named first, so that the halves of a tile stay in their places.
        let mut named = Vec::new();
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                named.extend(inputs.iter().filter(|i| i.name == *name));
            }
        });
        let elem = self.instance.binding.elem(self.kernel, self.kernel.tile(operand).elem);
        let computed = &self.classes.computed;
        named.into_iter().chain(inputs).find_map(|input| {
            let InputSource::Tile(tile, slot @ Slot::Of(Iteration::Ahead(..))) = input.from else { return None };
            let load = self.homes.iter().find_map(|(&v, home)| match home {
                Home::Tile(t) if *t == tile => self.kernel.def(v).filter(|(_, op)| matches!(op, Op::Load { .. })),
                _ => None,
            });
            let (load, _) = load?;
            let value = self.kernel.ops[load].results[0];
            let only_here = computed.reads.get(&load).is_some_and(|at| *at == [group.before])
                && self.products_reading(value).is_empty()
                && computed.groups.iter().filter(|g| g.before == group.before).count() == 1;
            (self.plan.tiles[tile].elem == elem && only_here && !taken.contains(&tile)).then_some((tile, slot))
        })
    }

    /// Products that read a value itself, transposed or not.
    fn products_reading(&self, value: ValueId) -> Vec<OpId> {
        let (mut found, mut work) = (Vec::new(), vec![value]);
        while let Some(v) = work.pop() {
            for &user in self.classes.users.get(&v).map_or(&[][..], Vec::as_slice) {
                match self.kernel.ops[user].op {
                    Op::Transpose(_) => work.push(self.kernel.ops[user].results[0]),
                    Op::Dot { .. } => found.push(user),
                    _ => {}
                }
            }
        }
        found
    }

    /// Whether a transposed tile is a computed operand, as products read it.
    pub(super) fn is_view_of_operand(&self, view: ValueId) -> bool {
        let (operand, _) = untransposed(self.kernel, view);
        let users = self.classes.users.get(&view).map_or(&[][..], Vec::as_slice);
        let product = |op: &OpId| match self.kernel.ops[*op].op {
            Op::Dot { .. } => true,
            Op::Transpose(_) => self.is_view_of_operand(self.kernel.ops[*op].results[0]),
            _ => false,
        };
        self.classes.computed.has(operand) && users.iter().all(product)
    }

    /// Whether other warps may still read one of these tiles, as far as the statements of this block show.
    fn may_be_read(&self, tiles: &[TileId]) -> bool {
        for stmt in self.out.iter().rev() {
            match &stmt.op {
                StmtOp::Barrier => return false,
                StmtOp::Dot { b, .. } if tiles.contains(b) => return true,
                StmtOp::Dot { a: OperandA::Tile(t, _), .. } if tiles.contains(t) => return true,
                StmtOp::LoadFragments { tile, .. } if tiles.contains(tile) => return true,
                StmtOp::Loop { .. } => return true,
                _ => {}
            }
        }
        // The iteration before this one.
        !self.loops_by_axis.is_empty()
    }

    fn count_uses(&self, v: ValueId, transposed: bool, uses: &mut HashMap<(ValueId, bool), usize>) {
        if !matches!(self.kernel.ty(v), Type::Tile(t) if t.rank() > 0) {
            return;
        }
        let count = uses.entry((v, transposed)).or_insert(0);
        *count += 1;
        if *count > 1 {
            return;
        }
        match self.kernel.def(v) {
            Some((_, Op::Load { .. })) | None => {}
            Some((_, Op::Transpose(x))) => self.count_uses(*x, !transposed, uses),
            Some((_, op)) => op.operands().into_iter().for_each(|x| self.count_uses(x, transposed, uses)),
        }
    }

    /// The value per element of the group's tiles, which hold `v` transposed or not.
    fn part_expr(&mut self, v: ValueId, transposed: bool, making: &mut Making) -> Result<Expr, Error> {
        let kernel = self.kernel;
        let Type::Tile(ty) = kernel.ty(v) else { return self.expr(v) };
        if ty.rank() == 0 {
            return self.expr(v);
        }
        if let Some(done) = making.done.get(&(v, transposed)) {
            return Ok(done.clone());
        }
        let Some((id, op)) = kernel.def(v) else { unreachable!("computed from loads and scalars") };
        let value = match op {
            Op::Load { .. } => self.part_input(id, v, making)?,
            Op::Transpose(x) => self.part_expr(*x, !transposed, making)?,
            Op::Pos(c) => {
                let Type::Coord(axis) = *kernel.ty(*c) else { unreachable!("verified: a coordinate") };
                let block = Expr::Int(i64::from(self.block_size(axis)));
                let coordinate = self.coordinate(*c).to_owned();
                let first = self.unique(&format!("{coordinate}_first"));
                let value = Expr::infix(Operator::Mul, Expr::name(coordinate), block);
                self.push(StmtOp::Let { name: first.clone(), ty: LetType::Int, value });
                if making.dims[0] == Dim::Axis(axis) { Expr::RowPosition(first) } else { Expr::ColumnPosition(first) }
            }
            Op::Full { value, .. } => self.expr(*value)?,
            op => {
                // Operands are known by their expressions while the op's own is made.
                let operands = op.operands();
                let mut outer = Vec::new();
                for &x in &operands {
                    if matches!(kernel.ty(x), Type::Tile(t) if t.rank() > 0) {
                        let e = self.part_expr(x, transposed, making)?;
                        outer.push((x, self.homes.insert(x, Home::Inline(e))));
                    }
                }
                let value = match op {
                    Op::Mask { x, keep } => self.expr(*x).and_then(|x| {
                        let infinity = Box::new(Expr::Float(f64::NEG_INFINITY));
                        Ok(Expr::Select(Box::new(self.expr(*keep)?), Box::new(x), infinity))
                    }),
                    _ => self.elementwise_expr(id),
                };
                for (x, home) in outer.into_iter().rev() {
                    match home {
                        Some(home) => self.homes.insert(x, home),
                        None => self.homes.remove(&x),
                    };
                }
                value?
            }
        };
        let value =
            if making.uses.get(&(v, transposed)).is_some_and(|&n| n > 1) && !matches!(value, Expr::Element(..) | Expr::Name(_)) {
                let name = self.value_name(v);
                let elem = match kernel.tile(v).elem {
                    elem @ (Elem::I32 | Elem::Bool) => elem,
                    _ => Elem::F32,
                };
                making.shared.push(Shared { name: name.clone(), elem, value });
                Expr::Name(name)
            } else {
                value
            };
        making.done.insert((v, transposed), value.clone());
        Ok(value)
    }

    /// What a load gives, as an input of the group.
    fn part_input(&mut self, load: OpId, v: ValueId, making: &mut Making) -> Result<Expr, Error> {
        let Op::Load { tensor, at } = &self.kernel.ops[load].op else { unreachable!("a load") };
        let (tensor, at) = (*tensor, at.clone());
        let dims = self.dims_of(&at);
        let from = match (self.homes.get(&v), dims.len()) {
            (Some(&Home::Tile(tile)), _) => InputSource::Tile(tile, self.slot_of(v)),
            (_, 2) => {
                if matches!(at.last(), Some(flashtile_dsl::ir::At::Index(_))) {
                    return Err(self.unsupported(v, "a tile whose columns are not contiguous in memory"));
                }
                InputSource::Matrix(self.global_tile(tensor, &at, None))
            }
            _ if dims[0] == making.dims[0] => InputSource::Row(self.global_tile(tensor, &at, None)),
            _ => InputSource::Column(self.global_tile(tensor, &at, None)),
        };
        let shape = match from {
            InputSource::Tile(..) | InputSource::Matrix(_) => Shape::Accumulator,
            InputSource::Row(_) => Shape::Row,
            InputSource::Column(_) => Shape::Column,
        };
        let name = match self.kernel.values[v].name.clone() {
            Some(name) => self.unique(&name),
            None => self.unique(&format!("{}_part", self.kernel.params[tensor].name)),
        };
        making.inputs.push(Input { name: name.clone(), from });
        Ok(Expr::Element(name, shape))
    }

    /// Zero beyond the extents, which products see, unless the value is zero there by itself.
    fn with_zero_padding(&self, operand: ValueId, dims: &[Dim], value: Expr) -> Expr {
        if keeps_zero(self.kernel, operand) {
            return value;
        }
        let mut bounds = Vec::new();
        for (d, dim) in dims.iter().enumerate() {
            let position = Expr::Builtin(if d == 0 { Builtin::Row } else { Builtin::Column });
            let present = match dim {
                Dim::Range(len) => {
                    let exact = self.constant(len);
                    if exact == self.padded(dim) {
                        continue;
                    }
                    Expr::Int(i64::from(exact))
                }
                Dim::Axis(axis) => {
                    let block = Expr::Int(i64::from(self.block_size(*axis)));
                    let coordinate = self.coordinate_of(*axis);
                    Expr::infix(
                        Operator::Sub,
                        self.size(&self.kernel.axes[*axis].extent),
                        Expr::infix(Operator::Mul, coordinate, block),
                    )
                }
            };
            bounds.push(Expr::infix(Operator::Lt, position, present));
        }
        let Some(bounds) = bounds.into_iter().reduce(|a, b| Expr::infix(Operator::And, a, b)) else { return value };
        Expr::Select(Box::new(bounds), Box::new(value), Box::new(Expr::Float(0.0)))
    }

    /// The name of the coordinate along an axis.
    fn coordinate_of(&self, axis: flashtile_dsl::ir::AxisId) -> Expr {
        let name = self.homes.iter().find_map(|(&v, home)| match (home, self.kernel.ty(v)) {
            (Home::Coordinate(name), Type::Coord(a)) if *a == axis => Some(name.clone()),
            _ => None,
        });
        Expr::name(name.expect("the tile has a coordinate along its axis"))
    }

    /// The tile that holds an operand, if it was made or loaded.
    pub(super) fn tile_of(&self, value: ValueId) -> Option<Made> {
        if let Some(&made) = self.made.get(&value) {
            return Some(made);
        }
        match self.homes.get(&value) {
            Some(&Home::Tile(tile)) => Some(Made { tile, slot: self.slot_of(value), transposed: false }),
            _ => None,
        }
    }

    /// Positions in `ops` where what is computed from a load is made, and where it is read.
    pub(super) fn computed_uses(&self, load: OpId, ops: &[OpId]) -> Vec<usize> {
        let computed = &self.classes.computed;
        let position = |op: OpId| ops.iter().position(|&o| o == op);
        let mut found = Vec::new();
        for &before in computed.reads.get(&load).map_or(&[][..], Vec::as_slice) {
            found.extend(position(before));
            for group in computed.groups.iter().filter(|g| g.before == before) {
                for &operand in &group.operands {
                    let own = self.products_reading(operand);
                    // An inner loop that reads it stands for the products in it.
                    found.extend(
                        ops.iter().enumerate().filter(|&(_, &op)| own.iter().any(|&p| self.has_inside(op, p))).map(|(i, _)| i),
                    );
                }
            }
        }
        found
    }

    pub(super) fn has_inside(&self, op: OpId, inner: OpId) -> bool {
        match &self.kernel.ops[op].op {
            Op::For { body, .. } => self.kernel.blocks[*body].ops.iter().any(|&o| self.has_inside(o, inner)),
            _ => op == inner,
        }
    }
}
