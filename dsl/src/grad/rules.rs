//! How gradients go back through single ops.

use std::collections::{HashMap, HashSet};

use super::NotDifferentiable;
use super::copy::{Copy, Orientation, Shares};
use super::forward::{Class, Slot};
use super::hiding::Made;
use super::kept::row_elem;
use crate::analysis::streaming::Form;
use crate::ir::{BinaryOp, CompareOp, Dim, Elem, Fill, Op, OpId, ReduceOp, UnaryOp, ValueDef, ValueId};

/// The gradient of a value: `value`, times a factor that is one number for the whole program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjoint {
    pub value: ValueId,
    pub factor: Option<ValueId>,
}

impl From<ValueId> for Adjoint {
    fn from(value: ValueId) -> Self {
        Self { value, factor: None }
    }
}

/// Takes gradients back through ops of the forward kernel.
#[derive(Clone)]
pub(super) struct Reverse<'f, 'k> {
    pub copy: Copy<'f, 'k>,
    /// Gradients of values of the forward kernel that are not taken back yet.
    pub adjoints: HashMap<ValueId, Adjoint>,
    /// In the loop: gradients of what does not differ along the loop, which sums them up.
    pub collected: Vec<(ValueId, Adjoint)>,
    /// Whether ops of the loop are gone through.
    pub in_loop: bool,
    /// Whether a kernel of columns gives what a step adds to the gradients of rows.
    pub adds_rows: bool,
    /// Masks of gradients. What they hide is not there for sums and products, and 0 where it is
    /// stored ([`Reverse::shown`]).
    pub hiding: HashSet<ValueId>,
    /// Truth values by which gradients were made 0 where something hid them.
    pub made: Made,
    /// Of tiles that were asked for, whether they are loaded several times, for stores and for sums.
    pub read_apart: HashMap<ValueId, bool>,
    /// The op that gradients are taken back through.
    pub by_way_of: Option<OpId>,
    /// Values whose gradients are what is asked for: they are not taken back further.
    pub stops: HashSet<ValueId>,
}

type Done = Result<(), NotDifferentiable>;

/// The exponential in a sum.
struct Exponential {
    /// The exponent.
    of: ValueId,
    /// Which part of the sum the exponential is.
    part: ValueId,
    is_of_two: bool,
}

impl<'f, 'k> Reverse<'f, 'k> {
    pub fn new(copy: Copy<'f, 'k>) -> Self {
        Self {
            copy,
            adjoints: HashMap::new(),
            collected: Vec::new(),
            in_loop: false,
            adds_rows: false,
            hiding: HashSet::new(),
            made: Made::new(),
            read_apart: HashMap::new(),
            by_way_of: None,
            stops: HashSet::new(),
        }
    }

    /// The whole gradient, its factor applied.
    pub fn applied(&mut self, g: Adjoint) -> ValueId {
        let turned = match self.copy.b.kernel.def(g.value) {
            Some((_, &Op::Transpose(x))) => Some(x),
            _ => None,
        };
        match (g.factor, turned) {
            (None, _) => g.value,
            (Some(factor), None) => self.times(g.value, factor),
            // What is turned is only stored, or read by products.
            (Some(factor), Some(x)) => {
                let value = self.times(x, factor);
                self.copy.transposed(value)
            }
        }
    }

    /// A gradient times a factor. The gradient of what sees nothing is 0, also where a factor of the
    /// whole program is no number there, as the inverse of a length of 0 is.
    fn times(&mut self, value: ValueId, factor: ValueId) -> ValueId {
        let product = self.copy.mul(value, factor);
        let of_program = self.copy.dims(factor).is_empty();
        if of_program && !self.copy.is_number(factor) { self.zero_of_zero(value, product) } else { product }
    }

