//! Elementwise ops: expressions, and maps where a value is stored.

use std::collections::BTreeSet;

use flashtile_dsl::analysis::positions::Sum;
use flashtile_dsl::analysis::streaming::constant_fill;
use flashtile_dsl::ir::{
    At, BinaryOp, CompareOp, Elem, Fill, IndexOp, Kernel, Op, OpId, ParamId, ParamKind, ReduceOp, SizeExpr, Type, UnaryOp,
    ValueDef, ValueId,
};

use super::approximate::{self, Approximation};
use super::context::{Home, Lowering};
use super::padding::is_false_beyond;
use crate::error::Error;
use crate::ops::{self, Numbers};
use crate::plan::{Cast, Expr, Function, LetType, Operator, Param, StmtOp, VarId};
use crate::rewrite::edit;

/// Integer arithmetic on indices; `positive`: that of `b` is positive.
pub(super) fn index_expr(op: IndexOp, a: Expr, b: Expr, positive: bool) -> Expr {
    match op {
        IndexOp::Div if !positive => Expr::call(Function::FloorDivSigned, [a, b]),
        IndexOp::Rem if !positive => Expr::call(Function::FloorRemSigned, [a, b]),
        IndexOp::Add => Expr::infix(Operator::Add, a, b),
        IndexOp::Sub => Expr::infix(Operator::Sub, a, b),
        IndexOp::Mul => Expr::infix(Operator::Mul, a, b),
        IndexOp::Div => Expr::call(Function::FloorDiv, [a, b]),
        IndexOp::Rem => Expr::call(Function::FloorRem, [a, b]),
        IndexOp::Min => Expr::call(Function::Least, [a, b]),
        IndexOp::Max => Expr::call(Function::Most, [a, b]),
    }
}

