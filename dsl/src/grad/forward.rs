//! What the forward kernel is made of: rows, columns and pairs of both.

use std::collections::{HashMap, HashSet};

use super::{NotDifferentiable, Request};
use crate::analysis::streaming::{Base, Form, Streaming};
use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, BlockId, Elem, Kernel, Op, OpId, ParamId, ProgramDim, ReduceOp, Span, UnaryOp, ValueDef,
    ValueId,
};

/// What a value differs along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Neither rows nor columns: it is one in a program.
    Program,
    /// Rows.
    Row,
    /// Columns.
    Column,
    /// Both.
    Pair,
}

impl Class {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Class::Program, x) | (x, Class::Program) => x,
            (x, y) if x == y => x,
            _ => Class::Pair,
        }
    }
}

/// The forward kernel, taken apart.
pub(super) struct Forward<'k> {
    pub kernel: &'k Kernel,
    /// Results of `program`.
    pub program: Vec<ValueId>,
    /// The coordinate of the rows, and its axis.
    pub row: (ValueId, AxisId),
    /// The loop.
    pub loop_op: OpId,
    pub body: BlockId,
    /// The coordinate of the columns, and its axis.
    pub column: (ValueId, AxisId),
    /// The forms of the carried values, and the results of the loop.
    pub forms: Vec<Form>,
    pub results: Vec<ValueId>,
    /// Values that depend on an input whose gradient is wanted.
    pub needed: HashSet<ValueId>,
    /// Inputs whose gradients are wanted.
    pub wanted: Vec<ParamId>,
    /// Outputs whose gradients are given.
    pub given: Vec<ParamId>,
    classes: HashMap<ValueId, Class>,
}