    /// What a number of the whole program makes of a gradient, `made`: 0 where that is 0. Pairs that
    /// are not seen are hidden, and stay so.
    fn zero_of_zero(&mut self, g: ValueId, made: ValueId) -> ValueId {
        if matches!(self.copy.dims(g)[..], [Dim::Axis(_), Dim::Axis(_)]) {
            return made;
        }
        let zero = self.copy.float(0.0);
        let own = self.copy.cast(g, Elem::F32);
        let is_zero = self.copy.op(Op::Compare(CompareOp::Eq, own, zero));
        self.copy.select(is_zero, zero, made)
    }

    /// The sum of two gradients.
    pub fn sum(&mut self, a: Adjoint, b: Adjoint) -> Adjoint {
        if a.factor == b.factor {
            // A sum of transposed products is transposed once, where it is added to what a loop
            // carries.
            let kernel = &self.copy.b.kernel;
            let value = match (kernel.def(a.value), kernel.def(b.value)) {
                (Some((_, &Op::Transpose(x))), Some((_, &Op::Transpose(y)))) => {
                    let sum = self.copy.add(x, y);
                    self.copy.transposed(sum)
                }
                _ => self.copy.add(a.value, b.value),
            };
            return Adjoint { value, factor: a.factor };
        }
        let (a, b) = (self.applied_before(a), self.applied_before(b));
        self.copy.add(a, b).into()
    }

    /// The whole gradient. The factor of a product of pairs is applied to these: then the product can
    /// be added to others where it is made.
    pub fn applied_before(&mut self, g: Adjoint) -> ValueId {
        let kernel = &self.copy.b.kernel;
        let cast = |v: ValueId| match kernel.def(v) {
            Some((_, &Op::Cast(elem, pairs))) => Some((pairs, elem)),
            _ => None,
        };
        let pairs = match (g.factor, kernel.def(g.value)) {
            (Some(factor), Some((_, &Op::Dot { a, b, acc: None }))) => match kernel.def(a) {
                Some((_, &Op::Transpose(x))) => cast(x).map(|pairs| (factor, pairs, true, b)),
                _ => cast(a).map(|pairs| (factor, pairs, false, b)),
            },
            _ => None,
        };
        let Some((factor, (pairs, elem), is_turned, b)) = pairs else { return self.applied(g) };
        let scaled = self.copy.mul(pairs, factor);
        let mut a = self.copy.cast(scaled, elem);
        if is_turned {
            a = self.copy.transposed(a);
        }
        self.copy.op(Op::Dot { a, b, acc: None })
    }

    /// The dimensions of the gradient of a value. Of what is one for a program each row has a
    /// share, or each column, and of what a row or a column of a tile of pairs has one number of, each pair.
    pub fn dims_of_gradient(&self, of: ValueId) -> Vec<Dim> {
        let mut dims = self.copy.dims_of(of);
        let class = self.copy.forward.class(of);
        match self.copy.shares {
            Shares::OfRows if class == Class::Program => dims.insert(0, Dim::Axis(self.copy.axes.0)),
            Shares::OfColumns if class == Class::Program => dims.insert(0, Dim::Axis(self.copy.axes.1)),
            // Made of what is gathered for columns, or for a step.
            _ if class == Class::Pair && dims.len() < 2 => {
                dims = [self.copy.axes.0, self.copy.axes.1].map(Dim::Axis).to_vec();
                if self.copy.is_turned(&dims) {
                    dims.reverse();
                }
            }
            Shares::OfPairs if dims.len() < 2 => dims = [self.copy.axes.0, self.copy.axes.1].map(Dim::Axis).to_vec(),
            _ => {}
        }
        dims
    }