impl Lowering<'_> {
    /// Lowers an elementwise op: inline if the classes say so, else into a variable.
    pub(super) fn elementwise(&mut self, id: OpId, result: ValueId) -> Result<(), Error> {
        if self.classes.turned.contains_key(&id) {
            self.load_turned(id);
            return Ok(());
        }
        let value = match self.row_division(id)? {
            Some(value) => value,
            None => self.elementwise_expr(id)?,
        };
        if self.classes.inline.contains(&result) && !self.forced.contains_key(&result) {
            self.homes.insert(result, Home::Inline(value));
            return Ok(());
        }
        let elem = self.instance.binding.elem(self.kernel, self.kernel.tile(result).elem);
        if let (Op::Cast(..), true) =
            (&self.kernel.ops[id].op, matches!(elem, Elem::F16 | Elem::Bf16) && self.is_packed_operand(result))
        {
            return self.pack(result, value);
        }
        let ty = self.kernel.tile(result);
        if ty.dims.is_empty() {
            let name = self.value_name(result);
            let integer = matches!(ty.elem, Elem::I32 | Elem::Bool);
            self.push(StmtOp::Let { name: name.clone(), ty: LetType::of(integer), value });
            self.homes.insert(result, Home::Inline(Expr::Name(name)));
            return Ok(());
        }
        let to = self.destination(result);
        self.push(StmtOp::Map { to, value });
        self.homes.insert(result, Home::Variable(to));
        Ok(())
    }

    /// A division of a matrix by a vector or scalar is one reciprocal per row and a product per element.
    fn row_division(&mut self, id: OpId) -> Result<Option<Expr>, Error> {
        let Op::Binary(op @ (BinaryOp::Div | BinaryOp::DivOrZero), a, b) = self.kernel.ops[id].op else { return Ok(None) };
        let (ta, tb) = (self.kernel.tile(a), self.kernel.tile(b));
        if ta.rank() != 2 || tb.rank() == 2 || self.kernel.tile(self.kernel.ops[id].results[0]).elem != Elem::F32 {
            return Ok(None);
        }
        let dims = tb.dims.clone();
        let wanted = self.kernel.values[b].name.clone().unwrap_or_else(|| "divisor".into());
        let name = self.unique(&format!("{wanted}_inverse"));
        let to = self.new_variable(name, &dims, false);
        let divisor = self.expr(b)?;
        let mut value = Expr::call(Function::Reciprocal, [divisor.clone()]);
        let vanish = op == BinaryOp::DivOrZero && self.vanish_together(a, b);
        if vanish {
            let zero = Expr::infix(Operator::Eq, divisor, Expr::Float(0.0));
            value = Expr::Select(Box::new(zero), Box::new(Expr::Float(0.0)), Box::new(value));
        }
        self.push(StmtOp::Map { to, value });
        let (a, inverse) = (self.expr(a)?, self.element(to));
        Ok(Some(match op {
            _ if vanish => Expr::infix(Operator::Mul, a, inverse),
            BinaryOp::Div => Expr::infix(Operator::Mul, a, inverse),
            _ => Expr::call(Function::TimesInverseOrZero, [a, inverse]),
        }))
    }

    /// Whether `a` is zero wherever `b` is: results of one loop that sums `p * x` in `a` and `p` in `b`, for exponentials `p`,
    /// rescaled alike, `a` from zero and `b` from a constant that is not negative.
    fn vanish_together(&self, a: ValueId, b: ValueId) -> bool {
        let kernel = self.kernel;
        let carried = |v: ValueId, starts: fn(f64) -> bool| match kernel.values[v].def {
            ValueDef::Result(op, index) => match &kernel.ops[op].op {
                Op::For { body, init, .. } if constant_fill(kernel, init[index as usize]).is_some_and(starts) => {
                    Some((op, edit::yielded(kernel, *body)[index as usize], kernel.blocks[*body].params[index as usize + 1]))
                }
                _ => None,
            },
            ValueDef::BlockParam(..) => None,
        };
        let (Some((loop_a, next_a, param_a)), Some((loop_b, next_b, param_b))) =
            (carried(a, |x| x == 0.0), carried(b, |x| x >= 0.0))
        else {
            return false;
        };
        // The factor of `param * factor`.
        let factor = |v: ValueId, param: ValueId| match kernel.def(v) {
            Some((_, &Op::Binary(BinaryOp::Mul, x, f))) if x == param => Some(f),
            Some((_, &Op::Binary(BinaryOp::Mul, f, x))) if x == param => Some(f),
            _ => None,
        };
        let uncast = |v: ValueId| match kernel.def(v) {
            Some((_, &Op::Cast(_, x))) => x,
            _ => v,
        };
        let weights_a = match kernel.def(next_a) {
            Some((_, &Op::Dot { a: p, acc: Some(start), .. })) => factor(start, param_a).map(|f| (f, uncast(p))),
            _ => None,
        };
        let weights_b = match kernel.def(next_b) {
            Some((_, &Op::Binary(BinaryOp::Add, x, y))) => [(x, y), (y, x)].into_iter().find_map(|(scaled, sum)| {
                let Some((_, &Op::Reduce(ReduceOp::Sum, p))) = kernel.def(sum) else { return None };
                Some((factor(scaled, param_b)?, p))
            }),
            _ => None,
        };
        let Some((_, p)) = weights_a else { return false };
        let exponential = matches!(kernel.def(p), Some((_, Op::Unary(UnaryOp::Exp | UnaryOp::Exp2, _))));
        loop_a == loop_b && weights_a == weights_b && exponential
    }

    /// The least or the largest integer of the block that a position stands for.
    fn block_extreme(&self, tensor: ParamId, at: &[At], block: u32, largest: bool) -> Expr {
        let place = |a: &At| matches!(a, At::Tile(_));
        let dim = at.iter().position(place).expect("verified: one coordinate walks blocks");
        let At::Tile(coordinate) = at[dim] else { unreachable!("just found") };
        let Type::Coord(axis) = *self.kernel.ty(coordinate) else { unreachable!("verified: a coordinate") };
        let all = self.whole_row(tensor, at, dim);
        let function = if largest { Function::BlockMost } else { Function::BlockLeast };
        let count = self.size(&self.kernel.tensor(tensor).shape[dim]);
        Expr::call(function, [all.origin, all.row_stride, count, Expr::Int(block.into()), self.position(axis)])
    }

    /// The entry that a position stands for of the list of the integers that are not 0.
    fn nonzero(&self, tensor: ParamId, at: &[At]) -> Expr {
        let dim = at.iter().position(|a| matches!(a, At::Tile(_))).expect("verified: one coordinate");
        let At::Tile(coordinate) = at[dim] else { unreachable!("just found") };
        let Type::Coord(axis) = *self.kernel.ty(coordinate) else { unreachable!("verified: a coordinate") };
        let all = self.whole_row(tensor, at, dim);
        let count = self.size(&self.kernel.tensor(tensor).shape[dim]);
        Expr::call(Function::Nonzero, [all.origin, all.row_stride, count, self.position(axis)])
    }

    /// An element of a tensor, at indices and at the positions that are nearest to those of tiles.
    fn gather(&self, tensor: ParamId, at: &[ValueId]) -> Result<Expr, Error> {
        let (origin, places) = self.elements(tensor, at)?;
        let address = places.into_iter().fold(origin, |address, place| Expr::infix(Operator::Add, address, place));
        Ok(Expr::call(Function::Read, [address]))
    }

    /// Where elements of a tensor lie: the address by the indices of `at`, and what is added to it
    /// for the positions of each tile.
    pub(super) fn elements(&self, tensor: ParamId, at: &[ValueId]) -> Result<(Expr, Vec<Expr>), Error> {
        let name = &self.kernel.params[tensor].name;
        let last = at.len() - 1;
        let mut origin = Expr::Param(Param::Address(name.clone()));
        let mut places = Vec::new();
        for (d, (&v, extent)) in at.iter().zip(&self.kernel.tensor(tensor).shape).enumerate() {
            let place = match self.kernel.ty(v) {
                Type::Index => self.index(v),
                _ if self.is_within(v, extent) => self.expr(v)?,
                _ => {
                    let end = Expr::infix(Operator::Sub, self.size(extent), Expr::Int(1));
                    let from_0 = Expr::call(Function::Most, [self.expr(v)?, Expr::Int(0)]);
                    Expr::call(Function::Least, [from_0, end])
                }
            };
            if place == Expr::Int(0) {
                continue;
            }
            let stride = || Expr::Param(Param::Stride(name.clone(), d as u32));
            let offset = if d == last { place } else { Expr::infix(Operator::Mul, place.cast(Cast::Wide), stride()) };
            match self.kernel.ty(v) {
                Type::Index => origin = Expr::infix(Operator::Add, origin, offset),
                _ => places.push(offset),
            }
        }
        Ok((origin, places))
    }

    /// Whether positions are those of a dimension in each lane of a tile, those beyond an extent
    /// among them.
    fn is_within(&self, positions: ValueId, extent: &SizeExpr) -> bool {
        let Some(sum) = Sum::of(self.kernel, positions).filter(|sum| sum.others.is_empty()) else { return false };
        let extents = sum.positions.keys().filter_map(|&coordinate| match *self.kernel.ty(coordinate) {
            Type::Coord(axis) => Some(&self.kernel.axes[axis].extent),
            _ => None,
        });
        // Numbers of blocks are not computed with.
        if extents.chain([extent]).any(SizeExpr::is_rounded) {
            return false;
        }
        let (mut least, mut most) = (sum.size.clone(), sum.size);
        for (&coordinate, &times) in &sum.positions {
            let Type::Coord(axis) = *self.kernel.ty(coordinate) else { return false };
            // A tile begins within the extent.
            let beyond = i64::from(self.block_size(axis)) - 2;
            let last = self.kernel.axes[axis].extent.add(&SizeExpr::constant(beyond)).mul(times);
            let end = if times > 0 { &mut most } else { &mut least };
            *end = end.add(&last);
        }
        let is_never_below_0 = |size: &SizeExpr| {
            let (terms, constant, _) = size.parts();
            constant >= 0 && terms.values().all(|times| *times >= 0)
        };
        is_never_below_0(&least) && is_never_below_0(&extent.sub(&most).sub(&SizeExpr::constant(1)))
    }

    /// What the op computes with whose result this is.
    fn numbers(&self, result: ValueId) -> Numbers {
        match self.kernel.tile(result).elem {
            Elem::I32 if self.integers.wraps(result, !self.instance.facts.wide) => Numbers::Wrapping,
            Elem::I32 => Numbers::Integers,
            _ => Numbers::Floats,
        }
    }

    pub(super) fn elementwise_expr(&self, id: OpId) -> Result<Expr, Error> {
        let data = &self.kernel.ops[id];
        Ok(match &data.op {
            Op::Constant(Elem::I32, c) => Expr::Int(*c as i64),
            Op::Constant(_, c) => Expr::Float(*c),
            Op::Scalar(p) => {
                debug_assert!(matches!(self.kernel.params[*p].kind, ParamKind::Scalar(_)));
                Expr::param(self.kernel.params[*p].name.clone())
            }
            Op::FromIndex(i) => match self.index(*i) {
                // An `i32` has the lower 32 bits of the index.
                index if self.instance.facts.wide && !matches!(index, Expr::Int(_)) => index.cast(Cast::Int),
                index => index,
            },
            Op::Gather { tensor, at } => self.gather(*tensor, at)?,
            Op::BlockExtreme { tensor, at, block, largest } => self.block_extreme(*tensor, at, *block, *largest),
            Op::Nonzero { tensor, at } => self.nonzero(*tensor, at),
            Op::Pos(c) => match self.kernel.ty(*c) {
                Type::Coord(axis) => self.position(*axis),
                other => unreachable!("verified: a coordinate, not {other:?}"),
            },
            Op::Full { value, .. } => self.expr(*value)?,
            Op::Unary(UnaryOp::Tanh, x) if self.classes.approximate.contains_key(&id) => {
                let function = match self.classes.approximate[&id] {
                    Approximation::Relative => Function::TanhApprox,
                    Approximation::Absolute => Function::TanhAbsolute,
                };
                Expr::call(function, [self.expr(*x)?])
            }
            Op::Unary(op, x) => ops::unary(*op, self.expr(*x)?, self.numbers(data.results[0])),
            Op::Binary(BinaryOp::Div, a, b) if self.kernel.tile(*b).rank() == 2 && self.kernel.tile(*b).elem != Elem::I32 => {
                self.quotient(id, *a, *b)?
            }
            Op::Binary(BinaryOp::Mul, a, b) if self.is_reference(data.results[0]) => {
                Expr::call(Function::RoundedProduct, [self.expr(*a)?, self.expr(*b)?])
            }
            Op::Binary(op, a, b) => {
                let numbers = self.numbers(data.results[0]);
                let integer = numbers != Numbers::Floats;
                let (x, y) = (self.expr(*a)?, self.expr(*b)?);
                if integer && let Some(bits) = self.of_bits(*op, *a, &x, &y) {
                    return Ok(bits);
                }
                match op {
                    BinaryOp::Div if integer && !is_positive(self.kernel, *b) => Expr::call(Function::FloorDivSigned, [x, y]),
                    BinaryOp::Rem if integer && !is_positive(self.kernel, *b) => Expr::call(Function::FloorRemSigned, [x, y]),
                    op => ops::binary(*op, x, y, numbers),
                }
            }
            Op::Compare(op, a, b) => {
                let operator = match op {
                    CompareOp::Eq => Operator::Eq,
                    CompareOp::Ne => Operator::Ne,
                    CompareOp::Lt => Operator::Lt,
                    CompareOp::Le => Operator::Le,
                    CompareOp::Gt => Operator::Gt,
                    CompareOp::Ge => Operator::Ge,
                };
                let (a, b) = (self.expr(*a)?, self.expr(*b)?);
                let exact = !self.instance.facts.wide && data.op.operands().into_iter().all(|v| !self.kernel.is_of_data(v));
                if exact { Expr::infix(operator, a, b) } else { Expr::infix(operator, near(a.clone(), &b), near(b, &a)) }
            }
            Op::Select { cond, on_true, on_false } => {
                Expr::Select(Box::new(self.expr(*cond)?), Box::new(self.expr(*on_true)?), Box::new(self.expr(*on_false)?))
            }
            Op::Cast(elem, x) => {
                let from = self.kernel.tile(*x).elem;
                let value = self.expr(*x)?;
                match self.instance.binding.elem(self.kernel, *elem) {
                    // A packed operand is rounded when it is packed.
                    Elem::F16 | Elem::Bf16 if self.is_packed_operand(data.results[0]) => value,
                    Elem::F16 => Expr::call(Function::RoundF16, [value]),
                    Elem::Bf16 => Expr::call(Function::RoundBf16, [value]),
                    Elem::F32 if from == Elem::I32 => value.cast(Cast::Float),
                    Elem::I32 if from != Elem::I32 => value.cast(Cast::Int),
                    _ => value,
                }
            }
            other => unreachable!("{} is no elementwise op", other.mnemonic()),
        })
    }

    /// A quotient of matrices, or of a scalar by a matrix, by the cheapest form: a reciprocal (to 1 ulp) of what is at least 1, a
    /// quotient to 2 ulp where the result is rounded to 16 bits, else the correctly rounded one.
    fn quotient(&self, id: OpId, a: ValueId, b: ValueId) -> Result<Expr, Error> {
        let numerator = match self.kernel.def(a) {
            // The reciprocal of a divisor beyond 2^126 is 0, so that the error is at most 2^-62.
            Some((_, Op::Constant(_, c))) if c.abs() <= 2f64.powi(64) => Some(*c),
            _ => None,
        };
        let (x, divisor) = (self.expr(a)?, self.expr(b)?);
        Ok(match numerator {
            Some(c) if approximate::is_at_least_one(self.kernel, b) => {
                let inverse = Expr::call(Function::ReciprocalNormal, [divisor]);
                if c == 1.0 { inverse } else { Expr::infix(Operator::Mul, x, inverse) }
            }
            _ if self.classes.approximate.contains_key(&id) => Expr::call(Function::DivFull, [x, divisor]),
            _ => Expr::infix(Operator::Div, x, divisor),
        })
    }

    /// Whether the value is one per row, or one of all, and only enters differences: a scaled maximum, the reference of exponentials, or
    /// a sink that is held against it. It is rounded
    /// wherever it occurs, so that the factor of a rescale undoes exactly the reference that exponentials were taken against.
    fn is_reference(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        let ty = self.kernel.tile(value);
        ty.rank() <= 1
            && ty.elem == Elem::F32
            && !users.is_empty()
            && users.iter().all(|&op| matches!(self.kernel.ops[op].op, Op::Binary(BinaryOp::Sub, ..)))
    }

    /// Whether every use of the value is as the A operand of a product.
    pub(super) fn is_packed_operand(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        let of_tensor_cores = self.schedule.tensor_op.is_of_tensor_cores();
        !users.is_empty()
            && users.iter().all(|&op| match self.kernel.ops[op].op {
                Op::Dot { a, b, .. } if a == value => b != value || of_tensor_cores,
                Op::Dot { b, .. } => b == value && of_tensor_cores,
                Op::Transpose(_) => {
                    let turned = self.kernel.ops[op].results[0];
                    of_tensor_cores && (self.is_right_operand(turned) || self.is_turned_operand(turned))
                }
                _ => false,
            })
    }

    /// Whether products that lie across read a transposed tile as their left operand, and nothing
    /// else reads it.
    pub(super) fn is_turned_operand(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        let left = |op: &OpId| self.kernel.ops[*op].results.iter().any(|r| self.classes.across.contains(r));
        !users.is_empty() && users.iter().all(left)
    }

    /// Whether products read a value as their right operand, and nothing else reads it.
    fn is_right_operand(&self, value: ValueId) -> bool {
        let users = self.classes.users.get(&value).map_or(&[][..], Vec::as_slice);
        let right = |op: &OpId| matches!(self.kernel.ops[*op].op, Op::Dot { a, b, .. } if b == value && a != value);
        !users.is_empty() && users.iter().all(right)
    }

    /// `x` where `keep` holds and the position exists, `-inf` elsewhere; computed in place where it can be.
    pub(super) fn mask(&mut self, result: ValueId, x: ValueId, keep: ValueId, fill: Fill) -> Result<(), Error> {
        let dims = self.kernel.tile(result).dims.clone();
        let unknown: Vec<_> = dims.iter().filter(|dim| !is_false_beyond(self.kernel, keep, dim)).cloned().collect();
        let keep = self.expr(keep)?;
        let keep = match self.in_bounds(&unknown) {
            Some(bounds) => one_upper_bound(Expr::infix(Operator::And, keep, bounds)),
            None => keep,
        };
        let x_home = self.homes.get(&x).cloned();
        let to = match x_home {
            // The masked value takes over the variable of one that nothing else reads.
            Some(Home::Variable(v)) if self.classes.users[&x].len() == 1 && self.in_same_block(x, result) => v,
            _ => {
                let value = self.expr(x)?;
                let to = self.destination(result);
                self.push(StmtOp::Map { to, value });
                to
            }
        };
        let mut statements = self.loads_for(&keep);
        let value = Expr::Select(Box::new(keep), Box::new(self.element(to)), Box::new(Expr::Float(fill.value())));
        statements.push(StmtOp::Map { to, value });
        self.push_on_cut_tiles(&dims, statements)?;
        self.homes.insert(result, Home::Variable(to));
        Ok(())
    }

    /// The loads of what a condition reads that is loaded for masks alone.
    fn loads_for(&self, condition: &Expr) -> Vec<StmtOp> {
        let mut read = BTreeSet::new();
        condition.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                read.extend(self.for_masks.keys().filter(|&&v| self.plan.variables[v].name == *name));
            }
        });
        read.into_iter().map(|to: VarId| StmtOp::Load { to, from: self.for_masks[&to].clone() }).collect()
    }

    fn in_same_block(&self, a: ValueId, b: ValueId) -> bool {
        let block = |v: ValueId| {
            self.kernel.def(v).and_then(|(op, _)| self.kernel.walk().into_iter().find(|&(_, o)| o == op).map(|(b, _)| b))
        };
        block(a).is_some() && block(a) == block(b)
    }
}

