//! Mutants: kernels that differ from a kernel in one place of its tile IR.
//!
//! Every constant, operator, comparison, operand and index of the text is changed once, and every term that may be left out is.
//! A mutant is a verified kernel: what the verifier refuses is none. The check of the checker (`tests/mutants.rs`) asks which of
//! them pass for the kernel.

use std::collections::HashSet;

use flashtile_dsl::analysis::live::live_values;
use flashtile_dsl::ir::{
    At, BinaryOp, BlockId, CompareOp, Elem, IndexOp, Kernel, Op, OpData, OpId, ParamKind, ReduceOp, SizeExpr, Type, UnaryOp,
    ValueData, ValueDef, ValueId, result_types, verify,
};

/// A kernel with one change.
pub struct Mutant {
    /// Line and column of what is changed.
    pub place: (u32, u32),
    /// What is changed, as the text has it, and how.
    pub change: String,
    /// The changed kernel.
    pub kernel: Kernel,
}

/// All mutants of a kernel, in order of the text.
pub fn mutants(kernel: &Kernel) -> Vec<Mutant> {
    let mut maker = Maker { kernel, live: live_values(kernel), made: Vec::new() };
    maker.block(kernel.body, &mut Vec::new());
    maker.made.sort_by_key(|m| m.place);
    maker.made
}

struct Maker<'a> {
    kernel: &'a Kernel,
    /// What stores need: other values may be anything.
    live: HashSet<ValueId>,
    made: Vec<Mutant>,
}