    /// Adds to the gradient of a value of the forward kernel.
    pub fn give(&mut self, to: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        if !forward.needed.contains(&to) {
            return Ok(());
        }
        if let (Some((_, &Op::Transpose(x))), true) = (forward.kernel.def(to), forward.class(to) != Class::Pair) {
            let value = self.turned(g.value);
            return self.give(x, Adjoint { value, ..g });
        }
        let own = to;
        let g = Adjoint { value: self.of_all_elements(own, g.value)?, ..g };
        let to = forward.canonical(to);
        let class = forward.class(to);
        let sums_up = self.in_loop
            && match (class, self.copy.orientation) {
                // It is the same for all tiles of the loop, unless it is made of one.
                (Class::Row, _) if forward.varies(to) => false,
                (Class::Row, Orientation::Columns) if self.adds_rows => false,
                (Class::Pair, _) => false,
                (Class::Column, _) if forward.is_over_rows(to) => false,
                (Class::Row, Orientation::Rows) | (Class::Column, Orientation::Columns) if self.copy.moves(to) => false,
                (Class::Row, Orientation::Rows) | (Class::Column, Orientation::Columns) => true,
                // The kernels of rows sum up what is one for the program.
                (Class::Program, Orientation::Rows) => true,
                // One that changes with the dimensions that a kernel of columns walks is made in them.
                (Class::Program, Orientation::Columns) if forward.is_for_columns(to) => !self.copy.moves(to),
                _ => return Ok(()),
            };
        let dims = self.dims_of_gradient(to);
        let is_summed = self.copy.dims(g.value).iter().any(|dim| !dims.contains(dim));
        let value = match is_summed {
            true => {
                let value = self.summed_share(own, g.value)?;
                self.counted(value)
            }
            false => self.own_share(own, g.value)?,
        };
        let Some(value) = self.copy.summed_to(value, &dims) else {
            let what = format!("the gradient of `{}` is a sum over whole tiles", forward.name(to));
            let instead = "leave it out: gradients are built of what is loaded by tiles and indices";
            return Err(NotDifferentiable::new(what, forward.span(to), instead));
        };
        let g = Adjoint { value, ..g };
        if sums_up {
            self.collected.push((to, g));
            return Ok(());
        }
        let sum = match self.adjoints.remove(&to) {
            Some(other) => self.sum_of(to, other, g),
            None => g,
        };
        if let Some(name) = forward.kernel.values[to].name.clone() {
            self.copy.named(sum.value, Some(format!("d{name}")));
        }
        self.adjoints.insert(to, sum);
        Ok(())
    }

    /// Takes the gradients of the results of an op back to its operands.
    pub fn through(&mut self, id: OpId) -> Done {
        let forward = self.copy.forward;
        let data = &forward.kernel.ops[id];
        let Some(&result) = data.results.first() else { return Ok(()) };
        if matches!(data.op, Op::Load { .. } | Op::Gather { .. } | Op::For { .. }) || self.stops.contains(&result) {
            return Ok(());
        }
        let Some(g) = self.adjoints.remove(&result) else { return Ok(()) };
        let g = self.broadcast(g, result, &data.op.operands())?;
        self.by_way_of = Some(id);
        self.through_op(id, result, g)?;
        self.by_way_of = None;
        Ok(())
    }

    fn through_op(&mut self, id: OpId, result: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        let data = &forward.kernel.ops[id];
        match data.op {
            Op::Unary(op, x) => self.unary(op, x, result, g),
            Op::Binary(op, a, b) => self.binary(op, [a, b], result, g),
            Op::Select { cond, on_true, on_false } => {
                let (cond, zero) = (self.copy.value(cond)?, self.copy.float(0.0));
                for (operand, [yes, no]) in [(on_true, [g.value, zero]), (on_false, [zero, g.value])] {
                    if forward.needed.contains(&operand) {
                        let value = self.copy.select(cond, yes, no);
                        let value = self.hidden_as(g.value, value);
                        self.give(operand, Adjoint { value, ..g })?;
                    }
                }
                Ok(())
            }
            Op::Mask { x, keep, .. } => {
                let keep = self.copy.value(keep)?;
                let value = match self.is_hidden(g.value, keep) && self.beyond(g.value, keep) == Some(0.0) {
                    true => g.value,
                    false => self.hidden(g.value, keep),
                };
                self.give(x, Adjoint { value, ..g })
            }
            Op::Cast(_, x) | Op::Reduce(ReduceOp::Sum, x) => self.give(x, g),
            Op::Reduce(ReduceOp::Max, x) if matches!(self.copy.dims_of(x).last(), Some(Dim::Range(_))) => {
                self.largest(x, result, g)
            }
            Op::Full { value, .. } => self.give(value, g),
            Op::Transpose(x) => {
                let value = if forward.class(x) == Class::Pair { g.value } else { self.turned(g.value) };
                self.give(x, Adjoint { value, ..g })
            }
            Op::Dot { a, b, acc } => {
                if let Some(acc) = acc.filter(|acc| !matches!(forward.kernel.values[*acc].def, ValueDef::BlockParam(..))) {
                    self.give(acc, g)?;
                }
                self.product(result, a, b, g)
            }
            _ => {
                let what = format!("`{}` has no gradient", data.op.mnemonic());
                Err(NotDifferentiable::new(what, data.span, "leave out the inputs that it depends on, or write it otherwise"))
            }
        }
    }