/// What a position along columns is compared with. Text has the start of the tile subtracted from it, which may not leave
/// 32 bits. A position is from 0 to 2^31 - 2, so a bound beyond these compares as they do.
fn near(bound: Expr, other: &Expr) -> Expr {
    match (other, &bound) {
        (Expr::ColumnPosition(_), Expr::Int(_) | Expr::Float(_) | Expr::ColumnPosition(_)) => bound,
        (Expr::ColumnPosition(_), _) => {
            let least = Expr::call(Function::Most, [bound, Expr::Int(-1)]);
            Expr::call(Function::Least, [least, Expr::Int(i64::from(i32::MAX) - 1)])
        }
        _ => bound,
    }
}

/// Whether an integer is positive, as sizes and literals show. A divisor that nothing loads is not
/// 0: a launch checks that.
pub(super) fn is_positive(kernel: &Kernel, value: ValueId) -> bool {
    let positive = |v: &ValueId| is_positive(kernel, *v);
    match kernel.def(value).map(|(_, op)| op) {
        Some(Op::SizeOf(_)) => true,
        Some(Op::IndexConst(c)) => *c > 0,
        Some(Op::Constant(_, c)) => *c > 0.0,
        Some(Op::FromIndex(x) | Op::ToIndex(x) | Op::Transpose(x) | Op::Cast(_, x) | Op::Full { value: x, .. }) => positive(x),
        Some(Op::Index(IndexOp::Add | IndexOp::Mul, a, b)) => positive(a) && positive(b),
        Some(Op::Index(IndexOp::Div, a, b)) => positive(a) && positive(b),
        Some(Op::Index(IndexOp::Max, a, b)) => positive(a) || positive(b),
        _ => false,
    }
}

