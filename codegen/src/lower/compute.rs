//! Makes operands of products in shared memory: which statement computes which tile, from what.
//! Which operands these are is decided in [`super::computed`].

use std::collections::HashMap;

use flashtile_dsl::ir::{Dim, Elem, Op, OpId, Type, ValueId};

use super::computed::{Group, is_transposed, keeps_zero, untransposed};
use super::context::{Home, Lowering, Made};
use super::{APART, STRIDED};
use crate::error::Error;
use crate::plan::{
    Builtin, Computed, Expr, Input, InputSource, Iteration, LetType, OperandA, Operator, Shape, Shared, Slot, StmtOp, TileId,
};

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

    /// The slot of a tile of its own: that of the iteration, where all products that read it are in
    /// the loop body itself.
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

    /// The slot of an input that the operand may take: of its type, streamed by the loop, and
    /// needed for nothing else.
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

    /// Whether other warps may still read one of these tiles, as far as the statements of this
    /// block show.
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
                    Op::Mask { x, keep, fill } => self.expr(*x).and_then(|x| {
                        let fill = Box::new(Expr::Float(fill.value()));
                        Ok(Expr::Select(Box::new(self.expr(*keep)?), Box::new(x), fill))
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
                    return Err(self.unsupported_but(v, STRIDED, APART));
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