    /// The gradient of what was transposed: one that is the same along a dimension lacks that, and is
    /// its own transpose.
    fn turned(&mut self, g: ValueId) -> ValueId {
        if self.copy.dims(g).len() < 2 { g } else { self.copy.transposed(g) }
    }

    /// The gradient of the maximum of whole rows: that of the largest element, shared where there are
    /// several.
    fn largest(&mut self, x: ValueId, maximum: ValueId, g: Adjoint) -> Done {
        let (at, maximum) = (self.copy.value(x)?, self.copy.value(maximum)?);
        let [at, maximum] = [at, maximum].map(|value| self.copy.cast(value, Elem::F32));
        let is_it = self.copy.op(Op::Compare(CompareOp::Eq, at, maximum));
        let (one, zero) = (self.copy.float(1.0), self.copy.float(0.0));
        let counted = self.copy.select(is_it, one, zero);
        let count = self.copy.op(Op::Reduce(ReduceOp::Sum, counted));
        let share = self.copy.binary(BinaryOp::Div, g.value, count);
        let value = self.copy.select(is_it, share, zero);
        self.give(x, Adjoint { value, ..g })
    }

    /// A gradient that lacks dimensions of its value, spread along them where an operand lacks them
    /// too, so that it is summed as often as it counts.
    fn broadcast(&mut self, g: Adjoint, result: ValueId, operands: &[ValueId]) -> Result<Adjoint, NotDifferentiable> {
        let forward = self.copy.forward;
        let dims = match forward.kernel.ty(result).tile() {
            Some(_) => self.copy.dims_of(result),
            None => return Ok(g),
        };
        if self.dims_of_gradient(result).len() > dims.len() {
            return Ok(g);
        }
        let elementwise = |v: &ValueId| forward.kernel.ty(*v).tile().is_some_and(|tile| tile.dims.len() < dims.len());
        if !operands.iter().any(elementwise) {
            return Ok(g);
        }
        let value = self.copy.spread(g.value, dims);
        Ok(Adjoint { value, ..g })
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId, y: ValueId, g: Adjoint) -> Done {
        if matches!(op, UnaryOp::Ln | UnaryOp::Log2)
            && let Some(exponential) = self.exponential_in(x)?
        {
            let log2_e = (op == UnaryOp::Log2).then(|| self.copy.float(std::f64::consts::LOG2_E));
            let factor = [g.factor, log2_e].into_iter().flatten().reduce(|a, b| self.copy.mul(a, b));
            return self.give_exponent(exponential, Adjoint { factor, ..g });
        }
        let copy = &mut self.copy;
        let of = |value: ValueId| Adjoint { value, ..g };
        let g_x = match op {
            UnaryOp::Neg => of(copy.unary(UnaryOp::Neg, g.value)),
            UnaryOp::Exp => {
                let y = copy.value(y)?;
                of(copy.mul(g.value, y))
            }
            UnaryOp::Exp2 => {
                let y = copy.value(y)?;
                let value = copy.mul(g.value, y);
                let ln_2 = copy.float(std::f64::consts::LN_2);
                return self.scaled(x, of(value), ln_2);
            }
            UnaryOp::Ln => {
                let x = copy.value(x)?;
                of(copy.binary(BinaryOp::Div, g.value, x))
            }
            UnaryOp::Log2 => {
                let at = copy.value(x)?;
                let value = copy.binary(BinaryOp::Div, g.value, at);
                let log2_e = copy.float(std::f64::consts::LOG2_E);
                return self.scaled(x, of(value), log2_e);
            }
            UnaryOp::Tanh => {
                let (y, one) = (copy.value(y)?, copy.float(1.0));
                let square = copy.mul(y, y);
                let slope = copy.binary(BinaryOp::Sub, one, square);
                of(copy.mul(g.value, slope))
            }
            UnaryOp::Sqrt => {
                let y = copy.value(y)?;
                let value = copy.binary(BinaryOp::Div, g.value, y);
                let half = copy.float(0.5);
                return self.scaled(x, of(value), half);
            }
            UnaryOp::Rsqrt => {
                let y = copy.value(y)?;
                let square = copy.mul(y, y);
                let cube = copy.mul(square, y);
                let value = copy.mul(g.value, cube);
                let half = copy.float(-0.5);
                return self.scaled(x, of(value), half);
            }
            UnaryOp::Sin => {
                let x = copy.value(x)?;
                let slope = copy.unary(UnaryOp::Cos, x);
                of(copy.mul(g.value, slope))
            }
            UnaryOp::Cos => {
                let x = copy.value(x)?;
                let sine = copy.unary(UnaryOp::Sin, x);
                let slope = copy.unary(UnaryOp::Neg, sine);
                of(copy.mul(g.value, slope))
            }
            UnaryOp::Abs => {
                let (at, zero) = (copy.value(x)?, copy.float(0.0));
                let at = copy.cast(at, Elem::F32);
                let below = copy.op(Op::Compare(CompareOp::Lt, at, zero));
                let against = copy.unary(UnaryOp::Neg, g.value);
                let beside = copy.select(below, against, g.value);
                // At its kink it has the slope between those of both sides.
                let cond = copy.op(Op::Compare(CompareOp::Eq, at, zero));
                let value = copy.select(cond, zero, beside);
                of(self.hidden_as(g.value, value))
            }
            UnaryOp::VisibleOrZero => g,
            // A step function: its gradient is 0.
            UnaryOp::Floor => return Ok(()),
            UnaryOp::Not => unreachable!("truth values have no gradient"),
        };
        self.give(x, g_x)
    }