/// Of several upper bounds of one column, the least: one comparison per element instead of one each.
fn one_upper_bound(condition: Expr) -> Expr {
    fn conjuncts(e: Expr, out: &mut Vec<Expr>) {
        match e {
            Expr::Infix(Operator::And, a, b) => {
                conjuncts(*a, out);
                conjuncts(*b, out);
            }
            other => out.push(other),
        }
    }
    let one = || Expr::Int(1);
    let mut all = Vec::new();
    conjuncts(condition, &mut all);
    let mut bounds: Vec<(Expr, Expr)> = Vec::new();
    let mut others = Vec::new();
    for e in all {
        // The column, and what it is less than.
        let bound = match e {
            Expr::Infix(Operator::Lt, c, x) if matches!(*c, Expr::ColumnPosition(_)) => Ok((*c, *x)),
            Expr::Infix(Operator::Le, c, x) if matches!(*c, Expr::ColumnPosition(_)) => {
                Ok((*c, Expr::infix(Operator::Add, *x, one())))
            }
            Expr::Infix(Operator::Gt, x, c) if matches!(*c, Expr::ColumnPosition(_)) => Ok((*c, *x)),
            Expr::Infix(Operator::Ge, x, c) if matches!(*c, Expr::ColumnPosition(_)) => {
                Ok((*c, Expr::infix(Operator::Add, *x, one())))
            }
            other => Err(other),
        };
        match bound {
            Ok((column, limit)) => match bounds.iter_mut().find(|(c, _)| *c == column) {
                Some((_, least)) => *least = Expr::call(Function::Least, [least.clone(), limit]),
                None => bounds.push((column, limit)),
            },
            Err(other) => others.push(other),
        }
    }
    let bounds = bounds.into_iter().map(|(column, limit)| Expr::infix(Operator::Lt, column, limit));
    others.into_iter().chain(bounds).reduce(|a, b| Expr::infix(Operator::And, a, b)).expect("a condition has conjuncts")
}