impl<'k> Forward<'k> {
    pub fn of(kernel: &'k Kernel, request: &Request) -> Result<Self, NotDifferentiable> {
        let refuse = |what: &str, span: Span, instead: &str| Err(NotDifferentiable::new(what, span, instead));
        let wanted = params(kernel, &request.of, false)?;
        let given = params(kernel, &request.from, true)?;
        let Some(&first) = kernel.blocks[kernel.body].ops.first() else {
            return refuse("the kernel is empty", kernel.name_span, "write a kernel");
        };
        let program = kernel.ops[first].results.clone();
        let tiled: Vec<usize> = (0..program.len()).filter(|&d| matches!(kernel.grid()[d], ProgramDim::Tiles(_))).collect();
        let &[rows] = tiled.as_slice() else {
            let what = "gradients are built of kernels with one tiled dimension of the grid";
            return refuse(what, kernel.name_span, "give the grid one `tiles(..)`, and loop over the other axis");
        };
        let ProgramDim::Tiles(row_axis) = kernel.grid()[rows] else { unreachable!("just found") };
        let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
        let loops: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).filter(is_loop).collect();
        let &[loop_op] = loops.as_slice() else {
            let span = loops.get(1).map_or(kernel.name_span, |&op| kernel.ops[op].span);
            return refuse("gradients are built of kernels with one loop", span, "write one loop over the columns");
        };
        let Op::For { axis, body, .. } = kernel.ops[loop_op].op else { unreachable!("a loop") };
        if kernel.axes[axis].kind != AxisKind::Loop {
            let what = "gradients are built of loops over tiles";
            return refuse(what, kernel.ops[loop_op].span, "walk tiles of columns, `for j in tiles(N)`");
        }
        let streaming = Streaming::of(kernel, loop_op);
        if streaming.stores {
            let what = "gradients are built of loops that store nothing";
            return refuse(what, kernel.ops[loop_op].span, "store what rows give behind the loop");
        }
        for (slot, form) in streaming.forms.iter().enumerate() {
            if let Form::Other(why) = form {
                let v = kernel.blocks[body].params[slot + 1];
                let name = kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
                let what = format!("`{name}` is no streaming reduction: {why}");
                return refuse(&what, kernel.ops[loop_op].span, "carry maxima, sums and sums that a maximum rescales");
            }
        }
        let mut made = Self {
            kernel,
            row: (program[rows], row_axis),
            program,
            loop_op,
            body,
            column: (kernel.blocks[body].params[0], axis),
            forms: streaming.forms,
            results: kernel.ops[loop_op].results.clone(),
            needed: HashSet::new(),
            wanted,
            given,
            classes: HashMap::new(),
        };
        made.classify();
        made.check_uses()?;
        made.check_loads()?;
        Ok(made)
    }

    /// Checks that what rows, columns or pairs of both load is wanted, and nothing else.
    fn check_loads(&self) -> Result<(), NotDifferentiable> {
        for &tensor in &self.wanted {
            let param = &self.kernel.params[tensor];
            let mut loads = self.in_order().into_iter().filter_map(|op| match &self.kernel.ops[op].op {
                Op::Load { tensor: t, .. } if *t == tensor => Some((op, true)),
                Op::Gather { tensor: t, .. } if *t == tensor => Some((op, false)),
                _ => None,
            });
            let refused = loads.find_map(|(op, is_load)| {
                let span = self.kernel.ops[op].span;
                match is_load {
                    false => Some(("is gathered, by positions that may be the same", span)),
                    true if self.class(self.kernel.ops[op].results[0]) == Class::Program => {
                        Some(("is loaded for whole programs, over which its gradient would be summed", span))
                    }
                    true => None,
                }
            });
            let is_read = self.in_order().into_iter().any(
                |op| matches!(&self.kernel.ops[op].op, Op::Load { tensor: t, .. } | Op::Gather { tensor: t, .. } if *t == tensor),
            );
            let refused = refused.or((!is_read).then_some(("is not loaded", param.span)));
            if let Some((why, span)) = refused {
                let what = format!("`{}` {why}", param.name);
                let instead = "leave it out: gradients are built of what rows, columns or pairs of both load";
                return Err(NotDifferentiable::new(what, span, instead));
            }
        }
        Ok(())
    }

    /// Checks that what follows the loop takes running maxima, and what they rescale, only by
    /// quotients and by logarithms with the maximum: what no choice of the maximum changes.
    fn check_uses(&self) -> Result<(), NotDifferentiable> {
        let behind = || self.kernel.blocks[self.kernel.body].ops.iter().copied();
        let users = |v: ValueId| behind().filter(move |&op| self.kernel.ops[op].op.operands().contains(&v));
        let result = |op: OpId| self.kernel.ops[op].results.first().copied();
        let maximum_of = |v: ValueId| match self.forms[self.slot(v)?] {
            Form::RescaledSum { maximum, .. } => Some(maximum),
            _ => None,
        };
        let is_reference = |op: OpId, maximum: usize| result(op).is_some_and(|v| self.reference(v, maximum).is_some());
        for (slot, form) in self.forms.iter().enumerate() {
            let value = self.results[slot];
            let refused = match *form {
                Form::RunningMaximum { .. } => users(value).find(|&op| !is_reference(op, slot)),
                Form::RescaledSum { maximum, .. } => users(value).find(|&op| match self.kernel.ops[op].op {
                    Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, b) => {
                        [a, b].into_iter().any(|v| maximum_of(v) != Some(maximum))
                    }
                    Op::Unary(UnaryOp::Ln | UnaryOp::Log2, _) => {
                        result(op).is_none_or(|ln| users(ln).any(|op| !is_reference(op, maximum)))
                    }
                    _ => true,
                }),
                _ => None,
            };
            if let Some(op) = refused {
                let what = format!("`{}` is used otherwise than by `acc / l` or `m + ln(l)`", self.name(value));
                let instead = "store quotients of what one maximum rescales, and the logarithm of a sum with its maximum";
                return Err(NotDifferentiable::new(what, self.kernel.ops[op].span, instead));
            }
        }
        Ok(())
    }

    /// What a value differs along.
    pub fn class(&self, value: ValueId) -> Class {
        self.classes.get(&value).copied().unwrap_or(Class::Program)
    }

    /// The result of the loop that a value is, by its slot.
    pub fn slot(&self, value: ValueId) -> Option<usize> {
        self.results.iter().position(|&r| r == value)
    }

    /// The op that stands for all loads of the same tile.
    pub fn canonical(&self, value: ValueId) -> ValueId {
        let Some((_, op @ Op::Load { .. })) = self.kernel.def(value) else { return value };
        let same = |&(_, id): &(BlockId, OpId)| self.kernel.ops[id].op == *op;
        let first = self.kernel.walk().into_iter().find(same).expect("the load itself");
        self.kernel.ops[first.1].results[0]
    }

    /// Name of a value, for errors.
    pub fn name(&self, value: ValueId) -> String {
        self.kernel.values[value].name.clone().unwrap_or_else(|| value.to_string())
    }

    /// The place of a value in the text.
    pub fn span(&self, value: ValueId) -> Span {
        match self.kernel.values[value].def {
            ValueDef::Result(op, _) => self.kernel.ops[op].span,
            ValueDef::BlockParam(..) => self.kernel.ops[self.loop_op].span,
        }
    }

    /// Classes and what is needed, in the order of the ops.
    fn classify(&mut self) {
        let kernel = self.kernel;
        self.classes.insert(self.row.0, Class::Row);
        self.classes.insert(self.column.0, Class::Column);
        // A running maximum is held fixed.
        let maxima: HashSet<ValueId> = self
            .forms
            .iter()
            .flat_map(|form| match form {
                Form::RunningMaximum { scores } => scores.as_slice(),
                _ => &[],
            })
            .copied()
            .collect();
        let is_maximum = |slot: usize| matches!(self.forms[slot], Form::RunningMaximum { .. });
        let fixed: HashSet<ValueId> =
            (0..self.results.len()).filter(|&slot| is_maximum(slot)).map(|slot| self.results[slot]).collect();
        for &carried in &kernel.blocks[self.body].params[1..] {
            self.classes.insert(carried, Class::Row);
        }
        for op in self.in_order() {
            let data = &kernel.ops[op];
            let reads = data.op.operands();
            let class = match data.op {
                Op::Program(_) => continue,
                Op::For { .. } => Class::Row,
                // What a loop sums up differs along rows alone.
                Op::Reduce(..) | Op::Dot { .. } => self.along(data.results[0]),
                _ => reads.iter().fold(Class::Program, |class, &v| class.and(self.class(v))),
            };
            let wanted = matches!(&data.op, Op::Load { tensor, .. } | Op::Gather { tensor, .. } if self.wanted.contains(tensor));
            let held = matches!(data.op, Op::Reduce(ReduceOp::Max, x) if maxima.contains(&x));
            let needed = !held && (wanted || reads.iter().any(|v| self.needed.contains(v)) || matches!(data.op, Op::For { .. }));
            for &result in &data.results {
                self.classes.insert(result, class);
                let is_float = kernel.ty(result).tile().is_some_and(|tile| tile.elem.is_float());
                if needed && is_float && !fixed.contains(&result) {
                    self.needed.insert(result);
                }
            }
        }
    }

    /// The class by the dimensions of a tile.
    fn along(&self, value: ValueId) -> Class {
        let dims = &self.kernel.tile(value).dims;
        let of = |axis: AxisId, class: Class| if dims.contains(&crate::ir::Dim::Axis(axis)) { class } else { Class::Program };
        of(self.row.1, Class::Row).and(of(self.column.1, Class::Column))
    }

    /// All ops, those of the loop's body before the loop itself.
    pub fn in_order(&self) -> Vec<OpId> {
        let kernel = self.kernel;
        let mut out = Vec::new();
        for &op in &kernel.blocks[kernel.body].ops {
            if op == self.loop_op {
                out.extend(&kernel.blocks[self.body].ops);
            }
            out.push(op);
        }
        out
    }

    /// Where an output holds `m + ln(l)` of a running maximum: the output, its place, and the sum.
    pub fn stored_reference(&self, maximum: usize) -> Option<(ParamId, Vec<At>, usize)> {
        self.stores().into_iter().find_map(|(tensor, at, value)| {
            let slot = self.reference(value, maximum)?;
            (self.kernel.tensor(tensor).elem == Elem::F32).then_some((tensor, at, slot))
        })
    }

    /// The sum `l`, if a value is `m + ln(l)`.
    pub fn reference(&self, value: ValueId, maximum: usize) -> Option<usize> {
        let kernel = self.kernel;
        let Some((_, &Op::Binary(BinaryOp::Add, a, b))) = kernel.def(value) else { return None };
        let logarithm = |v: ValueId| match *kernel.def(v)?.1 {
            Op::Unary(UnaryOp::Ln, x) => Some((self.slot(x)?, Base::E)),
            Op::Unary(UnaryOp::Log2, x) => Some((self.slot(x)?, Base::Two)),
            _ => None,
        };
        let of = |m: ValueId, ln: ValueId| (self.slot(m) == Some(maximum)).then(|| logarithm(ln)).flatten();
        let (slot, base) = of(a, b).or_else(|| of(b, a))?;
        matches!(self.forms[slot], Form::RescaledSum { maximum: m, base: own, .. } if m == maximum && own == base).then_some(slot)
    }

    /// Where an output holds the quotient of two results of the loop.
    pub fn stored_quotient(&self, above: usize, below: usize) -> Option<(ParamId, Vec<At>)> {
        let kernel = self.kernel;
        self.stores().into_iter().find_map(|(tensor, at, value)| {
            let uncast = match kernel.def(value) {
                Some((_, &Op::Cast(_, x))) => x,
                _ => value,
            };
            let Some((_, &Op::Binary(BinaryOp::Div | BinaryOp::DivOrZero, a, b))) = kernel.def(uncast) else { return None };
            (self.slot(a) == Some(above) && self.slot(b) == Some(below)).then_some((tensor, at))
        })
    }

    /// The stores of the kernel.
    pub fn stores(&self) -> Vec<(ParamId, Vec<At>, ValueId)> {
        let of = |op: OpId| match &self.kernel.ops[op].op {
            Op::Store { tensor, at, value } => Some((*tensor, at.clone(), *value)),
            _ => None,
        };
        self.in_order().into_iter().filter_map(of).collect()
    }
}

/// The tensors of these names: outputs, or inputs of floats.
fn params(kernel: &Kernel, names: &[String], written: bool) -> Result<Vec<ParamId>, NotDifferentiable> {
    let find = |name: &String| {
        let param = kernel.param_named(name);
        let fits = param.is_some_and(|param| match &kernel.params[param].kind {
            crate::ir::ParamKind::Tensor(decl) => decl.direction.is_written() == written && decl.elem.is_float(),
            crate::ir::ParamKind::Scalar(_) => false,
        });
        let kind = if written { "an output of floats" } else { "an input tensor of floats" };
        let span = param.map_or(kernel.name_span, |param| kernel.params[param].span);
        param.filter(|_| fits).ok_or_else(|| {
            NotDifferentiable::new(format!("`{name}` is not {kind}"), span, format!("name {kind} of `{}`", kernel.name))
        })
    };
    names.iter().map(find).collect()
}