    /// Gives a gradient times a number of the whole program.
    fn scaled(&mut self, to: ValueId, g: Adjoint, by: ValueId) -> Done {
        let factor = match g.factor {
            Some(factor) => self.copy.mul(factor, by),
            None => by,
        };
        self.give(to, Adjoint { value: g.value, factor: Some(factor) })
    }

    fn binary(&mut self, op: BinaryOp, [a, b]: [ValueId; 2], y: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        let needed = |v: &ValueId| forward.needed.contains(v);
        // A factor is applied behind the loops, so it is the same in all of them.
        let number = |v: &ValueId| forward.kernel.tile(*v).dims.is_empty() && !needed(v) && !self.copy.moves(*v);
        let numbers: Vec<ValueId> = [a, b].into_iter().filter(number).collect();
        let is_number = |v: ValueId| numbers.contains(&v);
        let negative = |this: &mut Self, value: ValueId| Adjoint { value: this.copy.unary(UnaryOp::Neg, value), ..g };
        match op {
            BinaryOp::Add => [a, b].into_iter().try_for_each(|to| {
                let g = self.of_term(y, to, g)?;
                self.give(to, g)
            }),
            BinaryOp::Sub => {
                let of_a = self.of_term(y, a, g)?;
                self.give(a, of_a)?;
                if needed(&b) {
                    let of_b = self.of_term(y, b, g)?;
                    let against = negative(self, of_b.value);
                    self.give(b, against)?;
                }
                Ok(())
            }
            BinaryOp::Mul => {
                for (to, other) in [(a, b), (b, a)] {
                    if !needed(&to) {
                        continue;
                    }
                    let other_here = self.copy.value(other)?;
                    if is_number(other) {
                        self.scaled(to, g, other_here)?;
                        continue;
                    }
                    let value = self.times(g.value, other_here);
                    self.give(to, Adjoint { value, ..g })?;
                }
                Ok(())
            }
            BinaryOp::Div | BinaryOp::DivOrZero => {
                let by = self.copy.value(b)?;
                if needed(&a) && is_number(b) && op == BinaryOp::Div {
                    let one = self.copy.float(1.0);
                    let inverse = self.copy.binary(BinaryOp::Div, one, by);
                    return self.scaled(a, g, inverse);
                }
                let g = self.rounded_for([a, b], g);
                // What is 0 for want of a divisor stays 0: its gradient is divided by infinity.
                let may_be_zero = self.copy.as_constant(by).is_none_or(|by| by == 0.0);
                let by = if op == BinaryOp::DivOrZero && may_be_zero { self.or_infinite(by) } else { by };
                if needed(&a) {
                    let mut value = self.copy.binary(BinaryOp::Div, g.value, by);
                    if op == BinaryOp::Div && self.copy.dims(by).is_empty() && self.copy.is_length(by) {
                        value = self.zero_of_zero(g.value, value);
                    }
                    self.give(a, Adjoint { value, ..g })?;
                }
                if needed(&b) {
                    let y = self.copy.value(y)?;
                    let product = self.copy.mul(g.value, y);
                    if let Some(exponential) = self.exponential_in(b)? {
                        let against = negative(self, product);
                        return self.give_exponent(exponential, against);
                    }
                    let quotient = self.copy.binary(BinaryOp::Div, product, by);
                    let against = negative(self, quotient);
                    self.give(b, against)?;
                }
                Ok(())
            }
            BinaryOp::Max | BinaryOp::Min => self.extreme(op, [a, b], g),
            other => {
                let what = format!("`{}` of floats has no gradient", other.row().mnemonic);
                Err(NotDifferentiable::new(what, forward.span(y), "leave out the inputs that it depends on"))
            }
        }
    }