impl Maker<'_> {
    /// Changes the ops of a block. `scope` holds the values that are defined before it, oldest first.
    fn block(&mut self, block: BlockId, scope: &mut Vec<ValueId>) {
        let kernel = self.kernel;
        let outer = scope.len();
        scope.extend(&kernel.blocks[block].params);
        for (at, &op) in kernel.blocks[block].ops.iter().enumerate() {
            let data = &kernel.ops[op];
            if let Op::For { body, .. } = data.op {
                self.block(body, scope);
            }
            if !data.results.is_empty() && !data.results.iter().any(|v| self.live.contains(v)) {
                scope.extend(&data.results);
                continue;
            }
            self.op(op, &data.op);
            self.operands(op, &data.op, scope);
            self.dropped(op, &data.op, (block, at));
            if let Op::Yield(values) = &data.op {
                self.not_carried(op, values, block);
            }
            scope.extend(&data.results);
        }
        scope.truncate(outer);
    }

    /// Adds a mutant, unless the verifier refuses it or it is the kernel itself.
    fn add(&mut self, op: OpId, change: &str, kernel: Kernel) {
        if verify(&kernel).is_ok() && kernel != *self.kernel {
            let span = self.kernel.ops[op].span;
            let place = self.kernel.source.line_column(span).unwrap_or((0, 0));
            self.made.push(Mutant { place, change: format!("`{}`: {change}", self.text(op)), kernel });
        }
    }

    /// The text of an op in one line.
    fn text(&self, op: OpId) -> String {
        let span = self.kernel.ops[op].span;
        let text = self.kernel.source.text.get(span.start as usize..span.end as usize).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// A value as the text has it.
    fn value(&self, value: ValueId) -> String {
        match (&self.kernel.values[value].name, self.kernel.values[value].def) {
            (Some(name), _) => name.clone(),
            (None, ValueDef::Result(op, _)) => self.text(op),
            (None, ValueDef::BlockParam(..)) => value.to_string(),
        }
    }

    /// Replaces an op by another of the same type.
    fn replace(&mut self, op: OpId, change: &str, new: Op) {
        let types: Vec<Type> = self.kernel.ops[op].results.iter().map(|v| self.kernel.ty(*v).clone()).collect();
        if result_types(self.kernel, &new) == types {
            let mut kernel = self.kernel.clone();
            kernel.ops[op].op = new;
            self.add(op, change, kernel);
        }
    }

    /// Changes what the op is: its constant, operator, comparison, tensor.
    fn op(&mut self, id: OpId, op: &Op) {
        let kernel = self.kernel;
        match op {
            Op::Constant(elem, x) => {
                let new = match (elem, x) {
                    (_, x) if !x.is_finite() || *x == 1.0 => 0.0,
                    (Elem::I32, x) => x + 1.0,
                    (_, x) if *x == 0.0 => 1.0,
                    (_, x) => x * 1.5,
                };
                self.replace(id, &format!("{new}"), Op::Constant(*elem, new));
            }
            Op::IndexConst(n) => self.replace(id, &format!("{}", n + 1), Op::IndexConst(n + 1)),
            Op::SizeOf(size) => {
                let kind = kernel.sizes[*size].kind;
                let others: Vec<_> = kernel.sizes.iter().filter(|(s, data)| s != size && data.kind == kind).collect();
                if let Some((other, data)) = others.iter().find(|(s, _)| s > size).or(others.first()) {
                    self.replace(id, &format!("size {}", data.name), Op::SizeOf(*other));
                }
            }
            Op::Scalar(param) => {
                let kind = &kernel.params[*param].kind;
                if let Some((other, data)) = kernel.params.iter().find(|(p, data)| p != param && data.kind == *kind) {
                    self.replace(id, &format!("scalar {}", data.name), Op::Scalar(other));
                }
            }
            Op::Index(op, a, b) => {
                let new = match op {
                    IndexOp::Add => IndexOp::Sub,
                    IndexOp::Sub => IndexOp::Add,
                    IndexOp::Mul => IndexOp::Add,
                    IndexOp::Div => IndexOp::Rem,
                    IndexOp::Rem => IndexOp::Div,
                    IndexOp::Min => IndexOp::Max,
                    IndexOp::Max => IndexOp::Min,
                };
                self.replace(id, &format!("{op:?} to {new:?}"), Op::Index(new, *a, *b));
                if matches!(op, IndexOp::Sub | IndexOp::Div | IndexOp::Rem) {
                    self.replace(id, "operands swapped", Op::Index(*op, *b, *a));
                }
            }
            Op::Unary(op, x) => {
                let new = match op {
                    UnaryOp::Exp => Some(UnaryOp::Exp2),
                    UnaryOp::Exp2 => Some(UnaryOp::Exp),
                    UnaryOp::Ln => Some(UnaryOp::Log2),
                    UnaryOp::Log2 => Some(UnaryOp::Ln),
                    UnaryOp::Tanh | UnaryOp::Not | UnaryOp::VisibleOrZero => None,
                    // The next op of the table that takes the same.
                    op => {
                        let after = UnaryOp::ALL.iter().cycle().skip_while(|other| *other != op).skip(1);
                        after.copied().find(|other| other.row().operand == op.row().operand)
                    }
                };
                if let Some(new) = new {
                    self.replace(id, &format!("{op:?} to {new:?}"), Op::Unary(new, *x));
                }
            }
            Op::Binary(op, a, b) => {
                let new = match op {
                    BinaryOp::Add => BinaryOp::Sub,
                    BinaryOp::Sub => BinaryOp::Add,
                    BinaryOp::Mul => BinaryOp::Div,
                    BinaryOp::Div | BinaryOp::Rem => BinaryOp::Mul,
                    BinaryOp::Max => BinaryOp::Min,
                    BinaryOp::Min => BinaryOp::Max,
                    BinaryOp::DivOrZero => BinaryOp::Div,
                    // The next op of the table that takes the same.
                    op => {
                        let after = BinaryOp::ALL.iter().cycle().skip_while(|other| *other != op).skip(1);
                        after.copied().find(|other| other.row().operands == op.row().operands).expect("the op itself")
                    }
                };
                self.replace(id, &format!("{op:?} to {new:?}"), Op::Binary(new, *a, *b));
                if matches!(op, BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem | BinaryOp::DivOrZero) {
                    self.replace(id, "operands swapped", Op::Binary(*op, *b, *a));
                }
            }
            Op::Compare(op, a, b) => {
                let (near, far) = match op {
                    CompareOp::Eq => (CompareOp::Ge, CompareOp::Ne),
                    CompareOp::Ne => (CompareOp::Gt, CompareOp::Eq),
                    CompareOp::Lt => (CompareOp::Le, CompareOp::Ge),
                    CompareOp::Le => (CompareOp::Lt, CompareOp::Gt),
                    CompareOp::Gt => (CompareOp::Ge, CompareOp::Le),
                    CompareOp::Ge => (CompareOp::Gt, CompareOp::Lt),
                };
                for new in [near, far] {
                    self.replace(id, &format!("{op:?} to {new:?}"), Op::Compare(new, *a, *b));
                }
            }
            Op::Select { cond, on_true, on_false } => {
                let swapped = Op::Select { cond: *cond, on_true: *on_false, on_false: *on_true };
                self.replace(id, "branches swapped", swapped);
            }
            Op::Reduce(op, x) => {
                let new = if *op == ReduceOp::Max { ReduceOp::Sum } else { ReduceOp::Max };
                self.replace(id, &format!("{op:?} to {new:?}"), Op::Reduce(new, *x));
            }
            Op::Load { tensor, at } => {
                let decl = kernel.tensor(*tensor);
                let like = |kind: &ParamKind| matches!(kind, ParamKind::Tensor(t) if t == decl);
                if let Some((other, data)) = kernel.params.iter().find(|(p, data)| p != tensor && like(&data.kind)) {
                    self.replace(id, &format!("tensor {}", data.name), Op::Load { tensor: other, at: at.clone() });
                }
                for (dim, at) in ranges_moved(kernel, &decl.shape, at) {
                    self.replace(id, &format!("range of dimension {dim} moved"), Op::Load { tensor: *tensor, at });
                }
            }
            Op::Gather { tensor, at } => {
                let decl = kernel.tensor(*tensor);
                let like = |kind: &ParamKind| matches!(kind, ParamKind::Tensor(t) if t == decl);
                if let Some((other, data)) = kernel.params.iter().find(|(p, data)| p != tensor && like(&data.kind)) {
                    self.replace(id, &format!("tensor {}", data.name), Op::Gather { tensor: other, at: at.clone() });
                }
            }
            Op::Store { tensor, at, value } => {
                for (dim, at) in ranges_moved(kernel, &kernel.tensor(*tensor).shape, at) {
                    let new = Op::Store { tensor: *tensor, at, value: *value };
                    self.replace(id, &format!("range of dimension {dim} moved"), new);
                }
            }
            _ => {}
        }
    }

    /// Puts another value of the same type in place of each operand: the nearest one with a name, else the nearest.
    fn operands(&mut self, id: OpId, op: &Op, scope: &[ValueId]) {
        let kernel = self.kernel;
        for (slot, old) in op.operands().into_iter().enumerate() {
            // Coordinates of an axis are one: the type says which.
            let like = |v: &&ValueId| **v != old && kernel.ty(**v) == kernel.ty(old) && !same(kernel, **v, old);
            let named = |v: &&ValueId| kernel.values[**v].name.is_some();
            let found = scope.iter().rev().filter(like).find(named).or_else(|| scope.iter().rev().find(like));
            let Some(&new) = found else { continue };
            let mut at = 0;
            let changed = op.map_operands(|v| {
                at += 1;
                if at - 1 == slot { new } else { v }
            });
            let change = format!("{} for {} (operand {slot})", self.value(new), self.value(old));
            let mut mutant = kernel.clone();
            mutant.ops[id].op = changed;
            self.add(id, &change, mutant);
        }
    }

    /// Leaves out the op, or one of its terms.
    fn dropped(&mut self, id: OpId, op: &Op, place: (BlockId, usize)) {
        match op {
            Op::Unary(_, x) | Op::Mask { x, .. } => self.forwarded(id, *x, "left out"),
            Op::Index(_, a, b) => {
                self.forwarded(id, *a, "left alone");
                self.forwarded(id, *b, "right alone");
            }
            Op::Binary(op, a, b) => {
                // What leaves the other operand as it is.
                let (elem, neutral) = match op {
                    BinaryOp::Add | BinaryOp::Sub => (self.kernel.tile(*a).elem, 0.0),
                    BinaryOp::Mul | BinaryOp::Div | BinaryOp::DivOrZero => (self.kernel.tile(*a).elem, 1.0),
                    BinaryOp::Max => (Elem::F32, f64::NEG_INFINITY),
                    BinaryOp::Min => (Elem::F32, f64::INFINITY),
                    _ => {
                        self.forwarded(id, *a, "left alone");
                        self.forwarded(id, *b, "right alone");
                        return;
                    }
                };
                let elem = if elem == Elem::I32 { Elem::I32 } else { Elem::F32 };
                self.neutral(id, *b, (elem, neutral), place, "left alone");
                if *op == BinaryOp::Sub {
                    // Without what it is taken from, the other would be negated, which is another change.
                    self.forwarded(id, *b, "right alone");
                } else if !matches!(op, BinaryOp::Div | BinaryOp::DivOrZero) {
                    self.neutral(id, *a, (elem, neutral), place, "right alone");
                }
            }
            _ => {}
        }
    }

    /// Gives `value` to all that reads the op's result, if it is of the same type.
    fn forwarded(&mut self, id: OpId, value: ValueId, change: &str) {
        let [result] = self.kernel.ops[id].results[..] else { return };
        if self.kernel.ty(result) != self.kernel.ty(value) {
            return;
        }
        let mut kernel = self.kernel.clone();
        for op in self.kernel.ops.keys() {
            let new = kernel.ops[op].op.map_operands(|v| if v == result { value } else { v });
            kernel.ops[op].op = new;
        }
        self.add(id, change, kernel);
    }

    /// Puts a constant of the same shape in place of an operand.
    fn neutral(&mut self, id: OpId, operand: ValueId, (elem, x): (Elem, f64), (block, at): (BlockId, usize), change: &str) {
        let mut kernel = self.kernel.clone();
        let dims = kernel.tile(operand).dims.clone();
        let insert = |kernel: &mut Kernel, at: usize, op: Op| {
            let ty = result_types(kernel, &op).remove(0);
            let span = kernel.ops[id].span;
            let new = kernel.ops.push(OpData { op, results: Vec::new(), span });
            let value = kernel.values.push(ValueData { ty, def: ValueDef::Result(new, 0), name: None });
            kernel.ops[new].results.push(value);
            kernel.blocks[block].ops.insert(at, new);
            value
        };
        let constant = insert(&mut kernel, at, Op::Constant(elem, x));
        let value = if dims.is_empty() { constant } else { insert(&mut kernel, at + 1, Op::Full { value: constant, dims }) };
        let mut done = false;
        let new = kernel.ops[id].op.map_operands(|v| {
            let here = v == operand && !done;
            done |= here;
            if here { value } else { v }
        });
        kernel.ops[id].op = new;
        self.add(id, change, kernel);
    }

    /// Leaves a carried value as it is.
    fn not_carried(&mut self, id: OpId, values: &[ValueId], block: BlockId) {
        for (slot, &value) in values.iter().enumerate() {
            let own = self.kernel.blocks[block].params[slot + 1];
            if own != value {
                let mut kernel = self.kernel.clone();
                let mut next = values.to_vec();
                next[slot] = own;
                kernel.ops[id].op = Op::Yield(next);
                let change = format!("{} is not updated", self.value(own));
                self.add(id, &change, kernel);
            }
        }
    }
}

/// Whether two values are the same by their text: loads of the same place, the same constant, the same size.
fn same(kernel: &Kernel, a: ValueId, b: ValueId) -> bool {
    match (kernel.def(a), kernel.def(b)) {
        (Some((_, a)), Some((_, b))) => a == b && a.operands().is_empty() && !matches!(a, Op::Program(_)),
        _ => false,
    }
}

/// The ways to move one range of an access elsewhere in its dimension.
fn ranges_moved(kernel: &Kernel, shape: &[SizeExpr], at: &[At]) -> Vec<(usize, Vec<At>)> {
    let mut moved = Vec::new();
    for (dim, extent) in shape.iter().enumerate() {
        let At::Range { start, len } = &at[dim] else { continue };
        let first = SizeExpr::constant(0);
        let other = if *start == first { extent.sub(len) } else { first };
        let known = other.sizes().all(|s| kernel.sizes[s].kind == flashtile_dsl::ir::SizeKind::Const);
        if other != *start && known {
            let mut new = at.to_vec();
            new[dim] = At::Range { start: other, len: len.clone() };
            moved.push((dim, new));
        }
    }
    moved
}