    /// The larger or the smaller of two values has the gradient. A bound, one number for the whole
    /// tile, leaves it to the other where the two are equal; else equal values have half of it each.
    fn extreme(&mut self, op: BinaryOp, [a, b]: [ValueId; 2], g: Adjoint) -> Done {
        let forward = self.copy.forward;
        let is_bound = |v: ValueId| forward.kernel.tile(v).dims.is_empty();
        let is_shared = is_bound(a) == is_bound(b);
        let (more, not_less) = match op {
            BinaryOp::Max => (CompareOp::Gt, CompareOp::Ge),
            _ => (CompareOp::Lt, CompareOp::Le),
        };
        let (x, y, zero) = (self.copy.value(a)?, self.copy.value(b)?, self.copy.float(0.0));
        let [x, y] = [x, y].map(|v| self.copy.cast(v, Elem::F32));
        for (to, own, other) in [(a, x, y), (b, y, x)] {
            if !forward.needed.contains(&to) {
                continue;
            }
            let order = if is_shared || is_bound(to) { more } else { not_less };
            let cond = self.copy.op(Op::Compare(order, own, other));
            let mut value = self.copy.select(cond, g.value, zero);
            if is_shared {
                let half = self.copy.float(0.5);
                let half = self.copy.mul(g.value, half);
                let are_equal = self.copy.op(Op::Compare(CompareOp::Eq, x, y));
                value = self.copy.select(are_equal, half, value);
            }
            let value = self.hidden_as(g.value, value);
            self.give(to, Adjoint { value, ..g })?;
        }
        Ok(())
    }

    /// The gradient of a quotient of sums. Products of the loop take that of a matrix above
    /// rounded, and so does the sum below: the two cancel in a row that sees one column, and nearly
    /// do where columns weigh alike.
    fn rounded_for(&mut self, [above, below]: [ValueId; 2], g: Adjoint) -> Adjoint {
        let forward = self.copy.forward;
        let is_of_rows = forward.kernel.tile(below).rank() < forward.kernel.tile(above).rank();
        let is_above = |slot: &Slot| {
            let is_sum = match slot.form {
                Form::RescaledSum { .. } => true,
                Form::Sum { .. } => is_of_rows,
                _ => false,
            };
            slot.result == above && is_sum
        };
        if !forward.slots.iter().any(is_above) {
            return g;
        }
        let value = self.copy.cast(g.value, row_elem(forward, above));
        Adjoint { value, ..g }
    }

    /// A sum of a number and an exponential, as the divisor of `1 / (1 + exp(-x))` is.
    fn exponential_in(&mut self, sum: ValueId) -> Result<Option<Exponential>, NotDifferentiable> {
        let kernel = self.copy.forward.kernel;
        let Some((_, &Op::Binary(BinaryOp::Add, a, b))) = kernel.def(sum) else { return Ok(None) };
        for (number, power) in [(a, b), (b, a)] {
            if let Some((_, Op::Constant(..))) = kernel.def(number)
                && let Some((_, &Op::Unary(op @ (UnaryOp::Exp | UnaryOp::Exp2), of))) = kernel.def(power)
            {
                let (number, sum, one) = (self.copy.value(number)?, self.copy.value(sum)?, self.copy.float(1.0));
                let rest = self.copy.binary(BinaryOp::Div, number, sum);
                let part = self.copy.binary(BinaryOp::Sub, one, rest);
                return Ok(Some(Exponential { of, part, is_of_two: op == UnaryOp::Exp2 }));
            }
        }
        Ok(None)
    }

    /// Gives the exponent its gradient, of that of the logarithm of the sum: times the part of the
    /// exponential in the sum, which is a number where the exponential is infinite.
    fn give_exponent(&mut self, exponential: Exponential, g: Adjoint) -> Done {
        let g = Adjoint { value: self.copy.mul(g.value, exponential.part), ..g };
        match exponential.is_of_two {
            false => self.give(exponential.of, g),
            true => {
                let ln_2 = self.copy.float(std::f64::consts::LN_2);
                self.scaled(exponential.of, g, ln_2)
            }
        }
    }

    /// A divisor, and infinity in place of 0.
    fn or_infinite(&mut self, by: ValueId) -> ValueId {
        let by = self.copy.cast(by, Elem::F32);
        let (zero, infinity) = (self.copy.float(0.0), self.copy.float(f64::INFINITY));
        let is_zero = self.copy.op(Op::Compare(CompareOp::Eq, by, zero));
        self.copy.select(is_zero, infinity, by)
    }

    /// Of `a b`: `g b^T` for the one, `a^T g` for the other.
    fn product(&mut self, y: ValueId, a: ValueId, b: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        match (forward.class(y), forward.class(a), forward.class(b)) {
            (Class::Pair, ..) => self.product_of_pairs(y, a, b, g),
            (Class::Row, Class::Pair, Class::Column) => self.sum_over(Orientation::Columns, a, b, g),
            (Class::Column, Class::Pair, Class::Row) => self.sum_over(Orientation::Rows, a, b, g),
            (_, left, Class::Program) if left != Class::Program && !forward.needed.contains(&b) => {
                let right = self.copy.value(b)?;
                let (turned, elem) = (self.copy.transposed(right), self.elem(right));
                let left = self.copy.cast(g.value, elem);
                let value = self.copy.op(Op::Dot { a: left, b: turned, acc: None });
                self.give(a, Adjoint { value, ..g })
            }
            _ => {
                let what = "this product sums over something else than columns";
                let instead = "multiply what rows load with what columns load, and sum over columns in the loop";
                Err(NotDifferentiable::new(what, forward.span(y), instead))
            }
        }
    }

    fn elem(&self, value: ValueId) -> Elem {
        self.copy.b.kernel.tile(value).elem
    }

    /// Rows times columns: the gradient of the operand whose dimension is the first one here.
    fn product_of_pairs(&mut self, y: ValueId, a: ValueId, b: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        // Of `a b` in the order of tiles here, or of its transpose `b^T a^T`.
        let dims: Vec<Dim> = forward.kernel.tile(y).dims.iter().map(|dim| self.copy.dim(dim)).collect();
        let as_written = !self.copy.is_turned(&dims);
        // What a product is summed up to gives all of its elements one gradient.
        let dims_here = self.copy.dims_of(y);
        let of_each = self.copy.spread(g.value, dims_here);
        let counted = self.counted(of_each);
        for (to, other) in [(a, b), (b, a)] {
            if !forward.needed.contains(&to) {
                continue;
            }
            let other = self.copy.value(other)?;
            let elem = self.elem(other);
            let sum = self.copy.cast(counted, elem);
            // The operand whose rows are those of the tile is the left one.
            let value = match ((to == a) == as_written, as_written) {
                (true, true) => {
                    let right = self.copy.transposed(other);
                    self.copy.op(Op::Dot { a: sum, b: right, acc: None })
                }
                (true, false) => {
                    let value = self.copy.op(Op::Dot { a: sum, b: other, acc: None });
                    self.copy.transposed(value)
                }
                (false, true) => {
                    let left = self.copy.transposed(other);
                    self.copy.op(Op::Dot { a: left, b: sum, acc: None })
                }
                (false, false) => {
                    let (left, right) = (self.copy.transposed(sum), self.copy.transposed(other));
                    self.copy.op(Op::Dot { a: left, b: right, acc: None })
                }
            };
            self.give(to, Adjoint { value, ..g })?;
        }
        Ok(())
    }

    /// `p w`, summed over columns, or over rows: `w` is what differs along these.
    fn sum_over(&mut self, summed: Orientation, p: ValueId, w: ValueId, g: Adjoint) -> Done {
        let forward = self.copy.forward;
        let other = self.copy.value(w)?;
        let elem = self.elem(other);
        let of_result = self.copy.cast(g.value, elem);
        if forward.needed.contains(&p) {
            let [rows, columns] = if summed == Orientation::Columns { [of_result, other] } else { [other, of_result] };
            let (left, right) = match self.copy.orientation {
                Orientation::Rows => (rows, self.copy.transposed(columns)),
                Orientation::Columns => (columns, self.copy.transposed(rows)),
            };
            let value = self.copy.op(Op::Dot { a: left, b: right, acc: None });
            self.give(p, Adjoint { value, ..g })?;
        }
        if forward.needed.contains(&w) && self.copy.orientation == summed {
            let weights = self.copy.value(p)?;
            let weights = self.counted(weights);
            let weights = self.copy.cast(weights, elem);
            let value = self.copy.op(Op::Dot { a: weights, b: of_result, acc: None });
            self.give(w, Adjoint { value, ..g })?;
        }
        Ok(())
    }

    /// A tile of pairs that is summed: the pairs that do not count are hidden in it. Those of a
    /// product are from the start, but a `select` may put something else in their place.
    pub fn counted(&mut self, pairs: ValueId) -> ValueId {
        match self.copy.counts {
            Some(keep) if !self.is_hidden(pairs, keep) => self.copy.op(Op::Mask { x: pairs, keep, fill: Fill::NegInf }),
            _ => pairs,
        }
    }

    /// Whether what a condition hides is hidden in a value already.
    fn is_hidden(&self, value: ValueId, keep: ValueId) -> bool {
        match self.copy.b.kernel.def(value) {
            Some((_, Op::Mask { x, keep: other, .. })) => *other == keep || self.is_hidden(*x, keep),
            Some((_, op)) if op.is_elementwise() && !matches!(op, Op::Select { .. }) => {
                op.operands().into_iter().any(|v| self.is_hidden(v, keep))
            }
            _ => false,
        }
    }
}
